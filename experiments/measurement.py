"""Noise of the same statistics, asked in our basis and in the paper's; and of tables of counts.

    python -m experiments.measurement moments --runs 20
    python -m experiments.measurement tables --runs 3
    python -m experiments.measurement cdf --runs 20
    python -m experiments.measurement together

``moments``: ten columns of Adult, 10,000 rows drawn from the train split, epsilon 1,
delta 1/n**2, bounds from ``schema.toml``: root mean square error of all covariances, variances
(columns in [0, 1]) and correlations of the rows as they are, by ``retilt.measure`` in the paper's
basis, in the box (``clip={}``) and in the ball that the plan chooses, and by how much the paper's
is larger. ``tables``: all two-way tables of 20 columns (the 15 of Adult, and five
of them shuffled under other names), 10,000 rows, epsilon 1: mean absolute error of a cell's share
by retilt, and by OpenDP's own Gaussian measurement of the same counts under the same unit and
budget. ``cdf``: a distribution at evenly spaced thresholds, 10,000 rows of uniform values,
epsilon 1: root mean square error of the shares below the thresholds, asked as the plan chooses,
over that of bins alone. ``together``: by how much the expected errors of five unlike measures grow
when they share one budget, (epsilon, delta) or pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import retilt as rt
from experiments.published import DATA
from experiments.uci import load_real, load_synthetic
from retilt.measures.distributions import CdfBlock
from retilt.measures.moments import MomentsBlock
from retilt.measures.second_moments import natural_bounds
from retilt.pipeline import exact_sums
from retilt.privacy.answers import make_answers
from retilt.schema.formats import Declared, load_declared

TEN = [
    "age",
    "workclass",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "hours-per-week",
    "income",
]
ROWS = 10_000


def sample(data: Path, seed: int = 0) -> pd.DataFrame:
    """So many rows of the train split."""
    return load_real("adult", data).sample(ROWS, random_state=seed).reset_index(drop=True)


# --- moments ------------------------------------------------------------------------------------


def second_moments(plan: rt.Plan, means: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Covariances, variances and correlations of columns in [0, 1] at (K,) answers."""
    (block,) = plan.queries.blocks
    assert isinstance(block, MomentsBlock)
    _, covariance = block.derived.central(means)
    _, span = block.derived.natural()
    ranges = np.diff([natural_bounds(c) for c in block.columns], axis=1)[:, 0]
    covariance *= np.outer(span / ranges, span / ranges)
    left, right = np.triu_indices(len(covariance), 1)
    return {
        "covariance": covariance[left, right],
        "variance": np.diag(covariance),
        "correlation": block.correlations(means)[left, right],
    }


def moments(data: Path, runs: int) -> Iterator[str]:
    """Lines of a table."""
    private = sample(data)
    whole = {"workload": rt.correlation(TEN, clip={})}
    asked: dict[str, dict[str, Any]] = {
        "paper's basis": {**whole, "basis": "paper"},
        "box": whole,
        "ball": {"workload": rt.correlation(TEN)},
    }
    errors: dict[str, dict[str, float]] = {}
    for name, options in asked.items():
        plan = rt.plan(
            private,  # as a stand-in for a perfect synthetic table: how to ask is all it decides
            epsilon=1.0,
            rows=ROWS,
            schema=load_declared(data / "adult" / "schema.toml"),
            **options,
        )
        if name == "paper's basis":
            exact = make_answers(plan, exact_sums(private, plan), private=False).means
            truth = second_moments(plan, exact)
        noisy = [second_moments(plan, rt.measure(private, plan).means) for _ in range(runs)]
        errors[name] = {
            kind: float(np.sqrt(np.nanmean([(n[kind] - truth[kind]) ** 2 for n in noisy])))
            for kind in truth
        }
    yield "| statistic | paper's basis | box | ratio | ball | ratio |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind, theirs in errors["paper's basis"].items():
        ours = (errors[name][kind] for name in ("box", "ball"))
        yield (
            f"| {kind} | {theirs:.5f} | "
            + " | ".join(f"{error:.5f} | {theirs / error:.2f}" for error in ours)
            + " |"
        )


# --- tables -------------------------------------------------------------------------------------


def wide(data: Path) -> pd.DataFrame:
    """Twenty columns: Adult's fifteen, and five of them again in another order of the rows."""
    table = sample(data)
    rng = np.random.default_rng(1)
    for name in ["workclass", "marital-status", "relationship", "race", "sex"]:
        table[f"other {name}"] = table[name].to_numpy()[rng.permutation(len(table))]
    return table


def opendp_noise(budget: rt.ApproxDP, tables: int, cells: int) -> NDArray[np.float64]:
    """(cells,) noise of OpenDP's Gaussian on all tables' counts as one vector.

    One row replaced moves two cells of each table by one: L2 sensitivity sqrt(2 tables).
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    distance = float(np.sqrt(2 * tables))

    def spent(scale: float) -> bool:
        made = dp.m.then_gaussian(scale)
        curve = dp.c.make_zCDP_to_approxDP(space >> made)
        return bool(curve.map(distance).epsilon(budget.delta) <= budget.epsilon)

    scale = dp.binary_search(spent, bounds=(1.0, 1e6), T=float)
    return np.array((space >> dp.m.then_gaussian(scale))([0] * cells), dtype=np.float64)


def tables(data: Path, runs: int) -> Iterator[str]:
    """Lines of a table."""
    private = wide(data)
    declared = dict(load_declared(data / "adult" / "schema.toml").entries)
    for name in [n for n in private.columns if n.startswith("other ")]:
        declared[name] = declared[name.removeprefix("other ")]
    plan = rt.plan(
        private,
        rt.marginals(list(private.columns), k=2, bins=8),
        epsilon=1.0,
        rows=ROWS,
        schema=Declared(declared),
    )
    exact = make_answers(plan, exact_sums(private, plan), private=False)
    truth = np.array([r["estimate"] for r in exact.statistics_table()])
    count = len(plan.measures)
    ours, alone, raw, theirs = [], [], [], []
    assert isinstance(plan.budget, rt.ApproxDP)
    for _ in range(runs):
        answers = rt.measure(private, plan)
        found = np.array([r["estimate"] for r in answers.statistics_table()])
        ours.append(np.mean(np.abs(found - truth)))
        alone.append(np.mean(np.abs(plan.queries.evaluate(answers.means) - truth)))
        raw.append(np.mean(np.abs(answers.means - exact.means)))
        noise = opendp_noise(plan.budget, count, plan.queries.size)
        theirs.append(np.mean(np.abs(noise)) / ROWS)
    yield f"{count} tables, {plan.queries.size:,} cells, mean absolute error of a share:"
    yield "| OpenDP | retilt, noisy cells | each table by itself | estimated together | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    means = " | ".join(f"{np.mean(errors):.6f}" for errors in (theirs, raw, alone, ours))
    yield f"| {means} | {np.mean(theirs) / np.mean(ours):.2f} |"


# --- distributions ------------------------------------------------------------------------------


def cdf(data: Path, runs: int) -> Iterator[str]:
    """Lines of a table; ``data`` is not read."""
    del data
    values = np.random.default_rng(0).integers(0, 1_000_000, ROWS)
    private = pd.DataFrame({"value": values})
    asked = [(delta, unit) for delta in (None, 0.0) for unit in ("replace-one", "add-remove")]

    def plan(count: int, branching: int | None, delta: float | None, unit: str) -> rt.Plan:
        thresholds = np.linspace(0, 1_000_000, count + 2)[1:-1].tolist()
        return rt.plan(
            private,  # as a stand-in for itself: it decides nothing here
            rt.cdf("value", thresholds, branching=branching),
            epsilon=1.0,
            delta=delta,
            rows=ROWS,
            unit=unit,
            schema={"value": rt.Numeric(0, 999_999, integer=True)},
        )

    def error(made: rt.Plan) -> float:
        truth = make_answers(made, exact_sums(private, made), private=False).estimates
        drawn = [rt.measure(private, made).estimates for _ in range(runs)]
        return float(np.sqrt(np.mean((np.array(drawn) - truth) ** 2)))

    heads = [f"{'L2' if delta is None else 'L1'}, {unit}" for delta, unit in asked]
    yield f"| thresholds | {' | '.join(heads)} |"
    yield "| --- |" + " --- |" * len(heads)
    for count in (10, 30, 100, 300, 1000):
        cells = []
        for delta, unit in asked:
            chosen = plan(count, None, delta, unit)
            (block,) = chosen.queries.blocks
            assert isinstance(block, CdfBlock)
            if block.branching:
                ratio = error(chosen) / error(plan(count, 0, delta, unit))
                cells.append(f"{ratio:.2f} ({block.branching})")
            else:
                cells.append("1 (bins alone)")
        yield f"| {count:,} | {' | '.join(cells)} |"


# --- several measures ---------------------------------------------------------------------------


def together(data: Path, runs: int) -> Iterator[str]:
    """Lines of a table; nothing is drawn, so ``runs`` does not matter."""
    del runs
    folder = data / "adult"
    synthetic = load_synthetic(folder / "synthetic" / "aim-eps1-seed0.csv.gz")
    parts = {
        "correlation of 5": rt.correlation(
            ["age", "education-num", "hours-per-week", "income", "sex"]
        ),
        "regression in 42 groups": rt.regression(
            "income", ["age", "education-num"], by="native-country"
        ),
        "means of 10 groups": rt.means("hours-per-week", by=["sex", "race"]),
        "table of 10,080 cells": rt.marginal(["education", "occupation", "native-country"]),
        "share": rt.share("age >= 65"),
    }

    def expected(workload: rt.Workload, delta: float | None) -> dict[str, float | None]:
        plan = rt.plan(
            synthetic,
            workload,
            epsilon=1.0,
            delta=delta,
            rows=39_073,
            schema=load_declared(folder / "schema.toml"),
        )
        return dict(zip(plan.queries.statistics, plan.expected, strict=True))

    yield "| measure | error together / alone | the same, pure DP |"
    yield "| --- | --- | --- |"
    budgets = (None, 0.0)
    whole = [expected(sum(parts.values(), rt.Workload()), delta) for delta in budgets]
    for name, part in parts.items():
        grown = []
        for delta, all_errors in zip(budgets, whole, strict=True):
            alone = expected(part, delta)
            grown.append(np.median([all_errors[s] / e for s, e in alone.items() if e]))  # type: ignore[operator]
        yield f"| {name} | {grown[0]:.2f} | {grown[1]:.2f} |"


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["moments", "tables", "cdf", "together"])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    lines = {"moments": moments, "tables": tables, "cdf": cdf, "together": together}[options.what]
    for line in lines(options.data, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
