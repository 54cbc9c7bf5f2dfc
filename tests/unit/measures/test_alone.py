"""Which queries read one column and no other, by brute force: what changes when the others do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt as rt
from retilt.engines.local import open_table
from retilt.measures.balls import RADIUS, Ball
from retilt.measures.base import EncodedArray, Feature, FloatArray
from retilt.measures.moments import MomentsBlock
from retilt.privacy.targets import Queries
from retilt.rescue.columns import found_multipliers, own_queries, taken
from retilt.schema.columns import Schema
from retilt.testing import insecure_measure
from retilt.tilting.designs import design_means

ROWS = 60
SCHEMA = Schema(
    {
        "age": rt.Numeric(18, 90, integer=True),
        "pay": rt.Numeric(0.0, 1000.0, nullable=True),
        "two": rt.Numeric(0, 1, integer=True),
        "sex": rt.Categorical(("F", "M", "X")),
        "ok": rt.Boolean(),
        "day": rt.Datetime(dt.datetime(2020, 1, 1), dt.datetime(2021, 12, 31)),
    }
)
NAMES = tuple(SCHEMA.columns)


def frame(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    pay = 1000 * rng.random(ROWS)
    pay[::9] = np.nan
    return pd.DataFrame(
        {
            "age": rng.integers(18, 91, ROWS),
            "pay": pay,
            "two": rng.integers(0, 2, ROWS),
            "sex": rng.choice(["F", "M", "X"], ROWS),
            "ok": rng.random(ROWS) < 0.5,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), "D"),
        }
    )


def row_values(queries: Queries, encoded: Mapping[Feature, EncodedArray]) -> FloatArray:
    """(rows, K) every query on every row."""
    designs, one = queries.designs(encoded), np.eye(ROWS)
    return np.array([np.concatenate([design_means(d, w) for d in designs]) for w in one])


def moved_by(queries: Queries, table: pd.DataFrame, names: set[str]) -> set[int]:
    """Queries that change on some row when these columns have the cells of another."""
    source = open_table(table)
    encoded = {f: f.encode(source.cells, ROWS) for f in queries.features}
    before, found = row_values(queries, encoded), set[int]()
    for shift in range(1, 12):
        other = {f: np.roll(a, shift) if names & set(f.reads) else a for f, a in encoded.items()}
        changed = (row_values(queries, other) != before).any(axis=0)
        found |= set(np.flatnonzero(changed).tolist())
    return found


def check(queries: Queries, table: pd.DataFrame, name: str) -> int:
    """All that change with the column alone are found, and none that changes with another."""
    places, _ = own_queries(queries, name, open_table(table).cells(name))
    found = set(places.tolist())
    assert len(found) == len(places)
    others = moved_by(queries, table, set(NAMES) - {name})
    assert moved_by(queries, table, {name}) - others <= found
    assert not others & found
    return len(found)


WORKLOADS = {
    "means": rt.means(["age", "sex", "ok"]),
    "moments": rt.moments(["age", "pay", "two", "sex", "day"], clip={}),
    "clamped": rt.moments(["age", "pay"], clip={"pay": (100, 400)}) + rt.means("pay", clip={}),
    "within groups": rt.means(["age"], by=["sex"]) + rt.means(["age", "pay"], clip={}),
    "tables": rt.marginal(["sex"]) + rt.marginal(["sex", "ok"]) + rt.marginal(["ok"]),
    "tree": rt.quantiles("age") + rt.cdf("pay", [100, 300, 700]) + rt.means(["pay"], clip={}),
    "formula": rt.query("age + two", 0, 100) + rt.query("age * 2", 0, 99) + rt.means("pay"),
    "shared": rt.correlation(["age", "day"], clip={}) + rt.moments(["age", "pay"], clip={}),
    "regression": rt.regression("pay", ["age", "two"], clip={}),
}


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_queries_of_a_column_are_those_that_change_with_it_alone(
    workload: str, unit: str
) -> None:
    table = frame()
    plan = rt.plan(
        table, WORKLOADS[workload], epsilon=1.0, delta=1e-6, rows=ROWS, schema=SCHEMA, unit=unit
    )
    source = open_table(table)
    every = {f: f.encode(source.cells, ROWS) for f in plan.queries.features}
    found = row_values(plan.queries, every)
    for name in NAMES:
        places, designs = own_queries(plan.queries, name, source.cells(name))
        check(plan.queries, table, name)
        if len(places):
            own = [np.concatenate([design_means(d, w) for d in designs]) for w in np.eye(ROWS)]
            assert np.array_equal(np.array(own), found[:, places])


def test_the_paper_s_basis_has_them_too() -> None:
    plan = rt.plan(
        frame(),
        rt.correlation(["age", "pay", "ok"]),
        epsilon=1.0,
        delta=1e-6,
        rows=ROWS,
        schema=SCHEMA,
        basis="paper",
    )
    for name, count in {"age": 2, "pay": 2, "ok": 1}.items():
        assert check(plan.queries, frame(), name) == count


def test_published_statistics_have_them_too() -> None:
    statistics = [
        {"mean": "age", "value": 50, "standard_error": 1},
        {"sd": "age", "value": 12, "standard_error": 0.5},
        {"mean": "pay", "value": 400, "standard_error": 0},
        {"sd": "pay", "value": 90, "standard_error": 0.5},
        {"corr": ["age", "pay"], "value": 0.2, "standard_error": 0.1},
        {"cell": {"sex": "F"}, "value": 0.4, "standard_error": 0.01},
    ]
    published = rt.Published("a test", statistics, declared=SCHEMA)
    given = published.completed(open_table(frame()))
    for name in ("age", "pay", "sex"):
        assert check(given.queries, frame(), name) == (1 if name == "sex" else 2)


def test_in_a_ball_a_column_is_read_as_if_the_row_were_at_its_centre_else() -> None:
    plan = rt.plan(
        frame(),
        rt.correlation(["age", "pay", "two"], clip={}),
        epsilon=1.0,
        delta=1e-6,
        rows=ROWS,
        schema=SCHEMA,
    )
    (box,) = plan.queries.blocks
    assert isinstance(box, MomentsBlock)
    ball = Ball((5, -3, 0), (3 * RADIUS, 2 * RADIUS, RADIUS))
    block = replace(box, ball=ball)
    source = open_table(frame())
    arrays = [f.encode(source.cells, ROWS) for f in block.features]
    for number, array in enumerate(arrays):
        alone = block.alone(number, array)
        centred = [
            array if i == number else np.full(ROWS, ball.centre[i], dtype=np.int32)
            for i in range(3)
        ]
        whole = block.design(centred, np.arange(len(block.keys)))
        for weights in np.eye(ROWS):
            expected = design_means(whole, weights)[alone.queries]
            assert np.array_equal(design_means(alone.designs[0], weights), expected)
        assert len(alone.queries) == 2


def test_cells_are_taken_by_what_the_answers_say_of_the_column() -> None:
    table = frame(1)
    plan = rt.plan(
        table,
        rt.moments(["age", "pay"], clip={}),
        epsilon=50.0,
        delta=1e-6,
        rows=5000,
        schema=SCHEMA,
    )
    real = pd.DataFrame({"age": np.full(5000, 70), "pay": np.tile([100.0, 300.0], 2500)})
    real.loc[::2, "age"] = 80
    answers = insecure_measure(real, plan, rng=np.random.default_rng(0), noise=False)
    rng = np.random.default_rng(2)
    drawn = {"age": rng.integers(18, 91, 50_000), "pay": 1000 * rng.random(50_000)}
    for name, cells in drawn.items():
        places, designs = own_queries(plan.queries, name, pa.chunked_array([cells]))
        multipliers = found_multipliers(answers, places, designs, np.ones(50_000))
        chosen = taken(designs, multipliers, np.ones(50_000), rng.random)
        assert chosen.shape == (50_000,)
        # One in ten is as it was drawn.
        mean = 0.9 * real[name].mean() + 0.1 * cells.mean()
        assert cells[chosen].mean() == pytest.approx(mean, rel=0.02)
        second = 0.9 * (real[name] ** 2).mean() + 0.1 * (cells.astype(float) ** 2).mean()
        assert (cells[chosen].astype(float) ** 2).mean() == pytest.approx(second, rel=0.04)


def test_multipliers_of_nothing_take_cells_as_they_were_drawn() -> None:
    plan = rt.plan(frame(), rt.means(["age"]), epsilon=1.0, delta=1e-6, rows=ROWS, schema=SCHEMA)
    cells = open_table(frame()).cells("age")
    places, designs = own_queries(plan.queries, "age", cells)
    assert len(places) == 1
    chosen = taken(designs, np.zeros(1), np.ones(ROWS), np.random.default_rng(0).random)
    assert len(set(chosen.tolist())) > ROWS / 2
