"""SQL expressions: canonical text, kinds, values, the policy for cells."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from retilt.exceptions import ColumnTypeError, InputError, InternalError, WorkloadError
from retilt.measures.expressions import (
    MAX_NESTING,
    Expression,
    admitted,
    check,
    evaluate,
    parse_number,
    parse_predicate,
    running,
)
from retilt.measures.expressions.compiling import Program
from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric, Schema

ODD = 'it\'s "q", SELECT;-- ü'
SCHEMA = Schema(
    {
        "x": Numeric(-10, 100),
        "hours, weekly": Numeric(0, 99, integer=True),
        "sex": Categorical(("F", "M")),
        "city": Categorical(
            ("Bern", " Oslo ", "Ürümqi, west", "a%b_c", "it's", "42", "2024-02-29")
        ),
        "code": Categorical((0.0, 1.0, 7.5)),
        "flag": Boolean(),
        "joined": Datetime(datetime(2000, 1, 1), datetime(2030, 12, 31)),
        ODD: Numeric(0, 10),
        "select": Numeric(0, 10),
    }
)
NAN, INF = math.nan, math.inf
CELLS = {
    "x": pa.chunked_array([pa.array([0.0, -1.0, 2.5, NAN, INF, -INF, None, 1e308, 64.0])]),
    "hours, weekly": pa.chunked_array([["40", "0", "99", "x", "", None, "1e3", "-5", "38.5"]]),
    "sex": pa.chunked_array([["F", "M", "X", None, "", "f", "F", "M", "F"]]),
    "city": pa.chunked_array(
        [["Bern", " Oslo ", "Ürümqi, west", "a%b_c", "it's", "42", "2024-02-29", "Rome", None]]
    ),
    "code": pa.chunked_array([[0, 1, 7.5, 3, None, NAN, 1, 0, 7.5]]),
    "flag": pa.chunked_array([["true", "f", "1", "0", "", None, "maybe", "TRUE", "false"]]),
    "joined": pa.chunked_array(
        [
            pa.array(
                [
                    datetime(2024, 2, 29, 13, 30, 15),
                    datetime(2000, 1, 1),
                    None,
                    datetime(1900, 1, 1),
                    datetime(2200, 1, 1),
                    datetime(2010, 7, 4, 23, 59, 59, 999999),
                    datetime(2023, 1, 1),
                    datetime(2024, 12, 30),
                    datetime(2001, 3, 3, 3, 3, 3),
                ],
                pa.timestamp("us"),
            )
        ]
    ),
    ODD: pa.chunked_array([[1, 2, 3, 4, 5, 6, 7, 8, 99]]),
    "select": pa.chunked_array([[9, 8, 7, 6, 5, 4, 3, 2, 1]]),
}
N = 9
# The same table after the policy, as Python sees it.
ROWS = pd.DataFrame(
    {
        "x": [0.0, -1.0, 2.5, None, 100.0, -10.0, None, 100.0, 64.0],
        "h": [40.0, 0.0, 99.0, None, None, None, 99.0, 0.0, 38.5],
        "sex": ["F", "M", None, None, None, None, "F", "M", "F"],
        "city": [*CELLS["city"].to_pylist()[:7], None, None],
        "code": [0.0, 1.0, 7.5, None, None, None, 1.0, 0.0, 7.5],
        "flag": [True, False, True, False, None, None, None, True, False],
        "joined": [
            datetime(2024, 2, 29, 13, 30, 15),
            datetime(2000, 1, 1),
            None,
            datetime(2000, 1, 1),
            datetime(2030, 12, 31),
            datetime(2010, 7, 4, 23, 59, 59, 999999),
            datetime(2023, 1, 1),
            datetime(2024, 12, 30),
            datetime(2001, 3, 3, 3, 3, 3),
        ],
        "odd": [1.0, 2, 3, 4, 5, 6, 7, 8, 10],
        "sel": [9.0, 8, 7, 6, 5, 4, 3, 2, 1],
    },
    dtype=object,
).to_dict("records")


class Row(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        value = self[name]
        return None if value is None or value is pd.NaT or value != value else value


PYTHON = [Row(r) for r in ROWS]


def by_python(rule: Callable[[Row], Any]) -> list[Any]:
    """The rule on each row; what Python can't do (with None, by zero) is null."""
    found = []
    for row in PYTHON:
        try:
            value = rule(row)
        except (TypeError, ZeroDivisionError, ValueError, OverflowError, AttributeError):
            value = None
        found.append(value)
    return found


def run(expression: Expression, cells: Any = None) -> Any:
    check(expression, SCHEMA)
    return evaluate(expression, SCHEMA, CELLS if cells is None else cells, N)


def known(value: Any) -> Any:
    """Raise where the value is null: comparing None with == must not give False."""
    if value is None:
        raise TypeError
    return value


# --- values ------------------------------------------------------------------------------

PREDICATES: dict[str, Callable[[Row], Any]] = {
    "x >= 2.5": lambda r: r.x >= 2.5,
    "x<0": lambda r: r.x < 0,
    "x = 100": lambda r: r.x == 100,
    "x <> 100": lambda r: known(r.x) != 100,
    "x != 100": lambda r: known(r.x) != 100,
    "NOT x > 2": lambda r: not r.x > 2,
    "x IS NULL": lambda r: r.x is None,
    "x IS NOT NULL": lambda r: r.x is not None,
    "sex = 'F'": lambda r: r.sex == "F",
    "sex <> 'F'": lambda r: known(r.sex) != "F",
    "sex < 'M'": lambda r: r.sex < "M",
    "NOT sex = 'F' OR sex IS NULL": lambda r: r.sex != "F",
    "sex IN ('M', 'F')": lambda r: r.sex in ("F", "M"),
    "sex NOT IN ('M', 'X')": lambda r: known(r.sex) not in ("M", "X"),
    "x IN (0, -1, 2.5)": lambda r: r.x in (0, -1, 2.5),
    "x IN (x, 1)": lambda r: r.x is not None,
    "x BETWEEN 0 AND 64": lambda r: 0 <= r.x <= 64,
    "x NOT BETWEEN 0 AND 64": lambda r: not 0 <= r.x <= 64,
    "flag": lambda r: r.flag,
    "NOT flag": lambda r: not known(r.flag),
    "flag = true": lambda r: r.flag,
    "flag <> TRUE": lambda r: not known(r.flag),
    "flag IS TRUE": lambda r: r.flag is True,
    "flag IS NOT TRUE": lambda r: r.flag is not True,
    "flag IS FALSE": lambda r: r.flag is False,
    "x > 0 AND flag": lambda r: r.x is not None and r.x > 0 and r.flag,
    "x > 0 OR flag": lambda r: (r.x is not None and r.x > 0) or r.flag,
    "(x > 0) IS NULL": lambda r: r.x is None,
    "(x > 0) = flag": lambda r: (r.x > 0) == known(r.flag),
    "sex LIKE 'F'": lambda r: r.sex == "F",
    "city LIKE '%e%'": lambda r: "e" in r.city,
    "city LIKE 'B__n'": lambda r: r.city == "Bern",
    "city ILIKE 'ü%WEST'": lambda r: r.city == "Ürümqi, west",
    "city LIKE 'a%b_c'": lambda r: r.city == "a%b_c",
    "city LIKE '.*'": lambda r: known(r.city) == ".*",
    "city NOT LIKE '%r%'": lambda r: "r" not in r.city,
    "city NOT ILIKE '%R%'": lambda r: "r" not in r.city.lower(),
    "city = 'it''s'": lambda r: r.city == "it's",
    "starts_with(city, 'B')": lambda r: r.city.startswith("B"),
    "ends_with(city, 'west')": lambda r: r.city.endswith("west"),
    "contains(city, '%')": lambda r: "%" in r.city,
    '"hours, weekly" > 38': lambda r: r.h > 38,
    '"select" > 5': lambda r: r.sel > 5,
    '"it\'s ""q"", SELECT;-- ü" >= 5': lambda r: r.odd >= 5,
    "code = 7.5": lambda r: r.code == 7.5,
    "code >= 1": lambda r: r.code >= 1,
    "joined >= '2010-01-01'": lambda r: r.joined >= datetime(2010, 1, 1),
    "joined < DATE '2010-07-05'": lambda r: r.joined < datetime(2010, 7, 5),
    "joined = TIMESTAMP '2024-02-29 13:30:15'": lambda r: (
        r.joined == datetime(2024, 2, 29, 13, 30, 15)
    ),
    "joined BETWEEN '2000-01-01' AND '2010-07-04T23:59:59.999999'": lambda r: (
        r.joined <= datetime(2010, 7, 4, 23, 59, 59, 999999)
    ),
    "joined IN ('2023-01-01', NULL)": lambda r: r.joined == datetime(2023, 1, 1),
    "CAST(joined AS DATE) = '2024-02-29'": lambda r: (
        r.joined.date() == datetime(2024, 2, 29).date()
    ),
    "date_trunc('month', joined) = '2010-07-01'": lambda r: (
        (r.joined.year, r.joined.month) == (2010, 7)
    ),
    "CAST(city AS DATE) = joined::DATE": lambda r: (
        datetime.fromisoformat(r.city).date() == r.joined.date()
    ),
    "CAST(city AS TIMESTAMP) IS NOT NULL": lambda r: r.city == "2024-02-29",
    "CAST(x AS BOOLEAN)": lambda r: known(r.x) != 0,
    "CAST(city AS BOOLEAN)": lambda r: None,
    "CAST(flag AS VARCHAR) = 'true'": lambda r: r.flag,
    "CAST(x AS VARCHAR) = '2.5'": lambda r: r.x == 2.5,
    "CAST(\"hours, weekly\" AS TEXT) = '40'": lambda r: r.h == 40,
    "1 / x > 0.3": lambda r: 1 / r.x > 0.3,
    "sqrt(x) >= 0": lambda r: r.x >= 0,
    "coalesce(1 / x, 5) = 5": lambda r: r.x is None or r.x == 0,
    "x > 0 OR sqrt(x) IS NULL": lambda r: r.x is None or r.x != 0,
    "CASE sex WHEN 'F' THEN x > 1 WHEN 'M' THEN flag END": lambda r: (
        r.x > 1 if known(r.sex) == "F" else r.flag
    ),
    "CASE WHEN x > 0 THEN sex = 'F' ELSE flag END": lambda r: (
        known(r.sex) == "F" if r.x is not None and r.x > 0 else r.flag
    ),
    "NULL = x": lambda r: None,
    "x = 1e308": lambda r: False,
    "greatest(x, code) = 7.5": lambda r: max(v for v in (r.x, r.code) if v is not None) == 7.5,
    "concat(sex, city) = 'Bern'": lambda r: (r.sex or "") + (r.city or "") == "Bern",
    "sex || city = 'FBern'": lambda r: r.sex + r.city == "FBern",
    "nullif(sex, 'F') IS NULL": lambda r: r.sex != "M",
}

NUMBERS: dict[str, Callable[[Row], Any]] = {
    "x": lambda r: r.x,
    "-x": lambda r: -r.x,
    "+x": lambda r: r.x,
    "-(-x)": lambda r: r.x,
    "x + 1": lambda r: r.x + 1,
    "x - 1 - 2": lambda r: r.x - 1 - 2,
    "x - (1 - 2)": lambda r: r.x + 1,
    "2 * x / 4": lambda r: 2 * r.x / 4,
    "x / 0": lambda r: None,
    "0 / x": lambda r: 0 / r.x,
    "x // 2": lambda r: math.trunc(r.x / 2),
    "x // 0": lambda r: None,
    "x % 3": lambda r: math.fmod(r.x, 3),
    "mod(x, code)": lambda r: math.fmod(r.x, r.code),
    "x % 0": lambda r: None,
    "mod(x * 2, 7)": lambda r: math.fmod(r.x * 2, 7),
    "mod(x, 2 * 7)": lambda r: math.fmod(r.x, 14),
    "coalesce(CAST(NULL AS INT), x)": lambda r: r.x,
    "x * 1e308 * 1e308": lambda r: 0 if r.x == 0 else known(None),
    "x * 1e308 * 10 - x * 1e308 * 10": lambda r: 0 if r.x == 0 else known(None),
    "1 + 2 * x": lambda r: 1 + 2 * r.x,
    "(1 + 2) * x": lambda r: 3 * r.x,
    "abs(x)": lambda r: abs(r.x),
    "round(x)": lambda r: math.copysign(math.floor(abs(r.x) + 0.5), r.x),
    "round(x / 3, 2)": lambda r: round(r.x / 3, 2),
    "round(x, -1)": lambda r: round(r.x, -1) if r.x != 2.5 else 0,
    "floor(x)": lambda r: math.floor(r.x),
    "ceil(x)": lambda r: math.ceil(r.x),
    "ceiling(x / 3)": lambda r: math.ceil(r.x / 3),
    "trunc(x)": lambda r: math.trunc(r.x),
    "sign(x)": lambda r: (r.x > 0) - (r.x < 0),
    "sqrt(x)": lambda r: math.sqrt(r.x),
    "exp(x)": lambda r: math.exp(r.x),
    "exp(x * 1000)": lambda r: math.exp(r.x * 1000),
    "ln(x)": lambda r: math.log(r.x),
    "log10(x)": lambda r: math.log10(r.x),
    "log2(x)": lambda r: math.log2(r.x),
    "pow(x, 2)": lambda r: r.x**2,
    "power(x, 0.5)": lambda r: math.pow(r.x, 0.5),
    "pow(x, -1)": lambda r: r.x**-1,
    "length(city)": lambda r: len(r.city),
    "length(upper(city) || lower(city))": lambda r: 2 * len(r.city),
    "length(trim(city))": lambda r: len(r.city.strip()),
    "length(substr(city, 2))": lambda r: len(r.city) - 1,
    "length(substring(city, 2, 2))": lambda r: len(r.city[1:3]),
    "length(left(city, 3))": lambda r: len(r.city[:3]),
    "length(right(city, 3))": lambda r: len(r.city[-3:]),
    "length(left(city, x))": lambda r: len(known(r.city)[: math.trunc(r.x)]),
    "length(replace(city, 'e', ''))": lambda r: len(r.city.replace("e", "")),
    "length(CAST(joined IS NULL AS VARCHAR))": lambda r: 4 if r.joined is None else 5,
    "CAST(city AS DOUBLE)": lambda r: float(r.city),
    "city::INTEGER + 1": lambda r: int(r.city) + 1,
    "TRY_CAST(x AS TINYINT)": lambda r: round(r.x),
    "CAST(x * 1e10 AS INT)": lambda r: 0 if r.x == 0 else known(None),
    "CAST(x AS DECIMAL(3, 1))": lambda r: r.x if known(r.x) != 100 else None,
    "CAST(x * 1e30 AS FLOAT)": lambda r: float(np.float32(r.x * 1e30)),
    "CAST(x * 1e300 AS REAL)": lambda r: 0 if r.x == 0 else known(None),
    "CAST(flag AS INTEGER)": lambda r: int(r.flag),
    "CAST(sex = 'F' AS INT)": lambda r: int(known(r.sex) == "F"),
    "CASE WHEN x > 1 THEN 1 ELSE 0 END": lambda r: int(r.x is not None and r.x > 1),
    "CASE WHEN x > 1 THEN x END": lambda r: r.x if r.x > 1 else None,
    "CASE sex WHEN 'F' THEN 1 WHEN 'M' THEN 2 ELSE 3 END": lambda r: {"F": 1, "M": 2}.get(r.sex, 3),
    "if(flag, x, -x)": lambda r: r.x if r.flag else -r.x,
    "coalesce(x, code, -1)": lambda r: next((v for v in (r.x, r.code) if v is not None), -1),
    "ifnull(x, 0)": lambda r: r.x or 0,
    "nullif(x, 0)": lambda r: r.x or None,
    "least(x, 3)": lambda r: 3 if r.x is None else min(r.x, 3),
    "greatest(code, x, NULL)": lambda r: max(v for v in (r.x, r.code) if v is not None),
    "year(joined)": lambda r: r.joined.year,
    "quarter(joined)": lambda r: (r.joined.month + 2) // 3,
    "EXTRACT(month FROM joined)": lambda r: r.joined.month,
    "date_part('day', joined)": lambda r: r.joined.day,
    "hour(joined)": lambda r: r.joined.hour,
    "minute(joined)": lambda r: r.joined.minute,
    "second(joined)": lambda r: r.joined.second,
    "dayofweek(joined)": lambda r: r.joined.isoweekday() % 7,
    "isodow(joined)": lambda r: r.joined.isoweekday(),
    "dayofyear(joined)": lambda r: r.joined.timetuple().tm_yday,
    "week(joined)": lambda r: r.joined.isocalendar().week,
    "epoch(joined)": lambda r: (r.joined - datetime(1970, 1, 1)) / timedelta(seconds=1),
    "date_diff('day', '2000-01-01', joined)": lambda r: (r.joined - datetime(2000, 1, 1)).days,
    "datediff('year', joined, DATE '2030-01-01')": lambda r: 2030 - r.joined.year,
    '"hours, weekly" * "select"': lambda r: r.h * r.sel,
    "code": lambda r: r.code,
}


@pytest.mark.parametrize("text", PREDICATES)
def test_predicates_agree_with_python(text: str) -> None:
    expected = [bool(v) for v in by_python(PREDICATES[text])]
    found = run(parse_predicate(text, columns=SCHEMA.columns))
    assert found.dtype == np.bool_
    assert found.tolist() == expected


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_agree_with_python(text: str) -> None:
    expected = [math.nan if v is None else float(v) for v in by_python(NUMBERS[text])]
    found = run(parse_number(text, columns=SCHEMA.columns))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_there_are_enough_of_each() -> None:
    assert len(PREDICATES) >= 60
    assert len(NUMBERS) >= 60


@pytest.mark.parametrize("text", [*PREDICATES, *NUMBERS])
def test_canonical_text_is_its_own(text: str) -> None:
    parse = parse_predicate if text in PREDICATES else parse_number
    once = parse(text)
    assert parse(once.text) == once
    assert Expression(text, once.columns, once.kind) == once
    assert pickle.loads(pickle.dumps(once)) == once


# --- canonical text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("x>=1  and\n sex = 'F'", "x >= 1 AND sex = 'F'"),
        ("((x)) >= (1)", "x >= 1"),
        ("(x >= 1 AND flag) AND sex = 'F'", "x >= 1 AND flag AND sex = 'F'"),
        ("x >= 1 AND (flag AND sex = 'F')", "x >= 1 AND flag AND sex = 'F'"),
        ("x >= 1 AND (flag OR sex = 'F')", "x >= 1 AND (flag OR sex = 'F')"),
        ("(x - 1) - 2 > 0", "x - 1 - 2 > 0"),
        ("x - (1 - 2) > 0", "x - (1 - 2) > 0"),
        ("x != 1.0", "x <> 1"),
        ("x == 1e0", "x = 1"),
        ("not x is null", "x IS NOT NULL"),
        ("POWER(x, 2) > 1", "pow(x, 2) > 1"),
        ("extract(YEAR from joined) = 1", "year(joined) = 1"),
        ("date_part('year', joined) = 1", "year(joined) = 1"),
        ("x::int = 1", "CAST(x AS INTEGER) = 1"),
        ("try_cast(x as integer) = 1", "CAST(x AS INTEGER) = 1"),
        ("joined > date '2020-01-02'", "joined > DATE '2020-01-02'"),
        ("joined > cast('2020-01-02' as timestamp)", "joined > DATE '2020-01-02'"),
        ('"x" > 1', "x > 1"),
        ('"select" > 1', '"select" > 1'),
        ('"X" > 1', "X > 1"),
        ("mod(x, 2) = 1", "x % 2 = 1"),
        ("x - -2 > 0", "x - -2 > 0"),
        ("-(-x) > 0", "-(-x) > 0"),
        ("case when flag then x else null end > 1", "CASE WHEN flag THEN x END > 1"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert parse_predicate(text).text == canonical


def test_columns_are_in_the_order_of_first_mention() -> None:
    found = parse_predicate('"hours, weekly" > 1 AND x > 2 AND "hours, weekly" < code')
    assert found.columns == ("hours, weekly", "x", "code")


# Words that have a meaning for sqlglot in some place.
PLAIN = ["if", "at", "cast", "extract", "columns", "lower", "year", "map", "escape", "lambda"]


@pytest.mark.parametrize(
    "name", ["a b", 'a"b', "a'b", "a;--b", "ü", "select", "date", "1a", "*", *PLAIN]
)
def test_odd_names(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    found = parse_predicate(f"{quoted} > 1", columns=[name])
    assert found.columns == (name,)
    assert parse_predicate(found.text) == found
    schema = Schema({name: Numeric(0, 5)})
    assert evaluate(found, schema, {name: pa.chunked_array([[0, 2]])}, 2).tolist() == [False, True]


@pytest.mark.parametrize(
    "value", ["a\\", "\\n", "\n", "'", "''", "%", "\\'", "--", ";", "é\u0301", "\t", "$1"]
)
def test_odd_texts(value: str) -> None:
    found = parse_predicate("s = '" + value.replace("'", "''") + "'")
    assert parse_predicate(found.text) == found
    schema = Schema({"s": Categorical((value, "other"))})
    cells = {"s": pa.chunked_array([[value, "other", value + value]])}
    assert evaluate(found, schema, cells, 3).tolist() == [True, False, False]
    like = parse_predicate(found.text.replace(" = ", " LIKE "))
    assert evaluate(like, schema, cells, 3).tolist() == [True, value == "%", False]


def test_an_expression_made_by_hand_is_admitted_too() -> None:
    with pytest.raises(WorkloadError, match="random"):
        Expression("x > random()", ("x",), "predicate")
    with pytest.raises(WorkloadError, match="columns: got"):
        Expression("x > 1", (), "predicate")
    with pytest.raises(WorkloadError, match="kind: got 'text'"):
        Expression("x > 1", ("x",), "text")  # type: ignore[arg-type]


# --- kinds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = '65'", "a number and text"),
        ("sex > 1", "text and a number"),
        ("sex = flag", "text and true or false"),
        ("city IN ('Bern', 1)", "text and a number"),
        ("sex", "its value is text"),
        ("x", "its value is a number"),
        ("joined", "its value is a date or timestamp"),
        ("NOT x", "NOT has a number"),
        ("x AND flag", "AND has a number"),
        ("sex + 1 > 2", "[+] has text"),
        ("-joined > 1", "- has a date or timestamp"),
        ("joined - joined > 1", "- has a date or timestamp"),
        ("lower(x) = 'a'", "lower has a number"),
        ("sqrt(sex) > 1", "sqrt has text"),
        ("year(x) = 1", "year has a number"),
        ("year(sex) = 1", "year has text"),
        ("joined > 5", "a date or timestamp and a number"),
        ("joined > 'yesterday'", "'yesterday' is no date"),
        ("joined > '2023-02-29'", "is no date"),
        ("joined > '2023-01-01 10:00+02'", "is no date"),
        ("flag > true", "> between true and false"),
        ("x LIKE '1%'", "LIKE has a number"),
        ("CASE WHEN flag THEN 1 ELSE 'a' END = 1", "CASE joins a number and text"),
        ("CASE x WHEN 'a' THEN flag END", "CASE joins a number and text"),
        ("coalesce(x, 'a') = 1", "joins text and a number"),
        ("coalesce(x, sex) = 1", "coalesce joins a number and text"),
        ("least(x, sex) = 1", "least joins"),
        ("x || 'a' = 'b'", "[|][|] has a number"),
        ("concat(sex, x) = 'b'", "concat has a number"),
        ("CAST(joined AS VARCHAR) = 'a'", "a cast of a date to text"),
        ("CAST(joined AS INT) = 1", "a cast of a date to a number"),
        ("CAST(x AS DATE) = joined", "a cast of a number to a date"),
        ("CAST(joined AS BOOLEAN)", "a cast of a date to true or false"),
        ("x IS TRUE", "IS TRUE has a number"),
        ("a < b < c", "its value|has true|joins|between true|no column"),
    ],
)
def test_kinds_that_do_not_fit_are_refused_at_plan_time(text: str, reason: str) -> None:
    with pytest.raises(WorkloadError, match=reason):
        check(parse_predicate(text), SCHEMA)


@pytest.mark.parametrize("text", ["x > 1", "sex = 'F'", "flag"])
def test_a_condition_is_no_number(text: str) -> None:
    with pytest.raises(WorkloadError, match="CASE WHEN"):
        check(parse_number(text), SCHEMA)


def test_what_needs_no_schema_is_refused_without_one() -> None:
    for text in ("x + 1", "lower(sex)", "CAST(x AS INT)", "x = 1 AND 2"):
        with pytest.raises(WorkloadError):
            parse_predicate(text)


def test_columns_are_matched_with_their_case() -> None:
    with pytest.raises(WorkloadError, match=r"did you mean 'x'\?"):
        parse_predicate("X > 1", columns=["x"])
    with pytest.raises(WorkloadError, match="put it in double quotes"):
        parse_predicate("education-num > 1", columns=["education-num"])
    with pytest.raises(WorkloadError, match="there is no column 'y'"):
        parse_predicate("y > 1", columns=["x"])
    with pytest.raises(WorkloadError, match="there is no column 'y'"):
        check(parse_predicate("y > 1"), SCHEMA)


# --- cells -------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1] * N, [2, 3, 4], [0, 8, 1], [5, 0, 4]])
def test_chunking_changes_nothing(sizes: list[int]) -> None:
    cut = {}
    for name, cells in CELLS.items():
        starts = np.cumsum([0, *sizes])
        parts = [cells.slice(a, b - a).combine_chunks() for a, b in pairwise(starts)]
        parts = [p if isinstance(p, pa.Array) else p.combine_chunks() for p in parts]
        cut[name] = pa.chunked_array(parts, cells.type)
    for text in [*list(PREDICATES)[::3], *list(NUMBERS)[::3]]:
        expression = parse_predicate(text) if text in PREDICATES else parse_number(text)
        np.testing.assert_array_equal(run(expression), run(expression, cut))


def test_no_rows() -> None:
    empty = {n: c.slice(0, 0) for n, c in CELLS.items()}
    found = evaluate(parse_predicate("x > 1 AND sex = 'F' AND flag"), SCHEMA, empty, 0)
    assert (found.shape, found.dtype) == ((0,), np.bool_)
    assert evaluate(parse_number("x + code"), SCHEMA, empty, 0).dtype == np.float64


@pytest.mark.parametrize("kind", ["text", "dictionary", "integer", "decimal"])
def test_a_column_gives_the_same_in_any_type(kind: str) -> None:
    schema = Schema({"x": Numeric(0, 50)})
    plain = pa.array([1, 7, None, 99])
    cells = {
        "text": plain.cast(pa.string()),
        "dictionary": plain.cast(pa.string()).dictionary_encode(),
        "integer": plain.cast(pa.int16()),
        "decimal": plain.cast(pa.decimal128(25, 2)),
    }[kind]
    found = evaluate(parse_number("x * 2"), schema, {"x": pa.chunked_array([cells])}, 4)
    np.testing.assert_array_equal(found, [2, 14, np.nan, 100])


def test_rows_stay_in_order() -> None:
    rows = 500_000
    values = np.random.default_rng(5).permutation(rows).astype(np.float64)
    cells = {"x": pa.chunked_array([values[:7], values[7:250_001], values[250_001:]])}
    schema = Schema({"x": Numeric(0, rows)})
    found = evaluate(parse_number("x + sqrt(x - 250000) * 0"), schema, cells, rows)
    np.testing.assert_array_equal(found, np.where(values >= 250_000, values, np.nan))
    even = evaluate(parse_predicate("x % 2 = 0"), schema, cells, rows)
    np.testing.assert_array_equal(even, values % 2 == 0)


def test_threads() -> None:
    expression = parse_number("x * 2 + code")
    expected = run(expression)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(run(expression))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for each in found:
        np.testing.assert_array_equal(each, expected)


def test_cells_that_do_not_fit_are_refused_without_their_values() -> None:
    expression = parse_predicate("x > 1")
    with pytest.raises(InputError, match="lacks column 'x'"):
        evaluate(expression, SCHEMA, {}, N)
    with pytest.raises(InputError, match="has not as many cells") as raised:
        evaluate(expression, SCHEMA, CELLS, 8)
    assert "8" not in str(raised.value)
    wrong = {"x": pa.chunked_array([pa.array([[1.0]] * N)])}
    with pytest.raises(ColumnTypeError, match="list"):
        evaluate(expression, SCHEMA, wrong, N)


def test_the_databases_own_error_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("Could not convert string 's3cret' to DOUBLE")

    monkeypatch.setattr(admitted, "run", fail)
    with pytest.raises(InternalError, match="withheld") as raised:
        evaluate(parse_predicate("x > 1"), SCHEMA, CELLS, N)
    error: BaseException | None = raised.value
    assert "s3cret" not in repr(error)
    assert error is not None
    assert error.__context__ is None
    assert error.__cause__ is None


def test_a_database_that_failed_is_replaced() -> None:
    before = running._database()
    broken = Program(("x",), ("nosuchcolumn AS v",), "number")
    with pytest.raises(Exception, match="nosuchcolumn"):
        running.run(broken, pa.table({"c0": [1.0]}))
    assert running._database() is not before
    assert run(parse_predicate("x > 2")).tolist() == [bool(v) for v in by_python(lambda r: r.x > 2)]


@pytest.mark.parametrize(
    "statement",
    [
        "SET threads = 2",
        "SET enable_external_access = true",
        "SELECT * FROM read_csv('/etc/hostname')",
        "COPY (SELECT 1) TO '/tmp/retilt-should-not-exist.csv'",
        "ATTACH '/tmp/retilt-should-not-exist.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_the_database_itself_is_shut(statement: str) -> None:
    import duckdb

    with pytest.raises(duckdb.Error):
        running._database().execute(statement)


def test_long_lists_and_sums() -> None:
    cities = ", ".join(f"'c{i}'" for i in range(900))
    assert run(parse_predicate(f"city IN ({cities}, 'Bern')")).tolist() == [True] + [False] * 8
    many = " OR ".join(f"x = {i}" for i in range(500))
    assert run(parse_predicate(many)).tolist() == [
        bool(v) for v in by_python(lambda r: r.x in range(500))
    ]
    total = " + ".join(["x"] * 200)
    np.testing.assert_allclose(run(parse_number(total))[:3], [0, -200, 500])


def test_the_deepest_that_is_admitted_can_be_evaluated() -> None:
    text = "x"
    for _ in range(MAX_NESTING):
        text = f"abs({text} * 2 - 1)"
    assert np.isfinite(run(parse_number(text))[0])
    with pytest.raises(WorkloadError, match="nesting"):
        parse_number(f"abs({text})")


def test_a_failing_branch_that_is_not_taken_does_no_harm() -> None:
    found = run(parse_number("CASE WHEN x > 0 THEN ln(x) ELSE CAST(city AS INT) / 0 END"))
    expected = [math.nan if v is None else v for v in by_python(lambda r: math.log(r.x))]
    np.testing.assert_allclose(found, expected)
