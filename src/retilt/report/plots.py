"""Figures as inline SVG, drawn by Matplotlib's objects; no global setting of it stays changed.

Names never go through Matplotlib, which would read them as mathematics or warn of letters that
its font lacks: it draws a placeholder, and the finished SVG gets the name in its place.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from retilt.measures.base import FloatArray
from retilt.report.text import number, shortened, spelled_out, width
from retilt.tilting.solution import PathPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BEFORE, AFTER, QUIET = "#c8651b", "#1f5fa8", "#6b7280"
"""Orange and blue, told apart by colour-blind readers and in grey; and what is not data."""
INK, GRID, UNDEFINED = "#1f2933", "#e3e6ea", "#c9ced6"
DIVERGING, SEQUENTIAL = "RdBu_r", "YlOrBr"

MOST_VALUES = 12
"""Columns up to which a heat map's cells hold their values."""
MOST_NAMES = 60
"""Columns up to which a heat map names them."""
FEW_ROWS = 0.01
"""A row of a smaller weight hardly counts."""

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_PIXELS = 96  # CSS pixels an inch; Matplotlib's points are 72
_LETTER = 0.6  # width of a letter in its size
_LABEL = 20  # letters of a name beside a heat map
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "font.size": 8.25,
    "axes.labelsize": 8.25,
    "xtick.labelsize": 8.25,
    "ytick.labelsize": 8.25,
    "legend.fontsize": 8.25,
    "legend.frameon": False,
}


@contextmanager
def style(key: str) -> Iterator[None]:
    """Our settings and nobody else's, for as long as a figure is drawn."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_RC, "svg.hashsalt": key})
        yield


def blank_figure(wide: float, high: float) -> Figure:
    """An empty figure of so many CSS pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(wide / _PIXELS, high / _PIXELS))


def blank_axes(figure: Figure, left: float, right: float, top: float, bottom: float) -> Axes:
    """Axes with margins in CSS pixels."""
    wide, high = (float(size) * _PIXELS for size in figure.get_size_inches())
    box = (left / wide, bottom / high, 1 - (left + right) / wide, 1 - (top + bottom) / high)
    return figure.add_axes(box)


def _svg(figure: Figure, key: str, label: str, names: Sequence[str] = ()) -> Markup:
    """A figure as an SVG element that says what it shows, with names for its placeholders."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(drawn, metadata=metadata)
    # Not user data: Matplotlib wrote it, from numbers and placeholders.
    root = ElementTree.fromstring(drawn.getvalue())
    wide, high = (round(float(size) * _PIXELS) for size in figure.get_size_inches())
    box = root.get("viewBox", "")
    _prune(root)
    _tidy(root, key, names)
    root.attrib = {
        "xmlns": _SVG[1:-1],
        "viewBox": box,
        "width": str(wide),
        "height": str(high),
        "role": "img",
        "aria-label": spelled_out(label),
    }
    return Markup(ElementTree.tostring(root, encoding="unicode").replace("\n", ""))


def _prune(root: ElementTree.Element) -> None:
    """Drop metadata, and the style sheet, which would style the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}style", f"{_SVG}metadata"):
                parent.remove(child)


def _tidy(root: ElementTree.Element, key: str, names: Sequence[str]) -> None:
    """Make the SVG fit to stand among others in a page: ids of its own, no namespaces, short."""
    used = set(re.findall(r"#([\w-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if element.text is not None and not element.text.strip():
            element.text = None
        if element.tail is not None:
            element.tail = None if not element.tail.strip() else element.tail
        attributes = dict(element.attrib)
        if _LINK in attributes:
            attributes["href"] = attributes.pop(_LINK)
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        element.attrib = {name: _attribute(name, value, key) for name, value in attributes.items()}
        if element.tag == "text":
            _name(element, names)


def _attribute(name: str, value: str, key: str) -> str:
    """An attribute with its references made the figure's own, and no more digits than show."""
    if name == "id":
        return f"{key}-{value}"
    if name == "href" and value.startswith("data:"):
        return value.replace("\n", "")
    if name == "href":
        return value.replace("#", f"#{key}-")
    if name == "style":
        # The page chooses the type; only its size is the figure's.
        value = re.sub(r"font: (?:[\w-]+ )*([\d.]+px) [^;]*", r"font-size: \1", value)
        value = re.sub(r"font-family: [^;]*;?", "", value)
        return value
    value = value.replace("url(#", f"url(#{key}-")
    if name in ("d", "x", "y", "width", "height", "points"):
        value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}", value)
    return " ".join(value.split())


def _name(element: ElementTree.Element, names: Sequence[str]) -> None:
    """Put a name in the place of its placeholder; one that is cut tells itself to the pointer."""
    found = re.fullmatch(r"@(\d+)@", element.text or "")
    if found is None:
        return
    name = names[int(found[1])]
    element.text = shortened(name, _LABEL)
    if element.text != name:
        title = ElementTree.SubElement(element, "title")
        title.text = shortened(name, 200)


def heat_size(columns: int) -> int:
    """CSS pixels that a heat map of so many columns is wide."""
    if columns <= 6:
        return 300
    return 700 if 40 < columns <= MOST_NAMES else 462


def heat_map(
    matrix: FloatArray, names: Sequence[str], *, key: str, label: str, largest: float | None = None
) -> Markup:
    """A (d, d) matrix in colours, with names on both sides and values where there is room.

    Parameters
    ----------
    matrix
        (d, d) numbers; NaN cells are grey.
    names
        (d,) columns.
    key
        Of the figure, unlike any other's in the page.
    label
        What it shows, for readers who can't see it.
    largest
        None for correlations, from -1 to 1; else the end of a scale that begins at 0.
    """
    import matplotlib

    count, wide = len(names), heat_size(len(names))
    named = count <= MOST_NAMES
    longest = max(width(shortened(name, _LABEL)) for name in names) if named else 3
    # The margin of names takes at most two fifths; the cells get the rest.
    size = 10.5 if count <= 20 else max(7.0, min(10.5, 0.9 * (wide - 100) / count))
    margin = min(longest * _LETTER * size + 8, 0.4 * wide)
    cell = min((wide - margin - 4) / count, 80)
    side = cell * count
    with style(key):
        figure = blank_figure(margin + side + 4, side + margin + 4)
        axes = blank_axes(figure, margin, 4, 4, margin)
        colours, low, high = (DIVERGING, -1.0, 1.0) if largest is None else (SEQUENTIAL, 0, largest)
        colour_map = matplotlib.colormaps[colours].with_extremes(bad=UNDEFINED)
        image = axes.imshow(
            np.ma.masked_invalid(matrix * (1 - np.eye(count))),
            cmap=colour_map,
            vmin=low,
            vmax=high,
            interpolation="none",
            aspect="auto",
        )
        ticks = range(count) if named else range(9, count, 10)
        shown = [f"@{i}@" if named else str(i + 1) for i in ticks]
        points = 0.75 * size
        axes.set_xticks(
            ticks,
            shown,
            rotation=90,
            rotation_mode="anchor",
            ha="right",
            va="center",
            fontsize=points,
        )
        axes.set_yticks(ticks, shown, fontsize=points)
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_visible(False)
        if count <= MOST_VALUES:
            _values(axes, matrix, image, 0.75 * min(11.0, 0.29 * cell))
        return _svg(figure, key, label, names)


def _values(axes: Axes, matrix: FloatArray, image: Any, points: float) -> None:
    """Write every cell's value, in black or white."""
    colours = image.cmap(image.norm(image.get_array()))[..., :3]
    dark = colours @ (0.299, 0.587, 0.114) < 0.55
    for (row, column), value in np.ndenumerate(matrix):
        text = f"{value:z.2f}".replace("-", "−") if math.isfinite(value) else "–"
        axes.text(
            column,
            row,
            text,
            ha="center",
            va="center_baseline",
            fontsize=points,
            color=QUIET if row == column else "white" if dark[row, column] else INK,
        )


def colour_bar(*, key: str, largest: float | None = None) -> Markup:
    """The scale of heat maps; ``largest`` as there."""
    low, high = (-1.0, 1.0) if largest is None else (0.0, largest)
    with style(key):
        figure = blank_figure(240, 36)
        axes = blank_axes(figure, 16, 16, 2, 18)
        axes.imshow(
            np.linspace(0, 1, 64)[None, :],
            cmap=DIVERGING if largest is None else SEQUENTIAL,
            aspect="auto",
            interpolation="none",
            extent=(low, high, 0, 1),
        )
        ticks = [low, (low + high) / 2, high]
        axes.set_xticks(ticks, [number(tick, digits=2) for tick in ticks])
        axes.set_yticks([])
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_visible(False)
        return _svg(figure, key, f"Colours from {number(low)} to {number(high)}")


def distance_bar(before: float, after: float, *, limit: float, longest: float) -> Markup:
    """A row's way towards its target: an open dot before, a full one after, noise shaded.

    Parameters
    ----------
    before, after
        Distances from the target in standard errors; nothing is drawn for NaN.
    limit
        Where noise ends.
    longest
        The scale's end, in standard errors; what is farther stands at the end.
    """

    def at(distance: float) -> str:
        share = math.asinh(min(distance, longest)) / math.asinh(longest)
        return f"{6 + 128 * share:.1f}"

    if math.isnan(before) or math.isnan(after):
        return Markup("")
    # Only numbers that we have formatted are in it.
    return Markup(
        '<svg class="way" viewBox="0 0 140 16" width="140" height="16" aria-hidden="true">'
        f'<path class="band" d="M6 1H{at(limit)}V15H6Z"/>'
        f'<path class="line" d="M{at(before)} 8H{at(after)}"/>'
        f'<circle class="before" cx="{at(before)}" cy="8" r="4.5"/>'
        f'<circle class="after" cx="{at(after)}" cy="8" r="3.2"/></svg>'
    )


def weights_histogram(weights: FloatArray, *, key: str, label: str) -> Markup:
    """Share of the rows by weight; rows that hardly count stand in a bar of their own.

    Parameters
    ----------
    weights
        (N,) zero or more, mean 1.
    key, label
        As for :func:`heat_map`.
    """
    few = weights < FEW_ROWS
    logarithms = np.log10(weights[~few])
    low = min(float(logarithms.min(initial=0.0)), -0.1) - 0.02
    high = max(float(logarithms.max(initial=0.0)), 0.1) + 0.02
    counts, edges = np.histogram(logarithms, np.linspace(low, high, 41))
    shares, share_of_few = counts / weights.size, float(few.mean())
    with style(key):
        figure = blank_figure(462, 250)
        axes = blank_axes(figure, 44, 14, 8, 42)
        axes.set_axisbelow(True)
        axes.grid(axis="y")
        axes.stairs(shares, edges, fill=True, color=AFTER)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        set_log_ticks(axes.xaxis, low, high)
        if share_of_few > 0:
            bar = (high - low) / 40
            axes.stairs([share_of_few], [low - 4 * bar, low - bar], fill=True, color=BEFORE)
            place = (low - 4 * bar, share_of_few)
            axes.annotate(
                f"under {FEW_ROWS:g}", place, (0, 3), textcoords="offset points", color=BEFORE
            )
            low -= 5 * bar
        axes.set_xlim(low, high)
        axes.set_ylim(0, 1.12 * max(float(shares.max()), share_of_few))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.set_xlabel("weight of a row (1 = unchanged)")
        return _svg(figure, key, label)


def set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks in plain digits between two decimal logarithms, which are what is drawn.

    Matplotlib's own logarithmic axes label their ticks with mathematics, and overflow early.
    """
    ticks = log_ticks(low, high)
    axis.set_ticks([math.log10(tick) for tick in ticks], [_plain(tick) for tick in ticks])


def log_ticks(low: float, high: float) -> list[float]:
    """At most about ten round numbers between two, whose decimal logarithms are given.

    >>> log_ticks(-0.5, 0.6), log_ticks(-3, 9)
    ([0.5, 1.0, 2.0], [0.001, 0.1, 10.0, 1000.0, 100000.0, 10000000.0, 1000000000.0])
    """
    first, last = math.floor(low), math.ceil(high)
    if last - first > 3:
        found = [(1.0, e) for e in range(first, last + 1, math.ceil((last - first) / 7))]
    else:
        steps = (1.0, 2.0, 5.0) if last - first > 1 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        found = [(s, e) for e in range(first, last + 1) for s in steps]
    inside = [(s, e) for s, e in found if low <= math.log10(s) + e <= high and abs(e) < 300]
    middle = min(max((low + high) / 2, -300), 300)
    return [float(f"{s}e{e}") for s, e in inside] or [float(f"{10**middle:.3g}")]


def _plain(tick: float) -> str:
    """A tick in plain digits, with a raised exponent where it is long.

    >>> _plain(0.01), _plain(2000.0), _plain(1e7), _plain(3e-5)
    ('0.01', '2,000', '10⁷', '3×10⁻⁵')
    """
    if 1e-3 <= tick < 1e5:
        return f"{tick:,.4g}" if tick < 1000 else f"{tick:,.0f}"
    mantissa, exponent = f"{tick:.2e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    front = mantissa.rstrip("0").rstrip(".")
    return f"10{raised}" if front == "1" else f"{front}×10{raised}"


def path_figures(path: Sequence[PathPoint], queries: int, *, labels: Sequence[str]) -> list[Markup]:
    """The path from the base weights to insistence: misfit and risk, then sample size and floor.

    Parameters
    ----------
    path
        At least one point with a finite trade-off above 0.
    queries
        Noisy answers, by which the risk estimate is divided.
    labels
        What the two figures show, for readers who can't see them.
    """
    risk = {"misfit": [p.misfit for p in path], "risk estimate": [p.sure / queries for p in path]}
    size = {"effective sample size": [p.ess for p in path], "floor": [p.floor for p in path]}
    return [
        _path_figure(path, risk, "path-risk", labels[0]),
        _path_figure(path, size, "path-size", labels[1]),
    ]


def _path_figure(
    path: Sequence[PathPoint], lines: Mapping[str, Sequence[float]], key: str, label: str
) -> Markup:
    """Lines over the trade-off, which falls from left to right; the base weights come first."""
    places = -_logarithms([p.eta for p in path])
    left, right = float(np.nanmin(places)), float(np.nanmax(places))
    gap = 0.08 * max(right - left, 1.0)
    base = left - 1.5 * gap  # where the base weights stand: their trade-off is infinite
    places[[p.eta == math.inf for p in path]] = base
    heights = {name: _logarithms(values) for name, values in lines.items()}
    every = np.concatenate([[h for h in column if math.isfinite(h)] for column in heights.values()])
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    pad = max(0.06 * (high - low), 0.05)
    with style(key):
        figure = blank_figure(462, 280)
        axes = blank_axes(figure, 52, 14, 26, 44)
        axes.set_axisbelow(True)
        axes.grid()
        axes.axvline(left - 0.75 * gap, color=GRID, linewidth=2)
        sampled = np.array([p.rows < max(q.rows for q in path) for p in path])
        looks: Any = ((AFTER, "-"), (BEFORE, (0, (5, 2))))
        for (name, column), (colour, dashes) in zip(heights.items(), looks, strict=True):
            axes.plot(places, column, color=colour, linestyle=dashes, linewidth=1.2, label=name)
            dots: Any = {"linestyle": "", "marker": "o", "markersize": 3, "markeredgewidth": 0.8}
            for which, face in ((~sampled, colour), (sampled, "white")):
                axes.plot(places[which], column[which], color=colour, mfc=face, **dots)
        chosen = [place for place, p in zip(places, path, strict=True) if p.chosen]
        for place in chosen[:1]:
            axes.axvline(place, color=INK, linewidth=0.8, label="chosen")
        axes.set_xlim(base - 0.5 * gap, right + 0.5 * gap)
        axes.set_ylim(low - pad, high + pad)
        ticks = log_ticks(-right, -left)
        axes.set_xticks([base, *(-math.log10(tick) for tick in ticks)], ["∞", *map(_plain, ticks)])
        set_log_ticks(axes.yaxis, low - pad, high + pad)
        axes.set_xlabel("trade-off η, from caution to insistence")
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
        axes.legend(ncols=3, columnspacing=1.2, handlelength=1.8, **place)
        return _svg(figure, key, label)


def _logarithms(values: Sequence[float]) -> FloatArray:
    """Decimal logarithms; NaN, which is not drawn, where there is none."""
    array = np.array(values, dtype=np.float64)
    good = np.isfinite(array) & (array > 0)
    return np.log10(array, out=np.full(array.shape, np.nan), where=good)
