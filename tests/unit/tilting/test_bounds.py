"""Weights between a floor and a cap, and a floor of the effective sample size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retilt.exceptions import InputError, InternalError
from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Status, fit_at, fit_path
from retilt.tilting.bounded import BoundedRows, rows_of
from retilt.tilting.bounds import Bounds
from retilt.tilting.floors import verified
from retilt.tilting.fold import Rows
from retilt.tilting.restore import restore

ROWS = 3000
RNG = np.random.default_rng(0)
VALUES = RNG.uniform(-1, 1, (ROWS, 3))
CODES = RNG.integers(0, 5, ROWS).astype(np.int32)
BASE = RNG.uniform(0.2, 2.0, ROWS)
SHARES = np.array([0.3, 0.2, 0.2, 0.2, 0.1])
GOAL = np.array([0.2, 0.0, 0.2])


def same(answers):
    return answers


def linear(values) -> Products:
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


def problem(lower=None, upper=None, *, sigma=0.002, base=BASE, exact=None, goal=GOAL, rows=ROWS):
    rng = np.random.default_rng(0)
    values, codes = VALUES, CODES
    if rows != ROWS:
        values, codes = rng.uniform(-1, 1, (rows, 3)), rng.integers(0, 5, rows).astype(np.int32)
        base = np.ones(rows)
    answers = np.r_[goal, SHARES]
    return Problem(
        [linear(values), Indicators(codes, 5)],
        answers,
        Covariance(np.full(8, sigma**2)),
        base,
        exact=None if exact is None else np.array(exact, dtype=bool),
        bounds=Bounds.of(lower, upper),
    )


@pytest.mark.parametrize("cap", [0, 1, 1.0000001, -3, np.nan, np.inf, 1e61, True, "2", None])
def test_a_cap_that_leaves_no_room_is_refused(cap):
    if cap is None:
        assert Bounds.of(None, cap) is None
        return
    with pytest.raises(InputError, match=r"max_weight: got .*, expected a number from 1\.000001"):
        Bounds.of(None, cap)


@pytest.mark.parametrize("floor", [1, 0.9999999, -1e-300, 2, np.nan, -np.inf, False, "0.5", None])
def test_a_floor_that_leaves_no_room_is_refused(floor):
    if floor is None:
        return
    with pytest.raises(InputError, match=r"min_weight: got .*, expected a number from 0 to 0\.9"):
        Bounds.of(floor, 5)


@pytest.mark.parametrize(("lower", "upper"), [(None, 1.5), (0.5, None), (0.2, 1.7), (0.99, 1.01)])
@pytest.mark.parametrize("rows", [ROWS, 60_000])
def test_the_bounds_hold_and_the_solution_is_certified(lower, upper, rows):
    solution = fit_path(problem(lower, upper, rows=rows), same)
    bounds = Bounds.of(lower, upper)
    assert solution.bounds == bounds
    asked = problem(lower, upper, rows=rows)
    assert bounds.hold(solution.weights, asked.base)
    assert any(bounds.at_bounds(solution.weights, asked.base))
    assert solution.gap() < 1e-14
    assert solution.weights.sum() == pytest.approx(1, abs=1e-14)
    assert solution.misfit_after < solution.misfit_before


def test_bounds_that_are_not_in_the_way_change_nothing():
    free, wide = fit_path(problem(), same), fit_path(problem(1e-9, 1e9), same)
    assert wide.eta == pytest.approx(free.eta, rel=1e-9)
    np.testing.assert_allclose(wide.weights, free.weights, rtol=1e-9)
    assert wide.trace == pytest.approx(free.trace, rel=1e-9)
    assert wide.status is free.status


def test_tighter_bounds_come_less_near():
    caps = [1.05, 1.2, 1.5, 2.0, 3.0]
    misfits = [fit_at(problem(None, cap), 1.0).misfit_after for cap in caps]
    assert misfits == sorted(misfits, reverse=True)
    assert misfits[-1] < misfits[0] / 10


def test_equal_rows_are_merged_whatever_their_base_weights():
    codes = np.tile(np.arange(6, dtype=np.int32), 50)
    design = Indicators(codes, 6)
    answers = np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
    base = np.random.default_rng(3).uniform(0.1, 3, codes.size)
    asked = Problem(
        [design], answers, Covariance(np.full(6, 1e-4)), base, bounds=Bounds.of(0.5, 1.8)
    )
    rows = rows_of(asked)
    assert rows.groups is not None
    solution = fit_at(asked, 0.1)
    assert asked.bounds.hold(solution.weights, asked.base)
    # The same without merging: a column that tells all rows apart, and is asked for nothing.
    apart = Products(
        np.arange(codes.size, dtype=float)[:, None] / codes.size, np.array([0]), np.array([-1]),
        np.zeros(1), np.ones(1),
    )  # fmt: skip
    mean = solution.weights @ apart.values[:, 0]
    alone = Problem(
        [design, apart], np.r_[answers, mean], Covariance(np.r_[np.full(6, 1e-4), 1e12]), base,
        bounds=asked.bounds,
    )  # fmt: skip
    assert rows_of(alone).groups is None
    np.testing.assert_allclose(fit_at(alone, 0.1).weights, solution.weights, rtol=1e-9)


def test_rows_without_a_base_weight_stay_out():
    base = BASE.copy()
    base[::3] = 0
    solution = fit_path(problem(0.5, 1.5, base=base), same)
    assert np.all(solution.weights[::3] == 0)
    assert np.all(solution.weights[1::3] > 0)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e9, 1e60])
@pytest.mark.parametrize(("lower", "upper"), [(None, 1.5), (0.5, None), (0.2, 1.7)])
def test_any_multipliers_give_weights_that_sum_to_one(lower, upper, size):
    asked = problem(lower, upper)
    rows = rows_of(asked)
    rng = np.random.default_rng(1)
    for _ in range(5):
        fold = rows.fold(size * rng.normal(size=8))
        weights = rows.expand(fold.weights, ROWS)
        assert weights.sum() == pytest.approx(1, abs=1e-12)
        assert asked.bounds.hold(weights, asked.base)
        assert np.all(np.isfinite(rows.covariance(fold)))


def test_rows_that_score_alike_share_what_is_left():
    """Only two scores, a billion apart: the row's own steps can't say how much of each."""
    design = linear(np.array([[0.0], [0.0], [1.0], [1.0], [2.0]]))
    asked = Problem(
        [design], [1.0], Covariance(np.ones(1)), np.ones(5), bounds=Bounds.of(None, 2.0)
    )
    weights = rows_of(asked).expand(rows_of(asked).fold(np.array([1e17])).weights, 5)
    np.testing.assert_allclose(weights, [0.4, 0.4, 0.1, 0.1, 0.0], atol=1e-12)


@pytest.mark.parametrize("bounds", [(0.5, 1.5), (0.2, 4.0)])
def test_exact_answers_hold_within_the_bounds(bounds):
    exact = [False] * 3 + [True] * 5
    goal = np.array([0.05, 0.0, 0.05])
    shares = problem(*bounds, exact=exact, goal=goal)
    mild = np.r_[goal, 0.24, 0.2, 0.2, 0.2, 0.16]
    asked = replace(shares, answers=mild)
    solution = fit_path(asked, same)
    np.testing.assert_allclose(solution.after[3:], mild[3:], atol=1e-9)
    assert asked.bounds.hold(solution.weights, asked.base)
    assert solution.status is Status.CONVERGED
    assert solution.gap() < 1e-14
    again = restore(
        asked, solution.multipliers, eta=solution.eta, status=solution.status,
        path=solution.path, insistent=solution.insistent, aim=solution.aim, tolerance=0.0,
    )  # fmt: skip
    np.testing.assert_allclose(again.weights, solution.weights, rtol=1e-7)


def test_exact_answers_hold_within_the_bounds_of_a_long_table():
    exact = [False] * 3 + [True] * 5
    goal = np.array([0.1, 0.0, 0.1])
    asked = problem(0.4, 1.6, exact=exact, rows=60_000, goal=goal)
    solution = fit_path(asked, same)
    assert solution.status is Status.CONVERGED
    assert {point.rows for point in solution.path} == {20_000, 60_000}
    np.testing.assert_allclose(solution.after[3:], SHARES, atol=1e-9)
    assert asked.bounds.hold(solution.weights, asked.base)
    assert all(asked.bounds.at_bounds(solution.weights, asked.base))
    assert solution.gap() < 1e-14


def test_exact_answers_that_the_bounds_keep_out_of_reach_are_met_as_nearly_as_can_be():
    exact = [False] * 3 + [True] * 5
    asked = problem(None, 1.2, exact=exact, goal=np.zeros(3))
    solution = fit_path(asked, same)
    assert solution.status is Status.INFEASIBLE_MEASURES
    assert np.any(solution.unmet)
    assert not np.any(solution.released)
    assert asked.bounds.hold(solution.weights, asked.base)
    # A cell's share can grow by a fifth at most; all of that is used for the one that lacks most.
    before = asked.base @ (CODES == 0)
    assert before < 0.25
    assert solution.after[3] == pytest.approx(1.2 * before, rel=1e-6)


@pytest.mark.parametrize("seed", [6, 11])
def test_noisy_answers_do_not_wear_exact_ones_down(seed):
    """Where the bounds keep both out of reach, and the path goes down without end."""
    rng = np.random.default_rng(seed)
    values, codes = rng.uniform(-1, 1, (20, 2)), rng.integers(0, 3, 20).astype(np.int32)
    answers = np.r_[rng.normal(size=2), 0.33 + 0.3 * rng.normal(size=3)]
    exact = np.array([False, False, True, False, False])
    asked = Problem(
        [linear(values), Indicators(codes, 3)], answers, Covariance(np.full(5, 1e-6)), np.ones(20),
        exact=exact, bounds=Bounds.of(0.3, 10.0),
    )  # fmt: skip
    solution = fit_path(asked, same, min_ess=3.0)
    alone = fit_path(asked.only(exact), same)
    assert not np.any(solution.released)
    np.testing.assert_allclose(solution.after[exact], alone.after, atol=1e-6)
    assert solution.gap() < 1e-6


def test_what_no_weights_meet_is_left_out_before_the_bounds_are_looked_at():
    exact = [True] * 3 + [False] * 5
    asked = problem(None, 3.0, exact=exact, goal=np.array([5.0, 0.0, 0.1]))
    solution = fit_path(asked, same)
    np.testing.assert_array_equal(solution.released, [True] + [False] * 7)
    np.testing.assert_allclose(solution.after[1:3], [0.0, 0.1], atol=1e-9)
    assert solution.status is Status.INFEASIBLE_MEASURES


@pytest.mark.parametrize("share", [0.6, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("bounds", [(None, None), (0.1, 4.0)])
def test_exact_answers_give_way_to_the_floor(share, bounds):
    exact = [True] * 8
    asked = problem(*bounds, exact=exact, goal=np.array([0.4, 0.0, 0.4]))
    base_ess = 1 / np.sum(asked.base**2)
    free = fit_path(asked, same)
    assert free.status is Status.CONVERGED
    assert free.ess < 0.6 * base_ess
    solution = fit_path(asked, same, min_ess=share * base_ess)
    assert solution.status is Status.FLOOR_REACHED
    assert solution.ess >= share * base_ess * (1 - 1e-9)
    assert solution.ess < share * base_ess * 1.01
    assert solution.looseness > 1
    assert np.any(solution.unmet)
    assert solution.gap() < 1e-12
    # On the way, unless there is no room at all.
    near = np.abs(solution.after - asked.answers).sum() / np.abs(free.before - asked.answers).sum()
    assert near < (0.95 if share < 1 else 1 + 1e-9)


def test_a_floor_that_exact_answers_keep_changes_nothing():
    exact = [True] * 8
    asked = problem(exact=exact, goal=np.array([0.1, 0.0, 0.1]))
    free = fit_path(asked, same)
    kept = fit_path(asked, same, min_ess=0.9 * free.ess)
    np.testing.assert_array_equal(kept.weights, free.weights)
    assert kept.status is Status.CONVERGED
    assert kept.looseness == 1


def test_noisy_answers_find_no_room_where_exact_ones_took_it():
    exact = [False] * 3 + [True] * 5
    asked = problem(exact=exact)
    start = fit_path(asked, same)
    floor = 0.999 / np.sum(asked.base**2)
    solution = fit_path(asked, same, min_ess=floor)
    assert start.ess < floor <= solution.ess
    assert solution.status is Status.FLOOR_REACHED


@pytest.mark.parametrize("eta", [0.0, 1e-3, 1.0])
def test_a_floor_at_one_trade_off(eta):
    asked = problem(0.1, 6.0, goal=np.array([0.3, 0.0, 0.3]), sigma=0.01)
    floor = 0.8 / np.sum(asked.base**2)
    assert fit_at(asked, 1e-3).ess < floor
    solution = fit_at(asked, eta, min_ess=floor)
    assert solution.ess >= floor
    assert solution.gap() < 1e-14
    assert (solution.status is Status.FLOOR_REACHED) == (solution.eta > eta)


def test_a_floor_out_of_range_is_refused_at_one_trade_off():
    with pytest.raises(InputError, match="min_ess: got"):
        fit_at(problem(), 1.0, min_ess=ROWS + 1)


def test_answers_met_exactly_within_the_bounds():
    asked = problem(0.3, 2.0, goal=np.array([0.1, 0.0, 0.1]))
    mild = replace(asked, answers=np.r_[0.2, 0.0, 0.2, 0.24, 0.2, 0.2, 0.2, 0.16])
    solution = fit_at(mild, 0.0)
    np.testing.assert_allclose(solution.after, mild.answers, atol=1e-9)
    assert any(mild.bounds.at_bounds(solution.weights, mild.base))


def test_more_queries_than_a_matrix_has_room_for():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3200, 12_000).astype(np.int32)
    part = rng.integers(0, 4, 12_000).astype(np.int32)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    free = Problem(
        [Indicators(codes, 3200), Indicators(part, 4)],
        np.r_[np.bincount(codes, minlength=3200) / 12_000, shares],
        Covariance(np.full(3204, 0.002**2)),
        np.ones(12_000),
    )
    asked = replace(free, bounds=Bounds.of(0.5, 1.3))
    solution = fit_at(asked, 1.0)
    assert np.count_nonzero(rows_of(asked).varying) > 3000
    assert asked.bounds.hold(solution.weights, asked.base)
    assert all(asked.bounds.at_bounds(solution.weights, asked.base))
    assert solution.gap() < 1e-14
    path = fit_path(asked, same)
    assert asked.bounds.hold(path.weights, asked.base)
    assert path.misfit_after < path.misfit_before


def test_no_bounds_no_other_kernel():
    assert type(rows_of(problem())) is Rows
    assert not rows_of(problem()).bounded
    rows = rows_of(problem(0.5))
    assert isinstance(rows, BoundedRows)
    assert rows.bounded


def test_weights_that_break_their_bounds_are_not_returned():
    asked = problem(0.5, 1.5)
    solution = fit_at(asked, 1.0)
    assert verified(solution, asked, None) is solution
    tighter = replace(asked, bounds=Bounds.of(0.6, 1.5))
    with pytest.raises(InternalError, match="do not keep the bounds"):
        verified(solution, tighter, None)
    with pytest.raises(InternalError, match="under the floor"):
        verified(solution, asked, solution.ess * 1.001)
    assert not Bounds(0.0, 1.0).hold(np.array([0.6, 0.4]), np.array([0.5, 0.5]))
    assert not Bounds(1.0, 2.0).hold(np.array([0.6, 0.4]), np.array([0.5, 0.5]))
