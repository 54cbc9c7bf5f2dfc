"""--select and --select-share on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retilt.cli import main

ASKED = ["--marginal", "sex,city", "--marginal", "sex", "--moments", "age", "--share", "age > 40"]


@pytest.fixture
def folder(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tables


def run(*arguments: object) -> int:
    return main(list(map(str, arguments)))


def told(capsys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_plan_measure_and_fit(folder: Path, capsys: Any) -> None:
    synthetic, private = folder / "synthetic.csv", folder / "private.csv"
    rows = len(private.read_text(encoding="utf-8").splitlines()) - 1
    options = ["--schema", folder / "schema.toml", "--epsilon", 2, "--rows", rows]
    assert run("plan", synthetic, *ASKED, *options, "--select", 2, "-o", "plan.json") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "those of the measures that are chosen" in text
    assert "2 of the 4 measures will be chosen" in text
    assert "Of 4 measures 2 are chosen" in text
    assert run("measure", private, "plan.json", "-o", "answers.json") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Chosen of 4 measures" in text
    assert "Of 4 measures 2 were chosen" in text
    assert run("fit", synthetic, "answers.json", "--tilt", "t.json", "--output", "json") in (0, 4)
    found = told(capsys)
    assert found["privacy"]["selection"]["chosen"] == 2
    assert any("Chosen of 4 measures" in note for note in found["notes"])
    assert run("audit", "plan.json", "--draws", 1000, "--pairs", 1000) == 0


def test_run_and_json(folder: Path, capsys: Any) -> None:
    synthetic, private = folder / "synthetic.csv", folder / "private.csv"
    options = ["--schema", folder / "schema.toml", "--epsilon", 2, "--delta", 0, "-o", "post.csv"]
    share = ["--select", 1, "--select-share", 0.4]
    code = run("run", private, synthetic, *ASKED, *options, *share, "--output", "json")
    assert code in (0, 4)
    found = told(capsys)
    assert found["privacy"]["post_processing"] == {"kind": "pure-dp", "epsilon": 2}
    assert found["privacy"]["selection"] == {
        "chosen": 1,
        "candidates": 4,
        "mechanism": "noisy-max-exponential",
        "choosing": {"kind": "pure-dp", "epsilon": 0.8},
        "measuring": {"kind": "pure-dp", "epsilon": 1.2},
    }


def test_what_if(folder: Path, capsys: Any) -> None:
    options = ["--schema", folder / "schema.toml", "--rows", 4000, "--what-if", "0.5,2"]
    synthetic = folder / "synthetic.csv"
    assert run("plan", synthetic, *ASKED, *options, "--select", 2, "--output", "json") == 0
    few = told(capsys)["what_if"]["statistics"]
    assert run("plan", synthetic, *ASKED, *options, "--output", "json") == 0
    every = told(capsys)["what_if"]["statistics"]
    assert {s["statistic"] for s in few} == {s["statistic"] for s in every}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--select", 4], "there is nothing to choose"),
        (["--select", 0], "whole number above 0"),
        (["--select-share", 0.2], "it goes with select"),
        (["--select", 2, "--select-share", 2], "between 0 and 1"),
    ],
)
def test_refusals(folder: Path, capsys: Any, options: list[object], message: str) -> None:
    given = ["--schema", folder / "schema.toml", "--epsilon", 1, "--rows", 4000, *options]
    assert run("plan", folder / "synthetic.csv", *ASKED, *given) == 2
    assert message in " ".join(capsys.readouterr().err.split())
