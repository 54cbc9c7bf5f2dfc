"""The kernel: one pass over rows in chunks gives the normaliser, means and second moments.

Nothing of size rows times queries is ever held: only the Hessian multiplies products of columns
out, a chunk at a time (see ``parts.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retilt.measures.base import Design, FloatArray, Indicators, Products
from retilt.tilting.designs import CHUNK, Moments, at_rows, totals
from retilt.tilting.parts import (
    CellPart,
    Mask,
    Positions,
    ProductPart,
    analyse,
    chunks,
    layout,
)
from retilt.tilting.problem import Problem

_WORTHWHILE = 1.5
_LOOK = 128
"""Repetitions to expect in the sample that decides whether rows are worth merging."""

_HEADROOM = 300.0
"""How far above the reference an exponent may lie."""

_LEAST = -700.0
"""Exponents below are nothing: exp(-745) is the smallest number."""


@dataclass(frozen=True, slots=True)
class Fold:
    """What a pass over the rows gives for a vector of multipliers.

    Attributes
    ----------
    log_normaliser
        Logarithm of the sum of ``base * exp(-multipliers . q)``.
    weights
        (rows,) of the compressed rows, sum 1.
    means
        (V,) of the varying queries under the weights.
    ess
        Effective sample size 1 / sum(w**2) over the rows before compression.
    """

    log_normaliser: float
    weights: FloatArray
    means: FloatArray
    ess: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Some rows of a problem.

    Attributes
    ----------
    rows
        (n,) ascending row numbers.
    base
        (n,) their weights, positive.
    """

    rows: Positions
    base: FloatArray


@dataclass(frozen=True, slots=True)
class Rows:
    """The support of a problem, or a sample of it, laid out for folding.

    Rows of base weight zero are left out, rows with equal query vectors are merged, and
    queries that are constant on the support are set apart: they can't be moved.

    Attributes
    ----------
    chosen
        (n,) row numbers in the problem, or None for all rows.
    base
        (n,) their base weights, sum 1.
    groups
        (n,) number of the merged row that each belongs to, or None if none was merged.
    merged
        (rows,) base weights of the merged rows.
    log_merged
        Their logarithms; one number where all are alike.
    spread
        (rows,) sum of the squared shares of a merged row's members, or None if none was merged.
    varying
        (K,) whether a query takes more than one value on the support.
    constants
        (K,) the value of each constant query; 0 for the varying ones.
    """

    chosen: Positions | None
    base: FloatArray
    groups: Positions | None
    merged: FloatArray
    log_merged: FloatArray | float
    spread: FloatArray | None
    varying: Mask
    constants: FloatArray
    products: tuple[ProductPart, ...]
    cells: tuple[CellPart, ...]

    @property
    def parts(self) -> tuple[ProductPart | CellPart, ...]:
        """All parts that hold a varying query."""
        return (*self.products, *self.cells)

    @classmethod
    def of(cls, problem: Problem, sample: Sample | None = None) -> Rows:
        """Lay out the rows of a problem, or those of a sample."""
        chosen, base = _chosen(problem, sample)
        designs = [at_rows(design, chosen) for design in problem.designs]
        groups, first = _merge(designs, base.size)
        merged, spread = base, None
        if groups is not None:
            merged = totals(groups, base, first.size)
            spread = totals(groups, (base / merged[groups]) ** 2, first.size)
            designs = [at_rows(design, first) for design in designs]
        alike = merged.min() == merged.max()
        parts = [analyse(design) for design in designs]
        varying = np.concatenate([part[0] for part in parts])
        constants = np.concatenate([part[1] for part in parts])
        products, cells = layout(designs, [part[0] for part in parts])
        return cls(
            chosen,
            base,
            groups,
            merged,
            float(np.log(merged[0])) if alike else np.log(merged),
            spread,
            varying,
            constants,
            products,
            cells,
        )

    @property
    def support(self) -> Positions:
        """(n,) row numbers in the problem."""
        return np.arange(self.base.size) if self.chosen is None else self.chosen

    @property
    def base_ess(self) -> float:
        """Effective sample size of the base weights."""
        return float(1 / (self.base @ self.base))

    def fold(self, multipliers: FloatArray) -> Fold:
        """Weights and means at (V,) multipliers of the varying queries.

        Every chunk's columns are read once: scored, exponentiated, and added to the moments. A
        reference is taken out before exponentiating, so that no multiplier, however large,
        overflows; it is moved where a later chunk lies far above it.
        """
        weights = np.array(np.broadcast_to(self.log_merged, self.merged.size))
        for part in self.cells:
            part.add_scores(weights, -multipliers)
        forms = [part.form(-multipliers) for part in self.products]
        moments = [Moments(part.columns.shape[0]) for part in self.products]
        top, total = -np.inf, 0.0
        for chunk in chunks(weights.size):
            own = weights[chunk]
            loaded = [part.load(chunk) for part in self.products]
            for form, columns in zip(forms, loaded, strict=True):
                form.add(own, columns)
            highest = float(own.max())
            if highest > top + _HEADROOM:
                shrink = math.exp(top - highest)
                top, total = highest, total * shrink
                weights[: chunk.start] *= shrink
                for sums in moments:
                    sums.scale(shrink)
            own -= top
            np.maximum(own, _LEAST, out=own)
            np.exp(own, out=own)
            total += float(own.sum())
            for sums, columns in zip(moments, loaded, strict=True):
                sums.add(own, columns)
        weights /= total
        return Fold(
            top + math.log(total),
            weights,
            self._means(
                weights,
                [m.queries(part) / total for m, part in zip(moments, self.products, strict=True)],
            ),
            self._ess(weights),
        )

    def _means(self, weights: FloatArray, of_products: Sequence[FloatArray]) -> FloatArray:
        """(V,) means, those of the products' parts known."""
        result = np.empty(int(np.count_nonzero(self.varying)))
        for part, own in zip(self.products, of_products, strict=True):
            result[part.place] = own
        for cells in self.cells:
            result[cells.place] = cells.means(weights)
        return result

    def _ess(self, weights: FloatArray) -> float:
        """Effective sample size over the rows before compression."""
        if self.spread is None:
            return float(1 / (weights @ weights))
        return float(1 / np.einsum("i,i,i", weights, weights, self.spread))

    @property
    def bounded(self) -> bool:
        """Whether weights are bounded (see ``bounded.py``)."""
        return False

    def moving(self, fold: Fold) -> tuple[Fold, float]:
        """The weights that follow the multipliers, as a fold, and their share of all."""
        return fold, 1.0

    @property
    def least_dual(self) -> float:
        """Below this the dual without noise shows that no weights of the rows meet the answers.

        It is at least minus the divergence of any that do, at most that of all on one row.
        """
        return float(np.min(self.log_merged)) - 1

    def scores(self, multipliers: FloatArray) -> FloatArray:
        """(rows,) multipliers times the varying queries of each merged row."""
        scores: FloatArray = np.zeros(self.merged.size)
        for part in self.parts:
            part.add_scores(scores, multipliers)
        return scores

    def means(self, weights: FloatArray) -> FloatArray:
        """(V,) sums of the varying queries times numbers; means, if these are weights."""
        result = np.empty(int(np.count_nonzero(self.varying)))
        for part in self.parts:
            result[part.place] = part.means(weights)
        return result

    def values(self, merged: Positions) -> FloatArray:
        """(n, V) values of the varying queries on some merged rows, which may repeat."""
        result = np.empty((merged.size, int(np.count_nonzero(self.varying))))
        for part in self.parts:
            result[:, part.place] = part.values(merged)
        return result

    def covariance(self, fold: Fold) -> FloatArray:
        """(V, V) covariance of the varying queries under the weights of a fold."""
        size = fold.means.size
        result: FloatArray = np.zeros((size, size))
        self._add_products(result, fold)
        for position, part in enumerate(self.cells):
            means = fold.means[part.place]
            result[part.place, part.place] = part.covariance(fold.weights, means)
            for other in self.cells[:position]:
                joint = part.moments(other, fold.weights)
                joint -= np.outer(means, fold.means[other.place])
                result[part.place, other.place] = joint
                result[other.place, part.place] = joint.T
        return result

    def variances(self, fold: Fold) -> FloatArray:
        """(V,) variances of the varying queries under the weights of a fold."""
        result = np.empty(fold.means.size)
        for part in self.parts:
            result[part.place] = part.variances(fold.weights, fold.means[part.place])
        return result

    def _add_products(self, result: FloatArray, fold: Fold) -> None:
        if not self.products:
            return
        count = sum(part.left.size for part in self.products)
        roots = np.sqrt(fold.weights)
        buffer = np.empty((count, min(CHUNK, fold.weights.size)))
        inner = np.zeros((count, count))
        mixed = [np.zeros((count, part.size)) for part in self.cells]
        for chunk in chunks(fold.weights.size):
            values = buffer[:, : chunk.stop - chunk.start]
            if values.shape[1] < buffer.shape[1]:
                values = np.empty(values.shape)
            start = 0
            for part in self.products:
                stop = start + part.left.size
                part.fill(values[start:stop], chunk, fold.means[part.place])
                start = stop
            values *= roots[chunk]
            inner += values @ values.T
            if self.cells:
                values *= roots[chunk]
                for cells, cross in zip(self.cells, mixed, strict=True):
                    for k in range(count):
                        cross[k] += cells.sums(values[k], chunk)
        places = np.concatenate([np.arange(p.place.start, p.place.stop) for p in self.products])
        result[np.ix_(places, places)] = inner
        for cells, cross in zip(self.cells, mixed, strict=True):
            result[places, cells.place] = cross
            result[cells.place, places] = cross.T

    def expand(self, weights: FloatArray, rows: int) -> FloatArray:
        """(N,) weights of the problem's rows from those of the merged rows.

        A merged row's weight is shared out in proportion to the base weights.
        """
        if self.groups is not None:
            weights = self.base * (weights / self.merged)[self.groups]
        if self.chosen is None:
            return weights.copy() if self.groups is None else weights
        result: FloatArray = np.zeros(rows)
        result[self.chosen] = weights
        return result


def _chosen(problem: Problem, sample: Sample | None) -> tuple[Positions | None, FloatArray]:
    """Numbers of the rows with a base weight, None for all, and their (n,) base weights."""
    if sample is not None:
        return sample.rows, sample.base / sample.base.sum()
    if problem.base.min() > 0:
        return None, problem.base
    chosen = np.flatnonzero(problem.base > 0)
    base = problem.base[chosen]
    return chosen, base / base.sum()


def _identifying(designs: list[Design], rows: Positions | slice) -> Iterator[NDArray[np.uint64]]:
    """Bits of every column that a query reads; rows equal in all of them have equal queries."""
    for design in designs:
        if not isinstance(design, Products):
            yield design.codes[rows].astype(np.uint64)
        if isinstance(design, Indicators):
            continue
        used = np.unique(np.concatenate([design.left, design.right]))
        for column in used[used >= 0]:
            # Adding zero turns -0.0 into 0.0, which has other bits but is the same value.
            yield (design.values[rows, column].astype(np.float64) + 0.0).view(np.uint64)


def _hashes(designs: list[Design], rows: Positions | slice, count: int) -> NDArray[np.uint64]:
    """One number a row: multiply, shift, exclusive or, in wrap-around 64-bit arithmetic."""
    result = np.full(count, 0x9E3779B97F4A7C15, dtype=np.uint64)
    for bits in _identifying(designs, rows):
        result ^= bits
        result *= np.uint64(0xFF51AFD7ED558CCD)
        result ^= result >> np.uint64(32)
        result *= np.uint64(0xC4CEB9FE1A85EC53)
        result ^= result >> np.uint64(29)
    return result


def _merge(designs: list[Design], rows: int) -> tuple[Positions | None, Positions]:
    """Group number of every row and the first row of each group; None if hardly any repeat."""
    nothing = (None, np.arange(0))
    # G equal groups show about s**2 / 2G repetitions among s sampled rows.
    size = math.ceil(math.sqrt(2 * _LOOK * rows / _WORTHWHILE))
    if rows > 2 * size:
        sample = np.linspace(0, rows - 1, size).astype(np.intp)
        distinct = np.unique(_hashes(designs, sample, size)).size
        if size - distinct < _LOOK:
            return nothing
    _, first, groups = np.unique(
        _hashes(designs, slice(None), rows), return_index=True, return_inverse=True
    )
    if first.size * _WORTHWHILE > rows:
        return nothing
    for bits in _identifying(designs, slice(None)):
        if not np.array_equal(bits, bits[first][groups]):
            return nothing
    return groups.astype(np.intp), first.astype(np.intp)
