"""The whole job on small tables: what comes out is what was promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import FormatError, InputError, RowCountError, WorkloadError
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
    assert list(answers.to_frame().columns) == ["statistic", "estimate", "standard_error"]
    assert list(plan.to_frame().columns) == ["statistic", "expected_standard_error"]
    frame = tilt.to_frame()
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == [
        "statistic", "before", "target", "standard_error", "after", "reachable",
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
    both = make_plan(rt.correlation(["a", "b"]) + rt.moments(["b"]) + rt.marginal(["sex"]))
    assert both.queries.size == 5 + 4
    assert any("measured once" in note for note in both.notes)
    assert both.noise.sensitivity == make_plan().noise.sensitivity


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
    wide = pd.DataFrame({c: [f"v{i}" for i in rng.integers(0, 70, 20_000)] for c in "xy"})
    with pytest.raises(InputError, match="3,000"):
        rt.plan(wide, rt.marginal(["x", "y"]), epsilon=1, rows=20_000)


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
