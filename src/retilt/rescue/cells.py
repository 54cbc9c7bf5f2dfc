"""What a measured column may hold, and cells of it that are drawn at random.

Half of a column's cells come from the synthetic column's own distribution, half from the whole
public domain: numbers even or towards either end, categories evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retilt.engines.base import Indices, Redrawn, Table
from retilt.measures.base import FloatArray
from retilt.measures.entries import listed
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from retilt.schema.encode import (
    is_boolean,
    is_text,
    limits,
    value_type,
    values_of,
)

Draw: TypeAlias = Callable[[int], FloatArray]
"""Gives so many uniform numbers in [0, 1)."""

_POWERS = np.array([1, 2, 4, 8, 16])
"""Of a uniform number, for draws near one end: a long tail has most of its rows there."""

_BROAD = 0.05
"""Weight of a column's cells from the whole domain, against those of its own."""

_NULLS = 0.05
"""Share of nulls in a broad column that may have them."""

_DAY, _SECOND = 86_400_000_000, 1_000_000
_MOST_DIGITS = 12
_NS_LIMIT = 9.2e15
"""Microseconds from 1970 that nanoseconds in 64 bits can tell."""


def below(uniform: FloatArray, count: int) -> NDArray[np.int64]:
    """Whole numbers from 0 to ``count - 1`` from uniform ones in [0, 1)."""
    return np.minimum((uniform * count).astype(np.int64), count - 1)


@dataclass(frozen=True)
class Drawn:
    """Cells that were drawn for a column.

    Attributes
    ----------
    cells
        In the order of the rows that they are for.
    base
        (M,) what they weigh before the answers do: the column's own more, so that its shape stays
        as far as the answers allow.
    """

    cells: Redrawn
    base: FloatArray


@dataclass(frozen=True)
class Domain:
    """What a column may hold: cells of its own, and cells that can be made.

    Attributes
    ----------
    column, cells
        Its schema, and the synthetic table's cells.
    kind
        The type of values that are made.
    own
        Rows whose cell the schema allows, with their base weights ``weights``.
    null
        A row whose cell is null; None if there is none.
    found
        For a column of categories (rows,) codes.
    """

    name: str
    column: Column
    cells: pa.ChunkedArray
    kind: pa.DataType
    own: Indices
    weights: FloatArray
    null: int | None
    found: NDArray[Any]
    fixed: frozenset[object] | None

    @classmethod
    def of(
        cls, table: Table, name: str, column: Column, base: FloatArray, within: Column | None = None
    ) -> Domain:
        """That of a table's column whose cells are right by ``column``; new ones lie ``within``."""
        cells = table.cells(name)
        found = values_of(column, cells)
        nulls, right = _nulls_and_right(column, found)
        usable = np.flatnonzero((right | nulls if column.nullable else right) & (base > 0))
        fixed = None
        if pa.types.is_dictionary(cells.type) and table.keeps_order(name):
            fixed = frozenset(v for c in cells.chunks for v in c.dictionary.to_pylist())
        return cls(
            name=name,
            column=within or column,
            cells=cells,
            kind=pa.large_string() if is_text(cells.type) else value_type(cells.type),
            own=usable,
            weights=base[usable],
            null=int(np.flatnonzero(nulls)[0]) if nulls.any() else None,
            found=found,
            fixed=fixed,
        )

    @property
    def notes(self) -> list[str]:
        """A sentence on categories that the column's type has no place for."""
        if isinstance(self.column, (Numeric, Datetime)) or pa.types.is_null(self.cells.type):
            return []
        _, places = self._categories
        lacking = [c for c, p in zip(_labels(self.column), places, strict=True) if p < 0]
        if not lacking:
            return []
        return [
            f"The type of column {self.name!r} has no place for the declared {listed(lacking)}: "
            "no candidate row has them."
        ]

    def redrawn(self, count: int, draw: Draw) -> Drawn | None:
        """``count`` cells, half of them the column's own; None if none can be had."""
        if pa.types.is_null(self.cells.type):  # a type that holds nothing else
            return None
        made, broad = self._broad(count, draw)
        narrow = self._own_rows(count, draw)
        from_own = draw(count) < 1 / 2
        if broad is None or narrow is None:
            rows = narrow if broad is None else broad
            return None if rows is None else Drawn(Redrawn(made, rows), np.ones(count))
        base = np.where(from_own, 1 - _BROAD, _BROAD)
        return Drawn(Redrawn(made, np.where(from_own, narrow, broad)), base)

    def _own_rows(self, count: int, draw: Draw) -> Indices | None:
        """Rows by base weight."""
        if self.own.size == 0:
            return None
        ends = np.cumsum(self.weights / self.weights.max())
        places = np.searchsorted(ends, draw(count) * ends[-1], side="right")
        rows: Indices = self.own[np.minimum(places, self.own.size - 1)].astype(np.int64)
        return rows

    def _broad(self, count: int, draw: Draw) -> tuple[pa.Array, Indices | None]:
        """Cells to make and, counted behind the column's own, where each draw finds its cell."""
        rows = len(self.cells)
        if isinstance(self.column, (Numeric, Datetime)):
            shares = _spread(count, draw)
            made = self._amounts(shares)
            chosen = rows + np.arange(count, dtype=np.int64)
        else:
            made, places = self._categories
            held = places[places >= 0]
            if held.size == 0:
                return made, None
            chosen = held[below(draw(count), held.size)]
        if self.column.nullable:
            empty = draw(count) < _NULLS
            place = rows + len(made) if self.null is None else self.null
            chosen = np.where(empty, place, chosen)
            made = pa.concat_arrays([made, pa.nulls(1, self.kind)])
        return made, chosen

    def _amounts(self, shares: FloatArray) -> pa.Array:
        if isinstance(self.column, Numeric):
            return _numbers(self.column, self.kind, shares)
        assert isinstance(self.column, Datetime)
        return _moments(self.column, self.kind, shares, self._like)

    @property
    def _like(self) -> str:
        """The first text that the column has, for the form of dates."""
        if not self.own.size or not is_text(self.cells.type):
            return ""
        return str(self.cells[int(self.own[0])].as_py() or "").strip()

    @cached_property
    def _categories(self) -> tuple[pa.Array, Indices]:
        """Each category's cell as it can be made, and the place of one: the table's own first.

        -1 where the column's type has no place for it.
        """
        column = self.column
        assert isinstance(column, (Categorical, Boolean))
        made = pa.array([_as_cell(v, self.kind) for v in _labels(column)], self.kind)
        codes = np.arange(len(made))
        held = values_of(column, pa.chunked_array([made])) == codes
        if self.fixed is not None:
            held &= np.array([v in self.fixed for v in made.to_pylist()])
        made = pa.array(
            [v if h else None for v, h in zip(made.to_pylist(), held, strict=True)], self.kind
        )
        places = np.where(held, len(self.cells) + codes, -1)
        first, rows = np.unique(self.found, return_index=True)
        known = first < len(codes)
        places[first[known]] = rows[known]
        return made, places.astype(np.int64)


def _nulls_and_right(
    column: Column, found: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rows,) which cells are null, and which hold what the schema says."""
    if isinstance(column, (Numeric, Datetime)):
        lower, upper = limits(column)
        return np.isnan(found), (found >= lower) & (found <= upper)
    size = len(_labels(column))
    null = size if isinstance(column, Boolean) else size + 1
    return found == null, found < size


def _spread(count: int, draw: Draw) -> FloatArray:
    """Numbers in [0, 1]: some even, some towards either end, more or less."""
    skewed = draw(count) ** _POWERS[below(draw(count), len(_POWERS))]
    shares: FloatArray = np.where(draw(count) < 1 / 2, skewed, 1 - skewed)
    return shares


def _labels(column: Column) -> Sequence[Any]:
    return column.categories if isinstance(column, Categorical) else (False, True)


def _as_cell(value: Any, kind: pa.DataType) -> Any:
    """A category or truth value as a cell of a type; None if it can't be one."""
    number = not isinstance(value, str)
    if is_text(kind):
        if isinstance(value, bool):
            return "true" if value else "false"
        if number:
            return str(int(value)) if float(value).is_integer() else repr(float(value))
        return value
    if is_boolean(kind):
        words = {"true": True, "false": False, "1": True, "0": False}
        return bool(value) if number else words.get(value.lower())
    if not number and not (value.lstrip("-").isdecimal() and str(int(value)) == value):
        return None
    if pa.types.is_integer(kind):
        whole = int(value)
        least, most = _integers(kind)
        return whole if float(value).is_integer() and least <= whole <= most else None
    if pa.types.is_decimal(kind):
        return _decimals([float(value)], kind)[0]
    return float(value)


def _integers(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    signed = pa.types.is_signed_integer(kind)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def _numbers(column: Numeric, kind: pa.DataType, shares: FloatArray) -> pa.Array:
    """Numbers between the bounds at ``shares`` of the way, as cells of a type."""
    lower, upper = limits(column)
    if is_boolean(kind):
        within = [v for v in (0, 1) if lower <= v <= upper] or [int(lower > 0)]
        return pa.array(np.array(within, dtype=np.bool_)[below(shares, len(within))])
    if column.integer or pa.types.is_integer(kind):
        least, most = math.ceil(lower), math.floor(upper)
        if pa.types.is_integer(kind):
            ends = _integers(kind)
            least, most = (min(max(v, ends[0]), ends[1]) for v in (least, most))
        steps = max(most - least, 0)
        # In Python's integers: bounds may lie beyond what 64 bits can tell.
        whole = [least + min(int(s * (steps + 1)), steps) for s in shares.tolist()]
        return _as_numbers(whole, kind)
    span = upper - lower
    values = lower + shares * span
    digits = 6 - math.floor(math.log10(span)) if span > 0 else 0
    if digits <= _MOST_DIGITS:  # as people write numbers; below that all digits matter
        values = np.round(values, max(digits, 0))
    return _as_numbers(np.clip(values, lower, upper).tolist(), kind)


def _as_numbers(values: Sequence[float], kind: pa.DataType) -> pa.Array:
    if is_text(kind):
        return pa.array([repr(v) for v in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array(_decimals(values, kind), kind)
    if pa.types.is_integer(kind):
        return pa.array(values, kind)
    numbers = np.array(values, dtype=np.float64)
    holds = np.dtype(kind.to_pandas_dtype())
    largest = float(np.finfo(holds).max)
    return pa.array(np.clip(numbers, -largest, largest).astype(holds), kind)


def _decimals(values: Sequence[float], kind: pa.DataType) -> list[Decimal]:
    """Numbers with the type's digits, as near as it can hold them."""
    with localcontext() as context:
        context.prec = kind.precision + abs(kind.scale) + 400  # of any float
        step = Decimal(1).scaleb(-kind.scale)
        most = Decimal(10) ** (kind.precision - kind.scale) - step
        exact = (Decimal(repr(v)).quantize(step) for v in values)
        return [min(max(v, -most), most) for v in exact]


def _moments(column: Datetime, kind: pa.DataType, shares: FloatArray, like: str) -> pa.Array:
    """Moments between the bounds at ``shares`` of the way, as cells of a type."""
    lower, upper = limits(column)
    dates = pa.types.is_date(kind) or (is_text(kind) and len(like) == len("2020-01-01"))
    step = _DAY if dates else _SECOND
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        lower, upper = (min(max(v, -_NS_LIMIT), _NS_LIMIT) for v in (lower, upper))
    least, most = math.ceil(lower / step), math.floor(upper / step)
    if least > most and not dates and not (pa.types.is_timestamp(kind) and kind.unit == "s"):
        step, least, most = 1, math.ceil(lower), math.floor(upper)
    most = max(least, most)
    ticks = (least + below(shares, most - least + 1)) * step
    if is_text(kind):
        unit: Literal["D", "s", "us"] = "D" if dates else "s" if step == _SECOND else "us"
        texts = np.datetime_as_string(ticks.astype("M8[us]"), unit=unit)
        mark = "T" if "T" in like else " "
        return pa.array([t.replace("T", mark) for t in texts.tolist()], kind)
    if pa.types.is_date32(kind):
        return pa.array((ticks // _DAY).astype(np.int32)).cast(kind)
    per: Mapping[str, Callable[[Any], Any]] = {
        "s": lambda t: t // _SECOND,
        "ms": lambda t: t // 1_000,
        "us": lambda t: t,
        "ns": lambda t: t * 1_000,
    }
    unit_name = "ms" if pa.types.is_date64(kind) else kind.unit
    return pa.array(per[unit_name](ticks)).cast(kind)
