"""Generators' tables put into the repository: their first rows, their sidecar, nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from experiments.generate import is_done

from experiments import keep


def made(folder: Path, name: str, rows: int) -> Path:
    table = folder / name
    table.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"class": ["e", "p"] * (rows // 2)}).to_parquet(table, index=False)
    told = {
        "status": "done",
        "rows": rows,
        "train_rows": rows // 5,
        "sha256": hashlib.sha256(table.read_bytes()).hexdigest(),
        "privacy": "none",
    }
    table.with_suffix(".json").write_text(json.dumps(told))
    return table


def test_the_first_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = tmp_path / "generated", tmp_path / "data"
    made(source, "Mushroom/MST-eps1.parquet", 100)
    made(source, "home-credit/GEM-eps1.parquet", 100)
    made(source, "Adult/MST-eps1.parquet", 100).write_bytes(b"broken")
    monkeypatch.setattr("sys.argv", ["keep", str(source), "--to", str(to)])
    keep.main()
    kept = [path.relative_to(to).as_posix() for path in sorted(to.rglob("*.parquet"))]
    assert kept == ["Mushroom/MST-eps1.parquet"]
    table = to / kept[0]
    assert pd.read_parquet(table)["class"].tolist() == ["e", "p"] * 10
    told = json.loads(table.with_suffix(".json").read_text())
    assert (told["rows"], told["drawn"], told["privacy"]) == (20, 100, "none")
    assert is_done(table)
