"""A column as a question of yes and no: the target of predictions, and of rates of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from retilt._input import short
from retilt.evaluation.sides import Side, Sides
from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric
from retilt.schema.encode import values_of


@dataclass(frozen=True)
class Target:
    """A column, and which of its values counts as 1.

    Attributes
    ----------
    name
        The column.
    positive
        The value that is 1; all others are 0, and null or an infinity is neither.
    code
        The same as :meth:`Sides.values` has it.
    """

    name: str
    positive: str | float | bool
    code: float

    def truths(self, sides: Sides, side: Side) -> FloatArray:
        """(n,) 1.0 or 0.0, NaN for null."""
        values = _values(sides, side, self.name)
        return np.where(np.isnan(values), np.nan, values == self.code)


def choose_target(
    sides: Sides, name: str, positive: str | float | bool | np.generic | None
) -> Target:
    """Decide which value of the target is 1.

    Parameters
    ----------
    sides
        The tables, with the target among their columns.
    name
        The target.
    positive
        The value; default the rarer of the two values of the real table, of equally frequent
        ones the greater.

    Raises
    ------
    InputError
        The target is a date; or no row of the real table has the value; or it was to be chosen
        and the real table has not two.
    """
    column = sides.listed[name]
    if isinstance(column, Datetime):
        raise InputError(f"target: column {name!r} is a date, expected a column of two values.")
    real = _values(sides, sides.real, name)
    found, counts = np.unique(real[~np.isnan(real)], return_counts=True)
    if positive is not None:
        # A value as it comes from a frame; JSON has none of NumPy's.
        named = positive.item() if isinstance(positive, np.generic) else positive
        if isinstance(named, bool) and isinstance(column, Numeric):
            named = int(named)  # as numbers spell it
        code = _code(sides, name, named)
        if code not in found:
            raise InputError(
                f"positive: got {short(positive)}, which no row of the private table has in column "
                f"{name!r}."
            )
        return Target(name, named, code)
    if len(found) != 2:
        raise InputError(
            f"target: column {name!r} does not have exactly two different values in the "
            "private table. Name the one that counts as 1 (positive, --positive), so that all "
            "others count as 0; or name a column of two values."
        )
    rarer = float(found[1] if counts[1] <= counts[0] else found[0])
    return Target(name, _value(sides, name, rarer), rarer)


def _values(sides: Sides, side: Side, name: str) -> FloatArray:
    """(n,) values, infinities as null: JSON could not name one as the positive value."""
    values = sides.values(side, name)
    return np.where(np.isinf(values), np.nan, values)


def _code(sides: Sides, name: str, positive: str | float | bool) -> float:
    """A value as the table's cells would be read; NaN for what is none."""
    column = sides.listed[name]
    text = pa.array([str(positive)], pa.large_string())
    (code,) = values_of(column, pa.chunked_array([text]))
    unknown = isinstance(column, (Categorical, Boolean)) and code >= len(_names(column))
    return float("nan") if unknown else float(code)


def _names(column: Categorical | Boolean) -> tuple[str | float | bool, ...]:
    return column.categories if isinstance(column, Categorical) else (False, True)


def _value(sides: Sides, name: str, code: float) -> str | float | bool:
    """A code as the value that it stands for."""
    column = sides.listed[name]
    if isinstance(column, (Categorical, Boolean)):
        names = _names(column)
        return names[int(code)] if code < len(names) else "other"
    return int(code) if code.is_integer() and abs(code) < 2**53 else code
