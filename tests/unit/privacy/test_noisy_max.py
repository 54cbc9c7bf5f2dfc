"""Noisy maxima, one after the other: what OpenDP draws and what it says that it spends."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import chisquare

from retilt.exceptions import PrivacyError
from retilt.pipeline import draw_highest
from retilt.privacy.mechanism import max_scale, noisy_max
from retilt.privacy.selection import Choice, choose

SENSITIVITY = 1024


def first(scores: list[float], place: int, *, concentrated: bool) -> float:
    """Probability that a place has the highest score with noise of scale 1."""
    top = max(scores)
    if concentrated:
        weights = [math.exp(s - top) for s in scores]
        return weights[place] / sum(weights)

    def density(x: float) -> float:
        others = (s for i, s in enumerate(scores) if i != place)
        below = math.prod(1 - math.exp(-max(x - s, 0.0)) for s in others)
        return math.exp(scores[place] - x) * below

    found: float = quad(density, top, top + 50, epsabs=1e-13)[0]
    return found


def probabilities(
    scores: list[float], count: int, *, concentrated: bool
) -> dict[tuple[int, ...], float]:
    """Of every ordered choice, one after the other with fresh noise."""
    found = {}
    for places in itertools.permutations(range(len(scores)), count):
        left, chance = list(range(len(scores))), 1.0
        for place in places:
            own = [scores[i] for i in left]
            chance *= first(own, left.index(place), concentrated=concentrated)
            left.remove(place)
        found[places] = chance
    return found


def drawn(scores: list[int], count: int, draws: int, **options: Any) -> Counter[tuple[int, ...]]:
    choice = Choice(count, options["scale"], options["concentrated"], Fraction(0))
    nothing = [None] * len(scores)
    return Counter(tuple(choose(scores, nothing, choice, draw_highest)) for _ in range(draws))


def unlikely(concentrated: bool, draws: int) -> float:
    """The p-value of draws against the exact probabilities."""
    scores, scale = [0, 1000, 2500, 2600], 1500.0
    seen = drawn(scores, 2, draws, scale=scale, concentrated=concentrated)
    exact = probabilities([s / scale for s in scores], 2, concentrated=concentrated)
    assert math.isclose(sum(exact.values()), 1, rel_tol=1e-9)
    p: float = chisquare([seen[k] for k in exact], [draws * p for p in exact.values()]).pvalue
    return p


@pytest.mark.parametrize("concentrated", [False, True])
def test_choices_are_as_probable_as_they_should_be(concentrated: bool) -> None:
    assert unlikely(concentrated, 2000) > 1e-6


@pytest.mark.noise
@pytest.mark.parametrize("concentrated", [False, True])
def test_choices_are_as_probable_as_they_should_be_in_many_draws(concentrated: bool) -> None:
    assert unlikely(concentrated, 40_000) > 1e-6


def neighbours(count: int, scale: float) -> list[tuple[NDArray[np.float64], ...]]:
    """Pairs of scores that neighbours may have, in units of the noise's scale."""
    rng = np.random.default_rng(1)
    pairs = []
    for size in (count + 1, count + 2, 5):
        for spread in (0.5, 2.0, 8.0):
            one = rng.uniform(0, spread, size)
            for signs in itertools.product((-1, 1), repeat=size):
                pairs.append((one, one + np.array(signs) * SENSITIVITY / scale))
    return pairs


@pytest.mark.parametrize("count", [1, 2])
def test_pure_dp_holds_for_the_exact_probabilities_and_is_nearly_attained(count: int) -> None:
    epsilon = 1.0
    scale = max_scale(count, SENSITIVITY, Fraction(1), concentrated=False)
    far = np.array([0.0] * count + [4 * SENSITIVITY / scale] * 2)
    shift = np.array([1.0] * count + [-1.0] * 2) * SENSITIVITY / scale
    worst = 0.0
    for one, other in [*neighbours(count, scale)[::7], (far, far + shift)]:
        p, q = (probabilities(s.tolist(), count, concentrated=False) for s in (one, other))
        worst = max(worst, *(abs(math.log(p[k] / q[k])) for k in p))
    assert 0.8 * epsilon < worst <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_zcdp_holds_for_the_exact_probabilities(count: int) -> None:
    rho = 0.1
    scale = max_scale(count, SENSITIVITY, Fraction(1, 10), concentrated=True)
    worst = 0.0
    for one, other in neighbours(count, scale):
        p, q = (probabilities(s.tolist(), count, concentrated=True) for s in (one, other))
        for order in (1.0001, 2, 5, 20):
            moments = (p[k] ** order * q[k] ** (1 - order) for k in p)
            worst = max(worst, math.log(math.fsum(moments)) / (order - 1) / order)
    assert 0.5 * rho < worst <= rho * (1 + 1e-6)


def test_the_scale_is_the_least_that_the_map_allows() -> None:
    assert max_scale(3, 1024, Fraction(1, 2), concentrated=False) == pytest.approx(
        3 * 2 * 1024 / 0.5, rel=1e-12
    )
    assert max_scale(3, 1024, Fraction(1, 2), concentrated=True) == pytest.approx(
        1024 * math.sqrt(3 / (2 * 0.5)), rel=1e-12
    )


def test_noise_too_large_to_draw_is_refused() -> None:
    with pytest.raises(PrivacyError, match="noise of the choice would be too large"):
        max_scale(5, 1024, Fraction(1, 10**20), concentrated=False)


def test_scores_of_62_bits_do_not_overflow() -> None:
    scores = [-(2**62), 2**62 - 2**40, 2**62]
    assert noisy_max(scores, scale=1000.0, concentrated=False) == 2
    assert noisy_max(scores, scale=1000.0, concentrated=True) == 2
