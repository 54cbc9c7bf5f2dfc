"""Selecting what to measure, from plan to report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt as rt
from retilt import pipeline
from retilt.auditing import audit
from retilt.exceptions import InputError
from retilt.outlooks import outlook
from retilt.privacy.selection import Selected
from retilt.testing import insecure_measure

SCHEMA: dict[str, Any] = {
    "a": rt.Categorical(("p", "q", "r")),
    "b": rt.Categorical(("p", "q", "r")),
    "c": rt.Categorical(("p", "q", "r")),
    "d": rt.Numeric(0, 10),
    "id": rt.Numeric(0, 10**6, integer=True),
}
BUDGETS: dict[str, dict[str, float]] = {
    "pure": {"epsilon": 3.0, "delta": 0},
    "approx": {"epsilon": 3.0, "delta": 1e-6},
    "zcdp": {"rho": 0.5},
}
UNITS: dict[str, Any] = {
    "replace-one": rt.ReplaceOneRow(),
    "add-remove": rt.AddRemoveOneRow(),
    "replace-one-person": rt.ReplaceOnePerson("id", 2),
    "add-remove-person": rt.AddRemoveOnePerson("id", 2),
}


def tables(rows: int = 1000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A private table in which b follows a, and a synthetic one in which nothing does."""
    rng = np.random.default_rng(0)
    made = [pd.DataFrame({n: rng.choice(["p", "q", "r"], rows) for n in "abc"}) for _ in range(2)]
    for table in made:
        table["d"] = rng.uniform(0, 10, rows)
    private, synthetic = made
    private["b"] = private["a"]
    private["id"] = np.arange(rows) // 2
    return private, synthetic


PRIVATE, SYNTHETIC = tables()


def workload() -> rt.Workload:
    return rt.marginals(["a", "b", "c", "d"], k=2, bins=4) + rt.means("d", by="c")


def make(
    budget: str = "approx", unit: str = "replace-one", select: int = 1, **more: Any
) -> rt.Plan:
    options: dict[str, Any] = {"rows": len(PRIVATE), "schema": SCHEMA, **BUDGETS[budget], **more}
    return rt.plan(SYNTHETIC, workload(), select=select, unit=UNITS[unit], **options)


def names(plan: rt.Plan) -> list[tuple[str, ...]]:
    return [m.columns for m in plan.measures]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_what_is_most_wrong_is_chosen_and_mended(budget: str, unit: str) -> None:
    answers = rt.measure(PRIVATE, make(budget, unit))
    assert names(answers.plan) == [("a", "b")]
    tilt = rt.fit(SYNTHETIC, answers)
    weights = np.asarray(tilt.weights)
    same = np.mean(weights * (SYNTHETIC["a"] == SYNTHETIC["b"]))
    assert same > 0.7  # 1 in the private table, a third in the synthetic one
    assert "Chosen of 7 measures" in answers.notes[0]
    assert "marginal(a, b)" in answers.notes[0]


def test_seeded_answers_choose_the_same_each_time() -> None:
    plan = make(select=3, epsilon=0.05)
    chosen = [
        names(insecure_measure(PRIVATE, plan, rng=np.random.default_rng(seed)).plan)
        for seed in (1, 1, 2, 3, 4)
    ]
    assert chosen[0] == chosen[1]
    assert len(set(map(tuple, chosen))) > 1
    exact = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(0), noise=False)
    assert ("a", "b") in names(exact.plan)
    assert len(exact.plan.measures) == 3
    assert exact.private is False
    with pytest.raises(InputError, match="were chosen by a measurement"):
        insecure_measure(PRIVATE, exact.plan, rng=np.random.default_rng(0))


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_released_are_the_sums_of_those_chosen(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = iter([6, 2])
    monkeypatch.setattr(pipeline, "noisy_max", lambda *_, **__: next(places))
    monkeypatch.setattr(pipeline, "noisy", lambda exact, _: list(exact))
    plan = make(unit=unit, select=2)
    answers = rt.measure(PRIVATE, plan)
    assert names(answers.plan) == [("a", "d"), ("d", "c")]
    assert isinstance(answers.plan.selection, Selected)
    table = pipeline.fit_for(PRIVATE, plan)
    every = dict(zip(plan.queries.keys, pipeline.sums_of(table, plan), strict=False))
    own = answers.plan.queries.keys
    assert list(answers.values[: len(own)]) == [
        every[k] * f for k, f in zip(own, answers.factors, strict=False)
    ]
    if plan.counts_rows:
        assert answers.values[-1] == len(PRIVATE) * answers.factors[-1]


def test_the_whole_way(tmp_path: Any) -> None:
    made = rt.postprocess(
        PRIVATE,
        SYNTHETIC,
        workload(),
        epsilon=3.0,
        rows=len(PRIVATE),
        schema=SCHEMA,
        select=2,
        select_share=0.4,
        seed=0,
    )
    assert len(made.post) == len(SYNTHETIC)
    assert made.plan.selection is not None
    assert made.plan.selection.budget == rt.PureDP(1.2)
    assert any("Chosen of 7" in note for note in made.tilt.notes)
    made.tilt.report(tmp_path / "report.html")
    assert "2 were chosen" in (tmp_path / "report.html").read_text(encoding="utf-8")
    made.tilt.save(tmp_path / "tilt.json")
    assert rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC).answers == made.answers


def test_before_anything_is_spent() -> None:
    plan = make(select=2)
    seen = outlook(SYNTHETIC, plan)
    assert len(seen.statistics_table()) == len(plan.queries.statistics)
    assert "2 of the 7 measures will be chosen" in seen.plan.notes[0]
    found = rt.forecast(
        SYNTHETIC,
        workload(),
        epsilons=[0.1, 1],
        rows=1000,
        schema=SCHEMA,
        select=2,
    )
    assert len(found.expected) == 2
    # Two measures share the budget, not seven.
    both = rt.plan(SYNTHETIC, workload(), epsilon=3.0, delta=1e-6, rows=1000, schema=SCHEMA)
    fewer = [e / f for e, f in zip(plan.expected, both.expected, strict=True) if e and f]
    assert np.median(fewer) < 1


def test_a_plan_with_a_choice_is_audited_at_its_largest() -> None:
    found = audit(make(select=2), draws=2000, pairs=2000, seed=0)
    assert found.holds
    assert found.share > 0.99
    assert "How measures are chosen was not tried" in found.findings[0]


def test_python_code_may_be_chosen_or_not() -> None:
    def one(batch: pa.RecordBatch) -> Any:
        return batch["d"].to_numpy() / 10

    asked = rt.marginals(["a", "b", "c"], k=2) + rt.function(one, ["d"], lower=0, upper=1)
    plan = rt.plan(SYNTHETIC, asked, epsilon=3.0, rows=1000, schema=SCHEMA, select=1)
    answers = rt.measure(PRIVATE, plan)
    assert names(answers.plan) == [("a", "b")]
    assert isinstance(answers.plan.selection, Selected)
    assert answers.plan.selection.plan_sha256 is None
    assert answers.sha256


def test_guards_stay_with_what_is_chosen() -> None:
    asked = workload() + rt.keep(rt.marginal(["c"]))
    plan = rt.plan(SYNTHETIC, asked, epsilon=3.0, rows=1000, schema=SCHEMA, select=1)
    answers = rt.measure(PRIVATE, plan)
    tilt = rt.fit(SYNTHETIC, answers)
    assert tilt.kept


def test_workloads_too_large_to_be_fitted_together_can_be_chosen_from() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"word {i}" for i in range(40)])
    wide = pd.DataFrame({f"x{i}": rng.choice(words, 4000) for i in range(7)})
    asked = rt.marginals(list(wide.columns), k=2)
    with pytest.raises(InputError, match="at most 20,000 can be fitted together"):
        rt.plan(wide, asked, epsilon=1.0, rows=4000)
    plan = rt.plan(wide, asked, epsilon=1.0, rows=4000, select=3)
    assert plan.choose == 3
    with pytest.raises(InputError, match="at most 20,000 can be fitted together"):
        rt.plan(wide, asked, epsilon=1.0, rows=4000, select=18)


def test_an_empty_synthetic_table_has_nothing_to_compare_with() -> None:
    with pytest.raises(InputError, match=r"^select: the synthetic table has no rows"):
        rt.plan(SYNTHETIC.iloc[:0], workload(), epsilon=1.0, rows=10, schema=SCHEMA, select=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": 7}, "got 7 of 7 measures: there is nothing to choose"),
        ({"select": 0}, "whole number above 0"),
        ({"select": True}, "whole number above 0"),
        ({"select": 2.0}, "whole number above 0"),
        ({"select": 2, "select_share": 1.0}, "between 0 and 1"),
        ({"select": 2, "select_share": "0.1"}, "between 0 and 1"),
        ({"select_share": 0.1}, "it goes with select"),
        ({"select": 2, "select_share": 1 - 1e-16, "epsilon": 1e-300}, "."),
    ],
)
def test_what_can_not_be_chosen_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "rows": 1000, "schema": SCHEMA, **options}
    with pytest.raises(rt.exceptions.RetiltError, match=message):
        rt.plan(SYNTHETIC, workload(), **given)


def test_numpy_numbers_are_taken() -> None:
    plan = rt.plan(SYNTHETIC, workload(), epsilon=1.0, rows=1000, schema=SCHEMA, select=np.int64(2))
    assert plan.choose == 2
