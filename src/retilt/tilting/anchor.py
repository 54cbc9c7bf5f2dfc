r"""Start from the weights that meet the exact answers, and nothing else.

Constraints hold along the whole path, so the path begins where they do: at the weights nearest to
the base weights among those that meet them. With the constraints' multipliers :math:`\mu` there,
the weights are new base weights :math:`b_i e^{-\mu \cdot q_i}`, and the exact answers' targets are
their means under these. That is the same problem: the square
:math:`\tau^2 (\mu + \lambda)^2 / 2` is only multiplied out.

A noisy answer to what the constraints settle is of no account, but pulls ever harder at them as
the trade-off falls. So the part of the noisy answers' errors that no weights can change is taken
out of what the fit goes towards. With U the combinations of measured queries that the exact ones
determine and e the errors at the start, :math:`a' = a + \Sigma U (U^T \Sigma U)^{-1} U^T e`: then
:math:`\|q - a\|^2 = \|q - a'\|^2 + const` in units of the noise, for all weights that meet the
constraints.

Constraints that no weights can meet, alone or together, are found here as well. They are left out,
those that miss by most first, until the others hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.bounded import BoundedRows, rows_of
from retilt.tilting.bounds import Bounds
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Mask
from retilt.tilting.problem import HELD, UNASKED, Covariance, Problem
from retilt.tilting.reduction import MAX_DENSE, reduce
from retilt.tilting.solvers.choice import method_for
from retilt.tilting.solvers.newton import System

_TRADE_OFFS = (1e8, 1e6, 1e4, 1e2, 1.0)
_ROUGH = 1e-3
_SETTLED = 1e-7
"""Share of its variance below which a combination of queries counts as settled by others."""

_GAP = 1e-20
_STEPS = 100
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Anchor:
    """A problem that starts where its constraints hold.

    Attributes
    ----------
    problem
        The same one with new base weights.
    aim
        (K,) answers to go towards: less what the constraints settle.
    multipliers
        (K,) of the original problem at those weights.
    released
        (K,) exact answers that are left out.
    nearest
        (K,) for those the means of the weights that come nearest to all exact answers together,
        by least squares in the queries' units; the answers for the others.
    """

    problem: Problem
    aim: FloatArray
    multipliers: FloatArray
    released: Mask
    nearest: FloatArray


def anchored(problem: Problem, aim: FloatArray, *, release: bool = True) -> Anchor:
    """The problem started from the weights that meet its exact answers, on the way to ``aim``.

    Without ``release`` none is left out: those that can't be met are met as nearly as can be, by
    least squares in the queries' units. That gathers the weights on a few rows unless
    they are bounded.
    """
    multipliers: FloatArray = np.zeros(problem.queries)
    released = np.zeros(problem.queries, dtype=np.bool_)
    if not np.any(problem.exact):
        return Anchor(problem, aim, multipliers, released, problem.answers)
    base, nearest, bounds = problem.base, problem.answers, problem.bounds
    held = problem.exact.copy()
    for last in (*([False] * _ROUNDS), True):
        if not np.any(held):
            multipliers[:], base, bounds = 0.0, problem.base, problem.bounds
            break
        part = problem.only(held)
        found, base, bounds = _meet(part)
        multipliers[:] = 0.0
        multipliers[held] = found
        if not np.any(released):
            nearest = problem.means(base)
        misses = np.abs(part.means(base) - part.answers) / part.units
        if misses.max() <= HELD or not release:
            break
        worst = misses > HELD if last else misses >= max(HELD, misses.max() / 2)
        released[np.flatnonzero(held)[worst]] = True
        held &= ~released
    left = without(problem, released)
    means = problem.means(base)
    targets = np.where(left.exact, means, problem.answers)
    left = replace(left, answers=targets, base=base, bounds=bounds)
    aim = aim.copy()
    aim[problem.measured] = _undetermined(left, means, aim)
    aim[left.exact] = means[left.exact]
    nearest = np.where(released, nearest, problem.answers)
    return Anchor(left, aim, multipliers, released, nearest)


def _undetermined(problem: Problem, means: FloatArray, aim: FloatArray) -> FloatArray:
    """Aims of the measured queries, without what the exact ones settle at ``means``."""
    from scipy.linalg import eigh

    towards = aim[problem.measured]
    rows = Rows.of(problem)
    measured, exact = problem.measured & rows.varying, problem.exact & rows.varying
    if not np.any(measured) or not np.any(exact) or np.count_nonzero(rows.varying) > MAX_DENSE:
        return towards
    fold = rows.fold(np.zeros(int(np.count_nonzero(rows.varying))))
    hessian = rows.covariance(fold)
    first, second = measured[rows.varying], exact[rows.varying]
    own = free(hessian, first, second, problem.covariance.variances[exact])
    scale = np.sqrt(np.diagonal(hessian)[first])
    # A query that can't move at all is settled by itself.
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = eigh(own / scale / scale[:, None])
    settled = vectors[:, values < _SETTLED] / scale[:, None]
    noise = problem.covariance.select(measured)
    spread = np.column_stack([noise.times(u) for u in settled.T]) if settled.size else settled
    errors = settled.T @ (means - aim)[measured]
    # By least squares: what is settled in several ways at once makes the matrix singular.
    towards[measured[problem.measured]] += spread @ np.linalg.lstsq(settled.T @ spread, errors)[0]
    return towards


def free(hessian: FloatArray, measured: Mask, exact: Mask, variances: FloatArray) -> FloatArray:
    """Covariance of the measured queries that is left where the exact ones are held.

    Parameters
    ----------
    hessian
        (V, V) covariance of all queries.
    measured, exact
        (V,) which is which.
    variances
        With which the exact ones are held.
    """
    result: FloatArray = hessian[np.ix_(measured, measured)]
    if np.any(exact):
        held = hessian[np.ix_(exact, exact)] + np.diag(variances)
        root = System.of(held).root_inverse() @ hessian[np.ix_(exact, measured)]
        result = result - root.T @ root
    return result


def _meet(problem: Problem) -> tuple[FloatArray, FloatArray, Bounds | None]:
    """(K,) multipliers of constraints, and (N,) weights; as near as can be if they can't be met.

    And the bounds, if there are any, for these weights as base weights.
    """
    # As noisy answers with the constraints' deviation, followed down to a trade-off of 1.
    soft = replace(problem, exact=~problem.exact)
    rows = rows_of(soft)
    reduced = reduce(soft, rows, soft.answers)
    start: FloatArray = np.zeros(reduced.answers.size)
    method = method_for(reduced)
    for eta in _TRADE_OFFS:
        gap = _GAP if eta == 1 else _ROUGH
        state, _ = method.solve(reduced, eta, start, gap, _STEPS)
        start = state.multipliers
    multipliers = reduced.lift(start, 1.0)
    if isinstance(rows, BoundedRows):
        return multipliers, *rows.moved(problem, state.fold)
    return multipliers, rows.expand(state.fold.weights, problem.rows), None


def without(problem: Problem, released: Mask) -> Problem:
    """The problem with some exact answers left out: with deviations that say nothing."""
    variances = problem.covariance.variances.copy()
    if np.any(released):
        variances[released] = (UNASKED * problem.units[released]) ** 2
    covariance = Covariance(variances, problem.covariance.factor)
    return replace(problem, covariance=covariance, exact=problem.exact & ~released)
