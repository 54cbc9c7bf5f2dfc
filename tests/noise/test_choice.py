"""An audit of the choice: what it gives away lies near its claim, and never above.

Two neighbouring tables, one row apart, that the scores tell apart as far as they may: one
candidate's score rises by its sensitivity and the other's falls. Through ``measure``'s own path
(sums, scores, noise) the choice is drawn many times on each. The lower bound on epsilon is that of
how often the first is chosen, by Clopper-Pearson.

**False alarms.** Each of the two bounds fails with probability 1e-6. The floors are below the least
of 2,000 audits that were simulated from the closed-form probabilities of the choice: 0.52 at 4,000
draws (1.06 with the scale halved), 0.87 at 60,000 (1.02 with 85 % of the scale).
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta

import retilt as rt
from retilt.pipeline import draw_highest, fit_for, sums_of
from retilt.privacy.selection import GRANULARITY, Choice

FAILURE = 1e-6
SHARE = 0.5
CUT = 0.85


def candidates() -> rt.Workload:
    return rt.share("x = 1") + rt.share("y = 1")


def neighbours(delta: float) -> tuple[rt.Plan, list[int], list[int]]:
    """A plan, and the scores of two neighbours: of rows for x alone, for y alone."""
    schema = {name: rt.Numeric(0, 1, integer=True) for name in "xy"}
    synthetic = pa.table({"x": [0] * 10, "y": [0] * 10})
    plan = rt.plan(
        synthetic,
        candidates(),
        epsilon=2.0,
        delta=delta,
        rows=20,
        schema=schema,
        select=1,
        select_share=SHARE,
    )
    y = [1] * 3 + [0] * 17  # three rows say y, none x; in the neighbour one says x instead
    one = pa.table({"x": [0] * 20, "y": y})
    other = pa.table({"x": [1] + [0] * 19, "y": [0, *y[1:]]})
    scores = [plan.scores(sums_of(fit_for(t, plan), plan)) for t in (one, other)]
    return plan, scores[0], scores[1]


def how_often(scores: list[int], choice: Choice, draws: int) -> int:
    return sum(draw_highest(scores, choice) == 0 for _ in range(draws))


def proven(seen: int, unseen: int, draws: int) -> float:
    """Lower bound on epsilon from how often the same happened on either table."""
    least = beta.ppf(FAILURE, seen, draws - seen + 1) if seen else 0.0
    most = beta.ppf(1 - FAILURE, unseen + 1, draws - unseen)
    return max(0.0, math.log(least / most)) if least > 0 else 0.0


def audit(choice: Choice, one: list[int], other: list[int], draws: int) -> float:
    first, second = (how_often(s, choice, draws) for s in (one, other))
    return max(proven(second, first, draws), proven(draws - first, draws - second, draws))


def cut(choice: Choice, part: float) -> Choice:
    return Choice(choice.count, choice.scale * part, choice.concentrated, choice.rho)


def test_neighbours_scores_differ_by_the_sensitivity_both_ways() -> None:
    _, one, other = neighbours(0)
    assert [b - a for a, b in zip(one, other, strict=True)] == [GRANULARITY, -GRANULARITY]


@pytest.mark.noise
def test_the_choice_gives_away_nearly_what_it_claims_and_not_more() -> None:
    plan, one, other = neighbours(0)
    assert plan.choice is not None
    assert plan.selection is not None
    assert plan.selection.budget == rt.PureDP(1)
    found = audit(plan.choice, one, other, 60_000)
    assert 0.84 < found <= 1.0
    assert audit(cut(plan.choice, CUT), one, other, 60_000) > 1.0


def test_the_audit_in_short_holds() -> None:
    plan, one, other = neighbours(1e-6)
    assert plan.choice is not None
    found = audit(plan.choice, one, other, 4_000)
    assert 0.45 < found <= 1.0
    assert audit(cut(plan.choice, 0.5), one, other, 4_000) > 1.0


@pytest.mark.noise
def test_measure_chooses_as_often_as_the_scores_say() -> None:
    """By ``measure`` itself, against draws of the same scores."""
    plan, one, _ = neighbours(0)
    table = pa.table({"x": [0] * 20, "y": [1] * 3 + [0] * 17})
    draws = 600
    assert plan.choice is not None
    expected = how_often(one, plan.choice, 5_000) / 5_000
    seen = 0
    for _ in range(draws):
        (measure,) = rt.measure(table, plan).plan.measures
        seen += measure.columns == ("x",)
    deviation = np.sqrt(expected * (1 - expected) / draws)
    assert abs(seen / draws - expected) < 5 * deviation
