"""The comparison as text: for a terminal, and as the table of ``docs/benchmarks.md``."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.marks import put_between
from benchmarks.measuring import Row

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

_HEADS = (
    "problem",
    "solver",
    "rows",
    "CPU s",
    "ratio",
    "MiB",
    "residual",
    "gap",
    "ESS",
    "corr. error",
    "note",
)
_TEXTS = (0, 1, 10)


def _cells(measured: Sequence[Row]) -> list[tuple[str, ...]]:
    """Heads and rows, with CPU seconds over retilt's on the same problem and rows."""
    own = {(r["problem"], r["rows"]): r["cpu_seconds"] for r in measured if r["solver"] == "retilt"}
    return [_HEADS, *(_line(row, own.get((row["problem"], row["rows"]))) for row in measured)]


def _line(row: Row, base: float | None) -> tuple[str, ...]:
    error = row["correlation_error"]
    notes = [row["note"], "called once" if row["calls"] == 1 else ""]
    if row["blas_seconds"]:
        times = row["cpu_seconds"] / row["blas_seconds"]
        notes.append(f"{times:.1f} times the {row['blas_seconds']:.3f} s that it can't do without")
    return (
        row["problem"],
        row["solver"],
        f"{row['rows']:,}",
        f"{row['cpu_seconds']:.3f}",
        f"{row['cpu_seconds'] / base:.1f}" if base else "",
        "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
        f"{row['residual']:.1e}",
        "" if row["gap"] is None else f"{row['gap']:.1e}",
        f"{row['ess']:,.0f}",
        "" if error is None else f"{error:.1e}",
        ", ".join(filter(None, notes)),
    )


def as_text(measured: Sequence[Row]) -> str:
    """The rows as a table of aligned columns."""
    lines = _cells(measured)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in _TEXTS else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(measured: Sequence[Row]) -> str:
    """The rows as a Markdown table, with what it was measured on above it."""
    heads, *lines = _cells(measured)
    rule = ["---" if place in _TEXTS else "--:" for place in range(len(heads))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))
    return f"{_machine()}\n\n{table}"


def put_into(path: Path, measured: Sequence[Row]) -> None:
    """Write the table between the two marks of a Markdown file.

    Raises
    ------
    ValueError
        If the file has no such marks.
    """
    put_between(path, BEGIN, END, as_markdown(measured))


def _machine() -> str:
    return (
        f"{_processor()}, one BLAS thread; Python {platform.python_version()}, "
        f"NumPy {np.__version__}."
    )


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
