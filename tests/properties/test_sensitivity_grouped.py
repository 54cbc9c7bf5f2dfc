"""Sensitivities of moments within groups against brute force, persons of several rows included.

``pytest -s`` prints the worst pair of each kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from retilt.measures import grouped
from retilt.measures.base import Design, Grouped, Relation, Terms
from retilt.measures.grouped import GroupedBlock
from retilt.measures.moment_bounds import (
    centred_sensitivity,
    free_count,
    grouped_sensitivity,
    grouped_square_loudness,
    rational_sqrt_down,
    square_loudness,
)
from retilt.measures.moments import Moments
from retilt.schema.columns import Boolean, Categorical, Column, Numeric, Schema

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
CLOSE = 1e-5
"""Loudnesses are rounded down to multiples of 2**-20: an attained bound is met to that."""

FINE = Numeric(-100.0, 1.0)
SEVEN = Numeric(-3, 3, integer=True)
TWO = Categorical(("no", "yes"))
SETS: dict[str, tuple[Column, ...]] = {
    "fine": (FINE,),
    "two": (TWO,),
    "fine seven": (FINE, SEVEN),
    "fine two": (FINE, TWO),
    "two two": (TWO, TWO),
    "fine seven two": (FINE, SEVEN, TWO),
    "fine seven fine": (FINE, SEVEN, FINE),
}
GROUPS: dict[str, dict[str, Any]] = {
    "by": {"by": ("g",)},
    "where": {"where": "w"},
    "by where": {"by": ("g",), "where": "w"},
}


def make(
    name: str, kind: str, *, order: int, norm: int, relation: Relation, loudness: Fraction
) -> GroupedBlock:
    columns = {f"c{i}": c for i, c in enumerate(SETS[name])}
    schema = Schema({**columns, "g": Categorical(("F", "M")), "w": Boolean()})
    measure = Moments(tuple(columns), order=order, loudness=loudness, **GROUPS[kind])
    block = measure.bind(Terms(schema, norm=norm, relation=relation))  # type: ignore[arg-type]
    assert isinstance(block, GroupedBlock)
    return block


def levels_of(column: Column, points: int) -> list[int]:
    if column.two_valued:
        return [-1, 1]
    return sorted({round(column.levels * f) for f in np.linspace(-1, 1, points)})


@cache
def rows_of(name: str, kind: str) -> NDArray[np.int32]:
    """(rows, features): the groups' cells and the condition, then the columns' grid values."""
    fronts = {"by": [(0,), (1,)], "where": [(1,)], "by where": [(0, 1), (1, 1)]}[kind]
    points = {1: 33, 2: 9, 3: 5}[len(SETS[name])]
    grid = list(itertools.product(*(levels_of(c, points) for c in SETS[name])))
    return np.array([(*f, *z) for f in fronts for z in grid], dtype=np.int32)


def values_of(design: Design) -> NDArray[np.float64]:
    """(rows, K) query values."""
    assert isinstance(design, Grouped)
    ones = np.ones((len(design.codes), 1))
    columns = np.concatenate([design.values, ones], axis=1)  # -1 is the last
    inside = design.codes[:, None] == design.cell
    product = columns[:, design.left] * columns[:, design.right]
    result: NDArray[np.float64] = inside * (design.offset + design.factor * product)
    return result


@cache
def row_values(name: str, kind: str, order: int) -> NDArray[np.float64]:
    """(rows + 1, K) query values; the last row lies in no group, or is no row at all."""
    block = make(name, kind, order=order, norm=2, relation=REPLACE, loudness=Fraction(1))
    rows = rows_of(name, kind)
    keep = np.arange(len(block.keys), dtype=np.intp)
    values = values_of(block.design(list(rows.T), keep))
    return np.concatenate([values, np.zeros((1, values.shape[1]))])


def exact_sums(block: GroupedBlock, rows: NDArray[np.int32]) -> list[Fraction]:
    sums = block.sums(list(rows.T))
    return [s * Fraction(v, u) for s, v, u in zip(sums, block.scales, block.units, strict=True)]


def length(change: Sequence[Fraction], norm: int) -> Fraction:
    return sum((abs(c) ** norm for c in change), Fraction(0))


def worst_pair(points: NDArray[np.float64], norm: int) -> tuple[int, int]:
    flat = int(np.argmax(pdist(points, "sqeuclidean" if norm == 2 else "cityblock")))
    first, second = np.triu_indices(len(points), 1)
    return int(first[flat]), int(second[flat])


def worst_change(
    block: GroupedBlock, name: str, kind: str
) -> tuple[Fraction, tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The exact largest change of the scaled sums, and the rows that make it."""
    rows, norm = rows_of(name, kind), block.norm
    points = row_values(name, kind, block.order) * np.array([float(s) for s in block.scales])
    if block.relation is ADD_REMOVE:
        pair = (int(np.argmax((np.abs(points) ** norm).sum(axis=1))), len(rows))
    else:
        pair = worst_pair(points, norm)
    one, other = (rows[i : i + 1] for i in pair)  # the row of no group is beyond the last
    sums = [exact_sums(block, r) for r in (one, other)]
    return length([a - b for a, b in zip(*sums, strict=True)], norm), (one, other)


def loudnesses(count: int) -> list[Fraction]:
    root = rational_sqrt_down(Fraction(count))
    tried = {Fraction(1, 64), Fraction(1, 3), Fraction(1), Fraction(3, 2), root, Fraction(count)}
    return sorted(a for a in tried if a <= count)


def check(name: str, kind: str, order: int, norm: int, relation: Relation) -> str:
    """Hold the bound at several loudnesses; at the free count, and above, it is attained."""
    said = ""
    for loudness in loudnesses(len(SETS[name])) if order == 2 else [Fraction(1)]:
        options = {"order": order, "norm": norm, "relation": relation}
        block = make(name, kind, loudness=loudness, **options)  # type: ignore[arg-type]
        for factor in (Fraction(1, 16), Fraction(1), Fraction(2)):
            tried = replace(block, count=block.count * factor)
            bound = tried.sensitivity()
            found, pair = worst_change(tried, name, kind)
            assert found <= bound, f"{float(found)} > {float(bound)}, rows {pair}"
            if factor >= 1:
                close = bound * Fraction(1 - CLOSE)
                assert found >= close, f"wasteful: {float(found)} of {float(bound)}"
                said = f"{float(found):.6g} of {float(bound):.6g}, rows {pair[0]} {pair[1]}"
    return said


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("name", SETS)
def test_one_row(name: str, kind: str, order: int, relation: Relation, norm: int) -> None:
    worst = check(name, kind, order, norm, relation)
    print(f"{kind} {name} order {order} L{norm} {relation.value}: {worst}")


def test_the_free_count_is_the_table_of_the_docstring() -> None:
    d, a = 3, Fraction(3, 2)
    options = {"columns": d, "loudness": a}
    r = a * a
    spare = (d + r) ** 2 - r * d - d * (d - 1) // 2
    expected = {
        (2, True, 1): rational_sqrt_down(Fraction(2 * d, 1) - d),
        (2, False, 1): 3,
        (2, True, 2): rational_sqrt_down((d + r * r) / 2),
        (2, False, 2): rational_sqrt_down(spare),
        (1, True, 1): 0,
        (1, True, 2): 0,
        (1, False, 1): d,
        (1, False, 2): (d + r) / 2,
    }
    for (norm, several, order), value in expected.items():
        loudness = a if order == 2 else Fraction(1)
        found = free_count(
            norm,  # type: ignore[arg-type]
            REPLACE,
            several=several,
            columns=d,
            order=order,
            loudness=loudness,
        )
        assert found == value, (norm, several, order)
        options = {"several": several, "columns": d, "order": order, "loudness": loudness}
        if found:
            bounds = [
                grouped_sensitivity(norm, REPLACE, count=c, **options)  # type: ignore[arg-type]
                for c in (Fraction(1, 1000), found, found + Fraction(1, 1000))
            ]
            assert bounds[0] == bounds[1] < bounds[2]


# --- persons -----------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("name", ["fine", "fine two"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_persons_of_several_rows(
    most: int, name: str, kind: str, relation: Relation, norm: int
) -> None:
    """Every table of at most k rows of one person against every other: k times the row's bound."""
    for order in (1, 2):
        block = make(name, kind, order=order, norm=norm, relation=relation, loudness=Fraction(1))
        values = row_values(name, kind, order)
        corners = (np.abs(values[:, block.cells :]) == 1).any(axis=1)
        middle = np.zeros(len(values), dtype=bool)
        middle[[0, len(values) // 3]] = True
        chosen = np.flatnonzero(corners | middle)[:: 1 if name == "fine" else 5].tolist()
        chosen = [*chosen, len(values) - 1]  # the row of no group: fewer rows than k
        scaled = values * np.array([float(s) for s in block.scales])
        several = itertools.combinations_with_replacement(chosen[-14:], most)
        tables = np.array([scaled[list(table)].sum(axis=0) for table in several])
        bound = float(most**norm * block.sensitivity())
        if relation is ADD_REMOVE:
            found = (np.abs(tables) ** norm).sum(axis=1).max()
        else:
            found = pdist(tables, "sqeuclidean" if norm == 2 else "cityblock").max()
        assert found <= bound * (1 + 1e-9)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("kind", GROUPS)
def test_persons_attain_their_bound(kind: str, relation: Relation, most: int) -> None:
    """The worst pair of rows, k times over, in tables that are really summed."""
    for norm in (1, 2):
        block = make("fine two", kind, order=2, norm=norm, relation=relation, loudness=Fraction(1))
        _, (one, other) = worst_change(block, "fine two", kind)
        sums = [exact_sums(block, np.repeat(r, most, axis=0)) for r in (one, other)]
        found = length([a - b for a, b in zip(*sums, strict=True)], norm)
        bound = most**norm * block.sensitivity()
        assert bound * Fraction(1 - CLOSE) <= found <= bound
        print(f"{kind} L{norm} {relation.value} k={most}: {one.tolist()} {other.tolist()}")


def test_neighbouring_tables() -> None:
    """Random tables that differ in one row, through the columns' encodings, never exceed it."""
    rng = np.random.default_rng(3)
    for kind, norm in itertools.product(GROUPS, (1, 2)):
        block = make(
            "fine seven two", kind, order=2, norm=norm, relation=REPLACE, loudness=Fraction(1)
        )
        for _ in range(20):
            table = {
                "c0": rng.uniform(-120, 20, 6),
                "c1": rng.integers(-4, 5, 6),
                "c2": rng.choice(["no", "yes", "?"], 6),
                "g": rng.choice(["F", "M", "?", ""], 6),
                "w": rng.random(6) < 0.6,
            }
            tables = [pa.table({n: v[i : i + 5] for n, v in table.items()}) for i in (0, 1)]
            sums = [
                exact_sums(
                    block, np.stack([f.encode(t.__getitem__, 5) for f in block.features], axis=1)
                )
                for t in tables
            ]
            change = length([a - b for a, b in zip(*sums, strict=True)], norm)
            assert change <= block.sensitivity()


# --- the checks notice -------------------------------------------------------------------


def check_all() -> None:
    for name, kind, order, norm, relation in itertools.product(
        ("fine", "fine seven", "fine two"), GROUPS, (1, 2), (1, 2), (REPLACE, ADD_REMOVE)
    ):
        check(name, kind, order, norm, relation)


def broken(**changes: Any) -> Callable[..., Fraction]:
    """The bound with one of its parts changed."""

    def bound(norm: int, relation: Relation, **options: Any) -> Fraction:
        several, count = options.pop("several"), options.pop("count")
        together = centred_sensitivity(norm, REPLACE, **options)  # type: ignore[arg-type]
        alone = centred_sensitivity(norm, ADD_REMOVE, **options)  # type: ignore[arg-type]
        if changes.get("count", True):
            alone += count ** changes.get("power", norm)
        alone -= changes.get("less", 0)
        if relation is ADD_REMOVE:
            return alone
        crossing = changes.get("groups", 2 if several else 1) * alone
        if not changes.get("together", True):
            return crossing
        return crossing if norm == 1 and several else max(together, crossing)

    return bound


def replace_squares(norm: int, relation: Relation, *, several: bool, **options: Any) -> Fraction:
    """As loud as ungrouped ones: forgets that a row alone has a length."""
    del relation, several
    return square_loudness(norm, REPLACE, **options)  # type: ignore[arg-type]


def lone_squares(norm: int, relation: Relation, *, several: bool, **options: Any) -> Fraction:
    """As loud as one row's length allows: forgets two rows of one group."""
    del relation, several
    return square_loudness(norm, ADD_REMOVE, **options)  # type: ignore[arg-type]


MUTATIONS: dict[str, tuple[str, Any]] = {
    "2 % smaller": (
        "grouped_sensitivity",
        lambda *args, **options: grouped_sensitivity(*args, **options) * Fraction(49, 50),
    ),
    "one group counted": ("grouped_sensitivity", broken(groups=1)),
    "count left out": ("grouped_sensitivity", broken(count=False)),
    "same group left out": ("grouped_sensitivity", broken(together=False)),
    "count not squared": ("grouped_sensitivity", broken(power=1)),
    "a thousandth less": ("grouped_sensitivity", broken(less=Fraction(1, 1000))),
    "squares 10 % louder": (
        "grouped_square_loudness",
        lambda *args, **options: grouped_square_loudness(*args, **options) * Fraction(11, 10),
    ),
    "squares of replace-one": ("grouped_square_loudness", replace_squares),
    "squares of add-remove": ("grouped_square_loudness", lone_squares),
}


def test_the_unbroken_bound_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewritten bound below is the real one where nothing is changed."""
    monkeypatch.setattr(grouped, "grouped_sensitivity", broken())
    check_all()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checks_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, mutated = MUTATIONS[name]
    monkeypatch.setattr(grouped, attribute, mutated)
    with pytest.raises(AssertionError, match=r"\d > \d"):
        check_all()
