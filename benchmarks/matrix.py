"""The matrix of all queries, for solvers that need it. NumPy and SciPy only: peers run it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def product_queries(
    values: NDArray[np.float64],
    left: NDArray[np.intp],
    right: NDArray[np.intp],
    offset: NDArray[np.float64],
    factor: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(N, K) products of two columns each; the arguments are those of ``retilt``'s Products."""
    # Column number -1 is the last one: ones.
    extended = np.column_stack([values, np.ones(values.shape[0])])
    block = extended[:, left]
    block *= extended[:, right]
    block *= factor
    block += offset
    return block


def table_cells(
    codes: NDArray[np.int32], levels: NDArray[np.intp], table: NDArray[np.intp]
) -> tuple[NDArray[np.int32], int]:
    """(N,) the cell of one table that each row is in, and how many cells it has."""
    cells = np.zeros(codes.shape[0], dtype=np.int32)
    size = 1
    for column in table:
        cells *= levels[column]
        cells += codes[:, column]
        size *= int(levels[column])
    return cells, size


def indicator_queries(cells: list[NDArray[np.int32]], sizes: list[int]) -> csr_array:
    """(N, K) a one for each table's cell that a row is in, from (N,) cells by table."""
    from scipy.sparse import csr_array

    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows, tables = cells[0].size, len(cells)
    positions = np.empty((rows, tables), dtype=np.int32)
    for place, (own, start) in enumerate(zip(cells, starts, strict=False)):
        np.add(own, start, out=positions[:, place], casting="unsafe")
    return csr_array(
        (np.ones(rows * tables), positions.ravel(), np.arange(rows + 1, dtype=np.int32) * tables),
        shape=(rows, int(starts[-1])),
    )
