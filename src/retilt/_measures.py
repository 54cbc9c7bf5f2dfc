"""The command line's measures: how each option is written, and the workload it means.

An option's value is names or SQL and, behind it, ``:key=value`` for whatever else the measure
takes, as in ``income,age:by=sex`` or ``age >= 65:by=sex,race``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from retilt.exceptions import WorkloadError

if TYPE_CHECKING:
    from retilt.engines.base import Table
    from retilt.measures.workload import Workload

MEASURES = "Measures (each occurrence is one measure; names are one CSV record)"

Texts = list[str] | None


def _option(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=MEASURES)


CORRELATE = Annotated[
    Texts,
    _option(
        "A,B,...[:by=G][:where=SQL]",
        "Correlations of all pairs, by way of the columns' means, squares and products; of all "
        "rows, in each group, or where a condition holds.",
    ),
]
MOMENTS = Annotated[
    Texts,
    _option("A,B,...[:by=G][:where=SQL]", "Means, standard deviations and correlations."),
]
MEAN = Annotated[
    Texts,
    _option("A,B,...[:by=G][:where=SQL]", "Means, such as income:by=sex."),
]
REGRESS = Annotated[
    Texts,
    _option(
        "Y,A,B,...[:by=G][:where=SQL]", "Coefficients of the regression of Y on the other columns."
    ),
]
MARGINAL = Annotated[
    Texts,
    _option(
        "A:bins=10,B,...",
        "One table of all these columns together; numbers in 20 quantile bins unless told.",
    ),
]
MARGINALS = Annotated[
    Texts,
    _option("A,B,...[:k=2][:bins=10]", "All tables of k of these columns; k is 1 unless told."),
]
SHARE = Annotated[
    Texts,
    _option(
        "SQL[:by=G]",
        "Share of the rows for which a condition holds, such as \"age >= 65 AND sex = 'F'\".",
    ),
]
QUERY = Annotated[
    Texts,
    _option("SQL[:lower=0][:upper=1]", "Mean of a formula of one row, clamped to its bounds."),
]
CDF = Annotated[
    Texts,
    _option(
        "A:at=25,45,65[:branching=0]", "Shares of the rows with a value of at most each of these."
    ),
]
QUANTILES = Annotated[
    Texts,
    _option(
        "A[:at=0.25,0.5,0.75][:bins=50][:branching=0]", "Quantiles, by way of a table of the bins."
    ),
]
CORRELATE_WITH = Annotated[
    Texts,
    _option(
        "TARGET",
        "Correlations of the columns most correlated with TARGET in the synthetic table.",
    ),
]
TOP = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="How many columns --correlate-with takes, TARGET included; default 5.",
        rich_help_panel=MEASURES,
    ),
]
KEEP = Annotated[
    Texts,
    _option(
        "marginals|KIND:A,B[:tolerance=T]",
        "Leave these statistics as SYNTHETIC has them, at no privacy cost: `marginals` for the "
        "tables of each column, or a measure such as correlate:A,B.",
    ),
]
CLIP = Annotated[
    Literal["auto", "none"],
    typer.Option(
        help="`auto`: columns whose bounds are far beyond nearly all synthetic values are clamped "
        "to narrower ones in moments, and rows pulled in to a ball, where that predicts less "
        "error. "
        "`none`: never, but for bounds that a workload file gives.",
        rich_help_panel=MEASURES,
    ),
]
WORKLOAD = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.toml", help="A workload file.", rich_help_panel=MEASURES),
]


_NAMES = (
    "column names with commas between them; put a name that holds a comma or a quote in double "
    "quotes, as in 'age,\"hours, weekly\"'"
)


def names_of(text: str, option: str, *, expected: str = _NAMES) -> list[str]:
    """Names, or what else is ``expected``, of one CSV record.

    >>> names_of('age,"hours, weekly"', "--correlate")
    ['age', 'hours, weekly']
    """
    try:
        records = list(csv.reader([text], strict=True))
    except csv.Error:
        records = []
    if len(records) != 1 or not records[0]:
        raise WorkloadError(f"{option}: got {text!r}, expected {expected}.")
    return records[0]


def split_options(text: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    """An option's value and the ``:key=value`` behind it, but not those within quotes.

    >>> split_options("income:by=sex:where=age >= 65", ["by", "where"])
    ('income', {'by': 'sex', 'where': 'age >= 65'})
    """
    hidden = re.sub(r"\"[^\"]*\"|'[^']*'", lambda found: "x" * len(found[0]), text)
    cuts = list(re.finditer(rf":({'|'.join(keys)})=", hidden))
    if not cuts:
        return text, {}
    ends = [*(c.start() for c in cuts[1:]), len(text)]
    options: dict[str, str] = {}
    for cut, end in zip(cuts, ends, strict=True):
        if cut[1] in options:
            raise WorkloadError(f"got {text!r}: {cut[1]} is given twice.")
        unknown = re.search(r":([a-z_]+)=", hidden[cut.end() : end])
        if unknown and cut[1] != "where":
            raise WorkloadError(
                f"got {text!r}: there is no {unknown[1]}, expected {' or '.join(keys)}."
            )
        options[cut[1]] = text[cut.end() : end]
    return text[: cuts[0].start()], options


def _whole(text: str, option: str, key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise WorkloadError(
            f"{option}: {key}: got {text!r}, expected a whole number, as in {key}=10."
        )
    return int(text)


def _number(text: str, option: str, key: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"{option}: {key}: got {text!r}, expected a number.") from None


def _groups(options: Mapping[str, str], option: str) -> dict[str, Any]:
    """The keyword arguments that ``by``, ``where`` and ``bins`` stand for."""
    found: dict[str, Any] = {}
    if "by" in options:
        found["by"] = names_of(options["by"], f"{option}: by")
    if "where" in options:
        found["where"] = options["where"]
    if "bins" in options:
        found["bins"] = _whole(options["bins"], option, "bins")
    return found


def _of_columns(kind: Literal["correlate", "moments", "mean", "regress"], text: str) -> Workload:
    from retilt.measures import workload as make

    main, options = split_options(text, ("by", "where", "bins"))
    names, groups = names_of(main, f"--{kind}"), _groups(options, f"--{kind}")
    if kind == "regress":
        return make.regression(names[0], names[1:], **groups)
    makers = {"correlate": make.correlation, "moments": make.moments, "mean": make.means}
    made: Workload = makers[kind](names, **groups)
    return made


def _marginal(text: str) -> Workload:
    """Parse one --marginal: names, each with ``:bins=N`` behind it or not."""
    from retilt.measures.workload import marginal

    columns: list[str] = []
    bins: dict[str, int | Sequence[float]] = {}
    for field in names_of(text, "--marginal"):
        name, found, count = field.rpartition(":bins=")
        if not found:
            columns.append(field)
            continue
        if not re.fullmatch(r"[0-9]{1,9}", count):
            raise WorkloadError(
                f"--marginal: got {field!r}, expected a whole number of bins, as in age:bins=10."
            )
        columns.append(name)
        bins[name] = int(count)
    return marginal(columns, bins=bins or None)


def _marginals(text: str) -> Workload:
    from retilt.measures.workload import marginals

    main, options = split_options(text, ("k", "bins"))
    numbers = {key: _whole(value, "--marginals", key) for key, value in options.items()}
    return marginals(names_of(main, "--marginals"), **numbers)


def _share(text: str) -> Workload:
    from retilt.measures.workload import share

    predicate, options = split_options(text, ("by", "bins"))
    return share(predicate, **_groups(options, "--share"))


def _query(text: str) -> Workload:
    from retilt.measures.workload import query

    expression, options = split_options(text, ("lower", "upper"))
    return query(expression, **{k: _number(v, "--query", k) for k, v in options.items()})


def _cdf(text: str) -> Workload:
    from retilt.measures.workload import cdf

    main, options = split_options(text, ("at", "branching"))
    if "at" not in options:
        raise WorkloadError(
            f"--cdf: got {text!r}, expected a column and thresholds, as in age:at=25,45,65."
        )
    asked = "thresholds with commas between them, as in age:at=25,45,65"
    at = names_of(options["at"], "--cdf: at", expected=asked)
    found: dict[str, Any] = {}
    if "branching" in options:
        found["branching"] = _whole(options["branching"], "--cdf", "branching")
    return cdf(_only(main, "--cdf"), [_threshold(t) for t in at], **found)


def _threshold(text: str) -> float | str:
    """A number, or the text of a date."""
    try:
        return float(text)
    except ValueError:
        return text


def _quantiles(text: str) -> Workload:
    from retilt.measures.workload import quantiles

    main, options = split_options(text, ("at", "bins", "branching"))
    found: dict[str, Any] = {}
    if "at" in options:
        asked = "numbers between 0 and 1 with commas between them, as in age:at=0.25,0.5,0.75"
        at = names_of(options["at"], "--quantiles: at", expected=asked)
        found["probabilities"] = [_number(t, "--quantiles", "at") for t in at]
    if "bins" in options:
        found["bins"] = _whole(options["bins"], "--quantiles", "bins")
    if "branching" in options:
        found["branching"] = _whole(options["branching"], "--quantiles", "branching")
    return quantiles(_only(main, "--quantiles"), **found)


def _only(text: str, option: str) -> str:
    names = names_of(text, option)
    if len(names) != 1:
        raise WorkloadError(f"{option}: got {len(names)} columns, expected one.")
    return names[0]


def _keep(text: str) -> Workload:
    """Parse one --keep: ``marginals`` alone, or an option's name without dashes and its value."""
    from retilt.measures.workload import keep

    main, options = split_options(text, ("tolerance",))
    tolerance = (
        _number(options["tolerance"], "--keep", "tolerance") if "tolerance" in options else None
    )
    if main == "marginals":
        return keep("marginals", tolerance)
    kind, _, value = main.partition(":")
    if kind not in _PARSERS or not value:
        raise WorkloadError(
            f"--keep: got {text!r}, expected `marginals` (the tables of each column), or one of "
            f"{', '.join(_PARSERS)} with what it takes, as in correlate:age,income."
        )
    return keep(_PARSERS[kind](value), tolerance)


_PARSERS = {
    "correlate": lambda text: _of_columns("correlate", text),
    "moments": lambda text: _of_columns("moments", text),
    "mean": lambda text: _of_columns("mean", text),
    "regress": lambda text: _of_columns("regress", text),
    "marginal": _marginal,
    "marginals": _marginals,
    "share": _share,
    "query": _query,
    "cdf": _cdf,
    "quantiles": _quantiles,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measure options of one command."""

    correlate: Texts = None
    moments: Texts = None
    mean: Texts = None
    regress: Texts = None
    marginal: Texts = None
    marginals: Texts = None
    share: Texts = None
    query: Texts = None
    cdf: Texts = None
    quantiles: Texts = None
    correlate_with: Texts = None
    top: int | None = None
    keep: Texts = None
    workload: list[Path] | None = None
    clip: Literal["auto", "none"] = "auto"

    def build(self, synthetic: str | Table, schema: Path | None) -> Workload:
        """Give the workload that the options name."""
        from retilt.measures.formats import load_workload
        from retilt.measures.workload import correlation
        from retilt.planning import top_correlated

        parts = [
            parse(text) for kind, parse in _PARSERS.items() for text in getattr(self, kind) or ()
        ]
        parts += [
            correlation(top_correlated(synthetic, target, top=self.top or 5, schema=schema))
            for target in self.correlate_with or ()
        ]
        parts += [load_workload(path) for path in self.workload or ()]
        parts += [_keep(text) for text in self.keep or ()]
        whole = reduce(add, parts)
        return whole.unclamped() if self.clip == "none" else whole

    def check_any(self) -> None:
        """Refuse an empty workload, saying what can be named."""
        kinds = (*_PARSERS, "correlate_with", "workload")
        if not any(getattr(self, kind) for kind in kinds):
            raise WorkloadError(
                "no measure is named. Name some with --correlate A,B,C (correlations), --moments "
                "A,B (means, deviations and correlations), --mean A:by=B (means, of groups too), "
                "--marginal A,B (one table of them), --share SQL "
                "(the share of rows for which a condition holds), another of the measures that "
                "--help lists, or --workload FILE.toml. To start, try --correlate-with TARGET "
                "--top 5: the correlations of the five columns that go with TARGET, a column of "
                "yours."
            )
        if self.top is not None and not self.correlate_with:
            raise WorkloadError("--top: it belongs to --correlate-with TARGET, which is missing.")


def guards_of(texts: Texts) -> Workload | None:
    """The guards of --keep alone, for a fit."""
    return reduce(add, [_keep(text) for text in texts]) if texts else None
