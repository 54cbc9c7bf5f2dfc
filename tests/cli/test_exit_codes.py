from __future__ import annotations

import json
from pathlib import Path

import pytest

from retilt.cli import main

UNREACHABLE = [
    "run", "private.csv", "synthetic.csv", "--moments", "x", "--schema", "schema.toml",
    "--epsilon", "1",
]  # fmt: skip


@pytest.fixture
def unreachable(tmp_path, monkeypatch):
    """A synthetic table with no row where the private one has most of its rows."""
    (tmp_path / "private.csv").write_text("x\n" + "9\n" * 4000 + "0\n" * 10, "utf-8")
    rows = "".join(f"{i % 3}\n" for i in range(4000))
    (tmp_path / "synthetic.csv").write_text("x\n" + rows, "utf-8")
    (tmp_path / "schema.toml").write_text(
        '[columns.x]\nkind = "numeric"\nlower = 0\nupper = 10\n', "utf-8"
    )
    monkeypatch.chdir(tmp_path)


def test_unreachable_answers_are_exit_code_4_with_outputs(unreachable, capsys):
    code = main([*UNREACHABLE, "--output", "json", "-o", "post.csv"])
    report = json.loads(capsys.readouterr().out)
    assert code == 4
    assert report["status"] == "infeasible_measures"
    assert report["advice"]
    assert Path("post.csv").exists()


def test_what_exit_code_4_advises_can_be_done(unreachable, capsys):
    """The advice is to fit other rows to the answers: they are paid for, and must be there."""
    assert main([*UNREACHABLE, "--output", "json", "-o", "post.csv"]) == 4
    out, err = capsys.readouterr()
    (kept,) = Path().glob("retilt-answers-*.json")
    assert json.loads(out)["files"] == {"table": "post.csv", "answers": str(kept)}
    assert f"the answers were kept in {kept}: go on with `retilt fit`" in " ".join(err.split())
    mixed = ["fit", "synthetic.csv", str(kept), "--support", "mix", "--seed", "0", "-o", "mix.csv"]
    assert main(mixed) == 0
    assert main([*UNREACHABLE, "--answers", "answers.json"]) == 4
    assert list(Path().glob("retilt-answers-*.json")) == [kept]


def test_reachable_answers_are_exit_code_0(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = main(
        ["run", str(tables / "private.csv"), str(tables / "synthetic.csv"), "--moments", "age",
         "--schema", str(tables / "schema.toml"), "--epsilon", "1", "--quiet",
         "-o", str(tmp_path / "post.csv")]
    )  # fmt: skip
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["post.csv"]


@pytest.mark.parametrize("epsilon", ["0", "inf"])
def test_refused_budget_is_bad_usage(tables, epsilon):
    synthetic = str(tables / "synthetic.csv")
    assert main(["plan", synthetic, "--moments", "age", "--epsilon", epsilon]) == 2


def test_generator_that_cannot_be_added_is_refused_for_privacy(tables, tmp_path):
    """A replace-one guarantee says nothing about add/remove neighbours."""
    code = main(
        ["plan", str(tables / "synthetic.csv"), "--moments", "age", "--epsilon", "1", "--delta",
         "1e-6", "--unit", "add-remove", "--generator-rho", "1", "--generator-unit",
         "replace-one", "-o", str(tmp_path / "plan.json")]
    )  # fmt: skip
    assert code == 3
    assert not (tmp_path / "plan.json").exists()
