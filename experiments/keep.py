"""Put the generators' tables into the repository, so that nobody needs to make them again.

    python -m experiments.keep build/experiments/generated [--to experiments/data]

Of each table as many rows as its generator saw (the rest of what it drew is for over-generation,
and is left where it is), as compactly as Parquet has it, beside its sidecar. Home Credit's are left
out: its table is not openly licensed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq

from experiments.datasets import UCI
from experiments.generate import is_done, sha256
from experiments.suite.inputs import GENERATED


def keep(table: Path, to: Path) -> int:
    """Copy one table's first rows and its sidecar; how many bytes it takes."""
    told = json.loads(table.with_suffix(".json").read_text())
    rows = pq.read_table(table).slice(0, told["train_rows"])
    to.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.replace_schema_metadata(None), to, compression="zstd", compression_level=19)
    told |= {
        "rows": rows.num_rows,
        "drawn": told["rows"],
        "sha256": sha256(to),
    }
    to.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    return to.stat().st_size


def main() -> None:
    """Copy what is done and not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("generated", type=Path)
    parser.add_argument("--to", type=Path, default=GENERATED)
    options = parser.parse_args()
    for data_set in UCI:
        for table in sorted((options.generated / data_set.name).glob("*.parquet")):
            to = options.to / data_set.name / table.name
            if is_done(table) and not is_done(to):
                print(f"{data_set.name}/{table.name}: {keep(table, to):,} bytes")


if __name__ == "__main__":
    main()
