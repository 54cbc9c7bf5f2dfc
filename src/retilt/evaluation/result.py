"""What a comparison with the private table came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from retilt.evaluation.correlations import Comparison, Correlations
from retilt.evaluation.detection import Detection
from retilt.evaluation.figures import Figure
from retilt.evaluation.groups import GroupRates
from retilt.evaluation.marginals import Marginals
from retilt.evaluation.prediction import Prediction, Score

WARNING = (
    "NOT PRIVATE: these figures were computed from the private table without noise. They are "
    "for the custodian's own eyes; never release them."
)

Row: TypeAlias = tuple[str, str, float | None, float | None, float | None]
"""A figure's name, which direction is better, and its value trained on real, before and after."""

LOWER, HIGHER = "lower", "higher"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How near a synthetic table is to the real one, before and after; *not* private.

    Attributes
    ----------
    aligned
        The correlations of the columns that were asked for (``columns``), with the paper's
        utility improvement.
    all_columns
        The same of all columns that can be compared.
    marginals
        Distances of the distributions of single columns and pairs, over all of them.
    prediction
        F1 of models trained on each table; ``None`` without a target or test rows.
    groups
        Rates of the target in groups; ``None`` without a target.
    detection
        How well a classifier tells the tables from the real one; ``None`` unless asked for.
    left_out
        Columns that were not compared: of no kind that is decided, or one of the tables lacks them.
    row_counts
        Rows of each table: ``private``, ``synthetic``, ``post`` and, if given, ``test``.
    reasons
        What is without a value (``None``, in JSON ``null``), by its place in :meth:`to_dict`, each
        with the reason; and, under ``left_out.`` and its name, that of each column left out.
    notes
        What else to know before the figures are believed.
    """

    aligned: Correlations
    all_columns: Correlations
    marginals: Marginals
    prediction: Prediction | None = None
    groups: GroupRates | None = None
    detection: Detection | None = None
    left_out: tuple[str, ...] = ()
    row_counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """All fields, behind the warning: what is printed may be copied from where it is."""
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"Evaluation(warning={self.warning!r}, {', '.join(shown)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that were asked for, by default all."""
        return self.aligned.columns

    @property
    def raw(self) -> Comparison:
        """The correlations of :attr:`columns`, on the values as they are."""
        return self.aligned.raw

    @property
    def clamped(self) -> Comparison:
        """The same on the values clamped to the schema's bounds, of which measures speak."""
        return self.aligned.clamped

    @property
    def undefined(self) -> tuple[str, ...]:
        """Columns that are constant in one of the tables: their correlations count as 0 there."""
        return self.aligned.undefined

    @property
    def warning(self) -> str:
        """That this is not private."""
        return WARNING

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON: finite numbers, or null where :attr:`reasons` says why."""
        return {
            "private": False,
            "warning": self.warning,
            "row_counts": dict(self.row_counts),
            **self.aligned.to_dict(),
            "all_columns": self.all_columns.to_dict(),
            "marginals": self.marginals.to_dict(),
            "f1": None if self.prediction is None else self.prediction.to_dict(),
            "groups": None if self.groups is None else self.groups.to_dict(),
            "detection": None if self.detection is None else self.detection.to_dict(),
            "left_out": list(self.left_out),
            "reasons": dict(self.reasons),
            "notes": list(self.notes),
        }

    def rows(self) -> list[Row]:
        """The figures beside those of :attr:`aligned`, as lines of a table."""
        lines = [*_correlation_rows(self.all_columns), *_marginal_rows(self.marginals)]
        if self.prediction is not None:
            lines.append(_score_row("F1, one-hot as SDMetrics", self.prediction.one_hot))
            lines.append(_score_row("F1, labels scaled to [0, 1]", self.prediction.label_encoded))
        if self.groups is not None:
            lines.append(_row("largest error of a group's rate", LOWER, self.groups.largest))
            lines.append(_row("mean error of groups' rates", LOWER, self.groups.mean))
        if self.detection is not None:
            lines.append(_row("detection AUC (0.5: not told apart)", LOWER, self.detection.auc))
            lines.append(_row("detection pMSE", LOWER, self.detection.pmse))
        return lines


def _row(name: str, better: str, figure: Figure) -> Row:
    return name, better, None, figure.before, figure.after


def _score_row(name: str, score: Score) -> Row:
    return name, HIGHER, score.real, score.before, score.after


def _correlation_rows(found: Correlations) -> Iterator[Row]:
    error = Figure(found.clamped.before, found.clamped.after)
    yield _row("correlation error, all columns", LOWER, error)
    improvement = Figure(None, found.clamped.improvement)
    yield _row("utility improvement, all columns", HIGHER, improvement)


def _marginal_rows(found: Marginals) -> Iterator[Row]:
    yield _row("total variation, one column", LOWER, found.one_way)
    yield _row("total variation, two columns", LOWER, found.two_way)
    yield _row("Jensen-Shannon distance", LOWER, found.jensen_shannon)
    yield _row("Jensen-Shannon distance as synthcity", LOWER, found.jensen_shannon_synthcity)
    yield _row("inverse KL divergence", HIGHER, found.inverse_kl)
    yield _row("inverse KL divergence as synthcity", HIGHER, found.inverse_kl_synthcity)
