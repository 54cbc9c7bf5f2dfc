"""Narrower bounds for columns with far tails, chosen on the synthetic table.

The noise of a moment is proportional to its column's bounds. Where these are many times what
values usually are, clamping the few values beyond costs less than the noise that it saves. The
synthetic table stands in for the private one, so the choice costs no privacy. Clamped is the
column on both tables: a measure then is a statement about the clamped column.

What is minimised is the predicted squared error of the statistics *without* the clamp, each
against its natural range: the variance that the noise gives the clamped statistic, plus the
square of what the clamp moves it by. Of tails the synthetic table is a poor witness, in both
directions, and neither may be relied on:

* A generator loses rare far values, and a tail that is not there looks as if it cost nothing to
  cut off. So a share ``_MISSED`` of the rows is supposed to lie at each bound, one at a time.
* A generator spreads a few far values over all of a wide bin. That makes the column's deviation,
  by which errors of correlations are divided, larger than it is. So the bounds are chosen as if
  the last ``_KEPT`` of the values stood where the others end, and taken only if they also help
  with all values where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import (
    Block,
    Feature,
    FloatArray,
    IntArray,
    Measure,
    Reading,
    Terms,
)
from retilt.measures.grouping import Bounds, GroupedMeasure
from retilt.measures.queries import QuerySet, means_of_sums
from retilt.privacy.allocation import variances_alone
from retilt.privacy.budget import Budget
from retilt.privacy.sensitivity import unit_deviation
from retilt.privacy.unit import Unit
from retilt.schema.columns import Numeric
from retilt.schema.encode import values_of

if TYPE_CHECKING:
    import pyarrow as pa

_MISSED = 5e-3
"""Share of rows that may lie at a bound though the synthetic table has none there."""

_STEPS = 32
"""Bounds that are tried on a side: each leaves 1/sqrt(2) of the last one's distance."""

_KEPT = 0.05
"""Largest share of the synthetic values that may lie beyond a bound that is chosen."""

_FAR = 2
"""A bound is far if it is so many times farther from the last ``_KEPT`` values than the median.

Only these are moved: that a poor generator puts its values elsewhere than they are must not cut
off where the private ones may be.
"""

_LEAST_GAIN = 0.5
"""A clamp has to take the predicted loss below this part of that without one."""

_ROWS = 20_000
"""Synthetic rows that are looked at: evenly spaced ones of a longer table."""

_SWEEPS = 3
"""Passes over the columns, at most."""

_MANY = 24
"""More columns than this are narrowed all alike, and not one by one."""

Places: TypeAlias = dict[str, tuple[int, int]]
"""For each column, which of its lower and of its upper bounds."""


@dataclass(frozen=True)
class Sides:
    """The bounds that may be chosen for a column, from its own inwards.

    Attributes
    ----------
    lower, upper
        One of each.
    usual
        Where nearly all synthetic values lie on the sides that are far; else the column's bounds.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    usual: tuple[float, float]

    @classmethod
    def of(cls, column: Numeric, values: FloatArray) -> Sides:
        """From the synthetic values: a side with hardly any room beyond them keeps its bound."""
        low, high = float(column.lower), float(column.upper)
        known = np.clip(values[np.isfinite(values)], low, high)
        if not len(known):
            return cls((low,), (high,), (low, high))
        inner = np.quantile(known, [_KEPT, 0.5, 1 - _KEPT]).tolist()
        near, middle, far = inner
        lower = tuple(_steps(low, near, middle, whole=column.integer))
        upper = tuple(_steps(high, far, middle, whole=column.integer))
        usual = (near if len(lower) > 1 else low, far if len(upper) > 1 else high)
        return cls(lower, upper, usual)

    @property
    def free(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.lower) + len(self.upper) > 2


def _steps(bound: float, inner: float, middle: float, *, whole: bool) -> Iterator[float]:
    """From the bound towards the middle, two digits each, up to the inner value."""
    yield bound
    last = bound
    if inner == middle or abs(bound - inner) < _FAR * abs(inner - middle):
        return  # what is left would be constant; or the bound is not far
    for k in range(1, _STEPS):
        step = float(f"{middle + (bound - middle) * 2 ** (-k / 2):.2g}")
        if whole:
            step = float(np.floor(step) if bound < middle else np.ceil(step))
        if abs(step - middle) < abs(inner - middle) or abs(step - middle) > abs(bound - middle):
            return
        if step != last:
            yield step
            last = step


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


def _moved(places: Places, name: str, sides: Sides) -> Iterator[Places]:
    """The same places with one side of a column anywhere else."""
    low, high = places[name]
    for place in range(len(sides.lower)):
        if place != low:
            yield {**places, name: (place, high)}
    for place in range(len(sides.upper)):
        if place != high:
            yield {**places, name: (low, place)}


@dataclass(frozen=True)
class Clamping:
    """The choice for all measures of one plan that leave it to the plan.

    Attributes
    ----------
    measures
        Of the workload: bins fixed, loudness tuned to the schema's bounds.
    shares
        Gives, for each, the factor by which its noise is larger for being asked beside the others.
        Only called where there is anything to choose.
    terms, budget, unit, rows
        Of the plan.
    stand_in
        The synthetic table.
    """

    measures: tuple[Measure, ...]
    shares: Callable[[], Sequence[float]]
    terms: Terms
    budget: Budget
    unit: Unit
    rows: int
    stand_in: StandIn
    _known: dict[object, _Seen] = field(default_factory=dict)
    _shifts: dict[object, FloatArray] = field(default_factory=dict)
    _cells: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    _encoded: dict[Feature, IntArray] = field(default_factory=dict)

    @cached_property
    def _open(self) -> list[int]:
        """Numbers of the measures whose bounds are to be chosen."""
        return [
            n
            for n, m in enumerate(self.measures)
            if isinstance(m, GroupedMeasure) and m.clip is None
        ]

    @cached_property
    def _shares(self) -> Sequence[float]:
        return self.shares()

    @cached_property
    def _sides(self) -> dict[str, Sides]:
        """The columns with far bounds, and what may be chosen for them."""
        names = dict.fromkeys(n for k in self._open for n in self._measure(k).of)
        found = {}
        for name in names:
            column = self.terms.schema[name]
            if isinstance(column, Numeric) and column.levels:
                values = values_of(column, self._taken(name)).astype(np.float64)
                sides = Sides.of(column, values)
                if sides.free:
                    found[name] = sides
        return found

    def _measure(self, number: int) -> GroupedMeasure:
        measure = self.measures[number]
        assert isinstance(measure, GroupedMeasure)
        return measure

    def _clamped(self, number: int, clip: Mapping[str, Bounds]) -> GroupedMeasure:
        clamped: GroupedMeasure = replace(self._measure(number), clip=clip)
        return clamped

    def chosen(self) -> tuple[Measure, ...]:
        """The measures with bounds for every column: none where the schema's are best."""
        clip = self._choose() if self._sides else {}
        done: list[Measure] = list(self.measures)
        for number in self._open:
            own = {n: b for n, b in clip.items() if n in self._measure(number).of}
            done[number] = self._clamped(number, own)
        return tuple(done)

    def _choose(self) -> dict[str, Bounds]:
        """Coordinate descent over the columns' sides, from the schema's bounds and from within."""
        start = dict.fromkeys(self._sides, (0, 0))
        places, best = start, self._loss(start)
        for tried in self._together():
            if (loss := self._loss(tried)) < best:
                best, places = loss, tried
        if len(self._sides) <= _MANY:
            places, best = self._refined(places, best)
        for tame in (True, False):
            unclamped, clamped = (self._loss(p, tame=tame) for p in (start, places))
            if clamped > _LEAST_GAIN * unclamped:
                return {}
        return self._bounds(places)

    def _together(self) -> Iterator[Places]:
        """All columns narrowed by the same number of steps, as far as each of them goes."""
        sides = self._sides.items()
        for k in range(1, max(max(len(s.lower), len(s.upper)) for _, s in sides)):
            yield {n: (min(k, len(s.lower) - 1), min(k, len(s.upper) - 1)) for n, s in sides}

    def _refined(self, places: Places, best: float) -> tuple[Places, float]:
        """One column's side after the other, until nothing gains any more."""
        for _ in range(_SWEEPS):
            before = best
            for name, sides in self._sides.items():
                for tried in _moved(places, name, sides):
                    if (loss := self._loss(tried)) < best:
                        best, places = loss, tried
            if best > 0.999 * before:
                break
        return places, best

    def _bounds(self, places: Places) -> dict[str, Bounds]:
        """The bounds at some places, of the columns that have moved."""
        return {
            name: (self._sides[name].lower[low], self._sides[name].upper[high])
            for name, (low, high) in places.items()
            if (low, high) != (0, 0)
        }

    # --- what a choice costs --------------------------------------------------------------

    def _loss(self, places: Places, *, tame: bool = True) -> float:
        """Predicted squared error of all statistics without the clamp."""
        total, clip = 0.0, self._bounds(places)
        for number in self._open:
            measure = self._measure(number)
            own = {n: b for n, b in clip.items() if n in measure.of}
            raw, seen = self._at(number, {}), self._at(number, own)
            noise = (raw.comparisons * (seen.tame_errors if tame else seen.errors)) ** 2
            squares = _capped(noise) + _capped(raw.squares(seen.statistics))
            missed = sum(self._missed(number, n, b) for n, b in own.items())
            told = ~np.isnan(raw.statistics)
            total += measure.weight * (float(squares[told].sum()) + missed)
        return total

    def _at(self, number: int, clip: dict[str, Bounds]) -> _Seen:
        """A measure's statistics on the synthetic table under a clamp, and their errors."""
        key = number, tuple(sorted(clip.items()))
        if key not in self._known:
            block = self._clamped(number, clip).bind(self.terms)
            arrays = self._arrays(block)
            answers = self._answers(block, arrays)
            tame = self._answers(
                block, [self._tamed(f, a) for f, a in zip(block.features, arrays, strict=True)]
            )
            deviation = self._deviation * self._shares[number]
            variances = variances_alone(block, deviation, self.terms.norm)
            nothing = np.zeros((len(answers), 0))
            as_seen, as_tame = (
                block.standard_errors(a, variances, nothing) for a in (answers, tame)
            )
            self._known[key] = _Seen(
                statistics=block.evaluate(answers),
                errors=as_seen,
                tame_errors=as_tame,
                comparisons=block.comparisons(answers),
            )
        return self._known[key]

    def _tamed(self, feature: Feature, array: IntArray) -> IntArray:
        """A column without the few values that lie far from the others."""
        sides = self._sides.get(feature.name)
        if sides is None or feature.kind != "grid":
            return array
        column = feature.column
        assert isinstance(column, Numeric)
        low, high = float(column.lower), float(column.upper)
        ends = [(2 * (e - low) / (high - low) - 1) * column.levels for e in sides.usual]
        first, last = np.clip(np.round(ends), -column.levels, column.levels).astype(np.int32)
        tame: IntArray = np.clip(array, first, last)
        return tame

    def _missed(self, number: int, name: str, bounds: Bounds) -> float:
        """Squared shifts more than those seen, were a few rows at a column's far bounds."""
        column = self.terms.schema[name]
        assert isinstance(column, Numeric)
        total = 0.0
        for end, moved in ((-1, bounds[0] > column.lower), (1, bounds[1] < column.upper)):
            if not moved:
                continue
            key = number, name, bounds, end
            if key not in self._shifts:
                raw, clipped = (self._with_tail(number, name, c, end) for c in ({}, {name: bounds}))
                seen = self._at(number, {name: bounds}).statistics - self._at(number, {}).statistics
                more = self._at(number, {}).comparisons * (clipped - raw - seen)
                self._shifts[key] = more
            more = self._shifts[key]
            total += float(_capped(more**2)[~np.isnan(more)].sum())
        return total

    def _with_tail(self, number: int, name: str, clip: dict[str, Bounds], end: int) -> FloatArray:
        """Statistics with a share of the rows moved to one bound of a column."""
        block = self._clamped(number, clip).bind(self.terms)
        arrays = self._arrays(block)
        usual = self._answers(block, arrays)
        tail = [
            np.full_like(a, end * f.column.levels) if (f.name, f.kind) == (name, "grid") else a
            for f, a in zip(block.features, arrays, strict=True)
        ]
        moved = self._answers(block, tail)
        return block.evaluate((1 - _MISSED) * usual + _MISSED * moved)

    @cached_property
    def _deviation(self) -> float:
        """Of the noise of an answer, for a query of loudness 1 and a bound of 1."""
        first = self._clamped(self._open[0], {}).bind(self.terms)
        return unit_deviation(
            self.budget,
            coordinates=len(first.keys),
            max_rows=self.unit.max_rows,
            rows=self.rows,
        )

    # --- the synthetic table ----------------------------------------------------------------

    def _arrays(self, block: Block) -> list[IntArray]:
        reading = Reading(self._taken)
        for feature in block.features:
            if feature not in self._encoded:
                self._encoded[feature] = feature.encode(reading, len(self._chosen_rows))
        return [self._encoded[f] for f in block.features]

    def _answers(self, block: Block, arrays: Sequence[IntArray]) -> FloatArray:
        return means_of_sums(block.sums(arrays), block.units, len(self._chosen_rows))

    def _taken(self, name: str) -> pa.ChunkedArray:
        """A synthetic column's cells in the rows that are looked at."""
        if name not in self._cells:
            self._cells[name] = self.stand_in.cells(name).take(self._chosen_rows)
        return self._cells[name]

    @cached_property
    def _chosen_rows(self) -> NDArray[np.int64]:
        count = min(self.stand_in.rows, _ROWS)
        return np.linspace(0, self.stand_in.rows - 1, count).astype(np.int64)


def clamp_note(measure: GroupedMeasure, terms: Terms, stand_in: StandIn) -> str | None:
    """What a measure's own bounds leave out on the synthetic table, and move there, in words."""
    if not measure.clip or not stand_in.rows:
        return None
    raw, clamped = (
        _statistics(replace(measure, clip=clip), terms, stand_in) for clip in ({}, measure.clip)
    )
    told = []
    for name, (low, high) in measure.clip.items():
        values = values_of(terms.schema[name], stand_in.cells(name)).astype(np.float64)
        with np.errstate(invalid="ignore"):
            beyond = float(np.mean((values < low) | (values > high)))
        told.append(
            f"{name} to {low:.5g} .. {high:.5g} ({beyond:.2g} of the synthetic rows beyond)"
        )
    shift = np.abs(clamped.comparisons * (clamped.values - raw.values))
    said = ""
    if not np.isnan(shift).all():
        most = int(np.nanargmax(shift))
        said = (
            f" On the synthetic table that moves {raw.names[most]} the most, from "
            f"{raw.values[most]:.3g} to {clamped.values[most]:.3g}."
        )
    return (
        f"clamped for less noise in {measure.kind}: {'; '.join(told)}. The measure is about the "
        f"clamped columns.{said} To keep the schema's bounds: clip={{}}, or --clip none."
    )


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


def _statistics(measure: GroupedMeasure, terms: Terms, stand_in: StandIn) -> _Told:
    block = measure.bind(terms)
    answers = QuerySet((block,)).means(stand_in.encode(block.features), stand_in.rows)
    return _Told(block.statistics, block.evaluate(answers), block.comparisons(answers))


@dataclass(frozen=True, slots=True)
class _Seen:
    """(S,) statistics of a measure, their predicted errors, and what makes them comparable.

    The errors are those with the column's far values, and (``tame_errors``) without them.
    """

    statistics: FloatArray
    errors: FloatArray
    tame_errors: FloatArray
    comparisons: FloatArray

    def squares(self, others: FloatArray) -> FloatArray:
        """Squared differences from other statistics, comparable."""
        squares: FloatArray = (self.comparisons * (others - self.statistics)) ** 2
        return squares
