"""Schemas written and read back."""

from __future__ import annotations

import json
import math
import tomllib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.exceptions import OutputExistsError, SchemaError
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.formats import (
    load_declared,
    schema_from_dict,
    schema_to_dict,
    schema_to_toml,
    write_schema,
)

HOSTILE = [
    "",
    " ",
    '"',
    "\\",
    "a\nb",
    "\r",
    "\t",
    "\x00",
    "\x7f",
    "\x1b[31m",
    "]\n[columns.x]",
    "#",
    "\u2028",
    "\ufeff",
    "ünïcödé",
    "🦊",
    "a.b",
    "'''",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(HOSTILE)
FLOATS = st.floats(-1e307, 1e307)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    nullable = draw(st.booleans())
    kind = draw(st.sampled_from(["numeric", "integer", "text", "numbers", "boolean", "datetime"]))
    if kind == "numeric":
        lower, upper = sorted(draw(st.tuples(FLOATS, FLOATS)))
        return Numeric(lower, upper, nullable=nullable)
    if kind == "integer":
        lower = draw(st.integers(-(2**60), 2**60))
        return Numeric(lower, lower + draw(st.integers(0, 99)), nullable=nullable, integer=True)
    if kind == "boolean":
        return Boolean(nullable=nullable)
    if kind == "datetime":
        zone = draw(st.sampled_from([None, UTC, timezone(timedelta(hours=-5, minutes=30))]))
        low, high = sorted(
            draw(st.tuples(*[st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1))] * 2))
        )
        return Datetime(low.replace(tzinfo=zone), high.replace(tzinfo=zone), nullable=nullable)
    numbers = st.lists(FLOATS | st.integers(-99, 99), min_size=1, max_size=4, unique=True)
    texts = st.lists(TEXT, min_size=1, max_size=4, unique=True)
    found: Any = draw(texts if kind == "text" else numbers)
    return Categorical(tuple(found), ordered=draw(st.booleans()), nullable=nullable)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    found = draw(st.dictionaries(TEXT, columns(), max_size=4))
    inferred = draw(st.sets(st.sampled_from(sorted(found)))) if found else set()
    return Schema(found, frozenset(inferred))


@given(schemas())
def test_json_round_trip(schema: Schema) -> None:
    back = schema_from_dict(json.loads(json.dumps(schema_to_dict(schema))))
    assert back == schema
    assert list(back.columns) == list(schema.columns)


@given(schemas())
def test_toml_round_trip(schema: Schema) -> None:
    text = schema_to_toml(schema, {name: f"why\n[{name}]" for name in HOSTILE})
    declared = load_declared({"columns": tomllib.loads(text).get("columns", {})})
    assert declared.entries == load_declared(Schema(schema.columns)).entries or all(
        _equal(declared.entries[n], e) for n, e in load_declared(schema).entries.items()
    )


def _equal(read: Any, said: Any) -> bool:
    """``ordered = false`` is not written."""
    return read == said or (said.ordered is False and read.ordered is None)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, 1e300, -0.0, 1e16, 123456789012345678])
def test_numbers_keep_every_bit(value: float) -> None:
    schema = Schema({"x": Numeric(min(value, 0), max(value, 1e301))})
    back = schema_from_dict(json.loads(json.dumps(schema_to_dict(schema))))
    read = load_declared({"columns": tomllib.loads(schema_to_toml(schema))["columns"]})
    column = schema["x"]
    assert isinstance(column, Numeric)
    for lower in (back["x"].lower, read.entries["x"].lower):  # type: ignore[union-attr]
        assert (lower, type(lower)) == (column.lower, type(column.lower))
        assert math.copysign(1, lower) == math.copysign(1, column.lower)


GOOD = schema_to_dict(
    Schema({"age": Numeric(0, 1), "sex": Categorical(("F",))}, frozenset({"age"}))
)


def changed(**changes: Any) -> dict[str, Any]:
    age = {**GOOD["columns"][0], **changes}
    return {**GOOD, "columns": [{k: v for k, v in age.items() if v != "gone"}]}


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"columns": []},
        {**GOOD, "more": 1},
        {**GOOD, "columns": {}},
        {**GOOD, "inferred": ["who"]},
        {**GOOD, "inferred": [[]]},
        {**GOOD, "columns": [3]},
        {**GOOD, "columns": [*GOOD["columns"], GOOD["columns"][0]]},
        changed(name=3),
        changed(kind="number"),
        changed(lower="0"),
        changed(lower="gone"),
        changed(lower=None),
        changed(upper=-1),
        changed(upper=float("nan")),
        changed(integer=1),
        changed(nullable="gone"),
        changed(ordered=False),
        {"columns": [{**GOOD["columns"][1], "categories": []}], "inferred": []},
        {"columns": [{**GOOD["columns"][1], "categories": "F"}], "inferred": []},
    ],
    ids=range(22),
)
def test_json_is_read_strictly(content: Any) -> None:
    with pytest.raises(SchemaError, match="schema"):
        schema_from_dict(content)


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    schema = Schema({"ok": Boolean()})
    write_schema(schema, path, undecided={"id": "column 'id' looks like an identifier"})
    assert '# [columns."id"]' in path.read_text(encoding="utf-8")
    assert load_declared(path).entries == load_declared(schema).entries
    with pytest.raises(OutputExistsError):
        write_schema(schema, path)
    write_schema(schema, path, force=True)
    assert "#" not in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["schema.toml"]
