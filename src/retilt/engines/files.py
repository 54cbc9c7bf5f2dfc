"""Table files: which format a name means, and writing each of them."""

from __future__ import annotations

import csv
import gzip
import io
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from retilt._output import atomic_output, refuse_existing
from retilt.exceptions import InputError

__all__ = [
    "ACCEPTED",
    "FileFormat",
    "atomic_output",
    "file_format",
    "plain_type",
    "refuse_existing",
    "refuse_table_path",
    "without_views",
    "write_arrow",
    "write_bytes",
    "write_pieces",
]

FileFormat: TypeAlias = Literal["csv", "parquet", "arrow"]

SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
ACCEPTED = ".csv, .tsv, .txt (each also with .gz), .parquet, .pq, .arrow, .feather, .ipc"


def file_format(path: str | Path) -> FileFormat | None:
    """Return the table format that a file's name says, or None if it says none.

    Examples
    --------
    >>> file_format("a/B.CSV.gz"), file_format("b.pq"), file_format("c.xlsx")
    ('csv', 'parquet', None)
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".gz":
        inner = SUFFIXES.get(path.with_suffix("").suffix.lower())
        return inner if inner == "csv" else None
    return SUFFIXES.get(suffix)


def refuse_table_path(path: str | Path, force: bool) -> None:
    """Like :func:`refuse_existing`, and the name must end as a table file's."""
    if file_format(path) is None:
        raise InputError(
            f"output {str(path)!r}: a table's file name must end in one of {ACCEPTED}."
        )
    refuse_existing(path, force)


def write_bytes(path: str | Path, content: bytes, *, force: bool = False) -> None:
    """Write bytes, compressed if the name ends in ``.gz``; equal content, equal file."""
    packed = Path(path).suffix.lower() == ".gz"
    with atomic_output(path, force) as draft:
        draft.write_bytes(gzip.compress(content, compresslevel=6, mtime=0) if packed else content)


def write_arrow(table: pa.Table, path: str | Path, *, force: bool = False) -> None:
    """Write an Arrow table in the format that the file's name says, as :func:`write_pieces`."""
    write_pieces(table.schema, [table], path, force=force)


def write_pieces(
    schema: pa.Schema, pieces: Iterable[pa.Table], path: str | Path, *, force: bool = False
) -> None:
    """Write tables one after the other into one file, in the format that its name says.

    Parameters
    ----------
    schema
        Of every table; Parquet and Arrow keep its types, column order and metadata.
    pieces
        The tables; each is let go of before the next is asked for.
    path
        A name that ends in one of :data:`ACCEPTED`.
    force
        Whether an existing file may be replaced.

    Raises
    ------
    InputError
        If the name ends in something else, or the format can't hold a column's type.
    """
    refuse_table_path(path, force)
    kind = file_format(path)
    import duckdb

    with atomic_output(path, force) as draft:
        try:
            if kind == "parquet":
                import pyarrow.parquet as pq

                with pq.ParquetWriter(draft, _plain_schema(schema), compression="zstd") as sink:
                    for piece in pieces:
                        sink.write_table(without_views(piece))
            elif kind == "arrow":
                with pa.ipc.new_file(draft, schema) as sink:
                    for piece in pieces:
                        sink.write_table(piece)
            else:
                _write_csv(schema.names, pieces, draft, Path(path))
        except (pa.ArrowException, duckdb.Error, TypeError) as error:
            raise InputError(
                f"output {str(path)!r}: {kind} can't hold one of the columns ({error}). "
                "Choose another format."
            ) from None


def _write_csv(names: Sequence[str], pieces: Iterable[pa.Table], draft: Path, path: Path) -> None:
    """Header by us (DuckDB would rename columns that differ in case only), body by DuckDB."""
    separator = "\t" if ".tsv" in path.suffixes else ","
    packed = path.suffix.lower() == ".gz"
    header = io.StringIO(newline="")
    csv.writer(header, delimiter=separator, lineterminator="\n").writerow(names)
    body = draft.with_name(draft.name + ".body")
    try:
        with draft.open("wb") as raw:
            sink = gzip.GzipFile("", "wb", 6, raw, mtime=0) if packed else raw
            sink.write(header.getvalue().encode("utf-8"))
            for piece in pieces:
                _write_body(piece, body, separator)
                with body.open("rb") as source:
                    shutil.copyfileobj(source, sink)
            if packed:
                sink.close()
    finally:
        body.unlink(missing_ok=True)


def _write_body(table: pa.Table, body: Path, separator: str) -> None:
    """The lines of a CSV without its header."""
    import duckdb

    kinds = [pa.float32() if pa.types.is_float16(k) else k for k in table.schema.types]
    fields = [pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)]  # DuckDB has no halves
    numbered = without_views(
        pa.table(table.columns, [f.name for f in fields]).cast(pa.schema(fields))
    )
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.from_arrow(numbered)
        if table.num_columns == 1:
            # A null alone on its line would be a blank line, which is no row.
            rows = rows.project("COALESCE(CAST(c0 AS VARCHAR), '')")
        rows.write_csv(str(body), sep=separator, header=False, compression="none")


def without_views(table: pa.Table) -> pa.Table:
    """Return a table with plain text for string views, which many readers don't know."""
    return table.cast(_plain_schema(table.schema))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    fields = [f.with_type(plain_type(f.type)) for f in schema]
    return pa.schema(fields, schema.metadata)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with plain text for string views, at any depth.

    Examples
    --------
    >>> plain_type(pa.list_(pa.string_view()))
    ListType(list<item: large_string>)
    """
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([_plain_field(f) for f in kind])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))
