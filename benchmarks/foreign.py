"""Peers that have an environment of their own: run there, without retilt.

    python -m benchmarks.foreign SOLVER SMALL.npz TASK.npz ANSWER.npz

reads a small problem (a first call on it pays for imports), then the problem itself, and writes
the weights with what they cost. Peers are called as a competent user would: what they need, a
data frame or the matrix of all queries, is made beforehand, and the call alone is timed.

A task is a dictionary of arrays: ``answers`` (K,), ``base`` (N,), ``deviations`` (K,), and either
``values``, ``left``, ``right``, ``offset``, ``factor`` (products of columns) or ``codes`` (N, C),
``levels`` (C,), ``tables`` (P, k) (cells of the tables of these columns).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import measured
from benchmarks.matrix import product_queries, table_cells

FloatArray: TypeAlias = NDArray[np.float64]
Task: TypeAlias = Mapping[str, NDArray[Any]]

PRECISION = 1e-6
"""Largest distance from an answer at which peers stop, in the query's own units."""

STEPS = 1000
"""Steps of mbi's estimator: its own default."""

RATE = 0.1
"""Their length, for optax's Adam: what mbi's documentation shows."""


class Found(NamedTuple):
    """(N,) weights, the multipliers where the peer tells them, and a word on the settings."""

    weights: FloatArray
    multipliers: FloatArray | None = None
    note: str = ""


Prepared: TypeAlias = Callable[[], Found]


def _queries(task: Task) -> FloatArray:
    parts = (task[name] for name in ("values", "left", "right", "offset", "factor"))
    return product_queries(*parts)


# --------------------------------------------------------------------------------- moments-65


def ebal(task: Task) -> Prepared:
    """Entropy balancing with one treated unit: the answers.

    ``ebalance`` has no way to leave out its rank test (a singular value decomposition) and its
    regression of an outcome afterwards, so both are counted.
    """
    from ebal import ebal_bin

    values = np.vstack([task["answers"], _queries(task)])
    treated = np.zeros(values.shape[0])
    treated[0] = 1
    outcome = np.arange(float(treated.size))

    def solve() -> Found:
        solver = ebal_bin(effect="ATT", PCA=False, print_level=-1, constraint_tolerance=PRECISION)
        with warnings.catch_warnings():
            # The regression divides by zero with a single treated unit.
            warnings.simplefilter("ignore")
            result = solver.ebalance(treated, values, outcome, base_weight=task["base"])
        weights = result["w"][1:]
        return Found(weights / weights.sum(), -solver.coefs[1:])

    return solve


def empirical_calibration(task: Task) -> Prepared:
    """Google's entropy balancing: the estimating equation by MINPACK's hybrid method.

    Its estimating equation starts at weights of 1 in place of 1/N; base weights start it at 1/N.
    """
    import empirical_calibration as ec

    values, target = _queries(task), task["answers"][None, :]
    base = task["base"]

    def solve() -> Found:
        weights, success = ec.calibrate(
            values, target, baseline_weights=base, autoscale=True, objective=ec.Objective.ENTROPY
        )
        return Found(weights / weights.sum(), note="" if success else "says that it failed")

    return solve


# ------------------------------------------------------------------------------------ margins


def _margins(task: Task) -> tuple[dict[str, NDArray[np.int32]], dict[str, dict[int, float]]]:
    """Name of each table, with its rows' cells, and the share that each cell should have."""
    cells: dict[str, NDArray[np.int32]] = {}
    targets: dict[str, dict[int, float]] = {}
    start = 0
    for table in task["tables"]:
        name = "x".join(f"c{column}" for column in table)
        cells[name], size = table_cells(task["codes"], task["levels"], table)
        shares = task["answers"][start : start + size]
        # A cell without rows has no share, and raking no use for it.
        held = np.bincount(cells[name], minlength=size) > 0
        targets[name] = {int(cell): float(shares[cell]) for cell in np.flatnonzero(held)}
        start += size
    return cells, targets


def weightipy(task: Task) -> Prepared:
    """Raking on a data frame with a column for each table, with its own rule to stop."""
    import pandas as pd
    import weightipy as wp

    cells, targets = _margins(task)
    frame = pd.DataFrame(cells)
    scheme = wp.scheme_from_dict(
        {name: {cell: 100 * share for cell, share in row.items()} for name, row in targets.items()}
    )

    def solve() -> Found:
        weights = np.array(wp.weight(frame, scheme), dtype=np.float64)
        return Found(weights / weights.sum())

    return solve


def rimpy(task: Task) -> Prepared:
    """Raking on a data frame with a column for each table, with its own rule to stop."""
    import polars as pl
    import rimpy as rp

    cells, targets = _margins(task)
    frame = pl.DataFrame(cells)
    percent = {name: {c: 100 * share for c, share in row.items()} for name, row in targets.items()}

    def solve() -> Found:
        weights = rp.rake(frame, percent)["weight"].to_numpy().astype(np.float64)
        return Found(weights / weights.sum())

    return solve


def mbi(task: Task) -> Prepared:
    """Weights of seed records by gradient steps on the squared errors of the tables' counts.

    In double precision, as the package asks for above 100,000 rows.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    import optax
    from mbi import Dataset, Domain, LinearMeasurement
    from mbi.extensions import ReweightedDatasetEstimator

    codes, levels = task["codes"], task["levels"]
    names = [f"c{column}" for column in range(levels.size)]
    domain = Domain(names, [int(level) for level in levels])
    seeds = Dataset({name: codes[:, j] for j, name in enumerate(names)}, domain)
    total = float(codes.shape[0])
    measurements, start = [], 0
    for table in task["tables"]:
        size = int(np.prod(levels[table]))
        counts = total * task["answers"][start : start + size]
        measurements.append(LinearMeasurement(counts, tuple(names[column] for column in table)))
        start += size
    estimator = ReweightedDatasetEstimator(seed_data=seeds, optimizer=optax.adam(RATE))

    def solve() -> Found:
        model = estimator.estimate(domain, measurements, known_total=total, iters=STEPS)
        weights = np.array(model.weights, dtype=np.float64)
        return Found(weights / weights.sum(), note=f"{STEPS:,} steps")

    return solve


# ---------------------------------------------------------------------------------- denoising


def half_spaces(queries: FloatArray, answers: FloatArray, sigma: FloatArray) -> Any:
    """(N, K + 1) constraints ``least - u . q_i <= 0`` and the cost ``u . a - least``.

    Both programs are given to their solvers in dual form, with u in units of the noise and
    ``least`` as the K + 1 variables; the shares are the constraints' own multipliers. Clarabel
    and HiGHS were both faster so than with the N shares as variables: Clarabel by 2 times on
    20,000 rows, HiGHS by 5 times on 307,511.
    """
    constraints = np.empty((queries.shape[0], queries.shape[1] + 1))
    np.divide(queries, -sigma, out=constraints[:, :-1])
    constraints[:, -1] = 1.0
    return constraints, np.append(answers / sigma, -1.0)


def clarabel(task: Task) -> Prepared:
    """The quadratic program over all rows at once, in dual form."""
    import clarabel as cl
    from scipy.sparse import csc_array, diags_array

    sigma, rows = task["deviations"], task["base"].size
    constraints, cost = half_spaces(_queries(task), task["answers"], sigma)
    matrix = csc_array(constraints)
    del constraints
    square = diags_array(np.append(np.ones(sigma.size), 0.0), format="csc")
    settings = cl.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1

    def solve() -> Found:
        cone = [cl.NonnegativeConeT(rows)]
        found = cl.DefaultSolver(square, cost, matrix, np.zeros(rows), cone, settings).solve()
        shares = np.maximum(np.array(found.z), 0.0)
        return Found(shares / shares.sum(), np.array(found.x)[:-1] / sigma)

    return solve


SOLVERS: dict[str, Callable[[Task], Prepared]] = {
    "ebal": ebal,
    "empirical-calibration": empirical_calibration,
    "weightipy": weightipy,
    "rimpy": rimpy,
    "mbi": mbi,
    "clarabel": clarabel,
}
"""By name, which is also that of the environment."""


def load(path: str) -> Task:
    """A task from its file, all arrays in memory."""
    with np.load(path) as file:
        return dict(file)


def main(solver: str, small: str, task: str, answer: str) -> None:
    """Solve, and write weights and cost."""
    SOLVERS[solver](load(small))()
    arrays = load(task)
    cost = measured(lambda: SOLVERS[solver](arrays))
    found = cost.result
    told = {"note": found.note, **{k: v for k, v in cost._asdict().items() if k != "result"}}
    multipliers = {} if found.multipliers is None else {"multipliers": found.multipliers}
    np.savez(answer, weights=found.weights, told=json.dumps(told), **multipliers)


if __name__ == "__main__":
    main(*sys.argv[1:])
