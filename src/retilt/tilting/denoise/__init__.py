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
from typing import Literal, TypeAlias, get_args

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.tilting.denoise.generation import Master, certify, generate
from retilt.tilting.denoise.linear import Linear
from retilt.tilting.denoise.quadratic import Quadratic
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Positions
from retilt.tilting.problem import Problem
from retilt.tilting.reduction import MAX_DENSE, check_size, reduce

Denoiser: TypeAlias = Literal["qp", "lp"]

INTERIOR = 1e-4
"""Largest share of the base weights in the returned point, which makes every weight positive."""

_UNSEEN = 0.01
"""Deviations of its noise by which that may move an answer at most."""


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
    interior: float | None = None,
    tolerance: float = 1e-9,
    rows: Rows | None = None,
) -> Denoised:
    """The answers nearest to the noisy ones that some weights of the rows give.

    Parameters
    ----------
    problem
        Rows, answers and noise. Rows of base weight zero are not in the support. Answers that
        are not measured have no noise and are returned as they are.
    method
        ``"qp"``: least squares in units of the noise, with the noise that answers share;
        ``"lp"``: least absolute deviations in units of the noise.
    interior
        Share of the base weights in the returned point, in [0, 1). The paper asks for positive
        weights; 0 returns the optimum over the closed simplex itself. None for 1e-4, or less
        where that would move an answer by more than a hundredth of its noise's deviation.
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
    >>> from retilt.tilting.problem import Covariance
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
    measured = problem.measured
    if not np.all(measured):
        if not np.any(measured):
            raise InputError("denoise: no answer is measured, so none has noise.")
        own = denoise(problem.only(measured), method, interior=interior, tolerance=tolerance)
        answers, closest = problem.answers.copy(), problem.answers.copy()
        answers[measured], closest[measured] = own.answers, own.closest
        return replace(own, answers=answers, closest=closest)
    if rows is None:
        rows = Rows.of(problem)
    elif rows.varying.size != problem.queries or rows.support[-1] >= problem.rows:
        raise InputError("rows: got another problem's rows, expected those of this problem.")
    check_size(rows, MAX_DENSE)
    reduced = reduce(problem, rows, problem.answers)
    master: Master = Quadratic.of(reduced) if method == "qp" else Linear.of(problem, rows)
    found = certify(master, rows, generate(master, rows, tolerance))
    closest = rows.constants.copy()
    closest[rows.varying] = found.means
    base = rows.constants.copy()
    base[rows.varying] = rows.means(rows.merged)
    if interior is None:
        moved = float(np.max(np.abs(base - closest) / problem.covariance.deviations))
        interior = min(INTERIOR, _UNSEEN / moved) if moved > 0 else INTERIOR
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


def _check(method: str, interior: float | None, tolerance: float) -> None:
    if method not in get_args(Denoiser):
        allowed = " or ".join(f'"{name}"' for name in get_args(Denoiser))
        raise InputError(f"denoise: got {method!r}, expected {allowed}.")
    if interior is not None and not 0 <= interior < 1:
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
