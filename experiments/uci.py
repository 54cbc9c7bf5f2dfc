"""Utility improvement and marginal distance on the UCI tables, every synthetic file.

    python -m experiments.uci --runs 10

For each generator's output: the target and the four columns most correlated with it on the
synthetic table (the paper's choice), their correlations aligned at epsilon 1, delta 1/n**2,
public bounds from ``schema.toml``; sampled to as many rows as the synthetic table has; scored
on raw values against the private train split, mean of several runs. JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import retilt as rt
from retilt.engines.local import open_table
from retilt.schema.columns import Boolean, Categorical, Column, Numeric, Schema
from retilt.schema.formats import load_declared, resolve

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

_ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]
_MUSHROOM = [
    "class",
    "cap-shape",
    "cap-surface",
    "cap-color",
    "bruises",
    "odor",
    "gill-attachment",
    "gill-spacing",
    "gill-size",
    "gill-color",
    "stalk-shape",
    "stalk-root",
    "stalk-surface-above-ring",
    "stalk-surface-below-ring",
    "stalk-color-above-ring",
    "stalk-color-below-ring",
    "veil-type",
    "veil-color",
    "ring-number",
    "ring-type",
    "spore-print-color",
    "population",
    "habitat",
]
TARGETS = {"adult": "income", "mushroom": "class", "shopping": "Revenue"}


def load_real(name: str, data: Path = DATA) -> pd.DataFrame:
    """The train split that the generators saw, in the order of the data set's README."""
    folder = data / name
    options: dict[str, Any] = {"keep_default_na": False}
    if name == "adult":
        parts = [
            pd.read_csv(folder / f, names=_ADULT, skipinitialspace=True, skiprows=skip, **options)
            for f, skip in (("adult.data.gz", 0), ("adult.test.gz", 1))
        ]
        table = pd.concat(parts, ignore_index=True)
        table["income"] = table["income"].str.rstrip(".")
    elif name == "mushroom":
        table = pd.read_csv(folder / "agaricus-lepiota.data", names=_MUSHROOM, **options)
    else:
        table = pd.read_csv(
            folder / "online_shoppers_intention.csv.gz",
            dtype={"Weekend": str, "Revenue": str},
            **options,
        )
    order = np.random.default_rng(0).permutation(len(table))
    return table.iloc[order[: int(0.8 * len(table))]].reset_index(drop=True)


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
    """Results of one file."""

    table: str
    file: str
    improvement: float
    improvement_error: float
    improvement_spread: float
    js_before: float
    js_after: float
    ess_share: float
    status: str
    not_reached: list[str]


def run_file(name: str, path: Path, *, runs: int, epsilon: float, data: Path) -> Row:
    """Align one file ``runs`` times with fresh noise."""
    real, synthetic = load_real(name, data), load_synthetic(path)
    declared = load_declared(data / name / "schema.toml")
    target = TARGETS[name]
    columns = rt.top_correlated(synthetic, target, top=5, schema=declared)
    everything = resolve(declared, open_table(synthetic), list(synthetic.columns))
    plan = rt.plan(
        synthetic, rt.correlation(columns), epsilon=epsilon, rows=len(real), schema=declared
    )
    gains, distances, shares, statuses, missed = [], [], [], [], set()
    for seed in range(runs):
        tilt = rt.fit(synthetic, rt.measure(real, plan))
        post = tilt.sample(seed=seed)
        score = rt.evaluate(real, synthetic, post, columns=columns, schema=declared)
        gains.append(score.raw.improvement)
        distances.append(marginal_distance(real, post, everything))
        shares.append(tilt.ess / len(synthetic))
        statuses.append(tilt.status.value)
        missed.update(tilt.shortfalls)
        missed.update(
            f"{r['statistic']} not reached" for r in tilt.statistics_table() if not r["reachable"]
        )
    return Row(
        table=name,
        file=path.name.removesuffix(".csv.gz"),
        improvement=float(np.mean(gains)),
        improvement_error=float(np.std(gains, ddof=1) / np.sqrt(runs)) if runs > 1 else 0.0,
        improvement_spread=float(np.std(gains, ddof=1)) if runs > 1 else 0.0,
        js_before=marginal_distance(real, synthetic, everything),
        js_after=float(np.mean(distances)),
        ess_share=float(np.mean(shares)),
        status=" ".join(f"{statuses.count(s)}x{s}" for s in sorted(set(statuses))),
        not_reached=sorted(missed),
    )


def main() -> None:
    """Print a table of all files, or of those whose path contains a given text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="text that a file's path must contain")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        print("| table | file | improvement | sd | JS before | JS after | ESS | status |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in TARGETS:
        for path in sorted((options.data / name / "synthetic").glob("*.csv.gz")):
            if options.only and not any(t in str(path) for t in options.only):
                continue
            row = run_file(
                name, path, runs=options.runs, epsilon=options.epsilon, data=options.data
            )
            rows.append(row)
            if not options.json:
                print(
                    f"| {row.table} | {row.file} | {row.improvement:.3f} ± "
                    f"{row.improvement_error:.3f} | {row.improvement_spread:.3f} "
                    f"| {row.js_before:.4f} | {row.js_after:.4f} | {row.ess_share:.3f} "
                    f"| {row.status} |",
                    flush=True,
                )
    if options.json:
        json.dump([vars(r) for r in rows], sys.stdout, indent=1)
        return
    print()
    for row in rows:
        for sentence in row.not_reached:
            print(f"{row.table} {row.file}: {sentence}")


if __name__ == "__main__":
    main()
