from __future__ import annotations

import numpy as np
import pytest

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Status, fit_at
from retilt.tilting.fold import Rows
from retilt.tilting.reduction import MAX_VARYING, reduce
from retilt.tilting.solvers import Verdict, drive, search
from retilt.tilting.solvers.newton import (
    Newton,
    Pivoted,
    System,
    Updated,
    effective_parameters,
    with_hessian,
)


def linear(values) -> Products:
    values = np.asarray(values, dtype=float)
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 6))
    values[:, 5] = values[:, 0] + values[:, 1]
    noise = Covariance(rng.uniform(0.5, 2, 6) * 1e-3, 0.02 * rng.normal(size=(6, 1)))
    return Problem((linear(values),), 0.2 * rng.normal(size=6), noise, rng.random(400))


def whole(problem: Problem):
    return reduce(problem, Rows.of(problem), problem.answers)


def test_known_answers():
    # One two-valued query: log odds of the weights are log odds of the base minus lambda, and
    # lambda = e / (eta s^2). Solved here by bisection in one line of algebra.
    part = linear([[0.0], [1.0]])
    solution = fit_at(Problem((part,), np.array([0.8]), Covariance([0.01]), [3.0, 1.0]), 2.0)
    share = solution.after[0]
    assert solution.multipliers[0] == pytest.approx((share - 0.8) / (2.0 * 0.01))
    odds = np.log(share / (1 - share))
    assert odds == pytest.approx(np.log(1 / 3) - solution.multipliers[0])


@pytest.mark.parametrize("target", [0.01, 0.3, 0.5, 0.999])
def test_known_answers_without_noise(target):
    cells = Indicators(np.array([0, 0, 0, 1], dtype=np.int32), 2)
    task = Problem((cells,), np.array([1 - target, target]), Covariance(np.ones(2)), np.ones(4))
    solution = fit_at(task, 0.0)
    assert solution.status is Status.CONVERGED
    expected = [(1 - target) / 3] * 3 + [target]
    np.testing.assert_allclose(solution.weights, expected, rtol=1e-8)


@pytest.mark.parametrize("eta", [1e-4, 1e-2, 1.0, 1e3, 1e9])
def test_the_gradient_vanishes(problem, eta):
    reduced = whole(problem)
    state, verdict = drive(Newton(1e-20), reduced, eta, np.zeros(6), limit=200)
    assert verdict is Verdict.CONVERGED
    noise = problem.covariance
    assert noise.quadratic_inverse(state.gradient) / (2 * eta) < 1e-12
    finite = np.zeros(6)
    for k in range(6):
        step = 1e-5 / np.abs(problem.designs[0].values[:, k]).max()
        values = [
            Newton(0.0).init(reduced, eta, state.multipliers + sign * step * np.eye(6)[k]).value
            for sign in (1, -1)
        ]
        finite[k] = (values[0] - values[1]) / (2 * step)
    scale = 1 + eta * np.abs(noise.times(state.multipliers))
    assert np.all(np.abs(finite - state.gradient) < 1e-4 * scale)


def test_the_trace_is_the_matrix_formula(problem):
    reduced = whole(problem)
    for eta in (1e-3, 1.0, 1e3):
        state, _ = drive(Newton(1e-12), reduced, eta, np.zeros(6), limit=200)
        hessian = with_hessian(reduced, state).hessian
        noise = problem.covariance.dense()
        expected = np.trace(hessian @ np.linalg.inv(hessian + eta * noise))
        assert effective_parameters(reduced, hessian, eta) == pytest.approx(expected, rel=1e-8)


def test_a_start_far_away_is_damped(problem):
    reduced = whole(problem)
    near, _ = drive(Newton(1e-20), reduced, 1.0, np.zeros(6), limit=200)
    far, verdict = drive(Newton(1e-20), reduced, 1.0, np.full(6, 300.0), limit=200)
    assert verdict is Verdict.CONVERGED
    np.testing.assert_allclose(far.fold.weights, near.fold.weights, rtol=1e-7)


def test_the_limit_is_kept(problem):
    reduced = whole(problem)
    _, verdict = drive(Newton(1e-20), reduced, 1e-3, np.zeros(6), limit=1)
    assert verdict is Verdict.LIMIT


def test_a_search_that_finds_nothing_ends(problem, monkeypatch):
    monkeypatch.setattr(search, "_HALVINGS", 0)
    reduced = whole(problem)
    state, verdict = drive(Newton(1e-20), reduced, 1.0, np.zeros(6), limit=5)
    assert verdict is Verdict.STALLED
    np.testing.assert_array_equal(state.multipliers, 0)


def test_unreachable_exact_answers_end():
    part = linear([[0.0], [1.0], [0.5]])
    solution = fit_at(Problem((part,), np.array([3.0]), Covariance([1.0]), np.ones(3)), 0.0)
    assert solution.status is Status.ITERATION_LIMIT
    assert np.all(np.isfinite(solution.weights))


def test_fixed_queries_are_conditioned_on():
    """With shared noise the constant queries' errors correct the others' answers."""
    rng = np.random.default_rng(1)
    values = np.hstack([rng.normal(size=(200, 2)), np.ones((200, 2))])
    noise = Covariance(np.full(4, 1e-3), 0.05 * rng.normal(size=(4, 2)))
    answers = np.array([0.1, -0.1, 1.02, 0.97])
    solution = fit_at(Problem((linear(values),), answers, noise, np.ones(200)), 5.0)
    assert solution.kkt_residual() < 1e-9
    assert solution.gap() < 1e-18
    # The same with the constants a hair's breadth from constant, so that nothing is conditioned.
    values[:, 2:] += 1e-9 * rng.normal(size=(200, 2))
    other = fit_at(Problem((linear(values),), answers, noise, np.ones(200)), 5.0)
    np.testing.assert_allclose(other.weights, solution.weights, rtol=1e-5)
    np.testing.assert_allclose(other.multipliers, solution.multipliers, rtol=1e-4)


def test_cells_without_rows_have_their_own_multiplier():
    codes = np.array([0, 0, 1, 1], dtype=np.int32)
    answers = np.array([0.4, 0.5, 0.1])
    task = Problem((Indicators(codes, 3),), answers, Covariance([1e-4] * 3), np.ones(4))
    solution = fit_at(task, 7.0)
    assert solution.multipliers[2] == pytest.approx(-0.1 / (7 * 1e-4))
    assert solution.kkt_residual() < 1e-10


def test_too_many_varying_queries_are_refused():
    size = MAX_VARYING + 1
    codes = np.arange(size, dtype=np.int32)
    task = Problem((Indicators(codes, size),), np.ones(size), Covariance([1.0] * size), [1] * size)
    with pytest.raises(Exception, match=r"20,001 queries.*20,000.*coarser"):
        whole(task)


def test_wide_marginals_with_few_filled_cells_are_not():
    codes = np.arange(10, dtype=np.int32)
    size = 1_000_000
    noise = Covariance(np.full(size, 1e-4))
    task = Problem((Indicators(codes, size),), np.full(size, 1 / size), noise, np.ones(10))
    assert whole(task).answers.size == 10


def test_contradicting_answers_have_no_optimum_without_noise():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(200, 3))
    values = np.column_stack([values, values[:, 0] - values[:, 1]])
    answers = np.array([0.1, 0.05, 0.0, 0.05])
    noise = Covariance(np.full(4, 1e-4))
    good = whole(Problem((linear(values),), answers, noise, np.ones(200)))
    assert drive(Newton(1e-12), good, 0.0, np.zeros(4), limit=50)[1] is Verdict.CONVERGED
    answers[3] += 1e-3
    task = Problem((linear(values),), answers, noise, np.ones(200))
    assert drive(Newton(1e-12), whole(task), 0.0, np.zeros(4), limit=50)[1] is Verdict.UNBOUNDED
    assert fit_at(task, 0.0).status is Status.ITERATION_LIMIT
    # With noise they only leave a misfit.
    assert fit_at(task, 1.0).status is Status.CONVERGED


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_singular_hessian_by_pivots(scale):
    rng = np.random.default_rng(5)
    root = rng.normal(size=(7, 4)) * np.geomspace(scale, 1, 7)[:, None]
    hessian = root @ root.T
    system = Pivoted.of(hessian)
    assert system.lower.shape == (7, 4)
    inside = hessian @ (rng.normal(size=7) / np.diagonal(hessian))
    unit = np.sqrt(np.diagonal(hessian))
    np.testing.assert_allclose(hessian @ system.solve(inside) / unit, inside / unit, rtol=1e-7)
    assert system.missed(inside) < 1e-9 * np.abs(inside / unit).max()
    outside = rng.normal(size=7) * unit
    left = outside - hessian @ system.solve(outside)
    assert system.missed(outside) == pytest.approx(np.abs(left / unit).max(), rel=1e-7)
    assert system.missed(outside) > 0.01


def test_an_inverse_learns_from_steps():
    rng = np.random.default_rng(6)
    root = rng.normal(size=(5, 5))
    hessian = root @ root.T + np.eye(5)
    inverse = System.of(hessian + np.diag(rng.uniform(0, 3, 5)))
    learnt = inverse
    # Along steps that are conjugate to each other every pair's secant equation stays true.
    steps = np.linalg.eigh(hessian)[1].T
    for count, step in enumerate(steps, 1):
        learnt = Updated.by(learnt, step, hessian @ step)
        for known in steps[:count]:
            np.testing.assert_allclose(learnt.solve(hessian @ known), known, atol=1e-10)
    np.testing.assert_allclose(learnt.solve(root[0]), np.linalg.solve(hessian, root[0]))
    assert Updated.by(inverse, steps[0], -hessian @ steps[0]) is inverse
