r"""The kernel where weights are bounded: clipped exponentials, and the Hessian of the free rows.

Minimise :math:`KL(w \| b) + \frac{1}{2\eta} e^T \Sigma^{-1} e` with :math:`e = q(w) - a` over the
weights of sum 1 with :math:`L_i b_i \le w_i \le U_i b_i`. The inner maximum of the Lagrangian,

.. math:: G(s) = \max_w \; w \cdot s - KL(w \| b), \qquad s_i = -\lambda \cdot (q_i - a),

is separable but for the sum, whose multiplier is :math:`\nu`. So
:math:`w_i = b_i r_i, r_i = \min(U_i, \max(L_i, e^{s_i - \nu}))`, where :math:`\nu` solves
:math:`\sum_i w_i = 1`, and

.. math:: G(s) = \nu + \sum_i w_i (s_i - \nu - \log r_i) ,

a sum over the rows at a bound alone. Without bounds :math:`G = \nu` is the logarithm of the
normaliser; the dual is :math:`G + \frac{\eta}{2} \lambda^T \Sigma \lambda` as before.

* Its gradient is :math:`\eta \Sigma \lambda - e`, since :math:`\partial G / \partial s_i = w_i`.
* Its generalised Hessian is :math:`W_F Cov_F(q) + \eta \Sigma`, where F are the rows at no bound,
  :math:`W_F` is their weight and :math:`Cov_F` is taken under their weights alone: differentiating
  :math:`\nu` gives :math:`\partial w_i / \partial s_j = w_i (1_{ij} - w_j / W_F)` for i, j in F,
  and 0 elsewhere. It jumps where a row meets its bound: Newton's method is a semismooth one (Qi
  and Sun 1993), globally convergent with the line search because the dual is strongly convex
  and once continuously differentiable.
* As :math:`G = w \cdot s - KL(w \| b)` at these weights, the duality gap is the one without
  bounds, :math:`e^T \Sigma^{-1} e / 2\eta + \eta \lambda^T \Sigma \lambda / 2 - \lambda \cdot e`.
* The derivative of q(w) by the answers is :math:`H (H + \eta \Sigma)^{-1}` with
  :math:`H = W_F Cov_F(q)`: the trace in Stein's unbiased risk estimate is that of the free rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.bounds import Bounds
from retilt.tilting.fold import Fold, Rows, Sample
from retilt.tilting.parts import Mask
from retilt.tilting.problem import Problem, normalised

_FAR = 700.0
"""Largest exponent: exp(709) is about the largest number, and exp(-745) the smallest."""

_ROUNDS = 200
_QUICK = 50
"""Rounds after which the normaliser is only bisected."""

_CLOSE = 1e-12
"""Relative distance of the free rows' weight from what it should be that scaling may mend."""


@dataclass(frozen=True, slots=True)
class BoundedFold(Fold):
    """A pass over rows whose weights are bounded; ``log_normaliser`` is G (see the module).

    Attributes
    ----------
    normaliser
        Nu.
    free
        (rows,) which merged rows are at no bound.
    multipliers
        (V,) of the varying queries.
    """

    normaliser: float
    free: Mask
    multipliers: FloatArray


@dataclass(frozen=True, slots=True)
class BoundedRows(Rows):
    """Rows whose weights are bounded.

    Attributes
    ----------
    bounds
        Of the merged rows.
    """

    bounds: Bounds

    @classmethod
    def within(cls, rows: Rows, bounds: Bounds) -> BoundedRows:
        """Rows of a problem, with the bounds of all its rows."""
        own = bounds.at(rows.chosen).merged(rows.groups, rows.merged.size)
        return cls(**{part.name: getattr(rows, part.name) for part in fields(Rows)}, bounds=own)

    @property
    def bounded(self) -> bool:
        """Whether weights are bounded."""
        return True

    def exponents(self, multipliers: FloatArray) -> FloatArray:
        """(rows,) exponents of the merged rows before the normaliser is taken off."""
        found = self.scores(-multipliers)
        found += self.bounds.offset
        return found

    def fold(self, multipliers: FloatArray) -> BoundedFold:
        """Weights and means at (V,) multipliers of the varying queries."""
        exponents = self.exponents(multipliers)
        normaliser, ratios, free = self._normalised(exponents)
        weights = self.merged * ratios
        # For the free rows this is a rounding, or what lies between two steps of the normaliser.
        exponents -= normaliser
        exponents -= np.log(ratios)
        value = normaliser + float(weights @ exponents)
        means, ess = self.means(weights), self._ess(weights)
        return BoundedFold(value, weights, means, ess, normaliser, free, multipliers)

    def moving(self, fold: Fold) -> tuple[Fold, float]:
        """The free rows' weights as a fold of their own, and their share of the weight."""
        assert isinstance(fold, BoundedFold)
        if fold.free.all():
            return fold, 1.0
        weights = fold.weights * fold.free
        share = float(weights.sum())
        if share > 0:
            weights /= share
        return Fold(fold.log_normaliser, weights, self.means(weights), fold.ess), share

    def covariance(self, fold: Fold) -> FloatArray:
        """(V, V) derivative of the means by the scores: the free rows' covariance times share."""
        moving, share = self.moving(fold)
        result = Rows.covariance(self, moving)
        result *= share
        return result

    def moved(self, problem: Problem, fold: Fold) -> tuple[FloatArray, Bounds]:
        """A fold's weights in the place of the problem's base weights, and its bounds there."""
        assert isinstance(fold, BoundedFold)
        assert problem.bounds is not None
        where = slice(None) if self.groups is None else self.groups
        exponents, free = np.zeros(problem.rows), np.ones(problem.rows, dtype=np.bool_)
        exponents[self.support] = (self.exponents(fold.multipliers) - fold.normaliser)[where]
        free[self.support] = fold.free[where]
        # As the new problem will have them: sums of many rows are a few roundings off.
        base = normalised(self.expand(fold.weights, problem.rows))
        ratios = np.ones(problem.rows)
        np.divide(base, problem.base, out=ratios, where=base > 0)
        return base, problem.bounds.moved(ratios, exponents, free)

    def _normalised(self, exponents: FloatArray) -> tuple[float, FloatArray, Mask]:
        """Nu, the ratios of weights to base weights, and which are at no bound.

        The sum of the weights is piecewise linear in exp(-nu), so that Newton's method ends
        exactly as soon as it knows which rows are free; bisection keeps it from going astray.
        """
        lower, upper = self.bounds.inside()
        nu = _log_sum(exponents, self.merged)
        # Here every ratio is at least 1, or at its cap; and there at most 1, or at its floor.
        low, high = float(exponents.min()) - _FAR, float(exponents.max()) + _FAR
        for number in range(_ROUNDS):
            ratios = self._ratios(exponents, nu)
            free = (ratios > lower) & (ratios < upper)
            weights = self.merged * ratios
            moving, excess = float(weights @ free), float(weights.sum()) - 1
            factor = 1 - excess / moving if moving > 0 else -math.inf
            if abs(factor - 1) <= _CLOSE:
                ratios[free] *= factor
                np.clip(ratios, lower, upper, out=ratios)
                return nu - math.log(factor), ratios, (ratios > lower) & (ratios < upper)
            low, high = (nu, high) if excess > 0 else (low, nu)
            guess = nu - math.log(factor) if factor > 0 and number < _QUICK else math.nan
            if not low < guess < high:
                guess = (low + high) / 2
            if not low < guess < high:
                break
            nu = guess
        return self._between(exponents, low, high)

    def _ratios(self, exponents: FloatArray, nu: float) -> FloatArray:
        """Ratios of weights to base weights at a normaliser, whatever their sum."""
        ratios = np.exp(np.clip(exponents - nu, -_FAR, _FAR))
        np.clip(ratios, *self.bounds.inside(), out=ratios)
        return ratios

    def _between(
        self, exponents: FloatArray, low: float, high: float
    ) -> tuple[float, FloatArray, Mask]:
        """Ratios between those at two normalisers that no number lies between.

        Exponents of a billion, as of answers that the bounds keep out of reach, have no finer
        steps. What lies between two vectors within the bounds is within them.
        """
        above, below = self._ratios(exponents, low), self._ratios(exponents, high)
        more, less = float(self.merged @ above), float(self.merged @ below)
        share = (1 - less) / (more - less) if more > less else 0.0
        lower, upper = self.bounds.inside()
        ratios = np.clip(below + share * (above - below), lower, upper)
        return high, ratios, (ratios > lower) & (ratios < upper)


def rows_of(problem: Problem, sample: Sample | None = None) -> Rows:
    """Lay out the rows of a problem, or those of a sample, with the problem's bounds if any."""
    rows = Rows.of(problem, sample)
    return rows if problem.bounds is None else BoundedRows.within(rows, problem.bounds)


def _log_sum(exponents: FloatArray, base: FloatArray) -> float:
    """Logarithm of the sum of base weights times exponentials."""
    top = float(exponents.max())
    return top + math.log(float(base @ np.exp(np.maximum(exponents - top, -_FAR))))
