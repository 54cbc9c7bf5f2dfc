"""A slice of what ``make fuzz`` does, without its limits of time, which a test must not have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading import load

readers: Any = load(Path(__file__).with_name("readers.py"))
KINDS = list(readers.READERS)


@pytest.fixture(scope="module")
def files() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = readers.corpus()
    return found


def outcome_of(kind: str, raw: bytes, folder: Path) -> str:
    path = folder / "file"
    path.write_bytes(raw)
    told: str = readers.attempt(kind, path)[0]
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_valid_are_read(
    kind: str, files: dict[str, list[bytes]], tmp_path: Path
) -> None:
    for raw in files[kind]:
        assert outcome_of(kind, raw, tmp_path) == "read"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_files_of_another_kind_are_refused(
    kind: str, other: str, files: dict[str, list[bytes]], tmp_path: Path
) -> None:
    same = {kind, other} <= {"answers", "published"}  # one reader takes both
    for raw in files[other]:
        told = outcome_of(kind, raw, tmp_path)
        assert told.startswith("refused") or kind == other or (same and kind == "published")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rng=st.randoms(use_true_random=False))
def test_any_edit_is_read_or_refused(
    kind: str, files: dict[str, list[bytes]], tmp_path: Path, rng: random.Random
) -> None:
    told = outcome_of(kind, readers.mutate(rng, files, kind, huge=False), tmp_path)
    assert not told.startswith("failed")


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_without_its_value(
    kind: str, files: dict[str, list[bytes]], tmp_path: Path
) -> None:
    """A file cut off anywhere, and with any short piece left out."""
    raw = min(files[kind], key=len)
    step = max(1, len(raw) // 60)
    for at in range(0, len(raw), step):
        for cut in (raw[:at], raw[:at] + raw[at + step :], raw[:at] + b"\x00" + raw[at:]):
            assert not outcome_of(kind, cut, tmp_path).startswith("failed")


def test_some_hundred_files(tmp_path: Path) -> None:
    found = readers.fuzz(20_260, 400, tmp_path, judge=readers.attempt, huge=False)
    assert found["failures"] == []
    assert sum(found["outcomes"].values()) == 400
    assert {name.partition(": ")[0] for name in found["outcomes"]} == set(KINDS)


@pytest.mark.slow
def test_ten_thousand_files(tmp_path: Path) -> None:
    assert readers.fuzz(7, 10_000, tmp_path, judge=readers.attempt)["failures"] == []
