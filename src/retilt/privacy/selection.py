r"""Adaptive selection: part of the budget chooses what the rest of it measures.

Each measure of a plan is a candidate. Its score says how far the synthetic table's answers are
from the private table's, in rows: for the block's scaled sums s(D), the synthetic table's answers
a (public), the norm p of the budget and n rows,

    score = w (|| s(D) - n a ||_p / D - c)

with the proved bound D on how far one unit of privacy moves the vector, a public weight w of at
most 1 and a public constant c. The *c* is what measuring would leave: the norm that the noise of
the measured block is expected to have, in units of D. A table whose error is below it is better
left alone.

**Sensitivity.** n public (replace-one): neighbours' vectors differ by that of one row replaced,
``||q(x) - q(y)||_p <= Delta``, whatever a is. n private: the vector is the sum of ``q(x) - a``
over the rows. One row that comes or goes moves it by ``||q(x) - a||_p <= Delta + ||a||_p``; of a
person with at most k rows there come, go or change at most k (see
:func:`retilt.privacy.sensitivity.sensitivity_of_rows`), each by no more than that. So with
``D = k (Delta + ||a||_p)``, or ``D = Delta`` where n is public, the norm over D moves by at most 1
by the triangle inequality, and the score by at most w <= 1.

Scores are integers: ``floor(G w norm / D)`` less ``floor(G w c)``, with G = 1024. Where y moves by
at most G, ``floor(y)`` moves by at most G too: floors commute with adding the whole number G.
Clamping to 62 bits, so that no table can overflow anything, moves nothing farther apart either.
All of it is computed in integers and fractions, with an integer square root: no float ever holds
a private value.

The choice is made in m rounds, each of which takes the highest noisy score of the measures that are
left (:func:`retilt.privacy.mechanism.noisy_max`). What was taken is public, so a round may look at
it: a table whose pairs of columns were taken with other tables has less to tell, and its score, if
above 0, is multiplied by a number below 1 (:func:`newness`), which moves no two scores apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias

from retilt.exceptions import FormatError, InputError
from retilt.measures.base import Block, Norm
from retilt.measures.entries import is_number, listed, parse_whole, short
from retilt.measures.queries import MAX_QUERIES, QuerySet
from retilt.privacy.budget import (
    ZCDP,
    ApproxDP,
    Budget,
    PureDP,
    budget_from_dict,
    budget_to_dict,
    decimal,
    float_down,
    least,
    zcdp_cap,
)
from retilt.privacy.mechanism import max_scale
from retilt.privacy.sensitivity import sqrt_up

GRANULARITY = 1024
"""G: scores are told in so many parts of a row. It is their sensitivity, too."""

DEFAULT_SHARE = 0.2
"""Part of the budget that the choice gets unless told (``docs/decisions/0016``)."""

_DELTA_SHARE = 0.1
"""Part of delta that a choice by zCDP gets, where that is less noisy than one by pure DP."""

_GUMBEL = math.pi / math.sqrt(6)
"""Deviation of Gumbel noise of scale 1; that of exponential noise is 1."""

EXPONENTIAL, GUMBEL = "noisy-max-exponential", "noisy-max-gumbel"
"""Names of the mechanisms in files."""

_LEAST_NEW = Fraction(1, 4)
"""Of a table that tells nothing new but how three columns go together, or with other bins."""

_LARGEST_SCORE = 2**61
_LARGEST_SUM = 10**40
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice that is yet to be made: what it may spend, and what scores compare with.

    Attributes
    ----------
    choose
        m, how many of the plan's measures will be measured.
    budget
        What choosing spends; the measuring has the rest of the plan's budget.
    rows
        Of the synthetic table.
    sums
        (K,) the synthetic table's integer sums of the plan's queries: its answers are these
        over the queries' units and ``rows``.
    """

    choose: int
    budget: Budget
    rows: int
    sums: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("choose", "rows"):
            _check_count(name, getattr(self, name))
        if not all(_is_whole(s) and abs(s) < _LARGEST_SUM for s in self.sums):
            raise InputError("selection: sums: expected whole numbers.")

    @property
    def choice(self) -> Choice:
        """How it will be drawn."""
        return Choice.of(self.budget, self.choose)

    def check(self, candidates: int, queries: int) -> None:
        """Refuse what does not belong to a plan of so many measures and queries.

        Raises
        ------
        InputError
            There is nothing to choose, or the sums are not those of the queries.
        """
        check_choose(self.choose, candidates)
        if len(self.sums) != queries:
            raise InputError(f"selection: sums: got {len(self.sums)} numbers, expected {queries}.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON. Integers are text: many readers lose digits above 2**53."""
        return {
            "choose": self.choose,
            "budget": budget_to_dict(self.budget),
            "rows": self.rows,
            "sums": list(map(str, self.sums)),
        }


@dataclass(frozen=True, slots=True)
class Selected:
    """Where the measures of a plan come from that a measurement has chosen.

    Attributes
    ----------
    candidates
        Of how many measures they were chosen.
    budget
        What choosing spent; the measuring had the rest of the plan's budget.
    plan_sha256
        Hash of the plan that they were chosen from; ``None`` if it holds Python code.
    """

    candidates: int
    budget: Budget
    plan_sha256: str | None

    def __post_init__(self) -> None:
        _check_count("candidates", self.candidates)
        sha = self.plan_sha256
        if sha is not None and not (isinstance(sha, str) and _HASH.fullmatch(sha)):
            raise InputError("selection: plan_sha256: expected a hash of 64 digits, or null.")

    def check(self, chosen: int) -> None:
        """Refuse what can't be where a plan of so many measures comes from."""
        check_choose(chosen, self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "candidates": self.candidates,
            "budget": budget_to_dict(self.budget),
            "plan_sha256": self.plan_sha256,
        }


Provenance: TypeAlias = Selection | Selected


@dataclass(frozen=True, slots=True)
class Choice:
    """The mechanism that chooses: the highest score with noise, in so many rounds.

    Attributes
    ----------
    count
        How many are chosen.
    scale
        Of the noise, in units of the integer scores.
    concentrated
        Whether the noise is Gumbel, calibrated by zCDP; else exponential, by pure DP.
    rho
        What it spends in zCDP.
    """

    count: int
    scale: float
    concentrated: bool
    rho: Fraction

    @classmethod
    @cache
    def of(cls, budget: Budget, count: int) -> Choice:
        """The least noise that spends no more than the budget.

        Raises
        ------
        PrivacyError
            It would be too large to draw.
        """
        if isinstance(budget, PureDP):
            epsilon = least(budget.epsilon)
            scale = max_scale(count, GRANULARITY, epsilon, concentrated=False)
            return cls(count, scale, False, decimal(budget.epsilon) ** 2 / 2)
        rho = budget.rho if isinstance(budget, ZCDP) else zcdp_cap(budget.epsilon, budget.delta)
        scale = max_scale(count, GRANULARITY, least(rho), concentrated=True)
        return cls(count, scale, True, decimal(rho))

    @property
    def deviation(self) -> float:
        """Of the noise of a score, in rows."""
        return self.scale * (_GUMBEL if self.concentrated else 1.0) / GRANULARITY

    @property
    def mechanism(self) -> str:
        """Its name in files."""
        return GUMBEL if self.concentrated else EXPONENTIAL


def check_choose(choose: object, candidates: int) -> int:
    """How many measures to choose, if that can be.

    Raises
    ------
    InputError
        It is no whole number above 0, or there is nothing to choose.
    """
    if isinstance(choose, bool) or not isinstance(choose, int) or choose < 1:
        raise InputError(
            f"select: got {short(choose)}, expected a whole number above 0: how many measures of "
            "the workload are to be measured."
        )
    if choose >= candidates:
        raise InputError(
            f"select: got {choose:,} of {candidates:,} "
            f"{'measure' if candidates == 1 else 'measures'}: there is nothing to choose. Leave "
            "select out, or name more measures (each table of marginals is one)."
        )
    return choose


def check_share(share: object) -> float:
    """The part of the budget that choosing gets."""
    if not is_number(share) or not 0 < share < 1:  # type: ignore[operator]
        raise InputError(
            f"select_share: got {short(share)}, expected a number between 0 and 1: the part of "
            "the budget that choosing gets, such as 0.2."
        )
    return float(share)  # type: ignore[arg-type]


def budget_of_choice(budget: Budget, share: float, choose: int) -> Budget:
    """What choosing gets of a plan's budget.

    Of (epsilon, delta) it is a part of epsilon alone, by pure DP. Where many are chosen, zCDP with
    a little of delta is less noisy (m selections cost in proportion to sqrt(m), not m), and is
    taken.

    Raises
    ------
    PrivacyError
        The part is too small for any noise that can be drawn.
    """
    part = decimal(share)
    if isinstance(budget, ZCDP):
        return ZCDP(_portion(decimal(budget.rho) * part))
    pure = PureDP(_portion(decimal(budget.epsilon) * part))
    if isinstance(budget, PureDP):
        return pure
    mixed = ApproxDP(pure.epsilon, _portion(decimal(budget.delta) * decimal(_DELTA_SHARE)))
    noise = [Choice.of(b, choose).deviation for b in (pure, mixed)]
    return mixed if noise[1] < noise[0] else pure


def rest_of(budget: Budget, part: Budget) -> Budget:
    """What is left of a plan's budget for measuring, after choosing spent its part.

    Sums of epsilon, delta or rho, rounded down: together they are never more than the whole.

    >>> rest_of(ApproxDP(1.0, 1e-6), PureDP(0.2))
    ApproxDP(epsilon=0.8, delta=1e-06)

    Raises
    ------
    InputError
        Nothing is left, or the two are of kinds that don't add up.
    """
    if isinstance(budget, ZCDP) and isinstance(part, ZCDP):
        return ZCDP(_portion(decimal(budget.rho) - decimal(part.rho)))
    if not isinstance(budget, ZCDP) and not isinstance(part, ZCDP):
        epsilon = _portion(decimal(budget.epsilon) - decimal(part.epsilon))
        if isinstance(part, PureDP):
            if isinstance(budget, PureDP):
                return PureDP(epsilon)
            return ApproxDP(epsilon, budget.delta)
        if isinstance(budget, ApproxDP):
            return ApproxDP(epsilon, _portion(decimal(budget.delta) - decimal(part.delta)))
    raise InputError("selection: its budget is not of the plan's kind.")


def _portion(value: Fraction) -> int | float:
    """A part of a budget as a number, rounded down."""
    found = float_down(value) if value > 0 else 0
    if found <= 0:
        raise InputError(
            "select: nothing is left of the budget, for choosing or for measuring. Choose another "
            "select_share, or a larger budget."
        )
    return found


# -- scores ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What scores are computed with, beside the sums: all of it public.

    Attributes
    ----------
    norm
        Of the budget.
    rows
        n where it is public, else ``None``.
    max_rows
        Most rows of one person.
    weights
        For each block, its importance: from 0 to 1.
    noise
        For each block, the scale that its noise would have, for each scaled query.
    """

    norm: Norm
    rows: int | None
    max_rows: int
    weights: tuple[Fraction, ...]
    noise: tuple[float, ...]


def weights_of(importances: Sequence[float]) -> tuple[Fraction, ...]:
    """Measures' weights as those of scores: an error's, where theirs are of squared errors.

    >>> weights_of([4.0, 1.0])
    (Fraction(1, 1), Fraction(1, 2))
    """
    top = max(importances)
    return tuple(
        min(Fraction(1), Fraction(math.floor(2**20 * math.sqrt(w / top)), 2**20))
        for w in importances
    )


def scores_of(
    queries: QuerySet, sums: Sequence[int], selection: Selection, terms: Terms
) -> list[int]:
    """The integer score of every block. Not private.

    Parameters
    ----------
    queries
        The plan's.
    sums
        (K,) the private table's integer sums, or (K + 1,) with the number of rows that they are
        over where that is private.
    selection, terms
        What they are compared with, and how.
    """
    count = sums[-1] if terms.rows is None else terms.rows
    # N S - n T is the difference of the sums, times N, of which T are the synthetic ones.
    off = [
        selection.rows * s - count * t
        for s, t in zip(sums[: queries.size], selection.sums, strict=True)
    ]
    found = []
    for block, where, weight, noise in zip(
        queries.blocks, queries.positions, terms.weights, terms.noise, strict=True
    ):
        places = where.tolist()
        length = _Length.of(block, [off[k] for k in places], terms.norm)
        bound = _bound(block, [selection.sums[k] for k in places], selection.rows, terms)
        if bound == 0:  # nothing that it asks depends on any row
            found.append(0)
            continue
        error = length.over(bound * selection.rows, weight * GRANULARITY)
        spoilt = _noise_length(len(places), noise, terms.norm) / float(bound)
        allowance = weight * GRANULARITY * Fraction(min(spoilt, float(_LARGEST_SCORE)))
        found.append(min(error, _LARGEST_SCORE) - min(math.floor(allowance), _LARGEST_SCORE))
    return found


def _bound(block: Block, sums: Sequence[int], rows: int, terms: Terms) -> Fraction:
    """D: how far one unit of privacy moves a block's vector, at most."""
    own = block.sensitivity()
    one = own if terms.norm == 1 else sqrt_up(own)
    if terms.rows is None:
        one += _Length.of(block, sums, terms.norm).upper / rows
    return one * terms.max_rows


@dataclass(frozen=True, slots=True)
class _Length:
    """The norm of a block's scaled vector: squared for L2."""

    value: Fraction
    norm: Norm

    @classmethod
    def of(cls, block: Block, numerators: Sequence[int], norm: Norm) -> _Length:
        parts: dict[tuple[int, int, int], int] = {}
        for numerator, unit, loud in zip(numerators, block.units, block.scales, strict=True):
            alike = (loud.numerator, loud.denominator, unit)  # cells are all alike
            parts[alike] = parts.get(alike, 0) + abs(numerator) ** norm
        total = sum(
            (Fraction(n, d * unit) ** norm * whole for (n, d, unit), whole in parts.items()),
            Fraction(0),
        )
        return cls(total, norm)

    @property
    def upper(self) -> Fraction:
        """At least the norm."""
        return self.value if self.norm == 1 else sqrt_up(self.value)

    def over(self, bound: Fraction, times: Fraction) -> int:
        """``floor(times * norm / bound)``, exactly."""
        ratio = Fraction(times) / bound
        if self.norm == 1:
            return math.floor(self.value * ratio)
        return math.isqrt(math.floor(self.value * ratio**2))


def _noise_length(size: int, scale: float, norm: Norm) -> float:
    """About the norm that ``size`` numbers of noise have."""
    return size * scale if norm == 1 else math.sqrt(size) * scale


# -- rounds ----------------------------------------------------------------------------------------


Draw: TypeAlias = Callable[[Sequence[int], Choice], int]
"""The place of the highest of some scores with noise."""


def choose(
    scores: Sequence[int],
    tables: Sequence[frozenset[str] | None],
    choice: Choice,
    draw: Draw,
) -> list[int]:
    """The places of the measures that are chosen, in the order of their rounds.

    Parameters
    ----------
    scores
        (B,) of each measure.
    tables
        (B,) the columns of each that is a table of counts, ``None`` for the others.
    choice
        How many, and with which noise.
    draw
        One round.
    """
    left = list(range(len(scores)))
    taken: list[int] = []
    parts = [None if names is None else _parts(names) for names in tables]
    known: set[frozenset[str]] = set()
    for _ in range(choice.count):
        own = [_damped(scores[i], newness(parts[i], known)) for i in left]
        taken.append(left.pop(draw(own, choice)))
        names = tables[taken[-1]]
        if names is not None:
            known |= _subsets(names)
    return taken


def newness(parts: frozenset[frozenset[str]] | None, known: Container[frozenset[str]]) -> Fraction:
    """What a score is multiplied by, for a table of which some parts are known from others.

    The square of the share that is not known, which is taken as a quarter at the least
    (``docs/decisions/0016``); 1 for what is no table.

    >>> ab, ac = frozenset("ab"), frozenset("ac")
    >>> newness(frozenset([ab, ac]), {ab})
    Fraction(1, 4)
    """
    if parts is None:
        return Fraction(1)
    new = sum(part not in known for part in parts)
    return max(Fraction(new, len(parts)), _LEAST_NEW) ** 2


def _parts(names: frozenset[str]) -> frozenset[frozenset[str]]:
    """A table's pairs of columns; of a table of one column that."""
    return frozenset(map(frozenset, combinations(sorted(names), min(2, len(names)))))


def _subsets(names: frozenset[str]) -> set[frozenset[str]]:
    """Its columns and pairs of columns, all of which it tells."""
    return {frozenset(s) for size in (1, 2) for s in combinations(sorted(names), size)}


def _damped(score: int, part: Fraction) -> int:
    """A score above 0 times ``part``, rounded down; another as it is."""
    return math.floor(max(score, 0) * part) + min(score, 0)


# -- files -----------------------------------------------------------------------------------------


def selection_from_dict(content: object) -> Provenance:
    """The selection that ``to_dict`` wrote, of either kind; strict."""
    if not isinstance(content, Mapping):
        raise FormatError(f"selection: got {short(content)}, expected an object.")
    for maker in (Selection, Selected):
        if set(content) == set(maker.__dataclass_fields__):
            parts = {**content, "budget": budget_from_dict(content["budget"])}
            if maker is Selection:
                parts["sums"] = _sums(content["sums"])
            made: Provenance = maker(**parts)
            return made
    before, after = (listed(m.__dataclass_fields__) for m in (Selection, Selected))
    raise FormatError(
        f"selection: got {short(sorted(content))}, expected {before} before the choice, or {after} "
        "after it."
    )


def _sums(content: object) -> tuple[int, ...]:
    if not isinstance(content, list) or len(content) > MAX_QUERIES:
        raise FormatError(f"selection: sums: expected a list of at most {MAX_QUERIES:,}.")
    return tuple(parse_whole(text, "selection: sums", digits=40) for text in content)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_count(name: str, value: object) -> None:
    if not _is_whole(value) or not 0 < value < 2**63:  # type: ignore[operator]
        raise InputError(f"selection: {name}: got {short(value)}, expected a whole number above 0.")
