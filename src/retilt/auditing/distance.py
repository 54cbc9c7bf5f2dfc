"""How far apart the releases of two tables lie, in units of the noise that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
import pyarrow as pa

from retilt.auditing.allowance import Allowance
from retilt.auditing.rows import Inventor, Row
from retilt.measures.base import FloatArray, IntArray, Reading
from retilt.privacy.plan import Plan


@dataclass(frozen=True)
class Metric:
    """Distances between releases of a plan.

    Attributes
    ----------
    plan
        The plan.
    """

    plan: Plan

    @property
    def norm(self) -> int:
        """2 for Gaussian noise (distances are squared), 1 for Laplace: what the budget needs."""
        return self.allowance.norm

    @cached_property
    def allowance(self) -> Allowance:
        """What the budget allows, worked out apart from the plan's noise."""
        return Allowance.of(self.plan.measuring)

    @cached_property
    def steps(self) -> FloatArray:
        """(K [+ 1],) what one unit of each sum is worth, in units of the noise."""
        noise = self.plan.noise
        return np.array([f / s for f, s in zip(noise.factors, noise.scales, strict=True)])

    def exact(self, change: Sequence[int]) -> Fraction:
        """Distance of two releases whose exact integers (factors included) differ by ``change``."""
        parts = zip(change, self.plan.noise.scales, strict=True)
        lengths = (Fraction(abs(d)) / Fraction(s) for d, s in parts)
        return sum((length**self.norm for length in lengths), Fraction(0))

    def share(self, change: Sequence[int]) -> Fraction:
        """Part of what is allowed; for Gaussian noise that of mu squared."""
        return self.exact(change) / self.allowance.distance

    def lengths(self, changes: FloatArray) -> FloatArray:
        """(n,) distances of (n, K [+ 1]) changes in units of the noise."""
        found: FloatArray = (np.abs(changes) ** self.norm).sum(axis=1)
        return found

    def between(self, one: FloatArray, other: FloatArray) -> FloatArray:
        """(n, m) distances between (n, K) and (m, K) releases."""
        from scipy.spatial.distance import cdist

        found: FloatArray = cdist(one, other, "sqeuclidean" if self.norm == 2 else "cityblock")
        return found


@dataclass
class RowSums:
    """What each invented row adds to a plan's sums, by the code that measures tables.

    Attributes
    ----------
    plan, inventor
        Of what, and where the rows' columns come from.
    computed
        Rows that were summed so far; rows that are encoded alike are summed once.
    """

    plan: Plan
    inventor: Inventor
    computed: int = 0
    _known: dict[bytes, FloatArray] = field(default_factory=dict)

    @cached_property
    def steps(self) -> FloatArray:
        """See :class:`Metric`."""
        return Metric(self.plan).steps

    def __call__(self, rows: Sequence[Row]) -> FloatArray:
        """(rows, K [+ 1]) sums over each row alone, in units of the noise."""
        table = {n: pa.chunked_array([c]) for n, c in self.inventor.table(rows).items()}
        reading = Reading(table.__getitem__)
        features = self.plan.queries.features
        encoded = {f: f.encode(reading, len(rows)) for f in features}
        every = np.stack([encoded[f] for f in features], axis=1)
        return np.stack([self._of(row.tobytes(), row) for row in np.ascontiguousarray(every)])

    def _of(self, key: bytes, row: IntArray) -> FloatArray:
        if key not in self._known:
            self.computed += 1
            one = {f: row[i : i + 1] for i, f in enumerate(self.plan.queries.features)}
            sums = self.plan.queries.sums(one)
            count = [1] if self.plan.counts_rows else []
            self._known[key] = np.array([*sums, *count], dtype=np.float64) * self.steps
        return self._known[key]
