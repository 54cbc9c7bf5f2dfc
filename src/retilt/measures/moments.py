"""First and second moments, and the correlations that they give.

Two bases of the same linear span (with the constant):

* ``"paper"``: each column in [0, 1], queries ``x_i`` and ``x_i x_j`` (i <= j), all equally
  loud; what the paper asks (its section on aligning the correlation matrix).
* ``"centred"``: each column in [-1, 1], queries ``alpha z_i``, ``beta z_i**2`` and
  ``z_i z_j`` (i < j). One row can move these far less, because a row's products can't all
  move when its linear terms do, and the squares can be asked louder for nothing.

Every bound below is for the *sums* over a table whose columns lie in [-1, 1] (or [0, 1]);
``kappa``, the loudness of the products, is 1 throughout. Rounding columns to their grid comes
first and keeps them in that box, so the bounds hold for the integers that are really summed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, isqrt, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import (
    Basis,
    Feature,
    FloatArray,
    IntArray,
    Norm,
    Products,
    Relation,
    Terms,
    Variable,
)
from retilt.schema.columns import MAX_LEVELS, Column, Datetime, Numeric
from retilt.schema.encode import limits

_CHUNK = 2**20
"""Rows summed at once: 2**20 products of at most 2**32 stay exact in float64."""

_LEAST_LOUDNESS = Fraction(1, 1024)
"""Far below any useful alpha, and far enough above 0 that beta is not rounded down to 0."""

_LEAST_VARIANCE = 1e-12
"""Variances (of a column of length 1 or 2) below this are rounding, not spread."""


def rational_sqrt_down(value: Fraction) -> Fraction:
    """The largest multiple of 2**-20 whose square is at most ``value`` >= 0.

    >>> rational_sqrt_down(Fraction(9, 4))
    Fraction(3, 2)
    """
    return Fraction(isqrt(floor(value * 2**40)), 2**20)


def square_loudness(
    norm: Norm, relation: Relation, *, columns: int, two_valued: int, loudness: Fraction
) -> Fraction:
    """How loud the squares may be asked at no cost in sensitivity (beta, for kappa = 1).

    Parameters
    ----------
    norm, relation
        Which sensitivity must not grow.
    columns, two_valued
        d, and how many of them are two-valued, so that their squares are constant and not asked.
    loudness
        alpha, of the linear terms; r = alpha**2.

    Returns
    -------
    Fraction
        L2: the square root, rounded down, of ``1/2 + r + (d + d1)/2`` (replace-one) or
        ``r + (d + d1 - 1)/2`` (add/remove-one); L1: ``1/2`` or ``(alpha + d - 1)/2``.
        Derivations in :func:`centred_sensitivity`.
    """
    if norm == 1:
        return Fraction(1, 2) if relation is Relation.REPLACE else (loudness + columns - 1) / 2
    extra = Fraction(1, 2) if relation is Relation.REPLACE else -Fraction(1, 2)
    return rational_sqrt_down(loudness**2 + Fraction(columns + two_valued, 2) + extra)


def centred_sensitivity(
    norm: Norm, relation: Relation, *, columns: int, order: int, loudness: Fraction
) -> Fraction:
    r"""Bound of one row's effect on the scaled sums of the centred basis.

    The squares are as loud as :func:`square_loudness` allows; kappa = 1; d columns of which
    d1 are two-valued; r = alpha**2.

    Returns
    -------
    Fraction
        The squared L2 bound (``norm=2``) or the L1 bound (``norm=1``).

    Notes
    -----
    **Replace-one, L2:** ``(d + r)**2`` for r <= d, else ``4 r d``.
    Write x = z - z', y = z + z'. Then ``z_i**2 - z'_i**2 = x_i y_i`` and
    ``z_i z_j - z'_i z'_j = (x_i y_j + y_i x_j) / 2``, so with the off-diagonal terms counted
    once the squared distance is

        r |x|^2 + (|x|^2 |y|^2 + (x.y)^2) / 4 + (beta^2 - 1/2) sum (x_i y_i)^2.

    Since ``|x_i| + |y_i| <= 2`` and everything grows with |x_i| and |y_i|, put
    ``|x_i| = 1 + c_i, |y_i| = 1 - c_i`` with c in [-1, 1]; S = sum c_i^2, C = sum c_i. With
    ``|x.y| <= sum |x_i||y_i| = d - S`` the distance is at most

        r (d + 2C + S) + (d^2 + S^2) / 2 - C^2 + (beta^2 - 1/2) sum (1 - c_i^2)^2.

    ``2rC - C^2 <= r^2`` (at C = r <= d; for r > d the largest C is d, which gives 2rd - d^2).
    What is left, ``r S + S^2/2 + (beta^2 - 1/2) sum (1 - w_i)^2`` with w = c^2 in [0, 1], is
    convex in w, so it is largest where every w_i is 0 or 1; with m ones it is
    ``r m + m^2/2 + (beta^2 - 1/2)(d - m)``, convex in m, so m = d or m as small as possible.
    A two-valued column has |c_i| = 1 always, so that is m = d1, and the bracket there does not
    exceed its value at m = d as long as ``beta^2 <= 1/2 + r + (d + d1)/2``. Then the total is
    ``r^2 + r d + d^2/2 + r d + d^2/2 = (d + r)^2``.

    **Replace-one, L1** (beta = 1/2): ``(d + alpha)**2 / 2`` for alpha <= d, else
    ``2 alpha d``. The products and the squares at 1/2 are half the entries of
    ``zz' - z'z''``, whose sum of absolute values is at most |x|_1 |y|_1; with X = |x|_1 and
    ``|y|_1 <= 2d - X`` the distance is at most ``alpha X + X (2d - X) / 2``, largest at
    X = d + alpha <= 2d, or at X = 2d.

    **Add/remove-one, L2** (the squares are asked as ``beta (1 - z_i^2)``):
    ``r d + d (d - 1) / 2``. The squared length
    ``r sum w_i + sum_{i<j} w_i w_j + beta^2 sum (1 - w_i)^2`` is convex in every w_i = z_i^2,
    so largest where all are 0 or 1; with m ones it is
    ``r m + m (m - 1)/2 + beta^2 (d - m)``, convex in m >= d1, and m = d1 does not exceed
    m = d as long as ``beta^2 <= r + (d + d1 - 1)/2``.

    **Add/remove-one, L1** (beta = (alpha + d - 1)/2): ``alpha d + d (d - 1) / 2``. With
    v_i = |z_i|, V = sum v_i and ``sum v_i^2 >= V^2 / d`` the length is at most
    ``beta d + alpha V + V^2/2 - (1/2 + beta) V^2 / d``, whose slope on [0, d] is never
    negative exactly when ``beta <= (alpha + d - 1)/2``; its value at V = d is the bound.
    (Columns with v_i = 1 fixed add ``d1`` to alpha for the rest, which gives the same
    condition.)

    **Order 1** (only ``z_i``, alpha = 1): each moves by at most 2 (replace) or 1
    (add/remove): 4d or d squared in L2, 2d or d in L1.

    Examples
    --------
    >>> centred_sensitivity(2, Relation.REPLACE, columns=5, order=2, loudness=Fraction(1))
    Fraction(36, 1)
    >>> centred_sensitivity(1, Relation.REPLACE, columns=5, order=2, loudness=Fraction(1))
    Fraction(18, 1)
    """
    d, a = columns, loudness
    r = a * a
    if order == 1:
        step = 2 * a if relation is Relation.REPLACE else a
        return d * (step if norm == 1 else step * step)
    if relation is Relation.REPLACE:
        if norm == 2:
            return (d + r) ** 2 if r <= d else 4 * r * d
        return (d + a) ** 2 / 2 if a <= d else 2 * a * d
    pairs = Fraction(d * (d - 1), 2)
    return (r if norm == 2 else a) * d + pairs


def paper_sensitivity(queries: int) -> Fraction:
    """Bound of the paper's basis: K, both as the squared L2 and as the L1 bound.

    Every query is a product of numbers in [0, 1], so one row moves each of the K sums by at
    most 1 under either neighbour relation: ``sum 1**2 = sum 1 = K``. With no two-valued
    column K = d(d + 3)/2, the paper's bound; a row of zeros against a row of ones attains it.

    >>> paper_sensitivity(20)
    Fraction(20, 1)
    """
    return Fraction(queries)


@dataclass(frozen=True, slots=True)
class Moments:
    """Means and, for order 2, standard deviations and correlations of columns.

    Parameters
    ----------
    columns
        At least one distinct name (two for correlations).
    order
        1 (means only) or 2.
    statistics
        ``"moments"`` reports means, deviations and correlations; ``"correlation"`` only the
        correlations. The queries are the same.
    weight
        Importance, positive.
    loudness
        alpha of the centred basis, chosen by the plan; ``None`` before that.
    """

    columns: tuple[str, ...]
    order: int = 2
    statistics: Literal["moments", "correlation"] = "moments"
    weight: float = 1.0
    loudness: Fraction | None = None

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise WorkloadError(f"order: got {self.order!r}, expected 1 or 2.")
        if self.statistics == "correlation" and len(self.columns) < 2:
            raise WorkloadError(
                f"correlation: got {len(self.columns)} column, expected at least two."
            )
        if self.loudness is not None and not _LEAST_LOUDNESS <= self.loudness <= len(self.columns):
            raise WorkloadError(
                f"loudness: got {self.loudness}, expected a fraction of at least "
                f"{_LEAST_LOUDNESS} and at most the number of columns ({len(self.columns)})."
            )

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return self.statistics

    def bind(self, terms: Terms) -> MomentsBlock:
        """The block of this measure; columns that are constant by the schema are left out."""
        schema, norm = terms.schema, terms.norm
        names = tuple(n for n in self.columns if schema[n].levels > 0)
        if len(names) < (2 if self.statistics == "correlation" else 1):
            raise WorkloadError(
                f"{self.kind} of {', '.join(map(repr, self.columns))}: too few columns vary. "
                "The schema makes the others constant (one category, or lower = upper). "
                "Name other columns or declare wider bounds."
            )
        crowded = [n for n in names if schema[n].levels > MAX_LEVELS]
        if crowded:
            raise WorkloadError(
                f"{self.kind}: {', '.join(map(repr, crowded))} has more than {MAX_LEVELS + 1:,} "
                "categories, beyond which sums of products are not exact. Leave it out, or "
                "declare it as numeric or with fewer categories."
            )
        loudness = self.loudness if self.loudness is not None else Fraction(1)
        # The bound (d + r)**2 needs r = alpha**2 <= d, d being the columns that vary.
        cap = rational_sqrt_down(Fraction(len(names))) if norm == 2 else Fraction(len(names))
        return MomentsBlock(
            variables=tuple(Variable(n, schema[n]) for n in names),
            order=self.order,
            correlations_only=self.statistics == "correlation",
            basis=terms.basis,
            norm=norm,
            relation=terms.relation,
            loudness=Fraction(1) if self.order == 1 else min(loudness, cap),
        )

    def tuned(self, terms: Terms, answers: FloatArray) -> Moments:
        """Return this measure with the loudness that predicts the least total squared error.

        The linear terms share one loudness, alpha. The predicted variance of each statistic
        is that of unit noise over the queries' loudness, times the squared sensitivity; the
        synthetic table's own answers (K,), in the centred basis, stand in for the real ones,
        at no privacy cost. For covariances alone the best r = alpha**2 is near m sqrt(d),
        m the typical mean of z (DESIGN 3).
        """
        if self.order == 1:
            return self
        count = len(self.columns)
        top = sqrt(count) if terms.norm == 2 else float(count)
        # Below top / 8 the means drown in noise for a gain of a few per cent elsewhere.
        candidates = sorted({Fraction(ceil(64 * top * g), 64) for g in np.geomspace(0.125, 1, 24)})
        losses = []
        for loudness in candidates:
            tried = replace(self, loudness=min(loudness, Fraction(count)))
            block = tried.bind(replace(terms, basis="centred"))
            losses.append(block.predicted_loss(answers))
        best = candidates[int(np.argmin(losses))]
        return replace(self, loudness=min(best, Fraction(count)))


def _key(kind: str, *variables: Variable) -> str:
    return json.dumps([kind, *sorted((v.identity for v in variables), key=str)], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class MomentsBlock:
    """Moments bound to a schema. See :class:`retilt.measures.base.Block`.

    Queries in order: the d linear terms; for order 2 the squares of the columns that are not
    two-valued (a two-valued column's square is a constant in the centred basis and a copy of
    the linear term in the paper's); then the products i < j, row by row.
    """

    variables: tuple[Variable, ...]
    order: int
    correlations_only: bool
    basis: Basis
    norm: Norm
    relation: Relation
    loudness: Fraction

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
        if self.order == 1:
            return []
        return [i for i, c in enumerate(self.columns) if not c.two_valued]

    @property
    def _pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        count = len(self.names) if self.order == 2 else 0
        return np.triu_indices(count, 1)

    @property
    def _complement(self) -> bool:
        """Whether the squares are asked as ``1 - z**2``."""
        return self.basis == "centred" and self.relation is Relation.ADD_REMOVE

    @property
    def keys(self) -> tuple[str, ...]:
        """The function of a row, by basis and column names."""
        letter = "z" if self.basis == "centred" else "x"
        square = f"1-{letter}{letter}" if self._complement else letter * 2
        left, right = self._pairs
        return (
            *(_key(letter, v) for v in self.variables),
            *(_key(square, self.variables[i]) for i in self._squares),
            *(
                _key(letter * 2, self.variables[i], self.variables[j])
                for i, j in zip(left, right, strict=True)
            ),
        )

    @property
    def _widths(self) -> list[int]:
        """Integer unit of each column: levels, or twice that where the zero is at the end."""
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
        beta = square_loudness(
            self.norm,
            self.relation,
            columns=len(self.names),
            two_valued=len(self.names) - squares,
            loudness=self.loudness,
        )
        return (
            *(self.loudness,) * len(self.names),
            *(beta,) * squares,
            *(Fraction(1),) * pairs,
        )

    def sensitivity(self) -> Fraction:
        """See :func:`centred_sensitivity` and :func:`paper_sensitivity`."""
        if self.basis == "paper":
            return paper_sensitivity(len(self.keys))
        return centred_sensitivity(
            self.norm,
            self.relation,
            columns=len(self.names),
            order=self.order,
            loudness=self.loudness,
        )

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Exact integer sums of each query's numerator over the rows of ``arrays``."""
        count = len(self.names)
        rows = len(arrays[0])
        shift = [c.levels if self.basis == "paper" else 0 for c in self.columns]
        linear = [0] * count
        second = [[0] * count for _ in range(count)]
        for start in range(0, max(rows, 1), _CHUNK):  # once even for no rows
            chunk = np.stack([a[start : start + _CHUNK] for a in arrays], axis=1)
            values = (chunk + np.array(shift)).astype(np.float64)
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
        """The queries ``keep`` of every row as products of the centred (or [0, 1]) columns."""
        values = np.empty((len(arrays[0]), len(self.names)))
        for i, (array, column) in enumerate(zip(arrays, self.columns, strict=True)):
            values[:, i] = array / column.levels
        if self.basis == "paper":
            values = (values + 1) / 2
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
            factor=np.where(flip, -1.0, 1.0)[keep],
        )

    @property
    def statistics(self) -> tuple[str, ...]:
        """``mean(a)``, ``sd(a)``, ``corr(a, b)`` in the user's order of columns."""
        left, right = self._pairs
        names = [v.label for v in self.variables]
        correlations = tuple(
            f"corr({names[i]}, {names[j]})" for i, j in zip(left, right, strict=True)
        )
        if self.correlations_only:
            return correlations
        means = tuple(f"mean({n})" for n in names)
        deviations = tuple(f"sd({n})" for n in names) if self.order == 2 else ()
        return means + deviations + correlations

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """The names: they say the columns and the function."""
        return self.statistics

    def _central(self, answers: FloatArray) -> _Central:
        """Means, variances and covariances of the basis's columns, from the answers."""
        count, squares = len(self.names), self._squares
        mean = answers[:count]
        # A two-valued column's square is 1 (centred) or the column itself (paper).
        diagonal = np.ones(count) if self.basis == "centred" else mean.copy()
        asked = answers[count : count + len(squares)]
        diagonal[squares] = 1 - asked if self._complement else asked
        left, right = self._pairs
        cross = np.zeros((count, count))
        cross[left, right] = answers[count + len(squares) :]
        cross += cross.T
        variance = diagonal - mean**2
        covariance = cross - np.outer(mean, mean)
        defined = variance > _LEAST_VARIANCE
        root = np.sqrt(np.where(defined, variance, np.nan))
        correlation = covariance / np.outer(root, root)
        return _Central(mean=mean, deviation=root, correlation=correlation)

    def correlations(self, answers: FloatArray) -> FloatArray:
        """(d, d) correlation matrix at (K,) answers of order 2, clipped to [-1, 1].

        NaN where a variance is not positive.
        """
        matrix = np.clip(self._central(answers).correlation, -1, 1)
        diagonal = np.diagonal(matrix)
        matrix[np.diag_indices_from(matrix)] = np.where(np.isnan(diagonal), np.nan, 1.0)
        return matrix

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics: means and deviations in the columns' own units.

        A deviation or correlation whose estimated variance is not positive is NaN; a
        correlation estimate outside [-1, 1], which noise can produce, is clipped.
        """
        central = self._central(answers)
        left, right = self._pairs
        correlations = np.clip(central.correlation[left, right], -1, 1)
        if self.correlations_only:
            return correlations
        origin, span = self._natural()
        parts = [origin + span * central.mean]
        if self.order == 2:
            parts += [span * central.deviation, correlations]
        return np.concatenate(parts)

    def _natural(self) -> tuple[FloatArray, FloatArray]:
        """Origin and length, in the column's own units, of the basis's unit step."""
        bounds = np.array([natural_bounds(c) for c in self.columns])
        low, high = bounds[:, 0], bounds[:, 1]
        if self.basis == "paper":
            return low, high - low
        return (low + high) / 2, (high - low) / 2

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors; the derivatives are written out in ``_derivative_squares``."""
        squared = self._quadratic(answers, variances)
        for column in factor.T:
            squared = squared + self._directional(answers, column) ** 2
        errors: FloatArray = np.sqrt(squared)
        return errors

    def predicted_loss(self, answers: FloatArray) -> float:
        """Squared sensitivity times the statistics' total variance under unit noise."""
        scales = np.array([float(s) for s in self.scales])
        variances = self._quadratic(answers, 1 / scales**2)
        _, span = self._natural()
        unit = self._per_statistic(span, 1.0)
        loss = float(self.sensitivity())
        return (loss if self.norm == 2 else loss * loss) * float(np.nansum(variances / unit**2))

    def _per_statistic(self, of_column: FloatArray, of_pair: float) -> FloatArray:
        pairs = np.full(len(self._pairs[0]), of_pair)
        if self.correlations_only:
            return pairs
        return np.concatenate([of_column, of_column, pairs] if self.order == 2 else [of_column])

    def _split(self, vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A (K,) vector as (d,) linear, (d,) squares (0 where not asked), (pairs,) parts."""
        count, squares = len(self.names), self._squares
        of_squares = np.zeros(count)
        of_squares[squares] = vector[count : count + len(squares)]
        return vector[:count], of_squares, vector[count + len(squares) :]

    def _slopes(self, answers: FloatArray) -> _Slopes:
        """Derivatives of deviations and correlations by mean, square and product.

        With v = E s - m^2 (s the square) and rho = c / sqrt(v_i v_j):
        d sd/d s = 1/(2 sd), d sd/d m = -m/sd; d rho/d product = 1/sqrt(v_i v_j),
        d rho/d s_i = -rho/(2 v_i), d rho/d m_i = -m_j/sqrt(v_i v_j) + rho m_i/v_i. In the
        paper's basis a two-valued column's square is its mean, so d s/d m = 1.
        """
        central = self._central(answers)
        mean, sd, rho = central.mean, central.deviation, central.correlation
        asked = np.zeros(len(self.names))
        asked[self._squares] = -1.0 if self._complement else 1.0
        copied = np.where(asked == 0, 1.0 if self.basis == "paper" else 0.0, 0.0)
        variance = sd**2
        by_product = 1 / np.outer(sd, sd)
        by_square = -rho / (2 * variance[:, None])
        by_mean = -mean[None, :] * by_product + rho * (mean / variance)[:, None]
        by_mean = by_mean + by_square * copied[:, None]
        return _Slopes(
            sd_square=asked / (2 * sd),
            sd_mean=copied / (2 * sd) - mean / sd,
            product=by_product,
            square=by_square * asked[:, None],
            mean=by_mean,
        )

    def _quadratic(self, answers: FloatArray, variances: FloatArray) -> FloatArray:
        """(S,) variances under independent noise of the answers."""
        slopes = self._slopes(answers)
        linear, square, product = self._split(variances)
        left, right = self._pairs
        side = slopes.mean**2 * linear[:, None] + slopes.square**2 * square[:, None]
        pairs = slopes.product[left, right] ** 2 * product
        pairs = pairs + side[left, right] + side[right, left]
        if self.correlations_only:
            return pairs
        _, span = self._natural()
        parts = [span**2 * linear]
        if self.order == 2:
            spread = slopes.sd_mean**2 * linear + slopes.sd_square**2 * square
            parts += [span**2 * spread, pairs]
        return np.concatenate(parts)

    def _directional(self, answers: FloatArray, direction: FloatArray) -> FloatArray:
        """(S,) derivative of the statistics along a (K,) direction of the answers."""
        slopes = self._slopes(answers)
        linear, square, product = self._split(direction)
        left, right = self._pairs
        side = slopes.mean * linear[:, None] + slopes.square * square[:, None]
        pairs = slopes.product[left, right] * product + side[left, right] + side[right, left]
        if self.correlations_only:
            return pairs
        _, span = self._natural()
        parts = [span * linear]
        if self.order == 2:
            parts += [span * (slopes.sd_mean * linear + slopes.sd_square * square), pairs]
        return np.concatenate(parts)

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
        for i in range(count):
            low, high = (end / self.columns[i].levels for end in _ends(arrays[i]))
            if self.basis == "paper":
                low, high = (low + 1) / 2, (high + 1) / 2
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
        origin, span = (v[i] for v in self._natural())
        ends = f"{origin + span * low:.4g} and {origin + span * high:.4g}"
        return (
            f"mean({self.variables[i].label}): measured {origin + span * mean:.4g} "
            f"± {span * error:.2g}, but all synthetic rows lie between {ends}."
        )

    def _spread_shortfall(self, i: int, square: float, most: float, mean: float) -> str:
        _, span = (v[i] for v in self._natural())
        measured, reach = (span * sqrt(max(s - mean**2, 0.0)) for s in (square, most))
        return (
            f"sd({self.variables[i].label}): measured {measured:.4g}, but with the measured mean the "
            f"synthetic rows' values allow at most {reach:.4g}: they lack its far values."
        )


def _ends(values: IntArray) -> tuple[int, int]:
    return int(values.min()), int(values.max())


@dataclass(frozen=True, slots=True)
class _Central:
    mean: FloatArray  # (d,)
    deviation: FloatArray  # (d,), NaN where the estimated variance is not positive
    correlation: FloatArray  # (d, d)


@dataclass(frozen=True, slots=True)
class _Slopes:
    sd_square: FloatArray  # (d,)
    sd_mean: FloatArray  # (d,)
    product: FloatArray  # (d, d)
    square: FloatArray  # (d, d): d rho_ij / d answer of square i
    mean: FloatArray  # (d, d): d rho_ij / d mean i


def natural_bounds(column: Column) -> tuple[float, float]:
    """The column's ends in the units that means are reported in.

    Numbers keep theirs, categories and booleans count codes from 0, dates are seconds since
    1970 (UTC).

    >>> natural_bounds(Numeric(17, 90))
    (17.0, 90.0)
    """
    if isinstance(column, Numeric):
        return float(column.lower), float(column.upper)
    if isinstance(column, Datetime):
        low, high = limits(column)
        return low / 1e6, high / 1e6
    return 0.0, float(column.levels)
