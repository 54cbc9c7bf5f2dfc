"""One test on every kind of table: what goes in comes out, and nothing else changes.

Plan, measure, fit and sample on the same rows in every frame library and file format.
"""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

import retilt as rt
from retilt.testing import insecure_measure

ROWS = 600
DAYS = [datetime(2020, 1, 1) + timedelta(days=i) for i in range(300)]


def people(seed: int, pull: float) -> pd.DataFrame:
    """Every dtype that a custodian's frame may hold, in no particular order of columns."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=ROWS) * pull
    income = np.where(rng.normal(size=ROWS) + common > 0.5, ">50K", "<=50K")
    age = np.clip(np.rint(45 + 10 * (rng.normal(size=ROWS) + common)), 17, 90)
    return pd.DataFrame(
        {
            "note": [f"n{seed}-{i}" for i in range(ROWS)],
            "size": pd.Categorical(rng.choice(["S", "M", "L"], ROWS), ["S", "M", "L"], True),
            "age": age.astype("int16"),
            "pay, net": np.clip(5 + common + rng.normal(size=ROWS), 0, 10),
            "height": rng.normal(170, 10, ROWS).astype("float32"),
            "member": rng.random(ROWS) < 0.4,
            "income": income,
            "joined": rng.choice(np.array(DAYS, dtype="datetime64[us]"), ROWS),
            "kids": pd.array(rng.integers(0, 4, ROWS), dtype="Int8"),
        }
    )


def with_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    holes = frame.copy()
    holes.loc[5:9, "kids"] = pd.NA
    holes.loc[7:8, "joined"] = pd.NaT
    holes.loc[3, "income"] = None
    return holes


REAL, SYNTHETIC = with_nulls(people(1, 0.9)), with_nulls(people(2, 0.2))
SCHEMA = {
    "age": rt.Numeric(17, 90, integer=True),
    "pay, net": rt.Numeric(0, 10),
    "size": rt.Categorical(("S", "M", "L"), ordered=True),
    "member": rt.Boolean(),
    "income": rt.Categorical(("<=50K", ">50K"), nullable=True),
    "joined": rt.Datetime(DAYS[0], DAYS[-1], nullable=True),
    "kids": rt.Numeric(0, 3, integer=True, nullable=True),
}
WORKLOAD = (
    rt.correlation(["age", "pay, net", "income", "size"])
    + rt.marginal(["member", "kids"], bins={"kids": [1, 2]})
    + rt.marginal(["joined"], bins=3)
)


def pandas_arrow(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.convert_dtypes(dtype_backend="pyarrow")


def polars_frame(frame: pd.DataFrame) -> pl.DataFrame:
    kept = pl.from_pandas(frame)
    return kept.with_columns(pl.col("size").cast(pl.Enum(["S", "M", "L"])))


def arrow_table(frame: pd.DataFrame) -> pa.Table:
    made = pa.Table.from_pandas(frame, preserve_index=False)
    return made.replace_schema_metadata({b"owner": b"tests"})


def same_pandas(one: Any, other: Any) -> None:
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def same_polars(one: Any, other: Any) -> None:
    polars.testing.assert_frame_equal(one, other)


def same_arrow(one: Any, other: Any) -> None:
    assert one.schema.equals(other.schema, check_metadata=True)
    assert one.equals(other)


@dataclass(frozen=True)
class Kind:
    """How to make a kind of frame, take rows of it, compare two, and copy one."""

    make: Callable[[pd.DataFrame], Any]
    rows: Callable[[Any, Any], Any]
    same: Callable[[Any, Any], None]
    copied: Callable[[Any], Any] = copy.deepcopy


def pandas_rows(frame: Any, rows: Any) -> Any:
    return frame.iloc[rows].reset_index(drop=True)


def odd_index(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_index(pd.Index(range(len(frame), 0, -1), name="row"))


FRAMES = {
    "pandas": Kind(lambda f: f, pandas_rows, same_pandas),
    "pandas of objects": Kind(lambda f: f.astype(object), pandas_rows, same_pandas),
    "pandas on arrow": Kind(pandas_arrow, pandas_rows, same_pandas),
    "pandas with an index": Kind(odd_index, pandas_rows, same_pandas),
    "polars": Kind(polars_frame, lambda f, r: f[r], same_polars, lambda f: f.clone()),
    "pyarrow": Kind(arrow_table, lambda f, r: f.take(pa.array(r)), same_arrow, lambda f: f),
}


def planned(synthetic: Any) -> rt.Plan:
    return rt.plan(synthetic, WORKLOAD, epsilon=5.0, rows=ROWS, schema=SCHEMA)


PLAN = planned(arrow_table(SYNTHETIC))
ANSWERS = insecure_measure(arrow_table(REAL), PLAN, rng=np.random.default_rng(0))
TILT = rt.fit(arrow_table(SYNTHETIC), ANSWERS)


@pytest.fixture(params=FRAMES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return FRAMES[request.param]


def test_a_frame_comes_back_as_it_came(kind: Kind) -> None:
    real, synthetic = kind.make(REAL), kind.make(SYNTHETIC)
    before = kind.copied(real), kind.copied(synthetic)
    plan = planned(synthetic)
    assert plan.sha256 == PLAN.sha256
    answers = insecure_measure(real, plan, rng=np.random.default_rng(0))
    assert answers.values == ANSWERS.values
    tilt = rt.fit(synthetic, answers)
    np.testing.assert_array_equal(tilt.weights, TILT.weights)
    for options in ({}, {"rows": 0}, {"rows": 2000, "method": "multinomial", "shuffle": True}):
        rows = tilt.rows(seed=3, **options)
        np.testing.assert_array_equal(rows, TILT.rows(seed=3, **options))
        post = tilt.sample(seed=3, **options)
        assert type(post) is type(synthetic)
        kind.same(post, kind.rows(synthetic, rows))
    frame = tilt.to_frame()
    assert type(frame) is type(synthetic)
    assert list(frame.columns if hasattr(frame, "dtypes") else frame.column_names) == [
        *("statistic", "before", "target", "standard_error", "after", "reachable", "flag")
    ]
    assert rt.evaluate(real, synthetic, post, columns=["age", "income"], schema=SCHEMA)
    kind.same(real, before[0])
    kind.same(synthetic, before[1])


OTHERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "lazy": lambda f: polars_frame(f).lazy(),
    "batch": lambda f: arrow_table(f).to_batches()[0],
    "reader": lambda f: arrow_table(f).to_reader(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_producers_are_read(name: str) -> None:
    make = OTHERS[name]
    answers = insecure_measure(make(REAL), PLAN, rng=np.random.default_rng(0))
    assert answers.values == ANSWERS.values
    tilt = rt.fit(make(SYNTHETIC), answers)
    np.testing.assert_array_equal(tilt.weights, TILT.weights)
    post = tilt.sample(seed=3)
    assert isinstance(post, pl.DataFrame if name == "lazy" else pa.Table)
    rows = post["note"].to_list() if name == "lazy" else post["note"].to_pylist()
    assert rows == SYNTHETIC["note"].iloc[TILT.rows(seed=3)].tolist()


def test_a_duckdb_relation_is_read() -> None:
    with duckdb.connect() as connection:
        real, synthetic = (connection.from_arrow(arrow_table(f)) for f in (REAL, SYNTHETIC))
        answers = insecure_measure(real, PLAN, rng=np.random.default_rng(0))
        assert answers.values == ANSWERS.values
        tilt = rt.fit(synthetic, answers)
        np.testing.assert_array_equal(tilt.weights, TILT.weights)
        assert tilt.sample(5, seed=0).num_rows == 5


# --- files -------------------------------------------------------------------------------


def write_semicolons(table: pa.Table, path: Path) -> None:
    text = table.to_pandas().to_csv(index=False, sep=";", lineterminator="\r\n", quoting=1)
    path.write_bytes(text.encode("utf-8-sig"))


def write_folder(table: pa.Table, path: Path) -> None:
    path.mkdir()
    for number, start in enumerate((0, 250)):
        pq.write_table(table.slice(start, 250 if start == 0 else None), path / f"p{number}.parquet")


def write_packed(table: pa.Table, path: Path) -> None:
    plain = path.with_suffix("")
    pc.write_csv(table, plain)
    path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))


def write_duckdb(table: pa.Table, path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        relation = connection.from_arrow(table)
        relation.create("t")


FILES: dict[str, tuple[str, Callable[[pa.Table, Path], object]]] = {
    "csv": (".csv", pc.write_csv),
    "csv with semicolons": (".txt", write_semicolons),
    "csv.gz": (".csv.gz", write_packed),
    "parquet": (".parquet", pq.write_table),
    "folder": ("", write_folder),
    "arrow": (".arrow", pf.write_feather),
    "duckdb": (".db", write_duckdb),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_comes_back_as_it_came(name: str, tmp_path: Path) -> None:
    suffix, write = FILES[name]
    sources: list[Any] = []
    for word, frame in (("real", REAL), ("synthetic", SYNTHETIC)):
        path = tmp_path / f"{word}{suffix}"
        write(arrow_table(frame), path)
        sources.append(f"duckdb:///{path}?table=t" if name == "duckdb" else path)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    before = [p.read_bytes() for p in files]
    plan = planned(sources[1])
    assert plan.measures == PLAN.measures
    answers = insecure_measure(sources[0], PLAN, rng=np.random.default_rng(0))
    assert answers.values == ANSWERS.values
    tilt = rt.fit(sources[1], answers)
    np.testing.assert_array_equal(tilt.weights, TILT.weights)
    rows = TILT.rows(seed=3)
    np.testing.assert_array_equal(tilt.rows(seed=3), rows)
    post = tilt.sample(seed=3)
    assert isinstance(post, pd.DataFrame)
    assert list(post.columns) == list(SYNTHETIC.columns)
    assert post["note"].tolist() == SYNTHETIC["note"].iloc[rows].tolist()
    assert isinstance(tilt.to_frame(), pd.DataFrame)
    written = tmp_path / f"post{'.parquet' if name in ('folder', 'duckdb') else suffix}"
    tilt.write_sample(written, seed=3)
    check_written(name, tmp_path, written, rows)
    assert [p.read_bytes() for p in files] == before


def check_written(name: str, folder: Path, written: Path, rows: Any) -> None:
    """The rows' own text, or the same types in the same order."""
    if name.startswith("csv"):
        source = next(folder.glob("synthetic.*"))
        texts = [p.read_bytes() for p in (folder / source.name, written)]
        if name == "csv.gz":
            source = folder / "synthetic.csv"
            texts = [source.read_bytes(), gzip.decompress(texts[1])]
        lines, found = (t.splitlines(keepends=True) for t in texts)
        assert found[0] == lines[0]
        assert found[1:] == [lines[1 + i] for i in rows]
        return
    read = pf.read_table if name == "arrow" else pq.read_table
    found_table = read(written)
    expected = arrow_table(SYNTHETIC).take(pa.array(rows))
    assert found_table.column_names == expected.column_names
    if name != "duckdb":  # which has types of its own
        source = folder / ("synthetic" if name == "folder" else f"synthetic{written.suffix}")
        assert found_table.schema.equals(read(source).schema)
    assert found_table["note"].to_pylist() == expected["note"].to_pylist()
    assert found_table["joined"].to_pylist() == expected["joined"].to_pylist()
    assert found_table["kids"].to_pylist() == expected["kids"].to_pylist()


def test_every_output_format_holds_the_same_rows(tmp_path: Path) -> None:
    tilt = rt.fit(SYNTHETIC, ANSWERS)
    expected = tilt.sample(200, seed=1)
    for suffix, read in (
        (".csv", pd.read_csv),
        (".csv.gz", pd.read_csv),
        (".parquet", pd.read_parquet),
        (".feather", pd.read_feather),
    ):
        path = tmp_path / f"post{suffix}"
        tilt.write_sample(path, 200, seed=1)
        found = read(path)
        assert list(found.columns) == list(expected.columns)
        assert found["note"].tolist() == expected["note"].tolist()
        np.testing.assert_array_equal(found["age"], expected["age"])
        np.testing.assert_array_equal(found["pay, net"], expected["pay, net"])
        if not suffix.startswith(".csv"):
            pd.testing.assert_frame_equal(found, expected)
