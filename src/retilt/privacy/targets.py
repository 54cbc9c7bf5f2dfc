"""What a fit needs to know of answers, whether retilt measured them or somebody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy import bool_
from numpy.typing import NDArray

from retilt._input import read_json
from retilt.exceptions import FormatError, InputError
from retilt.measures.base import Alone, Design, EncodedArray, Feature, FloatArray, Norm
from retilt.measures.entries import short
from retilt.measures.guards import Guards
from retilt.privacy import answers as measured
from retilt.privacy import published
from retilt.privacy.answers import Answers, answers_from_dict
from retilt.privacy.published import Published, published_from_dict
from retilt.schema.columns import Schema


class Part(Protocol):
    """Queries that belong together."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """The encoded columns that they read."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Identity of each query."""
        ...

    def alone(self, number: int, array: EncodedArray) -> Alone | None:
        """The queries that read feature ``number`` alone, on rows that hold ``array`` there."""
        ...

    def shortfalls(
        self, arrays: Sequence[EncodedArray], answers: FloatArray, errors: FloatArray
    ) -> list[str]:
        """Sentences on answers that no weights of these rows can reach."""
        ...


class Queries(Protocol):
    """K queries and the S statistics that they give."""

    @property
    def blocks(self) -> Sequence[Part]:
        """The queries by parts."""
        ...

    @property
    def positions(self) -> tuple[NDArray[Any], ...]:
        """For each part, where its answers stand among the K."""
        ...

    @property
    def size(self) -> int:
        """K."""
        ...

    @property
    def features(self) -> tuple[Feature, ...]:
        """Every encoded column that is read, once."""
        ...

    @property
    def statistics(self) -> tuple[str, ...]:
        """(S,) names."""
        ...

    def designs(self, encoded: Mapping[Feature, EncodedArray]) -> tuple[Design, ...]:
        """The solver's view of every row."""
        ...

    def evaluate(self, answers: FloatArray) -> FloatArray:
        """(S,) statistics at (K,) answers."""
        ...

    def standard_errors(
        self, answers: FloatArray, variances: FloatArray, factor: FloatArray
    ) -> FloatArray:
        """(S,) standard errors under noise ``diag(variances) + factor @ factor.T``."""
        ...


class Asked(Protocol):
    """What is asked of a table: a plan, or answers to one."""

    @property
    def schema(self) -> Schema:
        """Of every column that is read."""
        ...

    @property
    def queries(self) -> Queries:
        """K queries."""
        ...


class Targets(Asked, Protocol):
    """Answers with their noise: :class:`Answers`, or :class:`Published` once completed.

    Attributes are those of :class:`Answers`; ``exact`` (K,) tells the answers without noise,
    ``private`` is None where retilt can't tell.
    """

    @property
    def guards(self) -> Guards | None:
        """What a fit shall leave as it is, unless told otherwise."""
        ...

    @property
    def norm(self) -> Norm:
        """2 for Gaussian noise, 1 for Laplace."""
        ...

    @property
    def means(self) -> FloatArray:
        """(K,) answers."""
        ...

    @property
    def variances(self) -> FloatArray:
        """(K,) variances of the independent part of the noise."""
        ...

    @property
    def common_noise(self) -> FloatArray:
        """(K, R) common part of the noise."""
        ...

    @property
    def dominated(self) -> NDArray[bool_]:
        """(S,) statistics that noise dominates."""
        ...

    @property
    def exact(self) -> NDArray[bool_]:
        """(K,) answers without noise."""
        ...

    @property
    def private(self) -> bool | None:
        """Whether they were made with the privacy that they claim; None if unknown."""
        ...

    @property
    def privacy(self) -> dict[str, Any]:
        """The privacy claim in numbers and words."""
        ...

    @property
    def statement(self) -> str:
        """The privacy claim in words."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Names and versions of what made them."""
        ...

    def errors_at(self, means: FloatArray) -> FloatArray:
        """(S,) standard errors of the statistics, linearised at (K,) ``means``."""
        ...

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic: ``statistic``, ``estimate``, ``standard_error``."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The content of their file."""
        ...


def load_targets(path: str | Path) -> Answers | Published:
    """Read an answers file or a file of published statistics; its ``format`` says which.

    Raises
    ------
    FormatError
        The file is missing, neither of the two, of another version, or malformed.
    """
    content = read_json(path, "answers")
    try:
        return targets_from_dict(content)
    except InputError as error:
        raise FormatError(f"answers file {path}: {error}") from None


def targets_from_dict(content: Mapping[str, Any]) -> Answers | Published:
    """Answers or published statistics from the content of a file; strict."""
    given = content.get("format")
    if given == published.FORMAT:
        return published_from_dict(content)
    if given != measured.FORMAT:
        raise FormatError(
            f"format: got {short(given)}, expected {measured.FORMAT!r} or {published.FORMAT!r}."
        )
    return answers_from_dict(content)
