"""Change the privacy code one place at a time: the tests must notice each change.

A mutant is the package with one constant, comparison, operator, condition, rounding or check
changed. Each is made in memory from the syntax tree (the source is never written to) and the
tests that execute the changed lines are run, cheapest first, until one fails. A mutant that no
test notices has survived: either a test is missing, or the change changes nothing that matters,
which ``EQUIVALENT`` then explains.

pytest is started once and collects the tests once. Every mutant is a fork of that process, in
which the code of the functions that changed (and the constants that did) is exchanged in place,
so that whoever imported them has the mutant, too. The first failing test ends the fork.

Run it by ``make mutation``, or::

    python scripts/mutate_privacy.py [--sample N] [--module NAME ...] [--json FILE]

Exit code 0 if the score is at least 95 % (of the mutants that are not explained), 1 if it is
lower, 2 if nothing could be tried. A test that fails without a change is named and left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import hashlib
import importlib
import io
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
LEAST_SCORE = 0.95
PATIENCE = 8.0
"""A test that takes so many seconds more than so many times what it took counts as hung."""

_MEMORY = 4 << 30
"""Bytes that a fork may take: a change can ask for any number of cells."""

MOST_SECONDS = 40.0
"""Of tests for one mutant: those that take longer in all are cut, the slowest first."""


# --- what is changed, and what must notice ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A module whose code is changed.

    Attributes
    ----------
    module
        Its name.
    tests
        Files and folders under ``tests`` that may notice.
    only
        Patterns of the names of functions, methods (``Class.method``) and constants that are
        changed; everything if empty. For modules that hold more than privacy.
    but
        Patterns of names that are not: prose.
    """

    module: str
    tests: tuple[str, ...]
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The module's file."""
        return SOURCE / (self.module.replace(".", "/") + ".py")

    def wants(self, name: str) -> bool:
        """Whether the code of this name is changed."""
        chosen = not self.only or any(fnmatchcase(name, p) for p in self.only)
        return chosen and not any(fnmatchcase(name, p) for p in self.but)


UNITS = tuple(
    f"unit/privacy/test_{name}.py"
    for name in (
        "accounting",
        "allocation",
        "allocation_exact",
        "answers",
        "budget",
        "discretisation",
        "exact",
        "mechanism",
        "plan",
        "sensitivity",
        "unit",
    )
)
BOUNDS = (
    "properties/test_sensitivity.py",
    "properties/test_sensitivity_all.py",
    "properties/test_mutations.py",
)
LEDGER = (
    "unit/privacy/test_ledger.py",
    "unit/privacy/test_account_exact.py",
    "unit/privacy/test_statement.py",
    "cli/test_budget.py",
)
MOMENTS = (
    *BOUNDS,
    "unit/measures/test_moment_bounds.py",
    "unit/measures/test_moments.py",
    "unit/measures/test_second_moments.py",
    "unit/measures/test_balls.py",
    "unit/measures/test_exact.py",
    "unit/measures/test_sums.py",
)
GROUPS = (*MOMENTS, "properties/test_sensitivity_grouped.py", "unit/measures/test_grouped.py")
PARTS = (
    *BOUNDS,
    "properties/test_sensitivity_partitions.py",
    "unit/measures/test_partitions.py",
    "unit/measures/test_marginals.py",
    "unit/measures/test_exact.py",
    "unit/measures/test_sums.py",
    "unit/measures/test_workload.py",
)

TARGETS = (
    Target("retilt.privacy.accounting", (*UNITS, *BOUNDS)),
    Target(
        "retilt.privacy.sensitivity",
        (*UNITS, *BOUNDS, "unit/measures/test_queries.py", "unit/test_overflow.py"),
    ),
    Target("retilt.privacy.mechanism", (*UNITS, *BOUNDS)),
    Target("retilt.privacy.budget", (*UNITS, *LEDGER, "properties/test_mutations.py")),
    Target("retilt.privacy.unit", (*UNITS, *BOUNDS), but=("*.promise", "*._used")),
    Target("retilt.privacy.allocation", (*UNITS, *BOUNDS)),
    Target(
        "retilt.privacy.selection",
        (
            *UNITS,
            "unit/privacy/test_selection.py",
            "unit/privacy/test_noisy_max.py",
            "unit/test_selection.py",
            "properties/test_scores.py",
        ),
        but=("*.to_dict",),
    ),
    Target(
        "retilt.privacy.plan",
        (*UNITS, *BOUNDS, "unit/privacy/test_hostile_files.py", "unit/test_persons.py"),
        only=(
            "Plan.__post_init__",
            "Plan._check_person",
            "Plan.queries",
            "Plan.noise",
            "Plan.counts_rows",
            "Plan.total",
            "Plan.key",
            "terms_of",
            "total_under",
            "plan_from_dict",
        ),
    ),
    Target(
        "retilt.privacy.account",
        LEDGER,
        only=(
            "Account.spent",
            "Account._with",
            "Account.check",
            "Account.check_terms",
            "Account.total",
            "Account._as_budget",
            "Account._amounts",
            "entry_from_dict",
            "amount_of",
            "amount_of_budget",
            "make_cap",
            "account_of",
            "relation_of",
            "stored",
            "_read",
            "_needed",
            "_spent",
        ),
    ),
    Target(
        "retilt.privacy.ledger",
        LEDGER,
        only=(
            "Charge.*",
            "Ledger.open_dataset",
            "Ledger.account",
            "Ledger._account",
            "Ledger.charge",
            "Ledger._end",
            "Ledger._update",
            "Ledger._connected",
            "Ledger._check_file",
            "Ledger._prepare",
            "Ledger._make",
            "Ledger._transaction",
        ),
    ),
    Target("retilt.persons", ("unit/test_persons.py",)),
    Target("retilt.measures.moment_bounds", GROUPS),
    Target("retilt.measures.balls", MOMENTS, only=("_*", "RADIUS", "MAX_STRETCH", "Ball.*")),
    Target("retilt.measures.base", (*MOMENTS, "unit/measures/test_sums.py"), only=("pieces",)),
    Target(
        "retilt.measures.moments",
        MOMENTS,
        only=(
            "_CHUNK",
            "Means.bind",
            "Moments.bind",
            "Moments.__post_init__",
            "Moments._check_ball",
            "Moments._bound_ball",
            "query_key",
            *(
                f"MomentsBlock.{name}"
                for name in (
                    "linear",
                    "features",
                    "_squares",
                    "_complement",
                    "keys",
                    "_widths",
                    "units",
                    "scales",
                    "_beta",
                    "_values",
                    "sensitivity",
                    "sums",
                )
            ),
        ),
    ),
    Target(
        "retilt.measures.second_moments",
        GROUPS,
        only=("SecondMoments.squares", "SecondMoments.pairs", "SecondMoments.size"),
    ),
    Target(
        "retilt.measures.grouped",
        GROUPS,
        only=(
            "_CHUNK",
            "bind_groups",
            *(
                f"GroupedBlock.{name}"
                for name in (
                    "louder",
                    "derived",
                    "cells",
                    "groups",
                    "features",
                    "cell_keys",
                    "keys",
                    "units",
                    "_own_units",
                    "scales",
                    "sensitivity",
                    "located",
                    "sums",
                    "_chunk_sums",
                )
            ),
        ),
    ),
    Target(
        "retilt.measures.grouping",
        (
            *GROUPS,
            "unit/test_clamping.py",
            "unit/measures/test_workload.py",
            "unit/privacy/test_hostile_files.py",
        ),
        only=(
            "LEAST_LOUDNESS",
            "GroupedMeasure.__post_init__",
            "GroupedMeasure._check_loudness",
            "GroupedMeasure.columns",
            "GroupedMeasure.grouped",
            "GroupedMeasure.varying",
            "GroupedMeasure._variable",
            "GroupedMeasure.group_block",
            "_check_clip",
        ),
    ),
    Target(
        "retilt.measures.partitions",
        PARTS,
        only=(
            "MAX_CELLS",
            "partition_sensitivity",
            "check_cells",
            "named_cells",
            "require_edges",
            "check_all_bins",
            "check_bins",
            "ascending",
            *(
                f"Partition.{name}"
                for name in (
                    "features",
                    "labels",
                    "shape",
                    "size",
                    "identity",
                    "_order",
                    "keys",
                    "units",
                    "scales",
                    "sensitivity",
                    "codes",
                    "counts",
                    "sums",
                )
            ),
        ),
    ),
    Target(
        "retilt.measures.nested",
        (*PARTS, "unit/measures/test_nested.py"),
        only=(
            "MAX_NESTED",
            "check_branching",
            "level_sizes",
            "_codes",
            *(
                f"Nested.{name}"
                for name in (
                    "__post_init__",
                    "_levels",
                    "_codes",
                    "depth",
                    "asked",
                    "keys",
                    "units",
                    "scales",
                    "sensitivity",
                    "summed",
                    "sums",
                )
            ),
        ),
    ),
    Target("retilt.measures.marginals", PARTS, only=("Marginal.bind", "Marginal.__post_init__")),
    Target(
        "retilt.measures.rates",
        (*PARTS, "unit/measures/test_rates.py"),
        only=("Share.__post_init__", "Share.columns", "Share.bind"),
    ),
    Target(
        "retilt.measures.distributions",
        (*PARTS, "unit/measures/test_distributions.py"),
        only=("Cdf.__post_init__", "Cdf.bind", "Quantiles.__post_init__", "Quantiles.bind"),
    ),
    Target(
        "retilt.measures.scalars",
        (
            *BOUNDS,
            "unit/measures/test_derived.py",
            "unit/measures/test_exact.py",
            "unit/measures/test_workload.py",
        ),
        only=("Query.__post_init__", "Query.columns", "Query.bind"),
    ),
    Target(
        "retilt.measures.derived",
        (
            *BOUNDS,
            "unit/measures/test_derived.py",
            "unit/measures/test_exact.py",
            "unit/measures/test_calls.py",
            "unit/measures/test_moments.py",
            "unit/measures/test_workload.py",
        ),
    ),
    Target(
        "retilt.measures.calls",
        (*BOUNDS, "unit/measures/test_calls.py", "unit/measures/test_exact.py"),
        but=("*.to_dict",),
    ),
    Target(
        "retilt.measures.queries",
        (*BOUNDS, "unit/measures/test_queries.py", "unit/privacy/test_plan.py"),
        only=("QuerySet._layout", "QuerySet.size", "QuerySet.units", "QuerySet.sums"),
    ),
    Target(
        "retilt.schema.columns",
        ("unit/schema", "properties/test_encode.py", *MOMENTS),
        only=("*.levels", "*.on_lattice", "*.two_valued", "MAX_LEVELS"),
    ),
    Target(
        "retilt.schema.encode",
        (
            "unit/schema",
            "properties/test_encode.py",
            "unit/measures/test_sums.py",
            "unit/measures/test_exact.py",
        ),
        only=(
            "_TICKS",
            "is_text",
            "is_number",
            "is_boolean",
            "is_moment",
            "check_type",
            "values_of",
            "_amounts",
            "_codes",
            "numbers",
            "moments",
            "truths",
            "_number_codes",
            "_text_codes",
            "_as_text",
            "_is_text_dictionary",
            "_dictionary",
            "plain_cells",
            "_to_float",
            "_to_bool",
            "limits",
            "to_grid",
            "to_cells",
        ),
    ),
)
"""To add a module, add a line. Modules that only hold public figures (``linear``) are left out."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Changes that change nothing that matters: module, place, text before and after, why.

    ``after`` may be ``*``: whatever the text becomes.
    """

    module: str
    name: str
    before: str
    after: str
    reason: str


def _equivalent(
    reason: str, places: Mapping[tuple[str, str], Sequence[tuple[str, str]]]
) -> Iterator[Equivalent]:
    """Changes of one reason: by module and name, the texts before and after."""
    for (module, name), changes in places.items():
        for before, after in changes:
            yield Equivalent(f"retilt.{module}", name, before, after, reason)


EQUIVALENT: tuple[Equivalent, ...] = (
    *_equivalent(
        "Where a search starts and how it steps: it ends at the same root.",
        {
            ("privacy.accounting", "gaussian_distance"): [
                ("low, high = (-1.0, 1.0)", "*"),
                ("low -= 2", "low -= 3"),
                ("low -= 2", "low -= 1"),
                ("high += 2", "high += 3"),
                ("high += 2", "high += 1"),
                ("excess(low) > 0", "excess(low) >= 0"),
                ("excess(high) < 0", "excess(high) <= 0"),
                (
                    "low, high = (low, middle) if excess(middle) > 0 else (middle, high)",
                    "low, high = (low, middle) if excess(middle) >= 0 else (middle, high)",
                ),
            ],
        },
    ),
    *_equivalent(
        "A margin for rounding: half or twice of it, too, is far above the error and far "
        "below use.",
        {
            ("privacy.accounting", "gaussian_distance"): [
                ("return math.exp(low) * (1 - 1e-12)", "return math.exp(low) * (1 - 2e-12)"),
                ("return math.exp(low) * (1 - 1e-12)", "return math.exp(low) * (1 - 5e-13)"),
            ],
            ("privacy.budget", "zcdp_to_approx"): [
                (
                    "return (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-13)",
                    "return (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 2e-13)",
                ),
                (
                    "return (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-13)",
                    "return (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 5e-14)",
                ),
            ],
            ("privacy.budget", "zcdp_cap"): [
                (
                    "(epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 1e-12)",
                    "(epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 2e-12)",
                ),
                (
                    "(epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 1e-12)",
                    "(epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 5e-13)",
                ),
            ],
            ("privacy.budget", "Generator.under"): [
                (
                    "ApproxDP(2 * budget.epsilon, _cap(factor * budget.delta * (1 + 1e-13)))",
                    "ApproxDP(2 * budget.epsilon, _cap(factor * budget.delta * (1 + 2e-13)))",
                ),
                (
                    "ApproxDP(2 * budget.epsilon, _cap(factor * budget.delta * (1 + 1e-13)))",
                    "ApproxDP(2 * budget.epsilon, _cap(factor * budget.delta * (1 + 5e-14)))",
                ),
            ],
        },
    ),
    *_equivalent(
        "A margin for rounding: one unit of sixteen more or less still covers both calls of erfcx.",
        {
            ("privacy.accounting", "log_delta"): [
                (
                    "difference = larger - smaller + 16 * sys.float_info.epsilon * larger",
                    "difference = larger - smaller + 17 * sys.float_info.epsilon * larger",
                ),
                (
                    "difference = larger - smaller + 16 * sys.float_info.epsilon * larger",
                    "difference = larger - smaller + 15 * sys.float_info.epsilon * larger",
                ),
            ],
        },
    ),
    *_equivalent(
        "Both formulas hold at the boundary; one rounds delta up by 1e-11 of it.",
        {
            ("privacy.accounting", "log_delta"): [
                ("u < -5", "u <= -5"),
            ],
        },
    ),
    *_equivalent(
        "A limit on public figures, chosen for use: what passes it is calibrated as any other.",
        {
            ("privacy.accounting", "calibrate_approx"): [
                ("left < epsilon / 2", "left <= epsilon / 2"),
            ],
        },
    ),
    *_equivalent(
        "Digits of the root: it is rounded up whatever their number.",
        {
            ("privacy.sensitivity", "sqrt_up"): [
                ("half = max(0, 62 - bits // 2)", "half = max(1, 62 - bits // 2)"),
                ("half = max(0, 62 - bits // 2)", "half = max(0, 63 - bits // 2)"),
                ("half = max(0, 62 - bits // 2)", "half = max(0, 61 - bits // 2)"),
            ],
        },
    ),
    *_equivalent(
        "A start that is always overwritten: every query belongs to a block, every draw "
        "has a place.",
        {
            ("privacy.sensitivity", "loudest"): [
                ("nothing = Fraction(0)", "nothing = Fraction(1)"),
                ("by = [0] * queries.size", "by = [1] * queries.size"),
            ],
            ("privacy.mechanism", "_draw"): [
                ("noise = [0] * len(scales)", "noise = [1] * len(scales)"),
            ],
        },
    ),
    *_equivalent(
        "The ceiling of a positive number is at least 1.",
        {
            ("privacy.sensitivity", "_integer_noise"): [
                (
                    "factor = max(1, math.ceil(LEAST_DEVIATION / in_units))",
                    "factor = max(0, math.ceil(LEAST_DEVIATION / in_units))",
                ),
            ],
        },
    ),
    *_equivalent(
        "From epsilon 691 on the factor times the least delta is past 1, which is "
        "refused either way.",
        {
            ("privacy.budget", "Generator.under"): [
                (
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 700 else math.inf",
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon <= 700 else math.inf",
                ),
                (
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 700 else math.inf",
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 701 else math.inf",
                ),
                (
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 700 else math.inf",
                    "factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 699 else math.inf",
                ),
            ],
        },
    ),
    *_equivalent(
        "Only the exponent of the pattern counts.",
        {
            ("privacy.budget", "rounded_up"): [
                (
                    "last = Decimal(1).scaleb(exact.adjusted() - digits + 1)",
                    "last = Decimal(2).scaleb(exact.adjusted() - digits + 1)",
                ),
                (
                    "last = Decimal(1).scaleb(exact.adjusted() - digits + 1)",
                    "last = Decimal(0).scaleb(exact.adjusted() - digits + 1)",
                ),
            ],
        },
    ),
    *_equivalent(
        "Only the relation is read; the budget stands for any.",
        {
            ("privacy.account", "relation_of"): [
                (
                    "generator = Generator(PureDP(1), neighbours)",
                    "generator = Generator(PureDP(2), neighbours)",
                ),
            ],
        },
    ),
    *_equivalent(
        "The connection is closed next, which rolls back what was not committed.",
        {
            ("privacy.ledger", "Ledger._transaction"): [
                (
                    "if database.in_transaction: database.execute('ROLLBACK')",
                    "if not database.in_transaction: database.execute('ROLLBACK')",
                ),
                ("database.execute('ROLLBACK')", "pass"),
            ],
        },
    ),
    *_equivalent(
        "A row that was inserted has a number above 0.",
        {
            ("privacy.ledger", "Ledger.charge"): [
                ("number = int(cursor.lastrowid or 0)", "number = int(cursor.lastrowid or 1)"),
            ],
        },
    ),
    *_equivalent(
        "The line of the caller that a warning names.",
        {
            ("privacy.ledger", "Charge.answered"): [
                ("stacklevel=4", "stacklevel=5"),
                ("stacklevel=4", "stacklevel=3"),
            ],
        },
    ),
    *_equivalent(
        "How many rows are hashed at a time; the rows chosen are the same.",
        {
            ("persons", "_SLICE"): [
                ("_SLICE = 2 ** 18", "*"),
            ],
            ("persons", "chosen_rows"): [
                ("slices=1 + len(persons) // _SLICE", "slices=2 + len(persons) // _SLICE"),
                ("slices=1 + len(persons) // _SLICE", "slices=1 + len(persons) / _SLICE"),
            ],
        },
    ),
    *_equivalent(
        "Null becomes None in NumPy, which does not count as true either.",
        {
            ("persons", "chosen_rows"): [
                (
                    "named = pc.fill_null(pc.not_equal(texts, pa.scalar(b'', _BYTES)), False)",
                    "named = pc.not_equal(texts, pa.scalar(b'', _BYTES))",
                ),
            ],
        },
    ),
    *_equivalent(
        "Of a person with exactly the most rows all are chosen either way.",
        {
            ("persons", "chosen_rows"): [
                (
                    "many = np.bincount(numbers)[numbers] > max_rows",
                    "many = np.bincount(numbers)[numbers] >= max_rows",
                ),
            ],
        },
    ),
    *_equivalent(
        "Errors are proportional to so little noise.",
        {("privacy.allocation", "_SMALL"): [("_SMALL = 1e-06", "*")]},
    ),
    *_equivalent(
        "Only where nothing is asked, or nothing weighs anything, and the result is the same.",
        {
            ("privacy.allocation", "_as_fractions"): [
                ("top <= 0", "top < 0"),
                ("top = max(wanted, default=0.0)", "top = max(wanted, default=1.0)"),
            ],
            ("privacy.allocation", "count_scale"): [
                ("common = max(own, default=1.0) or 1.0", "common = max(own, default=1.0) or 2.0"),
                ("common = max(own, default=1.0) or 1.0", "common = max(own, default=1.0) or 0.5"),
                ("common = max(own, default=1.0) or 1.0", "common = max(own, default=2.0) or 1.0"),
                ("common = max(own, default=1.0) or 1.0", "common = max(own, default=0.5) or 1.0"),
            ],
            ("privacy.allocation", "_scale"): [
                (
                    "weight <= 0 or not math.isfinite(weight)",
                    "weight < 0 or not math.isfinite(weight)",
                ),
            ],
        },
    ),
    *_equivalent(
        "The general formula gives the same there: two rows of one group are no farther apart "
        "than twice the length of one, so nothing is free, and the larger of the two bounds is "
        "the one that is taken.",
        {
            ("measures.moment_bounds", "free_count"): [
                (
                    "relation is Relation.ADD_REMOVE or (norm == 1 and several)",
                    "relation is Relation.ADD_REMOVE and (norm == 1 and several)",
                ),
                (
                    "relation is Relation.ADD_REMOVE or (norm == 1 and several)",
                    "relation is Relation.ADD_REMOVE or (norm == 0 and several)",
                ),
            ],
            ("measures.moment_bounds", "grouped_sensitivity"): [
                ("norm == 1 and several", "norm == 0 and several"),
            ],
        },
    ),
    *_equivalent(
        "Of two ascending bounds the lower is the larger in size where the upper is negative.",
        {
            ("measures.derived", "check_span"): [
                (
                    "largest, span = (max(abs(lower), abs(upper)), upper - lower)",
                    "largest, span = (max(abs(lower), upper), upper - lower)",
                ),
            ],
        },
    ),
    *_equivalent(
        "Both give the same number of levels at the limit.",
        {
            ("schema.columns", "Numeric.levels"): [
                (
                    "return int(span) if self.integer and span <= MAX_LEVELS else MAX_LEVELS",
                    "return int(span) if self.integer and span < MAX_LEVELS else MAX_LEVELS",
                ),
            ],
        },
    ),
    *_equivalent(
        "Fields are read when the class is made, which the script can't undo. Compared, two "
        "callables would only be told apart by their own equality, too.",
        {("measures.calls", "Call.function"): [("field(compare=False)", "field(compare=True)")]},
    ),
    *_equivalent(
        "Both formulas give the same there.",
        {
            ("measures.moment_bounds", "centred_sensitivity"): [
                (
                    "return (d + a) ** 2 / 2 if a <= d else 2 * a * d",
                    "return (d + a) ** 2 / 2 if a < d else 2 * a * d",
                ),
                (
                    "return (d + r) ** 2 if r <= d else 4 * r * d",
                    "return (d + r) ** 2 if r < d else 4 * r * d",
                ),
            ],
        },
    ),
    *_equivalent(
        "Rows at a time: half or twice as many are as exact, and no row or one is one chunk, too.",
        {
            ("measures.moments", "_CHUNK"): [
                ("_CHUNK = 2 ** 20", "_CHUNK = 2 ** 21"),
                ("_CHUNK = 2 ** 20", "_CHUNK = 2 ** 19"),
            ],
            ("measures.grouped", "_CHUNK"): [
                ("_CHUNK = 2 ** 20", "_CHUNK = 2 ** 21"),
                ("_CHUNK = 2 ** 20", "_CHUNK = 2 ** 19"),
            ],
            ("measures.base", "pieces"): [
                (
                    "[slice(start, start + size) for start in range(0, max(rows, 1), size)]",
                    "[slice(start, start + size) for start in range(0, max(rows, 2), size)]",
                ),
            ],
        },
    ),
    *_equivalent(
        "The two are of the same length.",
        {
            ("measures.moments", "MomentsBlock.scales"): [
                (
                    "squares, pairs = (len(self._squares), len(self._pairs[0]))",
                    "squares, pairs = (len(self._squares), len(self._pairs[1]))",
                ),
            ],
            ("measures.second_moments", "SecondMoments.size"): [
                (
                    "return len(self.columns) + len(self.squares) + len(self.pairs[0])",
                    "return len(self.columns) + len(self.squares) + len(self.pairs[1])",
                ),
            ],
            ("measures.grouped", "GroupedBlock.scales"): [
                (
                    "*(Fraction(1),) * len(self.derived.pairs[0])",
                    "*(Fraction(1),) * len(self.derived.pairs[1])",
                ),
            ],
        },
    ),
    *_equivalent(
        "One column has no pair, as none has.",
        {
            ("measures.second_moments", "SecondMoments.pairs"): [
                (
                    "return np.triu_indices(len(self.columns) if self.order == 2 else 0, 1)",
                    "return np.triu_indices(len(self.columns) if self.order == 2 else 1, 1)",
                ),
            ],
        },
    ),
    *_equivalent(
        "Overwritten in the same statement: the loudnesses are those that `louder` gives.",
        {
            ("measures.grouped", "bind_groups"): [
                ("loudness=Fraction(1)", "*"),
                ("count=Fraction(1)", "*"),
            ],
        },
    ),
    *_equivalent(
        "Rows of no group are counted in cells that are dropped, however many there are.",
        {
            ("measures.grouped", "GroupedBlock._chunk_sums"): [("size = self.cells + 1", "*")],
        },
    ),
    *_equivalent(
        "A limit on sizes, one more or less.",
        {
            ("measures.grouped", "bind_groups"): [("asked > MAX_CELLS", "asked >= MAX_CELLS")],
        },
    ),
    *_equivalent(
        "Wording: how a number of cells that is refused is told.",
        {
            ("measures.partitions", "check_cells"): [
                ("size = f'{block.size:,}' if block.size < 10 ** 15 else 'more than 1e15'", "*"),
            ],
        },
    ),
    *_equivalent(
        "Callables are only tried out so: what is told apart is far smaller than any use of other "
        "rows, and NumPy takes any negative number for the length that is left.",
        {
            ("measures.calls", "_row_by_row"): [
                (
                    "np.allclose(together, other, rtol=1e-09, atol=1e-12, equal_nan=True)",
                    "np.allclose(together, other, rtol=1e-09, atol=2e-12, equal_nan=True)",
                ),
                (
                    "np.allclose(together, other, rtol=1e-09, atol=1e-12, equal_nan=True)",
                    "np.allclose(together, other, rtol=1e-09, atol=5e-13, equal_nan=True)",
                ),
                (
                    "[_row_outputs(call, batch.slice(i, 1)).reshape(1, -1) for i in range(rows)]",
                    "[_row_outputs(call, batch.slice(i, 1)).reshape(1, -2) for i in range(rows)]",
                ),
            ],
        },
    ),
    *_equivalent(
        "The reshape that follows refuses it as well: two numbers a row are not one.",
        {
            ("measures.calls", "_numbers"): [
                (
                    "call.size > 1 or found.shape != (rows,)",
                    "call.size > 2 or found.shape != (rows,)",
                ),
            ],
        },
    ),
    *_equivalent(
        "Categories are distinct: there is no order among equals to keep.",
        {
            ("schema.encode", "_number_codes"): [
                ("order = np.argsort(listed, kind='stable')", "order = np.argsort(listed)"),
            ],
        },
    ),
    *_equivalent(
        "Edges lie within the bounds: what is beyond falls in the first or last bin as it is.",
        {
            ("schema.encode", "to_cells"): [
                (
                    "values = np.clip(_amounts(column, cells), *limits(column))",
                    "values = _amounts(column, cells)",
                ),
            ],
        },
    ),
    *_equivalent(
        "A cast that loses nothing, checked or not.",
        {
            ("schema.encode", "moments"): [
                ("days = cells.cast(pa.int32()).cast(pa.float64(), safe=False)", "*"),
            ],
            ("schema.encode", "truths"): [
                ("found = _to_float(cells.cast(pa.float64(), safe=False))", "*"),
            ],
        },
    ),
    *_equivalent(
        "What stands in for null is never looked at: nulls are told by a mask of their own, or "
        "come out as NaN in any case.",
        {
            ("schema.encode", "_dictionary"): [
                ("values = pa.chunked_array([*listed, pa.nulls(1, text)], text)", "*"),
                ("pc.fill_null(own, 0).to_numpy() + starts", "*"),
            ],
            ("schema.encode", "_to_float"): [
                (
                    "found = np.asarray(pc.fill_null(cells, np.nan).to_numpy(), dtype=np.float64)",
                    "found = np.asarray(cells.to_numpy(), dtype=np.float64)",
                ),
            ],
            ("schema.encode", "_to_bool"): [
                (
                    "return np.asarray(pc.fill_null(cells, False).to_numpy(), dtype=np.bool_)",
                    "*",
                ),
            ],
        },
    ),
    *_equivalent(
        "A word that no category is: any other such word would do.",
        {
            ("schema.encode", "_as_text"): [
                ("next((str(c) for c in column.categories if c in words), words[0])", "*"),
            ],
        },
    ),
)


# --- mutants -------------------------------------------------------------------------------

_COMPARED: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""The other side of the boundary, and the opposite."""

_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}

_SWAPPED = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "ceil": "floor",
    "floor": "ceil",
    "any": "all",
    "all": "any",
    "REPLACE": "ADD_REMOVE",
    "ADD_REMOVE": "REPLACE",
    "ROUND_CEILING": "ROUND_FLOOR",
}
"""Names for which others can stand."""

_UNWRAPPED = {
    "clip",
    "sqrt_up",
    "float_up",
    "rational_sqrt_down",
    "nextafter",
    "_cap",
    "abs",
    "round",
    "floor",
    "ceil",
    "sort",
    "fill_null",
}
"""Functions that are left out: their first argument stands instead of the call."""

_DROPPED = {"max_rows", "persons", "safe", "minlength", "side", "kind", "method", "key"}
"""Arguments that are left to their defaults."""

_UNTOUCHED = {"strict", "keepdims", "ensure_ascii", "copy", "allow_nan", "zero_copy_only"}
"""Arguments whose value is left alone: they check, or shape, what is right anyway."""


@dataclass(slots=True)
class Mutant:
    """One change.

    Attributes
    ----------
    target, name, line
        Where: the outermost function, method or constant.
    lines
        The statement's, whose execution tells which tests can notice.
    inside
        Whether it is in a function's body, which tests reach; else importing runs it.
    before, after
        The changed expression or statement.
    tree, apply
        The module's, and what makes the change in it and gives it.
    status, by
        ``killed``, ``timed out``, ``survived`` or ``untried``; the test that noticed.
    reason
        Why it is equivalent, if it is known to be.
    """

    target: Target
    name: str
    line: int
    lines: range
    inside: bool
    before: str
    after: str
    tree: ast.Module
    apply: Callable[[], ast.Module]
    status: str = "untried"
    by: str = ""
    reason: str = ""

    @property
    def caught(self) -> bool:
        """Whether the tests noticed."""
        return self.status in ("killed", "timed out")

    def record(self) -> dict[str, Any]:
        """The mutant as JSON."""
        kept = ("name", "line", "before", "after", "status", "by", "reason")
        return {"module": self.target.module, **{k: getattr(self, k) for k in kept}}


@dataclass
class Source:
    """A target's syntax tree with what each node belongs to."""

    target: Target
    tree: ast.Module
    parents: dict[ast.AST, tuple[ast.AST, str, int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, target: Target, text: str) -> Source:
        """The tree of a module's text."""
        source = cls(target, ast.parse(text))
        for parent in ast.walk(source.tree):
            for name, value in ast.iter_fields(parent):
                for place, child in enumerate(value if isinstance(value, list) else [value]):
                    if isinstance(child, ast.AST):
                        where = (parent, name, place if isinstance(value, list) else None)
                        source.parents[child] = where
        return source

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What the node stands in, from the inside out."""
        while node in self.parents:
            node = self.parents[node][0]
            yield node

    def name(self, node: ast.AST) -> str:
        """The outermost function or method, or the constant, that a node belongs to."""
        scopes = [n for n in (node, *self.above(node)) if not isinstance(n, ast.Module)]
        names = []
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef):
                names.append(scope.name)
            elif isinstance(scope, ast.FunctionDef):
                return ".".join([*names, scope.name])
            elif isinstance(scope, (ast.Assign, ast.AnnAssign)):
                first = scope.targets[0] if isinstance(scope, ast.Assign) else scope.target
                return ".".join([*names, ast.unparse(first)])
        return ".".join(names)

    def mutants(self) -> Iterator[Mutant]:
        """Every change of every node that counts."""
        skipped: set[ast.AST] = set()
        for node in ast.walk(self.tree):
            if node in skipped or _is_prose(node, self.parents):
                skipped.update(ast.iter_child_nodes(node))
                if not isinstance(node, ast.Raise):
                    continue
            name = self.name(node)
            if name and self.target.wants(name):
                for other in changes(node):
                    yield self._mutant(name, node, other)

    def _mutant(self, name: str, node: ast.AST, other: ast.AST) -> Mutant:
        parent, slot, place = self.parents[node]

        def replace(new: ast.AST) -> None:
            if place is None:
                setattr(parent, slot, new)
            else:
                getattr(parent, slot)[place] = new

        shown = self._shown(node)
        before = _text(shown)
        replace(other)
        after = _text(other if shown is node else shown)
        replace(node)

        def apply() -> ast.Module:
            replace(ast.copy_location(other, node))
            return ast.fix_missing_locations(self.tree)

        statement = next(n for n in (node, *self.above(node)) if isinstance(n, ast.stmt))
        spanned: Any = statement
        if isinstance(statement, (ast.If, ast.While)):
            spanned = statement.test
        elif isinstance(statement, (ast.For, ast.With, ast.FunctionDef, ast.ClassDef)):
            spanned = node if hasattr(node, "lineno") else statement
        lines = range(spanned.lineno, spanned.end_lineno + 1)
        line = getattr(node, "lineno", spanned.lineno)
        return Mutant(
            self.target, name, line, lines, self._inside(node), before, after, self.tree, apply
        )

    def _inside(self, node: ast.AST) -> bool:
        """Whether a node is in the body of a function."""
        chain = [node, *self.above(node)]
        return any(
            isinstance(outer, ast.FunctionDef) and self.parents[inner][1] == "body"
            for inner, outer in pairwise(chain)
        )

    def _shown(self, node: ast.AST) -> ast.AST:
        """The largest short expression around a node, so that its text says where it is."""
        shown = node
        while True:
            parent = self.parents[shown][0]
            inside = isinstance(parent, (ast.expr, ast.keyword, ast.comprehension, ast.Slice))
            simple = isinstance(parent, (ast.Return, ast.Assign, ast.AugAssign, ast.Expr))
            if not (inside or simple) or len(_text(parent)) > 76:
                return shown
            shown = parent


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _is_prose(node: ast.AST, parents: Mapping[ast.AST, Any]) -> bool:
    """Annotations, decorators, assertions for the type checker, error texts, such imports."""
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword) and node.arg in _UNTOUCHED:
        return True
    if node not in parents:
        return False
    _, slot, _ = parents[node]
    return slot in ("annotation", "returns", "decorator_list")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is changed to, one at a time."""
    if isinstance(node, ast.Constant):
        yield from (ast.Constant(v) for v in _constants(node.value))
    elif isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in _COMPARED[type(operator)]:
                changed = copy.copy(node)
                changed.ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        changed = copy.copy(node)
        changed.op = _OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        yield ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)
        yield ast.Pass()
    elif isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed
    elif isinstance(node, ast.Name) and node.id in _SWAPPED:
        yield ast.Name(_SWAPPED[node.id], node.ctx)
    elif isinstance(node, ast.Attribute) and node.attr in _SWAPPED:
        yield ast.Attribute(node.value, _SWAPPED[node.attr], node.ctx)
    elif isinstance(node, ast.Attribute) and node.attr == "inf":
        yield ast.UnaryOp(ast.USub(), node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(value: object) -> tuple[int | float | bool, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1) if value else (1,)
    if isinstance(value, float):
        return (2 * value, value / 2) if value else (1.0,)
    return ()


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    called = node.func.id if isinstance(node.func, ast.Name) else called
    if called in _UNWRAPPED and node.args:
        yield node.args[0]
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in _DROPPED:
            changed = copy.copy(node)
            changed.keywords = [*node.keywords[:i], *node.keywords[i + 1 :]]
            yield changed


def all_mutants(targets: Sequence[Target]) -> list[Mutant]:
    """Every mutant of some targets, and which of them are known to be equivalent."""
    found = []
    for target in targets:
        found += Source.of(target, target.path.read_text(encoding="utf-8")).mutants()
    for mutant in found:
        for known in EQUIVALENT:
            place = (mutant.target.module, mutant.name, mutant.before)
            same = place == (known.module, known.name, known.before)
            if same and known.after in ("*", mutant.after):
                mutant.reason = known.reason
    return found


# --- a mutant in a living process ----------------------------------------------------------

_CACHED = type(functools.cache(len))
_PLAIN = (int, float, str, tuple, frozenset, dict, Fraction, Enum, types.NoneType)


def transplant(target: Target, tree: ast.Module) -> int:
    """Exchange what the changed module defines differently in the one that is imported.

    Returns how many functions and constants were exchanged.
    """
    live = importlib.import_module(target.module)
    fresh = types.ModuleType(target.module)
    fresh.__file__ = live.__file__
    fresh.__package__ = live.__package__
    # Dataclasses look their module up by its name.
    sys.modules[target.module] = fresh
    try:
        exec(compile(tree, str(target.path), "exec"), vars(fresh))
    finally:
        sys.modules[target.module] = live
    changed = _exchange(vars(live), vars(fresh), live)
    forget()
    return changed


def forget() -> None:
    """Empty the package's caches: what was remembered may be what a change changes."""
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith("retilt.") else ():
            if isinstance(value, _CACHED):
                value.cache_clear()


def _exchange(live: Mapping[str, Any], fresh: Mapping[str, Any], owner: Any) -> int:
    changed = 0
    for name, new in fresh.items():
        old = live.get(name)
        if name.startswith("__") and name not in ("__init__", "__post_init__", "__repr__"):
            continue
        pairs = list(zip(_functions(old), _functions(new), strict=False))
        for mine, other in pairs:
            changed += _exchange_code(mine, other)
        if isinstance(old, type) and isinstance(new, type) and old.__module__ == new.__module__:
            changed += _exchange(vars(old), vars(new), old)
        elif not pairs and isinstance(new, _PLAIN) and repr(old) != repr(new):
            changed += 1
            _install(name, old, new, owner)
    return changed


def _functions(value: object) -> Iterator[types.FunctionType]:
    """The Python functions in a property, a cached property, a method or a wrapped function."""
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        inside = getattr(value, attribute, None)
        if inside is not None:
            yield from _functions(inside)
    if isinstance(value, types.FunctionType):
        yield value


def _exchange_code(mine: types.FunctionType, other: types.FunctionType) -> int:
    changed = 0
    if mine.__code__ != other.__code__:
        mine.__code__ = other.__code__
        changed += 1
    for defaults in ("__defaults__", "__kwdefaults__"):
        new, old = getattr(other, defaults), getattr(mine, defaults)
        values = [*new.values()] if isinstance(new, dict) else [*(new or ())]
        if repr(new) != repr(old) and all(isinstance(v, _PLAIN) for v in values):
            setattr(mine, defaults, new)
            changed += 1
    return changed


def _install(name: str, old: object, new: object, owner: Any) -> None:
    """Set a constant where it is defined, and under its name wherever it was imported to."""
    setattr(owner, name, new)
    if isinstance(owner, types.ModuleType) and not name.startswith("_"):
        for module in list(sys.modules.values()):
            if module is not None and vars(module).get(name, owner) is old:
                setattr(module, name, new)


# --- forks of pytest -----------------------------------------------------------------------


@dataclass
class Baseline:
    """What the tests do without a change: seconds of each, and the tests of each line."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    reached: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))


_BROKEN = 4
"""Exit code of a fork in which not a test but this script failed."""


class Driver:
    """A pytest plugin that runs forks of the session instead of its tests."""

    def __init__(self, mutants: list[Mutant], jobs: int, kept: dict[str, Any]) -> None:
        self.mutants = mutants
        self.jobs = jobs
        self.kept = kept
        """What was measured of unchanged tests, by a digest of them and the source."""

        self.baseline = Baseline()
        self.broken: list[str] = []
        """What makes a run impossible."""

        self.pipe = -1
        """Where a fork writes; -1 in the parent."""

        self.watch: Mapping[str, float] = {}

    # Hooks of pytest.

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """The same examples of Hypothesis in every fork, and no time for the smallest one."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutation", deadline=None, database=None, derandomize=True, phases=phases
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In the parent: everything. In a fork: nothing, the session's own loop is wanted."""
        if self.pipe >= 0:
            return None
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        items = [i for i in session.items if not _left_out(i)]
        forget()  # a database that was opened here must not be closed in a fork
        self._measure(session, items)
        if not self.broken:
            failed = set(self.baseline.failed)
            self._try_all(session, [i for i in items if i.nodeid not in failed])
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In a fork: the first failure ends it."""
        if self.pipe >= 0 and report.failed and self.watch:
            os.write(self.pipe, report.nodeid.encode())
            os._exit(1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """In a fork: a test that takes far too long ends it."""
        if self.pipe >= 0 and self.watch:
            usual = self.watch.get(nodeid, 0.0)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE * (1 + usual))

    # Without a change.

    def _measure(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Run every test once, file by file in forks, and record what it reaches."""
        files = defaultdict(list)
        for item in items:
            files[item.nodeid.partition("::")[0]].append(item)
        known = {name: self.kept[k] for name in files if (k := _digest(name)) in self.kept}
        todo = [name for name in files if name not in known]
        work = [functools.partial(self._record, session, files[name]) for name in todo]
        for done, (number, text, status) in enumerate(self._forks(work), 1):
            _say(f"unchanged: {done} of {len(work)} test files")
            name = todo[number]
            if status:
                self.broken.append(f"{name}: exit code {status}\n{text.decode()}")
            else:
                known[name] = json.loads(text)
        for found in known.values():
            self.baseline.seconds.update(found["seconds"])
            self.baseline.failed += found["failed"]
            for path, lines in found["reached"].items():
                for line, tests in lines.items():
                    where = (str(ROOT / path), int(line))
                    self.baseline.reached[where].update(found["tests"][t] for t in tests)
        self.kept.update({_digest(name): found for name, found in known.items()})

    def _record(self, session: pytest.Session, items: list[pytest.Item]) -> NoReturn:
        import coverage

        paths = [str(t.path) for t in TARGETS]
        tracer = coverage.Coverage(data_file=None, include=paths, config_file=False)
        tracer.set_option("run:disable_warnings", ["no-data-collected"])
        recorder = _Recorder(tracer)
        session.config.pluginmanager.register(recorder)
        tracer.start()
        _run(session, items)
        tracer.stop()
        data = tracer.get_data()
        tests = list(recorder.seconds)
        places = {test: place for place, test in enumerate(tests)}
        reached = {
            str(Path(path).relative_to(ROOT)): {
                line: [places[c] for c in contexts if c in places]
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }
        found = {"tests": tests, "seconds": recorder.seconds, "failed": recorder.failed}
        _write(self.pipe, json.dumps({**found, "reached": reached}).encode())
        os._exit(0)

    # With changes.

    def _try_all(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        by_id = {item.nodeid: item for item in items}
        killers: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

        def attempt(mutant: Mutant, *, change: bool = True) -> NoReturn:
            seconds = self.baseline.seconds
            usual = killers[mutant.target.module, mutant.name]
            chosen = [t for t in self._tests(mutant) if t in by_id]
            chosen.sort(key=lambda t: (-usual[t], seconds.get(t, 0.0)))
            kept, spent = [], 0.0
            for test in chosen:
                spent += seconds.get(test, 0.0)
                if kept and spent > (MOST_SECONDS if change else 3):
                    break
                kept.append(test)
            self.watch = {t: seconds.get(t, 0.0) for t in kept} or {"": 0.0}
            try:
                exchanged = transplant(mutant.target, mutant.apply() if change else mutant.tree)
            except Exception as error:  # the module can't even be imported
                os.write(self.pipe, f"import: {type(error).__name__}".encode())
                os._exit(1)
            if bool(exchanged) is not change:
                os.write(self.pipe, f"{exchanged} things changed".encode())
                os._exit(0 if change else _BROKEN)
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, resource.RLIM_INFINITY))
            _run(session, [by_id[t] for t in kept])
            os._exit(0)

        # One of each module that is not changed must survive: a fork by itself breaks nothing.
        firsts = {m.target.module: m for m in self.mutants}.values()
        work = [functools.partial(attempt, m, change=False) for m in firsts]
        for number, text, status in self._forks(work):
            if status:
                name = list(firsts)[number].target.module
                self.broken.append(f"{name} as it is: {status} {text.decode()}")
                return
        work = [functools.partial(attempt, m) for m in self.mutants]
        for done, (number, text, status) in enumerate(self._forks(work), 1):
            mutant = self.mutants[number]
            mutant.by = text.decode() or f"exit code {status}"
            if status == _BROKEN:
                raise RuntimeError(mutant.by)
            mutant.status = {0: "survived", -signal.SIGALRM: "timed out"}.get(status, "killed")
            if mutant.status == "killed":
                killers[mutant.target.module, mutant.name][mutant.by] += 1
            survivors = sum(m.status == "survived" for m in self.mutants)
            _say(f"{done} of {len(self.mutants)} mutants, {survivors} survivors")

    def _tests(self, mutant: Mutant) -> set[str]:
        """The tests that execute a mutant's statement; all of the target's for a constant."""
        own = tuple(f"tests/{t}" for t in mutant.target.tests)
        path = str(mutant.target.path)
        found = set()
        for line in mutant.lines:
            found |= self.baseline.reached.get((path, line), set())
        if not mutant.inside:
            found = set(self.baseline.seconds)
        return {t for t in found if t.startswith(own)}

    def _forks(self, work: Sequence[Callable[[], NoReturn]]) -> Iterator[tuple[int, bytes, int]]:
        """Run pieces of work in forks; yield each one's number, output and exit code."""
        waiting = list(enumerate(work))[::-1]
        running: dict[int, tuple[int, int, list[bytes]]] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                number, piece = waiting.pop()
                read, write = os.pipe()
                sys.stdout.flush()
                child = os.fork()
                if child == 0:
                    os.close(read)
                    self.pipe = write
                    _silence()
                    try:
                        piece()
                    except BaseException:
                        _write(write, traceback.format_exc().encode())
                    finally:
                        os._exit(_BROKEN)
                os.close(write)
                running[read] = (child, number, [])
            ready, _, _ = select.select(list(running), [], [])
            for end in ready:
                child, number, parts = running[end]
                part = os.read(end, 1 << 20)
                if part:
                    parts.append(part)
                    continue
                os.close(end)
                del running[end]
                _, status = os.waitpid(child, 0)
                yield number, b"".join(parts), os.waitstatus_to_exitcode(status)


class _Recorder:
    """What each test takes, and which one is running."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tracer.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def _run(session: pytest.Session, items: list[pytest.Item]) -> None:
    """The session's own loop over some tests."""
    session.items = items
    with contextlib.suppress(session.Interrupted, session.Failed):
        session.config.hook.pytest_runtestloop(session=session)


def _left_out(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("noise", "slow"))


@functools.cache
def _digest(tests: str) -> str:
    """Of a file of tests and everything that it may run."""
    files = [*sorted(SOURCE.rglob("*.py")), ROOT / "tests" / "conftest.py", ROOT / tests]
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _write(pipe: int, text: bytes) -> None:
    while text:
        text = text[os.write(pipe, text) :]


def _say(text: str) -> None:
    """Progress, for a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# --- the whole -----------------------------------------------------------------------------


def run(mutants: list[Mutant], *, jobs: int, kept: dict[str, Any] | None = None) -> int:
    """Try mutants and note in each what became of it; 0, or 2 if the unchanged tests fail."""
    tests = dict.fromkeys(t for m in mutants for t in m.target.tests)
    driver = Driver(mutants, jobs, {} if kept is None else kept)
    with tempfile.TemporaryDirectory(prefix="retilt-mutation-") as folder:
        # Forks share the folder of temporary files, and the tracer that can tell tests apart.
        os.environ |= {"PYTEST_DEBUG_TEMPROOT": folder, "COVERAGE_CORE": "ctrace"}
        options = ["-qq", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
        options += [f"--rootdir={ROOT}", "--hypothesis-profile=mutation", "--capture=no"]
        paths = [str(ROOT / "tests" / t) for t in tests]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = pytest.main([*options, *paths], plugins=[driver])
    for failed in driver.baseline.failed:
        print(f"fails without a change, and is left out: {failed}", file=sys.stderr)
    for broken in driver.broken or ([said.getvalue()] if status else []):
        print(broken, file=sys.stderr)
    return 2 if status or driver.broken else 0


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of mutants. The score counts what is explained as not caught."""

    mutants: int
    killed: int
    timed_out: int
    explained: int
    survived: int

    @classmethod
    def of(cls, mutants: Sequence[Mutant]) -> Score:
        """Count."""
        explained = sum(not m.caught and bool(m.reason) for m in mutants)
        killed, late = (sum(m.status == s for m in mutants) for s in ("killed", "timed out"))
        return cls(len(mutants), killed, late, explained, len(mutants) - killed - late - explained)

    @property
    def score(self) -> float:
        """Share that is caught of the mutants that no explanation calls equivalent."""
        return (self.killed + self.timed_out) / max(self.mutants - self.explained, 1)


def table(mutants: Sequence[Mutant]) -> Iterator[str]:
    """A line for each module, and their total."""
    width = max(len(t.module) for t in TARGETS)
    heads = ("mutants", "killed", "timed out", "explained", "survived", "score")
    yield f"{'module':{width}}" + "".join(f"{h:>11}" for h in heads)
    groups = defaultdict(list)
    for mutant in mutants:
        groups[mutant.target.module].append(mutant)
    for name, own in [*groups.items(), ("all", list(mutants))]:
        score = Score.of(own)
        counts = (score.mutants, score.killed, score.timed_out, score.explained, score.survived)
        yield f"{name:{width}}" + "".join(f"{c:>11,}" for c in counts) + f"{score.score:>11.1%}"


def survivors(mutants: Sequence[Mutant], *, explained: bool) -> Iterator[str]:
    """Where each survivor is, and what was changed."""
    for m in mutants:
        if not m.caught and bool(m.reason) is explained:
            place = f"{m.target.path.relative_to(ROOT)}:{m.line} {m.name}"
            yield f"{place}\n    {m.before}\n -> {m.after}" + f"\n    {m.reason}" * explained


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[k] for k in ("module", "name", "before", "after"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", nargs="+", default=["*"], help="only modules of these names")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="only what survived in a file of --json"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="keep what the unchanged tests do in a file"
    )
    parser.add_argument("--list", action="store_true", help="only count the mutants")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every mutant, to a file")
    given = parser.parse_args(arguments)
    wanted = [t for t in TARGETS if any(fnmatchcase(t.module, f"*{m}") for m in given.module)]
    mutants = all_mutants(wanted)
    if given.again is not None:
        records = json.loads(given.again.read_text(encoding="utf-8"))["all"]
        left = {_place(r) for r in records if r["status"] in ("survived", "untried")}
        mutants = [m for m in mutants if _place(m.record()) in left]
    if given.sample is not None:
        chosen = random.Random(given.seed).sample(range(len(mutants)), given.sample)
        mutants = [mutants[i] for i in sorted(chosen)]
    started = time.monotonic()
    kept = {}
    if given.baseline is not None and given.baseline.exists():
        kept = json.loads(given.baseline.read_text(encoding="utf-8"))
    status = 0 if given.list else run(mutants, jobs=given.jobs, kept=kept)
    if given.baseline is not None:
        given.baseline.write_text(json.dumps(kept), encoding="utf-8")
    _say("")
    if status == 0 and not given.list:
        print(*survivors(mutants, explained=True), sep="\n")
        print(*survivors(mutants, explained=False), sep="\n")
    print(*table(mutants), sep="\n")
    score = Score.of(mutants)
    print(f"{score.score:.1%} of {score.mutants:,} in {(time.monotonic() - started) / 60:.0f} min")
    if given.json is not None:
        content = {**asdict(score), "score": score.score, "all": [m.record() for m in mutants]}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return status or int(not given.list and score.score < LEAST_SCORE)


if __name__ == "__main__":
    sys.exit(main())
