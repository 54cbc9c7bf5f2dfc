"""Regressions, error bars of second moments, what drowns in noise, and repaired correlations."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from retilt.exceptions import FormatError, WorkloadError
from retilt.measures.base import Relation, Terms
from retilt.measures.moments import Moments, MomentsBlock
from retilt.measures.second_moments import nearest_correlation
from retilt.schema.columns import Boolean, Categorical, Column, Numeric, Schema

ROWS = 4000
COLUMNS: dict[str, Column] = {
    "income": Numeric(0, 100),
    "age": Numeric(17, 90, integer=True),
    "sex": Categorical(("F", "M")),
    "hours": Numeric(-20.0, 80.0),
}


def people() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    age = rng.integers(17, 91, ROWS).astype(float)
    sex = (rng.random(ROWS) < 0.3 + age / 300).astype(float)
    hours = np.clip(rng.normal(30 + 6 * sex, 9), -20, 80)
    income = np.clip(rng.normal(5 + 0.3 * age + 4 * sex + 0.4 * hours, 9), 0, 100)
    return {"income": income, "age": age, "sex": sex, "hours": hours}


PEOPLE = people()
TABLE = pa.table({**PEOPLE, "sex": np.where(PEOPLE["sex"] == 1, "M", "F")})
SETTINGS = list(itertools.product(("centred", "paper"), Relation))


def bind(names: tuple[str, ...], statistics: str, basis: str, relation: Relation) -> MomentsBlock:
    measure = Moments(names, statistics=statistics, loudness=Fraction(1))  # type: ignore[arg-type]
    block = measure.bind(Terms(Schema(COLUMNS), basis=basis, relation=relation))  # type: ignore[arg-type]
    assert isinstance(block, MomentsBlock)
    return block


def answers_of(block: MomentsBlock) -> NDArray[np.float64]:
    sums = block.sums([f.encode(TABLE.__getitem__, ROWS) for f in block.features])
    return np.array([s / u / ROWS for s, u in zip(sums, block.units, strict=True)])


def lines(names: tuple[str, ...]) -> NDArray[np.float64]:
    target, *others = (PEOPLE[n] for n in names)
    matrix = np.stack([*others, np.ones(ROWS)], axis=1)
    return np.linalg.lstsq(matrix, target, rcond=None)[0]


# --- regressions -------------------------------------------------------------------------


@pytest.mark.parametrize(("basis", "relation"), SETTINGS)
@pytest.mark.parametrize(
    "names",
    [("income", "age"), ("income", "age", "sex", "hours"), ("sex", "age", "income")],
    ids=" ".join,
)
def test_coefficients_are_those_of_least_squares(
    names: tuple[str, ...], basis: str, relation: Relation
) -> None:
    block = bind(names, "regression", basis, relation)
    found = block.evaluate(answers_of(block))
    np.testing.assert_allclose(found, lines(names), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize(("basis", "relation"), SETTINGS)
@pytest.mark.parametrize("statistics", ["regression", "moments", "correlation"])
def test_errors_are_the_delta_method(statistics: str, basis: str, relation: Relation) -> None:
    block = bind(("income", "sex", "age", "hours"), statistics, basis, relation)
    answers, step = answers_of(block), 1e-6
    shifts = step * np.eye(len(answers))
    slopes = [
        (block.evaluate(answers + s) - block.evaluate(answers - s)) / (2 * step) for s in shifts
    ]
    rng = np.random.default_rng(1)
    variances = rng.uniform(0.5, 2, len(answers)) * 1e-10
    for common in (0, 2):
        factor = rng.normal(size=(len(answers), common)) * 1e-5
        covariance = np.diag(variances) + factor @ factor.T
        expected = np.sqrt(np.einsum("ks,kl,ls->s", slopes, covariance, slopes))
        found = block.standard_errors(answers, variances, factor)
        np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_names_of_coefficients() -> None:
    columns = {n: Numeric(0, 1) for n in ("y", "a + b", "c, d", "1", "e")}
    block = Moments(tuple(columns), statistics="regression").bind(Terms(Schema(columns)))
    formula = 'y ~ "a + b" + "c, d" + "1" + e'
    names = ('"a + b"', '"c, d"', '"1"', "e", "1")
    assert block.statistics == tuple(f"coef({n}; {formula})" for n in names)


def test_collinear_regressors_are_undefined_without_a_warning() -> None:
    table = pa.table({"y": [0.0, 1.0, 3.0], "a": [0.0, 1.0, 2.0], "b": [2.0, 1.0, 0.0]})
    schema = Schema({n: Numeric(0, 4, integer=n != "y") for n in "yab"})
    block = Moments(("y", "a", "b"), statistics="regression").bind(Terms(schema))
    sums = block.sums([f.encode(table.__getitem__, 3) for f in block.features])
    answers = np.array([s / u / 3 for s, u in zip(sums, block.units, strict=True)])
    none = np.zeros((len(answers), 0))
    with np.errstate(all="raise"):
        assert np.isnan(block.evaluate(answers)).all()
        assert np.isnan(block.standard_errors(answers, np.ones(len(answers)), none)).all()
        assert block.dominated(answers, np.ones(len(answers)), none).all()
        assert np.isnan(block.evaluate(np.full(len(answers), np.nan))).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": Numeric(1, 1), "a": Numeric(0, 1), "b": Numeric(0, 1)}, "'y', the target, constant"),
        ({"y": Numeric(0, 1), "a": Numeric(1, 1)}, "too few columns vary"),
    ],
)
def test_a_regression_of_a_constant_is_refused(columns: dict[str, Column], message: str) -> None:
    measure = Moments(tuple(columns), statistics="regression")
    with pytest.raises(WorkloadError, match=message):
        measure.bind(Terms(Schema(columns)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": "regression"}, "at least two"),
        ({"statistics": "correlation"}, "at least two"),
        ({"statistics": "median"}, "expected moments, correlation or regression"),
        ({"order": 3}, "expected 1 or 2"),
        ({"order": True}, "expected 1 or 2"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Moments(("a",), **options)
    with pytest.raises(WorkloadError, match="needs order 2"):
        Moments(("a", "b"), order=1, statistics="regression")


def test_tuning_lowers_the_predicted_loss_of_a_regression() -> None:
    measure = Moments(("income", "age", "hours"), statistics="regression")
    terms = Terms(Schema(COLUMNS))
    plain = measure.bind(terms)
    answers = answers_of(plain)  # type: ignore[arg-type]
    tuned = measure.tuned(terms, answers).bind(terms)
    assert tuned.predicted_loss(answers) < 0.9 * plain.predicted_loss(answers)


# --- what drowns in noise ------------------------------------------------------------------


def noisy(block: MomentsBlock, deviation: float, draws: int = 2000) -> NDArray[np.float64]:
    rng = np.random.default_rng(5)
    answers = answers_of(block)
    drawn = answers + rng.normal(0, deviation, (draws, len(answers)))
    return block.derived.evaluate(drawn)


@pytest.mark.parametrize(("basis", "relation"), SETTINGS)
@pytest.mark.parametrize("statistics", ["moments", "correlation", "regression"])
def test_errors_are_the_spread_of_noisy_estimates_or_flagged(
    statistics: str, basis: str, relation: Relation
) -> None:
    """From little noise to much: within 10 % as long as the flag is down."""
    block = bind(("income", "age", "sex", "hours"), statistics, basis, relation)
    answers = answers_of(block)
    none = np.zeros((len(answers), 0))
    flagged = []
    for deviation in (1e-4, 1e-3, 3e-3, 1e-2, 0.1):
        variances = np.full(len(answers), deviation**2)
        expected = block.standard_errors(answers, variances, none)
        doubtful = block.dominated(answers, variances, none)
        found = noisy(block, deviation).std(axis=0)
        np.testing.assert_allclose(found[~doubtful], expected[~doubtful], rtol=0.1)
        flagged.append(int(doubtful.sum()))
    assert flagged[0] == 0
    # Means are linear, and no noise of a mean makes an even column's variance of 1 doubtful.
    assert flagged[-1] == len(block.statistics) - (5 if statistics == "moments" else 0)


def test_means_are_never_flagged() -> None:
    block = Moments(("income", "age"), order=1).bind(Terms(Schema(COLUMNS)))
    none = np.zeros((2, 0))
    assert not block.dominated(np.array([0.0, 0.5]), np.full(2, 1e6), none).any()


def test_a_flag_rises_at_ten_errors_of_the_variance() -> None:
    block = bind(("income", "age"), "moments", "centred", Relation.REPLACE)
    answers = np.array([0.0, 0.0, 0.5, 0.2, 0.1])  # both means 0: the variances are the squares
    for error, expected in ((0.0199, False), (0.0201, True)):
        flags = block.dominated(answers, np.full(5, error**2), np.zeros((5, 0)))
        # mean, mean, sd (variance 0.5), sd (variance 0.2), corr
        assert flags.tolist() == [False, False, False, expected, expected]
        common = np.zeros((5, 1))
        common[3] = error
        assert block.dominated(answers, np.zeros(5), common).tolist() == flags.tolist()


# --- repaired correlations -----------------------------------------------------------------


def test_a_possible_matrix_is_left_alone() -> None:
    block = bind(("income", "age", "hours"), "correlation", "centred", Relation.REPLACE)
    answers = answers_of(block)
    plain = block.correlations(answers)
    assert np.array_equal(block.correlations(answers, repaired=True), plain)
    assert block.repairs(answers) == []
    columns = [PEOPLE[n] for n in ("income", "age", "hours")]
    np.testing.assert_allclose(plain, np.corrcoef(columns), atol=1e-4)


def test_an_impossible_matrix_is_repaired_and_said() -> None:
    block = bind(("income", "age", "hours"), "correlation", "centred", Relation.REPLACE)
    answers = np.array([0, 0, 0, 0.5, 0.5, 0.5, 0.45, -0.45, 0.45])
    repaired = block.correlations(answers, repaired=True)
    assert np.linalg.eigvalsh(block.correlations(answers)).min() < -0.5
    assert np.linalg.eigvalsh(repaired).min() > -1e-12
    assert np.array_equal(np.diagonal(repaired), np.ones(3))
    assert np.array_equal(repaired, repaired.T)
    assert block.evaluate(answers) == pytest.approx([0.9, -0.9, 0.9])  # single estimates stay
    (note,) = block.repairs(answers)
    assert "income, age, hours contradict each other" in note


def test_undefined_columns_stay_undefined_in_a_repaired_matrix() -> None:
    broken = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    wide = np.full((4, 4), np.nan)
    wide[1:, 1:] = broken
    repaired = nearest_correlation(wide)
    assert np.array_equal(repaired[1:, 1:], nearest_correlation(broken))
    assert np.isnan(repaired[0]).all()
    assert np.isnan(nearest_correlation(np.full((2, 2), np.nan))).all()


# --- files ---------------------------------------------------------------------------------


def entry_of(measure: Moments) -> dict[str, Any]:
    return {"kind": measure.kind, "weight": measure.weight, "scale": "1", **measure.to_dict()}


@pytest.mark.parametrize("statistics", ["moments", "correlation", "regression"])
def test_files_say_the_measure(statistics: Any) -> None:
    measure = Moments(("a", "b"), statistics=statistics, weight=2.5, loudness=Fraction(3, 8))
    entry = entry_of(measure)
    assert set(entry) == {"kind", "weight", "scale", "columns", "order", "loudness", "clip"}
    assert Moments.from_dict(entry) == measure


@pytest.mark.parametrize(
    "change",
    [
        {"order": 1.0},
        {"order": True},
        {"order": 3},
        {"loudness": "1e9"},
        {"clip": []},
        {"clip": {"z": [0, 1]}},
        {"clip": {"a": [1, 0]}},
        {"clip": {"a": [0, True]}},
        {"clip": {"a": "01"}},
        {"clip": {"a": [0, 1, 2]}},
        {"loudness": 0.5},
        {"loudness": "0/1"},
        {"loudness": "9"},
        {"columns": []},
        {"columns": ["a", "a"]},
        {"columns": "ab"},
        {"columns": ["a", 1]},
        {"extra": 1},
        {"by": ["g"]},
        {"kind": "median"},
    ],
    ids=str,
)
def test_malformed_entries_are_refused(change: dict[str, Any]) -> None:
    entry = {**entry_of(Moments(("a", "b"), loudness=Fraction(1))), **change}
    with pytest.raises(FormatError):
        Moments.from_dict(entry)


def test_a_boolean_target_counts_as_its_codes() -> None:
    table = pa.table({"y": [True, False, True, True], "a": [0.0, 1.0, 3.0, 4.0]})
    schema = Schema({"y": Boolean(), "a": Numeric(0, 4, integer=True)})
    block = Moments(("y", "a"), statistics="regression").bind(Terms(schema))
    sums = block.sums([f.encode(table.__getitem__, 4) for f in block.features])
    answers = np.array([s / u / 4 for s, u in zip(sums, block.units, strict=True)])
    np.testing.assert_allclose(block.evaluate(answers), np.polyfit([0, 1, 3, 4], [1, 0, 1, 1], 1))
