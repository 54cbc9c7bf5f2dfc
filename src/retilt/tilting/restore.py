"""Weights from saved multipliers, on the table they were fitted to or on any other."""

from __future__ import annotations

import math

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.anchor import without
from retilt.tilting.bounded import rows_of
from retilt.tilting.floors import ess_of
from retilt.tilting.parts import Mask
from retilt.tilting.problem import Problem
from retilt.tilting.solution import PathPoint, Solution, Status


def restore(
    problem: Problem,
    multipliers: FloatArray,
    *,
    eta: float,
    status: Status,
    path: tuple[PathPoint, ...],
    insistent: FloatArray,
    aim: FloatArray,
    tolerance: float,
    released: Mask | None = None,
) -> Solution:
    """A solution from its multipliers; on other rows its certificate says how far it is off.

    Parameters
    ----------
    problem
        The rows to weigh and the answers.
    multipliers
        (K,) lambda.
    eta, status, path, insistent, aim, tolerance, released
        As they were when the multipliers were found; None for no exact answer left out.
    """
    if released is not None and np.any(released):
        problem = without(problem, released)
    rows = rows_of(problem)
    fold = rows.fold(multipliers[rows.varying])
    weights = rows.expand(fold.weights, problem.rows)
    if problem.bounds is not None:
        problem.bounds.check(weights, problem.base)
    chosen = next((p for p in path if p.chosen), None)
    return Solution(
        eta=eta,
        multipliers=multipliers.copy(),
        weights=weights,
        ess=ess_of(weights),
        before=problem.means(problem.base),
        after=problem.means(weights),
        insistent=insistent.copy(),
        answers=problem.answers,
        covariance=problem.covariance,
        aim=aim.copy(),
        tolerance=tolerance,
        trace=chosen.trace if chosen else math.nan,
        sure=chosen.sure if chosen else math.nan,
        path=path,
        status=status,
        measured=problem.measured.copy(),
        exact=problem.exact.copy(),
        released=np.zeros(problem.queries, np.bool_) if released is None else released.copy(),
        looseness=problem.looseness,
        bounds=problem.bounds,
    )
