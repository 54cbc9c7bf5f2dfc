"""The exact solver of the paper's dual: its inner lasso, its verdicts, its certificate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from retilt.measures.base import Indicators, Products
from retilt.tilting.fold import Rows
from retilt.tilting.problem import Covariance, Problem
from retilt.tilting.reduction import reduce
from retilt.tilting.solution import box_residuals
from retilt.tilting.solvers import Verdict, drive
from retilt.tilting.solvers.proximal_newton import ProximalNewton, State, lasso

Array = NDArray[np.float64]


def linear(values: Array) -> Products:
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


def solve(
    values: Array, answers: Array, gamma: float, *, limit: int = 200
) -> tuple[State, Verdict, Rows]:
    problem = Problem(
        (linear(values),), answers, Covariance(np.full(len(answers), 1e-4)), np.ones(len(values))
    )
    rows = Rows.of(problem)
    solver = ProximalNewton(np.full(len(answers), gamma), 1e-10)
    state, verdict = drive(
        solver, reduce(problem, rows, answers), 0.0, np.zeros(len(answers)), limit=limit
    )
    return state, verdict, rows


def random_lasso(seed: int, size: int, condition: float) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    hessian = (basis * np.geomspace(1, 1 / condition, size)) @ basis.T
    return hessian, rng.normal(size=size), rng.uniform(0, 0.5, size) * (rng.random(size) > 0.2)


@pytest.mark.parametrize("seed", range(20))
def test_the_lasso_meets_its_optimality_conditions(seed: int) -> None:
    size = 1 + 3 * seed
    hessian, linear_term, gamma = random_lasso(seed, size, 10.0 ** (seed % 7))
    start = np.random.default_rng(seed).normal(size=size) * (seed % 2)
    x = lasso(hessian, linear_term, gamma, start)
    residuals = box_residuals(linear_term - hessian @ x, x, gamma)
    assert residuals.max() < 1e-12 * size * (1 + np.abs(x).max())
    assert np.all((x == 0) | (np.abs(x) > 1e-12))


def test_the_lasso_leaves_some_coordinates_at_zero() -> None:
    solved = [lasso(*random_lasso(seed, 30, 10.0), np.zeros(30)) for seed in range(5)]
    assert all(0 < np.count_nonzero(x) < 30 for x in solved)


def test_a_single_coordinate_is_soft_thresholded() -> None:
    for linear_term, expected in ((3.0, 1.0), (-3.0, -1.0), (0.5, 0.0), (1.0, 0.0)):
        x = lasso(np.array([[2.0]]), np.array([linear_term]), np.array([1.0]), np.zeros(1))
        assert x == pytest.approx([expected], abs=1e-12)


def test_the_lasso_with_collinear_queries_and_wild_scales() -> None:
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(50, 4))
    factor = np.hstack([factor, factor[:, :2], factor[:, :1] * 1e6, factor[:, 1:2] * 1e-6])
    hessian = factor.T @ factor / 50
    scale = np.sqrt(np.diagonal(hessian))
    target = hessian @ rng.normal(size=8)
    gamma = 0.01 * scale
    x = lasso(hessian, target, gamma, np.zeros(8))
    assert (box_residuals(target - hessian @ x, x, gamma) / scale).max() < 1e-12 * np.abs(
        x * scale
    ).max()


@pytest.mark.parametrize("gamma", [0.0, 1e-5, 1e-3, 0.02, 10.0])
def test_the_optimum_lies_in_the_box_and_has_no_gap(gamma: float) -> None:
    values = np.random.default_rng(1).random((500, 6))
    goal = values.mean(0) + np.array([0.05, -0.05, 0.04, 0.01, 0.0, -0.03])
    state, verdict, _ = solve(values, goal, gamma)
    assert verdict is Verdict.CONVERGED
    errors = state.fold.weights @ values - goal
    assert np.abs(errors).max() <= gamma + 1e-10
    gap = gamma * np.abs(state.multipliers).sum() - state.multipliers @ errors
    assert gap == pytest.approx(0, abs=1e-10)
    if gamma == 10:
        assert not np.any(state.multipliers)


def test_an_empty_box_is_proved_empty() -> None:
    values = np.random.default_rng(2).random((300, 3))
    state, verdict, rows = solve(values, np.array([0.5, 0.5, 1.5]), 1e-5)
    assert verdict is Verdict.UNBOUNDED
    # Weak duality: weights in the box would have a divergence above any that there is.
    assert -state.value > -np.log(rows.merged.min())
    assert np.all(np.isfinite(state.multipliers))


@pytest.mark.parametrize("gamma", [0.0, 1e-5])
def test_contradicting_answers_of_equal_queries_are_proved_contradictory(gamma: float) -> None:
    bits = (np.random.default_rng(3).random(1000) < 0.3) * 1.0
    values = np.column_stack([bits, bits**2])
    state, verdict, _ = solve(values, np.array([0.31, 0.33]), gamma)
    assert verdict is Verdict.UNBOUNDED
    assert np.all(np.isfinite(state.multipliers))
    state, verdict, _ = solve(values, np.array([0.31, 0.31]), gamma)
    assert verdict is Verdict.CONVERGED


def test_one_step_is_not_enough() -> None:
    values = np.random.default_rng(4).random((200, 3)) ** 3
    _, verdict, _ = solve(values, values.mean(0) + 0.2, 1e-5, limit=1)
    assert verdict is Verdict.LIMIT


def test_cells_and_products_together() -> None:
    rng = np.random.default_rng(5)
    values, codes = rng.random((800, 2)), rng.integers(0, 4, 800)
    base = rng.random(800)
    designs = (linear(values), Indicators(codes, 5))  # the fifth cell is empty
    weights = base * np.exp(values @ [0.4, -0.5] + np.array([0.2, 0, -0.3, 0.1])[codes])
    weights /= weights.sum()
    answers = Problem(designs, np.zeros(7), Covariance(np.ones(7)), base).means(weights)
    problem = Problem(designs, answers, Covariance(np.full(7, 1e-6)), base)
    rows = Rows.of(problem)
    reduced = reduce(problem, rows, answers)
    solver = ProximalNewton(np.full(6, 1e-4), 1e-10)
    state, verdict = drive(solver, reduced, 0.0, np.zeros(6), limit=100)
    assert verdict is Verdict.CONVERGED
    assert np.abs(state.fold.means - reduced.answers).max() <= 1e-4 + 1e-12
