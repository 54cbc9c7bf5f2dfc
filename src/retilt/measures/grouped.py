"""Moments within groups of rows: means by group, correlations and regressions inside groups.

The groups are the cells of a partition (``by``), the rows that meet a condition (``where``), or
the cells of a partition among those. A group's statistic is a function of its conditional
moments, and these are quotients: the sum of a column over the group by the group's count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import (
    Alone,
    Feature,
    FloatArray,
    Grouped,
    IntArray,
    Norm,
    Relation,
    Terms,
    Variable,
    pieces,
)
from retilt.measures.derived import predicate
from retilt.measures.entries import listed
from retilt.measures.expressions import parse_predicate
from retilt.measures.moment_bounds import (
    free_count,
    grouped_sensitivity,
    grouped_square_loudness,
    rational_sqrt_down,
)
from retilt.measures.partitions import (
    MAX_CELLS,
    TRUSTED,
    Partition,
    check_names,
    named_products,
    require_edges,
    root,
    worst,
)
from retilt.measures.second_moments import Reports, SecondMoments, Slopes

_CHUNK = 2**20
"""Rows summed at once: 2**20 products of at most 2**32 stay exact in float64."""


def bind_groups(
    variables: tuple[Variable, ...],
    terms: Terms,
    *,
    by: tuple[str, ...],
    where: str | None,
    edges: Mapping[str, tuple[float, ...]],
    order: int,
    reports: Reports,
    loudness: Fraction | None,
    count: Fraction | None,
) -> GroupedBlock:
    """The block of moments of ``variables`` within the groups of ``by`` and ``where``.

    Parameters
    ----------
    variables
        (d,) what the moments are of, none constant.
    terms
        See :class:`retilt.measures.base.Terms`; the basis is always the centred one.
    by, where
        Columns whose cells are the groups, and a condition on their rows: at least one.
    edges
        Of the numeric and datetime columns in ``by``.
    order, reports
        See :class:`retilt.measures.second_moments.SecondMoments`.
    loudness, count
        Alpha and c; ``None`` before they are chosen.

    Raises
    ------
    WorkloadError
        The condition does not fit the schema, edges are missing, or there are too many
        queries.
    """
    schema = terms.schema
    partition = None
    if by:
        partition = Partition(
            variables=tuple(Variable(n, schema[n]) for n in by),
            edges=require_edges("groups", by, schema, edges),
            norm=terms.norm,
            relation=terms.relation,
            known_total=where is None and not terms.counted,
        )
    block = GroupedBlock(
        variables=variables,
        partition=partition,
        condition=None if where is None else predicate(parse_predicate(where), schema),
        order=order,
        reports=reports,
        norm=terms.norm,
        relation=terms.relation,
        loudness=Fraction(1),
        count=Fraction(1),
    ).louder(loudness or Fraction(1), count=count)
    asked = block.cells * (1 + block.derived.size)
    if asked > MAX_CELLS:
        raise WorkloadError(
            f"groups of {listed(by)}: {_counted(asked)} queries in {_counted(block.cells)} groups, "
            f"allowed are {MAX_CELLS:,}. Use fewer columns, coarser bins or fewer categories."
        )
    check_names(_characters(block), f"groups of {listed(by)}" if by else "the condition's rows")
    return block


def _counted(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "more than 1e15"


def _characters(block: GroupedBlock) -> int:
    """An upper bound of how long the names of a block's statistics are together."""
    d, each = len(block.variables), len(block.variables) + block.derived.size
    labels = (d + 1) * sum(len(v.label) for v in block.variables)
    condition = 0 if block.condition is None else len(block.condition.label)
    cells = 0 if block.partition is None else block.partition.characters
    return each * cells + block.cells * (labels + each * condition)


@dataclass(frozen=True)
class GroupedBlock:
    """Moments within groups, bound to a schema. See :class:`retilt.measures.base.Block`.

    Queries in order: the counts of all cells; then, group by group, the d linear terms and,
    for order 2, the squares (as ``1 - z**2``) of the columns that are not two-valued and the
    products i < j. Groups are the cells that the schema says there are: no moments are asked
    of ``other``, nor of ``null`` where the schema says that there are no nulls, but their
    counts are, which makes the partition complete.

    Attributes
    ----------
    variables
        (d,) what the moments are of.
    partition
        Its cells are the groups; ``None`` for one group, that of the condition.
    condition
        Which rows count; ``None`` for all.
    order, reports
        See :class:`retilt.measures.second_moments.SecondMoments`.
    norm, relation
        Of the sensitivity.
    loudness, count
        Alpha, of the linear terms, and c, of the counts; the products have 1.
    """

    variables: tuple[Variable, ...]
    partition: Partition | None
    condition: Variable | None
    order: int
    reports: Reports
    norm: Norm
    relation: Relation
    loudness: Fraction
    count: Fraction

    def louder(
        self, loudness: Fraction, step: Fraction = Fraction(1), *, count: Fraction | None = None
    ) -> GroupedBlock:
        """Return it with other loudnesses.

        Parameters
        ----------
        loudness
            Alpha; cut where the bounds need it, and 1 for order 1.
        step
            The counts' loudness relative to what is free (see
            :func:`retilt.measures.moment_bounds.free_count`), or to the root of the number of
            columns where nothing is.
        count
            The counts' loudness itself.
        """
        d = len(self.variables)
        # The bound (d + r)**2 needs r = alpha**2 <= d, d being the columns that vary.
        cap = rational_sqrt_down(Fraction(d)) if self.norm == 2 else Fraction(d)
        alpha = Fraction(1) if self.order == 1 else min(loudness, cap)
        free = free_count(
            self.norm,
            self.relation,
            several=self.partition is not None,
            columns=d,
            order=self.order,
            loudness=alpha,
        )
        unit = free or rational_sqrt_down(Fraction(d))
        return replace(self, loudness=alpha, count=count or unit * step)

    @cached_property
    def derived(self) -> SecondMoments:
        """The statistics of one group."""
        return SecondMoments(
            columns=tuple(v.column for v in self.variables),
            titles=tuple(v.title for v in self.variables),
            labels=tuple(v.label for v in self.variables),
            order=self.order,
            reports=self.reports,
            basis="centred",
            complement=True,
        )

    @property
    def cells(self) -> int:
        """G, number of cells."""
        return 1 if self.partition is None else self.partition.size

    @cached_property
    def groups(self) -> NDArray[np.intp]:
        """(R,) numbers of the cells whose moments are asked."""
        if self.partition is None:
            return np.zeros(1, dtype=np.intp)
        return np.flatnonzero(named_products(self.partition.variables, self.partition.shape))

    @cached_property
    def group_names(self) -> tuple[str, ...]:
        """(R,) ``sex=F, age >= 65``."""
        where = [] if self.condition is None else [self.condition.label]
        if self.partition is None:
            return tuple(where)
        names = self.partition.cells
        return tuple(", ".join([names[g], *where]) for g in self.groups)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The groups' cells, the condition, then one grid column for each variable."""
        cells = () if self.partition is None else self.partition.features
        where = () if self.condition is None else (self.condition.cells(),)
        return (*cells, *where, *(v.grid for v in self.variables))

    @cached_property
    def cell_keys(self) -> tuple[str, ...]:
        """(G,) canonical identity of each cell: a table of the same cells asks the same counts."""
        cells = ("",) if self.partition is None else self.partition.keys
        if self.condition is None:
            return cells
        identity = self.condition.identity
        return tuple(json.dumps(["where", identity, c], ensure_ascii=False) for c in cells)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """(K,) the cell, and the function of a row within it."""
        identities = [v.identity for v in self.variables]
        left, right = self.derived.pairs
        functions = [
            *(["z", i] for i in identities),
            *(["1-zz", identities[i]] for i in self.derived.squares),
            *(
                ["zz", *sorted((identities[i], identities[j]), key=str)]
                for i, j in zip(left, right, strict=True)
            ),
        ]
        inside = [json.dumps(f, ensure_ascii=False) for f in functions]
        return (
            *self.cell_keys,
            *(f"{self.cell_keys[g]} {function}" for g in self.groups for function in inside),
        )

    @cached_property
    def units(self) -> tuple[int, ...]:
        """1 for counts, products of the columns' grid levels for moments."""
        return (*(1,) * self.cells, *self._own_units * len(self.groups))

    @property
    def _own_units(self) -> tuple[int, ...]:
        width = [v.column.levels for v in self.variables]
        left, right = self.derived.pairs
        return (
            *width,
            *(width[i] ** 2 for i in self.derived.squares),
            *(width[i] * width[j] for i, j in zip(left, right, strict=True)),
        )

    @cached_property
    def scales(self) -> tuple[Fraction, ...]:
        """C for the counts, alpha for the linear terms, beta for the squares, 1 for products."""
        d, squares = len(self.variables), len(self.derived.squares)
        beta = grouped_square_loudness(
            self.norm,
            self.relation,
            several=self.partition is not None,
            columns=d,
            two_valued=d - squares,
            loudness=self.loudness,
        )
        own = (
            *(self.loudness,) * d,
            *(beta,) * squares,
            *(Fraction(1),) * len(self.derived.pairs[0]),
        )
        return (*(self.count,) * self.cells, *own * len(self.groups))

    def sensitivity(self) -> Fraction:
        """See :func:`retilt.measures.moment_bounds.grouped_sensitivity`."""
        return grouped_sensitivity(
            self.norm,
            self.relation,
            several=self.partition is not None,
            columns=len(self.variables),
            order=self.order,
            loudness=self.loudness,
            count=self.count,
        )

    # --- rows -----------------------------------------------------------------------------

    def located(self, arrays: Sequence[IntArray]) -> tuple[NDArray[np.intp], Sequence[IntArray]]:
        """(rows,) the cell of every row, G for none, and the variables' arrays."""
        d = len(self.variables)
        front, values = arrays[:-d], arrays[-d:]
        codes = np.zeros(len(values[0]), dtype=np.intp)
        if self.partition is not None:
            codes = self.partition.codes(front[: len(self.partition.variables)]).astype(np.intp)
        if self.condition is not None:
            codes = np.where(front[-1] == 1, codes, self.cells)
        return codes, values

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Exact integer sums of each query's numerator over the rows of ``arrays``."""
        codes, values = self.located(arrays)
        total = np.zeros(len(self.keys), dtype=object)  # Python integers: no sum overflows
        for part in pieces(len(codes), _CHUNK):
            chunk = [v[part].astype(np.float64) for v in values]
            total += self._chunk_sums(codes[part], chunk)
        sums: list[int] = total.tolist()
        return sums

    def _chunk_sums(
        self, codes: NDArray[np.intp], values: Sequence[FloatArray]
    ) -> NDArray[np.int64]:
        """(K,) of at most 2**20 rows: every partial sum is an integer below 2**53."""
        size = self.cells + 1
        counts = np.bincount(codes, minlength=size)

        def within(numbers: FloatArray) -> NDArray[np.int64]:
            found = np.bincount(codes, weights=numbers, minlength=size)
            return found.astype(np.int64)[self.groups]

        width = self._own_units
        left, right = self.derived.pairs
        squares = self.derived.squares
        columns = [
            *(within(v) for v in values),
            *(counts[self.groups] * width[i] ** 2 - within(values[i] * values[i]) for i in squares),
            *(within(values[i] * values[j]) for i, j in zip(left, right, strict=True)),
        ]
        return np.concatenate([counts[: self.cells], np.stack(columns, axis=1).ravel()])

    def design(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> Grouped:
        """The queries ``keep`` of every row."""
        codes, values = self.located(arrays)
        d, squares = len(self.variables), np.array(self.derived.squares, dtype=np.intp)
        left, right = self.derived.pairs
        none = np.full(self.cells, -1, dtype=np.intp)
        own_left = np.concatenate([np.arange(d, dtype=np.intp), squares, left])
        own_right = np.concatenate([none[:1].repeat(d), squares, right])
        flip = np.zeros(len(own_left), dtype=np.bool_)
        flip[d : d + len(squares)] = True
        many = len(self.groups)
        flips = np.concatenate([np.zeros(self.cells, dtype=np.bool_), np.tile(flip, many)])[keep]
        centred = [v / c.levels for v, c in zip(values, self.derived.columns, strict=True)]
        cells = np.arange(self.cells, dtype=np.intp)
        return Grouped(
            codes=codes.astype(np.int32),
            size=self.cells + (self.condition is not None),
            values=np.stack(centred).T,
            cell=np.concatenate([cells, self.groups.repeat(len(own_left))])[keep],
            left=np.concatenate([none, np.tile(own_left, many)])[keep],
            right=np.concatenate([none, np.tile(own_right, many)])[keep],
            offset=np.where(flips, 1.0, 0.0),
            factor=np.where(flips, -1.0, 1.0),
        )

    def alone(self, number: int, array: IntArray) -> Alone | None:
        """The counts, where the groups are those of one column; nothing else."""
        if self.partition is None or self.condition is not None or number > 0:
            return None
        return self.partition.alone(number, array)  # the counts are the first queries

    # --- statistics -----------------------------------------------------------------------

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """(S,) ``mean(income | sex=F)`` and so on, group by group."""
        return tuple(name for group in self.group_names for name in self.derived.names(group))

    @cached_property
    def statistic_keys(self) -> tuple[str, ...]:
        """Name and cell: bins whose edges print alike are not the same group.

        And the bounds that columns are clamped to, where they are not the schema's.
        """
        each = len(self.statistics) // max(len(self.groups), 1)
        cells = [self.cell_keys[g] for g in self.groups for _ in range(each)]
        own = "".join(f" {v.identity}" for v in self.variables if v.clamped)
        return tuple(f"{s} {c}{own}" for s, c in zip(self.statistics, cells, strict=True))

    def _shares(self, answers: FloatArray) -> FloatArray:
        """(R,) shares of the groups, projected on a known total; NaN where not positive."""
        shares = answers[: self.cells]
        if self.partition is not None:
            shares = self.partition.shares(shares)
        shares = shares[self.groups]
        return np.where(shares > 0, shares, np.nan)

    def _conditional(self, answers: FloatArray) -> FloatArray:
        """(R, own) moments within each group."""
        asked = answers[self.cells :].reshape(len(self.groups), -1)
        moments: FloatArray = asked / self._shares(answers)[:, None]
        return moments

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics, means clipped to their column's range.

        NaN where the group's estimated share, or what else is divided by, is not positive.
        """
        found = self.derived.evaluate(self._conditional(answers))
        if self.reports == "moments":
            origin, span = self.derived.natural()
            d = len(self.variables)
            found[:, :d] = np.clip(found[:, :d], origin - span, origin + span)
        return found.ravel()

    def _share_noise(
        self, variances: FloatArray, factor: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(R,) variances and (R, C) common factor of the groups' (projected) shares."""
        own, common = variances[: self.cells], factor[: self.cells]
        if self.partition is not None:
            own, common = self.partition.share_noise(own, common)
        return own[self.groups], common[self.groups]

    def _errors(
        self, slopes: Slopes, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(R, X) standard errors of numbers of each group from their slopes by its moments.

        A conditional moment x = X / C moves by ``(dX - x dC) / C``.
        """
        shares, moments = self._shares(answers), self._conditional(answers)
        own, common = self._share_noise(variances, factor)
        lead = (len(self.groups), -1)
        of_moments = variances[self.cells :].reshape(lead) / shares[:, None] ** 2
        squared = slopes.quadratic(of_moments)
        squared = squared + slopes.directional(moments) ** 2 * (own / shares**2)[:, None]
        for column, of_share in zip(factor[self.cells :].T, common.T, strict=True):
            moved = (column.reshape(lead) - moments * of_share[:, None]) / shares[:, None]
            squared = squared + slopes.directional(moved) ** 2
        errors: FloatArray = np.sqrt(squared)
        return errors

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors by the delta method; NaN where undefined."""
        moments = self._conditional(answers)
        first = self._errors(self.derived.slopes(moments), answers, variances, factor)
        of_means = self._errors(self.derived.mean_slopes(), answers, variances, factor)
        beyond = self.derived.curvature(moments, of_means, self.norm)
        errors: FloatArray = np.sqrt(first**2 + beyond)
        return errors.ravel()

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where the group's share, or a variance that is divided by, drowns in noise.

        That is, it is not ten of its standard errors above zero (twenty for a variance in a
        regression).
        """
        few = ~(self._shares(answers) >= TRUSTED * root(*self._share_noise(variances, factor)))
        values, slopes = self.derived.denominators(self._conditional(answers))
        errors = self._errors(slopes, answers, variances, factor)
        dividing = self.derived.dividing(~(values >= self.derived.trusted * errors))
        return (dividing | few[:, None]).ravel()

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`."""
        shares = np.clip(self._shares(answers), 0, 1)
        compared: FloatArray = (shares[:, None] / self.derived.steps).ravel()
        return compared

    def predicted_loss(self, answers: FloatArray) -> float:
        """Squared sensitivity times the statistics' total variance under unit noise.

        Groups count alike whatever their size: a group's variances are taken times the square
        of its share, or the smallest group, of which nothing can be told, would decide alone.
        """
        variances = np.array([1 / float(s) ** 2 for s in self.scales])
        slopes = self.derived.slopes(self._conditional(answers))
        errors = self._errors(slopes, answers, variances, np.zeros((len(variances), 0)))
        scaled = errors * self._shares(answers)[:, None] / self.derived.steps
        loss = float(self.sensitivity())
        return (loss if self.norm == 2 else loss * loss) * float(np.nansum(scaled**2))

    # --- what the synthetic rows lack -------------------------------------------------------

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Groups without a synthetic row, and means outside the range of a group's rows.

        Anything within three standard errors counts as reachable; the worst few are named.
        """
        codes, values = self.located(arrays)
        rows = np.bincount(codes, minlength=self.cells + 1)[self.groups]
        shares = answers[self.groups]
        error = errors[self.groups]
        lacking = np.flatnonzero((rows == 0) & (shares > 3 * error))
        found = [
            f"{self.group_names[g]}: measured {shares[g]:.3g} ± {error[g]:.2g} of all rows in this "
            "group, but no synthetic row lies in it."
            for g in worst(lacking, shares)
        ]
        trusted = (rows > 0) & (shares > TRUSTED * error)
        for j, array in enumerate(values):
            found += self._mean_shortfalls(j, self._ends(codes, array), trusted, answers, errors)
        return found

    def _ends(
        self, codes: NDArray[np.intp], array: IntArray
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(R,) least and largest value of a column in each group; beyond [-1, 1] if it is empty."""
        low = np.full(self.cells + 1, np.iinfo(np.int32).max, dtype=np.int64)
        high = -low
        np.minimum.at(low, codes, array)
        np.maximum.at(high, codes, array)
        return low[self.groups], high[self.groups]

    def _mean_shortfalls(
        self,
        j: int,
        ends: tuple[NDArray[np.int64], NDArray[np.int64]],
        trusted: NDArray[np.bool_],
        answers: FloatArray,
        errors: FloatArray,
    ) -> list[str]:
        """Means of column ``j`` that lie outside the range of their group's synthetic rows."""
        levels = self.variables[j].column.levels
        low, high = (end / levels for end in ends)
        lead = (len(self.groups), -1)
        share, share_error = answers[self.groups], errors[self.groups]
        mean, error = np.full((2, len(share)), np.nan)
        np.divide(answers[self.cells :].reshape(lead)[:, j], share, out=mean, where=trusted)
        spread_of = np.hypot(errors[self.cells :].reshape(lead)[:, j], mean * share_error)
        np.divide(spread_of, share, out=error, where=trusted)
        beyond = np.maximum(low - mean, mean - high)
        missed = np.flatnonzero(beyond > 3 * error + 1e-9)
        origin, span = (v[j] for v in self.derived.natural())
        title = self.variables[j].title[:-1]
        return [
            f"{title} | {self.group_names[g]}): measured {origin + span * mean[g]:.4g} ± "
            f"{span * error[g]:.2g}, but all synthetic rows of this group lie between "
            f"{origin + span * low[g]:.4g} and {origin + span * high[g]:.4g}."
            for g in worst(missed, beyond)
        ]
