"""Fuzz the readers of files that come from others: ``make fuzz``, or ``python readers.py --help``.

Valid files of every kind are mutated, as bytes and as values (keys taken away, doubled, renamed,
values replaced by hostile ones, parts moved elsewhere or repeated), written, and read as a user
reads them, up to the noise of a plan and the weights of a tilt. A file fails if reading it raises
anything but an error of retilt, takes more than a second of processor time, or makes the process
grow by more than 200 MB. It is then kept, with the seed that made it.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import retilt as rt
from retilt.engines.local import open_table
from retilt.exceptions import RetiltError
from retilt.measures.formats import load_workload
from retilt.privacy.account import LedgerEntry
from retilt.privacy.answers import Answers, load_answers, make_answers
from retilt.privacy.plan import load_plan, plan_from_dict
from retilt.privacy.published import Published
from retilt.privacy.targets import load_targets
from retilt.schema.declared import load_declared, resolve
from retilt.schema.formats import schema_to_toml
from retilt.tilt import load_tilt

SECONDS, MEGABYTES, HANG = 1.0, 200, 120
LARGEST = 40 * 2**20
TOML = ("schema", "workload")

TABLE = pa.table(
    {
        "age": [17, 30, 44, 58, 71, 90, 25, 33] * 5,
        "pay": [1.5, 2.25, 9.0, 3.5, 4.0, 0.5, 7.75, 6.0] * 5,
        "sex": ["F", "M", "M", "F", "F", "M", "F", "M"] * 5,
        "a, b": ["x", "y", "x", "y", "z", "x", "y", "z"] * 5,
    }
)

WORKLOAD = """
[[measures]]
kind = "correlation"
columns = ["age", "pay"]
weight = 2.0

[[measures]]
kind = "marginal"
columns = ["age", "sex"]
bins = {age = [30, 50]}

[[measures]]
kind = "share"
predicate = "age >= 65 AND sex = 'F'"
by = ["a, b"]

[[measures]]
kind = "means"
columns = ["pay"]
by = "sex"
where = "age < 60"

[[measures]]
kind = "query"
expression = "CASE WHEN pay > 2 THEN ln(pay) END"
lower = 0
upper = 3

[[measures]]
kind = "quantiles"
column = "pay"
probabilities = [0.1, 0.5]
bins = 5

[[measures]]
kind = "cdf"
column = "age"
thresholds = [20, 40.5]

[[keep]]
kind = "marginals"
columns = ["sex"]
tolerance = 0.01
"""

PUBLISHED: dict[str, Any] = {
    "format": "retilt-published/1",
    "source": "An office.",
    "privacy": None,
    "rows": 40,
    "schema": {"age": {"kind": "numeric", "lower": 0, "upper": 100}},
    "statistics": [
        {"mean": "age", "value": 45, "standard_error": 1.0},
        {"sd": "age", "value": 20.0, "standard_error": 1.0},
        {"share": "age >= 65", "value": 0.25, "standard_error": 0.01},
        {"query": "age * 2", "lower": 0, "upper": 200, "value": 90, "standard_error": 2},
        {"share": "sex = 'F'", "value": 0.5, "standard_error": 0.01},
        {"group_mean": "pay", "where": "sex = 'F'", "value": 3.5, "standard_error": 0.5},
        {"cell": {"sex": "F"}, "value": 20, "counts": True, "standard_error": 0},
        {
            "table": ["age", "a, b"],
            "bins": {"age": [30, 50]},
            "values": [[0.1, 0.1, 0.1], [0.2, 0.1, 0.1], [0.1, 0.1, 0.1]],
            "standard_error": 0.01,
        },
    ],
    "covariance": None,
}

# --- valid files -------------------------------------------------------------------------


def _plans() -> Iterator[rt.Plan]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.toml")
        path.write_text(WORKLOAD)
        workload = load_workload(path)
    yield rt.plan(TABLE, workload, epsilon=1.0, delta=1e-6, rows=40)
    yield rt.plan(TABLE, rt.share("age > 40"), epsilon=2.0, delta=0, unit="add-remove")
    yield rt.plan(
        TABLE,
        rt.correlation(["age", "pay"], by="sex") + rt.keep("marginals"),
        rho=0.1,
        unit=rt.AddRemoveOnePerson("id", 3),
        generator=rt.Generator(rt.ZCDP(0.5), "add-remove-person"),
    )
    tables = rt.marginals(["age", "sex", "a, b"], k=2, bins=4)
    yield rt.plan(TABLE, tables, epsilon=1.0, delta=1e-6, rows=40, select=2)


def corpus() -> dict[str, list[bytes]]:
    """Valid files by kind, the same in every run but for the noise."""
    plans = list(_plans())
    answered = [p if p.choose is None else p.chosen([0, 2]) for p in plans]
    answers = [make_answers(p, [10**6] * len(p.noise.scales), private=True) for p in answered]
    answers[0] = rt.measure(TABLE, plans[0])
    loss = {"epsilon": 2.0, "delta": 1e-6}
    entry = LedgerEntry("adult", 3, "sums", cap={"epsilon": 3, "delta": 1e-6}, spent=loss)
    answers[1] = replace(answers[1], ledger=entry)
    published = Published(
        PUBLISHED["source"],
        PUBLISHED["statistics"],
        rows=40,
        declared=PUBLISHED["schema"],
    )
    tilts = [rt.fit(TABLE, answers[0]), rt.fit(TABLE, published)]
    schema = schema_to_toml(plans[0].schema).encode()
    odd = b'[columns.day]\nkind = "datetime"\nlower = 2024-01-31\nupper = 2025-01-01T10:00:00\n'
    return {
        "plan": [_json(p.to_dict()) for p in plans],
        "answers": [_json(a.to_dict()) for a in answers],
        "published": [_json(PUBLISHED), _json(published.completed(open_table(TABLE)).to_dict())],
        "tilt": [_json(t.to_dict()) for t in tilts],
        "schema": [schema, odd],
        "workload": [WORKLOAD.encode()],
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


# --- reading -----------------------------------------------------------------------------


def _read_plan(path: Path) -> rt.Plan:
    """As a custodian reads it: up to all that is known before the private table is opened."""
    plan = load_plan(path)
    _ = plan.noise, plan.choice, plan.privacy
    return plan


def _check_plan(plan: rt.Plan) -> None:
    plan.check_files()
    again = plan_from_dict(plan.to_dict())
    assert again.sha256 == plan.sha256, "a plan that is read is not what it says"
    assert again.noise == plan.noise, "a plan's noise is not the file's"


def _read_answers(path: Path) -> None:
    _answered(load_answers(path))


def _read_published(path: Path) -> None:
    targets = load_targets(path)
    if isinstance(targets, Answers):
        _answered(targets)
    else:
        targets.completed(open_table(TABLE)).statistics_table()


def _answered(answers: Answers) -> None:
    answers.statistics_table()
    assert answers.plan.noise.scales, "answers without noise"


def _read_tilt(path: Path) -> None:
    tilt = load_tilt(path, TABLE)
    assert (tilt.weights >= 0).all(), "a weight below 0"
    if not tilt.moved:
        tilt.to_dict()


def _read_schema(path: Path) -> None:
    declared = load_declared(path)
    names = [n for n in TABLE.column_names if n in declared.entries]
    resolve(declared, open_table(TABLE), names)


def _read_workload(path: Path) -> None:
    workload = load_workload(path)
    assert workload.measures or workload.guards, "a workload of nothing"


READERS: dict[str, Callable[[Path], Any]] = {
    "plan": _read_plan,
    "answers": _read_answers,
    "published": _read_published,
    "tilt": _read_tilt,
    "schema": _read_schema,
    "workload": _read_workload,
}

CHECKS: dict[str, Callable[[Any], None]] = {"plan": _check_plan}
"""What must hold of what was read; not timed."""

# --- mutations ---------------------------------------------------------------------------

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, -1e308, 5e-324, 1e100, 2**31, 2**53 + 1,
    2**63, -(2**63), 10**59, 10**300, 10**400, 10**5000, float("nan"), float("inf"), "", " ", "x",
    "0", "1/3", "1e999999999", "1/0", "9" * 60, "9" * 5000, "\x00", "\ud800", "😀", "a\nb",
    "../../etc/passwd", "/dev/zero", "duckdb:///x.db?table=t", "'; DROP TABLE t; --", '"', "'",
    "{{7*7}}", "<script>", "age", "sex", "pay", "a, b", "F", "age > 3", "age > 3 --", "(" * 200,
    "NOT " * 200 + "age > 3", "age > (SELECT 1)", "age = " + "1+" * 300 + "1", "x" * 100_000, [],
    [[]], {}, {"": {}}, {"kind": "numeric"}, [None], ["age"], ["age", "age"], ["age"] * 1000,
    [0.1] * 1000, list(range(1000)), {"age": [1, 2]}, {"age": list(range(100))}, "numeric",
    "categorical", "moments", "marginal", "share", "query", "default", "paper", "replace-one",
    "add-remove", "2024-01-31", "9999-12-31", "0001-01-01T00:00:00+14:00",
]  # fmt: skip

TEXTS = [value for value in HOSTILE if isinstance(value, str)]

TOKENS: list[bytes] = [
    b'"', b"\\", b"[", b"]", b"{", b"}", b",", b":", b"\x00", b"\xff", b"\xed\xa0\x80", b"NaN",
    b"Infinity", b"-", b"1e400", b"1" * 500, b"null", b"true", b"\\ud800", b"\\u0000", b"\n", b"=",
    b"[[", b"]]", b'"""', b"'''", b"#", b".", b"a.b.c.d = 1\n", b"[columns.age]\n",
    b"0x" + b"f" * 500,
    b"[" * 100, b'{"a":' * 100, b"/*", b"\xef\xbb\xbf", b"[[measures]]\n", b"1979-05-27",
]  # fmt: skip


def mutate(
    rng: random.Random, files: dict[str, list[bytes]], kind: str, *, huge: bool = True
) -> bytes:
    """A file made of a valid one of a kind by a few edits; a ``huge`` one now and then."""
    raw = rng.choice(files[kind])
    edits = rng.choice([1, 1, 1, 2, 3, 6])
    if rng.random() < 0.7:
        try:
            raw = edit_content(rng, raw, toml=kind in TOML, edits=edits)
            edits = rng.choice([0, 0, 0, 1])
        except (RecursionError, OverflowError, ValueError):  # too deep or too large to be written
            edits = 1
    for _ in range(edits):
        raw = edit_bytes(rng, raw, rng.choice(files[rng.choice(list(files))]), huge=huge)
    return raw[:LARGEST]


def edit_content(rng: random.Random, raw: bytes, *, toml: bool, edits: int) -> bytes:
    """A valid file with some of its values changed, and written again."""
    content = tomllib.loads(raw.decode()) if toml else json.loads(raw)
    for _ in range(edits):
        content = _edit_value(rng, content)
    if toml:
        return "\n".join(_toml_lines(content)).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        _sign(content)
    return _dumped(rng, content)


def _sign(content: Any) -> None:
    """Give answers the hash of their plan, if it is one: to see what else would catch an edit."""
    try:
        answers = content.get("answers", content)
        answers["plan_sha256"] = plan_from_dict(answers["plan"]).sha256
    except (RetiltError, LookupError, TypeError, AttributeError):
        pass


def _toml_lines(content: Any) -> Iterator[str]:
    for key, value in content.items() if isinstance(content, dict) else [("a", content)]:
        yield f"{_toml(str(key))} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int) and abs(value) > 2**4000:
        return hex(value)  # Python would not write it in tens
    return {"True": "true", "False": "false", "None": "nan"}.get(str(value), str(value))


def _dumped(rng: random.Random, content: Any) -> bytes:
    try:
        text = json.dumps(content, ensure_ascii=rng.random() < 0.3)
    except ValueError:  # an integer that Python does not write
        return b"{}"
    return text.encode("utf-8", "surrogatepass")


def edit_bytes(rng: random.Random, raw: bytes, other: bytes, *, huge: bool = True) -> bytes:
    """One edit of the bytes, or a hundred thousand times the same."""
    a, b = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
    b = min(b, a + rng.choice([1, 4, 40, 400, 10**9]))
    times = rng.choice([1, 1, 1, 2, 10, 1000])
    if huge and rng.random() < 0.004:
        times = rng.choice([10**5, 10**6, 10**7])
    match rng.randrange(8):
        case 0:
            return raw[:a] + raw[b:]
        case 1:
            token = rng.choice(TOKENS)
            return raw[:a] + token * min(times, 1 + LARGEST // max(len(token), 1)) + raw[b:]
        case 2:
            return raw[:a] + rng.choice(TOKENS) + raw[a:]
        case 3:
            return raw[:a] + raw[a:b] * min(times, 1 + LARGEST // max(b - a, 1)) + raw[b:]
        case 4:
            return raw[:a]
        case 5:
            return raw[:a] + bytes([rng.randrange(256)]) + raw[a + 1 :]
        case 6:
            c, d = sorted(rng.randrange(len(other) + 1) for _ in range(2))
            return raw[:a] + other[c:d] + raw[b:]
        case _:
            return raw[:a] + bytes(rng.randrange(256) for _ in range(rng.randrange(20))) + raw[b:]


def _edit_value(rng: random.Random, content: Any) -> Any:
    """One edit of a JSON value, in a copy."""
    content = copy.deepcopy(content)
    places = list(_places(content))
    if not places:
        return rng.choice(HOSTILE)
    inner, key = rng.choice(places)
    other, other_key = rng.choice(places)
    value = inner[key]
    match rng.randrange(9):
        case 0 | 1:
            inner[key] = copy.deepcopy(rng.choice(HOSTILE))
        case 2:
            del inner[key]
        case 3:
            inner[key] = copy.deepcopy(other[other_key])
        case 4:
            if isinstance(inner, list):
                inner.insert(key, copy.deepcopy(value))
            else:
                inner[rng.choice(TEXTS)[:50]] = inner.pop(key)
        case 5:
            if isinstance(value, (list, str)) and value:
                times = rng.choice([0, 2, 10, 100, 1000])
                inner[key] = value * min(times, 100_000 // len(value))
        case 6:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                inner[key] = rng.choice([-value, value * 2, value // 3, value * 10**9])
            elif isinstance(value, str):
                inner[key] = value[: rng.randrange(len(value) + 1)] + rng.choice(TEXTS)[:9]
            else:
                inner[key] = [value]
        case 7:
            deep = value
            for _ in range(rng.choice([1, 3, 30, 45, 200])):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            inner[key] = deep
        case _:
            if isinstance(value, list):
                rng.shuffle(value)
            elif isinstance(value, dict):
                inner[key] = dict(rng.sample(list(value.items()), len(value)))
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value as its container and its key."""
    waiting = [content]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, (dict, list)):
            for key, value in inner.items() if isinstance(inner, dict) else enumerate(inner):
                yield inner, key
                waiting.append(value)


# --- one file ----------------------------------------------------------------------------


def attempt(kind: str, path: Path) -> tuple[str, float, float]:
    """Read a file: what came of it, seconds of processor time, megabytes of growth."""
    before, seconds = _reset_memory(), 0.0
    start = time.process_time()
    try:
        found = READERS[kind](path)
        seconds = time.process_time() - start
        if kind in CHECKS:
            CHECKS[kind](found)
        outcome = "read"
    except RetiltError as error:
        told = str(error).strip()
        outcome = f"refused: {told[:300]}" if told else "failed: an error without words"
    except Exception as error:
        outcome = f"failed: {type(error).__name__}: {str(error)[:300]}"
    return outcome, seconds or time.process_time() - start, _peak() - before


def _reset_memory() -> float:
    """Megabytes in use; the peak begins anew (Linux; 0 elsewhere)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return 0.0


def _peak() -> float:
    try:
        return _status("VmHWM")
    except OSError:
        return 0.0


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def judged(kind: str, path: Path) -> tuple[str, float, float]:
    """Like :func:`attempt`, but a file over a limit fails.

    It is tried again before, for the machine has other work.
    """
    outcome, seconds, megabytes = attempt(kind, path)
    for _ in range(2):
        if seconds > SECONDS or megabytes > MEGABYTES:
            _, again, more = attempt(kind, path)
            seconds, megabytes = min(seconds, again), min(megabytes, more)
    if not outcome.startswith("failed"):
        if seconds > SECONDS:
            outcome = f"failed: {seconds:.2f} s"
        if megabytes > MEGABYTES:
            outcome = f"failed: {megabytes:.0f} MB"
    return outcome, seconds, megabytes


# --- many files --------------------------------------------------------------------------


def fuzz(
    seed: int,
    count: int,
    keep: Path,
    judge: Callable[[str, Path], tuple[str, float, float]] = judged,
    *,
    huge: bool = True,
) -> dict[str, Any]:
    """Try ``count`` files; those that fail are written to the folder ``keep``."""
    warnings.simplefilter("error")
    rng = random.Random(seed)
    files = corpus()
    kinds = list(READERS)
    for kind in kinds:
        for number, raw in enumerate(files[kind]):
            path = keep / f"valid.{os.getpid()}"
            path.write_bytes(raw)
            outcome, _, _ = attempt(kind, path)
            assert outcome == "read", f"a valid {kind} file, number {number}: {outcome}"
            path.unlink()
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    slowest, largest, biggest = 0.0, 0.0, 0
    for number in range(count):
        kind = kinds[number % len(kinds)]
        raw = mutate(rng, files, kind, huge=huge)
        path = keep / f"now.{seed}.{kind}"
        path.write_bytes(raw)
        faulthandler.dump_traceback_later(HANG, exit=True)
        outcome, seconds, megabytes = judge(kind, path)
        faulthandler.cancel_dump_traceback_later()
        slowest, largest = max(slowest, seconds), max(largest, megabytes)
        biggest = max(biggest, len(raw))
        outcomes[f"{kind}: {outcome.partition(':')[0]}"] += 1
        if outcome.startswith("failed"):
            kept = keep / f"failed.{seed}.{number}.{kind}"
            path.replace(kept)
            failures.append(f"{kept}: {outcome}")
        else:
            path.unlink()
    return {
        "files": count,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_seconds": round(slowest, 3),
        "largest_growth_megabytes": round(largest, 1),
        "biggest_file_bytes": biggest,
        "failures": failures,
    }


def main() -> int:
    """Share the files among processes, and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.child:
        print(json.dumps(fuzz(options.seed, options.files, options.keep)))
        return 0
    shares = [options.files * (i + 1) // options.processes - options.files * i // options.processes
              for i in range(options.processes)]  # fmt: skip
    start = time.perf_counter()
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", "--files", str(share), "--keep",
             str(options.keep), "--seed", str(options.seed + number)],
            stdout=subprocess.PIPE, text=True,
        )
        for number, share in enumerate(shares)
    ]  # fmt: skip
    found, crashed = [], 0
    for child in children:
        told, _ = child.communicate()
        if child.returncode:
            crashed += 1
        else:
            found.append(json.loads(told))
    outcomes: Counter[str] = Counter()
    for part in found:
        outcomes.update(part["outcomes"])
    failures = [f for part in found for f in part["failures"]]
    print(f"{sum(p['files'] for p in found):,} files in {time.perf_counter() - start:,.0f} s")
    for name, number in sorted(outcomes.items()):
        print(f"  {name:24s} {number:8,}")
    for key in ("slowest_seconds", "largest_growth_megabytes", "biggest_file_bytes"):
        print(f"{key}: {max((p[key] for p in found), default=0):,}")
    print(f"failures: {len(failures)}")
    for failure in failures[:20]:
        print(f"  {failure}")
    if crashed:
        print(f"{crashed} processes crashed or hung: the file is in {options.keep}, now.*")
    return 1 if failures or crashed else 0


if __name__ == "__main__":
    sys.exit(main())
