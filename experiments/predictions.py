"""The errors that a plan predicts against those that its answers turn out to have.

    python -m experiments.predictions --runs 20 --plot docs/figures/predicted-errors.png

A plan knows the synthetic table only. For every synthetic file, three workloads and three budgets:
the expected standard error of each statistic against the root mean square of its estimate's error
over several draws of the noise, about the exact statistic of the private table (its columns
clamped as the plan says). Statistics that the plan says noise would dominate are counted apart;
so are those whose error is undefined on one side. One draw's root mean square scatters: by about
``1 / sqrt(2 runs)``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import retilt as rt
from experiments.published import DATA
from experiments.uci import TARGETS, load_real, load_synthetic
from retilt.engines.local import open_table
from retilt.measures.base import FloatArray
from retilt.measures.workload import Workload
from retilt.outlooks import outlook
from retilt.pipeline import exact_sums, noisy
from retilt.privacy.answers import make_answers
from retilt.privacy.plan import Plan
from retilt.schema.formats import load_declared

EPSILONS = (0.3, 1.0, 3.0)
GROUPS = {"adult": "education", "mushroom": "odor", "shopping": "Month"}
MEANS = {
    "adult": ["age", "hours-per-week", "capital-gain"],
    "mushroom": ["class", "bruises"],
    "shopping": ["BounceRates", "ProductRelated", "PageValues"],
}


@dataclass(frozen=True)
class Pairs:
    """(S,) predicted and realised errors of a plan's statistics, and where noise dominates."""

    table: str
    generator: str
    workload: str
    predicted: FloatArray
    realised: FloatArray
    drowned: FloatArray


def workloads(name: str, synthetic: pd.DataFrame, schema: object) -> dict[str, Workload]:
    """What is asked of a data set."""
    top = rt.top_correlated(synthetic, TARGETS[name], top=5, schema=schema)
    return {
        "correlations": rt.correlation(top),
        "means by group": rt.means(MEANS[name], by=GROUPS[name]),
        "tables": rt.marginals([TARGETS[name], GROUPS[name], *MEANS[name][:2]], k=2, bins=5)
        if name != "mushroom"
        else rt.marginals([TARGETS[name], GROUPS[name], "habitat"], k=2),
    }


def realised(private: pa.Table, plan: Plan, runs: int) -> FloatArray:
    """(S,) root mean square error of the estimates over some draws of the noise."""
    exact = exact_sums(private, plan)
    truth = make_answers(plan, exact, private=False).estimates
    off = [
        make_answers(plan, noisy(exact, plan.noise), private=False).estimates - truth
        for _ in range(runs)
    ]
    errors: FloatArray = np.sqrt(np.mean(np.square(off), axis=0))
    return errors


def compared(name: str, file: Path, runs: int, data: Path) -> Iterator[Pairs]:
    """The pairs of one synthetic file, by workload and budget."""
    real, synthetic = load_real(name, data), load_synthetic(file)
    schema = load_declared(data / name / "schema.toml")
    private, opened = pa.Table.from_pandas(real, preserve_index=False), open_table(synthetic)
    for asked, workload in workloads(name, synthetic, schema).items():
        for epsilon in EPSILONS:
            plan = rt.plan(opened, workload, epsilon=epsilon, rows=len(real), schema=schema)
            expected = np.array([np.nan if e is None else e for e in plan.expected])
            drowned = np.array(outlook(opened, plan).dominated)
            yield Pairs(
                name,
                file.name.split("-")[0],
                asked,
                expected,
                realised(private, plan, runs),
                drowned,
            )


def line(title: str, pairs: list[Pairs]) -> str:
    """How the predictions of some plans compare with what came."""
    predicted, got, drowned = (
        np.concatenate([getattr(p, what) for p in pairs])
        for what in ("predicted", "realised", "drowned")
    )
    told = np.isfinite(predicted) & np.isfinite(got) & (predicted > 0) & (got > 0)
    cells = [title]
    for some in (told & ~drowned, told & drowned):
        if some.sum() < 3:
            cells += [str(some.sum()), "", "", ""]
            continue
        ratio = got[some] / predicted[some]
        correlation = np.corrcoef(np.log(predicted[some]), np.log(got[some]))[0, 1]
        cells += [str(some.sum()), f"{correlation:.3f}"]
        cells += [f"{np.median(ratio):.2f}", f"{np.mean(ratio > 2):.1%}"]
    cells.append(str(int((~told).sum())))
    return f"| {' | '.join(cells)} |"


def draw(pairs: list[Pairs], path: Path) -> None:
    """A scatter of all of them on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.8))
    axes = figure.add_axes((0.15, 0.12, 0.82, 0.85))
    colours = {"correlations": "#1f5fa8", "means by group": "#c8651b", "tables": "#6b7280"}
    ends = []
    for asked, colour in colours.items():
        kept = [p for p in pairs if p.workload == asked]
        predicted, got, drowned = (
            np.concatenate([getattr(p, what) for p in kept])
            for what in ("predicted", "realised", "drowned")
        )
        told = np.isfinite(predicted) & np.isfinite(got) & (predicted > 0) & (got > 0) & ~drowned
        axes.scatter(predicted[told], got[told], s=5, color=colour, alpha=0.5, lw=0, label=asked)
        ends += [predicted[told].min(), predicted[told].max()]
    low, high = min(ends), max(ends)
    axes.plot([low, high], [low, high], color="#1f2933", linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("standard error that the plan expects")
    axes.set_ylabel("root mean square error of the answers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, markerscale=3)
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def main() -> None:
    """Print a line for each data set and workload, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="text that a file's path must contain")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    heads = ["asked", "statistics", "correlation of logs", "median realised / predicted"]
    heads += ["above 2", "dominated", "correlation", "median", "above 2", "undefined"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    pairs: list[Pairs] = []
    for name in TARGETS:
        own: list[Pairs] = []
        for path in sorted((options.data / name / "synthetic").glob("*.csv.gz")):
            if not options.only or any(t in str(path) for t in options.only):
                own += compared(name, path, options.runs, options.data)
        for asked in dict.fromkeys(p.workload for p in own):
            print(line(f"{name}, {asked}", [p for p in own if p.workload == asked]), flush=True)
        pairs += own
    for generator in sorted({p.generator for p in pairs}):
        for asked in dict.fromkeys(p.workload for p in pairs):
            kept = [p for p in pairs if (p.generator, p.workload) == (generator, asked)]
            print(line(f"{generator}, {asked}", kept))
    print(line("all", pairs))
    if options.plot is not None:
        draw(pairs, options.plot)


if __name__ == "__main__":
    main()
