"""Follow the tilt from the base weights towards the answers, and say where to stop.

The trade-off goes from so large that nothing moves down by a factor at a time, each point
started from the last. Stein's unbiased risk estimate says which point has the smallest error
of the measures, a floor on the effective sample size says which are allowed, and where the
support can't reach the answers at all, the statistics that the user asked for decide.

A long table is followed on a fixed sample of its rows and finished on all of them. The sample's
answers are shifted by the difference of the base means between sample and table, so that it
has to make the same move: without that, the sampling error of its means would swamp the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np

from retilt.exceptions import InputError
from retilt.measures.base import FloatArray
from retilt.tilting.anchor import Anchor, anchored, without
from retilt.tilting.bounded import rows_of
from retilt.tilting.floors import SLACK, check_min_ess, ess_of, loosened, verified
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Mask
from retilt.tilting.points import (
    FINAL_GAP,
    FINAL_STEPS,
    INFEASIBLE_SURE,
    Judge,
    Predict,
    Rule,
    Stop,
    Walker,
)
from retilt.tilting.problem import Problem
from retilt.tilting.reduction import MAX_DENSE, MAX_VARYING, Reduced, check_size
from retilt.tilting.sample import leveraged, sampled
from retilt.tilting.solution import PathPoint, Solution, Status
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.choice import Method, method_without_noise
from retilt.tilting.solvers.newton import State, with_hessian

Tell: TypeAlias = Callable[[PathPoint], object]

_FACTOR = 2.0
_MANY, _MAX_POINTS = 48, 100
"""Points after which the path goes on in longer steps, and how many it may have.

One row far off all others is all that moves in the first hundred factors.
"""

_MOVES = 4

_NEAR_FLOOR = 1e-4
"""Logarithm of the trade-off to which the point at the user's floor is found."""

_HIGHEST = 70.0
"""Logarithms above the first point under the floor, beyond which nothing moves."""

_FAR = 10.0
"""Deviations of its noise by which an answer is far off."""

LEAST_ETA = 1e-12
"""The trade-off that stands for 0 where a floor has to be kept by a larger one."""

_DETOUR = tuple(2.0**k for k in range(20, 0, -1))
"""Trade-offs on the way to one that can't be solved at once."""

_NEAR_GAP = 1e-6
"""Nats to which a sample is solved: its optimum lies farther from that of all rows."""


def _ended(stops: list[Stop], queries: int) -> bool:
    """Whether nothing is to be gained further down the path."""
    points = [stop.point for stop in stops]
    last = points[-1]
    best = min(range(len(points)), key=lambda i: points[i].sure)
    past = len(points) - 1 - best
    if past >= 8 or (past >= 4 and last.sure - points[best].sure >= max(1.0, 0.02 * queries)):
        return True
    if len(points) < 5:
        return False
    # Saturated: every answer that can be followed is followed.
    early = points[-4]
    return last.trace - early.trace < 5e-3 * last.trace and early.misfit - last.misfit < 0.02


def _untried(reduced: Reduced, last: Stop, spread: Callable[[], FloatArray]) -> bool:
    """Whether an answer is far off that would be followed at smaller trade-offs only.

    Where one row is far off all others, it alone moves at first, and nothing does for a while.
    ``spread`` gives the (V,) variances of the queries under the base weights.
    """
    if reduced.answers.size > MAX_DENSE:
        return False
    noise = reduced.covariance.deviations
    off = np.abs(last.state.fold.means - reduced.answers)
    far = reduced.measured & (off > _FAR * noise)
    return bool(far.any() and np.any(last.point.eta * noise[far] ** 2 > spread()[far]))


def _follow(walker: Walker, tell: Tell) -> tuple[list[Stop], bool]:
    """Points from the base weights downwards, and whether the solver gave up on the next."""
    base = stop = walker.base()
    stops = [stop.light()]
    # Only asked where answers are far off, but then at many points.
    spread = cache(lambda: np.diagonal(walker.reduced.rows.covariance(base.state.fold)))
    tell(stop.point)
    eta = walker.first_eta(stop.state)
    while eta > 0 and len(stops) < _MAX_POINTS:
        given_up = stop.strained or (len(stops) > 3 and all(s.deep for s in stops[-3:]))
        ended = given_up or _ended(stops, walker.reduced.count)
        if ended and (given_up or not _untried(walker.reduced, stop, spread)):
            break
        stop = walker.at(eta, stop.state, peak=stop.peak)
        if stop.verdict is not Verdict.CONVERGED:
            return stops, True
        stops.append(stop.light())
        tell(stop.point)
        eta /= _FACTOR if len(stops) <= _MANY else _FACTOR**3
    return stops, False


def _peak(stops: Sequence[Stop], eta: float) -> float:
    """Largest trace at trade-offs from ``eta`` upwards."""
    return max((stop.peak for stop in stops if stop.point.eta >= eta), default=0.0)


def _refine(walker: Walker, stops: list[Stop], rule: Rule, tell: Tell) -> list[Stop]:
    """Two rounds of bisection (in log eta) on both sides of the best point."""
    for _ in range(2):
        best = rule.best(stops)
        where = stops.index(best)
        if best.point.eta == np.inf:
            return stops
        added = []
        for near in (where - 1, where + 1):
            if near == 0 or near >= len(stops):
                continue
            eta = math.sqrt(best.point.eta * stops[near].point.eta)
            stop = walker.at(eta, best.state, peak=_peak(stops, eta))
            if stop.verdict is Verdict.CONVERGED:
                added.append(stop.light())
                tell(stop.point)
        stops = sorted([*stops, *added], key=lambda stop: -stop.point.eta)
    return stops


def _settle(full: Walker, sample: Sequence[Stop], rule: Rule, tell: Tell) -> list[Stop]:
    """Points on all rows near the best one of the sample, until no neighbour is better."""
    stops = [full.base()]
    start = rule.best(sample)
    eta = start.point.eta
    if eta == np.inf:
        return stops
    state = _carried(full, start)
    wanted = [eta]
    for _ in range(_MOVES + 1):
        for eta in wanted:
            stop = full.at(eta, state, peak=_peak(sample, eta))
            stops.append(stop)
            if stop.verdict is Verdict.CONVERGED:
                tell(stop.point)
        best = rule.best(stops[1:])
        if rule.cost(best) == np.inf:
            # Under the floor, or too far for the solver: back towards the base weights.
            best = max(stops[1:], key=lambda other: other.point.eta)
            steps = [_FACTOR]
        else:
            steps = [_FACTOR, 1 / _FACTOR]
        if best.verdict is Verdict.CONVERGED:
            state = best.state
        known = [other.point.eta for other in stops]
        near = [best.point.eta * step for step in steps]
        wanted = [eta for eta in near if not np.isclose(eta, known, rtol=1e-6).any()]
    return stops


def _carried(full: Walker, start: Stop) -> State:
    """A start on all rows from a sample's point: its multipliers, or half, or none of them.

    Multipliers that insist on a cell of a few rows may meet other rows in the whole table.
    """
    states = [
        full.state(start.point.eta, share * start.state.multipliers) for share in (1.0, 0.5, 0.0)
    ]
    return min(states, key=lambda state: state.value)


def _refused(stops: Sequence[Stop], best: Stop, rule: Rule) -> Stop | None:
    """The next point down the path, if it is better and nothing but the floor refuses it."""
    below = [stop for stop in stops if stop.point.eta < best.point.eta]
    if rule.keep or not below:
        return None
    low = max(below, key=lambda stop: stop.point.eta)
    better = not low.point.allowed and rule.value(low) < rule.value(best)
    return low if better else None


def _to_floor(walker: Walker, stops: Sequence[Stop], best: Stop, rule: Rule) -> Stop:
    """The point at the user's floor, if that alone keeps the fit from going on; else ``best``.

    The path's own points are a factor apart, which may be many rows.
    """
    floor, whole = walker.judge.min_ess, walker.judge.base_ess
    low = _refused(stops, best, rule)
    if floor is None or floor >= whole * (1 - SLACK) or low is None:
        return best
    from scipy.optimize import brentq

    tried = [best]

    def over(log_eta: float) -> float:
        eta = math.exp(log_eta)
        stop = walker.at(eta, tried[-1].state, peak=_peak(stops, eta), final=True)
        tried.append(stop)
        return stop.point.ess - stop.point.floor

    first = math.log(low.point.eta)
    last = math.log(best.point.eta) if best.point.eta < np.inf else first + math.log(_FACTOR)
    while over(last) < 0 and last < first + _HIGHEST:
        last += math.log(_FACTOR)
    if tried[-1].point.allowed and over(first) < 0:
        root = float(brentq(over, first, last, xtol=_NEAR_FLOOR))
        over(root + 2 * _NEAR_FLOOR)  # to be on the side that is allowed
    # Without the slack of a point that is met by chance: here the floor can be had in full.
    return rule.best([best, *(stop for stop in tried[1:] if stop.point.ess >= floor)])


def _comparable(full: Walker, visited: Sequence[Stop]) -> Sequence[Stop]:
    """The points on all rows; a sample's as well if the base weights are the only one."""
    on_all = [stop for stop in visited if stop.point.rows == full.reduced.rows.base.size]
    return on_all if len(on_all) > 1 else visited


def _descend(walker: Walker, stop: Stop) -> Stop:
    """The point solved to rounding; moved back a little if it is not allowed any more."""
    final = walker.finish(stop)
    step = _NEAR_FLOOR
    for _ in range(40):
        held = final.point.allowed and not final.strained
        if held or final.verdict is not Verdict.CONVERGED:
            return final
        step = min(2 * step, 0.05)
        eta = final.point.eta * (1 + step)
        final = walker.at(eta, final.state, peak=final.peak, final=True)
    return walker.base()


def fit_path(
    problem: Problem,
    predict: Predict,
    *,
    errors: Predict | None = None,
    dominated: Mask | None = None,
    aim: FloatArray | None = None,
    min_ess: float | None = None,
    on_step: Callable[[PathPoint], object] | None = None,
) -> Solution:
    """Weights at the trade-off where the measures' estimated error is smallest.

    Parameters
    ----------
    problem
        Queries, answers, noise, base weights.
    predict
        From (K,) answers to the (S,) statistics that the user asked for; NaN where undefined.
        It decides only where the support can't reach the answers.
    errors
        From (K,) means to the (S,) standard errors that the answers' noise gives the statistics
        there; None for no noise. Where they explain how far the base weights' statistics are
        off, the base weights are kept.
    dominated
        (S,) statistics whose standard error at the answers is not to be trusted, since noise
        dominates what they are divided by; None if that is unknown.
    aim
        (K,) answers to go towards instead of the noisy ones, such as the denoised. Points are
        judged by the noisy ones all the same; their estimated risk is then a rule of thumb.
    min_ess
        Floor of the effective sample size; None for 20 rows for each effective parameter, but no
        more than a quarter of the base weights' own.
    on_step
        Called with every point of the path.

    Returns
    -------
    Solution
        With its certificate, its status and the path. Its weights keep the problem's bounds, and
        ``min_ess``: where the exact answers alone would take them under it, these are held as
        loosely as it takes.

    Raises
    ------
    InputError
        If more than 20,000 queries vary over the rows, or ``min_ess`` is out of range.
    """
    tell = on_step or (lambda point: None)
    check_min_ess(min_ess, ess_of(problem.base))
    measured = problem.measured
    queries = int(np.count_nonzero(measured))
    problem, judged = _with_judged_guards(problem)
    original, anchor, floored = _start(problem, problem.answers if aim is None else aim, min_ess)
    if aim is not None or np.any(problem.exact):
        aim = anchor.aim
    problem = anchor.problem
    whole = rows_of(problem)
    before = problem.means(problem.base)
    judge = Judge.of(problem, predict, before, whole, min_ess, errors, judged, dominated)
    full = Walker.of(problem, whole, judge, whole, aim)
    rows = sampled(problem, whole)
    walker = full
    if rows is not whole:
        walker = Walker.of(problem, rows, judge, whole, aim, full.method)
    stops, broken = _follow(walker, tell)
    insistent = stops[-1].means
    rule = Rule.of(stops, queries, agrees=judge.agrees(judge.before))
    stops = _refine(walker, stops, rule, tell)
    best, visited = rule.best(stops), stops
    # Where the solver gave up, the path may have ended before the best point.
    cut = broken and best is stops[-1]
    if walker is not full:
        rule, settled = _on_all_rows(full, stops, rule, tell, queries)
        solved = [stop for stop in settled[1:] if stop.verdict is Verdict.CONVERGED]
        best, visited = rule.best(settled), [*stops, *solved]
        cut |= best is settled[0] and len(solved) < len(settled) - 1
    comparable = _comparable(full, visited)
    final = _descend(full, _to_floor(full, comparable, best, rule))
    status = _status(final, visited, rule, queries, cut=cut)
    if status is Status.INFEASIBLE_MEASURES and _refused(comparable, final, rule) is not None:
        status = _status_unbounded(problem, judge, aim, queries)
    solution = _solution(problem, full, final, visited, insistent, status)
    solution = replace(_from_anchor(original, anchor, solution, aim), measured=measured.copy())
    if floored and not np.any(anchor.released) and solution.status is not Status.ITERATION_LIMIT:
        solution = replace(solution, status=Status.FLOOR_REACHED)
    return verified(solution, original, min_ess)


def _with_judged_guards(problem: Problem) -> tuple[Problem, Mask]:
    """The problem with its guards as measured answers if some are exact; and (K,) which.

    The path starts where exact answers hold, and so from guards that these have moved. Only at
    a finite trade-off are they pulled back, so whether one is needed must be judged by them, too.
    Elsewhere they are where they should be at the start, and only hold the others back. See
    docs/mathematics.md, "Guards beside exact answers".
    """
    guards = ~problem.measured & ~problem.exact
    if not np.any(problem.exact):
        return problem, np.zeros_like(guards)
    return replace(problem, measured=~problem.exact), guards


def _from_anchor(
    problem: Problem, anchor: Anchor, solution: Solution, aim: FloatArray | None
) -> Solution:
    """The solution of the problem as it was before its base weights were moved."""
    if not np.any(problem.exact):
        return solution if aim is None else replace(solution, aim=aim.copy())
    solution = replace(
        solution,
        multipliers=solution.multipliers + anchor.multipliers,
        before=problem.means(problem.base),
        answers=problem.answers,
        aim=np.where(problem.measured, anchor.aim, problem.answers),
        released=anchor.released,
        looseness=problem.looseness,
        bounds=problem.bounds,
        insistent=np.where(anchor.released, anchor.nearest, solution.insistent),
    )
    if np.any(solution.unmet):
        return replace(solution, status=Status.INFEASIBLE_MEASURES)
    return solution


def _start(
    problem: Problem, aim: FloatArray, min_ess: float | None
) -> tuple[Problem, Anchor, bool]:
    """Where the path starts, on the way to ``aim``.

    With the problem, whose exact answers are loosened where they alone would take the weights
    under the floor; and whether they do.
    """
    if not np.any(problem.exact):
        return problem, anchored(problem, aim), False
    # What no weights can meet is left out; what the bounds keep from is met as nearly as can be.
    free = anchored(replace(problem, bounds=None), aim)
    left = without(problem, free.released)

    def start(looseness: float) -> Anchor:
        if problem.bounds is None and looseness == 1:
            return free
        found = anchored(replace(left, looseness=looseness), aim, release=False)
        return replace(found, released=free.released, nearest=free.nearest)

    anchor = start(1.0)
    if min_ess is None or ess_of(anchor.problem.base) >= min_ess * (1 - SLACK):
        return problem, anchor, False
    looseness = loosened(lambda factor: ess_of(start(factor).problem.base), min_ess)
    return replace(problem, looseness=looseness), start(looseness), True


def _on_all_rows(
    full: Walker, stops: list[Stop], rule: Rule, tell: Tell, queries: int
) -> tuple[Rule, list[Stop]]:
    """Points on all rows, and the rule that holds there."""
    settled = _settle(full, stops, rule, tell)
    if rule.infeasible or rule.keep or not Rule.of(settled, queries).infeasible:
        return rule, settled
    rule = Rule(infeasible=True)
    return rule, _settle(full, stops, rule, tell)


def _status(final: Stop, visited: Sequence[Stop], rule: Rule, queries: int, *, cut: bool) -> Status:
    if cut or final.verdict is not Verdict.CONVERGED:
        return Status.ITERATION_LIMIT
    if rule.keep:
        return Status.CONVERGED
    nearest = min(visited, key=lambda stop: stop.point.sure)
    lowest = nearest.point
    if rule.infeasible:
        if final.asked <= INFEASIBLE_SURE * queries:
            return Status.CONVERGED  # guards alone are what the smallest risk is far from
        # Below the floor the answers may be in reach.
        reached = nearest.asked <= INFEASIBLE_SURE * queries
        return Status.FLOOR_REACHED if reached else Status.INFEASIBLE_MEASURES
    if not lowest.allowed and lowest.sure < final.point.sure - 0.01:
        return Status.FLOOR_REACHED
    return Status.CONVERGED


def _status_unbounded(
    problem: Problem, judge: Judge, aim: FloatArray | None, queries: int
) -> Status:
    """Of a fit that the floor stopped short of answers out of reach: what keeps it from them.

    The floor does if only the bounds of the weights stand farther down the same path; the rows do
    if no weights of theirs could give the answers.
    """
    if problem.bounds is None:
        return Status.INFEASIBLE_MEASURES
    free = replace(problem, bounds=None)
    whole = rows_of(free)
    stops, _ = _follow(Walker.of(free, sampled(free, whole), judge, whole, aim), lambda point: None)
    nearest = min(stops, key=lambda stop: stop.point.sure)
    reached = nearest.asked <= INFEASIBLE_SURE * queries
    return Status.FLOOR_REACHED if reached else Status.INFEASIBLE_MEASURES


def _solution(
    problem: Problem,
    full: Walker,
    final: Stop,
    visited: Sequence[Stop],
    insistent: FloatArray,
    status: Status,
) -> Solution:
    reduced = full.reduced
    weights = reduced.rows.expand(final.state.fold.weights, problem.rows)
    chosen = replace(final.point, chosen=True)
    others = [s.point for s in visited if s.point.eta != chosen.eta or s.point.rows != chosen.rows]
    return Solution(
        eta=chosen.eta,
        multipliers=reduced.lift(final.state.multipliers, chosen.eta),
        weights=weights,
        ess=ess_of(weights),
        before=full.judge.before.copy(),
        after=problem.means(weights),
        insistent=insistent.copy(),
        answers=problem.answers,
        covariance=problem.covariance,
        aim=problem.answers,
        tolerance=0.0,
        trace=chosen.trace,
        sure=chosen.sure,
        path=tuple(sorted([*others, chosen], key=lambda point: -point.eta)),
        status=status,
        measured=problem.measured.copy(),
        exact=problem.exact.copy(),
        released=np.zeros(problem.queries, dtype=np.bool_),
        bounds=problem.bounds,
        looseness=problem.looseness,
    )


def check_problem(problem: Problem, *, min_ess: float | None = None, dense: bool = False) -> None:
    """Refuse what :func:`fit_path` would refuse, whatever the answers are.

    With ``dense`` also what denoising and the paper's method would refuse for its size.

    Raises
    ------
    InputError
        As :func:`fit_path`.
    """
    rows = Rows.of(problem)
    check_min_ess(min_ess, rows.base_ess)
    check_size(rows, MAX_DENSE if dense else MAX_VARYING)


def fit_at(
    problem: Problem, eta: float, *, gap: float = FINAL_GAP, min_ess: float | None = None
) -> Solution:
    """Weights at one trade-off, without a path; 0 asks for the answers exactly.

    A long table is solved on a sample of its rows first; from there a few passes over all rows
    are enough.

    Parameters
    ----------
    problem
        Queries, answers, noise, base weights.
    eta
        Zero or more. At zero the answers must be means of the support's inner points.
    gap
        Duality gap to reach, in nats; the default is far below what rounding allows.
    min_ess
        Floor of the effective sample size; None for none. Where the weights are under it, those
        of the smallest larger trade-off that keeps it are returned.

    Raises
    ------
    InputError
        If ``eta`` is negative or not finite, or ``min_ess`` is out of range.
    """
    if not (0 <= eta < np.inf):
        raise InputError(f"eta: got {eta!r}, expected a finite number of at least 0.")
    check_min_ess(min_ess, ess_of(problem.base))
    solution = _at(problem, eta, gap)
    if min_ess is not None and solution.ess < min_ess * (1 - SLACK):
        # Answers that are to be met exactly begin with the smallest trade-off that is one.
        least = eta or LEAST_ETA
        factor = loosened(lambda factor: _at(problem, factor * least, gap).ess, min_ess)
        solution = replace(_at(problem, factor * least, gap), status=Status.FLOOR_REACHED)
    return verified(solution, problem, min_ess)


def _at(problem: Problem, eta: float, gap: float) -> Solution:
    """Weights at one trade-off, whatever their effective sample size."""
    rows = rows_of(problem)
    before = problem.means(problem.base)
    judge = Judge.of(problem, lambda answers: answers, before, rows, None)
    walker = Walker.of(problem, rows, judge, rows)
    reduced = walker.reduced
    method = walker.method if eta > 0 else method_without_noise(reduced)
    start = _from_sample(problem, walker, method, eta)
    state, verdict = method.solve(reduced, eta, start, gap, FINAL_STEPS)
    if verdict is not Verdict.CONVERGED and eta > 0:
        # Bounds that answers far off push nearly all rows to: come from where few rows are at one.
        near: State | FloatArray = np.zeros(reduced.answers.size)
        for farther in _DETOUR:
            near, _ = method.solve(reduced, farther * eta, near, _NEAR_GAP, FINAL_STEPS)
        state, verdict = method.solve(reduced, eta, near, gap, FINAL_STEPS)
    stop = walker.stop(eta, state, verdict)
    status = Status.CONVERGED if verdict is Verdict.CONVERGED else Status.ITERATION_LIMIT
    return _solution(problem, walker, stop, [stop], stop.means, status)


def _from_sample(problem: Problem, full: Walker, method: Method, eta: float) -> State | FloatArray:
    """Where to start on all rows: a sample's optimum if there is one, else no tilt.

    The sample's Hessian comes along: steps with it are good enough to do without one of all rows.
    """
    whole = full.reduced.rows
    nothing = np.zeros(full.reduced.answers.size)
    if nothing.size > MAX_DENSE:
        # Steps from no tilt cost less than finding out that a sample can't reach the answers.
        return nothing
    part = leveraged(problem, whole)
    if part is whole:
        return nothing
    near = Walker.of(problem, part, full.judge, whole).reduced
    state, verdict = method.solve(near, eta, nothing, _NEAR_GAP, FINAL_STEPS)
    if verdict is not Verdict.CONVERGED:
        return nothing  # the sample's rows may not reach what all rows do
    if state.hessian is not None:
        state = with_hessian(near, state)
    return replace(full.state(eta, state.multipliers), hessian=state.hessian)
