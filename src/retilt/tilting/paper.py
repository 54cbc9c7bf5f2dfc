"""The paper's method, from answers to weights: denoise, solve the dual, tilt.

Kept complete and faithful, as the reference that every claim of the default method is measured
against (Wang, Sudalairaj, Henning, Greenewald and Srivastava 2023, Theorem 1, Algorithms 1 and 2
and the appendix on denoising). Its dual can also be solved exactly, so that what its algorithm
loses by stopping can be told from what its formulation loses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray, Norm
from retilt.tilting.denoise import Denoiser, denoise
from retilt.tilting.floors import ess_of
from retilt.tilting.fold import Fold, Rows
from retilt.tilting.problem import Problem
from retilt.tilting.reduction import MAX_DENSE, Reduced, check_size, reduce
from retilt.tilting.solution import Solution, Status
from retilt.tilting.solvers import Verdict, drive
from retilt.tilting.solvers.compositional_sgd import Algorithm, CompositionalSGD
from retilt.tilting.solvers.proximal_newton import ProximalNewton

Solver: TypeAlias = Literal["sgd", "exact"]
Tell: TypeAlias = Callable[[object], object]

PRECISION = 1e-10
"""Of the exact solution, in deviations of the answers' noise."""

_STEPS = 500
_CLOSE = 3.0
"""Deviations of the noise within which a stochastic solution counts as having arrived."""

_CLOSE_GAP = 1.0
"""Nats of the duality gap, likewise: where the noise is vast, any weights are close to it."""

_FAR = 10.0
"""Mean squared distance of the denoised answers from the noisy ones, in variances of the noise,
above which the support can't reach the answers."""


@dataclass(frozen=True, slots=True)
class Paper:
    """The paper's method and its settings; the defaults are the paper's own.

    Parameters
    ----------
    solver
        ``"sgd"``: its stochastic algorithm; ``"exact"``: the same problem solved to rounding.
    denoise
        ``"auto"``: a linear program for Laplace noise, a quadratic one for Gaussian, as the
        paper; ``"qp"`` or ``"lp"``; None for the noisy answers as they are, which no weights
        may be able to meet.
    tolerance
        Gamma, at most how far from its answer each query may stay; zero or more.
    algorithm
        1, or 2 (the same in the log domain). Of ``"sgd"`` only, as the next two.
    batch, epochs
        Rows of a batch, passes over the rows.

    Raises
    ------
    InputError
        If a setting is out of range.

    Examples
    --------
    >>> Paper().name, Paper(solver="exact").name
    ('paper', 'paper-exact')
    """

    solver: Solver = "sgd"
    denoise: Denoiser | Literal["auto"] | None = "auto"
    tolerance: float = 1e-5
    algorithm: Algorithm = 2
    batch: int = 256
    epochs: int = 200

    def __post_init__(self) -> None:
        _one_of("solver", self.solver, ("sgd", "exact"))
        _one_of("denoise", self.denoise, ("auto", "qp", "lp", None))
        _one_of("algorithm", self.algorithm, (1, 2))
        number = isinstance(self.tolerance, (int, float)) and not isinstance(self.tolerance, bool)
        if not number or not 0 <= self.tolerance < np.inf:
            raise InputError(
                f"tolerance: got {self.tolerance!r}, expected a finite number of at least 0."
            )
        for name in ("batch", "epochs"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InputError(f"{name}: got {count!r}, expected a whole number above 0.")

    @property
    def name(self) -> str:
        """``"paper"``, or ``"paper-exact"``."""
        return "paper" if self.solver == "sgd" else "paper-exact"

    def denoiser(self, norm: Norm) -> Denoiser | None:
        """Which program denoises answers with Laplace (1) or Gaussian (2) noise."""
        return usual_denoiser(norm) if self.denoise == "auto" else self.denoise


def usual_denoiser(norm: Norm) -> Denoiser:
    """The program of the paper: a linear one for Laplace noise (1), quadratic for Gaussian (2)."""
    return "lp" if norm == 1 else "qp"


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        expected = ", ".join(repr(v) for v in allowed)
        raise InputError(f"{name}: got {value!r}, expected one of {expected}.")


@dataclass(frozen=True, slots=True)
class _Solved:
    """Multipliers with the pass over the rows at them, and how the solver ended."""

    multipliers: FloatArray
    fold: Fold
    verdict: Verdict


def fit_paper(
    problem: Problem,
    paper: Paper,
    *,
    norm: Norm,
    seed: int | None = None,
    on_step: Tell | None = None,
) -> Solution:
    """Weights by the paper's method.

    Parameters
    ----------
    problem
        Queries, answers, noise, base weights.
    paper
        The settings.
    norm
        1 for Laplace noise, 2 for Gaussian: which program denoises unless told.
    seed
        Of the batches.
    on_step
        Called after each epoch, or each step of the exact solver.

    Returns
    -------
    Solution
        With ``eta`` 0, ``aim`` the denoised answers and an empty path. Its status is
        ``infeasible_measures`` if the support can't come near the noisy answers, or if no
        weights are within the tolerance of answers that were not denoised (then the weights are
        those for the nearest answers that can be met); ``iteration_limit`` if a solver ended
        before its optimum: the stochastic one more than three deviations of the noise or one
        nat away.

    Raises
    ------
    InputError
        If more than 3,000 queries vary over the rows, or an answer is a guard's or exact.
    """
    if not np.all(problem.measured):
        raise InputError(
            "method: guards and exact answers belong to the default method; leave them out, or "
            "use that."
        )
    tell = on_step or (lambda step: None)
    rows = Rows.of(problem)
    check_size(rows, MAX_DENSE)
    closest, aim, program = problem.answers, problem.answers, paper.denoiser(norm)
    empty = program is None and _box_is_empty(problem, rows, paper)
    proved = True
    if program is not None or empty:
        denoised = denoise(problem, program or usual_denoiser(norm), rows=rows)
        closest, aim, proved = denoised.closest, denoised.answers, denoised.converged
    solved = _solve(problem, rows, aim, paper, seed, tell)
    solution = _solution(problem, rows, solved, paper, closest, aim)
    if empty or _misfit(problem, closest) > _FAR:
        return replace(solution, status=Status.INFEASIBLE_MEASURES)
    return solution if proved else replace(solution, status=Status.ITERATION_LIMIT)


def _misfit(problem: Problem, means: FloatArray) -> float:
    return problem.covariance.quadratic_inverse(means - problem.answers) / means.size


def _reduced(problem: Problem, rows: Rows, aim: FloatArray) -> Reduced:
    """The varying queries with their own answers: constant ones have no say in the weights."""
    return replace(reduce(problem, rows, aim), answers=aim[rows.varying])


def _solve(
    problem: Problem, rows: Rows, aim: FloatArray, paper: Paper, seed: int | None, tell: Tell
) -> _Solved:
    reduced = _reduced(problem, rows, aim)
    start = np.zeros(reduced.answers.size)
    if paper.solver == "exact":
        exact = ProximalNewton(np.full(start.size, paper.tolerance), PRECISION)
        state, verdict = drive(exact, reduced, 0.0, start, limit=_STEPS, tell=tell)
        return _Solved(state.multipliers, state.fold, verdict)
    stochastic = CompositionalSGD(
        tolerance=paper.tolerance,
        epochs=paper.epochs,
        batch=paper.batch,
        algorithm=paper.algorithm,
        generator=np.random.default_rng(seed),
    )
    after, verdict = drive(stochastic, reduced, 0.0, start, limit=paper.epochs, tell=tell)
    multipliers = after.multipliers
    if not np.all(np.isfinite(multipliers)):
        # Algorithm 1 overflowed. The base weights are the only ones it left.
        multipliers = start
    return _Solved(multipliers, rows.fold(multipliers), verdict)


def _solution(
    problem: Problem,
    rows: Rows,
    solved: _Solved,
    paper: Paper,
    closest: FloatArray,
    aim: FloatArray,
) -> Solution:
    multipliers = np.zeros(problem.queries)
    multipliers[rows.varying] = solved.multipliers
    weights = rows.expand(solved.fold.weights, problem.rows)
    solution = Solution(
        eta=0.0,
        multipliers=multipliers,
        weights=weights,
        ess=ess_of(weights),
        before=problem.means(problem.base),
        after=problem.means(weights),
        insistent=closest.copy(),
        answers=problem.answers,
        covariance=problem.covariance,
        aim=aim.copy(),
        tolerance=paper.tolerance,
        trace=np.nan,
        sure=np.nan,
        path=(),
        status=Status.CONVERGED,
        measured=problem.measured.copy(),
        exact=problem.exact.copy(),
        released=np.zeros(problem.queries, dtype=np.bool_),
    )
    arrived = solved.verdict is Verdict.CONVERGED or (
        solved.verdict is Verdict.LIMIT
        and paper.solver == "sgd"
        and solution.kkt_residual() <= _CLOSE
        and solution.gap() <= _CLOSE_GAP
    )
    return solution if arrived else replace(solution, status=Status.ITERATION_LIMIT)


def _box_is_empty(problem: Problem, rows: Rows, paper: Paper) -> bool:
    """Whether no weights are within the tolerance of the answers.

    Only the exact solver can tell: the stochastic one's multipliers drift apart for ever, slowly.
    """
    fixed = ~rows.varying
    errors = np.abs(rows.constants - problem.answers)[fixed]
    if np.any(errors > paper.tolerance + PRECISION * problem.covariance.deviations[fixed]):
        return True
    exact = replace(paper, solver="exact")
    solved = _solve(problem, rows, problem.answers, exact, None, lambda step: None)
    return solved.verdict is Verdict.UNBOUNDED
