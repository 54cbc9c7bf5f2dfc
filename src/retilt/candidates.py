"""The synthetic table's rows as candidates for a weight: the problem that a fit solves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.engines.base import Table
from retilt.exceptions import InputError
from retilt.measures.base import Design, EncodedArray, Feature, FloatArray
from retilt.measures.guards import Guards
from retilt.measures.partitions import root
from retilt.measures.queries import designs_of
from retilt.privacy.answers import Answers
from retilt.privacy.plan import Plan
from retilt.privacy.published import Published
from retilt.privacy.targets import Asked, Targets
from retilt.tables import check_table, encode, outside_notes, require_columns
from retilt.tilting.bounds import Bounds
from retilt.tilting.designs import design_means, ranges, selected_parts, typical
from retilt.tilting.floors import ess_of
from retilt.tilting.problem import Covariance, Problem, normalised
from retilt.tilting.solution import Solution

_LEAST_ERROR = 1e-9
"""Standard errors below, in units of a query over the rows, count as 0."""


def targets_of(answers: Answers | Published, table: Table) -> Targets:
    """Answers for a synthetic table, which completes the schema of published ones."""
    require_rows(table)
    return answers.completed(table) if isinstance(answers, Published) else answers


def encode_candidates(table: Table, asked: Asked) -> dict[Feature, EncodedArray]:
    """The columns asked for of a synthetic table, or a refusal of one that can't have them."""
    check_table(table, asked.schema, "the synthetic table")
    require_rows(table)
    return encode(table, asked.queries.features)


def require_rows(table: Table) -> None:
    """Refuse an empty table before its columns are found to lack values."""
    if table.rows == 0:
        raise InputError("the synthetic table has no rows; there is nothing to weigh.")


@dataclass(frozen=True)
class Candidates:
    """The synthetic table as a problem.

    Attributes
    ----------
    problem
        Its rows' queries, the answers, their noise and the base weights.
    shortfalls
        Sentences on answers that no weights of these rows can reach.
    fingerprint
        Tells these rows from others.
    """

    problem: Problem
    shortfalls: tuple[str, ...]
    fingerprint: str

    @classmethod
    def of(
        cls,
        table: Table,
        answers: Targets,
        base_weights: Any,
        guards: Guards | None = None,
        *,
        own: int | None = None,
        bounds: Bounds | None = None,
        looseness: float = 1.0,
    ) -> Candidates:
        """From the synthetic table, the answers, and a column or numbers for the base weights.

        The queries of ``guards`` come after those of the answers. What they keep is as the first
        ``own`` rows have it (default all): those behind were added for this fit. ``bounds`` and
        ``looseness`` are the problem's.
        """
        encoded = encode_candidates(table, answers)
        base = base_of(table, base_weights)
        normalised(base)  # refuses what can't be weights
        designs = answers.queries.designs(encoded)
        found = (*_clamped(answers, table), *_shortfalls(answers, encoded, base > 0))
        first = own_part(base, own)
        kept = _Kept.none() if guards is None else _Kept.of(table, guards, answers, first)
        fingerprint = _fingerprint({**encoded, **kept.encoded}, base)
        del encoded  # a table as large as the designs
        none = np.zeros(len(kept.answers), dtype=np.bool_)
        exact = _exact(answers, designs, base > 0)
        shared = np.where(exact[:, None], 0.0, answers.common_noise)
        problem = Problem(
            designs=(*designs, *kept.designs),
            answers=np.concatenate([answers.means, kept.answers]),
            # An exact answer's variance says nothing, but has to be a number.
            covariance=Covariance(
                np.concatenate([np.where(exact, 1.0, answers.variances), kept.variances]),
                np.concatenate([shared, np.zeros((len(none), shared.shape[1]))]),
            ),
            base=base,
            measured=np.concatenate([~exact, none]),
            exact=np.concatenate([exact, none]),
            looseness=looseness,
            bounds=bounds,
        )
        return cls(problem, found, fingerprint)

    def compared(self, solution: Solution, own: int | None) -> Solution:
        """A solution whose ``before`` is that of the first ``own`` rows; None for all."""
        if own is None:
            return solution
        base = normalised(own_part(self.problem.base, own))
        return replace(solution, before=self.problem.means(base))


@dataclass(frozen=True)
class _Kept:
    """What guards add to a problem: queries, where they are, and how far they may move."""

    designs: tuple[Design, ...]
    answers: FloatArray
    variances: FloatArray
    encoded: Mapping[Feature, EncodedArray]

    @classmethod
    def none(cls) -> _Kept:
        return cls((), np.zeros(0), np.zeros(0), {})

    @classmethod
    def of(cls, table: Table, guards: Guards, answers: Targets, base: FloatArray) -> _Kept:
        encoded = encode_guards(table, guards)
        held = guards.held(measured_keys(answers))
        weights = normalised(base)
        designs = guards.queries.designs(encoded)
        means = means_of(designs, weights)
        deviations = guards.deviations(means, ess_of(weights))
        return cls(selected_parts(designs, held), means[held], deviations[held] ** 2, encoded)


def own_part(base: FloatArray, own: int | None) -> FloatArray:
    """(rows,) base weights of the first ``own`` rows, zero for those behind; None for all."""
    return base if own is None else np.where(np.arange(len(base)) < own, base, 0.0)


def encode_guards(table: Table, guards: Guards) -> dict[Feature, EncodedArray]:
    """The columns of guards, or a refusal of a table that can't have them."""
    check_table(table, guards.schema, "the synthetic table")
    return encode(table, guards.queries.features)


def plan_designs(
    plan: Plan, encoded: Mapping[Feature, EncodedArray], table: Table
) -> tuple[Design, ...]:
    """The queries that a fit would have, for every row of a table: a plan's and its guards'.

    Where measures are yet to be chosen, those of no choice are more.
    """
    guards, queries = plan.guards, plan.queries
    if plan.choose is None:
        held = () if guards is None else guard_designs(table, guards, plan)
        return queries.designs(encoded) + held
    own = [
        designs_of(b, [encoded[f] for f in b.features], np.arange(len(b.units)))
        for b in queries.blocks
    ]
    own.sort(key=lambda designs: -sum(int(np.count_nonzero(ranges(d))) for d in designs))
    held = () if guards is None else guards.queries.designs(encode_guards(table, guards))
    return (*chain.from_iterable(own[: plan.choose]), *held)


def guard_designs(table: Table, guards: Guards, asked: Asked) -> tuple[Design, ...]:
    """The queries that guards hold beside those that are asked, for every row of a table."""
    designs = guards.queries.designs(encode_guards(table, guards))
    return selected_parts(designs, guards.held(measured_keys(asked)))


def measured_keys(asked: Asked) -> set[str]:
    """Identities of the queries that are asked, which no guard holds."""
    return {key for block in asked.queries.blocks for key in block.keys}


def means_of(designs: Sequence[Design], weights: FloatArray) -> FloatArray:
    """(K,) means of queries under (rows,) weights of sum 1."""
    parts = [design_means(design, weights) for design in designs]
    return np.concatenate([np.zeros(0), *parts])


def _fingerprint(encoded: Mapping[Feature, EncodedArray], base: FloatArray) -> str:
    """Tells whether two tables have the same measured columns and base weights, row by row."""
    digest = hashlib.sha256(base.data)
    for array in encoded.values():
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def base_of(table: Table, base_weights: Any) -> FloatArray:
    """(rows,) base weights: ones, a column of the table, or numbers.

    Raises
    ------
    InputError
        If they are no numbers, or not one for each row.
    """
    if base_weights is None:
        return np.ones(table.rows)
    if isinstance(base_weights, str):
        require_columns(table, [base_weights], "the synthetic table")
        base_weights = table.cells(base_weights).to_pylist()
    try:
        base = np.array([math.nan if w is None else float(w) for w in base_weights])
    except (TypeError, ValueError):
        raise InputError("base weights: expected a number for each row.") from None
    if base.shape != (table.rows,):
        raise InputError(
            f"base weights: got {len(base):,}, expected one for each of {table.rows:,} rows."
        )
    return base


def _exact(
    answers: Targets, designs: Sequence[Design], used: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(K,) answers that are constraints: without noise, or with less than a fit can tell.

    That is less than 1e-9 of the query's unit over the ``used`` rows, however wide its bounds are.
    """
    exact = answers.exact.copy()
    if isinstance(answers, Answers):
        return exact  # a mechanism's noise is never as small
    errors = root(answers.variances, answers.common_noise)
    small = ~exact & (errors < 2 * _LEAST_ERROR)  # a query in [-1, 1] spans at most 2
    if small.any():
        parts = selected_parts(designs, small)
        units = np.concatenate([typical(part, used) for part in parts])
        exact[small] = errors[small] <= _LEAST_ERROR * units
    return exact


def _clamped(answers: Targets, table: Table) -> list[str]:
    """Where the rows' own values are not what is fitted; a plan has told that already."""
    if isinstance(answers, Answers):
        return []
    columns = answers.schema.columns.items()
    return [note for n, column in columns for note in outside_notes(n, column, table.cells(n))]


def _shortfalls(
    answers: Targets, encoded: Mapping[Feature, EncodedArray], used: NDArray[np.bool_]
) -> list[str]:
    """What no weights of these rows can reach, block by block."""
    queries = answers.queries
    errors = root(answers.variances, answers.common_noise)
    found, every = [], bool(used.all())
    for block, where in zip(queries.blocks, queries.positions, strict=True):
        arrays = [encoded[f] if every else encoded[f][used] for f in block.features]
        found += block.shortfalls(arrays, answers.means[where], errors[where])
    return list(dict.fromkeys(found))
