"""Which solver follows a path: with the Hessian up to a thousand queries, without it beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold
from retilt.tilting.reduction import MAX_DENSE, Reduced
from retilt.tilting.solvers import Verdict, drive
from retilt.tilting.solvers.newton import Newton, State, effective_parameters, with_hessian
from retilt.tilting.solvers.newton_cg import NewtonCG, estimated_parameters, hessian_times
from retilt.tilting.solvers.preconditioner import Keeper

MOST_WITH_HESSIAN = 1000
"""Queries up to which a path has Hessians. Of more moments it is faster without, of cells as fast;
answers that are to be met exactly are, up to ``MAX_DENSE``, since nothing but the Hessian tells
contradictions among them from slow progress."""

WIDE_GAP = 1e-16
"""Nats, the smallest gap that is asked of the solver without a Hessian."""


class Method(Protocol):
    """A solver of the dual with what is asked of it along a path."""

    def solve(
        self, reduced: Reduced, eta: float, start: State | FloatArray, gap: float, limit: int
    ) -> tuple[State, Verdict]:
        """The optimum at a trade-off to a duality gap in nats, in so many steps."""
        ...

    def parameters(self, reduced: Reduced, state: State, eta: float) -> float:
        """Effective number of parameters at a solved trade-off."""
        ...

    def curvature(self, reduced: Reduced, fold: Fold) -> Callable[[FloatArray], FloatArray]:
        """The queries' covariance under a fold's weights, as a map of (V,) vectors."""
        ...


class Dense:
    """Newton with the Hessian as a matrix."""

    def solve(
        self, reduced: Reduced, eta: float, start: State | FloatArray, gap: float, limit: int
    ) -> tuple[State, Verdict]:
        """See :class:`Method`."""
        state, verdict = drive(Newton(gap), reduced, eta, start, limit=limit)
        return with_hessian(reduced, state), verdict

    def parameters(self, reduced: Reduced, state: State, eta: float) -> float:
        """See :class:`Method`."""
        hessian = with_hessian(reduced, state).hessian
        assert hessian is not None
        return effective_parameters(reduced, hessian, eta)

    def curvature(self, reduced: Reduced, fold: Fold) -> Callable[[FloatArray], FloatArray]:
        """See :class:`Method`."""
        hessian = reduced.rows.covariance(fold)
        return lambda x: np.asarray(hessian @ x, dtype=np.float64)


class Exact(Dense):
    """Newton for answers that are to be met exactly, where no trace is asked for."""

    def solve(
        self, reduced: Reduced, eta: float, start: State | FloatArray, gap: float, limit: int
    ) -> tuple[State, Verdict]:
        """See :class:`Method`."""
        return drive(Newton(gap), reduced, eta, start, limit=limit)


class Wide:
    """Newton by conjugate gradients; of one problem, whose preconditioner it keeps."""

    def __init__(self) -> None:
        self._keeper = Keeper()

    def solve(
        self, reduced: Reduced, eta: float, start: State | FloatArray, gap: float, limit: int
    ) -> tuple[State, Verdict]:
        """See :class:`Method`."""
        return drive(NewtonCG(max(gap, WIDE_GAP), self._keeper), reduced, eta, start, limit=limit)

    def parameters(self, reduced: Reduced, state: State, eta: float) -> float:
        """See :class:`Method`."""
        return estimated_parameters(reduced, state.fold, eta, self._keeper)

    def curvature(self, reduced: Reduced, fold: Fold) -> Callable[[FloatArray], FloatArray]:
        """See :class:`Method`."""
        moving, share = reduced.rows.moving(fold)
        return lambda x: share * hessian_times(reduced, moving, x)


def method_for(reduced: Reduced) -> Method:
    """The method for a problem of this size."""
    return Dense() if reduced.answers.size <= MOST_WITH_HESSIAN else Wide()


def method_without_noise(reduced: Reduced) -> Method:
    """The method for a trade-off of zero."""
    return Exact() if reduced.answers.size <= MAX_DENSE else Wide()
