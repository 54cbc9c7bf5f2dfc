"""A tilt's file: the strict reading of ``tilt.json``, before any table is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from retilt.exceptions import FormatError
from retilt.measures.base import FloatArray
from retilt.measures.entries import is_number, listed, read_numbers, read_text, short
from retilt.measures.formats import guards_from_dict
from retilt.measures.guards import Guards
from retilt.privacy.answers import Answers
from retilt.privacy.published import Published
from retilt.privacy.targets import targets_from_dict
from retilt.rescue import LARGEST, Redrawing, redrawing_from_dict
from retilt.tilting.bounds import Bounds
from retilt.tilting.solution import PathPoint, Status

FORMAT = "retilt-tilt/1"

_PAPER = (Status.CONVERGED, Status.INFEASIBLE_MEASURES, Status.ITERATION_LIMIT)
"""What the paper's method can end with."""

_KEYS = frozenset(
    {
        "format",
        "answers",
        "guards",
        "rows",
        "base_weights",
        "support",
        "method",
        "multipliers",
        "aim",
        "tolerance",
        "eta",
        "status",
        "certificate",
        "ess",
        "misfit",
        "insistent",
        "released",
        "bounds",
        "looseness",
        "path",
        "statistics",
        "notes",
    }
)

_NEAR_ZERO = 1e-30
"""Means of queries are divided by, and a trade-off is: by one next to 0 as by 0."""

_MOST_POINTS, _MOST_SETTINGS = 1_000, 20
_POINT = frozenset(f.name for f in fields(PathPoint))


@dataclass(frozen=True)
class TiltContent:
    """What a tilt's file says, before any table is seen; the rest of it is computed anew.

    Attributes
    ----------
    answers, guards
        What was fitted.
    fingerprint
        Of the rows that it was fitted to.
    weighted, column
        Whether there were base weights, and the column that they are in.
    support
        How the candidate rows behind the table's own were made; None without any.
    method, settings
        How it was fitted.
    multipliers, insistent, aim, tolerance, eta, status, released, path, bounds, looseness, ess
        See :class:`retilt.tilting.solution.Solution`.
    """

    answers: Answers | Published
    guards: Guards | None
    fingerprint: str
    weighted: bool
    column: str | None
    support: Redrawing | None
    method: str
    settings: Mapping[str, Any]
    multipliers: FloatArray
    insistent: FloatArray
    aim: FloatArray
    tolerance: float
    eta: float
    status: Status
    released: tuple[int, ...]
    path: tuple[PathPoint, ...]
    bounds: Bounds | None
    looseness: float
    ess: float


def tilt_content(content: Mapping[str, Any]) -> TiltContent:
    """The content of a tilt's file; strict.

    Raises
    ------
    InputError
        It is no tilt, of another version, or malformed.
    """
    if content.get("format") != FORMAT:
        raise FormatError(f"format: got {short(content.get('format'))}, expected {FORMAT!r}.")
    odd = sorted(content.keys() ^ _KEYS)
    if odd:
        raise FormatError(f"keys missing or unknown: {listed(odd)}.")
    rows = _part(content, "rows", {"count", "sha256"})
    base = _part(content, "base_weights", {"used", "column"})
    _check_base(base["used"], base["column"])
    settings = dict(_settings(content["method"]))
    read = TiltContent(
        answers=targets_from_dict(_object(content["answers"], "answers")),
        guards=guards_from_dict(content["guards"]),
        fingerprint=read_text(rows, "sha256"),
        weighted=base["used"],
        column=base["column"],
        support=redrawing_from_dict(content["support"]),
        method=settings.pop("name", None),
        settings=settings,
        multipliers=_numbers(content, "multipliers"),
        insistent=_means(content, "insistent"),
        aim=_means(content, "aim"),
        tolerance=_size(_number(content, "tolerance"), "tolerance"),
        eta=math.inf if content["eta"] is None else _size(_number(content, "eta"), "eta"),
        status=_status(content["status"]),
        released=_places(content["released"]),
        path=_points(content["path"]),
        bounds=_bounds(content["bounds"]),
        looseness=_looseness(content),
        ess=_size(_number(content, "ess"), "ess"),
    )
    _check_method(read)
    return read


def _object(content: object, what: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise FormatError(f"{what}: got {short(content)}, expected an object.")
    return content


def _part(content: Mapping[str, Any], key: str, names: set[str]) -> dict[str, Any]:
    part = _object(content[key], key)
    if part.keys() != names:
        raise FormatError(f"{key}: expected an object of {listed(sorted(names))}.")
    return part


def _check_base(used: object, column: object) -> None:
    if not isinstance(used, bool) or not (column is None or isinstance(column, str)):
        raise FormatError(
            "base_weights: expected used to be true or false, and column a name or null."
        )


def _settings(content: object) -> dict[str, Any]:
    """The name of a method and its settings: a few texts, numbers, true, false and null."""
    settings = _object(content, "method")
    plain = all(
        v is None or isinstance(v, bool) or is_number(v) or (isinstance(v, str) and len(v) <= 200)
        for v in settings.values()
    )
    if not plain or len(settings) > _MOST_SETTINGS:
        raise FormatError("method: expected a name and a few settings, texts and numbers.")
    return settings


def _number(content: Mapping[str, Any], key: str) -> float:
    if not is_number(content[key]):
        raise FormatError(f"{key}: got {short(content[key])}, expected a finite number.")
    return float(content[key])


def _numbers(content: Mapping[str, Any], key: str) -> FloatArray:
    found = read_numbers(content, key)
    _size(max(map(abs, found), default=0.0), key)
    return np.array(found)


def _means(content: Mapping[str, Any], key: str) -> FloatArray:
    found = _numbers(content, key)
    means: FloatArray = np.where(np.abs(found) < _NEAR_ZERO, 0.0, found)
    return means


def _size(value: float, key: str) -> float:
    """Refuse a number that can't be computed with."""
    if abs(value) > LARGEST:
        raise FormatError(f"{key}: got {short(value)}, expected at most {LARGEST:g} in size.")
    return value


def _status(content: object) -> Status:
    allowed = [s.value for s in Status]
    if not isinstance(content, str) or content not in allowed:
        raise FormatError(f"status: got {short(content)}, expected one of {', '.join(allowed)}.")
    return Status(content)


def _places(content: object) -> tuple[int, ...]:
    if not isinstance(content, list) or not all(type(k) is int for k in content):
        raise FormatError("released: expected a list of whole numbers.")
    return tuple(content)


def _bounds(content: object) -> Bounds | None:
    """The bounds of the weights; JSON's null for none, and in them for no cap."""
    if content is None:
        return None
    found = _object(content, "bounds")
    if found.keys() != {"min_weight", "max_weight"}:
        raise FormatError("bounds: expected null, or an object of min_weight and max_weight.")
    lower = _number(found, "min_weight")
    upper = None if found["max_weight"] is None else _number(found, "max_weight")
    bounds = Bounds.of(lower, upper)
    assert bounds is not None
    return bounds


def _looseness(content: Mapping[str, Any]) -> float:
    found = _size(_number(content, "looseness"), "looseness")
    if found < 1:
        raise FormatError(f"looseness: got {short(found)}, expected at least 1.")
    return found


def _points(content: object) -> tuple[PathPoint, ...]:
    if not isinstance(content, list) or len(content) > _MOST_POINTS:
        raise FormatError(f"path: expected a list of at most {_MOST_POINTS:,} points.")
    return tuple(map(_point, content))


def _point(content: object) -> PathPoint:
    """A point of the path; JSON's null is an infinite trade-off or an undefined number."""
    point = _object(content, "path")
    if point.keys() != _POINT or type(point["rows"]) is not int or point["rows"] < 0:
        raise FormatError(f"path: expected objects of {', '.join(sorted(_POINT))}.")
    if not isinstance(point["chosen"], bool):
        raise FormatError(f"path: chosen: got {short(point['chosen'])}, expected true or false.")
    numbers = {
        key: math.nan if value is None else _number(point, key)
        for key, value in point.items()
        if key not in ("rows", "chosen")
    }
    if point["eta"] is None:
        numbers["eta"] = math.inf
    return PathPoint(**numbers, rows=point["rows"], chosen=point["chosen"])


def _check_method(read: TiltContent) -> None:
    """Refuse a file whose method, trade-off, tolerance and status do not belong together."""
    paper = read.method in ("paper", "paper-exact")
    if not paper:
        right = read.method == "default" and read.eta >= _NEAR_ZERO and read.tolerance == 0
    else:
        right = read.eta == 0 and read.tolerance >= 0 and read.status in _PAPER
        right = right and read.bounds is None and read.looseness == 1
    if not right:
        raise FormatError("its method, eta, tolerance, status and bounds do not belong together.")
