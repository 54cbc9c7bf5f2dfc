"""Neighbouring private tables may differ in the noisy values and in nothing else.

For any content of the private rows: the same lines of our source run in the same order, the
same is logged and printed, nothing is warned of, the exit code is the same, and the answers
are equal outside ``values``. Under add/remove neighbours this includes the number of rows.
"""

from __future__ import annotations

import csv
import itertools
import json
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loading import load

import retilt as rt
from retilt import cli, pipeline
from retilt.privacy.answers import make_answers

SCHEMA = {
    "age": rt.Numeric(17, 90, integer=True),
    "pay": rt.Numeric(-100.0, 1.0),
    "sex": rt.Categorical(("F", "M")),
    "town": rt.Categorical(("a", "b", "c, d"), nullable=True),
    "code": rt.Categorical((1, 2, 3)),
    "flag": rt.Boolean(nullable=True),
}
ORDINARY = {"age": "40", "pay": "-3.5", "sex": "F", "town": "b", "code": "2", "flag": "true"}
HOSTILE = {
    "nan": dict.fromkeys(SCHEMA, "NaN"),
    "infinity": dict.fromkeys(SCHEMA, "inf"),
    "minus infinity": dict.fromkeys(SCHEMA, "-Infinity"),
    "huge": dict.fromkeys(SCHEMA, "1e308"),
    "beyond huge": dict.fromkeys(SCHEMA, "1e400"),
    "many digits": dict.fromkeys(SCHEMA, "9" * 500),
    "minus zero": dict.fromkeys(SCHEMA, "-0.0"),
    "null": dict.fromkeys(SCHEMA, ""),
    "unknown": dict.fromkeys(SCHEMA, "never seen"),
    "quotes and newlines": dict.fromkeys(SCHEMA, 'say ""hi"", \r\n"then"\n; drop table; \x00'),
    "not ascii": dict.fromkeys(SCHEMA, "\u202eÿ\U0001f600"),
    "long": dict.fromkeys(SCHEMA, "x" * 200_000),
    "out of range": {**ORDINARY, "age": "-5", "pay": "77", "code": "9"},
}


observing = load(Path(__file__).with_name("observing.py"))
Observed = tuple[str, list[str], list[str], list[tuple[str, int]]]


def observe(private: Any, plan: rt.Plan) -> Observed:
    seen = observing.watch(lambda: rt.measure(private, plan))
    return public_part(seen.result), [*seen.logged, seen.printed], seen.warned, seen.lines


def assert_alike(seen: list[Observed]) -> None:
    """All but the first, which may load modules, look the same."""
    one, *others = seen[1:]
    assert others
    assert one[2] == []
    for other in others:
        assert observing.first_difference(one[3], other[3]) is None
        assert one == other


def workload() -> rt.Workload:
    return (
        rt.moments(["age", "pay", "sex", "flag"])
        + rt.marginal(["town", "code"])
        + rt.marginal(["age", "sex"], bins=4)
    )


def synthetic() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 200
    return pd.DataFrame(
        {
            "age": rng.integers(17, 91, n),
            "pay": rng.uniform(-100, 1, n),
            "sex": rng.choice(["F", "M"], n),
            "town": rng.choice(["a", "b", "c, d"], n),
            "code": rng.integers(1, 4, n),
            "flag": rng.random(n) < 0.5,
        }
    )


def make_plan(rows: int, **options: Any) -> rt.Plan:
    options.setdefault("epsilon", 1.0)
    return rt.plan(synthetic(), workload(), rows=rows, schema=SCHEMA, **options)


def public_part(answers: rt.Answers) -> str:
    if any(m.kind == "function" for m in answers.plan.measures):
        return repr((answers.plan, answers.factors, answers.noise_scales))  # code can't be written
    return json.dumps({k: v for k, v in answers.to_dict().items() if k != "values"})


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(SCHEMA))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("basis", ["centred", "paper"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_csv_row_replaced_through_the_command_line(tmp_path: Path, name: str, basis: str) -> None:
    plan = tmp_path / "plan.json"
    make_plan(3, basis=basis).save(plan)
    seen = []
    for label, row in (("warm", ORDINARY), ("one", ORDINARY), ("two", HOSTILE[name])):
        folder = tmp_path / label
        folder.mkdir()
        table = write_csv(folder / "real.csv", [ORDINARY, row, ORDINARY])
        out = folder / "answers.json"
        seen.append(through_the_command_line(table, plan, out, folder))
    assert_alike(seen)


def through_the_command_line(table: Path, plan: Path, out: Path, folder: Path) -> Observed:
    """Exit code 0, what is printed but for the folder's name, and the file but for the values."""
    call = ["--quiet", "measure", str(table), str(plan), "-o", str(out), "--force"]
    seen = observing.watch(lambda: cli.main(call))
    assert seen.result == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    del content["values"]
    said = [*seen.logged, seen.printed.replace(str(folder), "")]
    return json.dumps(content), said, seen.warned, seen.lines


class Rude:
    """An object whose text can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


SIGNALLING_NAN = np.array([0x7FF0000000000001], dtype=np.uint64).view(np.float64)[0]
CELLS: dict[str, Any] = {
    "none": None,
    "nan": float("nan"),
    "missing": pd.NA,
    "not a time": pd.NaT,
    "infinity": float("inf"),
    "huge integer": 10**400,
    "huge float": 1e308,
    "bytes": b"\xff\x00",
    "list": [1, 2],
    "dict": {"a": 1},
    "decimal": Decimal("NaN"),
    "signalling decimal": Decimal("sNaN"),
    "signalling float": SIGNALLING_NAN,
    "number in text": 3,
    "truth": True,
    "timestamp": pd.Timestamp("2020-01-01"),
    "surrogate": "\ud800",
    "text": 'quote " and\nnewline',
    "array": np.array([1.0, 2.0]),
    "rude": Rude(),
}


@pytest.mark.parametrize("name", CELLS)
def test_an_object_cell_replaced_in_a_pandas_frame(name: str) -> None:
    plan = make_plan(3)
    seen = []
    for cell in (None, "ordinary", CELLS[name]):
        rows = [ORDINARY, ORDINARY, ORDINARY]
        frame = pd.DataFrame(rows).astype(object)
        if not (isinstance(cell, str) and cell == "ordinary") and cell is not None:
            for column in SCHEMA:
                frame[column] = pd.Series([ORDINARY[column], cell, ORDINARY[column]], dtype=object)
        seen.append(observe(frame, plan))
    assert_alike(seen)


SPECIAL = [np.nan, np.inf, -np.inf, 1e308, -1e308, -0.0, 5e-324, 1e20, SIGNALLING_NAN]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "parquet", "ArrowDtype"])
@pytest.mark.parametrize("value", SPECIAL)
def test_a_float_cell_replaced_in_a_typed_frame(library: str, value: float, tmp_path: Path) -> None:
    plan = make_plan(3)
    seen = []
    for number, cell in enumerate((1.0, 1.0, value)):
        columns: dict[str, Any] = {
            "age": np.array([40.0, cell, 41.0]),
            "pay": np.array([0.5, cell, -3.0]),
            "sex": ["F", "M", "F"],
            "town": ["a", "b", "b"],
            "code": np.array([1.0, cell, 2.0]),
            "flag": [True, False, True],
        }
        if library == "pandas":
            frame: Any = pd.DataFrame(columns)
        elif library == "polars":
            frame = pl.DataFrame(columns)
        else:
            frame = pa.table(columns)
        if library == "ArrowDtype":
            frame = frame.to_pandas(types_mapper=pd.ArrowDtype)
        if library == "parquet":
            path = tmp_path / f"{number}.parquet"
            pq.write_table(frame, path)
            frame = path
        seen.append(observe(frame, plan))
    assert_alike(seen)


@pytest.mark.parametrize(
    ("library", "delta"),
    [("pandas", 0), ("polars", 1e-9), ("pyarrow", 0), ("pyarrow", 1e-9), ("csv", 1e-9)],
)
def test_a_million_rows_against_one_and_none_under_add_remove(
    library: str, delta: float, tmp_path: Path
) -> None:
    plan = make_plan(1000, unit="add-remove", delta=delta)
    seen = []
    for rows in (1, 0, 1, 1_000_000):
        columns: dict[str, Any] = {
            "age": np.full(rows, 40),
            "pay": np.full(rows, -2.0),
            "sex": np.full(rows, "F"),
            "town": np.full(rows, "b"),
            "code": np.full(rows, 2),
            "flag": np.full(rows, True),
        }
        if library == "pandas":
            frame: Any = pd.DataFrame(columns)
        elif library == "polars":
            frame = pl.DataFrame(columns, schema_overrides={"sex": pl.String, "town": pl.String})
        elif library == "pyarrow":
            frame = pa.table(columns)
        else:
            frame = tmp_path / f"{len(seen)}.csv"
            pd.DataFrame(columns).to_csv(frame, index=False)
        seen.append(observe(frame, plan))
    assert_alike(seen)


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    "budget", [{"epsilon": 1.0, "delta": 0}, {"epsilon": 1.0, "delta": 1e-9}, {"rho": 0.1}]
)
def test_a_choice_shows_nothing_beside_itself(
    unit: str, budget: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the choice scripted, for its noise is not: all else must be the same."""
    places = itertools.cycle([2, 0])
    monkeypatch.setattr(pipeline, "noisy_max", lambda *_, **__: next(places))
    tables = workload() + rt.marginals(["town", "sex", "flag"], k=2)
    plan = rt.plan(synthetic(), tables, rows=3, schema=SCHEMA, unit=unit, select=2, **budget)
    seen = []
    others = (HOSTILE[name] for name in ("nan", "beyond huge", "null", "unknown", "out of range"))
    for row in (ORDINARY, ORDINARY, *others):
        columns = {n: [ORDINARY[n], row[n], ORDINARY[n]] for n in SCHEMA}
        seen.append(observe(pa.table(columns), plan))
    if unit == "add-remove":
        seen.append(observe(pa.table({n: pa.array([], pa.string()) for n in SCHEMA}), plan))
    assert_alike(seen)


# --- text whose bytes nobody checked ---------------------------------------------------------

BYTES = [
    b"\xff",
    b"\xc3(",
    b"\xed\xa0\x80",
    b" \xff ",
    b"2020-01-01 \xff",
    b"40\xff",
    b"true\xff",
    b"x" * 2**20 + b"\xff",
]
TEXT_TYPES = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view()}


def unchecked(cells: list[bytes], kind: pa.DataType) -> pa.Array:
    """Bytes said to be text, as a foreign writer may leave them."""
    return pa.array(cells, pa.binary()).view(pa.string()).cast(kind)


def with_bytes(ordinary: dict[str, str], cell: bytes, holder: str, kind: str, path: Path) -> Any:
    """Three rows of ordinary text, the second of other bytes if there are any, in a holder."""
    columns = {}
    for name, text in ordinary.items():
        other = text.encode()
        columns[name] = unchecked([other, cell or other, other], TEXT_TYPES[kind])
        if holder == "dictionary":
            places = pa.array([0, 1, 2], pa.int8())
            columns[name] = pa.DictionaryArray.from_arrays(places, columns[name])
    frame = pa.table(columns)
    if holder == "ArrowDtype":
        return frame.to_pandas(types_mapper=pd.ArrowDtype)
    if holder == "parquet":
        pq.write_table(frame, path)
        return path
    return frame


@pytest.mark.parametrize("kind", TEXT_TYPES)
@pytest.mark.parametrize("holder", ["pyarrow", "dictionary", "ArrowDtype", "parquet", "arrow"])
def test_a_cell_that_is_not_utf8(holder: str, kind: str, tmp_path: Path) -> None:
    plan = make_plan(3)
    seen = []
    for number, cell in enumerate((b"", b"", *BYTES)):
        frame = with_bytes(ORDINARY, cell, holder, kind, tmp_path / f"{number}.parquet")
        if holder == "arrow":
            path = tmp_path / f"{number}.arrow"
            with pa.ipc.new_file(path, frame.schema) as sink:
                sink.write_table(frame)
            frame = path
        seen.append(observe(frame, plan))
    assert_alike(seen)
    again = pa.table({n: [v] * 3 for n, v in ORDINARY.items()})
    assert rt.measure(again, plan).values  # nothing was left broken


# --- dictionaries ----------------------------------------------------------------------------

LISTED: dict[str, tuple[list[str | None], list[int | None]]] = {
    "ordinary": (["F", "b"], [0, 1, 0]),
    "null": (["F", "b"], [0, None, 0]),
    "listed null": (["F", None], [0, 1, 0]),
    "other order": (["b", "F"], [1, 0, 1]),
    "unused": (["F", "b", "never"], [0, 1, 0]),
    "twice": (["F", "F", "b"], [0, 2, 1]),
    "empty text": (["F", ""], [0, 1, 0]),
    "long": (["F", "x" * 2**20], [0, 1, 0]),
    "all null": ([], [None, None, None]),
}


@pytest.mark.parametrize("kind", TEXT_TYPES)
@pytest.mark.parametrize("holder", ["pyarrow", "chunks", "ArrowDtype", "category", "parquet"])
def test_a_dictionary_cell_replaced(holder: str, kind: str, tmp_path: Path) -> None:
    if (holder, kind) == ("parquet", "view"):
        pytest.skip("PyArrow can't write it")
    plan = make_plan(3)
    seen = []
    for number, name in enumerate(["ordinary", *LISTED]):
        if holder == "category" and name in ("listed null", "twice", "all null"):
            continue  # pandas refuses them, and has no type for no categories
        if holder == "parquet" and name == "listed null":
            continue  # can't be written
        values, codes = LISTED[name]
        listed = pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.int8()), pa.array(values, TEXT_TYPES[kind])
        )
        frame: Any = pa.table(dict.fromkeys(SCHEMA, listed))
        if holder == "chunks":
            halves = pa.chunked_array([listed.slice(0, 1), listed.slice(1)])
            frame = pa.table(dict.fromkeys(SCHEMA, halves))
        elif holder == "ArrowDtype":
            frame = frame.to_pandas(types_mapper=pd.ArrowDtype)
        elif holder == "category":
            cells = pd.Categorical.from_codes(
                [-1 if c is None else c for c in codes], pd.Index(values, dtype="str")
            )
            frame = pd.DataFrame(dict.fromkeys(SCHEMA, cells))
        elif holder == "parquet":
            path = tmp_path / f"{number}.parquet"
            pq.write_table(frame, path)
            frame = path
        seen.append(observe(frame, plan))
    assert_alike(seen)


# --- folders of Parquet ----------------------------------------------------------------------

FOLDERS = [
    ["01", "02", "01"],
    ["01", "02", "01"],
    ["01", "AA", "01"],
    ["01", "01", "01"],
    ["01", "%ff", "01"],
    ["01", "%", "01"],
    ["01", "__HIVE_DEFAULT_PARTITION__", "01"],
    ["01", "2020-01-01", "01"],
    ["01", "", "01"],
    ["01", "1e400", "01"],
]


@pytest.mark.parametrize(
    "column",
    [
        rt.Numeric(0, 99),
        rt.Categorical(("01", "02")),
        rt.Categorical((1, 2)),
        rt.Boolean(),
        rt.Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1)),
    ],
    ids=lambda c: type(c).__name__,
)
def test_a_row_in_another_folder(column: Any, tmp_path: Path) -> None:
    stand_in = pd.DataFrame({"zip": ["01", "02", "2020-01-01"] * 20, "x": np.arange(60.0)})
    schema = {"zip": column, "x": rt.Numeric(0, 60)}
    asked = rt.moments(["zip", "x"]) + rt.marginal(["zip"])
    plan = rt.plan(stand_in, asked, rows=3, epsilon=1.0, schema=schema)
    seen = []
    for number, values in enumerate(FOLDERS):
        folder = tmp_path / str(number)
        for value in set(values):
            rows = [float(i) for i, v in enumerate(values) if v == value]
            (folder / f"zip={value}").mkdir(parents=True)
            pq.write_table(pa.table({"x": rows}), folder / f"zip={value}" / "part.parquet")
        seen.append(observe(folder, plan))
    assert_alike(seen)


def test_a_file_of_nulls_among_others(tmp_path: Path) -> None:
    """Written by itself, a column of nulls has no type, and one with a null may be wider."""
    plan = make_plan(3)
    part = {"age": [40], "pay": [0.5], "sex": ["F"], "town": ["b"], "code": [2], "flag": [True]}
    seen = []
    other: dict[str, list[Any]]
    for number, other in enumerate((part, part, {n: [None] for n in SCHEMA})):
        for place in ("ab", "ba"):
            folder = tmp_path / f"{number}{place}"
            folder.mkdir()
            pq.write_table(pa.table(part).take(pa.array([0, 0])), folder / f"{place[0]}.parquet")
            pq.write_table(pa.table(other), folder / f"{place[1]}.parquet")
            seen.append(observe(folder, plan)[:3])
    assert all(s == seen[0] for s in seen)


# --- bounds that no float tells apart, and tables without rows -------------------------------


@pytest.mark.parametrize("basis", ["centred", "paper"])
def test_moments_finer_than_a_float(basis: Any) -> None:
    start = datetime(9000, 1, 1)
    schema = {
        "when": rt.Datetime(start, start.replace(microsecond=1)),
        "wide": rt.Numeric(2**60, 2**60 + 1),
        "x": rt.Numeric(0, 1),
    }
    stand_in = pa.table({"when": [start] * 60, "wide": [2**60] * 60, "x": np.linspace(0, 1, 60)})
    asked = rt.moments(["when", "wide", "x"]) + rt.marginal(["when"]) + rt.marginal(["wide"])
    plan = rt.plan(stand_in, asked, rows=2, epsilon=1.0, schema=schema, basis=basis)
    cells = [
        (None, None),
        (None, None),
        (start, 2**60),
        (start.replace(microsecond=1), 2**60 + 1),
        (datetime(1, 1, 1), -(2**62)),
        (datetime(9999, 12, 31), 2**62),
    ]
    seen = []
    for when, wide in cells:
        columns = {
            "when": pa.array([when, start], pa.timestamp("us")),
            "wide": pa.array([wide, 1], pa.int64()),
            "x": [0.5, 0.5],
        }
        seen.append(observe(pa.table(columns), plan))
    assert_alike(seen)


@pytest.mark.parametrize(
    "holder", ["pandas", "category", "ArrowDtype", "dictionary", "parquet", "no chunks"]
)
def test_one_row_against_none(holder: str, tmp_path: Path) -> None:
    plan = make_plan(1000, unit="add-remove", delta=1e-9)
    one = pa.table({n: pa.array([v]) for n, v in ORDINARY.items()})
    if holder == "dictionary":
        one = pa.table({n: c.dictionary_encode() for n, c in zip(SCHEMA, one.columns, strict=True)})
    seen = []
    for number, rows in enumerate((1, 1, 0)):
        frame: Any = one.slice(0, rows)
        if holder == "no chunks":
            frame = one if rows else one.schema.empty_table()
        elif holder == "parquet":
            path = tmp_path / f"{number}.parquet"
            pq.write_table(frame, path)
            frame = path
        elif holder == "ArrowDtype":
            frame = frame.to_pandas(types_mapper=pd.ArrowDtype)
        elif holder != "dictionary":
            frame = pd.DataFrame(ORDINARY, index=range(rows))
            listed = pd.CategoricalDtype(pd.Index(sorted(set(ORDINARY.values())), dtype="str"))
            frame = frame.astype(listed if holder == "category" else "str")
        seen.append(observe(frame, plan))
    assert_alike(seen)


# --- errors ----------------------------------------------------------------------------------


def reachable(error: BaseException | None) -> list[BaseException]:
    """The error and whatever hangs on it."""
    if error is None:
        return []
    return [error, *reachable(error.__cause__), *reachable(error.__context__)]


def test_no_private_value_in_any_error(tmp_path: Path) -> None:
    secret = "s3cr3t"
    plan = make_plan(3)
    plan.save(tmp_path / "plan.json")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1" + secret.encode() * 10)
    typed = pa.table({n: pa.array([[secret]] * 3) for n in SCHEMA})
    casts = ", ".join(f"CAST(s AS INTEGER) AS {n}" for n in SCHEMA)
    query = f"SELECT {casts} FROM (VALUES ('{secret}'), ('1'), ('2')) AS t(s)"
    with duckdb.connect(str(tmp_path / "a.db")) as connection:
        connection.execute(f"CREATE VIEW v AS {query}")
    view = f"duckdb:///{tmp_path}/a.db?table=v"
    lazy = pl.LazyFrame({n: [secret, "1", "2"] for n in SCHEMA}).cast(pl.Int64)
    sources = [bad, typed, pa.table({"age": [secret] * 3}), view, duckdb.sql(query), lazy]
    for table in sources:
        with pytest.raises(rt.RetiltError) as caught:
            rt.measure(table, plan)
        assert secret not in str(caught.value)
        assert reachable(caught.value) == [caught.value]


# --- every kind of measure -------------------------------------------------------------------

WIDE: dict[str, Any] = {
    **SCHEMA,
    "day": rt.Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1), nullable=True),
}
WIDE_ORDINARY = {**ORDINARY, "day": "2020-07-01"}
EARLY, LATE = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
WIDE_HOSTILE = {
    **{name: {**row, "day": row["age"]} for name, row in HOSTILE.items()},
    "far dates": {**WIDE_ORDINARY, "day": "0001-01-01"},
    "late dates": {**WIDE_ORDINARY, "day": "9999-12-31T23:59:59.999999"},
    "dates that are none": {**WIDE_ORDINARY, "day": "2023-02-29"},
    "in the condition": {**WIDE_ORDINARY, "age": "65", "pay": "0", "town": "a"},
    "division by zero": {**WIDE_ORDINARY, "age": "40", "pay": "0", "code": "3"},
}
UNITS = ["replace-one", rt.AddRemoveOnePerson("who", 2), rt.ReplaceOnePerson("who", 1)]


def pay_of(batch: pa.RecordBatch) -> Any:
    return np.log(batch["pay"].to_numpy(zero_copy_only=False))


def every_measure() -> rt.Workload:
    return (
        rt.share("age >= 65 AND sex = 'F' OR town LIKE 'c%'")
        + rt.share("pay > 0", by=["town", "flag"])
        + rt.share("day < DATE '2020-06-01'", by="age", bins={"age": 3})
        + rt.query("100 / (age - 40) + sqrt(pay) + ln(pay) + pow(age, 200)", -3, 500)
        + rt.query("CASE WHEN flag THEN length(sex) ELSE CAST(town AS DOUBLE) END", 0, 9)
        + rt.query("date_diff('day', day, DATE '2020-01-01') / code", -400, 400)
        + rt.means(["pay", "code"], by=["sex", "day"], bins={"day": [1.59e15]})
        + rt.means("age", where="code <> 2 AND NOT flag")
        + rt.correlation(["age", "pay"], by="town")
        + rt.regression("pay", ["age", "sex"], where="day IS NOT NULL")
        + rt.cdf("age", [20, 40, 65])
        + rt.cdf("day", ["2020-03-01", "2020-09-01"])
        + rt.quantiles("pay", bins=7)
        + rt.quantiles("age", [0.5])
        + rt.keep(rt.marginals(["sex", "town"]))
    )


def wide_synthetic() -> pd.DataFrame:
    days = np.datetime64("2020-01-01") + np.random.default_rng(1).integers(0, 366, 200)
    return synthetic().assign(day=days.astype("datetime64[us]"))


@cache
def wide_plan(unit: int, delta: float, *, code: bool = False) -> rt.Plan:
    asked = every_measure()
    if code:
        asked += rt.function(pay_of, ["pay"], lower=-1, upper=5)
    return rt.plan(
        wide_synthetic(), asked, rows=3, epsilon=1.0, delta=delta, unit=UNITS[unit], schema=WIDE
    )


WHO = ["p", "q", "p"]


@pytest.mark.parametrize("unit", range(len(UNITS)))
def test_every_measure_of_a_csv_row_replaced(
    tmp_path: Path, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the owner of the row: nobody, somebody, somebody else."""
    monkeypatch.setattr(pipeline, "make_answers", released_alike)
    plan = tmp_path / "plan.json"
    wide_plan(unit, 1e-9).save(plan)
    names = [*WIDE_HOSTILE]
    rows = [(WIDE_ORDINARY, "q")] * 2
    # One hostile row after another, and each with an owner as odd.
    for number, name in enumerate(names[unit :: len(UNITS)]):
        rows.append((WIDE_HOSTILE[name], ("q", "", "p", row_text(name))[number % 4]))
    seen = []
    for row, owner in rows:
        listed = [WIDE_ORDINARY, row, WIDE_ORDINARY]
        owned = [{**r, "who": w} for r, w in zip(listed, ("p", owner, "p"), strict=True)]
        table = tmp_path / "real.csv"
        write_rows(table, owned)
        out = tmp_path / "answers.json"
        seen.append(through_the_command_line(table, plan, out, tmp_path))
    assert_alike(seen)


def released_alike(plan: rt.Plan, values: list[int], **options: Any) -> rt.Answers:
    """Answers of the same values: what is made of noisy ones depends on the noise."""
    return make_answers(plan, [plan.rows * s // 2 for s in plan.noise.steps], **options)


def row_text(name: str) -> str:
    """A person's name as odd as the row's cells."""
    return WIDE_HOSTILE[name]["town"]


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("name", CELLS)
def test_every_measure_of_an_object_cell_replaced(name: str) -> None:
    plan = wide_plan(1, 0, code=True)
    seen = []
    for cell in (None, "ordinary", CELLS[name]):
        frame = pd.DataFrame([WIDE_ORDINARY] * 3).assign(who=WHO).astype(object)
        if not (isinstance(cell, str) and cell == "ordinary") and cell is not None:
            for column in WIDE:
                kept = WIDE_ORDINARY[column]
                frame[column] = pd.Series([kept, cell, kept], dtype=object)
        seen.append(observe(frame, plan))
    assert_alike(seen)


def typed_columns(value: float, day: Any, text: str | None) -> dict[str, Any]:
    return {
        "age": np.array([40.0, value, 41.0]),
        "pay": np.array([0.5, value, -3.0]),
        "sex": ["F", text, "F"],
        "town": ["a", text, "b"],
        "code": np.array([1.0, value, 2.0]),
        "flag": [True, None if text is None else False, True],
        "day": pa.array([datetime(2020, 2, 1), day, datetime(2020, 7, 1)], pa.timestamp("us")),
        "who": ["p", text, "q"],
    }


NASTY = [
    (np.nan, None, None),
    (np.inf, EARLY, ""),
    (-np.inf, LATE, "never seen"),
    (1e308, EARLY, 'say "hi"\r\n\x00'),
    (-1e308, LATE, "x" * 100_000),
    (-0.0, datetime(1969, 12, 31), "'"),
    (65.0, datetime(2020, 5, 31), "F"),
    (40.0, None, "c, d"),
    (SIGNALLING_NAN, EARLY, "\U0001f600"),
]


@pytest.mark.parametrize("unit", [0, 1])
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "csv", "parquet", "ArrowDtype"])
def test_every_measure_of_a_row_replaced(library: str, unit: int, tmp_path: Path) -> None:
    plan = wide_plan(unit, 1e-9, code=True)
    seen = []
    ordinary = (41.0, datetime(2020, 5, 1), "F")
    for number, cells in enumerate((ordinary, ordinary, *NASTY)):
        frame: Any = pa.table(typed_columns(*cells))
        if library == "pandas":
            frame = frame.to_pandas().astype({"flag": "boolean"})
        elif library == "polars":
            frame = pl.from_arrow(frame)
        elif library == "ArrowDtype":
            frame = frame.to_pandas(types_mapper=pd.ArrowDtype)
        elif library == "csv":
            path = tmp_path / f"{number}.csv"
            frame.to_pandas().to_csv(path, index=False)
            frame = path
        elif library == "parquet":
            path = tmp_path / f"{number}.parquet"
            pq.write_table(frame, path)
            frame = path
        seen.append(observe(frame, plan))
    assert_alike(seen)


@pytest.mark.parametrize(
    ("holder", "kind"),
    [("pyarrow", "view"), ("dictionary", "string"), ("ArrowDtype", "large"), ("parquet", "string")],
)
def test_every_measure_of_a_cell_that_is_not_utf8(holder: str, kind: str, tmp_path: Path) -> None:
    plan = wide_plan(1, 1e-9, code=True)
    seen = []
    for number, cell in enumerate((b"", b"", *BYTES)):
        ordinary = {**WIDE_ORDINARY, "who": "p"}
        frame = with_bytes(ordinary, cell, holder, kind, tmp_path / f"{number}.parquet")
        seen.append(observe(frame, plan))
    assert_alike(seen)


@pytest.mark.parametrize("delta", [0, 1e-9])
def test_every_measure_of_many_persons_against_none(delta: float) -> None:
    plan = wide_plan(1, delta, code=True)
    seen = []
    for rows in (1, 1, 0, 50_000):
        columns: dict[str, Any] = {
            n: pa.array([v] * rows, pa.string()) for n, v in WIDE_ORDINARY.items()
        }
        columns["who"] = pa.array([str(i % 7) for i in range(rows)], pa.string())
        seen.append(observe(pa.table(columns), plan))
    assert_alike(seen)
