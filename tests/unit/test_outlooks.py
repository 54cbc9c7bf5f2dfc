"""What a plan tells before any budget is spent."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.costs import costs_of
from retilt.exceptions import InputError
from retilt.outlooks import CLAMPED, DOMINATED, OUT_OF_REACH, Outlook
from retilt.privacy.plan import Plan

ROWS = 4_000
SCHEMA = rt.Schema(
    {
        "age": rt.Numeric(0, 100, integer=True),
        "pay": rt.Numeric(0, 1000),
        "sex": rt.Categorical(("F", "M", "X")),
    }
)


def table(rows: int = ROWS) -> pa.Table:
    """Ages of 40 to 60, pay of 0 to 1000 of which few is above 300, no X."""
    rng = np.random.default_rng(0)
    pay = rng.exponential(100, rows)
    return pa.table(
        {
            "age": rng.integers(40, 61, rows),
            "pay": np.minimum(pay, 1000),
            "sex": np.where(rng.random(rows) < 0.5, "F", "M"),
        }
    )


def seen(workload: Any, schema: Any = SCHEMA, **options: Any) -> Outlook:
    options = {"epsilon": 1, "rows": ROWS, **options}
    return rt.outlook(table(), rt.plan(table(), workload, schema=schema, **options))


def by_name(outlook: Outlook) -> dict[str, dict[str, Any]]:
    return {row["statistic"]: row for row in outlook.statistics_table()}


class TestValues:
    def test_they_are_the_synthetic_tables(self):
        rows = by_name(seen(rt.moments(["age", "pay"], clip={}) + rt.marginal(["sex"])))
        ages, pay = (np.asarray(table()[n]) for n in ("age", "pay"))
        assert rows["mean(age)"]["synthetic"] == pytest.approx(ages.mean())
        assert rows["sd(pay)"]["synthetic"] == pytest.approx(pay.std(), rel=1e-3)
        assert rows["corr(age, pay)"]["synthetic"] == pytest.approx(
            np.corrcoef(ages, pay)[0, 1], abs=1e-4
        )
        share = np.mean(np.asarray(table()["sex"]) == "F")
        assert rows["cell(sex=F)"]["synthetic"] == pytest.approx(share)

    def test_errors_are_the_plans(self):
        found = seen(rt.moments(["age"]))
        errors = tuple(r["expected_standard_error"] for r in found.statistics_table())
        assert errors == found.plan.expected
        mean = by_name(found)["mean(age)"]
        assert mean["relative_error"] == pytest.approx(
            mean["expected_standard_error"] / mean["synthetic"]
        )

    def test_an_empty_table_has_none(self):
        empty = table().slice(0, 0)
        plan = rt.plan(table(), rt.means("age", by="sex"), epsilon=1, rows=9, schema=SCHEMA)
        found = rt.outlook(empty, plan)
        assert set(found.values) == {None}
        assert all(found.short)

    def test_what_noise_drowns_has_a_flag(self):
        rows = by_name(seen(rt.means("age", by="sex"), epsilon=0.001))
        assert DOMINATED in rows["mean(age | sex=F)"]["flags"]


class TestClamp:
    @pytest.mark.parametrize("how", ["schema", "clip"])
    def test_the_statistic_without_it_stands_beside(self, how):
        if how == "schema":
            schema = {"pay": {"kind": "numeric", "lower": 0, "upper": 100}}
            found = seen(rt.moments(["pay"]), schema)
        else:
            found = seen(rt.moments(["pay"], clip={"pay": (0, 100)}))
        pay = np.asarray(table()["pay"])
        mean = by_name(found)["mean(pay)"]
        assert mean["synthetic"] == pytest.approx(np.minimum(pay, 100).mean(), rel=1e-3)
        assert mean["synthetic_unclamped"] == pytest.approx(pay.mean(), rel=1e-3)
        assert CLAMPED in mean["flags"]
        assert any("mean(pay) from" in note for note in found.notes)

    def test_nothing_is_told_where_nothing_is_clamped(self):
        found = seen(rt.moments(["age", "pay"], clip={}) + rt.marginal(["sex"]))
        assert found.unclamped == found.values

    def test_nulls_stay_in_the_middle(self):
        gaps = pa.table({"x": pa.array([None] * 50 + [5.0] * 49 + [1000.0])})
        schema = {"x": {"kind": "numeric", "lower": 0, "upper": 10, "nullable": True}}
        plan = rt.plan(gaps, rt.means("x"), epsilon=1, rows=100, schema=schema)
        mean = by_name(rt.outlook(gaps, plan))["mean(x)"]
        assert mean["synthetic_unclamped"] == pytest.approx(5 + 995 / 100, rel=1e-3)

    def test_dates_and_values_that_no_column_holds(self):
        days = np.array(["2020-01-01", "2021-01-01", "2030-01-01"], dtype="datetime64[us]")
        dated = pa.table({"day": days, "x": [1.0, 2.0, 1e308]})
        schema = {
            "day": {"kind": "datetime", "lower": "2020-01-01", "upper": "2022-01-01"},
            "x": {"kind": "numeric", "lower": 0, "upper": 3},
        }
        plan = rt.plan(dated, rt.means("day") + rt.means("x"), epsilon=1, rows=3, schema=schema)
        rows = by_name(rt.outlook(dated, plan))
        assert rows["mean(day)"]["synthetic_unclamped"] == pytest.approx(
            days.astype("int64").mean() / 1e6, rel=1e-3
        )
        assert rows["mean(x)"]["synthetic"] == pytest.approx(2)


class TestReach:
    def test_an_absent_cell_is_named(self):
        found = seen(rt.marginal(["sex"]) + rt.share("age >= 50", by="sex"))
        rows = by_name(found)
        for absent in ("cell(sex=X)", "share(age >= 50 | sex=X)"):
            assert OUT_OF_REACH in rows[absent]["flags"]
            assert rows[absent]["reach"] is None
            assert any(f"{absent} (no synthetic row)" in note for note in found.notes)
        assert rows["cell(sex=F)"]["reach"] == (0, 1)
        # Nobody misses what the schema does not name.
        assert rows["cell(sex=other)"]["flags"] == []

    def test_an_empty_group_is_named(self):
        rows = by_name(seen(rt.moments(["age", "pay"], by="sex", clip={})))
        for name in ("mean(age | sex=X)", "sd(pay | sex=X)", "corr(age, pay | sex=X)"):
            assert OUT_OF_REACH in rows[name]["flags"]
            assert rows[name]["reach"] is None

    def test_a_mean_and_a_spread_that_no_weights_can_give(self):
        found = seen(rt.moments(["age", "pay"], clip={}))
        rows = by_name(found)
        assert rows["mean(age)"]["reach"] == pytest.approx((40, 60))
        assert rows["mean(age)"]["allowed"] == pytest.approx((0, 100))
        mean = rows["mean(age)"]["synthetic"]
        most = np.sqrt((mean - 40) * (60 - mean))
        assert rows["sd(age)"]["reach"] == pytest.approx((0, most))
        for name in ("mean(age)", "sd(age)", "corr(age, pay)"):
            assert OUT_OF_REACH in rows[name]["flags"]
        for name in ("mean(pay)", "sd(pay)"):
            assert OUT_OF_REACH not in rows[name]["flags"]
        assert any("sd(age) (reaches 0 .. 10" in note for note in found.notes)

    @pytest.mark.parametrize("workload", [rt.correlation(["age", "pay"], clip={}),
                                          rt.regression("pay", ["age"], clip={})])  # fmt: skip
    def test_what_is_made_of_such_a_spread_has_the_flag(self, workload):
        assert all(seen(workload).short)

    @pytest.mark.parametrize("basis", ["centred", "paper"])
    def test_the_bases_tell_the_same(self, basis):
        rows = by_name(seen(rt.moments(["age"], clip={}), basis=basis))
        assert rows["mean(age)"]["reach"] == pytest.approx((40, 60))
        assert rows["sd(age)"]["synthetic"] == pytest.approx(np.asarray(table()["age"]).std())

    def test_rates_cdf_and_quantiles(self):
        rows = by_name(
            seen(
                rt.share("age > 70", by="sex")
                + rt.cdf("age", [10, 50])
                + rt.quantiles("age", [0.5], bins=20)
            )
        )
        assert rows["share(age > 70 | sex=F)"]["reach"] == (0, 0)
        assert rows["cdf(age <= 10)"]["reach"] == (0, 0)
        assert rows["cdf(age <= 50)"]["reach"] == (0, 1)
        assert OUT_OF_REACH in rows["cdf(age <= 10)"]["flags"]
        low, high = rows["quantile(age, 0.5)"]["reach"]
        assert 0 <= low <= 40 <= 60 <= high <= 100

    def test_weights_do_reach_the_ends(self):
        """The most that is told of a deviation is what two of the rows give."""
        rows = by_name(seen(rt.moments(["pay"], clip={})))
        pay = np.asarray(table()["pay"])
        low, high, mean = pay.min(), pay.max(), rows["mean(pay)"]["synthetic"]
        part = (mean - low) / (high - low)
        spread = np.sqrt(part * (high - mean) ** 2 + (1 - part) * (mean - low) ** 2)
        assert rows["sd(pay)"]["reach"][1] == pytest.approx(spread, rel=1e-3)


class TestCosts:
    def test_they_grow_with_the_rows(self):
        few, many = (
            costs_of(
                rt.plan(table(), rt.moments(["age", "pay"]), epsilon=1, rows=n, schema=SCHEMA),
                synthetic_rows=n,
            )
            for n in (1_000, 10_000_000)
        )
        for step in ("measure", "fit"):
            small, large = getattr(few, step), getattr(many, step)
            assert large.cpu_seconds > 3 * small.cpu_seconds > 0
            assert large.peak_mib > 3 * small.peak_mib > 0
        assert "about" in str(many)
        assert "GiB" in str(many)

    def test_groups_and_tables_have_some_too(self):
        plan = rt.plan(
            table(),
            rt.moments(["age", "pay"], by="sex") + rt.marginal(["sex"]),
            epsilon=1,
            rows=ROWS,
            schema=SCHEMA,
        )
        told = costs_of(plan, synthetic_rows=ROWS).to_dict()
        assert told["fit"]["cpu_seconds"] > 0


class TestUse:
    def test_no_private_table_can_be_given(self):
        for function in (rt.outlook, rt.forecast):
            names = inspect.signature(function).parameters
            assert not any("private" in n for n in names)

    def test_the_plans_file_will_do(self, tmp_path):
        plan = rt.plan(table(), rt.means("age"), epsilon=1, rows=ROWS, schema=SCHEMA)
        plan.save(tmp_path / "plan.json")
        assert (
            rt.outlook(table(), tmp_path / "plan.json").values == rt.outlook(table(), plan).values
        )

    def test_the_wrong_order_is_refused(self):
        plan = rt.plan(table(), rt.means("age"), epsilon=1, rows=ROWS, schema=SCHEMA)
        with pytest.raises(InputError, match="expected the synthetic table"):
            rt.outlook(plan, table())  # type: ignore[arg-type]

    def test_a_table_without_the_columns_is_refused(self):
        plan = rt.plan(table(), rt.means("age"), epsilon=1, rows=ROWS, schema=SCHEMA)
        with pytest.raises(InputError, match="age"):
            rt.outlook(table().select(["sex"]), plan)

    def test_frame_and_json(self):
        found = seen(rt.moments(["age"]) + rt.marginal(["sex"]))
        assert len(found.to_frame()) == len(found.values)
        told = found.to_dict()
        assert set(told) == {"rows", "statistics", "costs", "notes"}
        assert isinstance(found.plan, Plan)
        assert "statistics" in repr(found)

    @pytest.mark.parametrize("unit", ["add-remove", rt.AddRemoveOnePerson("person", 2)])
    def test_every_unit(self, unit):
        own = table().append_column("person", pa.array(range(ROWS)))
        plan = rt.plan(own, rt.means("age"), epsilon=1, unit=unit, schema=SCHEMA)
        assert rt.outlook(own, plan).values[0] == pytest.approx(50, abs=1)
