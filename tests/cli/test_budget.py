"""``retilt budget`` and ``--ledger`` as a custodian uses them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from retilt import cli
from retilt.exceptions import InputError

ROWS = "age,sex\n25,M\n35,M\n45,F\n55,F\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "synthetic.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def open_adult(*more: str) -> None:
    cap = ["--epsilon", "3", "--delta", "1e-6"]
    assert run("budget", "open", "budget.db", "--name", "adult", *cap, *more) == 0


def plan(name: str = "plan.json", *more: str) -> None:
    options = ["--marginal", "sex", "--epsilon", "1", "--delta", "1e-9", "--rows", "4", *more]
    assert run("--quiet", "plan", "synthetic.csv", *options, "-o", name) == 0


def measure(out: str, *more: str) -> int:
    return run("measure", "real.csv", "plan.json", "-o", out, "--ledger", "budget.db", *more)


def shown(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run("budget", "show", "budget.db", "--output", "json", *more) == 0
    return json.loads(capsys.readouterr().out)


def test_from_opening_to_the_cap(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    open_adult()
    plan()
    assert [measure(f"{n}.json", "--quiet") for n in range(4)] == [0, 0, 0, 3]
    assert "the ε would pass the cap" in capsys.readouterr().err
    assert not (folder / "3.json").exists()
    found = shown(capsys)
    assert found["name"] == "adult"
    assert found["cap"] == {"epsilon": 3, "delta": 1e-6}
    assert found["spent"] == {"epsilon": 3, "delta": 3e-9}
    for number, charge in enumerate(found["charges"]):
        file = folder / f"{number}.json"
        assert charge["answers_file"] == str(file)
        assert charge["answers_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert run("measure", "no.csv", "plan.json", "-o", "x.json", "--ledger", "budget.db") == 3


def test_the_second_time_points_to_the_first(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    open_adult()
    plan()
    assert measure("one.json", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert measure("two.json", "--quiet") == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: this plan was measured on the data set 'adult' before")
    assert str(folder / "one.json") in said
    assert said.count("\n") == 1


def test_a_missing_ledger_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plan()
    assert measure("answers.json") == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (folder / "budget.db").exists()
    assert run("budget", "show", "budget.db") == run("budget", "list", "budget.db") == 2


def test_the_ledger_is_no_output(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    open_adult()
    plan()
    before = (folder / "budget.db").read_bytes()
    assert measure("budget.db", "--force") == 2
    assert "is an input file" in capsys.readouterr().err
    assert (folder / "budget.db").read_bytes() == before
    assert measure("budget.db-wal", "--force") == 2
    assert "belongs to a ledger" in capsys.readouterr().err


def test_list_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    open_adult(
        "--generator-epsilon", "3", "--generator-delta", "0", "--generator-unit", "add-remove"
    )
    cap = ["--rho", "0.1", "--person", "id", "--unit", "add-remove"]
    assert run("budget", "open", "budget.db", "--name", "people", *cap) == 0
    capsys.readouterr()
    assert run("budget", "list", "budget.db", "--output", "json") == 0
    found = json.loads(capsys.readouterr().out)["datasets"]
    assert [d["name"] for d in found] == ["adult", "people"]
    assert found[1]["unit"] == "add-remove-person"
    assert found[1]["person"] == "id"
    assert run("budget", "list", "budget.db") == 0
    assert re.search(r"people +ρ = 0\.1", capsys.readouterr().out)
    assert run("budget", "show", "budget.db") == 2
    assert "expected one of its data sets: 'adult', 'people'" in capsys.readouterr().err
    assert run("budget", "show", "budget.db", "--dataset", "adult") == 0
    assert "Together with the generator: ε = 6" in capsys.readouterr().out


def test_run_takes_a_ledger_too(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    open_adult()
    call = ["run", "real.csv", "synthetic.csv", "--marginal", "sex", "--ledger", "budget.db"]
    call += ["--delta", "1e-9", "--quiet", "--force"]
    files = ["-o", "post.csv", "--privacy", "privacy.md", "--answers", "answers.json"]
    assert run(*call, "--epsilon", "2", *files) in (0, 4)
    assert run(*call, "--epsilon", "2", *files) == 3
    assert run(*call, "--epsilon", "9", *["no.csv" if c == "real.csv" else c for c in files]) == 3
    found = shown(capsys)
    assert found["spent"]["epsilon"] == 2
    assert found["charges"][0]["answers_file"] == str(folder / "answers.json")
    page = (folder / "privacy.md").read_text(encoding="utf-8")
    assert "charge 1 of the ledger's data set 'adult'" in page
    assert found["charges"][0]["answers_sha256"] in page


def test_tight_composition_is_shown_only(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    open_adult()
    plan()
    for number in range(3):
        assert measure(f"{number}.json", "--quiet") == 0
    found = shown(capsys)
    assert found["tight"]["delta"] == 1e-6
    assert 0 < found["tight"]["epsilon"] < found["spent"]["epsilon"]
    assert run("budget", "show", "budget.db") == 0
    assert "no cap goes by it" in " ".join(capsys.readouterr().out.split())


def test_run_with_a_ledger_keeps_its_answers(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    open_adult()
    call = ["run", "real.csv", "synthetic.csv", "--marginal", "sex", "--ledger", "budget.db"]
    assert run(*call, "--epsilon", "1", "--delta", "1e-9", "--quiet", "-o", "post.csv") in (0, 4)
    (kept,) = folder.glob("retilt-answers-*.json")
    assert kept.name in capsys.readouterr().err
    assert shown(capsys)["charges"][0]["answers_file"] == str(folder / kept.name)


def test_a_page_that_can_not_be_written_does_not_hide_the_answers(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise InputError("output 'privacy.md' can't be written: No space left on device.")

    open_adult()
    plan()
    monkeypatch.setattr("retilt.cli.write_text", full)
    assert measure("answers.json", "--privacy", "privacy.md") == 2
    assert "The answers are paid for and written: answers.json." in capsys.readouterr().err
    assert (folder / "answers.json").exists()
