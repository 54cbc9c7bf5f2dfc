"""The privacy claim in words: what a data protection officer files, and what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.privacy.ledger import Ledger
from retilt.testing import insecure_measure

HOSTILE = "<script>alert(1)</script> | [x](javascript:1) `a` *b* # \n* c $x$ \u202e"
TABLE = pa.table({"age": [20, 30, 40, 50], "sex": ["F", "M", "F", "M"], "id": ["a", "b", "c", "c"]})


def measured(**options: Any) -> rt.Answers:
    ledger = options.pop("ledger", None)
    options.setdefault("epsilon", 1)
    options.setdefault("rows", 4)
    workload = options.pop("workload", rt.marginal(["sex"]))
    return rt.measure(TABLE, rt.plan(TABLE, workload, **options), ledger=ledger)


def words(page: str) -> str:
    """The page as a reader sees it: without escapes and line breaks."""
    return " ".join(re.sub(r"\\(.)", r"\1", page).split())


def test_the_page_has_everything_to_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    generator = rt.Generator(rt.ApproxDP(3, 1e-9), "add-remove")  # type: ignore[arg-type]
    ledger.open_dataset("adult", epsilon=3, delta=1e-6, generator=generator)
    answers = measured(delta=1e-9, generator=generator, ledger=ledger)
    page = words(answers.privacy_page())
    for part in (
        "# Privacy statement",
        "(ε = 1, δ = 1e-9)-DP",
        "replace-one",
        "at most 2.72 times what it would have been then, plus 1e-9",
        "discrete-gaussian",
        "(ε = 3, δ = 1e-9)-DP (add-remove neighbours)",
        "which is (ε = 6,",
        "| Together | (ε = 7,",
        "charge 1 of the ledger's data set 'adult'",
        answers.plan.sha256,
        answers.sha256,
        "The output of evaluate",
        "by looking at private data",
        "How long measuring takes",
        "Whether the generator keeps its word",
        "cell(sex=F)",
        f"| Version of opendp | {answers.versions['opendp']} |",
    ):
        assert part in page, part


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"epsilon": 1, "delta": 0}, ["ε = 1 pure DP", "2.72 times", "discrete-laplace"]),
        ({"epsilon": None, "rho": 0.1}, ["ρ = 0.1 zCDP"]),
        ({"epsilon": 800, "delta": 1e-9}, ["(ε = 800"]),
        (
            {"unit": "add-remove", "delta": 1e-9},
            ["been left out", "and the row count", "can tell that number"],
        ),
        (
            {"unit": rt.ReplaceOnePerson("id", 2), "delta": 1e-9},
            ["had any one person", "been replaced by another", "replace-one-person, id, 2"],
        ),
        ({"delta": 1e-9}, ["No ledger was kept", "was not declared", "were read off"]),
    ],
)
def test_every_kind_of_promise(options: dict[str, Any], parts: list[str]) -> None:
    page = words(measured(**options).privacy_page())
    for part in parts:
        assert part in page, part
    assert ("times what" in page) == (0 < (options.get("epsilon", 1) or 0) < 50)


def test_code_has_no_hash() -> None:
    workload = rt.function(lambda batch: batch["age"].to_numpy() / 100.0, columns=["age"])
    page = words(measured(workload=workload, delta=1e-9).privacy_page())
    assert page.count("none (the plan holds Python code)") == 2
    assert "looks at one row at a time" in page


def test_answers_that_are_not_private_promise_nothing() -> None:
    plan = rt.plan(TABLE, rt.marginal(["sex"]), epsilon=1, rows=4)
    answers = insecure_measure(TABLE, plan, rng=np.random.default_rng(0))
    page = words(answers.privacy_page())
    assert "NOT PRIVATE" in page
    assert "## The promise" not in page
    assert answers.statement.startswith("NOT PRIVATE")


def test_hostile_names_stay_text() -> None:
    table = pa.table({"age": [1, 2, 3], HOSTILE: ["a|b", "<b>", "c"]})
    plan = rt.plan(table, rt.marginal([HOSTILE]), epsilon=1, rows=3)
    page = rt.measure(table, plan).privacy_page()
    assert not re.search(r"(?<!\\)<", page)
    assert not re.search(r"(?<!\\)\[x", page)
    assert "\u202e" not in page
    for line in page.splitlines():
        unescaped = re.sub(r"\\.", "", line)
        assert not line.startswith("|") or unescaped.count("|") == 3, line
        assert unescaped.count("`") == line.count("`answers.json`") * 2
    titles = [line for line in page.splitlines() if line.startswith("#")]
    assert len(titles) == 7


def test_long_releases_are_cut_on_the_page_only() -> None:
    table = pa.table({"town": [f"t{i:03}" for i in range(150)] * 4})
    plan = rt.plan(table, rt.marginal(["town"]), epsilon=1, rows=600)
    page = words(rt.measure(table, plan).privacy_page())
    assert "more, all of them in the answers file" in page
    assert page.count("* cell(") == 100


def test_what_is_not_covered_is_in_the_json(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("adult", epsilon=3, delta=1e-6)
    content = measured(delta=1e-9, ledger=ledger).to_dict()["privacy"]
    assert len(content["not_covered"]) >= 6
    assert content["ledger"]["dataset"] == "adult"
    assert content["unit"] == "replace-one"
    assert content["post_processing"] == {"kind": "approx-dp", "epsilon": 1, "delta": 1e-9}
    assert content["generator"] is content["total"] is None
