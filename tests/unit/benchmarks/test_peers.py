from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.special import logsumexp

ROOT = Path(__file__).parents[3]
FIELDS = {"problem", "solver", "rows", "cpu_seconds", "peak_mib", "residual", "gap", "ess"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmarks' modules, which are no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("problems", "solvers", "measuring", "peers")
    return {name: import_module(f"benchmarks.{name}") for name in names}


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_stdout_is_json_alone():
    arguments = ("--rows", "2000", "--problem", "moments-65", "denoise-lp")
    result = peers(*arguments, "--only", "retilt", "highs")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["problem"], row["solver"]) for row in rows] == [
        ("moments-65", "retilt"),
        ("denoise-lp", "retilt"),
        ("denoise-lp", "highs"),
    ]
    assert all(set(row) == FIELDS for row in rows)
    assert all(row["rows"] == 2000 and row["cpu_seconds"] > 0 for row in rows)
    assert all(0 <= row["gap"] < 1e-9 for row in rows)
    assert rows[1]["residual"] == pytest.approx(rows[2]["residual"], rel=1e-8)


def test_what_cannot_be_run_is_refused():
    result = peers("--rows", "10")
    assert result.returncode == 2
    assert "at least 1000" in result.stderr
    result = peers("--problem", "denoise-lp", "--only", "ebal")
    assert result.returncode == 2
    assert "none of these solvers" in result.stderr


@pytest.mark.parametrize("solver", ["retilt", "scipy-lbfgsb", "ebal"])
def test_solvers_of_the_same_problem_agree(bench: dict[str, ModuleType], solver: str):
    if solver == "ebal":
        pytest.importorskip("ebal", reason="ebal is not installed")
    case = bench["problems"].moments(2000)
    outcome = bench["solvers"].SOLVERS["moments-65"][solver](case)
    residual, gap, ess = bench["measuring"].judged("moments-65", outcome)
    assert residual < 0.1
    assert 0 <= gap < 1e-9
    best = bench["solvers"].retilt(case)
    np.testing.assert_allclose(outcome.weights, best.weights, rtol=1e-3)
    assert ess == pytest.approx(1 / np.sum(best.weights**2), rel=1e-4)


def test_the_gap_bounds_the_distance_from_the_dual_optimum(bench: dict[str, ModuleType]):
    case = bench["problems"].moments(2000)
    best = bench["solvers"].retilt(case)
    matrix = bench["problems"].query_matrix(best.problem) - best.problem.answers

    def dual(multipliers: np.ndarray) -> float:
        return float(logsumexp(np.log(best.problem.base) - matrix @ multipliers))

    measuring = bench["measuring"]
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-3, 1e-2):
        away = best.multipliers + size * rng.normal(size=best.multipliers.size)
        weights = best.problem.base * np.exp(-matrix @ away)
        outcome = replace(best, weights=weights / weights.sum(), multipliers=away)
        gap = measuring.dual_gap(outcome, matrix + best.problem.answers)
        distance = dual(away) - dual(best.multipliers)
        assert distance - 1e-14 <= gap <= 1.1 * distance


def test_the_path_has_a_gap_at_its_own_trade_off(bench: dict[str, ModuleType]):
    outcome = bench["solvers"].retilt_path(bench["problems"].moments(2000))
    _, gap, _ = bench["measuring"].judged("moments-65", outcome)
    assert outcome.eta > 0
    assert 0 <= gap < 1e-9


def test_retilt_is_measured_beside_peers_of_fewer_rows(bench: dict[str, ModuleType]):
    wanted = list(bench["peers"].runs(["denoise-qp"], ["retilt", "clarabel"], 50_000))
    assert wanted == [
        ("denoise-qp", "retilt", 50_000),
        ("denoise-qp", "retilt", 20_000),
        ("denoise-qp", "clarabel", 20_000),
    ]


def test_the_text_shows_ratios(bench: dict[str, ModuleType]):
    row = {
        "problem": "moments-65",
        "solver": "retilt",
        "rows": 2000,
        "cpu_seconds": 0.5,
        "peak_mib": None,
        "residual": 0.1,
        "gap": None,
        "ess": 10.0,
    }
    lines = bench["peers"].as_text([row, row | {"solver": "ebal", "cpu_seconds": 2.0}]).split("\n")
    assert "ratio" in lines[0]
    assert "4.0" in lines[2].split()
