"""The preconditioners against the matrices that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from retilt.measures.base import Grouped, Indicators, Products
from retilt.tilting import Covariance, Problem
from retilt.tilting.fold import Fold, Rows
from retilt.tilting.reduction import Reduced, reduce
from retilt.tilting.solvers import preconditioner
from retilt.tilting.solvers.newton import regularised
from retilt.tilting.solvers.preconditioner import Blocks, Drawn, Keeper, draw, price

_ROWS = 4000


def reduced_of(kinds: str, *, shared: int = 0, tilt: float = 0.0) -> tuple[Reduced, Fold]:
    """Skewed moments, one-way tables or means by group, and a fold at random multipliers."""
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(size=(_ROWS, 5))) / 20
    values[:, 4] = rng.random(_ROWS) < 0.02
    codes = np.clip(values[:, :3] * 60, 0, 5).astype(np.int32)
    pairs = [(i, -1) for i in range(5)] + [(i, j) for i in range(5) for j in range(i, 5)]
    left, right = np.array(pairs).T
    cell, none = np.repeat(np.arange(6), 2), np.full(12, -1)
    column = np.tile([-1, 1], 6)
    parts = {
        "m": [Products(values, left, right, np.zeros(20), np.ones(20))],
        "t": [Indicators(codes[:, k], 6) for k in range(3)],
        "g": [Grouped(codes[:, 0], 6, values, cell, column, none, np.zeros(12), np.ones(12))],
    }
    designs = [design for kind in kinds for design in parts[kind]]
    size = sum({"m": 20, "t": 18, "g": 12}[kind] for kind in kinds)
    noise = Covariance(rng.uniform(1, 2, size) * 1e-4, 1e-2 * rng.normal(size=(size, shared)))
    problem = Problem(designs, np.zeros(size), noise, rng.random(_ROWS) + 0.1)
    rows = Rows.of(problem)
    reduced = reduce(problem, rows, problem.answers)
    return reduced, rows.fold(tilt * rng.normal(size=reduced.answers.size))


def system(reduced: Reduced, fold: Fold, eta: float) -> np.ndarray:
    return regularised(reduced, reduced.rows.covariance(fold), eta)


def inverse(made: Drawn | Blocks, size: int) -> np.ndarray:
    return np.column_stack([made.solve(unit) for unit in np.eye(size)])


@pytest.mark.parametrize("kinds", ["m", "t", "mt", "tg", "mtg"])
@pytest.mark.parametrize("shared", [0, 2])
def test_over_all_rows_it_is_the_system(kinds, shared, monkeypatch):
    monkeypatch.setattr(preconditioner, "ROUGH_EACH", _ROWS)
    monkeypatch.setattr(preconditioner, "_DRAW", 1000)
    reduced, fold = reduced_of(kinds, shared=shared, tilt=0.3)
    size = fold.means.size
    made = Drawn.of(reduced, fold, 10.0)
    for eta in (10.0, 1.0, 300.0):
        made = made.at(reduced, eta)
        product = inverse(made, size) @ system(reduced, fold, eta)
        np.testing.assert_allclose(product, np.eye(size), atol=2e-3 * np.abs(product).max())


@pytest.mark.parametrize("kinds", ["m", "tg", "mt"])
def test_over_drawn_rows_it_is_near(kinds):
    reduced, fold = reduced_of(kinds, tilt=0.5)
    size = fold.means.size
    first = Drawn.of(reduced, fold, 1.0)
    assert first.drawn.size < _ROWS / 4
    second = first.again(reduced, fold, 1.0)
    assert second.refined
    third = second.again(reduced, fold, 1.0)
    for made, low, high in ((first, 1e-3, 100), (second, 0.15, 7), (third, 0.15, 7)):
        values = np.linalg.eigvals(inverse(made, size) @ system(reduced, fold, 1.0))
        assert values.real.min() > low
        assert values.real.max() < high
        np.testing.assert_allclose(values.imag, 0, atol=1e-6)


def test_collinear_queries_need_a_ridge(monkeypatch):
    monkeypatch.setattr(preconditioner, "ROUGH_EACH", _ROWS)
    values = np.random.default_rng(0).random((500, 2))
    left = np.array([0, 0, 1, 1])
    design = Products(values, left, np.full(4, -1), np.zeros(4), np.ones(4))
    problem = Problem([design], np.zeros(4), Covariance(np.ones(4)), np.ones(500))
    reduced = reduce(problem, Rows.of(problem), problem.answers)
    fold = reduced.rows.fold(np.zeros(4))
    made = Drawn.of(reduced, fold, 0.0)
    there = reduced.rows.covariance(fold) @ np.array([1.0, 0.0, 0.0, -2.0])
    np.testing.assert_allclose(reduced.rows.covariance(fold) @ made.solve(there), there, rtol=1e-4)


def test_a_draw_is_right_on_average():
    rng = np.random.default_rng(0)
    weights = rng.random(5000) ** 8
    weights[:100] = 0
    weights /= weights.sum()
    values = rng.random(5000)
    rows, drawn = draw(weights, weights, 800)
    assert 790 <= rows.size <= 810
    assert np.all(np.diff(rows) > 0)
    assert np.all(weights[rows] > 0)
    assert drawn.sum() == pytest.approx(1, rel=0.02)
    assert drawn @ values[rows] == pytest.approx(weights @ values, rel=0.05)
    heavy = weights > 1 / 400
    assert np.all(np.isin(np.flatnonzero(heavy), rows))
    np.testing.assert_array_equal(drawn[heavy[rows]], weights[rows][heavy[rows]])


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_a_draw_of_nearly_all(size):
    weights = np.array([0.25, 0.25, 0.0, 0.25, 0.25])
    rows, drawn = draw(weights, weights, size)
    assert rows.size == min(size, 4)
    assert drawn.sum() == pytest.approx(1)


def test_what_is_kept(monkeypatch):
    reduced, fold = reduced_of("mt")
    keeper = Keeper()
    first = keeper.at(reduced, fold, 1.0)
    assert isinstance(first, Drawn)
    assert keeper.at(reduced, fold, 2.0) is first
    other = keeper.at(reduced, fold, 100.0)
    assert isinstance(other, Drawn)
    assert other.matrix is first.matrix
    assert other.eta == 100.0
    # Slow: a few rows were not enough.
    keeper.tell(10_000)
    refined = keeper.at(reduced, fold, 100.0)
    assert isinstance(refined, Drawn)
    assert refined.refined
    # Slow again, but drawn for these very weights: another one would be no better.
    keeper.tell(10_000)
    assert keeper.at(reduced, fold, 100.0) is refined
    _, far = reduced_of("mt", tilt=3.0)
    again = keeper.at(reduced, far, 100.0)
    assert isinstance(again, Drawn)
    assert again.matrix is not refined.matrix
    assert keeper.at(reduced, far, 100.0) is again
    assert keeper.limit(reduced, near=True) > keeper.limit(reduced, near=False)


def test_tables_begin_with_their_blocks(monkeypatch):
    reduced, fold = reduced_of("tg")
    keeper = Keeper()
    first = keeper.at(reduced, fold, 1.0)
    assert isinstance(first, Blocks)
    assert keeper.at(reduced, fold, 1.0) is first
    assert keeper.at(reduced, fold, 3.0) is not first
    keeper.tell(price(reduced.rows) + 100)
    assert isinstance(keeper.at(reduced, fold, 1.0), Drawn)
    monkeypatch.setattr(preconditioner, "MAX_DRAWN", 10)
    keeper = Keeper()
    keeper.tell(10_000)
    assert isinstance(keeper.at(reduced, fold, 1.0), Blocks)
    assert keeper.limit(reduced, near=False) == preconditioner.CG_STEPS
