"""Cells -> numbers: the fixed policy, value by value."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt
from retilt.engines.frames import PandasTable
from retilt.exceptions import ColumnTypeError, InputError, SchemaError
from retilt.schema.columns import MAX_LEVELS, Boolean, Categorical, Column, Datetime, Numeric
from retilt.schema.encode import (
    cell_labels,
    check_type,
    limits,
    shown_type,
    to_cells,
    to_grid,
    to_unit,
    values_of,
)

TOP = MAX_LEVELS
YEAR = Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1))


def text(*cells: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(cells, pa.string())])


def typed(cells: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(cells, kind)])


NAN = float("nan")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("12", 12.0),
        (" 12 ", 12.0),
        ("\t7\n", 7.0),
        ("+5", 5.0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-0.0", 0.0),
        ("1e400", np.inf),
        ("-1e400", -np.inf),
        ("1" + "0" * 400, np.inf),
        ("1e-400", 0.0),
        ("inf", np.inf),
        ("-Infinity", -np.inf),
        ("nan", NAN),
        ("NaN", NAN),
        ("", NAN),
        (" ", NAN),
        (None, NAN),
        ("1,5", NAN),
        ("0x10", NAN),
        ("true", NAN),
        ("--1", NAN),
        ("1\x00", NAN),
        ('say "3"\n', NAN),
        ("\u0661", NAN),  # Arabic-Indic one
        ("'; DROP TABLE c; --", NAN),
    ],
)
def test_text_as_number(cell: str | None, value: float) -> None:
    found = values_of(Numeric(0, 1), text(cell))
    assert found.dtype == np.float64
    np.testing.assert_equal(found, [value])


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, 2, None], pa.int8()),
        ([1, 2, None], pa.uint64()),
        ([np.float16(1), np.float16(2), None], pa.float16()),
        ([1.0, 2.0, NAN], pa.float64()),
        ([Decimal("1.00"), Decimal("2.00"), None], pa.decimal128(10, 2)),
        ([Decimal("1.00"), Decimal("2.00"), None], pa.decimal256(60, 2)),
    ],
)
def test_numeric_types_agree(cells: list[Any], kind: pa.DataType) -> None:
    np.testing.assert_equal(values_of(Numeric(0, 5), typed(cells, kind)), [1, 2, NAN])


def test_great_integers_do_not_raise() -> None:
    found = values_of(Numeric(0, 5), typed([2**64 - 1, 0], pa.uint64()))
    np.testing.assert_equal(found, [2.0**64, 0.0])


def test_booleans_count_as_numbers() -> None:
    np.testing.assert_equal(
        values_of(Numeric(0, 1), typed([True, False, None], pa.bool_())), [1, 0, NAN]
    )


@pytest.mark.parametrize(
    ("cell", "day"),
    [
        ("2020-03-01", datetime(2020, 3, 1)),
        (" 2020-03-01 ", datetime(2020, 3, 1)),
        ("2020-03-01 06:00:00", datetime(2020, 3, 1, 6)),
        ("2020-03-01T06:00:00Z", datetime(2020, 3, 1, 6)),
        ("2020-03-01T06:00:00+02:00", datetime(2020, 3, 1, 4)),
        ("1969-12-31 23:59:59.5", datetime(1969, 12, 31, 23, 59, 59, 500_000)),
    ],
)
def test_text_as_moment(cell: str, day: datetime) -> None:
    microseconds = (day - datetime(1970, 1, 1)) / timedelta(microseconds=1)
    np.testing.assert_equal(values_of(YEAR, text(cell)), [microseconds])


@pytest.mark.parametrize("cell", ["", None, "12", "10:00", "2020-13-01", "today", "NaT", "x\n"])
def test_text_that_is_no_moment_is_null(cell: str | None) -> None:
    np.testing.assert_equal(values_of(YEAR, text(cell)), [NAN])


def test_infinite_moments_clamp() -> None:
    assert to_grid(YEAR, text("infinity", "-infinity")).tolist() == [TOP, -TOP]


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp(u, tz=tz) for u in ("s", "ms", "us", "ns") for tz in (None, "UTC", "Asia/Tokyo")]
    + [pa.date32(), pa.date64()],
    ids=str,
)
def test_moment_types_agree(kind: pa.DataType) -> None:
    day = datetime(2020, 7, 2, tzinfo=UTC)
    cells: list[Any] = [day.date() if pa.types.is_date(kind) else day, None]
    if getattr(kind, "tz", None) is None:
        cells[0] = cells[0].replace(tzinfo=None) if isinstance(cells[0], datetime) else cells[0]
    expected = values_of(YEAR, text("2020-07-02", None))
    np.testing.assert_equal(values_of(YEAR, typed(cells, kind)), expected)


def test_moments_beyond_a_microsecond_count() -> None:
    """Seconds near the end of int64 would overflow as microseconds."""
    cells = typed([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("s"))
    assert to_grid(YEAR, cells).tolist() == [TOP, -TOP]


def test_finer_than_a_microsecond_is_cut_alike() -> None:
    column = Datetime(datetime(1950, 1, 1), datetime(2021, 1, 1))
    stamp = "1960-01-01 00:00:00.123456789"
    nanoseconds = typed([pd.Timestamp(stamp).value], pa.int64()).cast(pa.timestamp("ns"))
    np.testing.assert_equal(values_of(column, nanoseconds), values_of(column, text(stamp)))


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        *[(w, 1) for w in ("true", "True", "TRUE", "t", "1", "1.0", "yes", " true ")],
        *[(w, 0) for w in ("false", "False", "F", "0", "0.0", "-0", "no")],
        *[(w, 2) for w in ("", None, "2", "-1", "nan", "inf", "maybe", '"', "a\nb")],
    ],
)
def test_text_as_boolean(cell: str | None, code: int) -> None:
    assert values_of(Boolean(), text(cell)).tolist() == [code]


def test_numbers_as_boolean() -> None:
    cells = typed([0.0, 1.0, 0.5, NAN, np.inf, None], pa.float64())
    assert values_of(Boolean(), cells).tolist() == [0, 1, 2, 2, 2, 2]


def test_text_categories() -> None:
    column = Categorical(("b", "a", "ü"))
    found = values_of(column, text("a", "b", "ü", "A", " a", "", None, "x\n"))
    assert found.dtype == np.int32
    assert found.tolist() == [1, 0, 2, 3, 3, 4, 4, 3]


def test_empty_text_may_be_a_category() -> None:
    assert values_of(Categorical(("a", "")), text("", None, "a")).tolist() == [1, 3, 0]


def test_text_categories_of_other_types() -> None:
    column = Categorical(("1", "-7"))
    assert values_of(column, typed([1, -7, 2, None], pa.int16())).tolist() == [0, 1, 2, 3]
    dictionary = text("1", "x", None).dictionary_encode()
    assert values_of(column, dictionary).tolist() == [0, 2, 3]


@pytest.mark.parametrize("words", [("FALSE", "TRUE"), ("False", "True"), ("false", "true")])
def test_booleans_are_spelled_as_the_categories_are(words: tuple[str, ...]) -> None:
    cells = typed([True, False, None], pa.bool_())
    assert values_of(Categorical(words), cells).tolist() == [1, 0, 3]


def test_number_categories_go_by_value() -> None:
    column = Categorical((3, 1.5, 0))
    assert values_of(
        column, text("3.0", "1.50", "-0", "2", "inf", "x", "", None, "nan")
    ).tolist() == [0, 1, 2, 3, 3, 4, 4, 4, 4]
    assert values_of(column, typed([3, 0, 7], pa.int64())).tolist() == [0, 2, 3]
    assert values_of(column, typed([True, False], pa.bool_())).tolist() == [3, 2]


def test_a_column_without_a_type_is_null() -> None:
    cells = typed([None, None], pa.null())
    for column in (Numeric(0, 1), YEAR, Boolean(), Categorical(("a", "b")), Categorical((1, 2))):
        middle = -1 if column.two_valued else 0
        assert to_grid(column, cells).tolist() == [middle, middle]


@pytest.mark.parametrize("column", [Numeric(0, 1), YEAR, Boolean(), Categorical(("a",))], ids=str)
def test_no_rows(column: Column) -> None:
    for cells in (pa.chunked_array([], pa.string()), text()):
        assert values_of(column, cells).shape == (0,)
        assert to_grid(column, cells).shape == (0,)
        assert to_cells(column, cells).shape == (0,)
        assert to_unit(column, cells, clamp=True).shape == (0,)


# --- cells that their type does not check --------------------------------------------------


def unchecked(*cells: bytes, kind: pa.DataType) -> pa.ChunkedArray:
    """Bytes that are said to be text: Arrow and Parquet do not look."""
    return pa.chunked_array([pa.array(cells, pa.binary()).view(pa.string()).cast(kind)])


NOT_UTF8 = [
    b"\xff",
    b"\xc3(",
    b"a\xed\xa0\x80",
    b" \xff ",
    b"2020-01-01 \xff",
    b"1\xff",
    b"true\xff",
]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_bytes_that_are_no_text(kind: pa.DataType) -> None:
    cells = unchecked(*NOT_UTF8, b"1", kind=kind)
    unknown = len(NOT_UTF8)
    listed = pa.DictionaryArray.from_arrays(pa.array(range(unknown + 1), pa.int8()), cells.chunk(0))
    for either in (cells, pa.chunked_array([listed])):
        np.testing.assert_equal(values_of(Numeric(0, 1), either), [NAN] * unknown + [1.0])
        np.testing.assert_equal(values_of(YEAR, either), [NAN] * (unknown + 1))
        assert values_of(Boolean(), either).tolist() == [2] * unknown + [1]
        assert values_of(Categorical(("1", "x")), either).tolist() == [2] * unknown + [0]
        assert values_of(Categorical((1, 2)), either).tolist() == [3] * unknown + [0]
    np.testing.assert_equal(values_of(Numeric(0, 1), text("1")), [1.0])


def test_any_bytes_are_cast() -> None:
    """What DuckDB makes of bytes that look like a value up to some point."""
    rng = np.random.default_rng(0)
    starts = [
        b"",
        b"2020-01-01 00:00:00 ",
        b"2020-01-01 00:00:00 Asia/Tokyo",
        b"1e30",
        b"true",
        b"inf",
    ]
    cells = []
    for _ in range(20_000):
        start = bytearray(starts[rng.integers(len(starts))])
        for byte in rng.integers(0, 256, rng.integers(0, 4)).tolist():
            start.insert(int(rng.integers(len(start) + 1)), byte)
        cells.append(bytes(start))
    for column in (Numeric(0, 1), YEAR, Boolean(), Categorical(("a",))):
        assert len(to_grid(column, unchecked(*cells, kind=pa.string()))) == len(cells)


def test_a_failed_database_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from retilt.schema import encode

    monkeypatch.setattr(encode, "_AS_NUMBER", "error('SECRET-77')")
    with pytest.raises(InputError) as caught:
        values_of(Numeric(0, 1), text("1"))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None
    assert encode._database.cache_info().currsize == 0
    monkeypatch.undo()
    np.testing.assert_equal(values_of(Numeric(0, 1), text("1")), [1.0])


@pytest.mark.parametrize("kind", ["e", "f", "d"])
def test_signalling_nan_does_not_warn(kind: str) -> None:
    bits = {"e": 0x7C01, "f": 0x7F800001, "d": 0x7FF0000000000001}[kind]
    size = np.dtype(kind).itemsize
    cells = pa.chunked_array([np.array([bits, 0], dtype=f"u{size}").view(kind)])
    for column in (Numeric(-1, 1), Numeric(-1, 1, integer=True), Categorical((0, 1)), Boolean()):
        assert len(to_grid(column, cells)) == len(to_cells(column, cells)) == 2
        for clamp in (True, False):
            assert np.isfinite(to_unit(column, cells, clamp=clamp)).all()
    assert values_of(Numeric(-1, 1), cells).tobytes() == np.array([NAN, 0.0]).tobytes()


def test_a_dictionary_of_long_texts_is_not_decoded() -> None:
    """2 GiB as string, and more than memory holds with a few more rows."""
    rows = 2**17
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        values = pa.array(["1" + "0" * 2**20, "b"], kind)
        cells = pa.chunked_array([pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), values)])
        assert (to_grid(Categorical(("a", "b", "c")), cells) == 0).all()
        assert (to_grid(Numeric(0, 1), cells) == TOP).all()


def test_dictionaries_that_differ_from_chunk_to_chunk() -> None:
    parts = [(["b", None, "a"], [0, 1, 2, None]), (["a", "b", "\u00fc"], [0, 2]), ([], [])]
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(values, pa.string()))
        for values, codes in parts
    ]
    cells = pa.chunked_array(chunks)
    assert values_of(Categorical(("a", "b")), cells).tolist() == [1, 3, 0, 3, 0, 2]
    many = [
        pa.DictionaryArray.from_arrays(
            pa.array([0, 99], pa.int8()), [str(k + i) for i in range(100)]
        )
        for k in range(3)  # more values than an int8 counts
    ]
    found = values_of(Numeric(0, 1), pa.chunked_array(many))
    np.testing.assert_equal(found, [0, 99, 1, 100, 2, 101])
    assert values_of(Boolean(), pa.chunked_array([], chunks[0].type)).shape == (0,)


# --- grids ---------------------------------------------------------------------------------


def test_lattice_rounds_halves_up() -> None:
    column = Numeric(0, 3, integer=True)
    cells = text("0", "0.5", "1.49", "2.5", "3", "9", "-9", "inf", "-inf", "1e308", "", "nan")
    assert to_grid(column, cells).tolist() == [-3, -1, -1, 3, 3, 3, -3, 3, -3, 3, 0, 0]


def test_real_grid() -> None:
    column = Numeric(-1, 1)
    step = 1 / TOP
    cells = typed([-1, 1, 0, 0.5, 0.5 * step, -0.5 * step, 0.49 * step], pa.float64())
    assert to_grid(column, cells).tolist() == [-TOP, TOP, 0, TOP // 2, 1, 0, 0]


@pytest.mark.parametrize(
    "column",
    [Numeric(-8e307, 8e307), Numeric(0, 5e-324), Numeric(1e308, 1.5e308), Numeric(0, 1e-300)],
    ids=str,
)
def test_extreme_bounds_never_overflow(column: Numeric) -> None:
    cells = typed([-1.7e308, 1.7e308, np.inf, -np.inf, NAN, column.lower, -0.0], pa.float64())
    grid = to_grid(column, cells)
    assert grid[[0, 1, 2, 3, 4, 5]].tolist() == [-TOP, TOP, TOP, -TOP, 0, -TOP]
    for clamp in (True, False):
        unit = to_unit(column, cells, clamp=clamp)
        assert np.isfinite(unit).all()
        assert unit[[2, 3, 4]].tolist() == [1, 0, 0.5]


def test_wide_integers_share_the_real_grid() -> None:
    column = Numeric(0, 2**20, integer=True)
    assert to_grid(column, text("0", str(2**19), str(2**20))).tolist() == [-TOP, 0, TOP]


def test_codes_on_the_grid() -> None:
    assert to_grid(Categorical(("a", "b", "c")), text("a", "b", "c", "x", "")).tolist() == [
        -2,
        0,
        2,
        0,
        0,
    ]
    assert to_grid(Categorical(("a", "b")), text("a", "b", "x", None)).tolist() == [-1, 1, -1, -1]
    assert to_grid(Categorical(("a",)), text("a", "x", None)).tolist() == [0, 0, 0]
    assert to_grid(Boolean(), text("true", "false", "?")).tolist() == [1, -1, -1]


@pytest.mark.parametrize(
    "column",
    [
        Numeric(3, 3),
        Numeric(3, 3, integer=True),
        Numeric(2**60, 2**60 + 1),
        Numeric(2**60, 2**60 + 1, integer=True),
        Datetime(YEAR.lower, YEAR.lower),
        # Microseconds of the year 9000 are too fine for a float.
        Datetime(datetime(9000, 1, 1), datetime(9000, 1, 1, 0, 0, 0, 1)),
    ],
    ids=str,
)
def test_constants_are_the_midpoint(column: Column) -> None:
    cells = text("3", "5", "inf", "", "2020-01-01")
    assert to_grid(column, cells).tolist() == [0] * 5
    assert to_unit(column, cells, clamp=False).tolist() == [0.5] * 5
    assert to_unit(column, cells, clamp=True).tolist() == [0.5] * 5
    assert column.levels == 0
    if isinstance(column, Datetime):
        moments = typed([datetime(2020, 1, 1), datetime(9000, 1, 1), None], pa.timestamp("us"))
        assert to_grid(column, moments).tolist() == [0] * 3


def test_naive_bounds_are_utc() -> None:
    aware = Datetime(
        datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        datetime(2021, 1, 1, tzinfo=UTC),
    )
    assert limits(aware) == limits(YEAR)


# --- the raw encoding ----------------------------------------------------------------------


def test_unit_interval() -> None:
    column = Numeric(10, 20)
    cells = text("10", "12.5", "30", "0", "inf", "-inf", "", "nan")
    assert to_unit(column, cells, clamp=True).tolist() == [0, 0.25, 1, 0, 1, 0, 0.5, 0.5]
    assert to_unit(column, cells, clamp=False).tolist() == [0, 0.25, 2, -1, 1, 0, 0.5, 0.5]
    three = Categorical(("a", "b", "c"))
    assert to_unit(three, text("a", "b", "c", "x", ""), clamp=False).tolist() == [
        0,
        0.5,
        1,
        0.5,
        0.5,
    ]
    assert to_unit(Boolean(), text("t", "f", "?"), clamp=True).tolist() == [1, 0, 0]


# --- cells of marginals --------------------------------------------------------------------


def test_bins() -> None:
    column = Numeric(0, 10)
    cells = text("0", "2", "1.99", "5", "10", "99", "-99", "inf", "", "x")
    assert to_cells(column, cells, [2.0, 5.0]).tolist() == [0, 1, 0, 2, 2, 2, 0, 2, 3, 3]
    assert cell_labels(column, [2.0, 5.0]) == ("[0, 2)", "[2, 5)", "[5, 10]", "null")
    assert to_cells(column, cells[:1]).tolist() == [0]
    assert cell_labels(column) == ("[0, 10]", "null")


def test_cells_of_codes() -> None:
    column = Categorical(("F", "M"))
    assert to_cells(column, text("M", "x", None)).tolist() == [1, 2, 3]
    assert cell_labels(column) == ("F", "M", "other", "null")
    assert to_cells(Boolean(), text("t", "f", "")).tolist() == [1, 0, 2]
    assert cell_labels(Boolean()) == ("false", "true", "null")


def test_labels_are_distinct() -> None:
    column = Categorical(("null", "other", "(other)"))
    assert cell_labels(column)[3:] == ("((other))", "(null)")
    close = cell_labels(Numeric(0, 1), [0.1234561, 0.1234562])
    assert len(set(close)) == 4
    assert cell_labels(Categorical((1, 2.5)))[:2] == ("1", "2.5")
    ends = Datetime(datetime.min, datetime.max)
    assert cell_labels(ends)[0] == "[0001-01-01, 9999-12-31 23:59:59.999999]"
    assert cell_labels(YEAR, [limits(YEAR)[0] + 3600e6])[0] == "[2020-01-01, 2020-01-01 01:00:00)"


def test_numbers_that_no_float_holds() -> None:
    for wrong in (lambda: Numeric(0, 10**400), lambda: Categorical((1, 10**400))):
        with pytest.raises(SchemaError, match="finite"):
            wrong()
    with pytest.raises(SchemaError, match="distinct"):
        Categorical((2**53, 2**53 + 1))


# --- declared types ------------------------------------------------------------------------

ANYTHING = [pa.string(), pa.large_string(), pa.string_view(), pa.null()]
ANYTHING += [pa.dictionary(pa.int8(), pa.string())]
FITS: list[tuple[Column, list[pa.DataType]]] = [
    (Numeric(0, 1), [pa.int8(), pa.uint64(), pa.float16(), pa.decimal128(5), pa.bool_()]),
    (Numeric(0, 1), [pa.dictionary(pa.int8(), pa.int64())]),
    (YEAR, [pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s", tz="UTC")]),
    (Boolean(), [pa.bool_(), pa.int8(), pa.float64()]),
    (Categorical(("a",)), [pa.int8(), pa.bool_()]),
    (Categorical((1,)), [pa.int8(), pa.float64(), pa.bool_()]),
]
NEVER = [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.binary(), pa.time64("us")]
NEVER += [pa.duration("s"), pa.map_(pa.string(), pa.int8())]
MISFITS: list[tuple[Column, list[pa.DataType]]] = [
    (Numeric(0, 1), [pa.timestamp("us"), pa.date32()]),
    (YEAR, [pa.int64(), pa.float64(), pa.bool_()]),
    (Boolean(), [pa.timestamp("us")]),
    (Categorical(("a",)), [pa.float64(), pa.decimal128(5), pa.date32()]),
    (Categorical((1,)), [pa.date32()]),
]


@pytest.mark.parametrize(("column", "kinds"), FITS, ids=str)
def test_types_that_fit(column: Column, kinds: list[pa.DataType]) -> None:
    for kind in kinds + ANYTHING:
        check_type("x", column, kind)
        assert len(to_grid(column, typed([None], kind))) == 1
        if not pa.types.is_dictionary(kind):
            one = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], kind))
            assert len(to_grid(column, pa.chunked_array([one, one]))) == 2


@pytest.mark.parametrize(("column", "kinds"), MISFITS, ids=str)
def test_types_that_do_not_fit(column: Column, kinds: list[pa.DataType]) -> None:
    for kind in kinds + NEVER:
        with pytest.raises(ColumnTypeError, match="column 'my age'") as caught:
            check_type("my age", column, kind)
        assert f"its type is {shown_type(kind)}, but" in str(caught.value)


# --- one policy, whatever the container ----------------------------------------------------


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("secret")

    __repr__ = __str__


ODDITIES: list[Any] = [
    None,
    NAN,
    pd.NA,
    pd.NaT,
    "",
    np.inf,
    -np.inf,
    1e308,
    -0.0,
    10**400,
    10**5000,
    [1, 2],
    {"a": 1},
    b"12",
    Decimal("1.5"),
    Decimal("NaN"),
    'quote " and\nnewline',
    "\udc80 lone",
    "nul\x00",
    Hostile(),
    True,
    date(2020, 1, 1),
    1 + 2j,
]
COLUMNS: list[Column] = [
    Numeric(0, 10),
    Numeric(0, 10, integer=True),
    YEAR,
    Boolean(),
    Categorical(("a", "b")),
    Categorical((1, 2, 3)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_objects_of_any_kind(column: Column) -> None:
    table = PandasTable(pd.DataFrame({"x": pd.Series(ODDITIES, dtype=object)}))
    check_type("x", column, table.arrow_type("x"))
    grid = to_grid(column, table.cells("x"))
    assert np.abs(grid).max() <= column.levels
    codes = to_cells(column, table.cells("x"))
    assert len(grid) == len(codes) == len(ODDITIES)


def test_numeric_oddities() -> None:
    table = PandasTable(pd.DataFrame({"x": pd.Series(ODDITIES, dtype=object)}))
    found = values_of(Numeric(0, 10), table.cells("x"))
    kept = {i: v for i, v in enumerate(found) if not np.isnan(v)}
    # 10**5000 has too many digits for str(), as if it refused.
    assert kept == {5: np.inf, 6: -np.inf, 7: 1e308, 8: 0.0, 9: np.inf, 14: 1.5}


def _trace(column: Column, cell: Any) -> list[tuple[str, int]]:
    """The lines of the package that run when a table's third row is ``cell``."""
    root = str(Path(retilt.__file__).parent)
    lines: list[tuple[str, int]] = []

    def tracer(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(root):
            return None
        if event == "line":
            lines.append((name, frame.f_lineno))
        return tracer

    frame = pd.DataFrame({"x": pd.Series(["1", "a", cell, "", "2020-01-01"], dtype=object)})
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        table = PandasTable(frame)
        cells = table.cells("x")
        to_grid(column, cells)
        to_cells(column, cells)
        to_unit(column, cells, clamp=True)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_the_same_lines_run_whatever_a_cell_holds(column: Column) -> None:
    """An error, a branch or a skipped step would reveal the row."""
    expected = _trace(column, "1")
    assert len(expected) > 20
    for cell in ODDITIES:
        assert _trace(column, cell) == expected
