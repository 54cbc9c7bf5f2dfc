"""The page of measures says what the program does: both of its columns make the same workload."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import retilt as rt
from retilt._measures import Measures

PAGE = (Path(__file__).parents[2] / "docs" / "measures.md").read_text("utf-8")


def rows() -> list[tuple[str, str]]:
    """Command line and Python of each line of the page's first table that has both."""
    table = PAGE.split("## SQL")[0]
    found = []
    for line in table.splitlines():
        cells = [c.strip().strip("`") for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[1].startswith("--") and cells[2].startswith("rt."):
            found.append((cells[1], cells[2]))
    return found


def test_the_table_is_read() -> None:
    assert len(rows()) >= 14


@pytest.mark.parametrize(("option", "python"), rows())
def test_both_columns_mean_the_same(option: str, python: str) -> None:
    if "top_correlated" in python:
        return  # it needs a table: tests of the command line have it
    name, value = shlex.split(option)
    key = name.removeprefix("--").replace("-", "_")
    built = Measures(**{key: [value]}).build("no table", None)  # type: ignore[arg-type]
    assert built == eval(python, {"rt": rt})
