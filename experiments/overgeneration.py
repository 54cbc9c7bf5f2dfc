"""What more candidate rows than needed do: 1, 5 and 20 times N.

    python -m experiments.overgeneration --runs 3

A generator can be asked for any number of rows, at no privacy cost; the weights then choose among
more of them, and the table is sampled back to N rows. The generators themselves are slow, so they
are imitated from their own output: a bootstrap of the file's rows, in which each row has one
column (chosen at random) taken from another row of the same target class. A plain bootstrap only
repeats rows, and weights of copies can do no more than weights of the rows themselves; with one
column exchanged there are new combinations, as a generator of low-dimensional marginals makes
them. The first N rows are always the file's own, so that 1 x N is the file. What the imitation
can't give is values that the file lacks: a column's range stays as it is.

Five columns as in :mod:`experiments.uci`, epsilon 1, public bounds, mean of the runs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd

import retilt as rt
from experiments.published import DATA
from experiments.uci import TARGETS, Case, marginal_distance

FILES = (
    "adult/synthetic/mst-eps1-seed0",
    "adult/synthetic/mst-eps1-seed0-round",
    "mushroom/synthetic/mst-eps1-seed0",
)
TIMES = (1, 5, 20)


def more_rows(table: pd.DataFrame, times: int, target: str, seed: int) -> pd.DataFrame:
    """The table's rows, and bootstrapped ones with one column from another row of their class."""
    rng = np.random.default_rng(seed)
    count = len(table)
    rows = rng.integers(count, size=(times - 1) * count)
    classes = table[target].to_numpy()
    donors = np.empty_like(rows)
    for value in np.unique(classes):
        where = classes[rows] == value
        donors[where] = rng.choice(np.flatnonzero(classes == value), size=where.sum())
    others = [name for name in table.columns if name != target]
    exchanged = rng.integers(len(others), size=len(rows))
    made = table.iloc[rows].reset_index(drop=True)
    for number, name in enumerate(others):
        source = np.where(exchanged == number, donors, rows)
        made[name] = table[name].to_numpy()[source]
    return pd.concat([table, made], ignore_index=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    head = "file|candidates|improvement|JS before|JS|ESS|CPU s|status"
    print(f"|{head}|\n|{'---|' * (head.count('|') + 1)}")
    for file in options.files:
        name = file.split("/")[0]
        case = Case.of(name, options.data / f"{file}.csv.gz", options.data)
        plan = rt.plan(
            case.synthetic,
            rt.correlation(case.columns),
            epsilon=1.0,
            rows=len(case.real),
            schema=case.declared,
        )
        before = marginal_distance(case.real, case.synthetic, case.schema)
        released = [rt.measure(case.real, plan) for _ in range(options.runs)]
        for times in TIMES:
            found, statuses = [], set()
            for seed, answers in enumerate(released):
                candidates = more_rows(case.synthetic, times, TARGETS[name], seed)
                began = time.process_time()
                tilt = rt.fit(candidates, answers)
                post = tilt.sample(len(case.synthetic), seed=seed)
                seconds = time.process_time() - began
                score = rt.evaluate(
                    case.real, case.synthetic, post, columns=case.columns, schema=case.declared
                )
                distance = marginal_distance(case.real, post, case.schema)
                found.append((score.raw.improvement, distance, tilt.ess, seconds))
                statuses.add(tilt.status.value)
            gain, js, ess, seconds = np.mean(found, axis=0)
            spread = np.std(found, axis=0)[0]
            print(
                f"|{file}|{times} x N|{gain:.3f} ± {spread:.3f}|{before:.4f}|{js:.4f}|{ess:,.0f}"
                f"|{seconds:.1f}|{' '.join(sorted(statuses))}|",
                flush=True,
            )


if __name__ == "__main__":
    main()
