"""The paper's data sets: read from a folder or from UCI, checked, split, described.

    python -m experiments.datasets --data FOLDER

A folder holds what UCI publishes, one folder per data set (``adult/adult.data.gz``, ...), plain
or gzipped. Without it the UCI sets come through the package ``ucimlrepo``. Either way a set is
the same table, or an error says that it is not: files and tables are checked by sha256. Home
Credit's table is not openly licensed and is never downloaded (:mod:`experiments.home_credit`).

Rows are numbered in the order of the files; :func:`experiments.published.split` says which are
the train split, that generators see.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from experiments.description import SCHEMAS, Description, load_description
from experiments.home_credit import HomeCredit
from experiments.published import DATA, DataError, File, Source, Split, digest, split
from retilt.schema.formats import Declared, load_declared

__all__ = [
    "ADULT",
    "ALL",
    "BANK",
    "DATA",
    "HOME_CREDIT",
    "MUSHROOM",
    "SHOPPER",
    "UCI",
    "DataError",
    "DataSet",
    "Source",
    "Split",
    "by_name",
]


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """One of UCI's data sets.

    Parameters
    ----------
    name
        As the paper's tables print it.
    folder
        Its folder's name, and that of its schema.
    uci
        Its number at UCI.
    files
        As published.
    parse
        From the files' contents to the table.
    target
        The column that models predict.
    positive
        Its rarer value.
    rows
        How many the table has.
    sha256
        Of the table (:func:`digest`), wherever it came from.
    missing
        The files' word for what UCI's package leaves empty.
    renamed
        Names of columns in UCI's package that differ from the files'.
    """

    name: str
    folder: str
    uci: int
    files: tuple[File, ...]
    parse: Callable[[list[bytes]], pd.DataFrame] = field(repr=False)
    target: str
    positive: str
    rows: int
    sha256: str
    missing: str = "?"
    renamed: Mapping[str, str] = field(default_factory=dict)

    def load(self, data: Path | None = None) -> pd.DataFrame:
        """The whole table, in the order of the files.

        Parameters
        ----------
        data
            A folder of data sets; :data:`DATA` by default. If it has none of this set's files,
            they come from UCI.

        Raises
        ------
        DataError
            If neither has it, or what is found is another table.
        """
        folder = (data or DATA) / self.folder
        if any(file.find(folder) for file in self.files):
            table = self.parse([file.read(folder) for file in self.files])
        else:
            table = self._from_uci(folder)
        found = digest(table)
        if found != self.sha256:
            raise DataError(
                f"{self.name}: the table is not the published one: its sha256 is {found}, "
                f"expected {self.sha256}. Its columns, its values or the order of its rows differ."
            )
        return table

    def split(self, data: Path | None = None) -> Split:
        """The train and the test split of :meth:`load`."""
        return split(self.load(data))

    def schema(self) -> Declared:
        """Public bounds and categories, as retilt takes them."""
        return load_declared(SCHEMAS / f"{self.folder}.toml")

    def description(self) -> Description:
        """Public bounds, bins and values, as generators take them."""
        return load_description(self.folder)

    def _from_uci(self, folder: Path) -> pd.DataFrame:
        try:
            from ucimlrepo import fetch_ucirepo  # type: ignore[import-not-found]
        except ImportError:
            raise DataError(
                f"{self.name} is not at {folder}, and the package ucimlrepo is not installed: "
                "`pip install ucimlrepo` to get it from UCI, or give the folder of a copy "
                "with --data."
            ) from None
        try:
            original = fetch_ucirepo(id=self.uci).data.original
        except Exception as error:  # it raises what its HTTP and CSV readers raise
            raise DataError(
                f"{self.name} (number {self.uci}) could not be fetched from UCI: "
                f"{type(error).__name__}. Give the folder of a copy with --data."
            ) from error
        return self._as_published(original)

    def _as_published(self, original: pd.DataFrame) -> pd.DataFrame:
        """The table of the files from that of UCI's package.

        The package renames columns, moves the target to the end, reads words for missing values
        as missing and truth values as such; the files' own text is what everything else knows.
        """
        table = original.rename(columns=dict(self.renamed))
        entries = self.schema().entries
        absent = sorted(set(entries) - set(table.columns))
        if absent:
            raise DataError(f"{self.name}: UCI's table has no column {absent[0]!r}.")
        return pd.DataFrame(
            {
                name: _text(table[name], self.missing)
                if entry.kind == "boolean" or isinstance((entry.categories or (0,))[0], str)
                else table[name]
                for name, entry in entries.items()
            }
        )


def _text(column: pd.Series, missing: str) -> pd.Series:
    """A column's text as in the files: no spaces or full stops at its ends, TRUE for true."""
    if column.dtype == bool:
        return column.map({True: "TRUE", False: "FALSE"})
    text = column.astype(object).where(column.notna(), missing).astype(str).str.strip()
    return text.where(~text.str.startswith(("<=50K", ">50K")), text.str.rstrip("."))


def _csv(content: bytes, **options: Any) -> pd.DataFrame:
    """A table whose fields keep their text: an empty one, or NA, is no missing value."""
    table: pd.DataFrame = pd.read_csv(io.BytesIO(content), keep_default_na=False, **options)
    return table


def _names(folder: str) -> list[str]:
    return list(load_declared(SCHEMAS / f"{folder}.toml").entries)


def _adult(contents: list[bytes]) -> pd.DataFrame:
    read = partial(_csv, names=_names("adult"), skipinitialspace=True)
    # The second file's first line says how it was made; its labels end in a full stop.
    table = pd.concat([read(contents[0]), read(contents[1], skiprows=1)], ignore_index=True)
    table["income"] = table["income"].str.rstrip(".")
    return table


def _bank(contents: list[bytes]) -> pd.DataFrame:
    return _csv(contents[0], sep=";")


def _mushroom(contents: list[bytes]) -> pd.DataFrame:
    return _csv(contents[0], names=_names("mushroom"))


def _shopping(contents: list[bytes]) -> pd.DataFrame:
    return _csv(contents[0], dtype={"Weekend": str, "Revenue": str})


ADULT = DataSet(
    name="Adult",
    folder="adult",
    uci=2,
    files=(
        File("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        File("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
    parse=_adult,
    target="income",
    positive=">50K",
    rows=48_842,
    sha256="6f8f2babc5ee744afd03f6d978d8d6b3e3b0aae240d931c4976a9cce7af0d347",
)
BANK = DataSet(
    name="Bank",
    folder="bank",
    uci=222,
    files=(
        File("bank-full.csv", "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d"),
    ),
    parse=_bank,
    target="y",
    positive="yes",
    rows=45_211,
    sha256="b44507c26634736d4a0619ec2d7c4b6ff56a2c63cbeb5176d3134e7b25e416f0",
    missing="unknown",
    renamed=MappingProxyType({"day_of_week": "day"}),
)
MUSHROOM = DataSet(
    name="Mushroom",
    folder="mushroom",
    uci=73,
    files=(
        File(
            "agaricus-lepiota.data",
            "e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e",
        ),
    ),
    parse=_mushroom,
    target="class",
    positive="p",
    rows=8_124,
    sha256="7204d38399e2c7c84d85e7a2019081724bb943613e82be5d3523156cfbcf9f64",
    renamed=MappingProxyType({"poisonous": "class"}),
)
SHOPPER = DataSet(
    name="Shopper",
    folder="shopping",
    uci=468,
    files=(
        File(
            "online_shoppers_intention.csv",
            "44b29f6ac84d6491bcf8d78e3cd544c10df910fe518293454174876f25956c4f",
        ),
    ),
    parse=_shopping,
    target="Revenue",
    positive="TRUE",
    rows=12_330,
    sha256="f47e9bca7c7558cf71244825806472283c6c2a2c28b23b81face8af3d027942c",
)
HOME_CREDIT = HomeCredit()
UCI = (ADULT, BANK, MUSHROOM, SHOPPER)
"""Those of the paper's first table."""
ALL: tuple[Source, ...] = (*UCI, HOME_CREDIT)
"""Those of all its tables."""


def by_name(name: str) -> Source:
    """A data set by the paper's name for it, in any case.

    Raises
    ------
    DataError
        If there is none of that name.
    """
    for data_set in ALL:
        if name.lower() == data_set.name.lower():
            return data_set
    raise DataError(f"no data set {name!r}: expected {', '.join(d.name for d in ALL)}.")


def main() -> None:
    """Load and check every set, and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of data sets")
    options = parser.parse_args()
    for data_set in ALL:
        try:
            parts = data_set.split(options.data)
        except DataError as error:
            print(f"{data_set.name}: {error}")
            continue
        share = (parts.train[data_set.target] == data_set.positive).mean()
        print(
            f"{data_set.name}: {len(parts.train):,} train and {len(parts.test):,} test rows, "
            f"{parts.train.shape[1]} columns, {data_set.target} = {data_set.positive} in "
            f"{share:.2%} of the train rows{', a stand-in' if parts.stand_in else ''}"
        )


if __name__ == "__main__":
    main()
