"""Tables that share columns, estimated together so that they agree on what they share.

A table of noisy counts tells every margin of its columns, too. All two-way tables of 20 columns
tell each one-way margin 19 times, each time with other noise. Here all of it is joined by
generalised least squares on the released answers. That is post-processing: it costs no privacy.

Write a table over the columns S as the sum of its components: for each subset A of S what is left
of the averages over the columns outside A when every average over a column of A is taken out.
Components of one table are orthogonal. Times the number of cells outside A,
``o = prod(m_j for j in S - A)``, component A is that of the margin over A: the *same* for every
table that has the columns A. With noise of variance v, alike and independent in all cells, it
then has the covariance ``v o kron(I - J / m_j for j in A)``, which is the same for every table
but for the scalar, and is independent of the other components' noise. So the least-squares
estimate of a component is its precision-weighted mean over the tables that have it, and a table's
estimate is the sum of its components' estimates. The derivation is in ``docs/mathematics.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from retilt.measures.base import FloatArray
from retilt.measures.marginals import MarginalBlock
from retilt.measures.nested import Nested
from retilt.measures.queries import QuerySet

_Columns = tuple[int, ...]
"""Numbers of columns, ascending. A column is told by its cells: other bins, another column."""

_ALIKE = 1e-9
"""Relative difference up to which noise variances are the same but for rounding."""

_LEAST_TOTAL = 0.5
"""Of the estimated over the measured row count; farther apart only if noise dominates both."""


@dataclass(frozen=True, eq=False)
class _Table:
    """A full table: its block, its columns in ascending order, and its noise.

    Attributes
    ----------
    number
        Of its block.
    columns, shape
        Ascending; with the number of cells of each.
    order
        The block's axes in that order.
    variance
        Of the noise of each of its cells' answers.
    first
        Whether no earlier table has the same cells: the later one's answers are the same ones.
    """

    number: int
    columns: _Columns
    shape: tuple[int, ...]
    order: tuple[int, ...]
    variance: float
    first: bool

    @property
    def size(self) -> int:
        """Number of cells."""
        return prod(self.shape)

    def subsets(self) -> Iterator[tuple[_Columns, tuple[bool, ...], int]]:
        """Each subset of the columns that is not empty: itself, as a mask, cells outside it."""
        for mask in product((False, True), repeat=len(self.columns)):
            if any(mask):
                inside = tuple(c for c, m in zip(self.columns, mask, strict=True) if m)
                outside = prod(s for s, m in zip(self.shape, mask, strict=True) if not m)
                yield inside, mask, outside

    def components(self, answers: FloatArray) -> FloatArray:
        """Averages and what they leave along each axis: (m_1 + 1, m_2 + 1, ...).

        Place 0 of an axis is the average over it, the others what the average leaves. So the
        component of A stands where exactly the axes of A are not at 0.
        """
        block_shape = [0] * len(self.order)
        for place, size in zip(self.order, self.shape, strict=True):
            block_shape[place] = size
        parts = answers.reshape(block_shape).transpose(self.order)
        for axis in range(parts.ndim):
            mean = parts.mean(axis=axis, keepdims=True)
            parts = np.concatenate([mean, parts - mean], axis=axis)
        return parts

    def cells(self, parts: FloatArray) -> FloatArray:
        """The block's cells from the components: the inverse of :meth:`components`."""
        for axis in range(parts.ndim):
            mean, rest = np.split(parts, [1], axis=axis)
            parts = mean + rest
        return parts.transpose(np.argsort(self.order)).ravel()


def _alike(variances: FloatArray) -> bool:
    """Whether there is the same noise in all answers but for rounding."""
    return bool(variances[0] > 0 and np.ptp(variances) <= _ALIKE * variances[0])


def _place(mask: tuple[bool, ...]) -> tuple[slice | int, ...]:
    """Where a component stands among all of a table's."""
    return tuple(slice(1, None) if inside else 0 for inside in mask)


@dataclass(frozen=True, eq=False)
class Consistent:
    """Estimates of all statistics of some queries, with tables that share columns joined.

    The row count is the total of all tables, and of all bins of a column, which tell it in turn.
    Every other block's statistics are those of its own answers.

    Parameters
    ----------
    queries
        Of a plan.
    variances
        (K,) of the independent noise of the answers.
    count
        Variance of the noise of the measured row count that the answers were divided by, over
        its square; ``None`` where the count is public.
    """

    queries: QuerySet
    variances: FloatArray
    count: float | None

    @cached_property
    def _tables(self) -> tuple[_Table, ...]:
        """The full tables whose cells have noise alike."""
        numbers: dict[str, int] = {}
        seen: set[str] = set()
        found = []
        for number, (block, where) in enumerate(
            zip(self.queries.blocks, self.queries.positions, strict=True)
        ):
            if not isinstance(block, MarginalBlock):
                continue
            noise = self.variances[where]
            if not _alike(noise):
                continue
            own = [
                numbers.setdefault(json.dumps([v.identity, list(e)]), len(numbers))
                for v, e in zip(block.variables, block.edges, strict=True)
            ]
            order = tuple(sorted(range(len(own)), key=own.__getitem__))
            found.append(
                _Table(
                    number=number,
                    columns=tuple(own[i] for i in order),
                    shape=tuple(block.shape[i] for i in order),
                    order=order,
                    variance=float(noise[0]),
                    first=block.identity not in seen,
                )
            )
            seen.add(block.identity)
        return tuple(found)

    @property
    def implied(self) -> tuple[int, ...]:
        """Numbers of the blocks of tables that are margins of larger ones."""
        margins = {
            columns
            for table in self._tables
            for columns, mask, _ in table.subsets()
            if not all(mask)
        }
        return tuple(t.number for t in self._tables if t.columns in margins)

    @cached_property
    def _precisions(self) -> Mapping[_Columns, float]:
        """One over the scalar in the covariance of each component that is not empty."""
        found: dict[_Columns, float] = {}
        for table in self._tables:
            if table.first:
                for columns, _, outside in table.subsets():
                    own = 1 / (outside * table.variance)
                    found[columns] = found.get(columns, 0.0) + own
        return found

    @cached_property
    def _totals(self) -> Mapping[int, float]:
        """Variances of the totals that blocks tell, by the block's number.

        Only of blocks whose every query is their own: the others' totals have noise in common.
        """
        found = {t.number: t.size * t.variance for t in self._tables}
        for number, block in enumerate(self.queries.blocks):
            noise = self.variances[self.queries.positions[number]]
            if isinstance(block, Nested) and _alike(noise):
                found[number] = block.total_spread * float(noise[0])
        kept, positions = self.queries.kept, self.queries.positions
        return {n: v for n, v in found.items() if len(kept[n]) == len(positions[n])}

    @cached_property
    def _total_variance(self) -> float:
        """Of the total of all shares, which the count, every table and every tree tell."""
        if self.count is None:
            return 0.0
        return 1 / (1 / self.count + sum(1 / v for v in self._totals.values()))

    def _total(self, answers: FloatArray) -> float:
        """The row count over the measured one, which the answers were divided by."""
        if self.count is None:
            return 1.0
        weighted = 1 / self.count
        for number, variance in self._totals.items():
            block, own = self.queries.blocks[number], answers[self.queries.positions[number]]
            total = block.total(own) if isinstance(block, Nested) else float(own.sum())
            weighted += total / variance
        return max(weighted * self._total_variance, _LEAST_TOTAL)

    def shares(self, answers: FloatArray) -> dict[int, FloatArray]:
        """The cells' shares of every joined table by its block's number, at (K,) answers."""
        parts = {
            t.number: t.components(answers[self.queries.positions[t.number]]) for t in self._tables
        }
        means: dict[_Columns, FloatArray] = {}
        for table in self._tables:
            if table.first:
                for columns, mask, _ in table.subsets():
                    # Times the cells outside, and over them in its precision.
                    weight = 1 / (table.variance * self._precisions[columns])
                    own = parts[table.number][_place(mask)] * weight
                    means[columns] = means[columns] + own if columns in means else own
        total = self._total(answers)
        found = {}
        for table in self._tables:
            joined = np.empty_like(parts[table.number])
            joined[(0,) * joined.ndim] = 1 / table.size
            for columns, mask, outside in table.subsets():
                joined[_place(mask)] = means[columns] / (outside * total)
            found[table.number] = table.cells(joined)
        return found

    def share_errors(self, answers: FloatArray) -> dict[int, FloatArray]:
        """Standard errors of :meth:`shares`.

        With a measured count a share is its components over the total: an error e of the latter
        moves it by ``-(share - 1 / cells) e``, the average being 1 / cells whatever the total.
        """
        shares = {} if self.count is None else self.shares(answers)
        found = {}
        for table in self._tables:
            variance = 0.0
            for columns, mask, outside in table.subsets():
                sizes = (s for s, inside in zip(table.shape, mask, strict=True) if inside)
                own = prod(1 - 1 / s for s in sizes) / self._precisions[columns]
                variance += own / outside**2
            every = np.full(table.size, variance)
            if self.count is not None:
                off = shares[table.number] - 1 / table.size
                every += off**2 * self._total_variance
            found[table.number] = np.sqrt(every)
        return found

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers."""
        shares, total = self.shares(answers), self._total(answers)
        blocks = zip(self.queries.blocks, self.queries.block_answers(answers), strict=True)
        return self.queries.joined(
            [
                shares[n]
                if n in shares
                else b.evaluate(own / total if isinstance(b, Nested) else own)
                for n, (b, own) in enumerate(blocks)
            ]
        )

    def standard_errors(self, answers: FloatArray, factor: FloatArray) -> FloatArray:
        """(S,) standard errors, linearised at (K,) answers with the common noise ``factor``.

        The noise that a tree's answers have in common is that of the total that all measures
        tell, by which they are divided: what is left of their own does not depend on it.
        """
        errors, total = self.share_errors(answers), self._total(answers)
        found = []
        for n, (b, p) in enumerate(zip(self.queries.blocks, self.queries.positions, strict=True)):
            own, common = answers[p], factor[p]
            if self.count is not None and isinstance(b, Nested):
                own = own / total
                common = -own[:, None] * np.sqrt(self._total_variance)
            found.append(
                errors[n] if n in errors else b.standard_errors(own, self.variances[p], common)
            )
        return self.queries.joined(found)
