"""Shares of the rows that meet a condition, overall or within groups.

Overall, a share is the mean of a two-valued variable. Within groups it is asked as a partition:
the groups' cells, each cut in two by the condition. One row then moves at most two counts by
one (L2 sqrt 2, L1 2), where numerators beside group counts would move four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import FloatArray, IntArray, Terms, Variable
from retilt.measures.derived import predicate
from retilt.measures.entries import (
    listed,
    read_edges,
    read_names,
    read_text,
    read_weight,
    reading,
    short,
)
from retilt.measures.expressions import parse_predicate
from retilt.measures.moments import MomentsBlock
from retilt.measures.partitions import (
    DEFAULT_BINS,
    TRUSTED,
    Bins,
    Partition,
    check_all_bins,
    check_cells,
    fix_edges,
    named_products,
    require_edges,
    root,
    worst,
)
from retilt.schema.columns import Schema


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the rows that meet a condition, overall or in each group.

    Parameters
    ----------
    predicate
        SQL, true or false for a row; kept in canonical form. Where it is null or fails it
        counts as false.
    by
        Columns whose cells are the groups; none for all rows together.
    bins, default_bins, edges
        Of numeric and datetime columns in ``by``, as for
        :class:`retilt.measures.marginals.Marginal`.
    weight
        Importance, positive.

    Examples
    --------
    >>> Share("age>=65", by=("sex",)).columns
    ('age', 'sex')
    """

    predicate: str
    by: tuple[str, ...] = ()
    bins: Mapping[str, Bins] = field(default_factory=dict)
    default_bins: int = DEFAULT_BINS
    weight: float = 1.0
    edges: Mapping[str, tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", parse_predicate(self.predicate).text)
        good = isinstance(self.by, tuple) and all(isinstance(n, str) for n in self.by)
        if not good or len(set(self.by)) != len(self.by):
            raise WorkloadError(
                f"share: by: got {short(self.by)}, expected distinct column names such as ('sex',)."
            )
        object.__setattr__(self, "bins", MappingProxyType(dict(self.bins)))
        if self.edges is not None:
            object.__setattr__(self, "edges", MappingProxyType(dict(self.edges)))
        check_all_bins(self.by, self.bins, self.default_bins, self.edges)

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "share"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads, then those of the groups."""
        return tuple(dict.fromkeys((*parse_predicate(self.predicate).columns, *self.by)))

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Share:
        """Return this share with the edges of its groups' bins fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null.
        """
        edges = fix_edges(self.by, schema, values, bins=self.bins, default=self.default_bins)
        return replace(self, edges=edges, bins={}, default_bins=DEFAULT_BINS)

    def bind(self, terms: Terms) -> MomentsBlock | RateBlock:
        """The block of this share; refused where the condition doesn't fit the schema."""
        schema = terms.schema
        condition = predicate(parse_predicate(self.predicate), schema)
        if not self.by:
            return MomentsBlock.linear((condition,), terms)
        block = RateBlock(
            variables=(*(Variable(n, schema[n]) for n in self.by), condition),
            edges=(*require_edges("share", self.by, schema, self.edges or {}), ()),
            norm=terms.norm,
            relation=terms.relation,
            known_total=not terms.counted,
        )
        check_cells(block, f"share by {listed(self.by)}")
        return block

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON; bins are told by their edges alone."""
        edges = {name: list(inner) for name, inner in (self.edges or {}).items()}
        return {"predicate": self.predicate, "by": list(self.by), "edges": edges}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Share:
        """The share that :meth:`to_dict` wrote; strict."""
        with reading("share", entry, ("predicate", "by", "edges")):
            text, by = read_text(entry, "predicate"), read_names(entry, "by", least=0)
            return cls(text, by, weight=read_weight(entry), edges=read_edges(entry))


@dataclass(frozen=True)
class RateBlock(Partition):
    """Shares within groups, bound to a schema. See :class:`retilt.measures.base.Block`.

    The last variable is the condition, the others make the groups; there are S of them. With
    a and b the shares of all rows that are in a group and meet, or fail, the condition, its
    rate is ``a / (a + b)``.
    """

    @property
    def statistics(self) -> tuple[str, ...]:
        """``share(age >= 65 | sex=F)`` for each group."""
        condition = self.variables[-1].label
        return tuple(f"share({condition} | {group})" for group in self.groups)

    @cached_property
    def named(self) -> NDArray[np.intp]:
        """(S,) numbers of the groups that a rate is reported of: those that the schema names."""
        return np.flatnonzero(named_products(self.variables[:-1], self.shape[:-1]))

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """(S,) the groups' names: ``sex=F``."""
        named = (
            [f"{v.label}={text}" for text in texts]
            for v, texts in zip(self.variables[:-1], self.labels[:-1], strict=True)
        )
        every = [", ".join(group) for group in product(*named)]
        return tuple(every[g] for g in self.named)

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """Name and query: bins whose edges print alike are not the same group."""
        keys = self.keys[1::2]
        return tuple(f"{s} {keys[g]}" for s, g in zip(self.statistics, self.named, strict=True))

    def _rates(self, answers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(G,) shares of all groups and rates within them, NaN where a group has none."""
        failing, meeting = self.shares(answers).reshape(-1, 2).T
        groups = failing + meeting
        found = np.full(len(groups), np.nan)
        np.divide(meeting, groups, out=found, where=groups > 0)
        return groups, np.clip(found, 0, 1)

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) rates clipped to [0, 1]; NaN where a group's estimated share is not positive."""
        return self._rates(answers)[1][self.named]

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors by the delta method, the projection on the total included.

        With r = a / c and c = a + b, ``dr = ((1 - r) da - r db) / c``; the projection adds
        ``-E / m`` to each of da and db, E being the sum of the noise of all m cells.
        """
        groups, rates = self._rates(answers)
        failing, meeting = variances.reshape(-1, 2).T
        own = (1 - rates) ** 2 * meeting + rates**2 * failing
        lines = factor.reshape(len(groups), 2, factor.shape[1])
        along = (1 - rates)[:, None] * lines[:, 1] - rates[:, None] * lines[:, 0]
        if self.known_total:
            m, tilt = self.size, 1 - 2 * rates
            shared = (1 - rates) * meeting - rates * failing
            own = own - 2 * tilt / m * shared + tilt**2 * variances.sum() / m**2
            along = along - (tilt / m)[:, None] * factor.sum(axis=0)
        errors: FloatArray = np.where(groups > 0, root(own, along), np.nan)
        np.divide(errors, groups, out=errors, where=groups > 0)
        return errors[self.named]

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where a group's share is less than ten of its standard errors above zero."""
        groups, _ = self._rates(answers)
        own = variances.reshape(-1, 2).sum(axis=1)
        along = factor.reshape(len(groups), 2, factor.shape[1]).sum(axis=1)
        if self.known_total:
            m = self.size
            own = own * (1 - 4 / m) + 4 * variances.sum() / m**2
            along = along - 2 / m * factor.sum(axis=0)
        dominated: NDArray[np.bool_] = groups < TRUSTED * root(own, along)
        return dominated[self.named]

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`."""
        shares: FloatArray = np.clip(self._rates(answers)[0], 0, 1)
        return shares[self.named]

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Groups without a synthetic row, and rates above 0 or below 1 that none can give."""
        rows = self.counts(arrays).reshape(-1, 2)[self.named]
        measured = answers.reshape(-1, 2)[self.named]
        error = errors.reshape(-1, 2)[self.named]
        groups, spread = measured.sum(axis=1), np.sqrt((error**2).sum(axis=1))
        empty = rows.sum(axis=1) == 0
        names = self.statistics
        found = [
            f"{names[g]}: measured {groups[g]:.3g} ± {spread[g]:.2g} of all rows in this group, "
            "but no synthetic row lies in it."
            for g in worst(np.flatnonzero(empty & (groups > 3 * spread)), groups)
        ]
        for side, kind, verb in ((1, "meeting", "meets"), (0, "failing", "fails")):
            part = measured[:, side]
            lacking = ~empty & (rows[:, side] == 0) & (part > 3 * error[:, side])
            found += [
                f"{names[g]}: measured {part[g]:.3g} ± {error[g, side]:.2g} of all rows in this "
                f"group and {kind} the condition, but no synthetic row in it {verb} it."
                for g in worst(np.flatnonzero(lacking), part)
            ]
        return found
