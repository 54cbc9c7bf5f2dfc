"""How far a weight may go: caps and floors as shares of a row's base weight.

Survey statisticians bound the factor by which calibration multiplies a design weight (Deville and
Särndal 1992, the bounds of the logit and truncated linear methods), and so do we: with L and U
and base weights :math:`b_i` every weight lies between :math:`L b_i` and :math:`U b_i`. The base
weights themselves always do, whatever they are, so no bounds of this kind are without a solution;
and rows with equal queries have equal factors, so that they can still be merged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retilt._input import short
from retilt.exceptions import InputError, InternalError
from retilt.measures.base import FloatArray

LEAST_ROOM = 1e-6
"""How far the bounds must be from 1, where nothing could move."""

_LARGEST_CAP = 1e60

_MARGIN = 1e-14
"""Relative, how far inside the bounds the solver stays: what rounding does afterwards is less."""


@dataclass(frozen=True, slots=True)
class Bounds:
    r"""Least and largest ratio of a weight to its base weight.

    The weights are :math:`w_i = b_i \min(U_i, \max(L_i, e^{o_i + s_i - \nu}))` with scores s of the
    multipliers and the :math:`\nu` at which they sum to 1. A user's bounds are two numbers,
    and the offset o is 0; arrays come up where other weights take the place of the base weights
    (see :meth:`moved`).

    Attributes
    ----------
    lower
        L, from 0 to 1; a number, or (N,) numbers.
    upper
        U, at least 1; may be infinite.
    offset
        o, how far beyond its bound a row's exponent is at no multipliers.
    """

    lower: FloatArray | float = 0.0
    upper: FloatArray | float = np.inf
    offset: FloatArray | float = 0.0

    @classmethod
    def of(cls, min_weight: float | None, max_weight: float | None) -> Bounds | None:
        """A user's bounds, None if there are none.

        Raises
        ------
        InputError
            If one is no number, or leaves no room: ``min_weight`` must be from 0 to 0.999999,
            ``max_weight`` at least 1.000001.

        Examples
        --------
        >>> Bounds.of(None, 5)
        Bounds(lower=0.0, upper=5.0, offset=0.0)
        """
        if min_weight is None and max_weight is None:
            return None
        lower = 0.0 if min_weight is None else _number("min_weight", min_weight, _LOWER)
        upper = np.inf if max_weight is None else _number("max_weight", max_weight, _UPPER)
        if not 0 <= lower <= 1 - LEAST_ROOM:
            raise InputError(f"min_weight: got {short(min_weight)}, expected {_LOWER}.")
        if not (upper == np.inf and max_weight is None) and not (
            1 + LEAST_ROOM <= upper <= _LARGEST_CAP
        ):
            raise InputError(f"max_weight: got {short(max_weight)}, expected {_UPPER}.")
        return cls(lower, upper)

    def inside(self) -> tuple[FloatArray | float, FloatArray | float]:
        """The bounds that a solver keeps, a few roundings inside of these."""
        return self.lower * (1 + _MARGIN), self.upper * (1 - _MARGIN)

    def at(self, rows: NDArray[np.intp] | None) -> Bounds:
        """The bounds of some rows; None for all."""
        if rows is None:
            return self
        parts = (self.lower, self.upper, self.offset)
        return Bounds(*(part[rows] if isinstance(part, np.ndarray) else part for part in parts))

    def merged(self, groups: NDArray[np.intp] | None, size: int) -> Bounds:
        """The bounds of merged rows, whose members' bounds are alike.

        Parameters
        ----------
        groups
            (rows,) number of the merged row that each belongs to, or None if none was merged.
        size
            Number of merged rows.
        """
        if groups is None:
            return self
        found = []
        for part in (self.lower, self.upper, self.offset):
            if isinstance(part, np.ndarray):
                own = np.empty(size)
                own[groups] = part
                part = own
            found.append(part)
        return Bounds(*found)

    def moved(self, ratios: FloatArray, exponents: FloatArray, free: NDArray[np.bool_]) -> Bounds:
        r"""The same bounds where weights within them take the place of the base weights.

        With :math:`r_i = \min(U_i, \max(L_i, e^{x_i}))` and new base weights :math:`b_i r_i` the
        bounds become :math:`L_i / r_i` and :math:`U_i / r_i`, and the offset
        :math:`x_i - \log r_i`, which is 0 where the row is at no bound.

        Parameters
        ----------
        ratios
            (N,) r, positive.
        exponents
            (N,) x.
        free
            (N,) which rows are at no bound; what is left of their offset is rounding.
        """
        offset = np.where(free, 0.0, exponents - np.log(ratios))
        with np.errstate(over="ignore"):  # beyond the largest number there is no cap
            upper = self.upper / ratios
        return Bounds(self.lower / ratios, upper, offset)

    def hold(self, weights: FloatArray, base: FloatArray) -> bool:
        """Whether (N,) weights are within the bounds of (N,) base weights of the same sum."""
        used = base > 0  # no cap times nothing is not a number
        if np.any(weights[~used] != 0):
            return False
        part, weights, base = self.at(np.flatnonzero(used)), weights[used], base[used]
        return bool(np.all(weights >= part.lower * base) and np.all(weights <= part.upper * base))

    def check(self, weights: FloatArray, base: FloatArray) -> None:
        """Refuse to go on with weights that are not within the bounds.

        Raises
        ------
        InternalError
            One is not: a fault of the solver's.
        """
        if not self.hold(weights, base):
            raise InternalError(
                "weights: the solver's do not keep the bounds that were asked for (max_weight, "
                "min_weight). Please report this; without the bounds the fit can be had."
            )

    def at_bounds(self, weights: FloatArray, base: FloatArray) -> tuple[int, int]:
        """How many rows are at a lower bound above 0, and how many at the upper one."""
        lower, upper = self.inside()
        used, near = (base > 0) & (weights > 0), 10 * _MARGIN
        low = (weights <= lower * (1 + near) * base) & used
        with np.errstate(invalid="ignore"):  # a row without weight that has no cap
            high = (weights >= (upper * (1 - near)) * base) & used
        return int(np.count_nonzero(low)), int(np.count_nonzero(high))


_LOWER = "a number from 0 to 0.999999 (times a row's base weight), or None"
_UPPER = "a number from 1.000001 to 1e60 (times a row's base weight), or None"


def _number(name: str, value: object, allowed: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise InputError(f"{name}: got {short(value)}, expected {allowed}.")
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf
