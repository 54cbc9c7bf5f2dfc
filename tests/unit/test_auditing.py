"""The audit finds what is wrong: in sensitivities, in the choice of rows, in one row's part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import retilt as rt
from retilt import pipeline
from retilt.auditing import bounds, spread
from retilt.auditing.allowance import Allowance, allowed_mu, gaussian_log_delta, implied_epsilon
from retilt.auditing.bounds import at_least, at_most, lower_bound
from retilt.auditing.distance import Metric
from retilt.auditing.rows import Inventor, shown
from retilt.exceptions import InputError
from retilt.measures import grouped, moments, partitions
from retilt.measures.base import Feature, Reading
from retilt.privacy import mechanism, sensitivity
from retilt.privacy.accounting import Calibration, calibrate_approx
from retilt.schema.columns import Column, Schema

Draw: TypeAlias = Callable[[Sequence[float]], list[int]]

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


def put(monkeypatch: pytest.MonkeyPatch, name: str, draw: Draw) -> None:
    """Noise of our own, wherever it is drawn from."""
    monkeypatch.setattr(mechanism, name, draw)
    monkeypatch.setattr(pipeline, name, draw)


class Quiet:
    """No time is spent on noise where it is not what is looked at."""

    @pytest.fixture(autouse=True)
    def _fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        for name, draw in (("gaussian", rng.normal), ("laplace", rng.laplace)):
            put(
                monkeypatch,
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
        assert found.apart is not None
        assert found.apart.low < 1 < found.apart.high < 1.2
        assert found.together.low < 1 < found.together.high
        assert found.together.draws == 200
        assert found.faults == []
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
        put(monkeypatch, "discrete_laplace", lambda scales: [0] * len(scales))
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


class TestAllowance(Quiet):
    """What is allowed comes from the budget alone: a wrong calibration has no say in it."""

    def test_a_calibration_that_lets_neighbours_lie_too_far_apart(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = sensitivity.calibrate_approx

        def wrong(*args: Any, **options: Any) -> Calibration:
            made = right(*args, **options)
            return Calibration(1.5 * made.distance, made.continuous)

        monkeypatch.setattr(sensitivity, "calibrate_approx", wrong)
        found = quick(plan_of(rt.share("b > 2")))
        assert not found.within
        assert found.share == pytest.approx(1.5, rel=1e-3)
        assert found.exit_code == 3
        assert "VIOLATED" in repr(found)

    def test_a_rho_that_is_spent_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            sensitivity,
            "calibrate_zcdp",
            lambda rho: Calibration(math.sqrt(4 * rho), math.sqrt(4 * rho)),
        )
        found = quick(plan_of(rt.share("b > 2"), rho=0.1))
        assert found.share == pytest.approx(math.sqrt(2), rel=1e-3)
        assert found.claim == pytest.approx(math.sqrt(0.2))
        assert found.exit_code == 3
        assert "VIOLATED" in repr(found)

    def test_the_draws_alone_show_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even if no neighbours were found too far apart."""
        monkeypatch.setattr(sensitivity, "calibrate_approx", lambda *_, **__: Calibration(6.0, 6.0))
        found = replace(quick(plan_of(rt.share("b > 2"))), within=True)
        assert found.bound.value > found.claim
        assert found.implied_epsilon is not None
        assert found.implied_epsilon > 1
        assert found.faults == []  # it is as wide as the plan says; the plan is wrong
        assert not found.holds

    @pytest.mark.parametrize("epsilon", [1e-5, 0.01, 1.0, 30.0, 1e6])
    @pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.1])
    def test_agrees_with_the_plan_s_calibration(self, epsilon: float, delta: float) -> None:
        mu = allowed_mu(epsilon, delta)
        made = calibrate_approx(epsilon, delta, coordinates=1)
        assert made.distance < mu
        assert mu == pytest.approx(made.continuous, rel=1e-6)

    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
    def test_agrees_with_another_library(self, epsilon: float) -> None:
        accounting = pytest.importorskip("dp_accounting")
        sigma = accounting.get_sigma_gaussian(epsilon, 1e-6)
        assert 1 / allowed_mu(epsilon, 1e-6) == pytest.approx(sigma, rel=1e-6)

    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
    def test_implied_epsilon_is_the_inverse(self, epsilon: float) -> None:
        mu = allowed_mu(epsilon, 1e-7)
        assert implied_epsilon(mu, 1e-7) == pytest.approx(epsilon, rel=1e-9)
        assert implied_epsilon(0.0, 1e-7) == 0
        assert gaussian_log_delta(1e-200, 1.0) == -math.inf

    def test_what_is_written_and_what_is_stored_are_both_kept(self) -> None:
        for value in (0.1, 0.3, 1.1):
            exact = min(Fraction(value), Fraction(str(value)))
            assert Allowance.of(rt.PureDP(value)).distance == exact
            assert Allowance.of(rt.ZCDP(value)).distance == 2 * exact

    def test_a_bound_must_not_pass_the_budget(self) -> None:
        assert Allowance.of(rt.ZCDP(0.5)).keeps(1.0)
        assert not Allowance.of(rt.ZCDP(0.5)).keeps(math.nextafter(1.0, 2))
        approx = Allowance.of(rt.ApproxDP(1.0, 1e-6))
        assert approx.keeps(0.999 * approx.claim)
        assert not approx.keeps(1.001 * approx.claim)


def gaussian(factor: float = 1.0) -> Draw:
    """Gaussian noise, quickly; of another scale than asked for."""
    rng = np.random.default_rng(1)
    return lambda scales: np.rint(rng.normal(0, factor * np.array(scales))).astype(int).tolist()


class TestSpread(Quiet):
    def plan(self, **budget: float) -> rt.Plan:
        return plan_of(rt.marginals(["sex", "race"]) + rt.means("a", by="sex"), **budget)

    @pytest.mark.parametrize("budget", [{}, {"rho": 0.001}, {"epsilon": 0.1, "delta": 0.0}])
    def test_a_cut_of_ten_percent_is_seen_however_small_the_claim(
        self, budget: dict[str, float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = self.plan(**budget)
        assert rt.audit(plan, draws=5_000, pairs=300, seed=0).holds
        name = f"discrete_{'laplace' if plan.noise.norm == 1 else 'gaussian'}"
        draw = getattr(mechanism, name)
        put(monkeypatch, name, lambda scales: draw([0.9 * s for s in scales]))
        found = rt.audit(plan, draws=5_000, pairs=300, seed=0)
        assert found.within
        assert found.bound.value < found.claim  # at these claims too little to be seen there
        assert found.apart is not None
        assert 0.85 < found.apart.low < 0.9 < found.apart.high < 0.95
        assert "as wide" in found.apart.faults[0]
        assert found.exit_code == 3
        assert "WRONG: where the plan's scale is" in found.findings[2]
        assert "does NOT hold" in found.findings[-1]

    def test_what_measure_adds_is_drawn_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The mechanism is as it should be, and the function that measure calls is not."""
        monkeypatch.setattr(pipeline, "discrete_gaussian", gaussian(0.9))
        found = rt.audit(self.plan(), draws=5_000, pairs=300, seed=0)
        assert found.apart is not None
        assert not found.apart.faults
        assert len(found.together.faults) >= 1
        assert not found.holds

    def test_that_one_sum_gets_no_noise_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        noise = gaussian()
        monkeypatch.setattr(pipeline, "discrete_gaussian", lambda scales: [*noise(scales)[:-1], 0])
        plan = self.plan()
        faults = " ".join(quick(plan).together.faults)
        assert f"sum {len(plan.noise.scales)} is at most 0.00% as wide" in faults

    @pytest.mark.parametrize(
        ("shared", "words"),
        [
            (lambda z: z.__setitem__(4, z[1]), "sums 2 and 5 share noise (correlation 1.000)"),
            (lambda z: z.__setitem__(slice(None), z[:1]), "hangs together"),
            (lambda z: z.__isub__(z.mean()), "hangs together"),
        ],
        ids=["two sums", "all sums", "noise that cancels"],
    )
    @pytest.mark.parametrize("budget", [{}, {"epsilon": 1.0, "delta": 0.0}], ids=["L2", "L1"])
    def test_noise_that_sums_share_is_seen(
        self,
        shared: Callable[[Any], object],
        words: str,
        budget: dict[str, float],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        rng = np.random.default_rng(2)
        name = "laplace" if budget else "gaussian"
        draw = rng.laplace if budget else rng.normal

        def broken(scales: Sequence[float]) -> list[int]:
            standard = draw(size=len(scales))
            shared(standard)
            return np.rint(standard * np.array(scales)).astype(int).tolist()

        monkeypatch.setattr(pipeline, f"discrete_{name}", broken)
        found = rt.audit(self.plan(**budget), draws=2_000, pairs=300, seed=0)
        assert words in " ".join(found.together.faults)
        assert not found.holds

    def test_noise_that_comes_back_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the same noise for every release the difference of two is free of it."""
        kept = gaussian()([20_000.0] * 100)
        monkeypatch.setattr(
            pipeline,
            "discrete_gaussian",
            lambda scales: [round(z * s / 20_000) for z, s in zip(kept, scales, strict=False)],
        )
        assert "comes back in the next draw" in " ".join(quick(self.plan()).together.faults)

    def test_a_sum_that_saturates_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The exact integers of the trial are larger than 64 bits."""
        right = pipeline.noisy

        def clipped(exact: Sequence[int], noise: Any) -> list[int]:
            return [max(-(2**63), min(2**63 - 1, v)) for v in right(exact, noise)]

        monkeypatch.setattr(spread, "noisy", clipped)
        assert not quick(self.plan()).holds

    def test_measure_adds_its_noise_by_the_function_that_is_tried(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "noisy", lambda exact, _: [7 for _ in exact])
        answers = rt.measure(SYNTHETIC, self.plan())
        assert set(answers.values) == {7}

    @pytest.mark.parametrize("norm", [1, 2])
    def test_faultless_noise_is_seldom_accused(self, norm: int) -> None:
        """At a level of 1 % a kind of check, of 400 tallies fewer than 40 (20 are expected)."""
        rng = np.random.default_rng(3)
        draw = rng.laplace if norm == 1 else rng.normal
        accused = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spread, "LEVEL", 0.01)
            for _ in range(400):
                tally = spread.Tally([2e4, 2e4, 3e4], [0, 1, 2], norm)
                tally.add(draw(size=(40, 3)))
                tally.add(draw(size=(11, 3)))
                accused += bool(tally.result().faults)
        assert 4 < accused < 40

    def test_the_bounds_hold_the_true_scale(self) -> None:
        for norm in (1, 2):
            tally = spread.Tally([1e4] * 5, range(5), norm)
            draw = (
                np.random.default_rng(4).laplace if norm == 1 else np.random.default_rng(4).normal
            )
            tally.add(draw(scale=1.3, size=(20_000, 5)))
            found = tally.result()
            assert 1.27 < found.low < 1.3 < found.high < 1.33
            assert found.draws == 20_000
            assert found.faults == ()


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
        assert told["noise"]["scale"]["neighbours"]["draws"] == 1_000
        assert told["noise"]["scale"]["as_measured"]["at_least"] < 1
        assert told["noise"]["faults"] == []
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
        assert found.bound.draws == min(100_000, 300_000 // found.moved)

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
