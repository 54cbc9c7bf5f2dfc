"""The paper's theorem and its algorithm's limit, and our own optimum, against CVXPY.

CVXPY is given the primal problem as it stands, a relative entropy over the simplex, and solves it
with Clarabel's exponential cones; nothing of the dual or of the closed form is told to it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import rel_entr

from retilt.measures.base import Products
from retilt.tilting import Covariance, Problem, fit_at
from retilt.tilting.denoise import denoise
from retilt.tilting.paper import Paper, fit_paper

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A small table, its paper's queries (N, K), answers, their deviations, base weights."""

    queries: Array
    answers: Array
    deviations: Array
    base: Array

    @property
    def problem(self) -> Problem:
        size = self.queries.shape[1]
        design = Products(
            self.queries, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size)
        )
        return Problem((design,), self.answers, Covariance(self.deviations**2), self.base)


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(40, 250)), int(rng.integers(1, 4))
    x = rng.beta(2, 3, size=(rows, columns))
    if seed % 3 == 0:
        x[:, 0] = x[:, 0] > 0.4  # then x and its square are the same query
    left, right = np.triu_indices(columns)
    queries = np.hstack([x, x[:, left] * x[:, right]])
    base = rng.gamma(3.0, size=rows)
    base /= base.sum()
    goal = base * np.exp(queries[:, :columns] @ rng.normal(size=columns))
    answers = goal / goal.sum() @ queries
    deviations = np.full(answers.size, 10.0 ** rng.uniform(-3, -1.5))
    return Case(queries, answers + deviations * rng.normal(size=answers.size), deviations, base)


def solve(
    objective: cp.Expression, constraints: list[cp.Constraint], weights: cp.Variable
) -> float:
    """The least value; weights that the solver left a hair under zero count as zero."""
    problem = cp.Problem(cp.Minimize(objective), constraints)
    for tol in (1e-10, 1e-9):  # what rounding allows, which differs with the linear algebra
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            problem.solve(solver="CLARABEL", tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
        if problem.status == "optimal":
            break
    assert problem.status == "optimal"
    assert weights.value is not None
    assert weights.value.min() > -1e-9
    weights.value = np.maximum(weights.value, 0.0)
    return float(objective.value)


def divergence(weights: cp.Variable, base: Array) -> cp.Expression:
    return cp.sum(cp.rel_entr(weights, base))


@pytest.mark.parametrize("gamma", [1e-3, 1e-5])
@pytest.mark.parametrize("seed", range(8))
def test_the_exact_dual_is_the_box_constrained_projection(seed: int, gamma: float) -> None:
    small = case(seed)
    paper = Paper(solver="exact", tolerance=gamma)
    solution = fit_paper(small.problem, paper, norm=2)
    weights = cp.Variable(small.base.size)
    errors = small.queries.T @ weights - solution.aim
    best = solve(
        divergence(weights, small.base), [cp.sum(weights) == 1, cp.abs(errors) <= gamma], weights
    )
    ours = float(rel_entr(solution.weights, small.base).sum())
    assert ours == pytest.approx(best, abs=1e-7)
    assert np.abs(solution.after - solution.aim).max() <= gamma + 1e-9
    assert solution.gap() < 1e-8
    np.testing.assert_allclose(solution.weights, weights.value, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_our_optimum_is_the_penalised_projection(seed: int) -> None:
    small = case(seed)
    eta = float(10.0 ** np.random.default_rng(seed).uniform(-2, 2))
    solution = fit_at(small.problem, eta)
    weights = cp.Variable(small.base.size)
    errors = (small.queries.T @ weights - small.answers) / small.deviations
    best = solve(
        divergence(weights, small.base) + cp.sum_squares(errors) / (2 * eta),
        [cp.sum(weights) == 1],
        weights,
    )
    ours = float(rel_entr(solution.weights, small.base).sum())
    ours += float(np.sum(((solution.after - small.answers) / small.deviations) ** 2)) / (2 * eta)
    assert ours == pytest.approx(best, rel=1e-6, abs=1e-7)
    np.testing.assert_allclose(solution.weights, weights.value, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_theorems_closed_form(seed: int) -> None:
    """P_post is P_syn times exp(-lambda.(q - a)), normalised, with the returned lambda."""
    small = case(seed)
    for solver in ("exact", "sgd"):
        solution = fit_paper(
            small.problem,
            Paper(solver=solver, epochs=20),  # type: ignore[arg-type]
            norm=2,
            seed=0,
        )
        tilted = small.base * np.exp(-(small.queries - solution.aim) @ solution.multipliers)
        np.testing.assert_allclose(solution.weights, tilted / tilted.sum(), rtol=1e-9, atol=1e-15)


def test_the_algorithms_limit_is_the_exact_dual() -> None:
    """The distance from the optimum goes to zero with the number of epochs."""
    rng = np.random.default_rng(5)
    x = rng.random((2000, 2))
    queries = np.hstack([x, x**2, x[:, :1] * x[:, 1:]])
    base = np.full(2000, 1 / 2000)
    goal = np.exp(x @ [0.8, -0.6])
    small = Case(queries, goal / goal.sum() @ queries, np.full(5, 1e-3), base)
    exact = fit_paper(small.problem, Paper(solver="exact"), norm=2)
    distances = []
    for epochs in (5, 50, 500):
        stochastic = fit_paper(small.problem, Paper(epochs=epochs), norm=2, seed=0)
        distances.append(float(np.abs(stochastic.weights - exact.weights).sum()))
    assert distances[0] > 3 * distances[1] > 9 * distances[2]
    assert distances[2] < 1e-3


def test_resampling_weights_are_the_projected_distribution() -> None:
    """The paper's P_post over distinct rows is what resampling all rows by weight draws from."""
    rng = np.random.default_rng(6)
    rows = rng.integers(0, 4, size=(600, 2)) / 3
    distinct, where, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    answers = np.array([0.55, 0.45, 0.31])
    fits = []
    for table, base in ((rows, np.full(600, 1 / 600)), (distinct, counts / 600)):
        queries = np.hstack([table, table[:, :1] * table[:, 1:]])
        small = Case(queries, answers, np.full(3, 1e-3), base)
        fits.append(fit_paper(small.problem, Paper(solver="exact"), norm=2))
    of_rows, of_values = fits
    np.testing.assert_allclose(
        np.bincount(where.ravel(), weights=of_rows.weights), of_values.weights, atol=1e-12
    )
    # Equal rows get equal weights, so that drawing rows is drawing values.
    np.testing.assert_allclose(of_rows.weights, (of_values.weights / counts)[where.ravel()])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["qp", "lp"])
def test_denoised_answers_can_be_met(seed: int, method: str) -> None:
    """Whatever the noise, denoised answers have a projection, and the theorem applies."""
    small = case(seed)
    far = Case(small.queries, small.answers + 0.5, small.deviations, small.base)
    paper = Paper(solver="exact", denoise=method)  # type: ignore[arg-type]
    solution = fit_paper(far.problem, paper, norm=2)
    assert solution.kkt_residual() < 1e-6
    denoised = denoise(far.problem, method)  # type: ignore[arg-type]
    np.testing.assert_allclose(solution.aim, denoised.answers)
    assert np.abs(solution.after - solution.aim).max() <= paper.tolerance + 1e-9
