"""The queries of one design on some rows, laid out for passes over them.

A product of columns is scored as a quadratic form, and its mean is read off the weighted
second moments of the columns. Queries within the cells of a partition are looked up and counted:
those that are the same function of a row, each in another cell, make a *layer*, the function's
value times a table look-up. Indicators are the layer of the function 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import Design, FloatArray, Grouped, Indicators, Products
from retilt.tilting.designs import CHUNK, Moments, column_pairs, column_product, totals

Positions = NDArray[np.intp]
Mask = NDArray[np.bool_]

_ROUNDING = 1e-13


def chunks(rows: int) -> Iterator[slice]:
    """Slices that cover the rows."""
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))


@dataclass(frozen=True, slots=True)
class Form:
    """A linear combination of products of columns: z'Mz + l'z + constant.

    Attributes
    ----------
    square
        (d, d) M, not symmetric.
    linear
        (d,) l.
    constant
        What does not depend on the row.
    """

    square: FloatArray
    linear: FloatArray
    constant: float

    def add(self, scores: FloatArray, columns: FloatArray) -> None:
        """Add the form's values on (d, rows) columns to (rows,) scores."""
        turned = self.square @ columns
        turned += self.linear[:, None]
        scores += np.einsum("ij,ij->j", turned, columns)
        if self.constant:
            scores += self.constant


@dataclass(frozen=True, slots=True)
class ProductPart:
    """Products of columns that are not constant on the support.

    ``columns`` is (d, rows), float64 or float32; ``left`` and ``right`` number them, -1 for none.
    ``place`` says which of the varying queries they are.
    """

    columns: NDArray[np.floating]
    left: Positions
    right: Positions
    offset: FloatArray
    factor: FloatArray
    place: slice

    def load(self, chunk: slice) -> FloatArray:
        """(d, chunk) columns of some rows in double precision."""
        return self.columns[:, chunk].astype(np.float64, copy=False)

    def form(self, multipliers: FloatArray) -> Form:
        """Multipliers times the part's queries as a form in the columns."""
        own = multipliers[self.place]
        size = self.columns.shape[0]
        square = np.zeros((size + 1, size + 1))
        np.add.at(square, (self.left, self.right), own * self.factor)
        return Form(
            square[:-1, :-1],
            square[:-1, -1] + square[-1, :-1],
            float(own @ self.offset) + float(square[-1, -1]),
        )

    def add_scores(self, scores: FloatArray, multipliers: FloatArray) -> None:
        """Add multipliers times queries, a number a row."""
        form = self.form(multipliers)
        for chunk in chunks(scores.size):
            form.add(scores[chunk], self.load(chunk))

    def means(self, weights: FloatArray) -> FloatArray:
        """Sums of the part's queries times weights: their means, if the weights sum to 1."""
        moments = Moments(self.columns.shape[0])
        for chunk in chunks(weights.size):
            moments.add(weights[chunk], self.load(chunk))
        return moments.queries(self)

    def values(self, rows: Positions) -> FloatArray:
        """(n, queries) values on some rows."""
        columns = np.ones((self.columns.shape[0] + 1, rows.size))
        columns[:-1] = self.columns[:, rows]
        result: FloatArray = columns[self.left] * columns[self.right]
        result *= self.factor[:, None]
        result += self.offset[:, None]
        return result.T

    def fill(self, out: FloatArray, chunk: slice, means: FloatArray) -> None:
        """Centred query values of a chunk, one row a query."""
        columns = self.load(chunk)
        for k, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            if left == right == -1:
                out[k] = 1.0
            elif min(left, right) == -1:
                out[k] = columns[max(left, right)]
            else:
                np.multiply(columns[left], columns[right], out=out[k])
        out *= self.factor[:, None]
        out += (self.offset - means)[:, None]

    def variances(self, weights: FloatArray, means: FloatArray) -> FloatArray:
        """Variances of the part's queries under weights."""
        fourth = Moments(self.columns.shape[0])
        for chunk in chunks(weights.size):
            fourth.add(weights[chunk], self.load(chunk) ** 2)
        products = (means - self.offset) / self.factor
        squares = fourth.sums()[self.left, self.right]
        # A difference of two sums: never quite zero, for what varies.
        spread = np.maximum(squares - products**2, 1e-14 * squares)
        result: FloatArray = self.factor**2 * spread
        return result

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Least and largest value that each query can have, from those of the columns."""
        ends = np.ones((2, self.columns.shape[0] + 1))
        ends[0, :-1], ends[1, :-1] = self.columns.min(axis=1), self.columns.max(axis=1)
        corners = (ends[:, None, self.left] * ends[None, :, self.right]).reshape(4, -1)
        # A square has no mixed corners, but a lowest value of zero where its column changes sign.
        squares = self.left == self.right
        corners[1:3, squares] = corners[0, squares]
        corners[1, squares & (ends[0, self.left] < 0) & (ends[1, self.left] > 0)] = 0.0
        corners = self.factor * corners + self.offset
        return corners.min(axis=0), corners.max(axis=0)


@dataclass(frozen=True, slots=True)
class Layer:
    """One function of a row, asked in some cells of a partition.

    Attributes
    ----------
    values
        (rows,) the function; None for 1.
    cells
        (n,) the cells it is asked in, each once.
    queries
        (n,) which of the part's queries those are.
    whole
        Whether ``cells`` and ``queries`` are both 0, 1, 2 … to the end of the part: no
        selection is needed then.
    """

    values: FloatArray | None
    cells: Positions
    queries: Positions
    whole: bool

    def times(self, weights: FloatArray, rows: slice = slice(None)) -> FloatArray:
        """Weights of some rows times the function there."""
        return weights if self.values is None else weights * self.values[rows]


@dataclass(frozen=True, slots=True)
class CellPart:
    """Queries within the cells of a partition, those that are constant left out.

    ``codes`` (rows,) are the rows' cells, ``0..cells-1``; ``size`` is the number of queries and
    ``place`` says which of the varying ones they are.
    """

    codes: Positions
    cells: int
    size: int
    layers: tuple[Layer, ...]
    place: slice

    def add_scores(self, scores: FloatArray, multipliers: FloatArray) -> None:
        """Add multipliers times queries, a number a row."""
        own = multipliers[self.place]
        for layer in self.layers:
            table = np.zeros(self.cells)
            table[layer.cells] = own[layer.queries]
            scores += layer.times(table[self.codes])

    def means(self, weights: FloatArray) -> FloatArray:
        """Means of the part's queries."""
        return self.sums(weights, slice(None))

    def sums(self, weights: FloatArray, rows: slice) -> FloatArray:
        """Sums of the queries times numbers, over some rows."""
        result = np.empty(self.size)
        for layer in self.layers:
            sums = totals(self.codes[rows], layer.times(weights, rows), self.cells)
            result[layer.queries] = sums[layer.cells]
        return result

    def values(self, rows: Positions) -> FloatArray:
        """(n, queries) values on some rows."""
        result = np.zeros((rows.size, self.size))
        codes = self.codes[rows]
        for layer in self.layers:
            query = np.full(self.cells, -1)
            query[layer.cells] = layer.queries
            asked = np.flatnonzero(query[codes] >= 0)
            of_rows = 1.0 if layer.values is None else layer.values[rows[asked]]
            result[asked, query[codes[asked]]] = of_rows
        return result

    def variances(self, weights: FloatArray, means: FloatArray) -> FloatArray:
        """Variances of the part's queries under weights."""
        result = np.empty(self.size)
        for layer in self.layers:
            squares = totals(self.codes, layer.times(layer.times(weights)), self.cells)
            result[layer.queries] = squares[layer.cells]
        result -= means**2
        return result

    def covariance(self, weights: FloatArray, means: FloatArray) -> FloatArray:
        """(queries, queries) covariance under weights; two cells never hold the same row."""
        result: FloatArray = np.zeros((self.size, self.size))
        for number, layer in enumerate(self.layers):
            weighted = layer.times(weights)
            for other in self.layers[: number + 1]:
                moments = totals(self.codes, other.times(weighted), self.cells)
                query = np.full(self.cells, -1)
                query[other.cells] = other.queries
                both = query[layer.cells] >= 0
                rows, columns = layer.queries[both], query[layer.cells[both]]
                result[rows, columns] = result[columns, rows] = moments[layer.cells[both]]
        result -= np.outer(means, means)
        return result

    def moments(self, other: CellPart, weights: FloatArray) -> FloatArray:
        """(queries, other's queries) means of products of two parts' queries."""
        pairs = self.codes * other.cells + other.codes
        result = np.empty((self.size, other.size))
        for layer in self.layers:
            weighted = layer.times(weights)
            for against in other.layers:
                joint = totals(pairs, against.times(weighted), self.cells * other.cells)
                joint = joint.reshape(self.cells, other.cells)
                if layer.whole and against.whole:
                    return joint
                result[np.ix_(layer.queries, against.queries)] = joint[
                    np.ix_(layer.cells, against.cells)
                ]
        return result

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Least and largest value that each query can have: 0, and what its layer has."""
        low, high = np.zeros(self.size), np.zeros(self.size)
        for layer in self.layers:
            values = np.ones(1) if layer.values is None else layer.values
            low[layer.queries] = min(0.0, float(values.min()))
            high[layer.queries] = max(0.0, float(values.max()))
        return low, high


def analyse(design: Design) -> tuple[Mask, FloatArray]:
    """Which queries vary over the rows, and the value of those that do not."""
    if isinstance(design, Indicators):
        counts = np.bincount(design.codes, minlength=design.size)
        full = counts == design.codes.size
        return (counts > 0) & ~full, full.astype(np.float64)
    if isinstance(design, Grouped):
        return _analyse_grouped(design)
    varying = np.zeros(design.left.size, dtype=np.bool_)
    constants = np.zeros(design.left.size)
    for k in range(design.left.size):
        varying[k], constants[k] = _product_varies(design, k)
    return varying, constants


def _analyse_grouped(design: Grouped) -> tuple[Mask, FloatArray]:
    counts = np.bincount(design.codes, minlength=design.size)
    present = np.flatnonzero(counts)
    order = np.argsort(design.codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts[present])[:-1]])
    low, high = np.zeros(design.size), np.zeros(design.size)
    varying = np.zeros(design.left.size, dtype=np.bool_)
    constants = np.zeros(design.left.size)
    for left, right, queries in column_pairs(design):
        product = column_product(design.values, left, right)[order]
        low[present] = np.minimum.reduceat(product, starts)
        high[present] = np.maximum.reduceat(product, starts)
        cells, offset, factor = design.cell[queries], design.offset[queries], design.factor[queries]
        first, last = offset + factor * low[cells], offset + factor * high[cells]
        # Where one cell holds all rows a query is its function; elsewhere it is 0 outside.
        full = counts[cells] == design.codes.size
        constant = np.where(full, first, 0.0)
        varying[queries] = (counts[cells] > 0) & (
            grouped_differs(first, constant, offset) | grouped_differs(last, constant, offset)
        )
        constants[queries] = constant
    return varying, np.where(varying, 0.0, constants)


def grouped_differs(
    values: FloatArray, constant: FloatArray | float, offset: FloatArray | float
) -> Mask:
    """Which query values ``offset + ...`` are another than ``constant``, but for rounding."""
    result: Mask = np.abs(values - constant) > _ROUNDING * np.abs(constant - offset)
    return result


def grouped_values(design: Grouped, k: int) -> FloatArray:
    """(rows,) of query k."""
    product = column_product(design.values, int(design.left[k]), int(design.right[k]))
    inside = design.offset[k] + design.factor[k] * product
    result: FloatArray = np.where(design.codes == design.cell[k], inside, 0.0)
    return result


def _product_varies(design: Products, k: int) -> tuple[bool, float]:
    rows = design.values.shape[0]
    first = float(product_values(design, k, slice(0, 1))[0])
    # Almost every query shows a second value among its first few rows.
    size = 64
    start = 0
    while start < rows and design.factor[k] != 0:
        if np.any(differs(product_values(design, k, slice(start, start + size)), first)):
            return True, 0.0
        start += size
        size = CHUNK
    return False, float(design.offset[k] + design.factor[k] * first)


def product_values(design: Products, k: int, rows: slice) -> FloatArray:
    """Product k on some rows, before offset and factor."""
    return column_product(design.values[rows], int(design.left[k]), int(design.right[k]))


def differs(values: FloatArray, constant: float) -> Mask:
    """Which values are another than ``constant``, by more than its rounding.

    A variance that is all rounding would make a query's multiplier run away.
    """
    result: Mask = np.abs(values - constant) > _ROUNDING * abs(constant)
    return result


def layout(
    designs: list[Design], varying: list[Mask]
) -> tuple[tuple[ProductPart, ...], tuple[CellPart, ...]]:
    """The varying queries of some designs, in order, each in its place."""
    products: list[ProductPart] = []
    cells: list[CellPart] = []
    start = 0
    for design, keep in zip(designs, varying, strict=True):
        place = slice(start, start + int(np.count_nonzero(keep)))
        start = place.stop
        if place.start == place.stop:
            continue
        if isinstance(design, Indicators):
            cells.append(_indicator_part(design, keep, place))
        elif isinstance(design, Grouped):
            cells.append(_grouped_part(design, keep, place))
        else:
            products.append(_product_part(design, keep, place))
    return tuple(products), tuple(cells)


def _product_part(design: Products, keep: Mask, place: slice) -> ProductPart:
    left, right = design.left[keep], design.right[keep]
    used = np.unique(np.concatenate([left, right]))
    used = used[used >= 0]
    columns = design.values.T
    if used.size < columns.shape[0]:
        columns = columns[used]
    number = np.full(design.values.shape[1] + 1, -1, dtype=np.intp)
    number[used] = np.arange(used.size)
    return ProductPart(
        # A table that is stored by columns is used as it is.
        np.ascontiguousarray(columns),
        number[left],
        number[right],
        design.offset[keep],
        design.factor[keep],
        place,
    )


def _indicator_part(design: Indicators, keep: Mask, place: slice) -> CellPart:
    # Every row is in a varying cell: a cell of all rows would have left no query at all.
    number = np.cumsum(keep) - 1
    size = place.stop - place.start
    every = np.arange(size)
    layer = Layer(None, every, every, whole=True)
    return CellPart(number[design.codes].astype(np.intp), size, size, (layer,), place)


def _grouped_part(design: Grouped, keep: Mask, place: slice) -> CellPart:
    kept = replace(
        design,
        cell=design.cell[keep],
        left=design.left[keep],
        right=design.right[keep],
        offset=design.offset[keep],
        factor=design.factor[keep],
    )
    used = np.unique(kept.cell)
    # One more cell for the rows of all cells that no query asks about.
    number = np.full(design.size, used.size, dtype=np.intp)
    number[used] = np.arange(used.size)
    codes = number[design.codes]
    layers = tuple(_layers(kept, number, codes))
    return CellPart(codes, used.size + 1, place.stop - place.start, layers, place)


def _layers(design: Grouped, number: Positions, codes: Positions) -> Iterator[Layer]:
    for left, right, queries in column_pairs(design):
        product = None if left == right == -1 else column_product(design.values, left, right)
        rest = queries
        while rest.size:
            # A function that is asked twice in a cell, with other coefficients, makes two layers.
            _, first = np.unique(design.cell[rest], return_index=True)
            own = rest[np.sort(first)]
            rest = np.setdiff1d(rest, own)
            places = number[design.cell[own]]
            values = _layer_values(product, design, own, places, codes)
            yield Layer(values, places, own, whole=False)


def _layer_values(
    product: FloatArray | None, design: Grouped, own: Positions, places: Positions, codes: Positions
) -> FloatArray | None:
    """(rows,) offset + factor * product by the cell of each row; None for 1 in all cells."""
    offset, factor = design.offset[own], design.factor[own]
    if product is None and np.all(offset + factor == 1):
        return None
    if product is not None and np.all(offset == 0) and np.all(factor == 1):
        return product
    coefficients = np.zeros((2, int(codes.max()) + 1))
    coefficients[:, places] = offset, factor
    result: FloatArray = coefficients[0, codes]
    result += coefficients[1, codes] * (1.0 if product is None else product)
    return result
