"""Distances of distributions: of single columns as synthcity has them, and of pairs.

The paper takes two averages over columns from synthcity. Both are restated here from the source
of its version 0.2.12 (``metrics/eval_statistical.py``, ``metrics/_utils.py`` and the encoding in
``plugins/core/dataloader.py``), because it can't be installed beside current NumPy, and both have
a fault, so that a corrected value stands beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.evaluation.figures import Figure, figure
from retilt.evaluation.sides import Side, Sides, is_listed
from retilt.measures.base import FloatArray, IntArray
from retilt.schema.columns import Datetime, Numeric
from retilt.schema.encode import cell_labels, limits

BINS = 10
"""Bins of a column of many numbers, synthcity's and ours."""

FLOOR = 1e-11
"""What synthcity takes for a share of 0 in a divergence."""

_FEW_LABELS = 15
"""synthcity labels columns of fewer different numbers as it labels text."""

_FEW_VALUES = 5
"""synthcity counts the values of columns of fewer different ones, without bins."""

_MOST = 8e307
"""Columns of numbers farther from 0 are shrunk below this, so that a range is finite."""

_DENSE = 2**22
"""Cells of a pair of columns that are counted in one array, all of them."""


@dataclass(frozen=True)
class Marginals:
    """Distances of the columns' distributions from the real table's.

    Each is a mean over columns (or pairs of columns), of the synthetic table ``before`` and the
    post-processed one ``after``.

    Attributes
    ----------
    jensen_shannon_synthcity
        In [0, 0.239], lower is better. synthcity's ``jensenshannon_dist``: bins of equal width from
        the real column, out of range (or null) in one of its own; **1 is added to each share**;
        then the square root of the Jensen-Shannon divergence in nats. The 1 shrinks it about
        tenfold: for comparison with the library only.
    jensen_shannon
        In [0, 1], lower is better. The same bins, without the 1 and in bits, so that 1 is "totally
        different", as the paper says of it; out of range and null are apart. In nats it is 0.8326
        times as large.
    inverse_kl_synthcity
        In (0, 1], higher is better. synthcity's ``inv_kl_divergence``: 1 / (1 + D), with D the
        Kullback-Leibler divergence of the real column from the other, in nats, shares of 0 taken
        as 1e-11. Columns of fewer than 5 values are compared **each in its own order of
        frequency** (a table that swaps two shares scores 1), and what is out of the real range is
        left out.
    inverse_kl
        In (0, 1], higher is better. The same of the distributions of ``jensen_shannon``, cell by
        cell.
    one_way, two_way
        In [0, 1], lower is better. Total variation distance: half the sum over cells of the
        absolute difference of shares; the share of rows that would have to change. Of single
        columns and of all pairs. Cells are categories, or at most 10 bins by the real column's
        quantiles (values that most rows share are cells of their own) within the schema's bounds;
        null is a cell. Tables that are samples of one distribution are not at 0: small counts
        differ by chance.
    """

    jensen_shannon_synthcity: Figure
    jensen_shannon: Figure
    inverse_kl_synthcity: Figure
    inverse_kl: Figure
    one_way: Figure
    two_way: Figure

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "jensen_shannon": {
                "synthcity": self.jensen_shannon_synthcity.to_dict(),
                "corrected": self.jensen_shannon.to_dict(),
            },
            "inverse_kl": {
                "synthcity": self.inverse_kl_synthcity.to_dict(),
                "corrected": self.inverse_kl.to_dict(),
            },
            "total_variation": {
                "one_way": self.one_way.to_dict(),
                "two_way": self.two_way.to_dict(),
            },
        }


def compare_marginals(sides: Sides, undefined: dict[str, str]) -> Marginals:
    """Compare the distributions of all columns, and of all pairs of them."""
    means = [_mean_scores(sides, other) for other in (sides.before, sides.after)]
    one_way, two_way = _mean_variations(sides)

    def of(name: str, place: int) -> Figure:
        return figure(name, lambda found: float(found[place]), (means[0], means[1]), undefined)

    return Marginals(
        jensen_shannon_synthcity=of("jensen_shannon.synthcity", 0),
        jensen_shannon=of("jensen_shannon.corrected", 1),
        inverse_kl_synthcity=of("inverse_kl.synthcity", 2),
        inverse_kl=of("inverse_kl.corrected", 3),
        one_way=one_way,
        two_way=two_way,
    )


# --- synthcity's averages, and the corrected ones ----------------------------------------


def _mean_scores(sides: Sides, other: Side) -> FloatArray:
    """(4,) means over the columns, in the order of :class:`Marginals`."""
    scores = []
    for name in sides.names:
        values = sides.values(sides.real, name), sides.values(other, name)
        real, synthetic = labelled(*values, text=is_listed(sides.schema[name]))
        p, q = shares = binned(real, synthetic)
        scores.append(
            (
                jensen_shannon(*(1 + _only_seen(_missing_together(shares)))),
                jensen_shannon(p, q) / np.sqrt(np.log(2)),
                1 / (1 + synthcity_divergence(real, synthetic)),
                1 / (1 + divergence(p, q)),
            )
        )
    means: FloatArray = np.mean(scores, axis=0)
    return means


def labelled(
    real: FloatArray, synthetic: FloatArray, *, text: bool
) -> tuple[FloatArray, FloatArray]:
    """Give a column as synthcity encodes it: labels by rank for text, and for few numbers.

    Parameters
    ----------
    real, synthetic
        (n,) and (N,) values; NaN for null.
    text
        Whether they are codes of texts.

    Examples
    --------
    >>> labelled(np.array([10.0, 5.0]), np.array([7.0, np.nan]), text=False)
    (array([2., 0.]), array([ 1., nan]))
    """
    both = np.concatenate([real, synthetic])
    most = np.max(np.abs(both), where=np.isfinite(both), initial=0.0)
    tables = [v / (4.0 if most > _MOST else 1.0) for v in (real, synthetic)]  # as are the bins
    distinct = np.unique(np.concatenate(tables))
    distinct = distinct[np.isfinite(distinct)]
    if text or len(distinct) < _FEW_LABELS:
        tables = [np.where(np.isfinite(v), np.searchsorted(distinct, v), v) for v in tables]
    return tables[0], tables[1]


def binned(real: FloatArray, synthetic: FloatArray) -> FloatArray:
    """(2, B + 2) shares of each table in bins of the real column, out of its range, and null.

    At most 10 bins, and no more than there are different real values (null is one), of equal
    width, closed on the right; the first is a thousandth of the range longer, to hold the least.

    Examples
    --------
    >>> binned(np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 2.0, 9.0, np.nan]))
    array([[0.25, 0.5 , 0.25, 0.  , 0.  ],
           [0.25, 0.  , 0.25, 0.25, 0.25]])
    """
    finite = real[np.isfinite(real)]
    edges = np.empty(0)
    if len(finite):
        edges = _edges(finite, min(BINS, len(np.unique(real))))
    bins = max(len(edges) - 1, 0)
    shares = np.empty((2, bins + 2))
    for row, values in enumerate((real, synthetic)):
        places = np.searchsorted(edges, values, side="left") - 1
        outside = (places < 0) | (places >= bins)
        places = np.where(np.isnan(values), bins + 1, np.where(outside, bins, places))
        shares[row] = np.bincount(places, minlength=bins + 2) / len(values)
    return shares


def _edges(finite: FloatArray, bins: int) -> FloatArray:
    """(bins + 1,) the edges that pandas' ``cut`` makes of values."""
    least, greatest = float(finite.min()), float(finite.max())
    if least == greatest:
        around = 0.001 * abs(least) if least else 0.001
        return np.linspace(least - around, greatest + around, bins + 1)
    edges = np.linspace(least, greatest, bins + 1)
    edges[0] -= 0.001 * (greatest - least)
    return edges


def _missing_together(shares: FloatArray) -> FloatArray:
    """(2, B + 1): out of range and null in one cell, as in the library."""
    return np.column_stack([shares[:, :-2], shares[:, -2] + shares[:, -1]])


def _only_seen(shares: FloatArray) -> FloatArray:
    """Without the last cell if no row of either table is in it."""
    return shares if shares[:, -1].any() else shares[:, :-1]


def jensen_shannon(p: FloatArray, q: FloatArray) -> float:
    """Return the Jensen-Shannon distance in nats, at most 0.8326: SciPy's ``jensenshannon``.

    Parameters
    ----------
    p, q
        (B,) not negative, each with a sum above 0, which is scaled to 1.
    """
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    both = _relative_entropy(p, middle) + _relative_entropy(q, middle)
    return float(np.sqrt(max(both, 0.0) / 2))


def _relative_entropy(p: FloatArray, q: FloatArray) -> float:
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / q[some])))


def divergence(p: FloatArray, q: FloatArray) -> float:
    """Return the Kullback-Leibler divergence of p from q in nats, a share of 0 in q as 1e-11."""
    return max(_relative_entropy(p, np.maximum(q, FLOOR)), 0.0)


def synthcity_divergence(real: FloatArray, synthetic: FloatArray) -> float:
    """Return the divergence of synthcity's ``inv_kl_divergence`` for one column, faults and all.

    Parameters
    ----------
    real, synthetic
        (n,) and (N,) values as :func:`labelled` gives them.

    Examples
    --------
    The fault of columns of few values: shares of 0.75 and 0.25 are swapped.

    >>> synthcity_divergence(np.array([0.0, 0, 0, 1]), np.array([0.0, 1, 1, 1]))
    0.0
    """
    few = len(np.unique(real)) < _FEW_VALUES
    p, q = (_by_frequency if few else _in_bins)(real, synthetic)
    p, q = np.where(p == 0, FLOOR, p), np.where(q == 0, FLOOR, q)
    return float(np.sum(p * np.log(p / q) - p + q))


def _by_frequency(real: FloatArray, synthetic: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares of the values of each table, each by its own frequency, then the other's own."""
    found = [np.unique(v[~np.isnan(v)], return_counts=True) for v in (real, synthetic)]
    (real_values, real_counts), (values, counts) = found
    p, q = np.sort(real_counts)[::-1] / len(real), np.sort(counts)[::-1] / len(synthetic)
    p = np.append(p, np.zeros(len(np.setdiff1d(values, real_values))))
    q = np.append(q, np.zeros(len(np.setdiff1d(real_values, values))))
    return p, q


def _in_bins(real: FloatArray, synthetic: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares in bins of equal width over the real range, of the rows that lie in it."""
    bins = min(BINS, len(np.unique(real)))
    counts, edges = np.histogram(real[np.isfinite(real)], bins=bins)
    others, _ = np.histogram(synthetic[np.isfinite(synthetic)], bins=edges)
    return counts / (counts.sum() + 1e-8), others / (others.sum() + 1e-8)


# --- total variation ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """One column's cell of each row, in the real table, before and after."""

    rows: tuple[IntArray, IntArray, IntArray]
    count: int


def _mean_variations(sides: Sides) -> tuple[Figure, Figure]:
    """Mean distances of single columns and of pairs."""
    columns = [_cells(sides, name) for name in sides.names]
    one_way = [_variations(c.rows, c.count) for c in columns]
    two_way = [_variations(_together(a, b), a.count * b.count) for a, b in combinations(columns, 2)]
    return _mean(one_way), _mean(two_way)


def _mean(pairs: Sequence[tuple[float, float]]) -> Figure:
    before, after = np.mean(pairs, axis=0)
    return Figure(float(before), float(after))


def _together(a: _Cells, b: _Cells) -> list[NDArray[np.int64]]:
    """Each row's cell of two columns together, in each table."""
    return [i.astype(np.int64) * b.count + j for i, j in zip(a.rows, b.rows, strict=True)]


def _cells(sides: Sides, name: str) -> _Cells:
    column, edges = sides.schema[name], []
    if isinstance(column, (Numeric, Datetime)):
        clamped = np.clip(sides.values(sides.real, name), *limits(column))
        edges = quantile_edges(clamped[~np.isnan(clamped)])
    real, before, after = (sides.cells(side, name, edges) for side in sides.compared)
    return _Cells((real, before, after), len(cell_labels(column, edges)))


def quantile_edges(values: FloatArray) -> list[float]:
    """Return inner edges of at most 10 bins that hold about as many values each.

    At most 10 different values are bins of their own; of more, each goes where the middle of its
    ranks lies, so that a value that most rows share is alone.

    Examples
    --------
    >>> quantile_edges(np.repeat([0.0, 3.0], [90, 10]))
    [3.0]
    >>> quantile_edges(np.append(np.zeros(900), np.arange(100.0)))
    [1.0]
    >>> quantile_edges(np.arange(100.0))
    [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= BINS:
        return [float(v) for v in distinct[1:]]
    middle = np.cumsum(counts) - counts / 2
    bins = np.floor(BINS * middle / len(values))
    return [float(v) for v in distinct[1:][np.diff(bins) > 0]]


def _variations(
    rows: Sequence[IntArray] | Sequence[NDArray[np.int64]], count: int
) -> tuple[float, float]:
    """Total variation distances of the tables before and after from the real one."""
    if count > _DENSE:
        # Cells that no row is in need no place.
        _, places = np.unique(np.concatenate(rows), return_inverse=True)
        rows = np.split(places, np.cumsum([len(r) for r in rows])[:-1])
        count = int(places.max()) + 1
    real, before, after = (np.bincount(r, minlength=count) / len(r) for r in rows)
    return float(np.abs(before - real).sum() / 2), float(np.abs(after - real).sum() / 2)
