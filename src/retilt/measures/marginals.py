"""Contingency tables: the shares of the cells of a partition of the rows.

A k-way table is one block: every row falls in exactly one cell, so however many cells there
are, replacing a row moves two of them by one and adding a row moves one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise, product
from math import isfinite, prod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import (
    Feature,
    FloatArray,
    Indicators,
    IntArray,
    Norm,
    Relation,
    Terms,
    Variable,
    label,
)
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import limits

Bins: TypeAlias = int | tuple[float, ...]
"""Number of quantile bins, or inner edges."""

DEFAULT_BINS = 20
MAX_CELLS = 100_000
"""Cells of one table; a larger one is noise in almost every cell."""


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


@dataclass(frozen=True, slots=True)
class Marginal:
    """The k-way table of some columns.

    Parameters
    ----------
    columns
        At least one distinct name.
    bins
        For numeric and datetime columns: a number of quantile bins of the synthetic table or
        ascending inner edges (datetimes as microseconds since 1970).
    default_bins
        The number of quantile bins of the others.
    weight
        Importance, positive.
    edges
        Inner edges by column, fixed by the plan; ``None`` before that.
    """

    columns: tuple[str, ...]
    bins: Mapping[str, Bins] = field(default_factory=dict)
    default_bins: int = DEFAULT_BINS
    weight: float = 1.0
    edges: Mapping[str, tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", MappingProxyType(dict(self.bins)))
        _check_bins(", ".join(self.columns), self.default_bins)
        for name, bins in self.bins.items():
            if name not in self.columns:
                raise WorkloadError(
                    f"bins: {name!r} is not a column of this table "
                    f"({', '.join(map(repr, self.columns))})."
                )
            _check_bins(name, bins)
        if self.edges is not None:
            object.__setattr__(self, "edges", MappingProxyType(dict(self.edges)))
            for name, edges in self.edges.items():
                _check_bins(name, tuple(edges))

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "marginal"

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Marginal:
        """Return this table with its bins' edges fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null. Edges
        are quantiles that occur in the data, so that a repeated value is never split.
        """
        edges = {}
        for name in self.columns:
            column = schema[name]
            if isinstance(column, (Categorical, Boolean)):
                if name in self.bins:
                    raise WorkloadError(
                        f"bins: {name!r} is not numeric; its cells are its categories."
                    )
                continue
            bins = self.bins.get(name, self.default_bins)
            edges[name] = (
                _quantile_edges(column, values[name], bins) if isinstance(bins, int) else bins
            )
        # The edges say it all now: what was wished for would only be lost in a file.
        return replace(self, edges=edges, bins={}, default_bins=DEFAULT_BINS)

    def bind(self, terms: Terms) -> MarginalBlock:
        """The block of this table."""
        schema = terms.schema
        edges = self.edges or {}
        for name in self.columns:
            if isinstance(schema[name], (Numeric, Datetime)) and name not in edges:
                raise WorkloadError(f"marginal: no bin edges were fixed for {name!r}.")
        block = MarginalBlock(
            variables=tuple(Variable(n, schema[n]) for n in self.columns),
            edges=tuple(tuple(edges.get(n, ())) for n in self.columns),
            norm=terms.norm,
            relation=terms.relation,
            known_total=not terms.counted,
        )
        if block.size > MAX_CELLS:
            raise WorkloadError(
                f"marginal of {', '.join(map(repr, self.columns))}: it has {block.size:,} cells, "
                f"allowed are {MAX_CELLS:,}. Use fewer columns, coarser bins or fewer categories."
            )
        return block


def _cell_label(value: str, column: Column) -> str:
    """A category quoted where it must be; a bin such as ``[17, 25)`` as it is."""
    return label(value) if isinstance(column, Categorical) else value


def _check_bins(name: str, bins: object) -> None:
    if isinstance(bins, int) and not isinstance(bins, bool):
        if not 1 <= bins <= 1000:
            raise WorkloadError(f"bins of {name!r}: got {bins}, expected 1 to 1000 or inner edges.")
        return
    if not (isinstance(bins, tuple) and _ascending(bins)):
        raise WorkloadError(
            f"bins of {name!r}: got {bins!r}, expected a number of bins or ascending inner edges."
        )


def _ascending(edges: tuple[object, ...]) -> bool:
    numbers = [e for e in edges if isinstance(e, (int, float)) and not isinstance(e, bool)]
    finite = len(numbers) == len(edges) and all(map(isfinite, numbers))
    return finite and all(a < b for a, b in pairwise(numbers))


def _quantile_edges(column: Column, values: FloatArray, bins: int) -> tuple[float, ...]:
    """Inner edges at the quantiles of the finite values, strictly inside the bounds."""
    assert isinstance(column, (Numeric, Datetime))
    low, high = limits(column)
    clamped = np.clip(values[np.isfinite(values)], low, high)
    if bins == 1 or len(clamped) == 0 or low == high:
        return ()
    quantiles = np.quantile(clamped, np.arange(1, bins) / bins, method="higher")
    return tuple(float(e) for e in np.unique(quantiles) if max(low, clamped.min()) < e <= high)


@dataclass(frozen=True, slots=True)
class MarginalBlock:
    """A table bound to a schema. See :class:`retilt.measures.base.Block`.

    Cells are numbered in row-major order of the columns' cells (categories, ``other``,
    ``null``; or bins, ``null``).
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

    @property
    def features(self) -> tuple[Feature, ...]:
        """One column of cell numbers each."""
        return tuple(v.cells(e) for v, e in zip(self.variables, self.edges, strict=True))

    @property
    def _labels(self) -> list[tuple[str, ...]]:
        return [v.cell_labels(e) for v, e in zip(self.variables, self.edges, strict=True)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each column."""
        return tuple(len(labels) for labels in self._labels)

    @property
    def size(self) -> int:
        """Number of cells of the table."""
        return prod(self.shape)

    @property
    def keys(self) -> tuple[str, ...]:
        """The same for the same table whatever the order of its columns."""
        identities = [v.identity for v in self.variables]
        order = sorted(range(len(identities)), key=lambda i: str(identities[i]))
        head = [[identities[i], list(self.edges[i])] for i in order]
        prefix = json.dumps(["table", head], ensure_ascii=False)
        cells = product(*(range(s) for s in self.shape))
        return tuple(f"{prefix}{[cell[i] for i in order]}" for cell in cells)

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

    def _codes(self, arrays: Sequence[IntArray]) -> NDArray[np.int64]:
        codes = np.zeros(len(arrays[0]), dtype=np.int64)
        for array, size in zip(arrays, self.shape, strict=True):
            codes = codes * size + array
        return codes

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Rows in each cell."""
        counts: list[int] = np.bincount(self._codes(arrays), minlength=self.size).tolist()
        return counts

    def design(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> Indicators:
        """Every row's cell; a table is kept or dropped whole."""
        assert len(keep) == self.size
        return Indicators(codes=self._codes(arrays).astype(np.int32), size=self.size)

    @property
    def statistics(self) -> tuple[str, ...]:
        """``cell(sex=F, race=White)``: the share of each cell."""
        labelled = (
            [f"{variable.label}={_cell_label(v, variable.column)}" for v in labels]
            for variable, labels in zip(self.variables, self._labels, strict=True)
        )
        return tuple(f"cell({', '.join(cell)})" for cell in product(*labelled))

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """Name and query: bins whose edges print alike are not the same cell."""
        return tuple(f"{s} {k}" for s, k in zip(self.statistics, self.keys, strict=True))

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) shares; with a public row count, projected on a total of 1.

        The projection (subtract the mean excess) is the least-squares one: the noise of all
        cells is alike.
        """
        excess = float(answers.sum()) - 1
        # A table's own shares add up to 1 but for rounding, which must not fill empty cells.
        if not self.known_total or abs(excess) < 1e-9:
            return answers.copy()
        projected: FloatArray = answers - excess / self.size
        return projected

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors of the (projected) shares."""
        del answers  # the shares are linear in the answers
        if self.known_total:
            m = self.size
            # x_k - mean(x): variance v_k (1 - 2/m) + sum(v) / m^2.
            variances = variances * (1 - 2 / m) + variances.sum() / m**2
            factor = factor - factor.mean(axis=0)
        errors: FloatArray = np.sqrt(np.maximum(variances + (factor**2).sum(axis=1), 0))
        return errors

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Cells without a row whose measured share is over three standard errors above zero."""
        counts = np.bincount(self._codes(arrays), minlength=self.size)
        missed = np.flatnonzero((counts == 0) & (answers > 3 * errors))
        # With thousands of empty cells some noise passes three standard errors: say the worst.
        worst = missed[np.argsort(-answers[missed], kind="stable")][:5]
        names = self.statistics
        return [
            f"{names[k]}: measured {answers[k]:.3g} ± {errors[k]:.2g}, but no synthetic row "
            "lies in this cell."
            for k in worst
        ]
