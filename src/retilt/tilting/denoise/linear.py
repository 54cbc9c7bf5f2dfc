"""The linear program on a pool of rows, by HiGHS, and solved again from its basis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.denoise.generation import Step
from retilt.tilting.fold import Rows
from retilt.tilting.problem import Problem

_FEASIBLE = 1e-10
"""The smallest tolerance that HiGHS takes."""

_BASIC = 1e-9
"""Shares and scaled distances up to which a variable counts as zero when polishing."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Sum of the distances from the answers, in units of the noise.

    An answer beyond all values of its query counts as the nearest of them: the rest of its
    distance is the same for all weights, and would drown what is not.

    Attributes
    ----------
    answers
        (V,) so clipped.
    limits
        (V,) the largest multipliers: one over the deviations.
    centre, reach
        (V,) ``(query - centre) / reach`` is in [-1, 1] on all rows.
    fixed
        Distances of the constant queries, and those clipped off.
    """

    answers: FloatArray
    limits: FloatArray
    centre: FloatArray
    reach: FloatArray
    fixed: float

    @classmethod
    def of(cls, problem: Problem, rows: Rows) -> Linear:
        """Over the varying queries, each with its own deviation."""
        low, high = _ranges(rows)
        limits = 1 / problem.covariance.deviations
        nearest = rows.constants.copy()
        nearest[rows.varying] = np.clip(problem.answers[rows.varying], low, high)
        fixed = float(np.sum(np.abs(nearest - problem.answers) * limits))
        centre, reach = (low + high) / 2, (high - low) / 2
        for cells in rows.cells:
            # Queries within cells are mostly zeros as they are, and stay so.
            largest = np.maximum(-low[cells.place], high[cells.place])
            centre[cells.place], reach[cells.place] = 0.0, largest
        # An offset can round a query's whole variation away.
        reach[reach == 0] = 1.0
        return cls(nearest[rows.varying], limits[rows.varying], centre, reach, fixed)

    def start(self, means: FloatArray) -> FloatArray:
        """A subgradient at the means."""
        result: FloatArray = np.sign(means - self.answers) * self.limits
        return result

    def solve(self, pool: FloatArray) -> Step | None:
        """The linear program over a pool, its solution computed afresh from its basis.

        HiGHS ends within absolute tolerances; which variables are zero says more than that.
        """
        costs = self.limits * self.reach
        top = float(costs.max())
        matrix = (pool - self.centre[:, None]) / self.reach[:, None]
        target = (self.answers - self.centre) / self.reach
        solved = _program(matrix, target, costs / top)
        if solved is None:
            return None
        shares, multipliers = _polished(matrix, target, costs / top, *solved)
        return Step(shares, np.clip(multipliers * top / self.reach, -self.limits, self.limits))

    def value(self, means: FloatArray) -> float:
        """Objective at the means."""
        return float(np.sum(np.abs(means - self.answers) * self.limits))

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """The dual objective."""
        return max(0.0, least - float(multipliers @ self.answers))


def _ranges(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """(V,) bounds of each varying query on the rows, from those of the columns."""
    size = int(np.count_nonzero(rows.varying))
    low, high = np.empty(size), np.empty(size)
    for part in rows.parts:
        low[part.place], high[part.place] = part.bounds()
    return low, high


def _program(
    matrix: FloatArray, target: FloatArray, costs: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """(m,) shares and (V,) multipliers of min costs . |matrix @ shares - target|; None if failed.

    Each distance is the sum of an excess and a shortfall, each zero or more.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, eye_array, hstack

    size, count = matrix.shape
    eye = eye_array(size + 1, size)
    result = linprog(
        np.concatenate([np.zeros(count), costs, costs]),
        A_eq=hstack([csc_array(np.vstack([matrix, np.ones(count)])), eye, -eye], format="csc"),
        b_eq=np.append(target, 1.0),
        method="highs-ds",
        options={
            "presolve": False,
            "primal_feasibility_tolerance": _FEASIBLE,
            "dual_feasibility_tolerance": _FEASIBLE,
        },
    )
    if result.x is None:
        return None
    shares = np.maximum(result.x[:count], 0.0)
    return shares / shares.sum(), -np.asarray(result.eqlin.marginals)[:size]


def _polished(
    matrix: FloatArray,
    target: FloatArray,
    costs: FloatArray,
    shares: FloatArray,
    multipliers: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Shares and multipliers from the equations of the basis, where that is better.

    The rows with a share score equally, and the queries that are met exactly are met exactly.
    """
    basis = shares > _BASIC
    errors = matrix @ shares - target
    met = np.abs(errors) <= _BASIC
    system = np.vstack([matrix[np.ix_(met, basis)], np.ones(np.count_nonzero(basis))])

    def value(candidate: FloatArray) -> float:
        return float(costs @ np.abs(matrix @ candidate - target))

    def bound(candidate: FloatArray) -> float:
        clipped = np.clip(candidate, -costs, costs)
        return float((clipped @ matrix).min() - clipped @ target)

    exact = np.zeros(shares.size)
    exact[basis] = np.linalg.lstsq(system, np.append(target[met], 1.0))[0]
    exact = np.maximum(exact, 0.0)
    # Nothing is left only if the equations contradict each other; the value will tell.
    exact /= exact.sum() or 1.0
    signs = np.where(met, 0.0, np.sign(errors) * costs)
    level = np.linalg.lstsq(system.T, -(signs @ matrix)[basis])[0]
    signs[met] = level[:-1]
    return min(shares, exact, key=value), max(multipliers, signs, key=bound)
