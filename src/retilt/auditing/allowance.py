r"""What a budget allows, worked out a second time and by other means than the plan's noise.

An audit that asked the plan for its calibration would audit nothing: noise that is too narrow
because of a wrong calibration would be compared with that same calibration. So nothing here
comes from :mod:`retilt.privacy.accounting` or from the noise of a plan.

* epsilon: the L1 distance may be epsilon.
* rho-zCDP: ``mu**2 <= 2 rho``.
* (epsilon, delta): the largest mu of the condition of Balle and Wang (2018, theorem 8),
  ``Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) <= delta``, from SciPy's logarithm
  of the normal distribution function. The plan's noise is wider than that by a little, which
  pays for its being discrete.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from retilt.privacy.budget import ApproxDP, Budget, PureDP

_DIGITS = 1 - 1e-12
"""The condition is solved to fewer digits than floats have: mu is rounded down by this."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far apart a budget lets neighbours lie.

    Attributes
    ----------
    budget
        What must be kept.
    norm
        2 where the noise is Gaussian, 1 where it is Laplace.
    distance
        mu squared for Gaussian noise, epsilon for Laplace.
    """

    budget: Budget
    norm: int
    distance: Fraction

    @classmethod
    def of(cls, budget: Budget) -> Allowance:
        """Of a budget."""
        if isinstance(budget, PureDP):
            return cls(budget, 1, _smaller(budget.epsilon))
        if isinstance(budget, ApproxDP):
            return cls(budget, 2, Fraction(allowed_mu(budget.epsilon, budget.delta)) ** 2)
        return cls(budget, 2, 2 * _smaller(budget.rho))

    @property
    def claim(self) -> float:
        """The claim in words of the trade: mu for Gaussian noise, epsilon for Laplace."""
        return math.sqrt(self.distance) if self.norm == 2 else float(self.distance)

    def keeps(self, bound: float) -> bool:
        """Whether noise that gives away ``bound`` at least (mu or epsilon) can keep the budget."""
        if Fraction(bound) ** self.norm > self.distance:
            return False
        if not isinstance(self.budget, ApproxDP):
            return True
        return implied_epsilon(bound, self.budget.delta) <= self.budget.epsilon

    def implied_epsilon(self, mu: float) -> float | None:
        """For an (epsilon, delta) budget: the epsilon that ``mu`` implies at its delta."""
        if not isinstance(self.budget, ApproxDP):
            return None
        return implied_epsilon(mu, self.budget.delta)


def _smaller(value: float) -> Fraction:
    """Of a float and the number that it is written as."""
    return min(Fraction(value), Fraction(str(value)))


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Logarithm of the least delta at which noise of the distance ``mu`` is (epsilon, delta)-DP.

    >>> round(math.exp(gaussian_log_delta(1.0, 1.0)), 6)
    0.126937
    """
    from scipy.special import log_ndtr

    above = float(log_ndtr(mu / 2 - epsilon / mu))
    below = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if below >= above:  # equal but for rounding
        return -math.inf
    return above + math.log(-math.expm1(below - above))


def allowed_mu(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP; found by halving.

    >>> round(1 / allowed_mu(1.0, 1e-6), 5)
    4.22468
    """
    target = math.log(delta)
    low = high = 1.0
    while gaussian_log_delta(low, epsilon) > target:
        low /= 2
    while gaussian_log_delta(high, epsilon) <= target:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        fits = gaussian_log_delta(middle, epsilon) <= target
        low, high = (middle, high) if fits else (low, middle)
    return low * _DIGITS


def implied_epsilon(mu: float, delta: float) -> float:
    """The least epsilon at which noise of the distance ``mu`` is (epsilon, delta)-DP.

    >>> round(implied_epsilon(allowed_mu(1.0, 1e-6), 1e-6), 6)
    1.0
    """
    target = math.log(delta)
    if mu <= 0 or gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_log_delta(mu, high) > target:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        above = gaussian_log_delta(mu, middle) > target
        low, high = (middle, high) if above else (low, middle)
    return low
