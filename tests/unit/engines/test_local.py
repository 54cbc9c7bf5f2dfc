"""Anything that holds a table is opened, sampled and handed back as it came."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from retilt.engines.local import open_table
from retilt.exceptions import InputError

ROWS = np.array([2, 0, 2])


def pandas_frame() -> pd.DataFrame:
    words = ["x", None, "y"]
    frame = pd.DataFrame(
        {
            "index": [1, 2, 3],
            "level_0": [0.5, np.nan, -0.0],
            "count": [True, False, True],
            "weight": pd.array([1, None, 3], "Int8"),
            0: pd.array([True, None, False], "boolean"),
            "": pd.array([1.5, None, 2.5], "Float32"),
            "ünïcödé 🦊": pd.Series(words, dtype=object),
            "str": pd.Series(words, dtype="string"),
            "cat": pd.Categorical(["b", "a", None], ["c", "b", "a"], ordered=True),
            "cats": pd.Categorical([3, 1, 3], [7, 3, 1]),
            "when": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "zone": pd.to_datetime(["2020-01-01", None, "2021-01-01"]).tz_localize("Asia/Tokyo"),
            "delta": pd.to_timedelta(["1s", None, "2s"]),
            "arrow": pd.array([1, None, 3], pd.ArrowDtype(pa.int16())),
            "dec": pd.array(
                [Decimal("1.1"), None, Decimal("2.2")], pd.ArrowDtype(pa.decimal128(5, 2))
            ),
            "period": pd.period_range("2020-01", periods=3, freq="M"),
            "mixed": pd.Series([1, "a", [3]], dtype=object),
            "half": np.array([1, 2, 3], dtype=np.float16),
            "long": np.array([1, 2, 3], dtype=np.longdouble),
            "z": np.array([1j, 2, 3]),
            "sparse": pd.arrays.SparseArray([0.0, 1.0, 0.0]),
            "span": pd.cut([1, 2, 3], [0, 2, 4]),
        }
    )
    return frame.set_index(pd.Index([7, 7, 9]))


def polars_frame() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "index": [1, 2, None],
            "cat": pl.Series(["b", None, "a"], dtype=pl.Categorical),
            "enum": pl.Series(["b", None, "a"], dtype=pl.Enum(["c", "b", "a"])),
            "span": [timedelta(seconds=1), None, timedelta(days=3)],
            "when": pl.Series([datetime(2020, 1, 1), None, None], dtype=pl.Datetime("ns", "UTC")),
            "dec": pl.Series([Decimal("1.1"), None, None], dtype=pl.Decimal(10, 2)),
            "list": [[1], None, []],
            "obj": pl.Series([object, 3, None], dtype=pl.Object),
            "u8": pl.Series([1, 2, 3], dtype=pl.UInt8),
            "": ["x", "", None],
            "none": [None, None, None],
        }
    )


def arrow_table() -> pa.Table:
    schema = pa.schema(
        [
            pa.field("a", pa.int8(), nullable=False, metadata={"unit": "years"}),
            pa.field("d", pa.dictionary(pa.int8(), pa.string(), ordered=True)),
            pa.field("l", pa.list_(pa.int64())),
            pa.field("v", pa.string_view()),
        ],
        metadata={"made": "by us"},
    )
    cells = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.int8()), ["u", "w"], ordered=True
    )
    return pa.table(
        [
            pa.array([1, 2, 3], pa.int8()),
            cells,
            pa.array([[1], None, []]),
            pa.array(["x", None, "z"], pa.string_view()),
        ],
        schema=schema,
    )


# --- frames in memory ------------------------------------------------------------------------


def test_pandas() -> None:
    frame, kept = pandas_frame(), pandas_frame()
    table = open_table(frame)
    assert table.names[:7] == ("index", "level_0", "count", "weight", "0", "", "ünïcödé 🦊")
    assert table.rows == 3
    for name in table.names:
        cells = table.cells(name)
        assert len(cells) == 3
        assert cells.type == table.arrow_type(name)
    assert table.cells("mixed").to_pylist() == ["1", "a", "[3]"]
    assert table.cells("str").to_pylist() == ["x", None, "y"]
    assert table.cells("span").to_pylist() == ["(0, 2]", "(0, 2]", "(2, 4]"]
    taken = table.take(ROWS)
    assert_frame_equal(taken, kept.iloc[ROWS].reset_index(drop=True))
    assert list(taken["cat"].cat.categories) == ["c", "b", "a"]
    assert isinstance(taken.index, pd.RangeIndex)
    assert_frame_equal(frame, kept)
    assert len(table.take(np.array([], dtype=np.int64))) == 0


def test_foreign_byte_order() -> None:
    frame = pd.DataFrame({"x": np.array([1, 2], dtype=">i4"), "f": np.array([1, 2], dtype=">f8")})
    assert open_table(frame).cells("x").to_pylist() == [1, 2]
    assert open_table(frame).cells("f").to_pylist() == [1.0, 2.0]


def test_pandas_types_do_not_depend_on_the_cells() -> None:
    """Neighbouring tables of one dtype must take one path."""
    for cells in ([None, None], ["a", "b"], [1, "a"], [np.nan, object()]):
        frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
        assert open_table(frame).arrow_type("x") == pa.large_string()
        assert open_table(frame).cells("x").type == pa.large_string()


def test_polars() -> None:
    frame, kept = polars_frame(), polars_frame()
    table = open_table(frame)
    for name in table.names:
        assert len(table.cells(name)) == 3
        assert table.cells(name).type == table.arrow_type(name)
    taken = table.take(ROWS)
    assert taken.schema == kept.schema
    without = [n for n in kept.columns if n != "obj"]  # objects can't be compared
    assert taken.select(without).equals(kept[ROWS].select(without), null_equal=True)
    assert table.take(np.array([], dtype=np.int64)).schema == kept.schema
    assert open_table(frame.select(without).lazy()).take(ROWS).equals(taken.select(without))


def test_arrow() -> None:
    source = arrow_table()
    table = open_table(source)
    taken = table.take(ROWS)
    assert taken.schema.equals(source.schema, check_metadata=True)
    assert taken.column("a").to_pylist() == [3, 1, 3]
    assert taken.column("v").to_pylist() == ["z", "x", "z"]
    assert table.take(np.array([], dtype=np.int64)).schema.equals(source.schema)
    assert table.keeps_order("d")
    assert not table.keeps_order("a")


def test_other_producers() -> None:
    plain = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    sources = [
        plain.to_batches()[0],
        pa.RecordBatchReader.from_batches(plain.schema, plain.to_batches()),
        duckdb.from_arrow(plain),
        nw.from_native(plain),
        nw.from_native(pl.from_arrow(plain)),
        nw.from_native(duckdb.from_arrow(plain)),
    ]
    for source in sources:
        table = open_table(source)
        assert table.names == ("a", "b")
        assert table.cells("a").to_pylist() == [1, 2, 3]
        taken = table.take(ROWS)
        kind = pl.DataFrame if source is sources[4] else pa.Table
        assert isinstance(taken, kind)
    assert open_table(table) is table


VIEW = pa.string_view()


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["x", None, "z"], VIEW),
        pa.array([b"x", None, b"z"], pa.binary_view()),
        pa.DictionaryArray.from_arrays(
            pa.array([1, None, 0], pa.int8()), pa.array(["x", "y"], VIEW)
        ),
        pa.array([["x"], None, []], pa.list_(VIEW)),
        pa.array([["x"], None, []], pa.large_list(VIEW)),
        pa.array([["x"], None, ["y"]], pa.list_(VIEW, 1)),
        pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", VIEW)])),
        pa.array([[("k", "x")], None, []], pa.map_(VIEW, VIEW)),
    ],
    ids=lambda cells: str(cells.type),
)
def test_views_at_any_depth(tmp_path: Path, cells: pa.Array) -> None:
    table = open_table(pa.table({"x": cells}))
    assert table.take(ROWS).column("x").type == cells.type
    assert table.take(ROWS).column("x").to_pylist() == [cells.to_pylist()[i] for i in ROWS]
    for name in ("a.parquet", "a.arrow", "a.csv"):
        table.write(tmp_path / name, ROWS)
        assert open_table(tmp_path / name).rows == 3


def test_object_cells_that_cannot_be_compared() -> None:
    cells = [Decimal("sNaN"), Decimal("NaN"), Decimal("1.5"), [1, 2], np.array([1, 2]), "x"]
    table = open_table(pd.DataFrame({"x": pd.Series(cells, dtype=object)}))
    assert table.cells("x").to_pylist() == [None, None, "1.5", "[1, 2]", "[1 2]", "x"]


def test_extended_precision_does_not_warn() -> None:
    frame = pd.DataFrame({"x": np.array([np.longdouble("1e4000"), 1])})
    assert open_table(frame).cells("x").to_pylist() == [np.inf, 1.0]


def test_result_frames_follow_the_source(tmp_path: Path) -> None:
    columns = {"statistic": ["a", "b"], "value": np.array([1.0, np.nan])}
    assert isinstance(open_table(pandas_frame()).frame(columns), pd.DataFrame)
    assert isinstance(open_table(polars_frame()).frame(columns), pl.DataFrame)
    assert isinstance(open_table(arrow_table()).frame(columns), pa.Table)
    (tmp_path / "a.csv").write_text("a\n1\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert isinstance(open_table(tmp_path / name).frame(columns), pd.DataFrame)


def test_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retilt.engines.frames.find_spec", lambda name: None)
    (tmp_path / "a.csv").write_text("a\n1\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        table = open_table(tmp_path / name)
        assert isinstance(table.take(np.array([0])), pa.Table)
        assert isinstance(table.frame({"x": [1]}), pa.Table)


# --- writing frames --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pandas_frame, polars_frame, arrow_table])
@pytest.mark.parametrize("name", ["out.parquet", "out.arrow", "out.csv", "out.tsv.gz"])
def test_frames_are_written(tmp_path: Path, make: Any, name: str) -> None:
    source = make()
    if make is pandas_frame:
        source = source.drop(columns=["z"])
    table = open_table(source)
    table.write(tmp_path / name, ROWS)
    again = open_table(tmp_path / name)
    assert again.names == table.names
    assert again.rows == 3
    first = [str(v) for v in again.cells(again.names[0]).to_pylist()]
    expected = [str(v).replace("None", "") for v in table.cells(table.names[0]).to_pylist()]
    assert [f.replace("None", "") for f in first] == [expected[i] for i in ROWS]
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_parquet_of_pandas_gives_its_dtypes_back(tmp_path: Path) -> None:
    frame = pandas_frame()[["weight", "cat", "zone", "level_0", "index"]]
    open_table(frame).write(tmp_path / "a.parquet", np.arange(3))
    again = open_table(tmp_path / "a.parquet").take(np.arange(3))
    assert [str(t) for t in again.dtypes] == [str(t) for t in frame.dtypes]
    assert list(again["cat"].cat.categories) == ["c", "b", "a"]


# --- files -----------------------------------------------------------------------------------


def test_parquet_file_folder_and_glob(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    (parts / "year=2020").mkdir(parents=True)
    (parts / "year=2021").mkdir()
    for year, ages in ((2020, [1, 2]), (2021, [3])):
        pq.write_table(pa.table({"a.b": ages}), parts / f"year={year}" / "part-0.parquet")
    (parts / "_SUCCESS").touch()
    (parts / ".hidden.parquet").write_text("junk")
    folder = open_table(parts)
    assert folder.names == ("a.b", "year")
    assert folder.rows == 3
    assert folder.cells("a.b").to_pylist() == [1, 2, 3]
    assert folder.cells("year").to_pylist() == ["2020", "2020", "2021"]
    assert folder.take(np.array([2, 0]))["a.b"].tolist() == [3, 1]
    one = open_table(parts / "year=2020" / "part-0.parquet")
    assert one.names == ("a.b",)
    some = open_table(str(parts / "year=*" / "*.parquet"))
    assert some.cells("a.b").to_pylist() == [1, 2, 3]


def test_parquet_keeps_types_order_and_metadata(tmp_path: Path) -> None:
    source = arrow_table().drop_columns(["v"])
    pq.write_table(source, tmp_path / "a.parquet")
    open_table(tmp_path / "a.parquet").write(tmp_path / "b.parquet", ROWS)
    again = pq.read_table(tmp_path / "b.parquet")
    assert again.schema.equals(pq.read_schema(tmp_path / "a.parquet"), check_metadata=True)
    assert again.schema.names == source.schema.names
    assert again.column("a").to_pylist() == [3, 1, 3]


def test_an_index_saved_by_pandas_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.array([1, 2], "Int64")}, index=pd.Index([5, 6], name="key"))
    frame.to_parquet(tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet")
    assert table.names == ("a", "key")
    taken = table.take(np.array([1]))
    assert isinstance(taken.index, pd.RangeIndex)
    assert taken["key"].tolist() == [6]
    assert str(taken["a"].dtype) == "Int64"


def test_arrow_files(tmp_path: Path) -> None:
    source = arrow_table()
    with pa.ipc.new_stream(tmp_path / "stream.ipc", source.schema) as sink:
        sink.write_table(source)
    with pa.ipc.new_file(tmp_path / "file.arrow", source.schema) as sink:
        sink.write_table(source)
    for name in ("stream.ipc", "file.arrow"):
        table = open_table(tmp_path / name)
        assert table.cells("a").to_pylist() == [1, 2, 3]
        assert isinstance(table.take(ROWS), pd.DataFrame)
        table.write(tmp_path / f"{name}.out.arrow", ROWS)


def test_duckdb_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my file.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute('CREATE SCHEMA s; CREATE TABLE s."odd.""t" AS SELECT 1 AS a')
        connection.execute("CREATE TABLE t AS SELECT * FROM range(3) AS r(a)")
    before = path.read_bytes()
    assert open_table(f"duckdb:///{path}?table=t").cells("a").to_pylist() == [0, 1, 2]
    quoted = f'duckdb:///{str(path).replace(" ", "%20")}?table=s."odd.""t"'
    assert open_table(quoted).cells("a").to_pylist() == [1]
    monkeypatch.chdir(tmp_path)
    assert open_table("duckdb:///my file.db?table=t").rows == 3
    assert path.read_bytes() == before
    for bad in ("t; DROP TABLE t", "no", "s.no", "a.b.c.d", '"'):
        with pytest.raises(InputError, match="can't be read"):
            open_table(f"duckdb:///{path}?table={bad}")


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", [3, None, [1], {"a": [1]}, np.zeros(3), object(), b"a.csv"], ids=range(7)
)
def test_what_is_no_table(source: Any) -> None:
    with pytest.raises(InputError, match="expected a pandas, polars or PyArrow frame"):
        open_table(source)


def test_files_that_are_not_tables(tmp_path: Path) -> None:
    secret = "alice@example.org"
    for name in ("junk.parquet", "junk.arrow", "junk.db", "a.xlsx"):
        (tmp_path / name).write_text(f"{secret}\n" * 9)
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "folder").mkdir()
    cases = [
        (tmp_path / "none.csv", "no file"),
        (tmp_path / "a.xlsx", "expected a pandas"),
        (tmp_path / "junk.parquet", "not Parquet"),
        (tmp_path / "junk.arrow", "not an Arrow file"),
        (tmp_path / "empty.parquet", "is empty"),
        (tmp_path / "folder", "holds no Parquet file"),
        (str(tmp_path / "*.nothing"), "holds no Parquet file"),
        (str(tmp_path / "*"), "which is no Parquet file"),
        (f"duckdb:///{tmp_path}/junk.db?table=t", "can't be read"),
        (f"duckdb:///{tmp_path}/none.db?table=t", "no file"),
        (f"duckdb:///{tmp_path}/junk.db", "names one table"),
        ("duckdb://host/file.db?table=t", "duckdb:///file.db?table=t"),
        ("postgres://host/db?table=t", "duckdb:///file.db?table=t"),
    ]
    for source, says in cases:
        for private in (False, True):
            with pytest.raises(InputError) as caught:
                open_table(source, private=private)
            assert says in str(caught.value)
            assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame(), "no columns"),
        (pl.DataFrame(), "no columns"),
        (pa.table({}), "no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "once, in columns 1 and 2"),
        (pd.DataFrame([[1, 2]], columns=[0, "0"]), "once, in columns 1 and 2"),
        (pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), "once, in columns 1 and 2"),
    ],
)
def test_columns_that_cannot_be_told_apart(frame: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        open_table(frame)


def test_an_unknown_column() -> None:
    table = open_table(pd.DataFrame({"a": [1]}))
    for ask in (table.cells, table.arrow_type):
        with pytest.raises(InputError, match="no column 'b': the table has 'a'"):
            ask("b")


def test_a_failing_stream_does_not_speak() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested: object = None) -> object:
            raise ValueError("alice@example.org")

    with pytest.raises(InputError) as caught:
        open_table(Broken(), private=True)
    assert "alice" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_frame_whose_columns_are_called_like_a_tables_parts() -> None:
    parts = ["names", "rows", "arrow_type", "cells", "keeps_order", "take", "frame", "write"]
    frame = pd.DataFrame({p: [1] for p in parts})
    assert open_table(frame).names == tuple(parts)
