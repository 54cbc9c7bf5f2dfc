"""Measures by a Python callable: any bounded function of one row.

A callable can do anything, so three things are done about it. Its results are clamped to the
declared bounds, and whatever is no number (NaN, an exception, a wrong shape) becomes the lower
bound: nothing that it meets in a private row can be told from outside. An exception is held
against the rows that raise it: the batch is then evaluated row by row. And at plan time it is
run on synthetic rows alone, in another order and one by one, and refused if it looks at more
than one row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from retilt._input import kind_of
from retilt.exceptions import WorkloadError
from retilt.measures.base import FloatArray, Read, Reading, Terms, Variable, pieces
from retilt.measures.derived import check_bounds
from retilt.measures.entries import short
from retilt.measures.expressions import typed_cells
from retilt.measures.moments import MomentsBlock
from retilt.schema.columns import Column, Numeric, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Batch: TypeAlias = "Callable[[pa.RecordBatch], Any]"

MAX_SIZE = 1_000
"""Numbers that one callable may give for a row."""

_BATCH = 65_536
"""Rows that the callable gets at a time."""

_TRIED = 50
"""Synthetic rows that a callable is tried on."""

_LONGEST = 200
"""Characters of a callable's name."""


@dataclass(frozen=True, slots=True)
class Call:
    """One number of a callable's. See :class:`retilt.measures.base.Source`.

    Attributes
    ----------
    function
        From a batch of rows to (rows,) or (rows, size) numbers.
    columns
        The columns that it gets, with their schema: it types and clamps them.
    size, place
        How many numbers it gives for a row, and which of them this is.
    missing
        The value where there is no number.
    """

    function: Batch = field(compare=False)  # it may be an object that has no hash
    columns: tuple[tuple[str, Column], ...]
    size: int
    place: int
    missing: float
    number: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", id(self.function))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that the callable gets."""
        return tuple(name for name, _ in self.columns)

    @property
    def identity(self) -> tuple[str, ...]:
        """The callable as an object: two that do the same are not known to be equal."""
        return ("call", str(self.number), str(self.place), *self.reads)

    def cells(self, read: Read, rows: int) -> pa.ChunkedArray:
        """(rows,) numbers, ``missing`` where there is none."""
        import pyarrow as pa

        found = _outputs(self, read, rows)[:, self.place]
        return pa.chunked_array([pa.array(np.where(np.isnan(found), self.missing, found))])


def _outputs(call: Call, read: Read, rows: int) -> FloatArray:
    """(rows, size) of the callable's numbers, NaN for none.

    Its numbers are asked for one after another, and it is called once for all of them.
    """
    asked = (call.number, call.columns, call.size)
    reading = read if isinstance(read, Reading) else Reading(read)
    if reading.last is None or reading.last[0] != asked:
        reading.last = asked, _called(call, read, rows)
    return reading.last[1]


def _called(call: Call, read: Read, rows: int) -> FloatArray:
    import pyarrow as pa

    columns = {name: typed_cells(column, read(name)) for name, column in call.columns}
    whole = pa.record_batch(columns)
    found = np.full((rows, call.size), np.nan)
    for piece in pieces(rows, _BATCH):
        found[piece] = _batch_outputs(call, whole.slice(piece.start, _BATCH))
    return found


def _batch_outputs(call: Call, batch: pa.RecordBatch) -> FloatArray:
    try:
        return _numbers(call, batch)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whose text could quote the rows; SystemExit, too, would tell of them
        found = np.full((batch.num_rows, call.size), np.nan)
        for row in range(batch.num_rows):
            found[row] = _row_outputs(call, batch.slice(row, 1))
        return found


def _row_outputs(call: Call, row: pa.RecordBatch) -> FloatArray:
    try:
        found: FloatArray = _numbers(call, row)[0]
    except KeyboardInterrupt:
        raise
    except BaseException:  # this row's own error: it has no value
        found = np.full(call.size, np.nan)
    return found


def _numbers(call: Call, batch: pa.RecordBatch) -> FloatArray:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # one that a private row sets off would tell of it
        warnings.simplefilter("error", np.exceptions.ComplexWarning)  # half a number is none
        given = call.function(batch)
        if isinstance(given, np.ma.MaskedArray):
            given = np.ma.filled(given.astype(np.float64), np.nan)
        elif hasattr(given, "to_pylist"):
            given = given.to_numpy(zero_copy_only=False)
        found = np.asarray(given, dtype=np.float64)
    rows = batch.num_rows
    # In another shape numbers of one row would become those of others.
    if found.shape != (rows, call.size) and (call.size > 1 or found.shape != (rows,)):
        raise ValueError(f"it gives an array of the shape {found.shape} for {rows} rows")
    return found.reshape(rows, call.size)


@dataclass(frozen=True, slots=True)
class FunctionMeasure:
    """The means of the numbers that a callable gives for a row.

    Parameters
    ----------
    function
        From a ``pyarrow.RecordBatch`` of ``columns`` to (rows,) or (rows, size) numbers, each
        row's from that row alone. Numbers come as float64 clamped to their bounds, categories
        as a dictionary of text (or as numbers), dates as timestamps in UTC.
    columns
        What it gets.
    lower, upper
        Its results are clamped to them.
    size
        How many numbers it gives for a row.
    name
        In statistics: ``mean(name)``, or ``mean(name[0])`` and so on.
    weight
        Importance, positive.
    """

    function: Batch
    columns: tuple[str, ...]
    lower: float = 0.0
    upper: float = 1.0
    size: int = 1
    name: str = "function"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise WorkloadError(
                f"function: got {kind_of(self.function)}, expected a callable that takes "
                "a batch of rows (a pyarrow.RecordBatch) and gives a number for each."
            )
        named = isinstance(self.name, str) and self.name.isprintable() and self.name.strip()
        if not named or len(self.name) > _LONGEST:
            raise WorkloadError(
                f"function: name: got {short(self.name)}, expected one line of text of at most "
                f"{_LONGEST} characters, as in name='net_income'."
            )
        check_bounds(self.lower, self.upper, "function")
        whole = isinstance(self.size, int) and not isinstance(self.size, bool)
        if not whole or not 1 <= self.size <= MAX_SIZE:
            raise WorkloadError(
                f"function: size: got {self.size!r}, expected a whole number from 1 to {MAX_SIZE:,}"
                ", the numbers that it gives for a row."
            )

    @property
    def kind(self) -> str:
        """The name in messages."""
        return "function"

    def variables(self, schema: Schema) -> tuple[Variable, ...]:
        """(size,) its numbers, each a variable."""
        column = Numeric(float(self.lower), float(self.upper))
        columns = tuple((name, schema[name]) for name in self.columns)
        names = [f"{self.name}[{i}]" for i in range(self.size)] if self.size > 1 else [self.name]
        return tuple(
            Variable(name, column, Call(self.function, columns, self.size, place, column.lower))
            for place, name in enumerate(names)
        )

    def bind(self, terms: Terms) -> MomentsBlock:
        """The block of the means of its numbers.

        Nothing is known of the callable but its box, so the sensitivity is that of ``size``
        columns between the bounds: ``sqrt(size) (upper - lower)`` in L2 (replace-one).
        """
        return MomentsBlock.linear(self.variables(terms.schema), terms)

    def check_rows(self, schema: Schema, read: Read, rows: int) -> None:
        """Refuse a callable that looks at more than one row, on rows of the synthetic table.

        Raises
        ------
        WorkloadError
            It fails on every row, gives a wrong shape, or its numbers depend on other rows.
        """
        import pyarrow as pa

        tried = min(rows, _TRIED)
        if tried == 0:
            return
        places = np.linspace(0, rows - 1, tried).astype(np.int64)
        call = self.variables(schema)[0].source
        assert isinstance(call, Call)
        columns = {n: typed_cells(c, read(n).take(pa.array(places))) for n, c in call.columns}
        batch = pa.table(columns).combine_chunks().to_batches()[0]
        try:
            together = _numbers(call, batch)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise WorkloadError(
                f"function {self.name!r}: on {tried} synthetic rows it failed "
                f"({type(error).__name__}: {error}). It takes a pyarrow.RecordBatch of "
                f"{', '.join(self.columns)} and gives numbers, {self.size:,} for each row."
            ) from None
        gaps = _with_gaps(batch)
        if not (
            _row_by_row(call, batch, together)
            and _row_by_row(call, gaps, _batch_outputs(call, gaps))
        ):
            raise WorkloadError(
                f"function {self.name!r}: its numbers for a row depend on the other rows. A "
                "measure is a function of one row: use no mean, rank or state over the batch."
            )

    def to_dict(self) -> NoReturn:
        """Refuse: Python code can't be saved."""
        raise WorkloadError(
            f"function {self.name!r}: a plan with a Python callable can't be saved. Measure it in "
            "the same program, or write the formula in SQL: retilt.query(...)."
        )


def _with_gaps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with rows of nulls after it, in each column and in all: any table can have them."""
    import pyarrow as pa

    width = batch.num_columns
    columns = []
    for own in range(width):
        rows = [None if gap in (own, width) else 0 for gap in range(width + 1)]
        places = pa.array([*range(batch.num_rows), *rows], pa.int64())
        columns.append(batch.column(own).take(places))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _row_by_row(call: Call, batch: pa.RecordBatch, together: FloatArray) -> bool:
    """Whether a batch's numbers are the same in another order and one by one."""
    import pyarrow as pa

    rows = batch.num_rows
    backwards = _batch_outputs(call, batch.take(pa.array(np.arange(rows)[::-1].copy())))[::-1]
    alone = np.concatenate(
        [_row_outputs(call, batch.slice(i, 1)).reshape(1, -1) for i in range(rows)]
    )
    return all(
        np.allclose(together, other, rtol=1e-9, atol=1e-12, equal_nan=True)
        for other in (backwards, alone)
    )


def check_callables(measures: tuple[Any, ...], schema: Schema, read: Read, rows: int) -> None:
    """Try every callable of a workload on synthetic rows. See :meth:`FunctionMeasure.check_rows`.

    Raises
    ------
    WorkloadError
        As there.
    """
    for measure in measures:
        if isinstance(measure, FunctionMeasure):
            measure.check_rows(schema, read, rows)
