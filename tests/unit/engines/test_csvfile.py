"""CSV files keep their text, record by record."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import retilt
from retilt.engines.csvfile import CsvTable, read_csv
from retilt.engines.local import open_table
from retilt.exceptions import InputError


def read(
    folder: Path, content: bytes | str, *, name: str = "in.csv", private: bool = False
) -> CsvTable:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_csv(path, private=private)


def column(table: CsvTable, name: str) -> list[Any]:
    found: list[Any] = table.cells(name).to_pylist()
    return found


def written(table: CsvTable, folder: Path, rows: list[int], name: str = "out.csv") -> bytes:
    table.write(folder / name, np.array(rows, dtype=np.int64), force=True)
    return (folder / name).read_bytes()


WHOLE = {
    "plain": b"a,b\n1,x\n2,y\n",
    "text survives": b"id,v,flag\n007,1.10,t\n010,1e5,f\n",
    "quotes as they were": b'a,b\n"1","x"\n2,"y"\n',
    "semicolons and quotes": b'"a";"b"\n"1";"x;y"\n"2";"z""z"\n',
    "tabs": b"a\tb\n1\tx y\n",
    "bars": b"a|b|c\n1|2|3\n",
    "CRLF": b"a,b\r\n1,x\r\n2,y\r\n",
    "old Mac": b"a,b\r1,x\r2,y\r",
    "BOM": b"\xef\xbb\xbfa,b\n1,\xc3\xa9\n",
    "UTF-16 LE": b"\xff\xfe" + "a;b\r\n1;é\r\n".encode("utf-16-le"),
    "UTF-16 BE": b"\xfe\xff" + "a;b\r\n1;é\r\n".encode("utf-16-be"),
    "cp1252": b"a,b\n1,caf\xe9 \x80\n",
    "latin-1": b"a,b\n1,\x81\xe9\n",
    "quoted newlines": b'a,b\n1,"x\ny"\n2,"z\r\nz"\n',
    "ragged": b"a,b\n1\n1,2,3\n,\n",
    "spaces": b"a, b, c\n1, x, y\n",
    "odd quoting": b'a,b\n"x"y,z"w\n\'q\',""\n',
    "empty header name": b",b\n0,x\n",
    "no rows": b"a,b\n",
    "no rows, no line end": b"a,b",
    "one column": b"a\n1\n2\n",
    "control characters": b"a,b\n\x00\x0b,\x0c\x1c\xc2\x85\n\xe2\x80\xa8,1\n",
}


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE)
def test_all_rows_come_back_byte_for_byte(tmp_path: Path, content: bytes) -> None:
    table = read(tmp_path, content)
    expected = content if content[-1:] in b"\n\r\0" else content + b"\n"
    assert written(table, tmp_path, list(range(table.rows))) == expected


def test_rows_repeat_in_any_order(tmp_path: Path) -> None:
    table = read(tmp_path, b'a;b\r\n1;"x\ny"\r\n\r\n2;z')
    assert table.rows == 2
    assert written(table, tmp_path, [1, 0, 1]) == b'a;b\r\n2;z\r\n1;"x\ny"\r\n2;z\r\n'
    assert written(table, tmp_path, []) == b"a;b\r\n"


def test_compression_follows_the_name(tmp_path: Path) -> None:
    content = b"a,b\n1,x\n"
    table = read(tmp_path, gzip.compress(content), name="in.csv.gz")
    assert written(table, tmp_path, [0]) == content
    assert gzip.decompress(written(table, tmp_path, [0], "out.csv.gz")) == content
    assert read(tmp_path, gzip.compress(content), name="misnamed.csv").rows == 1


def test_fields(tmp_path: Path) -> None:
    table = read(tmp_path, 'a,"b ""c"" d",é\n1,"x,\ny",\n2\n3,4,5,6\n\n"",,z')
    assert table.names == ("a", 'b "c" d', "é")
    assert column(table, "a") == ["1", "2", "3", ""]
    assert column(table, 'b "c" d') == ["x,\ny", None, "4", ""]
    assert column(table, "é") == ["", None, "5", "z"]


@pytest.mark.parametrize(
    "name", ["index", "level_0", "count", "weight", "0", "", "ünïcödé 🦊", "a.b"]
)
def test_names_of_every_kind(tmp_path: Path, name: str) -> None:
    table = read(tmp_path, f"{name},other\n1,2\n")
    assert table.names == (name, "other")
    assert column(table, name) == ["1"]
    assert written(table, tmp_path, [0]) == f"{name},other\n1,2\n".encode()


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("a,b;c", ("a", "b;c")),
        ("a;b,x;c", ("a", "b,x", "c")),
        ('"a,b,c";d', ("a,b,c", "d")),
        ("a b", ("a b",)),
        ("a\tb,c\td", ("a", "b,c", "d")),
        ("a, b", ("a", "b")),
        ("a, b,c", ("a", " b", "c")),
        ('"a\nb",c', ("a\nb", "c")),
    ],
)
def test_the_header_shows_the_dialect(tmp_path: Path, header: str, names: tuple[str, ...]) -> None:
    assert read(tmp_path, header + "\n").names == names


def test_spaces_after_separators(tmp_path: Path) -> None:
    table = read(tmp_path, 'a, b\n1, "x, y"\n')
    assert column(table, "b") == ["x, y"]


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    table = read(tmp_path, "\n\na,b\n\n1,x\n\n\n2,y\n\n")
    assert table.names == ("a", "b")
    assert column(table, "a") == ["1", "2"]
    assert written(table, tmp_path, [1]) == b"\n\na,b\n2,y\n"


def test_very_long_fields_and_the_global_limit(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    table = read(tmp_path, f'a,b\n1,"{"x" * 300_000}"\n')
    assert len(column(table, "b")[0]) == 300_000
    assert csv.field_size_limit() == before


def test_a_quote_never_closed_does_not_raise(tmp_path: Path) -> None:
    assert column(read(tmp_path, 'a,b\n1,"x\n2,y\n', private=True), "b") == ["x\n2,y\n"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"a,b,a\n1,2,3\n", "more than once, in columns 1 and 3"),
        (b",,\n", "more than once, in columns 1 and 2"),
        (b"\x1f\x8bjunk", "can't be read"),
        (gzip.compress(b"a,b\n1,2\n")[:-9], "can't be read"),
        (b"\xff\xfea", "save it as UTF-8"),
    ],
    ids=range(8),
)
def test_what_is_no_table(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_table(path)
    assert says in str(caught.value)


def test_private_bytes_never_raise(tmp_path: Path) -> None:
    table = read(tmp_path, b"a,b\n\xff\xfe,\xe9\n\xed\xa0\x80,2\n", private=True)
    assert table.rows == 2
    assert column(table, "b") == ["\ufffd", "2"]


CELLS = st.text(max_size=5) | st.sampled_from(['"', ",", "\n", "\r\n", "", '""', " ", ";", "\x00"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_csv_writes_is_read(
    tmp_path: Path, rows: list[list[str]], separator: str, end: str, quoting: Any
) -> None:
    # Python before 3.13 writes a carriage return that stands alone without quotes.
    rows = [
        [c.encode("utf-8", "replace").decode().replace("\r", "\r\n") for c in row] for row in rows
    ]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerows([["a", "b", "c"], *rows])
    content = out.getvalue().encode()
    for private in (False, True):
        table = read(tmp_path, content, private=private)
        assert [column(table, n) for n in "abc"] == [[r[i] for r in rows] for i in range(3)]
    assert written(read(tmp_path, content), tmp_path, list(range(len(rows)))) == content


# --- other formats ---------------------------------------------------------------------------


def test_types_in_frames_and_typed_files(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = read(tmp_path, "i,f,s,id,b,e\n1,1.5,x,007,True,\n2,,3,1,FALSE,\n")
    frame = table.take(np.array([1, 0]))
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == [0, 1]
    assert [str(t) for t in frame.dtypes[["i", "f", "b"]]] == ["int64", "float64", "bool"]
    assert frame["id"].tolist() == ["1", "007"]
    assert frame["s"].tolist() == ["3", "x"]
    table.write(tmp_path / "out.parquet", np.array([0, 0]))
    again = open_table(tmp_path / "out.parquet")
    assert again.names == table.names
    assert again.cells("i").to_pylist() == [1, 1]
    assert again.cells("id").to_pylist() == ["007", "007"]
    assert again.cells("e").to_pylist() == [None, None]


def test_no_rows_in_other_formats(tmp_path: Path) -> None:
    table = read(tmp_path, "a,b\n")
    assert len(table.take(np.array([], dtype=np.int64))) == 0
    table.write(tmp_path / "out.parquet", np.array([], dtype=np.int64))
    assert open_table(tmp_path / "out.parquet").rows == 0


# --- the private table -----------------------------------------------------------------------


def _trace(path: Path) -> list[tuple[str, int]]:
    root = str(Path(retilt.__file__).parent)
    lines: list[tuple[str, int]] = []

    def tracer(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(root):
            return None
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        table = open_table(path, private=True)
        for name in table.names:
            table.cells(name)
    finally:
        sys.settrace(before)
    return lines


def test_the_same_lines_run_whatever_a_record_holds(tmp_path: Path) -> None:
    records = [
        b"1,x",
        b'"quoted, ""twice""","two\nlines\r\nthree"',
        b"nan,",
        b"1e308,\xff\xfe",
        b",",
        b"too,many,fields,here",
        b"short",
        b'\x00,"',
        b"inf," + b"y" * 200_000,
    ]
    traces = []
    for record in records:
        path = tmp_path / "in.csv"
        path.write_bytes(b"a,b\n1,x\n2,y\n" + record)
        traces.append(_trace(path))
    assert len(traces[0]) > 30
    assert all(t == traces[0] for t in traces)
