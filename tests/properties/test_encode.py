"""Properties of the encoding that hold for any value."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retilt.engines.local import open_table
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from retilt.schema.encode import cell_labels, to_cells, to_grid, to_unit, values_of

FINITE = st.floats(-1e300, 1e300, allow_nan=False)
ANY_FLOAT = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 0.5, 1.5]),
)


@st.composite
def numerics(draw: st.DrawFn) -> Numeric:
    if draw(st.booleans()):
        lower = draw(st.integers(-(10**6), 10**6))
        return Numeric(lower, lower + draw(st.integers(0, 10**5)), integer=True)
    ends = sorted(draw(st.tuples(FINITE, FINITE)))
    return Numeric(ends[0], ends[1])


def cells_of(values: list[Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@given(numerics(), st.lists(ANY_FLOAT, max_size=30))
def test_grid_is_bounded_monotone_and_exact(column: Numeric, values: list[float]) -> None:
    grid = to_grid(column, cells_of(values, pa.float64()))
    assert grid.dtype == np.int32
    assert (np.abs(grid) <= column.levels).all()
    known = ~np.isnan(values) if values else np.array([], dtype=bool)
    ordered = grid[known][np.argsort(np.array(values)[known], kind="stable")]
    assert (np.diff(ordered) >= 0).all()
    if column.on_lattice and values:
        inside = [v for v in values if column.lower <= v <= column.upper and v == int(v)]
        back = to_grid(column, cells_of(inside, pa.float64()))
        assert ((back + column.levels) // 2 + column.lower).tolist() == inside


@given(numerics(), st.lists(ANY_FLOAT, max_size=30))
def test_grid_is_within_half_a_step_of_the_clamped_value(
    column: Numeric, values: list[float]
) -> None:
    cells = cells_of(values, pa.float64())
    unit = to_unit(column, cells, clamp=True)
    assert ((unit >= 0) & (unit <= 1)).all()
    if column.levels and not column.integer:
        away = np.abs(to_grid(column, cells) / column.levels - (2 * unit - 1))
        assert (away <= 0.5 / column.levels + 1e-12).all()


@given(numerics(), st.lists(ANY_FLOAT, max_size=30), st.lists(FINITE, max_size=5, unique=True))
def test_every_row_has_exactly_one_cell(
    column: Numeric, values: list[float], edges: list[float]
) -> None:
    edges = sorted(e for e in edges if column.lower < e < column.upper)
    codes = to_cells(column, cells_of(values, pa.float64()), edges)
    labels = cell_labels(column, edges)
    assert len(labels) == len(set(labels)) == len(edges) + 2
    assert ((codes >= 0) & (codes < len(labels))).all()
    for value, code in zip(values, codes, strict=True):
        clamped = min(max(value, column.lower), column.upper)
        expected = len(edges) + 1 if np.isnan(value) else sum(e <= clamped for e in edges)
        assert code == expected


@given(st.lists(ANY_FLOAT, max_size=20))
def test_no_warning_whatever_the_values(values: list[float]) -> None:
    cells = cells_of(values, pa.float64())
    for column in (Numeric(0, 1), Numeric(-8e307, 8e307), Boolean(), Categorical((0.5, 1))):
        to_grid(column, cells)
        to_unit(column, cells, clamp=False)
        to_cells(column, cells)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), max_size=20))
def test_any_text_is_encoded(values: list[str | None]) -> None:
    values = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
    day = Datetime(pd.Timestamp(2020, 1, 1), pd.Timestamp(2021, 1, 1))
    for column in (Numeric(0, 1), day, Boolean(), Categorical(("a", "0")), Categorical((0, 1))):
        grid = to_grid(column, cells_of(values, pa.string()))
        assert (np.abs(grid) <= column.levels).all()
        if isinstance(column, Categorical):
            assert (values_of(column, cells_of(values, pa.string())) <= 3).all()


TEXTS = ["a", "b", "c d", 'q"', "n\nl", "ü", ""]


# --- one policy, whatever holds the values -------------------------------------------------


def containers(values: list[Any], folder: Path, typed: list[pa.DataType]) -> list[Any]:
    """The same column in everything that can hold it; a name for a path is its own test."""
    texts = [None if v is None else str(v) for v in values]
    path = folder / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "y"])
        writer.writerows([["" if t is None else t, "1"] for t in texts])
    kinds: list[Any] = [pa.table({"x": pa.array(values, t)}) for t in typed]
    kinds += [pa.table({"x": pa.array(texts, t)}) for t in (pa.string(), pa.large_string())]
    kinds += [pa.table({"x": pa.array(texts, pa.string()).dictionary_encode()})]
    kinds += [pl.from_arrow(t) for t in kinds]
    kinds += [pd.DataFrame({"x": pd.Series(values, dtype=object)})]
    kinds += [pd.DataFrame({"x": pd.Series(texts, dtype=d)}) for d in ("object", "str", "category")]
    kinds += [
        pd.DataFrame({"x": pd.array(pa.array(values, t), dtype=pd.ArrowDtype(t))}) for t in typed
    ]
    return [*kinds, path]


def assert_equal_in_all(column: Column, sources: list[Any]) -> None:
    first, *others = (open_table(source).cells("x") for source in sources)
    grid, cells = to_grid(column, first), to_cells(column, first)
    for other in others:
        np.testing.assert_array_equal(to_grid(column, other), grid)
        np.testing.assert_array_equal(to_cells(column, other), cells)


few = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(st.lists(st.one_of(st.none(), st.floats(width=64)), min_size=1, max_size=8))
def test_floats(tmp_path: Path, values: list[float | None]) -> None:
    plain = [None if v is None or np.isnan(v) else v for v in values]
    sources = containers(plain, tmp_path, [pa.float64()])
    sources += [pd.DataFrame({"x": np.array([np.nan if v is None else v for v in plain])})]
    sources += [pd.DataFrame({"x": pd.array(plain, dtype="Float64")})]
    for column in (Numeric(-2.5, 1e9), Numeric(0, 100, integer=True), Categorical((0, 1, 0.5))):
        assert_equal_in_all(column, sources)


@few
@given(st.lists(st.one_of(st.none(), st.integers(-300, 300)), min_size=1, max_size=8))
def test_integers(tmp_path: Path, values: list[int | None]) -> None:
    sources = containers(values, tmp_path, [pa.int16(), pa.int64()])
    sources += [pd.DataFrame({"x": pd.array(values, dtype="Int32")})]
    columns: list[Column] = [Numeric(-9, 200, integer=True), Boolean()]
    columns += [Categorical((1, 2, 3)), Categorical(("1", "-5", "x"))]
    for column in columns:
        assert_equal_in_all(column, sources)


@few
@given(
    st.lists(
        st.sampled_from(["a", "b", "c d", 'q"', "n\nl", "ü", "", None]), min_size=1, max_size=8
    )
)
def test_texts(tmp_path: Path, values: list[str | None]) -> None:
    sources = containers(values, tmp_path, [])
    for column in (Categorical(("b", "a", "n\nl", 'q"')), Categorical(("a", "b"))):
        assert_equal_in_all(column, sources)


@few
@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=8))
def test_booleans(tmp_path: Path, values: list[bool | None]) -> None:
    sources = containers(values, tmp_path, [pa.bool_()])
    sources += [pd.DataFrame({"x": pd.array(values, dtype="boolean")})]
    for column in (Boolean(), Categorical(("False", "True"))):
        assert_equal_in_all(column, sources)


@few
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.datetimes(pd.Timestamp(1700, 1, 1), pd.Timestamp(2200, 1, 1)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_moments(tmp_path: Path, values: list[Any]) -> None:
    sources = containers(values, tmp_path, [pa.timestamp("us")])
    sources += [pd.DataFrame({"x": pd.Series(values, dtype="datetime64[us]")})]
    sources += [
        pd.DataFrame({"x": pd.Series(values, dtype="datetime64[us]").dt.tz_localize("UTC")})
    ]
    column = Datetime(pd.Timestamp(1950, 1, 1), pd.Timestamp(2030, 1, 1))
    assert_equal_in_all(column, sources)


@pytest.mark.parametrize("cells", [[True, None, False]])
def test_false_and_true_are_numbers_in_typed_columns_only(cells: list[bool | None]) -> None:
    """As text, ``true`` is no number; a Boolean column is declared as such."""
    typed = values_of(Numeric(0, 1), cells_of(cells))
    np.testing.assert_equal(typed, [1, np.nan, 0])
