"""What the synthetic table decides about measures: their bins, and which guards there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from retilt.engines.base import Table
from retilt.exceptions import SchemaError
from retilt.measures.base import Binned, Measure, Read
from retilt.measures.guards import Everything, Guard, Guards
from retilt.measures.marginals import Marginal
from retilt.measures.workload import check_number
from retilt.privacy.targets import Queries
from retilt.schema.columns import EPOCH, Column, Datetime, Numeric, Schema
from retilt.schema.declared import Declared
from retilt.schema.encode import limits, values_of
from retilt.schema.formats import resolve
from retilt.tables import require_columns

if TYPE_CHECKING:
    import pyarrow as pa


def with_edges(measure: Measure, schema: Schema, read: Read) -> Measure:
    """Return the measure with its bins' edges fixed at quantiles of the synthetic table."""
    if not isinstance(measure, Binned):
        return measure
    numeric = [n for n in measure.columns if isinstance(schema[n], (Numeric, Datetime))]
    values = {n: values_of(schema[n], read(n)).astype(np.float64) for n in numeric}
    fixed: Measure = measure.with_edges(schema, values)
    return fixed


def _spanned(column: Column, cells: pa.ChunkedArray) -> Column:
    """A column with the bounds of its cells, as far as they are within its own.

    A guard asks nothing of the private table, so its bounds need not be public; and on a grid of
    bounds far wider than the values nothing would be seen to move.
    """
    if not isinstance(column, (Numeric, Datetime)):
        return column
    values = np.clip(values_of(column, cells), *limits(column))
    values = values[~np.isnan(values)]
    if not values.size or values.min() == values.max():
        return column
    low, high = float(values.min()), float(values.max())
    if isinstance(column, Datetime):
        start = EPOCH if column.lower.tzinfo else EPOCH.replace(tzinfo=None)
        # An end that is the bound itself stays: as a float it may be after the year 9999.
        first, last = limits(column)
        lower = column.lower if low == first else start + timedelta(microseconds=low)
        upper = column.upper if high == last else start + timedelta(microseconds=high)
        return replace(column, lower=lower, upper=upper)
    if column.integer:
        low, high = math.floor(low), math.ceil(high)
    return replace(column, lower=low, upper=high)


def resolve_guards(
    table: Table,
    guards: Sequence[Guard | Everything],
    declared: Declared,
    measured: Queries,
) -> tuple[Guards | None, list[str]]:
    """Guards with their bins and schema fixed, and what had to be left out.

    Parameters
    ----------
    table
        The synthetic table, which they keep as it is.
    guards
        As asked for.
    declared
        Declared categories, and bounds beyond which values are clamped; the others are read off
        the table, and so are the bounds of the grid.
    measured
        What is measured: to keep the table of a column that a measure moves would contradict it.

    Raises
    ------
    WorkloadError, SchemaError
        A column that a guard names is missing or undecided.
    """
    named = [g for g in guards if isinstance(g, Guard)]
    names = tuple(dict.fromkeys(n for g in named for n in g.measure.columns))
    require_columns(table, names, "the synthetic table")
    columns: dict[str, Column] = {
        name: _spanned(column, table.cells(name))
        for name, column in resolve(declared, table, names).columns.items()
    }
    notes = []
    asked = {n for f in measured.features for n in f.reads}
    for everything in (g for g in guards if isinstance(g, Everything)):
        left_out = []
        for name in (n for n in table.names if n not in asked):
            try:
                column = resolve(declared, table, [name])[name]
            except SchemaError:
                left_out.append(name)
                continue
            columns.setdefault(name, _spanned(column, table.cells(name)))
            named.append(Guard(Marginal((name,)), everything.tolerance))
        if left_out:
            notes.append(
                f"keep: {', '.join(left_out)} left out, for what they are is undecided "
                "(identifiers, free text, nulls only). Declare them in a schema to keep them."
            )
    if not named:
        return None, notes
    check_number("guards", len(named))
    schema = Schema(columns)
    fixed = [replace(g, measure=with_edges(g.measure, schema, table.cells)) for g in named]
    return Guards(tuple(fixed), schema), notes
