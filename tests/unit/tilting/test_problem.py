from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.exceptions import InputError
from retilt.measures.base import Grouped, Indicators, Products
from retilt.tilting import Covariance, Problem


def products(values, left, right, offset=None, factor=None) -> Products:
    size = len(left)
    return Products(
        np.asarray(values, dtype=float),
        np.array(left, dtype=np.intp),
        np.array(right, dtype=np.intp),
        np.zeros(size) if offset is None else np.array(offset, dtype=float),
        np.ones(size) if factor is None else np.array(factor, dtype=float),
    )


def problem(designs, answers, base) -> Problem:
    answers = np.asarray(answers, dtype=float)
    return Problem(tuple(designs), answers, Covariance(np.ones(answers.size)), base)


VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@given(st.integers(0, 10_000), st.integers(0, 4))
def test_the_covariance_is_its_matrix(seed, rank):
    rng = np.random.default_rng(seed)
    noise = Covariance(rng.uniform(0.1, 2, 6), rng.normal(size=(6, rank)))
    x = rng.normal(size=6)
    dense = noise.dense()
    np.testing.assert_allclose(noise.times(x), dense @ x, atol=1e-12)
    np.testing.assert_allclose(noise.solve(x), np.linalg.solve(dense, x), atol=1e-9)
    assert noise.quadratic_inverse(x) == pytest.approx(x @ np.linalg.solve(dense, x))
    np.testing.assert_allclose(noise.deviations**2, np.diag(dense))
    keep = np.array([True, False, True, True, False, False])
    np.testing.assert_allclose(noise.select(keep).dense(), dense[np.ix_(keep, keep)])


def test_the_covariance_is_a_read_only_copy():
    variances = np.ones(2)
    noise = Covariance(variances)
    variances[0] = 9
    assert noise.variances[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        noise.variances[0] = 2


@pytest.mark.parametrize(
    ("variances", "factor"),
    [
        ([[1.0]], None),
        ([0.0], None),
        ([-1.0], None),
        ([np.nan], None),
        ([np.inf], None),
        ([1.0], [1.0]),
        ([1.0], [[1.0], [2.0]]),
        ([1.0], [[np.nan]]),
    ],
)
def test_bad_covariances_are_refused(variances, factor):
    with pytest.raises(InputError):
        Covariance(variances, factor)


def test_means_by_hand():
    moments = products(
        VALUES, [0, 1, 0, -1, 0], [-1, 0, 0, -1, 0], offset=[0, 0, 0, 7, 1], factor=[1, 1, 1, 2, -1]
    )
    cells = Indicators(np.array([2, 0, 2], dtype=np.int32), 4)
    task = problem([moments, cells], np.zeros(9), [1.0, 1.0, 2.0])
    expected = [3.5, (2 + 12 + 60) / 4, (1 + 9 + 50) / 4, 9, 1 - 15, 0.25, 0, 0.75, 0]
    np.testing.assert_allclose(task.means(task.base), expected)
    assert (task.rows, task.queries) == (3, 9)


def test_means_over_many_chunks():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20_001, 2))
    weights = rng.random(20_001)
    task = problem([products(values, [0, 0], [-1, 1])], np.zeros(2), weights)
    expected = [task.base @ values[:, 0], task.base @ (values[:, 0] * values[:, 1])]
    np.testing.assert_allclose(task.means(task.base), expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e308])
def test_base_weights_are_normalised(scale):
    task = problem([products(VALUES, [0], [-1])], [0.0], np.array([1.0, 0.0, 1.0]) * scale)
    np.testing.assert_allclose(task.base, [0.5, 0, 0.5])


@pytest.mark.parametrize(
    "base",
    [[], [1.0], [[1.0, 1.0, 1.0]], [1, np.nan, 1], [1, np.inf, 1], [1, -1e-9, 1], [0, 0, 0]],
)
def test_bad_base_weights_are_refused(base):
    with pytest.raises(InputError):
        problem([products(VALUES, [0], [-1])], [0.0], base)


def grouped(codes, size, values, cell) -> Grouped:
    count = len(cell)
    none = np.full(count, -1)
    return Grouped(
        np.array(codes, dtype=np.int32),
        size,
        np.asarray(values, dtype=float),
        np.array(cell),
        np.zeros(count, dtype=np.intp),
        none,
        np.zeros(count),
        np.ones(count),
    )


def test_means_within_cells_by_hand():
    part = grouped([1, 0, 1], 3, VALUES, [0, 1, 2])
    task = problem([part], np.zeros(3), [1.0, 1.0, 2.0])
    np.testing.assert_allclose(task.means(task.base), [3 / 4, 11 / 4, 0])


@given(st.integers(0, 10_000))
def test_some_of_the_queries(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(8, 2))
    codes = rng.integers(0, 3, 8)
    parts = [
        products(values, [0, 1, 0], [-1, 0, 0], factor=[1, 2, -1]),
        Indicators(codes.astype(np.int32), 4),
        grouped(codes, 3, values, [0, 2, 1, 0]),
    ]
    task = problem(parts, np.arange(11), rng.random(8))
    keep = rng.random(11) < 0.5
    keep[0] = True
    some = task.only(keep)
    np.testing.assert_array_equal(some.answers, task.answers[keep])
    np.testing.assert_allclose(some.means(task.base), task.means(task.base)[keep])
    dense = np.column_stack([task.means(row) for row in np.eye(8)])
    for k, scale in zip(np.flatnonzero(keep), task.scales(keep), strict=True):
        values, answer = dense[k], task.answers[k]
        off = np.sort(np.abs(values - np.median(values)))
        if np.ptp(values) < 1e-9:
            expected = np.abs(values).max() or abs(answer) or 1.0
        elif len(set(values)) == 2:
            expected = np.ptp(values)
        else:
            expected = off[:-1].mean() or np.ptp(values)  # a thousandth of 8 rows is one
        assert scale == pytest.approx(expected)


def test_rounding_and_rows_without_weight_set_no_unit():
    rng = np.random.default_rng(0)
    values = 40 + rng.normal(0, 12, 4_000)
    spiked = np.where(rng.random(4_000) < 0.8, 40 * (1 + rng.choice([0, 1, -1], 4_000) * 2e-16), 0)
    spiked = np.where(spiked > 0, spiked, values)[:, None]
    every = np.ones(1, dtype=np.bool_)
    assert problem([products(spiked, [0], [-1])], [0.0], np.ones(4_000)).scales(every) > 1
    used = rng.random(4_000) < 0.3
    far = np.where(used, values, 1e9 * values)[:, None]
    whole = problem([products(far, [0], [-1])], [0.0], used.astype(float))
    part = problem([products(far[used], [0], [-1])], [0.0], np.ones(int(used.sum())))
    np.testing.assert_allclose(whole.scales(every), part.scales(every))


def test_an_outlier_does_not_set_the_unit_of_a_query():
    values = np.random.default_rng(0).normal(size=(1_000, 1))
    alone = problem([products(values, [0], [-1])], [0.0], np.ones(1_000))
    values = np.append(values, [[1e12]], axis=0)
    beside = problem([products(values, [0], [-1])], [0.0], np.ones(1_001))
    every = np.ones(1, dtype=np.bool_)
    assert beside.scales(every) == pytest.approx(alone.scales(every), rel=0.01)
    assert alone.scales(every) == pytest.approx(0.8, abs=0.05)


BAD_DESIGNS = [
    [products(VALUES, [2], [-1])],
    [products(VALUES, [-2], [-1])],
    [products([[np.nan, 1], [1, 1], [1, 1]], [0], [-1])],
    [products([[np.inf, 1], [1, 1], [1, 1]], [0], [-1])],
    [products(VALUES, [0], [-1], factor=[np.nan])],
    [products(VALUES, [0], [-1, -1])],
    [products(VALUES[:2], [0], [-1])],
    [products(np.ones(3), [0], [-1])],
    [Indicators(np.array([0, 1, 5]), 1)],
    [Indicators(np.array([0.0, 0.0, 0.0]), 1)],
    [Indicators(np.array([-1, 0, 0]), 1)],
    [grouped([0, 1, 2], 2, VALUES, [0])],
    [grouped([0, 1, 1], 2, VALUES, [2])],
    [grouped([0, 1, 1], 2, VALUES[:2], [0])],
    [replace(grouped([0, 1, 1], 2, VALUES, [0]), cell=np.array([0, 1]))],
    ["queries"],
    [],
]


@pytest.mark.parametrize("designs", BAD_DESIGNS)
def test_bad_designs_are_refused(designs):
    with pytest.raises(InputError):
        problem(designs, [0.0], np.ones(3))


@pytest.mark.parametrize("answers", [[], [1.0, 2.0], [np.nan], [np.inf]])
def test_bad_answers_are_refused(answers):
    with pytest.raises(InputError):
        problem([products(VALUES, [0], [-1])], answers, np.ones(3))
