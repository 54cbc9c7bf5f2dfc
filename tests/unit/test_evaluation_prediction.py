"""F1 of models trained on a table: SDMetrics' values, and what it would stop at."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import retilt as rt
from retilt.evaluation import prediction
from retilt.evaluation.figures import Undefined
from retilt.evaluation.learning import quietly, require_finite
from retilt.exceptions import InputError


def table(rows: int, shift: float) -> pd.DataFrame:
    """Numbers (some null), text and truth values that say something of ``bought``."""
    i = np.arange(rows)
    x = np.round(10 * np.sin(0.7 * i + shift) + 3 * np.cos(1.9 * i), 3)
    y = np.round(50 + 20 * np.cos(0.37 * i * (1 + shift / 9)), 1)
    y[::11] = np.nan
    city = np.array(["Bern", "Oslo", "Rome"], dtype=object)[(i * i + i // 4 + int(10 * shift)) % 3]
    score = x / 5 + (city == "Oslo") * 1.5 - (np.nan_to_num(y, nan=50) - 50) / 15
    score = score + 2 * np.sin(5.3 * i + shift)
    bought = (score > 1.2).astype(int)
    return pd.DataFrame({"x": x, "y": y, "city": city, "flag": (i * 7 % 5) < 2, "bought": bought})


REAL, SYNTHETIC, POST, TEST = table(200, 0.0), table(120, 1.0), table(150, 0.4), table(90, 2.5)


def evaluate(*tables: Any, **options: Any) -> rt.Evaluation:
    given = tables or (REAL, SYNTHETIC, POST)
    return rt.evaluate(*given, **{"target": "bought", "test": TEST, **options})


def test_sdmetrics_values() -> None:
    """Recorded with sdmetrics 0.32.0, scikit-learn 1.9.1, pandas 2.3.3, NumPy 2.4.6.

    ``BinaryLogisticRegression.compute(test, train, target="bought")`` of the tables above; and of
    them with city and flag as 0, 1, 2, all columns scaled by the real table's range, null as 1/2.
    """
    found = evaluate().prediction
    assert found is not None
    assert found.positive == 1
    assert found.rows == 90
    assert found.one_hot.to_dict() == pytest.approx(
        {"real": 0.7654320987654321, "before": 0.7272727272727273, "after": 0.7435897435897436}
    )
    assert found.label_encoded.to_dict() == pytest.approx(
        {"real": 0.6842105263157895, "before": 0.72, "after": 0.6753246753246753}
    )


ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)


def test_the_papers_value_on_adult(shared: Path) -> None:
    """The paper says 0.61 of the real table; SDMetrics 0.32.0 gives the one-hot values."""
    folder = shared / "data" / "adult"
    parts = []
    for name in ("adult.data.gz", "adult.test.gz"):
        text = gzip.decompress((folder / name).read_bytes()).decode()
        lines = [line.rstrip(".") for line in text.splitlines() if line.count(",") == 14]
        options = {"names": ADULT, "skipinitialspace": True, "keep_default_na": False}
        parts.append(pd.read_csv(io.StringIO("\n".join(lines)), header=None, **options))  # type: ignore[call-overload]
    rows = pd.concat(parts, ignore_index=True)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = (rows.iloc[p] for p in np.split(order, [int(0.8 * len(rows))]))
    synthetic = folder / "synthetic" / "aim-eps1-seed0.csv.gz"
    found = rt.evaluate(
        train, synthetic, synthetic, target="income", test=test, schema=folder / "schema.toml"
    ).prediction
    assert found is not None
    assert found.positive == ">50K"
    assert found.label_encoded.real == pytest.approx(0.604, abs=5e-4)
    assert found.one_hot.real == pytest.approx(0.6630434782608695, abs=1e-3)
    assert found.one_hot.before == pytest.approx(0.6475170399221032, abs=1e-3)


def test_categories_that_were_not_trained_on_are_ignored() -> None:
    only = SYNTHETIC[SYNTHETIC["city"] != "Rome"]
    found = evaluate(REAL, only, POST).prediction
    assert found is not None
    assert found.one_hot.before is not None
    strange = TEST.assign(city="Atlantis")
    found = evaluate(test=strange).prediction
    assert found is not None
    assert None not in found.one_hot.to_dict().values()


def test_the_rarer_value_is_one_or_the_one_that_is_named() -> None:
    words = [t.assign(bought=t["bought"].map({0: "no", 1: "yes"})) for t in (REAL, POST, TEST)]
    found = evaluate(words[0], words[1], words[1], test=words[2])
    assert found.prediction is not None
    assert found.prediction.positive == "yes"
    assert found.prediction.one_hot.real == pytest.approx(0.7654320987654321)
    other = evaluate(words[0], words[1], words[1], test=words[2], positive="no")
    assert other.prediction is not None
    assert other.prediction.one_hot.real != found.prediction.one_hot.real
    flags = evaluate(target="flag").prediction
    assert flags is not None
    assert flags.positive is True
    assert evaluate(target="flag", positive=False).to_dict()["f1"]["positive"] is False
    truth = evaluate(positive=True).prediction  # True is 1
    assert truth == evaluate(positive=1).prediction
    for value in (np.bool_(False), REAL["flag"].unique()[0]):
        told = evaluate(target="flag", positive=value).to_dict()
        assert json.loads(json.dumps(told))["f1"]["positive"] is bool(value)
    even = [t.assign(bought=[0, 1] * (len(t) // 2)) for t in (REAL, SYNTHETIC, POST, TEST)]
    tied = evaluate(*even[:3], test=even[3]).prediction
    assert tied is not None
    assert tied.positive == 1


def test_rows_without_a_target_are_left_out() -> None:
    holes = [t.astype({"bought": float}) for t in (REAL, SYNTHETIC, POST, TEST)]
    more = [pd.concat([t, t.head(40).assign(bought=np.nan)]) for t in holes]
    found, expected = evaluate(*more[:3], test=more[3]), evaluate(*holes[:3], test=holes[3])
    assert found.prediction is not None
    assert expected.prediction is not None
    assert found.prediction.rows == 90
    assert found.prediction.one_hot == expected.prediction.one_hot


def test_one_class_is_predicted_always() -> None:
    ones = SYNTHETIC.assign(bought=1)
    zeros = SYNTHETIC.assign(bought=0)
    schema = {"bought": rt.Categorical((0, 1))}
    found = evaluate(REAL, ones, zeros, schema=schema).prediction
    assert found is not None
    positive = int(TEST["bought"].sum())
    assert found.one_hot.before == pytest.approx(2 * positive / (90 + positive))
    assert found.one_hot.after == 0
    notes = evaluate(REAL, ones, zeros, schema=schema).notes
    assert ["synthetic" in note for note in notes] == [True, False]
    assert "'bought' is 1 in the synthetic table" in notes[0]
    assert "'bought' is never 1 in the post-processed table" in notes[1]
    assert evaluate().notes == ()
    # Where there is no F1, there is nothing to say of it.
    assert evaluate(REAL, ones, zeros, schema=schema, test=TEST[TEST["bought"] == 0]).notes == ()


def test_no_score_without_test_rows_of_the_class() -> None:
    found = evaluate(test=TEST[TEST["bought"] == 0])
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["f1"]["one_hot"] == {"real": None, "before": None, "after": None}
    assert content["reasons"]["f1.one_hot.before"] == "no test row is of the positive class"
    content = evaluate(test=None).to_dict()
    assert content["f1"] is None
    assert content["reasons"]["f1"] == "no test rows were given (test, --test)"
    unknown = evaluate(test=TEST.assign(bought=np.nan).astype({"bought": float}))
    assert unknown.reasons["f1.one_hot.real"] == "no test row has a target"


def test_features_that_are_all_null_are_dropped() -> None:
    empty = SYNTHETIC.assign(y=np.nan)
    schema = {"y": rt.Numeric(0, 100, nullable=True)}
    found = evaluate(REAL, POST, empty, schema=schema).prediction
    expected = evaluate(*(t.drop(columns="y") for t in (REAL, POST, empty))).prediction
    assert found is not None
    assert expected is not None
    assert found.one_hot.after == expected.one_hot.after
    assert found.one_hot.before == evaluate(REAL, POST, POST).prediction.one_hot.before  # type: ignore[union-attr]


def test_extreme_numbers_give_a_score_or_a_reason() -> None:
    wild = SYNTHETIC.assign(x=SYNTHETIC["x"].where(SYNTHETIC.index > 5, 1e308))
    wild.loc[7, "x"] = np.inf
    content = evaluate(REAL, wild, POST).to_dict()
    json.dumps(content, allow_nan=False)
    reason = content["reasons"].get("f1.one_hot.before")
    assert (content["f1"]["one_hot"]["before"] is None) == (reason is not None)


def test_a_number_too_far_from_the_others_is_told() -> None:
    wild = SYNTHETIC.assign(x=SYNTHETIC["x"].where(SYNTHETIC.index != 5, 1e200))
    found = evaluate(REAL, wild, POST)
    assert found.prediction is not None
    assert found.prediction.one_hot.before is None
    assert "too far from the others" in found.reasons["f1.one_hot.before"]


@pytest.mark.parametrize("unit", [1e-308, 1e-200, 1e200, 1e306])
def test_scores_do_not_depend_on_the_unit(unit: float) -> None:
    scaled = [t.assign(x=t["x"] * unit) for t in (REAL, SYNTHETIC, POST, TEST)]
    schema = {"x": {"kind": "numeric", "lower": -20 * unit, "upper": 20 * unit}}
    found = evaluate(*scaled[:3], test=scaled[3], schema=schema, detection=True)
    expected = evaluate(schema={"x": rt.Numeric(-20, 20)}, detection=True)
    assert found.prediction is not None
    assert expected.prediction is not None
    for name in ("one_hot", "label_encoded"):
        score = getattr(found.prediction, name).to_dict()
        assert score == pytest.approx(getattr(expected.prediction, name).to_dict(), abs=0.02)
    assert found.detection is not None
    assert found.detection.to_dict()["auc"] == pytest.approx(
        expected.detection.to_dict()["auc"],
        abs=0.02,  # type: ignore[union-attr]
    )
    assert found.marginals.jensen_shannon == expected.marginals.jensen_shannon


def test_long_tables_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MOST_ENTRIES", 6 * 50)
    rows = prediction._trainable(np.arange(200), 6)
    assert len(rows) == 50
    assert rows.tolist() == prediction._trainable(np.arange(200), 6).tolist()
    assert evaluate() == evaluate()


def test_scikit_learn_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for options in ({}, {"test": None, "detection": True}):
        with pytest.raises(InputError, match=r"scikit-learn.*retilt\[evaluation\]"):
            evaluate(**options)
    assert evaluate(test=None).groups is not None  # rates of groups need nothing


def test_what_scikit_learn_refuses_is_told_without_its_words() -> None:
    with pytest.raises(Undefined) as caught, quietly():
        raise ValueError("SECRET")
    assert "SECRET" not in str(caught.value)
    assert "ValueError" in str(caught.value)
    with pytest.raises(Undefined, match="no finite coefficients"):
        require_finite(np.array([1.0, np.nan]))


def test_a_target_alone_predicts_nothing() -> None:
    parts = [t[["bought", "flag"]] for t in (REAL, SYNTHETIC, POST, TEST)]
    schema = {"flag": rt.Boolean()}
    found = evaluate(*parts[:3], test=parts[3], schema=schema)
    assert found.prediction is not None
    arrow = [pa.Table.from_pandas(t, preserve_index=False) for t in parts]
    assert evaluate(*arrow[:3], test=arrow[3], schema=schema).prediction == found.prediction
