"""Every solver behind one signature: from a case to weights, and multipliers where it has them.

What a solver needs of its own (the matrix of all queries, most of all) is made inside its call
and counted. Peers are called as a competent user would: the query matrix is built once, in
columns of comparable scale, the log-sum-exp is stable, gradients are analytic.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

import retilt as rt
from benchmarks.problems import Case, query_matrix
from retilt.measures.base import FloatArray
from retilt.tilting import Problem, fit_at
from retilt.tilting.denoise import Denoiser, denoise
from retilt.tilting.paper import Paper, fit_paper

_GAP = 1e-9
"""Nats to which our own solver goes."""

_PRECISION = 1e-6
"""Largest distance from an answer at which peers stop: for ebal in the query's own units, for
L-BFGS-B in those of its spread. It gives them gaps below 1e-9 with something to spare."""


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
    """

    problem: Problem
    weights: FloatArray
    multipliers: FloatArray | None = None
    eta: float = 0.0
    gap: float | None = None


Solver: TypeAlias = Callable[[Case], Outcome]


def _reachable(case: Case) -> Problem:
    if case.reachable is None:
        raise ValueError("the case has no reachable answers.")
    return case.reachable


# ------------------------------------------------------------------------------- moments-65


def retilt(case: Case) -> Outcome:
    """One fit at trade-off 0, to a gap of 1e-9 nats."""
    problem = _reachable(case)
    solution = fit_at(problem, 0.0, gap=_GAP)
    return Outcome(problem, solution.weights, solution.multipliers)


def retilt_path(case: Case) -> Outcome:
    """The default method from table and noisy answers: encoding, path, choice, finish."""
    solution = rt.fit(case.synthetic, case.answers).solution
    return Outcome(case.noisy, solution.weights, solution.multipliers, solution.eta)


def paper_algorithm_1(case: Case) -> Outcome:
    """200 epochs of batches of 256, no tolerance around the answers."""
    problem = _reachable(case)
    settings = Paper(denoise=None, tolerance=0.0, algorithm=1)
    solution = fit_paper(problem, settings, norm=2, seed=0)
    return Outcome(problem, solution.weights, solution.multipliers)


def scipy_lbfgsb(case: Case) -> Outcome:
    """L-BFGS-B on the dual, queries centred on their answers and in units of their spread."""
    from scipy.optimize import minimize

    problem = _reachable(case)
    centred = query_matrix(problem)
    centred -= problem.answers
    unit = centred.std(axis=0)
    centred /= unit
    start = np.log(problem.base)

    def weigh(multipliers: FloatArray) -> tuple[float, FloatArray]:
        scores = start - centred @ multipliers
        top = scores.max()
        scores -= top
        np.exp(scores, out=scores)
        total = scores.sum()
        scores /= total
        return float(top + np.log(total)), scores

    def dual(multipliers: FloatArray) -> tuple[float, FloatArray]:
        value, weights = weigh(multipliers)
        return value, -(weights @ centred)

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
            "gtol": _PRECISION,
        },
    )
    return Outcome(problem, weigh(result.x)[1], result.x / unit)


def ebal(case: Case) -> Outcome:
    """Entropy balancing with one treated unit: the answers.

    ``ebalance`` has no way to leave out its rank test (a singular value decomposition) and its
    regression of an outcome afterwards, so both are counted.
    """
    from ebal import ebal_bin

    problem = _reachable(case)
    values = np.vstack([problem.answers, query_matrix(problem)])
    treated = np.zeros(values.shape[0])
    treated[0] = 1
    solver = ebal_bin(effect="ATT", PCA=False, print_level=-1, constraint_tolerance=_PRECISION)
    with warnings.catch_warnings():
        # The regression divides by zero with a single treated unit.
        warnings.simplefilter("ignore")
        result = solver.ebalance(
            treated, values, np.arange(float(treated.size)), base_weight=problem.base
        )
    weights = result["w"][1:]
    return Outcome(problem, weights / weights.sum(), -solver.coefs[1:])


# -------------------------------------------------------------------------------- denoise-*


def _denoiser(method: Denoiser) -> Solver:
    def solve(case: Case) -> Outcome:
        problem = case.noisy
        found = denoise(problem, method)
        weights = np.zeros(problem.rows)
        weights[found.rows] = found.shares
        return Outcome(problem, weights, gap=found.gap)

    return solve


def _half_spaces(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """(N, K + 1) constraints ``least - u . q_i <= 0`` and the cost ``u . a - least``.

    Both programs are given to their solvers in dual form, with u in units of the noise and
    ``least`` as the K + 1 variables; the shares are the constraints' own multipliers. Clarabel
    and HiGHS were both faster so than with the N shares as variables: Clarabel by 2 times on
    20,000 rows, HiGHS by 5 times on 307,511.
    """
    sigma = problem.covariance.deviations
    constraints = np.empty((problem.rows, problem.queries + 1))
    np.divide(query_matrix(problem), -sigma, out=constraints[:, :-1])
    constraints[:, -1] = 1.0
    return constraints, np.append(problem.answers / sigma, -1.0)


def _program_outcome(problem: Problem, shares: FloatArray, scaled: FloatArray) -> Outcome:
    shares = np.maximum(shares, 0.0)
    return Outcome(problem, shares / shares.sum(), scaled / problem.covariance.deviations)


def clarabel_qp(case: Case) -> Outcome:
    """The quadratic program over all rows at once, in dual form."""
    import clarabel
    from scipy.sparse import csc_array, diags_array

    problem = case.noisy
    constraints, cost = _half_spaces(problem)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    solver = clarabel.DefaultSolver(
        diags_array(np.append(np.ones(problem.queries), 0.0), format="csc"),
        cost,
        csc_array(constraints),
        np.zeros(problem.rows),
        [clarabel.NonnegativeConeT(problem.rows)],
        settings,
    )
    found = solver.solve()
    return _program_outcome(problem, np.array(found.z), np.array(found.x)[:-1])


def highs_lp(case: Case) -> Outcome:
    """The linear program over all rows at once, in dual form, by the dual simplex method."""
    from scipy.optimize import linprog

    problem = case.noisy
    constraints, cost = _half_spaces(problem)
    found = linprog(
        cost,
        A_ub=constraints,
        b_ub=np.zeros(problem.rows),
        bounds=[(-1, 1)] * problem.queries + [(None, None)],
        method="highs-ds",
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS: {found.message}")
    return _program_outcome(problem, -found.ineqlin.marginals, found.x[:-1])


SOLVERS: dict[str, dict[str, Solver]] = {
    "moments-65": {
        "retilt": retilt,
        "retilt-path": retilt_path,
        "scipy-lbfgsb": scipy_lbfgsb,
        "ebal": ebal,
        "paper-algorithm-1": paper_algorithm_1,
    },
    "denoise-qp": {"retilt": _denoiser("qp"), "clarabel": clarabel_qp},
    "denoise-lp": {"retilt": _denoiser("lp"), "highs": highs_lp},
}
"""For each problem its solvers by name."""

LARGEST = {"clarabel": 20_000}
"""Most rows that a solver is given: it does not end on 307,511 within minutes."""
