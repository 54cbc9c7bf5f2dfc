"""Stein's estimate against the true error, over many draws of the noise."""

from __future__ import annotations

import numpy as np
import pytest

from retilt.measures.base import Products
from retilt.tilting import Covariance, Problem, fit_path
from retilt.tilting.fold import Rows
from retilt.tilting.points import Judge, Walker


def moments(values: np.ndarray) -> Products:
    """All means and products of two columns."""
    size = values.shape[1]
    pairs = [(i, -1) for i in range(size)]
    pairs += [(i, j) for i in range(size) for j in range(i, size)]
    left, right = np.array(pairs, dtype=np.intp).T
    return Products(values, left, right, np.zeros(left.size), np.ones(left.size))


@pytest.fixture(scope="module")
def setting():
    rng = np.random.default_rng(11)
    table = moments(np.clip(rng.normal(size=(1500, 4)) * 0.35, -1, 1))
    mixing = np.eye(4) + 0.08 * rng.normal(size=(4, 4))
    real = moments(np.clip(rng.normal(size=(1500, 4)) @ mixing * 0.35 + 0.02, -1, 1))
    uniform = np.full(1500, 1 / 1500)
    size = table.left.size
    noise = Covariance(np.full(size, 0.02**2), np.full((size, 1), 0.01))
    truth = Problem((real,), np.zeros(size), noise, uniform).means(uniform)
    return table, truth, noise


@pytest.mark.parametrize("eta", [3000.0, 300.0, 30.0, 1.0])
def test_the_estimate_is_unbiased_at_a_fixed_trade_off(setting, eta):
    table, truth, noise = setting
    rng = np.random.default_rng(int(eta))
    root = np.linalg.cholesky(noise.dense())
    base = np.ones(1500)
    rows = Rows.of(Problem((table,), truth, noise, base))
    differences = []
    for _ in range(200):
        answers = truth + root @ rng.normal(size=truth.size)
        problem = Problem((table,), answers, noise, base)
        judge = Judge.of(problem, lambda q: q, problem.means(problem.base), rows, None)
        walker = Walker.of(problem, rows, judge, rows)
        stop = walker.at(eta, np.zeros(truth.size))
        true_error = noise.quadratic_inverse(stop.means - truth)
        differences.append(stop.point.sure - true_error)
    mean = np.mean(differences)
    assert abs(mean) < 4 * np.std(differences) / np.sqrt(len(differences))


def test_its_choice_is_nearly_the_best_of_the_path(setting):
    table, truth, noise = setting
    rng = np.random.default_rng(2)
    root = np.linalg.cholesky(noise.dense())
    chosen, base, exact = 0.0, 0.0, 0.0
    for _ in range(30):
        answers = truth + root @ rng.normal(size=truth.size)
        problem = Problem((table,), answers, noise, np.ones(1500))
        solution = fit_path(problem, lambda q: q)
        chosen += noise.quadratic_inverse(solution.after - truth)
        base += noise.quadratic_inverse(solution.before - truth)
        exact += noise.quadratic_inverse(answers - truth)
    assert chosen < 0.9 * exact
    assert chosen < 0.9 * base
