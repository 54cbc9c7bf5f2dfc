"""Whatever ends ``retilt measure``, and wherever: no release without a charge.

Three attacks, all through the command line's own code:

* a process is killed at a random moment, uniform over 1.2 times the run that was measured before;
* the same in a process forked from one that has loaded everything, so that no kill is wasted on
  the start of Python: the whole run is measuring, charging and writing;
* ``os._exit`` before every line that runs of the modules that charge, draw and write, and so before
  and after every write, commit, rename and draw; and around every SQL statement of the ledger.

After each one the ledger is read, and every answers file, every draft of one and everything that
was printed must have a charge that is spent. ``RETILT_KILLS`` sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import retilt as rt
from retilt import cli
from retilt.privacy.ledger import Ledger

SOURCE = Path(rt.__file__).parent
WATCHED = {
    str(SOURCE / name)
    for name in (
        *("cli.py", "pipeline.py", "_output.py"),
        *(f"privacy/{part}.py" for part in ("account", "answers", "ledger", "mechanism")),
    )
}
"""Where it is charged, summed, drawn and written."""

KILLS = int(os.environ.get("RETILT_KILLS", "200"))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
    # Newer Pythons warn of forking beside threads, which a parallel run of the tests has.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@dataclass
class Custodian:
    """A folder with a ledger, a plan and a private table."""

    folder: Path

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "budget.db")

    def command(self, run: int) -> list[str]:
        names = {"out": f"answers-{run}.json", "page": f"privacy-{run}.md"}
        return [
            *("measure", str(self.folder / "real.csv"), str(self.folder / "plan.json")),
            *("-o", str(self.folder / names["out"]), "--privacy", str(self.folder / names["page"])),
            *("--ledger", str(self.folder / "budget.db")),
        ]

    def spent(self) -> set[int]:
        """Numbers of the charges that can't be taken back."""
        return {c.number for c in self.ledger.account().charges if c.state == "spent"}

    def check(self) -> int:
        """Every release so far has a charge of its own that is spent. Returns their number."""
        texts = [p.read_text("utf-8", "replace") for p in self.folder.iterdir() if _ours(p)]
        found = [number for number in map(_charge, texts) if number is not None]
        assert len(found) == len(set(found)), "two releases share a charge"
        assert set(found) <= self.spent(), "a release without a charge"
        return len(found)

    def renew(self) -> None:
        """A ledger without charges: reading those of earlier runs takes lines, too."""
        self.tidy()
        for path in self.folder.glob("budget.db*"):
            path.unlink()
        self.ledger.open_dataset("private", epsilon=10_000, delta=1e-2)

    def tidy(self) -> None:
        """Remove what was released, which has been checked, so that checking stays fast."""
        for path in self.folder.iterdir():
            if _ours(path) or "privacy-" in path.name:
                path.unlink()


def _ours(path: Path) -> bool:
    return path.name.startswith(("answers-", ".answers-"))


def _charge(text: str) -> int | None:
    """The charge that a file of answers, or a draft of one, names; None if it holds no value.

    The values come last in the file and the charge comes first.
    """
    if '"values"' not in text:
        return None
    found = re.search(r'"charge": (\d+)', text)
    assert found, "values without a charge"
    return int(found.group(1))


@pytest.fixture(scope="module")
def custodian(tmp_path_factory: pytest.TempPathFactory) -> Custodian:
    made = Custodian(tmp_path_factory.mktemp("custodian"))
    rows = 2000
    table = pa.table(
        {
            "age": [17 + i * 7 % 70 for i in range(rows)],
            "sex": ["FM"[i * 5 % 2] for i in range(rows)],
            "income": [i * 11 % 97 / 10 for i in range(rows)],
        }
    )
    rt_csv = "age,sex,income\n" + "\n".join(
        f"{a},{s},{i}" for a, s, i in zip(*(c.to_pylist() for c in table.columns), strict=True)
    )
    (made.folder / "real.csv").write_text(rt_csv + "\n", encoding="utf-8")
    workload = rt.correlation(["age", "income"]) + rt.marginal(["sex"])
    rt.plan(table, workload, epsilon=1, rows=rows).save(made.folder / "plan.json")
    made.renew()
    return made


# --- killing ------------------------------------------------------------------------------


def fork(job: Callable[[], Any]) -> int:
    """Run a job in a forked process; gives its number."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(120)  # a child that hangs ends, and is found by its exit code
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        job()
    finally:
        os._exit(0)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_forked(custodian: Custodian, run: int) -> int:
    return fork(lambda: cli.main(custodian.command(run)))


def warm_up(custodian: Custodian) -> None:
    """Load everything that a run needs, so that a forked run does nothing but its work."""
    folder = custodian.folder / "warm"
    folder.mkdir(exist_ok=True)
    call = custodian.command(0)
    call[call.index("-o") + 1] = str(folder / "answers.json")
    call[call.index("--privacy") + 1] = str(folder / "privacy.md")
    assert cli.main(["--quiet", *call, "--force"]) == 0


def measured(job: Callable[[], object]) -> float:
    """Seconds of a run, the median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return sorted(times)[2]


def kill_forked(custodian: Custodian, kills: int) -> tuple[int, int]:
    """Numbers of kills that came while the run was on, and of releases."""
    warm_up(custodian)
    moments = random.Random(0)
    length = measured(lambda: ended(run_forked(custodian, 10**6 + moments.randrange(10**6))))
    custodian.tidy()
    hit = releases = 0
    for run in range(kills):
        child = run_forked(custodian, run)
        time.sleep(moments.uniform(0, 1.2 * length))
        os.kill(child, signal.SIGKILL)
        hit += ended(child) == -signal.SIGKILL
        releases += custodian.check()
        custodian.tidy()
    return hit, releases


def test_forked_kills_short(custodian: Custodian) -> None:
    hit, _ = kill_forked(custodian, 12)
    assert hit


@pytest.mark.slow
def test_forked_kills(custodian: Custodian) -> None:
    hit, releases = kill_forked(custodian, KILLS)
    print(f"{KILLS} kills, {hit} of them during the run; {releases} complete releases")
    assert hit > KILLS / 3
    assert releases  # some came late enough, or the test would show nothing


@pytest.mark.slow
def test_kills_of_whole_processes(custodian: Custodian) -> None:
    kills = max(10, KILLS // 10)
    moments = random.Random(1)
    command = [sys.executable, "-m", "retilt"]

    def start(run: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *custodian.command(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    length = measured(lambda: start(10**6 + moments.randrange(10**6)).communicate())
    for run in range(kills):
        before = len(custodian.spent())
        process = start(2 * 10**6 + run)
        time.sleep(moments.uniform(0, 1.2 * length))
        process.kill()
        printed, _ = process.communicate()
        custodian.check()
        assert "Released" not in printed or len(custodian.spent()) == before + 1
        custodian.tidy()


# --- an end at every line -----------------------------------------------------------------


class Countdown:
    """Ends the process before the watched line that is the ``left``-th to run."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                os._exit(9)
        return self


def lines_of_a_run(custodian: Custodian) -> int:
    """How many lines of ours a run executes."""
    custodian.renew()
    counter = Countdown(0)
    sys.settrace(counter)
    try:
        code = cli.main(["--quiet", *custodian.command(3 * 10**6)])
    finally:
        sys.settrace(None)
    assert code == 0
    custodian.tidy()
    return -counter.left


def exit_at(custodian: Custodian, line: int) -> int:
    def job() -> None:
        sys.settrace(Countdown(line))
        cli.main(["--quiet", *custodian.command(4 * 10**6 + line)])

    return ended(fork(job))


def check_lines(custodian: Custodian, lines: Iterator[int]) -> tuple[int, int]:
    """Numbers of runs that were ended, and of releases that were complete."""
    stopped = releases = 0
    for line in lines:
        custodian.renew()
        stopped += exit_at(custodian, line) == 9
        releases += custodian.check()
    return stopped, releases


def test_an_exit_at_some_lines(custodian: Custodian) -> None:
    warm_up(custodian)
    total = lines_of_a_run(custodian)
    stopped, _ = check_lines(custodian, iter(range(1, total, max(1, total // 12))))
    assert stopped > 8


@pytest.mark.slow
def test_an_exit_at_every_line(custodian: Custodian) -> None:
    """At every line with ``RETILT_KILLS=1000`` or more, else at some of them, evenly spaced."""
    warm_up(custodian)
    total = lines_of_a_run(custodian)
    step = 1 if KILLS >= 1000 else max(1, total // (2 * KILLS))
    # The last lines in any case: there the answers have been written.
    lines = sorted({*range(1, total + 1, step), *range(max(1, total - 60), total + 1)})
    stopped, releases = check_lines(custodian, iter(lines))
    print(f"{total} lines, {len(lines)} tried; {stopped} runs ended at one; {releases} releases")
    assert stopped > 0.95 * len(lines)
    assert releases


# --- an end at every statement of the database --------------------------------------------


def exit_at_statement(number: int, *, after: bool) -> None:
    """From now on this process ends before, or after, the so many-th SQL statement."""
    left = number

    class Connection(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os._exit(9)
            result = super().execute(*arguments)
            if left == 0:
                os._exit(9)
            return result

    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **o: connect(*a, **{**o, "factory": Connection})  # type: ignore[assignment]


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_exit_at_every_statement_of_the_ledger(custodian: Custodian, after: bool) -> None:
    """Before and after each SQL statement, commits included."""
    warm_up(custodian)

    def job(number: int) -> None:
        exit_at_statement(number, after=after)
        cli.main(["--quiet", *custodian.command(5 * 10**6 + number)])

    for number in range(1, 200):
        code = ended(fork(partial(job, number)))
        custodian.check()
        custodian.tidy()
        if code != 9:
            break
    assert 20 < number < 199


def test_the_check_itself_notices(custodian: Custodian) -> None:
    """A release whose charge is missing, or shared, fails the check."""
    content = {"ledger": {"charge": 10**9}, "values": ["1"]}
    path = custodian.folder / "answers-none.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(AssertionError, match="without a charge"):
        custodian.check()
    path.write_text(json.dumps({"values": ["1"]}), encoding="utf-8")
    with pytest.raises(AssertionError, match="values without a charge"):
        custodian.check()
    path.unlink()


def test_sigterm_keeps_the_answers_that_were_paid_for(tmp_path: Path) -> None:
    """A container that is stopped between measuring and writing loses nothing."""
    code = (
        "import os, signal, sys\n"
        "from retilt import cli\n"
        "from retilt.privacy.answers import Answers\n"
        "save = Answers.save\n"
        "def stopped(self, *a, **o):\n"
        "    Answers.save = save\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return save(self, *a, **o)\n"
        "Answers.save = stopped\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    table = pa.table({"sex": ["F", "M", "F"]})
    rt.plan(table, rt.marginal(["sex"]), epsilon=1, rows=3).save(tmp_path / "plan.json")
    (tmp_path / "real.csv").write_text("sex\nF\nM\nF\n", encoding="utf-8")
    call = ["measure", "real.csv", "plan.json", "-o", "answers.json"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *call], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 130, ended.stderr
    assert "the answers were kept in retilt-answers-" in ended.stderr
    (kept,) = tmp_path.glob("retilt-answers-*.json")
    assert rt.load_answers(kept).private
