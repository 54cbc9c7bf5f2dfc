"""At most so many rows of each person: a function of the table as a multiset."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retilt as rt
from retilt import persons as numbering
from retilt.engines.local import open_table
from retilt.exceptions import ColumnTypeError, InputError, WorkloadError
from retilt.measures.workload import function
from retilt.persons import check_person, chosen_rows
from retilt.pipeline import exact_sums
from retilt.schema.encode import shown_type

Row = tuple[int, ...]
KEY = "0123abc"


def choose(
    persons: Any, contents: Sequence[Row], max_rows: int, key: str = KEY
) -> Counter[tuple[str, Row]]:
    """The rows that are used, as a multiset."""
    cells = persons if isinstance(persons, pa.ChunkedArray) else chunked(persons)
    columns = np.array(contents, dtype=np.int32).reshape(len(contents), -1)
    kept = chosen_rows(cells, list(columns.T), max_rows=max_rows, key=key)
    assert (np.diff(kept) > 0).all()
    names = cells.to_pylist()
    return Counter((str(names[i]), tuple(map(int, columns[i]))) for i in kept)


def chunked(persons: Sequence[str | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(persons, pa.string())])


def reference(
    persons: Sequence[str | None], contents: Sequence[Row], max_rows: int
) -> Counter[tuple[str, Row]]:
    """The definition, row by row."""
    own: dict[str, list[Row]] = defaultdict(list)
    for person, content in zip(persons, contents, strict=True):
        if person:
            own[person].append(content)
    kept: Counter[tuple[str, Row]] = Counter()
    for person, rows in own.items():
        keyed = []
        for content, count in Counter(rows).items():
            for copy in range(count):
                text = ",".join([KEY, *map(str, content), str(copy), person])
                keyed.append((hashlib.sha256(text.encode()).hexdigest()[:16], content))
        kept.update((person, content) for _, content in sorted(keyed)[:max_rows])
    return kept


CELLS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "a ", "é", "1,2", "\x00"]))
ROWS = st.lists(st.tuples(CELLS, st.integers(-3, 3), st.sampled_from([-(2**31), 0, 2**31 - 1])))


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, max_rows=st.integers(1, 4), seed=st.integers(0, 9))
def test_the_definition_in_any_order_and_chunks(
    rows: list[tuple[str | None, int, int]], max_rows: int, seed: int
) -> None:
    persons, contents = [r[0] for r in rows], [r[1:] for r in rows]
    expected = reference(persons, contents, max_rows)
    if not rows:
        return
    assert choose(persons, contents, max_rows) == expected
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = len(rows) // 2
    moved = [persons[i] for i in order]
    cells = pa.chunked_array([pa.array(p, pa.string()) for p in (moved[:cut], [], moved[cut:])])
    assert choose(cells, [contents[i] for i in order], max_rows) == expected


def some_rows(count: int, people: int, seed: int = 0) -> tuple[list[int], list[Row]]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, people, count).tolist()
    contents = [tuple(map(int, row)) for row in rng.integers(-2, 3, (count, 3))]
    return ids, contents


def test_every_holder_of_the_same_persons_agrees() -> None:
    ids, contents = some_rows(300, 40)
    texts = [str(i) for i in ids]
    expected = choose(texts, contents, 2)
    assert max(Counter(person for person, _ in expected.elements()).values()) == 2
    plain = pa.array(texts)
    holders = [
        pa.array(ids, pa.int16()),
        pa.array(ids, pa.uint64()),
        pa.array(ids).dictionary_encode(),
        plain.cast(pa.large_string()),
        plain.cast(pa.string_view()),
        plain.dictionary_encode(),
        pa.concat_arrays([plain.slice(0, 0), plain]).dictionary_encode(),
    ]
    for cells in holders:
        assert choose(pa.chunked_array([cells]), contents, 2) == expected
    parts = [plain.slice(0, 70).dictionary_encode(), plain.slice(70).dictionary_encode()]
    assert choose(pa.chunked_array(parts), contents, 2) == expected


def test_a_database_finds_the_same_rows() -> None:
    """The definition in SQL, so that a later engine can compute it where the data lives."""
    ids, contents = some_rows(500, 30, seed=1)
    texts = [f"p{i}" for i in ids]
    first, second, third = zip(*contents, strict=True)
    table = pa.table({"person": texts, "c1": first, "c2": second, "c3": third})
    with duckdb.connect() as connection:
        connection.register("t", table)
        found = connection.sql(
            f"""
            WITH numbered AS (
              SELECT *, row_number() OVER (PARTITION BY person, c1, c2, c3) - 1 AS copy FROM t
              WHERE person <> ''),
            hashed AS (
              SELECT *, left(sha256(concat_ws(',', '{KEY}', c1, c2, c3, copy, person)), 16) AS h
              FROM numbered),
            placed AS (
              SELECT *, row_number() OVER (PARTITION BY person ORDER BY h, c1, c2, c3) AS place
              FROM hashed)
            SELECT person, c1, c2, c3 FROM placed WHERE place <= 3
            """
        ).fetchall()
    assert Counter((p, tuple(row)) for p, *row in found) == choose(texts, contents, 3)


def test_persons_are_told_apart_by_their_exact_text() -> None:
    names = ["a", "A", "a ", "a\x00", "\u00e1", "a\u0301", "01", "1", "1.0"]
    contents = [(0,)] * len(names)
    assert sum(choose(names, contents, 1).values()) == len(set(names)) == len(names)


def test_rows_without_a_person_are_left_out() -> None:
    assert choose([None, "", "a"], [(1,), (2,), (3,)], 5) == {("a", (3,)): 1}
    nobody = pa.chunked_array([pa.nulls(4)])
    assert choose(nobody, [(1,)] * 4, 5) == {}
    numbers = pa.chunked_array([pa.array([None, 7, 7], pa.int64())])
    assert choose(numbers, [(1,), (2,), (3,)], 5) == {("7", (2,)): 1, ("7", (3,)): 1}


def test_no_row_at_all() -> None:
    for kind in (pa.string(), pa.int64(), pa.dictionary(pa.int8(), pa.string())):
        empty = pa.chunked_array([], kind)
        assert len(chosen_rows(empty, [np.zeros(0, np.int32)], max_rows=1, key=KEY)) == 0


def test_the_key_decides_which_rows_are_used() -> None:
    ids, contents = some_rows(200, 10)
    texts = [str(i) for i in ids]
    assert choose(texts, contents, 2, "k") == choose(texts, contents, 2, "k")
    assert choose(texts, contents, 2, "k") != choose(texts, contents, 2, "l")


def test_rows_are_chosen_as_if_by_chance() -> None:
    """Of 9 equal rows and another, the other is used as often as any one of the nine."""
    people = 4000
    persons = [f"p{i}" for i in range(people) for _ in range(10)]
    contents = [(int(j == 0),) for _ in range(people) for j in range(10)]
    rare = sum(n for (_, content), n in choose(persons, contents, 1).items() if content == (1,))
    assert abs(rare / people - 0.1) < 4 * (0.1 * 0.9 / people) ** 0.5


def test_persons_are_numbered_alike_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sorting, where Arrow's 32-bit numbers would not do, tells the same texts apart."""
    assert numbering._INDEXED == 2**31 - 1
    ids, contents = some_rows(200, 30, seed=4)
    names = [f"p{i}" for i in ids]
    for texts in (names, ["b", "a", "a", "c"], ["a", "b"], ["a", "a"], ["a"]):
        numbers = numbering._sorted_numbers(pa.array([t.encode() for t in texts]))
        pairs = set(zip(texts, numbers.tolist(), strict=True))
        assert len(pairs) == len({t for t, _ in pairs}) == len({n for _, n in pairs})
    expected = choose(names, contents, 2)
    used: list[str] = []
    for name in ("_numbers", "_sorted_numbers"):
        real = getattr(numbering, name)

        def noted(texts: pa.Array, name: str = name, real: Any = real) -> Any:
            used.append(name)
            return real(texts)

        monkeypatch.setattr(numbering, name, noted)
    for most in (199, 200, 201):
        monkeypatch.setattr(numbering, "_INDEXED", most)
        assert choose(names, contents, 2) == expected
    assert used == ["_sorted_numbers", "_numbers", "_numbers"]


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, contents = some_rows(300, 10)
    texts = [str(i) for i in ids]
    expected = choose(texts, contents, 4)
    monkeypatch.setattr("retilt.persons._SLICE", 7)
    assert choose(texts, contents, 4) == expected


def test_equal_hashes_go_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the hash told nothing apart, the place of a row would not count."""

    def same(columns: Any, _texts: Any, _key: str) -> Any:
        return np.zeros(len(columns[0]), np.uint64)

    monkeypatch.setattr("retilt.persons._hashes", same)
    contents = [(3, -1), (-2, 5), (-2, -(2**31)), (2**31 - 1, 0)]
    expected = {("a", (-2, -(2**31))): 1, ("a", (-2, 5)): 1}
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        assert choose(["a"] * 4, [contents[i] for i in order], 2) == expected


# --- types and names ---------------------------------------------------------------------------

REFUSED = {
    "float": pa.array([1.5]),
    "float dictionary": pa.array([1.5]).dictionary_encode(),
    "boolean": pa.array([True]),
    "date": pa.array([0], pa.date32()),
    "time": pa.array([0], pa.timestamp("us")),
    "bytes": pa.array([b"secret"]),
    "list": pa.array([[1]]),
    "decimal": pa.array([1], pa.decimal128(5, 2)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_types_are_refused_by_type(kind: str) -> None:
    table = open_table(pa.table({"id": REFUSED[kind]}))
    with pytest.raises(ColumnTypeError, match="persons are told apart by text or whole") as caught:
        check_person(table, "id", "the private table")
    assert "secret" not in str(caught.value)
    assert f"its type is {shown_type(REFUSED[kind].type)}, but" in str(caught.value)


def test_a_missing_column_of_persons_is_named() -> None:
    with pytest.raises(WorkloadError, match="the private table has no column 'id'") as caught:
        check_person(open_table(pa.table({"hidden": [1]})), "id", "the private table")
    assert "hidden" not in str(caught.value)


# --- through a plan ------------------------------------------------------------------------------

SYNTHETIC = pa.table({"age": [17, 30, 44, 58, 90] * 8, "sex": ["F", "M", "M", "F", "F"] * 8})


def plan_of(unit: Any) -> rt.Plan:
    workload = rt.moments(["age", "sex"]) + rt.marginal(["age", "sex"], bins=3)
    return rt.plan(SYNTHETIC, workload, epsilon=1.0, delta=1e-6, unit=unit)


def private_table(count: int = 120, people: int = 25, seed: int = 3) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "id": rng.integers(0, people, count).tolist(),
        "age": rng.integers(10, 99, count).tolist(),
        "sex": rng.choice(["F", "M", "?"], count).tolist(),
    }


@pytest.mark.parametrize("kind", [rt.ReplaceOnePerson, rt.AddRemoveOnePerson])
def test_sums_do_not_depend_on_order_or_engine(kind: Any, tmp_path: Path) -> None:
    columns, plan = private_table(), plan_of(kind("id", 2))
    expected = exact_sums(pa.table(columns), plan)
    used = sum(min(n, 2) for n in Counter(columns["id"]).values())
    assert used < 50 < 120
    assert expected[-1] == used * plan.noise.factors[-1]
    order = np.random.default_rng(1).permutation(120)
    moved = pa.table(columns).take(pa.array(order))
    csv, parquet = tmp_path / "t.csv", tmp_path / "t.parquet"
    pd.DataFrame(columns).to_csv(csv, index=False)
    pd.DataFrame(columns).to_parquet(parquet, row_group_size=17)
    texts = pd.DataFrame(columns).astype({"id": "str"})
    kinds = [moved, pd.DataFrame(columns), texts, texts.astype({"id": "category"})]
    for table in (*kinds, pl.DataFrame(columns), duckdb.sql("SELECT * FROM moved"), csv, parquet):
        assert exact_sums(table, plan) == expected


def test_persons_may_be_missing_from_the_synthetic_table_only() -> None:
    plan = plan_of(rt.AddRemoveOnePerson("id", 2))
    assert "id" not in plan.schema
    columns = private_table()
    with pytest.raises(WorkloadError, match="no column 'id'"):
        rt.measure(pa.table({n: c for n, c in columns.items() if n != "id"}), plan)
    with pytest.raises(ColumnTypeError, match="double"):
        rt.measure(pa.table({**columns, "id": pa.array(columns["id"], pa.float64())}), plan)
    with pytest.raises(InputError):
        rt.measure(pl.DataFrame({**columns, "id": [0.5] * 120}), plan)


def test_enough_rows_for_everybody_is_the_whole_table() -> None:
    rows = exact_sums(pa.table(private_table()), plan_of(rt.AddRemoveOneRow()))
    plan, one = plan_of(rt.AddRemoveOnePerson("id", 120)), plan_of(rt.AddRemoveOneRow())
    sums = exact_sums(pa.table(private_table()), plan)
    unscaled = [[s // f for s, f in zip(x, p.noise.factors, strict=True)]
                for x, p in ((sums, plan), (rows, one))]  # fmt: skip
    assert unscaled[0] == unscaled[1]


def test_a_plan_that_can_not_be_saved_chooses_rows_all_the_same() -> None:
    """It holds code, and so has no hash; the choice is repeatable nevertheless."""
    sums = []
    for _ in range(2):
        workload = function(lambda batch: batch["age"], ["age"], upper=90, name="age")
        plan = rt.plan(
            SYNTHETIC, workload, epsilon=1.0, delta=1e-6, unit=rt.ReplaceOnePerson("id", 2)
        )
        sums.append(exact_sums(pa.table(private_table()), plan))
    assert sums[0] == sums[1]


def test_the_job_from_end_to_end(tmp_path: Path) -> None:
    columns = private_table(4000, 1200)
    made = rt.postprocess(
        pa.table(columns),
        SYNTHETIC,
        rt.correlation(["age", "sex"]),
        epsilon=5.0,
        delta=1e-6,
        unit=rt.ReplaceOnePerson("id", 2),
    )
    assert made.post.column_names == SYNTHETIC.column_names
    used = sum(min(n, 2) for n in Counter(columns["id"]).values())
    assert made.answers.rows == pytest.approx(used, rel=0.1)
    made.tilt.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "replace-one-person: protects all rows of any one person" in page
    assert "a person is a value of id, rows used of each: 2 at most" in page
