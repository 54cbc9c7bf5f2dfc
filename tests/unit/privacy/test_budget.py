"""Budgets, units and what a declared generator adds up to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.exceptions import InputError, PrivacyError
from retilt.measures.base import Relation
from retilt.privacy.budget import (
    ZCDP,
    ApproxDP,
    Budget,
    Generator,
    PureDP,
    budget_from_dict,
    budget_to_dict,
    describe,
    make_budget,
    total_budget,
    zcdp_to_approx,
)
from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow, parse_unit

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE

NOT_BUDGETS: list[Any] = [
    0, 0.0, -0.0, -1, -1e-9, math.nan, math.inf, -math.inf, True, False, "1", "", None, [1.0],
    {}, 1j, 10**400, np.nan, np.inf, np.float64(-1), np.array([1.0, 2.0]),
]  # fmt: skip


@pytest.mark.parametrize("bad", NOT_BUDGETS, ids=lambda v: repr(v)[:20])
def test_what_is_no_finite_positive_number_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="epsilon"):
        PureDP(bad)
    with pytest.raises(InputError, match="epsilon"):
        ApproxDP(bad, 1e-6)
    with pytest.raises(InputError, match="delta"):
        ApproxDP(1.0, bad)
    with pytest.raises(InputError, match="rho"):
        ZCDP(bad)


@pytest.mark.parametrize("delta", [1, 1.0, 2, 1e300, 1e-301, 5e-324, 1.0000001])
def test_delta_lies_below_one_and_above_what_floats_hold(delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        ApproxDP(1.0, delta)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, True, "1"])
@pytest.mark.parametrize("delta", [None, 0, 1e-6])
def test_make_budget_refuses_whatever_the_delta(epsilon: Any, delta: float | None) -> None:
    with pytest.raises(InputError, match="epsilon"):
        make_budget(epsilon=epsilon, delta=delta, rho=None, rows=100)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": None, "delta": 1e-6}, "epsilon"),
        ({"epsilon": 1.0, "rho": 0.1}, "rho"),
        ({"epsilon": None, "delta": 0, "rho": 0.1}, "rho"),
        ({"epsilon": 1.0, "rows": 1}, "delta"),
        ({"epsilon": 1.0, "rows": None}, "delta"),
        ({"epsilon": 1.0, "rows": 10**200}, "delta"),
        ({"epsilon": 1.0, "delta": False}, "delta"),
        ({"epsilon": 1.0, "delta": "0"}, "delta"),
        ({"epsilon": None, "rho": 0}, "rho"),
        ({"epsilon": None, "rho": math.nan}, "rho"),
    ],
)
def test_make_budget_refusals(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_budget(**{"delta": None, "rho": None, "rows": 100, **options})


def test_make_budget_kinds() -> None:
    def make(**options: Any) -> Budget:
        return make_budget(**{"epsilon": None, "delta": None, "rho": None, "rows": 100, **options})

    assert make(epsilon=2) == ApproxDP(2, 1e-4)
    assert make(epsilon=2, delta=0) == make(epsilon=2, delta=0.0) == PureDP(2)
    assert make(epsilon=2, delta=1e-9) == ApproxDP(2, 1e-9)
    assert make(rho=0.5) == ZCDP(0.5)


BUDGETS: list[Budget] = [PureDP(0.7), ApproxDP(1.5, 1e-7), ZCDP(0.2)]


@pytest.mark.parametrize("budget", BUDGETS)
def test_files_give_the_budget_back(budget: Budget) -> None:
    content = budget_to_dict(budget)
    assert budget_from_dict(content) == budget
    for broken in ({**content, "extra": 1}, {"kind": content["kind"]}, {**content, "kind": "dp"}):
        with pytest.raises(InputError):
            budget_from_dict(broken)
    assert describe(budget)


@pytest.mark.parametrize("content", [None, 3, "zcdp", [], {}, {"kind": None}])
def test_files_without_a_budget_are_refused(content: Any) -> None:
    with pytest.raises(InputError, match="budget"):
        budget_from_dict(content)


# --- units --------------------------------------------------------------------------------


def test_units() -> None:
    for unit in (ReplaceOneRow(), AddRemoveOneRow()):
        assert parse_unit(unit.name) == parse_unit(unit) == unit
        assert unit.name == unit.relation.value
    assert "public" in ReplaceOneRow().promise
    assert "private and measured" in AddRemoveOneRow().promise


@pytest.mark.parametrize(
    "bad", [None, "", "replace", "Replace-one", 1, ReplaceOneRow, ["replace-one"]]
)
def test_other_units_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="replace-one, add-remove"):
        parse_unit(bad)


# --- conversion and composition, from first principles ------------------------------------


def hockey_stick(p: list[float], q: list[float], epsilon: float) -> float:
    """The smallest delta of two finite distributions."""
    return sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(p, q, strict=True))


def renyi(p: list[float], q: list[float], order: float) -> float:
    total = sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))
    return math.log(total) / (order - 1)


def test_replacing_is_removing_and_adding() -> None:
    """Randomised response on a set of 0, 1 or 2 people: two steps of the relation."""
    epsilon = 0.8
    near = 1 / (1 + math.exp(epsilon))
    # Outputs far left, middle, right; neighbours middle-left and middle-right by epsilon each.
    left, middle, right = (
        [math.exp(-epsilon * abs(x - c)) for x in range(-9, 10)] for c in (-1, 0, 1)
    )
    left, middle, right = ([v / sum(w) for v in w] for w in (left, middle, right))
    edge = 1.1 * epsilon  # cutting the tails off costs a little
    assert max(hockey_stick(left, middle, edge), hockey_stick(middle, right, edge)) == 0
    converted = Generator(PureDP(epsilon), ADD_REMOVE).under(REPLACE)
    assert converted == PureDP(2 * epsilon)
    assert hockey_stick(left, right, 2 * edge) == 0
    assert hockey_stick(left, right, 1.5 * epsilon) > 0  # nothing less would do
    assert near < 0.5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_group_privacy_of_two_for_approximate_dp(epsilon: float, delta: float) -> None:
    """P <= e^eps Q + delta twice gives e^(2 eps) R + (1 + e^eps) delta, and a chain attains it."""
    converted = Generator(ApproxDP(epsilon, delta), ADD_REMOVE).under(REPLACE)
    assert isinstance(converted, ApproxDP)
    assert converted.epsilon == 2 * epsilon
    grown = math.exp(epsilon)
    # Mass of one event along a chain of tables: r, e^eps r + delta, e^eps (...) + delta.
    r = 1e-4
    attained = grown * (grown * r + delta) + delta - math.exp(2 * epsilon) * r
    assert converted.delta >= attained * (1 - 1e-9)
    assert converted.delta <= attained * (1 + 1e-6)


def test_conversion_of_rho_is_that_of_twice_the_distance() -> None:
    """rho = mu^2 / 2 for Gaussian noise, and two steps double mu."""
    mu = 0.6
    assert Generator(ZCDP(mu**2 / 2), ADD_REMOVE).under(REPLACE) == ZCDP((2 * mu) ** 2 / 2)


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_same_relation_needs_no_conversion_and_the_reverse_is_refused(budget: Budget) -> None:
    for relation in (REPLACE, ADD_REMOVE):
        assert Generator(budget, relation).under(relation) == budget
    with pytest.raises(PrivacyError, match="replace-one"):
        Generator(budget, REPLACE).under(ADD_REMOVE)
    with pytest.raises(PrivacyError):
        total_budget(budget, Generator(budget, REPLACE), ADD_REMOVE)


@pytest.mark.parametrize(
    "budget", [ApproxDP(800.0, 1e-9), ApproxDP(5.0, 0.1), ApproxDP(1e6, 1e-300)]
)
def test_a_promise_of_nothing_is_refused(budget: ApproxDP) -> None:
    with pytest.raises(PrivacyError, match="delta"):
        Generator(budget, ADD_REMOVE).under(REPLACE)


def test_sums_that_reach_one_are_refused() -> None:
    with pytest.raises(PrivacyError, match="delta"):
        total_budget(ApproxDP(1, 0.5), Generator(ApproxDP(1, 0.5), REPLACE), REPLACE)


def test_totals() -> None:
    def total(own: Budget, other: Budget) -> Budget | None:
        both = (
            total_budget(own, Generator(other, REPLACE), REPLACE),
            total_budget(other, Generator(own, REPLACE), REPLACE),
        )
        assert both[0] == both[1]
        return both[0]

    assert total_budget(PureDP(1), None, REPLACE) is None
    assert total(PureDP(1), PureDP(2)) == PureDP(3)
    assert total(ZCDP(0.25), ZCDP(0.5)) == ZCDP(0.75)
    assert total(ApproxDP(1, 1e-6), ApproxDP(3, 2e-6)) == ApproxDP(4, 1e-6 + 2e-6)
    assert total(PureDP(1), ApproxDP(3, 2e-6)) == ApproxDP(4, 2e-6)
    assert total(PureDP(2), ZCDP(0.5)) == ZCDP(2.5)  # eps^2 / 2 = 2
    mixed = total(ZCDP(0.1), ApproxDP(1, 1e-6))
    assert mixed == ApproxDP(zcdp_to_approx(0.1, 1e-6) + 1, 2e-6)


def test_pure_dp_is_zcdp() -> None:
    """eps-DP has Renyi divergence at most order * eps^2 / 2: randomised response, every order."""
    for epsilon in (0.1, 1.0, 4.0):
        p = [math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))]
        total = total_budget(PureDP(epsilon), Generator(ZCDP(1e-12), REPLACE), REPLACE)
        assert isinstance(total, ZCDP)
        for order in (1.01, 1.5, 2, 8, 64):
            assert renyi(p, p[::-1], order) <= total.rho * order * (1 + 1e-9)


@given(st.floats(1e-6, 50), st.floats(1e-30, 0.5), st.floats(1e-6, 50), st.floats(1e-30, 0.4))
def test_totals_never_shrink(e1: float, d1: float, e2: float, d2: float) -> None:
    total = total_budget(ApproxDP(e1, d1), Generator(ApproxDP(e2, d2), REPLACE), REPLACE)
    assert isinstance(total, ApproxDP)
    assert total.epsilon >= max(e1, e2)
    assert total.delta >= max(d1, d2)
