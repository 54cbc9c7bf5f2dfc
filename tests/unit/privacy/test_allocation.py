"""How loud each block is asked: against the best of a grid, in predicted total variance."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from retilt.measures.base import FloatArray, Norm, Relation, Terms
from retilt.measures.consistent import Consistent
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Means, Moments
from retilt.measures.queries import QuerySet
from retilt.privacy.allocation import block_scales, count_scale, importances_of
from retilt.privacy.sensitivity import joint_sensitivity, loudest
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "a": Numeric(-1, 1),
        "b": Numeric(-1, 1),
        "c": Numeric(-1, 1),
        "sex": Categorical(("F", "M")),
        "code": Categorical(tuple("pqrstuvw")),
        "kind": Categorical(tuple("pqrstuvw")),
    }
)
ROWS = 2000
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    common = rng.normal(size=ROWS)
    numbers = {
        n: np.clip(0.3 + 0.25 * (common + rng.normal(size=ROWS)), -1, 1) for n in ("a", "b", "c")
    }
    return pa.table(
        {
            **numbers,
            "sex": np.where(common > 0.5, "F", "M"),
            "code": rng.choice(list("pqrstuvw"), ROWS),
            "kind": rng.choice(list("pqrstuvw"), ROWS),
        }
    )


MEASURES: tuple[Any, ...] = (
    Moments(("a", "b", "c"), statistics="correlation", loudness=Fraction(1)),
    Marginal(("sex", "code")),
    Marginal(("kind",)),
)


def setup(
    norm: Norm, relation: Relation, measures: tuple[Any, ...] = MEASURES
) -> tuple[QuerySet, FloatArray]:
    queries = QuerySet(
        tuple(
            m.bind(Terms(SCHEMA, basis="centred", norm=norm, relation=relation))
            if isinstance(m, Moments)
            else m.bind(Terms(SCHEMA, norm=norm, relation=relation))
            for m in measures
        )
    )
    rows = table()
    return queries, queries.means(
        {f: f.encode(rows.__getitem__, 0) for f in queries.features}, ROWS
    )


def total(
    queries: QuerySet,
    answers: FloatArray,
    scales: Any,
    weights: Any,
    norm: Norm,
    count: Any = None,
) -> float:
    """Importance-weighted variance of all statistics for a fixed budget, written out anew.

    The noise of query k has variance ``Delta**2 / (s_b alpha_k)**2``, and the count's error
    moves every answer of every block at once.
    """
    delta = float(joint_sensitivity(queries, [Fraction(s) for s in scales], count, norm))
    delta_squared = delta if norm == 2 else delta * delta
    result = 0.0
    for block, part, scale, weight in zip(
        queries.blocks, queries.block_answers(answers), scales, weights, strict=True
    ):
        own = np.array([float(s) for s in block.scales])
        variances = delta_squared / (float(scale) * own) ** 2
        factor = np.zeros((len(part), 0))
        if count is not None:
            factor = (np.sqrt(delta_squared) / float(count) * part)[:, None]
        result += weight * float(np.nansum(block.standard_errors(part, variances, factor) ** 2))
    return result


WEIGHTS = [(1.0, 1.0, 1.0), (100.0, 1.0, 0.01), (0.01, 10.0, 1.0)]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("norm", [1, 2])
def test_no_scales_of_a_grid_are_better(norm: Norm, relation: Relation, weights: Any) -> None:
    queries, answers = setup(norm, relation)
    chosen = block_scales(queries, answers, weights, norm)
    loss = total(queries, answers, chosen, weights, norm)
    steps = [Fraction(i, 16) for i in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)]
    best = min(
        total(queries, answers, s, weights, norm) for s in product(steps, repeat=3) if max(s) == 1
    )
    assert loss <= 1.001 * best
    equal = total(queries, answers, [Fraction(1)] * 3, weights, norm)
    assert loss <= equal
    for k, factor in product(range(3), (Fraction(2, 3), Fraction(3, 2))):
        other = [s * factor if i == k else s for i, s in enumerate(chosen)]
        assert total(queries, answers, other, weights, norm) > loss


def test_the_gain_over_equal_scales_is_real() -> None:
    queries, answers = setup(2, REPLACE)
    chosen = block_scales(queries, answers, WEIGHTS[1], 2)
    equal = total(queries, answers, [Fraction(1)] * 3, WEIGHTS[1], 2)
    assert total(queries, answers, chosen, WEIGHTS[1], 2) < 0.85 * equal


def test_a_more_important_measure_is_asked_louder() -> None:
    queries, answers = setup(2, REPLACE)

    def share(weight: float) -> float:
        scales = block_scales(queries, answers, (weight, 1.0, 1.0), 2)
        return float(scales[0] / scales[1])

    shares = [share(w) for w in (0.1, 1.0, 10.0, 100.0)]
    assert shares == sorted(shares)
    # s**2 goes with the root of the importance.
    assert shares[3] / shares[1] == pytest.approx(100**0.25, rel=0.03)


def test_scales_are_short_fractions_with_the_largest_one() -> None:
    for norm in (1, 2):
        queries, answers = setup(norm, REPLACE)  # type: ignore[arg-type]
        scales = block_scales(queries, answers, (1e6, 1.0, 1e-6), norm)  # type: ignore[arg-type]
        assert max(scales) == 1
        assert all(0 < s <= 1 and (256 * s).denominator == 1 for s in scales)


def test_one_block_has_scale_one() -> None:
    queries, answers = setup(2, REPLACE, MEASURES[:1])
    assert block_scales(queries, answers, [7.0], 2) == [1]


def test_a_block_without_predicted_variance_has_scale_one() -> None:
    """On a synthetic table whose columns are constant every correlation is undefined."""
    queries, answers = setup(2, REPLACE, (MEASURES[0],))
    flat = np.concatenate([np.ones(3), np.ones(len(answers) - 3)])
    assert block_scales(queries, flat, [1.0], 2) == [1]
    both, answers = setup(2, REPLACE, MEASURES[:2])
    undefined = answers.copy()
    undefined[: len(both.kept[0])] = 1.0
    assert block_scales(both, undefined, [1.0, 1.0], 2) == [1, 1]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("norm", [1, 2])
def test_no_count_scale_of_a_grid_is_much_better(norm: Norm, weights: Any) -> None:
    queries, answers = setup(norm, ADD_REMOVE)
    scales = block_scales(queries, answers, weights, norm)
    chosen = count_scale(queries, answers, scales, weights, norm)
    loss = total(queries, answers, scales, weights, norm, chosen)
    # As small as 1/16 of the blocks' by decision: a count too quiet spoils every share.
    grid = [Fraction(i, 64) for i in range(4, 400)]
    best = min(total(queries, answers, scales, weights, norm, g) for g in grid)
    assert loss <= 1.01 * best


def test_the_count_is_never_too_quiet() -> None:
    """Correlations of columns centred on zero hardly feel the count, which must stay useful."""
    queries, answers = setup(2, ADD_REMOVE, MEASURES[:1])
    centred = answers.copy()
    centred[:3] = 0
    chosen = count_scale(queries, centred, [Fraction(1)], [1.0], 2)
    assert chosen >= Fraction(1, 16)


OVERLAPPING: tuple[tuple[Any, ...], ...] = (
    (Moments(("a",), order=1), Moments(("a", "b", "c"), statistics="correlation")),
    (Moments(("a", "b"), statistics="correlation"), Moments(("a", "b", "c"))),
    (Marginal(("code",)), Means(("a",), by=("code",), edges={})),
)


@pytest.mark.parametrize("measures", OVERLAPPING)
@pytest.mark.parametrize("norm", [1, 2])
def test_a_shared_query_is_asked_once_and_as_loud_as_anyone_asks_it(
    measures: tuple[Any, ...], norm: Norm
) -> None:
    """So the order of measures changes no query's noise."""
    found = []
    for order in (measures, measures[::-1]):
        queries, answers = setup(norm, REPLACE, order)
        scales = block_scales(queries, answers, [1.0, 1.0], norm)
        bound = joint_sensitivity(queries, scales, None, norm)
        asked, _ = loudest(queries, scales)
        delta = float(bound) if norm == 1 else float(bound) ** 0.5
        found.append({k: delta / float(q) for k, q in zip(queries.keys, asked, strict=True)})
    assert found[0] == pytest.approx(found[1], rel=1e-12)


@pytest.mark.parametrize("measures", OVERLAPPING)
def test_what_a_larger_measure_asks_anyway_costs_it_nothing(measures: tuple[Any, ...]) -> None:
    queries, answers = setup(2, REPLACE, measures)
    scales = block_scales(queries, answers, [1.0, 1.0], 2)
    alone, _ = setup(2, REPLACE, measures[1:])
    assert joint_sensitivity(queries, scales, None, 2) == joint_sensitivity(
        alone, scales[1:], None, 2
    )


def test_important_small_measures_are_asked_for_themselves() -> None:
    queries, answers = setup(2, REPLACE, OVERLAPPING[0])
    scales = block_scales(queries, answers, [1e6, 1.0], 2)
    asked, asking = loudest(queries, scales)
    assert asking == {0, 1}
    assert asked[0] == max(asked)


# --- what the statistics weigh ---------------------------------------------------------------


def test_a_measures_weight_is_spread_over_its_statistics() -> None:
    queries, answers = setup(2, REPLACE)
    shared = importances_of(queries, answers, [1.0, 1.0, 4.0], 1e-9, 2)
    for block, part, own, weight in zip(
        queries.blocks, queries.block_answers(answers), shared, (1, 1, 4), strict=True
    ):
        own = np.asarray(own)
        assert own.shape == (len(block.statistics),)
        assert (own == own[0]).all()
        loudness = np.array([float(s) for s in block.scales])
        variances = 1e-18 * float(block.sensitivity()) / loudness**2
        errors = block.standard_errors(part, variances, np.zeros((len(part), 0)))
        usual = np.sqrt(np.mean((errors * block.comparisons(part)) ** 2))
        assert own.sum() * usual == pytest.approx(weight)


def test_a_statistic_that_drowns_anyway_counts_nothing() -> None:
    """With noise of a size that leaves some correlations their meaning and others not."""
    measures = (Moments(("a", "b", "c")), Marginal(("sex",)))
    queries, answers = setup(2, REPLACE, measures)
    quiet = answers.copy()
    quiet[:3] = 0.0
    quiet[3:6] = (0.0005, 0.3, 0.3)  # the squares: a hardly varies
    (own, table) = importances_of(queries, quiet, [1.0, 1.0], 1e-4, 2)
    counted = np.asarray(own) > 0
    names = queries.blocks[0].statistics
    assert {n for n, c in zip(names, counted, strict=True) if not c} == {
        "sd(a)",
        "corr(a, b)",
        "corr(a, c)",
    }
    assert (np.asarray(table) > 0).all()
    hopeless, _ = importances_of(queries, quiet, [1.0, 1.0], 1e3, 2)
    assert (np.asarray(hopeless) > 0).sum() in (3, 6)  # the means, or all of them


def test_a_share_keeps_its_part_beside_what_is_noisy() -> None:
    """Alone it would have all of the budget; beside others no less than a fair part."""
    queries, answers = setup(2, REPLACE)
    fair = importances_of(queries, answers, [1.0] * 3, 1e-6, 2)
    plain = block_scales(queries, answers, [1.0] * 3, 2)
    chosen = block_scales(queries, answers, fair, 2)
    assert chosen[2] / chosen[0] > 1.5 * plain[2] / plain[0]


# --- tables that larger ones tell -------------------------------------------------------------


def joined_total(queries: QuerySet, scales: Any, weights: Any, norm: Norm) -> float:
    """Weighted mean squared error of each table's cells, estimated together."""
    delta = float(joint_sensitivity(queries, list(scales), None, norm)) ** (1 / norm)
    asked, _ = loudest(queries, list(scales))
    variances = (delta / np.array([float(s) for s in asked])) ** 2
    errors = Consistent(queries, variances, None).share_errors(np.zeros(queries.size))
    return sum(w * float(np.mean(errors[n] ** 2)) for n, w in enumerate(weights))


def overlapping(names: list[str], *, single: bool = True) -> QuerySet:
    schema = Schema({n: Categorical(("x", "y")) for n in names})
    columns = [*combinations(names, 2), *([(n,) for n in names] if single else [])]
    return QuerySet(tuple(Marginal(c).bind(Terms(schema)) for c in columns))


def test_tables_that_larger_ones_tell_are_asked_quietly() -> None:
    queries = overlapping(list("abcdefgh"))
    answers = np.zeros(queries.size)
    sizes = [len(b.units) for b in queries.blocks]
    scales = block_scales(queries, answers, [1 / s for s in sizes], 2)
    assert {scales[0]} == set(scales[:28])
    assert max(scales[28:]) < scales[0] / 3
    # Against the same with the margins as loud as they would be by themselves.
    loud = [*scales[:28], *(4 * s for s in scales[28:])]
    ones = [1.0] * len(sizes)
    assert joined_total(queries, scales, ones, 2) < 0.94 * joined_total(queries, loud, ones, 2)


def test_important_margins_are_asked_for_themselves() -> None:
    queries = overlapping(list("abc"))
    importances = [1.0, 1.0, 1.0, 1e4, 1e4, 1e4]
    scales = block_scales(queries, np.zeros(queries.size), importances, 2)
    assert scales[3:] == [Fraction(1)] * 3


def test_no_table_is_quieter_where_not_all_may_be_measured() -> None:
    queries = overlapping(list("abcdefgh"))
    importances = [1.0 / len(b.units) for b in queries.blocks]
    scales = block_scales(queries, np.zeros(queries.size), importances, 2, alone=True)
    assert min(scales) > Fraction(9, 10)
