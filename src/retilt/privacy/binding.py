"""Published statistics bound to a schema: queries, and what each given value makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retilt.exceptions import InputError, WorkloadError
from retilt.measures.base import FloatArray, Relation, Variable, label
from retilt.measures.derived import LARGEST, predicate
from retilt.measures.derived import number as formula
from retilt.measures.linear import (
    CellsBlock,
    Kind,
    LinearBlock,
    Stated,
    StatedQueries,
    value_bounds,
)
from retilt.measures.partitions import Partition, check_cells
from retilt.privacy.stated import Cells, Entry, Label, Position, Scalar
from retilt.schema.columns import Categorical, Datetime, Numeric, Schema

_KINDS: Mapping[str, Kind] = {
    "mean": "mean",
    "query": "mean",
    "share": "share",
    "product": "product",
    "sd": "sd",
    "corr": "corr",
    "group_mean": "group_mean",
}
_MOST_NAMED = 20
_MOST_CELLS = 1_000_000

_FAR = 5.0
"""Standard errors beyond its bounds at which a mean is a slip and not noise."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Queries of stated statistics.

    Attributes
    ----------
    queries
        K = S of them.
    answers
        (K,) what the given values say.
    slopes
        (K,) how far each answer moves for an error of 1 of its given value.
    order
        (K,) which of the given values it is, in the order of the file.
    """

    queries: StatedQueries
    answers: FloatArray
    slopes: FloatArray
    order: NDArray[np.intp]


@contextmanager
def numbered(position: int) -> Iterator[None]:
    """Say in an error which statistic of the file it is about."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"statistic {position}: {error}") from None


def bind(entries: Sequence[Entry], schema: Schema, rows: int | None) -> Bound:
    """Give the queries of all statistics.

    Raises
    ------
    InputError
        A statistic does not fit the schema, lacks another that it is computed with, or stands
        twice.
    """
    starts = np.cumsum([0, *(_size(e) for e in entries)]).tolist()
    singles = [(n, e) for n, e in enumerate(entries) if isinstance(e, Scalar)]
    blocks: list[LinearBlock | CellsBlock] = []
    answers, slopes, order = [], [], []
    if singles:
        block = _linear(singles, schema, rows)
        blocks.append(block)
        per_row = [_per_row(e, rows) for _, e in singles]
        answers.append(block.answers())
        slopes.append(block.slopes() * np.array(per_row))
        order.append(np.array([starts[n] for n, _ in singles]))
    for table in _tables(entries, schema, rows, starts):
        blocks.append(CellsBlock(table.partition, tuple(table.cells)))
        answers.append(np.array(table.shares))
        slopes.append(np.array(table.slopes))
        order.append(np.array(table.order))
    queries = StatedQueries(tuple(blocks))
    _refuse_repeats(queries)
    return Bound(
        queries=queries,
        answers=np.concatenate(answers),
        slopes=np.concatenate(slopes),
        order=np.concatenate(order).astype(np.intp),
    )


def _size(entry: Entry) -> int:
    return len(entry.values) if isinstance(entry, Cells) else 1


def _refuse_repeats(queries: StatedQueries) -> None:
    seen: dict[str, str] = {}
    for block in queries.blocks:
        for key, name in zip(block.keys, block.statistics, strict=True):
            if key in seen:
                raise WorkloadError(f"{name} is given twice; give it once.")
            seen[key] = name


# --- single numbers ---------------------------------------------------------------------------


def _linear(singles: Sequence[tuple[int, Scalar]], schema: Schema, rows: int | None) -> LinearBlock:
    variables: dict[Variable, int] = {}
    places = {_identity(e): k for k, (_, e) in enumerate(singles)}
    stated = []
    for position, entry in singles:
        with numbered(position + 1):
            read = _variables(entry, schema)
            for variable in read:
                _check_varies(variable)
            needs = tuple(_needs(entry, places))
            for k in needs:
                _check_group(entry, singles[k][1])
                _check_exact(entry, singles[k][1])
            value = entry.value * _per_row(entry, rows)
            if entry.kind == "share":
                _check_share(value, entry.error, counts=entry.counts)
            elif entry.kind in ("mean", "query", "group_mean"):
                _check_mean(read[0], value, entry.error)
            stated.append(
                Stated(
                    kind=_KINDS[entry.kind],
                    name=_name(entry, read),
                    value=value,
                    on=tuple(variables.setdefault(v, len(variables)) for v in read),
                    needs=needs,
                )
            )
    return LinearBlock(tuple(variables), tuple(stated))


def _identity(entry: Scalar) -> tuple[object, ...]:
    """What another statistic finds it by."""
    return (entry.kind, entry.columns, entry.expression and entry.expression.text)


def _variables(entry: Scalar, schema: Schema) -> list[Variable]:
    read = [Variable(name, schema[name]) for name in entry.columns]
    if entry.expression is None:
        return read
    if entry.kind == "query":
        return [formula(entry.expression, schema, lower=entry.lower, upper=entry.upper)]
    return [*read, predicate(entry.expression, schema)]


def _check_varies(variable: Variable) -> None:
    if not max(map(abs, value_bounds(variable.column))) <= LARGEST:
        raise WorkloadError(
            f"{variable.name!r}: its bounds are beyond {LARGEST:g}; declare others."
        )
    if variable.column.levels == 0:
        raise WorkloadError(
            f"{variable.name!r} is constant by the schema (one category, or lower = upper). Leave "
            "the statistic out, or declare wider bounds."
        )


def _check_share(share: float, error: float | None, *, counts: bool) -> None:
    """Refuse an exact share that no table can have: a slip, such as a count or a percentage."""
    if error == 0 and not 0 <= share <= 1:
        raise WorkloadError(
            f"got the share {share!r} with a standard error of 0, expected a number from 0 to 1"
            f"{'' if counts else ' (for counts, say so)'}."
        )


def _check_mean(variable: Variable, mean: float, error: float | None) -> None:
    """Refuse a mean beyond its column's bounds by more than noise: no table can have it."""
    low, high = value_bounds(variable.column)
    slack = _FAR * (error or 0.0) + 1e-9 * (high - low)
    if error is not None and not low - slack <= mean <= high + slack:
        raise WorkloadError(
            f"mean of {variable.name!r}: got {mean!r}, but the column's bounds are {low:g} and "
            f"{high:g}. Check the value and its units, or declare wider bounds in the schema."
        )


def _per_row(entry: Entry, rows: int | None) -> float:
    """What turns a given number into a mean over rows."""
    if not entry.counts:
        return 1.0
    if rows is None:
        raise WorkloadError("counts: they need the number of rows: give rows in the file.")
    return 1.0 / rows


def _name(entry: Scalar, read: Sequence[Variable]) -> str:
    if entry.kind in ("mean", "share", "query"):
        return read[0].title
    labels = [v.label for v in read]
    if entry.kind == "group_mean":
        return f"mean({labels[0]} | {labels[1]})"
    return f"{entry.kind}({', '.join(labels)})"


def _needs(entry: Scalar, places: Mapping[tuple[object, ...], int]) -> Iterator[int]:
    """The statistics that one is computed with."""
    wanted: list[tuple[str, tuple[str, ...], str | None]] = []
    if entry.kind == "sd":
        wanted = [("mean", entry.columns, None)]
    elif entry.kind == "corr":
        wanted = [(kind, (name,), None) for kind in ("mean", "sd") for name in entry.columns]
    elif entry.kind == "group_mean":
        wanted = [("share", (), entry.expression.text if entry.expression else None)]
    for identity in wanted:
        if identity not in places:
            kind, columns, text = identity
            what = columns[0] if columns else text
            raise WorkloadError(
                f"{entry.kind} of {', '.join(map(repr, entry.columns))}: it can't be told from "
                f"others without the {kind} of {what!r}. Give that, too, in the same file."
            )
        yield places[identity]


def _check_group(entry: Scalar, share: Scalar) -> None:
    if entry.kind == "group_mean" and not share.value > 0:
        raise WorkloadError(
            f"group_mean: its group has the share {share.value!r}, expected one above 0."
        )


def _check_exact(entry: Scalar, needed: Scalar) -> None:
    """Refuse an exact statistic around a value that is not: no weights are known to meet it."""
    if entry.kind in ("sd", "corr") and entry.error == 0 and needed.error != 0:
        raise WorkloadError(
            f"{entry.kind} of {', '.join(map(repr, entry.columns))}: its standard error is 0, but "
            f"that of the {needed.kind} of {', '.join(map(repr, needed.columns))}, which it is "
            "computed with, is not. Give both as exact, or both with their standard errors."
        )


# --- tables ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """The cells of one column.

    ``numbers`` are the cells' numbers by everything that may name one; ``named`` of them are
    categories or bins, the rest is ``other`` and ``null``.
    """

    name: str
    numbers: Mapping[Label, int]
    size: int
    named: int

    @classmethod
    def of(cls, variable: Variable, edges: tuple[float, ...]) -> _Axis:
        column, names = variable.column, variable.cell_labels(edges)
        numbers: dict[Label, int] = {name: i for i, name in enumerate(names)}
        if isinstance(column, Categorical) and not column.is_text:
            numbers |= dict(zip(map(float, column.categories), range(len(names)), strict=False))
        spare = 2 if isinstance(column, Categorical) else 1
        return cls(variable.name, numbers, len(names), len(names) - spare)

    def number(self, given: Label) -> int:
        """The cell that a label or a place in a list means."""
        if isinstance(given, Position):
            return self._listed(given)
        if given is None:
            return self.size - 1
        if isinstance(given, bool):
            given = "true" if given else "false"
        if given not in self.numbers:
            names = [repr(n) for n in self.numbers if isinstance(n, str)]
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            raise WorkloadError(
                f"{self.name!r} has no cell {label(str(given)[:60])}: its cells are "
                f"{', '.join(names[:_MOST_NAMED])}{more}."
            )
        return self.numbers[given]

    def _listed(self, given: Position) -> int:
        if given.length not in (self.size, self.named):
            raise WorkloadError(
                f"{self.name!r}: got a list of {given.length:,}, expected {self.named:,} (one for "
                f"each category or bin, in the schema's order) or {self.size:,} (then those "
                f"for {'other and ' if self.size == self.named + 2 else ''}null)."
            )
        return given.index


@dataclass(frozen=True, slots=True)
class _Table:
    """The cells given of one partition, from all entries."""

    partition: Partition
    axes: tuple[_Axis, ...]
    cells: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, partition: Partition) -> _Table:
        """None of its cells given yet."""
        axes = map(_Axis.of, partition.variables, partition.edges)
        return cls(partition, tuple(axes))

    def add(self, entry: Cells, slope: float, start: int) -> None:
        """Take an entry's cells, whose first value is number ``start`` of all."""
        errors = entry.errors or (math.nan,) * len(entry.values)
        given_values = zip(entry.places, entry.values, errors, strict=True)
        for number, (place, value, error) in enumerate(given_values, start):
            cell = 0
            for axis, given in zip(self.axes, place, strict=True):
                cell = cell * axis.size + axis.number(given)
            if cell in self.seen:
                name = self.partition.cells[cell]
                raise WorkloadError(f"cell({name}) is given twice; give it once.")
            self.seen.add(cell)
            _check_share(value * slope, error, counts=entry.counts)
            self.order.append(number)
            self.cells.append(cell)
            self.shares.append(value * slope)
            self.slopes.append(slope)


def _tables(
    entries: Sequence[Entry], schema: Schema, rows: int | None, starts: Sequence[int]
) -> list[_Table]:
    found: dict[object, _Table] = {}
    cells = 0
    for position, entry in enumerate(entries):
        if isinstance(entry, Cells):
            with numbered(position + 1):
                key = (entry.columns, tuple(sorted(entry.bins.items())))
                if key not in found:
                    found[key] = _Table.of(_partition(entry, schema))
                    cells += found[key].partition.size + sum(a.size for a in found[key].axes)
                    _check_all_cells(cells)
                found[key].add(entry, _per_row(entry, rows), starts[position])
    return list(found.values())


def _check_all_cells(cells: int) -> None:
    """Refuse tables that have too many cells together, few of them as may be given."""
    if cells > _MOST_CELLS:
        raise WorkloadError(
            f"the tables up to this one have {cells:,} cells together, allowed are {_MOST_CELLS:,}."
            " Give fewer tables, or coarser ones."
        )


def _partition(entry: Cells, schema: Schema) -> Partition:
    for name in entry.columns:
        binned = isinstance(schema[name], (Numeric, Datetime))
        if binned and name not in entry.bins:
            raise WorkloadError(
                f"{name!r} has no categories: give the inner edges of its bins, as in "
                f'"bins": {{"{name}": [25, 45]}}.'
            )
        if not binned and name in entry.bins:
            raise WorkloadError(f"bins: {name!r} is not numeric; its cells are its categories.")
    partition = Partition(
        variables=tuple(Variable(n, schema[n]) for n in entry.columns),
        edges=tuple(entry.bins.get(n, ()) for n in entry.columns),
        norm=2,
        relation=Relation.REPLACE,
        known_total=False,
    )
    check_cells(partition, f"the table of {', '.join(map(repr, entry.columns))}")
    return partition
