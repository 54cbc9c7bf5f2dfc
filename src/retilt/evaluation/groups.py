"""Rates of the target in groups of rows: whether small groups are treated as the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from retilt.evaluation.figures import WHEN, Figure, Undefined, figure
from retilt.evaluation.sides import Side, Sides
from retilt.evaluation.targets import Target
from retilt.measures.base import FloatArray
from retilt.schema.columns import Boolean, Categorical

FEWEST_ROWS = 30
"""Groups of fewer real rows are left out: their rate is chance."""


@dataclass(frozen=True)
class ColumnErrors:
    """Errors of the target's rate over the categories of one column.

    Attributes
    ----------
    groups
        Categories (null is one) with at least 30 real rows whose target is known.
    largest, mean
        Of |rate - real rate| over those groups that have rows in the table, in [0, 1]; lower is
        better.
    missing
        Groups that have no row in the table, before and after: they have no rate there.
    """

    groups: int
    largest: Figure
    mean: Figure
    missing: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "groups": self.groups,
            "largest_error": self.largest.to_dict(),
            "mean_error": self.mean.to_dict(),
            "missing": dict(zip(WHEN, self.missing, strict=True)),
        }


@dataclass(frozen=True)
class GroupRates:
    """Rates of the positive class by group, against the real ones.

    Attributes
    ----------
    target, positive
        The column, and the value that counts as 1.
    by_column
        Each categorical or boolean column other than the target, if it has a group.
    largest
        The largest error of all groups of all columns.
    mean
        The mean error of all groups of all columns.
    """

    target: str
    positive: str | float | bool
    by_column: Mapping[str, ColumnErrors]
    largest: Figure
    mean: Figure

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "target": self.target,
            "positive": self.positive,
            "largest_error": self.largest.to_dict(),
            "mean_error": self.mean.to_dict(),
            "by_column": {name: errors.to_dict() for name, errors in self.by_column.items()},
        }


def compare_groups(sides: Sides, target: Target, undefined: dict[str, str]) -> GroupRates:
    """Compare the target's rate in every category of every other column."""
    errors = {}
    for name, column in sides.schema.columns.items():
        if isinstance(column, (Categorical, Boolean)) and name != target.name:
            found = _errors(sides, target, name)
            if found.shape[1]:
                errors[name] = found
    by_column = {
        name: ColumnErrors(
            groups=found.shape[1],
            largest=_summary(f"by_column.{name}.largest_error", np.max, found, undefined),
            mean=_summary(f"by_column.{name}.mean_error", np.mean, found, undefined),
            missing=(int(np.isnan(found[0]).sum()), int(np.isnan(found[1]).sum())),
        )
        for name, found in errors.items()
    }
    every = np.concatenate([np.empty((2, 0)), *errors.values()], axis=1)
    return GroupRates(
        target=target.name,
        positive=target.positive,
        by_column=by_column,
        largest=_summary("largest_error", np.max, every, undefined),
        mean=_summary("mean_error", np.mean, every, undefined),
    )


def _errors(sides: Sides, target: Target, name: str) -> FloatArray:
    """(2, groups) absolute errors of the rates before and after; NaN where a group is missing."""
    groups = np.unique(_groups(sides, sides.real, name))
    rows, rates = _rates(sides, target, sides.real, name, groups)
    large = rows >= FEWEST_ROWS
    others = [_rates(sides, target, s, name, groups)[1] for s in (sides.before, sides.after)]
    return np.abs(np.stack(others) - rates)[:, large]


def _groups(sides: Sides, side: Side, name: str) -> FloatArray:
    """(n,) each row's group; null is one."""
    values = sides.values(side, name)
    return np.where(np.isnan(values), np.inf, values)


def _rates(
    sides: Sides, target: Target, side: Side, name: str, groups: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How many rows of each group have a target, and the share of them that are positive."""
    own, truths = _groups(sides, side, name), target.truths(sides, side)
    places = np.minimum(np.searchsorted(groups, own), len(groups) - 1)
    counted = (groups[places] == own) & ~np.isnan(truths)
    places, truths = places[counted], truths[counted]
    rows = np.bincount(places, minlength=len(groups)).astype(np.float64)
    positive = np.bincount(places, weights=truths, minlength=len(groups))
    rates = np.divide(positive, rows, out=np.full(len(groups), np.nan), where=rows > 0)
    return rows, rates


def _summary(
    name: str,
    of: Callable[[FloatArray], float],
    errors: FloatArray,
    undefined: dict[str, str],
) -> Figure:
    def summary(found: FloatArray) -> float:
        present = found[~np.isnan(found)]
        if not len(found):
            raise Undefined(f"no group of the real table has {FEWEST_ROWS} rows")
        if not len(present):
            raise Undefined("the table has no row in any of the groups")
        return float(of(present))

    return figure(name, summary, (errors[0], errors[1]), undefined)
