"""Loudnesses, limits and refusals of measures, each by hand: no more, no less."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import WorkloadError
from retilt.measures import calls, grouped, moments
from retilt.measures.base import Relation, Terms
from retilt.measures.calls import Call, FunctionMeasure
from retilt.measures.derived import LARGEST, Formula, check_span, predicate
from retilt.measures.distributions import MAX_THRESHOLDS, Cdf, Quantiles
from retilt.measures.expressions import parse_predicate
from retilt.measures.grouped import GroupedBlock
from retilt.measures.grouping import LEAST_LOUDNESS
from retilt.measures.marginals import Marginal
from retilt.measures.moment_bounds import (
    centred_sensitivity,
    free_count,
    grouped_sensitivity,
    grouped_square_loudness,
    rational_sqrt_down,
    square_loudness,
)
from retilt.measures.moments import Means, Moments, MomentsBlock
from retilt.measures.partitions import MAX_CELLS, Partition, check_bins, check_cells, named_cells
from retilt.measures.rates import Share
from retilt.measures.scalars import Query
from retilt.measures.second_moments import SecondMoments
from retilt.schema.columns import MAX_LEVELS, Boolean, Categorical, Numeric, Schema
from retilt.schema.encode import to_grid

SCHEMA = Schema(
    {
        "a": Numeric(0, 8, integer=True),
        "b": Numeric(-1.0, 3.0),
        "one": Categorical(("x",)),
        "sex": Categorical(("F", "M")),
        "wide": Numeric(-1e200, 1e200),
    }
)
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE


# --- bounds of moments -----------------------------------------------------------------------


@pytest.mark.parametrize("loudness", [Fraction(1, 4), Fraction(1)])
def test_within_groups_the_squares_obey_one_bound_or_both(loudness: Fraction) -> None:
    options: dict[str, Any] = {"columns": 3, "two_valued": 1, "loudness": loudness}
    for norm in (1, 2):
        alone, both = (square_loudness(norm, r, **options) for r in (ADD_REMOVE, REPLACE))  # type: ignore[arg-type]
        assert alone != both
        for several in (True, False):
            found = {
                r: grouped_square_loudness(norm, r, several=several, **options)  # type: ignore[arg-type]
                for r in (ADD_REMOVE, REPLACE)
            }
            only_one = norm == 1 and several
            assert found[ADD_REMOVE] == alone
            assert found[REPLACE] == (alone if only_one else min(alone, both))


def test_what_one_row_alone_moves_by() -> None:
    """Order 1 at a loudness that is neither 1 nor its own inverse."""
    options: dict[str, Any] = {"columns": 2, "order": 1, "loudness": Fraction(3)}
    assert centred_sensitivity(1, REPLACE, **options) == 12
    assert centred_sensitivity(2, REPLACE, **options) == 72
    assert centred_sensitivity(1, ADD_REMOVE, **options) == 6
    assert centred_sensitivity(2, ADD_REMOVE, **options) == 18


def test_in_l1_several_groups_need_no_bound_of_two_rows() -> None:
    """Where that of two rows of one group would be larger than twice that of one row."""
    options: dict[str, Any] = {"columns": 1, "order": 2, "loudness": Fraction(1)}
    count = Fraction(1, 1024)
    alone = count + centred_sensitivity(1, ADD_REMOVE, **options)
    found = grouped_sensitivity(1, REPLACE, several=True, count=count, **options)
    assert found == 2 * alone
    one = grouped_sensitivity(1, REPLACE, several=False, count=count, **options)
    assert one == max(alone, centred_sensitivity(1, REPLACE, **options))


def test_free_counts_and_where_there_are_none() -> None:
    options: dict[str, Any] = {"columns": 4, "order": 1, "loudness": Fraction(1)}
    assert free_count(2, REPLACE, several=True, **options) == 2
    assert free_count(2, REPLACE, several=False, **options) == rational_sqrt_down(Fraction(12))
    assert free_count(1, REPLACE, several=False, **options) == 4
    assert free_count(1, REPLACE, several=True, **options) == 0
    for norm, several in ((1, True), (1, False), (2, True), (2, False)):
        assert free_count(norm, ADD_REMOVE, several=several, **options) == 0  # type: ignore[arg-type]


# --- moments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"order": 3}, "order: got 3"),
        ({"order": 1.0}, "order: got 1.0"),
        ({"order": True}, "order: got True"),
        ({"statistics": "means"}, "statistics: got 'means'"),
        ({"statistics": "correlation", "order": 1}, "it needs order 2"),
        ({"statistics": "regression", "order": 1}, "it needs order 2"),
        ({"loudness": LEAST_LOUDNESS - Fraction(1, 10**6)}, "loudness"),
        ({"loudness": Fraction(3)}, "loudness"),
        ({"count_loudness": 32 + Fraction(1, 9)}, "count_loudness"),
    ],
)
def test_moments_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        Moments(("a", "b"), **options)


def test_loudnesses_at_their_limits() -> None:
    assert Fraction(1, 1024) == LEAST_LOUDNESS
    for loudness in (LEAST_LOUDNESS, Fraction(2)):
        assert Moments(("a", "b"), loudness=loudness).loudness == loudness
    for count in (LEAST_LOUDNESS, Fraction(32)):
        assert Moments(("a", "b"), count_loudness=count, by=("sex",)).count_loudness == count


@pytest.mark.parametrize("statistics", ["correlation", "regression"])
def test_correlations_are_of_two(statistics: Any) -> None:
    with pytest.raises(WorkloadError, match="got 1 column"):
        Moments(("a",), statistics=statistics)
    with pytest.raises(WorkloadError, match="too few columns vary"):
        Moments(("a", "one"), statistics=statistics).bind(Terms(SCHEMA))
    assert len(Moments(("a", "one")).bind(Terms(SCHEMA)).statistics) == 2
    with pytest.raises(WorkloadError, match="too few columns vary"):
        Means(("one",)).bind(Terms(SCHEMA))


def test_a_regression_needs_its_target() -> None:
    with pytest.raises(WorkloadError, match="the target, constant"):
        Moments(("one", "a", "b"), statistics="regression").bind(Terms(SCHEMA))
    assert Moments(("one", "a", "b"), statistics="correlation").bind(Terms(SCHEMA)).statistics
    assert Moments(("a", "one", "b"), statistics="regression").bind(Terms(SCHEMA)).statistics


def test_a_block_of_too_many_queries_is_refused() -> None:
    names = [f"c{i}" for i in range(500)]
    schema = Schema({n: Numeric(0, 1) for n in names})
    with pytest.raises(WorkloadError, match="allowed are"):
        Moments(tuple(names)).bind(Terms(schema))
    with pytest.raises(WorkloadError, match="wide"):
        Moments(("wide", "a")).bind(Terms(SCHEMA))


def test_loudness_is_one_where_nothing_is_chosen() -> None:
    block = Moments(("a", "b")).bind(Terms(SCHEMA))
    assert isinstance(block, MomentsBlock)
    assert block.loudness == 1
    assert block.scales[:2] == (1, 1)
    means = Means(("a", "b")).bind(Terms(SCHEMA))
    assert isinstance(means, MomentsBlock)
    assert means.scales == (1, 1)
    assert means.sensitivity() == 8
    within = Moments(("a", "b"), by=("sex",)).bind(Terms(SCHEMA))
    assert isinstance(within, GroupedBlock)
    assert within.loudness == 1
    first = Means(("a", "b"), by=("sex",)).bind(Terms(SCHEMA))
    assert isinstance(first, GroupedBlock)
    assert first.order == 1


def test_clamped_columns_and_others_have_products() -> None:
    """A column with bounds of its own is told by them, one without by its name alone."""
    clip = {"a": (1, 7)}
    block, within = (
        Moments(("a", "b"), clip=clip, **more).bind(Terms(SCHEMA))
        for more in ({}, {"by": ("sex",)})
    )
    turned = Moments(("b", "a"), clip=clip).bind(Terms(SCHEMA))
    plain = Moments(("a", "b"), clip={}).bind(Terms(SCHEMA))
    assert block.keys[-1] == turned.keys[-1]
    assert block.keys[-1] != plain.keys[-1]
    assert len(set(within.keys)) == len(within.keys)


def test_no_rows_have_sums() -> None:
    none = [np.zeros(0, dtype=np.int32)] * 2
    block = Moments(("a", "b")).bind(Terms(SCHEMA))
    assert block.sums(none) == [0] * 5
    within = Means(("a",), where="b > 0").bind(Terms(SCHEMA))
    assert within.sums([*none]) == [0, 0]


def test_sums_of_several_chunks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a chunk is small enough for exact products, and large enough to be worth a call."""
    for module in (moments, grouped):
        assert 2**16 <= module._CHUNK <= 2**53 // (2 * MAX_LEVELS) ** 2
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-8, 9, 100).astype(np.int32), rng.integers(0, 2, 100).astype(np.int32)]
    block = Moments(("a", "b")).bind(Terms(SCHEMA))
    within = Means(("a",), where="b > 0").bind(Terms(SCHEMA))
    whole = block.sums(arrays), within.sums(arrays[::-1])
    for size in (1, 2, 7, 99, 100):
        for module in (moments, grouped):
            monkeypatch.setattr(module, "_CHUNK", size)
        assert (block.sums(arrays), within.sums(arrays[::-1])) == whole


def second(order: int) -> SecondMoments:
    return SecondMoments(
        columns=(Numeric(0, 1), Categorical(("F", "M")), Numeric(0, 1)),
        titles=("mean(a)", "mean(s)", "mean(b)"),
        labels=("a", "s", "b"),
        order=order,
        reports="moments",
        basis="centred",
        complement=False,
    )


def test_the_layout_of_moments() -> None:
    assert second(2).size == 3 + 2 + 3
    assert second(1).size == 3
    assert [p.tolist() for p in second(2).pairs] == [[0, 0, 1], [1, 2, 2]]
    assert [len(p) for p in second(1).pairs] == [0, 0]


# --- moments within groups --------------------------------------------------------------------


def within(norm: Any = 2, relation: Relation = REPLACE, **options: Any) -> GroupedBlock:
    given = {"by": ("sex",), **options}
    block = Moments(("a", "b"), **given).bind(Terms(SCHEMA, norm=norm, relation=relation))
    assert isinstance(block, GroupedBlock)
    return block


@pytest.mark.parametrize("norm", [1, 2])
def test_loudness_within_groups_is_cut_where_the_bound_needs_it(norm: Any) -> None:
    cap = rational_sqrt_down(Fraction(2)) if norm == 2 else Fraction(2)
    block = within(norm)
    assert block.louder(Fraction(2)).loudness == cap
    assert block.louder(Fraction(1, 3)).loudness == Fraction(1, 3)
    means = Means(("a", "b"), by=("sex",)).bind(Terms(SCHEMA, norm=norm))
    assert isinstance(means, GroupedBlock)
    assert means.louder(Fraction(1, 3)).loudness == 1


def test_counts_are_as_loud_as_is_free_or_as_the_root_of_the_columns() -> None:
    block = within()
    free = free_count(2, REPLACE, several=True, columns=2, order=2, loudness=Fraction(1))
    assert free > 0
    assert block.count == free
    assert block.louder(Fraction(1), Fraction(3)).count == 3 * free
    assert block.louder(Fraction(1), count=Fraction(5)).count == 5
    root = rational_sqrt_down(Fraction(2))
    assert within(1).count == root  # in L1 nothing is free
    assert within(1).louder(Fraction(1), Fraction(3)).count == 3 * root
    assert within(count_loudness=Fraction(7)).count == 7


def test_so_many_queries_within_groups_and_no_more() -> None:
    """The cells' counts and the moments of each: at the limit, and one above."""
    each = 1 + 2  # of means of two columns
    cells = MAX_CELLS // each

    def asked(values: int) -> Schema:
        # Beside the listed ones there are `other` and `null`.
        listed = Categorical(tuple(range(values - 2)))
        return Schema({"a": Numeric(0, 1), "b": Numeric(0, 1), "g": listed})

    block = Means(("a", "b"), by=("g",)).bind(Terms(asked(cells)))
    assert isinstance(block, GroupedBlock)
    assert block.cells == cells
    with pytest.raises(WorkloadError, match=r"groups of 'g': .* allowed are"):
        Means(("a", "b"), by=("g",)).bind(Terms(asked(cells + 1)))


def test_names_of_groups_that_are_too_long_are_refused() -> None:
    long = Categorical(tuple(f"{i}{'x' * 9_000}" for i in range(900)))
    schema = Schema({"a": Numeric(0, 1), "b": Numeric(0, 1), "g": long})
    with pytest.raises(WorkloadError, match="groups of 'g': the names"):
        Moments(("a", "b"), by=("g",)).bind(Terms(schema))
    where = f"sex = '{'x' * 9_900}'"
    names = [f"c{i}" for i in range(60)]
    wide = Schema({**{n: Numeric(0, 1) for n in names}, "sex": Categorical(("F", "M"))})
    with pytest.raises(WorkloadError, match="the condition's rows: the names"):
        Moments(tuple(names), where=where).bind(Terms(wide))


# --- frozen ------------------------------------------------------------------------------------


def test_what_a_measure_holds_can_not_be_changed_from_outside() -> None:
    bins: dict[str, Any] = {"b": (0.0, 1.0)}
    edges: dict[str, Any] = {"b": (0.0, 1.0)}
    made: list[Any] = [
        Means(("a",), by=("b",), bins=bins),
        Marginal(("b",), bins=bins),
        Share("a > 1", by=("b",), bins=bins),
        Means(("a",), by=("b",), edges=edges),
        Marginal(("b",), edges=edges),
        Share("a > 1", by=("b",), edges=edges),
    ]
    for measure in made[:3]:
        assert isinstance(measure.bins, MappingProxyType)
    for measure in made[3:]:
        assert isinstance(measure.edges, MappingProxyType)
    assert Means(("a",), edges=edges).edges is None or Means(("a",), edges=edges).edges == edges
    assert Query("a  +  1", lower=0, upper=1).expression == "a + 1"
    assert Quantiles("a", (np.float64(0.5),)).probabilities == (0.5,)
    assert type(Quantiles("a", (np.float64(0.5),)).probabilities[0]) is float


# --- partitions --------------------------------------------------------------------------------


def test_which_cells_the_schema_names() -> None:
    """Categories but not `other`, truth values, bins; nulls where there may be any."""
    assert named_cells(Categorical(("p", "q")), 4) == [True, True, False, False]
    assert named_cells(Categorical(("p", "q"), nullable=True), 4) == [True, True, False, True]
    assert named_cells(Boolean(), 3) == [True, True, False]
    assert named_cells(Numeric(0, 1, nullable=True), 3) == [True, True, True]


def test_bins_at_their_limits() -> None:
    check_bins("a", 1)
    check_bins("a", 1000)
    for wrong in (0, 1001):
        with pytest.raises(WorkloadError, match="bins"):
            check_bins("a", wrong)
    check_bins("a", tuple(map(float, range(MAX_CELLS - 1))))
    with pytest.raises(WorkloadError, match=f"allowed are {MAX_CELLS - 1:,}"):
        check_bins("a", tuple(map(float, range(MAX_CELLS))))


def test_a_share_checks_its_bins() -> None:
    with pytest.raises(WorkloadError, match="bins"):
        Share("a > 1", by=("b",), bins={"b": 0})


def test_names_of_cells_that_are_too_long_are_refused() -> None:
    long = Categorical(tuple(f"{i}{'x' * 9_000}" for i in range(1_500)))
    schema = Schema({"g": long, "h": Categorical(("p", "q"))})
    with pytest.raises(WorkloadError, match="the names of its statistics"):
        Marginal(("g", "h")).bind(Terms(schema))


@pytest.mark.parametrize(("count", "told"), [(9, "1,000,000,000"), (15, "more than 1e15")])
def test_how_many_cells_is_told(count: int, told: str) -> None:
    from retilt.measures.base import Variable

    eight = Categorical(tuple("pqrstuvw"))  # ten cells, with other and null
    variables = tuple(Variable(f"c{i}", eight) for i in range(count))
    block = Partition(variables, edges=((),) * count, norm=2, relation=REPLACE, known_total=True)
    with pytest.raises(WorkloadError, match=told):
        check_cells(block, "it")


# --- distributions -----------------------------------------------------------------------------


def test_thresholds_at_their_limits() -> None:
    most = tuple(map(float, range(MAX_THRESHOLDS)))
    assert len(Cdf("b", most).thresholds) == MAX_THRESHOLDS
    with pytest.raises(WorkloadError, match="thresholds"):
        Cdf("b", (*most, 1e9))
    parts = tuple((i + 1) / (MAX_THRESHOLDS + 2) for i in range(MAX_THRESHOLDS))
    assert len(Quantiles("b", parts).probabilities) == MAX_THRESHOLDS
    with pytest.raises(WorkloadError):
        Quantiles("b", (*parts, 0.99999))
    for wrong in ((0.5, 1.0), (0.0, 0.5), (0.5, 1.5)):
        with pytest.raises(WorkloadError):
            Quantiles("b", wrong)


def test_quantiles_of_too_many_bins_are_refused() -> None:
    """Whose edges are allowed, but not with the cell of nulls beside them."""
    edges = tuple(map(float, range(MAX_CELLS - 1)))
    with pytest.raises(WorkloadError, match="quantiles of 'b'"):
        Quantiles("b", (0.5,), edges={"b": edges}).bind(Terms(Schema({"b": Numeric(0.0, 1e9)})))


def test_a_threshold_at_the_upper_bound_is_no_edge() -> None:
    block: Any = Cdf("b", (0.0, 3.0)).bind(Terms(SCHEMA))
    assert block.edges == ((float(np.nextafter(0.0, np.inf)),),)


# --- formulas ----------------------------------------------------------------------------------


def test_bounds_that_can_be_computed_with() -> None:
    assert LARGEST == 1e100
    for good in ((-1e100, 0.0), (0.0, 1e100), (-1e100, 1e100), (0.0, 1e-100)):
        check_span(*good, "x")
    for wrong in ((-1.1e100, 0.0), (0.0, 1.1e100), (-1.1e100, -1.0), (0.0, 0.9e-100)):
        with pytest.raises(WorkloadError):
            check_span(*wrong, "x")


def test_a_condition_that_is_null_is_false() -> None:
    variable = predicate(parse_predicate("b > 0"), SCHEMA)
    assert isinstance(variable.source, Formula)
    assert variable.source.missing == 0.0
    assert Formula(variable.source.expression, variable.source.columns).missing == 0.0


# --- callables ---------------------------------------------------------------------------------


def table(rows: int) -> dict[str, pa.ChunkedArray]:
    return {"a": pa.chunked_array([pa.array(np.arange(rows, dtype=np.float64))])}


LONG = Schema({"a": Numeric(0.0, 1e9)})


def outputs(function: Callable[..., Any], rows: int, size: int = 1) -> Any:
    call = Call(function, (("a", LONG["a"]),), size, 0, -1.0)
    return calls._called(call, table(rows).__getitem__, rows)


def test_a_callables_own_defaults() -> None:
    measure = FunctionMeasure(lambda batch: batch["a"], ("a",))
    assert (measure.lower, measure.upper, measure.size, measure.weight) == (0.0, 1.0, 1, 1.0)


def test_sizes_and_names_at_their_limits() -> None:
    made = FunctionMeasure(len, ("a",), size=1_000, name="n" * 200)
    assert (made.size, len(made.name)) == (1_000, 200)
    for wrong in ({"size": 1_001}, {"size": 0}, {"name": "n" * 201}):
        with pytest.raises(WorkloadError):
            FunctionMeasure(len, ("a",), **wrong)


def test_it_gets_so_many_rows_at_a_time_and_once_none() -> None:
    seen: list[int] = []

    def counted(batch: pa.RecordBatch) -> Any:
        seen.append(batch.num_rows)
        return batch["a"]

    assert outputs(counted, 0).shape == (0, 1)
    assert seen == [0]
    seen.clear()
    found = outputs(counted, 65_536 + 3)
    assert seen == [65_536, 3]
    assert found[:, 0].tolist() == list(range(65_536 + 3))
    seen.clear()
    assert outputs(counted, 1).tolist() == [[0.0]]
    assert seen == [1]


def test_only_one_number_a_row_may_come_as_a_plain_list() -> None:
    assert outputs(lambda batch: np.ones(batch.num_rows), 2).tolist() == [[1.0], [1.0]]
    # A plain list of two rows is no two numbers for each: nobody has a value.
    assert np.isnan(outputs(lambda batch: np.ones(batch.num_rows), 2, size=2)).all()


def test_complex_numbers_are_none_and_other_warnings_are_not_heard() -> None:
    def loud(batch: pa.RecordBatch) -> Any:
        warnings.warn("a row was odd", RuntimeWarning, stacklevel=1)
        return np.ones(batch.num_rows)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert outputs(loud, 2).tolist() == [[1.0], [1.0]]
        assert np.isnan(outputs(lambda batch: np.ones(batch.num_rows) * 1j, 2)).all()
    assert not heard


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_person_can_always_stop_it(number: int) -> None:
    """At a batch, at a row of a batch that failed, and while it is tried out."""
    count = [0]

    def stopped(batch: pa.RecordBatch) -> Any:
        count[0] += 1
        if count[0] == number:
            raise KeyboardInterrupt
        raise ValueError("nothing works")

    with pytest.raises(KeyboardInterrupt):
        outputs(stopped, 5)
    count[0] = 0
    measure = FunctionMeasure(stopped, ("a",))
    if number == 1:
        with pytest.raises(KeyboardInterrupt):
            measure.check_rows(LONG, table(5).__getitem__, 5)


def test_calls_are_told_apart_by_the_function_itself() -> None:
    class Odd:
        """Equal to everything."""

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody may ask")

        def __call__(self, batch: pa.RecordBatch) -> Any:
            return batch["a"]

    one, other = (Call(Odd(), (("a", LONG["a"]),), 1, 0, 0.0) for _ in range(2))
    assert one == one
    assert one != other
    assert replace(one, place=0) == one


def test_it_is_tried_on_rows_from_the_first_to_the_last_and_on_gaps() -> None:
    seen: list[list[Any]] = []

    def watched(batch: pa.RecordBatch) -> Any:
        seen.append(batch["a"].to_pylist())
        return batch["a"]

    FunctionMeasure(watched, ("a",)).check_rows(LONG, table(1_000).__getitem__, 1_000)
    first = seen[0]
    assert len(first) == 50
    assert (first[0], first[-1]) == (0.0, 999.0)
    gaps = max(seen, key=len)
    assert len(gaps) == 52
    assert gaps[-2:] in ([None, None], [0.0, None])


def test_rows_of_nulls_in_each_column_and_in_all() -> None:
    batch = pa.record_batch({"a": [5.0, 6.0], "b": ["p", "q"]})
    assert calls._with_gaps(batch).to_pylist() == [
        {"a": 5.0, "b": "p"},
        {"a": 6.0, "b": "q"},
        {"a": None, "b": "p"},
        {"a": 5.0, "b": None},
        {"a": None, "b": None},
    ]


def test_rounding_is_no_dependence_on_other_rows() -> None:
    """The sum of a batch's numbers over itself may round; a part in a billion is not that."""

    def off(by: float) -> FunctionMeasure:
        return FunctionMeasure(
            lambda batch: np.full(batch.num_rows, 1.0 + by * (batch.num_rows > 1)), ("a",)
        )

    off(8e-10).check_rows(LONG, table(5).__getitem__, 5)
    with pytest.raises(WorkloadError, match="depend on the other rows"):
        off(1.2e-9).check_rows(LONG, table(5).__getitem__, 5)


def test_several_numbers_are_tried_row_by_row() -> None:
    def two(batch: pa.RecordBatch) -> Any:
        values = batch["a"].to_numpy(zero_copy_only=False)
        return np.stack([values, -values], axis=1)

    FunctionMeasure(two, ("a",), size=2).check_rows(LONG, table(5).__getitem__, 5)


# --- columns -----------------------------------------------------------------------------------


def test_a_column_of_one_step_has_two_values() -> None:
    cells = pa.chunked_array([pa.array([0.0, 0.4, 0.5, 1.0, 7.0, None])])
    assert to_grid(Numeric(0, 1, integer=True), cells).tolist() == [-1, -1, 1, 1, 1, 0]
    assert to_grid(Numeric(1, 1), cells).tolist() == [0] * 6


def test_which_columns_are_on_a_lattice() -> None:
    assert Categorical(("p", "q")).on_lattice
    assert Boolean().on_lattice
    whole = Numeric(5, 5 + MAX_LEVELS, integer=True)
    assert whole.on_lattice
    assert whole.levels == MAX_LEVELS
    assert not Numeric(5, 6 + MAX_LEVELS, integer=True).on_lattice
    assert not Numeric(0.0, 1.0).on_lattice
    assert Numeric(20_000, 20_000 + MAX_LEVELS, integer=True).on_lattice
    assert Numeric(0, MAX_LEVELS - 1, integer=True).levels == MAX_LEVELS - 1
    assert rt.Numeric is Numeric
