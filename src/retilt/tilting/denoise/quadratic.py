"""The quadratic program on a pool of rows: a point of least norm, by least squares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.denoise.generation import Step
from retilt.tilting.problem import Covariance
from retilt.tilting.reduction import Reduced

_NNLS_STEPS = 100
"""Most steps of non-negative least squares, times rows and columns of its matrix."""


@dataclass(frozen=True, slots=True)
class Quadratic:
    """Half the squared distance from the answers, in units of the noise."""

    answers: FloatArray
    covariance: Covariance
    whiten: _Whitener
    fixed: float

    @classmethod
    def of(cls, reduced: Reduced) -> Quadratic:
        """Over the varying queries, given the constant ones' errors."""
        noise = reduced.covariance
        return cls(reduced.answers, noise, _Whitener.of(noise), reduced.fixed_misfit / 2)

    def start(self, means: FloatArray) -> FloatArray:
        """Gradient at the means."""
        return self.covariance.solve(means - self.answers)

    def solve(self, pool: FloatArray) -> Step | None:
        """The point of a pool's hull that is nearest to the answers.

        Non-negative least squares on the whitened differences, with a row of ones that asks for
        the sum 1. Its weight only stretches the solution, so that normalising it is exact.
        """
        from scipy.optimize import nnls

        away = self.whiten(pool - self.answers[:, None])
        length = math.sqrt(float(np.sum(away**2, axis=0).max()))
        matrix = np.vstack([away / (length or 1.0), np.ones(pool.shape[1])])
        target = np.zeros(matrix.shape[0])
        target[-1] = 1.0
        try:
            shares, _ = nnls(matrix, target, maxiter=_NNLS_STEPS * sum(matrix.shape))
        except RuntimeError:
            return None
        shares = shares / shares.sum()

        def proven(multipliers: FloatArray) -> float:
            return self.bound(multipliers, float((multipliers @ pool).min()))

        normal = self.whiten.transposed(_normal(away, shares))
        return Step(shares, max(self.start(pool @ shares), normal, key=proven))

    def value(self, means: FloatArray) -> float:
        """Objective at the means."""
        return self.covariance.quadratic_inverse(means - self.answers) / 2

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """Half the squared distance of the rows' half space from the answers."""
        nearest = max(0.0, least - float(multipliers @ self.answers))
        length = float(multipliers @ self.covariance.times(multipliers))
        return nearest * (nearest / length) / 2 if length > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Whitener:
    """The inverse root of a covariance, W with ``W' W`` its inverse.

    ``deviations`` (V, 1), ``left`` (V, R) and ``shrink`` (R, 1):
    ``W = (I + left @ (shrink * left.T)) / deviations.T``.
    """

    deviations: FloatArray
    left: FloatArray
    shrink: FloatArray

    @classmethod
    def of(cls, covariance: Covariance) -> _Whitener:
        """From the singular values of the shared noise in units of the others'."""
        deviations = np.sqrt(covariance.variances)[:, None]
        left, sizes, _ = np.linalg.svd(covariance.factor / deviations, full_matrices=False)
        return cls(deviations, left, (1 / np.hypot(1.0, sizes) - 1)[:, None])

    def __call__(self, columns: FloatArray) -> FloatArray:
        """W times (V, m) columns."""
        scaled = columns / self.deviations
        result: FloatArray = scaled + self.left @ (self.shrink * (self.left.T @ scaled))
        return result

    def transposed(self, vector: FloatArray) -> FloatArray:
        """W' times a (V,) vector."""
        mixed = vector + self.left @ (self.shrink[:, 0] * (self.left.T @ vector))
        result: FloatArray = mixed / self.deviations[:, 0]
        return result


def _normal(away: FloatArray, shares: FloatArray) -> FloatArray:
    """(V,) normal of the affine hull of the columns with a share, from zero to the hull.

    The difference of means and answers is the same vector, but near the answers it is a small
    difference of large numbers; this one is orthogonal to rounding of its own length.
    """
    first = int(shares.argmax())
    others = np.flatnonzero(shares > 0)
    others = others[others != first]
    basis, _ = np.linalg.qr(away[:, others] - away[:, [first]])
    normal = away[:, first]
    for _ in range(2):
        normal = normal - basis @ (basis.T @ normal)
    return normal
