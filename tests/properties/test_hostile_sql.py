"""No hostile expression is admitted, and no admitted one fails or depends on other rows."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

import retilt as rt
from retilt import cli, pipeline
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.measures.expressions import (
    Expression,
    check,
    evaluate,
    parse_number,
    parse_predicate,
)
from retilt.measures.expressions import admitted as admitted_module
from retilt.privacy.plan import plan_from_dict
from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric, Schema

COLUMNS = ("x", "y", "s", "flag", "day")

# --- refused -----------------------------------------------------------------------------

HOSTILE = {
    # more than one statement, comments, statements that are no expressions
    "x > 1; DROP TABLE t": "more than one statement",
    "x > 1;": "more than one statement",
    ";": "more than one statement",
    "x > 1 -- and flag": "a comment",
    "x > 1 /* and flag */": "a comment",
    "/* a */ x > 1": "a comment",
    "x > 1 -- ' \n OR true": "a comment",
    "DROP TABLE t": "'DROP' is not admitted",
    "SET threads = 1": "'SET' is not admitted",
    "PRAGMA database_list": "'PRAGMA' is not admitted|'PRAGMA",
    "ATTACH 'a.db'": "'ATTACH' is not admitted",
    "COPY t TO 'a.csv'": "'COPY' is not admitted",
    "INSTALL httpfs": "not admitted",
    "LOAD httpfs": "'LOAD' is not admitted",
    "CALL pragma_version()": "not admitted",
    "INSERT INTO t VALUES (1)": "'INSERT' is not admitted",
    "UPDATE t SET x = 1": "'UPDATE' is not admitted",
    "x > 1 UNION SELECT 2": "'UNION' is not admitted",
    "x > 1 FROM t": "can't be read as SQL|name for a result|not admitted",
    "x > 1 ORDER BY x": "not admitted",
    "x > 1 LIMIT 1": "'LIMIT' is not admitted",
    "x > 1 GROUP BY x": "not admitted",
    "WITH a AS (SELECT 1) SELECT * FROM a": "a subquery",
    "FROM t": "not admitted|can't be read as SQL",
    # subqueries
    "x > (SELECT avg(x) FROM t)": "a subquery",
    "EXISTS (SELECT 1)": "a subquery",
    "x IN (SELECT x FROM t)": "a subquery",
    "x = ANY (SELECT x FROM t)": "not admitted",
    "x IN t": "IN without a list|not admitted",
    "x IN ()": "IN without a list|can't be read",
    "x IS 5": "IS without NULL|can't be read",
    "x IS y": "IS without NULL|can't be read",
    "CAST(x AS DECIMAL(s)) > 1": "whole number|not admitted|can't be read",
    "CAST(x AS DECIMAL(100, 2)) > 1": "whole number",
    "x > (FROM t)": "not admitted|can't be read as SQL",
    "x > (VALUES (1))": "'VALUES' is not admitted",
    # other rows
    "x > avg(x)": "reads other rows",
    "count(*) > 1": "reads other rows|not admitted",
    "sum(x) OVER () > 1": "a window function",
    "row_number() OVER (ORDER BY x) = 1": "not admitted",
    "lag(x) > 1": "'lag' is not admitted",
    "x > max(x) FILTER (WHERE flag)": "not admitted",
    "string_agg(s) = 'a'": "reads other rows",
    "quantile_cont(x, 0.5) > 1": "'quantile_cont' is not admitted",
    "lower(DISTINCT s) = 'a'": "'DISTINCT' is not admitted",
    "lower(s ORDER BY x) = 'a'": "not admitted",
    # chance, the clock, the session
    "x > random()": "gives a different value each time",
    "s = uuid()": "gives a different value each time",
    "setseed(0.5) IS NULL": "gives a different value each time",
    "day < now()": "gives a different value each time",
    "day < today()": "gives a different value each time",
    "day < current_date": "the clock",
    "day < CURRENT_TIMESTAMP": "the clock",
    "day < current_date()": "the clock",
    "day < get_current_timestamp()": "gives a different value each time",
    "epoch(age(day)) > 1": "gives a different value each time",
    "nextval('a') = x": "gives a different value each time",
    "current_setting('threads') = s": "depends on the machine",
    "getenv('HOME') = s": "depends on the machine",
    "getvariable('a') = x": "depends on the machine",
    "version() = s": "depends on the machine",
    "s = current_user": "not admitted|no column",
    "s = user": "no column 'user'",
    "txid_current() = x": "'txid_current' is not admitted",
    "pg_typeof(x) = s": "'pg_typeof' is not admitted",
    "day < 'now'": "no date|text",
    # files, the network, other code
    "read_csv('/etc/passwd') = s": "'read_csv' is not admitted",
    "read_text('/etc/passwd') = s": "'read_text' is not admitted",
    "s IN (read_blob('*'))": "'read_blob' is not admitted",
    "glob('*') = s": "not admitted",
    "parquet_scan('a') = s": "'parquet_scan' is not admitted",
    "query('SELECT 1') = x": "'query' is not admitted",
    "query_table('t') = x": "'query_table' is not admitted",
    "write_log(s) IS NULL": "'write_log' is not admitted",
    "error(s) = 'a'": "'error' is not admitted",
    "my_function(x) > 1": "'my_function' is not admitted",
    "main.lower(s) = 'a'": "a name with a dot|SQL's Dot",
    "s.lower() = 'a'": "a name with a dot|SQL's Dot",
    "eval(s)": "'eval' is not admitted",
    # parameters, names, stars
    "x > $1": "a parameter",
    "x > ?": "a parameter",
    "x > $name": "a parameter",
    "x > :name": "not admitted",
    "x > @name": "a parameter",
    "x > #1": "not admitted",
    "* > 1": "not admitted|can't be read",
    "COLUMNS('x') > 1": "'COLUMNS' is not admitted",
    "COLUMNS(*) > 1": "not admitted",
    "t.x > 1": "a name with a dot",
    "a.b.c.x > 1": "a name with a dot",
    "rowid > 1": "no column 'rowid'",
    "filename = 'a'": "no column 'filename'",
    "file_row_number > 1": "no column 'file_row_number'",
    "x > 1 AS p": "not admitted",
    "x y": "two things without an operator",
    # nested types
    "[x, y] = [1, 2]": "a list",
    "x = [1][1]": "a list",
    "{'a': x} = {'a': 1}": "a struct",
    "(x, y) = (1, 2)": "a list in brackets",
    "row(x, y) = row(1, 2)": "not admitted",
    "list_transform([x], a -> a + 1) = [1]": "a list|not admitted",
    "lambda a: a + 1": "not admitted|can't be read",
    "s -> 'a' = 'b'": "JSON path",
    "s ->> 'a' = 'b'": "JSON path",
    "json_extract(s, 'a') = 'b'": "'json_extract' is not admitted",
    "MAP {'a': 1} = x": "not admitted",
    "unnest(x) = 1": "not admitted",
    "generate_series(1, 1000000000) = x": "'generate_series' is not admitted",
    "range(1000000000) = x": "not admitted",
    # bombs
    "repeat('a', 1000000000) = s": "'repeat' is not admitted",
    "lpad(s, 1000000000, 'a') = s": "'lpad' is not admitted",
    "format('{:1000000000}', s) = s": "not admitted",
    "printf('%1000000000d', x) = s": "'printf' is not admitted",
    "(" * 100_000 + "x" + ")" * 100_000: "10,000 characters",
    "(" * 4_000 + "x" + ")" * 4_000 + " > 1": "nesting",
    "(" * 4_000 + "x": "nesting",
    "NOT " * 2_000 + "flag": "nesting",
    "- " * 2_000 + "x > 1": "nesting",
    "CASE WHEN " * 300 + "flag" + " THEN flag END" * 300: "nesting",
    "abs(" * 1_000 + "x" + ")" * 1_000 + " > 1": "nesting",
    "flag" + " = flag" * 1_000: "nesting",
    "x" + "::INT" * 1_500 + " > 1": "nesting",
    "flag" + " IS TRUE" * 1_000: "nesting|can't be read",
    "x" + " + x" * 2_000 + " > 1": "more than 200 terms",
    "x > 1" + " " * 10_000: "10,000 characters",
    "x > 1e999": "too great",
    f"x > {'9' * 400}": "too great",
    "round(x, 400) > 1": "round to anything",
    "round(x, y) > 1": "round to anything",
    "x > factorial(170)": "'factorial' is not admitted",
    "levenshtein(s, s) = 1": "'levenshtein' is not admitted",
    "x ** 2 ** 2 > 1": "not admitted",
    "x ^ 2 > 1": "not admitted",
    "x::HUGEINT << 100 > 1": "not admitted",
    # regular expressions, collations, time zones, types
    "regexp_matches(s, '(a+)+$')": "a regular expression",
    "s ~ '(a+)+$'": "a regular expression|'~' is not admitted",
    "s SIMILAR TO '(a+)+$'": "a regular expression",
    "s GLOB '*'": "'GLOB' is not admitted",
    "s LIKE s": "LIKE without a pattern",
    "s LIKE 'a!%' ESCAPE '!'": "'ESCAPE' is not admitted",
    "s COLLATE nocase = 'a'": "a collation",
    "s = 'a' COLLATE de": "a collation",
    "CAST(day AS TIMESTAMPTZ) = day": "a time zone",
    "day AT TIME ZONE 'Asia/Tokyo' = day": "not admitted",
    "day + INTERVAL 1 DAY > day": "'INTERVAL' is not admitted",
    "CAST(s AS BLOB) = s": "not admitted",
    "CAST(s AS JSON) = s": "not admitted",
    "CAST(x AS INT[]) = x": "a list",
    "CAST(x AS STRUCT(a INT)) = x": "'STRUCT' is not admitted",
    "CAST(s AS UUID) = s": "not admitted",
    "CAST(s AS mood) = s": "not admitted|can't be read",
    "CAST(x AS DECIMAL(99, 2)) > 1": "DECIMAL",
    "CAST(x AS DOUBLE(3)) > 1": "a size of the type|not admitted|can't be read",
    "date_trunc(s, day) = day": "without a unit",
    "date_part(s, day) = 1": "the part",
    "EXTRACT(timezone FROM day) = 1": "the part",
    "strftime(day, '%s') = s": "'strftime' is not admitted",
    "log(x) > 1": "different base",
    # other literals and quirks
    "s = E'\\x41'": "not admitted",
    "s = $$a$$": "not admitted",
    "s = $tag$a$tag$": "not admitted|parameter",
    "s = x'41'": "not admitted|can't be read",
    "x > 0x1F": "not admitted",
    "s = 'a": "can't be read as SQL",
    's = "a': "can't be read as SQL",
    "s = 'a' 'b'": "not admitted",
    "x >": "can't be read as SQL",
    "(x > 1": "can't be read as SQL|Expecting",
    "x > 1)": "can't be read as SQL",
    "lower() = 'a'": "lower has 0 arguments",
    "lower(s, s) = 'a'": "lower has 2 arguments",
    "lower(s := 'a') = 'a'": "not admitted",
    "\"lower\"(s) = 'a'": "a function's name in double quotes",
    "retilt_lower(s) = 'a'": "'retilt_lower' is not admitted",
    "IF x > 1 THEN flag": "not admitted|can't be read",
    "-- x > 1": "a comment",
    "x.5 > 1": "not admitted|can't be read",
    "TRY(x) > 1": "not admitted",
    "x IS DISTINCT FROM y": "'DISTINCT' is not admitted",
    "s = 'a\0b'": "not Unicode text",
    "s = '\ud800'": "not Unicode text",
    "": "got nothing",
    "   ": "got nothing",
    "1 = 1": "reads no column",
    "' OR 1=1": "can't be read as SQL",
    "true": "reads no column",
    "NULL": "reads no column",
}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:40]))
def test_hostile_expressions_are_refused_at_plan_time(text: str) -> None:
    schema = SCHEMA
    with pytest.raises(WorkloadError, match=HOSTILE[text]) as raised:
        check(parse_predicate(text, columns=COLUMNS), schema)
    message = str(raised.value)
    assert len(message) < 800
    assert "\x1b" not in message
    assert "Error:" not in message


def test_there_are_enough() -> None:
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("value", [None, 1, b"x > 1", ["x > 1"]])
def test_an_expression_is_text(value: Any) -> None:
    with pytest.raises(WorkloadError, match="expected text"):
        parse_predicate(value)


def test_a_text_that_grows_is_refused_by_its_bound() -> None:
    for text in (
        "replace(replace(replace(s, 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
        "concat(s, s, '" + "a" * 990 + "')",
        "s || '" + "a" * 999 + "'",
    ):
        with pytest.raises(WorkloadError, match="more than 1,000 characters"):
            check(parse_predicate(f"{text} = 'a'"), SCHEMA)


# --- admitted ----------------------------------------------------------------------------

TEXTS = ["a", "B", "", " ", "%", "1", "1e400", "-0", "nan", "inf", "9" * 40, "2024-02-29", "'", "ß"]
TEXTS += ["9999-12-31 23:59:59", "2023-02-29", "true", "a\nb", "😀", "infinity", "é\u0301"]
SCHEMA = Schema(
    {
        "x": Numeric(-1e308, 7e307),
        "y": Numeric(-3, 3, integer=True),
        "s": Categorical(tuple(TEXTS)),
        "flag": Boolean(),
        "day": Datetime(datetime(1, 1, 1), datetime(9999, 12, 31)),
    }
)
ANY_NUMBER = st.one_of(
    st.none(),
    st.floats(),
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.5, 1e308, 5e-324, 2.0**53, 2.0**63, -(2.0**63), math.nan]
    ),
)
ROW = st.fixed_dictionaries(
    {
        "x": ANY_NUMBER,
        "y": ANY_NUMBER,
        "s": st.one_of(st.none(), st.sampled_from(TEXTS), st.text(max_size=5)),
        "flag": st.sampled_from([None, "true", "0", "?", "1"]),
        "day": st.one_of(st.none(), st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))),
    }
)
TYPES = {
    "x": pa.float64(),
    "y": pa.float64(),
    "s": pa.string(),
    "flag": pa.string(),
    "day": pa.timestamp("us"),
}


def cells_of(rows: list[dict[str, Any]]) -> dict[str, pa.ChunkedArray]:
    return {
        name: pa.chunked_array([pa.array([row[name] for row in rows], kind)], kind)
        for name, kind in TYPES.items()
    }


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS = {
    "n": st.sampled_from(["0", "1", "-1", "2.5", "1e308", "1e-300", "NULL", "9007199254740993"]),
    "t": st.sampled_from([*map(quoted, TEXTS), "NULL"]),
    "b": st.sampled_from(["TRUE", "FALSE", "NULL"]),
    "m": st.sampled_from(["DATE '2024-02-29'", "TIMESTAMP '0001-01-01 00:00:01'", "NULL"]),
}
NAMES = {"n": ["x", "y"], "t": ["s"], "b": ["flag"], "m": ["day"]}
ONE_NUMBER = ("abs", "floor", "ceil", "trunc", "sign", "sqrt", "exp", "ln", "log10", "log2")
PARTS = ("year", "month", "week", "day", "hour", "second", "dayofweek", "isodow", "epoch")
TEMPLATES = {
    "n": [
        *[f"{{n}} {o} {{n}}" for o in ("+", "-", "*", "/", "//", "%")],
        *[f"{f}({{n}})" for f in ONE_NUMBER],
        *["pow({n}, {n})", "round({n})", "round({n}, 3)", "round({n}, -15)", "-{n}"],
        *["length({t})", "mod({n}, {n})", "nullif({n}, {n})", "greatest({n}, {n})"],
        *["coalesce({n}, {n})", "least({n}, {n})", "if({b}, {n}, {n})"],
        "CASE WHEN {b} THEN {n} ELSE {n} END",
        "CASE {t} WHEN {t} THEN {n} END",
        *[
            f"CAST({{n}} AS {t})"
            for t in ("TINYINT", "BIGINT", "HUGEINT", "FLOAT", "DECIMAL(4, 1)", "DECIMAL(38, 38)")
        ],
        *["CAST({t} AS DOUBLE)", "CAST({t} AS INTEGER)", "CAST({b} AS INTEGER)"],
        *[f"{f}({{m}})" for f in PARTS],
        *[f"date_diff('{u}', {{m}}, {{m}})" for u in ("year", "week", "day", "second")],
    ],
    "t": [
        *["lower({t})", "upper({t})", "trim({t})", "ltrim({t})", "rtrim({t})"],
        *["left({t}, {n})", "right({t}, {n})", "substr({t}, {n})", "substr({t}, {n}, {n})"],
        *["replace({t}, {t}, 'q')", "coalesce({t}, {t})", "CASE WHEN {b} THEN {t} END"],
        *["CAST({n} AS VARCHAR)", "CAST({b} AS VARCHAR)", "nullif({t}, {t})"],
        *["concat({t}, 'q')", "{t} || 'q'"],
    ],
    "b": [
        *[f"{{{k}}} {o} {{{k}}}" for k in "ntm" for o in ("=", "<>", "<", ">=")],
        *["{b} AND {b}", "{b} OR {b}", "NOT {b}", "{b} = {b}", "{b} IS NOT TRUE"],
        *["{n} IS NULL", "{t} IS NOT NULL", "{n} BETWEEN {n} AND {n}", "{n} NOT IN ({n}, {n})"],
        *["{t} LIKE '%a_'", "{t} ILIKE 'B%'", "starts_with({t}, {t})", "contains({t}, {t})"],
        *["ends_with({t}, {t})", "CAST({n} AS BOOLEAN)", "CAST({t} AS BOOLEAN)"],
        "{m} BETWEEN {m} AND {m}",
    ],
    "m": [
        *[f"date_trunc('{u}', {{m}})" for u in ("year", "quarter", "week", "day", "hour")],
        *["CAST({m} AS DATE)", "CAST(lower({t}) AS TIMESTAMP)", "CAST(trim({t}) AS DATE)"],
        *["greatest({m}, {m})", "coalesce({m}, {m})"],
    ],
}


@st.composite
def expressions(draw: st.DrawFn, kind: str, depth: int = 4) -> str:
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.one_of(st.sampled_from(NAMES[kind]), LITERALS[kind]))
    text = draw(st.sampled_from(TEMPLATES[kind]))
    for inner in "ntbm":
        while f"{{{inner}}}" in text:
            part = draw(expressions(inner, depth - 1))
            text = text.replace(f"{{{inner}}}", f"({part})", 1)
    return text


@st.composite
def admitted(draw: st.DrawFn) -> Expression:
    if draw(st.booleans()):
        return parse_predicate(f"({draw(expressions('b'))}) AND (flag OR x = x)")
    return parse_number(f"({draw(expressions('n'))}) + 0 * y")


@settings(max_examples=100)
@given(admitted(), st.lists(ROW, min_size=1, max_size=12))
def test_an_admitted_expression_never_fails_and_reads_one_row(
    expression: Expression, rows: list[dict[str, Any]]
) -> None:
    check(expression, SCHEMA)
    found = evaluate(expression, SCHEMA, cells_of(rows), len(rows))
    assert found.shape == (len(rows),)
    assert not np.isinf(found).any()
    # The same values in any order, beside any other rows.
    back = evaluate(expression, SCHEMA, cells_of(rows[::-1]), len(rows))[::-1]
    np.testing.assert_array_equal(found, back)
    alone = evaluate(expression, SCHEMA, cells_of(rows[:1]), 1)
    np.testing.assert_array_equal(found[:1], alone)
    # The canonical text means the same.
    again = parse_predicate if expression.kind == "predicate" else parse_number
    assert again(expression.text) == expression


EVERY = [(kind, template) for kind, listed in TEMPLATES.items() for template in listed]
HARD = {
    "n": "x",
    "t": "s",
    "b": "flag",
    "m": "day",
}
EXTREMES = [
    {"x": x, "y": y, "s": s, "flag": flag, "day": day}
    for x, y, s, flag, day in zip(
        [0.0, -1.0, 1e308, -1e308, math.nan, math.inf, -math.inf, None, 5e-324, 2.0**63] * 3,
        [0.0, 3.0, None] * 10,
        [*TEXTS, *TEXTS][:30],
        [None, "true", "0", "?", "1"] * 6,
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), None, datetime(1970, 1, 1)] * 7
        + [datetime(2024, 2, 29), None],
        strict=True,
    )
]


@pytest.mark.parametrize(("kind", "template"), EVERY, ids=lambda value: str(value))
def test_each_operation_is_total_row_by_row(kind: str, template: str) -> None:
    """An error in one row leaves the others what they are alone."""
    text = template
    for inner, name in HARD.items():
        text = text.replace(f"{{{inner}}}", name)
    wrapped = {
        "n": f"coalesce({text}, -5)",
        "t": f"length({text} || '!')",
        "b": f"CASE WHEN {text} THEN 1 WHEN NOT ({text}) THEN 2 ELSE 3 END",
        "m": f"epoch({text})",
    }[kind]
    expression = parse_number(f"{wrapped} + 0 * coalesce(y, 0)")
    check(expression, SCHEMA)
    together = evaluate(expression, SCHEMA, cells_of(EXTREMES), len(EXTREMES))
    alone = [evaluate(expression, SCHEMA, cells_of([row]), 1)[0] for row in EXTREMES[::2]]
    np.testing.assert_array_equal(together[::2], alone)
    if kind == "n":
        assert not np.isnan(together).any()


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=60), st.text("xys()'\"=<>+-*/%,.;:[]{}@#$?|& 1eNOTANDinull", max_size=40)
    )
)
def test_any_text_is_admitted_or_refused_with_our_error(text: str) -> None:
    try:
        found = parse_predicate(text, columns=COLUMNS)
    except WorkloadError:
        return
    assert parse_predicate(found.text) == found


# --- through plans -----------------------------------------------------------------------

SYNTHETIC = pa.table(
    {
        "x": [-1.5, 0.0, 2.5, 64.0],
        "y": [-3, 0, 1, 3],
        "s": ["a", "B", "", "%"],
        "flag": [True, False, True, False],
        "day": [datetime(2020, 1, 1), datetime(2021, 1, 1), None, datetime(1970, 1, 1)],
    }
)


class Spy:
    """A private table that notes whatever is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.read: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in ("asked", "read", "__class__"):
            self.asked.append(name)
        return object.__getattribute__(self, name)

    names = COLUMNS
    rows = 4

    def arrow_type(self, name: str) -> pa.DataType:
        self.read.append(name)
        return SYNTHETIC[name].type

    def cells(self, name: str) -> pa.ChunkedArray:
        self.read.append(name)
        return SYNTHETIC[name]

    def keeps_order(self, name: str) -> bool:
        return False

    take = frame = write = keeps_order


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, where DuckDB must not be called, and no file be made or changed."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a hostile expression reached DuckDB")

    for name in ("a", "a.csv", "a.db", "httpfs", "secret.txt"):
        (tmp_path / name).write_text("untouched")
    (tmp_path / "synthetic.csv").write_text("x,y,s,flag,day\n1.5,2,a,true,2020-01-01\n" * 2)
    (tmp_path / "private.csv").write_text("x,y,s,flag,day\n1.5,2,a,true,2020-01-01\n" * 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(admitted_module, "run", never)
    monkeypatch.setattr(cli, "app", get_command(cli.app))  # built once and not for each call
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    yield tmp_path
    made = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    for name in ("plan.json", "workload.toml"):  # the tests' own
        made.pop(name, None)
    assert made == before


def plan_of(*measures: rt.Workload) -> rt.Plan:
    asked = sum(measures[1:], measures[0])
    return rt.plan(SYNTHETIC, asked, rows=4, epsilon=1.0, schema=dict(SCHEMA.columns))


MAKERS: dict[str, Callable[[str], rt.Workload]] = {
    "share": rt.share,
    "share by": lambda text: rt.share(text, by="s"),
    "query": lambda text: rt.query(text, 0, 1),
    "means": lambda text: rt.means("y", where=text),
    "means by": lambda text: rt.means("y", by="s", where=text),
    "correlation": lambda text: rt.correlation(["y", "s"], where=text),
    "regression": lambda text: rt.regression("y", ["s"], where=text),
    "keep": lambda text: rt.means("y") + rt.keep(rt.share(text)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_hostile_expressions_make_no_plan(maker: str, sealed: Path) -> None:
    """Neither a plan nor a run in one go, which has the private table at hand."""
    for text in HOSTILE:
        spy = Spy()
        with pytest.raises(WorkloadError) as raised:
            plan_of(MAKERS[maker](text))
        assert len(str(raised.value)) < 800
        with pytest.raises(WorkloadError):
            rt.postprocess(spy, SYNTHETIC, MAKERS[maker](text), rows=4, epsilon=1.0)
        assert spy.read == []


def test_hostile_expressions_in_workload_files(
    sealed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = ('kind = "share"\npredicate = ', 'kind = "query"\nupper = 1\nexpression = ')
    entries += ('kind = "means"\ncolumns = ["y"]\nwhere = ',)
    for text in HOSTILE:
        for entry in entries:
            content = f"[[measures]]\n{entry}{json.dumps(text, ensure_ascii=False)}\n"
            (sealed / "workload.toml").write_text(content, "utf-8", "surrogatepass")
            with pytest.raises(WorkloadError):
                plan_of(rt.load_workload(sealed / "workload.toml"))
        run = ["plan", "synthetic.csv", "--workload", "workload.toml", "--rows=4", "--epsilon=1"]
        assert cli.main([*run, "-o", "plan.json"]) == 2
        assert refused(capsys)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_hostile_expressions_on_the_command_line(
    command: str,
    sealed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(pipeline, "open_table", watched(pipeline.open_table, opened))
    tables = ["private.csv"] * (command == "run") + ["synthetic.csv"]
    output = {"plan": "plan.json", "run": "post.csv"}[command]
    for text in HOSTILE:
        asked = f"--share={text}"
        assert cli.main([command, *tables, asked, "--rows=4", "--epsilon=1", "-o", output]) == 2
        assert refused(capsys)
    kinds = set(opened)
    # What names a column that the synthetic table lacks is refused a moment later.
    assert kinds <= {False, True} if command == "run" else kinds == set()
    assert opened.count(True) < 10


def watched(opening: Any, opened: list[object]) -> Any:
    def watch(source: Any, *, private: bool = False) -> Any:
        opened.append(private)
        return opening(source, private=private)

    return watch


def refused(capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether one short line says so."""
    said = capsys.readouterr().err
    return said.startswith("error: ") and said.count("\n") == 1 and len(said) < 1_000


PLACES: dict[str, Callable[[dict[str, Any], str], None]] = {
    "share": lambda plan, text: plan["measures"][0].update(predicate=text),
    "share by": lambda plan, text: plan["measures"][1].update(predicate=text),
    "query": lambda plan, text: plan["measures"][2].update(expression=text),
    "means": lambda plan, text: plan["measures"][3].update(where=text),
    "correlation": lambda plan, text: plan["measures"][4].update(where=text),
    "guard": lambda plan, text: plan["guards"]["measures"][0].update(predicate=text),
}


@pytest.fixture(scope="module")
def honest() -> dict[str, Any]:
    """A plan with an expression in every place."""
    made = plan_of(
        rt.share("x > 1"),
        rt.share("flag", by="s"),
        rt.query("y / 3"),
        rt.means("y", where="x > 2"),
        rt.correlation(["y", "s"], where="flag"),
        rt.keep(rt.share("y > 1")),
    )
    content: dict[str, Any] = json.loads(json.dumps(made.to_dict()))
    spy = Spy()
    rt.measure(spy, plan_from_dict(content))
    assert set(spy.read) == set(COLUMNS) - {"day"}  # the spy would notice
    return content


@pytest.mark.parametrize("place", PLACES)
def test_hostile_expressions_in_edited_plans(
    place: str, honest: dict[str, Any], sealed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in HOSTILE:
        content = copy.deepcopy(honest)
        PLACES[place](content, text)
        (sealed / "plan.json").write_text(json.dumps(content))
        spy = Spy()
        with pytest.raises(FormatError) as raised:
            rt.measure(spy, sealed / "plan.json")
        assert len(str(raised.value)) < 1_000
        assert spy.asked == []
        if place == "share":
            assert cli.main(["measure", "private.csv", "plan.json", "-o", "answers.json"]) == 2
            assert refused(capsys)


def test_hostile_expressions_in_published_statistics(sealed: Path) -> None:
    """The analyst's side: nothing of somebody else's file is run, either."""
    entry = {"value": 0.5, "standard_error": 0.1}
    for text in HOSTILE:
        for key in ("share", "query"):
            statistic = {key: text, **entry, **({"lower": 0, "upper": 1} if key == "query" else {})}
            content = {"format": "retilt-published/1", "source": "x", "statistics": [statistic]}
            (sealed / "plan.json").write_text(json.dumps(content))
            with pytest.raises(InputError):
                rt.fit(SYNTHETIC, sealed / "plan.json")
