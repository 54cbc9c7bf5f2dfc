"""Workloads: built in Python, read from TOML, refused with a clear message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import retilt as rt
from retilt.exceptions import WorkloadError
from retilt.measures.formats import load_workload, workload_from_dict
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments


def test_each_constructor_makes_its_measure() -> None:
    assert rt.moments(["a"]).measures == (Moments(("a",), order=2, weight=1.0),)
    assert rt.moments(("a", "b"), 1, weight=2).measures == (Moments(("a", "b"), 1, weight=2.0),)
    assert rt.correlation(["a", "b"], weight=0.5).measures == (
        Moments(("a", "b"), statistics="correlation", weight=0.5),
    )
    assert rt.marginal(["a", "b"]).measures == (Marginal(("a", "b"), default_bins=20),)
    assert rt.marginal(["a"], 7, weight=3).measures == (
        Marginal(("a",), default_bins=7, weight=3.0),
    )


def test_bins_by_column_are_a_number_or_edges() -> None:
    (made,) = rt.marginal(["a", "b", "c"], bins={"a": 4, "b": [1, 2.5]}).measures
    assert dict(made.bins) == {"a": 4, "b": (1, 2.5)}
    assert made.default_bins == 20


def test_marginals_are_all_tables_of_k_columns() -> None:
    made = rt.marginals(["a", "b", "c"], k=2, bins={"a": 3}, weight=2)
    assert [m.columns for m in made.measures] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [dict(m.bins) for m in made.measures] == [{"a": 3}, {"a": 3}, {}]
    assert {m.weight for m in made.measures} == {2.0}
    assert len(rt.marginals(["a", "b", "c"]).measures) == 3
    assert [m.columns for m in rt.marginals(["a", "b"], k=2).measures] == [("a", "b")]


def test_workloads_add_up_in_order_and_name_each_column_once() -> None:
    one, two = rt.moments(["b", "a"]), rt.marginals(["a", "c"])
    both = one + two
    assert both.measures == one.measures + two.measures
    assert both.columns == ("b", "a", "c")
    assert rt.Workload() + one == one
    assert rt.Workload().columns == ()
    with pytest.raises(TypeError):
        one + ["a"]  # type: ignore[operator]  # noqa: RUF005  (it must fail)


@pytest.mark.parametrize("make", [rt.moments, rt.correlation, rt.marginal, rt.marginals])
@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ("age", "list of column names"),
        (7, "list of column names"),
        (None, "list of column names"),
        ({"a", "b"}, "list of column names"),
        ([], "no columns"),
        (["a", 1], "expected text"),
        (["a", "b", "a"], "'a' named twice"),
    ],
)
def test_columns_are_distinct_names(make: Any, columns: Any, word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        make(columns)


@pytest.mark.parametrize("make", [rt.moments, rt.correlation, rt.marginal, rt.marginals])
@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "1", True, None])
def test_weights_are_positive_numbers(make: Any, weight: Any) -> None:
    with pytest.raises(WorkloadError, match="weight: got"):
        make(["a", "b"], weight=weight)


def test_order_is_one_or_two() -> None:
    for order in (0, 3, "2", None):
        with pytest.raises(WorkloadError, match="order: got"):
            rt.moments(["a"], order)  # type: ignore[arg-type]


def test_a_correlation_needs_two_columns() -> None:
    with pytest.raises(WorkloadError, match="at least two"):
        rt.correlation(["a"])


@pytest.mark.parametrize("k", [0, 4, -1, 1.0, True, "2", None])
def test_k_is_from_one_to_the_number_of_columns(k: Any) -> None:
    with pytest.raises(WorkloadError, match=r"k = .*from 1 to the number of columns \(3\)"):
        rt.marginals(["a", "b", "c"], k=k)


@pytest.mark.parametrize(
    ("bins", "word"),
    [
        (0, "1 to 1000"),
        (1001, "1 to 1000"),
        (True, "expected a number of bins"),
        ("ten", "expected a number or a table"),
        ([1, 2], "expected a number or a table"),
        ({"a": 0}, "1 to 1000"),
        ({"a": [2, 1]}, "ascending"),
        ({"a": [1, 1]}, "ascending"),
        ({"a": [1, float("nan")]}, "ascending"),
        ({"a": [float("inf")]}, "ascending"),
        ({"a": ["x", "y"]}, "ascending"),
        ({"a": [False, True]}, "ascending"),
    ],
)
def test_bins_are_counts_or_ascending_edges(bins: Any, word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        rt.marginal(["a", "b"], bins=bins)


@pytest.mark.parametrize("make", [rt.marginal, rt.marginals])
def test_bins_of_a_column_that_is_not_there_are_refused(make: Any) -> None:
    with pytest.raises(WorkloadError, match="'agee'"):
        make(["age", "sex"], bins={"agee": 3})


TOML = """
[[measures]]
kind = "correlation"
columns = ["age", "hours, weekly"]
weight = 2.0

[[measures]]
kind = "moments"
columns = ["age"]
order = 1

[[measures]]
kind = "marginal"
columns = ["age", "sex"]
bins = { age = [30, 50.5] }

[[measures]]
kind = "marginals"
columns = ["sex", "city"]
k = 1
bins = 5
"""


def test_toml_says_the_same_as_python(tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(TOML, encoding="utf-8")
    expected = (
        rt.correlation(["age", "hours, weekly"], weight=2)
        + rt.moments(["age"], order=1)
        + rt.marginal(["age", "sex"], bins={"age": [30, 50.5]})
        + rt.marginals(["sex", "city"], k=1, bins=5)
    )
    assert load_workload(path) == load_workload(str(path)) == expected


def test_an_integer_weight_in_a_file_is_a_number_like_any_other() -> None:
    made = workload_from_dict({"measures": [{"kind": "marginals", "columns": ["a"], "weight": 2}]})
    assert made == rt.marginals(["a"], weight=2.0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "got none"),
        ("measures = []", "got none"),
        ("measures = 3", "got none"),
        ('title = "x"\n[[measures]]\nkind = "moments"\ncolumns = ["a"]', "got title"),
        ('[[measures]]\nkind = "mean"\ncolumns = ["a"]', "measure 1: kind: got 'mean'"),
        ('[[measures]]\ncolumns = ["a"]', "kind: got None"),
        ("measures = [1]", "kind: got 1"),
        ('[[measures]]\nkind = "moments"', "columns are missing"),
        ('[[measures]]\nkind = "moments"\ncolumns = "age"', "list of column names"),
        ('[[measures]]\nkind = "moments"\ncolumns = ["a"]\nbins = 3', "unknown bins; allowed"),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nk = 1', "unknown k"),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nbins = {a = true}', "bins of 'a'"),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nbins = {a = 1.5}', "wrong type"),
        ("[[measures]", "is not TOML"),
    ],
)
def test_malformed_files_are_refused_by_name(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkloadError, match=word) as caught:
        load_workload(path)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        load_workload(tmp_path / "none.toml")
    with pytest.raises(WorkloadError, match="Is a directory"):
        load_workload(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(WorkloadError, match="is not TOML"):
        load_workload(tmp_path / "latin.toml")


def test_the_number_of_the_bad_measure_is_told() -> None:
    good = {"kind": "moments", "columns": ["a"]}
    with pytest.raises(WorkloadError, match="measure 2: order"):
        workload_from_dict({"measures": [good, {**good, "order": 5}]})
