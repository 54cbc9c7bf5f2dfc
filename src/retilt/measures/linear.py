"""Statistics that somebody else has computed, as means of functions of a row.

A mean, a share or the mean of a product is one by itself. A deviation, a correlation or the mean
of a group is not, but near given values it is: each is asked as its *influence function*, which
has the mean 0 exactly where the table has the given value (the values that it is computed with
being met, too). So every statistic is one query whose noise is the statistic's own, times a
number; nothing that the values share has to be untangled.

With m, s the given mean and deviation of a column, w = (x - m) / s, and r a given correlation:

* ``sd(x)``: the mean of (x - m)^2 is s^2; an error e of s moves it by 2 s e;
* ``corr(x, y)``: the mean of w_x w_y - r (w_x^2 + w_y^2) / 2 is 0; an error e moves it by e;
* the mean m of x within a group of share p: the mean of 1_g (x - m) is 0; e moves it by p e.

To the first order none of them feels an error of another value. To the second they do, and a mean
may be told so roughly that nothing else counts. With independent normal errors e of the means and
d of the deviations, in units of the deviations:

* ``sd(x)``: the mean of (x - m)^2 is off by s^2 e^2, whose root mean square is sqrt(3) s^2 var(e);
* ``corr(x, y)``: the mean is off by e_x e_y - r (e_x^2 + e_y^2) / 2 - r (d_x - d_y)^2 / 2, at most
  sqrt(3) / 2 times (1 + abs(r)) (var(e_x) + var(e_y)) + abs(r) (var(d_x) + var(d_y)).

That is taken as noise of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt._input import apart
from retilt.measures.base import (
    Alone,
    Design,
    EncodedArray,
    Feature,
    FloatArray,
    Grouped,
    Indicators,
    IntArray,
    Products,
    Variable,
)
from retilt.measures.moments import query_key
from retilt.measures.partitions import TRUSTED, Partition, root, worst
from retilt.measures.second_moments import natural_bounds
from retilt.schema.columns import Categorical, Column

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Kind: TypeAlias = Literal["mean", "share", "product", "sd", "corr", "group_mean"]

_LEAST_SPREAD = 1e-12
"""Variances below this part of the given one are rounding, not spread."""

_ROUNDING = 1e-9
"""Of an answer, in units of a share or of its query's largest value."""

_TOTAL_ROUNDING = 1e-6
"""By which a table's exact shares may miss a total of 1: they are written in decimals."""

_MEASURED = {"mean": "z", "share": "z"}
"""What moments call the same queries."""

_Column: TypeAlias = tuple[int, float, float]
"""Number of a variable and what is taken off it and divided by, in natural units."""


def value_bounds(column: Column) -> tuple[float, float]:
    """The ends of a column's values: those of means, but categories that are numbers stay so.

    >>> value_bounds(Categorical((1.0, 2.0))), value_bounds(Categorical(("a", "b", "c")))
    ((1.0, 2.0), (0.0, 2.0))
    """
    if isinstance(column, Categorical) and not column.is_text:
        values = [float(c) for c in column.categories]
        return min(values), max(values)
    return natural_bounds(column)


@dataclass(frozen=True, slots=True)
class Stated:
    """One statistic with its given value.

    Attributes
    ----------
    kind
        What it is.
    name
        As it stands in results.
    value
        Given, in natural units; in [-1, 1] for a correlation, above 0 for a deviation.
    on
        Numbers of the variables that it reads: the column (two for a product or a correlation);
        then the condition of a group.
    needs
        Numbers of the statistics that it is computed with: the mean of a deviation; both means
        and both deviations of a correlation; the share of a group.
    """

    kind: Kind
    name: str
    value: float
    on: tuple[int, ...]
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Query:
    """A function of a row: ``f(left) f(right) / largest``, in [-1, 1].

    Nothing is taken off it: bounds far wider than the rows' values would leave few digits of
    the difference.
    """

    left: int
    right: int
    largest: float


@dataclass(frozen=True)
class LinearBlock:
    """Stated statistics of variables, one query each. K = S.

    Attributes
    ----------
    variables
        (d,) what is read, none of them constant.
    stated
        (S,) the statistics.
    """

    variables: tuple[Variable, ...]
    stated: tuple[Stated, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        """The values of each variable.

        They are not rounded to a grid: no sum of them has to be exact, and a value that is given
        as exact is to be met as exactly where the declared bounds are wide.
        """
        return tuple(v.values for v in self.variables)

    @property
    def keys(self) -> tuple[str, ...]:
        """(K,) kind and variables; of a mean or share those that a measured one has.

        So no guard holds what is given.
        """
        return tuple(
            query_key(_MEASURED.get(s.kind, s.kind), *(self.variables[i] for i in s.on))
            for s in self.stated
        )

    @property
    def statistics(self) -> tuple[str, ...]:
        """(S,) names."""
        return tuple(s.name for s in self.stated)

    def _bounds(self, i: int) -> tuple[float, float]:
        return value_bounds(self.variables[i].column)

    def _value(self, stated: Stated, which: int) -> float:
        """The given value of a statistic that another is computed with."""
        return self.stated[stated.needs[which]].value

    # --- queries --------------------------------------------------------------------------

    def _columns_of(self, stated: Stated) -> list[_Column]:
        """The columns whose product the query is; a correlation's pair is made one elsewhere."""
        i = stated.on[0]
        if stated.kind in ("mean", "share"):
            low, high = self._bounds(i)
            origin = min(max(low, 0.0), high)
            return [(i, origin, max(high - origin, origin - low))]
        if stated.kind == "product":
            return [(j, 0.0, max(map(abs, self._bounds(j)))) for j in stated.on]
        if stated.kind == "corr":
            return [
                (j, self._value(stated, k), self._value(stated, k + 2))
                for k, j in enumerate(stated.on)
            ]
        centre = self._value(stated, 0) if stated.kind == "sd" else stated.value
        column = (i, centre, max(abs(b - centre) for b in self._bounds(i)))
        return [column, column if stated.kind == "sd" else (stated.on[1], 0.0, 1.0)]

    def _ends(self, column: _Column) -> tuple[float, float]:
        i, shift, unit = column
        low, high = self._bounds(i)
        return (low - shift) / unit, (high - shift) / unit

    def _largest(self, stated: Stated, columns: list[_Column]) -> float:
        """Largest size of the product of a statistic's columns."""
        ends = [max(map(abs, self._ends(c))) for c in columns]
        if stated.kind != "corr":
            return math.prod(ends)
        return ends[0] * ends[1] + abs(stated.value) * (ends[0] ** 2 + ends[1] ** 2) / 2

    @cached_property
    def _layout(self) -> tuple[dict[tuple[_Column, ...] | Stated, int], list[_Query]]:
        """The design's columns by what they are, and the queries over them."""
        places: dict[tuple[_Column, ...] | Stated, int] = {}
        queries = []
        for stated in self.stated:
            columns = self._columns_of(stated)
            largest = self._largest(stated, columns)
            if stated.kind == "corr":
                ends = [places.setdefault(stated, len(places))]
            else:
                ends = [places.setdefault((c,), len(places)) for c in columns]
            queries.append(_Query(ends[0], ends[1] if len(ends) == 2 else -1, largest))
        return places, queries

    def design(self, arrays: Sequence[FloatArray]) -> Products:
        """The queries of every row."""
        places, queries = self._layout
        values = np.empty((len(places), len(arrays[0]))).T
        for what, place in places.items():
            if isinstance(what, Stated):
                one, other = (
                    (arrays[i] - shift) / unit for i, shift, unit in self._columns_of(what)
                )
                values[:, place] = one * other - what.value * (one**2 + other**2) / 2
            else:
                ((i, shift, unit),) = what
                values[:, place] = (arrays[i] - shift) / unit
        return Products(
            values=values,
            left=np.array([q.left for q in queries], dtype=np.intp),
            right=np.array([q.right for q in queries], dtype=np.intp),
            offset=np.zeros(len(queries)),
            factor=np.array([1 / q.largest for q in queries]),
        )

    def alone(self, number: int, array: FloatArray) -> Alone | None:
        """Means, shares and deviations of one variable over all rows."""
        own = [k for k, s in enumerate(self.stated) if set(s.on) == {number}]
        if not own:
            return None
        # A deviation is computed with a mean of the same variable, which is among them.
        stated = tuple(
            replace(s, on=(0,) * len(s.on), needs=tuple(own.index(n) for n in s.needs))
            for s in (self.stated[k] for k in own)
        )
        single = LinearBlock((self.variables[number],), stated)
        return Alone(np.array(own, dtype=np.intp), (single.design([array]),))

    @cached_property
    def _scales(self) -> tuple[FloatArray, FloatArray]:
        """(K,) what is taken off each mean and divides it, in natural units or their product."""
        origins, units = [], []
        for stated, query in zip(self.stated, self._layout[1], strict=True):
            unit = 1.0
            origin = 0.0
            if stated.kind != "corr":
                columns = self._columns_of(stated)
                unit = math.prod(c[2] for c in columns)
                origin = columns[0][1] if stated.kind in ("mean", "share") else 0.0
            origins.append(origin)
            units.append(query.largest * unit)
        return np.array(origins), np.array(units)

    # --- given values to answers, and back ---------------------------------------------------

    def answers(self) -> FloatArray:
        """(K,) answers that stand for the given values."""
        wanted = np.array([self._aim(s) for s in self.stated])
        origins, units = self._scales
        result: FloatArray = (wanted - origins) / units
        return result

    @staticmethod
    def _aim(stated: Stated) -> float:
        """The mean that a statistic's query has where the statistic has its given value."""
        if stated.kind == "sd":
            return stated.value**2
        return 0.0 if stated.kind in ("corr", "group_mean") else stated.value

    def slopes(self) -> FloatArray:
        """(K,) how far each answer moves for an error of 1 of its given value."""
        moved = [
            2 * s.value if s.kind == "sd" else self._value(s, 0) if s.kind == "group_mean" else 1.0
            for s in self.stated
        ]
        result: FloatArray = np.array(moved) / self._scales[1]
        return result

    def second_order(self, errors: FloatArray) -> FloatArray:
        """(K,) deviations of the answers from the (S,) errors of what they are computed with."""
        extra = np.zeros(len(self.stated))
        for k, stated in enumerate(self.stated):
            variances = [float(errors[j]) ** 2 for j in stated.needs]
            if stated.kind == "sd":
                extra[k] = math.sqrt(3) * variances[0]
            elif stated.kind == "corr":
                units = [self._value(stated, i) ** 2 for i in (2, 3)]
                means, deviations = (
                    sum(v / u for v, u in zip(part, units, strict=True))
                    for part in (variances[:2], variances[2:])
                )
                r = abs(stated.value)
                extra[k] = math.sqrt(3) / 2 * ((1 + r) * means + r * deviations)
        result: FloatArray = extra / self._scales[1]
        return result

    def _expected(self, answers: FloatArray) -> FloatArray:
        """(K,) means of the queries in natural units."""
        origins, units = self._scales
        result: FloatArray = origins + units * answers
        return result

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers; NaN where undefined."""
        means = self._expected(answers).tolist()
        return np.array([self._statistic(k, means)[0] for k in range(len(self.stated))])

    def jacobian(self, answers: FloatArray) -> csr_array:
        """(S, K) derivatives of the statistics by the answers."""
        from scipy.sparse import coo_array

        means = self._expected(answers).tolist()
        entries = [
            (k, j, slope)
            for k in range(len(self.stated))
            for j, slope in self._statistic(k, means)[1].items()
        ]
        rows, columns, slopes = (np.array(part) for part in zip(*entries, strict=True))
        size = len(self.stated)
        units = self._scales[1]
        return coo_array((slopes * units[columns], (rows, columns)), shape=(size, size)).tocsr()

    def _statistic(self, k: int, means: Sequence[float]) -> tuple[float, dict[int, float]]:
        """A statistic, and its derivatives by the queries' means in natural units."""
        stated = self.stated[k]
        if stated.kind == "sd":
            return self._deviation(k, means)
        if stated.kind == "corr":
            return self._correlation(k, means)
        if stated.kind == "group_mean":
            share = stated.needs[0]
            p = means[share]
            if not p > 0:
                return math.nan, {k: math.nan}
            off = means[k] / p
            return stated.value + off, {k: 1 / p, share: -off / p}
        return means[k], {k: 1.0}

    def _deviation(self, k: int, means: Sequence[float]) -> tuple[float, dict[int, float]]:
        """The root of E (x - m)^2 - (E x - m)^2."""
        (mean,) = self.stated[k].needs
        off = means[mean] - self.stated[mean].value
        variance = means[k] - off**2
        if not variance > _LEAST_SPREAD * self.stated[k].value ** 2:
            return math.nan, {k: math.nan}
        sd = math.sqrt(variance)
        return sd, {k: 1 / (2 * sd), mean: -off / sd}

    def _correlation(self, k: int, means: Sequence[float]) -> tuple[float, dict[int, float]]:
        """From the influence function's mean and both columns' means and squares.

        With u_i = E w_i and v_i = E w_i^2 the mean of w_1 w_2 is c = E h + r (v_1 + v_2) / 2,
        and the correlation is (c - u_1 u_2) / sqrt((v_1 - u_1^2)(v_2 - u_2^2)).
        """
        stated = self.stated[k]
        places, squares = stated.needs[:2], stated.needs[2:]
        scales = [self.stated[j].value for j in squares]
        off = [(means[j] - self.stated[j].value) / s for j, s in zip(places, scales, strict=True)]
        square = [means[j] / s**2 for j, s in zip(squares, scales, strict=True)]
        spread = [v - u * u for v, u in zip(square, off, strict=True)]
        if not min(spread) > _LEAST_SPREAD:
            return math.nan, {k: math.nan}
        root = math.sqrt(spread[0] * spread[1])
        rho = (means[k] + stated.value * sum(square) / 2 - off[0] * off[1]) / root
        slopes = {k: 1 / root}
        for i in (0, 1):
            by_square = stated.value / (2 * root) - rho / (2 * spread[i])
            by_mean = -off[1 - i] / root + rho * off[i] / spread[i]
            slopes[squares[i]] = by_square / scales[i] ** 2
            slopes[places[i]] = by_mean / scales[i]
        return min(max(rho, -1.0), 1.0), slopes

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors by the delta method; NaN where undefined."""
        slopes = self.jacobian(answers)
        squared = (slopes.power(2)) @ variances
        if factor.shape[1]:
            squared = squared + ((slopes @ factor) ** 2).sum(axis=1)
        errors: FloatArray = np.sqrt(squared)
        return errors

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) whether a group's share is too near to zero for the delta method."""
        errors = self.standard_errors(answers, variances, factor)
        shares = self._expected(answers)
        found = np.zeros(len(self.stated), dtype=np.bool_)
        for k, stated in enumerate(self.stated):
            if stated.kind == "group_mean":
                share = stated.needs[0]
                found[k] = shares[share] < TRUSTED * errors[share]
            elif stated.kind == "sd":
                found[k] = stated.value < TRUSTED * errors[k]
            elif stated.kind == "corr":
                found[k] = any(self.stated[j].value < TRUSTED * errors[j] for j in stated.needs[2:])
        return found

    def shortfalls(
        self, arrays: Sequence[FloatArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Statistics that no weights of the rows can give, taken one by one."""
        design = self.design(arrays)
        found = []
        for k, stated in enumerate(self.stated):
            low, high = _range(design, k)
            slack = 3 * float(errors[k]) + _ROUNDING * max(abs(low), abs(high))
            if low - slack <= answers[k] <= high + slack:
                continue
            found.append(self._shortfall(k, stated, low, high))
        return found

    def _shortfall(self, k: int, stated: Stated, low: float, high: float) -> str:
        if stated.kind in ("mean", "share", "product"):
            ends = np.full((2, len(self.stated)), 0.0)
            ends[:, k] = low, high
            least, most = (float(self._expected(e)[k]) for e in ends)
            beyond = most if stated.value > most else least
            given, told = apart(stated.value, beyond)
            within = [told if end == beyond else f"{end:.4g}" for end in (least, most)]
            reach = f"all synthetic rows lie between {' and '.join(within)}"
            if least == most:
                reach = f"it is {told} in every synthetic row"
        else:
            given, reach = f"{stated.value:.4g}", "no weights of the synthetic rows can give that"
        return f"{stated.name}: given as {given}, but {reach}."


def _range(design: Products, k: int) -> tuple[float, float]:
    """Least and largest value of a query over the rows."""
    values = np.ones(len(design.values))
    for end in (design.left[k], design.right[k]):
        if end >= 0:
            values = values * design.values[:, end]
    values = design.offset[k] + design.factor[k] * values
    return float(values.min()), float(values.max())


@dataclass(frozen=True)
class CellsBlock:
    """The shares of some cells of a table, one query each. K = S.

    Attributes
    ----------
    table
        The whole table.
    cells
        (S,) numbers of the cells whose shares are known, each once.
    """

    table: Partition
    cells: tuple[int, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        """The table's."""
        return self.table.features

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """(K,) the table's."""
        keys = self.table.keys
        return tuple(keys[c] for c in self.cells)

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """(S,) ``cell(sex=F, race=White)``."""
        names = self.table.cells
        return tuple(f"cell({names[c]})" for c in self.cells)

    def design(self, arrays: Sequence[IntArray]) -> Indicators | Grouped:
        """The queries of every row."""
        codes = self.table.codes(arrays).astype(np.int32)
        if self.cells == tuple(range(self.table.size)):
            return Indicators(codes=codes, size=self.table.size)
        count = len(self.cells)
        none = np.full(count, -1, dtype=np.intp)
        return Grouped(
            codes=codes,
            size=self.table.size,
            values=np.empty((len(codes), 0)),
            cell=np.array(self.cells, dtype=np.intp),
            left=none,
            right=none,
            offset=np.zeros(count),
            factor=np.ones(count),
        )

    def alone(self, number: int, array: IntArray) -> Alone | None:
        """All cells if the table has one variable, else none."""
        del number
        if len(self.features) > 1:
            return None
        return Alone(np.arange(len(self.cells)), (self.design([array]),))

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) shares: the answers as they are."""
        return answers.copy()

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors of the shares."""
        del answers  # the shares are linear in them
        return root(variances, factor)

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) false: the shares are linear in the answers, so their errors hold."""
        del answers, variances, factor
        return np.zeros(len(self.cells), dtype=np.bool_)

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Cells without a row that should have a share, and totals that are not 1."""
        every = self.table.counts(arrays)
        counts = every[list(self.cells)]
        missed = np.flatnonzero((counts == 0) & (answers > 3 * errors + _ROUNDING))
        named = worst(missed, answers)
        found = [
            f"{self.statistics[k]}: given as {answers[k]:.3g}, but no synthetic row lies in this "
            "cell."
            for k in named
        ]
        if len(missed) > len(named):
            found.append(f"So it is in {len(missed) - len(named):,} more cells of {self._title}.")
        whole = bool(every.sum() == counts.sum())
        total, error = float(answers.sum()), float(errors.sum())
        return [*found, *self._total(total, error, whole=whole)]

    def _total(self, total: float, error: float, *, whole: bool) -> list[str]:
        """Whether the shares add up; ``error`` is their sum's at worst, however correlated.

        ``whole`` says that no synthetic row lies in any other cell.
        """
        slack = 3 * error + _TOTAL_ROUNDING
        if total <= 1 + slack and (not whole or total >= 1 - slack):
            return []
        return [
            f"{self._title}: the shares given add up to {total:.6g}, those of the synthetic rows "
            f"to {'1' if whole else 'at most 1'}. Divide them by their total, or give them "
            "standard errors."
        ]

    @property
    def _title(self) -> str:
        return f"the table of {', '.join(v.label for v in self.table.variables)}"


@dataclass(frozen=True)
class StatedQueries:
    """Blocks of stated statistics side by side. K = S; no query stands in two of them."""

    blocks: tuple[LinearBlock | CellsBlock, ...]

    @cached_property
    def positions(self) -> tuple[NDArray[np.intp], ...]:
        """For each block where its answers stand among the K."""
        ends = np.cumsum([0, *(len(b.statistics) for b in self.blocks)])
        return tuple(np.arange(a, b, dtype=np.intp) for a, b in pairwise(ends.tolist()))

    @cached_property
    def size(self) -> int:
        """K."""
        return sum(map(len, self.positions))

    def second_order(self, errors: FloatArray) -> FloatArray:
        """(K,) deviations of the answers from the errors of others; cells have none."""
        parts = [
            b.second_order(errors[p]) if isinstance(b, LinearBlock) else np.zeros(len(p))
            for b, p in zip(self.blocks, self.positions, strict=True)
        ]
        return np.concatenate(parts)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """Every encoded column that is read, once."""
        return tuple(dict.fromkeys(f for b in self.blocks for f in b.features))

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """(S,) names."""
        return tuple(s for b in self.blocks for s in b.statistics)

    def designs(self, encoded: Mapping[Feature, EncodedArray]) -> tuple[Design, ...]:
        """The solver's view of every row: the K queries, in order."""
        return tuple(b.design([encoded[f] for f in b.features]) for b in self.blocks)

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers."""
        parts = [b.evaluate(answers[p]) for b, p in zip(self.blocks, self.positions, strict=True)]
        return np.concatenate(parts)

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors under noise ``diag(variances) + factor @ factor.T``."""
        return np.concatenate(
            [
                b.standard_errors(answers[p], variances[p], factor[p])
                for b, p in zip(self.blocks, self.positions, strict=True)
            ]
        )

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where noise dominates, so that an error bar can't be trusted."""
        return np.concatenate(
            [
                b.dominated(answers[p], variances[p], factor[p])
                for b, p in zip(self.blocks, self.positions, strict=True)
            ]
        )
