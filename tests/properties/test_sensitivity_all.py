"""Every kind of measure, unit and number of rows: the farthest neighbours by brute force.

One table of measures, made by the public constructors and planned as users plan them. Of each
plan all rows are enumerated (the ends and the middles of every column, unknown categories and
nulls among them), and all that up to k of them can be: no two neighbours may lie farther apart,
in units of the noise that is really drawn, than the budget was calibrated for. The search is in
floats, the verdict on what it finds in exact fractions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

import retilt as rt
from retilt.measures import grouped, moments, nested, partitions
from retilt.measures.base import Relation
from retilt.measures.moments import Moments
from retilt.privacy import sensitivity
from retilt.privacy.plan import Plan

SCHEMA: dict[str, Any] = {
    "a": rt.Numeric(-100.0, 1.0),
    "b": rt.Numeric(0, 4, integer=True),
    "c": rt.Numeric(-1, 0, integer=True),
    "sex": rt.Categorical(("F", "M")),
    "race": rt.Categorical(("x", "y", "z")),
    "flag": rt.Boolean(nullable=True),
}
CELLS: dict[str, tuple[Any, ...]] = {
    "a": (-100.0, -49.5, 1.0),
    "b": (0, 2, 4),
    "c": (-1, None, 0),  # null stands in the middle
    "sex": ("F", "M", "?"),
    "race": ("x", "y", "z", "?", None),
    "flag": (False, True, None),
}
"""Ends and middles of the grids, and what is in no list."""

SYNTHETIC = pa.table(
    {
        "a": [-100.0, -49.5, 1.0, 0.5] * 3,
        "b": [0, 4, 3, 1] * 3,
        "c": [-1, 0, 0] * 4,
        "sex": ["F", "M", "F", "M"] * 3,
        "race": ["x", "y", "z"] * 4,
        "flag": [True, False, None] * 4,
    }
)


def two_numbers(batch: pa.RecordBatch) -> NDArray[np.float64]:
    a, b = batch["a"].to_numpy(), batch["b"].to_numpy()
    return np.stack([a, b - 3], axis=1)


MEASURES: dict[str, rt.Workload] = {
    "means": rt.means(["a", "b", "c"]),
    "means by": rt.means(["a", "b"], by="sex"),
    "means where": rt.means(["a", "b"], where="b >= 2"),
    "means by where": rt.means("a", by="sex", where="b >= 2"),
    "moments": rt.moments(["a", "b", "c"]),
    "moments, clamped": rt.moments(["a", "b", "c"], clip={"a": (-49.5, 0.0), "b": (2, 4)}),
    "moments, ball": rt.Workload(
        (Moments(("a", "b", "c"), clip={}, ball={"a": (0, 5000), "b": (1, 4000), "c": (0, 3500)}),)
    ),
    "means by, clamped": rt.means(["a", "b"], by="sex", clip={"a": (-60, 0)}),
    "moments, two-valued": rt.moments(["a", "sex", "flag"]),
    "moments by": rt.moments(["a", "sex"], by="flag"),
    "moments where": rt.moments(["a", "b", "c"], where="a > -60"),
    "correlation": rt.correlation(["a", "b"]),
    "correlation by": rt.correlation(["a", "b"], by="sex"),
    "correlation where": rt.correlation(["a", "b"], where="sex = 'F'"),
    "correlation by where": rt.correlation(["a", "b"], by="sex", where="a > -60"),
    "regression": rt.regression("a", ["b", "sex"]),
    "regression by": rt.regression("a", ["b"], by="sex"),
    "regression where": rt.regression("a", ["b", "sex"], where="a > -60"),
    "marginal": rt.marginal(["a", "sex"], bins={"a": [-50]}),
    "marginals": rt.marginals(["sex", "race", "flag"], k=1),
    "share": rt.share("a >= -50 AND sex = 'F'"),
    "share by": rt.share("a >= -50", by="sex"),
    "query": rt.query("a * b", lower=-3, upper=2),
    "function": rt.function(two_numbers, ["a", "b"], lower=-3, upper=1, size=2),
    "cdf": rt.cdf("a", [-60, -20, 1]),
    "quantiles": rt.quantiles("b", bins=[1, 2, 3]),
    "cdf, nested": rt.cdf("b", [0, 1, 2, 3], branching=2),
    "several": rt.means("a", by="sex") + rt.correlation(["a", "b"]) + rt.share("b > 2", by="sex"),
}
"""A name, and a workload of the public constructors."""

PAPER = ("means", "moments", "moments, two-valued", "correlation", "regression")
"""What the paper's basis changes."""

GAUSSIAN = ("moments, ball",)
"""What has no bound for Laplace noise."""

NAMES = (*MEASURES, *(f"{name} (paper)" for name in PAPER))
BUDGETS: dict[int, dict[str, float]] = {
    1: {"epsilon": 1.0, "delta": 0.0},
    2: {"epsilon": 1.0, "delta": 1e-9},
}


@dataclass(frozen=True)
class Unit:
    """Which tables are neighbours; ``alone`` where only a row against none is looked at."""

    name: str
    unit: Any
    alone: bool = False

    @property
    def starts(self) -> range:
        """Numbers of rows that a neighbour may have in place of the other's."""
        if self.unit.person is None:
            return range(1, 2)  # a row by a row
        return range(self.unit.max_rows + 1)


def units() -> Iterator[Unit]:
    yield Unit("replace-one", rt.ReplaceOneRow())
    yield Unit("add-remove", rt.AddRemoveOneRow())
    yield Unit("replace-one-person, a row against none", rt.ReplaceOnePerson("id", 1), alone=True)
    for k in (1, 2, 3):
        yield Unit(f"replace-one-person, k = {k}", rt.ReplaceOnePerson("id", k))
        yield Unit(f"add-remove-person, k = {k}", rt.AddRemoveOnePerson("id", k))


@cache
def first_plan(name: str, kind: type, norm: int) -> Plan:
    """Planned for one row of each unit: loudness does not depend on how many there are."""
    bare = name.removesuffix(" (paper)")
    return rt.plan(
        SYNTHETIC,
        MEASURES[bare],
        **BUDGETS[norm],
        rows=12,
        unit=kind("id", 1) if kind in (rt.ReplaceOnePerson, rt.AddRemoveOnePerson) else kind(),
        schema=SCHEMA,
        basis="centred" if bare == name else "paper",
    )


@cache
def row_sums(name: str, kind: type, norm: int) -> tuple[list[tuple[Any, ...]], list[list[int]]]:
    """The rows that the measure tells apart, and the exact sums over each alone."""
    plan = first_plan(name, kind, norm)
    names = list(plan.schema.columns)
    rows = list(itertools.product(*(CELLS[n] for n in names)))
    cells = {
        n: pa.chunked_array([pa.array(column)])
        for n, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    encoded = {f: f.encode(cells.__getitem__, len(rows)) for f in plan.queries.features}
    found: dict[tuple[int, ...], tuple[Any, ...]] = {}
    for i, row in enumerate(rows):
        sums = plan.queries.sums({f: a[i : i + 1] for f, a in encoded.items()})
        found.setdefault((*sums, *((1,) if plan.counts_rows else ())), row)
    return list(found.values()), [list(sums) for sums in found]


# --- the search ---------------------------------------------------------------------------


def limit(plan: Plan) -> Fraction:
    """What the noise was made for: the squared distance (Gaussian), or epsilon (Laplace)."""
    if plan.noise.norm == 1:
        assert isinstance(plan.budget, rt.PureDP)
        return Fraction(plan.budget.epsilon)
    assert plan.noise.calibration is not None
    return Fraction(plan.noise.calibration.distance) ** 2


def spent(plan: Plan, change: Sequence[int]) -> Fraction:
    """How far apart two releases lie, in units of their noise; squared for Gaussian noise."""
    return sum(
        (
            (Fraction(abs(d) * f) / Fraction(s)) ** plan.noise.norm
            for d, f, s in zip(change, plan.noise.factors, plan.noise.scales, strict=True)
        ),
        Fraction(0),
    )


@dataclass(frozen=True)
class Worst:
    """The farthest neighbours of a plan."""

    one: list[Any]
    other: list[Any]
    share: Fraction  # of what is allowed


def farthest(plan: Plan, unit: Unit, rows: list[Any], sums: list[list[int]]) -> Worst:
    """Of all pairs of up to k rows, k of them on each side or none on one."""
    table = np.array(sums, dtype=np.int64)
    picks: dict[tuple[int, ...], tuple[int, ...]] = {}
    for size in unit.starts:
        for pick in itertools.combinations_with_replacement(range(len(rows)), size):
            picks.setdefault(tuple(table[list(pick)].sum(axis=0).tolist()), pick)
    none = (0,) * table.shape[1]
    if unit.alone or plan.unit.relation is Relation.ADD_REMOVE:
        picks[none] = ()
    totals = list(picks)
    steps = np.array([f / s for f, s in zip(plan.noise.factors, plan.noise.scales, strict=True)])
    points = np.array(totals, dtype=np.float64) * steps
    if unit.alone or plan.unit.relation is Relation.ADD_REMOVE:
        lengths = (np.abs(points) ** plan.noise.norm).sum(axis=1)
        pairs = [(int(i), totals.index(none)) for i in nearly_longest(lengths)]
    else:
        metric = "sqeuclidean" if plan.noise.norm == 2 else "cityblock"
        lengths = pdist(points, metric)
        pairs = [pair_of(int(i), len(points)) for i in nearly_longest(lengths)]
    exact = [
        (spent(plan, [x - y for x, y in zip(totals[i], totals[j], strict=True)]), i, j)
        for i, j in pairs
    ]
    most, i, j = max(exact)
    one, other = ([rows[r] for r in picks[totals[n]]] for n in (i, j))
    return Worst(one=one, other=other, share=most / limit(plan))


def nearly_longest(lengths: NDArray[np.float64]) -> NDArray[np.intp]:
    """Numbers of the few that are the longest but for rounding."""
    return np.flatnonzero(lengths >= lengths.max() * (1 - 1e-9))[:50]


def pair_of(place: int, count: int) -> tuple[int, int]:
    """The pair that stands at a place of scipy's condensed distances of ``count`` points.

    >>> [pair_of(n, 4) for n in range(6)]
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    first = 0
    while place >= count - 1 - first:
        place -= count - 1 - first
        first += 1
    return first, first + 1 + place


def check(name: str, unit: Unit, norm: int) -> Worst:
    kind = type(unit.unit)
    plan = replace(first_plan(name, kind, norm), unit=unit.unit)
    found = farthest(plan, unit, *row_sums(name, kind, norm))
    pair = f"{told(found.one)} against {told(found.other)}"
    line = f"{name:24} L{norm} {unit.name:40} {float(found.share):.6f} of the bound: {pair}"
    print(line)
    assert found.share <= 1, line
    return found


def told(rows: Sequence[tuple[Any, ...]]) -> str:
    return " + ".join(f"({', '.join(map(repr, row))})" for row in rows) or "none"


# --- the tests ----------------------------------------------------------------------------


FLOORS = {"replace-one": 0.95, "add-remove": 0.9999, "replace-one-person": 0.7}
"""Shares of the bound that some neighbours reach: a search that finds less is of no use.

Where a person is replaced and rows are counted the bound holds both for rows that differ and for
rows that come or go, and no neighbours do both at once.
"""


def check_all(names: Sequence[str], norms: Sequence[int] = (1, 2)) -> None:
    for name, norm in itertools.product(names, norms):
        for unit in units():
            share = check(name, unit, norm).share
            floor = next(f for start, f in reversed(FLOORS.items()) if unit.name.startswith(start))
            assert unit.alone or share >= floor, f"{name}, {unit.name}: {float(share)} at most"


@pytest.mark.parametrize(
    ("name", "norm"), [(n, k) for n in NAMES for k in (1, 2) if k == 2 or n not in GAUSSIAN]
)
def test_no_neighbours_lie_farther_apart_than_declared(name: str, norm: int) -> None:
    check_all([name], [norm])


def smaller(function: Callable[..., Fraction]) -> Callable[..., Fraction]:
    return lambda *args, **options: function(*args, **options) * Fraction(49, 50)


def without_rows(bound: Fraction, _max_rows: int, _norm: int) -> Fraction:
    return bound


def without_square(bound: Fraction, max_rows: int, _norm: int) -> Fraction:
    return bound * max_rows


def without_count(queries: Any, scales: Any, _count: Any, norm: Any) -> Fraction:
    return joint_sensitivity(queries, scales, None, norm)


joint_sensitivity = sensitivity.joint_sensitivity

BROKEN: dict[str, tuple[Any, str, Callable[..., Fraction], str]] = {
    "cells": (
        partitions,
        "partition_sensitivity",
        smaller(partitions.partition_sensitivity),
        "marginal",
    ),
    "moments": (moments, "centred_sensitivity", smaller(moments.centred_sensitivity), "moments"),
    "paper": (moments, "paper_sensitivity", smaller(moments.paper_sensitivity), "moments (paper)"),
    "ball": (moments, "ball_sensitivity", smaller(moments.ball_sensitivity), "moments, ball"),
    "groups": (
        grouped,
        "grouped_sensitivity",
        smaller(grouped.grouped_sensitivity),
        "correlation by",
    ),
    "levels": (nested.Nested, "sensitivity", smaller(nested.Nested.sensitivity), "cdf, nested"),
    "k": (sensitivity, "sensitivity_of_rows", without_rows, "share"),
    "k squared": (sensitivity, "sensitivity_of_rows", without_square, "share"),
    "count": (sensitivity, "joint_sensitivity", without_count, "share"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_search_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, wrong, name = BROKEN[broken]
    norms = (2,) if name in GAUSSIAN else (1, 2)
    check_all([name], norms)
    monkeypatch.setattr(module, attribute, wrong)
    with pytest.raises(AssertionError, match=r"of the bound: .* against "):
        check_all([name], norms)
