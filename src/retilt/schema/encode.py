"""One column's Arrow cells -> NumPy: values, grid integers, cells of a marginal, [0, 1].

The policy is fixed and the same for both tables (DESIGN 2): values outside the bounds are
clamped, unknown categories are ``other``, what is missing or does not parse is null. Nothing
here looks at a value to decide what to run: text is parsed by one DuckDB ``TRY_CAST``, the
rest is arithmetic on whole arrays. So the executed lines, and with them errors and warnings,
do not depend on the private table's contents. Text may be any bytes: Arrow and Parquet do not
promise that it is UTF-8.

A column arrives as *text* (CSV, object and string columns: cast cell by cell to what the
schema says) or *typed* (its declared type must fit the schema, see :func:`check_type`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache, partial, wraps
from itertools import pairwise
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.exceptions import ColumnTypeError
from retilt.schema.columns import (
    EPOCH,
    MAX_LEVELS,
    Boolean,
    Categorical,
    Column,
    Datetime,
    Numeric,
    microseconds_of,
)
from retilt.schema.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int32]

_TICKS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 1 / 1_000}
_TRUE_WORDS = ("true", "True", "TRUE")
_FALSE_WORDS = ("false", "False", "FALSE")

_AS_NUMBER = "TRY_CAST(c AS DOUBLE)"
_AS_MOMENT = "TRY_CAST(c AS TIMESTAMPTZ)"
# Only 0 and 1 are booleans, whether spelled as words, integers or floats.
_AS_BOOLEAN = (
    "COALESCE(TRY_CAST(c AS BOOLEAN),"
    " CASE TRY_CAST(c AS DOUBLE) WHEN 1 THEN true WHEN 0 THEN false END)"
)

# One database in memory for all casts, opened on first use (30 ms). The cache and the call are
# in C, so that no line of ours runs on the first table only. One thread: nothing to lose in a
# fork.
_database = cache(methodcaller("connect", ":memory:", config={"threads": 1}))

_Parameters = ParamSpec("_Parameters")
_Encoded = TypeVar("_Encoded")


def _discreet(encoding: Callable[_Parameters, _Encoded]) -> Callable[_Parameters, _Encoded]:
    """Let an encoding fail, if it must, without a word about the cells."""

    @wraps(encoding)
    def discreet(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Encoded:
        return read(partial(encoding, *args, **options), "a column", "its cells can't be encoded.")

    return discreet


# --- types -------------------------------------------------------------------------------


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of the values: a dictionary's own, else the type itself."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether cells of this type are text (an all-null column without a type counts)."""
    kind = value_type(arrow_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
    )


def is_number(arrow_type: pa.DataType) -> bool:
    """Whether cells of this type are numbers (booleans are not)."""
    kind = value_type(arrow_type)
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_boolean(arrow_type: pa.DataType) -> bool:
    """Whether cells of this type are true or false."""
    return bool(pa.types.is_boolean(value_type(arrow_type)))


def is_moment(arrow_type: pa.DataType) -> bool:
    """Whether cells of this type are dates or timestamps."""
    kind = value_type(arrow_type)
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def shown_type(arrow_type: pa.DataType) -> str:
    """Return a type's name for a message, without what its writer may have taken from cells.

    A reader that infers types makes field names of a cell's keys, and a precision of its
    digits; a time zone, a width or an extension's text may come from anywhere. None is shown.

    Examples
    --------
    >>> shown_type(pa.int16()), shown_type(pa.timestamp("us", "Europe/Zurich"))
    ('int16', 'timestamp with a time zone')
    >>> shown_type(pa.dictionary(pa.int8(), pa.struct([("secret", pa.int8())])))
    'dictionary of struct'
    """
    types = pa.types
    if types.is_dictionary(arrow_type):
        return f"dictionary of {shown_type(arrow_type.value_type)}"
    if types.is_timestamp(arrow_type):
        return "timestamp with a time zone" if arrow_type.tz else "timestamp"
    if isinstance(arrow_type, pa.BaseExtensionType):
        return "an extension type"
    return str(arrow_type).partition("[")[0].partition("<")[0].partition("(")[0]


def check_type(name: str, column: Column, arrow_type: pa.DataType) -> None:
    """Refuse a column whose declared type can't hold what the schema says.

    Text is always allowed: it is cast cell by cell.

    Parameters
    ----------
    name
        The column's name, for the message.
    column
        What the schema says.
    arrow_type
        The table's own type of the column.

    Raises
    ------
    ColumnTypeError
        Naming the column, its type and what the schema needs; never a value.

    Examples
    --------
    >>> check_type("age", Numeric(0, 120), pa.int16())
    >>> check_type("age", Numeric(0, 120), pa.list_(pa.int16()))
    Traceback (most recent call last):
        ...
    retilt.exceptions.ColumnTypeError: column 'age': its type is list, but the schema \
says numeric, which needs a number, true/false or text. Change the schema or the table.
    """
    if is_text(arrow_type):
        return
    number, boolean = is_number(arrow_type), is_boolean(arrow_type)
    if isinstance(column, Numeric):
        fits, says, needs = number or boolean, "numeric", "a number, true/false or text"
    elif isinstance(column, Boolean):
        fits, says, needs = number or boolean, "boolean", "true/false, the numbers 0 and 1 or text"
    elif isinstance(column, Datetime):
        fits, says, needs = is_moment(arrow_type), "datetime", "a date, a timestamp or text"
    elif column.is_text:
        whole = pa.types.is_integer(value_type(arrow_type))
        fits, says, needs = whole or boolean, "text categories", "text, integers or true/false"
    else:
        fits, says, needs = number or boolean, "number categories", "a number, true/false or text"
    if not fits:
        raise ColumnTypeError(
            f"column {name!r}: its type is {shown_type(arrow_type)}, but the schema says {says}, "
            f"which needs {needs}. Change the schema or the table."
        )


# --- values ------------------------------------------------------------------------------


@_discreet
def values_of(column: Column, cells: pa.ChunkedArray) -> FloatArray | IntArray:
    """Return a column's values, before any clamping.

    Parameters
    ----------
    column
        What the schema says; the cells' type must pass :func:`check_type`.
    cells
        (rows,) one column.

    Returns
    -------
    ndarray
        (rows,) numeric: float64, null as NaN, infinities kept. Datetime: float64
        microseconds since 1970 UTC, null as NaN. Categorical: int32 codes ``0..m-1``, ``m``
        for other, ``m+1`` for null. Boolean: int32 0, 1, and 2 for null.

    Examples
    --------
    >>> values_of(Categorical(("no", "yes")), pa.chunked_array([["yes", "maybe", None]]))
    array([1, 2, 3], dtype=int32)
    """
    if isinstance(column, (Numeric, Datetime)):
        return _amounts(column, cells)
    return _codes(column, cells)


def _amounts(column: Numeric | Datetime, cells: pa.ChunkedArray) -> FloatArray:
    if _is_text_dictionary(cells.type):
        values, rows = _dictionary(cells)
        return _amounts(column, values)[rows]
    return numbers(cells) if isinstance(column, Numeric) else moments(cells)


def _codes(column: Categorical | Boolean, cells: pa.ChunkedArray) -> IntArray:
    if _is_text_dictionary(cells.type):
        values, rows = _dictionary(cells)
        return _codes(column, values)[rows]
    if isinstance(column, Boolean):
        found = truths(cells)
        return np.where(np.isnan(found), 2.0, found).astype(np.int32)
    return _text_codes(column, cells) if column.is_text else _number_codes(column, cells)


@_discreet
def numbers(cells: pa.ChunkedArray) -> FloatArray:
    """Return (rows,) float64 numbers; what is null or does not parse as NaN."""
    cells = plain_cells(cells)
    if is_text(cells.type):
        return _to_float(_parse(cells, _AS_NUMBER))
    return _to_float(cells.cast(pa.float64(), safe=False))


@_discreet
def moments(cells: pa.ChunkedArray) -> FloatArray:
    """Return (rows,) float64 microseconds since 1970 UTC; null or unparseable as NaN."""
    cells = plain_cells(cells)
    if is_text(cells.type):
        parsed = _parse(cells, _AS_MOMENT)
        return _to_float(parsed.cast(pa.int64()).cast(pa.float64(), safe=False))
    if pa.types.is_date32(cells.type):
        days = cells.cast(pa.int32()).cast(pa.float64(), safe=False)
        return _to_float(days) * 86_400e6
    unit = "ms" if pa.types.is_date64(cells.type) else cells.type.unit
    ticks = _to_float(cells.cast(pa.int64()).cast(pa.float64(), safe=False))
    # Parsing text cuts what is finer than a microsecond, so this must too. Multiplying a
    # float64 can't overflow here, where a cast to microseconds in int64 could.
    return np.floor(ticks * _TICKS[unit]) if unit == "ns" else ticks * _TICKS[unit]


@_discreet
def truths(cells: pa.ChunkedArray) -> FloatArray:
    """Return (rows,) float64 0 or 1; what is neither as NaN."""
    cells = plain_cells(cells)
    if is_text(cells.type):
        return _to_float(_parse(cells, _AS_BOOLEAN).cast(pa.uint8()).cast(pa.float64()))
    found = _to_float(cells.cast(pa.float64(), safe=False))
    return np.where((found == 0) | (found == 1), found, np.nan)


def _number_codes(column: Categorical, cells: pa.ChunkedArray) -> IntArray:
    found = numbers(cells)
    listed = np.array(column.categories, dtype=np.float64)
    size = len(listed)
    order = np.argsort(listed, kind="stable")
    place = np.minimum(np.searchsorted(listed[order], found), size - 1)
    codes = np.where(listed[order][place] == found, order[place], size)
    return np.where(np.isnan(found), size + 1, codes).astype(np.int32)


def _text_codes(column: Categorical, cells: pa.ChunkedArray) -> IntArray:
    size = len(column.categories)
    listed = pa.array(column.categories, pa.large_string())
    texts = _as_text(column, plain_cells(cells))
    codes = _to_float(pc.index_in(texts, listed).cast(pa.float64()))
    codes = np.where(np.isnan(codes), size, codes)
    missing = texts.is_null().to_numpy()
    if "" not in column.categories:  # the schema's doing, not the table's
        missing = missing | _to_bool(pc.equal(texts, ""))
    return np.where(missing, size + 1, codes).astype(np.int32)


def _as_text(column: Categorical, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cells as large_string: integers in decimal, booleans as the categories spell them."""
    if is_boolean(cells.type):
        false, true = (
            next((str(c) for c in column.categories if c in words), words[0])
            for words in (_FALSE_WORDS, _TRUE_WORDS)
        )
        text = pa.large_string()
        return pc.if_else(cells, pa.scalar(true, text), pa.scalar(false, text))
    return cells.cast(pa.large_string())


def _is_text_dictionary(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(arrow_type)) and is_text(arrow_type)


def _dictionary(cells: pa.ChunkedArray) -> tuple[pa.ChunkedArray, NDArray[np.int64]]:
    """A dictionary's different texts and null, and (rows,) each row's place among them.

    Decoded, a few long texts could be more than memory holds.
    """
    text = pa.large_string()
    cells = cells.cast(pa.dictionary(pa.int64(), text))
    chunks = cells.chunks
    listed = list(map(attrgetter("dictionary"), chunks))
    sizes, lengths = (np.array(list(map(len, parts)), np.int64) for parts in (listed, chunks))
    starts = np.repeat(np.cumsum(sizes) - sizes, lengths)
    values = pa.chunked_array([*listed, pa.nulls(1, text)], text)
    own = pa.chunked_array(list(map(attrgetter("indices"), chunks)), pa.int64())
    rows = np.where(
        own.is_null().to_numpy(), len(values) - 1, pc.fill_null(own, 0).to_numpy() + starts
    )
    distinct = pc.unique(values)
    places = pc.index_in(values, distinct).to_numpy()
    return pa.chunked_array([distinct]), places[rows].astype(np.int64)


def plain_cells(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return cells with dictionaries decoded, and text of any type, or of none, large_string."""
    kind = pa.large_string() if is_text(cells.type) else value_type(cells.type)
    if pa.types.is_dictionary(cells.type):
        # Values first: few long ones, often repeated, are more than 32-bit offsets can hold.
        cells = cells.cast(pa.dictionary(cells.type.index_type, kind))
    return cells.cast(kind)


def _to_float(cells: pa.ChunkedArray) -> FloatArray:
    """A float64 column with nulls as NaN, and one NaN for all: a signalling one would warn."""
    found = np.asarray(pc.fill_null(cells, np.nan).to_numpy(), dtype=np.float64)
    return np.where(np.isnan(found), np.nan, found)


def _to_bool(cells: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(cells, False).to_numpy(), dtype=np.bool_)


def _parse(cells: pa.ChunkedArray, expression: str) -> pa.ChunkedArray:
    """Cast text cell by cell in one call: what does not parse is null, nothing raises.

    DuckDB may get bytes that are not UTF-8: ``TRY_CAST`` takes them, its text functions fail.
    """
    import duckdb

    trimmed = pc.ascii_trim_whitespace(cells)
    try:
        with _database(duckdb).cursor() as cursor:
            cursor.execute("SET TimeZone = 'UTC'")  # times without a zone, on every machine
            relation = cursor.from_arrow(pa.table({"c": trimmed}))
            return relation.project(f"{expression} AS v").to_arrow_table()["v"]
    except BaseException:
        _database.cache_clear()  # a database that failed may refuse every later call
        raise


# --- encodings ---------------------------------------------------------------------------


def limits(column: Numeric | Datetime) -> tuple[float, float]:
    """Return the bounds in the units of :func:`values_of`."""
    if isinstance(column, Numeric):
        return float(column.lower), float(column.upper)
    return microseconds_of(column.lower), microseconds_of(column.upper)


@_discreet
def to_grid(column: Column, cells: pa.ChunkedArray) -> IntArray:
    """Return a column on its integer grid, for moments.

    Parameters
    ----------
    column
        What the schema says; the cells' type must pass :func:`check_type`.
    cells
        (rows,) one column.

    Returns
    -------
    ndarray
        (rows,) int32 in ``[-levels, levels]``; ``u / levels`` is the centred value in
        [-1, 1]. Halves round up. What is null or unknown is 0, the midpoint, or -1, the
        first value, if the column is two-valued.

    Examples
    --------
    >>> to_grid(Numeric(0, 4, integer=True), pa.chunked_array([[0, 1.5, 4, 99, None]]))
    array([-4,  0,  4,  4,  0], dtype=int32)
    """
    if isinstance(column, (Boolean, Categorical)):
        codes = _codes(column, cells)
        missing = -1 if column.two_valued else 0
        return np.where(codes > column.levels, missing, 2 * codes - column.levels).astype(np.int32)
    lower, upper = limits(column)
    values = np.clip(_amounts(column, cells), lower, upper)  # first: inf and 1e308 end here
    if column.levels == 0:
        return np.zeros(len(values), dtype=np.int32)
    if column.on_lattice:
        grid = 2 * np.floor(values - lower + 0.5) - column.levels
    else:
        # (2 t - 1) * levels + 1/2: scaling by a power of two rounds nothing.
        grid = np.floor((2 * ((values - lower) / (upper - lower)) - 1) * MAX_LEVELS + 0.5)
    return np.where(np.isnan(grid), 0.0, grid).astype(np.int32)


@_discreet
def to_values(column: Column, cells: pa.ChunkedArray) -> FloatArray:
    """Return a column in the units that means are reported in, not rounded to the grid.

    Parameters
    ----------
    column
        What the schema says; the cells' type must pass :func:`check_type`.
    cells
        (rows,) one column.

    Returns
    -------
    ndarray
        (rows,) float64: numbers as they are, be they categories or not, dates as seconds since
        1970 (UTC), other categories and booleans as codes from 0; clamped to the bounds. What is
        null or unknown is the midpoint, or the first value of two that are no numbers.

    Examples
    --------
    >>> to_values(Numeric(0, 4, integer=True), pa.chunked_array([[0, 1.5, 4, 99, None]]))
    array([0. , 1.5, 4. , 4. , 2. ])
    >>> to_values(Categorical((1.0, 2.0, 5.0)), pa.chunked_array([[5.0, 2.0, None]]))
    array([5., 2., 3.])
    """
    if isinstance(column, Categorical) and not column.is_text:
        values = np.array(column.categories, dtype=np.float64)
        missing = (values.min() + values.max()) / 2
        return np.append(values, [missing, missing])[_codes(column, cells)]
    if isinstance(column, (Boolean, Categorical)):
        return (to_grid(column, cells) + column.levels) / 2
    lower, upper = limits(column)
    values = np.clip(_amounts(column, cells), lower, upper)
    filled = np.where(np.isnan(values), lower + (upper - lower) / 2, values)
    return filled / 1e6 if isinstance(column, Datetime) else filled


@_discreet
def to_unit(column: Column, cells: pa.ChunkedArray, *, clamp: bool) -> FloatArray:
    """Return a column in [0, 1] as the paper encodes it, not rounded to the grid.

    Parameters
    ----------
    column
        What the schema says; the cells' type must pass :func:`check_type`.
    cells
        (rows,) one column.
    clamp
        Whether finite numbers outside the bounds are clamped; if not, they fall outside
        [0, 1]. Infinities are clamped in any case.

    Returns
    -------
    ndarray
        (rows,) float64. What is null or unknown is 1/2, or 0 if the column is two-valued;
        a constant column is 1/2.
    """
    if isinstance(column, (Boolean, Categorical)):
        codes = _codes(column, cells)
        missing = 0.0 if column.two_valued else 0.5
        known = codes / column.levels if column.levels else np.full(len(codes), 0.5)
        return np.where(codes > column.levels, missing, known)
    lower, upper = limits(column)
    values = _amounts(column, cells)
    clamped = np.clip(values, lower, upper)
    if column.levels == 0:
        return np.full(len(values), 0.5)
    inside = (clamped - lower) / (upper - lower)
    if clamp:
        return np.where(np.isnan(inside), 0.5, inside)
    raw = (values - lower) / (upper - lower)
    return np.where(np.isnan(values), 0.5, np.where(np.isfinite(raw), raw, inside))


@_discreet
def to_cells(column: Column, cells: pa.ChunkedArray, edges: Sequence[float] = ()) -> IntArray:
    """Return the cell of a marginal that each row falls in: always exactly one.

    Parameters
    ----------
    column
        What the schema says; the cells' type must pass :func:`check_type`.
    cells
        (rows,) one column.
    edges
        (B-1,) ascending inner bin edges of a numeric or datetime column, in the units of
        :func:`values_of`.

    Returns
    -------
    ndarray
        (rows,) int32. Numeric and datetime: bin ``0..B-1`` (clamped values), ``B`` for null.
        Categorical: ``0..m-1``, ``m`` other, ``m+1`` null. Boolean: 0, 1, 2 for null.
    """
    if isinstance(column, (Boolean, Categorical)):
        return _codes(column, cells)
    values = np.clip(_amounts(column, cells), *limits(column))
    bins = np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right")
    return np.where(np.isnan(values), len(edges) + 1, bins).astype(np.int32)


def cell_labels(column: Column, edges: Sequence[float] = ()) -> tuple[str, ...]:
    """Return the names of :func:`to_cells`' cells, in order.

    Examples
    --------
    >>> cell_labels(Numeric(17, 90), [25.0, 40.0])
    ('[17, 25)', '[25, 40)', '[40, 90]', 'null')
    >>> cell_labels(Categorical(("other", "F")))
    ('other', 'F', '(other)', 'null')
    """
    if isinstance(column, Boolean):
        return ("false", "true", "null")
    if isinstance(column, Categorical):
        named = _category_labels(column)
        return (*named, _spare("other", named), _spare("null", named))
    lower, upper = limits(column)
    ends = _end_labels(column, [lower, *edges, upper])
    bins = [f"[{a}, {b})" for a, b in pairwise(ends)]
    bins[-1] = bins[-1][:-1] + "]"
    return (*bins, "null")


def _category_labels(column: Categorical) -> list[str]:
    if column.is_text:
        return [str(c) for c in column.categories]
    return [_number_label(float(c)) for c in column.categories]


def _spare(word: str, taken: Sequence[str]) -> str:
    """``word``, in as many parentheses as it takes to differ from the categories."""
    while word in taken:
        word = f"({word})"
    return word


def _end_labels(column: Numeric | Datetime, ends: Sequence[float]) -> list[str]:
    if isinstance(column, Datetime):
        return [_moment_label(e) for e in ends]
    short = [f"{e:.6g}" for e in ends]
    # Six digits read well; where they can't tell two edges apart, take all of them.
    distinct = len(set(short)) == len(set(ends))
    return short if distinct else [_number_label(e) for e in ends]


def _number_label(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _moment_label(microseconds: float) -> str:
    # Rounded to a float, or in another zone, the calendar's ends are beyond it in UTC.
    start = EPOCH.replace(tzinfo=None)
    since = max(
        min(timedelta(microseconds=microseconds), datetime.max - start), datetime.min - start
    )
    moment = start + since
    midnight = moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return moment.date().isoformat() if midnight else moment.isoformat(sep=" ")
