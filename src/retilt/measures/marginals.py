"""Contingency tables: the shares of the cells of a partition of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import FloatArray, IntArray, Terms, Variable
from retilt.measures.entries import listed, read_edges, read_names, read_weight, reading
from retilt.measures.partitions import (
    DEFAULT_BINS,
    Bins,
    Partition,
    check_all_bins,
    check_cells,
    fix_edges,
    named_products,
    require_edges,
    worst,
)
from retilt.schema.columns import Schema


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
        if self.edges is not None:
            object.__setattr__(self, "edges", MappingProxyType(dict(self.edges)))
        check_all_bins(self.columns, self.bins, self.default_bins, self.edges)

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "marginal"

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Marginal:
        """Return this table with its bins' edges fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null.
        """
        edges = fix_edges(self.columns, schema, values, bins=self.bins, default=self.default_bins)
        # The edges say it all now: what was wished for would only be lost in a file.
        return replace(self, edges=edges, bins={}, default_bins=DEFAULT_BINS)

    def bind(self, terms: Terms) -> MarginalBlock:
        """The block of this table."""
        block = MarginalBlock(
            variables=tuple(Variable(n, terms.schema[n]) for n in self.columns),
            edges=require_edges("marginal", self.columns, terms.schema, self.edges or {}),
            norm=terms.norm,
            relation=terms.relation,
            known_total=not terms.counted,
        )
        check_cells(block, f"marginal of {listed(self.columns)}")
        return block

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON; bins are told by their edges alone."""
        edges = {name: list(inner) for name, inner in (self.edges or {}).items()}
        return {"columns": list(self.columns), "edges": edges}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Marginal:
        """The table that :meth:`to_dict` wrote; strict."""
        with reading("marginal", entry, ("columns", "edges")):
            columns = read_names(entry, "columns")
            return cls(columns, weight=read_weight(entry), edges=read_edges(entry))


@dataclass(frozen=True)
class MarginalBlock(Partition):
    """A table bound to a schema. See :class:`retilt.measures.base.Block`."""

    @property
    def named(self) -> NDArray[np.bool_]:
        """(K,) which cells stand for something that the schema says there is."""
        return named_products(self.variables, self.shape)

    @property
    def statistics(self) -> tuple[str, ...]:
        """``cell(sex=F, race=White)``: the share of each cell."""
        return tuple(f"cell({cell})" for cell in self.cells)

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """Name and query: bins whose edges print alike are not the same cell."""
        return tuple(f"{s} {k}" for s, k in zip(self.statistics, self.keys, strict=True))

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) shares, those below 0 too; see :meth:`Partition.shares`."""
        return self.shares(answers)

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors of the (projected) shares."""
        del answers  # the shares are linear in the answers
        return self.share_errors(variances, factor)

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) false: the shares are linear in the answers, so their errors hold."""
        del answers, variances, factor
        return np.zeros(self.size, dtype=np.bool_)

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`."""
        del answers  # shares of all rows
        return np.ones(len(self.statistics))

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Cells without a row whose measured share is over three standard errors above zero."""
        missed = np.flatnonzero((self.counts(arrays) == 0) & (answers > 3 * errors))
        names = self.cells if len(missed) else ()
        return [
            f"cell({names[k]}): measured {answers[k]:.3g} ± {errors[k]:.2g}, but no synthetic row "
            "lies in this cell."
            for k in worst(missed, answers)
        ]
