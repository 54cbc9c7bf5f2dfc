"""Newton's method by conjugate gradients, for more queries than their covariance has room for.

The Hessian is never formed. One pass over the rows multiplies it with a vector: score the rows
with the vector, then take the queries' means under weights times centred scores. The system
H + eta S is preconditioned (see ``preconditioner.py``). Its trace is estimated from a few random
vectors (Hutchinson), less what is known of it; the vectors are the same at every point of a path,
so that the points' errors are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.newton import QUADRATIC, State, state_at
from retilt.tilting.solvers.preconditioner import CG_STEPS, Keeper
from retilt.tilting.solvers.search import halved

_FORCING = 0.1
"""Largest residual of a step's system, relative, in the norm of the preconditioner."""

_TIGHT = 1e-8
"""And the smallest."""

_AMPLE = 0.1
"""Share of the error that may be left in the last step, of what is left in all."""

_NEAR = 1e-6
"""Decrement below which another preconditioner would be drawn from the same weights."""

_SHORT = 1e-2
"""Decrement up to which a step is taken as it is."""

_LONGEST = 4.0

_FLAT = 0.25
"""Share of the slope at which a line's minimum is near enough."""

_PROBES = 6
_PROBED = 12_000
"""Queries that the random vectors have together, so that many queries need fewer vectors."""

_PROBE_RESIDUAL = 1e-2
"""The error of u'A^-1 u is as the square of this: conjugate gradients are a Galerkin method."""

_PROBE_SHARE = 1e-3
"""Share of the measured queries to which a trace is worked out."""

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


def conjugate_gradients(
    times: Callable[[FloatArray], FloatArray],
    solve: Callable[[FloatArray], FloatArray],
    right: FloatArray,
    residual: float,
    limit: int = CG_STEPS,
) -> tuple[FloatArray, int]:
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
    limit
        Most products with the matrix.

    Returns
    -------
    tuple
        The solution, and how many products it took.
    """
    x: FloatArray = np.zeros_like(right)
    rest = right.copy()
    ahead = solve(rest)
    direction = ahead.copy()
    square = float(rest @ ahead)
    goal = residual**2 * square
    for step in range(limit):
        if square <= goal or square <= 0:
            return x, step
        image = times(direction)
        curvature = float(direction @ image)
        if curvature <= 0:
            # Rounding: the direction is one in which nothing varies.
            return x, step + 1
        x += (square / curvature) * direction
        rest -= (square / curvature) * image
        ahead = solve(rest)
        last, square = square, float(rest @ ahead)
        direction *= square / last
        direction += ahead
    return x, limit


@dataclass(frozen=True, slots=True)
class NewtonCG:
    """Inexact Newton; ends when the duality gap is at most ``tolerance`` or at rounding.

    Parameters
    ----------
    tolerance
        Duality gap to reach, in nats; without noise its estimate g' B^-1 g / 2 by the
        preconditioner.
    keeper
        Makes and keeps the preconditioner, of this one problem.
    """

    tolerance: float
    keeper: Keeper = field(default_factory=Keeper)

    def init(self, reduced: Reduced, eta: float, start: FloatArray | State) -> State:
        """Start at multipliers, or at another trade-off's state."""
        if isinstance(start, State):
            return state_at(reduced, eta, start.multipliers, start.fold)
        return state_at(reduced, eta, start, reduced.rows.fold(start))

    def step(self, reduced: Reduced, eta: float, state: State) -> State:
        """One step, halved until the dual falls enough."""
        ahead = self.keeper.at(reduced, state.fold, eta)
        own = math.sqrt(max(0.0, float(state.gradient @ ahead.solve(state.gradient))))
        residual = max(_TIGHT, min(_FORCING, own, state.forcing or _FORCING))
        if state.forcing > _TIGHT and 0 < state.gap < math.inf:
            # Close to the end no more than what is asked for.
            needed = _AMPLE * math.sqrt(self.tolerance / state.gap)
            residual = max(residual, min(_FORCING, needed))
        limit = self.keeper.limit(reduced, near=state.decrement < _NEAR)
        solved, steps = conjugate_gradients(
            system_times(reduced, state.fold, eta), ahead.solve, state.gradient, residual, limit
        )
        self.keeper.tell(steps)
        direction = -solved
        if -float(direction @ state.gradient) > _SHORT and not reduced.rows.bounded:
            direction *= best_length(reduced, eta, state, direction)
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
        gap = trial.gap
        if eta == 0:
            gap = max(0.0, float(trial.gradient @ ahead.solve(trial.gradient))) / 2
        slow = length == 1.0 and decrement < QUADRATIC and gap > state.gap / 4
        last = slow and residual <= _TIGHT
        if last and gap > state.gap:
            return replace(state, decrement=decrement, stuck=True)
        forcing = _TIGHT if slow else _FORCING
        return replace(trial, gap=gap, decrement=decrement, forcing=forcing, stuck=last)

    def verdict(self, reduced: Reduced, eta: float, state: State) -> Verdict | None:
        """Converged by the gap or at rounding; stalled where no step helps."""
        if state.gap <= self.tolerance:
            return Verdict.CONVERGED
        if eta == 0 and state.value < reduced.rows.least_dual:
            return Verdict.UNBOUNDED
        if state.stuck:
            left = state.decrement if eta > 0 else max(state.decrement, state.gap)
            return Verdict.CONVERGED if left < QUADRATIC else Verdict.STALLED
        return None


def best_length(reduced: Reduced, eta: float, state: State, direction: FloatArray) -> float:
    """Where along a (V,) direction, up to four times as far, the dual is about smallest.

    The rows' scores of the direction settle that: one pass over the queries for all lengths.
    """
    from scipy.optimize import brentq

    scores = reduced.rows.scores(direction)
    scores -= state.fold.weights @ scores
    with np.errstate(divide="ignore"):
        logarithms = np.log(state.fold.weights)
    start = float(state.gradient @ direction)
    curvature = eta * float(direction @ reduced.noise(eta).times(direction))

    def slope(length: float) -> float:
        exponents = logarithms - length * scores
        weights = np.exp(exponents - exponents.max())
        return start + length * curvature - float(weights @ scores / weights.sum())

    far = 1.0
    while slope(far) < _FLAT * start and far < _LONGEST:
        far *= 2
    if slope(far) <= -_FLAT * start:
        return far
    return float(brentq(slope, 0.0, far, xtol=1e-3, rtol=1e-2))


def system_times(reduced: Reduced, fold: Fold, eta: float) -> Callable[[FloatArray], FloatArray]:
    """H + eta S as a map of (V,) vectors."""
    noise = reduced.noise(eta)
    moving, share = reduced.rows.moving(fold)
    return lambda x: share * hessian_times(reduced, moving, x) + eta * noise.times(x)


def estimated_parameters(
    reduced: Reduced, fold: Fold, eta: float, keeper: Keeper | None = None
) -> float:
    """tr[H (H + eta S)^-1] over the measured queries, estimated to a few per cent.

    It is M - eta tr[S A^-1] with M measured queries. Random vectors u with covariance S estimate
    u'A^-1 u. Where the preconditioner's own trace is known, only the difference of u'A^-1 u and
    u'B^-1 u is left to them.
    """
    keeper = keeper or Keeper()
    noise = reduced.noise(eta)
    ahead = keeper.at(reduced, fold, eta)
    variances = np.where(reduced.measured, noise.variances, 0.0)
    known = ahead.trace(noise, variances)
    generator = np.random.default_rng(_PROBE_SEED)
    count = float(np.count_nonzero(reduced.measured))
    probes = min(_PROBES, max(2, int(_PROBED / max(1.0, count))))
    rest = 0.0
    for _ in range(probes):
        signs = generator.choice([-1.0, 1.0], size=variances.size + noise.factor.shape[1])
        probe = np.sqrt(variances) * signs[: variances.size]
        probe += noise.factor @ signs[variances.size :]
        rough = float(probe @ ahead.solve(probe))
        solved, steps = conjugate_gradients(
            system_times(reduced, fold, eta),
            ahead.solve,
            probe,
            max(_PROBE_RESIDUAL, math.sqrt(_PROBE_SHARE * count / max(eta * rough, 1e-300))),
        )
        keeper.tell(steps)
        rest += float(probe @ solved)
        if known is not None:
            rest -= rough
    return min(max(count - eta * ((known or 0.0) + rest / probes), 0.0), count)
