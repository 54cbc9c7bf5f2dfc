"""Find weights for a synthetic table that make it agree with the answers.

Nothing here can see the private table: only the synthetic one and the noisy answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from retilt._input import kind_of
from retilt.candidates import (
    Candidates,
    base_of,
    encode_candidates,
    plan_designs,
    require_rows,
    targets_of,
)
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import InputError
from retilt.measures.base import Design, FloatArray
from retilt.measures.guards import Guards
from retilt.measures.workload import Workload
from retilt.privacy.answers import Answers
from retilt.privacy.plan import Plan
from retilt.privacy.published import Published
from retilt.privacy.targets import Targets, load_targets
from retilt.rescue import Copies, Redrawing, Support, support_of, widen
from retilt.resolving import resolve_guards
from retilt.schema.declared import load_declared
from retilt.tilt import Tilt, check_seed
from retilt.tilting.bounds import Bounds
from retilt.tilting.denoise import Denoiser
from retilt.tilting.denoise import denoise as nearest
from retilt.tilting.designs import design_queries
from retilt.tilting.paper import Paper, fit_paper, usual_denoiser
from retilt.tilting.path import check_problem, fit_path
from retilt.tilting.problem import Covariance, Problem
from retilt.tilting.solution import Solution, Status

Way: TypeAlias = Literal["default", "paper", "paper-exact"] | Paper
"""How weights are found: by name, or the paper's method with settings of one's own."""

_UNUSED = (
    "Support rescue (mix): no candidate rows were added, since with them the noise of the answers "
    "left nothing to follow."
)

_NAMED = {"paper": Paper(), "paper-exact": Paper(solver="exact")}
_DENOISERS = (None, "qp", "lp")


def fit(
    synthetic: Any,
    answers: Answers | Published | str | Path,
    *,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    max_weight: float | None = None,
    min_weight: float | None = None,
    denoise: Denoiser | None = None,
    support: Support | None = None,
    keep: Workload | None = None,
    seed: int | None = None,
    on_step: Callable[[Any], object] | None = None,
) -> Tilt:
    """Find weights for the synthetic rows that make them agree with the answers.

    Parameters
    ----------
    synthetic
        Any table that has the answers' columns: the synthetic table of the plan, or one of
        any number of candidate rows from the same generator. A frame or a path.
    answers
        Noisy answers or their file; or statistics from elsewhere (:class:`Published`, or their
        file).
    method
        ``"default"``: as near to the answers as their noise allows; ``"paper"``: the paper's
        method, with its own settings; ``"paper-exact"``: the paper's problem, but solved
        exactly; or a :class:`Paper` with other settings.
    base_weights
        Weights that the rows have already: a column's name or (rows,) numbers, none negative.
        The result is base weight times tilt.
    min_ess
        Least effective sample size, in rows, instead of the default floor. Exact statistics
        that would take the weights under it are met as nearly as it allows.
        The paper's method has none.
    max_weight, min_weight
        No row counts for more than ``max_weight`` times its base weight, nor for less than
        ``min_weight`` times that, as in calibration with bounds; without base weights these are
        multiples of the mean weight. At least 1.000001, and from 0 to 0.999999: the base weights
        themselves must be within. Answers that can't be reached within the bounds are followed
        as far as they allow. The paper's method has none.
    denoise
        Move the answers to the nearest ones that weights of these rows can give before the
        fit: ``"qp"`` by least squares, ``"lp"`` by least absolute deviations, both in units of
        the noise. The default method does not need it (it is still judged by the answers as
        released); the paper's always does it (by the program that goes with the noise, unless
        told).
    support
        ``"mix"`` adds candidate rows in which the measured columns are redrawn within their
        declared bounds and categories, each as the answers about it alone say, at a small base
        weight; or a :class:`Mix` with other settings. It is for tables whose rows cannot reach
        the answers, and the only option that changes rows' values; on a good table it costs
        utility. It costs no privacy.
    keep
        Guards (:func:`retilt.keep`) instead of the plan's: statistics that the tilt shall leave
        as the synthetic table has them.
    seed
        Of the paper's stochastic algorithm and of redrawn candidate rows, so that they can be
        repeated.
    on_step
        Called with each point of the path, or each state of the paper's solver.

    Returns
    -------
    Tilt

    Raises
    ------
    InputError
        A column is missing, the table is empty, a weight is not usable, an option does not
        belong to the method, or ``support`` needs bounds that are not declared.
    """
    kinds = (Answers, Published)
    if isinstance(synthetic, kinds) or not isinstance(answers, (*kinds, str, Path)):
        raise InputError(
            f"fit: got {kind_of(synthetic)} and {kind_of(answers)}, expected the "
            "synthetic table and then the answers (or their file)."
        )
    paper = paper_of(method, min_ess=min_ess, denoise=denoise, seed=seed)
    bounds = bounds_of(min_weight, max_weight, paper)
    mix = support_of(support)
    given = answers if isinstance(answers, kinds) else load_targets(answers)
    source = table = open_table(synthetic)
    targets = targets_of(given, table)
    guards, left_out = guards_of(keep, targets, table)
    _refuse_guards(guards, paper)
    own, redrawing = None, None
    base, unmade = base_weights, tuple[str, ...]()
    if mix is not None:
        own, mix = table.rows, mix.settled(table.rows, seed)
        copies = Copies.of(table, targets, mix, base_of(table, base_weights))
        wider = copies.towards(targets)
        redrawing = Redrawing(mix, wider.multipliers)
        table, base, unmade = wider.table, wider.base, wider.notes
    candidates = Candidates.of(table, targets, base, guards, own=own, bounds=bounds)
    if paper is not None and candidates.problem.exact.any():
        raise InputError(
            "method: the paper's knows noisy answers only, and some of these have the standard "
            "error 0. Use the default method."
        )
    if paper is None:
        solution = _fit_default(candidates.problem, targets, min_ess, denoise, on_step)
        settings: dict[str, Any] = {"denoise": denoise}
        if mix is not None and solution.eta == math.inf and not candidates.problem.exact.any():
            # Nothing moved: a share of redrawn rows would only be noise.
            left = fit(
                source,
                given,
                base_weights=base_weights,
                min_ess=min_ess,
                max_weight=max_weight,
                min_weight=min_weight,
                denoise=denoise,
                keep=keep,
            )
            return replace(left, shortfalls=(*left.shortfalls, _UNUSED))
    else:
        norm = targets.norm
        solution = fit_paper(candidates.problem, paper, norm=norm, seed=seed, on_step=on_step)
        program = paper.denoiser(norm)
        if program is None and not np.array_equal(solution.aim, solution.answers):
            program = usual_denoiser(norm)  # no weights could meet the answers as they are
        settings = {**asdict(paper), "denoise": program, "seed": seed}
    return Tilt(
        table=table,
        answers=targets,
        solution=candidates.compared(solution, own),
        base=candidates.problem.base,
        method="default" if paper is None else paper.name,
        settings=settings,
        base_column=base_weights if isinstance(base_weights, str) else None,
        weighted=base_weights is not None,
        shortfalls=(*candidates.shortfalls, *left_out, *unmade),
        fingerprint=candidates.fingerprint,
        guards=guards,
        redrawing=redrawing,
    )


def guards_of(
    keep: Workload | None, targets: Targets, table: Table
) -> tuple[Guards | None, list[str]]:
    """The guards of a fit, those that are given, or else the plan's; and what they leave out."""
    if keep is None:
        return targets.guards, []
    if not isinstance(keep, Workload) or keep.measures:
        raise InputError(
            "keep: expected guards alone, such as retilt.keep('marginals'); measures are part of "
            "the plan."
        )
    return resolve_guards(table, keep.guards, load_declared(targets.schema), targets.queries)


def _refuse_guards(guards: Guards | None, paper: Paper | None) -> None:
    if paper is not None and guards is not None:
        raise InputError(
            "keep: guards belong to the default method; the paper's has none. Leave them out, or "
            "use the default method."
        )


def bounds_of(
    min_weight: float | None, max_weight: float | None, paper: Paper | None
) -> Bounds | None:
    """The bounds of the weights as asked for, None for none.

    Raises
    ------
    InputError
        They leave no room, or do not belong to the method.
    """
    bounds = Bounds.of(min_weight, max_weight)
    if bounds is not None and paper is not None:
        name = "max_weight" if min_weight is None else "min_weight"
        raise InputError(
            f"{name}: the paper's method has no bounds of the weights. Leave them out, or use the "
            "default method."
        )
    return bounds


def _fit_default(
    problem: Problem,
    answers: Targets,
    min_ess: float | None,
    denoiser: Denoiser | None,
    on_step: Callable[[Any], object] | None,
) -> Solution:
    denoised = None if denoiser is None else nearest(problem, denoiser)
    count = len(answers.means)  # the guards' queries come after them
    solution = fit_path(
        problem,
        lambda means: answers.queries.evaluate(means[:count]),
        errors=lambda means: answers.queries.standard_errors(
            means[:count], answers.variances, answers.common_noise
        ),
        dominated=answers.dominated,
        aim=None if denoised is None else denoised.closest,
        min_ess=min_ess,
        on_step=on_step,
    )
    if denoised is None or denoised.converged or solution.status is not Status.CONVERGED:
        return solution
    return replace(solution, status=Status.ITERATION_LIMIT)


def paper_of(
    method: Way, *, min_ess: float | None, denoise: Denoiser | None, seed: int | None
) -> Paper | None:
    """The paper's method as asked for, or None for the default.

    Raises
    ------
    InputError
        The method is unknown, or an option does not belong to it.
    """
    if not isinstance(method, Paper) and method not in ("default", *_NAMED):
        raise InputError(
            f"method: got {method!r}, expected 'default', 'paper', 'paper-exact' or a Paper."
        )
    if denoise not in _DENOISERS:
        raise InputError(f"denoise: got {denoise!r}, expected 'qp', 'lp' or None.")
    check_seed(seed)
    if method == "default":
        return None
    if min_ess is not None:
        raise InputError(
            "min_ess: the paper's method has no floor of the effective sample size. Leave it "
            "out, or use the default method."
        )
    paper = method if isinstance(method, Paper) else _NAMED[method]
    return paper if denoise is None else replace(paper, denoise=denoise)


def check_fit(
    synthetic: Any,
    plan: Plan,
    *,
    method: Way = "default",
    base_weights: Any = None,
    min_ess: float | None = None,
    max_weight: float | None = None,
    min_weight: float | None = None,
    denoise: Denoiser | None = None,
    support: Support | None = None,
    seed: int | None = None,
) -> None:
    """Refuse, before any budget is spent, what :func:`fit` would refuse afterwards.

    Raises
    ------
    InputError
        As :func:`fit`.
    """
    paper = paper_of(method, min_ess=min_ess, denoise=denoise, seed=seed)
    bounds_of(min_weight, max_weight, paper)
    table = open_table(synthetic)
    require_rows(table)
    _refuse_guards(plan.guards, paper)
    mix, base = support_of(support), base_of(table, base_weights)
    if mix is not None:
        wider = widen(table, plan, mix.settled(table.rows, seed), base)
        table, base = wider.table, wider.base
    designs = plan_designs(plan, encode_candidates(table, plan), table)
    dense = paper is not None or denoise is not None
    check_designs(designs, base, min_ess=min_ess, dense=dense)


def check_designs(
    designs: tuple[Design, ...],
    base: FloatArray,
    *,
    min_ess: float | None = None,
    dense: bool = False,
) -> None:
    """:func:`check_fit` for queries that are laid out already."""
    nothing = np.zeros(sum(map(design_queries, designs)))
    problem = Problem(
        designs=designs, answers=nothing, covariance=Covariance(nothing + 1), base=base
    )
    check_problem(problem, min_ess=min_ess, dense=dense)
