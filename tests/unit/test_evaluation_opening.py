"""CSV files that ``evaluate`` reads: a quote that is not closed loses no rows in silence."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pandas as pd
import pytest

import retilt as rt
from retilt.evaluation.opening import open_tables
from retilt.exceptions import InputError

ROWS = [f"{i % 7},{'uvw'[i % 3]},{i % 5}" for i in range(40)]


def written(folder: Path, lines: list[str], name: str = "odd.csv", end: str = "\n") -> Path:
    path = folder / name
    content = (end.join(["a,b,c", *lines]) + end).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return written(tmp_path, ROWS, "good.csv")


OPEN = {
    "to the end": ["1,\"SECRET,3"],
    "to another": ["1,\"SECRET,3", *ROWS[:3], '1,"u",2', *ROWS[:3]],
    "in the last field": ['1,u,"3'],
    "in the first field": ['"1,u,3', *ROWS],
    "very long": ['1,"u,3', *ROWS * 2000],
}  # fmt: skip


@pytest.mark.parametrize("lines", OPEN.values(), ids=OPEN.keys())
@pytest.mark.parametrize("name", ["odd.csv", "odd.csv.gz"])
def test_an_open_quote_is_refused(good: Path, tmp_path: Path, lines: list[str], name: str) -> None:
    odd = written(tmp_path, [*ROWS, *lines], name)
    limit = csv.field_size_limit()
    for number, what in enumerate(("private", "synthetic", "post-processed")):
        tables = [good] * 3
        tables[number] = odd
        with pytest.raises(InputError, match=f"the {what} table: a quote .* not closed") as caught:
            rt.evaluate(*tables)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(InputError, match="the test table: a quote"):
        rt.evaluate(good, good, good, target="c", positive=1, test=odd)
    assert csv.field_size_limit() == limit


def test_an_open_quote_in_the_header_is_refused(good: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text("\n".join(['a,b,"c', *ROWS]))
    with pytest.raises(InputError, match="the synthetic table: a quote"):
        rt.evaluate(good, odd, good)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_that_are_closed_are_no_matter(good: Path, tmp_path: Path, end: str) -> None:
    lines = ['1,"u",2', '1,"two\nlines, and a ""quote""",3', "", '2,5" tall,4', '3,"",1']
    fine = written(tmp_path, [*ROWS, *lines], end=end)
    found = rt.evaluate(fine, good, good)
    assert found.row_counts == {"private": 44, "synthetic": 40, "post": 40}
    assert found.notes == ()


@pytest.mark.parametrize("line", ['1,"5" tall",2', "1,u", "1,u,2,3"])
def test_odd_records_are_counted(good: Path, tmp_path: Path, line: str) -> None:
    odd = written(tmp_path, [*ROWS, line, *ROWS, line])  # also as the last one
    found = rt.evaluate(good, odd, good)
    assert found.row_counts["synthetic"] == 82
    (note,) = found.notes
    assert note.startswith("the synthetic table: CSV records with a lone quote")
    assert "header: 2." in note
    assert found.to_dict()["notes"] == [note]


def test_other_separators_and_encodings(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    text = "\n".join(["a; b; c", *(row.replace(",", "; ") for row in ROWS), '1; "ü; v"; 2'])
    for codec in ("utf-8-sig", "utf-16", "cp1252"):
        other.write_bytes(text.encode(codec))
        assert rt.evaluate(good, other, good).notes == ()
        other.write_bytes(text.replace('v"', "v").encode(codec))
        with pytest.raises(InputError, match="not closed"):
            rt.evaluate(good, other, good)


def test_blanks_behind_a_closing_quote_are_no_fault(tmp_path: Path) -> None:
    lines = "1,x\n2,y\n" * 20 + '3,"x\nw" \n4,"y" \n5, "z"  \n'
    (tmp_path / "real.csv").write_text("a,b\n" + lines)
    other = pd.DataFrame({"a": [1], "b": ["x"]})
    tables, notes = open_tables([str(tmp_path / "real.csv"), other])
    assert tables[0].rows == 43
    assert not [n for n in notes if "not closed" in n]
