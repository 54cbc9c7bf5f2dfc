"""A few combinations of many queries that say most of what the queries say.

Sampling can balance on as many functions of a row as it leaves rows to chance, and no more than
some dozens at a tolerable cost. These are the principal components of the queries: all of them
where there are few, the largest where there are thousands. Nothing of size rows times queries is
held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import Design, FloatArray
from retilt.tilting.parts import CellPart, Layer, ProductPart, analyse, layout

MOST = 60
"""Combinations at most unless told."""

_Part: TypeAlias = ProductPart | CellPart

_CHUNK = 2048
_SAMPLE = 1024
_RANK = 1e-13


@dataclass(frozen=True, slots=True)
class Combinations:
    """Combinations of the queries of a table, the one that varies most first.

    Attributes
    ----------
    products
        Parts and the (queries, C) coefficients of their queries.
    tables
        Parts, each with a layer and the (cells, C) values that it adds to the rows of a cell.
    centre
        (C,) what is taken off, so that values are near zero.
    """

    products: tuple[tuple[ProductPart, FloatArray], ...]
    tables: tuple[tuple[CellPart, Layer, FloatArray], ...]
    centre: FloatArray

    @classmethod
    def of(cls, designs: Sequence[Design], spread: FloatArray, most: int = MOST) -> Combinations:
        """Choose the combinations.

        Parameters
        ----------
        designs
            The queries of N rows.
        spread
            (N,) zero or more and not all zero: how much each row's lot is left to chance.
        most
            Combinations at most, and queries that are combined without loss.

        Returns
        -------
        Combinations
            The principal components of queries over their ranges, which is what noise goes
            by: all that are not zero where there are at most ``most`` queries, else the
            ``most`` largest on a sample of the rows.
        """
        products, cells = layout(list(designs), [analyse(design)[0] for design in designs])
        parts: tuple[_Part, ...] = (*products, *cells)
        means = np.zeros(sum(part.place.stop - part.place.start for part in parts))
        for part in parts:
            means[part.place] = part.means(spread / spread.sum())
        if not parts:
            matrix = np.zeros((0, 0))
        elif means.size <= most:
            matrix = _all_of(parts, spread, means)
        else:
            matrix = _largest_of(parts, _drawn(spread), most)
        tables = [(part, x, _table(part, x, matrix)) for part in cells for x in part.layers]
        return cls(
            tuple((part, matrix[part.place]) for part in products), tuple(tables), means @ matrix
        )

    def __call__(self, rows: NDArray[np.intp]) -> FloatArray:
        """(m, C) values on some rows."""
        result: FloatArray = np.empty((rows.size, self.centre.size))
        result[:] = -self.centre
        for start in range(0, rows.size, _CHUNK):
            own, out = rows[start : start + _CHUNK], result[start : start + _CHUNK]
            for product, coefficients in self.products:
                out += product.values(own) @ coefficients
            for cells, layer, table in self.tables:
                found = table[cells.codes[own]]
                out += found if layer.values is None else found * layer.values[own, None]
        return result


def _table(part: CellPart, layer: Layer, matrix: FloatArray) -> FloatArray:
    """(cells, C) what a layer adds to the rows of a cell, but for its function."""
    table = np.zeros((part.cells, matrix.shape[1]))
    table[layer.cells] = matrix[part.place][layer.queries]
    return table


def _all_of(parts: Sequence[_Part], spread: FloatArray, means: FloatArray) -> FloatArray:
    """(V, C) all principal components that are not zero."""
    second = np.zeros((means.size, means.size))
    for start in range(0, spread.size, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, spread.size))
        values = np.empty((rows.size, means.size))
        for part in parts:
            values[:, part.place] = part.values(rows)
        values -= means
        second += (values * spread[rows, None]).T @ values
    scale = np.empty(means.size)
    for part in parts:
        scale[part.place] = _scale(part)
    sizes, vectors = np.linalg.eigh(second * scale * scale[:, None])
    kept = np.flatnonzero(sizes > _RANK * sizes.max(initial=0.0))[::-1]
    result: FloatArray = scale[:, None] * vectors[:, kept]
    return result


def _drawn(spread: FloatArray) -> NDArray[np.intp]:
    """Rows at equal steps of the cumulated spread; the same in every run."""
    ends = np.cumsum(spread)
    points = (np.arange(_SAMPLE) + 0.5) / _SAMPLE * ends[-1]
    found: NDArray[np.intp] = np.minimum(np.searchsorted(ends, points, "right"), spread.size - 1)
    return found


def _largest_of(parts: Sequence[_Part], rows: NDArray[np.intp], most: int) -> FloatArray:
    """(V, C) the largest principal components on some rows of queries over their ranges.

    They are found from the rows' inner products, of which there are far fewer than those of the
    queries: the component of an eigenvector u is the sum of the queries of the rows times u.
    """
    inner = np.zeros((rows.size, rows.size))
    for part in parts:
        for codes, values in _scaled(part, rows):
            products = values @ values.T
            inner += products if codes is None else products * (codes[:, None] == codes)
    inner -= inner.mean(axis=0)
    inner -= inner.mean(axis=1)[:, None]
    sizes, vectors = np.linalg.eigh(inner)
    kept = np.flatnonzero(sizes > _RANK * sizes.max(initial=0.0))[::-1][:most]
    matrix = np.zeros((sum(part.place.stop - part.place.start for part in parts), kept.size))
    for part in parts:
        matrix[part.place] = _components(part, rows, vectors[:, kept])
    result: FloatArray = matrix / np.sqrt(sizes[kept])
    return result


def _scale(part: _Part) -> FloatArray:
    low, high = part.bounds()
    return np.divide(1.0, high - low, out=np.zeros(low.size), where=high > low)


def _scaled(
    part: _Part, rows: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp] | None, FloatArray]]:
    """Cells of some rows, or None for no cells, and (m, n) query values over their ranges.

    A layer's queries are of different cells, so a row has a value for one of them alone.
    """
    scale = _scale(part)
    if isinstance(part, ProductPart):
        yield None, part.values(rows) * scale
        return
    codes = part.codes[rows]
    for layer in part.layers:
        table = np.zeros(part.cells)
        table[layer.cells] = scale[layer.queries]
        values = table[codes]
        yield codes, (values if layer.values is None else values * layer.values[rows])[:, None]


def _components(part: _Part, rows: NDArray[np.intp], vectors: FloatArray) -> FloatArray:
    """(queries, C) the part's share of components, from (m, C) eigenvectors over rows."""
    scale = _scale(part)[:, None]
    result = np.zeros((scale.size, vectors.shape[1]))
    if isinstance(part, ProductPart):
        result += part.values(rows).T @ vectors * scale**2
        return result
    for layer, (_, values) in zip(part.layers, _scaled(part, rows), strict=True):
        sums = np.zeros((part.cells, vectors.shape[1]))
        np.add.at(sums, part.codes[rows], values * vectors)
        result[layer.queries] = sums[layer.cells] * scale[layer.queries]
    return result
