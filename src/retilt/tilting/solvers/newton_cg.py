"""Newton's method by conjugate gradients, for more queries than their covariance has room for.

The Hessian is never formed. One pass over the rows multiplies it with a vector: score the rows
with the vector, then take the queries' means under weights times centred scores. The system
H + eta S is preconditioned by its blocks, one for each part of the queries, so that within a
marginal table nothing is left to iterate. Its trace is estimated from a few random vectors
(Hutchinson), the blocks' own trace taken as known; the vectors are the same at every point of a
path, so that the points' errors are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.newton import QUADRATIC, State, System, state_at
from retilt.tilting.solvers.search import halved

BLOCK = 500
"""Queries of a part up to which its covariance is the block of the preconditioner."""

_FORCING = 0.1
"""Largest residual of a step's system, relative, in the norm of the preconditioner."""

_TIGHT = 1e-8
"""And the smallest."""

_CG_STEPS = 1000

_PROBES = 6
_PROBE_RESIDUAL = 1e-2
_PROBE_SEED = 20_240_229


def hessian_times(reduced: Reduced, fold: Fold, vector: FloatArray) -> FloatArray:
    """(V,) covariance of the queries under a fold's weights times a (V,) vector."""
    scores = reduced.rows.scores(vector)
    scores -= fold.weights @ scores
    scores *= fold.weights
    # The centred scores' mean is zero but for rounding, which the queries' means would magnify.
    result: FloatArray = reduced.rows.means(scores)
    result -= fold.means * float(scores.sum())
    return result


@dataclass(frozen=True, slots=True)
class Blocks:
    """The preconditioner: the system's blocks, factorised, and its diagonal elsewhere.

    Attributes
    ----------
    blocks
        Where each block stands, and its factors.
    diagonal
        (V,) of the whole system.
    """

    blocks: tuple[tuple[slice, System], ...]
    diagonal: FloatArray

    @classmethod
    def of(cls, reduced: Reduced, fold: Fold, eta: float) -> Blocks:
        """From the queries' covariances within their parts, and the noise of their own."""
        noise = eta * reduced.noise(eta).variances
        diagonal = reduced.rows.variances(fold) + noise
        blocks = []
        for part in reduced.rows.cells:
            if part.size > BLOCK:
                continue
            matrix = part.covariance(fold.weights, fold.means[part.place])
            matrix[np.diag_indices_from(matrix)] += noise[part.place]
            blocks.append((part.place, System.of(matrix)))
        return cls(tuple(blocks), np.where(diagonal > 0, diagonal, 1.0))

    def solve(self, x: FloatArray) -> FloatArray:
        """The preconditioner's inverse times a (V,) vector."""
        result: FloatArray = x / self.diagonal
        for place, system in self.blocks:
            result[place] = system.solve(x[place])
        return result

    def inverse_diagonal(self) -> FloatArray:
        """(V,) diagonal of the preconditioner's inverse."""
        result: FloatArray = 1 / self.diagonal
        for place, system in self.blocks:
            result[place] = np.sum(system.root_inverse() ** 2, axis=0)
        return result


def conjugate_gradients(
    times: Callable[[FloatArray], FloatArray],
    solve: Callable[[FloatArray], FloatArray],
    right: FloatArray,
    residual: float,
) -> FloatArray:
    """Solve a positive definite system until its residual has shrunk to a share of itself.

    Parameters
    ----------
    times
        The matrix times a vector.
    solve
        The preconditioner's inverse times a vector.
    right
        The right-hand side.
    residual
        Share of the residual to stop at, in the norm of the preconditioner's inverse.
    """
    x: FloatArray = np.zeros_like(right)
    rest = right.copy()
    ahead = solve(rest)
    direction = ahead.copy()
    square = float(rest @ ahead)
    goal = residual**2 * square
    for _ in range(_CG_STEPS):
        if square <= goal or square <= 0:
            break
        image = times(direction)
        curvature = float(direction @ image)
        if curvature <= 0:
            # Rounding: the direction is one in which nothing varies.
            break
        x += (square / curvature) * direction
        rest -= (square / curvature) * image
        ahead = solve(rest)
        last, square = square, float(rest @ ahead)
        direction *= square / last
        direction += ahead
    return x


@dataclass(frozen=True, slots=True)
class NewtonCG:
    """Inexact Newton; ends when the duality gap is at most ``tolerance`` or at rounding.

    Only for a trade-off above zero.

    Parameters
    ----------
    tolerance
        Duality gap to reach, in nats.
    """

    tolerance: float

    def init(self, reduced: Reduced, eta: float, start: FloatArray | State) -> State:
        """Start at multipliers, or at another trade-off's state."""
        if isinstance(start, State):
            return state_at(reduced, eta, start.multipliers, start.fold)
        return state_at(reduced, eta, start, reduced.rows.fold(start))

    def step(self, reduced: Reduced, eta: float, state: State) -> State:
        """One step, halved until the dual falls enough."""
        noise = reduced.noise(eta)
        blocks = Blocks.of(reduced, state.fold, eta)
        # State.pace is the residual that the next step is held to.
        own = math.sqrt(max(0.0, float(state.gradient @ blocks.solve(state.gradient))))
        residual = max(_TIGHT, min(_FORCING, own, state.pace or _FORCING))
        direction = -conjugate_gradients(
            lambda x: hessian_times(reduced, state.fold, x) + eta * noise.times(x),
            blocks.solve,
            state.gradient,
            residual,
        )
        decrement = max(0.0, -float(direction @ state.gradient))
        found = halved(
            reduced,
            state,
            direction,
            decrement,
            lambda x: state_at(reduced, eta, x, reduced.rows.fold(x)),
        )
        if found is None:
            return replace(state, decrement=decrement, stuck=True)
        trial, length = found
        slow = length == 1.0 and decrement < QUADRATIC and trial.gap > state.gap / 4
        last = slow and residual <= _TIGHT
        if last and trial.gap > state.gap:
            return replace(state, decrement=decrement, stuck=True)
        pace = _TIGHT if slow else _FORCING
        return replace(trial, decrement=decrement, pace=pace, stuck=last)

    def verdict(self, reduced: Reduced, eta: float, state: State) -> Verdict | None:
        """Converged by the gap or at rounding; stalled where no step helps."""
        if state.gap <= self.tolerance:
            return Verdict.CONVERGED
        if state.stuck:
            return Verdict.CONVERGED if state.decrement < QUADRATIC else Verdict.STALLED
        return None


def estimated_parameters(reduced: Reduced, fold: Fold, eta: float) -> float:
    """tr[H (H + eta S)^-1] over the measured queries, estimated to a few per cent.

    It is M - eta tr[S A^-1] with M measured queries. The preconditioner's own trace is known;
    random vectors u with covariance S estimate the difference of u'A^-1 u and u'B^-1 u.
    """
    noise = reduced.noise(eta)
    blocks = Blocks.of(reduced, fold, eta)
    variances = np.where(reduced.measured, noise.variances, 0.0)
    known = float(variances @ blocks.inverse_diagonal())
    known += sum(float(f @ blocks.solve(f)) for f in noise.factor.T)
    generator = np.random.default_rng(_PROBE_SEED)
    rest = 0.0
    for _ in range(_PROBES):
        signs = generator.choice([-1.0, 1.0], size=variances.size + noise.factor.shape[1])
        probe = np.sqrt(variances) * signs[: variances.size]
        probe += noise.factor @ signs[variances.size :]
        solved = conjugate_gradients(
            lambda x: hessian_times(reduced, fold, x) + eta * noise.times(x),
            blocks.solve,
            probe,
            _PROBE_RESIDUAL,
        )
        rest += float(probe @ solved) - float(probe @ blocks.solve(probe))
    count = float(np.count_nonzero(reduced.measured))
    return min(max(count - eta * (known + rest / _PROBES), 0.0), count)
