"""Column generation: rows join a small pool until none lowers the objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Mask, Positions

_BLOCKS = 128
"""Rows that may join the pool in a round, and half as many more as queries vary."""

_ROUNDS = 2000
_PATIENCE = 8
"""Rounds without any progress after which rounding has the last word."""

_MARGIN = 1e-3
"""Share of the tolerance to aim at while rounds still halve the gap: where answers are far, a
relative gap says little about the queries that can be met."""


@dataclass(frozen=True, slots=True)
class Step:
    """Optimum over a pool: (m,) shares and the (V,) multipliers that certify it there."""

    shares: FloatArray
    multipliers: FloatArray


class Master(Protocol):
    """One of the two objectives over the V varying queries, less what no weights change."""

    @property
    def fixed(self) -> float:
        """What the objective has at every point of the simplex, zero or more."""
        ...

    def start(self, means: FloatArray) -> FloatArray:
        """(V,) multipliers that say from (V,) means which rows lower the objective."""
        ...

    def solve(self, pool: FloatArray) -> Step | None:
        """Optimum over the simplex of a pool's (V, m) query values; None if a solver failed."""
        ...

    def value(self, means: FloatArray) -> float:
        """Objective at (V,) means, zero or more."""
        ...

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """Lower bound of the objective, zero or more, if no row scores below ``least``."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A point of the simplex as shares of the merged rows ``pool``, and its proof.

    ``multipliers`` are those of the best lower bound ``bound``.
    """

    pool: Positions
    shares: FloatArray
    means: FloatArray
    multipliers: FloatArray
    value: float
    bound: float
    rounds: int

    @property
    def gap(self) -> float:
        """Relative duality gap, zero or more."""
        return max(0.0, self.value - self.bound) / max(1.0, self.value)


def _best(scores: FloatArray, limit: float, blocks: int) -> Positions:
    """The row of least score in each of some interleaved blocks, if it is below the limit.

    The very best rows of a table are near copies of each other; the best of blocks are not.
    """
    blocks = min(blocks, scores.size)
    deep = -(-scores.size // blocks)
    padded = np.full(deep * blocks, np.inf)
    padded[: scores.size] = scores
    picks = padded.reshape(deep, blocks).argmin(axis=0) * blocks + np.arange(blocks)
    result: Positions = picks[padded[picks] < limit]
    return result


def generate(master: Master, rows: Rows, tolerance: float) -> Found:
    """Let rows join until none lowers the objective, or rounding has the last word."""
    multipliers = master.start(rows.means(rows.merged))
    scores = rows.scores(multipliers)
    pool = np.array([scores.argmin()])
    columns = rows.values(pool).T
    found = Found(
        pool,
        np.ones(1),
        columns[:, 0],
        multipliers,
        master.value(columns[:, 0]),
        master.bound(multipliers, float(scores.min())),
        rounds=1,
    )
    limit = np.inf
    blocks = _BLOCKS + columns.shape[0] // 2
    idle = 0
    while found.gap > _MARGIN * tolerance and idle < _PATIENCE:
        new = np.setdiff1d(_best(scores, limit, blocks), pool)
        if new.size == 0 or found.rounds == _ROUNDS:
            break
        pool = np.concatenate([pool, new])
        columns = np.hstack([columns, rows.values(new).T])
        step = master.solve(columns)
        if step is None:
            break
        scores = rows.scores(step.multipliers)
        last, found = found, _improved(found, master, pool, columns, step, float(scores.min()))
        if last.gap / 2 < found.gap <= tolerance:
            break
        idle = idle + 1 if (last.value, last.bound) == (found.value, found.bound) else 0
        inside = step.multipliers @ columns
        limit = float(inside.min())
        if found.value < last.value:
            # Only where the objective fell, or rows could leave and join for ever.
            kept = _kept(step.shares, inside)
            pool, columns = pool[kept], columns[:, kept]
    return found


def _improved(
    found: Found,
    master: Master,
    pool: Positions,
    columns: FloatArray,
    step: Step,
    least: float,
) -> Found:
    """The better of two points with the better of two bounds, one round later."""
    found = replace(found, rounds=found.rounds + 1)
    bound = master.bound(step.multipliers, least)
    if bound > found.bound:
        found = replace(found, multipliers=step.multipliers, bound=bound)
    means = columns @ step.shares
    value = master.value(means)
    if value < found.value:
        used = step.shares > 0
        found = replace(found, pool=pool[used], shares=step.shares[used], means=means, value=value)
    return found


def _kept(shares: FloatArray, scores: FloatArray) -> Mask:
    """The rows of a pool that have a share, and the best 128 of the others."""
    kept: Mask = shares > 0
    others = np.flatnonzero(~kept)
    kept[others[np.argsort(scores[others], kind="stable")[:_BLOCKS]]] = True
    return kept


def certify(master: Master, rows: Rows, found: Found) -> Found:
    """The point's objective and bound, computed afresh from shares and multipliers."""
    weights = np.zeros(rows.merged.size)
    weights[found.pool] = found.shares
    means = rows.means(weights)
    bound = master.bound(found.multipliers, float(rows.scores(found.multipliers).min()))
    return replace(found, means=means, value=master.value(means), bound=bound)
