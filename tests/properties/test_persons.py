"""One person moves the released integers by no more than declared, and nothing else.

Brute force on the integers that are really released: first over all that up to k rows of a
person can be, then on whole tables through ``exact_sums``, where persons own more rows than are
used. The ``check_*`` functions are plain, so that the mutations at the end can run them on
broken code.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from loading import load
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

import retilt.measures.workload as make
from retilt import persons, pipeline
from retilt.measures.base import Relation
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments
from retilt.pipeline import exact_sums
from retilt.planning import plan as make_any
from retilt.privacy import sensitivity
from retilt.privacy.budget import ZCDP, ApproxDP, Budget, PureDP
from retilt.privacy.plan import Plan
from retilt.privacy.unit import AddRemoveOnePerson, ReplaceOnePerson
from retilt.schema.columns import Categorical, Column, Numeric, Schema

KINDS: dict[str, Any] = {"replace": ReplaceOnePerson, "add-remove": AddRemoveOnePerson}
BUDGETS: dict[str, Budget] = {
    "pure": PureDP(0.7),
    "approx": ApproxDP(1.0, 1e-9),
    "zcdp": ZCDP(0.1),
}
COLUMNS: dict[str, Column] = {
    "a": Numeric(-100.0, 1.0),
    "b": Numeric(0, 4, integer=True),
    "c": Numeric(-1, 0, integer=True),
    "sex": Categorical(("F", "M")),
    "race": Categorical(("x", "y", "z")),
}
MEASURES: dict[str, list[Moments | Marginal]] = {
    "moments": [Moments(("a", "b", "c"), loudness=Fraction(1))],
    "two-valued moments": [Moments(("a", "sex"), loudness=Fraction(1))],
    "marginal": [Marginal(("race",))],
    "joint": [Moments(("a", "sex"), loudness=Fraction(3, 4)), Marginal(("race",))],
    "shared": [Moments(("a", "b"), loudness=Fraction(1, 3)), Moments(("b", "a"), order=1)],
}


def make_plan(
    kind: str,
    max_rows: int,
    measures: str,
    budget: str,
    *,
    basis: str = "centred",
    count_scale: Fraction = Fraction(3, 2),
    scales: Sequence[Fraction] = (Fraction(1), Fraction(3, 2)),
) -> Plan:
    asked = MEASURES[measures]
    names = dict.fromkeys(n for m in asked for n in m.columns)
    return Plan(
        unit=KINDS[kind]("id", max_rows),
        budget=BUDGETS[budget],
        rows=100,
        generator=None,
        basis=basis,  # type: ignore[arg-type]
        schema=Schema({n: COLUMNS[n] for n in names}),
        measures=tuple(asked),
        scales=tuple(scales[: len(asked)]),
        count_scale=count_scale,
    )


def limit(plan: Plan) -> Fraction:
    """What one person may spend: the calibrated distance squared, or epsilon."""
    if isinstance(plan.budget, PureDP):
        return Fraction(plan.budget.epsilon)
    assert plan.noise.calibration is not None
    assert min(plan.noise.scales) >= 10_000
    return Fraction(plan.noise.calibration.distance) ** 2


def spent(plan: Plan, change: Sequence[int]) -> Fraction:
    scales = plan.noise.scales
    return sum(
        (Fraction(abs(int(d))) / Fraction(s)) ** plan.noise.norm
        for d, s in zip(change, scales, strict=True)
    ) + Fraction(0)


def distances(plan: Plan, points: Any) -> NDArray[np.float64]:
    """Of all pairs of points: squared, or the sums of absolute values."""
    if plan.noise.norm == 2:
        return pdist(points, "sqeuclidean")
    return pdist(points, "cityblock")


# --- all that up to k rows can be -------------------------------------------------------------


def cells_of(column: Column) -> list[str]:
    if isinstance(column, Categorical):
        return [*map(str, column.categories)]
    assert isinstance(column, Numeric)
    points = 2 if column.integer else 3
    return [repr(float(v)) for v in np.linspace(column.lower, column.upper, points)]


def rows_of(plan: Plan) -> tuple[list[tuple[str, ...]], NDArray[Any]]:
    """Rows as text, and (rows, K + 1) their parts of the released integers."""
    names = list(plan.schema.columns)
    rows = list(itertools.product(*(cells_of(plan.schema[n]) for n in names)))
    parts = []
    for row in rows:
        cells = {n: pa.chunked_array([[c]]) for n, c in zip(names, row, strict=True)}
        encoded = {f: f.encode(cells.__getitem__, 1) for f in plan.queries.features}
        sums = [*plan.queries.sums(encoded), 1]
        parts.append([s * f for s, f in zip(sums, plan.noise.factors, strict=True)])
    return rows, np.array(parts, dtype=object)


def worst_pair(plan: Plan, most: int) -> tuple[list[Any], list[Any], Fraction]:
    """The two sets of up to ``most`` rows of one person that lie farthest apart."""
    rows, parts = rows_of(plan)
    picks = [
        list(pick)
        for size in range(most + 1)
        for pick in itertools.combinations_with_replacement(range(len(rows)), size)
    ]
    sums = np.array([parts[p].sum(axis=0) if p else parts[0] * 0 for p in picks], dtype=object)
    points = sums.astype(np.float64) / np.array(plan.noise.scales)
    if plan.unit.relation is Relation.ADD_REMOVE:
        one, two = int(np.argmax((np.abs(points) ** plan.noise.norm).sum(axis=1))), 0
    else:
        flat = int(np.argmax(distances(plan, points)))
        one, two = next(itertools.islice(itertools.combinations(range(len(picks)), 2), flat, None))
    found = spent(plan, sums[one] - sums[two])
    return [rows[i] for i in picks[one]], [rows[i] for i in picks[two]], found


def check_rows(plan: Plan, *, attained: float = 0.0) -> None:
    """No k rows of a person spend more than the budget."""
    one, two, found = worst_pair(plan, plan.unit.max_rows)
    print(f"{plan.unit}: {one} against {two}: {float(found / limit(plan)):.6f} of the bound")
    assert found <= limit(plan), f"{one} against {two} spends {float(found)}"
    assert found >= limit(plan) * Fraction(attained), "the bound is wasteful"


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("measures", MEASURES)
def test_no_rows_of_a_person_spend_more(
    measures: str, kind: str, max_rows: int, budget: str
) -> None:
    for count_scale in (Fraction(1, 1000), Fraction(3, 2)):
        plan = make_plan(kind, max_rows, measures, budget, count_scale=count_scale)
        # Under add/remove k times one row is the worst; under replace-one k times the worst
        # pair, but for the count, which is then next to nothing or does not move.
        tight = kind == "add-remove" or (count_scale < 1 and measures != "joint")
        loose = measures in ("shared", "two-valued moments")  # no row of the grid is that far
        check_rows(plan, attained=0.997 if tight and not loose else 0.0)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_basis(kind: str, budget: str) -> None:
    for measures in ("moments", "joint"):
        check_rows(make_plan(kind, 2, measures, budget, basis="paper"))


SYNTHETIC = pa.table(
    {
        "a": [-100.0, -49.5, 1.0, 0.5] * 3,
        "b": [0, 4, 4, 0] * 3,
        "sex": ["F", "M", "F", "M"] * 3,
        "race": ["x", "y", "z"] * 4,
    }
)
EVERY: dict[str, make.Workload] = {
    "moments by": make.moments(["a", "b"], by="sex"),
    "correlation": make.correlation(["a", "b"]),
    "correlation where": make.correlation(["a", "b"], where="sex = 'F'"),
    "regression": make.regression("a", ["b", "sex"]),
    "means": make.means(["a", "b"]),
    "means by": make.means(["a"], by="sex"),
    "means where": make.means(["a"], where="b > 2"),
    "marginals": make.marginals(["sex", "race"], k=2),
    "share": make.share("a >= -50"),
    "share by": make.share("a >= -50", by="sex"),
    "query": make.query("a * b", lower=-3, upper=2),
    "function": make.function(lambda batch: batch["b"], ["b"], upper=4),
    "cdf": make.cdf("a", [-60, -20]),
    "quantiles": make.quantiles("a", bins=3),
    "several": make.means(["a"], by="sex") + make.share("b > 2") + make.marginal(["race"]),
}


@pytest.mark.parametrize("budget", [{"delta": 0}, {"delta": 1e-9}])
@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVERY)
def test_every_kind_of_measure(
    name: str, kind: str, max_rows: int, budget: dict[str, float]
) -> None:
    options: dict[str, Any] = dict(budget)
    plan = make_any(
        SYNTHETIC,
        EVERY[name],
        epsilon=1.0,
        unit=KINDS[kind]("id", max_rows),
        schema=COLUMNS,
        **options,
    )
    attained = kind == "add-remove" and name != "several"
    check_rows(plan, attained=0.999 if attained else 0.7)


@pytest.mark.parametrize("measures", MEASURES)
def test_more_rows_than_declared_would_spend_more(measures: str) -> None:
    for kind in KINDS:
        plan = make_plan(kind, 2, measures, "zcdp", count_scale=Fraction(1, 1000))
        assert worst_pair(plan, 3)[2] > limit(plan)


# --- neighbouring tables ----------------------------------------------------------------------

OTHERS = [
    *[("b", r) for r in (0, 0, 0, 1, 2, 2)],  # owns more rows than are used
    *[("c", r) for r in (2, 2, 1, 0)],
    ("d", 2),
    (None, 0),
    ("", 1),
]
ONES = ("x", "B")
"""Names of the person who comes, goes or is replaced."""


def tables(plan: Plan, most: int) -> list[list[int]]:
    """Released integers, without noise, of all tables with up to ``most`` rows of one person."""
    rows, _ = rows_of(plan)
    domain = [rows[i] for i in np.linspace(0, len(rows) - 1, 3).astype(int)]
    shuffled = random.Random(0)
    released = []
    for name in ONES:
        for size in range(most + 1):
            for pick in itertools.combinations_with_replacement(range(3), size):
                table = [*OTHERS, *((name, r) for r in pick)]
                shuffled.shuffle(table)
                columns = {
                    n: [domain[r][j] for _, r in table] for j, n in enumerate(plan.schema.columns)
                }
                columns["id"] = [p for p, _ in table]
                released.append(exact_sums(pa.table(columns), plan))
    return released


def check_tables(plan: Plan) -> None:
    """No two tables that differ in one person's rows lie farther apart than declared."""
    released = np.array(tables(plan, plan.unit.max_rows + 1), dtype=object)
    points = np.unique(released.astype(np.float64) / np.array(plan.noise.scales), axis=0)
    alone = released[0].astype(np.float64) / np.array(plan.noise.scales)
    if plan.unit.relation is Relation.ADD_REMOVE:
        found = float((np.abs(points - alone) ** plan.noise.norm).sum(axis=1).max())
    else:
        found = float(distances(plan, points).max())
    allowed = float(limit(plan))
    assert found <= allowed * (1 + 1e-9), f"a person spends {found} of {allowed}"
    assert found >= 0.4 * allowed, "no person comes near the bound: the search is of no use"


@pytest.mark.parametrize("budget", ["pure", "zcdp"])
@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbouring_tables(kind: str, max_rows: int, budget: str) -> None:
    for measures in ("moments", "marginal", "joint"):
        check_tables(make_plan(kind, max_rows, measures, budget))


def check_order(plan: Plan) -> None:
    """The sums are a function of the table as a multiset."""
    rng = np.random.default_rng(0)
    columns = {n: rng.choice(cells_of(c), 60).tolist() for n, c in plan.schema.columns.items()}
    table = pa.table({**columns, "id": rng.choice(["p", "q", "r", ""], 60).tolist()})
    expected = exact_sums(table, plan)
    for _ in range(5):
        assert exact_sums(table.take(pa.array(rng.permutation(60))), plan) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_does_not_matter(kind: str) -> None:
    for max_rows in (1, 2, 7):
        check_order(make_plan(kind, max_rows, "joint", "zcdp"))


def test_rows_without_a_person_move_nothing() -> None:
    plan = make_plan("replace", 2, "joint", "zcdp")
    rows = {"a": ["-100", "1", "0"], "sex": ["F", "M", "M"], "race": ["x", "y", "z"]}
    alone = pa.table({**{n: c[:1] for n, c in rows.items()}, "id": ["p"]})
    more = pa.table({**rows, "id": ["p", None, ""]})
    assert exact_sums(alone, plan) == exact_sums(more, plan)


# --- nothing else shows -----------------------------------------------------------------------


lines = load(Path(__file__).with_name("test_noninterference.py"))
IDS: dict[str, list[Any]] = {
    "different": ["1", "2", "3", "4", "5"],
    "one": ["1"] * 5,
    "two": ["1", "2", "1", "2", "1"],
    "nobody": [None, "", None, "", None],
    "null": ["1", None, "2", None, "1"],
    "hostile": ["\x00", "x" * 200_000, "\udcff", "'; drop table", "NaN"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_lines_whoever_owns_the_rows(kind: str) -> None:
    plan = lines.make_plan(100, unit=KINDS[kind]("id", 2), delta=1e-9)
    seen = []
    for ids in (IDS["different"], *IDS.values()):
        frame = pd.DataFrame(lines.ORDINARY, index=range(5)).assign(id=pd.Series(ids, dtype=object))
        seen.append(lines.observe(frame, plan))
    lines.assert_alike(seen)


def test_the_same_lines_for_one_row_and_none() -> None:
    plan = lines.make_plan(100, unit=AddRemoveOnePerson("id", 1), delta=1e-9)
    one = pa.table({n: pa.array([v]) for n, v in {**lines.ORDINARY, "id": "p"}.items()})
    lines.assert_alike([lines.observe(one.slice(0, rows), plan) for rows in (1, 1, 0)])


# --- mutations --------------------------------------------------------------------------------

joint_sensitivity = sensitivity.joint_sensitivity
chosen_rows = persons.chosen_rows


def without_count(queries: Any, scales: Any, _count: Any, norm: Any) -> Fraction:
    return joint_sensitivity(queries, scales, None, norm)


def by_position(cells: Any, contents: Any, *, max_rows: int, key: str) -> Any:
    """The first rows of each person, as they stand in the table."""
    del contents, key
    seen: dict[object, int] = {}
    kept = []
    for number, person in enumerate(cells.to_pylist()):
        if person:
            seen[person] = seen.get(person, 0) + 1
            if seen[person] <= max_rows:
                kept.append(number)
    return np.array(kept, dtype=np.intp)


def by_a_short_hash(cells: Any, contents: Any, **options: Any) -> Any:
    """Persons told apart by a part of their text, which two can share."""
    short = [None if not p else p.lower()[:1] for p in cells.to_pylist()]
    return chosen_rows(pa.chunked_array([pa.array(short, pa.string())]), contents, **options)


def all_rows(cells: Any, contents: Any, *, max_rows: int, key: str) -> Any:
    del contents, max_rows, key
    return np.flatnonzero([bool(p) for p in cells.to_pylist()])


def one_more(cells: Any, contents: Any, *, max_rows: int, key: str) -> Any:
    return chosen_rows(cells, contents, max_rows=max_rows + 1, key=key)


def check_all_rows() -> None:
    for kind, budget in itertools.product(KINDS, BUDGETS):
        check_rows(make_plan(kind, 2, "marginal", budget))


def check_all_tables() -> None:
    for kind in KINDS:
        check_tables(make_plan(kind, 2, "marginal", "zcdp", count_scale=Fraction(1, 1000)))


def check_all_orders() -> None:
    check_order(make_plan("replace", 2, "joint", "zcdp"))


Mutation = tuple[ModuleType, str, Any, Callable[[], None]]

MUTATIONS: dict[str, Mutation] = {
    "k forgotten": (
        sensitivity,
        "sensitivity_of_rows",
        lambda bound, _max_rows, _norm: bound,
        check_all_rows,
    ),
    "k not squared": (
        sensitivity,
        "sensitivity_of_rows",
        lambda bound, max_rows, _norm: bound * max_rows,
        check_all_rows,
    ),
    "count forgotten": (sensitivity, "joint_sensitivity", without_count, check_all_rows),
    "all rows used": (pipeline, "chosen_rows", all_rows, check_all_tables),
    "one row too many": (pipeline, "chosen_rows", one_more, check_all_tables),
    "chosen by position": (pipeline, "chosen_rows", by_position, check_all_orders),
    "persons taken for one another": (
        pipeline,
        "chosen_rows",
        by_a_short_hash,
        check_all_tables,
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checks_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, broken, check = MUTATIONS[name]
    check()
    monkeypatch.setattr(module, attribute, broken)
    with pytest.raises(AssertionError):
        check()
