"""The settings of support rescue, and what a tilt's file keeps of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.measures.entries import is_number, read_numbers, short

MOST_ROWS = 1_000_000
"""Most copies that may be asked for."""

_USUAL_TIMES, _USUAL_LEAST, _USUAL_MOST = 5, 20_000, 200_000
_MOST_WEIGHT = 0.5
_SEEDS = 2**53
"""Seeds are below it: every reader of JSON keeps such a number."""

LARGEST = 1e60
"""Of a number in a tilt's file that is squared, multiplied and divided by; no fit comes near it."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How candidate rows are added to the synthetic ones.

    Attributes
    ----------
    rows
        How many: from 1 to 1,000,000. None for five times as many as the synthetic table has,
        but at least 20,000 and at most 200,000: what the fit needs of them are the few that lie
        where the synthetic rows do not.
    weight
        Their share of the base weight, above 0 and at most a half. The tilt starts from it.
    seed
        A whole number of at least 0 and below 2**53. None for the fit's seed, or else one that
        is drawn and recorded.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> Mix(rows=1000).settled(50, 7)
    Mix(rows=1000, weight=0.05, seed=7)
    """

    rows: int | None = None
    weight: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and not _is_whole(self.rows, 1, MOST_ROWS):
            raise InputError(
                f"support: rows: got {short(self.rows)}, expected a whole number from 1 to "
                f"{MOST_ROWS:,}, or None."
            )
        if not is_number(self.weight) or not 1e-6 <= self.weight <= _MOST_WEIGHT:
            raise InputError(
                f"support: weight: got {short(self.weight)}, expected a share of the base weight "
                f"from 1e-06 to {_MOST_WEIGHT}."
            )
        if self.seed is not None and not _is_whole(self.seed, 0, _SEEDS - 1):
            raise InputError(
                f"support: seed: got {short(self.seed)}, expected a whole number from 0 to "
                "2**53 - 1, or None."
            )

    def settled(self, rows: int, seed: int | None) -> Mix:
        """The same for a table of so many rows, with nothing left open."""
        usual = min(max(_USUAL_TIMES * rows, _USUAL_LEAST), _USUAL_MOST)
        given = seed if self.seed is None else self.seed
        return replace(
            self,
            rows=usual if self.rows is None else self.rows,
            seed=secrets.randbelow(_SEEDS) if given is None else given,
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of a tilt's file."""
        return {"kind": "mix", "rows": self.rows, "weight": self.weight, "seed": self.seed}


Support: TypeAlias = Literal["mix"] | Mix
"""Where candidate rows come from beside the synthetic ones: by name, or with other settings."""


def _is_whole(value: object, least: int, most: int) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and least <= value <= most  # type: ignore[operator]


def support_of(support: object) -> Mix | None:
    """The settings that are asked for.

    Raises
    ------
    InputError
        It is neither None, ``"mix"`` nor a :class:`Mix`.
    """
    if support is None or isinstance(support, Mix):
        return support
    if support == "mix":
        return Mix()
    raise InputError(f"support: got {short(support)}, expected 'mix', a Mix or None.")


@dataclass(frozen=True)
class Redrawing:
    """How candidate rows were added for one fit: enough to make the same ones again.

    Attributes
    ----------
    mix
        With nothing left open.
    multipliers
        By column those of the queries that read it alone (see ``columns.py``).
    """

    mix: Mix
    multipliers: Mapping[str, FloatArray] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The content of a tilt's file."""
        columns = {name: values.tolist() for name, values in self.multipliers.items()}
        return {**self.mix.to_dict(), "columns": columns}


def redrawing_from_dict(content: object) -> Redrawing | None:
    """What :meth:`Redrawing.to_dict` wrote, or None for null; strict.

    Raises
    ------
    InputError
        It is malformed, or a number is out of its range.
    """
    if content is None:
        return None
    keys = {"kind", "rows", "weight", "seed", "columns"}
    if not isinstance(content, dict) or content.keys() != keys or content["kind"] != "mix":
        raise InputError(
            "support: expected null, or an object of kind 'mix', rows, weight, seed, columns."
        )
    if content["rows"] is None or content["seed"] is None:
        raise InputError("support: rows and seed: expected whole numbers.")
    columns = content["columns"]
    if not isinstance(columns, dict):
        raise InputError("support: columns: expected an object of lists of numbers.")
    try:
        multipliers = {name: np.array(read_numbers(columns, name)) for name in columns}
    except InputError as error:
        raise InputError(f"support: columns: {error}") from None
    if any(np.any(np.abs(values) > LARGEST) for values in multipliers.values()):
        raise InputError(f"support: columns: expected numbers from -{LARGEST:g} to {LARGEST:g}.")
    mix = Mix(rows=content["rows"], weight=content["weight"], seed=content["seed"])
    return Redrawing(mix, multipliers)
