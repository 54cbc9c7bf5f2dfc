"""Constraints against CVXPY: KL with equalities, and with equalities beside noisy answers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import rel_entr

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, fit_at, fit_path


def problem_of(seed: int) -> tuple[Problem, NDArray[np.float64]]:
    """Noisy means and an exact partition of uneven cells, one of them to be emptied."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(60, 250))
    values = rng.normal(size=(rows, 4))
    values[:, 3] = values[:, 0] * values[:, 1]
    codes = np.minimum(rng.geometric(0.4, rows) - 1, 3).astype(np.int32)
    none = np.full(4, -1)
    means = Products(values, np.arange(4), none, np.zeros(4), np.ones(4))
    matrix = np.hstack([values, np.eye(4)[codes]])
    answers = rng.dirichlet(np.full(rows, 5.0)) @ matrix
    exact = np.array([seed % 3 == 0, False, False, False, True, True, True, True])
    if seed % 2:
        answers[4:] *= np.array([1, 1, 1, 0]) / answers[4:7].sum()
    answers[~exact] += 0.03 * rng.normal(size=int(np.count_nonzero(~exact)))
    noise = Covariance(np.where(exact, 1.0, 0.03**2))
    base = rng.random(rows) + 0.05
    return Problem((means, Indicators(codes, 4)), answers, noise, base, exact=exact), matrix


def solved(problem: Problem, matrix: NDArray[np.float64], eta: float) -> NDArray[np.float64]:
    """The constrained optimum by Clarabel."""
    cvxpy = pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    weights = cvxpy.Variable(problem.rows)
    noisy, exact = ~problem.exact, problem.exact
    errors = matrix[:, noisy].T @ weights - problem.answers[noisy]
    whitened = cvxpy.multiply(1 / problem.covariance.deviations[noisy], errors)
    objective = cvxpy.sum(cvxpy.rel_entr(weights, problem.base))
    if eta < np.inf:
        objective += cvxpy.sum_squares(whitened) / (2 * eta)
    # Of a whole partition one cell follows from the others.
    held = np.flatnonzero(exact)[:-1]
    task = cvxpy.Problem(
        cvxpy.Minimize(objective),
        [matrix[:, held].T @ weights == problem.answers[held], cvxpy.sum(weights) == 1],
    )
    with warnings.catch_warnings():
        # Clarabel may stop a little short of these tolerances, and says so.
        warnings.simplefilter("ignore")
        task.solve(
            solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10, max_iter=200
        )
    return np.asarray(weights.value)


@pytest.mark.parametrize("seed", range(8))
def test_the_path_s_point_is_the_constrained_optimum(seed):
    problem, matrix = problem_of(seed)
    solution = fit_path(problem, lambda answers: answers)
    assert not np.any(solution.unmet)
    theirs = solved(problem, matrix, solution.eta)
    np.testing.assert_allclose(solution.weights, theirs, atol=2e-6)
    ours = rel_entr(solution.weights, problem.base).sum()
    assert ours == pytest.approx(rel_entr(np.maximum(theirs, 0), problem.base).sum(), abs=1e-5)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eta", [0.1, 10.0])
def test_a_single_trade_off(seed, eta):
    problem, matrix = problem_of(seed)
    solution = fit_at(problem, eta)
    assert not np.any(solution.unmet)
    np.testing.assert_allclose(solution.weights, solved(problem, matrix, eta), atol=2e-6)
