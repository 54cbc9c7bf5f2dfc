"""The local engine: frames in memory and files on this machine."""

from __future__ import annotations

import csv
import glob
import os
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from retilt._input import kind_of
from retilt.engines.base import Table
from retilt.engines.csvfile import read_csv
from retilt.engines.files import ACCEPTED, file_format
from retilt.engines.frames import ArrowTable, PandasTable, PolarsTable
from retilt.engines.parquetfile import ParquetTable, not_parquet, parquet_files
from retilt.exceptions import InputError
from retilt.schema.reading import read

_KINDS = (
    "a pandas, polars or PyArrow frame, a DuckDB relation, anything with __arrow_c_stream__, "
    f"or the path of a file that ends in {ACCEPTED}, of a folder of Parquet files, or "
    "duckdb:///file.db?table=t"
)


_RELATION_ROWS = 2**13
_TABLE = ("names", "rows", "arrow_type", "cells", "keeps_order", "take", "frame", "write")


def open_table(source: Any, *, private: bool = False) -> Table:
    """Open anything that holds a table.

    Parameters
    ----------
    source
        A pandas or polars frame, a PyArrow table, batch or reader, a DuckDB relation, any
        object with ``__arrow_c_stream__`` (the last two give rows back as PyArrow tables: a
        relation lives and dies with a connection of its owner's), a table that is open
        already; or text or a path:
        a CSV file (``.csv``, ``.tsv``, ``.txt``, also ``.gz``), Parquet (a file, a folder or
        a glob), an Arrow file (``.arrow``, ``.feather``, ``.ipc``), or
        ``duckdb:///file.db?table=t`` (relative; four slashes for an absolute path).
    private
        Whether this is the private table: nothing then depends on what a CSV file holds.

    Returns
    -------
    Table
        Reads the source, and never changes it.

    Raises
    ------
    InputError
        If it can't be opened. The readers' own errors could hold data: no message quotes
        them, and they can't be reached from ours.

    Examples
    --------
    >>> table = open_table(pa.table({"age": [31, 42]}))
    >>> table.names, table.rows
    (('age',), 2)
    """
    opening = partial(_open, source, private=private)
    return read(opening, f"the {type(source).__name__}", "it holds no table that can be read.")


def _open(source: Any, *, private: bool) -> Table:
    if isinstance(source, (str, Path)):
        return _open_path(source, private=private)
    return _open_frame(source)


def would_change(source: str | Path, output: str | Path) -> bool:
    """Whether writing ``output`` would change the table at ``source``, going by names alone.

    True for its file, for the database behind a ``duckdb:`` address, and for a Parquet file in
    its folder or among those that its glob finds, there already or not.
    """
    text, place = str(source), Path(os.path.realpath(output))
    if "://" in text:
        return place == Path(os.path.realpath(_database_of(text)))
    if not Path(text).exists() and glob.has_magic(text):
        pattern = Path(os.path.realpath(Path(text).parent), Path(text).name)
        found = map(os.path.realpath, glob.glob(text, recursive=True))  # noqa: PTH207
        return str(place) in found or place.match(str(pattern))
    if Path(text).is_dir():
        inside = place.is_relative_to(os.path.realpath(text))
        return inside and not_parquet([place]) is None
    return place == Path(os.path.realpath(text))


def _database_of(address: str) -> Path:
    """The file of a ``duckdb:`` address."""
    return Path(unquote(urlsplit(address).path).removeprefix("/"))


# --- frames ------------------------------------------------------------------------------


def _open_frame(source: Any) -> Table:
    from narwhals import dependencies as kinds

    if kinds.is_narwhals_dataframe(source) or kinds.is_narwhals_lazyframe(source):
        source = source.to_native()
    if kinds.is_pandas_dataframe(source):
        return PandasTable(source)
    if kinds.is_polars_lazyframe(source):
        source = read(source.collect, "the polars LazyFrame", "collecting it failed.")
    if kinds.is_polars_dataframe(source):
        return PolarsTable(source)
    if isinstance(source, pa.Table):
        return ArrowTable(source)
    if isinstance(source, pa.RecordBatch):
        return ArrowTable(pa.Table.from_batches([source]))
    if kinds.is_duckdb_relation(source):
        what = "the DuckDB relation"
        return ArrowTable(read(partial(_read_relation, source), what, "its query failed."))
    if hasattr(source, "__arrow_c_stream__"):
        what = f"the {type(source).__name__}"
        return ArrowTable(read(partial(_read_stream, source), what, "its Arrow stream failed."))
    if all(hasattr(source, part) for part in _TABLE):  # last: a frame's columns look like this too
        opened: Table = source
        return opened
    raise InputError(f"a table can't be read from {kind_of(source)}: expected {_KINDS}.")


def _read_stream(source: Any) -> pa.Table:
    return pa.RecordBatchReader.from_stream(source).read_all()


def _read_relation(relation: Any) -> pa.Table:
    # DuckDB fails where the texts of one batch are more than 2 GiB together, unless a setting
    # of the connection says otherwise, and that is its owner's: so the batches are small.
    return relation.arrow(_RELATION_ROWS).read_all()


# --- files -------------------------------------------------------------------------------


def _open_path(source: str | Path, *, private: bool) -> Table:
    text = str(source)
    if not text.strip():
        # As a path it would be the current folder, with every Parquet file in it.
        raise InputError(f"a table's path is empty (got {text!r}): expected {_KINDS}.")
    if isinstance(source, str) and "://" in text:
        return _open_address(text)
    path = Path(source)
    if not path.exists() and glob.has_magic(text):
        found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207  also absolute patterns
        return _open_parquet([Path(p) for p in found], text)
    if path.is_dir():
        return _open_parquet(parquet_files(path), text, folder=path)
    if not path.exists():
        raise InputError(f"no file {text!r}.")
    kind = file_format(path)
    if kind is None:
        raise InputError(f"{text!r} does not end as a table's file does: expected {_KINDS}.")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(
            f"{text!r} is empty: expected a table (a CSV begins with a line of column names)."
        )
    if kind == "csv":
        job = partial(read_csv, path, private=private)
        return read(job, repr(text), "it is not a CSV file, or not readable.")
    if kind == "parquet":
        return _open_parquet([path], text)
    table = read(partial(_read_ipc, path), repr(text), "it is not an Arrow file, or not readable.")
    return ArrowTable(table, native=False, what=repr(text))


def _read_ipc(path: Path) -> pa.Table:
    """Both of Arrow's file forms: with a footer, and a bare stream."""
    with path.open("rb") as file:
        begins = file.read(6)
    with pa.OSFile(str(path), "rb") as source:
        opened = pa.ipc.open_file if begins == b"ARROW1" else pa.ipc.open_stream
        with opened(source) as reader:
            return reader.read_all()


def _open_parquet(files: list[Path], text: str, folder: Path | None = None) -> Table:
    if not files:
        raise InputError(f"{text!r} holds no Parquet file (.parquet, .pq).")
    strange = not_parquet(files)  # of a glob
    if strange is not None:
        raise InputError(f"{text!r} takes in {strange.name!r}, which is no Parquet file.")
    job = partial(ParquetTable, files, repr(text), folder)
    return read(job, repr(text), "it is not Parquet, or not readable.")


# --- DuckDB files ------------------------------------------------------------------------


def _open_address(text: str) -> Table:
    parts = urlsplit(text)
    if parts.scheme != "duckdb" or parts.netloc:
        raise InputError(
            f"{parts.scheme}://… is not an address that retilt knows: expected "
            "duckdb:///file.db?table=t (relative path; four slashes for an absolute one)."
        )
    tables = parse_qs(parts.query).get("table", [])
    path = _database_of(text)
    if len(tables) != 1:
        raise InputError("a duckdb address names one table: duckdb:///file.db?table=t")
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}.")
    return _read_duckdb(path, tables[0])


def _read_duckdb(path: Path, table: str) -> Table:
    # schema.table, each part quoted or not, as in SQL.
    parts = next(csv.reader([table], delimiter="."), [])
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    advice = "it is no DuckDB file, or is open for writing elsewhere, or has no such table."
    job = partial(_query, path, f"SELECT * FROM {quoted}")
    found = read(job, f"table {table!r} of {str(path)!r}", advice)
    return ArrowTable(found, native=False, what=f"table {table!r}")


def _query(path: Path, query: str) -> pa.Table:
    import duckdb

    with duckdb.connect(str(path), read_only=True) as connection:
        # Else whether it can be read depends on how long the texts are together.
        connection.execute("SET arrow_large_buffer_size = true")
        return connection.sql(query).to_arrow_table()
