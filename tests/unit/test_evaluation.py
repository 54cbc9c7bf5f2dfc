"""Comparisons with the private table: right, raw and clamped, and never called private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pytest

import retilt as rt
from retilt.evaluation import Comparison, correlation_matrix
from retilt.exceptions import ColumnTypeError, InputError, SchemaError, WorkloadError

NAMES = ["a", "b", "c"]
KEYS = [
    "private",
    "warning",
    "row_counts",
    "columns",
    "correlation_error",
    "utility_improvement",
    "undefined",
    "all_columns",
    "marginals",
    "f1",
    "groups",
    "detection",
    "left_out",
    "reasons",
    "notes",
]
PARTS = {
    "f1": "no target was named (target, --target)",
    "groups": "no target was named (target, --target)",
    "detection": "it was not asked for (detection, --detection)",
}
"""Why these are null if nothing but the tables is given."""


def table(seed: int, pull: float, rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(seed)
    common = pull * rng.normal(size=rows)
    return pa.table({n: common + rng.normal(size=rows) for n in NAMES})


REAL, SYNTHETIC, POST = table(0, 1.0), table(1, 0.2), table(2, 0.9)
WIDE = {n: rt.Numeric(-100, 100) for n in NAMES}


def matrix(rows: pa.Table, clip: tuple[float, float] = (-1e9, 1e9)) -> np.ndarray:
    return np.corrcoef([np.clip(rows[n].to_numpy(), *clip) for n in NAMES])


def test_the_errors_are_numpys() -> None:
    found = rt.evaluate(REAL, SYNTHETIC, POST, columns=NAMES, schema=WIDE)
    before = np.abs(matrix(SYNTHETIC) - matrix(REAL)).sum()
    after = np.abs(matrix(POST) - matrix(REAL)).sum()
    for comparison in (found.raw, found.clamped):
        assert comparison.before == pytest.approx(before, rel=1e-9)
        assert comparison.after == pytest.approx(after, rel=1e-9)
        assert comparison.improvement == pytest.approx(1 - after / before)
    assert found.columns == ("a", "b", "c")
    assert found.undefined == ()
    assert found.reasons == PARTS


def test_values_outside_the_bounds_count_raw_and_clamped() -> None:
    schema = {n: rt.Numeric(-1, 1) for n in NAMES}
    found = rt.evaluate(REAL, SYNTHETIC, POST, columns=NAMES, schema=schema)
    for comparison, clip in ((found.raw, (-1e9, 1e9)), (found.clamped, (-1.0, 1.0))):
        before = np.abs(matrix(SYNTHETIC, clip) - matrix(REAL, clip)).sum()
        assert comparison.before == pytest.approx(before, rel=1e-9)
    assert found.raw.before != pytest.approx(found.clamped.before, rel=0.05)


def test_a_perfect_and_a_useless_table() -> None:
    perfect = rt.evaluate(REAL, SYNTHETIC, REAL, columns=NAMES)
    assert perfect.raw.after == pytest.approx(0, abs=1e-12)
    assert perfect.raw.improvement == pytest.approx(1)
    useless = rt.evaluate(REAL, SYNTHETIC, SYNTHETIC, columns=NAMES)
    assert useless.raw.improvement == 0
    assert rt.evaluate(REAL, POST, SYNTHETIC, columns=NAMES).raw.improvement < 0  # type: ignore[operator]


def test_nothing_to_improve_has_no_improvement() -> None:
    assert rt.evaluate(REAL, REAL, POST, columns=NAMES).raw.improvement is None
    assert Comparison(0.0, 0.0).improvement is None
    assert Comparison(2.0, 1.0).improvement == 0.5


def test_a_constant_column_is_told_and_counts_as_uncorrelated() -> None:
    flat = SYNTHETIC.set_column(1, "b", pa.array(np.full(len(SYNTHETIC), 3.3)))
    found = rt.evaluate(REAL, flat, POST, columns=NAMES, schema=WIDE)
    assert found.undefined == ("b",)
    expected = np.eye(3)
    expected[0, 2] = expected[2, 0] = matrix(SYNTHETIC)[0, 2]
    assert found.raw.before == pytest.approx(np.abs(expected - matrix(REAL)).sum())
    assert np.isfinite(found.raw.after)
    # Constant in any of the three tables, raw or clamped.
    for tables in ((flat, SYNTHETIC, POST), (REAL, SYNTHETIC, flat)):
        assert rt.evaluate(*tables, columns=NAMES, schema=WIDE).undefined == ("b",)
    tight = {**WIDE, "c": rt.Numeric(50, 60)}
    assert rt.evaluate(REAL, SYNTHETIC, POST, columns=NAMES, schema=tight).undefined == ("c",)


def test_missing_values_take_the_midpoint() -> None:
    values = REAL["a"].to_numpy().copy()
    values[:100] = np.nan
    holes = REAL.set_column(0, "a", pa.array(values))
    nulls = REAL.set_column(0, "a", pa.array(values, from_pandas=True))
    middle = REAL.set_column(0, "a", pa.array(np.nan_to_num(values)))
    schema = {**WIDE, "a": rt.Numeric(-100, 100, nullable=True)}
    results = [
        rt.evaluate(t, SYNTHETIC, POST, columns=NAMES, schema=schema)
        for t in (holes, nulls, middle)
    ]
    for found in results[:2]:
        assert found.raw.before == pytest.approx(results[2].raw.before)
        assert found.clamped.before == pytest.approx(results[2].clamped.before)


def test_infinities_do_no_harm() -> None:
    values = REAL["a"].to_numpy().copy()
    values[0], values[1] = np.inf, -np.inf
    found = rt.evaluate(
        REAL.set_column(0, "a", pa.array(values)), SYNTHETIC, POST, columns=NAMES, schema=WIDE
    )
    assert np.isfinite([found.raw.before, found.clamped.before, found.raw.after]).all()


def mixed(seed: int) -> pa.Table:
    rows = table(seed, 0.5)
    rng = np.random.default_rng(seed)
    return (
        rows.append_column("sex", pa.array(rng.choice(["F", "M"], len(rows))))
        .append_column("code", pa.array(rng.choice(list("xyz"), len(rows))))
        .append_column("id", pa.array([f"{seed}-{i}" for i in range(len(rows))]))
    )


def test_by_default_all_columns_whose_kind_is_decided() -> None:
    found = rt.evaluate(mixed(0), mixed(1), mixed(2))
    assert found.columns == ("a", "b", "c", "sex", "code")


def test_columns_are_compared_once_each_and_in_the_users_order() -> None:
    found = rt.evaluate(mixed(0), mixed(1), mixed(2), columns=["code", "a", "code"])
    assert found.columns == ("code", "a")


def test_all_columns_stand_beside_the_chosen_ones() -> None:
    found = rt.evaluate(mixed(0), mixed(1), mixed(2), columns=["code", "a"])
    every = rt.evaluate(mixed(0), mixed(1), mixed(2))
    assert found.all_columns == every.all_columns == every.aligned
    assert found.all_columns.columns == ("a", "b", "c", "sex", "code")
    assert found.marginals == every.marginals
    assert found.aligned.raw.before < found.all_columns.raw.before
    assert found.left_out == ("id",)
    pair = rt.evaluate(mixed(0), mixed(1), mixed(2), columns=["a", "b"])
    expected = (
        np.corrcoef(mixed(1)["a"], mixed(1)["b"])[0, 1]
        - np.corrcoef(mixed(0)["a"], mixed(0)["b"])[0, 1]
    )
    assert pair.raw.before == pytest.approx(2 * abs(expected))


def test_columns_that_a_table_lacks_are_left_out_unless_asked_for() -> None:
    private = mixed(0).drop_columns(["b"])
    wrong = private.set_column(1, "c", pa.array([[1]] * len(private)))
    for table, lacking in ((private, ("b", "id")), (wrong, ("b", "c", "id"))):
        found = rt.evaluate(table, mixed(1), mixed(2), columns=["a", "sex"])
        assert found.left_out == lacking
    with pytest.raises(WorkloadError, match="the private table has no column 'b'"):
        rt.evaluate(private, mixed(1), mixed(2))
    with pytest.raises(ColumnTypeError, match="'c'"):
        rt.evaluate(wrong, mixed(1), mixed(2), columns=["a", "c"])


def test_what_the_synthetic_table_alone_lacks_is_left_out_by_name() -> None:
    more = [t.append_column("extra", pa.array(range(len(t)))) for t in (REAL, POST)]
    found = rt.evaluate(more[0], SYNTHETIC, more[1])
    assert found.left_out == ("extra",)
    assert found.reasons["left_out.extra"] == "the synthetic table lacks it"
    assert rt.evaluate(REAL, SYNTHETIC, more[1]).left_out == ("extra",)


def test_what_is_left_out_has_its_reason() -> None:
    found = rt.evaluate(mixed(0).drop_columns(["b"]), mixed(1), mixed(2), columns=["a", "sex"])
    assert found.reasons["left_out.b"] == "the private table lacks it"
    assert "looks like an identifier" in found.reasons["left_out.id"]
    assert "workload" not in found.reasons["left_out.id"]
    lists = mixed(2).set_column(2, "c", pa.array([[1]] * 600))
    found = rt.evaluate(mixed(0), mixed(1), lists, columns=["a", "b"])
    assert found.reasons["left_out.c"] == "its type in the post-processed table does not fit"
    with pytest.raises(SchemaError, match=r"identifier.*Leave it out of the comparison"):
        rt.evaluate(mixed(0), mixed(1), mixed(2), columns=["a", "id"])


def test_one_row() -> None:
    one = mixed(0).slice(0, 1)
    found = rt.evaluate(one, one, mixed(1), columns=["a", "b"], schema=WIDE, detection=True)
    content = found.to_dict()
    json.dumps(content, allow_nan=False)
    assert content["detection"]["auc"] == {"before": None, "after": None}
    assert "too few" in content["reasons"]["detection.auc.before"]


@pytest.mark.parametrize("huge", [1e30, 1e154, 1e200, 1.7e308])
def test_huge_values_are_correlated_as_any(huge: float) -> None:
    values = REAL["a"].to_numpy().copy()
    values[3] = huge
    one = REAL.set_column(0, "a", pa.array(values))
    found = rt.evaluate(one, SYNTHETIC, POST, columns=NAMES, schema=WIDE)
    assert found.undefined == ()
    values = np.zeros(600)
    values[3] = 1.0  # beside it, all others are 0
    alike = REAL.set_column(0, "a", pa.array(values))
    expected = np.abs(matrix(SYNTHETIC) - matrix(alike)).sum()
    assert found.raw.before == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e-50, 1e-9, 1e9, 1e200, 4e307])
def test_correlations_do_not_depend_on_the_unit(unit: float) -> None:
    tables = [
        t.set_column(0, "a", pa.array(t["a"].to_numpy() / 8 * unit))
        for t in (REAL, SYNTHETIC, POST)
    ]
    schema = {**WIDE, "a": {"kind": "numeric", "lower": -unit, "upper": unit}}
    found = rt.evaluate(*tables, columns=NAMES, schema=schema)
    expected = rt.evaluate(REAL, SYNTHETIC, POST, columns=NAMES, schema=WIDE)
    assert found.undefined == ()
    assert found.raw.before == pytest.approx(expected.raw.before, rel=1e-9)
    assert found.clamped.after == pytest.approx(expected.clamped.after, rel=1e-9)


def test_a_small_spread_is_no_constant() -> None:
    """Within bounds that lie far apart, and far from 0."""
    tables = [
        t.set_column(0, "a", pa.array(t["a"].to_numpy() + 1e6)) for t in (REAL, SYNTHETIC, POST)
    ]
    wide = {**WIDE, "a": rt.Numeric(-1e15, 1e15)}
    found = rt.evaluate(*tables, columns=NAMES, schema=wide)
    expected = rt.evaluate(REAL, SYNTHETIC, POST, columns=NAMES, schema=WIDE)
    assert found.undefined == ()
    assert found.clamped.before == pytest.approx(expected.clamped.before, rel=1e-6)


def test_every_kind_of_table(tmp_path: Path) -> None:
    expected = rt.evaluate(REAL, SYNTHETIC, POST)
    pc.write_csv(POST, tmp_path / "post.csv")
    found = rt.evaluate(REAL.to_pandas(), pl.from_arrow(SYNTHETIC), tmp_path / "post.csv")
    assert found.raw.after == pytest.approx(expected.raw.after)
    assert found.raw.before == pytest.approx(expected.raw.before)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"columns": ["a"]}, InputError, "columns: got 1, expected at least two"),
        ({"columns": []}, InputError, "columns: got 0, expected at least two"),
        ({"columns": ["a", "a"]}, InputError, "columns: got 1"),
        ({"columns": "ab"}, InputError, "columns: got 'ab', expected a list"),
        ({"columns": ["a", "z"]}, WorkloadError, "the synthetic table has no column 'z'"),
        ({"schema": "none.toml"}, InputError, "none.toml"),
        ({"test": REAL}, InputError, "test is for predicting a target"),
        ({"positive": 1}, InputError, "positive is for predicting a target"),
        ({"target": 3}, InputError, "target: got 3, expected the name"),
        ({"target": "z"}, WorkloadError, "the synthetic table has no column 'z'"),
        ({"target": "a"}, InputError, "column 'a' does not have exactly two different"),
        ({"target": "a", "positive": 1e9}, InputError, "which no row of the private table"),
        ({"target": "a", "positive": "word"}, InputError, "got 'word', which no row"),
        ({"columns": 3}, InputError, "columns: got 3, expected a list"),
        ({"columns": {"a", "b"}}, InputError, "columns: got an object of 2, expected a list"),
        ({"columns": {"a": 1, "b": 2}}, InputError, "columns: got an object of 2"),
        ({"columns": b"ab"}, InputError, "columns: got b'ab', expected a list"),
        ({"columns": ["a", 1]}, InputError, "columns: got 1 among the names, expected text"),
        ({"target": ["a"]}, InputError, "target: got"),
        ({"target": "a", "positive": ["x"]}, InputError, "positive: got .*expected one value"),
        ({"target": "a", "positive": b"x"}, InputError, "positive: got .*expected one value"),
        ({"detection": "no"}, InputError, "detection: got 'no', expected True or False"),
        ({"detection": 1}, InputError, "detection: got 1, expected True or False"),
        ({"detection": None}, InputError, "detection: got None, expected True or False"),
        ({"schema": 3}, SchemaError, "schema: got 3, expected the path"),
        ({"schema": ["a"]}, SchemaError, "schema: got .*expected the path"),
        ({"target": "a", "test": 3}, InputError, "the test table: got an object of type int"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    options: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        rt.evaluate(REAL, SYNTHETIC, POST, **options)


@pytest.mark.parametrize(
    ("number", "what"),
    [(0, "the private table"), (1, "the synthetic table"), (2, "the post-processed table")],
)
def test_each_table_is_called_by_its_name(number: int, what: str) -> None:
    tables = [REAL, SYNTHETIC, POST]
    tables[number] = tables[number].drop_columns(["b"])
    with pytest.raises(WorkloadError, match=f"{what} has no column 'b'"):
        rt.evaluate(*tables, columns=NAMES, schema=WIDE)
    tables = [REAL, SYNTHETIC, POST]
    tables[number] = tables[number].slice(0, 0)
    with pytest.raises(InputError, match=f"{what} has no rows"):
        rt.evaluate(*tables, columns=NAMES, schema=WIDE)


@pytest.mark.parametrize("given", [None, 3, True, b"x", ["SECRET"], {"SECRET": 1}, np.zeros(3)])
def test_what_is_no_table_is_refused_by_its_place(given: Any) -> None:
    kind = type(given).__name__
    for number, what in enumerate(("private", "synthetic", "post-processed")):
        tables: list[Any] = [REAL, SYNTHETIC, POST]
        tables[number] = given
        with pytest.raises(InputError, match=f"the {what} table: got an object of type {kind}"):
            rt.evaluate(*tables)


def test_an_empty_table_is_told_before_its_columns_are() -> None:
    for empty in (SYNTHETIC.slice(0, 0), SYNTHETIC.to_pandas().head(0)):
        with pytest.raises(InputError, match="the synthetic table has no rows"):
            rt.evaluate(REAL, empty, POST)


def test_messages_speak_of_what_is_compared() -> None:
    with pytest.raises(WorkloadError, match="Compare columns that all tables have") as caught:
        rt.evaluate(REAL.drop_columns(["b"]), SYNTHETIC, POST)
    assert "plan" not in str(caught.value)
    lists = POST.set_column(0, "a", pa.array([[1.0]] * len(POST)))
    with pytest.raises(ColumnTypeError, match="the post-processed table, column 'a'"):
        rt.evaluate(REAL, SYNTHETIC, lists)


def test_numpys_options_are_pythons() -> None:
    names = np.array(NAMES)
    found = rt.evaluate(REAL, SYNTHETIC, POST, columns=names, detection=np.bool_(False))  # type: ignore[arg-type]
    assert found == rt.evaluate(REAL, SYNTHETIC, POST, columns=pd.Index(NAMES))  # type: ignore[arg-type]


def test_a_polars_lazy_frame_is_opened_without_a_warning() -> None:
    lazy = pl.from_arrow(SYNTHETIC).lazy()  # type: ignore[union-attr]
    assert rt.evaluate(REAL, lazy, POST) == rt.evaluate(REAL, SYNTHETIC, POST)


def test_types_that_do_not_fit_are_refused() -> None:
    lists = REAL.set_column(0, "a", pa.array([[1.0]] * len(REAL)))
    with pytest.raises(ColumnTypeError, match="its type is list,"):
        rt.evaluate(lists, SYNTHETIC, POST, columns=NAMES, schema=WIDE)


def test_the_result_says_that_it_is_not_private() -> None:
    found = rt.evaluate(REAL, SYNTHETIC, POST)
    assert found.warning.startswith("NOT PRIVATE")
    for shown in (repr(found), str(found)):
        assert shown.startswith('Evaluation(warning="NOT PRIVATE')
        assert "row_counts={'private': 600" in shown
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["private"] is False
    assert content["warning"] == found.warning
    assert content["columns"] == NAMES
    assert content["correlation_error"]["before"] == {
        "raw": found.raw.before,
        "clamped": found.clamped.before,
    }
    assert content["correlation_error"]["after"]["raw"] == found.raw.after
    assert content["utility_improvement"]["clamped"] == found.clamped.improvement
    assert content["undefined"] == []
    assert content["reasons"] == PARTS
    assert content["row_counts"] == {"private": 600, "synthetic": 600, "post": 600}
    assert content["notes"] == []
    assert list(content) == KEYS
    same = rt.evaluate(REAL, REAL, POST).to_dict()
    assert same["utility_improvement"] == {"raw": None, "clamped": None}
    assert set(same["reasons"]) - set(PARTS) == {
        f"{part}utility_improvement.{kind}"
        for part in ("", "all_columns.")
        for kind in ("raw", "clamped")
    }


def test_correlations_beside_a_constant_are_undefined() -> None:
    values = np.array([[0.1, 0.2, 0.9], [0.3, 0.3, 0.3], [0.9, 0.5, 0.0]])
    found = correlation_matrix(values)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    assert found[0, 2] == pytest.approx(np.corrcoef(values[[0, 2]])[0, 1])
    assert np.isnan(correlation_matrix(np.full((2, 1000), 0.1))).all()  # rounding is no spread


def test_inputs_are_not_changed() -> None:
    frames = [t.to_pandas() for t in (REAL, SYNTHETIC, POST)]
    copies = [f.copy(deep=True) for f in frames]
    rt.evaluate(*frames)
    for frame, copy in zip(frames, copies, strict=True):
        pd.testing.assert_frame_equal(frame, copy)
