"""Units of privacy: names, files, words, and what goes together."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt._options import GeneratorUnit, Unit, generator_of, unit_of
from retilt.exceptions import FormatError, InputError, PrivacyError
from retilt.measures.base import Relation
from retilt.privacy.answers import answers_from_dict
from retilt.privacy.budget import ZCDP, ApproxDP, Generator, PureDP, total_budget
from retilt.privacy.plan import plan_from_dict, terms_of
from retilt.privacy.unit import (
    MOST_ROWS,
    AddRemoveOnePerson,
    AddRemoveOneRow,
    ReplaceOnePerson,
    ReplaceOneRow,
    parse_unit,
    unit_to_json,
)

PERSONS = (ReplaceOnePerson("id", 3), AddRemoveOnePerson("id", 3))
UNITS = (ReplaceOneRow(), AddRemoveOneRow(), *PERSONS)
TABLE = pa.table({"age": [17, 30, 44, 58, 90], "sex": ["F", "M", "M", "F", "F"]})
PRIVATE = TABLE.append_column("id", pa.array(["a", "a", "b", "c", None]))


def make(unit: Any, **options: Any) -> rt.Plan:
    workload = rt.correlation(["age", "sex"]) + rt.marginal(["sex"])
    options = {"epsilon": 1.0, "delta": 1e-6, "rows": 5, **options}
    return rt.plan(TABLE, workload, unit=unit, **options)


# --- the types -------------------------------------------------------------------------------


def test_what_units_say() -> None:
    found = {u.name: (u.relation, u.counts_rows, u.person, u.max_rows) for u in UNITS}
    assert found == {
        "replace-one": (Relation.REPLACE, False, None, 1),
        "add-remove": (Relation.ADD_REMOVE, True, None, 1),
        "replace-one-person": (Relation.REPLACE, True, "id", 3),
        "add-remove-person": (Relation.ADD_REMOVE, True, "id", 3),
    }
    for unit in PERSONS:
        for words in ("column 'id'", "at most 3 rows are used", "rows without a person", "noise"):
            assert words in unit.promise
        assert "at most 1 row is used" in replace(unit, max_rows=1).promise
    assert "number of persons is public" in PERSONS[0].promise
    assert "persons and of rows are private" in PERSONS[1].promise


@pytest.mark.parametrize("unit", UNITS)
def test_units_come_back_from_json(unit: Any) -> None:
    written = json.loads(json.dumps(unit_to_json(unit)))
    assert isinstance(written, str) == (unit.person is None)
    assert parse_unit(written) == parse_unit(unit) == unit
    assert hash(parse_unit(written)) == hash(unit)


@pytest.mark.parametrize("kind", [ReplaceOnePerson, AddRemoveOnePerson])
def test_persons_and_rows_are_checked(kind: Any) -> None:
    for person in ("", None, 3, ["id"], b"id"):
        with pytest.raises(InputError, match="person: got"):
            kind(person, 2)
    for rows in (0, -1, 1.5, 2.0, "2", None, True, np.True_, MOST_ROWS + 1, float("nan")):
        with pytest.raises(InputError, match="max_rows: got"):
            kind("id", rows)
    assert type(kind("id", np.int64(2)).max_rows) is int
    assert kind("id", MOST_ROWS).max_rows == MOST_ROWS


GOOD = {"unit": "replace-one-person", "person": "id", "max_rows": 3}


@pytest.mark.parametrize(
    "content",
    [
        "replace-one-person",
        "add-remove-person",
        {**GOOD, "unit": "replace-one"},
        {**GOOD, "unit": None},
        {**GOOD, "extra": 1},
        {k: v for k, v in GOOD.items() if k != "person"},
        {k: v for k, v in GOOD.items() if k != "max_rows"},
        {"unit": "replace-one"},
        {},
        list(GOOD),
        ReplaceOnePerson,
    ],
)
def test_other_units_are_refused(content: Any) -> None:
    with pytest.raises(InputError, match=r"unit: got .*ReplaceOnePerson\(person, max_rows\)"):
        parse_unit(content)


# --- plans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_a_plan_and_its_answers_come_back(unit: Any) -> None:
    plan = make(unit)
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    answers = rt.measure(PRIVATE, plan)
    content = json.loads(json.dumps(answers.to_dict()))
    assert answers_from_dict(content).to_dict() == content
    assert content["privacy"]["unit"] == content["plan"]["unit"] == unit_to_json(unit)
    assert plan.counts_rows == unit.counts_rows
    assert terms_of(plan.schema, "centred", plan.budget, unit).counted is unit.counts_rows
    assert unit.promise in answers.statement


@pytest.mark.parametrize("unit", UNITS[1:])
def test_a_private_row_count_is_measured_and_may_be_left_out(unit: Any) -> None:
    plan = make(unit, rows=None)
    assert plan.rows == TABLE.num_rows
    assert plan.count_scale is not None
    assert len(rt.measure(PRIVATE.slice(0, 2), plan).values) == plan.queries.size + 1
    with pytest.raises(InputError, match="count_scale"):
        replace(plan, count_scale=None)


@pytest.mark.parametrize("budget", [{"delta": 0}, {"delta": 1e-6}, {"rho": 0.1}])
@pytest.mark.parametrize("kind", [ReplaceOnePerson, AddRemoveOnePerson])
def test_noise_grows_with_the_rows_of_a_person(kind: Any, budget: dict[str, float]) -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "delta": None, **budget}
    if "rho" in budget:
        options.update(epsilon=None)
    one, four = (make(kind("id", k), **options).noise for k in (1, 4))
    assert four.sensitivity == pytest.approx(4 * one.sensitivity, rel=1e-12)
    for k, (a, b) in enumerate(zip(one.scales, four.scales, strict=True)):
        assert b / four.factors[k] == pytest.approx(4 * a / one.factors[k], rel=1e-12)


def test_one_row_for_each_person_costs_what_a_row_costs() -> None:
    assert make(AddRemoveOnePerson("id", 1)).noise == make(AddRemoveOneRow()).noise


@pytest.mark.parametrize("unit", [ReplaceOnePerson("sex", 2), AddRemoveOnePerson("age", 2)])
def test_the_column_of_persons_is_not_measured(unit: Any) -> None:
    with pytest.raises(InputError, match=f"person: the column '{unit.person}' is measured"):
        make(unit)
    content = make(replace(unit, person="id")).to_dict()
    content["unit"]["person"] = unit.person
    with pytest.raises(InputError, match="measured"):
        plan_from_dict(content)


@pytest.mark.parametrize("unit", PERSONS)
def test_edited_units_are_refused_or_other_plans(unit: Any) -> None:
    content = json.loads(json.dumps(make(unit).to_dict()))
    for key, value in (("max_rows", 0), ("max_rows", "3"), ("person", ""), ("unit", "add-remove")):
        broken = copy.deepcopy(content)
        broken["unit"][key] = value
        with pytest.raises(InputError):
            plan_from_dict(broken)
    fewer = copy.deepcopy(content)
    fewer["unit"]["max_rows"] = 1
    assert plan_from_dict(fewer).noise.sensitivity < plan_from_dict(content).noise.sensitivity
    answers = json.loads(json.dumps(rt.measure(PRIVATE, make(unit)).to_dict()))
    answers["plan"]["unit"]["max_rows"] = 1
    with pytest.raises(FormatError, match="do not belong together"):
        answers_from_dict(answers)


@pytest.mark.parametrize("unit", PERSONS)
def test_plans_of_persons_say_so(unit: Any) -> None:
    plan = make(unit)
    assert any("at most 3 of each value of id" in note for note in plan.notes)
    assert unit.name in repr(plan)
    assert "and the row count" in plan.statement


# --- the generator's unit ----------------------------------------------------------------------

BUDGETS = (PureDP(0.5), ApproxDP(0.5, 1e-7), ZCDP(0.05))


@pytest.mark.parametrize("budget", BUDGETS)
def test_persons_convert_among_persons_as_rows_do_among_rows(budget: Any) -> None:
    for relation in Relation:
        rows, persons = (
            Generator(budget, relation.value + end)  # type: ignore[arg-type]
            for end in ("", "-person")
        )
        assert (rows.persons, persons.persons) == (False, True)
        assert persons.under(relation, persons=True) == rows.under(relation) == budget
    rows, persons = (Generator(budget, f"add-remove{e}") for e in ("", "-person"))  # type: ignore[arg-type]
    assert persons.under(Relation.REPLACE, persons=True) == rows.under(Relation.REPLACE) != budget
    with pytest.raises(PrivacyError, match="public number of persons"):
        Generator(budget, PERSONS[0]).under(Relation.ADD_REMOVE, persons=True)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="public number of rows"):
        Generator(budget, Relation.REPLACE).under(Relation.ADD_REMOVE)


@pytest.mark.parametrize("unit", UNITS)
def test_a_generator_takes_units_names_and_relations(unit: Any) -> None:
    persons = unit.person is not None
    made = Generator(PureDP(1), unit)
    assert made == Generator(PureDP(1), unit.name)
    assert made == Generator(PureDP(1), unit.relation, persons=persons)
    assert made == replace(made)
    assert made.name == unit.name
    assert made.relation is unit.relation


@pytest.mark.parametrize("bad", [None, "person", "replace", 1, [], ReplaceOnePerson, PureDP(1)])
def test_other_relations_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match=r"generator: got the relation .*'add-remove-person'"):
        Generator(PureDP(1), bad)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("other", UNITS)
def test_rows_and_persons_never_add_up(unit: Any, other: Any) -> None:
    generator = Generator(ApproxDP(1.0, 1e-7), other)
    levels = [u.person is not None for u in (unit, other)]
    if levels[0] != levels[1]:
        with pytest.raises(PrivacyError, match="don't add up"):
            make(unit, generator=generator)
    elif other.relation is Relation.REPLACE and unit.relation is Relation.ADD_REMOVE:
        with pytest.raises(PrivacyError, match="public number of"):
            make(unit, generator=generator)
    else:
        plan = make(unit, generator=generator)
        assert plan.to_dict()["generator"]["unit"] == other.name
        assert plan_from_dict(plan.to_dict()).total == plan.total
        assert f"({other.name} neighbours)" in plan.statement
        assert plan.total == total_budget(plan.budget, generator, unit.relation, persons=levels[0])
        converted = re.search(r"which is .* for (\S+) neighbours", plan.statement)
        assert (converted is None) == (other.relation is unit.relation)
        assert converted is None or converted[1] == unit.name


def test_a_mismatch_says_what_to_declare() -> None:
    with pytest.raises(PrivacyError) as caught:
        make(PERSONS[0], generator=Generator(PureDP(1), AddRemoveOneRow()))  # type: ignore[arg-type]
    for words in ("(add-remove) protects rows", "replace-one-person or add-remove-person"):
        assert words in str(caught.value)


# --- options -------------------------------------------------------------------------------------


def test_options_name_units() -> None:
    assert unit_of(Unit.REPLACE, None, None) == ReplaceOneRow()
    assert unit_of(Unit.ADD_REMOVE, None, None) == AddRemoveOneRow()
    assert unit_of(Unit.REPLACE, "id", 3) == PERSONS[0]
    assert unit_of(Unit.ADD_REMOVE, "id", 3) == PERSONS[1]
    for half in (("id", None), (None, 3)):
        with pytest.raises(InputError, match="belong together"):
            unit_of(Unit.REPLACE, *half)
    for choice in GeneratorUnit:
        made = generator_of(1.0, 0, None, choice)
        assert made is not None
        assert made.name == choice.value
