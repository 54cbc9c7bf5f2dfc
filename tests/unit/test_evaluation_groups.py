"""Rates of a target in groups, by hand; and classifiers that tell tables apart."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt


def groups(rates: dict[str | None, float], rows: int = 40) -> pa.Table:
    """As many rows of each group, of which a share is ``yes``; and a column that says nothing."""
    places, paid = [], []
    for place, rate in rates.items():
        yes = round(rate * rows)
        places += [place] * rows
        paid += ["yes"] * yes + ["no"] * (rows - yes)
    return pa.table({"place": pa.array(places, pa.string()), "paid": paid, "x": range(len(paid))})


REAL = groups({"a": 0.5, "b": 0.1, "c": 0.2, None: 0.3})
SCHEMA = {"x": rt.Numeric(0, 200)}


def test_errors_by_hand() -> None:
    before = groups({"a": 0.6, "b": 0.4, None: 0.3})
    found = rt.evaluate(REAL, before, REAL, target="paid", schema=SCHEMA)
    assert found.groups is not None
    assert found.groups.positive == "yes"
    column = found.groups.by_column["place"]
    assert column.groups == 4
    assert column.missing == (1, 0)
    assert column.largest.before == pytest.approx(0.3)
    assert column.mean.before == pytest.approx((0.1 + 0.3 + 0.0) / 3)
    assert found.groups.largest.before == column.largest.before
    assert column.largest.after == column.mean.after == 0
    assert list(found.groups.by_column) == ["place"]
    assert found.to_dict()["groups"]["by_column"]["place"]["missing"] == {"before": 1, "after": 0}


def test_small_groups_are_left_out() -> None:
    small = pa.concat_tables([REAL, groups({"tiny": 1.0}, rows=29)])
    found = rt.evaluate(small, REAL, REAL, target="paid", schema=SCHEMA).groups
    assert found is not None
    assert found.by_column["place"].groups == 4
    few = REAL.slice(0, 20)
    told = rt.evaluate(few, REAL, REAL, target="paid", positive="yes", schema=SCHEMA)
    assert told.groups is not None
    assert told.groups.by_column == {}
    assert told.groups.largest.before is None
    assert told.reasons["groups.largest_error.before"] == "no group of the real table has 30 rows"


def test_a_table_without_the_groups() -> None:
    found = rt.evaluate(REAL, groups({"z": 0.5, "y": 0.5}), REAL, target="paid", schema=SCHEMA)
    assert found.groups is not None
    assert found.groups.by_column["place"].missing == (4, 0)
    assert found.groups.mean.before is None
    assert "no row in any" in found.reasons["groups.by_column.place.mean_error.before"]


# --- detection ---------------------------------------------------------------------------


def rows(seed: int, shift: float, count: int = 800) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"x": rng.normal(shift, 1, count), "y": rng.choice(["u", "v"], count)})


def test_the_same_distribution_is_not_told_apart() -> None:
    found = rt.evaluate(rows(0, 0.0), rows(1, 0.0), rows(2, 3.0), detection=True).detection
    assert found is not None
    assert found.rows == (800, 800)
    assert found.auc.before == pytest.approx(0.5, abs=0.06)
    # The area of two normal distributions three deviations apart is 0.983.
    assert found.auc.after == pytest.approx(0.983, abs=0.02)
    assert found.pmse.before < 0.04 < 0.15 < found.pmse.after < 0.25  # type: ignore[operator]


def test_copies_of_real_rows_are_no_sign() -> None:
    real = rows(0, 0.0)
    twice = pa.concat_tables([real, real])
    found = rt.evaluate(real, real, twice, detection=True).detection
    assert found is not None
    assert found.auc.before == pytest.approx(0.5)
    assert found.auc.after == pytest.approx(0.5, abs=0.08)


def test_many_rows_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retilt.evaluation.detection.MOST_ROWS", 100)
    tables = rows(0, 0.0), rows(1, 0.5), rows(1, 0.5)
    found = rt.evaluate(*tables, detection=True).detection
    assert found is not None
    assert found.rows == (100, 100)
    assert found.auc.before == found.auc.after
    assert found == rt.evaluate(*tables, detection=True).detection


def test_columns_of_nulls_hinder_no_detection() -> None:
    tables = [rows(0, 0.0), rows(1, 0.0), rows(2, 3.0)]
    nulls = pa.nulls(800, pa.float64())
    schema = {"z": rt.Numeric(0, 1, nullable=True)}
    some = pa.array([0.5] + [None] * 799, pa.float64())
    wider = [t.append_column("z", c) for t, c in zip(tables, (nulls, some, nulls), strict=True)]
    found = rt.evaluate(*wider, schema=schema, detection=True)
    expected = rt.evaluate(*tables, detection=True)
    assert found.detection is not None
    assert expected.detection is not None
    assert found.detection.auc.after == expected.detection.auc.after
    assert not [place for place in found.reasons if place.startswith("detection")]


def test_only_if_asked_for() -> None:
    assert rt.evaluate(rows(0, 0.0), rows(1, 0.0), rows(2, 0.0)).to_dict()["detection"] is None
