"""The ledger's figures to the last unit, how it opens its file, and what a charge leaves behind."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import (
    BudgetError,
    InputError,
    LedgerError,
    LedgerUnusableError,
    RepeatedPlanWarning,
)
from retilt.measures.base import Relation
from retilt.privacy import account as accounts
from retilt.privacy import ledger as ledgers
from retilt.privacy.account import (
    Account,
    Amount,
    ChargeRecord,
    account_of,
    amount_of_budget,
    entry_from_dict,
    make_cap,
    stored,
)
from retilt.privacy.budget import ZCDP, ApproxDP, Generator, PureDP
from retilt.privacy.ledger import Charge, Ledger
from retilt.privacy.unit import AddRemoveOnePerson

TABLE = pa.table({"sex": ["F", "M", "F", "M"]})
Make = Callable[..., Account]


def plan(epsilon: float = 1.0, delta: float = 1e-9) -> rt.Plan:
    return rt.plan(TABLE, rt.marginal(["sex"]), epsilon=epsilon, delta=delta, rows=4)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "budget.db")
    made.open_dataset("adult", epsilon=3, delta=1e-6)
    return made


def an_account(*amounts: Amount, **options: Any) -> Account:
    fields: dict[str, Any] = {
        "name": "adult",
        "neighbours": "add-remove-person",
        "person": "id",
        "composition": "sums",
        "cap": Amount(Fraction(3), Fraction(1, 10**6), Fraction(0)),
        "generator": Generator(PureDP(1), "add-remove-person"),  # type: ignore[arg-type]
        "opened": "",
        **options,
    }
    records = tuple(
        ChargeRecord(number, "spent", "", None, amount, None, None)
        for number, amount in enumerate(amounts, 1)
    )
    return Account(**fields, records=records)


# --- what is spent -------------------------------------------------------------------------


def test_pure_charges_are_pure_and_others_are_not() -> None:
    pure = Amount(Fraction(2), Fraction(0), Fraction(2))
    rough = Amount(Fraction(1), Fraction(1, 10**9), Fraction(1, 8))
    assert an_account().total == PureDP(1)
    assert an_account(pure).total == PureDP(3)
    assert an_account(pure, rough).total == ApproxDP(4, 1e-9)
    assert an_account(pure, generator=None).total is None


def test_a_total_is_rounded_up() -> None:
    # Just above a float, so that the nearest one is less than was spent.
    value = Fraction("0.3") + Fraction(1, 10**18)
    sums = an_account(Amount(value, Fraction(0), Fraction(0)))
    assert isinstance(sums.total, PureDP)
    assert Fraction(str(sums.total.epsilon)) >= value + 1
    with_rho = an_account(Amount(None, None, value), composition="zcdp", generator=None)
    spent = with_rho._as_budget()
    assert isinstance(spent, ZCDP)
    assert Fraction(str(spent.rho)) >= value


def test_what_has_no_epsilon_adds_none() -> None:
    spent = an_account(Amount(None, None, Fraction(1, 2))).spent
    assert spent == Amount(Fraction(0), Fraction(0), Fraction(1, 2))
    assert accounts._spent(Amount(None, None, Fraction(1)), "epsilon") == 0


def test_an_unknown_rho_is_none() -> None:
    assert amount_of_budget(ApproxDP(1, 1e-6)).rho == 0
    cap, composition = make_cap(2, 0, None, None)
    assert (cap, composition) == (Amount(Fraction(2), Fraction(0), Fraction(0)), "sums")


ROW = ("adult", "replace-one", None, "sums", "3", "0.000001", None, None, "2026-01-01")


def test_a_data_set_as_it_is_stored() -> None:
    found = account_of(ROW, [(1, "spent", "now", None, "1", "0", "0.5", None, None, 0)])
    assert found.cap == Amount(Fraction(3), Fraction(1, 10**6), Fraction(0))
    assert found.spent == Amount(Fraction(1), Fraction(0), Fraction(1, 2))
    with pytest.raises(InputError):
        account_of(("adult", "neither", *ROW[2:]), [])
    with pytest.raises(ValueError, match=r"^$"):
        account_of(ROW, [(1, "spent", "now", None, "1", "0", None, None, None, 0)])


@pytest.mark.parametrize(
    "unfit",
    [5, 0.5, b"1", "1" * 61, "-1", "-0.1", "NaN", "Infinity", "1e401", "1e-401", "one", ""],
)
def test_amounts_that_no_ledger_writes(unfit: Any) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        accounts._read(unfit)


def test_amounts_at_the_limits_are_read() -> None:
    for text in ("0", "1" * 60, "1e400", "1e-400"):
        assert accounts._read(text) == Fraction(Decimal(text))


def test_amounts_are_stored_with_forty_digits_rounded_up() -> None:
    assert stored(Fraction(1, 3)) == "0." + "3" * 39 + "4"
    assert stored(Fraction(1, 4)) == "0.25"


def test_an_entry_may_have_spent_no_delta() -> None:
    entry = {
        "dataset": "adult",
        "charge": 1,
        "composition": "sums",
        "cap": {"epsilon": 3, "delta": 0},
        "spent": {"epsilon": 1, "delta": 0},
    }
    found = entry_from_dict(entry)
    assert found is not None
    assert found.to_dict() == entry


# --- charges -------------------------------------------------------------------------------


def test_a_charge_that_was_not_spent_is_withdrawn(ledger: Ledger) -> None:
    with ledger.charge(plan()):
        assert ledger.account().records[0].state == "reserved"
    assert [r.state for r in ledger.account().records] == ["withdrawn"]
    assert ledger.account().spent.epsilon == 0


def test_a_charge_made_meanwhile_counts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process charges between the first look and the transaction."""
    real = ledgers._warn_of_repetition
    others = []

    def another(account: Account, sha256: str | None) -> None:
        if not others:
            others.append(plan(2.5))
            with ledger.charge(others[0]) as charge:
                charge.spend()
        real(account, sha256)

    monkeypatch.setattr(ledgers, "_warn_of_repetition", another)
    with pytest.raises(BudgetError, match="would pass the cap"), ledger.charge(plan(1.5)):
        pytest.fail("it was let through")
    assert ledger.account().spent.epsilon == Fraction("2.5")


def test_what_does_not_fit_is_refused_before_anything_is_said_of_it(ledger: Ledger) -> None:
    with ledger.charge(plan(2)) as charge:
        charge.spend()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedPlanWarning)
        with pytest.raises(BudgetError), ledger.charge(plan(2)):
            pytest.fail("it was let through")


def test_a_ledger_that_is_gone_is_not_made_anew(ledger: Ledger) -> None:
    def lose_it(charge: Charge) -> None:
        ledger.path.unlink()
        charge.spend()

    with pytest.raises(LedgerError, match="no such file"), ledger.charge(plan()) as charge:
        lose_it(charge)
    assert not ledger.path.exists()


def test_a_generator_of_persons_goes_with_a_unit_of_persons(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "budget.db")
    generator = Generator(PureDP(1), "add-remove-person")  # type: ignore[arg-type]
    unit = AddRemoveOnePerson("id", 3)
    ledger.open_dataset("visits", epsilon=1, delta=0, unit=unit, generator=generator)
    assert ledger.account().total == PureDP(1)
    rows = Generator(PureDP(1), Relation.ADD_REMOVE)
    with pytest.raises(rt.RetiltError, match="add up"):
        ledger.open_dataset("others", epsilon=1, delta=0, unit=unit, generator=rows)
    assert ledger.names() == ("visits",)


# --- the file ------------------------------------------------------------------------------


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger(tmp_path).names()


def test_every_commit_is_on_the_disk(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever SQLite's defaults are, and whatever the file's mode was set to."""
    with sqlite3.connect(ledger.path) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()
    real = sqlite3.connect

    def careless(*arguments: Any, **options: Any) -> sqlite3.Connection:
        found: sqlite3.Connection = real(*arguments, **options)
        for setting in ("synchronous = OFF", "foreign_keys = OFF", "trusted_schema = ON"):
            found.execute(f"PRAGMA {setting}")
        return found

    monkeypatch.setattr(sqlite3, "connect", careless)
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0}
    with ledger._connected() as database:
        for name, value in wanted.items():
            assert database.execute(f"PRAGMA {name}").fetchone() == (value,)


@pytest.mark.parametrize("waiting", [None, 0, 1, 2], ids=str)
@pytest.mark.parametrize("writable", [True, False])
def test_how_the_file_is_opened(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, waiting: int | None, writable: bool
) -> None:
    """Charges that wait in a -wal file are never passed over, and nothing is made by reading."""
    beside = Path(f"{ledger.path}-wal")
    beside.unlink(missing_ok=True)
    if waiting is not None:
        beside.write_bytes(b"\0" * waiting)
    opened: list[str] = []

    def refuse(where: str, *, uri: bool, **options: Any) -> sqlite3.Connection:
        assert uri
        opened.append(where.rpartition("?")[2])
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    monkeypatch.setattr(os, "access", lambda *_: writable)
    with pytest.raises(LedgerUnusableError, match="disk I/O error"):
        ledger.account("adult")
    with pytest.raises(LedgerUnusableError, match="disk I/O error"), ledger._transaction():
        pytest.fail("it was opened")
    reading = "mode=ro" if waiting else "immutable=1&mode=ro"
    assert opened == ["mode=rw" if writable else reading, "mode=rw"]
