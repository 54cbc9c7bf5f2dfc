"""The noise's only door: what is let through to OpenDP, and how."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from retilt.exceptions import PrivacyError
from retilt.privacy import mechanism
from retilt.privacy.mechanism import MAX_SCALE, discrete_gaussian, discrete_laplace

SAMPLERS = (discrete_gaussian, discrete_laplace)


@pytest.mark.parametrize("draw", SAMPLERS)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf, MAX_SCALE * 2])
def test_scales_that_are_no_noise_are_refused(draw: object, bad: float) -> None:
    for scales in ([bad], [1e4, bad], [bad, 1e4]):
        with pytest.raises(PrivacyError, match="scale"):
            draw(scales)  # type: ignore[operator]


@pytest.mark.parametrize("draw", SAMPLERS)
def test_one_integer_for_each_scale(draw: object) -> None:
    for scales in ([], [1e4], [1e4, 2e4, 1e4], [MAX_SCALE] * 3):
        drawn = draw(scales)  # type: ignore[operator]
        assert len(drawn) == len(scales)
        assert all(type(z) is int for z in drawn)


def test_the_largest_scale_never_saturates() -> None:
    """OpenDP's 64-bit addition saturates silently; at the largest scale nothing comes near."""
    for draw in SAMPLERS:
        assert max(map(abs, draw([MAX_SCALE] * 2000))) < 2**62


def test_opendp_is_imported_in_one_module() -> None:
    source = Path(mechanism.__file__).parents[1]
    importers = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(n.split(".")[0] == "opendp" for n in names):
                importers.add(path.name)
    assert importers == {"mechanism.py"}
