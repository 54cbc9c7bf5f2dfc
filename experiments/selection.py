"""Does choosing what to measure help? All two-way tables of ten Adult columns.

    python -m experiments.selection --files mst-eps1-seed0 --epsilons 0.1 1 --select 3 10 --runs 3

Every table of two of ten columns is a candidate (45 tables; numeric columns in 8 bins), of the
39,073 rows of Adult's train split, delta 1/n**2, public bounds. Measured are all of them; the m
that ``select=m`` chooses; or m at random, with all of the budget. The error is the mean absolute
error of *all* cells of all candidates (measured or not), of the synthetic table with the fit's
weights against the private table, in units of 1e-6, mean of several runs. With ``--shares`` the
part of the budget that choosing gets is varied.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import retilt as rt
from experiments.measurement import TEN
from experiments.published import DATA
from experiments.uci import load_real, load_synthetic
from retilt.engines.local import open_table
from retilt.schema.formats import load_declared
from retilt.tables import encode
from retilt.tilting.designs import design_means

BINS = 8


@dataclass(frozen=True)
class Case:
    """A synthetic file against the private table."""

    data: Path
    file: str
    ways: int = 2

    @cached_property
    def private(self) -> pd.DataFrame:
        """The train split."""
        return load_real("adult", self.data)[TEN]

    @cached_property
    def synthetic(self) -> pd.DataFrame:
        """The generator's rows."""
        return load_synthetic(self.data / "adult" / "synthetic" / f"{self.file}.csv.gz")[TEN]

    def plan(self, epsilon: float, workload: rt.Workload | None = None, **more: object) -> rt.Plan:
        """Of all tables unless told."""
        return rt.plan(
            self.synthetic,
            rt.marginals(TEN, k=self.ways, bins=BINS) if workload is None else workload,
            epsilon=epsilon,
            rows=len(self.private),
            schema=load_declared(self.data / "adult" / "schema.toml"),
            **more,  # type: ignore[arg-type]
        )

    @cached_property
    def whole(self) -> rt.Plan:
        """What the error is of: all tables, though they may be too many to be fitted together."""
        return self.plan(1.0, select=1)

    def means(self, table: pd.DataFrame, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(K,) shares of all cells."""
        queries = self.whole.queries
        encoded = encode(open_table(table), queries.features)
        share = weights / weights.sum()
        return np.concatenate([design_means(d, share) for d in queries.designs(encoded)])

    @cached_property
    def truth(self) -> NDArray[np.float64]:
        """(K,) shares of the private table."""
        return self.means(self.private, np.ones(len(self.private)))

    def error(self, weights: NDArray[np.float64] | None = None) -> float:
        """Mean absolute error of all cells, of the synthetic rows with these weights."""
        if weights is None:
            weights = np.ones(len(self.synthetic))
        return float(np.abs(self.means(self.synthetic, weights) - self.truth).mean() * 1e6)

    def fitted(self, plan: rt.Plan) -> float:
        """The error after measuring a plan and fitting its answers."""
        answers = rt.measure(self.private, plan)
        return self.error(np.asarray(rt.fit(self.synthetic, answers).weights))

    def at_random(self, epsilon: float, choose: int, rng: np.random.Generator) -> rt.Plan:
        """All of the budget for ``choose`` tables at random."""
        measures = self.whole.measures
        places = sorted(rng.choice(len(measures), choose, replace=False).tolist())
        return self.plan(epsilon, rt.Workload(tuple(measures[i] for i in places)))


def rows(
    case: Case, epsilons: Sequence[float], select: Sequence[int], shares: Sequence[float], runs: int
) -> Iterator[str]:
    """Lines of a table."""
    rng = np.random.default_rng(0)
    heads = [f"select {m}" + (f", share {s:g}" if s else "") for m in select for s in shares]
    every = [] if case.ways > 2 else ["all"]  # of three columns they can't be fitted together
    heads = ["as it is", *every, *heads, *(f"random {m}" for m in select)]
    yield f"| file | ε | {' | '.join(heads)} |"
    yield f"| --- {'| --- ' * (len(heads) + 1)}|"
    for epsilon in epsilons:
        plans = [] if case.ways > 2 else [case.plan(epsilon)]
        plans += [
            case.plan(epsilon, select=m, select_share=s or None) for m in select for s in shares
        ]
        found = [case.error()]
        found += [float(np.mean([case.fitted(p) for _ in range(runs)])) for p in plans]
        for m in select:
            drawn = [case.at_random(epsilon, m, rng) for _ in range(runs)]
            found.append(float(np.mean([case.fitted(p) for p in drawn])))
        cells = " | ".join(f"{e:.0f}" for e in found)
        yield f"| {case.file} | {epsilon:g} | {cells} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="+", default=["mst-eps1-seed0", "aim-eps1-seed0"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.3, 1.0])
    parser.add_argument("--select", nargs="+", type=int, default=[3, 10])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0])
    parser.add_argument("--ways", type=int, default=2, choices=[1, 2, 3])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    for file in options.files:
        case = Case(options.data, file, options.ways)
        for line in rows(case, options.epsilons, options.select, options.shares, options.runs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
