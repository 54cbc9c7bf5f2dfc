"""At most so many rows of each person: which rows of a table are used under a unit of persons.

Which of a person's rows are used depends on that person's rows alone and never on their
position, so adding, removing or replacing one person changes no other person's part:

* Persons are told apart by the exact text of their cell, never by a hash: of two persons taken
  for one, each could change which rows of the other are used.
* Within a person rows are ordered by the SHA-256 of the key, the row's content, its number among
  the person's rows of the same content (0, 1, ...) and the person, joined by commas; its first
  16 hexadecimal digits count. Rows of equal hash are ordered by their content. The first
  ``max_rows`` are used.
* The content of a row is its encoded integers. Rows of equal content are interchangeable, and
  so are their numbers: the sums are a function of the table as a multiset. Order, chunks and
  engine don't matter.

The number makes a person's rows a fair sample: without it, a content that stands in 99 of 100
rows would be as likely to come first as the one in the other row.

The key is the plan's (its hash): the same plan on the same table uses the same rows, and
another plan uses others. Privacy needs no secret here. The bound holds for every key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.engines.base import Table
from retilt.exceptions import ColumnTypeError
from retilt.measures.base import IntArray
from retilt.schema.encode import is_text, plain_cells, shown_type, value_type
from retilt.tables import require_columns

_BYTES = pa.large_binary()  # text may be any bytes, and hashing needs bytes
_INDEXED = 2**31 - 1
"""Rows up to which Arrow's 32-bit numbers of different texts are enough."""

_SLICE = 2**18
"""Rows hashed at a time, so that their text does not fill the memory."""


def check_person(table: Table, person: str, what: str) -> None:
    """Refuse a private table whose column of persons is missing or can't tell them apart.

    Raises
    ------
    WorkloadError, ColumnTypeError
        By the column's name and declared type alone.
    """
    require_columns(table, [person], what, private=True)
    kind = table.arrow_type(person)
    if not (is_text(kind) or pa.types.is_integer(value_type(kind))):
        raise ColumnTypeError(
            f"column {person!r}: its type is {shown_type(kind)}, but persons are told apart by "
            "text or whole numbers. Cast the column, or name another."
        )


def chosen_rows(
    persons: pa.ChunkedArray, contents: Sequence[IntArray], *, max_rows: int, key: str
) -> NDArray[np.intp]:
    """Numbers of the rows that are used, ascending.

    Parameters
    ----------
    persons
        (rows,) text or integers, or a dictionary of these. Where it is null or empty the row
        is left out.
    contents
        F arrays (rows,) int32: the encoded columns.
    max_rows
        Most rows of one person, at least 1.
    key
        Of the hash.

    Examples
    --------
    >>> who = pa.chunked_array([["a", "b", None, "a"]])
    >>> len(chosen_rows(who, [np.zeros(4, np.int32)], max_rows=1, key="k"))
    2
    """
    # In one piece: taking rows from many chunks is slow.
    texts = plain_cells(persons).cast(pa.large_string()).cast(_BYTES).combine_chunks()
    named = pc.fill_null(pc.not_equal(texts, pa.scalar(b"", _BYTES)), False)
    there = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    texts = texts.take(pa.array(there))
    # By the number of all rows, as below.
    numbers = (_numbers if len(persons) <= _INDEXED else _sorted_numbers)(texts)
    many = np.bincount(numbers)[numbers] > max_rows
    first = _first(
        numbers[many],
        [c[there[many]] for c in contents],
        texts.take(pa.array(np.flatnonzero(many))),
        max_rows=max_rows,
        key=key,
        # By the number of all rows: how many belong to large persons must not show.
        slices=1 + len(persons) // _SLICE,
    )
    return np.sort(np.concatenate([there[~many], there[many][first]]))


def _numbers(texts: pa.Array) -> NDArray[np.intp]:
    """(rows,) a number for each text, the same for equal ones."""
    return np.asarray(pc.index_in(texts, pc.unique(texts)).to_numpy(), np.intp)


def _sorted_numbers(texts: pa.Array) -> NDArray[np.intp]:
    """As :func:`_numbers`, for any number of texts, but slower."""
    order = pc.sort_indices(texts)
    ordered = texts.take(order)
    new = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(texts), np.intp)
    numbers[order.to_numpy()[1:]] = np.cumsum(new)
    return numbers


def _first(
    numbers: NDArray[np.intp],
    contents: Sequence[IntArray],
    texts: pa.Array,
    *,
    max_rows: int,
    key: str,
    slices: int,
) -> NDArray[np.intp]:
    """Places of each person's first rows, by (hash, content)."""
    ranks = _ranks(contents)
    columns: list[NDArray[Any]] = [*contents, _copies(numbers, ranks)]
    hashes = np.concatenate(
        [
            _hashes([c[part] for c in columns], texts.take(pa.array(part)), key)
            for part in np.array_split(np.arange(len(numbers)), slices)
        ]
    )
    order = np.lexsort((ranks, hashes, numbers))
    chosen: NDArray[np.intp] = order[_places(numbers[order]) < max_rows]
    return chosen


def _ranks(contents: Sequence[IntArray]) -> NDArray[np.intp]:
    """(rows,) place of each row's content among the different ones, in numerical order."""
    # Big-endian and moved above zero, so that comparing bytes compares numbers.
    rows = (np.stack(contents, axis=1).astype(np.int32).view(np.uint32) ^ 2**31).astype(">u4")
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 4)))
    _, ranks = np.unique(whole.ravel(), return_inverse=True)
    return ranks


def _copies(numbers: NDArray[np.intp], ranks: NDArray[np.intp]) -> NDArray[np.intp]:
    """(rows,) each row's number among the person's rows of the same content."""
    order = np.lexsort((ranks, numbers))
    persons, contents = numbers[order], ranks[order]
    # One number for each pair of a person and a content. A product of the two could overflow.
    new = (persons[1:] != persons[:-1]) | (contents[1:] != contents[:-1])
    pairs = np.zeros(len(order), np.intp)
    pairs[1:] = np.cumsum(new)
    copies = np.empty(len(order), np.intp)
    copies[order] = _places(pairs)
    return copies


def _places(ordered: NDArray[np.intp]) -> NDArray[np.intp]:
    """(rows,) each row's place among those of the same number, which stand together.

    >>> _places(np.array([3, 3, 5, 5, 5, 9])).tolist()
    [0, 1, 0, 1, 2, 0]
    """
    places: NDArray[np.intp] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return places


def _hashes(columns: Sequence[NDArray[Any]], texts: pa.Array, key: str) -> NDArray[np.uint64]:
    """(rows,) the first 8 bytes of SHA-256 of ``key,column,...,column,person``.

    The form is what ``sha256(concat_ws(',', ...))`` gives in databases.
    """
    fields = [pa.array(c).cast(pa.large_string()).cast(_BYTES) for c in columns]
    first, comma = pa.scalar(key.encode(), _BYTES), pa.scalar(b",", _BYTES)
    lines = pc.binary_join_element_wise(first, *fields, texts, comma)
    # Both maps run in C: no line of ours runs once for each row.
    digests = b"".join(map(methodcaller("digest"), map(hashlib.sha256, lines.to_pylist())))
    words: NDArray[np.uint64] = np.frombuffer(digests, ">u8")
    return words[::4].astype(np.uint64)
