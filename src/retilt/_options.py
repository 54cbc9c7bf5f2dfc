"""The command line's options: how each is written, and what it means.

The options that several commands share are written once, here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retilt.exceptions import InputError, WorkloadError

if TYPE_CHECKING:
    from retilt.engines.base import Table
    from retilt.measures.workload import Workload
    from retilt.privacy.budget import Generator
    from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow


class Output(StrEnum):
    """What standard output holds."""

    TEXT = "text"
    JSON = "json"


class Unit(StrEnum):
    """The unit of privacy: which tables are neighbours."""

    REPLACE = "replace-one"
    ADD_REMOVE = "add-remove"


class Method(StrEnum):
    """How weights are found."""

    DEFAULT = "default"
    PAPER = "paper"
    PAPER_EXACT = "paper-exact"


class Denoise(StrEnum):
    """By which program answers are moved to what the rows can reach."""

    QP = "qp"
    LP = "lp"


class Sampling(StrEnum):
    """How weights become rows."""

    SYSTEMATIC = "systematic"
    MULTINOMIAL = "multinomial"


class Basis(StrEnum):
    """In which polynomials moments are measured."""

    CENTRED = "centred"
    PAPER = "paper"


_TABLE = (
    "a CSV (also .gz), Parquet (file, folder or glob) or Arrow/Feather file, or "
    "duckdb:///file.db?table=t"
)
PRIVATE = Annotated[str, typer.Argument(metavar="PRIVATE", help=f"The private table: {_TABLE}.")]
SYNTHETIC = Annotated[
    str, typer.Argument(metavar="SYNTHETIC", help=f"The synthetic table: {_TABLE}.")
]

OUTPUT = Annotated[Output, typer.Option("--output", help="What to print.")]
QUIET = Annotated[bool, typer.Option("--quiet", help="No progress, and no text beside errors.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite existing output files.")]

_MEASURES = "Measures (each occurrence is one measure; names are one CSV record)"
CORRELATE = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A,B,...",
        help="Correlations of all pairs, by way of the columns' means, squares and products.",
        rich_help_panel=_MEASURES,
    ),
]
MOMENTS = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A,B,...",
        help="Means, standard deviations and correlations.",
        rich_help_panel=_MEASURES,
    ),
]
MARGINAL = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A:bins=10,B,...",
        help="One table of all these columns together; numbers in 20 quantile bins unless told.",
        rich_help_panel=_MEASURES,
    ),
]
CORRELATE_WITH = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Correlations of the columns most correlated with TARGET in the synthetic table.",
        rich_help_panel=_MEASURES,
    ),
]
TOP = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="How many columns --correlate-with takes, TARGET included; default 5.",
        rich_help_panel=_MEASURES,
    ),
]
WORKLOAD = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.toml", help="A workload file.", rich_help_panel=_MEASURES),
]
SCHEMA = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="Public bounds and categories; what it leaves out is read off SYNTHETIC.",
    ),
]
BASIS = Annotated[
    Basis,
    typer.Option(help="In which polynomials moments are measured.", rich_help_panel=_MEASURES),
]
BASIS_OF_METHOD = Annotated[
    Basis | None,
    typer.Option(
        help="In which polynomials moments are measured; default the method's own: centred, or "
        "paper with --method paper.",
        rich_help_panel=_MEASURES,
    ),
]

_PRIVACY = "Privacy"
EPSILON = Annotated[
    float | None, typer.Option(help="The post-processing's own ε.", rich_help_panel=_PRIVACY)
]
DELTA = Annotated[
    float | None,
    typer.Option(
        help="δ; default 1/rows². 0 is pure DP, with Laplace noise.", rich_help_panel=_PRIVACY
    ),
]
RHO = Annotated[
    float | None, typer.Option(help="A zCDP budget instead of ε and δ.", rich_help_panel=_PRIVACY)
]
UNIT = Annotated[Unit, typer.Option(help="Which tables are neighbours.", rich_help_panel=_PRIVACY)]
ROWS = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Rows of the private table. Public under replace-one; under add-remove only a guess.",
        rich_help_panel=_PRIVACY,
    ),
]
GENERATOR_EPSILON = Annotated[
    float | None,
    typer.Option(help="The generator's ε, for the total.", rich_help_panel=_PRIVACY),
]
GENERATOR_DELTA = Annotated[
    float | None,
    typer.Option(help="The generator's δ; 0 for pure DP.", rich_help_panel=_PRIVACY),
]
GENERATOR_RHO = Annotated[
    float | None,
    typer.Option(help="The generator's zCDP guarantee.", rich_help_panel=_PRIVACY),
]
GENERATOR_UNIT = Annotated[
    Unit | None,
    typer.Option(
        help="The generator's neighbouring tables; needed with its epsilon or rho.",
        rich_help_panel=_PRIVACY,
    ),
]

_FIT = "Fit"
METHOD = Annotated[
    Method,
    typer.Option(
        help="How weights are found: as near to the answers as their noise allows; by the "
        "paper's method; or by the paper's, solved exactly.",
        rich_help_panel=_FIT,
    ),
]
DENOISE = Annotated[
    Denoise | None,
    typer.Option(
        help="First move the answers to the nearest that the rows can reach, by least squares or "
        "least absolute deviations. The paper's method always does; the default needs neither.",
        rich_help_panel=_FIT,
    ),
]
BASE_WEIGHTS = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of SYNTHETIC with the rows' base weights.",
        rich_help_panel=_FIT,
    ),
]
MIN_ESS = Annotated[
    float | None,
    typer.Option(
        metavar="ROWS",
        help=(
            "Smallest effective sample size to accept; default 20 rows for each effective "
            "parameter, at most a quarter of all."
        ),
        rich_help_panel=_FIT,
    ),
]

_SAMPLING = "Sampling"
SIZE = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--size",
        metavar="ROWS",
        help="Rows of the new table; default as many as SYNTHETIC.",
        rich_help_panel=_SAMPLING,
    ),
]
SAMPLING = Annotated[
    Sampling | None,
    typer.Option(
        help="How rows are drawn; default systematic, multinomial with --method paper.",
        rich_help_panel=_SAMPLING,
    ),
]
SEED = Annotated[
    int | None,
    typer.Option(
        help="Makes sampling, and the paper's algorithm, repeatable; never the noise.",
        rich_help_panel=_SAMPLING,
    ),
]
SHUFFLE = Annotated[
    bool,
    typer.Option(
        "--shuffle", help="Shuffle the rows, for machine learning.", rich_help_panel=_SAMPLING
    ),
]

_FILES = "Files to write"
POST = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE", help="The new table.", rich_help_panel=_FILES),
]
WEIGHTS = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="One weight a row of SYNTHETIC, mean 1.", rich_help_panel=_FILES
    ),
]
TILT = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json", help="The tilt, for `retilt sample`.", rich_help_panel=_FILES
    ),
]
REPORT = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html", help="A page about the fit, to read.", rich_help_panel=_FILES
    ),
]
PLAN_OUT = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE.json", help="The plan.", rich_help_panel=_FILES),
]
ANSWERS_OUT = Annotated[
    Path | None,
    typer.Option(
        "--answers", metavar="FILE.json", help="The noisy answers.", rich_help_panel=_FILES
    ),
]


def names_of(text: str, option: str) -> list[str]:
    """Names of one CSV record.

    >>> names_of('age,"hours, weekly"', "--correlate")
    ['age', 'hours, weekly']
    """
    try:
        records = list(csv.reader([text], strict=True))
    except csv.Error:
        records = []
    if len(records) != 1 or not records[0]:
        raise WorkloadError(
            f"{option}: got {text!r}, expected column names with commas between them; put a "
            "name that holds a comma or a quote in double quotes, as in 'age,\"hours, weekly\"'."
        )
    return records[0]


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


@dataclass(frozen=True, slots=True)
class Measures:
    """The measure options of one command."""

    correlate: list[str] | None
    moments: list[str] | None
    marginal: list[str] | None
    correlate_with: list[str] | None
    top: int | None
    workload: list[Path] | None

    def build(self, synthetic: str | Table, schema: Path | None) -> Workload:
        """Give the workload that the options name."""
        from retilt.measures import workload as make
        from retilt.pipeline import top_correlated

        parts = [make.correlation(names_of(t, "--correlate")) for t in self.correlate or ()]
        parts += [make.moments(names_of(t, "--moments")) for t in self.moments or ()]
        parts += [_marginal(t) for t in self.marginal or ()]
        parts += [
            make.correlation(top_correlated(synthetic, target, top=self.top or 5, schema=schema))
            for target in self.correlate_with or ()
        ]
        parts += [make.load_workload(path) for path in self.workload or ()]
        return reduce(add, parts)

    def check_any(self) -> None:
        """Refuse an empty workload, saying what can be named."""
        named = (
            self.correlate,
            self.moments,
            self.marginal,
            self.correlate_with,
            self.workload,
        )
        if not any(named):
            raise WorkloadError(
                "no measure is named. Name some with --correlate A,B,C (correlations), --moments "
                "A,B (means, standard deviations and correlations), --marginal A,B (one table of "
                "them) or --workload FILE.toml. To start, try --correlate-with TARGET --top 5: "
                "the correlations of the five columns that go with TARGET, a column of yours."
            )
        if self.top is not None and not self.correlate_with:
            raise WorkloadError("--top: it belongs to --correlate-with TARGET, which is missing.")


def generator_of(
    epsilon: float | None, delta: float | None, rho: float | None, unit: Unit | None
) -> Generator | None:
    """The generator's guarantee as declared, if it was."""
    from retilt.measures.base import Relation
    from retilt.privacy.budget import ZCDP, ApproxDP, Generator, PureDP

    if epsilon is None and delta is None and rho is None:
        if unit is not None:
            raise InputError(
                "--generator-unit: give the generator's epsilon and delta, or rho, too."
            )
        return None
    if unit is None:
        raise InputError(
            "the generator's guarantee needs --generator-unit: replace-one or add-remove, as its "
            "authors state it. Most that add noise to counts (AIM, MST) prove add-remove."
        )
    budget: ApproxDP | PureDP | ZCDP
    if rho is not None:
        if epsilon is not None or delta is not None:
            raise InputError(
                "--generator-rho: got --generator-epsilon or --generator-delta too; give either "
                "rho, or epsilon and delta."
            )
        budget = ZCDP(rho)
    elif epsilon is None or delta is None:
        raise InputError(
            "the generator's guarantee needs both --generator-epsilon and --generator-delta "
            "(0 for pure DP), or --generator-rho alone."
        )
    else:
        budget = PureDP(epsilon) if delta == 0 else ApproxDP(epsilon, delta)
    return Generator(budget, Relation(unit.value))


def unit_of(unit: Unit) -> ReplaceOneRow | AddRemoveOneRow:
    from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow

    return ReplaceOneRow() if unit is Unit.REPLACE else AddRemoveOneRow()


def value_of(choice: StrEnum | None) -> Any:
    """A choice as the library names it; None where none was made."""
    return None if choice is None else choice.value
