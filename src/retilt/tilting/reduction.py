"""Take the queries that can't move out of a problem, exactly.

A query that is constant on the support has an error that no weights change. With independent
noise it is irrelevant to the weights; with shared noise it tells something about the other
answers' noise. Write C for the constant queries, V for the varying ones and e_C for the constant
errors. Minimising the dual over the multipliers of C leaves a problem of the same form over V with

* answers a_V + S_VC S_CC^-1 e_C (what is known of their noise taken off), and
* covariance S_VV - S_VC S_CC^-1 S_CV (what remains unknown),

and the full misfit is the reduced one plus e_C' S_CC^-1 e_C. Wide marginals with many cells
that no synthetic row holds thus cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Mask
from retilt.tilting.problem import Covariance, Problem

MAX_DENSE = 3000
"""Most varying queries whose covariance is a matrix: the work on it grows with the cube."""

MAX_VARYING = 20_000
"""Most varying queries that the solver without that matrix takes."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A problem over the varying queries of some rows.

    Attributes
    ----------
    rows
        The rows to fold over.
    answers, covariance
        Of the V varying queries, given the constant ones' errors.
    varying_factor
        (V, R) the shared noise of the varying queries before that.
    fixed_errors, fixed_covariance
        Of the constant queries.
    fixed_misfit
        Squared whitened length of the measured ones' errors.
    measured, exact
        (V,) of the varying queries, as in the problem.
    fixed_exact
        Of the constant queries.
    count
        Number of measured queries, the constant ones included.
    """

    rows: Rows
    answers: FloatArray
    covariance: Covariance
    varying_factor: FloatArray
    fixed_errors: FloatArray
    fixed_covariance: Covariance
    fixed_misfit: float
    measured: Mask
    exact: Mask
    fixed_exact: Mask
    count: int

    def noise(self, eta: float) -> Covariance:
        """Covariance of the answers at a trade-off: times ``eta``, exact ones' are the same."""
        return self.covariance.at(eta, self.exact)

    def lift(self, multipliers: FloatArray, eta: float) -> FloatArray:
        """(K,) multipliers of the whole problem from the (V,) ones at trade-off ``eta``."""
        result: FloatArray = np.zeros(self.rows.varying.size)
        result[self.rows.varying] = multipliers
        if 0 < eta < np.inf and self.fixed_errors.size:
            fixed = self.fixed_covariance.at(eta, self.fixed_exact)
            shared = fixed.factor @ (self.varying_factor.T @ multipliers)
            result[~self.rows.varying] = fixed.solve(self.fixed_errors / eta - shared)
        return result

    def misfit(self, means: FloatArray) -> float:
        """Squared whitened residual of the measured queries, at (V,) means."""
        # Only measured answers share noise, so the others' errors can be taken out.
        errors = np.where(self.measured, means - self.answers, 0.0)
        return self.fixed_misfit + self.covariance.quadratic_inverse(errors)


def check_size(rows: Rows, limit: int = MAX_VARYING) -> None:
    """Refuse more varying queries than a solver takes.

    Raises
    ------
    InputError
        If more than ``limit`` queries vary over the rows.
    """
    count = int(np.count_nonzero(rows.varying))
    if count > limit:
        dense = " by the paper's method or denoised" if limit == MAX_DENSE else ""
        raise InputError(
            f"measures: {count:,} queries vary over the synthetic rows, at most {limit:,} "
            f"can be fitted together{dense}. Ask for fewer measures, or for coarser ones (fewer "
            "columns in a marginal, fewer bins)."
        )


def reduce(problem: Problem, rows: Rows, answers: FloatArray) -> Reduced:
    """Condition a problem on the queries that are constant on the rows.

    Parameters
    ----------
    problem, rows
        The problem, and its rows or a sample of them.
    answers
        (K,) the problem's answers, or a sample's shifted ones.

    Raises
    ------
    InputError
        If more than 20,000 queries vary.
    """
    check_size(rows)
    varying = rows.varying
    errors = rows.constants[~varying] - answers[~varying]
    fixed = problem.covariance.select(~varying)
    covariance = problem.covariance.select(varying)
    factor = covariance.factor
    told = np.where(problem.measured[~varying], fixed.solve(errors), 0.0)
    if factor.shape[1]:
        root = np.linalg.cholesky(fixed.capacitance())
        covariance = Covariance(covariance.variances, np.linalg.solve(root, factor.T).T)
    return Reduced(
        rows=rows,
        answers=answers[varying] + factor @ (fixed.factor.T @ told),
        covariance=covariance,
        varying_factor=factor,
        fixed_errors=errors,
        fixed_covariance=fixed,
        fixed_misfit=max(0.0, float(errors @ told)),
        measured=problem.measured[varying],
        exact=problem.exact[varying],
        fixed_exact=problem.exact[~varying],
        count=int(np.count_nonzero(problem.measured)),
    )
