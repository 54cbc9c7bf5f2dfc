"""Home Credit's applications: 104 numbers and a rare target, from a table that is not ours to give.

    python -m experiments.home_credit --data FOLDER

The paper's last table is about `application_train` of a Kaggle competition (Home Credit Group,
2018), whose licence does not let anyone pass it on. Who has it puts `application_train.csv` into
`home-credit/` in the folder of data sets. Otherwise a published random sample of 7,443 of its rows
there stands in for it: drawn with replacement up to the size of the table. Train and test rows are
drawn from different rows of the sample, else a model would be tested on what it has seen. Results
on it say that it is a stand-in.

Of the 122 columns the paper uses 104 numbers; without the 16 of text, the identifier and the target
just so many are left. A missing number becomes the sample's median. Medians, bounds (its range,
widened to two digits) and bins (its tenths) are aggregates of the sample, taken as public, and
stand in `schemas`; the command makes them again from the sample.
"""

from __future__ import annotations

import argparse
import io
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.description import SCHEMAS, Description, load_description
from experiments.published import DATA, DataError, File, Split, split
from retilt.schema.formats import Declared, load_declared

FOLDER = "home-credit"
OWN = ("application_train.csv", "application_train.csv.gz")
SAMPLE = File(
    "application_train_random.csv",
    "50516239fe29fc5b4e294c2e65351b3252c92e0c9d378875bde7cf51aafeb48e",
)
ROWS = 307_511
TARGET, IDENTIFIER = "TARGET", "SK_ID_CURR"
BINS = "home-credit-bins"
FEW = 16
"""Whole numbers between bounds nearer than this have a bin each."""


@dataclass(frozen=True, slots=True)
class HomeCredit:
    """The table, or its stand-in."""

    name: str = "home-credit"
    rows: int = ROWS
    target: str = TARGET
    positive: int = 1

    def split(self, data: Path | None = None) -> Split:
        """Train and test rows.

        Raises
        ------
        DataError
            If there is neither the table nor the sample, or what is found is another.
        """
        folder = (data or DATA) / FOLDER
        for name in OWN:
            if (folder / name).is_file():
                return split(_numbers(_own(folder / name)))
        if SAMPLE.find(folder) is None:
            raise DataError(
                f"{folder} holds no {OWN[0]}: the table is not openly licensed, and comes from "
                "the Kaggle competition home-credit-default-risk to those who accept its rules."
            )
        return _enlarged(_numbers(read_sample(folder)))

    def schema(self) -> Declared:
        """Public bounds and categories, as retilt takes them."""
        return load_declared(SCHEMAS / f"{FOLDER}.toml")

    def description(self) -> Description:
        """Public bounds, bins and values, as generators take them."""
        return load_description(FOLDER, BINS)


def read_sample(folder: Path) -> pd.DataFrame:
    """The published sample, as it is."""
    return pd.read_csv(io.BytesIO(SAMPLE.read(folder)))


def _own(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} can't be read: {type(error).__name__}.") from None
    if len(table) != ROWS:
        raise DataError(f"{path} has {len(table):,} rows, expected {ROWS:,}.")
    return table


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The target and the 104 numbers, missing ones filled in, whole ones as integers."""
    entries = load_declared(SCHEMAS / f"{FOLDER}.toml").entries
    absent = sorted(set(entries) - set(table.columns))
    if absent:
        raise DataError(f"application_train has no column {absent[0]!r}.")
    filled = table[list(entries)].fillna(dict(medians()))
    whole = [n for n, e in entries.items() if e.integer or e.categories]
    return filled.astype(float).astype(dict.fromkeys(whole, np.int64))


def medians() -> Mapping[str, float]:
    """Of the sample's columns that have missing numbers."""
    content = tomllib.loads((SCHEMAS / f"{BINS}.toml").read_text())
    found: dict[str, float] = content["medians"]
    return found


def _enlarged(sample: pd.DataFrame) -> Split:
    """The sample's two parts, each drawn with replacement to the size of the table's."""
    parts, rng, count = split(sample), np.random.default_rng(1), int(0.8 * ROWS)
    train, test = (
        part.iloc[rng.integers(0, len(part), size)].reset_index(drop=True)
        for part, size in ((parts.train, count), (parts.test, ROWS - count))
    )
    return Split(train, test, stand_in=True)


# --- the public files ----------------------------------------------------------------------------


def widened(value: float, upwards: bool) -> float:
    """A bound with two significant digits, not inside of the value.

    Examples
    --------
    >>> widened(25_229, upwards=True), widened(-25_229, upwards=True), widened(0.0, upwards=False)
    (26000.0, -25000.0, 0.0)
    """
    if value == 0:
        return 0.0
    place = math.floor(math.log10(abs(value))) - 1
    steps = value / 10.0**place
    near = round(steps)
    # 2.9 / 0.1 is not quite 29: a value of two digits stays.
    whole = near if math.isclose(steps, near) else (math.ceil if upwards else math.floor)(steps)
    return float(f"{whole}e{place}")


def schema_text(table: pd.DataFrame) -> str:
    """The schema's TOML."""
    head = (
        "# Bounds: the range of a published sample of application_train, widened to two digits.\n"
    )
    return head + "".join(_declared(name, table[name].dropna()) for name in table.columns)


def _declared(name: str, values: pd.Series) -> str:
    if _two_valued(values):
        return f'\n[columns."{name}"]\nkind = "categorical"\ncategories = [0, 1]\n'
    lower, upper, whole = _bounds(values)
    kind = f'\n[columns."{name}"]\nkind = "numeric"\n'
    return f"{kind}lower = {lower}\nupper = {upper}\n" + ("integer = true\n" if whole else "")


def _two_valued(values: pd.Series) -> bool:
    return set(values.unique()) <= {0, 1}


def _bounds(values: pd.Series) -> tuple[float, float, bool]:
    whole = bool((values == values.round()).all())
    number = int if whole else float
    lower, upper = widened(values.min(), upwards=False), widened(values.max(), upwards=True)
    return number(lower), number(upper), whole


def bins_text(table: pd.DataFrame) -> str:
    """The TOML of bins and medians."""
    head = "# Tenths and medians of a published sample of application_train.\n\n[medians]\n"
    filled = [name for name in table.columns if table[name].isna().any()]
    lines = [f"{name} = {_median(table[name].dropna())}" for name in filled]
    cut = [_cut(name, table[name].dropna()) for name in table.columns]
    return head + "\n".join(lines) + "\n" + "".join(cut)


def _median(values: pd.Series) -> float:
    """To four digits; a whole number stays one."""
    return float(f"{values.quantile(0.5, interpolation='lower'):.4g}")


def _cut(name: str, values: pd.Series) -> str:
    if _two_valued(values):
        return ""
    return f"\n[{FOLDER}.{name}]\nedges = {_edges(values)}\n"


def _edges(values: pd.Series) -> list[float]:
    lower, upper, whole = _bounds(values)
    if whole and upper - lower < FEW:
        return list(range(int(lower), int(upper) + 2))
    tenths = values.quantile(np.arange(1, 10) / 10, interpolation="lower")
    inner = {float(f"{tenth:.3g}") for tenth in tenths}
    edges = [lower, *sorted(edge for edge in inner if lower < edge < upper), upper]
    return [int(edge) if whole else float(edge) for edge in edges]


def main() -> None:
    """Make the public files again from the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of data sets")
    parser.add_argument("--output", type=Path, default=SCHEMAS)
    options = parser.parse_args()
    table = read_sample(options.data / FOLDER).select_dtypes("number")
    features = [n for n in table if n not in (TARGET, IDENTIFIER)]
    table = table[[TARGET, *features]]
    (options.output / f"{FOLDER}.toml").write_text(schema_text(table))
    (options.output / f"{BINS}.toml").write_text(bins_text(table))


if __name__ == "__main__":
    main()
