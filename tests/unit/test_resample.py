from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.exceptions import InputError
from retilt.resample import likeness_order, quantise, sample_rows

weights_strategy = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=60
).filter(any)


def shares(weights: np.ndarray) -> list[Fraction]:
    """Exact share of each row on the grid."""
    scaled = weights / weights.max()
    grid = np.floor(scaled / scaled.mean() * 2**30 + 0.5).astype(np.int64)
    return [Fraction(int(g), int(grid.sum())) for g in grid]


@given(weights_strategy, st.integers(0, 700), st.integers(0, 2**32))
def test_systematic_draws_floor_or_ceil(weights, rows, seed):
    values = np.array(weights)
    drawn = sample_rows(values, rows, seed=seed)
    assert drawn.dtype == np.int64
    assert drawn.size == rows
    assert np.all(np.diff(drawn) >= 0)
    times = np.bincount(drawn, minlength=values.size)
    for count, share in zip(times, shares(values), strict=True):
        assert count in (int(share * rows), -int(-share * rows // 1))


@given(weights_strategy, st.integers(0, 700), st.integers(0, 2**32))
def test_multinomial_draws_the_support_only(weights, rows, seed):
    values = np.array(weights)
    drawn = sample_rows(values, rows, method="multinomial", seed=seed)
    assert drawn.dtype == np.int64
    assert drawn.size == rows
    assert np.all(np.diff(drawn) >= 0)
    assert np.all(values[drawn] > 0)


@pytest.mark.parametrize("method", ["systematic", "balanced", "multinomial"])
def test_rows_are_drawn_in_proportion(method):
    weights = np.array([0.2, 1.7, 0.0, 0.6, 2.5])
    rng = np.random.default_rng(0)
    counts = np.zeros(5)
    for _ in range(1000):
        counts += np.bincount(sample_rows(weights, 3, method=method, seed=rng), minlength=5)
    expected = weights / weights.sum() * 3_000
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected))


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 10, 11, 100, 12_345])
def test_equal_weights_share_equally(rows):
    times = np.bincount(sample_rows(np.ones(10), rows, seed=1), minlength=10)
    assert times.sum() == rows
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("method", ["systematic", "balanced", "multinomial"])
def test_a_seed_repeats_and_none_does_not(method):
    weights = np.random.default_rng(3).random(1000)
    first = sample_rows(weights, 500, method=method, seed=7)
    np.testing.assert_array_equal(first, sample_rows(weights, 500, method=method, seed=7))
    generator = np.random.default_rng(7)
    np.testing.assert_array_equal(first, sample_rows(weights, 500, method=method, seed=generator))
    fresh = [sample_rows(weights, 500, method=method).tobytes() for _ in range(3)]
    assert len(set(fresh)) == 3


def test_the_scale_of_the_weights_is_of_no_account():
    weights = np.random.default_rng(3).random(100)
    expected = sample_rows(weights, 70, seed=1)
    for scale in (2.0**-1000, 2.0**-30, 2.0**40, 2.0**1000):
        np.testing.assert_array_equal(sample_rows(weights * scale, 70, seed=1), expected)


def test_the_last_bits_are_of_no_account():
    rng = np.random.default_rng(4)
    weights = rng.random(2000)
    other = weights * (1 + 1e-15 * rng.normal(size=2000))
    np.testing.assert_array_equal(
        sample_rows(weights, 5000, seed=1), sample_rows(other, 5000, seed=1)
    )


def test_large_numbers_do_not_overflow():
    weights = np.full(2_000_000, 1e-3)
    weights[17] = 1e12
    drawn = sample_rows(weights, 3_000_000, seed=0)
    assert np.all(drawn == 17)
    even = np.ones(2_000_000)
    times = np.bincount(sample_rows(even, 3_000_000, seed=0), minlength=even.size)
    assert set(times) == {1, 2}


def test_extreme_weights():
    np.testing.assert_array_equal(sample_rows([1e308] * 4, 4, seed=0), [0, 1, 2, 3])
    np.testing.assert_array_equal(sample_rows([5e-324, 5e-324], 2, seed=0), [0, 1])
    np.testing.assert_array_equal(sample_rows([1.0, 1e-300], 3, seed=0), [0, 0, 0])


def test_the_grid():
    grid = quantise(np.array([0.0, 2.0**-31, 2.0 - 2.0**-31, 2.0]))
    np.testing.assert_array_equal(grid, [0, 1, 2**31, 2**31])
    assert grid.dtype == np.int64
    with pytest.raises(InputError, match="mean"):
        quantise([1.0, 3.0])


BAD_WEIGHTS = [
    [],
    [[1.0, 2.0]],
    [1.0, np.nan],
    [1.0, np.inf],
    [1.0, -1e-9],
    [0.0, 0.0],
    ["a", "b"],
    [True, False],
    None,
]


@pytest.mark.parametrize("weights", BAD_WEIGHTS)
def test_bad_weights_are_refused(weights):
    with pytest.raises(InputError, match="weights"):
        sample_rows(weights, 1)


@pytest.mark.parametrize("rows", [-1, 1.0, 2.5, True, None, "3", 2**31, np.nan])
def test_bad_sizes_are_refused(rows):
    with pytest.raises(InputError, match="rows"):
        sample_rows([1.0, 1.0], rows)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "x"])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        sample_rows([1.0, 1.0], 1, seed=seed)


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match="'systematic', 'balanced' or"):
        sample_rows([1.0, 1.0], 1, method="cube")


def test_weights_are_not_written_to():
    weights = np.array([1.0, 3.0])
    weights.setflags(write=False)
    sample_rows(weights, 10, seed=0)


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=40), min_size=1, max_size=70),
)
def test_the_likeness_order_is_a_permutation_that_keeps_equal_rows_in_order(
    columns: list[list[int]],
) -> None:
    size = min(map(len, columns))
    arrays = [np.array(c[:size], dtype=np.int32) for c in columns]
    order = likeness_order(arrays)
    assert sorted(order.tolist()) == list(range(size))
    place = np.argsort(order)
    rows = list(zip(*(a.tolist() for a in arrays), strict=True))
    for i in range(size):
        for j in range(i):
            if rows[i] == rows[j]:
                assert place[j] < place[i]


def test_an_order_keeps_every_row_at_floor_or_ceil_and_the_sample_ascending() -> None:
    rng = np.random.default_rng(0)
    weights = rng.gamma(2.0, size=5000)
    columns = [rng.integers(0, 9, 5000).astype(np.int32) for _ in range(3)]
    drawn = sample_rows(weights, 4000, seed=1, order=likeness_order(columns))
    assert np.all(np.diff(drawn) >= 0)
    expected = 4000 * weights / weights.sum()
    times = np.bincount(drawn, minlength=5000)
    assert np.all((times >= np.floor(expected - 1e-6)) & (times <= np.ceil(expected + 1e-6)))


def test_sampling_along_likeness_is_closer_to_the_weighted_means() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.integers(-4, 5, 20_000).astype(np.int32) for _ in range(4)]
    values = np.stack(columns).astype(float)
    weights = np.exp(0.1 * values.sum(axis=0))
    weighted = values @ weights / weights.sum()
    errors = {}
    for name, order in (("table", None), ("likeness", likeness_order(columns))):
        off = [
            values[:, sample_rows(weights, 20_000, seed=s, order=order)].mean(axis=1) - weighted
            for s in range(10)
        ]
        errors[name] = np.sqrt(np.mean(np.square(off)))
    assert errors["likeness"] < errors["table"] / 3
