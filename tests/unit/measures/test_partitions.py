"""What partitions have in common: their entries in files, rare cells, width."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest

from retilt.exceptions import FormatError, WorkloadError
from retilt.measures.base import Terms
from retilt.measures.distributions import Cdf, Quantiles
from retilt.measures.entries import read_edges, read_names, read_numbers, read_weight, reading
from retilt.measures.marginals import Marginal
from retilt.measures.partitions import Partition, rare
from retilt.measures.queries import QuerySet
from retilt.measures.rates import Share
from retilt.measures.scalars import Query
from retilt.privacy.allocation import block_scales
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "age": Numeric(17, 90, integer=True),
        "pay": Numeric(0.0, 1e6),
        "sex": Categorical(("F", "M")),
        "race": Categorical(tuple("abcdefgh")),
    }
)
MEASURES: dict[str, Any] = {
    "marginal": Marginal(("sex", "age"), edges={"age": (30.0, 60.0)}, weight=2.0),
    "share": Share("age >= 65", weight=0.5, edges={}),
    "share by": Share("age >= 65", ("sex", "pay"), edges={"pay": (1e4, 1e5)}),
    "query": Query("age / 2", 0, 50, weight=3),
    "cdf": Cdf("age", (30, 45.5, 90)),
    "cdf of dates": Cdf("day", ("2020-01-01", "2020-07-01 12:00")),
    "quantiles": Quantiles("pay", (0.1, 0.9), edges={"pay": (1e4, 1e5)}),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measures_survive_a_file(name: str) -> None:
    measure = MEASURES[name]
    entry = json.loads(json.dumps({**measure.to_dict(), "weight": measure.weight}))
    assert type(measure).from_dict(entry) == measure
    whole = {**entry, "kind": measure.kind, "scale": "1"}
    assert type(measure).from_dict(whole) == measure


@pytest.mark.parametrize("name", MEASURES)
def test_entries_are_read_strictly(name: str) -> None:
    measure = MEASURES[name]
    entry = json.loads(json.dumps(measure.to_dict()))
    broken: list[dict[str, Any]] = [{**entry, "more": 1}]
    for key in entry:
        broken.append({k: v for k, v in entry.items() if k != key})
        broken += [{**entry, key: v} for v in (None, 7.5j, {"x": "y"}, [[]], [math.nan], [{}])]
    for weight in (0, -1, math.inf, math.nan, "1", True, None):
        broken.append({**entry, "weight": weight})
    for one in broken:
        with pytest.raises(FormatError):
            type(measure).from_dict(one)


def test_a_refused_entry_says_why() -> None:
    with pytest.raises(FormatError, match="measure 'query': age: lower and upper: got 2 and 1"):
        Query.from_dict({"expression": "age", "lower": 2, "upper": 1})
    with pytest.raises(FormatError, match="measure 'share': SQL expression"):
        Share.from_dict({"predicate": "age > (SELECT 1)", "by": [], "edges": {}})
    with pytest.raises(FormatError, match="measure 'cdf': keys missing or unknown: 'thresholds'"):
        Cdf.from_dict({"columns": ["a"]})


def test_parts_of_entries() -> None:
    assert read_weight({}) == 1.0
    assert read_names({"by": []}, "by", least=0) == ()
    assert read_numbers({"t": [1, 2.5]}, "t") == (1.0, 2.5)
    assert read_edges({"edges": {"a": [1]}}) == {"a": (1.0,)}
    for wrong in ([], ["a", "a"], "a", [1]):
        with pytest.raises(FormatError, match="distinct names"):
            read_names({"by": wrong}, "by")
    with pytest.raises(FormatError, match="finite"):
        read_numbers({"t": [10**400]}, "t")
    with pytest.raises(FormatError, match="wrong type"), reading("x", {}, ()):
        raise TypeError


# --- rare cells --------------------------------------------------------------------------


def test_rare_cells_are_named_the_worst_first() -> None:
    block = Marginal(("race",)).bind(Terms(SCHEMA))
    shares = np.array([0.5, 0.3, 0.1, 0.05, 1e-3, 2e-3, 3e-3, 4e-3, 0.0, 0.0])
    assert rare(block, shares, np.full(block.size, 1e-4)) == []
    assert rare(block, shares, np.full(block.size, 2.5e-3)) == [
        "race: 2 of 10 cells are so rare that noise dominates them at this budget: "
        "race=e (0.001 ± 0.0025); race=f (0.002 ± 0.0025)."
    ]
    (sentence,) = rare(block, shares, np.full(block.size, 0.2))
    assert "7 of 10" not in sentence
    assert "6 of 10" in sentence
    assert sentence.endswith("; and 1 more.")
    # Counts do as well as shares.
    counted = rare(block, 1000 * shares, np.full(block.size, 2.5))
    assert "race=e (1 ± 2.5); race=f (2 ± 2.5)." in counted[0]


@pytest.mark.parametrize("name", ["share by", "cdf", "quantiles"])
def test_rare_cells_of_any_partition(name: str) -> None:
    block = MEASURES[name].bind(Terms(SCHEMA))
    assert isinstance(block, Partition)
    shares = np.full(block.size, 1 / block.size)
    (sentence,) = rare(block, shares, np.full(block.size, 1.0))
    assert f"{block.size} of {block.size} cells" in sentence


# --- width -------------------------------------------------------------------------------


def test_three_hundred_columns_and_ten_thousand_cells_take_no_time() -> None:
    columns = {f"c{i}": Categorical(tuple(map(str, range(31)))) for i in range(300)}
    wide = {n: Categorical(tuple(map(str, range(98)))) for n in ("a", "b")}
    schema = Schema({**columns, **wide})
    start = time.process_time()
    measures = [Marginal((n,)) for n in columns] + [Marginal(("a", "b"))]
    queries = QuerySet(tuple(m.bind(Terms(schema)) for m in measures))
    assert queries.size == 300 * 33 + 100 * 100
    assert len(set(queries.statistics)) == queries.size
    answers = np.full(queries.size, 1e-3)
    common = np.full((queries.size, 1), 1e-6)
    queries.evaluate(answers)
    errors = queries.standard_errors(answers, np.full(queries.size, 1e-6), common)
    assert np.isfinite(errors).all()
    scales = block_scales(queries, answers, [1.0] * len(measures), 2)
    assert len(scales) == 301
    assert time.process_time() - start < 2  # 0.2 s here


def test_the_largest_partition_has_short_keys() -> None:
    many = {f"column {i}": Categorical(tuple(map(str, range(8)))) for i in range(5)}
    with pytest.raises(WorkloadError, match="100,000"):
        Marginal((*many, "more")).bind(Terms(Schema({**many, "more": Categorical(("x",))})))
    block = Marginal(tuple(many)).bind(Terms(Schema(many)))
    assert block.size == 100_000
    assert max(map(len, block.keys)) < 100
    assert len(set(block.keys)) == block.size


def test_the_same_cells_in_another_order_have_the_same_keys() -> None:
    schema = Schema(
        {n: Categorical(tuple(map(str, range(k)))) for n, k in zip("abc", (1, 2, 3), strict=True)}
    )
    first = Marginal(("a", "b", "c")).bind(Terms(schema))
    for order in (("c", "a", "b"), ("b", "c", "a"), ("c", "b", "a")):
        other = Marginal(order).bind(Terms(schema))
        own = {
            frozenset(cell.split(", ")): k for cell, k in zip(first.cells, first.keys, strict=True)
        }
        for cell, key in zip(other.cells, other.keys, strict=True):
            assert own[frozenset(cell.split(", "))] == key
