from __future__ import annotations

import json

import pytest

from retilt.cli import main


def test_unreachable_answers_are_exit_code_4_with_outputs(tmp_path, capsys):
    """A synthetic table with no row where the private one has most of its rows."""
    (tmp_path / "private.csv").write_text("x\n" + "9\n" * 4000 + "0\n" * 10, "utf-8")
    rows = "".join(f"{i % 3}\n" for i in range(4000))
    (tmp_path / "synthetic.csv").write_text("x\n" + rows, "utf-8")
    (tmp_path / "schema.toml").write_text(
        '[columns.x]\nkind = "numeric"\nlower = 0\nupper = 10\n', "utf-8"
    )
    code = main(
        ["run", str(tmp_path / "private.csv"), str(tmp_path / "synthetic.csv"), "--moments", "x",
         "--schema", str(tmp_path / "schema.toml"), "--epsilon", "1", "--output", "json",
         "-o", str(tmp_path / "post.csv")]
    )  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert code == 4
    assert report["status"] == "infeasible_measures"
    assert report["advice"]
    assert (tmp_path / "post.csv").exists()


def test_reachable_answers_are_exit_code_0(tables, tmp_path):
    code = main(
        ["run", str(tables / "private.csv"), str(tables / "synthetic.csv"), "--moments", "age",
         "--schema", str(tables / "schema.toml"), "--epsilon", "1", "--quiet",
         "-o", str(tmp_path / "post.csv")]
    )  # fmt: skip
    assert code == 0


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
