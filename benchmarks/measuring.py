"""How good a solver's weights are, by the same functions for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import numpy as np

from benchmarks.clock import T, measured
from benchmarks.matrix import product_queries
from benchmarks.problems import Case, Matrix, query_matrix
from benchmarks.solvers import Outcome
from retilt.measures.base import FloatArray, Products
from retilt.tilting import Problem


class Row(TypedDict):
    """One line of the comparison; None where a solver does not have the figure."""

    problem: str
    solver: str
    rows: int
    cpu_seconds: float
    calls: int
    peak_mib: float | None
    residual: float
    gap: float | None
    ess: float
    correlation_error: float | None
    blas_seconds: float | None
    note: str


def timed(solve: Callable[[], T]) -> tuple[T, float, float | None]:
    """Result, CPU seconds and peak memory in MiB of a call that needs nothing beforehand."""
    cost = measured(lambda: solve)
    return cost.result, cost.cpu_seconds, cost.peak_mib


# ----------------------------------------------------------------------------------- quality


def judged(problem: str, outcome: Outcome) -> tuple[float, float | None, float]:
    """Residual, gap and effective sample size of an outcome, from its weights and multipliers."""
    weights = outcome.weights
    matrix = query_matrix(outcome.problem)
    errors = weights @ matrix - outcome.problem.answers
    scaled = np.abs(errors) / outcome.problem.covariance.deviations
    ess = float(1 / np.sum(weights**2))
    if problem == "denoise-qp":
        value = float(scaled @ scaled) / 2
        return value, _program_gap(outcome, matrix, value, _quadratic_bound), ess
    if problem == "denoise-lp":
        value = float(scaled.sum())
        return value, _program_gap(outcome, matrix, value, _linear_bound), ess
    return float(scaled.max()), dual_gap(outcome, matrix), ess


def correlation_error(outcome: Outcome) -> float | None:
    """Largest difference of a correlation from that of the answers; None without correlations."""
    design = outcome.problem.designs[0]
    if len(outcome.problem.designs) > 1 or not isinstance(design, Products):
        return None
    got = _correlations(design, outcome.problem.means(outcome.weights))
    return float(np.abs(got - _correlations(design, outcome.problem.answers)).max())


def _correlations(design: Products, means: FloatArray) -> FloatArray:
    """(C, C) of the columns, from the (K,) means of their products with each other and with 1."""
    columns = design.values.shape[1]
    # Column number -1 is the last one: ones.
    moments = np.ones((columns + 1, columns + 1))
    products = (means - design.offset) / design.factor
    moments[design.left, design.right] = products
    moments[design.right, design.left] = products
    centre = moments[-1, :-1]
    covariance = moments[:-1, :-1] - np.outer(centre, centre)
    spread = np.sqrt(np.diag(covariance))
    correlations: FloatArray = covariance / np.outer(spread, spread)
    return correlations


def dual_gap(outcome: Outcome, matrix: Matrix) -> float | None:
    r"""Duality gap in nats of weights w and multipliers :math:`\lambda`.

    With e = q(w) - a and :math:`w(\lambda) \propto b\, e^{-\lambda \cdot q}`, the difference of
    primal and dual value at a trade-off :math:`\eta > 0` is
    :math:`KL(w \| w(\lambda)) + e^T \Sigma^{-1} e / 2\eta + \eta \lambda^T \Sigma \lambda / 2
    - \lambda \cdot e`.
    At trade-off 0 the primal is finite only for weights that meet the answers exactly, which no
    iteration does. So the weights are moved onto the answers by the smallest change in the
    chi-square sense, :math:`w_i (1 - (q_i - q(w)) \cdot C^{-1} e)` with C the covariance of the
    queries under w, and the gap is that of the moved weights: :math:`KL(w' \| w(\lambda))`. It is
    never below the distance of the dual's value from its minimum, nor below that of the primal's.
    For weights without multipliers they are those of the closest tilt: least squares of
    :math:`-\log(w / b)` on the queries, each row weighing w.
    None where a weight is zero or would have to be negative.
    """
    problem, weights, multipliers = outcome.problem, outcome.weights, outcome.multipliers
    means = weights @ matrix
    errors = means - problem.answers
    if outcome.eta > 0 and multipliers is not None:
        slack = errors - outcome.eta * problem.covariance.times(multipliers)
        square = problem.covariance.quadratic_inverse(slack) / (2 * outcome.eta)
        return square + _divergence(weights, _tilted(problem, matrix, multipliers))
    inverse = _pseudo_inverse(_second_moments(matrix, weights) - np.outer(means, means))
    if multipliers is None:
        if weights.min() <= 0:
            return None
        logs = np.log(weights / problem.base)
        multipliers = -inverse @ ((weights * (logs - weights @ logs)) @ matrix)
    shift = inverse @ errors
    change = 1 + means @ shift - matrix @ shift
    if change.min() < 0:
        return None
    return _divergence(weights * change, _tilted(problem, matrix, multipliers))


def _second_moments(matrix: Matrix, weights: FloatArray) -> FloatArray:
    """(K, K) weighted means of the products of two queries."""
    if isinstance(matrix, np.ndarray):
        moments: FloatArray = (matrix * weights[:, None]).T @ matrix
        return moments
    scaled = matrix.copy()
    scaled.data *= np.repeat(weights, np.diff(matrix.indptr))
    found: FloatArray = (scaled.T @ matrix).toarray()
    return found


def _pseudo_inverse(spread: FloatArray) -> FloatArray:
    """Inverse on the directions that vary: the cells of a table add up to one."""
    scale = np.sqrt(np.maximum(np.diag(spread), 0))
    scale = np.where(scale > 0, scale, 1.0)
    sizes, directions = np.linalg.eigh(spread / np.outer(scale, scale))
    kept = sizes > sizes.max() * sizes.size * np.finfo(float).eps * 10
    basis = directions[:, kept] / scale[:, None]
    inverse: FloatArray = (basis / sizes[kept]) @ basis.T
    return inverse


def _tilted(problem: Problem, matrix: Matrix, multipliers: FloatArray) -> FloatArray:
    scores = matrix @ multipliers
    tilted: FloatArray = problem.base * np.exp(scores.min() - scores)
    tilted /= tilted.sum()
    return tilted


def _divergence(weights: FloatArray, other: FloatArray) -> float:
    from scipy.special import kl_div

    # x log(x / y) - x + y: each term by itself is small where the weights agree, so that no small
    # gap is lost among large terms that cancel.
    return max(0.0, float(np.sum(kl_div(weights, other))))


def _program_gap(
    outcome: Outcome,
    matrix: Matrix,
    value: float,
    bound: Callable[[Problem, Matrix, FloatArray], float],
) -> float | None:
    """Gap of a denoised point, relative where its value is above 1."""
    if outcome.multipliers is None:
        return outcome.gap
    least = bound(outcome.problem, matrix, outcome.multipliers)
    return max(0.0, value - least) / max(1.0, value)


def _quadratic_bound(problem: Problem, matrix: Matrix, multipliers: FloatArray) -> float:
    """Half the squared distance, in units of the noise, of a half space with all rows in it."""
    least = max(0.0, float((matrix @ multipliers).min() - multipliers @ problem.answers))
    return least**2 / float(multipliers @ problem.covariance.times(multipliers)) / 2


def _linear_bound(problem: Problem, matrix: Matrix, multipliers: FloatArray) -> float:
    """The dual objective at the multipliers, cut to those that are allowed."""
    largest = 1 / problem.covariance.deviations
    allowed = np.clip(multipliers, -largest, largest)
    return float((matrix @ allowed).min() - allowed @ problem.answers)


# --------------------------------------------------------------------------------- the limit


def blas_seconds(case: Case) -> float | None:
    """CPU seconds of the arithmetic that no exact Newton method can leave out; None without it.

    A pass over all rows, in chunks that stay in the cache: the scores of the rows, as the BLAS
    product of their columns with a matrix and with themselves, their exponentials, and the second
    moments of the K queries by one symmetric BLAS product (K by N). Building the queries from the
    columns is left out, and so is every further step: the optimum is known only where one pass at
    it has been made. The best of six.
    """
    design = case.problem.designs[0]
    if not isinstance(design, Products):
        return None
    chunk = 8192
    values = np.array(design.values[:chunk], dtype=np.float64, order="C")
    # Of the size of a tilt's exponents: far below zero an exponential takes other instructions.
    values /= np.abs(values).max()
    parts = (values, design.left, design.right, design.offset, design.factor)
    queries = product_queries(*parts)
    square = np.eye(values.shape[1])
    passes = -(-case.problem.rows // values.shape[0])

    def once() -> None:
        for _ in range(passes):
            weights = np.exp(-np.einsum("ij,ij->i", values @ square, values))
            queries.T @ queries
            weights.sum()

    return min(measured(lambda: once).cpu_seconds for _ in range(2)) * (
        case.problem.rows / (passes * values.shape[0])
    )
