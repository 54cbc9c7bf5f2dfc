"""What a figure is: a number before and after, or a sentence why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Given = TypeVar("Given")

WHEN = ("before", "after")
"""The synthetic table as it was, and the post-processed one."""


class Undefined(Exception):
    """A figure has no value for these tables; the text says why."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the synthetic table and of the post-processed one.

    Attributes
    ----------
    before, after
        Finite, or ``None`` where the figure does not exist.
    """

    before: float | None
    after: float | None

    def to_dict(self) -> dict[str, float | None]:
        """The figure as JSON."""
        return {"before": self.before, "after": self.after}


def value_or_reason(name: str, of: Callable[[], float], undefined: dict[str, str]) -> float | None:
    """Return a finite value, or ``None`` and the reason in ``undefined`` under the name.

    Examples
    --------
    >>> reasons = {}
    >>> value_or_reason("share", lambda: 0.5, reasons), reasons
    (0.5, {})
    >>> value_or_reason("share", lambda: float("inf"), reasons), reasons
    (None, {'share': 'the values are too large to calculate with'})
    """
    try:
        value = float(of())
    except Undefined as reason:
        undefined[name] = str(reason)
        return None
    if not np.isfinite(value):
        undefined[name] = "the values are too large to calculate with"
        return None
    return value


def figure(
    name: str, of: Callable[[Given], float], given: tuple[Given, Given], undefined: dict[str, str]
) -> Figure:
    """Return a figure of the two tables; where it does not exist, the reason is noted.

    Parameters
    ----------
    name
        The figure's place in :meth:`retilt.Evaluation.to_dict`, with dots between the keys.
    of
        Gives the value for what belongs to one table, or raises :class:`Undefined`.
    given
        What belongs to the table before, and after.
    undefined
        Takes the reasons, each under the name of its value.
    """
    before, after = (
        value_or_reason(f"{name}.{when}", lambda one=one: of(one), undefined)  # type: ignore[misc]
        for when, one in zip(WHEN, given, strict=True)
    )
    return Figure(before, after)
