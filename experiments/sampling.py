"""Sampled against weighted answers by method of sampling: decision 0015.

    python -m experiments.sampling --runs 20

Root mean square difference of a sample's answers (query means, and the shares of all values of
the columns that were not asked) from the weighted ones, in rows: a difference of 1 is that of one
row more or less. For 30,000 rows of Adult's synthetic files the weights are those of a fit at
epsilon 1, sharpened to an effective sample size of a half where the table says so. Noise and
draws are seeded (``retilt.testing``): the figures come out the same again, and are not private.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

import retilt as rt
from experiments.published import DATA
from experiments.uci import load_real, load_synthetic
from retilt.candidates import means_of
from retilt.engines.local import open_table
from retilt.measures.base import Design, FloatArray, Indicators
from retilt.resample import Method, likeness_order, sample_rows
from retilt.schema.formats import load_declared
from retilt.tables import encode
from retilt.testing import insecure_measure

ROWS = 30_000
CORRELATED = ["age", "education-num", "hours-per-week", "race", "income"]
TOP = ["income", "education-num", "relationship", "capital-gain", "sex"]
TABLES = ["age", "workclass", "education", "occupation", "race", "sex", "hours-per-week", "income"]
WORKLOADS = {
    "correlations": rt.correlation(CORRELATED),
    "of the target's": rt.correlation(TOP),
    "1-way tables": rt.marginals(TABLES),
    "2-way tables": rt.marginals(TABLES, k=2),
}


def sharpened(weights: FloatArray, share: float) -> FloatArray:
    """The power of the weights whose effective sample size is a share of the rows."""
    low, high = 0.0, 100.0
    logs = np.log(np.maximum(weights, 1e-9))
    for _ in range(60):
        middle = (low + high) / 2
        powers = np.exp(middle * (logs - logs.max()))
        enough = powers.sum() ** 2 > share * len(weights) * np.sum(powers**2)
        low, high = (middle, high) if enough else (low, middle)
    result: FloatArray = powers / powers.mean()
    return result


def shares(table: pd.DataFrame, asked: set[str]) -> tuple[Design, ...]:
    """The values of all columns but some, numbers in 20 bins."""
    found = []
    for name in table.columns:
        if name not in asked:
            values: Any = table[name]
            if values.dtype.kind in "if":
                values = pd.qcut(values, 20, duplicates="drop")
            codes = pd.factorize(values)[0].astype(np.int32)
            found.append(Indicators(codes, int(codes.max()) + 1))
    return tuple(found)


def compare(name: str, file: str, runs: int, data: Path) -> Iterator[str]:
    """A line for each size and kind of weights."""
    synthetic = load_synthetic(data / "adult/synthetic" / f"{file}.csv.gz").iloc[:ROWS]
    real, schema = load_real("adult", data), load_declared(data / "adult/schema.toml")
    plan = rt.plan(synthetic, WORKLOADS[name], epsilon=1, rows=len(real), schema=schema)
    answers = insecure_measure(real, plan, rng=np.random.default_rng(0))
    fitted = rt.fit(synthetic, answers).weights
    encoded = encode(open_table(synthetic), plan.queries.features)
    order, asked = likeness_order(list(encoded.values())), plan.queries.designs(encoded)
    others = shares(synthetic, {feature.name for feature in plan.queries.features})
    for rows, weights in (
        (ROWS, fitted),
        (ROWS // 3, fitted),
        (ROWS, sharpened(fitted, 0.5)),
    ):
        share = weights.sum() ** 2 / np.sum(weights**2) / ROWS
        cells = [name, file.split("-")[0], str(plan.queries.size), f"{rows:,}", f"{share:.0%}"]
        found = [_off(weights, rows, m, runs, order, asked, others) for m in _methods()]
        cells += [f"{off:.2f}" for off, _, _ in found]
        cells.append(f"{found[0][0] / found[1][0]:.1f}")
        cells += [f"{off:.1f}" for _, off, _ in found]
        cells += [f"{seconds:.3f}" for *_, seconds in found]
        yield f"| {' | '.join(cells)} |"


def _methods() -> tuple[Method, ...]:
    methods: tuple[Method, ...] = get_args(Method)
    return methods


def _off(
    weights: FloatArray,
    rows: int,
    method: Method,
    runs: int,
    order: Any,
    asked: tuple[Design, ...],
    others: tuple[Design, ...],
) -> tuple[float, float, float]:
    """Root mean square differences in rows, asked and not asked, and CPU seconds a sample."""
    both = (asked, others)
    weighted = [means_of(designs, weights / weights.sum()) for designs in both]
    squares, spent = np.zeros(2), 0.0
    for seed in range(runs):
        start = time.process_time()
        drawn = sample_rows(
            weights, rows, method=method, seed=seed, order=order, queries=asked, others=others
        )
        spent += time.process_time() - start
        times = np.bincount(drawn, minlength=len(weights))
        for k, designs in enumerate(both):
            squares[k] += np.mean((means_of(designs, times / rows) - weighted[k]) ** 2)
    first, last = (rows * np.sqrt(squares / runs)).tolist()
    return first, last, spent / runs


def main() -> None:
    """Print one line for each workload, file, size and kind of weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    methods = _methods()
    heads = ["asked", "file", "queries", "rows", "ESS", *methods, "ratio"]
    heads += [f"{m}, not asked" for m in methods] + [f"{m}, s" for m in methods]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in options.workloads:
        for file in ("aim-eps1-seed0", "mst-eps1-seed0"):
            for line in compare(name, file, options.runs, options.data):
                print(line, flush=True)


if __name__ == "__main__":
    main()
