"""The mutation check itself: what it changes, and that its tables are of today's source."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from loading import load

ROOT = Path(__file__).parents[2]


script = load(ROOT / "scripts" / "mutate_privacy.py")


def changed(text: str) -> list[str]:
    """A statement in a function, and what it becomes."""
    body = "\n".join(f"    {line}" for line in text.splitlines())
    source = script.Source.of(script.Target("m", ()), f"def f():\n{body}\n")
    return [m.after for m in source.mutants()]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("return 2 * x", ["return 2 / x", "return 3 * x", "return 1 * x"]),
        ("return 0", ["return 1"]),
        ("return 1e-6", ["return 2e-06", "return 5e-07"]),
        ("return True", ["return False"]),
        ("return a < b", ["return a <= b", "return a >= b"]),
        ("return a is None", ["return a is not None"]),
        ("return a in b", ["return a not in b"]),
        ("return a and b", ["return a or b"]),
        ("return -a", ["return a"]),
        ("return a if b else c", ["return a if not b else c"]),
        ("return float_up(a)", ["return a"]),
        ("return min(a, b)", ["return max(a, b)"]),
        ("return Relation.REPLACE", ["return Relation.ADD_REMOVE"]),
        ("return f(a, max_rows=b)", ["return f(a)"]),
        ("a += b", ["a -= b", "pass"]),
        ("check(a)", ["pass"]),
    ],
)
def test_what_is_changed(text: str, after: list[str]) -> None:
    assert changed(text) == after


def test_checks_are_left_out_and_their_texts_left_alone() -> None:
    refused = changed("if a < 1:\n    raise Error(f'got {a + 1}')")
    assert sorted(refused) == ["a < 0", "a < 2", "a <= 1", "a >= 1", "pass"]


@pytest.mark.parametrize("text", ["'text'", "x: Literal[1] = y", "assert a < 1", "import a"])
def test_what_is_not_changed(text: str) -> None:
    assert changed(text) == []


def test_a_change_is_made_and_nothing_else() -> None:
    source = script.Source.of(script.Target("m", ()), "def f(x):\n    return x + 1\n")
    minus = next(m for m in source.mutants() if "-" in m.after)
    assert ast.unparse(minus.apply()) == "def f(x):\n    return x - 1"
    assert (minus.name, minus.line, list(minus.lines), minus.inside) == ("f", 2, [2], True)


# --- the tables ----------------------------------------------------------------------------


def test_every_target_is_there() -> None:
    for target in script.TARGETS:
        assert target.path.exists()
        assert all((ROOT / "tests" / t).exists() for t in target.tests)


def test_every_explanation_is_of_a_change_that_is_tried() -> None:
    tried = {
        (m.target.module, m.name, m.before, m.after) for m in script.all_mutants(script.TARGETS)
    }
    known = {(k.module, k.name, k.before, k.after) for k in script.EQUIVALENT}
    assert known <= tried | {(*place[:3], "*") for place in tried}
    assert len(known) == len(script.EQUIVALENT)
    assert all(k.reason for k in script.EQUIVALENT)


def test_every_pattern_names_something() -> None:
    for target in script.TARGETS:
        source = script.Source.of(target, target.path.read_text(encoding="utf-8"))
        names = {source.name(node) for node in ast.walk(source.tree)}
        for pattern in (*target.only, *target.but):
            assert any(fnmatchcase(name, pattern) for name in names), (target.module, pattern)
