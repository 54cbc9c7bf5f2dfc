"""The plan: what it states, its file, its hash, its table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import (
    FormatError,
    InputError,
    OutputExistsError,
    PrivacyError,
    WorkloadError,
)
from retilt.privacy.plan import plan_from_dict
from retilt.privacy.sensitivity import joint_sensitivity, loudest

ROWS = 500
WORKLOAD = rt.correlation(["age", "pay, net"], weight=2) + rt.marginal(["age", "sex"])
BINNED = rt.correlation(["age", "pay, net"]) + rt.marginal(["age", "sex"], {"age": [30, 50]})


def synthetic() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "age": rng.integers(17, 91, ROWS),
            "pay, net": rng.random(ROWS),
            "sex": rng.choice(["F", "M"], ROWS),
            "id": np.arange(ROWS),
        }
    )


TABLE = synthetic()


def make(workload: rt.Workload = WORKLOAD, **options: Any) -> rt.Plan:
    options = {"epsilon": 1.0, "rows": ROWS, **options}
    return rt.plan(TABLE, workload, **options)


PLANS = {
    "default": {},
    "pure": {"delta": 0},
    "rho": {"epsilon": None, "rho": 0.05},
    "add-remove": {"unit": "add-remove"},
    "paper": {"basis": "paper"},
    "generator": {"generator": rt.Generator(rt.ApproxDP(1.0, 1e-6), rt.ReplaceOneRow())},
    "converted": {"generator": rt.Generator(rt.ZCDP(0.1), rt.AddRemoveOneRow())},
    "schema": {"schema": {"pay, net": rt.Numeric(-0.1, 1.1, nullable=True)}},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_file_gives_the_plan_back(name: str, tmp_path: Path) -> None:
    plan = make(**PLANS[name])
    path = tmp_path / "plan.json"
    plan.save(path)
    loaded = rt.load_plan(path)
    assert loaded == plan
    assert loaded.sha256 == plan.sha256
    assert loaded.noise == plan.noise
    assert loaded.statement == plan.statement
    assert loaded.privacy == plan.privacy
    assert loaded.statistics_table() == plan.statistics_table()
    assert loaded.to_dict() == plan.to_dict() == json.loads(path.read_text(encoding="utf-8"))
    # Saved once more, it is the same file byte for byte.
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("bins", [5, {"age": 5}, {"age": [30, 50]}])
def test_a_file_gives_a_plan_with_bins_back(bins: Any) -> None:
    plan = make(rt.marginal(["age", "sex"], bins))
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_the_hash_is_that_of_the_content() -> None:
    plans = [make(**options) for options in PLANS.values()]
    assert len({p.sha256 for p in plans}) == len(plans)
    assert make().sha256 == make().sha256
    assert make(rows=ROWS + 1).sha256 != make().sha256
    assert replace(make(), notes=("x",)).sha256 != make().sha256


def test_an_existing_file_stays_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    make().save(path)
    with pytest.raises(OutputExistsError, match="exists already"):
        make(rows=7).save(path)
    assert rt.load_plan(path).rows == ROWS
    make(rows=7).save(str(path), force=True)
    assert rt.load_plan(str(path)).rows == 7


def test_other_files_are_refused(tmp_path: Path) -> None:
    plan = make()
    answers = rt.measure(TABLE, plan)
    answers.save(tmp_path / "answers.json")
    with pytest.raises(FormatError, match=r"format: got 'retilt-answers/1', expected 'retilt-plan"):
        rt.load_plan(tmp_path / "answers.json")
    with pytest.raises(FormatError, match="No such file"):
        rt.load_plan(tmp_path / "none.json")
    (tmp_path / "old.json").write_text(json.dumps({**plan.to_dict(), "format": "retilt-plan/0"}))
    with pytest.raises(FormatError, match=r"retilt-plan/0.*expected 'retilt-plan/1'"):
        rt.load_plan(tmp_path / "old.json")


def test_the_table_of_statistics() -> None:
    plan = make(BINNED)
    frame = plan.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["statistic", "expected_standard_error"]
    assert frame["statistic"][0] == 'corr(age, "pay, net")'
    assert frame["statistic"][1] == "cell(age=[17, 30), sex=F)"
    assert len(frame) == 1 + 4 * 4
    assert (frame["expected_standard_error"] > 0).all()
    assert frame.to_dict("records") == plan.statistics_table()


def test_without_pandas_the_table_is_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retilt.engines.frames.find_spec", lambda name: None)
    frame = make().to_frame()
    assert isinstance(frame, pa.Table)
    assert frame.column_names == ["statistic", "expected_standard_error"]


def test_undefined_expectations_are_null(tmp_path: Path) -> None:
    flat = pa.table({"a": [5.0] * 10, "b": [float(i % 4) for i in range(10)]})
    schema = {"a": rt.Numeric(0, 10), "b": rt.Numeric(0, 3)}
    plan = rt.plan(flat, rt.moments(["a", "b"]), epsilon=1.0, rows=10, schema=schema)
    expected = {r["statistic"]: r["expected_standard_error"] for r in plan.statistics_table()}
    assert expected["corr(a, b)"] is None
    assert expected["sd(a)"] is None
    assert expected["mean(a)"] > 0
    plan.save(tmp_path / "plan.json")
    assert rt.load_plan(tmp_path / "plan.json") == plan


# --- the promise -------------------------------------------------------------------------


def test_the_statement_says_what_is_spent_and_what_not() -> None:
    plan = make()
    text = plan.statement
    assert "(ε = 1, δ = 4e-6)-DP" in text
    assert "the content of any one row is protected" in text
    assert "the number of rows is public" in text
    assert f"{plan.queries.size} exact integer sums with discrete Gaussian noise" in text
    assert "generator's guarantee was not declared" in text
    assert 'Bounds or categories of age, "pay, net", sex were read off the synthetic table' in text
    assert "Not covered: the output of evaluate" in text
    assert "No ledger was kept" in text
    assert plan.total is None
    assert plan.privacy["total"] is None
    assert plan.privacy["post_processing"] == {
        "kind": "approx-dp",
        "epsilon": 1.0,
        "delta": 1 / ROWS**2,
    }


def test_the_statement_of_other_mechanisms() -> None:
    assert "ε = 1 pure DP" in make(delta=0).statement
    assert "discrete Laplace noise" in make(delta=0).statement
    assert make(delta=0).privacy["mechanism"] == "discrete-laplace"
    assert "ρ = 0.05 zCDP" in make(epsilon=None, rho=0.05).statement
    text = make(unit=rt.AddRemoveOneRow()).statement
    assert "the presence of any one row is protected" in text
    assert "sums and the row count with discrete Gaussian" in text
    assert "can tell that number" in text


def test_the_generators_guarantee_is_added() -> None:
    plan = make(generator=rt.Generator(rt.ApproxDP(3.0, 1e-6), rt.ReplaceOneRow()))
    assert isinstance(plan.total, rt.ApproxDP)
    assert plan.total.epsilon == 4
    assert plan.total.delta == pytest.approx(5e-6)
    assert "(ε = 3, δ = 1e-6)-DP (replace-one neighbours)" in plan.statement
    assert "the post-processed table satisfies (ε = 4, δ = 5e-6)-DP" in plan.statement
    assert "were read off" not in plan.statement
    converted = make(generator=rt.Generator(rt.PureDP(1.0), rt.AddRemoveOneRow()))
    assert "which is ε = 2 pure DP for replace-one neighbours" in converted.statement
    assert converted.total == rt.ApproxDP(3.0, 4e-6)


def test_a_guarantee_that_cannot_be_added_is_refused() -> None:
    generator = rt.Generator(rt.ApproxDP(1.0, 1e-6), rt.ReplaceOneRow())
    with pytest.raises(PrivacyError, match="can't be turned into one for add/remove"):
        make(unit="add-remove", generator=generator)
    with pytest.raises(PrivacyError, match="reaches 1"):
        make(generator=rt.Generator(rt.ApproxDP(30.0, 1e-6), rt.AddRemoveOneRow()))


# --- what a plan refuses -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"rows": 0}, InputError, "rows: got 0"),
        ({"rows": True}, InputError, "rows: got True"),
        ({"rows": 5.0}, InputError, "rows: got 5.0"),
        ({"measures": (), "scales": ()}, WorkloadError, "names no measure"),
        ({"scales": (Fraction(1),)}, InputError, "got 1 for 2 measures"),
        ({"basis": "cosine"}, InputError, "basis: got 'cosine'"),
        ({"count_scale": Fraction(1)}, InputError, "count_scale"),
        ({"unit": rt.AddRemoveOneRow()}, InputError, "count_scale"),
    ],
)
def test_a_plan_of_parts_that_do_not_fit_is_refused(
    change: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        replace(make(), **change)


def test_scales_that_are_not_positive_are_refused_before_measuring() -> None:
    plan = replace(make(), scales=(Fraction(0), Fraction(1)))
    with pytest.raises(PrivacyError, match="scales"):
        rt.measure(TABLE, plan)


def test_noise_too_large_to_draw_is_refused() -> None:
    with pytest.raises(PrivacyError, match="too large"):
        make(epsilon=1e-13, delta=0)


def test_the_noise_is_that_of_the_joint_bound() -> None:
    """Every deviation over its step is Delta / (distance * loudness), rounded up a hair."""
    for options in PLANS.values():
        plan = make(**options)
        noise, queries = plan.noise, plan.queries
        bound = joint_sensitivity(queries, plan.scales, plan.count_scale, noise.norm)
        delta = float(bound) if noise.norm == 1 else math.sqrt(bound)
        reach = plan.budget.epsilon if noise.norm == 1 else noise.calibration.distance  # type: ignore[union-attr]
        loud = list(map(float, loudest(queries, plan.scales)[0]))
        if plan.count_scale is not None:
            loud.append(float(plan.count_scale))
        found = np.array(noise.scales) / np.array(noise.steps, dtype=np.float64)
        np.testing.assert_allclose(found, delta / reach / np.array(loud), rtol=1e-9)
        assert min(noise.scales) >= 1e4


def test_names_of_every_kind_survive_a_file() -> None:
    names = ["a, b", 'q"', "new\nline", "", "Größe", "\u202e"]
    rows = pa.table([pa.array(np.linspace(0, 1, 60)) for _ in names], names=names)
    plan = rt.plan(rows, rt.moments(names), epsilon=1.0, rows=60)
    again = plan_from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.queries.statistics == plan.queries.statistics
