"""A synthetic table with more candidate rows behind its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from retilt.engines.base import Indices, Redrawn, Table
from retilt.exceptions import FormatError, InputError
from retilt.measures.base import FloatArray
from retilt.measures.entries import listed
from retilt.privacy.targets import Asked, Targets
from retilt.rescue.cells import Domain, Draw, Drawn, below
from retilt.rescue.columns import (
    Designs,
    Places,
    check_multipliers,
    found_multipliers,
    own_queries,
    taken,
)
from retilt.rescue.mix import Mix
from retilt.schema.columns import Column, Datetime, Numeric


def measured_columns(asked: Asked) -> tuple[str, ...]:
    """Every column that a query reads, each once."""
    return tuple(dict.fromkeys(n for f in asked.queries.features for n in f.reads))


def undeclared(asked: Asked) -> list[str]:
    """Measured columns whose bounds or categories were read off the synthetic table."""
    return [n for n in measured_columns(asked) if n in asked.schema.inferred]


def clamped_columns(asked: Asked) -> list[str]:
    """Measured columns that every measure reads with narrower bounds than are declared."""
    return [n for n in measured_columns(asked) if _read_as(asked, n) != asked.schema[n]]


def check_declared(asked: Asked) -> None:
    """Refuse to redraw columns over a domain that only the synthetic table shows.

    Raises
    ------
    InputError
        Naming the columns.
    """
    missing = undeclared(asked)
    if missing:
        raise InputError(
            "support: 'mix' redraws the measured columns over their public domain, but the bounds "
            f"or categories of {listed(missing)} were read off the synthetic table. Declare them "
            "in the schema that the plan is made with (`retilt schema` writes one to start from), "
            "or leave support out."
        )


@dataclass(frozen=True)
class Widened:
    """A synthetic table with more candidate rows behind its own.

    Attributes
    ----------
    table
        All rows.
    base
        (rows,) their base weights.
    notes
        Sentences on what could not be drawn.
    multipliers
        By column those that its cells were taken by.
    """

    table: Table
    base: FloatArray
    notes: tuple[str, ...]
    multipliers: Mapping[str, FloatArray]


@dataclass(frozen=True)
class Copies:
    """Copies of synthetic rows with the measured columns drawn anew, before any answer is known.

    Attributes
    ----------
    table, asked, base
        The synthetic table, what is asked of it, and (rows,) base weights.
    mix
        With nothing left open.
    rows
        (M,) the rows that are copied.
    columns
        New cells by column.
    notes
        Sentences on what could not be drawn.
    """

    table: Table
    asked: Asked
    base: FloatArray
    mix: Mix
    rows: Indices
    columns: Mapping[str, Drawn]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, asked: Asked, mix: Mix, base: FloatArray) -> Copies:
        """Draw them.

        Parameters
        ----------
        table
            The synthetic table.
        asked
            Whose queries say which columns are measured, and whose schema what they may hold.
        mix
            With nothing left open (:meth:`Mix.settled`).
        base
            (rows,) base weights of the table's rows.

        Raises
        ------
        InputError
            A measured column's domain is not declared, or no row has a base weight.
        """
        check_declared(asked)
        assert mix.rows is not None
        used = np.flatnonzero(base > 0)
        if used.size == 0:
            raise InputError("base weights: all are zero or less; at least one must be positive.")
        draw = _drawing(mix)
        copies = used[below(draw(mix.rows), used.size)].astype(np.int64)
        columns: dict[str, Drawn] = {}
        notes: list[str] = []
        for name in measured_columns(asked):
            domain = Domain.of(table, name, asked.schema[name], base, _read_as(asked, name))
            notes += domain.notes
            new = domain.redrawn(mix.rows, draw)
            if new is not None:
                columns[name] = new
        return cls(table, asked, base, mix, copies, columns, tuple(notes))

    def towards(self, targets: Targets) -> Widened:
        """The table with the copies behind it, their cells taken by what the answers say."""

        def found(name: str, places: Places, designs: Designs) -> FloatArray | None:
            base = self.columns[name].base
            return found_multipliers(targets, places, designs, base) if places.size else None

        return self._widened(found)

    def widened(self, multipliers: Mapping[str, FloatArray]) -> Widened:
        """The table with the copies behind it, their cells taken by these multipliers.

        Those of columns that this table could not be redrawn in are not needed.

        Raises
        ------
        FormatError
            The multipliers are not those of the columns' queries.
        """
        odd = sorted(multipliers.keys() - set(measured_columns(self.asked)))
        if odd:
            raise FormatError(f"support: columns: got {listed(odd)}, which are not measured.")

        def given(name: str, places: Places, designs: Designs) -> FloatArray | None:
            del designs
            if name in multipliers:
                check_multipliers(name, multipliers[name], places.size)
            return multipliers.get(name)

        return self._widened(given)

    def _widened(self, choose: Callable[[str, Places, Designs], FloatArray | None]) -> Widened:
        """With the multipliers that are chosen for each column's own queries; None as drawn."""
        draw = _drawing(self.mix, jumps=1)
        columns, multipliers = {}, {}
        for name, drawn in self.columns.items():
            columns[name] = drawn.cells
            places, designs = own_queries(self.asked.queries, name, self._cells(name))
            chosen = choose(name, places, designs)
            if chosen is not None:
                multipliers[name] = chosen
                rows = drawn.cells.rows[taken(designs, chosen, drawn.base, draw)]
                columns[name] = Redrawn(drawn.cells.values, rows)
        own, weight = self.base[self.rows], self.mix.weight
        own = own * (weight / (1 - weight) * (self.base.sum() / own.sum()))
        table = self.table.extended(self.rows, columns)
        return Widened(table, np.concatenate([self.base, own]), self.notes, multipliers)

    def _cells(self, name: str) -> pa.ChunkedArray:
        """(M,) the cells that were drawn for a column."""
        new = self.columns[name].cells
        kind = new.values.type
        own = [_plain(chunk, kind) for chunk in self.table.cells(name).chunks]
        return pa.chunked_array([*own, new.values], kind).take(pa.array(new.rows))


def _plain(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cells as values of a type, those of a dictionary written out."""
    if pa.types.is_dictionary(cells.type):
        return cells.dictionary.cast(kind).take(cells.indices)
    return cells.cast(kind)


def _drawing(mix: Mix, jumps: int = 0) -> Draw:
    """Uniform numbers, and nothing else: their stream is the same in every NumPy release."""
    assert mix.seed is not None
    return np.random.Generator(np.random.PCG64(mix.seed).jumped(jumps)).random


def _read_as(asked: Asked, name: str) -> Column:
    """A column with the widest bounds that a measure reads it with.

    Where all measures clamp it, values beyond are to them the same as the bound: nothing that is
    measured says how far out they should be drawn.
    """
    column = asked.schema[name]
    readers = [f for f in asked.queries.features if name in f.reads]
    if any(f.source is not None for f in readers):
        return column
    read = [f.column for f in readers]
    if isinstance(column, Numeric):
        numbers = [c for c in read if isinstance(c, Numeric)]
        lower, upper = min(c.lower for c in numbers), max(c.upper for c in numbers)
        return replace(column, lower=lower, upper=upper)
    if isinstance(column, Datetime):
        moments = [c for c in read if isinstance(c, Datetime)]
        first, last = min(c.lower for c in moments), max(c.upper for c in moments)
        return replace(column, lower=first, upper=last)
    return column


def widen(
    table: Table,
    asked: Asked,
    mix: Mix,
    base: FloatArray,
    multipliers: Mapping[str, FloatArray] | None = None,
) -> Widened:
    """Add copies of rows with the measured columns redrawn; see :class:`Copies`."""
    return Copies.of(table, asked, mix, base).widened(multipliers or {})
