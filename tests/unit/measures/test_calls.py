"""Measures by a Python callable: one row at a time, clamped, and silent about errors."""

from __future__ import annotations

import gc
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import WorkloadError
from retilt.measures.base import Reading, Terms
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


# --- callables that mean no good -----------------------------------------------------------------

KINDS: dict[str, Any] = {
    "masked": lambda x: np.ma.masked_array(x, mask=x > 15),
    "pandas": lambda x: pd.Series(np.where(x > 15, np.nan, x)),
    "nullable": lambda x: pd.array([None if v > 15 else v for v in x], dtype="Float64"),
    "polars": lambda x: pl.Series([None if v > 15 else v for v in x]),
    "pyarrow": lambda x: pa.array([None if v > 15 else v for v in x], pa.float64()),
    "chunks": lambda x: pa.chunked_array([[None if v > 15 else float(v) for v in x]]),
    "list": lambda x: [None if v > 15 else float(v) for v in x],
    "objects": lambda x: np.array([None if v > 15 else v for v in x], dtype=object),
    "mixed": lambda x: ["what" if v > 15 else v for v in x],
    "complex": lambda x: [complex(v, 1) if v > 15 else v for v in x],
    "complex array": lambda x: np.where(x > 15, 1j * x, x)[:, None] if (x > 15).any() else x,
    "huge integers": lambda x: [10**400 if v > 15 else int(v) for v in x],
    "minus infinity": lambda x: np.where(x > 15, -np.inf, x),
    "nested": lambda x: [[v] * (1 + (v > 15)) for v in x],
    "dates": lambda x: [datetime(2020, 1, 1) if v > 15 else v for v in x],
    "signalling": lambda x: [Decimal("sNaN") if v > 15 else Decimal(v) for v in x],
}
AGES = {"age": pa.chunked_array([[10.0, 12.0, 20.0, 14.0]])}


def read_ages(measure: FunctionMeasure) -> Any:
    """(rows,) what is summed, as a share of the bounds."""
    (feature,) = measure.bind(Terms(SCHEMA)).features
    return (feature.encode(AGES.__getitem__, 4) / feature.column.levels + 1) / 2


def ages(batch: pa.RecordBatch) -> Any:
    return batch["age"].to_numpy(zero_copy_only=False).copy()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_the_lower_bound_whatever_holds_it(kind: str) -> None:
    made = FunctionMeasure(lambda batch: KINDS[kind](ages(batch)), ("age",), lower=0, upper=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(read_ages(made), [0.5, 0.6, 0, 0.7], atol=1e-4)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException, MemoryError])
def test_an_exit_is_held_against_the_row(kind: type[BaseException]) -> None:
    def leaves(batch: pa.RecordBatch) -> Any:
        if (ages(batch) > 15).any():
            raise kind(ages(batch))
        return ages(batch)

    made = FunctionMeasure(leaves, ("age",), lower=0, upper=20)
    np.testing.assert_allclose(read_ages(made), [0.5, 0.6, 0, 0.7], atol=1e-4)


def test_the_user_can_stop_it() -> None:
    def stops(batch: pa.RecordBatch) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_ages(FunctionMeasure(stops, ("age",)))


def test_an_exit_on_synthetic_rows_is_a_refusal() -> None:
    with pytest.raises(WorkloadError, match="SystemExit: 3"):
        FunctionMeasure(lambda _: sys.exit(3), ("age",)).check_rows(SCHEMA, AGES.__getitem__, 4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_numbers_of_one_row_never_become_those_of_others(size: int) -> None:
    """In a transposed or flat array, one row's numbers would stand in other rows' places."""
    for shape in ((size, 4), (4 * size,), (1, 4, size), (4, size, 1), (2, 2 * size)):
        if shape in ((4, size), (4,)):
            continue
        made = FunctionMeasure(lambda _, s=shape: np.zeros(s), ("age",), size=size)  # type: ignore[misc]
        with pytest.raises(WorkloadError, match="shape"):
            made.check_rows(SCHEMA, AGES.__getitem__, 4)


@dataclass
class Scaled:
    """Can be called and compared, so it has no hash."""

    by: float

    def __call__(self, batch: pa.RecordBatch) -> Any:
        return ages(batch) * self.by


class Odd(Scaled):
    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Scaled, Odd])
def test_a_callable_without_a_hash(kind: type[Scaled]) -> None:
    table = pa.table({"age": np.arange(100.0)})
    asked = rt.function(kind(1), ["age"], upper=99) + rt.function(kind(2), ["age"], upper=99)
    plan = rt.plan(table, asked, rows=100, epsilon=1.0, schema={"age": rt.Numeric(0, 99)})
    assert plan.queries.size == 2
    rt.fit(table, rt.measure(table, plan))


def test_one_that_changes_its_batch_is_refused_or_harmless() -> None:
    def changes(batch: pa.RecordBatch) -> Any:
        own = batch["age"].to_numpy(zero_copy_only=True)
        own[:] = 0
        return own

    table = pa.table({"age": [1.0, 2.0, 3.0]})
    with pytest.raises(WorkloadError, match="read-only"):
        rt.plan(table, rt.function(changes, ["age"]), rows=3, epsilon=1.0)
    assert table["age"].to_pylist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "name", ["", " ", "a\nb", 'a"\r', "\x1b[31m", "\ud800", "x" * 201, 5, b"f"]
)
def test_a_name_is_one_line_of_text(name: Any) -> None:
    with pytest.raises(WorkloadError, match="name: got"):
        FunctionMeasure(tenth, ("age",), name=name)


def test_a_name_may_hold_quotes_and_commas() -> None:
    table = pa.table({"age": [1.0, 2.0, 3.0]})
    asked = rt.function(ages, ["age"], upper=3, name='net "income", 2')
    plan = rt.plan(table, asked, rows=3, epsilon=1.0)
    assert plan.queries.statistics == ('mean(net "income", 2)',)


@pytest.mark.parametrize(
    "bounds", [(0, 10**400), (-1e308, 1e308), (0, 5e-324), (1, 1), (2, 1), ("0", 1), (0, np.nan)]
)
def test_bounds_that_can_not_be_computed_with(bounds: Any) -> None:
    with pytest.raises(WorkloadError, match="function: "):
        FunctionMeasure(tenth, ("age",), lower=bounds[0], upper=bounds[1])


def test_code_is_in_no_file_and_no_guard(tmp_path: Path) -> None:
    table = pa.table({"age": [1.0, 2.0, 3.0]})
    asked = rt.function(ages, ["age"], upper=3)
    with pytest.raises(WorkloadError, match="can't be kept"):
        rt.keep(asked)
    plan = rt.plan(table, asked + rt.means("age"), rows=3, epsilon=1.0)
    answers = rt.measure(table, plan)
    tilt = rt.fit(table, answers)
    for thing in (plan, answers, tilt):
        with pytest.raises(WorkloadError, match="can't be saved"):
            thing.save(tmp_path / "file.json")
    assert list(tmp_path.iterdir()) == []


def test_one_that_prints_and_sleeps_is_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def slow(batch: pa.RecordBatch) -> Any:
        time.sleep(1e-4)
        print("hello")
        return ages(batch)

    table = pa.table({"age": [1.0, 2.0, 3.0]})
    plan = rt.plan(table, rt.function(slow, ["age"], upper=3), rows=3, epsilon=1.0)
    rt.measure(table, plan)
    assert set(capsys.readouterr().out.split()) == {"hello"}


def test_it_is_called_once_for_all_of_its_numbers_and_nothing_is_held() -> None:
    calls: list[int] = []

    def three(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        return np.stack([ages(batch)] * 3, axis=1)

    table = pa.table({"age": np.arange(100.0)})
    asked = rt.function(three, ["age"], upper=99, size=3) + rt.function(ages, ["age"], upper=99)
    plan = rt.plan(table, asked, rows=100, epsilon=1.0, schema={"age": rt.Numeric(0, 99)})
    calls.clear()
    rt.measure(table, plan)
    assert calls == [100]
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Reading) and o.last is not None]
