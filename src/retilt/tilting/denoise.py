r"""Denoise answers: the nearest ones that some weights of the synthetic rows give.

The paper's section 3.2 and its appendix on implementation. Over the closed simplex of the
support, with :math:`q(p) = \sum_i p_i q_i` and answers a,

* ``"qp"`` (Gaussian noise) minimises :math:`\frac12 (q(p) - a)^T \Sigma^{-1} (q(p) - a)`,
* ``"lp"`` (Laplace noise) minimises :math:`\sum_k |q_k(p) - a_k| / \sigma_k`,

the negative log-likelihoods of the two noises. Where all deviations are equal these are the
paper's own problems. The linear one takes each answer's noise by itself: the likelihood of
Laplace noises that share a part is no linear program.

Neither is ever written down with a column for each row. A master problem over a small pool of
rows gives shares and multipliers; one pass of the kernel scores all rows with the multipliers;
those that would lower the objective join the pool. The least score over *all* rows also bounds
the objective from below, so that the answer carries its own proof. For any vector u, with
:math:`m = \min_i u \cdot (q_i - a)`,

* QP: if :math:`m \ge 0`, every :math:`q(p) - a` lies in the half space
  :math:`\{x : u \cdot x \ge m\}`, whose squared distance from zero is
  :math:`m^2 / u^T \Sigma u`;
* LP: if :math:`|u_k| \le 1 / \sigma_k` for all k, then
  :math:`\sum_k |q_k(p) - a_k| / \sigma_k \ge u \cdot (q(p) - a) \ge m`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.tilting.fold import Positions, Rows
from retilt.tilting.problem import Covariance, Problem
from retilt.tilting.reduction import Reduced, reduce

Denoiser: TypeAlias = Literal["qp", "lp"]

INTERIOR = 1e-4
"""Share of the base weights in the returned point, which makes every weight positive.

Each answer moves by a ten-thousandth of its way back to the base weights' mean: of a query in
[0, 1] by less than 1e-4, which is below the noise of a table of a few hundred thousand rows at
a budget of 1, and far below where there are fewer rows or less budget.
"""

_BLOCKS = 128
"""Rows that may join the pool in a round: the best of each of so many interleaved blocks."""

_ROUNDS = 2000
_PATIENCE = 8
"""Rounds without any progress after which rounding has the last word."""

_MARGIN = 1e-3
"""Share of the tolerance to aim at, since a relative gap says little where answers are far."""

_FEASIBLE = 1e-10
"""The smallest tolerance that HiGHS takes."""

_NNLS_STEPS = 100

_BASIC = 1e-9
"""Shares and scaled distances up to which a variable counts as zero when polishing."""


@dataclass(frozen=True, slots=True)
class Denoised:
    """Answers that weights of the synthetic rows can give, nearest to the noisy ones.

    ``value`` is the objective over all K queries, in units of the noise: half a sum of squared
    deviations for the QP, a sum of deviations for the LP. Where all answers have the same
    deviation ``scale``, the paper's objective in the queries' own units is
    ``value * scale**2`` (QP) or ``value * scale`` (LP), and its gap is at most
    ``gap * max(1, value)`` times the same.

    Attributes
    ----------
    answers
        (K,) query means of the interior point ``(1 - interior) * p + interior * base``: what a
        fit without slack can be given.
    closest
        (K,) query means of the optimum p over the closed simplex.
    rows
        (m,) ascending numbers of the rows that p puts mass on: one for each group of rows with
        equal queries. Never more than the varying queries and one.
    shares
        (m,) their shares, positive, sum 1.
    value
        The objective at p, in units of the noise, zero or more.
    gap
        No point of the simplex lowers the objective by more than ``gap * max(1, moving)``,
        where ``moving`` is the part of ``value`` that the varying queries and reachable
        distances make (the rest is the same at every point). Zero or more; computed at the
        end from p and the multipliers by a pass over all rows.
    scale
        The largest standard deviation of an answer, in the queries' own units.
    rounds
        Passes over the rows until the optimum.
    method
        ``"qp"`` or ``"lp"``.
    converged
        Whether the gap is within the tolerance.
    """

    answers: FloatArray
    closest: FloatArray
    rows: Positions
    shares: FloatArray
    value: float
    gap: float
    scale: float
    rounds: int
    method: Denoiser
    converged: bool


def denoise(
    problem: Problem,
    method: Denoiser,
    *,
    interior: float = INTERIOR,
    tolerance: float = 1e-9,
    rows: Rows | None = None,
) -> Denoised:
    """The answers nearest to the noisy ones that some weights of the rows give.

    Parameters
    ----------
    problem
        Rows, answers and noise. Rows of base weight zero are not in the support.
    method
        ``"qp"``: least squares in units of the noise, with the noise that answers share;
        ``"lp"``: least absolute deviations in units of the noise.
    interior
        Share of the base weights in the returned point, in [0, 1). The paper asks for positive
        weights; 0 returns the optimum over the closed simplex itself.
    tolerance
        Relative gap up to which the result counts as converged, positive.
    rows
        The problem's rows, if they are laid out already.

    Returns
    -------
    Denoised
        Also where the gap is over the tolerance: look at ``converged``.

    Raises
    ------
    InputError
        If an option is out of its range, the rows are another problem's, or more than 3,000
        queries vary over the rows.

    Examples
    --------
    Two rows, a query that is 0 and 1 on them, and an answer that no weights reach:

    >>> from retilt.measures.base import Products
    >>> design = Products(
    ...     np.array([[0.0], [1.0]]), np.array([0]), np.array([-1]), np.zeros(1), np.ones(1)
    ... )
    >>> noise = Covariance(np.array([0.01]))
    >>> problem = Problem((design,), np.array([1.2]), noise, np.ones(2))
    >>> result = denoise(problem, "qp", interior=0.01)
    >>> result.closest, result.answers, result.rows
    (array([1.]), array([0.995]), array([1]))
    >>> round(result.value, 9), result.converged
    (2.0, True)
    """
    _check(method, interior, tolerance)
    if rows is None:
        rows = Rows.of(problem)
    elif rows.varying.size != problem.queries or rows.support[-1] >= problem.rows:
        raise InputError("rows: got another problem's rows, expected those of this problem.")
    reduced = reduce(problem, rows, problem.answers)
    master: _Master = _Quadratic.of(reduced) if method == "qp" else _Linear.of(problem, rows)
    found = _certified(master, rows, _generated(master, rows, tolerance))
    closest = rows.constants.copy()
    closest[rows.varying] = found.means
    base = rows.constants.copy()
    base[rows.varying] = rows.means(rows.merged)
    numbers = _representatives(rows, found.pool)
    order = np.argsort(numbers)
    return Denoised(
        answers=(1 - interior) * closest + interior * base,
        closest=closest,
        rows=numbers[order],
        shares=found.shares[order],
        value=found.value + master.fixed,
        gap=found.gap,
        scale=float(problem.covariance.deviations.max()),
        rounds=found.rounds,
        method=method,
        converged=found.gap <= tolerance,
    )


def _check(method: str, interior: float, tolerance: float) -> None:
    if method not in get_args(Denoiser):
        allowed = " or ".join(f'"{name}"' for name in get_args(Denoiser))
        raise InputError(f"denoise: got {method!r}, expected {allowed}.")
    if not 0 <= interior < 1:
        raise InputError(f"interior: got {interior}, expected a share from 0 to below 1.")
    if not 0 < tolerance < math.inf:
        raise InputError(f"tolerance: got {tolerance}, expected a positive number.")


def _representatives(rows: Rows, picks: Positions) -> Positions:
    """The first row of the problem in each of some merged rows."""
    if rows.groups is None:
        return rows.support[picks]
    first = np.empty(rows.merged.size, dtype=np.intp)
    # The last assignment stands: backwards, it is the first row's.
    first[rows.groups[::-1]] = rows.support[::-1]
    return first[picks]


@dataclass(frozen=True, slots=True)
class _Step:
    """Optimum over a pool: (m,) shares and the (V,) multipliers that certify it there."""

    shares: FloatArray
    multipliers: FloatArray


class _Master(Protocol):
    """One of the two objectives over the V varying queries, less what no weights change."""

    @property
    def fixed(self) -> float:
        """What the objective has at every point of the simplex, zero or more."""
        ...

    def start(self, means: FloatArray) -> FloatArray:
        """(V,) multipliers that say from (V,) means which rows lower the objective."""
        ...

    def solve(self, pool: FloatArray) -> _Step | None:
        """Optimum over the simplex of a pool's (V, m) query values; None if a solver failed."""
        ...

    def value(self, means: FloatArray) -> float:
        """Objective at (V,) means, zero or more."""
        ...

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """Lower bound of the objective, zero or more, if no row scores below ``least``."""
        ...


@dataclass(frozen=True, slots=True)
class _Found:
    """A point of the simplex as shares of the merged rows ``pool``, and its proof.

    ``multipliers`` are those of the best lower bound ``bound``.
    """

    pool: Positions
    shares: FloatArray
    means: FloatArray
    multipliers: FloatArray
    value: float
    bound: float
    rounds: int

    @property
    def gap(self) -> float:
        """Relative duality gap, zero or more."""
        return max(0.0, self.value - self.bound) / max(1.0, self.value)


# ------------------------------------------------------------------------- column generation


def _columns(rows: Rows, picks: Positions) -> FloatArray:
    """(V, m) varying queries of some merged rows."""
    result: FloatArray = np.zeros((int(np.count_nonzero(rows.varying)), picks.size))
    for part in rows.products:
        columns = part.columns[:, picks]
        block = columns[part.left] * columns[part.right]
        result[part.place] = part.factor[:, None] * block + part.offset[:, None]
    for cells in rows.cells:
        result[cells.place.start + cells.codes[picks], np.arange(picks.size)] = 1.0
    return result


def _scores(rows: Rows, multipliers: FloatArray) -> FloatArray:
    """(rows,) multipliers times each merged row's queries: one pass of the kernel."""
    scores: FloatArray = np.zeros(rows.merged.size)
    for part in rows.parts:
        part.add_scores(scores, multipliers)
    return scores


def _best(scores: FloatArray, limit: float, blocks: int) -> Positions:
    """The row of least score in each of up to 128 interleaved blocks, if it is below the limit.

    The very best rows of a table are near copies of each other; the best of blocks are not.
    """
    blocks = min(blocks, scores.size)
    deep = -(-scores.size // blocks)
    padded = np.full(deep * blocks, np.inf)
    padded[: scores.size] = scores
    picks = padded.reshape(deep, blocks).argmin(axis=0) * blocks + np.arange(blocks)
    result: Positions = picks[padded[picks] < limit]
    return result


def _generated(master: _Master, rows: Rows, tolerance: float) -> _Found:
    """Let rows join until none lowers the objective, or rounding has the last word."""
    multipliers = master.start(rows.means(rows.merged))
    scores = _scores(rows, multipliers)
    pool = np.array([scores.argmin()])
    columns = _columns(rows, pool)
    shares, limit = np.ones(1), np.inf
    found = _Found(
        pool,
        shares,
        columns[:, 0],
        multipliers,
        master.value(columns[:, 0]),
        master.bound(multipliers, float(scores.min())),
        rounds=1,
    )
    import os

    blocks = _BLOCKS + int(float(os.environ.get("BF", "0")) * columns.shape[0])
    idle = 0
    while found.gap > _MARGIN * tolerance and idle < _PATIENCE:
        new = np.setdiff1d(_best(scores, limit, blocks), pool)
        if new.size == 0 or found.rounds == _ROUNDS:
            break
        pool = np.concatenate([pool, new])
        columns = np.hstack([columns, _columns(rows, new)])
        step = master.solve(columns)
        if step is None:
            break
        scores = _scores(rows, step.multipliers)
        last, found = found, _improved(found, master, pool, columns, step, float(scores.min()))
        if found.gap <= tolerance and found.gap > last.gap / 2:
            break
        idle = idle + 1 if (last.value, last.bound) == (found.value, found.bound) else 0
        inside = step.multipliers @ columns
        limit = float(inside.min())
        if found.value < last.value:
            # Only where the objective fell, or rows could leave and join for ever.
            kept = _kept(step.shares, inside)
            pool, columns = pool[kept], columns[:, kept]
    return found


def _improved(
    found: _Found,
    master: _Master,
    pool: Positions,
    columns: FloatArray,
    step: _Step,
    least: float,
) -> _Found:
    """The better of two points with the better of two bounds, one round later."""
    found = replace(found, rounds=found.rounds + 1)
    bound = master.bound(step.multipliers, least)
    if bound > found.bound:
        found = replace(found, multipliers=step.multipliers, bound=bound)
    means = columns @ step.shares
    value = master.value(means)
    if value < found.value:
        used = step.shares > 0
        found = replace(found, pool=pool[used], shares=step.shares[used], means=means, value=value)
    return found


def _kept(shares: FloatArray, scores: FloatArray) -> NDArray[np.bool_]:
    """The rows of a pool that have a share, and the best others up to twice as many and 128."""
    kept: NDArray[np.bool_] = shares > 0
    room = int(np.count_nonzero(kept)) + _BLOCKS
    others = np.flatnonzero(~kept)
    kept[others[np.argsort(scores[others], kind="stable")[:room]]] = True
    return kept


def _certified(master: _Master, rows: Rows, found: _Found) -> _Found:
    """The point's objective and bound, computed afresh from shares and multipliers."""
    weights = np.zeros(rows.merged.size)
    weights[found.pool] = found.shares
    means = rows.means(weights)
    bound = master.bound(found.multipliers, float(_scores(rows, found.multipliers).min()))
    return replace(found, means=means, value=master.value(means), bound=bound)


# ---------------------------------------------------------------------------------- quadratic


@dataclass(frozen=True, slots=True)
class _Quadratic:
    """Half the squared distance from the answers, in units of the noise."""

    answers: FloatArray
    covariance: Covariance
    whiten: _Whitener
    fixed: float

    @classmethod
    def of(cls, reduced: Reduced) -> _Quadratic:
        """Over the varying queries, given the constant ones' errors."""
        noise = reduced.covariance
        return cls(reduced.answers, noise, _Whitener.of(noise), reduced.fixed_misfit / 2)

    def start(self, means: FloatArray) -> FloatArray:
        """Gradient at the means."""
        return self.covariance.solve(means - self.answers)

    def solve(self, pool: FloatArray) -> _Step | None:
        """The point of a pool's hull that is nearest to the answers.

        Non-negative least squares on the whitened differences, with a row of ones that asks for
        the sum 1. Its weight only stretches the solution, so that normalising it is exact.
        """
        from scipy.optimize import nnls

        away = self.whiten(pool - self.answers[:, None])
        length = math.sqrt(float(np.sum(away**2, axis=0).max()))
        matrix = np.vstack([away / (length or 1.0), np.ones(pool.shape[1])])
        target = np.zeros(matrix.shape[0])
        target[-1] = 1.0
        try:
            shares, _ = nnls(matrix, target, maxiter=_NNLS_STEPS * sum(matrix.shape))
        except RuntimeError:
            return None
        shares = shares / shares.sum()

        def proven(multipliers: FloatArray) -> float:
            return self.bound(multipliers, float((multipliers @ pool).min()))

        normal = self.whiten.transposed(_normal(away, shares))
        return _Step(shares, max(self.start(pool @ shares), normal, key=proven))

    def value(self, means: FloatArray) -> float:
        """Objective at the means."""
        return self.covariance.quadratic_inverse(means - self.answers) / 2

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """Half the squared distance of the rows' half space from the answers."""
        nearest = max(0.0, least - float(multipliers @ self.answers))
        length = float(multipliers @ self.covariance.times(multipliers))
        return nearest * (nearest / length) / 2 if length > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Whitener:
    """The inverse root of a covariance, W with ``W' W`` its inverse.

    ``deviations`` (V, 1), ``left`` (V, R) and ``shrink`` (R, 1):
    ``W = (I + left @ (shrink * left.T)) / deviations.T``.
    """

    deviations: FloatArray
    left: FloatArray
    shrink: FloatArray

    @classmethod
    def of(cls, covariance: Covariance) -> _Whitener:
        """From the singular values of the shared noise in units of the others'."""
        deviations = np.sqrt(covariance.variances)[:, None]
        left, sizes, _ = np.linalg.svd(covariance.factor / deviations, full_matrices=False)
        return cls(deviations, left, (1 / np.hypot(1.0, sizes) - 1)[:, None])

    def __call__(self, columns: FloatArray) -> FloatArray:
        """W times (V, m) columns."""
        scaled = columns / self.deviations
        result: FloatArray = scaled + self.left @ (self.shrink * (self.left.T @ scaled))
        return result

    def transposed(self, vector: FloatArray) -> FloatArray:
        """W' times a (V,) vector."""
        mixed = vector + self.left @ (self.shrink[:, 0] * (self.left.T @ vector))
        result: FloatArray = mixed / self.deviations[:, 0]
        return result


def _normal(away: FloatArray, shares: FloatArray) -> FloatArray:
    """(V,) normal of the affine hull of the columns with a share, from zero to the hull.

    The difference of means and answers is the same vector, but near the answers it is a small
    difference of large numbers; this one is orthogonal to rounding of its own length.
    """
    first = int(shares.argmax())
    others = np.flatnonzero(shares > 0)
    others = others[others != first]
    basis, _ = np.linalg.qr(away[:, others] - away[:, [first]])
    normal = away[:, first]
    for _ in range(2):
        normal = normal - basis @ (basis.T @ normal)
    return normal


# ------------------------------------------------------------------------------------- linear


@dataclass(frozen=True, slots=True)
class _Linear:
    """Sum of the distances from the answers, in units of the noise.

    An answer beyond all values of its query counts as the nearest of them: the rest of its
    distance is the same for all weights, and would drown what is not.

    Attributes
    ----------
    answers
        (V,) so clipped.
    limits
        (V,) the largest multipliers: one over the deviations.
    centre, reach
        (V,) ``(query - centre) / reach`` is in [-1, 1] on all rows.
    fixed
        Distances of the constant queries, and those clipped off.
    """

    answers: FloatArray
    limits: FloatArray
    centre: FloatArray
    reach: FloatArray
    fixed: float

    @classmethod
    def of(cls, problem: Problem, rows: Rows) -> _Linear:
        """Over the varying queries, each with its own deviation."""
        low, high = _ranges(rows)
        limits = 1 / problem.covariance.deviations
        nearest = rows.constants.copy()
        nearest[rows.varying] = np.clip(problem.answers[rows.varying], low, high)
        fixed = float(np.sum(np.abs(nearest - problem.answers) * limits))
        centre, reach = (low + high) / 2, (high - low) / 2
        for cells in rows.cells:
            # Indicators are in [-1, 1] already, and mostly zeros as they are.
            centre[cells.place], reach[cells.place] = 0.0, 1.0
        return cls(nearest[rows.varying], limits[rows.varying], centre, reach, fixed)

    def start(self, means: FloatArray) -> FloatArray:
        """A subgradient at the means."""
        result: FloatArray = np.sign(means - self.answers) * self.limits
        return result

    def solve(self, pool: FloatArray) -> _Step | None:
        """The linear program over a pool, its solution computed afresh from its basis.

        HiGHS ends within absolute tolerances; which variables are zero says more than that.
        """
        costs = self.limits * self.reach
        top = float(costs.max())
        matrix = (pool - self.centre[:, None]) / self.reach[:, None]
        target = (self.answers - self.centre) / self.reach
        solved = _program(matrix, target, costs / top)
        if solved is None:
            return None
        shares, multipliers = _polished(matrix, target, costs / top, *solved)
        return _Step(shares, np.clip(multipliers * top / self.reach, -self.limits, self.limits))

    def value(self, means: FloatArray) -> float:
        """Objective at the means."""
        return float(np.sum(np.abs(means - self.answers) * self.limits))

    def bound(self, multipliers: FloatArray, least: float) -> float:
        """The dual objective."""
        return max(0.0, least - float(multipliers @ self.answers))


def _ranges(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """(V,) bounds of each varying query on the rows, from those of the columns."""
    size = int(np.count_nonzero(rows.varying))
    low, high = np.zeros(size), np.ones(size)
    for part in rows.products:
        ends = np.stack([part.columns.min(axis=1), part.columns.max(axis=1)])
        corners = (ends[:, None, part.left] * ends[None, :, part.right]).reshape(4, -1)
        # A square has no mixed corners, and a lowest value of zero where its column has a sign
        # change.
        corners[1:3, part.left == part.right] = corners[0, part.left == part.right]
        change = (part.left == part.right) & (ends[0, part.left] < 0) & (ends[1, part.left] > 0)
        corners[1, change] = 0.0
        corners = part.factor * corners + part.offset
        low[part.place], high[part.place] = corners.min(axis=0), corners.max(axis=0)
    return low, high


def _program(
    matrix: FloatArray, target: FloatArray, costs: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """(m,) shares and (V,) multipliers of min costs . |matrix @ shares - target|; None if failed.

    Each distance is the sum of an excess and a shortfall, each zero or more.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, eye_array, hstack

    size, count = matrix.shape
    eye = eye_array(size + 1, size)
    result = linprog(
        np.concatenate([np.zeros(count), costs, costs]),
        A_eq=hstack([csc_array(np.vstack([matrix, np.ones(count)])), eye, -eye], format="csc"),
        b_eq=np.append(target, 1.0),
        method="highs-ds",
        options={
            "presolve": False,
            "primal_feasibility_tolerance": _FEASIBLE,
            "dual_feasibility_tolerance": _FEASIBLE,
        },
    )
    if result.x is None:
        return None
    shares = np.maximum(result.x[:count], 0.0)
    return shares / shares.sum(), -np.asarray(result.eqlin.marginals)[:size]


def _polished(
    matrix: FloatArray,
    target: FloatArray,
    costs: FloatArray,
    shares: FloatArray,
    multipliers: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Shares and multipliers from the equations of the basis, where that is better.

    The rows with a share score equally, and the queries that are met exactly are met exactly.
    """
    basis = shares > _BASIC
    errors = matrix @ shares - target
    met = np.abs(errors) <= _BASIC
    system = np.vstack([matrix[np.ix_(met, basis)], np.ones(np.count_nonzero(basis))])

    def value(candidate: FloatArray) -> float:
        return float(costs @ np.abs(matrix @ candidate - target))

    def bound(candidate: FloatArray) -> float:
        clipped = np.clip(candidate, -costs, costs)
        return float((clipped @ matrix).min() - clipped @ target)

    exact = np.zeros(shares.size)
    exact[basis] = np.linalg.lstsq(system, np.append(target[met], 1.0))[0]
    exact = np.maximum(exact, 0.0)
    exact /= exact.sum()
    signs = np.where(met, 0.0, np.sign(errors) * costs)
    level = np.linalg.lstsq(system.T, -(signs @ matrix)[basis])[0]
    signs[met] = level[:-1]
    return min(shares, exact, key=value), max(multipliers, signs, key=bound)
