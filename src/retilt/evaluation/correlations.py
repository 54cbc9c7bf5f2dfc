"""How far correlations are from the real ones: the paper's utility improvement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retilt.evaluation.sides import HUGE, Sides
from retilt.measures.base import FloatArray

NOTHING_TO_IMPROVE = "the correlation error before is 0: there is nothing to improve"


def correlation_matrix(values: FloatArray) -> FloatArray:
    """(d, d) Pearson correlations of the rows of ``values`` (d, n); NaN beside a constant.

    >>> correlation_matrix(np.array([[0.0, 1, 2], [1, 1, 1]])).round(1).tolist()
    [[1.0, nan], [nan, nan]]
    """
    centred = _centred(values)
    covariance = centred @ centred.T / max(values.shape[1], 1)
    variance = np.diag(covariance)
    spread = np.sqrt(np.where(variance > 0, variance, np.nan))
    result: FloatArray = covariance / np.outer(spread, spread)
    return result


def _centred(values: FloatArray) -> FloatArray:
    """(d, n) rows less their mean, scaled so that squares neither overflow nor vanish.

    A constant row, and no other, is 0: rounding is no spread, and neither is a small spread none.
    """
    centred = values / np.maximum(np.abs(values).max(axis=1, keepdims=True) / HUGE, 1)
    centred -= centred.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=1, keepdims=True)  # what rounding left of the mean
    centred[values.min(axis=1) == values.max(axis=1)] = 0
    size = np.abs(centred).max(axis=1, keepdims=True)
    scaled: FloatArray = centred / np.where(size > 0, size, 1)
    return scaled


@dataclass(frozen=True)
class Comparison:
    """Correlations of a table against the real ones, in the L1 norm over all pairs of columns."""

    before: float
    after: float

    @property
    def improvement(self) -> float | None:
        """The paper's utility improvement, ``1 - after / before``; ``None`` if before is 0."""
        return None if self.before == 0 else 1 - self.after / self.before


@dataclass(frozen=True)
class Correlations:
    """How far the correlations of some columns are from the real ones.

    Attributes
    ----------
    columns
        What was compared.
    raw
        On the values as they are.
    clamped
        On the values clamped to the schema's bounds, which is what measures speak of.
    undefined
        Columns that are constant in one of the tables, as they are or clamped: their correlations
        count as 0 there.
    """

    columns: tuple[str, ...]
    raw: Comparison
    clamped: Comparison
    undefined: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "columns": list(self.columns),
            "correlation_error": {
                "before": {"raw": self.raw.before, "clamped": self.clamped.before},
                "after": {"raw": self.raw.after, "clamped": self.clamped.after},
            },
            "utility_improvement": {
                "raw": self.raw.improvement,
                "clamped": self.clamped.improvement,
            },
            "undefined": list(self.undefined),
        }

    def reasons(self, prefix: str = "") -> dict[str, str]:
        """The figures that do not exist, each with the reason."""
        kinds = {"raw": self.raw, "clamped": self.clamped}
        return {
            f"{prefix}utility_improvement.{kind}": NOTHING_TO_IMPROVE
            for kind, comparison in kinds.items()
            if comparison.improvement is None
        }


def compare_correlations(sides: Sides, chosen: Sequence[str]) -> tuple[Correlations, Correlations]:
    """Compare the correlations of the chosen columns, and of all.

    Source: the paper's section 4, "utility improvement": ``1 - e(after) / e(before)``, where ``e``
    is the sum over all ordered pairs of columns of the absolute difference from the real table's
    correlation; categories are their codes.
    """
    names = sides.names
    matrices = [
        [correlation_matrix(sides.amounts(side, clamp=clamp)) for side in sides.compared]
        for clamp in (False, True)
    ]
    return _compare(names, matrices, chosen), _compare(names, matrices, names)


def _compare(
    names: Sequence[str], matrices: Sequence[Sequence[FloatArray]], chosen: Sequence[str]
) -> Correlations:
    places = [names.index(name) for name in chosen]
    constant, comparisons = set[str](), []
    for of_tables in matrices:
        parts = [matrix[np.ix_(places, places)] for matrix in of_tables]
        for part in parts:
            constant.update(n for n, c in zip(chosen, np.diag(part), strict=True) if np.isnan(c))
        real, before, after = map(_uncorrelated_where_constant, parts)
        comparisons.append(
            Comparison(
                before=float(np.abs(before - real).sum()), after=float(np.abs(after - real).sum())
            )
        )
    return Correlations(
        columns=tuple(chosen),
        raw=comparisons[0],
        clamped=comparisons[1],
        undefined=tuple(n for n in chosen if n in constant),
    )


def _uncorrelated_where_constant(matrix: FloatArray) -> FloatArray:
    filled = np.nan_to_num(matrix, nan=0.0)
    np.fill_diagonal(filled, 1.0)
    return filled
