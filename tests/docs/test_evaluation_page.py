"""The page of evaluation says what the program does: its output, and the place of every figure."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import retilt as rt
from retilt.cli import main
from retilt.data import demo_files

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's tables by the page's names; the synthetic one stands in for the new one."""
    with demo_files() as data:
        shutil.copy(data.private, tmp_path / "private.parquet")
        shutil.copy(data.schema, tmp_path / "schema.toml")
        shutil.copy(data.synthetic, tmp_path / "post.csv.gz")
        (tmp_path / "synthetic.csv").write_bytes(gzip.decompress(data.synthetic.read_bytes()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_output_shown_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the numbers."""
    command = shlex.split(block("sh").replace("\\\n", " "))[1:]
    assert main(command) == 0

    def words(text: str) -> list[str]:
        return re.findall(r"[A-Za-z][A-Za-z-]+[A-Za-z]", text)

    assert words(block("text")) == words(capsys.readouterr().out)


def places(value: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where the figures are: the objects with a value before and after."""
    for key, item in value.items():
        if isinstance(item, dict) and key != "by_column":
            here = f"{path}{key}"
            if "after" in item or "raw" in item:
                yield here
            else:
                yield from places(item, f"{here}.")


def test_every_figure_is_in_the_table() -> None:
    with demo_files() as data:
        found = rt.evaluate(
            data.private,
            data.synthetic,
            data.synthetic,
            columns=["sex", "race"],
            target="income",
            test=data.private,
            detection=True,
            schema=data.schema,
        ).to_dict()
    lines = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name for line in lines for name in re.findall(r"`([^`]+)`", line)}
    assert told == set(places(found)) - {"detection.rows"}
    for key in ("reasons", "undefined", "left_out"):
        assert key in found
        assert f"`{key}`" in PAGE
