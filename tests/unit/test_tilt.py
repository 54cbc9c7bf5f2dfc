"""The whole job on small tables: what comes out is what was promised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import retilt as rt
from retilt.candidates import means_of
from retilt.exceptions import (
    FormatError,
    InputError,
    OutputExistsError,
    RowCountError,
    WorkloadError,
)
from retilt.measures.base import Design, Indicators
from retilt.resample import sample_rows
from retilt.testing import insecure_measure

SCHEMA = {
    "a": rt.Numeric(-5.0, 5.0),
    "b": rt.Numeric(-5.0, 5.0),
    "sex": rt.Categorical(("F", "M")),
}


def table(rows: int, seed: int, slope: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=rows)
    b = slope * a + rng.normal(size=rows)
    return pd.DataFrame({"a": a, "b": b, "sex": np.where(rng.random(rows) < 0.4, "F", "M")})


REAL, SYNTHETIC = table(20_000, 1, 0.8), table(10_000, 2, 0.1)
WORKLOAD = rt.correlation(["a", "b"]) + rt.marginal(["sex"])


def make_plan(workload: rt.Workload = WORKLOAD, **options: Any) -> rt.Plan:
    options = {"epsilon": 1.0, "rows": len(REAL), "schema": SCHEMA, **options}
    return rt.plan(SYNTHETIC, workload, **options)


def answered(plan: rt.Plan, seed: int = 0, **options: Any) -> rt.Answers:
    return insecure_measure(REAL, plan, rng=np.random.default_rng(seed), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"basis": "paper"},
        {"delta": 0},
        {"epsilon": None, "rho": 0.1},
        {"unit": "add-remove", "delta": 1e-9},
        {"unit": rt.AddRemoveOneRow(), "delta": 0},
    ],
)
def test_every_mechanism_brings_the_statistics_to_the_truth(options: dict[str, Any]) -> None:
    plan = make_plan(**options)
    exact = {r["statistic"]: r["estimate"] for r in answered(plan, noise=False).statistics_table()}
    tilt = rt.fit(SYNTHETIC, answered(plan))
    assert tilt.exit_code == 0
    assert max(tilt.certificate.values()) < 1e-6
    for row in tilt.statistics_table():
        truth = exact[row["statistic"]]
        assert abs(row["target"] - truth) < 6 * row["standard_error"]
        assert abs(row["after"] - truth) <= 6 * row["standard_error"] + 0.01
    assert tilt.misfit_after < tilt.misfit_before


def test_the_standard_error_is_that_of_repeated_releases() -> None:
    plan = make_plan(unit="add-remove", delta=1e-9)
    tables = [answered(plan, seed).statistics_table() for seed in range(300)]
    found = np.std([[r["estimate"] for r in t] for t in tables], axis=0)
    said = np.mean([[r["standard_error"] for r in t] for t in tables], axis=0)
    moving = said > 0
    assert np.allclose(found[moving], said[moving], rtol=0.2)


def test_a_sample_is_rows_of_the_synthetic_table_in_its_order() -> None:
    tilt = rt.fit(SYNTHETIC, answered(make_plan()))
    before = SYNTHETIC.copy(deep=True)
    post = tilt.sample(seed=3)
    assert list(post.columns) == list(SYNTHETIC.columns)
    assert list(post.dtypes) == list(SYNTHETIC.dtypes)
    assert post.index.equals(pd.RangeIndex(len(SYNTHETIC)))
    chosen = tilt.rows(seed=3)
    assert np.all(np.diff(chosen) >= 0)
    pd.testing.assert_frame_equal(post, SYNTHETIC.iloc[chosen].reset_index(drop=True))
    pd.testing.assert_frame_equal(post, tilt.sample(seed=3))
    pd.testing.assert_frame_equal(SYNTHETIC, before)
    assert [len(tilt.sample(n, seed=0)) for n in (0, 1, 100_000)] == [0, 1, 100_000]
    mixed = tilt.sample(seed=3, shuffle=True)
    assert not mixed.equals(post)
    assert sorted(mixed["a"]) == sorted(post["a"])
    assert len(tilt.sample(500, method="multinomial", seed=0)) == 500
    for wrong in ({"seed": -1}, {"seed": True}, {"rows": -1}, {"method": "best"}):
        with pytest.raises(InputError):
            tilt.sample(**wrong)


@pytest.mark.parametrize("kind", [pl.from_pandas, pa.Table.from_pandas])
def test_other_frames_come_back_as_they_came(kind: Any) -> None:
    frame = kind(SYNTHETIC)
    tilt = rt.fit(frame, answered(make_plan()))
    post = tilt.sample(seed=0)
    assert type(post) is type(frame)
    assert post.schema == frame.schema
    expected = rt.fit(SYNTHETIC, answered(make_plan()))
    np.testing.assert_array_equal(tilt.weights, expected.weights)


def test_weights_have_mean_one_and_multiply_the_base_weights() -> None:
    base = np.where(np.arange(len(SYNTHETIC)) % 2 == 0, 3.0, 0.0)
    weighted = SYNTHETIC.assign(w=base)
    by_name = rt.fit(weighted, answered(make_plan()), base_weights="w")
    by_array = rt.fit(SYNTHETIC, answered(make_plan()), base_weights=base)
    np.testing.assert_array_equal(by_name.weights, by_array.weights)
    assert by_name.weights.mean() == pytest.approx(1)
    assert not by_name.weights.flags.writeable
    assert np.all(by_name.weights[1::2] == 0)
    for wrong in (base[:-1], -base - 1, np.full(len(base), np.nan), ["x"] * len(base), base * 0):
        with pytest.raises(InputError):
            rt.fit(SYNTHETIC, answered(make_plan()), base_weights=wrong)


def test_more_candidate_rows_than_were_planned_with() -> None:
    many = table(30_000, 5, 0.1)
    tilt = rt.fit(many, answered(make_plan()))
    assert tilt.exit_code == 0
    assert len(tilt.sample(10_000, seed=0)) == 10_000


def test_files_round_trip(tmp_path: Path) -> None:
    plan = make_plan()
    plan.save(tmp_path / "plan.json")
    loaded = rt.load_plan(tmp_path / "plan.json")
    assert (loaded, loaded.sha256) == (plan, plan.sha256)
    answers = rt.measure(REAL, tmp_path / "plan.json")
    answers.save(tmp_path / "answers.json")
    again = rt.load_answers(tmp_path / "answers.json")
    assert again.to_dict() == answers.to_dict()
    other = rt.measure(SYNTHETIC.sample(len(REAL), replace=True, random_state=0), plan)
    one, two = answers.to_dict(), other.to_dict()
    assert one.pop("values") != two.pop("values")
    assert one == two
    tilt = rt.fit(SYNTHETIC, tmp_path / "answers.json")
    tilt.save(tmp_path / "tilt.json")
    back = rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC)
    np.testing.assert_allclose(back.weights, tilt.weights, rtol=1e-9)
    assert (back.status, back.statistics_table()) == (tilt.status, tilt.statistics_table())
    assert not back.moved
    assert rt.load_tilt(tmp_path / "tilt.json", REAL).moved
    with pytest.raises(FormatError):
        rt.load_tilt(tmp_path / "answers.json", SYNTHETIC)
    content = json.loads((tmp_path / "tilt.json").read_text(encoding="utf-8"))
    content["multipliers"] = content["multipliers"][:-1]
    (tmp_path / "bad.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="numbers"):
        rt.load_tilt(tmp_path / "bad.json", SYNTHETIC)


def test_frames_of_results_have_the_documented_columns() -> None:
    plan = make_plan()
    answers = answered(plan)
    tilt = rt.fit(pl.from_pandas(SYNTHETIC), answers)
    assert list(answers.to_frame().columns) == ["statistic", "estimate", "standard_error", "flag"]
    assert list(plan.to_frame().columns) == ["statistic", "expected_standard_error"]
    frame = tilt.to_frame()
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == [
        "statistic", "before", "target", "standard_error", "after", "reachable", "flag",
    ]  # fmt: skip
    assert frame["statistic"].to_list()[:2] == ["corr(a, b)", "cell(sex=F)"]


def test_one_cell_without_rows_among_many_is_not_passed_over() -> None:
    rng = np.random.default_rng(0)
    values = np.array([f"v{i}" for i in range(150)])
    real = pd.DataFrame({"c": rng.choice(values, 50_000)})
    synthetic = pd.DataFrame({"c": rng.choice(values[values != "v7"], 20_000)})
    plan = rt.plan(
        synthetic,
        rt.marginal(["c"]),
        epsilon=1,
        rows=len(real),
        schema={"c": rt.Categorical(tuple(values))},
    )
    assert any("1 of 152 cells" in n or "3 of 152 cells" in n for n in plan.notes)
    tilt = rt.fit(synthetic, insecure_measure(real, plan, rng=rng))
    assert tilt.exit_code == 4
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert "cell(c=v7)" in tilt.unmet
    assert any("cell(c=v7)" in note for note in tilt.shortfalls)


def test_what_agrees_already_is_left_alone() -> None:
    same = table(20_000, 9, 0.8)
    plan = make_plan(rt.correlation(["a", "b"]), epsilon=0.02)
    tilt = rt.fit(same, answered(plan))
    assert tilt.exit_code == 0
    assert np.all(tilt.weights == tilt.weights[0])
    assert "left as they were" in tilt.advice


def test_a_spread_out_of_reach_is_named() -> None:
    narrow = SYNTHETIC.assign(a=SYNTHETIC["a"].clip(-0.2, 0.2))
    tilt = rt.fit(narrow, answered(make_plan(rt.moments(["a", "b"]))))
    assert tilt.exit_code == 4
    assert any(s.startswith("sd(a)") for s in tilt.shortfalls)


def test_the_floor_of_the_effective_sample_size_is_kept() -> None:
    tilt = rt.fit(SYNTHETIC, answered(make_plan()), min_ess=9_500)
    assert tilt.ess >= 9_500 * (1 - 1e-9)
    with pytest.raises(InputError, match="min_ess"):
        rt.fit(SYNTHETIC, answered(make_plan()), min_ess=1e9)


def test_shared_queries_are_measured_once() -> None:
    """For a measure that hardly matters nothing is asked louder."""
    both = make_plan(
        rt.correlation(["a", "b"]) + rt.moments(["b"], weight=1e-6) + rt.marginal(["sex"])
    )
    assert both.queries.size == 5 + 4
    assert any("measured once" in note for note in both.notes)
    # In the box: a ball would be the first measure's alone.
    box = make_plan(rt.correlation(["a", "b"], clip={}) + rt.marginal(["sex"]))
    assert both.noise.sensitivity == box.noise.sensitivity


def test_names_with_commas_can_be_told_apart() -> None:
    frame = pd.DataFrame(
        np.random.default_rng(0).random((50, 4)), columns=["a", "b, c", "a, b", "c"]
    )
    plan = rt.plan(
        frame,
        rt.correlation(["a", "b, c"]) + rt.correlation(["a, b", "c"]),
        epsilon=1,
        rows=50,
        schema={n: rt.Numeric(0.0, 1.0) for n in frame.columns},
    )
    assert plan.queries.statistics == ('corr(a, "b, c")', 'corr("a, b", c)')


def test_measure_refuses_what_was_not_planned() -> None:
    plan = make_plan()
    with pytest.raises(RowCountError, match="19,999"):
        rt.measure(REAL.iloc[1:], plan)
    with pytest.raises(WorkloadError, match="'sex'"):
        rt.measure(REAL.drop(columns="sex"), plan)
    with pytest.raises(InputError, match="expected the private table"):
        rt.measure(plan, REAL)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected the"):
        rt.fit(answered(plan), SYNTHETIC)
    with pytest.raises(WorkloadError, match="got a str"):
        make_plan("age")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="no measure"):
        make_plan(rt.Workload())
    with pytest.raises(InputError, match="rows"):
        make_plan(rows=None)


def test_a_plan_that_could_not_be_fitted_is_refused() -> None:
    rng = np.random.default_rng(0)
    wide = pd.DataFrame({c: [f"v{i}" for i in rng.integers(0, 170, 90_000)] for c in "xy"})
    with pytest.raises(InputError, match="20,000"):
        rt.plan(wide, rt.marginal(["x", "y"]), epsilon=1, rows=90_000)


def test_insecure_answers_say_so_everywhere() -> None:
    answers = answered(make_plan())
    assert not answers.private
    assert answers.statement.startswith("NOT PRIVATE")
    assert answers.to_dict()["private"] is False
    assert answers.privacy["private"] is False


def test_postprocess_does_all_of_it() -> None:
    kept: list[rt.Answers] = []
    result = rt.postprocess(
        REAL, SYNTHETIC, WORKLOAD, epsilon=1, schema=SCHEMA, size=5_000, seed=0,
        generator=rt.Generator(rt.ApproxDP(3, 1e-9), "add-remove"), on_answers=kept.append,
    )  # fmt: skip
    assert len(result.post) == 5_000
    assert kept == [result.answers]
    assert result.plan.rows == len(REAL)
    assert result.answers.private
    assert result.answers.privacy["total"]["epsilon"] == 7
    score = rt.evaluate(REAL, SYNTHETIC, result.post, columns=["a", "b"], schema=SCHEMA)
    assert score.raw.improvement is not None
    assert score.raw.improvement > 0.8
    assert score.to_dict()["private"] is False
    with pytest.raises(InputError, match="no rows"):
        rt.postprocess(REAL.iloc[:0], SYNTHETIC, WORKLOAD, epsilon=1, schema=SCHEMA)


def test_raw_and_clamped_correlations_differ_only_outside_the_bounds() -> None:
    tight = {**SCHEMA, "a": rt.Numeric(-1.0, 1.0)}
    inside = rt.evaluate(REAL, SYNTHETIC, SYNTHETIC, columns=["a", "b"], schema=SCHEMA)
    assert inside.raw == inside.clamped
    assert inside.raw.improvement == 0
    outside = rt.evaluate(REAL, SYNTHETIC, SYNTHETIC, columns=["a", "b"], schema=tight)
    assert outside.raw.before == pytest.approx(inside.raw.before)
    assert outside.clamped.before != pytest.approx(outside.raw.before, rel=1e-3)
    flat = SYNTHETIC.assign(a=0.0)
    assert rt.evaluate(REAL, SYNTHETIC, flat, columns=["a", "b"], schema=SCHEMA).undefined == ("a",)


def test_the_columns_that_go_with_a_target() -> None:
    assert rt.top_correlated(table(5_000, 3, 0.9), "b", top=2, schema=SCHEMA) == ["b", "a"]
    with pytest.raises(InputError):
        rt.top_correlated(SYNTHETIC, "b", top=1)
    with pytest.raises(WorkloadError, match="'z'"):
        rt.top_correlated(SYNTHETIC, "z")


# --- how a fit ends ----------------------------------------------------------------------

FEW_REAL, FEW = REAL.iloc[:4000], SYNTHETIC.iloc[:3000]


def few_answers(workload: rt.Workload = WORKLOAD, **options: Any) -> rt.Answers:
    options = {"epsilon": 2.0, "rows": len(FEW_REAL), "schema": SCHEMA, **options}
    plan = rt.plan(FEW, workload, **options)
    return insecure_measure(FEW_REAL, plan, rng=np.random.default_rng(0))


FEW_ANSWERS = few_answers()


def test_a_fit_that_follows_the_answers_has_converged() -> None:
    tilt = rt.fit(FEW, FEW_ANSWERS)
    assert tilt.status is rt.Status.CONVERGED
    assert tilt.advice == "The weights follow the answers as far as their noise allows."
    assert tilt.exit_code == 0
    assert tilt.unmet == ()
    assert tilt.shortfalls == ()
    assert tilt.notes == FEW_ANSWERS.plan.notes
    assert tilt.certificate["gap"] < 1e-12
    assert tilt.certificate["kkt_residual"] < 1e-9
    assert tilt.misfit_after < 1 < tilt.misfit_before
    assert tilt.ess == pytest.approx(tilt.weights.sum() ** 2 / (tilt.weights**2).sum())


def test_the_certificate_would_notice_other_weights() -> None:
    tilt = rt.fit(FEW, FEW_ANSWERS)
    wrong = replace(tilt.solution, after=tilt.solution.before)
    assert wrong.gap() > 1e-3
    assert wrong.kkt_residual() > 1e-3


@pytest.mark.parametrize(
    ("share", "code"), [(0.0001, 0), (0.3, 0), (0.6, 0), (0.75, 4), (0.95, 4), (1.0, 4)]
)
def test_the_users_floor_is_kept_and_told(share: float, code: int) -> None:
    """Stopping at the floor is success exactly where every statistic is met all the same."""
    free = rt.fit(FEW, FEW_ANSWERS)
    tilt = rt.fit(FEW, FEW_ANSWERS, min_ess=share * len(FEW))
    assert tilt.ess >= share * len(FEW) * (1 - 1e-9)
    assert tilt.exit_code == code
    if share * len(FEW) < free.ess:
        assert tilt.status is rt.Status.CONVERGED
        np.testing.assert_allclose(tilt.weights, free.weights, rtol=1e-9)
        return
    assert tilt.status is rt.Status.FLOOR_REACHED
    assert "lower min_ess" in tilt.advice
    assert bool(tilt.unmet) is (code == 4)
    assert any(n.startswith("Not met, over") for n in tilt.notes) is (code == 4)


@pytest.mark.parametrize("min_ess", [0, -1, 3001, float("nan"), float("inf"), True, "100"])
def test_a_floor_that_makes_no_sense_is_refused(min_ess: Any) -> None:
    with pytest.raises(InputError, match="min_ess: got"):
        rt.fit(FEW, FEW_ANSWERS, min_ess=min_ess)


def test_the_default_floor_leaves_twenty_rows_a_parameter() -> None:
    tilt = rt.fit(FEW, FEW_ANSWERS)
    chosen = next(p for p in tilt.solution.path if p.chosen)
    assert chosen.floor == pytest.approx(min(20 * chosen.trace, len(FEW) / 4), rel=0.2)
    assert tilt.ess == pytest.approx(chosen.ess)


def test_each_step_is_told() -> None:
    seen: list[Any] = []
    tilt = rt.fit(FEW, FEW_ANSWERS, on_step=seen.append)
    assert seen[0].eta == np.inf
    assert seen[0].ess == pytest.approx(len(FEW))
    assert len(seen) > 5
    assert {p.eta for p in seen} >= {p.eta for p in tilt.solution.path if not p.chosen}


def test_a_mean_out_of_reach_is_named() -> None:
    high = FEW[FEW["a"] > 1.5]
    tilt = rt.fit(high, few_answers(rt.moments(["a", "b"])))
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert tilt.exit_code == 4
    assert "cannot reach" in tilt.advice
    sentence = next(s for s in tilt.shortfalls if s.startswith("mean(a)"))
    assert "but all synthetic rows lie between 1.504 and" in sentence
    assert sentence in tilt.notes
    rows = {r["statistic"]: r for r in tilt.statistics_table()}
    assert rows["mean(a)"]["reachable"] is False
    assert "mean(a)" in tilt.unmet


def test_rows_without_base_weight_are_no_support() -> None:
    """A cell whose only rows weigh nothing is out of reach."""
    base = np.where(FEW["sex"] == "F", 0.0, 1.0)
    tilt = rt.fit(FEW, FEW_ANSWERS, base_weights=base)
    assert tilt.exit_code == 4
    assert any(s.startswith("cell(sex=F): measured") for s in tilt.shortfalls)
    assert np.all(tilt.weights[base == 0] == 0)


def test_an_infeasible_fit_does_no_harm() -> None:
    """Asked for what it can't reach, it ends no farther from the answers than it began."""
    narrow = FEW.assign(a=FEW["a"].clip(-0.05, 0.05))
    tilt = rt.fit(narrow, few_answers(rt.moments(["a", "b"]), epsilon=50.0))
    table = tilt.statistics_table()
    assert tilt.exit_code == 4
    assert tilt.ess > 10
    off = {w: sum(abs(r[w] - r["target"]) for r in table) for w in ("before", "after")}
    assert off["after"] <= off["before"] + 1e-9


def test_reachable_statistics_are_told_as_such() -> None:
    tilt = rt.fit(FEW, FEW_ANSWERS)
    assert all(r["reachable"] for r in tilt.statistics_table())
    assert {type(r["reachable"]) for r in tilt.statistics_table()} == {bool}


def test_a_table_that_agrees_keeps_its_base_weights() -> None:
    base = np.linspace(0.5, 1.5, len(FEW_REAL))
    tilt = rt.fit(FEW_REAL, few_answers(epsilon=0.05), base_weights=base)
    assert tilt.exit_code == 0
    assert tilt.status is rt.Status.CONVERGED
    np.testing.assert_allclose(tilt.weights, base, rtol=1e-12)
    assert tilt.advice.startswith("The weights were left as they were")


def test_weights_are_base_times_an_exponential_of_the_queries() -> None:
    """The same factor for rows alike in the measured columns, whatever their base weight."""
    base = np.random.default_rng(0).uniform(0, 2, len(FEW))
    base[::3] = 0
    double = pd.concat([FEW, FEW], ignore_index=True)
    both = np.concatenate([base, 2 * base])
    tilt = rt.fit(double, FEW_ANSWERS, base_weights=both)
    assert np.all(tilt.weights[both == 0] == 0)
    used = base > 0
    first, second = tilt.weights[: len(FEW)][used], tilt.weights[len(FEW) :][used]
    np.testing.assert_allclose(second, 2 * first, rtol=1e-9)
    # Three rows for one: a table of rows repeated is the table with those base weights.
    thrice = rt.fit(FEW, FEW_ANSWERS, base_weights=3 * base)
    np.testing.assert_allclose(thrice.weights[used] / thrice.weights[used].mean(),
                               first / first.mean(), rtol=1e-5)  # fmt: skip


def test_base_weights_of_any_column_kind(tmp_path: Path) -> None:
    weights = np.arange(1, len(FEW) + 1)
    expected = rt.fit(FEW, FEW_ANSWERS, base_weights=weights).weights
    named = FEW.assign(w=weights)
    for frame in (named, pl.from_pandas(named), pa.Table.from_pandas(named)):
        found = rt.fit(frame, FEW_ANSWERS, base_weights="w").weights
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        rt.fit(FEW, FEW_ANSWERS, base_weights=[str(w) for w in weights]).weights, expected
    )
    named.to_csv(tmp_path / "s.csv", index=False)
    found = rt.fit(tmp_path / "s.csv", FEW_ANSWERS, base_weights="w").weights
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_missing_base_weights_are_refused() -> None:
    named = FEW.assign(w=[None, *range(1, len(FEW))])
    with pytest.raises(InputError, match="missing or infinite"):
        rt.fit(named, FEW_ANSWERS, base_weights="w")
    with pytest.raises(WorkloadError, match="no column 'v'; it has 'a', 'b', 'sex', 'w'"):
        rt.fit(named, FEW_ANSWERS, base_weights="v")
    with pytest.raises(InputError, match="expected a number for each row"):
        rt.fit(named, FEW_ANSWERS, base_weights=5)


def test_tables_that_cannot_be_weighed_are_refused() -> None:
    with pytest.raises(WorkloadError, match="the synthetic table has no column 'sex'"):
        rt.fit(FEW.drop(columns="sex"), FEW_ANSWERS)
    with pytest.raises(InputError, match="no rows"):
        rt.fit(FEW.iloc[:0], FEW_ANSWERS)
    with pytest.raises(InputError, match="says numeric"):
        rt.fit(FEW.assign(a=pd.Timestamp("2020-01-01")), FEW_ANSWERS)
    with pytest.raises(FormatError, match="No such file"):
        rt.fit(FEW, "none.json")


def test_one_row_and_rows_all_alike() -> None:
    for frame in (FEW.iloc[:1], FEW.iloc[[0] * 50]):
        tilt = rt.fit(frame, FEW_ANSWERS)
        np.testing.assert_allclose(tilt.weights, 1)
        assert len(tilt.sample(7, seed=0)) == 7
        assert tilt.exit_code == 4


def test_the_order_of_the_rows_is_that_of_the_weights() -> None:
    order = np.random.default_rng(3).permutation(len(FEW))
    one, other = rt.fit(FEW, FEW_ANSWERS), rt.fit(FEW.iloc[order], FEW_ANSWERS)
    np.testing.assert_allclose(other.weights, one.weights[order], rtol=1e-6)


# --- samples and weights -----------------------------------------------------------------

TILT = rt.fit(FEW, FEW_ANSWERS)


def test_over_generated_candidates_come_back_to_the_wanted_size() -> None:
    many = table(9_000, 5, 0.1)
    tilt = rt.fit(many, FEW_ANSWERS)
    assert len(tilt.weights) == 9_000
    assert tilt.weights.mean() == pytest.approx(1)
    post = tilt.sample(len(FEW), seed=0)
    assert len(post) == len(FEW)
    for row in tilt.statistics_table():
        assert abs(row["after"] - row["target"]) < 4 * row["standard_error"]
    assert post["a"].corr(post["b"]) == pytest.approx(tilt.to_frame()["after"][0], abs=0.02)


@pytest.mark.parametrize("rows", [0, 1, 2999, 3000, 30_000])
def test_systematic_samples_take_floor_or_ceil(rows: int) -> None:
    times = np.bincount(TILT.rows(rows, seed=1), minlength=len(FEW))
    expected = rows * TILT.weights / len(FEW)
    assert times.sum() == rows
    assert np.all(times >= np.floor(expected - 1e-6))
    assert np.all(times <= np.ceil(expected + 1e-6))


def test_a_systematic_sample_keeps_the_statistics_better() -> None:
    target = TILT.to_frame()["after"][0]

    def off(method: Any) -> float:
        samples = [TILT.sample(seed=s, method=method) for s in range(20)]
        return float(np.mean([abs(x["a"].corr(x["b"]) - target) for x in samples]))

    assert off("systematic") < 0.6 * off("multinomial")


def test_balanced_samples_keep_answers_and_other_columns() -> None:
    """To about a row."""
    codes = np.arange(len(FEW)) % 7
    frame = FEW.assign(day=[f"d{c}" for c in codes], number=[f"n{i}" for i in range(len(FEW))])
    tilt = rt.fit(frame, TILT.answers)
    weights = tilt.weights / len(frame)

    days = [Indicators(codes.astype(np.int32), 7)]

    def off(method: Any) -> list[float]:
        """Of what was asked, and of the days, in rows."""
        drawn = [tilt.rows(1000, method=method, seed=seed) for seed in range(3)]
        shares = [np.bincount(rows, minlength=len(frame)) / 1000 - weights for rows in drawn]
        kinds: list[Sequence[Design]] = [tilt._designs(), days]
        return [
            1000 * float(np.sqrt(np.mean([means_of(kind, s) ** 2 for s in shares])))
            for kind in kinds
        ]

    (asked, other), (asked_before, other_before) = off("balanced"), off("systematic")
    assert asked < min(1, asked_before / 1.5)
    assert other < other_before / 2


def test_balanced_samples_need_no_other_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retilt.tilt._OTHERS", 0)
    frame = FEW.assign(day=1.5)
    tilt = rt.fit(frame, TILT.answers)
    assert tilt.rows(70, method="balanced", seed=0).size == 70
    guarded = rt.fit(FEW, TILT.answers, keep=rt.keep(rt.marginal(["a"])))
    assert guarded.rows(70, method="balanced", seed=0).size == 70


def test_systematic_samples_go_along_likeness() -> None:
    """Neighbours in the drawing are alike in what was measured, whatever the table's order."""
    target, n = TILT.to_frame()["after"][0], 300

    def off(samples: list[Any]) -> float:
        return float(np.mean([abs(x["a"].corr(x["b"]) - target) for x in samples]))

    along = off([TILT.sample(n, seed=s) for s in range(40)])
    rows = [sample_rows(TILT.weights, n, seed=s) for s in range(40)]
    assert along < 0.7 * off([FEW.iloc[r] for r in rows])


def test_multinomial_samples_follow_the_weights() -> None:
    times = np.bincount(TILT.rows(3_000_000, method="multinomial", seed=0), minlength=len(FEW))
    expected = 1000 * TILT.weights
    assert np.abs((times - expected) / np.sqrt(expected + 1)).max() < 6


def test_an_empty_sample_keeps_columns_and_types() -> None:
    post = TILT.sample(0, seed=0)
    assert list(post.dtypes) == list(FEW.dtypes)
    assert len(post) == 0


def test_seeds() -> None:
    for method in ("systematic", "balanced", "multinomial"):
        for shuffle in (False, True):
            options: dict[str, Any] = {"method": method, "shuffle": shuffle}
            first = TILT.rows(500, seed=4, **options)
            np.testing.assert_array_equal(first, TILT.rows(500, seed=4, **options))
            np.testing.assert_array_equal(first, TILT.rows(500, seed=np.int64(4), **options))
            assert not np.array_equal(first, TILT.rows(500, seed=5, **options))
            assert not np.array_equal(TILT.rows(500, **options), TILT.rows(500, **options))
    plain = TILT.rows(500, seed=4)
    mixed = TILT.rows(500, seed=4, shuffle=True)
    assert not np.array_equal(plain, mixed)
    np.testing.assert_array_equal(plain, np.sort(mixed))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rows": -1}, "rows: got -1"),
        ({"rows": 2**31}, "rows: got"),
        ({"rows": 1.0}, r"rows: got 1\.0"),
        ({"rows": True}, "rows: got True"),
        ({"method": "cube"}, "method: got 'cube'"),
        ({"seed": 1.5}, r"seed: got 1\.5"),
        ({"seed": "7"}, "seed: got '7'"),
    ],
)
def test_samples_that_cannot_be_drawn_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        TILT.sample(**options)


READERS = {
    ".csv": lambda p: pd.read_csv(p),
    ".csv.gz": lambda p: pd.read_csv(p),
    ".tsv": lambda p: pd.read_csv(p, sep="\t"),
    ".parquet": pd.read_parquet,
    ".arrow": pd.read_feather,
    ".feather": pd.read_feather,
}


@pytest.mark.parametrize("suffix", READERS)
def test_weights_in_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    TILT.write_weights(path)
    found = READERS[suffix](path)
    assert list(found.columns) == ["weight"]
    assert found["weight"].dtype == np.float64
    np.testing.assert_array_equal(found["weight"], TILT.weights)
    assert found["weight"].mean() == pytest.approx(1)
    with pytest.raises(OutputExistsError):
        TILT.write_weights(path)
    TILT.write_weights(str(path), force=True)


@pytest.mark.parametrize("suffix", READERS)
def test_samples_in_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"post{suffix}"
    TILT.write_sample(path, 400, seed=2, method="multinomial", shuffle=True)
    found = READERS[suffix](path)
    expected = TILT.sample(400, seed=2, method="multinomial", shuffle=True)
    pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(OutputExistsError):
        TILT.write_sample(path)
    TILT.write_sample(path, 3, seed=0, force=True)
    assert len(READERS[suffix](path)) == 3


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for write in (TILT.write_weights, TILT.write_sample):
        with pytest.raises(InputError, match="must end in one of"):
            write(tmp_path / "out.xlsx")
        with pytest.raises(InputError, match="does not exist"):
            write(tmp_path / "nowhere" / "out.csv")
    assert list(tmp_path.iterdir()) == []


# --- tilt files --------------------------------------------------------------------------


def saved(tilt: rt.Tilt, folder: Path) -> Path:
    path = folder / "tilt.json"
    tilt.save(path, force=True)
    return path


def test_a_tilt_file_gives_the_tilt_back(tmp_path: Path) -> None:
    back = rt.load_tilt(saved(TILT, tmp_path), FEW)
    assert back.to_dict() == TILT.to_dict()
    np.testing.assert_allclose(back.weights, TILT.weights, rtol=1e-12)
    assert back.answers == TILT.answers
    assert (back.status, back.exit_code, back.notes) == (TILT.status, 0, TILT.notes)
    pd.testing.assert_frame_equal(back.sample(seed=3), TILT.sample(seed=3))
    again = saved(back, tmp_path / "..")
    assert json.loads(again.read_text(encoding="utf-8")) == TILT.to_dict()
    again.unlink()
    with pytest.raises(OutputExistsError):
        TILT.save(tmp_path / "tilt.json")


def test_a_tilt_file_holds_no_rows_and_no_weights(tmp_path: Path) -> None:
    content = json.loads(saved(TILT, tmp_path).read_text(encoding="utf-8"))
    assert len(content["multipliers"]) == FEW_ANSWERS.plan.queries.size
    assert len(json.dumps(content)) < 60_000
    assert "weights" not in content
    assert content["answers"]["private"] is False
    assert content["answers"]["privacy"]["statement"].startswith("NOT PRIVATE")
    assert [r["statistic"] for r in content["statistics"]] == list(TILT.to_frame()["statistic"])


def one_empty_cell() -> rt.Tilt:
    """One of 150 cells empty, at a noise where the risk of all 152 hardly shows it."""
    codes = tuple(f"v{i}" for i in range(150))
    rng = np.random.default_rng(0)
    real = pd.DataFrame({"c": rng.choice(codes, 50_000)})
    rows = pd.DataFrame({"c": rng.choice(codes[1:], 20_000)})
    schema = {"c": rt.Categorical(codes)}
    plan = rt.plan(rows, rt.marginal(["c"]), epsilon=0.5, rows=len(real), schema=schema)
    return rt.fit(rows, insecure_measure(real, plan, rng=rng))


def test_a_cell_that_the_risk_estimate_passes_over_is_told() -> None:
    tilt = one_empty_cell()
    assert tilt.solution.status is rt.Status.CONVERGED
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert tilt.exit_code == 4
    assert tilt.unmet == ("cell(c=v0)",)
    assert [s.split(":")[0] for s in tilt.shortfalls] == ["cell(c=v0)"]


def test_a_tilt_file_tells_an_unmet_measure() -> None:
    assert one_empty_cell().to_dict()["status"] == "infeasible_measures"


def test_a_tilt_of_other_rows_says_so(tmp_path: Path) -> None:
    other = table(5_000, 8, 0.1)
    back = rt.load_tilt(saved(TILT, tmp_path), other)
    assert back.moved
    assert len(back.weights) == 5_000
    assert back.weights.mean() == pytest.approx(1)
    assert any("other rows than the tilt was fitted to" in n for n in back.notes)
    # Rows alike get weights alike: the multipliers are the same.
    assert back.weights.std() == pytest.approx(TILT.weights.std(), rel=0.2)
    assert len(back.sample(100, seed=0)) == 100
    with pytest.raises(WorkloadError, match="no column 'sex'"):
        rt.load_tilt(saved(TILT, tmp_path), other.drop(columns="sex"))


def test_base_weights_must_be_there_again(tmp_path: Path) -> None:
    weights = np.linspace(0, 2, len(FEW))
    named = FEW.assign(w=weights)
    by_name = rt.fit(named, FEW_ANSWERS, base_weights="w")
    back = rt.load_tilt(saved(by_name, tmp_path), named)
    np.testing.assert_allclose(back.weights, by_name.weights, rtol=1e-12)
    assert not back.moved
    with pytest.raises(WorkloadError, match="no column 'w'"):
        rt.load_tilt(tmp_path / "tilt.json", FEW)
    path = saved(rt.fit(FEW, FEW_ANSWERS, base_weights=weights), tmp_path)
    with pytest.raises(InputError, match="Give base_weights again"):
        rt.load_tilt(path, FEW)
    back = rt.load_tilt(path, FEW, base_weights=weights)
    np.testing.assert_allclose(back.weights, by_name.weights, rtol=1e-12)
    assert rt.load_tilt(path, FEW, base_weights=weights[::-1]).moved


def test_kept_and_infeasible_tilts_survive_a_file(tmp_path: Path) -> None:
    kept = rt.fit(FEW_REAL, few_answers(epsilon=0.05))
    assert kept.solution.eta == np.inf
    back = rt.load_tilt(saved(kept, tmp_path), FEW_REAL)
    np.testing.assert_allclose(back.weights, 1)
    assert back.advice == kept.advice
    assert back.to_dict() == kept.to_dict()
    narrow = FEW.assign(a=FEW["a"].clip(-0.05, 0.05))
    lost = rt.fit(narrow, few_answers(rt.moments(["a", "b"])))
    back = rt.load_tilt(saved(lost, tmp_path), narrow)
    assert (back.exit_code, back.status) == (4, lost.status)
    assert back.shortfalls == lost.shortfalls
    assert back.unmet == lost.unmet


CHANGES: dict[str, Any] = {
    "format": "retilt-tilt/0",
    "answers": {},
    "multipliers": [1.0],
    "insistent": ["x"],
    "eta": "x",
    "status": "fine",
    "path": 5,
    "base_weights": None,
    "rows": None,
}


@pytest.mark.parametrize("key", CHANGES)
def test_malformed_tilt_files_are_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    for content in ({**TILT.to_dict(), key: CHANGES[key]}, {**TILT.to_dict()}):
        if content[key] != CHANGES[key]:
            del content[key]
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(FormatError, match=r"tilt file .*bad\.json"):
            rt.load_tilt(path, FEW)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("answers", 3),
        ("path", [3]),
        ("path", [[]]),
        ("eta", 10**400),
        ("multipliers", [10**400]),
        ("path", [{**TILT.to_dict()["path"][0], "eta": "x"}]),
    ],
    ids=["answers", "path of numbers", "path of lists", "eta", "multipliers", "text"],
)
def test_wrong_kinds_of_values_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**TILT.to_dict(), key: value}), encoding="utf-8")
    with pytest.raises(FormatError, match=r"tilt file .*bad\.json"):
        rt.load_tilt(path, FEW)


def test_files_that_are_no_tilt(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "b.json").write_text("{")
    for name, word in (("a", "JSON object"), ("b", "is not JSON"), ("c", "No such file")):
        with pytest.raises(FormatError, match=word):
            rt.load_tilt(tmp_path / f"{name}.json", FEW)


def test_undefined_statistics_are_null_in_the_file(tmp_path: Path) -> None:
    flat = FEW.assign(a=0.0)
    tilt = rt.fit(flat, few_answers(rt.moments(["a", "b"])))
    rows = {r["statistic"]: r for r in tilt.statistics_table()}
    assert np.isnan(rows["corr(a, b)"]["before"])
    assert rows["corr(a, b)"]["reachable"] is False
    assert tilt.exit_code == 4
    path = saved(tilt, tmp_path)
    assert "NaN" not in path.read_text(encoding="utf-8")
    back = rt.load_tilt(path, flat)
    assert back.unmet == tilt.unmet


def test_a_tilt_of_other_rows_is_not_saved(tmp_path: Path) -> None:
    back = rt.load_tilt(saved(TILT, tmp_path), table(5_000, 8, 0.1))
    with pytest.raises(InputError, match="other rows"):
        back.save(tmp_path / "again.json")
