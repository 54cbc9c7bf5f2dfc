"""The queries of a problem by parts: checked, counted, averaged, selected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retilt._input import kind_of
from retilt.exceptions import InputError
from retilt.measures.base import (
    Design,
    FloatArray,
    Grouped,
    Indicators,
    Products,
    ValueArray,
)

CHUNK = 8192
"""Rows handled at a time: a chunk of one column is 64 KiB and stays in the processor's cache."""

_TOLD = 1e-8
"""Part of its values' size that a unit is at least: a millionth of it is not to be rounding."""


def totals(codes: NDArray[np.signedinteger], weights: FloatArray, size: int) -> FloatArray:
    """(size,) sums of weights by code."""
    return np.bincount(codes, weights=weights, minlength=size).astype(np.float64, copy=False)


class Multiplied(Protocol):
    """Queries that multiply columns, as in :class:`Products`."""

    @property
    def left(self) -> NDArray[np.intp]:
        """(K,) column numbers, -1 for none."""
        ...

    @property
    def right(self) -> NDArray[np.intp]:
        """(K,) column numbers, -1 for none."""
        ...

    @property
    def offset(self) -> FloatArray:
        """(K,) what is added to the product."""
        ...

    @property
    def factor(self) -> FloatArray:
        """(K,) what the product is multiplied with."""
        ...


class Moments:
    """Weighted sums of columns and of their products, chunk by chunk."""

    def __init__(self, columns: int) -> None:
        # Column number -1 is the last one: ones.
        self._sums: FloatArray = np.zeros((columns + 1, columns + 1))

    def add(self, weights: FloatArray, columns: FloatArray) -> None:
        """Add (rows,) weights times (d, rows) columns and their products."""
        weighted = columns * weights
        self._sums[:-1, :-1] += weighted @ columns.T
        self._sums[-1, :-1] += weighted.sum(axis=1)
        self._sums[-1, -1] += weights.sum()

    def scale(self, factor: float) -> None:
        """Multiply what was added so far."""
        self._sums *= factor

    def sums(self) -> FloatArray:
        """(d + 1, d + 1) sums; the last row and column stand for 1."""
        self._sums[:-1, -1] = self._sums[-1, :-1]
        return self._sums

    def queries(self, asked: Multiplied) -> FloatArray:
        """(K,) sums of the queries: their means, if the weights sum to 1."""
        sums = self.sums()
        result: FloatArray = (
            asked.offset * sums[-1, -1] + asked.factor * sums[asked.left, asked.right]
        )
        return result


def design_queries(design: Design) -> int:
    """Number of queries of a part."""
    return design.size if isinstance(design, Indicators) else int(design.left.size)


def design_rows(design: Design) -> int:
    """Number of rows of a part."""
    table = design.values if isinstance(design, Products) else design.codes
    return int(table.shape[0])


def column_product(values: ValueArray, left: int, right: int) -> FloatArray:
    """(rows,) product of two columns of a table; number -1 is a column of ones."""
    ends = [c for c in (left, right) if c >= 0]
    result: FloatArray = np.ones(values.shape[0])
    for column in ends:
        result *= values[:, column]
    return result


def column_pairs(design: Products | Grouped) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Each pair of columns that queries multiply, with those queries' numbers."""
    found: dict[tuple[int, int], list[int]] = {}
    for k, (left, right) in enumerate(
        zip(design.left.tolist(), design.right.tolist(), strict=True)
    ):
        found.setdefault((min(left, right), max(left, right)), []).append(k)
    for (left, right), queries in found.items():
        yield left, right, np.array(queries, dtype=np.intp)


def check_design(position: int, design: Design) -> None:
    """Refuse a part that contradicts itself.

    Raises
    ------
    InputError
        If shapes do not agree, a number is out of range, or a value is not finite.
    """
    if not isinstance(design, (Products, Indicators, Grouped)):
        raise InputError(
            f"designs[{position}]: got {kind_of(design)}, expected Products, Indicators or Grouped."
        )
    if not isinstance(design, Products):
        _check_codes(position, design)
    if not isinstance(design, Indicators):
        _check_products(position, design)
    if isinstance(design, Grouped):
        _check_cells(position, design)


def _check_codes(position: int, design: Indicators | Grouped) -> None:
    codes = design.codes
    if codes.ndim != 1 or codes.dtype.kind not in "iu":
        raise InputError(f"designs[{position}]: expected (rows,) integer codes.")
    if codes.size and (codes.min() < 0 or codes.max() >= design.size):
        raise InputError(f"designs[{position}]: expected codes from 0 to {design.size - 1}.")


def _check_cells(position: int, design: Grouped) -> None:
    if design.values.shape[0] != design.codes.size:
        raise InputError(f"designs[{position}]: codes and values differ in their rows.")
    if design.cell.size != design.left.size:
        raise InputError(f"designs[{position}]: cell and left differ in length.")
    if design.cell.size and (design.cell.min() < 0 or design.cell.max() >= design.size):
        raise InputError(f"designs[{position}]: expected cells from 0 to {design.size - 1}.")


def _check_products(position: int, design: Products | Grouped) -> None:
    if design.values.ndim != 2 or design.values.dtype not in (np.float64, np.float32):
        raise InputError(
            f"designs[{position}]: expected (rows, columns) values, float64 or float32."
        )
    size = design.left.size
    if not design.right.size == design.offset.size == design.factor.size == size:
        raise InputError(f"designs[{position}]: left, right, offset and factor differ in length.")
    for ends in (design.left, design.right):
        if size and (ends.min() < -1 or ends.max() >= design.values.shape[1]):
            raise InputError(
                f"designs[{position}]: expected column numbers from -1 to "
                f"{design.values.shape[1] - 1}."
            )
    if not (np.all(np.isfinite(design.offset)) and np.all(np.isfinite(design.factor))):
        raise InputError(f"designs[{position}]: offset and factor must be finite.")
    # min and max pass NaN and infinity on, without a mask as large as the table.
    if design.values.size and not np.isfinite(design.values.min() + design.values.max()):
        raise InputError(f"designs[{position}]: values must be finite.")


def design_means(design: Design, weights: FloatArray) -> FloatArray:
    """Query means of a part under (rows,) weights that sum to 1."""
    if isinstance(design, Indicators):
        return totals(design.codes, weights, design.size)
    if isinstance(design, Grouped):
        return _grouped_means(design, weights)
    moments = Moments(design.values.shape[1])
    for start in range(0, weights.size, CHUNK):
        columns = design.values[start : start + CHUNK].T.astype(np.float64, copy=False)
        moments.add(weights[start : start + CHUNK], columns)
    return moments.queries(design)


def _grouped_means(design: Grouped, weights: FloatArray) -> FloatArray:
    shares = totals(design.codes, weights, design.size)
    result: FloatArray = design.offset * shares[design.cell]
    for left, right, queries in column_pairs(design):
        weighted = weights * column_product(design.values, left, right)
        moments = totals(design.codes, weighted, design.size)
        result[queries] += design.factor[queries] * moments[design.cell[queries]]
    return result


def selected(design: Design, keep: NDArray[np.bool_]) -> Design:
    """The part with some of its queries only."""
    if np.all(keep):
        return design
    if isinstance(design, Indicators):
        cell = np.flatnonzero(keep)
        none = np.full(cell.size, -1)
        design = Grouped(
            design.codes,
            design.size,
            np.zeros((design.codes.size, 0)),
            cell,
            none,
            none,
            np.zeros(cell.size),
            np.ones(cell.size),
        )
        return design
    chosen = replace(
        design,
        left=design.left[keep],
        right=design.right[keep],
        offset=design.offset[keep],
        factor=design.factor[keep],
    )
    if isinstance(chosen, Grouped):
        return replace(chosen, cell=chosen.cell[keep])
    return chosen


def selected_parts(designs: Sequence[Design], keep: NDArray[np.bool_]) -> tuple[Design, ...]:
    """The parts that hold some of the (K,) queries, with those alone."""
    found, start = [], 0
    for design in designs:
        stop = start + design_queries(design)
        if np.any(keep[start:stop]):
            found.append(selected(design, keep[start:stop]))
        start = stop
    return tuple(found)


def ranges(design: Design) -> FloatArray:
    """Largest less smallest value of each query over the rows; 0 for a constant."""
    if isinstance(design, Indicators):
        counts = np.bincount(design.codes, minlength=design.size)
        return ((counts > 0) & (counts < design.codes.size)).astype(np.float64)
    result = np.empty(design.left.size)
    for left, right, queries in column_pairs(design):
        product = column_product(design.values, left, right)
        for k in queries:
            result[k] = _range(design, int(k), product)
    return result


def typical(design: Design, used: NDArray[np.bool_] | None = None) -> FloatArray:
    """(K,) unit of each query: how far its values are from their median, on average.

    A thousandth of the rows, one at least, is left out, that is farthest off: one outlier, which
    decides a range, does not matter. Not less than rounding allows to tell (:data:`_TOLD`), and at
    most the range, which is also the unit of shares and of what hardly any row is off; a constant
    has its size.

    Parameters
    ----------
    design
        Of long tables evenly spaced rows are looked at.
    used
        (N,) rows that have a weight; None for all.
    """
    if used is not None and not used.all():
        design = at_rows(design, np.flatnonzero(used))
    if isinstance(design, Indicators):
        return (np.bincount(design.codes, minlength=design.size) > 0).astype(np.float64)
    units, count = ranges(design), min(design_rows(design), CHUNK)
    some = at_rows(design, np.linspace(0, design_rows(design) - 1, count).astype(np.intp))
    assert not isinstance(some, Indicators)
    for left, right, queries in column_pairs(design):
        product = column_product(some.values, left, right)
        for k in queries:
            values = design.offset[k] + design.factor[k] * product
            if isinstance(some, Grouped):
                values[some.codes != some.cell[k]] = 0.0
            if not units[k]:
                units[k] = np.abs(values).max()
            else:
                units[k] = min(units[k], _unit(values) or units[k])
    return units


def _unit(values: FloatArray) -> float:
    """Mean distance from the median without the farthest thousandth; 0 for the range instead.

    That is where hardly any value is off it, and where there are but two.
    """
    if np.all((values == values.min()) | (values == values.max())):
        return 0.0
    off = np.abs(values - np.median(values))
    kept = max(1, off.size - max(1, off.size // 1000))
    trimmed = float(np.partition(off, kept - 1)[:kept].mean())
    return max(trimmed, _TOLD * float(np.median(np.abs(values)))) if trimmed else 0.0


def at_rows(design: Design, rows: NDArray[np.intp] | None) -> Design:
    """The queries of some rows; None for all."""
    if rows is None:
        return design
    if isinstance(design, Indicators):
        return Indicators(design.codes[rows], design.size)
    # The rows of a table that is stored by columns, still by columns.
    values = design.values.T[:, rows].T
    if isinstance(design, Grouped):
        return replace(design, codes=design.codes[rows], values=values)
    return replace(design, values=values)


def _range(design: Products | Grouped, k: int, product: FloatArray) -> float:
    if isinstance(design, Grouped):
        inside = product[design.codes == design.cell[k]]
        values = design.offset[k] + design.factor[k] * inside
        if inside.size < product.size:
            values = np.append(values, 0.0)
    else:
        ends = np.array([product.min(), product.max()])
        values = design.offset[k] + design.factor[k] * ends
    spread = float(np.ptp(values))
    return spread if spread > 1e-12 * float(np.abs(values).max()) else 0.0
