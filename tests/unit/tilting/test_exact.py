"""Answers without noise: constraints that hold at every point of the path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Solution, Status, fit_path, path
from retilt.tilting.designs import design_rows
from retilt.tilting.restore import restore

ROWS = 3000
RNG = np.random.default_rng(0)
VALUES = RNG.uniform(-1, 1, (ROWS, 3))
CODES = RNG.integers(0, 5, ROWS).astype(np.int32)
SHARES = np.array([0.3, 0.2, 0.2, 0.2, 0.1])
GOAL = np.array([0.1, 0.0, 0.1])


def linear(values) -> Products:
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


def same(answers):
    return answers


def fit(designs, answers, exact, *, sigma=0.01, base=None, **options) -> Solution:
    answers, exact = np.asarray(answers, dtype=float), np.asarray(exact, dtype=bool)
    if base is None:
        base = np.ones(design_rows(designs[0]))
    noise = Covariance(np.full(answers.size, sigma**2))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        solution = fit_path(Problem(designs, answers, noise, base, exact=exact), same, **options)
    assert np.all(np.isfinite(solution.weights))
    assert np.all(np.isfinite(solution.multipliers))
    assert solution.weights.sum() == pytest.approx(1)
    assert solution.gap() < 1e-14
    held = exact & ~solution.released
    np.testing.assert_allclose(solution.after[held], answers[held], atol=2e-6)
    assert np.any(solution.unmet) <= (solution.status is Status.INFEASIBLE_MEASURES)
    return solution


CELLS = [linear(VALUES), Indicators(CODES, 5)]
ON_CELLS = [False] * 3 + [True] * 5


def test_a_partition_is_held_and_the_rest_followed():
    solution = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS)
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after[3:], SHARES, atol=1e-9)
    np.testing.assert_allclose(solution.after[:3], GOAL, atol=0.01)
    np.testing.assert_allclose(solution.before[3:], np.bincount(CODES) / ROWS)
    assert solution.kkt_residual() < 1e-5


def test_every_point_of_the_path_holds_them(monkeypatch):
    seen = []
    stop = path.Walker.stop

    def spy(walker, *args, **kwargs):
        result = stop(walker, *args, **kwargs)
        seen.append(result.means[3:])
        return result

    monkeypatch.setattr(path.Walker, "stop", spy)
    solution = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS)
    assert len(seen) > len(solution.path) > 5
    np.testing.assert_allclose(seen, np.tile(SHARES, (len(seen), 1)), atol=1e-6)


def test_a_share_of_nothing_on_a_populated_cell():
    shares = np.array([0.4, 0.2, 0.2, 0.2, 0.0])
    solution = fit(CELLS, np.r_[GOAL, shares], ON_CELLS)
    assert solution.status is Status.CONVERGED
    assert solution.weights[CODES == 4].sum() < 1e-7


def test_constraints_alone():
    solution = fit([Indicators(CODES, 5)], SHARES, [True] * 5)
    assert solution.status is Status.CONVERGED
    assert solution.eta == np.inf
    # Each row of a cell has the same weight.
    expected = SHARES / np.bincount(CODES)
    np.testing.assert_allclose(solution.weights, expected[CODES], rtol=1e-8)
    assert (solution.misfit_before, solution.misfit_after) == (0, 0)


def test_redundant_constraints_are_no_contradiction():
    solution = fit(
        [linear(VALUES), linear(VALUES), Indicators(CODES, 5)],
        np.r_[GOAL, GOAL, SHARES],
        [True] * 6 + [False] * 5,
    )
    assert solution.status is Status.CONVERGED


@pytest.mark.parametrize("far", [0.02, 0.2])
def test_a_noisy_answer_to_an_exact_question_does_not_bend_it(far):
    answers = np.r_[GOAL, GOAL + np.array([far, 0, 0])]
    solution = fit([linear(VALUES)] * 2, answers, [True] * 3 + [False] * 3, sigma=0.001)
    np.testing.assert_allclose(solution.after[:3], GOAL, atol=1e-9)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert not np.any(solution.unmet)
    # The misfit is what the constraints leave.
    assert solution.misfit_after == pytest.approx((far / 0.001) ** 2 / 3, rel=1e-6)


def test_a_margin_of_a_noisy_table():
    other = RNG.integers(0, 4, ROWS).astype(np.int32)
    table = Indicators(CODES * 4 + other, 20)
    truth = np.outer(SHARES, [0.4, 0.3, 0.2, 0.1]).ravel()
    noisy = truth + 0.002 * np.random.default_rng(3).normal(size=20)
    solution = fit(
        [Indicators(CODES, 5), table], np.r_[SHARES, noisy], [True] * 5 + [False] * 20, sigma=0.002
    )
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after[:5], SHARES, atol=1e-8)
    assert solution.misfit_after < 2
    assert np.abs(solution.after[5:] - truth).max() < 0.01


def test_the_weights_are_those_of_tiny_noise():
    exact = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS)
    sigma = np.r_[np.full(3, 0.01), np.full(5, 1e-6)]
    problem = Problem(CELLS, np.r_[GOAL, SHARES], Covariance(sigma**2), np.ones(ROWS))
    noisy = path.fit_at(problem, exact.eta)
    np.testing.assert_allclose(exact.weights, noisy.weights, rtol=1e-4)


UNMET = {
    "outside the hull": (CELLS, np.r_[1.5, GOAL[1:], SHARES], [True] * 8, [0]),
    "on its edge": (CELLS, np.r_[VALUES[:, 0].max(), GOAL[1:], SHARES], [True] + [False] * 7, [0]),
    "contradictions": ([linear(VALUES)] * 2, np.r_[GOAL, 0.2, GOAL[1:]], [True] * 6, [0, 3]),
    "a total that is not 1": ([Indicators(CODES, 5)], SHARES - 0.01, [True] * 5, range(5)),
    "empty cells": (
        [linear(VALUES), Indicators(CODES, 7)],
        np.r_[GOAL, SHARES[0] - 0.1, SHARES[1:], 0.1, 0],
        [False] * 3 + [False, True, True, True, True, True, True],
        [8],
    ),
    "a constant": (
        [linear(VALUES), linear(np.full((ROWS, 1), 0.5))],
        np.r_[GOAL, 0.6],
        [True] * 4,
        [3],
    ),
}


@pytest.mark.parametrize("name", UNMET)
def test_what_cannot_be_met_is_left_out_and_named(name):
    designs, answers, exact, unmet = UNMET[name]
    solution = fit(designs, answers, exact)
    assert solution.status is Status.INFEASIBLE_MEASURES
    np.testing.assert_array_equal(np.flatnonzero(solution.unmet), list(unmet))
    assert solution.ess > ROWS / 4
    again = restore(
        Problem(
            designs, answers, Covariance(np.full(answers.size, 1e-4)), np.ones(ROWS), exact=exact
        ),
        solution.multipliers,
        eta=solution.eta,
        status=solution.status,
        path=solution.path,
        insistent=solution.insistent,
        aim=solution.aim,
        tolerance=0.0,
        released=solution.released,
    )
    np.testing.assert_allclose(again.weights, solution.weights, rtol=1e-9)
    np.testing.assert_array_equal(again.unmet, solution.unmet)
    assert again.gap() < 1e-13


def test_a_constant_that_agrees_is_held():
    designs = [linear(VALUES), linear(np.full((ROWS, 1), 0.5))]
    solution = fit(designs, np.r_[GOAL, 0.5], [False] * 3 + [True])
    assert solution.status is Status.CONVERGED


def test_the_floor_counts_from_where_the_constraints_hold():
    first = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS)
    start = next(point for point in first.path if point.eta == np.inf)
    assert start.ess < ROWS * 0.95
    solution = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS, min_ess=0.99 * start.ess)
    assert solution.status is Status.FLOOR_REACHED
    assert solution.ess >= 0.99 * start.ess


def test_on_a_sample_of_a_long_table():
    rng = np.random.default_rng(4)
    values = rng.uniform(-1, 1, (60_000, 3))
    codes = rng.integers(0, 5, 60_000).astype(np.int32)
    shares = np.array([0.4, 0.2, 0.2, 0.2, 0.0])
    solution = fit(
        [Indicators(codes, 5), linear(values)],
        np.r_[shares, GOAL],
        [True] * 5 + [False] * 3,
        sigma=0.001,
    )
    assert {point.rows for point in solution.path} == {20_000, 60_000}
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after[:5], shares, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100_000))
def test_feasible_constraints_hold_whatever_they_are(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(30, 300))
    values = rng.uniform(-1, 1, (rows, 3))
    codes = rng.integers(0, 4, rows).astype(np.int32)
    designs = [linear(values), Indicators(codes, 4)]
    truth = rng.dirichlet(np.full(rows, 3.0))
    plain = Problem(designs, np.zeros(7), Covariance(np.ones(7)), rng.random(rows) + 0.1)
    answers = plain.means(truth)
    exact = rng.random(7) < 0.5
    answers[~exact] += 0.05 * rng.normal(size=int((~exact).sum()))
    solution = fit(designs, answers, exact, sigma=0.05, base=plain.base)
    assert not np.any(solution.released)
    np.testing.assert_allclose(solution.after[exact], answers[exact], atol=1e-7)


def test_units_are_of_no_account():
    plain = fit(CELLS, np.r_[GOAL, SHARES], ON_CELLS)
    part = CELLS[0]
    scaled = replace(part, factor=part.factor * 1e6)
    noise = Covariance(np.r_[np.full(3, 1e8), np.ones(5)])
    answers = np.r_[GOAL * 1e6, SHARES]
    other = fit_path(
        Problem([scaled, CELLS[1]], answers, noise, np.ones(ROWS), exact=np.array(ON_CELLS)), same
    )
    np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-6)
