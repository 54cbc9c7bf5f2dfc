"""Moments within groups: names, exact sums, statistics, error bars, what drowns, what lacks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from retilt.exceptions import FormatError, WorkloadError
from retilt.measures import grouped
from retilt.measures.base import Grouped, Relation, Terms
from retilt.measures.grouped import GroupedBlock
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Means, Moments, MomentsBlock
from retilt.measures.queries import QuerySet
from retilt.measures.rates import Share
from retilt.schema.columns import Boolean, Categorical, Column, Numeric, Schema

REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
ROWS = 6000
COLUMNS: dict[str, Column] = {
    "income": Numeric(0, 100),
    "age": Numeric(17, 90, integer=True),
    "member": Boolean(),
    "sex": Categorical(("F", "M")),
    "region": Categorical(("N", "S"), nullable=True),
}
SCHEMA = Schema(COLUMNS)


def people() -> pa.Table:
    rng = np.random.default_rng(0)
    age = rng.integers(17, 91, ROWS)
    sex = np.where(rng.random(ROWS) < 0.4, "F", "M")
    income = np.clip(rng.normal(20 + 0.5 * age + 5 * (sex == "M"), 12), 0, 100)
    region = np.where(rng.random(ROWS) < 0.6, "N", "S").astype(object)
    region[rng.random(ROWS) < 0.1] = None
    columns = {"income": income, "age": age, "member": rng.random(ROWS) < 0.3, "sex": sex}
    return pa.table({**columns, "region": pa.array(region, pa.string())})


TABLE = people()
DATA = {n: TABLE[n].to_numpy(zero_copy_only=False) for n in TABLE.column_names}

MEASURES: dict[str, Means | Moments] = {
    "means by": Means(("income", "member"), by=("sex",)),
    "means by two": Means(("income",), by=("sex", "region")),
    "means where": Means(("income", "age"), where="age >= 65"),
    "means by where": Means(("income",), by=("sex",), where="age >= 65 AND member"),
    "means by bins": Means(("income",), by=("age",), edges={"age": (30.0, 65.0)}),
    "moments by": Moments(("income", "member", "age"), by=("sex",)),
    "moments where": Moments(("income", "age"), where="region = 'N'"),
    "means in moments": Moments(("income", "age"), order=1, by=("region",)),
    "correlation by": Moments(("income", "age", "member"), statistics="correlation", by=("sex",)),
    "regression by": Moments(("income", "age", "member"), statistics="regression", by=("sex",)),
    "regression by where": Moments(
        ("income", "age"), statistics="regression", by=("region",), where="sex = 'M'"
    ),
}
SETTINGS = list(itertools.product((1, 2), Relation))


def bind(measure: Means | Moments, **options: Any) -> GroupedBlock:
    block = measure.bind(Terms(SCHEMA, **options))
    assert isinstance(block, GroupedBlock)
    return block


def encoded(block: GroupedBlock, table: pa.Table = TABLE) -> list[NDArray[np.int32]]:
    return [f.encode(table.__getitem__, table.num_rows) for f in block.features]


def answers_of(block: GroupedBlock, table: pa.Table = TABLE) -> NDArray[np.float64]:
    sums, rows = block.sums(encoded(block, table)), table.num_rows
    return np.array([s / u / rows for s, u in zip(sums, block.units, strict=True)])


def told(block: GroupedBlock, table: pa.Table = TABLE) -> dict[str, float]:
    values = block.evaluate(answers_of(block, table)).tolist()
    return dict(zip(block.statistics, values, strict=True))


# --- statistics --------------------------------------------------------------------------


def test_means_of_groups() -> None:
    found = told(bind(MEASURES["means by"]))
    expected = {
        f"mean({name} | sex={sex})": DATA[name][DATA["sex"] == sex].mean()
        for sex in "FM"
        for name in ("income", "member")
    }
    assert found == pytest.approx(expected, rel=1e-4)
    assert list(found) == list(expected)


def test_groups_are_what_the_schema_says_there_is() -> None:
    """No statistic of ``other``; of ``null`` only where the schema has nulls."""
    found = told(bind(MEASURES["means by two"]))
    regions = {"N": DATA["region"] == "N", "S": DATA["region"] == "S"}
    regions["null"] = ~regions["N"] & ~regions["S"]
    expected = {
        f"mean(income | sex={s}, region={r})": DATA["income"][(DATA["sex"] == s) & inside].mean()
        for s in "FM"
        for r, inside in regions.items()
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_condition_and_both() -> None:
    old = DATA["age"] >= 65
    found = told(bind(MEASURES["means where"]))
    expected = {f"mean({n} | age >= 65)": DATA[n][old].mean() for n in ("income", "age")}
    assert found == pytest.approx(expected, rel=1e-4)
    found = told(bind(MEASURES["means by where"]))
    inside = old & DATA["member"]
    expected = {
        f"mean(income | sex={s}, age >= 65 AND member)": DATA["income"][
            inside & (DATA["sex"] == s)
        ].mean()
        for s in "FM"
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_bins_make_groups() -> None:
    found = told(bind(MEASURES["means by bins"]))
    ends = {"[17, 30)": (17, 30), "[30, 65)": (30, 65), "[65, 90]": (65, 91)}
    expected = {
        f"mean(income | age={text})": DATA["income"][
            (DATA["age"] >= low) & (DATA["age"] < high)
        ].mean()
        for text, (low, high) in ends.items()
    }
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("norm", "relation"), SETTINGS)
def test_deviations_correlations_and_regressions(norm: int, relation: Relation) -> None:
    options = {"norm": norm, "relation": relation}
    found = told(bind(MEASURES["moments by"], **options))
    correlations = told(bind(MEASURES["correlation by"], **options))
    lines = told(bind(MEASURES["regression by"], **options))
    for sex in "FM":
        inside = DATA["sex"] == sex
        income, age, member = (DATA[n][inside].astype(float) for n in ("income", "age", "member"))
        assert found[f"sd(income | sex={sex})"] == pytest.approx(income.std(), rel=1e-4)
        assert found[f"sd(member | sex={sex})"] == pytest.approx(member.std(), rel=1e-4)
        expected = pytest.approx(np.corrcoef(income, age)[0, 1], rel=1e-4)
        assert found[f"corr(income, age | sex={sex})"] == expected
        assert correlations[f"corr(income, age | sex={sex})"] == expected
        matrix = np.stack([age, member, np.ones(len(age))], axis=1)
        line = np.linalg.lstsq(matrix, income, rcond=None)[0]
        formula = f"income ~ age + member | sex={sex}"
        names = [f"coef({n}; {formula})" for n in ("age", "member", "1")]
        assert [lines[n] for n in names] == pytest.approx(line, rel=1e-3)


def test_names_are_quoted_and_told_apart() -> None:
    columns = {"a, b": Numeric(0, 1), "g|": Categorical(("x, y", "z")), "n": Numeric(0, 1)}
    block = Means(("a, b",), by=("g|",)).bind(Terms(Schema(columns)))
    assert block.statistics == ('mean("a, b" | g|="x, y")', 'mean("a, b" | g|=z)')
    edges = [(0.5,), (0.5000000000001,)]
    keys = [
        Means(("a, b",), by=("n",), edges={"n": e}).bind(Terms(Schema(columns))).statistic_keys
        for e in edges
    ]
    assert not set(keys[0]) & set(keys[1])


def test_without_groups_means_are_those_of_moments() -> None:
    block = Means(("income", "age")).bind(Terms(SCHEMA, basis="paper"))
    assert isinstance(block, MomentsBlock)
    assert block.statistics == ("mean(income)", "mean(age)")
    measure = Means(("income",))
    assert measure.tuned(Terms(SCHEMA), np.zeros(1)) is measure


# --- queries -----------------------------------------------------------------------------


def by_hand(block: GroupedBlock) -> list[int]:
    """The sums, row by row in Python integers, in the documented order."""
    arrays = encoded(block)
    d = len(block.variables)
    where = arrays[-d - 1] == 1 if block.condition else np.ones(ROWS, dtype=bool)
    codes = np.zeros(ROWS, dtype=int)
    if block.partition:
        codes = block.partition.codes(arrays[: len(block.partition.variables)])
    width = [v.column.levels for v in block.variables]
    sums = [int((where & (codes == g)).sum()) for g in range(block.cells)]
    for g in block.groups:
        rows = [tuple(map(int, r)) for r in np.stack(arrays[-d:], 1)[where & (codes == g)]]
        sums += [sum(r[i] for r in rows) for i in range(d)]
        sums += [sum(width[i] ** 2 - r[i] ** 2 for r in rows) for i in block.derived.squares]
        pairs = itertools.combinations(range(d), 2) if block.order == 2 else ()
        sums += [sum(r[i] * r[j] for r in rows) for i, j in pairs]
    return sums


@pytest.mark.parametrize("name", MEASURES)
def test_sums_are_exact_in_any_order_and_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = bind(MEASURES[name])
    expected = by_hand(block)
    arrays = encoded(block)
    assert block.sums(arrays) == expected
    assert all(type(s) is int for s in block.sums(arrays))
    monkeypatch.setattr(grouped, "_CHUNK", 97)
    order = np.random.default_rng(1).permutation(ROWS)
    assert block.sums([a[order] for a in arrays]) == expected
    assert block.sums([a[:0] for a in arrays]) == [0] * len(expected)


def test_sums_of_a_full_chunk_of_the_largest_products_are_exact() -> None:
    block = bind(Moments(("income", "age"), by=("sex",)))
    rows = grouped._CHUNK + 3
    top = 32768
    arrays = [np.zeros(rows, np.int32), np.full(rows, top - 1, np.int32)]
    sums = block.sums([*arrays, np.full(rows, 73, np.int32)])
    own = sums[block.cells :]
    product = (top - 1) * 73 * rows
    assert own[:5] == [
        (top - 1) * rows,
        73 * rows,
        (top**2 - (top - 1) ** 2) * rows,
        0,
        product,
    ]


@pytest.mark.parametrize("name", MEASURES)
def test_the_design_has_the_queries_of_the_sums(name: str) -> None:
    block = bind(MEASURES[name])
    arrays = encoded(block)
    for keep in (np.arange(len(block.keys)), np.arange(1, len(block.keys), 2)):
        design = block.design(arrays, keep.astype(np.intp))
        assert isinstance(design, Grouped)
        assert 0 <= design.codes.min() <= design.codes.max() < design.size
        assert design.cell.max() < design.size
        columns = np.concatenate([design.values, np.ones((ROWS, 1))], axis=1)
        values = design.offset + design.factor * columns[:, design.left] * columns[:, design.right]
        means = (values * (design.codes[:, None] == design.cell)).mean(axis=0)
        np.testing.assert_allclose(means, answers_of(block)[keep], atol=1e-12)
    lengths = {len(block.keys), len(set(block.keys)), len(block.units), len(block.scales)}
    assert lengths == {len(answers_of(block))}


def test_counts_are_shared_with_a_table_of_the_same_cells() -> None:
    means, table = bind(MEASURES["means by two"]), Marginal(("region", "sex"), edges={})
    for blocks in ((means, table.bind(Terms(SCHEMA))), (table.bind(Terms(SCHEMA)), means)):
        queries = QuerySet(blocks)
        assert queries.size == len(means.keys)
        every = {f: f.encode(TABLE.__getitem__, ROWS) for f in queries.features}
        assert (
            sum(len(d.cell) if isinstance(d, Grouped) else d.size for d in queries.designs(every))
            == queries.size
        )
        values = dict(
            zip(queries.statistics, queries.evaluate(queries.means(every, ROWS)), strict=True)
        )
        assert values["mean(income | sex=F, region=N)"] == pytest.approx(
            DATA["income"][(DATA["sex"] == "F") & (DATA["region"] == "N")].mean(), rel=1e-4
        )


def test_a_condition_shares_no_cells_with_rates() -> None:
    rates = Share("age >= 65", by=("sex",)).bind(Terms(SCHEMA))
    means = Means(("income",), by=("sex",), where="age >= 65").bind(Terms(SCHEMA))
    assert QuerySet((rates, means)).size == len(rates.keys) + len(means.keys)


def test_the_same_moments_asked_twice_are_asked_once() -> None:
    one = bind(Moments(("income", "age"), by=("sex",)))
    other = bind(Moments(("age", "income"), statistics="correlation", by=("sex",)))
    assert QuerySet((one, other)).size == len(one.keys)


# --- error bars --------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", MEASURES)
def test_errors_are_the_delta_method(name: str, counted: bool) -> None:
    block = bind(MEASURES[name], counted=counted)
    answers, step = answers_of(block), 1e-7
    slopes = [
        (block.evaluate(answers + s) - block.evaluate(answers - s)) / (2 * step)
        for s in step * np.eye(len(answers))
    ]
    rng = np.random.default_rng(1)
    variances = rng.uniform(0.5, 2, len(answers)) * 1e-12
    # Counts that are projected on a total have noise that is alike.
    variances[: block.cells] = variances[0]
    for common in (0, 2):
        factor = rng.normal(size=(len(answers), common)) * 1e-6
        covariance = np.diag(variances) + factor @ factor.T
        expected = np.sqrt(np.einsum("ks,kl,ls->s", slopes, covariance, slopes))
        found = block.standard_errors(answers, variances, factor)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.noise
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("name", MEASURES)
def test_errors_are_the_spread_of_noisy_estimates_or_flagged(name: str, relation: Relation) -> None:
    """2,000 draws at growing noise: within 10 % as long as the flag is down."""
    measure = MEASURES[name]
    plain = bind(measure, relation=relation)
    answers = answers_of(plain)
    block = bind(measure.tuned(Terms(SCHEMA, relation=relation), answers), relation=relation)
    loud = np.array([float(s) for s in block.scales])
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(2000, len(answers)))
    shared = 0.5 * rng.normal(size=2000) if relation is ADD_REMOVE else np.zeros(2000)
    checked, flagged = [], []
    for deviation in (1e-4, 1e-3, 4e-3, 1.0):
        variances, factor = (deviation / loud) ** 2, 0.5 * deviation * answers[:, None]
        if relation is REPLACE:
            factor = factor[:, :0]
        moved = deviation * (drawn / loud + shared[:, None] * answers)
        found = np.array([block.evaluate(answers + m) for m in moved]).std(axis=0)
        expected = block.standard_errors(answers, variances, factor)
        doubtful = block.dominated(answers, variances, factor)
        np.testing.assert_allclose(found[~doubtful], expected[~doubtful], rtol=0.1)
        checked.append(int((~doubtful).sum()))
        flagged.append(int(doubtful.sum()))
    assert checked[0] == len(block.statistics)
    assert flagged[-1] == len(block.statistics)


def test_the_flag_rises_at_ten_errors_of_the_count() -> None:
    block = bind(MEASURES["means where"])
    answers = answers_of(block)
    none = np.zeros((3, 0))
    for factor, expected in ((0.0999, False), (0.1001, True)):
        variances = np.array([(factor * answers[0]) ** 2, 1e6, 1e6])
        assert block.dominated(answers, variances, none).tolist() == [expected] * 2


def test_counts_are_projected_on_a_known_total_only() -> None:
    measure = MEASURES["means by"]
    for counted, where in ((False, None), (True, None), (False, "age >= 0")):
        block = bind(replace(measure, where=where), counted=counted)
        answers = answers_of(block)
        moved = answers.copy()
        moved[: block.cells] += 0.01  # the same for all cells: the projection removes it
        same = np.allclose(block.evaluate(moved), block.evaluate(answers))
        assert same == (not counted and where is None)


def test_undefined_statistics_are_nan_without_a_warning() -> None:
    for measure in MEASURES.values():
        for counted in (False, True):
            block = bind(measure, counted=counted)
            count = len(block.keys)
            noise = np.random.default_rng(4).normal(size=count)
            for answers in (np.zeros(count), np.ones(count), -np.ones(count), noise, 1e-3 * noise):
                none = np.zeros((count, 0))
                with np.errstate(all="raise"):
                    values = block.evaluate(answers)
                    errors = block.standard_errors(answers, np.full(count, 1e-6), none)
                    flags = block.dominated(answers, np.full(count, 1e-6), none)
                    block.shortfalls(encoded(block), answers, np.full(count, 1e-3))
                assert np.array_equal(np.isnan(values), np.isnan(errors))
                assert flags[np.isnan(values)].all()


def test_means_are_clipped_to_their_range() -> None:
    block = bind(Means(("income", "age"), where="age >= 65"))
    found = block.evaluate(np.array([0.1, 0.3, -0.2]))
    assert found.tolist() == [100, 17]


# --- loudness ----------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "relation"), SETTINGS)
@pytest.mark.parametrize("name", MEASURES)
def test_tuning_never_raises_the_predicted_loss(name: str, relation: Relation, norm: int) -> None:
    measure, terms = MEASURES[name], Terms(SCHEMA, norm=norm, relation=relation)  # type: ignore[arg-type]
    plain = measure.bind(terms)
    assert isinstance(plain, GroupedBlock)
    answers = answers_of(plain)
    tuned = measure.tuned(terms, answers).bind(terms)
    assert tuned.predicted_loss(answers) <= plain.predicted_loss(answers)
    assert measure.tuned(replace(terms, basis="paper"), answers) == measure.tuned(terms, answers)


@pytest.mark.noise
def test_the_predicted_loss_is_the_squared_error_of_simulated_releases() -> None:
    block = bind(MEASURES["moments where"])
    answers = answers_of(block)
    loud = np.array([float(s) for s in block.scales])
    deviation = 1e-3
    drawn = np.random.default_rng(6).normal(size=(4000, len(answers))) * deviation / loud
    found = np.array([block.evaluate(answers + d) for d in drawn]) - block.evaluate(answers)
    share = answers[0]
    squared = ((found / block.derived.steps) ** 2).mean(axis=0).sum() * share**2 / deviation**2
    loss = block.predicted_loss(answers)
    assert float(block.sensitivity()) * squared == pytest.approx(loss, rel=0.05)


def test_the_paper_basis_changes_nothing_within_groups() -> None:
    for measure in MEASURES.values():
        assert bind(measure, basis="paper") == bind(measure)


# --- what the synthetic rows lack ----------------------------------------------------------


def test_reachable_answers_are_no_shortfall() -> None:
    for measure in MEASURES.values():
        block = bind(measure)
        answers = answers_of(block)
        assert block.shortfalls(encoded(block), answers, np.zeros(len(answers))) == []


def test_a_group_without_rows_is_named() -> None:
    block = bind(MEASURES["means by"])
    men = TABLE.filter(pa.compute.equal(TABLE["sex"], "M"))
    answers, errors = answers_of(block), np.full(len(block.keys), 0.01)
    (said,) = block.shortfalls(encoded(block, men), answers, errors)
    assert said.startswith("sex=F: measured 0.")
    assert "no synthetic row lies in it" in said
    assert block.shortfalls(encoded(block, men), answers, errors * 20) == []


def test_a_mean_beyond_a_groups_rows_is_named() -> None:
    block = bind(MEASURES["means where"])
    poor = TABLE.filter(pa.compute.less(TABLE["income"], 40.0))
    errors = np.full(len(block.keys), 1e-3)
    (said,) = block.shortfalls(encoded(block, poor), answers_of(block), errors)
    assert said.startswith("mean(income | age >= 65): measured ")
    assert "all synthetic rows of this group lie between" in said
    assert block.shortfalls(encoded(block, poor), answers_of(block), errors * 200) == []


# --- measures and files --------------------------------------------------------------------


def test_columns_are_all_that_is_read() -> None:
    measure = Means(("income",), by=("sex",), where="age>=65 and sex='F'")
    assert measure.columns == ("income", "sex", "age")
    assert measure.where == "age >= 65 AND sex = 'F'"
    assert MEASURES["regression by where"].columns == ("income", "age", "region", "sex")


def test_edges_are_fixed_like_those_of_a_table() -> None:
    values = {"age": DATA["age"].astype(float)}
    table = Marginal(("age", "sex"), bins={"age": 4}).with_edges(SCHEMA, values)
    fixed = Means(("income",), by=("age", "sex"), bins={"age": 4}).with_edges(SCHEMA, values)
    assert fixed.edges == table.edges
    assert not fixed.bins
    assert bind(fixed).cells == 5 * 4
    with pytest.raises(WorkloadError, match="no bin edges were fixed for 'age'"):
        Means(("income",), by=("age",)).bind(Terms(SCHEMA))


@pytest.mark.parametrize("name", MEASURES)
def test_files_say_the_measure(name: str) -> None:
    measure = replace(MEASURES[name], edges=MEASURES[name].edges or {}, weight=2.5)
    block = bind(measure)
    tuned = measure.tuned(Terms(SCHEMA), answers_of(block))
    for one in (measure, tuned):
        entry = {"kind": one.kind, "weight": one.weight, "scale": "1", **one.to_dict()}
        assert type(one).from_dict(entry) == one
        assert {"by", "edges", "where", "count_loudness"} <= set(entry)


@pytest.mark.parametrize(
    "change",
    [
        {"by": "sex"},
        {"by": [], "where": None},
        {"by": ["sex", "sex"]},
        {"by": ["income"]},
        {"where": 1},
        {"where": "sum(age) > 1"},
        {"where": "age >="},
        {"edges": [1]},
        {"edges": {"sex": ["a"]}},
        {"edges": {"sex": [2.0, 1.0]}},
        {"count_loudness": 1},
        {"count_loudness": "-1"},
        {"count_loudness": "1/2000"},
        {"count_loudness": "99"},
        {"order": 1},
        {"columns": []},
    ],
    ids=str,
)
def test_malformed_entries_are_refused(change: dict[str, Any]) -> None:
    entry = {"kind": "means", "weight": 1.0, **MEASURES["means by where"].to_dict(), **change}
    with pytest.raises(FormatError, match="means"):
        Means.from_dict(entry)
    for key in ("by", "edges", "where", "count_loudness"):
        kept = {k: v for k, v in MEASURES["means by where"].to_dict().items() if k != key}
        with pytest.raises(FormatError, match="missing or unknown"):
            Means.from_dict({"kind": "means", "weight": 1.0, **kept})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Means(("income",), by="sex"), "expected distinct column names"),  # type: ignore[arg-type]
        (lambda: Means(("income",), by=("sex", "sex")), "expected distinct column names"),
        (lambda: Means(("income", "sex"), by=("sex",)), "'sex' stands among the columns"),
        (lambda: Means(("income",), by=("sex",), bins={"age": 3}), "not a column"),
        (lambda: Means(("income",), where="random() < 0.5"), "not admitted"),
        (lambda: Means(("income",), count_loudness=Fraction(17)), "count_loudness: got 17"),
        (lambda: bind(Means(("income",), where="age >= 'old'")), "must be of one kind"),
        (lambda: bind(Means(("income",), where="wage > 1")), "wage"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        make()


def test_too_many_queries_are_refused() -> None:
    columns = {f"c{i}": Numeric(0, 1) for i in range(40)}
    schema = Schema({**columns, "g": Categorical(tuple(f"g{i}" for i in range(200)))})
    with pytest.raises(WorkloadError, match=r"queries in 202 groups, allowed are 100,000"):
        Moments(tuple(columns), by=("g",)).bind(Terms(schema))
