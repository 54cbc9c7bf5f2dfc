"""Every figure of a table, by ``retilt.evaluate``: two tables at a time, as one call takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

import retilt as rt
from experiments.suite.inputs import Case
from retilt.evaluation import Evaluation, Figure

Scores = Mapping[str, float | None]
"""By metric; None where there is no value."""


def score(case: Case, columns: Sequence[str], tables: Sequence[pd.DataFrame]) -> list[Scores]:
    """The figures of each table.

    ``correlation_error`` is the L1 distance of the correlations of ``columns`` from the real
    ones; ``f1`` is on labels scaled to [0, 1], which is the paper's preprocessing,
    ``f1_one_hot`` as SDMetrics would have it of text; ``js`` and ``inverse_kl`` are synthcity's,
    ``*_corrected`` without its faults.
    """
    found: list[Scores] = []
    for start in range(0, len(tables), 2):
        pair = tables[start : start + 2]
        result = rt.evaluate(
            case.split.train,
            pair[0],
            pair[-1],
            columns=columns,
            target=case.data_set.target,
            positive=case.data_set.positive,
            test=case.split.test,
            schema=case.schema,
        )
        found += [_of(result, when) for when in ("before", "after")][: len(pair)]
    return found


def _of(result: Evaluation, when: str) -> Scores:
    def value(figure: Figure) -> float | None:
        found: float | None = getattr(figure, when)
        return found

    assert result.prediction is not None
    assert result.groups is not None
    return {
        "correlation_error": getattr(result.aligned.raw, when),
        "correlation_error_all": getattr(result.all_columns.raw, when),
        "f1": getattr(result.prediction.label_encoded, when),
        "f1_real": result.prediction.label_encoded.real,
        "f1_one_hot": getattr(result.prediction.one_hot, when),
        "f1_one_hot_real": result.prediction.one_hot.real,
        "js": value(result.marginals.jensen_shannon_synthcity),
        "js_corrected": value(result.marginals.jensen_shannon),
        "inverse_kl": value(result.marginals.inverse_kl_synthcity),
        "inverse_kl_corrected": value(result.marginals.inverse_kl),
        "two_way_error": value(result.marginals.two_way),
        "group_error": value(result.groups.mean),
    }
