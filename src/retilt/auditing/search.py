"""The farthest neighbours that can be found: all pairs of invented rows, then one cell at a time.

One row's part of a release is a vector, a person's the sum of at most ``max_rows`` of them. The
length of a difference is convex in each of the vectors, so that it is largest where a person's
rows are all alike and as many as can be, or none: it is enough to look for the worst *row*, or
pair of rows. Other numbers of rows are tried on whole tables, see :mod:`retilt.auditing.tables`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from retilt.auditing.distance import Metric, RowSums
from retilt.auditing.rows import Inventor, Row
from retilt.measures.base import FloatArray, Relation
from retilt.privacy.plan import Plan

_NUMBERS = 20_000_000
"""Numbers held at once: of plans with many sums fewer rows are tried."""

_CLIMBS = 6
"""Pairs that are improved, the farthest found first."""

_SWEEPS = 4
"""Times that each cell of a pair is changed."""

_GROWTH = 1 + 1e-9
"""A distance must grow by more than rounding."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows, or a row and none.

    Attributes
    ----------
    one, other
        The rows; ``other`` is ``None`` where the row comes or goes.
    length
        Distance of one from the other, in the metric's terms.
    """

    one: Row
    other: Row | None
    length: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes
    ----------
    pair
        The farthest neighbours, of one row each.
    pairs
        How many were compared.
    """

    pair: Pair
    pairs: int


def farthest(plan: Plan, inventor: Inventor, *, pairs: int, rng: np.random.Generator) -> Found:
    """Find the farthest of about ``pairs`` pairs, and of what lies around the farthest."""
    search = _Search(Metric(plan), RowSums(plan, inventor), inventor, rng)
    width = len(plan.noise.scales)
    most = max(50, _NUMBERS // width)
    replaced = plan.unit.relation is Relation.REPLACE
    wanted = 1 + math.isqrt(2 * pairs) if replaced else pairs
    rows = inventor.rows(rng, max(2, min(wanted, most, 5_000)))
    points = search.sums(rows)
    starts: list[Pair] = []
    tried = 0
    if plan.counts_rows:  # a row may come or go: alone under add/remove, or with a person
        starts += search.singles(rows, points)
        tried += len(rows)
    if replaced:
        starts += search.doubles(rows, points)
        tried += len(rows) * (len(rows) - 1) // 2
    search.left = search.sums.computed + max(200, most // 4)
    starts.sort(key=lambda p: -p.length)
    best = max((search.climb(p) for p in starts[:_CLIMBS]), key=lambda p: p.length)
    return Found(pair=best, pairs=tried + search.tried)


@dataclass
class _Search:
    metric: Metric
    sums: RowSums
    inventor: Inventor
    rng: np.random.Generator
    left: int = 0
    tried: int = 0

    def singles(self, rows: list[Row], points: FloatArray) -> list[Pair]:
        """Rows against none: the longest few, and a few others."""
        lengths = self.metric.lengths(points)
        return [Pair(rows[i], None, float(lengths[i])) for i in self._starts(lengths)]

    def doubles(self, rows: list[Row], points: FloatArray) -> list[Pair]:
        """Rows against rows."""
        # A replaced row leaves the row count as it is: that sum cancels by itself.
        lengths = self.metric.between(points, points)
        return [
            Pair(rows[i], rows[j], float(lengths[i, j]))
            for i, j in (divmod(place, len(rows)) for place in self._starts(lengths.ravel()))
        ]

    def _starts(self, lengths: FloatArray) -> list[int]:
        longest = np.argsort(-lengths, kind="stable")[: _CLIMBS - 2]
        return [*longest.tolist(), *self.rng.integers(len(lengths), size=2).tolist()]

    def climb(self, pair: Pair) -> Pair:
        """Change one cell at a time, and keep what makes the distance grow."""
        for _ in range(_SWEEPS):
            before = pair.length
            for column in range(len(self.inventor.values)):
                for swapped in (False, True):
                    if pair.other is None and swapped:
                        continue
                    if self.sums.computed > self.left:
                        return pair
                    pair = self._step(pair, column, swapped=swapped)
            if pair.length <= before * _GROWTH:
                break
        return pair

    def _step(self, pair: Pair, column: int, *, swapped: bool) -> Pair:
        one, other = (pair.other, pair.one) if swapped else (pair.one, pair.other)
        assert one is not None
        rows = self.inventor.changed(one, column)
        points = self.sums([*rows, *([] if other is None else [other])])
        if other is not None:
            points = points[:-1] - points[-1]
        lengths = self.metric.lengths(points)
        self.tried += len(rows)
        best = int(np.argmax(lengths))
        if lengths[best] <= pair.length * _GROWTH:
            return pair
        new = rows[best]
        found = (other, new) if swapped and other is not None else (new, other)
        return Pair(*found, float(lengths[best]))
