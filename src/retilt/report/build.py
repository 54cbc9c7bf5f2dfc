"""Facts to a page: the sentences, the tables, and the figures in their places."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from retilt._output import refuse_existing, write_text
from retilt.measures.base import FloatArray
from retilt.privacy.budget import budget_from_dict, describe
from retilt.report import plots
from retilt.report.facts import Correlations, Facts
from retilt.report.text import decimals_for, number, percent, shortened, spelled_out

MOST_STATISTICS = 200
"""Longer tables show the statistics farthest from their targets, and how many are left out."""
MOST_COLUMNS = 200
"""Measured columns that are listed before the rest is counted."""
MOST_MAPS = 8
"""Measures whose correlations are drawn before the rest is counted."""
_NAME, _TITLE, _TEXT = 72, 1_000, 20_000

_NEIGHBOURS = {
    "replace-one": "the content of any one row; the number of rows is public",
    "add-remove": "the presence of any one row; the number of rows is private",
    "replace-one-person": "all rows of any one person; the number of persons is public",
    "add-remove-person": (
        "the presence of any one person; the numbers of persons and of rows are private"
    ),
}
_MECHANISMS = {"discrete-gaussian": "discrete Gaussian", "discrete-laplace": "discrete Laplace"}
_NORMS = {"discrete-gaussian": "L2", "discrete-laplace": "L1"}


def build_page(facts: Facts) -> str:
    """The whole report as HTML: no script, nothing from elsewhere, the same for the same facts.

    Parameters
    ----------
    facts
        What is known of a fit.

    Returns
    -------
    str
        A document to be written as UTF-8.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(name=_name, number=number, percent=percent)
    source = files("retilt.report").joinpath("page.html.j2").read_text("utf-8")
    return environment.from_string(source).render(_context(facts))


def write_page(path: str | Path, facts: Facts, *, force: bool = False) -> None:
    """Write the report to a file, whole or not at all.

    Parameters
    ----------
    path
        The HTML file.
    facts
        What is known of a fit.
    force
        Whether an existing file may be replaced.

    Raises
    ------
    OutputExistsError, InputError
        The file exists, or can't be written.
    """
    refuse_existing(path, force)
    write_text(path, build_page(facts), force=force)


def _readable(value: object) -> object:
    """What every expression of the template passes, names and sentences alike.

    Markup is ours and stays; any other text is spelled out, and then escaped.
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return spelled_out(value) if len(value) <= _TEXT else shortened(value, _TEXT)


def _name(value: object) -> Markup:
    """A name on its own, whatever its direction; in full for the pointer where it is cut."""
    text = str(value)
    shown = shortened(text, _NAME)
    if shown == text:
        return Markup("<bdi>{}</bdi>").format(shown)
    return Markup('<bdi title="{}">{}</bdi>').format(shortened(text, _TITLE), shown)


def _context(facts: Facts) -> dict[str, Any]:
    """Everything that the template uses."""
    lines = _lines(facts)
    shown, left_out = _farthest(lines)
    return {
        "facts": facts,
        "verdict": _verdict(facts, lines),
        "tiles": _tiles(facts, lines),
        "privacy": _claim(facts),
        "target": "the noisy answer ± its standard error"
        if facts.private is not None
        else "the published value ± its standard error; one without an error is to be met exactly",
        "statement": _unbroken(str(facts.privacy.get("statement", ""))),
        "lines": shown,
        "left_out": left_out,
        "limit": number(facts.limit),
        "comparable": any(line.comparable for line in lines),
        "maps": [_maps(c, i) for i, c in enumerate(facts.correlations[:MOST_MAPS])],
        "maps_left_out": max(0, len(facts.correlations) - MOST_MAPS),
        "weights": _weights(facts),
        "path": _path(facts),
        "certificate": _certificate(facts),
        "columns": facts.columns[:MOST_COLUMNS],
        "columns_left_out": max(0, len(facts.columns) - MOST_COLUMNS),
    }


# --- statistics -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """One statistic as the table shows it.

    ``distance`` is after the fit, in standard errors; NaN where there is nothing to compare.
    """

    statistic: str
    before: str
    target: str
    error: str
    after: str
    distance: float
    comparable: bool
    met_before: bool
    met: bool
    reachable: str
    way: Markup
    farthest: bool = False

    @property
    def verdict(self) -> str:
        """Whether the statistic agrees with its target after the fit."""
        return ("yes" if self.met else "no") if self.comparable else "–"


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _lines(facts: Facts) -> list[_Line]:
    unmet, unmet_before = set(facts.unmet), set(facts.unmet_before)
    numbers = [
        [_float(row[key]) for key in ("before", "target", "after", "standard_error")]
        for row in facts.statistics
    ]
    pairs = [_distances(*row) for row in numbers]
    finite = [d for pair in pairs for d in pair if math.isfinite(d)]
    longest = min(max([2 * facts.limit, *finite]), 1e4)
    worst = max((after for _, after in pairs if not math.isnan(after)), default=math.nan)
    lines: list[_Line] = []
    marked = False
    for row, pair, (before, target, after, error) in zip(
        facts.statistics, pairs, numbers, strict=True
    ):
        name = str(row["statistic"])
        decimals = decimals_for(error)
        exact = facts.private is None and error == 0 and math.isfinite(target)
        farthest = not marked and len(numbers) > 1 and pair[1] == worst
        marked = marked or farthest
        lines.append(
            _Line(
                statistic=name,
                before=number(before, decimals),
                target=number(target, decimals),
                error=number(error, decimals),
                after=number(after, decimals),
                distance=pair[1],
                comparable=exact or not math.isnan(pair[1]) or name in unmet,
                met_before=name not in unmet_before,
                met=name not in unmet,
                reachable=_reach(row),
                way=plots.distance_bar(*pair, limit=facts.limit, longest=longest),
                farthest=farthest,
            )
        )
    return lines


def _reach(row: Mapping[str, Any]) -> str:
    """Whether a target can be reached, or that noise dominates it."""
    return "noise" if row.get("flag") else {True: "yes", False: "no"}.get(row["reachable"], "–")


def _distances(before: float, target: float, after: float, error: float) -> tuple[float, float]:
    """Before and after, in standard errors from the target; NaN without a target or an error."""
    if not (math.isfinite(target) and 0 < error < math.inf):
        return math.nan, math.nan
    found = [abs(value - target) / error for value in (before, after)]
    return found[0], found[1]


def _farthest(lines: Sequence[_Line]) -> tuple[Sequence[_Line], int]:
    """The lines to show, in their order, and how many are left out."""
    if len(lines) <= MOST_STATISTICS:
        return lines, 0

    def rank(i: int) -> tuple[bool, float]:
        distance = lines[i].distance
        return lines[i].met, math.inf if math.isnan(distance) else -distance

    worst = sorted(range(len(lines)), key=rank)[:MOST_STATISTICS]
    return [lines[i] for i in sorted(worst)], len(lines) - MOST_STATISTICS


# --- verdict and figures ----------------------------------------------------------------------


def _counts(lines: Sequence[_Line]) -> tuple[int, int, int]:
    """Statistics that can be compared, that agreed before, that agree after."""
    comparable = [line for line in lines if line.comparable]
    before = sum(line.met_before for line in comparable)
    return len(comparable), before, sum(line.met for line in comparable)


def _verdict(facts: Facts, lines: Sequence[_Line]) -> tuple[str, str]:
    """What agrees now and what did before; what it cost or what to do."""
    return _agreement(*_counts(lines)), _price(facts)


def _agreement(total: int, before: int, after: int) -> str:
    """The first sentence of the verdict.

    >>> _agreement(14, 3, 14)
    'All 14 statistics agree with their targets within what the noise explains; 3 did before.'
    >>> _agreement(14, 2, 2)
    '2 of 14 statistics agree with their targets within what the noise explains; 2 did before.'
    """
    if total == 0:
        return "No statistic has a target with a known error, so there is nothing to compare."
    explained = "within what the noise explains"
    if total == 1:
        did = ("it did not before", "it did before, too")[before]
        if after:
            return f"The one statistic agrees with its target {explained}; {did}."
        did = ("nor did it before", "it did before")[before]
        return f"The one statistic does not agree with its target {explained}; {did}."
    subject = {total: f"All {total:,}", 0: f"None of the {total:,}"}.get(
        after, f"{after:,} of {total:,}"
    )
    agree = "agrees with its target" if after == 0 else "agree with their targets"
    did = {total: "all did", 0: "none did"}.get(before, f"{before:,} did")
    return f"{subject} statistics {agree} {explained}; {did} before."


def _price(facts: Facts) -> str:
    """The second sentence of the verdict."""
    even = bool(np.ptp(facts.weights) < 1e-9)
    if not facts.success or even or not math.isfinite(facts.ess):
        return facts.advice
    return (
        f"The price is precision: the {facts.rows:,} weighted rows tell as much as "
        f"{facts.ess:,.0f} rows of equal weight ({percent(facts.ess / facts.rows)})."
    )


@dataclass(frozen=True, slots=True)
class _Tile:
    """A figure to see at first sight."""

    title: str
    value: str
    remark: str


def _tiles(facts: Facts, lines: Sequence[_Line]) -> list[_Tile]:
    total, before, after = _counts(lines)
    # "(ε = 1, δ = 1e-6)-DP" in two: the first number is the one to see.
    budget = _budget(facts.privacy.get("post_processing"))
    spent, _, delta = budget.removesuffix("-DP").strip("()").partition(", ")
    delta = f"{delta}; " if delta else ""
    total_budget = facts.privacy.get("total")
    altogether = (
        "the generator's own comes on top"
        if total_budget is None
        else f"{_budget(total_budget)} with the generator"
    )
    return [
        _Tile("Agree with their targets", f"{after:,} of {total:,}", f"{before:,} before"),
        _misfit(facts),
        _Tile(
            "Effective sample size",
            number(facts.ess, 0),
            f"of {facts.rows:,} rows, {percent(facts.ess / facts.rows)}",
        ),
        _Tile("Privacy spent here", spent, f"{delta}{altogether}")
        if facts.private
        else _unproven(facts),
    ]


def _misfit(facts: Facts) -> _Tile:
    if math.isnan(facts.misfit_after):
        return _Tile("Misfit", "none", "no statistic is noisy")
    before = number(facts.misfit_before)
    return _Tile("Misfit", number(facts.misfit_after), f"{before} before; about 1 is noise alone")


def _unproven(facts: Facts) -> _Tile:
    """What stands for the budget where retilt can't name one."""
    if facts.private is None:
        return _Tile("Privacy spent here", "none", "the statistics' own is their source's")
    return _Tile("Privacy", "none", "the answers were made insecurely")


def _budget(content: object) -> str:
    """A budget of the privacy statement in symbols."""
    if not isinstance(content, Mapping):
        return "not declared"
    budget = budget_from_dict({k: v for k, v in content.items() if k != "unit"})
    return _unbroken(describe(budget))


def _unbroken(text: str) -> str:
    """Keep "ε = 1" and "1e-6" on one line each."""
    return re.sub(r"(\d)e-(\d)", r"\1e−\2", text.replace(" = ", "\u00a0=\u00a0"))


def _neighbours(unit: object) -> str:
    """The unit of the privacy statement in words: a name, or an object for persons."""
    name = str(unit.get("unit", "") if isinstance(unit, Mapping) else unit)
    text = f"{name}: protects {_NEIGHBOURS[name]}" if name in _NEIGHBOURS else name
    if not isinstance(unit, Mapping):
        return text
    person, most = shortened(str(unit.get("person", "")), _NAME), unit.get("max_rows")
    return f"{text}; a person is a value of {person}, rows used of each: {most} at most"


def _claim(facts: Facts) -> list[tuple[str, str]]:
    """What is known of the answers' privacy, as rows of a table; none of insecure ones."""
    if facts.private is None:
        return _elsewhere(facts.privacy)
    return _privacy(facts.privacy) if facts.private else []


def _elsewhere(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of published statistics, as rows of a table."""
    return [
        ("Source of the statistics", str(privacy.get("source", ""))),
        ("Their privacy, as the source says", str(privacy.get("promise") or "not declared")),
        ("Spent by retilt", "nothing: it measured nothing"),
    ]


def _privacy(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The privacy claim in numbers, as rows of a table."""
    mechanism = str(privacy.get("mechanism", ""))
    generator = privacy.get("generator")
    declared = _budget(generator)
    if isinstance(generator, Mapping) and "unit" in generator:
        declared += f", {generator['unit']} neighbours"
    norm = _NORMS.get(mechanism, "norm")
    return [
        ("Neighbouring tables", _neighbours(privacy.get("unit", ""))),
        ("Spent by these answers", _budget(privacy.get("post_processing"))),
        ("Generator, as declared", declared),
        ("Together", _budget(privacy.get("total"))),
        ("Noise", f"{_MECHANISMS.get(mechanism, mechanism)}, added to exact integer sums"),
        (
            "Sensitivity",
            f"{number(privacy.get('sensitivity'), digits=6)}: the most that one such change moves "
            f"all scaled sums together ({norm})",
        ),
    ]


# --- figures ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Figure:
    """A picture and its caption."""

    picture: Markup
    caption: str
    remark: str = ""


def _maps(correlations: Correlations, index: int) -> dict[str, Any]:
    """The heat maps of one measure: before, target, after; then the distances on one scale."""
    c, key = correlations, f"map{index}"
    off = {"before": np.abs(c.before - c.target), "after": np.abs(c.after - c.target)}
    pairs = np.concatenate([_pairs(matrix) for matrix in off.values()])
    largest = float(pairs.max(initial=0.0)) or 1.0
    levels = [
        _Figure(
            plots.heat_map(
                matrix,
                c.names,
                key=f"{key}-{word}",
                label=f"Heat map of {len(c.names)} by "
                f"{len(c.names)} correlations, {title.lower()}.",
            ),
            title,
        )
        for word, title, matrix in (
            ("before", "Before", c.before),
            ("target", "Target", c.target),
            ("after", "After", c.after),
        )
    ]
    distances = [
        _Figure(
            plots.heat_map(
                matrix,
                c.names,
                key=f"{key}-off-{word}",
                largest=largest,
                label=f"Heat map of the distances of correlations from their targets {word} the "
                f"fit, mean {number(_mean(_pairs(matrix)))}, largest "
                f"{number(_largest(_pairs(matrix)))}.",
            ),
            f"Distance from target, {word}",
        )
        for word, matrix in off.items()
    ]
    return {
        "count": len(c.names),
        "size": plots.heat_size(len(c.names)),
        "levels": levels,
        "distances": distances,
        "summary": [
            (title, *(number(measure(_pairs(matrix))) for matrix in off.values()))
            for title, measure in (("mean over pairs", _mean), ("largest", _largest))
        ],
        "bar": plots.colour_bar(key=f"{key}-bar"),
        "distance_bar": plots.colour_bar(key=f"{key}-off-bar", largest=largest),
        "undefined": bool(
            np.isnan(c.before).any() or np.isnan(c.target).any() or np.isnan(c.after).any()
        ),
        "named": len(c.names) <= plots.MOST_NAMES,
    }


def _pairs(matrix: FloatArray) -> FloatArray:
    """The finite entries off the diagonal."""
    pairs: FloatArray = matrix[~np.eye(len(matrix), dtype=bool)]
    return pairs[np.isfinite(pairs)]


def _mean(pairs: FloatArray) -> float:
    return float(pairs.mean()) if pairs.size else math.nan


def _largest(pairs: FloatArray) -> float:
    return float(pairs.max()) if pairs.size else math.nan


def _weights(facts: Facts) -> dict[str, Any]:
    weights = facts.weights
    few = float(np.mean(weights < plots.FEW_ROWS))
    rows = [
        ("Effective sample size", f"{number(facts.ess, 0)} of {facts.rows:,} rows"),
        ("Largest weight", number(float(weights.max()))),
        ("Median weight", number(float(np.median(weights)))),
        ("Smallest weight", number(float(weights.min()))),
        (f"Rows of weight under {plots.FEW_ROWS:g}", percent(few)),
    ]
    label = (
        f"Histogram of {facts.rows:,} weights, from {number(float(weights.min()))} to "
        f"{number(float(weights.max()))}."
    )
    return {
        "rows": rows,
        "picture": plots.weights_histogram(weights, key="weights", label=label),
    }


def _path(facts: Facts) -> dict[str, Any]:
    """The path's figures, or none where there is no path to draw."""
    finite = [p for p in facts.path if 0 < p.eta < math.inf]
    if len(facts.path) < 2 or not finite:
        return {"figures": [], "sentence": ""}
    chosen = next((p for p in facts.path if p.chosen), None)
    sentence = _chosen(chosen.eta) if chosen else "None of the points drawn is the one returned."
    visited = f"{len(facts.path)} trade-offs from the base weights to η = {number(finite[-1].eta)}"
    pictures = plots.path_figures(
        facts.path,
        facts.queries,
        labels=(
            f"Misfit and risk estimate along {visited}. {sentence}",
            f"Effective sample size and its floor along {visited}. {sentence}",
        ),
    )
    captions = (
        ("Misfit and risk estimate", "per answer, in variances of its noise"),
        ("Effective sample size and its floor", "in rows"),
    )
    figures = [_Figure(p, *words) for p, words in zip(pictures, captions, strict=True)]
    return {
        "figures": figures,
        "sentence": sentence,
        "sampled": len({p.rows for p in facts.path}) > 1,
    }


def _chosen(eta: float) -> str:
    if eta == math.inf:
        return "Chosen: the base weights (η = ∞)."
    return f"Chosen: η = {number(eta)}."


def _certificate(facts: Facts) -> list[tuple[str, str]]:
    names = {
        "gap": "Duality gap, in nats (0 at the optimum)",
        "kkt_residual": "Largest violation of the optimality conditions (of the paper's "
        "method in standard errors of the answers, else relative to the largest multiplier)",
    }
    return [(names.get(k, k), number(_float(v))) for k, v in facts.certificate.items()]
