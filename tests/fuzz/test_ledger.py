"""Ledger files with damaged bytes: an error of ours or an answer, never a crash or a hang."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import BudgetError, LedgerError
from retilt.privacy.ledger import Ledger

TABLE = pa.table({"sex": ["F", "M", "F"]})


def valid_bytes(folder: Path) -> bytes:
    """A ledger with two data sets and a few charges, all of it in one file."""
    import sqlite3

    ledger = Ledger(folder / "valid.db")
    ledger.open_dataset("adult", epsilon=3, delta=1e-6)
    ledger.open_dataset("people", rho=1)
    for epsilon in (0.1, 0.2, 0.3):
        plan = rt.plan(TABLE, rt.marginal(["sex"]), epsilon=epsilon, delta=0, rows=3)
        rt.measure(TABLE, plan, ledger=ledger, dataset="adult")
    database = sqlite3.connect(ledger.path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return ledger.path.read_bytes()


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Flipped, overwritten, cut, doubled or exchanged bytes."""
    made = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        place = chance.randrange(len(made))
        kind = chance.randrange(5)
        if kind == 0:
            made[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2 and len(made) > 200:
            del made[place : place + chance.randrange(1, 200)]
        elif kind == 3:
            made[place:place] = made[place : place + chance.randrange(1, 200)]
        else:
            other = chance.randrange(len(made))
            length = chance.randrange(1, 100)
            made[place : place + length] = made[other : other + length]
    return bytes(made)


def check(folder: Path, files: int, seed: int) -> int:
    """How many files were refused."""
    content, chance, refused = valid_bytes(folder), random.Random(seed), 0
    plan = rt.plan(TABLE, rt.marginal(["sex"]), epsilon=0.5, delta=0, rows=3)
    for number in range(files):
        path = folder / f"{number}.db"
        path.write_bytes(damaged(content, chance))
        ledger = Ledger(path)
        try:
            for name in ledger.names():
                account = ledger.account(name)
                account.to_dict()
                with ledger.charge(plan, name) as charge:
                    charge.spend()
        except (LedgerError, BudgetError):
            refused += 1
        for left in folder.glob(f"{number}.db*"):
            left.unlink()
    return refused


def test_damaged_ledgers_short(tmp_path: Path) -> None:
    assert check(tmp_path, 30, 0) > 1


@pytest.mark.slow
def test_damaged_ledgers(tmp_path: Path) -> None:
    assert check(tmp_path, 1500, 1) > 100
