"""The job from end to end: plan, measure, fit, postprocess. The only module that knows all others.

``measure`` is the only function here that reads the private table.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retilt._version import __version__
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.evaluation import correlation_matrix
from retilt.exceptions import (
    InputError,
    InternalError,
    RowCountError,
    SchemaError,
    WorkloadError,
)
from retilt.fitting import Way, check_encoded, check_fit, fit
from retilt.measures.base import Basis, Feature, FloatArray, IntArray, Relation, Terms
from retilt.measures.marginals import Marginal, MarginalBlock
from retilt.measures.moments import Moments
from retilt.measures.queries import QuerySet, describe_duplicates
from retilt.measures.workload import Measure, Workload
from retilt.privacy.allocation import block_scales, count_scale
from retilt.privacy.answers import Answers
from retilt.privacy.budget import (
    ApproxDP,
    Budget,
    Generator,
    PureDP,
    make_budget,
    total_budget,
)
from retilt.privacy.mechanism import discrete_gaussian, discrete_laplace
from retilt.privacy.plan import Plan, load_plan, terms_of
from retilt.privacy.sensitivity import norm_of
from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow, Unit, parse_unit
from retilt.resample import Method
from retilt.schema.columns import Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import numbers, to_unit, values_of
from retilt.schema.formats import Declared, load_declared, resolve
from retilt.schema.reading import withheld
from retilt.tables import check_table, encode, require_columns
from retilt.tilt import Tilt, check_sample
from retilt.tilting.denoise import Denoiser

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
        or a guess of it (add/remove; default: the synthetic table's).
    unit
        ``ReplaceOneRow()`` or ``AddRemoveOneRow()``.
    generator
        The synthetic table's declared guarantee.
    schema
        A TOML file, a ``Schema`` or a mapping; what it leaves out is read off ``synthetic``.
    basis
        Of moments: ``"centred"`` (default, quieter) or ``"paper"``.

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
            f"workload: got a {type(workload).__name__}, expected a Workload such as "
            "retilt.correlation([...]) or retilt.load_workload(file)."
        )
    if not workload.measures:
        raise WorkloadError(
            "workload: it names no measure. Give one, such as retilt.correlation([...]) or "
            "retilt.marginal([...])."
        )
    unit = parse_unit(unit)
    if generator is not None and not isinstance(generator, Generator):
        raise InputError(
            f"generator: got a {type(generator).__name__}, expected "
            "retilt.Generator(budget, relation)."
        )
    table = open_table(synthetic)
    rows = _check_rows(rows, unit, table.rows)
    budget = make_budget(epsilon=epsilon, delta=delta, rho=rho, rows=rows)
    total_budget(budget, generator, unit.relation)  # refuses a mismatch of relations
    require_columns(table, workload.columns, "the synthetic table")
    declared = load_declared(schema)
    resolved = resolve(declared, table, workload.columns)
    planner = _Planner(_StandIn(table, resolved), budget, unit, basis)
    made = planner.plan(workload, rows, generator)
    planner.check(made)
    return replace(made, notes=(*_odd_notes(declared, table, made), *made.notes))


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
    if isinstance(budget, (ApproxDP, PureDP)) and budget.epsilon > 20:
        yield f"epsilon = {budget.epsilon:g} protects next to nothing."


def _check_rows(rows: object, unit: Unit, synthetic_rows: int) -> int:
    if rows is None and isinstance(unit, AddRemoveOneRow):
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

    def cells(self, name: str) -> pa.ChunkedArray:
        """A column's cells, with the text of numbers parsed."""
        if name not in self._cells:
            self._cells[name] = _parsed(self.schema[name], self.table.cells(name))
        return self._cells[name]

    def encode(self, features: Sequence[Feature]) -> dict[Feature, IntArray]:
        """The features' columns as integers."""
        for feature in features:
            if feature not in self._encoded:
                self._encoded[feature] = feature.encode(self.cells, self.table.rows)
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

    @property
    def schema(self) -> Schema:
        return self.stand_in.schema

    @property
    def terms(self) -> Terms:
        return terms_of(self.schema, self.basis, self.budget, self.unit)

    def plan(self, workload: Workload, rows: int, generator: Generator | None) -> Plan:
        measures = tuple(self._tune(self._resolve(m)) for m in workload.measures)
        norm = norm_of(self.budget)
        queries = self._bind(measures)
        answers = self._answers(queries)
        weights = [m.weight for m in measures]
        scales = block_scales(queries, answers, weights, norm)
        count = None
        if isinstance(self.unit, AddRemoveOneRow):
            count = count_scale(queries, answers, scales, weights, norm)
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
        )
        return replace(
            draft,
            expected=_expected_errors(draft, answers),
            notes=tuple(self._notes(measures, queries)),
        )

    def check(self, plan: Plan) -> None:
        """Refuse a plan whose answers could not be fitted to the synthetic table."""
        encoded = self.stand_in.encode(plan.queries.features)
        if self.stand_in.table.rows:
            check_encoded(plan.queries, encoded, np.ones(self.stand_in.table.rows))

    def _bind(self, measures: tuple[Measure, ...]) -> QuerySet:
        return QuerySet(tuple(m.bind(self.terms) for m in measures))

    def _answers(self, queries: QuerySet) -> FloatArray:
        encoded = self.stand_in.encode(queries.features)
        return queries.means(encoded, self.stand_in.table.rows)

    def _resolve(self, measure: Measure) -> Measure:
        if isinstance(measure, Moments):
            return measure
        numeric = [n for n in measure.columns if isinstance(self.schema[n], (Numeric, Datetime))]
        values = {
            n: values_of(self.schema[n], self.stand_in.cells(n)).astype(np.float64) for n in numeric
        }
        return measure.with_edges(self.schema, values)

    def _tune(self, measure: Measure) -> Measure:
        """Loudness of a moments block, with the synthetic table standing in."""
        if isinstance(measure, Marginal) or self.basis == "paper":
            return measure
        answers = self._answers(self._bind((measure,)))
        return measure.tuned(self.terms, answers)

    def _notes(self, measures: tuple[Measure, ...], queries: QuerySet) -> list[str]:
        notes = list(self._empty_cells(queries))
        for measure in measures:
            constant = [n for n in measure.columns if self.schema[n].levels == 0]
            if constant and isinstance(measure, Moments):
                notes.append(
                    f"{measure.kind}: {', '.join(constant)} left out, constant by the schema."
                )
        for name in describe_duplicates(queries):
            notes.append(f"{name} is measured once: an earlier measure asks it already.")
        read = [n for n in self.schema.columns if n in self.schema.inferred]
        if read:
            notes.append(
                f"Bounds or categories read off the synthetic table: {', '.join(read)}. "
                "Declare them in a schema if they should not depend on it."
            )
        for name, column in self.schema.columns.items():
            notes += _column_notes(name, column, self.stand_in.cells(name))
        return notes

    def _empty_cells(self, queries: QuerySet) -> Iterator[str]:
        """Cells that no synthetic row lies in: the tilt can't reach any share above 0 there."""
        encoded = self.stand_in.encode(queries.features)
        for block in queries.blocks:
            if isinstance(block, MarginalBlock):
                empty = block.sums([encoded[f] for f in block.features]).count(0)
                if empty:
                    yield (
                        f"marginal of {', '.join(block.names)}: {empty} of {block.size} cells "
                        "hold no synthetic row; no weights can give them a share."
                    )


def _column_notes(name: str, column: Column, cells: pa.ChunkedArray) -> list[str]:
    """What the encoding does to the *synthetic* column."""
    if isinstance(column, Categorical):
        codes = values_of(column, cells)
        unknown = int(np.count_nonzero(codes == len(column.categories)))
        if not unknown:
            return []
        return [f"{name}: {unknown} synthetic rows hold a value outside the categories (other)."]
    if not isinstance(column, (Numeric, Datetime)):
        return []
    raw, clamped = (to_unit(column, cells, clamp=c) for c in (False, True))
    outside = int(np.count_nonzero(raw != clamped))
    notes = []
    if outside:
        notes.append(
            f"{name}: {outside} synthetic rows lie outside the bounds and count as clamped; "
            "measures are statements about the clamped column."
        )
    if not column.on_lattice and column.levels:
        step = 1 / (2 * column.levels)
        notes.append(f"{name}: rounded to a grid of {step:.1e} of its range.")
    return notes


def _expected_errors(draft: Plan, stand_in: FloatArray) -> tuple[float | None, ...]:
    """Standard errors if the private table's answers were the synthetic one's."""
    values = _scaled(draft, stand_in)
    guess = make_answers(draft, values, private=True)
    errors = draft.queries.standard_errors(stand_in, guess.variances, guess.common_noise)
    return tuple(None if np.isnan(e) else float(e) for e in errors)


def _scaled(draft: Plan, means: FloatArray) -> list[int]:
    """Released integers without noise for a table of ``rows`` rows with these answers."""
    steps = draft.noise.steps
    values = [round(m * draft.rows * s) for m, s in zip(means.tolist(), steps, strict=False)]
    return [*values, draft.rows * steps[-1]] if draft.counts_rows else values


def exact_sums(private: Any, plan: Plan) -> list[int]:
    """(K [+ 1],) exact integers of the private table that noise is added to. Not private.

    Raises
    ------
    WorkloadError
        A column is missing.
    ColumnTypeError
        A column's declared type can't hold what the schema says.
    RowCountError
        The row count is public and not the plan's.
    """
    noise = plan.noise  # whatever is wrong with the plan is found before anything is read
    queries = plan.queries
    table = open_table(private, private=True)
    check_table(table, plan.schema, "the private table", private=True)
    if plan.unit.relation is Relation.REPLACE and table.rows != plan.rows:
        raise RowCountError(
            f"rows: the private table has {table.rows:,} rows, the plan says {plan.rows:,}. "
            "Under replace-one the row count is public and part of the plan: make the plan "
            f"with rows={table.rows}, or measure the table that it was made for."
        )
    sums = queries.sums(encode(table, queries.features))
    if plan.counts_rows:
        sums.append(table.rows)
    return [s * f for s, f in zip(sums, noise.factors, strict=True)]


def make_answers(plan: Plan, values: Sequence[int], *, private: bool) -> Answers:
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
    )


def _internal(kind: str) -> InternalError:
    return InternalError(
        f"internal error ({kind}) while the private table was read. Its text is withheld, for it "
        "could hold private values. Please report it with the version and no data."
    )


def measure(private: Any, plan: Plan | str | Path) -> Answers:
    """Measure the private table once, with noise. The only step that reads it.

    Parameters
    ----------
    private
        The private table: a frame or a path.
    plan
        A plan or its file.

    Returns
    -------
    Answers
        Safe to hand out under the plan's promise. There is no seed: noise comes from the
        operating system.

    Raises
    ------
    InputError
        A column is missing or of an impossible declared type, or the public row count is not
        the plan's. No error depends on the cells' content.
    PrivacyError
        The plan's promise can't be kept.
    """
    if isinstance(private, (Plan, Answers)) or not isinstance(plan, (Plan, str, Path)):
        raise InputError(
            f"measure: got a {type(private).__name__} and a {type(plan).__name__}, expected the "
            "private table and then the plan (or its file)."
        )
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    draw = discrete_laplace if plan.noise.norm == 1 else discrete_gaussian
    exact = withheld(lambda: exact_sums(private, plan), _internal)
    noise = draw(plan.noise.scales)
    return make_answers(plan, [s + z for s, z in zip(exact, noise, strict=True)], private=True)


@dataclass(frozen=True)
class Result:
    """What :func:`postprocess` gives.

    Attributes
    ----------
    post
        The post-processed table, of the synthetic table's kind.
    tilt
        Weights, status, statistics; samples more.
    answers, plan
        What was measured, and how.
    """

    post: Any
    tilt: Tilt
    answers: Answers
    plan: Plan


def align(
    private: Any,
    synthetic: Any,
    workload: Workload | Callable[[Table], Workload],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    rows: int | None = None,
    unit: Unit | str = ReplaceOneRow(),  # noqa: B008  (a frozen value)
    generator: Generator | None = None,
    schema: Any = None,
    basis: Basis | None = None,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    denoise: Denoiser | None = None,
    seed: int | None = None,
    on_plan: Callable[[Plan], object] | None = None,
    on_answers: Callable[[Answers], object] | None = None,
    on_step: Callable[[Any], object] | None = None,
) -> Tilt:
    """Plan, measure and fit in one go; :func:`postprocess` also samples.

    Whatever can be refused is refused before the private table is measured; after that the
    answers are handed to ``on_answers`` before anything else is done with them.

    Parameters
    ----------
    private, synthetic
        The two tables.
    workload
        What should agree; or a function that makes it from the opened synthetic table.
    rows
        Defaults to the private table's row count under replace-one, where it is public.
    basis
        Defaults to the method's own: the paper's asks in the paper's basis.
    on_plan, on_answers, on_step
        Called with the plan before measuring, with the answers right after, and with each
        point of the fit's path.

    The other parameters are those of :func:`plan` and :func:`fit`.

    Raises
    ------
    InputError, PrivacyError
        As :func:`plan`, :func:`measure` and :func:`fit`.
    """
    unit = parse_unit(unit)
    opened, table = open_table(private, private=True), open_table(synthetic)
    if rows is None and isinstance(unit, ReplaceOneRow):
        rows = opened.rows  # public under this unit; under the other it must not be used
        if rows == 0:
            raise InputError("the private table has no rows; there is nothing to measure.")
    made = plan(
        table,
        workload(table) if callable(workload) else workload,
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        rows=rows,
        unit=unit,
        generator=generator,
        schema=schema,
        basis=basis or ("centred" if method == "default" else "paper"),
    )
    options: dict[str, Any] = {
        "method": method,
        "base_weights": base_weights,
        "min_ess": min_ess,
        "denoise": denoise,
        "seed": seed,
    }
    check_fit(table, made, **options)
    if on_plan is not None:
        on_plan(made)
    answers = measure(opened, made)
    if on_answers is not None:
        on_answers(answers)
    return fit(table, answers, **options, on_step=on_step)


def postprocess(
    private: Any,
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
    basis: Basis | None = None,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    denoise: Denoiser | None = None,
    size: int | None = None,
    sampling: Method | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    on_answers: Callable[[Answers], object] | None = None,
) -> Result:
    """Plan, measure, fit and sample in one go.

    ``size`` is the number of rows to sample, ``sampling`` the ``method`` of :meth:`Tilt.sample`,
    and ``shuffle`` its own; the other parameters are those of :func:`align`. ``seed`` is for the
    paper's stochastic algorithm and for sampling, never for the noise.
    """
    check_sample(size, sampling, seed)
    tilt = align(
        private,
        synthetic,
        workload,
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        rows=rows,
        unit=unit,
        generator=generator,
        schema=schema,
        basis=basis,
        method=method,
        base_weights=base_weights,
        min_ess=min_ess,
        denoise=denoise,
        seed=seed,
        on_answers=on_answers,
    )
    post = tilt.sample(size, method=sampling, seed=seed, shuffle=shuffle)
    return Result(post=post, tilt=tilt, answers=tilt.answers, plan=tilt.answers.plan)


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
