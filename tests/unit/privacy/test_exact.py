"""Figures of the privacy code to the last unit: limits, defaults, roundings and what is refused."""

from __future__ import annotations

import math
import sys
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import FormatError, InputError, PrivacyError
from retilt.measures.base import Relation, Terms
from retilt.measures.marginals import Marginal
from retilt.measures.queries import QuerySet
from retilt.privacy import budget, mechanism, sensitivity, unit
from retilt.privacy.budget import (
    ZCDP,
    ApproxDP,
    Generator,
    PureDP,
    decimal,
    describe,
    generator_from_dict,
    loss_in_words,
    make_budget,
    rounded_up,
    total_budget,
    zcdp_cap,
    zcdp_to_approx,
)
from retilt.privacy.plan import plan_from_dict
from retilt.privacy.sensitivity import NoisePlan, plan_noise, sqrt_up
from retilt.schema.columns import Categorical, Schema

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
TABLE = pa.table({"sex": ["F", "M", "M", "F"]})
PAIRS = [(rho, 10.0**-k) for rho in (1e-4, 0.02, 0.5, 3.3, 40.0) for k in (1, 3, 6, 12, 200)]


def near(found: float, exact: Decimal, *, above: bool, within: str) -> bool:
    """Whether a float lies on the safe side of a number, and not far from it."""
    got, room = Decimal(found), abs(exact) * Decimal(within)
    return exact <= got <= exact + room if above else exact - room <= got <= exact


# --- budgets -------------------------------------------------------------------------------


def test_the_least_delta_is_taken_and_none_below_it() -> None:
    assert ApproxDP(1, 1e-300).delta == 1e-300
    with pytest.raises(InputError, match="delta"):
        ApproxDP(1, math.nextafter(1e-300, 0))


def test_the_largest_float_is_a_number() -> None:
    assert PureDP(sys.float_info.max).epsilon == sys.float_info.max


def test_the_default_delta_needs_two_rows() -> None:
    assert make_budget(epsilon=1, delta=None, rho=None, rows=2) == ApproxDP(1, 0.25)
    with pytest.raises(InputError, match="needs 2 rows"):
        make_budget(epsilon=1, delta=None, rho=None, rows=1)
    with pytest.raises(InputError, match="epsilon: missing"):
        make_budget(epsilon=None, delta=None, rho=None, rows=10)


def test_a_generator_is_a_budget_with_a_unit() -> None:
    with pytest.raises(InputError, match="a budget of type str"):
        Generator("(1, 1e-6)", REPLACE)  # type: ignore[arg-type]
    for content in (5, [], "replace-one"):
        with pytest.raises(InputError, match="null or an object"):
            generator_from_dict(content)


@pytest.mark.parametrize(("rho", "delta"), PAIRS)
def test_zcdp_and_approximate_dp_convert_to_the_safe_side(rho: float, delta: float) -> None:
    with localcontext() as context:
        context.prec = 60
        log = -Decimal(delta).ln()
        exact = Decimal(rho) + 2 * (Decimal(rho) * log).sqrt()
        assert near(zcdp_to_approx(rho, delta), exact, above=True, within="1e-12")
        epsilon = Decimal(rho)  # any number will do
        root = (log + epsilon).sqrt() - log.sqrt()
        assert near(zcdp_cap(rho, delta), root * root, above=False, within="1e-11")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.7, 20.0])
def test_group_privacy_of_two_is_rounded_up(epsilon: float) -> None:
    generator = Generator(ApproxDP(epsilon, 1e-20), ADD_REMOVE)
    found = generator.under(REPLACE, persons=False)
    assert isinstance(found, ApproxDP)
    with localcontext() as context:
        context.prec = 60
        exact = (1 + Decimal(epsilon).exp()) * Decimal.from_float(1e-20)
    assert found.epsilon == 2 * epsilon
    assert near(found.delta, exact, above=True, within="1e-12")


def test_sums_are_rounded_up() -> None:
    rng = np.random.default_rng(5)
    for first, second in rng.uniform(0.1, 2, (60, 2)).tolist():
        both = decimal(first) + decimal(second)
        pure = total_budget(PureDP(first), Generator(PureDP(second), REPLACE), REPLACE)
        assert isinstance(pure, PureDP)
        assert decimal(pure.epsilon) >= both
        assert decimal(math.nextafter(pure.epsilon, 0)) < both
        mixed = total_budget(ZCDP(first), Generator(PureDP(second), REPLACE), REPLACE)
        assert isinstance(mixed, ZCDP)
        exact = decimal(first) + decimal(second) ** 2 / 2
        assert decimal(mixed.rho) >= exact
        assert decimal(math.nextafter(mixed.rho, 0)) < exact
    assert total_budget(ZCDP(1), Generator(PureDP(3), REPLACE), REPLACE) == ZCDP(5.5)


def test_whole_numbers_stay_whole() -> None:
    found = budget.float_up(Fraction(4))
    assert found == 4
    assert type(found) is int


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.2345671, 6, "1.23457"),
        (1.2345671, 3, "1.24"),
        (0.0001, 6, "0.0001"),
        (0.00001, 6, "1e-5"),
        (123456789, 9, "123456789"),
        (1000000000, 6, "1e+9"),
    ],
)
def test_shortened_numbers_are_rounded_up(value: float, digits: int, text: str) -> None:
    assert rounded_up(value, digits) == text


def test_amounts_are_shortened_to_six_digits_and_delta_to_three() -> None:
    assert describe(ApproxDP(1.23456789, 1.23456e-7)) == "(ε = 1.23457, δ = 1.24e-7)-DP"
    amounts = {"rho": 0.123456789, "epsilon": 1.23456789, "delta": 1.23456e-7}
    assert loss_in_words(amounts) == "ρ = 0.123457, ε = 1.23457, δ = 1.24e-7"
    assert loss_in_words({"rho": None, "epsilon": 2}) == "ε = 2"


def test_the_most_rows_of_a_person() -> None:
    assert unit.MOST_ROWS == 2**31 - 1


# --- noise ---------------------------------------------------------------------------------


def queries() -> QuerySet:
    schema = Schema({"sex": Categorical(("F", "M"))})
    return QuerySet((Marginal(("sex",)).bind(Terms(schema, norm=1, relation=ADD_REMOVE)),))


def test_a_row_is_the_unit_unless_more_rows_are_named() -> None:
    asked, scales = queries(), [Fraction(1)]
    one = plan_noise(asked, scales, None, PureDP(1))
    assert one == plan_noise(asked, scales, None, PureDP(1), max_rows=1)
    assert one.sensitivity == 1
    assert plan_noise(asked, scales, None, PureDP(1), max_rows=2).sensitivity == 2


@pytest.mark.parametrize(("scale", "count"), [(0, None), (1, 0), (-1, None), (1, -1)])
def test_scales_are_above_zero(scale: int, count: int | None) -> None:
    own = None if count is None else Fraction(count)
    with pytest.raises(PrivacyError, match="not above 0"):
        plan_noise(queries(), [Fraction(scale)], own, PureDP(1))


def test_sums_have_room_for_the_rows_of_the_plan() -> None:
    with pytest.raises(PrivacyError, match="overflow 64-bit counts"):
        plan_noise(queries(), [Fraction(1)], None, PureDP(1), rows=2**63)
    with pytest.raises(PrivacyError, match="digits"):
        plan_noise(queries(), [Fraction(1)], None, PureDP(1e48), rows=1)


def test_roots_are_never_below_what_they_are_roots_of() -> None:
    """Where the scaled number lies just above a square, rounding it down would lose that."""
    value = 1 + Fraction(1, 3 * 2**124)
    assert sqrt_up(value) ** 2 >= value
    for number in (2, 3, 5, 6, 7):
        root = sqrt_up(Fraction(number))
        assert (root - Fraction(1, root.denominator)) ** 2 < number <= root**2


def test_the_noise_has_a_name_and_a_deviation() -> None:
    found = [
        NoisePlan(norm, (1,), (1e4,), (1,), 1.0, None)  # type: ignore[arg-type]
        for norm in (1, 2)
    ]
    assert [n.mechanism for n in found] == ["discrete-laplace", "discrete-gaussian"]
    assert [n.deviation_per_scale for n in found] == [math.sqrt(2), 1.0]


@pytest.mark.parametrize("draw", [mechanism.discrete_gaussian, mechanism.discrete_laplace])
def test_noise_is_around_zero(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a scale of 1/1000 anything but 0 has a probability below exp(-900)."""
    import opendp.mod

    asked: list[str] = []
    real = opendp.mod.enable_features
    monkeypatch.setattr(
        opendp.mod, "enable_features", lambda *names: (asked.extend(names), real(*names))
    )
    assert draw([1e-3] * 4) == [0] * 4
    assert asked == ["contrib"]


def test_no_limit_of_rows_is_lower_for_small_plans() -> None:
    assert sensitivity.MOST_ROWS == 10**10


# --- plans ---------------------------------------------------------------------------------


def plan(**options: Any) -> rt.Plan:
    options = {"epsilon": 1.0, "delta": 1e-6, "rows": 4, **options}
    return rt.plan(TABLE, rt.marginal(["sex"]), **options)


def test_one_row_is_a_table() -> None:
    assert plan(rows=1).rows == 1
    with pytest.raises(InputError, match="rows"):
        plan(rows=0)


def test_a_plan_file_lists_its_measures_and_has_their_columns() -> None:
    content = plan().to_dict()
    for unfit in ({}, "marginal", None, 5):
        with pytest.raises(FormatError, match="measures: got"):
            plan_from_dict({**content, "measures": unfit})
    column = {**content["schema"]["columns"][0], "name": "gender"}
    schema = {"columns": [column], "inferred": []}
    with pytest.raises(FormatError, match="it lacks the columns"):
        plan_from_dict({**content, "schema": schema})
