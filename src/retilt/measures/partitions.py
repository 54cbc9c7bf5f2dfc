"""Partitions of the rows in cells: what tables, rates and distributions are asked as.

Every row falls in exactly one cell, so however many cells there are, replacing a row moves two
of their counts by one and adding a row moves one. All cells are kept: with a public row count
the shares are projected on their known total, which is less noisy than to leave one cell out.

What is asked about the cells (their shares, rates, a distribution) is the business of the
blocks that derive from :class:`Partition`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import (
    Alone,
    Feature,
    FloatArray,
    Indicators,
    IntArray,
    Norm,
    Relation,
    Variable,
    label,
)
from retilt.measures.entries import is_number, listed, short
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import limits

Bins: TypeAlias = int | tuple[float, ...]
"""Number of quantile bins, or inner edges."""

DEFAULT_BINS = 20
MAX_CELLS = 100_000
"""Cells of one partition; a larger one is noise in almost every cell."""

MAX_NAMES = 2**24
"""Characters of the names of all statistics, of one measure and of a plan: they fill its file."""

TRUSTED = 10.0
"""Standard errors that a denominator must be away from zero for the delta method to hold."""

ROUNDING = 1e-9
"""Shares that add up to 1 within this do so but for rounding."""

_WORST = 5
"""How many of many cells are named."""


def partition_sensitivity(norm: Norm, relation: Relation) -> Fraction:
    """Bound of one row's effect on the counts of a partition's cells.

    Replace-one: the row leaves one cell (-1) and enters another (+1), or stays: the L1 change
    is at most 2 and the squared L2 change ``1**2 + 1**2 = 2``. Add/remove-one: one cell
    changes by 1: 1 in both norms. All are attained.

    >>> partition_sensitivity(2, Relation.REPLACE), partition_sensitivity(1, Relation.ADD_REMOVE)
    (Fraction(2, 1), Fraction(1, 1))
    """
    del norm  # the squared L2 bound and the L1 bound are the same number
    return Fraction(2 if relation is Relation.REPLACE else 1)


@dataclass(frozen=True)
class Partition:
    """The shares of the cells of some variables. Part of a :class:`retilt.measures.base.Block`.

    Cells are numbered in row-major order of the variables' cells (categories, ``other``,
    ``null``; or bins, ``null``; or false, true for a condition).

    Attributes
    ----------
    variables, edges
        What the cells are made of; inner bin edges, none for categories.
    norm, relation
        Of the sensitivity.
    known_total
        Whether the shares add up to 1 but for the noise of the cells themselves: the row
        count is public.
    """

    variables: tuple[Variable, ...]
    edges: tuple[tuple[float, ...], ...]
    norm: Norm
    relation: Relation
    known_total: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its variables."""
        return tuple(v.name for v in self.variables)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """One column of cell numbers each."""
        return tuple(v.cells(e) for v, e in zip(self.variables, self.edges, strict=True))

    @cached_property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        """Names of each variable's cells, as they stand in statistics."""
        return tuple(
            tuple(_cell_label(text, v.column) for text in v.cell_labels(e))
            for v, e in zip(self.variables, self.edges, strict=True)
        )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each variable."""
        return tuple(map(len, self.labels))

    @cached_property
    def size(self) -> int:
        """Number of cells."""
        return prod(self.shape)

    @cached_property
    def identity(self) -> str:
        """The same for the same cells whatever the order of the variables.

        A digest: written out a hundred thousand times, the edges would fill the memory.
        """
        parts = [[v.identity, list(e)] for v, e in zip(self.variables, self.edges, strict=True)]
        text = json.dumps([parts[i] for i in self._order], ensure_ascii=False)
        return "cells " + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def _order(self) -> list[int]:
        identities = [str(v.identity) for v in self.variables]
        return sorted(range(len(identities)), key=lambda i: identities[i])

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """(K,) the same for the same cells whatever the order of the variables."""
        order = self._order
        places = np.arange(self.size).reshape([self.shape[i] for i in order])
        # The number that each cell has if the variables stand in canonical order.
        numbers = places.transpose(np.argsort(order)).ravel()
        return tuple(f"{self.identity} {n}" for n in numbers.tolist())

    @property
    def units(self) -> tuple[int, ...]:
        """Counts of rows."""
        return (1,) * self.size

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """All cells alike."""
        return (Fraction(1),) * self.size

    def sensitivity(self) -> Fraction:
        """See :func:`partition_sensitivity`."""
        return partition_sensitivity(self.norm, self.relation)

    def codes(self, arrays: Sequence[IntArray]) -> NDArray[np.int64]:
        """(rows,) the cell of every row."""
        codes = arrays[0].astype(np.int64)
        for array, size in zip(arrays[1:], self.shape[1:], strict=True):
            codes = codes * size + array
        return codes

    def counts(self, arrays: Sequence[IntArray]) -> NDArray[np.int64]:
        """(K,) rows in each cell."""
        return np.bincount(self.codes(arrays), minlength=self.size)

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Rows in each cell."""
        counts: list[int] = self.counts(arrays).tolist()
        return counts

    def design(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> Indicators:
        """Every row's cell; a partition is kept or dropped whole."""
        assert len(keep) == self.size
        return Indicators(codes=self.codes(arrays).astype(np.int32), size=self.size)

    def alone(self, number: int, array: IntArray) -> Alone | None:
        """All cells if there is one variable, else none."""
        del number
        if len(self.variables) > 1:
            return None
        every = np.arange(self.size)
        return Alone(every, (self.design([array], every),))

    @property
    def cells(self) -> tuple[str, ...]:
        """(K,) the cells' names: ``sex=F, race=White``."""
        named = (
            [f"{v.label}={text}" for text in texts]
            for v, texts in zip(self.variables, self.labels, strict=True)
        )
        return tuple(", ".join(cell) for cell in product(*named))

    @property
    def characters(self) -> int:
        """How long the cells' names are together."""
        texts = zip(self.variables, self.labels, self.shape, strict=True)
        return sum(
            self.size * (len(v.label) + 3) + self.size // cells * sum(map(len, labels))
            for v, labels, cells in texts
        )

    def shares(self, answers: FloatArray) -> FloatArray:
        """(K,) shares; with a public row count, projected on a total of 1.

        The projection (subtract the mean excess) is the least-squares one: the noise of all
        cells is alike. Shares below 0 are kept: cut off, they would be too large on average.
        """
        excess = float(answers.sum()) - 1
        # A table's own shares add up to 1 but for rounding, which must not fill empty cells.
        if not self.known_total or abs(excess) < ROUNDING:
            return answers.copy()
        projected: FloatArray = answers - excess / self.size
        return projected

    def share_errors(self, variances: FloatArray, factor: FloatArray) -> FloatArray:
        """(K,) standard errors of the (projected) shares."""
        return root(*self.share_noise(variances, factor))

    def share_noise(
        self, variances: FloatArray, factor: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(K,) variances and (K, R) common factor of the (projected) shares, cell by cell."""
        if self.known_total:
            m = self.size
            # x_k - mean(x): variance v_k (1 - 2/m) + sum(v) / m^2.
            variances = variances * (1 - 2 / m) + variances.sum() / m**2
            factor = factor - factor.mean(axis=0)
        return variances, factor

    def combination_errors(
        self, coefficients: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(J,) standard errors of combinations of the (projected) shares.

        ``coefficients`` (J, K) are few: one row for each of a handful of quantiles.
        """
        if self.known_total:
            coefficients = coefficients - coefficients.mean(axis=1, keepdims=True)
        return root(coefficients**2 @ variances, coefficients @ factor)


def root(variances: FloatArray, factor: FloatArray) -> FloatArray:
    """Standard errors under noise of independent and common parts."""
    errors: FloatArray = np.sqrt(np.maximum(variances + (factor**2).sum(axis=1), 0))
    return errors


def check_cells(block: Partition, what: str) -> None:
    """Refuse a partition of too many cells."""
    if block.size > MAX_CELLS:
        size = f"{block.size:,}" if block.size < 10**15 else "more than 1e15"
        raise WorkloadError(
            f"{what}: it has {size} cells, allowed are {MAX_CELLS:,}. "
            "Use fewer columns, coarser bins or fewer categories."
        )
    check_names(block.characters, what)


def check_names(characters: int, what: str) -> None:
    """Refuse statistics whose names are too long, before they are made."""
    if characters > MAX_NAMES:
        raise WorkloadError(
            f"{what}: the names of its statistics have {characters:,} characters, allowed are "
            f"{MAX_NAMES:,}. Shorten the names of columns and categories, or ask for fewer."
        )


def worst(numbers: NDArray[np.intp], by: FloatArray) -> list[int]:
    """The few of ``numbers`` that have the largest values in ``by``.

    With thousands of empty cells some noise passes three standard errors: say the worst.
    """
    order = np.argsort(-by[numbers], kind="stable")[:_WORST]
    return [int(k) for k in numbers[order]]


def named_cells(column: Column, cells: int) -> list[bool]:
    """(cells,) whether a cell stands for something that the schema says there is.

    ``other`` and, of a column that is not nullable, ``null`` are where the private table's
    surprises go; a statistic of them would be one of noise.
    """
    spare = [False] if isinstance(column, Categorical) else []
    return [True] * (cells - len(spare) - 1) + spare + [column.nullable]


def named_products(variables: Sequence[Variable], shape: Sequence[int]) -> NDArray[np.bool_]:
    """(cells,) of variables together: which are named in each of them. See :func:`named_cells`."""
    named = np.array([True])
    for variable, cells in zip(variables, shape, strict=True):
        named = np.outer(named, named_cells(variable.column, cells)).ravel()
    return named


def rare(block: Partition, shares: FloatArray, errors: FloatArray) -> list[str]:
    """Name the cells that are noise at this budget: expected error above their share.

    Parameters
    ----------
    block
        Of a table, of rates or of a distribution.
    shares, errors
        (K,) the synthetic table's shares of the cells and the standard errors expected of
        them (counts and their errors do as well). Cells without a synthetic row are not
        named: they are another note's business.

    Returns
    -------
    list of str
        None or one sentence with the worst few cells and a count of the rest.
    """
    drowned = np.flatnonzero((shares > 0) & (errors > shares))
    if not len(drowned):
        return []
    noisiest = np.divide(errors, shares, out=np.zeros(len(shares)), where=shares > 0)
    names = block.cells
    told = [f"{names[k]} ({shares[k]:.2g} ± {errors[k]:.2g})" for k in worst(drowned, noisiest)]
    more = len(drowned) - len(told)
    return [
        f"{', '.join(map(label, block.names))}: {len(drowned)} of {block.size} cells are so rare "
        f"that noise dominates them at this budget: {'; '.join(told)}"
        + (f"; and {more} more." if more else ".")
    ]


def _cell_label(text: str, column: Column) -> str:
    """A category quoted where it must be; a bin such as ``[17, 25)`` as it is."""
    return label(text) if isinstance(column, Categorical) else text


# --- bins --------------------------------------------------------------------------------


def fix_edges(
    names: Sequence[str],
    schema: Schema,
    values: Mapping[str, FloatArray],
    *,
    bins: Mapping[str, Bins],
    default: int,
) -> dict[str, tuple[float, ...]]:
    """Inner bin edges of the numeric and datetime columns among ``names``.

    ``values`` holds the synthetic table's numeric columns (rows,), NaN for null. Edges are
    quantiles that occur in the data, so that a repeated value is never split.
    """
    edges = {}
    for name in names:
        column = schema[name]
        if isinstance(column, (Categorical, Boolean)):
            if name in bins:
                raise WorkloadError(f"bins: {name!r} is not numeric; its cells are its categories.")
            continue
        asked = bins.get(name, default)
        # As floats, as a plan's file is read: 30 and 30.0 would give it two hashes.
        edges[name] = (
            quantile_edges(column, values[name], asked)
            if isinstance(asked, int)
            else tuple(map(float, asked))
        )
    return edges


def require_edges(
    what: str, names: Sequence[str], schema: Schema, edges: Mapping[str, tuple[float, ...]]
) -> tuple[tuple[float, ...], ...]:
    """Inner edges of each column, none for categories; refuse what was not fixed."""
    for name in names:
        if isinstance(schema[name], (Numeric, Datetime)) and name not in edges:
            raise WorkloadError(f"{what}: no bin edges were fixed for {name!r}.")
    return tuple(tuple(edges.get(n, ())) for n in names)


def check_all_bins(
    names: Sequence[str],
    bins: Mapping[str, Bins],
    default: int,
    edges: Mapping[str, tuple[float, ...]] | None,
) -> None:
    """Refuse bins or edges that are malformed or of another column."""
    check_bins(", ".join(names), default)
    for name, asked in bins.items():
        if name not in names:
            raise WorkloadError(f"bins: {name!r} is not a column of this table ({listed(names)}).")
        check_bins(name, asked)
    for name, inner in (edges or {}).items():
        check_bins(name, tuple(inner))


def check_bins(name: str, bins: object) -> None:
    """Refuse what is neither a number of bins nor ascending inner edges."""
    if isinstance(bins, int) and not isinstance(bins, bool):
        if not 1 <= bins <= 1000:
            raise WorkloadError(
                f"bins of {name!r}: got {short(bins)}, expected 1 to 1000 or inner edges."
            )
        return
    if isinstance(bins, tuple) and len(bins) >= MAX_CELLS:
        raise WorkloadError(
            f"bins of {name!r}: got {len(bins):,} edges, allowed are {MAX_CELLS - 1:,}."
        )
    if not (isinstance(bins, tuple) and ascending(bins)):
        raise WorkloadError(
            f"bins of {name!r}: got {short(bins)}, expected a number of bins or ascending inner "
            "edges."
        )


def ascending(numbers: Sequence[object]) -> bool:
    """Whether they are finite numbers, each above the one before."""
    return all(map(is_number, numbers)) and all(
        a < b  # type: ignore[operator]
        for a, b in pairwise(numbers)
    )


def quantile_edges(column: Column, values: FloatArray, bins: int) -> tuple[float, ...]:
    """Inner edges at the quantiles of the finite values, strictly inside the bounds."""
    assert isinstance(column, (Numeric, Datetime))
    low, high = limits(column)
    clamped = np.clip(values[np.isfinite(values)], low, high)
    if bins == 1 or len(clamped) == 0 or low == high:
        return ()
    quantiles = np.quantile(clamped, np.arange(1, bins) / bins, method="higher")
    return tuple(float(e) for e in np.unique(quantiles) if max(low, clamped.min()) < e <= high)
