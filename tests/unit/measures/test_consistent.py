"""Tables that share columns, estimated together: equal to dense least squares, and consistent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.measures.base import FloatArray
from retilt.measures.consistent import Consistent
from retilt.measures.marginals import MarginalBlock
from retilt.measures.nested import Nested
from retilt.privacy.answers import Answers
from retilt.testing import insecure_measure

SCHEMA: dict[str, Any] = {
    "a": rt.Categorical(("x", "y")),
    "b": rt.Boolean(),
    "c": rt.Categorical(("p", "q", "r")),
    "d": rt.Numeric(0, 9, integer=True),
}
ROWS = 400
RNG = np.random.default_rng(5)
TABLE = pa.table(
    {
        "a": RNG.choice(["x", "y"], ROWS),
        "b": RNG.random(ROWS) < 0.3,
        "c": RNG.choice(["p", "q", "r"], ROWS, p=[0.6, 0.3, 0.1]),
        "d": RNG.integers(0, 10, ROWS),
    }
)
PAIRS = rt.marginals(["a", "b", "c"], k=2)
CASES = {
    "pairs": PAIRS,
    "a triple beside its margins": rt.marginal(["a", "b", "c"]) + rt.marginals(["a", "b"], k=1),
    "unlike weights": rt.marginal(["c", "a"], weight=9.0) + rt.marginal(["a", "b"], weight=0.1),
    "asked twice": rt.marginal(["a", "c"]) + rt.marginal(["c", "a"]) + rt.marginal(["c"]),
    "other bins": rt.marginal(["d", "a"], bins={"d": [5]}) + rt.marginal(["d", "b"], bins=3),
    "the same bins": rt.marginal(["d", "a"], bins={"d": [5]})
    + rt.marginal(["b", "d"], bins={"d": [5]}),
    "alone": rt.marginal(["a", "c"]),
    "beside others": PAIRS + rt.means("d", by="a") + rt.share("d > 3", by="c") + rt.cdf("d", [4]),
}
BUDGETS: dict[int, dict[str, float]] = {
    1: {"epsilon": 1.0, "delta": 0.0},
    2: {"epsilon": 1.0, "delta": 1e-6},
}


def planned(workload: rt.Workload, unit: str = "replace-one", norm: int = 2) -> rt.Plan:
    return rt.plan(TABLE, workload, rows=ROWS, unit=unit, schema=SCHEMA, **BUDGETS[norm])


def measured(plan: rt.Plan, seed: int = 0) -> Answers:
    return insecure_measure(TABLE, plan, rng=np.random.default_rng(seed))


def tables_of(plan: rt.Plan) -> list[tuple[int, MarginalBlock]]:
    blocks = enumerate(plan.queries.blocks)
    return [(n, b) for n, b in blocks if isinstance(b, MarginalBlock)]


def dense(answers: Answers) -> tuple[dict[int, FloatArray], dict[int, FloatArray]]:
    """Shares and standard errors by block, by least squares over the cells of all columns."""
    plan = answers.plan
    sizes: dict[tuple[str, tuple[float, ...]], int] = {}
    for _, block in tables_of(plan):
        for v, e, m in zip(block.variables, block.edges, block.shape, strict=True):
            sizes[(v.name, e)] = m
    grid = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    axis = {column: grid[i] for i, column in enumerate(sizes)}
    maps, rows, values, noise, seen = {}, [], [], [], set()
    for number, block in tables_of(plan):
        columns = zip(block.variables, block.edges, strict=True)
        codes = np.ravel_multi_index([axis[(v.name, e)] for v, e in columns], block.shape)
        maps[number] = (codes == np.arange(block.size)[:, None]).astype(float)
        if block.identity not in seen:
            seen.add(block.identity)
            where = plan.queries.positions[number]
            rows.append(maps[number])
            values.append(answers.means[where])
            noise.append(answers.variances[where])
    total = np.ones((1, grid.shape[1]))
    count = answers.consistent.count
    # A public count is one that is known all but exactly.
    rows.append(total)
    values.append(np.ones(1))
    noise.append(np.array([1e-14 if count is None else count]))
    for block, where in zip(plan.queries.blocks, plan.queries.positions, strict=True):
        if isinstance(block, Nested):
            rows.append(total)
            values.append(np.array([block.total(answers.means[where])]))
            noise.append(block.total_spread * answers.variances[where][:1])
    matrix, given = np.concatenate(rows), np.concatenate(values)
    white = 1 / np.sqrt(np.concatenate(noise))
    solution = np.linalg.lstsq(matrix * white[:, None], given * white, rcond=1e-12)[0]
    inverse = np.linalg.pinv(matrix * white[:, None], rcond=1e-12) * white
    whole = float(solution.sum())
    spread = np.sqrt(np.concatenate(noise))
    shares, errors = {}, {}
    for number, each in maps.items():
        shares[number] = each @ solution / whole
        moved = (each @ inverse - shares[number][:, None] * (total @ inverse)) * spread
        errors[number] = np.sqrt((moved**2).sum(axis=1))
    return shares, errors


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", CASES)
def test_equals_dense_least_squares(name: str, unit: str, norm: int) -> None:
    answers = measured(planned(CASES[name], unit, norm))
    shares, errors = dense(answers)
    found = answers.consistent.shares(answers.means)
    predicted = answers.consistent.share_errors(answers.means)
    assert found.keys() == shares.keys()
    for number in found:
        np.testing.assert_allclose(found[number], shares[number], rtol=0, atol=1e-8)
        # An error e of the total also scales the components, which is of second order.
        slack = 1e-6 if unit == "replace-one" else 0.02
        np.testing.assert_allclose(predicted[number], errors[number], rtol=slack)


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_tables_agree_on_what_they_share(unit: str) -> None:
    answers = measured(planned(rt.marginals(["a", "b", "c", "d"], k=3), unit))
    plan, found = answers.plan, answers.consistent.shares(answers.means)
    for (i, one), (j, other) in combinations(tables_of(plan), 2):
        margins = []
        for number, block in ((i, one), (j, other)):
            shared = [n for n in block.names if n in one.names and n in other.names]
            table = found[number].reshape(block.shape)
            away = tuple(k for k, n in enumerate(block.names) if n not in shared)
            margins.append(table.sum(axis=away))
        np.testing.assert_allclose(*margins, rtol=1e-9)
    for shares in found.values():
        assert shares.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_a_table_that_is_consistent_stays_as_it_is(unit: str) -> None:
    plan = planned(CASES["beside others"], unit)
    answers = measured(plan)
    exact = plan.queries.means(
        {f: f.encode(TABLE.column, ROWS) for f in plan.queries.features}, ROWS
    )
    np.testing.assert_allclose(
        answers.consistent.evaluate(exact), plan.queries.evaluate(exact), rtol=0, atol=1e-12
    )


def test_other_blocks_keep_their_own_estimates() -> None:
    answers = measured(planned(CASES["beside others"]))
    queries = answers.plan.queries
    alone = queries.evaluate(answers.means)
    errors = queries.standard_errors(answers.means, answers.variances, answers.common_noise)
    others = [not s.startswith("cell(") for s in queries.statistics]
    assert any(others)
    np.testing.assert_array_equal(answers.estimates[others], alone[others])
    np.testing.assert_array_equal(answers.errors_at(answers.means)[others], errors[others])
    # In the tables there is less noise than in each alone.
    tables = ~np.array(others)
    assert (answers.errors_at(answers.means)[tables] < errors[tables]).all()


def test_a_table_alone_is_projected_on_its_total() -> None:
    answers = measured(planned(CASES["alone"]))
    queries = answers.plan.queries
    np.testing.assert_allclose(
        answers.estimates, queries.evaluate(answers.means), rtol=0, atol=1e-15
    )
    np.testing.assert_allclose(
        answers.errors_at(answers.means),
        queries.standard_errors(answers.means, answers.variances, answers.common_noise),
        rtol=1e-12,
    )


def test_other_bins_of_a_column_share_nothing() -> None:
    answers = measured(planned(CASES["other bins"]))
    alone = answers.plan.queries.evaluate(answers.means)
    np.testing.assert_allclose(answers.estimates, alone, rtol=0, atol=1e-15)


def test_a_table_of_unlike_noise_stands_alone() -> None:
    """Such as one whose cells another measure asks louder in part."""
    plan = planned(PAIRS)
    answers = measured(plan)
    variances = answers.variances.copy()
    variances[plan.queries.positions[1][0]] *= 2
    joined = Consistent(plan.queries, variances, None)
    assert joined.shares(answers.means).keys() == {0, 2}
    own = plan.queries.blocks[1].evaluate(answers.means[plan.queries.positions[1]])
    start = plan.queries.blocks[0].size  # type: ignore[attr-defined]
    np.testing.assert_array_equal(joined.evaluate(answers.means)[start : start + len(own)], own)


@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("runs", [50, pytest.param(1000, marks=pytest.mark.noise)])
def test_errors_are_unbiased_and_as_stated(unit: str, norm: int, runs: int) -> None:
    # The count is known well enough for a first-order error bar.
    plan = planned(CASES["a triple beside its margins"] + rt.marginal(["b", "c"]), unit, norm)
    plan = replace(plan, budget=rt.PureDP(8.0) if norm == 1 else rt.ZCDP(4.0))
    exact = plan.queries.evaluate(
        plan.queries.means({f: f.encode(TABLE.column, ROWS) for f in plan.queries.features}, ROWS)
    )
    draw = partial(measured, plan)
    found = np.array([draw(seed).estimates for seed in range(runs)])
    stated = draw(0).errors_at(draw(0).means)
    spread = np.sqrt(np.mean((found - exact) ** 2, axis=0))
    assert np.abs(found.mean(axis=0) - exact).max() < 5 * (stated / np.sqrt(runs)).max()
    np.testing.assert_allclose(spread, stated, rtol=5 / np.sqrt(runs))
    assert np.mean(spread / stated) == pytest.approx(1, abs=0.6 / np.sqrt(runs))


def test_the_plan_expects_the_joined_errors() -> None:
    plan = planned(PAIRS)
    answers = measured(plan)
    np.testing.assert_allclose(
        np.array(plan.expected, dtype=float), answers.errors_at(answers.means), rtol=1e-9
    )


def test_two_way_tables_tell_their_margins_many_times() -> None:
    """All pairs of d like columns: the variance of a one-way component falls d - 1 times."""
    names = [f"c{i}" for i in range(8)]
    columns = {n: rt.Boolean() for n in names}
    table = pa.table({n: RNG.random(50) < 0.5 for n in names})
    plan = rt.plan(table, rt.marginals(names, k=2), rho=1.0, rows=50, schema=columns)
    m, d = 3, len(names)  # true, false, null
    v = insecure_measure(table, plan, rng=np.random.default_rng(0)).variances[0]
    main, both = v * (1 - 1 / m) / m / (d - 1), v * (1 - 1 / m) ** 2
    np.testing.assert_allclose(
        np.array(plan.expected, dtype=float) ** 2, 2 * main + both, rtol=1e-9
    )
