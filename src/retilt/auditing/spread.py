"""The noise as such: as wide as the plan says, and drawn anew for each sum and each time.

A bound on what neighbours give away has little power where the claim is small: there even noise
that is much too narrow hides a row well. How wide the noise is shows in the draws themselves, at
every claim alike. With S the sum of m squares (Gaussian) or of m absolute values (Laplace) in
units of the plan's scale, S/2 or S follows a gamma distribution of shape m/2 or m, times the
true scale over the plan's (squared for Gaussian noise).

Noise that several sums share cancels in their difference. After the noise's own distribution
function and the inverse of the normal one, independent draws are normal, so the square of the
correlation of two sums is Beta(1/2, (n - 1)/2), and the part of all squares that lies in the
direction of the plain sum over K sums is Beta(n/2, n(K - 1)/2). Both laws are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from retilt.auditing.distance import Metric
from retilt.measures.base import FloatArray
from retilt.pipeline import noisy

LEVEL = 1e-6
"""Probability at which each kind of check fails by chance."""

KINDS = 5
"""Kinds of checks: scales, single sums, pairs of sums, all sums together, successive draws."""

_PAIRED = 1_000
"""Sums of which all pairs are compared; of more an evenly spaced part."""

_CALL = 30
"""What drawing another scale costs, in numbers of one scale."""

_COSTS = 200_000
"""What is spent on calls in ``measure``'s own shape, in numbers drawn: a few seconds."""

_LEAST_CALLS = 10
_DRAWS_PER_CALL = 20
_BLOCK = 2**20
"""Numbers held at once."""

_FAR = 2**70
"""Sums to which noise is added lie this far on both sides of 0: beyond 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What draws of the noise show.

    Attributes
    ----------
    draws
        How often the noise of all the sums was drawn.
    low, high
        Bounds of the noise's scale as part of the plan's, all sums together.
    faults
        What is wrong beyond chance, in words.
    """

    draws: int
    low: float
    high: float
    faults: tuple[str, ...]


@dataclass
class Tally:
    """Adds up what the checks need, block by block.

    Attributes
    ----------
    scales
        (K,) what the plan says, of the sums that are drawn.
    places
        (K,) their numbers among all the plan's sums, from 0.
    norm
        2 for Gaussian noise, 1 for Laplace.
    draws
        How often the noise was drawn so far.
    """

    scales: Sequence[float]
    places: Sequence[int]
    norm: int
    draws: int = 0
    _sizes: FloatArray = field(init=False)
    _products: FloatArray = field(init=False)
    _plain: float = 0.0
    _every: float = 0.0
    _successive: FloatArray = field(init=False)
    _doubled: int = 0

    def __post_init__(self) -> None:
        self._sizes = np.zeros(len(self.scales))
        self._products = np.zeros((len(self._paired), len(self._paired)))
        self._successive = np.zeros(3)

    @classmethod
    def of(cls, metric: Metric, places: Sequence[int] | None = None) -> Tally:
        """Of a plan's sums at ``places``, or of all."""
        scales = metric.plan.noise.scales
        places = range(len(scales)) if places is None else places
        return cls([scales[k] for k in places], places, metric.norm)

    @cached_property
    def _paired(self) -> list[int]:
        width = len(self.scales)
        return [int(k) for k in np.linspace(0, width - 1, min(width, _PAIRED))]

    def add(self, noise: FloatArray) -> None:
        """Count (n, K) draws, in units of the plan's scales."""
        self.draws += len(noise)
        self._sizes += (np.abs(noise) ** self.norm).sum(axis=0)
        scores = noise if self.norm == 2 else _normal_scores(noise)
        some = scores[:, self._paired]
        self._products += some.T @ some
        self._plain += float((scores.sum(axis=1) ** 2).sum()) / len(self.scales)
        self._every += float((scores**2).sum())
        one, other = scores[: len(scores) // 2 * 2].reshape(-1, 2, scores.shape[1]).swapaxes(0, 1)
        self._successive += [(one * other).sum(), (one**2).sum(), (other**2).sum()]
        self._doubled += one.size

    def result(self) -> Spread:
        """What was found."""
        low, high = self._limits(self._sizes.sum(), self.draws * len(self.scales), LEVEL)
        checks = (self._narrow_scale, self._narrow_sum, self._pair, self._together, self._again)
        faults = tuple(f for check in checks if (f := check()) is not None)
        return Spread(self.draws, float(low), float(high), faults)

    def _limits(
        self, sizes: ArrayLike, counts: ArrayLike, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds of true scales as parts of the plan's."""
        from scipy.special import gammainccinv, gammaincinv

        shape = np.asarray(counts) / self.norm
        found = np.asarray(sizes) / self.norm
        low, high = (found / f(shape, level) for f in (gammainccinv, gammaincinv))
        return low ** (1 / self.norm), high ** (1 / self.norm)

    def _narrow_scale(self) -> str | None:
        scales, which = np.unique(self.scales, return_inverse=True)
        sums = np.bincount(which)
        sizes = np.bincount(which, weights=self._sizes)
        _, high = self._limits(sizes, sums * self.draws, LEVEL / len(scales))
        worst = int(np.argmin(high))
        if high[worst] >= 1:
            return None
        return (
            f"where the plan's scale is {scales[worst]:,.0f} ({sums[worst]:,} sums) the noise is "
            f"at most {high[worst]:.2%} as wide"
        )

    def _narrow_sum(self) -> str | None:
        _, high = self._limits(self._sizes, self.draws, LEVEL / len(self.scales))
        worst = int(np.argmin(high))
        if high[worst] >= 1:
            return None
        number = self.places[worst] + 1
        return f"the noise of sum {number:,} is at most {high[worst]:.2%} as wide as the plan says"

    def _pair(self) -> str | None:
        count = len(self._paired)
        if count < 2:
            return None
        ends = np.sqrt(self._products.diagonal())
        # Of a sum without any noise nothing can be said here; it is found to be narrow.
        ends = np.where(ends > 0, ends, np.inf)
        correlations = np.triu(self._products / np.outer(ends, ends), 1)
        i, j = np.unravel_index(np.argmax(np.abs(correlations)), correlations.shape)
        found = float(correlations[i, j])
        if not _correlated(found, self.draws, LEVEL / (count * (count - 1) / 2)):
            return None
        one, other = (self.places[self._paired[k]] + 1 for k in (i, j))
        return f"sums {one:,} and {other:,} share noise (correlation {found:.3f})"

    def _together(self) -> str | None:
        from scipy.special import betainc

        width = len(self.scales)
        if width < 2 or not self._every:
            return None
        part = min(1.0, self._plain / self._every)
        shapes = self.draws / 2, self.draws * (width - 1) / 2
        tails = betainc(*shapes, part), betainc(*shapes[::-1], 1 - part)
        if min(tails) >= LEVEL / 2:
            return None
        return (
            f"the noise of the sums hangs together: that of all, added up, has {width * part:.3f} "
            "times the variance of independent noise"
        )

    def _again(self) -> str | None:
        product, one, other = self._successive
        if not (one and other):
            return None
        found = float(product / math.sqrt(one * other))
        if not _correlated(found, self._doubled, LEVEL):
            return None
        return f"noise comes back in the next draw (correlation {found:.3f})"


def _correlated(correlation: float, count: int, level: float) -> bool:
    """Whether ``count`` pairs of independent normal numbers are so correlated too rarely."""
    from scipy.special import betainc

    if count < 2:
        return False
    rest = max(0.0, 1 - correlation**2)
    return bool(betainc((count - 1) / 2, 0.5, rest) < level)


def _normal_scores(noise: FloatArray) -> FloatArray:
    """Laplace numbers of scale 1 as normal ones, by their ranks in the whole distribution."""
    from scipy.special import ndtri_exp

    scores: FloatArray = np.sign(noise) * -ndtri_exp(-np.abs(noise) - math.log(2))
    return scores


def as_measured(metric: Metric, *, draws: int, on_step: Callable[[], object]) -> Spread:
    """Check the noise of all sums as ``measure`` makes it: all of one release in one call.

    ``draws`` is how often the neighbours' noise is drawn; this is done less often, for each call
    costs more. The noise is added to integers of any size and taken off again.
    """
    noise = metric.plan.noise
    width = len(noise.scales)
    cost = _CALL * len(set(noise.scales)) + width
    calls = min(draws // _DRAWS_PER_CALL, max(_LEAST_CALLS, _COSTS // cost))
    tally = Tally.of(metric)
    exact = [_FAR * (k % 3 - 1) for k in range(width)]
    rows: list[list[int]] = []
    for call in range(1, calls + 1):
        rows.append([v - e for v, e in zip(noisy(exact, noise), exact, strict=True)])
        if call == calls or (len(rows) % 2 == 0 and len(rows) * width >= _BLOCK):
            tally.add(np.array(rows, dtype=np.float64) / np.array(noise.scales))
            rows = []
            on_step()
    return tally.result()
