"""What measure and fit cost, against what a plan tells beforehand.

    python -m benchmarks.costs --rows 30000 300000

CPU seconds and peak memory (beside what was held before) of both steps, for workloads of several
kinds and sizes on the made tables of :mod:`benchmarks.problems`, and the quotient of each with the
estimate of :mod:`retilt.costs`, whose constants were chosen by this table. It is honest to a factor
of about three.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import pyarrow as pa

import retilt as rt
from benchmarks.measuring import timed
from benchmarks.problems import COLUMNS, table
from retilt.costs import costs_of
from retilt.measures.workload import Workload

NAMES = [f"c{j}" for j in range(COLUMNS)]
CATEGORIES = [f"k{j}" for j in range(COLUMNS)]
SCHEMA = {name: {"kind": "numeric", "lower": 0, "upper": 1} for name in NAMES}
WORKLOADS: dict[str, Workload] = {
    "means": rt.means(NAMES[:3]),
    "correlation of 5": rt.correlation(NAMES[:5]),
    "correlation of 10": rt.correlation(NAMES),
    "means by group": rt.means(NAMES[:3], by=CATEGORIES[:2]),
    "correlation by group": rt.correlation(NAMES[:5], by=CATEGORIES[0]),
    "tables of 1": rt.marginals(CATEGORIES),
    "tables of 2": rt.marginals(CATEGORIES[:6], k=2),
    "tables of 2, bins": rt.marginals(NAMES[:5], k=2, bins=10),
    "cdf and share": rt.cdf("c0", [0.2, 0.5, 0.7]) + rt.share("c1 > 0.5", by="k1"),
}


def with_categories(numbers: pa.Table) -> pa.Table:
    """The table with a text column of eight categories for each number."""
    for number, name in zip(NAMES, CATEGORIES, strict=True):
        codes = np.minimum(np.asarray(numbers[number]) * 8, 7).astype(int)
        numbers = numbers.append_column(name, pa.array([f"v{c}" for c in codes]))
    return numbers


def main() -> None:
    """Print a line for each number of rows and workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[30_000, 300_000])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options = parser.parse_args()
    heads = ["rows", "asked", "queries", "measure s", "x", "MiB", "x", "fit s", "x", "MiB", "x"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for rows in options.rows:
        private = with_categories(table(rows, seed=1, mixing=1.2))
        synthetic = with_categories(table(rows, seed=2, mixing=0.5))
        for name in options.only:
            plan = rt.plan(synthetic, WORKLOADS[name], epsilon=1, rows=rows, schema=SCHEMA)
            said = costs_of(plan, synthetic_rows=rows)
            answers, *measured = timed(partial(rt.measure, private, plan))
            _, *fitted = timed(partial(rt.fit, synthetic, answers))
            cells = [f"{rows:,}", name, str(plan.queries.size)]
            for step, (seconds, peak) in ((said.measure, measured), (said.fit, fitted)):
                cells += [f"{seconds:.2f}", said_over(step.cpu_seconds, seconds)]
                cells += [f"{peak or 0:.0f}", said_over(step.peak_mib, peak)]
            print(f"| {' | '.join(cells)} |", flush=True)


def said_over(said: float, got: float | None) -> str:
    """How many times too large an estimate is."""
    return f"{said / got:.1f}" if got else ""


if __name__ == "__main__":
    main()
