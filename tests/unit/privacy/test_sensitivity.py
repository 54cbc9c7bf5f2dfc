"""Rounding to the safe side, and the limits at which a plan is refused: each to the last unit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import retilt as rt
from retilt.exceptions import PrivacyError
from retilt.measures.base import Terms
from retilt.measures.queries import QuerySet
from retilt.privacy import sensitivity
from retilt.privacy.accounting import LEAST_DEVIATION
from retilt.privacy.mechanism import MAX_SCALE
from retilt.privacy.sensitivity import float_up, loudest, sqrt_up


def fractions() -> list[Fraction]:
    rng = np.random.default_rng(3)
    tops, bottoms = (
        [int(rng.integers(1, 2**62)) ** int(p) for p in rng.integers(1, 6, 60)] for _ in range(2)
    )
    exact = [Fraction(n * n, m * m) for n, m in ((1, 1), (3, 1), (7, 16), (2**70 + 1, 2**9))]
    made = [Fraction(a, b) for a, b in zip(tops, bottoms, strict=True)]
    return [*made, *exact, Fraction(2), Fraction(1, 3), Fraction(10**80), Fraction(1, 10**80)]


@pytest.mark.parametrize("value", fractions(), ids=lambda v: f"{float(v):.3g}")
def test_roots_are_rounded_up_by_next_to_nothing(value: Fraction) -> None:
    root = sqrt_up(value)
    assert root**2 >= value
    assert (root * (1 - Fraction(1, 2**60))) ** 2 < value


@pytest.mark.parametrize("root", [Fraction(3), Fraction(7, 16), Fraction(2**70 + 1)])
def test_exact_roots_are_exact(root: Fraction) -> None:
    assert sqrt_up(root**2) == root


@pytest.mark.parametrize("value", fractions(), ids=lambda v: f"{float(v):.3g}")
def test_floats_are_the_least_that_are_large_enough(value: Fraction) -> None:
    up = float_up(value)
    assert Fraction(up) >= value
    assert Fraction(math.nextafter(up, 0)) < value


@pytest.mark.parametrize("value", [0.1, 3.0, 1e300])
def test_floats_stay_as_they_are(value: float) -> None:
    assert float_up(Fraction(value)) == value


# --- limits --------------------------------------------------------------------------------


def test_the_limits_are_the_design_s() -> None:
    assert sensitivity.MOST_ROWS == 10**10
    assert sensitivity.LARGEST_UNIT == 2**32
    assert (LEAST_DEVIATION, MAX_SCALE) == (10_000, 2.0**56)


def test_a_coordinate_has_the_least_factor_that_gives_it_the_least_deviation() -> None:
    least = Fraction(LEAST_DEVIATION)
    tiny = Fraction(1, 10**30)
    for in_units, factor in (
        (least, 1),
        (least * 5, 1),
        (least - tiny, 2),
        (least / 2, 2),
        (least / 2 - tiny, 3),
        (least / 1000, 1000),
    ):
        assert sensitivity._integer_noise(in_units) == (factor, float_up(in_units * factor))


def test_the_largest_noise_is_drawn_and_no_larger() -> None:
    largest = Fraction(MAX_SCALE)
    assert sensitivity._integer_noise(largest) == (1, MAX_SCALE)
    with pytest.raises(PrivacyError, match="too large for exact 64-bit sampling"):
        sensitivity._integer_noise(largest + Fraction(1, 10**9))


def test_units_and_rows_have_room_to_the_last_one() -> None:
    sensitivity._check_room([1, 2**32], [1], 1)
    with pytest.raises(PrivacyError, match=r"2\*\*32 levels"):
        sensitivity._check_room([2**32 + 1, 1], [1], 1)
    sensitivity._check_room([1], [1], 2**63 - 1)
    with pytest.raises(PrivacyError, match="64-bit counts"):
        sensitivity._check_room([1], [1], 2**63)


def test_released_integers_have_room_to_the_last_one() -> None:
    rows = 10**10
    step = (10**59 - 2**63 - 1) // rows
    sensitivity._check_room([1], [1, step], rows)
    with pytest.raises(PrivacyError, match="59 digits"):
        sensitivity._check_room([1], [step + 1, 1], rows)
    # Noise of 2**63 is what is left of the room.
    sensitivity._check_room([1], [10**59 - 2**63 - 1], 1)
    with pytest.raises(PrivacyError, match="59 digits"):
        sensitivity._check_room([1], [10**59 - 2**63], 1)


# --- who asks ------------------------------------------------------------------------------


def test_equally_loud_blocks_leave_a_query_to_the_first() -> None:
    terms = Terms(rt.Schema({"a": rt.Numeric(0, 1), "b": rt.Numeric(0, 1)}))
    blocks = tuple(
        measure.bind(terms)
        for workload in (rt.means(["a"]), rt.means(["a"]), rt.means(["a", "b"]))
        for measure in workload.measures
    )
    queries = QuerySet(blocks)
    asked, asking = loudest(queries, [Fraction(1)] * 3)
    assert (asked, asking) == ([1, 1], {0, 2})
    asked, asking = loudest(queries, [Fraction(1), Fraction(2), Fraction(1, 2)])
    assert (asked, asking) == ([2, Fraction(1, 2)], {1, 2})
    asked, asking = loudest(queries, [Fraction(1), Fraction(2), Fraction(2)])
    assert (asked, asking) == ([2, 2], {1, 2})
