"""Output files: whole or not at all."""

from __future__ import annotations

import gzip
import os
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from retilt._output import write_text
from retilt.engines.files import (
    atomic_output,
    file_format,
    refuse_existing,
    refuse_table_path,
    write_arrow,
    write_bytes,
)
from retilt.exceptions import InputError, OutputExistsError


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_output(path) as draft:
        assert draft.parent == tmp_path
        draft.write_text("x")
        assert not path.exists()
    assert path.read_text() == "x"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with atomic_output(path, force=True) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_files_are_safe(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OutputExistsError, match="--force"):
        write_text(path, "new")
    with pytest.raises(OutputExistsError):
        refuse_existing(path, force=False)
    write_text(path, "new\n", force=True)
    assert path.read_bytes() == b"new\n"


def test_a_file_that_appears_meanwhile_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def write() -> None:
        with atomic_output(path) as draft:
            draft.write_text("ours")
            path.write_text("theirs")

    with pytest.raises(OutputExistsError):
        write()
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        refuse_existing(tmp_path / "no" / "a.txt", force=True)
    with pytest.raises(InputError, match="is a folder"):
        refuse_existing(tmp_path, force=True)
    with pytest.raises(InputError, match="regular file"):
        refuse_existing(os.devnull, force=True)


def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new", force=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_long_names(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 250), "x")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "csv"),
        ("a.b.TSV.GZ", "csv"),
        ("a.txt", "csv"),
        ("a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("a.feather", "arrow"),
        ("a.gz", None),
        ("a.parquet.gz", None),
        ("a.xlsx", None),
        ("csv", None),
    ],
)
def test_formats_by_name(name: str, kind: str | None, tmp_path: Path) -> None:
    assert file_format(name) == kind
    if kind is None:
        with pytest.raises(InputError, match=r"must end in one of \.csv"):
            refuse_table_path(tmp_path / name, force=False)


def test_compressed_bytes_are_reproducible(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_bytes(tmp_path / name, b"x\n1\n")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"x\n1\n"


TABLE = pa.table(
    {
        "a": [1, None],
        "A": [0.1, 1e300],
        "s": ['q"\n,', ""],
        "d": pa.array(["x", None]).dictionary_encode(),
        "t": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
        "n": [Decimal("1.10"), None],
        "l": pa.array([1, 2], pa.duration("s")),
    },
    metadata={"made": "by us"},
)


def test_parquet_and_arrow_keep_everything(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.feather"):
        write_arrow(TABLE, tmp_path / name)
    read = [
        pq.read_table(tmp_path / "a.parquet"),
        pa.ipc.open_file(pa.OSFile(str(tmp_path / "a.arrow"))).read_all(),
        pyarrow.feather.read_table(tmp_path / "a.feather"),
    ]
    for table in read:
        assert table.schema.equals(TABLE.schema, check_metadata=True)
        assert table.equals(TABLE)
    assert (
        pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    )


def test_csv_of_any_type(tmp_path: Path) -> None:
    write_arrow(TABLE, tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_bytes().decode().split("\n")
    assert lines[0] == "a,A,s,d,t,n,l"
    assert lines[1].startswith('1,0.1,"q""')
    assert lines[-2].startswith(',1e+300,"",,1970-01-01')
    write_arrow(TABLE, tmp_path / "a.tsv.gz")
    packed = gzip.decompress((tmp_path / "a.tsv.gz").read_bytes()).decode()
    assert packed.startswith("a\tA\ts")
    write_arrow(TABLE.slice(0, 0), tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text() == "a,A,s,d,t,n,l\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_format_cannot_hold(tmp_path: Path) -> None:
    strange = pa.table(
        {
            "u": pa.UnionArray.from_dense(
                pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
            )
        }
    )
    with pytest.raises(InputError, match="can't hold"):
        write_arrow(strange, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_duckdb_is_not_left_open(tmp_path: Path) -> None:
    write_arrow(TABLE, tmp_path / "a.csv")
    with duckdb.connect() as connection:
        assert connection.read_csv(str(tmp_path / "a.csv")).shape[0] == 2


def test_nulls_of_a_single_column_stay_rows(tmp_path: Path) -> None:
    write_arrow(pa.table({"x": [1, None, 3]}), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == 'x\n1\n""\n3\n'
