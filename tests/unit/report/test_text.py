from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt.report.plots import log_ticks
from retilt.report.text import decimals_for, number, percent, shortened, spelled_out, width


@given(st.text(st.characters(), max_size=50), st.integers(2, 30))
def test_shortened_text_fits_and_is_the_beginning(text: str, limit: int) -> None:
    short = shortened(text, limit)
    assert short == "(empty)" if not text else width(short) <= limit
    if text and short.endswith("…"):
        assert spelled_out(text).startswith(short[:-1])
    elif text:
        assert short == spelled_out(text)
    short.encode("utf-8")


@given(
    st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf]), st.none() | st.integers(0, 9)
)
def test_numbers_are_short_and_true(value: float, decimals: int | None) -> None:
    text = number(value, decimals)
    assert len(text) <= 30
    if math.isfinite(value) and decimals is None:
        read = float(text.replace("−", "-").replace(",", ""))
        assert read == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.9995, "1"), (1234.5, "1,234"), (1e15, "1e15"), (-0.0, "0"), (None, "–"), (-9e-6, "−9e−6")],
)
def test_numbers(value: float | None, expected: str) -> None:
    assert number(value) == expected


@given(st.floats(1e-9, 1e11))
def test_two_digits_of_an_error_show(error: float) -> None:
    decimals = decimals_for(error)
    assert decimals is not None
    shown = float(number(error, decimals).replace(",", ""))
    assert shown == pytest.approx(error, rel=0.06 if error >= 10 else 0.051)


@pytest.mark.parametrize("error", [0.0, math.nan, math.inf, -1.0, 1e-300, 1e300])
def test_an_error_without_digits_gives_no_decimals(error: float) -> None:
    assert decimals_for(error) is None


@given(st.floats(0, 1))
def test_a_share_is_nought_or_all_only_if_it_is(share: float) -> None:
    shown = percent(share)
    assert (shown == "0 %") == (share == 0)
    assert (shown == "100 %") == (share == 1)


@given(st.floats(-250, 250), st.floats(0.01, 40))
def test_ticks_are_few_and_inside(low: float, length: float) -> None:
    ticks = log_ticks(low, low + length)
    assert 1 <= len(ticks) <= 14
    assert all(low - 0.01 <= math.log10(tick) <= low + length + 0.01 for tick in ticks)
    assert ticks == sorted(ticks)
