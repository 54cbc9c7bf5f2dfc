"""Variables that are computed from a row: SQL expressions and Python callables.

They are columns like any other to the measures: a condition is a two-valued column, a formula
a numeric one between its declared bounds. Where a row gives no value (null, NaN, an error of
its own) a condition is false and a formula has its lower bound, so that no cell of the private
table can raise an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from retilt.exceptions import WorkloadError
from retilt.measures.base import Read, Variable
from retilt.measures.entries import is_number, short
from retilt.measures.expressions import Expression, check, evaluate
from retilt.schema.columns import Boolean, Column, Numeric, Schema

if TYPE_CHECKING:
    import pyarrow as pa


LARGEST = 1e100
"""Numbers beyond are not computed with: their squares may overflow."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A SQL expression over columns of a schema. See :class:`retilt.measures.base.Source`.

    Attributes
    ----------
    expression
        Admitted, and checked against the columns.
    columns
        The columns that it reads, with their schema: it types and clamps them.
    missing
        The value where the expression gives null.
    """

    expression: Expression
    columns: tuple[tuple[str, Column], ...]
    missing: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it reads."""
        return self.expression.columns

    @property
    def identity(self) -> tuple[str, ...]:
        """Canonical text and what null becomes."""
        return ("sql", self.expression.kind, self.expression.text, repr(self.missing))

    def cells(self, read: Read, rows: int) -> pa.ChunkedArray:
        """(rows,) true/false, or numbers with ``missing`` for null."""
        import pyarrow as pa

        found = evaluate(
            self.expression, Schema(dict(self.columns)), {n: read(n) for n in self.reads}, rows
        )
        if self.expression.kind == "number":
            found = np.where(np.isnan(found), self.missing, found)
        return pa.chunked_array([pa.array(found)])


def predicate(expression: Expression, schema: Schema) -> Variable:
    """A condition as a two-valued variable, false where it is null.

    >>> from retilt.measures.expressions import parse_predicate
    >>> old = predicate(parse_predicate("age>=65"), Schema({"age": Numeric(17, 90)}))
    >>> old.name, old.column, old.grid.reads
    ('age >= 65', Boolean(nullable=False), ('age',))
    """
    return Variable(expression.text, Boolean(), _formula(expression, schema, 0.0))


def number(expression: Expression, schema: Schema, *, lower: float, upper: float) -> Variable:
    """A formula clamped to its declared bounds, the lower one where it is null."""
    check_bounds(lower, upper, expression.text)
    column = Numeric(float(lower), float(upper))
    return Variable(expression.text, column, _formula(expression, schema, column.lower))


def _formula(expression: Expression, schema: Schema, missing: float) -> Formula:
    # A column that the schema lacks is what the check will say.
    columns = tuple((name, schema[name]) for name in expression.columns if name in schema)
    return _checked(expression, columns, missing)


@lru_cache(maxsize=1024)  # a plan binds its measures several times, and checking takes a while
def _checked(
    expression: Expression, columns: tuple[tuple[str, Column], ...], missing: float
) -> Formula:
    check(expression, Schema(dict(columns)))
    return Formula(expression, columns, missing)


def check_bounds(lower: object, upper: object, what: str) -> None:
    """Refuse bounds that are no finite numbers, or not ascending."""
    for side, bound in (("lower", lower), ("upper", upper)):
        if not is_number(bound):
            raise WorkloadError(f"{what}: {side}: got {short(bound)}, expected a finite number.")
    if not lower < upper:  # type: ignore[operator]
        raise WorkloadError(
            f"{what}: lower and upper: got {short(lower)} and {short(upper)}, expected lower < "
            "upper."
        )
    check_span(float(lower), float(upper), what)  # type: ignore[arg-type]


def check_span(lower: float, upper: float, what: str) -> None:
    """Refuse bounds whose squares, or those of their difference, are beyond floats."""
    largest, span = max(abs(lower), abs(upper)), upper - lower
    if not (largest <= LARGEST and span >= 1 / LARGEST):
        raise WorkloadError(
            f"{what}: the bounds {lower!r} and {upper!r} are too large, or too close together, "
            f"to compute with: numbers of at most {LARGEST:g} in size and {1 / LARGEST:g} apart "
            "are allowed. Use another unit."
        )
