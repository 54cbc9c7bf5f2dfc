"""Lower bounds on what the noise gives away, from draws of the mechanism itself.

Two tables whose exact integers differ by d are told apart, as well as can be, by the likelihood
ratio of what is released. Both tables get the same noise, so one set of draws z stands for
both: the first table releases z, the second z + d. How often the ratio passes a threshold that
was fixed beforehand is counted; Clopper and Pearson's bounds turn counts into bounds of
probabilities, and those into a bound of what the noise gives away. Each bound fails by chance
once in ten thousand times, and a false alarm needs two to fail at once.

* Gaussian noise: the statistic ``sum d_k z_k / sigma_k**2``. A test of false positive rate
  alpha and false negative rate beta proves ``mu >= Phi^-1(1 - alpha) - Phi^-1(beta)``.
* Laplace noise: events S of the ratio prove ``epsilon >= log P(S | one) / P(S | other)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.auditing.distance import Metric
from retilt.measures.base import FloatArray
from retilt.privacy import mechanism

Counts: TypeAlias = NDArray[np.int64]

FAILURE = 1e-4
"""Probability at which a Clopper-Pearson bound fails."""

_SLICE = 2**16
"""Numbers drawn at a time."""

_OFFSETS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Where the thresholds for Gaussian noise lie, in its deviations around the middle."""

_PARTS = (1.0, 0.5, 0.0)
"""Where the thresholds for Laplace noise lie, as parts of the pair's distance."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound that draws prove.

    Attributes
    ----------
    value
        On mu (Gaussian noise) or epsilon (Laplace), at least 0.
    draws
        How often the noise was drawn.
    cells
        How many Clopper-Pearson bounds went into it.
    """

    value: float
    draws: int
    cells: int


def lower_bound(
    metric: Metric,
    change: Sequence[int],
    *,
    draws: int,
    on_step: Callable[[], object],
    seen: Callable[[FloatArray], object] = lambda _: None,
) -> Bound:
    """Lower bound on what tables give away whose exact integers differ by ``change``.

    Sums that don't differ tell nothing and are not drawn. ``seen`` is given the draws, block by
    block, in units of the noise's scale.
    """
    moved = [k for k, d in enumerate(change) if d]
    if not moved:
        return Bound(0.0, 0, 0)
    scales = [metric.plan.noise.scales[k] for k in moved]
    # As parts of the noise's scale, so that no square is beyond floats.
    shift = np.array([change[k] / s for k, s in zip(moved, scales, strict=True)])
    claim = metric.allowance.claim
    statistic = _Gaussian(shift, claim) if metric.norm == 2 else _Laplace(shift)
    counts = np.zeros(statistic.cells, dtype=np.int64)
    # As measure does, by the plan: whether that is the noise the budget needs is to be seen.
    laplace = metric.plan.noise.norm == 1
    draw = mechanism.discrete_laplace if laplace else mechanism.discrete_gaussian
    for count in _slices(draws, len(moved)):
        noise = np.array(draw(scales * count), dtype=np.float64).reshape(count, len(moved))
        noise /= np.array(scales)
        counts += statistic.count(noise)
        seen(noise)
        on_step()
    return Bound(max(0.0, statistic.bound(counts, draws)), draws, statistic.cells)


def _slices(draws: int, width: int) -> Iterator[int]:
    size = max(1, _SLICE // width)
    for start in range(0, draws, size):
        yield min(size, draws - start)


def at_most(count: int, draws: int) -> float:
    """Clopper and Pearson's upper bound of a probability."""
    from scipy.special import betaincinv

    if count == draws:
        return 1.0
    return float(betaincinv(count + 1, draws - count, 1 - FAILURE))


def at_least(count: int, draws: int) -> float:
    """Clopper and Pearson's lower bound of a probability."""
    return 1 - at_most(draws - count, draws)


@dataclass(frozen=True)
class _Gaussian:
    """Counts for Gaussian noise: false positives at each threshold, then false negatives."""

    shift: FloatArray
    claim: float

    @property
    def cells(self) -> int:
        """Number of counts."""
        return 2 * len(_OFFSETS)

    def count(self, noise: FloatArray) -> Counts:
        """How many of (n, K) draws pass each threshold, wrongly and rightly."""
        distance = math.sqrt(float((self.shift**2).sum()))
        # The claim sets the thresholds; what was drawn has no say in them.
        levels = self.claim / 2 + np.array(_OFFSETS)
        seen = (noise @ (self.shift / distance))[:, None]
        first, second = (seen > levels).sum(axis=0), (seen + distance <= levels).sum(axis=0)
        return np.concatenate([first, second])

    def bound(self, counts: Counts, draws: int) -> float:
        """The best bound on mu that the thresholds' error rates prove."""
        from scipy.special import ndtri

        first, second = np.split(counts, 2)
        return max(
            float(-ndtri(at_most(int(a), draws)) - ndtri(at_most(int(b), draws)))
            for a, b in zip(first, second, strict=True)
        )


@dataclass(frozen=True)
class _Laplace:
    """Counts for Laplace noise: how often the ratio speaks for one table, under each table.

    The law of the ratio is symmetrical: what it says for the second table under the second is
    what it says for the first under the first. Both are counted.
    """

    shift: FloatArray

    @property
    def cells(self) -> int:
        """Number of counts."""
        return 4 * len(_PARTS)

    def count(self, noise: FloatArray) -> Counts:
        """How many of (n, K) draws pass each threshold, under either table."""
        distance = float(np.abs(self.shift).sum())
        # The ratio reaches its largest value on a whole orthant: by a hair less, for rounding.
        levels = distance * np.array(_PARTS) - 1e-9 * max(1.0, distance)
        near, far, beyond = (
            np.abs(noise + i * self.shift).sum(axis=1)[:, None] for i in (0, 1, -1)
        )
        first, second = near - beyond, far - near  # for the second table, under first and second
        return np.concatenate(
            [
                (second >= levels).sum(axis=0),
                (first >= levels).sum(axis=0),
                (-first >= levels).sum(axis=0),
                (-second >= levels).sum(axis=0),
            ]
        )

    def bound(self, counts: Counts, draws: int) -> float:
        """The best bound on epsilon that the events' probabilities prove."""
        likely, unlikely, likely_too, unlikely_too = np.split(counts, 4)
        pairs = [*zip(likely, unlikely, strict=True), *zip(likely_too, unlikely_too, strict=True)]
        return max(_log_ratio(at_least(int(a), draws), at_most(int(b), draws)) for a, b in pairs)


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else 0.0
