"""Points of the path: solve at one trade-off, judge the result, choose among points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.anchor import free
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Mask
from retilt.tilting.problem import EXACT, HELD, Problem
from retilt.tilting.reduction import MAX_DENSE, Reduced, reduce
from retilt.tilting.solution import PathPoint
from retilt.tilting.solvers import Verdict
from retilt.tilting.solvers.choice import Method, method_for
from retilt.tilting.solvers.newton import Newton, State

Predict: TypeAlias = Callable[[FloatArray], FloatArray]

INFEASIBLE_SURE = 10.0
"""Smallest risk estimate per query above which the support can't reach the answers."""

_AGREES_EACH = 3.0
"""Standard errors up to which one statistic counts as agreeing with its answer."""

_POWER_SEED = 20_240_229
_POWER_STEPS = 30

POINT_STEPS = 60
FINAL_STEPS = 200
FINAL_GAP = 1e-20
"""Nats. Far below what anybody needs, so that rounding alone tells two machines' weights apart."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A point of the path with what is needed to go on from it.

    ``asked`` is the risk estimate of the measures alone, where guards are judged as well;
    ``peak`` is the largest trace met on the way from the base weights: where the weights gather
    on a few rows the trace falls again, and the floor must not fall with it. ``deep`` says that
    the effective sample size is below the user's floor and the default one; ``strained``, that
    noisy answers pull exact ones off.
    """

    point: PathPoint
    means: FloatArray
    state: State
    asked: float
    peak: float = 0.0
    deep: bool = False
    strained: bool = False
    verdict: Verdict = Verdict.CONVERGED

    def light(self) -> Stop:
        """Without the Hessian, which is too large to keep for every point."""
        return replace(self, state=replace(self.state, hessian=None, fresh=False))


def _finite(statistics: FloatArray) -> FloatArray:
    """Statistics with NaN for whatever is not finite."""
    values = np.asarray(statistics, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _with_guards(
    problem: Problem, guards: Mask, predict: Predict, errors: Predict | None
) -> tuple[Predict, Predict]:
    """Statistics and their standard errors, with guarded queries and their tolerances behind."""
    tolerances = problem.covariance.deviations[guards]

    def errors_of(means: FloatArray) -> FloatArray:
        own = np.zeros_like(predict(means)) if errors is None else errors(means)
        return np.concatenate([own, tolerances])

    return lambda means: np.concatenate([predict(means), means[guards]]), errors_of


def doubtful_errors(
    errors: Predict, answers: FloatArray, before: FloatArray, dominated: Mask | None
) -> FloatArray:
    """(S,) standard errors at the answers; of what noise dominates no less than at the base means.

    Where the noise drowns a column's spread, the error bar at the noisy answers is as wrong
    as they are, and too small as often as too large. Elsewhere it is right, and the one at the
    base means may be many times too wide: a table whose columns spread too little has correlations
    that hardly any noise could disprove. ``dominated`` None takes the larger everywhere. NaN where
    what counts is undefined.
    """
    there = errors(answers)
    drowned = True if dominated is None else dominated
    found: FloatArray = np.where(drowned, np.fmax(there, errors(before)), there)
    return found


@dataclass(frozen=True, slots=True)
class Judge:
    """What a point is judged by, besides its own risk estimate.

    ``before`` (K,) are the base means of the whole table, ``base_ess`` its effective size;
    ``base`` (S,) are the base weights' statistics, ``answered`` (S,) those of the answers, and
    ``noise`` (S,) the latter's standard errors; ``doubt`` (S,) are the
    :func:`doubtful_errors`;
    ``guards`` is the number of guarded queries that can move and are not judged; ``judged`` (K,)
    tells those that are.
    """

    predict: Predict
    base: FloatArray
    answered: FloatArray
    noise: FloatArray
    doubt: FloatArray
    before: FloatArray
    base_ess: float
    min_ess: float | None
    judged: Mask
    guards: int = 0

    @classmethod
    def of(
        cls,
        problem: Problem,
        predict: Predict,
        before: FloatArray,
        rows: Rows,
        min_ess: float | None,
        errors: Predict | None = None,
        judged: Mask | None = None,
        dominated: Mask | None = None,
    ) -> Judge:
        """From the problem, its statistics with their standard errors, and its base means.

        ``dominated`` (S,) tells the statistics that noise dominates; None if that is unknown.

        ``judged`` (K,) are guards among the measured queries: statistics of their own, whose
        standard errors are their tolerances.
        """
        judged = np.zeros(problem.queries, dtype=np.bool_) if judged is None else judged
        if judged.any():
            predict, errors = _with_guards(problem, judged, predict, errors)
            if dominated is not None:
                guards_too = np.zeros(np.count_nonzero(judged), dtype=np.bool_)
                dominated = np.concatenate([dominated, guards_too])
        answered = _finite(predict(problem.answers))
        noise = doubt = np.zeros_like(answered)
        if errors is not None:
            noise = np.nan_to_num(errors(problem.answers), nan=np.inf)
            doubt = doubtful_errors(errors, problem.answers, before, dominated)
        base = _finite(predict(before))
        kept = rows.varying & ~problem.measured & ~problem.exact
        guards = int(np.count_nonzero(kept))
        size = rows.base_ess
        return cls(predict, base, answered, noise, doubt, before, size, min_ess, judged, guards)

    @property
    def aim(self) -> FloatArray:
        """(S,) the answers' statistics where they prove the base weights' wrong, else the latter.

        A statistic that its noise drowns must not pull the fit, nor be moved for nothing.
        """
        off = np.abs(self.base - self.answered)
        proven = np.isfinite(off) & (off > _AGREES_EACH * self.noise)
        return np.where(proven, self.answered, self.base)

    def agrees(self, means: FloatArray) -> bool:
        """Whether the noise alone can explain how far the statistics are from the answers'.

        True if none is over three standard errors off and their sum of squares (in standard
        errors) is within two standard deviations of what S independent ones would give. False
        without statistics of known noise.
        """
        off = _finite(self.predict(means)) - self.answered
        known = np.isfinite(off) & np.isfinite(self.doubt) & (self.doubt > 0)
        squares = (off[known] / self.doubt[known]) ** 2
        count = squares.size
        return bool(
            count
            and squares.max() <= _AGREES_EACH**2
            and squares.sum() <= count + 2 * math.sqrt(2 * count)
        )

    def floor(self, trace: float) -> float:
        """Smallest effective sample size allowed with so many effective parameters."""
        return self.default_floor(trace) if self.min_ess is None else self.min_ess

    def default_floor(self, trace: float) -> float:
        """The floor where the user gave none: 20 rows a parameter, at most a quarter of all.

        A guard counts as a parameter: one that contradicts a measure must not be settled by
        gathering the weights on a few rows.
        """
        # Any move at all spends a parameter.
        return min(20 * max(1.0, trace + self.guards), self.base_ess / 4)

    def predicted_error(self, means: FloatArray) -> float:
        """Distance of the statistics from what they should be.

        One that is undefined here counts as unmoved, so that nothing is gained by making it so.
        """
        aim = self.aim
        error = np.abs(_finite(self.predict(means)) - aim)
        error = np.where(np.isnan(error), np.abs(self.base - aim), error)
        return float(np.nansum(error))


@dataclass(frozen=True, slots=True)
class Walker:
    """Computes points of the path on some rows.

    ``shift`` (V,) is what the rows' base means lack to those of the whole table; ``released``
    is ``reduced`` with the noisy answers, by which points are judged where the fit aims at
    others; ``method`` is the solver for a problem of this size.
    """

    reduced: Reduced
    released: Reduced
    judge: Judge
    shift: FloatArray
    method: Method

    @classmethod
    def of(
        cls,
        problem: Problem,
        rows: Rows,
        judge: Judge,
        whole: Rows,
        aim: FloatArray | None = None,
        method: Method | None = None,
    ) -> Walker:
        """For all rows, or for a sample of them with its answers shifted.

        What one ``method`` has learnt of the queries serves other rows of the same table.
        """
        shift = np.zeros(int(np.count_nonzero(rows.varying)))
        if rows is not whole:
            shift = judge.before[rows.varying] - rows.means(rows.merged)
        answers = problem.answers.copy()
        answers[rows.varying] -= shift
        released = reduce(problem, rows, answers)
        method = method or method_for(released)
        if aim is None:
            return cls(released, released, judge, shift, method)
        aimed = aim.copy()
        aimed[rows.varying] -= shift
        return cls(reduce(problem, rows, aimed), released, judge, shift, method)

    def state(self, eta: float, multipliers: FloatArray) -> State:
        """The solver's state at given (V,) multipliers, nothing solved."""
        return Newton(0.0).init(self.reduced, eta, multipliers)

    def base(self) -> Stop:
        """The base weights: an infinite trade-off."""
        start = np.zeros(self.reduced.answers.size)
        # Any finite trade-off will do for a state with zero multipliers.
        return self.stop(np.inf, self.state(1.0, start), Verdict.CONVERGED)

    def first_eta(self, base: State) -> float:
        """Trade-off so large that nothing moves yet; zero if nothing can move at all.

        Ten times the top eigenvalue of (H, S), and at least ten times the deviation of the
        first order's scores: answers a million deviations away would else empty the table at
        the first point.
        """
        reduced = self.reduced
        measured = reduced.measured
        noise = self.reduced.covariance.select(measured)
        size = noise.variances.size
        if size == 0:
            return 0.0
        times = self._freedom(base)
        pull = noise.solve((base.fold.means - self.reduced.answers)[measured])
        scores = math.sqrt(max(0.0, float(pull @ times(pull))))
        # Power iteration: a tenth of the eigenvalue would do. In units of the noise.
        vector = np.random.default_rng(_POWER_SEED).normal(size=size) / noise.deviations
        top = 0.0
        for _ in range(_POWER_STEPS):
            length = math.sqrt(float(vector @ noise.times(vector)))
            vector = noise.solve(times(vector / length))
            growth = math.sqrt(float(vector @ noise.times(vector)))
            top = growth
            if growth == 0:
                break
        return 10 * max(top, scores)

    def _freedom(self, base: State) -> Callable[[FloatArray], FloatArray]:
        """Covariance of the measured queries, as a map, where the exact ones are held."""
        reduced = self.reduced
        measured, exact = reduced.measured, reduced.exact
        if reduced.answers.size <= MAX_DENSE:
            variances = reduced.covariance.variances[exact]
            matrix = free(reduced.rows.covariance(base.fold), measured, exact, variances)
            return lambda x: np.asarray(matrix @ x, dtype=np.float64)
        times = self.method.curvature(reduced, base.fold)

        def embedded(x: FloatArray) -> FloatArray:
            # As if the exact ones were free: the path only begins further up.
            whole = np.zeros(measured.size)
            whole[measured] = x
            return times(whole)[measured]

        return embedded

    def at(
        self, eta: float, start: State | FloatArray, *, peak: float = 0.0, final: bool = False
    ) -> Stop:
        """Solve at one trade-off to a thousandth of the answers' noise, or (``final``) to rounding.

        ``peak`` is the largest trace met on the way here.
        """
        gap, steps = 1e-6 * max(1, self.reduced.count) / (2 * eta), POINT_STEPS
        if final:
            gap, steps = FINAL_GAP, FINAL_STEPS
        state, verdict = self.method.solve(self.reduced, eta, start, gap, steps)
        return self.stop(eta, state, verdict, peak=peak)

    def finish(self, stop: Stop) -> Stop:
        """Solve a point to rounding."""
        if stop.point.eta == np.inf:
            return stop
        return self.at(stop.point.eta, stop.state, peak=stop.peak, final=True)

    def stop(self, eta: float, state: State, verdict: Verdict, *, peak: float = 0.0) -> Stop:
        """Judge a state of the solver."""
        reduced, rows = self.reduced, self.reduced.rows
        means = self.judge.before.copy()
        means[rows.varying] = state.fold.means + self.shift
        trace = float(np.count_nonzero(reduced.measured)) if eta == 0 else 0.0
        if 0 < eta < np.inf:
            trace = self.method.parameters(reduced, state, eta)
        peak = max(peak, trace)
        misfit = self.released.misfit(state.fold.means)
        guarded, guards = self._guarded(state.fold.means)
        asked = reduced.count - guards
        # In units of tolerances; a share's own sampling error is the usual one.
        scatter = guards * max(0.0, rows.base_ess / state.fold.ess - 1)
        point = PathPoint(
            eta=eta,
            misfit=misfit / max(1, reduced.count),
            sure=misfit - reduced.count + 2 * trace + scatter,
            ess=state.fold.ess * self.judge.base_ess / rows.base_ess,
            floor=self.judge.floor(peak),
            trace=trace,
            predicted_error=self.judge.predicted_error(means),
            rows=rows.base.size,
        )
        deep = point.ess < min(point.floor, self.judge.default_floor(peak))
        strained = self._strained(state)
        return Stop(
            point=point,
            means=means,
            state=replace(state, system=None),
            # Guards' part of the trace is not known apart; no measure has more than one.
            asked=misfit - guarded - asked + 2 * min(trace, asked),
            peak=peak,
            deep=deep,
            strained=strained,
            verdict=verdict,
        )

    def _guarded(self, means: FloatArray) -> tuple[float, int]:
        """What guards that are judged add to the squared misfit, and how many they are."""
        judged = self.judge.judged
        among = judged[self.reduced.rows.varying]
        errors = (means - self.released.answers)[among] / self.released.covariance.deviations[among]
        return float(errors @ errors), int(np.count_nonzero(judged))

    def _strained(self, state: State) -> bool:
        """Whether exact answers are off where they were at the start, by more than is held.

        Without a bound or a contradiction in the way it takes a multiplier of ten thousand.
        """
        errors = np.abs(state.fold.means - self.reduced.answers)
        held = HELD / EXACT * self.reduced.covariance.deviations
        return bool(np.any((errors > held)[self.reduced.exact]))


@dataclass(frozen=True, slots=True)
class Rule:
    """Which point to take: by the risk estimate, or by the statistics where that is hopeless.

    ``keep`` takes the base weights whatever the measures say: the statistics agree already.
    """

    infeasible: bool
    keep: bool = False

    @classmethod
    def of(cls, stops: Sequence[Stop], queries: int, *, agrees: bool = False) -> Rule:
        """The risk estimate, unless even its smallest value says that the answers are far.

        Where the answers are in reach and the base weights' statistics agree with them
        (``agrees``), moving would only copy noise. Without any of the ``queries`` measured
        nothing is out of reach.
        """
        by_risk = cls(infeasible=False)
        far = queries > 0 and by_risk.best(stops).asked > INFEASIBLE_SURE * queries
        return cls(infeasible=far, keep=agrees and not far)

    def cost(self, stop: Stop) -> float:
        """What to make small; infinite under the floor and where exact answers do not hold."""
        if not stop.point.allowed or stop.strained or stop.verdict is not Verdict.CONVERGED:
            return np.inf
        if self.keep:
            return 0.0 if stop.point.eta == np.inf else np.inf
        return self.value(stop)

    def value(self, stop: Stop) -> float:
        """What the fit is after, whether the point is allowed or not."""
        return stop.point.predicted_error if self.infeasible else stop.point.sure

    def best(self, stops: Sequence[Stop]) -> Stop:
        """The cheapest; of equals the one nearest to the base weights."""
        return min(sorted(stops, key=lambda stop: -stop.point.eta), key=self.cost)
