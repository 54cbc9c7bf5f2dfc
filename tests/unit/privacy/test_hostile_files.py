"""Plan and answers files from an adversary: refused with a clear error, quickly, or harmless."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from editing import edited
from hypothesis import given, settings
from hypothesis import strategies as st

import retilt.pipeline as rt
from retilt import _input
from retilt._output import json_text
from retilt.exceptions import FormatError, InputError, PrivacyError, RetiltError
from retilt.measures import workload as rt_workload
from retilt.measures.workload import Workload, correlation, marginal
from retilt.privacy import plan as plan_module
from retilt.privacy.answers import answers_from_dict, load_answers, make_answers
from retilt.privacy.budget import ApproxDP, Generator
from retilt.privacy.plan import load_plan, plan_from_dict

TABLE = pa.table(
    {
        "age": [17, 30, 44, 58, 71, 90, 25, 33],
        "pay": [1.5, 2.25, 9.0, 3.5, 4.0, 0.5, 7.75, 6.0],
        "sex": ["F", "M", "M", "F", "F", "M", "F", "M"],
    }
)


def good_plan(unit: str = "replace-one") -> dict[str, Any]:
    made = rt.plan(
        TABLE,
        correlation(["age", "pay"]) + marginal(["age", "sex"], bins={"age": [30, 50]}),
        epsilon=1.0,
        delta=1e-6,
        rows=8,
        unit=unit,
        generator=Generator(ApproxDP(1.0, 1e-6), made_relation(unit)),
    )
    return json.loads(json.dumps(made.to_dict()))


def made_relation(unit: str) -> Any:
    return rt.parse_unit(unit).relation


GOOD = {u: good_plan(u) for u in ("replace-one", "add-remove")}
PLAN = GOOD["replace-one"]
ANSWERS = json.loads(json.dumps(rt.measure(TABLE, plan_from_dict(PLAN)).to_dict()))


def use(content: dict[str, Any]) -> None:
    """Everything that a custodian does with a plan file."""
    rt.measure(TABLE, plan_from_dict(content)).to_dict()


def survive(action: Callable[[], object], what: str) -> None:
    """It works, or it is refused with one of our errors."""
    try:
        action()
    except RetiltError as error:
        if not str(error):
            pytest.fail(f"{what}: an error without words")
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")


def refused(
    content: dict[str, Any], step: Callable[[dict[str, Any]], object] = plan_from_dict
) -> str:
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        step(content)
    assert time.monotonic() - start < 5
    return str(caught.value)


def test_the_good_ones_are_good(tmp_path: Path) -> None:
    for content in GOOD.values():
        assert plan_from_dict(content).to_dict() == content
        use(content)
    assert answers_from_dict(ANSWERS).to_dict() == ANSWERS
    path = tmp_path / "plan.json"
    plan_from_dict(PLAN).save(path)
    assert load_plan(path) == plan_from_dict(PLAN)


ODD: list[Any] = [None, True, 0, -1, 1.5, "x", "", [], [[]], {}, {"a": 1}, [1, "a"], 10**400]


def paths(content: Any, prefix: str = "") -> Iterator[str]:
    """Every place in a JSON value."""
    items: Any = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        here = f"{prefix}{key}"
        yield here
        if isinstance(value, (dict, list)) and value:
            yield from paths(value, here + ".")


HARMLESS = ("notes", "statistics")


@pytest.mark.parametrize("unit", GOOD)
def test_any_value_of_any_wrong_kind(unit: str) -> None:
    """Every place takes every odd value: refused as a RetiltError or used, never another error."""
    for path in paths(GOOD[unit]):
        if path.split(".")[0] in HARMLESS and "0" not in path:
            continue
        for value in ODD:
            content = edited(GOOD[unit], path, value)
            survive(lambda c=content: use(c), f"{path} = {str(value)[:30]}")  # type: ignore[misc]


@settings(max_examples=60)
@given(st.data())
def test_two_values_at_once(data: st.DataObject) -> None:
    content = PLAN
    for _ in range(2):
        path = data.draw(st.sampled_from(sorted(paths(PLAN))))
        value = data.draw(st.sampled_from([*ODD, "1/3", "7", [0.5, 0.25], 1e308, -5.0]))
        try:
            content = edited(content, path, value)
        except (KeyError, IndexError, TypeError):  # the first edit took the place away
            return
    survive(lambda: use(content), "two values")


@pytest.mark.parametrize("path", ["measures.0.scale", "measures.0.loudness", "measures.1.scale"])
@pytest.mark.parametrize(
    "value",
    ["1e999999999", "1e-999999999", "1E9", "1_000", "0", "0/1", "1/0", "-1/2", "1/-2", "½", "nan",
     "inf", " 1", "1 ", "1/2/3", "9" * 90, "1/" + "9" * 90, "9" * 5000, "1." + "0" * 50, "٣",
     1, 0.5],
)  # fmt: skip
def test_fractions(path: str, value: Any) -> None:
    assert "fraction" in refused(edited(PLAN, path, value)) or value == 1


@pytest.mark.parametrize("value", ["1e999999999", "0", None, 1])
def test_count_scale(value: Any) -> None:
    refused(edited(GOOD["add-remove"], "count_scale", value))
    refused(edited(PLAN, "count_scale", "1"))


@pytest.mark.parametrize(
    "path", ["", "measures.0", "measures.1", "budget", "generator", "schema", "schema.columns.0"]
)
def test_unknown_and_missing_keys(path: str) -> None:
    refused(edited(PLAN, f"{path}.surprise" if path else "surprise", 1))
    at: Any = PLAN
    for step in path.split(".") if path else []:
        at = at[int(step) if step.isdigit() else step]
    for key in at:
        content = copy.deepcopy(PLAN)
        inner: Any = content
        for step in path.split(".") if path else []:
            inner = inner[int(step) if step.isdigit() else step]
        del inner[key]
        refused(content)


@pytest.mark.parametrize(
    "edges",
    [[50, 30], [30, 30], [float("nan")], [float("inf"), 1], ["30"], "30", 30, None, [True, 40],
     [[30]],
     [10**400], list(range(200_000))],
)  # fmt: skip
def test_edges(edges: Any) -> None:
    refused(edited(PLAN, "measures.1.edges.age", edges), use)


def test_columns() -> None:
    for columns in (
        ["age", "age"],
        ["age"],
        [],
        "age",
        ["age", "nobody"],
        ["age", 3],
        ["age", None],
        [["age"], "pay"],
    ):
        refused(edited(PLAN, "measures.0.columns", columns), use)


@pytest.mark.parametrize("rows", [0, -1, 2.0, "8", True, None, float("nan"), [8]])
def test_rows(rows: Any) -> None:
    assert "rows" in refused(edited(PLAN, "rows", rows))


@pytest.mark.parametrize(
    "budget",
    [
        {"kind": "approx-dp", "epsilon": 1e400, "delta": 1e-6},
        {"kind": "approx-dp", "epsilon": 0, "delta": 1e-6},
        {"kind": "approx-dp", "epsilon": 1.0, "delta": 0},
        {"kind": "approx-dp", "epsilon": 1.0, "delta": 1.0},
        {"kind": "approx-dp", "epsilon": "1", "delta": 1e-6},
        {"kind": "approx-dp", "epsilon": True, "delta": 1e-6},
        {"kind": "approx-dp", "epsilon": 10**400, "delta": 1e-6},
        {"kind": "pure-dp", "epsilon": -1},
        {"kind": "pure-dp", "epsilon": 1.0, "delta": 0},
        {"kind": "zcdp", "rho": float("nan")},
        {"kind": ["zcdp"], "rho": 1.0},
        {"kind": "none"},
        {},
    ],
)
def test_budgets(budget: Any) -> None:
    refused(edited(PLAN, "budget", budget))
    refused(edited(PLAN, "generator", {**budget, "unit": "replace-one"}))


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-30, 1e-17])
@pytest.mark.parametrize("kind", ["pure-dp", "approx-dp", "zcdp"])
def test_budgets_too_small_to_draw_are_refused(kind: str, epsilon: float) -> None:
    budget: dict[str, Any] = {"kind": kind, "rho" if kind == "zcdp" else "epsilon": epsilon}
    if kind == "zcdp":
        budget["rho"] = min(epsilon, 1e-30)
    if kind == "approx-dp":
        budget["delta"] = 1e-6
    with pytest.raises(PrivacyError):
        use(edited(PLAN, "budget", budget))


@pytest.mark.parametrize("epsilon", [1e6, 1e30])
@pytest.mark.parametrize("kind", ["pure-dp", "approx-dp", "zcdp"])
def test_budgets_without_end_are_used(kind: str, epsilon: float) -> None:
    budget: dict[str, Any] = {"kind": kind, "rho" if kind == "zcdp" else "epsilon": epsilon}
    if kind == "approx-dp":
        budget["delta"] = 1e-6
    content = edited(edited(PLAN, "budget", budget), "generator", None)
    plan = plan_from_dict(content)
    assert min(plan.noise.scales) >= 10_000


def test_a_generator_that_cannot_be_added_is_refused_before_measuring() -> None:
    mismatch = {"kind": "zcdp", "rho": 0.1, "unit": "replace-one"}
    with pytest.raises(PrivacyError, match="generator"):
        plan_from_dict(edited(GOOD["add-remove"], "generator", mismatch))
    hopeless = {"kind": "approx-dp", "epsilon": 800, "delta": 1e-6, "unit": "add-remove"}
    with pytest.raises(PrivacyError, match="generator"):
        plan_from_dict(edited(PLAN, "generator", hopeless))


def test_a_table_of_a_thousand_million_cells() -> None:
    categories = [float(i) for i in range(32_000)]
    age = {"name": "age", "kind": "categorical", "ordered": False, "nullable": False}
    content = edited(PLAN, "schema.columns.0", {**age, "categories": categories})
    edges = {"pay": [i / 10_000 for i in range(1, 9_999)]}
    measure = {**PLAN["measures"][1], "columns": ["age", "sex", "pay"], "edges": edges}
    assert "cells" in refused(edited(content, "measures.1", measure))


def test_edited_noise_is_no_part_of_a_plan() -> None:
    """The noise is computed anew: there is nothing in the file that could make it smaller."""
    text = json.dumps(PLAN)
    assert "deviation" not in text
    assert "factor" not in text
    assert "sensitivity" not in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "\x00", '{"format": "retilt-plan/1"}',
     '{"format": "retilt-plan/9"}',
     "[" * 100_000, '{"a":' * 50_000, '{"format": NaN}', "1" * 10_000,
     '{"format": ["retilt-plan/1"]}'],
)  # fmt: skip
def test_files_that_are_something_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    for load in (load_plan, load_answers):
        with pytest.raises(FormatError, match=r"file\.json"):
            load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"format": "\xe9"}')
    for name in ("missing.json", "", "latin.json", "a\x00b"):
        for load in (load_plan, load_answers):
            with pytest.raises(FormatError):
                load(tmp_path / name)


# --- answers ------------------------------------------------------------------------------


def test_any_value_of_any_wrong_kind_in_answers() -> None:
    for path in paths(ANSWERS):
        head = path.split(".")[0]
        if head in ("plan", "privacy") and "." in path:
            continue
        for value in ODD:
            content = edited(ANSWERS, path, value)
            survive(
                lambda c=content: answers_from_dict(c).statistics_table(),  # type: ignore[misc]
                f"{path} = {str(value)[:30]}",
            )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("noise_scales.0", 1.0),
        ("noise_scales.0", 0),
        ("noise_scales.0", float("nan")),
        ("noise_scales.0", -5.0),
        ("noise_scales.0", "1"),
        ("factors.0", 0),
        ("factors.0", -1),
        ("factors.0", "a"),
        ("factors.0", 10**400),
        ("factors.0", 3.5),
        ("values.0", 12),
        ("values.0", "1e5"),
        ("values.0", "9" * 100),
        ("values.0", "x"),
        ("values", []),
        ("mechanism", "none"),
        ("plan_sha256", "0" * 64),
        ("plan.budget.epsilon", 100.0),
        ("plan.rows", 9),
        ("plan.measures.0.scale", "1/7"),
        ("surprise", 1),
    ],
)
def test_edited_answers_are_refused(path: str, value: Any) -> None:
    refused(edited(ANSWERS, path, value), answers_from_dict)


# --- too much of anything ------------------------------------------------------------------


def numeric(name: str, **changes: Any) -> dict[str, Any]:
    column = {"name": name, "kind": "numeric", "lower": 0, "upper": 1.5, "integer": False}
    return {**column, "nullable": False, **changes}


def categorical(name: str, categories: list[Any]) -> dict[str, Any]:
    column = {"name": name, "kind": "categorical", "categories": categories}
    return {**column, "ordered": False, "nullable": False}


def asking(columns: list[dict[str, Any]], *measures: dict[str, Any], **changes: Any) -> Any:
    """A plan of other measures, whose statistics are not listed: refused before that is seen."""
    listed = [{"weight": 1.0, "scale": "1", **m} for m in measures]
    schema = {"columns": columns, "inferred": []}
    return {**PLAN, "schema": schema, "measures": listed, "generator": None, **changes}


MANY = [f"c{i}" for i in range(20_000)]
TWO = [numeric("age"), categorical("sex", ["F", "M"])]
CORRELATION = {"kind": "correlation", "order": 2, "loudness": "1", "clip": None}
GROUPED = {"kind": "means", "where": None, "count_loudness": "1", "clip": None}
SHARE = {"kind": "share", "predicate": "age > 1", "by": [], "edges": {}}

TOO_MUCH: dict[str, tuple[Any, str]] = {
    "measures": (asking(TWO, *[SHARE] * 100_001), "at most 5,000"),
    "columns of a correlation": (
        asking([numeric(n) for n in MANY], {**CORRELATION, "columns": MANY}),
        "200,030,000 queries",
    ),
    "correlations": (
        asking([numeric(n) for n in MANY[:400]], *[{**CORRELATION, "columns": MANY[:400]}] * 50),
        "more than 100,000 queries",
    ),
    "long names": (
        asking(
            [numeric(n + "x" * 9_000) for n in MANY[:400]],
            {**CORRELATION, "columns": [n + "x" * 9_000 for n in MANY[:400]]},
        ),
        "characters",
    ),
    "long categories": (
        asking(
            [categorical(n, [f"{i}" + "x" * 100_000 for i in range(60)]) for n in ("a", "b")],
            {"kind": "marginal", "columns": ["a", "b"], "edges": {}},
        ),
        "characters",
    ),
    "columns of a table": (
        asking(
            [categorical(n, ["a", "b"]) for n in MANY],
            {"kind": "marginal", "columns": MANY, "edges": {}},
        ),
        "more than 1e15 cells",
    ),
    "groups": (
        asking(
            [numeric("age"), *(categorical(n, ["a", "b"]) for n in MANY)],
            {**GROUPED, "columns": ["age"], "by": MANY, "edges": {}},
        ),
        "more than 1e15 groups",
    ),
    "tables of many categories": (
        asking(
            [categorical("z", [f"{i}" for i in range(30_000)])],
            *[{"kind": "marginal", "columns": ["z"], "edges": {}}] * 5_000,
        ),
        "more than 100,000 queries",
    ),
    "conditions": (
        asking(TWO, *[{**SHARE, "predicate": f"age > {i}"} for i in range(1_001)]),
        "1,001 different",
    ),
    "SQL": (
        asking(TWO, *[{**SHARE, "predicate": "age IN (" + "1, " * 3_000 + f"{i})"}
                      for i in range(12)]),
        "characters together",
    ),
    "SQL of guards": (
        asking(TWO, SHARE, guards={
            "schema": {"columns": TWO, "inferred": []},
            "measures": [{**SHARE, "weight": 1.0, "tolerance": 0.1, "predicate": f"age > {i}"}
                         for i in range(1_001)],
        }),
        "different",
    ),
    "quantiles": (
        asking(
            [numeric("age")],
            *[{"kind": "quantiles", "columns": ["age"], "edges": {"age": [0.5]},
               "probabilities": [i / 1_000 for i in range(1, 1_000)]}] * 200,
        ),
        "more than 100,000 queries or statistics",
    ),
    "statistics": (edited(PLAN, "statistics", [PLAN["statistics"][0]] * 100_001), "at most"),
    "notes": (edited(PLAN, "notes", ["x" * 2**21, "y"]), "notes"),
}  # fmt: skip


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much_of_anything_is_refused_before_it_is_made(what: str) -> None:
    content, word = TOO_MUCH[what]
    told = refused(content)
    assert word in told
    assert len(told) < 1_000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("statistics.0.statistic", "mean(other)"),
        ("statistics.0.statistic", 3),
        ("statistics.0.surprise", 1),
        ("statistics.0", []),
        ("statistics", {}),
        ("notes", ["a", 3]),
        ("notes", "text"),
        ("measures", {}),
        ("measures", "text"),
    ],
)
def test_what_people_read_in_a_plan_is_checked_too(path: str, value: Any) -> None:
    refused(edited(PLAN, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sensitivity", 1.0),
        ("sensitivity", "5"),
        ("privacy.post_processing.epsilon", 0.1),
        ("privacy.unit", "add-remove"),
        ("privacy.total", None),
        ("privacy.total.epsilon", 0.1),
        ("privacy.total.kind", "pure-dp"),
        ("privacy.generator", None),
        ("privacy.private", False),
        ("privacy.surprise", 1),
        ("privacy", []),
        ("private", "yes"),
        ("private", 1),
        ("versions", []),
        ("versions", {"retilt": 3}),
        ("versions", {"x" * 1_000: "1"}),
        ("versions", {str(i): "1" for i in range(100)}),
        ("values", "123"),
        ("factors", {}),
        ("plan", []),
    ],
)
def test_a_claim_that_is_not_the_plans_is_refused(path: str, value: Any) -> None:
    refused(edited(ANSWERS, path, value), answers_from_dict)


# --- nothing is lost ------------------------------------------------------------------------


def test_a_plan_keeps_its_hash_in_a_file(tmp_path: Path) -> None:
    """Whole numbers for edges, bounds, thresholds and weights; answers are read back."""
    workload = (
        marginal(["age", "pay"], bins={"age": [30, 50], "pay": [2]}, weight=2)
        + rt_workload.quantiles("age", [0.5], bins=[30, 60])
        + rt_workload.means("pay", by="age", bins={"age": [40]})
        + rt_workload.share("pay > 1", by="age", bins={"age": [40]})
        + rt_workload.cdf("age", [30, 60])
        + rt_workload.query("pay", 0, 10)
        + rt_workload.keep(marginal(["pay"], bins={"pay": [3]}), tolerance=1)
    )
    made = rt.plan(TABLE, workload, epsilon=1, delta=1e-6, rows=8)
    made.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").sha256 == made.sha256
    rt.measure(TABLE, made).save(tmp_path / "answers.json")
    assert load_answers(tmp_path / "answers.json").plan.sha256 == made.sha256


def test_a_plan_that_could_not_be_read_back_is_refused_when_it_is_made() -> None:
    conditions = [rt_workload.share(f"age > {i}") for i in range(1_001)]
    few = TABLE.select(["age"])
    with pytest.raises(InputError, match="1,001 different"):
        rt.plan(few, Workload(tuple(c.measures[0] for c in conditions)), epsilon=1.0, rows=8)


def test_answers_that_could_not_be_read_back_are_refused_before_any_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = rt.plan(TABLE, correlation(["age", "pay"]), epsilon=1.0, rows=8)
    size = len(json_text(made.to_dict()))
    monkeypatch.setattr(_input, "MAX_JSON", size + 1_000)
    with pytest.raises(InputError, match="could not be read again"):
        rt.measure("a file that is not opened.csv", made)


def test_the_room_left_for_answers_is_enough() -> None:
    """The plan's bytes and what is reserved are at least the answers' file."""
    for unit in GOOD:
        made = plan_from_dict(GOOD[unit])
        count = len(made.noise.scales)
        largest = 10**20 * max(made.noise.steps)
        full = make_answers(made, [-largest] * count, private=True)
        counted: list[int] = []

        def note(text: str, what: str, *, more_bytes: int, more_values: int) -> None:
            counted.extend((len(text.encode()) + more_bytes, more_values))  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan_module, "check_json_size", note)
            made.check_files()
        assert len(json_text(full.to_dict()).encode()) <= counted[0]
        assert counted[1] >= 3 * count
