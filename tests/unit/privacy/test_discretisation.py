"""The statement of docs/mathematics.md, section "Discrete noise", against exact summation.

The library only draws noise of deviations from 1e4 units on, where nothing can be seen of the
difference between discrete and continuous noise. Here the same code is asked about deviations of
2 to 4 units, where every probability can be summed and the difference is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from retilt.exceptions import PrivacyError
from retilt.privacy import accounting
from retilt.privacy.accounting import calibrate_approx, discretisation_slack, gaussian_distance

Floats = NDArray[np.float64]

REACH = 26
"""Deviations summed each side: what lies beyond has probability below 1e-140."""


def pmf(points: NDArray[np.int64], deviation: float) -> Floats:
    """The discrete Gaussian at integers."""
    everything = np.arange(-int(40 * deviation), int(40 * deviation) + 1)
    total = np.exp(-(everything**2) / (2 * deviation**2)).sum()
    return np.exp(-(points**2) / (2 * deviation**2)) / total


def rounded_pmf(points: NDArray[np.int64], deviation: float) -> Floats:
    """The rounded continuous Gaussian; taken on the left, where differences keep their digits."""
    left = -np.abs(points)
    return ndtr((left + 0.5) / deviation) - ndtr((left - 0.5) / deviation)


def exact_delta(epsilon: float, shift: Sequence[int], deviations: Sequence[float]) -> float:
    """The smallest delta of a product of discrete Gaussians and its shift: sum (p - e^eps p')+."""
    here, there = np.ones(1), np.ones(1)
    for move, deviation in zip(shift, deviations, strict=True):
        reach = int(REACH * deviation) + abs(move)
        points = np.arange(-reach, reach + 1)
        here = np.outer(here, pmf(points, deviation)).ravel()
        there = np.outer(there, pmf(points - move, deviation)).ravel()
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


CASES = [
    ((shift,), (deviation,))
    for shift, deviation in product((1, 2, 3), (2.0, 2.5, 2.9756, 3.3, 4.0))
] + [
    ((2, 1), (2.0, 2.0)),
    ((1, 1), (2.0, 4.0)),
    ((2, 2), (3.0, 3.0)),
    ((2, 3), (3.0, 4.0)),
    ((0, 2), (2.0, 3.5)),
    ((3, -2), (4.0, 2.5)),
]


@pytest.mark.parametrize(("shift", "deviations"), CASES)
@pytest.mark.parametrize("tail_share", [1e-6, 0.1])
def test_every_claim_of_the_code_holds_for_the_discrete_noise(
    monkeypatch: pytest.MonkeyPatch,
    shift: tuple[int, ...],
    deviations: tuple[float, ...],
    tail_share: float,
) -> None:
    monkeypatch.setattr(accounting, "LEAST_DEVIATION", min(deviations))
    monkeypatch.setattr(accounting, "_TAIL_SHARE", tail_share)
    distance = math.hypot(*(d / s for d, s in zip(shift, deviations, strict=True)))
    claims = 0
    for epsilon in (1.0, 2.0, 4.0, 6.0):
        truth = exact_delta(epsilon, shift, deviations)
        for delta in np.logspace(-12, -0.5, 70):
            try:
                calibration = calibrate_approx(epsilon, float(delta), coordinates=len(shift))
            except PrivacyError:
                continue
            if distance <= calibration.distance:
                claims += 1
                assert truth <= delta
    assert claims >= 10


def test_the_condition_without_slack_is_false_for_discrete_noise() -> None:
    deviation = 2 / gaussian_distance(4.0, 1e-9)
    assert deviation == pytest.approx(2.9756, abs=1e-4)
    assert exact_delta(4.0, (2,), (deviation,)) / 1e-9 == pytest.approx(1.1707, abs=1e-4)


def test_with_slack_the_same_case_gets_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = 2 / gaussian_distance(4.0, 1e-9)
    monkeypatch.setattr(accounting, "LEAST_DEVIATION", deviation)
    calibration = calibrate_approx(4.0, 1e-9, coordinates=1)
    assert 2 / calibration.distance > deviation
    assert exact_delta(4.0, (2,), (2 / calibration.distance,)) < 1e-9


@pytest.mark.parametrize("deviation", [1.0, 1.7, 2.0, 4.0, 25.0])
def test_ratios_of_discrete_and_rounded_noise(deviation: float) -> None:
    points = np.arange(-int(REACH * deviation), int(REACH * deviation) + 1)
    discrete, rounded = pmf(points, deviation), rounded_pmf(points, deviation)
    theta = 3 * math.exp(-2 * math.pi**2 * deviation**2)
    rounding = 1 + 1e-11
    assert np.all(discrete <= rounding * math.exp(1 / (24 * deviation**2)) * rounded)
    growth = np.exp(points**2 / (24 * deviation**4))
    assert np.all(rounded <= rounding * (1 + theta) * growth * discrete)


@pytest.mark.parametrize("deviation", [1.0, 1.3, 2.0])
def test_the_normaliser_lies_where_poisson_summation_says(deviation: float) -> None:
    points = np.arange(-60, 61)
    ratio = np.exp(-(points**2) / (2 * deviation**2)).sum() / (deviation * math.sqrt(2 * math.pi))
    assert -1e-14 <= ratio - 1 <= 3 * math.exp(-2 * math.pi**2 * deviation**2) + 1e-14


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 40.0])
@pytest.mark.parametrize(("shift", "deviation"), [(1, 0.4), (1, 1.0), (2, 0.7), (3, 2.2)])
def test_zcdp_is_exact_for_discrete_noise(order: float, shift: int, deviation: float) -> None:
    centre = order * shift  # of p^order p'^(1 - order), with p centred at shift and p' at 0
    points = np.arange(int(centre - 60), int(centre + 61))
    squares = order * (points - shift) ** 2 + (1 - order) * points**2
    log_terms = -squares / (2 * deviation**2)
    everything = np.arange(-60, 61)
    log_total = math.log(np.exp(-(everything**2) / (2 * deviation**2)).sum())
    divergence = (float(np.logaddexp.reduce(log_terms)) - log_total) / (order - 1)
    rho = (shift / deviation) ** 2 / 2
    assert divergence <= order * rho * (1 + 1e-12)
    if float(centre).is_integer():
        assert divergence == pytest.approx(order * rho, rel=1e-12)


@pytest.mark.parametrize(("queries", "slack"), [(20, 1.05e-7), (65, 1.66e-7), (10_000, 8.82e-6)])
def test_the_slack_is_what_the_documentation_says(queries: int, slack: float) -> None:
    calibration = calibrate_approx(1.0, 1e-9, coordinates=queries)
    assert 0 < calibration.slack < slack
    assert calibration.slack > 0.95 * slack


def test_slack_falls_with_the_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the least deviation allowed bounds the slack of every larger one.
    found = []
    for deviation in (2, 3, 10, 1_000, 10_000, 1_000_000):
        monkeypatch.setattr(accounting, "LEAST_DEVIATION", deviation)
        found.append(discretisation_slack(1.0, 1e-9, coordinates=65))
    assert found == sorted(found, reverse=True)
    assert [b for _, b in found] == sorted((b for _, b in found), reverse=True)
