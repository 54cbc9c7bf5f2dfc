from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from retilt.measures.base import Grouped, Indicators, Products
from retilt.tilting import Covariance, Problem
from retilt.tilting import sample as sampling
from retilt.tilting.fold import Rows, Sample
from retilt.tilting.sample import SAMPLE_ROWS, leveraged, sampled


def build(rng, rows, *, levels=None):
    """A problem with parts of every kind, and its dense query matrix."""
    values = rng.uniform(-1, 1, (rows, 3))
    if levels:
        values = np.floor(values * levels) / levels
    first = Products(
        values,
        np.array([0, 1, 0, 2, -1]),
        np.array([-1, -1, 1, 2, 2]),
        np.array([0.0, 0.5, 0.0, 1.0, 0.0]),
        np.array([1.0, 2.0, 1.0, -1.0, 1e-3]),
    )
    more = rng.normal(size=(rows, 2)) if not levels else np.round(rng.normal(size=(rows, 2)))
    second = Products(more, np.array([1]), np.array([-1]), np.array([0.0]), np.array([1.0]))
    codes = [rng.integers(0, m, rows).astype(np.int32) for m in (3, 4)]
    # The second partition has cells that no row is in.
    grouped, columns = groups(rng, values, levels=levels)
    other, more_columns = groups(rng, values, levels=levels)
    designs = (first, Indicators(codes[0], 3), grouped, second, Indicators(codes[1], 7), other)
    dense = np.column_stack(
        [
            values[:, 0],
            0.5 + 2 * values[:, 1],
            values[:, 0] * values[:, 1],
            1 - values[:, 2] ** 2,
            1e-3 * values[:, 2],
            np.eye(3)[codes[0]],
            columns,
            more[:, 1],
            np.eye(7)[codes[1]],
            more_columns,
        ]
    )
    size = dense.shape[1]
    base = rng.random(rows) * (rng.random(rows) > 0.2) + 1e-12 * (np.arange(rows) == 0)
    return Problem(designs, np.zeros(size), Covariance(np.ones(size)), base), dense


def groups(rng, values, *, levels=None):
    """Random queries within the cells of a partition, and their dense matrix."""
    rows, columns = values.shape
    size = int(rng.integers(1, 6))
    codes = np.minimum(rng.integers(0, size, rows), rng.integers(0, size, rows)).astype(np.int32)
    queries = int(rng.integers(1, 13))
    cell = rng.integers(0, size, queries)
    left, right = rng.integers(-1, columns, (2, queries))
    # The same columns with other coefficients, in the same cell or another, and plain ones.
    plain = rng.random(queries) < 0.6
    offset = np.where(plain, 0.0, rng.integers(-1, 2, queries))
    factor = np.where(plain, 1.0, rng.integers(-1, 3, queries))
    extended = np.column_stack([values, np.ones(rows)])
    dense = (codes[:, None] == cell) * (offset + factor * extended[:, left] * extended[:, right])
    return Grouped(codes, size, values, cell, left, right, offset, factor), dense


def check(problem, dense, rows, multipliers):
    scores = np.full(problem.rows, -np.inf)
    used = problem.base > 0
    scores[used] = np.log(problem.base[used]) - dense[used] @ multipliers
    weights = np.exp(scores - logsumexp(scores))
    fold = rows.fold(multipliers[rows.varying])
    constant = float(rows.constants @ multipliers)
    assert fold.log_normaliser - constant == pytest.approx(logsumexp(scores), rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(
        rows.expand(fold.weights, problem.rows), weights, rtol=1e-9, atol=1e-15
    )
    means = weights @ dense
    np.testing.assert_allclose(fold.means, means[rows.varying], atol=1e-10)
    np.testing.assert_allclose(rows.constants[~rows.varying], means[~rows.varying], atol=1e-12)
    assert fold.ess == pytest.approx(1 / np.sum(weights**2), rel=1e-9)
    centred = (dense - means)[:, rows.varying]
    np.testing.assert_allclose(
        rows.covariance(fold), (centred * weights[:, None]).T @ centred, atol=1e-10
    )
    np.testing.assert_allclose(problem.means(weights), means, atol=1e-10)
    if rows.groups is None:
        picks = np.arange(rows.merged.size)[::-2]
        np.testing.assert_allclose(
            rows.values(picks), dense[rows.support[picks]][:, rows.varying], atol=1e-12
        )
    spread = np.ptp(dense[used], axis=0)
    np.testing.assert_array_equal(rows.varying, spread > 1e-9)
    for part in rows.parts:
        low, high = part.bounds()
        seen = dense[used][:, rows.varying][:, part.place]
        assert np.all(low <= seen.min(axis=0) + 1e-12)
        assert np.all(high >= seen.max(axis=0) - 1e-12)


@pytest.mark.parametrize("rows", [2, 7, 300, 8192, 9000])
@pytest.mark.parametrize("levels", [None, 2])
def test_a_fold_is_the_dense_computation(rows, levels):
    rng = np.random.default_rng(rows)
    problem, dense = build(rng, rows, levels=levels)
    layout = Rows.of(problem)
    for size in (0.0, 1.0, 30.0):
        check(problem, dense, layout, size * rng.normal(size=dense.shape[1]))


@given(st.integers(0, 100_000), st.integers(1, 40))
def test_small_tables_with_repeats(seed, rows):
    rng = np.random.default_rng(seed)
    problem, dense = build(rng, rows, levels=1)
    check(problem, dense, Rows.of(problem), rng.normal(size=dense.shape[1]))


def test_repeated_rows_are_merged():
    rng = np.random.default_rng(0)
    problem, _ = build(rng, 30_000, levels=1)
    layout = Rows.of(problem)
    assert layout.groups is not None
    assert layout.merged.size < 15_000
    assert layout.merged.sum() == pytest.approx(1)


def test_rows_that_hardly_repeat_are_not():
    rng = np.random.default_rng(0)
    problem, _ = build(rng, 30_000)
    assert Rows.of(problem).groups is None


def test_negative_zero_is_zero():
    values = np.array([[0.0], [-0.0], [1.0], [1.0]])
    part = Products(values, np.array([0]), np.array([-1]), np.zeros(1), np.ones(1))
    layout = Rows.of(Problem((part,), np.zeros(1), Covariance(np.ones(1)), np.ones(4)))
    assert layout.merged.size == 2


def test_equal_hashes_of_unequal_rows_are_not_merged(monkeypatch):
    monkeypatch.setattr(
        "retilt.tilting.fold._hashes", lambda designs, rows, count: np.zeros(count, np.uint64)
    )
    problem, dense = build(np.random.default_rng(0), 50, levels=1)
    layout = Rows.of(problem)
    assert layout.groups is None
    check(problem, dense, layout, np.ones(dense.shape[1]))


@pytest.mark.parametrize("size", [1e4, 1e8, 1e200])
def test_huge_multipliers_neither_overflow_nor_warn(size):
    rng = np.random.default_rng(1)
    problem, _ = build(rng, 500)
    layout = Rows.of(problem)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        fold = layout.fold(size * np.ones(int(layout.varying.sum())))
        layout.covariance(fold)
    assert fold.weights.sum() == pytest.approx(1)
    assert np.all(np.isfinite(fold.means))
    assert fold.ess >= 1 - 1e-12


def test_what_varies():
    values = np.array([[1.0, 1.0, 0.5], [-1.0, 1.0, 0.5 + 1e-17], [1.0, 1.0, 0.5]])
    part = Products(
        values,
        np.array([0, 0, 1, 2, 0, -1]),
        np.array([-1, 0, -1, -1, -1, -1]),
        np.array([0.0, 0.0, 0.0, 0.0, 3.0, 0.0]),
        np.array([1.0, 1.0, 1.0, 1.0, 0.0, 2.0]),
    )
    cells = Indicators(np.array([1, 1, 1], dtype=np.int32), 3)
    task = Problem((part, cells), np.zeros(9), Covariance(np.ones(9)), np.ones(3))
    layout = Rows.of(task)
    np.testing.assert_array_equal(layout.varying, [True] + [False] * 8)
    np.testing.assert_array_equal(layout.constants, [0, 1, 1, 0.5, 3, 2, 0, 1, 0])


def test_what_varies_within_cells():
    codes = np.array([0, 0, 1, 1, 2], dtype=np.int32)
    values = np.array([[0.5], [0.5], [0.3], [0.4], [0.0]])
    cell = np.array([0, 0, 0, 1, 2, 2, 3])
    left = np.array([-1, 0, 0, 0, 0, -1, -1])
    offset = np.array([0.0, 0, 0.5, 0, 0, 3, 0])
    factor = np.array([1.0, 1, -1, 1, 1, 0, 1])
    part = Grouped(codes, 4, values, cell, left, np.full(7, -1), offset, factor)
    layout = Rows.of(Problem((part,), np.zeros(7), Covariance(np.ones(7)), np.ones(5)))
    np.testing.assert_array_equal(layout.varying, [1, 1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(layout.constants, np.zeros(7))
    # Where one cell holds all rows a query is its function.
    one = Problem((part,), np.zeros(7), Covariance(np.ones(7)), [1, 1, 0, 0, 0])
    layout = Rows.of(one)
    np.testing.assert_array_equal(layout.varying, np.zeros(7))
    np.testing.assert_array_equal(layout.constants, [1, 0.5, 0, 0, 0, 0, 0])


def test_rows_without_base_weight_do_not_count():
    values = np.array([[1.0], [1.0], [5.0]])
    part = Products(values, np.array([0]), np.array([-1]), np.zeros(1), np.ones(1))
    task = Problem((part,), np.zeros(1), Covariance(np.ones(1)), [1.0, 1.0, 0.0])
    layout = Rows.of(task)
    assert not layout.varying[0]
    np.testing.assert_array_equal(layout.expand(layout.merged, 3) > 0, [True, True, False])


def rare(rows: int) -> Problem:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, rows).astype(np.int32)
    codes[[5, 70_000, 99_999]] = 3
    codes[11] = 4
    values = rng.normal(size=(rows, 2))
    values[:, 1] = 0.25
    values[123, 1] = 0.5
    part = Products(values, np.array([0, 1, 0]), np.array([-1, -1, 1]), np.zeros(3), np.ones(3))
    base = rng.uniform(0.5, 1.5, rows)
    return Problem((part, Indicators(codes, 6)), np.zeros(9), Covariance(np.ones(9)), base)


def test_a_short_table_is_followed_whole():
    problem, _ = build(np.random.default_rng(0), 1000)
    whole = Rows.of(problem)
    assert sampled(problem, whole) is whole


def test_a_sample_misses_no_query():
    problem = rare(100_000)
    whole = Rows.of(problem)
    part = sampled(problem, whole)
    assert part.support.size < 1.01 * SAMPLE_ROWS
    np.testing.assert_array_equal(part.varying, whole.varying)
    assert {5, 11, 123, 70_000, 99_999} <= set(part.support.tolist())
    # Rare rows keep their own share.
    where = np.searchsorted(part.support, 5)
    assert part.base[where] == pytest.approx(problem.base[5], rel=1e-9)
    expected = whole.means(whole.merged)
    np.testing.assert_allclose(part.means(part.merged), expected, atol=0.03)
    again = sampled(problem, whole)
    np.testing.assert_array_equal(part.support, again.support)


def test_a_sample_misses_no_query_within_cells():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, 100_000).astype(np.int32)
    codes[[5, 70_000]] = 3
    values = rng.normal(size=(100_000, 2))
    values[:, 1] = 0.25
    values[123, 1], codes[123] = 0.5, 1
    cell = np.array([0, 0, 3, 3, 1, 1])
    left = np.array([-1, 0, -1, 0, 1, -1])
    # 1 - 4 z is 0 in cell 1 but on row 123.
    offset, factor = np.array([0.0, 0, 0, 0, 1, 0]), np.array([1.0, 1, 1, 1, -4, 1])
    part = Grouped(codes, 4, values, cell, left, np.full(6, -1), offset, factor)
    base = rng.uniform(0.5, 1.5, 100_000)
    problem = Problem((part,), np.zeros(6), Covariance(np.ones(6)), base)
    whole = Rows.of(problem)
    sample = sampled(problem, whole)
    assert np.all(whole.varying)
    assert np.all(sample.varying)
    assert sample.support.size < 1.01 * SAMPLE_ROWS
    assert {5, 123, 70_000} <= set(sample.support.tolist())


def test_where_a_sample_cannot_do_all_rows_are_followed(monkeypatch):
    problem = rare(100_000)
    whole = Rows.of(problem)
    monkeypatch.setattr(sampling, "_rare", lambda problem, sample, missed: np.zeros(100_000, bool))
    assert sampled(problem, whole) is whole


def skewed(rows: int, scale: float = 1.0) -> Problem:
    """Three log-normal columns, their means, squares and products, and uneven base weights."""
    rng = np.random.default_rng(5)
    values = np.minimum(np.exp(rng.normal(size=(rows, 3)) * [0.5, 1, 1.5] - 4), 1) * scale
    left, right = np.triu_indices(3)
    ends = np.r_[0, 1, 2, left], np.r_[-1, -1, -1, right]
    part = Products(values, *ends, np.zeros(9), np.ones(9))
    base = rng.uniform(0, 2, rows)
    base[::7] = 0
    return Problem((part,), np.zeros(9), Covariance(np.ones(9)), base)


def test_rows_of_large_products_are_drawn_more_often():
    problem = skewed(200_000)
    whole = Rows.of(problem)
    expected = whole.means(whole.merged)
    parts = [leveraged(problem, whole), sampled(problem, whole)]
    errors = [np.abs(part.means(part.merged) - expected) / expected for part in parts]
    # The square of the most skewed column gains most.
    assert errors[0].max() < errors[1].max() / 3
    own, even = parts
    assert 0.5 * SAMPLE_ROWS < own.support.size <= SAMPLE_ROWS
    assert np.all(problem.base[own.support] > 0)
    assert own.base.sum() == pytest.approx(1)
    values = problem.designs[0].values[:, 2]
    assert (values[own.support] == 1).sum() > 5 * (values[even.support] == 1).sum()
    np.testing.assert_array_equal(own.support, leveraged(problem, whole).support)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_what_is_drawn_does_not_depend_on_units(scale):
    supports = []
    for unit in (1.0, scale):
        problem = skewed(60_000, unit)
        supports.append(leveraged(problem, Rows.of(problem)).support)
    np.testing.assert_array_equal(*supports)


def test_short_tables_rare_values_and_tables_of_counts_have_the_plain_sample():
    short = skewed(1_000)
    whole = Rows.of(short)
    assert leveraged(short, whole) is whole
    problem = rare(100_000)
    whole = Rows.of(problem)
    np.testing.assert_array_equal(leveraged(problem, whole).varying, whole.varying)
    codes = np.random.default_rng(0).integers(0, 4, 100_000).astype(np.int32)
    counts = Problem((Indicators(codes, 4),), np.zeros(4), Covariance(np.ones(4)), np.ones(100_000))
    whole = Rows.of(counts)
    np.testing.assert_array_equal(leveraged(counts, whole).support, sampled(counts, whole).support)


def test_a_sample_is_laid_out_with_its_own_weights():
    problem, _ = build(np.random.default_rng(0), 100)
    rows = np.flatnonzero(problem.base > 0)[:10]
    layout = Rows.of(problem, Sample(rows, np.arange(1.0, 11.0)))
    np.testing.assert_allclose(layout.base, np.arange(1, 11) / 55)
