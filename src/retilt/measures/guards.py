"""Guards: measures whose answer is the synthetic table's own, so that a tilt can't damage them.

A guard asks nothing of the private table and costs no privacy. It enters the fit beside the
measured queries with a tolerance for a deviation: moving it by that much costs the fit as much
as a misfit of one standard error of a measured answer does.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures.base import FloatArray, Measure, Terms
from retilt.measures.entries import is_number, short
from retilt.measures.partitions import Partition
from retilt.measures.queries import QuerySet, gather
from retilt.schema.columns import Schema

_FELT = 1e-6
"""Part of a statistic's error from which on it is more than rounding."""

_LEAST, _MOST = 1e-9, 1e3
"""Tolerances: nothing is held more exactly, and nothing can move by more than 2."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A measure that a tilt shall keep as it is.

    Attributes
    ----------
    measure
        What to keep.
    tolerance
        Deviation of each of its queries, in shares for the cells of a table, in half ranges
        of the synthetic table's values for means and products. ``None``: the sampling error of
        the synthetic table, which is as far as another table from the same generator would be off.
    """

    measure: Measure
    tolerance: float | None = None

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance)


@dataclass(frozen=True, slots=True)
class Everything:
    """All one-way tables of the synthetic table's columns, as far as they are not measured."""

    tolerance: float | None = None

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance)


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is None or (is_number(tolerance) and _LEAST <= tolerance <= _MOST):
        return
    raise WorkloadError(
        f"keep: tolerance: got {short(tolerance)}, expected a number from {_LEAST:g} to "
        f"{_MOST:g}, such as 0.001 (a tenth of a per cent of the rows in each cell)."
    )


@dataclass(frozen=True)
class Guards:
    """Guards with all bins fixed, and the schema that they are bound to.

    Attributes
    ----------
    guards
        In order.
    schema
        Of the columns that they read, which the private table need not have.
    """

    guards: tuple[Guard, ...]
    schema: Schema

    @cached_property
    def queries(self) -> QuerySet:
        """Their queries, asked of the synthetic table alone."""
        terms = Terms(self.schema)
        return gather((g.measure for g in self.guards), terms)

    def held(self, measured: Container[str]) -> NDArray[np.bool_]:
        """(K,) which of the queries are to be kept: those that are not ``measured``, by key.

        A table is kept or left alone whole.
        """
        parts = [np.zeros(0, dtype=np.bool_)]
        for block, kept in zip(self.queries.blocks, self.queries.kept, strict=True):
            keys = block.keys
            free = np.array([keys[k] not in measured for k in kept], dtype=np.bool_)
            if isinstance(block, Partition):
                free[:] = free.all()
            parts.append(free)
        return np.concatenate(parts)

    def held_statistics(self, means: FloatArray, measured: Container[str]) -> NDArray[np.bool_]:
        """(S,) which statistics a query that is held enters, at (K,) means of the table.

        That is, noise of the held queries alone would show in them. All others are functions
        of what is ``measured``, and meant to move.
        """
        none = np.zeros((len(means), 0))
        whole = self.queries.standard_errors(means, np.ones(len(means)), none)
        own = self.queries.standard_errors(means, self.held(measured).astype(np.float64), none)
        return ~(own <= _FELT * whole)

    def deviations(self, means: FloatArray, ess: float) -> FloatArray:
        """(K,) tolerances, at (K,) means of a synthetic table worth ``ess`` rows.

        The sampling error of a share p is ``sqrt(p (1 - p) / ess)``, and at least that of one
        row; a query in [-1, 1] has at most ``1 / sqrt(ess)``.
        """
        parts = [np.zeros(0)]
        blocks = zip(self.queries.blocks, self.queries.kept, self.queries.positions, strict=True)
        for guard, (block, kept, positions) in zip(self.guards, blocks, strict=True):
            if guard.tolerance is not None:
                parts.append(np.full(len(kept), float(guard.tolerance)))
            elif isinstance(block, Partition):
                share = np.clip(means[positions[kept]], 0, 1)
                parts.append(np.sqrt(np.maximum(share * (1 - share), 1 / ess) / ess))
            else:
                parts.append(np.full(len(kept), 1 / sqrt(ess)))
        return np.concatenate(parts)
