"""What a column is, from the synthetic table alone."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from retilt.engines.local import open_table
from retilt.exceptions import SchemaError
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from retilt.schema.infer import categories_of, infer_all, infer_column

DAY = datetime(2020, 1, 1)
NOON = datetime(2021, 1, 1, 12)


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["3", "1", "2"], Numeric(1, 3, integer=True)),
        (["3", "1.5", ""], Numeric(1.5, 3, nullable=True)),
        (["3", "1.0", "inf", "7"], Numeric(1, 7, integer=True)),
        (["3", "1", "5", "nan"], Numeric(1, 5, integer=True, nullable=True)),
        (["1e3", "0.5"], Numeric(0.5, 1000)),
        (["2", "1", "2"], Categorical((1, 2))),
        (["0", "1", None], Categorical((0, 1), nullable=True)),
        (["7", "7"], Numeric(7, 7, integer=True)),
        (["2020-01-01", "2021-01-01 12:00:00"], Datetime(DAY, NOON)),
        (["2020-01-01", ""], Datetime(DAY, DAY, nullable=True)),
        (["true", "False", "TRUE"], Boolean()),
        (["true", None], Boolean(nullable=True)),
        (["b", "a", "Ä", "B", "b"], Categorical(("B", "a", "b", "Ä"))),
        (["t", "f"], Categorical(("f", "t"))),
        (["yes", "no", ""], Categorical(("no", "yes"), nullable=True)),
        (["only"], Categorical(("only",))),
        (["1", "x"], Categorical(("1", "x"))),
        (["nan", "x"], Categorical(("nan", "x"))),
        (["nan"], Categorical(("nan",))),
    ],
)
def test_text(cells: list[str | None], column: Column) -> None:
    assert infer_column(open_table(pa.table({"x": pa.array(cells, pa.string())})), "x") == column


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (pa.array([3, 1, 2], pa.uint8()), Numeric(1, 3, integer=True)),
        (pa.array([1, 0, None]), Categorical((0, 1), nullable=True)),
        (pa.array([1.0, 0.0, None]), Categorical((0, 1), nullable=True)),
        (pa.array([1.5, 2.5]), Numeric(1.5, 2.5)),
        (pa.array([1.5, float("nan"), float("-inf")]), Numeric(1.5, 1.5, nullable=True)),
        (pa.array([Decimal("1.5"), Decimal("3.0")]), Numeric(1.5, 3)),
        (pa.array([True, None]), Boolean(nullable=True)),
        (pa.array([date(2020, 1, 1)]), Datetime(DAY, DAY)),
        (pa.array([DAY, NOON], pa.timestamp("ns", tz="Asia/Tokyo")), Datetime(DAY, NOON)),
        (pa.array(["b", "a", "b"]).dictionary_encode(), Categorical(("a", "b"))),
    ],
    ids=str,
)
def test_types(cells: pa.Array, column: Column) -> None:
    assert infer_column(open_table(pa.table({"x": cells})), "x") == column


def test_ordered_dictionaries_keep_order_and_unused_levels() -> None:
    kind = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    frame = pd.DataFrame({"x": pd.Series(["high", "low", None], dtype=kind)})
    expected = Categorical(("low", "mid", "high"), ordered=True, nullable=True)
    assert infer_column(open_table(frame), "x") == expected
    assert infer_column(open_table(pa.Table.from_pandas(frame)), "x") == expected
    enum = pl.Series("x", ["high", "low", None], dtype=pl.Enum(["low", "mid", "high"]))
    found = infer_column(open_table(pl.DataFrame([enum])), "x")
    assert isinstance(found, Categorical)
    assert found.categories == expected.categories


def test_pandas_categories_keep_their_order_also_unordered() -> None:
    frame = pd.DataFrame({"x": pd.Categorical(["a", "b"], ["b", "a", "unused"])})
    assert infer_column(open_table(frame), "x") == Categorical(("b", "a", "unused"))
    numbers = pd.DataFrame({"x": pd.Categorical([1, 2], [3, 2, 1])})
    assert infer_column(open_table(numbers), "x") == Categorical((3, 2, 1))


def test_polars_categories_are_sorted_and_only_those_in_use() -> None:
    others = pl.DataFrame({"y": pl.Series(["zz", "yy"], dtype=pl.Categorical)})
    frame = pl.DataFrame({"x": pl.Series(["b", "a"], dtype=pl.Categorical)})
    assert infer_column(open_table(frame), "x") == Categorical(("a", "b"))
    assert others.height == 2


def test_pandas_categories_of_other_kinds() -> None:
    frame = pd.DataFrame(
        {
            "b": pd.Categorical([True, False]),
            "d": pd.Categorical(pd.to_datetime(["2020-01-01", "2020-01-01"])),
            "m": pd.Categorical([1, "a"]),
            "i": pd.Categorical(pd.cut([1, 2], [0, 1, 2])),
            "n": pd.Categorical([None, None]),
        }
    )
    table = open_table(frame)
    assert infer_column(table, "b") == Boolean()
    assert infer_column(table, "d") == Datetime(DAY, DAY)
    assert infer_column(table, "m") == Categorical(("1", "a"))
    assert infer_column(table, "i") == Categorical(("(0, 1]", "(1, 2]"), ordered=True)
    with pytest.raises(SchemaError, match="no values"):
        infer_column(table, "n")


REFUSED: list[tuple[Any, str]] = [
    (pa.array([None, None], pa.string()), "no values"),
    (pa.array(["", ""]), "no values"),
    (pa.array([None], pa.null()), "no values"),
    (pa.array([None], pa.int64()), "no values"),
    (pa.array([float("nan")]), "no values"),
    (pa.array([float("inf")]), "no numbers"),
    (pa.array([None], pa.timestamp("us")), "no values"),
    (pa.array([None], pa.bool_()), "no values"),
    (pa.array(range(51)), "identifier: its 51 values"),
    (pa.array([float(i) for i in range(51)]), "identifier"),
    (pa.array([str(i) for i in range(51)]), "identifier"),
    (pa.array([f"u{i}" for i in range(51)]), "identifier: its 51 values"),
    (pa.array([f"u{i}" for i in range(51)] + [None]), "identifier"),
    (pa.array([f"u{i // 2}" for i in range(2002)] + ["z"] * 5000), "1002 different texts"),
    (pa.array([f"u{i}" for i in range(40)] + ["z"] * 20), "41 different texts in 60 rows"),
    (pa.array([[1], [2]]), "can't be measured"),
    (pa.array([b"1"]), "can't be measured"),
    (pa.array([1], pa.duration("s")), "can't be measured"),
]


@pytest.mark.parametrize(("cells", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_needs_a_decision_is_refused_by_name(cells: pa.Array, says: str) -> None:
    with pytest.raises(SchemaError, match="column 'my id'") as caught:
        infer_column(open_table(pa.table({"my id": cells})), "my id")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "cells", [list(range(50)), [f"u{i}" for i in range(50)], [i + 0.5 for i in range(99)]]
)
def test_few_rows_or_fractions_are_no_identifier(cells: list[Any]) -> None:
    infer_column(open_table(pa.table({"x": cells})), "x")


def test_far_moments_stay_in_pythons_range() -> None:
    cells = pa.array(["2020-01-01", "infinity", "290000-01-01", "-infinity"])
    assert infer_column(open_table(pa.table({"x": cells})), "x") == Datetime(DAY, DAY)


def test_the_same_in_every_container() -> None:
    columns: dict[str, list[Any]] = {
        "n": [1, 2, 5],
        "f": [0.5, None, 2.0],
        "s": ["b", None, "a"],
        "b": [True, None, False],
        "t": [DAY, NOON, None],
        "z": [0, 1, 1],
    }
    table = pa.table(columns)
    text = {n: [None if v is None else str(v) for v in c] for n, c in columns.items()}
    sources = [table, table.to_pandas(), pl.from_arrow(table), pd.DataFrame(columns, dtype=object)]
    sources += [pa.table(text), pd.DataFrame(text)]
    found = [infer_all(open_table(s)) for s in sources]
    for schema, undecided in found:
        assert schema == found[0][0]
        assert not undecided


def test_all_columns() -> None:
    table = pa.table({"id": range(60), "x": [1, 2, 3] * 20, "gone": pa.nulls(60), "b": [True] * 60})
    schema, undecided = infer_all(open_table(table))
    assert list(schema.columns) == ["x", "b"]
    assert schema.inferred == {"x"}
    assert list(undecided) == ["id", "gone"]
    assert "identifier" in undecided["id"]


def test_float_integers_beyond_exactness_stay_floats() -> None:
    column = infer_column(open_table(pa.table({"x": np.array([1e300, 0.0, 3.0])})), "x")
    assert column == Numeric(0, 1e300, integer=True)


def test_text_that_is_not_utf8_is_refused() -> None:
    """Bytes that Arrow was told are text."""
    cells = pa.array([b"\xff", b"a", b"a"], pa.binary()).view(pa.string())
    listed = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), cells, ordered=True)
    for column in (cells, cells.cast(pa.string_view()), listed):
        table = open_table(pa.table({"x": column}))
        with pytest.raises(SchemaError, match="not UTF-8"):
            infer_column(table, "x")
        with pytest.raises(SchemaError, match="not UTF-8"):
            categories_of("x", table.cells("x"))
        assert "not UTF-8" in infer_all(table)[1]["x"]


def test_dictionaries_of_any_text() -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        cells = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None, 0]), pa.array(["x", "y"], kind)
        )
        table = open_table(pa.table({"x": cells}))
        assert infer_column(table, "x") == Categorical(("x", "y"), nullable=True)
