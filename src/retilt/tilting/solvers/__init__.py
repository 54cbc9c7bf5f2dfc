"""Solvers of the dual, behind one driver loop.

A solver knows three things: how to begin (``init``), how to go on (``step``), and when to end
(``verdict``). The loop and its iteration limit are here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar

from retilt.measures.base import FloatArray
from retilt.tilting.reduction import Reduced

StateT = TypeVar("StateT")


class Verdict(Enum):
    """How a solver ended."""

    CONVERGED = "converged"
    STALLED = "stalled"
    LIMIT = "limit"
    UNBOUNDED = "unbounded"


class Solver(Protocol[StateT]):
    """Minimiser of the dual at one trade-off."""

    def init(self, reduced: Reduced, eta: float, start: FloatArray | StateT) -> StateT:
        """First state, at (V,) multipliers or from the state of another trade-off."""
        ...

    def step(self, reduced: Reduced, eta: float, state: StateT) -> StateT:
        """Next state."""
        ...

    def verdict(self, reduced: Reduced, eta: float, state: StateT) -> Verdict | None:
        """Why to end here, or None to go on."""
        ...


def drive(
    solver: Solver[StateT],
    reduced: Reduced,
    eta: float,
    start: FloatArray | StateT,
    *,
    limit: int,
    tell: Callable[[StateT], object] | None = None,
) -> tuple[StateT, Verdict]:
    """Step until the solver ends or ``limit`` steps are done; the last state and why it ended.

    ``tell`` is called with the state after every step.
    """
    state = solver.init(reduced, eta, start)
    for _ in range(limit):
        verdict = solver.verdict(reduced, eta, state)
        if verdict is not None:
            return state, verdict
        state = solver.step(reduced, eta, state)
        if tell is not None:
            tell(state)
    return state, solver.verdict(reduced, eta, state) or Verdict.LIMIT
