"""Scores that choose measures: no neighbours' scores lie farther apart than their sensitivity.

For every kind of measure, unit and norm (those of ``test_sensitivity_all``), for tables of very
many equal rows and for empty ones, against the synthetic table's answers and against invented
ones: all rows are tried, and for persons rows that all are alike or chosen at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load

import retilt as rt
from retilt.measures.base import Relation
from retilt.privacy import selection
from retilt.privacy.budget import PureDP
from retilt.privacy.plan import Plan
from retilt.privacy.selection import GRANULARITY, Selection, Terms, scores_of
from retilt.tables import encode

every = load(Path(__file__).with_name("test_sensitivity_all.py"))
KINDS = (rt.ReplaceOneRow, rt.AddRemoveOneRow, rt.ReplaceOnePerson, rt.AddRemoveOnePerson)
Sums = list[int]


def synthetic_sums(plan: Plan) -> Sums:
    from retilt.engines.local import open_table

    table = open_table(every.SYNTHETIC)
    return [int(s) for s in plan.queries.sums(encode(table, plan.queries.features))]


def references(plan: Plan, rows: list[Sums]) -> Iterator[Selection]:
    """Answers to compare with: the synthetic table's, those of single rows, and of none."""
    part = PureDP(0.1)
    size = plan.queries.size
    yield Selection(1, part, every.SYNTHETIC.num_rows, tuple(synthetic_sums(plan)))
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        yield Selection(1, part, 1, tuple(row[:size]))
    yield Selection(1, part, 7, (0,) * size)


def tables(rows: list[Sums], rng: np.random.Generator) -> Iterator[tuple[int, Sums]]:
    """How many rows both neighbours have, and their sums."""
    yield 0, [0] * len(rows[0])
    for row in (rows[0], rows[-1], rows[int(rng.integers(len(rows)))]):
        for times in (1, 1000):
            yield times, [times * s for s in row]


def people(rows: list[Sums], most: int, rng: np.random.Generator) -> Iterator[tuple[int, Sums]]:
    """What a row, or a person of at most so many, adds."""
    for row in rows:
        yield most, [most * s for s in row]
    for _ in range(len(rows) if most > 1 else 0):
        count = int(rng.integers(1, most + 1))
        parts = [rows[i] for i in rng.integers(len(rows), size=count)]
        yield count, [sum(s) for s in zip(*parts, strict=True)]


def farthest(name: str, kind: type, norm: int, most: int) -> float:
    """The largest difference of the scores of neighbours, in parts of what is declared."""
    rng = np.random.default_rng(0)
    plan = every.first_plan(name, kind, norm)
    _, rows = every.row_sums(name, kind, norm)
    worst = 0
    counted = plan.counts_rows
    alone = not counted or plan.unit.relation is Relation.REPLACE
    for reference in references(plan, rows):
        for both, base in tables(rows, rng):
            terms = Terms(
                norm=norm,  # type: ignore[arg-type]
                rows=None if counted else both + 1,
                max_rows=most,
                weights=(Fraction(1),) * len(plan.measures),
                noise=(0.0,) * len(plan.measures),
            )
            scores = [
                scores_of(
                    plan.queries, [a + b for a, b in zip(base, own, strict=True)], reference, terms
                )
                for _, own in people(rows, most, rng)
            ]
            if counted:
                none = scores_of(plan.queries, base, reference, terms)
                if alone:
                    scores.append(none)
                else:
                    gaps = [abs(s - n) for own in scores for s, n in zip(own, none, strict=True)]
                    worst = max(worst, *gaps)
                    continue
            worst = max(worst, *(max(of) - min(of) for of in zip(*scores, strict=True)))
    return worst / GRANULARITY


FAST = ("marginal", "means by", "correlation", "share", "moments, clamped", "function")


def check(name: str, norm: int) -> float:
    """The largest part of the declared sensitivity that is attained under any unit."""
    found = []
    for kind in KINDS:
        persons = kind in (rt.ReplaceOnePerson, rt.AddRemoveOnePerson)
        for most in (1, 3) if persons else (1,):
            share = farthest(name, kind, norm, most)
            assert share <= 1, f"{name}, L{norm}, {kind.__name__}, k = {most}: {share}"
            found.append(share)
    return max(found)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", FAST)
def test_no_neighbours_scores_lie_farther_apart_than_declared(name: str, norm: int) -> None:
    assert check(name, norm) > 0.9  # a search that finds less is of no use


@pytest.mark.slow
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", every.NAMES)
def test_of_every_kind_of_measure(name: str, norm: int) -> None:
    if norm == 1 and name in every.GAUSSIAN:
        pytest.skip("no form for pure DP")
    assert check(name, norm) > 0.6


@pytest.mark.parametrize("broken", ["bound", "count"])
def test_the_search_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = selection._bound

    def smaller(block: Any, sums: Any, rows: Any, terms: Terms) -> Fraction:
        if broken == "bound":
            return honest(block, sums, rows, terms) * Fraction(9, 10)
        return honest(block, [0] * len(sums), rows, terms)  # as if n were public

    monkeypatch.setattr(selection, "_bound", smaller)

    def search() -> None:
        for name, norm in itertools.product(("means where", "marginal"), (1, 2)):
            check(name, norm)

    with pytest.raises(AssertionError, match=r"L\d, "):
        search()
