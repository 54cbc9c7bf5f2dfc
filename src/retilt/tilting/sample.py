"""A sample of a long table to follow the path on, with the same queries varying."""

from __future__ import annotations

import numpy as np

from retilt.measures.base import Design, FloatArray, Grouped, Indicators, Products, ValueArray
from retilt.tilting.bounded import rows_of
from retilt.tilting.designs import design_queries
from retilt.tilting.fold import Rows, Sample
from retilt.tilting.parts import (
    Mask,
    Positions,
    differs,
    grouped_differs,
    grouped_values,
    product_values,
)
from retilt.tilting.problem import Problem

SAMPLE_ROWS = 20_000
"""Rows that the path is followed on; a table of up to twice as many is followed whole."""

_ROWS_EACH = 4
"""And at least so many for each query, or the sample could not reach what the table does."""

_SEED = 20_240_229


def sampled(problem: Problem, whole: Rows) -> Rows:
    """The rows to follow the path on: all, if they are few, or a fixed sample.

    The sample is uniform, but for the rows of which it would miss something: if a query takes a
    second value on a few rows only (a rare cell), and the uniform sample has none of them, they
    are all added, with their own base weights; the others share what is left of the whole.
    """
    size = _size(whole)
    if whole.merged.size <= 2 * size:
        return whole
    generator = np.random.default_rng(_SEED)
    chosen = generator.choice(whole.support.size, size, replace=False, shuffle=False)
    uniform = whole.support[np.sort(chosen)]
    first = rows_of(problem, Sample(uniform, problem.base[uniform]))
    missed = whole.varying & ~first.varying
    if not np.any(missed):
        return first
    second = rows_of(problem, _with_rare(problem, uniform, _rare(problem, first, missed)))
    return second if np.array_equal(second.varying, whole.varying) else whole


def _size(whole: Rows) -> int:
    """How many rows a sample has."""
    return max(SAMPLE_ROWS, _ROWS_EACH * int(np.count_nonzero(whole.varying)))


def leveraged(problem: Problem, whole: Rows) -> Rows:
    """The rows to look for a start on: all, if they are few, or a fixed sample.

    A product of skewed columns has nearly all of its variance from a few rows, of which a uniform
    sample has too few or too many. Half of these rows are drawn in proportion to their base
    weights, half in proportion to these times how much the row adds to the columns' fourth
    moments, and weighted accordingly. Without products it is the sample of :func:`sampled`.
    """
    products = [d.values for d in problem.designs if isinstance(d, Products)]
    size = _size(whole)
    if not products or whole.merged.size <= 2 * size:
        return sampled(problem, whole)
    base = problem.base
    drawn = base * (1 + _leverage(products, base)) / 2
    drawn *= size / drawn.sum()
    # With certainty where a row would be drawn more than once.
    np.minimum(drawn, 1.0, out=drawn)
    ends = np.cumsum(drawn)
    offset = np.random.default_rng(_SEED).random()
    chosen = np.unique(np.searchsorted(ends, np.arange(offset, ends[-1], 1.0)))
    part = rows_of(problem, Sample(chosen, base[chosen] / drawn[chosen]))
    return part if np.array_equal(part.varying, whole.varying) else sampled(problem, whole)


def _leverage(tables: list[ValueArray], base: FloatArray) -> FloatArray:
    """(N,) fourth powers of the columns' distances from their means, with a mean of 1.

    Each column's on average, in units of its own: what its square adds to a Hessian.
    """
    result: FloatArray = np.zeros(base.size)
    count = 0
    for table in tables:
        for column in table.T:
            off: FloatArray = column - base @ column
            largest = max(off.max(), -off.min())
            if largest > 0:
                off /= largest  # so that no power overflows, or is lost
                off *= off
                off *= off
                off /= base @ off
                result += off
                count += 1
    return result / count if count else result + 1


def _with_rare(problem: Problem, uniform: Positions, rare: Mask) -> Sample:
    """The uniform sample and all rare rows, so weighted that both keep their share."""
    base = problem.base
    # A rare row is never in the uniform sample, or its query would not have been missed.
    rest = base[~rare].sum() / base[uniform].sum()
    weights = np.where(rare, base, 0.0)
    weights[uniform] = base[uniform] * rest
    rows = np.flatnonzero(weights > 0)
    return Sample(rows, weights[rows])


def _rare(problem: Problem, sample: Rows, missed: Mask) -> Mask:
    """(N,) rows on which a missed query takes another value than on all of the sample."""
    result = np.zeros(problem.rows, dtype=np.bool_)
    start = 0
    for design in problem.designs:
        stop = start + design_queries(design)
        if np.any(missed[start:stop]):
            result |= _rare_in(design, missed[start:stop], sample.constants[start:stop])
        start = stop
    return result & (problem.base > 0)


def _rare_in(design: Design, missed: Mask, constants: FloatArray) -> Mask:
    if isinstance(design, Indicators):
        # Where all of the sample lies in one cell the rest of the rows is in missed ones.
        result: Mask = (missed & (constants == 0))[design.codes]
        return result
    result = np.zeros(design.values.shape[0], dtype=np.bool_)
    for k in np.flatnonzero(missed):
        if isinstance(design, Grouped):
            values = grouped_values(design, int(k))
            result |= grouped_differs(values, float(constants[k]), float(design.offset[k]))
            continue
        constant = (constants[k] - design.offset[k]) / design.factor[k]
        result |= differs(product_values(design, int(k), slice(None)), float(constant))
    return result
