"""``retilt audit``: what it prints, and what its exit code says."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from retilt.cli import NEVER_PRIVATE, main
from retilt.measures import partitions
from retilt.measures.base import Relation
from retilt.privacy import sensitivity
from retilt.privacy.accounting import Calibration

FEW = ["--draws", "2000", "--pairs", "500", "--seed", "0"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory, tables) -> str:
    path = tmp_path_factory.mktemp("audit") / "plan.json"
    assert main(["plan", str(tables / "synthetic.csv"), "--marginal", "sex", "--schema",
                 str(tables / "schema.toml"), "--epsilon", "2", "--rows", "4000", "-o",
                 str(path), "--quiet"]) == 0  # fmt: skip
    return str(path)


def test_says_what_was_tried_and_what_it_can_not_do(plan, capsys):
    assert main(["audit", plan, *FEW]) == 0
    captured = capsys.readouterr()
    words = " ".join(captured.out.split())
    assert "pairs of invented rows and 21 pairs of whole tables were compared" in words
    assert "lie at 100.00% of what the budget allows, no farther than allowed" in words
    assert "(sex = 'F') in place of (sex = 'M')" in words or "in place of (sex =" in words
    assert "Noise: drawn 2,000 times." in words
    assert "not above the claim, mu = " in words
    assert "can find faults, it can't prove that there are none" in words
    assert "in 100 more for all " in words
    assert " sums, as measure draws them, not too narrow." in words
    assert captured.err == ""


def test_json_is_one_object(plan, capsys):
    assert main(["audit", plan, *FEW, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    assert found["mechanism"] == "discrete-gaussian"
    assert found["sensitivity"]["sums_that_differ"] == 2
    assert found["noise"]["draws"] == 2000
    assert 0 < found["noise"]["implied_epsilon"] < 2


def test_quiet_prints_nothing(plan, capsys):
    assert main(["audit", plan, *FEW, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def too_small(_norm: int, _relation: Relation) -> Fraction:
    return Fraction(1)


def test_a_claim_that_does_not_hold_is_exit_code_3(plan, capsys, monkeypatch):
    monkeypatch.setattr(partitions, "partition_sensitivity", too_small)
    assert main(["audit", plan, *FEW]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert "141.42% of what the budget allows, FARTHER THAN ALLOWED" in words
    assert "does NOT hold" in words


def too_far(rho: float) -> Calibration:
    return Calibration(math.sqrt(4 * rho), math.sqrt(4 * rho))


def test_a_wrong_calibration_is_not_believed(tables, tmp_path, capsys, monkeypatch):
    path = str(tmp_path / "plan.json")
    assert main(["plan", str(tables / "synthetic.csv"), "--marginal", "sex", "--schema",
                 str(tables / "schema.toml"), "--rho", "0.1", "--rows", "4000", "-o", path,
                 "--quiet"]) == 0  # fmt: skip
    monkeypatch.setattr(sensitivity, "calibrate_zcdp", too_far)
    assert main(["audit", path, *FEW]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert "141.42% of what the budget allows, FARTHER THAN ALLOWED" in words
    assert "the claim, mu = 0.4472" in words


@pytest.mark.parametrize("options", [["--draws", "5"], ["--pairs", "0"], ["--seed", "-1"]])
def test_refuses_bad_options(plan, capsys, options):
    assert main(["audit", plan, *options]) == 2
    assert "expected a whole number from" in capsys.readouterr().err


def test_refuses_what_is_no_plan(tables, capsys, tmp_path: Path):
    assert main(["audit", str(tmp_path / "none.json")]) == 2
    assert main(["audit", str(tables / "schema.toml")]) == 2
    assert capsys.readouterr().err.count("error:") == 2


def test_never_sees_the_private_table():
    assert "audit" in NEVER_PRIVATE
