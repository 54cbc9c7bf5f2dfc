"""Balanced sampling: rows drawn such that their means of given queries are the weighted ones.

The cube method of Deville and Tillé (2004), in the fast form of Chauvet and Tillé (2006), many
blocks of rows at a time. A row that is to be drawn x times on average is drawn floor(x) times for
sure; the fractions p of all rows are a point of the unit cube. The point moves at random along
directions that keep the queries' sums, until it meets a face of the cube and with that decides a
row, and so on to a corner. Every step is a fair game, so each row keeps its expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import FloatArray

Values: TypeAlias = Callable[[NDArray[np.intp]], FloatArray]
"""(m,) row numbers to (m, C) values to balance on, the most important first and largest."""

_BATCH = 1 << 18
"""Numbers in the null spaces that are worked on at a time: 2 MiB, a processor's cache."""

_FEW = 24
"""Rows of a block at least: smaller ones are more work than they save."""

_WORK = 1 << 20
_TRIALS = 800
"""Samples that the last rows' lot is chosen among, and rows times rows of all of them, at most."""

_ROUNDS = 8
"""How often those samples are bettered."""


def fractions(grid: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], FloatArray]:
    """How often each row is drawn for sure, and its chance of once more.

    Parameters
    ----------
    grid
        (N,) whole weights, zero or more, of a sum of at most 2**61.
    rows
        How many rows are drawn in all, less than 2**31.

    Returns
    -------
    sure
        (N,) floor of ``rows * grid / sum(grid)``.
    chance
        (N,) the rest, from 0 to less than 1; exactly 0 where there is none.

    Examples
    --------
    >>> fractions(np.array([1, 0, 3]), 2)
    (array([0, 0, 1]), array([0.5, 0. , 0.5]))
    """
    total = int(grid.sum())
    sure, rest = np.zeros_like(grid), np.zeros_like(grid)
    # Long division, a bit of ``rows`` at a time: their product would not fit in 63 bits.
    for bit in range(rows.bit_length() - 1, -1, -1):
        rest = 2 * rest + (grid if rows >> bit & 1 else 0)
        more = rest // total
        sure = 2 * sure + more
        rest -= more * total
    return sure, rest / total


def decide(chance: FloatArray, values: Values | None, generator: np.random.Generator) -> FloatArray:
    """Round every chance to 0 or 1 such that sums of values stay.

    Parameters
    ----------
    chance
        (M,) strictly between 0 and 1; their sum is a whole number but for rounding. Rows that
        follow each other should be alike: chances move between near rows first.
    values
        What the sums are of, beside the number of rows itself; None for nothing else.

    Returns
    -------
    (M,) of 0 and 1
        Each is 1 with its chance. Their sum is that of the chances; the sums of ``chance *
        values`` are kept until fewer than about twice as many rows as values are undecided.
    """
    chance = chance.copy()
    rows = np.arange(chance.size)
    width = _balanced_on(values, rows[:1]).shape[1]
    size = max(_FEW, 2 * width)
    while rows.size >= size:
        _fly_blocks(chance, rows, values, size, generator)
        rows = _undecided(chance, rows)
    if rows.size:
        chance[rows] = _landed(chance[rows], _balanced_on(values, rows), generator)
    return chance


def _undecided(chance: FloatArray, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    return rows[(chance[rows] > 0) & (chance[rows] < 1)]


def _balanced_on(values: Values | None, rows: NDArray[np.intp]) -> FloatArray:
    """(m, C + 1) ones, for the number of rows, and the values."""
    ones = np.ones((rows.size, 1))
    return ones if values is None else np.hstack([ones, values(rows)])


def _fly_blocks(
    chance: FloatArray,
    rows: NDArray[np.intp],
    values: Values | None,
    size: int,
    generator: np.random.Generator,
) -> None:
    """Decide half of the rows or more, in blocks of ``size`` rows that follow each other."""
    blocks = rows.size // size
    step = max(1, _BATCH // size**2)
    for start in range(0, blocks, step):
        own = rows[start * size : min(start + step, blocks) * size]
        table = _balanced_on(values, own)
        points = chance[own].reshape(-1, size)
        _fly(points, _null(table.reshape(-1, size, table.shape[1])), generator)
        chance[own] = points.ravel()


def _null(tables: FloatArray) -> FloatArray:
    """(B, m - C, m) orthonormal vectors that are orthogonal to all columns of (B, m, C) tables."""
    # The last columns of Q are, whatever the rank of the table.
    null = np.linalg.qr(tables, mode="complete").Q[:, :, tables.shape[2] :]
    return np.ascontiguousarray(null.transpose(0, 2, 1))


def _fly(points: FloatArray, null: FloatArray, generator: np.random.Generator) -> NDArray[np.intp]:
    """Move each of (B, m) points along its (B, d, m) orthonormal directions, d times to a face.

    A coordinate that has met a face leaves the directions that are left, by a Householder
    reflection of them that puts the whole coordinate into one, which is dropped. Returns the
    (B, d) coordinates that have.
    """
    every = np.arange(points.shape[0])
    result = np.empty(null.shape[:2], dtype=np.intp)
    for j in range(null.shape[1]):
        along = null[:, j]
        size = np.abs(along)
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.where(along > 0, 1 - points, points) / size
            down = np.where(along > 0, points, 1 - points) / size
        up[size == 0] = down[size == 0] = np.inf
        first, last = up.argmin(axis=1), down.argmin(axis=1)
        forth, back = up[every, first], down[every, last]
        # Fair: the way that is twice as long is gone half as often.
        onward = generator.random(every.size) * (forth + back) <= back
        met = result[:, j] = np.where(onward, first, last)
        points += np.where(onward, forth, -back)[:, None] * along
        np.clip(points, 0.0, 1.0, out=points)
        points[every, met] = (along[every, met] > 0) == onward
        if j + 1 < null.shape[1]:
            _drop(null[:, j:], met, every)
    return result


def _drop(null: FloatArray, met: NDArray[np.intp], every: NDArray[np.intp]) -> None:
    """Turn the directions such that only the first, which is done with, moves coordinate met."""
    mirror = null[every, :, met]
    norm = np.sqrt(np.einsum("bd,bd->b", mirror, mirror))
    mirror[:, 0] += np.copysign(norm, mirror[:, 0])
    shares = np.matmul(mirror[:, None, :], null)
    # |mirror|**2 / 2 = norm * |its first|
    mirror = mirror[:, 1:] / (norm * np.abs(mirror[:, 0]))[:, None]
    rest = null[:, 1:]
    rest -= mirror[:, :, None] * shares
    rest[every, :, met] = 0.0


def _landed(chance: FloatArray, table: FloatArray, generator: np.random.Generator) -> FloatArray:
    """(m,) of 0 and 1 for the last rows, from their (m, C) table, ones first.

    Each of several samples would do by itself. Where they are cheap, they are mixed anew: the
    linear program of Deville and Tillé finds the shares of samples with the least mean squared
    imbalance among which each row has its chance, and one is drawn by its share.
    """
    trials = min(_TRIALS, _WORK // chance.size**2)
    if trials < 3 * chance.size or table.shape[1] == 1:
        return np.array(_samples(chance, table, 1, generator)[0])
    samples, shares = _design(chance, table, _samples(chance, table, trials, generator))
    ends = np.cumsum(shares)
    chosen = np.searchsorted(ends / ends[-1], generator.random(), side="right")
    return np.array(samples[chosen])


def _samples(
    chance: FloatArray, table: FloatArray, count: int, generator: np.random.Generator
) -> FloatArray:
    """(count, m) of 0 and 1, independent: the last values are given up, one after the other."""
    points = np.tile(chance, (count, 1))
    rows = np.tile(np.arange(chance.size), (count, 1))
    while rows.shape[1] > 1:
        own = np.take_along_axis(points, rows, axis=1)
        met = _fly(own, _null(table[rows, : rows.shape[1] - 1]), generator)
        np.put_along_axis(points, rows, own, axis=1)
        still = np.ones(rows.shape, dtype=np.bool_)
        np.put_along_axis(still, met, False, axis=1)
        rows = rows[still].reshape(count, -1)
    return np.round(points)


def _design(
    chance: FloatArray, table: FloatArray, samples: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(L, m) samples and their (L,) shares, in which each row has its chance.

    Column generation: the program's prices of the rows say which samples would make it better,
    and exchanges of rows in those that it uses find some.
    """
    systematic, shares = _systematic(chance)
    # These meet the chances, so that there always is a solution.
    samples = np.concatenate([samples, systematic])
    shares = np.concatenate([np.zeros(len(samples) - shares.size), shares])
    inner = table @ table.T
    for left in reversed(range(_ROUNDS)):
        found = _least_imbalance(samples, chance, inner)
        if found is None:
            break
        shares, prices = found
        if left:
            better = _exchanged(samples[shares > 0], chance, inner, prices)
            samples = np.concatenate([samples, better])
            shares = np.concatenate([shares, np.zeros(len(better))])
    return samples, shares


def _systematic(chance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """All (L, m) systematic samples in the order of the rows, and their (L,) shares."""
    ends = np.cumsum(chance)
    ends[-1] = np.round(ends[-1])
    edges = np.unique(np.concatenate([[0.0, 1.0], ends[:-1] % 1]))
    starts = (edges[1:] + edges[:-1]) / 2
    # A row is drawn if a whole number plus the start lies between the last row's end and its own.
    result = np.diff(np.floor(ends - starts[:, None]), axis=1, prepend=-1.0)
    return result, np.diff(edges)


def _least_imbalance(
    samples: FloatArray, chance: FloatArray, inner: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """(L,) shares of the least mean squared imbalance and (m,) prices; None if unsolved."""
    from scipy.optimize import linprog

    off = samples - chance
    costs = np.einsum("lm,lm->l", off @ inner, off)
    # The solver's tolerances are absolute.
    scale = float(costs.max()) or 1.0
    table = np.vstack([samples.T, np.ones(len(samples))])
    found = linprog(costs / scale, A_eq=table, b_eq=np.append(chance, 1.0), method="highs-ds")
    if found.status != 0:
        return None
    return np.maximum(np.asarray(found.x), 0.0), found.eqlin.marginals[:-1] * scale


def _exchanged(
    samples: FloatArray, chance: FloatArray, inner: FloatArray, prices: FloatArray
) -> FloatArray:
    """Samples after exchanges of two rows, each the best one, while any lowers cost less prices."""
    samples = samples.copy()
    size = np.diag(inner)
    both = size[:, None] + size - 2 * inner
    moving = np.arange(len(samples))
    for _ in range(2 * chance.size):
        own = samples[moving]
        slope = 2 * (own - chance) @ inner - prices
        change = np.where(own > 0, -slope, np.inf)[:, :, None] + both
        change += np.where(own > 0, np.inf, slope)[:, None, :]
        change = change.reshape(len(own), -1)
        best = change.argmin(axis=1)
        better = change[np.arange(best.size), best] < -1e-9 * size.max()
        moving, best = moving[better], best[better]
        if not moving.size:
            break
        samples[moving, best // chance.size] = 0.0
        samples[moving, best % chance.size] = 1.0
    return samples
