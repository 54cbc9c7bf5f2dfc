"""Declared schemas: our TOML, strictly read, and completed from the synthetic table.

A declaration may leave out anything but a column's kind, and whole columns: what it leaves
out is filled from the synthetic table (:mod:`retilt.schema.infer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from retilt._input import kind_of, read_toml, short
from retilt.exceptions import SchemaError
from retilt.schema import infer
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import check_type, moments, numbers, values_of

KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "numeric": frozenset({"lower", "upper", "integer", "nullable"}),
        "categorical": frozenset({"categories", "ordered", "nullable"}),
        "boolean": frozenset({"nullable"}),
        "datetime": frozenset({"lower", "upper", "nullable"}),
    }
)
_KINDS = "numeric, categorical, boolean or datetime"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a declaration says about one column; None is left out.

    Bounds are numbers, or dates and times where the kind is datetime.

    Examples
    --------
    >>> Entry("numeric", lower=0, upper=120).categories is None
    True
    """

    kind: str
    lower: Any = None
    upper: Any = None
    integer: bool | None = None
    categories: tuple[str, ...] | tuple[float, ...] | None = None
    ordered: bool | None = None
    nullable: bool | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared schema, perhaps incomplete.

    Parameters
    ----------
    entries
        Column name to what is declared.
    inferred
        Names whose bounds or categories had been inferred before (a schema handed on).
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    inferred: frozenset[str] = frozenset()


# --- reading -----------------------------------------------------------------------------


def load_declared(source: Any) -> Declared:
    """Read a declaration.

    Parameters
    ----------
    source
        The path of a TOML file, a :class:`Schema`, a mapping of column names to columns or
        to what a TOML file would say, None for nothing declared; or what this returned before.

    Raises
    ------
    SchemaError
        With the file's name, what was got and what is expected.

    Examples
    --------
    >>> load_declared({"age": {"kind": "numeric", "lower": 0}}).entries["age"].lower
    0
    """
    if isinstance(source, Declared):
        return source
    if source is None:
        return Declared()
    if isinstance(source, Schema):
        entries = {n: _entry_of(c) for n, c in source.columns.items()}
        return Declared(entries, source.inferred)
    if isinstance(source, Mapping):
        return Declared(_entries(_columns_of(source), "schema"))
    if isinstance(source, (str, Path)):
        return Declared(_entries(_read_toml(Path(source)), str(source)))
    raise SchemaError(
        f"schema: got {kind_of(source)}, expected the path of a TOML file, a Schema or "
        "a mapping of column names."
    )


def _columns_of(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping's columns: it may be a whole file's content, with one key ``columns``."""
    inner = source.get("columns") if len(source) == 1 else None
    whole = isinstance(inner, Mapping) and not isinstance(inner.get("kind"), str)
    return inner if whole and inner is not None else source


def _read_toml(path: Path) -> Mapping[str, Any]:
    content = read_toml(path, "schema", SchemaError)
    unknown = sorted(set(content) - {"columns"})
    if unknown:
        raise SchemaError(
            f"schema file {path}: got {short(unknown[0])} at the top, expected only tables "
            "[columns.NAME]."
        )
    columns = content.get("columns", {})
    if not isinstance(columns, dict):
        raise SchemaError(f"schema file {path}: columns must be tables [columns.NAME].")
    return columns


def _entries(columns: Mapping[str, Any], where: str) -> dict[str, Entry]:
    entries = {}
    for name, value in columns.items():
        if not isinstance(name, str):
            raise SchemaError(f"{where}: column names are text, got {short(name)}.")
        if isinstance(value, (Numeric, Categorical, Boolean, Datetime)):
            entries[name] = _entry_of(value)
        else:
            entries[name] = parse_entry(value, f"{where}: column {name!r}")
    return entries


def parse_entry(value: Any, where: str) -> Entry:
    """Read one column's declaration.

    Parameters
    ----------
    value
        A mapping with ``kind`` and keys of that kind.
    where
        Its place, for messages.

    Raises
    ------
    SchemaError
        With what was got and what is expected.
    """
    if not isinstance(value, Mapping):
        raise SchemaError(f'{where}: got {short(value)}, expected a table with kind = "...".')
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KEYS:
        got = "no kind" if kind is None else f"kind = {short(kind)}"
        raise SchemaError(f"{where}: got {got}, expected {_KINDS}.")
    unknown = sorted(str(k) for k in set(value) - KEYS[kind] - {"kind"})
    if unknown:
        allowed = ", ".join(sorted(KEYS[kind]))
        raise SchemaError(
            f"{where}: got the key {short(unknown[0])}, expected of {kind}: {allowed}."
        )
    bound = _moment if kind == "datetime" else _number
    entry = Entry(
        kind,
        lower=bound(value, "lower", where),
        upper=bound(value, "upper", where),
        integer=_flag(value, "integer", where),
        categories=_category_list(value, where),
        ordered=_flag(value, "ordered", where),
        nullable=_flag(value, "nullable", where),
    )
    _check_complete_parts(entry, where)
    return entry


def _check_complete_parts(entry: Entry, where: str) -> None:
    """Let the column types judge what is there already, before any table is read."""
    try:
        if entry.kind == "categorical" and entry.categories is not None:
            Categorical(entry.categories)
        low, high = entry.lower, entry.upper
        low, high = (high if low is None else low), (low if high is None else high)
        if isinstance(low, datetime) and isinstance(high, datetime):
            Datetime(low, high)
        elif low is not None and high is not None:
            Numeric(low, high, integer=entry.integer or False)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from None


def _number(value: Mapping[str, Any], key: str, where: str) -> float | None:
    got = value.get(key)
    if got is not None and (isinstance(got, bool) or not isinstance(got, (int, float))):
        raise SchemaError(f"{where}: got {key} = {short(got)}, expected a number.")
    return got


def _moment(value: Mapping[str, Any], key: str, where: str) -> datetime | None:
    got = value.get(key)
    if got is None or isinstance(got, datetime):
        return got
    if isinstance(got, date):
        return datetime(got.year, got.month, got.day)
    try:
        return datetime.fromisoformat(got)
    except (TypeError, ValueError):
        raise SchemaError(
            f"{where}: got {key} = {short(got)}, expected a date or time such as 2024-01-31."
        ) from None


def _flag(value: Mapping[str, Any], key: str, where: str) -> bool | None:
    got = value.get(key)
    if got is not None and not isinstance(got, bool):
        raise SchemaError(f"{where}: got {key} = {short(got)}, expected true or false.")
    return got


def _category_list(value: Mapping[str, Any], where: str) -> tuple[Any, ...] | None:
    got = value.get("categories")
    if got is None:
        return None
    if isinstance(got, (str, bytes)) or not isinstance(got, Sequence):
        raise SchemaError(f"{where}: got categories = {short(got)}, expected a list.")
    return tuple(got)


def _entry_of(column: Column) -> Entry:
    if isinstance(column, Numeric):
        return Entry(
            "numeric", column.lower, column.upper, column.integer, nullable=column.nullable
        )
    if isinstance(column, Datetime):
        return Entry("datetime", column.lower, column.upper, nullable=column.nullable)
    if isinstance(column, Categorical):
        return Entry(
            "categorical",
            categories=column.categories,
            ordered=column.ordered,
            nullable=column.nullable,
        )
    return Entry("boolean", nullable=column.nullable)


# --- completing --------------------------------------------------------------------------


def resolve(declared: Declared, table: infer.ReadableTable, names: Sequence[str]) -> Schema:
    """Return the schema of some columns: as declared, the rest from the synthetic table.

    Parameters
    ----------
    declared
        What :func:`load_declared` gave.
    table
        The synthetic table.
    names
        The columns that a workload needs, in the order wanted.

    Raises
    ------
    SchemaError
        If a column is not in the table, or what is left out can't be inferred.
    ColumnTypeError
        If a column's type in the synthetic table does not fit its declaration.
    """
    columns: dict[str, Column] = {}
    inferred = set()
    for name in names:
        if name not in table.names:
            listed = ", ".join(repr(n) for n in table.names[:30])
            more = ", …" if len(table.names) > 30 else ""
            raise SchemaError(f"no column {name!r} in the synthetic table: it has {listed}{more}.")
        entry = declared.entries.get(name)
        if entry is None:
            columns[name] = infer.infer_column(table, name)
            guessed = not isinstance(columns[name], Boolean)
        else:
            columns[name], guessed = _complete(entry, table, name)
        check_type(name, columns[name], table.arrow_type(name))
        if guessed or name in declared.inferred:
            inferred.add(name)
    return Schema(columns, frozenset(inferred))


def _complete(entry: Entry, table: infer.ReadableTable, name: str) -> tuple[Column, bool]:
    """A declared column with its gaps filled, and whether bounds or categories were."""
    _check_kind(entry, table, name)
    cells = table.cells(name)
    try:
        column = _filled_in(entry, table, name, cells)
    except SchemaError as error:
        text, named = str(error), f"column {name!r}"
        raise SchemaError(text if text.startswith(named) else f"{named}: {text}") from None
    known, nulls = _counts(column, cells)
    _check_any_fits(name, entry, known, cells)
    nullable = nulls > 0 if entry.nullable is None else entry.nullable
    return replace(column, nullable=nullable), _has_gap(entry)


def _counts(column: Column, cells: pa.ChunkedArray) -> tuple[int, int]:
    """How many values are what the column says, and how many null; the rest are other."""
    values = values_of(column, cells)
    if isinstance(column, (Numeric, Datetime)):
        nulls = int(np.isnan(values).sum())
        return len(values) - nulls, nulls
    if isinstance(column, Boolean):
        return int((values < 2).sum()), int((values == 2).sum())
    size = len(column.categories)
    return int((values < size).sum()), int((values > size).sum())


def _check_any_fits(name: str, entry: Entry, known: int, cells: pa.ChunkedArray) -> None:
    """Refuse a declaration that no value of the synthetic table fits: it is a mistake."""
    filled = infer.filled(cells)
    if known or not filled:
        return
    raise SchemaError(
        f"column {name!r}: declared {entry.kind}, but none of its {filled} values in the "
        "synthetic table fits. Correct the declaration: "
        + ("its categories." if entry.categories is not None else "its kind.")
    )


def _has_gap(entry: Entry) -> bool:
    if entry.kind == "categorical":
        return entry.categories is None
    return entry.kind != "boolean" and (entry.lower is None or entry.upper is None)


def _filled_in(
    entry: Entry, table: infer.ReadableTable, name: str, cells: pa.ChunkedArray
) -> Column:
    if entry.kind == "numeric":
        return _numeric(entry, name, numbers(cells))
    if entry.kind == "datetime":
        return _datetime(entry, name, cells)
    if entry.kind == "categorical":
        return _categorical(entry, table, name, cells)
    return Boolean()


_PROBES: Mapping[str, Column] = MappingProxyType(
    {
        "numeric": Numeric(0, 1),
        "datetime": Datetime(datetime(1970, 1, 1), datetime(1970, 1, 2)),
        "boolean": Boolean(),
    }
)


def _check_kind(entry: Entry, table: infer.ReadableTable, name: str) -> None:
    """Check the type before reading cells by the declared kind."""
    probe = _PROBES.get(entry.kind)
    if entry.categories is not None:
        probe = Categorical(entry.categories)
    if probe is not None:
        check_type(name, probe, table.arrow_type(name))


def _numeric(entry: Entry, name: str, values: infer.FloatArray) -> Numeric:
    lower, upper = _bounds(entry, lambda: infer.number_range(name, values))
    integer = entry.integer
    if integer is None:
        whole_bounds = float(lower).is_integer() and float(upper).is_integer()
        integer = whole_bounds and infer.all_whole(values)
    return Numeric(lower, upper, integer=integer)


def _datetime(entry: Entry, name: str, cells: pa.ChunkedArray) -> Datetime:
    given = entry.lower if entry.upper is None else entry.upper
    aware = given is not None and given.tzinfo is not None
    lower, upper = _bounds(entry, lambda: infer.moment_range(name, moments(cells), aware=aware))
    return Datetime(lower, upper)


def _bounds(entry: Entry, inferred: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Declared bounds, and only where one is left out the synthetic table's."""
    if entry.lower is not None and entry.upper is not None:
        return entry.lower, entry.upper
    least, greatest = inferred()
    lower = least if entry.lower is None else entry.lower
    upper = greatest if entry.upper is None else entry.upper
    return lower, upper


def _categorical(
    entry: Entry, table: infer.ReadableTable, name: str, cells: pa.ChunkedArray
) -> Categorical:
    ordered = bool(entry.ordered)
    if entry.categories is not None:
        return Categorical(entry.categories, ordered=ordered)
    own = infer.own_categories(table, name)
    if own is None:
        return Categorical(infer.categories_of(name, cells), ordered=ordered)
    return Categorical(own[0], ordered=own[1] if entry.ordered is None else ordered)
