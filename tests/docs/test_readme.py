"""The README says what the program does: its commands run, its example runs, its links exist."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

from retilt.cli import COMMANDS, main
from retilt.data import demo_files

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    text = "".join(blocks("sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["retilt"]]


def test_commands_run_in_the_order_given(tmp_path, monkeypatch, capsys):
    with demo_files() as data:
        (tmp_path / "private.parquet").write_bytes(data.private.read_bytes())
        (tmp_path / "synthetic.csv").write_bytes(gzip.decompress(data.synthetic.read_bytes()))
        (tmp_path / "schema.toml").write_bytes(data.schema.read_bytes())
    monkeypatch.chdir(tmp_path)
    given = commands()
    assert {command[0] for command in given} >= {"plan", "measure", "fit", "sample", "run"}
    for command in given:
        # `run` writes the same post.csv as `fit` in the steps before it.
        code = main([*command, *(["--force"] if command[0] == "run" else [])])
        captured = capsys.readouterr()
        assert code == 0, (command, captured.err)
        assert captured.err == ""


def test_python_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "39073" in printed
    assert "Gaussian" in printed


def test_the_output_shown_is_the_demo_s(tmp_path, capsys):
    """All but the numbers, which the noise decides."""
    (shown,) = blocks("text")
    assert main(["demo", "--folder", str(tmp_path / "retilt-demo")]) == 0
    printed = capsys.readouterr().out

    def words(text: str) -> set[str]:
        return set(re.findall(r"[A-Za-z][A-Za-z-]+[A-Za-z]", text.split("Written:")[0]))

    assert words(shown) == words(printed)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "src/retilt/data/README.md"])
def test_relative_links_exist(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_command_is_mentioned():
    for command in COMMANDS:
        assert f"retilt {command}" in README or f"make {command}" in README, command
