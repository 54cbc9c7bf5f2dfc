"""All that a report shows, and nothing else: no table, no path, no time of day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.tilting.solution import PathPoint

_KEYS = {"statistic", "before", "target", "standard_error", "after", "reachable"}


@dataclass(frozen=True, slots=True)
class Correlations:
    """The correlations of one moments measure, three times.

    Attributes
    ----------
    names
        (d,) columns.
    before, target, after
        (d, d) in [-1, 1], NaN where undefined: of the synthetic table, from the noisy answers
        (clipped to [-1, 1]), and of the weighted table.

    Raises
    ------
    InputError
        A matrix is not d by d.
    """

    names: tuple[str, ...]
    before: FloatArray
    target: FloatArray
    after: FloatArray

    def __post_init__(self) -> None:
        expected = (len(self.names), len(self.names))
        for what in ("before", "target", "after"):
            got = np.shape(getattr(self, what))
            if not self.names or got != expected:
                raise InputError(
                    f"correlations {what}: got shape {got}, expected (d, d) for "
                    f"d = {len(self.names)} columns, at least one."
                )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a fit, from the released answers and the synthetic table alone.

    Attributes
    ----------
    rows
        Synthetic rows, at least 1.
    queries
        Noisy answers that the weights were fitted to, at least 1.
    method
        One sentence: how the weights were found.
    status, advice, success
        How the fit ended, one sentence on what to do, and whether it did what was asked.
    misfit_before, misfit_after
        Mean squared distance of the queries from their answers, in variances of their noise.
    ess
        Effective sample size in rows.
    certificate
        ``gap`` in nats and ``kkt_residual``.
    statistics
        A mapping for each: ``statistic``, ``before``, ``target``, ``standard_error``,
        ``after``, ``reachable``. Numbers may be NaN or infinite.
    limit
        Standard errors beyond which a statistic does not agree with its target.
    unmet, unmet_before
        The statistics that do not agree after the fit, and before it.
    correlations
        One for each moments measure; may be empty.
    weights
        (rows,) finite, zero or more, mean 1.
    path
        The trade-offs visited; empty or one point where the method has no path.
    notes
        What the user should know.
    private
        False for answers made insecurely, which must not be released; None for statistics that
        were published elsewhere, of whose privacy nothing is known here.
    privacy
        ``unit``, ``post_processing``, ``generator``, ``total``, ``mechanism``,
        ``sensitivity`` and ``statement`` of the answers; or ``source``, ``promise`` and
        ``statement`` of published statistics.
    columns
        A mapping for each measured column: ``name``, ``kind``, ``values``, ``source``.
    versions
        Names and versions of what made the answers and the weights.

    Raises
    ------
    InputError
        A size is not what another says.
    """

    rows: int
    queries: int
    method: str
    status: str
    advice: str
    success: bool
    misfit_before: float
    misfit_after: float
    ess: float
    certificate: Mapping[str, float]
    statistics: Sequence[Mapping[str, Any]]
    limit: float
    unmet: Sequence[str]
    unmet_before: Sequence[str]
    correlations: Sequence[Correlations]
    weights: FloatArray
    path: Sequence[PathPoint]
    notes: Sequence[str]
    private: bool | None
    privacy: Mapping[str, Any]
    columns: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        for name in ("rows", "queries"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at least 1.")
        if np.shape(self.weights) != (self.rows,):
            raise InputError(
                f"weights: got shape {np.shape(self.weights)}, expected ({self.rows},)."
            )
        if not np.isfinite(self.weights).all() or np.min(self.weights) < 0:
            raise InputError("weights: expected finite numbers of at least 0.")
        if not self.limit > 0:
            raise InputError(f"limit: got {self.limit}, expected a number above 0.")
        for row in self.statistics:
            if not row.keys() >= _KEYS:
                missing = ", ".join(sorted(_KEYS - row.keys()))
                raise InputError(f"statistics: a row lacks {missing}.")
