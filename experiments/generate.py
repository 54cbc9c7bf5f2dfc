"""Run the paper's generators on its data sets: 68 synthetic tables, each with a sidecar.

    python -m experiments.generate --environment build/experiments-env

UCI's four data sets by four mechanisms and Home Credit by GEM, at epsilon 1, 2, 3 and 4, each in
its own process, about three hours of one core. `--only Adult MST-eps1` takes the runs whose path
contains one of the words. A run whose table and sidecar stand in the output folder is not
repeated, so that the command resumes what was broken off; one that failed says so in its sidecar
and does not stop the others.

A table `<Data set>/<mechanism>-eps<e>.parquet` holds as many rows as the train split that its
generator saw. At epsilon 1 and 3 five times as many: the first rows are the table proper, and all
of them candidates for over-generation. Its sidecar (`.json`) says what was run, what it cost and
what its privacy is. Nothing can be seeded: the noise is the operating system's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from experiments.datasets import ADULT, BANK, HOME_CREDIT, MUSHROOM, SHOPPER, Source
from experiments.generators.protocol import GeneratorError
from experiments.generators.smartnoise import ENVIRONMENT, SmartNoise
from experiments.published import DataError

OUTPUT = Path("build") / "experiments" / "generated"
EPSILONS = (1, 3, 2, 4)
"""Those with more rows first: most questions need them."""
TIMES = MappingProxyType({1: 5, 3: 5})
"""How many times the train rows are drawn; once at other epsilons."""

EPOCHS = MappingProxyType({"Adult": 5, "Bank": 5, "Mushroom": 12, "Shopper": 12})
"""Epochs of DPCTGAN: fewer than the library's 300, for minutes a run on one core."""

GEM = MappingProxyType(
    {
        "rounds": 120,
        "batch": 500,
        "dim": 128,
        "steps": 50,
        "columns_steps": 200,
        "columns_share": 0.2,
        "far": 0.0,
        "learning_rate": 1e-3,
    }
)
"""Smaller than its paper's network, for minutes a run, with budget for single columns first."""


@dataclass(frozen=True, slots=True)
class Run:
    """One table to be made."""

    data_set: Source
    mechanism: str
    epsilon: int

    @property
    def path(self) -> Path:
        """Of the table, within the output folder."""
        return Path(self.data_set.name) / f"{self.mechanism}-eps{self.epsilon}.parquet"

    @property
    def times(self) -> int:
        """How many times the train rows are drawn."""
        return 1 if self.mechanism == "GEM" else TIMES.get(self.epsilon, 1)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What is set beside the library's defaults, to end in minutes."""
        if self.mechanism == "AIM":
            # A round costs ten seconds. One-way tables take 0.9 columns / rounds of the budget.
            columns = len(self.data_set.schema().entries)
            return {"rounds": columns + 10, "max_model_size": 4}
        if self.mechanism == "DPCTGAN":
            return {"epochs": EPOCHS[self.data_set.name]}
        if self.mechanism == "GEM":
            return dict(GEM)
        return {}


def all_runs() -> Iterator[Run]:
    """Every run: the quick mechanisms first, then the small data sets."""
    sets = (MUSHROOM, SHOPPER, BANK, ADULT)
    for mechanism in ("MST", "PATECTGAN"):
        for data_set in sets:
            yield from (Run(data_set, mechanism, e) for e in EPSILONS)
    for data_set in sets:
        for mechanism in ("AIM", "DPCTGAN"):
            yield from (Run(data_set, mechanism, e) for e in EPSILONS)
    yield from (Run(HOME_CREDIT, "GEM", e) for e in EPSILONS)


def is_done(table: Path) -> bool:
    """Whether a table stands there whole, as its sidecar says."""
    try:
        told = json.loads(table.with_suffix(".json").read_text())
        return bool(told["status"] == "done" and told["sha256"] == sha256(table))
    except (OSError, ValueError, KeyError):
        return False


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def generate(run: Run, train: pd.DataFrame, output: Path, generator: SmartNoise) -> dict[str, Any]:
    """Make one table and its sidecar, which is also returned; a failure is told there."""
    table = output / run.path
    table.parent.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "data_set": run.data_set.name,
        "mechanism": run.mechanism,
        "epsilon": run.epsilon,
        "train_rows": len(train),
    }
    try:
        rows = run.times * len(train)
        description = run.data_set.description()
        with closing(generator.fit(train, description, epsilon=float(run.epsilon))) as fitted:
            found = fitted.sample(rows)
            told |= {
                "delta": fitted.claim.delta,
                "privacy": fitted.claim.really,
                **fitted.record,
                "rows": rows,
            }
        _write(found, table)
        told |= {"sha256": sha256(table), "status": "done"}
    except (GeneratorError, ValueError) as error:
        told |= {"status": "failed", "error": str(error)}
    table.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def _write(found: pd.DataFrame, path: Path) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    found.to_parquet(part, compression="zstd", index=False)
    part.replace(path)


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def perform(
    runs: Sequence[Run], *, data: Path | None, output: Path, environment: Path, jobs: int
) -> int:
    """Make what is not there yet; how many runs failed."""
    left = [run for run in runs if not is_done(output / run.path)]
    say(f"{len(runs)} runs, {len(runs) - len(left)} done already, {len(left)} to do")
    trains = {s: s.split(data).train for s in dict.fromkeys(run.data_set for run in left)}

    def one(numbered: tuple[int, Run]) -> bool:
        number, run = numbered
        log = (output / run.path).with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        generator = SmartNoise(
            name=run.mechanism, settings=run.settings, environment=environment, log=log
        )
        say(f"{number} of {len(left)}: {run.path.with_suffix('')}")
        told = generate(run, trains[run.data_set], output, generator)
        if told["status"] == "failed":
            say(f"  failed: {told['error']} (its output: {log})")
            return False
        say(f"  {told['cpu_seconds']} CPU s, {told['peak_megabytes']} MB")
        return True

    with ThreadPoolExecutor(jobs) as pool:
        return sum(not done for done in pool.map(one, enumerate(left, 1)))


def main() -> None:
    """Make all tables, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], help="words of the runs to make")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    runs = [r for r in all_runs() if any(word in str(r.path) for word in options.only)]
    if not runs:
        parser.error(f"no run is named {' or '.join(options.only)}: try Adult, MST or MST-eps1.")
    try:
        failed = perform(
            runs,
            data=options.data,
            output=options.output,
            environment=options.environment,
            jobs=options.jobs,
        )
    except DataError as error:
        sys.exit(f"error: {error}")
    if failed:
        sys.exit(f"{failed} of {len(runs)} runs failed: their sidecars say why.")


if __name__ == "__main__":
    main()
