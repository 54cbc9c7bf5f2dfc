"""What a line of the paper's tables is made from: real rows, and a generator's at two budgets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from experiments.datasets import HOME_CREDIT, UCI
from experiments.published import DATA, Source, Split
from experiments.uci import load_synthetic
from retilt.schema.formats import Declared

MECHANISMS = ("AIM", "MST", "DPCTGAN", "PATECTGAN")
SOURCES: tuple[tuple[Source, tuple[str, ...]], ...] = (
    *((data_set, MECHANISMS) for data_set in UCI),
    (HOME_CREDIT, ("GEM",)),
)
"""Data sets with the mechanisms that the paper's tables have for them."""

EPSILONS = (2, 4)
"""Budgets in total; post-processing has 1 of it."""

GENERATED = Path(__file__).resolve().parents[1] / "data"
"""Tables that the generators made once, part of the repository."""


@dataclass(frozen=True, eq=False)
class Case:
    """One data set, mechanism and total budget.

    Attributes
    ----------
    data_set, mechanism, epsilon
        As the paper's tables print them.
    part
        The generator's table at ``epsilon - 1``, which is post-processed.
    whole
        Its table at ``epsilon``, which the paper compares with; ``None`` where there is none.
    split
        The real rows.
    """

    data_set: Source
    mechanism: str
    epsilon: int
    part: Path
    whole: Path | None
    split: Split = field(repr=False)

    @property
    def name(self) -> str:
        """``Adult-MST-2``."""
        return f"{self.data_set.name}-{self.mechanism}-{self.epsilon}"

    @property
    def schema(self) -> Declared:
        """Public bounds and categories."""
        return self.data_set.schema()

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """All rows at ``epsilon - 1``: where the generator was asked for more, more than real."""
        return read_table(self.part)

    @property
    def synthetic(self) -> pd.DataFrame:
        """As many of them as there are real rows."""
        return self.candidates.head(len(self.split.train))

    @cached_property
    def whole_table(self) -> pd.DataFrame | None:
        """The generator's table with all of the budget."""
        if self.whole is None:
            return None
        return read_table(self.whole).head(len(self.split.train))

    @cached_property
    def digest(self) -> str:
        """Of everything that is read: the same for the same inputs."""
        files = [self.part] if self.whole is None else [self.part, self.whole]
        found = hashlib.sha256(f"{self.data_set.name} {self.split.stand_in}".encode())
        for path in files:
            found.update(hashlib.sha256(path.read_bytes()).digest())
        return found.hexdigest()[:16]


def read_table(path: Path) -> pd.DataFrame:
    """A generator's output; in CSV text stays text, as in the real tables."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return load_synthetic(path)


def generated(folder: Path, data: Path | None, names: Sequence[str]) -> Iterator[Case]:
    """The cases whose two tables lie in ``folder``, as ``experiments.generate`` writes them."""
    for data_set, mechanisms in _chosen(names):
        split = None
        for mechanism in mechanisms:
            for epsilon in EPSILONS:
                part, whole = (
                    folder / data_set.name / f"{mechanism}-eps{e}.parquet"
                    for e in (epsilon - 1, epsilon)
                )
                if part.exists() and whole.exists():
                    split = split or data_set.split(data)
                    yield Case(data_set, mechanism, epsilon, part, whole, split)


def given(data: Path | None, names: Sequence[str]) -> Iterator[Case]:
    """The cases of the synthetic files beside the real data, which lack the tables at epsilon."""
    for data_set in UCI:
        split = None
        for mechanism in MECHANISMS if not names or data_set.name in names else ():
            for epsilon in EPSILONS:
                name = f"{mechanism.lower()}-eps{epsilon - 1}-seed0.csv.gz"
                part = (data or DATA) / data_set.folder / "synthetic" / name
                if part.exists():
                    split = split or data_set.split(data)
                    yield Case(data_set, mechanism, epsilon, part, None, split)


def _chosen(names: Sequence[str]) -> Iterator[tuple[Source, tuple[str, ...]]]:
    return ((s, m) for s, m in SOURCES if not names or s.name in names)
