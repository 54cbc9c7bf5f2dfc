"""No sum of a table overflows, up to ten thousand million rows, or the plan is refused unread.

What is between a row and the file: float64 sums of one chunk, whose every partial sum is an
integer below 2**53; chunks added up in Python integers; counts of cells in 64-bit integers;
factors multiplied in Python integers; 64-bit noise; at most 59 digits in the file.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import retilt as rt
from retilt import persons, pipeline
from retilt.exceptions import PrivacyError, WorkloadError
from retilt.measures import grouped, moments
from retilt.privacy import sensitivity
from retilt.privacy.answers import load_answers, make_answers
from retilt.privacy.mechanism import MAX_SCALE
from retilt.privacy.sensitivity import LARGEST_UNIT, MOST_DIGITS, MOST_ROWS

CODES = tuple(range(2**15 + 1))
SCHEMA: dict[str, Any] = {
    "fine": rt.Numeric(0.0, 1.0),
    "codes": rt.Categorical(CODES),
    "flag": rt.Boolean(),
}
SYNTHETIC = pa.table(
    {"fine": [0.0, 1.0, 0.5], "codes": [0.0, 5.0, 2.0**15], "flag": [True, False, True]}
)
LARGEST = rt.moments(["fine", "codes"])
"""The finest grid and the most codes: their products are the largest units there are."""


def plan_of(workload: rt.Workload = LARGEST, **options: Any) -> rt.Plan:
    return rt.plan(
        SYNTHETIC, workload, schema=SCHEMA, **{"rows": 3, "epsilon": 1.0, "delta": 0.0, **options}
    )


BASES = ("centred", "paper")


# --- one chunk ----------------------------------------------------------------------------


@pytest.mark.parametrize("basis", BASES)
def test_the_largest_units_fit_a_chunk(basis: str) -> None:
    units = plan_of(basis=basis).queries.units
    assert max(units) == (LARGEST_UNIT if basis == "paper" else LARGEST_UNIT // 4)
    for chunk in (moments._CHUNK, grouped._CHUNK):
        assert chunk * LARGEST_UNIT <= 2**53


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_a_whole_chunk_at_an_end_is_exact(basis: str, end: float) -> None:
    plan, rows = plan_of(basis=basis, unit="add-remove"), moments._CHUNK + 1
    table = {"fine": np.full(rows, end), "codes": np.full(rows, end * 2**15)}
    sums = pipeline.exact_sums(pa.table(table), plan)
    one = pipeline.exact_sums(pa.table(table).slice(0, 1), plan)
    assert sums == [rows * s for s in one]


def test_more_categories_are_refused_by_the_plan() -> None:
    schema = {**SCHEMA, "codes": rt.Categorical((*CODES, 2**15 + 1))}
    with pytest.raises(WorkloadError, match=r"more than 32,769 categories"):
        rt.plan(SYNTHETIC, LARGEST, schema=schema, rows=3, epsilon=1.0, delta=0.0)


def test_larger_units_are_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    monkeypatch.setattr(sensitivity, "LARGEST_UNIT", 2**20)
    refused_unread(replace(plan), monkeypatch, "beyond which sums are not exact")


# --- many chunks --------------------------------------------------------------------------


class Chunks:
    """A column of ten thousand million rows whose chunks' sums are the largest there can be.

    A chunk's sum of products is 2**52 at most; one row of 2**26 stands for such a chunk.
    """

    def __len__(self) -> int:
        return MOST_ROWS

    def __getitem__(self, part: slice) -> NDArray[np.int32]:
        return np.full(1, 2**26, dtype=np.int32)


def test_moments_of_all_chunks_do_not_overflow() -> None:
    (block,) = plan_of().queries.blocks
    chunks = math.ceil(MOST_ROWS / moments._CHUNK)
    total = chunks * 2**52
    assert total > 2**63
    sums = block.sums([Chunks(), Chunks()])  # type: ignore[list-item]
    assert sums[:2] == [chunks * 2**26] * 2
    assert sums[2:] == [total] * 3


def test_groups_of_all_chunks_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = plan_of(rt.moments(["fine"], by="flag")).queries.blocks
    chunks = math.ceil(MOST_ROWS / grouped._CHUNK)
    most = np.full(len(block.keys), 2**52, dtype=np.int64)
    monkeypatch.setattr(grouped, "_CHUNK", 1)
    monkeypatch.setattr(type(block), "_chunk_sums", lambda *_: most)
    sums = block.sums([np.zeros(chunks, np.int32)] * len(block.features))
    assert sums == [chunks * 2**52] * len(sums)


def test_cells_are_counted_in_64_bits() -> None:
    (block,) = plan_of(rt.marginal(["flag"])).queries.blocks
    arrays = [np.zeros(3, np.int32)] * len(block.features)
    assert block.counts(arrays).dtype == np.int64  # type: ignore[attr-defined]
    assert all(type(s) is int for s in block.sums(arrays))


# --- factors, noise, the file -----------------------------------------------------------------


def loudest() -> rt.Plan:
    """Of the largest budget that is not refused, but for a factor of two."""
    plan = plan_of()
    for power in range(400):
        louder = replace(plan, budget=rt.PureDP(2.0**power))
        try:
            _ = louder.noise
        except PrivacyError:
            return replace(plan, budget=rt.PureDP(2.0 ** (power - 1)))
    raise AssertionError("no budget was refused")


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integers_of_the_largest_budget_come_back(tmp_path: Path, sign: int) -> None:
    plan = loudest()
    values = [sign * (MOST_ROWS * step + 2**63) for step in plan.noise.steps]
    assert max(len(str(abs(v))) for v in values) == MOST_DIGITS
    answers = make_answers(plan, values, private=True)
    answers.save(tmp_path / "answers.json")
    back = load_answers(tmp_path / "answers.json")
    assert list(back.values) == values
    assert np.isfinite(back.means).all()


def test_noise_of_the_largest_scale_stays_far_from_64_bits() -> None:
    """Of Laplace noise, whose tails are heavier, 2**63 is exceeded once in e**128 times."""
    assert 2**63 / MAX_SCALE >= 128


def refused_unread(plan: rt.Plan, patch: pytest.MonkeyPatch, why: str) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the private table was opened")

    patch.setattr(pipeline, "open_table", opened)
    with pytest.raises(PrivacyError, match=why):
        rt.measure(SYNTHETIC, plan)


def test_a_budget_whose_sums_are_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in (rt.PureDP(1e60), rt.ApproxDP(1e200, 1e-9), rt.ZCDP(1e300)):
        with monkeypatch.context() as patch:
            refused_unread(replace(plan_of(), budget=budget), patch, "need more than 59 digits")
    with pytest.raises(PrivacyError, match="protects nothing"):
        plan_of(epsilon=1e60)


@pytest.mark.parametrize("rows", [2**63, 10**400])
def test_more_rows_than_can_be_counted_are_refused(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_unread(replace(plan_of(), rows=rows), monkeypatch, "overflow 64-bit counts")


def test_the_plan_s_own_rows_count_where_they_are_more() -> None:
    plan = loudest()
    assert plan.noise is not None
    with pytest.raises(PrivacyError, match="digits"):
        _ = replace(plan, rows=2**62).noise


# --- persons ------------------------------------------------------------------------------


def test_copies_are_numbered_whatever_the_number_of_persons_and_contents() -> None:
    """Their product could not be held in 64 bits from three thousand million rows on."""
    numbers = np.array([2**62, 3, 2**62, 2**61, 3, 2**62], np.intp)
    ranks = np.array([7, 7, 7, 7, 2**62, 1], np.intp)
    assert persons._copies(numbers, ranks).tolist() == [0, 0, 1, 0, 0, 0]
    none = np.zeros(0, np.intp)
    assert persons._copies(none, none).tolist() == []


@pytest.mark.parametrize("rows", [0, 1, 400])
def test_persons_beyond_32_bits_are_numbered_alike(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    texts = [None if i % 9 == 0 else f"{i * i}é" for i in rng.integers(60, size=rows).tolist()]
    who = pa.chunked_array([pa.array(texts, pa.string())])
    contents = [rng.integers(5, size=rows).astype(np.int32)]
    usual = persons.chosen_rows(who, contents, max_rows=2, key="k")
    monkeypatch.setattr(persons, "_INDEXED", -1)
    assert persons.chosen_rows(who, contents, max_rows=2, key="k").tolist() == usual.tolist()
