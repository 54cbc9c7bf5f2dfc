"""A figure of expected errors over budgets, as a file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retilt.measures.base import FloatArray
from retilt.report.plots import (
    AFTER,
    BEFORE,
    INK,
    QUIET,
    blank_axes,
    blank_figure,
    set_log_ticks,
    style,
)
from retilt.report.text import shortened

FEW = 8
"""Statistics up to which each has its name beside its line."""

_NAME = 28  # letters


def save_errors_plot(
    path: Path,
    *,
    amounts: Sequence[float],
    errors: FloatArray,
    sizes: FloatArray,
    names: Sequence[str],
    drowned: Sequence[float],
    unit: str,
) -> None:
    """Draw a line for each statistic: its expected error, by its size, over the budgets.

    Parameters
    ----------
    path
        Ends in .svg, .png or .pdf.
    amounts
        (B,) the budgets, ascending; ``unit`` is their symbol.
    errors
        (B, S) expected standard errors, NaN where undefined.
    sizes
        (S,) what they are divided by; NaN where a statistic is 0 or undefined.
    names
        (S,) of the statistics.
    drowned
        (B,) share of the statistics that noise drowns.
    """
    with style("errors"):
        figure = blank_figure(600, 340)
        axes = blank_axes(figure, 64, 190 if len(names) <= FEW else 16, 14, 52)
        relative = errors / sizes
        places = np.log10(amounts)
        known = np.isfinite(relative) & (relative > 0)
        logs = np.log10(np.where(known, relative, np.nan))
        ends = [*logs[known].tolist(), 0.0]
        low, high = min(ends) - 0.1, max(ends) + 0.1
        axes.axhspan(0, high, color=BEFORE, alpha=0.08, linewidth=0)
        axes.grid(axis="y")
        for k, name in enumerate(names):
            few = len(names) <= FEW
            alpha = 1.0 if few else max(0.08, min(0.6, 30 / len(names)))
            axes.plot(places, logs[:, k], ".-", color=AFTER, linewidth=0.9, alpha=alpha)
            if few and known[-1, k]:
                text = shortened(name, _NAME)
                end = (places[-1], logs[-1, k])
                axes.annotate(text, end, (6, -3), textcoords="offset points", color=INK)
        if len(names) > FEW and known.any(axis=1).all():
            middle = [np.median(row[told]) for row, told in zip(logs, known, strict=True)]
            axes.plot(places, middle, ".-", color=BEFORE, linewidth=1.6, label="median")
            axes.legend()
        note: dict[str, Any] = {"color": BEFORE, "ha": "right", "va": "top"}
        axes.annotate("error larger than the value", (0.995, 0.99), None, "axes fraction", **note)
        axes.set_xlim(places[0] - 0.05, places[-1] + 0.05)
        axes.set_ylim(low, high)
        axes.set_xticks(
            places, [f"{a:g}\n{share:.0%}" for a, share in zip(amounts, drowned, strict=True)]
        )
        set_log_ticks(axes.yaxis, low, high)
        axes.set_xlabel(
            f"{unit}, and below it the share of statistics that noise drowns", color=QUIET
        )
        axes.set_ylabel("expected error / |value on the synthetic table|")
        kind = path.suffix.lower()[1:]
        nothing = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(
            kind, {"Software": None}
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks
            figure.savefig(path, format=kind, dpi=160, metadata=nothing)
