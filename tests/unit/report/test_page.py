from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import retilt
from retilt.exceptions import InputError, OutputExistsError
from retilt.report import Correlations, Facts, build_page, write_page
from retilt.tilting.solution import PathPoint

Make = Callable[..., Facts]

VOID = {"meta", "br", "link", "img", "input"}
# What a page may consist of, and not one element more.
HTML = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer",
    "h1", "h2", "h3", "p", "div", "span", "dl", "dt", "dd", "table", "thead", "tbody", "tr",
    "th", "td", "figure", "figcaption", "ul", "li", "bdi",
}  # fmt: skip
SVG = {
    "svg", "g", "path", "text", "tspan", "image", "use", "defs", "clippath", "rect", "circle",
    "title",
}  # fmt: skip


class Page(HTMLParser):
    """A page's elements, attributes and text; complains of what is not well nested."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open or tag in VOID
        self._seen(tag, attrs)

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in (SVG if "svg" in self.open or tag == "svg" else HTML), tag
        self.elements[tag] += 1
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        for name, value in attrs:
            self.attributes.append((tag, name, value))
            if name == "id":
                self.ids.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_pi(self, data: str) -> None:
        raise AssertionError("a processing instruction")

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def check(page: str) -> Page:
    """Everything that holds for every page."""
    parsed = Page(page)
    for found in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(found)
    assert len(set(parsed.ids)) == len(parsed.ids)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href", "action"):
            assert value is not None
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name)
        if name == "aria-labelledby":
            assert value in parsed.ids
    assert "url(" not in page.replace("url(#", "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert parsed.elements["script"] == 0
    page.encode("utf-8")
    return parsed


def test_tells_the_whole_story(whole_facts: Facts) -> None:
    page = build_page(whole_facts)
    words = check(page).words
    assert (
        "All 3 statistics agree with their targets within what the noise explains; 1 did" in words
    )
    assert "the 1,000 weighted rows tell as much as 912 rows of equal weight (91.2 %)" in words
    assert "(ε\u00a0=\u00a01, δ\u00a0=\u00a01e−6)-DP" in page
    assert "0.100 0.200 ± 0.010 0.210" in words
    assert "protects the content of any one row" in words
    assert "5.7: the most that one such change moves all scaled sums together (L2)" in words
    assert "Chosen: η = 1." in words
    assert "Bounds of age were declared." in words
    assert "retilt 0.1.0" in words
    assert "from released answers and the synthetic table only" in words
    assert "NOT PRIVATE" not in words
    assert words.count("farthest") == 1


def test_same_facts_give_the_same_bytes_and_no_time(whole_facts: Facts) -> None:
    assert build_page(whole_facts) == build_page(whole_facts)
    assert not re.search(r"20\d\d-\d\d-\d\d", build_page(whole_facts))


def test_policy_forbids_everything_but_styles_and_pictures_inside(make: Make) -> None:
    page = build_page(make())
    assert (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
    ) in page
    assert '<html lang="en">' in page


def test_names_no_address_but_the_name_of_svg(whole_facts: Facts) -> None:
    page = build_page(whole_facts)
    assert page.count("://") == page.count('xmlns="http://www.w3.org/2000/svg"') > 0


def test_figures_and_tables_can_be_read_without_seeing(whole_facts: Facts) -> None:
    parsed = check(build_page(whole_facts))
    for tag, name, value in parsed.attributes:
        if name == "role" and value == "img":
            assert tag == "svg"
    labelled = [v for tag, n, v in parsed.attributes if (tag, n) == ("svg", "aria-label")]
    pictures = [v for tag, n, v in parsed.attributes if (tag, n, v) == ("svg", "role", "img")]
    assert len(labelled) == len(pictures) == 10
    assert all(labelled)
    scopes = [v for tag, n, v in parsed.attributes if (tag, n) == ("th", "scope")]
    assert len(scopes) == parsed.elements["th"]
    assert parsed.elements["h1"] == 1


def test_answers_made_insecurely_are_not_to_be_overlooked(make: Make) -> None:
    page = build_page(make(private=False))
    assert 'role="alert"' in page
    words = check(page).words
    assert "NOT PRIVATE" in words
    assert "Spent by these answers" not in words
    assert "costs no privacy" not in words


def test_failure_says_what_to_do(make: Make) -> None:
    words = check(
        build_page(
            make(
                success=False,
                status="infeasible_measures",
                advice="Give more candidate rows.",
                unmet=["corr(age, income)"],
            )
        )
    ).words
    assert "2 of 3 statistics agree with their targets" in words
    assert "Give more candidate rows." in words
    assert "✗ no, 1 s.e." in words


@pytest.mark.parametrize(
    ("unmet", "unmet_before", "expected"),
    [
        ([], [], "agrees with its target within what the noise explains; it did before, too."),
        ([], ["a"], "agrees with its target within what the noise explains; it did not before."),
        (["a"], [], "does not agree with its target within what the noise explains; it did be"),
        (["a"], ["a"], "does not agree with its target within what the noise explains; nor did"),
    ],
)
def test_one_statistic(
    make: Make, unmet: list[str], unmet_before: list[str], expected: str
) -> None:
    row = {"statistic": "a", "before": 0.1, "target": 0.2, "standard_error": 0.1}
    facts = make(
        statistics=[{**row, "after": 0.2, "reachable": None}],
        unmet=unmet,
        unmet_before=unmet_before,
    )
    words = check(build_page(facts)).words
    assert f"The one statistic {expected}" in words
    assert "farthest" not in words
    assert "Correlations" not in words


def test_none_agrees(make: Make) -> None:
    names = [str(row["statistic"]) for row in make().statistics]
    words = check(build_page(make(unmet=names, unmet_before=names))).words
    assert (
        "None of the 3 statistics agrees with its target within what the noise explains; none did"
    ) in words


@pytest.mark.parametrize("before", [np.nan, np.inf, -np.inf, 0.0, 1e300, -1e-300])
@pytest.mark.parametrize("error", [0.0, np.nan, np.inf, 1e-320, 1e300, 0.01])
def test_any_numbers(make: Make, before: float, error: float) -> None:
    row = {"statistic": "a", "before": before, "target": 0.2, "standard_error": error}
    rows = [{**row, "after": 0.2, "reachable": False}, {**row, "target": before, "after": 0.1,
            "reachable": True}]  # fmt: skip
    facts = make(statistics=rows, weights=np.ones(3), ess=np.nan)
    check(build_page(facts))


def test_nothing_to_compare(make: Make) -> None:
    row = {"statistic": "a", "before": 1.0, "target": np.nan, "standard_error": np.nan}
    facts = make(statistics=[{**row, "after": 1.0, "reachable": False}], unmet_before=[])
    words = check(build_page(facts)).words
    assert "No statistic has a target with a known error" in words
    assert "explained by noise" not in words
    assert "No statistic was asked for." in check(build_page(make(statistics=[]))).words


def test_long_tables_show_the_farthest_in_their_order(make: Make) -> None:
    rng = np.random.default_rng(1)
    rows = [
        {
            "statistic": f"cell({i})",
            "before": 0.5,
            "target": 0.2,
            "standard_error": 0.01,
            "after": 0.2 + (0.02 + i * 1e-5 if i % 100 == 7 else 1e-4 * rng.random()),
            "reachable": True,
        }
        for i in range(10_000)
    ]
    unmet = [f"cell({i})" for i in (7, 9907)]
    page = build_page(make(statistics=rows, unmet=unmet, unmet_before=[]))
    words = check(page).words
    assert "9,800 statistics nearer to their targets are left out" in words
    assert "9,998 of 10,000 statistics agree" in words
    shown = [int(i) for i in re.findall(r"<bdi>cell\((\d+)\)</bdi>", page)]
    assert len(shown) == 200
    assert shown == sorted(shown)
    assert set(range(7, 10_000, 100)) <= set(shown)
    assert len(page) < 500_000


@pytest.mark.parametrize("columns", [1, 2, 12, 13, 60, 61])
def test_correlations_of_any_number_of_columns(make: Make, columns: int) -> None:
    names = tuple(f"column {i} of a long name" for i in range(columns))
    matrix = np.random.default_rng(0).uniform(-1, 1, (columns, columns))
    matrix[0, 0] = np.nan
    page = build_page(make(correlations=[Correlations(names, matrix, matrix / 2, matrix)]))
    words = check(page).words
    assert "Grey: undefined" in words
    assert ("Too many columns to name" in words) == (columns > 60)
    assert len(page) < 500_000


@pytest.mark.parametrize("value", [np.nan, 0.0, 1.0])
def test_correlations_without_a_scale(make: Make, value: float) -> None:
    matrix = np.full((3, 3), value)
    check(build_page(make(correlations=[Correlations(("a", "b", "c"), matrix, matrix, matrix)])))


def test_many_measures_and_columns_are_counted(make: Make) -> None:
    one = np.ones((1, 1))
    column = {"name": "a", "kind": "numeric", "values": "0 to 1", "source": "declared"}
    facts = make(correlations=[Correlations(("a",), one, one, one)] * 10, columns=[column] * 201)
    words = check(build_page(facts)).words
    assert "Not drawn: the correlations of 2 more measures." in words
    assert "Not listed: 1 more." in words


@pytest.mark.parametrize(
    "weights",
    [
        np.ones(1),
        np.ones(1000),
        np.array([0.0, 2.0]),
        np.array([1e-300, 1e-9, 3.0]),
        np.append(np.zeros(10**5), 10.0**5 + 1),
        np.full(4, 1 + 1e-12),
    ],
)
def test_any_weights(make: Make, weights: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    words = check(build_page(make(weights=weights))).words
    assert f"of {len(weights):,} rows" in words


def test_equal_weights_cost_nothing(make: Make) -> None:
    words = check(build_page(make(weights=np.ones(9), ess=9.0, advice="Left as they were."))).words
    assert "Left as they were." in words
    assert "The price is precision" not in words


def _point(eta: float, value: float, *, rows: int = 9, chosen: bool = False) -> PathPoint:
    return PathPoint(eta, value, value, value, value, value, value, rows, chosen)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0, 1e-300, 1e300, 5.0])
def test_any_path(make: Make, value: float) -> None:
    path = [_point(np.inf, 1.0), _point(1e9, value, rows=5), _point(1e-9, value, chosen=True)]
    words = check(build_page(make(path=path))).words
    assert "Open dots were computed on a sample" in words
    # All points at one trade-off.
    check(build_page(make(path=[_point(2.0, value), _point(2.0, 3.0)])))


@pytest.mark.parametrize(
    "path", [[], [_point(np.inf, 1.0)], [_point(0.0, 1.0, chosen=True)], [_point(0.0, 1.0)] * 2]
)
def test_no_path(make: Make, path: list[PathPoint]) -> None:
    words = check(build_page(make(path=path))).words
    assert "How the weights were chosen" in words
    assert "risk estimate says" not in words


def test_budgets_of_every_kind(make: Make) -> None:
    privacy = {
        **make().privacy,
        "unit": "add-remove",
        "mechanism": "discrete-laplace",
        "post_processing": {"kind": "pure-dp", "epsilon": 1.0},
        "generator": None,
        "total": None,
    }
    words = check(build_page(make(privacy=privacy))).words
    assert "protects the presence of any one row; the number of rows is private" in words
    assert "discrete Laplace" in words
    assert "(L1)" in words
    assert "the generator's own comes on top" in words
    zcdp = {**privacy, "post_processing": {"kind": "zcdp", "rho": 0.5}}
    assert "ρ = 0.5 zCDP" in check(build_page(make(privacy=zcdp))).words


# --- hostile text -----------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "</svg><b>",
    "\"'><a href='https://example.org'>",
    "{{ 7 * 7 }}{% raw %}",
    r"$\frac{x}{",
    "$$",
    "%s %(a)s {0} {name} \\N \\",
    "a\nb\r\tc",
    "a\x00b\x1b[31m\x7f\x85\ufffe",
    "abc\u202edef\u2066ghi",
    "\ud800",
    "😀👩‍👩‍👧",
    "漢字かなカナ한국어",
    "עברית العربية",
    "",
    " ",
    "]]>",
    "<!-- x",
    "&amp;&#0;&lt;",
    "@0@",
    "x" * 10_000,
    "漢" * 10_000,
    "\u0301" * 300,
    "\"onload=alert(1) x='",
    "' onmouseover='alert(1)",
    "{% for x in [1] %}{{ x }}{% endfor %}{# x #}",
    "{{ facts.__class__.__mro__ }}",
    "</title></bdi></td></table><svg onload=alert(1)>",
    "<svg><style>@import '//example.org';</style><desc>",
    "</text><script xlink:href='data:,alert(1)'/>",
    ";} body { background: red } /*",
    "expression(alert(1))",
    "javascript:alert(1)",
    "<base href=x><meta http-equiv=refresh content='0;url=x'>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "\u200e\u200f\u061c\u2067x\u2069",
    "\ufeff\U000e0041",
]


def hostile_facts(make: Make, names: list[str], **changes: Any) -> Facts:
    rows = [
        {"statistic": f"corr({n}, {n})", "before": 0.1, "target": 0.2, "standard_error": 0.1,
         "after": 0.2, "reachable": True}
        for n in names
    ]  # fmt: skip
    columns = [{"name": n, "kind": n, "values": n, "source": n} for n in names]
    every = "".join(names)
    changes = {
        "statistics": rows,
        "columns": columns,
        "notes": names,
        "status": every,
        "advice": every,
        "method": every,
        "success": False,
        "unmet": names,
        "unmet_before": names,
        "certificate": dict.fromkeys(names, 1.0),
        "privacy": {**make().privacy, "statement": every},
        "versions": {n: n for n in names},
        "weights": np.ones(2),
        **changes,
    }
    return make(**changes)


def correlated(names: list[str]) -> list[Correlations]:
    matrix = np.eye(len(names))
    return [Correlations(tuple(names), matrix, matrix, matrix)]


def test_hostile_names(make: Make) -> None:
    page = build_page(hostile_facts(make, HOSTILE, correlations=correlated(HOSTILE)))
    words = check(page).words
    assert "<script>alert(1)</script>" in words
    assert "{{ 7 * 7 }}" in words
    assert "49" not in words
    assert "[U+202E]" in words
    assert "[U+D800]" in words
    assert "(empty)" in words
    assert r"$\frac{x}{" in words
    assert len(page) < 1_000_000


def test_names_in_pictures_are_the_names(make: Make) -> None:
    names = ["$a$", "<b>", "@1@", "😀", "漢字", "x" * 40]
    page = build_page(make(correlations=correlated(names)))
    picture = ElementTree.fromstring(re.findall(r"<svg[^>]*role.*?</svg>", page)[0])
    drawn = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    for name in names[:-1]:
        assert drawn.count(name) == 2
    assert drawn.count("x" * 19 + "…") == 2
    titles = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["x" * 40] * 2


anything = st.text(st.characters(), max_size=40) | st.text(
    st.sampled_from("<>&\"'/{}%$\\@#=-\x00\n\u202e\ud800\ufdd0 abscript"), max_size=40
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(anything, min_size=1, max_size=4))
def test_no_text_gets_out_of_its_place(make: Make, names: list[str]) -> None:
    parsed = check(build_page(hostile_facts(make, names)))
    plain = check(build_page(hostile_facts(make, [f"n{i}" for i in range(len(names))])))
    # As many elements as with harmless names: nothing that a name says becomes one.
    same = len(set(names)) == len(names)
    assert not same or parsed.elements == plain.elements


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(anything, min_size=1, max_size=3))
def test_no_name_breaks_a_picture(make: Make, names: list[str]) -> None:
    check(build_page(hostile_facts(make, names, correlations=correlated(names))))


# --- around it --------------------------------------------------------------------------------


def test_matplotlibs_settings_are_neither_used_nor_changed(whole_facts: Facts) -> None:
    import matplotlib

    plain = build_page(whole_facts)
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert build_page(whole_facts) == plain
        assert dict(matplotlib.rcParams) == before


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, retilt.report; print({'jinja2', 'matplotlib'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(retilt.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "set()"


def test_writes_whole_files_and_asks_before_writing_over(make: Make, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_page(target, make())
    assert target.read_bytes().decode("utf-8") == build_page(make())
    with pytest.raises(OutputExistsError, match="exists already"):
        write_page(target, make())
    write_page(target, make(status="other"), force=True)
    assert "Status: other" in target.read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_facts_must_fit_each_other(make: Make) -> None:
    with pytest.raises(InputError, match=r"weights: got shape \(3,\), expected \(2,\)"):
        make(rows=2, weights=np.ones(3))
    with pytest.raises(InputError, match="weights: expected finite"):
        make(weights=np.array([1.0, np.nan]))
    with pytest.raises(InputError, match="rows: got 0, expected at least 1"):
        make(weights=np.ones(0))
    with pytest.raises(InputError, match="limit: got nan"):
        make(limit=np.nan)
    with pytest.raises(InputError, match="a row lacks after, reachable"):
        make(statistics=[{"statistic": 1, "before": 1, "target": 1, "standard_error": 1}])
    with pytest.raises(InputError, match=r"correlations target: got shape \(1, 1\), expected"):
        Correlations(("a", "b"), np.eye(2), np.eye(1), np.eye(2))
    with pytest.raises(InputError, match="at least one"):
        Correlations((), np.eye(0), np.eye(0), np.eye(0))
