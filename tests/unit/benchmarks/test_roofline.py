"""What a pass must cost, on a small table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_pass_is_told_beside_its_bound() -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = ["-m", "benchmarks.roofline", "--rows", "9000", "--columns", "3", "--output", "json"]
    found = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(found.stdout)
    assert all(rate > 1e6 for rate in told["machine"].values())
    fold, hessian = told["passes"]
    assert fold["gigabytes"] == 8 * 4 * 9_000 / 1e9
    assert hessian["gigaflops"] == 9 * 10 * 9_000 / 1e9
    for line in told["passes"]:
        assert line["seconds"] > 0
        assert abs(line["times"] - line["seconds"] / line["bound"]) < 1e-9
