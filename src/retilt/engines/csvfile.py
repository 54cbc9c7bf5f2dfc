"""CSV files, read so that every field keeps its text.

A file is decoded, split into records by the standard ``csv`` module (which takes any line
whatever it holds), and every field stays text: what it means is decided later, by the schema.
Beside the fields the file's own text is kept, so that writing rows back gives the same bytes,
record by record: separator, quoting, line ends, encoding.

The dialect is read off the header line alone, which is public; nothing here depends on what
the records hold.
"""

from __future__ import annotations

import csv
import gc
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.engines.base import Indices, Redrawn
from retilt.engines.files import file_format, refuse_table_path, write_arrow, write_bytes
from retilt.engines.frames import (
    arrow_to_user,
    check_names,
    column_number,
    extended_places,
    take_rows,
    user_frame,
)
from retilt.exceptions import InputError

_SEPARATORS = (",", ";", "\t", "|")
_BATCH_ROWS = 2**13
_PRIVATE_BATCH = 2**20
_LONGEST_FIELD = 2**31 - 1
_BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written, as its first bytes and its header line show it.

    Attributes
    ----------
    separator
        One of ``, ; tab |``: the one that splits the header into most names.
    skip_space
        Whether a space after the separator is not part of the field.
    newline
        The header's line end.
    mark
        The byte order mark that the file begins with, or none.
    encoding
        The codec of what follows it.
    """

    separator: str
    skip_space: bool
    newline: str
    mark: bytes
    encoding: str

    def record(self, fields: Sequence[str | None]) -> str:
        """A line of the file that holds these fields; None is an empty one."""
        quoted = [self._quoted(field or "") for field in fields]
        if quoted == [""]:
            quoted = ['""']  # a blank line is no record
        return (self.separator + " " * self.skip_space).join(quoted) + self.newline

    def _quoted(self, field: str) -> str:
        plain = not set(field) & {self.separator, '"', "\n", "\r"} and not field.startswith(" ")
        return field if plain else '"' + field.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class _Source:
    """The file's text and where its records lie in it (in characters).

    Rows behind them were added (:meth:`CsvTable.extended`).
    """

    text: str
    header: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class CsvTable:
    """A CSV file in memory: fields as text, and its records as they were written."""

    def __init__(
        self,
        names: tuple[str, ...],
        columns: Sequence[pa.ChunkedArray],
        dialect: Dialect,
        source: _Source | None,
    ) -> None:
        self.names = names
        self.dialect = dialect
        self.rows = len(columns[0])
        self._columns = tuple(columns)
        self._source = source

    def arrow_type(self, name: str) -> pa.DataType:
        """Return text, whatever the column holds."""
        column_number(self.names, name)
        return pa.large_string()

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the fields as text; null where a record is too short."""
        return self._columns[column_number(self.names, name)]

    def keeps_order(self, name: str) -> bool:
        """Never: a CSV file has no dictionaries."""
        return False

    def take(self, indices: Indices) -> Any:
        """Return rows as a typed frame: integers, floats, true/false, else text."""
        return arrow_to_user(take_rows(self._typed(), indices))

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> CsvTable:
        """Return all rows and then copies of some, with new fields in some columns.

        The file's own records keep their bytes. The copies are written anew in its dialect.
        """
        fields = []
        for name, own in zip(self.names, self._columns, strict=True):
            new = columns.get(name)
            both = own if new is None else pa.chunked_array([*own.chunks, new.values], own.type)
            rows = copies if new is None else new.rows
            fields.append(both.take(pa.array(extended_places(self.rows, rows))))
        return CsvTable(self.names, fields, self.dialect, self._source)

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
        """Return a result table in pandas if it is installed, else PyArrow."""
        return user_frame(columns)

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows: to CSV byte for byte as they were read, else with inferred types."""
        refuse_table_path(path, force)
        if file_format(path) == "csv" and self._source is not None:
            write_bytes(path, self._records(self._source, indices), force=force)
        else:
            write_arrow(take_rows(self._typed(), indices), path, force=force)

    def _records(self, source: _Source, indices: Indices) -> bytes:
        text, newline = source.text, self.dialect.newline
        added = np.flatnonzero(indices >= len(source.starts))  # rows that the file does not have
        own = np.delete(indices, added)
        spans = zip(source.starts[own].tolist(), source.ends[own].tolist(), strict=True)
        records = [text[start:end] for start, end in spans]
        if added.size:
            rows = pa.array(indices[added])
            fields = zip(*(c.take(rows).to_pylist() for c in self._columns), strict=True)
            whole = np.empty(len(indices), dtype=object)
            whole[np.setdiff1d(np.arange(len(indices)), added)] = records
            whole[added] = [self.dialect.record(f) for f in fields]
            records = whole.tolist()
        # The file's last record may lack a line end, and may now stand anywhere.
        lines = [r if r.endswith(("\n", "\r")) else r + newline for r in (source.header, *records)]
        try:
            return self.dialect.mark + "".join(lines).encode(self.dialect.encoding)
        except UnicodeEncodeError:
            raise InputError(
                f"the synthetic table's encoding, {self.dialect.encoding}, has no letters for a "
                "category of the schema. Save the table as UTF-8, or write Parquet."
            ) from None

    def _typed(self) -> pa.Table:
        return pa.table([_typed(c) for c in self._columns], names=list(self.names))


def read_csv(path: Path, *, private: bool = False) -> CsvTable:
    """Read a CSV file, compressed or not.

    Parameters
    ----------
    path
        The file.
    private
        A private file's bytes that are not text become U+FFFD, and its own text is not kept.
        Another file's encoding is found out: UTF-8, else Windows-1252, else Latin-1.

    Raises
    ------
    InputError
        If the file is empty, can't be read or decompressed, or has a column name twice; the
        message holds column names at most.
    """
    content = _bytes_of(path)
    mark, text, encoding = _decode(content, private=private)
    lines = list(io.StringIO(text, newline=""))
    separator, skip_space = _split_of_header(lines, path)
    with any_field_size(), _no_collection():
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=skip_space)
        header = next(record for record in reader if record)
        first = reader.line_num
        names = check_names(header, f"{str(path)!r}")
        header_text = "".join(lines[:first])
        dialect = Dialect(separator, skip_space, _line_end(header_text), mark, encoding)
        if private:
            return CsvTable(names, _read_private(reader, len(names)), dialect, None)
        columns, ends, kept = _read_records(reader, len(names))
    offsets = np.concatenate(([0], np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))))
    starts = np.concatenate(([first], ends))[:-1]
    source = _Source(text, header_text, offsets[starts[kept]], offsets[ends[kept]])
    return CsvTable(names, columns, dialect, source)


def _bytes_of(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, ValueError, MemoryError, _zlib_error()):
        raise InputError(f"{str(path)!r} can't be read (or its compression is broken).") from None
    if not content.strip():
        raise InputError(f"{str(path)!r} is empty: expected a header line with column names.")
    return content


def _zlib_error() -> type[Exception]:
    import zlib

    return zlib.error


def _decode(content: bytes, *, private: bool) -> tuple[bytes, str, str]:
    """Byte order mark, text and codec."""
    mark, encoding = next((b for b in _BOMS if content.startswith(b[0])), (b"", "utf-8"))
    body = content[len(mark) :]
    if private:
        return mark, body.decode(encoding, errors="replace"), encoding
    for codec in (encoding,) if mark else (encoding, "cp1252", "latin-1"):
        try:
            return mark, body.decode(codec), codec
        except UnicodeDecodeError:
            continue
    raise InputError(f"the file begins as {encoding} but is not: save it as UTF-8.")


def _split_of_header(lines: list[str], path: Path) -> tuple[str, bool]:
    """The separator that splits the header into most names; earlier ones win a tie."""
    with any_field_size():
        splits = {
            s: next((r for r in csv.reader(lines, delimiter=s) if r), []) for s in _SEPARATORS
        }
    separator = max(_SEPARATORS, key=lambda s: len(splits[s]))
    names = splits[separator]
    if not names:
        raise InputError(f"{str(path)!r} is empty: expected a header line with column names.")
    return separator, len(names) > 1 and all(n.startswith(" ") for n in names[1:])


@contextmanager
def any_field_size() -> Iterator[None]:
    """``csv`` refuses long fields by a limit that is global, so put it back."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of lists and strings, none in a cycle: looking for cycles would double the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _read_private(reader: Any, width: int) -> list[pa.ChunkedArray]:
    """Columns of text, without a step of our own for each record.

    Whatever the records hold, and up to a million of them, the same lines of this function run
    the same number of times.
    """
    chunks: list[list[pa.Array]] = [[] for _ in range(width)]
    absent = [None] * width  # makes every batch as wide as the header, then is cut off
    records = filter(None, reader)  # a blank line is not a row
    full = True
    while full:
        batch = list(islice(records, _PRIVATE_BATCH))
        fields = islice(zip_longest(absent, *batch), width)
        for chunk, column in zip(chunks, fields, strict=True):
            chunk.append(pa.array(column, pa.large_string()).slice(1))
        full = len(batch) == _PRIVATE_BATCH
    return [pa.chunked_array(chunk, pa.large_string()) for chunk in chunks]


def _read_records(
    reader: Any, width: int
) -> tuple[list[pa.ChunkedArray], NDArray[np.int64], NDArray[np.bool_]]:
    """Columns of text, the line that each record ends on, and which are not blank lines."""
    chunks: list[list[pa.Array]] = [[] for _ in range(width)]
    ends: list[int] = []
    kept: list[bool] = []
    absent = [None] * width  # makes every batch as wide as the header, then is cut off
    while batch := [(record, reader.line_num) for record in islice(reader, _BATCH_ROWS)]:
        ends += [line for _, line in batch]
        kept += [bool(record) for record, _ in batch]
        records = [record for record, _ in batch if record]
        fields = islice(zip_longest(absent, *records), width)
        for chunk, column in zip(chunks, fields, strict=True):
            chunk.append(pa.array(column, pa.large_string()).slice(1))
    columns = [pa.chunked_array(chunk, pa.large_string()) for chunk in chunks]
    return columns, np.array(ends, dtype=np.int64), np.array(kept, dtype=np.bool_)


def _line_end(header: str) -> str:
    return next((end for end in ("\r\n", "\n", "\r") if header.endswith(end)), "\n")


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers, floats or true/false if all fields are, else text; an empty field is null."""
    filled = pc.if_else(pc.equal(column, ""), None, column)
    # 007 is a name, not a number: as one it would lose its zeros.
    if pc.any(pc.match_substring_regex(filled, r"^[+-]?0[0-9]")).as_py():
        return filled
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            return filled.cast(kind)
        except pa.ArrowInvalid:
            continue
    return filled
