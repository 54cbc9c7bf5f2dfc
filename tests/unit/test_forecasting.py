"""Expected errors at several budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt.exceptions import InputError, PrivacyError

ROWS = 2_000
SCHEMA = {
    "x": {"kind": "numeric", "lower": 0, "upper": 1},
    "y": {"kind": "numeric", "lower": 0, "upper": 1},
    "g": {"kind": "categorical", "categories": ["a", "b"]},
}
EPSILONS = (0.1, 0.3, 1, 3)


@pytest.fixture(scope="module")
def synthetic() -> pa.Table:
    rng = np.random.default_rng(0)
    values = rng.random((2, ROWS))
    return pa.table(
        {"x": values[0], "y": values.mean(axis=0), "g": np.where(values[1] < 0.1, "a", "b")}
    )


@pytest.fixture(scope="module")
def workload() -> Any:
    return rt.correlation(["x", "y"], clip={}) + rt.marginal(["g"]) + rt.means("x", by="g")


@pytest.fixture(scope="module")
def found(synthetic, workload) -> rt.Forecast:
    return rt.forecast(synthetic, workload, epsilons=EPSILONS, rows=ROWS, schema=SCHEMA)


class TestNumbers:
    def test_errors_shrink_as_the_budget_grows(self, found):
        errors = np.array(found.expected, dtype=float)
        assert np.all(np.diff(errors, axis=0) < 0)
        assert list(found.drowned_share) == sorted(found.drowned_share, reverse=True)
        assert list(found.median_error) == sorted(found.median_error, reverse=True)

    def test_they_are_the_plans_own(self, found, synthetic, workload):
        for epsilon, errors in zip(EPSILONS, found.expected, strict=True):
            plan = rt.plan(synthetic, workload, epsilon=epsilon, rows=ROWS, schema=SCHEMA)
            assert errors == plan.expected
            assert found.statistics == plan.queries.statistics

    def test_order_and_repetition_of_the_budgets_do_not_matter(self, found, synthetic, workload):
        again = rt.forecast(
            synthetic, workload, epsilons=[3, 0.3, 1, 0.1, 1], rows=ROWS, schema=SCHEMA
        )
        assert again == found

    def test_rho_and_pure(self, synthetic, workload):
        zcdp = rt.forecast(synthetic, workload, rhos=[0.1, 1], rows=ROWS, schema=SCHEMA)
        assert [b.rho for b in zcdp.budgets] == [0.1, 1]
        pure = rt.forecast(synthetic, workload, epsilons=[1], delta=0, rows=ROWS, schema=SCHEMA)
        assert "pure" in pure.table()[0]["budget"]

    def test_drowned_is_what_its_own_error_exceeds(self, synthetic):
        low = rt.forecast(
            synthetic, rt.marginal(["g"]), epsilons=[0.01, 10], rows=ROWS, schema=SCHEMA
        )
        rows = {(r["statistic"], r["amount"]): r["drowned"] for r in low.table()}
        assert rows["cell(g=a)", 0.01]
        assert not rows["cell(g=a)", 10]

    def test_clamps_that_change_with_the_budget_lose_no_statistic(self):
        rng = np.random.default_rng(1)
        far = pa.table({"x": rng.exponential(1, ROWS), "y": rng.random(ROWS)})
        schema = {n: {"kind": "numeric", "lower": 0, "upper": 1000} for n in ("x", "y")}
        asked = rt.moments(["x"]) + rt.moments(["x", "y"], clip={})
        found = rt.forecast(far, asked, epsilons=[0.01, 1e3], rows=ROWS, schema=schema)
        for epsilon, errors in zip((0.01, 1e3), found.expected, strict=True):
            plan = rt.plan(far, asked, epsilon=epsilon, rows=ROWS, schema=schema)
            told = [e for e in errors if e is not None]
            assert sorted(told) == sorted(e for e in plan.expected if e is not None)


class TestForms:
    def test_frame_table_and_json(self, found):
        assert len(found.to_frame()) == len(found.statistics) * len(EPSILONS)
        told = found.to_dict()
        assert [b["epsilon"] for b in told["budgets"]] == list(EPSILONS)
        assert told["statistics"][0]["expected_standard_errors"] == [e[0] for e in found.expected]
        assert "4 budgets" in repr(found)

    @pytest.mark.parametrize(("ending", "begins"), [
        (".svg", b"<?xml"), (".png", b"\x89PNG"), (".PDF", b"%PDF")
    ])  # fmt: skip
    def test_plot(self, found, tmp_path, ending, begins):
        path = tmp_path / f"plot{ending}"
        found.plot(path)
        assert path.read_bytes().startswith(begins)
        with pytest.raises(InputError, match="exists"):
            found.plot(path)
        first = path.read_bytes()
        found.plot(path, force=True)
        assert path.read_bytes() == first

    def test_plot_of_many_and_of_nothing(self, synthetic, tmp_path):
        many = rt.forecast(
            synthetic, rt.marginal(["x"], bins=30), epsilons=[1], rows=ROWS, schema=SCHEMA
        )
        many.plot(tmp_path / "many.svg")
        assert "median" in (tmp_path / "many.svg").read_text(encoding="utf-8")
        empty = rt.forecast(
            synthetic.slice(0, 0), rt.marginal(["g"]), epsilons=[1], rows=ROWS, schema=SCHEMA
        )
        empty.plot(tmp_path / "empty.svg")

    def test_strange_names(self, synthetic, tmp_path):
        named = synthetic.rename_columns(["$x^2$ 漢", "y", "g"])
        found = rt.forecast(
            named, rt.means("$x^2$ 漢"), epsilons=[1], rows=ROWS,
            schema={"$x^2$ 漢": {"kind": "numeric", "lower": 0, "upper": 1}},
        )  # fmt: skip
        for ending in (".svg", ".png", ".pdf"):
            found.plot(tmp_path / f"plot{ending}")
        assert "$x^2$" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


class TestRefusals:
    @pytest.mark.parametrize("given", [
        {}, {"epsilons": [1], "rhos": [1]}, {"epsilons": []}, {"epsilons": [0]},
        {"epsilons": [float("nan")]}, {"epsilons": ["1"]}, {"epsilons": 1}, {"epsilons": "0.1,1"},
        {"rhos": [float("inf")]}, {"epsilons": range(1, 99)}, {"epsilons": [1], "epsilon": 1},
        {"rhos": [1], "delta": 1e-6},
    ])  # fmt: skip
    def test_budgets(self, synthetic, workload, given):
        with pytest.raises((InputError, PrivacyError)):
            rt.forecast(synthetic, workload, rows=ROWS, schema=SCHEMA, **given)

    @pytest.mark.parametrize("name", ["plot.jpg", "plot", "no/such/folder.svg"])
    def test_plot_files(self, found, tmp_path, name):
        with pytest.raises(InputError):
            found.plot(tmp_path / name)
