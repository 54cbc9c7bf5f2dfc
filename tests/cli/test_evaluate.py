"""``retilt evaluate``: what it prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retilt.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tables: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*options: str) -> tuple[int, str, str]:
        private, synthetic = str(tables / "private.csv"), str(tables / "synthetic.csv")
        schema = ["--schema", str(tables / "schema.toml")]
        code = main(["evaluate", private, synthetic, synthetic, *schema, *options])
        return code, *capsys.readouterr()

    return call


def test_text_has_every_figure_under_its_warning(run: Run, tables: Path) -> None:
    test = str(tables / "private.csv")
    code, out, err = run("--target", "income", "--test", test, "--detection", "--columns",
                         'age,"hours, weekly"')  # fmt: skip
    assert (code, err) == (0, "")
    assert out.count("NOT PRIVATE") == 2  # before the figures and after
    for words in (
        "utility improvement, all columns",
        "Jensen-Shannon distance as synthcity",
        "inverse KL divergence",
        "total variation, two columns",
        "F1, one-hot as SDMetrics",
        "F1, labels scaled",
        "error of a group's rate",
        "detection AUC",
        "income = >50K in 4,000 test rows",
        "All columns: age, hours, weekly, income, sex, city.",
    ):
        assert words in out, words


def test_json_has_the_same(run: Run, tables: Path) -> None:
    code, out, _ = run("--target", "income", "--test", str(tables / "private.csv"), "--positive",
                       "<=50K", "--output", "json")  # fmt: skip
    assert code == 0
    report = json.loads(out)
    assert report["private"] is False
    assert report["f1"]["positive"] == "<=50K"
    assert 0.5 < report["f1"]["one_hot"]["real"] < 1
    assert report["groups"]["by_column"].keys() == {"sex", "city"}
    assert report["detection"] is None
    assert report["marginals"]["total_variation"]["two_way"]["before"] > 0
    assert report["reasons"] == {"detection": "it was not asked for (detection, --detection)"}
    assert report["left_out"] == []
    assert report["notes"] == []
    assert report["row_counts"]["private"] == report["row_counts"]["test"] == 4_000
    assert report["row_counts"].keys() == {"private", "synthetic", "post", "test"}


def test_quiet_hides_nothing_that_was_asked_for(run: Run) -> None:
    code, out, _ = run("--quiet")
    assert code == 0
    assert "Jensen-Shannon" in out
    assert "NOT PRIVATE" in out


def test_figures_without_a_value_are_explained(
    run: Run, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = str(tables / "private.csv")
    assert main(["evaluate", private, private, private]) == 0
    out = capsys.readouterr().out
    for words in (
        "No value for utility_improvement.raw, utility_improvement.clamped, all_columns.",
        "the correlation error before is 0",
        "No value for f1, groups: no target was named (target, --target).",
        "No value for detection: it was not asked for (detection, --detection).",
        "Rows read: 4,000 in the private table, 4,000 in the synthetic one, 4,000 in the "
        "post-processed one.",
    ):
        assert words in " ".join(out.split()), words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--test", "x.csv"], "test is for predicting a target"),
        (["--positive", "x"], "positive is for predicting a target"),
        (["--target", "nothing"], "no column 'nothing'"),
        (["--target", "city"], "does not have exactly two different values"),
        (["--target", "income", "--positive", "rich"], "got 'rich', which no row"),
        (["--target", "income", "--test", "none.csv"], "no file 'none.csv'"),
    ],
)
def test_what_is_refused(run: Run, options: list[str], words: str) -> None:
    code, _, err = run(*options)
    assert code == 2
    assert words in err


def test_scikit_learn_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    code, _, err = run("--detection")
    assert code == 2
    assert "pip install 'retilt[evaluation]'" in err


def test_private_values_never_show_in_errors(
    run: Run, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text('age,"hours, weekly",income,sex,city\nSECRET1,SECRET2,SECRET3,F,SECRET4\n')
    for options in (["--target", "income"], ["--target", "sex"], ["--columns", "age,nothing"]):
        code = main(["evaluate", str(secret), str(tables / "synthetic.csv"), str(secret), *options])
        assert code == 2
        assert "SECRET" not in "".join(capsys.readouterr())
    code, _, err = run("--target", "income", "--test", str(secret))
    assert (code, "SECRET" in err) == (0, False)


def test_help_says_what_quiet_does(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["evaluate", "--help"], ["--help"]):
        with contextlib.suppress(SystemExit):
            main(command)
        assert "figures" in capsys.readouterr().out.partition("--quiet")[2][:300], command


def test_what_is_left_out_is_named_with_the_reason(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i % 7},{i % 3},k{i},{i % 5}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,id,z", *rows]))
    (tmp_path / "b.csv").write_text("\n".join(["x,y,id", *(r[: r.rindex(",")] for r in rows)]))
    given = [str(tmp_path / name) for name in ("a.csv", "b.csv", "a.csv")]
    assert main(["evaluate", *given]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Left out z: the synthetic table lacks it." in out
    assert "Left out id: column 'id' looks like an identifier" in out


def test_a_target_of_one_class_is_noted(
    run: Run, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic = (tables / "synthetic.csv").read_text().replace(">50K", "<=50K")
    (tmp_path / "flat.csv").write_text(synthetic)
    private, schema = str(tables / "private.csv"), str(tables / "schema.toml")
    given = [private, str(tmp_path / "flat.csv"), private, "--schema", schema]
    assert main(["evaluate", *given, "--target", "income", "--test", private]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Note: the target 'income' is never '>50K' in the synthetic table" in out
    assert out.count("Note:") == 1


def test_help_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main(["evaluate", "--help"])
    assert capsys.readouterr().out.count("retilt[evaluation]") == 2
