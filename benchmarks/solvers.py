"""Our own solvers and SciPy's, behind one signature: from a case to a call, from it to weights.

What a solver needs beforehand, the matrix of all queries most of all, is made before its call: the
call alone is timed, and the memory of both is counted. Peers are called as a competent user would:
columns of comparable scale, a stable log-sum-exp, analytic gradients. The other peers, which have
environments of their own, are in ``benchmarks.foreign``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

import retilt as rt
from benchmarks.clock import measured
from benchmarks.foreign import PRECISION, half_spaces
from benchmarks.problems import Case, query_matrix
from retilt.measures.base import FloatArray
from retilt.tilting import Problem, fit_at
from retilt.tilting.denoise import Denoiser, denoise
from retilt.tilting.paper import Paper, fit_paper
from retilt.tilting.solvers.compositional_sgd import Algorithm

_GAP, _TABLES_GAP = 1e-9, 1e-22
"""Nats to which our own solver goes, for moments and for tables, which rakers meet to the digit."""

_TIMES = 50
"""How many times our own CPU time the paper's algorithm is given."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a solver returned, and which problem it solved.

    Attributes
    ----------
    problem
        The problem with the answers that it was given.
    weights
        (N,) as they were returned.
    multipliers
        (K,) of the dual in the problem's units, with ``weights`` proportional to
        ``base * exp(-multipliers . q)``; for ``denoise-lp`` those of the linear program. None
        where the solver has none.
    eta
        The trade-off that it solved at; 0 asks for the answers exactly.
    gap
        What the solver itself certifies, where its multipliers are not public.
    note
        A word on its settings.
    """

    problem: Problem
    weights: FloatArray
    multipliers: FloatArray | None = None
    eta: float = 0.0
    gap: float | None = None
    note: str = ""


Prepared: TypeAlias = Callable[[], Outcome]
Solver: TypeAlias = Callable[[Case], Prepared]


# ----------------------------------------------------------------- moments-65 and the margins


def retilt(case: Case) -> Prepared:
    """One fit at trade-off 0, to a gap of 1e-9 nats, or 1e-22 for tables."""
    gap = _GAP if case.categories is None else _TABLES_GAP

    def solve() -> Outcome:
        solution = fit_at(case.problem, 0.0, gap=gap)
        return Outcome(case.problem, solution.weights, solution.multipliers)

    return solve


def retilt_path(case: Case) -> Prepared:
    """The default method from table and noisy answers: encoding, path, choice, finish."""
    if case.noisy is None or case.answers is None:
        raise ValueError("the case has no table with noisy answers.")
    noisy, answers = case.noisy, case.answers

    def solve() -> Outcome:
        solution = rt.fit(case.synthetic, answers).solution
        return Outcome(noisy, solution.weights, solution.multipliers, solution.eta)

    return solve


def _paper(algorithm: Algorithm) -> Solver:
    """As many epochs as take 50 times our own CPU time."""

    def prepare(case: Case) -> Prepared:
        epochs = _affordable(case, _TIMES * measured(lambda: retilt(case)).cpu_seconds)

        def solve() -> Outcome:
            outcome = _epochs(case, algorithm, epochs)
            # Where Algorithm 1 overflows, the base weights are the only ones it leaves.
            overflowed = outcome.multipliers is None or not np.any(outcome.multipliers)
            note = f"given {epochs} epochs" + (", overflowed" if overflowed else "")
            return replace(outcome, note=note)

        return solve

    return prepare


def _epochs(case: Case, algorithm: Algorithm, epochs: int) -> Outcome:
    """Batches of 256, no tolerance around the answers, which are denoised already."""
    settings = Paper(denoise=None, tolerance=0.0, algorithm=algorithm, epochs=epochs)
    solution = fit_paper(case.problem, settings, norm=2, seed=0)
    return Outcome(case.problem, solution.weights, solution.multipliers)


def _affordable(case: Case, budget: float) -> int:
    """Epochs for so many CPU seconds, by the pace of Algorithm 2, which never ends early."""
    seconds = []
    for epochs in (1, 1, 11):  # the first pays for what is done once
        start = time.process_time()
        _epochs(case, 2, epochs)
        seconds.append(time.process_time() - start)
    _, one, eleven = seconds
    return max(1, round(10 * (budget - one) / (eleven - one)) + 1)


def scipy_lbfgsb(case: Case) -> Prepared:
    """L-BFGS-B on the dual, queries in units of their spread."""
    from scipy.optimize import minimize

    problem = case.problem
    matrix = query_matrix(problem)
    means = problem.base @ matrix
    spread = np.sqrt(problem.base @ (matrix * matrix) - means**2)
    unit = np.where(spread > 0, spread, 1.0)
    answers = problem.answers / unit
    if isinstance(matrix, np.ndarray):
        matrix /= unit
    else:
        matrix.data /= unit[matrix.indices]
    transposed = matrix.T
    start = np.log(problem.base)

    def weigh(multipliers: FloatArray) -> tuple[float, FloatArray]:
        scores = start - matrix @ multipliers
        top = scores.max()
        scores -= top
        np.exp(scores, out=scores)
        total = scores.sum()
        scores /= total
        return float(top + np.log(total) + multipliers @ answers), scores

    def dual(multipliers: FloatArray) -> tuple[float, FloatArray]:
        value, weights = weigh(multipliers)
        return value, answers - transposed @ weights

    def solve() -> Outcome:
        result = minimize(
            dual,
            np.zeros(problem.queries),
            jac=True,
            method="L-BFGS-B",
            # Only the gradient says how far the answers are.
            options={
                "maxiter": 10_000,
                "maxfun": 20_000,
                "maxcor": 20,
                "ftol": 0.0,
                "gtol": PRECISION,
            },
        )
        note = f"{result.nfev} evaluations"
        return Outcome(problem, weigh(result.x)[1], result.x / unit, note=note)

    return solve


# -------------------------------------------------------------------------------- denoise-*


def _denoiser(method: Denoiser) -> Solver:
    def prepare(case: Case) -> Prepared:
        def solve() -> Outcome:
            found = denoise(case.problem, method)
            weights = np.zeros(case.problem.rows)
            weights[found.rows] = found.shares
            return Outcome(case.problem, weights, gap=found.gap)

        return solve

    return prepare


def highs_lp(case: Case) -> Prepared:
    """The linear program over all rows at once, in dual form, by the dual simplex method."""
    from scipy.optimize import linprog

    problem = case.problem
    sigma = problem.covariance.deviations
    constraints, cost = half_spaces(query_matrix(problem), problem.answers, sigma)

    def solve() -> Outcome:
        found = linprog(
            cost,
            A_ub=constraints,
            b_ub=np.zeros(problem.rows),
            bounds=[(-1, 1)] * problem.queries + [(None, None)],
            method="highs-ds",
        )
        if found.x is None:
            raise RuntimeError(f"HiGHS: {found.message}")
        shares = np.maximum(-found.ineqlin.marginals, 0.0)
        return Outcome(problem, shares / shares.sum(), found.x[:-1] / sigma)

    return solve


OWN: dict[str, Solver] = {
    "retilt": retilt,
    "retilt-path": retilt_path,
    "scipy-lbfgsb": scipy_lbfgsb,
    "paper-algorithm-1": _paper(1),
    "paper-algorithm-2": _paper(2),
    "highs": highs_lp,
}
"""Solvers that run in this environment; every other name is that of a peer with its own."""

SOLVERS: dict[str, tuple[str, ...]] = {
    "moments-65": (
        "retilt",
        "retilt-path",
        "scipy-lbfgsb",
        "ebal",
        "empirical-calibration",
        "paper-algorithm-1",
        "paper-algorithm-2",
    ),
    "moments-65-even": ("retilt", "scipy-lbfgsb", "ebal", "empirical-calibration"),
    "margins-55": ("retilt", "scipy-lbfgsb", "weightipy", "rimpy", "mbi"),
    "two-way-45": ("retilt", "scipy-lbfgsb", "weightipy", "rimpy", "mbi"),
    "denoise-qp": ("retilt", "clarabel"),
    "denoise-lp": ("retilt", "highs"),
}
"""For each problem its solvers."""

LARGEST = {"clarabel": 20_000}
"""Most rows that a solver is given: it does not end on 307,511 within minutes."""


def own_solver(problem: str, name: str) -> Solver:
    """The solver of a name; retilt denoises where that is the problem."""
    if name == "retilt" and problem.startswith("denoise-"):
        return _denoiser("qp" if problem == "denoise-qp" else "lp")
    return OWN[name]
