r"""From (epsilon, delta) to the rho of zero-concentrated differential privacy, and back.

A mechanism is rho-zCDP if, for neighbours and every order ``a > 1``, the Rényi divergence of its
outputs is at most ``a rho`` (Bun and Steinke 2016). Losses add up, also where a later mechanism is
chosen by the results of earlier ones: the whole algebra of a budget that is spent in rounds.

rho-zCDP implies (epsilon, delta)-DP for every ``a > 1`` with

``delta = exp((a - 1)(a rho - epsilon)) / (a - 1) * (1 - 1/a)^a``

(Canonne, Kamath, Steinke 2020, proposition 12). Proof: for the privacy loss Y the smallest delta is
``E[max(0, 1 - exp(epsilon - Y))]``; for every ``y``, ``max(0, 1 - exp(-y)) <= c exp((a - 1) y)``
with ``c = max_y (1 - exp(-y)) exp(-(a - 1) y) = (1 - 1/a)^a / (a - 1)``, attained at
``exp(-y) = (a - 1) / a``; put ``y = Y - epsilon`` and bound ``E[exp((a - 1) Y)]``, which is
``exp((a - 1) D_a)``, by ``exp((a - 1) a rho)``.

Every order gives a valid delta, so that a search that stops early is merely not the tightest. The
logarithm of delta is convex in ``a``: its derivative ``(2a - 1) rho - epsilon + log(1 - 1/a)``
increases. It imports nothing but the standard library, for environments that have nothing else.
"""

from __future__ import annotations

import math

_LARGEST = 1e8
"""No larger order is tried; at budgets of use the best is far below it."""


def log_delta(rho: float, epsilon: float) -> float:
    """Logarithm of a delta, at most 0, at which rho-zCDP implies (epsilon, delta)-DP.

    Examples
    --------
    >>> round(log_delta(0.0149730577, 1.0), 5) == round(math.log(1e-9), 5)
    True
    """
    low, high = math.log(1e-9), math.log(_LARGEST)  # of a - 1
    for _ in range(100):
        middle = (low + high) / 2
        above = math.exp(middle)
        slope = (2 * above + 1) * rho - epsilon - math.log1p(1 / above)
        low, high = (low, middle) if slope > 0 else (middle, high)
    above = math.exp(high)
    bound = above * ((above + 1) * rho - epsilon) - math.log(above)
    return min(0.0, bound - (above + 1) * math.log1p(1 / above))


def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho that the conversion allows: rho-zCDP implies (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon
        Above 0, finite.
    delta
        In (0, 1).

    Raises
    ------
    ValueError
        If either is outside.

    Examples
    --------
    >>> round(rho_of(1.0, 1e-9), 6)
    0.014973
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon: got {epsilon!r}, expected a finite number above 0.")
    if not 0 < delta < 1:
        raise ValueError(f"delta: got {delta!r}, expected a number between 0 and 1.")
    target = math.log(delta)
    low, high = 0.0, epsilon
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(middle, epsilon) <= target else (low, middle)
    return low
