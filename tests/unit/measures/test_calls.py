"""Measures by a Python callable: one row at a time, clamped, and silent about errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import WorkloadError
from retilt.measures.base import Terms
from retilt.measures.calls import FunctionMeasure
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema({"age": Numeric(0, 100), "sex": Categorical(("F", "M"))})
TABLE = {
    "age": pa.chunked_array([[10.0, 20.0, None, 400.0]]),
    "sex": pa.chunked_array([["F", "M", "F", "X"]]),
}
ROWS = 4


def values(measure: FunctionMeasure) -> np.ndarray[Any, Any]:
    """(rows, size) of what the measure sums, in its own units."""
    block = measure.bind(Terms(SCHEMA))
    span = measure.upper - measure.lower
    columns = [
        (f.encode(TABLE.__getitem__, ROWS) / f.column.levels + 1) / 2 * span + measure.lower
        for f in block.features
    ]
    return np.stack(columns, axis=1)


def tenth(batch: pa.RecordBatch) -> Any:
    return batch.column("age").to_numpy(zero_copy_only=False) / 10


def test_results_are_clamped_and_what_is_no_number_is_the_lower_bound() -> None:
    made = FunctionMeasure(tenth, ("age",), lower=1.5, upper=8.5)
    np.testing.assert_allclose(values(made)[:, 0], [1.5, 2, 1.5, 8.5], atol=1e-3)


def test_several_numbers_a_row() -> None:
    def two(batch: pa.RecordBatch) -> Any:
        return np.stack([tenth(batch), tenth(batch) ** 2], axis=1)

    made = FunctionMeasure(two, ("age",), lower=0, upper=100, size=2, name="two")
    np.testing.assert_allclose(values(made)[:, 1], [1, 4, 0, 100], atol=1e-2)
    block = made.bind(Terms(SCHEMA))
    assert block.statistics == ("mean(two[0])", "mean(two[1])")
    assert block.sensitivity() == 2 * 4  # two columns of length 2, squared


def test_a_rows_own_error_is_held_against_that_row_alone() -> None:
    def fails(batch: pa.RecordBatch) -> Any:
        ages = batch.column("age").to_pylist()
        if 100.0 in ages:  # 400, clamped
            raise ValueError(f"what about {ages}?")
        return np.array([a or 0.0 for a in ages])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = values(FunctionMeasure(fails, ("age",), lower=0, upper=100))[:, 0]
    np.testing.assert_allclose(found, [10, 20, 0, 0], atol=1e-2)


def test_a_warning_of_a_private_row_is_not_heard() -> None:
    def warns(batch: pa.RecordBatch) -> Any:
        warnings.warn("row!", stacklevel=1)
        return np.log(tenth(batch) - 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values(FunctionMeasure(warns, ("age",)))


@pytest.mark.parametrize(
    "bad",
    [
        lambda batch: tenth(batch) - np.nanmean(tenth(batch)),
        lambda batch: np.arange(batch.num_rows),
        lambda batch: np.full(batch.num_rows, batch.num_rows),
    ],
)
def test_a_callable_that_looks_at_other_rows_is_refused(bad: Any) -> None:
    made = FunctionMeasure(bad, ("age",), lower=-10, upper=10)
    with pytest.raises(WorkloadError, match="depend on the other rows"):
        made.check_rows(SCHEMA, TABLE.__getitem__, ROWS)


@pytest.mark.parametrize(
    "bad", [lambda batch: 1 / 0, lambda batch: "x", lambda batch: np.zeros(batch.num_rows + 1)]
)
def test_a_callable_that_fails_on_synthetic_rows_is_refused(bad: Any) -> None:
    with pytest.raises(WorkloadError, match="on 4 synthetic rows it failed"):
        FunctionMeasure(bad, ("age",)).check_rows(SCHEMA, TABLE.__getitem__, ROWS)


def test_one_that_looks_at_other_rows_only_where_a_cell_is_null_is_refused() -> None:
    def filled(batch: pa.RecordBatch) -> Any:
        values = np.array([np.nan if v is None else v for v in batch["age"].to_pylist()])
        return np.where(np.isnan(values), np.nanmean(values), values)

    cells = {"age": pa.chunked_array([pa.array([10.0, 20.0, 60.0])])}
    with pytest.raises(WorkloadError, match="other rows"):
        FunctionMeasure(filled, ("age",), 0, 100).check_rows(SCHEMA, cells.__getitem__, 3)


def test_the_statement_says_that_it_rests_on_the_code() -> None:
    rows = pa.table({"age": np.linspace(0, 100, 60)})
    plan = rt.plan(rows, rt.function(len_of, ["age"], lower=0, upper=1), epsilon=1, rows=60)
    assert "len_of (Python code) looks at one row at a time" in plan.statement
    assert "Python code" not in rt.plan(rows, rt.means("age"), epsilon=1, rows=60).statement


def len_of(batch: pa.RecordBatch) -> Any:
    return np.ones(batch.num_rows)


def test_a_good_callable_passes_and_an_empty_table_tries_nothing() -> None:
    made = FunctionMeasure(tenth, ("age",), lower=0, upper=10)
    made.check_rows(SCHEMA, TABLE.__getitem__, ROWS)
    made.check_rows(SCHEMA, TABLE.__getitem__, 0)


def test_it_gets_categories_by_name_and_clamped_numbers() -> None:
    seen: list[Any] = []

    def looks(batch: pa.RecordBatch) -> Any:
        seen.append(batch.to_pydict())
        return np.zeros(batch.num_rows)

    values(FunctionMeasure(looks, ("age", "sex")))
    assert seen == [{"age": [10, 20, None, 100], "sex": ["F", "M", "F", None]}]


def test_code_can_not_be_saved() -> None:
    with pytest.raises(WorkloadError, match=r"can't be saved.*retilt\.query"):
        FunctionMeasure(tenth, ("age",)).to_dict()


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 10_000])
def test_size_is_a_whole_number(size: Any) -> None:
    with pytest.raises(WorkloadError, match="size"):
        FunctionMeasure(tenth, ("age",), size=size)


def test_a_number_is_no_callable() -> None:
    with pytest.raises(WorkloadError, match="expected a callable"):
        FunctionMeasure(3, ("age",))  # type: ignore[arg-type]
