"""A tilt's file from an adversary: refused with a clear error, or harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from editing import edited

import retilt as rt
from retilt._tiltfile import tilt_content
from retilt.exceptions import FormatError, InputError

TABLE = pa.table({"age": [17.0, 30, 44, 58, 71, 90] * 4, "sex": ["F", "M", "M"] * 8})


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    workload = rt.means("age", by="sex") + rt.marginal(["sex"])
    made = rt.plan(TABLE, workload, epsilon=1.0, delta=1e-6, rows=24)
    content: dict[str, Any] = json.loads(
        json.dumps(rt.fit(TABLE, rt.measure(TABLE, made)).to_dict())
    )
    return content


def test_the_good_one_is_good(good: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(good))
    assert rt.load_tilt(tmp_path / "t.json", TABLE).to_dict().keys() == good.keys()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "retilt-tilt/2"),
        ("format", [[]]),
        ("surprise", 1),
        ("rows", {"count": 24}),
        ("rows.sha256", 3),
        ("rows.surprise", 1),
        ("base_weights", None),
        ("base_weights.used", 1),
        ("base_weights.column", 3),
        ("base_weights.column", ["age"]),
        ("method", "default"),
        ("method.name", "other"),
        ("method.name", ["default"]),
        ("method.denoise", [1]),
        ("method.denoise", "x" * 1_000),
        ("multipliers", "123"),
        ("multipliers.0", "1.5"),
        ("multipliers.0", True),
        ("multipliers.0", None),
        ("multipliers.0", 1e61),
        ("multipliers.0", [1.0]),
        ("aim.0", -1e300),
        ("insistent.0", 1e100),
        ("tolerance", 1.0),
        ("tolerance", "0"),
        ("eta", 0),
        ("eta", -1.0),
        ("eta", 1e-300),
        ("eta", 1e300),
        ("eta", "inf"),
        ("status", "fine"),
        ("status", ["converged"]),
        ("status", None),
        ("released", [0.5]),
        ("released", [True]),
        ("released", "0"),
        ("path", {}),
        ("path", [{}]),
        ("path.0.rows", 1.5),
        ("path.0.rows", -1),
        ("path.0.chosen", 1),
        ("path.0.misfit", "1"),
        ("path.0.surprise", 1),
        ("guards", []),
        ("guards", {"schema": {}, "measures": []}),
        ("answers", []),
        ("answers.plan", []),
        ("answers.format", "other"),
    ],
)
def test_what_does_not_belong_is_refused(good: dict[str, Any], path: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        tilt_content(edited(good, path, value))
    assert 0 < len(str(caught.value)) < 500


def test_every_key_is_needed(good: dict[str, Any]) -> None:
    for key in good:
        with pytest.raises(InputError):
            tilt_content({k: v for k, v in good.items() if k != key})


def test_a_path_of_many_points_is_refused(good: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="at most 1,000"):
        tilt_content(edited(good, "path", good["path"][:1] * 1_001))


@pytest.mark.parametrize("value", [1e60, -1e60, 1e-300, 5e-324, 0.0])
@pytest.mark.parametrize("key", ["multipliers", "aim", "insistent"])
@pytest.mark.parametrize("eta", [1e60, 1e-30, None])
def test_any_numbers_that_are_taken_are_computed_with(
    good: dict[str, Any], key: str, value: float, eta: float | None, tmp_path: Path
) -> None:
    """Without an overflow: warnings are errors here."""
    # As if for other rows: of its own, the file would be refused as edited.
    content = edited(edited(good, "eta", eta), "rows.sha256", "0" * 64)
    for place in range(len(content[key])):
        (tmp_path / "t.json").write_text(json.dumps(edited(content, f"{key}.{place}", value)))
        tilt = rt.load_tilt(tmp_path / "t.json", TABLE)
        assert (tilt.weights >= 0).all()
        json.dumps(tilt.to_dict(), allow_nan=False)
