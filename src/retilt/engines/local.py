"""The local engine: frames in memory and files on this machine."""

from __future__ import annotations

import csv
import glob
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from retilt.engines.base import Table
from retilt.engines.csvfile import read_csv
from retilt.engines.files import ACCEPTED, file_format
from retilt.engines.frames import ArrowTable, PandasTable, PolarsTable
from retilt.engines.parquetfile import ParquetTable
from retilt.engines.reading import reading
from retilt.exceptions import InputError

_KINDS = (
    "a pandas, polars or PyArrow frame, a DuckDB relation, anything with __arrow_c_stream__, "
    f"or the path of a file that ends in {ACCEPTED}, of a folder of Parquet files, or "
    "duckdb:///file.db?table=t"
)


_TABLE = ("names", "rows", "arrow_type", "cells", "keeps_order", "take", "frame", "write")


def open_table(source: Any, *, private: bool = False) -> Table:
    """Open anything that holds a table.

    Parameters
    ----------
    source
        A pandas or polars frame, a PyArrow table, batch or reader, a DuckDB relation, any
        object with ``__arrow_c_stream__``, a table that is open already; or text or a path:
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
        If it can't be opened. No message quotes the readers' own errors, which could hold
        data.

    Examples
    --------
    >>> table = open_table(pa.table({"age": [31, 42]}))
    >>> table.names, table.rows
    (('age',), 2)
    """
    if isinstance(source, (str, Path)):
        return _open_path(source, private=private)
    return _open_frame(source)


# --- frames ------------------------------------------------------------------------------


def _open_frame(source: Any) -> Table:
    from narwhals import dependencies as kinds

    if kinds.is_narwhals_dataframe(source) or kinds.is_narwhals_lazyframe(source):
        source = source.to_native()
    if kinds.is_pandas_dataframe(source):
        return PandasTable(source)
    if kinds.is_polars_lazyframe(source):
        with reading("the polars LazyFrame", "collecting it failed."):
            source = source.collect()
    if kinds.is_polars_dataframe(source):
        return PolarsTable(source)
    if isinstance(source, pa.Table):
        return ArrowTable(source)
    if isinstance(source, pa.RecordBatch):
        return ArrowTable(pa.Table.from_batches([source]))
    if hasattr(source, "__arrow_c_stream__"):
        with reading(f"the {type(source).__name__}", "its Arrow stream failed."):
            return ArrowTable(pa.RecordBatchReader.from_stream(source).read_all())
    if all(hasattr(source, part) for part in _TABLE):  # last: a frame's columns look like this too
        opened: Table = source
        return opened
    raise InputError(f"a table can't be read from a {type(source).__name__}: expected {_KINDS}.")


# --- files -------------------------------------------------------------------------------


def _open_path(source: str | Path, *, private: bool) -> Table:
    text = str(source)
    if isinstance(source, str) and "://" in text:
        return _open_address(text)
    path = Path(source)
    if not path.exists() and glob.has_magic(text):
        found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207  also absolute patterns
        return _open_parquet([Path(p) for p in found], text)
    if path.is_dir():
        return _open_parquet(_parquet_files(path), text, folder=path)
    if not path.exists():
        raise InputError(f"no file {text!r}.")
    kind = file_format(path)
    if kind is None:
        raise InputError(f"{text!r} does not end as a table's file does: expected {_KINDS}.")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{text!r} is empty.")
    if kind == "csv":
        with reading(repr(text), "it is not a CSV file, or not readable."):
            return read_csv(path, private=private)
    if kind == "parquet":
        return _open_parquet([path], text)
    with reading(repr(text), "it is not an Arrow file, or not readable."):
        return ArrowTable(_read_ipc(path), native=False, what=repr(text))


def _read_ipc(path: Path) -> pa.Table:
    """Both of Arrow's file forms: with a footer, and a bare stream."""
    with path.open("rb") as file:
        begins = file.read(6)
    with pa.OSFile(str(path), "rb") as source:
        opened = pa.ipc.open_file if begins == b"ARROW1" else pa.ipc.open_stream
        with opened(source) as reader:
            return reader.read_all()


def _parquet_files(folder: Path) -> list[Path]:
    """The folder's Parquet files, at any depth; names that begin with _ or . are not data."""
    return sorted(
        p
        for p in folder.rglob("*")
        if file_format(p) == "parquet"
        and p.is_file()
        and not any(part.startswith(("_", ".")) for part in p.relative_to(folder).parts)
    )


def _open_parquet(files: list[Path], text: str, folder: Path | None = None) -> Table:
    if not files:
        raise InputError(f"{text!r} holds no Parquet file (.parquet, .pq).")
    strange = next((p for p in files if file_format(p) != "parquet"), None)
    if strange is not None:
        raise InputError(f"{text!r} takes in {strange.name!r}, which is no Parquet file.")
    with reading(repr(text), "it is not Parquet, or not readable, or its files differ."):
        return ParquetTable(files, repr(text), folder)


# --- DuckDB files ------------------------------------------------------------------------


def _open_address(text: str) -> Table:
    parts = urlsplit(text)
    if parts.scheme != "duckdb" or parts.netloc:
        raise InputError(
            f"{parts.scheme}://… is not an address that retilt knows: expected "
            "duckdb:///file.db?table=t (relative path; four slashes for an absolute one)."
        )
    tables = parse_qs(parts.query).get("table", [])
    path = Path(unquote(parts.path).removeprefix("/"))
    if len(tables) != 1:
        raise InputError("a duckdb address names one table: duckdb:///file.db?table=t")
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}.")
    return _read_duckdb(path, tables[0])


def _read_duckdb(path: Path, table: str) -> Table:
    import duckdb

    # schema.table, each part quoted or not, as in SQL.
    parts = next(csv.reader([table], delimiter="."), [])
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    advice = "it is no DuckDB file, or is open for writing elsewhere, or has no such table."
    with (
        reading(f"table {table!r} of {str(path)!r}", advice),
        duckdb.connect(str(path), read_only=True) as connection,
    ):
        found = connection.sql(f"SELECT * FROM {quoted}").to_arrow_table()
        return ArrowTable(found, native=False, what=f"table {table!r}")
