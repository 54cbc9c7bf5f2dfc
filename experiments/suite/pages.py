"""The results as the tables of ``docs/results.md``, the paper's printed figures beside ours."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.marks import put_between

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

PRINTED = Path(__file__).with_name("printed.csv")
"""The paper's Tables 1 and 4 as it prints them."""

WAYS = ("retilt", "retilt-mix", "retilt-mix-clip", "retilt-more", "retilt-keep")
"""Ours by default, with help where the rows can't reach the answers, and with guards."""

WIDE = ("retilt-all", "retilt-all-mix")
"""Asked for the correlations of all columns, not of five."""

_LONG = 100
"""Characters of settings that a table has room for."""

_KEPT = ("f1", "js", "inverse_kl")
_REAL = {"f1": "f1_real"}
"""What the real rows themselves have."""

_HIGHER = {"f1": True, "js": False, "inverse_kl": True}


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over repetitions; no deviation of what was run once."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread}"


@dataclass(frozen=True)
class Results:
    """Tidy rows by what they are about.

    Parameters
    ----------
    rows
        Of ``experiments.suite.running.HEADS``.
    """

    rows: Sequence[tuple[Any, ...]]

    @cached_property
    def _values(self) -> Mapping[tuple[str, ...], list[float]]:
        found: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for data_set, mechanism, epsilon, _, method, metric, value in self.rows:
            found[data_set, mechanism, str(epsilon), method, metric].append(float(value))
        return found

    @cached_property
    def places(self) -> list[tuple[str, str, str]]:
        """Data sets, mechanisms and budgets, in order of appearance."""
        return list(dict.fromkeys((str(r[0]), str(r[1]), str(r[2])) for r in self.rows))

    def cell(self, place: tuple[str, str, str], method: str, metric: str) -> Cell | None:
        """Of one method and metric."""
        values = self._values.get((*place, method, metric))
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return Cell(statistics.fmean(values), deviation)


def printed() -> dict[tuple[str, str, str], dict[str, str]]:
    """The paper's figures by place."""
    with PRINTED.open(newline="") as file:
        return {(r["dataset"], r["mechanism"], r["epsilon"]): r for r in csv.DictReader(file)}


def _head(*names: str) -> Iterator[str]:
    heads = ["data", "generator", "ε", *names]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * 2}{' --: |' * (len(heads) - 2)}"


def improvements(results: Results, metric: str) -> Iterator[str]:
    """Lines of the table of utility improvements; the best of ours that beats both is bold."""
    theirs = printed()
    yield from _head("printed", "paper", *WAYS, "optimum")
    for place in results.places:
        told = theirs.get(place, {}).get("utility_improvement", "")
        cells = [results.cell(place, m, metric) for m in ("paper", *WAYS, "optimum")]
        if not any(cells):
            continue
        texts = ["" if c is None else str(c) for c in cells]
        bar = max([float(told)] if told else [], default=-9.0)
        bar = max(bar, cells[0].mean if cells[0] else -9.0)
        for k in range(1, 1 + len(WAYS)):
            cell = cells[k]
            if cell is not None and cell.mean > bar:
                texts[k] = f"**{texts[k]}**"
        yield f"| {' | '.join([*place, told, *texts])} |"


def wide(results: Results) -> Iterator[str]:
    """Lines of the table of utility improvements over all columns, on the same table."""
    methods = ("paper", "retilt", "retilt-mix", *WIDE)
    yield from _head(*methods)
    for place in results.places:
        cells = [results.cell(place, m, "utility_improvement_all_same_file") for m in methods]
        texts = ["" if c is None else str(c) for c in cells]
        yield f"| {' | '.join([*place, *texts])} |"


def quality(results: Results, metric: str) -> Iterator[str]:
    """Lines of the table of one metric before and after, worse ones marked.

    ``▼`` for worse than the generator with all of the budget, ``▽`` for worse than the table that
    was post-processed.
    """
    theirs = printed()
    real = _REAL.get(metric)
    yield from _head(
        "printed", *(["real"] if real else []), "before", "same file", "paper", *WAYS, *WIDE
    )
    digits = 3
    for place in results.places:
        row = theirs.get(place, {})
        told = " → ".join(filter(None, (row.get(f"{metric}_before"), row.get(f"{metric}_after"))))
        marked = {"▼": results.cell(place, "none", metric)}
        marked["▽"] = results.cell(place, "same-file", metric)
        trained = results.cell(place, "none", real) if real else None
        texts = [f"{trained.mean:.{digits}f}"] if trained else []
        for method in ("none", "same-file", "paper", *WAYS, *WIDE):
            cell = results.cell(place, method, metric)
            text = "" if cell is None else f"{cell.mean:.{digits}f}"
            if cell is not None and cell.deviation is not None:
                text += f" ± {cell.deviation:.{digits}f}"
            marks = [
                mark
                for mark, before in marked.items()
                if method != "none" and cell and before and _worse(cell, before, metric)
            ]
            texts.append(" ".join([text, "".join(marks)]).rstrip())
        yield f"| {' | '.join([*place, told, *texts])} |"


def counts(results: Results) -> Iterator[str]:
    """Lines of the table of how many cells each method betters, or worsens.

    Of F1 also where it is both worse and farther from what the real rows have: that of a table
    may be higher than theirs.
    """
    heads = ["method", "beats printed and paper", "F1 ▽", "and farther from real", "JS ▽", "IKL ▽"]
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' --: |' * (len(heads) - 1)}"
    theirs = printed()
    for method in ("paper", *WAYS, *WIDE):
        found = dict.fromkeys(heads[1:], 0)
        for place in results.places:
            told = theirs.get(place, {}).get("utility_improvement")
            gain, paper = (results.cell(place, m, "utility_improvement") for m in (method, "paper"))
            if told and gain and paper:
                found[heads[1]] += gain.mean > max(float(told), paper.mean)
            for metric, head in zip(_KEPT, (heads[2], *heads[4:]), strict=True):
                cell = results.cell(place, method, metric)
                before = results.cell(place, "same-file", metric)
                if not cell or not before or not _worse(cell, before, metric):
                    continue
                found[head] += 1
                real = results.cell(place, "none", _REAL[metric]) if metric in _REAL else None
                if real is not None:
                    found[heads[3]] += abs(cell.mean - real.mean) > abs(before.mean - real.mean)
        yield f"| {' | '.join([method, *map(str, found.values())])} |"


def runs(folder: Path, places: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Lines of the table of the generators' runs, from their sidecars in ``folder``."""
    heads = ["data", "generator", "set beside its defaults", "CPU seconds", "MB"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * 3}{' --: |' * 2}"
    for data_set, mechanism in dict.fromkeys(place[:2] for place in places):
        found = [
            json.loads(path.read_text())
            for path in sorted((folder / data_set).glob(f"{mechanism}-eps*.json"))
        ]
        if not found:
            continue
        settings = ", ".join(f"{k} {v}" for k, v in found[0]["settings"].items() if v is not None)
        cells = [
            data_set,
            mechanism,
            settings if len(settings) < _LONG else "see its sidecar",
            _span([run["cpu_seconds"] for run in found]),
            _span([run["peak_megabytes"] for run in found]),
        ]
        yield f"| {' | '.join(cells)} |"


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def _worse(cell: Cell, before: Cell, metric: str) -> bool:
    """Beyond one standard deviation."""
    loss = before.mean - cell.mean if _HIGHER[metric] else cell.mean - before.mean
    return loss > (cell.deviation or 0.0) + 1e-9


def page(rows: Sequence[tuple[Any, ...]], folder: Path | None = None) -> str:
    """All tables; those of the generators' runs from the sidecars in ``folder``."""
    results = Results(rows)
    parts = [
        "### How often",
        *counts(results),
        "",
        "### Utility improvement against the generator with all of the budget",
        *improvements(results, "utility_improvement"),
        "",
        "### The same against the table that was post-processed",
        *improvements(results, "utility_improvement_same_file"),
        "",
        "### Over all columns, against the table that was post-processed",
        *wide(results),
    ]
    for metric in _KEPT:
        parts += ["", f"### {_TITLES[metric]}", *quality(results, metric)]
    if folder is not None:
        parts += ["", "### The generators' runs", *runs(folder, results.places)]
    return "\n".join(line + "\n" if line.startswith("###") else line for line in parts)


_TITLES = {
    "f1": "F1 of a logistic regression (higher is better)",
    "js": "Jensen-Shannon distance of marginals, as synthcity (lower is better)",
    "inverse_kl": "Inverse KL divergence of marginals, as synthcity (higher is better)",
}


def put_into(path: Path, rows: Sequence[tuple[Any, ...]], folder: Path | None = None) -> None:
    """Write the tables of :func:`page` between the two marks of a Markdown file.

    Raises
    ------
    ValueError
        If the file has no such marks.
    """
    put_between(path, BEGIN, END, page(rows, folder))
