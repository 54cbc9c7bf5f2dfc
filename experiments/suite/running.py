"""Jobs, each kept by a hash of what it reads: a run that is killed goes on where it stopped."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.generate import say
from experiments.suite.inputs import Case
from experiments.suite.methods import FIXED, METHODS, Outcome, applies, features
from experiments.suite.scoring import Scores, score

VERSION = 4
"""To be raised with every change of what a job does: then nothing that was kept is taken."""

_ERRORS = {"": "correlation_error", "_all": "correlation_error_all"}
"""Of the aligned columns, and of all: what the names of utility improvements end with."""

_COMPARED = {"": "none", "_same_file": "same-file"}

HEADS = ("dataset", "mechanism", "epsilon", "repetition", "method", "metric", "value")


@dataclass(frozen=True, eq=False)
class Job:
    """Some methods on one case in one repetition; 0 for those that have none."""

    case: Case
    repetition: int
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of what is kept."""
        return f"{self.case.name}-{self.repetition}-{'+'.join(self.methods)}"

    @property
    def key(self) -> str:
        """Different where anything that is read is."""
        told = json.dumps([VERSION, self.name, self.case.digest])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def run(self) -> dict[str, Any]:
        """The figures by method."""
        columns = features(self.case)
        outcomes = {m: METHODS[m](self.case, self.repetition) for m in self.methods}
        scores = score(self.case, columns, [o.table for o in outcomes.values()])
        return {
            method: {**found, **_of(outcome)}
            for (method, outcome), found in zip(outcomes.items(), scores, strict=True)
        } | {"columns": columns}


def _of(outcome: Outcome) -> dict[str, Any]:
    return {"ess": outcome.ess, "seconds": outcome.seconds, "status": outcome.status}


def jobs(cases: Iterable[Case], repetitions: int, methods: Sequence[str]) -> Iterator[Job]:
    """All of them: what is fixed first, then the repetitions, two methods at a time."""
    for case in cases:
        wanted = [m for m in methods if applies(m, case)]
        fixed = tuple(m for m in wanted if m in FIXED)
        drawn = [m for m in wanted if m not in FIXED]
        if fixed:
            yield Job(case, 0, fixed)
        for repetition in range(1, repetitions + 1):
            for start in range(0, len(drawn), 2):
                yield Job(case, repetition, tuple(drawn[start : start + 2]))


def perform(wanted: Sequence[Job], kept: Path) -> tuple[list[tuple[Job, dict[str, Any]]], int]:
    """Their results, those that are kept read again; and how many failed."""
    kept.mkdir(parents=True, exist_ok=True)
    done, failed = [], 0
    left = sum(not (kept / f"{job.key}.json").exists() for job in wanted)
    say(f"{len(wanted)} jobs, {len(wanted) - left} done already, {left} to do")
    for job in wanted:
        path = kept / f"{job.key}.json"
        if not path.exists():
            began = time.monotonic()
            try:
                found = job.run()
            except Exception as error:  # one cell must not cost the others
                failed += 1
                say(f"{job.name} failed: {type(error).__name__}: {error}")
                continue
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"job": job.name, "results": found}))
            part.replace(path)
            say(f"{job.name}: {time.monotonic() - began:.1f} s")
        done.append((job, json.loads(path.read_text())["results"]))
    return done, failed


def tidy(done: Sequence[tuple[Job, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Rows of :data:`HEADS`, with the utility improvements over both tables to compare with."""
    rows: list[tuple[Any, ...]] = []
    before = {
        (job.case.name, method): results[method]
        for job, results in done
        for method in set(job.methods) & {"none", "same-file"}
    }
    for job, results in done:
        case = job.case
        place = (case.data_set.name, case.mechanism, case.epsilon, job.repetition)
        for method in job.methods:
            metrics: Scores = {k: v for k, v in results[method].items() if k != "status"}
            gains = {
                f"utility_improvement{name}{suffix}": _improvement(
                    metrics[error], before.get((case.name, other), {}).get(error)
                )
                for name, error in _ERRORS.items()
                for suffix, other in _COMPARED.items()
                if other != "none" or case.whole is not None
            }
            for metric, value in {**gains, **metrics}.items():
                if value is not None:
                    rows.append((*place, method, metric, value))
    return rows


def _improvement(error: float | None, before: float | None) -> float | None:
    return None if error is None or not before else 1 - error / before


def write(rows: Sequence[tuple[Any, ...]], path: Path) -> None:
    """As CSV, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADS)
        writer.writerows((*r[:-1], f"{r[-1]:.6g}") for r in rows)
    part.replace(path)
