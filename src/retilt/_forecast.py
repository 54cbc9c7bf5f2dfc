"""What ``retilt plan`` prints: the outlook of each statistic, and ``--what-if``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retilt._terminal import MAX_TABLE_ROWS, Terminal, number, show_notes
from retilt.exceptions import InputError

if TYPE_CHECKING:
    from retilt.forecasting import Forecast
    from retilt.outlooks import Outlook

WHAT_IF = Annotated[
    str | None,
    typer.Option(
        metavar="ε,ε,…",
        help="Expected errors at several ε, such as 0.1,0.3,1,3; or at several ρ: rho:0.01,0.1. "
        "Needs no --epsilon, and makes no plan without one.",
    ),
]
PLOT = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg", help="With --what-if: draw it (.svg, .png or .pdf)."),
]

Row = Mapping[str, Any]


def amounts_of(text: str) -> dict[str, list[float]]:
    """The budgets that ``--what-if`` names, as options of :func:`retilt.forecast`.

    >>> amounts_of("0.1,1"), amounts_of("rho:0.5")
    ({'epsilons': [0.1, 1.0]}, {'rhos': [0.5]})
    """
    kind, numbers = ("rhos", text[4:]) if text.startswith("rho:") else ("epsilons", text)
    try:
        return {kind: [float(part) for part in numbers.split(",")]}
    except ValueError:
        raise InputError(
            f"--what-if: got {text!r}, expected numbers such as 0.1,0.3,1,3 (of ε), or "
            "rho:0.01,0.1."
        ) from None


def show_outlook(terminal: Terminal, outlook: Outlook) -> None:
    """Print what a plan would release, how precisely, and what stands in the way."""
    rows = outlook.statistics_table()
    shown = _worst(rows)
    some = "" if outlook.plan.choose is None else ", those of the measures that are chosen"
    terminal.table(
        f"{len(rows):,} statistics would be released{some}",
        ["statistic", "synthetic", "expected standard error", "error / |value|", "flags"],
        [_line(row) for row in shown],
    )
    if len(shown) < len(rows):
        counts = Counter(flag for row in rows for flag in row["flags"])
        said = "".join(f"; {flag}: {count:,}" for flag, count in counts.items())
        terminal.say(
            f"{len(rows) - len(shown):,} statistics with fewer flags or smaller relative errors "
            f"are left out here (--output json){said}."
        )
    show_notes(terminal, (*outlook.plan.notes, *outlook.notes))
    terminal.say(f"On a machine of today: {outlook.costs}.")
    terminal.say(f"Privacy, once measured: {outlook.plan.statement}")


def _worst(rows: Sequence[Row]) -> list[Row]:
    """The rows to show, in their order: those with flags, then those with the largest errors."""
    order = sorted(
        range(len(rows)), key=lambda i: (-len(rows[i]["flags"]), -(rows[i]["relative_error"] or 0))
    )
    return [rows[i] for i in sorted(order[:MAX_TABLE_ROWS])]


def _line(row: Row) -> list[str]:
    relative = row["relative_error"]
    flags = [
        f"clamped ({number(row['synthetic_unclamped'])} without)" if flag == "clamped" else flag
        for flag in row["flags"]
    ]
    return [
        str(row["statistic"]),
        number(row["synthetic"]),
        number(row["expected_standard_error"]),
        "-" if relative is None else f"{relative:.2g}" if relative < 10 else "> 10",
        ", ".join(flags),
    ]


def show_forecast(terminal: Terminal, forecast: Forecast) -> None:
    """Print budgets against expected errors; a star where noise drowns the statistic."""
    from retilt.forecasting import amount_of, symbol_of

    order = sorted(
        range(len(forecast.statistics)), key=lambda k: -sum(row[k] for row in forecast.drowned)
    )
    shown = sorted(order[:MAX_TABLE_ROWS])
    rows = [
        [
            forecast.statistics[k],
            number(forecast.values[k]),
            *(
                number(errors[k]) + ("*" if drowned[k] else " ")
                for errors, drowned in zip(forecast.expected, forecast.drowned, strict=True)
            ),
        ]
        for k in shown
    ]
    shares = [f"{share:.0%} " for share in forecast.drowned_share]
    medians = ["- " if e is None else f"{e:.2g} " for e in forecast.median_error]
    rows = [
        ["(drowned in noise)", "", *shares],
        ["(median error / |value|)", "", *medians],
        *rows,
    ]
    heads = [f"{symbol_of(b)} = {amount_of(b):g} " for b in forecast.budgets]
    terminal.table("Expected standard errors", ["statistic", "synthetic", *heads], rows)
    left = len(forecast.statistics) - len(shown)
    if left:
        terminal.say(f"{left:,} statistics are left out here (--output json).")
    terminal.say(
        "A star: noise would dominate what the statistic divides by, or its expected error is at "
        "least its own size. Nothing is spent by looking."
    )
