"""`retilt plan`: the table of statistics, and --what-if."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retilt.cli import main

ASKED = ["--moments", "age", "--marginal", "sex,city", "--rows", "4000"]


@pytest.fixture
def plan(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> int:
        schema = ["--schema", str(tables / "schema.toml")]
        return main(["plan", str(tables / "synthetic.csv"), *schema, *map(str, arguments)])

    return run


def test_the_table_of_a_plan(plan, capsys):
    assert plan(*ASKED, "--epsilon", 0.01) == 0
    text = capsys.readouterr().out
    for part in (
        "synthetic",
        "expected standard error",
        "mean(age)",
        "about",
        "Privacy, once measured",
    ):
        assert part in text


def test_json_has_all_of_it(plan, capsys):
    assert plan(*ASKED, "--epsilon", 1, "--output", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {"plan", "privacy", "statistics", "costs", "notes", "files"} == set(told)
    row = told["statistics"][0]
    assert row["statistic"] == "mean(age)"
    assert row["expected_standard_error"] > 0
    assert row["flags"] == []
    assert row["reach"][0] >= 17
    # The plan's file knows nothing of it.
    assert set(told["plan"]["statistics"][0]) == {"statistic", "expected_standard_error"}


def test_a_long_table_is_cut(plan, capsys):
    assert plan("--marginal", "age:bins=60,sex", "--rows", 4000, "--epsilon", 0.05) == 0
    text = capsys.readouterr().out
    assert "are left out here" in text
    assert text.count("sex=F)") < 40


def test_what_if(plan, capsys, tmp_path):
    assert plan(*ASKED, "--what-if", "3,0.1,1", "--plot", "a.svg") == 0
    text = capsys.readouterr().out
    assert text.index("ε = 0.1") < text.index("ε = 1 ") < text.index("ε = 3")
    assert "drowned in noise" in text
    assert "once measured" not in text  # there is no plan
    assert (tmp_path / "a.svg").exists()


def test_what_if_beside_a_plan(plan, capsys, tmp_path):
    assert plan(*ASKED, "--rho", 0.1, "--what-if", "rho:0.1,1", "-o", "p.json",
                "--output", "json") == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert [b["rho"] for b in told["what_if"]["budgets"]] == [0.1, 1]
    first = told["what_if"]["statistics"][0]
    assert first["expected_standard_errors"][0] == told["statistics"][0]["expected_standard_error"]
    assert (tmp_path / "p.json").exists()


def test_what_if_alone_as_json(plan, capsys):
    assert plan("--moments", "age", "--rows", 4000, "--what-if", "1", "--output", "json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"what_if", "files"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--what-if", "a"], "--what-if"),
        (["--what-if", ""], "--what-if"),
        (["--what-if", "1,,2"], "--what-if"),
        (["--what-if", "rho:"], "--what-if"),
        (["--what-if", "0,1"], "above 0"),
        (["--what-if", "-1"], "above 0"),
        (["--what-if", "nan"], "above 0"),
        (["--what-if", "inf"], "above 0"),
        (["--what-if", "1", "-o", "p.json"], "--epsilon"),
        (["--what-if", "1", "--plot", "a.jpg"], ".svg"),
        (["--what-if", "1", "--plot", "no/folder.svg"], "folder"),
        (["--epsilon", "1", "--plot", "a.svg"], "--what-if"),
        ([], "epsilon"),
    ],
)
def test_wrong_values(plan, capsys, tmp_path, arguments, word):
    assert plan(*ASKED, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert word in error
    assert not list(tmp_path.iterdir())


def test_an_existing_plot_stays(plan, capsys, tmp_path):
    (tmp_path / "a.svg").write_text("mine")
    assert plan(*ASKED, "--what-if", "1", "--plot", "a.svg") == 2
    assert (tmp_path / "a.svg").read_text() == "mine"
    assert plan(*ASKED, "--what-if", "1", "--plot", "a.svg", "--force") == 0
    assert "svg" in (tmp_path / "a.svg").read_text()
