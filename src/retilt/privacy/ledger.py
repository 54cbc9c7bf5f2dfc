"""The ledger: what was spent on each data set, and a cap that no measurement can pass.

A ledger is a SQLite file of the custodian's. Each data set in it has a unit of privacy, a cap
and a list of charges. A measurement is charged in two steps, each a transaction of its own that
is on the disk before the next thing happens:

1. *reserved*, before the private table is opened. It counts in full from here on: whoever
   looks at the ledger later sees it as spent, and so does a crash.
2. *spent*, after names, types and the public row count were checked and before anything is
   summed or any noise is drawn. Nothing can take it back after that.

A reservation is *withdrawn* if the check of what is public failed (a missing column, say):
nothing was measured. Triggers in the file hold to this: a charge that is spent can't change any
more, and no charge can be deleted. A cap is checked in the same transaction that reserves, which
SQLite allows to one process at a time.
"""

from __future__ import annotations

import json
import os
import sqlite3
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retilt.exceptions import (
    InputError,
    LedgerError,
    LedgerUnusableError,
    LedgerWarning,
    RepeatedPlanWarning,
    RetiltError,
)
from retilt.privacy.account import (
    Account,
    Composition,
    LedgerEntry,
    account_of,
    amount_of,
    check_name,
    make_cap,
    relation_of,
    stored,
)
from retilt.privacy.budget import Generator, generator_to_dict
from retilt.privacy.plan import Plan
from retilt.privacy.unit import ReplaceOneRow, Unit, neighbours_of, parse_unit

_APPLICATION = int.from_bytes(b"rtlg", "big")
"""Says in the file's header that it is a ledger of ours."""

_VERSION = 1
_PATIENCE = 60.0
"""Seconds to wait for another process's transaction; each takes milliseconds."""

_SCHEMA = """
CREATE TABLE datasets (
    name TEXT PRIMARY KEY NOT NULL,
    unit TEXT NOT NULL,
    person TEXT,
    composition TEXT NOT NULL CHECK (composition IN ('sums', 'zcdp')),
    epsilon TEXT,
    delta TEXT,
    rho TEXT,
    generator TEXT,
    opened TEXT NOT NULL
);
CREATE TABLE charges (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    state TEXT NOT NULL CHECK (state IN ('reserved', 'spent', 'withdrawn')),
    time TEXT NOT NULL,
    plan_sha256 TEXT,
    epsilon TEXT,
    delta TEXT,
    rho TEXT NOT NULL,
    answers_sha256 TEXT,
    answers_file TEXT
);
CREATE TRIGGER datasets_stay BEFORE DELETE ON datasets
BEGIN SELECT RAISE(ABORT, 'a data set can not be removed'); END;
CREATE TRIGGER datasets_are_fixed BEFORE UPDATE ON datasets
BEGIN SELECT RAISE(ABORT, 'a data set can not be changed'); END;
CREATE TRIGGER charges_stay BEFORE DELETE ON charges
BEGIN SELECT RAISE(ABORT, 'a charge can not be removed'); END;
CREATE TRIGGER datasets_are_not_replaced BEFORE INSERT ON datasets
WHEN EXISTS (SELECT 1 FROM datasets WHERE name = NEW.name OR rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'a data set can not be replaced'); END;
CREATE TRIGGER charges_begin_reserved BEFORE INSERT ON charges
WHEN NEW.state <> 'reserved' OR NEW.answers_sha256 IS NOT NULL OR NEW.answers_file IS NOT NULL
OR EXISTS (SELECT 1 FROM charges WHERE number = NEW.number)
BEGIN SELECT RAISE(ABORT, 'a charge begins as a reservation of its own'); END;
CREATE TRIGGER charges_are_fixed BEFORE UPDATE ON charges
WHEN NEW.number IS NOT OLD.number OR NEW.dataset IS NOT OLD.dataset OR NEW.time IS NOT OLD.time
OR NEW.plan_sha256 IS NOT OLD.plan_sha256 OR NEW.epsilon IS NOT OLD.epsilon
OR NEW.delta IS NOT OLD.delta OR NEW.rho IS NOT OLD.rho
BEGIN SELECT RAISE(ABORT, 'a charge can not be changed'); END;
CREATE TRIGGER states_go_one_way BEFORE UPDATE OF state ON charges
WHEN OLD.state <> 'reserved'
BEGIN SELECT RAISE(ABORT, 'a charge that is spent stays spent'); END;
CREATE TRIGGER answers_once BEFORE UPDATE OF answers_sha256 ON charges
WHEN OLD.answers_sha256 IS NOT NULL OR OLD.state <> 'spent'
BEGIN SELECT RAISE(ABORT, 'a charge has one answer'); END;
"""


_SELECTIONS = """
CREATE TABLE IF NOT EXISTS selections (
    charge INTEGER PRIMARY KEY NOT NULL REFERENCES charges (number)
);
CREATE TRIGGER IF NOT EXISTS selections_stay BEFORE DELETE ON selections
BEGIN SELECT RAISE(ABORT, 'a charge can not be changed'); END;
CREATE TRIGGER IF NOT EXISTS selections_are_fixed BEFORE UPDATE ON selections
BEGIN SELECT RAISE(ABORT, 'a charge can not be changed'); END;
"""
"""Charges of which a part chose the measures. Made with the first of them: for versions that don't
know of it the file stays one that they can read and charge."""


class Charge:
    """A charge while its measurement runs: reserved on entry, withdrawn unless it was spent."""

    def __init__(self, ledger: Ledger, number: int, entry: LedgerEntry) -> None:
        self._ledger = ledger
        self.number = number
        self.entry = entry
        self.is_spent = False

    def spend(self) -> None:
        """From here on it can't be withdrawn. Before anything is summed."""
        self._ledger._update(self.number, "state = 'spent'", "state = 'reserved'")
        self.is_spent = True

    def answered(self, sha256: str) -> None:
        """Note the hash of the answers file.

        Raises
        ------
        LedgerError
            The charge is not there any more: the file was replaced.

        Warns
        -----
        LedgerWarning
            The file can't be written (a full disk, say). The answers are paid for all the same.
        """
        try:
            self._ledger._update(self.number, "answers_sha256 = ?", "state = 'spent'", sha256)
        except LedgerUnusableError as error:
            warnings.warn(
                f"{error} The charge is paid for, but the hash of its answers could not be noted.",
                LedgerWarning,
                stacklevel=4,
            )


@dataclass(frozen=True)
class Ledger:
    """A ledger file.

    Parameters
    ----------
    path
        The SQLite file. Nothing is opened before it is asked for something.

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp(), "budget.db"))
    >>> ledger.open_dataset("adult", epsilon=3, delta=1e-6)
    >>> ledger.account().to_dict()["cap"]
    {'epsilon': 3, 'delta': 1e-06}
    """

    path: Path

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, Path)):
            raise InputError(f"ledger: got {self.path!r}, expected the name of a ledger file.")
        # Absolute: whoever changes the folder meanwhile must not change the ledger.
        object.__setattr__(self, "path", Path(self.path).absolute())

    # -- data sets -------------------------------------------------------------------------

    def open_dataset(
        self,
        name: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        unit: Unit | str = ReplaceOneRow(),  # noqa: B008  (a frozen value)
        composition: Composition | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Enter a data set with its cap; the file is made if it is missing.

        Parameters
        ----------
        name
            One printable line.
        epsilon, delta
            The cap. ``delta=0`` allows pure DP only. With ``composition="zcdp"`` the cap is the
            largest rho that implies (epsilon, delta)-DP.
        rho
            A cap in rho instead, which implies ``composition="zcdp"``.
        unit
            Of every plan that is to be measured. Of a unit of persons the column counts, not
            how many rows of each are used.
        composition
            ``"sums"`` (default) or ``"zcdp"``.
        generator
            The guarantee of the synthetic table's generator on this data set. It is not part of
            the cap; plans have to declare the same.

        Raises
        ------
        InputError, LedgerError
            The name stands there already, the cap is none, or the file is no ledger.
        """
        check_name(name)
        cap, composition = make_cap(epsilon, delta, rho, composition)
        neighbours, person = neighbours_of(parse_unit(unit))
        if generator is not None:
            if not isinstance(generator, Generator):
                raise InputError(f"generator: got {generator!r}, expected a Generator or None.")
            relation, persons = relation_of(neighbours)
            generator.under(relation, persons=persons)  # refuses what can't be added up later
        row = (
            name,
            neighbours,
            person,
            composition,
            stored(cap.epsilon),
            stored(cap.delta),
            stored(cap.rho),
            None if generator is None else json.dumps(generator_to_dict(generator)),
            _now(),
        )
        with self._transaction(create=True) as database:
            names = [str(n) for (n,) in database.execute("SELECT name FROM datasets")]
            taken = [n for n in names if _alike(n) == _alike(name)]
            if taken:
                raise InputError(
                    f"ledger {self.path}: it has a data set {taken[0]!r} already. A cap can't be "
                    f"changed; choose another name than {name!r}."
                )
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO datasets VALUES ({marks})", row)

    def names(self) -> tuple[str, ...]:
        """The data sets' names, in the order in which they were opened."""
        with self._connected(read_only=True) as database:
            rows = database.execute("SELECT name FROM datasets ORDER BY rowid").fetchall()
        return tuple(str(n) for (n,) in rows)

    def account(self, dataset: str | None = None) -> Account:
        """A data set with its charges; ``dataset`` may be left out where there is one only.

        Raises
        ------
        LedgerError
            The file is missing or no ledger, or it has no such data set.
        """
        with self._connected(read_only=True) as database:
            return self._account(database, dataset)

    def _account(self, database: sqlite3.Connection, dataset: str | None) -> Account:
        names = [n for (n,) in database.execute("SELECT name FROM datasets ORDER BY rowid")]
        if dataset is None and len(names) == 1:
            dataset = names[0]
        if dataset not in names:
            got = "no name was given" if dataset is None else f"got {dataset!r}"
            raise LedgerError(
                f"ledger {self.path}: {got}, expected one of its data sets: "
                f"{', '.join(map(repr, names)) or 'it has none'}."
            )
        columns = "name, unit, person, composition, epsilon, delta, rho, generator, opened"
        row = database.execute(f"SELECT {columns} FROM datasets WHERE name = ?", (dataset,))
        known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'selections'").fetchone()
        selected = "number IN (SELECT charge FROM selections)" if known else "0"
        charges = database.execute(
            "SELECT number, state, time, plan_sha256, epsilon, delta, rho, answers_sha256, "
            f"answers_file, {selected} FROM charges WHERE dataset = ? ORDER BY number",
            (dataset,),
        )
        try:
            return account_of(row.fetchone(), charges.fetchall())
        except (InputError, ValueError, TypeError, KeyError, RecursionError):
            raise LedgerError(
                f"ledger {self.path}: what it says of the data set {dataset!r} can't be read; it "
                "was damaged or edited. Restore it from a backup that has every charge."
            ) from None

    # -- charges ---------------------------------------------------------------------------

    @contextmanager
    def charge(self, plan: Plan, dataset: str | None = None) -> Iterator[Charge]:
        """Reserve what a plan costs for as long as it is being measured.

        In the block the caller checks what is public, calls :meth:`Charge.spend`, and only then
        measures. If the block ends before it was spent, the reservation is withdrawn; if the
        process ends, it stays, and counts.

        Raises
        ------
        BudgetError
            The cap would be passed, or unit or generator are not the data set's. Nothing is
            charged.
        LedgerError
            The file is missing or no ledger, or has no such data set.

        Warns
        -----
        RepeatedPlanWarning
            The same plan was charged before.
        """
        amount = amount_of(plan)
        sha256 = None if plan.has_code else plan.sha256
        account = self.account(dataset)
        account.check_terms(plan.unit, plan.generator)
        account.check(amount)
        _warn_of_repetition(account, sha256)
        with self._transaction() as database:
            account = self._account(database, account.name)
            account.check(amount)
            cursor = database.execute(
                "INSERT INTO charges (dataset, state, time, plan_sha256, epsilon, delta, rho) "
                "VALUES (?, 'reserved', ?, ?, ?, ?, ?)",
                (
                    account.name,
                    _now(),
                    sha256,
                    stored(amount.epsilon),
                    stored(amount.delta),
                    stored(amount.rho),
                ),
            )
            number = int(cursor.lastrowid or 0)
            if plan.selection is not None:
                for statement in _statements(_SELECTIONS):
                    database.execute(statement)
                database.execute("INSERT INTO selections VALUES (?)", (number,))
            account = self._account(database, account.name)
        entry = LedgerEntry(
            dataset=account.name,
            charge=number,
            composition=account.composition,
            cap=account.loss(account.cap),
            spent=account.loss(account.spent),
        )
        charge = Charge(self, number, entry)
        try:
            yield charge
        except BaseException as error:
            error.add_note(self._end(charge))
            raise
        self._end(charge)

    def _end(self, charge: Charge) -> str:
        """Withdraw a charge that was not spent. What became of it, for whoever sees the error."""
        where = f"charge {charge.number} of the data set {charge.entry.dataset!r}"
        if charge.is_spent:
            return f"The budget is spent: {where} stays, and there are no answers to it."
        try:
            self._update(charge.number, "state = 'withdrawn'", "state = 'reserved'")
        except RetiltError:  # it stays and counts, which is the safe side
            return f"Nothing was measured, but {where} could not be withdrawn, and counts."
        return f"Nothing was measured: {where} is withdrawn."

    def note_file(self, charge: int, path: str | Path) -> None:
        """Note where the answers of a charge were written, for whoever measures again."""
        self._update(charge, "answers_file = ?", "state = 'spent'", str(Path(path).absolute()))

    def _update(self, number: int, change: str, only: str, *values: object) -> None:
        """Change one charge; ``change`` and ``only`` are SQL of ours."""
        with self._transaction() as database:
            sql = f"UPDATE charges SET {change} WHERE number = ? AND {only}"
            if database.execute(sql, (*values, number)).rowcount != 1:
                raise LedgerError(
                    f"ledger {self.path}: charge {number} is not where this measurement left it. "
                    "Nothing is released. Was the file replaced while it was in use?"
                )

    # -- the file --------------------------------------------------------------------------

    @contextmanager
    def _connected(
        self, *, create: bool = False, read_only: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """A connection to the file, whose errors are ours."""
        self._check_file(create)
        where = self.path.as_uri() + ("?mode=rwc" if create else "?mode=rw")
        if read_only and not os.access(self.path.parent, os.W_OK):
            # SQLite would have to make files beside it. Nobody else can write there either, and
            # if no charge waits in a -wal file, the file itself has all of them.
            waiting = Path(f"{self.path}-wal")
            still = not waiting.exists() or waiting.stat().st_size == 0
            where = self.path.as_uri() + ("?immutable=1&mode=ro" if still else "?mode=ro")
        try:
            database = sqlite3.connect(where, uri=True, timeout=_PATIENCE, isolation_level=None)
            try:
                self._prepare(database, create, read_only)
                yield database
            finally:
                database.close()
        except sqlite3.OperationalError as error:
            raise LedgerUnusableError(f"ledger {self.path}: it can't be used ({error}).") from None
        except (sqlite3.Error, OverflowError, UnicodeError):
            raise LedgerError(self._no_ledger) from None

    @property
    def _no_ledger(self) -> str:
        return (
            f"ledger {self.path}: it is no ledger of retilt, or damaged. Give a file that "
            "`retilt budget open` made."
        )

    def _check_file(self, create: bool) -> None:
        if not self.path.exists():
            if create and self.path.parent.is_dir():
                return
            raise LedgerError(
                f"ledger {self.path}: there is no such file. Open a data set with `retilt budget "
                "open` (Ledger.open_dataset) first; it needs an existing folder."
            )
        if not self.path.is_file():
            raise LedgerError(f"ledger {self.path}: it is not a regular file.")
        if self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"ledger {self.path}: the file has several names (hard links), by which two "
                "processes could miss each other's charges. Keep one name."
            )

    def _prepare(self, database: sqlite3.Connection, create: bool, read_only: bool) -> None:
        """Check that the file is a ledger, or make it one; every commit is on the disk."""
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA foreign_keys = ON")
        found = _header(database)
        if create and found == (0, 0) and not _tables(database):
            self._make(database)
            found = _header(database)
        if found[0] != _APPLICATION:
            raise LedgerError(self._no_ledger)
        if found[1] != _VERSION:
            raise LedgerError(
                f"ledger {self.path}: it was written by another version of retilt (format "
                f"{found[1]}, this one reads {_VERSION})."
            )
        if not read_only:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")

    def _make(self, database: sqlite3.Connection) -> None:
        """Turn an empty database into a ledger, whole or not at all."""
        database.execute("BEGIN IMMEDIATE")
        if _header(database) == (0, 0):  # another process may have been faster
            for statement in _statements(_SCHEMA):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_VERSION}")
        database.execute("COMMIT")

    @contextmanager
    def _transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process writes beside; on the disk when the block ends."""
        with self._connected(create=create) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                if database.in_transaction:  # a full disk ends it by itself
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
            # Into the file itself, so that a copy without its -wal file misses no charge. It is
            # on the disk either way, and is tried again by whoever comes next.
            with suppress(sqlite3.Error):
                database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def open_ledger(given: Ledger | str | Path) -> Ledger:
    """A ledger, or the one in a file."""
    return given if isinstance(given, Ledger) else Ledger(given)  # type: ignore[arg-type]


def _warn_of_repetition(account: Account, plan_sha256: str | None) -> None:
    same = [r for r in account.charges if plan_sha256 and r.plan_sha256 == plan_sha256]
    if not same:
        return
    answered = [r for r in same if r.answers_sha256 is not None] or same
    last = answered[-1]
    if last.answers_sha256 is None:
        found = "no answers of it are on record"
    else:
        where = last.answers_file or "a file that the ledger does not know"
        found = f"its answers are in {where} (SHA-256 {last.answers_sha256})"
    warnings.warn(
        f"this plan was measured on the data set {account.name!r} before ({last.time}, charge "
        f"{last.number}); {found}. Answers can be fitted any number of times at no cost. "
        "Measuring again spends the budget again.",
        RepeatedPlanWarning,
        stacklevel=5,
    )


def _alike(name: str) -> str:
    """What two names share that people could take for one another."""
    return unicodedata.normalize("NFKC", name).casefold()


def _tables(database: sqlite3.Connection) -> int:
    """How many tables, indices and so on there are."""
    return int(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _header(database: sqlite3.Connection) -> tuple[int, int]:
    """The application and the version that the file's header says."""
    found = [
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version")
    ]
    return found[0] & 0xFFFFFFFF, found[1]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: ``executescript`` would commit in between."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
