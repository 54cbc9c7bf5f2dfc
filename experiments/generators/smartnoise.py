"""AIM, MST, DPCTGAN, PATECTGAN and GEM through a process in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.description import Description, Listed
from experiments.generators.protocol import Claim, GeneratorError

WORKER = Path(__file__).with_name("worker.py")
ENVIRONMENT = Path(__file__).resolve().parents[2] / "build" / "experiments-env"

THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""One thread for the libraries that would take all cores."""

_COUNTS = (
    "Gaussian noise and an exponential mechanism in floating point, calibrated to one row added or "
    "removed, though the number of rows is used as it is: with one row replaced, the unit in which "
    "that number is public, the same noise is worth up to {factor} of the rho. Categories and bins "
    "are public ones, not read off the rows."
)
_GAN = (
    "Test input, not evidence about privacy: conditional columns are drawn from the exact class "
    "frequencies{more} Bounds and categories are public ones."
)
PRIVACY: Mapping[str, str] = {
    "GEM": (
        "Zero-concentrated differential privacy for one row replaced, by OpenDP's discrete "
        "Gaussian noise and noisy maximum on whole numbers. Bins and categories are public ones; "
        "running time is not covered."
    ),
    "MST": _COUNTS.format(factor="8/3"),
    "AIM": _COUNTS.format(factor="11/5"),
    "DPCTGAN": _GAN.format(
        more=", and batches follow them instead of the random sampling that the accountant assumes."
    ),
    "PATECTGAN": _GAN.format(
        more=", rows are read again when sampling, all teachers and the student are one network, "
        "so that no vote is independent of any row, and the last step overshoots epsilon."
    ),
}
"""What each mechanism's epsilon is really worth."""

BINNED = frozenset({"MST", "AIM", "GEM"})
"""Those that know tables of counts only: numbers are cut into bins for them."""


@dataclass(frozen=True, slots=True)
class SmartNoise:
    """One mechanism of smartnoise-synth.

    Parameters
    ----------
    name
        AIM, MST, DPCTGAN or PATECTGAN.
    settings
        Arguments of the library's class beside its defaults.
    environment
        The folder of a virtual environment made from ``requirements.txt`` beside this module.
    worker
        The script that runs in it.
    log
        Where what the libraries print goes; nowhere by default.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Path = ENVIRONMENT
    worker: Path = WORKER
    log: Path | None = None

    def fit(self, table: pd.DataFrame, description: Description, *, epsilon: float) -> Process:
        """Start the process and fit.

        Raises
        ------
        GeneratorError
            If there is no environment, or the mechanism fails.
        """
        binned = self.name in BINNED
        encoded = description.codes(table) if binned else description.scaled(table)
        levels = {
            n: c.levels if binned or isinstance(c, Listed) else None
            for n, c in description.columns.items()
        }
        process = Process(self, description)
        try:
            process.fit(encoded, levels, epsilon)
        except BaseException:
            process.close()
            raise
        return process


class Process:
    """A fitted mechanism: it lives as long as its process."""

    def __init__(self, generator: SmartNoise, description: Description) -> None:
        python = generator.environment / "bin" / "python"
        if not python.exists():
            raise GeneratorError(
                f"no environment at {generator.environment}: `make experiments-env` makes one, "
                "--environment names another."
            )
        self._generator = generator
        self._description = description
        self._open = ExitStack()
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="retilt-generator-"))
        self._table = Path(folder) / "table.parquet"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [str(python), "-I", str(generator.worker)],
            env=kept | THREADS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._open.enter_context((generator.log or Path(os.devnull)).open("w")),
            text=True,
        )
        self._record: dict[str, Any] = {}
        self._claim: Claim | None = None

    @property
    def claim(self) -> Claim:
        """The library's epsilon and delta, and what they are worth."""
        assert self._claim is not None
        return self._claim

    @property
    def record(self) -> Mapping[str, Any]:
        """Settings, versions, seconds and memory of the fit and of what was drawn."""
        return self._record

    def fit(self, encoded: pd.DataFrame, levels: Mapping[str, int | None], epsilon: float) -> None:
        """Hand over the encoded rows and wait for the fit."""
        name = self._generator.name
        encoded.to_parquet(self._table, index=False)
        told = self._ask(
            {
                "do": "fit",
                "mechanism": name,
                "table": str(self._table),
                "levels": levels,
                "epsilon": epsilon,
                "settings": dict(self._generator.settings),
            }
        )
        self._claim = Claim(epsilon, told.pop("delta"), PRIVACY.get(name, "unknown"))
        self._record = {"settings": dict(self._generator.settings)} | told

    def sample(self, rows: int) -> pd.DataFrame:
        """So many rows, decoded."""
        told = self._ask({"do": "sample", "rows": rows, "table": str(self._table)})
        for cost in ("wall_seconds", "cpu_seconds"):
            self._record[f"sampling_{cost}"] = told[cost]
        self._record["peak_megabytes"] = told["peak_megabytes"]
        found = pd.read_parquet(self._table)
        if self._generator.name in BINNED:
            return self._description.values_of(found)
        return self._description.unscaled(found)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What it did not read any more is no matter.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._open.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request's answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise GeneratorError(f"{self._generator.name}: its process ended with {code}.")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise GeneratorError(f"{self._generator.name} failed: {answer['failed']}.")
        done: dict[str, Any] = answer["done"]
        return done
