"""Files of others are read up to their limits, and refused beyond, whatever they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retilt import _input
from retilt._input import (
    MAX_DEPTH,
    MAX_JSON,
    MAX_TOML,
    MAX_TOML_VALUES,
    MAX_VALUES,
    check_json_size,
    json_content,
    read_bytes,
    read_json,
    read_toml,
    toml_content,
)
from retilt._output import json_text, write_json, write_text
from retilt.exceptions import FormatError, InputError, SchemaError, WorkloadError


def refused(raw: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        json_content(raw, "plan file p.json")
    assert str(caught.value).startswith("plan file p.json")
    assert len(str(caught.value)) < 300
    return str(caught.value)


def refused_toml(raw: bytes) -> str:
    with pytest.raises(WorkloadError) as caught:
        toml_content(raw, "workload file w.toml", WorkloadError)
    assert str(caught.value).startswith("workload file w.toml")
    assert len(str(caught.value)) < 350
    return str(caught.value)


# --- JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "line 1, column 1"),
        (b"[]", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b"[[1]]", "got a list of 1"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} x', "Extra data"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 01}', "not JSON"),
        (b'{"a": +1}', "not JSON"),
        (b'{"a": .5}', "not JSON"),
        (b'{"a": 1_0}', "not JSON"),
        (b'{"a": True}', "not JSON"),
        (b'{"a": "\n"}', "not JSON"),
        (b'{"a": "\\x"}', "not JSON"),
        (b'{"a": 1, "a": 1}', "'a' stands twice"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "'b' stands twice"),
        (b'{"a": 1, "\\u0061": 1}', "'a' stands twice"),
        (b'{"a": NaN}', "NaN stands for a number"),
        (b'{"a": Infinity}', "Infinity stands for a number"),
        (b'{"a": -Infinity}', "-Infinity stands for a number"),
        (b'{"a": 1e400}', "1e400' is too great"),
        (b'{"a": -1E+400}', "is too great"),
        (b'{"a": 1.5e999999999}', "is too great"),
        (b'{"a": ' + b"1" * 401 + b"}", "more than 400 characters"),
        (b'{"a": 0.' + b"1" * 401 + b"}", "too long"),
        (b'{"a": "\xff"}', "no text in UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "no text in UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": "\\uDC00x"}', "half of a surrogate pair"),
        (b'{"a": "\\ud800\\\\\\udc00"}', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "levels deep"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "levels deep"),
        (b"[" * 10**6, "levels deep"),
        (b'{"a":' * 10**6, "values, the most"),
        (b"\x00" * 100, "not JSON"),
        (b'"' + b"a" * 10**6, "not JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused(raw: bytes, word: str) -> None:
    assert word in refused(raw)


def test_what_is_strict_json_is_read() -> None:
    content = {
        "a": [1, -2.5, 1e300, 1e-320, 10**300, True, None, {}],
        'quo"te\\': '\\ud800 as text, \u2028 \x00 \x7f 😀 "[{,:}]" \\\\"',
        "": {"": {"": []}},
        "deep": json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)),
    }
    for ascii_only in (True, False):
        raw = json.dumps(content, ensure_ascii=ascii_only).encode()
        assert json_content(raw, "plan file") == content
    assert json_content(b'{"a": 1e-400, "b": 1E5}', "x") == {"a": 0.0, "b": 1e5}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"[]{},:u')),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\\\"[,", max_size=3),
                                                                 inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_any_json_of_ours_is_read_back(content: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"x": content}, ensure_ascii=ascii_only, indent=indent)
    assert json_content(text.encode(), "x") == {"x": content}


@given(st.text('"\\[]{},:1eud8c0 \n', max_size=60))
def test_counting_agrees_with_the_parser(text: str) -> None:
    """What is within the limits is judged as Python's own parser judges it."""
    try:
        own = json.loads(text)
    except (ValueError, RecursionError):
        own = None
    try:
        found = json_content(text.encode(), "x")
    except FormatError:
        assert not isinstance(own, dict) or len(own) > 0 or "surrogate" in text
    else:
        assert found == own


def test_values_are_counted_outside_of_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_input, "MAX_VALUES", 9)
    monkeypatch.setattr(_input, "_CHUNK", 3)  # texts that go on in the next piece
    assert json_content(b'{"a,[:{": "\\",[:{\\\\", "b": [1, 2]}', "x") == {
        "a,[:{": '",[:{\\',
        "b": [1, 2],
    }
    assert "values, the most" in refused(b'{"a": "x", "b": [1, 2, 3, 4, 5, 6]}')


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [' + b"1," * MAX_VALUES + b"1]}",
        b'{"a": [' + b"[]," * (MAX_VALUES // 2) + b"[]]}",
        b'{"a": [' + b'"",' * MAX_VALUES + b'""]}',
        b'"' * (3 * MAX_VALUES),
    ],
    ids=["numbers", "lists", "texts", "marks"],
)
def test_too_many_values_are_refused(raw: bytes) -> None:
    assert "values, the most" in refused(raw)


def test_wide_characters_have_a_smaller_limit() -> None:
    assert "characters, the most" in refused(
        b'{"a": "' + "😀".encode() + b"x" * (13 * 2**20) + b'"}'
    )


# --- TOML --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"a = ", "not TOML"),
        (b"a = 1\na = 2", "not TOML"),
        (b"\xff", "no text in UTF-8"),
        (b'a = "\\ud800"', "not TOML"),
        (b"a = 0x" + b"f" * 10**6, "more than 400 characters"),
        (b"a = " + b"1" * 10**6, "more than 400 characters"),
        (b"a = 1" + b"_1" * 10**5, "more than 400 characters"),
        (b"a" * 401 + b" = 1", "more than 400 characters"),
        (b"a = " + b"[" * 10**5, "deep"),
        (b"a = " + b"[" * 3000 + b"]" * 3000, "deep"),
        (b"a = " + b"{a=" * 3000, "deep"),
        (b".".join([b"a"] * 10**5) + b" = 1", "parts"),
        (b" . ".join([b"a"] * 9) + b" = 1", "parts"),
        (b'"a"."b".' * 5 + b"c = 1", "parts"),
        (b"[" + b".".join([b"a"] * 10) + b"]", "parts"),
        (b"x = {" + b".".join([b"a"] * 10) + b" = 1}", "parts"),
        (b'x = "a # b"\n' + b".".join([b"a"] * 10) + b" = 1", "parts"),
        (b"# '''\n" + b".".join([b"a"] * 10) + b" = 1 # '''", "parts"),
        (b"\n" * (MAX_TOML_VALUES + 1), "lines and values"),
        (b"[[a]]\n" * MAX_TOML_VALUES, "lines and values"),
        (b"#" * (MAX_TOML + 1), "bytes, the most"),
    ],
)
def test_toml_that_would_take_long_is_refused(raw: bytes, word: str) -> None:
    assert word in refused_toml(raw)


def test_toml_of_use_is_read() -> None:
    text = (
        '\ufeff# a.b.c.d.e.f.g.h.i.j.k = "not closed\n'
        '"1.3.6.1.4.1.5923.1.1.1.6" = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]\n'
        'a.b = \'[[[[[[\'\nc = """x.x.x.x.x.x.x.x.x.x\\"""""\nd = 1979-05-27T07:32:00.5Z\n'
    )
    found = toml_content(text.encode(), "x", SchemaError)
    assert found["a"] == {"b": "[[[[[["}
    assert found["c"] == 'x.x.x.x.x.x.x.x.x.x"""'[:-1]
    many = "categories = [" + ", ".join(f'"category number {i}"' for i in range(50_000)) + "]"
    assert len(toml_content(many.encode(), "x", SchemaError)["categories"]) == 50_000


# --- files -------------------------------------------------------------------------------


def readers(path: Path) -> list[Callable[[], object]]:
    return [
        lambda: read_json(path, "plan"),
        lambda: read_toml(path, "schema", SchemaError),
    ]


def test_a_file_without_end_is_not_read_to_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # takes no room
    for read in readers(path):
        with pytest.raises(InputError, match="bytes, the most allowed"):
            read()


@pytest.mark.parametrize("name", ["missing", "folder", "pipe", "a\x00b", "", "/dev/zero"])
def test_what_is_no_regular_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    for read in readers(tmp_path / name):
        with pytest.raises(InputError):
            read()


def test_reading_a_pipe_does_not_wait(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no pipes with a name")
    os.mkfifo(tmp_path / "pipe")
    seen: list[str] = []

    def read() -> None:
        with pytest.raises(FormatError) as caught:
            read_bytes(tmp_path / "pipe", "plan", 10)
        seen.append(str(caught.value))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(30)
    assert len(seen) == 1
    assert "no regular file" in seen[0]


def test_no_file_is_written_that_could_not_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for content in ({"a": "\ud800"}, {"a": [0] * MAX_VALUES}, {"a": "x" * MAX_JSON}):
        with pytest.raises(InputError, match=r"p\.json"):
            write_json(path, content, force=False)
    with pytest.raises(InputError, match="surrogate"):
        write_text(path, "\ud800")
    assert list(tmp_path.iterdir()) == []
    write_json(path, {"a": "\\ud800"}, force=False)
    assert read_json(path, "x") == {"a": "\\ud800"}


def test_what_will_stand_beside_is_counted() -> None:
    text = json_text({"a": 1})
    check_json_size(text, "plan", more_bytes=1000, more_values=1000)
    for more in ({"more_bytes": MAX_JSON}, {"more_values": MAX_VALUES}):
        with pytest.raises(InputError, match="could not be read again"):
            check_json_size(text, "plan", **more)


CHILD = """
import resource, sys, time
from retilt import _input
from retilt.exceptions import RetiltError
raw = eval(sys.argv[1])  # ours: the test's own
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    if sys.argv[2] == "json":
        _input.json_content(raw, "x")
    else:
        _input.toml_content(raw, "x", RetiltError)
except RetiltError:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is told in kilobytes")
@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("json", 'b"[" * 25_000_000'),
        ("json", "b'\"' * 25_000_000"),
        ("json", "b'[' + b'\"ab\",' * 4_000_000 + b'1]'"),
        ("json", "b'{\"a\":[' + b'[0],' * 599_000 + b'1]}'"),
        ("json", "b'{\"a\":[' + b'{\"\":0},' * 399_000 + b'1]}'"),
        ("json", "b'{\"a\":[' + '\"😀\",'.encode() * 1_199_000 + b'1]}'"),
        ("json", "b'{' + b','.join(b'\"k%d\":0' % i for i in range(599_000)) + b'}'"),
        ("json", "b'{\"a\":\"' + '😀'.encode() + b'x' * 12_000_000 + b'\"}'"),
        ("json", "b'{\"a\":' + b'1' * 25_000_000 + b'}'"),
        ("json", "b'{\"a\":\"' + b'\\\\\\\\u00e9' * 4_000_000 + b'\"}'"),
        ("toml", "b'a=' + b'[' * 1_500_000"),
        ("toml", "b'.'.join([b'a'] * 700_000) + b'=1'"),
        ("toml", "b''.join(b'k%d=1\\n' % i for i in range(59_000))"),
        ("toml", "b'\"' * 1_500_000"),
    ],
)
def test_memory_is_bounded(kind: str, raw: str) -> None:
    """In a process of its own, whose memory nothing else has used."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, raw, kind], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200
