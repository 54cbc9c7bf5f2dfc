"""What the source must never do, whatever it is given: run data, start programs, unpickle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "retilt"

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "dbm",
    "yaml", "ruamel", "jsonpickle", "subprocess", "pty", "popen2", "commands", "code", "codeop",
    "runpy", "ctypes", "cffi", "xmlrpc", "imaplib", "ftplib", "http", "urllib.request", "requests",
    "httpx", "socket", "socketserver", "ssl", "telnetlib", "smtplib", "webbrowser",
}  # fmt: skip
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
FORBIDDEN_ATTRIBUTES = {
    "read_pickle", "to_pickle", "from_pickle", "load_module", "unsafe_load", "full_load",
}  # fmt: skip
OF_OS = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}
KEYWORDS = {"shell", "allow_pickle"}


def _offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [node.module or "", *inside]
        else:
            names = []
        for name in names:
            if name in FORBIDDEN_MODULES or name.partition(".")[0] in FORBIDDEN_MODULES:
                yield node.lineno, f"import {name}"
        if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            yield node.lineno, node.id
        if isinstance(node, ast.Attribute):
            of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            starts = node.attr in OF_OS or node.attr.startswith(("exec", "spawn"))
            if node.attr in FORBIDDEN_ATTRIBUTES or (of_os and starts):
                yield node.lineno, f".{node.attr}"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
                # Only what is written in the source, never a name that was read.
                known = ("retilt.", "sqlglot")
                argument = node.args[0]
                start = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
                fixed = isinstance(start, ast.Constant) and str(start.value).startswith(known)
                if not fixed:
                    yield node.lineno, "import_module of a computed name"
            for keyword in node.keywords:
                if keyword.arg in KEYWORDS and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield node.lineno, f"{keyword.arg}="


def sources() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 80
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_that_is_read_can_be_run(path: Path) -> None:
    offences = list(_offences(ast.parse(path.read_text("utf-8"))))
    assert offences == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from os import path\nimport subprocess as s",
        "import urllib.request",
        "from urllib import request",
        "from yaml import safe_load",
        "eval('1')",
        "f = exec",
        "import os\nos.system('ls')",
        "numpy.load(f, allow_pickle=True)",
        "run(c, shell=x)",
        "importlib.import_module(name)",
        "importlib.import_module(f'{a}.b')",
        "pandas.read_pickle(p)",
    ],
)
def test_the_rule_finds_what_it_is_for(text: str) -> None:
    assert list(_offences(ast.parse(text)))


def test_templates_and_regular_expressions_are_not_made_of_data() -> None:
    """Jinja gets one template, the package's own, and escapes everything that is put in it."""
    found, markup = [], []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.endswith(".from_string"):
                found.append(path.name)
                assert ast.unparse(node.args[0]) == "source"
            if called == "Environment":
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert options["autoescape"] == "True"
            if called == "Markup" and not isinstance(node.args[0], ast.Constant):
                markup.append(path.name)
    assert found == ["build.py"]
    assert markup == ["plots.py"] * 2  # what Matplotlib drew of numbers, and bars of numbers
    page = (SOURCE / "report" / "page.html.j2").read_text("utf-8")
    assert "|safe" not in page.replace(" ", "")
    assert "autoescape" not in page
