r"""From a budget to noise: how far apart, in deviations, neighbours may lie.

For Gaussian noise everything hangs on ``mu = sup sqrt(sum_k (d_k / sigma_k)^2)``, the largest
distance between neighbouring tables' sums in units of the noise's deviations. This module
finds the largest ``mu`` that a budget allows.

* rho-zCDP: ``mu = sqrt(2 rho)``, exact for the discrete Gaussian (Canonne, Kamath, Steinke
  2020, theorem 14).
* (epsilon, delta): the analytic condition of Balle and Wang (2018), the paper's lemma. It is
  exact for *continuous* noise and false for discrete noise of a small scale, so a slack is
  taken off first: ``docs/mathematics.md``, section "Discrete noise", proves that the discrete
  mechanism is (epsilon, delta)-DP if the condition holds at
  ``(epsilon - a - b, (1 - tau) exp(-a) delta)``.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

from retilt.exceptions import PrivacyError

LEAST_DEVIATION = 10_000
"""Least noise deviation of every coordinate, in its own integer units.

At this size the slack between discrete and continuous noise is about 1e-7 of sigma.
"""

_TAIL_SHARE = 1e-6
"""tau: the part of delta that pays for the far tail of the rounded noise."""


def log_delta(mu: float, epsilon: float) -> float:
    r"""Logarithm of the smallest delta at which Gaussian noise is (epsilon, delta)-DP.

    ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`` (Balle and Wang 2018,
    theorem 8). With u, v = (eps/mu -+ mu/2)/sqrt(2) and ``v^2 - u^2 = eps`` both terms carry
    the factor ``exp(-u^2)/2``, which leaves ``erfcx(u) - erfcx(v)``: no cancellation of huge
    by tiny numbers, and the logarithm never underflows. Where mu^2 is far below eps the two
    are close together, so the difference is rounded up by their own rounding error: the
    result is never too small by it.
    """
    from scipy.special import erfcx, log_ndtr

    u = (epsilon / mu - mu / 2) / math.sqrt(2)
    v = (epsilon / mu + mu / 2) / math.sqrt(2)
    if u < -5:
        # erfcx(u) would overflow. Here delta is near 1, and leaving out the second term, which
        # is below 1e-11 of the first, rounds it up.
        return float(log_ndtr(-u * math.sqrt(2)))
    larger, smaller = float(erfcx(u)), float(erfcx(v))
    difference = larger - smaller + 16 * sys.float_info.epsilon * larger
    if difference <= 0:  # u is beyond 1e300, and so delta far below any float
        return -math.inf
    return -u * u - math.log(2) + math.log(difference)


def gaussian_distance(epsilon: float, delta: float) -> float:
    """The largest ``mu = Delta / sigma`` at which continuous Gaussian noise is (epsilon, delta)-DP.

    >>> round(1 / gaussian_distance(1.0, 1e-6), 5)
    4.22468
    """
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return log_delta(math.exp(log_mu), epsilon) - target

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low -= 2
    while excess(high) < 0:
        high += 2
    # Halving never leaves the bracket, even where the logarithm is minus infinity.
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    # log mu is good to a few units of its last place; step to the safe side.
    return math.exp(low) * (1 - 1e-12)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far apart neighbours may lie.

    Attributes
    ----------
    distance
        mu, for the discrete noise that is really drawn.
    continuous
        mu of the analytic condition for continuous noise; ``distance`` is smaller by the
        slack for discreteness.
    """

    distance: float
    continuous: float

    @property
    def slack(self) -> float:
        """Relative growth of sigma that pays for discreteness."""
        return self.continuous / self.distance - 1


def discretisation_slack(epsilon: float, delta: float, *, coordinates: int) -> tuple[float, float]:
    """``(a, b)`` of the statement in the module's docstring, at the least deviation allowed."""
    sigma = float(LEAST_DEVIATION)
    x = epsilon - math.log(_TAIL_SHARE) - math.log(delta)
    root = math.sqrt(coordinates)
    a = coordinates / (24 * sigma**2)
    b = (root * (1 + 1 / (2 * sigma)) + math.sqrt(2 * x)) ** 2 / (24 * sigma**2)
    b += 3 * coordinates * math.exp(-2 * math.pi**2 * sigma**2)
    return a, b


def calibrate_approx(epsilon: float, delta: float, *, coordinates: int) -> Calibration:
    """Distance allowed to the discrete Gaussian mechanism of K ``coordinates`` by (epsilon, delta).

    Every coordinate's deviation must be at least ``LEAST_DEVIATION`` of its integer units.

    Raises
    ------
    PrivacyError
        epsilon is so small that the slack uses it up.
    """
    a, b = discretisation_slack(epsilon, delta, coordinates=coordinates)
    left = epsilon - a - b
    if left < epsilon / 2:
        raise PrivacyError(
            f"epsilon: got {epsilon!r} for {coordinates:,} queries; the discreteness of the "
            f"noise alone costs {a + b:.2g}. Use a larger epsilon or fewer queries."
        )
    reduced = (1 - _TAIL_SHARE) * math.exp(-a) * delta
    return Calibration(
        distance=gaussian_distance(left, reduced),
        continuous=gaussian_distance(epsilon, delta),
    )


def calibrate_zcdp(rho: float) -> Calibration:
    """Distance allowed by rho-zCDP: ``sqrt(2 rho)``, exact for discrete noise.

    >>> calibrate_zcdp(0.5).distance
    1.0
    """
    distance = math.sqrt(min(2 * rho, sys.float_info.max))
    # Rounded down, so that mu**2 / 2 <= rho for the float and for the number it is written as.
    while Fraction(distance) ** 2 > 2 * min(Fraction(rho), Fraction(str(rho))):
        distance = math.nextafter(distance, 0)
    return Calibration(distance=distance, continuous=distance)
