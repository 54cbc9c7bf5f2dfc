"""A floor of the effective sample size where no trade-off is left to keep it.

Along a path the trade-off keeps the floor. Exact answers know none, and a trade-off that is given
is one. There the weights are those of the smallest trade-off, or of the exact answers held as
loosely as it takes, that keep the floor: they go evenly towards all answers, and no row is
singled out. (A cap on the weights would keep it, too, but where answers are out of reach it
gathers the weights in two heaps, at the cap and at nothing, and comes less near.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from retilt.exceptions import InputError, InternalError
from retilt.measures.base import FloatArray
from retilt.tilting.problem import Problem
from retilt.tilting.solution import Solution

SLACK = 1e-9
"""Share of the floor that rounding may take off."""

_NEAR = 1.001
_STRIDE = 10.0
_FARTHEST = 1e30


def ess_of(weights: FloatArray) -> float:
    """Effective sample size of weights that sum to 1."""
    return float(1 / np.sum(weights**2))


def check_min_ess(min_ess: float | None, base_ess: float) -> None:
    """Refuse a floor that is no number, or that not even the base weights keep.

    Raises
    ------
    InputError
        ``min_ess`` is neither None nor a number from above 0 to ``base_ess``.
    """
    if min_ess is None:
        return
    if isinstance(min_ess, bool) or not isinstance(min_ess, (int, float, np.number)):
        raise InputError(f"min_ess: got {min_ess!r}, expected a positive number or None.")
    if not (0 < min_ess <= base_ess * (1 + SLACK)):
        raise InputError(
            f"min_ess: got {min_ess!r}, expected a positive number of at most {base_ess:.6g}, the "
            "effective sample size of the base weights."
        )


def loosened(ess: Callable[[float], float], min_ess: float) -> float:
    """The smallest factor above 1, to a thousandth, at which the floor is kept.

    Parameters
    ----------
    ess
        Effective sample size with trade-offs so many times as large; it rises towards that of
        the base weights. Asked some fifteen times.
    min_ess
        In rows.
    """

    def keeps(factor: float) -> bool:
        # No slack: this is where it can be had in full, but for the base weights' own.
        return ess(factor) >= min_ess * (1 - (SLACK if factor >= _FARTHEST else 0.0))

    low, high = 1.0, _STRIDE
    while not keeps(high) and high < _FARTHEST:
        low, high = high, _STRIDE * high
    while high > _NEAR * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def verified(solution: Solution, problem: Problem, min_ess: float | None) -> Solution:
    """The solution, once its weights are known to keep the bounds and the floor.

    Raises
    ------
    InternalError
        They do not: a fault of the solver's.
    """
    if problem.bounds is not None:
        problem.bounds.check(solution.weights, problem.base)
    if min_ess is not None and not solution.ess >= min_ess * (1 - SLACK):
        raise InternalError(
            f"weights: their effective sample size is under the floor (min_ess) of {min_ess!r} "
            "that was asked for. Please report this."
        )
    return solution
