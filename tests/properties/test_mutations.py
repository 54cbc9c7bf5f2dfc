"""Break one privacy constant at a time: the checks of the other tests must notice each.

A suite that passes on broken code proves nothing, so these tests test the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from loading import load

from retilt.measures import moments, partitions
from retilt.measures.base import Relation, Terms
from retilt.privacy import accounting, budget, mechanism, plan, sensitivity
from retilt.privacy.budget import ZCDP, ApproxDP, PureDP

TESTS = Path(__file__).parents[1]


bounds = load(TESTS / "properties/test_sensitivity.py")
accounts = load(TESTS / "unit/privacy/test_accounting.py")
noise = load(TESTS / "noise/test_noise.py")

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE


# --- the checks ---------------------------------------------------------------------------


def check_moments(norm: int, relation: Relation, loudness: Fraction, columns: Any) -> None:
    block = bounds.moments_block(columns, norm=norm, relation=relation, loudness=loudness)
    bounds.check_block(block, norm, relation, bounds.rows_of(block))


def check_all_moments() -> None:
    for norm in (1, 2):
        for relation in (REPLACE, ADD_REMOVE):
            for loudness in (Fraction(1, 64), Fraction(1)):
                check_moments(norm, relation, loudness, bounds.SETS["fine x3"])
                check_moments(norm, relation, loudness, bounds.SETS["codes two fine"])


def check_tables() -> None:
    for relation in (REPLACE, ADD_REMOVE):
        for norm in (1, 2):
            block = bounds.Marginal(("c0",)).bind(
                Terms(bounds.named([bounds.CODES]), norm=norm, relation=relation)
            )
            rows = bounds.all_rows([range(block.size)])
            bounds.check_block(block, norm, relation, rows)


def check_plans(unit: str = "replace", kind: str = "approx", **options: Any) -> None:
    """A plan whose budget some row uses up, so that any error shows."""
    measures = [bounds.Moments(("a", "b"), loudness=Fraction(1))]
    if unit == "replace":
        measures = [bounds.Moments(("a", "b", "c"), loudness=Fraction(1))]
    names = measures[0].columns
    made = bounds.make_plan(measures, bounds.some(*names), unit=unit, budget=kind, **options)
    bounds.check_plan(made)


def check_all_plans() -> None:
    for unit in ("replace", "add-remove"):
        for kind in bounds.BUDGETS:
            check_plans(unit, kind)


def check_scaled_plans() -> None:
    measures = [bounds.Moments(("a", "b"), loudness=Fraction(1)), bounds.Marginal(("race",))]
    scales = [Fraction(3), Fraction(2)]
    columns = bounds.some("a", "b", "race")
    for kind in bounds.BUDGETS:
        made = bounds.make_plan(measures, columns, unit="add-remove", budget=kind, scales=scales)
        bounds.check_plan(made)


def check_wide_budget() -> None:
    """So much budget that the noise is at its floor, where factors are at work."""
    for kind in (PureDP(1e5), ZCDP(1e9), ApproxDP(1e4, 1e-9)):
        measures = [bounds.Marginal(("race",))]
        made = bounds.make_plan(measures, bounds.some("race"), unit="replace", budget=kind)
        assert min(made.noise.factors) > 1
        bounds.check_plan(made)


def check_gaussian_scale() -> None:
    values = np.array(mechanism.discrete_gaussian([20_000.0] * 500), dtype=np.float64)
    noise.check_spread(values, "gaussian", 20_000.0)


def check_laplace_scale() -> None:
    values = np.array(mechanism.discrete_laplace([20_000.0] * 500), dtype=np.float64)
    noise.check_spread(values, "laplace", 20_000.0)


# --- the mutations ------------------------------------------------------------------------


def scaled_result(function: Callable[..., Any], factor: Fraction) -> Callable[..., Any]:
    return lambda *args, **options: function(*args, **options) * factor


def louder_linear_terms(*args: Any, **options: Any) -> Fraction:
    """The bound of a slightly quieter alpha."""
    return centred(*args, **{**options, "loudness": options["loudness"] * Fraction(9, 10)})


centred = moments.centred_sensitivity


def vertex_formula(norm: int, relation: Relation, *, columns: int, **options: Any) -> Fraction:
    """The L1 distance of the corners z = 1, z' = -1 only: the mistake that DESIGN 3 warns of."""
    if norm == 1 and relation is REPLACE:
        return 2 * options["loudness"] * columns
    return centred(norm, relation, columns=columns, **options)


def joint(*, count: bool = True, square: bool = True) -> Callable[..., Fraction]:
    def bound(queries: Any, scales: Any, count_scale: Any, norm: int) -> Fraction:
        power = norm if square else 1
        pairs = zip(queries.blocks, scales, strict=True)
        total = sum((s**power * b.sensitivity() for b, s in pairs), Fraction(0))
        return total + (count_scale**power if count and count_scale is not None else 0)

    return bound


def rounded_down(value: Fraction) -> float:
    return float(value) * (1 - 1e-6)


def without_factor(*args: Any, **options: Any) -> sensitivity.NoisePlan:
    made = plan_noise(*args, **options)
    quiet = tuple(d / f for d, f in zip(made.scales, made.factors, strict=True))
    return replace(made, scales=quiet)


plan_noise = sensitivity.plan_noise


def half_the_base(*args: Any, **options: Any) -> Any:
    scale, calibration = base_deviation(*args, **options)
    return (scale / 2 if calibration is None else scale), calibration


base_deviation = sensitivity.base_deviation


def far_calibration(*args: Any, **options: Any) -> accounting.Calibration:
    made = calibrate_approx(*args, **options)
    return replace(made, distance=made.distance * 1.01)


calibrate_approx = accounting.calibrate_approx


def without_slack(epsilon: float, delta: float, *, coordinates: int) -> accounting.Calibration:
    distance = accounting.gaussian_distance(epsilon, delta)
    return accounting.Calibration(distance=distance, continuous=distance)


def one_part(*_args: Any, **_options: Any) -> Fraction:
    return Fraction(1)


def half_the_noise(function: Callable[[Any], list[int]]) -> Callable[[Any], list[int]]:
    return lambda scales: function([s / 2 for s in scales])


Mutation = tuple[ModuleType, str, Any, Callable[[], None]]

MUTATIONS: dict[str, Mutation] = {
    "squares 10 % louder": (
        moments,
        "square_loudness",
        scaled_result(moments.square_loudness, Fraction(11, 10)),
        check_all_moments,
    ),
    "centred bound 2 % smaller": (
        moments,
        "centred_sensitivity",
        scaled_result(moments.centred_sensitivity, Fraction(49, 50)),
        check_all_moments,
    ),
    "centred bound of a quieter alpha": (
        moments,
        "centred_sensitivity",
        louder_linear_terms,
        check_all_moments,
    ),
    "vertex formula": (moments, "centred_sensitivity", vertex_formula, check_all_moments),
    "paper bound one short": (
        moments,
        "paper_sensitivity",
        lambda queries: Fraction(queries - 1),
        lambda: check_plans(basis="paper", kind="zcdp"),
    ),
    "a table's bound 1": (partitions, "partition_sensitivity", one_part, check_tables),
    "deviations rounded down": (sensitivity, "float_up", rounded_down, check_all_plans),
    "count left out": (
        sensitivity,
        "joint_sensitivity",
        joint(count=False),
        lambda: check_plans("add-remove", "zcdp"),
    ),
    "scales not squared": (
        sensitivity,
        "joint_sensitivity",
        joint(square=False),
        check_scaled_plans,
    ),
    "distance 1 % too far": (sensitivity, "calibrate_approx", far_calibration, check_plans),
    "no slack for discreteness": (
        accounting,
        "calibrate_approx",
        without_slack,
        lambda: accounts.check_slack(1.0, 1e-9, 65),
    ),
    "slack of one coordinate": (
        accounting,
        "discretisation_slack",
        lambda epsilon, delta, *, coordinates: slack(epsilon, delta, coordinates=1),
        lambda: accounts.check_slack(1.0, 1e-9, 65),
    ),
    "analytic distance 1e-7 too far": (
        accounting,
        "gaussian_distance",
        scaled_result(accounting.gaussian_distance, 1 + 1e-7),  # type: ignore[arg-type]
        lambda: accounts.check_distance(1.0, 1e-9),
    ),
    "zcdp distance 1 % too far": (
        sensitivity,
        "calibrate_zcdp",
        lambda rho: accounting.Calibration(math.sqrt(2.04 * rho), math.sqrt(2 * rho)),
        lambda: check_plans(kind="zcdp"),
    ),
    "least deviation 100": (sensitivity, "LEAST_DEVIATION", 100, check_wide_budget),
    "least deviation without factor": (plan, "plan_noise", without_factor, check_wide_budget),
    "laplace base halved": (sensitivity, "base_deviation", half_the_base, check_all_plans),
    "laplace noise halved": (
        mechanism,
        "discrete_laplace",
        half_the_noise(mechanism.discrete_laplace),
        check_laplace_scale,
    ),
    "gaussian noise halved": (
        mechanism,
        "discrete_gaussian",
        half_the_noise(mechanism.discrete_gaussian),
        check_gaussian_scale,
    ),
    "zcdp conversion without the root": (
        budget,
        "zcdp_to_approx",
        lambda rho, delta: rho,
        lambda: accounts.check_zcdp_conversion(0.1, 1e-6),
    ),
}
slack = accounting.discretisation_slack


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checks_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, broken, check = MUTATIONS[name]
    check()
    monkeypatch.setattr(module, attribute, broken)
    with pytest.raises(AssertionError):
        check()
