"""Narrower bounds for columns with far tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import retilt as rt
from retilt.clamping import Sides
from retilt.exceptions import WorkloadError
from retilt.measures.base import Terms
from retilt.measures.moments import Moments
from retilt.measures.queries import gather
from retilt.privacy.plan import load_plan, plan_from_dict

ROWS = 4_000
SCHEMA = {
    "pay": rt.Numeric(0.0, 1e6),
    "age": rt.Numeric(17, 90, integer=True),
    "visits": rt.Numeric(0, 5_000, integer=True),
    "sex": rt.Categorical(("F", "M")),
}


def table(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Pay and visits far within their bounds, age all over its own."""
    rng = np.random.default_rng(seed)
    ability = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "pay": np.exp(8 + 0.6 * ability + 0.4 * rng.normal(size=rows)),
            "age": np.clip(np.round(50 + 15 * rng.normal(size=rows)), 17, 90).astype(int),
            "visits": rng.poisson(np.exp(1 + 0.5 * ability)),
            "sex": np.where(ability + rng.normal(size=rows) > 0, "M", "F"),
        }
    )


def planned(workload: rt.Workload, **options: Any) -> rt.Plan:
    given: dict[str, Any] = {"epsilon": 1.0, "rows": ROWS, "schema": rt.Schema(SCHEMA)}
    return rt.plan(table(), workload, **{**given, **options})


def clips(plan: rt.Plan) -> list[Any]:
    return [None if m.clip is None else dict(m.clip) for m in plan.measures]  # type: ignore[attr-defined]


# --- the choice ------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [None, 0.0])
@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_far_bounds_are_moved_in_and_others_not(delta: float | None, unit: str) -> None:
    names = ["pay", "age", "visits", "sex"]
    options: dict[str, Any] = {"delta": 1e-6 if delta is None else delta, "unit": unit}
    plan = planned(rt.correlation(names), **options)
    (clip,) = clips(plan)
    assert clip.keys() == {"pay", "visits"}
    pay, visits = table()["pay"], table()["visits"]
    assert pay.quantile(0.95) < clip["pay"][1] < 2e5
    assert clip["pay"][0] == 0
    assert visits.quantile(0.95) <= clip["visits"][1] < 1_000
    wide = planned(rt.correlation(names, clip={}), **options)
    assert clips(wide) == [{}]
    first, last = (np.array(p.expected, dtype=float) for p in (plan, wide))
    assert (first[[0, 1, 2]] < last[[0, 1, 2]] / 2).all()


def test_what_the_user_says_holds() -> None:
    asked = rt.moments(["pay", "age"], clip={"pay": [0, 20_000]}) + rt.means("visits", clip={})
    assert clips(planned(asked)) == [{"pay": (0, 20_000)}, {}]
    assert clips(planned(rt.correlation(["pay", "age"]).unclamped())) == [{}]


def test_the_papers_basis_keeps_the_schemas_bounds() -> None:
    assert clips(planned(rt.correlation(["pay", "age"]), basis="paper")) == [None]


def test_a_large_budget_keeps_the_schemas_bounds() -> None:
    """Where noise is nothing, any clamp costs."""
    assert clips(planned(rt.correlation(["pay", "visits"]), epsilon=100.0, rows=10**9)) == [{}]


def test_a_tail_that_matters_stays() -> None:
    """One row in a hundred at the bound makes the deviation; a clamp would hide it."""
    frame = table()
    frame.loc[frame.index % 100 == 0, "pay"] = 9e5
    plan = rt.plan(frame, rt.moments(["pay"]), epsilon=3.0, rows=40_000, schema=rt.Schema(SCHEMA))
    assert clips(plan) == [{}]


def test_one_choice_for_all_measures_and_groups() -> None:
    plan = planned(rt.correlation(["pay", "visits"]) + rt.means("pay", by="sex"))
    first, second = clips(plan)
    assert first["pay"] == second["pay"]
    assert len(set(plan.queries.statistics)) == len(plan.queries.statistics)


@pytest.mark.parametrize(
    "frame",
    [
        table().head(0),
        table().head(1),
        table().assign(pay=np.nan),
        table().assign(pay=5.0),
        table().assign(pay=np.inf),
        table().assign(pay=1e300, visits=-7),
    ],
)
def test_odd_tables(frame: pd.DataFrame) -> None:
    plan = rt.plan(
        frame,
        rt.moments(["pay", "visits", "age"]),
        epsilon=1.0,
        rows=100,
        schema=rt.Schema({**SCHEMA, "pay": rt.Numeric(0.0, 1e6, nullable=True)}),
    )
    assert load_equal(plan)


def load_equal(plan: rt.Plan) -> bool:
    return plan_from_dict(plan.to_dict()).to_dict() == plan.to_dict()


def test_sides_go_inwards_to_the_usual_values() -> None:
    values = np.random.default_rng(0).exponential(10.0, 5_000)
    sides = Sides.of(rt.Numeric(0.0, 1_000.0), values)
    assert sides.lower == (0.0,)
    assert sides.upper[0] == 1_000
    assert (np.diff(sides.upper) < 0).all()
    assert np.quantile(values, 0.9) < sides.upper[-1] < np.quantile(values, 0.99)
    assert not Sides.of(rt.Numeric(0.0, 1.0), np.linspace(0, 1, 99)).free


# --- what it means ---------------------------------------------------------------------------


def test_both_tables_are_clamped() -> None:
    """Answers at a huge epsilon are those of the clamped column, and a fit meets them."""
    private, synthetic = table(1), table(2)
    workload = rt.moments(["pay", "age"], clip={"pay": (1_000, 5_000)})
    plan = rt.plan(synthetic, workload, epsilon=1e5, rows=ROWS, schema=rt.Schema(SCHEMA))
    answers = rt.measure(private, plan)
    clamped = private.assign(pay=private["pay"].clip(1_000, 5_000))[["pay", "age"]]
    told = {r["statistic"]: r["estimate"] for r in answers.statistics_table()}
    assert told["mean(pay)"] == pytest.approx(clamped["pay"].mean(), rel=1e-4)
    assert told["sd(pay)"] == pytest.approx(clamped["pay"].std(ddof=0), rel=1e-3)
    assert told["corr(pay, age)"] == pytest.approx(clamped.corr().iloc[0, 1], abs=1e-3)
    tilt = rt.fit(synthetic, answers)
    assert tilt.exit_code == 0


def test_the_plan_says_what_is_clamped() -> None:
    plan = planned(rt.correlation(["pay", "visits"]))
    (note,) = [n for n in plan.notes if "clamped for less noise" in n]
    for said in ("pay to 0 ..", "of the synthetic rows beyond", "corr(pay, visits)", "--clip none"):
        assert said in note


def test_files_keep_the_bounds(tmp_path: Any) -> None:
    plan = planned(rt.correlation(["pay", "visits"]) + rt.means("pay", by="sex"))
    plan.save(tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert clips(read) == clips(plan)
    assert read.sha256 == plan.sha256


def test_other_bounds_are_other_queries() -> None:
    terms = Terms(rt.Schema(SCHEMA))
    narrow, wide = (Moments(("pay", "age"), clip=c) for c in ({"pay": (0, 9_000)}, {}))
    one = gather((wide,), terms)
    both = gather((wide, narrow), terms)
    # pay, its square and pay x age are asked anew; age and its square are not.
    assert (one.size, both.size) == (5, 8)
    # The mean of age is one statistic, and so is its deviation; those of pay are two.
    assert len(both.statistics) == len(one.statistics) + 3
    same = gather((wide, Moments(("pay", "age"), clip={"pay": (0, 1_000_000)})), terms)
    assert same.size == one.size


@pytest.mark.parametrize(
    ("clip", "match"),
    [
        ({"pay": (5, 5)}, "lower < upper"),
        ({"pay": (5,)}, "two finite numbers"),
        ({"pay": (0, float("nan"))}, "two finite numbers"),
        ({"pay": 3}, "two finite numbers"),
        ({"sex": (0, 1)}, "not among the columns"),
        ([1, 2], "bounds by column"),
    ],
)
def test_wrong_bounds_are_refused(clip: Any, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        rt.moments(["pay", "age"], clip=clip)


@pytest.mark.parametrize(
    ("names", "clip", "match"),
    [
        (["pay"], {"pay": (-1, 5)}, "within 0.0 to 1000000.0"),
        (["age"], {"age": (20.5, 60)}, "whole numbers"),
        (["pay", "sex"], {"sex": (0, 1)}, "expected a numeric column"),
    ],
)
def test_bounds_that_the_schema_does_not_allow_are_refused(
    names: list[str], clip: Any, match: str
) -> None:
    with pytest.raises(WorkloadError, match=match):
        planned(rt.moments(names, clip=clip))


def test_values_that_two_digits_do_not_tell_apart_keep_room_between_the_bounds() -> None:
    table = pd.DataFrame({"a": [6.044856e7, 6.092868e7], "b": [3.0, 4.0]})
    schema = {"a": rt.Numeric(0, 1e9), "b": rt.Numeric(0, 10)}
    plan = rt.plan(table, rt.moments(["a", "b"]), epsilon=20.0, delta=1e-6, rows=200, schema=schema)
    assert plan.queries.size > 0
