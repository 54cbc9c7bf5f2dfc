"""Typed cells -> values: the steps are run in a database that is shut off from everything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.schema.columns import Boolean, Column, Datetime, Numeric, Schema
from retilt.schema.encode import limits, values_of

if TYPE_CHECKING:
    import duckdb

from retilt.measures.expressions.compiling import Program


def typed_table(
    names: tuple[str, ...], schema: Schema, cells: Mapping[str, pa.ChunkedArray]
) -> pa.Table:
    """The columns that are read, typed by the policy and named by number."""
    return pa.table({f"c{i}": typed_cells(schema[n], cells[n]) for i, n in enumerate(names)})


def typed_cells(column: Column, cells: pa.ChunkedArray) -> pa.Array:
    """A column's cells as expressions and callables get them. See :func:`evaluate`."""
    values = values_of(column, cells)
    if isinstance(column, (Numeric, Datetime)):
        missing = np.isnan(values)
        known = np.where(missing, 0.0, np.clip(values, *limits(column)))
        if isinstance(column, Numeric):
            return pa.array(known, pa.float64(), mask=missing)
        return pa.array(np.floor(known).astype(np.int64), pa.timestamp("us"), mask=missing)
    if isinstance(column, Boolean):
        return pa.array(values == 1, pa.bool_(), mask=values == 2)
    missing = values >= len(column.categories)
    codes = np.where(missing, 0, values).astype(np.int32)
    if not column.is_text:
        return pa.array(np.array(column.categories, np.float64)[codes], mask=missing)
    places = pa.array(codes, pa.int32(), mask=missing)
    return pa.DictionaryArray.from_arrays(places, pa.array(column.categories, pa.large_string()))


_running = Lock()  # a DuckDB connection serves one thread at a time


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """A private database in memory, shut off from files, extensions and Python's variables.

    One thread and one connection: rows stay in order, and settings, some of which a cursor
    would not inherit, hold. Without the optimiser nothing is moved from one step to another.
    """
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "preserve_insertion_order": "true",
            "ieee_floating_point_ops": "true",
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "temp_directory": "",
        },
    )
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection


def run(program: Program, table: pa.Table) -> pa.ChunkedArray:
    """(rows,) the program's column ``v`` over a table of :func:`typed_table`."""
    with _running:
        try:
            relation = _database().from_arrow(table)
            for step in program.steps:
                relation = relation.project(step)
            return relation.to_arrow_table()["v"]
        except BaseException:
            _database.cache_clear()  # a database that failed may refuse every later call
            raise


def to_numpy(found: pa.ChunkedArray, kind: str) -> NDArray[Any]:
    """(rows,) bool with null as False, or finite float64 with NaN for null."""
    if kind == "predicate":
        return np.asarray(pc.fill_null(found, False).to_numpy(), dtype=np.bool_)
    values = np.asarray(pc.fill_null(found, np.nan).to_numpy(), dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)
