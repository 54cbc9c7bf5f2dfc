"""The solver without a Hessian against the one with it."""

from __future__ import annotations

import numpy as np
import pytest

from retilt.exceptions import InputError
from retilt.measures.base import Grouped, Indicators, Products
from retilt.tilting import Covariance, Problem, Status, fit_path, path, points
from retilt.tilting.fold import Rows
from retilt.tilting.path import check_problem, fit_at
from retilt.tilting.reduction import MAX_DENSE, reduce
from retilt.tilting.solvers import Verdict, choice, drive, newton_cg
from retilt.tilting.solvers.newton import Newton, effective_parameters, with_hessian
from retilt.tilting.solvers.newton_cg import (
    NewtonCG,
    conjugate_gradients,
    estimated_parameters,
    hessian_times,
)
from retilt.tilting.solvers.preconditioner import Blocks


def same(answers):
    return answers


def problem_of(seed: int, *, shared: int = 1, guards: bool = False) -> Problem:
    """Moments, overlapping tables and means by group: 50 to 150 queries, many collinear."""
    rng = np.random.default_rng(seed)
    rows = 3000
    values = np.clip(0.4 * rng.normal(size=(rows, 6)), -1, 1)
    values[:, 5] = 0.5 * values[:, 0] + 0.5 * values[:, 1]
    pairs = [(i, -1) for i in range(6)] + [(i, j) for i in range(6) for j in range(i, 6)]
    left, right = np.array(pairs).T
    moments = Products(values, left, right, np.zeros(27), np.ones(27))
    codes = [
        np.clip((values[:, k] + 0.3 * rng.normal(size=rows) + 1) * 6, 0, 11).astype(np.int32)
        for k in range(int(rng.integers(2, 9)))
    ]
    cell = np.repeat(np.arange(12), 2)
    column = np.tile([-1, 2], 12)
    none = np.full(24, -1)
    groups = Grouped(codes[0], 12, values, cell, column, none, np.zeros(24), np.ones(24))
    designs = [moments, *(Indicators(c, 12) for c in codes), groups]
    size = 27 + 12 * len(codes) + 24
    noise = Covariance(
        rng.uniform(0.5, 2, size) ** 2 * 1e-5, 3e-3 * rng.normal(size=(size, shared))
    )
    tilt = np.exp(0.4 * values[:, 0] - 0.5 * values[:, 1] * values[:, 2])
    plain = Problem(designs, np.zeros(size), noise, rng.random(rows) + 0.2)
    answers = plain.means(plain.base * tilt / (plain.base @ tilt))
    answers += np.linalg.cholesky(noise.dense()) @ rng.normal(size=size)
    if not guards:
        return Problem(designs, answers, noise, plain.base)
    measured = np.arange(size) < size - 24
    answers[~measured] = plain.means(plain.base)[~measured]
    own = Covariance(noise.variances, noise.factor * measured[:, None])
    return Problem(designs, answers, own, plain.base, measured)


def whole(problem: Problem):
    return reduce(problem, Rows.of(problem), problem.answers)


@pytest.fixture
def wide(monkeypatch):
    """Every problem counts as a wide one."""
    monkeypatch.setattr(choice, "MAX_DENSE", 0)
    monkeypatch.setattr(points, "MAX_DENSE", 0)
    monkeypatch.setattr(path, "MAX_DENSE", 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_product_with_the_hessian_is_that_of_the_matrix(seed):
    problem = problem_of(seed)
    rows = Rows.of(problem)
    rng = np.random.default_rng(seed)
    size = int(np.count_nonzero(rows.varying))
    fold = rows.fold(0.3 * rng.normal(size=size))
    matrix = rows.covariance(fold)
    vector = rng.normal(size=size)
    reduced = whole(problem)
    np.testing.assert_allclose(hessian_times(reduced, fold, vector), matrix @ vector, atol=1e-12)
    np.testing.assert_allclose(rows.variances(fold), np.diagonal(matrix), atol=1e-13)
    blocks = Blocks.of(reduced, fold, 2.0)
    inverse = np.column_stack([blocks.solve(unit) for unit in np.eye(size)])
    np.testing.assert_allclose(np.diagonal(inverse), blocks.inverse_diagonal(), rtol=1e-8)
    noise = 2 * reduced.covariance.variances
    for part in rows.cells:
        own = matrix[part.place, part.place] + np.diag(noise[part.place])
        np.testing.assert_allclose(
            np.linalg.inv(inverse[part.place, part.place]), own, rtol=1e-6, atol=1e-10
        )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("eta", [1e-1, 10.0, 1e3, 1e5])
def test_it_finds_newtons_optimum(seed, eta):
    reduced = whole(problem_of(seed, shared=seed % 3))
    start = np.zeros(reduced.answers.size)
    exact, _ = drive(Newton(1e-20), reduced, eta, start, limit=100)
    state, verdict = drive(NewtonCG(1e-18), reduced, eta, start, limit=100)
    assert verdict is Verdict.CONVERGED
    np.testing.assert_allclose(state.fold.weights, exact.fold.weights, rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(state.fold.means, exact.fold.means, atol=1e-9)


@pytest.mark.parametrize("guards", [False, True])
@pytest.mark.parametrize("eta", [1.0, 100.0, 1e4])
def test_the_trace_is_right_on_average(eta, guards, monkeypatch):
    monkeypatch.setattr(newton_cg, "_PROBES", 100)
    reduced = whole(problem_of(7, guards=guards))
    state, _ = drive(Newton(1e-12), reduced, eta, np.zeros(reduced.answers.size), limit=100)
    hessian = with_hessian(reduced, state).hessian
    expected = effective_parameters(reduced, hessian, eta)
    assert estimated_parameters(reduced, state.fold, eta) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("seed", range(3))
def test_the_path_and_its_choice_are_nearly_the_same(seed, wide, monkeypatch):
    problem = problem_of(seed, guards=seed == 2)
    found = fit_path(problem, same)
    monkeypatch.undo()
    exact = fit_path(problem, same)
    assert found.status is exact.status is Status.CONVERGED
    assert found.sure == pytest.approx(exact.sure, abs=0.05 * problem.queries)
    assert found.misfit_after == pytest.approx(exact.misfit_after, rel=0.05)
    assert found.ess == pytest.approx(exact.ess, rel=0.05)
    assert found.gap() < 1e-14
    assert found.kkt_residual() < 1e-5


def test_exact_answers_hold(wide):
    plain = problem_of(1, shared=0)
    exact = np.zeros(plain.queries, bool)
    exact[27:39] = True
    truth = plain.means(plain.base * np.exp(0.5 * plain.designs[0].values[:, 0]) / 1.2)
    answers = np.where(exact, truth / truth[exact].sum(), plain.answers)
    problem = Problem(plain.designs, answers, plain.covariance, plain.base, exact=exact)
    solution = fit_path(problem, same)
    assert not np.any(solution.unmet)
    np.testing.assert_allclose(solution.after[exact], answers[exact], atol=1e-7)


def test_out_of_reach_ends_well(wide):
    plain = problem_of(0)
    problem = Problem(plain.designs, plain.answers + 3, plain.covariance, plain.base)
    solution = fit_path(problem, same)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert np.all(np.isfinite(solution.weights))
    assert solution.ess > 20


def test_one_trade_off(wide):
    problem = problem_of(2)
    solution = fit_at(problem, 50.0)
    assert solution.status is Status.CONVERGED
    assert solution.gap() < 1e-14


@pytest.mark.parametrize("moments", [False, True])
def test_without_noise_the_answers_are_met(moments, wide):
    plain = problem_of(2)
    designs = plain.designs[: 1 if moments else 4]
    whole = Problem(designs, np.zeros(sum_of(designs)), noise_of(designs), plain.base)
    tilt = np.exp(0.8 * plain.designs[0].values[:, 3])
    answers = whole.means(plain.base * tilt / (plain.base @ tilt))
    problem = Problem(designs, answers, noise_of(designs), plain.base)
    solution = fit_at(problem, 0.0)
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after, answers, atol=1e-8)
    shifted = answers.copy()
    shifted[1] += 1.5
    beyond = fit_at(Problem(designs, shifted, noise_of(designs), plain.base), 0.0)
    assert beyond.status is Status.ITERATION_LIMIT
    assert np.all(np.isfinite(beyond.weights))


def test_without_noise_contradictions_are_no_success(wide):
    """One query twice, with two answers: the dual falls for ever."""
    values = np.random.default_rng(3).random((400, 3))
    left = np.array([0, 1, 2, 0])
    design = Products(values, left, np.full(4, -1), np.zeros(4), np.ones(4))
    answers = np.append(values.mean(axis=0), values[:, 0].mean() + 0.01)
    problem = Problem([design], answers, Covariance(np.ones(4)), np.ones(400))
    solution = fit_at(problem, 0.0)
    assert solution.status is Status.ITERATION_LIMIT
    assert np.all(np.isfinite(solution.weights))


def sum_of(designs) -> int:
    return sum(d.size if isinstance(d, Indicators) else d.left.size for d in designs)


def noise_of(designs) -> Covariance:
    return Covariance(np.full(sum_of(designs), 1e-6))


@pytest.mark.parametrize("eta", [1e-3, 1e2])
def test_more_queries_than_rows(eta):
    rng = np.random.default_rng(0)
    values = rng.random((60, 12))
    left, right = np.triu_indices(12)
    design = Products(values, left, right, np.zeros(78), np.ones(78))
    noise = Covariance(np.full(78, 1e-4))
    problem = Problem([design], np.zeros(78), noise, np.ones(60))
    answers = problem.means(np.exp(values[:, 0]) / np.exp(values[:, 0]).sum())
    reduced = whole(Problem([design], answers, noise, np.ones(60)))
    exact, _ = drive(Newton(1e-20), reduced, eta, np.zeros(78), limit=200)
    state, verdict = drive(NewtonCG(1e-16), reduced, eta, np.zeros(78), limit=200)
    assert verdict is Verdict.CONVERGED
    np.testing.assert_allclose(state.fold.weights, exact.fold.weights, rtol=1e-6, atol=1e-12)


def test_conjugate_gradients_stop_where_nothing_varies():
    matrix = np.diag([1.0, 4.0, 0.0])
    solved, _ = conjugate_gradients(
        lambda x: matrix @ x, lambda x: x, np.array([1.0, 1.0, 0.0]), 1e-12
    )
    np.testing.assert_allclose(solved, [1, 0.25, 0])
    nothing, _ = conjugate_gradients(lambda x: 0 * x, lambda x: x, np.ones(3), 1e-12)
    np.testing.assert_array_equal(nothing, 0)


def test_the_limit_and_a_fruitless_search(monkeypatch):
    reduced = whole(problem_of(0))
    start = np.zeros(reduced.answers.size)
    _, verdict = drive(NewtonCG(1e-18), reduced, 1.0, start, limit=1)
    assert verdict is Verdict.LIMIT
    monkeypatch.setattr(newton_cg, "halved", lambda *args: None)
    state, verdict = drive(NewtonCG(1e-18), reduced, 1.0, start, limit=5)
    assert verdict is Verdict.STALLED
    np.testing.assert_array_equal(state.multipliers, 0)


def test_the_paper_and_denoising_keep_their_limit():
    size = MAX_DENSE + 1
    codes = np.arange(size, dtype=np.int32)
    noise = Covariance(np.ones(size))
    problem = Problem([Indicators(codes, size)], np.zeros(size), noise, np.ones(size))
    check_problem(problem)
    with pytest.raises(InputError, match=r"3,001 queries.*3,000.*paper's method"):
        check_problem(problem, dense=True)


@pytest.mark.slow
def test_ten_thousand_cells():
    """300 one-way tables of 34 cells that hang together, on 20,000 rows."""
    rng = np.random.default_rng(0)
    loads = 0.25 * rng.normal(size=(20, 300))

    def tables(rows, shift):
        factors = rng.normal(size=(rows, 20))
        columns = factors @ loads + 0.7 * rng.normal(size=(rows, 300)) + shift
        return [np.clip((c + 3) * 34 / 6, 0, 33).astype(np.int32) for c in columns.T]

    real, designs = tables(30_000, 0.15), [Indicators(c, 34) for c in tables(20_000, 0.0)]
    truth = np.concatenate([np.bincount(c, minlength=34) / c.size for c in real])
    noise = Covariance(np.full(truth.size, 0.003**2))
    answers = truth + 0.003 * rng.normal(size=truth.size)
    solution = fit_path(Problem(designs, answers, noise, np.ones(20_000)), same)
    assert solution.status in (Status.CONVERGED, Status.FLOOR_REACHED)
    assert solution.gap() < 1e-14
    before = np.sum((solution.before - truth) ** 2)
    assert np.sum((solution.after - truth) ** 2) < 0.8 * before
