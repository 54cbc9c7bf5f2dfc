"""Damped Newton with the exact Hessian, used again as long as it serves well.

The system is scaled to a unit diagonal before it is factorised, so that neither the queries' nor
the multipliers' units matter. A Hessian costs several times as much as a gradient, so one is
kept, updated by what the steps show of the curvature, while full steps with it still shrink the
gap to a third.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.search import halved

_PACE = 0.3
"""A full step that leaves more of the gap asks for a new Hessian, which costs 5 to 20 gradients."""

_DEPENDENT = 1e-12
"""Share of its variance that others leave of a query that is one of theirs but for rounding."""

_CONTRADICTION = 1e-6
"""Error that is more than rounding, in deviations of its query over the rows."""

_TELLING = 1e-16
"""Decrement below which the change of the gradient is too near to rounding to learn from."""

QUADRATIC = 1e-8
"""Below this decrement Newton converges quadratically unless rounding stops it."""


def _unit_diagonal(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(V,) square roots of a matrix's diagonal, 1 for zeros, and the matrix in units of them."""
    diagonal = np.diagonal(matrix)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = matrix / scale
    scaled /= scale[:, None]
    return scale, scaled


@dataclass(frozen=True, slots=True)
class System:
    """A + ridge = L L' after scaling A = H + eta S to a unit diagonal."""

    scale: FloatArray
    lower: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> System:
        """Factorise a positive semidefinite matrix; a ridge is added only if it is needed."""
        from scipy.linalg import LinAlgError, cholesky

        scale, scaled = _unit_diagonal(matrix)
        ridge = 0.0
        while True:
            try:
                return cls(scale, cholesky(scaled, lower=True, check_finite=False))
            except LinAlgError:
                # Collinear queries at a small eta. The ridge only bends the step's direction.
                grown = max(1e-14, 100 * ridge)
                scaled[np.diag_indices_from(scaled)] += grown - ridge
                ridge = grown

    def solve(self, x: FloatArray) -> FloatArray:
        """The matrix's inverse times a (V,) vector."""
        from scipy.linalg import cho_solve

        scaled = cho_solve((self.lower, True), x / self.scale, check_finite=False)
        result: FloatArray = scaled / self.scale
        return result

    def root_inverse(self) -> FloatArray:
        """(V, V) lower triangular R with R' R the matrix's inverse."""
        from scipy.linalg.lapack import dtrtri

        root, _ = dtrtri(self.lower, lower=1)
        result: FloatArray = root / self.scale
        return result


@dataclass(frozen=True, slots=True)
class Pivoted:
    """A Hessian without noise, which collinear queries make singular: P'HP = L L' by pivots.

    A step moves the multipliers of as many queries as are independent, and leaves the others.

    Attributes
    ----------
    scale
        (V,) square roots of the Hessian's diagonal.
    order
        (V,) the queries, the r independent ones first.
    lower
        (V, r) L of the Hessian after scaling to a unit diagonal.
    """

    scale: FloatArray
    order: NDArray[np.intp]
    lower: FloatArray

    @classmethod
    def of(cls, hessian: FloatArray) -> Pivoted:
        """Of a positive semidefinite matrix."""
        from scipy.linalg.lapack import dpstrf

        scale, scaled = _unit_diagonal(hessian)
        factor, order, rank, _ = dpstrf(scaled, tol=_DEPENDENT, lower=1)
        return cls(scale, order.astype(np.intp) - 1, np.tril(factor)[:, :rank])

    def solve(self, x: FloatArray) -> FloatArray:
        """A generalised inverse times a (V,) vector."""
        from scipy.linalg import solve_triangular

        rank = self.lower.shape[1]
        own = solve_triangular(
            self.lower[:rank], self._along(x), lower=True, trans=1, check_finite=False
        )
        result: FloatArray = np.zeros(x.size)
        result[self.order[:rank]] = own
        return result / self.scale

    def missed(self, x: FloatArray) -> float:
        """Largest part of a (V,) vector that no step can make smaller, in units of the scale."""
        rest = (x / self.scale)[self.order] - self.lower @ self._along(x)
        return float(np.max(np.abs(rest), initial=0.0))

    def _along(self, x: FloatArray) -> FloatArray:
        from scipy.linalg import solve_triangular

        rank = self.lower.shape[1]
        own = (x / self.scale)[self.order[:rank]]
        found: FloatArray = solve_triangular(self.lower[:rank], own, lower=True, check_finite=False)
        return found


class Inverse(Protocol):
    """What stands for the inverse of a Hessian."""

    def solve(self, x: FloatArray) -> FloatArray:
        """The inverse times a (V,) vector."""
        ...


@dataclass(frozen=True, slots=True)
class Updated:
    """An inverse that has learnt from the steps taken with it (BFGS, by two loops).

    Attributes
    ----------
    first
        The inverse before any update.
    pairs
        (V,) steps s and changes y of the gradient along them, with s'y > 0.
    """

    first: Inverse
    pairs: tuple[tuple[FloatArray, FloatArray], ...]

    @classmethod
    def by(cls, inverse: Inverse, step: FloatArray, change: FloatArray) -> Inverse:
        """An inverse after one more step; the same where the step shows no curvature."""
        if not step @ change > 0:
            return inverse
        if isinstance(inverse, Updated):
            return cls(inverse.first, (*inverse.pairs, (step, change)))
        return cls(inverse, ((step, change),))

    def solve(self, x: FloatArray) -> FloatArray:
        """The inverse times a (V,) vector."""
        rest = x.copy()
        shares = []
        for step, change in reversed(self.pairs):
            shares.append(float(step @ rest) / float(step @ change))
            rest -= shares[-1] * change
        result = self.first.solve(rest)
        for (step, change), share in zip(self.pairs, reversed(shares), strict=True):
            result += (share - float(change @ result) / float(step @ change)) * step
        return result


@dataclass(frozen=True, slots=True)
class State:
    """Where the solver stands.

    Attributes
    ----------
    multipliers
        (V,).
    fold
        The pass over the rows at these multipliers.
    value
        The dual's value.
    gradient
        (V,) its gradient.
    hessian
        (V, V) covariance of the queries under the weights, or a recent one; None at the start.
    system
        Its inverse together with this trade-off's noise, if a step was taken with it.
    fresh
        Whether the Hessian is that of these multipliers.
    pace
        What the last step left of the gap, if it was a full one; of the solver with the Hessian.
    forcing
        Residual that the next step's system is held to, 0 before the first; of the solver by
        conjugate gradients.
    gap
        Duality gap; with ``eta`` = 0 half of g' H^-1 g, with the Hessian at hand.
    decrement
        g' A^-1 g of the step that led here.
    stuck
        Whether that step gained nothing any more.
    """

    multipliers: FloatArray
    fold: Fold
    value: float
    gradient: FloatArray
    hessian: FloatArray | None
    system: Inverse | None
    fresh: bool
    pace: float
    forcing: float
    gap: float
    decrement: float
    stuck: bool


def regularised(reduced: Reduced, hessian: FloatArray, eta: float) -> FloatArray:
    """(V, V) Hessian of the dual: H + eta S."""
    noise = reduced.noise(eta)
    if noise.factor.shape[1]:
        return hessian + eta * noise.dense()
    result: FloatArray = hessian.copy()
    result[np.diag_indices_from(result)] += eta * noise.variances
    return result


def effective_parameters(reduced: Reduced, hessian: FloatArray, eta: float) -> float:
    """How many answers the weights follow, between 0 and the number of measured ones.

    tr[H (H + eta S)^-1] over the measured queries.
    """
    size = float(np.count_nonzero(reduced.measured))
    root = System.of(regularised(reduced, hessian, eta)).root_inverse()
    noise = reduced.covariance
    # tr[S A^-1] for the two parts of S, as sums of squares.
    variances = np.where(reduced.measured, noise.variances, 0.0)
    shrunk = float(variances @ np.einsum("ij,ij->j", root, root))
    shrunk += float(np.sum((root @ noise.factor) ** 2))
    return min(max(size - eta * shrunk, 0.0), size)


@dataclass(frozen=True, slots=True)
class Newton:
    """Damped Newton; ends when the duality gap is at most ``tolerance`` or at rounding.

    Parameters
    ----------
    tolerance
        Duality gap to reach, in nats.
    """

    tolerance: float

    def init(self, reduced: Reduced, eta: float, start: FloatArray | State) -> State:
        """Start at multipliers, or at another trade-off's state (its Hessian is kept)."""
        if isinstance(start, State):
            there = state_at(reduced, eta, start.multipliers, start.fold)
            return replace(there, hessian=start.hessian, fresh=start.fresh)
        return state_at(reduced, eta, start, reduced.rows.fold(start))

    def step(self, reduced: Reduced, eta: float, state: State) -> State:
        """One Newton step, halved until the dual falls enough."""
        if state.hessian is None or state.pace > _PACE:
            state = with_hessian(reduced, state)
        assert state.hessian is not None
        system = state.system or _system(reduced, state.hessian, eta)
        direction = -system.solve(state.gradient)
        decrement = max(0.0, float(-(direction @ state.gradient)))
        if eta == 0:
            state = replace(state, gap=decrement / 2)
        found = halved(
            reduced,
            state,
            direction,
            decrement,
            lambda x: state_at(reduced, eta, x, reduced.rows.fold(x)),
        )
        if found is None:
            return _unmoved(state, decrement)
        trial, length = found
        if decrement > _TELLING:
            change = trial.gradient - state.gradient
            system = Updated.by(system, trial.multipliers - state.multipliers, change)
        gap = trial.gap
        if eta == 0:
            gap = max(0.0, float(trial.gradient @ system.solve(trial.gradient))) / 2
        # In the quadratic regime a full step must shrink the gap; if not, it is all rounding.
        slow = length == 1.0 and decrement < QUADRATIC and gap > state.gap / 4
        if slow and gap > state.gap:
            return _unmoved(state, decrement)
        return replace(
            trial,
            hessian=state.hessian,
            system=system,
            pace=gap / state.gap if length == 1.0 and state.gap > 0 else np.inf,
            gap=gap,
            decrement=decrement,
            stuck=slow and state.fresh,
        )

    def verdict(self, reduced: Reduced, eta: float, state: State) -> Verdict | None:
        """Converged by the gap or at rounding; stalled where no step helps.

        Without noise, collinear queries whose answers contradict each other have no optimum:
        the multipliers would run away for ever.
        """
        if (state.gap <= self.tolerance or state.stuck) and _missed(state) > _CONTRADICTION:
            return Verdict.UNBOUNDED
        if state.gap <= self.tolerance:
            return Verdict.CONVERGED
        if state.stuck:
            return Verdict.CONVERGED if state.decrement < QUADRATIC else Verdict.STALLED
        return None


def with_hessian(reduced: Reduced, state: State) -> State:
    """The state with the Hessian of its own multipliers."""
    if state.fresh:
        return state
    return replace(state, hessian=reduced.rows.covariance(state.fold), system=None, fresh=True)


def _system(reduced: Reduced, hessian: FloatArray, eta: float) -> Inverse:
    """Factors of the Hessian of the dual, which is singular only without noise."""
    return System.of(regularised(reduced, hessian, eta)) if eta > 0 else Pivoted.of(hessian)


def _missed(state: State) -> float:
    """Largest error that no step can make smaller, in deviations of its query over the rows."""
    system = state.system.first if isinstance(state.system, Updated) else state.system
    return system.missed(state.gradient) if isinstance(system, Pivoted) else 0.0


def _unmoved(state: State, decrement: float) -> State:
    """No step was worth taking: with an old Hessian try a new one, else end."""
    return replace(state, decrement=decrement, stuck=state.fresh, pace=np.inf)


def state_at(reduced: Reduced, eta: float, multipliers: FloatArray, fold: Fold) -> State:
    """The state at (V,) multipliers and the fold there, nothing known of its Hessian."""
    noise = reduced.noise(eta)
    curved = eta * noise.times(multipliers)
    gradient = curved - (fold.means - reduced.answers)
    value = fold.log_normaliser + float(multipliers @ (reduced.answers + curved / 2))
    gap = noise.quadratic_inverse(gradient) / (2 * eta) if eta > 0 else np.inf
    return State(
        multipliers=multipliers,
        fold=fold,
        value=value,
        gradient=gradient,
        hessian=None,
        system=None,
        fresh=False,
        pace=0.0,
        forcing=0.0,
        gap=gap,
        decrement=np.inf,
        stuck=False,
    )
