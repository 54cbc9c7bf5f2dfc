"""The tables that are compared, each column of them read once and kept small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from retilt.engines.base import Table
from retilt.measures.base import FloatArray, IntArray
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import (
    is_boolean,
    limits,
    numbers,
    plain_cells,
    to_cells,
    to_unit,
    truths,
    values_of,
)
from retilt.schema.infer import MANY_CATEGORIES

Side: TypeAlias = Mapping[str, pa.ChunkedArray]
"""One table: the cells of each column, numbers as float64 and text as a dictionary."""

HUGE = 1e100
"""Columns of numbers farther from 0, or all of them as near, are scaled for what trains."""


def is_listed(column: Column) -> bool:
    """Whether a column holds texts of a list (numbers of a list are numbers)."""
    return isinstance(column, Categorical) and column.is_text


@dataclass(frozen=True)
class Sides:
    """The real table, the synthetic one before and after, and rows for tests.

    Attributes
    ----------
    schema
        What is compared.
    listed
        Column name to the column as :meth:`values` reads it: with all texts that any of the tables
        holds, sorted by code point, so that no text is lumped with others; where they are more
        than 1,000, the schema's own, and others together.
    units
        Column name to what :meth:`finite_or_null` divides by, the same in all tables; 1, unless
        its numbers are huge or tiny.
    real, before, after, test
        The tables.
    """

    schema: Schema
    listed: Mapping[str, Column]
    units: Mapping[str, float]
    real: Side
    before: Side
    after: Side
    test: Side | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is compared."""
        return tuple(self.schema.columns)

    @property
    def compared(self) -> tuple[Side, Side, Side]:
        """The real table, before, after."""
        return self.real, self.before, self.after

    def values(self, side: Side, name: str) -> FloatArray:
        """(n,) a column as numbers, texts as codes by code point; null as NaN, infinities kept.

        Dates are microseconds since 1970 UTC; false and true 0 and 1.
        """
        column = self.listed[name]
        found = values_of(column, side[name]).astype(np.float64)
        if isinstance(column, Categorical):  # of texts: see _as_measured
            found[found > len(column.categories)] = np.nan
        return found

    def cells(self, side: Side, name: str, edges: Sequence[float] = ()) -> IntArray:
        """(n,) the cell of a marginal that each row falls in, as ``retilt.marginal`` has it."""
        return to_cells(self.schema[name], side[name], edges)

    def amounts(self, side: Side, *, clamp: bool) -> FloatArray:
        """(d, n) all columns as correlations have them: codes in [0, 1], or numbers.

        Numbers are in their own units (correlations do not depend on them), finite ones clamped to
        the bounds if asked for, infinities in any case; null is the middle of the bounds.
        """
        return np.stack([self._amounts(side, name, clamp=clamp) for name in self.names])

    def _amounts(self, side: Side, name: str, *, clamp: bool) -> FloatArray:
        column = self.schema[name]
        if not isinstance(column, (Numeric, Datetime)) or column.levels == 0:
            return to_unit(column, side[name], clamp=clamp)
        lower, upper = limits(column)
        values = self.values(side, name)
        clamped = np.clip(values, lower, upper)
        chosen = clamped if clamp else np.where(np.isfinite(values), values, clamped)
        return np.where(np.isnan(values), lower + (upper - lower) / 2, chosen)

    def finite_or_null(self, side: Side, name: str) -> FloatArray:
        """(n,) as :meth:`values`, infinities as null too, in units whose squares are finite."""
        found = self.values(side, name)
        return np.where(np.isinf(found), np.nan, found) / self.units[name]


def read_sides(schema: Schema, tables: Sequence[Table]) -> Sides:
    """Read the columns of the schema from the tables: real, before, after and, if given, test.

    Their types have been checked.
    """
    sides = [{n: _compact(t, n, c) for n, c in schema.columns.items()} for t in tables]
    listed = {n: _as_measured(c, [s[n] for s in sides]) for n, c in schema.columns.items()}
    units = {n: _unit(c, [s[n] for s in sides]) for n, c in listed.items()}
    return Sides(schema, listed, units, *sides)


def _compact(table: Table, name: str, column: Column) -> pa.ChunkedArray:
    """A column's cells, parsed where they are numbers: text is parsed once, not for each figure."""
    cells = table.cells(name)
    if isinstance(column, Datetime):
        return cells
    if is_listed(column):
        # True and false are left to the schema, which says how they are spelled.
        return cells if is_boolean(cells.type) else _as_dictionary(cells)
    found = truths(cells) if isinstance(column, Boolean) else numbers(cells)
    return pa.chunked_array([pa.array(found)])


def _as_dictionary(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return plain_cells(cells).cast(pa.large_string()).dictionary_encode()


def _as_measured(column: Column, cells: Sequence[pa.ChunkedArray]) -> Column:
    """A column for :meth:`Sides.values`: numbers of a list as any numbers, all texts listed."""
    if not isinstance(column, Categorical):
        return column
    if not column.is_text:
        return Numeric(0.0, 0.0, nullable=True)  # values are never clamped to a column's bounds
    texts = {str(c) for c in column.categories}
    with suppress(UnicodeDecodeError):  # text that is none is left together with others
        texts.update(*map(_texts, cells))
    if "" not in column.categories:  # an empty cell is null, as everywhere
        texts.discard("")
    if len(texts) > MANY_CATEGORIES:
        return column
    return replace(column, categories=tuple(sorted(texts)))


def _unit(column: Column, cells: Sequence[pa.ChunkedArray]) -> float:
    """What to divide the numbers of a column by in all tables, so that they can be squared."""
    if not isinstance(column, Numeric):  # codes and dates are
        return 1.0
    sizes = (np.abs(numbers(c)) for c in cells)
    most = max(float(np.max(s, where=np.isfinite(s), initial=0.0)) for s in sizes)
    if most > HUGE:
        return most / HUGE
    return most if 0 < most < 1 / HUGE else 1.0


def _texts(cells: pa.ChunkedArray) -> set[str]:
    """The different texts of a dictionary; of true and false none."""
    chunks = cells.chunks if pa.types.is_dictionary(cells.type) else []
    return {text for chunk in chunks for text in chunk.dictionary.to_pylist()}
