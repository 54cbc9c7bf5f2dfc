"""The job from end to end: plan, measure, align, postprocess, and what each refuses."""

from __future__ import annotations

import inspect
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import retilt as rt
from retilt.exceptions import (
    ColumnTypeError,
    InputError,
    InternalError,
    PrivacyError,
    RowCountError,
    SchemaError,
    WorkloadError,
)
from retilt.measures.moments import Moments
from retilt.pipeline import align, exact_sums
from retilt.testing import insecure_measure

ROWS = 1500
HOURS = "hours, weekly"


def people(seed: int, pull: float, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=rows) * pull
    return pa.table(
        {
            "age": np.clip(np.rint(45 + 10 * (rng.normal(size=rows) + common)), 17, 90).astype(int),
            HOURS: np.clip(40 + 8 * (rng.normal(size=rows) + common), 0, 99),
            "income": np.where(rng.normal(size=rows) + common > 0.7, ">50K", "<=50K"),
            "sex": rng.choice(["F", "M"], rows),
            "city": rng.choice(["Bern", "Oslo", "Ürümqi, west"], rows),
            "key": [f"{seed}-{i}" for i in range(rows)],
        }
    )


PRIVATE, SYNTHETIC = people(1, 0.8), people(2, 0.2)
SCHEMA = {"age": rt.Numeric(17, 90, integer=True), HOURS: rt.Numeric(0, 99)}
WORKLOAD = rt.correlation(["age", HOURS, "income"]) + rt.marginals(["sex", "city"])


def make(workload: Any = WORKLOAD, synthetic: Any = SYNTHETIC, **options: Any) -> rt.Plan:
    options = {"epsilon": 2.0, "rows": ROWS, "schema": SCHEMA, **options}
    return rt.plan(synthetic, workload, **options)


def correlations(table: Any, names: tuple[str, ...] = ("age", HOURS, "income")) -> np.ndarray:
    columns = []
    for name in names:
        column = table[name].to_numpy(zero_copy_only=False)
        columns.append((column == ">50K") if column.dtype == object else column)
    return np.corrcoef(np.array(columns, dtype=np.float64))


# --- plan: every parameter ---------------------------------------------------------------


def test_the_signatures_are_the_designs() -> None:
    def names(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(rt.plan) == [
        *("synthetic", "workload", "epsilon", "delta", "rho", "rows", "unit", "generator"),
        *("schema", "basis", "select", "select_share"),
    ]
    assert names(rt.measure) == ["private", "plan", "ledger", "dataset"]
    for function, positional in ((rt.plan, 2), (rt.fit, 2), (rt.postprocess, 3)):
        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        assert all(k is inspect.Parameter.KEYWORD_ONLY for k in kinds[positional:])


def test_the_default_delta_is_one_over_the_square_of_rows() -> None:
    assert make().budget == rt.ApproxDP(2.0, 1 / ROWS**2)
    assert make(delta=1e-9).budget == rt.ApproxDP(2.0, 1e-9)
    assert make(delta=0).budget == rt.PureDP(2.0)
    assert make(epsilon=None, rho=0.1).budget == rt.ZCDP(0.1)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"epsilon": None}, "epsilon: missing"),
        ({"epsilon": 0}, "epsilon: got 0"),
        ({"epsilon": -1.0}, "epsilon: got -1.0"),
        ({"epsilon": math.nan}, "epsilon: got nan"),
        ({"epsilon": math.inf}, "epsilon: got inf"),
        ({"delta": 1.0}, "delta: got 1.0"),
        ({"delta": -1e-6}, "delta"),
        ({"rho": 0.1}, "give either rho, or epsilon"),
        ({"epsilon": None, "rho": 0.1, "delta": 1e-6}, "give either rho, or epsilon"),
        ({"rows": None}, "rows: missing"),
        ({"rows": 0}, "rows: got 0"),
        ({"rows": 1.5}, r"rows: got 1\.5"),
        ({"rows": True}, "rows: got True"),
        ({"rows": 1}, "delta: its default"),
        ({"unit": "person"}, "unit: got 'person'"),
        ({"generator": rt.ApproxDP(1.0, 1e-6)}, "generator: got an ApproxDP"),
        ({"basis": "raw"}, "basis: got 'raw'"),
        ({"schema": "missing.toml"}, "missing.toml"),
        ({"schema": 3}, "schema: got an int"),
    ],
)
def test_plan_refuses(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make(**options)


@pytest.mark.parametrize("workload", [rt.Workload(), None, ["age"], "age", Moments(("age",))])
def test_a_workload_must_name_a_measure(workload: Any) -> None:
    with pytest.raises(WorkloadError, match="workload: "):
        make(workload)


def test_unknown_columns_are_named_with_those_that_exist() -> None:
    with pytest.raises(WorkloadError, match=r"no column 'agee', 'x'; it has 'age', 'hours, wee"):
        make(rt.correlation(["agee", "age", "x"]))


def test_identifiers_need_a_decision() -> None:
    with pytest.raises(SchemaError, match="'key' looks like an identifier"):
        make(rt.marginal(["key"]))


def test_tables_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="can't be read from an int"):
        make(synthetic=3)
    with pytest.raises(InputError, match="no file"):
        make(synthetic="none.csv")


def test_schemas_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text('[columns.age]\nkind = "numeric"\nlower = 17\nupper = 90\ninteger = true\n')
    workload = rt.moments(["age"])
    columns = {"age": rt.Numeric(17, 90, integer=True)}
    plain = {"age": {"kind": "numeric", "lower": 17, "upper": 90, "integer": True}}
    sources = [path, str(path), columns, rt.Schema(columns), plain, {"columns": plain}]
    plans = {make(workload, schema=source).sha256 for source in sources}
    assert len(plans) == 1
    inferred = make(workload, schema=None).schema
    assert inferred.inferred == {"age"}
    assert make(workload, schema=path).schema.inferred == frozenset()


def test_only_the_workloads_columns_are_in_the_plan() -> None:
    plan = make(rt.marginal(["sex"]) + rt.moments(["age"]))
    assert list(plan.schema.columns) == ["sex", "age"]


def test_under_add_remove_rows_is_a_guess() -> None:
    plan = make(rows=None, unit=rt.AddRemoveOneRow())
    assert plan.rows == ROWS
    assert plan.budget == rt.ApproxDP(2.0, 1 / ROWS**2)
    assert plan.count_scale is not None
    assert make(rows=10, unit="add-remove").rows == 10
    assert make().count_scale is None


def test_importance_moves_the_noise() -> None:
    def errors(weight: float) -> tuple[float, float]:
        plan = make(rt.correlation(["age", HOURS], weight=weight) + rt.marginal(["sex"]))
        table = plan.statistics_table()
        return table[0]["expected_standard_error"], table[1]["expected_standard_error"]

    correlation, share = zip(*(errors(w) for w in (0.1, 1, 10, 100)), strict=True)
    assert list(correlation) == sorted(correlation, reverse=True)
    assert list(share) == sorted(share)
    assert share[3] > 3 * share[0]


def test_more_budget_is_less_noise() -> None:
    errors = [
        make(rt.moments(["age"]), epsilon=e).statistics_table()[0]["expected_standard_error"]
        for e in (0.1, 1.0, 10.0)
    ]
    assert errors[0] > 5 * errors[1] > 25 * errors[2]


def test_order_one_asks_means_only_and_is_quieter() -> None:
    one, two = (make(rt.moments(["age", HOURS], order=o)) for o in (1, 2))
    assert one.queries.statistics == ("mean(age)", f'mean("{HOURS}")')
    assert one.expected[0] < two.expected[0]  # type: ignore[operator]


# --- notes -------------------------------------------------------------------------------


def noted(plan: rt.Plan, start: str) -> str:
    (note,) = [n for n in plan.notes if n.startswith(start)]
    return note


def test_constants_are_left_out_with_a_note() -> None:
    schema = {**SCHEMA, "sex": rt.Categorical(("F",)), "city": rt.Categorical(("Bern",))}
    plan = make(rt.correlation(["age", "sex", HOURS, "city"]), schema=schema)
    assert plan.queries.statistics == (f'corr(age, "{HOURS}")',)
    assert noted(plan, "correlation") == "correlation: sex, city left out, constant by the schema."
    two = make(rt.correlation(["age", HOURS]), schema=schema)
    np.testing.assert_allclose(
        np.array(plan.noise.scales) / plan.noise.steps,
        np.array(two.noise.scales) / two.noise.steps,
        rtol=0.05,
    )
    with pytest.raises(WorkloadError, match="too few columns vary"):
        make(rt.correlation(["sex", "age"]), schema=schema)


def test_two_observed_values_are_no_constant() -> None:
    """Only a schema's word drops a square, never what the synthetic table happens to hold."""
    rows = SYNTHETIC.set_column(0, "age", pa.array([20] * ROWS))
    plan = make(rt.moments(["age", HOURS]), synthetic=rows)
    assert "mean(age)" in plan.queries.statistics
    assert plan.queries.size == 5


def test_duplicates_are_measured_once_with_a_note() -> None:
    twice = rt.moments(["age", HOURS]) + rt.correlation([HOURS, "age"]) + rt.marginals(["sex"])
    plan = make(twice + rt.marginal(["sex"]))
    single = make(rt.moments(["age", HOURS]) + rt.marginal(["sex"]))
    assert plan.queries.size == single.queries.size
    assert noted(plan, "corr(") == (
        'corr("hours, weekly", age) is measured once: an earlier measure asks it already.'
    )
    assert noted(plan, "cell(sex=F)").startswith("cell(sex=F) is measured once")
    # The privacy of what is asked once is paid once.
    assert plan.noise.sensitivity < 1.1 * single.noise.sensitivity
    answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(0))
    values = {r["statistic"]: r["estimate"] for r in answers.statistics_table()}
    assert values[f'corr(age, "{HOURS}")'] == values[f'corr("{HOURS}", age)']


def test_partly_shared_blocks_agree_on_what_they_share() -> None:
    plan = make(rt.correlation(["age", HOURS]) + rt.correlation(["age", "income", HOURS]))
    # Three means, two squares (income is two-valued), three products.
    assert plan.queries.size == 8
    tilt = rt.fit(SYNTHETIC, insecure_measure(PRIVATE, plan, rng=np.random.default_rng(1)))
    assert tilt.exit_code == 0


def test_what_encoding_does_to_the_synthetic_table_is_noted() -> None:
    schema = {
        "age": rt.Numeric(30, 60, integer=True),
        HOURS: rt.Numeric(0, 99),
        "city": rt.Categorical(("Bern", "Oslo")),
    }
    plan = make(rt.moments(["age", HOURS, "city"]) + rt.marginal(["sex"]), schema=schema)
    age = SYNTHETIC["age"].to_numpy()
    outside = int(((age < 30) | (age > 60)).sum())
    assert noted(plan, "age:").startswith(f"age: {outside} synthetic rows lie outside the bounds")
    assert noted(plan, HOURS) == f"{HOURS}: rounded to a grid of 1.5e-05 of its range."
    unknown = SYNTHETIC["city"].to_pylist().count("Ürümqi, west")
    assert noted(plan, "city:").startswith(f"city: {unknown} synthetic rows hold a value outside")
    assert noted(plan, "Bounds").startswith(
        "Bounds or categories read off the synthetic table: sex"
    )
    assert noted(plan, "table").startswith("table of sex: 2 of 4 cells hold no synthetic row")


def test_a_clean_plan_has_no_notes() -> None:
    assert make(rt.moments(["age"])).notes == ()


# --- measure -----------------------------------------------------------------------------


def test_measure_takes_plans_and_their_files(tmp_path: Path) -> None:
    plan = make(rt.moments(["age"]))
    plan.save(tmp_path / "plan.json")
    for source in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        answers = rt.measure(PRIVATE, source)
        assert answers.plan == plan
        assert answers.private is True


def test_measure_has_no_seed() -> None:
    plan = make(rt.moments(["age"]))
    values = {rt.measure(PRIVATE, plan).values for _ in range(4)}
    assert len(values) == 4
    assert not {"seed", "rng", "random_state"} & set(inspect.signature(rt.measure).parameters)


def test_a_missing_private_column_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"the private table has no column 'income'"):
        rt.measure(PRIVATE.drop_columns(["income"]), make())


def test_another_row_count_is_refused_under_replace_one_only() -> None:
    with pytest.raises(RowCountError, match=r"has 1,499 rows, the plan says 1,500"):
        rt.measure(PRIVATE.slice(1), make())
    with pytest.raises(RowCountError, match="has 0 rows"):
        rt.measure(PRIVATE.slice(0, 0), make())
    for rows in (0, 1, 10, ROWS):
        answers = rt.measure(PRIVATE.slice(0, rows), make(unit="add-remove"))
        assert answers.rows >= 1
        assert np.isfinite(answers.means).all()


@pytest.mark.parametrize(
    ("name", "values", "word"),
    [
        ("age", pa.array([[1]] * ROWS), "its type is list, but.*says numeric"),
        ("age", pa.array([datetime(2020, 1, 1)] * ROWS), "timestamp.*says numeric"),
        ("sex", pa.array([1.5] * ROWS), "double.*says text categories"),
        ("sex", pa.array([b"F"] * ROWS), "binary.*says text categories"),
    ],
)
def test_declared_types_that_do_not_fit_are_refused(name: str, values: Any, word: str) -> None:
    for rows in (PRIVATE.num_rows, 0):
        plan = make(rt.moments(["age"]) + rt.marginal(["sex"]), unit="add-remove")
        number = PRIVATE.column_names.index(name)
        table = PRIVATE.set_column(number, name, values).slice(0, rows)
        with pytest.raises(ColumnTypeError, match=word):
            rt.measure(table, plan)


def test_text_is_cast_cell_by_cell_to_the_plans_types() -> None:
    plan = make(rt.moments(["age", HOURS]) + rt.marginal(["sex"]))
    texts = PRIVATE.to_pandas().astype(object)
    texts["age"] = texts["age"].map(str)
    texts[HOURS] = texts[HOURS].map(repr)
    assert exact_sums(texts, plan) == exact_sums(PRIVATE, plan)
    texts.loc[0, "age"] = "what?"
    assert exact_sums(texts, plan) != exact_sums(PRIVATE, plan)
    assert rt.measure(texts, plan).private


def test_every_kind_of_table_has_the_same_sums(tmp_path: Path) -> None:
    plan = make()
    expected = exact_sums(PRIVATE, plan)
    pc.write_csv(PRIVATE, tmp_path / "p.csv")
    pq.write_table(PRIVATE, tmp_path / "p.parquet")
    import polars as pl

    order = np.random.default_rng(0).permutation(ROWS)
    for source in (
        PRIVATE.to_pandas(),
        pl.from_arrow(PRIVATE),
        PRIVATE.take(pa.array(order)),
        tmp_path / "p.csv",
        str(tmp_path / "p.parquet"),
    ):
        assert exact_sums(source, plan) == expected


class Bomb:
    """A cell whose every reading fails with private text."""

    def __str__(self) -> str:
        raise RuntimeError("secret 4711")


def test_foreign_errors_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make(rt.moments(["age"]))

    def fail(*_: object) -> list[int]:
        raise ValueError("secret 4711")

    monkeypatch.setattr("retilt.pipeline.sums_of", fail)
    with pytest.raises(InternalError, match="ValueError") as caught:
        rt.measure(PRIVATE, plan)
    shown = "".join(map(str, [caught.value, caught.value.__cause__, caught.value.__context__]))
    assert "4711" not in shown


def test_cells_that_refuse_to_be_text_are_nulls() -> None:
    frame = PRIVATE.to_pandas().astype({"sex": object})
    frame["sex"] = [Bomb(), *frame["sex"][1:]]
    plan = make(rt.marginal(["sex"]))
    table = frame.copy()
    table["sex"] = [None, *frame["sex"][1:]]
    assert exact_sums(frame, plan) == exact_sums(table, plan)


# --- the whole job -----------------------------------------------------------------------

BUDGETS = {
    "approx": {"epsilon": 4.0},
    "pure": {"epsilon": 8.0, "delta": 0},
    "rho": {"epsilon": None, "rho": 0.5},
    "add-remove": {"epsilon": 4.0, "unit": "add-remove"},
    "paper": {"epsilon": 8.0, "basis": "paper"},
}


@pytest.mark.parametrize("name", BUDGETS)
def test_correlations_move_to_the_real_ones(name: str) -> None:
    plan = make(**BUDGETS[name])
    answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(4))
    tilt = rt.fit(SYNTHETIC, answers)
    assert tilt.status is rt.Status.CONVERGED
    assert tilt.exit_code == 0
    assert tilt.misfit_after < 2 < tilt.misfit_before
    real, before = correlations(PRIVATE), correlations(SYNTHETIC)
    after = correlations(tilt.sample(seed=0))
    assert np.abs(after - real).sum() < 0.4 * np.abs(before - real).sum()
    for row in tilt.statistics_table():
        assert abs(row["after"] - row["target"]) <= 4 * row["standard_error"]


def test_align_gives_the_steps_results(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    rng = np.random.default_rng(9)
    monkeypatch.setattr(
        "retilt.pipeline.measure", lambda p, made, **_: insecure_measure(p, made, rng=rng)
    )
    tilt = align(
        PRIVATE,
        SYNTHETIC,
        WORKLOAD,
        epsilon=2.0,
        schema=SCHEMA,
        on_plan=seen.append,
        on_answers=seen.append,
        on_step=lambda point: seen.append("step"),
    )
    plan = make()
    answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(9))
    assert seen[:2] == [plan, answers]
    assert set(seen[2:]) == {"step"}
    np.testing.assert_array_equal(tilt.weights, rt.fit(SYNTHETIC, answers).weights)


def test_align_takes_a_function_that_makes_the_workload() -> None:
    def choose(table: Any) -> rt.Workload:
        return rt.correlation(rt.top_correlated(table, "income", top=2))

    tilt = align(PRIVATE, SYNTHETIC, choose, epsilon=2.0, schema=SCHEMA)
    assert tilt.answers.plan.measures[0].columns[0] == "income"


def test_postprocess_equals_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    monkeypatch.setattr(
        "retilt.pipeline.measure", lambda p, made, **_: insecure_measure(p, made, rng=rng)
    )
    weights = np.linspace(0.5, 1.5, ROWS)
    generator = rt.Generator(rt.ApproxDP(1.0, 1e-6), rt.ReplaceOneRow())
    seen: list[rt.Answers] = []
    options: dict[str, Any] = {"delta": 1e-8, "generator": generator, "basis": "paper"}
    result = rt.postprocess(
        PRIVATE,
        SYNTHETIC,
        WORKLOAD,
        epsilon=2.0,
        rows=ROWS,
        unit="replace-one",
        schema=SCHEMA,
        base_weights=weights,
        min_ess=300,
        size=700,
        sampling="multinomial",
        shuffle=True,
        seed=3,
        on_answers=seen.append,
        **options,
    )
    plan = make(**options)
    answers = insecure_measure(PRIVATE, plan, rng=np.random.default_rng(5))
    tilt = rt.fit(SYNTHETIC, answers, base_weights=weights, min_ess=300)
    assert result.plan == plan
    assert result.answers == answers
    assert seen == [answers]
    np.testing.assert_array_equal(result.tilt.weights, tilt.weights)
    assert result.post == tilt.sample(700, method="multinomial", seed=3, shuffle=True)


def test_postprocess_takes_the_public_row_count_from_the_private_table() -> None:
    result = rt.postprocess(PRIVATE.slice(3), SYNTHETIC, WORKLOAD, epsilon=2.0, seed=0)
    assert result.plan.rows == ROWS - 3
    assert result.post.num_rows == ROWS
    private = rt.postprocess(
        PRIVATE.slice(3), SYNTHETIC, WORKLOAD, epsilon=2.0, unit="add-remove", seed=0
    )
    assert private.plan.rows == ROWS  # the synthetic table's, never the private one's
    with pytest.raises(RowCountError):
        rt.postprocess(PRIVATE, SYNTHETIC, WORKLOAD, epsilon=2.0, rows=7)


def test_the_inputs_are_not_changed() -> None:
    private, synthetic = PRIVATE.to_pandas(), SYNTHETIC.to_pandas()
    copies = private.copy(deep=True), synthetic.copy(deep=True)
    weights = np.ones(ROWS)
    rt.postprocess(private, synthetic, WORKLOAD, epsilon=2.0, seed=0, base_weights=weights)
    pd.testing.assert_frame_equal(private, copies[0])
    pd.testing.assert_frame_equal(synthetic, copies[1])
    assert (weights == 1).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"min_ess": 0}, "min_ess: got 0"),
        ({"min_ess": ROWS + 1}, "min_ess: got"),
        ({"base_weights": "nobody"}, "no column 'nobody'"),
        ({"base_weights": [1.0]}, "base weights: got 1, expected one for each of 1,500"),
        ({"base_weights": np.zeros(ROWS)}, "all are zero"),
        ({"base_weights": np.full(ROWS, -1.0)}, "negative"),
        ({"base_weights": "sex"}, "expected a number for each row"),
        ({"sampling": "random"}, "sampling method: got 'random'"),
        ({"sampling": ""}, "sampling method: got ''"),
        ({"method": "random"}, "method: got 'random', expected 'default', 'paper'"),
        ({"method": "paper", "min_ess": 10}, "the paper's method has no floor"),
        ({"denoise": "ip"}, "denoise: got 'ip'"),
        ({"size": -1}, "rows: got -1"),
        ({"size": 1.5}, r"rows: got 1\.5"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": "x"}, "seed: got 'x'"),
    ],
)
def test_what_later_steps_would_refuse_is_refused_before_measuring(
    options: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        pytest.fail("the private table was measured")

    monkeypatch.setattr("retilt.pipeline.measure", never)
    with pytest.raises(InputError, match=word):
        rt.postprocess(PRIVATE, SYNTHETIC, WORKLOAD, epsilon=2.0, schema=SCHEMA, **options)


def test_empty_tables_under_both_units() -> None:
    none = PRIVATE.slice(0, 0)
    with pytest.raises(InputError, match="the private table has no rows"):
        rt.postprocess(none, SYNTHETIC, WORKLOAD, epsilon=2.0)
    result = rt.postprocess(none, SYNTHETIC, WORKLOAD, epsilon=2.0, unit="add-remove", seed=0)
    assert result.post.num_rows == ROWS
    assert np.isfinite(result.tilt.weights).all()
    with pytest.raises(InputError):
        rt.postprocess(PRIVATE, SYNTHETIC.slice(0, 0), WORKLOAD, epsilon=2.0)


def test_answers_are_kept_where_the_fit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was paid for is handed out before anything else can go wrong."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("retilt.pipeline.fit", broken)
    seen: list[rt.Answers] = []
    with pytest.raises(RuntimeError, match="out of luck"):
        rt.postprocess(PRIVATE, SYNTHETIC, WORKLOAD, epsilon=2.0, on_answers=seen.append)
    assert len(seen) == 1


def test_mismatched_guarantees_are_refused_before_measuring() -> None:
    generator = rt.Generator(rt.ZCDP(0.1), rt.ReplaceOneRow())
    with pytest.raises(PrivacyError):
        rt.postprocess(
            PRIVATE, SYNTHETIC, WORKLOAD, epsilon=2.0, unit="add-remove", generator=generator
        )


# --- the paper's choice of columns -------------------------------------------------------


def test_top_correlated_are_the_strongest() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=500)
    table = pa.table(
        {
            "weak": target + 5 * rng.normal(size=500),
            "id": [f"i{i}" for i in range(500)],
            "strong": -target + 0.1 * rng.normal(size=500),
            "flat": np.zeros(500),
            "target": target,
            "middle": np.where(target + rng.normal(size=500) > 0, "yes", "no"),
        }
    )
    assert rt.top_correlated(table, "target") == ["target", "strong", "middle", "weak", "flat"]
    assert rt.top_correlated(table, "target", top=3) == ["target", "strong", "middle"]
    assert rt.top_correlated(table, "target", top=99)[:2] == ["target", "strong"]
    # A schema can turn an order round, or narrow a column to nothing.
    schema = {"strong": rt.Numeric(50, 60)}
    assert rt.top_correlated(table, "target", top=2, schema=schema) == ["target", "middle"]


@pytest.mark.parametrize("top", [1, 0, -1, 2.0, "5", True, None])
def test_top_is_at_least_two(top: Any) -> None:
    with pytest.raises(InputError, match="top: got"):
        rt.top_correlated(SYNTHETIC, "age", top=top)


def test_a_target_that_cannot_be_correlated_is_refused() -> None:
    with pytest.raises(WorkloadError, match="no column 'pay'"):
        rt.top_correlated(SYNTHETIC, "pay")
    with pytest.raises(SchemaError, match="'key' looks like an identifier"):
        rt.top_correlated(SYNTHETIC, "key")
