"""Partitions against brute force: how far a person's rows can move them, and their errors.

The ``check_*`` functions are plain, so that broken constants can be held against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from retilt.measures import distributions, moments, partitions, rates
from retilt.measures.base import Block, Relation, Terms
from retilt.measures.distributions import Cdf, Quantiles
from retilt.measures.marginals import Marginal
from retilt.measures.nested import Nested
from retilt.measures.partitions import Partition
from retilt.measures.rates import Share
from retilt.measures.scalars import Query
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "age": Numeric(0, 4, integer=True),
        "pay": Numeric(-100.0, 1.0),
        "sex": Categorical(("F", "M")),
    }
)
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
MEASURES: dict[str, Any] = {
    "table": Marginal(("sex", "age"), edges={"age": (2.0,)}),
    "share": Share("age >= 2"),
    "share by": Share("age >= 2", ("sex",)),
    "share by bins": Share("sex = 'F'", ("age",), edges={"age": (1.0, 3.0)}),
    "query": Query("age * 10 - 7", -5, 20),
    "cdf": Cdf("age", (0, 1, 3)),
    "cdf to the end": Cdf("pay", (-50.0, 1.0)),
    "quantiles": Quantiles("age", edges={"age": (1.0, 2.0, 3.0)}),
    "cdf, two levels": Cdf("age", (0, 1, 3), branching=2),
    "quantiles, three levels": Quantiles("age", edges={"age": (1.0, 2.0, 3.0, 4.0)}, branching=2),
}
ROWS = list(itertools.product((None, 0, 1, 2, 3, 4, 99), (-100.0, 0.5), ("F", "M", "?")))


def bound(name: str, relation: Relation, norm: int) -> Block:
    return MEASURES[name].bind(Terms(SCHEMA, norm=norm, relation=relation))  # type: ignore[arg-type]


def tables_of(rows: Sequence[Any], most: int) -> list[tuple[int, ...]]:
    """Multisets of up to ``most`` of the distinct rows, by number."""
    numbers = range(len(rows))
    return [
        c
        for size in range(most + 1)
        for c in itertools.combinations_with_replacement(numbers, size)
    ]


def row_vectors(block: Block) -> list[tuple[Fraction, ...]]:
    """The distinct scaled query vectors of all rows, through the block's own encoding."""
    columns = zip(*ROWS, strict=True)
    table = pa.table(dict(zip(("age", "pay", "sex"), columns, strict=True)))
    arrays = [f.encode(table.__getitem__, len(ROWS)) for f in block.features]
    steps = [s / u for s, u in zip(block.scales, block.units, strict=True)]
    found = set()
    for i in range(len(ROWS)):
        sums = block.sums([a[i : i + 1] for a in arrays])
        found.add(tuple(v * s for v, s in zip(sums, steps, strict=True)))
    return sorted(found)


def length(vector: NDArray[Any], norm: int) -> Fraction:
    return sum((abs(v) ** norm for v in vector.tolist()), Fraction(0))


def farthest(block: Block, relation: Relation, norm: int, rows: int) -> tuple[Fraction, str]:
    """The largest change that one person of up to ``rows`` rows makes, and by which rows.

    Under replacement the other person may have fewer rows, down to none (DESIGN 4).
    """
    vectors = np.array(row_vectors(block), dtype=object)
    none = np.array([Fraction(0)] * vectors.shape[1], dtype=object)
    sums = {}
    for table in tables_of(vectors, rows):
        total = vectors[list(table)].sum(axis=0) if table else none
        sums.setdefault(tuple(total.tolist()), table)
    points = np.array(list(sums), dtype=object)
    starts = [none] if relation is ADD_REMOVE else list(points)
    worst, pair = Fraction(-1), ""
    floats = points.astype(np.float64)
    for start in starts:
        far = (np.abs(floats - start.astype(np.float64)) ** norm).sum(axis=1)
        at = int(np.argmax(far))
        change = length(points[at] - start, norm)
        if change > worst:
            worst = change
            pair = f"{start.tolist()} -> {points[at].tolist()}"
    return worst, pair


def check(name: str, relation: Relation, norm: int, rows: int) -> str:
    block = bound(name, relation, norm)
    found, pair = farthest(block, relation, norm, rows)
    allowed = block.sensitivity() * rows**norm
    assert found <= allowed, f"{name}: {rows} rows move the sums by {found} > {allowed}: {pair}"
    assert found == allowed, f"{name}: the bound {allowed} is wasteful: {found}"
    return pair


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("name", MEASURES)
def test_bounds_are_kept_and_met(name: str, relation: Relation, norm: int, rows: int) -> None:
    pair = check(name, relation, norm, rows)
    print(f"{name}, {relation.value}, L{norm}, {rows} rows a person: {pair}")


@pytest.mark.parametrize("name", MEASURES)
def test_every_row_is_in_exactly_one_cell(name: str) -> None:
    block = bound(name, REPLACE, 2)
    if isinstance(block, Nested):
        assert all(sum(v) == block.depth for v in row_vectors(block))
    elif isinstance(block, Partition):
        assert all(sum(v) == 1 for v in row_vectors(block))
        assert len(block.keys) == prod(block.shape)


def check_all() -> None:
    for name in MEASURES:
        for relation, norm in itertools.product((REPLACE, ADD_REMOVE), (1, 2)):
            check(name, relation, norm, 1)


def constant(value: int) -> Callable[..., Fraction]:
    return lambda *_args, **_options: Fraction(value)


def scaled(function: Callable[..., Any], factor: Fraction) -> Callable[..., Any]:
    return lambda *args, **options: function(*args, **options) * factor


@pytest.mark.parametrize(
    ("module", "attribute", "broken"),
    [
        (partitions, "partition_sensitivity", constant(1)),
        (partitions, "partition_sensitivity", constant(2)),
        (partitions, "partition_sensitivity", constant(4)),
        (Nested, "sensitivity", Partition.sensitivity),
        (Nested, "sensitivity", scaled(Nested.sensitivity, Fraction(3, 2))),
        (moments, "centred_sensitivity", scaled(moments.centred_sensitivity, Fraction(99, 100))),
    ],
)
def test_broken_bounds_are_noticed(
    module: Any, attribute: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all()
    monkeypatch.setattr(module, attribute, broken)
    with pytest.raises(AssertionError):
        check_all()


# --- standard errors ---------------------------------------------------------------------

PEOPLE = Schema(
    {
        "age": Numeric(17, 90, integer=True),
        "pay": Numeric(0.0, 1e5),
        "sex": Categorical(("F", "M")),
        "race": Categorical(tuple("abcd")),
    }
)
COUNT = 20_000
DRAWS = 2_000


def people() -> pa.Table:
    rng = np.random.default_rng(11)
    pay = np.clip(rng.lognormal(10, 0.6, COUNT), 0, 1e5)
    missing = rng.random(COUNT) < 0.03
    return pa.table(
        {
            "age": np.clip(np.rint(rng.gamma(9, 4.5, COUNT)), 17, 90).astype(int),
            "pay": pa.array(pay, mask=missing),
            "sex": rng.choice(["F", "M"], COUNT, p=[0.4, 0.6]),
            "race": rng.choice(list("abcd"), COUNT, p=[0.7, 0.2, 0.09, 0.01]),
        }
    )


TABLE = people()
SPREADS = (5.0, 20.0, 80.0)
"""Deviations of the counts' noise: from almost none to some that drowns small groups."""

ASKED: dict[str, Any] = {
    "table": Marginal(("sex", "race")),
    "share": Share("age >= 65"),
    "share by": Share("age >= 50", ("sex", "race")),
    "share by bins": Share("sex = 'F'", ("pay",), bins={"pay": 5}),
    "query": Query("pay / 2", 0, 40_000),
    "cdf": Cdf("age", (20, 30, 40, 50, 70)),
    "quantiles": Quantiles("pay", (0.05, 0.25, 0.5, 0.75, 0.95)),
    "quantiles, 10 bins": Quantiles("pay", (0.1, 0.5, 0.9), bins=10),
    "quantiles of whole numbers": Quantiles("age", (0.25, 0.5, 0.75), bins=20),
    "cdf, nested": Cdf("age", tuple(range(24, 60, 4)), branching=3),
    "quantiles, nested": Quantiles("pay", (0.05, 0.25, 0.5, 0.75, 0.95), branching=3),
}


def block_of(name: str, relation: Relation) -> tuple[Block, NDArray[np.float64]]:
    measure = ASKED[name]
    if hasattr(measure, "with_edges"):
        pay = TABLE["pay"].to_numpy(zero_copy_only=False)
        values = {"pay": pay, "age": TABLE["age"].to_numpy().astype(np.float64)}
        measure = measure.with_edges(PEOPLE, values)
    block = measure.bind(Terms(PEOPLE, relation=relation))
    arrays = [f.encode(TABLE.__getitem__, COUNT) for f in block.features]
    sums = block.sums(arrays)
    return block, np.array([s / u / COUNT for s, u in zip(sums, block.units, strict=True)])


def simulate(
    block: Block, exact: NDArray[np.float64], variances: Any, factor: Any, seed: int
) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(DRAWS, len(exact))) * np.sqrt(variances)
    noise += rng.normal(size=(DRAWS, factor.shape[1])) @ factor.T
    return np.array([block.evaluate(exact + e) for e in noise])


def check_errors(name: str, relation: Relation, spread: float, *, margin: float = 3) -> int:
    """Predicted and realised errors of 2,000 draws, within 10 % unless flagged or repaired."""
    block, exact = block_of(name, relation)
    variances = np.full(len(exact), (spread / COUNT) ** 2)
    common = 1 if relation is ADD_REMOVE else 0
    factor = np.outer(exact, [2 * spread / COUNT] * common).reshape(len(exact), common)
    drawn = simulate(block, exact, variances, factor, seed=int(spread))
    values = block.evaluate(exact)
    expected = block.standard_errors(exact, variances, factor)
    trusted = np.ones(len(values), dtype=bool)
    if not isinstance(block, moments.MomentsBlock):
        trusted = ~block.dominated(exact, variances, factor)  # type: ignore[attr-defined]
    if name.startswith("share by"):  # a rate that is cut off at 0 or 1 spreads less
        trusted &= (values > margin * expected) & (values < 1 - margin * expected)
    if "whole" in name:  # a step that is hardly ever taken says little of its chance
        trusted &= expected > 0.2
    found = drawn.std(axis=0)
    for s in np.flatnonzero(trusted):
        assert found[s] == pytest.approx(expected[s], rel=0.1), (block.statistics[s], spread)
    return int(trusted.sum())


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("name", ASKED)
def test_errors_are_the_spread_of_2000_draws(name: str, relation: Relation) -> None:
    checked = [check_errors(name, relation, spread) for spread in SPREADS]
    assert sum(checked) > 0


@pytest.mark.parametrize("name", ["share by", "quantiles"])
def test_what_drowns_is_flagged(name: str) -> None:
    block, exact = block_of(name, REPLACE)
    none = np.zeros((len(exact), 0))
    quiet, loud = (np.full(len(exact), (s / COUNT) ** 2) for s in (2.0, 400.0))
    filled = ~np.isnan(block.evaluate(exact))
    assert not block.dominated(exact, quiet, none)[filled].any()  # type: ignore[attr-defined]
    assert block.dominated(exact, loud, none).mean() > 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("name", ASKED)
def test_errors_are_the_derivatives(name: str, relation: Relation) -> None:
    block, exact = block_of(name, relation)
    step = 1e-7 if "quantiles" in name else 1e-6
    columns = []
    for k in range(len(exact)):
        shift = np.zeros(len(exact))
        shift[k] = step
        columns.append((block.evaluate(exact + shift) - block.evaluate(exact - shift)) / (2 * step))
    slopes = np.stack(columns, axis=1)
    rng = np.random.default_rng(1)
    variances = rng.uniform(0.5, 2, len(exact)) * 1e-16
    factor = rng.normal(size=(len(exact), 2)) * 1e-8
    covariance = np.diag(variances) + factor @ factor.T
    expected = np.sqrt(np.einsum("sk,kl,sl->s", slopes, covariance, slopes))
    found = block.standard_errors(exact, variances, factor)
    assert np.array_equal(np.isnan(found), np.isnan(block.evaluate(exact)))
    inside = ~np.isnan(found)
    if "whole" in name:  # a step function has no derivative
        inside &= False
    if name.startswith("share by"):
        values = block.evaluate(exact)
        inside &= (values > 0) & (values < 1)
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-4)


def test_the_simulation_notices_broken_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break one constant of the errors at a time."""
    runs = {"share by": (80.0, 0.0), "quantiles": (800.0, 3.0)}
    for name, module in (("share by", rates), ("quantiles", distributions)):
        spread, margin = runs[name]
        check_errors(name, REPLACE, spread, margin=margin)
        with monkeypatch.context() as patch:
            patch.setattr(module, "TRUSTED", 0.0)
            with pytest.raises(AssertionError):
                check_errors(name, REPLACE, spread, margin=margin)
    for method, name in (("combination_errors", "quantiles"), ("share_errors", "table")):
        right = getattr(Partition, method)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, method, lambda *a, right=right: 1.15 * right(*a))
            with pytest.raises(AssertionError):
                check_errors(name, REPLACE, 20.0)


def test_the_derivatives_notice_a_forgotten_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values projected on the total and the errors not."""
    for name in ("table", "share by"):
        projected = block_of(name, REPLACE)[0]
        plain = replace(projected, known_total=False)  # type: ignore[type-var]
        exact = block_of(name, REPLACE)[1]
        variances, none = np.full(len(exact), 1e-8), np.zeros((len(exact), 0))
        right, wrong = (b.standard_errors(exact, variances, none) for b in (projected, plain))
        # A share that is near its end moves with the total; no error may be the larger one.
        assert np.nanmax(wrong / right) > 1.001, name
