"""The job from end to end: plan, measure, fit, postprocess. The only module that knows all others.

``measure`` is the only function here that reads the private table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retilt._input import kind_of
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import (
    InputError,
    InternalError,
    RowCountError,
)
from retilt.fitting import Way, check_fit, fit
from retilt.measures.base import Basis
from retilt.measures.workload import Workload
from retilt.persons import check_person, chosen_rows
from retilt.planning import plan
from retilt.privacy.account import Account, amount_of_budget
from retilt.privacy.answers import Answers, make_answers
from retilt.privacy.budget import LEAST_DELTA, Generator, make_budget
from retilt.privacy.ledger import Charge, Ledger, open_ledger
from retilt.privacy.mechanism import discrete_gaussian, discrete_laplace, noisy_max
from retilt.privacy.plan import Plan, load_plan
from retilt.privacy.selection import Choice, Draw, Selected, choose
from retilt.privacy.sensitivity import NoisePlan
from retilt.privacy.unit import ReplaceOneRow, Unit, parse_unit
from retilt.resample import Method
from retilt.rescue import Support, support_of
from retilt.schema.reading import withheld
from retilt.tables import check_table, encode
from retilt.tilt import Tilt, check_sample
from retilt.tilting.denoise import Denoiser


def fit_for(private: Any, plan: Plan) -> Table:
    """The private table, opened and found to be one that the plan can be measured on.

    By what is public: names, declared types and, where it is public, the row count.

    Raises
    ------
    WorkloadError
        A column is missing.
    ColumnTypeError
        A column's declared type can't hold what the schema says, or can't tell persons apart.
    RowCountError
        The row count is public and not the plan's.
    """
    table = open_table(private, private=True)
    check_table(table, plan.schema, "the private table", private=True)
    if plan.unit.person is not None:
        check_person(table, plan.unit.person, "the private table")
    if not plan.counts_rows and table.rows != plan.rows:
        raise RowCountError(
            f"rows: the private table has {table.rows:,} rows, the plan says {plan.rows:,}. "
            "Under replace-one the row count is public and part of the plan: make the plan "
            f"with rows={table.rows}, or measure the table that it was made for."
        )
    return table


def exact_sums(private: Any, plan: Plan) -> list[int]:
    """(K [+ 1],) exact integers of the private table that noise is added to. Not private.

    Raises as :func:`fit_for`.
    """
    return scaled(sums_of(fit_for(private, plan), plan), plan)


def scaled(sums: Sequence[int], plan: Plan) -> list[int]:
    """Sums times the plan's factors: what noise is added to."""
    return [s * f for s, f in zip(sums, plan.noise.factors, strict=True)]


def draw_highest(scores: Sequence[int], choice: Choice) -> int:
    """The place of the highest score with noise."""
    return noisy_max(scores, scale=choice.scale, concentrated=choice.concentrated)


def chosen_of(plan: Plan, sums: Sequence[int], draw: Draw = draw_highest) -> tuple[Plan, list[int]]:
    """The plan of what is measured, and its exact integers, from all the plan's ``sums``.

    Where the plan has measures to choose from, this chooses.
    """
    if plan.choose is None or plan.choice is None:
        return plan, scaled(sums, plan)
    places = choose(plan.scores(sums), plan.tables, plan.choice, draw)
    made = plan.chosen(places)
    return made, scaled(plan.sums_of_chosen(made, sums), made)


def sums_of(table: Table, plan: Plan) -> list[int]:
    """(K [+ 1],) sums of a table that :func:`fit_for` gave, before any factor.

    Nothing here fails, warns or branches by what the cells hold.
    """
    queries, unit = plan.queries, plan.unit
    encoded, rows = encode(table, queries.features), table.rows
    if unit.person is not None:
        kept = chosen_rows(
            table.cells(unit.person),
            list(encoded.values()),
            max_rows=unit.max_rows,
            key=plan.key,
        )
        encoded, rows = {f: a[kept] for f, a in encoded.items()}, len(kept)
    sums = queries.sums(encoded)
    if plan.counts_rows:
        sums.append(rows)
    return sums


def noisy(exact: Sequence[int], noise: NoisePlan) -> list[int]:
    """(K [+ 1],) exact integers with a plan's noise on top, drawn anew: what is released."""
    draw = discrete_laplace if noise.norm == 1 else discrete_gaussian
    return [s + z for s, z in zip(exact, draw(noise.scales), strict=True)]


def refuse_chosen(plan: Plan) -> None:
    """Refuse to measure what a measurement has chosen: it knows that these are far off.

    Raises
    ------
    InputError
        The plan is that of answers.
    """
    if isinstance(plan.selection, Selected):
        raise InputError(
            "plan: its measures were chosen by a measurement, whose answers it belongs to. Fit "
            "those answers: that costs nothing. To spend more on the same measures, make a plan "
            "of them with retilt.plan."
        )


def _internal(kind: str) -> InternalError:
    return InternalError(
        f"internal error ({kind}) while the private table was read. Its text is withheld, for it "
        "could hold private values. Please report it with the version and no data."
    )


def measure(
    private: Any,
    plan: Plan | str | Path,
    *,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
) -> Answers:
    """Measure the private table once, with noise. The only step that reads it.

    Parameters
    ----------
    private
        The private table: a frame or a path.
    plan
        A plan or its file.
    ledger
        A :class:`Ledger` or its file. The plan is charged to it before the private table is
        opened, and the charge can't be undone once anything was summed. Without one, adding up
        what several measurements spend is left to the user, and the answers say so.
    dataset
        The private table's name in the ledger; may be left out where the ledger has one only.

    Returns
    -------
    Answers
        Safe to hand out under the plan's promise. There is no seed: noise comes from the
        operating system.

    Raises
    ------
    InputError
        A column is missing or of an impossible declared type, or the public row count is not
        the plan's: nothing is charged. No error depends on the cells' content.
    PrivacyError
        The plan's promise can't be kept.
    BudgetError
        The ledger refuses the charge; the private table was not opened.
    LedgerError
        The ledger is missing or damaged.

    Warns
    -----
    RepeatedPlanWarning
        The ledger has a charge of the same plan: its answers can be used again.
    """
    if isinstance(private, (Plan, Answers)) or not isinstance(plan, (Plan, str, Path)):
        raise InputError(
            f"measure: got {kind_of(private)} and {kind_of(plan)}, expected the "
            "private table and then the plan (or its file)."
        )
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    refuse_chosen(plan)
    # Whatever is wrong with the plan is found before anything is charged or read.
    _ = plan.noise, plan.choice
    plan.check_files()
    if ledger is None:
        if dataset is not None:
            raise InputError("dataset: it names a data set of a ledger; give the ledger, too.")
        return _measured(private, plan, None)
    with open_ledger(ledger).charge(plan, dataset) as charge:
        return _measured(private, plan, charge)


def _measured(private: Any, plan: Plan, charge: Charge | None) -> Answers:
    """Noisy answers; the charge is spent before anything is summed, and noted when answered."""
    table = withheld(lambda: fit_for(private, plan), _internal)
    _ = plan.noise, plan.choice  # before any code of the user's runs
    if charge is not None:
        charge.spend()
    made, exact = withheld(lambda: chosen_of(plan, sums_of(table, plan)), _internal)
    values = noisy(exact, made.noise)
    answers = make_answers(
        made, values, private=True, ledger=None if charge is None else charge.entry
    )
    if charge is not None and not made.has_code:
        charge.answered(answers.sha256)
    return answers


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
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    basis: Basis | None = None,
    select: int | None = None,
    select_share: float | None = None,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    max_weight: float | None = None,
    min_weight: float | None = None,
    denoise: Denoiser | None = None,
    support: Support | None = None,
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
        Defaults to the private table's row count under replace-one, where it is public, and to
        the synthetic table's under every other unit.
    ledger, dataset
        As in :func:`measure`.
    basis
        Defaults to the method's own: the paper's asks in the paper's basis.
    support
        As for :func:`fit`. With it the plan keeps the schema's bounds where the workload leaves
        them open: a table whose rows have to be redrawn doesn't show where the private ones lie.
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
    if ledger is not None:
        _check_account(open_ledger(ledger).account(dataset), unit, generator, epsilon, delta, rho)
    table = open_table(synthetic)
    if callable(workload):
        workload = workload(table)  # what can't be asked is refused before the private table
    if rows is None and not unit.counts_rows:
        private = open_table(private, private=True)
        rows = private.rows  # public under this unit; under the others it must not be used
        if rows == 0:
            raise InputError("the private table has no rows; there is nothing to measure.")
    mix = support_of(support)
    if mix is not None and isinstance(workload, Workload):
        workload = workload.unclamped()  # rows to be redrawn are no witness of what is far
    made = plan(
        table,
        workload,
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        rows=rows,
        unit=unit,
        generator=generator,
        schema=schema,
        basis=basis or ("centred" if method == "default" else "paper"),
        select=select,
        select_share=select_share,
    )
    options: dict[str, Any] = {
        "method": method,
        "base_weights": base_weights,
        "min_ess": min_ess,
        "max_weight": max_weight,
        "min_weight": min_weight,
        "denoise": denoise,
        "support": None if mix is None else mix.settled(table.rows, seed),
        "seed": seed,
    }
    check_fit(table, made, **options)
    if on_plan is not None:
        on_plan(made)
    answers = measure(private, made, ledger=ledger, dataset=dataset)
    if on_answers is not None:
        on_answers(answers)
    return fit(table, answers, **options, on_step=on_step)


def _check_account(
    account: Account,
    unit: Unit,
    generator: Generator | None,
    epsilon: float | None,
    delta: float | None,
    rho: float | None,
) -> None:
    """Refuse a budget that can't be charged, before the private table is opened to be counted.

    Where delta depends on that count the least possible stands in for it; the plan itself is
    checked again before it is measured.
    """
    account.check_terms(unit, generator)
    if epsilon is not None and delta is None and rho is None:
        delta = LEAST_DELTA
    account.check(amount_of_budget(make_budget(epsilon=epsilon, delta=delta, rho=rho, rows=None)))


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
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    basis: Basis | None = None,
    select: int | None = None,
    select_share: float | None = None,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    max_weight: float | None = None,
    min_weight: float | None = None,
    denoise: Denoiser | None = None,
    support: Support | None = None,
    size: int | None = None,
    sampling: Method | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    on_answers: Callable[[Answers], object] | None = None,
) -> Result:
    """Plan, measure, fit and sample in one go.

    ``size`` is the number of rows to sample, ``sampling`` the ``method`` of :meth:`Tilt.sample`,
    and ``shuffle`` its own; the other parameters are those of :func:`align`. ``seed`` is for the
    paper's stochastic algorithm, for redrawn candidate rows and for sampling, never for the noise.
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
        ledger=ledger,
        dataset=dataset,
        basis=basis,
        select=select,
        select_share=select_share,
        method=method,
        base_weights=base_weights,
        min_ess=min_ess,
        max_weight=max_weight,
        min_weight=min_weight,
        denoise=denoise,
        support=support,
        seed=seed,
        on_answers=on_answers,
    )
    post = tilt.sample(size, method=sampling, seed=seed, shuffle=shuffle)
    answers = tilt.answers
    assert isinstance(answers, Answers)  # they were measured above
    return Result(post=post, tilt=tilt, answers=answers, plan=answers.plan)
