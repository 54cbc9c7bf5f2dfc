"""Rows that are pulled into a ball: the lattice, the bound, the moments, the files."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retilt as rt
from retilt.exceptions import FormatError, WorkloadError
from retilt.measures import balls
from retilt.measures.balls import MAX_STRETCH, RADIUS, Ball, ball_from_entry, ball_to_dict
from retilt.measures.base import Relation, Terms
from retilt.measures.formats import measure_from_dict, measure_to_dict
from retilt.measures.moment_bounds import BALL_SQUARES, ball_sensitivity
from retilt.measures.moments import Moments, MomentsBlock
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "a": Numeric(0, 8, integer=True),
        "b": Numeric(-1.0, 3.0),
        "sex": Categorical(("F", "M")),
    }
)
BALL = {"a": (2, 3000), "b": (-5000, 4096), "sex": (1, 900)}


def bound(relation: Relation = Relation.REPLACE, **changes: Any) -> MomentsBlock:
    measure = Moments(("a", "b", "sex"), ball=BALL, clip={}, **changes)
    block = measure.bind(Terms(SCHEMA, relation=relation))
    assert isinstance(block, MomentsBlock)
    return block


def grid(rows: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-n, n + 1, rows).astype(np.int32) for n in (8, 2**15))
    return [a, b, rng.choice([-1, 1], rows).astype(np.int32)]


def placed(row: list[int], ball: Ball, levels: list[int]) -> list[int]:
    """By definition, in whole numbers of any size."""
    steps = []
    for u, c, s, n in zip(row, ball.centre, ball.stretch, levels, strict=True):
        size = min((2 * abs(u - c) * s + n) // (2 * n), 16 * RADIUS)
        steps.append(size if u > c else -size)
    longest = max(sum(v * v for v in steps), RADIUS**2)
    return [isqrt(v * v * RADIUS**2 // longest) * (1 if v > 0 else -1) for v in steps]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), d=st.integers(1, 6))
def test_every_row_ends_in_the_ball_as_defined(data: st.DataObject, d: int) -> None:
    levels = data.draw(st.lists(st.integers(1, 2**15), min_size=d, max_size=d))
    within = [st.integers(-n, n) for n in levels]
    ball = Ball(
        tuple(data.draw(w) for w in within),
        tuple(data.draw(st.integers(1, MAX_STRETCH)) for _ in levels),
    )
    row = [data.draw(w) for w in within]
    found = ball.place([np.array([u], dtype=np.int32) for u in row], levels)[0].tolist()
    assert found == placed(row, ball, levels)
    assert sum(v * v for v in found) <= RADIUS**2


def test_rows_inside_stay_and_those_outside_keep_their_direction() -> None:
    ball = Ball((0, 0), (2 * RADIUS, 2 * RADIUS))
    arrays = [np.array([1, 3, 8], dtype=np.int32), np.array([2, -4, 8], dtype=np.int32)]
    root = isqrt(RADIUS**2 // 2)
    assert ball.place(arrays, [8, 8]).tolist() == [
        [1024, 2048],
        [isqrt(9 * RADIUS**2 // 25), -isqrt(16 * RADIUS**2 // 25)],
        [root, root],
    ]


def test_pieces_are_placed_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    block, arrays = bound(), grid(10)
    assert block.ball is not None
    levels = [c.levels for c in block.columns]
    whole = block.ball.place(arrays, levels)
    monkeypatch.setattr(balls, "_PIECE", 3)
    assert np.array_equal(block.ball.place(arrays, levels), whole)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("loudness", [Fraction(1, 8), Fraction(1, 2), Fraction(1)])
def test_no_two_points_of_the_ball_lie_farther_apart(
    relation: Relation, loudness: Fraction
) -> None:
    """Random pairs, and the worst: unit rows at the angle of which the cosine is -alpha**2."""
    rng = np.random.default_rng(1)
    limit = float(ball_sensitivity(relation, loudness=loudness))
    left, right = np.triu_indices(4, 1)

    def queries(w: np.ndarray) -> np.ndarray:
        squares = float(BALL_SQUARES) * w**2
        return np.concatenate([float(loudness) * w, squares, w[:, left] * w[:, right]], axis=1)

    one, other = (v / np.linalg.norm(v, axis=1)[:, None] for v in rng.normal(size=(2, 4000, 4)))
    other *= rng.choice([1.0, 0.5], size=(4000, 1))
    u = -(float(loudness) ** 2)
    corner = np.array([[1.0, 1.0, 1.0, 1.0]]) / 2
    side = np.array([[1.0, -1.0, 1.0, -1.0]]) / 2
    worst = u * corner + np.sqrt(1 - u * u) * side
    if relation is Relation.REPLACE:
        lengths = ((queries(one) - queries(other)) ** 2).sum(axis=1)
        attained = ((queries(corner) - queries(worst)) ** 2).sum()
    else:
        lengths, attained = (queries(one) ** 2).sum(axis=1), (queries(corner) ** 2).sum()
    assert lengths.max() <= limit * (1 + 1e-12)
    assert attained == pytest.approx(limit, rel=1e-5)  # but for beta, which is rounded down
    assert BALL_SQUARES**2 <= Fraction(1, 2) < (BALL_SQUARES + Fraction(1, 2**19)) ** 2


def test_sums_are_those_of_the_placed_rows() -> None:
    block, arrays = bound(), grid(500)
    assert block.ball is not None
    rows = block.ball.place(arrays, [c.levels for c in SCHEMA.columns.values()]).astype(object)
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = [sum(rows[:, i]) for i in range(3)]
    expected += [sum(rows[:, i] ** 2) for i in range(3)]  # of the two-valued column as well
    expected += [sum(rows[:, i] * rows[:, j]) for i, j in pairs]
    assert block.sums(arrays) == expected
    assert block.units == (RADIUS,) * 3 + (RADIUS**2,) * 6
    assert block.scales == (Fraction(1),) * 3 + (BALL_SQUARES,) * 3 + (Fraction(1),) * 3
    assert block.sums([a[:0] for a in arrays]) == [0] * 9


def test_the_design_is_the_same_function_of_a_row() -> None:
    block, arrays = bound(Relation.ADD_REMOVE), grid(50)
    design = block.design(arrays, np.arange(9))
    ones = np.ones(len(arrays[0]))
    columns = [*design.values.T, ones]
    values = [
        design.offset[k] + design.factor[k] * columns[design.left[k]] * columns[design.right[k]]
        for k in range(9)
    ]
    sums = [Fraction(s, u) for s, u in zip(block.sums(arrays), block.units, strict=True)]
    assert np.allclose(np.sum(values, axis=1), [float(s) for s in sums], rtol=1e-12)


def test_statistics_are_those_of_the_rows_where_none_is_moved() -> None:
    wide = dict.fromkeys(BALL, (0, 2000))  # three columns of length 1: within 4096 steps
    measure = Moments(("a", "b", "sex"), ball=wide, clip={})
    boxed = replace(measure, ball=None)
    arrays = grid(2000)
    means = []
    for m in (measure, boxed):
        block = m.bind(Terms(SCHEMA))
        sums = block.sums(arrays)
        answers = np.array([s / u / 2000 for s, u in zip(sums, block.units, strict=True)])
        means.append(block.evaluate(answers))
        assert block.statistics == boxed.bind(Terms(SCHEMA)).statistics
    assert np.allclose(*means, rtol=1e-3, atol=2e-3)  # but for steps of 1/2000 of half a column


def test_balls_are_told_apart() -> None:
    block = bound()
    other = Moments(("a", "b", "sex"), ball={**BALL, "a": (2, 3001)}, clip={}).bind(Terms(SCHEMA))
    box = Moments(("a", "b", "sex"), clip={}).bind(Terms(SCHEMA))
    assert set(block.keys).isdisjoint(other.keys)
    assert set(block.keys).isdisjoint(box.keys)
    assert set(block.statistic_keys).isdisjoint(other.statistic_keys)
    assert set(block.statistic_keys).isdisjoint(box.statistic_keys)


def test_a_ball_is_one_of_all_its_columns() -> None:
    """The same numbers, of other columns or bounds: no coordinate is the same function of a row."""
    ball = {"a": (0, 3000), "b": (0, 3000)}
    schema = Schema({**SCHEMA.columns, "c": Numeric(0, 8)})
    others = [
        Moments(("b", "c"), ball={"b": (0, 3000), "c": (0, 3000)}, clip={}),
        Moments(("a", "b"), ball=ball, clip={"a": (0, 4)}),
        Moments(("a", "b"), ball={**ball, "a": (0, 3001)}, clip={}),
        Moments(("a", "b"), clip={}),
    ]
    seen = Moments(("a", "b"), ball=ball, clip={}).bind(Terms(schema))
    for other in others:
        block = other.bind(Terms(schema))
        assert set(seen.keys).isdisjoint(block.keys)
        assert set(seen.statistic_keys).isdisjoint(block.statistic_keys)


def test_the_order_of_columns_moves_nothing() -> None:
    one = Moments(("a", "b", "sex"), ball=BALL, clip={}).bind(Terms(SCHEMA))
    other = Moments(("sex", "b", "a"), ball=BALL, clip={}).bind(Terms(SCHEMA))
    assert set(one.keys) == set(other.keys)
    a, b, sex = grid(200)
    sums = dict(zip(one.keys, one.sums([a, b, sex]), strict=True))
    assert sums == dict(zip(other.keys, other.sums([sex, b, a]), strict=True))


def test_a_column_named_as_a_clamped_one_is_another() -> None:
    clamped = Moments(("a", "b"), ball={"a": (0, 9), "b": (0, 9)}, clip={"a": (0, 4)})
    block = clamped.bind(Terms(SCHEMA))
    assert isinstance(block, MomentsBlock)
    name = str(block.variables[0].identity)
    schema = Schema({**SCHEMA.columns, name: Numeric(0, 8)})
    odd = Moments((name, "b"), ball={name: (0, 9), "b": (0, 9)}, clip={}).bind(Terms(schema))
    assert set(block.keys).isdisjoint(odd.keys)


def test_constant_columns_are_no_part_of_it() -> None:
    schema = Schema({**SCHEMA.columns, "one": Categorical(("x",))})
    block = Moments(("a", "one", "b", "sex"), ball=BALL, clip={}).bind(Terms(schema))
    assert block.names == ("a", "b", "sex")


def test_files_keep_it() -> None:
    measure = Moments(("a", "b", "sex"), ball=BALL, clip={})
    entry = {**measure_to_dict(measure), "scale": "1"}
    assert entry["ball"] == {n: list(p) for n, p in BALL.items()}
    assert measure_from_dict(entry) == measure
    assert "ball" not in measure_to_dict(replace(measure, ball=None))
    assert ball_to_dict(None) is None


@pytest.mark.parametrize(
    "wrong",
    [[], {"a": [1]}, {"a": [1, 2, 3]}, {"a": [1.0, 2]}, {"a": [True, 2]}, {"a": 3}, "a", 1],
)
def test_what_is_no_ball_is_refused_in_a_file(wrong: Any) -> None:
    with pytest.raises(FormatError, match="ball: got"):
        ball_from_entry({"ball": wrong})


@pytest.mark.parametrize(
    ("changes", "terms", "match"),
    [
        ({"ball": {**BALL, "x": (0, 1)}}, {}, "'x' is not among"),
        ({"ball": {"a": (0, 1)}}, {}, "expected the columns that vary"),
        ({"ball": {**BALL, "a": (9, 1)}}, {}, "outside the bounds of 'a'"),
        ({"ball": {**BALL, "a": (2**15 + 1, 1)}}, {}, "outside the bounds"),
        ({"ball": {**BALL, "a": (0, 0)}}, {}, "stretch"),
        ({"ball": {**BALL, "a": (0, MAX_STRETCH + 1)}}, {}, "stretch"),
        ({"ball": {**BALL, "a": (0, 1.5)}}, {}, "stretch"),
        ({"ball": BALL, "order": 1}, {}, "second moments"),
        ({"ball": {**BALL}, "where": "a > 1"}, {}, "all rows"),
        ({"ball": BALL}, {"norm": 1}, "Gaussian"),
        ({"ball": BALL}, {"basis": "paper"}, "centred"),
    ],
)
def test_what_can_not_be_is_refused(changes: Any, terms: Any, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        Moments(("a", "b", "sex"), clip={}, **changes).bind(Terms(SCHEMA, **terms))


def test_lengths_must_agree() -> None:
    with pytest.raises(WorkloadError, match="1 centres and 2"):
        Ball((0,), (1, 2))


def test_loudness_is_at_most_one() -> None:
    assert bound(loudness=Fraction(3)).loudness == 1
    assert bound(loudness=Fraction(1, 3)).loudness == Fraction(1, 3)
    assert bound().sensitivity() == 4
    assert bound(Relation.ADD_REMOVE).sensitivity() == Fraction(3, 2)


def test_a_plan_with_a_ball_goes_through(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    import pandas as pd

    frame = pd.DataFrame(
        {
            "a": rng.integers(0, 9, 400),
            "b": np.clip(rng.normal(0, 0.3, 400), -1, 3),
            "sex": rng.choice(["F", "M"], 400),
        }
    )
    workload = rt.Workload((Moments(("a", "b", "sex"), ball=BALL, clip={}),))
    plan = rt.plan(frame, workload, epsilon=2, rows=400, schema=SCHEMA)
    plan.save(tmp_path / "plan.json")
    read = rt.load_plan(tmp_path / "plan.json")
    assert read == plan
    assert read.sha256 == plan.sha256
    assert any("in to a ball" in n for n in plan.notes)
    tilt = rt.fit(frame, rt.measure(frame, plan))
    assert np.isfinite(tilt.weights).all()
    assert len(tilt.statistics_table()) == 9
