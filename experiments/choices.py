"""Evidence for decisions 0005 (keep the weights) and 0006 (order of systematic sampling).

    python -m experiments.choices --runs 20

Utility improvement of the weighted and the sampled table, by the statistics' distance from the
true ones on the clamped columns. Noise is seeded (``retilt.testing``), so the figures come out
the same again; they are not private.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

import retilt as rt
from experiments.published import DATA
from experiments.uci import TARGETS, load_real, load_synthetic
from retilt.engines.local import open_table
from retilt.measures.base import FloatArray
from retilt.resample import likeness_order, sample_rows
from retilt.schema.formats import load_declared
from retilt.tables import encode
from retilt.testing import insecure_measure
from retilt.tilting.path import fit_path
from retilt.tilting.problem import Covariance, Problem

FILES = (
    "shopping/synthetic/mst-eps1-seed0",
    "shopping/synthetic/patectgan-eps1-seed0",
    "adult/synthetic/mst-eps1-seed0",
    "adult/synthetic/aim-eps1-seed0",
    "mushroom/synthetic/mst-eps1-seed0",
    "mushroom/synthetic/aim-eps1-seed0",
)


def compare(file: str, runs: int, data: Path) -> dict[str, list[float]]:
    """Improvements by run: two rules of choice, and two orders of sampling."""
    name = file.split("/")[0]
    real, synthetic = load_real(name, data), load_synthetic(data / f"{file}.csv.gz")
    schema = load_declared(data / name / "schema.toml")
    columns = rt.top_correlated(synthetic, TARGETS[name], top=5, schema=schema)
    plan = rt.plan(synthetic, rt.correlation(columns), epsilon=1, rows=len(real), schema=schema)
    queries = plan.queries
    encoded = encode(open_table(synthetic), queries.features)
    exact = insecure_measure(real, plan, rng=np.random.default_rng(0), noise=False)
    truth = queries.evaluate(exact.means)
    order = likeness_order(list(encoded.values()))

    def distance(means: FloatArray) -> float:
        return float(np.nansum(np.abs(queries.evaluate(means) - truth)))

    def drawn(weights: FloatArray, seed: int, along: object) -> float:
        rows = sample_rows(weights, len(weights), seed=seed, order=along)  # type: ignore[arg-type]
        return distance(queries.means({f: a[rows] for f, a in encoded.items()}, len(rows)))

    result: dict[str, list[float]] = {
        k: [] for k in ("risk only", "ours", "table order", "likeness")
    }
    for seed in range(runs):
        answers = insecure_measure(real, plan, rng=np.random.default_rng(seed))
        problem = Problem(
            designs=queries.designs(encoded),
            answers=answers.means,
            covariance=Covariance(answers.variances, answers.common_noise),
            base=np.ones(len(synthetic)),
        )
        plain = fit_path(problem, queries.evaluate)
        errors = partial(
            queries.standard_errors, variances=answers.variances, factor=answers.common_noise
        )
        ours = fit_path(problem, queries.evaluate, errors=errors, dominated=answers.dominated)
        before = distance(ours.before)
        after = {
            "risk only": distance(plain.after),
            "ours": distance(ours.after),
            "table order": drawn(ours.weights, seed, None),
            "likeness": drawn(ours.weights, seed, order),
        }
        for key, value in after.items():
            result[key].append(1 - value / before)
    return result


def main() -> None:
    """Print one line for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    print("| file | risk only | ours, weighted | sampled in table order | sampled along likeness |")
    print("| --- | --- | --- | --- | --- |")
    for file in FILES:
        result = compare(file, options.runs, options.data)
        cells = (
            f"{np.mean(v):.3f} ± {np.std(v, ddof=1) / np.sqrt(len(v)):.3f}" for v in result.values()
        )
        print(f"| {file.replace('/synthetic', '')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
