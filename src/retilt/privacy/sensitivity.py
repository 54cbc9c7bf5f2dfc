"""From blocks and a budget to the noise of every integer sum.

One vector is released: every block's sums, each scaled by its block's scale ``s_b`` and its
own loudness in the block, so that one bound covers all of them:

    L2:  Delta**2 = sum_b s_b**2 Delta_b**2          (Gaussian)
    L1:  Delta    = sum_b s_b    Delta_b             (Laplace)

Coordinate k is released as an integer: its integer sum times a factor f_k, plus integer noise
of deviation sigma_k. One unit of the query at unit scale is ``f_k U_k`` integers (U_k the
query's unit), so for a change d_k of the integer the scaled query changes by
``s d_k / (f_k U_k)``; with ``sigma_k >= (Delta / mu) f_k U_k / s`` the sum of ``(d_k/sigma_k)^2``
is at most mu**2. All of this is done in exact fractions and rounded up at the end, so the bound
holds for the floats that are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from retilt.exceptions import PrivacyError
from retilt.measures.base import Norm
from retilt.measures.queries import QuerySet
from retilt.privacy.accounting import (
    LEAST_DEVIATION,
    Calibration,
    calibrate_approx,
    calibrate_zcdp,
)
from retilt.privacy.budget import ApproxDP, Budget, PureDP, least
from retilt.privacy.mechanism import MAX_SCALE

MOST_ROWS = 10**10
"""No sum overflows for tables of so many rows, or of the plan's if it has more."""

LARGEST_UNIT = 2**32
"""Of a query. A row adds at most its query's unit, so that float64 sums of 2**20 rows are exact;
larger tables are summed in pieces, and the pieces in Python integers, which can't overflow."""

MOST_DIGITS = 59
"""Of a released integer, as answers files hold it."""

_COUNTED = 2**63
"""Rows in a cell are counted in 64-bit integers."""


def norm_of(budget: Budget) -> Norm:
    """Laplace (L1) for pure DP, Gaussian (L2) otherwise."""
    return 1 if isinstance(budget, PureDP) else 2


def sqrt_up(value: Fraction) -> Fraction:
    """A fraction at least the square root of ``value``, by less than 2**-60 of it.

    >>> sqrt_up(Fraction(9))
    Fraction(3, 1)
    """
    bits = value.numerator.bit_length() - value.denominator.bit_length()
    half = max(0, 62 - bits // 2)  # so that the root has 61 bits at least
    scaled = math.ceil(value * 4**half)
    root = math.isqrt(scaled)
    if root * root < scaled:
        root += 1
    return Fraction(root, 2**half)


def sqrt_down(value: Fraction) -> Fraction:
    """A fraction at most the square root of ``value``, by less than 2**-59 of it.

    >>> sqrt_down(Fraction(9)) <= 3
    True
    """
    return sqrt_up(value) * (1 - Fraction(1, 2**60))


def float_up(value: Fraction) -> float:
    """The least float that is at least ``value``.

    >>> float_up(Fraction(1, 10)) >= Fraction(1, 10)
    True
    """
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """The noise of every released integer. The row count, where it is asked, comes last.

    Attributes
    ----------
    norm
        1: discrete Laplace; 2: discrete Gaussian.
    factors
        (K [+ 1],) positive integers f_k.
    scales
        (K [+ 1],) sigma_k (Gaussian) or b_k (Laplace) in the coordinate's own integers.
    steps
        (K [+ 1],) integers in one unit of the query at unit scale: ``f_k U_k``.
    sensitivity
        Delta of the scaled sums, rounded up.
    calibration
        ``None`` for Laplace.
    """

    norm: Norm
    factors: tuple[int, ...]
    scales: tuple[float, ...]
    steps: tuple[int, ...]
    sensitivity: float
    calibration: Calibration | None

    @property
    def mechanism(self) -> str:
        """The mechanism's name in files."""
        return "discrete-laplace" if self.norm == 1 else "discrete-gaussian"

    @property
    def deviation_per_scale(self) -> float:
        """Deviation over scale: a Laplace variable of scale b has deviation ``sqrt(2) b``."""
        return math.sqrt(2) if self.norm == 1 else 1.0


def loudest(queries: QuerySet, scales: Sequence[Fraction]) -> tuple[list[Fraction], frozenset[int]]:
    """(K,) how loud each query is asked, and the numbers of the blocks that ask any.

    A query of several blocks is asked once, by the block that asks it loudest (the first of
    equals): for the others it is free.
    """
    nothing = Fraction(0)
    asked = [nothing] * queries.size
    by = [0] * queries.size
    for number, (block, where, scale) in enumerate(
        zip(queries.blocks, queries.positions, scales, strict=True)
    ):
        last, product = nothing, nothing
        for place, own in zip(where.tolist(), block.scales, strict=True):
            if own is not last:  # a block's queries come in runs of one loudness
                last, product = own, scale * own
            if asked[place] is nothing or product > asked[place]:
                asked[place], by[place] = product, number
    return asked, frozenset(by)


def joint_sensitivity(
    queries: QuerySet, scales: Sequence[Fraction], count_scale: Fraction | None, norm: Norm
) -> Fraction:
    """Delta**2 (L2) or Delta (L1) of all scaled sums, from the blocks' bounds.

    A block that asks only part of its queries (see :func:`loudest`) keeps its bound: leaving
    coordinates out can only shorten a difference. One that asks none costs nothing. The count,
    where it is measured, changes by at most 1 with one row, so it adds ``c**norm``. All this is
    for one row that comes or goes, or that becomes another (a block's bound under
    ``Relation.REPLACE`` covers both).
    """
    _, asking = loudest(queries, scales)
    total = Fraction(0)
    for number in asking:
        total += scales[number] ** norm * queries.blocks[number].sensitivity()
    if count_scale is not None:
        total += count_scale**norm
    return total


def quietest(queries: QuerySet, scales: Sequence[Fraction]) -> list[Fraction]:
    """(K,) how loud each query is asked at least, by whichever of its blocks asks it."""
    asked = [Fraction(0)] * queries.size
    for block, where, scale in zip(queries.blocks, queries.positions, scales, strict=True):
        for place, own in zip(where.tolist(), block.scales, strict=True):
            product = scale * own
            if not asked[place] or product < asked[place]:
                asked[place] = product
    return asked


def choice_sensitivities(
    queries: QuerySet,
    scales: Sequence[Fraction],
    count_scale: Fraction | None,
    norm: Norm,
    choose: int,
) -> tuple[Fraction, Fraction]:
    """Bounds on :func:`joint_sensitivity` for any ``choose`` of the blocks: least and largest.

    The largest is that of the blocks with the largest parts. Of the least only one block counts,
    for the others may ask nothing that it does not.
    """
    parts = sorted(
        (s**norm * b.sensitivity() for s, b in zip(scales, queries.blocks, strict=True)),
        reverse=True,
    )
    count = Fraction(0) if count_scale is None else count_scale**norm
    return parts[-1] + count, sum(parts[:choose], count)


def sensitivity_of_rows(bound: Fraction, max_rows: int, norm: Norm) -> Fraction:
    """The bound for ``max_rows`` rows of one person, from that for one row.

    Add/remove one person: the sums change by at most k rows' vectors (all queries and the
    count), each no longer than the bound B of one row: k B by the triangle inequality, so
    k**2 times its square. Replace one person, of j rows, by another, of l rows, j and l at most
    k: pair the rows off as far as they go. min(j, l) pairs change by a difference of two rows'
    vectors, where the count cancels, and the other |j - l| rows come or go, where it counts
    once. That is max(j, l) <= k vectors, each no longer than B. No other person's rows enter:
    which of them are used depends on themselves alone (:mod:`retilt.persons`).

    >>> sensitivity_of_rows(Fraction(3, 2), 4, 2)
    Fraction(24, 1)
    """
    return bound * Fraction(max_rows) ** norm


def plan_noise(
    queries: QuerySet,
    scales: Sequence[Fraction],
    count_scale: Fraction | None,
    budget: Budget,
    *,
    max_rows: int = 1,
    rows: int = MOST_ROWS,
    choose: int | None = None,
) -> NoisePlan:
    """The noise that makes the release of all sums satisfy ``budget``.

    With ``choose`` only so many of the blocks will be released: no query then has more noise
    than is given here, whichever they are.

    ``max_rows`` is the most rows of one person that enter the sums; 1 where the unit is a row.
    ``rows`` is the table's expected number of rows; no sum can overflow for it or for
    ``MOST_ROWS``.

    Raises
    ------
    PrivacyError
        A scale is not positive, the noise would be too large to draw safely, or a sum too large
        to be exact or to be written; with ``choose``, for any of the choices.
    """
    if any(s <= 0 for s in scales) or (count_scale is not None and count_scale <= 0):
        raise PrivacyError(
            "scales: got one that is not above 0; every block needs a positive scale."
        )
    norm = norm_of(budget)
    if choose is None:
        one_row = joint_sensitivity(queries, scales, count_scale, norm)
        loudness, _ = loudest(queries, scales)
    else:
        least_row, one_row = choice_sensitivities(queries, scales, count_scale, norm, choose)
        loudness = quietest(queries, scales)
    bound = sensitivity_of_rows(one_row, max_rows, norm)
    units = list(queries.units)
    if count_scale is not None:
        loudness.append(count_scale)
        units.append(1)
    sensitivity = bound if norm == 1 else sqrt_up(bound)
    base, calibration = base_deviation(sensitivity, budget, coordinates=len(units))
    factors, noise_scales, steps = [], [], []
    known: dict[tuple[int, int, int], tuple[int, float]] = {}
    for unit, loud in zip(units, loudness, strict=True):
        alike = (unit, loud.numerator, loud.denominator)
        if alike not in known:  # cells are all alike, and there may be a hundred thousand
            known[alike] = _integer_noise(base * unit / loud)
        factor, scale = known[alike]
        factors.append(factor)
        noise_scales.append(scale)
        steps.append(factor * unit)
    largest = steps
    if choose is not None:
        # The least noise of any choice: one block, of one query, the loudest.
        bound = sensitivity_of_rows(least_row, max_rows, norm)
        low, _ = base_deviation(bound if norm == 1 else sqrt_down(bound), budget, coordinates=1)
        louder, _ = loudest(queries, scales)
        largest = [_largest_step(low, units, [*louder, *loudness[queries.size :]])]
    _check_room(units, largest, max(rows, MOST_ROWS))
    return NoisePlan(
        norm=norm,
        factors=tuple(factors),
        scales=tuple(noise_scales),
        steps=tuple(steps),
        sensitivity=float_up(sensitivity),
        calibration=calibration,
    )


def _largest_step(base: Fraction, units: Sequence[int], loudness: Sequence[Fraction]) -> int:
    """The largest step that any query has where the noise is no less than ``base``."""
    if base == 0:
        raise PrivacyError(
            "select: a measure of the workload asks nothing of any row. Leave it out."
        )
    quiet = [base * unit / loud for unit, loud in set(zip(units, loudness, strict=True))]
    # A step is the unit times ceil(LEAST_DEVIATION / noise in units).
    return max(units) * max(1, math.ceil(LEAST_DEVIATION / min(quiet)))


def _check_room(units: Sequence[int], steps: Sequence[int], rows: int) -> None:
    """Refuse sums that could overflow anything, of a table of so many rows, whatever it holds.

    A row adds at most a query's unit to its sum, and at most the step (unit times factor) to
    the released integer; noise stays below 2**63 (:mod:`retilt.privacy.mechanism`).
    """
    if max(units) > LARGEST_UNIT:
        raise PrivacyError(
            "sums: a query has more than 2**32 levels, beyond which sums are not exact. Leave out "
            "the column of very many categories, or declare it with fewer."
        )
    if rows >= _COUNTED:
        raise PrivacyError(
            "rows: so many as the plan says could overflow 64-bit counts. Give the table's real "
            "number of rows."
        )
    if rows * max(steps) + _COUNTED >= 10**MOST_DIGITS:
        raise PrivacyError(
            f"noise: at this budget it would be so small that sums need more than {MOST_DIGITS} "
            "digits. Use a smaller epsilon (or rho); so large a one protects nothing."
        )


def _integer_noise(in_units: Fraction) -> tuple[int, float]:
    """Factor and noise scale of a coordinate whose noise has that scale in its own units."""
    if in_units > MAX_SCALE:
        raise PrivacyError(
            "noise: at this budget it would be too large for exact 64-bit sampling. "
            "Use a larger epsilon (or rho)."
        )
    factor = max(1, math.ceil(LEAST_DEVIATION / in_units))
    return factor, float_up(in_units * factor)


def unit_deviation(budget: Budget, *, coordinates: int, max_rows: int, rows: int) -> float:
    """Deviation of an answer's noise for a block of bound 1 (not squared) asked at loudness 1.

    For predictions: the noise that is drawn is :func:`plan_noise`'s.
    """
    base, _ = base_deviation(Fraction(max_rows), budget, coordinates=coordinates)
    return float(base) * (math.sqrt(2) if norm_of(budget) == 1 else 1.0) / rows


def base_deviation(
    sensitivity: Fraction, budget: Budget, *, coordinates: int
) -> tuple[Fraction, Calibration | None]:
    """Noise scale of a scaled query: Delta / mu, or Delta / epsilon for Laplace."""
    if isinstance(budget, PureDP):
        return sensitivity / least(budget.epsilon), None
    if isinstance(budget, ApproxDP):
        calibration = calibrate_approx(budget.epsilon, budget.delta, coordinates=coordinates)
    else:
        calibration = calibrate_zcdp(budget.rho)
    return sensitivity / Fraction(calibration.distance), calibration
