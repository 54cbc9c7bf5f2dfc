"""Measures in files: the strict reading of one entry."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import isfinite
from typing import Any

from retilt._input import listed as listed
from retilt._input import short as short
from retilt.exceptions import FormatError, InputError, WorkloadError

_ENVELOPE = frozenset(("kind", "weight", "scale"))
"""Keys that every measure has in a plan, whatever its kind."""

_FRACTION = re.compile(r"([0-9]{1,50})(?:/([0-9]{1,50}))?")
_WHOLE = re.compile(r"-?[0-9]+")
_LARGEST = 2**40

MAX_EXPRESSIONS = 1_000
"""Different SQL expressions of one file: each takes about ten milliseconds to check."""

SQL_FIELDS = ("predicate", "expression", "where")
"""Where a measure has SQL, in files and as attributes."""

MAX_SQL = 100_000
"""Characters of all of them together."""


@contextmanager
def reading(kind: str, entry: Mapping[str, Any], fields: Collection[str]) -> Iterator[None]:
    """Refuse an entry with other keys than ``fields``; any fault inside is a ``FormatError``.

    >>> with reading("query", {"kind": "query", "lower": 0}, ["lower", "upper"]):
    ...     pass
    Traceback (most recent call last):
        ...
    retilt.exceptions.FormatError: measure 'query': keys missing or unknown: 'upper'.
    """
    odd = sorted((set(entry) - _ENVELOPE) ^ set(fields))
    if odd:
        raise FormatError(f"measure {kind!r}: keys missing or unknown: {listed(odd)}.")
    try:
        yield
    except InputError as error:
        raise FormatError(f"measure {kind!r}: {error}") from None
    except (TypeError, ValueError, AttributeError):
        raise FormatError(f"measure {kind!r}: a value has the wrong type.") from None


def read_weight(entry: Mapping[str, Any]) -> float:
    """The importance of an entry; 1 where it has none."""
    weight = entry.get("weight", 1.0)
    if not is_number(weight) or weight <= 0:
        raise FormatError(f"weight: got {short(weight)}, expected a number above 0.")
    return float(weight)


def read_names(entry: Mapping[str, Any], key: str, *, least: int = 1) -> tuple[str, ...]:
    """Distinct column names, at least ``least`` of them."""
    names = entry[key]
    good = isinstance(names, list) and all(isinstance(n, str) for n in names)
    if not good or len(names) < least or len(set(names)) != len(names):
        raise FormatError(f"{key}: expected a list of distinct names.")
    return tuple(names)


def read_text(entry: Mapping[str, Any], key: str) -> str:
    """A text."""
    text = entry[key]
    if not isinstance(text, str):
        raise FormatError(f"{key}: got {short(text)}, expected text.")
    return text


def read_numbers(entry: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """A list of finite numbers."""
    numbers = entry[key]
    if not isinstance(numbers, list) or not all(map(is_number, numbers)):
        raise FormatError(f"{key}: expected a list of finite numbers.")
    return tuple(float(n) for n in numbers)


def read_edges(entry: Mapping[str, Any], key: str = "edges") -> dict[str, tuple[float, ...]]:
    """Inner bin edges by column."""
    edges = entry[key]
    if not isinstance(edges, dict):
        raise FormatError(f"{key}: expected inner bin edges by column.")
    return {str(name): read_numbers(edges, name) for name in edges}


def read_fraction(entry: Mapping[str, Any], key: str) -> Fraction | None:
    """A positive fraction written as text, or null."""
    return None if entry[key] is None else parse_fraction(entry[key], key)


def parse_fraction(text: object, what: str) -> Fraction:
    """A positive fraction written as text; ``what`` names it in errors.

    Digits only: ``Fraction`` also reads exponents, and '1e999999999' would ask for hours of
    work.
    """
    found = _FRACTION.fullmatch(text) if isinstance(text, str) else None
    above, below = (int(found[1]), int(found[2] or 1)) if found else (0, 1)
    if not (0 < above <= _LARGEST * below and 0 < below <= _LARGEST):
        raise FormatError(f"{what}: got {short(text)}, expected a fraction above 0 such as '3/4'.")
    return Fraction(above, below)


def parse_whole(text: object, what: str, *, digits: int) -> int:
    """A whole number written as text, of so many digits at most.

    >>> parse_whole("-12", "values", digits=3)
    -12
    """
    if not isinstance(text, str) or len(text) > digits + 1 or not _WHOLE.fullmatch(text):
        raise FormatError(f"{what}: expected whole numbers written as text.")
    return int(text)


def check_expressions(texts: Iterable[object]) -> None:
    """Refuse more SQL than one file may hold, before any of it is parsed.

    >>> check_expressions(["age >= 65", None, "age >= 65"])
    """
    different = {text for text in texts if isinstance(text, str)}
    if len(different) > MAX_EXPRESSIONS or sum(map(len, different)) > MAX_SQL:
        raise WorkloadError(
            f"SQL: got {len(different):,} different conditions and formulas of "
            f"{sum(map(len, different)):,} characters together, allowed are {MAX_EXPRESSIONS:,} of "
            f"{MAX_SQL:,} characters. Ask for fewer, or use by= and marginals, which need no SQL."
        )


def expressions_in(entries: object) -> Iterator[object]:
    """Where measures in files have SQL, whatever stands there."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping):
            yield from (entry.get(key) for key in SQL_FIELDS)


def is_number(value: object) -> bool:
    """Whether a value is a finite number and not true or false."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        return number and isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond any float
        return False
