"""The method of a fit: the default, the paper's, and the answers denoised for either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import retilt as rt
from retilt.exceptions import FormatError, InputError, OutputExistsError
from retilt.testing import insecure_measure

SCHEMA = {
    "a": rt.Numeric(-5.0, 5.0),
    "b": rt.Numeric(-5.0, 5.0),
    "sex": rt.Categorical(("F", "M")),
}


def table(rows: int, seed: int, slope: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=rows)
    b = slope * a + rng.normal(size=rows)
    return pd.DataFrame({"a": a, "b": b, "sex": np.where(rng.random(rows) < 0.4, "F", "M")})


REAL, SYNTHETIC = table(8_000, 1, 0.6), table(4_000, 2, 0.1)
WORKLOAD = rt.correlation(["a", "b"]) + rt.marginal(["sex"])
METHODS = ["default", "paper", "paper-exact", rt.Paper(epochs=20), rt.Paper(denoise=None)]


def answered(workload: rt.Workload = WORKLOAD, **options: Any) -> rt.Answers:
    options = {"epsilon": 1.0, "rows": len(REAL), "schema": SCHEMA, **options}
    plan = rt.plan(SYNTHETIC, workload, **options)
    return insecure_measure(REAL, plan, rng=np.random.default_rng(0))


PAPERS = answered(basis="paper")


@pytest.mark.parametrize("method", ["default", "paper-exact"])
@pytest.mark.parametrize("basis", ["paper", "centred"])
@pytest.mark.parametrize("delta", [None, 0])
def test_the_statistics_are_brought_to_their_targets(
    method: Any, basis: str, delta: float | None
) -> None:
    tilt = rt.fit(SYNTHETIC, answered(basis=basis, delta=delta), method=method)
    assert tilt.exit_code == 0, (tilt.status, tilt.unmet)
    for row in tilt.statistics_table():
        assert abs(row["after"] - row["target"]) <= 3 * row["standard_error"] + 1e-4
        assert row["reachable"]
    assert tilt.weights.mean() == pytest.approx(1)


@pytest.mark.parametrize("basis", ["paper", "centred"])
@pytest.mark.parametrize("delta", [None, 0])
def test_the_papers_algorithm_goes_where_its_exact_solution_is(
    basis: str, delta: float | None
) -> None:
    answers = answered(basis=basis, delta=delta)
    exact = rt.fit(SYNTHETIC, answers, method="paper-exact")
    fits = [
        rt.fit(SYNTHETIC, answers, method=rt.Paper(epochs=epochs), seed=0) for epochs in (10, 200)
    ]
    distances = [float(np.abs(tilt.weights - exact.weights).mean()) for tilt in fits]
    start = float(np.abs(exact.weights - 1).mean())
    assert start > distances[0] > distances[1]
    assert start > 1.1 * distances[1], (start, distances)
    for tilt in fits:
        arrived = tilt.certificate["kkt_residual"] <= 3
        assert (tilt.status is rt.Status.ITERATION_LIMIT) == (not arrived)


def test_noisy_cells_that_no_row_lies_in_can_not_be_met_without_denoising() -> None:
    tilt = rt.fit(SYNTHETIC, PAPERS, method=rt.Paper(solver="exact", denoise=None))
    assert tilt.status is rt.Status.INFEASIBLE_MEASURES
    assert not tilt.unmet


def test_the_method_and_what_was_denoised_are_on_record() -> None:
    default, paper, exact = (
        rt.fit(SYNTHETIC, PAPERS, method=m, seed=0)  # type: ignore[arg-type]
        for m in ("default", "paper", "paper-exact")
    )
    assert (default.method, paper.method, exact.method) == ("default", "paper", "paper-exact")
    assert default.settings == {"denoise": None}
    assert (paper.settings["denoise"], paper.settings["seed"]) == ("qp", 0)
    assert rt.fit(SYNTHETIC, answered(delta=0), method="paper-exact").settings["denoise"] == "lp"
    assert rt.fit(SYNTHETIC, PAPERS, method="paper", denoise="lp").settings["denoise"] == "lp"
    assert "paper's method" in paper.facts().method
    assert "batches of 256" in paper.facts().method
    assert "solved exactly" in exact.facts().method


def test_the_papers_fit_is_repeated_by_its_seed() -> None:
    fits = [rt.fit(SYNTHETIC, PAPERS, method="paper", seed=s) for s in (1, 1, 2)]
    assert np.array_equal(fits[0].weights, fits[1].weights)
    assert not np.array_equal(fits[0].weights, fits[2].weights)


def test_rows_are_drawn_as_the_method_says() -> None:
    paper = rt.fit(SYNTHETIC, PAPERS, method="paper-exact")
    default = rt.fit(SYNTHETIC, PAPERS)
    assert (paper.sampling, default.sampling) == ("multinomial", "systematic")
    for tilt, own, other in (
        (paper, "multinomial", "systematic"),
        (default, "systematic", "multinomial"),
    ):
        drawn = tilt.rows(seed=3)
        assert np.array_equal(drawn, tilt.rows(method=own, seed=3))  # type: ignore[arg-type]
        assert not np.array_equal(drawn, tilt.rows(method=other, seed=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("denoise", ["qp", "lp"])
def test_the_default_method_on_denoised_answers(denoise: Any) -> None:
    tilt = rt.fit(SYNTHETIC, PAPERS, denoise=denoise)
    assert tilt.exit_code == 0
    assert tilt.solution.gap() < 1e-12
    # The targets that are shown are the released ones; the aim is the denoised.
    np.testing.assert_array_equal(tilt.solution.answers, PAPERS.means)
    assert not np.array_equal(tilt.solution.aim, PAPERS.means)
    shares = tilt.solution.aim[-4:]  # sex: F, M, other, null
    assert shares.sum() == pytest.approx(1)
    assert shares[2:] == pytest.approx([0, 0])


def test_the_pipeline_takes_the_papers_basis_with_the_papers_method() -> None:
    result = rt.postprocess(
        REAL, SYNTHETIC, WORKLOAD, epsilon=1.0, schema=SCHEMA, method="paper", seed=5
    )
    assert result.plan.basis == "paper"
    assert result.tilt.method == "paper"
    again = result.tilt.sample(method="multinomial", seed=5)
    pd.testing.assert_frame_equal(result.post, again)
    own = rt.postprocess(
        REAL, SYNTHETIC, WORKLOAD, epsilon=1.0, schema=SCHEMA, method="paper", basis="centred"
    )
    assert own.plan.basis == "centred"


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"method": "papers"}, "method: got 'papers'"),
            ({"method": None}, "method: got None"),
            ({"method": ["paper"]}, "method: got"),
            ({"method": "paper", "min_ess": 100}, "no floor"),
            ({"denoise": "nnls"}, "denoise: got 'nnls'"),
            ({"denoise": True}, "denoise: got True"),
            ({"method": "paper", "seed": -1}, "seed: got -1"),
        ],
    )
    def test_options(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(InputError, match=word):
            rt.fit(SYNTHETIC, PAPERS, **options)


class TestTheFile:
    def test_it_brings_everything_back(self, tmp_path: Path) -> None:
        for number, method in enumerate(METHODS):
            tilt = rt.fit(SYNTHETIC, PAPERS, method=method, seed=0)
            path = tmp_path / f"{number}.json"
            tilt.save(path)
            back = rt.load_tilt(path, SYNTHETIC)
            np.testing.assert_allclose(back.weights, tilt.weights, rtol=1e-9)
            assert back.certificate == pytest.approx(tilt.certificate, abs=1e-9)
            assert (back.method, back.settings) == (tilt.method, tilt.settings)
            assert (back.status, back.advice, back.sampling) == (
                tilt.status,
                tilt.advice,
                tilt.sampling,
            )
            assert back.facts().method == tilt.facts().method

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("method", {"name": "adam"}),
            ("method", {}),
            ("method", "paper"),
            ("tolerance", -1),
            ("eta", 1.0),
            ("eta", None),
            ("status", "floor_reached"),
            ("tolerance", "x"),
            ("aim", [0.0]),
            ("aim", None),
            ("foo", 1),
        ],
    )
    def test_what_it_does_not_take(self, key: str, value: Any, tmp_path: Path) -> None:
        path = tmp_path / "bad.json"
        content = rt.fit(SYNTHETIC, PAPERS, method="paper-exact").to_dict()
        path.write_text(json.dumps({**content, key: value}), encoding="utf-8")
        with pytest.raises(FormatError, match=r"tilt file .*bad\.json"):
            rt.load_tilt(path, SYNTHETIC)


class TestOutOfReach:
    NARROW = SYNTHETIC.assign(a=SYNTHETIC["a"].clip(-0.05, 0.05))

    @pytest.mark.parametrize("method", METHODS, ids=str)
    @pytest.mark.parametrize("basis", ["paper", "centred"])
    def test_the_status_says_so_and_names_the_measures(self, method: Any, basis: str) -> None:
        answers = answered(rt.moments(["a", "b"]), basis=basis, epsilon=5.0)
        tilt = rt.fit(self.NARROW, answers, method=method, seed=0)
        assert tilt.status is rt.Status.INFEASIBLE_MEASURES
        assert tilt.exit_code == 4
        assert tilt.unmet
        assert any(note.startswith("sd(a): measured") for note in tilt.notes)
        assert np.isfinite(tilt.weights).all()

    def test_a_two_valued_number_measured_twice(self) -> None:
        """In the paper's basis x and x squared are two queries with two noises."""
        real, synthetic = (
            pd.DataFrame({"x": (t["a"] > 0.5) * 1.0, "y": t["b"]}) for t in (REAL, SYNTHETIC)
        )
        schema = {"x": rt.Numeric(0.0, 1.0), "y": rt.Numeric(-5.0, 5.0)}
        plan = rt.plan(
            synthetic,
            rt.moments(["x", "y"]),
            epsilon=0.2,
            rows=len(real),
            schema=schema,
            basis="paper",
        )
        answers = insecure_measure(real, plan, rng=np.random.default_rng(0))
        for gamma in (0.0, 1e-5):
            for solver in ("sgd", "exact"):
                for denoise in ("auto", None):
                    method = rt.Paper(solver=solver, tolerance=gamma, denoise=denoise)  # type: ignore[arg-type]
                    tilt = rt.fit(synthetic, answers, method=method, seed=0)
                    assert np.isfinite(tilt.solution.multipliers).all()
                    assert tilt.ess > len(synthetic) / 3
                    if denoise is None:
                        assert tilt.status is rt.Status.INFEASIBLE_MEASURES
                    else:
                        assert tilt.exit_code == 0


class TestTheReport:
    def test_its_facts_are_the_tilts(self) -> None:
        answers = answered(rt.moments(["a", "b"]) + rt.marginal(["sex"]) + rt.moments(["a"]))
        tilt = rt.fit(SYNTHETIC, answers)
        facts = tilt.facts()
        assert facts.rows == len(SYNTHETIC)
        assert facts.queries == len(answers.means)
        assert facts.success
        assert facts.private is False
        rows = {r["statistic"]: r for r in tilt.statistics_table()}
        (matrix,) = facts.correlations
        assert matrix.names == ("a", "b")
        for when in ("before", "target", "after"):
            values = getattr(matrix, when)
            np.testing.assert_allclose(values, values.T)
            np.testing.assert_allclose(np.diagonal(values), 1)
            assert values[0, 1] == pytest.approx(rows["corr(a, b)"][when])
        assert facts.unmet == ()
        assert "corr(a, b)" in facts.unmet_before
        assert {c["name"]: c["source"] for c in facts.columns} == dict.fromkeys(SCHEMA, "declared")

    def test_it_says_what_was_read_off_the_synthetic_table(self) -> None:
        plan = rt.plan(SYNTHETIC, rt.marginal(["sex"]), epsilon=1.0, rows=len(REAL))
        answers = insecure_measure(REAL, plan, rng=np.random.default_rng(0))
        facts = rt.fit(SYNTHETIC, answers).facts()
        assert facts.correlations == []
        assert facts.columns[0]["source"] == "read off the synthetic table"
        assert facts.columns[0]["values"] == "2 categories"

    def test_a_constant_column_has_no_correlation(self) -> None:
        flat = SYNTHETIC.assign(a=0.0)
        facts = rt.fit(flat, PAPERS, method="paper-exact").facts()
        assert np.isnan(facts.correlations[0].before[0]).all()
        assert np.isnan(facts.correlations[0].before[0, 0])

    def test_there_is_none_of_other_rows(self, tmp_path: Path) -> None:
        rt.fit(SYNTHETIC, PAPERS).save(tmp_path / "tilt.json")
        with pytest.raises(InputError, match="other rows"):
            rt.load_tilt(tmp_path / "tilt.json", REAL).report(tmp_path / "a.html")
        assert not (tmp_path / "a.html").exists()

    def test_a_loaded_tilt_writes_the_same_page(self, tmp_path: Path) -> None:
        tilt = rt.fit(SYNTHETIC, PAPERS)
        tilt.report(tmp_path / "a.html")
        tilt.save(tmp_path / "tilt.json")
        rt.load_tilt(tmp_path / "tilt.json", SYNTHETIC).report(tmp_path / "b.html")
        first, second = ((tmp_path / f"{n}.html").read_text("utf-8") for n in "ab")
        assert first == second
        assert "NOT PRIVATE" in first
        with pytest.raises(OutputExistsError):
            tilt.report(tmp_path / "a.html")
        tilt.report(tmp_path / "a.html", force=True)
