"""The synthetic table's rows as candidates for a weight: the problem that a fit solves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.engines.base import Table
from retilt.exceptions import InputError
from retilt.measures.base import Feature, FloatArray, IntArray
from retilt.privacy.answers import Answers
from retilt.privacy.plan import Plan
from retilt.tables import check_table, encode, require_columns
from retilt.tilting.problem import Covariance, Problem


def encode_candidates(table: Table, plan: Plan) -> dict[Feature, IntArray]:
    """The plan's columns of a synthetic table, or a refusal of a table that can't have them."""
    check_table(table, plan.schema, "the synthetic table")
    if table.rows == 0:
        raise InputError("the synthetic table has no rows; there is nothing to weigh.")
    return encode(table, plan.queries.features)


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
    def of(cls, table: Table, answers: Answers, base_weights: Any) -> Candidates:
        """From the synthetic table, the answers, and a column or numbers for the base weights."""
        encoded = encode_candidates(table, answers.plan)
        base = base_of(table, base_weights)
        problem = Problem(
            designs=answers.plan.queries.designs(encoded),
            answers=answers.means,
            covariance=Covariance(answers.variances, answers.common_noise),
            base=base,
        )
        return cls(
            problem, tuple(_shortfalls(answers, encoded, base > 0)), _fingerprint(encoded, base)
        )


def _fingerprint(encoded: Mapping[Feature, IntArray], base: FloatArray) -> str:
    """Tells whether two tables have the same measured columns and base weights, row by row."""
    digest = hashlib.sha256(base.tobytes())
    for array in encoded.values():
        digest.update(np.ascontiguousarray(array).tobytes())
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
        raise InputError("base weights: expected numbers, got something else.") from None
    if base.shape != (table.rows,):
        raise InputError(
            f"base weights: got {len(base):,}, expected one for each of {table.rows:,} rows."
        )
    return base


def _shortfalls(
    answers: Answers, encoded: Mapping[Feature, IntArray], used: NDArray[np.bool_]
) -> list[str]:
    """What no weights of these rows can reach, block by block."""
    queries = answers.plan.queries
    errors = np.sqrt(answers.variances + (answers.common_noise**2).sum(axis=1))
    found = []
    for block, where in zip(queries.blocks, queries.positions, strict=True):
        arrays = [encoded[f][used] for f in block.features]
        found += block.shortfalls(arrays, answers.means[where], errors[where])
    return list(dict.fromkeys(found))
