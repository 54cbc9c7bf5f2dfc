"""Speed under pytest-benchmark on small tables, to compare one commit with another.

    python -m pytest benchmarks [--benchmark-autosave] [--benchmark-compare]

The peers at full size are in ``python -m benchmarks.peers``.
"""

from __future__ import annotations

from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import retilt as rt
from benchmarks.problems import PROBLEMS, Case
from benchmarks.solvers import SOLVERS, own_solver
from retilt.resample import Method

_ROWS = 20_000
_RETILT = [
    (problem, solver)
    for problem, table in SOLVERS.items()
    for solver in table
    if solver.startswith("retilt")
]


@cache
def case(problem: str) -> Case:
    """Made once for all cases, outside what is timed."""
    return PROBLEMS[problem](_ROWS)


@pytest.mark.parametrize(("problem", "solver"), _RETILT)
def test_solve(benchmark: BenchmarkFixture, problem: str, solver: str) -> None:
    """A fit to each problem's answers, the whole path, and both denoisers."""
    solve = own_solver(problem, solver)(case(problem))
    benchmark.group = problem
    outcome = benchmark(solve)
    assert outcome.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("method", ["systematic", "balanced", "multinomial"])
def test_sample(benchmark: BenchmarkFixture, method: Method) -> None:
    """Rows from weights."""
    made = case("moments-65")
    tilt = rt.fit(made.synthetic, made.answers)
    benchmark.group = "sample"
    table = benchmark(lambda: tilt.sample(method=method, seed=0))
    assert table.num_rows == _ROWS
