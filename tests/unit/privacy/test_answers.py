"""Answers: their file, what another table changes in it, estimates and their errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import FormatError, InputError, OutputExistsError
from retilt.privacy.answers import Answers
from retilt.testing import insecure_measure

ROWS = 800
WORKLOAD = rt.moments(["age", "pay"]) + rt.marginal(["sex", "age"], bins={"age": [30, 50]})
PLAIN = rt.moments(["age", "pay"]) + rt.marginal(["sex", "age"])
SCHEMA = {"age": rt.Numeric(17, 90, integer=True), "pay": rt.Numeric(0, 10)}


def people(seed: int, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    pull = rng.normal(size=rows)
    return pa.table(
        {
            "age": np.clip(np.rint(40 + 8 * (pull + rng.normal(size=rows))), 17, 90).astype(int),
            "pay": np.clip(4 + pull + rng.normal(size=rows), 0, 10),
            "sex": np.where(pull > 0.3, "F", "M"),
        }
    )


SYNTHETIC, PRIVATE = people(0), people(1)


def make(workload: rt.Workload = WORKLOAD, **options: Any) -> rt.Plan:
    options = {"epsilon": 1.0, "rows": ROWS, "schema": SCHEMA, **options}
    return rt.plan(SYNTHETIC, workload, **options)


OPTIONS = {
    "gaussian": {},
    "pure": {"delta": 0},
    "rho": {"epsilon": None, "rho": 0.05},
    "add-remove": {"unit": "add-remove"},
    "add-remove pure": {"unit": "add-remove", "delta": 0},
    "paper": {"basis": "paper"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_file_gives_the_answers_back(name: str, tmp_path: Path) -> None:
    answers = rt.measure(PRIVATE, make(PLAIN, **OPTIONS[name]))
    answers.save(tmp_path / "answers.json")
    loaded = rt.load_answers(tmp_path / "answers.json")
    assert loaded == answers
    assert loaded.plan.sha256 == answers.plan.sha256
    assert loaded.private is True
    np.testing.assert_array_equal(loaded.means, answers.means)
    pd.testing.assert_frame_equal(loaded.to_frame(), answers.to_frame())  # NaN equals NaN
    loaded.save(tmp_path / "again.json")
    again, first = ((tmp_path / f).read_bytes() for f in ("again.json", "answers.json"))
    assert again == first


@pytest.mark.parametrize("name", OPTIONS)
def test_another_table_changes_the_values_only(name: str, tmp_path: Path) -> None:
    plan = make(**OPTIONS[name])
    for number, table in enumerate((PRIVATE, people(7))):
        rt.measure(table, plan).save(tmp_path / f"{number}.json")
    one, other = (json.loads((tmp_path / f"{i}.json").read_text("utf-8")) for i in range(2))
    values = one.pop("values"), other.pop("values")
    assert values[0] != values[1]
    assert one == other


def test_under_add_remove_the_number_of_rows_shows_nowhere(tmp_path: Path) -> None:
    plan = make(unit="add-remove", rows=777)
    for number, rows in enumerate((0, 1, 123_457)):
        rt.measure(people(3, rows), plan).save(tmp_path / f"{number}.json")
    contents = [json.loads((tmp_path / f"{i}.json").read_text("utf-8")) for i in range(3)]
    for content in contents:
        content.pop("values")
        assert "123457" not in json.dumps(content)
    assert contents[0] == contents[1] == contents[2]


def test_the_file_says_how_and_by_what() -> None:
    answers = rt.measure(PRIVATE, make())
    content = answers.to_dict()
    assert content["mechanism"] == "discrete-gaussian"
    assert content["private"] is True
    assert content["plan_sha256"] == answers.plan.sha256
    assert content["privacy"]["statement"] == answers.statement == answers.plan.statement
    assert set(content["versions"]) == {"retilt", "opendp", "numpy", "python"}
    assert content["versions"]["retilt"] == rt.__version__
    assert all(isinstance(v, str) and int(v) is not None for v in content["values"])
    assert not {"path", "host", "user", "time"} & set(content)


def test_existing_files_stay_unless_forced(tmp_path: Path) -> None:
    answers = rt.measure(PRIVATE, make())
    answers.save(tmp_path / "a.json")
    with pytest.raises(OutputExistsError):
        answers.save(tmp_path / "a.json")
    answers.save(tmp_path / "a.json", force=True)


def test_other_files_are_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "plan.json")
    with pytest.raises(FormatError, match="format: got 'retilt-plan/1'"):
        rt.load_answers(tmp_path / "plan.json")
    with pytest.raises(FormatError, match="No such file"):
        rt.load_answers(tmp_path / "none.json")
    content = rt.measure(PRIVATE, make()).to_dict()
    content["plan"]["rows"] += 1
    (tmp_path / "edited.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match="do not belong together"):
        rt.load_answers(tmp_path / "edited.json")


@pytest.mark.parametrize("name", ["values", "factors", "noise_scales"])
def test_answers_have_a_number_for_each_query(name: str) -> None:
    answers = rt.measure(PRIVATE, make())
    with pytest.raises(InputError, match=f"{name}: got"):
        replace(answers, **{name: getattr(answers, name)[:-1]})


def test_the_table_of_estimates() -> None:
    answers = rt.measure(PRIVATE, make())
    frame = answers.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["statistic", "estimate", "standard_error", "flag"]
    assert list(frame["statistic"]) == list(answers.plan.queries.statistics)
    assert list(frame["statistic"][:6]) == [
        "mean(age)",
        "mean(pay)",
        "sd(age)",
        "sd(pay)",
        "corr(age, pay)",
        "cell(sex=F, age=[17, 30))",
    ]
    pd.testing.assert_frame_equal(frame, pd.DataFrame(answers.statistics_table()))


def test_without_pandas_the_table_is_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retilt.engines.frames.find_spec", lambda name: None)
    assert isinstance(rt.measure(PRIVATE, make()).to_frame(), pa.Table)


# --- estimates ---------------------------------------------------------------------------


def truth(table: pa.Table) -> dict[str, float]:
    """The statistics of the workload by NumPy alone."""
    age, pay = (table[n].to_numpy().astype(float) for n in ("age", "pay"))
    sex = table["sex"].to_numpy(zero_copy_only=False)
    found = {
        "mean(age)": age.mean(),
        "mean(pay)": pay.mean(),
        "sd(age)": age.std(),
        "sd(pay)": pay.std(),
        "corr(age, pay)": np.corrcoef(age, pay)[0, 1],
    }
    for who in ("F", "M", "other", "null"):
        for name, low, high in (("[17, 30)", 0, 30), ("[30, 50)", 30, 50), ("[50, 90]", 50, 91)):
            share = ((sex == who) & (age >= low) & (age < high)).mean()
            found[f"cell(sex={who}, age={name})"] = share
        found[f"cell(sex={who}, age=null)"] = 0.0
    return {k: float(v) for k, v in found.items()}


def test_without_noise_the_estimates_are_the_statistics() -> None:
    for options in OPTIONS.values():
        plan = make(**options)
        answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(0), noise=False)
        expected = truth(PRIVATE)
        for row in answers.statistics_table():
            # pay is rounded to a grid of 1/65536 of its range.
            assert row["estimate"] == pytest.approx(expected[row["statistic"]], rel=2e-4, abs=1e-9)
        assert len(expected) == len(answers.statistics_table())


@pytest.mark.parametrize("name", OPTIONS)
def test_estimates_scatter_around_the_truth_as_told(name: str) -> None:
    """200 releases at a large budget: within 6 standard errors, whose spread is as told."""
    options = {**OPTIONS[name]}
    options.update({"rho": 5.0} if "rho" in options else {"epsilon": 20.0})
    plan = make(**options)
    rng = np.random.default_rng(11)
    expected = truth(PRIVATE)
    releases = [insecure_measure(PRIVATE, plan, rng=rng).statistics_table() for _ in range(200)]
    names = [row["statistic"] for row in releases[0]]
    estimates = np.array([[r["estimate"] for r in table] for table in releases])
    errors = np.array([[r["standard_error"] for r in table] for table in releases])
    off = (estimates - np.array([expected[n] for n in names])) / errors
    assert np.abs(off).max() < (14 if plan.noise.norm == 1 else 6)
    assert np.abs(off.mean(axis=0)).max() < 6 / math.sqrt(200)
    # A Laplace variable's fourth moment makes its sample deviation twice as uncertain.
    np.testing.assert_allclose(off.std(axis=0), 1, rtol=0.4 if plan.noise.norm == 1 else 0.25)
    # Under add/remove one error of the count is in all statistics of a release.
    assert np.sqrt((off**2).mean()) == pytest.approx(1, rel=0.1 if plan.noise.norm == 1 else 0.05)


@pytest.mark.parametrize("name", OPTIONS)
def test_secure_estimates_are_near_the_truth(name: str) -> None:
    options = {**OPTIONS[name]}
    options.update({"rho": 50.0} if "rho" in options else {"epsilon": 200.0})
    expected = truth(PRIVATE)
    for row in rt.measure(PRIVATE, make(**options)).statistics_table():
        # Rounding to the grid is no part of the standard error.
        slack = 12 * row["standard_error"] + 2e-4 * abs(expected[row["statistic"]])
        assert abs(row["estimate"] - expected[row["statistic"]]) < slack


def test_expected_errors_are_those_that_come() -> None:
    """The synthetic table stands in well: the plan's prediction is within a fifth."""
    for options in OPTIONS.values():
        plan = make(**{**options, **({"epsilon": 20.0} if "rho" not in options else {"rho": 5.0})})
        answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(2))
        told = [row["standard_error"] for row in answers.statistics_table()]
        np.testing.assert_allclose(plan.expected, told, rtol=0.2, atol=1e-5)


def test_the_count_is_measured_under_add_remove() -> None:
    plan = make(unit="add-remove", rows=5, delta=1e-6, epsilon=10.0)
    answers = insecure_measure(people(5, 3000), plan, rng=np.random.default_rng(1))
    assert len(answers.values) == plan.queries.size + 1
    assert answers.rows == pytest.approx(3000, abs=100)
    assert answers.rows != 3000
    assert answers.common_noise.shape == (plan.queries.size, 1)
    public = insecure_measure(PRIVATE, make(), rng=np.random.default_rng(1))
    assert public.rows == ROWS
    assert public.common_noise.shape == (public.plan.queries.size, 0)


def test_a_noisy_count_below_one_counts_as_one() -> None:
    plan = make(unit="add-remove", rows=5, delta=1e-6, epsilon=0.1)
    answers = insecure_measure(people(5, 0), plan, rng=np.random.default_rng(0), noise=False)
    assert answers.rows == 1.0
    negative = replace(answers, values=(*answers.values[:-1], -5 * answers.steps[-1]))
    assert negative.rows == 1.0
    assert np.isfinite(negative.means).all()


def test_insecure_answers_say_so_everywhere(tmp_path: Path) -> None:
    answers: Answers = insecure_measure(PRIVATE, make(PLAIN), rng=np.random.default_rng(0))
    assert answers.private is False
    assert answers.statement.startswith("NOT PRIVATE")
    assert answers.privacy["private"] is False
    assert answers.privacy["statement"].startswith("NOT PRIVATE")
    content = answers.to_dict()
    assert content["private"] is False
    assert content["privacy"]["statement"].startswith("NOT PRIVATE")
    answers.save(tmp_path / "a.json")
    loaded = rt.load_answers(tmp_path / "a.json")
    assert loaded == answers
    assert loaded.statement.startswith("NOT PRIVATE")
    tilt = rt.fit(SYNTHETIC, loaded)
    assert tilt.answers.private is False
    assert tilt.to_dict()["answers"]["private"] is False
