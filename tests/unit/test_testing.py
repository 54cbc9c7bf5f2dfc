"""Answers for tests: reproducible, of the right spread, and never private."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import RowCountError, WorkloadError
from retilt.pipeline import exact_sums
from retilt.testing import insecure_measure

ROWS = 300


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"a": rng.random(ROWS), "b": rng.random(ROWS), "s": rng.choice([*"xy"], ROWS)})


TABLE = table()


def make(**options: Any) -> rt.Plan:
    workload = rt.moments(["a", "b"]) + rt.marginal(["s"])
    return rt.plan(TABLE, workload, **{"epsilon": 1.0, "rows": ROWS, **options})


def test_the_generator_decides_the_noise() -> None:
    plan = make()

    def drawn(seed: int) -> rt.Answers:
        return insecure_measure(TABLE, plan, rng=np.random.default_rng(seed))

    assert drawn(1) == drawn(1)
    assert drawn(1).values != drawn(2).values
    rng = np.random.default_rng(1)
    one, other = (insecure_measure(TABLE, plan, rng=rng) for _ in range(2))
    assert one == drawn(1)
    assert one.values != other.values


@pytest.mark.parametrize("options", [{}, {"delta": 0}, {"unit": "add-remove"}])
def test_the_noise_has_the_plans_scales(options: dict[str, Any]) -> None:
    plan = make(**options)
    exact = np.array(exact_sums(TABLE, plan), dtype=np.float64)
    rng = np.random.default_rng(3)
    values = [insecure_measure(TABLE, plan, rng=rng).values for _ in range(400)]
    noise = (np.array(values, dtype=np.float64) - exact) / np.array(plan.noise.scales)
    deviation = plan.noise.deviation_per_scale
    assert noise.std() == pytest.approx(deviation, rel=0.05)
    assert abs(noise.mean()) < 6 * deviation / np.sqrt(noise.size)
    # The mean absolute value tells Laplace (b) from Gaussian noise (0.8 sigma).
    expected = 1.0 if plan.noise.norm == 1 else np.sqrt(2 / np.pi)
    assert np.abs(noise).mean() == pytest.approx(expected, rel=0.05)


def test_without_noise_the_answers_are_exact() -> None:
    plan = make()
    answers = insecure_measure(TABLE, plan, rng=np.random.default_rng(0), noise=False)
    assert list(answers.values) == exact_sums(TABLE, plan)
    assert all(type(v) is int for v in answers.values)
    assert answers.private is False
    assert answers.noise_scales == plan.noise.scales


def test_it_refuses_what_measure_refuses() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RowCountError, match=r"has 299 rows, the plan says 300"):
        insecure_measure(TABLE.slice(1), make(), rng=rng)
    with pytest.raises(WorkloadError, match="no column 's'"):
        insecure_measure(TABLE.drop_columns(["s"]), make(), rng=rng)
