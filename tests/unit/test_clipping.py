"""Balls that rows are pulled into, chosen on the synthetic table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import retilt as rt
from retilt.measures.balls import RADIUS
from retilt.measures.moments import Moments, MomentsBlock
from retilt.privacy.plan import plan_from_dict
from retilt.tables import encode

ROWS = 3_000
NAMES = [f"x{i}" for i in range(8)]
SCHEMA: dict[str, Any] = {
    **{n: rt.Numeric(-1.0, 1.0) for n in NAMES},
    "sex": rt.Categorical(("F", "M")),
}


def table(seed: int = 0, rows: int = ROWS, spread: float = 0.2) -> pd.DataFrame:
    """Eight columns of some spread about the middle of their bounds, and a two-valued one."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=rows)
    frame = {n: np.clip(spread * (0.5 * common + rng.normal(size=rows)), -1, 1) for n in NAMES}
    return pd.DataFrame({**frame, "sex": rng.choice(["F", "M"], rows)})


def planned(workload: rt.Workload, frame: pd.DataFrame | None = None, **options: Any) -> rt.Plan:
    given = {"epsilon": 1.0, "rows": ROWS, "schema": rt.Schema(SCHEMA), **options}
    return rt.plan(table() if frame is None else frame, workload, **given)


def balls(plan: rt.Plan) -> list[Any]:
    return [m.ball if isinstance(m, Moments) else None for m in plan.measures]


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_columns_in_the_middle_of_their_box_get_a_ball(unit: str) -> None:
    asked = rt.correlation([*NAMES, "sex"])
    plan, boxed = (planned(w, unit=unit, delta=1e-7) for w in (asked, asked.unclamped()))
    (ball,), (none,) = balls(plan), balls(boxed)
    assert none is None
    assert set(ball) == {*NAMES, "sex"}
    ours, theirs = (np.array(p.expected, dtype=float) for p in (plan, boxed))
    assert np.sqrt(np.mean(ours**2)) < 0.7 * np.sqrt(np.mean(theirs**2))
    assert plan_from_dict(plan.to_dict()) == plan
    assert any("in to a ball" in n for n in plan.notes)
    assert not any("in to a ball" in n for n in boxed.notes)


def test_it_holds_all_synthetic_rows() -> None:
    plan = planned(rt.moments(NAMES))
    (block,) = plan.queries.blocks
    assert isinstance(block, MomentsBlock)
    assert block.ball is not None
    from retilt.engines.local import open_table

    arrays = list(encode(open_table(table()), block.features).values())
    wide = [a.astype(np.float64) for a in arrays]
    steps = [
        (a - c) * s / column.levels
        for a, c, s, column in zip(
            wide, block.ball.centre, block.ball.stretch, block.columns, strict=True
        )
    ]
    lengths = np.sqrt(sum(s * s for s in steps))
    assert lengths.max() == pytest.approx(RADIUS, rel=2e-3)


def test_the_answers_are_those_of_the_rows_as_they_are() -> None:
    """Where no private row lies outside, the estimates are the box's, with less noise."""
    frame = table()
    plan = planned(rt.moments([*NAMES, "sex"]), frame, epsilon=0.5)
    assert balls(plan)[0] is not None
    loud = planned(rt.moments([*NAMES, "sex"], clip={}), frame, epsilon=1e6, delta=1e-9)
    truth = rt.measure(frame, loud).to_frame()["estimate"].to_numpy(dtype=float)
    answers = rt.measure(frame, plan).to_frame()
    errors = answers["estimate"].to_numpy(dtype=float) - truth
    ratio = errors / answers["standard_error"].to_numpy(dtype=float)
    assert np.nanmax(np.abs(ratio)) < 6
    assert 0.5 < np.sqrt(np.nanmean(ratio**2)) < 1.6


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        (rt.correlation(NAMES), {"delta": 0.0}),
        (rt.correlation(NAMES), {"basis": "paper"}),
        (rt.correlation(NAMES, by="sex"), {}),
        (rt.moments(NAMES, order=1), {}),
        (rt.means(NAMES), {}),
        (rt.correlation(NAMES, clip={}), {}),
        (rt.correlation(NAMES, clip={"x0": (-0.9, 0.9)}), {}),
    ],
)
def test_where_there_is_none(workload: rt.Workload, options: dict[str, Any]) -> None:
    assert balls(planned(workload, **options)) == [None]


def test_measures_of_the_same_columns_share_a_ball() -> None:
    """And its queries; one that shares only some with others keeps the box."""
    turned = rt.correlation(NAMES) + rt.moments(NAMES[::-1])
    plan = planned(turned)
    first, second = balls(plan)
    assert first == second
    assert first is not None
    assert plan.queries.size == 8 * 11 // 2
    assert len(set(plan.queries.statistics)) == 28 + 28 + 16  # each pair by both its names
    partly = planned(rt.correlation(NAMES) + rt.means("x0"))
    assert balls(partly) == [None, None]
    assert partly.queries.size == 8 * 11 // 2
    apart = planned(rt.correlation(NAMES[:7]) + rt.means("x7"))
    assert balls(apart)[0] is not None


def test_rows_in_the_corners_keep_the_box() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.choice([-1.0, 1.0], (ROWS, 8)), columns=NAMES)
    assert balls(planned(rt.correlation(NAMES), frame)) == [None]


@pytest.mark.parametrize(
    "frame",
    [
        table().head(0),
        table().head(1),
        table().assign(x0=np.nan),
        table().assign(x0=0.5),
        table().assign(**dict.fromkeys(NAMES, 0.25)),
        table().assign(x0=np.inf, x1=1e300),
        table(spread=1e-9),
    ],
)
def test_odd_tables(frame: pd.DataFrame) -> None:
    schema = rt.Schema({**SCHEMA, "x0": rt.Numeric(-1.0, 1.0, nullable=True)})
    plan = planned(rt.moments(NAMES), frame, rows=100, schema=schema)
    assert plan_from_dict(plan.to_dict()) == plan


def test_the_outlook_tells_what_whole_rows_say() -> None:
    plan = planned(rt.moments(NAMES))
    assert balls(plan)[0] is not None
    outlook = rt.outlook(table(1), plan)
    for value, raw in zip(outlook.values, outlook.unclamped, strict=True):
        assert value == pytest.approx(raw, rel=0.05, abs=0.01)


def test_the_outlook_knows_how_far_rows_in_the_ball_can_be() -> None:
    narrow = table(spread=0.05)
    plan = planned(rt.moments(NAMES), narrow)
    (block,) = plan.queries.blocks
    assert isinstance(block, MomentsBlock)
    ends = block.derived.bounds
    assert np.all((ends[:, 0] > -1) & (ends[:, 1] < 1))
    wild = table(1, spread=0.8)  # with rows far outside
    for frame in (narrow, wild):
        seen = rt.outlook(frame, plan)
        assert np.allclose(seen.allowed[: len(NAMES)], ends)
        for reach, (low, high) in zip(seen.reaches, ends, strict=False):
            assert reach is not None
            assert low - 1e-9 <= reach[0] < reach[1] <= high + 1e-9
    raw = block.derived.natural()[0]
    assert np.all((ends[:, 0] < raw) & (raw < ends[:, 1]))


def test_many_columns_are_planned() -> None:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(30)]
    frame = pd.DataFrame(np.clip(rng.normal(0, 0.2, (400, 30)), -1, 1), columns=names)
    schema = rt.Schema({n: rt.Numeric(-1.0, 1.0) for n in names})
    plan = rt.plan(frame, rt.correlation(names), epsilon=1.0, rows=400, schema=schema)
    assert balls(plan)[0] is not None
