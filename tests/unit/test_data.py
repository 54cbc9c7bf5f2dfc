from __future__ import annotations

import hashlib
import tomllib

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from retilt import data
from retilt.exceptions import InputError


def test_tables_are_what_the_readme_says():
    with data.demo_files() as files:
        private = pq.read_table(files.private)
        synthetic = pc.read_csv(files.synthetic)
        schema = tomllib.loads(files.schema.read_text("utf-8"))
    assert private.num_rows == synthetic.num_rows == 39_073
    assert private.column_names == synthetic.column_names == list(schema["columns"])


def test_checksums_are_in_the_readme():
    with data.demo_files() as files:
        readme = (files.private.parent / "README.md").read_text("utf-8")
    for name, checksum in data.SHA256.items():
        assert f"`{name}`" in readme
        assert checksum in readme


def test_a_changed_file_is_refused(monkeypatch):
    other = hashlib.sha256(b"other").hexdigest()
    monkeypatch.setitem(data.SHA256, "adult-schema.toml", other)
    message = r"adult-schema\.toml is missing or is not the one"
    with pytest.raises(InputError, match=message), data.demo_files():
        pass


def test_equal_to_uci_files(shared):
    """The train rows, taken from UCI's own files by the README's recipe."""
    import gzip

    import numpy as np

    folder = shared / "data" / "adult"
    lines = gzip.decompress((folder / "adult.data.gz").read_bytes()).decode().splitlines()
    lines += gzip.decompress((folder / "adult.test.gz").read_bytes()).decode().splitlines()[1:]
    rows = [tuple(line.rstrip(".").split(", ")) for line in lines if line]
    train = np.random.default_rng(0).permutation(len(rows))[: int(0.8 * len(rows))]
    with data.demo_files() as files:
        columns = pq.read_table(files.private).to_pydict().values()
    assert [tuple(map(str, r)) for r in zip(*columns, strict=True)] == [rows[i] for i in train]
