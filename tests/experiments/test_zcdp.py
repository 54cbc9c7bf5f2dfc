"""Conversions of zero-concentrated differential privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from experiments.generators.zcdp import log_delta, rho_of

BUDGETS = [(1.0, 1e-9), (3.0, 1 / 307_511**2), (0.01, 1e-6), (40.0, 1e-12), (0.5, 0.9)]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_rho_fits_and_a_little_more_does_not(epsilon: float, delta: float) -> None:
    rho = rho_of(epsilon, delta)
    assert log_delta(rho, epsilon) <= math.log(delta)
    assert log_delta(rho * (1 + 1e-6), epsilon) > math.log(delta)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS[:4])
def test_rho_is_above_the_simple_conversion(epsilon: float, delta: float) -> None:
    # rho + 2 sqrt(rho log(1 / delta)) (Bun and Steinke 2016, proposition 1.3)
    rho = rho_of(epsilon, delta)
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) > epsilon


@pytest.mark.parametrize(("rho", "epsilon"), [(0.01, 1.0), (0.5, 3.0), (2.0, 1.0), (1e-4, 0.1)])
def test_no_order_gives_less_delta(rho: float, epsilon: float) -> None:
    orders = 1 + np.logspace(-6, 6, 100_000)
    bounds = (
        (orders - 1) * (orders * rho - epsilon)
        - np.log(orders - 1)
        + orders * np.log1p(-1 / orders)
    )
    assert log_delta(rho, epsilon) == pytest.approx(min(0.0, bounds.min()), abs=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS[:3])
def test_gaussian_noise_of_that_rho_is_private(epsilon: float, delta: float) -> None:
    # The exact delta of Gaussian noise at distance mu = sqrt(2 rho) (Balle and Wang 2018) is below.
    scipy_special = pytest.importorskip("scipy.special", reason="needs scipy")
    mu = math.sqrt(2 * rho_of(epsilon, delta))
    first = scipy_special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + scipy_special.log_ndtr(-mu / 2 - epsilon / mu)
    assert first + math.log1p(-math.exp(second - first)) < math.log(delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "named"),
    [(0.0, 0.1, "epsilon"), (math.inf, 0.1, "epsilon"), (math.nan, 0.1, "epsilon")]
    + [(1.0, delta, "delta") for delta in (0.0, 1.0, -1.0, math.nan)],
)
def test_refuses(epsilon: float, delta: float, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: got"):
        rho_of(epsilon, delta)
