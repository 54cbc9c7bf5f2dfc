"""What narrowing the rows of a measure costs and gains, predicted on the synthetic table.

A measure of moments may be asked of columns clamped to narrower bounds, or of rows pulled into a
ball: less noise, for statistics that are moved. The loss of such a choice is the predicted squared
error of the statistics *without* it, each against its natural range: the variance that the noise
gives the narrowed statistic, plus the square of what narrowing moves it by. Of tails the synthetic
table is a poor witness, in both directions, and neither may be relied on:

* A generator loses rare far values, and a tail that is not there looks as if it cost nothing to
  cut off. So a share ``MISSED`` of the rows is supposed to lie at each bound, one at a time.
* A generator spreads a few far values over all of a wide bin. That makes the column's deviation,
  by which errors of correlations are divided, larger than it is. So a choice is judged once with
  the last values where they are, and once (``tame``) as if they stood where the others end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import Block, Feature, FloatArray, IntArray, Measure, Reading, Terms
from retilt.measures.grouping import Bounds, GroupedMeasure
from retilt.measures.moments import Moments
from retilt.measures.queries import QuerySet, means_of_sums
from retilt.privacy.allocation import variances_alone
from retilt.privacy.budget import Budget
from retilt.privacy.sensitivity import unit_deviation
from retilt.privacy.unit import Unit
from retilt.schema.columns import Numeric

if TYPE_CHECKING:
    import pyarrow as pa

MISSED = 5e-3
"""Share of rows that may lie at a bound though the synthetic table has none there."""

LEAST_GAIN = 0.5
"""A choice has to take the predicted loss below this part of that without one."""

_ROWS = 20_000
"""Synthetic rows that are looked at: evenly spaced ones of a longer table."""

_TAIL_ROWS, _TAIL_COLUMNS = 2_000, 12
"""And those that are looked at for what rows at the bounds would do, of so many columns in turn."""


class StandIn(Protocol):
    """The synthetic table as a plan sees it."""

    @property
    def rows(self) -> int:
        """How many rows."""
        ...

    def cells(self, name: str) -> pa.ChunkedArray:
        """A column's cells."""
        ...

    def encode(self, features: Sequence[Feature]) -> Mapping[Feature, IntArray]:
        """Features as integers."""
        ...


@dataclass(frozen=True)
class Sample:
    """The rows of the synthetic table that are looked at."""

    stand_in: StandIn
    _cells: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    _encoded: dict[Feature, IntArray] = field(default_factory=dict)

    def cells(self, name: str) -> pa.ChunkedArray:
        """A column's cells in these rows."""
        if name not in self._cells:
            self._cells[name] = self.stand_in.cells(name).take(self._chosen)
        return self._cells[name]

    def arrays(self, block: Block) -> list[IntArray]:
        """A block's features in these rows."""
        reading = Reading(self.cells)
        for feature in block.features:
            if feature not in self._encoded:
                self._encoded[feature] = feature.encode(reading, len(self._chosen))
        return [self._encoded[f] for f in block.features]

    @cached_property
    def _chosen(self) -> NDArray[np.int64]:
        return _spaced(self.stand_in.rows, _ROWS)


def _spaced(rows: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, rows - 1, min(rows, most)).astype(np.int64)


def answers_of(block: Block, arrays: Sequence[IntArray]) -> FloatArray:
    """(K,) a block's answers on some rows."""
    return means_of_sums(block.sums(arrays), block.units, len(arrays[0]))


@dataclass(frozen=True)
class Losses:
    """Of choices for the measures of one plan.

    Attributes
    ----------
    measures
        Of the workload: bins fixed, loudness tuned to the schema's bounds.
    shares
        Gives, for each, the factor by which its noise is larger for being asked beside the others.
        Only called where there is anything to choose.
    terms, budget, unit, rows
        Of the plan.
    sample
        Of the synthetic table.
    usual
        Where nearly all synthetic values lie, of the columns with far bounds.
    """

    measures: tuple[Measure, ...]
    shares: Callable[[], Sequence[float]]
    terms: Terms
    budget: Budget
    unit: Unit
    rows: int
    sample: Sample
    usual: Mapping[str, Bounds]
    _known: dict[object, _Seen] = field(default_factory=dict)
    _shifts: dict[object, float] = field(default_factory=dict)
    _ends: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def open(self) -> list[int]:
        """Numbers of the measures that leave the choice to the plan."""
        return [
            n
            for n, m in enumerate(self.measures)
            if isinstance(m, GroupedMeasure) and m.clip is None
        ]

    def of(self, number: int, narrowed: GroupedMeasure, *, tame: bool) -> float:
        """Predicted squared error of a measure's whole statistics, if it is asked narrowed."""
        whole = whole_of(narrowed)
        raw, seen = self._at(number, whole), self._at(number, narrowed)
        noise = (raw.comparisons * (seen.tame_errors if tame else seen.errors)) ** 2
        squares = _capped(noise) + _capped(raw.squares(seen.statistics))
        told = ~np.isnan(raw.statistics)
        missed = sum(
            times * self._missed(number, whole, narrowed, name, end, share)
            for name, end, share, times in self._narrowed(number, narrowed)
        )
        return narrowed.weight * (float(squares[told].sum()) + missed)

    def errors(self, number: int, measure: GroupedMeasure) -> dict[str, float]:
        """Root mean square of what noise is predicted to do, by kind of statistic."""
        seen = self._at(number, measure)
        compared = self._at(number, whole_of(measure)).comparisons * seen.errors
        kinds = [name.split("(")[0] for name in measure.bind(self.terms).statistics]
        found = {}
        for kind in dict.fromkeys(kinds):
            own = compared[[k == kind for k in kinds]]
            own = own[np.isfinite(own)]
            found[kind] = float(np.sqrt(np.mean(own**2))) if len(own) else 0.0
        return found

    def _narrowed(
        self, number: int, measure: GroupedMeasure
    ) -> Iterator[tuple[str, int, float, float]]:
        """Columns whose values are moved, at which end (-1, 1), and the rows that may be missed.

        A ball moves values at both ends of every column; where the synthetic table has rows in
        the half towards the end, so many fewer are missed there. Of many columns some stand for
        all: how many times each counts comes last.
        """
        if isinstance(measure, Moments) and measure.ball is not None:
            ends = {
                name: [(end, MISSED - seen) for end, seen in zip((-1, 1), tails, strict=True)]
                for name, tails in self._tails(number).items()
            }
        else:
            ends = {n: list(self._cut(n, *b)) for n, b in (measure.clip or {}).items()}
        names = [list(ends)[k] for k in _spaced(len(ends), _TAIL_COLUMNS)] if ends else []
        for name in names:
            for end, share in ends[name]:
                if share > 0:
                    yield name, end, share, len(ends) / len(names)

    def _cut(self, name: str, low: float, high: float) -> Iterator[tuple[int, float]]:
        """The ends of a column's bounds that are not those of its schema."""
        column = self.terms.schema[name]
        assert isinstance(column, Numeric)
        if low > column.lower:
            yield -1, MISSED
        if high < column.upper:
            yield 1, MISSED

    def _tails(self, number: int) -> dict[str, tuple[float, float]]:
        """Shares of the rows between the bounds and halfway to the median, of each column."""
        if number not in self._ends:
            measure = self.measures[number]
            assert isinstance(measure, GroupedMeasure)
            block = whole_of(measure).bind(self.terms)
            found = {}
            for feature, array in zip(block.features, self.sample.arrays(block), strict=True):
                middle, levels = float(np.median(array)), feature.column.levels
                below = float(np.mean(array < (middle - levels) / 2))
                found[feature.name] = below, float(np.mean(array > (middle + levels) / 2))
            self._ends[number] = found
        return self._ends[number]

    def _at(self, number: int, measure: GroupedMeasure) -> _Seen:
        """A measure's statistics on the synthetic table, and their errors."""
        key = number, _choice(measure)
        if key not in self._known:
            block = measure.bind(self.terms)
            arrays = self.sample.arrays(block)
            tame = [self._tamed(f, a) for f, a in zip(block.features, arrays, strict=True)]
            answers = answers_of(block, arrays)
            deviation = self._deviation * self._factors[number]
            variances = variances_alone(block, deviation, self.terms.norm)
            nothing = np.zeros((len(answers), 0))
            as_seen, as_tame = (
                block.standard_errors(a, variances, nothing)
                for a in (answers, answers_of(block, tame))
            )
            self._known[key] = _Seen(
                answers=answers,
                statistics=block.evaluate(answers),
                errors=as_seen,
                tame_errors=as_tame,
                comparisons=block.comparisons(answers),
            )
        return self._known[key]

    def _tamed(self, feature: Feature, array: IntArray) -> IntArray:
        """A column without the few values that lie far from the others."""
        usual = self.usual.get(feature.name)
        if usual is None or feature.kind != "grid":
            return array
        column = feature.column
        assert isinstance(column, Numeric)
        low, high = float(column.lower), float(column.upper)
        ends = [(2 * (e - low) / (high - low) - 1) * column.levels for e in usual]
        first, last = np.clip(np.round(ends), -column.levels, column.levels).astype(np.int32)
        tame: IntArray = np.clip(array, first, last)
        return tame

    def _missed(
        self,
        number: int,
        whole: GroupedMeasure,
        narrowed: GroupedMeasure,
        name: str,
        end: int,
        share: float,
    ) -> float:
        """Squared shifts more than those seen, were a few rows at a column's bound."""
        one = _of_column(narrowed, name)
        key = number, name, end, _choice(one)
        if key not in self._shifts:
            seen = [self._at(number, m).statistics for m in (whole, one)]
            moved = [self._with_tail(number, m, name, end, share) for m in (whole, one)]
            more = moved[1] - moved[0] - (seen[1] - seen[0])
            more *= self._at(number, whole).comparisons
            self._shifts[key] = float(_capped(more**2)[~np.isnan(more)].sum())
        return self._shifts[key]

    def _with_tail(
        self, number: int, measure: GroupedMeasure, name: str, end: int, share: float
    ) -> FloatArray:
        """Statistics with a share of the rows moved to one bound of a column."""
        block = measure.bind(self.terms)
        arrays = self.sample.arrays(block)
        few = _spaced(len(arrays[0]), _TAIL_ROWS)
        tail = [
            np.full(len(few), end * f.column.levels, dtype=a.dtype)
            if (f.name, f.kind) == (name, "grid")
            else a[few]
            for f, a in zip(block.features, arrays, strict=True)
        ]
        usual = self._at(number, measure).answers
        return block.evaluate((1 - share) * usual + share * answers_of(block, tail))

    @cached_property
    def _factors(self) -> Sequence[float]:
        return self.shares()

    @cached_property
    def _deviation(self) -> float:
        """Of the noise of an answer, for a query of loudness 1 and a bound of 1."""
        first = self.measures[self.open[0]].bind(self.terms)
        return unit_deviation(
            self.budget,
            coordinates=len(first.keys),
            max_rows=self.unit.max_rows,
            rows=self.rows,
        )


def whole_of(measure: GroupedMeasure) -> GroupedMeasure:
    """The measure of whole rows within the schema's bounds."""
    if isinstance(measure, Moments):
        return replace(measure, clip={}, ball=None)
    whole: GroupedMeasure = replace(measure, clip={})
    return whole


def moved_most(measure: GroupedMeasure, terms: Terms, stand_in: StandIn) -> str:
    """What narrowing moves the most on the synthetic table, as a sentence; nothing if undefined."""
    raw, narrowed = (_told(m, terms, stand_in) for m in (whole_of(measure), measure))
    shift = np.abs(raw.comparisons * (narrowed.values - raw.values))
    if np.isnan(shift).all():
        return ""
    most = int(np.nanargmax(shift))
    return (
        f" On the synthetic table that moves {raw.names[most]} the most, from "
        f"{raw.values[most]:.3g} to {narrowed.values[most]:.3g}."
    )


def _of_column(narrowed: GroupedMeasure, name: str) -> GroupedMeasure:
    """The measure with the narrower bounds of one column alone; a ball is of all of them."""
    if isinstance(narrowed, Moments) and narrowed.ball is not None:
        return narrowed
    one: GroupedMeasure = replace(narrowed, clip={name: (narrowed.clip or {})[name]})
    return one


def _choice(measure: GroupedMeasure) -> str:
    """What the plan may choose of a measure, to know it again."""
    ball = measure.ball if isinstance(measure, Moments) else None
    narrowed = (
        sorted((measure.clip or {}).items()),
        None if ball is None else sorted(ball.items()),
    )
    return f"{narrowed} {measure.loudness} {measure.count_loudness}"


def _capped(squares: FloatArray) -> FloatArray:
    """Squared errors in units of the natural range: none is worse than 1, or than undefined."""
    capped: FloatArray = np.where(np.isnan(squares), 1.0, np.minimum(squares, 1.0))
    return capped


@dataclass(frozen=True, slots=True)
class _Told:
    """(S,) names and values of statistics, and what makes them comparable."""

    names: tuple[str, ...]
    values: FloatArray
    comparisons: FloatArray


def _told(measure: GroupedMeasure, terms: Terms, stand_in: StandIn) -> _Told:
    block = measure.bind(terms)
    answers = QuerySet((block,)).means(stand_in.encode(block.features), stand_in.rows)
    return _Told(block.statistics, block.evaluate(answers), block.comparisons(answers))


@dataclass(frozen=True, slots=True)
class _Seen:
    """(K,) answers of a measure; (S,) statistics, predicted errors, what makes them comparable.

    The errors are those with the column's far values, and (``tame_errors``) without them.
    """

    answers: FloatArray
    statistics: FloatArray
    errors: FloatArray
    tame_errors: FloatArray
    comparisons: FloatArray

    def squares(self, others: FloatArray) -> FloatArray:
        """Squared differences from other statistics, comparable."""
        squares: FloatArray = (self.comparisons * (others - self.statistics)) ** 2
        return squares
