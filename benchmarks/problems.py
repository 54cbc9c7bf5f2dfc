"""The problems that the benchmarks solve: made tables, seeded noise, the same for every solver.

Ten correlated continuous columns of mixed shapes in [0, 1]; the "real" table differs from the
synthetic one in its correlations, spreads and means. Measured are the means, squares and products
of all ten columns: 65 queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

import retilt as rt
from retilt.candidates import Candidates
from retilt.engines.local import open_table
from retilt.measures.base import FloatArray, Products
from retilt.privacy.answers import Answers
from retilt.testing import insecure_measure
from retilt.tilting import Problem
from retilt.tilting.denoise import denoise

ROWS = 307_511
"""Rows of the private table and, unless told, of the synthetic one: those of Home Credit."""

COLUMNS = 10
_FEW = 1_000
_NAMES = [f"c{j}" for j in range(COLUMNS)]


@dataclass(frozen=True, slots=True)
class Case:
    """A problem with the table that it was made from.

    Attributes
    ----------
    synthetic, answers
        What a user has: a table, and the noisy answers to a plan.
    noisy
        The same as a solver's problem.
    reachable
        The problem with answers that weights of the rows give exactly, all of them positive:
        the noisy answers after denoising. None where that is what the benchmark is about.
    """

    synthetic: pa.Table
    answers: Answers
    noisy: Problem
    reachable: Problem | None = None


def table(rows: int, *, seed: int, mixing: float) -> pa.Table:
    """Ten columns in [0, 1] that share a common factor, the more the larger ``mixing`` is."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, 1))
    loads = np.linspace(-1, 1, COLUMNS) * mixing
    values = 1 / (1 + np.exp(-(common * loads + rng.normal(size=(rows, COLUMNS)) - 0.5)))
    return pa.table({name: values[:, j] ** (1 + j % 3) for j, name in enumerate(_NAMES)})


def _case(rows: int, private_rows: int) -> Case:
    synthetic = table(rows, seed=0, mixing=0.4)
    private = table(private_rows, seed=1, mixing=0.8)
    schema = {name: rt.Numeric(0.0, 1.0) for name in _NAMES}
    plan = rt.plan(synthetic, rt.correlation(_NAMES), epsilon=1, rows=private_rows, schema=schema)
    answers = insecure_measure(private, plan, rng=np.random.default_rng(0))
    noisy = Candidates.of(open_table(synthetic), answers, None).problem
    return Case(synthetic, answers, noisy)


def moments(rows: int) -> Case:
    """``moments-65``: a private table of 307,511 rows at epsilon 1, so little noise."""
    case = _case(rows, ROWS)
    return replace(case, reachable=replace(case.noisy, answers=denoise(case.noisy, "qp").answers))


def out_of_reach(rows: int) -> Case:
    """``denoise-*``: a private table of 1,000 rows, whose noise puts the answers out of reach.

    With the noise of 307,511 rows the nearest reachable answers are the answers themselves, and
    there is nothing to find.
    """
    return _case(rows, _FEW)


PROBLEMS: dict[str, Callable[[int], Case]] = {
    "moments-65": moments,
    "denoise-qp": out_of_reach,
    "denoise-lp": out_of_reach,
}
"""From a name to the function that makes the problem with so many synthetic rows."""


def query_matrix(problem: Problem) -> FloatArray:
    """(N, K) every query on every row: what a solver needs that knows nothing of products."""
    parts = []
    for design in problem.designs:
        if not isinstance(design, Products):
            raise TypeError("query_matrix: got indicators, expected products of columns only.")
        # Column number -1 is the last one: ones.
        extended = np.column_stack([design.values, np.ones(problem.rows)])
        block = extended[:, design.left]
        block *= extended[:, design.right]
        block *= design.factor
        block += design.offset
        parts.append(block)
    return parts[0] if len(parts) == 1 else np.hstack(parts)
