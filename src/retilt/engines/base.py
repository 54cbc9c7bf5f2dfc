"""What every engine offers: a table of named columns that can be read, sampled and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
"""(n,) row numbers, from 0; may repeat and come in any order."""


@dataclass(frozen=True, slots=True)
class Redrawn:
    """New cells of a column, some of them its own and some made.

    Attributes
    ----------
    values
        (F,) cells that are made, in the type of the column's values (text where that is text);
        null for a null.
    rows
        (M,) which cell each new row gets, counted over the column's own and then ``values``.
    """

    values: pa.Array
    rows: Indices


class Table(Protocol):
    """A table in some engine. Opening or reading it never changes its source."""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names as text, distinct, in the table's order."""
        ...

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the column's type; text stands for "not typed"."""
        ...

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column, of type :meth:`arrow_type`."""
        ...

    def keeps_order(self, name: str) -> bool:
        """Whether a dictionary column's order of values is its owner's, not an accident."""
        ...

    def take(self, indices: Indices) -> Any:
        """Return the rows asked for as the caller's own kind of frame, with a fresh index."""
        ...

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> Table:
        """Return all rows and then copies of some, with new cells in some columns.

        Names, types and the kind of frame stay. A null that the frame's own type of a column
        can't hold leaves the copy's cell as it is.
        """
        ...

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
        """Return a small result table in the caller's own frame library."""
        ...

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write the rows asked for to a file; its name's ending decides the format."""
        ...
