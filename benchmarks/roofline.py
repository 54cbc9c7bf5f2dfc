"""What a pass over the rows must cost on this machine, and what ours costs.

    python -m benchmarks.roofline [--rows N] [--columns D] [--output text|json]

First what the machine does, by NumPy and the BLAS library that retilt uses, one thread, the best
of many repetitions: ``copy`` (bytes read and written a second in arrays larger than any cache),
``small`` (flops a second of a product (D + 1) by chunk with its own transpose, D columns being too
few for the BLAS library's full speed), ``large`` (the same with all K queries), ``exp``
(exponentials a second, in a chunk).

Then, for all means, squares and products of D columns on N rows, what a pass can't do without:

``fold`` (value and gradient of the dual)
    Reads the columns once and writes the weights: 8 (D + 1) bytes a row. Scores are a quadratic
    form in the columns, and the moments a weighted product of the columns with themselves: 4 D (D
    + 1) flops a row, and one exponential.
``hessian``
    Reads the columns and the weights, and multiplies the K queries with themselves: K (K + 1)
    flops a row by a symmetric product.

``bound`` is the longer of the bytes' and the arithmetic's time (that of the arithmetic, as it turns
out), ``seconds`` what the pass takes, ``times`` their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypedDict

import numpy as np

from benchmarks.environments import THREADS
from benchmarks.problems import COLUMNS, ROWS
from benchmarks.wide import moments, table
from retilt.tilting import Covariance, Problem
from retilt.tilting.designs import CHUNK
from retilt.tilting.fold import Rows

_REPEATS = 15


class Rates(TypedDict):
    """What the machine does a second."""

    copy: float
    small: float
    large: float
    exp: float


class Pass(TypedDict):
    """A pass: what it must cost, and what it costs."""

    name: str
    gigabytes: float
    gigaflops: float
    bound: float
    seconds: float
    times: float


def best(call: Callable[[], object]) -> float:
    """CPU seconds of the quickest of some calls, after one that does not count."""
    call()
    taken = []
    for _ in range(_REPEATS):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def rates(columns: int, queries: int) -> Rates:
    """Measured here and now."""
    rng = np.random.default_rng(0)
    long, to = rng.random(2**25), np.empty(2**25)
    few, many = rng.random((columns + 1, CHUNK)), rng.random((queries, CHUNK))
    exponents = -rng.random(CHUNK) * 5
    out = np.empty(CHUNK)

    def repeated(call: Callable[[], object], times: int) -> float:
        return best(lambda: [call() for _ in range(times)]) / times

    return {
        "copy": 2 * long.nbytes / best(lambda: np.copyto(to, long)),
        "small": few.shape[0] ** 2 * 2 * CHUNK / repeated(lambda: few @ few.T, 50),
        "large": queries * (queries + 1) * CHUNK / repeated(lambda: many @ many.T, 5),
        "exp": CHUNK / repeated(lambda: np.exp(exponents, out=out), 50),
    }


def passes(rows: int, columns: int, found: Rates) -> Iterator[Pass]:
    """The two passes."""
    design = moments(table(rows, columns))
    queries = design.left.size
    problem = Problem([design], np.zeros(queries), Covariance(np.ones(queries)), np.ones(rows))
    laid_out = Rows.of(problem)
    at = 0.1 * np.random.default_rng(1).normal(size=queries)
    fold = laid_out.fold(at)
    bytes_read = 8.0 * (columns + 1) * rows
    flops = {
        "fold": 4.0 * columns * (columns + 1) * rows,
        "hessian": queries * (queries + 1.0) * rows,
    }
    arithmetic = {
        "fold": flops["fold"] / found["small"] + rows / found["exp"],
        "hessian": flops["hessian"] / found["large"],
    }
    calls: dict[str, Callable[[], object]] = {
        "fold": lambda: laid_out.fold(at),
        "hessian": lambda: laid_out.covariance(fold),
    }
    for name, call in calls.items():
        bound = max(bytes_read / found["copy"], arithmetic[name])
        seconds = best(call)
        yield {
            "name": name,
            "gigabytes": bytes_read / 1e9,
            "gigaflops": flops[name] / 1e9,
            "bound": bound,
            "seconds": seconds,
            "times": seconds / bound,
        }


def _text(rows: int, columns: int, found: Rates, lines: list[Pass]) -> str:
    told = [
        f"{rows:,} rows, {columns} columns; the machine: {found['copy'] / 1e9:.1f} GB/s, "
        f"{found['small'] / 1e9:.1f} and {found['large'] / 1e9:.1f} GFlop/s in small and large "
        f"products, {found['exp'] / 1e9:.2f} billion exponentials a second",
        "",
        "| pass | GB | GFlop | bound, ms | taken, ms | times |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for p in lines:
        told.append(
            f"| {p['name']} | {p['gigabytes']:.3f} | {p['gigaflops']:.2f} | {1e3 * p['bound']:.1f} "
            f"| {1e3 * p['seconds']:.1f} | {p['times']:.1f} |"
        )
    return "\n".join(told)


def main() -> None:
    """Measure in a process whose BLAS library has one thread."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in THREADS.items()):
        # Read by the BLAS library when a process loads it.
        os.environ.update(THREADS)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.roofline", *sys.argv[1:]])
    found = rates(options.columns, options.columns * (options.columns + 3) // 2)
    lines = list(passes(options.rows, options.columns, found))
    if options.output == "json":
        print(json.dumps({"machine": found, "passes": lines}, indent=1))
    else:
        print(_text(options.rows, options.columns, found, lines))


if __name__ == "__main__":
    main()
