"""Queries of several blocks together: asked once, handed back to each, told by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from retilt.measures.base import Relation, Terms
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments
from retilt.measures.queries import QuerySet, describe_duplicates
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "a": Numeric(0, 10),
        "b": Numeric(0, 7, integer=True),
        "c": Categorical(("x", "y")),
        "d": Categorical(("p", "q", "r")),
    }
)
ROWS = 400


def table(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    common = rng.random(ROWS)
    return pa.table(
        {
            "a": 5 * (common + rng.random(ROWS)),
            "b": np.rint(7 * (common + rng.random(ROWS)) / 2).astype(int),
            "c": np.where(rng.random(ROWS) < common, "x", "y"),
            "d": rng.choice(["p", "q", "r", "?"], ROWS),
        }
    )


def queries_of(*measures: Moments | Marginal) -> QuerySet:
    return QuerySet(
        tuple(
            m.bind(Terms(SCHEMA, basis="centred", norm=2, relation=Relation.REPLACE))
            if isinstance(m, Moments)
            else m.bind(Terms(SCHEMA, norm=2, relation=Relation.REPLACE))
            for m in measures
        )
    )


def encoded(queries: QuerySet, rows: pa.Table) -> dict:
    return {f: f.encode(rows.__getitem__, 0) for f in queries.features}


def means(queries: QuerySet, rows: pa.Table) -> np.ndarray:
    return queries.means(encoded(queries, rows), rows.num_rows)


def test_every_statistic_is_that_of_its_own_block_alone() -> None:
    measures = (
        Moments(("a", "b")),
        Moments(("c", "b", "a"), statistics="correlation"),
        Marginal(("d", "c")),
        Marginal(("d",)),
        Moments(("c",), order=1),
    )
    together = queries_of(*measures)
    found = dict(zip(together.statistics, together.evaluate(means(together, table())), strict=True))
    for measure in measures:
        alone = queries_of(measure)
        own = zip(alone.statistics, alone.evaluate(means(alone, table())), strict=True)
        for name, value in own:
            assert found[name] == pytest.approx(value, abs=1e-12), name


def test_a_statistic_asked_twice_is_told_once_and_under_its_first_name() -> None:
    queries = queries_of(Moments(("a", "b")), Moments(("a", "b", "c")), Moments(("b", "a")))
    names = queries.statistics
    assert len(names) == len(set(names))
    assert names[:5] == ("mean(a)", "mean(b)", "sd(a)", "sd(b)", "corr(a, b)")
    # Each block's own order of names: corr(b, a) is another name for an old number.
    assert names.count("corr(a, b)") == 1
    assert "corr(a, c)" in names


def test_equal_tables_are_told_once_but_finer_ones_are_others() -> None:
    one, same = Marginal(("d",)), Marginal(("d",), weight=3)
    queries = queries_of(one, same)
    assert queries.size == 5
    assert len(queries.statistics) == 5
    coarse, fine = (Marginal(("b",), edges={"b": e}) for e in ((3.0,), (3.0, 5.0)))
    both = queries_of(coarse, fine)
    assert both.size == 3 + 4
    assert len(both.statistics) == 3 + 4
    assert describe_duplicates(both) == []


def test_answers_go_back_to_each_block() -> None:
    queries = queries_of(Moments(("a", "b")), Moments(("b", "c"), order=1))
    answers = np.arange(queries.size, dtype=np.float64)
    first, second = queries.block_answers(answers)
    assert first.tolist() == answers[:5].tolist()  # z_a, z_b, the squares, the product
    assert second.tolist() == [1.0, 5.0]  # b's, and c's own


def test_the_parts_fit_together() -> None:
    queries = queries_of(Moments(("a", "b")), Moments(("a", "b")), Marginal(("d",)))
    rows = table()
    columns = encoded(queries, rows)
    # A block that asks nothing gives the solver nothing.
    designs = queries.designs(columns)
    assert len(designs) == 2
    assert queries.size == len(queries.units) == len(queries.sums(columns)) == 10
    assert [f.name for f in queries.features] == ["a", "b", "d"]
    variances, none = np.full(queries.size, 1e-6), np.zeros((queries.size, 0))
    assert len(queries.standard_errors(means(queries, rows), variances, none)) == 10


def test_a_table_without_rows_answers_zero() -> None:
    queries = queries_of(Moments(("a", "b")), Marginal(("d",)))
    assert means(queries, table().slice(0, 0)).tolist() == [0.0] * queries.size
