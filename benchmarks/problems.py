"""The problems that the benchmarks solve: made tables, seeded noise, the same for every solver.

``moments-65``: ten correlated amounts, log-normal as in a table of loans, cut at a declared bound
and encoded to [0, 1]; the "real" table differs from the synthetic one in its correlations and
spreads. Measured are the means, squares and products of all ten columns: 65 queries, far from
independent of each other, since a skewed column and its square nearly are one.

``moments-65-even`` and ``denoise-*``: the same with columns that fill [0, 1] more evenly.

``margins-55`` and ``two-way-45``: categorical columns of unequal levels that share a common
factor. The answers are the tables of the same rows under other weights, so that weights which
give them exactly exist, all of them positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import retilt as rt
from benchmarks.matrix import indicator_queries, product_queries, table_cells
from retilt.candidates import Candidates
from retilt.engines.local import open_table
from retilt.measures.base import FloatArray, Indicators, IntArray, Products
from retilt.privacy.accounting import gaussian_distance
from retilt.privacy.answers import Answers
from retilt.testing import insecure_measure
from retilt.tilting import Covariance, Problem
from retilt.tilting.denoise import denoise
from retilt.tilting.designs import totals

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix: TypeAlias = "FloatArray | csr_array"

ROWS = 307_511
"""Rows of the private table and, unless told, of the synthetic one: those of Home Credit."""

COLUMNS = 10
_FEW = 1_000
_NAMES = [f"c{j}" for j in range(COLUMNS)]


@dataclass(frozen=True, slots=True)
class Categories:
    """Categorical columns, and which tables of them are measured.

    Attributes
    ----------
    codes
        (N, C) int32: each column's level.
    levels
        (C,) how many there are.
    tables
        (P, k) numbers of the columns of each table.
    """

    codes: IntArray
    levels: NDArray[np.intp]
    tables: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Case:
    """A problem with what it was made from.

    Attributes
    ----------
    problem
        What retilt and its peers solve: with answers that weights of the rows give exactly, all
        of them positive, but for ``denoise-*``, which is about answers out of reach.
    synthetic, answers
        What a user has: a table, and the noisy answers to a plan. None for ``margins-55`` and
        ``two-way-45``.
    noisy
        The problem with these answers, before any denoising.
    categories
        The columns of ``margins-55`` and ``two-way-45``.
    """

    problem: Problem
    synthetic: pa.Table | None = None
    answers: Answers | None = None
    noisy: Problem | None = None
    categories: Categories | None = None

    def task(self) -> dict[str, NDArray[Any]]:
        """The problem as the arrays that peers take (``benchmarks.foreign``)."""
        shared: dict[str, NDArray[Any]] = {
            "answers": self.problem.answers,
            "base": self.problem.base,
            "deviations": self.problem.covariance.deviations,
        }
        if self.categories is not None:
            made = self.categories
            return shared | {"codes": made.codes, "levels": made.levels, "tables": made.tables}
        (design,) = self.problem.designs
        if not isinstance(design, Products):
            raise TypeError("task: expected products of columns.")
        names = ("values", "left", "right", "offset", "factor")
        return shared | {name: getattr(design, name) for name in names}


def table(rows: int, *, seed: int, mixing: float) -> pa.Table:
    """Ten columns in [0, 1] that share a common factor, the more the larger ``mixing`` is."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, 1))
    loads = np.linspace(-1, 1, COLUMNS) * mixing
    values = 1 / (1 + np.exp(-(common * loads + rng.normal(size=(rows, COLUMNS)) - 0.5)))
    return pa.table({name: values[:, j] ** (1 + j % 3) for j, name in enumerate(_NAMES)})


def amounts(rows: int, *, seed: int, mixing: float) -> pa.Table:
    """Ten log-normal columns that share a common factor, cut at four deviations and put on [0, 1].

    Their logarithms' deviations go from a half to one, times what the common factor adds.
    """
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, 1))
    loads = np.linspace(-1, 1, COLUMNS) * mixing
    logs = (common * loads + rng.normal(size=(rows, COLUMNS))) * np.linspace(0.5, 1, COLUMNS)
    values = np.minimum(np.exp(logs - 4), 1)
    return pa.table({name: values[:, j] for j, name in enumerate(_NAMES)})


def _case(rows: int, private_rows: int, make: Callable[..., pa.Table] = table) -> Case:
    synthetic = make(rows, seed=0, mixing=0.4)
    private = make(private_rows, seed=1, mixing=0.8)
    schema = {name: rt.Numeric(0.0, 1.0) for name in _NAMES}
    plan = rt.plan(synthetic, rt.correlation(_NAMES), epsilon=1, rows=private_rows, schema=schema)
    answers = insecure_measure(private, plan, rng=np.random.default_rng(0))
    noisy = Candidates.of(open_table(synthetic), answers, None).problem
    return Case(noisy, synthetic, answers, noisy)


def moments(rows: int) -> Case:
    """``moments-65``: a private table of 307,511 rows at epsilon 1, so little noise."""
    return _denoised(_case(rows, ROWS, amounts))


def even_moments(rows: int) -> Case:
    """``moments-65-even``: the same with columns that are not skewed."""
    return _denoised(_case(rows, ROWS))


def _denoised(case: Case) -> Case:
    return replace(case, problem=replace(case.problem, answers=denoise(case.problem, "qp").answers))


def out_of_reach(rows: int) -> Case:
    """``denoise-*``: a private table of 1,000 rows, whose noise puts the answers out of reach.

    With the noise of 307,511 rows the nearest reachable answers are the answers themselves, and
    there is nothing to find.
    """
    return _case(rows, _FEW)


def _columns(rows: int, levels: NDArray[np.intp]) -> tuple[FloatArray, IntArray]:
    """(N, C) correlated normal columns, and their levels, of falling frequency."""
    from scipy.special import ndtri

    rng = np.random.default_rng(0)
    common = rng.normal(size=rows)
    hidden = np.empty((rows, levels.size))
    codes = np.empty((rows, levels.size), dtype=np.int32)
    for column, load in enumerate(np.linspace(-0.6, 0.6, levels.size)):
        hidden[:, column] = (load * common + rng.normal(size=rows)) / np.hypot(1, load)
        shares = np.cumsum(0.7 ** np.arange(levels[column]))
        edges = ndtri(shares[:-1] / shares[-1])
        codes[:, column] = np.searchsorted(edges, hidden[:, column])
    return hidden, codes


def _categorical(rows: int, levels: list[int], order: int) -> Case:
    """All tables of ``order`` columns, with the answers of a tilted copy of the rows."""
    sizes = np.array(levels, dtype=np.intp)
    hidden, codes = _columns(rows, sizes)
    tables = np.array(list(combinations(range(sizes.size), order)), dtype=np.intp)
    # Not only a function of the tables: a product of two columns, and where in its level each is.
    rng = np.random.default_rng(1)
    scores = 0.15 * hidden[:, :COLUMNS] @ rng.normal(size=COLUMNS)
    scores += 0.1 * hidden[:, 0] * hidden[:, 1]
    tilted = np.exp(scores - scores.max())
    tilted /= tilted.sum()
    designs = [Indicators(*table_cells(codes, sizes, table)) for table in tables]
    answers = np.concatenate([totals(part.codes, tilted, part.size) for part in designs])
    # The noise of epsilon 1 on a table of this size.
    deviation = np.sqrt(2 * len(designs)) / rows / gaussian_distance(1.0, rows**-2)
    noise = Covariance(np.full(answers.size, deviation**2))
    problem = Problem(designs, answers, noise, np.ones(rows))
    return Case(problem, categories=Categories(codes, sizes, tables))


def margins(rows: int) -> Case:
    """``margins-55``: the one-way tables of 55 columns of 2 to 8 levels."""
    return _categorical(rows, [2 + column % 7 for column in range(55)], 1)


def two_way(rows: int) -> Case:
    """``two-way-45``: all two-way tables of ten columns of 3 to 8 levels."""
    return _categorical(rows, [3 + column % 6 for column in range(COLUMNS)], 2)


PROBLEMS: dict[str, Callable[[int], Case]] = {
    "moments-65": moments,
    "moments-65-even": even_moments,
    "margins-55": margins,
    "two-way-45": two_way,
    "denoise-qp": out_of_reach,
    "denoise-lp": out_of_reach,
}
"""From a name to the function that makes the problem with so many synthetic rows."""


def query_matrix(problem: Problem) -> Matrix:
    """(N, K) every query on every row; sparse where all are cells of tables."""
    cells = [design for design in problem.designs if isinstance(design, Indicators)]
    if len(cells) == len(problem.designs):
        return indicator_queries([part.codes for part in cells], [part.size for part in cells])
    (design,) = problem.designs
    if not isinstance(design, Products):
        raise TypeError("query_matrix: expected cells of tables, or products of columns.")
    return product_queries(design.values, design.left, design.right, design.offset, design.factor)
