"""The scales of blocks whose statistics are their answers: by hand, to the last digit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from retilt.measures.queries import QuerySet
from retilt.privacy.allocation import (
    _as_fractions,
    _covered,
    _loss,
    _scale,
    block_scales,
    count_scale,
)


@dataclass(frozen=True)
class Plain:
    """Queries that are the statistics, with standard errors that are the noise's."""

    keys: tuple[str, ...]
    bound: Fraction = Fraction(1)
    louder: int = 1
    unit: float = 1.0
    curved: float = 0.0

    @property
    def scales(self) -> tuple[Fraction, ...]:
        return (Fraction(self.louder),) * len(self.keys)

    def sensitivity(self) -> Fraction:
        return self.bound

    def standard_errors(self, answers: Any, variances: Any, factor: Any) -> Any:
        assert answers.shape == variances.shape
        assert factor.shape[0] == len(answers)
        squares = variances + (factor**2).sum(axis=1) + factor.shape[1] * self.curved
        return np.sqrt(squares)

    def comparisons(self, answers: Any) -> Any:
        return np.full(len(answers), self.unit)


def queries(*blocks: Plain) -> QuerySet:
    return QuerySet(blocks)  # type: ignore[arg-type]  # as much of a block as is asked


def scales(*blocks: Plain, norm: Any = 2, importances: Any = None) -> list[Fraction]:
    made = queries(*blocks)
    answers = np.ones(made.size)
    return block_scales(made, answers, importances or [1.0] * len(blocks), norm)


def test_l2_scales_go_as_the_fourth_root_of_weight_over_bound() -> None:
    """W 1 and 16, Delta 1 and 1: s**2 as 1 to 4."""
    assert scales(Plain(("a",)), Plain(("b",), unit=4.0)) == [Fraction(1, 2), 1]
    # W 1 and 1, Delta**2 1 and 16: s**2 as 4 to 1.
    assert scales(Plain(("a",)), Plain(("b",), bound=Fraction(16))) == [1, Fraction(1, 2)]
    # Twice as loud inside: W a quarter, so s**2 halves.
    expected = Fraction(round(256 / 2**0.5), 256)
    assert scales(Plain(("a",)), Plain(("b",), louder=2)) == [1, expected]
    # Sixteen statistics count like one of sixteen times the weight.
    many = Plain(tuple(map(str, range(16))))
    assert scales(Plain(("a",)), many) == [Fraction(1, 2), 1]
    assert scales(Plain(("a",)), Plain(("b",)), importances=[1.0, 16.0]) == [Fraction(1, 2), 1]


def test_l1_scales_go_as_the_cube_root() -> None:
    assert scales(Plain(("a",)), Plain(("b",), unit=8.0), norm=1) == [Fraction(1, 4), 1]
    assert scales(Plain(("a",)), Plain(("b",), bound=Fraction(8)), norm=1) == [1, Fraction(1, 2)]


@pytest.mark.parametrize("norm", [1, 2])
def test_no_scale_is_below_a_part_in_256(norm: Any) -> None:
    tiny = Plain(("b",), unit=1e-12)
    assert scales(Plain(("a",)), tiny, norm=norm) == [1, Fraction(1, 256)]


def test_what_asks_nothing_has_scale_one() -> None:
    assert _as_fractions([]) == []
    assert _as_fractions([0.0, 0.0]) == [1, 1]
    assert _as_fractions([0.0, 2.0, 1.0]) == [1, 1, Fraction(1, 2)]
    assert _as_fractions([0.4, 0.1]) == [1, Fraction(1, 4)]
    for weight in (0.0, -1.0, np.inf, np.nan):
        assert _scale(weight, Fraction(1), 2) == 0.0
    assert _scale(16.0, Fraction(4), 2) == pytest.approx(2**0.5)
    assert _scale(16.0, Fraction(2), 1) == 2.0


def test_the_covered_are_those_of_which_others_ask_everything_smallest_first() -> None:
    large, small = Plain(("a", "b", "c")), Plain(("a",))
    partly, middle = Plain(("a", "z")), Plain(("b", "c"))
    assert _covered(queries(large, small, partly, middle)) == [1, 3, 0]
    assert _covered(queries(large, partly)) == []
    assert _covered(queries(Plain(("a",)), Plain(("b",)))) == []


def test_the_loss_is_weight_times_squared_bound() -> None:
    made, answers = queries(Plain(("a",)), Plain(("b",), bound=Fraction(3))), np.ones(2)
    halves = [Fraction(1), Fraction(1, 2)]
    # W: 1 / 1 and 1 / (1/2)**2; the bound: 1 + 3/4 squared, or 1 + 3/2 plain.
    assert _loss(made, answers, [1.0, 2.0], halves, 2) == pytest.approx((1 + 8) * 1.75)
    assert _loss(made, answers, [1.0, 2.0], halves, 1) == pytest.approx((1 + 8) * 2.5**2)


def test_a_covered_block_that_costs_is_left_to_the_others() -> None:
    whole, part = Plain(("a", "b")), Plain(("a",), bound=Fraction(9), unit=6.0)
    loud = Fraction(round(256 / 2**0.25), 256)  # s**2 as sqrt(2) to 6/3
    assert scales(whole, part) == [loud, Fraction(1, 2**20)]
    made, answers = queries(whole, part), np.ones(2)
    assert block_scales(made, answers, [1.0, 1.0], 2, alone=True) == [loud, 1]
    # Of two that ask the same, neither is better left out: both stay.
    assert scales(Plain(("a",)), Plain(("a",))) == [1, 1]


# --- the row count ---------------------------------------------------------------------------


def count(*blocks: Plain, norm: Any = 2, answer: float = 1.0, **options: Any) -> Fraction:
    made = queries(*blocks)
    answers = np.full(made.size, answer)
    own = options.pop("own", None) or block_scales(made, answers, [1.0] * len(blocks), norm)
    return count_scale(made, answers, own, [1.0] * len(blocks), norm, **options)


def test_the_counts_scale_is_as_loud_as_its_weight_asks() -> None:
    """An error e of the count moves an answer 1 by e: W 1 and bound 1, like the block's own."""
    assert count(Plain(("a",))) == 1
    # An answer of a quarter: W 1/16, so s**2 a quarter of the block's.
    assert count(Plain(("a",)), answer=0.25) == Fraction(1, 2)
    assert count(Plain(("a",)), answer=0.125, norm=1) == Fraction(1, 4)
    # Several blocks' weights add up: 16 in units of one.
    many = [Plain((str(i),)) for i in range(16)]
    assert count(*many) == 2
    assert count(*many, measured=1 / 16) == 1
    # Scales that were rounded or normalised together carry over.
    assert count(Plain(("a",)), own=[Fraction(1, 2)]) == Fraction(1, 2)
    assert count(Plain(("a",)), Plain(("b",)), own=[Fraction(1, 2), Fraction(1, 4)]) == Fraction(
        round(256 * 0.5 * 2**0.25), 256
    )


def test_the_count_is_at_least_a_sixteenth_of_the_loudest() -> None:
    assert count(Plain(("a",)), answer=1e-9) == Fraction(1, 16)
    both = [Plain(("a",)), Plain(("b",))]
    assert count(*both, answer=1e-9, own=[Fraction(1, 2), Fraction(1)]) == Fraction(1, 16)
    assert count(*both, answer=1e-9, own=[Fraction(1, 2), Fraction(1, 4)]) == Fraction(1, 32)


def test_a_count_of_no_weight_stays_a_part_in_256() -> None:
    assert count(Plain(("a",)), answer=0.0, own=[Fraction(1, 256)]) == Fraction(1, 256)
    assert count() == Fraction(1, 16)


def test_blocks_that_ask_nothing_lend_no_scale() -> None:
    nothing = Plain(("a",), unit=0.0)
    half = Fraction(1, 2)
    assert count(nothing, Plain(("b",)), own=[Fraction(7), half]) == half
    assert count(nothing, own=[Fraction(1)]) == Fraction(1, 16)


def test_statistics_see_no_noise_but_the_answers() -> None:
    """A statistic that any shared noise disturbs is told of none by a block's own scale."""
    assert scales(Plain(("a",)), Plain(("b",), unit=4.0, curved=1.0)) == [Fraction(1, 2), 1]
