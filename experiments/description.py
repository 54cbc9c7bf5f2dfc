"""What may be said of a table in public, and a table as codes or scaled by it.

Generators know no more than this and the rows: which values a column can take, or between which
bounds it lies and how it is cut into bins. Nothing of it is read off the private rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from retilt.schema.declared import Entry, load_declared

SCHEMAS = Path(__file__).parent / "schemas"
POINT = 1e-6
"""A bin narrower than this holds its lower edge alone: nought seconds, say."""
DIGITS = 6
"""Decimal places of a real number that comes back from [-1, 1]."""

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Listed:
    """A column that takes one of some values: text, or numbers.

    Parameters
    ----------
    values
        All of one type, in the order of their codes.
    """

    values: tuple[str, ...] | tuple[int, ...] | tuple[float, ...]

    @property
    def levels(self) -> int:
        """How many values there are."""
        return len(self.values)

    def codes(self, column: pd.Series) -> NDArray[np.int64]:
        """(N,) codes of the values, -1 for one that is not listed."""
        return np.asarray(pd.Index(self.values).get_indexer(pd.Index(column)), dtype=np.int64)

    def values_of(self, codes: NDArray[np.int64]) -> pd.Series:
        """(N,) values of codes in [0, levels)."""
        return pd.Series(self.values).take(codes).reset_index(drop=True)


@dataclass(frozen=True, slots=True)
class Number:
    """A number between two bounds, cut into bins for generators of tables of counts.

    Parameters
    ----------
    lower, upper
        Bounds, ``lower < upper``; values outside are clamped.
    edges
        Increasing; bin ``i`` is ``edges[i] <= v < edges[i + 1]``. Values outside go to the first
        or last bin.
    integer
        Whether the column holds whole numbers.
    """

    lower: float
    upper: float
    edges: tuple[float, ...]
    integer: bool

    @property
    def levels(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    @property
    def decoded(self) -> tuple[float, ...]:
        """The number that stands for each bin: its middle, within the bounds.

        Of whole numbers the middle of those in the bin, rounded down.

        Examples
        --------
        >>> Number(0, 100, (0, 10, 20, 101), integer=True).decoded
        (4, 14, 60)
        >>> Number(0, 0.2, (0, 1e-9, 0.1, 0.2, 0.21), integer=False).decoded[-1]
        0.2
        """
        pairs = zip(self.edges[:-1], self.edges[1:], strict=True)
        if self.integer:
            return tuple(int((low + high - 1) // 2) for low, high in pairs)
        middles = (low if high - low < POINT else (low + high) / 2 for low, high in pairs)
        return tuple(min(float(middle), float(self.upper)) for middle in middles)

    def codes(self, column: pd.Series) -> NDArray[np.int64]:
        """(N,) bins of the values."""
        bins = np.searchsorted(np.array(self.edges), column.to_numpy(float), side="right") - 1
        return np.clip(bins, 0, self.levels - 1).astype(np.int64)

    def values_of(self, codes: NDArray[np.int64]) -> pd.Series:
        """(N,) numbers that stand for the bins."""
        return pd.Series(self.decoded).take(codes).reset_index(drop=True)

    def scaled(self, column: pd.Series) -> FloatArray:
        """(N,) values in [-1, 1]: the bounds go to its ends."""
        clamped = np.clip(column.to_numpy(float), self.lower, self.upper)
        return np.asarray(2 * (clamped - self.lower) / (self.upper - self.lower) - 1)

    def unscaled(self, values: FloatArray) -> pd.Series:
        """(N,) numbers of values in [-1, 1], whole or rounded to six places."""
        wide = self.lower + (np.clip(values, -1, 1) + 1) / 2 * (self.upper - self.lower)
        return pd.Series(np.rint(wide).astype(np.int64) if self.integer else wide.round(DIGITS))


@dataclass(frozen=True, slots=True)
class Description:
    """A table's columns as the public knows them, in order.

    Examples
    --------
    >>> table = pd.DataFrame({"age": [17, 64], "sex": ["F", "M"]})
    >>> said = Description({"age": Number(15, 95, (15, 40, 95), True), "sex": Listed(("F", "M"))})
    >>> said.codes(table).to_dict("list")
    {'age': [0, 1], 'sex': [0, 1]}
    >>> said.values_of(said.codes(table)).to_dict("list")
    {'age': [27, 67], 'sex': ['F', 'M']}
    >>> said.scaled(table)["age"].round(3).to_list()
    [-0.95, 0.225]
    """

    columns: Mapping[str, Listed | Number]

    def codes(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of bins and codes of values, whole numbers in [0, levels).

        Raises
        ------
        ValueError
            If a column is missing or holds a value that is not listed; its name is told, the
            value is not.
        """
        return pd.DataFrame({n: self._listed(table, n, c) for n, c in self.columns.items()})

    def values_of(self, codes: pd.DataFrame) -> pd.DataFrame:
        """The table that :meth:`codes` would give these codes for."""
        return pd.DataFrame(
            {n: c.values_of(codes[n].to_numpy(np.int64)) for n, c in self.columns.items()}
        )

    def scaled(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of codes of values, and of numbers scaled to [-1, 1].

        Raises
        ------
        ValueError
            As :meth:`codes`.
        """
        return pd.DataFrame(
            {
                n: c.scaled(table[n]) if isinstance(c, Number) else self._listed(table, n, c)
                for n, c in self.columns.items()
            }
        )

    def unscaled(self, scaled: pd.DataFrame) -> pd.DataFrame:
        """The table that :meth:`scaled` would give these numbers for."""
        return pd.DataFrame(
            {
                n: c.unscaled(scaled[n].to_numpy(np.float64))
                if isinstance(c, Number)
                else c.values_of(scaled[n].to_numpy(np.int64))
                for n, c in self.columns.items()
            }
        )

    @staticmethod
    def _listed(table: pd.DataFrame, name: str, column: Listed | Number) -> NDArray[np.int64]:
        if name not in table:
            raise ValueError(f"column {name!r} is missing.")
        codes = column.codes(table[name])
        if (codes < 0).any():
            raise ValueError(f"column {name!r} holds values that its description does not list.")
        return codes


def load_description(name: str, bins: str = "bins") -> Description:
    """The description of a data set by the name of its schema in ``experiments/schemas``.

    Bounds and categories are those of the schema that retilt gets; another file there holds the
    edges of the numbers that are cut, and the values of those that take few.
    """
    declared = load_declared(SCHEMAS / f"{name}.toml").entries
    cut = tomllib.loads((SCHEMAS / f"{bins}.toml").read_text()).get(name, {})
    return Description(MappingProxyType({n: _column(e, cut.get(n)) for n, e in declared.items()}))


def _column(entry: Entry, cut: Mapping[str, list[float]] | None) -> Listed | Number:
    if entry.kind == "boolean":
        return Listed(("FALSE", "TRUE"))
    if entry.kind == "categorical":
        return Listed(entry.categories or ())
    if cut is None:  # whole numbers between narrow bounds
        return Listed(tuple(range(int(entry.lower), int(entry.upper) + 1)))
    if "values" in cut:
        return Listed(tuple(cut["values"]))
    whole = all(isinstance(edge, int) for edge in cut["edges"])
    return Number(entry.lower, entry.upper, tuple(cut["edges"]), whole)
