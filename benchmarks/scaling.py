"""How retilt's CPU time and memory grow with the rows and with the queries.

    python -m benchmarks.scaling [--quick] [--output csv|json] [--figure FILE]
                                 [--rows N ...] [--queries K ...]

Two curves, each point in a process of its own with one BLAS thread, the best of three calls (one
where it takes more than 20 s):

``rows``
    The 65 moments of ten columns on 10,000 to 10,000,000 rows: ``fit_at(problem, 0, gap=1e-9)``,
    the answers exactly.
``queries``
    The moments of 3 to 98 columns, 9 to 4,949 queries, on 50,000 rows: ``fit_at(problem, 1)``,
    since a trade-off above 0 is what every point of a user's path has.

The answers are those of the same rows under other weights, so that weights which give them exist.
``--quick`` stops at 300,000 rows and at 1,000 queries. ``--figure`` draws both curves.

A line of the output holds ``curve``, ``rows``, ``queries``, ``cpu_seconds``, ``peak_mib`` (the
problem itself is not counted, ``table_mib`` is its size), ``gap`` (the solution's own, in nats: at
trade-off 0 a bound of first order), ``ess``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypedDict

import numpy as np

from benchmarks.clock import measured
from benchmarks.environments import THREADS
from benchmarks.problems import COLUMNS
from retilt.measures.base import FloatArray, Products
from retilt.privacy.accounting import gaussian_distance
from retilt.tilting import Covariance, Problem, Solution, fit_at
from retilt.tilting.designs import design_means

ROWS = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]
QUERIES = [9, 65, 230, 495, 989, 2_015, 4_949]
QUICK_ROWS, QUICK_QUERIES = 300_000, 1_000
FIXED_ROWS = 50_000
_BATCH = 100_000


class Point(TypedDict):
    """One size of one curve."""

    curve: str
    rows: int
    queries: int
    cpu_seconds: float
    peak_mib: float | None
    table_mib: float
    gap: float
    ess: float


def columns_for(queries: int) -> int:
    """How many columns have about so many moments: d means and d (d + 1) / 2 products."""
    return max(1, round((math.sqrt(9 + 8 * queries) - 3) / 2))


def moments_of(columns: int, rows: int) -> Problem:
    """All moments of correlated columns, with the answers of a tilted copy of the rows."""
    rng = np.random.default_rng(0)
    values = np.empty((rows, columns))
    base, tilted = np.full(rows, 1 / rows), np.empty(rows)
    loads = np.linspace(-1, 1, columns) * 0.6
    slope = rng.normal(size=columns) * 1.5 / math.sqrt(columns)
    for start in range(0, rows, _BATCH):
        batch = values[start : start + _BATCH]
        batch[:] = rng.normal(size=(batch.shape[0], 1)) * loads + rng.normal(size=batch.shape)
        np.tanh(batch / 2, out=batch)
        tilted[start : start + _BATCH] = np.exp(batch @ slope + 0.2 * batch[:, 0] * batch[:, -1])
    tilted /= tilted.sum()
    pairs = [(i, -1) for i in range(columns)]
    pairs += [(i, j) for i in range(columns) for j in range(i + 1)]
    left, right = (np.array(side, dtype=np.intp) for side in zip(*pairs, strict=True))
    design = Products(values, left, right, np.zeros(left.size), np.ones(left.size))
    # The noise of epsilon 1 on a table of this size: the sensitivity of these moments is d + 1.
    deviation = (columns + 1) / rows / gaussian_distance(1.0, rows**-2)
    noise = Covariance(np.full(left.size, deviation**2))
    return Problem([design], design_means(design, tilted), noise, base)


def measure(curve: str, rows: int, queries: int) -> Point:
    """One point, in this process."""
    problem = moments_of(COLUMNS if curve == "rows" else columns_for(queries), rows)
    eta = 0.0 if curve == "rows" else 1.0

    def solve() -> Solution:
        return fit_at(problem, eta, gap=1e-9)

    cost = measured(lambda: solve)
    (design,) = problem.designs
    table: FloatArray = design.values if isinstance(design, Products) else np.empty(0)
    return {
        "curve": curve,
        "rows": rows,
        "queries": problem.queries,
        "cpu_seconds": round(cost.cpu_seconds, 4),
        "peak_mib": None if cost.peak_mib is None else round(cost.peak_mib, 1),
        "table_mib": round(table.nbytes / 2**20, 1),
        "gap": cost.result.gap(),
        "ess": round(cost.result.ess, 1),
    }


def _points(rows: Sequence[int], queries: Sequence[int]) -> Iterator[Point]:
    # Read by the BLAS library when the new process loads it.
    os.environ.update(THREADS)
    spawn = multiprocessing.get_context("spawn")
    sizes = [("rows", count, 65) for count in rows]
    sizes += [("queries", FIXED_ROWS, count) for count in queries]
    for curve, many, asked in sizes:
        print(f"{curve}: {many:,} rows, {asked:,} queries", end=" ", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            point = pool.submit(measure, curve, many, asked).result()
        print(f"{point['cpu_seconds']:.3f} s", file=sys.stderr)
        yield point


def draw(points: Sequence[Point], path: Path) -> None:
    """Both curves, CPU seconds and memory, on logarithmic axes, as an SVG without a date."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "retilt", "font.size": 9}
    with rc_context(style):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        for axes, curve in zip(figure.subplots(1, 2), ("rows", "queries"), strict=True):
            shown = [point for point in points if point["curve"] == curve]
            sizes = [point["rows"] if curve == "rows" else point["queries"] for point in shown]
            seconds = [point["cpu_seconds"] for point in shown]
            axes.loglog(sizes, seconds, "o-", color="#1b6ca8", label="CPU seconds")
            told = [(s, p["peak_mib"]) for s, p in zip(sizes, shown, strict=True) if p["peak_mib"]]
            if told:
                label = "MiB beside the problem"
                axes.loglog(*zip(*told, strict=True), "s--", color="#c0392b", label=label)
            axes.set_xlabel(curve)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description="retilt as the problem grows."
    )
    parser.add_argument("--output", choices=("csv", "json"), default="csv")
    parser.add_argument("--quick", action="store_true", help="the smaller sizes alone")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="an SVG of both curves")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--queries", type=int, nargs="*", default=QUERIES)
    options = parser.parse_args(arguments)
    if min([*options.rows, *options.queries], default=1) < 1:
        parser.error("--rows, --queries: expected numbers above 0.")
    rows = [n for n in options.rows if not options.quick or n <= QUICK_ROWS]
    queries = [k for k in options.queries if not options.quick or k <= QUICK_QUERIES]
    points = list(_points(rows, queries))
    if options.output == "json":
        print(json.dumps(points, indent=1))
    else:
        writer = csv.DictWriter(sys.stdout, list(Point.__annotations__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
    if options.figure is not None:
        draw(points, options.figure)


if __name__ == "__main__":
    main()
