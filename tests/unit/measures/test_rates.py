"""Shares under a condition, overall and in groups, and means of formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from retilt.exceptions import WorkloadError
from retilt.measures.base import Block, Relation, Terms
from retilt.measures.marginals import Marginal
from retilt.measures.moments import MomentsBlock
from retilt.measures.queries import QuerySet
from retilt.measures.rates import RateBlock, Share
from retilt.measures.scalars import Query
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "age": Numeric(17, 90, integer=True),
        "pay": Numeric(0.0, 1000.0),
        "sex": Categorical(("F", "M")),
    }
)
ROWS = 4000
BOTH = [Terms(SCHEMA), Terms(SCHEMA, relation=Relation.ADD_REMOVE)]


def people() -> pa.Table:
    rng = np.random.default_rng(5)
    age = rng.integers(17, 91, ROWS)
    return pa.table(
        {
            "age": pa.array(np.where(rng.random(ROWS) < 0.05, None, age).tolist(), pa.int64()),
            "pay": rng.random(ROWS) ** 2 * 1000,
            "sex": rng.choice(["F", "M", "?"], ROWS, p=[0.3, 0.6, 0.1]),
        }
    )


TABLE = people()


def encoded(block: Block, table: pa.Table = TABLE) -> list[Any]:
    return [f.encode(table.__getitem__, table.num_rows) for f in block.features]


def answers_of(block: Block, table: pa.Table = TABLE) -> np.ndarray:
    sums = block.sums(encoded(block, table))
    return np.array([s / u / table.num_rows for s, u in zip(sums, block.units, strict=True)])


# --- overall -----------------------------------------------------------------------------


@pytest.mark.parametrize("terms", BOTH)
def test_a_share_is_the_mean_of_a_condition(terms: Terms) -> None:
    block = Share("age>=65").bind(terms)
    assert isinstance(block, MomentsBlock)
    assert block.statistics == ("share(age >= 65)",)
    age = np.array(TABLE["age"].to_pylist(), dtype=np.float64)
    assert block.evaluate(answers_of(block)) == pytest.approx((age >= 65).mean())  # null: false
    error = block.standard_errors(answers_of(block), np.array([4e-6]), np.zeros((1, 0)))
    assert error == pytest.approx(1e-3)  # z = 2x - 1
    assert block.sensitivity() == (4 if terms.relation is Relation.REPLACE else 1)


@pytest.mark.parametrize("terms", BOTH)
def test_a_query_is_the_mean_of_a_formula(terms: Terms) -> None:
    block = Query("case when age < 30 then pay end", 100, 600).bind(terms)
    assert block.statistics == ("mean(CASE WHEN age < 30 THEN pay END)",)
    age = np.array(TABLE["age"].to_pylist(), dtype=np.float64)
    value = np.where(age < 30, np.clip(TABLE["pay"].to_numpy(), 100, 600), 100)
    assert block.evaluate(answers_of(block)) == pytest.approx(value.mean(), rel=1e-4)
    error = block.standard_errors(answers_of(block), np.array([4e-6]), np.zeros((1, 0)))
    assert error == pytest.approx(500 * 1e-3)


def test_formulas_with_other_bounds_are_other_queries() -> None:
    blocks = [Query("age", 0, top).bind(Terms(SCHEMA)) for top in (50, 100, 100)]
    queries = QuerySet(tuple(blocks))
    assert queries.size == 2
    assert len(queries.statistics) == 2


def test_a_formula_is_not_the_column_that_it_reads() -> None:
    queries = QuerySet((Query("age", 0, 50).bind(Terms(SCHEMA)), Share("sex = 'F'").bind(BOTH[0])))
    assert queries.size == 2


def test_columns_are_those_that_are_read() -> None:
    assert Share("age > 30 AND sex = 'F'", by=("sex", "pay")).columns == ("age", "sex", "pay")
    assert Query("pay + age", 0, 1).columns == ("pay", "age")
    assert Share("age>30").predicate == "age > 30"
    assert (Share("age > 30").kind, Query("age", 0, 1).kind) == ("share", "query")


def test_what_is_no_share_or_query_is_refused() -> None:
    with pytest.raises(WorkloadError, match="lower < upper"):
        Query("age", 1, 1)
    with pytest.raises(WorkloadError, match="finite number"):
        Query("age", 0, float("inf"))
    with pytest.raises(WorkloadError, match="not admitted"):
        Query("avg(age)", 0, 1)
    with pytest.raises(WorkloadError, match="a condition is needed"):
        Share("age + 1")
    with pytest.raises(WorkloadError, match="distinct column names"):
        Share("age > 1", by=("sex", "sex"))
    with pytest.raises(WorkloadError, match="distinct column names"):
        Share("age > 1", by="sex")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="joins a number and text"):
        Share("age > 'old'").bind(Terms(SCHEMA))
    with pytest.raises(WorkloadError, match="no bin edges were fixed for 'pay'"):
        Share("age > 1", by=("pay",)).bind(Terms(SCHEMA))
    with pytest.raises(WorkloadError, match="'sex' is not numeric"):
        Share("age > 1", by=("sex",), bins={"sex": 3}).with_edges(SCHEMA, {})
    wide = Schema({"age": Numeric(0, 9), "id": Categorical(tuple(map(str, range(60_000))))})
    with pytest.raises(WorkloadError, match=r"share by 'id': it has 120,004 cells"):
        Share("age > 1", by=("id",)).bind(Terms(wide))


# --- in groups ---------------------------------------------------------------------------


@pytest.mark.parametrize("terms", BOTH)
def test_rates_are_those_of_the_groups(terms: Terms) -> None:
    values = {"pay": TABLE["pay"].to_numpy()}
    measure = Share("age >= 65", by=("sex", "pay"), bins={"pay": 2}).with_edges(SCHEMA, values)
    assert measure.edges is not None
    (middle,) = measure.edges["pay"]
    block = measure.bind(terms)
    found = dict(zip(block.statistics, block.evaluate(answers_of(block)), strict=True))
    age = np.array(TABLE["age"].to_pylist(), dtype=np.float64)
    sex, pay = np.array(TABLE["sex"].to_pylist()), values["pay"]
    bins = {f"[0, {middle:.6g})": pay < middle, f"[{middle:.6g}, 1000]": pay >= middle}
    expected = {
        f"share(age >= 65 | sex={name}, pay={bin})": (age >= 65)[(sex == name) & inside].mean()
        for name in ("F", "M")
        for bin, inside in bins.items()
    }
    assert found == pytest.approx(expected)  # no rates of other, nor of null


def test_null_is_a_group_where_the_column_is_nullable() -> None:
    for nullable, groups in ((False, ("sex=F", "sex=M")), (True, ("sex=F", "sex=M", "sex=null"))):
        columns = {**SCHEMA.columns, "sex": Categorical(("F", "M"), nullable=nullable)}
        block = Share("age >= 65", by=("sex",)).bind(Terms(Schema(columns)))
        assert isinstance(block, RateBlock)
        assert block.groups == groups
        assert block.size == 8  # all cells are measured whatever is reported
        assert [*block.named] == [0, 1, 3][: len(groups)]
    table = pa.table({"age": [70, 70, 20], "pay": [1.0] * 3, "sex": [None, None, None]})
    table = table.set_column(2, "sex", table["sex"].cast(pa.string()))
    found = block.evaluate(answers_of(block, table))
    assert found[2] == pytest.approx(2 / 3)
    assert np.isnan(found[:2]).all()


def rates(terms: Terms) -> RateBlock:
    block = Share("age >= 65", by=("sex",)).bind(terms)
    assert isinstance(block, RateBlock)
    return block


def test_rates_are_clipped() -> None:
    block = rates(BOTH[1])
    answers = np.array([0.5, -0.1, -0.1, 0.4, 0.1, 0.2, 0.0, 0.0])
    assert block.evaluate(answers) == pytest.approx([0, 1])
    none = block.evaluate(np.array([-0.2, 0.1, 0.5, 0.5, 0, 0, -1, -1]))
    assert np.isnan(none).tolist() == [True, False]


def test_a_group_that_drowns_is_flagged() -> None:
    variances, none = np.full(8, 1e-4), np.zeros((8, 0))
    # Two cells' noise; projected, a quarter of the sum of all eight comes off each group.
    for terms, squared in ((BOTH[0], 2 * 0.75**2 + 6 * 0.25**2), (BOTH[1], 2.0)):
        error = 1e-2 * np.sqrt(squared)
        for count, flag in ((10.2, False), (9.8, True)):
            share = count * error
            answers = np.array([share, 0, 0, (1 - share), 0, 0, 0, 0])
            assert rates(terms).dominated(answers, variances, none).tolist() == [flag, False]
    empty = np.array([0, 0, 0.5, 0.5, 0, 0, 0, 0])
    assert rates(BOTH[1]).dominated(empty, variances, none).tolist() == [True, False]
    # The common part counts too.
    answers = np.array([0.5, 0, 0.5, 0, 0, 0, 0, 0])
    loud = answers[:, None] * 0.3
    assert rates(BOTH[1]).dominated(answers, variances * 0, loud)[0]


@pytest.mark.parametrize("terms", BOTH)
def test_groups_that_no_weights_can_reach_are_told(terms: Terms) -> None:
    block = rates(terms)
    table = pa.table({"age": [70, 20, 30, 80], "sex": ["F", "M", "M", "?"]})
    table = table.append_column("pay", pa.array([1.0] * 4))
    answers = np.array([0.2, 0.2, 0.2, 0.1, 0.0, 0.1, 0.2, 0.0])
    found = block.shortfalls(encoded(block, table), answers, np.full(8, 0.01))
    assert found == [
        "share(age >= 65 | sex=M): measured 0.1 ± 0.01 of all rows in this group and meeting the "
        "condition, but no synthetic row in it meets it.",
        "share(age >= 65 | sex=F): measured 0.2 ± 0.01 of all rows in this group and failing the "
        "condition, but no synthetic row in it fails it.",
    ]
    assert block.shortfalls(encoded(block, table), answers, np.full(8, 0.1)) == []
    men = table.filter(pa.array([False, True, True, True]))
    assert block.shortfalls(encoded(block, men), answers, np.full(8, 0.01))[0] == (
        "share(age >= 65 | sex=F): measured 0.4 ± 0.014 of all rows in this group, but no "
        "synthetic row lies in it."
    )


def test_rates_share_their_queries_with_the_same_partition_only() -> None:
    blocks = [
        Share("age >= 65", by=("sex",)).bind(Terms(SCHEMA)),
        Share("age>=65", by=("sex",)).bind(Terms(SCHEMA)),
        Share("age >= 66", by=("sex",)).bind(Terms(SCHEMA)),
        Marginal(("sex",)).bind(Terms(SCHEMA)),
    ]
    queries = QuerySet(tuple(blocks))
    assert [len(k) for k in queries.kept] == [8, 0, 8, 4]
    assert len(queries.statistics) == 2 + 2 + 4
