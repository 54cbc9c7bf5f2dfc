"""The noise. The only module that imports OpenDP.

OpenDP's samplers are exact (no floating-point leak) and draw from the operating system's
randomness; there is no seed. Noise is drawn on a vector of zeros and added in Python integers
by the caller: OpenDP's own 64-bit addition saturates without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from retilt.exceptions import PrivacyError

MAX_SCALE = 2.0**56
"""Largest noise scale drawn: 2**63 is then 128 deviations away, beyond any real draw."""


def discrete_gaussian(deviations: Sequence[float]) -> list[int]:
    """Independent discrete Gaussian noise, one integer for each of (K,) ``deviations``."""
    # Not opendp.prelude: it imports scikit-learn where that is installed, which takes seconds.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    def mechanism(scale: float) -> Any:
        space = vector_domain(atom_domain(T="i64")), l2_distance(T=float)
        return make_gaussian(*space, scale=scale)

    return _draw(deviations, mechanism)


def discrete_laplace(scales: Sequence[float]) -> list[int]:
    """Independent discrete Laplace noise, one integer for each of (K,) ``scales``."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance

    def mechanism(scale: float) -> Any:
        space = vector_domain(atom_domain(T="i64")), l1_distance(T="i64")
        return make_laplace(*space, scale=scale)

    return _draw(scales, mechanism)


def noisy_max(scores: Sequence[int], *, scale: float, concentrated: bool) -> int:
    """The place of the highest of (B,) integer scores with noise, each its own.

    The noise is exponential, or Gumbel where ``concentrated``; its scale is :func:`max_scale`'s.
    Scores have to lie within 64 bits.
    """
    return int(_noisy_max(scale, concentrated=concentrated)(list(scores)))


def max_scale(count: int, sensitivity: int, loss: Fraction, *, concentrated: bool) -> float:
    """The least scale at which ``count`` calls of :func:`noisy_max` spend at most ``loss``.

    By OpenDP's own map of one call, and the sum: later scores may depend on earlier results.

    Parameters
    ----------
    count
        How many calls.
    sensitivity
        How far one unit of privacy moves any score.
    loss
        Epsilon of pure DP; rho of zCDP where ``concentrated``.

    Raises
    ------
    PrivacyError
        The scale is above the largest that is drawn.
    """

    def spent(scale: float) -> Fraction:
        found = float(_noisy_max(scale, concentrated=concentrated).map(sensitivity))
        return count * Fraction(found) if math.isfinite(found) else loss + 1

    low, high = 0.0, 1.0
    while spent(high) > loss:
        low, high = high, 2 * high
        if high > MAX_SCALE:
            raise PrivacyError(
                "select: at this budget the noise of the choice would be too large to draw. Use a "
                "larger epsilon (or rho), or a larger select_share."
            )
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if spent(middle) > loss else (low, middle)
    return high


def _noisy_max(scale: float, *, concentrated: bool) -> Any:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_max
    from opendp.measures import max_divergence, zero_concentrated_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    _check_scales([scale])
    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64")
    measure = zero_concentrated_divergence() if concentrated else max_divergence()
    return make_noisy_max(*space, measure, scale=scale)


def _draw(scales: Sequence[float], mechanism: Callable[[float], Any]) -> list[int]:
    """One call for each distinct scale."""
    from opendp.mod import enable_features

    enable_features("contrib")
    _check_scales(scales)
    places: dict[float, list[int]] = {}
    for place, scale in enumerate(scales):
        places.setdefault(float(scale), []).append(place)
    noise = [0] * len(scales)
    for scale, where in places.items():
        drawn = mechanism(scale)([0] * len(where))
        for place, value in zip(where, drawn, strict=True):
            noise[place] = int(value)
    return noise


def _check_scales(scales: Sequence[float]) -> None:
    """OpenDP checks neither NaN nor length; a bad scale must never reach it."""
    if not all(0 < s <= MAX_SCALE for s in scales):
        raise PrivacyError(
            "noise: a scale is not a number above 0, or above 2**56, where 64-bit noise could "
            "overflow. Use a larger epsilon (or rho)."
        )
