"""The page on audits shows what the program prints."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

from retilt.cli import main
from retilt.data import demo_files

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def shape(text: str) -> str:
    """The sentences without the rows and the numbers, which depend on chance."""
    one_line = " ".join(text.split())
    without_rows = re.sub(r"allowed: .*? Noise:", "allowed: Noise:", one_line)
    return re.sub(r"[\d.,]*\d", "N", without_rows)


@pytest.mark.slow
def test_the_example_is_what_its_commands_print(tmp_path, monkeypatch, capsys):
    with demo_files() as data:
        (tmp_path / "synthetic.csv").write_bytes(gzip.decompress(data.synthetic.read_bytes()))
        (tmp_path / "schema.toml").write_bytes(data.schema.read_bytes())
    monkeypatch.chdir(tmp_path)
    plan, audit = (shlex.split(line)[1:] for line in block("sh").splitlines())
    assert main(plan) == 0
    capsys.readouterr()
    assert main([*audit, "--draws", "1000", "--pairs", "500"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert shape(captured.out) == shape(block("text"))
