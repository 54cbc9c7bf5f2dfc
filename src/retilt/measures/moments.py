"""First and second moments, and the means, deviations, correlations and regressions they give.

Two bases of the same linear span (with the constant):

* ``"paper"``: each column in [0, 1], queries ``x_i`` and ``x_i x_j`` (i <= j), all equally
  loud; what the paper asks (its section on aligning the correlation matrix).
* ``"centred"``: each column in [-1, 1], queries ``alpha z_i``, ``beta z_i**2`` and
  ``z_i z_j`` (i < j). One row can move these far less, because a row's products can't all
  move when its linear terms do, and the squares can be asked louder for nothing. Rows may be
  pulled into a ball first (:mod:`retilt.measures.balls`): z is then the place in the unit ball.

How far one row moves them is derived in :mod:`retilt.measures.moment_bounds`. Within groups of
rows the basis is always the centred one: :mod:`retilt.measures.grouped`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.balls import RADIUS, Ball, ball_from_entry, ball_to_dict
from retilt.measures.base import (
    Alone,
    Basis,
    Feature,
    FloatArray,
    IntArray,
    Norm,
    Products,
    Relation,
    Terms,
    Variable,
    pieces,
)
from retilt.measures.entries import (
    listed,
    read_fraction,
    read_names,
    read_weight,
    reading,
    short,
)
from retilt.measures.grouped import GroupedBlock
from retilt.measures.grouping import (
    GROUP_FIELDS,
    GroupedMeasure,
    read_clip,
    read_groups,
    written,
    written_clip,
)
from retilt.measures.moment_bounds import (
    BALL_SQUARES,
    ball_sensitivity,
    centred_sensitivity,
    paper_sensitivity,
    rational_sqrt_down,
    square_loudness,
)
from retilt.measures.partitions import MAX_CELLS, check_names
from retilt.measures.second_moments import Reports, SecondMoments, nearest_correlation, spread
from retilt.schema.columns import Column

_CHUNK = 2**20
"""Rows summed at once: 2**20 products of at most 2**32 stay exact in float64."""


@dataclass(frozen=True, slots=True)
class Means(GroupedMeasure):
    """The means of columns, over all rows or within groups.

    Parameters as for :class:`retilt.measures.grouping.GroupedMeasure`.

    Examples
    --------
    >>> Means(("income",), by=("sex",), where="age>=65").columns
    ('income', 'sex', 'age')
    """

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "means"

    def bind(self, terms: Terms) -> MomentsBlock | GroupedBlock:
        """The block of this measure; columns that are constant by the schema are left out."""
        variables = self.varying(terms.schema, least=1)
        if self.grouped:
            return self.group_block(variables, terms, order=1, reports="moments")
        return MomentsBlock.linear(variables, terms)

    def tuned(self, terms: Terms, answers: FloatArray) -> Means:
        """Return this measure with the loudness of the counts that predicts the least error."""
        block = self.bind(terms)
        if isinstance(block, MomentsBlock):
            return self
        return self.tuned_groups(block, answers, [Fraction(1)])

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""
        return {"columns": list(self.of), "clip": written_clip(self.clip), **self.group_fields()}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Means:
        """The measure that :meth:`to_dict` wrote; strict."""
        grouped = GROUP_FIELDS if "by" in entry else ()
        with reading("means", entry, ("columns", "clip", *grouped)):
            names, clip = read_names(entry, "columns"), read_clip(entry)
            return cls(names, weight=read_weight(entry), clip=clip, **read_groups(entry))


@dataclass(frozen=True, slots=True)
class Moments(GroupedMeasure):
    """Means and, for order 2, standard deviations and correlations of columns; regressions.

    Parameters
    ----------
    of
        At least one distinct name (two for correlations; the target and its regressors).
    order
        1 (means only) or 2.
    statistics
        ``"moments"`` reports means, deviations and correlations, ``"correlation"`` only the
        correlations, ``"regression"`` the coefficients of the least-squares line of the first
        column on the others. The queries are the same.
    ball
        Of order 2 over all rows: centre and stretch (see :class:`retilt.measures.balls.Ball`) of
        each column that varies, chosen by the plan; ``None`` for the box.

    Others as for :class:`retilt.measures.grouping.GroupedMeasure`.
    """

    order: int = 2
    statistics: Reports = "moments"
    ball: Mapping[str, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        GroupedMeasure.__post_init__(self)  # super() does not work in a class with slots
        if type(self.order) is not int or self.order not in (1, 2):
            raise WorkloadError(f"order: got {short(self.order)}, expected 1 or 2.")
        if self.statistics not in ("moments", "correlation", "regression"):
            raise WorkloadError(
                f"statistics: got {short(self.statistics)}, expected moments, correlation or "
                "regression."
            )
        if self.ball is not None:
            self._check_ball(self.ball)
        if self.statistics == "moments":
            return
        if len(self.of) < 2:
            raise WorkloadError(
                f"{self.statistics}: got {len(self.of)} column, expected at least two."
            )
        if self.order != 2:
            raise WorkloadError(f"{self.statistics}: got order {self.order}, it needs order 2.")

    def _check_ball(self, ball: Mapping[str, tuple[int, int]]) -> None:
        if self.order != 2 or self.grouped:
            raise WorkloadError("ball: rows are pulled into one for second moments of all rows.")
        other = [n for n in ball if n not in self.of]
        if other:
            raise WorkloadError(f"ball: {listed(other)} is not among the columns.")
        object.__setattr__(self, "ball", MappingProxyType(dict(ball)))

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return self.statistics

    def bind(self, terms: Terms) -> MomentsBlock | GroupedBlock:
        """The block of this measure; columns that are constant by the schema are left out."""
        variables = self.varying(terms.schema, least=1 if self.statistics == "moments" else 2)
        if self.statistics == "regression" and variables[0].name != self.of[0]:
            raise WorkloadError(
                f"regression: the schema makes {self.of[0]!r}, the target, constant. "
                "Name another column or declare wider bounds."
            )
        if self.grouped:
            return self.group_block(variables, terms, order=self.order, reports=self.statistics)
        self._check_size(variables)
        loudness = self.loudness if self.loudness is not None else Fraction(1)
        # The bound (d + r)**2 needs r = alpha**2 <= d, d being the columns that vary.
        count = Fraction(1 if self.ball is not None else len(variables))
        cap = rational_sqrt_down(count) if terms.norm == 2 else count
        return MomentsBlock(
            variables=variables,
            order=self.order,
            reports=self.statistics,
            basis=terms.basis,
            norm=terms.norm,
            relation=terms.relation,
            loudness=Fraction(1) if self.order == 1 else min(loudness, cap),
            ball=self._bound_ball(variables, terms),
        )

    def _bound_ball(self, variables: tuple[Variable, ...], terms: Terms) -> Ball | None:
        """The ball of the columns that vary, in their order."""
        if self.ball is None:
            return None
        if terms.norm != 2 or terms.basis != "centred":
            raise WorkloadError(
                "ball: expected Gaussian noise (delta above 0, or rho) and the centred basis."
            )
        names = [v.name for v in variables]
        if set(names) != set(self.ball):
            raise WorkloadError(
                f"ball: got {listed(sorted(self.ball))}, expected the columns that vary, "
                f"{listed(names)}."
            )
        pairs = [self.ball[n] for n in names]
        far = [
            v.name for v, (c, _) in zip(variables, pairs, strict=True) if abs(c) > v.column.levels
        ]
        if far:
            raise WorkloadError(f"ball: the centre lies outside the bounds of {listed(far)}.")
        return Ball(tuple(c for c, _ in pairs), tuple(s for _, s in pairs))

    def _check_size(self, variables: tuple[Variable, ...]) -> None:
        """Refuse more queries than one measure may have, or names too long, beforehand."""
        d, what = len(variables), f"{self.statistics} of {listed(self.of)}"
        asked = d if self.order == 1 else d * (d + 3) // 2
        if asked > MAX_CELLS:
            raise WorkloadError(
                f"{what}: it has {asked:,} queries, allowed are {MAX_CELLS:,}. Name fewer columns."
            )
        check_names((d + 1 if self.order == 2 else 1) * sum(len(v.label) for v in variables), what)

    def tuned(self, terms: Terms, answers: FloatArray) -> Moments:
        """Return this measure with the loudness that predicts the least total squared error.

        The linear terms share one loudness, alpha. The predicted variance of each statistic
        is that of unit noise over the queries' loudness, times the squared sensitivity; the
        synthetic table's own answers (K,), in the centred basis, stand in for the real ones,
        at no privacy cost. For covariances alone the best r = alpha**2 is near m sqrt(d),
        m the typical mean of z (DESIGN 3).
        """
        if self.order == 1 and not self.grouped:
            return self
        count = len(self.of) if self.ball is None else 1
        top = sqrt(count) if terms.norm == 2 else float(count)
        # Below top / 8 the means drown in noise for a gain of a few per cent elsewhere.
        grid = {Fraction(ceil(64 * top * g), 64) for g in np.geomspace(0.125, 1, 24)}
        candidates = sorted({min(c, Fraction(count)) for c in grid})
        block = self.bind(replace(terms, basis="centred"))
        if isinstance(block, GroupedBlock):
            return self.tuned_groups(
                block, answers, candidates if self.order == 2 else [Fraction(1)]
            )
        losses = []
        for loudness in candidates:
            tried = replace(self, loudness=loudness).bind(replace(terms, basis="centred"))
            losses.append(tried.predicted_loss(answers))
        return replace(self, loudness=candidates[int(np.argmin(losses))])

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""
        return {
            "columns": list(self.of),
            "order": self.order,
            "loudness": written(self.loudness),
            "clip": written_clip(self.clip),
            **({} if self.ball is None else {"ball": ball_to_dict(self.ball)}),
            **self.group_fields(),
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Moments:
        """The measure that :meth:`to_dict` wrote beside its kind; strict."""
        grouped = GROUP_FIELDS if "by" in entry else ()
        placed = ("ball",) if "ball" in entry else ()
        own = ("columns", "order", "loudness", "clip", *placed, *grouped)
        with reading(str(entry.get("kind")), entry, own):
            return cls(
                read_names(entry, "columns"),
                order=entry["order"],
                statistics=entry["kind"],
                weight=read_weight(entry),
                loudness=read_fraction(entry, "loudness"),
                clip=read_clip(entry),
                ball=ball_from_entry(entry) if placed else None,
                **read_groups(entry),
            )


def query_key(kind: str, *variables: Variable) -> str:
    """Tells a query from others: what it is, and of which variables."""
    return json.dumps([kind, *sorted((v.identity for v in variables), key=str)], ensure_ascii=False)


@dataclass(frozen=True)
class MomentsBlock:
    """Moments bound to a schema. See :class:`retilt.measures.base.Block`.

    Queries in order: the d linear terms; for order 2 the squares of the columns that are not
    two-valued (a two-valued column's square is a constant in the centred basis and a copy of
    the linear term in the paper's); then the products i < j, row by row.
    """

    variables: tuple[Variable, ...]
    order: int
    reports: Reports
    basis: Basis
    norm: Norm
    relation: Relation
    loudness: Fraction
    ball: Ball | None = None

    @classmethod
    def linear(cls, variables: tuple[Variable, ...], terms: Terms) -> MomentsBlock:
        """The means of some variables and nothing else."""
        return cls(
            variables=variables,
            order=1,
            reports="moments",
            basis="centred",
            norm=terms.norm,
            relation=terms.relation,
            loudness=Fraction(1),
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        """One grid column each."""
        return tuple(v.grid for v in self.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """(d,) names of the variables."""
        return tuple(v.name for v in self.variables)

    @property
    def columns(self) -> tuple[Column, ...]:
        """(d,) their bounds or categories."""
        return tuple(v.column for v in self.variables)

    @property
    def _squares(self) -> list[int]:
        return self.derived.squares

    @property
    def _pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return self.derived.pairs

    @property
    def _complement(self) -> bool:
        """Whether the squares are asked as ``1 - z**2``."""
        return (
            self.basis == "centred" and self.ball is None and (self.relation is Relation.ADD_REMOVE)
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The function of a row, by basis and column names."""
        letter = "z" if self.basis == "centred" else "x"
        if self.ball is not None:  # every coordinate depends on all columns
            letter = f"w {self._ball_key}"
        square = f"1-{letter}{letter}" if self._complement else letter * 2
        left, right = self._pairs
        return (
            *(query_key(letter, v) for v in self.variables),
            *(query_key(square, self.variables[i]) for i in self._squares),
            *(
                query_key(letter * 2, self.variables[i], self.variables[j])
                for i, j in zip(left, right, strict=True)
            ),
        )

    @cached_property
    def _ball_key(self) -> str:
        """Tells the ball and its columns from others, in whatever order they come."""
        assert self.ball is not None
        columns = zip(self.variables, self.ball.centre, self.ball.stretch, strict=True)
        whole = sorted(json.dumps([v.identity, c, s]) for v, c, s in columns)
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:32]

    @property
    def _widths(self) -> list[int]:
        """Integer unit of each column: levels, or twice that where the zero is at the end."""
        if self.ball is not None:
            return [RADIUS] * len(self.variables)
        double = 2 if self.basis == "paper" else 1
        return [double * c.levels for c in self.columns]

    @property
    def units(self) -> tuple[int, ...]:
        """Products of the columns' grid levels."""
        width = self._widths
        left, right = self._pairs
        return (
            *width,
            *(width[i] ** 2 for i in self._squares),
            *(width[i] * width[j] for i, j in zip(left, right, strict=True)),
        )

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """Alpha for the linear terms, beta for the squares, 1 for the products."""
        squares, pairs = len(self._squares), len(self._pairs[0])
        if self.basis == "paper":
            return (Fraction(1),) * (len(self.names) + squares + pairs)
        return (
            *(self.loudness,) * len(self.names),
            *(self._beta,) * squares,
            *(Fraction(1),) * pairs,
        )

    @property
    def _beta(self) -> Fraction:
        """How loud the squares are asked."""
        if self.ball is not None:
            return BALL_SQUARES
        return square_loudness(
            self.norm,
            self.relation,
            columns=len(self.names),
            two_valued=len(self.names) - len(self._squares),
            loudness=self.loudness,
        )

    def sensitivity(self) -> Fraction:
        """See :mod:`retilt.measures.moment_bounds`."""
        if self.ball is not None:
            return ball_sensitivity(self.relation, loudness=self.loudness)
        if self.basis == "paper":
            return paper_sensitivity(len(self.keys))
        return centred_sensitivity(
            self.norm,
            self.relation,
            columns=len(self.names),
            order=self.order,
            loudness=self.loudness,
        )

    def _values(self, arrays: Sequence[IntArray]) -> FloatArray:
        """(rows, d) whole numbers, over :attr:`_widths`: the basis's columns."""
        levels = [c.levels for c in self.columns]
        if self.ball is not None:
            return self.ball.place(arrays, levels)
        values = np.empty((len(arrays[0]), len(arrays)))
        for i, array in enumerate(arrays):
            values[:, i] = array
        return values + np.array(levels) if self.basis == "paper" else values

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Exact integer sums of each query's numerator over the rows of ``arrays``."""
        count = len(self.names)
        rows = len(arrays[0])
        linear = [0] * count
        second = [[0] * count for _ in range(count)]
        for piece in pieces(rows, _CHUNK):
            values = self._values([a[piece] for a in arrays])
            # Exact: at most 2**20 addends of at most 2**32, so every partial sum is an
            # integer below 2**53 whatever order BLAS takes.
            gram = (values.T @ values).astype(np.int64)
            sums = values.sum(axis=0).astype(np.int64)
            for i in range(count):
                linear[i] += int(sums[i])
                for j in range(i, count):
                    second[i][j] += int(gram[i, j])
        width = self._widths
        left, right = self._pairs
        return [
            *linear,
            *(
                rows * width[i] ** 2 - second[i][i] if self._complement else second[i][i]
                for i in self._squares
            ),
            *(second[i][j] for i, j in zip(left, right, strict=True)),
        ]

    def design(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> Products:
        """The queries ``keep`` of every row as products of the basis's whole columns.

        Whole numbers of at most 2**17 are exact in single precision; the widths are in the
        factors.
        """
        rows, width = len(arrays[0]), np.array([*self._widths, 1], dtype=np.float64)
        values = np.empty((len(arrays), rows), dtype=np.float32).T
        for piece in pieces(rows, _CHUNK):
            values[piece] = self._values([a[piece] for a in arrays])
        count, squares = len(self.names), np.array(self._squares, dtype=np.intp)
        first, second = self._pairs
        none = np.full(count, -1, dtype=np.intp)
        left = np.concatenate([np.arange(count, dtype=np.intp), squares, first])
        right = np.concatenate([none, squares, second])
        flip = np.zeros(len(left), dtype=bool)
        if self._complement:
            flip[count : count + len(squares)] = True
        return Products(
            values=values,
            left=left[keep],
            right=right[keep],
            offset=np.where(flip, 1.0, 0.0)[keep],
            factor=(np.where(flip, -1.0, 1.0) / width[left] / width[right])[keep],
        )

    def alone(self, number: int, array: IntArray) -> Alone:
        """A column's linear term and square; in a ball as if the row lay at its centre else."""
        ball = self.ball
        if ball is not None:
            ball = Ball((ball.centre[number],), (ball.stretch[number],))
        single = replace(self, variables=(self.variables[number],), reports="moments", ball=ball)
        squares = [len(self.names) + self._squares.index(number)] if single._squares else []
        queries = np.array([number, *squares], dtype=np.intp)
        return Alone(queries, (single.design([array], np.arange(len(queries))),))

    @cached_property
    def derived(self) -> SecondMoments:
        """What the answers say: statistics and their derivatives."""
        return SecondMoments(
            columns=self.columns,
            titles=tuple(v.title for v in self.variables),
            labels=tuple(v.label for v in self.variables),
            order=self.order,
            reports=self.reports,
            basis=self.basis,
            complement=self._complement,
            ball=self.ball,
        )

    @property
    def statistics(self) -> tuple[str, ...]:
        """``mean(a)``, ``sd(a)``, ``corr(a, b)`` in the user's order; ``coef(x; y ~ x)``."""
        return self.derived.names()

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """The names, which say the columns and the function; bounds of its own belong to it.

        Two formulas of one text, or one column, may be clamped to different bounds, and rows may
        be pulled into different balls.
        """
        own = "" if self.ball is None else f" {self._ball_key}"
        marks = [
            own if isinstance(v.identity, str) else f" {v.identity}{own}" for v in self.variables
        ]
        told = replace(
            self.derived,
            titles=tuple(f"{v.title[:-1]}{m})" for v, m in zip(self.variables, marks, strict=True)),
            labels=tuple(v.label + m for v, m in zip(self.variables, marks, strict=True)),
        )
        return told.names()

    def correlations(self, answers: FloatArray, *, repaired: bool = False) -> FloatArray:
        """(d, d) correlation matrix at (K,) answers of order 2, clipped to [-1, 1].

        NaN where a variance is not positive. With ``repaired`` it is positive semidefinite:
        see :func:`retilt.measures.second_moments.nearest_correlation`.
        """
        matrix = self.derived.correlations(answers)
        return nearest_correlation(matrix) if repaired else matrix

    def repairs(self, answers: FloatArray) -> list[str]:
        """What noise made impossible and ``correlations(answers, repaired=True)`` repairs."""
        if self.order == 1:
            return []
        matrix = self.correlations(answers)
        if np.array_equal(matrix, nearest_correlation(matrix), equal_nan=True):
            return []
        names = ", ".join(v.label for v in self.variables)
        return [
            f"The estimated correlations of {names} contradict each other (their matrix has a "
            "negative eigenvalue, by noise): the matrix is repaired, the single estimates are not."
        ]

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics: means and deviations in the columns' own units.

        A deviation or correlation whose estimated variance is not positive is NaN; a
        correlation estimate outside [-1, 1], which noise can produce, is clipped.
        """
        return self.derived.evaluate(answers)

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors by the delta method; NaN where undefined."""
        derived = self.derived
        first = spread(derived.slopes(answers), variances, factor)
        of_means = spread(derived.mean_slopes(), variances, factor)
        beyond = derived.curvature(answers, of_means, self.norm)
        errors: FloatArray = np.sqrt(first**2 + beyond)
        return errors

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where a variance that is divided by drowns in noise.

        That is, it is not ten of its standard errors above zero (twenty in a regression).
        """
        derived = self.derived
        values, slopes = derived.denominators(answers)
        errors = spread(slopes, variances, factor)
        return derived.dividing(~(values >= derived.trusted * errors))

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what makes errors comparable: see :class:`retilt.measures.base.Block`."""
        del answers  # a range is a matter of the schema
        return 1 / self.derived.steps

    def predicted_loss(self, answers: FloatArray) -> float:
        """Squared sensitivity times the statistics' total variance under unit noise."""
        scales = np.array([float(s) for s in self.scales])
        variances = self.derived.slopes(answers).quadratic(1 / scales**2)
        loss = float(self.sensitivity())
        scaled = variances / self.derived.steps**2
        return (loss if self.norm == 2 else loss * loss) * float(np.nansum(scaled))

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Means and deviations that no weights of the rows can give, column by column.

        For one column the reachable pairs (mean m, mean square) are the convex hull of the
        support's points: with ends p < q the mean square is at most ``(p + q) m - p q`` (the
        chord). Anything within three standard errors counts as reachable.
        """
        count, squares = len(self.names), self._squares
        found = []
        width = np.array(self._widths)
        ends = [_ends(self._values([a[p] for a in arrays])) for p in pieces(len(arrays[0]), _CHUNK)]
        lows, highs = (extreme / width for extreme in _ends(np.concatenate(ends)))
        for i in range(count):
            low, high = float(lows[i]), float(highs[i])
            mean, error = float(answers[i]), float(errors[i])
            if not low - 3 * error <= mean <= high + 3 * error:
                found.append(self._mean_shortfall(i, low, high, mean, error))
            elif i in squares:
                k = count + squares.index(i)
                square = 1 - answers[k] if self._complement else answers[k]
                most = (low + high) * mean - low * high
                slack = 3 * float(np.hypot(errors[k], (low + high) * error))
                if square > most + slack:
                    found.append(self._spread_shortfall(i, float(square), most, mean))
        return found

    def _mean_shortfall(self, i: int, low: float, high: float, mean: float, error: float) -> str:
        origin, span = (v[i] for v in self.derived.natural())
        ends = f"{origin + span * low:.4g} and {origin + span * high:.4g}"
        return (
            f"{self.variables[i].title}: measured {origin + span * mean:.4g} "
            f"± {span * error:.2g}, but all synthetic rows lie between {ends}."
        )

    def _spread_shortfall(self, i: int, square: float, most: float, mean: float) -> str:
        _, span = (v[i] for v in self.derived.natural())
        measured, reach = (span * sqrt(max(s - mean**2, 0.0)) for s in (square, most))
        return (
            f"sd({self.variables[i].label}): measured {measured:.4g}, but with the measured mean "
            f"the synthetic rows' values allow at most {reach:.4g}: they lack its far values."
        )


def _ends(values: FloatArray) -> FloatArray:
    """(2, d) least and largest value of each column."""
    return np.stack([values.min(axis=0), values.max(axis=0)])
