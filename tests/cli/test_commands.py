from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from retilt.cli import main
from retilt.exceptions import InputError
from retilt.privacy.answers import Answers, load_answers

CORRELATE = ["--correlate", 'age,"hours, weekly",income']


class Cli:
    """Calls the command line in one folder and keeps what it printed."""

    def __init__(self, folder: Path, tables: Path, capsys: pytest.CaptureFixture[str]):
        self.folder = folder
        self.private = str(tables / "private.csv")
        self.synthetic = str(tables / "synthetic.csv")
        self.schema = ["--schema", str(tables / "schema.toml")]
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        code = main([str(a) for a in arguments])
        self.out, self.err = self.capsys.readouterr()
        return code

    def run(self, *arguments: object) -> int:
        return self(
            "run", self.private, self.synthetic, *self.schema, "--epsilon", 2, "--seed", 0,
            *arguments,
        )  # fmt: skip

    def json(self) -> dict:
        return json.loads(self.out)

    def path(self, name: str) -> Path:
        return self.folder / name


def integers(value: object) -> Iterator[int]:
    """Every integer in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from integers(part)


@pytest.fixture
def cli(tmp_path, tables, capsys, monkeypatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, tables, capsys)


@pytest.fixture(scope="module")
def halves(tmp_path_factory, tables) -> Path:
    """A folder with a plan and its answers."""
    folder = tmp_path_factory.mktemp("halves")
    synthetic, private = str(tables / "synthetic.csv"), str(tables / "private.csv")
    schema, plan = str(tables / "schema.toml"), str(folder / "plan.json")
    assert main(["plan", synthetic, *CORRELATE, "--schema", schema, "--epsilon", "2", "--rows",
                 "4000", "-o", plan, "--quiet"]) == 0  # fmt: skip
    assert main(["measure", private, plan, "-o", str(folder / "answers.json"), "--quiet"]) == 0
    return folder


class TestRun:
    def test_aligns_and_reports(self, cli):
        assert cli.run(*CORRELATE, "-o", "post.csv", "--output", "json") == 0
        report = cli.json()
        assert {"status", "misfit", "ess", "privacy", "statistics", "files"} <= set(report)
        assert report["misfit"]["after"] < report["misfit"]["before"]
        assert 0 < report["ess"] <= report["rows"] == 4000
        assert report["files"] == {"table": "post.csv"}
        names = [s["statistic"] for s in report["statistics"]]
        assert names[0] == 'corr(age, "hours, weekly")'
        for row in report["statistics"]:
            assert set(row) == {
                "statistic", "before", "target", "standard_error", "after", "reachable", "flag"
            }  # fmt: skip
            assert abs(row["after"] - row["target"]) < 3 * row["standard_error"] + 0.02
        assert cli.err == ""

    def test_text_says_verdict_privacy_and_files(self, cli):
        assert cli.run(*CORRELATE, "-o", "post.csv") == 0
        for words in (
            "before",
            "target",
            "Status:",
            "Effective sample size",
            "Privacy:",
            "post.csv",
        ):
            assert words in cli.out
        assert cli.err == ""

    def test_quiet_prints_nothing(self, cli):
        assert cli.run(*CORRELATE, "-o", "post.csv", "--quiet") == 0
        assert (cli.out, cli.err) == ("", "")
        assert cli("--quiet", "sample", cli.synthetic, "missing.json", "-o", "x.csv") == 2
        assert cli.out == ""

    def test_csv_in_csv_out_keeps_every_record(self, cli):
        assert cli.run(*CORRELATE, "-o", "post.csv", "--quiet") == 0
        source = Path(cli.synthetic).read_bytes().splitlines(keepends=True)
        written = cli.path("post.csv").read_bytes().splitlines(keepends=True)
        assert written[0] == source[0]
        assert len(written) == len(source)
        assert set(written) <= set(source)

    def test_writes_every_file_it_is_asked_for(self, cli):
        files = {"-o": "post.csv.gz", "--weights": "w.parquet", "--tilt": "t.json",
                 "--plan": "p.json", "--answers": "a.json"}  # fmt: skip
        options = [part for pair in files.items() for part in pair]
        assert cli.run(*CORRELATE, *options, "-n", 500, "--output", "json") == 0
        assert set(cli.json()["files"].values()) == set(files.values())
        assert pc.read_csv(cli.path("post.csv.gz")).num_rows == 500
        weights = pq.read_table(cli.path("w.parquet"))
        assert weights.column_names == ["weight"]
        assert sum(weights["weight"].to_pylist()) / 4000 == pytest.approx(1)
        assert json.loads(cli.path("a.json").read_text("utf-8"))["private"] is True

    def test_seed_reaches_sampling_only(self, cli):
        saved = ["--tilt", "t.json", "--answers", "a.json"]
        assert cli.run(*CORRELATE, "-o", "1.csv", *saved, "--quiet") == 0
        assert cli.run(*CORRELATE, "--answers", "b.json", "--quiet") == 0
        assert cli.path("a.json").read_bytes() != cli.path("b.json").read_bytes()
        again = ["sample", cli.synthetic, "t.json", "--seed", 0, "--quiet"]
        assert cli(*again, "-o", "2.csv") == 0
        assert cli.path("1.csv").read_bytes() == cli.path("2.csv").read_bytes()

    def test_all_kinds_of_measure_together(self, cli):
        workload = cli.path("w.toml")
        workload.write_text('[[measures]]\nkind = "marginal"\ncolumns = ["city"]\n', "utf-8")
        assert cli.run(
            "--moments", "age", "--marginal", "age:bins=4,sex", "--marginal", "sex",
            "--correlate-with", "income", "--top", 3, "--workload", workload,
            "-o", "post.csv", "--output", "json",
        ) in (0, 4)  # fmt: skip
        names = {s["statistic"] for s in cli.json()["statistics"]}
        assert {"mean(age)", "sd(age)", "cell(sex=F)", "cell(city=Oslo)"} <= names
        assert any(n.startswith("corr(income, ") or ", income)" in n for n in names)

    def test_add_remove(self, cli):
        options = ["--unit", "add-remove", "--delta", "1e-6", "--rows", 5000]
        assert cli.run(*CORRELATE, *options, "--answers", "a.json", "--output", "json") == 0
        assert cli.json()["privacy"]["unit"] == "add-remove"
        answers = json.loads(cli.path("a.json").read_text("utf-8"))
        assert 4000 not in set(integers(answers))

    @pytest.mark.parametrize("budget", [["--delta", "0"], ["--delta", "1e-5"]])
    def test_budgets(self, cli, budget):
        assert cli.run(*CORRELATE, *budget, "-o", "post.csv", "--quiet") == 0

    @pytest.mark.parametrize("method", ["paper", "paper-exact"])
    def test_the_papers_method(self, cli, method):
        files = ["-o", "post.csv", "--tilt", "t.json", "--answers", "a.json"]
        options = ["--method", method, *files, "--output", "json"]
        assert cli.run(*CORRELATE, *options) == 0
        assert cli.json()["method"] == method
        answers = load_answers(cli.path("a.json"))
        assert answers.plan.basis == "paper"
        again = ["sample", cli.synthetic, "t.json", "--seed", 0, "--quiet"]
        assert cli(*again, "-o", "2.csv") == 0
        assert cli.path("post.csv").read_bytes() == cli.path("2.csv").read_bytes()
        assert cli(*again, "--sampling", "systematic", "-o", "3.csv") == 0
        assert cli.path("post.csv").read_bytes() != cli.path("3.csv").read_bytes()
        # The same answers serve any method, and the seed repeats the algorithm.
        for number in (4, 5):
            assert cli("fit", cli.synthetic, "a.json", "--method", method, "--seed", 0,
                       "--tilt", f"{number}.json", "--quiet") == 0  # fmt: skip
        assert cli.path("4.json").read_bytes() == cli.path("5.json").read_bytes()

    @pytest.mark.parametrize("program", ["qp", "lp"])
    def test_denoised_answers(self, cli, program):
        options = ["--denoise", program, "--tilt", "t.json", "--quiet"]
        assert cli.run(*CORRELATE, *options) == 0
        tilt = json.loads(cli.path("t.json").read_text("utf-8"))
        assert tilt["method"] == {"name": "default", "denoise": program}

    def test_the_floor_does_not_belong_to_the_papers_method(self, cli, monkeypatch):
        monkeypatch.setattr("retilt.pipeline.measure", lambda *_, **__: pytest.fail("measured"))
        options = ["--method", "paper", "--min-ess", 100, "-o", "post.csv"]
        assert cli.run(*CORRELATE, *options) == 2
        assert "min_ess" in cli.err

    def test_the_report_is_one_page(self, cli):
        assert cli.run(*CORRELATE, "--report", "r.html", "--answers", "a.json", "--quiet") == 0
        page = cli.path("r.html").read_text("utf-8")
        assert page.startswith("<!DOCTYPE html>")
        assert "hours, weekly" in page
        assert str(cli.folder) not in page
        assert "<script" not in page
        fit = ["fit", cli.synthetic, "a.json", "--report", "r.html"]
        assert cli(*fit) == 2
        assert cli(*fit, "--force") == 0
        assert cli.path("r.html").read_text("utf-8") == page

    def test_zcdp(self, cli):
        assert cli("run", cli.private, cli.synthetic, *CORRELATE, *cli.schema, "--rho", "0.5",
                   "-o", "post.csv", "--quiet") == 0  # fmt: skip

    def test_generator_is_added_up(self, cli):
        options = ["--generator-epsilon", 3, "--generator-delta", "1e-9"]
        assert cli.run(*CORRELATE, *options, "-o", "post.csv") == 2
        assert "--generator-unit" in cli.err
        options += ["--generator-unit", "replace-one"]
        assert cli.run(*CORRELATE, *options, "-o", "post.csv", "--output", "json") == 0
        assert cli.json()["privacy"]["total"]["epsilon"] == pytest.approx(5)
        assert cli.json()["privacy"]["generator"]["unit"] == "replace-one"

    @pytest.mark.parametrize(
        "wrong",
        [
            ["-n", -5],
            ["--seed", -1],
            ["--min-ess", "1e9"],
            ["--min-ess", -1],
            ["--base-weights", "nope"],
        ],
    )
    def test_nothing_is_spent_on_what_is_refused(self, cli, wrong, monkeypatch):
        spent = []
        monkeypatch.setattr("retilt.pipeline.measure", lambda *_, **__: spent.append(1))
        assert cli.run(*CORRELATE, *wrong, "-o", "post.csv") == 2
        assert spent == []

    def test_answers_are_kept_where_the_fit_fails(self, cli, monkeypatch):
        def broken(*_, **__):
            raise RuntimeError("no")

        monkeypatch.setattr("retilt.pipeline.fit", broken)
        assert cli.run(*CORRELATE, "-o", "post.csv") == 1
        (kept,) = Path().glob("retilt-answers-*.json")
        assert str(kept) in cli.err
        assert load_answers(kept).private


class TestHalves:
    def test_plan_says_what_it_would_cost(self, cli):
        assert cli("plan", cli.synthetic, *CORRELATE, "--epsilon", 1, "--rows", 4000,
                   "--output", "json") == 0  # fmt: skip
        report = cli.json()
        assert report["files"] == {}
        assert all(s["expected_standard_error"] > 0 for s in report["statistics"])
        assert cli("plan", cli.synthetic, *CORRELATE, "--epsilon", 1, "--rows", 4000) == 0
        assert "expected standard error" in cli.out

    def test_fit_and_sample_need_no_private_table(self, cli, halves):
        answers = halves / "answers.json"
        assert cli("fit", cli.synthetic, answers, "-o", "post.parquet", "--tilt", "t.json",
                   "--seed", 0, "--output", "json") == 0  # fmt: skip
        assert cli.json()["privacy"]["private"] is True
        assert pq.read_table(cli.path("post.parquet")).num_rows == 4000
        more = ["sample", cli.synthetic, "t.json", "-n", 7, "--seed", 1]
        assert cli(*more, "-o", "more.csv", "--output", "json") == 0
        report = cli.json()
        assert (report["rows"], report["files"]) == (7, {"table": "more.csv"})
        assert not any("other rows" in note for note in report["notes"])
        other = ["sample", cli.private, "t.json", "-o", "other.csv", "--output", "json"]
        assert cli(*other) == 0
        assert any("other rows" in note for note in cli.json()["notes"])
        for method in ("multinomial", "balanced"):
            assert cli(*more, "--shuffle", "--sampling", method, "-o", f"{method}.csv") == 0
            assert "7 rows drawn" in cli.out

    def test_measure_prints_what_it_released(self, cli, halves):
        assert cli("measure", cli.private, halves / "plan.json", "-o", "a.json") == 0
        assert "estimate" in cli.out
        assert "Privacy:" in cli.out

    def test_measure_refuses_another_number_of_rows(self, cli, halves):
        short = cli.path("short.csv")
        short.write_bytes(b"".join(Path(cli.private).read_bytes().splitlines(True)[:100]))
        assert cli("measure", short, halves / "plan.json", "-o", "a.json") == 2
        assert "4000" in cli.err.replace(",", "")
        assert not cli.path("a.json").exists()

    def test_weights_alone(self, cli, halves):
        assert cli("fit", cli.synthetic, halves / "answers.json", "--weights", "w.parquet") == 0
        assert cli.path("w.parquet").exists()

    def test_nothing_to_write_is_refused(self, cli, halves):
        assert cli("fit", cli.synthetic, halves / "answers.json") == 2
        assert "--weights" in cli.err
        for option in (["-n", 5], ["--sampling", "systematic"], ["--shuffle"]):
            report = ["--report", "r.html", *option]
            assert cli("fit", cli.synthetic, halves / "answers.json", *report) == 2
            assert "-o" in cli.err


class TestNothingIsLost:
    @pytest.mark.parametrize("command", ["run", "measure"])
    def test_answers_whose_own_file_can_not_be_written(self, cli, halves, command):
        dangling = cli.path("a.json")
        dangling.symlink_to(cli.path("nowhere") / "a.json")
        if command == "run":
            code = cli.run(*CORRELATE, "--answers", dangling)
        else:
            code = cli("measure", cli.private, halves / "plan.json", "-o", dangling)
        assert code == 2
        assert "can't be written" in cli.err
        (kept,) = Path().glob("retilt-answers-*.json")
        assert str(kept) in cli.err
        assert load_answers(kept).private

    def test_answers_go_to_the_temporary_folder_where_this_one_takes_none(
        self, cli, monkeypatch, tmp_path_factory
    ):
        spare = tmp_path_factory.mktemp("spare")
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(spare))
        save = Answers.save

        def elsewhere(answers, path, **options):
            if Path(path).parent != spare:
                raise InputError("no room here.")
            save(answers, path, **options)

        monkeypatch.setattr(Answers, "save", elsewhere)
        assert cli.run(*CORRELATE, "--answers", "a.json") == 2
        assert "no room here" in cli.err
        (kept,) = spare.glob("retilt-answers-*.json")
        assert load_answers(kept).private

    def test_a_private_first_row_is_not_told_as_column_names(self, cli, halves):
        bare = cli.path("bare.csv")
        bare.write_text("SECRET-4711,50000,F\n" * 3, "utf-8")
        assert cli("measure", bare, halves / "plan.json", "-o", "k.json") == 2
        assert "has no column" in cli.err
        assert "SECRET" not in cli.err

    def test_an_empty_path_is_no_folder(self, cli, halves):
        pq.write_table(pc.read_csv(cli.private), cli.path("p.parquet"))
        assert cli("fit", "", halves / "answers.json", "-o", "k.csv") == 2
        assert "is empty" in cli.err
        assert not cli.path("k.csv").exists()


class TestOutputs:
    @pytest.fixture
    def taken(self, cli) -> Path:
        path = cli.path("post.csv")
        path.write_text("mine", "utf-8")
        return path

    def test_existing_output_is_kept(self, cli, taken):
        assert cli.run(*CORRELATE, "-o", taken, "--answers", "a.json") == 2
        assert taken.read_text("utf-8") == "mine"
        assert not cli.path("a.json").exists()
        assert "--force" in cli.err or "force" in cli.err

    def test_existing_output_is_found_before_the_tables_are_read(self, cli, taken):
        assert cli("run", "no.csv", "no.csv", *CORRELATE, "--epsilon", 1, "-o", taken) == 2
        assert "post.csv" in cli.err

    def test_force(self, cli, taken):
        assert cli.run(*CORRELATE, "-o", taken, "--force", "--quiet") == 0
        assert taken.stat().st_size > 1000

    def test_an_input_is_never_an_output(self, cli):
        before = hashlib.sha256(Path(cli.private).read_bytes()).digest()
        assert cli.run(*CORRELATE, "-o", cli.private, "--force") == 2
        assert hashlib.sha256(Path(cli.private).read_bytes()).digest() == before

    def test_nor_where_the_input_is_a_database_a_glob_or_a_folder(self, cli):
        folder = cli.path("parts")
        folder.mkdir()
        pq.write_table(pc.read_csv(cli.private), folder / "1.parquet")
        duckdb.connect(str(cli.path("my.db"))).execute(
            "CREATE TABLE t AS SELECT * FROM 'parts/1.parquet'"
        ).close()
        before = {p: p.read_bytes() for p in (folder / "1.parquet", cli.path("my.db"))}
        for private, option, output in (
            ("duckdb:///my.db?table=t", "--report", "my.db"),
            ("parts/*.parquet", "-o", "parts/1.parquet"),
            ("parts/*.parquet", "-o", "parts/2.parquet"),
            ("parts", "-o", "parts/2.parquet"),
            ("parts", "-o", "parts/deep/2.parquet"),
        ):
            arguments = ["run", private, cli.synthetic, *CORRELATE, "--epsilon", 2, *cli.schema]
            assert cli(*arguments, option, output, "--force") == 2
            assert "is an input file" in cli.err
        assert {p: p.read_bytes() for p in before} == before
        # What is no part of the table may stand beside it.
        assert cli("run", "parts", cli.synthetic, *CORRELATE, "--epsilon", 2, *cli.schema,
                   "-o", "parts/post.csv", "--quiet") == 0  # fmt: skip

    def test_two_outputs_of_one_name(self, cli):
        assert cli.run(*CORRELATE, "-o", "x.csv", "--weights", "./x.csv") == 2


class TestEvaluate:
    def test_before_and_after(self, cli):
        assert cli.run(*CORRELATE, "-o", "post.csv", "--quiet") == 0
        columns = ["--columns", 'age,"hours, weekly",income', *cli.schema]
        tables = [cli.private, cli.synthetic, "post.csv"]
        assert cli("evaluate", *tables, *columns, "--output", "json") == 0
        report = cli.json()
        assert report["utility_improvement"]["raw"] > 0.5
        assert (
            report["correlation_error"]["after"]["raw"]
            < report["correlation_error"]["before"]["raw"]
        )
        assert cli("evaluate", *tables, *columns, "--quiet") == 0
        assert "utility improvement" in cli.out
        assert "NOT PRIVATE" in cli.out


class TestSchema:
    def test_printed_and_written_are_the_same(self, cli):
        assert cli("schema", cli.synthetic) == 0
        printed = cli.out
        assert "[columns" in printed
        assert cli("schema", cli.synthetic, "-o", "s.toml") == 0
        assert cli.path("s.toml").read_text("utf-8") == printed
        assert cli("plan", cli.synthetic, "--schema", "s.toml", *CORRELATE, "--epsilon", 1,
                   "--rows", 4000, "--quiet") == 0  # fmt: skip

    def test_json(self, cli):
        assert cli("schema", cli.synthetic, "--output", "json") == 0
        assert set(cli.json()) == {"schema", "undecided", "files"}


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["plan", "SYN", "--correlate", "age,nonsense", "--epsilon", "1"], "nonsense"),
            (["plan", "SYN", "--correlate", "age,sex"], "epsilon"),
            (["plan", "SYN", "--marginal", "age:bins=x", "--epsilon", "1"], "bins"),
            (["plan", "SYN", "--workload", "no.toml", "--epsilon", "1"], "no.toml"),
            (["plan", "SYN", "--correlate-with", "nonsense", "--epsilon", "1"], "nonsense"),
            (["plan", "no.csv", "--moments", "age", "--epsilon", "1"], "no.csv"),
            (["plan", "SYN", "--moments", "age", "--epsilon", "-1"], "epsilon"),
            (["plan", "SYN", "--moments", "age", "--epsilon", "nan"], "epsilon"),
            (["plan", "SYN", "--moments", "age", "--epsilon", "1", "--rho", "1"], "rho"),
            (["fit", "SYN", "SYN", "-o", "x.csv"], "JSON"),
        ],
    )
    def test_one_line_and_exit_code_2(self, cli, arguments, words):
        rows = ["--rows", 4000] if arguments[0] == "plan" else []
        given = [cli.synthetic if a == "SYN" else a for a in arguments]
        code = cli(*given, *rows, "--output", "json")
        assert code == 2
        assert words in cli.err
        assert cli.err.count("\n") == 1
        assert cli.json()["error"]["exit_code"] == 2

    def test_an_interrupt_is_said(self, cli, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("retilt.pipeline.measure", interrupt)
        assert cli.run(*CORRELATE, "-o", "post.csv", "--output", "json") == 130
        assert cli.err.startswith("error: interrupted")
        assert cli.json()["error"]["exit_code"] == 130
        assert not cli.path("post.csv").exists()

    def test_internal_errors_of_private_commands_show_no_text(self, cli, monkeypatch):
        def leak(*_, **__):
            raise ValueError("SECRET-VALUE 4711")

        monkeypatch.setattr("retilt.pipeline.measure", leak)
        code = cli.run(*CORRELATE, "-o", "post.csv", "--output", "json")
        assert code == 1
        assert "SECRET" not in cli.out + cli.err
        assert "Traceback" not in cli.err
        assert "ValueError" in cli.err
        assert cli.json()["error"]["type"] == "ValueError"

    def test_private_content_never_shows(self, cli):
        bad = cli.path("bad.csv")
        bad.write_bytes(b'age,income\n"SECRET-4711,1\n\xff\xfe,"SECRET"x\n12,\x00\n')
        for arguments in (["run", bad, cli.synthetic, *CORRELATE, "--epsilon", 1, "-o", "x.csv"],
                          ["evaluate", bad, cli.synthetic, cli.synthetic]):  # fmt: skip
            assert cli(*arguments) == 2
            assert "SECRET" not in cli.out + cli.err

    def test_gzip_that_is_none(self, cli):
        bad = cli.path("bad.csv.gz")
        bad.write_bytes(gzip.compress(b"age\n1\n")[:-6])
        assert cli("run", bad, cli.synthetic, *CORRELATE, "--epsilon", 1, "-o", "x.csv") == 2
        assert cli.err.startswith("error: ")
