"""Time and memory of `retilt fit` on long synthetic tables, from Parquet to Parquet.

    python -m benchmarks.rows [ROWS ...]

For each number of rows (default 10**5, 10**6 and 10**7) it writes a table of ten correlated
columns in pieces, fits the noisy correlations of 20,000 private rows at epsilon 1 to it in a
process of its own, and prints JSON: ``rows``, ``cpu_seconds`` (user and system time of the whole
command, start included), ``peak_mib`` (highest resident memory of the process). Needs about 100
bytes of disk for each row and each of the two tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import retilt as rt
from retilt.testing import insecure_measure

_PIECE = 500_000
_PRIVATE = 20_000
_NAMES = [f"c{j}" for j in range(10)]


def write_table(path: Path, rows: int, correlation: float, seed: int) -> None:
    """Ten columns from 0 to 100, each pair with the same correlation."""
    rng = np.random.default_rng(seed)
    schema = pa.schema([(name, pa.float64()) for name in _NAMES])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, _PIECE):
            size = min(_PIECE, rows - start)
            common = rng.normal(size=(size, 1)) * correlation**0.5
            own = rng.normal(size=(size, len(_NAMES))) * (1 - correlation) ** 0.5
            values = np.clip(50 + 15 * (common + own), 0, 100)
            writer.write_table(pa.table(dict(zip(_NAMES, values.T, strict=True)), schema=schema))


def fitted(folder: Path, rows: int, answers: Path) -> dict[str, float]:
    """The command's time and memory on a table of so many rows."""
    synthetic, out = folder / "synthetic.parquet", folder / "out.parquet"
    write_table(synthetic, rows, 0.3, seed=1)
    command = ["fit", str(synthetic), str(answers), "--out", str(out), "--force", "--quiet"]
    child = subprocess.Popen([sys.executable, "-m", "retilt", *command], stdout=sys.stderr)
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"retilt fit ended with {os.waitstatus_to_exitcode(status)}.")
    return {
        "rows": rows,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mib": round(_mib(used)),
    }


def _mib(used: resource.struct_rusage) -> float:
    # Linux counts in KiB, macOS in bytes.
    return used.ru_maxrss / 2**20 if sys.platform == "darwin" else used.ru_maxrss / 2**10


def main() -> None:
    """Measure each size and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows")
    parser.add_argument("rows", nargs="*", type=float, default=[1e5, 1e6, 1e7])
    sizes = [int(rows) for rows in parser.parse_args().rows]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_table(folder / "private.parquet", _PRIVATE, 0.5, seed=0)
        schema = {name: rt.Numeric(0, 100) for name in _NAMES}
        measure = rt.correlation(_NAMES)
        like = folder / "like.parquet"
        write_table(like, _PRIVATE, 0.3, seed=1)
        plan = rt.plan(like, measure, epsilon=1, rows=_PRIVATE, schema=schema)
        answers = folder / "answers.json"
        private = folder / "private.parquet"
        insecure_measure(private, plan, rng=np.random.default_rng(0)).save(answers)
        print(json.dumps([fitted(folder, rows, answers) for rows in sizes], indent=1))


if __name__ == "__main__":
    main()
