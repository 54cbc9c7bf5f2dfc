"""Distances of distributions: synthcity's restated once more with pandas, and by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import kl_div

import retilt as rt
from retilt.evaluation.marginals import binned, synthcity_divergence

# --- synthcity 0.2.12, from its source, for tables without nulls ----------------------------


def encoded(real: pd.DataFrame, other: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Labels for text, truth values and fewer than 15 values; fitted on both tables together."""
    real, other = real.copy(), other.copy()
    for name in real.columns:
        both = pd.concat([real[name], other[name]])
        if both.dtype.kind in "Ob" or isinstance(both.dtype, pd.StringDtype) or both.nunique() < 15:
            labels = {value: i for i, value in enumerate(sorted(both.unique()))}
            real[name], other[name] = real[name].map(labels), other[name].map(labels)
    return real, other


def library_distance(real: pd.DataFrame, other: pd.DataFrame, add: float = 1.0) -> float:
    real, other = encoded(real, other)
    distances = []
    for name in real.columns:
        bins = min(10, real[name].nunique())
        cut, edges = pd.cut(real[name], bins=bins, retbins=True)
        shares = [
            c.value_counts(dropna=False, normalize=True)
            for c in (cut, pd.cut(other[name], bins=edges))
        ]
        p, q = shares[0].align(shares[1], join="outer", fill_value=0)
        distances.append(jensenshannon(p + add, q + add))
    return float(np.mean(distances))


def library_inverse(real: pd.DataFrame, other: pd.DataFrame) -> float:
    real, other = encoded(real, other)
    scores = []
    for name in real.columns:
        a, b = real[name], other[name]
        if a.nunique() < 5:
            p = dict(a.value_counts() / len(a))
            q = dict(b.value_counts() / len(b))
        else:
            counts, edges = np.histogram(a, bins=min(10, a.nunique()))
            others, _ = np.histogram(b, bins=edges)
            p = dict(enumerate(counts / (counts.sum() + 1e-8)))
            q = dict(enumerate(others / (others.sum() + 1e-8)))
        for one, two in ((p, q), (q, p)):
            for key in one:
                two[key] = two.get(key) or 1e-11
        # In the order in which each was made: the fault.
        scores.append(1 / (1 + kl_div(list(p.values()), list(q.values())).sum()))
    return float(np.mean(scores))


def frames(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "wide": rng.normal(seed, 2 + seed, rows),
            "whole": rng.integers(seed, 40, rows),
            "few": rng.integers(0, 3 + seed, rows) * 5,
            "two": rng.choice([0, 1], rows, p=[0.55 - seed / 10, 0.45 + seed / 10]),
            "truth": rng.random(rows) < 0.3 + seed / 8,
            "place": rng.choice(list("abcdefghijklmnop"[seed:]), rows),
            "flat": np.full(rows, 3.5),
            "skewed": np.where(rng.random(rows) < 0.9, 0, rng.integers(0, 1000, rows)),
        }
    )


REAL, SYNTHETIC, POST = frames(0, 500), frames(2, 350), frames(1, 400)


def test_synthcitys_values() -> None:
    found = rt.evaluate(REAL, SYNTHETIC, POST).marginals
    assert found.jensen_shannon_synthcity.before == pytest.approx(library_distance(REAL, SYNTHETIC))
    assert found.jensen_shannon_synthcity.after == pytest.approx(library_distance(REAL, POST))
    assert found.inverse_kl_synthcity.before == pytest.approx(library_inverse(REAL, SYNTHETIC))
    assert found.inverse_kl_synthcity.after == pytest.approx(library_inverse(REAL, POST))


def test_corrected_is_without_the_one_and_in_bits() -> None:
    found = rt.evaluate(REAL, SYNTHETIC, POST).marginals
    expected = library_distance(REAL, SYNTHETIC, add=0.0) / math.sqrt(math.log(2))
    assert found.jensen_shannon.before == pytest.approx(expected)
    assert found.jensen_shannon.before > 5 * found.jensen_shannon_synthcity.before  # type: ignore[operator]


@pytest.mark.parametrize("name", ["adult", "mushroom"])
def test_on_real_tables(name: str, shared: Path) -> None:
    folder = shared / "data" / name / "synthetic"
    tables = [
        pd.read_csv(folder / f"{generator}-eps1-seed0.csv.gz", keep_default_na=False)
        for generator in ("aim", "mst", "patectgan")
    ]
    found = rt.evaluate(*tables, schema=shared / "data" / name / "schema.toml").marginals
    assert found.jensen_shannon_synthcity.before == pytest.approx(library_distance(*tables[:2]))
    assert found.jensen_shannon_synthcity.after == pytest.approx(library_distance(*tables[::2]))
    assert found.inverse_kl_synthcity.before == pytest.approx(library_inverse(*tables[:2]))
    assert found.inverse_kl_synthcity.after == pytest.approx(library_inverse(*tables[::2]))


def test_swapped_shares_are_seen_by_the_corrected_one_only() -> None:
    real = pa.table({"x": ["a"] * 55 + ["b"] * 45, "y": list(range(50)) * 2})
    swapped = pa.table({"x": ["a"] * 45 + ["b"] * 55, "y": list(range(50)) * 2})
    found = rt.evaluate(real, swapped, real).marginals
    assert found.inverse_kl_synthcity.before == pytest.approx(1)
    divergence = 0.55 * math.log(0.55 / 0.45) + 0.45 * math.log(0.45 / 0.55)
    assert found.inverse_kl.before == pytest.approx((1 / (1 + divergence) + 1) / 2)
    assert found.inverse_kl.after == 1


def test_tables_that_share_nothing() -> None:
    real = pa.table({"x": ["a"] * 60, "y": np.linspace(0, 1, 60)})
    other = pa.table({"x": ["b"] * 60, "y": np.linspace(5, 6, 60)})
    found = rt.evaluate(real, other, real).marginals
    assert found.jensen_shannon.before == pytest.approx(1)
    assert found.inverse_kl.before < 0.05  # type: ignore[operator]
    assert found.two_way.before == pytest.approx(1)
    assert found.jensen_shannon.after == 0


def test_null_and_out_of_range_are_apart_but_in_synthcitys() -> None:
    real, other = np.array([0.0, 1, 2, 3, np.nan]), np.array([0.0, 1, 2, 3, 99.0])
    p, q = binned(real, other)
    # Null counts as a value: five bins for four numbers.
    assert p.tolist() == [0.2, 0.2, 0, 0.2, 0.2, 0, 0.2]
    assert q.tolist() == [0.2, 0.2, 0, 0.2, 0.2, 0.2, 0]


def test_what_the_one_leaves_of_the_greatest_distance() -> None:
    real, other = pa.table({"x": ["a"], "y": [1]}), pa.table({"x": ["b"], "y": [2]})
    found = rt.evaluate(real, other, real, schema={"y": rt.Numeric(0, 9)}).marginals
    assert found.jensen_shannon.before == 1
    assert found.jensen_shannon_synthcity.before == pytest.approx(0.2380, abs=1e-4)


def test_infinities_are_out_of_range() -> None:
    p, q = binned(np.array([0.0, 1, np.inf]), np.array([-np.inf, 1, 1]))
    assert p[-2] == pytest.approx(1 / 3)
    assert q[-2] == pytest.approx(1 / 3)
    assert math.isfinite(synthcity_divergence(np.full(9, np.nan), np.arange(9.0)))
    assert math.isfinite(synthcity_divergence(np.arange(9.0), np.full(9, np.nan)))


def test_total_variation_by_hand() -> None:
    real = pa.table({"x": ["a", "a", "b", None], "y": ["u", "v", "u", "v"]})
    other = pa.table({"x": ["a", "b", "b", "c"], "y": ["u", "v", "u", "v"]})
    found = rt.evaluate(real, other, other).marginals
    # x: a 1/2 and 1/4, b 1/4 and 1/2, null 1/4 and 0, c 0 and 1/4; y: the same.
    assert found.one_way.before == pytest.approx((0.5 + 0) / 2)
    assert found.two_way.before == pytest.approx(0.5)


def test_a_category_that_the_synthetic_table_lacks_counts() -> None:
    real = pa.table({"x": ["a", "b", "zebra", "zebra"], "y": ["u", "v", "u", "v"]})
    other = pa.table({"x": ["a", "a", "b", "b"], "y": ["u", "v", "u", "v"]})
    found = rt.evaluate(real, other, other).marginals
    assert found.one_way.before == pytest.approx((0.5 + 0) / 2)


def test_many_cells_are_counted_where_there_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rt.evaluate(REAL, SYNTHETIC, POST).marginals
    monkeypatch.setattr("retilt.evaluation.marginals._DENSE", 1)
    found = rt.evaluate(REAL, SYNTHETIC, POST).marginals
    assert found.two_way.before == pytest.approx(expected.two_way.before)
    assert found.one_way.after == pytest.approx(expected.one_way.after)


def test_text_and_numbers_of_one_content_are_the_same(tmp_path: Path) -> None:
    expected = rt.evaluate(REAL, SYNTHETIC, POST)
    paths = []
    for name, frame in (("real", REAL), ("synthetic", SYNTHETIC), ("post", POST)):
        paths.append(tmp_path / f"{name}.csv")
        pc.write_csv(pa.Table.from_pandas(frame), paths[-1])
    assert rt.evaluate(*paths).to_dict() == expected.to_dict()


def test_dates_are_numbers() -> None:
    days = pd.date_range("2020-01-01", periods=100)
    shifted = pd.DataFrame({"day": days + pd.Timedelta(days=50), "x": np.arange(100) / 7})
    real = pd.DataFrame({"day": days, "x": np.arange(100) / 7})
    found = rt.evaluate(real, shifted, real).marginals
    p, q = np.repeat(0.1, 10), np.append(np.repeat(0, 5), np.repeat(0.1, 5))
    expected = jensenshannon(np.append(p, 0), np.append(q, 0.5), base=2)
    assert found.jensen_shannon.before == pytest.approx(expected / 2)
    assert found.jensen_shannon.after == 0


def test_text_that_is_not_utf8_counts_as_another_category() -> None:
    broken = pa.array([b"a", b"a", b"b", b"\xff\xfe"]).cast(pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 4, broken.buffers())
    real = pa.table({"x": texts, "y": ["u", "v", "u", "v"]})
    other = pa.table({"x": ["a", "a", "b", "b"], "y": ["u", "v", "u", "v"]})
    found = rt.evaluate(real, other, other, schema={"y": rt.Categorical(("u", "v"))})
    assert found.marginals.one_way.before == pytest.approx(0.25 / 2)
    assert not [place for place in found.reasons if place.startswith("marginals")]


def test_more_texts_than_can_be_listed_count_together() -> None:
    rows = 1200
    real = pa.table({"x": [f"name {i}" for i in range(rows)], "y": ["u", "v"] * (rows // 2)})
    other = pa.table({"x": ["a", "b"] * (rows // 2), "y": ["u", "v"] * (rows // 2)})
    schema = {"x": rt.Categorical(("a", "b"))}
    found = rt.evaluate(real, other, real, target="y", positive="u", schema=schema)
    assert found.marginals.one_way.to_dict() == {"before": 0.5, "after": 0.0}
    assert found.groups is not None
    assert found.groups.by_column["x"].groups == 1
