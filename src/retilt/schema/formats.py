"""Schemas in files: the JSON inside a plan, and our TOML written.

Reading our TOML and completing it is :mod:`retilt.schema.declared`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retilt._output import write_text
from retilt.exceptions import SchemaError
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.declared import KEYS, Declared, Entry, load_declared, parse_entry, resolve

__all__ = [
    "Declared",
    "load_declared",
    "resolve",
    "schema_from_dict",
    "schema_to_dict",
    "schema_to_toml",
    "write_schema",
]


# --- JSON --------------------------------------------------------------------------------


def schema_to_dict(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON values; floats keep every bit, column order is kept.

    Examples
    --------
    >>> schema_to_dict(Schema({"sex": Categorical(("F", "M"))}))["columns"]
    [{'name': 'sex', 'kind': 'categorical', 'categories': ['F', 'M'], 'ordered': False, \
'nullable': False}]
    """
    columns = [
        {"name": name, **{key: _json_value(value) for key, value in _plain(column).items()}}
        for name, column in schema.columns.items()
    ]
    return {"columns": columns, "inferred": sorted(schema.inferred)}


def schema_from_dict(content: Mapping[str, Any]) -> Schema:
    """Read what :func:`schema_to_dict` wrote, strictly.

    Raises
    ------
    SchemaError
        If a key is missing or unknown, or a value is not what a schema can hold.
    """
    if not isinstance(content, Mapping) or set(content) != {"columns", "inferred"}:
        raise SchemaError("schema: expected an object with columns and inferred.")
    listed, inferred = content["columns"], content["inferred"]
    if not isinstance(listed, list) or not isinstance(inferred, list):
        raise SchemaError("schema: columns and inferred must be lists.")
    columns: dict[str, Column] = {}
    for item in listed:
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise SchemaError("schema: each column must be an object with a name.")
        name = item["name"]
        if name in columns:
            raise SchemaError(f"schema: column {name!r} stands twice.")
        columns[name] = _column_from({k: v for k, v in item.items() if k != "name"}, name)
    if any(not isinstance(n, str) or n not in columns for n in inferred):
        raise SchemaError("schema: inferred must list names of its columns.")
    return Schema(columns, frozenset(inferred))


def _json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _column_from(item: Mapping[str, Any], name: str) -> Column:
    where = f"schema: column {name!r}"
    entry = parse_entry(item, where)
    missing = sorted(KEYS[entry.kind] - {k for k, v in item.items() if v is not None})
    if missing:
        raise SchemaError(f"{where}: {missing[0]!r} is missing.")
    try:
        return _column_of(entry)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from None


def _column_of(entry: Entry) -> Column:
    """A complete entry's column."""
    nullable = bool(entry.nullable)
    if entry.kind == "numeric":
        lower, upper, integer = entry.lower, entry.upper, bool(entry.integer)
        return Numeric(lower, upper, nullable=nullable, integer=integer)
    if entry.kind == "datetime":
        return Datetime(entry.lower, entry.upper, nullable=nullable)
    if entry.kind == "categorical":
        return Categorical(entry.categories or (), ordered=bool(entry.ordered), nullable=nullable)
    return Boolean(nullable=nullable)


def _plain(column: Column) -> dict[str, Any]:
    """A column as a file says it."""
    if isinstance(column, (Numeric, Datetime)):
        bounds = {"lower": column.lower, "upper": column.upper}
        if isinstance(column, Datetime):
            return {"kind": "datetime", **bounds, "nullable": column.nullable}
        return {"kind": "numeric", **bounds, "integer": column.integer, "nullable": column.nullable}
    if isinstance(column, Categorical):
        return {
            "kind": "categorical",
            "categories": list(column.categories),
            "ordered": column.ordered,
            "nullable": column.nullable,
        }
    return {"kind": "boolean", "nullable": column.nullable}


# --- TOML --------------------------------------------------------------------------------


def schema_to_toml(schema: Schema, undecided: Mapping[str, str] | None = None) -> str:
    """Return a schema as TOML text that reads back equal.

    Parameters
    ----------
    schema
        What to write.
    undecided
        Name to reason, of columns that need a decision: written as comments.

    Examples
    --------
    >>> print(schema_to_toml(Schema({"age": Numeric(17, 90, integer=True)})), end="")
    [columns."age"]
    kind = "numeric"
    lower = 17
    upper = 90
    integer = true
    nullable = false
    """
    parts = [_toml_column(name, column) for name, column in schema.columns.items()]
    for name, reason in (undecided or {}).items():
        place = f"[columns.{_toml_text(name)}]"
        parts.append(f'# {_comment(reason)}\n# {place}\n# kind = ""\n')
    return "\n".join(parts)


def write_schema(
    schema: Schema,
    path: str | Path,
    *,
    undecided: Mapping[str, str] | None = None,
    force: bool = False,
) -> None:
    """Write a schema as a TOML file, whole or not at all.

    Parameters
    ----------
    schema
        What to write.
    path
        The file.
    undecided
        As :func:`schema_to_toml`.
    force
        Whether an existing file may be replaced.

    Raises
    ------
    OutputExistsError, InputError
        As :func:`retilt._output.refuse_existing`.
    """
    write_text(path, schema_to_toml(schema, undecided), force=force)


def _comment(text: str) -> str:
    """A comment's text: a control character would end it or break the file."""
    return "".join(c if c.isprintable() else " " for c in text)


def _toml_column(name: str, column: Column) -> str:
    said = _plain(column)
    if said.get("ordered") is False:  # the one that is never inferred for a declared column
        del said["ordered"]
    lines = [f"{key} = {_toml_value(value)}" for key, value in said.items()]
    return "\n".join([f"[columns.{_toml_text(name)}]", *lines]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return repr(int(value)) if isinstance(value, int) else repr(float(value))


def _toml_text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which TOML wants escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
