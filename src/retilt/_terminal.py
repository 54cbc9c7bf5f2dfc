"""What the command line prints: sentences and tables, or one JSON object; errors; progress.

Text and JSON go to standard output, errors and progress to standard error.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retilt.exceptions import RetiltWarning

if TYPE_CHECKING:
    from retilt.evaluation import Evaluation
    from retilt.tilt import Tilt

MAX_TABLE_ROWS = 40
"""Longer tables are cut in text, to the rows farthest from their targets; JSON has all."""

_LONGEST_ERROR = 2_000
"""Characters of an error's message: more is what a file holds, not what is wrong with it."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command's results go.

    Parameters
    ----------
    as_json
        Print one JSON object and no text.
    quiet
        Print no progress and no text other than errors and what was asked for by name.
    """

    as_json: bool = False
    quiet: bool = False

    def say(self, text: str) -> None:
        """Print a paragraph of text."""
        if not (self.as_json or self.quiet):
            print(_wrapped(printable(text)))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; all columns but the first are aligned to the right."""
        if self.as_json or self.quiet:
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table

        # A pipe has no width: nothing may be cut off there.
        width = None if sys.stdout.isatty() else 160
        console = Console(markup=False, highlight=False, emoji=False, width=width)
        table = Table(
            title=printable(title),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
        )
        for number, column in enumerate(columns):
            table.add_column(
                column, justify="right" if number else "left", overflow="fold", no_wrap=number > 0
            )
        for row in rows:
            table.add_row(*map(printable, row))
        console.print()
        console.print(table)
        console.print()

    def result(self, value: Mapping[str, Any]) -> None:
        """Print the JSON object that the command stands for, if JSON was asked for."""
        if self.as_json:
            print(_json(plain(value)))

    def error(self, kind: str, message: str, exit_code: int) -> None:
        """Print one line on standard error, and the same as JSON where that was asked for."""
        line = " ".join(printable(message[:_LONGEST_ERROR]).split())
        line += " …" if len(message) > _LONGEST_ERROR else ""
        print(f"error: {line}", file=sys.stderr)
        if self.as_json:
            error = {"type": kind, "message": line, "exit_code": exit_code}
            print(_json({"error": error}))

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[..., None]]:
        """Show a spinner while something runs; gives a function that counts its steps."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda *_: None
            return
        from rich.console import Console

        steps = 0
        with Console(stderr=True, markup=False).status(f"{what} …") as status:

            def step(*_: object) -> None:
                nonlocal steps
                steps += 1
                status.update(f"{what} … step {steps}")

            yield step


def _json(value: Any) -> str:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False)


def _wrapped(text: str) -> str:
    """Give a paragraph in lines no longer than the terminal's, or than people like to read."""
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, max(width, 40), break_long_words=False, break_on_hyphens=False)


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Print the library's warnings as sentences, without source lines."""
    import warnings

    def say(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {printable(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RetiltWarning)
        warnings.showwarning = say
        yield


def spell_out_unknown_letters() -> None:
    """Keep a letter that the terminal's encoding lacks from ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    r"""Text without control characters, which could drive the user's terminal.

    Examples
    --------
    >>> printable("a\x1b[31mb")
    'a?[31mb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def plain(value: Any) -> Any:
    """Give what JSON can hold: NaN and infinities become null, enums their value.

    Examples
    --------
    >>> plain({"ess": float("nan"), "rows": (1, 2)})
    {'ess': None, 'rows': [1, 2]}
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: Any) -> str:
    """Four significant digits, without an exponent where that stays short.

    Examples
    --------
    >>> number(0.123456), number(1234567.0), number(None)
    ('0.1235', '1234567', '-')
    """
    size = math.nan if value is None else abs(value)
    # No branch: the lines that run must not depend on what the noise made of an answer.
    kind = (size < math.inf) * (1 + (1e-3 <= size < 1) + 2 * (1e3 <= size < 1e15))
    return ("-", "{:.4g}", "{:.4f}", "{:.0f}")[kind].format(value)


def with_error(value: Any, error: Any) -> str:
    """Give a value with its standard error.

    Examples
    --------
    >>> with_error(0.25, 0.01)
    '0.2500 ± 0.0100'
    """
    return f"{number(value)} ± {number(error)}"


def farthest(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows to show, in their order, and how many are left out.

    Where there are too many, those whose result lies the most standard errors from its target
    are shown.
    """

    def distance(row: Row) -> float:
        error = row.get("standard_error") or math.nan
        off = abs((row.get("after") or 0.0) - (row.get("target") or 0.0)) / error
        return off if math.isfinite(off) else -1.0

    if len(rows) <= MAX_TABLE_ROWS:
        return list(rows), 0
    worst = sorted(range(len(rows)), key=lambda i: -distance(rows[i]))[:MAX_TABLE_ROWS]
    return [rows[i] for i in sorted(worst)], len(rows) - MAX_TABLE_ROWS


def fitted_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Format a fit's statistics: statistic, before, target, after, reachable."""
    reach = {True: "yes", False: "no", None: "-"}
    return [
        [
            str(row["statistic"]),
            number(row["before"]),
            with_error(row["target"], row["standard_error"]),
            number(row["after"]),
            "noise" if row.get("flag") else reach[row["reachable"]],
        ]
        for row in rows
    ]


def show_files(terminal: Terminal, files: Mapping[str, Path]) -> None:
    """Print which files were written."""
    if files:
        terminal.say("Written: " + ", ".join(f"{path} ({role})" for role, path in files.items()))


def show_notes(terminal: Terminal, notes: Sequence[str]) -> None:
    """Print what the user should know."""
    for note in notes:
        terminal.say(f"Note: {note}")


def show_added(terminal: Terminal, tilt: Tilt, added: int | None) -> None:
    """Print how many rows of the written table were redrawn (``--support``)."""
    if tilt.support is not None and added is not None:
        terminal.say(f"{added:,} of the table's rows have redrawn values (support rescue).")


def support_object(tilt: Tilt, added: int | None) -> dict[str, Any] | None:
    """Give what ``--support`` added: its settings, its share of the weight, rows drawn of it."""
    if tilt.support is None:
        return None
    return {**tilt.support.to_dict(), "share": tilt.support_share, "drawn": added}


def show_fit(terminal: Terminal, tilt: Tilt, added: int | None = None) -> None:
    """Print a fit: the statistics, the verdict, and what it costs."""
    rows, left_out = farthest(tilt.statistics_table())
    terminal.table(
        "Statistics of the synthetic table",
        ["statistic", "before", "target ± s.e.", "after", "reach"],
        fitted_rows(rows),
    )
    if left_out:
        terminal.say(
            f"{left_out} statistics nearer to their targets are left out here (--output json)."
        )
    terminal.say(f"Status: {tilt.status.value}. {tilt.advice}")
    if tilt.solution.measured.any():
        terminal.say(
            f"Misfit: {number(tilt.misfit_before)} before, {number(tilt.misfit_after)} after (mean "
            "squared distance of all measured queries, such as the means and squares behind a "
            "correlation, from their noisy answers, in units of the noise)."
        )
    terminal.say(
        f"Effective sample size: {tilt.ess:,.0f} of {len(tilt.weights):,} rows. "
        f"Distance from the optimum: {tilt.certificate['gap']:.1g} nats."
    )
    show_added(terminal, tilt, added)
    show_notes(terminal, tilt.notes)
    terminal.say(f"Privacy: {tilt.answers.statement}")


def fit_object(tilt: Tilt, files: Mapping[str, Path], added: int | None = None) -> dict[str, Any]:
    """Give a fit as one JSON object."""
    return {
        "method": tilt.method,
        "status": tilt.status,
        "advice": tilt.advice,
        "misfit": {"before": tilt.misfit_before, "after": tilt.misfit_after},
        "ess": tilt.ess,
        "rows": len(tilt.weights),
        "support": support_object(tilt, added),
        "privacy": tilt.answers.privacy,
        "certificate": tilt.certificate,
        "statistics": tilt.statistics_table(),
        "kept": tilt.kept,
        "files": dict(files),
        "notes": tilt.notes,
    }


def show_evaluation(terminal: Terminal, evaluation: Evaluation) -> None:
    """Print the comparison with the private table, under its warning."""
    figures = evaluation.to_dict()
    before, after = (figures["correlation_error"][when] for when in ("before", "after"))
    gained = figures["utility_improvement"]
    terminal.say(evaluation.warning)
    terminal.table(
        "Distance of the correlations from the real table's",
        ["", "values clamped to their bounds", "raw values"],
        [
            ["correlation error before", number(before["clamped"]), number(before["raw"])],
            ["correlation error after", number(after["clamped"]), number(after["raw"])],
            ["utility improvement", number(gained["clamped"]), number(gained["raw"])],
        ],
    )
    terminal.say(f"Columns compared: {', '.join(figures['columns'])}.")
    if evaluation.undefined:
        terminal.say(
            "Constant in one of the tables, as they are or clamped to their bounds, so that "
            "correlations count as 0 there: "
            f"{', '.join(evaluation.undefined)}."
        )


def show_figures(terminal: Terminal, evaluation: Evaluation) -> None:
    """Print an evaluation's other figures, which are of all columns; under the same warning."""
    terminal.say(_rows_compared(evaluation.row_counts))
    terminal.table(
        "Distance of the tables from the real one",
        ["", "better", "real", "before", "after"],
        [
            [name, better, number(real), number(before), number(after)]
            for name, better, real, before, after in evaluation.rows()
        ],
    )
    if evaluation.prediction is not None:
        terminal.say(
            f"F1: of {evaluation.prediction.target} = {evaluation.prediction.positive} in "
            f"{evaluation.prediction.rows:,} test rows, by a logistic regression that was trained "
            "on the real table, the synthetic one before, and after."
        )
    _show_absent(terminal, evaluation)
    show_notes(terminal, evaluation.notes)
    terminal.say(f"All columns: {', '.join(evaluation.all_columns.columns)}. {evaluation.warning}")


def _rows_compared(counts: Mapping[str, int]) -> str:
    """How many rows of each table were read: fewer than there are means a misread file."""
    called = {
        "private": "in the private table",
        "synthetic": "in the synthetic one",
        "post": "in the post-processed one",
        "test": "in the test table",
    }
    return "Rows read: " + ", ".join(f"{n:,} {called[name]}" for name, n in counts.items()) + "."


def _show_absent(terminal: Terminal, evaluation: Evaluation) -> None:
    """Print which columns and which figures there are not, and why."""
    left_out = {f"left_out.{name}": name for name in evaluation.left_out}
    told: dict[tuple[str, str], list[str]] = {}
    for place, reason in evaluation.reasons.items():
        what = "Left out" if place in left_out else "No value for"
        told.setdefault((what, reason), []).append(left_out.get(place, place))
    for (what, reason), names in told.items():
        terminal.say(f"{what} {', '.join(names)}: {reason}.")
