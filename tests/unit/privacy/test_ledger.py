"""The ledger: what is charged, what is refused, and what no crash or neighbour can undo."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retilt as rt
from retilt.exceptions import (
    BudgetError,
    InputError,
    LedgerError,
    LedgerUnusableError,
    LedgerWarning,
    RepeatedPlanWarning,
    RowCountError,
    WorkloadError,
)
from retilt.privacy.account import (
    Account,
    ChargeRecord,
    amount_of,
    amount_of_budget,
    entry_from_dict,
    make_cap,
)
from retilt.privacy.budget import zcdp_to_approx
from retilt.privacy.ledger import Ledger

SYNTHETIC = pa.table({"age": [20, 30, 40, 50], "sex": ["F", "M", "F", "M"]})
PRIVATE = pa.table({"age": [25, 35, 45, 55], "sex": ["M", "M", "F", "F"]})


def make(epsilon: float | None = 1, delta: float | None = 1e-9, **options: Any) -> rt.Plan:
    options.setdefault("rows", 4)
    return rt.plan(SYNTHETIC, rt.marginal(["sex"]), epsilon=epsilon, delta=delta, **options)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "budget.db")
    made.open_dataset("adult", epsilon=3, delta=1e-6)
    return made


def shown(ledger: Ledger, name: str | None = None) -> dict[str, Any]:
    return json.loads(json.dumps(ledger.account(name).to_dict(), allow_nan=False))


# --- charging -----------------------------------------------------------------------------


def test_a_measurement_is_charged_before_it_is_made(ledger: Ledger) -> None:
    plan = make()
    answers = rt.measure(PRIVATE, plan, ledger=ledger)
    found = shown(ledger)
    assert found["name"] == "adult"
    assert found["cap"] == {"epsilon": 3, "delta": 1e-6}
    assert found["spent"] == {"epsilon": 1, "delta": 1e-9}
    (charge,) = found["charges"]
    assert charge["state"] == "spent"
    assert charge["plan_sha256"] == plan.sha256
    assert charge["answers_sha256"] == answers.sha256
    assert answers.ledger is not None
    assert answers.ledger.to_dict() == {
        "dataset": "adult",
        "charge": 1,
        "composition": "sums",
        "cap": {"epsilon": 3, "delta": 1e-6},
        "spent": {"epsilon": 1, "delta": 1e-9},
    }
    assert "charge 1 of the ledger's data set 'adult'" in answers.statement
    assert "ε = 1, δ = 1e-9 of a cap of ε = 3, δ = 1e-6" in answers.statement


def test_the_hash_is_that_of_the_file_and_survives_reading(ledger: Ledger, tmp_path: Path) -> None:
    answers = rt.measure(PRIVATE, make(), ledger=str(ledger.path), dataset="adult")
    answers.save(tmp_path / "answers.json")
    content = (tmp_path / "answers.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == answers.sha256
    again = rt.load_answers(tmp_path / "answers.json")
    assert again.sha256 == answers.sha256
    assert again.ledger == answers.ledger
    assert again.statement == answers.statement


def test_without_a_ledger_the_answers_say_so() -> None:
    answers = rt.measure(PRIVATE, make())
    assert answers.to_dict()["ledger"] is None
    assert "No ledger was kept" in answers.statement
    with pytest.raises(InputError, match="give the ledger, too"):
        rt.measure(PRIVATE, make(), dataset="adult")


def test_a_cap_of_sums(ledger: Ledger) -> None:
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RepeatedPlanWarning)
            rt.measure(PRIVATE, make(), ledger=ledger)
    with pytest.raises(BudgetError, match="the ε would pass the cap") as caught:
        rt.measure(PRIVATE, make(0.001), ledger=ledger)
    assert caught.value.exit_code == 3
    assert shown(ledger)["spent"] == {"epsilon": 3, "delta": 3e-9}


def test_delta_is_capped_too(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="the δ would pass the cap"):
        rt.measure(PRIVATE, make(delta=2e-6), ledger=ledger)
    with pytest.raises(BudgetError, match="the ε and δ would pass the cap"):
        rt.measure(PRIVATE, make(4, 2e-6), ledger=ledger)
    assert shown(ledger)["charges"] == shown(ledger)["withdrawn"] == []


def test_ten_tenths_are_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("tenths", epsilon=1, delta=0)
    for _ in range(10):
        _again(ledger, make(0.1, 0))
    assert shown(ledger)["spent"] == {"epsilon": 1, "delta": 0}
    with pytest.raises(BudgetError):
        _again(ledger, make(1e-9, 0))


def _again(ledger: Ledger, plan: rt.Plan) -> rt.Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedPlanWarning)
        return rt.measure(PRIVATE, plan, ledger=ledger)


def test_a_pure_cap_takes_pure_plans_only(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("pure", epsilon=1, delta=0)
    with pytest.raises(BudgetError, match="the δ would pass"):
        rt.measure(PRIVATE, make(0.5), ledger=ledger)


def test_rho_needs_a_data_set_of_its_own(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="open a data set with composition zcdp"):
        rt.measure(PRIVATE, make(None, None, rho=0.01), ledger=ledger)


def test_zcdp_adds_the_mechanisms_rho(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("z", epsilon=3, delta=1e-6, composition="zcdp")
    plan = make()
    rt.measure(PRIVATE, plan, ledger=ledger)
    found = shown(ledger)
    distance = plan.noise.calibration.distance  # type: ignore[union-attr]
    assert found["spent"]["rho"] == pytest.approx(distance**2 / 2, rel=1e-12)
    assert found["spent"]["epsilon"] == pytest.approx(
        zcdp_to_approx(distance**2 / 2, 1e-6), rel=1e-12
    )
    assert zcdp_to_approx(found["cap"]["rho"], 1e-6) <= 3
    assert zcdp_to_approx(found["cap"]["rho"], 1e-6) == pytest.approx(3, rel=1e-9)
    rt.measure(PRIVATE, make(0.3, 0), ledger=ledger)  # pure: epsilon**2 / 2
    assert shown(ledger)["spent"]["rho"] == pytest.approx(distance**2 / 2 + 0.045, rel=1e-12)
    rt.measure(PRIVATE, make(None, None, rho=0.01), ledger=ledger)
    with pytest.raises(BudgetError, match="the ρ would pass the cap"):
        rt.measure(PRIVATE, make(None, None, rho=0.2), ledger=ledger)


def test_a_cap_in_rho(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    ledger.open_dataset("r", rho=0.05)
    assert shown(ledger)["cap"] == {"epsilon": None, "delta": None, "rho": 0.05}
    rt.measure(PRIVATE, make(None, None, rho=0.05), ledger=ledger)
    assert shown(ledger)["spent"]["rho"] == 0.05
    with pytest.raises(BudgetError):
        rt.measure(PRIVATE, make(None, None, rho=1e-12), ledger=ledger)


@given(st.lists(st.floats(1e-6, 5), min_size=1, max_size=30), st.floats(0.1, 20))
def test_no_order_of_charges_passes_the_cap(epsilons: list[float], cap: float) -> None:
    most, composition = make_cap(cap, 0, None, None)
    account = Account("a", "replace-one", None, composition, most, None, "now", ())
    total = Fraction(0)
    for epsilon in epsilons:
        amount = amount_of_budget(rt.PureDP(epsilon))
        fits = total + Fraction(str(epsilon)) <= Fraction(str(cap))
        try:
            account.check(amount)
        except BudgetError:
            assert not fits
            continue
        assert fits
        total += Fraction(str(epsilon))
        record = ChargeRecord(1, "spent", "now", None, amount, None, None)
        account = replace(account, records=(*account.records, record))
    assert account.spent.epsilon == total


# --- refusals -----------------------------------------------------------------------------


def test_a_refused_charge_opens_no_private_file(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("the private table was opened")

    monkeypatch.setattr("retilt.pipeline.open_table", opened)
    with pytest.raises(BudgetError):
        rt.measure("/nowhere/private.csv", make(4), ledger=ledger)
    with pytest.raises(BudgetError):
        rt.measure("/nowhere/private.csv", make(unit="add-remove"), ledger=ledger)


def test_postprocess_with_rows_opens_the_private_table_only_to_measure_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retilt import pipeline

    order: list[str] = []
    honest, charge = pipeline.open_table, Ledger.charge

    def opening(given: Any, **options: Any) -> Any:
        order.extend(["private opened"] * options.get("private", False))
        return honest(given, **options)

    def charging(self: Ledger, *rest: Any) -> Any:
        order.append("charged")
        return charge(self, *rest)

    monkeypatch.setattr(pipeline, "open_table", opening)
    monkeypatch.setattr(Ledger, "charge", charging)
    workload = rt.marginal(["sex"])
    rt.postprocess(PRIVATE, SYNTHETIC, workload, epsilon=1, delta=1e-8, rows=4, ledger=ledger)
    assert order == ["charged", "private opened"]


def test_postprocess_refuses_before_the_private_table_is_opened(ledger: Ledger) -> None:
    workload = rt.marginal(["sex"])
    with pytest.raises(BudgetError):  # not: no such file
        rt.postprocess("/nowhere/private.csv", SYNTHETIC, workload, epsilon=4, ledger=ledger)
    result = rt.postprocess(PRIVATE, SYNTHETIC, workload, epsilon=1, delta=1e-8, ledger=ledger)
    assert result.answers.ledger is not None
    assert shown(ledger)["spent"] == {"epsilon": 1, "delta": 1e-8}


def test_what_is_publicly_wrong_costs_nothing(ledger: Ledger) -> None:
    with pytest.raises(RowCountError):
        rt.measure(PRIVATE, make(rows=5), ledger=ledger)
    with pytest.raises(WorkloadError):
        rt.measure(PRIVATE.drop_columns(["sex"]), make(), ledger=ledger)
    with pytest.raises(InputError):
        rt.measure("/nowhere/private.csv", make(), ledger=ledger)
    found = shown(ledger)
    assert found["charges"] == []
    assert [w["state"] for w in found["withdrawn"]] == ["withdrawn"] * 3
    assert found["spent"] == {"epsilon": 0, "delta": 0}


def test_a_fault_after_the_check_stays_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("s3cret")

    monkeypatch.setattr("retilt.pipeline.sums_of", fail)
    with pytest.raises(rt.RetiltError, match="withheld"):
        rt.measure(PRIVATE, make(), ledger=ledger)
    (charge,) = shown(ledger)["charges"]
    assert charge["state"] == "spent"
    assert charge["answers_sha256"] is None


def test_an_interrupt_before_anything_was_summed_costs_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retilt.pipeline.fit_for", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rt.measure(PRIVATE, make(), ledger=ledger)
    assert shown(ledger)["charges"] == []
    monkeypatch.undo()
    monkeypatch.setattr("retilt.pipeline.sums_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rt.measure(PRIVATE, make(), ledger=ledger)
    assert len(shown(ledger)["charges"]) == 1


def test_the_unit_has_to_agree(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    person = rt.AddRemoveOnePerson("id", 3)
    ledger.open_dataset("people", epsilon=3, delta=1e-6, unit=person)
    with pytest.raises(BudgetError, match="protects add-remove-person"):
        rt.measure(PRIVATE, make(), ledger=ledger)
    private = PRIVATE.append_column("id", pa.array(["a", "a", "b", "c"]))
    with pytest.raises(BudgetError, match="'who'"):
        rt.measure(private, make(unit=rt.AddRemoveOnePerson("who", 3)), ledger=ledger)
    # How many rows of a person are used may differ: the same persons are protected.
    rt.measure(private, make(unit=person), ledger=ledger)
    rt.measure(private, make(unit=rt.AddRemoveOnePerson("id", 1)), ledger=ledger)
    assert shown(ledger)["spent"]["epsilon"] == 2


def test_the_generator_has_to_agree(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    declared = rt.Generator(rt.ApproxDP(3, 1e-9), "add-remove")  # type: ignore[arg-type]
    ledger.open_dataset("adult", epsilon=3, delta=1e-6, generator=declared)
    with pytest.raises(BudgetError, match="in the plan as no guarantee"):
        rt.measure(PRIVATE, make(), ledger=ledger)
    other = rt.Generator(rt.ApproxDP(1, 1e-9), "add-remove")  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="declared as"):
        rt.measure(PRIVATE, make(generator=other), ledger=ledger)
    assert shown(ledger)["total"] == {"epsilon": 6, "delta": pytest.approx(2.1e-8, rel=0.01)}
    rt.measure(PRIVATE, make(generator=declared), ledger=ledger)
    found = shown(ledger)
    assert found["generator"] == {
        "kind": "approx-dp",
        "epsilon": 3,
        "delta": 1e-9,
        "unit": "add-remove",
    }
    assert found["total"]["epsilon"] == 7
    with pytest.raises(rt.RetiltError, match="can't be turned into one"):
        ledger.open_dataset(
            "other",
            epsilon=1,
            delta=0,
            unit="add-remove",
            generator=rt.Generator(rt.PureDP(1), "replace-one"),  # type: ignore[arg-type]
        )


def test_the_same_plan_twice_warns_and_points_to_the_answers(
    ledger: Ledger, tmp_path: Path
) -> None:
    plan = make()
    answers = rt.measure(PRIVATE, plan, ledger=ledger)
    ledger.note_file(1, tmp_path / "answers.json")
    with pytest.warns(RepeatedPlanWarning) as caught:
        rt.measure(PRIVATE, plan, ledger=ledger)
    said = str(caught[0].message)
    assert str(tmp_path / "answers.json") in said
    assert answers.sha256 in said
    assert len(caught) == 1


def test_a_plan_with_code_is_charged_without_a_hash(ledger: Ledger) -> None:
    workload = rt.function(lambda batch: batch["age"].to_numpy() / 100.0, columns=["age"])
    for _ in range(2):  # and never taken for another
        plan = rt.plan(SYNTHETIC, workload, epsilon=1, delta=1e-9, rows=4)
        rt.measure(PRIVATE, plan, ledger=ledger)
    found = shown(ledger)["charges"]
    assert [c["plan_sha256"] for c in found] == [None, None]
    assert [c["answers_sha256"] for c in found] == [None, None]


# --- data sets ----------------------------------------------------------------------------


def test_several_data_sets(ledger: Ledger) -> None:
    ledger.open_dataset('bank, of "x"; DROP TABLE charges; --', epsilon=1, delta=0)
    assert len(ledger.names()) == 2
    with pytest.raises(LedgerError, match="no name was given"):
        ledger.account()
    with pytest.raises(LedgerError, match="expected one of its data sets: 'adult'"):
        rt.measure(PRIVATE, make(), ledger=ledger, dataset="nobody")
    rt.measure(PRIVATE, make(1, 0), ledger=ledger, dataset=ledger.names()[1])
    assert shown(ledger, "adult")["charges"] == []
    assert len(shown(ledger, ledger.names()[1])["charges"]) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "give epsilon and delta"),
        ({"epsilon": 1}, "give epsilon and delta"),
        ({"epsilon": 0, "delta": 0}, "epsilon: got 0"),
        ({"epsilon": float("nan"), "delta": 0}, "epsilon: got nan"),
        ({"epsilon": float("inf"), "delta": 1e-9}, "epsilon: got inf"),
        ({"epsilon": 1, "delta": 1}, "delta: got 1"),
        ({"epsilon": 1, "delta": -1e-9}, "delta: got"),
        ({"epsilon": "3", "delta": 0}, "epsilon: got '3'"),
        ({"epsilon": 1, "delta": 0, "composition": "zcdp"}, "needs a delta above 0"),
        ({"epsilon": 1, "delta": 1e-9, "composition": "pld"}, "expected 'sums' or 'zcdp'"),
        ({"rho": 0.1, "epsilon": 1}, "stands alone"),
        ({"rho": 0.1, "composition": "sums"}, "stands alone"),
        ({"rho": -1}, "rho: got -1"),
        ({"epsilon": 1, "delta": 0, "unit": "nobody"}, "unit: got 'nobody'"),
        ({"epsilon": 1, "delta": 0, "generator": "AIM"}, "expected a Generator"),
    ],
)
def test_caps_that_are_none(tmp_path: Path, options: dict[str, Any], word: str) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    with pytest.raises(InputError, match=word):
        ledger.open_dataset("adult", **options)
    assert not ledger.path.exists()


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a\x00b", "x" * 201, None, 3, "\ud800"])
def test_names_that_are_none(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InputError, match="name: got"):
        Ledger(tmp_path / "budget.db").open_dataset(name, epsilon=1, delta=0)


def test_a_cap_is_not_opened_twice(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="has a data set 'adult' already"):
        ledger.open_dataset("adult", epsilon=30, delta=1e-6)
    assert shown(ledger)["cap"]["epsilon"] == 3
    for alike in ("Adult", "ADULT", "\uff41dult"):
        with pytest.raises(InputError, match="has a data set 'adult' already"):
            ledger.open_dataset(alike, epsilon=30, delta=1e-6)


# --- the file -----------------------------------------------------------------------------


def test_a_missing_ledger_is_refused_and_not_made(tmp_path: Path) -> None:
    for use in (
        lambda: rt.measure(PRIVATE, make(), ledger=tmp_path / "budget.db"),
        lambda: Ledger(tmp_path / "budget.db").account(),
        lambda: Ledger(tmp_path / "no" / "budget.db").open_dataset("a", epsilon=1, delta=0),
        lambda: Ledger(tmp_path).account(),
    ):
        with pytest.raises(LedgerError):
            use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 4080, b"\x00" * 4096],
)
def test_a_file_that_is_no_ledger(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "budget.db"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        rt.measure(PRIVATE, make(), ledger=path)
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    before = path.read_bytes()
    for use in (
        lambda: Ledger(path).account(),
        lambda: Ledger(path).open_dataset("a", epsilon=1, delta=0),
    ):
        with pytest.raises(LedgerError, match="no ledger of retilt"):
            use()
        assert path.read_bytes() == before


def test_a_newer_format_is_refused(ledger: Ledger) -> None:
    database = sqlite3.connect(ledger.path)
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(LedgerError, match="another version"):
        ledger.account()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM charges",
        "DELETE FROM datasets",
        "UPDATE datasets SET epsilon = '100'",
        "UPDATE charges SET epsilon = '0'",
        "UPDATE charges SET rho = '0'",
        "UPDATE charges SET dataset = 'other'",
        "UPDATE charges SET state = 'withdrawn'",
        "UPDATE charges SET state = 'reserved'",
        "UPDATE charges SET answers_sha256 = 'x'",
        "UPDATE charges SET number = 7",
        "INSERT INTO charges (dataset, state, time, rho) VALUES ('adult', 'withdrawn', '', '0')",
        "INSERT INTO charges (dataset, state, time, rho) VALUES ('adult', 'spent', '', '0')",
        "INSERT OR REPLACE INTO charges (number, dataset, state, time, epsilon, delta, rho) "
        "VALUES (1, 'adult', 'reserved', 'x', '0', '0', '0')",
        "INSERT OR REPLACE INTO datasets SELECT name, unit, person, composition, '1000', delta, "
        "rho, generator, opened FROM datasets",
        "INSERT OR REPLACE INTO datasets (rowid, name, unit, composition, opened) "
        "VALUES (1, 'other', 'replace-one', 'sums', '')",
        "UPDATE charges SET rowid = 77",
        "UPDATE OR REPLACE charges SET number = 77",
    ],
)
def test_the_file_itself_refuses_to_forget(ledger: Ledger, sql: str) -> None:
    rt.measure(PRIVATE, make(), ledger=ledger)
    database = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(sql)
    database.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("epsilon", "NaN"),
        ("epsilon", "-1"),
        ("epsilon", "1e999999999"),
        ("epsilon", b"1"),
        ("epsilon", "1" * 5000),
        ("rho", "x"),
        ("rho", "Infinity"),
        ("number", None),
    ],
)
def test_a_damaged_charge_is_an_error(ledger: Ledger, column: str, value: Any) -> None:
    database = sqlite3.connect(ledger.path)
    row = {"dataset": "adult", "state": "reserved", "time": "", "epsilon": "1", "rho": "1"}
    row |= {"delta": "0", column: value}
    if column == "number":  # a state that no version writes can't be entered at all
        row |= {"number": 1, "state": "free"}
        with pytest.raises(sqlite3.IntegrityError):
            _insert(database, row)
        return
    _insert(database, row)
    database.commit()
    database.close()
    with pytest.raises(LedgerError, match="damaged or edited"):
        rt.measure(PRIVATE, make(), ledger=ledger)


def _insert(database: sqlite3.Connection, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO charges ({', '.join(row)}) VALUES ({marks})", [*row.values()])


def test_names_of_files_are_not_sqlite_options(tmp_path: Path) -> None:
    for name in ("a?mode=memory", "b#c", "d%41", "e f", "é", "file:x"):
        ledger = Ledger(tmp_path / name)
        ledger.open_dataset("adult", epsilon=3, delta=1e-6)
        assert ledger.path.is_file()
        rt.measure(PRIVATE, make(), ledger=ledger)
        assert len(shown(ledger)["charges"]) == 1


def test_hard_links_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    os.link(ledger.path, tmp_path / "second.db")
    with pytest.raises(LedgerError, match="hard links"):
        rt.measure(PRIVATE, make(), ledger=ledger)


def test_a_charge_is_in_the_file_itself(ledger: Ledger, tmp_path: Path) -> None:
    """A copy that was made without the -wal file, while somebody has the ledger open, has it."""
    idle = sqlite3.connect(ledger.path)
    assert idle.execute("SELECT count(*) FROM charges").fetchone() == (0,)
    rt.measure(PRIVATE, make(), ledger=ledger)
    (tmp_path / "copy.db").write_bytes(ledger.path.read_bytes())
    idle.close()
    assert shown(Ledger(tmp_path / "copy.db"))["spent"]["epsilon"] == 1


@pytest.mark.parametrize("create", [True, False])
def test_every_commit_is_on_the_disk(ledger: Ledger, tmp_path: Path, create: bool) -> None:
    """Write-ahead log, flushed at each commit: of a new file and of one that another made."""
    if create:
        ledger = Ledger(tmp_path / "new.db")
    else:
        with sqlite3.connect(ledger.path) as database:
            database.execute("PRAGMA journal_mode = DELETE")
        database.close()
    with ledger._connected(create=create) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert database.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)


def test_a_ledger_does_not_follow_the_folder(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = Ledger(Path("budget.db"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rt.measure(PRIVATE, make(), ledger=relative)
    assert shown(ledger)["spent"]["epsilon"] == 1


def test_a_full_disk_after_the_charge_keeps_the_answers(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Ledger._update

    def full(self: Ledger, number: int, change: str, *rest: Any) -> None:
        if "answers_sha256" in change:
            raise LedgerUnusableError("ledger: it can't be used (disk I/O error).")
        honest(self, number, change, *rest)

    monkeypatch.setattr(Ledger, "_update", full)
    with pytest.warns(LedgerWarning, match="could not be noted"):
        answers = rt.measure(PRIVATE, make(), ledger=ledger)
    assert answers.ledger is not None
    (charge,) = shown(ledger)["charges"]
    assert charge["state"] == "spent"


def test_a_symbolic_link_is_the_same_ledger(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(ledger.path)
    rt.measure(PRIVATE, make(), ledger=tmp_path / "link.db")
    assert shown(ledger)["spent"]["epsilon"] == 1


def test_a_ledger_that_is_replaced_while_measuring_releases_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from retilt import pipeline

    honest = pipeline.fit_for

    def swap(private: Any, plan: rt.Plan) -> Any:
        other = Ledger(tmp_path / "other.db")
        other.open_dataset("adult", epsilon=3, delta=1e-6)
        for path in tmp_path.glob("budget.db*"):
            path.unlink()
        other.path.replace(ledger.path)
        return honest(private, plan)

    monkeypatch.setattr(pipeline, "fit_for", swap)
    with pytest.raises(LedgerError, match="replaced while it was in use"):
        rt.measure(PRIVATE, make(), ledger=ledger)


@pytest.mark.parametrize("unfit", [0, "x", {}, {"dataset": "a"}, []])
def test_the_entry_in_answers_is_read_strictly(ledger: Ledger, unfit: Any) -> None:
    answers = rt.measure(PRIVATE, make(), ledger=ledger)
    assert answers.ledger is not None
    assert entry_from_dict(answers.ledger.to_dict()) == answers.ledger
    with pytest.raises(InputError):
        entry_from_dict(unfit)
    for key, value in (
        ("dataset", "a\nb"),
        ("charge", True),
        ("charge", 0),
        ("composition", "pld"),
        ("cap", {"epsilon": 1}),
        ("spent", {"epsilon": -1, "delta": 0}),
        ("spent", {"epsilon": "1", "delta": 0}),
        ("spent", None),
    ):
        with pytest.raises(InputError):
            entry_from_dict({**answers.ledger.to_dict(), key: value})


def test_what_a_plan_spends_is_what_its_noise_costs() -> None:
    plan = make(None, None, rho=0.05)
    assert amount_of(plan).rho == Fraction("0.05")
    mu = Fraction(plan.noise.calibration.distance)  # type: ignore[union-attr]
    assert mu**2 / 2 <= amount_of(plan).rho
    approx = make()
    mu = Fraction(approx.noise.calibration.distance)  # type: ignore[union-attr]
    assert mu**2 / 2 <= amount_of(approx).rho <= mu**2 / 2 * (1 + Fraction(1, 10**30))


# --- processes ----------------------------------------------------------------------------

RACE = """
import sys
import pyarrow as pa
import retilt as rt
from retilt.exceptions import BudgetError
table = pa.table({"age": [25, 35, 45, 55], "sex": ["M", "M", "F", "F"]})
plan = rt.load_plan(sys.argv[1])
sys.stdin.readline()
try:
    rt.measure(table, plan, ledger=sys.argv[2])
except BudgetError:
    sys.exit(3)
"""


@pytest.mark.parametrize("processes", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_processes_that_race_never_pass_the_cap(
    ledger: Ledger, tmp_path: Path, processes: int
) -> None:
    """All wait for the same line; three at most may measure, whoever comes first."""
    make(0.9).save(tmp_path / "plan.json")
    command = [sys.executable, "-W", "ignore", "-c", RACE, str(tmp_path / "plan.json")]
    started = [
        subprocess.Popen([*command, str(ledger.path)], stdin=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        process.communicate(timeout=300)
    codes = sorted(process.returncode for process in started)
    assert codes == [0] * 3 + [3] * (processes - 3)
    found = shown(ledger)
    assert found["spent"]["epsilon"] == 2.7
    assert all(c["answers_sha256"] for c in found["charges"])


def test_an_error_says_what_became_of_its_charge(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RowCountError) as caught:
        rt.measure(PRIVATE, make(rows=5), ledger=ledger)
    assert caught.value.__notes__ == [
        "Nothing was measured: charge 1 of the data set 'adult' is withdrawn."
    ]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retilt.pipeline.sums_of", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        rt.measure(PRIVATE, make(), ledger=ledger)
    assert "charge 2 of the data set 'adult' stays" in stopped.value.__notes__[0]


def test_what_is_left(ledger: Ledger, tmp_path: Path) -> None:
    rt.measure(PRIVATE, make(0.7), ledger=ledger)
    assert shown(ledger)["left"] == {"epsilon": 2.3, "delta": 9.99e-7}
    other = Ledger(tmp_path / "rho.db")
    other.open_dataset("r", rho=1)
    rt.measure(PRIVATE, make(None, None, rho=1), ledger=other)
    assert shown(other)["left"] == {"rho": 0}


def test_a_ledger_where_nothing_can_be_written_is_still_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt.measure(PRIVATE, make(), ledger=ledger)
    monkeypatch.setattr("retilt.privacy.ledger.os.access", lambda *_: False)
    assert ledger.names() == ("adult",)
    assert shown(ledger)["spent"]["epsilon"] == 1
    assert not Path(f"{ledger.path}-shm").exists()
