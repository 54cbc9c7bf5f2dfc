"""Error bars against 2,000 draws of the noise, for every kind of statistic, through plans.

A statistic that is not flagged must be spread as its error bar says, within a tenth; whatever
divides by a count, a variance or a density of less than ten times its own noise must be
flagged. What is divided by, and its noise, are worked out here by simulation, not by the
library's delta method.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import retilt as rt
from retilt.measures import distributions, grouped, rates, second_moments
from retilt.measures.base import Block
from retilt.measures.distributions import QuantileBlock
from retilt.measures.grouped import GroupedBlock
from retilt.measures.moments import MomentsBlock
from retilt.measures.rates import RateBlock
from retilt.pipeline import exact_sums
from retilt.privacy.answers import Answers, make_answers
from retilt.privacy.plan import Plan

Floats = NDArray[np.float64]

ROWS = 20_000
DRAWS = 2_000
REPORTED = 40
"""Draws whose whole table of estimates, error bars and flags is made."""

TOLERANCE = 0.1
STEP = 0.05
"""Of a whole number: by less than that the spread of a quantile that hardly ever moves may be off.

It moves with the chance of a far tail, of which 2,000 draws hold a handful.
"""

CUT = 0.02
"""Share of the draws that are cut off at the end of a range from which the spread is smaller."""

# --- the table and what is asked of it ----------------------------------------------------

BOUNDS: dict[str, Any] = {
    "age": rt.Numeric(17, 90, integer=True),
    "hours": rt.Numeric(0, 99, integer=True),
    "pay": rt.Numeric(0.0, 1000.0, nullable=True),
    "sex": rt.Categorical(("F", "M")),
    "race": rt.Categorical(("a", "b", "c", "d")),
}
HALF = {"age": 36.5, "hours": 49.5, "pay": 500.0, "sex": 0.5}
"""Half the range of a column."""


def people(rows: int, seed: int) -> pa.Table:
    """Persons of two rows each."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=rows)
    age = np.clip(np.rint(44 + 9 * (common + rng.normal(size=rows))), 17, 90).astype(int)
    hours = np.clip(np.rint(40 + 12 * rng.normal(size=rows) + 4 * common), 0, 99).astype(int)
    pay = np.clip(np.exp(5.2 + 0.35 * common + 0.4 * rng.normal(size=rows)), 0, 1000)
    return pa.table(
        {
            "age": age,
            "hours": hours,
            "pay": pa.array(pay, mask=rng.random(rows) < 0.03),
            "sex": np.where(rng.random(rows) < 0.4, "F", "M"),
            "race": rng.choice(list("abcd"), rows, p=[0.7, 0.2, 0.085, 0.015]),
            "person": rng.permutation(np.arange(rows) // 2),
        }
    )


TABLE = people(ROWS, seed=1)
SYNTHETIC = people(5_000, seed=2)


def halves(batch: pa.RecordBatch) -> Floats:
    hours = batch["hours"].to_numpy()
    return np.stack([np.sqrt(hours), hours > 40], axis=1)


WORKLOAD = (
    rt.moments(["age", "pay", "hours", "sex"])
    + rt.regression("pay", ["age", "hours"])
    + rt.means("pay", by="race")
    + rt.means("hours", where="age >= 65")
    + rt.moments(["age", "pay"], by="sex")
    + rt.regression("pay", ["age"], by="sex")
    + rt.correlation(["age", "hours"], where="sex = 'F'")
    + rt.moments(["age", "hours"], where="sex = 'F'")
    + rt.marginal(["sex", "race"])
    + rt.share("age >= 65 AND sex = 'F'")
    + rt.share("age >= 50", by="race")
    + rt.share("age >= 75", by="race")
    + rt.query("age * hours / 10", 0, 600)
    + rt.cdf("age", [20, 35, 50, 65])
    + rt.quantiles("age", [0.1, 0.5, 0.9], bins=40)
    + rt.quantiles("pay", [0.1, 0.5, 0.9], bins=20)
    + rt.function(halves, ["hours"], upper=10, size=2, name="halves")
)

KINDS = {
    r"mean\(halves": "function",
    r"mean\(age \* hours": "query",
    r"mean\(\w+\)": "mean",
    r"mean\(\w+ \| race=": "mean by",
    r"mean\(\w+ \| sex=": "mean by",
    r"mean\(\w+ \| ": "mean where",
    r"sd\(\w+\)": "sd",
    r"sd\(\w+ \| sex=": "sd by",
    r"sd\(\w+ \| ": "sd where",
    r"corr\(\w+, \w+\)": "corr",
    r"corr\(\w+, \w+ \| sex=": "corr by",
    r"corr\(\w+, \w+ \| ": "corr where",
    r"coef\(1; [^|]*\)$": "intercept",
    r"coef\(1; ": "intercept by",
    r"coef\([^|]*\)$": "coef",
    r"coef\(": "coef by",
    r"cell\(": "cell",
    r"share\([^|]*\)$": "share",
    r"share\(": "rate",
    r"cdf\(": "cdf",
    r"quantile\(age": "quantile, whole numbers",
    r"quantile\(pay": "quantile",
}
WHOLE = "quantile, whole numbers"
LINEAR = {"mean", "cell", "share", "query", "function", "cdf"}
"""Kinds that divide by nothing but the row count."""


def kind_of(statistic: str) -> str:
    return next(kind for pattern, kind in KINDS.items() if re.match(pattern, statistic))


# --- plans, noise, draws ------------------------------------------------------------------

UNITS: dict[str, Any] = {
    "replace-one": rt.ReplaceOneRow(),
    "add-remove": rt.AddRemoveOneRow(),
    "replace-one-person": rt.ReplaceOnePerson("person", 2),
    "add-remove-person": rt.AddRemoveOnePerson("person", 2),
}
MECHANISMS = {"gaussian": 1e-6, "laplace": 0.0}
BUDGETS = {"gaussian": (0.12, 3.0), "laplace": (0.3, 15.0)}
"""Epsilon for units of one row: from almost everything drowned to almost nothing."""


@cache
def first_plan(unit: str, mechanism: str) -> Plan:
    return rt.plan(
        SYNTHETIC,
        WORKLOAD,
        epsilon=1.0,
        delta=MECHANISMS[mechanism],
        rows=ROWS,
        unit=UNITS[unit],
        schema=BOUNDS,
    )


def make_plan(unit: str, mechanism: str, epsilon: float) -> Plan:
    """Of the same measures at the same loudness, so that only the noise differs."""
    delta = MECHANISMS[mechanism]
    budget = rt.ApproxDP(epsilon, delta) if delta else rt.PureDP(epsilon)
    return replace(first_plan(unit, mechanism), budget=budget)


def draw(plan: Plan, count: int, seed: int) -> list[list[int]]:
    """(count, K [+ 1]) rounded noise of the plan's own scales."""
    rng = np.random.default_rng(seed)
    scales = np.array(plan.noise.scales)
    size = (count, len(scales))
    drawn = rng.normal(size=size) if plan.noise.norm == 2 else rng.laplace(size=size)
    return np.rint(drawn * scales).astype(np.int64).tolist()


def means_of(answers: Answers, values: Sequence[Sequence[float]]) -> Floats:
    """(draws, K) answers at (draws, K [+ 1]) released numbers."""
    scaled = np.array(values, dtype=np.float64) / np.array(answers.steps, dtype=np.float64)
    if not answers.plan.counts_rows:
        return scaled / answers.plan.rows
    return scaled[:, :-1] / np.maximum(scaled[:, -1:], 1)


@dataclass(frozen=True)
class Run:
    """One plan's statistics, predicted and found.

    Attributes
    ----------
    exact
        Answers without noise.
    names
        (S,) statistics.
    flagged
        (S,) share of the reported draws that are flagged.
    predicted
        (S,) median error bar of the reported draws that have one. Of quantiles of whole
        numbers, whose error bar jumps with the estimate, the one at the exact answers.
    found
        (draws, S) estimates.
    """

    exact: Answers
    names: tuple[str, ...]
    flagged: Floats
    predicted: Floats
    found: Floats

    @property
    def realised(self) -> Floats:
        """(S,) deviations of the estimates; NaN where one is undefined."""
        return self.found.std(axis=0)

    def cut(self, s: int) -> float:
        """The share of the draws in which a statistic was pushed back into its range."""
        name, values = self.names[s], self.found[:, s]
        if not name.startswith(("share", "cdf", "corr")):
            return 0.0
        ends = (values == 1) | (values == (-1 if name.startswith("corr") else 0))
        if name.startswith("cdf"):  # made ascending: pooled with a neighbour
            others = [i for i, n in enumerate(self.names) if n.startswith("cdf") and i != s]
            ends |= (self.found[:, others] == values[:, None]).any(axis=1)
        return float(ends.mean())


def run(plan: Plan, table: pa.Table, seed: int, draws: int = DRAWS) -> Run:
    sums = exact_sums(table, plan)
    exact = make_answers(plan, sums, private=False)
    values = [[s + z for s, z in zip(sums, row, strict=True)] for row in draw(plan, draws, seed)]
    tables = []
    means = means_of(exact, values)
    for number, row in enumerate(values[:REPORTED]):
        noisy = replace(exact, values=tuple(row))
        np.testing.assert_allclose(noisy.means, means[number], rtol=1e-12)
        tables.append(noisy.statistics_table())
    errors = np.array([[r["standard_error"] for r in t] for t in tables])
    some = ~np.isnan(errors).all(axis=0)
    predicted = np.full(len(some), np.nan)
    predicted[some] = np.nanmedian(errors[:, some], axis=0)
    names = plan.queries.statistics
    whole = np.array([kind_of(n) == WHOLE for n in names])
    predicted[whole] = exact.errors_at(exact.means)[whole]
    return Run(
        exact=exact,
        names=names,
        flagged=np.array([[bool(r["flag"]) for r in t] for t in tables]).mean(axis=0),
        predicted=predicted,
        found=np.array([exact.consistent.evaluate(m) for m in means]),
    )


# --- what statistics divide by, and how noisy that is ---------------------------------------


def group_shares(counts: Floats, *, known_total: bool) -> Floats:
    """(draws, G) shares of cells from their (draws, G) noisy counts."""
    if not known_total:
        return counts
    return counts - (counts.sum(axis=1, keepdims=True) - 1) / counts.shape[1]


def shares_divided_by(block: Block, own: Floats, exact: dict[str, float]) -> list[Floats]:
    """(draws,) the share that each statistic divides by: a group's, or a quantile's bin's."""
    if isinstance(block, GroupedBlock):
        known = block.partition is not None and block.partition.known_total
        shares = group_shares(own[:, : block.cells], known_total=known)[:, block.groups]
        return [*shares.repeat(len(block.statistics) // len(block.groups), axis=1).T]
    if isinstance(block, RateBlock):
        cells = group_shares(own, known_total=block.known_total)
        return [*cells.reshape(len(own), -1, 2).sum(axis=2)[:, block.named].T]
    assert isinstance(block, QuantileBlock)
    cells = np.array([block.shares(answers) for answers in own])
    edges = np.array(block.edges[0])
    return [cells[:, np.searchsorted(edges, exact[s], side="right")] for s in block.statistics]


def variances_divided_by(statistic: str, values: dict[str, Floats]) -> list[Floats]:
    """(draws,) variances, from the deviations that the same workload reports."""
    kind, inside = statistic.split("(", 1)
    of, bar, group = inside[:-1].partition(" | ")
    names = of.split("; ")[-1].split(" ~ ")[-1].split(" + ") if kind == "coef" else of.split(", ")
    if kind not in ("sd", "corr", "coef"):
        return []
    deviations = [values[f"sd({n}{bar}{group})"] / HALF[n] for n in names]
    if kind != "coef" or len(names) == 1:
        return [d**2 for d in deviations]
    one, two = deviations
    pair = ", ".join(sorted(names))
    product = values[f"corr({pair}{bar}{group})"] * one * two
    matrices = np.array([[one**2, product], [product, two**2]]).transpose(2, 0, 1)
    return [np.linalg.eigvalsh(matrices)[:, 0]]


def strengths(answers: Answers, seed: int) -> dict[str, list[float]]:
    """For each statistic what it divides by, in standard deviations of its noise.

    The noise is drawn a thousand times too small, so that it moves everything in proportion.
    """
    plan, small = answers.plan, 1_000
    queries = plan.queries
    noise = np.array(draw(plan, 400, seed)) / small
    values = np.vstack([np.zeros(noise.shape[1]), noise]) + np.array(answers.values, float)
    means = means_of(answers, values)
    table = np.array([queries.evaluate(m) for m in means])
    by_name = dict(zip(queries.statistics, table.T, strict=True))
    exact = {name: float(column[0]) for name, column in by_name.items()}
    found: dict[str, list[float]] = {}
    for block, where in zip(queries.blocks, queries.positions, strict=True):
        divisors = [variances_divided_by(s, by_name) for s in block.statistics]
        if isinstance(block, (GroupedBlock, RateBlock, QuantileBlock)):
            shares = shares_divided_by(block, means[:, where], exact)
            divisors = [[s, *d] for s, d in zip(shares, divisors, strict=True)]
        for name, numbers in zip(block.statistics, divisors, strict=True):
            found[name] = [float(x[0] / x[1:].std() / small) for x in numbers]
    return found


# --- the checks ---------------------------------------------------------------------------


def table_of(result: Run) -> str:
    lines = [f"{'kind':24}{'statistic':48}{'predicted':>12}{'realised':>12}{'ratio':>8}  flagged"]
    realised = result.realised
    with np.errstate(invalid="ignore"):  # undefined in some draw
        ratios = realised / result.predicted
    for s, name in enumerate(result.names):
        lines.append(
            f"{kind_of(name):24}{name[:46]:48}{result.predicted[s]:12.4g}{realised[s]:12.4g}"
            f"{ratios[s]:8.3f}  {result.flagged[s]:.0%}" + (" cut" if result.cut(s) > CUT else "")
        )
    return "\n".join(lines)


def check_spread(result: Run) -> tuple[set[str], set[str]]:
    """Hold error bars to the spread; return the kinds that were held, and that were flagged."""
    held, drowned, wrong = set(), set(), []
    realised = result.realised
    for s, name in enumerate(result.names):
        if result.flagged[s] > 0.5:
            drowned.add(kind_of(name))
            continue
        found, expected = realised[s], result.predicted[s]
        slack = TOLERANCE * expected + (STEP if kind_of(name) == WHOLE else 0)
        narrow = result.cut(s) > CUT  # cut off at the end of its range, it may be spread less
        if not (found - expected <= slack and (narrow or expected - found <= slack)):
            wrong.append(f"{name}: predicted {expected:.4g}, realised {found:.4g}")
        elif not narrow:
            held.add(kind_of(name))
    assert not wrong, "\n".join(wrong)
    return held, drowned


def check_flags(exact: Answers, known: dict[str, list[float]]) -> None:
    """Flagged is what divides by less than ten times the noise, and nothing else."""
    flags = dict(zip(exact.queries.statistics, exact.dominated.tolist(), strict=True))
    wrong = []
    for name, numbers in known.items():
        enough = 20 if kind_of(name).startswith(("coef", "intercept")) else 10
        if any(x < 9.3 for x in numbers) and not flags[name]:
            wrong.append(f"{name} is not flagged: it divides by {numbers} times the noise")
        if all(x > enough * 1.07 for x in numbers) and flags[name]:
            wrong.append(f"{name} is flagged: it divides by {numbers} times the noise")
    assert not wrong, "\n".join(wrong)
    assert all(bool(known[n]) == (kind_of(n) not in LINEAR) for n in flags)


@pytest.mark.noise
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("unit", UNITS)
def test_error_bars_are_the_spread_of_2000_draws(unit: str, mechanism: str) -> None:
    held, drowned = set(), set()
    many = UNITS[unit].max_rows  # the noise for persons is as many times larger
    for number, epsilon in enumerate(BUDGETS[mechanism]):
        number += 2 * [*itertools.product(UNITS, MECHANISMS)].index((unit, mechanism))
        result = run(make_plan(unit, mechanism, epsilon * many), TABLE, seed=number)
        print(f"\n{unit}, {mechanism}, epsilon {epsilon * many:g}\n{table_of(result)}")
        spread = check_spread(result)
        held |= spread[0]
        drowned |= spread[1]
        check_flags(result.exact, strengths(result.exact, seed=100 + number))
    every = set(KINDS.values())
    assert held == every
    assert drowned == every - LINEAR


# --- the row count --------------------------------------------------------------------------

FEW = people(1_000, seed=3)
COUNTED = (
    rt.moments(["age", "hours"])
    + rt.marginal(["sex"])
    + rt.cdf("age", [40])
    + rt.share("age >= 50")
    + rt.share("age >= 50", by="sex")
)


def counted_plan(budget: Any, times: float) -> Plan:
    """A plan whose row count is ``times`` its noise."""
    asked = {"rho": budget.rho} if isinstance(budget, rt.ZCDP) else {"epsilon": budget.epsilon}
    delta = {} if isinstance(budget, rt.ZCDP) else {"delta": 0.0}
    plan = rt.plan(FEW, COUNTED, **asked, **delta, unit="add-remove", schema=BOUNDS)
    noise = plan.noise
    more = times * noise.deviation_per_scale * noise.scales[-1] / noise.steps[-1] / FEW.num_rows
    louder = rt.PureDP(more) if "epsilon" in asked else rt.ZCDP(more**2)
    return replace(plan, budget=louder)


@pytest.mark.parametrize("budget", [rt.ZCDP(1.0), rt.PureDP(1.0)])
def test_a_row_count_that_drowns_takes_all_along(budget: Any) -> None:
    for times, drowned in ((10.5, False), (9.5, True), (0.1, True)):
        plan = counted_plan(budget, times)
        exact = make_answers(plan, exact_sums(FEW, plan), private=False)
        flags = {row["statistic"]: bool(row["flag"]) for row in exact.statistics_table()}
        assert {flag for name, flag in flags.items() if kind_of(name) in LINEAR} == {drowned}
        assert all(flags.values()) is drowned


@pytest.mark.noise
@pytest.mark.parametrize("budget", [rt.ZCDP(1.0), rt.PureDP(1.0)])
def test_error_bars_where_the_row_count_is_just_loud_enough(budget: Any) -> None:
    plan = counted_plan(budget, 12.0)
    result = run(plan, FEW, seed=5)
    print(f"\n{table_of(result)}")
    held, _ = check_spread(result)
    assert held >= {"mean", "cell", "share"}


# --- a column of two equally frequent values ------------------------------------------------


@pytest.mark.noise
@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", MECHANISMS.values())
def test_a_deviation_that_the_mean_moves_to_second_order_only(unit: str, delta: float) -> None:
    """The square of Laplace noise is spread more than that of Gaussian noise, by sqrt(5 / 2)."""
    table = pa.table({"sex": ["F", "M"] * 1_000})
    asked = rt.moments(["sex"])
    plan = rt.plan(table, asked, epsilon=0.5, delta=delta, rows=2_000, unit=unit, schema=BOUNDS)
    sums = exact_sums(table, plan)
    exact = make_answers(plan, sums, private=False)
    means = means_of(exact, np.array(sums, float) + np.array(draw(plan, 100_000, seed=3)))
    (block,) = plan.queries.blocks
    assert isinstance(block, MomentsBlock)
    found = block.derived.evaluate(means).std(axis=0)
    np.testing.assert_allclose(found, exact.errors_at(exact.means), rtol=TOLERANCE)


# --- the checks themselves ------------------------------------------------------------------


@pytest.mark.noise
def test_the_checks_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(make_plan("replace-one", "gaussian", 0.12), TABLE, seed=50)
    known = strengths(result.exact, seed=51)
    check_spread(result)
    check_flags(result.exact, known)
    for factor in (0.85, 1.2):
        with pytest.raises(AssertionError, match="predicted"):
            check_spread(replace(result, predicted=factor * result.predicted))
    with pytest.raises(AssertionError, match="predicted"):
        check_spread(replace(result, flagged=0 * result.flagged))
    for module in (second_moments, grouped, rates, distributions):
        for trusted, noticed in ((0.0, "is not flagged"), (1000.0, "is flagged")):
            if module is distributions and trusted:
                continue  # all quantiles are flagged at this budget
            with monkeypatch.context() as patch:
                patch.setattr(module, "TRUSTED", trusted)
                with pytest.raises(AssertionError, match=noticed):
                    check_flags(replace(result.exact), known)
