r"""The paper's dual solved exactly: proximal Newton, for tolerances in a box.

.. math::
   \min_\lambda \; \log \sum_i b_i e^{-\lambda \cdot (q_i - a)} + \sum_k \gamma_k |\lambda_k|

is the dual of the KL projection onto the weights with :math:`|q_k(w) - a_k| \le \gamma_k`. Each
step minimises the second-order model of the smooth part plus the L1 term, and is halved until
the dual falls enough (Lee, Sun and Saunders 2014). The model is a lasso in the K multipliers
alone; no row is looked at for it.

If no weights at all lie in the box the dual has no minimum. That is seen, and proved, by its
value: for weights in the box :math:`KL(w \| b) \le -\log \min_i b_i`, so by weak duality a
dual below :math:`\log \min_i b_i` proves that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold
from retilt.tilting.reduction import Reduced
from retilt.tilting.solution import box_residuals
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.newton import System
from retilt.tilting.solvers.search import halved

_ROUNDING = 1e-10
"""Decrement below which a step that gains nothing is at the optimum up to rounding."""

_RIDGE = 1e-14
_EXCESS = 1e-12
_SYSTEMS = 50


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
        The dual's value, L1 term included.
    residual
        Largest violation of the optimality conditions, in deviations of the answers' noise.
    decrement
        What the model of the last step promised to gain; infinite at the start.
    stuck
        Whether no step gains anything any more.
    """

    multipliers: FloatArray
    fold: Fold
    value: float
    residual: float
    decrement: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class ProximalNewton:
    """Proximal Newton; ends when the optimality conditions hold to ``precision``.

    Parameters
    ----------
    tolerances
        (V,) gamma, zero or more.
    precision
        In deviations of the answers' noise.
    """

    tolerances: FloatArray
    precision: float

    def init(self, reduced: Reduced, eta: float, start: FloatArray | State) -> State:
        """At multipliers, or at a state of other tolerances."""
        if isinstance(start, State):
            return self._at(reduced, start.multipliers, start.fold)
        return self._at(reduced, start, reduced.rows.fold(start))

    def step(self, reduced: Reduced, eta: float, state: State) -> State:
        """One step, halved until the dual falls enough."""
        hessian = reduced.rows.covariance(state.fold)
        gradient = reduced.answers - state.fold.means
        goal = lasso(
            hessian, hessian @ state.multipliers - gradient, self.tolerances, state.multipliers
        )
        direction = goal - state.multipliers
        promised = (
            float(gradient @ direction) + self._penalty(goal) - self._penalty(state.multipliers)
        )
        decrement = max(0.0, -promised)
        found = halved(
            reduced,
            state,
            direction,
            decrement,
            lambda x: self._at(reduced, x, reduced.rows.fold(x)),
        )
        if found is None:
            return replace(state, decrement=decrement, stuck=True)
        trial, _ = found
        slow = decrement < _ROUNDING and trial.residual > state.residual / 2
        if slow and trial.residual >= state.residual:
            return replace(state, decrement=decrement, stuck=True)
        return replace(trial, decrement=decrement, stuck=slow)

    def verdict(self, reduced: Reduced, eta: float, state: State) -> Verdict | None:
        """Converged by the optimality conditions; unbounded where the box holds no weights."""
        if state.residual <= self.precision:
            return Verdict.CONVERGED
        if state.value < reduced.rows.least_dual:
            return Verdict.UNBOUNDED
        if state.stuck:
            return Verdict.CONVERGED if state.decrement < _ROUNDING else Verdict.STALLED
        return None

    def _penalty(self, multipliers: FloatArray) -> float:
        return float(self.tolerances @ np.abs(multipliers))

    def _at(self, reduced: Reduced, multipliers: FloatArray, fold: Fold) -> State:
        value = fold.log_normaliser + float(multipliers @ reduced.answers)
        errors = fold.means - reduced.answers
        violated = box_residuals(errors, multipliers, self.tolerances)
        units = violated / reduced.covariance.deviations
        return State(
            multipliers=multipliers,
            fold=fold,
            value=value + self._penalty(multipliers),
            residual=float(units.max(initial=0.0)),
            decrement=np.inf,
            stuck=False,
        )


def lasso(
    hessian: FloatArray, linear: FloatArray, tolerances: FloatArray, start: FloatArray
) -> FloatArray:
    r"""(K,) minimiser of x'Hx / 2 - linear.x + sum gamma_k |x_k|, by an active set.

    With the signs of the nonzero coordinates held, the minimiser solves a linear system. Go
    towards it until a coordinate would change its sign, and leave that one at zero; once there,
    let in the coordinates that violate their conditions; until none does. All of them are let
    in at once as long as the objective falls, and then one at a time, the worst first, which
    makes it fall every time, so that no set comes twice. Started at the last step's signs it
    takes one or two systems. Coordinate descent would need a number of sweeps that grows with
    the condition of H, which is 1e4 and more for moments, and never ends exactly.

    Parameters
    ----------
    hessian
        (K, K) positive semidefinite.
    linear, tolerances
        (K,).
    start
        (K,) a point to start from.
    """
    diagonal = np.diagonal(hessian)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    matrix = hessian / scale / scale[:, None]
    # For collinear queries: it only bends the step, or makes an unbounded model's step finite.
    matrix[np.diag_indices_from(matrix)] += _RIDGE * max(1, scale.size)
    r, gamma, x = linear / scale, tolerances / scale, start * scale
    free = gamma == 0
    signs = np.sign(x)
    active = free | (signs != 0)
    together, lowest = True, np.inf
    for _ in range(_SYSTEMS + 4 * x.size):
        goal = np.zeros_like(x)
        pull = r - gamma * signs
        goal[active] = System.of(matrix[np.ix_(active, active)]).solve(pull[active])
        turned = active & ~free & (goal * signs < 0)
        if np.any(turned & (x == 0)):
            # Let in with others, and not wanted beside them.
            out = turned & (x == 0)
            signs[out], active[out] = 0.0, False
            continue
        if np.any(turned):
            shares = np.where(turned, x / np.where(turned, x - goal, 1.0), np.inf)
            first = int(np.argmin(shares))
            x = x + shares[first] * (goal - x)
            x[first], signs[first], active[first] = 0.0, 0.0, False
            continue
        x = goal
        pull = r - matrix @ x
        excess = np.where(active, 0.0, np.abs(pull) - gamma)
        allowed = _EXCESS * (gamma + np.abs(r))
        if np.all(excess <= allowed):
            break
        value = float(x @ (matrix @ x / 2 - r) + gamma @ np.abs(x))
        together, lowest = together and value < lowest, min(value, lowest)
        enter = excess > allowed if together else np.arange(x.size) == np.argmax(excess - allowed)
        signs[enter], active[enter] = np.sign(pull[enter]), True
    return x / scale
