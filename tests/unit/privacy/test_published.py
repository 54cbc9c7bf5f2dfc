"""Answers from elsewhere: the file, the schema, the queries that the statistics become."""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.engines.local import open_table
from retilt.exceptions import FormatError, InputError, OutputExistsError
from retilt.measures.linear import LinearBlock
from retilt.privacy.published import FORMAT, Published, load_published, published_from_dict
from retilt.privacy.targets import load_targets
from retilt.tables import encode
from retilt.tilting.problem import Covariance, Problem

RNG = np.random.default_rng(0)
ROWS = 4_000
AGE = RNG.integers(17, 91, ROWS)
INCOME = np.rint(RNG.gamma(2, 1_000, ROWS) + 30 * AGE)
SEX, RACE = RNG.choice(["F", "M"], ROWS), RNG.choice(["W", 'B, "x"'], ROWS, p=[0.7, 0.3])
TABLE = pa.table({"age": AGE, "income": INCOME, "sex": SEX, "race": RACE})
SCHEMA = {
    "age": {"kind": "numeric", "lower": 17, "upper": 90, "integer": True},
    "income": {"kind": "numeric", "lower": 0, "upper": 32_768, "integer": True},
}
FEMALE = SEX == "F"
TRUTH = {
    "mean(age)": AGE.mean(),
    "mean(income)": INCOME.mean(),
    "sd(age)": AGE.std(),
    "sd(income)": INCOME.std(),
    "corr(age, income)": np.corrcoef(AGE, INCOME)[0, 1],
    "share(sex = 'F')": FEMALE.mean(),
    "mean(income | sex = 'F')": INCOME[FEMALE].mean(),
    "product(age, income)": (AGE * INCOME).mean(),
    "mean(CASE WHEN age > 50 THEN 1 ELSE 0 END)": (AGE > 50).mean(),
}


def scalars(error: float = 0.01) -> list[dict[str, Any]]:
    """Every kind of single statistic, with its true value."""
    asked = [
        {"mean": "age"},
        {"mean": "income"},
        {"sd": "age"},
        {"sd": "income"},
        {"corr": ["age", "income"]},
        {"share": "sex='F'"},
        {"group_mean": "income", "where": "sex = 'F'"},
        {"product": ["age", "income"]},
        {"query": "case when age > 50 then 1 else 0 end", "lower": 0, "upper": 1},
    ]
    return [
        {**a, "value": float(v), "standard_error": error}
        for a, v in zip(asked, TRUTH.values(), strict=True)
    ]


def file_of(*statistics: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"format": FORMAT, "source": "a test", "statistics": list(statistics), **others}


def completed(*statistics: dict[str, Any], **others: Any) -> Published:
    others = {"schema": SCHEMA, **others}
    read = published_from_dict(json.loads(json.dumps(file_of(*statistics, **others))))
    return read.completed(open_table(TABLE))


def problem(published: Published, table: pa.Table = TABLE) -> Problem:
    encoded = encode(open_table(table), published.queries.features)
    designs = published.queries.designs(encoded)
    unit = Covariance(np.ones(published.queries.size))
    return Problem(designs, published.means, unit, np.ones(table.num_rows))


def own_means(published: Published, weights: Any = None) -> Any:
    made = problem(published)
    return made.means(made.base if weights is None else weights)


# --- statistics and queries --------------------------------------------------------------------


def test_a_table_answers_its_own_statistics() -> None:
    published = completed(*scalars())
    assert published.queries.statistics == tuple(TRUTH)
    own = own_means(published)
    np.testing.assert_allclose(own, published.means, atol=1e-12)
    np.testing.assert_allclose(published.queries.evaluate(own), list(TRUTH.values()), rtol=1e-9)


def test_every_query_lies_between_minus_one_and_one() -> None:
    made = problem(completed(*scalars()))
    for row in range(0, ROWS, 100):
        weights = np.zeros(ROWS)
        weights[row] = 1.0
        assert np.abs(made.means(weights)).max() <= 1 + 1e-12


@pytest.mark.parametrize("seed", [1, 2])
def test_statistics_are_those_of_any_weighted_table(seed: int) -> None:
    published = completed(*scalars())
    weights = np.random.default_rng(seed).gamma(0.3, size=ROWS)
    weights /= weights.sum()
    found = dict(zip(TRUTH, published.queries.evaluate(own_means(published, weights)), strict=True))
    covariance = np.cov(AGE, INCOME, aweights=weights, ddof=0)
    sd = np.sqrt(np.diag(covariance))
    assert found["mean(age)"] == pytest.approx(weights @ AGE)
    assert found["sd(income)"] == pytest.approx(sd[1], rel=1e-7)
    assert found["corr(age, income)"] == pytest.approx(covariance[0, 1] / sd[0] / sd[1], rel=1e-6)
    inside = weights * FEMALE
    assert found["mean(income | sex = 'F')"] == pytest.approx(inside @ INCOME / inside.sum())


def test_errors_are_those_given_and_the_derivatives_are_right() -> None:
    published = completed(*scalars(0.01))
    np.testing.assert_allclose(published.errors_at(published.means), 0.01, rtol=1e-6)
    (block,) = published.queries.blocks
    own = own_means(published, np.random.default_rng(1).dirichlet(np.full(ROWS, 0.5)))
    slopes = block.jacobian(own).toarray()  # type: ignore[union-attr]
    for k in range(len(own)):
        step = np.zeros(len(own))
        step[k] = 1e-6
        numeric = (block.evaluate(own + step) - block.evaluate(own - step)) / 2e-6
        np.testing.assert_allclose(slopes[:, k], numeric, rtol=1e-4, atol=1e-4)


def test_simulated_noise_of_the_given_values_is_that_of_the_statistics() -> None:
    """Values with independent errors, each turned into answers."""
    true = completed(*scalars())
    (block,) = true.queries.blocks
    assert isinstance(block, LinearBlock)
    encoded = encode(open_table(TABLE), block.features)
    unit = Covariance(np.ones(true.queries.size))
    rng, drawn = np.random.default_rng(3), []
    sizes = np.array([0.05, 2.0, 0.05, 3.0, 0.01, 0.002, 5.0, 500.0, 0.002])
    for _ in range(400):
        errors = rng.normal(0, sizes).tolist()
        noisy = replace(
            block,
            stated=tuple(
                replace(s, value=s.value + e) for s, e in zip(block.stated, errors, strict=True)
            ),
        )
        design = noisy.design([encoded[f] for f in block.features])
        made = Problem((design,), noisy.answers(), unit, np.ones(ROWS))
        # How far the true table is from the answers, in units of the noise that they claim.
        drawn.append((made.means(made.base) - made.answers) / (noisy.slopes() * sizes))
    found = np.array(drawn)
    np.testing.assert_allclose(found.std(axis=0), 1, atol=0.13)
    off = np.abs(np.corrcoef(found.T) - np.eye(len(sizes)))
    assert off.max() < 0.2, "the errors of the answers are independent"


def test_tables_by_name_by_list_and_in_bins() -> None:
    shares = [[np.mean((s == SEX) & (r == RACE)) for r in ('B, "x"', "W")] for s in "FM"]
    by_list = completed({"table": ["sex", "race"], "values": shares, "standard_error": 0.1})
    nested = {
        s: dict(zip(('B, "x"', "W"), row, strict=True)) for s, row in zip("FM", shares, strict=True)
    }
    by_name = completed({"table": ["sex", "race"], "values": nested, "standard_error": 0.1})
    assert by_list.queries.statistics == by_name.queries.statistics
    assert by_name.queries.statistics[0] == 'cell(sex=F, race="B, ""x""")'
    np.testing.assert_array_equal(by_list.means, by_name.means)
    np.testing.assert_allclose(own_means(by_name), by_name.means)
    whole = [[*row, 0, 0] for row in shares] + [[0] * 4, [0] * 4]
    every = completed({"table": ["sex", "race"], "values": whole, "standard_error": 0.1})
    assert every.queries.size == 16
    np.testing.assert_allclose(own_means(every), every.means)
    bins = {"age": [30, 50]}
    counts = [int(np.sum(AGE < 30)), int(np.sum((AGE >= 30) & (AGE < 50))), int(np.sum(AGE >= 50))]
    binned = completed(
        {"table": ["age"], "bins": bins, "values": counts, "standard_error": 4, "counts": True},
        rows=ROWS,
    )
    np.testing.assert_allclose(own_means(binned), binned.means)
    np.testing.assert_allclose(np.sqrt(binned.variances), 4 / ROWS)
    one = completed(
        {"cell": {"age": "[30, 50)"}, "bins": bins, "value": 0.2, "standard_error": 0.1}
    )
    assert one.queries.statistics == ("cell(age=[30, 50))",)


def test_standard_errors_of_cells_may_be_nested() -> None:
    made = completed(
        {
            "table": ["sex"],
            "values": {"F": 0.5, "M": 0.5},
            "standard_error": {"M": 0.02, "F": 0.01},
        }
    )
    np.testing.assert_allclose(made.errors_at(made.means), [0.01, 0.02])


def test_a_covariance_stands_for_the_values_as_given() -> None:
    statistics = [
        {"table": ["sex"], "values": {"F": 0.5, "M": 0.5}},
        {"mean": "age", "value": 50},
        {"sd": "age", "value": 20},
    ]
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4)) * np.array([0.01, 0.01, 1, 0.5])[:, None]
    covariance = root @ root.T
    made = completed(*statistics, covariance=covariance.tolist())
    np.testing.assert_allclose(
        made.errors_at(made.means), np.sqrt(np.diag(covariance))[[2, 3, 0, 1]], rtol=2e-3
    )
    noise = Covariance(made.variances, made.common_noise).dense()
    order, slopes = made._bound.order, made._bound.slopes
    expected = covariance[np.ix_(order, order)] * np.outer(slopes, slopes)
    # The mean's error squared, of root mean square sqrt(3) times its variance, is the deviation's.
    expected[1, 1] += 3 * (covariance[2, 2] * slopes[1] / (2 * 20)) ** 2
    np.testing.assert_allclose(noise, expected, rtol=1e-9, atol=1e-18)
    assert (made.variances > 0).all()


def test_a_singular_covariance_is_taken_and_an_exact_value_may_be_in_it() -> None:
    total = [[1e-4, -1e-4, 0], [-1e-4, 1e-4, 0], [0, 0, 0]]
    statistics = [
        {"table": ["sex"], "values": {"F": 0.5, "M": 0.5}},
        {"mean": "age", "value": 50},
    ]
    made = completed(*statistics, covariance=total)
    np.testing.assert_allclose(made.errors_at(made.means), [0, 0.01, 0.01], rtol=2e-6)
    assert made.exact.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([[1, 2], [2, 1]], "positive semidefinite"),
        ([[1, 0.5], [0.4, 1]], "symmetric"),
        ([[-1, 0], [0, 1]], "negative"),
        ([[0, 0.1], [0.1, 1]], "a variance is 0"),
        ([[1]], "2 rows of 2 numbers"),
        ([[1, 0], [0, math.nan]], "finite"),
        ([[1, 0], [0, "1"]], "finite"),
        ("x", "2 rows"),
    ],
)
def test_what_is_no_covariance_is_refused(matrix: Any, said: str) -> None:
    statistics = [{"mean": "age", "value": 50}, {"mean": "income", "value": 5_000}]
    with pytest.raises(FormatError, match=said):
        published_from_dict(file_of(*statistics, covariance=matrix))


# --- schema ------------------------------------------------------------------------------------


def test_what_the_synthetic_table_lacks_widens_what_is_read_off_it() -> None:
    made = completed(
        {"table": ["race"], "values": {"W": 0.6, "new": 0.1}, "standard_error": 0.01},
        {
            "cell": {"age": "[95, 95]"},
            "bins": {"age": [95]},
            "value": 0.1,
            "standard_error": 0,
        },
        schema=None,
    )
    assert made.schema["race"].categories == ('B, "x"', "W", "new")  # type: ignore[union-attr]
    assert made.schema["age"].upper == 95  # type: ignore[union-attr]
    assert made.schema.inferred == {"race", "age"}
    assert "read off the synthetic table: race, age" in made.notes[0]


def test_a_declared_schema_is_not_widened() -> None:
    declared = {"race": {"kind": "categorical", "categories": ["W", "B"]}}
    with pytest.raises(InputError, match="statistic 1: 'race' has no cell new: its cells are 'W'"):
        completed({"cell": {"race": "new"}, "value": 0.1, "standard_error": 0.01}, schema=declared)


def test_numbers_true_and_null_name_cells() -> None:
    table = pa.table({"n": [1, 2, 1, 2], "b": [True, False, None, True]})
    statistics = [
        {"cell": {"n": 2, "b": True}, "value": 0.25, "standard_error": 0.1},
        {"cell": {"n": "2", "b": None}, "value": 0.25, "standard_error": 0.1},
        {"table": ["n"], "values": {"3": 0.1}, "standard_error": 0.1},
    ]
    made = Published("x", statistics).completed(open_table(table))
    assert made.queries.statistics == ("cell(n=2, b=true)", "cell(n=2, b=null)", "cell(n=3)")


def test_an_incomplete_schema_says_so() -> None:
    with pytest.raises(InputError, match="before they are fitted to a synthetic table"):
        _ = Published("x", scalars()).means


# --- words -------------------------------------------------------------------------------------


def test_nothing_is_claimed_about_their_privacy() -> None:
    made = completed(*scalars())
    assert made.privacy["private"] is None
    assert made.privacy["spent"] == 0
    assert "spent no privacy budget" in made.statement
    assert "It says nothing of their privacy" in made.statement
    promised = completed(*scalars(), privacy="ε = 1, by Tumult Analytics")
    assert "Of their privacy it says: ε = 1, by Tumult Analytics." in promised.statement


def test_nulls_are_said() -> None:
    table = pa.table({"age": [20, None, 30]})
    made = Published("x", [{"mean": "age", "value": 25, "standard_error": 1}])
    assert any("a null counts as the middle" in n for n in made.completed(open_table(table)).notes)


# --- files -------------------------------------------------------------------------------------


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    for made in (published_from_dict(file_of(*scalars(), schema=SCHEMA)), completed(*scalars())):
        made.save(path, force=True)
        for loaded in (load_published(path), rt.load_published(path), load_targets(path)):
            assert loaded.to_dict() == made.to_dict()
            again = loaded.completed(open_table(TABLE))  # type: ignore[union-attr]
            np.testing.assert_array_equal(again.means, completed(*scalars()).means)
    with pytest.raises(OutputExistsError):
        made.save(path)


def test_a_complete_file_needs_nothing_else() -> None:
    made = completed(*scalars(), {"table": ["race"], "values": {"W": 0.7}, "standard_error": 0.1})
    again = published_from_dict(made.to_dict()).completed(open_table(TABLE))
    assert again.schema == made.schema
    assert again.to_dict() == made.to_dict()


MEAN = {"mean": "age", "value": 50, "standard_error": 0.1}


@pytest.mark.parametrize(
    ("statistic", "said"),
    [
        (3, "got 3, expected an object"),
        ({}, "expected exactly one of mean"),
        ({**MEAN, "sd": "age"}, "mean and sd"),
        ({**MEAN, "weight": 1}, "'weight' is unknown"),
        ({"mean": "age", "value": 50}, "'standard_error' is missing"),
        ({**MEAN, "value": None}, "got None, expected a finite number"),
        ({**MEAN, "value": True}, "got True"),
        ({**MEAN, "value": "50"}, "got '50'"),
        ({**MEAN, "value": math.nan}, "finite"),
        ({**MEAN, "value": math.inf}, "finite"),
        ({**MEAN, "value": 10**400}, "a very large number"),
        ({**MEAN, "standard_error": -1}, "at least 0"),
        ({**MEAN, "counts": True}, "'counts' is unknown"),
        ({**MEAN, "mean": ["age"]}, "expected text"),
        ({"sd": "age", "value": 0, "standard_error": 0}, "above 0"),
        ({"corr": ["age", "income"], "value": 1.5, "standard_error": 0}, "from -1 to 1"),
        ({"corr": ["age", "age"], "value": 1, "standard_error": 0}, "named twice"),
        ({"corr": ["age"], "value": 1, "standard_error": 0}, "2 column names"),
        ({"share": "age >", "value": 0.1, "standard_error": 0}, "age >"),
        ({"share": "(SELECT 1)", "value": 0.1, "standard_error": 0}, "subquery"),
        ({"share": "age >= 65", "value": 10, "standard_error": 0, "counts": 1}, "true or false"),
        ({"query": "age", "lower": 2, "upper": 1, "value": 1, "standard_error": 0}, "lower"),
        ({"cell": {}, "value": 1, "standard_error": 0}, "cell: got an object of 0"),
        ({"cell": {"a": [1]}, "value": 1, "standard_error": 0}, r"cell: got \[1\]"),
        ({"table": [], "values": {}, "standard_error": 0}, "column names"),
        ({"table": ["sex"], "values": {}, "standard_error": 0}, "got no number"),
        ({"table": ["sex"], "values": {"F": {"M": 1}}, "standard_error": 0}, "an object of 1"),
        (
            {"table": ["sex", "race"], "values": {"F": 1}, "standard_error": 0},
            "one inside the other",
        ),
        ({"table": ["sex"], "values": {"F": 1}, "standard_error": {"M": 1}}, "one for each"),
        (
            {"table": ["sex"], "values": [1], "standard_error": 0, "bins": {"b": [1]}},
            "not a column",
        ),
        ({"table": ["a"], "values": [1], "standard_error": 0, "bins": {"a": [2, 1]}}, "ascending"),
        ({"table": ["a"], "values": [1], "standard_error": 0, "bins": {"a": ["x"]}}, "a date"),
    ],
)
def test_malformed_statistics_are_refused_and_named(statistic: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"statistic 2: .*{said}"):
        published_from_dict(
            file_of({"share": "age > 1", "value": 0, "standard_error": 1}, statistic)
        )


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        ([{"sd": "age", "value": 20, "standard_error": 1}], "without the mean of 'age'"),
        ([{"corr": ["age", "income"], "value": 0, "standard_error": 1}, MEAN], "mean of 'income'"),
        (
            [{"group_mean": "age", "where": "sex = 'F'", "value": 50, "standard_error": 1}],
            "without the share of",
        ),
        ([MEAN, MEAN], r"mean\(age\) is given twice"),
        (
            [{"cell": {"sex": "F"}, "value": 0.4, "standard_error": 0.1}] * 2,
            r"statistic 2: cell\(sex=F\) is given twice",
        ),
        (
            [
                {"table": ["sex", "race"], "values": {"F": {"W": 0.4}}, "standard_error": 0.1},
                {"table": ["race", "sex"], "values": {"W": {"F": 0.4}}, "standard_error": 0.1},
            ],
            "given twice",
        ),
        ([{"share": "age > 60", "value": 20, "standard_error": 0}], "from 0 to 1"),
        ([{"cell": {"sex": "F"}, "value": 40, "standard_error": 0}], "from 0 to 1"),
        (
            [{"cell": {"sex": "F"}, "value": 40, "standard_error": 0, "counts": True}],
            "give rows in the file",
        ),
        ([{"cell": {"age": "x"}, "value": 0.4, "standard_error": 0}], "inner edges of its bins"),
        (
            [{"cell": {"sex": "F"}, "bins": {"sex": [1]}, "value": 0.4, "standard_error": 0}],
            "'sex' is not numeric",
        ),
        (
            [{"table": ["sex"], "values": [0.1, 0.2, 0.7], "standard_error": 0}],
            r"got a list of 3, expected 2 .* or 4 \(then those for other and null\)",
        ),
        ([{"mean": "nobody", "value": 1, "standard_error": 0}], "no column 'nobody'"),
        ([{"share": "age = 'x'", "value": 1, "standard_error": 0}], "age"),
    ],
)
def test_what_does_not_fit_is_refused(statistics: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        completed(*statistics)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "retilt-published/0"}, "expected 'retilt-published/1'"),
        ({"note": 1}, "unknown: 'note'"),
        ({"source": ""}, "source"),
        ({"source": 3}, "source"),
        ({"source": "x" * 20_000}, "1 to 10,000"),
        ({"privacy": 3}, "privacy"),
        ({"rows": 0}, "rows"),
        ({"rows": 2.5}, "rows"),
        ({"rows": True}, "rows"),
        ({"schema": []}, "schema"),
        ({"schema": {"age": {"kind": "number"}}}, "age"),
        ({"statistics": []}, "at least one"),
        ({"statistics": {}}, "at least one"),
        ({"covariance": [[1]]}, "standard errors or one covariance"),
    ],
)
def test_a_malformed_file_is_refused(change: dict[str, Any], said: str) -> None:
    content = {**copy.deepcopy(file_of(MEAN)), **change}
    with pytest.raises(InputError, match=said):
        published_from_dict(content)


@pytest.mark.parametrize("key", ["format", "source", "statistics"])
def test_a_missing_key_is_named(key: str) -> None:
    content = file_of(MEAN)
    del content[key]
    with pytest.raises(FormatError, match=key):
        published_from_dict(content)


HEAD = '{"format": "retilt-published/1", "source": "x", "statistics": '


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "[" * 1_000_000 + "]" * 1_000_000 + "}",
        HEAD + '[{"table": ["a"], "standard_error": 0, "values": ' + '{"x":' * 200_000 + "1}",
        HEAD + '[{"mean": "age", "value": NaN, "standard_error": 0}]}',
        HEAD + '[{"mean": "age", "value": 1e999, "standard_error": 0}]}',
        HEAD + '[{"mean": "age", "value": ' + "9" * 4_000 + ', "standard_error": 0}]}',
        HEAD + '[{"mean": "age", "value": 1, "value": 2, "standard_error": 0}]}',
        HEAD + "[" + "1," * 1_000_000 + "1]}",
        HEAD + '[{"table": ["a"], "standard_error": 0, "values": [' + "0," * 1_000_000 + "0]}]}",
        HEAD
        + '[{"table": ["a", "b"], "standard_error": 0, "values": ['
        + ",".join(["[" + ",".join("0" * 1_000) + "]"] * 1_000)
        + "]}]}",
        HEAD + '[{"share": "' + "(" * 100_000 + '", "value": 1, "standard_error": 0}]}',
        HEAD + '[{"cell": {"' + '": 1, "'.join(map(str, range(50))) + '": 1}, "value": 1}]}',
        "\x00",
        "[]",
    ],
    ids=range(13),
)
def test_hostile_files_are_refused_quickly(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    path.write_text(text, encoding="utf-8")
    start = time.perf_counter()
    for load in (load_published, load_targets):
        with pytest.raises(FormatError) as caught:
            load(path)
        assert len(str(caught.value)) < 1_500
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("name", ["'", '"', '";--', "a'b", "ключ", "\u202e", "null", "(other)"])
def test_strings_with_quotes_are_only_names(name: str) -> None:
    table = pa.table({"c": [name, "b", "b"]})
    made = Published(name, [{"cell": {"c": name}, "value": 0.3, "standard_error": 0.1}])
    made = made.completed(open_table(table))
    assert own_mean_of(made, table) == pytest.approx([1 / 3])
    quoted = name.replace("'", "''")
    share = Published("x", [{"share": f"c = '{quoted}'", "value": 0.3, "standard_error": 0.1}])
    assert own_mean_of(share.completed(open_table(table)), table) == pytest.approx([1 / 3])


def own_mean_of(published: Published, table: pa.Table) -> Any:
    made = problem(published, table)
    return made.means(made.base)


def test_ten_thousand_cells_given_one_by_one() -> None:
    names = [f"c{i}" for i in range(10_000)]
    statistics = [{"cell": {"c": n}, "value": 1e-4, "standard_error": 1e-5} for n in names]
    declared = {"c": {"kind": "categorical", "categories": names}}
    start = time.perf_counter()
    made = Published("x", statistics, declared=declared)
    made = made.completed(open_table(pa.table({"c": names})))
    assert made.queries.size == 10_000
    assert time.perf_counter() - start < 10
