"""The benchmark of thousands of queries, on a small table."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's module, which is no part of the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    return import_module("benchmarks.wide")


def test_the_answers_weights_are_worth_a_fifth_and_are_found_again(wide: ModuleType) -> None:
    found = wide.line("retilt", 3_000, 6, 1, 0.0)
    assert found["queries"] == 27
    assert found["residual"] < 1e-4
    assert found["gap"] is not None
    assert found["gap"] < 1e-3
    # The nearest weights are no farther from the base than those that gave the answers.
    assert found["ess"] > 0.9 * wide.EFFECTIVE * 3_000


def test_the_peer_solves_the_same_dual(wide: ModuleType) -> None:
    problem = wide.problem_of(2_000, 4)
    dual = wide.Dual(problem, 60.0)
    point = np.random.default_rng(0).normal(size=problem.queries)
    value, gradient = dual.value(point)
    for k in (0, 5, 13):
        step = 1e-6 * np.eye(problem.queries)[k]
        slope = (dual.value(point + step)[0] - dual.value(point - step)[0]) / 2e-6
        assert gradient[k] == pytest.approx(slope, rel=1e-5, abs=1e-8)
    weights = wide.lbfgsb(problem, 60.0)
    np.testing.assert_allclose(problem.means(weights), problem.answers, atol=1e-5)
    assert np.isfinite(value)
