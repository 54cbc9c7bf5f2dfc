"""Reading the files that come from others: plans, answers, tilts, schemas, workloads.

Whoever wrote them may be an adversary, and the one who reads them may be the custodian of the
private table. So nothing is built before its size is known: a file is read up to a limit, its
values and its nesting are counted in the bytes, and only then is it parsed. What is read is
data: no part of it is ever run, or used as the name of a file.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NoReturn

from retilt.exceptions import FormatError, InputError

MAX_JSON = 28 * 2**20
"""Bytes of a JSON file: a plan of 100,000 cells has 12 million, its answers 18."""

MAX_VALUES = 1_200_000
"""Values of a JSON file, its keys and the beginnings of its lists counted too."""

MAX_DEPTH = 50
"""Lists and objects one inside the other; ours have eight."""

MAX_TOML = 3 * 2**19
"""Bytes of a TOML file: a column of 50,000 categories has one million."""

MAX_TOML_VALUES = 120_000
"""Lines, keys and elements of lists of a TOML file, which takes long to read."""

MAX_DIGITS = 400
"""Characters of one number: the largest float has 309 digits."""

_MAX_TEXT = 48 * 2**20
"""Bytes of a JSON file once decoded: a single emoji makes four of every character."""

_MAX_PARTS = 8
"""Parts of a dotted TOML key; the reader's time grows with their square."""

_CHUNK = 2**20

_LONE = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)
"""A half of a surrogate pair without the other."""

_QUOTED = re.compile(rb'"[^"]*"')
_ASTRAL = re.compile(rb"[\xf0-\xff]")
_SEPARATORS = (b",", b":", b"[", b"{")
_CONTINUING = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_SHAPE = bytes.maketrans(b"123456789.E", b"0000000000e")
_GREAT = (b"e000", b"e+000", b"0" * 300)
"""In the shape of a number that may be beyond floats, or longer than is allowed."""

_TOML_QUIET = re.compile(
    rb'"""(?:[^"\\]|\\.|"(?!""))*+"""(?:"{0,2}(?!"))'
    rb"|'''(?:[^']|'(?!''))*+'''(?:'{0,2}(?!'))"
    rb'|"(?:[^"\\\n]|\\.)*+"'
    rb"|'[^'\n]*+'"
    rb"|(?P<comment>\#[^\n]*+)",
    re.DOTALL,
)
"""What holds no key, number or bracket: a string or a comment."""

_TOML_WORD = re.compile(rb"[A-Za-z0-9_+-]{%d}" % (MAX_DIGITS + 1))
_TOML_DOTTED = re.compile(
    rb"(?<![A-Za-z0-9_-])(?:[A-Za-z0-9_-]++[ \t]*+\.[ \t]*+){%d}" % _MAX_PARTS
)

_NAMED = 5
"""How many of many names a message says."""

_LINE = 60
"""Characters that a message says of a value."""

_CONTAINERS = (Mapping, list, tuple, set, frozenset)


# --- JSON --------------------------------------------------------------------------------


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON object; ``what`` names the kind of file in errors.

    Parameters
    ----------
    path
        A regular file of at most :data:`MAX_JSON` bytes.
    what
        ``"plan"``, say.

    Returns
    -------
    dict
        Of text, finite numbers, true, false, null, lists and such objects. No text holds half
        of a surrogate pair, so that all of it can be written as UTF-8 again.

    Raises
    ------
    FormatError
        The file can't be read, is no JSON object, is too large or nested too deeply, names a
        key twice, or holds NaN, an infinity or a number that no float can hold.
    """
    return json_content(read_bytes(path, what, MAX_JSON), f"{what} file {path}")


def json_content(raw: bytes, where: str) -> dict[str, Any]:
    """The object that the bytes of a JSON file say; ``where`` names the file in errors.

    >>> json_content(b'{"rows": 3}', "plan file p.json")
    {'rows': 3}
    """
    try:
        great = _check_json(raw)
        content = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_repeats,
            parse_int=_whole if great else None,
            parse_float=_finite if great else None,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError:
        raise FormatError(f"{where} is not JSON: it is no text in UTF-8.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FormatError(f"{where} is not JSON: {place}: {error.msg}.") from None
    except (_Refused, RecursionError) as error:
        raise FormatError(f"{where}: {error}.") from None
    if not isinstance(content, dict):
        raise FormatError(f"{where}: got {short(content)}, expected a JSON object.")
    return content


def check_json_size(text: str, what: str, *, more_bytes: int = 0, more_values: int = 0) -> None:
    """Refuse a JSON text of ours that :func:`read_json` would not take back.

    Parameters
    ----------
    text
        The file's.
    what
        Names it in errors.
    more_bytes, more_values
        What a larger file that is made of it will hold beside.

    Raises
    ------
    InputError
        It is too long, holds too many values, or half of a surrogate pair.
    """
    try:
        _check_json(text.encode("utf-8"), more_bytes, more_values)
    except UnicodeEncodeError:
        raise InputError(
            f"{what}: a name or text in it holds half of a surrogate pair, which is no Unicode "
            "text. Rename it."
        ) from None
    except _Refused as error:
        raise InputError(
            f"{what}: it could not be read again: {error}. Ask for fewer or coarser statistics, "
            "or shorten the names of columns and categories."
        ) from None


class _Refused(ValueError):
    """A file is refused; the message says why."""


def _check_json(raw: bytes, more_bytes: int = 0, more_values: int = 0) -> bool:
    """Refuse what would be too much to parse; return whether a number may be too great."""
    if len(raw) + more_bytes > MAX_JSON:
        raise _Refused(f"it has more than {MAX_JSON:,} bytes, the most allowed")
    _check_letters(raw)
    # Without what is escaped, every quotation mark begins or ends a text. Two characters for
    # two: what stood apart must not come together.
    plain = raw.replace(rb"\\", b"__") if b"\\" in raw else raw
    if (rb"\ud" in plain or rb"\uD" in plain) and _LONE.search(plain):
        raise _Refused("a text holds half of a surrogate pair, which is no Unicode text")
    plain = plain.replace(rb"\"", b"__") if b"\\" in plain else plain
    few = plain.count(b'"') <= 2 * MAX_VALUES  # every text is a value or a key
    bare = _unquoted(plain) if few else b""
    if not few or sum(map(bare.count, _SEPARATORS)) + more_values > MAX_VALUES:
        raise _Refused(f"it holds more than {MAX_VALUES:,} values, the most allowed")
    if _depth(bare) > MAX_DEPTH:
        raise _Refused(f"it is nested more than {MAX_DEPTH} levels deep, the most allowed")
    shape = bare.translate(_SHAPE)
    return any(great in shape for great in _GREAT)


def _depth(bare: bytes) -> int:
    """Levels of lists and objects in JSON without its texts."""
    import numpy as np

    brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
    opening = np.isin(brackets, np.frombuffer(b"[{", np.uint8))
    return int(np.cumsum(np.where(opening, 1, -1), dtype=np.int32).max(initial=0))


def _unquoted(plain: bytes) -> bytes:
    """What stands outside of texts; a piece at a time, for the sake of memory."""
    found, quoted = [], False
    for start in range(0, len(plain), _CHUNK):
        part = plain[start : start + _CHUNK]
        if quoted:
            _, quote, part = part.partition(b'"')
            quoted = not quote
        part, quote, _ = _QUOTED.sub(b"", part).partition(b'"')
        quoted = quoted or bool(quote)
        found.append(part)
    return b"".join(found)


def _check_letters(raw: bytes) -> None:
    """Refuse what would be too much once it is decoded: its widest character sets the width."""
    if raw.isascii():
        return
    width = 4 if _ASTRAL.search(raw) else 2
    if len(raw.translate(None, _CONTINUING)) * width > _MAX_TEXT:
        raise _Refused(f"it has more than {_MAX_TEXT // width:,} characters, the most allowed")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are distinct: of two budgets a reader might see the wrong one."""
    content = dict(pairs)
    if len(content) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _Refused(f"the key {short(twice)} stands twice in one object")
    return content


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _Refused(f"a number has more than {MAX_DIGITS} characters, the most allowed")
    return int(digits)


def _finite(digits: str) -> float:
    found = float(digits) if len(digits) <= MAX_DIGITS else math.inf
    if not math.isfinite(found):
        raise _Refused(f"the number {short(digits)} is too great, or too long")
    return found


def _no_number(name: str) -> NoReturn:
    raise _Refused(f"{name} stands for a number, expected finite ones (or null)")


# --- TOML --------------------------------------------------------------------------------


def read_toml(path: str | Path, what: str, error: type[InputError]) -> dict[str, Any]:
    """Read a TOML file; ``what`` names the kind of file in errors.

    Parameters
    ----------
    path
        A regular file of at most :data:`MAX_TOML` bytes, in UTF-8, with a mark of byte order
        or without.
    what
        ``"workload"``, say.
    error
        The type of error that is raised.

    Raises
    ------
    InputError
        Of the type given: the file can't be read, is not TOML, is too large, or nested too
        deeply.
    """
    where = f"{what} file {path}"
    try:
        raw = read_bytes(path, what, MAX_TOML)
    except FormatError as reason:
        raise error(str(reason)) from None
    return toml_content(raw, where, error)


def toml_content(raw: bytes, where: str, error: type[InputError]) -> dict[str, Any]:
    """The table that the bytes of a TOML file say; ``where`` names the file in errors.

    >>> toml_content(b"a = 3", "workload file w.toml", FormatError)
    {'a': 3}
    """
    try:
        _check_toml(raw)
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise error(f"{where} is not TOML: it is no text in UTF-8.") from None
    except _Refused as reason:
        raise error(f"{where}: {reason}.") from None
    except RecursionError:
        raise error(f"{where}: it is nested too deeply.") from None
    except (ValueError, KeyError, AttributeError, TypeError) as reason:  # some are tomllib's faults
        told = reason if isinstance(reason, tomllib.TOMLDecodeError) else "a value is malformed"
        raise error(f"{where} is not TOML: {_first_line(str(told))}.") from None


def _check_toml(raw: bytes) -> None:
    """Refuse what would take long to read."""
    if len(raw) > MAX_TOML:
        raise _Refused(f"it has more than {MAX_TOML:,} bytes, the most allowed")
    if sum(raw.count(mark) for mark in (b"\n", b"=", b",", b"[", b"{")) > MAX_TOML_VALUES:
        raise _Refused(f"it holds more than {MAX_TOML_VALUES:,} lines and values, the most allowed")
    bare = _TOML_QUIET.sub(lambda found: b"" if found["comment"] else b"s", raw)
    if _TOML_WORD.search(bare):
        raise _Refused(f"a number or name without quotes has more than {MAX_DIGITS} characters")
    if _TOML_DOTTED.search(bare):
        raise _Refused(f"a key has more than {_MAX_PARTS} parts")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]


# --- bytes -------------------------------------------------------------------------------


def read_bytes(path: str | Path, what: str, most: int) -> bytes:
    """The bytes of a file of others, or a refusal; no more than one beyond ``most`` is read.

    Raises
    ------
    FormatError
        There is no such file, it can't be read, is no regular file (one could wait for ever on
        a pipe), or has more than ``most`` bytes.
    """
    try:
        mode = Path(path).stat().st_mode
        raw = b""
        if S_ISREG(mode):
            with Path(path).open("rb") as file:
                raw = file.read(most + 1)
    except OSError as error:
        raise FormatError(f"{what} file {path}: {error.strerror}.") from None
    except ValueError:  # a NUL in the name
        raise FormatError(f"{what} file {str(path)!r}: no such file.") from None
    if not S_ISREG(mode):
        kind = "a folder" if S_ISDIR(mode) else "no regular file"
        raise FormatError(f"{what} file {path}: it is {kind}.")
    if len(raw) > most:
        raise FormatError(f"{what} file {path}: it has more than {most:,} bytes, the most allowed.")
    return raw


# --- what was got, in messages -----------------------------------------------------------


def kind_of(value: object) -> str:
    """What a value is, in a message.

    >>> kind_of(3), kind_of([])
    ('an int', 'a list')
    """
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers in a message, with as many digits as tell them apart, four at least.

    >>> apart(0.75, 0.7500021), apart(1.0, 20.0)
    (('0.75', '0.750002'), ('1', '20'))
    """
    for digits in range(4, 18):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def short(value: object) -> str:
    """A value in a message: no longer than a line, however large or deep it is.

    >>> short([1, "a"]), short([[]]), short(10**5000)
    ("[1, 'a']", 'a list of 1', 'a very large number')
    """
    if isinstance(value, (list, tuple)):
        flat = len(value) <= _NAMED and not any(isinstance(v, _CONTAINERS) for v in value)
        text = f"[{', '.join(map(short, value))}]" if flat else ""
        return text if 0 < len(text) <= _LINE else f"a list of {len(value):,}"
    if isinstance(value, _CONTAINERS):
        return f"an object of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return "a very large number"
    text = repr(value[:_LINE] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."


def listed(names: Iterable[Any], say: Callable[[Any], str] = short) -> str:
    """Names in a message, the first few of many.

    >>> listed("abcdefg")
    "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    every = list(names)
    more = f" and {len(every) - _NAMED:,} more" if len(every) > _NAMED else ""
    return ", ".join(map(say, every[:_NAMED])) + more
