"""Parquet files: one, some, or a folder of them.

A column's type comes from all files together, in whatever order they stand: one file whose
cells are all null, or whose writer took a wider number, does not decide it. ``key=value``
folders are columns of text, whatever the values look like: one folder more must not change
the type of the others. (How many files and folders there are is visible in the time it takes.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, filterfalse, repeat
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.engines.base import Indices, Redrawn
from retilt.engines.files import plain_type, write_pieces
from retilt.engines.frames import ArrowTable, check_names, column_number, user_frame
from retilt.exceptions import ColumnTypeError
from retilt.schema.encode import is_number, shown_type
from retilt.schema.reading import read

_KEPT = 2**21
"""Rows up to which a column that was read is kept for the next who asks."""

_PIECE = 2**18
"""Rows that are copied at a time."""

_BROKEN = "one of its files is broken."
_HIDDEN = re.compile(r"(?:^|/)[_.]")
_PARQUET = re.compile(r"\.(?:parquet|pq)\Z", re.IGNORECASE)
_KEYS = re.compile(rb"([^/=]+)=([^/]*)/")
_NO_KEY = b"__HIVE_DEFAULT_PARTITION__"

# The loops over files below are C's (map): then the same lines of ours run for any number.


def parquet_files(folder: Path) -> list[Path]:
    """Return a folder's Parquet files, at any depth; names that begin with _ or . are not data."""
    names = map(methodcaller("replace", os.sep, "/"), _relative(folder.rglob("*"), folder))
    data = filter(_PARQUET.search, filterfalse(_HIDDEN.search, names))
    return sorted(filter(Path.is_file, map(folder.joinpath, data)))


def not_parquet(files: Sequence[Path]) -> Path | None:
    """Return the first file whose name is not a Parquet file's, if there is one."""
    strange = next(filterfalse(_PARQUET.search, map(str, files)), None)
    return None if strange is None else Path(strange)


def _relative(paths: Any, folder: Path) -> map[str]:
    return map(partial(os.path.relpath, start=folder), paths)


class ParquetTable:
    """Parquet files, of which only the columns asked for are read.

    Parameters
    ----------
    files
        The files, in the order of their rows.
    what
        The table, for messages.
    folder
        The folder they were found in; its ``key=value`` folders are columns of text.
    """

    def __init__(self, files: Sequence[Path], what: str, folder: Path | None = None) -> None:
        from pyarrow.dataset import ParquetFileFormat
        from pyarrow.fs import LocalFileSystem

        self._what = what
        opened = ParquetFileFormat().make_fragment
        self._parts = list(map(opened, map(str, files), repeat(LocalFileSystem())))
        self._schemas: list[pa.Schema] = list(map(attrgetter("physical_schema"), self._parts))
        counts = list(map(methodcaller("count_rows"), self._parts))
        self.rows: int = sum(counts)
        keys = _folder_keys(files, folder) if folder else {}
        self._read = {name: _repeated(values, counts) for name, values in keys.items()}
        self._types = dict.fromkeys(keys, pa.large_string())
        listed = dict.fromkeys(map(tuple, map(attrgetter("names"), self._schemas)))
        for names in listed:
            check_names(names, what)
        # A folder's key wins over a column of the same name, as in other readers.
        columns = dict.fromkeys(chain.from_iterable(listed))
        self.names = check_names([*filterfalse(keys.__contains__, columns), *keys], what)

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the type that holds the column of every file.

        Raises
        ------
        ColumnTypeError
            If there is none; the message lists the types.
        """
        column_number(self.names, name)
        if name not in self._types:
            self._types[name] = _common_type(name, _with_columns([name], self._schemas))
        return self._types[name]

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column, of type :meth:`arrow_type`."""
        kind = self.arrow_type(name)
        if name in self._read:
            return self._read[name]
        cells = read(partial(self._cells, name, kind), self._what, _BROKEN)
        if self.rows <= _KEPT:
            self._read[name] = cells
        return cells

    def keeps_order(self, name: str) -> bool:
        """Whether the column is a dictionary that says it is ordered."""
        kind = self.arrow_type(name)
        return bool(pa.types.is_dictionary(kind) and kind.ordered)

    def take(self, indices: Indices) -> Any:
        """Return rows in pandas if it is installed, else PyArrow."""
        return self._whole().take(indices)

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> ArrowTable:
        """Return all rows and then copies of some, with new cells in some columns."""
        return self._whole().extended(copies, columns)

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
        """Return a result table in pandas if it is installed, else PyArrow."""
        return user_frame(columns)

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows to a file; Parquet and Arrow keep types, order and metadata.

        Many rows that come in the table's own order are copied piece by piece. (Arrow's files
        take one dictionary for all pieces: a table that has some is read whole.)
        """
        schema = self._schema()
        ascending = not np.any(indices[1:] < indices[:-1])
        if self.rows <= _KEPT or not ascending or any(map(pa.types.is_dictionary, schema.types)):
            self._whole().write(path, indices, force=force)
        else:
            write_pieces(schema, self._pieces(schema, indices), path, force=force)

    def _pieces(self, schema: pa.Schema, indices: NDArray[np.int64]) -> Iterator[pa.Table]:
        """Tables of the rows at ascending ``indices``, a piece of the files at a time."""
        from pyarrow.dataset import ParquetFragmentScanOptions

        names = [n for n in self.names if n not in self._read]
        start = 0
        for part, own in zip(self._parts, _with_columns(names, self._schemas), strict=True):
            batches = part.to_batches(
                own,
                columns=names,
                batch_size=_PIECE,
                batch_readahead=1,
                use_threads=False,
                # A buffer would hold on to all of the file that was read.
                fragment_scan_options=ParquetFragmentScanOptions(pre_buffer=False),
            )
            while (batch := read(partial(next, batches, None), self._what, _BROKEN)) is not None:
                stop = start + batch.num_rows
                first, last = np.searchsorted(indices, [start, stop])
                rows = pa.array(indices[first:last] - start)
                found = dict(zip(names, batch.columns, strict=True))
                columns = [
                    pc.cast(found[n], schema.field(n).type, safe=False)
                    if n in found
                    else self._read[n].slice(start, batch.num_rows)
                    for n in self.names
                ]
                yield pa.table(columns, schema=schema).take(rows)
                start = stop
                pa.default_memory_pool().release_unused()

    def _cells(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Each file's column as the file has it, or nulls, and only then in the common type.

        Arrow's own reading of many files raises where a cell does not fit the common type.
        """
        to_table = type(self._parts[0]).to_table
        own = _with_columns([name], self._schemas)
        columns = map(methodcaller("column", 0), map(to_table, self._parts, own, repeat([name])))
        cast = map(partial(pc.cast, target_type=kind, safe=False), columns)
        chunks = list(chain.from_iterable(map(attrgetter("chunks"), cast)))
        return pa.chunked_array(chunks, kind)

    def _whole(self) -> ArrowTable:
        cells = [self.cells(n) for n in self.names]
        return ArrowTable(pa.table(cells, schema=self._schema()), native=False, what=self._what)

    def _schema(self) -> pa.Schema:
        first = self._schemas[0]
        fields = {}
        if all(map(first.equals, self._schemas)):  # keep what else they say of a column
            fields = {f.name: f for f in first if f.type == self.arrow_type(f.name)}
        columns = [fields.get(n, pa.field(n, self.arrow_type(n))) for n in self.names]
        return pa.schema(columns, first.metadata)


# --- one type for all files --------------------------------------------------------------


def _with_columns(names: Sequence[str], schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """The same schemas, with columns that have no type where a file lacks them."""
    absent = pa.schema([pa.field(name, pa.null()) for name in names])
    return list(map(pa.unify_schemas, zip(schemas, repeat(absent))))


def _common_type(name: str, schemas: Sequence[pa.Schema]) -> pa.DataType:
    """The type that holds a column of every file, whatever their order.

    No type at all (only nulls) goes with anything, text of any width is text, whole numbers
    widen. Other numbers that differ meet in float64, and moments in microseconds: they are
    measured in these anyway.
    """
    own = map(attrgetter("type"), map(methodcaller("field", name), schemas))
    found = dict.fromkeys(chain((pa.null(),), own))
    kinds = sorted({plain_type(k) for k in found}, key=str)
    common = _merged(kinds)
    if common is None:
        listed = ", ".join(dict.fromkeys(shown_type(k) for k in kinds if k != pa.null()))
        raise ColumnTypeError(
            f"column {name!r}: the files give it types that don't go together: {listed}. "
            "Write them with one type."
        )
    if len(kinds) <= 2:  # with null
        return common
    if is_number(common) and (not pa.types.is_integer(common) or pa.uint64() in kinds):
        return pa.float64()
    return pa.timestamp("us", common.tz) if pa.types.is_timestamp(common) else common


def _merged(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    fields = [pa.schema([("", kind)]) for kind in kinds]
    try:
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


# --- folders -----------------------------------------------------------------------------


def _folder_keys(files: Sequence[Path], folder: Path) -> dict[str, pa.Array]:
    """Each ``key=value`` folder's key: (files,) its values as text, null where there is none."""
    names = map(methodcaller("replace", os.sep, "/"), _relative(files, folder))
    found = list(map(dict, map(_KEYS.findall, map(os.fsencode, names))))
    return {
        _text(unquote_to_bytes(key)): _values(map(methodcaller("get", key, _NO_KEY), found))
        for key in dict.fromkeys(chain.from_iterable(found))
    }


def _values(escaped: map[bytes]) -> pa.Array:
    texts = pa.array(list(map(_text, map(unquote_to_bytes, escaped))), pa.large_string())
    return pc.if_else(pc.equal(texts, _text(_NO_KEY)), None, texts)


_text = methodcaller("decode", "utf-8", "replace")  # a bad escape is U+FFFD


def _repeated(values: pa.Array, counts: Sequence[int]) -> pa.ChunkedArray:
    rows = np.repeat(np.arange(len(counts)), counts)
    return pa.chunked_array([values.take(pa.array(rows))])
