"""The user's own check of a plan: neighbours are as close, and noise as wide, as claimed.

An audit opens no private table: what a plan promises, it promises for every table. Three things
are tried. Neighbouring tables are invented, and how far apart their exact sums lie, in units of
the noise, is compared with what the budget allows. That is worked out from the budget alone
(:mod:`retilt.auditing.allowance`), not taken from the plan's noise. Then the noise is drawn many
times, and the farthest neighbours that were found are told apart as well as can be: that proves
a lower bound on what the noise gives away, which must not be above the claim. Last, the draws
must be as wide as the plan says and independent, and so must draws by the function that
``measure`` adds its noise with. An audit can find faults. It can't prove that there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retilt._input import kind_of
from retilt.auditing.allowance import Allowance
from retilt.auditing.bounds import FAILURE, Bound, lower_bound
from retilt.auditing.distance import Metric
from retilt.auditing.rows import Inventor, shown
from retilt.auditing.search import farthest
from retilt.auditing.spread import KINDS, LEVEL, Spread, Tally, as_measured
from retilt.auditing.tables import Neighbours, Several
from retilt.exceptions import InputError
from retilt.privacy.budget import describe
from retilt.privacy.plan import Plan, load_plan

__all__ = ["Audit", "audit"]

PAIRS = 100_000
"""Pairs of rows that are compared unless told."""

DRAWS = 100_000
"""Draws of the noise unless told, where the worst pair moves three sums or fewer."""

_NUMBERS = 300_000
"""Numbers drawn for a pair that moves more sums, unless told: about ten seconds."""

_LEAST_DRAWS = 1_000
_MOST_DRAWS = 100_000_000
_MOST_PAIRS = 10_000_000

_TABLES = 20
"""Whole tables that are compared with a neighbour."""


@dataclass(frozen=True)
class Audit:
    """What an audit of a plan found. Made by ``retilt.audit``.

    Attributes
    ----------
    plan
        What was audited.
    claim
        The distance that the budget allows: mu for Gaussian noise, epsilon for Laplace.
    within
        Whether no neighbours were found farther apart, compared in exact fractions.
    share
        Part of the claim that the farthest neighbours found reach.
    one, other
        The rows in which they differ, each with how often it stands there.
    moved
        Number of released integers that differ.
    pairs, tables
        Pairs of rows and of whole tables that were compared.
    bound
        The lower bound on mu or epsilon that draws of the noise prove.
    apart
        What those draws show of the noise as such; ``None`` where no sum differs.
    together
        The same of draws for all sums by the function that ``measure`` calls.
    """

    plan: Plan
    claim: float
    within: bool
    share: float
    one: Several
    other: Several
    moved: int
    pairs: int
    tables: int
    bound: Bound
    apart: Spread | None
    together: Spread

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "VIOLATED"
        return f"Audit({verdict}, {self.quantity} >= {self.bound.value:.4g} of {self.claim:.4g})"

    @property
    def quantity(self) -> str:
        """What is bounded: ``"mu"`` for Gaussian noise, ``"epsilon"`` for Laplace."""
        return "epsilon" if self._allowance.norm == 1 else "mu"

    @property
    def holds(self) -> bool:
        """Whether neither the neighbours found nor the draws contradict the claim."""
        return self.within and self._noise_holds

    @property
    def faults(self) -> list[str]:
        """What is wrong with the noise as such, in words."""
        return [f for s in (self.apart, self.together) if s is not None for f in s.faults]

    @property
    def failure_probability(self) -> float:
        """How probable it is at most that draws of faultless noise speak against the claim."""
        spreads = 1 + (self.apart is not None)
        return self.bound.cells * FAILURE + spreads * KINDS * LEVEL

    @property
    def _allowance(self) -> Allowance:
        return Allowance.of(self.plan.measuring)

    @property
    def _bound_holds(self) -> bool:
        return self._allowance.keeps(self.bound.value)

    @property
    def _noise_holds(self) -> bool:
        return self._bound_holds and not self.faults

    @property
    def exit_code(self) -> int:
        """0 where the claim holds as far as was tried, 3 where it is violated."""
        return 0 if self.holds else 3

    @property
    def implied_epsilon(self) -> float | None:
        """For an (epsilon, delta) plan: the epsilon that the bound on mu implies at its delta."""
        return self._allowance.implied_epsilon(self.bound.value)

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON; invented cells are told as text."""
        return {
            "holds": self.holds,
            "budget": describe(self.plan.budget),
            "unit": self.plan.unit.name,
            "mechanism": self.plan.noise.mechanism,
            "queries": self.plan.queries.size,
            "sensitivity": {
                "holds": self.within,
                "share": self.share,
                "pairs": self.pairs,
                "tables": self.tables,
                "one": self._told(self.one),
                "other": self._told(self.other),
                "sums_that_differ": self.moved,
            },
            "noise": {
                "holds": self._noise_holds,
                "quantity": self.quantity,
                "claim": self.claim,
                "lower_bound": self.bound.value,
                "implied_epsilon": self.implied_epsilon,
                "draws": self.bound.draws,
                "failure_probability": self.failure_probability,
                "scale": {
                    "neighbours": None if self.apart is None else _scale(self.apart),
                    "as_measured": _scale(self.together),
                },
                "faults": self.faults,
            },
            "findings": self.findings,
        }

    def _told(self, rows: Several) -> list[dict[str, Any]]:
        names = tuple(self.plan.schema.columns)
        return [
            {"rows": count, "cells": dict(zip(names, map(shown, row), strict=True))}
            for row, count in rows
        ]

    @property
    def findings(self) -> list[str]:
        """What was tried and what came of it, in words."""
        return [
            *self._choice_words,
            self._sensitivity_words,
            self._noise_words,
            self._width_words,
            self._verdict_words,
        ]

    @property
    def _choice_words(self) -> list[str]:
        if self.plan.selection is None:
            return []
        return [
            f"Choice: of all choices of {len(self.plan.measures):,} measures the one with the "
            f"largest sensitivity was tried, at {describe(self.plan.measuring)}, what is left for "
            "measuring. How measures are chosen was not tried."
        ]

    @property
    def _sensitivity_words(self) -> str:
        told = [" and ".join(map(_line, self._told(r))) for r in (self.one, self.other)]
        others = told[1] or "nothing"
        verdict = "no farther than allowed" if self.within else "FARTHER THAN ALLOWED"
        return (
            f"Neighbours: {self.pairs:,} pairs of invented rows and {self.tables} pairs of whole "
            f"tables were compared. The farthest apart lie at {self.share:.2%} of what the budget "
            f"allows, {verdict}: {told[0] or 'nothing'} in place of {others}."
        )

    @property
    def _noise_words(self) -> str:
        if not self.bound.draws:
            return "Noise: not drawn, for no neighbours that differ in any sum were found."
        verdict = "not above" if self._bound_holds else "ABOVE"
        implied = self.implied_epsilon
        at_delta = (
            f" (at the plan's delta that is an epsilon of at least {implied:.4g})"
            if implied is not None
            else ""
        )
        return (
            f"Noise: drawn {self.bound.draws:,} times. Telling these neighbours apart proves "
            f"{self.quantity} >= {self.bound.value:.4g}{at_delta}, {verdict} the claim, "
            f"{self.quantity} = {self.claim:.4g}."
        )

    @property
    def _width_words(self) -> str:
        parts = [] if self.apart is None else [f"{_range(self.apart)} in those draws"]
        parts.append(
            f"{_range(self.together)} in {self.together.draws:,} more for all "
            f"{len(self.plan.noise.scales):,} sums, as measure draws them"
        )
        verdict = "WRONG: " + "; ".join(self.faults) if self.faults else "not too narrow"
        return (
            f"Width: compared with the plan's scale that of the noise is {' and '.join(parts)}, "
            f"{verdict}."
        )

    @property
    def _verdict_words(self) -> str:
        if self.holds:
            return (
                "Verdict: nothing that was tried contradicts the plan's claim. An audit can find "
                "faults, it can't prove that there are none."
            )
        return (
            "Verdict: the plan's claim does NOT hold. Don't release answers to this plan; please "
            "report it with the plan and the version. What draws show is wrong by chance in at "
            f"most {self.failure_probability:.2%} of audits: repeat it to be sure."
        )


def audit(
    plan: Plan | str | Path,
    *,
    draws: int | None = None,
    pairs: int = PAIRS,
    seed: int | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> Audit:
    """Try to show that a plan gives away more than it claims. Opens no private table.

    Parameters
    ----------
    plan
        A plan or its file.
    draws
        How often the noise is drawn. More draws give a bound nearer to the claim. Default:
        100,000, or fewer (1,000 at least) where the farthest neighbours differ in more than three
        sums.
    pairs
        About how many pairs of rows are compared; fewer for a plan of very many sums, and at
        most 5,000 rows.
    seed
        Of the invented rows. The noise has none: it is the one that ``measure`` draws.
    on_step
        Called now and then.

    Returns
    -------
    Audit
        ``holds`` says whether the claim stood.

    Raises
    ------
    InputError
        An option is out of range, or the plan can't be read.
    PrivacyError
        The plan's promise can't be kept at its budget.

    Notes
    -----
    Of a plan with ``select`` the choice that has the largest sensitivity is audited, and not how
    measures are chosen.
    """
    plan = _opened(plan)
    _check("pairs", pairs, 1, _MOST_PAIRS)
    if draws is not None:
        _check("draws", draws, _LEAST_DRAWS, _MOST_DRAWS)
    if seed is not None:
        _check("seed", seed, 0, 2**128)
    rng = np.random.default_rng(seed)
    _ = plan.noise, plan.choice  # one that can't be measured is refused for its own reason
    plan = plan.loudest_choice()
    metric = Metric(plan)
    inventor = Inventor.of(plan.schema, plan.queries.features, rng)
    found = farthest(plan, inventor, pairs=pairs, rng=rng)
    on_step()
    neighbours = Neighbours(metric, inventor, rng)
    changes = [neighbours.worst(found.pair)]
    for number in range(_TABLES):
        changes.append(neighbours.random(text=bool(number % 2)))
        on_step()
    worst = max(changes, key=lambda change: change.share)
    moved = [k for k, d in enumerate(worst.integers) if d]
    if draws is None:
        draws = max(_LEAST_DRAWS, min(DRAWS, _NUMBERS // max(len(moved), 1)))
    tally = Tally.of(metric, moved)
    bound = lower_bound(metric, worst.integers, draws=draws, on_step=on_step, seen=tally.add)
    return Audit(
        plan=plan,
        claim=metric.allowance.claim,
        within=worst.share <= 1,
        share=float(worst.share) ** (1 / metric.norm),
        one=worst.one,
        other=worst.other,
        moved=len(moved),
        pairs=found.pairs,
        tables=len(changes),
        bound=bound,
        apart=tally.result() if moved else None,
        together=as_measured(metric, draws=draws, on_step=on_step),
    )


def _opened(plan: object) -> Plan:
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, (str, Path)):
        return load_plan(plan)
    raise InputError(f"plan: got {kind_of(plan)}, expected a plan or its file.")


def _check(name: str, value: object, least: int, most: int) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or not least <= value <= most:  # type: ignore[operator]
        raise InputError(
            f"{name}: got {value!r}, expected a whole number from {least:,} to {most:,}."
        )


def _line(told: Mapping[str, Any]) -> str:
    cells = ", ".join(f"{name} = {cell}" for name, cell in told["cells"].items())
    return f"({cells})" if told["rows"] == 1 else f"{told['rows']:,} rows ({cells})"


def _scale(spread: Spread) -> dict[str, float]:
    return {"draws": spread.draws, "at_least": spread.low, "at_most": spread.high}


def _range(spread: Spread) -> str:
    return f"{spread.low:.1%} to {spread.high:.1%}"
