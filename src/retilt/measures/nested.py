"""Bins of one column, by themselves or with coarser bins above them.

A share of the rows below a threshold is a sum of bins, and their noise adds up. With bins of bins,
``branching`` of them in each, and bins of those, few nodes of the tree make up any such sum. Every
level is a partition of its own, in which a row has one cell. So ``L`` levels, all as loud as each
other, have L times a partition's bound (a row replaced moves two cells of each level, unless both
rows share the coarser ones)::

    replace-one: squared L2 bound 2 L, L1 bound 2 L;    add/remove-one: L and L.

All are attained, by rows in different bins of the coarsest level. The bins' shares are estimated
from all levels by least squares, on a total of 1: the row count is the tree's root, be it public
or measured. So the level of which all values are one bin is left out. Null is a cell of its own on
every level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import Alone, FloatArray, Indicators, IntArray, Norm
from retilt.measures.entries import short
from retilt.measures.partitions import ROUNDING, Partition, root

_Number = TypeVar("_Number", np.float64, np.int64)

MAX_NESTED = 2_000
"""Bins that may have coarser ones above them: a matrix of their number squared is inverted."""

WIDEST = 32
"""Bins in one of the next level, at most, where the plan chooses."""

_WORTH = 0.9
"""Part of the flat bins' error that a tree may have at most: it asks more queries."""


def check_branching(what: str, branching: object) -> None:
    """Refuse what is neither ``None`` nor 0 nor a number of at least 2."""
    if branching is None or (type(branching) is int and (branching == 0 or branching >= 2)):
        return
    raise WorkloadError(
        f"branching of {what}: got {short(branching)}, expected 0 for bins alone, or how many of "
        "them (2 or more) make a bin of the next level."
    )


def level_sizes(bins: int, branching: int) -> tuple[int, ...]:
    """How many bins one of each level has, the finest level first; 0 branches for no tree.

    >>> level_sizes(20, 3), level_sizes(20, 0)
    ((1, 3, 9), (1,))
    """
    sizes = [1]
    while branching and bins > sizes[-1] * branching:
        sizes.append(sizes[-1] * branching)
    return tuple(sizes)


def prefix_variances(bins: int, branching: int) -> FloatArray:
    """(bins,) variances of the least-squares shares below the end of each bin.

    For noise of variance 1 in every cell of every level, and a known total. Given a node's total
    T, the share of it below a place is ``slope * T`` and noise of variance ``rest``; from the
    children's of these, and the variances u of their own totals as they and all below tell them,
    follow the node's.
    """
    sizes = level_sizes(bins, branching)
    places = np.arange(bins)
    slope, rest = np.ones(bins), np.zeros(bins)
    own = np.ones(bins)  # variance of the total of each node of a level, by all at or below it
    for below, above in zip(sizes, (*sizes[1:], bins), strict=True):
        child, parent = places // below, places // above
        starts = np.arange(0, len(own), above // below) if above < bins else np.array([0])
        before = np.concatenate([[0.0], np.cumsum(own)])
        whole = np.add.reduceat(own, starts)
        if above == bins:  # the last node is that of nulls, which every level has told
            whole += 1 / len(sizes)
        first = before[child] - before[starts][parent]
        along = first + slope * own[child]
        rest = rest + first + slope**2 * own[child] - along**2 / whole[parent]
        slope = along / whole[parent]
        own = 1 / (1 + 1 / whole)
    return rest


def best_branching(bins: int, norm: Norm) -> int | None:
    """How many bins to join, for the least mean squared error below all; ``None`` for no tree.

    Depends on nothing else, so it is public.

    >>> best_branching(6, 1), best_branching(301, 2)
    (None, 2)
    """
    if not 3 <= bins <= MAX_NESTED:
        return None

    def loss(branching: int) -> float:
        levels = len(level_sizes(bins, branching))
        error = float(prefix_variances(bins, branching)[:-1].mean())
        return error * (levels if norm == 2 else levels**2)

    losses = {b: loss(b) for b in range(2, min(bins, WIDEST + 1))}
    best = min(losses, key=losses.__getitem__)
    return best if losses[best] < _WORTH**2 * loss(0) else None


class _Estimator(NamedTuple):
    """Least squares on the answers of all levels, for noise alike in all of them."""

    gain: FloatArray  # (bins + 1, K) the cells' shares from the answers, and
    lack: FloatArray  # (bins + 1,) from what their total lacks
    total: FloatArray  # (K,) the total from the answers alone, and
    spread: float  # its variance in those of an answer


@lru_cache(maxsize=8)
def _estimator(bins: int, branching: int) -> _Estimator:
    levels = _codes(bins, branching)
    asked = np.concatenate([c == np.arange(c[-1] + 1)[:, None] for c in levels]).astype(float)
    covariance = np.linalg.inv(asked.T @ asked)
    alone = covariance @ asked.T
    spread = float(covariance.sum())
    lack = covariance.sum(axis=1) / spread
    total = alone.sum(axis=0)
    gain = alone - np.outer(lack, total)
    for part in (gain, lack, total):
        part.setflags(write=False)
    return _Estimator(gain, lack, total, spread)


def _codes(bins: int, branching: int) -> list[NDArray[np.intp]]:
    """(bins + 1,) for each level, the cell that each bin, and null, lies in."""
    sizes = level_sizes(bins, branching)
    return [np.append(np.arange(bins) // s, -(-bins // s)) for s in sizes]


@dataclass(frozen=True)
class Nested(Partition):
    """Bins of one column, and null. Part of a :class:`retilt.measures.base.Block`.

    Attributes
    ----------
    branching
        How many bins make one of the next level; 0 for bins alone.
    known_total
        Always: a measured row count tells the total as well as a public one, with noise that is
        common to all answers.
    """

    known_total: bool = field(default=True, init=False)
    branching: int

    def __post_init__(self) -> None:
        if self.branching and self.size - 1 > MAX_NESTED:
            raise WorkloadError(
                f"branching: {self.size - 1:,} bins are too many for it, allowed are "
                f"{MAX_NESTED:,}. Ask for fewer, or for branching 0."
            )

    @cached_property
    def _levels(self) -> tuple[Partition, ...]:
        """The coarser levels."""
        (edges,) = self.edges
        return tuple(
            Partition(
                self.variables, (edges[s - 1 :: s],), self.norm, self.relation, known_total=True
            )
            for s in level_sizes(self.size - 1, self.branching)[1:]
        )

    @cached_property
    def _codes(self) -> list[NDArray[np.intp]]:
        return _codes(self.size - 1, self.branching)

    @property
    def _estimator(self) -> _Estimator:
        return _estimator(self.size - 1, self.branching)

    @property
    def depth(self) -> int:
        """Number of levels."""
        return 1 + len(self._levels)

    @cached_property
    def asked(self) -> int:
        """K, the cells of all levels."""
        return self.size + sum(level.size for level in self._levels)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """(K,) those of each level, which is a partition like any other."""
        # The base's cached property has no place of its own in a subclass.
        own = Partition(self.variables, self.edges, self.norm, self.relation, known_total=True)
        return tuple(k for level in (own, *self._levels) for k in level.keys)

    @property
    def units(self) -> tuple[int, ...]:
        """Counts of rows."""
        return (1,) * self.asked

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """All levels alike."""
        return (Fraction(1),) * self.asked

    def sensitivity(self) -> Fraction:
        """A partition's, for each level: see the module."""
        return self.depth * super().sensitivity()

    def summed(self, shares: NDArray[_Number]) -> NDArray[_Number]:
        """(K,) all levels' from the (size,) finest cells' shares or counts."""
        # Codes ascend, so each cell of a level is a run.
        runs = (np.searchsorted(c, np.arange(c[-1] + 1)) for c in self._codes)
        return np.concatenate([np.add.reduceat(shares, r) for r in runs])

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Rows in each cell of every level."""
        counts: list[int] = self.summed(self.counts(arrays)).tolist()
        return counts

    def designs(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> list[Indicators]:
        """Every row's cell of each level of which queries are kept; all of a level's, or none."""
        codes = self.codes(arrays)
        kept = np.zeros(self.asked, dtype=np.bool_)
        kept[keep] = True
        found, start = [], 0
        for level in self._codes:
            size = int(level[-1]) + 1
            own = kept[start : start + size]
            start += size
            if own.any():
                assert own.all()
                found.append(Indicators(codes=level[codes].astype(np.int32), size=size))
        return found

    def alone(self, number: int, array: IntArray) -> Alone:
        """All cells of every level."""
        del number
        every = np.arange(self.asked)
        return Alone(every, tuple(self.designs([array], every)))

    def total(self, answers: FloatArray) -> float:
        """The sum of all shares by the answers alone: see :attr:`total_spread`."""
        return float(answers.sum() if not self.branching else self._estimator.total @ answers)

    @property
    def total_spread(self) -> float:
        """Variance of :meth:`total` in variances of an answer, all alike."""
        return self._estimator.spread if self.branching else float(self.size)

    def shares(self, answers: FloatArray) -> FloatArray:
        """(size,) shares of the finest cells by all levels, on a total of 1."""
        if not self.branching:
            return super().shares(answers)
        gain, lack, *_ = self._estimator
        own = answers[: self.size]
        off = answers - self.summed(own)
        missing = 1 - float(own.sum())
        # A table's own shares must not fill its empty cells by rounding.
        if max(np.abs(off).max(), abs(missing)) < ROUNDING:
            return own.copy()
        estimate: FloatArray = own + gain @ off + lack * missing
        return estimate

    def share_noise(
        self, variances: FloatArray, factor: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(size,) variances and (size, R) common factor of the shares, cell by cell."""
        if not self.branching:
            return super().share_noise(variances, factor)
        gain = self._estimator.gain
        return gain**2 @ variances, gain @ factor

    def combination_errors(
        self, coefficients: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(J,) standard errors of combinations (J, size) of the shares."""
        if not self.branching:
            return super().combination_errors(coefficients, variances, factor)
        return self._errors(coefficients @ self._estimator.gain, variances, factor)

    def prefix_errors(self, count: int, variances: FloatArray, factor: FloatArray) -> FloatArray:
        """(count,) standard errors of the shares of the first 1, 2, ... cells together."""
        return self._errors(np.cumsum(self._estimator.gain, axis=0)[:count], variances, factor)

    @staticmethod
    def _errors(lines: FloatArray, variances: FloatArray, factor: FloatArray) -> FloatArray:
        return root(lines**2 @ variances, lines @ factor)
