"""What a tilt has to solve: queries on synthetic rows, noisy answers, their noise, base weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retilt.exceptions import InputError
from retilt.measures.base import Design, FloatArray
from retilt.tilting.bounds import Bounds
from retilt.tilting.designs import (
    check_design,
    design_means,
    design_queries,
    design_rows,
    selected_parts,
    typical,
)

EXACT = 1e-5
"""How hard an exact answer is held: a nat for a miss of so much of the query's unit, squared."""

HELD = 1e-6
"""Share of its query's unit by which an exact answer may be missed and still count as held."""

UNASKED = 1e6
"""Deviation, in its query's units, of an exact answer that is left out."""


def read_only(values: ArrayLike) -> FloatArray:
    """Float64 copy of an array that can't be written to."""
    array: FloatArray = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class Covariance:
    """Covariance of the answers' noise: a diagonal plus what a few shared noises add.

    The matrix is ``diag(variances) + factor @ factor.T``. The factor holds noise that several
    answers share, for example that of the noisy row count which divides all sums when the
    number of rows is private.

    Parameters
    ----------
    variances
        (K,) positive and finite.
    factor
        (K, R) finite; None for R = 0.

    Raises
    ------
    InputError
        If a shape does not fit, or a value is not finite, or a variance is not positive.

    Examples
    --------
    >>> noise = Covariance(np.array([1.0, 4.0]), np.array([[1.0], [0.0]]))
    >>> noise.dense()
    array([[2., 0.],
           [0., 4.]])
    >>> noise.quadratic_inverse(np.array([2.0, 2.0]))
    3.0
    """

    variances: FloatArray
    factor: FloatArray

    def __init__(self, variances: ArrayLike, factor: ArrayLike | None = None) -> None:
        diagonal = read_only(variances)
        if diagonal.ndim != 1:
            raise InputError(f"variances: got {diagonal.ndim} dimensions, expected 1.")
        if not np.all(np.isfinite(diagonal)) or not np.all(diagonal > 0):
            raise InputError("variances: expected positive finite numbers.")
        shared = read_only(np.zeros((diagonal.size, 0)) if factor is None else factor)
        if shared.ndim != 2 or shared.shape[0] != diagonal.size:
            raise InputError(f"factor: got shape {shared.shape}, expected ({diagonal.size}, R).")
        if not np.all(np.isfinite(shared)):
            raise InputError("factor: expected finite numbers.")
        object.__setattr__(self, "variances", diagonal)
        object.__setattr__(self, "factor", shared)

    @property
    def deviations(self) -> FloatArray:
        """(K,) standard deviation of each answer."""
        total: FloatArray = np.sqrt(self.variances + np.sum(self.factor**2, axis=1))
        return total

    def times(self, x: FloatArray) -> FloatArray:
        """The matrix times a (K,) vector."""
        product: FloatArray = self.variances * x + self.factor @ (self.factor.T @ x)
        return product

    def dense(self) -> FloatArray:
        """The (K, K) matrix."""
        matrix: FloatArray = self.factor @ self.factor.T
        matrix[np.diag_indices_from(matrix)] += self.variances
        return matrix

    def capacitance(self) -> FloatArray:
        """(R, R) identity plus the factor's noise in units of the diagonal's (Woodbury)."""
        whitened = self.factor / np.sqrt(self.variances)[:, None]
        inner: FloatArray = np.eye(self.factor.shape[1]) + whitened.T @ whitened
        return inner

    def solve(self, x: FloatArray) -> FloatArray:
        """The inverse matrix times a (K,) vector, by Woodbury's identity."""
        direct: FloatArray = x / self.variances
        if self.factor.shape[1] == 0:
            return direct
        inner = np.linalg.solve(self.capacitance(), self.factor.T @ direct)
        result: FloatArray = direct - (self.factor @ inner) / self.variances
        return result

    def quadratic_inverse(self, e: FloatArray) -> float:
        """Squared length of ``e`` in units of the noise: e' (matrix)^-1 e, never negative."""
        return max(0.0, float(e @ self.solve(e)))

    def at(self, eta: float, exact: NDArray[np.bool_]) -> Covariance:
        """The covariance which, times a trade-off, holds exact answers alike at all of them."""
        if eta in (0, np.inf) or not np.any(exact):
            return self
        return Covariance(np.where(exact, self.variances / eta, self.variances), self.factor)

    def select(self, keep: NDArray[np.bool_]) -> Covariance:
        """The covariance of some of the answers."""
        return Covariance(self.variances[keep], self.factor[keep])


def normalised(base: ArrayLike) -> FloatArray:
    """(N,) base weights that sum to 1, or a refusal of those that can't."""
    weights: FloatArray = np.array(base, dtype=np.float64)
    if weights.ndim != 1 or weights.size == 0:
        raise InputError(f"base: got shape {weights.shape}, expected (N,) with N at least 1.")
    if not np.all(np.isfinite(weights)):
        raise InputError("base weights: got a missing or infinite weight, expected finite numbers.")
    if np.any(weights < 0):
        raise InputError("base weights: got a negative weight, expected zero or more.")
    largest = weights.max()
    if largest == 0:
        raise InputError("base weights: all are zero; at least one row must have a weight.")
    # By the largest first: the plain sum could overflow or sink below the normal numbers.
    weights /= largest
    weights /= weights.sum()
    weights.setflags(write=False)
    return weights


@dataclass(frozen=True, slots=True)
class Problem:
    r"""Tilt a weighted table until its means agree with noisy answers as far as the noise allows.

    With rows i = 1..N of base weight :math:`b_i`, query vectors :math:`q_i` in
    :math:`\mathbb{R}^K`, answers a with noise covariance :math:`\Sigma`, and a trade-off
    :math:`\eta > 0`, the weights w on the simplex minimise

    .. math:: KL(w \| b) + \frac{1}{2\eta} (q(w) - a)^T \Sigma^{-1} (q(w) - a),
              \qquad q(w) = \sum_i w_i q_i .

    They are :math:`w_i \propto b_i \exp(-\lambda \cdot q_i)` where the multipliers minimise the
    convex dual

    .. math:: F(\lambda) = \log \sum_i b_i \exp(-\lambda \cdot (q_i - a))
              + \frac{\eta}{2} \lambda^T \Sigma \lambda ,

    whose optimum satisfies :math:`\lambda = \Sigma^{-1} (q(w) - a) / \eta`. It is always
    feasible: answers that no weights can reach only leave a misfit.

    Not all answers are *measured*. The others cost no privacy and are not judged by: a *guard*'s
    answer is the rows' own base mean and its variance a tolerance squared; it enters both
    formulas as a noisy answer does. An *exact* answer is a constraint: its term is
    :math:`\frac{1}{2} ((q_k(w) - a_k) / \tau_k)^2` at every trade-off, with a deviation
    :math:`\tau_k` of 1e-5 of the query's unit (:meth:`scales`), so that it is held to 1e-10 of
    that for each unit of its multiplier.

    Parameters
    ----------
    designs
        The query values by parts; the K queries are their concatenation in order.
    answers
        (K,) finite.
    covariance
        Noise covariance of the answers.
        An exact answer's variance is replaced by that of :math:`\tau_k`, whatever it is.
    base
        (N,) base weights, zero or more, at least one positive; normalised to sum to 1.
    measured
        (K,) true for noisy answers, by which the weights are judged; None for all but the exact.
    exact
        (K,) true for answers without noise, none of them measured; None for none.
    looseness
        How many times :math:`\tau_k^2` the variance of exact answers is, at least 1: more where
        a floor of the effective sample size does not let them hold (see ``floors.py``).
    bounds
        Least and largest ratio of each weight to its base weight; None for none. The weights are
        then clipped (see ``bounded.py``).

    Raises
    ------
    InputError
        If shapes do not agree, a value is not finite, a base weight is negative, or a guard's or
        an exact answer shares noise.
    """

    designs: tuple[Design, ...]
    answers: FloatArray
    covariance: Covariance
    base: FloatArray
    measured: NDArray[np.bool_]
    exact: NDArray[np.bool_]
    looseness: float
    bounds: Bounds | None

    def __init__(
        self,
        designs: Sequence[Design],
        answers: ArrayLike,
        covariance: Covariance,
        base: ArrayLike,
        measured: ArrayLike | None = None,
        exact: ArrayLike | None = None,
        looseness: float = 1.0,
        bounds: Bounds | None = None,
    ) -> None:
        object.__setattr__(self, "designs", tuple(designs))
        object.__setattr__(self, "answers", read_only(answers))
        object.__setattr__(self, "covariance", covariance)
        object.__setattr__(self, "base", normalised(base))
        object.__setattr__(self, "looseness", looseness)
        object.__setattr__(self, "bounds", bounds)
        self._check_designs()
        size = self.answers.size
        object.__setattr__(self, "exact", _mask("exact", exact, np.zeros(size, np.bool_)))
        object.__setattr__(self, "measured", _mask("measured", measured, ~self.exact))
        self._check_masks()
        if np.any(self.exact):
            variances = np.where(self.exact, 1.0, covariance.variances)
            variances[self.exact] = looseness * (EXACT * self.scales(self.exact)) ** 2
            object.__setattr__(self, "covariance", Covariance(variances, covariance.factor))

    def _check_designs(self) -> None:
        for position, design in enumerate(self.designs):
            check_design(position, design)
            if design_rows(design) != self.rows:
                raise InputError(
                    f"designs[{position}]: got {design_rows(design)} rows, expected one for each "
                    f"of the {self.rows} base weights."
                )
        queries = sum(design_queries(design) for design in self.designs)
        if queries == 0:
            raise InputError("designs: got no query, expected at least one.")
        if self.answers.shape != (queries,) or self.covariance.variances.shape != (queries,):
            raise InputError(
                f"answers and covariance: got shapes {self.answers.shape} and "
                f"{self.covariance.variances.shape}, expected ({queries},)."
            )
        if not np.all(np.isfinite(self.answers)):
            raise InputError("answers: expected finite numbers.")

    def _check_masks(self) -> None:
        if np.any(self.exact & self.measured):
            raise InputError("exact: got an answer that is also measured, expected others.")
        if np.any(self.covariance.factor[~self.measured]):
            raise InputError("covariance: only measured answers can share noise.")

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return int(self.base.size)

    @property
    def queries(self) -> int:
        """Number of queries K."""
        return int(self.answers.size)

    def means(self, weights: FloatArray) -> FloatArray:
        """(K,) query means under (N,) weights that sum to 1, straight from the rows."""
        return np.concatenate([design_means(design, weights) for design in self.designs])

    def only(self, keep: NDArray[np.bool_]) -> Problem:
        """The problem with some of its queries, at least one."""
        return Problem(
            selected_parts(self.designs, keep),
            self.answers[keep],
            self.covariance.select(keep),
            self.base,
            self.measured[keep],
            self.exact[keep],
            self.looseness,
            self.bounds,
        )

    @property
    def units(self) -> FloatArray:
        """(K,) units of the exact queries; 0 for the others."""
        held = EXACT * math.sqrt(self.looseness)
        return np.where(self.exact, self.covariance.deviations / held, 0.0)

    def scales(self, keep: NDArray[np.bool_]) -> FloatArray:
        """(Some of K,) units of queries: see :func:`retilt.tilting.designs.typical`."""
        parts, used = selected_parts(self.designs, keep), self.base > 0
        found = np.concatenate([typical(part, used) for part in parts])
        # A constant 0 is as large as what is asked of it.
        found = np.where(found > 0, found, np.abs(self.answers[keep]))
        return np.where(found > 0, found, 1.0)


def _mask(name: str, values: ArrayLike | None, default: NDArray[np.bool_]) -> NDArray[np.bool_]:
    mask = default if values is None else np.array(values)
    if mask.shape != default.shape or mask.dtype != np.bool_:
        raise InputError(
            f"{name}: got {mask.dtype} of shape {mask.shape}, expected bool of {default.shape}."
        )
    mask.setflags(write=False)
    return mask
