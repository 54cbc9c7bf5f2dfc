"""A ball that rows are pulled into before their moments are summed.

Rows of d columns lie in the box [-1, 1]^d, but nearly all of them lie close together: what one row
can move second moments by is bounded far better by the distance to a centre than by the box. So
each column's difference from the centre is stretched by a factor of its own, and a row that is
then farther from 0 than the radius is shortened to it. Centre, factors and radius are public; a
statistic of such moments is one of the shortened rows, on both tables.

Everything is integers: the radius is ``RADIUS`` steps, and every row ends at a lattice point that
lies in the ball exactly, whatever rounding did on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retilt.exceptions import FormatError, WorkloadError
from retilt.measures.base import FloatArray, IntArray
from retilt.measures.entries import short
from retilt.schema.columns import MAX_LEVELS

RADIUS = 4096
"""Steps from the centre to the ball's surface: products of two coordinates stay below 2**24."""

MAX_STRETCH = 2**20
"""Steps that half a column's length may have, at most: 256 radii."""

_PIECE = 2**14
"""Rows placed at once: what is computed on the way then takes little room beside all rows."""

_FAR = 16 * RADIUS
"""Coordinates are cut off here first, so that their squares times the squared radius fit int64."""


@dataclass(frozen=True, slots=True)
class Ball:
    """Centre and stretch of d columns.

    Parameters
    ----------
    centre
        (d,) integers, on the columns' grids: between -levels and levels.
    stretch
        (d,) steps of the ball's lattice to half a column's length, 1 to ``MAX_STRETCH``.

    Examples
    --------
    >>> ball = Ball(centre=(0,), stretch=(2 * RADIUS,))
    >>> ball.place([np.array([-4, 0, 1, 4], dtype=np.int32)], levels=[8]).ravel().tolist()
    [-4096.0, 0.0, 1024.0, 4096.0]
    """

    centre: tuple[int, ...]
    stretch: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.centre) != len(self.stretch):
            raise WorkloadError(
                f"ball: {len(self.centre)} centres and {len(self.stretch)} stretches."
            )
        for name, values, low, high in (
            ("centre", self.centre, -MAX_LEVELS, MAX_LEVELS),
            ("stretch", self.stretch, 1, MAX_STRETCH),
        ):
            if not all(type(v) is int and low <= v <= high for v in values):
                raise WorkloadError(
                    f"ball: got the {name} {short(list(values))}, expected whole numbers from "
                    f"{low:,} to {high:,}."
                )

    def place(self, arrays: Sequence[IntArray], levels: Sequence[int]) -> FloatArray:
        """(rows, d) lattice points in the ball: squares of a row add up to ``RADIUS**2`` at most.

        ``arrays`` holds d columns of grid values in [-levels, levels]. Each coordinate is rounded
        to the nearest step (halves away from the centre). Those of a row whose squares sum to
        S > RADIUS**2 become ``isqrt(v**2 * RADIUS**2 // S)`` with their sign: the squares of
        these are at most ``v**2 * RADIUS**2 / S``, which sum to ``RADIUS**2``. A row within the
        ball stays as it is by the same formula, with ``max(S, RADIUS**2)`` for S, so that nothing
        here branches by what rows hold.
        """
        placed = np.empty((len(arrays[0]), len(arrays)))
        centre, stretch, doubled = np.array(
            [self.centre, self.stretch, [2 * n for n in levels]], dtype=np.int64
        )
        for start in range(0, len(placed), _PIECE):
            piece = slice(start, start + _PIECE)
            grid = np.stack([a[piece] for a in arrays], axis=1) - centre
            # At most 2 * 2**16 * 2**20 on the way.
            steps = (2 * np.abs(grid) * stretch + doubled // 2) // doubled
            squares = np.minimum(steps, _FAR) ** 2
            longest = np.maximum(squares.sum(axis=1, keepdims=True), RADIUS**2)
            # At most 2**32 * 2**24 on the way and 2**24 in the end; float64 roots of integers
            # below 2**52 are never rounded up to the next whole number.
            shortened = np.floor(np.sqrt(squares * RADIUS**2 // longest))
            placed[piece] = np.sign(grid) * shortened
        return placed


def ball_to_dict(ball: Mapping[str, tuple[int, int]] | None) -> dict[str, list[int]] | None:
    """Centre and stretch by column, as JSON has them."""
    return None if ball is None else {name: list(pair) for name, pair in ball.items()}


def ball_from_entry(entry: Mapping[str, Any]) -> dict[str, tuple[int, int]] | None:
    """What :func:`ball_to_dict` wrote under ``ball``."""
    given = entry["ball"]
    if given is None:
        return None
    good = isinstance(given, dict) and all(
        isinstance(p, list) and len(p) == 2 and all(type(v) is int for v in p)
        for p in given.values()
    )
    if not good:
        raise FormatError(
            f"ball: got {short(given)}, expected two whole numbers by column, or null."
        )
    return {name: (pair[0], pair[1]) for name, pair in given.items()}
