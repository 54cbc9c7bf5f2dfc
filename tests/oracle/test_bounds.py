"""Bounded weights against independent solvers and against their definition.

Clarabel's exponential cone has the primal, a variable for every row; the conditions of
optimality, the dual, the derivatives and the degrees of freedom are worked out anew from their
definitions.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import rel_entr

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Solution, Status, fit_at
from retilt.tilting.bounded import BoundedRows, rows_of
from retilt.tilting.bounds import Bounds
from retilt.tilting.reduction import reduce
from retilt.tilting.solvers import Verdict, drive
from retilt.tilting.solvers.choice import method_for
from retilt.tilting.solvers.newton import effective_parameters
from retilt.tilting.solvers.proximal_newton import ProximalNewton

LIMITS = [(None, 1.5), (0.5, None), (0.3, 2.0), (0.8, 1.1), (0.05, 6.0)]
CASES = [(seed, *limits, eta) for seed, limits in enumerate(LIMITS) for eta in (30.0, 1.0, 0.1)]


def case(seed: int, lower: float | None, upper: float | None) -> tuple[Problem, NDArray]:
    """A problem with unequal base weights and shared noise, and its (rows, K) query values."""
    rng = np.random.default_rng(seed)
    rows, size, cells = int(rng.integers(40, 200)), int(rng.integers(1, 5)), 4
    values = rng.uniform(-1, 1, (rows, size))
    codes = rng.integers(0, cells, rows).astype(np.int32)
    none = np.full(size, -1)
    products = Products(values, np.arange(size), none, np.zeros(size), np.ones(size))
    base = rng.uniform(0.2, 2.0, rows)
    queries = np.column_stack([values, np.eye(cells)[codes]])
    truth = base * np.exp(queries @ rng.normal(size=size + cells))
    answers = truth / truth.sum() @ queries + 0.02 * rng.normal(size=size + cells)
    noise = Covariance(
        rng.uniform(0.01, 0.05, size + cells) ** 2, 0.01 * rng.normal(size=(size + cells, 1))
    )
    designs = (products, Indicators(codes, cells))
    return Problem(designs, answers, noise, base, bounds=Bounds.of(lower, upper)), queries


def primal(problem: Problem, queries: NDArray, weights: NDArray, eta: float) -> float:
    errors = weights @ queries - problem.answers
    inverse = np.linalg.inv(problem.covariance.dense())
    return float(rel_entr(weights, problem.base).sum() + errors @ inverse @ errors / (2 * eta))


def clipped(problem: Problem, scores: NDArray) -> tuple[NDArray, float]:
    """Weights of the inner maximum of the Lagrangian, and its value, by bisection."""
    bounds = problem.bounds
    assert bounds is not None

    def weights(nu: float) -> NDArray:
        ratios = np.exp(np.minimum(scores - nu, 100.0))
        return problem.base * np.clip(ratios, bounds.lower, bounds.upper)

    low, high = scores.min() - 50, scores.max() + 50
    found = weights(brentq(lambda nu: weights(nu).sum() - 1, low, high, xtol=1e-14, rtol=1e-14))
    return found, float(found @ scores - rel_entr(found, problem.base).sum())


@pytest.mark.parametrize(("seed", "lower", "upper", "eta"), CASES)
def test_the_optimum_is_clarabels(seed, lower, upper, eta):
    cvxpy = pytest.importorskip("cvxpy", reason="the oracle of the bounded projection")
    problem, queries = case(seed, lower, upper)
    solution = fit_at(problem, eta)
    assert solution.status is Status.CONVERGED
    weights = cvxpy.Variable(problem.rows)
    root = np.linalg.cholesky(np.linalg.inv(problem.covariance.dense()))
    errors = root.T @ (queries.T @ weights - problem.answers)
    objective = cvxpy.sum(cvxpy.kl_div(weights, problem.base)) + cvxpy.sum_squares(errors) / (
        2 * eta
    )
    limits = [
        cvxpy.sum(weights) == 1,
        weights >= problem.bounds.lower * problem.base,
        weights <= min(problem.bounds.upper, 1e6) * problem.base,
    ]
    oracle = cvxpy.Problem(cvxpy.Minimize(objective), limits)
    oracle.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    ours = primal(problem, queries, solution.weights, eta)
    # A weight of Clarabel's may be a rounding below zero.
    theirs = primal(problem, queries, np.maximum(weights.value, 0), eta)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-7)
    # The divergence is strongly convex: the square of the distance is the gap's size.
    np.testing.assert_allclose(solution.weights, weights.value, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("seed", "lower", "upper", "eta"), CASES)
def test_the_conditions_of_optimality_hold(seed, lower, upper, eta):
    problem, queries = case(seed, lower, upper)
    solution = fit_at(problem, eta)
    bounds = problem.bounds
    assert bounds.hold(solution.weights, problem.base)
    assert any(bounds.at_bounds(solution.weights, problem.base))
    errors = solution.weights @ queries - problem.answers
    gradient = np.log(solution.weights / problem.base) + queries @ np.linalg.solve(
        eta * problem.covariance.dense(), errors
    )
    ratios = solution.weights / problem.base
    # Without a floor the least weights are as good as zero, below what a logarithm tells.
    low = (ratios < bounds.lower * (1 + 1e-12)) | (ratios < 1e-290)
    high = ratios > bounds.upper * (1 - 1e-12)
    free = ~low & ~high
    level = (
        gradient[free].mean() if free.any() else (gradient[low].min() + gradient[high].max()) / 2
    )
    np.testing.assert_allclose(gradient[free], level, rtol=0, atol=1e-7)
    # To move weight from a row at its cap to one at its floor would cost.
    assert np.all(gradient[high] <= level + 1e-7)
    assert np.all(gradient[low] >= level - 1e-7)


@pytest.mark.parametrize(("seed", "lower", "upper", "eta"), CASES)
def test_the_gap_is_the_primal_less_the_dual(seed, lower, upper, eta):
    problem, queries = case(seed, lower, upper)
    # Far from the optimum, where a gap is a number to compare.
    rough = fit_at(problem, eta, gap=1e-2)
    noise = problem.covariance.dense()
    for solution in (rough, fit_at(problem, eta)):
        own = solution.multipliers
        weights, value = clipped(problem, -(queries - problem.answers) @ own)
        np.testing.assert_allclose(weights, solution.weights, rtol=0, atol=1e-12)
        dual = -value - eta / 2 * own @ noise @ own
        ours = primal(problem, queries, solution.weights, eta)
        assert solution.gap() == pytest.approx(ours - dual, rel=1e-6, abs=1e-10 * max(1, ours))
    assert solution.gap() < 1e-16


@pytest.mark.parametrize(("seed", "lower", "upper"), [(k, *v) for k, v in enumerate(LIMITS)])
def test_the_hessian_is_the_derivative_of_the_means(seed, lower, upper):
    problem, _ = case(seed, lower, upper)
    rows = rows_of(problem)
    assert isinstance(rows, BoundedRows)
    rng = np.random.default_rng(seed)
    point = rng.normal(size=problem.queries)
    fold = rows.fold(point)
    assert not fold.free.all()
    hessian = rows.covariance(fold)
    step, vectors = 1e-6, rng.normal(size=(5, problem.queries))
    for vector in vectors:
        ends = [rows.fold(point + sign * step * vector) for sign in (1, -1)]
        for end in ends:
            # No row meets its bound on the way, where the derivative jumps.
            np.testing.assert_array_equal(end.free, fold.free)
        slope = -(ends[0].means - ends[1].means) / (2 * step)
        np.testing.assert_allclose(hessian @ vector, slope, rtol=1e-6, atol=1e-8)
        rise = (ends[0].log_normaliser - ends[1].log_normaliser) / (2 * step)
        assert rise == pytest.approx(-fold.means @ vector, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("seed", "lower", "upper"), [(k, *v) for k, v in enumerate(LIMITS)])
def test_the_trace_of_the_risk_estimate_is_the_divergence_of_the_means(seed, lower, upper):
    problem, _ = case(seed, lower, upper)
    eta, step = 3.0, 1e-6
    rows = rows_of(problem)
    reduced = reduce(problem, rows, problem.answers)
    solved = method_for(reduced).solve(reduced, eta, np.zeros(problem.queries), 1e-20, 200)[0]
    claimed = effective_parameters(reduced, rows.covariance(solved.fold), eta)
    slopes = 0.0
    for k in range(problem.queries):
        ends = []
        for sign in (1, -1):
            moved = problem.answers.copy()
            moved[k] += sign * step
            other = Problem(
                problem.designs, moved, problem.covariance, problem.base, bounds=problem.bounds
            )
            ends.append(fit_at(other, eta).after[k])
        slopes += (ends[0] - ends[1]) / (2 * step)
    assert claimed == pytest.approx(slopes, rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_tolerances_in_a_box_know_bounds_too(seed):
    """The paper's dual with its L1 term, on rows whose weights are bounded."""
    cvxpy = pytest.importorskip("cvxpy", reason="the oracle of the bounded projection")
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (120, 3))
    design = Products(values, np.arange(3), np.full(3, -1), np.zeros(3), np.ones(3))
    base = rng.uniform(0.2, 2.0, 120)
    tolerances = np.array([0.01, 0.05, 0.0])
    answers = np.array([0.2, 0.0, -0.1])
    problem = Problem(
        (design,), answers, Covariance(np.full(3, 1e-4)), base, bounds=Bounds.of(0.3, 1.6)
    )
    rows = rows_of(problem)
    reduced = reduce(problem, rows, answers)
    solver = ProximalNewton(tolerances, 1e-10)
    state, verdict = drive(solver, reduced, 0.0, np.zeros(3), limit=100)
    assert verdict is Verdict.CONVERGED
    found = rows.expand(state.fold.weights, problem.rows)
    assert problem.bounds.hold(found, problem.base)
    weights = cvxpy.Variable(120)
    limits = [
        cvxpy.sum(weights) == 1,
        weights >= 0.3 * problem.base,
        weights <= 1.6 * problem.base,
        cvxpy.abs(values.T @ weights - answers) <= tolerances,
    ]
    oracle = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.kl_div(weights, problem.base))), limits)
    oracle.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert rel_entr(found, problem.base).sum() == pytest.approx(oracle.value, abs=1e-7)
    np.testing.assert_allclose(found, weights.value, rtol=0, atol=2e-4)


def floored(problem: Problem, eta: float, share: float) -> Solution:
    base_ess = 1 / np.sum(problem.base**2)
    return fit_at(problem, eta, min_ess=share * base_ess)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("seed", range(4))
def test_a_floor_moves_the_trade_off_no_farther_than_it_takes(seed, share):
    problem, _ = case(seed, None, None)
    eta = 1e-3
    solution = floored(problem, eta, share)
    floor = share / np.sum(problem.base**2)
    assert solution.ess >= floor
    assert solution.gap() < 1e-16
    if solution.status is Status.FLOOR_REACHED:
        assert solution.eta > eta
        assert fit_at(problem, solution.eta / 1.002).ess < floor
    else:
        assert solution.eta == eta
