"""Names of tables, columns and categories that are SQL, paths or markup: right, or refused."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import retilt as rt
from retilt.engines.local import open_table
from retilt.exceptions import InputError, RetiltError
from retilt.privacy.targets import load_targets
from retilt.testing import insecure_measure

NAMES = [
    'a"b',
    "a'b",
    '"; DROP TABLE t; --',
    "'); DROP TABLE t; --",
    "x; DELETE FROM t",
    "/* x */",
    "-- x",
    "a\nb",
    "a\\b",
    "a.b",
    "a, b",
    "(SELECT 1)",
    "SELECT",
    "rowid",
    "c0",
    "v0",
    "%s {0} {name} $1 ?",
    "COLUMNS(*)",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "\u017f",  # its capital is an S
    "😀",
    "x" * 1_000,
]
SOME = [
    name if number < 8 else pytest.param(name, marks=pytest.mark.slow)
    for number, name in enumerate(NAMES)
]
ODD_NAMES = ["a\x00b", "\x00"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def table(name: str) -> pa.Table:
    """A hundred rows of a number and a category, each called ``name`` in part."""
    rows = range(100)
    return pa.table(
        {
            name: [float(i % 10) for i in rows],
            name + " too": [name if i % 4 else "other one" for i in rows],
            "plain": [float((3 * i) % 7) for i in rows],
        }
    )


def without_noise(made: rt.Plan, data: Any) -> dict[str, float]:
    """Estimates at so large a budget that the noise is nothing."""
    answers = insecure_measure(data, made, rng=np.random.default_rng(0))
    return {row["statistic"]: row["estimate"] for row in answers.statistics_table()}


@pytest.mark.parametrize("name", SOME, ids=lambda n: n[:12])
def test_every_kind_of_measure_with_hostile_names(name: str, tmp_path: Path) -> None:
    data = table(name)
    number, category = quoted(name), quoted(name + " too")
    workload = (
        rt.correlation([name, "plain"])
        + rt.means("plain", by=name + " too", where=f"{number} >= 0")
        + rt.means([name], where=f"{category} = {text(name)}")
        + rt.marginal([name, name + " too"], bins={name: [5]})
        + rt.share(f"{number} > 5 AND {category} = {text(name)}")
        + rt.share(f"{number} > 5", by=name + " too")
        + rt.query(f"CASE WHEN {category} = {text(name)} THEN {number} END", 0, 10)
        + rt.cdf(name, [2, 5])
        + rt.quantiles(name, [0.5], bins=[3, 6])
    )
    schema = {
        name + " too": {"kind": "categorical", "categories": [name, "other one"]},
        name: {"kind": "numeric", "lower": 0, "upper": 10},
    }
    made = rt.plan(data, workload, epsilon=1e6, delta=1e-6, rows=100, schema=schema)
    made.save(tmp_path / "p.json")
    again = rt.load_plan(tmp_path / "p.json")
    assert again.sha256 == made.sha256
    found = without_noise(again, data)
    mask = pc.equal(data[name + " too"], name)
    both = pc.and_(mask, pc.greater(data[name], 5))
    share = next(v for s, v in found.items() if s.startswith("share(") and " AND " in s)
    assert share == pytest.approx(pc.sum(both).as_py() / 100, abs=1e-3)
    mean = pc.mean(data[name].filter(mask)).as_py()
    means = [v for s, v in found.items() if s.startswith("mean(") and f"= {text(name)}" in s]
    assert any(v == pytest.approx(mean, abs=0.25) for v in means)


@pytest.mark.parametrize("name", [*NAMES, *ODD_NAMES], ids=lambda n: repr(n[:12]))
def test_hostile_names_in_duckdb_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    odd = "\x00" in name
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        if not odd:
            connection.register("given", table(name))
            connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM given")
    address = f"duckdb:////{str(path).lstrip('/')}?table={quote(quoted(name), safe='')}"
    try:
        opened = open_table(address, private=True)
    except InputError:
        assert odd
    else:
        assert opened.names == (name, name + " too", "plain")
        assert opened.rows == 100
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
        assert len(connection.execute("SHOW TABLES").fetchall()) == (1 if odd else 2)


@pytest.mark.parametrize(
    "address",
    [
        "duckdb:///{path}?table=t; DROP TABLE t",
        "duckdb:///{path}?table=t&table=u",
        "duckdb:///{path}?table=",
        "duckdb:///{path}",
        "duckdb:///{path}?table=t UNION SELECT 1",
        "duckdb:///{path}?table=(SELECT 1)",
        "duckdb:///{path}?table=read_csv('/etc/passwd')",
        "duckdb:///{path}?table=\"read_csv('/etc/passwd')\"",
        "duckdb:///{path}?table='/etc/passwd'",
        "duckdb:///{path}?table=/etc/passwd",
        "duckdb:///{path}?table=other.csv",
        "duckdb:///{path}?table=" + "x" * 100_000,
        "duckdb:///{path}%00?table=t",
        "duckdb://host/{path}?table=t",
        "duckdb:///:memory:?table=t",
        "file:///{path}?table=t",
    ],
)
def test_addresses_that_are_more_than_a_table(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.csv").write_text("x\n1\n")
    with duckdb.connect("f.db") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    before = Path("f.db").read_bytes()
    with pytest.raises(RetiltError):
        open_table(address.format(path="f.db"), private=True)
    assert Path("f.db").read_bytes() == before


def test_nothing_that_a_file_says_is_used_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text of the files is a path; only the files that are named are opened."""
    trap = str(tmp_path / "trap.csv")
    Path(trap).write_text("x\n1\n")
    data = pa.table({trap: [1.0, 2.0, 3.0, 4.0], "/dev/zero": ["/dev/zero", trap, trap, "x"]})
    made = rt.plan(
        data,
        rt.means(trap) + rt.marginal(["/dev/zero"]) + rt.share(f"{quoted(trap)} > 1"),
        epsilon=1.0,
        delta=1e-6,
        rows=4,
        schema={"/dev/zero": {"kind": "categorical"}},
    )
    made.save(tmp_path / "plan.json")
    answers = rt.measure(data, made)
    answers.save(tmp_path / "answers.json")
    tilt = rt.fit(data, answers)
    tilt.save(tmp_path / "tilt.json")
    opened: list[str] = []
    real_open, real_stat = Path.open, Path.stat

    def spy(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(self))
        return real_open(self, *args, **kwargs)

    def spy_stat(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(self))
        return real_stat(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", spy)
    monkeypatch.setattr(Path, "stat", spy_stat)
    rt.load_plan(tmp_path / "plan.json")
    rt.load_answers(tmp_path / "answers.json")
    rt.load_tilt(tmp_path / "tilt.json", data)
    ours = {str(tmp_path / f"{n}.json") for n in ("plan", "answers", "tilt")}
    assert {o for o in opened if o.startswith((str(tmp_path), "/dev"))} == ours


def test_a_report_on_hostile_names(tmp_path: Path) -> None:
    """From a table to the page: nothing of the names becomes markup."""
    name = "</style><script>alert(1)</script>\"onload='x' {{7*7}}{% raw %}"
    data = table(name)
    workload = rt.correlation([name, "plain"]) + rt.marginal([name + " too"])
    made = rt.plan(data, workload, epsilon=1.0, delta=1e-6, rows=100)
    tilt = rt.fit(data, rt.measure(data, made))
    tilt.report(tmp_path / "r.html")
    tags = tags_of((tmp_path / "r.html").read_text("utf-8"))
    assert "script" not in {tag for tag, _ in tags}
    assert [tag for tag, _ in tags].count("style") == 1


class Tags(HTMLParser):
    """Elements and the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))


def tags_of(page: str) -> list[tuple[str, list[str]]]:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert "{{7*7}}" in page
    assert not any(name.startswith("on") for _, names in parser.found for name in names)
    return parser.found


def test_a_source_of_published_statistics_is_text(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)></script>{{7*7}}\u202e"
    content = {
        "format": "retilt-published/1",
        "source": hostile,
        "privacy": hostile,
        "statistics": [{"mean": "plain", "value": 3, "standard_error": 0.1}],
    }
    (tmp_path / "p.json").write_text(json.dumps(content))
    tilt = rt.fit(table("x"), load_targets(tmp_path / "p.json"))
    tilt.report(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "\u202e" not in page
    assert "img" not in {tag for tag, _ in tags_of(page)}
