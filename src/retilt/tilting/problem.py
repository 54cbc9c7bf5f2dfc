"""What a tilt has to solve: queries on synthetic rows, noisy answers, their noise, base weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retilt.exceptions import InputError
from retilt.measures.base import Design, FloatArray, Indicators, Products

CHUNK = 8192
"""Rows handled at a time: a chunk of one column is 64 KiB and stays in the processor's cache."""


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

    def select(self, keep: NDArray[np.bool_]) -> Covariance:
        """The covariance of some of the answers."""
        return Covariance(self.variances[keep], self.factor[keep])


def totals(codes: NDArray[np.signedinteger], weights: FloatArray, size: int) -> FloatArray:
    """(size,) sums of weights by code."""
    return np.bincount(codes, weights=weights, minlength=size).astype(np.float64, copy=False)


def design_queries(design: Design) -> int:
    """Number of queries of a part."""
    return design.size if isinstance(design, Indicators) else int(design.left.size)


def design_rows(design: Design) -> int:
    """Number of rows of a part."""
    table = design.codes if isinstance(design, Indicators) else design.values
    return int(table.shape[0])


def _check_design(position: int, design: Design) -> None:
    if isinstance(design, Indicators):
        codes = design.codes
        if codes.ndim != 1 or codes.dtype.kind not in "iu":
            raise InputError(f"designs[{position}]: expected (rows,) integer codes.")
        if codes.size and (codes.min() < 0 or codes.max() >= design.size):
            raise InputError(f"designs[{position}]: expected codes from 0 to {design.size - 1}.")
        return
    if not isinstance(design, Products):
        raise InputError(
            f"designs[{position}]: got a {type(design).__name__}, expected Products or Indicators."
        )
    if design.values.ndim != 2 or design.values.dtype != np.float64:
        raise InputError(f"designs[{position}]: expected (rows, columns) float64 values.")
    size = design.left.size
    if not design.right.size == design.offset.size == design.factor.size == size:
        raise InputError(f"designs[{position}]: left, right, offset and factor differ in length.")
    for ends in (design.left, design.right):
        if size and (ends.min() < -1 or ends.max() >= design.values.shape[1]):
            raise InputError(
                f"designs[{position}]: expected column numbers from -1 to "
                f"{design.values.shape[1] - 1}."
            )
    if not (np.all(np.isfinite(design.offset)) and np.all(np.isfinite(design.factor))):
        raise InputError(f"designs[{position}]: offset and factor must be finite.")
    # min and max pass NaN and infinity on, without a mask as large as the table.
    if design.values.size and not np.isfinite(design.values.min() + design.values.max()):
        raise InputError(f"designs[{position}]: values must be finite.")


def _normalised(base: ArrayLike) -> FloatArray:
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

    Parameters
    ----------
    designs
        The query values by parts; the K queries are their concatenation in order.
    answers
        (K,) finite.
    covariance
        Noise covariance of the answers.
    base
        (N,) base weights, zero or more, at least one positive; normalised to sum to 1.

    Raises
    ------
    InputError
        If shapes do not agree, a value is not finite, or a base weight is negative.
    """

    designs: tuple[Design, ...]
    answers: FloatArray
    covariance: Covariance
    base: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "designs", tuple(self.designs))
        object.__setattr__(self, "answers", read_only(self.answers))
        object.__setattr__(self, "base", _normalised(self.base))
        for position, design in enumerate(self.designs):
            _check_design(position, design)
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
        return np.concatenate([_means(design, weights) for design in self.designs])


def _means(design: Design, weights: FloatArray) -> FloatArray:
    if isinstance(design, Indicators):
        return totals(design.codes, weights, design.size)
    columns = design.values.shape[1]
    moments = np.zeros((columns + 1, columns + 1))
    for start in range(0, weights.size, CHUNK):
        values = design.values[start : start + CHUNK]
        extended = np.ones((values.shape[0], columns + 1))
        extended[:, :columns] = values
        moments += (extended * weights[start : start + CHUNK, None]).T @ extended
    # Column number -1 is the last column of the extended table: the ones.
    result: FloatArray = (
        design.offset * moments[-1, -1] + design.factor * moments[design.left, design.right]
    )
    return result
