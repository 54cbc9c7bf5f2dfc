"""Frames in memory: pandas, polars, PyArrow; and what results are handed out in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retilt.engines.base import Indices, Redrawn
from retilt.engines.files import file_format, plain_type, without_views, write_arrow
from retilt.exceptions import InputError
from retilt.schema.reading import read

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class _Quietly:
    """Let what a cell's own code raises go, whatever it is; Ctrl-C is the user's."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and not issubclass(kind, KeyboardInterrupt)


_QUIETLY = _Quietly()
_UTF8 = ("utf-8", "replace")
_one_thread = RLock()


# --- names and results -------------------------------------------------------------------


def check_names(names: Iterable[object], what: str) -> tuple[str, ...]:
    """Return column names as text.

    Parameters
    ----------
    names
        The table's own names, text or not.
    what
        The table, for the message.

    Raises
    ------
    InputError
        If there are none, or two are equal as text; the message numbers them from 1.
    """
    texts = tuple(text_of(name) or "" for name in names)
    if not texts:
        raise InputError(f"{what} has no columns.")
    places: dict[str, int] = {}
    for number, text in enumerate(texts, start=1):
        first = places.setdefault(text, number)
        if first < number:
            # By number: without a header, a private table's names would be its first row.
            raise InputError(
                f"{what} has one column name more than once, in columns {first} and {number}: "
                "rename one of them (a CSV has names in its first line)."
            )
    return texts


def column_number(names: Sequence[str], name: str) -> int:
    """Return a column's place.

    Raises
    ------
    InputError
        If there is no such column; the message lists those that there are.
    """
    if name not in names:
        listed = ", ".join(repr(n) for n in names[:30]) + (", …" if len(names) > 30 else "")
        raise InputError(f"no column {name!r}: the table has {listed}.")
    return names.index(name)


def user_frame(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
    """Return a result table in pandas if it is installed, else PyArrow."""
    if find_spec("pandas"):
        import pandas as pd

        return pd.DataFrame(dict(columns))
    return pa.table(dict(columns))


def arrow_to_user(table: pa.Table) -> Any:
    """Return an Arrow table as pandas if it is installed, else as it is."""
    if not find_spec("pandas"):
        return table
    metadata = dict(table.schema.metadata or {})
    if b"pandas" in metadata:
        # Written by pandas: keep its dtypes, but make its index a column like any other.
        import json

        noted = json.loads(metadata[b"pandas"])
        metadata[b"pandas"] = json.dumps({**noted, "index_columns": []}).encode()
        table = table.replace_schema_metadata(metadata)
    return read(table.to_pandas, "the table", "pandas can't hold one of its columns.")


# --- text of anything --------------------------------------------------------------------


def text_of(value: object) -> str | None:
    """Return a cell as text that UTF-8 can hold, or None if it refuses to be text.

    One path for every value: an object whose ``str()`` raises must not show.
    """
    text: str | None = None
    with _QUIETLY:
        text = str(value).encode(*_UTF8).decode()
    return text


def texts_of(values: Iterable[object], text: Callable[[Any], str | None]) -> pa.Array:
    """Return (rows,) large_string of any cells, each by ``text``.

    What a cell's own code warns of would tell of the cell, so it is not shown.
    """
    # Filters of warnings are the whole process's: threads take turns.
    with _one_thread, warnings.catch_warnings(action="ignore"):
        return pa.array(map(text, values), pa.large_string())


def take_rows(table: pa.Table, indices: Indices) -> pa.Table:
    """Return rows of an Arrow table; its schema and metadata are kept."""
    # Arrow can't take from string views yet.
    return without_views(table).take(pa.array(indices)).cast(table.schema)


def extended_places(rows: int, chosen: Indices) -> Indices:
    """(rows + M,) every row's own place, and then those that the M new ones take."""
    return np.concatenate([np.arange(rows), chosen]).astype(np.int64)


def _read_column(reader: Callable[[Any], pa.ChunkedArray], name: str, column: Any) -> Any:
    return read(partial(reader, column), f"column {name!r}", "Arrow can't hold its cells.")


def _chunked(array: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


# --- PyArrow -----------------------------------------------------------------------------


class ArrowTable:
    """A PyArrow table; also what any other Arrow producer is read into.

    Parameters
    ----------
    table
        The data.
    native
        Whether rows are handed out as PyArrow tables, else in pandas if it is installed.
    what
        The table, for messages.
    """

    def __init__(self, table: pa.Table, *, native: bool = True, what: str = "the table") -> None:
        self.names = check_names(table.column_names, what)
        self.rows = table.num_rows
        self._table = table
        self._native = native

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the column's own type."""
        return self._table.schema.field(column_number(self.names, name)).type

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column as it is."""
        return self._table.column(column_number(self.names, name))

    def keeps_order(self, name: str) -> bool:
        """Whether the column is a dictionary that says it is ordered."""
        kind = self.arrow_type(name)
        return bool(pa.types.is_dictionary(kind) and kind.ordered)

    def take(self, indices: Indices) -> Any:
        """Return rows; schema and metadata are kept."""
        taken = take_rows(self._table, indices)
        return taken if self._native else arrow_to_user(taken)

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> ArrowTable:
        """Return all rows and then copies of some, with new cells in some columns."""
        table = take_rows(self._table, extended_places(self.rows, copies))
        for name, new in columns.items():
            place = column_number(self.names, name)
            field = table.schema.field(place)
            made = new.values.cast(plain_type(field.type))
            own = without_views(self._table.select([place])).column(0)
            both = pa.chunked_array([*own.chunks, made], own.type)
            cells = both.take(pa.array(extended_places(self.rows, new.rows)))
            table = table.set_column(place, field, cells.cast(field.type))
        return ArrowTable(table, native=self._native)

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
        """Return a result table in the same library."""
        return pa.table(dict(columns)) if self._native else user_frame(columns)

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows to a file."""
        write_arrow(take_rows(self._table, indices), path, force=force)


# --- polars ------------------------------------------------------------------------------


class PolarsTable:
    """A polars frame."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.names = check_names(frame.columns, "the polars frame")
        self.rows = frame.height
        self._frame = frame

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the column's type in Arrow; Python objects are text."""
        return _read_column(_polars_arrow, name, self._series(name).head(0)).type

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column in Arrow."""
        return _read_column(_polars_arrow, name, self._series(name))

    def keeps_order(self, name: str) -> bool:
        """Whether the column is an Enum."""
        import polars as pl

        return isinstance(self._series(name).dtype, pl.Enum)

    def take(self, indices: Indices) -> pl.DataFrame:
        """Return rows as a polars frame of the same schema."""
        return self._frame[np.asarray(indices, dtype=np.int64)]

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> PolarsTable:
        """Return all rows and then copies of some, with new cells in some columns."""
        import polars as pl

        frame = self.take(extended_places(self.rows, copies))
        for name, new in columns.items():
            own = self._series(name)
            if own.dtype == pl.Object:
                made = pl.Series(own.name, new.values.to_pylist(), dtype=pl.Object)
            else:
                made = pl.Series(own.name, new.values).cast(own.dtype)
            places = extended_places(self.rows, new.rows)
            frame = frame.with_columns(pl.concat([own, made])[places])
        return PolarsTable(frame)

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> pl.DataFrame:
        """Return a result table in polars."""
        import polars as pl

        return pl.DataFrame(dict(columns))

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows to a file."""
        taken = self.take(indices)
        columns = [_polars_arrow(taken.get_column(n)) for n in self.names]
        write_arrow(pa.table(columns, names=list(self.names)), path, force=force)

    def _series(self, name: str) -> pl.Series:
        return self._frame.to_series(column_number(self.names, name))


def _polars_arrow(series: pl.Series) -> pa.ChunkedArray:
    import polars as pl

    if series.dtype == pl.Object:
        return _chunked(texts_of(series.to_list(), _given))
    return _chunked(series.to_arrow())


# --- pandas ------------------------------------------------------------------------------


class PandasTable:
    """A pandas frame: object and string columns are text, the rest is typed."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.names = check_names(frame.columns, "the pandas frame")
        self.rows = len(frame)
        self._frame = frame
        self._read: dict[str, pa.ChunkedArray] = {}

    def arrow_type(self, name: str) -> pa.DataType:
        """Return the column's type in Arrow; object and string columns are text."""
        return _read_column(_pandas_arrow, name, self._series(name).iloc[:0]).type

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return (rows,) the column in Arrow, with every kind of missing value as null."""
        if name not in self._read:  # text takes a while to make
            self._read[name] = _read_column(_pandas_arrow, name, self._series(name))
        return self._read[name]

    def keeps_order(self, name: str) -> bool:
        """Whether the column is a category: its list of categories is its owner's."""
        return bool(pa.types.is_dictionary(self.arrow_type(name)))

    def take(self, indices: Indices) -> pd.DataFrame:
        """Return rows as a pandas frame of the same dtypes, with a fresh index."""
        return self._frame.iloc[indices].reset_index(drop=True)

    def extended(self, copies: Indices, columns: Mapping[str, Redrawn]) -> PandasTable:
        """Return all rows and then copies of some, with new cells in some columns."""
        import pandas as pd

        frame = self.take(extended_places(self.rows, copies))
        parts = [frame.iloc[:, i] for i in range(len(self.names))]
        for name, new in columns.items():
            own, rows = self._series(name).reset_index(drop=True), new.rows
            if isinstance(own.dtype, np.dtype) and own.dtype.kind in "biu":
                absent = np.append(np.zeros(self.rows, np.bool_), new.values.is_null())
                rows = np.where(absent[rows], copies, rows)
            both = pd.concat([own, _pandas_made(new.values, own)], ignore_index=True)
            places = extended_places(self.rows, rows)
            parts[column_number(self.names, name)] = both.iloc[places].reset_index(drop=True)
        return PandasTable(pd.concat(parts, axis=1).set_axis(frame.columns, axis=1))

    def frame(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> pd.DataFrame:
        """Return a result table in pandas."""
        import pandas as pd

        return pd.DataFrame(dict(columns))

    def write(self, path: str | Path, indices: Indices, *, force: bool = False) -> None:
        """Write rows to a file."""
        taken = self.take(indices).set_axis(list(self.names), axis=1)
        as_csv = file_format(path) == "csv"
        write_arrow(_pandas_texts(taken) if as_csv else _pandas_table(taken), path, force=force)

    def _series(self, name: str) -> pd.Series[Any]:
        return self._frame.iloc[:, column_number(self.names, name)]


def _pandas_arrow(series: pd.Series[Any]) -> pa.ChunkedArray:
    """A column by its dtype alone, never by what its cells hold."""
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _chunked(_pandas_category(series, dtype))
    if isinstance(dtype, pd.SparseDtype):
        # With its dtype: pandas would make text of objects if all of them are.
        return _pandas_arrow(pd.Series(np.asarray(series.array), dtype=dtype.subtype))
    if isinstance(dtype, np.dtype) and dtype.kind in "biufmM":
        return _chunked(pa.array(_plain_numpy(series.to_numpy()), from_pandas=True))
    typed = (pd.ArrowDtype, pd.DatetimeTZDtype, pd.BooleanDtype)
    nullable = type(dtype).__name__ in _NULLABLE_NUMBERS
    if isinstance(dtype, typed) or nullable:
        return _chunked(pa.array(series.array, from_pandas=True))
    if isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return _chunked(pa.array(series.array, pa.large_string(), from_pandas=True))
    # Cell by cell: one that refuses to be compared (Decimal's sNaN) must not stop the others.
    return _chunked(texts_of(series.astype(object).to_numpy(), partial(_present, pd.isna)))


def _given(value: object) -> str | None:
    """A cell as :func:`text_of`'s, or None if it is."""
    text: str | None = None
    with _QUIETLY:
        text = None if value is None else str(value).encode(*_UTF8).decode()
    return text


def _present(isna: Callable[[Any], Any], value: object) -> str | None:
    """A cell as text like :func:`text_of`'s, or None if it is missing."""
    text: str | None = None
    with _QUIETLY:
        text = None if isna(value) is True else str(value).encode(*_UTF8).decode()
    return text


def _pandas_made(values: pa.Array, own: pd.Series[Any]) -> pd.Series[Any]:
    """Cells that are made, in the dtype of a column, and as its own are where that is object."""
    import pandas as pd

    dtype = own.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biufmM":
        if dtype.kind in "biu":
            values = values.fill_null(False if dtype.kind == "b" else 0)
        return pd.Series(values.to_numpy(zero_copy_only=False).astype(dtype), dtype=dtype)
    cells = values.to_pylist()
    if isinstance(dtype, np.dtype):
        first = own.first_valid_index()
        kind = str if first is None else type(own[first])
        cells = [None if c is None else _as_kind(c, kind) for c in cells]
    return pd.Series(cells, dtype=dtype)


def _as_kind(text: str, kind: Any) -> Any:
    """A text as the kind of Python object that a column holds, where it can be one."""
    if issubclass(kind, (bool, np.bool_)):
        return text.strip().lower() in ("true", "1", "1.0")
    if issubclass(kind, str):
        return text
    try:
        return kind.fromisoformat(text) if hasattr(kind, "fromisoformat") else kind(text)
    except (TypeError, ValueError, ArithmeticError):
        return text


_NULLABLE_NUMBERS = frozenset(
    [f"{kind}{bits}Dtype" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)]
    + ["Float32Dtype", "Float64Dtype"]
)


def _pandas_category(series: pd.Series[Any], dtype: pd.CategoricalDtype) -> pa.DictionaryArray:
    import pandas as pd

    codes = series.cat.codes.to_numpy()
    # Without any, pandas makes up a dtype.
    kind = dtype.categories.dtype if len(dtype.categories) else object
    values = _pandas_arrow(pd.Series(dtype.categories, dtype=kind)).combine_chunks()
    indices = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=bool(dtype.ordered))


def _plain_numpy(values: NDArray[Any]) -> NDArray[Any]:
    """Native byte order and no extended precision: Arrow has neither."""
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        return values.astype(np.float64)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _pandas_texts(frame: pd.DataFrame) -> pa.Table:
    """A frame for CSV: what is not typed in Arrow as Python writes it."""
    return pa.table({n: _pandas_arrow(frame.iloc[:, i]) for i, n in enumerate(frame.columns)})


def _pandas_table(frame: pd.DataFrame) -> pa.Table:
    """A frame for a typed file: pandas' own conversion, with what it gives up on as text."""
    texts = {}
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]
        if not _has_arrow_type(column.to_frame()):
            texts[position] = name, _pandas_arrow(column)
    table = pa.Table.from_pandas(
        frame.drop(columns=[name for name, _ in texts.values()]), preserve_index=False
    )
    for position, (name, cells) in texts.items():
        table = table.add_column(position, name, cells)
    return table


def _has_arrow_type(frame: pd.DataFrame) -> bool:
    """Whether pandas can convert a frame of one column to something that files can hold."""
    try:
        kind = pa.Table.from_pandas(frame, preserve_index=False).schema.types[0]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return not (pa.types.is_dictionary(kind) and isinstance(kind.value_type, pa.BaseExtensionType))
