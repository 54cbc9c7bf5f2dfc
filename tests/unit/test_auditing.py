"""The audit finds what is wrong: in sensitivities, in the choice of rows, in one row's part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import retilt as rt
from retilt import pipeline
from retilt.auditing import bounds
from retilt.auditing.bounds import at_least, at_most, implied_epsilon, lower_bound
from retilt.auditing.distance import Metric
from retilt.auditing.rows import Inventor, shown
from retilt.exceptions import InputError
from retilt.measures import grouped, moments, partitions
from retilt.measures.base import Feature, Reading
from retilt.privacy import mechanism, sensitivity
from retilt.privacy.accounting import gaussian_distance
from retilt.schema.columns import Column, Schema

SCHEMA: dict[str, Any] = {
    "a": rt.Numeric(-100.0, 1.0, nullable=True),
    "b": rt.Numeric(0, 4, integer=True),
    "sex": rt.Categorical(("F", "M")),
    "race": rt.Categorical(("x", "y", "z")),
}
SYNTHETIC = pa.table(
    {
        "a": [-100.0, -49.5, 1.0, 0.5] * 3,
        "b": [0, 4, 3, 1] * 3,
        "sex": ["F", "M", "F", "M"] * 3,
        "race": ["x", "y", "z"] * 4,
    }
)
UNITS = [
    rt.ReplaceOneRow(),
    rt.AddRemoveOneRow(),
    rt.ReplaceOnePerson("id", 3),
    rt.AddRemoveOnePerson("id", 3),
]


def plan_of(workload: rt.Workload, unit: Any = UNITS[0], **budget: Any) -> rt.Plan:
    budget = budget or {"epsilon": 1.0, "delta": 1e-6}
    return rt.plan(SYNTHETIC, workload, rows=12, unit=unit, schema=SCHEMA, **budget)


def quick(plan: rt.Plan, *, pairs: int = 300, seed: int = 0) -> rt.Audit:
    return rt.audit(plan, draws=1_000, pairs=pairs, seed=seed)


class Quiet:
    """No time is spent on noise where it is not what is looked at."""

    @pytest.fixture(autouse=True)
    def _fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        for name, draw in (("gaussian", rng.normal), ("laplace", rng.laplace)):
            monkeypatch.setattr(
                mechanism,
                f"discrete_{name}",
                lambda scales, draw=draw: np.rint(draw(0, scales)).astype(int).tolist(),
            )


class TestNeighbours(Quiet):
    @pytest.mark.parametrize(
        ("unit", "budget"),
        list(zip(UNITS, [{"rho": 1.0}, {"epsilon": 1.0, "delta": 0.0}] * 2, strict=True)),
        ids=lambda u: getattr(u, "name", ""),
    )
    def test_holds_and_is_nearly_attained(self, unit: Any, budget: dict[str, float]) -> None:
        workload = rt.means("a", by="sex") + rt.correlation(["a", "b"]) + rt.share("b > 2")
        found = quick(plan_of(workload, unit, **budget))
        assert found.holds
        assert found.exit_code == 0
        counted_twice = isinstance(unit, rt.ReplaceOnePerson)
        assert (0.9 if counted_twice else 0.97) < found.share <= 1

    @pytest.mark.slow
    def test_few_pairs_of_a_wide_plan_are_enough(self) -> None:
        """One cell at a time leads there from any start."""
        names = [f"c{i}" for i in range(8)]
        table = pa.table({n: [0.0, 1.0, 0.5] for n in names})
        schema = {n: rt.Numeric(0.0, 1.0) for n in names}
        plan = rt.plan(
            table, rt.correlation(names), epsilon=1.0, rows=3, unit="add-remove", schema=schema
        )
        assert quick(plan, pairs=5).share > 0.99

    def test_a_needle_in_a_condition_is_found(self) -> None:
        found = quick(plan_of(rt.share("a = -37.25 AND sex = 'M'")))
        assert found.share > 0.999
        assert -37.25 in {cells[0] for cells, _ in found.one + found.other}

    def test_the_rows_follow_the_seed(self) -> None:
        plan = plan_of(rt.correlation(["a", "b"]))
        first, again, other = (quick(plan, seed=s).pairs for s in (1, 1, 2))
        assert first == again != other

    def test_rows_of_a_person_are_counted(self) -> None:
        found = quick(plan_of(rt.share("b > 2"), rt.AddRemoveOnePerson("id", 70)))
        assert found.holds
        assert found.share > 0.999
        assert [count for _, count in found.one] == [70]
        assert found.other == ()
        assert "70 rows (b = " in found.findings[0]


def smaller(function: Callable[..., Fraction]) -> Callable[..., Fraction]:
    return lambda *args, **options: function(*args, **options) * Fraction(49, 50)


def one_row_only(bound: Fraction, _max_rows: int, _norm: int) -> Fraction:
    return bound


class TestFaults(Quiet):
    @pytest.mark.parametrize(
        ("module", "name", "workload"),
        [
            (partitions, "partition_sensitivity", rt.marginals(["sex", "race"])),
            (moments, "centred_sensitivity", rt.correlation(["a", "b"])),
            (grouped, "grouped_sensitivity", rt.means("a", by="sex")),
        ],
    )
    def test_a_sensitivity_that_is_two_percent_too_small(
        self, module: Any, name: str, workload: rt.Workload, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unit = rt.AddRemoveOneRow()
        assert quick(plan_of(workload, unit)).holds
        monkeypatch.setattr(module, name, smaller(getattr(module, name)))
        found = quick(plan_of(workload, unit))
        assert not found.within
        assert found.share > 1
        assert found.exit_code == 3
        assert "VIOLATED" in repr(found)
        assert "FARTHER" in found.findings[0]

    @pytest.mark.parametrize("unit", UNITS[2:], ids=lambda u: u.name)
    def test_more_rows_of_a_person_than_were_paid_for(
        self, unit: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sensitivity, "sensitivity_of_rows", one_row_only)
        assert quick(plan_of(rt.share("b > 2"), unit)).share > 2

    def test_rows_beyond_a_person_s_share(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "chosen_rows", lambda who, *_, **__: np.arange(len(who)))
        assert not quick(plan_of(rt.share("b > 2"), rt.AddRemoveOnePerson("id", 1))).within

    def test_a_callable_that_looks_at_other_rows(self) -> None:
        """Alone, each row behaves: whole tables show what it does."""
        honest = [True]

        def share(batch: pa.RecordBatch) -> Any:
            values = np.nan_to_num(batch["b"].to_numpy())
            return values if honest else np.full(len(values), values.max(initial=0))

        plan = plan_of(rt.function(share, ["b"], lower=0, upper=4))
        assert quick(plan).holds
        honest.clear()
        assert not quick(plan).within


class TestNoise:
    def test_claim_and_bound(self) -> None:
        found = rt.audit(plan_of(rt.share("b > 2"), epsilon=4.0, delta=1e-6), draws=4_000, seed=0)
        assert 0.75 * found.claim < found.bound.value <= found.claim
        assert found.implied_epsilon is not None
        assert 2.5 < found.implied_epsilon <= 4
        assert found.bound.draws == 4_000

    def test_sums_that_do_not_differ_are_not_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []

        def draw(scales: list[float]) -> list[int]:
            asked.append(len(scales))
            return [0] * len(scales)

        monkeypatch.setattr(mechanism, "discrete_gaussian", draw)
        metric = Metric(plan_of(rt.marginals(["sex", "race"])))
        change = [0] * 9
        change[3] = 7_000
        lower_bound(metric, change, draws=1_000, on_step=lambda: None)
        assert asked == [1_000]
        assert lower_bound(metric, [0] * 9, draws=1_000, on_step=lambda: None).draws == 0

    def test_noise_that_never_wanders_far_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut off at half the distance, it gives everything away."""
        monkeypatch.setattr(mechanism, "discrete_laplace", lambda scales: [0] * len(scales))
        found = rt.audit(plan_of(rt.share("b > 2"), epsilon=1.0, delta=0.0), draws=1_000, seed=0)
        assert found.within
        assert found.bound.value > 2
        assert not found.holds
        assert "ABOVE" in found.findings[1]

    @pytest.mark.parametrize("count", [0, 1, 40, 99, 100])
    def test_clopper_and_pearson(self, count: int) -> None:
        level = 1 - 2 * bounds.FAILURE
        interval = stats.binomtest(count, 100).proportion_ci(level, method="exact")
        assert at_least(count, 100) == pytest.approx(interval.low, abs=1e-12)
        assert at_most(count, 100) == pytest.approx(interval.high, abs=1e-12)

    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
    def test_implied_epsilon_is_the_inverse(self, epsilon: float) -> None:
        mu = gaussian_distance(epsilon, 1e-7)
        assert implied_epsilon(mu, 1e-7) == pytest.approx(epsilon, rel=1e-9)
        assert implied_epsilon(0.0, 1e-7) == 0


class TestResult(Quiet):
    def test_is_json_without_surprises(self) -> None:
        found = quick(plan_of(rt.marginals(["sex"]) + rt.means("a"), rt.ReplaceOnePerson("id", 2)))
        told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert told["holds"] is True
        assert told["unit"] == "replace-one-person"
        assert told["sensitivity"]["one"][0]["rows"] == 2
        assert set(told["sensitivity"]["one"][0]["cells"]) == {"sex", "a"}
        assert told["noise"]["quantity"] == "mu"
        assert told["noise"]["lower_bound"] <= told["noise"]["claim"]
        assert told["findings"] == found.findings
        assert "can't prove that there are none" in told["findings"][-1]

    def test_takes_a_file(self, tmp_path: Path) -> None:
        plan = plan_of(rt.share("b > 2"), epsilon=1.0, delta=0.0)
        plan.save(tmp_path / "plan.json")
        found = rt.audit(str(tmp_path / "plan.json"), draws=1_000, pairs=100)
        assert found.quantity == "epsilon"
        assert found.implied_epsilon is None
        assert found.claim == 1

    def test_the_default_number_of_draws_follows_the_sums_that_differ(self) -> None:
        plan = plan_of(rt.correlation(["a", "b", "sex"]) + rt.marginals(["sex", "race"]))
        found = rt.audit(plan, pairs=100, seed=0)
        assert found.bound.draws == min(100_000, 1_000_000 // found.moved)

    @pytest.mark.parametrize(
        "options",
        [{"draws": 10}, {"draws": True}, {"pairs": 0}, {"pairs": 1.5}, {"seed": -1}],
    )
    def test_refuses_what_makes_no_sense(self, options: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="expected a whole number from"):
            rt.audit(plan_of(rt.share("b > 2")), **options)

    def test_refuses_what_is_no_plan(self) -> None:
        with pytest.raises(InputError, match="expected a plan or its file"):
            rt.audit(SYNTHETIC)  # type: ignore[arg-type]


COLUMNS: dict[str, Column] = {
    "fine": rt.Numeric(-1e300, 1e300),
    "point": rt.Numeric(3.0, 3.0),
    "steps": rt.Numeric(-5, 2**40, integer=True),
    "flag": rt.Boolean(nullable=True),
    "one": rt.Categorical(("?",)),
    "odd": rt.Categorical(("", "??", "a\nb", "null", 'q"')),
    "many": rt.Categorical(tuple(f"c{i}" for i in range(500))),
    "codes": rt.Categorical((3.0, 1.5, -2.0)),
    "day": rt.Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1)),
    "moment": rt.Datetime(
        datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC), nullable=True
    ),
}


class TestRows:
    def inventor(self) -> Inventor:
        schema = Schema(COLUMNS)
        edges = [
            Feature("fine", COLUMNS["fine"], "cells", (-7.0, 1e17)),
            Feature("day", COLUMNS["day"], "cells", (1.6e15, 1e30)),
        ]
        return Inventor.of(schema, edges, np.random.default_rng(0))

    def test_text_and_types_mean_the_same(self) -> None:
        inventor = self.inventor()
        rows = inventor.rows(np.random.default_rng(1), 400)
        for name, column in COLUMNS.items():
            both = []
            for text in (False, True):
                table = inventor.table(rows, text=text)
                reading = Reading(lambda n, t=table: pa.chunked_array([t[n]]))
                kinds = ("grid", "cells") if column.levels else ("cells",)
                both.append([Feature(name, column, k).encode(reading, 400) for k in kinds])
            for typed, spelt in zip(*both, strict=True):
                np.testing.assert_array_equal(typed, spelt, err_msg=name)

    def test_ends_nulls_and_what_is_outside_are_there(self) -> None:
        inventor = self.inventor()
        rows = inventor.rows(np.random.default_rng(1), 2_000)
        assert rows[0][2] == -5
        assert rows[1][2] == 2**40
        for place, (name, column) in enumerate(COLUMNS.items()):
            cells = [row[place] for row in rows]
            assert None in cells, name
            if isinstance(column, rt.Categorical) and column.is_text:
                assert any(c is not None and c not in column.categories for c in cells), name
        fine = [row[0] for row in rows]
        assert {-7.0, math.nextafter(-7.0, -math.inf), math.inf, 1e300} <= set(fine)

    def test_of_many_categories_a_sample_is_tried(self) -> None:
        values = self.inventor().values[list(COLUMNS).index("many")]
        assert len(values.ends) == 60
        assert (values.ends[0], values.ends[-1]) == ("c0", "c499")

    def test_cells_are_told_as_text(self) -> None:
        cells = [None, math.nan, -0.0, 0.1, True, "a'b", datetime(2020, 1, 1)]
        assert list(map(shown, cells)) == [
            "null", "NaN", "0", "0.10000000000000001", "true", '"a\'b"', "2020-01-01T00:00:00",
        ]  # fmt: skip
