"""What a solver costs, and how good its weights are, by the same functions for all of them."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
import pyarrow as pa

from benchmarks.problems import query_matrix
from benchmarks.solvers import Outcome
from retilt.measures.base import FloatArray
from retilt.tilting import Problem

_T = TypeVar("_T")

LONG = 20.0
"""CPU seconds above which a solver runs once only."""

_REPEATS = 3
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Row(TypedDict):
    """One line of the comparison; None where a solver does not have the figure."""

    problem: str
    solver: str
    rows: int
    cpu_seconds: float
    peak_mib: float | None
    residual: float
    gap: float | None
    ess: float


# ------------------------------------------------------------------------------------- costs


def timed(solve: Callable[[], _T]) -> tuple[_T, float, float | None]:
    """Result, CPU seconds (best of three, one if long) and peak memory in MiB of a call.

    CPU is user and system time of all threads. The peak is the first call's: the highest
    resident size during it, less the resident size just before it, when all memory that is free
    has been given back. Only Linux with the GNU library tells; elsewhere it is None.
    """
    before = _reset_peak()
    result, seconds = _clocked(solve)
    peak = None if before is None else (_status("VmHWM") - before) / 1024
    best = seconds
    for _ in range(_REPEATS - 1):
        if seconds > LONG:
            break
        result, seconds = _clocked(solve)
        best = min(best, seconds)
    return result, best, peak


def _clocked(solve: Callable[[], _T]) -> tuple[_T, float]:
    start = time.process_time()
    result = solve()
    return result, time.process_time() - start


def _reset_peak() -> int | None:
    """Resident KiB now, which the peak starts from again; None where that can't be done."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    try:
        # Memory that was freed but not given back would be used again, and not be seen.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        return _status("VmRSS")
    except (OSError, AttributeError):
        return None


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {field}.")


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


def dual_gap(outcome: Outcome, matrix: FloatArray) -> float | None:
    r"""Duality gap in nats of weights w and multipliers :math:`\lambda`.

    With e = q(w) - a and :math:`w(\lambda) \propto b\, e^{-\lambda \cdot q}`, the difference of
    primal and dual value at a trade-off :math:`\eta > 0` is
    :math:`KL(w \| w(\lambda)) + e^T \Sigma^{-1} e / 2\eta + \eta \lambda^T \Sigma \lambda / 2
    - \lambda \cdot e`.
    At trade-off 0 the primal is finite only for weights that meet the answers exactly, which no
    iteration does. So the weights are moved onto the answers by the smallest change in the
    chi-square sense, :math:`w_i (1 - (q_i - q(w)) \cdot C^{-1} e)` with C the covariance of the
    queries under w, and the gap is that of the moved weights: :math:`KL(w' \| w(\lambda))`. It is
    never below the distance of the dual's value from its minimum.
    None without multipliers, and where a weight would have to be negative.
    """
    if outcome.multipliers is None:
        return None
    problem, weights, multipliers = outcome.problem, outcome.weights, outcome.multipliers
    means = weights @ matrix
    errors = means - problem.answers
    tilted = _tilted(problem, matrix, multipliers)
    if outcome.eta > 0:
        slack = errors - outcome.eta * problem.covariance.times(multipliers)
        square = problem.covariance.quadratic_inverse(slack) / (2 * outcome.eta)
        return square + _divergence(weights, tilted)
    spread = (matrix * weights[:, None]).T @ matrix - np.outer(means, means)
    change = 1 - (matrix - means) @ np.linalg.solve(spread, errors)
    return None if change.min() < 0 else _divergence(weights * change, tilted)


def _tilted(problem: Problem, matrix: FloatArray, multipliers: FloatArray) -> FloatArray:
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
    matrix: FloatArray,
    value: float,
    bound: Callable[[Problem, FloatArray, FloatArray], float],
) -> float | None:
    """Gap of a denoised point, relative where its value is above 1."""
    if outcome.multipliers is None:
        return outcome.gap
    least = bound(outcome.problem, matrix, outcome.multipliers)
    return max(0.0, value - least) / max(1.0, value)


def _quadratic_bound(problem: Problem, matrix: FloatArray, multipliers: FloatArray) -> float:
    """Half the squared distance, in units of the noise, of a half space with all rows in it."""
    least = max(0.0, float((matrix @ multipliers).min() - multipliers @ problem.answers))
    return least**2 / float(multipliers @ problem.covariance.times(multipliers)) / 2


def _linear_bound(problem: Problem, matrix: FloatArray, multipliers: FloatArray) -> float:
    """The dual objective at the multipliers, cut to those that are allowed."""
    largest = 1 / problem.covariance.deviations
    allowed = np.clip(multipliers, -largest, largest)
    return float((matrix @ allowed).min() - allowed @ problem.answers)
