"""Files of weights that the command line writes keep the bounds that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from retilt.cli import main

MEASURES = ["--correlate", 'age,"hours, weekly",income', "--marginal", "sex"]
BOUNDS = ["--min-weight", "0.8", "--max-weight", "1.25"]


@pytest.fixture
def run(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    files = [str(tables / name) for name in ("private.csv", "synthetic.csv")]
    schema = ["--schema", str(tables / "schema.toml"), "--epsilon", "2", "--seed", "0"]
    return ["run", *files, *MEASURES, *schema, "--quiet"]


def least_and_most(path: Path) -> tuple[float, float]:
    table = pq.read_table(path) if path.suffix == ".parquet" else pc.read_csv(path)
    weights = table["weight"].to_numpy()
    assert len(weights) == 4000
    assert weights.mean() == pytest.approx(1, abs=1e-12)
    return float(weights.min()), float(weights.max())


@pytest.mark.parametrize("name", ["w.csv", "w.csv.gz", "w.parquet"])
def test_files_of_weights_keep_the_bounds(run: list[str], name: str, tmp_path: Path) -> None:
    outputs = ["--weights", name, "--answers", "a.json", "-o", "post.csv", "--tilt", "t.json"]
    main([*run, *BOUNDS, *outputs])
    least, most = least_and_most(tmp_path / name)
    assert 0.8 <= least < 0.801
    assert 1.249 < most <= 1.25
    # The same by the steps, and from the tilt.
    fit = ["fit", run[2], "a.json", *BOUNDS, "--seed", "0", "--quiet"]
    main([*fit, "--weights", f"2{name}", "-o", "2.csv"])
    assert least_and_most(tmp_path / f"2{name}") == (least, most)
    assert main(["sample", run[2], "t.json", "--seed", "0", "-o", "3.csv", "--quiet"]) == 0
    post = (tmp_path / "post.csv").read_bytes()
    assert (tmp_path / "2.csv").read_bytes() == (tmp_path / "3.csv").read_bytes() == post
    bounds = json.loads((tmp_path / "t.json").read_text("utf-8"))["bounds"]
    assert bounds == {"min_weight": 0.8, "max_weight": 1.25}


def test_without_bounds_the_weights_go_farther(run: list[str], tmp_path: Path) -> None:
    assert main([*run, "--weights", "w.csv"]) == 0
    least, most = least_and_most(tmp_path / "w.csv")
    assert least < 0.8
    assert most > 1.25


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--max-weight", "1"], "max_weight: got 1.0, expected a number from 1.000001"),
        (["--max-weight", "nan"], "max_weight: got nan"),
        (["--min-weight", "1.5"], "min_weight: got 1.5, expected a number from 0 to 0.999999"),
        (["--method", "paper", "--max-weight", "2"], "the paper's method has no bounds"),
    ],
)
def test_bounds_that_leave_no_room_are_refused_before_anything_is_spent(
    run: list[str],
    wrong: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("retilt.pipeline.measure", lambda *_, **__: pytest.fail("measured"))
    assert main([*run, *wrong, "-o", "post.csv"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
