"""What a fit returns: weights, and the proof that they are what was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.bounds import Bounds
from retilt.tilting.parts import Mask
from retilt.tilting.problem import EXACT, HELD, UNASKED, Covariance


class Status(Enum):
    """How a fit ended, with one sentence of advice.

    Examples
    --------
    >>> Status("converged").advice
    'The weights follow the answers as far as their noise allows.'
    """

    CONVERGED = "converged"
    FLOOR_REACHED = "floor_reached"
    INFEASIBLE_MEASURES = "infeasible_measures"
    ITERATION_LIMIT = "iteration_limit"

    @property
    def advice(self) -> str:
        """One sentence on what the status means and what to do."""
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "The weights follow the answers as far as their noise allows.",
    Status.FLOOR_REACHED: (
        "The fit stopped at the floor of the effective sample size before it had followed the "
        "answers as far as their noise allows: give more candidate rows from the generator, or "
        "lower min_ess."
    ),
    Status.INFEASIBLE_MEASURES: (
        "The synthetic rows cannot reach some of the answers, so the fit only went as far as it "
        "does no harm: give more candidate rows from the generator, declare bounds that fit the "
        "data, or leave out the measures that cannot be reached."
    ),
    Status.ITERATION_LIMIT: (
        "The solver stopped before its tolerance: treat the weights with care, and try fewer or "
        "coarser measures."
    ),
}


@dataclass(frozen=True, slots=True)
class PathPoint:
    """One trade-off on the path from the base weights to insistence.

    Attributes
    ----------
    eta
        Trade-off; infinite for the base weights.
    misfit
        Mean squared residual of the answers in units of their noise.
    sure
        Stein's unbiased estimate of the measures' total squared error in units of the noise.
        Its smallest value is optimistic: it says which point, not how good it is.
    ess
        Effective sample size of the weights.
    floor
        The smallest effective sample size allowed here.
    trace
        Effective number of parameters, 0 for the base weights.
    predicted_error
        Sum over the statistics asked for of the absolute distance between the tilted table's
        and the one that the answers give.
    rows
        Number of synthetic rows that the point was computed on (a sample's, if fewer than all).
    chosen
        Whether the returned weights are this point's.
    """

    eta: float
    misfit: float
    sure: float
    ess: float
    floor: float
    trace: float
    predicted_error: float
    rows: int
    chosen: bool = False

    @property
    def allowed(self) -> bool:
        """Whether the effective sample size is at or above the floor."""
        return self.eta == np.inf or self.ess >= self.floor * (1 - 1e-9)


@dataclass(frozen=True, slots=True)
class Solution:
    """Weights, their certificate, and how they were chosen.

    Attributes
    ----------
    eta
        Trade-off; infinite if the base weights were kept.
    multipliers
        (K,) lambda.
    weights
        (N,) zero or more, sum 1.
    ess
        Effective sample size 1 / sum(w**2).
    before, after
        (K,) query means under the base weights and under ``weights``, straight from the rows.
    insistent
        (K,) query means at the smallest trade-off visited: what the support can reach. For exact
        answers that were left out those of the weights nearest to all exact ones together.
    answers, covariance
        (K,) the noisy answers and their noise.
    aim
        (K,) what the weights were to meet: the answers, or the denoised ones.
    tolerance
        Gamma: how far from the aim every query may stay (the paper's method only).
    trace
        Effective number of parameters.
    sure
        Stein's unbiased risk estimate at the chosen point.
    path
        The points visited, from the base weights on.
    status
        How the fit ended.
    measured
        (K,) which answers the weights are judged by.
    exact
        (K,) which answers are constraints that hold.
    released
        (K,) which exact answers no weights can give, alone or together; they were left out,
        and in ``covariance`` have a variance at which they say nothing.
    looseness
        How many times their own variance exact answers were held with, to keep the floor of the
        effective sample size; 1 if they could hold.
    bounds
        Between which the weights lie, relative to the base weights; None for none. The
        certificate is the same with them (see ``bounded.py``).
    """

    eta: float
    multipliers: FloatArray
    weights: FloatArray
    ess: float
    before: FloatArray
    after: FloatArray
    insistent: FloatArray
    answers: FloatArray
    covariance: Covariance
    aim: FloatArray
    tolerance: float
    trace: float
    sure: float
    path: tuple[PathPoint, ...]
    status: Status
    measured: Mask
    exact: Mask
    released: Mask
    looseness: float = 1.0
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        for name in ("multipliers", "weights", "before", "after", "insistent", "answers", "aim"):
            getattr(self, name).setflags(write=False)
        for name in ("measured", "exact", "released"):
            getattr(self, name).setflags(write=False)

    @property
    def tolerances(self) -> FloatArray:
        """(K,) how far an exact answer may be missed: a millionth of its unit; 0 for others."""
        held = EXACT * math.sqrt(self.looseness)
        units = self.covariance.deviations / np.where(self.released, UNASKED, held)
        return np.where(self.exact | self.released, HELD * units, 0.0)

    @property
    def unmet(self) -> Mask:
        """(K,) exact answers that the weights miss by more than that."""
        missed: Mask = np.abs(self.after - self.answers) > self.tolerances
        return missed & (self.exact | self.released)

    @property
    def misfit_before(self) -> float:
        """Mean squared residual of the base weights' answers, in units of the noise."""
        return self._misfit(self.before)

    @property
    def misfit_after(self) -> float:
        """Mean squared residual of the returned weights' answers, in units of the noise."""
        return self._misfit(self.after)

    def _misfit(self, means: FloatArray) -> float:
        errors = np.where(self.measured, means - self.answers, 0.0)
        count = max(1, int(np.count_nonzero(self.measured)))
        return self.covariance.quadratic_inverse(errors) / count

    def gap(self) -> float:
        r"""Duality gap in nats, from the returned weights alone; no log-sum-exp enters.

        With e = q(w) - aim it is
        :math:`e^T \Sigma^{-1} e / 2\eta + \eta \lambda^T \Sigma \lambda / 2 - \lambda \cdot e`,
        computed as the square that it is; an exact answer's part of
        :math:`\eta \Sigma` is the same at every trade-off. At an infinite one only the exact
        answers count, and zero is the gap of the base weights. At trade-off 0 it is
        :math:`\sum_k |\gamma |\lambda_k| - \lambda_k e_k|`, for weights that lie in the box of
        the tolerance; :meth:`kkt_residual` says whether they do.
        """
        error = self.after - self.aim
        if self.eta == np.inf:
            residual = np.where(self.exact, error - self.covariance.times(self.multipliers), 0.0)
            return self.covariance.quadratic_inverse(residual) / 2
        if self.eta == 0:
            slack = self.tolerance * np.abs(self.multipliers) - self.multipliers * error
            return float(np.sum(np.abs(slack)))
        noise = self.covariance.at(self.eta, self.exact)
        residual = error - self.eta * noise.times(self.multipliers)
        return noise.quadratic_inverse(residual) / (2 * self.eta)

    def kkt_residual(self) -> float:
        r"""Largest violation of the optimality conditions, free of the queries' scales.

        The largest :math:`|\sigma_k (\lambda - \Sigma^{-1} e / \eta)_k|` over the largest
        :math:`|\sigma_k \lambda_k|`. At trade-off 0 the largest of :func:`box_residuals`, in
        deviations :math:`\sigma_k` of the answers' noise.
        """
        unit = self.covariance.deviations
        error = self.after - self.aim
        if self.eta == 0:
            return float(np.max(box_residuals(error, self.multipliers, self.tolerance) / unit))
        if self.eta == np.inf:
            target = np.where(self.exact, error / self.covariance.variances, 0.0)
        else:
            target = self.covariance.at(self.eta, self.exact).solve(error) / self.eta
        largest = max(
            float(np.max(np.abs(unit * self.multipliers))), float(np.max(np.abs(unit * target)))
        )
        if largest == 0:
            return 0.0
        return float(np.max(np.abs(unit * (self.multipliers - target)))) / largest


def box_residuals(
    errors: FloatArray, multipliers: FloatArray, tolerance: FloatArray | float
) -> FloatArray:
    """(K,) violations of the conditions for weights in a box, in units of the queries.

    A query with a multiplier must sit at its end of the box, one without must lie inside:
    e_k = gamma_k sign(lambda_k), or abs(e_k) <= gamma_k.

    >>> box_residuals(np.array([0.1, 0.3, 0.0]), np.array([2.0, 0.0, 0.0]), 0.1)
    array([0. , 0.2, 0. ])
    """
    active = np.abs(errors - tolerance * np.sign(multipliers))
    inside = np.maximum(np.abs(errors) - tolerance, 0.0)
    return np.where(multipliers != 0, active, inside)
