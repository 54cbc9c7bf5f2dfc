"""Bins of bins: the tree, its least-squares estimates and errors, and the choice of it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import FormatError, WorkloadError
from retilt.measures.base import FloatArray, Relation, Terms
from retilt.measures.consistent import Consistent
from retilt.measures.distributions import Cdf, CdfBlock, QuantileBlock, Quantiles
from retilt.measures.nested import (
    MAX_NESTED,
    Nested,
    best_branching,
    level_sizes,
    prefix_variances,
)
from retilt.measures.partitions import Partition
from retilt.measures.queries import QuerySet
from retilt.privacy.plan import load_plan
from retilt.schema.columns import Numeric, Schema
from retilt.testing import insecure_measure
from retilt.tilting.solution import Status

SCHEMA = Schema({"x": Numeric(0, 99, integer=True)})
TREES = [(3, 2), (4, 2), (5, 2), (7, 3), (8, 2), (9, 3), (10, 4), (17, 4), (26, 5), (13, 12)]
ROWS = 300
RNG = np.random.default_rng(3)
TABLE = pa.table({"x": pa.array(RNG.integers(0, 100, ROWS), mask=RNG.random(ROWS) < 0.1)})


def block_of(bins: int, branching: int, *, known: bool = True, norm: Any = 2) -> CdfBlock:
    """A cdf with so many bins."""
    relation = Relation.REPLACE if known else Relation.ADD_REMOVE
    measure = Cdf("x", tuple(float(t) for t in range(bins - 1)), branching=branching)
    return measure.bind(Terms(SCHEMA, norm=norm, relation=relation))


def nodes_of(block: Nested) -> FloatArray:
    """(K, size) which of the finest cells each query counts, by their names alone."""
    rows = np.arange(100)
    table = {"x": pa.chunked_array([pa.array([*rows.tolist(), None])])}
    arrays = [f.encode(table.__getitem__, 101) for f in block.features]
    found = np.zeros((len(block.units), block.size))
    for row in range(101):
        own = [a[row : row + 1] for a in arrays]
        cell = int(block.codes(own)[0])
        found[:, cell] = block.sums(own)
    return found


def least_squares(block: Nested, answers: FloatArray, variances: FloatArray) -> FloatArray:
    """(size,) shares of the finest cells; their total is measured all but exactly."""
    return dense(block, answers, variances, 1e-14)


def dense(block: Nested, answers: FloatArray, variances: FloatArray, count: float) -> FloatArray:
    """The same with a total of 1 that is known up to noise of variance ``count``."""
    matrix = np.concatenate([nodes_of(block), np.ones((1, block.size))])
    noise, given = np.append(variances, count), np.append(answers, 1.0)
    white = 1 / np.sqrt(noise)
    return np.linalg.lstsq(matrix * white[:, None], given * white, rcond=None)[0]


@pytest.mark.parametrize(("bins", "branching"), TREES)
def test_levels_are_partitions_of_the_one_below(bins: int, branching: int) -> None:
    block = block_of(bins, branching)
    sizes = level_sizes(bins, branching)
    cells = [-(-bins // s) + 1 for s in sizes]
    nodes = nodes_of(block)
    assert block.depth == len(sizes)
    assert block.asked == len(nodes) == sum(cells) == len(block.keys) == len(block.scales)
    assert cells[-1] > 2  # all values in one bin would tell nothing
    start = 0
    for count in cells:
        level = nodes[start : start + count]
        np.testing.assert_array_equal(level.sum(axis=0), 1)
        assert (level.sum(axis=1)[:-1] >= 1).all()
        assert level[-1].tolist() == [0.0] * bins + [1.0]  # null by itself
        start += count
    widths = [int(w) for w in nodes[cells[0] : cells[0] + cells[1] - 1].sum(axis=1)]
    assert set(widths[:-1]) <= {branching}


@pytest.mark.parametrize(("bins", "branching"), TREES)
def test_estimates_are_least_squares(bins: int, branching: int) -> None:
    block = block_of(bins, branching)
    answers = RNG.normal(0, 1, block.asked)
    found = block.shares(answers)
    expected = least_squares(block, answers, np.ones(block.asked))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    # A table's own answers stay as they are, to the last bit.
    own = RNG.multinomial(50, np.ones(block.size) / block.size) / 50
    np.testing.assert_array_equal(block.shares(nodes_of(block) @ own), own)
    np.testing.assert_allclose(block.summed(own), nodes_of(block) @ own, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("bins", "branching"), TREES)
def test_errors_are_those_of_the_estimates(bins: int, branching: int) -> None:
    block = block_of(bins, branching)
    variances = RNG.uniform(0.5, 2, block.asked) * 1e-6
    factor = RNG.normal(0, 1e-3, (block.asked, 1))
    own = RNG.dirichlet(np.ones(block.size))
    middle = nodes_of(block) @ own
    none = np.zeros((block.asked, 0))
    moved = np.array([block.shares(middle + row) - own for row in np.eye(block.asked)]).T
    lines = np.cumsum(moved, axis=0)[: bins - 1]
    expected = np.sqrt(lines**2 @ variances + (lines @ factor)[:, 0] ** 2)
    np.testing.assert_allclose(
        block.standard_errors(middle, variances, factor), expected, rtol=1e-9
    )
    np.testing.assert_allclose(
        block.share_errors(variances, factor),
        np.sqrt(moved**2 @ variances + (moved @ factor)[:, 0] ** 2),
        rtol=1e-9,
    )
    some = RNG.normal(size=(3, block.size))
    np.testing.assert_allclose(
        block.combination_errors(some, variances, none),
        np.sqrt((some @ moved) ** 2 @ variances),
        rtol=1e-9,
    )


@pytest.mark.parametrize("count", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize(("bins", "branching"), [*TREES, (6, 0), (12, 0)])
def test_a_measured_count_is_the_root(bins: int, branching: int, count: float) -> None:
    """Least squares over all levels and the count, then a share of the total that they tell."""
    block = block_of(bins, branching, known=False)
    (queries,) = (QuerySet((block,)),)
    size = len(block.units)
    own = RNG.dirichlet(np.ones(block.size))
    for scale, noise in ((1.0, 1e-2), (1e-7, 1e-9)):
        variances = np.full(size, noise)
        consistent = Consistent(queries, variances, count * noise)
        answers = nodes_of(block) @ own + scale * RNG.normal(0, 0.1, size)
        if scale == 1.0:  # the total is not held above a half here
            answers *= 1 / max(1.0, abs(answers).max())
        cells = dense(block, answers, variances, count * noise)
        if cells.sum() > 0.6:
            expected = block.evaluate(nodes_of(block) @ (cells / cells.sum()))
            np.testing.assert_allclose(consistent.evaluate(answers), expected, rtol=0, atol=1e-8)
    # Errors: derivatives of that estimate by every answer, and by the count that divides all.
    middle, step = nodes_of(block) @ own, 1e-6
    moved = [
        (consistent.evaluate(middle + step * r) - own.cumsum()[: bins - 1]) for r in np.eye(size)
    ]
    shift = consistent.evaluate(middle * (1 + step)) - own.cumsum()[: bins - 1]
    lines = np.stack([*moved, shift]) / step
    expected = np.sqrt((lines**2).T @ np.append(variances, count * noise))
    found = consistent.standard_errors(middle, np.zeros((size, 0)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(("bins", "branching"), [*TREES, (6, 0), (12, 0)])
def test_predicted_variances_are_those_of_the_block(bins: int, branching: int) -> None:
    block = block_of(bins, branching)
    ones = np.ones(len(block.units))
    errors = block.standard_errors(ones, ones, np.zeros((len(ones), 0)))
    predicted = prefix_variances(bins, branching)
    np.testing.assert_allclose(errors**2, predicted[:-1], rtol=1e-9)


def test_the_choice_has_the_least_error() -> None:
    """Brute force over every branching, with the noise that each would need."""
    for bins, norm in product((4, 11, 60), (1, 2)):

        def error(branching: int, bins: int = bins, norm: int = norm) -> float:
            block = block_of(bins, branching, norm=norm)
            ones = np.ones(len(block.units))
            errors = block.standard_errors(ones, ones, np.zeros((len(ones), 0)))
            noise = float(block.sensitivity()) ** (1 if norm == 2 else 2)
            return float(np.sqrt(np.mean(errors**2) * noise))

        chosen = best_branching(bins, norm)  # type: ignore[arg-type]
        trees = {b: error(b) for b in range(2, min(bins, 33))}
        if chosen is None:
            assert min(trees.values()) >= 0.9 * error(0)
        else:
            assert trees[chosen] == pytest.approx(min(trees.values()))
            assert trees[chosen] < 0.9 * error(0)


def test_few_and_very_many_bins_are_asked_alone() -> None:
    assert best_branching(2, 2) is None
    assert best_branching(MAX_NESTED, 2) is not None
    assert best_branching(MAX_NESTED + 1, 2) is None


def test_levels_are_asked_once_where_another_measure_asks_them() -> None:
    """The coarse bins of one distribution are the bins of another."""
    fine = rt.cdf("x", list(range(9)), branching=5)
    coarse = rt.cdf("x", [4], branching=0)
    for asked in (fine + coarse, coarse + fine):
        plan = rt.plan(TABLE, asked, rho=1.0, rows=ROWS, schema=SCHEMA)
        assert plan.queries.size == 11 + 3
        encoded = {f: f.encode(TABLE.column, ROWS) for f in plan.queries.features}
        means = plan.queries.means(encoded, ROWS)
        values = np.array(TABLE["x"].to_pylist(), dtype=float)
        by_name = dict(zip(plan.queries.statistics, plan.queries.evaluate(means), strict=True))
        assert by_name["cdf(x <= 4)"] == pytest.approx(np.mean(values <= 4))
        assert by_name["cdf(x <= 7)"] == pytest.approx(np.mean(values <= 7))
        designs = plan.queries.designs(encoded)
        assert sum(d.size for d in designs) == 14  # type: ignore[union-attr]


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("budget", [{"rho": 0.5}, {"epsilon": 3.0, "delta": 0}], ids=["L2", "L1"])
def test_the_plan_chooses_and_the_fit_takes_all_levels(unit: str, budget: dict[str, Any]) -> None:
    asked = rt.cdf("x", list(range(99))) + rt.quantiles("x", bins=40)
    kept = {"schema": SCHEMA, "rows": ROWS, "unit": unit}
    plan = rt.plan(TABLE, asked, **budget, **kept)
    flat = rt.plan(
        TABLE,
        rt.cdf("x", list(range(99)), branching=0) + rt.quantiles("x", bins=40, branching=0),
        **budget,
        **kept,
    )
    block, quantiles = plan.queries.blocks
    assert isinstance(block, CdfBlock)
    assert isinstance(quantiles, QuantileBlock)
    assert block.branching >= 2
    assert all(isinstance(b, Nested) and not b.branching for b in flat.queries.blocks)
    assert np.mean(plan.expected[:99]) < 0.95 * np.mean(flat.expected[:99])  # type: ignore[arg-type]
    answers = insecure_measure(TABLE, plan, rng=np.random.default_rng(1))
    for method in ("default", "paper-exact"):
        tilt = rt.fit(TABLE, answers, method=method)  # type: ignore[arg-type]
        assert tilt.status is Status.CONVERGED
    outlook = rt.outlook(TABLE, plan)
    assert outlook.values == pytest.approx(
        plan.queries.evaluate(
            plan.queries.means(
                {f: f.encode(TABLE.column, ROWS) for f in plan.queries.features}, ROWS
            )
        ).tolist()
    )


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_errors_are_the_spread_of_releases(unit: str) -> None:
    runs = 200
    plan = rt.plan(
        TABLE,
        rt.cdf("x", list(range(4, 96, 5)), branching=4),
        rho=50.0,
        rows=ROWS,
        unit=unit,
        schema=SCHEMA,
    )
    found = np.array(
        [
            insecure_measure(TABLE, plan, rng=np.random.default_rng(seed)).estimates
            for seed in range(runs)
        ]
    )
    expected = np.array(plan.expected, dtype=float)
    np.testing.assert_allclose(found.std(axis=0), expected, rtol=0.25)
    assert np.mean(found.std(axis=0) / expected) == pytest.approx(1, abs=0.1)


def test_the_papers_basis_keeps_bins_alone() -> None:
    plan = rt.plan(
        TABLE, rt.cdf("x", list(range(99))), rho=1.0, rows=ROWS, schema=SCHEMA, basis="paper"
    )
    (block,) = plan.queries.blocks
    assert isinstance(block, CdfBlock)
    assert block.branching == 0


def test_a_plan_says_its_branching_and_an_old_one_has_none(tmp_path: Any) -> None:
    best = best_branching(100, 2)
    asked = rt.cdf("x", list(range(99))) + rt.quantiles("x", bins=40, branching=3)
    plan = rt.plan(TABLE, asked, rho=1.0, rows=ROWS, schema=SCHEMA)
    plan.save(tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.sha256 == plan.sha256
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [m["branching"] for m in content["measures"]] == [best, 3]
    for measure in (Cdf("x", (1.0, 2.0)), Quantiles("x", edges={"x": (1.0, 2.0)})):
        entry = measure.to_dict()
        assert "branching" not in entry
        again = type(measure).from_dict(entry)
        assert again == measure
        assert again.bind(Terms(SCHEMA)).branching == 0


@pytest.mark.parametrize("branching", [1, -2, 2.0, True, "2", None])
def test_other_branchings_are_refused(branching: Any) -> None:
    entries: list[tuple[Any, dict[str, Any]]] = [
        (Cdf, {"columns": ["x"], "thresholds": [1.0]}),
        (Quantiles, {"columns": ["x"], "probabilities": [0.5], "edges": {"x": [1.0]}}),
    ]
    for kind, entry in entries:
        if branching is not None:
            with pytest.raises(FormatError, match="branching"):
                kind.from_dict({**entry, "branching": branching})
    if branching is not None:
        with pytest.raises(WorkloadError, match="branching of the cdf of 'x'"):
            rt.cdf("x", [1], branching=branching)
        with pytest.raises(WorkloadError, match="branching of the quantiles of 'x'"):
            rt.quantiles("x", branching=branching)


def test_too_many_bins_for_a_tree_are_refused() -> None:
    schema = Schema({"x": Numeric(0.0, 1e6)})
    edges = {"x": tuple(float(i) for i in range(1, MAX_NESTED + 1))}
    terms = Terms(schema)
    assert Quantiles("x", edges=edges).bind(terms).branching == 0
    with pytest.raises(WorkloadError, match="2,001 bins are too many"):
        Quantiles("x", edges=edges, branching=2).bind(terms)


def test_empty_bins_of_a_tree_are_told() -> None:
    edges = {"x": tuple(float(t) for t in range(10, 90, 5))}
    block = Quantiles("x", edges=edges, branching=4).bind(Terms(SCHEMA))
    shares = np.full(block.size, 1 / block.size)
    answers = block.summed(shares)
    cells = {"x": pa.chunked_array([pa.array([12, 13, 52])])}
    arrays = [f.encode(cells.__getitem__, 3) for f in block.features]
    told = block.shortfalls(arrays, answers, np.full(block.asked, 1e-3))
    assert told
    assert all("quantile(x, " in text and "no synthetic row lies in it" in text for text in told)


def test_a_branching_of_all_bins_is_none() -> None:
    block = block_of(4, 4)
    assert block.depth == 1
    assert block.keys == Partition(block.variables, block.edges, 2, block.relation, True).keys
    answers = RNG.normal(0, 1, 5)
    np.testing.assert_allclose(block.shares(answers), answers - (answers.sum() - 1) / 5, atol=1e-12)
