"""Thousands of queries on a long table: all moments of 104 columns, as of Home Credit.

    python -m benchmarks.wide [--rows N] [--columns D] [--threads T] [--peer]

Correlated columns in [0, 1], most of them skewed, and all their means, squares and products:
5,564 queries on 307,511 rows. The answers are those of the same rows under a tilt, of means and
some of the squares and products, that leaves an effective sample size of a fifth of the rows, so
weights that give them exactly exist and move every query. The problem holds no matrix of rows by
queries (13.7 GB), and neither does what measures the result.

Prints JSON, a line for each solver in a process of its own: ``rows``, ``queries``, ``threads``,
``seconds`` (on the clock), ``cpu_seconds``, ``peak_mib`` (beside the table itself), ``residual``
(the largest error of a query; all are in [0, 1]), ``gap`` (nats, the solution's own: at trade-off
0 a bound of first order), ``ess``.
``retilt`` is ``fit_at(problem, 0, gap=1e-9)``. ``--peer`` also gives SciPy's L-BFGS-B the same dual
without that matrix, and as many seconds as retilt took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import measured
from benchmarks.problems import ROWS
from retilt.measures.base import FloatArray, Products
from retilt.tilting import Covariance, Problem, fit_at
from retilt.tilting.designs import design_means

COLUMNS = 104
EFFECTIVE = 0.2
"""Effective sample size of the answers' weights, as a share of the rows."""

_PIECE = 2**14


class Line(TypedDict):
    """What one solver took and came to."""

    solver: str
    rows: int
    queries: int
    threads: int
    seconds: float
    cpu_seconds: float
    peak_mib: float | None
    residual: float
    gap: float | None
    ess: float


def moments(values: FloatArray) -> Products:
    """The means, squares and products of the columns of ``values`` (rows, D)."""
    columns = values.shape[1]
    left, right = np.triu_indices(columns)
    none = np.full(columns, -1)
    sides = np.concatenate([np.arange(columns), left]), np.concatenate([none, right])
    queries = sides[0].size
    return Products(values, *sides, np.zeros(queries), np.ones(queries))


def table(rows: int, columns: int) -> FloatArray:
    """(rows, columns) that share eight common factors, stored by columns."""
    rng = np.random.default_rng(0)
    loads = rng.normal(size=(8, columns)) * 0.35
    values = np.empty((rows, columns), order="F")
    for start in range(0, rows, _PIECE):
        piece = values[start : start + _PIECE]
        hidden = rng.normal(size=(len(piece), 8)) @ loads + rng.normal(size=piece.shape)
        piece[:] = (1 / (1 + np.exp(-hidden))) ** (1 + np.arange(columns) % 4)
    return values


def weights_of_answers(values: FloatArray) -> FloatArray:
    """(rows,) a tilt along all means and some products, as strong as ``EFFECTIVE`` says."""
    rng = np.random.default_rng(1)
    columns = values.shape[1]
    matrix = rng.normal(size=(columns, columns)) * (rng.random((columns, columns)) < 0.1)
    scores = values @ rng.normal(size=columns)
    scores += np.einsum("ij,ij->i", values @ matrix, values)
    scores -= scores.mean()

    def tilted(strength: float) -> FloatArray:
        found: FloatArray = np.exp(strength * (scores - scores.max()))
        return found / found.sum()

    low, high = 0.0, 100 / scores.std()
    for _ in range(60):
        middle = (low + high) / 2
        fewer = 1 / np.sum(tilted(middle) ** 2) < EFFECTIVE * scores.size
        low, high = (low, middle) if fewer else (middle, high)
    return tilted(low)


def problem_of(rows: int, columns: int) -> Problem:
    """The problem; its deviations (1e-4) are of no account where answers are met exactly."""
    values = table(rows, columns)
    design = moments(values)
    answers = design_means(design, weights_of_answers(values))
    return Problem([design], answers, Covariance(np.full(answers.size, 1e-8)), np.ones(rows))


class Dual:
    """The dual and its gradient without a matrix of all queries, for L-BFGS-B.

    A sum of products of columns is a quadratic form in the row.
    """

    def __init__(self, problem: Problem, seconds: float) -> None:
        (design,) = problem.designs
        assert isinstance(design, Products)
        self.problem, self.design = problem, design
        self.until = time.monotonic() + seconds
        self.columns = design.values.shape[1]
        means, squares = self._moments(problem.base)
        self.unit: FloatArray = np.sqrt(np.maximum(squares - means**2, 1e-12))
        self.weights = problem.base

    def _moments(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(K,) means of the queries and of their squares."""
        other = replace(self.design, values=self.design.values**2)
        return design_means(self.design, weights), design_means(other, weights)

    def value(self, multipliers: FloatArray) -> tuple[float, FloatArray]:
        """At (K,) multipliers in units of the queries' spread."""
        own = multipliers / self.unit
        linear, matrix = own[: self.columns], np.zeros((self.columns, self.columns))
        matrix[self.design.left[self.columns :], self.design.right[self.columns :]] = own[
            self.columns :
        ]
        scores = np.empty(self.problem.rows)
        for start in range(0, scores.size, _PIECE):
            part = self.design.values[start : start + _PIECE]
            scores[start : start + _PIECE] = -np.einsum("ij,ij->i", part @ matrix + linear, part)
        top = scores.max()
        weights = np.exp(scores - top) * self.problem.base
        total = weights.sum()
        self.weights = weights / total
        means = design_means(self.design, self.weights)
        gradient = (self.problem.answers - means) / self.unit
        return float(top + np.log(total) + own @ self.problem.answers), gradient

    def told(self, _: NDArray[np.float64]) -> None:
        """End when the time is up."""
        if time.monotonic() > self.until:
            raise StopIteration


def lbfgsb(problem: Problem, seconds: float) -> FloatArray:
    """(N,) weights after so many seconds, or at the optimum."""
    from scipy.optimize import minimize

    dual = Dual(problem, seconds)
    options = {"maxiter": 100_000, "maxfun": 200_000, "maxcor": 20, "ftol": 0.0, "gtol": 1e-12}
    minimize(
        dual.value,
        np.zeros(problem.queries),
        jac=True,
        method="L-BFGS-B",
        callback=dual.told,
        options=options,
    )
    return dual.weights


def line(solver: str, rows: int, columns: int, threads: int, seconds: float) -> Line:
    """Solve in this process."""
    problem = problem_of(rows, columns)
    taken = []

    def solve() -> tuple[FloatArray, float | None]:
        start = time.monotonic()
        if solver == "retilt":
            solution = fit_at(problem, 0.0, gap=1e-9)
            found: tuple[FloatArray, float | None] = solution.weights, solution.gap()
        else:
            found = lbfgsb(problem, seconds), None
        taken.append(time.monotonic() - start)
        return found

    cost = measured(lambda: solve)
    weights, gap = cost.result
    errors = problem.means(weights) - problem.answers
    return {
        "solver": solver,
        "rows": rows,
        "queries": problem.queries,
        "threads": threads,
        "seconds": round(min(taken), 1),
        "cpu_seconds": round(cost.cpu_seconds, 1),
        "peak_mib": None if cost.peak_mib is None else round(cost.peak_mib),
        "residual": float(np.abs(errors).max()),
        "gap": gap,
        "ess": round(float(1 / np.sum(weights**2))),
    }


def main() -> None:
    """Print a line for each solver."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--threads", type=int, default=2, help="of the BLAS library")
    parser.add_argument("--peer", action="store_true", help="L-BFGS-B, too")
    options = parser.parse_args()
    # Read by the BLAS library when the new process loads it.
    os.environ.update(OPENBLAS_NUM_THREADS=str(options.threads))
    spawn = multiprocessing.get_context("spawn")
    seconds = 0.0
    for solver in ("retilt", "scipy-lbfgsb") if options.peer else ("retilt",):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            shape = options.rows, options.columns, options.threads
            found = pool.submit(line, solver, *shape, seconds).result()
        seconds = found["seconds"]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
