"""Data sets as published: checked files, a fixed split, and what every data set can tell."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from experiments.description import Description
from retilt.schema.formats import Declared

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where the data sets are looked for unless a folder is given."""


class DataError(Exception):
    """A data set is not to be had, or is not the one that the experiments are about."""


@dataclass(frozen=True, slots=True)
class File:
    """A file as published.

    Parameters
    ----------
    name
        Without ``.gz``: the file may be gzipped or not.
    sha256
        Of the unpacked content.
    """

    name: str
    sha256: str

    def find(self, folder: Path) -> Path | None:
        """Where it lies, if it does."""
        paths = (folder / self.name, folder / f"{self.name}.gz")
        return next((path for path in paths if path.is_file()), None)

    def read(self, folder: Path) -> bytes:
        """Its unpacked content, checked.

        Raises
        ------
        DataError
            If it is missing, can't be unpacked or is another.
        """
        path = self.find(folder)
        if path is None:
            raise DataError(f"{folder} holds no {self.name} or {self.name}.gz.")
        try:
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
        except (OSError, EOFError) as error:
            raise DataError(f"{path} can't be read: {type(error).__name__}.") from None
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise DataError(
                f"{path} is not the published file: the sha256 of its content is {found}, "
                f"expected {self.sha256}. Fetch it again."
            )
        return content


@dataclass(frozen=True, slots=True)
class Split:
    """The two parts of a table.

    Parameters
    ----------
    train
        What generators and :func:`retilt.measure` read: 80 % of the rows.
    test
        The rest, for scores of models.
    stand_in
        Whether the table only stands in for the one that the paper used: every result must say
        so.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    stand_in: bool = False


class Source(Protocol):
    """What the experiments ask of a data set."""

    @property
    def name(self) -> str:
        """As the paper's tables print it."""

    @property
    def rows(self) -> int:
        """How many rows the whole table has."""

    @property
    def target(self) -> str:
        """The column that models predict."""

    @property
    def positive(self) -> str | int:
        """The target's rarer value."""

    def split(self, data: Path | None = None) -> Split:
        """Train and test rows, from a folder of data sets (:data:`DATA` by default).

        Raises
        ------
        DataError
            If the table is not to be had, or is another.
        """

    def schema(self) -> Declared:
        """Public bounds and categories, as retilt takes them."""

    def description(self) -> Description:
        """Public bounds, bins and values, as generators take them."""


def split(table: pd.DataFrame, *, stand_in: bool = False) -> Split:
    """Train and test rows: the first 80 % of NumPy's ``default_rng(0).permutation``, the rest."""
    order = np.random.default_rng(0).permutation(len(table))
    count = int(0.8 * len(table))
    parts = (order[:count], order[count:])
    train, test = (table.iloc[rows].reset_index(drop=True) for rows in parts)
    return Split(train, test, stand_in)


def digest(table: pd.DataFrame) -> str:
    """Sha256 of a table's names and values, as CSV text."""
    text = table.to_csv(index=False, lineterminator="\n")
    return hashlib.sha256(text.encode()).hexdigest()
