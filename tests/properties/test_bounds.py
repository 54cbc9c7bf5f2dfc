"""Bounds of the weights and floors of the effective sample size, whatever the problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import rel_entr

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, fit_at, fit_path
from retilt.tilting.bounds import Bounds

SEEDS = st.integers(0, 100_000)
FLOORS = st.one_of(st.none(), st.floats(0, 0.98))
CAPS = st.one_of(st.none(), st.floats(1.02, 1e3))


def same(answers: NDArray) -> NDArray:
    return answers


def problem(
    seed: int, bounds: Bounds | None = None, *, equal: bool = False, noisy: bool = False
) -> Problem:
    """Numbers and cells, answers within reach or far from it, some exact unless ``noisy``."""
    rng = np.random.default_rng(seed)
    rows, size, cells = int(rng.integers(5, 150)), int(rng.integers(1, 4)), 3
    values = rng.uniform(-1, 1, (rows, size))
    codes = rng.integers(0, cells, rows).astype(np.int32)
    if rng.random() < 0.3:
        values = np.round(values)  # rows that are alike
    none = np.full(size, -1)
    designs = (
        Products(values, np.arange(size), none, np.zeros(size), np.ones(size)),
        Indicators(codes, cells),
    )
    far = rng.choice([0.05, 0.3, 1.0])
    answers = np.r_[values.mean(axis=0), np.bincount(codes, minlength=cells) / rows]
    answers += far * rng.normal(size=answers.size)
    base = np.ones(rows) if equal else rng.uniform(0, 1, rows) + (rng.random(rows) < 0.9)
    exact = rng.random(answers.size) < rng.choice([0.0, 0.5])
    if noisy:
        exact[:] = False
    noise = Covariance(np.full(answers.size, rng.choice([1e-3, 0.02, 0.3]) ** 2))
    return Problem(designs, answers, noise, base, exact=exact, bounds=bounds)


@settings(max_examples=80)
@given(SEEDS, FLOORS, CAPS)
def test_the_bounds_hold_on_what_is_returned(seed: int, lower: float | None, upper: float | None):
    bounds = Bounds.of(lower, upper)
    asked = problem(seed, bounds, equal=True)
    solution = fit_path(asked, same)
    weights = solution.weights * asked.rows  # of mean 1, as they are written
    assert weights.mean() == pytest.approx(1, abs=1e-12)
    if lower is not None:
        assert weights.min() >= lower
    if upper is not None:
        assert weights.max() <= upper
        # A cap is a floor of the effective sample size, too.
        assert solution.ess >= asked.rows / upper * (1 - 1e-12)


@settings(max_examples=60)
@given(SEEDS, st.floats(0.3, 1.0), FLOORS, CAPS)
def test_the_floor_holds_on_what_is_returned(
    seed: int, share: float, lower: float | None, upper: float | None
):
    asked = problem(seed, Bounds.of(lower, upper))
    floor = share / float(np.sum(asked.base**2))
    solution = fit_path(asked, same, min_ess=floor)
    assert solution.ess >= floor * (1 - 1e-9)
    assert solution.ess == pytest.approx(1 / np.sum(solution.weights**2))


@settings(max_examples=60)
@given(SEEDS)
def test_bounds_that_are_not_reached_change_nothing(seed: int):
    plain = problem(seed, noisy=True)
    free = fit_at(plain, 1.0)
    ratios = free.weights[plain.base > 0] / plain.base[plain.base > 0]
    bounds = Bounds.of(min(0.999, 0.99 * ratios.min()), max(1.001, 1.01 * ratios.max()))
    held = fit_at(problem(seed, bounds, noisy=True), 1.0)
    # Weights next to nothing have multipliers so large that rounding shows in them.
    np.testing.assert_allclose(held.weights, free.weights, rtol=1e-9, atol=1e-10)


@settings(max_examples=60)
@given(SEEDS, st.floats(1.02, 3.0), st.floats(0, 0.98))
def test_the_divergence_falls_as_the_trade_off_rises(seed: int, upper: float, lower: float):
    """Of a sum of two terms the first falls as it is weighed more, bounds or none."""
    asked = problem(seed, Bounds.of(lower, upper), noisy=True)
    far = [
        float(rel_entr(fit_at(asked, eta).weights, asked.base).sum()) for eta in (0.1, 1, 10, 100)
    ]
    assert all(far[k + 1] <= far[k] + 1e-9 for k in range(3))


@settings(max_examples=60)
@given(SEEDS, st.floats(1.02, 3.0), st.floats(0, 0.98))
def test_wider_bounds_are_no_worse(seed: int, upper: float, lower: float):
    costs = []
    for wider in (1.0, 1.5):
        asked = problem(seed, Bounds.of(lower / wider, upper * wider), noisy=True)
        found = fit_at(asked, 1.0)
        errors = found.after - asked.answers
        costs.append(
            float(rel_entr(found.weights, asked.base).sum())
            + asked.covariance.quadratic_inverse(errors) / 2
        )
    assert costs[1] <= costs[0] * (1 + 1e-9) + 1e-9
