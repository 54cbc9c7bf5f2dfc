"""Answers that are not measured: guards, whose answer is the rows' own mean."""

from __future__ import annotations

import numpy as np
import pytest

from retilt.exceptions import InputError
from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Status, fit_path
from retilt.tilting.denoise import denoise
from retilt.tilting.fold import Rows
from retilt.tilting.paper import Paper, fit_paper
from retilt.tilting.points import Judge, Walker
from retilt.tilting.restore import restore


def linear(values) -> Products:
    size = values.shape[1]
    return Products(values, np.arange(size), np.full(size, -1), np.zeros(size), np.ones(size))


def same(answers):
    return answers


MEASURED = np.array([True] * 3 + [False] * 4)
SHARED = np.r_[1e-3, 2e-3, 0.0, np.zeros(4)][:, None]


def guarded(tolerance: float, answers=(0.1, 0.0, 0.1), *, rows: int = 1000) -> Problem:
    """Three measured means, and the shares of a partition that goes with the first as guards."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, (rows, 3))
    codes = np.clip((values[:, 0] + rng.uniform(-1, 1, rows)) + 2, 0, 3).astype(np.int32)
    own = np.bincount(codes, minlength=4) / rows
    variances = np.r_[np.full(3, 0.01**2), np.full(4, tolerance**2)]
    return Problem(
        (linear(values), Indicators(codes, 4)),
        np.r_[answers, own],
        Covariance(variances, SHARED),
        np.ones(rows),
        MEASURED,
    )


def walker_of(problem: Problem) -> Walker:
    rows = Rows.of(problem)
    judge = Judge.of(problem, same, problem.means(problem.base), rows, None)
    return Walker.of(problem, rows, judge, rows)


def test_a_tight_guard_holds_and_a_loose_one_is_not_there():
    tight, loose = guarded(1e-5), guarded(1e3)
    held, free = fit_path(tight, same), fit_path(loose, same)
    alone = fit_path(loose.only(MEASURED), same)
    guards = ~MEASURED
    assert np.abs(held.after - held.before)[guards].max() < 1e-5
    assert np.abs(free.after - free.before)[guards].max() > 5e-3
    np.testing.assert_allclose(free.weights, alone.weights, rtol=1e-6)
    assert held.status is free.status is Status.CONVERGED
    for solution in (held, free):
        assert solution.gap() < 1e-16
        assert solution.kkt_residual() < 1e-6
        np.testing.assert_allclose(solution.after[MEASURED], [0.1, 0, 0.1], atol=0.01)


def test_only_measured_answers_are_judged():
    problem = guarded(0.003)
    solution = fit_path(problem, same)
    noise = problem.covariance.select(MEASURED)
    errors = (solution.after - problem.answers)[MEASURED]
    assert solution.misfit_after == pytest.approx(noise.quadratic_inverse(errors) / 3)
    chosen = next(point for point in solution.path if point.chosen)
    assert chosen.misfit == pytest.approx(solution.misfit_after, rel=1e-6)
    assert chosen.sure == pytest.approx(3 * chosen.misfit - 3 + 2 * chosen.trace)
    assert 0 < chosen.trace < 3


@pytest.mark.parametrize("eta", [1.0, 100.0, 3000.0])
def test_the_trace_is_the_sensitivity_to_the_measured_answers(eta):
    problem = guarded(0.003)
    stop = walker_of(problem).finish(walker_of(problem).at(eta, np.zeros(6 + 1)))
    total = 0.0
    step = 1e-5
    for k in np.flatnonzero(MEASURED):
        ends = []
        for sign in (1, -1):
            answers = problem.answers.copy()
            answers[k] += sign * step
            moved = Problem(
                problem.designs, answers, problem.covariance, problem.base, problem.measured
            )
            walker = walker_of(moved)
            ends.append(walker.finish(walker.at(eta, stop.state.multipliers)).means[k])
        total += (ends[0] - ends[1]) / (2 * step)
    assert stop.point.trace == pytest.approx(total, rel=1e-4)


def test_answers_out_of_reach_are_seen_whatever_is_guarded():
    """Many guards that hold must not water down three answers that can't be met."""
    problem = guarded(0.003, (3.0, -3.0, 3.0))
    solution = fit_path(problem, same)
    assert solution.status is Status.INFEASIBLE_MEASURES


def test_guards_alone_move_nothing():
    problem = guarded(0.003)
    solution = fit_path(problem.only(~MEASURED), same)
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.weights, problem.base, rtol=1e-12)
    assert (solution.misfit_before, solution.misfit_after) == (0, 0)


def test_on_a_sample_of_a_long_table():
    problem = guarded(1e-4, rows=60_000)
    solution = fit_path(problem, same)
    assert {point.rows for point in solution.path} == {20_000, 60_000}
    assert solution.status is Status.CONVERGED
    assert np.abs(solution.after - solution.before)[~MEASURED].max() < 1e-4
    assert solution.gap() < 1e-16


def test_denoising_leaves_guards_alone():
    problem = guarded(0.003, (3.0, 0.0, 0.1))
    result = denoise(problem, "qp")
    own = denoise(problem.only(MEASURED), "qp")
    np.testing.assert_array_equal(result.closest[MEASURED], own.closest)
    np.testing.assert_array_equal(result.closest[~MEASURED], problem.answers[~MEASURED])
    assert result.value == own.value
    with pytest.raises(InputError, match="none has noise"):
        denoise(problem.only(~MEASURED), "qp")
    towards = fit_path(problem, same, aim=result.closest)
    assert np.abs(towards.after - towards.before)[~MEASURED].max() < 0.05


def test_the_papers_method_has_no_guards():
    with pytest.raises(InputError, match="guards"):
        fit_paper(guarded(0.003), Paper(), norm=2)


def test_a_restored_solution_is_the_same():
    problem = guarded(0.003)
    solution = fit_path(problem, same)
    again = restore(
        problem,
        solution.multipliers,
        eta=solution.eta,
        status=solution.status,
        path=solution.path,
        insistent=solution.insistent,
        aim=solution.aim,
        tolerance=0.0,
    )
    np.testing.assert_allclose(again.weights, solution.weights, rtol=1e-9)
    assert again.misfit_after == pytest.approx(solution.misfit_after)
    assert again.gap() < 1e-14


@pytest.mark.parametrize(
    "masks",
    [
        {"measured": np.ones(6, bool)},
        {"measured": np.ones(7)},
        {"exact": np.ones((7, 1), bool)},
        {"measured": MEASURED, "exact": MEASURED},
        {"measured": ~MEASURED},
    ],
)
def test_bad_masks_are_refused(masks):
    plain = guarded(0.003)
    with pytest.raises(InputError):
        Problem(plain.designs, plain.answers, plain.covariance, plain.base, **masks)
