"""What a call costs: CPU seconds and peak memory. Standard library only: peers run it too.

Every peer has an environment of its own without retilt in it (``benchmarks.environments``), and
must be measured by the same lines.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LONG = 20.0
"""CPU seconds above which a solver runs once only."""

_REPEATS = 3
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Cost(NamedTuple, Generic[T]):
    """What a solve call returned and took.

    Attributes
    ----------
    result
        Of the last call.
    cpu_seconds
        User and system time of all threads, the least of the calls.
    peak_mib
        Highest resident memory of preparation and first call, less that just before them. None
        where the system can't tell.
    calls
        How often it ran: three times, or once where that took more than ``LONG`` seconds.
    """

    result: T
    cpu_seconds: float
    peak_mib: float | None
    calls: int


def measured(prepare: Callable[[], Callable[[], T]]) -> Cost[T]:
    """Cost of the call that ``prepare`` gives; what it makes beforehand counts as memory only.

    CPU is user and system time of all threads. Memory that is free is given back first, so that
    all that is used shows. Only Linux with the GNU library tells it; elsewhere it is None.
    """
    before = _reset_peak()
    solve = prepare()
    result, best = _clocked(solve)
    peak = None if before is None else (_status("VmHWM") - before) / 1024
    calls = 1
    while calls < _REPEATS and best <= LONG:
        result, seconds = _clocked(solve)
        best = min(best, seconds)
        calls += 1
    return Cost(result, best, peak, calls)


def _clocked(solve: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = solve()
    return result, time.process_time() - start


def _reset_peak() -> int | None:
    """Resident KiB now, which the peak starts from again; None where that can't be done."""
    gc.collect()
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    try:
        # Memory that was freed but not given back would be used again, and not be seen.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        return _status("VmRSS")
    except (OSError, AttributeError):
        return None


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {field}.")
