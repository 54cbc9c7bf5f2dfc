"""Sums are exact integers, whatever the size of the table and of its chunks."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from retilt.exceptions import WorkloadError
from retilt.measures import moments
from retilt.measures.base import Relation, Terms, pieces
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments, MomentsBlock
from retilt.measures.queries import QuerySet, describe_duplicates
from retilt.schema.columns import MAX_LEVELS, Boolean, Categorical, Column, Numeric, Schema

FINE, SEVEN = Numeric(-100.0, 1.0), Numeric(-3, 3, integer=True)
CODES, FLAG = Categorical(("a", "b", "c")), Boolean()
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE


def bound(
    *columns: Column, basis: str = "centred", relation: Relation = REPLACE, order: int = 2
) -> MomentsBlock:
    schema = Schema({f"c{i}": c for i, c in enumerate(columns)})
    measure = Moments(tuple(schema.columns), order=order, loudness=Fraction(1))
    return measure.bind(Terms(schema, basis=basis, norm=2, relation=relation))  # type: ignore[arg-type]


def random_rows(block: MomentsBlock, rows: int, seed: int = 0) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.choice([-1, 1], rows) if c.two_valued else rng.integers(-c.levels, c.levels + 1, rows))
        .astype(np.int32)
        for c in block.columns
    ]  # fmt: skip


def by_hand(block: MomentsBlock, arrays: list[NDArray[np.int32]]) -> list[int]:
    """The same sums, row by row in Python's integers."""
    shift = [c.levels if block.basis == "paper" else 0 for c in block.columns]
    width = [c.levels * (2 if block.basis == "paper" else 1) for c in block.columns]
    asked = [i for i, c in enumerate(block.columns) if not c.two_valued and block.order == 2]
    flip = block.basis == "centred" and block.relation is ADD_REMOVE
    pairs = list(itertools.combinations(range(len(width)), 2)) if block.order == 2 else []
    total = [0] * (len(width) + len(asked) + len(pairs))
    for row in zip(*(a.tolist() for a in arrays), strict=True):
        v = [u + s for u, s in zip(row, shift, strict=True)]
        squares = [width[i] ** 2 - v[i] ** 2 if flip else v[i] ** 2 for i in asked]
        values = [*v, *squares, *(v[i] * v[j] for i, j in pairs)]
        total = [t + x for t, x in zip(total, values, strict=True)]
    return total


KINDS = list(itertools.product(["centred", "paper"], [REPLACE, ADD_REMOVE], [1, 2]))


@pytest.mark.parametrize(("basis", "relation", "order"), KINDS)
@pytest.mark.parametrize("chunk", [2**20, 7, 1])
def test_moments_equal_pythons_integers(
    basis: str, relation: Relation, order: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "_CHUNK", chunk)
    block = bound(FINE, FLAG, SEVEN, CODES, basis=basis, relation=relation, order=order)
    for rows in (0, 1, 6, 7, 8, 50):
        arrays = random_rows(block, rows)
        found = block.sums(arrays)
        assert found == by_hand(block, arrays)
        assert all(type(s) is int for s in found)
        assert len(found) == len(block.units) == len(block.keys) == len(block.scales)


def test_order_and_layout_of_rows_change_nothing() -> None:
    block = bound(FINE, SEVEN, CODES)
    arrays = random_rows(block, 999)
    order = np.random.default_rng(1).permutation(999)
    wide = np.asfortranarray(np.stack([a[order] for a in arrays], axis=1))
    assert block.sums([wide[:, j] for j in range(3)]) == block.sums(arrays)


@pytest.mark.parametrize("basis", ["centred", "paper"])
def test_more_than_one_chunk_of_the_largest_values(basis: str) -> None:
    """1.1 million rows, most at the far end, where float64 has least room."""
    rows = 1_100_000
    block = bound(FINE, Numeric(0.0, 1.0), basis=basis)
    first = np.full(rows, MAX_LEVELS, dtype=np.int32)
    first[::3] -= 1
    second = np.full(rows, MAX_LEVELS, dtype=np.int32)
    second[::7] = -MAX_LEVELS + 1
    shift = MAX_LEVELS if basis == "paper" else 0
    a, b = first.astype(np.int64) + shift, second.astype(np.int64) + shift
    # Products of at most 2**32, a million of them: below 2**63.
    expected = [int(x.sum()) for x in (a, b, a * a, b * b, a * b)]
    assert block.sums([first, second]) == expected


def test_columns_of_too_many_categories_are_refused() -> None:
    """Their products would be too large for exact sums in float64."""
    crowd = Categorical(tuple(float(i) for i in range(MAX_LEVELS + 2)))
    with pytest.raises(WorkloadError, match="categories"):
        bound(crowd, FINE)
    bound(Categorical(crowd.categories[:-1]), FINE)


def test_marginal_counts_equal_a_loop() -> None:
    schema = Schema({"x": FINE, "c": CODES, "b": FLAG})
    block = Marginal(("x", "c", "b"), edges={"x": (-50.0, 0.0)}).bind(
        Terms(schema, norm=2, relation=REPLACE)
    )
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, s, 500).astype(np.int32) for s in block.shape]
    seen: dict[tuple[int, ...], int] = {}
    for row in zip(*(a.tolist() for a in arrays), strict=True):
        seen[row] = seen.get(row, 0) + 1
    cells = itertools.product(*(range(s) for s in block.shape))
    assert block.sums(arrays) == [seen.get(c, 0) for c in cells]
    assert block.sums([a[:0] for a in arrays]) == [0] * block.size
    codes = block.design(arrays, np.arange(block.size)).codes
    assert np.bincount(codes, minlength=block.size).tolist() == block.sums(arrays)


@pytest.mark.parametrize(("basis", "relation", "order"), KINDS)
def test_design_gives_the_same_answers(basis: str, relation: Relation, order: int) -> None:
    """What the solver sees of a row is what was summed, for any part of the queries."""
    block = bound(FINE, FLAG, SEVEN, CODES, basis=basis, relation=relation, order=order)
    arrays = random_rows(block, 300)
    means = np.array([s / u / 300 for s, u in zip(block.sums(arrays), block.units, strict=True)])
    keep = np.random.default_rng(0).permutation(len(means))[: len(means) // 2 + 1]
    for kept in (np.arange(len(means)), np.sort(keep)):
        part = block.design(arrays, kept.astype(np.intp))
        wide = np.column_stack([part.values, np.ones(300)])  # place -1 is the one
        values = part.offset + part.factor * wide[:, part.left] * wide[:, part.right]
        np.testing.assert_allclose(values.mean(axis=0), means[kept], rtol=1e-12, atol=1e-12)


def test_shared_queries_are_asked_once() -> None:
    schema = Schema({"a": FINE, "b": SEVEN, "c": CODES})
    measures = [Moments(("a", "b")), Moments(("b", "c", "a")), Moments(("a",), order=1)]
    blocks = [m.bind(Terms(schema, basis="centred", norm=2, relation=REPLACE)) for m in measures]
    tables = [Marginal(n).bind(Terms(schema, norm=2, relation=REPLACE)) for n in (("c",), ("c",))]
    queries = QuerySet((*blocks, *tables))
    # a, b, aa, bb, ab; then c, cc, bc, ca; nothing; five cells; nothing.
    assert [len(k) for k in queries.kept] == [5, 4, 0, 5, 0]
    assert queries.size == len(queries.units) == 14
    assert describe_duplicates(queries) == ["mean(a)", "cell(c=a)"]
    encoded = {f: random_rows(bound(f.column), 200, seed=i)[0] if f.kind == "grid"
               else np.random.default_rng(i).integers(0, 5, 200).astype(np.int32)
               for i, f in enumerate(queries.features)}  # fmt: skip
    sums = queries.sums(encoded)
    for block, places in zip(queries.blocks, queries.positions, strict=True):
        assert [sums[p] for p in places] == block.sums([encoded[f] for f in block.features])


def test_tables_in_another_order_are_the_same_table() -> None:
    schema = Schema({"x": FINE, "c": CODES, "b": FLAG})
    edges = {"x": (-50.0, 0.0)}
    first = Marginal(("x", "c", "b"), edges=edges).bind(Terms(schema, norm=2, relation=REPLACE))
    second = Marginal(("b", "x", "c"), edges=edges).bind(Terms(schema, norm=2, relation=REPLACE))
    other = Marginal(("x", "c"), edges=edges).bind(Terms(schema, norm=2, relation=REPLACE))
    finer = Marginal(("x", "c", "b"), edges={"x": (-50.0, 0.5)}).bind(
        Terms(schema, norm=2, relation=REPLACE)
    )
    assert set(first.keys) == set(second.keys)
    assert len(set(first.keys)) == first.size
    assert not set(first.keys) & (set(other.keys) | set(finer.keys))
    rng = np.random.default_rng(4)
    arrays = {
        n: rng.integers(0, s, 100).astype(np.int32) for n, s in zip("xcb", first.shape, strict=True)
    }
    by_key = dict(zip(first.keys, first.sums([arrays[n] for n in "xcb"]), strict=True))
    assert by_key == dict(zip(second.keys, second.sums([arrays[n] for n in "bxc"]), strict=True))


def test_hostile_names_never_share_a_key() -> None:
    names = ["a", 'a"', 'a", "b', "b", "", " ", "[", "a\\", "é", "\u0301e", '","', "zz", "1-zz"]
    schema = Schema(dict.fromkeys(names, FINE))
    for relation in (REPLACE, ADD_REMOVE):
        block = Moments(tuple(names)).bind(
            Terms(schema, basis="centred", norm=2, relation=relation)
        )
        assert len(set(block.keys)) == len(block.keys)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (0, [slice(0, 3)]),
        (1, [slice(0, 3)]),
        (3, [slice(0, 3)]),
        (4, [slice(0, 3), slice(3, 6)]),
    ],
)
def test_pieces_cover_the_rows(rows: int, expected: list[slice]) -> None:
    assert pieces(rows, 3) == expected
