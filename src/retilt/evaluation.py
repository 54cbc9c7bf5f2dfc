"""Comparisons with the private table itself. **Not private**: never release their output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import InputError, SchemaError
from retilt.measures.base import FloatArray
from retilt.schema.columns import Schema
from retilt.schema.encode import to_unit
from retilt.schema.formats import load_declared, resolve
from retilt.tables import check_table, require_columns

WARNING = (
    "NOT PRIVATE: these figures were computed from the private table without noise. They are "
    "for the custodian's own eyes; never release them."
)


def correlation_matrix(values: FloatArray) -> FloatArray:
    """(d, d) Pearson correlations of the rows of ``values`` (d, n); NaN beside a constant.

    >>> correlation_matrix(np.array([[0.0, 1, 2], [1, 1, 1]])).round(1).tolist()
    [[1.0, nan], [nan, nan]]
    """
    centred = values - values.mean(axis=1, keepdims=True)
    covariance = centred @ centred.T / max(values.shape[1], 1)
    variance = np.diag(covariance)
    # A constant column leaves rounding errors; the values lie in [0, 1] or not far outside.
    spread = np.sqrt(np.where(variance > 1e-18, variance, np.nan))
    result: FloatArray = covariance / np.outer(spread, spread)
    return result


@dataclass(frozen=True)
class Comparison:
    """Correlations of a table against the real ones, in the L1 norm over all pairs of columns."""

    before: float
    after: float

    @property
    def improvement(self) -> float | None:
        """The paper's utility improvement, ``1 - after / before``; ``None`` if before is 0."""
        return None if self.before == 0 else 1 - self.after / self.before


@dataclass(frozen=True)
class Evaluation:
    """How far the post-processed table's correlations are from the real ones. Not private.

    Attributes
    ----------
    columns
        What was compared.
    raw
        On the values as they are.
    clamped
        On the values clamped to the schema's bounds, which is what measures speak of.
    undefined
        Columns that are constant in one of the tables: their correlations count as 0 there.
    """

    columns: tuple[str, ...]
    raw: Comparison
    clamped: Comparison
    undefined: tuple[str, ...]

    @property
    def warning(self) -> str:
        """That this is not private."""
        return WARNING

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "private": False,
            "warning": self.warning,
            "columns": list(self.columns),
            "correlation_error": {
                "before": {"raw": self.raw.before, "clamped": self.clamped.before},
                "after": {"raw": self.raw.after, "clamped": self.clamped.after},
            },
            "utility_improvement": {
                "raw": self.raw.improvement,
                "clamped": self.clamped.improvement,
            },
            "undefined": list(self.undefined),
        }


def evaluate(
    private: Any,
    synthetic: Any,
    post: Any,
    *,
    columns: Sequence[str] | None = None,
    schema: Any = None,
) -> Evaluation:
    """Compare correlations before and after with the real ones; the result is *not* private.

    Parameters
    ----------
    private, synthetic, post
        Frames or paths.
    columns
        At least two; default all whose kind is decided.
    schema
        As in ``retilt.plan``; what it leaves out is read off ``synthetic``.
    """
    tables = [open_table(private, private=True), open_table(synthetic), open_table(post)]
    names = ("the private table", "the synthetic table", "the post-processed table")
    resolved = _resolve(tables[1], columns, schema)
    chosen = tuple(resolved.columns)
    for position, (table, what) in enumerate(zip(tables, names, strict=True)):
        check_table(table, resolved, what, private=position == 0)
        if table.rows == 0:
            raise InputError(f"{what} has no rows; there is nothing to compare.")
    comparisons, undefined = [], set[str]()
    for clamp in (False, True):
        matrices = [_correlations(t, resolved, clamp=clamp) for t in tables]
        for matrix in matrices:
            undefined.update(n for n, c in zip(chosen, np.diag(matrix), strict=True) if np.isnan(c))
        real, before, after = (np.nan_to_num(m, nan=0.0) for m in matrices)
        for matrix in (real, before, after):
            np.fill_diagonal(matrix, 1.0)
        comparisons.append(
            Comparison(
                before=float(np.abs(before - real).sum()), after=float(np.abs(after - real).sum())
            )
        )
    return Evaluation(
        columns=chosen,
        raw=comparisons[0],
        clamped=comparisons[1],
        undefined=tuple(n for n in chosen if n in undefined),
    )


def _resolve(table: Table, columns: Sequence[str] | None, schema: Any) -> Schema:
    declared = load_declared(schema)
    if columns is None:
        decided = []
        for name in table.names:
            with suppress(SchemaError):
                resolve(declared, table, [name])
                decided.append(name)
    else:
        if isinstance(columns, str):
            raise InputError(f"columns: got {columns!r}, expected a list of names.")
        decided = list(dict.fromkeys(columns))
        require_columns(table, decided, "the synthetic table")
    if len(decided) < 2:
        raise InputError(f"columns: got {len(decided)}, expected at least two to correlate.")
    return resolve(declared, table, decided)


def _correlations(table: Table, schema: Schema, *, clamp: bool) -> FloatArray:
    columns = [to_unit(c, table.cells(n), clamp=clamp) for n, c in schema.columns.items()]
    return correlation_matrix(np.stack(columns))
