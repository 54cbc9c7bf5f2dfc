"""Parquet files: one, some, or a folder of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from retilt.engines.base import Indices
from retilt.engines.frames import ArrowTable, check_names, column_number, user_frame
from retilt.engines.reading import reading

_BROKEN = "one of its files is broken."


class ParquetTable:
    """Parquet files, of which only the columns asked for are read.

    Parameters
    ----------
    files
        The files, in the order of their rows.
    what
        The table, for messages.
    folder
        The folder they were found in; its ``key=value`` folders are columns.
    """

    def __init__(self, files: Sequence[Path], what: str, folder: Path | None = None) -> None:
        import pyarrow.dataset as ds

        self._what = what
        self._data = ds.dataset(
            [str(f) for f in files],
            format="parquet",
            partitioning="hive" if folder else None,
            partition_base_dir=str(folder) if folder else None,
        )
        self.names = check_names(self._data.schema.names, what)
        self.rows: int = self._data.count_rows()
        self._read: dict[str, pa.ChunkedArray] = {}

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the column's own type."""
        return self._data.schema.field(column_number(self.names, name)).type

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column as it is."""
        column_number(self.names, name)
        if name not in self._read:
            with reading(self._what, _BROKEN):
                self._read[name] = self._data.to_table(columns=[name]).column(0)
        return self._read[name]

    def keeps_order(self, name: str) -> bool:
        """Whether the column is a dictionary that says it is ordered."""
        kind = self.arrow_type(name)
        return bool(pa.types.is_dictionary(kind) and kind.ordered)

    def take(self, indices: Indices) -> Any:
        """Return rows in pandas if it is installed, else PyArrow."""
        return self._whole().take(indices)

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
        """Return a result table in pandas if it is installed, else PyArrow."""
        return user_frame(columns)

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows to a file; Parquet and Arrow keep types, order and metadata."""
        self._whole().write(path, indices, force=force)

    def _whole(self) -> ArrowTable:
        with reading(self._what, _BROKEN):
            return ArrowTable(self._data.to_table(), native=False, what=self._what)
