from __future__ import annotations

import numpy as np
import pytest

from retilt.measures.base import Design, FloatArray, Grouped, Indicators, Products
from retilt.tilting.combinations import MOST, Combinations

ROWS = 3000
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 6, ROWS).astype(np.int32)
COLUMNS = RNG.normal(size=(ROWS, 3)) + CODES[:, None] / 3
SPREAD = RNG.random(ROWS)
SPREAD[::7] = 0


def designs(scale: float = 1.0) -> list[Design]:
    """Cells before products and products within cells: 6 + 4 + 3 queries."""
    left, right = np.array([0, 1, 0, 2]), np.array([-1, -1, 1, 2])
    cell, none = np.array([0, 1, 4]), np.full(3, -1)
    return [
        Indicators(CODES, 6),
        Products(COLUMNS, left, right, np.full(4, 0.5), np.full(4, scale)),
        Grouped(CODES, 6, COLUMNS, cell, np.array([0, -1, 2]), none, np.zeros(3), np.ones(3)),
    ]


def dense(made: list[Design]) -> FloatArray:
    """(rows, queries), written out."""
    products = made[1]
    assert isinstance(products, Products)
    ones = np.hstack([COLUMNS, np.ones((ROWS, 1))])
    plain = products.offset + products.factor * ones[:, products.left] * ones[:, products.right]
    inside = np.column_stack([COLUMNS[:, 0], np.ones(ROWS), COLUMNS[:, 2]])
    return np.hstack([np.eye(6)[CODES], plain, inside * (CODES[:, None] == [0, 1, 4])])


def explained(found: FloatArray, queries: FloatArray) -> FloatArray:
    """Share of each query's variance that combinations and the constant explain."""
    table = np.column_stack([np.ones(len(found)), found])
    roots = np.sqrt(SPREAD)[:, None]
    fit = np.linalg.lstsq(table * roots, queries * roots, rcond=None)[0]
    left = np.average((queries - table @ fit) ** 2, axis=0, weights=SPREAD)
    mean = np.average(queries, axis=0, weights=SPREAD)
    result: FloatArray = 1 - left / np.average((queries - mean) ** 2, axis=0, weights=SPREAD)
    return result


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_few_queries_are_combined_without_loss(scale: float) -> None:
    made = designs(scale)
    kept = Combinations.of(made, SPREAD)
    found = kept(np.arange(ROWS))
    # The cells sum to one, and one of the grouped queries is a cell.
    assert found.shape == (ROWS, 11)
    assert explained(found, dense(made)).min() > 1 - 1e-9
    means = np.average(found, axis=0, weights=SPREAD)
    # A query of 0.5 give or take 1e-9 has seven digits left.
    np.testing.assert_allclose(means, 0, atol=1e-6)
    spread = found.T @ (found * SPREAD[:, None])
    sizes = np.diag(spread)
    assert np.all(np.diff(sizes) <= 1e-9 * sizes[0])
    np.testing.assert_allclose(spread, np.diag(sizes), atol=1e-6 * sizes[0])


def test_values_are_those_of_the_rows() -> None:
    kept = Combinations.of(designs(), SPREAD)
    rows = RNG.integers(0, ROWS, 5000)
    np.testing.assert_allclose(kept(rows), kept(np.arange(ROWS))[rows], atol=1e-12)


def test_of_many_queries_the_largest_components_are_kept() -> None:
    made = designs()
    found = Combinations.of(made, SPREAD, 5)(np.arange(ROWS))
    assert found.shape == (ROWS, 5)
    queries = dense(made)
    queries = (queries - np.average(queries, axis=0, weights=SPREAD)) / np.ptp(queries, axis=0)
    variances = queries.T @ (queries * SPREAD[:, None]) / SPREAD.sum()
    best = np.linalg.eigvalsh(variances)[::-1][:5].sum()
    kept = explained(found, queries) @ np.diag(variances)
    assert kept > 0.95 * best


def test_thousands_of_cells() -> None:
    codes = RNG.integers(0, 5000, ROWS).astype(np.int32)
    kept = Combinations.of([Indicators(codes, 5000), Indicators(CODES, 6)], SPREAD)
    found = kept(np.arange(ROWS))
    assert found.shape == (ROWS, MOST)
    # The six cells are what varies most.
    assert explained(found[:, :5], np.eye(6)[CODES]).min() > 0.9


def test_nothing_that_varies() -> None:
    kept = Combinations.of([Indicators(np.zeros(4, np.int32), 2)], np.ones(4))
    assert kept(np.arange(3)).shape == (3, 0)
    assert Combinations.of([], np.ones(4))(np.arange(3)).shape == (3, 0)
    spread = np.array([0.0, 0.0, 1.0, 1.0])
    late = Combinations.of([Indicators(np.array([0, 1, 2, 2], np.int32), 3)], spread)
    assert late(np.arange(4)).shape == (4, 0)
