from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retilt.exceptions import InputError
from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Solution, Status, fit_at, fit_path, path, points
from retilt.tilting import sample as sampling
from retilt.tilting.fold import Rows


def linear(values) -> Products:
    values = np.asarray(values, dtype=float)
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


def moments(values) -> Products:
    size = values.shape[1]
    pairs = [(i, -1) for i in range(size)]
    pairs += [(i, j) for i in range(size) for j in range(i, size)]
    left, right = np.array(pairs, dtype=np.intp).T
    return Products(values, left, right, np.zeros(left.size), np.ones(left.size))


def same(answers):
    return answers


def fit(designs, answers, variances, base, *, factor=None, **options) -> Solution:
    answers = np.asarray(answers, dtype=float)
    noise = Covariance(np.broadcast_to(variances, answers.shape), factor)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        solution = fit_path(Problem(tuple(designs), answers, noise, base), same, **options)
    check(solution)
    return solution


def check(solution: Solution) -> None:
    """What holds for every solution, whatever the problem."""
    assert solution.weights.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(solution.weights >= 0)
    for array in (solution.multipliers, solution.after, solution.insistent):
        assert np.all(np.isfinite(array))
        assert not array.flags.writeable
    assert np.isfinite(solution.misfit_after)
    assert sum(point.chosen for point in solution.path) == 1
    chosen = next(point for point in solution.path if point.chosen)
    assert chosen.allowed
    assert (chosen.eta, chosen.sure, chosen.trace) == (solution.eta, solution.sure, solution.trace)
    assert solution.ess == pytest.approx(chosen.ess, rel=1e-9)
    etas = [point.eta for point in solution.path]
    assert etas == sorted(etas, reverse=True)
    assert etas[0] == np.inf
    assert solution.gap() >= 0
    assert len(solution.status.advice) > 20


def uniform(rows=200, columns=3, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, columns))


GOAL = np.array([0.1, 0.0, 0.2])


def test_reachable_answers_are_reached():
    solution = fit([linear(uniform())], GOAL, 1e-4, np.ones(200))
    assert solution.status is Status.CONVERGED
    assert solution.misfit_after < 1 < solution.misfit_before
    assert solution.gap() < 1e-20
    assert solution.kkt_residual() < 1e-9
    np.testing.assert_allclose(solution.after, GOAL, atol=0.01)
    np.testing.assert_allclose(solution.insistent, GOAL, atol=0.01)


def test_the_path_is_told():
    told = []
    solution = fit([linear(uniform())], GOAL, 1e-4, np.ones(200), on_step=told.append)
    assert len(told) == len(solution.path)
    misfits = [point.misfit for point in solution.path]
    assert misfits == sorted(misfits, reverse=True)
    traces = [point.trace for point in solution.path]
    assert traces == sorted(traces)
    chosen = next(point for point in solution.path if point.chosen)
    assert chosen.sure <= min(point.sure for point in solution.path if point.allowed) + 1e-6


def test_answers_that_agree_already_move_nothing():
    rng = np.random.default_rng(0)
    values = uniform(2000)
    answers = values.mean(0) + 0.05 * rng.normal(size=3) * 0.1
    solution = fit([linear(values)], answers, 0.05**2, np.ones(2000))
    assert solution.ess > 1900


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e100])
def test_units_are_of_no_account(scale):
    values = uniform()
    plain = fit([linear(values)], GOAL, 1e-4, np.ones(200))
    scaled = fit([linear(values * scale)], GOAL * scale, 1e-4 * scale**2, np.ones(200))
    assert scaled.status is plain.status
    np.testing.assert_allclose(scaled.weights, plain.weights, rtol=1e-8)
    mixed = np.array([scale, 1.0, 1 / scale])
    scaled = fit([linear(values * mixed)], GOAL * mixed, 1e-4 * mixed**2, np.ones(200))
    np.testing.assert_allclose(scaled.weights, plain.weights, rtol=1e-8)


def test_factor_and_value_units_are_the_same_thing():
    values = uniform()
    part = linear(values)
    scaled = Products(part.values, part.left, part.right, part.offset + 1, part.factor * 1e12)
    plain = fit([part], GOAL, 1e-4, np.ones(200))
    other = fit([scaled], GOAL * 1e12 + 1, 1e20, np.ones(200))
    np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 5))
def test_the_order_of_the_rows_is_of_no_account(seed, rows, columns):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (rows, columns))
    codes = rng.integers(0, 3, rows).astype(np.int32)
    answers = np.r_[rng.uniform(-0.3, 0.3, columns), 0.3, 0.3, 0.4]
    base = rng.random(rows) + 0.01
    order = rng.permutation(rows)
    plain = fit([linear(values), Indicators(codes, 3)], answers, 1e-3, base)
    other = fit([linear(values[order]), Indicators(codes[order], 3)], answers, 1e-3, base[order])
    np.testing.assert_allclose(other.weights, plain.weights[order], rtol=1e-6, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 60))
def test_a_row_in_two_halves_is_one_row(seed, rows):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (rows, 2))
    base = rng.random(rows) + 0.01
    noise = Covariance([1e-3] * 2)
    answers = rng.uniform(-0.3, 0.3, 2)
    plain = fit_at(Problem((linear(values),), answers, noise, base), 1.0)
    halved = np.r_[base[0] / 2, base[1:], base[0] / 2]
    split = np.vstack([values, values[:1]])
    other = fit_at(Problem((linear(split),), answers, noise, halved), 1.0)
    joined = other.weights[:rows].copy()
    joined[0] += other.weights[rows]
    np.testing.assert_allclose(joined, plain.weights, rtol=1e-7, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_query_asked_twice_is_one_with_half_the_variance(seed):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (50, 2))
    answers = rng.uniform(-0.3, 0.3, 2)
    task = Problem((linear(values),), answers, Covariance([1e-3, 0.5e-3]), np.ones(50))
    plain = fit_at(task, 1.0)
    twice = np.column_stack([values, values[:, 1]])
    noise = Covariance([1e-3] * 3)
    other = fit_at(Problem((linear(twice),), answers[[0, 1, 1]], noise, np.ones(50)), 1.0)
    np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-6, atol=1e-13)


def hostile():
    """Problems that have no good answer; each must end with finite weights, without a warning."""
    rng = np.random.default_rng(1)
    values = uniform()
    ones = np.ones(200)
    wide = rng.uniform(-1, 1, (20, 60))
    twice = np.hstack([values, values, values[:, :1] + values[:, 1:2]])
    first = rng.integers(0, 5, 500).astype(np.int32)
    second = rng.integers(0, 7, 500).astype(np.int32)
    margins = [Indicators(first, 5), Indicators(second, 7)]
    totals = np.r_[np.full(5, 0.2), np.full(7, 1.01 / 7)]
    empty = [Indicators(first, 50), Indicators(second, 7)]
    sparse = np.r_[np.full(5, 0.18), np.full(45, 0.1 / 45), np.full(7, 1 / 7)]
    base = rng.random(200)
    base[:50] = 0
    base[50:60] = 1e-300
    base[60:70] = 1e-20
    near = 0.3 + 1e-9 * rng.integers(0, 2, (200, 3))
    sign = np.where(rng.random((300, 4)) < 0.5, -1.0, 1.0)
    return {
        "one row": ([linear(values[:1])], GOAL, 1e-4, [1.0], None),
        "two rows": ([linear(values[:2])], GOAL, 1e-4, [1.0, 1.0], None),
        "more queries than rows": ([linear(wide)], np.full(60, 0.1), 1e-4, np.ones(20), None),
        "and nearly exact": ([linear(wide)], wide.mean(0) + 1e-3, 1e-16, np.ones(20), None),
        "copies": ([linear(twice)], twice.mean(0) + 0.05, 1e-6, ones, None),
        "copies that disagree": (
            [linear(twice)],
            twice.mean(0) + 0.05 * rng.normal(size=7),
            1e-10,
            ones,
            None,
        ),
        "outside the hull": ([linear(values)], [5, -5, 9], 1e-6, ones, None),
        "and nearly exact there": ([linear(values)], [5, -5, 9], 1e-20, ones, None),
        "far outside": ([linear(values)], [1e6, -5, 9], 1e-8, ones, None),
        "absurdly far": ([linear(values)], [1e100, -5, 9], 1e-8, ones, None),
        "margins of 100 and 101": (margins, totals, 1e-8, np.ones(500), None),
        "and a shared noise": (margins, totals, 1e-8, np.ones(500), -1e-3 * totals[:, None]),
        "cells without rows": (empty, sparse, 1e-6, np.ones(500), None),
        "and two shared noises": (
            empty,
            sparse,
            1e-6,
            np.ones(500),
            1e-3 * rng.normal(size=(57, 2)),
        ),
        "zero and tiny base weights": ([linear(values)], GOAL, 1e-6, base, None),
        "one base weight": ([linear(values)], GOAL, 1e-6, np.r_[1, np.zeros(199)], None),
        "two huge base weights": (
            [linear(values)],
            GOAL,
            1e-6,
            np.r_[1e308, 1e308, ones[2:]],
            None,
        ),
        "all rows equal": ([linear(np.full((200, 3), 0.3))], GOAL, 1e-6, ones, None),
        "nearly equal rows": ([linear(near)], GOAL, 1e-6, ones, None),
        "tiny variation": ([linear(values * 1e-170)], GOAL * 1e-170, 1e-300, ones, None),
        "constant squares": ([moments(sign)], np.full(14, 0.1), 1e-4, np.ones(300), None),
        "very unequal noise": ([linear(values)], [0.3, 0, 0.4], [1e-16, 1, 1e10], ones, None),
        "an offset of a million": ([linear(values + 1e6)], GOAL + 1e6, 1e-6, ones, None),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_problems_end_well(name):
    designs, answers, variances, base, factor = hostile()[name]
    solution = fit(designs, answers, variances, base, factor=factor)
    assert solution.status in (Status.CONVERGED, Status.INFEASIBLE_MEASURES, Status.FLOOR_REACHED)
    assert np.all(solution.weights[np.asarray(base) == 0] == 0)
    if name != "an offset of a million":
        assert solution.kkt_residual() < 1e-6
    # No harm: never further from the answers, nor nearly all weight on a row or two.
    assert solution.misfit_after <= solution.misfit_before * (1 + 1e-12)
    base = np.asarray(base) / np.max(base)
    base_ess = base.sum() ** 2 / (base**2).sum()
    assert solution.ess >= min(20, base_ess / 4) * (1 - 1e-9)


def test_three_overlapping_margins_agree():
    rng = np.random.default_rng(0)

    def table(spread):
        first = rng.integers(0, 4, 3000)
        second = (first + rng.integers(0, spread, 3000)) % 4
        third = (second + rng.integers(0, spread, 3000)) % 4
        return [first * 4 + second, first * 4 + third, second * 4 + third]

    answers = np.concatenate([np.bincount(c, minlength=16) / 3000 for c in table(2)])
    designs = [Indicators(c.astype(np.int32), 16) for c in table(3)]
    solution = fit(designs, answers, 1e-8, np.ones(3000))
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after, answers, atol=1e-4)


def test_the_floor_is_kept_and_said():
    values = uniform()
    solution = fit([linear(values)], [0.3, 0, 0.4], 1e-3, np.ones(200), min_ess=150)
    assert solution.status is Status.FLOOR_REACHED
    assert 150 <= solution.ess < 165
    every = fit([linear(values)], [0.3, 0, 0.4], 1e-3, np.ones(200), min_ess=200)
    assert every.status is Status.FLOOR_REACHED
    np.testing.assert_allclose(every.weights, 1 / 200)


def test_a_low_floor_changes_nothing():
    values = uniform()
    plain = fit([linear(values)], GOAL, 1e-4, np.ones(200))
    low = fit([linear(values)], GOAL, 1e-4, np.ones(200), min_ess=3)
    np.testing.assert_allclose(low.weights, plain.weights, rtol=1e-9)


@pytest.mark.parametrize("min_ess", [0, -1, np.nan, np.inf, 201, True, "10"])
def test_a_floor_out_of_range_is_refused(min_ess):
    with pytest.raises(InputError, match="min_ess"):
        fit([linear(uniform())], GOAL, 1e-4, np.ones(200), min_ess=min_ess)


def test_no_harm_where_the_support_cannot_reach():
    """A column that hardly varies here and widely there: its deviation is out of reach."""
    rng = np.random.default_rng(0)
    table = rng.uniform(-1, 1, (4000, 3))
    table[:, 2] = -1 + 0.003 * rng.random(4000)
    real = rng.uniform(-1, 1, (4000, 3)) ** 3
    part = moments(table)
    noise = Covariance(np.full(part.left.size, 1e-3**2))
    uniform_weights = np.full(4000, 1 / 4000)
    zero = np.zeros(part.left.size)
    answers = Problem((moments(real),), zero, noise, uniform_weights).means(uniform_weights)

    def deviations(means):
        return np.sqrt(np.maximum(means[[3, 6, 8]] - means[:3] ** 2, 0))

    solution = fit_path(Problem((part,), answers, noise, uniform_weights), deviations)
    check(solution)
    assert solution.status is Status.INFEASIBLE_MEASURES
    aim = deviations(answers)
    before = np.abs(deviations(solution.before) - aim).sum()
    assert np.abs(deviations(solution.after) - aim).sum() <= before
    assert solution.ess >= 20
    base = next(point for point in solution.path if point.eta == np.inf)
    assert base.predicted_error == pytest.approx(before)
    # Which of the answers can't be had is known.
    far = np.abs(solution.insistent - answers) > 100 * 1e-3
    assert far[2]


def test_where_every_tilt_does_harm_the_base_is_kept():
    values = uniform()
    answers = np.array([5.0, 5.0, 5.0])
    noise = Covariance([1e-6] * 3)
    task = Problem((linear(values),), answers, noise, np.ones(200))
    before = task.means(task.base)
    solution = fit_path(task, lambda q: np.abs(q - before) if np.any(q != answers) else 0 * q)
    check(solution)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert solution.eta == np.inf
    np.testing.assert_allclose(solution.weights, 1 / 200)
    assert (solution.gap(), solution.kkt_residual()) == (0, 0)
    assert np.all(solution.multipliers == 0)


def test_undefined_statistics_do_not_decide():
    values = uniform()
    task = Problem((linear(values),), np.array([5.0, 0, 0]), Covariance([1e-6] * 3), np.ones(200))

    def predict(means):
        return np.array([means[0], np.nan, np.inf])

    solution = fit_path(task, predict)
    check(solution)
    assert solution.after[0] > solution.before[0]
    nothing = fit_path(task, lambda means: np.full(2, np.nan))
    assert nothing.eta == np.inf


def test_the_certificate_is_that_of_the_weights():
    solution = fit([linear(uniform())], GOAL, 1e-4, np.ones(200))
    error = solution.after - GOAL
    gap = (
        error @ error / 1e-4 / (2 * solution.eta)
        + solution.eta / 2 * 1e-4 * solution.multipliers @ solution.multipliers
        - solution.multipliers @ error
    )
    assert solution.gap() == pytest.approx(gap, abs=1e-12)
    assert solution.misfit_after == pytest.approx(error @ error / 1e-4 / 3)
    np.testing.assert_allclose(solution.after, solution.weights @ uniform(), atol=1e-14)


def test_the_certificate_at_the_ends():
    values = uniform()
    exact = fit_at(Problem((linear(values),), GOAL, Covariance([1e-4] * 3), np.ones(200)), 0.0)
    assert exact.gap() < 1e-12
    assert exact.kkt_residual() < 1e-10
    agreeing = Problem((linear(values),), values.mean(0), Covariance([1e-4] * 3), np.ones(200))
    nothing = fit_at(replace(agreeing, answers=agreeing.means(agreeing.base)), 1.0)
    assert nothing.gap() == pytest.approx(0, abs=1e-25)
    np.testing.assert_allclose(nothing.multipliers, 0, atol=1e-10)


def test_a_solver_that_gives_up_says_so(monkeypatch):
    values = uniform()
    monkeypatch.setattr(points, "POINT_STEPS", 1)
    short = fit([linear(values)], 3 * GOAL, 1e-6, np.ones(200))
    assert short.status is Status.ITERATION_LIMIT
    monkeypatch.undo()
    monkeypatch.setattr(points, "FINAL_STEPS", 0)
    loose = fit([linear(values)], GOAL, 1e-4, np.ones(200))
    assert loose.status is Status.ITERATION_LIMIT
    assert loose.gap() < 1e-3


def test_the_last_step_may_not_break_the_floor():
    values = uniform()
    task = Problem((linear(values),), GOAL, Covariance([1e-4] * 3), np.ones(200))
    rows = Rows.of(task)
    found = fit_at(task, 16.0)
    floor = found.ess * (1 + 1e-6)
    judge = points.Judge.of(task, same, task.means(task.base), rows, floor)
    walker = points.Walker.of(task, rows, judge, rows)
    final = path._descend(walker, walker.at(16.0, np.zeros(3)))
    assert final.point.ess >= floor
    assert 16.0 < final.point.eta < 17.0
    judge = points.Judge.of(task, same, task.means(task.base), rows, 199.999999)
    walker = points.Walker.of(task, rows, judge, rows)
    assert path._descend(walker, walker.at(1e-3, np.zeros(3))).point.eta == np.inf


@pytest.mark.parametrize("eta", [-1.0, np.nan, np.inf])
def test_a_bad_trade_off_is_refused(eta):
    task = Problem((linear(uniform()),), GOAL, Covariance([1e-4] * 3), np.ones(200))
    with pytest.raises(InputError, match="eta"):
        fit_at(task, eta)


@pytest.fixture(scope="module")
def long_table():
    rng = np.random.default_rng(3)
    values = np.clip(rng.normal(size=(60_000, 4)) * 0.3, -1, 1)
    part = moments(values)
    mixing = np.eye(4) + 0.05 * rng.normal(size=(4, 4))
    real = moments(np.clip(rng.normal(size=(60_000, 4)) @ mixing * 0.3 + 0.02, -1, 1))
    noise = Covariance(np.full(part.left.size, 3e-4**2))
    base = np.ones(60_000)
    zero = np.zeros(part.left.size)
    weights = np.full(60_000, 1 / 60_000)
    answers = Problem((real,), zero, noise, base).means(weights)
    answers = answers + 3e-4 * rng.normal(size=answers.size)
    return Problem((part,), answers, noise, base)


def test_a_sample_of_a_long_table_leads_to_the_same_weights(long_table, monkeypatch):
    solution = fit_path(long_table, same)
    check(solution)
    assert solution.status is Status.CONVERGED
    assert {point.rows for point in solution.path} == {20_000, 60_000}
    assert solution.gap() < 1e-18
    monkeypatch.setattr(sampling, "SAMPLE_ROWS", 60_000)
    whole = fit_path(long_table, same)
    assert {point.rows for point in whole.path} == {60_000}
    # Another trade-off of the same flat valley.
    assert solution.sure == pytest.approx(whole.sure, abs=0.1)
    np.testing.assert_allclose(solution.after, whole.after, atol=1e-4)
    np.testing.assert_allclose(solution.insistent, whole.insistent, atol=1e-3)


@pytest.mark.parametrize("eta", [0.0, 2.0])
def test_one_trade_off_of_a_long_table_starts_at_a_samples(eta, monkeypatch):
    rng = np.random.default_rng(3)
    values = np.clip(rng.normal(0.5, 0.2, (60_000, 3)), 0, 1)
    task = Problem((linear(values),), [0.55, 0.45, 0.5], Covariance([1e-6] * 3), np.ones(60_000))
    sizes = []
    honest = Rows.fold

    def counted(self, multipliers):
        sizes.append(self.merged.size)
        return honest(self, multipliers)

    monkeypatch.setattr(Rows, "fold", counted)
    found = fit_at(task, eta)
    assert found.status is Status.CONVERGED
    assert found.gap() < 1e-10
    started = len([s for s in sizes if s == 60_000])
    sizes.clear()
    monkeypatch.setattr(path, "leveraged", lambda problem, whole: whole)
    plain = fit_at(task, eta)
    assert {*sizes} == {60_000}
    assert started <= len(sizes)
    np.testing.assert_allclose(found.weights, plain.weights, rtol=1e-9)
    loose = fit_at(task, eta, gap=1e-4)
    assert found.gap() <= loose.gap() < 1e-3


def test_a_sample_that_can_not_reach_the_answers_is_no_start():
    """One row in a thousand carries the answer: hardly a sample has enough of them."""
    values = np.zeros((60_000, 1))
    values[::1000] = np.linspace(0.9, 1.0, 60)[:, None]
    task = Problem((linear(values),), [0.999], Covariance([1e-6]), np.ones(60_000))
    found = fit_at(task, 0.0)
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.after, [0.999], atol=1e-9)


def test_a_long_table_keeps_its_floor(long_table):
    solution = fit_path(long_table, same, min_ess=58_500)
    check(solution)
    assert solution.status is Status.FLOOR_REACHED
    assert solution.ess >= 58_500


@pytest.mark.parametrize("floor", [59_999.9, 59_999.0, 59_900.0, 58_000.0])
def test_a_long_tables_weights_end_at_its_floor(long_table, floor):
    """Even where it is above all points of the sample, so that none is looked at on all rows."""
    solution = fit_path(long_table, same, min_ess=floor)
    check(solution)
    assert solution.status is Status.FLOOR_REACHED
    assert 0 <= solution.ess - floor <= 1e-3 * (60_000 - floor)
    assert solution.misfit_after < solution.misfit_before


def test_a_long_table_out_of_reach(long_table):
    far = Problem(
        long_table.designs, long_table.answers + 3.0, long_table.covariance, long_table.base
    )
    solution = fit_path(far, same)
    check(solution)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert solution.ess >= 20


def test_the_rule_is_that_of_all_rows(long_table, monkeypatch):
    """A sample that seems to reach the answers does not settle it."""
    far = replace(long_table, answers=long_table.answers + 0.3)
    seen = fit_path(far, same).path
    lowest = {
        rows: min(p.sure for p in seen if p.rows == rows and p.allowed) / far.queries
        for rows in (20_000, 60_000)
    }
    assert lowest[20_000] < lowest[60_000]
    between = (lowest[20_000] + lowest[60_000]) / 2
    monkeypatch.setattr(points, "INFEASIBLE_SURE", between)
    monkeypatch.setattr(path, "INFEASIBLE_SURE", 1.0)
    solution = fit_path(far, same)
    check(solution)
    assert solution.status is Status.INFEASIBLE_MEASURES


def test_a_long_table_that_agrees_keeps_its_base(long_table):
    values = np.vstack([uniform(25_000)] * 2)
    values[25_000:] *= -1
    values += 1e-9 * np.random.default_rng(0).normal(size=values.shape)
    part = linear(values)
    noise = Covariance([1.0] * 3)
    task = Problem((part,), np.zeros(3), noise, np.ones(50_000))
    solution = fit_path(task, same)
    check(solution)
    assert solution.status is Status.CONVERGED
    assert solution.ess > 49_999


def test_two_runs_give_the_same_bits(long_table):
    first, second = fit_path(long_table, same), fit_path(long_table, same)
    assert first.weights.tobytes() == second.weights.tobytes()


def test_contradictory_margins_with_rare_cells_on_a_long_table():
    """Huge multipliers from a sample must not empty the table on the rows it did not see."""
    rng = np.random.default_rng(1)
    codes = [np.minimum(rng.geometric(0.2, 50_000) - 1, 49).astype(np.int32) for _ in range(3)]
    answers = np.concatenate([np.bincount(c, minlength=50) / 50_000 for c in codes])
    answers = answers * (1 + 0.2 * rng.normal(size=150)) + 1e-5 * rng.normal(size=150)
    solution = fit([Indicators(c, 50) for c in codes], answers, 1e-10, rng.random(50_000) + 1)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert solution.ess > 20 * 150
    assert solution.misfit_after < solution.misfit_before / 20
