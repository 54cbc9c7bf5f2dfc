"""Columns of a table, by the schema: what it must have, and how its cells become integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow

from retilt.engines.base import Table
from retilt.exceptions import WorkloadError
from retilt.measures.base import EncodedArray, Feature, Reading
from retilt.measures.entries import listed
from retilt.schema.columns import Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import check_type, to_unit, values_of

if TYPE_CHECKING:
    import pyarrow as pa


def encode(table: Table, features: Sequence[Feature]) -> dict[Feature, EncodedArray]:
    """Every feature's column encoded, by the fixed policy.

    A column that several features read is read once, and held until the last of them has it.
    """
    wanted = Counter(name for f in features for name in f.reads)
    held: dict[str, pa.ChunkedArray] = {}

    def read(name: str) -> pa.ChunkedArray:
        if name not in held:
            held[name] = table.cells(name)
        return held[name]

    reading, encoded = Reading(read), {}
    for feature in features:
        encoded[feature] = feature.encode(reading, table.rows)
        for name in feature.reads:
            wanted[name] -= 1
            if not wanted[name]:
                held.pop(name, None)
        # Arrow keeps what it has freed, which for long columns is more than the result.
        pyarrow.default_memory_pool().release_unused()
    return encoded


def outside_notes(name: str, column: Column, cells: pa.ChunkedArray) -> list[str]:
    """What the schema does to cells of a *synthetic* column that it does not allow."""
    if isinstance(column, Categorical):
        codes = values_of(column, cells)
        unknown = int(np.count_nonzero(codes == len(column.categories)))
        if not unknown:
            return []
        return [f"{name}: {unknown} synthetic rows hold a value outside the categories (other)."]
    if not isinstance(column, (Numeric, Datetime)):
        return []
    raw, clamped = (to_unit(column, cells, clamp=c) for c in (False, True))
    outside = int(np.count_nonzero(raw != clamped))
    if not outside:
        return []
    return [
        f"{name}: {outside} synthetic rows lie outside the bounds and count as clamped; "
        "measures are statements about the clamped column."
    ]


def require_columns(
    table: Table, names: Sequence[str], what: str, *, private: bool = False
) -> None:
    """Refuse a table that lacks a column.

    Raises
    ------
    WorkloadError
        Names the missing columns, and those that exist unless the table is private.
    """
    missing = [n for n in names if n not in table.names]
    if missing and private:
        raise WorkloadError(
            f"{what} has no column {listed(missing)}. Its columns need the plan's "
            "names (a CSV has them in its first line)."
        )
    if missing:
        raise WorkloadError(
            f"{what} has no column {listed(missing)}; it has {', '.join(map(repr, table.names))}."
        )


def check_table(table: Table, schema: Schema, what: str, *, private: bool = False) -> None:
    """Refuse a table that lacks a column of the schema, or whose declared types can't hold it.

    Raises
    ------
    WorkloadError, ColumnTypeError
        By names and types alone, never by what the cells hold. The names of a private table's
        other columns are not told: without a header, they would be its first row.
    """
    require_columns(table, tuple(schema.columns), what, private=private)
    for name, column in schema.columns.items():
        check_type(name, column, table.arrow_type(name))
