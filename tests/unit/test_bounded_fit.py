"""``max_weight``, ``min_weight`` and ``min_ess`` from a fit to its file and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from editing import edited

import retilt as rt
from retilt._tiltfile import tilt_content
from retilt.exceptions import FormatError, InputError, InternalError
from retilt.testing import insecure_measure
from retilt.tilting.bounds import Bounds

SCHEMA = {
    "a": rt.Numeric(-5.0, 5.0),
    "b": rt.Numeric(-5.0, 5.0),
    "sex": rt.Categorical(("F", "M")),
}


def table(rows: int, seed: int, slope: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=rows)
    b = slope * a + rng.normal(size=rows)
    base = rng.uniform(0.5, 2.0, rows)
    return pd.DataFrame(
        {"a": a, "b": b, "sex": np.where(rng.random(rows) < 0.4, "F", "M"), "base": base}
    )


REAL, SYNTHETIC = table(8_000, 1, 0.6), table(4_000, 2, 0.1)
WORKLOAD = rt.correlation(["a", "b"]) + rt.marginal(["sex"])
PLAN = rt.plan(SYNTHETIC, WORKLOAD, epsilon=1.0, rows=len(REAL), schema=SCHEMA)
ANSWERS = insecure_measure(REAL, PLAN, rng=np.random.default_rng(0))
EXACT = rt.Published(
    "a census",
    [
        {"mean": "a", "value": 1.0, "standard_error": 0},
        {"share": "sex = 'F'", "value": 0.6, "standard_error": 0},
    ],
)


def saved(tilt: rt.Tilt, folder: Path) -> dict[str, Any]:
    tilt.save(folder / "t.json")
    content: dict[str, Any] = json.loads((folder / "t.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize(
    "bounds",
    [{"max_weight": 1.3}, {"min_weight": 0.7}, {"max_weight": 2, "min_weight": 0.5}],
)
def test_the_bounds_hold_exactly_and_are_saved(bounds: dict[str, float], tmp_path: Path) -> None:
    free, tilt = rt.fit(SYNTHETIC, ANSWERS), rt.fit(SYNTHETIC, ANSWERS, **bounds)
    lower, upper = bounds.get("min_weight", 0.0), bounds.get("max_weight", np.inf)
    assert free.weights.max() > upper or free.weights.min() < lower
    assert lower <= tilt.weights.min()
    assert tilt.weights.max() <= upper
    assert tilt.weights.mean() == pytest.approx(1, abs=1e-12)
    assert tilt.certificate["gap"] < 1e-14
    content = saved(tilt, tmp_path)
    assert content["bounds"] == {
        "min_weight": lower,
        "max_weight": None if upper == np.inf else upper,
    }
    again = rt.load_tilt(tmp_path / "t.json", SYNTHETIC)
    np.testing.assert_array_equal(again.weights, tilt.weights)
    assert again.to_dict() == tilt.to_dict()
    assert again.notes == tilt.notes
    assert tilt.notes[0].startswith("No row counts for ")
    np.testing.assert_array_equal(again.rows(seed=0), tilt.rows(seed=0))


def test_the_bounds_hold_for_other_rows(tmp_path: Path) -> None:
    rt.fit(SYNTHETIC, ANSWERS, max_weight=1.3, min_weight=0.6).save(tmp_path / "t.json")
    for rows in (7, 30_000):
        moved = rt.load_tilt(tmp_path / "t.json", table(rows, 5, -0.9))
        assert moved.moved
        assert moved.weights.min() >= 0.6
        assert moved.weights.max() <= 1.3
        assert moved.weights.mean() == pytest.approx(1, abs=1e-12)


def test_they_are_relative_to_the_base_weights() -> None:
    tilt = rt.fit(SYNTHETIC, ANSWERS, base_weights="base", max_weight=1.2, min_weight=0.8)
    ratios = tilt.weights / (SYNTHETIC["base"] / SYNTHETIC["base"].mean()).to_numpy()
    assert ratios.max() == pytest.approx(1.2, rel=1e-12)
    assert ratios.min() == pytest.approx(0.8, rel=1e-12)
    assert ratios.max() <= 1.2
    assert ratios.min() >= 0.8
    assert tilt.weights.max() > 1.2


def test_guards_and_redrawn_rows_go_with_them() -> None:
    kept = rt.fit(SYNTHETIC, ANSWERS, keep=rt.keep("marginals"), max_weight=1.4)
    assert kept.weights.max() <= 1.4
    assert kept.kept
    mixed = rt.fit(SYNTHETIC, ANSWERS, support="mix", max_weight=1.5, seed=0)
    base = mixed.base * len(mixed.weights)
    assert np.all(mixed.weights <= 1.5 * base)
    denoised = rt.fit(SYNTHETIC, ANSWERS, denoise="qp", max_weight=1.4)
    assert denoised.weights.max() <= 1.4


def test_what_the_bounds_keep_out_of_reach_is_named() -> None:
    tilt = rt.fit(SYNTHETIC, ANSWERS, max_weight=1.05)
    assert tilt.exit_code == 4
    assert tilt.unmet
    assert "larger max_weight" in tilt.advice
    assert "larger max_weight" not in rt.fit(SYNTHETIC, ANSWERS, max_weight=50).advice


def test_exact_statistics_out_of_reach_get_the_nearest_values(tmp_path: Path) -> None:
    free = rt.fit(SYNTHETIC, EXACT)
    assert free.exit_code == 0
    tilt = rt.fit(SYNTHETIC, EXACT, max_weight=1.25)
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert tilt.weights.max() <= 1.25
    share = next(row for row in tilt.statistics_table() if "sex" in row["statistic"])
    assert share["before"] < share["after"] < 1.25 * share["before"]
    assert f"nearest {share['after']:.4g}" in " ".join(tilt.notes)
    saved(tilt, tmp_path)
    again = rt.load_tilt(tmp_path / "t.json", SYNTHETIC)
    np.testing.assert_allclose(again.weights, tilt.weights, atol=1e-6)
    assert again.weights.max() <= 1.25


@pytest.mark.parametrize("bounds", [{}, {"max_weight": 3.0}])
def test_exact_statistics_give_way_to_the_floor(bounds: dict[str, float], tmp_path: Path) -> None:
    free = rt.fit(SYNTHETIC, EXACT, **bounds)
    assert free.ess < 2_500
    tilt = rt.fit(SYNTHETIC, EXACT, min_ess=2_500, **bounds)
    assert tilt.status is rt.Status.FLOOR_REACHED
    assert tilt.exit_code == 4
    assert 2_500 <= tilt.ess < 2_510
    assert set(tilt.unmet) == {"mean(a)", "share(sex = 'F')"}
    assert any("only met as nearly" in note for note in tilt.notes)
    content = saved(tilt, tmp_path)
    assert content["looseness"] > 1
    again = rt.load_tilt(tmp_path / "t.json", SYNTHETIC)
    np.testing.assert_allclose(again.weights, tilt.weights, rtol=1e-7)
    assert again.certificate["gap"] < 1e-12
    kept = rt.fit(SYNTHETIC, EXACT, min_ess=0.9 * free.ess, **bounds)
    assert kept.status is rt.Status.CONVERGED
    assert kept.to_dict()["looseness"] == 1


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    tilt = rt.fit(SYNTHETIC, EXACT, min_ess=3_000, max_weight=3.0, min_weight=0.1)
    content: dict[str, Any] = json.loads(json.dumps(tilt.to_dict()))
    return content


@pytest.mark.parametrize("key", ["bounds", "looseness"])
def test_what_the_weights_depend_on_can_not_be_left_out(key: str, tmp_path: Path) -> None:
    content = saved(rt.fit(SYNTHETIC, EXACT, min_ess=3_000, max_weight=1.5), tmp_path)
    less = {k: v for k, v in content.items() if k != key}
    (tmp_path / "t.json").write_text(json.dumps(less))
    with pytest.raises(FormatError, match=f"missing or unknown: '{key}'"):
        rt.load_tilt(tmp_path / "t.json", SYNTHETIC)


def test_a_file_that_gives_other_weights_than_its_fit_is_refused(tmp_path: Path) -> None:
    content = saved(rt.fit(SYNTHETIC, ANSWERS, max_weight=1.3), tmp_path)
    halved = [m / 2 for m in content["multipliers"]]
    for edit in ({"bounds": None}, {"multipliers": halved}):
        (tmp_path / "t.json").write_text(json.dumps({**content, **edit}))
        with pytest.raises(FormatError, match="it was edited after the fit"):
            rt.load_tilt(tmp_path / "t.json", SYNTHETIC)
    # Other rows have other weights.
    few = rt.load_tilt(tmp_path / "t.json", SYNTHETIC[:-1])
    assert few.moved


def test_a_file_without_bounds_says_so(tmp_path: Path) -> None:
    content = saved(rt.fit(SYNTHETIC, ANSWERS), tmp_path)
    assert content["bounds"] is None
    assert content["looseness"] == 1
    assert content["method"] == {"name": "default", "denoise": None}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("bounds", {}),
        ("bounds", [0, 2]),
        ("bounds.surprise", 1),
        ("bounds.max_weight", 0.5),
        ("bounds.max_weight", 1e100),
        ("bounds.max_weight", "2"),
        ("bounds.max_weight", True),
        ("bounds.min_weight", None),
        ("bounds.min_weight", 1.0),
        ("bounds.min_weight", -0.1),
        ("looseness", 0.5),
        ("looseness", "2"),
        ("looseness", 1e61),
        ("looseness", None),
        ("surprise", 1),
    ],
)
def test_bounds_in_a_file_are_checked(good: dict[str, Any], path: str, value: Any) -> None:
    assert tilt_content(good).bounds == Bounds(0.1, 3.0)
    with pytest.raises(InputError) as caught:
        tilt_content(edited(good, path, value))
    assert 0 < len(str(caught.value)) < 500


def test_the_papers_method_has_none() -> None:
    for options in ({"max_weight": 2.0}, {"min_weight": 0.5}):
        with pytest.raises(InputError, match="_weight: the paper's method has no bounds"):
            rt.fit(SYNTHETIC, ANSWERS, method="paper-exact", **options)  # type: ignore[arg-type]
    content = rt.fit(SYNTHETIC, ANSWERS, method="paper-exact").to_dict()
    content["bounds"] = {"min_weight": 0.0, "max_weight": 2.0}
    with pytest.raises(FormatError, match="belong together"):
        tilt_content(json.loads(json.dumps(content)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_weight": 1}, r"max_weight: got 1, expected a number from 1\.000001"),
        ({"max_weight": float("nan")}, "max_weight: got nan"),
        ({"max_weight": "3"}, "max_weight: got '3'"),
        ({"max_weight": 10**400}, r"max_weight: got .* expected a number from 1\.000001 to 1e60"),
        ({"min_weight": 10**5000}, "min_weight: got .* expected a number from 0 to 0.999999"),
        ({"min_weight": -1}, "min_weight: got -1, expected a number from 0 to 0.999999"),
        ({"min_weight": 3, "max_weight": 2}, "min_weight: got 3"),
        ({"method": "paper", "max_weight": 3}, "the paper's method has no bounds"),
    ],
)
def test_nothing_is_measured_where_the_bounds_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retilt.pipeline.measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(InputError, match=message):
        rt.postprocess(REAL, SYNTHETIC, WORKLOAD, epsilon=1.0, schema=SCHEMA, **options)
    with pytest.raises(InputError, match=message):
        rt.fit(SYNTHETIC, ANSWERS, **options)


def test_all_in_one_go_keeps_them() -> None:
    result = rt.postprocess(
        REAL, SYNTHETIC, WORKLOAD, epsilon=1.0, schema=SCHEMA, max_weight=1.3, min_weight=0.5
    )
    assert result.tilt.weights.min() >= 0.5
    assert result.tilt.weights.max() <= 1.3


def test_weights_that_break_their_bounds_are_never_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bounds, "inside", lambda bounds: (bounds.lower, bounds.upper * 1.0001))
    with pytest.raises(InternalError, match="do not keep the bounds"):
        rt.fit(SYNTHETIC, ANSWERS, max_weight=1.2)


@pytest.mark.parametrize("bounds", [{}, {"max_weight": 50.0}])
@pytest.mark.parametrize("floor", [0.3, 0.6, 0.95, 0.9995, 0.99999])
@pytest.mark.parametrize("given", ["near", "far", "impossible"])
def test_a_floor_is_where_the_weights_end(bounds: Any, floor: float, given: str) -> None:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"x": rng.normal(0, 1, 2_000), "y": rng.normal(0, 1, 2_000)})
    values = {"near": [1.0, 0.3], "far": [1.8, -0.9], "impossible": [2.9, 2.9]}[given]
    answers = rt.Published(
        "x",
        [
            {"mean": c, "value": v, "standard_error": 0.01}
            for c, v in zip("xy", values, strict=True)
        ],
    )
    free = rt.fit(table, answers, **bounds)
    least = floor * len(table)
    tilt = rt.fit(table, answers, min_ess=least, **bounds)
    assert tilt.ess >= least * (1 - 1e-9)
    if free.ess >= least:
        assert tilt.ess == free.ess
        return
    # As near as it may be: to a thousandth, also of what is left of the table's own size.
    assert tilt.ess - least <= 1e-3 * min(least, len(table) - least)
    assert tilt.certificate["gap"] < 1e-9
    if given != "impossible":
        assert tilt.status is rt.Status.FLOOR_REACHED


@pytest.mark.parametrize("error", [0.01, 0])
@pytest.mark.parametrize("floor", [0.3, 0.6, 0.9, 0.9995])
def test_the_status_names_the_limit_that_is_met_first(floor: float, error: float) -> None:
    """Of answers that the bounds keep out of reach, but not before the floor does."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"x": rng.normal(0, 1, 2_000), "y": rng.normal(0, 1, 2_000)})

    def fitted(x: float, y: float, **options: float) -> rt.Tilt:
        given = [{"mean": c, "value": v, "standard_error": error} for c, v in (("x", x), ("y", y))]
        return rt.fit(table, rt.Published("x", given), **options)  # type: ignore[arg-type]

    bounds = {"max_weight": 5.0, "min_weight": 0.1}
    alone = fitted(1.8, -0.9, **bounds)
    assert alone.status is rt.Status.INFEASIBLE_MEASURES
    tilt = fitted(1.8, -0.9, min_ess=2_000 * floor, **bounds)
    assert alone.ess < tilt.ess
    assert tilt.status is rt.Status.FLOOR_REACHED
    assert tilt.exit_code == 4
    at_bounds = tilt.solution.bounds is not None and any(
        tilt.solution.bounds.at_bounds(tilt.solution.weights, tilt.base)
    )
    assert ("larger max_weight" in tilt.advice) is at_bounds
    assert at_bounds is (floor < 0.9)
    # What no weights of these rows can reach, no floor keeps them from.
    nothing = fitted(2.9, 2.9, min_ess=2_000 * floor, **bounds)
    assert nothing.status is rt.Status.INFEASIBLE_MEASURES


@pytest.mark.parametrize("least", [0.0, 0.1])
def test_a_row_without_weight_beside_a_floor_and_no_cap(least: float) -> None:
    given = rt.Published("x", [{"mean": "x", "value": 2.6, "standard_error": 0}])
    table = pd.DataFrame({"x": [1.0, 2, 3, 4]})
    tilt = rt.fit(table, given, base_weights=[0, 1, 1, 1], min_weight=least)
    assert tilt.weights[0] == 0
    assert tilt.weights[1:].min() >= least
    assert tilt.weights @ table["x"] / 4 == pytest.approx(2.6, abs=1e-6)
