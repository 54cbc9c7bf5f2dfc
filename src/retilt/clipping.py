"""A ball that rows are pulled into, chosen on the synthetic table.

How far one row moves second moments is bounded by the box of all columns' bounds, but hardly a row
lies in its corners. A ball about the mean that holds every synthetic row is often far smaller, and
the noise with it. As with :mod:`retilt.clamping` the synthetic table stands in for the private
one, at no privacy cost, and the measure then is a statement about the rows in the ball, on both
tables.

Nothing is cut off that the synthetic table shows, so the ball moves statistics only by private rows
farther out than all synthetic ones; the loss of :mod:`retilt.losses` supposes such rows at the
bounds of every column. Wide columns may be shortened against the others, which costs their own
precision and gains that of all. Columns narrower than half of the others are not lengthened beyond
that: most of what is known about a narrow column's spread is a few far values, of which the
synthetic table is a poor witness (with them lengthened the predicted errors of Adult's
correlations halve, and the real ones grow).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np

from retilt.losses import Losses, answers_of
from retilt.measures.balls import MAX_STRETCH, RADIUS
from retilt.measures.base import Measure
from retilt.measures.grouping import GroupedMeasure
from retilt.measures.moments import Moments, MomentsBlock

_POWERS = (0.0, 0.25, 0.5)
"""Of the inverse deviations that columns are stretched by: 0 keeps the box's proportions."""

_LEAST_GAIN = 0.7
"""A ball has to take the predicted loss below this part of that without one."""

_MOST_LOSS = 1.25
"""And no kind of statistic (means, deviations, correlations) may have so many times more noise."""


@dataclass(frozen=True)
class Clipping:
    """The choice of balls for the measures of one plan that leave it to the plan.

    Attributes
    ----------
    losses
        Of choices, on the synthetic table; holds the measures as they were before any choice.
    measures
        The same with the bounds that were chosen.
    """

    losses: Losses
    measures: tuple[Measure, ...]

    @property
    def chosen(self) -> tuple[Measure, ...]:
        """The measures, with a ball where it helps much.

        Measures of the same columns get the same ball. Those that share some queries with others
        keep the box, where these are asked once for all.
        """
        done = list(self.measures)
        for numbers in self._groups():
            if not self._shared(numbers):
                for number, measure in zip(numbers, self._best(numbers), strict=True):
                    done[number] = measure
        return tuple(done)

    def _may(self, measure: Measure) -> TypeGuard[Moments]:
        return (
            isinstance(measure, Moments)
            and measure.order == 2
            and not measure.grouped
            and self.losses.terms.norm == 2
            and self.losses.terms.basis == "centred"
        )

    def _groups(self) -> list[list[int]]:
        """Numbers of the measures that may have a ball, those of the same columns together."""
        found: dict[frozenset[str], list[int]] = {}
        for number in self.losses.open:
            measure = self.measures[number]
            if self._may(measure):
                found.setdefault(frozenset(measure.of), []).append(number)
        return list(found.values())

    def _shared(self, numbers: Sequence[int]) -> bool:
        """Whether another measure asks a query of these."""
        own = self.measures[numbers[0]].bind(self.losses.terms).keys
        return any(self._asking[key] > len(numbers) for key in own)

    @cached_property
    def _asking(self) -> Counter[str]:
        """How many measures ask each query."""
        return Counter(k for m in self.measures for k in set(m.bind(self.losses.terms).keys))

    def _best(self, numbers: Sequence[int]) -> list[Moments]:
        """The ball that gains the most both with all values where they are and without tails."""
        boxed = [self._moments(n) for n in numbers]
        before = self._losses(numbers, boxed)
        best, least = boxed, _LEAST_GAIN
        for first in self._tried(boxed[0]):
            tried = [self._like(first, m) for m in boxed]
            after = self._losses(numbers, tried)
            ratio = max((a / b for a, b in zip(after, before, strict=True) if b > 0), default=1.0)
            if ratio < least and not self._spoils(numbers, boxed, tried):
                best, least = tried, ratio
        return best

    def _spoils(
        self, numbers: Sequence[int], boxed: Sequence[Moments], tried: Sequence[Moments]
    ) -> bool:
        """Whether a kind of statistic pays for the others: squares are not as loud in a ball."""
        return any(
            after > _MOST_LOSS * before
            for number, old, new in zip(numbers, boxed, tried, strict=True)
            for before, after in zip(
                self.losses.errors(number, old).values(),
                self.losses.errors(number, new).values(),
                strict=True,
            )
        )

    def _moments(self, number: int) -> Moments:
        measure = self.measures[number]
        assert isinstance(measure, Moments)
        return measure

    def _losses(self, numbers: Sequence[int], measures: Sequence[Moments]) -> list[float]:
        """Of all of them: without tails, and with all values where they are."""
        pairs = list(zip(numbers, measures, strict=True))
        return [sum(self.losses.of(n, m, tame=tame) for n, m in pairs) for tame in (True, False)]

    def _tried(self, measure: Moments) -> Iterator[Moments]:
        """The measure in several balls, with and without its own bounds."""
        for clip in ({}, dict(measure.clip)) if measure.clip else ({},):
            yield from self._balls(replace(measure, clip=clip))

    def _like(self, first: Moments, measure: Moments) -> Moments:
        """A measure in the ball, and within the bounds, of another of the same columns."""
        placed = replace(measure, clip=first.clip, ball=first.ball)
        block = placed.bind(self.losses.terms)
        return placed.tuned(self.losses.terms, answers_of(block, self.losses.sample.arrays(block)))

    def _balls(self, measure: Moments) -> Iterator[Moments]:
        block = measure.bind(self.losses.terms)
        assert isinstance(block, MomentsBlock)
        levels = np.array([c.levels for c in block.columns])
        arrays = self.losses.sample.arrays(block)
        rows = np.stack(arrays, axis=1) / levels
        centre = np.rint(rows.mean(axis=0) * levels)
        rows -= centre / levels
        spread = rows.std(axis=0)
        spread = np.maximum(spread, np.median(spread))
        for power in _POWERS if spread.all() else _POWERS[:1]:
            stretch = spread**-power
            radius = float(np.sqrt(((rows * stretch) ** 2).sum(axis=1).max()))
            if radius == 0:
                return
            steps = np.clip(np.rint(stretch * RADIUS / radius), 1, MAX_STRETCH)
            pairs = zip(centre.astype(int).tolist(), steps.astype(int).tolist(), strict=True)
            yield replace(measure, ball=dict(zip(block.names, pairs, strict=True)))


def clip_note(measure: GroupedMeasure) -> str | None:
    """That a measure is about rows in a ball, in words."""
    if not isinstance(measure, Moments) or measure.ball is None:
        return None
    return (
        f"clipped for less noise in {measure.kind}: rows farther from the middle than any of the "
        "synthetic table are pulled in to a ball. The measure is about the clipped rows. To keep "
        "whole rows: clip={}, or --clip none."
    )
