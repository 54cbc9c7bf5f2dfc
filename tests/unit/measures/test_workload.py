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
        ("measures = 3", "double brackets"),
        ('title = "x"\n[[measures]]\nkind = "moments"\ncolumns = ["a"]', "got 'title'"),
        ('[[measures]]\nkind = "mean"\ncolumns = ["a"]', "measure 1: kind: got 'mean'"),
        ('[[measures]]\ncolumns = ["a"]', "kind: got None"),
        ("measures = [1]", "kind: got 1"),
        ('[[measures]]\nkind = "moments"', "columns missing"),
        ('[[measures]]\nkind = "moments"\ncolumns = "age"', "list of column names"),
        (
            '[[measures]]\nkind = "moments"\ncolumns = ["a"]\ncolour = 3',
            "unknown 'colour'; allowed",
        ),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nk = 1', "unknown 'k'"),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nbins = {a = true}', "bins of 'a'"),
        ('[[measures]]\nkind = "marginal"\ncolumns = ["a"]\nbins = {a = 1.5}', "bins of 'a'"),
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
    with pytest.raises(WorkloadError, match="a folder"):
        load_workload(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(WorkloadError, match="is not TOML"):
        load_workload(tmp_path / "latin.toml")


def test_the_number_of_the_bad_measure_is_told() -> None:
    good = {"kind": "moments", "columns": ["a"]}
    with pytest.raises(WorkloadError, match="measure 2: order"):
        workload_from_dict({"measures": [good, {**good, "order": 5}]})


# --- the other constructors ---------------------------------------------------------------


def test_groups_and_conditions() -> None:
    (made,) = rt.means("pay", by="sex", where="age>=65").measures
    assert (made.kind, made.columns) == ("means", ("pay", "sex", "age"))
    (made,) = rt.regression("pay", "age", by=["sex", "city"]).measures
    assert (made.kind, made.columns) == ("regression", ("pay", "age", "sex", "city"))
    (made,) = rt.share("age>=65", by="pay", bins=4).measures
    assert made.default_bins == 4
    (made,) = rt.correlation(["a", "b"], by="c", bins={"c": [1, 2]}).measures
    assert dict(made.bins) == {"c": (1, 2)}


def test_means_of_all_rows_are_moments_of_order_one() -> None:
    assert rt.means(["a", "b"]) == rt.moments(["a", "b"], 1)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: rt.means("pay", by="pay"), "both measured and named in by"),
        (lambda: rt.means("pay", by=[]), "no columns"),
        (lambda: rt.means("pay", by="sex", bins={"age": 3}), "'age' not among the columns"),
        (lambda: rt.means("pay", by="sex", bins="3"), "bins: got '3'"),
        (lambda: rt.means("pay", by="sex", bins={"sex": "3"}), "bins of 'sex'"),
        (lambda: rt.means("pay", where="age > (SELECT 1)"), "a subquery"),
        (lambda: rt.means("pay", where="age + 1"), "a condition is needed"),
        (lambda: rt.regression("pay", []), "at least two"),
        (lambda: rt.regression("pay", "pay"), "named twice"),
        (lambda: rt.share("count(*) > 3"), "other rows"),
        (lambda: rt.share("age + 1"), "a condition is needed"),
        (lambda: rt.query("age", 1, 1), "lower < upper"),
        (lambda: rt.query("random()"), "a different value each time"),
        (lambda: rt.cdf("age", []), "threshold"),
        (lambda: rt.quantiles("age", [0, 0.5]), "probabilities"),
        (lambda: rt.function(3, ["age"]), "expected a callable"),
        (lambda: rt.function(len, "age"), "list of column names"),
        (lambda: rt.keep("everything"), "expected a workload"),
        (lambda: rt.keep(rt.Workload()), "expected a workload"),
        (lambda: rt.keep(rt.keep("marginals")), "expected a workload"),
        (lambda: rt.keep(rt.function(len, ["age"])), "can't be kept"),
        (lambda: rt.keep("marginals", 0), "tolerance"),
        (lambda: rt.keep(rt.marginal(["a"]), float("nan")), "tolerance"),
        (lambda: rt.keep(rt.marginal(["a"]), True), "tolerance"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        make()


def test_guards_are_not_columns_to_measure() -> None:
    both = rt.means("a") + rt.keep(rt.marginals(["b", "c"], weight=3), 0.01)
    assert both.columns == ("a",)
    assert [g.tolerance for g in both.guards] == [0.01, 0.01]
    assert {g.measure.weight for g in both.guards} == {1.0}


EVERY = """
[[measures]]
kind = "means"
columns = ["pay"]
by = ["sex"]
where = "age >= 65"
weight = 2

[[measures]]
kind = "share"
predicate = "age >= 65"
by = "sex"

[[measures]]
kind = "query"
expression = "least(pay, 10)"
upper = 10

[[measures]]
kind = "cdf"
column = "day"
thresholds = [2020-01-01, "2021-01-01"]

[[measures]]
kind = "quantiles"
column = "pay"
probabilities = [0.1, 0.9]
bins = 30

[[measures]]
kind = "regression"
target = "pay"
on = ["age"]

[[keep]]
kind = "marginals"

[[keep]]
kind = "correlation"
columns = ["age", "pay"]
tolerance = 0.01
"""


def test_every_kind_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(EVERY)
    made = load_workload(tmp_path / "w.toml")
    kinds = ["means", "share", "query", "cdf", "quantiles", "regression"]
    assert [m.kind for m in made.measures] == kinds
    assert made.measures[0].weight == 2
    assert made.measures[3].columns == ("day",)
    assert len(made.guards) == 2
    expected = (
        rt.means("pay", by="sex", where="age >= 65", weight=2)
        + rt.share("age >= 65", by="sex")
        + rt.query("least(pay, 10)", upper=10)
    )
    assert made.measures[:3] == expected.measures


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('[[measures]]\nkind = "share"', "predicate missing"),
        ('[[measures]]\nkind = "function"', "kind: got 'function'"),
        ('[[measures]]\nkind = "share"\npredicate = 3', "measure 1: "),
        ('[[measures]]\nkind = "query"\nexpression = "x"\nlower = "a"', "lower"),
        ('[[keep]]\nkind = "marginals"\ntolerance = -1', "keep 1: keep: tolerance"),
        ("[[keep]]\ntolerance = 1", "keep 1: kind: got None"),
        ("keep = 3", "expected \\[\\[measures"),
        ("keep = [3]", "keep 1: got 3"),
        ("a = " + "[" * 5_000, "nested too deeply|is not EVERY"),
    ],
)
def test_malformed_measures_and_guards(content: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(content)
    with pytest.raises(WorkloadError, match=word):
        load_workload(tmp_path / "w.toml")
