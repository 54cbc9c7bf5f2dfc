"""Neighbouring private tables may differ in the noisy values and in nothing else.

For any content of the private rows: the same lines of our source run in the same order, the
same is logged and printed, the exit code is the same, and the answers are equal outside
``values``. Under add/remove neighbours this includes the number of rows.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import retilt as rt
from retilt import cli

SOURCE = str(Path(rt.__file__).parent)
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


class Recorder:
    """What an observer inside the process could see of a run."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []
        self.logged: list[str] = []

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    def run(self, job: Any) -> Any:
        handler = logging.Handler()
        handler.emit = lambda record: self.logged.append(record.getMessage())  # type: ignore[method-assign]
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return job()
        finally:
            sys.settrace(before)
            root.removeHandler(handler)
            root.setLevel(level)


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
    return json.dumps({k: v for k, v in answers.to_dict().items() if k != "values"})


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(SCHEMA))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("basis", ["centred", "paper"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_csv_row_replaced_through_the_command_line(
    tmp_path: Path, name: str, basis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    make_plan(3, basis=basis).save(plan)
    seen = []
    for label, row in (("warm", ORDINARY), ("one", ORDINARY), ("two", HOSTILE[name])):
        folder = tmp_path / label
        folder.mkdir()
        table = write_csv(folder / "real.csv", [ORDINARY, row, ORDINARY])
        out = folder / "answers.json"
        recorder = Recorder()
        call = ["--quiet", "measure", str(table), str(plan), "-o", str(out)]
        code = recorder.run(lambda c=call: run_cli(*c))
        printed = capsys.readouterr()
        content = json.loads(out.read_text(encoding="utf-8"))
        del content["values"]
        output = [p.replace(str(folder), "") for p in (printed.out, printed.err)]
        seen.append((code, output, recorder.logged, recorder.lines, content))
    one, two = seen[1:]
    assert one[0] == two[0] == 0
    assert one[1] == two[1]
    assert one[2] == two[2]
    assert one[4] == two[4]
    assert first_difference(one[3], two[3]) is None


def first_difference(one: list[Any], two: list[Any]) -> Any:
    """Where two traces part, for a message that can be read."""
    for number, pair in enumerate(zip_longest(one, two)):
        if pair[0] != pair[1]:
            return number, pair
    return None


def run_cli(*arguments: str) -> int:
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class Rude:
    """An object whose text can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


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
        recorder = Recorder()
        answers = recorder.run(lambda f=frame: rt.measure(f, plan))
        seen.append((public_part(answers), recorder.logged, recorder.lines))
    assert seen[1] == seen[2]


SPECIAL = [np.nan, np.inf, -np.inf, 1e308, -1e308, -0.0, 5e-324, 1e20]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "parquet"])
@pytest.mark.parametrize("value", SPECIAL)
def test_a_float_cell_replaced_in_a_typed_frame(library: str, value: float, tmp_path: Path) -> None:
    plan = make_plan(3)
    seen = []
    for number, cell in enumerate((1.0, 1.0, value)):
        columns: dict[str, Any] = {
            "age": [40.0, cell, 41.0],
            "pay": [0.5, cell, -3.0],
            "sex": ["F", "M", "F"],
            "town": ["a", "b", "b"],
            "code": [1.0, cell, 2.0],
            "flag": [True, False, True],
        }
        if library == "pandas":
            frame: Any = pd.DataFrame(columns)
        elif library == "polars":
            frame = pl.DataFrame(columns)
        else:
            frame = pa.table(columns)
        if library == "parquet":
            path = tmp_path / f"{number}.parquet"
            pq.write_table(frame, path)
            frame = path
        recorder = Recorder()
        answers = recorder.run(lambda f=frame: rt.measure(f, plan))
        seen.append((public_part(answers), recorder.logged, recorder.lines))
    assert seen[1] == seen[2]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "csv"])
@pytest.mark.parametrize("delta", [0, 1e-9])
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
        recorder = Recorder()
        answers = recorder.run(lambda f=frame: rt.measure(f, plan))
        seen.append((public_part(answers), recorder.logged, recorder.lines))
    for other in seen[2:]:
        assert first_difference(seen[1][2], other[2]) is None
        assert seen[1] == other


def test_no_private_value_in_any_error(tmp_path: Path) -> None:
    secret = "s3cr3t"
    plan = make_plan(3)
    plan.save(tmp_path / "plan.json")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1" + secret.encode() * 10)
    typed = pa.table({n: pa.array([[secret]] * 3) for n in SCHEMA})
    for table in (bad, typed, pa.table({"age": [secret] * 3})):
        with pytest.raises(rt.RetiltError) as caught:
            rt.measure(table, plan)
        assert secret not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
