from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retilt._terminal import MAX_TABLE_ROWS, Terminal, farthest, number, plain, printable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5000"),
        (-0.5, "-0.5000"),
        (1.0, "1"),
        (999.96, "1000"),
        (-123456.7, "-123457"),
        (1e-9, "1e-09"),
        (1e300, "1e+300"),
        (math.nan, "-"),
        (-math.inf, "-"),
        (None, "-"),
        (np.float64(0.25), "0.2500"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_plain_is_what_json_can_hold():
    value = {
        "a": np.float64("nan"),
        "b": np.arange(2),
        "c": Path("x"),
        3: (True, None, np.int64(1)),
    }
    assert plain(value) == {"a": None, "b": [0, 1], "c": "x", "3": [True, None, 1]}


def test_control_characters_never_reach_the_terminal(capsys):
    terminal = Terminal()
    name = "a\x1b]0;title\x07\r[bold]"
    terminal.say(name)
    terminal.table(name, ["x", "y"], [[name, name]])
    terminal.error("InputError", name, 2)
    out, err = capsys.readouterr()
    assert not any(c in out + err for c in "\x1b\x07\r")
    assert out.count("[bold]") == 4
    assert err.count("\n") == 1


def test_printable_keeps_letters_of_all_scripts():
    assert printable("ε Ürümqi 漢字") == "ε Ürümqi 漢字"


def test_long_tables_show_what_is_farthest_from_its_target():
    rows = [
        {"statistic": str(i), "target": 0.0, "after": float(i % 50), "standard_error": 1.0}
        for i in range(100)
    ]
    shown, left_out = farthest(rows)
    assert (len(shown), left_out) == (MAX_TABLE_ROWS, 100 - MAX_TABLE_ROWS)
    assert min(row["after"] for row in shown) == 30
    assert [int(row["statistic"]) for row in shown] == sorted(int(r["statistic"]) for r in shown)


def test_quiet_and_json_print_no_text(capsys):
    for terminal in (Terminal(quiet=True), Terminal(as_json=True)):
        terminal.say("text")
        terminal.table("t", ["a"], [["1"]])
        with terminal.progress("work") as step:
            step()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments", [["demo", "--help"], ["plan", "ε.csv"], ["plan", "ε.csv", "--output", "json"]]
)
def test_a_terminal_that_knows_ascii_only(arguments):
    """The letters of the mathematics must not end a command on an old terminal."""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONIOENCODING": "ascii"}
    code = f"from retilt.cli import main; raise SystemExit(main({[*arguments]!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=False
    )
    assert done.returncode in (0, 2), done.stderr
    assert b"internal" not in done.stderr
    if "json" in arguments:
        assert json.loads(done.stdout)["error"]["exit_code"] == 2
