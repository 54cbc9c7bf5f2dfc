"""The contract between measures and everything else.

*A measure is a bounded function of one row; a table answers it with its mean.*

A measure that has been bound to a schema is a :class:`Block`: K queries, each an integer
polynomial (or indicator) of the row's encoded columns over an integer unit, so that the sum
over a table is an exact integer on every engine. A block knows how loud each of its queries
may be asked relative to the others (``scales``) and how much one row can move the scaled
block (``sensitivity``); it turns answers into the statistics that the user asked for; and it
gives the synthetic table's query values to the solver as a :class:`Design` part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from retilt.schema.columns import Boolean, Column, Schema
from retilt.schema.encode import cell_labels, to_cells, to_grid, to_values

if TYPE_CHECKING:
    import pyarrow as pa

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int32]
EncodedArray: TypeAlias = NDArray[Any]
"""(rows,) of a feature: int32 of a grid or of cells, float64 of values."""

ValueArray: TypeAlias = NDArray[np.float64] | NDArray[np.float32]
"""Values of queries' columns: single precision where that is exact."""

_PIECE = 2**20
"""Rows of a column that are encoded at a time, for the sake of memory."""

Norm: TypeAlias = Literal[1, 2]
"""1 for Laplace (pure DP), 2 for Gaussian."""

Basis: TypeAlias = Literal["centred", "paper"]
"""In which polynomials moments are asked."""

Read: TypeAlias = "Callable[[str], pa.ChunkedArray]"
"""Gives (rows,) cells of the column of a name."""


@dataclass
class Reading:
    """A table's columns for as long as its features are encoded.

    Attributes
    ----------
    read
        Gives the columns.
    last
        What a source computed last for several features, after a key that tells what it is.
    """

    read: Read
    last: tuple[object, FloatArray] | None = None

    def __call__(self, name: str) -> pa.ChunkedArray:
        """(rows,) the column's cells."""
        return self.read(name)


def pieces(rows: int, size: int) -> list[slice]:
    """Slices of so many rows that cover all; one even for no rows, which then take the same lines.

    >>> pieces(5, 3), pieces(0, 3)
    ([slice(0, 3, None), slice(3, 6, None)], [slice(0, 3, None)])
    """
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]


def label(text: str) -> str:
    """A name as it stands in a statistic's name: quoted where it could be read as two.

    >>> label("age"), label("a, b")
    ('age', '"a, b"')
    """
    plain = text and not set(text) & set(',()="\n\r') and text == text.strip()
    return text if plain else '"' + text.replace('"', '""') + '"'


class Relation(Enum):
    """Which tables are neighbours, row by row.

    Under ``REPLACE`` one row becomes another. Every bound for it also covers a row that comes
    or goes while the row count is measured apart (``diam({0} and all query vectors)``, DESIGN
    4), which is what a person's rows do; the tests hold each measure to that.
    """

    REPLACE = "replace-one"
    ADD_REMOVE = "add-remove"


@dataclass(frozen=True, slots=True)
class Terms:
    """What measures are bound to.

    Attributes
    ----------
    schema
        Of every column that they read.
    norm, relation
        Of the sensitivity.
    basis
        Of moments.
    counted
        Whether the row count is private and measured, so that shares of a partition add up
        to 1 only but for noise.
    """

    schema: Schema
    norm: Norm = 2
    relation: Relation = Relation.REPLACE
    basis: Basis = "centred"
    counted: bool | None = None

    def __post_init__(self) -> None:
        if self.counted is None:
            object.__setattr__(self, "counted", self.relation is Relation.ADD_REMOVE)


class Source(Protocol):
    """Where the values of a variable come from that is no column of the table. Hashable."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it reads."""
        ...

    @property
    def identity(self) -> tuple[str, ...]:
        """Tells it from other sources; texts, for the keys of queries."""
        ...

    def cells(self, read: Read, rows: int) -> pa.ChunkedArray:
        """(rows,) numbers or true/false without nulls, each from its own row alone."""
        ...


@dataclass(frozen=True, slots=True)
class Feature:
    """An encoded variable that a block reads.

    Parameters
    ----------
    name
        The variable's name.
    column
        Its schema.
    kind
        ``"grid"``: integers ``u`` in [-levels, levels], ``z = u / levels``;
        ``"cells"``: cell numbers ``0..cells-1``;
        ``"values"``: numbers in the units that means are reported in, clamped but not rounded.
        No engine sums them exactly, so they are for synthetic tables alone.
    edges
        Inner bin edges of a numeric or datetime column, ascending, in the column's units
        (datetimes as microseconds since 1970); ``edges[i-1] <= value < edges[i]`` is cell i.
    source
        Where its values come from; ``None`` for the table's column ``name``.
    """

    name: str
    column: Column
    kind: Literal["grid", "cells", "values"]
    edges: tuple[float, ...] = ()
    source: Source | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the table's columns that it is made of."""
        return (self.name,) if self.source is None else self.source.reads

    def encode(self, read: Read, rows: int) -> EncodedArray:
        """The variable by the fixed policy of the schema: (rows,) integers, or values."""
        cells = read(self.name) if self.source is None else self.source.cells(read, rows)
        encoded = np.empty(len(cells), dtype=np.float64 if self.kind == "values" else np.int32)
        for piece in pieces(len(cells), _PIECE):
            encoded[piece] = self._encoded(cells.slice(piece.start, _PIECE))
        return encoded

    def _encoded(self, cells: pa.ChunkedArray) -> EncodedArray:
        if self.kind == "values":
            return to_values(self.column, cells)
        if self.kind == "grid":
            return to_grid(self.column, cells)
        return to_cells(self.column, cells, self.edges)


@dataclass(frozen=True, slots=True)
class Variable:
    """A bounded function of one row that has a name: a column, or computed from columns.

    Attributes
    ----------
    name
        The column's name, or the formula as it stands in the names of statistics.
    column
        Its bounds or categories.
    source
        Where its values come from; ``None`` for the table's column ``name``.
    clamped
        Whether ``column`` has narrower bounds than the schema.
    """

    name: str
    column: Column
    source: Source | None = None
    clamped: bool = False

    @property
    def label(self) -> str:
        """The name in statistics; a formula is not quoted."""
        return label(self.name) if self.source is None else self.name

    @property
    def identity(self) -> str | list[str]:
        """Tells it from other variables, in the keys of queries (JSON).

        What is computed, or clamped to bounds of its own, may have other bounds elsewhere: they
        belong to it.
        """
        if self.source is None:
            return [self.name, repr(self.column)] if self.clamped else self.name
        return [*self.source.identity, repr(self.column)]

    @property
    def title(self) -> str:
        """Name of its mean among the statistics; that of a condition is a share."""
        condition = self.source is not None and isinstance(self.column, Boolean)
        return f"{'share' if condition else 'mean'}({self.label})"

    @property
    def grid(self) -> Feature:
        """Its values as integers of a grid."""
        return Feature(self.name, self.column, "grid", (), self.source)

    @property
    def values(self) -> Feature:
        """Its values in the units that means are reported in."""
        return Feature(self.name, self.column, "values", (), self.source)

    def cells(self, edges: tuple[float, ...] = ()) -> Feature:
        """The cell that each value falls in."""
        return Feature(self.name, self.column, "cells", edges, self.source)

    def cell_labels(self, edges: tuple[float, ...] = ()) -> tuple[str, ...]:
        """Names of its cells; what is computed is never null and has no cell for it."""
        return cell_labels(self.column, edges)[: None if self.source is None else -1]


@dataclass(frozen=True, slots=True)
class Products:
    """Query values that are products of at most two centred columns.

    The value of query k on row i is
    ``offset[k] + factor[k] * f(left[k]) * f(right[k])`` where ``f(-1) = 1`` and
    ``f(j) = values[i, j]``.

    Attributes
    ----------
    values
        (rows, columns), float64, or float32 where that holds every value exactly; best stored by
        columns. What a fit does with them is in double precision.
    left, right
        (K,) column numbers, -1 for none.
    offset, factor
        (K,) affine part; ``1 - z**2`` is offset 1, factor -1.
    """

    values: ValueArray
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    offset: FloatArray
    factor: FloatArray


@dataclass(frozen=True, slots=True)
class Indicators:
    """Query values that are the indicators of a partition's cells.

    Attributes
    ----------
    codes
        (rows,) int32: the row's cell, ``0..size-1``.
    size
        Number of cells (= queries).
    """

    codes: IntArray
    size: int


@dataclass(frozen=True, slots=True)
class Grouped:
    """Query values that are products of columns within one cell of a partition, 0 outside it.

    The value of query k on row i is
    ``[codes[i] == cell[k]] * (offset[k] + factor[k] * f(left[k]) * f(right[k]))`` where
    ``f(-1) = 1`` and ``f(j) = values[i, j]``.

    Attributes
    ----------
    codes
        (rows,) int32: the row's cell, ``0..size-1``.
    size
        Number of cells.
    values
        (rows, columns) float64.
    cell, left, right, offset, factor
        (K,) the query's cell; the rest as in :class:`Products`. An indicator has left and
        right -1, offset 0, factor 1.
    """

    codes: IntArray
    size: int
    values: ValueArray
    cell: NDArray[np.intp]
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    offset: FloatArray
    factor: FloatArray


Design: TypeAlias = Products | Indicators | Grouped


class Alone(NamedTuple):
    """The queries of a block that read one of its features and no other.

    Attributes
    ----------
    queries
        (m,) their numbers in the block.
    designs
        Their values on some rows, in the same order.
    """

    queries: NDArray[np.intp]
    designs: tuple[Design, ...]


class Block(Protocol):
    """A measure bound to its :class:`Terms`."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """The encoded columns it reads, in the order that ``sums`` and ``design`` take them."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """(K,) canonical identity of each query; equal keys are the same function of a row."""
        ...

    @property
    def units(self) -> tuple[int, ...]:
        """(K,) positive integers: the query's value on a row is an integer over its unit."""
        ...

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """(K,) loudness of each query in this block, before the block's own scale."""
        ...

    def sensitivity(self) -> Fraction:
        """Upper bound of the change of the scaled sums: squared for the L2 norm, plain for L1."""
        ...

    def sums(self, arrays: Sequence[IntArray]) -> list[int]:
        """Exact integer sums over rows of each query's numerator, from the features' arrays."""
        ...

    def design(self, arrays: Sequence[IntArray], keep: NDArray[np.intp]) -> Design:
        """The queries ``keep`` of every row, for the solver."""
        ...

    def alone(self, number: int, array: IntArray) -> Alone | None:
        """The queries that read feature ``number`` alone, on rows that hold ``array`` there.

        None if there are none.
        """
        ...

    @property
    def statistics(self) -> tuple[str, ...]:
        """(S,) names of what the user asked for."""
        ...

    @property
    def statistic_keys(self) -> tuple[str, ...]:
        """(S,) canonical identity of each statistic; equal keys are the same number."""
        ...

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers; NaN where undefined."""
        ...

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors by the delta method; NaN where undefined.

        The answers' noise has covariance ``diag(variances) + factor @ factor.T`` with
        variances (K,) and factor (K, R).
        """
        ...

    def dominated(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> NDArray[np.bool_]:
        """(S,) where noise dominates what a statistic divides by; its error is not to be trusted.

        That is a group's count, a variance or a density that is not at least ten of its
        standard errors above zero. False for statistics that are linear in the answers.
        """
        ...

    def comparisons(self, answers: FloatArray) -> FloatArray:
        """(S,) what each statistic's error is multiplied with to compare it with others'.

        One over the statistic's natural range; within a group, times the group's share of the
        rows, so that groups count alike and not the smallest, which is the noisiest, most.
        """
        ...

    def shortfalls(
        self, arrays: Sequence[IntArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Sentences on answers that no weights of these rows can reach (within 3 errors)."""
        ...


class Measure(Protocol):
    """What a user asks for, before it is bound: a part of a workload. Frozen."""

    @property
    def kind(self) -> str:
        """The name in files."""
        ...

    @property
    def weight(self) -> float:
        """Importance, positive."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it reads, each once."""
        ...

    def bind(self, terms: Terms) -> Block:
        """Give the block of this measure, or refuse what the schema can't have."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Everything but kind and weight, for JSON."""
        ...


@runtime_checkable
class Binned(Protocol):
    """A measure with bins whose edges the synthetic table decides."""

    def with_edges(self, schema: Schema, values: Mapping[str, FloatArray]) -> Self:
        """Return it with all edges fixed.

        ``values`` holds the synthetic table's numeric columns (rows,), NaN for null.
        """
        ...


@runtime_checkable
class Tunable(Protocol):
    """A measure whose queries may be asked at different loudness."""

    def tuned(self, terms: Terms, answers: FloatArray) -> Self:
        """Return it with the loudness that predicts the least error at (K,) answers."""
        ...
