"""The demo's tables: where they are and what their bytes must be.

Sources, licence and attribution are in ``README.md`` beside this file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from retilt.exceptions import InputError

SHA256 = {
    "adult-schema.toml": "caaa43687e69e339f98c6af91b595a9c568555730c899ef56c2d10fd63614304",
    "adult-train.parquet": "e8d8fa1168d81af92c1c786db6e10d75a0a73fcf35a17743b196520422b633db",
    "aim-eps3-seed0.csv.gz": "b32f130037a7e013e8e3be129a66d5133cb051f01c93fd02fa16d10be11de03d",
}
"""Checksums of the packaged files."""


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Paths of the demo's files.

    Attributes
    ----------
    private
        UCI Adult's train split, 39,073 rows, Parquet.
    synthetic
        AIM's output for it at epsilon 3, as many rows, gzipped CSV.
    schema
        Public bounds and categories, TOML.
    """

    private: Path
    synthetic: Path
    schema: Path


@contextmanager
def demo_files() -> Iterator[DemoFiles]:
    """Give the packaged files as paths, for as long as the context lasts.

    Raises
    ------
    InputError
        If a file is missing or has been changed.

    Examples
    --------
    >>> with demo_files() as files:
    ...     files.private.name
    'adult-train.parquet'
    """
    with ExitStack() as stack:
        yield DemoFiles(
            private=stack.enter_context(_checked("adult-train.parquet")),
            synthetic=stack.enter_context(_checked("aim-eps3-seed0.csv.gz")),
            schema=stack.enter_context(_checked("adult-schema.toml")),
        )


@contextmanager
def _checked(name: str) -> Iterator[Path]:
    with resources.as_file(resources.files(__name__).joinpath(name)) as path:
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256[name]:
            raise InputError(
                f"the packaged file {name} is missing or is not the one that was released. "
                "Install retilt again."
            )
        yield path
