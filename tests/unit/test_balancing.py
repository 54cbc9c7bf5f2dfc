from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retilt import balancing
from retilt.balancing import decide, fractions
from retilt.exceptions import InputError
from retilt.measures.base import Design, FloatArray, Indicators, Products
from retilt.resample import likeness_order, sample_rows


def products(values: FloatArray, factor: float = 1.0) -> Products:
    """All columns, squares and products."""
    d = values.shape[1]
    pairs = np.array([(i, j) for i in range(d) for j in range(-1, i + 1)])
    size = len(pairs)
    return Products(values, pairs[:, 0], pairs[:, 1], np.zeros(size), np.full(size, factor))


def imbalance(values: FloatArray, weights: FloatArray, rows: int, drawn: object) -> FloatArray:
    """Sums of all products over a sample less the weighted ones."""
    made = products(values)
    ends = np.hstack([values, np.ones((len(values), 1))])
    queries = values[:, made.left] * ends[:, made.right]
    times = np.bincount(np.asarray(drawn), minlength=len(values))
    result: FloatArray = queries.T @ (times - rows * weights / weights.sum())
    return result


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=9).filter(any), st.integers(0, 2**31 - 1)
)
def test_the_fractions_are_exact(grid: list[int], rows: int) -> None:
    sure, chance = fractions(np.array(grid, dtype=np.int64), rows)
    for g, s, c in zip(grid, sure.tolist(), chance.tolist(), strict=True):
        share = Fraction(rows * g, sum(grid))
        assert s == share // 1
        assert c == float(share % 1)


def test_large_fractions_do_not_overflow() -> None:
    grid = np.array([2**61 - 3, 3], dtype=np.int64)
    sure, chance = fractions(grid, 2**31 - 1)
    assert sure.tolist() == [2**31 - 2, 0]
    assert chance.tolist() == [float(Fraction(g * (2**31 - 1), 2**61) % 1) for g in grid.tolist()]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),
            st.integers(-2, 2),
            st.floats(-1e12, 1e12),
        ),
        min_size=1,
        max_size=40,
    ).filter(lambda rows: any(r[0] for r in rows)),
    st.integers(0, 100),
    st.integers(0, 2**32),
)
def test_every_row_is_drawn_floor_or_ceil_times(
    table: list[tuple[float, int, float]], rows: int, seed: int
) -> None:
    weights, few, many = (np.array(column, dtype=float) for column in zip(*table, strict=True))
    # Duplicates, constants and scales apart: nothing is too crooked to balance on.
    values = np.column_stack([few, few, np.full(len(few), 7.0), many])
    queries: list[Design] = [products(values), Indicators((few + 2).astype(np.int32), 5)]
    drawn = sample_rows(weights, rows, method="balanced", seed=seed, queries=queries)
    assert drawn.dtype == np.int64
    assert drawn.size == rows
    assert np.all(np.diff(drawn) >= 0)
    times = np.bincount(drawn, minlength=weights.size)
    scaled = weights / weights.max()
    grid = np.floor(scaled / scaled.mean() * 2**30 + 0.5).astype(np.int64)
    for count, whole in zip(times.tolist(), grid.tolist(), strict=True):
        share = Fraction(rows * whole, int(grid.sum()))
        assert count in (share // 1, -(-share // 1))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 299, 300, 301, 1000])
def test_equal_weights(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=(300, 3))
    drawn = sample_rows(np.ones(300), rows, method="balanced", seed=1, queries=[products(values)])
    times = np.bincount(drawn, minlength=300)
    assert times.sum() == rows
    assert times.max() - times.min() <= 1


def test_a_single_row_and_all_weight_on_one() -> None:
    values = np.zeros((1, 1))
    options = {"method": "balanced", "seed": 0}
    assert sample_rows([2.0], 3, queries=[products(values)], **options).tolist() == [0, 0, 0]
    weights = np.zeros(50)
    weights[17] = 4.0
    queries = [products(np.random.default_rng(0).normal(size=(50, 4)))]
    assert sample_rows(weights, 6, queries=queries, **options).tolist() == [17] * 6
    assert sample_rows(weights, 6, **options).tolist() == [17] * 6


def test_queries_that_are_all_constant() -> None:
    queries: list[Design] = [products(np.ones((40, 2))), Indicators(np.zeros(40, np.int32), 3)]
    weights = np.random.default_rng(0).random(40)
    assert sample_rows(weights, 20, method="balanced", seed=0, queries=queries).size == 20


def test_queries_of_other_rows_are_refused() -> None:
    with pytest.raises(InputError, match="queries: got 3 rows"):
        sample_rows(np.ones(4), 2, method="balanced", queries=[products(np.ones((3, 1)))])


def test_a_seed_repeats_and_none_does_not() -> None:
    rng = np.random.default_rng(3)
    weights, queries = rng.random(400), [products(rng.normal(size=(400, 2)))]
    draws = [
        sample_rows(weights, 200, method="balanced", seed=seed, queries=queries).tobytes()
        for seed in (7, 7, np.random.default_rng(7), 8, None, None)
    ]
    assert draws[0] == draws[1] == draws[2]
    assert len(set(draws)) == 4


def test_flights_keep_sums_and_are_fair() -> None:
    rng = np.random.default_rng(0)
    chance = np.array([0.02, 0.3, 0.5, 0.5, 0.7, 0.98])
    table = np.column_stack([np.ones(6), rng.normal(size=6)])
    points = np.tile(chance, (20_000, 1))
    null = np.tile(balancing._null(table[None]), (20_000, 1, 1))
    met = balancing._fly(points, null, rng)
    np.testing.assert_allclose(points @ table, np.tile(chance @ table, (20_000, 1)), atol=1e-12)
    assert met.shape == (20_000, 4)
    ended = np.take_along_axis(points, met, axis=1)
    assert np.all((ended == 0) | (ended == 1))
    # A point of the cube has a variance of at most p (1 - p) in each coordinate.
    off = points.mean(axis=0) - chance
    assert np.all(np.abs(off) < 5 * np.sqrt(chance * (1 - chance) / 20_000))


def test_every_row_has_its_chance_in_the_last_lot() -> None:
    rng = np.random.default_rng(1)
    chance = rng.random(12) ** 2
    chance[-1] = 1 - chance[:-1].sum() % 1
    table = np.column_stack([np.ones(12), rng.normal(size=(12, 5)), rng.integers(0, 2, 12)])
    samples = balancing._samples(chance, table, 20_000, rng)
    np.testing.assert_array_equal(samples.sum(axis=1), round(chance.sum()))
    off = samples.mean(axis=0) - chance
    assert np.all(np.abs(off) < 5 * np.sqrt(chance * (1 - chance) / 20_000))
    mixed, shares = balancing._design(chance, table, samples[:200])
    np.testing.assert_allclose(shares @ mixed, chance, atol=1e-9)
    np.testing.assert_array_equal(mixed.sum(axis=1), round(chance.sum()))
    assert shares.min() >= 0

    def imbalances(of: FloatArray) -> FloatArray:
        result: FloatArray = np.sum(((of - chance) @ table) ** 2, axis=1)
        return result

    assert shares @ imbalances(mixed) < 0.85 * imbalances(samples).mean()


def test_without_a_solution_the_systematic_samples_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancing, "_least_imbalance", lambda *_: None)
    chance = np.array([0.25, 0.5, 0.25, 0.9, 0.1])
    table = np.column_stack([np.ones(5), np.arange(5.0)])
    samples = balancing._samples(chance, table, 50, np.random.default_rng(0))
    mixed, shares = balancing._design(chance, table, samples)
    np.testing.assert_allclose(shares @ mixed, chance, atol=1e-12)


def test_rows_are_drawn_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 5 standard errors one of 60 counts is off once in 30,000 times."""
    monkeypatch.setattr(balancing, "_TRIALS", 200)
    monkeypatch.setattr(balancing, "_ROUNDS", 2)
    rng = np.random.default_rng(2)
    weights, values = rng.gamma(0.7, size=60), rng.normal(size=(60, 1))
    counts, draws = np.zeros(60), 100
    for _ in range(draws):
        drawn = sample_rows(weights, 30, method="balanced", seed=rng, queries=[products(values)])
        counts += np.bincount(drawn, minlength=60)
    expected = 30 * weights / weights.sum()
    chance = expected % 1
    assert np.all(np.abs(counts / draws - expected) < 5 * np.sqrt(chance * (1 - chance) / draws))


def test_a_balanced_sample_is_closer_than_a_systematic_one() -> None:
    rng = np.random.default_rng(0)
    values = np.clip(rng.normal(size=(6000, 4)) / 3, -1, 1)
    order = likeness_order([np.floor(255 * v).astype(np.int32) for v in values.T])
    weights = np.exp(values.sum(axis=1))
    for rows in (2000, 6000):
        errors = {}
        for method in ("systematic", "balanced"):
            off = [
                imbalance(
                    values,
                    weights,
                    rows,
                    sample_rows(
                        weights,
                        rows,
                        method=method,
                        seed=seed,
                        order=order,
                        queries=[products(values)],
                    ),
                )
                for seed in range(3)
            ]
            errors[method] = np.sqrt(np.mean(np.square(off)))
        assert errors["balanced"] < errors["systematic"] / 3
        assert errors["balanced"] < 1


def test_scales_are_of_no_account() -> None:
    rng = np.random.default_rng(5)
    values, weights = rng.normal(size=(2000, 3)), rng.gamma(2.0, size=2000)
    for factor in (1e-12, 1e12):
        drawn = sample_rows(
            weights, 900, method="balanced", seed=0, queries=[products(values, factor)]
        )
        assert np.sqrt(np.mean(imbalance(values, weights, 900, drawn) ** 2)) < 4


def test_many_rows_of_one_block_each_are_decided_without_values() -> None:
    chance = np.full(1000, 0.25)
    decided = decide(chance, None, np.random.default_rng(0))
    assert decided.sum() == 250
    assert set(decided.tolist()) == {0.0, 1.0}
    # Neighbours first: no part of the rows gets much more than its share.
    assert np.all(np.abs(decided.reshape(10, 100).sum(axis=1) - 25) <= 5)
