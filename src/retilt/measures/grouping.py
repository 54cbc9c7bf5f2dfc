"""Measures of moments of some columns, over all rows or within groups: what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from retilt.exceptions import FormatError, WorkloadError
from retilt.measures.base import Block, FloatArray, Terms, Variable
from retilt.measures.derived import check_span
from retilt.measures.entries import (
    is_number,
    listed,
    read_edges,
    read_fraction,
    read_names,
    read_text,
    short,
)
from retilt.measures.expressions import parse_predicate
from retilt.measures.grouped import GroupedBlock, bind_groups
from retilt.measures.partitions import DEFAULT_BINS, Bins, check_all_bins, fix_edges
from retilt.measures.second_moments import Reports
from retilt.schema.columns import MAX_LEVELS, Column, Numeric, Schema

Bounds: TypeAlias = tuple[float, float]
"""Lower and upper."""

LEAST_LOUDNESS = Fraction(1, 1024)
"""Far below any useful alpha, and far enough above 0 that beta is not rounded down to 0."""

_STEPS = tuple(Fraction(n, 16) for n in (8, 10, 12, 14, 16, 20, 24, 32, 48))
"""Loudnesses of the counts that are tried, relative to the one that :func:`bind_groups` takes.

Below a half little is saved, and what the delta method leaves out (a count that is not far from
zero) would be what hurts.
"""


@dataclass(frozen=True, slots=True)
class GroupedMeasure(ABC):
    """A measure of moments of columns, over all rows or within groups of them.

    Parameters
    ----------
    of
        The columns that are asked about: at least one distinct name.
    by
        Columns whose cells make groups, none of them among ``of``.
    where
        SQL, a condition on the rows, kept in canonical form; false where it is null.
    bins, default_bins, edges
        Of numeric and datetime columns in ``by``, as for
        :class:`retilt.measures.marginals.Marginal`.
    weight
        Importance, positive.
    loudness
        alpha, of the linear terms in the centred basis, chosen by the plan; ``None`` before.
    count_loudness
        c, of the groups' counts, chosen by the plan; ``None`` before.
    clip
        Narrower bounds than the schema's that values are clamped to, by numeric column of ``of``;
        ``None`` before the plan has chosen them.
    """

    of: tuple[str, ...]
    _: KW_ONLY
    by: tuple[str, ...] = ()
    where: str | None = None
    bins: Mapping[str, Bins] = field(default_factory=dict)
    default_bins: int = DEFAULT_BINS
    edges: Mapping[str, tuple[float, ...]] | None = None
    weight: float = 1.0
    loudness: Fraction | None = None
    count_loudness: Fraction | None = None
    clip: Mapping[str, Bounds] | None = None

    def __post_init__(self) -> None:
        good = isinstance(self.by, tuple) and all(isinstance(n, str) for n in self.by)
        if not good or len(set(self.by)) != len(self.by):
            raise WorkloadError(
                f"by: got {short(self.by)}, expected distinct column names such as ('sex',)."
            )
        both = [n for n in self.by if n in self.of]
        if both:
            raise WorkloadError(
                f"by: {listed(both)} stands among the columns, too, but hardly "
                "varies within its own groups. Name it once."
            )
        if self.where is not None:
            object.__setattr__(self, "where", parse_predicate(self.where).text)
        object.__setattr__(self, "bins", MappingProxyType(dict(self.bins)))
        if self.edges is not None:
            edges = MappingProxyType(dict(self.edges)) if self.by else None
            object.__setattr__(self, "edges", edges)
        check_all_bins(self.by, self.bins, self.default_bins, self.edges)
        self._check_loudness("loudness", self.loudness, len(self.of))
        self._check_loudness("count_loudness", self.count_loudness, 16 * len(self.of))
        if self.clip is not None:
            _check_clip(self.clip, self.of)
            own = {name: (ends[0], ends[1]) for name, ends in self.clip.items()}
            object.__setattr__(self, "clip", MappingProxyType(own))

    def _check_loudness(self, name: str, value: Fraction | None, most: int) -> None:
        if value is not None and not LEAST_LOUDNESS <= value <= most:
            raise WorkloadError(
                f"{name}: got {value}, expected a fraction of at least {LEAST_LOUDNESS} and at "
                f"most {most} for {len(self.of)} columns."
            )

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name in a workload file."""

    @abstractmethod
    def bind(self, terms: Terms) -> Block:
        """The block of this measure."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""

    @property
    def grouped(self) -> bool:
        """Whether it is about groups of rows."""
        return bool(self.by) or self.where is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read: those asked about, then those of the groups."""
        where = () if self.where is None else parse_predicate(self.where).columns
        return tuple(dict.fromkeys((*self.of, *self.by, *where)))

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Self:
        """Return it with the edges of its groups' bins fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null.
        """
        if not self.grouped:
            return self
        edges = fix_edges(self.by, schema, values, bins=self.bins, default=self.default_bins)
        return replace(self, edges=edges, bins={}, default_bins=DEFAULT_BINS)

    def varying(self, schema: Schema, *, least: int) -> tuple[Variable, ...]:
        """Those of the columns asked about that are not constant by the schema.

        Raises
        ------
        WorkloadError
            Fewer than ``least`` vary, one has too many categories for exact sums, or bounds beyond
            what can be computed with.
        """
        names = tuple(n for n in self.of if schema[n].levels > 0)
        if len(names) < least:
            raise WorkloadError(
                f"{self.kind} of {listed(self.of)}: too few columns vary. "
                "The schema makes the others constant (one category, or lower = upper). "
                "Name other columns or declare wider bounds."
            )
        crowded = [n for n in names if schema[n].levels > MAX_LEVELS]
        if crowded:
            raise WorkloadError(
                f"{self.kind}: {listed(crowded)} has more than {MAX_LEVELS + 1:,} "
                "categories, beyond which sums of products are not exact. Leave it out, or "
                "declare it as numeric or with fewer categories."
            )
        for name in names:
            column = schema[name]
            if isinstance(column, Numeric):
                check_span(float(column.lower), float(column.upper), f"{self.kind}: {name!r}")
        return tuple(self._variable(n, schema[n]) for n in names)

    def _variable(self, name: str, column: Column) -> Variable:
        """A column, clamped to bounds of this measure's own if it has any."""
        ends = (self.clip or {}).get(name)
        if ends is None:
            return Variable(name, column)
        if not isinstance(column, Numeric):
            raise WorkloadError(
                f"clip: {name!r} is {type(column).__name__.lower()}, expected a numeric column."
            )
        low, high = map(float, ends)
        whole = low.is_integer() and high.is_integer()
        if not column.lower <= low < high <= column.upper or (column.integer and not whole):
            steps = " whole numbers" if column.integer else ""
            raise WorkloadError(
                f"clip: got {low:g} and {high:g} for {name!r}, expected{steps} lower < upper "
                f"within {column.lower} to {column.upper}, its bounds."
            )
        if (low, high) == (column.lower, column.upper):
            return Variable(name, column)
        check_span(low, high, f"{self.kind}: {name!r}")
        if column.integer:
            low, high = int(low), int(high)
        return Variable(name, replace(column, lower=low, upper=high), clamped=True)

    def group_block(
        self, variables: tuple[Variable, ...], terms: Terms, *, order: int, reports: Reports
    ) -> GroupedBlock:
        """The block of the moments of ``variables`` within the groups."""
        return bind_groups(
            variables,
            terms,
            by=self.by,
            where=self.where,
            edges=self.edges or {},
            order=order,
            reports=reports,
            loudness=self.loudness,
            count=self.count_loudness,
        )

    def tuned_groups(
        self, block: GroupedBlock, answers: FloatArray, loudnesses: Sequence[Fraction]
    ) -> Self:
        """Return it with the loudness of terms and counts that predicts the least error.

        ``block`` is this measure's own; ``answers`` (K,) are the synthetic table's, which
        stand in for the real ones at no privacy cost.
        """
        tried = []
        for loudness in loudnesses:
            for step in _STEPS:
                other = block.louder(loudness, step)
                tried.append((other.predicted_loss(answers), other))
        best = min(tried, key=lambda pair: pair[0])[1]
        alpha = best.loudness if best.order == 2 else None  # else it has no meaning
        return replace(self, loudness=alpha, count_loudness=best.count)

    def group_fields(self) -> dict[str, Any]:
        """What JSON says of groups: nothing where there are none."""
        if not self.grouped:
            return {}
        return {
            "by": list(self.by),
            "edges": {name: list(inner) for name, inner in (self.edges or {}).items()},
            "where": self.where,
            "count_loudness": written(self.count_loudness),
        }


def _check_clip(clip: Mapping[str, Bounds], names: Sequence[str]) -> None:
    """Refuse bounds that are none, or of a column that is not asked about."""
    if not isinstance(clip, Mapping):
        raise WorkloadError(
            f"clip: got {short(clip)}, expected bounds by column, such as {{'income': (0, 1e5)}}."
        )
    for name, ends in clip.items():
        if name not in names:
            raise WorkloadError(f"clip: {short(name)} is not among the columns {listed(names)}.")
        good = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(is_number, ends))
        if not good or not ends[0] < ends[1]:
            raise WorkloadError(
                f"clip: got {short(ends)} for {name!r}, expected two finite numbers, lower < upper."
            )


def written_clip(clip: Mapping[str, Bounds] | None) -> dict[str, list[float]] | None:
    """Bounds as JSON has them."""
    return None if clip is None else {name: list(ends) for name, ends in clip.items()}


def read_clip(entry: Mapping[str, Any]) -> dict[str, Bounds] | None:
    """The bounds of :func:`written_clip`."""
    clip = entry["clip"]
    if clip is not None and not isinstance(clip, dict):
        raise FormatError(f"clip: got {short(clip)}, expected bounds by column, or null.")
    return clip


GROUP_FIELDS = ("by", "edges", "where", "count_loudness")


def written(loudness: Fraction | None) -> str | None:
    """A loudness as JSON has it."""
    return None if loudness is None else str(loudness)


def read_groups(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :meth:`GroupedMeasure.group_fields`, for its constructor."""
    if "by" not in entry:
        return {}
    by = read_names(entry, "by", least=0)
    where = None if entry["where"] is None else read_text(entry, "where")
    if not by and where is None:
        raise FormatError("by, where: expected columns or a condition.")
    return {
        "by": by,
        "where": where,
        "edges": read_edges(entry),
        "count_loudness": read_fraction(entry, "count_loudness"),
    }
