"""What a column is: its kind, its public bounds or categories.

Bounds and categories are *public* knowledge. They come from a declared file or from the
synthetic table, never from the private one (DESIGN 2).

The encoding is derived from the kind alone, so that it is the same on both tables:

* a **grid** for moments: an integer ``u`` in ``[-levels, levels]`` for the centred value
  ``z = u / levels`` in [-1, 1]. A column with a natural lattice (integer steps, codes, two
  values) sits on it exactly; any other is rounded to ``MAX_LEVELS`` levels each side of zero.
* **cells** for marginals: every row falls in exactly one cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias

from retilt._input import kind_of, short
from retilt.exceptions import SchemaError

MAX_LEVELS = 2**15
"""Grid levels each side of zero of a column without a natural lattice.

Products of two grid values are then at most 2**30, so that float64 sums of 2**23 of them are
exact (DESIGN 4).
"""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds_of(moment: datetime) -> float:
    """Return microseconds since 1970 UTC as a float, the unit that moments are measured in.

    Examples
    --------
    >>> microseconds_of(datetime(1970, 1, 2))
    86400000000.0
    """
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return float((aware - EPOCH) // timedelta(microseconds=1))


def _is_finite(value: float) -> bool:
    """Whether a number is finite as a float: an integer may be too great for one."""
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _check_bool(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise SchemaError(f"{what}: got {short(value)}, expected true or false.")


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number between two public bounds; values outside are clamped.

    Parameters
    ----------
    lower, upper
        Finite bounds in the column's own units, ``lower <= upper``. Equal bounds make the
        column a constant, which is never measured.
    nullable
        Whether the synthetic table may hold nulls here.
    integer
        Whether the column counts in whole steps from ``lower``. Such a column has a natural
        lattice if its range is at most 2**15 steps.

    Examples
    --------
    >>> Numeric(17, 90, integer=True).levels
    73
    >>> Numeric(0.0, 0.2).levels
    32768
    """

    lower: float
    upper: float
    nullable: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SchemaError(f"{name}: got {short(value)}, expected a finite number.")
            if not _is_finite(value):
                raise SchemaError(f"{name}: got {short(value)}, expected a finite number.")
        if self.lower > self.upper:
            raise SchemaError(
                f"lower and upper: got {short(self.lower)} > {short(self.upper)}, expected "
                "lower <= upper."
            )
        if not math.isfinite(float(self.upper) - float(self.lower)):
            raise SchemaError(
                f"lower and upper: got {short(self.lower)} and {short(self.upper)}, whose "
                "difference is not a finite number. Declare bounds closer together."
            )
        _check_bool(self.nullable, "nullable")
        _check_bool(self.integer, "integer")
        if self.integer and not (float(self.lower).is_integer() and float(self.upper).is_integer()):
            raise SchemaError(
                f"integer = true needs whole bounds: got {short(self.lower)} and "
                f"{short(self.upper)}."
            )

    @property
    def levels(self) -> int:
        """Grid levels each side of zero; 0 for a constant."""
        span = float(self.upper) - float(self.lower)
        if span == 0:
            return 0
        return int(span) if self.integer and span <= MAX_LEVELS else MAX_LEVELS

    @property
    def on_lattice(self) -> bool:
        """Whether the grid holds every value of the column exactly."""
        return self.integer and float(self.upper) - float(self.lower) <= MAX_LEVELS

    @property
    def two_valued(self) -> bool:
        """Never: two *observed* values of a numeric column prove nothing (DESIGN 3)."""
        return False


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of a public list of categories; a value outside the list is ``other``.

    Parameters
    ----------
    categories
        Distinct values, all text or all numbers, in the order that gives the codes
        ``0..m-1``.
    ordered
        Whether the order carries meaning (kept for the output's sake).
    nullable
        Whether the synthetic table may hold nulls here.

    Examples
    --------
    >>> Categorical(("no", "yes")).two_valued
    True
    """

    categories: tuple[str, ...] | tuple[float, ...]
    ordered: bool = False
    nullable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        if not self.categories:
            raise SchemaError("categories: got none, expected at least one.")
        text = all(isinstance(c, str) for c in self.categories)
        numbers = all(
            isinstance(c, (int, float)) and not isinstance(c, bool) and _is_finite(c)
            for c in self.categories
        )
        if not (text or numbers):
            raise SchemaError("categories: expected all text or all finite numbers, got a mixture.")
        # Numbers are compared as floats, so they must differ as floats.
        values = self.categories if text else map(float, self.categories)
        if len(set(values)) != len(self.categories):
            raise SchemaError("categories: expected distinct values, got some twice.")
        _check_bool(self.ordered, "ordered")
        _check_bool(self.nullable, "nullable")

    @property
    def is_text(self) -> bool:
        """Whether the categories are text (else they are numbers)."""
        return isinstance(self.categories[0], str)

    @property
    def levels(self) -> int:
        """Grid levels each side of zero: codes ``0..m-1`` are ``2 * code - (m - 1)``."""
        return len(self.categories) - 1

    @property
    def on_lattice(self) -> bool:
        """Whether the grid holds every value of the column exactly: always."""
        return True

    @property
    def two_valued(self) -> bool:
        """Whether ``z**2 = 1`` in every row: unknown and null count as the first category."""
        return len(self.categories) == 2


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false; codes 0 and 1.

    Examples
    --------
    >>> Boolean().levels
    1
    """

    nullable: bool = False

    def __post_init__(self) -> None:
        _check_bool(self.nullable, "nullable")

    @property
    def levels(self) -> int:
        """Grid levels each side of zero."""
        return 1

    @property
    def on_lattice(self) -> bool:
        """Whether the grid holds every value of the column exactly: always."""
        return True

    @property
    def two_valued(self) -> bool:
        """Whether ``z**2 = 1`` in every row, by the encoding: always."""
        return True


@dataclass(frozen=True, slots=True)
class Datetime:
    """A moment between two public bounds (naive bounds are read as UTC); clamped outside.

    Examples
    --------
    >>> Datetime(datetime(2020, 1, 1), datetime(2020, 12, 31)).levels
    32768
    """

    lower: datetime
    upper: datetime
    nullable: bool = False

    def __post_init__(self) -> None:
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            if not isinstance(value, datetime):
                raise SchemaError(f"{name}: got {short(value)}, expected a date and time.")
        if (self.lower.tzinfo is None) != (self.upper.tzinfo is None):
            raise SchemaError("lower and upper: give both with a time zone or both without.")
        if self.lower > self.upper:
            raise SchemaError(
                f"lower and upper: got {self.lower} > {self.upper}, expected lower <= upper."
            )
        _check_bool(self.nullable, "nullable")

    @property
    def levels(self) -> int:
        """Grid levels each side of zero; 0 for a constant.

        Bounds that are equal as floats make one: microseconds are too fine in the year 9000.
        """
        return 0 if microseconds_of(self.lower) == microseconds_of(self.upper) else MAX_LEVELS

    @property
    def on_lattice(self) -> bool:
        """Whether the grid holds every value of the column exactly."""
        return False

    @property
    def two_valued(self) -> bool:
        """Never, as for numbers."""
        return False


Column: TypeAlias = Numeric | Categorical | Boolean | Datetime


@dataclass(frozen=True)
class Schema:
    """The public description of a table: an ordered mapping of names to columns.

    Parameters
    ----------
    columns
        Name to column, in the table's order.
    inferred
        Names whose bounds or categories were read off the synthetic table; they are as
        private as its generator made them. The rest were declared.
    """

    columns: Mapping[str, Column]
    inferred: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        object.__setattr__(self, "inferred", frozenset(self.inferred))
        for name, column in self.columns.items():
            if not isinstance(name, str):
                raise SchemaError(f"column names are text: got {short(name)}.")
            if not isinstance(column, (Numeric, Categorical, Boolean, Datetime)):
                raise SchemaError(
                    f"column {name!r}: got {kind_of(column)}, expected Numeric, "
                    "Categorical, Boolean or Datetime."
                )

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def subset(self, names: tuple[str, ...] | list[str]) -> Schema:
        """The schema of some of the columns, in the order given."""
        return Schema({n: self.columns[n] for n in names}, self.inferred & set(names))
