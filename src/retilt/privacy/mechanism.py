"""The noise. The only module that imports OpenDP.

OpenDP's samplers are exact (no floating-point leak) and draw from the operating system's
randomness; there is no seed. Noise is drawn on a vector of zeros and added in Python integers
by the caller: OpenDP's own 64-bit addition saturates without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
