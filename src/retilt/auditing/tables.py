"""Whole invented tables that are neighbours, summed as ``measure`` sums them.

What a search over single rows can't see is seen here: that the rows of a person are chosen by
that person's rows alone, that a row moves nothing but its own part, that the order of rows and
the kind of the columns' types make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from retilt.auditing.distance import Metric
from retilt.auditing.rows import Inventor, Row, shown
from retilt.auditing.search import Pair
from retilt.measures.base import Relation
from retilt.pipeline import exact_sums
from retilt.privacy.plan import Plan

_MOST_ROWS = 12
"""Rows that both of two neighbouring tables have."""

_MOST_OF_A_PERSON = 50
"""Rows of one person in an invented table."""

_TARGET = "the one"
_OTHERS = ("a", "b", "7", None)
"""Persons of the rows that both tables have; rows without a person are left out."""

Owned: TypeAlias = tuple[Row, str | None]
"""A row, and whose it is."""

Several: TypeAlias = tuple[tuple[Row, int], ...]
"""Rows, and how often each stands there."""


@dataclass(frozen=True, slots=True)
class Change:
    """What the exact integers of two neighbouring tables differ by.

    Attributes
    ----------
    one, other
        The rows in which they differ.
    integers
        (K [+ 1],) difference, factors included.
    share
        Part of the allowed distance (for Gaussian noise of its square).
    """

    one: Several
    other: Several
    integers: tuple[int, ...]
    share: Fraction


@dataclass(frozen=True)
class Neighbours:
    """Makes neighbouring tables for a plan.

    Attributes
    ----------
    metric
        Of the plan.
    inventor
        Makes rows.
    rng
        Chance.
    """

    metric: Metric
    inventor: Inventor
    rng: np.random.Generator

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.metric.plan

    def worst(self, pair: Pair) -> Change:
        """The change by a pair of rows: all rows of a person are alike, as many as are used."""
        copies = self.plan.unit.max_rows
        # Sums are additive: of a person with very many rows one stands for all.
        made = copies if copies <= _MOST_OF_A_PERSON else 1
        one = [pair.one] * made
        other = [] if pair.other is None else [pair.other] * made
        return self._change(one, other, times=copies // made, text=False)

    def random(self, *, text: bool) -> Change:
        """The change by rows drawn by chance: for persons any number, more than are used too."""
        if self.plan.unit.person is None:
            one = self.inventor.rows(self.rng, 4)[-1:]
        else:
            one = self._person()
        other: list[Row] = []
        if self.plan.unit.relation is Relation.REPLACE:
            single = self.plan.unit.person is None
            other = self.inventor.rows(self.rng, 4)[-1:] if single else self._person()
        return self._change(one, other, times=1, text=text)

    def _person(self) -> list[Row]:
        most = min(self.plan.unit.max_rows + 3, _MOST_OF_A_PERSON)
        count = int(self.rng.integers(most + 1))
        return self.inventor.rows(self.rng, count + 2)[2:]

    def _change(
        self, one: Sequence[Row], other: Sequence[Row], *, times: int, text: bool
    ) -> Change:
        both = self._others()
        sums = [
            self._sums([*both, *((row, _TARGET) for row in own)], text=text) for own in (one, other)
        ]
        integers = tuple(times * (a - b) for a, b in zip(*sums, strict=True))
        share = self.metric.share(integers)
        return Change(_several(one, times), _several(other, times), integers, share)

    def _others(self) -> list[Owned]:
        count = int(self.rng.integers(_MOST_ROWS + 1))
        rows = self.inventor.rows(self.rng, count)
        owners = self.rng.integers(len(_OTHERS), size=count).tolist()
        return [(row, _OTHERS[i]) for row, i in zip(rows, owners, strict=True)]

    def _sums(self, owned: Sequence[Owned], *, text: bool) -> list[int]:
        """Exact integers of a table of these rows, in any order."""
        mixed = [owned[i] for i in self.rng.permutation(len(owned))]
        columns = self.inventor.table([row for row, _ in mixed], text=text)
        plan = self.plan
        if plan.unit.person is not None:
            columns[plan.unit.person] = pa.array([who for _, who in mixed], pa.string())
        elif not plan.counts_rows:
            plan = replace(plan, rows=len(mixed))
        return exact_sums(pa.table(columns), plan)


def _several(rows: Sequence[Row], times: int) -> Several:
    """Equal rows once; by how they are told, for NaN is not equal to itself."""
    found: dict[tuple[str, ...], tuple[Row, int]] = {}
    for row in rows:
        _, count = found.get(key := tuple(map(shown, row)), (row, 0))
        found[key] = row, count + times
    return tuple(found.values())
