"""From answers to weights: the problem, its path of trade-offs, and the solution with its proof."""

from __future__ import annotations

from retilt.tilting.path import fit_at, fit_path
from retilt.tilting.problem import Covariance, Problem
from retilt.tilting.solution import PathPoint, Solution, Status

__all__ = ["Covariance", "PathPoint", "Problem", "Solution", "Status", "fit_at", "fit_path"]
