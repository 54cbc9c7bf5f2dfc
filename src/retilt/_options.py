"""The command line's options: how each is written, and what it means.

The options that several commands share are written once, here.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retilt._measures import MEASURES
from retilt.exceptions import InputError

if TYPE_CHECKING:
    from retilt.privacy import unit as units
    from retilt.privacy.budget import Generator


class Output(StrEnum):
    """What standard output holds."""

    TEXT = "text"
    JSON = "json"


class Unit(StrEnum):
    """The unit of privacy: which tables are neighbours."""

    REPLACE = "replace-one"
    ADD_REMOVE = "add-remove"


class GeneratorUnit(StrEnum):
    """Which tables are neighbours in the generator's guarantee."""

    REPLACE = "replace-one"
    ADD_REMOVE = "add-remove"
    REPLACE_PERSON = "replace-one-person"
    ADD_REMOVE_PERSON = "add-remove-person"


class Method(StrEnum):
    """How weights are found."""

    DEFAULT = "default"
    PAPER = "paper"
    PAPER_EXACT = "paper-exact"


class Denoise(StrEnum):
    """By which program answers are moved to what the rows can reach."""

    QP = "qp"
    LP = "lp"


class Support(StrEnum):
    """Where candidate rows come from beside the synthetic ones."""

    MIX = "mix"


class Sampling(StrEnum):
    """How weights become rows."""

    SYSTEMATIC = "systematic"
    BALANCED = "balanced"
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
QUIET = Annotated[
    bool, typer.Option("--quiet", help="No progress, and no text beside errors and warnings.")
]
QUIET_FIGURES = Annotated[
    bool,
    typer.Option("--quiet", help="No progress. The figures are printed: they are all there is."),
]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite existing output files.")]

SCHEMA = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="Public bounds and categories; what it leaves out is read off SYNTHETIC.",
    ),
]
BASIS = Annotated[
    Basis,
    typer.Option(help="In which polynomials moments are measured.", rich_help_panel=MEASURES),
]
BASIS_OF_METHOD = Annotated[
    Basis | None,
    typer.Option(
        help="In which polynomials moments are measured; default the method's own: centred, or "
        "paper with --method paper.",
        rich_help_panel=MEASURES,
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
PERSON = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Protect persons, not rows: PRIVATE's column that tells them apart. With "
        "--rows-per-person.",
        rich_help_panel=_PRIVACY,
    ),
]
ROWS_PER_PERSON = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        min=1,
        help="Use at most K rows of each person; noise grows with K.",
        rich_help_panel=_PRIVACY,
    ),
]
ROWS = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Rows of the private table. Public under replace-one; under add-remove, and for "
        "persons, only a guess.",
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
    GeneratorUnit | None,
    typer.Option(
        help="The generator's neighbouring tables; needed with its epsilon or rho.",
        rich_help_panel=_PRIVACY,
    ),
]

SELECT = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        help="Measure only the M measures (each table of --marginals is one) that SYNTHETIC gets "
        "most wrong; a part of the budget pays for choosing them.",
        rich_help_panel=_PRIVACY,
    ),
]
SELECT_SHARE = Annotated[
    float | None,
    typer.Option(
        metavar="PART",
        help="With --select: the part of ε (or ρ) that choosing gets; default 0.2.",
        rich_help_panel=_PRIVACY,
    ),
]

LEDGER = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.db",
        help="Charge the plan to this ledger (`retilt budget open`) before anything is measured.",
        rich_help_panel=_PRIVACY,
    ),
]
DATASET = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="PRIVATE's name in the ledger; may be left out where it has one only.",
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
SUPPORT = Annotated[
    Support | None,
    typer.Option(
        help="mix adds candidate rows whose measured columns are redrawn over their declared "
        "bounds, for tables whose rows cannot reach the answers. The only option that changes "
        "rows' values. Costs no privacy; costs utility on a good table.",
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
MAX_WEIGHT = Annotated[
    float | None,
    typer.Option(
        metavar="TIMES",
        help="No row counts for more than this many times its base weight; more than 1.",
        rich_help_panel=_FIT,
    ),
]
MIN_WEIGHT = Annotated[
    float | None,
    typer.Option(
        metavar="TIMES",
        help="No row counts for less than this many times its base weight; from 0 to 1.",
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
        help="Makes sampling, redrawn rows and the paper's algorithm repeatable; never the noise.",
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
CANDIDATES = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --support: SYNTHETIC and the rows that were added, which weights belong to.",
        rich_help_panel=_FILES,
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
PRIVACY_OUT = Annotated[
    Path | None,
    typer.Option(
        "--privacy",
        metavar="FILE.md",
        help="The privacy statement, as a page to file.",
        rich_help_panel=_FILES,
    ),
]
ANSWERS_OUT = Annotated[
    Path | None,
    typer.Option(
        "--answers", metavar="FILE.json", help="The noisy answers.", rich_help_panel=_FILES
    ),
]


def generator_of(
    epsilon: float | None,
    delta: float | None,
    rho: float | None,
    unit: GeneratorUnit | Unit | None,
) -> Generator | None:
    """The generator's guarantee as declared, if it was."""
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
            "authors state it (with -person behind it if they protect persons with several rows). "
            "Most that add noise to counts (AIM, MST) prove add-remove."
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
    return Generator(budget, value_of(unit))


def unit_of(unit: Unit, person: str | None, rows_per_person: int | None) -> units.Unit:
    """The unit that the options name: rows, or persons where --person is given."""
    from retilt.privacy import unit as units

    replace = unit is Unit.REPLACE
    if person is None and rows_per_person is None:
        return units.ReplaceOneRow() if replace else units.AddRemoveOneRow()
    if person is None or rows_per_person is None:
        raise InputError(
            "--person COLUMN and --rows-per-person K belong together: the column that tells "
            "persons apart, and how many rows of each are used at most."
        )
    made = units.ReplaceOnePerson if replace else units.AddRemoveOnePerson
    return made(person, rows_per_person)


def value_of(choice: StrEnum | None) -> Any:
    """A choice as the library names it; None where none was made."""
    return None if choice is None else choice.value
