"""Cumulative shares and quantiles."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retilt as rt
from retilt.exceptions import WorkloadError
from retilt.measures.base import Block, Relation, Terms
from retilt.measures.distributions import Cdf, CdfBlock, QuantileBlock, Quantiles
from retilt.measures.marginals import Marginal
from retilt.measures.queries import QuerySet
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema

AGE, PAY = Numeric(17, 90, integer=True), Numeric(0.0, 1000.0)
DAY = Datetime(datetime(2020, 1, 1), datetime(2020, 12, 31))
SCHEMA = Schema({"age": AGE, "pay": PAY, "day": DAY, "sex": Categorical(("F", "M"))})
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE


def encoded(block: Block, cells: Any) -> list[Any]:
    column = pa.chunked_array([pa.array(cells)])
    return [f.encode(lambda _: column, len(column)) for f in block.features]


def answers_of(block: Block, cells: Any) -> np.ndarray:
    return np.array(block.sums(encoded(block, cells))) / len(cells)


def cdf(name: str, *thresholds: Any, relation: Relation = REPLACE) -> CdfBlock:
    return Cdf(name, thresholds).bind(Terms(SCHEMA, relation=relation))


def quantiles(
    name: str, cells: Any, *probabilities: float, relation: Relation = REPLACE, **options: Any
) -> QuantileBlock:
    measure = Quantiles(name, probabilities or (0.25, 0.5, 0.75), **options)
    values = np.array([np.nan if c is None else c for c in cells], dtype=np.float64)
    return measure.with_edges(SCHEMA, {name: values}).bind(Terms(SCHEMA, relation=relation))


# --- cumulative shares -------------------------------------------------------------------


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_a_threshold_includes_itself_and_null_counts_as_none(relation: Relation) -> None:
    block = cdf("age", 17, 30, 31.5, 90, relation=relation)
    cells = [17.0, 17.0, 30.0, 31.0, 31.5, 32.0, 90.0, 200.0, -5.0, None]
    assert block.statistics == (
        "cdf(age <= 17)",
        "cdf(age <= 30)",
        "cdf(age <= 31.5)",
        "cdf(age <= 90)",
    )
    np.testing.assert_allclose(block.evaluate(answers_of(block, cells)), [0.3, 0.4, 0.6, 0.9])


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.data())
def test_cumulative_shares_of_anything(cells: list[float], data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from([*cells, 0.0, 1000.0]), min_size=1, unique=True))
    thresholds = sorted(set(some))
    block = cdf("pay", *thresholds)
    expected = [np.mean(np.array(cells) <= t) for t in thresholds]
    np.testing.assert_allclose(block.evaluate(answers_of(block, cells)), expected, atol=1e-12)
    assert len(set(block.statistics)) == len(thresholds)


def test_thresholds_of_dates() -> None:
    block = cdf("day", date(2020, 2, 1), datetime(2020, 6, 1, 12), "2020-12-31")
    assert block.statistics == (
        "cdf(day <= 2020-02-01)",
        "cdf(day <= 2020-06-01 12:00:00)",
        "cdf(day <= 2020-12-31)",
    )
    day = [datetime(2020, 2, 1), datetime(2020, 2, 1, 0, 0, 0, 1), datetime(2020, 6, 1, 12), None]
    found = block.evaluate(answers_of(block, pa.array(day, pa.timestamp("us"))))
    np.testing.assert_allclose(found, [0.25, 0.75, 0.75])
    zoned = Cdf("day", (datetime(2020, 6, 1, 12, tzinfo=UTC), "2020-07-01T02:00:00+02:00"))
    assert zoned.thresholds == ("2020-06-01 12:00:00", "2020-07-01")


@pytest.mark.parametrize(
    ("thresholds", "match"),
    [
        ((), "got 0 thresholds"),
        ((30, 30), "ascending"),
        ((40, 30), "ascending"),
        ((16.9,), "from 17 to 90"),
        ((91,), "from 17 to 90"),
        ((float("nan"),), "finite number"),
        ((float("inf"),), "finite number"),
        ((True,), "finite number"),
        (("soon",), "finite number, or a date"),
        (("2020-01-01",), "must be numbers"),
        ((30, "2020-01-01"), "must be numbers"),
        ((10**400,), "finite number"),
        (tuple(np.linspace(20, 30, 1001)), "got 1001 thresholds"),
    ],
)
def test_wrong_thresholds_are_refused(thresholds: Any, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        cdf("age", *thresholds)


def test_only_numbers_and_dates_have_a_distribution() -> None:
    schema = Schema({"sex": Categorical(("F", "M")), "flag": Boolean()})
    for name in ("sex", "flag"):
        for measure in (Cdf(name, (1,)), Quantiles(name)):
            with pytest.raises(WorkloadError, match=f"{name!r} is .* marginal"):
                measure.bind(Terms(schema))
        with pytest.raises(WorkloadError, match="numeric or datetime"):
            Quantiles(name).with_edges(schema, {})
    with pytest.raises(WorkloadError, match="must be dates"):
        cdf("day", 30)


def test_noisy_cumulative_shares_are_made_ascending() -> None:
    block = cdf("age", 20, 30, 40, 50, relation=ADD_REMOVE)
    noisy = np.array([-0.1, 0.4, -0.2, 0.8, 0.1, 0.0])
    # Cumulative: -0.1, 0.3, 0.1, 0.9; the middle two are pooled, the first is clipped.
    np.testing.assert_allclose(block.evaluate(noisy), [0, 0.2, 0.2, 0.9])
    assert block.evaluate(np.array([0.5, 0.8, 0.0, 0.0, 0.0, 0.0])).max() == 1
    assert not block.dominated(noisy, np.ones(6), np.zeros((6, 0))).any()


def test_bins_without_a_synthetic_row_are_told() -> None:
    block = cdf("age", 20, 30, 40)
    arrays = encoded(block, [18, 35, 60])
    answers = np.array([0.2, 0.3, 0.2, 0.1, 0.2])
    assert block.shortfalls(arrays, answers, np.full(5, 0.01)) == [
        "cdf(age <= 30): measured 0.3 ± 0.01 of all rows with 20 < age <= 30, but no synthetic "
        "row has such a value.",
        "cdf(age <= 40): measured 0.2 ± 0.01 of all rows with age null, but no synthetic row has "
        "such a value.",
    ]
    assert block.shortfalls(arrays, answers, np.full(5, 0.11)) == []
    ends = encoded(block, [25, 35])
    found = block.shortfalls(ends, answers, np.full(5, 0.01))
    assert any("age <= 20, but" in s for s in found)
    assert any("age > 40, but" in s for s in found)


# --- quantiles ---------------------------------------------------------------------------


def test_quantiles_of_whole_numbers_are_the_smallest_that_reach() -> None:
    cells = [20] * 40 + [30] * 30 + [41] * 20 + [80] * 10
    block = quantiles("age", cells, 0.2, 0.4, 0.41, 0.7, 0.701, 0.9, 0.99)
    found = block.evaluate(answers_of(block, cells))
    np.testing.assert_array_equal(found, [20, 20, 30, 30, 41, 41, 80])
    assert block.statistics[1] == "quantile(age, 0.4)"


@given(st.lists(st.integers(17, 90), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_few_whole_numbers_have_exact_quantiles(cells: list[int], probability: float) -> None:
    """With as many bins as values each has a bin of its own."""
    block = quantiles("age", cells, probability, bins=1000)
    (found,) = block.evaluate(answers_of(block, cells))
    cumulative = np.arange(1, len(cells) + 1) / len(cells)
    place = int(np.searchsorted(cumulative, probability - 1e-9))
    assert found == sorted(cells)[place]


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_quantiles_of_a_continuous_column(relation: Relation) -> None:
    rng = np.random.default_rng(3)
    cells = 300 + 100 * rng.random(20_000) ** 2
    asked = (0.01, 0.25, 0.5, 0.9, 0.99)
    block = quantiles("pay", cells, *asked, relation=relation)
    other = 300 + 100 * np.random.default_rng(4).random(5_000) ** 2
    for values in (cells, other):
        found = block.evaluate(answers_of(block, values))
        np.testing.assert_allclose(found, np.quantile(values, asked), atol=0.5)


def test_a_frequent_value_is_a_quantile_in_full() -> None:
    rng = np.random.default_rng(3)
    cells = np.concatenate([np.zeros(600), rng.random(400) * 500])
    block = quantiles("pay", cells, 0.1, 0.5, 0.59, 0.8)
    found = block.evaluate(answers_of(block, cells))
    np.testing.assert_allclose(found[:3], 0, atol=1e-9)
    assert found[3] == pytest.approx(np.quantile(cells, 0.8), abs=10)


def test_null_has_no_quantile_and_no_values_none() -> None:
    cells = [20, 30, 40, 50, None, None, None, None]
    block = quantiles("age", cells, 0.5, bins=10)
    assert block.evaluate(answers_of(block, pa.array(cells, pa.int64()))) == [30]
    empty = answers_of(block, pa.array([None, None], pa.int64()))
    assert np.isnan(block.evaluate(empty)).all()
    variances, none = np.full(block.size, 1e-6), np.zeros((block.size, 0))
    assert np.isnan(block.standard_errors(empty, variances, none)).all()
    assert block.dominated(empty, variances, none).all()


def test_quantiles_of_dates_are_seconds() -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    seconds = start + np.arange(300) * 86_400
    block = quantiles("day", seconds * 1e6, 0.5, bins=20)
    cells = pa.array((seconds * 1e6).astype(np.int64)).cast(pa.timestamp("us"))
    assert block.evaluate(answers_of(block, cells)) == pytest.approx(np.median(seconds), abs=86_400)


def test_edges_reach_the_ends_of_the_values_and_no_further() -> None:
    def edges(column: Column, values: Any, bins: Any) -> tuple[float, ...]:
        made = Quantiles("x", bins=bins).with_edges(
            Schema({"x": column}), {"x": np.asarray(values, dtype=np.float64)}
        )
        assert made.edges is not None
        return made.edges["x"]

    values = np.arange(20, 60)
    found = edges(AGE, values, 4)
    assert found == (20, 30, 40, 50, 60)
    assert edges(AGE, [17, 90], 4) == (18, 90)
    assert edges(AGE, [], 4) == edges(AGE, [np.nan], 4) == edges(Numeric(5, 5), [5], 4) == ()
    assert edges(AGE, values, (25.0, 30.5)) == (25.0, 30.5)
    heavy = edges(PAY, [0.0] * 50 + list(range(1, 51)), 10)
    assert heavy[0] == np.nextafter(0, 1)


@pytest.mark.parametrize(
    "probabilities", [(), (0.0,), (1.0,), (0.5, 0.5), (0.9, 0.1), (float("nan"),), ("a",), (True,)]
)
def test_wrong_probabilities_are_refused(probabilities: Any) -> None:
    with pytest.raises(WorkloadError, match="ascending numbers above 0 and below 1"):
        Quantiles("age", probabilities)


def test_wrong_bins_are_refused() -> None:
    with pytest.raises(WorkloadError, match="expected 1 to 1000"):
        Quantiles("age", bins=0)
    with pytest.raises(WorkloadError, match="ascending inner edges"):
        Quantiles("age", bins=(3.0, 2.0))
    with pytest.raises(WorkloadError, match="no bin edges were fixed for 'age'"):
        Quantiles("age").bind(Terms(SCHEMA))


@pytest.mark.parametrize("edges", [(17.0, 40.0), (40.0, 90.5), (40.0, 1e308)])
def test_edges_beyond_the_bounds_are_refused(edges: tuple[float, ...]) -> None:
    """They would make the values of the last bin cross, or overflow."""
    measure = Quantiles("age", (0.5,), edges={"age": edges})
    with pytest.raises(WorkloadError, match="above 17 and up to 90"):
        measure.bind(Terms(SCHEMA))


def test_noise_never_makes_quantiles_cross() -> None:
    rng = np.random.default_rng(8)
    cells = rng.normal(500, 100, 2000)
    block = quantiles("pay", cells, *np.linspace(0.05, 0.95, 19))
    exact = answers_of(block, cells)
    none = np.zeros((block.size, 0))
    for spread in (1e-3, 1e-2, 1e-1, 1.0):
        noisy = exact + rng.normal(0, spread, block.size)
        with np.errstate(all="raise"):
            found = block.evaluate(noisy)
            errors = block.standard_errors(noisy, np.full(block.size, spread**2), none)
        assert np.isnan(found).all() or (np.diff(found) >= 0).all()
        assert np.array_equal(np.isnan(found), np.isnan(errors))


def test_a_quantile_in_a_drowned_bin_is_flagged() -> None:
    cells = np.linspace(0, 1000, 5000)
    block = quantiles("pay", cells, 0.5, bins=10, relation=ADD_REMOVE)
    exact, none = answers_of(block, cells), np.zeros((block.size, 0))
    own = exact[block._curve(exact).places(np.array([0.5]))[0]]  # type: ignore[union-attr]
    for errors, flag in ((own / 10.2, False), (own / 9.8, True)):
        variance = errors**2 / (1 - 1 / block.size)  # the known total takes a part of it
        assert block.dominated(exact, np.full(block.size, variance), none).tolist() == [flag]


def test_empty_bins_are_told_under_the_nearest_quantile() -> None:
    block = quantiles("age", [20, 30, 40, 50], 0.25, 0.75, bins=(30.0, 40.0, 50.0))
    answers = np.array([0.25, 0.25, 0.25, 0.25, 0])
    found = block.shortfalls(encoded(block, [20, 30, 40]), answers, np.full(5, 0.01))
    assert found == [
        "quantile(age, 0.75): measured 0.25 ± 0.01 of all rows in the bin age=[50, 90], but no "
        "synthetic row lies in it."
    ]


def test_one_partition_serves_all_that_ask_for_it() -> None:
    edges = (30.0, 40.0)
    terms = Terms(SCHEMA)
    queries = QuerySet(
        (
            Quantiles("age", (0.5,), edges={"age": edges}).bind(terms),
            Marginal(("age",), edges={"age": edges}).bind(terms),
            Quantiles("age", (0.5, 0.6), edges={"age": edges}).bind(terms),
            Quantiles("age", (0.5,), edges={"age": (30.0,)}).bind(terms),
        )
    )
    assert [len(k) for k in queries.kept] == [4, 0, 0, 3]
    assert queries.statistics.count("quantile(age, 0.5)") == 2


def test_a_plan_names_a_bin_that_covers_much_of_the_column() -> None:
    table = pa.table({"pay": np.linspace(0, 100, 500)})
    said = []
    for upper in (110.0, 1e6):
        plan = rt.plan(
            table,
            rt.quantiles("pay"),
            epsilon=1.0,
            delta=1e-6,
            rows=500,
            schema={"pay": Numeric(0, upper)},
        )
        said.append([n for n in plan.notes if "interpolated across it" in n])
    assert said[0] == []
    (note,) = said[1]
    assert "100% of the column's range" in note
