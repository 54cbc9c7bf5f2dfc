"""Parquet in several files: no file, and no folder's name, decides for the others."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retilt.engines.local import open_table
from retilt.exceptions import ColumnTypeError, InputError

TEXT = pa.large_string()


def folder_of(place: Path, parts: dict[str, pa.Table]) -> Path:
    """A folder with a file for each part, which may lie in ``key=value`` folders."""
    shutil.rmtree(place, ignore_errors=True)
    for name, table in parts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / name)
    return place


def hive(place: Path, *values: str, key: str = "zip") -> Any:
    parts = {f"{key}={v}/p.parquet": pa.table({"a": [i]}) for i, v in enumerate(values)}
    return open_table(folder_of(place / "hive", parts), private=True)


# --- folders as columns ----------------------------------------------------------------------


def test_one_folder_does_not_change_the_type_of_the_others(tmp_path: Path) -> None:
    for values in (["01", "02"], ["01", "AA"], ["01"], ["2020-01-01", "2020-01-02"], ["1.5", ""]):
        table = hive(tmp_path, *values)
        assert table.names == ("a", "zip")
        assert table.arrow_type("zip") == table.cells("zip").type == TEXT
        assert sorted(table.cells("zip").to_pylist()) == sorted(values)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (quote("a/b=c %ü", safe=""), "a/b=c %ü"),
        ("%ff", "\ufffd"),
        ("%zz", "%zz"),
        ("%", "%"),
        ("%C3%28", "\ufffd("),
        (quote("2020-01-01 06:00:00"), "2020-01-01 06:00:00"),
        ("__HIVE_DEFAULT_PARTITION__", None),
        ("a=b", "a=b"),
        ("null", "null"),
        ("ünï🦊", "ünï🦊"),
    ],
)
def test_values_in_folder_names(tmp_path: Path, written: str, value: str | None) -> None:
    table = hive(tmp_path, written, "0")
    assert set(table.cells("zip").to_pylist()) == {value, "0"}


def test_several_keys_at_several_depths(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2], "k": [7, 8]})
    parts = {
        "k=x/l=1/p.parquet": rows,
        "k=y/p.parquet": rows.slice(0, 1),
        "k=z/l=2/none.parquet": rows.slice(0, 0),
        "p.parquet": rows,
        "_k=9/p.parquet": rows,
        "k=z/.p.parquet": rows,
    }
    place = folder_of(tmp_path / "f", parts)
    (place / "k=z" / "dir.parquet").mkdir()
    table = open_table(place)
    assert table.names == ("a", "k", "l")
    assert table.rows == 5
    # The folders' key wins over the files' column.
    assert table.cells("k").to_pylist() == ["x", "x", "y", None, None]
    assert table.cells("l").to_pylist() == ["1", "1", None, None, None]
    taken = table.take(np.array([4, 0]))
    assert taken["a"].tolist() == [2, 1]
    assert taken["k"].tolist()[1] == "x"
    table.write(tmp_path / "out.parquet", np.array([2]))
    assert open_table(tmp_path / "out.parquet").cells("k").to_pylist() == ["y"]


def test_what_pandas_writes_in_folders(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "g": ["u", None, "w w"]})
    frame.to_parquet(tmp_path / "f", partition_cols=["g"])
    table = open_table(tmp_path / "f")
    pairs = zip(table.cells("a").to_pylist(), table.cells("g").to_pylist(), strict=True)
    assert sorted(pairs) == [(1, "u"), (2, None), (3, "w w")]


# --- one type for all files ------------------------------------------------------------------

SHORT, LONG = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.string())
NOTHING = pa.array([None], pa.null())
TOGETHER: list[tuple[pa.Array, pa.Array, pa.DataType]] = [
    (NOTHING, pa.array([1], pa.int16()), pa.int16()),
    (NOTHING, pa.array(["x"]), pa.string()),
    (NOTHING, pa.array([True]), pa.bool_()),
    (NOTHING, pa.array(["x"]).dictionary_encode().cast(SHORT), SHORT),
    (NOTHING, NOTHING, pa.null()),
    (pa.array(["x"]), pa.array(["y"], TEXT), TEXT),
    (pa.array(["x"]), pa.array(["y"], pa.string_view()), TEXT),
    (
        pa.array(["x"]).dictionary_encode().cast(SHORT),
        pa.array(["y"]).dictionary_encode().cast(LONG),
        LONG,
    ),
    (pa.array([1], pa.int8()), pa.array([2**62]), pa.int64()),
    (pa.array([2**63 - 1]), pa.array([0.5]), pa.float64()),  # a safe cast would raise
    (pa.array([2**63 - 1]), pa.array([2**64 - 1], pa.uint64()), pa.float64()),
    (pa.array([0.5], pa.float32()), pa.array([0.5]), pa.float64()),
    (pa.array([Decimal("9.99")]), pa.array([Decimal(10**30)]), pa.float64()),
    (
        pa.array([253402300799000], pa.timestamp("ms")),
        pa.array([1], pa.timestamp("ns")),
        pa.timestamp("us"),
    ),
]
APART = [
    (pa.array([1]), pa.array(["x"])),
    (pa.array([True]), pa.array([1])),
    (pa.array([1], pa.date32()), pa.array([1], pa.timestamp("us"))),
    (pa.array([[1]]), pa.array([1])),
]


def both_orders(place: Path, one: pa.Array, two: pa.Array) -> list[Any]:
    tables = []
    for names in ("ab", "ba"):
        cells = zip(names, (one, two), strict=True)
        parts = {f"{n}.parquet": pa.table({"x": c, "y": [1] * len(c)}) for n, c in cells}
        tables.append(open_table(folder_of(place / names, parts), private=True))
    return tables


@pytest.mark.parametrize(("one", "two", "kind"), TOGETHER, ids=str)
def test_types_meet_in_any_order(
    tmp_path: Path, one: pa.Array, two: pa.Array, kind: pa.DataType
) -> None:
    for table in both_orders(tmp_path, one, two):
        assert table.arrow_type("x") == table.cells("x").type == kind
        assert len(table.cells("x")) == 2
        assert table.cells("x").null_count == one.null_count + two.null_count
        assert len(table.take(np.array([1, 0]))) == 2


@pytest.mark.parametrize(("one", "two"), APART, ids=str)
def test_types_that_conflict_are_refused_in_any_order(
    tmp_path: Path, one: pa.Array, two: pa.Array
) -> None:
    messages = set()
    for table in both_orders(tmp_path, one, two):
        assert table.cells("y").to_pylist() == [1, 1]
        for ask in (table.arrow_type, table.cells):
            with pytest.raises(ColumnTypeError, match="don't go together") as caught:
                ask("x")
            assert caught.value.__context__ is None
            messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_column_that_some_files_lack(tmp_path: Path) -> None:
    one, two = pa.table({"x": [1]}), pa.table({"y": ["u"], "x": [2]})
    table = open_table(folder_of(tmp_path / "f", {"a.parquet": one, "b.parquet": two}))
    assert table.names == ("x", "y")
    assert table.cells("x").to_pylist() == [1, 2]
    assert table.cells("y").to_pylist() == [None, "u"]


def test_a_broken_file_among_others(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "f", {"a.parquet": pa.table({"x": [1]})})
    (place / "b.parquet").write_text("SECRET-77")
    with pytest.raises(InputError) as caught:
        open_table(place, private=True)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None
