"""Expressions that are admitted, their check against a schema, and their value in every row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import pyarrow as pa
from numpy.typing import NDArray

from retilt.exceptions import InputError, InternalError, WorkloadError
from retilt.measures.expressions.compiling import Compiler, Program
from retilt.measures.expressions.grammar import (
    refusal,
    require_kind,
    short,
)
from retilt.measures.expressions.reading import names_in, parse
from retilt.measures.expressions.running import run, to_numpy, typed_table
from retilt.measures.expressions.showing import show
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Schema
from retilt.schema.encode import check_type
from retilt.schema.reading import withheld


@dataclass(frozen=True, slots=True)
class Expression:
    """A SQL scalar expression of one row, admitted.

    Made by :func:`parse_predicate` and :func:`parse_number`; made directly, it is put through
    the same admission.

    Attributes
    ----------
    text
        Canonical SQL: expressions that differ in spacing, in the case of keywords and
        functions, in redundant brackets or in synonyms (``power`` and ``pow``) are equal.
    columns
        Names that it reads, in the order of first mention, exactly as in the table.
    kind
        What it was admitted as: ``"predicate"`` (true or false) or ``"number"``.

    Raises
    ------
    WorkloadError
        If the text is not admitted, or ``columns`` are not those that it reads.
    """

    text: str
    columns: tuple[str, ...]
    kind: Literal["predicate", "number"]

    def __post_init__(self) -> None:
        if self.kind not in ("predicate", "number"):
            raise WorkloadError(f"kind: got {self.kind!r}, expected 'predicate' or 'number'.")
        node = parse(self.text)
        require_kind(Compiler(self.text, None).value(node).kind, self.kind, self.text)
        object.__setattr__(self, "text", show(node)[0])
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.columns != names_in(node):
            raise WorkloadError(
                f"columns: got {self.columns!r}, but {short(self.text)} reads {names_in(node)!r}."
            )


def parse_predicate(text: str, *, columns: Iterable[str] | None = None) -> Expression:
    """Admit a condition on a row.

    Parameters
    ----------
    text
        SQL, at most 10,000 characters. Column names are matched as they are written, case
        included; one that is not a plain word stands in double quotes.
    columns
        The table's column names, to check those of the expression.

    Raises
    ------
    WorkloadError
        If it is not admitted, saying what and what is allowed.

    Examples
    --------
    >>> parse_predicate("age>=65 and (sex = 'F')").text
    "age >= 65 AND sex = 'F'"
    >>> parse_predicate('"hours, weekly" > 40').columns
    ('hours, weekly',)
    >>> parse_predicate("age > (SELECT avg(age) FROM t)")
    Traceback (most recent call last):
        ...
    retilt.exceptions.WorkloadError: SQL expression 'age > (SELECT avg(age) FROM t)': a subquery \
is not admitted. An expression is a formula of one row's columns.
    """
    return _admit(text, columns, "predicate")


def parse_number(text: str, *, columns: Iterable[str] | None = None) -> Expression:
    """Admit a number computed from a row; parameters and errors as :func:`parse_predicate`.

    Examples
    --------
    >>> parse_number("case when age>65 then 1 else POWER(age, 2) / 65 end").text
    'CASE WHEN age > 65 THEN 1 ELSE pow(age, 2) / 65 END'
    """
    return _admit(text, columns, "number")


def check(expression: Expression, schema: Schema) -> None:
    """Check an expression against a schema, without data.

    Parameters
    ----------
    expression
        Admitted.
    schema
        Of the table; it must have the expression's columns.

    Raises
    ------
    WorkloadError
        If a column is missing, or the kinds of values do not fit together: a number compared
        with text, say.

    Examples
    --------
    >>> from retilt.schema.columns import Numeric
    >>> check(parse_predicate("age >= '65'"), Schema({"age": Numeric(17, 90)}))
    Traceback (most recent call last):
        ...
    retilt.exceptions.WorkloadError: SQL expression "age >= '65'": >= joins a number and text; \
both sides must be of one kind (numbers are written without quotes, CAST converts).
    """
    program = _compile(expression, schema)
    empty = (pa.array([], _type_of(schema[name])) for name in program.columns)
    withheld(
        partial(run, program, pa.table({f"c{i}": cells for i, cells in enumerate(empty)})),
        lambda kind: WorkloadError(
            f"SQL expression {short(expression.text)}: DuckDB refuses it ({kind}). Write it in "
            "shorter or simpler parts."
        ),
    )


def _type_of(column: Column) -> pa.DataType:
    """Of a column's cells as :func:`retilt.measures.expressions.running.typed_cells` gives them."""
    if isinstance(column, Categorical) and column.is_text:
        return pa.dictionary(pa.int32(), pa.large_string())
    if isinstance(column, Datetime):
        return pa.timestamp("us")
    return pa.bool_() if isinstance(column, Boolean) else pa.float64()


def evaluate(
    expression: Expression,
    schema: Schema,
    cells: Mapping[str, pa.ChunkedArray],
    rows: int,
) -> NDArray[Any]:
    """Evaluate an expression on every row.

    Columns are typed from the schema by one policy for both tables, whatever type they come
    in: numeric is float64, clamped to the bounds (infinities too); datetime is a timestamp in
    UTC, clamped; boolean is true or false; a category is its text, or its number if the
    categories are numbers. What is null, NaN or does not parse is null.

    A category outside the schema is null as well. (A marginal counts it in a cell ``other``; an
    expression is written in the public categories, and one that is not public must not be
    told from another.) So ``sex <> 'F'`` does not hold in a row of an unknown category.

    Parameters
    ----------
    expression
        Admitted, and checked against the schema.
    schema
        Of at least the expression's columns.
    cells
        (rows,) the table's columns, by name; more than needed does no harm.
    rows
        How many.

    Returns
    -------
    ndarray
        (rows,) in the order of the rows. Predicate: bool, null as False. Number: float64,
        finite, null as NaN.

    Raises
    ------
    WorkloadError
        As :func:`check`.
    InputError
        If a column's cells are missing, or as many as ``rows`` are not there.
    ColumnTypeError
        If a column's declared type can't hold what the schema says.

    Examples
    --------
    >>> from retilt.schema.columns import Numeric
    >>> schema = Schema({"age": Numeric(17, 90)})
    >>> ages = {"age": pa.chunked_array([[17, 70, None, 400]])}
    >>> evaluate(parse_predicate("age >= 65"), schema, ages, 4)
    array([False,  True, False,  True])
    >>> evaluate(parse_number("100 / (age - 17)"), schema, ages, 4)
    array([       nan, 1.88679245,        nan, 1.36986301])
    """
    program = _compile(expression, schema)
    for name in expression.columns:
        if name not in cells:
            raise InputError(f"the table lacks column {name!r}, which an expression reads.")
        if len(cells[name]) != rows:
            raise InputError(f"column {name!r} has not as many cells as the table has rows.")
        check_type(name, schema[name], cells[name].type)

    def job() -> NDArray[Any]:
        found = run(program, typed_table(program.columns, schema, cells))
        if len(found) != rows:
            raise InternalError("an expression gave a different number of rows.")
        return to_numpy(found, expression.kind)

    return withheld(
        job,
        lambda kind: InternalError(
            f"SQL expression {short(expression.text)} could not be evaluated ({kind}); the "
            "reason is withheld, since it could quote the table."
        ),
    )


def _admit(
    text: str, columns: Iterable[str] | None, kind: Literal["predicate", "number"]
) -> Expression:
    node = parse(text)
    names = names_in(node)
    if columns is not None:
        _check_names(text, names, tuple(columns))
    return _expression(text, names, kind)


@lru_cache(maxsize=1024)  # a measure asks for its own again and again
def _expression(
    text: str, names: tuple[str, ...], kind: Literal["predicate", "number"]
) -> Expression:
    return Expression(text, names, kind)


def _check_names(text: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name in known:
            continue
        like = [k for k in known if k.lower() == name.lower()]
        parts = [k for k in known if name in re.split(r"\W+", k)]
        if like:
            hint = f"Names are matched with their case: did you mean {like[0]!r}?"
        elif parts:
            hint = f"If {parts[0]!r} is meant, put it in double quotes."
        else:
            hint = "Text stands in single quotes, column names plain or in double quotes."
        raise refusal(text, f"there is no column {short(name)}", hint)


def _compile(expression: Expression, schema: Schema) -> Program:
    for name in expression.columns:
        if name not in schema:
            raise refusal(
                expression.text, f"there is no column {short(name)}", "The schema must have it."
            )
    node = parse(expression.text)
    program = Compiler(expression.text, schema).program(node)
    require_kind(program.kind, expression.kind, expression.text)
    return program
