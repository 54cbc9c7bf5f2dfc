"""From a budget to a distance, against independent implementations and 50 digits."""

from __future__ import annotations

import math
import time
from functools import cache

import dp_accounting
import mpmath
import numpy as np
import pytest

from retilt.exceptions import PrivacyError
from retilt.privacy import accounting, budget
from retilt.privacy.accounting import (
    LEAST_DEVIATION,
    calibrate_approx,
    calibrate_zcdp,
    gaussian_distance,
    log_delta,
)
from retilt.privacy.budget import LEAST_DELTA

EPSILONS = np.logspace(-2, 2, 13).tolist()
DELTAS = [1e-3, 1e-5, 1e-7, 1e-9, 1e-12, 1e-15]


def exact_log_delta(mu: object, epsilon: float) -> mpmath.mpf:
    """Balle and Wang's delta (theorem 8), written out."""
    mu = mpmath.mpf(mu)
    first = mpmath.ncdf(mu / 2 - epsilon / mu)
    return mpmath.log(first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))


@cache
def exact_distance(epsilon: float, delta: float) -> mpmath.mpf:
    """mu in 60 digits (the digits of delta are lost to cancellation first)."""
    with mpmath.workdps(60 + int(-math.log10(delta) / 8)):
        target = mpmath.log(mpmath.mpf(delta))
        low, high = mpmath.mpf(-60), mpmath.mpf(8)
        for _ in range(70):
            middle = (low + high) / 2
            below = exact_log_delta(mpmath.exp(middle), epsilon) < target
            low, high = (middle, high) if below else (low, middle)
        return mpmath.exp(low)


def check_distance(epsilon: float, delta: float, relative: float = 1e-9) -> None:
    """The library's distance is below the exact one, by no more than ``relative``."""
    with mpmath.workdps(40):
        ratio = mpmath.mpf(accounting.gaussian_distance(epsilon, delta)) / exact_distance(
            epsilon, delta
        )
        assert 1 - relative <= ratio <= 1, f"distance / exact - 1 = {mpmath.nstr(ratio - 1, 5)}"


def check_slack(epsilon: float, delta: float, coordinates: int) -> None:
    """The calibrated distance satisfies the statement of docs/mathematics.md, written out anew."""
    made = accounting.calibrate_approx(epsilon, delta, coordinates=coordinates)
    with mpmath.workdps(40):
        sigma, tau, K = mpmath.mpf(LEAST_DEVIATION), mpmath.mpf("1e-6"), coordinates
        x = epsilon + mpmath.log(1 / (tau * mpmath.mpf(delta)))
        a = K / (24 * sigma**2)
        tail = mpmath.sqrt(K) * (1 + 1 / (2 * sigma)) + mpmath.sqrt(2 * x)
        b = tail**2 / (24 * sigma**2) + 3 * K * mpmath.exp(-2 * mpmath.pi**2 * sigma**2)
        left = mpmath.log(1 - tau) - a + mpmath.log(mpmath.mpf(delta))
        assert exact_log_delta(made.distance, epsilon - a - b) <= left


def check_zcdp_conversion(rho: float, delta: float) -> None:
    """The converted epsilon is not below OpenDP's, which is tighter and itself an upper bound."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.atom_domain(T="i64"), dp.absolute_distance(T="i64")
    gaussian = dp.m.make_gaussian(*space, scale=1 / math.sqrt(2 * rho))
    tight = dp.c.make_zCDP_to_approxDP(gaussian).map(1).epsilon(delta)
    assert tight * (1 - 1e-9) <= budget.zcdp_to_approx(rho, delta) <= 3 * tight


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_distance_against_dp_accounting(epsilon: float) -> None:
    for delta in DELTAS:
        sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
        assert 1 / gaussian_distance(epsilon, delta) == pytest.approx(sigma, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(e, d) for e in (0.01, 0.1, 1.0, 5.0, 30.0, 100.0) for d in (1e-3, 1e-9, 1e-15)]
    + [(50.0, 1e-9), (800.0, 1e-12), (1.0, 1e-300), (50.0, 1e-300), (1e6, 1e-9), (3.0, 0.5)],
)
def test_distance_against_fifty_digits(epsilon: float, delta: float) -> None:
    check_distance(epsilon, delta, 1e-11)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15, 1e-300])
def test_tiny_epsilon_errs_on_the_safe_side(epsilon: float, delta: float) -> None:
    # Here the two terms nearly cancel; the rounding must never allow a larger distance.
    check_distance(epsilon, delta, 1e-8)


@pytest.mark.parametrize("epsilon", [1e9, 1e16, 1e100, 1e300, 1.7e308])
def test_huge_epsilon_is_an_answer_not_a_crash(epsilon: float) -> None:
    limit = math.sqrt(2) * math.sqrt(epsilon)
    assert gaussian_distance(epsilon, 1e-9) == pytest.approx(limit, rel=1e-3)


def test_log_delta_is_an_upper_bound() -> None:
    rng = np.random.default_rng(1)
    with mpmath.workdps(60):
        for mu, epsilon in zip(
            10 ** rng.uniform(-4, 1.5, 60), 10 ** rng.uniform(-4, 2, 60), strict=True
        ):
            exact = exact_log_delta(mpmath.mpf(float(mu)), float(epsilon))
            found = log_delta(float(mu), float(epsilon))
            assert found == pytest.approx(float(exact), rel=1e-9, abs=1e-5)
            assert found >= float(exact) - 1e-13 * max(1.0, abs(float(exact)))


@pytest.mark.parametrize("u", [-4.2, -4.8, -5.2, -7.0])
def test_log_delta_near_one_is_rounded_up_by_next_to_nothing(u: float) -> None:
    """On both sides of where the second term is left out, which is below 1e-11 of the first."""
    epsilon = 0.01
    mu = math.sqrt(2) * (math.sqrt(u * u + epsilon) - u)  # v**2 - u**2 = epsilon, with u < 0
    found = log_delta(mu, epsilon)
    with mpmath.workdps(40):
        first = mpmath.log(mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu))
        exact = exact_log_delta(mpmath.mpf(mu), epsilon)
        tolerance = 1e-3 * abs(float(first)) if u < -5 else 1e-14
        assert abs(found - float(first if u < -5 else exact)) <= tolerance
        assert 0 >= found >= float(exact) - 1e-15


def test_distance_grows_with_the_budget() -> None:
    by_epsilon = [gaussian_distance(e, 1e-9) for e in np.logspace(-4, 3, 60)]
    by_delta = [gaussian_distance(1.0, d) for d in np.logspace(-300, -0.01, 60)]
    assert by_epsilon == sorted(by_epsilon)
    assert by_delta == sorted(by_delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "coordinates"),
    [
        (1.0, 1e-9, 1),
        (1.0, 1e-9, 65),
        (1.0, 1e-9, 10_000),
        (0.01, 1e-15, 20),
        (1e-4, 1e-9, 5),
        (50.0, 1e-3, 65),
        (800.0, 1e-12, 65),
        (1.0, LEAST_DELTA, 20),
        (0.1, 0.9, 3),
    ],
)
def test_slack_satisfies_the_statement(epsilon: float, delta: float, coordinates: int) -> None:
    check_slack(epsilon, delta, coordinates)
    made = calibrate_approx(epsilon, delta, coordinates=coordinates)
    assert made.distance < made.continuous
    assert made.slack > 0


@pytest.mark.parametrize("deviation", [0.3, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("coordinates", [1, 7])
def test_slack_is_the_statement_s_at_deviations_where_every_term_counts(
    deviation: float, coordinates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "LEAST_DEVIATION", deviation)
    found = accounting.discretisation_slack(1.5, 1e-7, coordinates=coordinates)
    with mpmath.workdps(30):
        sigma, K = mpmath.mpf(deviation), mpmath.mpf(coordinates)
        x = mpmath.mpf("1.5") + mpmath.log(1 / (mpmath.mpf("1e-6") * mpmath.mpf("1e-7")))
        a = K / (24 * sigma**2)
        root = mpmath.sqrt(K) * (1 + 1 / (2 * sigma)) + mpmath.sqrt(2 * x)
        b = root**2 / (24 * sigma**2) + 3 * K * mpmath.exp(-2 * (mpmath.pi * sigma) ** 2)
        assert found == pytest.approx((float(a), float(b)), rel=1e-13)


def test_slack_is_small() -> None:
    """About 1e-7 of sigma at ordinary budgets; it grows with the number of queries."""
    slacks = [calibrate_approx(1.0, 1e-9, coordinates=k).slack for k in (1, 20, 65, 1000, 10_000)]
    assert slacks == sorted(slacks)
    assert slacks[2] < 3e-7
    assert slacks[4] < 2e-5


def test_epsilon_that_the_slack_uses_up_is_refused() -> None:
    for epsilon, coordinates in ((1e-9, 5), (1e-3, 10_000_000)):
        with pytest.raises(PrivacyError, match="epsilon"):
            calibrate_approx(epsilon, 1e-9, coordinates=coordinates)


def test_slack_may_use_up_half_of_epsilon_and_no_more() -> None:
    epsilon, delta = 1e-3, 1e-9
    one = sum(accounting.discretisation_slack(epsilon, delta, coordinates=1_000_000)) / 1_000_000
    calibrate_approx(epsilon, delta, coordinates=int(0.48 * epsilon / one))
    with pytest.raises(PrivacyError, match="epsilon"):
        calibrate_approx(epsilon, delta, coordinates=int(0.55 * epsilon / one))


def test_zcdp_distance_is_exact_where_a_float_can_be() -> None:
    assert [calibrate_zcdp(rho).distance for rho in (0.5, 2.0, 8.0)] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("rho", [5e-324, 1e-300, 1e-9, 0.1, 0.5, 3.7, 1e9, 9e307, 1.7e308])
def test_zcdp_distance_never_exceeds_its_budget(rho: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.sqrt(2 * mpmath.mpf(rho))
        ratio = mpmath.mpf(calibrate_zcdp(rho).distance) / exact
        assert ratio <= 1
        assert ratio > 1 - 1e-15 or rho > 8e307


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.1, 1.0, 20.0])
def test_zcdp_conversion_against_opendp(rho: float, delta: float) -> None:
    check_zcdp_conversion(rho, delta)


def test_zcdp_conversion_covers_the_gaussian_itself() -> None:
    for rho in (0.01, 0.1, 1.0, 10.0):
        epsilon = budget.zcdp_to_approx(rho, 1e-6)
        assert log_delta(math.sqrt(2 * rho), epsilon) <= math.log(1e-6)


def test_calibration_is_fast() -> None:
    gaussian_distance(1.0, 1e-6)  # importing SciPy is not calibration
    start = time.process_time()
    for epsilon in (1e-4, 0.01, 1.0, 50.0, 800.0):
        for delta in (1e-3, 1e-15, 1e-300):
            calibrate_approx(epsilon, delta, coordinates=65)
    assert time.process_time() - start < 1
