"""Names and numbers as the page shows them. Names are hostile: anybody may have chosen them."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"  # emoji and Persian are spelt with them


def spelled_out(text: object) -> str:
    r"""Text without letters that could steer the page or be illegal in it.

    Control characters, those that turn the direction of writing, line and paragraph
    separators, lone surrogates and non-characters become their code points.

    Examples
    --------
    >>> spelled_out("a\x00b\u202ec"), spelled_out("")
    ('a[U+0000]b[U+202E]c', '')
    """
    return "".join(f"[U+{ord(c):04X}]" if _unsafe(c) else c for c in str(text))


def _unsafe(letter: str) -> bool:
    if letter.isascii():
        return not letter.isprintable()
    if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter not in _JOINERS
    code = ord(letter)
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def width(text: str) -> int:
    """Columns that a text takes in even type: two for the wide letters of East Asia.

    >>> width("ab"), width("表")
    (2, 2)
    """
    return sum(_width(letter) for letter in text)


def _width(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def shortened(text: object, limit: int) -> str:
    """Text spelled out, cut with an ellipsis to a width of ``limit``.

    >>> shortened("education", 5), shortened("", 5)
    ('educ…', '(empty)')
    """
    # Every letter is at least one wide, so that what is cut here would be cut below.
    spelled = spelled_out(str(text)[: limit + 1])
    if not spelled:
        return "(empty)"
    taken, total = 0, 0
    for letter in spelled:
        total += _width(letter)
        if total > limit:
            break
        taken += total <= limit - 1
    return spelled if total <= limit else spelled[:taken] + ELLIPSIS


def decimals_for(error: float) -> int | None:
    """Decimals that show two digits of a standard error; None where that says nothing.

    >>> decimals_for(0.0123), decimals_for(120.0), decimals_for(0.0)
    (3, 0, None)
    """
    if not 1e-9 <= error < 1e12:
        return None
    return max(0, 1 - math.floor(math.log10(error)))


def number(value: Any, decimals: int | None = None, *, digits: int = 3) -> str:
    """Format a number, with significant digits unless decimals are given.

    >>> number(-0.12345), number(39073.4), number(1.5, 3), number(float("nan")), number(2e-9)
    ('−0.123', '39,073', '1.500', '–', '2e−9')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e12 or (decimals is None and 0 < size < 1e-4):
        return _scientific(value)
    if decimals is not None:
        text = f"{value:z,.{decimals}f}"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(size))) if size else 0
        text = f"{value:z,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−")


def percent(share: float) -> str:
    """Format a share of a whole.

    >>> percent(0.1234), percent(0.0), percent(0.00001), percent(0.99999)
    ('12 %', '0 %', 'under 0.1 %', 'over 99.9 %')
    """
    if math.isnan(share):
        return "–"
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    shown = f"{100 * share:.1f}" if share < 0.1 or 0.9 < share < 1 else f"{100 * share:.0f}"
    return f"{shown.removesuffix('.0')} %"
