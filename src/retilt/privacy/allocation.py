"""How loud to ask each block, with the synthetic table as a free stand-in for the real one.

Least total error for the same privacy: with W_b the importance-weighted variance of block b's
statistics at unit scale,

    L2: minimise (sum s_b**2 Delta_b**2)(sum W_b / s_b**2)  ->  s_b**2 ~ sqrt(W_b) / Delta_b
    L1: minimise (sum s_b Delta_b)**2 (sum W_b / s_b**2)    ->  s_b    ~ (W_b / Delta_b)**(1/3)

(by Cauchy-Schwarz and by Hoelder). Any positive scales are private, these are just good ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from retilt.measures.base import Block, FloatArray, Norm
from retilt.measures.queries import QuerySet

_SMALL = 1e-6
"""Noise at which errors are proportional to it: those of a curved statistic are so only then."""


def block_scales(
    queries: QuerySet, answers: FloatArray, importances: Sequence[float], norm: Norm
) -> list[Fraction]:
    """A scale for each block, the largest about 1; 1 for a block that asks nothing.

    ``answers`` (K,) are the synthetic table's; ``importances`` the measures' weights.
    """
    wanted = []
    for block, part, importance in zip(
        queries.blocks, queries.block_answers(answers), importances, strict=True
    ):
        weight = importance * _unit_variance(block, part)
        wanted.append(_scale(weight, block.sensitivity(), norm))
    return _as_fractions(wanted)


def count_scale(
    queries: QuerySet,
    answers: FloatArray,
    scales: Sequence[Fraction],
    importances: Sequence[float],
    norm: Norm,
) -> Fraction:
    """The scale of the noisy row count under add/remove, relative to the blocks' ``scales``.

    An error e of the count (as a share of it) moves every answer a_k by ``-e a_k``; the
    statistics' squared change is the count's W, its bound is 1.
    """
    weights, own = [], []
    for block, part, importance, scale in zip(
        queries.blocks, queries.block_answers(answers), importances, scales, strict=True
    ):
        shift = block.standard_errors(part, np.zeros(len(part)), _SMALL * part[:, None]) / _SMALL
        compared = shift * block.comparisons(part)
        weights.append(importance * float(np.nansum(compared**2)))
        weight = importance * _unit_variance(block, part)
        reference = _scale(weight, block.sensitivity(), norm)
        own.append(float(scale) / reference if reference > 0 else 0.0)
    # The blocks' scales were rounded and normalised by a common factor; apply it here too.
    common = max(own, default=1.0) or 1.0
    value = common * _scale(sum(weights), Fraction(1), norm)
    # Never so quiet that the division by the count swamps everything else.
    least = max(scales, default=Fraction(1)) / 16
    return max(Fraction(max(1, round(value * 256)), 256), least)


def _unit_variance(block: Block, answers: FloatArray) -> float:
    """W_b before its importance, of errors on scales that can be compared."""
    deviations = _SMALL / np.array([float(s) for s in block.scales])
    errors = block.standard_errors(answers, deviations**2, np.zeros((len(answers), 0))) / _SMALL
    return float(np.nansum((errors * block.comparisons(answers)) ** 2))


def _scale(weight: float, bound: Fraction, norm: Norm) -> float:
    """``bound`` is Delta**2 for L2, Delta for L1."""
    if weight <= 0 or not math.isfinite(weight):
        return 0.0
    if norm == 2:
        return math.sqrt(math.sqrt(weight) / math.sqrt(float(bound)))
    return float(np.cbrt(weight / float(bound)))


def _as_fractions(wanted: Sequence[float]) -> list[Fraction]:
    """Multiples of 1/256 with the largest 1; a block of no predicted variance gets 1."""
    top = max(wanted, default=0.0)
    if top <= 0:
        return [Fraction(1)] * len(wanted)
    return [Fraction(max(1, round(256 * w / top)), 256) if w > 0 else Fraction(1) for w in wanted]
