"""Runs of generators in a process of their own, by a stub that speaks the same protocol."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.datasets import ADULT, HOME_CREDIT, MUSHROOM, UCI
from experiments.description import Description, Listed, Number
from experiments.generators import smartnoise
from experiments.generators.protocol import Generator, GeneratorError
from experiments.generators.smartnoise import ENVIRONMENT, WORKER, SmartNoise
from experiments.published import Split
from loading import load

from experiments import generate

STUB = Path(__file__).with_name("stub_worker.py")
SAID = Description({"age": Number(0, 90, (0, 30, 60, 90), integer=True), "sex": Listed(("F", "M"))})
TABLE = pd.DataFrame({"age": [12, 45, 45, 80], "sex": list("FMFM")})


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a virtual environment's, whose Python is this one."""
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def stub(environment: Path) -> SmartNoise:
    """A generator that hands back its rows."""
    return SmartNoise(name="MST", environment=environment, worker=STUB)


# --- one process ---------------------------------------------------------------------------------


def test_rows_go_there_as_codes_and_come_back_as_values(stub: SmartNoise) -> None:
    generator: Generator = stub
    with closing(generator.fit(TABLE, SAID, epsilon=2.0)) as fitted:
        found = fitted.sample(6)
        assert found["age"].to_list() == [14, 44, 44, 74, 14, 44]
        assert found["sex"].to_list() == list("FMFMFM")
        assert found.dtypes.to_list() == TABLE.dtypes.to_list()
        assert fitted.record["seen"] == {"age": 3, "sex": 2}
        assert fitted.record["sampling_cpu_seconds"] == 1.25
        assert (fitted.claim.epsilon, fitted.claim.delta) == (2.0, 1e-9)
        assert "one row added or removed" in fitted.claim.really


def test_gans_get_numbers_scaled_by_their_bounds(stub: SmartNoise) -> None:
    with closing(replace(stub, name="PATECTGAN").fit(TABLE, SAID, epsilon=1.0)) as fitted:
        assert fitted.record["seen"] == {"age": None, "sex": 2}
        pd.testing.assert_frame_equal(fitted.sample(4), TABLE)
        assert "not evidence about privacy" in fitted.claim.really


def test_the_process_knows_nothing_of_this_project_and_takes_one_thread(
    stub: SmartNoise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    with closing(replace(stub, log=tmp_path / "log").fit(TABLE, SAID, epsilon=1.0)) as fitted:
        assert fitted.record["isolated"] == 1
        assert fitted.record["threads"] == "1"
    assert "a library's own words" in (tmp_path / "log").read_text()


def test_closing_ends_the_process_and_its_files(stub: SmartNoise) -> None:
    fitted = stub.fit(TABLE, SAID, epsilon=1.0)
    process, table = fitted._process, fitted._table
    assert process.poll() is None
    assert table.exists()
    fitted.close()
    assert process.poll() is not None
    assert not table.parent.exists()


def test_what_fails_there_is_told(stub: SmartNoise, tmp_path: Path) -> None:
    with pytest.raises(
        GeneratorError, match=r"^DPCTGAN failed: RuntimeError in dpctgan.py, line 7"
    ):
        replace(stub, name="DPCTGAN").fit(TABLE, SAID, epsilon=1.0)
    with pytest.raises(GeneratorError, match=r"^AIM: its process ended with 3\.$"):
        replace(stub, name="AIM").fit(TABLE, SAID, epsilon=1.0)
    with pytest.raises(GeneratorError, match=r"no environment at .*`make experiments-env`"):
        replace(stub, environment=tmp_path / "none").fit(TABLE, SAID, epsilon=1.0)


# --- the worker itself ---------------------------------------------------------------------------


def test_the_worker_tells_an_errors_kind_and_place_but_not_its_text(
    environment: Path, tmp_path: Path
) -> None:
    """SmartNoise is not installed beside retilt, so that the import fails."""
    generator = SmartNoise(name="MST", environment=environment, log=tmp_path / "log")
    with pytest.raises(GeneratorError) as told:
        generator.fit(TABLE, SAID, epsilon=1.0)
    assert str(told.value).startswith("MST failed: ModuleNotFoundError in worker.py, line ")
    assert "snsynth" not in str(told.value)
    assert "snsynth" in (tmp_path / "log").read_text()


class Echo:
    """A fitted model that gives back a table, and breaks after it."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._table = table

    def sample(self, rows: int) -> Any:
        if rows > len(self._table):
            raise ValueError("a row: 12, F")
        return self._table.head(rows).to_numpy()


def test_the_worker_answers_each_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = load(WORKER)
    fit = lambda table, request: (Echo(table), {"delta": 0.5, "spent": float("nan")})  # noqa: E731
    monkeypatch.setitem(worker.FITS, "MST", fit)
    path = tmp_path / "table.parquet"
    SAID.codes(TABLE).to_parquet(path)
    fitting = {"do": "fit", "mechanism": "MST", "table": str(path), "levels": {}, "epsilon": 1.0}
    drawing = [{"do": "sample", "rows": rows, "table": str(path)} for rows in (2, 9)]
    lines = [json.dumps(request) for request in [fitting, *drawing]]
    answers: list[dict[str, Any]] = []
    worker.serve(io.StringIO("\n".join(lines)), answers.append)
    fitted, drawn, failed = answers
    assert fitted["done"]["delta"] == 0.5
    assert "spent" not in fitted["done"]  # JSON has no word for it
    assert fitted["done"]["versions"]["numpy"] == np.__version__
    assert fitted["done"]["peak_megabytes"] > 10
    assert set(drawn["done"]) == {"wall_seconds", "cpu_seconds", "peak_megabytes"}
    assert pd.read_parquet(path).to_dict("list") == {"age": [0, 1], "sex": [0, 1]}
    assert failed["failed"].startswith("ValueError in test_generate.py, line ")


def test_the_worker_shows_every_code_to_a_transformer() -> None:
    rows = load(WORKER)._all_codes({"sex": 2, "age": None, "city": 5})
    assert sorted(rows["city"]) == [0, 1, 2, 3, 4]
    assert sorted(set(rows["sex"])) == [0, 1]
    assert (rows["age"] == 0).all()


def test_the_worker_imports_nothing_of_this_project_but_gem() -> None:
    text = WORKER.read_text()
    assert "import retilt" not in text
    assert "from retilt" not in text
    named = [line.strip() for line in text.split('"""', 2)[2].splitlines() if "experiments" in line]
    assert named == ["from experiments.generators import gem"]


# --- all runs ------------------------------------------------------------------------------------


def test_there_are_68_runs_of_their_own_paths() -> None:
    runs = list(generate.all_runs())
    assert len({run.path for run in runs}) == len(runs) == 68
    assert {run.data_set for run in runs} == {*UCI, HOME_CREDIT}
    assert [run.times for run in runs if run.mechanism == "GEM"] == [1] * 4
    assert {run.mechanism for run in runs} == set(smartnoise.PRIVACY)
    assert str(generate.Run(ADULT, "MST", 1).path) == "Adult/MST-eps1.parquet"


def test_settings_leave_aim_a_third_of_its_budget_for_pairs() -> None:
    """One-way tables take 0.9 columns / rounds of it."""
    for data_set in UCI:
        settings = generate.Run(data_set, "AIM", 1).settings
        assert 0.9 * len(data_set.schema().entries) / settings["rounds"] < 2 / 3
    assert generate.Run(ADULT, "MST", 1).settings == {}


@pytest.fixture
def perform(environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """All runs of a word on a made-up mushroom table, by the stub."""
    said = MUSHROOM.description()
    rows = pd.DataFrame({n: np.arange(20) % c.levels for n, c in said.columns.items()})
    train = said.values_of(rows)
    monkeypatch.setattr(
        "experiments.datasets.DataSet.split", lambda self, data: Split(train, train.head(0))
    )
    real = generate.SmartNoise
    monkeypatch.setattr(generate, "SmartNoise", lambda **given: real(**given, worker=STUB))

    def do(*words: str) -> int:
        runs = [r for r in generate.all_runs() if any(w in str(r.path) for w in words)]
        assert runs
        return generate.perform(runs, data=None, output=tmp_path, environment=environment, jobs=1)

    return do


def test_a_table_and_its_sidecar(perform: Any, tmp_path: Path) -> None:
    assert perform("Mushroom/MST-eps1", "Mushroom/MST-eps2") == 0
    table = tmp_path / "Mushroom" / "MST-eps1.parquet"
    found = pd.read_parquet(table)
    assert len(found) == 5 * 20
    assert list(found.columns) == list(MUSHROOM.description().columns)
    told = json.loads(table.with_suffix(".json").read_text())
    assert told["status"] == "done"
    assert told["sha256"] == generate.sha256(table)
    assert (told["data_set"], told["mechanism"], told["epsilon"]) == ("Mushroom", "MST", 1)
    assert (told["train_rows"], told["rows"], told["delta"]) == (20, 100, 1e-9)
    assert told["versions"] == {"stub": "1"}
    assert (told["wall_seconds"], told["cpu_seconds"], told["peak_megabytes"]) == (1.5, 1.25, 7)
    assert "added or removed" in told["privacy"]
    assert len(pd.read_parquet(tmp_path / "Mushroom" / "MST-eps2.parquet")) == 20


def test_what_is_done_is_not_done_again(
    perform: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    perform("Mushroom/MST-eps1", "Mushroom/MST-eps2")
    first, second = (tmp_path / "Mushroom" / f"MST-eps{e}.parquet" for e in (1, 2))
    before = first.stat().st_mtime_ns
    second.write_bytes(second.read_bytes()[:-1])  # broken off, or changed later
    capfd.readouterr()
    assert perform("Mushroom/MST-eps1", "Mushroom/MST-eps2") == 0
    assert "2 runs, 1 done already, 1 to do" in capfd.readouterr().err
    assert first.stat().st_mtime_ns == before
    assert generate.is_done(second)


def test_a_failed_run_is_recorded_and_does_not_stop_the_rest(
    perform: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert perform("Mushroom/MST-eps3", "Mushroom/AIM-eps1", "Mushroom/DPCTGAN-eps2") == 2
    folder = tmp_path / "Mushroom"
    assert generate.is_done(folder / "MST-eps3.parquet")
    for name, error in (
        ("AIM-eps1", "AIM: its process ended with 3."),
        ("DPCTGAN-eps2", "DPCTGAN failed: RuntimeError in dpctgan.py, line 7."),
    ):
        told = json.loads((folder / f"{name}.json").read_text())
        assert (told["status"], told["error"]) == ("failed", error)
        assert not (folder / f"{name}.parquet").exists()
        assert not generate.is_done(folder / f"{name}.parquet")
        assert "a library's own words" in (folder / f"{name}.log").read_text()
    assert "3 runs, 0 done already" in capfd.readouterr().err


def test_a_word_that_names_no_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", "--only", "Iris", "JAM"])
    with pytest.raises(SystemExit) as ended:
        generate.main()
    assert ended.value.code == 2
    assert "no run is named Iris or JAM: try Adult, MST" in capfd.readouterr().err


# --- the real mechanisms -------------------------------------------------------------------------


@pytest.fixture
def installed() -> Path:
    """The generators' own environment, which is not made for the tests."""
    environment = Path(os.environ.get("EXPERIMENTS_ENV", ENVIRONMENT))
    if not environment.is_dir():
        pytest.skip("needs the generators' environment: make experiments-env")
    return environment


@pytest.mark.slow
@pytest.mark.parametrize("name", list(smartnoise.PRIVACY))
def test_every_mechanism_fits_and_draws(name: str, installed: Path) -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 3, 2_000)
    second = np.where(rng.random(2_000) < 0.7, first, rng.integers(0, 3, 2_000))
    values = np.array(["x", "y", "z"])
    table = pd.DataFrame(
        {"first": values[first], "second": values[second], "size": rng.uniform(0, 9, 2_000)}
    )
    xyz = Listed(("x", "y", "z"))
    size = Number(0, 9, (0.0, 3.0, 6.0, 9.0), integer=False)
    said = Description({"first": xyz, "second": xyz, "size": size})
    settings = {"AIM": {"rounds": 30, "max_model_size": 4}, "DPCTGAN": {"epochs": 2}}.get(name, {})
    generator = SmartNoise(name=name, settings=settings, environment=installed)
    # PATECTGAN learns until its budget is gone: minutes, were it as large.
    epsilon = 20.0 if name in smartnoise.BINNED else 1.0
    with closing(generator.fit(table, said, epsilon=epsilon)) as fitted:
        found = fitted.sample(20_000)
    assert found.shape == (20_000, 3)
    assert set(found["first"]) | set(found["second"]) <= set("xyz")
    assert found["size"].between(0, 9).all()
    if name in ("AIM", "MST"):
        shares = [t.groupby(["first", "second"]).size() / len(t) for t in (table, found)]
        assert shares[0].sub(shares[1], fill_value=0).abs().sum() / 2 < 0.03


@pytest.mark.slow
def test_rows_follow_a_model_whose_graph_has_a_cycle(installed: Path) -> None:
    """Those that mbi draws do not: once they do, the worker may call it."""
    done = subprocess.run(
        [str(installed / "bin" / "python"), "-I", str(STUB.with_name("cycle.py")), str(WORKER)],
        capture_output=True,
        check=True,
        text=True,
    )
    distances = json.loads(done.stdout)
    assert distances["worker"] < 0.02
    assert distances["sample"] > 0.04
    assert distances["round"] > 0.08
