"""The unit of privacy: which tables are neighbours.

The unit is a type, not a number, so that a promise can't be mistaken for another. A unit is
either a *row*, or a *person* who may own several rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import Relation
from retilt.measures.entries import short

MOST_ROWS = 2**31 - 1
"""The largest ``max_rows``; far beyond any use, and safe in 64-bit arithmetic."""


@dataclass(frozen=True, slots=True)
class ReplaceOneRow:
    """Neighbours differ in the content of one row; the number of rows n is public.

    The paper's relation. n comes from the plan and is never counted on the private table.
    """

    name: ClassVar[str] = "replace-one"
    relation: ClassVar[Relation] = Relation.REPLACE
    counts_rows: ClassVar[bool] = False
    person: ClassVar[None] = None
    max_rows: ClassVar[int] = 1

    @property
    def promise(self) -> str:
        """The unit in words."""
        return (
            "the content of any one row is protected (replace-one-row neighbours); "
            "the number of rows is public"
        )


@dataclass(frozen=True, slots=True)
class AddRemoveOneRow:
    """Neighbours differ by the presence of one row; the number of rows is private.

    The row count is measured with noise, and sums are divided by the noisy count.
    """

    name: ClassVar[str] = "add-remove"
    relation: ClassVar[Relation] = Relation.ADD_REMOVE
    counts_rows: ClassVar[bool] = True
    person: ClassVar[None] = None
    max_rows: ClassVar[int] = 1

    @property
    def promise(self) -> str:
        """The unit in words."""
        return (
            "the presence of any one row is protected (add-or-remove-one-row neighbours); "
            "the number of rows is private and measured with noise"
        )


@dataclass(frozen=True, slots=True)
class _OnePerson:
    """What the units of persons share."""

    person: str
    max_rows: int

    def __post_init__(self) -> None:
        if not isinstance(self.person, str) or not self.person:
            raise InputError(
                f"person: got {short(self.person)}, expected the name of the private table's "
                "column that tells persons apart."
            )
        rows = self.max_rows
        whole = isinstance(rows, (int, np.integer)) and not isinstance(rows, (bool, np.bool_))
        if not whole or not 1 <= rows <= MOST_ROWS:
            raise InputError(
                f"max_rows: got {short(rows)}, expected a whole number above 0: how many rows of "
                "one person are used at most."
            )
        object.__setattr__(self, "max_rows", int(rows))

    @property
    def _used(self) -> str:
        used = "1 row is" if self.max_rows == 1 else f"{self.max_rows} rows are"
        return (
            f"a person is one value of the column {self.person!r}; of each person at most {used} "
            "used, chosen by a hash of their content, never by their place; rows without a person "
            "are left out"
        )


@dataclass(frozen=True, slots=True)
class AddRemoveOnePerson(_OnePerson):
    """Neighbours differ by all rows of one person; how many persons there are is private.

    Parameters
    ----------
    person
        The private table's column that tells persons apart (text or whole numbers). It is not
        measured, and the synthetic table need not have it. Rows where it is null or empty are
        left out.
    max_rows
        At most so many rows of each person are used, chosen by a keyed hash of their content.
        Noise grows in proportion, so take no more than most persons have.

    Examples
    --------
    >>> AddRemoveOnePerson("patient", 3).name
    'add-remove-person'
    """

    name: ClassVar[str] = "add-remove-person"
    relation: ClassVar[Relation] = Relation.ADD_REMOVE
    counts_rows: ClassVar[bool] = True

    @property
    def promise(self) -> str:
        """The unit in words."""
        return (
            "whether any one person is in the table, and everything that the person's rows say, "
            f"is protected (add-or-remove-one-person neighbours): {self._used}; the numbers of "
            "persons and of rows are private, and the number of rows used is measured with noise"
        )


@dataclass(frozen=True, slots=True)
class ReplaceOnePerson(_OnePerson):
    """Neighbours differ in all rows of one person; how many persons there are is public.

    One person's rows are replaced by any rows of another person, who may have more or fewer:
    the number of rows is private and measured with noise.

    Parameters
    ----------
    person, max_rows
        As in :class:`AddRemoveOnePerson`.

    Examples
    --------
    >>> ReplaceOnePerson("patient", 3).name
    'replace-one-person'
    """

    name: ClassVar[str] = "replace-one-person"
    relation: ClassVar[Relation] = Relation.REPLACE
    counts_rows: ClassVar[bool] = True

    @property
    def promise(self) -> str:
        """The unit in words."""
        return (
            "everything that any one person's rows say, and how many they are, is protected "
            f"(replace-one-person neighbours): {self._used}; the number of persons is public, the "
            "number of rows is private, and the number of rows used is measured with noise"
        )


Unit: TypeAlias = ReplaceOneRow | AddRemoveOneRow | AddRemoveOnePerson | ReplaceOnePerson

_ROWS: dict[str, ReplaceOneRow | AddRemoveOneRow] = {
    u.name: u for u in (ReplaceOneRow(), AddRemoveOneRow())
}
_PERSONS: dict[str, type[AddRemoveOnePerson | ReplaceOnePerson]] = {
    u.name: u for u in (ReplaceOnePerson, AddRemoveOnePerson)
}


def parse_unit(given: object) -> Unit:
    """The unit called ``replace-one`` or ``add-remove``, or that :func:`unit_to_json` wrote.

    >>> parse_unit("replace-one")
    ReplaceOneRow()
    >>> parse_unit({"unit": "add-remove-person", "person": "id", "max_rows": 2})
    AddRemoveOnePerson(person='id', max_rows=2)
    """
    if isinstance(given, (ReplaceOneRow, AddRemoveOneRow, AddRemoveOnePerson, ReplaceOnePerson)):
        return given
    if isinstance(given, str) and given in _ROWS:
        return _ROWS[given]
    if isinstance(given, Mapping) and isinstance(given.get("unit"), str):
        name = given["unit"]
        if name in _PERSONS and set(given) == {"unit", "person", "max_rows"}:
            return _PERSONS[name](given["person"], given["max_rows"])
    raise InputError(
        f"unit: got {short(given)}, expected one of {', '.join(_ROWS)}, or for persons "
        "ReplaceOnePerson(person, max_rows) or AddRemoveOnePerson(person, max_rows)."
    )


def unit_to_json(unit: Unit) -> str | dict[str, Any]:
    """The unit in files: the name of a unit of rows, an object for one of persons."""
    if unit.person is None:
        return unit.name
    return {"unit": unit.name, "person": unit.person, "max_rows": unit.max_rows}


def neighbours_of(unit: Unit) -> tuple[str, str | None]:
    """Which tables are neighbours: the unit's name, and the column of persons if it has one.

    How many rows of a person are used is no part of it.

    >>> neighbours_of(AddRemoveOnePerson("id", 2)) == neighbours_of(AddRemoveOnePerson("id", 3))
    True
    """
    return unit.name, unit.person
