"""Noise as a distribution: the samplers alone, and released answers minus exact sums.

The ``noise`` tests draw much; a short version of each runs with the fast tests. A test fails
at p < 1e-6, so that of all of them together one in ten thousand runs fails by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

import retilt as rt
from retilt import measure
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments
from retilt.pipeline import exact_sums
from retilt.privacy.budget import ZCDP, ApproxDP, Budget, PureDP
from retilt.privacy.mechanism import discrete_gaussian, discrete_laplace
from retilt.privacy.plan import Plan
from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow
from retilt.schema.columns import Categorical, Numeric, Schema

LEAST_P = 1e-6

Cdf = Callable[[NDArray[np.float64]], NDArray[np.float64]]


# --- checks -------------------------------------------------------------------------------


def gaussian_cdf(sigma: float) -> Cdf:
    """Of the discrete Gaussian: exact sums for small scales, rounded continuous beyond."""
    if sigma > 200:
        return lambda x: stats.norm.cdf((np.floor(x) + 0.5) / sigma)
    reach = math.ceil(12 * sigma + 20)
    support = np.arange(-reach, reach + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    summed = np.cumsum(mass) / mass.sum()
    return lambda x: summed[np.clip(np.floor(x).astype(int) + reach, 0, 2 * reach)]


def laplace_cdf(scale: float) -> Cdf:
    """Of the discrete Laplace: mass (1 - q)/(1 + q) q**|x| with q = exp(-1/scale)."""

    def cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.floor(x)
        log_q = -1 / scale
        share = 1 / (1 + math.exp(log_q))
        left = share * np.exp(-np.minimum(x, 0) * log_q)
        right = 1 - share * np.exp((np.maximum(x, 0) + 1) * log_q)
        return np.where(x < 0, left, right)

    return cdf


def check_spread(values: NDArray[np.float64], mechanism: str, scale: float) -> None:
    """Mean and spread of at least 200 draws; the law of the spread is exact for wide noise.

    Sums of squares of Gaussian noise are chi-square, sums of sizes of Laplace noise gamma.
    """
    count = len(values)
    deviation = scale * (1 if mechanism == "gaussian" else math.sqrt(2))
    assert abs(values.mean()) < 6 * deviation / math.sqrt(count)
    if mechanism == "gaussian":
        tail = stats.chi2(count).cdf(float(((values / scale) ** 2).sum()))
    else:
        tail = stats.gamma(count).cdf(float((np.abs(values) / scale).sum()))
    assert LEAST_P < tail < 1 - LEAST_P, "the noise is too narrow or too wide"


def check_fit(values: NDArray[np.float64], cdf: Cdf, scale: float) -> None:
    """Chi-square on bins of equal mass, and Kolmogorov-Smirnov where the scale is large."""
    bins = min(40, max(4, len(values) // 25))
    reach = np.arange(-math.ceil(16 * scale), math.ceil(16 * scale) + 1, max(1, int(scale / 500)))
    edges = np.unique(reach[np.searchsorted(cdf(reach.astype(float)), np.arange(1, bins) / bins)])
    mass = np.diff(np.concatenate([[0.0], cdf(edges.astype(float)), [1.0]]))
    # A bin holds what is above the edge before and at most its own edge.
    seen = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    keep = mass * len(values) >= 5
    seen_kept = np.append(seen[keep], seen[~keep].sum())
    mass_kept = np.append(mass[keep], mass[~keep].sum())
    some = mass_kept > 0
    assert seen_kept[~some].sum() == 0
    expected = len(values) * mass_kept[some] / mass_kept[some].sum()
    assert stats.chisquare(seen_kept[some], expected).pvalue > LEAST_P
    if scale > 1000:
        assert stats.kstest(values, cdf).pvalue > LEAST_P


def check_independent(draws: NDArray[np.float64]) -> None:
    """(draws, coordinates): no correlation between coordinates, nor from a draw to the next."""
    count, coordinates = draws.shape
    limit = 6.5 / math.sqrt(count)
    if coordinates > 1:
        between = np.corrcoef(draws, rowvar=False)
        assert np.abs(between - np.eye(coordinates)).max() < limit
    for column in draws.T:
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < limit


def check_low_bits(values: NDArray[np.int64]) -> None:
    """The lowest four bits of wide noise are uniform, whatever is below it."""
    seen = np.bincount(values & 15, minlength=16)
    assert stats.chisquare(seen).pvalue > LEAST_P


# --- the samplers alone -------------------------------------------------------------------

SAMPLERS: dict[str, tuple[Callable[[Sequence[float]], list[int]], Callable[[float], Cdf]]] = {
    "gaussian": (discrete_gaussian, gaussian_cdf),
    "laplace": (discrete_laplace, laplace_cdf),
}


def check_sampler(mechanism: str, scale: float, count: int) -> None:
    draw, cdf = SAMPLERS[mechanism]
    values = np.array(draw([scale] * count))
    check_fit(values.astype(np.float64), cdf(scale), scale)
    if scale > 1000:
        check_spread(values.astype(np.float64), mechanism, scale)
        check_low_bits(values)


@pytest.mark.parametrize("scale", [1.5, 10_000.0, 123_456.789, 2.0**40])
@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_sampler_short(mechanism: str, scale: float) -> None:
    check_sampler(mechanism, scale, 600)


@pytest.mark.noise
@pytest.mark.parametrize("scale", [0.7, 1.5, 12.0, 10_000.0, 123_456.789, 2.0**40, 2.0**56])
@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_sampler(mechanism: str, scale: float) -> None:
    check_sampler(mechanism, scale, 30_000)


@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_each_coordinate_gets_its_own_scale(mechanism: str) -> None:
    scales = [1e4, 1e7, 1e4, 1e10] * 300
    values = np.array(SAMPLERS[mechanism][0](scales), dtype=np.float64).reshape(-1, 4)
    for place, scale in enumerate(scales[:4]):
        check_spread(values[:, place], mechanism, scale)
    check_independent(values)


def test_no_two_draws_are_alike() -> None:
    """There is no seed: nothing that is set beforehand repeats a draw (F28)."""
    for draw, _ in SAMPLERS.values():
        np.random.seed(0)  # noqa: NPY002
        first = draw([1e6] * 50)
        np.random.seed(0)  # noqa: NPY002
        second = draw([1e6] * 50)
        assert first != second
        assert len(set(first)) > 45


# --- released answers ---------------------------------------------------------------------

BUDGETS: dict[str, Budget] = {
    "pure": PureDP(0.7),
    "approx": ApproxDP(1.0, 1e-9),
    "zcdp": ZCDP(3.0),
    "loud": ApproxDP(2000.0, 1e-9),
}


def small_plan(budget: Budget, *, count: bool) -> Plan:
    """Five queries of several deviations, and the row count under add/remove."""
    return Plan(
        unit=AddRemoveOneRow() if count else ReplaceOneRow(),
        budget=budget,
        rows=4,
        generator=None,
        basis="centred",
        schema=Schema({"a": Numeric(0.0, 1.0), "s": Categorical(("F", "M"))}),
        measures=(Moments(("a", "s"), loudness=Fraction(1)), Marginal(("s",))),
        scales=(Fraction(1), Fraction(3, 4)),
        count_scale=Fraction(1) if count else None,
    )


TABLES = [
    pa.table({"a": [0.0, 0.25, 1.0, 0.5], "s": ["F", "M", "M", None]}),
    pa.table({"a": [1.0, 1.0, 1.0, 1.0], "s": ["M", "M", "M", "M"]}),
]


def released_noise(plan: Plan, table: pa.Table, draws: int) -> NDArray[np.int64]:
    """(draws, K) released integers minus the exact ones."""
    exact = exact_sums(table, plan)
    answers = [measure(table, plan).values for _ in range(draws)]
    return np.array([[v - e for v, e in zip(a, exact, strict=True)] for a in answers])


def check_released(plan: Plan, table: pa.Table, draws: int) -> None:
    mechanism = "laplace" if plan.noise.norm == 1 else "gaussian"
    assert plan.noise.mechanism == f"discrete-{mechanism}"
    found = released_noise(plan, table, draws)
    for column, scale in zip(found.T, plan.noise.scales, strict=True):
        check_spread(column.astype(np.float64), mechanism, scale)
        check_fit(column.astype(np.float64), SAMPLERS[mechanism][1](scale), scale)
        check_low_bits(column)
    check_independent(found / np.array(plan.noise.scales))


@pytest.mark.parametrize("budget", ["pure", "approx"])
def test_released_answers_short(budget: str) -> None:
    check_released(small_plan(BUDGETS[budget], count=budget == "pure"), TABLES[0], 200)


@pytest.mark.noise
@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_released_answers(budget: str, count: bool) -> None:
    plan = small_plan(BUDGETS[budget], count=count)
    check_released(plan, TABLES[0], 1000)


@pytest.mark.noise
@pytest.mark.parametrize("budget", ["pure", "approx"])
def test_noise_does_not_depend_on_the_table(budget: str) -> None:
    plan = small_plan(BUDGETS[budget], count=False)
    first, second = (released_noise(plan, t, 1000) for t in TABLES)
    for a, b in zip(first.T, second.T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > LEAST_P


@pytest.mark.noise
def test_low_bits_do_not_tell_tables_apart() -> None:
    """The released integers themselves, sums included, show nothing in their lowest bits (F26)."""
    plan = small_plan(BUDGETS["approx"], count=False)
    seen = []
    for table in TABLES:
        values = np.array([measure(table, plan).values for _ in range(1000)], dtype=object)
        seen.append(np.stack([np.bincount((c & 15).astype(int), minlength=16) for c in values.T]))
    for a, b in zip(*seen, strict=True):
        assert stats.chi2_contingency(np.stack([a, b])).pvalue > LEAST_P


# --- released vectors ---------------------------------------------------------------------

NUMBERS = [f"c{i}" for i in range(10)]
VECTORS: dict[int, rt.Workload] = {
    1: rt.share("c0 > 0.5"),
    2: rt.moments(["c0"]),
    5: rt.correlation(["c0", "c1"]),
    65: rt.correlation(NUMBERS),
    1000: rt.marginal(["word"]) + rt.correlation(["c0", "c1"]),
}
"""By their number of queries. All but the first have noise of several deviations."""

WORDS = tuple(f"w{i}" for i in range(993))  # and what is in no list, and null
WIDE = pa.table({n: [0.0, 0.25, 1.0, 0.5] for n in NUMBERS} | {"word": list(WORDS[:4])})


def vector_plan(size: int, mechanism: str) -> Plan:
    schema = {n: Numeric(0.0, 1.0) for n in NUMBERS} | {"word": Categorical(WORDS)}
    budget = {"epsilon": 1.0, "delta": 0.0} if mechanism == "laplace" else {"rho": 0.5}
    # The count, where it is asked, makes the vector longer by one.
    unit = "add-remove" if size == 5 else "replace-one"
    plan = rt.plan(WIDE, VECTORS[size], rows=4, unit=unit, schema=schema, **budget)
    assert plan.queries.size == size
    assert size == 1 or len(set(plan.noise.scales)) > 1
    return plan


def check_vectors(size: int, mechanism: str, draws: int) -> None:
    """(draws, K) noise as vectors: their lengths, directions, and each coordinate by the others.

    In units of its deviations a Gaussian vector's squared length is chi-square with K degrees
    of freedom, a Laplace vector's L1 length gamma of shape K; so each is uniform by its own
    distribution function. A sum of the coordinates with random signs has a known spread.
    """
    plan = vector_plan(size, mechanism)
    noise = released_noise(plan, WIDE, draws) / np.array(plan.noise.scales)
    width = noise.shape[1]
    if mechanism == "gaussian":
        lengths, law = (noise**2).sum(axis=1), stats.chi2(width)
    else:
        lengths, law = np.abs(noise).sum(axis=1), stats.gamma(width)
    assert stats.kstest(law.cdf(lengths), "uniform").pvalue > LEAST_P
    check_spread(noise.ravel(), mechanism, 1.0)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(8, width))
    deviation = 1 if mechanism == "gaussian" else math.sqrt(2)
    for along in (signs @ noise.T) / (deviation * math.sqrt(width)):
        # The square of the sum's size shows covariance that no single pair does.
        assert abs((along**2).mean() - 1) < 6 * math.sqrt((along**2).var() / draws)
        assert abs(along.mean()) < 6 / math.sqrt(draws)
    check_independent(noise[:, :: max(1, width // 70)])
    check_independent(np.abs(noise[:, :: max(1, width // 70)]))


@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_vectors_short(mechanism: str) -> None:
    check_vectors(5, mechanism, 200)


@pytest.mark.noise
@pytest.mark.parametrize("mechanism", SAMPLERS)
@pytest.mark.parametrize("size", VECTORS)
def test_vectors(size: int, mechanism: str) -> None:
    check_vectors(size, mechanism, {65: 600, 1000: 300}.get(size, 1000))


# --- telling neighbours apart by their lowest bits -------------------------------------------

BITS = 4
NEIGHBOURS = [
    pa.table({"a": [0.0, 0.25, 1.0, 0.5], "s": ["F", "M", "M", None]}),
    pa.table({"a": [0.0, 0.25, 1.0, 0.123], "s": ["F", "M", "M", "F"]}),
]
"""One row of them differs, and with it an odd number of units of some sums."""


def low_bits(values: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """(draws, features): each integer's lowest bits, and all integers' very lowest together."""
    bits = np.array([[v % 2**BITS for v in row] for row in values])
    together = (bits & 1) @ (1 << np.arange(bits.shape[1]))
    return np.column_stack([bits, together])


def hits(samples: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
    """How often a naive Bayes classifier is right that has seen half of the draws, and of what."""
    halves = [np.array_split(s, 2) for s in samples]
    size = 1 + max(int(s.max()) for s in samples)
    scores = np.zeros(sum(len(test) for _, test in halves))
    truth = np.concatenate([np.full(len(test), i) for i, (_, test) in enumerate(halves)])
    for feature in range(samples[0].shape[1]):
        seen = [1 + np.bincount(train[:, feature], minlength=size) for train, _ in halves]
        ratio = np.log(seen[1] / seen[1].sum()) - np.log(seen[0] / seen[0].sum())
        scores += ratio[np.concatenate([test[:, feature] for _, test in halves])]
    return int(((scores > 0) == truth).sum()), len(truth)


def check_advantage(draws: int) -> None:
    plan = small_plan(BUDGETS["approx"], count=False)
    samples = [low_bits([measure(t, plan).values for _ in range(draws)]) for t in NEIGHBOURS]
    right, of = hits(samples)
    assert stats.binomtest(right, of).pvalue > LEAST_P, f"{right} of {of} told apart"


def test_lowest_bits_tell_no_neighbours_apart_short() -> None:
    check_advantage(100)


@pytest.mark.noise
def test_lowest_bits_tell_no_neighbours_apart() -> None:
    check_advantage(2000)


def test_the_classifier_sees_what_little_noise_leaves() -> None:
    """Continuous noise that is rounded to a multiple of 8 would leave the sums' lowest bits."""
    plan, rng = small_plan(BUDGETS["approx"], count=False), np.random.default_rng(0)
    samples = []
    for table in NEIGHBOURS:
        exact = exact_sums(table, plan)
        noise = 8 * rng.integers(-1000, 1000, size=(200, len(exact)))
        samples.append(low_bits([[s + int(z) for s, z in zip(exact, row, strict=True)]
                                 for row in noise]))  # fmt: skip
    right, of = hits(samples)
    assert right > 0.95 * of
