"""The tables that ``evaluate`` is given: opened, and doubted where a CSV file may be misread.

A quote that is never closed makes one field of all that follows: the rows behind it are gone, and
every figure is of what is left. ``measure`` may not look, since nothing may depend on what a
private file holds. Here it may.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from retilt.engines.base import Table
from retilt.engines.csvfile import CsvTable, Dialect, any_field_size
from retilt.engines.local import open_table
from retilt.exceptions import InputError
from retilt.schema.reading import read

TABLES = {
    "private": "the private table",
    "synthetic": "the synthetic table",
    "post": "the post-processed table",
    "test": "the test table",
}
"""The parameter that a table is given by, and what messages call it."""

NAMES = tuple(TABLES.values())
REAL = (0, 3)
"""Places of the tables of real rows."""

_LIKE_TABLES = ("__arrow_c_stream__", "columns", "column_names", "arrow_type")
"""What one of the types of tables has at least one of."""


def open_tables(sources: Sequence[Any]) -> tuple[list[Table], list[str]]:
    """Open the private table, the synthetic one, what became of it and, if given, the test rows.

    Returns
    -------
    list of Table
        In the order given; each has a row.
    list of str
        What the user should know of the files.

    Raises
    ------
    InputError
        One can't be opened, has no rows, or is a CSV file with a quote that is not closed; the
        message names the table, and holds nothing of its cells.
    """
    tables, notes = [], []
    for place, (source, what) in enumerate(zip(sources, NAMES, strict=False)):
        _check_source(source, what)
        table = open_table(source, private=place in REAL)
        if isinstance(table, CsvTable) and isinstance(source, (str, Path)):
            check = partial(_odd_records, Path(source), table, what)
            notes += read(check, what, "it changed while it was read.")
        if table.rows == 0:
            raise InputError(f"{what} has no rows; there is nothing to compare.")
        tables.append(table)
    return tables, notes


def _check_source(source: Any, what: str) -> None:
    """Refuse what is no table at all, before its type puzzles a reader."""
    known = isinstance(source, (str, Path)) or any(hasattr(type(source), n) for n in _LIKE_TABLES)
    if not known:
        raise InputError(
            f"{what}: got an object of type {type(source).__name__}, expected a frame (pandas, "
            "polars, PyArrow, DuckDB) or the path of a table."
        )


# --- CSV files ---------------------------------------------------------------------------


def _odd_records(path: Path, table: CsvTable, what: str) -> list[str]:
    """Refuse a CSV file whose quotes swallow lines; say how many records are not as its header."""
    with any_field_size(), _lines(path, table.dialect) as lines:
        odd = sum(
            fields not in (0, len(table.names))  # a blank line is no record
            for fields in _widths(lines, table.dialect, what)
        )
    if not odd:
        return []
    return [
        f"{what}: CSV records with a lone quote, or with more or fewer fields than the header: "
        f"{odd:,}. A field that is missing counts as null, one too many is left out."
    ]


def _widths(lines: Iterator[str], dialect: Dialect, what: str) -> Iterator[int]:
    """How many fields each record has; -1 where a quote stands alone."""
    ended: list[bool] = []
    reader = csv.reader(
        _noting(lines, dialect, ended),
        delimiter=dialect.separator,
        skipinitialspace=dialect.skip_space,
        strict=True,
    )
    while True:
        line = reader.line_num
        try:
            yield len(next(reader))
        except StopIteration:
            return
        except csv.Error:
            # Within one line a lone quote is read as a letter. One that was open at a line's end
            # has swallowed what follows.
            if ended or reader.line_num > line + 1:
                raise InputError(
                    f"{what}: a quote in the CSV file is not closed, so that the lines behind it "
                    "would be one field. Close it, and write a quote within a field twice."
                ) from None
            yield -1


def _noting(lines: Iterator[str], dialect: Dialect, ended: list[bool]) -> Iterator[str]:
    """The lines without blanks behind quotes; when there are no more, that is noted.

    ``csv`` takes such a blank for text, and a quote before it for one that is not closed.
    """
    behind = re.compile(f'"[ \t]+(?=[{re.escape(dialect.separator)}\r\n]|$)')
    for line in lines:
        yield behind.sub('"', line)
    ended.append(True)


@contextmanager
def _lines(path: Path, dialect: Dialect) -> Iterator[Iterator[str]]:
    """A file's lines with their ends, read as they are needed."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as content:
        content.read(len(dialect.mark))
        with io.TextIOWrapper(
            content, encoding=dialect.encoding, errors="replace", newline=""
        ) as text:
            yield iter(text)
