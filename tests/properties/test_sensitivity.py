"""Every declared sensitivity against brute force, on the integers that are really released.

The ``check_*`` functions are plain, so that ``test_mutations.py`` can run them on broken code.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

from retilt.exceptions import RetiltError
from retilt.measures.base import Block, Relation, Terms
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments, MomentsBlock, rational_sqrt_down
from retilt.pipeline import exact_sums
from retilt.privacy.budget import ZCDP, ApproxDP, Budget, PureDP
from retilt.privacy.plan import Plan, plan_from_dict
from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow, Unit
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
BOTH = (REPLACE, ADD_REMOVE)
CLOSE = 1e-5
"""beta is rounded down to a multiple of 2**-20: an attained bound is met to that."""


# --- brute force over the rows of one block -----------------------------------------------


def levels_of(column: Column, points: int) -> list[int]:
    """Grid integers to try: both ends, the middle, and more in between."""
    if column.two_valued:
        return [-1, 1]
    top = column.levels
    return sorted({round(top * f) for f in np.linspace(-1, 1, points)})


def all_rows(choices: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.array(list(itertools.product(*choices)), dtype=np.int32)


def row_sums(block: Block, rows: NDArray[np.int32]) -> list[list[int]]:
    """Integer sums of tables of one row each, (rows, K)."""
    return [
        block.sums([rows[i : i + 1, j] for j in range(rows.shape[1])]) for i in range(len(rows))
    ]


def scaled(block: Block, sums: Sequence[int]) -> list[Fraction]:
    return [s * Fraction(v, u) for s, v, u in zip(block.scales, sums, block.units, strict=True)]


def length(change: Sequence[Fraction], norm: int) -> Fraction:
    return sum((abs(c) ** norm for c in change), Fraction(0))


def farthest(points: NDArray[np.float64], norm: int, relation: Relation) -> tuple[int, ...]:
    """The rows (one, or a pair) whose change is longest."""
    if relation is ADD_REMOVE:
        return (int(np.argmax((np.abs(points) ** norm).sum(axis=1))),)
    metric = "sqeuclidean" if norm == 2 else "cityblock"
    flat = int(np.argmax(pdist(points, metric)))
    # The condensed form lists the pairs (0, 1), (0, 2), ..., (1, 2), ...
    starts = np.cumsum(np.arange(len(points) - 1, 0, -1))
    first = int(np.searchsorted(starts, flat, side="right"))
    before = int(starts[first - 1]) if first else 0
    return first, first + 1 + flat - before


def largest_change(
    block: Block, norm: int, relation: Relation, rows: NDArray[np.int32]
) -> Fraction:
    """The exact largest change of the block's scaled sums over the given rows."""
    sums = row_sums(block, rows)
    loud = np.array([float(s) / u for s, u in zip(block.scales, block.units, strict=True)])
    at = farthest(np.array(sums, dtype=np.float64) * loud, norm, relation)
    if len(at) == 1:
        return length(scaled(block, sums[at[0]]), norm)
    change = [a - b for a, b in zip(sums[at[0]], sums[at[1]], strict=True)]
    return length(scaled(block, change), norm)


def check_block(
    block: Block, norm: int, relation: Relation, rows: NDArray[np.int32], *, attained: bool = False
) -> None:
    found, bound = largest_change(block, norm, relation, rows), block.sensitivity()
    assert found <= bound, f"one row moves the sums by {float(found)} > {float(bound)}"
    if attained:
        assert found >= bound * Fraction(1 - CLOSE), f"the bound {float(bound)} is wasteful"


# --- moments ------------------------------------------------------------------------------

THREE = Numeric(0, 2, integer=True)
SEVEN = Numeric(-3, 3, integer=True)
FINE = Numeric(-100.0, 1.0)
CODES = Categorical(("a", "b", "c"))
TWO = Categorical(("no", "yes"))
FLAG = Boolean(nullable=True)
CONSTANT = Numeric(3, 3)

SETS: dict[str, tuple[Column, ...]] = {
    "fine": (FINE,),
    "two": (TWO,),
    "fine fine": (FINE, FINE),
    "codes flag": (CODES, FLAG),
    "two flag": (TWO, FLAG),
    "fine constant seven": (FINE, CONSTANT, SEVEN),
    "fine x3": (FINE, SEVEN, THREE),
    "codes two fine": (CODES, TWO, FINE),
    "flag two three": (FLAG, TWO, THREE),
    "two x3": (TWO, FLAG, TWO),
    "fine x4": (FINE, FINE, SEVEN, CODES),
    "fine x2 two x2": (FINE, TWO, SEVEN, FLAG),
    "two x4": (TWO, TWO, FLAG, FLAG),
}


def named(columns: Sequence[Column]) -> Schema:
    return Schema({f"c{i}": c for i, c in enumerate(columns)})


def loudnesses(count: int) -> list[Fraction]:
    root = rational_sqrt_down(Fraction(count))
    tried = {Fraction(1, 64), Fraction(1, 3), Fraction(1), Fraction(3, 2), root, Fraction(count)}
    return sorted(a for a in tried if a <= count)


def moments_block(
    columns: Sequence[Column],
    *,
    norm: int,
    relation: Relation,
    basis: str = "centred",
    order: int = 2,
    loudness: Fraction | None = None,
) -> MomentsBlock:
    schema = named(columns)
    measure = Moments(tuple(schema.columns), order=order, loudness=loudness)
    return measure.bind(Terms(schema, basis=basis, norm=norm, relation=relation))  # type: ignore[arg-type]


def rows_of(block: MomentsBlock) -> NDArray[np.int32]:
    points = {1: 65, 2: 17, 3: 7, 4: 5}[len(block.columns)]
    return all_rows([levels_of(c, points) for c in block.columns])


def is_attained(block: MomentsBlock, norm: int, relation: Relation) -> bool:
    """Whether the grid of :func:`rows_of` holds a pair that meets the bound.

    Add/remove and order 1: a corner. Replace-one in L2: sum c_i = alpha**2 with c_i = -1 or 1;
    in L1: sum c_i = alpha, with c_i on the grid, or -1 or 1 where all columns are two-valued.
    """
    if block.basis == "paper":
        return not any(c.two_valued for c in block.columns)
    if relation is ADD_REMOVE or block.order == 1:
        return True
    d, wanted = len(block.columns), block.loudness**norm
    return wanted.denominator == 1 and (d - wanted.numerator) % 2 == 0


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("name", SETS)
def test_centred_moments(name: str, relation: Relation, norm: int) -> None:
    varying = sum(c.levels > 0 for c in SETS[name])
    for loudness in loudnesses(varying):
        block = moments_block(SETS[name], norm=norm, relation=relation, loudness=loudness)
        check_block(
            block, norm, relation, rows_of(block), attained=is_attained(block, norm, relation)
        )


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize(("basis", "order"), [("centred", 1), ("paper", 1), ("paper", 2)])
def test_other_moments(basis: str, order: int, relation: Relation, norm: int) -> None:
    for columns in SETS.values():
        block = moments_block(columns, norm=norm, relation=relation, basis=basis, order=order)
        attained = order == 1 or is_attained(block, norm, relation)
        check_block(block, norm, relation, rows_of(block), attained=attained)


def test_the_papers_bound_is_the_papers() -> None:
    for d in (1, 2, 5, 10):
        block = moments_block([FINE] * d, norm=2, relation=REPLACE, basis="paper")
        assert block.sensitivity() == Fraction(d * (d + 3), 2)


@pytest.mark.parametrize(("a", "b"), [(FINE, Numeric(5, 6)), (Numeric(-1, 0), FINE)])
def test_asymmetric_and_shared_bounds(a: Column, b: Column) -> None:
    # The bound is that of the encoded columns, so -100 and 1 are as good as -1 and 1 (F31).
    for norm, relation in itertools.product((1, 2), BOTH):
        block = moments_block([a, b], norm=norm, relation=relation, loudness=Fraction(1))
        check_block(block, norm, relation, rows_of(block), attained=relation is ADD_REMOVE)


# --- moments, continuous rows up to eight columns -------------------------------------------


@cache
def parsed(block: MomentsBlock) -> tuple[NDArray[np.float64], ...]:
    """What the keys say: places of the two factors (the last place is a one), affine part."""
    place = {n: i for i, n in enumerate(block.names)}
    left, right, offset, factor = [], [], [], []
    for key in block.keys:
        kind, *names = json.loads(key)
        assert kind in ("z", "zz", "1-zz")
        left.append(place[names[0]])
        right.append(len(place) if kind == "z" else place[names[-1]])
        offset.append(float(kind == "1-zz"))
        factor.append(-1.0 if kind == "1-zz" else 1.0)
    scale = [float(s) for s in block.scales]
    return tuple(np.array(x) for x in (left, right, offset, factor, scale))


def query_values(block: MomentsBlock, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scaled queries of rows of z, from the keys alone: (rows, K)."""
    left, right, offset, factor, scale = parsed(block)
    wide = np.column_stack([rows, np.ones(len(rows))])
    values: NDArray[np.float64] = scale * (offset + factor * wide[:, left] * wide[:, right])
    return values


def change_of(
    block: MomentsBlock, relation: Relation, norm: int, points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lengths of the change for (P, 2d) pairs of rows (the second half unused for add/remove)."""
    d = len(block.names)
    change = query_values(block, points[:, :d])
    if relation is REPLACE:
        change = change - query_values(block, points[:, d:])
    return (np.abs(change) ** norm).sum(axis=1)


def climb(block: MomentsBlock, relation: Relation, norm: int, starts: int, seed: int) -> float:
    """The largest change found from random starts, coordinate by coordinate."""
    d = len(block.names)
    two = np.tile([c.two_valued for c in block.columns], 2)
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (starts, 2 * d))
    points[: starts // 2] = np.sign(points[: starts // 2])
    points[:, two] = np.where(points[:, two] < 0, -1, 1)
    steps = np.linspace(-1, 1, 9)
    best = change_of(block, relation, norm, points)
    for _ in range(4):
        for j in rng.permutation(2 * d if relation is REPLACE else d):
            for value in steps[[0, -1]] if two[j] else steps:
                tried = points.copy()
                tried[:, j] = value
                found = change_of(block, relation, norm, tried)
                better = found > best
                points[better], best = tried[better], np.maximum(best, found)
    return max(float(best.max()), polish(block, relation, norm, points[int(np.argmax(best))], two))


def polish(
    block: MomentsBlock,
    relation: Relation,
    norm: int,
    start: NDArray[np.float64],
    two: NDArray[np.bool_],
) -> float:
    limits = [(s, s) if t else (-1, 1) for s, t in zip(start, two, strict=True)]

    def loss(point: NDArray[np.float64]) -> float:
        return -float(change_of(block, relation, norm, point[None, :])[0])

    inside = np.where(two, start, 0.9 * start)
    options = {"maxfev": 3000, "maxiter": 3000, "maxfun": 3000}
    wanted = "maxfev" if norm == 1 else "maxfun"
    method = "Powell" if norm == 1 else "L-BFGS-B"
    found = minimize(loss, inside, bounds=limits, method=method, options={wanted: options[wanted]})
    return -float(found.fun)


def check_continuous(block: MomentsBlock, norm: int, relation: Relation, seed: int = 0) -> None:
    found, bound = climb(block, relation, norm, starts=16, seed=seed), float(block.sensitivity())
    assert found <= bound * (1 + 1e-12), f"a row moves the sums by {found} > {bound}"
    assert found >= 0.7 * bound, "the search found nothing near the bound"


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_continuous_rows(count: int, relation: Relation, norm: int) -> None:
    for two_valued, loudness in (
        (0, Fraction(1, 4)),
        (0, Fraction(9, 8)),
        (count // 2, Fraction(1)),
    ):
        columns = [TWO] * two_valued + [FINE] * (count - two_valued)
        block = moments_block(columns, norm=norm, relation=relation, loudness=loudness)
        check_continuous(block, norm, relation)


def test_keys_say_what_the_sums_are() -> None:
    rng = np.random.default_rng(5)
    for relation in BOTH:
        block = moments_block((FINE, TWO, SEVEN, CODES), norm=2, relation=relation)
        rows = np.stack(
            [rng.choice(levels_of(c, 9), size=50) for c in block.columns], axis=1
        ).astype(np.int32)
        z = rows / np.array([c.levels for c in block.columns])
        sums = [[float(v) for v in scaled(block, s)] for s in row_sums(block, rows)]
        np.testing.assert_allclose(sums, query_values(block, z), rtol=1e-12, atol=1e-12)


def test_two_valued_columns_are_never_in_the_middle() -> None:
    """The bound of a two-valued column needs z**2 = 1 in every row, whatever it holds."""
    hostile = ["no", "yes", "", None, "NaN", "other", "null", "nan", "0", "1", "true", "x" * 1000]
    for column in (TWO, FLAG, Categorical((0.0, 1.0)), Categorical(("", "NaN"))):
        block = moments_block([column], norm=2, relation=REPLACE)
        grid = block.features[0].encode(
            lambda _: pa.chunked_array([pa.array(hostile, pa.string())]), len(hostile)
        )
        assert set(np.abs(grid)) == {1}


# --- tables of cells ----------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("names", [("c0",), ("c1", "c0"), ("c0", "c1", "c2")])
def test_marginals(names: tuple[str, ...], relation: Relation, norm: int) -> None:
    schema = named((CODES, FLAG, FINE))
    measure = Marginal(names, edges={"c2": (-50.0, 0.0)} if "c2" in names else {})
    block = measure.bind(Terms(schema, norm=norm, relation=relation))  # type: ignore[arg-type]
    rows = all_rows([range(s) for s in block.shape])
    check_block(block, norm, relation, rows, attained=True)
    assert all(sum(s) == 1 for s in row_sums(block, rows))


def test_every_cell_value_falls_in_exactly_one_cell() -> None:
    schema = Schema(
        {
            "n": FINE,
            "c": CODES,
            "b": FLAG,
            "t": Datetime(datetime(2020, 1, 1), datetime(2021, 1, 1)),
        }
    )
    edges = {"n": (-50.0, 0.0), "t": (1.59e15,)}
    block = Marginal(tuple(schema.columns), edges=edges).bind(
        Terms(schema, norm=2, relation=REPLACE)
    )
    text = ["", None, "nan", "inf", "-inf", "1e308", "-1e308", "-50", "0", "a", "true",
            "2020-06-01",
            "9999-12-31", "other", "null", 'quo"te', "new\nline", "infinity"]  # fmt: skip
    cells = pa.chunked_array([pa.array(text, pa.string())])
    arrays = [f.encode(lambda _: cells, len(cells)) for f in block.features]
    for array, size in zip(arrays, block.shape, strict=True):
        assert array.min() >= 0
        assert array.max() < size
    assert sum(block.sums(arrays)) == len(text)


# --- whole plans: the integers, factors, steps and deviations that are really used --------------


@cache
def analytic_distance(epsilon: float, delta: float) -> mpmath.mpf:
    """Balle and Wang's mu in 50 digits, by halving; independent of the library's formula."""
    with mpmath.workdps(50):
        low, high = mpmath.mpf("1e-12"), mpmath.mpf(10) + 4 * mpmath.sqrt(epsilon)
        for _ in range(150):
            mu = (low + high) / 2
            first = mpmath.ncdf(mu / 2 - epsilon / mu)
            found = first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
            low, high = (mu, high) if found < delta else (low, mu)
        return low


def allowed(budget: Budget) -> Fraction:
    """What the budget allows: squared distance (Gaussian) or summed changes (Laplace)."""
    if isinstance(budget, PureDP):
        return Fraction(budget.epsilon)
    if isinstance(budget, ZCDP):
        return 2 * Fraction(budget.rho)
    with mpmath.workdps(50):
        mu = analytic_distance(budget.epsilon, budget.delta) ** 2
        return Fraction(int(mpmath.floor(mu * mpmath.mpf(10) ** 40)), 10**40)


def encoded_rows(plan: Plan, points: int) -> tuple[dict[object, NDArray[np.int32]], int]:
    """All combinations of the values of the plan's columns, encoded for every feature."""
    names = list(plan.schema.columns)
    tables = []
    for name in names:
        cells = pa.chunked_array([pa.array(extreme_cells(plan.schema[name], points), pa.string())])
        encoded = [
            f.encode({name: cells}.__getitem__, len(cells))
            for f in plan.queries.features
            if f.name == name
        ]
        tables.append(np.unique(np.stack(encoded, axis=1), axis=0))
    picks = all_rows([range(len(t)) for t in tables])
    columns: dict[object, NDArray[np.int32]] = {}
    for number, name in enumerate(names):
        own = [f for f in plan.queries.features if f.name == name]
        for place, feature in enumerate(own):
            columns[feature] = tables[number][picks[:, number], place]
    return columns, len(picks)


def extreme_cells(column: Column, points: int) -> list[str | None]:
    """Cells as text: bounds, beyond them, in between, missing, not a number, unknown."""
    odd = [None, "nan", "inf", "-inf", "1e308", "-1e308", "unknown"]
    if isinstance(column, Numeric):
        return [repr(float(v)) for v in np.linspace(column.lower, column.upper, points)] + odd
    if isinstance(column, Categorical):
        return [*map(str, column.categories), *odd]
    if isinstance(column, Datetime):
        return [column.lower.isoformat(), column.upper.isoformat(), *odd]
    return ["true", "false", *odd]


def released_changes(plan: Plan, points: int = 3) -> tuple[list[list[int]], NDArray[np.float64]]:
    """For each row its part of every released integer, exact and in deviations."""
    encoded, count = encoded_rows(plan, points)
    noise = plan.noise
    rows = []
    for i in range(count):
        sums = plan.queries.sums({f: a[i : i + 1] for f, a in encoded.items()})  # type: ignore[misc]
        sums += [1] if plan.counts_rows else []
        rows.append([s * f for s, f in zip(sums, noise.factors, strict=True)])
    return rows, np.array(rows, dtype=np.float64) / np.array(noise.scales)


def check_plan(plan: Plan, *, attained: bool = False, points: int = 3) -> None:
    """No row spends more than the budget; if ``attained``, some row spends all of it."""
    noise, relation = plan.noise, plan.unit.relation
    rows, in_deviations = released_changes(plan, points)
    at = farthest(in_deviations, noise.norm, relation)
    change = rows[at[0]] if len(at) == 1 else np.subtract(*(np.array(rows[i], object) for i in at))
    spent = sum(
        (Fraction(abs(int(d))) / Fraction(s)) ** noise.norm
        for d, s in zip(change, noise.scales, strict=True)
    )
    limit = allowed(plan.budget)
    assert spent <= limit, f"a row spends {float(spent)} of {float(limit)}"
    if noise.calibration is not None:
        assert spent <= Fraction(noise.calibration.distance) ** 2
        # The slack between discrete and continuous noise was proved for this least deviation.
        assert min(noise.scales) >= 10_000
    if attained:
        assert spent >= limit * Fraction(1 - 3 * CLOSE), "the budget is not used up"


BUDGETS: dict[str, Budget] = {
    "pure": PureDP(0.7),
    "approx": ApproxDP(1.0, 1e-9),
    "zcdp": ZCDP(0.1),
}
UNITS: dict[str, Unit] = {"replace": ReplaceOneRow(), "add-remove": AddRemoveOneRow()}


def make_plan(
    measures: Sequence[Moments | Marginal],
    columns: dict[str, Column],
    *,
    unit: str,
    budget: Budget | str,
    scales: Sequence[Fraction] | None = None,
    basis: str = "centred",
    count_scale: Fraction = Fraction(3, 2),
) -> Plan:
    return Plan(
        unit=UNITS[unit],
        budget=BUDGETS[budget] if isinstance(budget, str) else budget,
        rows=2,
        generator=None,
        basis=basis,  # type: ignore[arg-type]
        schema=Schema(columns),
        measures=tuple(measures),
        scales=tuple(scales or [Fraction(1)] * len(measures)),
        count_scale=None if unit == "replace" else count_scale,
    )


COLUMNS: dict[str, Column] = {
    "a": FINE,
    "b": Numeric(5, 6),
    "c": Numeric(-1.0, 0.0),
    "sex": Categorical(("F", "M")),
    "race": CODES,
    "flag": FLAG,
}


def some(*names: str) -> dict[str, Column]:
    return {n: COLUMNS[n] for n in names}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("basis", ["centred", "paper"])
def test_plan_of_moments_uses_its_budget_and_no_more(basis: str, unit: str, budget: str) -> None:
    measure = Moments(("a", "b", "c"), loudness=Fraction(1))
    plan = make_plan([measure], some("a", "b", "c"), unit=unit, budget=budget, basis=basis)
    check_plan(plan, attained=True)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("unit", UNITS)
def test_plan_of_a_table_uses_its_budget_and_no_more(unit: str, budget: str) -> None:
    measure = Marginal(("race", "a", "flag"), edges={"a": (-20.0, 0.5)})
    columns = some("race", "a", "flag")
    check_plan(make_plan([measure], columns, unit=unit, budget=budget), attained=True)


def shared_blocks() -> tuple[list[Moments | Marginal], dict[str, Column]]:
    """Five measures that share queries, one of which asks nothing new."""
    measures: list[Moments | Marginal] = [
        Moments(("a", "sex"), statistics="correlation", loudness=Fraction(5, 4)),
        Moments(("sex", "a", "b"), loudness=Fraction(1, 3)),
        Moments(("b", "a"), order=1),
        Marginal(("race", "b"), edges={"b": (5.5,)}),
        Marginal(("b", "race"), edges={"b": (5.5,)}),
    ]
    return measures, some("a", "sex", "b", "race")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("basis", ["centred", "paper"])
def test_joint_release_of_blocks_that_share_queries(basis: str, unit: str, budget: str) -> None:
    measures, columns = shared_blocks()
    for scales in ([1, 1, 1, 1, 1], [3, Fraction(1, 2), 5, Fraction(7, 4), 9], [1, 40, 1, 1, 1]):
        exact = [Fraction(s) for s in scales]
        plan = make_plan(measures, columns, unit=unit, budget=budget, scales=exact, basis=basis)
        assert len(plan.queries.kept[2]) == len(plan.queries.kept[4]) == 0
        check_plan(plan)


@pytest.mark.parametrize("budget", BUDGETS)
def test_independent_blocks_use_the_whole_budget(budget: str) -> None:
    """Under add/remove every block, and the count, can meet its bound in the same row."""
    measures = [Moments(("a", "b"), loudness=Fraction(3, 4)), Marginal(("race",))]
    scales = [Fraction(3), Fraction(1, 2)]
    columns = some("a", "b", "race")
    plan = make_plan(measures, columns, unit="add-remove", budget=budget, scales=scales)
    check_plan(plan, attained=True)
    check_plan(
        make_plan(
            measures, columns, unit="add-remove", budget=budget, scales=scales,
            count_scale=Fraction(1, 256),
        ),
        attained=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "budget", [PureDP(1e-3), PureDP(50), ZCDP(1e-6), ZCDP(1e4), ApproxDP(800, 1e-12)]
)
def test_extreme_budgets(budget: Budget) -> None:
    measures = [Moments(("a", "race"), loudness=Fraction(1))]
    for unit in UNITS:
        check_plan(make_plan(measures, some("a", "race"), unit=unit, budget=budget))


@pytest.mark.parametrize("loudness", ["1/1024", "1/64", "1", "181/128", "2", "99999/50000"])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("unit", UNITS)
def test_edited_loudness_is_bounded(unit: str, budget: str, loudness: str) -> None:
    plan = make_plan(
        [Moments(("a", "b"), loudness=Fraction(1))], some("a", "b"), unit=unit, budget=budget
    )
    content = plan.to_dict()
    content["measures"][0]["loudness"] = loudness
    check_plan(plan_from_dict(content))


@pytest.mark.parametrize(
    "loudness", ["0", "-1", "1/1099511627776", "2.5", "1e9", "5/2", "3", "nan", 1, 0.5]
)
def test_absurd_loudness_is_refused(loudness: object) -> None:
    plan = make_plan(
        [Moments(("a", "b"), loudness=Fraction(1))], some("a", "b"), unit="replace", budget="pure"
    )
    content = plan.to_dict()
    content["measures"][0]["loudness"] = loudness
    with pytest.raises(RetiltError, match=r"loudness|fraction"):
        plan_from_dict(content)


def test_a_constant_column_leaves_the_others_their_noise() -> None:
    columns = {**some("a", "b"), "k": CONSTANT}
    measures = [Moments(("a", "k", "b"), loudness=Fraction(1)), Marginal(("k",), edges={"k": ()})]
    plan = make_plan(measures, columns, unit="replace", budget="zcdp")
    assert min(plan.noise.scales) >= 10_000
    check_plan(plan)


@pytest.mark.parametrize("unit", UNITS)
def test_neighbouring_tables_differ_by_one_row(unit: str) -> None:
    """From whole tables to the sums that noise is added to: nothing but the row's own part."""
    measures, columns = shared_blocks()
    plan = make_plan(measures, columns, unit=unit, budget="approx")
    values = {n: extreme_cells(c, 3) for n, c in columns.items()}
    rng = np.random.default_rng(3)

    def table(rows: list[dict[str, str | None]]) -> pa.Table:
        return pa.table({n: pa.array([r[n] for r in rows], pa.string()) for n in columns})

    def draw() -> dict[str, str | None]:
        return {n: v[rng.integers(len(v))] for n, v in values.items()}

    steps = np.array([float(d) for d in plan.noise.scales])
    limit = float(allowed(plan.budget)) ** 0.5
    for _ in range(25):
        common, one, other = draw(), draw(), draw()
        first = exact_sums(table([common, one]), plan)
        second = exact_sums(table([common, other] if unit == "replace" else [common]), plan)
        change = np.array([float(x - y) for x, y in zip(first, second, strict=True)]) / steps
        assert math.sqrt(float((change**2).sum())) <= limit
