"""Formulas: the mean of any SQL expression of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retilt.measures.base import Terms
from retilt.measures.derived import check_bounds, number
from retilt.measures.entries import read_text, read_weight, reading
from retilt.measures.expressions import parse_number
from retilt.measures.moments import MomentsBlock


@dataclass(frozen=True, slots=True)
class Query:
    """The mean of a SQL expression clamped to its declared bounds.

    One row moves its sum by at most ``upper - lower``.

    Parameters
    ----------
    expression
        A number computed from one row; kept in canonical form. Where it is null or fails it
        counts as ``lower``.
    lower, upper
        Finite, ``lower < upper``.
    weight
        Importance, positive.

    Examples
    --------
    >>> Query("case when age>65 then 1 else 0 end", 0, 1).expression
    'CASE WHEN age > 65 THEN 1 ELSE 0 END'
    """

    expression: str
    lower: float
    upper: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        parsed = parse_number(self.expression)
        check_bounds(self.lower, self.upper, parsed.text)
        object.__setattr__(self, "expression", parsed.text)

    @property
    def kind(self) -> str:
        """The name in a workload file."""
        return "query"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expression reads."""
        return parse_number(self.expression).columns

    def bind(self, terms: Terms) -> MomentsBlock:
        """The block of this mean; refused where the expression doesn't fit the schema."""
        parsed = parse_number(self.expression)
        variable = number(parsed, terms.schema, lower=self.lower, upper=self.upper)
        return MomentsBlock.linear((variable,), terms)

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""
        return {"expression": self.expression, "lower": self.lower, "upper": self.upper}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Query:
        """The query that :meth:`to_dict` wrote; strict."""
        with reading("query", entry, ("expression", "lower", "upper")):
            text, weight = read_text(entry, "expression"), read_weight(entry)
            return cls(text, entry["lower"], entry["upper"], weight=weight)
