"""Plans, tilts, workloads and published files with hostile measures: refused quickly, or harmless.

What an edited plan may do is to ask for something else. It can never ask for less noise: the
sensitivity of whatever it asks is held to by brute force here.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from editing import edited

import retilt as rt
from retilt import cli
from retilt.engines.local import open_table
from retilt.exceptions import InputError, RetiltError, WorkloadError
from retilt.measures.base import Relation
from retilt.measures.formats import load_workload, measure_from_dict
from retilt.measures.queries import gather
from retilt.measures.workload import MAX_MEASURES
from retilt.pipeline import exact_sums
from retilt.privacy.budget import budget_from_dict
from retilt.privacy.plan import load_plan, plan_from_dict, terms_of
from retilt.privacy.unit import parse_unit
from retilt.schema.formats import schema_from_dict
from retilt.tables import encode

SCHEMA: dict[str, Any] = {
    "age": rt.Numeric(0, 4, integer=True),
    "pay": rt.Numeric(-1.0, 1.0),
    "sex": rt.Categorical(("F", "M")),
}
TABLE = pa.table(
    {
        "age": [0, 1, 2, 3, 4, 0, 1, 2],
        "pay": [-1.0, 0.5, 0.25, 1.0, 0.0, 0.75, -0.5, 0.125],
        "sex": ["F", "M", "M", "F", "F", "M", "F", "M"],
    }
)
WORKLOAD = (
    rt.share("age >= 2")
    + rt.share("pay > 0", by=["sex", "age"], bins={"age": [2]})
    + rt.query("age * pay", -4, 4)
    + rt.means(["age", "pay"], by="sex", where="pay > -1")
    + rt.means("pay", where="age > 1")
    + rt.correlation(["age", "pay"], by="sex")
    + rt.regression("pay", ["age"], where="sex = 'F'")
    + rt.cdf("age", [1, 3])
    + rt.quantiles("pay", [0.25, 0.5], bins=[0.0, 0.5])
    + rt.keep(rt.share("age = 1") + rt.marginals(["sex"]), tolerance=0.01)
)
UNITS: list[Any] = ["replace-one", rt.ReplaceOnePerson("who", 2)]


def made(unit: Any = "replace-one", **options: Any) -> dict[str, Any]:
    plan = rt.plan(TABLE, WORKLOAD, epsilon=1.0, rows=8, unit=unit, schema=SCHEMA, **options)
    content: dict[str, Any] = json.loads(json.dumps(plan.to_dict()))
    return content


PLAN = made()
PRIVATE = TABLE.append_column("who", pa.array(["p", "q", "p", "r", "s", "", "t", "q"]))


def refused(content: Any, action: Callable[[Any], object] = plan_from_dict) -> str:
    """The error's message: ours, short and soon."""
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        action(content)
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert 0 < len(message) < 1_500
    return message


def survive(action: Callable[[], object], what: str) -> None:
    """It works, or it is refused with one of our errors, which is short."""
    said = "as it should"
    try:
        action()
    except RetiltError as error:
        said = str(error)
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert 0 < len(said) < 1_500


def paths(content: Any, prefix: str = "") -> Iterator[str]:
    """Every place in a JSON value, of long lists the first and the last."""
    ends = range(len(content)) if len(content) <= 6 else (0, len(content) - 1)
    items: Any = content.items() if isinstance(content, dict) else [(i, content[i]) for i in ends]
    for key, value in items:
        yield f"{prefix}{key}"
        if isinstance(value, (dict, list)) and value:
            yield from paths(value, f"{prefix}{key}.")


ODD: list[Any] = [None, True, 0, -1, 1.5, "x", "", [], [[]], {}, {"a": 1}, [1, "a"], 10**400]
ODD += [math.nan, math.inf, -math.inf, 1e308, 5e-324, "1/3", "age", ["age"], "age > 1", "\ud800"]


@pytest.mark.parametrize("place", [*range(len(PLAN["measures"])), "guards", "unit"])
def test_any_value_of_any_wrong_kind(place: int | str) -> None:
    """Each place takes each odd value: refused as ours or used, never another error."""
    content = made(UNITS[1]) if place == "unit" else PLAN
    start = f"measures.{place}." if isinstance(place, int) else f"{place}."
    at = content["measures"][place] if isinstance(place, int) else content[place]
    for path in paths(at, start):
        for value in ODD:
            asked = edited(content, path, value)
            survive(lambda a=asked: use(a), f"{path} = {str(value)[:30]}")  # type: ignore[misc]


def use(content: dict[str, Any]) -> None:
    """Everything that a custodian does with a plan."""
    rt.measure(PRIVATE, plan_from_dict(content)).statistics_table()


@pytest.mark.parametrize("probability", [5e-324, 1e-300, 1e-13, 1 - 2**-53])
def test_probabilities_next_to_the_ends(probability: float) -> None:
    """A first bin that noise leaves without a share has no density to divide by."""
    content = edited(
        PLAN, "measures.8.probabilities", [probability, 0.5][:: 1 if probability < 0.5 else -1]
    )
    plan = plan_from_dict(renamed(content))
    for _ in range(20):
        rt.measure(PRIVATE, plan).statistics_table()


# --- no edit asks for less noise ---------------------------------------------------------------

DOMAIN = pa.table(
    dict(
        zip(
            ("age", "pay", "sex"),
            map(
                list,
                zip(
                    *itertools.product(
                        [0, 1, 2, 4, None], [-1.0, -0.25, 0.0, 1.0, None], ["F", "M", "X", None]
                    ),
                    strict=True,
                ),
            ),
            strict=True,
        )
    )
)
LOUDNESS = ["1/1024", "1/3", "1", "7/5", "2", "64", None]
SCALES = ["1/1099511627776", "1/7", "1", "355/113", "1099511627776"]


def spent(plan: rt.Plan) -> float:
    """The most that one row moves the release, as a share of what is declared (norm's power)."""
    encoded = encode(open_table(DOMAIN), plan.queries.features)
    count = [1] * plan.counts_rows
    scales = np.array(plan.noise.scales) / np.array(plan.noise.factors)
    rows = np.array(
        [
            [*plan.queries.sums({f: a[i : i + 1] for f, a in encoded.items()}), *count]
            for i in range(DOMAIN.num_rows)
        ],
        dtype=np.float64,
    )
    rows = np.unique(rows, axis=0) / scales
    pairs = rows[:, None, :] - (rows if plan.unit.relation is Relation.REPLACE else 0 * rows[:1])
    power = plan.noise.norm
    moved = float((np.abs(pairs) ** power).sum(axis=2).max())
    calibration = plan.noise.calibration
    allowed = plan.budget.epsilon if calibration is None else calibration.distance**2  # type: ignore[union-attr]
    return moved / float(allowed)


@pytest.mark.parametrize("delta", [0, 1e-9])
@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
@pytest.mark.parametrize("number", range(len(WORKLOAD.measures)))
def test_no_edit_of_one_measure_asks_for_less_noise(number: int, unit: str, delta: float) -> None:
    rng = random.Random(number)
    alone = rt.Workload((WORKLOAD.measures[number],))
    plan = rt.plan(TABLE, alone, epsilon=1.0, rows=8, unit=unit, delta=delta, schema=SCHEMA)
    assert 0.3 < spent(plan) <= 1 + 1e-9
    content = json.loads(json.dumps(plan.to_dict()))
    for _ in range(4):
        edit_noise(content, rng)
        assert spent(plan_from_dict(content)) <= 1 + 1e-9


@pytest.mark.parametrize("basis", ["centred", "paper"])
@pytest.mark.parametrize("delta", [0, 1e-9])
@pytest.mark.parametrize("unit", ["replace-one", "add-remove"])
def test_no_edit_of_many_measures_asks_for_less_noise(unit: str, delta: float, basis: str) -> None:
    rng = random.Random(1)
    content = made(unit, delta=delta, basis=basis)
    for _ in range(4):
        edit_noise(content, rng)
        assert spent(plan_from_dict(renamed(content))) <= 1 + 1e-9


def renamed(content: dict[str, Any]) -> dict[str, Any]:
    """A plan that was edited, with the names of the statistics that it asks for now."""
    schema, budget = schema_from_dict(content["schema"]), budget_from_dict(content["budget"])
    terms = terms_of(schema, content["basis"], budget, parse_unit(content["unit"]))
    names = gather(map(measure_from_dict, content["measures"]), terms).statistics
    rows = [{"statistic": n, "expected_standard_error": None} for n in names]
    return {**content, "statistics": rows}


def edit_noise(content: dict[str, Any], rng: random.Random) -> None:
    """Change whatever says how loud something is asked, and which of two comes first."""
    for measure in content["measures"]:
        measure["scale"] = rng.choice(SCALES[1:4])
        measure["weight"] = rng.choice([1e-9, 1.0, 1e9])
        for key in ("loudness", "count_loudness"):
            if key in measure:
                measure[key] = rng.choice(LOUDNESS[:5] if len(measure["columns"]) < 4 else LOUDNESS)
    if content["count_scale"] is not None:
        content["count_scale"] = rng.choice(SCALES[1:4])
    rng.shuffle(content["measures"])


# --- sizes and numbers -------------------------------------------------------------------------

HUGE = 10**400
MANY = [float(i) for i in range(1_000_000)]
CLIMBING = [i / 1e6 for i in range(1, 1_000_000)]
WRONG: list[tuple[str, list[Any]]] = [
    ("measures.2.lower", [None, "0", math.nan, -math.inf, HUGE, -1e308, 4, 5]),
    ("measures.2.upper", [None, True, math.nan, math.inf, HUGE, 1e308, -4, -4 + 1e-200]),
    ("measures.2.weight", [0, -1, math.nan, math.inf, HUGE, "1"]),
    ("measures.0.scale", ["1e9", "nan", "0", "-1", "1/0", 1, None, "9" * 5_000]),
    ("measures.3.count_loudness", ["1e9", "0", "-1", "1/0", 1, True, "9" * 5_000, "1/9999999"]),
    ("measures.5.loudness", ["1e9", "0", "-1", "1/0", 1, True, "9" * 5_000, "1/9999999", "99"]),
    ("measures.7.thresholds", [[], None, "13", {}, [3, 1], [1, 1], [math.nan], [HUGE], [1e400]]),
    ("measures.7.thresholds", [["2020-01-01"], [[1]], [5], [-1], MANY, [True, 2]]),
    ("measures.8.probabilities", [[], None, "0.5", [0], [1], [0.5, 0.5], [0.6, 0.5], [math.nan]]),
    ("measures.8.probabilities", [[HUGE], [[0.5]], CLIMBING, [True]]),
    ("measures.8.edges", [None, [], {}, {"pay": [1, 0]}, {"pay": [math.nan]}, {"pay": MANY}]),
    ("measures.8.edges", [{"pay": "12"}, {"pay": [HUGE]}, {"age": [1]}, {"pay": [[1]]}]),
    ("measures.1.edges", [None, {}, {"age": MANY}, {"age": [2, 2]}, {"age": [None]}]),
    ("measures.1.by", [None, "sex", ["sex", "sex"], ["nobody"], [None], [["sex"]], {"sex": 1}]),
    ("measures.3.by", ["sex", ["age"], ["nobody"], ["pay"], [0], {"sex": 1}, ["sex"] * 50_000]),
    ("measures.3.where", ["", 5, [], True, "nobody = 1", "age = 'x'", "age", "age > 1;"]),
    ("measures.3.where", ["x" * 10**6]),
    ("measures.4.by", [None, 5, ["nobody"]]),
    ("measures.4.where", [None]),
    ("measures.0.predicate", [None, 5, "", "pay", "age >", "sex > 1", "nobody", "(" * 10**5]),
    ("measures.2.expression", [None, "", "age > 1", "sex", "1", "random()", "pay +" * 1_000]),
    ("guards.measures.0.tolerance", [0, -1, math.nan, math.inf, HUGE, "1", True]),
    ("guards.measures.0.predicate", [None, "nobody = 1", "sex > 1", "count(*) > 1"]),
    ("guards.measures", [[], {}, None, [None], [[]], [{}] * 100_000]),
    ("guards.schema", [None, {}, [], {"columns": [], "inferred": []}]),
    ("measures", [[], None, {}, [None], [[]], [{}] * 100_000]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "values"), WRONG, ids=[path for path, _ in WRONG])
def test_wrong_values_are_refused(path: str, values: list[Any]) -> None:
    for value in values:
        refused(edited(PLAN, path, value))


@pytest.mark.parametrize("max_rows", [0, -1, 1.0, "2", True, None, HUGE, 2**31, math.nan, [1]])
def test_persons_with_absurd_rows(max_rows: Any) -> None:
    content = made(UNITS[1])
    assert "max_rows" in refused(edited(content, "unit.max_rows", max_rows))


def test_persons_with_the_most_rows_get_noise_for_as_many() -> None:
    content = made(UNITS[1])
    few, most = (
        plan_from_dict(edited(content, "unit.max_rows", rows)).noise for rows in (2, 2**20)
    )
    ratios = [
        b / fb / (a / fa)
        for a, fa, b, fb in zip(few.scales, few.factors, most.scales, most.factors, strict=True)
    ]
    np.testing.assert_allclose(ratios, 2**19)
    with pytest.raises(RetiltError):
        rt.measure(PRIVATE, plan_from_dict(edited(content, "unit.max_rows", 2**31 - 1)))


@pytest.mark.parametrize("person", ["", None, 5, ["who"], "age", "nobody"])
def test_persons_of_no_column(person: Any) -> None:
    content = edited(made(UNITS[1]), "unit.person", person)
    with pytest.raises(InputError):
        rt.measure(PRIVATE, plan_from_dict(content))


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "pay", "kind": "categorical", "categories": ["a"], "ordered": False},
        {"name": "pay", "kind": "boolean"},
        {"name": "pay", "kind": "numeric", "lower": 1e308, "upper": 1.5e308, "integer": False},
        {"name": "pay", "kind": "numeric", "lower": 0.0, "upper": 5e-324, "integer": False},
        {"name": "pay", "kind": "numeric", "lower": 0.0, "upper": 0.0, "integer": False},
        {"name": "pay", "kind": "datetime", "lower": "2020-01-01", "upper": "2021-01-01"},
        {"name": "other", "kind": "boolean"},
    ],
    ids=lambda schema: "-".join(map(str, schema.values())),
)
def test_a_column_that_became_another(schema: dict[str, Any]) -> None:
    columns = PLAN["schema"]["columns"]
    place = next(i for i, c in enumerate(columns) if c["name"] == "pay")
    refused(edited(PLAN, f"schema.columns.{place}", {**schema, "nullable": False}))


def test_guards_of_a_foreign_schema() -> None:
    """What a guard is bound to is its own business: nothing of it is measured."""
    columns = [{"name": "z", "kind": "boolean", "nullable": False}]
    content = edited(PLAN, "guards.schema", {"columns": columns, "inferred": []})
    assert "schema lacks" in refused(content)
    content["guards"]["measures"] = [
        {"kind": "marginal", "columns": ["z"], "edges": {}, "weight": 1.0, "tolerance": None}
    ]
    plan = plan_from_dict(content)
    assert plan.queries.keys == plan_from_dict(PLAN).queries.keys
    answers = rt.measure(PRIVATE, plan)  # which has no column z
    with pytest.raises(InputError, match="'z'"):
        rt.fit(TABLE, answers)


def test_columns_named_like_sql() -> None:
    names = ['x"; DROP TABLE t; --', "a' OR '1'='1", "c0", "v", "\n", "a\0b", '"', "%s", "{0}"]
    table = pa.table({n: [0.0, 1.0, 2.0, 3.0] for n in names})
    schema = {n: rt.Numeric(0, 3) for n in names}
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        if "\0" in name:
            with pytest.raises(WorkloadError):
                rt.share(f"{quoted} > 1")
            continue
        other = next(n for n in names if n != name)
        asked = rt.share(f"{quoted} > 1") + rt.means(other, by=name, bins=2) + rt.cdf(name, [1])
        asked += rt.means(other, where=f"{quoted} > 1.5")
        plan = rt.plan(table, asked, rows=4, epsilon=1.0, schema=schema)
        again = plan_from_dict(json.loads(json.dumps(plan.to_dict())))
        assert again == plan
        sums = [s // f for s, f in zip(exact_sums(table, again), again.noise.factors, strict=True)]
        assert sums[0] == 2 - 2  # two rows of four, each worth 1, the others -1
        rt.measure(table, again).statistics_table()


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "retilt-plan/1", "measures": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"format": "retilt-plan/1", "guards": ' + '{"a":' * 10_000 + "1" + "}" * 10_001,
        '{"format": "retilt-plan/1", "rows": ' + "9" * 10_000 + "}",
    ],
    ids=["lists", "objects", "digits"],
)
def test_deep_files(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    refused(path, load_plan)
    assert cli.main(["measure", "missing.csv", str(path), "-o", str(tmp_path / "a.json")]) == 2
    assert "Traceback" not in capsys.readouterr().err


# --- workload files ----------------------------------------------------------------------------

AGE = 'kind = "share"\npredicate = "age > 1"'
MEASURE = '[[measures]]\nkind = "means"\ncolumns = ["age"]\n'
TOML = {
    "huge bound": ('kind = "query"\nexpression = "age"\nupper = 1' + "0" * 350, "upper"),
    "endless bound": ('kind = "query"\nexpression = "age"\nupper = 1' + "0" * 5_000, "400 char"),
    "infinite bound": ('kind = "query"\nexpression = "age"\nupper = 1e400', "upper"),
    "no bound": ('kind = "query"\nexpression = "age"\nlower = nan', "lower"),
    "close bounds": ('kind = "query"\nexpression = "age"\nupper = 5e-324', "too close"),
    "wide bounds": ('kind = "query"\nexpression = "age"\nlower = -1e308\nupper = 1e308', "large"),
    "huge weight": ('kind = "means"\ncolumns = "age"\nweight = 1' + "0" * 350, "weight"),
    "date as weight": ('kind = "means"\ncolumns = "age"\nweight = 2020-01-01', "weight"),
    "kind": ('kind = ["share"]', "kind"),
    "kind object": ("kind = {share = 1}", "kind"),
    "long kind": (f'kind = "{"x" * 10**6}"', "kind"),
    "columns": (f"columns = {'[' * 900}{']' * 900}", "nested"),
    "many columns": ('kind = "means"\ncolumns = [' + '"age",' * 10**5 + "]", "named twice"),
    "long key": (f'kind = "means"\ncolumns = "age"\n{"k" * 400} = 1', "unknown"),
    "cdf of a list": ('kind = "cdf"\ncolumn = ["age"]\nthresholds = [1]', "expected text"),
    "cdf of text": ('kind = "cdf"\ncolumn = "age"\nthresholds = "12"', "expected a list"),
    "cdf of a number": ('kind = "cdf"\ncolumn = "age"\nthresholds = 1', "expected a list"),
    "cdf at a time": ('kind = "cdf"\ncolumn = "age"\nthresholds = [07:00:00]', "thresholds"),
    "before all time": (
        'kind = "cdf"\ncolumn = "age"\nthresholds = ["0001-01-01T00:00+14:00"]', "thresholds",
    ),
    "quantiles of an object": ('kind = "quantiles"\ncolumn = {age = 1}', "expected text"),
    "probabilities": ('kind = "quantiles"\ncolumn = "age"\nprobabilities = "0.5"', "a list"),
    "bins of an object": ('kind = "quantiles"\ncolumn = "age"\nbins = {age = 3}', "a list"),
    "half a bin": ('kind = "quantiles"\ncolumn = "age"\nbins = 2.5', "a list"),
    "bins of nothing": ('kind = "means"\ncolumns = "age"\nbins = 3', "by names none"),
    "huge bins": ('kind = "marginal"\ncolumns = ["age"]\nbins = 1' + "0" * 400, "bins"),
    "million edges": (
        f'kind = "marginal"\ncolumns = ["age"]\nbins = {{age = {list(range(100_000))}}}', "edges",
    ),
    "all subsets": (
        f'kind = "marginals"\ncolumns = {json.dumps([f"c{i}" for i in range(60)])}\nk = 30',
        "at most",
    ),
    "regression on an object": ('kind = "regression"\ntarget = "age"\non = {pay = 1}', "list"),
    "regression of a list": ('kind = "regression"\ntarget = ["age"]\non = "pay"', "expected text"),
    "by an object": ('kind = "share"\npredicate = "age > 1"\nby = {sex = 1}', "list"),
    "an expression that is none": ('kind = "share"\npredicate = ["age > 1"]', "expected text"),
    "tolerance": (
        f'{AGE}\n[[keep]]\nkind = "marginals"\ntolerance = 1{"0" * 400}',
        "tolerance",
    ),
    "no tolerance": (f'{AGE}\n[[keep]]\nkind = "marginals"\ntolerance = 5e-324', "tolerance"),
    "all tolerance": (f'{AGE}\n[[keep]]\nkind = "marginals"\ntolerance = 1e308', "tolerance"),
    "keep code": (f'{AGE}\n[[keep]]\nkind = "function"', "kind"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOML)
def test_workload_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, said = TOML[name]
    path = tmp_path / "workload.toml"
    path.write_text(f"[[measures]]\n{entry}\n", encoding="utf-8")
    with pytest.raises(WorkloadError) as caught:
        rt.plan(TABLE, load_workload(path), rows=8, epsilon=1.0)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize("content", ["x = " + "[" * 10_000, "x = " + "{a=" * 10_000, "a.b.c = 1"])
def test_workload_files_that_are_something_else(content: str, tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(content, encoding="utf-8")
    refused(path, load_workload)


def test_too_many_measures(tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(MEASURE * (MAX_MEASURES + 1), encoding="utf-8")
    with pytest.raises(WorkloadError, match="at most 5,000"):
        load_workload(path)
    with pytest.raises(WorkloadError, match="at most 5,000"):
        rt.Workload(rt.means("age").measures * (MAX_MEASURES + 1))
    names = [f"c{i}" for i in range(200)]
    with pytest.raises(WorkloadError, match="19,900 tables of 2 columns"):
        rt.marginals(names, k=2)


# --- tilts and published statistics --------------------------------------------------------------


def test_tilts_with_hostile_guards(tmp_path: Path) -> None:
    tilt = rt.fit(TABLE, rt.measure(PRIVATE, plan_from_dict(PLAN)))
    path = tmp_path / "tilt.json"
    tilt.save(path)
    good = json.loads(path.read_text())
    rt.load_tilt(path, TABLE)
    places = [p for p in paths(good) if "guards" in p or "predicate" in p or "where" in p]
    assert any(p.endswith("tolerance") for p in places)
    for place in places:
        if place.startswith("answers.plan.") and "guards" in place:
            continue  # the plan's own hash is checked first
        for value in ODD:
            path.write_text(json.dumps(edited(good, place, value)))
            survive(lambda: rt.load_tilt(path, TABLE), f"{place} = {str(value)[:30]}")


def test_published_statistics_with_hostile_values(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "format": "retilt-published/1",
        "source": "an office",
        "statistics": [
            {"share": "age >= 2", "value": 0.5, "standard_error": 0.1},
            {"query": "age * pay", "lower": -4, "upper": 4, "value": 0.5, "standard_error": 0.1},
            {"share": "sex = 'F'", "value": 0.5, "standard_error": 0.1},
            {"group_mean": "pay", "where": "sex = 'F'", "value": 0.1, "standard_error": 0.1},
            {"cell": {"age": "[2, 4]"}, "bins": {"age": [2]}, "value": 0.5, "standard_error": 0.1},
        ],
    }
    path = tmp_path / "published.json"
    path.write_text(json.dumps(good))
    rt.fit(TABLE, path)
    for place in paths(good):
        for value in ODD:
            path.write_text(json.dumps(edited(good, place, value)))
            survive(lambda: rt.fit(TABLE, path), f"{place} = {str(value)[:30]}")
