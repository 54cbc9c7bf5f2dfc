"""Comparisons with the private table itself. **Not private**: never release their output.

``evaluate`` says how near a synthetic table is to the real one, before and after post-processing:
the paper's figures (utility improvement of correlations, F1 of a model trained on it, distances of
marginals) and some that the paper lacks (tables of two columns, detection, rates of groups).
"""

from __future__ import annotations

from retilt.evaluation.comparing import evaluate
from retilt.evaluation.correlations import Comparison, Correlations, correlation_matrix
from retilt.evaluation.detection import Detection
from retilt.evaluation.figures import Figure
from retilt.evaluation.groups import ColumnErrors, GroupRates
from retilt.evaluation.marginals import Marginals
from retilt.evaluation.prediction import Prediction, Score
from retilt.evaluation.result import WARNING, Evaluation

__all__ = [
    "WARNING",
    "ColumnErrors",
    "Comparison",
    "Correlations",
    "Detection",
    "Evaluation",
    "Figure",
    "GroupRates",
    "Marginals",
    "Prediction",
    "Score",
    "correlation_matrix",
    "evaluate",
]
