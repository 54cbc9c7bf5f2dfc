"""What a plan tells of its statistics before any budget is spent, from the synthetic table alone.

For every statistic its value on the synthetic table, what clamping moves it by, and how far weights
of the synthetic rows could move it, beside what the public bounds allow. Nothing here can open the
private table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt._input import kind_of
from retilt.costs import Costs, costs_of
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import InputError
from retilt.losses import whole_of
from retilt.measures.base import Block, FloatArray, IntArray, Measure
from retilt.measures.distributions import CdfBlock, QuantileBlock
from retilt.measures.entries import listed
from retilt.measures.grouped import GroupedBlock
from retilt.measures.grouping import GroupedMeasure
from retilt.measures.marginals import MarginalBlock
from retilt.measures.moments import MomentsBlock
from retilt.measures.queries import QuerySet
from retilt.measures.rates import RateBlock
from retilt.measures.second_moments import SecondMoments, natural_bounds
from retilt.planning import guessed
from retilt.privacy.plan import Plan, load_plan, table_frame, terms_of
from retilt.schema.columns import Column, Datetime, Numeric, Schema
from retilt.schema.encode import limits, values_of
from retilt.tables import encode, require_columns

DOMINATED, OUT_OF_REACH, CLAMPED = "noise dominates", "out of reach", "clamped"
"""Flags of a statistic."""

_PART = 0.5
"""A statistic is out of reach if the rows reach less than this part of what the bounds allow."""

_MOVED = 0.1
"""A clamp is told of if it moves a statistic by more than this part of its expected error."""

BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Outlook:
    """A plan's statistics before they are measured. Made by :func:`outlook`.

    Attributes
    ----------
    plan
        What would be measured.
    rows
        Of the synthetic table.
    values
        (S,) the statistics of the synthetic table, its columns clamped as the plan says; ``None``
        where undefined.
    unclamped
        (S,) the same without any clamp.
    reaches, allowed
        (S,) between which values weights of the synthetic rows could bring each statistic, and
        between which the public bounds allow it to lie; ``None`` where that is not known. A
        deviation's are given the synthetic mean.
    dominated, short
        (S,) whether noise drowns the statistic; whether it, or an answer that it is made of, is
        out of the synthetic rows' reach over more than half of what the bounds allow.
    costs
        About what measuring and fitting would take.
    """

    plan: Plan
    rows: int
    values: tuple[float | None, ...]
    unclamped: tuple[float | None, ...]
    reaches: tuple[tuple[float, float] | None, ...]
    allowed: tuple[tuple[float, float] | None, ...]
    dominated: tuple[bool, ...]
    short: tuple[bool, ...]
    costs: Costs

    def __repr__(self) -> str:
        return f"Outlook({len(self.values)} statistics, {sum(map(bool, self.flags))} with a flag)"

    @cached_property
    def flags(self) -> tuple[tuple[str, ...], ...]:
        """(S,) what should be known of each statistic: of ``noise dominates`` and so on."""
        expected = self.plan.expected or (None,) * len(self.values)
        moved = (_moved(*v) for v in zip(self.values, self.unclamped, expected, strict=True))
        names = (DOMINATED, OUT_OF_REACH, CLAMPED)
        return tuple(
            tuple(n for n, holds in zip(names, flags, strict=True) if holds)
            for flags in zip(self.dominated, self.short, moved, strict=True)
        )

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic.

        ``statistic``, ``expected_standard_error``, ``synthetic``, ``synthetic_unclamped``,
        ``relative_error`` (expected error over the synthetic value's size), ``reach``,
        ``allowed`` (pairs), ``flags``.
        """
        return [
            {
                **row,
                "synthetic": value,
                "synthetic_unclamped": raw,
                "relative_error": _relative(row["expected_standard_error"], value),
                "reach": reach,
                "allowed": allowed,
                "flags": list(flags),
            }
            for row, value, raw, reach, allowed, flags in zip(
                self.plan.statistics_table(),
                self.values,
                self.unclamped,
                self.reaches,
                self.allowed,
                self.flags,
                strict=True,
            )
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table's flags mean here, in sentences."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        names = self.plan.queries.statistics
        far = [f"{names[k]}{self._shortfall(k)}" for k, short in enumerate(self.short) if short]
        if far:
            yield (
                "Out of the synthetic rows' reach over most of what the bounds allow: "
                f"{listed(far, str)}. Should the answer lie there, the fit would fall short of it; "
                "--support mix (support='mix') adds rows (plan with --clip none then), and "
                "narrower bounds rule it out."
            )
        moved = [f"{names[k]}{self._shift(k)}" for k, f in enumerate(self.flags) if CLAMPED in f]
        if moved:
            yield f"Clamping to the bounds moves, on the synthetic table, {listed(moved, str)}."

    def _shortfall(self, k: int) -> str:
        reach, allowed = self.reaches[k], self.allowed[k]
        if allowed is None:
            return ""
        if reach is None:
            return " (no synthetic row)"
        return f" (reaches {_range(reach)} of {_range(allowed)})"

    def _shift(self, k: int) -> str:
        before, after = (
            "undefined" if v[k] is None else f"{v[k]:.4g}" for v in (self.unclamped, self.values)
        )
        return f" from {before} to {after}"

    def to_frame(self) -> Any:
        """The statistics table in pandas if it is installed, else PyArrow."""
        rows = self.statistics_table()
        return table_frame([{**row, "flags": ", ".join(row["flags"])} for row in rows])

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rows": self.rows,
            "statistics": self.statistics_table(),
            "costs": self.costs.to_dict(),
            "notes": list(self.notes),
        }


def outlook(synthetic: Any, plan: Plan | str | Path) -> Outlook:
    """What a plan tells of its statistics before any budget is spent.

    Parameters
    ----------
    synthetic
        The synthetic table that the plan was made on: a frame or a path.
    plan
        A plan or its file.

    Returns
    -------
    Outlook

    Raises
    ------
    InputError
        A column is missing.
    """
    if not isinstance(plan, (Plan, str, Path)):
        raise InputError(
            f"outlook: got {kind_of(plan)}, expected the synthetic table and then the "
            "plan (or its file)."
        )
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    table = open_table(synthetic)
    require_columns(table, tuple(plan.schema.columns), "the synthetic table")
    queries = plan.queries
    encoded = encode(table, queries.features)
    means = queries.means(encoded, table.rows)
    values = queries.evaluate(means) if table.rows else np.full(len(queries.statistics), np.nan)
    reaches = [_reach_of(b, [encoded[f] for f in b.features]) for b in queries.blocks]
    reach, allowed = (
        _pairs(*(queries.joined([getattr(r, what)[:, end] for r in reaches]) for end in (0, 1)))
        for what in ("reach", "allowed")
    )
    undefined = np.isnan(values) & (table.rows > 0)
    return Outlook(
        plan=plan,
        rows=table.rows,
        values=_told(values),
        unclamped=_told(_unclamped(plan, table, means, values)),
        reaches=reach,
        allowed=allowed,
        dominated=tuple(guessed(plan, means).dominated.tolist()),
        short=tuple(
            bool(s) or bool(u)
            for s, u in zip(queries.joined([r.short for r in reaches]), undefined, strict=True)
        ),
        costs=costs_of(plan, synthetic_rows=table.rows),
    )


def _told(values: FloatArray) -> tuple[float | None, ...]:
    return tuple(float(v) if np.isfinite(v) else None for v in values)


def _pairs(low: FloatArray, high: FloatArray) -> tuple[tuple[float, float] | None, ...]:
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return tuple(None if np.isnan(a) or np.isnan(b) else (a, b) for a, b in ends)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4g} .. {ends[1]:.4g}"


def _relative(error: float | None, value: float | None) -> float | None:
    return error / abs(value) if error is not None and value else None


def _moved(value: float | None, raw: float | None, error: float | None) -> bool:
    if value is None or raw is None:
        return value is not raw
    # What is left below is the rounding to another grid.
    return abs(value - raw) > max(_MOVED * (error or 0.0), 1e-4 * max(abs(value), abs(raw)))


# --- without the clamp ----------------------------------------------------------------------


def _unclamped(plan: Plan, table: Table, means: FloatArray, values: FloatArray) -> FloatArray:
    """(S,) the synthetic table's statistics with bounds that hold all its values."""
    schema = Schema(
        {n: _widened(c, table, n) for n, c in plan.schema.columns.items()}, plan.schema.inferred
    )
    wide = {n for n in schema.columns if schema[n] != plan.schema[n]}
    parts = [_without(plan, measure, table, schema, wide) for measure in plan.measures]
    queries = plan.queries
    if all(p is None for p in parts) or not table.rows:
        return values
    own = queries.block_answers(means)
    return queries.joined(
        [
            b.evaluate(a) if p is None else p
            for b, a, p in zip(queries.blocks, own, parts, strict=True)
        ]
    )


def _without(
    plan: Plan, measure: Measure, table: Table, schema: Schema, wide: set[str]
) -> FloatArray | None:
    """(S_b,) a measure's statistics without any clamp; ``None`` where nothing is clamped."""
    whole = whole_of(measure) if isinstance(measure, GroupedMeasure) else measure
    if whole == measure and wide.isdisjoint(measure.columns):
        return None
    measure = whole
    try:
        block = measure.bind(terms_of(schema, plan.basis, plan.budget, plan.unit))
    except InputError:  # bounds that are too wide to compute with
        block = measure.bind(terms_of(plan.schema, plan.basis, plan.budget, plan.unit))
        return np.full(len(block.statistics), np.nan)
    queries = QuerySet((block,))
    means = queries.means(encode(table, queries.features), table.rows)
    return block.evaluate(means[queries.positions[0]])


def _widened(column: Column, table: Table, name: str) -> Column:
    """The column with bounds that hold all values: about the same middle, which nulls count as."""
    if not isinstance(column, (Numeric, Datetime)) or not table.rows:
        return column
    values = values_of(column, table.cells(name))
    known = values[np.isfinite(values)]
    low, high = limits(column)
    if not len(known) or not column.levels or (low <= known.min() and known.max() <= high):
        return column
    more = float(np.ceil(max(low - known.min(), known.max() - high)))
    try:
        if isinstance(column, Datetime):
            step = timedelta(microseconds=more)
            return replace(column, lower=column.lower - step, upper=column.upper + step)
        return replace(column, lower=column.lower - more, upper=column.upper + more)
    except (OverflowError, InputError):  # values that no column can hold
        return column


# --- reach ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reach:
    """(S_b, 2) ends of what the rows reach and of what the bounds allow; (S_b,) what is short."""

    reach: FloatArray
    allowed: FloatArray
    short: BoolArray


def _reach_of(block: Block, arrays: Sequence[IntArray]) -> _Reach:
    """What the rows reach of a block's statistics; nothing known where the block is unknown."""
    if isinstance(block, MomentsBlock):
        codes = np.zeros(len(arrays[0]), dtype=np.intp)
        return _moments(block.derived, codes, np.zeros(1, dtype=np.intp), _placed(block, arrays))
    if isinstance(block, GroupedBlock):
        return _grouped(block, arrays)
    if isinstance(block, MarginalBlock):
        return _cells(block, arrays)
    if isinstance(block, RateBlock):
        return _rates(block, arrays)
    if isinstance(block, (CdfBlock, QuantileBlock)):
        return _ordered(block, arrays)
    count = len(block.statistics)
    unknown = np.full((count, 2), np.nan)
    return _Reach(unknown, unknown, np.zeros(count, dtype=np.bool_))


def _cells(block: MarginalBlock, arrays: Sequence[IntArray]) -> _Reach:
    """Any share, or none where no row lies; what the schema does not name is not missed."""
    full = block.counts(arrays) > 0
    allowed = np.tile([0.0, 1.0], (block.size, 1))
    return _Reach(np.where(full[:, None], allowed, np.nan), allowed, block.named & ~full)


def _rates(block: RateBlock, arrays: Sequence[IntArray]) -> _Reach:
    """From 0 if a row of the group fails the condition, up to 1 if one meets it."""
    failing, meeting = (block.counts(arrays).reshape(-1, 2)[block.named] > 0).T
    reach = np.stack([np.where(failing, 0.0, 1.0), np.where(meeting, 1.0, 0.0)], axis=1)
    reach[~(failing | meeting)] = np.nan
    return _Reach(reach, np.tile([0.0, 1.0], (len(reach), 1)), ~(failing & meeting))


def _ordered(block: CdfBlock | QuantileBlock, arrays: Sequence[IntArray]) -> _Reach:
    """Of distributions: between what all rows in the first and in the last full bin would give."""
    bins = np.arange(block.size - 1)  # the last cell is that of nulls
    full = bins[block.counts(arrays)[:-1] > 0]
    ends = []
    for places in (full, bins):
        if not len(places):
            ends.append(np.full((len(block.statistics), 2), np.nan))
            continue
        one = (np.eye(1, block.size, places[k])[0] for k in (0, -1))
        at = [block.evaluate(block.summed(shares)) for shares in one]
        ends.append(np.sort(np.stack(at, axis=1), axis=1))
    reach, allowed = ends
    return _Reach(reach, allowed, _narrow(reach, allowed))


def _narrow(reach: FloatArray, allowed: FloatArray) -> BoolArray:
    """(...,) where the first covers too little of the second, or is not there at all."""
    width, room = reach[..., 1] - reach[..., 0], allowed[..., 1] - allowed[..., 0]
    narrow: BoolArray = ~(width >= _PART * room) & ~np.isnan(room)
    return narrow


def _placed(block: MomentsBlock, arrays: Sequence[IntArray]) -> Sequence[IntArray | FloatArray]:
    """The columns' grid values, of rows as they stand in the block's ball if it has one."""
    ball = block.ball
    if ball is None:
        return arrays
    levels = np.array([c.levels for c in block.columns])
    placed = ball.place(arrays, levels.tolist()) * levels / np.array(ball.stretch)
    return list((placed + np.array(ball.centre)).T)


def _grouped(block: GroupedBlock, arrays: Sequence[IntArray]) -> _Reach:
    codes, values = block.located(arrays)
    return _moments(block.derived, codes, block.groups, values)


def _moments(
    derived: SecondMoments,
    codes: NDArray[np.intp],
    groups: NDArray[np.intp],
    arrays: Sequence[IntArray | FloatArray],
) -> _Reach:
    """Means between the ends of a group's rows, deviations up to what two of them would give.

    With values p < q at the ends and mean m the variance is at most (m - p) (q - m), which is
    attained. Correlations and coefficients are short where a deviation is.
    """
    columns = zip(derived.columns, arrays, strict=True)
    ends = np.array([_ends(c, codes, groups, a) for c, a in columns])  # (d, 3, R)
    low, mean, high = ends.transpose(1, 2, 0)  # (R, d) each
    least, most = (np.broadcast_to(derived.bounds[:, end], low.shape) for end in (0, 1))
    reach, allowed = _paired(low, high), _paired(least, most)
    short = _narrow(reach, allowed)
    # An empty group's mean is not known: the middle allows the most.
    middle = np.where(np.isnan(mean), (least + most) / 2, mean)
    spread, room = (
        _paired(0 * top, top)
        for top in (_most_spread(low, mean, high), _most_spread(least, middle, most))
    )
    tight = _narrow(spread, room)
    left, right = derived.pairs
    if derived.reports == "regression":
        some = np.logical_or.reduce(tight, axis=1, keepdims=True)
        return _unknown(np.repeat(some, len(derived.columns), axis=1))
    either: BoolArray = tight[:, left] | tight[:, right]
    if derived.reports == "correlation":
        return _unknown(either)
    if derived.order == 1:
        return _Reach(reach.reshape(-1, 2), allowed.reshape(-1, 2), short.ravel())
    nothing = np.full((*either.shape, 2), np.nan)
    return _Reach(
        np.concatenate([reach, spread, nothing], axis=1).reshape(-1, 2),
        np.concatenate([allowed, room, nothing], axis=1).reshape(-1, 2),
        np.concatenate([short, tight, either], axis=1).ravel(),
    )


def _unknown(short: BoolArray) -> _Reach:
    """What is short, of statistics whose range is not worked out."""
    nothing = np.full((short.size, 2), np.nan)
    return _Reach(nothing, nothing, short.ravel())


def _paired(low: FloatArray, high: FloatArray) -> FloatArray:
    return np.stack([low, high], axis=-1)


def _most_spread(low: FloatArray, mean: FloatArray, high: FloatArray) -> FloatArray:
    """The largest deviation of values between two ends that have this mean."""
    spread: FloatArray = np.sqrt(np.maximum((mean - low) * (high - mean), 0))
    return spread


def _ends(
    column: Column,
    codes: NDArray[np.intp],
    groups: NDArray[np.intp],
    array: IntArray | FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(R,) least value, mean and largest value of each group, in natural units; NaN if empty."""
    cells = int(max(codes.max(initial=0), groups.max(initial=0))) + 1
    rows = np.bincount(codes, minlength=cells)
    low, high = np.full((2, cells), np.nan)
    np.fmin.at(low, codes, array)
    np.fmax.at(high, codes, array)
    mean = np.full(cells, np.nan)
    np.divide(np.bincount(codes, array, minlength=cells), rows, out=mean, where=rows > 0)
    first, last = natural_bounds(column)
    scale = (last - first) / 2 / column.levels
    return tuple((first + last) / 2 + scale * v[groups] for v in (low, mean, high))  # type: ignore[return-value]
