"""Long tables go through memory a piece at a time, with the same outcome as in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from retilt.engines import parquetfile
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import InputError
from retilt.measures import base
from retilt.measures.base import Feature
from retilt.schema.columns import Categorical, Numeric
from retilt.tables import encode

ROWS = 23


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of other types below ``key=value`` folders, the second with a column less."""
    found = tmp_path / "parts"
    first = pa.table(
        {
            "number": pa.array([None, *range(9)], pa.int32()),
            "text": ["a", "b", None, "d", "e"] * 2,
            "only": [0.5] * 10,
        }
    )
    second = pa.table({"text": pa.array(["ä", "z"] * 7)[1:], "number": np.linspace(0, 1, 13)})
    for key, table in (("x", first), ("y", second)):
        (found / f"key={key}").mkdir(parents=True)
        pq.write_table(table, found / f"key={key}" / "data.parquet", row_group_size=4)
    return found


def _in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetfile, "_KEPT", 3)
    monkeypatch.setattr(parquetfile, "_PIECE", 5)


def _read_parquet(path: Path) -> pa.Table:
    return pq.read_table(path)


def _read_feather(path: Path) -> pa.Table:
    return feather.read_table(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("out.parquet", _read_parquet),
        ("out.arrow", _read_feather),
        ("out.csv", Path.read_bytes),
        ("out.tsv.gz", Path.read_bytes),
    ],
)
@pytest.mark.parametrize(
    "indices",
    [
        np.arange(ROWS),
        np.array([0, 0, 3, 9, 10, 10, 22]),
        np.array([], dtype=np.int64),
        np.array([5, 2, 22]),
    ],
    ids=["all", "some", "none", "shuffled"],
)
def test_rows_are_copied_in_pieces(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    read: Callable[[Path], object],
    indices: np.ndarray,
) -> None:
    open_table(folder).write(folder.parent / f"whole.{name}", indices)
    _in_pieces(monkeypatch)
    table = open_table(folder)
    table.write(folder.parent / name, indices)
    assert read(folder.parent / name) == read(folder.parent / f"whole.{name}")
    kept = table._read  # type: ignore[attr-defined]
    if np.array_equal(indices, np.sort(indices)):
        assert set(kept) == {"key"}


def test_a_table_with_dictionaries_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = pa.array(["b", "a", "b", "c"] * 3).dictionary_encode()
    pq.write_table(pa.table({"c": cells}), tmp_path / "in.parquet", row_group_size=5)
    _in_pieces(monkeypatch)
    open_table(tmp_path / "in.parquet").write(tmp_path / "out.arrow", np.arange(12))
    assert feather.read_table(tmp_path / "out.arrow")["c"].to_pylist() == cells.to_pylist()


@pytest.mark.parametrize("piece", [1, 7, 22, 23, 24])
def test_columns_are_encoded_in_pieces(
    folder: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    table: Table = open_table(folder)
    features = [
        Feature("number", Numeric(0, 5), "grid"),
        Feature("number", Numeric(0, 5), "cells", (1.0, 2.5)),
        Feature("text", Categorical(("a", "z", "b")), "cells"),
        Feature("key", Categorical(("x", "y")), "grid"),
    ]
    whole = encode(table, features)
    monkeypatch.setattr(base, "_PIECE", piece)
    for feature, codes in encode(table, features).items():
        assert codes.dtype == np.int32
        np.testing.assert_array_equal(codes, whole[feature])


def test_a_file_that_breaks_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"c": np.random.default_rng(0).random(5000)}), path, row_group_size=500)
    _in_pieces(monkeypatch)
    table = open_table(path)
    content = path.read_bytes()
    where = len(content) // 3
    path.write_bytes(content[:where] + bytes(4000) + content[where + 4000 :])
    with pytest.raises(InputError, match=r"in\.parquet.*one of its files is broken"):
        table.write(tmp_path / "out.csv", np.arange(5000))
    assert [p.name for p in tmp_path.iterdir()] == ["in.parquet"]
