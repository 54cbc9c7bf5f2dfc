"""What an observer could see of a job, beside what it returns: for the tests of this folder.

Lines of our source in the order of their execution, warnings, log records, and what is printed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import retilt

SOURCE = str(Path(retilt.__file__).parent)
EACH_CELL = ("_present", "_given")
"""Functions that see one object cell each; their lines, and those that they call, belong to it."""


@dataclass
class Seen:
    """One run."""

    result: Any = None
    lines: list[tuple[str, int]] = field(default_factory=list)
    cell_lines: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By how often; apart only if asked for."""
    logged: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    printed: str = ""
    entered: list[tuple[str, str, int]] = field(default_factory=list)
    """Files, names and first lines of the functions of ours, as they were called."""


class _Handler(logging.Handler):
    def __init__(self, logged: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(record.getMessage())


def watch(job: Callable[[], Any], *, cells_apart: bool = False) -> Seen:
    """Run a job, and see."""
    seen = Seen()

    def each(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.cell_lines[frame.f_code.co_name, frame.f_lineno] += 1
        return each

    def every(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "line":
            seen.lines.append((code.co_filename, frame.f_lineno))
            return every
        if event == "call":
            if not code.co_filename.startswith(SOURCE):
                return None
            seen.entered.append((code.co_filename, code.co_qualname, code.co_firstlineno))
            callers = {code.co_qualname, frame.f_back and frame.f_back.f_code.co_qualname}
            if cells_apart and callers.intersection(EACH_CELL):
                return each
        return every

    root, handler, before = logging.getLogger(), _Handler(seen.logged), sys.gettrace()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    printed = io.StringIO()
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            sys.settrace(every)
            try:
                seen.result = job()
            finally:
                sys.settrace(before)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    seen.warned = [str(w.message) for w in caught]
    seen.printed = printed.getvalue()
    return seen


def first_difference(one: list[Any], two: list[Any]) -> Any:
    """Where two traces part, for a message that can be read."""
    for number, pair in enumerate(zip_longest(one, two)):
        if pair[0] != pair[1]:
            return number, pair
    return None


def assert_silent(seen: Seen) -> None:
    """Nothing is warned of."""
    assert seen.warned == []


def assert_one_path(one: Seen, other: Seen, *, same_rows: bool = True) -> None:
    """Two runs can't be told apart but by what they return.

    Where the tables differ in their rows, so does how often the lines of :data:`EACH_CELL` ran,
    but not how often each of them ran for a cell.
    """
    assert first_difference(one.lines, other.lines) is None
    if same_rows:
        assert one.cell_lines == other.cell_lines
    elif one.cell_lines and other.cell_lines:
        assert _for_a_cell(one) == _for_a_cell(other)
    assert one.logged == other.logged
    assert one.warned == other.warned == []
    assert one.printed == other.printed


def _for_a_cell(seen: Seen) -> dict[tuple[str, int], Fraction]:
    least = min(seen.cell_lines.values())
    return {line: Fraction(count, least) for line, count in seen.cell_lines.items()}
