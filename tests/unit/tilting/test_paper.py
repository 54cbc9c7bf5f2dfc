"""The paper's method: its algorithms, its settings, and a status wherever it can go wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from retilt.exceptions import InputError
from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Status
from retilt.tilting.fold import Rows
from retilt.tilting.paper import Paper, fit_paper
from retilt.tilting.reduction import reduce
from retilt.tilting.solvers import Verdict, drive
from retilt.tilting.solvers.compositional_sgd import CompositionalSGD, soft_threshold

Array = NDArray[np.float64]
DEVIATION = 0.003


def moments(columns: Array) -> Products:
    """The paper's queries: x_i and x_i x_j, i <= j."""
    count = columns.shape[1]
    left, right = np.triu_indices(count)
    first = np.arange(count)
    return Products(
        columns,
        np.concatenate([first, left]),
        np.concatenate([np.full(count, -1), right]),
        np.zeros(count + left.size),
        np.ones(count + left.size),
    )


def problem_of(columns: Array, answers: Array, base: Array | None = None) -> Problem:
    variances = np.full(answers.size, DEVIATION**2)
    base = np.ones(len(columns)) if base is None else base
    return Problem((moments(columns),), answers, Covariance(variances), base)


def table(seed: int = 0, rows: int = 3000) -> Array:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, 1))
    return 1 / (1 + np.exp(-common * [0.8, -0.5, 0.3] - rng.normal(size=(rows, 3))))


def reachable(noise: float = DEVIATION, seed: int = 0) -> Problem:
    columns = table()
    tilted = np.exp(columns @ [1.0, -0.5, 0.7])
    tilted /= tilted.sum()
    answers = problem_of(columns, np.zeros(9)).means(tilted)
    rng = np.random.default_rng(seed)
    return problem_of(columns, answers + noise * rng.normal(size=9))


class TestSettings:
    def test_the_defaults_are_the_papers(self) -> None:
        paper = Paper()
        assert (paper.batch, paper.epochs, paper.tolerance) == (256, 200, 1e-5)
        assert paper.algorithm == 2
        assert (paper.denoiser(1), paper.denoiser(2)) == ("lp", "qp")

    @pytest.mark.parametrize(
        ("settings", "word"),
        [
            ({"solver": "adam"}, "solver: got 'adam'"),
            ({"denoise": "ip"}, "denoise: got 'ip'"),
            ({"algorithm": 3}, "algorithm: got 3"),
            ({"algorithm": True}, "algorithm: got True"),
            ({"tolerance": -1e-5}, "tolerance: got -1e-05"),
            ({"tolerance": float("nan")}, "tolerance: got nan"),
            ({"tolerance": "0"}, "tolerance: got '0'"),
            ({"batch": 0}, "batch: got 0"),
            ({"epochs": 1.5}, r"epochs: got 1\.5"),
            ({"epochs": True}, "epochs: got True"),
        ],
    )
    def test_others_are_refused(self, settings: dict[str, object], word: str) -> None:
        with pytest.raises(InputError, match=word):
            Paper(**settings)  # type: ignore[arg-type]


class TestTheAlgorithm:
    def test_one_step_by_hand(self) -> None:
        # Two batches of two rows each in a fixed order; the formulas written out.
        values = np.array([[0.0], [1.0], [0.25], [0.5]])
        problem = Problem(
            (Products(values, np.array([0]), np.array([-1]), np.zeros(1), np.ones(1)),),
            np.array([0.6]),
            Covariance(np.ones(1)),
            np.ones(4),
        )
        rows = Rows.of(problem)
        reduced = reduce(problem, rows, problem.answers)

        class InOrder(np.random.Generator):
            def permutation(self, count: int) -> NDArray[np.intp]:  # type: ignore[override]
                return np.arange(count)

        gamma, multiplier, tau = 0.01, 0.0, 1.0
        length = 1 / values.var()
        for step, batch in enumerate((values[:2], values[2:])):
            bars = batch[:, 0] - 0.6
            powers = np.exp(-multiplier * bars)
            alpha = length * (1 - step / 2) * min(1.0, 2 / (powers.mean() / tau))
            moved = multiplier + alpha / tau * np.mean(powers * bars)
            multiplier = np.sign(moved) * max(abs(moved) - alpha * gamma, 0.0)
            tau = np.exp(-multiplier * bars).mean()
        for algorithm in (1, 2):
            solver = CompositionalSGD(gamma, 1, 2, algorithm, InOrder(np.random.PCG64()))
            state, verdict = drive(solver, reduced, 0.0, np.zeros(1), limit=1)
            assert verdict is Verdict.LIMIT
            assert state.multipliers == pytest.approx([multiplier], rel=1e-12)
            assert state.log_normaliser == pytest.approx(np.log(tau), rel=1e-12)

    def test_algorithm_2_is_algorithm_1(self) -> None:
        paper = Paper(epochs=20)
        first, second = (
            fit_paper(reachable(), replace(paper, algorithm=algorithm), norm=2, seed=4)
            for algorithm in (1, 2)
        )
        np.testing.assert_allclose(first.multipliers, second.multipliers, rtol=1e-9)

    def test_a_seed_repeats_it_and_another_does_not(self) -> None:
        fits = [fit_paper(reachable(), Paper(epochs=3), norm=2, seed=s) for s in (1, 1, 2)]
        assert np.array_equal(fits[0].multipliers, fits[1].multipliers)
        assert not np.array_equal(fits[0].multipliers, fits[2].multipliers)

    def test_it_nears_the_exact_optimum(self) -> None:
        stochastic = fit_paper(reachable(), Paper(), norm=2, seed=0)
        exact = fit_paper(reachable(), Paper(solver="exact"), norm=2)
        assert stochastic.status is exact.status is Status.CONVERGED
        assert exact.kkt_residual() < 1e-8
        assert 1e-8 < stochastic.kkt_residual() < 1
        assert np.abs(stochastic.weights - exact.weights).sum() < 0.02

    def test_repeated_rows_count_as_often_as_they_stand(self) -> None:
        columns = (table(rows=400) > 0.5) * 1.0
        columns[:, 2] = np.round(table(rows=400)[:, 2], 1)
        answers = problem_of(columns, np.zeros(9)).means(np.full(400, 1 / 400)) * 0.97
        whole = problem_of(columns, answers)
        distinct, counts = np.unique(columns, axis=0, return_counts=True)
        merged = problem_of(distinct, answers, counts)
        fits = [fit_paper(p, Paper(solver="exact"), norm=2) for p in (whole, merged)]
        np.testing.assert_allclose(fits[0].after, fits[1].after, atol=1e-7)

    def test_batches_larger_than_the_table_and_a_last_short_one(self) -> None:
        for batch in (7, 5000):
            solution = fit_paper(reachable(), Paper(batch=batch, epochs=5), norm=2, seed=0)
            assert np.all(np.isfinite(solution.weights))

    def test_it_tells_every_epoch(self) -> None:
        seen: list[object] = []
        fit_paper(reachable(), Paper(epochs=7), norm=2, seed=0, on_step=seen.append)
        assert len(seen) == 7

    def test_soft_threshold(self) -> None:
        moved = soft_threshold(np.array([-2.0, -0.5, 0.0, 0.5, 2.0]), 1.0)
        assert moved.tolist() == [-1.0, 0.0, 0.0, 0.0, 1.0]


class TestWhatCanGoWrong:
    @pytest.mark.parametrize("gamma", [0.0, 1e-5])
    @pytest.mark.parametrize("solver", ["sgd", "exact"])
    @pytest.mark.parametrize("denoise", ["auto", None])
    @pytest.mark.parametrize("norm", [1, 2])
    def test_a_two_valued_column_measured_twice(
        self, gamma: float, solver: str, denoise: str | None, norm: int
    ) -> None:
        """x and x squared are equal on the table, their noisy answers are not."""
        bits = (np.random.default_rng(0).random(2000) < 0.3) * 1.0
        answers = np.array([0.31, 0.322])
        problem = problem_of(bits[:, None], answers)
        paper = Paper(solver=solver, denoise=denoise, tolerance=gamma)  # type: ignore[arg-type]
        solution = fit_paper(problem, paper, norm=norm, seed=0)  # type: ignore[arg-type]
        assert np.all(np.isfinite(solution.multipliers))
        assert solution.ess > 1000
        share = solution.weights @ bits
        if denoise is None:
            assert solution.status is Status.INFEASIBLE_MEASURES
        else:
            # Four deviations apart: beyond what noise explains, but not by far.
            assert solution.status is Status.CONVERGED
        assert 0.31 - 1e-3 <= share <= 0.322 + 1e-3
        if norm == 2:
            assert share == pytest.approx(0.316, abs=1e-3)

    @pytest.mark.parametrize("solver", ["sgd", "exact"])
    @pytest.mark.parametrize("denoise", ["auto", None])
    @pytest.mark.parametrize("algorithm", [1, 2])
    def test_answers_far_outside_the_support(
        self, solver: str, denoise: str | None, algorithm: int
    ) -> None:
        columns = 0.2 + 0.1 * table()
        answers = np.r_[0.9, 0.1, 0.9, 0.8, 0.1, 0.8, 0.1, 0.1, 0.8]
        paper = Paper(solver=solver, denoise=denoise, algorithm=algorithm)  # type: ignore[arg-type]
        solution = fit_paper(problem_of(columns, answers), paper, norm=2, seed=0)
        assert solution.status is Status.INFEASIBLE_MEASURES
        assert np.all(np.isfinite(solution.weights))
        assert solution.weights.sum() == pytest.approx(1)

    def test_too_few_epochs_are_said(self) -> None:
        sharp = replace(reachable(1e-4), covariance=Covariance(np.full(9, 1e-8)))
        short = fit_paper(sharp, Paper(epochs=1, batch=3000), norm=2, seed=0)
        assert short.status is Status.ITERATION_LIMIT
        assert short.kkt_residual() > 3

    def test_algorithm_1_overflows_where_algorithm_2_does_not(self) -> None:
        values = np.array([[0.0], [1000.0], [500.0]])
        far = Problem(
            (Products(values, np.array([0]), np.array([-1]), np.zeros(1), np.ones(1)),),
            np.array([2000.0]),
            Covariance(np.ones(1)),
            np.ones(3),
        )
        rows = Rows.of(far)
        reduced = reduce(far, rows, far.answers)
        finite = []
        for algorithm in (1, 2):
            generator = np.random.default_rng(0)
            solver = CompositionalSGD(1e-5, 1000, 256, algorithm, generator)  # type: ignore[arg-type]
            state, verdict = drive(solver, reduced, 0.0, np.zeros(1), limit=1000)
            finite.append(bool(np.isfinite(state.multipliers).all()))
            assert verdict is (Verdict.LIMIT if finite[-1] else Verdict.STALLED)
            paper = Paper(algorithm=algorithm, denoise=None, epochs=1000)  # type: ignore[arg-type]
            assert np.isfinite(fit_paper(far, paper, norm=2, seed=0).weights).all()
        assert finite == [False, True]

    def test_it_brings_a_skewed_table_nearer_to_answers_in_reach(self) -> None:
        """Few rows hold most of the weight: dampening their batches would drive it away."""
        rng = np.random.default_rng(0)
        columns = rng.beta(0.3, 6.0, size=(8000, 2))
        heavy = np.exp(8 * columns[:, 0] + 5 * columns[:, 1])
        heavy /= heavy.sum()
        answers = problem_of(columns, np.zeros(5)).means(heavy)
        solution = fit_paper(problem_of(columns, answers), Paper(), norm=2, seed=0)
        assert solution.misfit_after < solution.misfit_before / 100

    def test_one_row_and_no_query_that_varies(self) -> None:
        for rows in (1, 5):
            same = np.full((rows, 2), 0.25)
            solution = fit_paper(problem_of(same, np.full(5, 0.25)), Paper(), norm=2, seed=0)
            np.testing.assert_allclose(solution.weights, 1 / rows)
            assert solution.status is Status.INFEASIBLE_MEASURES

    def test_cells_that_no_row_lies_in(self) -> None:
        codes = np.random.default_rng(0).integers(0, 3, 900)
        answers = np.array([0.2, 0.3, 0.45, 0.05])
        problem = Problem(
            (Indicators(codes, 4),), answers, Covariance(np.full(4, 0.03**2)), np.ones(900)
        )
        for norm in (1, 2):
            solution = fit_paper(problem, Paper(solver="exact"), norm=norm)  # type: ignore[arg-type]
            assert solution.status is Status.CONVERGED
            assert solution.after[3] == 0
            assert solution.multipliers[3] == 0
        refused = fit_paper(problem, Paper(solver="exact", denoise=None), norm=2)
        assert refused.status is Status.INFEASIBLE_MEASURES

    def test_rows_without_base_weight_stay_without(self) -> None:
        base = (np.arange(3000) % 3 > 0) * (1.0 + np.arange(3000) % 5)
        problem = replace(reachable(), base=base)
        for solver in ("sgd", "exact"):
            solution = fit_paper(problem, Paper(solver=solver), norm=2, seed=0)  # type: ignore[arg-type]
            assert np.all(solution.weights[base == 0] == 0)
            assert solution.status is Status.CONVERGED
