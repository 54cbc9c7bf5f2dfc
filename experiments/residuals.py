"""Tables that overlap, against the least noise that any way of asking them could have.

    python -m experiments.residuals

Squared errors of the cells of all tables, each table's mean counted alike, under Gaussian noise,
replace-one and generalised least squares, over a bound from below of what measuring their residual
components one by one (ResidualPlanner) could reach: with all tables asked alike, and with the best
scales for the tables. Nothing is drawn.

The bound: let every column of the two rows differ with the same probability. Component A of noise
``s_A kron(I - J / m)`` then costs ``c_A / s_A`` on average, which the largest cost is not below,
and by Cauchy-Schwarz the loss ``sum w_A s_A`` times the cost is at least
``(sum sqrt(w_A c_A))**2``.
The probability is the one with the largest bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from math import prod, sqrt

import numpy as np

_Columns = tuple[int, ...]

STEPS = 200
"""Of the search for the best scales, which has settled long before."""

CASES = {
    "20 columns of 3 cells": [3] * 20,
    "20 columns of 9 cells": [9] * 20,
    "20 columns of 40 cells": [40] * 20,
    "20 columns of 2 to 40 cells": np.round(np.geomspace(2, 40, 20)).astype(int).tolist(),
}


def parts(table: _Columns) -> Iterator[_Columns]:
    """The subsets of a table's columns that are not empty."""
    sizes = range(1, len(table) + 1)
    return chain.from_iterable(combinations(table, size) for size in sizes)


def outside(table: _Columns, part: _Columns, sizes: Sequence[int]) -> int:
    """Number of cells of the table's other columns."""
    return prod(sizes[j] for j in table if j not in part)


def weights(tables: Sequence[_Columns], sizes: Sequence[int]) -> dict[_Columns, float]:
    """What a component's noise adds to the loss."""
    found: dict[_Columns, float] = defaultdict(float)
    for table in tables:
        for part in parts(table):
            own = prod(1 - 1 / sizes[j] for j in part)
            found[part] += own / outside(table, part, sizes) ** 2
    return found


def bound(tables: Sequence[_Columns], sizes: Sequence[int]) -> float:
    """No basis and no scales have less loss times cost."""
    weight = weights(tables, sizes)

    def at(differ: float) -> float:
        total = 0.0
        for part, own in weight.items():
            kept = prod(1 - 1 / sizes[j] for j in part)
            moved = prod(1 - 1 / sizes[j] - differ for j in part)
            total += sqrt(own * max(2 * (kept - moved), 0))
        return total**2

    return max(map(at, np.linspace(0.01, 1, 100).tolist()))


def losses(tables: Sequence[_Columns], sizes: Sequence[int], steps: int) -> list[float]:
    """Loss times cost, from equal scales on by the multiplicative algorithm for optimal designs."""
    weight = weights(tables, sizes)
    within = [[(p, outside(t, p, sizes)) for p in parts(t)] for t in tables]
    loud = np.ones(len(tables))
    found = []
    for _ in range(steps):
        precision: dict[_Columns, float] = defaultdict(float)
        for own, each in zip(loud.tolist(), within, strict=True):
            for part, cells in each:
                precision[part] += own / cells
        found.append(2 * float(loud.sum()) * sum(w / precision[p] for p, w in weight.items()))
        gains = [sum(weight[p] / precision[p] ** 2 / c for p, c in each) for each in within]
        loud *= np.sqrt(gains)
        loud /= loud.max()
    return found


def main() -> None:
    """Print the table."""
    print("| columns | tables | asked alike / bound | best scales / bound |")
    print("| --- | --- | --- | --- |")
    for name, sizes in CASES.items():
        pairs = list(combinations(range(len(sizes)), 2))
        ones: list[_Columns] = [(j,) for j in range(len(sizes))]
        for what, tables in (("all pairs", pairs), ("all pairs, all single ones", pairs + ones)):
            least, found = bound(tables, sizes), losses(tables, sizes, STEPS)
            print(f"| {name} | {what} | {found[0] / least:.3f} | {min(found) / least:.3f} |")


if __name__ == "__main__":
    main()
