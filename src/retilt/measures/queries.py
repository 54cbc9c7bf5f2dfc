"""All the queries of a plan in one place: blocks joined, exact duplicates dropped.

A query that two blocks share (the mean of a column that stands in two correlations, say) is
measured once: measured twice, the two noisy answers contradict each other and the tilt would
chase both. Only identity by the *schema* counts (equal keys), never equality on data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import Block, Design, Feature, FloatArray, IntArray, Measure, Terms
from retilt.measures.nested import Nested
from retilt.measures.partitions import check_names

_Value = TypeVar("_Value", np.float64, np.bool_)

MAX_QUERIES = 100_000
"""Queries, and statistics, of one plan (or of its guards): their answers must fit in a file."""


@dataclass(frozen=True)
class QuerySet:
    """The distinct queries of some blocks, in block order.

    Attributes
    ----------
    blocks
        The bound measures.
    kept
        For each block the numbers of its queries that no earlier block asks.
    positions
        For each block, (K_b,) where each of its queries' answers stands among the K.
    """

    blocks: tuple[Block, ...]

    @cached_property
    def _layout(self) -> tuple[tuple[NDArray[np.intp], ...], tuple[NDArray[np.intp], ...]]:
        seen: dict[str, int] = {}
        kept, positions = [], []
        for block in self.blocks:
            own = []
            where = []
            for number, key in enumerate(block.keys):
                if key not in seen:
                    seen[key] = len(seen)
                    own.append(number)
                where.append(seen[key])
            kept.append(np.array(own, dtype=np.intp))
            positions.append(np.array(where, dtype=np.intp))
        return tuple(kept), tuple(positions)

    @property
    def kept(self) -> tuple[NDArray[np.intp], ...]:
        """See the class."""
        return self._layout[0]

    @property
    def positions(self) -> tuple[NDArray[np.intp], ...]:
        """See the class."""
        return self._layout[1]

    @cached_property
    def size(self) -> int:
        """K, the number of distinct queries."""
        return sum(len(k) for k in self.kept)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """Every encoded column that is read, once."""
        return tuple(dict.fromkeys(f for b in self.blocks for f in b.features))

    @cached_property
    def units(self) -> tuple[int, ...]:
        """(K,) integer units."""
        units: list[int] = []
        for block, kept in zip(self.blocks, self.kept, strict=True):
            own = block.units
            units.extend(own[i] for i in kept)
        return tuple(units)

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """Where each distinct statistic stands first among all blocks' statistics."""
        seen: dict[str, int] = {}
        for number, key in enumerate(k for b in self.blocks for k in b.statistic_keys):
            seen.setdefault(key, number)
        return np.array(list(seen.values()), dtype=np.intp)

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """(S,) names of everything the user asked for, each once."""
        every = [s for b in self.blocks for s in b.statistics]
        return tuple(every[i] for i in self._first)

    @cached_property
    def statistic_keys(self) -> tuple[str, ...]:
        """(S,) identity of each statistic."""
        every = [k for b in self.blocks for k in b.statistic_keys]
        return tuple(every[i] for i in self._first)

    def joined(self, parts: Sequence[NDArray[_Value]]) -> NDArray[_Value]:
        """(S,) of each block's values for its own statistics: the first of equal statistics."""
        values: NDArray[_Value] = np.concatenate(parts)[self._first]
        return values

    def sums(self, encoded: Mapping[Feature, IntArray]) -> list[int]:
        """(K,) exact integer sums over the encoded rows."""
        total: list[int] = []
        for block, kept in zip(self.blocks, self.kept, strict=True):
            if len(kept):
                sums = block.sums([encoded[f] for f in block.features])
                total.extend(sums[i] for i in kept)
        return total

    def means(self, encoded: Mapping[Feature, IntArray], rows: int) -> FloatArray:
        """(K,) exact answers of a table: sums over units and rows; zeros for an empty table."""
        return means_of_sums(self.sums(encoded), self.units, rows)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """(K,) identity of each query."""
        found: list[str] = []
        for block, kept in zip(self.blocks, self.kept, strict=True):
            own = block.keys
            found.extend(own[i] for i in kept)
        return tuple(found)

    def designs(self, encoded: Mapping[Feature, IntArray]) -> tuple[Design, ...]:
        """The solver's view of every row: the K queries, in order."""
        return tuple(
            design
            for b, kept in zip(self.blocks, self.kept, strict=True)
            if len(kept)
            for design in designs_of(b, [encoded[f] for f in b.features], kept)
        )

    def block_answers(self, answers: FloatArray) -> list[FloatArray]:
        """(K,) answers handed back to each block, duplicates included."""
        return [answers[p] for p in self.positions]

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers."""
        parts = [
            b.evaluate(a) for b, a in zip(self.blocks, self.block_answers(answers), strict=True)
        ]
        return self.joined(parts)

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors under noise ``diag(variances) + factor @ factor.T``."""
        parts = [
            b.standard_errors(answers[p], variances[p], factor[p])
            for b, p in zip(self.blocks, self.positions, strict=True)
        ]
        return self.joined(parts)

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where noise dominates, so that neither estimate nor error can be trusted."""
        parts = [
            b.dominated(answers[p], variances[p], factor[p])
            for b, p in zip(self.blocks, self.positions, strict=True)
        ]
        return self.joined(parts)


def designs_of(
    block: Block, arrays: Sequence[IntArray], keep: NDArray[np.intp]
) -> Sequence[Design]:
    """The queries ``keep`` of a block for every row, for the solver."""
    return (
        block.designs(arrays, keep) if isinstance(block, Nested) else [block.design(arrays, keep)]
    )


def means_of_sums(sums: Sequence[int], units: Sequence[int], rows: int) -> FloatArray:
    """(K,) exact answers from sums of numerators: over units and rows; zeros for no rows."""
    return np.array([s / (u * max(rows, 1)) for s, u in zip(sums, units, strict=True)])


def gather(measures: Iterable[Measure], terms: Terms) -> QuerySet:
    """Bind measures one after the other, and no further than they may be.

    Raises
    ------
    WorkloadError
        A measure does not fit the schema, or all of them ask for too much.
    """
    blocks, queries, statistics, characters = [], 0, 0, 0
    for measure in measures:
        block = measure.bind(terms)
        names = block.statistics
        queries += len(block.units)
        statistics += len(names)
        characters += sum(map(len, names))
        if max(queries, statistics) > MAX_QUERIES:
            raise WorkloadError(
                f"measures: they ask for more than {MAX_QUERIES:,} queries or statistics, the most "
                "allowed together. Ask for fewer measures, or for coarser ones."
            )
        check_names(characters, "measures")
        blocks.append(block)
    return QuerySet(tuple(blocks))


def describe_duplicates(queries: QuerySet) -> Sequence[str]:
    """Blocks whose every query an earlier block asks already, by their first statistic."""
    return [
        b.statistics[0]
        for b, kept in zip(queries.blocks, queries.kept, strict=True)
        if len(kept) == 0
    ]
