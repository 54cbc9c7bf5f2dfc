"""Narrower bounds for columns with far tails, chosen on the synthetic table.

The noise of a moment is proportional to its column's bounds. Where these are many times what
values usually are, clamping the few values beyond costs less than the noise that it saves. The
synthetic table stands in for the private one, so the choice costs no privacy. Clamped is the
column on both tables: a measure then is a statement about the clamped column.

What is minimised is the predicted loss of :mod:`retilt.losses`, as if the last ``_KEPT`` of the
values stood where the others end; the bounds are taken only if they also help with all values
where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from retilt.losses import LEAST_GAIN, Losses, Sample, StandIn, moved_most
from retilt.measures.base import FloatArray, Measure, Terms
from retilt.measures.grouping import Bounds, GroupedMeasure
from retilt.privacy.budget import Budget
from retilt.privacy.unit import Unit
from retilt.schema.columns import Numeric
from retilt.schema.encode import values_of

_STEPS = 32
"""Bounds that are tried on a side: each leaves 1/sqrt(2) of the last one's distance."""

_KEPT = 0.05
"""Largest share of the synthetic values that may lie beyond a bound that is chosen."""

_FAR = 2
"""A bound is far if it is so many times farther from the last ``_KEPT`` values than the median.

Only these are moved: that a poor generator puts its values elsewhere than they are must not cut
off where the private ones may be.
"""

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
        if (step - middle) * (bound - middle) <= 0:
            return  # two digits do not tell it from the middle, which the other side may reach
        if abs(step - middle) < abs(inner - middle) or abs(step - middle) > abs(bound - middle):
            return
        if step != last:
            yield step
            last = step


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
    """The choice of bounds for all measures of one plan that leave it to the plan.

    Attributes
    ----------
    losses
        Of choices, on the synthetic table.
    sides
        The columns with far bounds, and what may be chosen for them.
    """

    losses: Losses
    sides: Mapping[str, Sides]

    @classmethod
    def of(
        cls,
        measures: tuple[Measure, ...],
        shares: Callable[[], Sequence[float]],
        terms: Terms,
        budget: Budget,
        unit: Unit,
        rows: int,
        stand_in: StandIn,
    ) -> Clamping:
        """Parameters are those of :class:`retilt.losses.Losses`."""
        sample = Sample(stand_in)
        open_ones = [m for m in measures if isinstance(m, GroupedMeasure) and m.clip is None]
        sides = {}
        for name in dict.fromkeys(n for m in open_ones for n in m.of):
            column = terms.schema[name]
            if isinstance(column, Numeric) and column.levels:
                found = Sides.of(column, values_of(column, sample.cells(name)).astype(np.float64))
                if found.free:
                    sides[name] = found
        usual = {name: s.usual for name, s in sides.items()}
        return cls(Losses(measures, shares, terms, budget, unit, rows, sample, usual), sides)

    def _clamped(self, number: int, clip: Mapping[str, Bounds]) -> GroupedMeasure:
        measure = self.losses.measures[number]
        assert isinstance(measure, GroupedMeasure)
        own = {n: b for n, b in clip.items() if n in measure.of}
        clamped: GroupedMeasure = replace(measure, clip=own)
        return clamped

    @cached_property
    def chosen(self) -> tuple[Measure, ...]:
        """The measures with bounds for every column: none where the schema's are best."""
        clip = self._choose() if self.sides else {}
        done: list[Measure] = list(self.losses.measures)
        for number in self.losses.open:
            done[number] = self._clamped(number, clip)
        return tuple(done)

    def _choose(self) -> dict[str, Bounds]:
        """Coordinate descent over the columns' sides, from the schema's bounds and from within."""
        start = dict.fromkeys(self.sides, (0, 0))
        places, best = start, self._loss(start)
        for tried in self._together():
            if (loss := self._loss(tried)) < best:
                best, places = loss, tried
        if len(self.sides) <= _MANY:
            places, best = self._refined(places, best)
        for tame in (True, False):
            unclamped, clamped = (self._loss(p, tame=tame) for p in (start, places))
            if clamped > LEAST_GAIN * unclamped:
                return {}
        return self._bounds(places)

    def _together(self) -> Iterator[Places]:
        """All columns narrowed by the same number of steps, as far as each of them goes."""
        sides = self.sides.items()
        for k in range(1, max(max(len(s.lower), len(s.upper)) for _, s in sides)):
            yield {n: (min(k, len(s.lower) - 1), min(k, len(s.upper) - 1)) for n, s in sides}

    def _refined(self, places: Places, best: float) -> tuple[Places, float]:
        """One column's side after the other, until nothing gains any more."""
        for _ in range(_SWEEPS):
            before = best
            for name, sides in self.sides.items():
                for tried in _moved(places, name, sides):
                    if (loss := self._loss(tried)) < best:
                        best, places = loss, tried
            if best > 0.999 * before:
                break
        return places, best

    def _bounds(self, places: Places) -> dict[str, Bounds]:
        """The bounds at some places, of the columns that have moved."""
        return {
            name: (self.sides[name].lower[low], self.sides[name].upper[high])
            for name, (low, high) in places.items()
            if (low, high) != (0, 0)
        }

    def _loss(self, places: Places, *, tame: bool = True) -> float:
        """Predicted squared error of all statistics without the clamp."""
        clip = self._bounds(places)
        return sum(
            self.losses.of(number, self._clamped(number, clip), tame=tame)
            for number in self.losses.open
        )


def clamp_note(measure: GroupedMeasure, terms: Terms, stand_in: StandIn) -> str | None:
    """What a measure's own bounds leave out on the synthetic table, and move there, in words."""
    if not measure.clip or not stand_in.rows:
        return None
    told = []
    for name, (low, high) in measure.clip.items():
        values = values_of(terms.schema[name], stand_in.cells(name)).astype(np.float64)
        with np.errstate(invalid="ignore"):
            beyond = float(np.mean((values < low) | (values > high)))
        told.append(
            f"{name} to {low:.5g} .. {high:.5g} ({beyond:.2g} of the synthetic rows beyond)"
        )
    return (
        f"clamped for less noise in {measure.kind}: {'; '.join(told)}. The measure is about the "
        f"clamped columns.{moved_most(measure, terms, stand_in)} To keep the "
        "schema's bounds: clip={}, or --clip none."
    )
