"""The optimum against independent solvers: SciPy on the dual and the primal, ebal on the primal.

Twenty random problems: 50 to 5,000 rows, 1 to 60 queries, some of them collinear, unequal base
weights, effective sample sizes from nearly all rows down to 2 % of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, rel_entr

from retilt.measures.base import Indicators, Products
from retilt.tilting import Covariance, Problem, Solution, Status, fit_at


@dataclass(frozen=True)
class Case:
    values: NDArray[np.float64]
    base: NDArray[np.float64]
    target: NDArray[np.float64]
    independent: NDArray[np.intp]
    share: float

    @property
    def design(self) -> Products:
        size = self.values.shape[1]
        none = np.full(size, -1)
        return Products(self.values, np.arange(size), none, np.zeros(size), np.ones(size))


def tilted(values: NDArray, base: NDArray, multipliers: NDArray) -> NDArray:
    scores = np.log(base) - values @ multipliers
    return np.exp(scores - logsumexp(scores))


def ess(weights: NDArray) -> float:
    return float(1 / np.sum(weights**2))


def random_case(number: int) -> Case:
    """A problem whose optimum without noise has a given effective sample size."""
    rng = np.random.default_rng(1000 + number)
    share = np.geomspace(0.95, 0.02, 20)[number]
    rows = int(np.geomspace(50, 5000, 20)[(7 * number + 3) % 20])
    # Among few effective rows many independent queries leave no second solution to find.
    largest = min(60, int(share * rows / 2))
    queries = max(1, int(np.geomspace(1, 60, 20)[(3 * number) % 20]))
    own = max(1, min(queries, largest))
    values = rng.normal(size=(rows, own)) * rng.uniform(0.1, 3, own)
    if own > 2:
        values[:, 2] = (values[:, 2] > 0.5) * 1.0
    # Collinear: copies and sums of the others fill up to the wanted number.
    extra = max(queries - own, number % 4)
    mixing = rng.integers(-1, 2, size=(own, extra))
    values = np.hstack([values, values @ mixing])
    base = rng.gamma(2.0, size=rows)
    base /= base.sum()
    direction = rng.normal(size=own) / values[:, :own].std(0)
    if own > 2:
        # A share of two values must not be driven to 0 or 1: there is no optimum on the edge.
        direction[2] *= 0.1
    direction = np.r_[direction, np.zeros(values.shape[1] - own)]
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        wide = ess(tilted(values, base, middle * direction)) > share * ess(base)
        low, high = (middle, high) if wide else (low, middle)
    weights = tilted(values, base, low * direction)
    return Case(values, base, weights @ values, np.arange(own), share)


CASES = [random_case(number) for number in range(20)]


def exact(case: Case) -> Solution:
    noise = Covariance(np.ones(case.target.size))
    return fit_at(Problem((case.design,), case.target, noise, case.base), 0.0)


def divergence(weights: NDArray, base: NDArray) -> float:
    return float(rel_entr(weights, base / base.sum()).sum())


def scipy_divergence(case: Case) -> float:
    """Minus the least of the dual, by L-BFGS over the independent queries in their own units."""
    values = case.values[:, case.independent] - case.target[case.independent]
    values = values / values.std(0)

    def dual(multipliers: NDArray) -> tuple[float, NDArray]:
        scores = np.log(case.base) - values @ multipliers
        top = logsumexp(scores)
        return float(top), -(np.exp(scores - top) @ values)

    start = np.zeros(values.shape[1])
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    return -float(minimize(dual, start, jac=True, method="L-BFGS-B", options=options).fun)


def test_the_cases_are_as_wide_as_promised():
    rows = [case.values.shape[0] for case in CASES]
    queries = [case.values.shape[1] for case in CASES]
    assert (min(rows), max(rows)) == (50, 5000)
    assert min(queries) == 1
    assert max(queries) >= 60
    shares = [ess(exact(case).weights) / ess(case.base) for case in CASES]
    assert max(shares) > 0.9
    assert min(shares) < 0.021


@pytest.mark.parametrize("case", CASES)
def test_exact_answers_against_scipy(case: Case):
    solution = exact(case)
    assert solution.status is Status.CONVERGED
    np.testing.assert_allclose(solution.after, case.target, rtol=0, atol=1e-8)
    ours = divergence(solution.weights, case.base)
    assert ours == pytest.approx(scipy_divergence(case), abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_exact_answers_against_ebal(case: Case):
    ebal = pytest.importorskip("ebal", reason="ebal is not installed")
    values = case.values[:, case.independent]
    treated = np.r_[1, np.zeros(values.shape[0])]
    outcome = np.arange(treated.size, dtype=float)
    coefficients = None
    start = case.base @ values
    target = case.target[case.independent]
    # ebal's Newton method diverges from afar, so it is led to the target in steps.
    for share in np.linspace(0, 1, 21)[1:]:
        towards = start + share * (target - start)
        solver = ebal.ebal_bin(
            coefs=coefficients,
            effect="ATT",
            PCA=False,
            print_level=-1,
            constraint_tolerance=1e-10,
            max_iterations=500,
        )
        with warnings.catch_warnings():
            # Its regression afterwards divides by zero with a single treated unit.
            warnings.simplefilter("ignore")
            result = solver.ebalance(
                treated, np.vstack([towards, values]), outcome, base_weight=case.base
            )
        coefficients = solver.coefs
    assert result["converged"]
    theirs = divergence(result["w"][1:] / result["w"][1:].sum(), case.base)
    assert divergence(exact(case).weights, case.base) == pytest.approx(theirs, abs=1e-6)


def noisy_problem(case: Case, number: int) -> tuple[Problem, NDArray]:
    rng = np.random.default_rng(number)
    size = case.target.size
    unit = np.maximum(case.values.std(0), 0.1)
    noise = Covariance((0.05 * unit) ** 2, 0.02 * unit[:, None] * rng.normal(size=(size, 2)))
    answers = case.target + 0.05 * unit * rng.normal(size=size)
    return Problem((case.design,), answers, noise, case.base), noise.dense()


@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("eta", [0.03, 30.0])
def test_noisy_answers_against_scipy_and_the_primal(number: int, eta: float):
    case = CASES[number]
    problem, noise = noisy_problem(case, number)
    solution = fit_at(problem, eta)
    assert solution.status is Status.CONVERGED
    assert solution.gap() < 1e-12
    assert solution.kkt_residual() < 1e-6
    values = case.values - problem.answers
    unit = 1 / np.sqrt(np.diag(noise))

    def dual(scaled: NDArray) -> tuple[float, NDArray]:
        multipliers = scaled * unit
        scores = np.log(problem.base) - values @ multipliers
        top = logsumexp(scores)
        curved = eta * noise @ multipliers
        gradient = curved - np.exp(scores - top) @ values
        return float(top + multipliers @ curved / 2), gradient * unit

    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    start = np.zeros(problem.queries)
    theirs = -float(minimize(dual, start, jac=True, method="L-BFGS-B", options=options).fun)
    error = solution.after - problem.answers
    primal = divergence(solution.weights, problem.base)
    primal += error @ np.linalg.solve(noise, error) / (2 * eta)
    # Strong duality: the primal at our weights is the dual's optimum found by SciPy.
    assert primal == pytest.approx(theirs, abs=1e-6, rel=1e-9)


def test_the_primal_solved_directly():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3, 40).astype(np.int32)
    values = rng.normal(size=(40, 2))
    none = np.full(2, -1)
    moments = Products(values, np.arange(2), none, np.zeros(2), np.ones(2))
    base = rng.random(40) + 0.1
    noise = np.full(5, 0.02**2)
    answers = np.array([0.4, 0.1, 0.5, 0.3, 0.2])
    problem = Problem((moments, Indicators(codes, 3)), answers, Covariance(noise), base)
    matrix = np.hstack([values, np.eye(3)[codes]])
    eta = 3.0

    def primal(weights: NDArray) -> float:
        error = weights @ matrix - answers
        return divergence(np.maximum(weights, 1e-300), base) + float(error**2 @ (1 / noise)) / 6

    def slope(weights: NDArray) -> NDArray:
        error = weights @ matrix - answers
        return (
            np.log(np.maximum(weights, 1e-300) / problem.base) + 1 + matrix @ (error / noise) / eta
        )

    result = minimize(
        primal,
        problem.base,
        jac=slope,
        method="SLSQP",
        bounds=[(1e-12, 1)] * 40,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    ours = primal(fit_at(problem, eta).weights)
    assert ours <= result.fun + 1e-9
    assert ours == pytest.approx(result.fun, abs=1e-6)
