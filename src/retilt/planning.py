"""Decide what to measure and how loud, on the synthetic table alone.

The synthetic table stands in for the private one: it lends bounds and bin edges that the schema
leaves out, and predicts every error. Nothing here can open the private table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retilt._input import kind_of
from retilt.candidates import plan_designs
from retilt.clamping import Clamping, clamp_note
from retilt.clipping import Clipping, clip_note
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.evaluation import correlation_matrix
from retilt.exceptions import (
    InputError,
    SchemaError,
    WorkloadError,
)
from retilt.fitting import check_designs
from retilt.measures.base import (
    Basis,
    Feature,
    FloatArray,
    IntArray,
    Measure,
    Reading,
    Terms,
    Tunable,
)
from retilt.measures.calls import check_callables
from retilt.measures.distributions import QuantileBlock, wide_note
from retilt.measures.entries import SQL_FIELDS, check_expressions, listed
from retilt.measures.grouping import GroupedMeasure
from retilt.measures.marginals import MarginalBlock
from retilt.measures.moments import MomentsBlock
from retilt.measures.nested import Nested
from retilt.measures.partitions import Partition, rare
from retilt.measures.queries import QuerySet, describe_duplicates, gather
from retilt.measures.workload import Workload
from retilt.privacy.allocation import (
    Importance,
    block_scales,
    count_scale,
    importances_of,
    length_of,
)
from retilt.privacy.answers import Answers, make_answers
from retilt.privacy.budget import (
    ApproxDP,
    Budget,
    Generator,
    PureDP,
    describe,
    make_budget,
)
from retilt.privacy.plan import Plan, terms_of, total_under
from retilt.privacy.selection import (
    DEFAULT_SHARE,
    Selection,
    budget_of_choice,
    check_choose,
    check_share,
    rest_of,
)
from retilt.privacy.sensitivity import (
    choice_sensitivities,
    joint_sensitivity,
    norm_of,
    unit_deviation,
)
from retilt.privacy.unit import ReplaceOneRow, Unit, parse_unit
from retilt.resolving import resolve_guards, with_edges
from retilt.schema.columns import Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import numbers, to_unit
from retilt.schema.formats import Declared, load_declared, resolve
from retilt.tables import outside_notes, require_columns

if TYPE_CHECKING:
    import pyarrow as pa


def plan(
    synthetic: Any,
    workload: Workload,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    rows: int | None = None,
    unit: Unit | str = ReplaceOneRow(),  # noqa: B008  (a frozen value)
    generator: Generator | None = None,
    schema: Any = None,
    basis: Basis = "centred",
    select: int | None = None,
    select_share: float | None = None,
) -> Plan:
    """Decide what will be measured and how loud, without the private table.

    Parameters
    ----------
    synthetic
        The synthetic table: a frame or a path. It lends bounds, categories and bin edges
        that the schema leaves out, and stands in for the private table in predictions.
    workload
        What should agree.
    epsilon, delta, rho
        The post-processing's own budget: (epsilon, delta), ``delta=None`` meaning
        ``1 / rows**2`` and ``delta=0`` pure DP; or ``rho`` of zCDP.
    rows
        The private table's public row count (replace-one; default: none, it must be given),
        or a guess of the number that is used (every other unit, under which it is private;
        default: the synthetic table's).
    unit
        ``ReplaceOneRow()``, ``AddRemoveOneRow()``, or of persons with several rows each
        ``ReplaceOnePerson(person, max_rows)``, ``AddRemoveOnePerson(person, max_rows)``.
    generator
        The synthetic table's declared guarantee.
    schema
        A TOML file, a ``Schema`` or a mapping; what it leaves out is read off ``synthetic``.
    basis
        Of moments: ``"centred"`` (default, quieter) or ``"paper"``.
    select
        Measure only so many of the workload's measures: those that the synthetic table gets most
        wrong, by a choice that part of the budget pays for. Default: measure all.
    select_share
        With ``select``: the part of epsilon (or rho) that choosing gets; default 0.2.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Something is missing or malformed; the message says what is allowed.
    PrivacyError
        The claim could not be kept at this budget.
    """
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload: got {kind_of(workload)}, expected a Workload such as "
            "retilt.correlation([...]) or retilt.load_workload(file)."
        )
    if not workload.measures:
        raise WorkloadError(
            "workload: it names no measure. Give one, such as retilt.correlation([...]) or "
            "retilt.marginal([...])."
        )
    check_expressions(getattr(m, key, None) for m in workload.measures for key in SQL_FIELDS)
    unit = parse_unit(unit)
    if generator is not None and not isinstance(generator, Generator):
        raise InputError(
            f"generator: got {kind_of(generator)}, expected retilt.Generator(budget, relation)."
        )
    table = open_table(synthetic)
    rows = _check_rows(rows, unit, table.rows)
    budget = make_budget(epsilon=epsilon, delta=delta, rho=rho, rows=rows)
    total_under(budget, generator, unit)  # refuses a mismatch of relations
    require_columns(table, workload.columns, "the synthetic table")
    declared = load_declared(schema)
    resolved = resolve(declared, table, workload.columns)
    selecting = _selecting(select, select_share, budget, workload, table)
    planner = _Planner(_StandIn(table, resolved), budget, unit, basis, selecting)
    check_callables(workload.measures, resolved, table.cells, table.rows)
    made = planner.plan(workload, rows, generator)
    guards, left_out = resolve_guards(table, workload.guards, declared, made.queries)
    made = replace(made, guards=guards, notes=(*made.notes, *left_out))
    planner.check(made)
    first = made.notes[: made.selection is not None]  # what is chosen is told first
    odd = _odd_notes(declared, table, made)
    made = replace(made, notes=(*first, *odd, *made.notes[len(first) :]))
    made.check_files()
    return made


def _selecting(
    select: object, share: object, budget: Budget, workload: Workload, table: Table
) -> Selection | None:
    """The choice that was asked for, if any, before there are sums to compare with."""
    if select is None:
        if share is not None:
            raise InputError("select_share: it goes with select, how many measures to choose.")
        return None
    if isinstance(select, np.integer):
        select = int(select)
    choose = check_choose(select, len(workload.measures))
    if not table.rows:
        raise InputError(
            "select: the synthetic table has no rows, so there is nothing to compare the private "
            "one with."
        )
    part = budget_of_choice(budget, DEFAULT_SHARE if share is None else check_share(share), choose)
    rest_of(budget, part)  # refuses what leaves nothing
    return Selection(choose, part, table.rows, ())


def _odd_notes(declared: Declared, table: Table, made: Plan) -> Iterator[str]:
    """What was allowed but is probably not meant."""
    unknown = [n for n in declared.entries if n not in table.names]
    if unknown:
        yield (
            f"The schema names columns that the synthetic table lacks: {', '.join(unknown)}. "
            "Is a name misspelt?"
        )
    budget = made.budget
    if isinstance(budget, ApproxDP) and budget.delta * made.rows > 0.1:
        yield (
            f"delta = {budget.delta:.2g} is large for {made.rows:,} rows: a mechanism that gave "
            "away a random row or two could claim it. Choose it far below 1 / rows."
        )
    unit = made.unit
    if unit.person is not None:
        yield (
            f"Answers are about the rows that are used: at most {unit.max_rows} of each value of "
            f"{unit.person}, and none where it is null or empty."
        )
    if isinstance(budget, (ApproxDP, PureDP)) and budget.epsilon > 20:
        yield f"epsilon = {budget.epsilon:g} protects next to nothing."


def _check_rows(rows: object, unit: Unit, synthetic_rows: int) -> int:
    if rows is None and unit.counts_rows:
        rows = max(synthetic_rows, 2)
    if rows is None:
        raise InputError(
            "rows: missing. Under replace-one the private table's row count is public and part "
            "of the plan: give rows=..., or use unit add-remove if it must stay private."
        )
    if isinstance(rows, (bool, np.bool_)) or not isinstance(rows, (int, np.integer)) or rows < 1:
        raise InputError(f"rows: got {rows!r}, expected a whole number above 0.")
    return int(rows)


@dataclass(frozen=True)
class _StandIn:
    """The synthetic table, each column read and encoded once."""

    table: Table
    schema: Schema
    _cells: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    _encoded: dict[Feature, IntArray] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.table.rows

    def cells(self, name: str) -> pa.ChunkedArray:
        """A column's cells, with the text of numbers parsed."""
        if name not in self._cells:
            self._cells[name] = _parsed(self.schema[name], self.table.cells(name))
        return self._cells[name]

    def encode(self, features: Sequence[Feature]) -> dict[Feature, IntArray]:
        """The features' columns as integers."""
        reading = Reading(self.cells)
        for feature in features:
            if feature not in self._encoded:
                self._encoded[feature] = feature.encode(reading, self.table.rows)
        return {f: self._encoded[f] for f in features}


def _parsed(column: Column, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    numeric = isinstance(column, Numeric) or (
        isinstance(column, Categorical) and not column.is_text
    )
    return pa.chunked_array([pa.array(numbers(cells))]) if numeric else cells


@dataclass(frozen=True)
class _Planner:
    """Resolves a workload on the synthetic table, which stands in for the private one."""

    stand_in: _StandIn
    budget: Budget
    unit: Unit
    basis: Basis
    selecting: Selection | None

    @property
    def measuring(self) -> Budget:
        """What is left for the noise of the answers."""
        part = self.selecting
        return self.budget if part is None else rest_of(self.budget, part.budget)

    @property
    def schema(self) -> Schema:
        return self.stand_in.schema

    @property
    def terms(self) -> Terms:
        return terms_of(self.schema, self.basis, self.budget, self.unit)

    def plan(self, workload: Workload, rows: int, generator: Generator | None) -> Plan:
        tuned = tuple(self._tune(self._resolve(m)) for m in workload.measures)
        measures = self._narrow(tuned, rows)
        norm = norm_of(self.budget)
        queries = self._bind(measures)
        answers = self._answers(queries)
        importances = self._importances(measures, queries, answers, rows)
        chosen = self.selecting is not None
        scales = block_scales(queries, answers, importances, norm, alone=chosen)
        count, selection = None, None
        if self.unit.counts_rows:
            part = self.selecting.choose / len(measures) if self.selecting is not None else 1.0
            count = count_scale(queries, answers, scales, importances, norm, measured=part)
        if self.selecting is not None:
            sums = queries.sums(self.stand_in.encode(queries.features))
            selection = replace(self.selecting, sums=tuple(map(int, sums)))
        draft = Plan(
            unit=self.unit,
            budget=self.budget,
            rows=rows,
            generator=generator,
            basis=self.basis,
            schema=self.schema,
            measures=measures,
            scales=tuple(scales),
            count_scale=count,
            selection=selection,
        )
        notes = [*_selection_notes(draft), *self._notes(measures, queries)]
        draft = replace(draft, notes=tuple(notes))
        return _expected(draft, answers)

    def check(self, plan: Plan) -> None:
        """Refuse a plan whose answers could not be fitted to the synthetic table."""
        table = self.stand_in.table
        if not table.rows:
            return
        designs = plan_designs(plan, self.stand_in.encode(plan.queries.features), table)
        check_designs(designs, np.ones(table.rows))

    def _bind(self, measures: tuple[Measure, ...]) -> QuerySet:
        return gather(measures, self.terms)

    def _answers(self, queries: QuerySet) -> FloatArray:
        encoded = self.stand_in.encode(queries.features)
        return queries.means(encoded, self.stand_in.table.rows)

    def _resolve(self, measure: Measure) -> Measure:
        return with_edges(measure, self.schema, self.stand_in.cells)

    def _narrow(self, measures: tuple[Measure, ...], rows: int) -> tuple[Measure, ...]:
        """The measures with narrower bounds, and with rows pulled into a ball, where that helps."""
        if self.basis == "paper" or not self.stand_in.table.rows:
            return measures  # the paper knows the schema's bounds only
        clamping = Clamping.of(
            measures,
            partial(self._shares, measures, rows),
            self.terms,
            self.measuring,
            self.unit,
            rows,
            self.stand_in,
        )
        # The others are tuned to these bounds already.
        clamped = tuple(
            self._tune(new)
            if new is not old and isinstance(new, GroupedMeasure) and new.clip
            else new
            for old, new in zip(measures, clamping.chosen, strict=True)
        )
        return Clipping(clamping.losses, clamped).chosen

    def _importances(
        self, measures: tuple[Measure, ...], queries: QuerySet, answers: FloatArray, rows: int
    ) -> list[Importance]:
        """How much the squared errors of each measure's statistics count."""
        deviation = unit_deviation(
            self.measuring, coordinates=queries.size, max_rows=self.unit.max_rows, rows=rows
        )
        weights = [m.weight for m in measures]
        return importances_of(queries, answers, weights, deviation, norm_of(self.budget))

    def _shares(self, measures: tuple[Measure, ...], rows: int) -> tuple[float, ...]:
        """How much larger each measure's noise is beside the others than it were alone."""
        if len(measures) == 1:
            return (1.0,)
        queries, norm = self._bind(measures), norm_of(self.budget)
        answers = self._answers(queries)
        importances = self._importances(measures, queries, answers, rows)
        if self.selecting is None:
            scales = block_scales(queries, answers, importances, norm)
            bound = joint_sensitivity(queries, scales, None, norm)
        else:
            scales = block_scales(queries, answers, importances, norm, alone=True)
            _, bound = choice_sensitivities(queries, scales, None, norm, self.selecting.choose)
        whole = float(bound) ** (1 / norm)
        own = (float(s) * length_of(b, norm) for s, b in zip(scales, queries.blocks, strict=True))
        return tuple(whole / o if o > 0 else 1.0 for o in own)

    def _tune(self, measure: Measure) -> Measure:
        """Loudness of a block's parts, with the synthetic table standing in."""
        if not isinstance(measure, Tunable):
            return measure
        terms = replace(self.terms, basis="centred")
        block = measure.bind(terms)
        if isinstance(block, (MomentsBlock, Nested)) and self.basis == "paper":
            return measure  # which has no loudness, and no coarser bins: the paper asks all alike
        answers = self._answers(QuerySet((block,)))
        tuned: Measure = measure.tuned(terms, answers)
        return tuned

    def _notes(self, measures: tuple[Measure, ...], queries: QuerySet) -> list[str]:
        notes = list(self._empty_cells(queries))
        for measure in measures:
            constant = [n for n in measure.columns if self.schema[n].levels == 0]
            if constant and isinstance(measure, GroupedMeasure):
                notes.append(
                    f"{measure.kind}: {', '.join(constant)} left out, constant by the schema."
                )
        for name in describe_duplicates(queries):
            notes.append(f"{name} is measured once: an earlier measure asks it already.")
        for measure in measures:
            if isinstance(measure, GroupedMeasure):
                said = (clamp_note(measure, self.terms, self.stand_in), clip_note(measure))
                notes += [text for text in said if text is not None]
        for block in queries.blocks:
            wide = wide_note(block) if isinstance(block, QuantileBlock) else None
            notes += [] if wide is None else [wide]
        read = [n for n in self.schema.columns if n in self.schema.inferred]
        if read:
            notes.append(
                f"Bounds or categories read off the synthetic table: {', '.join(read)}. "
                "Declare them in a schema if they should not depend on it."
            )
        notes += _null_notes(measures, self.schema)
        for name, column in self.schema.columns.items():
            notes += _column_notes(name, column, self.stand_in.cells(name))
        return notes

    def _empty_cells(self, queries: QuerySet) -> Iterator[str]:
        """Cells that no synthetic row lies in: the tilt can't reach any share above 0 there."""
        encoded = self.stand_in.encode(queries.features)
        for block in queries.blocks:
            if isinstance(block, Partition):
                empty = block.counts([encoded[f] for f in block.features]) == 0
                if empty.any():
                    names = ", ".join(v.label for v in block.variables)
                    drawn = _drawn(block, empty)
                    yield (
                        f"table of {names}: {empty.sum()} of {block.size} cells hold no synthetic "
                        "row; no weights of its rows can give them a share"
                        f"{f', those that --support mix adds can in {drawn}' if drawn else ''}."
                    )


def _drawn(block: object, empty: NDArray[np.bool_]) -> int:
    """How many empty cells redrawn rows come to: not `other`, nor null where there is none."""
    return int((empty & block.named).sum()) if isinstance(block, MarginalBlock) else 0


def _selection_notes(draft: Plan) -> Iterator[str]:
    """What will be chosen; always the first note of such a plan."""
    choice, part = draft.choice, draft.selection
    if choice is None or part is None:
        return
    yield (
        f"{choice.count:,} of the {len(draft.measures):,} measures will be chosen when the private "
        f"table is measured: those that the synthetic table gets most wrong. That spends "
        f"{describe(part.budget)} of the budget, and its noise has a deviation of about "
        f"{choice.deviation:,.3g} rows. Expected errors are those of a measure if it is chosen."
    )


def _null_notes(measures: tuple[Measure, ...], schema: Schema) -> list[str]:
    """How nulls count where that is easily overlooked: in means and what is made of them."""
    asked = (n for m in measures if isinstance(m, GroupedMeasure) for n in m.of)
    nullable = [n for n in dict.fromkeys(asked) if schema[n].nullable]
    if not nullable:
        return []
    return [
        f"{', '.join(nullable)}: a null counts as the middle of the bounds in a mean, deviation, "
        "correlation or regression (in a two-valued column, as its first value). For the rows "
        "that have a value, ask where the column IS NOT NULL."
    ]


def _column_notes(name: str, column: Column, cells: pa.ChunkedArray) -> list[str]:
    """What the encoding does to the *synthetic* column."""
    notes = outside_notes(name, column, cells)
    if isinstance(column, (Numeric, Datetime)) and not column.on_lattice and column.levels:
        step = 1 / (2 * column.levels)
        notes.append(f"{name}: rounded to a grid of {step:.1e} of its range.")
    return notes


def _expected(draft: Plan, stand_in: FloatArray) -> Plan:
    """The plan with standard errors as if the private table's answers were the synthetic one's.

    Its notes name the statistics and cells of which the noise would leave nothing.
    """
    guess = guessed(draft, stand_in)
    queries, noise = draft.queries, (guess.variances, guess.common_noise)
    # Which tables there will be to estimate together is open while they are to be chosen.
    errors = (
        guess.errors_at(stand_in)
        if draft.choose is None
        else queries.standard_errors(stand_in, *noise)
    )
    drowned = guess.dominated
    notes = list(draft.notes)
    if drowned.any():
        names = [s for s, d in zip(queries.statistics, drowned, strict=True) if d]
        notes.append(
            f"Noise would dominate {listed(names, str)}: a group, a variance or a "
            "density is too small at this budget. Spend more, or ask for fewer or larger groups."
        )
    deviations = np.sqrt(guess.variances + (guess.common_noise**2).sum(axis=1))
    joint = guess.consistent.share_errors(stand_in) if draft.choose is None else {}
    for number, (block, where) in enumerate(zip(queries.blocks, queries.positions, strict=True)):
        if isinstance(block, Nested):
            own = (guess.variances[where], guess.common_noise[where])
            notes += rare(block, block.shares(stand_in[where]), block.share_errors(*own))
        elif isinstance(block, Partition):
            notes += rare(block, stand_in[where], joint.get(number, deviations[where]))
    expected = tuple(None if np.isnan(e) else float(e) for e in errors)
    return replace(draft, expected=expected, notes=tuple(notes))


def guessed(plan: Plan, means: FloatArray) -> Answers:
    """Answers without noise of an invented table: the plan's ``rows`` rows, (K,) ``means``."""
    return make_answers(plan, _scaled(plan, means), private=True)


def _scaled(draft: Plan, means: FloatArray) -> list[int]:
    """Released integers without noise for a table of ``rows`` rows with these answers."""
    steps = draft.noise.steps
    values = [round(m * draft.rows * s) for m, s in zip(means.tolist(), steps, strict=False)]
    return [*values, draft.rows * steps[-1]] if draft.counts_rows else values


def top_correlated(synthetic: Any, target: str, *, top: int = 5, schema: Any = None) -> list[str]:
    """The target and the columns most correlated with it on the synthetic table.

    The paper's choice of what to align. ``top`` counts the target. Columns whose kind is
    undecided (identifiers, free text) are left out. Costs no privacy.
    """
    table = open_table(synthetic)
    require_columns(table, [target], "the synthetic table")
    if isinstance(top, bool) or not isinstance(top, int) or top < 2:
        raise InputError(f"top: got {top!r}, expected a whole number of at least 2.")
    declared = load_declared(schema)
    names = [target, *(n for n in table.names if n != target)]
    columns: dict[str, Column] = {target: resolve(declared, table, [target])[target]}
    for name in names[1:]:
        with suppress(SchemaError):
            columns[name] = resolve(declared, table, [name])[name]
    values = np.stack([to_unit(c, table.cells(n), clamp=True) for n, c in columns.items()])
    strength = np.abs(correlation_matrix(values)[0, 1:])
    order = np.argsort(-np.nan_to_num(strength), kind="stable")[: top - 1]
    others = list(columns)[1:]
    return [target, *(others[i] for i in order)]
