"""What a generator is, whatever runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from experiments.description import Description


class GeneratorError(Exception):
    """A generator has no environment here, or did not come to its end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The privacy that a generator says it has, and the one it really has.

    Parameters
    ----------
    epsilon, delta
        As the library claims them for one row.
    really
        In words, what can be held against it.
    """

    epsilon: float
    delta: float
    really: str


class Fitted(Protocol):
    """A generator that has read the private rows; use it with ``contextlib.closing``."""

    @property
    def claim(self) -> Claim:
        """The privacy of everything drawn from it."""

    @property
    def record(self) -> Mapping[str, Any]:
        """JSON values: settings beside the defaults, versions, seconds, memory."""

    def sample(self, rows: int) -> pd.DataFrame:
        """So many rows: columns, order and types as the description has them."""

    def close(self) -> None:
        """Let go of processes and files."""


class Generator(Protocol):
    """Something that makes synthetic rows: GEM here, SmartNoise's in their own environment."""

    @property
    def name(self) -> str:
        """As the paper's tables print it."""

    def fit(self, table: pd.DataFrame, description: Description, *, epsilon: float) -> Fitted:
        """Read the private rows once, under epsilon and the generator's own delta.

        Raises
        ------
        GeneratorError
            If it fails; the message holds nothing of the rows.
        """
