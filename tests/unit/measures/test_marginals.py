"""Contingency tables: bins, names of cells, projection on the total, empty cells."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.exceptions import WorkloadError
from retilt.measures.base import Relation, Terms
from retilt.measures.marginals import Marginal, MarginalBlock
from retilt.measures.partitions import MAX_CELLS, partition_sensitivity
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import limits

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
SEX, AGE = Categorical(("F", "M")), Numeric(17, 90, integer=True)


def edges_of(column: Column, values: Any, bins: Any) -> tuple[float, ...]:
    measure = Marginal(("x",), bins={"x": bins}) if bins is not None else Marginal(("x",))
    fixed = measure.with_edges(Schema({"x": column}), {"x": np.asarray(values, dtype=np.float64)})
    assert fixed.edges is not None
    return fixed.edges["x"]


def block_of(
    columns: dict[str, Column], edges: Any = None, relation: Relation = REPLACE
) -> MarginalBlock:
    measure = Marginal(tuple(columns), edges=edges)
    return measure.bind(Terms(Schema(columns), norm=2, relation=relation))


# --- bins --------------------------------------------------------------------------------


def test_bins_are_quantiles_of_the_synthetic_column() -> None:
    values = np.arange(17, 91)
    assert edges_of(AGE, values, 2) == (54.0,)
    assert len(edges_of(AGE, values, None)) == 19  # twenty bins unless told
    assert edges_of(AGE, values, 1) == ()
    counts = np.histogram(values, [17, *edges_of(AGE, values, 5), 91])[0]
    assert counts.min() >= 14
    assert counts.max() <= 15


def test_edges_are_taken_as_they_are() -> None:
    assert edges_of(AGE, [], (20.0, 30.0)) == (20.0, 30.0)


def test_a_repeated_value_is_never_split() -> None:
    values = np.array([20] * 80 + [30] * 10 + [40] * 10)
    edges = edges_of(AGE, values, 10)
    # No edge at the smallest value: no synthetic row would lie below it.
    assert edges == (30.0, 40.0)
    # A bin begins at a value that occurs, so that equal values share a bin whatever the rounding.
    assert set(edges) <= set(values.tolist())


def test_infinite_and_missing_values_make_no_edges() -> None:
    values = [np.nan, np.inf, -np.inf, 25, 35, 45]
    assert edges_of(AGE, values, 3) == (35.0, 45.0)
    assert edges_of(AGE, [np.nan], 3) == ()
    assert edges_of(AGE, [], 3) == ()


def test_edges_lie_inside_the_declared_bounds() -> None:
    values = [0, 1, 2, 3, 50, 60, 200, 300]
    edges = edges_of(AGE, values, 8)
    assert edges
    assert all(17 < e <= 90 for e in edges)
    assert edges_of(Numeric(5, 5), [5, 5, 5], 4) == ()


@given(
    st.lists(
        st.one_of(st.floats(-50, 150), st.integers(0, 9), st.just(float("nan"))),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 30),
)
def test_bins_whatever_the_values(values: list[float], bins: int) -> None:
    column = Numeric(0, 100)
    edges = edges_of(column, values, bins)
    assert len(edges) <= bins - 1
    assert list(edges) == sorted(set(edges))
    assert all(0 < e <= 100 for e in edges)
    clamped = np.clip(np.array(values, dtype=np.float64), *limits(column))
    assert set(edges) <= set(clamped.tolist())
    block = block_of({"x": column}, {"x": edges})
    codes = block.features[0].encode(
        lambda _: pa.chunked_array([pa.array(clamped, from_pandas=True)]), len(clamped)
    )
    # Every bin but perhaps the first holds a row, and nulls have a cell of their own.
    filled = set(codes.tolist()) - {len(edges) + 1}
    assert set(range(1, len(edges) + 1)) <= filled


def test_categories_have_no_bins() -> None:
    with pytest.raises(WorkloadError, match="'sex' is not numeric"):
        Marginal(("sex",), bins={"sex": 3}).with_edges(Schema({"sex": SEX}), {})
    with pytest.raises(WorkloadError, match="'flag' is not numeric"):
        Marginal(("flag",), bins={"flag": 3}).with_edges(Schema({"flag": Boolean()}), {})
    fixed = Marginal(("sex",)).with_edges(Schema({"sex": SEX}), {})
    assert fixed.edges == {}


def test_bins_and_edges_are_checked_and_frozen() -> None:
    with pytest.raises(WorkloadError, match="'z' is not a column"):
        Marginal(("x",), bins={"z": 3})
    with pytest.raises(WorkloadError, match="ascending"):
        Marginal(("x",), edges={"x": (2.0, 1.0)})
    given_bins = {"x": 3}
    made = Marginal(("x",), bins=given_bins)
    given_bins["x"] = 99
    assert made.bins["x"] == 3
    with pytest.raises(TypeError):
        made.bins["x"] = 4  # type: ignore[index]


def test_edges_must_be_fixed_before_binding() -> None:
    with pytest.raises(WorkloadError, match="no bin edges were fixed for 'x'"):
        block_of({"x": AGE})


def test_a_table_of_too_many_cells_is_refused() -> None:
    wide = Categorical(tuple(str(i) for i in range(316)))
    with pytest.raises(WorkloadError, match=r"101,124 cells, allowed are 100,000"):
        block_of({"a": wide, "b": wide})
    assert block_of({"a": wide}).size == 318
    assert MAX_CELLS == 100_000


# --- names -------------------------------------------------------------------------------


def test_cells_are_named_by_their_columns_and_values() -> None:
    block = block_of({"sex": SEX, "age": AGE}, {"age": (25.0, 65.0)})
    assert block.shape == (4, 4)
    names = block.statistics
    assert names[0] == "cell(sex=F, age=[17, 25))"
    assert names[2] == "cell(sex=F, age=[65, 90])"
    assert names[3] == "cell(sex=F, age=null)"
    assert names[-1] == "cell(sex=null, age=null)"
    assert "cell(sex=other, age=[25, 65))" in names


def test_names_with_commas_are_quoted_but_bins_are_not() -> None:
    city = Categorical(("Bern", "Ürümqi, west", 'a "b"', "x=1", "(y)"))
    names = block_of({"the city, now": city}).statistics
    assert names == (
        'cell("the city, now"=Bern)',
        'cell("the city, now"="Ürümqi, west")',
        'cell("the city, now"="a ""b""")',
        'cell("the city, now"="x=1")',
        'cell("the city, now"="(y)")',
        'cell("the city, now"=other)',
        'cell("the city, now"=null)',
    )


def test_every_cell_has_a_name_of_its_own() -> None:
    columns: dict[str, Column] = {
        "a": Categorical(("other", "null", "(other)", "x, b=y")),
        "b": Boolean(),
    }
    names = block_of(columns).statistics
    assert len(set(names)) == len(names) == 18


def test_edges_alike_in_six_digits_are_written_out() -> None:
    names = block_of({"x": Numeric(0, 1)}, {"x": (0.1234567, 0.1234568)}).statistics
    assert "cell(x=[0.1234567, 0.1234568))" in names


def test_dates_are_named_as_dates() -> None:
    column = Datetime(datetime(2020, 1, 1), datetime(2020, 12, 31))
    edge = (datetime(2020, 7, 1) - datetime(1970, 1, 1)).total_seconds() * 1e6
    names = block_of({"day": column}, {"day": (edge,)}).statistics
    assert names[:2] == (
        "cell(day=[2020-01-01, 2020-07-01))",
        "cell(day=[2020-07-01, 2020-12-31])",
    )


# --- shares ------------------------------------------------------------------------------


def test_shares_are_projected_on_a_public_total_only() -> None:
    noisy = np.array([0.5, 0.3, 0.1, 0.02])
    known = block_of({"sex": SEX}).evaluate(noisy)
    assert known.sum() == pytest.approx(1)
    np.testing.assert_allclose(known, noisy + 0.02)
    private = block_of({"sex": SEX}, relation=ADD_REMOVE).evaluate(noisy)
    np.testing.assert_array_equal(private, noisy)
    exact = np.array([0.7, 0.3, 0.0, 0.0])
    np.testing.assert_array_equal(block_of({"sex": SEX}).evaluate(exact), exact)


def test_projecting_makes_the_shares_less_noisy() -> None:
    block = block_of({"sex": SEX})
    none = np.zeros((4, 0))
    errors = block.standard_errors(np.full(4, 0.25), np.full(4, 1e-4), none)
    np.testing.assert_allclose(errors, 1e-2 * np.sqrt(3 / 4))
    plain = block_of({"sex": SEX}, relation=ADD_REMOVE)
    np.testing.assert_allclose(plain.standard_errors(np.ones(4), np.full(4, 1e-4), none), 1e-2)


def test_sensitivity_does_not_depend_on_the_number_of_cells() -> None:
    for norm in (1, 2):
        assert partition_sensitivity(norm, REPLACE) == 2  # type: ignore[arg-type]
        assert partition_sensitivity(norm, ADD_REMOVE) == 1  # type: ignore[arg-type]
    small, wide = block_of({"f": Boolean()}), block_of({"f": Boolean(), "s": SEX})
    assert small.sensitivity() == wide.sensitivity() == 2
    assert set(wide.scales) == set(wide.units) == {1}


# --- what no weights can reach -----------------------------------------------------------


def cells(block: MarginalBlock, rows: dict[str, Any]) -> list[np.ndarray]:
    table = pa.table(rows)
    return [f.encode(table.__getitem__, 0) for f in block.features]


def test_an_empty_cell_with_a_share_is_told() -> None:
    block = block_of({"sex": SEX, "city": Categorical(("Bern", "Oslo, old"))})
    arrays = cells(block, {"sex": ["F", "F"], "city": ["Bern", "Oslo, old"]})
    answers = np.zeros(block.size)
    answers[block.statistics.index('cell(sex=M, city="Oslo, old")')] = 0.25
    errors = np.full(block.size, 0.01)
    assert block.shortfalls(arrays, answers, errors) == [
        'cell(sex=M, city="Oslo, old"): measured 0.25 ± 0.01, but no synthetic row lies in this '
        "cell."
    ]
    assert block.shortfalls(arrays, answers, errors * 10) == []
    # Three standard errors are the line.
    assert len(block.shortfalls(arrays, answers, np.full(block.size, 0.25 / 3.1))) == 1
    assert block.shortfalls(arrays, answers, np.full(block.size, 0.25 / 2.9)) == []


def test_of_many_empty_cells_the_worst_five_are_told() -> None:
    block = block_of({"code": Categorical(tuple("abcdefghij"))})
    arrays = cells(block, {"code": ["a"]})
    answers = np.linspace(0, 0.1, block.size)
    found = block.shortfalls(arrays, answers, np.full(block.size, 1e-3))
    assert [s.split(":")[0] for s in found] == [
        "cell(code=null)",
        "cell(code=other)",
        "cell(code=j)",
        "cell(code=i)",
        "cell(code=h)",
    ]


def test_no_quantile_bin_is_empty_below_the_smallest_value() -> None:
    column = Numeric(0, 100)
    values = np.repeat([20.0, 30.0, 40.0], [500, 250, 250])
    fixed = Marginal(("x",), default_bins=10).with_edges(Schema({"x": column}), {"x": values})
    assert fixed.edges is not None
    assert fixed.edges["x"] == (30.0, 40.0)
