"""Published statistics in a file: the strict reading of one entry, before any schema is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from retilt.exceptions import FormatError
from retilt.measures.derived import LARGEST, check_bounds
from retilt.measures.entries import short
from retilt.measures.expressions import Expression, parse_number, parse_predicate
from retilt.measures.partitions import MAX_CELLS, ascending
from retilt.schema.columns import microseconds_of

MAX_COLUMNS = 16
"""Columns of one table; the cells of more would be too many in any case."""

_SCALARS = ("mean", "share", "query", "product", "sd", "corr", "group_mean")
_TABLES = ("cell", "table")
_OWN_KEYS = {"query": {"lower", "upper"}, "group_mean": {"where"}}
_COUNTED = ("share", "cell", "table")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a list that has one element for each cell of a column."""

    index: int
    length: int


Label: TypeAlias = str | float | bool | Position | None
"""What names one cell of one column."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number.

    Attributes
    ----------
    kind
        The key that says what it is.
    columns
        Names of the columns whose values it is of; none for a share or a query.
    expression
        The condition or formula, if any.
    lower, upper
        Bounds of a query's formula.
    value, error
        As given; ``error`` is None where a covariance is given for all.
    counts
        Whether both are counts of rows.
    """

    kind: str
    columns: tuple[str, ...]
    expression: Expression | None
    lower: float
    upper: float
    value: float
    error: float | None
    counts: bool

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column that it reads."""
        return (*self.columns, *(() if self.expression is None else self.expression.columns))


@dataclass(frozen=True, slots=True)
class Cells:
    """Shares of cells of one table.

    Attributes
    ----------
    columns
        Distinct names.
    bins
        Inner edges by column, ascending; dates as microseconds since 1970.
    places
        What names each cell, a label for each column.
    values, errors
        One for each cell; ``errors`` is None where a covariance is given for all.
    counts
        Whether both are counts of rows.
    """

    columns: tuple[str, ...]
    bins: Mapping[str, tuple[float, ...]]
    places: tuple[tuple[Label, ...], ...]
    values: tuple[float, ...]
    errors: tuple[float, ...] | None
    counts: bool

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column that it reads."""
        return self.columns


Entry: TypeAlias = Scalar | Cells


def parse_statistic(content: object, *, covaried: bool) -> Entry:
    """Read one statistic.

    Parameters
    ----------
    content
        An object of the file.
    covaried
        Whether the file gives a covariance, instead of standard errors.

    Raises
    ------
    InputError
        With what was got and what is expected.
    """
    if not isinstance(content, dict):
        raise FormatError(f"got {short(content)}, expected an object.")
    kinds = [k for k in (*_SCALARS, *_TABLES) if k in content]
    if len(kinds) != 1:
        got = f"got {' and '.join(kinds)}" if kinds else "got none of them"
        raise FormatError(f"expected exactly one of {', '.join((*_SCALARS, *_TABLES))}, {got}.")
    kind = kinds[0]
    required = {kind, "values" if kind == "table" else "value", *_OWN_KEYS.get(kind, ())}
    required |= set() if covaried else {"standard_error"}
    optional = ({"counts"} if kind in _COUNTED else set()) | (
        {"bins"} if kind in _TABLES else set()
    )
    missing, unknown = sorted(required - set(content)), sorted(set(content) - required - optional)
    if "standard_error" in unknown and covaried:
        raise FormatError(f"{kind}: give standard errors or one covariance, not both.")
    if missing or unknown:
        odd = [f"{k!r} is missing" for k in missing] + [f"{short(k)} is unknown" for k in unknown]
        raise FormatError(f"{kind}: {', '.join(odd)}.")
    counts = content.get("counts", False)
    if not isinstance(counts, bool):
        raise FormatError(f"counts: got {short(counts)}, expected true or false.")
    if kind in _TABLES:
        return _cells(kind, content, counts)
    return _scalar(kind, content, counts)


# --- single numbers ---------------------------------------------------------------------------


def _scalar(kind: str, content: Mapping[str, Any], counts: bool) -> Scalar:
    columns: tuple[str, ...] = ()
    expression = None
    lower, upper = 0.0, 1.0
    if kind == "share":
        expression = parse_predicate(_text(content, "share"))
    elif kind == "query":
        expression = parse_number(_text(content, "query"))
        check_bounds(content["lower"], content["upper"], expression.text)
        lower, upper = float(content["lower"]), float(content["upper"])
    elif kind in ("product", "corr"):
        columns = _names(content[kind], kind, least=2, most=2, repeated=kind == "product")
    else:
        columns = (_text(content, kind),)
        if kind == "group_mean":
            expression = parse_predicate(_text(content, "where"))
    value = number(content["value"], "value")
    error = _error(content["standard_error"]) if "standard_error" in content else None
    _check_value(kind, value)
    return Scalar(kind, columns, expression, lower, upper, value, error, counts)


def _check_value(kind: str, value: float) -> None:
    if kind == "sd" and not value > 0:
        raise FormatError(f"sd: got {value!r}, expected a number above 0.")
    if kind == "corr" and not -1 <= value <= 1:
        raise FormatError(f"corr: got {value!r}, expected a number from -1 to 1.")


def number(value: object, what: str) -> float:
    """Read a finite number.

    >>> number(3, "value")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatError(f"{what}: got {short(value)}, expected a finite number.")
    if not abs(value) <= LARGEST:  # NaN, too
        raise FormatError(
            f"{what}: got {short(value)}, expected a finite number of at most {LARGEST:g} in size."
        )
    return float(value)


def _error(value: object) -> float:
    found = number(value, "standard_error")
    if found < 0:
        raise FormatError(f"standard_error: got {found!r}, expected a number of at least 0.")
    return found


def _text(content: Mapping[str, Any], key: str) -> str:
    text = content[key]
    if not isinstance(text, str):
        raise FormatError(f"{key}: got {short(text)}, expected text.")
    return text


def _names(
    value: object, what: str, *, least: int, most: int, repeated: bool = False
) -> tuple[str, ...]:
    good = isinstance(value, list) and least <= len(value) <= most
    if not good or not all(isinstance(n, str) for n in value):  # type: ignore[attr-defined]
        size = f"{least}" if least == most else f"{least} to {most}"
        raise FormatError(f"{what}: got {short(value)}, expected a list of {size} column names.")
    names: tuple[str, ...] = tuple(value)  # type: ignore[arg-type]
    if not repeated and len(set(names)) != len(names):
        raise FormatError(f"{what}: a column is named twice, expected distinct names.")
    return names


# --- tables ------------------------------------------------------------------------------------


def _cells(kind: str, content: Mapping[str, Any], counts: bool) -> Cells:
    what = content[kind]
    if kind == "cell":
        if not isinstance(what, dict) or not 1 <= len(what) <= MAX_COLUMNS:
            raise FormatError(
                f"cell: got {short(what)}, expected the cell of each column, such as "
                '{"sex": "F"}.'
            )
        columns = tuple(what)
        found = [(tuple(_label(v) for v in what.values()), number(content["value"], "value"))]
    else:
        columns = _names(what, "table", least=1, most=MAX_COLUMNS)
        found = list(_leaves(content["values"], len(columns), "values"))
        if not found:
            raise FormatError("values: got no number, expected one for each cell that is known.")
    errors = None
    if "standard_error" in content:
        errors = _cell_errors(content["standard_error"], found, len(columns))
    return Cells(
        columns=columns,
        bins=_bins(content.get("bins", {}), columns),
        places=tuple(p for p, _ in found),
        values=tuple(v for _, v in found),
        errors=errors,
        counts=counts,
    )


def _cell_errors(
    content: object, found: Sequence[tuple[tuple[Label, ...], float]], depth: int
) -> tuple[float, ...]:
    if not isinstance(content, (dict, list)):
        return (_error(content),) * len(found)
    errors = dict(_leaves(content, depth, "standard_error"))
    if len(errors) != len(found) or any(place not in errors for place, _ in found):
        raise FormatError("standard_error: expected one number, or one for each of the values.")
    return tuple(_error(errors[place]) for place, _ in found)


def _leaves(content: object, depth: int, what: str) -> Iterator[tuple[tuple[Label, ...], float]]:
    """The numbers of nested objects or lists with the labels that lead there."""
    open_levels: list[tuple[tuple[Label, ...], object]] = [((), content)]
    count = 0
    while open_levels:
        place, inner = open_levels.pop()
        if len(place) == depth:
            count += 1
            if count > MAX_CELLS:
                raise FormatError(f"{what}: got more than {MAX_CELLS:,} cells, the most allowed.")
            yield place, number(inner, what)
            continue
        below: list[tuple[Label, object]]
        if isinstance(inner, dict):
            below = list(inner.items())
        elif isinstance(inner, list):
            _check_length(inner, what)
            below = [(Position(i, len(inner)), v) for i, v in enumerate(inner)]
        else:
            raise FormatError(
                f"{what}: got {short(inner)}, expected an object or a list for each of the "
                f"{depth} columns, one inside the other."
            )
        open_levels += [((*place, name), v) for name, v in reversed(below)]


def _check_length(inner: Sequence[object], what: str) -> None:
    if len(inner) > MAX_CELLS:
        raise FormatError(f"{what}: got a list of {len(inner):,}, at most {MAX_CELLS:,} allowed.")


def _label(value: object) -> Label:
    if value is None or isinstance(value, (str, bool)):
        return value
    return number(value, "cell")


def _bins(content: object, columns: Sequence[str]) -> dict[str, tuple[float, ...]]:
    if not isinstance(content, dict):
        raise FormatError(f"bins: got {short(content)}, expected inner edges by column.")
    found = {}
    for name, edges in content.items():
        if name not in columns:
            raise FormatError(f"bins: {short(name)} is not a column of this table.")
        if not isinstance(edges, list) or not edges or len(edges) > MAX_CELLS:
            raise FormatError(f"bins of {name!r}: expected a list of ascending inner edges.")
        found[name] = tuple(_edge(e, name) for e in edges)
        if not ascending(found[name]):
            raise FormatError(f"bins of {name!r}: expected ascending inner edges, all different.")
    return found


def _edge(value: object, name: str) -> float:
    """An edge in the units of cells: a number, or a date as microseconds since 1970."""
    if not isinstance(value, str):
        return number(value, f"bins of {name!r}")
    try:
        return microseconds_of(datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        raise FormatError(
            f"bins of {name!r}: got {short(value)}, expected a number, or a date such as "
            "2024-01-31."
        ) from None
