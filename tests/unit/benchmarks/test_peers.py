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
FIELDS = {
    "problem",
    "solver",
    "rows",
    "cpu_seconds",
    "calls",
    "peak_mib",
    "residual",
    "gap",
    "ess",
    "correlation_error",
    "blas_seconds",
    "note",
}
NAMES = (
    "clock",
    "document",
    "environments",
    "foreign",
    "measuring",
    "peers",
    "problems",
    "scaling",
    "solvers",
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmarks' modules, which are no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    return {name: import_module(f"benchmarks.{name}") for name in NAMES}


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_stdout_is_json_alone():
    result = run("peers", "--rows", "2000", "--problem", "denoise-lp", "--only", "retilt", "highs")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["problem"], row["solver"]) for row in rows] == [
        ("denoise-lp", "retilt"),
        ("denoise-lp", "highs"),
    ]
    assert all(set(row) == FIELDS for row in rows)
    assert all(row["rows"] == 2000 and row["cpu_seconds"] > 0 for row in rows)
    assert all(0 <= row["gap"] < 1e-9 for row in rows)
    assert rows[0]["residual"] == pytest.approx(rows[1]["residual"], rel=1e-8)


def test_what_cannot_be_run_is_refused():
    result = run("peers", "--rows", "10")
    assert result.returncode == 2
    assert "at least 1000" in result.stderr
    result = run("peers", "--problem", "denoise-lp", "--only", "ebal")
    assert result.returncode == 2
    assert "none of these solvers" in result.stderr


def answer(bench: dict[str, ModuleType], problem: str, solver: str, case):
    """The outcome of a solver, in this process whatever environment it has otherwise."""
    solvers = bench["solvers"]
    if solver in solvers.OWN:
        return solvers.own_solver(problem, solver)(case)()
    found = bench["foreign"].SOLVERS[solver](case.task())()
    return solvers.Outcome(case.problem, found.weights, found.multipliers, note=found.note)


def skip_without(solver: str) -> None:
    if solver not in ("retilt", "scipy-lbfgsb"):
        pytest.importorskip(solver.replace("-", "_"), reason=f"{solver} is not beside retilt")


@pytest.mark.parametrize("solver", ["scipy-lbfgsb", "ebal", "empirical-calibration"])
def test_solvers_of_the_same_problem_agree(bench: dict[str, ModuleType], solver: str):
    skip_without(solver)
    case = bench["problems"].moments(2000)
    outcome = answer(bench, "moments-65", solver, case)
    best = answer(bench, "moments-65", "retilt", case)
    for found in (outcome, best):
        residual, gap, ess = bench["measuring"].judged("moments-65", found)
        assert residual < 0.1
        assert 0 <= gap < 1e-9
        assert bench["measuring"].correlation_error(found) < 1e-4
        assert ess == pytest.approx(1 / np.sum(best.weights**2), rel=1e-4)
    np.testing.assert_allclose(outcome.weights, best.weights, rtol=1e-3)


@pytest.mark.parametrize("solver", ["scipy-lbfgsb", "weightipy", "rimpy", "mbi"])
@pytest.mark.parametrize(
    "problem", ["margins-55", pytest.param("two-way-45", marks=pytest.mark.slow)]
)
def test_solvers_meet_the_margins(bench: dict[str, ModuleType], problem: str, solver: str):
    skip_without(solver)
    case = bench["problems"].PROBLEMS[problem](2000)
    assert case.problem.rows == 2000
    best = answer(bench, problem, "retilt", case)
    residual, gap, ess = bench["measuring"].judged(problem, best)
    assert residual < 0.1
    assert 0 <= gap < 1e-9
    assert 200 < ess < 2000
    other = answer(bench, problem, solver, case)
    residual, gap, _ = bench["measuring"].judged(problem, other)
    assert residual < 0.1
    if solver != "mbi":  # which minimises something else
        np.testing.assert_allclose(other.weights, best.weights, rtol=1e-2)
        assert 0 <= gap < 1e-6


def test_the_tasks_of_peers_are_the_problems(bench: dict[str, ModuleType]):
    for name, make in bench["problems"].PROBLEMS.items():
        case = make(1000)
        task = case.task()
        weights = np.arange(1.0, 1001)
        weights /= weights.sum()
        matrix = bench["problems"].query_matrix(case.problem)
        np.testing.assert_allclose(weights @ matrix, case.problem.means(weights), atol=1e-13)
        if "codes" in task:
            cells, targets = bench["foreign"]._margins(task)
            shares = [np.bincount(cells[table], weights=weights) for table in cells]
            kept = np.concatenate(
                [share[list(targets[t])] for t, share in zip(cells, shares, strict=True)]
            )
            means = case.problem.means(weights)
            np.testing.assert_allclose(kept, means[means > 0], atol=1e-13)
            assert all(sum(row.values()) == pytest.approx(1) for row in targets.values())
        else:
            np.testing.assert_array_equal(bench["foreign"]._queries(task), matrix, err_msg=name)


def test_weights_without_multipliers_have_a_gap(bench: dict[str, ModuleType]):
    case = bench["problems"].margins(2000)
    best = answer(bench, "margins-55", "retilt", case)
    matrix = bench["problems"].query_matrix(case.problem)
    gap = bench["measuring"].dual_gap
    assert gap(replace(best, multipliers=None), matrix) < 1e-9
    rng = np.random.default_rng(0)
    noisy = best.weights * np.exp(0.01 * rng.normal(size=2000))
    away = replace(best, weights=noisy / noisy.sum(), multipliers=None)
    # Half the variance of the noise, less what the queries explain of it.
    assert 3e-5 < gap(away, matrix) < 6e-5
    nothing = replace(away, weights=np.append(np.zeros(1), noisy[1:]))
    assert gap(nothing, matrix) is None


def test_the_gap_bounds_the_distance_from_the_dual_optimum(bench: dict[str, ModuleType]):
    case = bench["problems"].moments(2000)
    best = bench["solvers"].retilt(case)()
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
    outcome = bench["solvers"].retilt_path(bench["problems"].moments(2000))()
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


@pytest.fixture
def rows() -> list[dict]:
    first = {
        "problem": "moments-65",
        "solver": "retilt",
        "rows": 2000,
        "cpu_seconds": 0.5,
        "calls": 3,
        "peak_mib": None,
        "residual": 0.1,
        "gap": None,
        "ess": 10.0,
        "correlation_error": 1e-6,
        "blas_seconds": 0.25,
        "note": "",
    }
    other = {"solver": "ebal", "cpu_seconds": 2.0, "calls": 1, "blas_seconds": None}
    return [first, first | other]


def test_the_text_shows_ratios(bench: dict[str, ModuleType], rows: list[dict]):
    lines = bench["document"].as_text(rows).split("\n")
    assert "ratio" in lines[0]
    assert "2.0 times" in lines[1]
    assert "4.0" in lines[2].split()
    assert "called once" in lines[2]


def test_the_document_keeps_what_is_around_the_table(
    bench: dict[str, ModuleType], rows: list[dict], tmp_path: Path
):
    document, path = bench["document"], tmp_path / "page.md"
    path.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n")
    for _ in range(2):
        document.put_into(path, rows)
        text = path.read_text()
        assert text.startswith(f"before\n{document.BEGIN}\n\n")
        assert text.endswith(f"|\n\n{document.END}\nafter\n")
        assert text.count("| moments-65 | ebal | 2,000 | 2.000 | 4.0 |") == 1
        assert "old" not in text
    path.write_text("no marks")
    with pytest.raises(ValueError, match="each once"):
        document.put_into(path, rows)


def test_a_call_is_repeated_and_what_precedes_it_is_not(bench: dict[str, ModuleType]):
    done = []

    def prepare():
        done.append("prepared")
        return lambda: done.append("solved")

    cost = bench["clock"].measured(prepare)
    assert done == ["prepared", "solved", "solved", "solved"]
    assert cost.calls == 3
    assert cost.cpu_seconds >= 0


# ------------------------------------------------------------------------------ environments


@pytest.fixture
def calls(bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would build an environment, which are not run."""
    environments, made = bench["environments"], []

    def call(name: str, command: list[str]) -> None:
        made.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)

    monkeypatch.setattr(environments, "_call", call)
    peer = environments.Peer(("peer==1.0", "other"))
    monkeypatch.setattr(environments, "PEERS", {"peer": peer})
    return made


def test_an_environment_is_built_once(
    bench: dict[str, ModuleType],
    calls: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    environments = bench["environments"]
    python = environments.environment("peer", tmp_path)
    assert python == tmp_path / "peer" / "bin" / "python"
    assert calls[0] == [sys.executable, "-m", "venv", str(tmp_path / "peer")]
    assert calls[1][:4] == [str(python), "-m", "pip", "install"]
    assert calls[1][-2:] == ["peer==1.0", "other"]
    environments.environment("peer", tmp_path)
    assert len(calls) == 2
    changed = environments.Peer(("peer==2.0",))
    monkeypatch.setattr(environments, "PEERS", {"peer": changed})
    environments.environment("peer", tmp_path)
    assert calls[-1][-1] == "peer==2.0"


def test_what_pip_says_is_told(bench: dict[str, ModuleType]):
    environments = bench["environments"]
    script = "import sys; print('ERROR: no such thing\\nhint', file=sys.stderr); sys.exit(1)"
    with pytest.raises(environments.PeerError, match=r"peer can't be installed: ERROR: no such"):
        environments._call("peer", [sys.executable, "-c", script])


def test_a_peer_for_a_newer_python_looks_for_one(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    environments = bench["environments"]
    late = environments.Peer(("peer==1.0",), python=(3, 99))
    with pytest.raises(environments.PeerError, match=r"needs Python 3\.99 or newer"):
        environments._interpreter("peer", late)
    monkeypatch.setattr(environments.sys, "version_info", (3, 11, 0))
    monkeypatch.setattr(environments.shutil, "which", lambda name: f"/somewhere/{name}")
    monkeypatch.setattr(environments.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(environments, "_runs", lambda python: python.endswith("3.13"))
    newer = environments.Peer(("peer==1.0",), python=(3, 12))
    assert environments._interpreter("peer", newer) == "/somewhere/python3.13"


def test_only_a_python_that_starts_will_do(bench: dict[str, ModuleType]):
    assert bench["environments"]._runs(sys.executable)
    assert not bench["environments"]._runs("false")


def test_a_peer_answers_from_its_own_process(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
):
    """Here with the interpreter of the tests: what crosses is the same."""
    pytest.importorskip("clarabel", reason="clarabel is not installed beside retilt")
    case = bench["problems"].out_of_reach(1000)
    run_there = bench["environments"].run_there
    cost = run_there("clarabel", Path(sys.executable), case.task(), case.task())
    here = bench["foreign"].clarabel(case.task())()
    np.testing.assert_allclose(cost.result.weights, here.weights)
    np.testing.assert_allclose(cost.result.multipliers, here.multipliers)
    assert cost.cpu_seconds > 0
    assert cost.calls == 3
    with pytest.raises(bench["environments"].PeerError, match="unheard-of failed: KeyError"):
        run_there("unheard-of", Path(sys.executable), case.task(), case.task())


@pytest.mark.parametrize(("named", "code"), [((), 0), (("--only", "retilt", "ebal"), 1)])
def test_a_peer_without_environment_is_left_out(
    bench: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: tuple[str, ...],
    code: int,
    rows: list[dict],
):
    module, environments = bench["peers"], bench["environments"]

    def none(name: str) -> Path:
        raise environments.PeerError(f"{name} can't be installed: no")

    monkeypatch.setattr(module, "environment", none)
    monkeypatch.setattr(module, "measure", lambda problem, solver, size, python: rows[0])
    assert module.main(["--quick", "--rows", "2000", *named]) == code
    said = capsys.readouterr()
    assert "left out: ebal can't be installed: no" in said.err
    assert len(json.loads(said.out)) == (1 if named else 2)


def test_a_solver_that_fails_costs_the_exit_code_alone(
    bench: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: list[dict],
):
    module = bench["peers"]

    def measure(problem: str, solver: str, size: int, python: Path | None) -> dict:
        if solver == "highs":
            raise RuntimeError("no end")
        return rows[0]

    monkeypatch.setattr(module, "measure", measure)
    assert module.main(["--problem", "denoise-lp", "--output", "text"]) == 1
    said = capsys.readouterr()
    assert "failed: RuntimeError: no end" in said.err
    assert said.out.count("\n") == 2


# ----------------------------------------------------------------------------------- scaling


def test_the_scaling_is_a_tidy_table(bench: dict[str, ModuleType], tmp_path: Path):
    result = run("scaling", "--rows", "2000", "--queries", "--output", "json")
    assert result.returncode == 0, result.stderr
    (point,) = json.loads(result.stdout)
    assert (point["curve"], point["rows"], point["queries"]) == ("rows", 2000, 65)
    assert 0 <= point["gap"] < 1e-4
    figure = tmp_path / "figures" / "scaling.svg"
    bench["scaling"].draw([point, point | {"curve": "queries", "peak_mib": None}], figure)
    assert "<svg" in figure.read_text()


def test_many_queries_are_fitted_at_a_trade_off(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench["scaling"], "FIXED_ROWS", 1000)
    point = bench["scaling"].measure("queries", 1000, 230)
    assert point["queries"] == 230
    assert 0 <= point["gap"] < 1e-6


def test_quick_scaling_has_the_smaller_sizes_alone(
    bench: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    scaling, asked = bench["scaling"], []
    monkeypatch.setattr(scaling, "_points", lambda *sizes: asked.extend(sizes) or [])
    scaling.main(["--quick"])
    assert asked == [[10_000, 30_000, 100_000, 300_000], [9, 65, 230, 495, 989]]
    assert capsys.readouterr().out.startswith("curve,rows,queries,cpu_seconds")


@pytest.mark.parametrize(("queries", "columns"), [(1, 1), (9, 3), (65, 10), (4_949, 98)])
def test_columns_for_queries(bench: dict[str, ModuleType], queries: int, columns: int):
    assert bench["scaling"].columns_for(queries) == columns
