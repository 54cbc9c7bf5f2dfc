"""Declared schemas: strict reading, and completion from the synthetic table."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from retilt.engines.local import open_table
from retilt.exceptions import ColumnTypeError, SchemaError
from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric, Schema
from retilt.schema.declared import load_declared, resolve

TABLE = open_table(
    pa.table(
        {
            "age": [17, 40, 90],
            "gap": [1.5, None, 3.0],
            "sex": ["M", "F", "M"],
            "code": ["1", "2", "10"],
            "day": pa.array([date(2020, 1, 1), date(2021, 1, 1), None]),
            "ok": [True, False, True],
        }
    )
)


def toml(folder: Path, text: str) -> Path:
    path = folder / "schema.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_declared() -> None:
    schema = resolve(load_declared(None), TABLE, TABLE.names)
    assert dict(schema.columns) == {
        "age": Numeric(17, 90, integer=True),
        "gap": Numeric(1.5, 3, nullable=True),
        "sex": Categorical(("F", "M")),
        "code": Numeric(1, 10, integer=True),
        "day": Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1), nullable=True),
        "ok": Boolean(),
    }
    assert schema.inferred == {"age", "gap", "sex", "code", "day"}
    assert list(schema.columns) == list(TABLE.names)


def test_everything_declared(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        [columns.age]
        kind = "numeric"
        lower = 0
        upper = 120
        integer = false
        nullable = true
        [columns.sex]
        kind = "categorical"
        categories = ["M", "F", "X"]
        ordered = true
        [columns.day]
        kind = "datetime"
        lower = 2019-01-01
        upper = "2022-01-01T06:00:00"
        [columns.ok]
        kind = "boolean"
        """,
    )
    schema = resolve(load_declared(path), TABLE, ["sex", "age", "day", "ok"])
    assert list(schema.columns.items()) == [
        ("sex", Categorical(("M", "F", "X"), ordered=True)),
        ("age", Numeric(0, 120, nullable=True)),
        ("day", Datetime(datetime(2019, 1, 1), datetime(2022, 1, 1, 6), nullable=True)),
        ("ok", Boolean()),
    ]
    assert not schema.inferred


def test_half_declared() -> None:
    declared = load_declared(
        {
            "age": {"kind": "numeric", "lower": 0},
            "sex": {"kind": "categorical"},
            "code": {"kind": "categorical"},
            "day": {"kind": "datetime", "upper": datetime(2030, 1, 1, tzinfo=UTC)},
            "gap": {"kind": "numeric", "lower": 0, "upper": 5},
        }
    )
    schema = resolve(declared, TABLE, TABLE.names)
    assert schema["age"] == Numeric(0, 90, integer=True)
    assert schema["sex"] == Categorical(("F", "M"))
    assert schema["code"] == Categorical((1, 2, 10))
    start = datetime(2020, 1, 1, tzinfo=UTC)
    assert schema["day"] == Datetime(start, datetime(2030, 1, 1, tzinfo=UTC), nullable=True)
    # whether values are whole or null is no bound: gap counts as declared
    assert schema["gap"] == Numeric(0, 5, nullable=True)
    assert schema.inferred == {"age", "sex", "code", "day"}


def test_whole_steps_are_inferred_only_between_whole_bounds() -> None:
    for bounds, integer in (((0, 100), True), ((0.5, 100), False), ((0.0, 100.0), True)):
        entry = {"kind": "numeric", "lower": bounds[0], "upper": bounds[1]}
        schema = resolve(load_declared({"age": entry}), TABLE, ["age"])
        assert schema["age"] == Numeric(*bounds, integer=integer)


def test_declared_bounds_win_over_the_table() -> None:
    schema = resolve(load_declared({"age": Numeric(30, 50)}), TABLE, ["age"])
    assert schema["age"] == Numeric(30, 50)
    assert not schema.inferred


def test_a_schema_goes_through_unchanged() -> None:
    schema = resolve(load_declared(None), TABLE, TABLE.names)
    declared = load_declared(schema)
    assert resolve(declared, TABLE, TABLE.names) == schema
    assert load_declared(declared) is declared


def test_a_column_called_columns() -> None:
    declared = load_declared({"columns": {"kind": "boolean"}})
    assert declared.entries["columns"].kind == "boolean"
    declared = load_declared({"columns": {"age": {"kind": "boolean"}}})
    assert list(declared.entries) == ["age"]
    assert load_declared({"columns": {"kind": {"kind": "boolean"}}}).entries["kind"]


def test_an_identifier_can_be_declared() -> None:
    table = open_table(pa.table({"id": list(range(100))}))
    with pytest.raises(SchemaError, match="identifier"):
        resolve(load_declared(None), table, ["id"])
    schema = resolve(load_declared({"id": {"kind": "numeric"}}), table, ["id"])
    assert schema["id"] == Numeric(0, 99, integer=True)


def test_a_pandas_category_keeps_its_order_if_only_the_kind_is_declared() -> None:
    grades = pd.Categorical(["b", "a"], ["c", "b", "a"], ordered=True)
    table = open_table(pd.DataFrame({"grade": grades}))
    schema = resolve(load_declared({"grade": {"kind": "categorical"}}), table, ["grade"])
    assert schema["grade"] == Categorical(("c", "b", "a"), ordered=True)
    assert schema.inferred == {"grade"}


def test_no_such_column() -> None:
    with pytest.raises(SchemaError, match=r"no column 'wage' in the synthetic table: it has 'age'"):
        resolve(load_declared(None), TABLE, ["wage"])


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("day", {"kind": "numeric"}),
        ("age", {"kind": "datetime"}),
        ("gap", {"kind": "categorical", "categories": ["a"]}),
        ("day", {"kind": "boolean"}),
    ],
)
def test_declared_against_the_tables_type(name: str, entry: dict[str, Any]) -> None:
    with pytest.raises(ColumnTypeError, match=f"column '{name}'"):
        resolve(load_declared({name: entry}), TABLE, [name])


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"kind": "numeric", "lower": 200}, "got 200 > 90"),
        ({"kind": "numeric", "integer": True, "lower": 0.5}, "whole bounds"),
    ],
)
def test_bounds_that_the_table_contradicts(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaError, match="column 'age'") as caught:
        resolve(load_declared({"age": entry}), TABLE, ["age"])
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "numeric", "lower": 0, "upper": 1},
        {"kind": "datetime", "lower": date(2020, 1, 1), "upper": date(2021, 1, 1)},
        {"kind": "boolean"},
        {"kind": "categorical", "categories": ["Male", "Female"]},
        {"kind": "categorical", "categories": [1, 2]},
    ],
)
def test_a_declaration_that_no_value_fits_is_a_mistake(entry: dict[str, Any]) -> None:
    declared = load_declared({"city": entry})
    table = open_table(pa.table({"city": ["Oslo", "Bern", "", "Oslo"]}))
    with pytest.raises(SchemaError, match=r"column 'city': declared .* none of its 3 values"):
        resolve(declared, table, ["city"])
    empty = open_table(pa.table({"city": pa.array(["", None], pa.string())}))
    assert resolve(declared, empty, ["city"])["city"].nullable


@pytest.mark.parametrize("kind", ["numeric", "datetime", "categorical"])
def test_nothing_to_infer_from(kind: str) -> None:
    table = open_table(pa.table({"x": pa.array([None, "", None], pa.string())}))
    with pytest.raises(SchemaError, match=r"column 'x' has no .* Declare"):
        resolve(load_declared({"x": {"kind": kind}}), table, ["x"])


WRONG = [
    ("", {}, None),
    ("columns = 3", None, "columns must be tables"),
    ("[column.age]\nkind = 'numeric'", None, "got 'column' at the top"),
    ("[columns]\nage = 3", None, "got 3, expected a table"),
    ("[columns.age]\nlower = 3", None, "got no kind, expected numeric, categorical"),
    ("[columns.age]\nkind = 'number'", None, "got kind = 'number', expected numeric"),
    ("[columns.age]\nkind = ['numeric']", None, "expected numeric"),
    ("[columns.age]\nkind = 'numeric'\nmin = 3", None, "got the key 'min'"),
    ("[columns.age]\nkind = 'boolean'\nlower = 3", None, "got the key 'lower'"),
    ("[columns.age]\nkind = 'numeric'\nlower = '3'", None, "got lower = '3', expected a number"),
    ("[columns.age]\nkind = 'numeric'\nlower = true", None, "got lower = True"),
    ("[columns.age]\nkind = 'numeric'\nlower = nan", None, "expected a finite number"),
    ("[columns.age]\nkind = 'numeric'\nlower = inf", None, "expected a finite number"),
    ("[columns.age]\nkind = 'numeric'\nlower = 3\nupper = 2", None, "lower <= upper"),
    ("[columns.age]\nkind = 'numeric'\ninteger = 1", None, "expected true or false"),
    ("[columns.age]\nkind = 'numeric'\nnullable = 'no'", None, "expected true or false"),
    ("[columns.age]\nkind = 'categorical'\ncategories = 'a,b'", None, "expected a list"),
    ("[columns.age]\nkind = 'categorical'\ncategories = []", None, "at least one"),
    ("[columns.age]\nkind = 'categorical'\ncategories = ['a', 1]", None, "mixture"),
    ("[columns.age]\nkind = 'categorical'\ncategories = ['a', 'a']", None, "some twice"),
    ("[columns.age]\nkind = 'categorical'\nordered = 0", None, "expected true or false"),
    ("[columns.age]\nkind = 'datetime'\nlower = 3", None, "got lower = 3, expected a date"),
    ("[columns.age]\nkind = 'datetime'\nlower = 'May'", None, "got lower = 'May'"),
    ("[columns.age]\nkind = 'datetime'\nlower = 07:00:00", None, "expected a date"),
    (
        "[columns.age]\nkind = 'datetime'\nlower = 2020-01-01T00:00:00Z\nupper = 2021-01-01",
        None,
        "both with a time zone or both without",
    ),
    ("[columns.age]\nkind = 'numeric'\nkind = 'numeric'", None, "is not TOML"),
    ("[columns.age\n", None, "is not TOML"),
]


@pytest.mark.parametrize(("text", "_", "says"), WRONG, ids=range(len(WRONG)))
def test_files_are_read_strictly(tmp_path: Path, text: str, _: Any, says: str | None) -> None:
    path = toml(tmp_path, text)
    if says is None:
        assert not load_declared(path).entries
        return
    with pytest.raises(SchemaError) as caught:
        load_declared(path)
    assert "schema.toml" in str(caught.value)
    assert says in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SchemaError, match=r"No such file|is a folder"):
            load_declared(str(path))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SchemaError, match="UTF-8"):
        load_declared(tmp_path / "bad.toml")


@pytest.mark.parametrize("source", [3, ["age"], {"age": 3}, {3: Boolean()}, {"age": {"kind": 3}}])
def test_sources_that_are_no_schema(source: Any) -> None:
    with pytest.raises(SchemaError):
        load_declared(source)


@pytest.mark.parametrize("name", ["adult", "bank", "mushroom", "shopping"])
def test_the_published_schemas(shared: Path, name: str) -> None:
    declared = load_declared(shared / "data" / name / "schema.toml")
    assert len(declared.entries) >= 15
    for path in sorted((shared / "data" / name / "synthetic").glob("mst-eps1-seed0.csv.gz")):
        table = open_table(path)
        schema = resolve(declared, table, table.names)
        assert not schema.inferred
        assert isinstance(schema, Schema)
