"""Each peer's own environment: built where it is missing, and run in.

The peers' pins clash with each other's and with retilt's, so none of them is installed beside it.
An environment is a folder under ``build/bench``; what it was made from is written into it, so that
a change of the pins builds it again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import Cost
from benchmarks.foreign import Found

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "bench"
THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""One thread for the libraries that would take all cores. CPU seconds count every thread's."""


class PeerError(Exception):
    """A peer has no environment here, or did not come to its end in it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer needs.

    Attributes
    ----------
    requirements
        For pip, the peer itself pinned: a figure belongs to a version.
    python
        Least version that it runs on.
    """

    requirements: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


PEERS: dict[str, Peer] = {
    "ebal": Peer(("ebal==1.0.0",)),
    "empirical-calibration": Peer(("empirical-calibration==0.12",)),
    "weightipy": Peer(("weightipy==0.4.2",)),
    "rimpy": Peer(("rimpy==0.5.0", "numpy", "polars"), python=(3, 12)),
    "mbi": Peer(("mbi==2.0.0",)),
    "clarabel": Peer(("clarabel==0.11.1", "scipy")),
}
"""By name, which is also that of the solver."""


def environment(name: str, folder: Path = FOLDER) -> Path:
    """The interpreter of a peer's environment, which is built if it is not there.

    Raises
    ------
    PeerError
        If it can't be built.
    """
    peer, home = PEERS[name], folder / name
    python, marker = home / "bin" / "python", home / ".made-from"
    base = _interpreter(name, peer)
    recipe = "\n".join([base, *peer.requirements])
    if marker.exists() and marker.read_text() == recipe:
        return python
    print(f"{name}: building its environment", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    _call(name, [base, "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _call(name, [*pip, *peer.requirements])
    marker.write_text(recipe)
    return python


def _interpreter(name: str, peer: Peer) -> str:
    """A Python that is new enough: this one, one on the path, or one that pyenv keeps."""
    if sys.version_info[:2] >= peer.python:
        return sys.executable
    for minor in range(14, peer.python[1] - 1, -1):
        named = shutil.which(f"python3.{minor}")
        kept = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
        for found in filter(None, [named, *map(str, kept)]):
            if _runs(found):
                return found
    least = ".".join(map(str, peer.python))
    raise PeerError(f"{name} needs Python {least} or newer, and there is none on the path.")


def _runs(python: str) -> bool:
    """Whether it starts and can make environments; pyenv's names on the path may be empty."""
    done = subprocess.run(
        [python, "-c", "import ensurepip, venv"], capture_output=True, check=False
    )
    return done.returncode == 0


def _call(name: str, command: list[str]) -> None:
    done = subprocess.run(command, env=_variables(), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no word of why"]
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise PeerError(f"{name} can't be installed: {said}")


def _variables() -> dict[str, str]:
    """Those of this process, less what would lead a peer to the packages of this one."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return kept | THREADS


def run_there(
    name: str, python: Path, small: Mapping[str, NDArray[Any]], task: Mapping[str, NDArray[Any]]
) -> Cost[Found]:
    """A peer's answer to a task, with what it cost, after a call on a small one.

    Raises
    ------
    PeerError
        If it fails, whatever it says.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{file}.npz") for file in ("small", "task", "answer")]
        np.savez(paths[0], **small)
        np.savez(paths[1], **task)
        done = subprocess.run(
            [str(python), "-m", "benchmarks.foreign", name, *paths],
            cwd=ROOT,
            env=_variables(),
            stdout=sys.stderr,  # what a peer prints must not get between the JSON
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            raise PeerError(f"{name} failed: {said[-1]}")
        with np.load(paths[2]) as answer:
            told = json.loads(str(answer["told"]))
            multipliers = answer.get("multipliers")
            found = Found(answer["weights"], multipliers, told.pop("note"))
    return Cost(found, **told)
