"""The measure options: what each means, and what is said of a slip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import retilt as rt
from retilt._measures import Measures, guards_of, split_options
from retilt.cli import main
from retilt.exceptions import WorkloadError
from retilt.measures.workload import Workload


def built(**options: object) -> Workload:
    return Measures(**options).build("no table is needed", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"correlate": ["a,b"]}, rt.correlation(["a", "b"])),
        ({"correlate": ["a,b:by=g,h"]}, rt.correlation(["a", "b"], by=["g", "h"])),
        ({"moments": ["a:where=b >= 2"]}, rt.moments(["a"], where="b >= 2")),
        ({"mean": ["a"]}, rt.means("a")),
        ({"mean": ["income:by=sex"]}, rt.means("income", by="sex")),
        ({"mean": ["a,b:by=g:bins=4"]}, rt.means(["a", "b"], by="g", bins=4)),
        ({"mean": ['"a,b":where=c IN (1, 2)']}, rt.means("a,b", where="c IN (1, 2)")),
        ({"regress": ["y,a,b"]}, rt.regression("y", ["a", "b"])),
        ({"marginal": ["a:bins=10,b"]}, rt.marginal(["a", "b"], bins={"a": 10})),
        ({"marginals": ["a,b,c:k=2"]}, rt.marginals(["a", "b", "c"], k=2)),
        ({"marginals": ["a,b:bins=7"]}, rt.marginals(["a", "b"], bins=7)),
        ({"share": ["age >= 65"]}, rt.share("age >= 65")),
        ({"share": ["a = ':by=b':by=g"]}, rt.share("a = ':by=b'", by="g")),
        ({"query": ["a / 2"]}, rt.query("a / 2")),
        ({"query": ["a / 2:lower=-1:upper=1e3"]}, rt.query("a / 2", -1, 1000)),
        ({"cdf": ["age:at=25,45"]}, rt.cdf("age", [25.0, 45.0])),
        ({"cdf": ["day:at=2020-01-01"]}, rt.cdf("day", ["2020-01-01"])),
        ({"quantiles": ["pay"]}, rt.quantiles("pay")),
        ({"quantiles": ["pay:at=0.1,0.9:bins=9"]}, rt.quantiles("pay", [0.1, 0.9], bins=9)),
        ({"mean": ["a"], "keep": ["marginals"]}, rt.means("a") + rt.keep("marginals")),
        (
            {"mean": ["a"], "keep": ["correlate:b,c:tolerance=0.01"]},
            rt.means("a") + rt.keep(rt.correlation(["b", "c"]), 0.01),
        ),
    ],
)
def test_an_option_is_its_constructor(options: dict[str, object], expected: Workload) -> None:
    assert built(**options) == expected


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mean": ["a:by=b:by=c"]}, "by is given twice"),
        ({"cdf": ["a:at=1,2:foo=3"]}, "there is no foo, expected at or branching"),
        ({"mean": ["a:by="]}, "--mean: by"),
        ({"mean": ["a:bins=x:by=b"]}, "bins: got 'x'"),
        ({"marginals": ["a,b:k=1.5"]}, "k: got '1.5'"),
        ({"query": ["a:lower=zero"]}, "lower: got 'zero'"),
        ({"cdf": ["age"]}, "as in age:at=25,45,65"),
        ({"cdf": ["a,b:at=3"]}, "expected one"),
        ({"cdf": ["a:at=soon"]}, "soon"),
        ({"quantiles": ["a:at=half"]}, "got 'half'"),
        ({"mean": ["a"], "keep": ["all"]}, "--keep: got 'all'"),
        ({"mean": ["a"], "keep": ["share:"]}, "--keep: got 'share:'"),
        ({"mean": ["a"], "keep": ["marginals:tolerance=much"]}, "tolerance: got 'much'"),
        ({"share": ["age >= (SELECT 1)"]}, "a subquery"),
    ],
)
def test_a_slip_is_named(options: dict[str, object], word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        built(**options)


def test_guards_alone_are_no_measures() -> None:
    with pytest.raises(WorkloadError, match="no measure is named"):
        Measures(keep=["marginals"]).check_any()
    assert guards_of(None) is None
    assert guards_of(["marginals"]) == rt.keep("marginals")


def test_options_within_quotes_are_text() -> None:
    assert split_options('":by=x",b', ["by"]) == ('":by=x",b', {})


def test_all_of_them_in_one_run(
    tmp_path: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        [
            "run", str(tables / "private.csv"), str(tables / "synthetic.csv"),
            "--schema", str(tables / "schema.toml"), "--epsilon", "5", "--seed", "0",
            "--correlate", "age,income", "--mean", "age:by=sex", "--regress", "income,age",
            "--share", "age >= 40:by=sex", "--share", "age >= 65", "--query", "age / 100",
            "--cdf", "age:at=30,50", "--quantiles", "age:at=0.5", "--marginal", "sex",
            "--moments", "age,income:where=age >= 30", "--keep", "marginals",
            "-o", str(tmp_path / "post.csv"), "--tilt", str(tmp_path / "tilt.json"),
            "--plan", str(tmp_path / "plan.json"), "--answers", str(tmp_path / "answers.json"),
            "--report", str(tmp_path / "report.html"), "--output", "json",
        ]
    )  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert code in (0, 4)
    names = [s["statistic"] for s in report["statistics"]]
    for start in (
        "corr(age, income)", "mean(age | sex=", "coef(age;", "share(age >= 40 | sex=",
        "share(age >= 65)", "mean(age / 100)", "cdf(age <= 30)", "quantile(age, 0.5)",
        "cell(sex=", "sd(age | age >= 30)",
    ):  # fmt: skip
        assert any(n.startswith(start) for n in names), start
    assert report["kept"]
    page = (tmp_path / "report.html").read_text()
    assert "guarded statistics moved by at most" in page
    # The files are enough to go on from.
    assert main(["measure", str(tables / "private.csv"), str(tmp_path / "plan.json"), "-o",
                 str(tmp_path / "again.json"), "--quiet"]) == 0  # fmt: skip
    assert main(["sample", str(tables / "synthetic.csv"), str(tmp_path / "tilt.json"), "-o",
                 str(tmp_path / "more.csv"), "--quiet"]) == 0  # fmt: skip
    fitted = ["fit", str(tables / "synthetic.csv"), str(tmp_path / "again.json"), "--keep",
              "marginal:sex:tolerance=0.01", "-o", str(tmp_path / "b.csv"), "--quiet"]  # fmt: skip
    assert main(fitted) in (0, 4)
