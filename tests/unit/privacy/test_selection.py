"""Selections: budgets that add up, scores, strict files, and bounds for every choice."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from editing import edited

import retilt as rt
from retilt.exceptions import FormatError, InputError, PrivacyError, RetiltError
from retilt.pipeline import fit_for, sums_of
from retilt.privacy.account import amount_of
from retilt.privacy.answers import answers_from_dict
from retilt.privacy.budget import decimal
from retilt.privacy.ledger import Ledger
from retilt.privacy.plan import plan_from_dict
from retilt.privacy.selection import (
    GRANULARITY,
    Choice,
    Selected,
    Selection,
    _damped,
    budget_of_choice,
    check_choose,
    check_share,
    choose,
    newness,
    rest_of,
    weights_of,
)
from retilt.privacy.sensitivity import plan_noise

SCHEMA: dict[str, Any] = {
    "x": rt.Numeric(0, 4, integer=True),
    "a": rt.Categorical(("p", "q")),
    "b": rt.Categorical(("p", "q", "r")),
    "c": rt.Boolean(),
}
SYNTHETIC = pa.table(
    {
        "x": [0, 1, 2, 3, 4, 2] * 10,
        "a": ["p", "q"] * 30,
        "b": ["p", "q", "r"] * 20,
        "c": [True, False, False, True] * 15,
    }
)
PRIVATE = pa.table(
    {
        "x": [4, 4, 4, 3] * 25,
        "a": ["p", "q"] * 50,
        "b": ["p", "q", "r", "r"] * 25,
        "c": [True, True, False, True] * 25,
    }
)
BUDGETS: dict[str, dict[str, float]] = {
    "pure": {"epsilon": 1.0, "delta": 0},
    "approx": {"epsilon": 1.0, "delta": 1e-6},
    "zcdp": {"rho": 0.1},
}
UNITS: dict[str, Any] = {
    "replace-one": rt.ReplaceOneRow(),
    "add-remove": rt.AddRemoveOneRow(),
}


def workload() -> rt.Workload:
    return (
        rt.marginals(["a", "b", "c"], k=2)
        + rt.moments(["x"])
        + rt.means("x", by="b")
        + rt.share("x >= 2", by="a")
    )


def make(
    budget: str = "approx", select: int = 2, unit: str = "replace-one", **more: Any
) -> rt.Plan:
    options = {"rows": 100, "schema": SCHEMA, **BUDGETS[budget], **more}
    return rt.plan(SYNTHETIC, workload(), select=select, unit=UNITS[unit], **options)


# -- budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.2, 1 / 3, 0.7, 0.999999])
@pytest.mark.parametrize("choose", [1, 100])
@pytest.mark.parametrize(
    "budget", [rt.PureDP(0.7), rt.ApproxDP(0.3, 1e-9), rt.ApproxDP(1, 1e-9), rt.ZCDP(0.013)]
)
def test_the_parts_never_add_up_to_more_than_the_whole(
    budget: Any, choose: int, share: float
) -> None:
    part = budget_of_choice(budget, share, choose)
    rest = rest_of(budget, part)
    for name in ("epsilon", "delta", "rho"):
        whole = getattr(budget, name, None)
        if whole is not None:
            both = sum(decimal(getattr(b, name, 0)) for b in (part, rest))
            assert 0 <= decimal(whole) - both <= Fraction(1, 10**15) * decimal(whole)
    assert type(rest) is type(budget)


def test_many_choices_are_made_by_zcdp_with_a_little_of_delta() -> None:
    budget = rt.ApproxDP(1.0, 1e-9)
    assert budget_of_choice(budget, 0.2, 3) == rt.PureDP(0.2)
    part = budget_of_choice(budget, 0.2, 100)
    assert part == rt.ApproxDP(0.2, 1e-10)
    assert rest_of(budget, part) == rt.ApproxDP(0.8, 9e-10)
    noise = [Choice.of(b, 100).deviation for b in (part, rt.PureDP(0.2))]
    assert noise[0] < noise[1] / 2


def test_a_budget_that_leaves_nothing_is_refused() -> None:
    for whole, part in (
        (rt.PureDP(1), rt.PureDP(1)),
        (rt.ApproxDP(1, 1e-6), rt.ApproxDP(0.5, 1e-6)),
        (rt.ZCDP(1), rt.ZCDP(2)),
    ):
        with pytest.raises(InputError, match="nothing is left of the budget"):
            rest_of(whole, part)
    for whole, part in (
        (rt.ZCDP(1), rt.PureDP(0.1)),
        (rt.PureDP(1), rt.ZCDP(0.1)),
        (rt.PureDP(1), rt.ApproxDP(0.1, 1e-6)),
    ):
        with pytest.raises(InputError, match="not of the plan's kind"):
            rest_of(whole, part)


@pytest.mark.parametrize("given", [0, -1, True, 2.0, "3", None, float("nan")])
def test_what_is_no_number_of_measures_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"^select: got .*, expected a whole number above 0"):
        check_choose(given, 10)


@pytest.mark.parametrize("given", [3, 4, 10**30])
def test_to_choose_all_or_more_is_refused(given: int) -> None:
    with pytest.raises(InputError, match=r"^select: got .* of 3 measures: there is nothing to"):
        check_choose(given, 3)


@pytest.mark.parametrize("given", [0, 1, -0.1, True, "0.2", float("nan"), float("inf"), None])
def test_what_is_no_share_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"^select_share: got .*, expected a number between 0"):
        check_share(given)


# -- scores ----------------------------------------------------------------------------------------


def scores(plan: rt.Plan, table: pa.Table = PRIVATE) -> list[int]:
    return plan.scores(sums_of(fit_for(table, plan), plan))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_table_like_the_synthetic_one_scores_below_zero(budget: str, unit: str) -> None:
    plan = make(budget, unit=unit, rows=60)
    assert max(scores(plan, SYNTHETIC)) <= 0


def test_a_score_is_the_distance_in_rows_less_the_noise() -> None:
    plan = rt.plan(
        SYNTHETIC,
        rt.share("x = 4") + rt.share("x = 0"),
        epsilon=1.0,
        delta=0,
        rows=100,
        schema=SCHEMA,
        select=1,
    )
    found = scores(plan)
    # 75 of 100 rows have a 4, and of the synthetic ones 10 in 60; none a 0, and 10 in 60.
    # A share is asked as plus or minus 1, so a row moves it by 2.
    noise = plan.noise.scales[0] / plan.noise.steps[0] / 2
    assert found[0] == pytest.approx(GRANULARITY * (75 - 100 / 6 - noise), abs=2)
    assert found[1] == pytest.approx(GRANULARITY * (100 / 6 - noise), abs=2)


def test_importance_multiplies_scores_and_never_raises_one() -> None:
    assert weights_of([1.0, 4.0, 2.0]) == (
        Fraction(1, 2),
        Fraction(1),
        Fraction(741455, 2**20),
    )
    assert max(weights_of([1e-300, 1e300])) == 1
    heavy = rt.share("x = 4", weight=1.0) + rt.share("x = 0", weight=100.0)
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 0, "rows": 100, "schema": SCHEMA}
    plain = rt.share("x = 4") + rt.share("x = 0")
    one, other = (scores(rt.plan(SYNTHETIC, w, select=1, **options)) for w in (plain, heavy))
    assert one[0] > one[1]
    assert other[0] < other[1]


def test_scores_never_pass_62_bits() -> None:
    plan = make(unit="add-remove")
    huge = [10**40] * (plan.queries.size + 1)
    assert all(abs(s) <= 2**62 for s in plan.scores(huge))


# -- every choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_no_choice_has_more_noise_than_the_plan_says(budget: str, unit: str) -> None:
    plan = make(budget, unit=unit)
    most = dict(
        zip(
            [*plan.queries.keys, "count"],
            [s / f for s, f in zip(plan.noise.scales, plan.noise.factors, strict=True)],
            strict=False,
        )
    )
    errors = dict(zip(plan.queries.statistic_keys, plan.expected, strict=True))
    for places in itertools.combinations(range(len(plan.measures)), 2):
        made = plan.chosen(places)
        assert made.noise.sensitivity <= plan.noise.sensitivity * (1 + 1e-12)
        own = [s / f for s, f in zip(made.noise.scales, made.noise.factors, strict=True)]
        for key, noise in zip([*made.queries.keys, "count"], own, strict=False):
            assert noise <= most[key] * (1 + 1e-12)
        assert made.budget == plan.budget
        assert made.measuring == plan.measuring
        assert made.expected == tuple(errors[k] for k in made.queries.statistic_keys)
        assert amount_of(plan).rho >= amount_of(made).rho or budget == "zcdp"
        made.check_files()


def test_a_chosen_plan_is_calibrated_to_the_rest_alone() -> None:
    made = make("pure").chosen([0, 1])
    alone = plan_noise(made.queries, made.scales, None, rt.PureDP(0.8), rows=100)
    assert made.noise == alone


def test_noise_that_could_be_too_small_or_too_large_for_a_choice_is_refused() -> None:
    with pytest.raises(PrivacyError, match="too large"):
        make("approx", epsilon=1e-14)
    with pytest.raises(PrivacyError, match="so small that sums need"):
        make("pure", epsilon=1e60)


def test_queries_of_two_measures_are_asked_once() -> None:
    twice = rt.means("x") + rt.moments(["x"]) + rt.share("x >= 2") + rt.share("x >= 2")
    plan = rt.plan(SYNTHETIC, twice, epsilon=1.0, rows=100, schema=SCHEMA, select=2)
    for places in itertools.combinations(range(4), 2):
        made = plan.chosen(places)
        sums = plan.sums_of_chosen(made, list(range(plan.queries.size)))
        assert len(sums) == made.queries.size == len(made.noise.scales)
    answers = rt.measure(PRIVATE, plan)
    assert len(answers.plan.measures) == 2


# -- the promise -----------------------------------------------------------------------------------


def test_the_statement_counts_choosing_measuring_and_the_generator() -> None:
    generator = rt.Generator(rt.ApproxDP(1, 1e-6), "replace-one")
    plan = make(generator=generator)
    answers = rt.measure(PRIVATE, plan)
    assert answers.privacy["post_processing"] == {
        "kind": "approx-dp",
        "epsilon": 1.0,
        "delta": 1e-6,
    }
    assert answers.privacy["total"] == {"kind": "approx-dp", "epsilon": 2, "delta": 2e-6}
    assert answers.privacy["selection"] == {
        "chosen": 2,
        "candidates": 6,
        "mechanism": "noisy-max-exponential",
        "choosing": {"kind": "pure-dp", "epsilon": 0.2},
        "measuring": {"kind": "approx-dp", "epsilon": 0.8, "delta": 1e-6},
    }
    assert "Of 6 measures 2 were chosen" in answers.statement
    assert "ε = 0.2 pure DP of it" in answers.statement
    assert "(ε = 2, δ = 2e-6)-DP" in answers.statement
    assert "Of 6 measures 2 are chosen" in plan.statement
    page = answers.privacy_page()
    assert "Of it for choosing 2 of 6 measures" in page
    assert "Of it for measuring them" in page
    assert "selection" not in make_plain().privacy


def make_plain() -> rt.Plan:
    return rt.plan(SYNTHETIC, workload(), epsilon=1.0, delta=1e-6, rows=100, schema=SCHEMA)


def test_the_ledger_is_charged_with_all_of_it_and_knows_the_plan(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("adult", epsilon=3, delta=1e-5)
    plan = make()
    answers = rt.measure(PRIVATE, plan, ledger=ledger)
    assert answers.ledger is not None
    assert answers.ledger.spent == {"epsilon": 1, "delta": 1e-6}
    (charge,) = ledger.account().charges
    assert charge.plan_sha256 == plan.sha256 != answers.plan.sha256
    assert charge.answers_sha256 == answers.sha256
    assert charge.selected
    assert ledger.account().tight() is None  # no distribution of the choice is worked out
    with pytest.warns(rt.exceptions.RepeatedPlanWarning):
        rt.measure(PRIVATE, plan, ledger=ledger)


def test_a_ledger_with_zcdp_is_charged_with_both_rhos(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("adult", epsilon=3, delta=1e-5, composition="zcdp")
    rt.measure(PRIVATE, make("zcdp"), ledger=ledger)
    assert ledger.account().spent.rho == Fraction(1, 10)
    plan = make()
    before = ledger.account().spent.rho
    answers = rt.measure(PRIVATE, plan, ledger=ledger)
    calibration = answers.plan.noise.calibration
    assert calibration is not None
    measuring = Fraction(calibration.distance) ** 2 / 2
    choosing = Fraction(1, 5) ** 2 / 2
    grown = ledger.account().spent.rho - before
    assert measuring + choosing <= grown <= (measuring + choosing) * Fraction(10001, 10000)


def test_a_ledger_of_plain_charges_stays_as_it_was(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("adult", epsilon=3, delta=1e-5)
    rt.measure(PRIVATE, make_plain(), ledger=ledger)
    assert not ledger.account().charges[0].selected
    assert b"selections" not in ledger.path.read_bytes()


def test_what_was_chosen_is_not_measured_again() -> None:
    answers = rt.measure(PRIVATE, make())
    with pytest.raises(InputError, match="were chosen by a measurement"):
        rt.measure(PRIVATE, answers.plan)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_files_are_read_as_they_were_written(budget: str, unit: str, tmp_path: Any) -> None:
    plan = make(budget, unit=unit)
    plan.save(tmp_path / "plan.json")
    read = rt.load_plan(tmp_path / "plan.json")
    assert read == plan
    assert read.sha256 == plan.sha256
    answers = rt.measure(PRIVATE, read)
    answers.save(tmp_path / "answers.json")
    again = rt.load_answers(tmp_path / "answers.json")
    assert again == answers
    assert isinstance(again.plan.selection, Selected)
    assert again.plan.selection.plan_sha256 == plan.sha256
    assert "selection" not in make_plain().to_dict()


BAD_PLANS: dict[str, tuple[str, Any]] = {
    "no object": ("selection", []),
    "null": ("selection", None),
    "no number": ("selection.choose", "2"),
    "true": ("selection.choose", True),
    "all": ("selection.choose", 6),
    "none": ("selection.choose", 0),
    "no rows": ("selection.rows", 0),
    "float rows": ("selection.rows", 60.0),
    "no list": ("selection.sums", "0"),
    "too few": ("selection.sums", ["0"]),
    "numbers": ("selection.sums", [0] * 37),
    "no budget": ("selection.budget", None),
    "too much": ("selection.budget", {"kind": "pure-dp", "epsilon": 1.0}),
    "zcdp": ("selection.budget", {"kind": "zcdp", "rho": 0.1}),
    "all of delta": ("selection.budget", {"kind": "approx-dp", "epsilon": 0.2, "delta": 1e-6}),
    "unknown key": ("selection.more", 1),
}


@pytest.mark.parametrize("bad", BAD_PLANS)
def test_a_plan_with_another_selection_is_refused(bad: str) -> None:
    path, value = BAD_PLANS[bad]
    with pytest.raises(RetiltError):
        plan_from_dict(edited(make().to_dict(), path, value))


@pytest.mark.parametrize("text", ["1.5", "x", "", "1" * 50, "0x1"])
def test_sums_that_are_none_are_refused(text: str) -> None:
    content = make().to_dict()
    content["selection"]["sums"][0] = text
    with pytest.raises(InputError, match="sums"):
        plan_from_dict(content)


BAD_ANSWERS: dict[str, tuple[str, Any]] = {
    "fewer candidates": ("plan.selection.candidates", 2),
    "no candidates": ("plan.selection.candidates", 0),
    "a hash that is none": ("plan.selection.plan_sha256", "x"),
    "another hash": ("plan.selection.plan_sha256", "0" * 64),
    "nothing spent": ("plan.selection.budget", {"kind": "pure-dp", "epsilon": 1e-300}),
    "less spent": ("plan.selection.budget", {"kind": "pure-dp", "epsilon": 0.1}),
    "another claim": ("privacy.selection.choosing", {"kind": "pure-dp", "epsilon": 0.1}),
    "no claim": ("privacy.selection", None),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_answers_with_another_selection_are_refused(bad: str) -> None:
    path, value = BAD_ANSWERS[bad]
    with pytest.raises(RetiltError):
        answers_from_dict(edited(rt.measure(PRIVATE, make()).to_dict(), path, value))


def test_answers_to_a_plan_that_has_not_chosen_are_refused() -> None:
    from retilt.privacy.answers import make_answers

    plan = make()
    unmeasured = make_answers(plan, [0] * plan.queries.size, private=True)
    with pytest.raises(FormatError, match="yet to be chosen"):
        answers_from_dict(unmeasured.to_dict())


def test_selections_are_checked_at_construction() -> None:
    with pytest.raises(InputError, match="rows"):
        Selection(1, rt.PureDP(1), 0, ())
    with pytest.raises(InputError, match="sums"):
        Selection(1, rt.PureDP(1), 1, (1.5,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="candidates"):
        Selected(0, rt.PureDP(1), None)


# -- rounds ----------------------------------------------------------------------------------------


def highest(scores: Any, _choice: Choice) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def rounds(scores: list[int], tables: list[str], count: int) -> list[int]:
    names = [frozenset(t) if t else None for t in tables]
    return choose(scores, names, Choice(count, 1.0, False, Fraction(0)), highest)


def test_the_highest_of_those_left_is_taken_in_each_round() -> None:
    assert rounds([1, 9, 5, 7], ["", "", "", ""], 3) == [1, 3, 2]


def test_tables_of_pairs_that_were_taken_are_worth_less() -> None:
    tables = ["abc", "abd", "cde", "ab", "a", ""]
    # Of abd one of three pairs is known, of cde none; of ab and a all.
    assert rounds([1000, 900, 800, 700, 700, 600], tables, 6) == [0, 2, 5, 1, 3, 4]
    assert rounds([1000, 999, 500], ["ab", "ab", "cd"], 2) == [0, 2]  # with other bins
    assert rounds([1000, -5, -6], ["ab", "cd", "ab"], 2) == [0, 1]  # below 0 it stays


@pytest.mark.parametrize("share", ["1", "4/9", "1/9", "1/16"])
def test_what_is_taken_moves_no_scores_apart(share: str) -> None:
    part = Fraction(share)
    for score in range(-3 * GRANULARITY, 3 * GRANULARITY, 97):
        for change in (1, 50, GRANULARITY):
            moved = _damped(score + change, part) - _damped(score, part)
            assert 0 <= moved <= change


def test_newness_of_tables() -> None:
    abc = frozenset(map(frozenset, ("ab", "ac", "bc")))
    assert newness(None, set()) == 1
    assert newness(abc, set()) == 1
    assert newness(abc, {frozenset("ab")}) == Fraction(4, 9)
    assert newness(abc, set(abc)) == Fraction(1, 16)


def test_a_plan_knows_which_measures_are_tables() -> None:
    tables = make().tables
    assert tables[:3] == (frozenset("ab"), frozenset("ac"), frozenset("bc"))
    assert tables[3:] == (None, None, None)
