"""A column's kind, bounds and categories from the *synthetic* table, never from the private.

What can't be decided safely is refused, by name: identifiers (all values distinct), columns
of very many categories, columns of nulls only. The messages hold counts of the synthetic
table, which is public.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.exceptions import SchemaError
from retilt.schema.columns import (
    EPOCH,
    Boolean,
    Categorical,
    Column,
    Datetime,
    Numeric,
    Schema,
    microseconds_of,
)
from retilt.schema.encode import (
    is_boolean,
    is_moment,
    is_number,
    is_text,
    moments,
    numbers,
    plain_cells,
    truths,
    value_type,
)

FloatArray: TypeAlias = NDArray[np.float64]

FEW_ROWS = 50
"""Up to here, all values distinct says nothing."""

MANY_CATEGORIES = 1_000
"""More text values than this are no categories unless declared."""

_EARLIEST = microseconds_of(datetime(1, 1, 1))
_LATEST = microseconds_of(datetime(9999, 12, 31))


class ReadableTable(Protocol):
    """The part of a table that inference reads."""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        ...

    def arrow_type(self, name: str) -> pa.DataType:
        """Return a column's type."""
        ...

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        ...

    def keeps_order(self, name: str) -> bool:
        """Whether a dictionary column's order of values is its owner's."""
        ...


def infer_column(table: ReadableTable, name: str) -> Column:
    """Decide what a column is from its cells alone.

    Parameters
    ----------
    table
        The synthetic table.
    name
        One of its columns.

    Returns
    -------
    Column
        Text whose cells all parse is taken as numbers, dates or true/false, else as
        categories sorted by code point; a column of two whole numbers as categories; other
        numbers with the table's range; an ordered dictionary and a pandas category with its
        own order and unused levels.

    Raises
    ------
    SchemaError
        If the column holds nulls only, looks like an identifier, or has very many
        categories, or is of a type that can't be measured.
    """
    cells, kind = table.cells(name), table.arrow_type(name)
    own = own_categories(table, name)
    if own is not None:
        return Categorical(own[0], ordered=own[1], nullable=cells.null_count > 0)
    if is_boolean(kind):
        return Boolean(nullable=_known(name, truths(cells), len(cells)))
    if is_moment(kind):
        found = moments(cells)
        return _datetime(name, found, nullable=_known(name, found, len(cells)))
    if is_number(kind):
        found = numbers(cells)
        nullable = _known(name, found, len(cells))
        present = int(np.isfinite(found).sum())
        return _number(name, found, present=present, nullable=nullable)
    if is_text(kind):
        return _text(name, cells)
    raise SchemaError(
        f"column {name!r}: its type is {kind}, which can't be measured. Leave it out of the "
        "workload."
    )


def infer_all(table: ReadableTable) -> tuple[Schema, dict[str, str]]:
    """Infer every column of the synthetic table.

    Returns
    -------
    Schema
        Of the columns that could be decided.
    dict
        Name to reason, of those that need a decision.
    """
    columns: dict[str, Column] = {}
    undecided: dict[str, str] = {}
    for name in table.names:
        try:
            columns[name] = infer_column(table, name)
        except SchemaError as error:
            undecided[name] = str(error)
    guessed = {n for n, c in columns.items() if not isinstance(c, Boolean)}
    return Schema(columns, frozenset(guessed)), undecided


# --- facts about a column, also used to complete a declaration ---------------------------


def number_range(name: str, values: FloatArray) -> tuple[float, float]:
    """Return the least and greatest finite value, as integers where they are whole.

    Raises
    ------
    SchemaError
        If there is none.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise _no_values(name, "numbers", 'lower and upper, kind = "numeric"')
    return _short(float(finite.min())), _short(float(finite.max()))


def all_whole(values: FloatArray) -> bool:
    """Whether there are finite values and all of them are whole."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(np.all(finite == np.floor(finite)))


def moment_range(name: str, microseconds: FloatArray, *, aware: bool) -> tuple[datetime, datetime]:
    """Return the earliest and latest moment that Python can name.

    Raises
    ------
    SchemaError
        If there is none.
    """
    inside = (microseconds >= _EARLIEST) & (microseconds <= _LATEST)
    finite = microseconds[inside]
    if not len(finite):
        raise _no_values(name, "dates", 'lower and upper, kind = "datetime"')
    ends = [EPOCH + timedelta(microseconds=float(v)) for v in (finite.min(), finite.max())]
    lower, upper = (e if aware else e.replace(tzinfo=None) for e in ends)
    return lower, upper


def categories_of(name: str, cells: pa.ChunkedArray) -> tuple[str, ...] | tuple[float, ...]:
    """Return the distinct values: numbers ascending if all are numbers, else text.

    Text is sorted by code point.

    Raises
    ------
    SchemaError
        If there are none.
    """
    _check_utf8(name, cells)
    if not is_text(cells.type) and not pa.types.is_integer(value_type(cells.type)):
        return _number_categories(name, numbers(cells))
    texts = _distinct(cells)
    if not texts:
        raise _no_values(name, "categories", 'categories, kind = "categorical"')
    values = numbers(pa.chunked_array([pa.array(texts, pa.large_string())]))
    whole = bool(np.all(np.isfinite(values)))
    return _number_categories(name, values) if whole else tuple(texts)


def filled(cells: pa.ChunkedArray) -> int:
    """Return how many cells hold something: no null, and no empty text."""
    return len(_filled(cells)) if is_text(cells.type) else len(cells) - cells.null_count


def own_categories(
    table: ReadableTable, name: str
) -> tuple[tuple[str, ...] | tuple[float, ...], bool] | None:
    """Return a dictionary column's own categories and whether they are ordered, if it has."""
    kind = table.arrow_type(name)
    if not (pa.types.is_dictionary(kind) and table.keeps_order(name)):
        return None
    _check_utf8(name, table.cells(name))
    levels = _own_levels(table.cells(name))
    return None if levels is None else (levels, bool(kind.ordered))


# --- kinds -------------------------------------------------------------------------------


def _own_levels(cells: pa.ChunkedArray) -> tuple[str, ...] | tuple[float, ...] | None:
    """A dictionary's values in its order, if they can be categories."""
    one = cells.unify_dictionaries()
    if not one.num_chunks:
        return None
    values = one.chunk(0).dictionary
    if len(values) == 0 or values.null_count or len(pc.unique(values)) < len(values):
        return None
    if is_text(values.type):
        return tuple(values.cast(pa.large_string()).to_pylist())
    if is_number(values.type):
        found = numbers(pa.chunked_array([values]))
        return tuple(_short(float(v)) for v in found) if np.all(np.isfinite(found)) else None
    return None


def _text(name: str, cells: pa.ChunkedArray) -> Column:
    """Parse the distinct texts only: they say as much as all cells, and are few."""
    _check_utf8(name, cells)
    filled = _filled(cells)
    rows, present = len(cells), len(filled)
    if not present:
        raise _no_values(name, "values", "its kind")
    texts = pa.chunked_array([pc.unique(filled)])
    as_numbers = numbers(texts)
    if _all_numbers(texts, as_numbers):
        numeric = texts.filter(pa.array(np.isfinite(as_numbers)))
        finite = pc.sum(pc.is_in(filled, numeric.combine_chunks())).as_py()
        nullable = present < rows or bool(np.isnan(as_numbers).any())
        return _number(name, as_numbers, present=finite, nullable=nullable)
    words = pa.array(["true", "false"], pa.large_string())
    if bool(pc.all(pc.is_in(pc.utf8_lower(texts), words)).as_py()):
        return Boolean(nullable=present < rows)
    as_moments = moments(texts)
    if not np.isnan(as_moments).any():
        return _datetime(name, as_moments, nullable=present < rows)
    return _categories(name, texts, present, rows)


def _all_numbers(texts: pa.ChunkedArray, values: FloatArray) -> bool:
    """Whether every text is a number, or the word nan beside some that are."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    spelled = np.asarray(pc.equal(words, pa.scalar("nan", words.type)).to_numpy(), dtype=np.bool_)
    parsed = ~np.isnan(values)
    return bool(np.all(parsed | spelled)) and bool(parsed.any())


def _categories(name: str, texts: pa.ChunkedArray, present: int, rows: int) -> Categorical:
    count = len(texts)
    if count == present and present > FEW_ROWS:
        raise _looks_like_identifier(name, count)
    if count > MANY_CATEGORIES or (rows > FEW_ROWS and count > rows / 2):
        raise SchemaError(
            f"column {name!r} has {count} different texts in {rows} rows of the synthetic table, "
            "too many to take as categories. Leave it out of the workload, or declare its "
            "categories in the schema."
        )
    return Categorical(tuple(sorted(texts.to_pylist())), nullable=present < rows)


def _number(
    name: str, values: FloatArray, *, present: int, nullable: bool
) -> Numeric | Categorical:
    """A column of numbers, from its values (each at least once) and how many cells have one."""
    distinct = np.unique(values[np.isfinite(values)])
    whole = all_whole(values)
    if whole and len(distinct) == present > FEW_ROWS:
        raise _looks_like_identifier(name, len(distinct))
    if whole and len(distinct) == 2:
        return Categorical(_number_categories(name, distinct), nullable=nullable)
    lower, upper = number_range(name, values)
    return Numeric(lower, upper, nullable=nullable, integer=whole)


def _datetime(name: str, microseconds: FloatArray, *, nullable: bool) -> Datetime:
    lower, upper = moment_range(name, microseconds, aware=False)
    return Datetime(lower, upper, nullable=nullable)


def _known(name: str, values: FloatArray, rows: int) -> bool:
    """Whether some values are missing; a column where all are is refused."""
    missing = int(np.isnan(values).sum())
    if missing == rows:
        raise _no_values(name, "values", "its kind")
    return missing > 0


def _number_categories(name: str, values: FloatArray) -> tuple[float, ...]:
    distinct = np.unique(values[np.isfinite(values)])
    if not len(distinct):
        raise _no_values(name, "categories", 'categories, kind = "categorical"')
    return tuple(_short(float(v)) for v in distinct)


def _filled(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without nulls and empty cells, dictionaries decoded."""
    plain = plain_cells(cells).cast(pa.large_string())
    return plain.filter(pc.not_equal(plain, ""))


def _distinct(cells: pa.ChunkedArray) -> list[str]:
    """Distinct non-empty texts, by code point."""
    found: Sequence[str] = pc.unique(_filled(cells)).to_pylist()
    return sorted(found)


def _short(value: float) -> float:
    """A whole number as an integer, as people write it (where a float holds it exactly)."""
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def _check_utf8(name: str, cells: pa.ChunkedArray) -> None:
    """Refuse text that has no characters: what it says can't be put in a schema."""
    try:
        cells.validate(full=True)
    except pa.ArrowInvalid:
        raise SchemaError(
            f"column {name!r} of the synthetic table holds text that is not UTF-8. Write the "
            "table again with text in UTF-8, or declare the column in the schema in full."
        ) from None


def _no_values(name: str, what: str, needed: str) -> SchemaError:
    return SchemaError(
        f"column {name!r} has no {what} in the synthetic table to infer from. Declare {needed} "
        "in the schema, or leave the column out of the workload."
    )


def _looks_like_identifier(name: str, count: int) -> SchemaError:
    return SchemaError(
        f"column {name!r} looks like an identifier: its {count} values in the synthetic table "
        "are all different. Leave it out of the workload, or declare it in the schema."
    )
