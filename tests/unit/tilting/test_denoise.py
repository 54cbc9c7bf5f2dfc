from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from retilt.exceptions import InputError
from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem
from retilt.tilting.denoise import INTERIOR, denoise
from retilt.tilting.fold import Rows

METHODS = ("qp", "lp")


def dense(problem):
    """(N, K) query values."""
    rows = np.arange(problem.rows)
    out = []
    for design in problem.designs:
        if isinstance(design, Indicators):
            block = np.zeros((rows.size, design.size))
            block[rows, design.codes] = 1.0
        else:
            columns = np.column_stack([design.values, np.ones(rows.size)])
            block = (
                design.offset + design.factor * columns[:, design.left] * columns[:, design.right]
            )
        out.append(block)
    return np.hstack(out)


def moments(values, factor=1.0):
    """All columns, squares and products of two."""
    count = values.shape[1]
    left, right = np.triu_indices(count)
    left, right = np.r_[np.arange(count), left], np.r_[np.full(count, -1), right]
    return Products(values, left, right, np.zeros(left.size), np.full(left.size, factor))


def problem(values, answers, deviations=1.0, *, base=None, factor=None, designs=()):
    parts = (moments(np.asarray(values, dtype=float)), *designs)
    answers = np.asarray(answers, dtype=float)
    variances = np.broadcast_to(np.square(deviations), answers.shape)
    weights = np.ones(len(values)) if base is None else base
    return Problem(parts, answers, Covariance(variances, factor), weights)


def objective(case, method, means):
    errors = means - case.answers
    if method == "lp":
        return float(np.sum(np.abs(errors) / case.covariance.deviations))
    return float(errors @ np.linalg.solve(case.covariance.dense(), errors)) / 2


def check(case, method, **options):
    """Everything that a result says about itself, from the dense query values."""
    result = denoise(case, method, **options)
    queries = dense(case)
    assert result.converged
    assert 0 <= result.gap <= 1e-9
    assert result.method == method
    assert np.all(np.diff(result.rows) > 0)
    assert np.all(result.shares > 0)
    assert np.all(case.base[result.rows] > 0)
    assert result.shares.sum() == pytest.approx(1, abs=1e-12)
    size = np.abs(queries).max()
    np.testing.assert_allclose(
        result.shares @ queries[result.rows], result.closest, rtol=1e-12, atol=1e-12 * size
    )
    moved = np.abs(case.base @ queries - result.closest) / case.covariance.deviations
    unseen = min(INTERIOR, 0.01 / moved.max()) if moved.max() > 0 else INTERIOR
    interior = options.get("interior", unseen)
    mixed = (1 - interior) * result.closest + interior * (case.base @ queries)
    np.testing.assert_allclose(result.answers, mixed, rtol=1e-12, atol=1e-12 * size)
    value = objective(case, method, result.closest)
    assert result.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert result.scale == case.covariance.deviations.max()
    return result


def random_case(seed, rows=200, columns=3, deviation=0.01, off=3.0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (rows, columns))
    weights = rng.dirichlet(np.full(rows, 0.1))
    case = problem(values, np.zeros(columns * (columns + 3) // 2), deviation)
    answers = case.means(weights)
    answers += off * deviation * rng.normal(size=answers.size)
    return dataclasses.replace(case, answers=answers)


@pytest.mark.parametrize("method", METHODS)
class TestBoth:
    def test_answers_in_reach_are_returned(self, method):
        case = random_case(0, off=0.0)
        result = check(case, method, interior=0.0)
        np.testing.assert_allclose(result.answers, case.answers, rtol=0, atol=1e-10)
        assert result.value < 1e-9

    @pytest.mark.parametrize("off", [1.0, 30.0, 1e4])
    @pytest.mark.parametrize("seed", range(3))
    def test_answers_out_of_reach(self, method, seed, off):
        case = random_case(seed, off=off)
        result = check(case, method)
        assert result.rows.size <= case.queries + 1
        # Denoising again moves nothing.
        again = denoise(dataclasses.replace(case, answers=result.closest), method)
        np.testing.assert_allclose(again.closest, result.closest, rtol=0, atol=1e-9)

    def test_one_row(self, method):
        case = problem([[0.5]], [0.2, 0.9], 0.1)
        result = check(case, method)
        np.testing.assert_array_equal(result.rows, [0])
        np.testing.assert_allclose(result.answers, [0.5, 0.25])

    def test_all_rows_equal(self, method):
        result = check(problem([[0.5]] * 7, [0.2, 0.9], 0.1), method)
        np.testing.assert_array_equal(result.rows, [0])

    def test_more_queries_than_rows(self, method):
        check(random_case(1, rows=4, columns=5), method)

    def test_rows_of_weight_zero_are_not_in_the_support(self, method):
        values = np.array([[1.0], [0.0], [0.3], [0.4]])
        case = problem(values, [1.0, 1.0], 0.01, base=np.array([0.0, 1.0, 1.0, 1.0]))
        result = check(case, method)
        np.testing.assert_array_equal(result.rows, [3])

    def test_merged_rows_are_named_by_the_first_of_them(self, method):
        values = np.repeat([[0.0], [1.0], [0.5]], 5, axis=0)
        case = problem(values, [2.0, 2.0], 0.01, base=np.r_[0.0, np.ones(14)])
        assert Rows.of(case).groups is not None
        np.testing.assert_array_equal(check(case, method).rows, [5])
        low = dataclasses.replace(case, answers=np.array([-1.0, 0.0]))
        np.testing.assert_array_equal(check(low, method).rows, [1])

    def test_a_query_asked_twice_with_two_noises(self, method):
        # The square of a column of zeros and ones is the column: answers contradict.
        values = np.tile([[0.0], [1.0]], (50, 1))
        case = problem(values, [0.3, 0.5], 0.01)
        result = check(case, method)
        assert 0.3 - 1e-9 <= result.closest[0] <= 0.5 + 1e-9
        assert result.value == pytest.approx(100.0 if method == "qp" else 20.0)

    @pytest.mark.parametrize("exponent", [-12, 12])
    def test_units_do_not_matter(self, method, exponent):
        case = random_case(5)
        unit = 10.0**exponent
        design = case.designs[0]
        other = Problem(
            (dataclasses.replace(design, factor=design.factor * unit),),
            case.answers * unit,
            Covariance(case.covariance.variances * unit**2),
            case.base,
        )
        expected = denoise(case, method)
        result = denoise(other, method)
        assert result.converged
        assert result.value == pytest.approx(expected.value, rel=1e-9)
        np.testing.assert_allclose(result.answers, expected.answers * unit, rtol=1e-8)

    def test_queries_of_very_different_units(self, method):
        case = random_case(6)
        units = 10.0 ** np.random.default_rng(0).integers(-12, 13, case.queries)
        design = case.designs[0]
        other = Problem(
            (dataclasses.replace(design, factor=design.factor * units),),
            case.answers * units,
            Covariance(case.covariance.variances * units**2),
            case.base,
        )
        result = denoise(other, method)
        assert result.converged
        assert result.value == pytest.approx(denoise(case, method).value, rel=1e-9)

    @pytest.mark.parametrize("far", [1e3, 1e6, 1e12])
    def test_an_answer_far_beyond_everything(self, method, far):
        case = random_case(7)
        answers = case.answers.copy()
        answers[2] += far
        result = denoise(dataclasses.replace(case, answers=answers), method)
        assert result.converged
        assert np.all(np.isfinite(result.answers))
        # It pulls its query to the largest value that a row has.
        assert result.closest[2] > case.answers[2]

    def test_cells_without_rows_and_a_wide_marginal(self, method):
        rng = np.random.default_rng(9)
        codes = np.minimum(rng.geometric(0.02, 3000) - 1, 290).astype(np.int32)
        values = rng.uniform(-1, 1, (3000, 2))
        answers = np.r_[np.zeros(5), rng.dirichlet(np.ones(300))]
        case = problem(values, answers, 0.01, designs=(Indicators(codes, 300),))
        result = check(case, method)
        assert result.rows.size <= 306

    def test_same_result_with_rows_laid_out_before(self, method):
        case = random_case(10)
        plain, given = denoise(case, method), denoise(case, method, rows=Rows.of(case))
        np.testing.assert_array_equal(plain.answers, given.answers)
        assert plain.gap == given.gap

    def test_interior(self, method):
        case = random_case(11)
        closed = denoise(case, method, interior=0.0)
        np.testing.assert_array_equal(closed.answers, closed.closest)
        half = check(case, method, interior=0.5)
        np.testing.assert_array_equal(half.closest, closed.closest)

    def test_an_unreachable_tolerance_is_told(self, method):
        case = random_case(12)
        result = denoise(case, method, tolerance=1e-300)
        assert not result.converged
        assert result.gap < 1e-9

    def test_options_out_of_range(self, method):
        case = random_case(13)
        for interior in (-0.1, 1.0, np.nan):
            with pytest.raises(InputError, match="interior: got"):
                denoise(case, method, interior=interior)
        for tolerance in (0.0, -1.0, np.inf, np.nan):
            with pytest.raises(InputError, match="tolerance: got"):
                denoise(case, method, tolerance=tolerance)

    def test_rows_of_another_problem(self, method):
        with pytest.raises(InputError, match="another problem's rows"):
            denoise(random_case(14), method, rows=Rows.of(random_case(14, columns=2)))
        with pytest.raises(InputError, match="another problem's rows"):
            denoise(random_case(14), method, rows=Rows.of(random_case(14, rows=300)))


def test_unknown_method():
    with pytest.raises(InputError, match='got \'sgd\', expected "qp" or "lp"'):
        denoise(random_case(0), "sgd")  # type: ignore[arg-type]


def test_equal_deviations_are_the_papers_problems():
    """Their size changes the units of the objective, and nothing else."""
    for method, power in (("qp", 2), ("lp", 1)):
        case = random_case(20)
        result = denoise(case, method)
        noise = Covariance(100 * case.covariance.variances)
        louder = denoise(dataclasses.replace(case, covariance=noise), method)
        np.testing.assert_allclose(louder.closest, result.closest, rtol=0, atol=1e-8)
        raw = result.value * result.scale**power
        assert louder.value * louder.scale**power == pytest.approx(raw, rel=1e-8)
        errors = result.closest - case.answers
        paper = errors @ errors / 2 if method == "qp" else np.abs(errors).sum()
        assert raw == pytest.approx(paper)


def test_a_quieter_answer_is_kept_nearer():
    values = np.tile([[0.0], [1.0]], (50, 1))
    quadratic = denoise(problem(values, [0.3, 0.5], np.array([0.01, 0.02])), "qp")
    assert quadratic.closest[0] == pytest.approx((0.3 * 4 + 0.5) / 5)
    linear = denoise(problem(values, [0.3, 0.5], np.array([0.01, 0.02])), "lp")
    assert linear.closest[0] == pytest.approx(0.3)


def test_a_far_answer_does_not_drown_the_others():
    """Of the linear program: in a sum of squares it does outweigh them."""
    rng = np.random.default_rng(8)
    values = np.column_stack([rng.uniform(-1, 1, 500), np.r_[1.0, -np.ones(499)]])
    parts = Products(values, np.array([0, 1]), np.array([-1, -1]), np.zeros(2), np.ones(2))
    noise = Covariance(np.array([0.01, 1e6]))
    near = Problem((parts,), np.array([0.1, 1.0]), noise, np.ones(500))
    far = dataclasses.replace(near, answers=np.array([0.1, 1e12]))
    first, second = denoise(near, "lp"), denoise(far, "lp")
    np.testing.assert_allclose(second.closest, first.closest, rtol=0, atol=1e-9)
    assert second.gap <= 1e-9


def test_shared_noise_moves_answers_together():
    """What a constant query shows of a shared noise is taken off the others."""
    values = np.array([[0.0, 0.5], [1.0, 0.5]])
    design = Products(values, np.array([0, 1]), np.array([-1, -1]), np.zeros(2), np.ones(2))
    noise = Covariance(np.full(2, 1e-8), np.full((2, 1), 0.1))
    case = Problem((design,), np.array([0.7, 0.6]), noise, np.ones(2))
    # The second query is 0.5 at any weights, so the shared noise was 0.1.
    result = check(case, "qp")
    assert result.closest[0] == pytest.approx(0.6, abs=1e-6)
    # The linear program takes each answer by itself.
    assert check(case, "lp").closest[0] == pytest.approx(0.7)


def test_too_many_queries():
    codes = np.arange(3001, dtype=np.int32)
    noise = Covariance(np.ones(3001))
    case = Problem((Indicators(codes, 3001),), np.zeros(3001), noise, np.ones(3001))
    for method in METHODS:
        with pytest.raises(InputError, match="at most 3,000"):
            denoise(case, method)


@pytest.mark.parametrize("failing", ["nnls", "linprog"])
def test_a_solver_that_gives_up_leaves_a_point_and_its_gap(monkeypatch, failing):
    import scipy.optimize

    class Nothing:
        x = None

    def give_up(*_args, **_options):
        if failing == "nnls":
            raise RuntimeError("Maximum number of iterations reached.")
        return Nothing()

    monkeypatch.setattr(scipy.optimize, failing, give_up)
    case = random_case(21)
    result = denoise(case, "qp" if failing == "nnls" else "lp")
    assert not result.converged
    assert result.rows.size == 1
    assert result.gap > 1e-9
