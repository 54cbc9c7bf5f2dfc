"""Fits to statistics from elsewhere, and a public table in the synthetic one's place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import retilt as rt
from retilt.cli import main
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.testing import insecure_measure


def table(rows: int, seed: int, shares: list[float]) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.choice(list("xyz"), rows, p=shares)
    b = np.where(rng.random(rows) < 0.3 + 0.4 * (a == "x"), "u", "v")
    c = np.where(rng.random(rows) < 0.2 + 0.3 * (b == "u") + 0.2 * (a == "z"), "s", "t")
    age = np.clip(np.rint(rng.normal(40 + 10 * (a == "x"), 12)), 17, 90)
    pay = np.rint(np.clip(20 * age + rng.gamma(2, 500, rows), 0, 10_000))
    return pd.DataFrame({"A": a, "B": b, "C": c, "age": age, "pay": pay})


REAL, SYNTHETIC = table(5_000, 1, [0.5, 0.3, 0.2]), table(4_000, 2, [0.2, 0.4, 0.4])
PAIRS = [("A", "B"), ("A", "C"), ("B", "C")]
SCHEMA = {"age": rt.Numeric(17, 90, integer=True), "pay": rt.Numeric(0, 10_000, integer=True)}


def two_way(one: str, other: str, error: float, source: pd.DataFrame = REAL) -> dict[str, Any]:
    shares = pd.crosstab(source[one], source[other], normalize="all")
    return {"table": [one, other], "values": shares.to_dict("index"), "standard_error": error}


def fitted(*statistics: dict[str, Any], **options: Any) -> rt.Tilt:
    return rt.fit(SYNTHETIC, rt.Published("a test", statistics, **options))


def residual(tilt: rt.Tilt) -> float:
    return max(abs(r["after"] - r["target"]) for r in tilt.statistics_table())


@pytest.mark.parametrize("error", [0, 1e-7])
def test_three_overlapping_tables_of_one_table_are_met(error: float) -> None:
    tilt = fitted(*(two_way(*pair, error) for pair in PAIRS))
    assert tilt.exit_code == 0
    assert tilt.status is rt.Status.CONVERGED
    assert residual(tilt) < 1e-8
    assert not tilt.unmet
    assert all(r["reachable"] for r in tilt.statistics_table())
    after = SYNTHETIC.assign(w=tilt.weights).groupby(["A", "B"])["w"].sum() / len(SYNTHETIC)
    true = REAL.groupby(["A", "B"]).size() / len(REAL)
    np.testing.assert_allclose(after, true, atol=1e-8)


def test_every_kind_of_exact_statistic_is_met() -> None:
    inside = REAL[REAL["A"] == "x"]
    exact = {"standard_error": 0}
    tilt = fitted(
        {"mean": "age", "value": REAL["age"].mean(), **exact},
        {"mean": "pay", "value": REAL["pay"].mean(), **exact},
        {"sd": "age", "value": REAL["age"].std(ddof=0), **exact},
        {"sd": "pay", "value": REAL["pay"].std(ddof=0), **exact},
        {"corr": ["age", "pay"], "value": REAL["age"].corr(REAL["pay"]), **exact},
        {"share": "A = 'x'", "value": len(inside) / len(REAL), **exact},
        {"group_mean": "pay", "where": "A = 'x'", "value": inside["pay"].mean(), **exact},
        {"cell": {"B": "u", "C": "s"}, "value": 1_000, "counts": True, **exact},
        declared=SCHEMA,
        rows=5_000,
    )
    assert tilt.exit_code == 0
    for row in tilt.statistics_table():
        assert row["after"] == pytest.approx(row["target"], rel=1e-6)
        assert row["standard_error"] == 0
    weighted = np.cov(SYNTHETIC["age"], SYNTHETIC["pay"], aweights=tilt.weights, ddof=0)
    assert np.sqrt(weighted[1, 1]) == pytest.approx(REAL["pay"].std(ddof=0), rel=1e-5)
    assert np.isnan(tilt.misfit_before)


WIDE = [1e2, 1e5, 1e9, 1e15, 1e60]


@pytest.mark.parametrize("upper", WIDE)
@pytest.mark.parametrize("lower", [0.0, -1.0])
def test_wide_bounds_cost_an_exact_statistic_nothing(lower: float, upper: float) -> None:
    odd = SYNTHETIC.assign(age=SYNTHETIC["age"] + 0.123)
    inside = REAL[REAL["A"] == "x"]
    given = [
        {"mean": "age", "value": 45.678},
        {"sd": "age", "value": 11.5},
        {"share": "A = 'x'", "value": 0.4},
        {"group_mean": "age", "where": "A = 'x'", "value": 47.5},
        {"product": ["age", "pay"], "value": float((REAL["age"] * REAL["pay"]).mean())},
        {"query": "age * 2 + 1", "lower": lower * upper, "upper": 10 * upper, "value": 92.356},
        {"mean": "pay", "value": float(inside["pay"].mean())},
    ]
    bounds = {"age": rt.Numeric(lower * upper, upper), "pay": rt.Numeric(0, max(upper, 1e4))}
    exact = [{**g, "standard_error": 0} for g in given if "product" not in g or upper < 1e40]
    tilt = rt.fit(odd, rt.Published("x", exact, declared=bounds))
    w, age = tilt.weights / tilt.weights.sum(), odd["age"].to_numpy()
    mean = w @ age
    assert tilt.status is rt.Status.CONVERGED
    assert mean == pytest.approx(45.678, abs=1e-6)
    assert np.sqrt(w @ (age - mean) ** 2) == pytest.approx(11.5, abs=1e-5)
    assert w @ (odd["A"] == "x") == pytest.approx(0.4, abs=1e-7)
    assert w @ odd["pay"] == pytest.approx(inside["pay"].mean(), abs=1e-3)
    for row in tilt.statistics_table():
        assert row["reachable"]
        assert row["after"] == pytest.approx(row["target"], rel=1e-6)
    assert not [n for n in tilt.notes if "every synthetic row" in n or "given as" in n]


@pytest.mark.parametrize("upper", WIDE)
def test_wide_bounds_do_not_hide_a_miss(upper: float) -> None:
    tilt = fitted(
        {"mean": "age", "value": 1.0, "standard_error": 0},
        declared={"age": rt.Numeric(0, upper)},
    )
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert not tilt.statistics_table()[0]["reachable"]
    assert any("all synthetic rows lie between 17 and" in n for n in tilt.notes)


@pytest.mark.parametrize("error", [1e-300, 1e-160, 1e-100, 1e-30, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("upper", [1e2, 1e9])
@pytest.mark.filterwarnings("error")
def test_tiny_errors_are_met(error: float, upper: float, tmp_path: Path) -> None:
    tilt = fitted(
        {"mean": "age", "value": 50, "standard_error": error},
        {"share": "B = 'u'", "value": 0.4, "standard_error": error},
        declared={"age": rt.Numeric(0, upper)},
    )
    assert tilt.exit_code == 0
    assert residual(tilt) < 1e-6
    tilt.save(tmp_path / "tilt.json")
    loaded = rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC)
    np.testing.assert_allclose(loaded.weights, tilt.weights, rtol=1e-9)
    assert loaded.exit_code == 0


def test_rows_that_the_declared_bounds_clamp_are_told() -> None:
    given = {"mean": "age", "value": 38, "standard_error": 0}
    tilt = fitted(given, declared={"age": rt.Numeric(17, 40)})
    count = int((SYNTHETIC["age"] > 40).sum())
    assert any(n.startswith(f"age: {count} synthetic rows lie outside") for n in tilt.notes)
    counted = {"table": ["age"], "bins": {"age": [30]}, "values": [0.2, 0.8], "standard_error": 0}
    tilt = fitted(counted, declared={"age": rt.Numeric(17, 40)})
    assert any(n.startswith(f"age: {count} synthetic rows lie outside") for n in tilt.notes)


def test_an_error_is_noise_however_wide_the_bounds() -> None:
    wide = {"age": rt.Numeric(0, 1e12)}
    given = [
        {"mean": "age", "value": 45, "standard_error": 3},
        {"share": "A = 'x'", "value": 0.5, "standard_error": 0},
    ]
    tilt = fitted(*given, declared=wide)
    assert tilt.solution.exact.tolist() == [False, True]
    np.testing.assert_allclose(tilt.weights, fitted(*given, declared=SCHEMA).weights, rtol=1e-6)


def test_noisy_and_exact_statistics_together() -> None:
    tilt = fitted(
        two_way("A", "B", 0),
        {"mean": "age", "value": REAL["age"].mean(), "standard_error": 0.2},
        {"group_mean": "pay", "where": "C = 's'", "value": 1_990, "standard_error": 20},
        {"share": "C = 's'", "value": 0.4, "standard_error": 0.01},
        declared=SCHEMA,
    )
    assert tilt.exit_code == 0, tilt.notes
    for row in tilt.statistics_table():
        assert abs(row["after"] - row["target"]) <= 3 * row["standard_error"] + 1e-8
    assert tilt.misfit_after < 2


def test_a_covariance_is_used() -> None:
    """Two answers whose noise is nearly the same: their difference is known well."""
    shares = [float((REAL["A"] == v).mean()) for v in "xy"]
    off = [shares[0] + 0.05, shares[1] + 0.05]
    statistics = [{"cell": {"A": v}, "value": s} for v, s in zip("xy", off, strict=True)]
    alike = np.full((2, 2), 0.04**2) * 0.999 + np.eye(2) * 0.04**2 * 0.001
    other = {"cell": {"A": "x"}, "value": shares[0], "standard_error": 0.04}
    tilt = fitted(*statistics, covariance=alike)
    after = [r["after"] for r in tilt.statistics_table()]
    assert after[0] - after[1] == pytest.approx(shares[0] - shares[1], abs=0.01)
    assert fitted(other).exit_code == 0


# --- what can't be met -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [0, 0.002])
def test_a_category_that_the_synthetic_table_lacks_is_named(error: float) -> None:
    real = REAL.copy()
    real.loc[:499, "A"] = "new"
    tilt = fitted(two_way("A", "B", error, real))
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert tilt.exit_code == 4
    assert any("cell(A=new" in name for name in tilt.unmet)
    assert any("cell(A=new" in n and "no synthetic row lies in this cell" in n for n in tilt.notes)


def test_tables_whose_totals_differ() -> None:
    counts = {"A": {"x": 50, "y": 30, "z": 20}, "B": {"u": 61, "v": 40}}
    exact = [
        {"table": [name], "values": values, "standard_error": 0, "counts": True}
        for name, values in counts.items()
    ]
    tilt = fitted(*exact, rows=100)
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert any("the table of B: the shares given add up to 1.01" in n for n in tilt.notes)
    assert any(name.startswith("cell(B=") for name in tilt.unmet)
    met = {r["statistic"]: r for r in tilt.statistics_table() if r["statistic"] not in tilt.unmet}
    assert all(abs(r["after"] - r["target"]) < 1e-6 for r in met.values())
    assert np.isfinite(tilt.weights).all()
    noisy = fitted(*({**t, "standard_error": 1} for t in exact), rows=100)
    assert noisy.exit_code == 0
    assert noisy.to_dict()["status"] == "converged"


@pytest.mark.parametrize("error", [0, 0.0001])
def test_a_target_of_zero_on_a_populated_cell_is_reached(error: float) -> None:
    tilt = fitted({"cell": {"A": "x", "B": "u"}, "value": 0, "standard_error": error})
    assert tilt.exit_code == 0
    held = ((SYNTHETIC["A"] == "x") & (SYNTHETIC["B"] == "u")).to_numpy()
    assert held.sum() > 100
    assert tilt.weights[held].sum() / len(held) <= max(1e-6, 3 * error)
    assert tilt.weights[~held].min() > 0.5


def test_statistics_that_contradict_each_other_are_named() -> None:
    tilt = fitted(
        {"cell": {"A": "x"}, "value": 0.3, "standard_error": 0},
        {"share": "A = 'x'", "value": 0.5, "standard_error": 0},
    )
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert tilt.exit_code == 4
    assert tilt.unmet
    assert "or exact and missed" in " ".join(tilt.notes)
    # Least squares: in the middle between them.
    assert "cell(A=x) (asked 0.3, got 0.2045, nearest 0.4)" in " ".join(tilt.notes)


@pytest.mark.parametrize("error", [0, 1e-3])
def test_the_nearest_values_of_a_triangle_of_tables_are_told(error: float) -> None:
    """A = B = C, but not A = C: each pair of equations can hold for two thirds at most."""
    rng = np.random.default_rng(0)
    synthetic = pd.DataFrame({k: rng.choice(["0", "1"], 3_000) for k in "ABC"})
    same = {"0": {"0": 0.5, "1": 0.0}, "1": {"0": 0.0, "1": 0.5}}
    other = {"0": {"0": 0.0, "1": 0.5}, "1": {"0": 0.5, "1": 0.0}}
    given = (("A", "B", same), ("B", "C", same), ("A", "C", other))
    tables = [{"table": [a, b], "values": v, "standard_error": error} for a, b, v in given]
    tilt = rt.fit(synthetic, rt.Published("a test", tables))
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert not any(row["reachable"] for row in tilt.statistics_table())
    found = re.findall(
        r"\(asked ([\d.]+)(?:, got [\d.]+)?, nearest ([\d.]+)\)", " ".join(tilt.notes)
    )
    assert len(found) == 5
    for asked, nearest in found:
        assert float(nearest) == pytest.approx(1 / 3 if float(asked) else 1 / 6, abs=2e-3)


@pytest.mark.parametrize("error", [0, 0.01])
def test_a_mean_beyond_all_rows_is_named(error: float) -> None:
    wide = {**SCHEMA, "age": rt.Numeric(17, 120, integer=True)}
    tilt = fitted({"mean": "age", "value": 95, "standard_error": error}, declared=wide)
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert any(
        "mean(age): given as 95, but all synthetic rows lie between" in n for n in tilt.notes
    )


@pytest.mark.parametrize("error", [0, 0.01])
def test_a_mean_beyond_its_bounds_is_refused(error: float) -> None:
    with pytest.raises(WorkloadError, match="the column's bounds are 17 and 90"):
        fitted({"mean": "age", "value": 460, "standard_error": error}, declared=SCHEMA)
    noisy = {"mean": "age", "value": 92, "standard_error": 1}
    assert fitted(noisy, declared=SCHEMA).status is rt.Status.INFEASIBLE_MEASURES


# --- around the fit ----------------------------------------------------------------------------


def test_the_papers_method_takes_noisy_statistics_only() -> None:
    noisy = rt.Published("a test", [two_way("A", "B", 0.01)])
    assert rt.fit(SYNTHETIC, noisy, method="paper-exact").by_paper
    exact = rt.Published("a test", [two_way("A", "B", 0)])
    with pytest.raises(InputError, match="standard error 0"):
        rt.fit(SYNTHETIC, exact, method="paper")


def test_arguments_in_the_wrong_order_are_told() -> None:
    with pytest.raises(InputError, match="the synthetic table and then the answers"):
        rt.fit(rt.Published("a test", [two_way("A", "B", 0)]), SYNTHETIC)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [0, 0.001])
def test_tilts_are_saved_and_loaded(tmp_path: Path, error: float) -> None:
    tilt = fitted(*(two_way(*pair, error) for pair in PAIRS))
    tilt.save(tmp_path / "tilt.json")
    assert '"private": true' not in (tmp_path / "tilt.json").read_text(encoding="utf-8")
    again = rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC)
    np.testing.assert_allclose(again.weights, tilt.weights, rtol=1e-9)
    assert (again.status, again.unmet, again.notes) == (tilt.status, tilt.unmet, tilt.notes)
    pd.testing.assert_frame_equal(again.to_frame(), tilt.to_frame())
    few = rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC[SYNTHETIC["A"] != "z"])
    assert few.moved


def test_a_tilt_file_with_other_published_statistics_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tilt.json"
    fitted(two_way("A", "B", 0)).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["answers"]["statistics"].append({"share": "C = 's'", "value": 1, "standard_error": 0})
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="not those of its answers"):
        rt.load_tilt(path, SYNTHETIC)
    content["answers"]["statistics"][-1]["value"] = "1"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="statistic 2"):
        rt.load_tilt(path, SYNTHETIC)


def test_the_report_says_where_they_come_from(tmp_path: Path) -> None:
    published = rt.Published(
        "The <b>census</b>", [two_way("A", "B", 0)], promise="Public statistics"
    )
    rt.fit(SYNTHETIC, published).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "NOT PRIVATE" not in page
    assert "The &lt;b&gt;census&lt;/b&gt;" in page
    assert "retilt measured nothing and spent no privacy budget" in page
    assert "Their privacy, as the source says" in page
    assert "All 6 statistics agree with their targets" in page
    assert "no statistic is noisy" in page


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic, answers = tmp_path / "synthetic.csv", tmp_path / "published.json"
    SYNTHETIC.to_csv(synthetic, index=False)
    rt.Published("The census", [two_way("A", "B", 0)]).save(answers)
    out = tmp_path / "post.csv"
    assert main(["fit", str(synthetic), str(answers), "-o", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "come from elsewhere: The census. retilt measured nothing" in said
    assert "Misfit" not in said  # in units of a noise that there is none of
    assert len(pd.read_csv(out)) == len(SYNTHETIC)
    options = ["--weights", str(tmp_path / "w.csv"), "--output", "json"]
    assert main(["fit", str(synthetic), str(answers), *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["privacy"]["private"] is None
    assert result["misfit"] == {"before": None, "after": None}
    answers.write_text('{"format": "mine"}', encoding="utf-8")
    options = ["--weights", str(tmp_path / "v.csv")]
    assert main(["fit", str(synthetic), str(answers), *options]) == 2
    assert "'retilt-answers/1' or 'retilt-published/1'" in capsys.readouterr().err


def test_a_public_table_can_stand_in_for_the_synthetic_one() -> None:
    """The paper's special case: rows that are public, weighted by private answers."""
    public = table(3_000, 5, [0.34, 0.33, 0.33])
    workload = rt.marginal(["A", "B"]) + rt.correlation(["age", "pay"])
    plan = rt.plan(public, workload, epsilon=1.0, rows=len(REAL), schema=SCHEMA)
    answers = insecure_measure(REAL, plan, rng=np.random.default_rng(0))
    tilt = rt.fit(public, answers)
    assert tilt.exit_code == 0
    for row in tilt.statistics_table():
        assert abs(row["after"] - row["target"]) <= 4 * row["standard_error"] + 1e-6
    assert set(map(tuple, tilt.sample(seed=0).to_numpy())) <= set(map(tuple, public.to_numpy()))


def test_the_repr_has_no_misfit_where_nothing_is_noisy() -> None:
    given = {"mean": "age", "value": 50}
    exact = fitted({**given, "standard_error": 0}, declared=SCHEMA)
    assert repr(exact) == f"Tilt(status='converged', rows=4000, ess={exact.ess:.0f})"
    noisy = fitted({**given, "standard_error": 1}, declared=SCHEMA)
    assert "misfit_after=" in repr(noisy)


@pytest.mark.parametrize("method", ["systematic", "balanced", "multinomial"])
def test_rows_are_drawn_of_any_statistics(method: Any, tmp_path: Path) -> None:
    inside = REAL[REAL["A"] == "x"]
    tilt = fitted(
        {"mean": "age", "value": REAL["age"].mean(), "standard_error": 0.1},
        {"share": "A = 'x'", "value": 0.4, "standard_error": 0},
        {
            "group_mean": "pay",
            "where": "A = 'x'",
            "value": inside["pay"].mean(),
            "standard_error": 0,
        },
        two_way("B", "C", 0.01),
        declared=SCHEMA,
    )
    drawn = tilt.sample(20_000, method=method, seed=1)
    assert len(drawn) == 20_000
    assert (drawn["A"] == "x").mean() == pytest.approx(0.4, abs=0.02)
    tilt.save(tmp_path / "t.json")
    again = rt.load_tilt(tmp_path / "t.json", SYNTHETIC).sample(20_000, method=method, seed=1)
    pd.testing.assert_frame_equal(drawn, again)


@pytest.mark.parametrize("far", [1e3, 1e5, 1e8])
@pytest.mark.parametrize("error", [0, 1e-3])
def test_an_outlier_loosens_nothing(far: float, error: float) -> None:
    x = np.r_[np.random.default_rng(0).normal(0, 10, 500), far]
    given = [{"mean": "x", "value": 0.5}, {"sd": "x", "value": 12.0}]
    statistics = [{**g, "standard_error": error} for g in given]
    tilt = rt.fit(pd.DataFrame({"x": x}), rt.Published("x", statistics))
    mean = np.average(x, weights=tilt.weights)
    sd = np.sqrt(np.average((x - mean) ** 2, weights=tilt.weights))
    assert tilt.status is rt.Status.CONVERGED
    assert mean == pytest.approx(0.5, abs=max(1e-6, 3 * error))
    assert sd == pytest.approx(12, abs=max(1e-5, 3 * error))


def test_a_constant_that_is_asked_otherwise_is_missed() -> None:
    table = pd.DataFrame({"x": [1e-4] * 5, "y": [1.0, 2, 3, 4, 5]})
    exact = {"standard_error": 0}
    given = [{"mean": "x", "value": 9e-4, **exact}, {"mean": "y", "value": 3.2, **exact}]
    tilt = rt.fit(table, rt.Published("x", given, declared={"x": rt.Numeric(-1e3, 1e3)}))
    assert tilt.exit_code == 4
    assert tilt.unmet == ("mean(x)",)


@pytest.mark.parametrize("kind", ["sd", "corr"])
def test_an_exact_deviation_needs_an_exact_mean(kind: str) -> None:
    noisy = [
        {"mean": c, "value": 40 if c == "age" else 1_500, "standard_error": 1}
        for c in ("age", "pay")
    ]
    exact = {"standard_error": 0}
    sds = [{"sd": "age", "value": 12, **exact}, {"sd": "pay", "value": 700, **exact}]
    given = [*noisy, sds[0]] if kind == "sd" else [*noisy, *sds]
    with pytest.raises(WorkloadError, match="sd of 'age': its standard error is 0"):
        fitted(*given)


def test_a_mean_that_is_hardly_known_leaves_little_of_the_deviation() -> None:
    table = pd.DataFrame({"x": np.linspace(0, 10, 101)})
    given = [
        {"mean": "x", "value": 7, "standard_error": 3},
        {"sd": "x", "value": 2.5, "standard_error": 0.01},
    ]
    tilt = rt.fit(table, rt.Published("x", given))
    row = tilt.statistics_table()[1]
    assert row["standard_error"] > 3
    assert any("sd(x): it counts for less" in n for n in tilt.notes)
    rng, count = np.random.default_rng(0), 200_000
    means, sds = rng.normal(7, 3, count), rng.normal(2.5, 0.01, count)
    # What the mean of (x - 7)^2 of a table with the true mean and deviation is off from 2.5^2.
    off = sds**2 + (means - 7) ** 2 - 2.5**2
    told = row["standard_error"] * 2 * 2.5
    assert told == pytest.approx(np.sqrt((off**2).mean()), rel=0.02)


def test_categories_that_are_numbers_are_counted_as_these() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"kids": rng.integers(1, 3, 400), "pay": rng.lognormal(10, 0.6, 400)})
    exact = {"standard_error": 0}
    product = float((table["kids"] * table["pay"]).mean() * 1.02)
    given = [
        {"mean": "kids", "value": 1.6, **exact},
        {"product": ["kids", "pay"], "value": product, **exact},
    ]
    tilt = rt.fit(table, rt.Published("x", given))
    assert np.average(table["kids"], weights=tilt.weights) == pytest.approx(1.6, abs=1e-6)
    both = table["kids"] * table["pay"]
    assert np.average(both, weights=tilt.weights) == pytest.approx(product, rel=1e-6)
    assert tilt.ess > 300


def test_what_is_missed_by_little_is_named_with_the_digits_that_tell() -> None:
    given = rt.Published(
        "x",
        [{"mean": "x", "value": 0.750002, "standard_error": 0}],
        declared={"x": rt.Numeric(0, 1)},
    )
    tilt = rt.fit(pd.DataFrame({"x": [0.0, 1.0]}), given, max_weight=1.5)
    assert tilt.exit_code == 4
    assert tilt.unmet == ("mean(x)",)
    assert any("asked 0.750002, nearest 0.75)" in n for n in tilt.notes)


def test_what_can_not_move_at_all_is_settled() -> None:
    """By a cap and guards of many cells; the matrix of what is settled was singular."""
    rng = np.random.default_rng(4)
    for _ in range(30):
        table = pd.DataFrame({"x": rng.normal(0, 100, 12), "k": rng.integers(1, 10, 12)})
        given = [
            {"share": "x >= 50", "value": rng.uniform(0, 1), "standard_error": 0},
            {"mean": "k", "value": rng.uniform(2, 8), "standard_error": 0},
        ]
        tilt = rt.fit(
            table,
            rt.Published("x", given, declared={"k": rt.Numeric(0, 10)}),
            max_weight=1.1,
            keep=rt.keep("marginals", 0.05),
        )
        assert np.isfinite(tilt.weights).all()


@pytest.mark.parametrize("far", [1e6, 1e9, 1e10, 1e12])
def test_noisy_answers_are_followed_beside_a_row_far_off(far: float) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=5_000), "y": rng.normal(size=5_000)})
    table.loc[0, "x"] = far
    given = [
        {"mean": "x", "value": 0.2, "standard_error": 0.01},
        {"mean": "y", "value": 0.3, "standard_error": 0.01},
    ]
    tilt = rt.fit(table, rt.Published("x", given))
    assert tilt.status is rt.Status.CONVERGED
    assert tilt.statistics_table()[1]["after"] == pytest.approx(0.3, abs=0.005)
    assert tilt.ess > 4_000


def test_rounding_in_the_values_tightens_nothing() -> None:
    rng = np.random.default_rng(0)
    noise = rng.choice([0, 1, -1, 2], 10_000) * 2.2e-16
    hours = np.where(rng.random(10_000) < 0.8, 40 * (1 + noise), rng.normal(40, 12, 10_000))
    given = {"mean": "hours", "value": 40.4, "standard_error": 0}
    tilt = rt.fit(pd.DataFrame({"hours": hours}), rt.Published("x", [given]))
    assert tilt.status is rt.Status.CONVERGED
    assert np.average(hours, weights=tilt.weights) == pytest.approx(40.4, abs=1e-6)


def test_an_empty_table_and_a_tilt_that_is_none_are_told_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the synthetic table has no rows"):
        rt.fit(SYNTHETIC[:0], rt.Published("x", [{"mean": "age", "value": 5, "standard_error": 0}]))
    (tmp_path / "t.json").write_text("a,b")
    with pytest.raises(FormatError) as caught:
        rt.load_tilt(tmp_path / "t.json", SYNTHETIC)
    assert str(caught.value).count("t.json") == 1
