"""The unit of privacy: which tables are neighbours.

The unit is a type, not a number, so that a promise can't be mistaken for another.
(Persons, who own several rows each, are units of a later version.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from retilt.exceptions import InputError
from retilt.measures.base import Relation


@dataclass(frozen=True, slots=True)
class ReplaceOneRow:
    """Neighbours differ in the content of one row; the number of rows n is public.

    The paper's relation. n comes from the plan and is never counted on the private table.
    """

    @property
    def relation(self) -> Relation:
        """The neighbour relation."""
        return Relation.REPLACE

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

    @property
    def relation(self) -> Relation:
        """The neighbour relation."""
        return Relation.ADD_REMOVE

    @property
    def promise(self) -> str:
        """The unit in words."""
        return (
            "the presence of any one row is protected (add-or-remove-one-row neighbours); "
            "the number of rows is private and measured with noise"
        )


Unit: TypeAlias = ReplaceOneRow | AddRemoveOneRow

_UNITS: dict[str, Unit] = {
    Relation.REPLACE.value: ReplaceOneRow(),
    Relation.ADD_REMOVE.value: AddRemoveOneRow(),
}


def parse_unit(name: object) -> Unit:
    """The unit called ``replace-one`` or ``add-remove``.

    >>> parse_unit("replace-one")
    ReplaceOneRow()
    """
    if isinstance(name, (ReplaceOneRow, AddRemoveOneRow)):
        return name
    if not isinstance(name, str) or name not in _UNITS:
        raise InputError(f"unit: got {name!r}, expected one of {', '.join(_UNITS)}.")
    return _UNITS[name]


def unit_name(unit: Unit) -> str:
    """The unit's name in files and options."""
    return unit.relation.value
