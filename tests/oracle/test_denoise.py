"""Denoising against independent solvers with a variable for every row.

HiGHS for the linear program, Clarabel for the quadratic one. Both end within tolerances of
their own, so that their points are made feasible and valued afresh: the optimum is between what
our certificate says and the oracle's value.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import block_diag, csc_array, csc_matrix, eye_array, vstack

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem
from retilt.tilting.denoise import denoise


def feasible(weights):
    weights = np.maximum(weights, 0)
    return weights / weights.sum()


def linear_oracle(queries, answers, deviations):
    """Least absolute deviations over all rows: (value, bound)."""
    rows, size = queries.shape
    eye = np.eye(size)
    scaled = queries / deviations
    target = answers / deviations
    unit = max(1.0, np.abs(scaled - target).max())
    table = np.block([[scaled.T / unit, eye, -eye], [np.ones((1, rows)), np.zeros((1, 2 * size))]])
    found = linprog(
        np.r_[np.zeros(rows), np.ones(2 * size)],
        A_eq=table,
        b_eq=np.r_[target / unit, 1],
        method="highs",
    )
    value = float(np.abs(feasible(found.x[:rows]) @ scaled - target).sum())
    dual = np.clip(-found.eqlin.marginals[:size], -1, 1)
    return value, float((scaled @ dual).min() - target @ dual)


def quadratic_oracle(queries, answers, covariance):
    """Least squares over all rows in units of the noise: (value, bound)."""
    clarabel = pytest.importorskip("clarabel", reason="the oracle of the quadratic program")
    rows, size = queries.shape
    root = np.linalg.cholesky(covariance.dense())
    away = np.linalg.solve(root, (queries - answers).T)
    unit = np.abs(away).max() or 1.0
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    table = np.block(
        [[away / unit, -np.eye(size)], [np.ones((1, rows)), np.zeros((1, size))]],
    )
    bounds = -eye_array(rows, rows + size)
    cones = [clarabel.ZeroConeT(size + 1), clarabel.NonnegativeConeT(rows)]
    found = clarabel.DefaultSolver(
        csc_matrix(block_diag([csc_array((rows, rows)), eye_array(size)])),
        np.zeros(rows + size),
        csc_matrix(vstack([csc_array(table), bounds])),
        np.r_[np.zeros(size), 1, np.zeros(rows)],
        cones,
        settings,
    ).solve()
    nearest = away @ feasible(np.array(found.x[:rows]))
    value = float(nearest @ nearest) / 2
    least = max(0.0, float((nearest @ away).min()))
    return value, least**2 / (4 * value) if value > 0 else 0.0


def oracle(method, queries, problem):
    used = problem.base > 0
    if method == "lp":
        return linear_oracle(queries[used], problem.answers, problem.covariance.deviations)
    return quadratic_oracle(queries[used], problem.answers, problem.covariance)


def random_problem(seed):
    """A small problem of any kind, and its (N, K) query values.

    Two-valued and constant columns (whose squares repeat or vanish), few levels (merged rows),
    partitions with cells that no row is in, more queries than rows, shared noise, unequal
    deviations, rows of weight zero, answers in and out of reach.
    """
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.choice([1, 2, 3, 7, 20, 60, 200])), int(rng.integers(1, 5))
    values = rng.uniform(-1, 1, (rows, columns))
    for j in range(columns):
        kind = rng.random()
        if kind < 0.3:
            values[:, j] = rng.choice([-1.0, 1.0], rows)
        elif kind < 0.4:
            values[:, j] = 0.5
        elif kind < 0.6:
            values[:, j] = np.round(2 * values[:, j]) / 2
    left, right = np.triu_indices(columns)
    left, right = np.r_[np.arange(columns), left], np.r_[np.full(columns, -1), right]
    designs = [Products(values, left, right, np.zeros(left.size), np.ones(left.size))]
    extended = np.column_stack([values, np.ones(rows)])
    queries = [extended[:, left] * extended[:, right]]
    if rng.random() < 0.5:
        size = int(rng.integers(1, 6))
        codes = rng.integers(0, size, rows).astype(np.int32)
        designs.append(Indicators(codes, size + 1))
        queries.append(np.eye(size + 1)[codes])
    table = np.hstack(queries)
    count = table.shape[1]
    deviations = 10 ** rng.uniform(-3, 0) * np.exp(rng.normal(size=count) * rng.choice([0, 1]))
    shared = None
    if rng.random() < 0.4:
        shared = rng.normal(size=(count, int(rng.integers(1, 3)))) * deviations[:, None]
    answers = rng.dirichlet(np.full(rows, 0.5)) @ table
    answers += rng.normal(size=count) * deviations * rng.choice([0, 1, 30])
    base = rng.random(rows) * (rng.random(rows) > 0.2)
    base[0] = 1
    noise = Covariance(deviations**2, shared)
    return Problem(tuple(designs), answers, noise, base), table


def agree(result, value, bound):
    """Our value is the least, up to our gap, and the oracle's brackets say the same."""
    assert result.converged
    room = 1e-8 * max(1.0, result.value)
    assert result.value <= value + room
    # The oracle's own duality gap is what it leaves open.
    assert result.value >= bound - room
    assert value - bound < 1e-4 * max(1.0, value)


@pytest.mark.parametrize("method", ["qp", "lp"])
@pytest.mark.parametrize("seed", range(60))
def test_small_problems(method, seed):
    problem, queries = random_problem(seed)
    result = denoise(problem, method)
    agree(result, *oracle(method, queries, problem))
    weights = np.zeros(problem.rows)
    weights[result.rows] = result.shares
    np.testing.assert_allclose(weights @ queries, result.closest, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("pull", [1.0, 8.0])
@pytest.mark.parametrize("method", ["qp", "lp"])
def test_ten_columns(method, pull):
    """20,000 rows and 65 queries, with answers in reach and out of it."""
    rng = np.random.default_rng(1)
    rows, columns = 20_000, 10

    def table(mixing):
        common = rng.normal(size=(rows, 1)) * np.linspace(-1, 1, columns) * mixing
        values = 1 / (1 + np.exp(-(common + rng.normal(size=(rows, columns)) - 0.5)))
        return values ** (1 + np.arange(columns) % 3)

    left, right = np.triu_indices(columns)
    left, right = np.r_[np.arange(columns), left], np.r_[np.full(columns, -1), right]

    def queries(values):
        extended = np.column_stack([values, np.ones(rows)])
        return extended[:, left] * extended[:, right]

    values = table(0.4)
    synthetic = queries(values)
    before, real = synthetic.mean(axis=0), queries(table(0.8)).mean(axis=0)
    design = Products(values, left, right, np.zeros(left.size), np.ones(left.size))
    answers = before + pull * (real - before) + rng.normal(size=left.size) * 3e-3
    noise = Covariance(np.full(left.size, 3e-3**2))
    problem = Problem((design,), answers, noise, np.ones(rows))
    result = denoise(problem, method)
    agree(result, *oracle(method, synthetic, problem))
    # In the paper's own units too: queries in [0, 1], plain sums.
    unit = result.scale**2 if method == "qp" else result.scale
    assert result.gap * max(1.0, result.value) * unit < 1e-9
