"""Whatever tables hold, ``evaluate`` gives finite figures or says which do not exist."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import retilt as rt
from retilt.evaluation.marginals import (
    binned,
    divergence,
    jensen_shannon,
    labelled,
    quantile_edges,
    synthcity_divergence,
)
from retilt.exceptions import InputError

SCHEMA = {
    "amount": rt.Numeric(0, 100, nullable=True),
    "code": rt.Numeric(0, 5, nullable=True),
    "place": rt.Categorical(("x", "y"), nullable=True),
    "paid": rt.Boolean(nullable=True),
    "grade": rt.Categorical((1, 2, 3), nullable=True),
}
NUMBERS = st.sampled_from(
    [0.0, 1.0, 2.5, 99.0, -7.0, 1e9, 1e200, -1e308, 1.7e308, math.inf, -math.inf, math.nan, None]
)
CELLS = {
    "amount": NUMBERS,
    "code": st.sampled_from(["1", "2", " 3 ", "", "word", "1e400", "nan", "-1", None]),
    "place": st.sampled_from(["x", "y", "z", "", "ω", None]),
    "paid": st.sampled_from(["true", "false", "maybe", "", None]),
    "grade": st.sampled_from([1.0, 2.0, 3.0, 4.0, 1e300, None]),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.sampled_from([1, 2, 3, 40]))
    size = draw(st.integers(1, min(rows, 6)))  # of which many rows are copies
    places = [i % size for i in range(rows)]
    columns = {}
    for name, cells in CELLS.items():
        values = draw(st.lists(cells, min_size=size, max_size=size))
        kind = pa.float64() if name in ("amount", "grade") else pa.string()
        columns[name] = pa.array([values[i] for i in places], kind)
    return pa.table(columns)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


REFUSALS = (
    "not have exactly two different values",
    "which no row",
    "at least two to correlate",
    "none of its",
)


def figures_or_refusal(*tables: pa.Table, **options: Any) -> rt.Evaluation | str:
    try:
        return rt.evaluate(*tables, schema=SCHEMA, **options)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("target", [None, "paid", "place", "grade", "amount"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_finite_or_named(target: str | None, data: st.DataObject) -> None:
    real, before, after, test = (data.draw(tables()) for _ in range(4))
    options: dict[str, Any] = {}
    if target:
        positive = data.draw(st.sampled_from([None, *real[target].to_pylist()]))
        options = {"target": target, "test": test, "positive": positive}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = figures_or_refusal(real, before, after, detection=target is None, **options)
    if isinstance(found, str):
        assert any(words in found for words in REFUSALS), found
        return
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    absent = {path for path, value in leaves(content) if value is None}
    left_out = {f"left_out.{name}" for name in found.left_out}
    assert absent | left_out == set(found.reasons)
    for path, value in leaves(content["marginals"]):
        assert 0 <= value <= 1 + 1e-9, path
    two, one = (content["marginals"]["total_variation"][k] for k in ("two_way", "one_way"))
    for when in ("before", "after"):
        assert two[when] >= one[when] - 1e-12  # a pair shows at least what each of it shows


@settings(max_examples=25)
@given(table=tables())
def test_equal_tables_are_at_no_distance(table: pa.Table) -> None:
    found = figures_or_refusal(table, table, table, detection=True)
    if isinstance(found, str):
        assert any(words in found for words in REFUSALS), found
        return
    content = found.to_dict()
    for when in ("before", "after"):
        for name in ("synthcity", "corrected"):
            assert content["marginals"]["jensen_shannon"][name][when] == 0
            assert content["marginals"]["inverse_kl"][name][when] == pytest.approx(1)
        for name in ("one_way", "two_way"):
            assert content["marginals"]["total_variation"][name][when] == 0
        assert content["correlation_error"][when] == {"raw": 0, "clamped": 0}
        assert content["detection"]["auc"][when] in (None, pytest.approx(0.5))


VALUES = st.lists(
    st.one_of(st.integers(-5, 25).map(float), st.just(math.nan), st.floats(-1e3, 1e3)),
    min_size=1,
    max_size=60,
).map(np.array)


@given(real=VALUES, other=VALUES)
def test_distances_are_in_their_ranges(real: np.ndarray, other: np.ndarray) -> None:
    p, q = binned(*labelled(real, other, text=False))
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    distance = jensen_shannon(p, q)
    assert 0 <= distance <= math.sqrt(math.log(2)) + 1e-12
    assert distance == pytest.approx(jensen_shannon(q, p))
    assert divergence(p, q) >= 0
    # Pinsker: a small divergence leaves no room for a large difference.
    assert np.abs(p - q).sum() <= math.sqrt(2 * divergence(p, q)) + 1e-5
    assert math.isfinite(synthcity_divergence(*labelled(real, other, text=False)))


@given(values=st.lists(st.integers(0, 40).map(float), min_size=1, max_size=400).map(np.array))
def test_bins_by_quantiles(values: np.ndarray) -> None:
    edges = quantile_edges(values)
    assert len(edges) <= 9
    assert edges == sorted(set(edges))
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    assert counts.min() > 0
    distinct, own = np.unique(values, return_counts=True)
    # No bin holds much more than its tenth, but for what one value brings.
    assert len(distinct) <= 10 or counts.max() <= len(values) / 10 + own.max() + 1
