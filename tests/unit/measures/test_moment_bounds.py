"""Bounds of moments: exact values, written out by hand from the docstrings' formulas."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from retilt.measures.base import Relation
from retilt.measures.moment_bounds import (
    centred_sensitivity,
    free_count,
    grouped_sensitivity,
    grouped_square_loudness,
    rational_sqrt_down,
    square_loudness,
)

REPLACE, ADD = Relation.REPLACE, Relation.ADD_REMOVE
HALF, ONE, THREE = Fraction(1, 2), Fraction(1), Fraction(3)


@pytest.mark.parametrize(
    ("norm", "relation", "order", "loudness", "bound"),
    [
        # Order 1, d = 3: each of three terms moves by 2 alpha or alpha.
        (2, REPLACE, 1, HALF, Fraction(3)),
        (2, ADD, 1, HALF, Fraction(3, 4)),
        (1, REPLACE, 1, HALF, Fraction(3)),
        (1, ADD, 1, HALF, Fraction(3, 2)),
        (1, REPLACE, 1, Fraction(2), Fraction(12)),
        # Order 2: (d + r)**2 up to r = d, 4 r d beyond; (d + alpha)**2 / 2, 2 alpha d beyond.
        (2, REPLACE, 2, HALF, Fraction(169, 16)),
        (2, REPLACE, 2, Fraction(2), Fraction(48)),
        (1, REPLACE, 2, HALF, Fraction(49, 8)),
        (1, REPLACE, 2, Fraction(4), Fraction(24)),
        (2, ADD, 2, HALF, Fraction(15, 4)),
        (1, ADD, 2, HALF, Fraction(9, 2)),
    ],
)
def test_centred(norm: Any, relation: Relation, order: int, loudness: Fraction, bound: Any) -> None:
    found = centred_sensitivity(norm, relation, columns=3, order=order, loudness=loudness)
    assert found == bound


def test_squares_may_be_so_loud_and_no_louder() -> None:
    options: dict[str, Any] = {"columns": 3, "two_valued": 1, "loudness": HALF}
    assert square_loudness(1, REPLACE, **options) == HALF
    assert square_loudness(1, ADD, **options) == Fraction(5, 4)
    # 1/2 + r + (d + d1)/2 and r + (d + d1 - 1)/2.
    assert square_loudness(2, REPLACE, **options) == rational_sqrt_down(Fraction(11, 4))
    assert square_loudness(2, ADD, **options) == rational_sqrt_down(Fraction(7, 4))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("norm", [1, 2])
def test_squares_within_groups_obey_both_bounds(norm: Any, several: bool) -> None:
    """One row's own, and that of two rows of a group, which L1 with several groups needs not."""
    options: dict[str, Any] = {"columns": 4, "two_valued": 0, "loudness": Fraction(3, 2)}
    alone = square_loudness(norm, ADD, **options)
    both = min(alone, square_loudness(norm, REPLACE, **options))
    free = norm == 1 and several
    assert grouped_square_loudness(norm, ADD, several=several, **options) == alone
    found = grouped_square_loudness(norm, REPLACE, several=several, **options)
    assert found == (alone if free else both)
    # The two differ wherever it matters which one is taken.
    assert (alone == both) is (norm == 2)


@pytest.mark.parametrize(
    ("norm", "relation", "several", "bound"),
    [
        # d = 1, order 1, alpha = 1, c = 1: D = 4 (2), L = 1 (1).
        (2, REPLACE, True, Fraction(4)),
        (2, REPLACE, False, Fraction(4)),
        (2, ADD, True, Fraction(2)),
        (1, REPLACE, True, Fraction(4)),
        (1, REPLACE, False, Fraction(2)),
        (1, ADD, False, Fraction(2)),
    ],
)
def test_grouped(norm: Any, relation: Relation, several: bool, bound: Fraction) -> None:
    options: dict[str, Any] = {"columns": 1, "order": 1, "loudness": ONE, "count": ONE}
    assert grouped_sensitivity(norm, relation, several=several, **options) == bound


def test_grouped_of_order_two_in_l1_needs_no_pair_of_rows() -> None:
    """With quiet linear terms two rows of a group may be farther apart than twice one row."""
    options: dict[str, Any] = {"columns": 3, "order": 2, "loudness": Fraction(1, 8)}
    one_row = centred_sensitivity(1, ADD, **options)
    pair = centred_sensitivity(1, REPLACE, **options)
    count = Fraction(1, 64)
    several = grouped_sensitivity(1, REPLACE, several=True, count=count, **options)
    assert several == 2 * (one_row + count)
    one = grouped_sensitivity(1, REPLACE, several=False, count=count, **options)
    assert one == max(pair, one_row + count)


@pytest.mark.parametrize(
    ("norm", "relation", "several", "order", "free"),
    [
        (2, REPLACE, True, 1, rational_sqrt_down(THREE)),
        (2, REPLACE, False, 1, THREE),
        (1, REPLACE, False, 1, THREE),
        (1, REPLACE, True, 1, Fraction(0)),
        (1, REPLACE, True, 2, Fraction(0)),
        (2, ADD, True, 1, Fraction(0)),
        (2, ADD, False, 2, Fraction(0)),
        (1, ADD, False, 1, Fraction(0)),
    ],
)
def test_counts_that_are_free(
    norm: Any, relation: Relation, several: bool, order: int, free: Fraction
) -> None:
    """The table in the docstring of ``grouped_sensitivity``, for d = 3 and alpha = 1."""
    options: dict[str, Any] = {"columns": 3, "order": order, "loudness": ONE}
    assert free_count(norm, relation, several=several, **options) == free


def test_no_count_is_free_where_two_rows_are_no_farther_apart_than_two_lengths() -> None:
    """Loud linear terms: D = 4 r d = 2 L + something small, or less."""
    options: dict[str, Any] = {"columns": 1, "order": 2, "loudness": Fraction(1, 16)}
    spare = centred_sensitivity(1, REPLACE, **options) - centred_sensitivity(1, ADD, **options)
    assert free_count(1, REPLACE, several=False, **options) == spare
    assert 0 < spare < 1
