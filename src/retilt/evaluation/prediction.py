"""F1 of a logistic regression that is trained on a table and tested on real rows.

Source: SDMetrics 0.32, ``BinaryLogisticRegression``, which the paper uses: its formula is restated
here, since it needs pandas below 3. It differs in three places, where SDMetrics would stop, depend
on the rows' order, or tell what its solver gave up with: categories of the test rows that training
rows lack are ignored (their row has none of the known categories), the positive class is a choice,
not the first row's, and of numbers too far from the others there is no F1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt._input import short
from retilt.evaluation.figures import Undefined, value_or_reason
from retilt.evaluation.learning import quietly, require_finite
from retilt.evaluation.opening import NAMES
from retilt.evaluation.sides import Side, Sides, is_listed
from retilt.evaluation.targets import Target
from retilt.measures.base import FloatArray
from retilt.schema.columns import Boolean

MOST_ENTRIES = 10**8
"""Entries of a design matrix (0.8 GB); of a longer table, rows drawn with a fixed seed train."""

FARTHEST = 1e20
"""Interquartile ranges from the median: of numbers beyond, the regression finds no minimum."""

_SEED = 0
_STEPS = 50

_Design: TypeAlias = Callable[[Side], FloatArray]
_Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Score:
    """F1 on the test rows after training on each table.

    Attributes
    ----------
    real
        Trained on the real table: for reference.
    before, after
        Trained on the synthetic table, and on the post-processed one.
    """

    real: float | None
    before: float | None
    after: float | None

    def to_dict(self) -> dict[str, float | None]:
        """The figures as JSON."""
        return {"real": self.real, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Prediction:
    """How well models trained on each table predict the target in real rows.

    Both scores are F1 of the positive class, 2 TP / (2 TP + FP + FN), in [0, 1], higher is better,
    of logistic regression with balanced class weights and at most 50 steps of L-BFGS, on features
    less their median over their interquartile range (scikit-learn's ``RobustScaler``). Rows whose
    target is null neither train nor test.

    Attributes
    ----------
    target, positive
        The column, and the value that counts as 1.
    one_hot
        As SDMetrics: texts as one column per category that the training rows have, null as a
        category; numbers with their training rows' mean for null (true and false: the more
        frequent one).
    label_encoded
        Features as labels 0, 1, 2, ... of the texts by code point, labels and numbers scaled so
        that the real table's span [0, 1], null as 1/2, before the same regression. This is the
        preprocessing that gives the F1 that the paper states for real data.
    rows
        Test rows.
    """

    target: str
    positive: str | float | bool
    one_hot: Score
    label_encoded: Score
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "target": self.target,
            "positive": self.positive,
            "one_hot": self.one_hot.to_dict(),
            "label_encoded": self.label_encoded.to_dict(),
            "test_rows": self.rows,
        }


def predict(sides: Sides, target: Target, test: Side, undefined: dict[str, str]) -> Prediction:
    """Train on each table, with both encodings, and test on the test rows."""
    names = [name for name in sides.names if name != target.name]
    truth = target.truths(sides, test)

    def score(encoding: str, design_of: Callable[[Side], _Design]) -> Score:
        def trained_on(side: Side) -> float:
            if not names:
                raise Undefined("there is no column to predict from")
            return _f1_after(sides, target, side, test, design_of(side))

        return Score(
            *(
                value_or_reason(f"{encoding}.{when}", lambda s=side: trained_on(s), undefined)  # type: ignore[misc]
                for when, side in zip(("real", "before", "after"), sides.compared, strict=True)
            )
        )

    return Prediction(
        target=target.name,
        positive=target.positive,
        one_hot=score("one_hot", lambda train: one_hot_design(sides, names, train)),
        label_encoded=score("label_encoded", lambda _: label_design(sides, names)),
        rows=int((~np.isnan(truth)).sum()),
    )


def one_sided(sides: Sides, target: Target, score: Score) -> list[str]:
    """Say which scores are of models that know one class only, and so predict it always."""
    notes = []
    scored = zip(NAMES, sides.compared, score.to_dict().values(), strict=False)
    for what, side in ((what, side) for what, side, value in scored if value is not None):
        given = target.truths(sides, side)
        classes = np.unique(given[~np.isnan(given)])
        if len(classes) == 1:
            found = "is" if classes[0] else "is never"
            notes.append(
                f"the target {target.name!r} {found} {short(target.positive)} in {what}: a model "
                "trained on it predicts that of every row, which is what its F1 says."
            )
    return notes


def _f1_after(sides: Sides, target: Target, train: Side, test: Side, design: _Design) -> float:
    """F1 on the test rows of a model of the training rows."""
    given, truth = target.truths(sides, train), target.truths(sides, test)
    train_rows, test_rows = ~np.isnan(given), ~np.isnan(truth)
    truths = truth[test_rows] == 1
    if not len(truths):
        raise Undefined("no test row has a target")
    if not truths.any():
        raise Undefined("no test row is of the positive class")
    if not train_rows.any():
        raise Undefined("no row to train on has a target")
    if len(np.unique(given[train_rows])) == 1:  # a constant prediction, as in SDMetrics
        return f1(truths, np.full(len(truths), given[train_rows][0] == 1))
    features = design(train)
    chosen = _trainable(np.flatnonzero(train_rows), features.shape[1])
    predicted = _fit_predict(features[chosen], given[chosen] == 1, design(test)[test_rows])
    return f1(truths, predicted)


def _trainable(rows: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """As many of the rows as make no matrix that is too large."""
    most = max(MOST_ENTRIES // max(width, 1), 2)
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(_SEED).choice(rows, most, replace=False))


def _fit_predict(features: FloatArray, given: _Bools, tests: FloatArray) -> _Bools:
    if len(np.unique(given)) == 1:
        return np.full(len(tests), given[0])
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import RobustScaler

    with quietly():
        scaler = RobustScaler().fit(features)
        scaled = scaler.transform(features)
        if not (np.abs(scaled) <= FARTHEST).all():
            raise Undefined("some numbers lie too far from the others to train a regression on")
        model = LogisticRegression(solver="lbfgs", class_weight="balanced", max_iter=_STEPS)
        model.fit(scaled, given)
        require_finite(model.coef_)
        predicted: _Bools = model.predict(scaler.transform(tests))
    return predicted


def f1(truths: _Bools, predicted: _Bools) -> float:
    """Return 2 TP / (2 TP + FP + FN); at least one must be true.

    Examples
    --------
    >>> f1(np.array([True, True, False]), np.array([True, False, False])).__round__(4)
    0.6667
    """
    return float(2 * (truths & predicted).sum() / (truths.sum() + predicted.sum()))


# --- encodings ---------------------------------------------------------------------------


def one_hot_design(sides: Sides, names: list[str], train: Side) -> _Design:
    """Return what makes a table's features, (n, p), by what the training rows hold."""
    fills: dict[str, float] = {}
    categories: dict[str, FloatArray] = {}
    for name in names:
        if is_listed(sides.schema[name]):
            categories[name] = np.unique(_codes(sides, train, name))
        elif np.isfinite(values := sides.finite_or_null(train, name)).any():
            known = values[~np.isnan(values)]
            frequent = isinstance(sides.schema[name], Boolean)
            fills[name] = float(known.mean() > 0.5) if frequent else float(known.mean())

    def design(side: Side) -> FloatArray:
        parts = []
        for name, fill in fills.items():
            values = sides.finite_or_null(side, name)
            parts.append(np.where(np.isnan(values), fill, values)[:, None])
        for name, known in categories.items():
            parts.append((_codes(sides, side, name)[:, None] == known).astype(np.float64))
        if not parts:
            raise Undefined("the rows to train on hold no feature")
        return np.concatenate(parts, axis=1)

    return design


def _codes(sides: Sides, side: Side, name: str) -> FloatArray:
    """Codes of texts, with one of its own for null."""
    return np.nan_to_num(sides.values(side, name), nan=-1.0)


def label_design(sides: Sides, names: list[str]) -> _Design:
    """Return what makes a table's features, (n, d): labels and numbers, scaled by the real rows."""
    limits = {name: _range(sides.finite_or_null(sides.real, name)) for name in names}

    def design(side: Side) -> FloatArray:
        columns = []
        for name, (least, greatest) in limits.items():
            values = (sides.finite_or_null(side, name) - least) / ((greatest - least) or 1.0)
            columns.append(np.where(np.isnan(values), 0.5, values))
        return np.stack(columns, axis=1)

    return design


def _range(values: FloatArray) -> tuple[float, float]:
    """The least and greatest value that is no null; of nulls only, anything."""
    known = values[~np.isnan(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
