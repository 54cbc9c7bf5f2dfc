"""Distributions of one column: cumulative shares and quantiles.

Asked as the bins between the thresholds, not as cumulative shares: however many thresholds
there are, one row then moves two counts by one (L2 sqrt 2), where it would move all of the
cumulative ones (L2 sqrt m). The sums over bins cost some accuracy back, but never all of it, and
less with coarser bins above them (:mod:`retilt.measures.nested`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import FloatArray, IntArray, Terms, Variable
from retilt.measures.entries import (
    is_number,
    listed,
    read_edges,
    read_names,
    read_numbers,
    read_weight,
    reading,
    short,
)
from retilt.measures.nested import Nested, best_branching, check_branching
from retilt.measures.partitions import (
    TRUSTED,
    Bins,
    ascending,
    check_all_bins,
    check_cells,
    quantile_edges,
    require_edges,
    worst,
)
from retilt.schema.columns import Datetime, Numeric, Schema, microseconds_of
from retilt.schema.encode import limits

Threshold: TypeAlias = float | str
"""A number, or a moment as ISO text."""

QUANTILE_BINS = 50
QUARTILES = (0.25, 0.5, 0.75)
MAX_THRESHOLDS = 1000

_FEW_STEPS = 3.0
"""A standard error of whole numbers from which on their steps hardly matter."""

_STEPS_AROUND = 40
"""Whole numbers to each side of a quantile that it may become by such an error."""

_SEVERAL, _WIDE = 5, 0.25
"""Of so many bins none should be wider than this part of the range."""

_TIE = 1e-12
"""Cumulative shares this close to a probability are meant to reach it."""


@dataclass(frozen=True, slots=True)
class Cdf:
    """The shares of all rows whose value is at most each threshold; null is in none.

    Parameters
    ----------
    column
        Numeric or datetime.
    thresholds
        Ascending, within the column's bounds: numbers, or dates and times (``datetime``,
        ``date`` or ISO text; kept as ISO text, read as UTC where they name no time zone).
    weight
        Importance, positive.
    branching
        How many bins between thresholds are asked as one, too, and so on upwards; 0 for none.
        ``None`` leaves it to the plan, and is none in one.

    Examples
    --------
    >>> Cdf("day", (datetime(2020, 1, 1), "2020-07-01 12:00")).thresholds
    ('2020-01-01', '2020-07-01 12:00:00')
    """

    column: str
    thresholds: tuple[Threshold, ...]
    weight: float = 1.0
    branching: int | None = None

    def __post_init__(self) -> None:
        check_branching(f"the cdf of {self.column!r}", self.branching)
        given = tuple(map(_threshold, self.thresholds))
        if not 1 <= len(given) <= MAX_THRESHOLDS:
            raise WorkloadError(
                f"cdf of {self.column!r}: got {len(given)} thresholds, expected 1 to "
                f"{MAX_THRESHOLDS:,}."
            )
        object.__setattr__(self, "thresholds", given)

    def tuned(self, terms: Terms, answers: FloatArray) -> Cdf:
        """Return it with the branching of the least expected error, which no answer changes."""
        del answers
        return replace(self, branching=_branching(self.bind(terms), self.branching))

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "cdf"

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def bind(self, terms: Terms) -> CdfBlock:
        """The block of this distribution; refused for a column that has none."""
        column = _continuous("cdf", self.column, terms.schema)
        values = _in_units(self.column, column, self.thresholds)
        _, upper = limits(column)
        # value <= t is value < the next number; at the upper bound that is every value.
        edges = tuple(float(np.nextafter(t, np.inf)) for t in values if t < upper)
        return CdfBlock(
            variables=(Variable(self.column, column),),
            edges=(edges,),
            norm=terms.norm,
            relation=terms.relation,
            branching=self.branching or 0,
            thresholds=tuple(map(_spoken, self.thresholds)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""
        own = {"columns": [self.column], "thresholds": list(self.thresholds)}
        return own | _branching_entry(self.branching)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Cdf:
        """The distribution that :meth:`to_dict` wrote; strict."""
        with reading("cdf", entry, ("columns", "thresholds", *_branching_key(entry))):
            (column,) = read_names(entry, "columns")
            return cls(
                column,
                tuple(entry["thresholds"]),
                weight=read_weight(entry),
                branching=entry.get("branching"),
            )


@dataclass(frozen=True)
class CdfBlock(Nested):
    """A distribution bound to a schema. See :class:`retilt.measures.base.Block`.

    The cells are the bins between the thresholds, the bin above all of them (where the last
    one is below the upper bound) and null; then, with a branching, those of the coarser levels.

    Attributes
    ----------
    thresholds
        (S,) as they stand in the names of statistics.
    """

    thresholds: tuple[str, ...]

    @property
    def statistics(self) -> tuple[str, ...]:
        """``cdf(age <= 30)``: the share of all rows with a value of at most 30."""
        name = self.variables[0].label
        return tuple(f"cdf({name} <= {t})" for t in self.thresholds)

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """The names: they say the column and the threshold in full."""
        return self.statistics

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) cumulative shares, made ascending (least squares) and clipped to [0, 1]."""
        cumulative = np.cumsum(self.shares(answers))[: len(self.thresholds)]
        return _monotone(cumulative)

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors of the cumulative shares before they are made ascending.

        Sums of the first c of m cells; projected on the total, ``sum_{k < c} x_k - (c/m)
        sum x_k``: variance ``V_c (1 - c/m)^2 + (V_m - V_c) (c/m)^2`` for independent noise
        with V the cumulative variances.
        """
        del answers  # linear but for the repair, which only makes the errors smaller
        count = len(self.thresholds)
        if self.branching:
            return self.prefix_errors(count, variances, factor)
        below = np.cumsum(variances)[:count]
        along = np.cumsum(factor, axis=0)[:count]
        part = np.arange(1, count + 1) / self.size
        below = below * (1 - part) ** 2 + (variances.sum() - below) * part**2
        along = along - part[:, None] * factor.sum(axis=0)
        errors: FloatArray = np.sqrt(np.maximum(below + (along**2).sum(axis=1), 0))
        return errors

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) false: cumulative shares are linear in the answers."""
        del answers, variances, factor
        return np.zeros(len(self.thresholds), dtype=np.bool_)

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`."""
        del answers  # shares of all rows
        return np.ones(len(self.statistics))

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Bins without a row whose measured share is over three standard errors above zero."""
        answers, errors = answers[: self.size], errors[: self.size]
        missed = np.flatnonzero((self.counts(arrays) == 0) & (answers > 3 * errors))
        return [
            f"{self._changed(k)}: measured {answers[k]:.3g} ± {errors[k]:.2g} of all rows with "
            f"{self._range(k)}, but no synthetic row has such a value."
            for k in worst(missed, answers)
        ]

    def _changed(self, k: int) -> str:
        """The first statistic that a bin is missing from (the last one, if from none)."""
        return self.statistics[min(k, len(self.thresholds) - 1)]

    def _range(self, k: int) -> str:
        name, ends = self.variables[0].label, self.thresholds
        if k == self.size - 1:
            return f"{name} null"
        if k == len(ends):
            return f"{name} > {ends[-1]}"
        return f"{name} <= {ends[0]}" if k == 0 else f"{ends[k - 1]} < {name} <= {ends[k]}"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of a column; null has none.

    Parameters
    ----------
    column
        Numeric or datetime.
    probabilities
        Ascending, each above 0 and below 1.
    bins
        A number of quantile bins of the synthetic table, or ascending inner edges (datetimes
        as microseconds since 1970). Quantiles are interpolated within a bin.
    weight
        Importance, positive.
    edges
        Inner edges by column, fixed by the plan; ``None`` before that.
    branching
        How many bins are asked as one, too, and so on upwards; 0 for none. ``None`` leaves it to
        the plan, and is none in one.
    """

    column: str
    probabilities: tuple[float, ...] = QUARTILES
    bins: Bins = QUANTILE_BINS
    weight: float = 1.0
    edges: Mapping[str, tuple[float, ...]] | None = None
    branching: int | None = None

    def __post_init__(self) -> None:
        check_branching(f"the quantiles of {self.column!r}", self.branching)
        asked = tuple(self.probabilities)
        good = 1 <= len(asked) <= MAX_THRESHOLDS and ascending(asked)
        if not good or not 0 < asked[0] <= asked[-1] < 1:
            raise WorkloadError(
                f"quantiles of {self.column!r}: got the probabilities {short(asked)}, "
                f"expected 1 to {MAX_THRESHOLDS:,} ascending numbers above 0 and below 1."
            )
        object.__setattr__(self, "probabilities", tuple(map(float, asked)))
        check_all_bins((self.column,), {self.column: self.bins}, QUANTILE_BINS, self.edges)

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "quantiles"

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Quantiles:
        """Return these quantiles with their bins' edges fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null.
        """
        column = _continuous("quantiles", self.column, schema)
        edges = self.bins
        if isinstance(edges, int):
            edges = _fine_edges(column, values[self.column], edges)
        fixed = tuple(map(float, edges))  # as a plan's file is read, so that its hash is the same
        return replace(self, edges={self.column: fixed}, bins=QUANTILE_BINS)

    def tuned(self, terms: Terms, answers: FloatArray) -> Quantiles:
        """Return it with the branching of the least expected error, which no answer changes."""
        del answers
        return replace(self, branching=_branching(self.bind(terms), self.branching))

    def bind(self, terms: Terms) -> QuantileBlock:
        """The block of these quantiles; refused for a column that has none."""
        column = _continuous("quantiles", self.column, terms.schema)
        edges = require_edges("quantiles", self.columns, terms.schema, self.edges or {})
        low, high = limits(column)
        if edges[0] and not low < edges[0][0] <= edges[0][-1] <= high:
            raise WorkloadError(
                f"quantiles of {self.column!r}: got the bin edges {listed(edges[0])}, expected "
                f"ascending ones above {column.lower} and up to {column.upper}, its bounds."
            )
        block = QuantileBlock(
            variables=(Variable(self.column, column),),
            edges=edges,
            norm=terms.norm,
            relation=terms.relation,
            branching=self.branching or 0,
            probabilities=self.probabilities,
        )
        check_cells(block, f"quantiles of {self.column!r}")
        return block

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON; bins are told by their edges alone."""
        edges = {name: list(inner) for name, inner in (self.edges or {}).items()}
        chosen = list(self.probabilities)
        own = {"columns": [self.column], "probabilities": chosen, "edges": edges}
        return own | _branching_entry(self.branching)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Quantiles:
        """The quantiles that :meth:`to_dict` wrote; strict."""
        fields = ("columns", "probabilities", "edges", *_branching_key(entry))
        with reading("quantiles", entry, fields):
            (column,) = read_names(entry, "columns")
            return cls(
                column,
                read_numbers(entry, "probabilities"),
                weight=read_weight(entry),
                edges=read_edges(entry),
                branching=entry.get("branching"),
            )


class _Curve(NamedTuple):
    """A distribution function, linear between the ends of the bins."""

    total: float  # share of the values that are not null
    ends: FloatArray  # (B + 1,) in the column's units
    cumulative: FloatArray  # (B + 1,) from 0 to 1, ascending

    def places(self, probabilities: FloatArray) -> NDArray[np.intp]:
        """The bin in which each probability is reached first."""
        return np.searchsorted(self.cumulative[1:-1], probabilities - _TIE, side="left")

    def parts(self, probabilities: FloatArray, bins: NDArray[np.intp]) -> FloatArray:
        """How far into its bin each probability is reached, from 0 to 1."""
        low, high = self.cumulative[bins], self.cumulative[bins + 1]
        found = np.clip(probabilities - low, 0, None)
        return np.clip(np.divide(found, high - low, out=np.ones(len(bins)), where=high > low), 0, 1)

    def values(self, probabilities: FloatArray) -> FloatArray:
        """Where the function reaches each probability."""
        bins = self.places(probabilities)
        low, high = self.ends[bins], self.ends[bins + 1]
        return low + self.parts(probabilities, bins) * (high - low)


def wide_note(block: QuantileBlock) -> str | None:
    """That a quantile may be interpolated across much of the column, which no error bar shows."""
    column = block.variables[0].column
    assert isinstance(column, (Numeric, Datetime))
    low, high = limits(column)
    widths = np.diff([low, *block.edges[0], high])
    widest = int(np.argmax(widths))
    if len(widths) < _SEVERAL or widths[widest] <= _WIDE * (high - low):
        return None
    return (
        f"quantiles of {block.variables[0].label}: the bin {block.cells[widest]} is "
        f"{widths[widest] / (high - low):.0%} of the column's range. A quantile that falls into it "
        "is interpolated across it, and its standard error does not show that. Give bins of your "
        "own (bins) if private values may lie there."
    )


@dataclass(frozen=True)
class QuantileBlock(Nested):
    """Quantiles bound to a schema. See :class:`retilt.measures.base.Block`.

    The cells are the bins and null; then, with a branching, those of the coarser levels.

    Attributes
    ----------
    probabilities
        (S,) ascending, in (0, 1).
    """

    probabilities: tuple[float, ...]

    @property
    def statistics(self) -> tuple[str, ...]:
        """``quantile(age, 0.5)`` in the column's own units; dates are seconds since 1970."""
        name = self.variables[0].label
        return tuple(f"quantile({name}, {p!r})" for p in self.probabilities)

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """Name and bins: interpolated in others, it is another number."""
        return tuple(f"{s} {self.identity}" for s in self.statistics)

    @property
    def _steps(self) -> bool:
        """Whether the values are whole numbers."""
        column = self.variables[0].column
        return isinstance(column, Numeric) and column.integer

    def _curve(self, answers: FloatArray) -> _Curve | None:
        """The estimated distribution function; none without a positive share of values."""
        shares = self.shares(answers)[:-1]
        total = float(shares.sum())
        if not total > 0:
            return None
        column = self.variables[0].column
        assert isinstance(column, (Numeric, Datetime))
        low, high = limits(column)
        ends = np.array([low, *self.edges[0], high])
        if self._steps:
            # The whole numbers of a bin are those from its lower end to before its upper one.
            ends = np.ceil(ends)
            ends[-1] += 1
        elif isinstance(column, Datetime):
            ends = ends / 1e6
        inner = _monotone(np.cumsum(shares)[:-1] / total)
        return _Curve(total, ends, np.concatenate([[0.0], inner, [1.0]]))

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) quantiles; NaN where the estimated share of values is not positive.

        The noisy distribution function is made ascending (least squares) and read backwards.
        For whole numbers the quantile is the smallest at which it reaches the probability.
        """
        curve = self._curve(answers)
        asked = np.array(self.probabilities)
        if curve is None:
            return np.full(len(asked), np.nan)
        if not self._steps:
            return curve.values(asked)
        bins = curve.places(asked)
        low, width = curve.ends[bins], curve.ends[bins + 1] - curve.ends[bins]
        reached = np.ceil(curve.parts(asked, bins) * width - 1e-9)
        found: FloatArray = low + np.maximum(reached, 1) - 1
        return found

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) error of the distribution function at the quantile over the density there.

        The density is the mean one over an error of the distribution function to each side
        (at most the bin's own share), since it differs from bin to bin. Whole numbers that
        are known to a few steps: see :meth:`_step_error`.
        """
        curve = self._curve(answers)
        asked = np.array(self.probabilities)
        if curve is None:
            return np.full(len(asked), np.nan)
        bins = curve.places(asked)
        lines = self._lines(curve, asked, bins, curve.parts(asked, bins))
        errors = self.combination_errors(lines, variances, factor)
        own = curve.cumulative[bins + 1] - curve.cumulative[bins]
        reach = np.clip(errors, 1e-6 * own, own)
        below, above = np.maximum(asked - reach, 0), np.minimum(asked + reach, 1)
        rise, run = curve.values(above) - curve.values(below), above - below
        # A bin without a share of its own, at a probability next to 0, has no density.
        slope = np.divide(rise, run, out=np.full(len(asked), np.nan), where=run > 0)
        found: FloatArray = errors * slope
        if self._steps:
            noise = variances, factor
            for s in np.flatnonzero((found < _FEW_STEPS) & (errors < own)):
                found[s] = self._step_error(curve, float(asked[s]), noise)
        return found

    def _step_error(
        self, curve: _Curve, asked: float, noise: tuple[FloatArray, FloatArray]
    ) -> float:
        """Standard error of a whole number that is the smallest to reach a probability.

        It is at most v exactly if the noisy distribution function at v reaches the
        probability, which has the chance ``Phi((F(v) - p) / error of F(v))``. Near the
        quantile all but none of the chance is left out.
        """
        from scipy.special import ndtr

        middle = np.floor(curve.values(np.array([asked]))[0])
        values = middle + np.arange(-_STEPS_AROUND, _STEPS_AROUND + 1)
        values = values[(values >= curve.ends[0]) & (values < curve.ends[-1])]
        reached = np.interp(values + 1, curve.ends, curve.cumulative)
        bins = np.searchsorted(curve.ends[1:-1], values, side="right")
        parts = (values + 1 - curve.ends[bins]) / np.diff(curve.ends)[bins]
        lines = self._lines(curve, reached, bins, parts)
        errors = np.maximum(self.combination_errors(lines, *noise), 1e-15)
        chance = ndtr((reached - asked + _TIE) / errors)
        chance[-1] = 1
        masses = np.diff(np.maximum.accumulate(chance), prepend=0)
        mean = float(masses @ values)
        return float(np.sqrt(masses @ (values - mean) ** 2))

    def _lines(
        self, curve: _Curve, reached: FloatArray, bins: NDArray[np.intp], parts: FloatArray
    ) -> FloatArray:
        """(J, K) derivatives of the distribution function at fixed values, by the shares.

        F = N / T with N the share below the value and T that of all values:
        ``dF = (dN - F dT) / T``. A value is given by its bin and how far in it lies.
        """
        cells = np.arange(self.size)
        below = (cells < bins[:, None]).astype(np.float64)
        below[np.arange(len(bins)), bins] = parts
        lines: FloatArray = (below - reached[:, None] * (cells < self.size - 1)) / curve.total
        return lines

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where the quantile's bin is less than ten of its standard errors above zero."""
        curve = self._curve(answers)
        if curve is None:
            return np.ones(len(self.probabilities), dtype=np.bool_)
        bins = curve.places(np.array(self.probabilities))
        shares, errors = self.shares(answers), self.share_errors(variances, factor)
        dominated: NDArray[np.bool_] = shares[bins] < TRUSTED * errors[bins]
        return dominated

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`.

        Times the density, an error of a quantile is one of the distribution function.
        """
        curve = self._curve(answers)
        if curve is None:
            return np.zeros(len(self.probabilities))
        bins = curve.places(np.array(self.probabilities))
        density: FloatArray = np.diff(curve.cumulative)[bins] / np.diff(curve.ends)[bins]
        return density

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Bins without a row whose measured share is over three standard errors above zero."""
        own, errors = answers[: self.size], errors[: self.size]
        missed = np.flatnonzero((self.counts(arrays) == 0) & (own > 3 * errors))
        return [
            f"{self._nearest(answers, k)}: measured {own[k]:.3g} ± {errors[k]:.2g} of all "
            f"rows in the bin {self.cells[k]}, but no synthetic row lies in it."
            for k in worst(missed, own)
        ]

    def _nearest(self, answers: FloatArray, k: int) -> str:
        """The quantile that is found nearest to a bin."""
        curve = self._curve(answers)
        bins = np.zeros(1, np.intp) if curve is None else curve.places(np.array(self.probabilities))
        return self.statistics[int(np.argmin(np.abs(bins - k)))]


# --- branching ---------------------------------------------------------------------------


def _branching(block: Nested, asked: int | None) -> int | None:
    """As asked for, or else what is best for all sums of bins."""
    if asked is not None:
        return asked
    return best_branching(block.size - 1, block.norm)


def _branching_entry(given: int | None) -> dict[str, int]:
    """For a plan's file, where bins alone need no saying."""
    return {} if given is None else {"branching": given}


def _branching_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The key that files from before it, and those of bins alone, lack."""
    return ("branching",) if "branching" in entry else ()


# --- thresholds and edges ----------------------------------------------------------------


def _continuous(what: str, name: str, schema: Schema) -> Numeric | Datetime:
    column = schema[name]
    if isinstance(column, (Numeric, Datetime)):
        return column
    raise WorkloadError(
        f"{what}: {name!r} is {type(column).__name__.lower()}, expected a numeric or datetime "
        f"column. Ask marginal([{name!r}]) for the shares of its values."
    )


def _threshold(given: object) -> Threshold:
    """A number, or ISO text."""
    if isinstance(given, (np.integer, np.floating)):
        given = given.item()
    if is_number(given):
        return float(given)  # type: ignore[arg-type]
    if isinstance(given, date):  # a datetime is one
        given = given.isoformat()
    if isinstance(given, str):
        with suppress(ValueError, OverflowError):  # in UTC it may be before the year 1
            return _iso(datetime.fromisoformat(given))
    raise WorkloadError(
        f"thresholds: got {short(given)}, expected a finite number, or a date such as '2020-07-01'."
    )


def _iso(moment: datetime) -> str:
    """In UTC without saying so, and without a time at midnight."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    midnight = moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return moment.date().isoformat() if midnight else moment.isoformat(sep=" ")


def _in_units(
    name: str, column: Numeric | Datetime, thresholds: Sequence[Threshold]
) -> tuple[float, ...]:
    """Thresholds in the units of the column's cells, checked against its bounds."""
    kind, spoken = (str, "dates") if isinstance(column, Datetime) else (float, "numbers")
    if not all(isinstance(t, kind) for t in thresholds):
        raise WorkloadError(
            f"cdf of {name!r}: got the thresholds {listed(thresholds, _spoken)}; for this "
            f"column they must be {spoken}."
        )
    values = tuple(
        t if isinstance(t, float) else microseconds_of(datetime.fromisoformat(t))
        for t in thresholds
    )
    low, high = limits(column)
    if not ascending(values) or values[0] < low or values[-1] > high:
        raise WorkloadError(
            f"cdf of {name!r}: got the thresholds {listed(thresholds, _spoken)}, expected "
            f"ascending ones from {column.lower} to {column.upper}, its bounds."
        )
    return values


def _spoken(threshold: Threshold) -> str:
    """A threshold in full: two that differ read differently."""
    if isinstance(threshold, str):
        return threshold
    text = f"{threshold:.15g}"
    return text if float(text) == threshold else repr(threshold)


def _fine_edges(column: Numeric | Datetime, values: FloatArray, bins: int) -> tuple[float, ...]:
    """Inner edges for quantiles.

    Besides quantiles of the values: the ends of their range, so that nothing is spread over
    the empty rest of the bounds, and the ends of frequent values, so that each has a bin of
    its own and is a quantile in full.
    """
    low, high = limits(column)
    whole = isinstance(column, Numeric) and column.integer
    clamped = np.clip(values[np.isfinite(values)], low, high)
    if len(clamped) == 0 or low == high:
        return ()
    clamped = np.floor(clamped) if whole else clamped
    distinct, counts = np.unique(clamped, return_counts=True)
    frequent = distinct[counts * bins >= 2 * len(clamped)]
    ends = np.append(frequent, distinct[-1])
    after = ends + 1 if whole else np.nextafter(ends, np.inf)
    inner = quantile_edges(column, clamped, bins)
    edges = np.unique(np.concatenate([inner, frequent, after, distinct[:1]]))
    return tuple(float(e) for e in edges if low < e <= high)


def _monotone(cumulative: FloatArray) -> FloatArray:
    """The nearest ascending numbers, clipped to [0, 1]."""
    if np.any(np.diff(cumulative) < 0):
        from scipy.optimize import isotonic_regression

        cumulative = isotonic_regression(cumulative).x
    ascending_ones: FloatArray = np.clip(cumulative, 0, 1)
    return ascending_ones
