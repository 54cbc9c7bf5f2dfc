"""The noisy answers: the only thing that leaves the private side.

``answers.json`` holds the plan, the noisy integers, the noise's scale and the privacy statement;
everything but ``values`` follows from the plan and the installed versions, so that one changed
row can change nothing else.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retilt._input import read_json
from retilt._output import json_text, write_json
from retilt._version import __version__
from retilt.exceptions import FormatError, InputError
from retilt.measures.base import FloatArray, Norm
from retilt.measures.consistent import Consistent
from retilt.measures.entries import is_number, listed, parse_whole, short
from retilt.measures.guards import Guards
from retilt.measures.partitions import TRUSTED
from retilt.measures.queries import QuerySet
from retilt.privacy import statement
from retilt.privacy.account import LedgerEntry, entry_from_dict
from retilt.privacy.mechanism import MAX_SCALE
from retilt.privacy.plan import Plan, plan_from_dict, table_frame
from retilt.privacy.sensitivity import MOST_DIGITS
from retilt.schema.columns import Schema

FORMAT = "retilt-answers/1"

NOISE_DOMINATES = "noise dominates"
"""The flag of a statistic whose error bar can't be trusted."""

_LARGEST_FACTOR = 10**MOST_DIGITS
"""No factor is larger than a value may be."""


@dataclass(frozen=True)
class Answers:
    """Noisy answers to a plan. Made by ``retilt.measure``.

    Attributes
    ----------
    plan
        What was asked.
    values
        (K [+ 1],) noisy integers: sums of each query times its factor; under add/remove the
        noisy row count (times its factor) comes last.
    factors, noise_scales
        (K [+ 1],) the integer factors and the noise's scales that were used.
    private
        ``False`` only for answers of :func:`retilt.testing.insecure_measure`.
    versions
        Names and versions of what made them.
    ledger
        The charge that paid for them; ``None`` if no ledger was kept.
    """

    plan: Plan
    values: tuple[int, ...]
    factors: tuple[int, ...]
    noise_scales: tuple[float, ...]
    private: bool
    versions: Mapping[str, str]
    ledger: LedgerEntry | None = None

    def __post_init__(self) -> None:
        expected = self.plan.queries.size + self.plan.counts_rows
        for name in ("values", "factors", "noise_scales"):
            got = len(getattr(self, name))
            if got != expected:
                raise InputError(f"{name}: got {got} numbers, expected {expected}.")

    def __repr__(self) -> str:
        return f"Answers({len(self.values)} values, private={self.private})"

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """(K [+ 1],) integers in one unit of the query at unit scale."""
        units = (*self.plan.queries.units, *((1,) if self.plan.counts_rows else ()))
        return tuple(f * u for f, u in zip(self.factors, units, strict=True))

    def _deviation(self, k: int) -> float:
        """Standard deviation of the noise of sum k at unit scale."""
        return self.plan.noise.deviation_per_scale * self.noise_scales[k] / self.steps[k]

    @cached_property
    def rows(self) -> float:
        """The public row count, or the noisy one (at least 1) under add/remove."""
        if not self.plan.counts_rows:
            return float(self.plan.rows)
        return max(self.values[-1] / self.steps[-1], 1.0)

    @cached_property
    def means(self) -> FloatArray:
        """(K,) answers a: noisy sums over units and rows."""
        queries = range(self.plan.queries.size)
        return np.array([self.values[k] / (self.steps[k] * self.rows) for k in queries])

    @cached_property
    def variances(self) -> FloatArray:
        """(K,) variances of the independent part of the answers' noise."""
        queries = range(self.plan.queries.size)
        return np.array([(self._deviation(k) / self.rows) ** 2 for k in queries])

    @cached_property
    def common_noise(self) -> FloatArray:
        """(K, R) common part: the noisy count divides every sum (R = 1), or none (R = 0).

        ``a = S / n``, so an error e of the count moves a by ``-a e / n``.
        """
        if not self.plan.counts_rows:
            return np.zeros((self.plan.queries.size, 0))
        common: FloatArray = (self.means * self._deviation(-1) / self.rows)[:, None]
        return common

    @property
    def schema(self) -> Schema:
        """Of every column that was measured."""
        return self.plan.schema

    @property
    def queries(self) -> QuerySet:
        """The K queries that were answered."""
        return self.plan.queries

    @property
    def guards(self) -> Guards | None:
        """What a fit shall leave as it is, by the plan."""
        return self.plan.guards

    @property
    def norm(self) -> Norm:
        """2 for Gaussian noise, 1 for Laplace."""
        return self.plan.noise.norm

    @property
    def notes(self) -> tuple[str, ...]:
        """The plan's notes."""
        return self.plan.notes

    @property
    def exact(self) -> NDArray[np.bool_]:
        """(K,) answers without noise: none."""
        return np.zeros(self.plan.queries.size, dtype=np.bool_)

    @cached_property
    def dominated(self) -> NDArray[np.bool_]:
        """(S,) statistics that noise dominates.

        All of them where the noisy row count, which divides every answer, is not ten of its
        own standard errors above zero.
        """
        drowned = self.plan.queries.dominated(self.means, self.variances, self.common_noise)
        if not self.plan.counts_rows:
            return drowned
        count = self.values[-1] / self.steps[-1]
        return drowned | (count < TRUSTED * self._deviation(-1))

    @cached_property
    def consistent(self) -> Consistent:
        """The statistics' estimates, with tables that share columns estimated together."""
        count = (self._deviation(-1) / self.rows) ** 2 if self.plan.counts_rows else None
        return Consistent(self.plan.queries, self.variances, count)

    @cached_property
    def estimates(self) -> FloatArray:
        """(S,) estimates of the statistics; NaN where undefined."""
        return self.consistent.evaluate(self.means)

    def errors_at(self, means: FloatArray) -> FloatArray:
        """(S,) standard errors of the estimates, linearised at (K,) ``means``."""
        return self.consistent.standard_errors(means, self.common_noise)

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic: ``statistic``, ``estimate``, ``standard_error``, ``flag``.

        The flag is empty, or ``noise dominates`` where what the statistic divides by is lost in
        noise, so that neither number means much.
        """
        return estimates_table(self)

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """The privacy claim in numbers, and in words under ``statement``."""
        entry = None if self.ledger is None else self.ledger.to_dict()
        return {
            "private": self.private,
            **self.plan.privacy,
            "ledger": entry,
            "statement": self.statement,
        }

    @property
    def statement(self) -> str:
        """The privacy claim in words, with what it does not cover."""
        if self.private:
            return statement.in_words(self.plan, self.ledger)
        return statement.NOT_PRIVATE

    def privacy_page(self) -> str:
        """The privacy statement as a Markdown page that a data protection officer can file."""
        return statement.page(self)

    def to_frame(self) -> Any:
        """The statistics table in pandas if it is installed, else PyArrow."""
        return table_frame(self.statistics_table())

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON. Integers are text: many readers lose digits above 2**53."""
        noise = self.plan.noise
        return {
            "format": FORMAT,
            "private": self.private,
            "ledger": None if self.ledger is None else self.ledger.to_dict(),
            "plan": self.plan.to_dict(),
            "plan_sha256": self.plan.sha256,
            "mechanism": noise.mechanism,
            "sensitivity": noise.sensitivity,
            "factors": list(self.factors),
            "noise_scales": list(self.noise_scales),
            "privacy": self.privacy,
            "versions": dict(self.versions),
            "values": [str(v) for v in self.values],
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of the file that :meth:`save` writes."""
        return hashlib.sha256(json_text(self.to_dict()).encode()).hexdigest()

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write ``answers.json``; an existing file only with ``force``."""
        write_json(path, self.to_dict(), force=force)


class Estimates(Protocol):
    """Answers as far as they give a table of estimates."""

    @property
    def queries(self) -> Any:
        """K queries and the S statistics that they give."""
        ...

    @property
    def means(self) -> FloatArray:
        """(K,) answers."""
        ...

    @property
    def estimates(self) -> FloatArray:
        """(S,) estimates of the statistics."""
        ...

    @property
    def dominated(self) -> NDArray[np.bool_]:
        """(S,) statistics that noise dominates."""
        ...

    def errors_at(self, means: FloatArray) -> FloatArray:
        """(S,) standard errors of the statistics, linearised at (K,) ``means``."""
        ...


def estimates_table(answers: Estimates) -> list[dict[str, Any]]:
    """A row for each statistic. See :meth:`Answers.statistics_table`."""
    queries = answers.queries
    estimates, errors = answers.estimates, answers.errors_at(answers.means)
    return [
        {
            "statistic": s,
            "estimate": float(v),
            "standard_error": float(e),
            "flag": NOISE_DOMINATES if drowned else "",
        }
        for s, v, e, drowned in zip(
            queries.statistics, estimates, errors, answers.dominated, strict=True
        )
    ]


def load_answers(path: str | Path) -> Answers:
    """Read answers that :meth:`Answers.save` wrote.

    Raises
    ------
    FormatError
        The file is missing, no answers file, of another version, or inconsistent with the plan
        it carries.
    """
    content = read_json(path, "answers")
    try:
        return answers_from_dict(content)
    except InputError as error:
        raise FormatError(f"answers file {path}: {error}") from None


def answers_from_dict(content: Mapping[str, Any]) -> Answers:
    """The answers that :meth:`Answers.to_dict` wrote; strict."""
    if content.get("format") != FORMAT:
        raise FormatError(f"format: got {short(content.get('format'))}, expected {FORMAT!r}.")
    try:
        plan = plan_from_dict(_object(content["plan"], "plan"))
        if plan.choose is not None:
            raise FormatError("plan: its measures are yet to be chosen; it has no answers.")
        answers = Answers(
            plan=plan,
            values=tuple(
                parse_whole(text, "values", digits=MOST_DIGITS)
                for text in _list(content["values"], "values")
            ),
            factors=tuple(map(_factor, _list(content["factors"], "factors"))),
            noise_scales=tuple(map(_noise_scale, _list(content["noise_scales"], "noise_scales"))),
            private=_flag(content["private"]),
            versions=_versions(content["versions"]),
            ledger=entry_from_dict(content["ledger"]),
        )
        expected = answers.to_dict()
    except (TypeError, KeyError, AttributeError):
        raise FormatError("a value is missing or has the wrong type.") from None
    if set(content) != set(expected):
        odd = sorted(set(content) ^ set(expected))
        raise FormatError(f"keys missing or unknown: {listed(odd)}.")
    same_plan = content["plan_sha256"] == plan.sha256
    same_claim = _same_claim(content["privacy"], expected["privacy"])
    same_noise = content["mechanism"] == plan.noise.mechanism and _same_noise(answers)
    if not (same_plan and same_claim and same_noise and _near(content, expected)):
        raise FormatError(
            "its plan, hash, privacy claim, mechanism and noise scales do not belong together: the "
            "file was edited or written by another version. Measure again, or use the version that "
            "wrote it."
        )
    return answers


def _same_claim(content: object, expected: Mapping[str, Any]) -> bool:
    """Whether the privacy claim in numbers is the plan's; its words differ between versions."""
    if not isinstance(content, dict) or content.keys() != expected.keys():
        return False
    exact = expected.keys() - {"statement", "not_covered", "sensitivity", "total"}
    same = all(content[key] == expected[key] for key in exact)
    return same and _same_total(content["total"], expected["total"]) and _near(content, expected)


def _same_total(content: object, expected: dict[str, Any] | None) -> bool:
    """Whether the total is the plan's, but for another machine's last digits."""
    if expected is None or not isinstance(content, dict):
        return content == expected
    numbers = expected.keys() - {"kind"}
    same = content.keys() == expected.keys() and content["kind"] == expected["kind"]
    return same and all(
        is_number(content[n]) and math.isclose(content[n], expected[n], rel_tol=1e-6)
        for n in numbers
    )


def _near(content: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether the sensitivity is the plan's, but for another machine's last digits."""
    given, own = content["sensitivity"], expected["sensitivity"]
    return is_number(given) and abs(given - own) <= 1e-6 * own


def _object(content: object, what: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise FormatError(f"{what}: got {short(content)}, expected an object.")
    return content


def _list(content: object, what: str) -> list[Any]:
    if not isinstance(content, list):
        raise FormatError(f"{what}: got {short(content)}, expected a list.")
    return content


def _flag(content: object) -> bool:
    if not isinstance(content, bool):
        raise FormatError(f"private: got {short(content)}, expected true or false.")
    return content


def _versions(content: object) -> dict[str, str]:
    """Names of packages and their versions: a few short texts."""
    pairs = _object(content, "versions").items()
    texts = [text for pair in pairs for text in pair]
    if len(pairs) > 50 or not all(isinstance(t, str) and len(t) <= 200 for t in texts):
        raise FormatError("versions: expected a few names of packages, each with its version.")
    return dict(pairs)


def _same_noise(answers: Answers) -> bool:
    """Whether the noise is what the plan asks, but for another machine's last digits."""
    noise = answers.plan.noise
    own = np.array(answers.noise_scales) / np.array(answers.steps, dtype=np.float64)
    asked = np.array(noise.scales) / np.array(noise.steps, dtype=np.float64)
    return bool(np.allclose(own, asked, rtol=1e-6, atol=0))


def _factor(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST_FACTOR:
        raise FormatError("factors: expected whole numbers above 0.")
    return value


def _noise_scale(value: object) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= MAX_SCALE:  # type: ignore[operator]
        raise FormatError("noise_scales: expected numbers above 0.")
    return float(value)  # type: ignore[arg-type]


def make_answers(
    plan: Plan, values: Sequence[int], *, private: bool, ledger: LedgerEntry | None = None
) -> Answers:
    """Answers with the plan's own noise scales and this installation's versions."""
    from importlib.metadata import version

    return Answers(
        plan=plan,
        values=tuple(values),
        factors=plan.noise.factors,
        noise_scales=plan.noise.scales,
        private=private,
        versions={
            "retilt": __version__,
            "opendp": version("opendp"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        ledger=ledger,
    )
