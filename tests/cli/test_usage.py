from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retilt._measures import names_of
from retilt._options import Unit, generator_of
from retilt._version import __version__
from retilt.cli import COMMANDS, main
from retilt.exceptions import InputError, WorkloadError
from retilt.privacy.budget import ZCDP, ApproxDP, PureDP


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"retilt {__version__}\n", "")


def test_help_names_every_command(capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    for command in COMMANDS:
        assert command in out


def test_bare_call_prints_help_and_is_bad_usage(capsys):
    code, out, _ = run(capsys)
    assert code == 2
    assert "Usage" in out


EVERY = [[c] for c in COMMANDS if c != "budget"] + [["budget", c] for c in ("open", "show", "list")]


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_help_of_every_command(capsys, command):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert "--output" in out


def test_help_imports_nothing_heavy():
    heavy = {"numpy", "scipy", "pyarrow", "duckdb", "opendp", "pandas", "polars", "narwhals"}
    code = (
        "import sys\nfrom retilt.cli import main\nmain(['--help'])\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run"],
        ["run", "a.csv", "b.csv", "--nonsense"],
        ["plan", "a.csv", "--epsilon", "one"],
        ["plan", "a.csv", "--unit", "person"],
        ["plan", "a.csv", "--top", "1"],
        ["fit", "a.csv", "b.json", "--method", "multinomial"],
        ["measure", "a.csv", "b.json"],
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "--help" in err


def test_bad_usage_as_json(capsys):
    code, out, err = run(capsys, "plan", "a.csv", "--nonsense", "--output", "json")
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2
    assert err.startswith("error: ")


@pytest.mark.parametrize("command", [["plan", "S.csv"], ["run", "P.csv", "S.csv", "-o", "x.csv"]])
def test_without_a_measure_says_what_can_be_named(capsys, command):
    code, out, err = run(capsys, *command, "--epsilon", "1")
    assert (code, out) == (2, "")
    assert "--correlate-with TARGET --top 5" in err
    for option in ("--correlate", "--moments", "--marginal", "--workload"):
        assert option in err


class TestNames:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("a", ["a"]),
            ("a,b", ["a", "b"]),
            ('"a,b",c', ["a,b", "c"]),
            ('"a ""x""",b', ['a "x"', "b"]),
            (" a,b", [" a", "b"]),
            ('"",b', ["", "b"]),
            ('"two\nlines"', ["two\nlines"]),
        ],
    )
    def test_one_csv_record(self, text, names):
        assert names_of(text, "--correlate") == names

    @pytest.mark.parametrize("text", ["", 'a"b"c"', '"a', '"a"b', "a\nb"])
    def test_refuses_what_is_no_record(self, text):
        if text == 'a"b"c"':
            # A quote inside an unquoted field is a letter of its name.
            assert names_of(text, "--correlate") == [text]
            return
        with pytest.raises(WorkloadError, match="--correlate: got"):
            names_of(text, "--correlate")


class TestGenerator:
    def test_absent(self):
        assert generator_of(None, None, None, None) is None

    def test_its_neighbours_have_no_default(self):
        with pytest.raises(InputError, match="--generator-unit"):
            generator_of(3, 1e-9, None, None)
        with pytest.raises(InputError, match="--generator-unit"):
            generator_of(None, None, None, Unit.REPLACE)

    def test_kinds(self):
        assert generator_of(3, 1e-9, None, Unit.REPLACE).budget == ApproxDP(3, 1e-9)
        assert generator_of(3, 0, None, Unit.REPLACE).budget == PureDP(3)
        assert generator_of(None, None, 0.5, Unit.ADD_REMOVE).budget == ZCDP(0.5)

    @pytest.mark.parametrize(
        "given", [(3, None, None), (None, 1e-9, None), (3, None, 0.5), (None, 1e-9, 0.5)]
    )
    def test_incomplete_or_double(self, given):
        with pytest.raises(InputError, match="generator"):
            generator_of(*given, Unit.REPLACE)
