from __future__ import annotations

import gzip
import json

import pyarrow.parquet as pq

from retilt.cli import main


def test_demo(tmp_path, capsys):
    folder = tmp_path / "demo"
    assert main(["demo", "--folder", str(folder), "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert len(report["statistics"]) == 10
    assert report["evaluation"]["utility_improvement"]["raw"] > 0.6
    assert report["privacy"]["private"] is True
    with gzip.open(folder / "post.csv.gz", "rt", encoding="utf-8") as file:
        assert sum(1 for _ in file) == 39_074
    assert pq.read_table(folder / "weights.parquet").num_rows == 39_073
    assert "corr(income, sex)" in (folder / "report.html").read_text("utf-8")
    for name in ("plan.json", "answers.json"):
        json.loads((folder / name).read_text("utf-8"))

    # A second run writes over its own files, and says all of it in text.
    assert main(["demo", "--folder", str(folder)]) == 0
    out, _ = capsys.readouterr()
    for words in ("before", "±", "Effective sample size", "Privacy:", "utility improvement"):
        assert words in out


def test_demo_keeps_other_peoples_files(tmp_path, capsys):
    (tmp_path / "plan.json").write_text("mine", "utf-8")
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "plan.json").read_text("utf-8") == "mine"
    assert "plan.json" in capsys.readouterr().err


def test_demo_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    assert main(["demo", "--folder", str(tmp_path / "file")]) == 2
