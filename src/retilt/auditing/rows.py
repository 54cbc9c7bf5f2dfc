"""Invented rows: the ends, the middles and what does not belong, for a plan's schema.

Bounds of differences are met at the ends of columns, so half of all cells stand there. The rest
are what a schema does not foresee (nulls, infinities, unknown categories, moments out of
range), what a measure may turn on (the edges of its bins, the numbers in its conditions), and
values anywhere between the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from retilt.measures.base import Feature
from retilt.measures.derived import Formula
from retilt.schema.columns import EPOCH, Boolean, Categorical, Column, Datetime, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Cell: TypeAlias = float | str | bool | datetime | None
Row: TypeAlias = tuple[Cell, ...]
"""One cell for each column of a schema, in its order."""

_MOST = 60
"""Values of a column that are tried; of longer lists of categories a sample."""

_ENDS = 0.6
"""Share of the cells that stand at an end of their column."""

_BETWEEN = 8
"""Values between the ends that are drawn for each column."""


@dataclass(frozen=True, slots=True)
class Values:
    """What the cells of a column may be.

    Attributes
    ----------
    ends
        The values at the ends of the column.
    others
        Everything else that is tried.
    """

    ends: tuple[Cell, ...]
    others: tuple[Cell, ...]

    @property
    def every(self) -> tuple[Cell, ...]:
        """Ends first."""
        return (*self.ends, *self.others)

    def draw(self, rng: np.random.Generator, count: int) -> list[Cell]:
        """``count`` cells, most of them ends."""
        at_end = rng.random(count) < _ENDS
        ends = rng.integers(len(self.ends), size=count)
        others = rng.integers(len(self.others), size=count)
        return [
            self.ends[i] if e else self.others[j]
            for e, i, j in zip(at_end.tolist(), ends.tolist(), others.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Inventor:
    """Invents rows of a schema.

    Attributes
    ----------
    schema
        Of the columns.
    values
        Of each column, in order.
    """

    schema: Schema
    values: tuple[Values, ...]

    @classmethod
    def of(cls, schema: Schema, features: Sequence[Feature], rng: np.random.Generator) -> Inventor:
        """For the columns of a schema, as the features of a plan read them."""
        turns = _turns(features)
        return cls(
            schema,
            tuple(_values(c, turns.get(n, ()), rng) for n, c in schema.columns.items()),
        )

    def rows(self, rng: np.random.Generator, count: int) -> list[Row]:
        """``count`` rows; the first two are all columns' lower and upper ends."""
        columns = [v.draw(rng, count) for v in self.values]
        drawn = list(zip(*columns, strict=True))
        corners = [tuple(v.ends[i] for v in self.values) for i in (0, -1)]
        return (corners + drawn)[:count]

    def changed(self, row: Row, column: int) -> list[Row]:
        """The row with every other value of one column."""
        return [(*row[:column], v, *row[column + 1 :]) for v in self.values[column].every]

    def table(self, rows: Sequence[Row], *, text: bool = False) -> dict[str, pa.Array]:
        """Rows as Arrow columns, typed or as text, as a CSV file has them."""
        import pyarrow as pa

        columns = list(zip(*rows, strict=True)) or [()] * len(self.values)
        made = {}
        for (name, column), cells in zip(self.schema.columns.items(), columns, strict=True):
            if text:
                made[name] = pa.array(map(_spelt, cells), pa.string())
            else:
                made[name] = pa.array(cells, _type(column))
        return made


def shown(cell: Cell) -> str:
    """A cell in results, as text.

    >>> shown(None), shown(2.0), shown("F"), shown(math.nan)
    ('null', '2', "'F'", 'NaN')
    """
    if cell is None:
        return "null"
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else f"{cell + 0.0:.17g}"  # never -0
    if isinstance(cell, datetime):
        return cell.isoformat()
    return str(cell).lower() if isinstance(cell, bool) else repr(cell)


# --- the values of a column ---------------------------------------------------------------


def _turns(features: Sequence[Feature]) -> dict[str, list[float]]:
    """Numbers at which a measure's value may jump, by column."""
    found: dict[str, list[float]] = {}
    for feature in features:
        numbers = list(feature.edges) if feature.source is None else _literals(feature.source)
        for name in feature.reads:
            found.setdefault(name, []).extend(numbers)
    return found


def _literals(source: object) -> list[float]:
    """The numbers in the text of a SQL formula, with either sign."""
    if not isinstance(source, Formula):
        return []
    from sqlglot import exp, parse_one

    tree = parse_one(source.expression.text, read="duckdb")
    found = [float(e.this) for e in tree.find_all(exp.Literal) if not e.is_string]
    return [sign * number for number in found for sign in (1, -1)]


def _values(column: Column, turns: Sequence[float], rng: np.random.Generator) -> Values:
    if isinstance(column, Boolean):
        return Values((False, True), (None, False, True))
    if isinstance(column, Categorical):
        return _categories(column, rng)
    if isinstance(column, Datetime):
        return _moments(column, turns, rng)
    low, high = float(column.lower), float(column.upper)
    span = high - low
    between = [low + span * s for s in (0.5, *rng.random(_BETWEEN))]
    if column.integer:
        between = [float(round(v)) for v in between]
    step = 1.0 if column.integer else span / (2 * column.levels or 1)
    odd = [low - 1 - span, high + 1 + span, low + step, high - step]
    odd += [math.inf, -math.inf, math.nan, 1e308, -1e308, -0.0]
    return Values((low, high), (*_thinned([*between, *odd, *_around(turns)], rng), None))


def _around(turns: Iterable[float]) -> list[float]:
    """Each number, and its neighbours on both sides."""
    return [
        v
        for t in dict.fromkeys(turns)
        for v in (math.nextafter(t, -math.inf), t, math.nextafter(t, math.inf))
        if math.isfinite(v)
    ]


def _categories(column: Categorical, rng: np.random.Generator) -> Values:
    if not column.is_text:
        numbers = [float(c) for c in column.categories]
        unknown: list[Cell] = [max(numbers) + 1, 0.5 * min(numbers) - 1, math.nan]
        return Values(tuple(_thinned(numbers, rng)), (*unknown, None))
    other = "?"
    while other in column.categories:
        other += "?"
    return Values(tuple(_thinned(column.categories, rng)), (other, "", None))


def _moments(column: Datetime, turns: Sequence[float], rng: np.random.Generator) -> Values:
    low, high = column.lower, column.upper
    span = high - low
    between = [low + span * float(s) for s in (0.5, *rng.random(_BETWEEN))]
    zone = low.tzinfo
    least, most = (m.replace(tzinfo=zone) for m in (datetime(1, 1, 2), datetime(9999, 12, 30)))
    edges = [e for t in _around(turns) if (e := _moment(t, aware=zone is not None)) is not None]
    return Values((low, high), (*_thinned([*between, least, most, *edges], rng), None))


def _moment(microseconds: float, *, aware: bool) -> datetime | None:
    try:
        moment = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return moment if aware else moment.replace(tzinfo=None)


def _thinned(values: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    """All of a few values; of many the first, the last and a sample between."""
    if len(values) <= _MOST:
        return list(values)
    inner = 1 + rng.choice(len(values) - 2, size=_MOST - 2, replace=False)
    return [values[i] for i in (0, *sorted(inner.tolist()), len(values) - 1)]


# --- to Arrow -----------------------------------------------------------------------------


def _type(column: Column) -> pa.DataType:
    import pyarrow as pa

    if isinstance(column, Boolean):
        return pa.bool_()
    if isinstance(column, Categorical) and column.is_text:
        return pa.string()
    if isinstance(column, Datetime):
        return pa.timestamp("us", None if column.lower.tzinfo is None else "UTC")
    return pa.float64()


def _spelt(cell: Cell) -> str | None:
    """A cell as a file of text may spell it."""
    if cell is None:
        return None
    if isinstance(cell, datetime):
        aware = cell.replace(tzinfo=UTC) if cell.tzinfo is None else cell
        return aware.isoformat(sep=" ")
    return cell if isinstance(cell, str) else str(cell).lower()
