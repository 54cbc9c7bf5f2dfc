"""The line search that Newton's steps share: halve until the dual falls enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.reduction import Reduced

_ARMIJO = 1e-4
_HALVINGS = 60


class Valued(Protocol):
    """A solver's state: (V,) multipliers and the dual's value there."""

    @property
    def multipliers(self) -> FloatArray:
        """Where it stands."""
        ...

    @property
    def value(self) -> float:
        """The dual's value."""
        ...


StateT = TypeVar("StateT", bound=Valued)


def halved(
    reduced: Reduced,
    state: StateT,
    direction: FloatArray,
    decrement: float,
    at: Callable[[FloatArray], StateT],
) -> tuple[StateT, float] | None:
    """Go along a direction as far as the dual falls by enough of what was promised.

    Parameters
    ----------
    reduced, state
        The problem and where to start.
    direction
        (V,) a full step.
    decrement
        What the full step promises to gain, up to a constant; zero or more.
    at
        The state at given (V,) multipliers.

    Returns
    -------
    tuple or None
        The new state and the length of the step, 1 for a full one; None if no length will do.
    """
    # What rounding alone can do to the difference of two values.
    scale = 1 + abs(state.value) + float(np.abs(state.multipliers) @ np.abs(reduced.answers))
    slack = 64 * np.finfo(float).eps * scale
    length = 1.0
    for _ in range(_HALVINGS):
        trial = at(state.multipliers + length * direction)
        if trial.value <= state.value - _ARMIJO * length * decrement + slack:
            return trial, length
        length /= 2
    return None
