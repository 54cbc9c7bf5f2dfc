"""How well a classifier tells real rows from synthetic ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.evaluation.figures import Figure, Undefined, figure
from retilt.evaluation.learning import quietly
from retilt.evaluation.sides import Side, Sides
from retilt.measures.base import FloatArray

MOST_ROWS = 20_000
"""Rows drawn of each table, at most."""

FOLDS = 5
_STEPS = 50
_SEED = 0


@dataclass(frozen=True)
class Detection:
    """How well gradient-boosted trees tell real rows from others, on rows they did not see.

    Source: the classifier two-sample test (Lopez-Paz and Oquab 2017) and the propensity score mean
    squared error (Woo et al. 2009; Snoke et al. 2018). scikit-learn's
    ``HistGradientBoostingClassifier`` of 50 trees, cross-validated in 5 folds; as many rows of
    both tables, at most 20,000, drawn with a fixed seed. Equal rows share a fold: a model that
    knows a row's twin would otherwise be tested on what it has learnt.

    Attributes
    ----------
    auc
        Area under the ROC curve, the mean over folds. 0.5: can't be told apart; 1: always told
        apart. Lower is better; values below 0.5 are chance.
    pmse
        Mean of (p - 1/2)², where p is the predicted probability that a row is synthetic. In
        [0, 0.25], lower is better; trees of finite tables never reach 0.
    rows
        How many of each table, before and after.
    """

    auc: Figure
    pmse: Figure
    rows: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "auc": self.auc.to_dict(),
            "pmse": self.pmse.to_dict(),
            "rows": dict(zip(("before", "after"), self.rows, strict=True)),
        }


@dataclass(frozen=True)
class _Told:
    """Predictions for rows that were not seen: which are synthetic, how likely, in which fold."""

    synthetic: NDArray[np.bool_]
    probability: FloatArray
    fold: NDArray[np.int64]


def detect(sides: Sides, undefined: dict[str, str]) -> Detection:
    """Train classifiers of real rows against those before, and against those after."""
    real = _features(sides, sides.real)
    told: list[_Told | Undefined] = []
    rows = []
    for side in (sides.before, sides.after):
        other = _features(sides, side)
        size = min(len(real), len(other), MOST_ROWS)
        rows.append(size)
        try:
            told.append(_tell(_drawn(real, size), _drawn(other, size)))
        except Undefined as reason:
            told.append(reason)
    return Detection(
        auc=figure("auc", _auc, (told[0], told[1]), undefined),
        pmse=figure("pmse", _pmse, (told[0], told[1]), undefined),
        rows=(rows[0], rows[1]),
    )


def _features(sides: Sides, side: Side) -> FloatArray:
    return np.stack([sides.finite_or_null(side, name) for name in sides.names], axis=1)


def _drawn(features: FloatArray, size: int) -> FloatArray:
    """Rows by a seed of their own: equal tables give equal rows."""
    if size == len(features):
        return features
    return features[np.random.default_rng(_SEED).choice(len(features), size, replace=False)]


def _tell(real: FloatArray, other: FloatArray) -> _Told:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # scikit-learn needs it, too

    features = np.concatenate([real, other])
    synthetic = np.arange(len(features)) >= len(real)
    fold = _folds(features)
    probability = np.empty(len(features))
    for one in np.unique(fold):
        held = fold == one
        # A column of nulls tells nothing, and its bins can't be made.
        known = ~np.isnan(features[~held]).all(axis=0)
        if len(np.unique(synthetic[~held])) < 2 or not known.any():
            raise Undefined("there are too few different rows to train and to test")
        # One thread: on busy cores, threads that wait for each other take ten times as long.
        with quietly(), threadpool_limits(1):
            model = HistGradientBoostingClassifier(
                max_iter=_STEPS, early_stopping=False, random_state=_SEED
            )
            model.fit(features[~held][:, known], synthetic[~held])
            probability[held] = model.predict_proba(features[held][:, known])[:, 1]
    return _Told(synthetic, probability, fold)


def _folds(features: FloatArray) -> NDArray[np.int64]:
    """(n,) each row's fold; equal rows share one."""
    kinds = np.zeros(len(features), dtype=np.int64)
    for values in features.T:
        _, ranks = np.unique(values, return_inverse=True)
        _, kinds = np.unique(kinds * (ranks.max() + 1) + ranks, return_inverse=True)
    folds = np.random.default_rng(_SEED).permutation(kinds.max() + 1) % FOLDS
    found: NDArray[np.int64] = folds[kinds]
    return found


def _auc(told: _Told | Undefined) -> float:
    from sklearn.metrics import roc_auc_score

    told = _or_raise(told)
    found = []
    for one in np.unique(told.fold):
        held = told.fold == one
        if len(np.unique(told.synthetic[held])) == 2:
            found.append(roc_auc_score(told.synthetic[held], told.probability[held]))
    if not found:
        raise Undefined("no fold holds rows of both tables")
    return float(np.mean(found))


def _pmse(told: _Told | Undefined) -> float:
    return float(np.mean((_or_raise(told).probability - 0.5) ** 2))


def _or_raise(told: _Told | Undefined) -> _Told:
    if isinstance(told, Undefined):
        raise told
    return told
