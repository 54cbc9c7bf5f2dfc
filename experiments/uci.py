"""Utility improvement and marginal distance on the UCI tables, every synthetic file.

    python -m experiments.uci --runs 5 --methods default paper paper-exact

For each generator's output: the target and the four columns most correlated with it on the
synthetic table (the paper's choice), their correlations aligned at epsilon 1, delta 1/n**2,
public bounds from ``schema.toml``; sampled to as many rows as the synthetic table has; scored
on raw values against the private train split, mean of several runs. Each method has all of it as
its own: the default asks in the centred basis and samples systematically, ``guarded`` is the
same with every column's own distribution kept (``keep("marginals")``), and ``mix`` adds candidate
rows whose measured columns are redrawn (``support="mix"``); the paper's asks in the
paper's basis, denoises, and samples multinomially. ``paper-exact`` is the paper's problem solved
exactly instead of by its stochastic algorithm. JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import retilt as rt
from experiments.datasets import ADULT, MUSHROOM, SHOPPER
from experiments.published import DATA
from retilt.engines.local import open_table
from retilt.schema.columns import Boolean, Categorical, Column, Numeric, Schema
from retilt.schema.formats import Declared, load_declared, resolve

METHODS = ("default", "guarded", "mix", "paper", "paper-exact")
SETS = {data_set.folder: data_set for data_set in (ADULT, MUSHROOM, SHOPPER)}
"""By the name of the folder in which their synthetic files lie."""
TARGETS = {name: data_set.target for name, data_set in SETS.items()}


def load_real(name: str, data: Path = DATA) -> pd.DataFrame:
    """The train split that the generators saw, in the order of the data set's README."""
    return load_split(name, data)[0]


def load_split(name: str, data: Path = DATA) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The train split that the generators saw, and the test split."""
    parts = SETS[name].split(data)
    return parts.train, parts.test


def load_synthetic(path: Path) -> pd.DataFrame:
    """A generator's output, with text where the real table has text."""
    return pd.read_csv(path, keep_default_na=False, dtype={"Weekend": str, "Revenue": str})


def marginal_distance(real: pd.DataFrame, other: pd.DataFrame, schema: Schema) -> float:
    """Mean over columns of the Jensen-Shannon distance (base 2) of the marginals.

    Categories, or 20 equal bins between the public bounds.
    """
    from scipy.spatial.distance import jensenshannon

    distances = []
    for name, column in schema.columns.items():
        if isinstance(column, Numeric):
            edges = np.linspace(column.lower, column.upper, 21)
            shares = [
                np.histogram(np.clip(t[name].to_numpy(float), edges[0], edges[-1]), edges)[0]
                for t in (real, other)
            ]
        else:
            keys = _keys(column)
            shares = [
                t[name].astype(str).value_counts().reindex(keys, fill_value=0).to_numpy()
                for t in (real, other)
            ]
        distances.append(float(jensenshannon(*shares, base=2)))
    return float(np.mean(distances))


def _keys(column: Column) -> list[str]:
    """The categories as the tables write them."""
    if isinstance(column, Boolean):
        return ["FALSE", "TRUE"]
    assert isinstance(column, Categorical)
    return [str(c) for c in column.categories]


@dataclass(frozen=True)
class Row:
    """Results of one method on one file: means over the runs."""

    table: str
    file: str
    method: str
    improvement: float
    improvement_spread: float
    improvement_error: float
    js_before: float
    js_after: float
    ess_share: float
    status: str
    seconds: float
    not_reached: list[str]


@dataclass(frozen=True)
class Case:
    """One generator's output and what is asked of it."""

    name: str
    path: Path
    real: pd.DataFrame
    synthetic: pd.DataFrame
    declared: Declared
    columns: list[str]
    schema: Schema

    @classmethod
    def of(cls, name: str, path: Path, data: Path) -> Case:
        """Read it; the columns are the paper's choice."""
        real, synthetic = load_real(name, data), load_synthetic(path)
        declared = load_declared(data / name / "schema.toml")
        columns = rt.top_correlated(synthetic, TARGETS[name], top=5, schema=declared)
        schema = resolve(declared, open_table(synthetic), list(synthetic.columns))
        return cls(name, path, real, synthetic, declared, columns, schema)


def run_method(case: Case, method: str, *, runs: int, epsilon: float) -> Row:
    """Align one file ``runs`` times by one method, with fresh noise."""
    workload = rt.correlation(case.columns, clip={} if method == "mix" else None)
    ours = method in ("default", "guarded", "mix")
    plan = rt.plan(
        case.synthetic,
        workload + rt.keep("marginals") if method == "guarded" else workload,
        epsilon=epsilon,
        rows=len(case.real),
        schema=case.declared,
        basis="centred" if ours else "paper",
    )
    gains, distances, shares, statuses, missed, seconds = [], [], [], [], set(), 0.0
    for seed in range(runs):
        answers = rt.measure(case.real, plan)
        began = time.process_time()
        tilt = rt.fit(
            case.synthetic,
            answers,
            method="default" if ours else method,
            support="mix" if method == "mix" else None,
            seed=seed,
        )
        seconds += time.process_time() - began
        post = tilt.sample(seed=seed)
        score = rt.evaluate(
            case.real, case.synthetic, post, columns=case.columns, schema=case.declared
        )
        assert score.raw.improvement is not None  # no generator's table is without error
        gains.append(score.raw.improvement)
        distances.append(marginal_distance(case.real, post, case.schema))
        shares.append(tilt.ess / len(case.synthetic))
        statuses.append(tilt.status.value)
        missed.update(tilt.shortfalls)
        missed.update(
            f"{r['statistic']} not reached" for r in tilt.statistics_table() if not r["reachable"]
        )
    spread = float(np.std(gains, ddof=1)) if runs > 1 else 0.0
    return Row(
        table=case.name,
        file=case.path.name.removesuffix(".csv.gz"),
        method=method,
        improvement=float(np.mean(gains)),
        improvement_spread=spread,
        improvement_error=spread / math.sqrt(runs),
        js_before=marginal_distance(case.real, case.synthetic, case.schema),
        js_after=float(np.mean(distances)),
        ess_share=float(np.mean(shares)),
        status=" ".join(f"{statuses.count(s)}x{s}" for s in sorted(set(statuses))),
        seconds=seconds / runs,
        not_reached=sorted(missed),
    )


HEADER = (
    "table",
    "file",
    "method",
    "improvement ± s.e.",
    "sd",
    "JS before",
    "JS after",
    "ESS",
    "CPU s",
    "status",
)


def line(row: Row) -> str:
    """One line of the table, in Markdown."""
    cells = (
        row.table,
        row.file,
        row.method,
        f"{row.improvement:.3f} ± {row.improvement_error:.3f}",
        f"{row.improvement_spread:.3f}",
        f"{row.js_before:.4f}",
        f"{row.js_after:.4f}",
        f"{row.ess_share:.3f}",
        f"{row.seconds:.2f}",
        row.status,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table of all files, or of those whose path contains a given text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="text that a file's path must contain")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["default"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}")
    for name in TARGETS:
        for path in sorted((options.data / name / "synthetic").glob("*.csv.gz")):
            if options.only and not any(t in str(path) for t in options.only):
                continue
            case = Case.of(name, path, options.data)
            for method in options.methods:
                row = run_method(case, method, runs=options.runs, epsilon=options.epsilon)
                rows.append(row)
                if not options.json:
                    print(line(row), flush=True)
    if options.json:
        json.dump([vars(r) for r in rows], sys.stdout, indent=1)
        return
    print()
    for row in rows:
        for sentence in row.not_reached:
            print(f"{row.table} {row.file} {row.method}: {sentence}")


if __name__ == "__main__":
    main()
