"""Fuzz the readers by coverage, with atheris: ``make fuzz`` runs it after ``readers.py``.

    python coverage_guided.py [options of libFuzzer] FOLDER

The first byte says which kind of file the others are. A file that is found to reach new code is
kept in the folder and mutated further: by libFuzzer as bytes, by ``readers.py`` as values.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import tomllib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["retilt", "tomllib"]):
    import readers

KINDS = list(readers.READERS)
FILE = Path(tempfile.mkdtemp(), "file")


def one(data: bytes) -> None:
    """Read one file; whatever is no error of retilt is a finding, as is a hang (-timeout)."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    FILE.write_bytes(data[1:])
    outcome, _, _ = readers.attempt(kind, FILE)
    if outcome.startswith("failed"):
        raise AssertionError(f"{kind}: {outcome}")


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """A file made of another by libFuzzer, or by an edit of the values that it holds."""
    rng = random.Random(seed)
    if len(data) < 2 or rng.random() < 0.4:
        return bytes(atheris.Mutate(data, most))
    head, raw = data[:1], data[1:]
    toml = KINDS[head[0] % len(KINDS)] in readers.TOML
    try:
        made = readers.edit_content(rng, raw, toml=toml, edits=1)
    except (ValueError, RecursionError, tomllib.TOMLDecodeError, json.JSONDecodeError):
        made = readers.edit_bytes(rng, raw, raw)
    return (head + made)[:most]


def main() -> None:
    """Write the valid files as a beginning, and start."""
    folder = Path(sys.argv[-1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, kind in enumerate(KINDS):
        for place, raw in enumerate(readers.corpus()[kind]):
            (folder / f"valid.{kind}.{place}").write_bytes(bytes([number]) + raw)
    atheris.Setup(sys.argv, one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
