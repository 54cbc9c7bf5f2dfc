"""How loud to ask each block, with the synthetic table as a free stand-in for the real one.

Least total error for the same privacy: with W_b the importance-weighted variance of block b's
statistics at unit scale,

    L2: minimise (sum s_b**2 Delta_b**2)(sum W_b / s_b**2)  ->  s_b**2 ~ sqrt(W_b) / Delta_b
    L1: minimise (sum s_b Delta_b)**2 (sum W_b / s_b**2)    ->  s_b    ~ (W_b / Delta_b)**(1/3)

(by Cauchy-Schwarz and by Hoelder). Any positive scales are private, these are just good ones.
That is for blocks that share no query. One whose queries others all ask may cost more than it
gives: it is then asked so quietly that it rides on theirs for nothing. So may a table that larger
ones tell as well, from which it is estimated together with them
(``docs/decisions/0017``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from retilt.measures.base import Block, FloatArray, Norm
from retilt.measures.consistent import Consistent
from retilt.measures.queries import QuerySet
from retilt.privacy.sensitivity import joint_sensitivity, loudest

Importance: TypeAlias = float | FloatArray
"""Of the squared errors of a block's statistics: one number, or (S,)."""

_SMALL = 1e-6
"""Noise at which errors are proportional to it: those of a curved statistic are so only then."""

_QUIET = Fraction(1, 2**20)
"""Scale of a block whose queries are left to others, far below that of any of theirs."""

_QUIETER = Fraction(1, 4)
"""How loud a table is asked that larger ones tell, beside what it would be on its own.

It then costs a sixteenth, or in L1 a quarter. Asked any quieter it would hardly be cheaper, but so
noisy that nothing else can be done with its answers.
"""


def importances_of(
    queries: QuerySet, answers: FloatArray, weights: Sequence[float], deviation: float, norm: Norm
) -> list[Importance]:
    """(S_b,) for each block: its measure's weight, shared by the statistics that can be had.

    A table of ten thousand cells counts no more than one share beside it, unless its weight says
    so. A statistic that noise would dominate even if its block had all of the budget counts
    nothing, unless there is no other in the block: giving it more would only spoil the others.

    Squared errors are divided by the root of what they would be on average if the block had all
    of the budget. Taken as they are, a correlation, whose error is a hundred times a share's, would
    leave the share next to nothing; taken relative to what they would be, one measure among many
    would have no more than its part of the count. This is the geometric middle
    (``docs/decisions/0014``).

    Parameters
    ----------
    queries, answers
        The (K,) queries and the synthetic table's answers.
    weights
        The measures' own.
    deviation
        See :func:`retilt.privacy.sensitivity.unit_deviation`.
    norm
        Of the noise.
    """
    shared: list[Importance] = []
    for block, part, weight in zip(
        queries.blocks, queries.block_answers(answers), weights, strict=True
    ):
        variances = variances_alone(block, deviation, norm)
        nothing = np.zeros((len(part), 0))
        told = ~block.dominated(part, variances, nothing)
        if not told.any():
            told = np.ones_like(told)
        errors = block.standard_errors(part, variances, nothing) * block.comparisons(part)
        squares = (errors**2)[told & np.isfinite(errors)]
        usual = math.sqrt(float(squares.mean())) if len(squares) else 0.0
        each = weight / max(int(told.sum()), 1) / (usual or 1.0)
        shared.append(np.where(told, each, 0.0))
    return shared


def variances_alone(block: Block, deviation: float, norm: Norm) -> FloatArray:
    """(K,) of the noise of a block's answers if it had all of the budget.

    ``deviation`` is that of :func:`retilt.privacy.sensitivity.unit_deviation`.
    """
    loudness = np.array([float(s) for s in block.scales])
    variances: FloatArray = (deviation * length_of(block, norm) / loudness) ** 2
    return variances


def length_of(block: Block, norm: Norm) -> float:
    """How far one row moves the scaled block, in the norm itself."""
    length: float = float(block.sensitivity()) ** (1 / norm)
    return length


def block_scales(
    queries: QuerySet,
    answers: FloatArray,
    importances: Sequence[Importance],
    norm: Norm,
    *,
    alone: bool = False,
) -> list[Fraction]:
    """A scale for each block, the largest about 1; 1 for a block that asks nothing.

    With ``alone`` no block leaves its queries to others, which may not be measured.

    ``answers`` (K,) are the synthetic table's; ``importances`` tell how much the squared errors of
    each block's statistics count (:func:`importances_of`, or one number for all of a block).
    """
    wanted = []
    for block, part, importance in zip(
        queries.blocks, queries.block_answers(answers), importances, strict=True
    ):
        weight = _unit_variance(block, part, block.scales, importance)
        wanted.append(_scale(weight, block.sensitivity(), norm))
    scales = _as_fractions(wanted)
    if alone:
        return scales
    trials = [{number: _QUIET} for number in _covered(queries)]
    implied = Consistent(queries, np.ones(queries.size), None).implied
    if implied:
        trials.append({number: _QUIETER * scales[number] for number in implied})
    for trial in trials:
        quiet = [trial.get(i, s) for i, s in enumerate(scales)]
        losses = [_loss(queries, answers, importances, s, norm) for s in (quiet, scales)]
        scales = quiet if losses[0] < losses[1] else scales
    return scales


def _covered(queries: QuerySet) -> list[int]:
    """Numbers of the blocks whose every query another block asks, too; the smallest first."""
    asking = np.zeros(queries.size, dtype=np.intp)
    for where in queries.positions:
        asking[where] += 1
    found = [n for n, where in enumerate(queries.positions) if (asking[where] > 1).all()]
    return sorted(found, key=lambda n: len(queries.positions[n]))


def _loss(
    queries: QuerySet,
    answers: FloatArray,
    importances: Sequence[Importance],
    scales: Sequence[Fraction],
    norm: Norm,
) -> float:
    """Weighted variance of all statistics under noise of the joint bound."""
    asked, _ = loudest(queries, scales)
    deviations = _SMALL / np.array([float(s) for s in asked])
    joint = Consistent(queries, deviations**2, None).share_errors(answers)
    weight = 0.0
    for number, (block, part, where, importance) in enumerate(
        zip(
            queries.blocks,
            queries.block_answers(answers),
            queries.positions,
            importances,
            strict=True,
        )
    ):
        errors = joint.get(number)
        if errors is None:
            errors = _independent(block, part, deviations[where])
        weight += _weighted(block, part, errors, importance)
    bound = float(joint_sensitivity(queries, scales, None, norm))
    return weight * (bound if norm == 2 else bound**2)


def count_scale(
    queries: QuerySet,
    answers: FloatArray,
    scales: Sequence[Fraction],
    importances: Sequence[Importance],
    norm: Norm,
    *,
    measured: float = 1.0,
) -> Fraction:
    """The scale of the noisy row count under add/remove, relative to the blocks' ``scales``.

    Of the blocks the part ``measured`` will be.

    An error e of the count (as a share of it) moves every answer a_k by ``-e a_k``; the
    statistics' squared change is the count's W, its bound is 1.
    """
    weights, own = [], []
    for block, part, importance, scale in zip(
        queries.blocks, queries.block_answers(answers), importances, scales, strict=True
    ):
        shift = block.standard_errors(part, np.zeros(len(part)), _SMALL * part[:, None]) / _SMALL
        compared = shift * block.comparisons(part)
        weights.append(float(np.nansum(importance * compared**2)))
        weight = _unit_variance(block, part, block.scales, importance)
        reference = _scale(weight, block.sensitivity(), norm)
        own.append(float(scale) / reference if reference > 0 else 0.0)
    # The blocks' scales were rounded and normalised by a common factor; apply it here too.
    common = max(own, default=1.0) or 1.0
    value = common * _scale(measured * sum(weights), Fraction(1), norm)
    # Never so quiet that the division by the count swamps everything else.
    least = max(scales, default=Fraction(1)) / 16
    return max(Fraction(max(1, round(value * 256)), 256), least)


def _unit_variance(
    block: Block, answers: FloatArray, loudness: Sequence[Fraction], importance: Importance
) -> float:
    """W_b, of errors on scales that can be compared."""
    deviations = _SMALL / np.array([float(s) for s in loudness])
    return _weighted(block, answers, _independent(block, answers, deviations), importance)


def _independent(block: Block, answers: FloatArray, deviations: FloatArray) -> FloatArray:
    """(S_b,) standard errors of a block's statistics under independent noise."""
    return block.standard_errors(answers, deviations**2, np.zeros((len(answers), 0)))


def _weighted(
    block: Block, answers: FloatArray, errors: FloatArray, importance: Importance
) -> float:
    """W_b of a block whose (S_b,) standard errors are those of noise of size ``_SMALL``."""
    compared = errors / _SMALL * block.comparisons(answers)
    return float(np.nansum(importance * compared**2))


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
