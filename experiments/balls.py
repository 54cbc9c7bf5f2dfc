"""Evidence for decision 0018: what balls would do for measures that share queries with others.

    python -m experiments.balls

The columns most correlated with the target; expected errors (epsilon 1) where such a measure may
have a ball of its own, over those in the box. No private table is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np

import retilt as rt
from experiments.published import DATA
from experiments.uci import TARGETS, load_synthetic
from retilt.clipping import Clipping
from retilt.schema.formats import load_declared

FILES = (
    "adult/synthetic/mst-eps1-seed0",
    "mushroom/synthetic/aim-eps1-seed0",
    "mushroom/synthetic/mst-eps1-seed0",
    "shopping/synthetic/mst-eps1-seed0",
)


def workloads(columns: list[str]) -> dict[str, rt.Workload]:
    """Pairs of measures that share queries."""
    first = rt.correlation(columns[:5])
    return {
        "correlation of 5, mean of one of them": first + rt.means([columns[0]]),
        "correlation of 5, their means": first + rt.means(columns[:5]),
        "correlation of 5, of 4 with 2 of them": first + rt.correlation(columns[3:7]),
        "correlation of 8, of 3 of them": rt.correlation(columns[:8]) + rt.correlation(columns[:3]),
        "correlation of 5, one of them on 3 others": first
        + rt.regression(columns[0], columns[5:8]),
    }


def expected(synthetic: object, asked: rt.Workload, schema: object) -> tuple[dict[str, float], int]:
    """Standard errors by statistic, and how many measures have a ball."""
    rows = len(synthetic)  # type: ignore[arg-type]
    plan = rt.plan(synthetic, asked, epsilon=1.0, rows=rows, schema=schema)
    errors = dict(zip(plan.queries.statistics, map(float, plan.expected or ()), strict=True))
    return errors, sum("ball" in m.to_dict() for m in plan.measures)


def compare(file: str, data: Path) -> Iterator[str]:
    """Lines of the table for one file."""
    name = file.split("/")[0]
    synthetic = load_synthetic(data / f"{file}.csv.gz")
    schema = load_declared(data / name / "schema.toml")
    columns = rt.top_correlated(synthetic, TARGETS[name], top=8, schema=schema)
    for what, asked in workloads(columns).items():
        boxed, _ = expected(synthetic, asked, schema)
        with patch.object(Clipping, "_shared", lambda *_: False):
            free, balls = expected(synthetic, asked, schema)
        # A share of a two-valued column is no statistic of a ball.
        ratios = np.array([free[s] / boxed[s] for s in boxed if s in free])
        if balls:
            root = np.sqrt(np.mean(ratios**2))
            yield f"| {file.replace('/synthetic', '')} | {what} | {root:.2f} | {ratios.max():.2f} |"


def main() -> None:
    """Print the cases in which a ball would be taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    print("| file | measures | errors, root mean square | largest |\n| --- | --- | --- | --- |")
    for file in FILES:
        for line in compare(file, options.data):
            print(line, flush=True)


if __name__ == "__main__":
    main()
