"""Preconditioners of H + eta S for conjugate gradients, and when to make a better one.

*Blocks* are cheap: the covariance within each marginal table, the variances elsewhere. They serve
where the tables hardly hang together. *Drawn* is the covariance matrix of all queries over some
drawn rows, a few for each query, factorised together with the noise. It costs as much as some
hundred products with the Hessian and makes each system a matter of ten, whatever the columns'
correlations. It is drawn for good measure: only where the cheap one, or the last one, has cost as
many products as a new one would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Fold, Rows
from retilt.tilting.parts import CellPart, Positions
from retilt.tilting.problem import Covariance
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers.newton import System

CG_STEPS = 1000
"""Most steps of conjugate gradients for a system."""

BLOCK = 500
"""Queries of a part up to which its covariance is the block of the preconditioner."""

MAX_DRAWN = 12_000
"""Most varying queries whose covariance over drawn rows is a matrix: 1.2 GB."""

ROWS_EACH = 5
"""Rows drawn for each query: the sampled eigenvalues are then right to a factor of three."""

ROUGH_EACH = 3
"""Rows drawn for each query to learn which rows to draw."""

_COMBINATIONS = 16
"""Random combinations of the queries that tell a row's leverage, to a factor of two."""

_UNSEEN = 0.05
"""Share of a query's variance below which the drawn rows don't know it."""

_ALONE = 0.03
"""Least share of a drawn row's direction that is taken to be other rows'."""

_BY_WEIGHT = 0.3
"""Part of the chances that goes by weight, to the leverages' one."""

_DRAW = 1024
"""Drawn rows handled at a time."""

_CHUNKS = 8
"""As often sums are taken on in single precision."""

_SEED = 20_240_229

_ENOUGH = 8
"""Steps of conjugate gradients that a system takes with a good preconditioner."""

_FAR = 4.0
"""Ratio of two trade-offs up to which one's factors serve the other."""

_ALIKE = 0.5
"""How alike two weights are, by their common part and their effective sizes, to share one."""

_SETTLED = 0.95
"""How alike they are where another one would not be better."""

_RIDGE = 1e-7
"""First ridge, relative to the diagonal: what single precision leaves of a zero eigenvalue."""


class Preconditioner(Protocol):
    """An approximate inverse of H + eta S."""

    def solve(self, x: FloatArray) -> FloatArray:
        """The approximate inverse times a (V,) vector."""
        ...

    def trace(self, noise: Covariance, variances: FloatArray) -> float | None:
        """Trace of the inverse times noise of these (V,) variances; None if that is dear."""
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """The system's blocks, factorised, and its diagonal elsewhere.

    Attributes
    ----------
    blocks
        Where each block stands, and its factors.
    diagonal
        (V,) of the whole system.
    """

    blocks: tuple[tuple[slice, System], ...]
    diagonal: FloatArray

    @classmethod
    def of(cls, reduced: Reduced, fold: Fold, eta: float) -> Blocks:
        """From the queries' covariances within their parts, and the noise of their own."""
        noise = eta * reduced.noise(eta).variances
        diagonal = reduced.rows.variances(fold) + noise
        blocks = []
        for part in reduced.rows.cells:
            if part.size > BLOCK:
                continue
            matrix = part.covariance(fold.weights, fold.means[part.place])
            matrix[np.diag_indices_from(matrix)] += noise[part.place]
            blocks.append((part.place, System.of(matrix)))
        return cls(tuple(blocks), np.where(diagonal > 0, diagonal, 1.0))

    def solve(self, x: FloatArray) -> FloatArray:
        """See :class:`Preconditioner`."""
        result: FloatArray = x / self.diagonal
        for place, system in self.blocks:
            result[place] = system.solve(x[place])
        return result

    def inverse_diagonal(self) -> FloatArray:
        """(V,) diagonal of the preconditioner's inverse."""
        result: FloatArray = 1 / self.diagonal
        for place, system in self.blocks:
            result[place] = np.sum(system.root_inverse() ** 2, axis=0)
        return result

    def trace(self, noise: Covariance, variances: FloatArray) -> float | None:
        """See :class:`Preconditioner`."""
        known = float(variances @ self.inverse_diagonal())
        return known + sum(float(f @ self.solve(f)) for f in noise.factor.T)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Covariance over drawn rows, factorised with a trade-off's noise.

    Attributes
    ----------
    matrix
        (V, V) in Fortran order, twice used: above the diagonal the covariance in units of
        ``scale``, on and below it the factor of the system. Another trade-off's system is
        factorised in the same place, so only the last one made is good.
    diagonal
        (V,) the covariance's.
    scale
        (V,) deviations of the queries, 1 where nothing varies.
    eta
        The trade-off of the factors.
    source
        The rows that it was drawn from.
    drawn, weights
        (n,) which of them, and the weights they have here.
    refined
        Whether they were drawn by their leverages.
    """

    matrix: FloatArray
    diagonal: FloatArray
    scale: FloatArray
    eta: float
    source: Rows
    drawn: Positions
    weights: FloatArray
    refined: bool

    @classmethod
    def of(cls, reduced: Reduced, fold: Fold, eta: float) -> Drawn:
        """Draw a few rows by their weights."""
        rough = draw(fold.weights, fold.weights, ROUGH_EACH * fold.means.size)
        every = rough[0].size == np.count_nonzero(fold.weights)
        return cls._over(reduced, fold, eta, *rough, refined=every)

    def again(self, reduced: Reduced, fold: Fold, eta: float) -> Drawn:
        """Draw rows by how much they count in the covariance, as far as this one knows it.

        A row's leverage w (q - m)' B^-1 (q - m) is large where few rows know of its direction.
        It is the mean square of some random combinations of the queries.
        """
        leverages: FloatArray = np.zeros(fold.weights.size)
        generator = np.random.default_rng(_SEED)
        for _ in range(_COMBINATIONS):
            vector = self._combination(generator.normal(size=self.scale.size))
            scores = reduced.rows.scores(vector)
            scores -= fold.means @ vector
            leverages += scores**2
        leverages /= _COMBINATIONS
        if self.source is reduced.rows:
            # A drawn row is known by itself: its leverage is that without it.
            own = leverages[self.drawn]
            leverages[self.drawn] = own / np.maximum(1 - self.weights * own, _ALONE)
        leverages *= fold.weights
        leverages /= 1 + leverages
        leverages /= leverages.sum()
        leverages += _BY_WEIGHT * fold.weights
        size = ROWS_EACH * fold.means.size
        chosen = draw(fold.weights, leverages, size)
        return Drawn._over(reduced, fold, eta, *chosen, refined=True)

    def _combination(self, normal: FloatArray) -> FloatArray:
        """(V,) multipliers of a combination of queries, random with covariance B^-1."""
        from scipy.linalg.lapack import dtrtrs

        solved, _ = dtrtrs(self.matrix, normal, lower=1, trans=1)
        result: FloatArray = solved / self.scale
        return result

    @classmethod
    def _over(
        cls,
        reduced: Reduced,
        fold: Fold,
        eta: float,
        drawn: Positions,
        weights: FloatArray,
        *,
        refined: bool,
    ) -> Drawn:
        """From some rows with weights."""
        rows = reduced.rows
        variances = rows.variances(fold)
        scale: FloatArray = np.sqrt(np.where(variances > 0, variances, 1.0))
        if rows.products:
            matrix = _dense(rows, drawn, weights, fold.means, scale)
        else:
            matrix = _counted(rows, drawn, weights, fold.means, scale)
        # A query that hardly varies on the drawn rows is known to do so on others.
        diagonal = np.diagonal(matrix)
        diagonal = np.where(diagonal > _UNSEEN, diagonal, 1.0)
        return cls(matrix, diagonal, scale, eta, rows, drawn, weights, refined)._factorised(reduced)

    def at(self, reduced: Reduced, eta: float) -> Drawn:
        """The same covariance with another trade-off's noise; this one's factors are lost."""
        return replace(self, eta=eta)._factorised(reduced)

    def _factorised(self, reduced: Reduced) -> Drawn:
        from scipy.linalg.lapack import dpotrf

        noise = reduced.noise(self.eta)
        diagonal = self.diagonal + self.eta * noise.variances / self.scale**2
        shared = math.sqrt(self.eta) * noise.factor / self.scale[:, None]
        ridge = _RIDGE
        while True:
            self._fill(diagonal + ridge, shared)
            _, info = dpotrf(self.matrix, lower=1, clean=0, overwrite_a=1)
            if info == 0:
                return self
            # Collinear queries at a small trade-off.
            ridge *= 10

    def _fill(self, diagonal: FloatArray, shared: FloatArray) -> None:
        """The system on and below the diagonal, a strip at a time."""
        matrix = self.matrix
        for start in range(0, diagonal.size, _DRAW):
            stop = min(start + _DRAW, diagonal.size)
            square = matrix[start:stop, start:stop]
            upper = np.triu(square, 1)
            square[...] = upper + upper.T
            matrix[stop:, start:stop] = matrix[start:stop, stop:].T
            if shared.shape[1]:
                added = shared[start:] @ shared[start:stop].T
                # Above the diagonal the covariance stays as it is.
                added[: stop - start] = np.tril(added[: stop - start])
                matrix[start:, start:stop] += added
        matrix[np.diag_indices_from(matrix)] = diagonal + np.sum(shared**2, axis=1)

    def solve(self, x: FloatArray) -> FloatArray:
        """See :class:`Preconditioner`."""
        from scipy.linalg.lapack import dpotrs

        solved, _ = dpotrs(self.matrix, x / self.scale, lower=1)
        result: FloatArray = solved / self.scale
        return result

    def trace(self, noise: Covariance, variances: FloatArray) -> float | None:
        """See :class:`Preconditioner`: it would take the whole inverse."""
        return None


def draw(weights: FloatArray, importance: FloatArray, size: int) -> tuple[Positions, FloatArray]:
    """Some rows in proportion to their importance, and weights that make up for the others.

    A row whose importance is its share of the draw or more is taken for certain.

    Parameters
    ----------
    weights
        (rows,) zero or more.
    importance
        (rows,) positive where the weight is.
    size
        About how many rows to draw.

    Returns
    -------
    tuple
        (n,) ascending row numbers, and (n,) their weights: on average those of all rows.

    Examples
    --------
    >>> base = np.array([0.5, 0.0, 0.3, 0.2])
    >>> rows, weights = draw(base, base, 4)
    >>> rows.tolist(), weights.tolist()
    ([0, 2, 3], [0.5, 0.3, 0.2])
    """
    some = np.flatnonzero(weights)
    if size >= some.size:
        return some, weights[some]
    # Chance min(1, i / t), with t such that the chances' sum is the size.
    falling = np.sort(importance[some])[::-1]
    left = np.cumsum(falling[::-1])[::-1]
    certain = int(np.argmax(falling[:size] * (size - np.arange(size)) <= left[:size]))
    chances = np.minimum(importance[some] * ((size - certain) / left[certain]), 1.0)
    start = np.random.default_rng(_SEED).random()
    taken = np.diff(np.floor(np.cumsum(chances) + start), prepend=0.0) > 0
    return some[taken], weights[some[taken]] / chances[taken]


def _dense(
    rows: Rows, drawn: Positions, weights: FloatArray, means: FloatArray, scale: FloatArray
) -> FloatArray:
    """(V, V) covariance above the diagonal, by multiplying query values in single precision."""
    from scipy.linalg.blas import ssyrk

    size = means.size
    result: FloatArray = np.zeros((size, size), order="F")
    products = np.zeros((size, size), dtype=np.float32, order="F")
    buffer, single = np.empty((size, _DRAW)), np.empty((size, _DRAW), dtype=np.float32)
    for start in range(0, drawn.size, _DRAW):
        chosen = drawn[start : start + _DRAW]
        values, rounded = buffer[:, : chosen.size], single[:, : chosen.size]
        for part in rows.products:
            few = replace(part, columns=np.ascontiguousarray(part.columns[:, chosen]))
            few.fill(values[part.place], slice(None), means[part.place])
        for cells in rows.cells:
            values[cells.place] = cells.values(chosen).T
            values[cells.place] -= means[cells.place, None]
        values /= scale[:, None]
        np.multiply(values, np.sqrt(weights[start : start + _DRAW]), out=rounded)
        products = ssyrk(1.0, rounded.T, beta=1.0, c=products, trans=1, overwrite_c=1)
        if (start // _DRAW + 1) % _CHUNKS == 0 or start + _DRAW >= drawn.size:
            # In double precision from here on, so that many sums' rounding stays small.
            result += products
            products[...] = 0.0
    return result


def _counted(
    rows: Rows, drawn: Positions, weights: FloatArray, means: FloatArray, scale: FloatArray
) -> FloatArray:
    """(V, V) covariance above the diagonal of cells of partitions, by counting pairs of them."""
    size = means.size
    result: FloatArray = np.zeros((size, size), order="F")
    parts = [_on(part, drawn) for part in rows.cells]
    sums = np.zeros(size)
    for position, part in enumerate(parts):
        sums[part.place] = part.means(weights)
        result[part.place, part.place] = part.covariance(weights, np.zeros(part.size))
        for other in parts[position + 1 :]:
            result[part.place, other.place] = part.moments(other, weights)
    # About the means of all rows, which are not quite those of the drawn ones.
    sums -= float(weights.sum()) / 2 * means
    for start in range(0, size, _DRAW):
        strip = slice(start, start + _DRAW)
        result[:, strip] -= np.outer(sums, means[strip])
        result[:, strip] -= np.outer(means, sums[strip])
        result[:, strip] /= scale[:, None]
        result[:, strip] /= scale[strip]
    return result


def _on(part: CellPart, rows: Positions) -> CellPart:
    """The part on some of its rows."""
    layers = tuple(
        layer if layer.values is None else replace(layer, values=layer.values[rows])
        for layer in part.layers
    )
    return replace(part, codes=part.codes[rows], layers=layers)


class Keeper:
    """Keeps the preconditioner of one problem from step to step while it serves.

    It changes how fast a system is solved, never to what.
    """

    def __init__(self) -> None:
        self._made: Blocks | Drawn | None = None
        self._fold: Fold | None = None
        self._eta = math.nan
        self._share = 1.0
        self._wasted = 0

    def at(self, reduced: Reduced, fold: Fold, eta: float) -> Preconditioner:
        """A preconditioner for a fold's weights and a trade-off."""
        rows = reduced.rows
        made = self._made
        if fold.means.size > MAX_DRAWN:
            new: Blocks | Drawn = self._blocks(reduced, fold, eta)
        elif isinstance(made, Drawn):
            slow = self._wasted > price(rows)
            if (slow and not made.refined) or self._outdated(rows, fold, slow=slow):
                new = self._drawn(reduced, fold, eta, made)
            elif 1 / _FAR < made.eta / eta < _FAR if eta else made.eta == 0:
                new = made
            else:
                new = made.at(reduced, eta)
        elif rows.products or self._wasted > price(rows):
            new = self._drawn(reduced, fold, eta)
        else:
            new = self._blocks(reduced, fold, eta)
        self._made = new
        return new

    def limit(self, reduced: Reduced, *, near: bool) -> int:
        """Steps after which a system had better be solved with another preconditioner.

        ``near`` says that the weights hardly move any more, so that another would be the same.
        """
        if near or reduced.answers.size > MAX_DRAWN:
            return CG_STEPS
        return 4 * _ENOUGH + price(reduced.rows)

    def tell(self, steps: int) -> None:
        """So many steps of conjugate gradients were taken for a system."""
        self._wasted += max(0, steps - _ENOUGH)

    def _outdated(self, rows: Rows, fold: Fold, *, slow: bool) -> bool:
        """Whether the drawn one was drawn for weights that are too far, the less so if slow."""
        before = self._fold
        if before is None:
            return False
        share = self._share / (fold.ess / rows.base_ess)
        common = min(share, 1 / share)
        if before.weights.size == fold.weights.size:
            common = min(common, float(np.minimum(before.weights, fold.weights).sum()))
        # Drawn from a sample it may be slow for another reason than the weights.
        settled = _SETTLED if before.weights.size == fold.weights.size else 1.0
        return common < (settled if slow else _ALIKE)

    def _blocks(self, reduced: Reduced, fold: Fold, eta: float) -> Blocks:
        if isinstance(self._made, Blocks) and fold is self._fold and eta == self._eta:
            return self._made
        self._fold, self._eta = fold, eta
        return Blocks.of(reduced, fold, eta)

    def _drawn(self, reduced: Reduced, fold: Fold, eta: float, made: Drawn | None = None) -> Drawn:
        self._wasted, self._fold = 0, fold
        self._share = fold.ess / reduced.rows.base_ess
        return Drawn.of(reduced, fold, eta) if made is None else made.again(reduced, fold, eta)


def price(rows: Rows) -> int:
    """What drawing a preconditioner costs, in products with the Hessian.

    By the measured times of one core, in nanoseconds: 0.03 for a flop of single precision in
    large matrices and 0.06 of double, 0.1 for a flop of narrow ones, 4 for a row in a table.
    """
    size = int(np.count_nonzero(rows.varying))
    drawn = min(ROWS_EACH * size, rows.merged.size)
    tables = sum(len(part.layers) for part in rows.cells)
    product = rows.merged.size * (
        8.0 * tables + sum(0.4 * part.columns.shape[0] ** 2 for part in rows.products)
    )
    made = 0.02 * size**3
    if rows.products:
        made += 0.03 * drawn * size**2
    else:
        made += 4.0 * drawn * tables**2 / 2
    return int(made / product)
