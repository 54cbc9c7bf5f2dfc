"""Weights to rows: systematic, balanced and multinomial sampling, of any size.

Weights are first put on a fixed grid, so that the last bits, in which engines and chunkings
differ, hardly ever decide which rows are drawn. From there on systematic sampling is exact
integer arithmetic. Balanced sampling is in ``balancing.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retilt.balancing import decide, fractions
from retilt.exceptions import InputError
from retilt.measures.base import Design, FloatArray
from retilt.tilting.combinations import Combinations
from retilt.tilting.designs import design_rows

Method: TypeAlias = Literal["systematic", "balanced", "multinomial"]

GRID_BITS = 30
"""Weights of mean 1 are whole multiples of 2**-30; 1e8 rows then sum to 2**57 at most."""

_CLASS_BITS = 8
_KEY_BITS = 62

_PIECE = 2**20
"""Points that are looked up at a time."""

_BESIDES = 15
_LESSER = 1e-3
"""What balanced sampling keeps besides: how many combinations, and how much they count."""

MAX_ROWS = 2**31
"""Most rows that can be drawn: products of two numbers of rows must fit in 63 bits."""


def quantise(weights: ArrayLike) -> NDArray[np.int64]:
    """Weights of mean 1 as whole multiples of 2**-30, rounded half up.

    Parameters
    ----------
    weights
        (N,) finite, zero or more, mean 1, N at most 2**31.

    Returns
    -------
    (N,) int64
        Their sum fits in an int64.

    Raises
    ------
    InputError
        If a weight is missing, infinite or negative, or the mean is not 1 to 1e-6.

    Examples
    --------
    >>> quantise([0.5, 1.5])
    array([ 536870912, 1610612736])
    """
    values = _checked(weights)
    mean = float(values.mean())
    if abs(mean - 1) > 1e-6:
        raise InputError(f"weights: got a mean of {mean!r}, expected 1.")
    return _on_grid(values)


def _on_grid(values: FloatArray) -> NDArray[np.int64]:
    """Whole multiples of 2**-30; the values are overwritten."""
    values *= 2.0**GRID_BITS
    values += 0.5
    return np.floor(values, out=values).astype(np.int64)


def _checked(weights: ArrayLike) -> FloatArray:
    given = np.asarray(weights)
    if given.dtype.kind not in "fiu":
        raise InputError(f"weights: got {given.dtype} values, expected numbers.")
    values = given.astype(np.float64)
    if values.ndim != 1 or not 0 < values.size <= MAX_ROWS:
        raise InputError(f"weights: got shape {values.shape}, expected (N,) with N at least 1.")
    if not np.all(np.isfinite(values)):
        raise InputError("weights: got a missing or infinite weight, expected finite numbers.")
    if np.any(values < 0):
        raise InputError("weights: got a negative weight, expected zero or more.")
    if not np.any(values > 0):
        raise InputError("weights: all are zero; at least one row must have a weight.")
    return values


def check_draw(rows: object, method: object) -> int:
    """The number of rows to draw, once it and the method are known to be usable.

    Raises
    ------
    InputError
        If either is not.
    """
    if method not in get_args(Method):
        raise InputError(
            f"sampling method: got {method!r}, expected 'systematic', 'balanced' or 'multinomial'."
        )
    if isinstance(rows, (bool, np.bool_)) or not isinstance(rows, (int, np.integer)):
        raise InputError(f"rows: got {rows!r}, expected a whole number of zero or more.")
    if not 0 <= rows < MAX_ROWS:
        raise InputError(f"rows: got {rows!r}, expected zero or more and less than {MAX_ROWS:,}.")
    return int(rows)


def _generator(seed: int | np.random.Generator | None) -> np.random.Generator:
    if isinstance(seed, np.random.Generator):
        return seed
    whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if seed is not None and not (whole and seed >= 0):
        raise InputError(
            f"seed: got {seed!r}, expected a whole number of zero or more, a NumPy Generator, "
            "or None."
        )
    return np.random.default_rng(seed)


def likeness_order(columns: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """Row numbers in an order that keeps rows alike in all columns close together.

    Systematic sampling takes evenly along the order of the rows: any run of them gets its share
    of the sample to within one row. In an order in which neighbours are alike, the sample's
    means therefore differ from the weighted ones by several times less than in a random order
    (implicit stratification, as when official statistics draw from a sorted file).

    The order is Morton's: each column's values are put in 2**b classes of about equal size, and
    the classes' bits are interleaved, highest first. Equal rows keep their order.

    Parameters
    ----------
    columns
        At least one, each (N,) of whole numbers in a small range, such as grids and cells, or
        of finite floats; the order follows the first 62.

    Returns
    -------
    (N,) intp
        A permutation.

    Examples
    --------
    >>> likeness_order([np.array([9, 1, 9, 1], dtype=np.int32)])
    array([1, 3, 0, 2])
    """
    used = columns[:_KEY_BITS]
    bits = max(1, min(_CLASS_BITS, _KEY_BITS // len(used)))
    classes = [_classes(column, bits) for column in used]
    key = np.zeros(len(used[0]), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        for own in classes:
            key <<= 1
            key |= (own >> bit) & 1
    return np.argsort(key, kind="stable")


def _classes(column: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The value's mid-rank as one of 2**bits classes: equal values share a class."""
    if column.size == 0:
        return column.astype(np.uint8)
    if column.dtype.kind == "f":
        places = np.unique(column, return_inverse=True)[1]
    else:
        # Grids and cells are small whole numbers: counting them is far cheaper than sorting.
        places = column - column.min()
    counts = np.bincount(places)
    above = np.cumsum(counts)
    classes = ((2 * above - counts) << bits) // (2 * column.size)
    chosen: NDArray[np.uint8] = classes.astype(np.uint8)[places]
    return chosen


def sample_rows(
    weights: ArrayLike,
    rows: int,
    *,
    method: Method = "systematic",
    seed: int | np.random.Generator | None = None,
    order: NDArray[np.intp] | None = None,
    queries: Sequence[Design] = (),
    others: Sequence[Design] = (),
) -> NDArray[np.int64]:
    """Row numbers drawn in proportion to weights, in the table's order.

    Parameters
    ----------
    weights
        (N,) finite, zero or more, at least one positive; any scale. Below 2**-31 of the mean
        a weight counts as zero.
    rows
        How many to draw, from zero on; more than N is fine.
    method
        ``"systematic"``: row i is drawn floor or ceil of ``rows * w_i / sum(w)`` times, and that
        many times on average. ``"balanced"``: likewise, and the drawn rows' means of
        ``queries`` are the weighted ones but for the lot of the last few rows. It adds floats:
        other processors may draw other rows. ``"multinomial"``: independent draws.
    seed
        The same seed gives the same rows; None differs every time.
    order
        (N,) permutation that systematic and balanced sampling go by, such as
        :func:`likeness_order`; None is the table's own.
    queries
        What balanced sampling keeps, for each of the N rows. Of more than 60 it keeps the 60
        combinations that vary most.
    others
        What it keeps besides where it can, the 15 combinations that vary most.

    Returns
    -------
    (rows,) int64
        Ascending row numbers, each as often as it was drawn.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> sample_rows([1, 0, 3], 4, seed=0)
    array([0, 2, 2, 2])
    """
    count = check_draw(rows, method)
    values = _checked(weights)
    generator = _generator(seed)
    # The largest first: a sum of the largest floats is infinite.
    values /= values.max()
    values /= values.mean()
    grid = _on_grid(values)
    del values
    if method == "balanced":
        return _balanced(grid, count, generator, order, queries, others)
    if method == "systematic":
        if order is None:
            return _systematic(grid, count, generator)
        grid = grid[order]
        chosen: NDArray[np.int64] = order[_systematic(grid, count, generator)]
        chosen.sort()
        return chosen
    support = np.flatnonzero(grid)
    times = generator.multinomial(count, grid[support] / grid.sum())
    return np.repeat(support, times).astype(np.int64)


def _systematic(
    grid: NDArray[np.int64], rows: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Rows at the points (j * total + start) / rows, j = 0..rows-1, of the cumulated weights.

    Cumulated weights are whole, so the points' whole parts decide. Written with the quotients
    and remainders of total and start by rows, nothing exceeds 63 bits. The grid is overwritten.
    """
    if rows == 0:
        return np.empty(0, dtype=np.int64)
    ends = np.cumsum(grid, out=grid)
    total = int(ends[-1])
    step, step_rest = divmod(total, rows)
    start, start_rest = divmod(int(generator.integers(total)), rows)
    chosen = np.empty(rows, dtype=np.int64)
    for first in range(0, rows, _PIECE):
        number = np.arange(first, min(first + _PIECE, rows), dtype=np.int64)
        points = number * step + start + (number * step_rest + start_rest) // rows
        chosen[first : first + _PIECE] = np.searchsorted(ends, points, side="right")
    return chosen


def _balanced(
    grid: NDArray[np.int64],
    rows: int,
    generator: np.random.Generator,
    order: NDArray[np.intp] | None,
    queries: Sequence[Design],
    others: Sequence[Design],
) -> NDArray[np.int64]:
    """Each row as often as it is drawn for sure, and once more by the cube method."""
    for design in (*queries, *others):
        if design_rows(design) != grid.size:
            raise InputError(
                f"queries: got {design_rows(design)} rows, expected one for each of the "
                f"{grid.size} weights."
            )
    times, chance = fractions(grid, rows)
    along = np.arange(grid.size) if order is None else order
    along = along[chance[along] > 0]
    if along.size:
        spread = chance * (1 - chance)
        kept = Combinations.of(queries, spread)
        besides = Combinations.of(others, spread, _BESIDES)

        def values(places: NDArray[np.intp]) -> FloatArray:
            return np.hstack([kept(along[places]), _LESSER * besides(along[places])])

        times[along] += decide(chance[along], values, generator).astype(np.int64)
    return np.repeat(np.arange(grid.size), times).astype(np.int64)
