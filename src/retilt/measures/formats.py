"""Measures in files: a workload in TOML, and resolved measures in a plan's JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from retilt._input import read_toml
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.measures import workload as make
from retilt.measures.base import Measure
from retilt.measures.distributions import Cdf, Quantiles
from retilt.measures.entries import check_expressions, expressions_in, listed, short
from retilt.measures.guards import Guard, Guards
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Means, Moments
from retilt.measures.rates import Share
from retilt.measures.scalars import Query
from retilt.measures.workload import Workload, check_number
from retilt.schema.formats import schema_from_dict, schema_to_dict

_MAKERS: dict[str, Callable[..., Workload]] = {
    "correlation": make.correlation,
    "moments": make.moments,
    "regression": make.regression,
    "means": make.means,
    "marginal": make.marginal,
    "marginals": make.marginals,
    "share": make.share,
    "query": make.query,
    "cdf": make.cdf,
    "quantiles": make.quantiles,
}
"""The constructors that a workload file can call, by the measure's kind."""

_CLASSES: dict[str, Any] = {
    "correlation": Moments,
    "moments": Moments,
    "regression": Moments,
    "means": Means,
    "marginal": Marginal,
    "share": Share,
    "query": Query,
    "cdf": Cdf,
    "quantiles": Quantiles,
}
"""The classes of a plan's measures, by kind."""


# --- TOML --------------------------------------------------------------------------------


def load_workload(path: str | Path) -> Workload:
    """Read a workload file: TOML with a ``[[measures]]`` table for each measure.

    ``[[keep]]`` tables are guards: the same fields, and ``tolerance``; ``kind = "marginals"``
    without columns means those of all columns of the synthetic table.

    Raises
    ------
    WorkloadError
        The file is missing, is not TOML, or a measure in it is malformed.
    """
    content = read_toml(path, "workload", WorkloadError)
    try:
        return workload_from_dict(content)
    except WorkloadError as error:
        raise WorkloadError(f"workload file {path}: {error}") from None


def workload_from_dict(content: Mapping[str, object]) -> Workload:
    """A workload from the content of a workload file.

    >>> workload_from_dict({"measures": [{"kind": "moments", "columns": ["a"]}]}).columns
    ('a',)
    """
    unknown = set(content) - {"measures", "keep"}
    entries, guards = content.get("measures", []), content.get("keep", [])
    if not isinstance(entries, list) or not isinstance(guards, list):
        raise WorkloadError("expected [[measures]] and [[keep]] tables, in double brackets.")
    if unknown or not (entries or guards):
        raise WorkloadError(
            "expected [[measures]] and [[keep]] tables and nothing else"
            + (f", got {listed(sorted(unknown))}." if unknown else ", got none.")
        )
    check_expressions(expressions_in([*entries, *guards]))
    workload = Workload()
    for what, tables, build in (
        ("measure", entries, _measure_of),
        ("keep", guards, _guard_of),
    ):
        check_number(f"{what} tables", len(tables))
        for number, entry in enumerate(tables, 1):
            try:
                workload += build(entry)
            except WorkloadError as error:
                raise WorkloadError(f"{what} {number}: {error}") from None
    return workload


def _measure_of(entry: object) -> Workload:
    got = entry.get("kind") if isinstance(entry, Mapping) else entry
    if not isinstance(entry, Mapping) or not isinstance(got, str) or got not in _MAKERS:
        raise WorkloadError(f"kind: got {short(got)}, expected one of {', '.join(_MAKERS)}.")
    kind = got
    options = {str(k): v for k, v in entry.items() if k != "kind"}
    allowed = signature(_MAKERS[kind]).parameters
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise WorkloadError(
            f"{kind}: unknown {listed(unknown)}; allowed are {', '.join(sorted(allowed))}."
        )
    missing = [n for n, p in allowed.items() if p.default is Parameter.empty and n not in options]
    if missing:
        raise WorkloadError(f"{kind}: {', '.join(missing)} missing.")
    try:
        return _MAKERS[kind](**options)
    except TypeError:
        raise WorkloadError(f"{kind}: a value has the wrong type.") from None


def _guard_of(entry: object) -> Workload:
    if not isinstance(entry, Mapping):
        raise WorkloadError(f"got {short(entry)}, expected a table.")
    options = {k: v for k, v in entry.items() if k != "tolerance"}
    tolerance = entry.get("tolerance")
    if options == {"kind": "marginals"}:
        return make.keep("marginals", tolerance)
    return make.keep(_measure_of(options), tolerance)


# --- JSON --------------------------------------------------------------------------------


def measure_to_dict(measure: Measure) -> dict[str, Any]:
    """A resolved measure for a plan."""
    return {"kind": measure.kind, "weight": measure.weight, **measure.to_dict()}


def measure_from_dict(entry: Mapping[str, Any]) -> Measure:
    """The measure that :func:`measure_to_dict` wrote; strict.

    Raises
    ------
    FormatError, WorkloadError
        If it is malformed.
    """
    if not isinstance(entry, Mapping):
        raise FormatError("measures: expected objects.")
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise FormatError(f"kind: got {short(kind)}, expected one of {', '.join(_CLASSES)}.")
    if "weight" not in entry:
        raise FormatError(f"measure {kind!r}: weight is missing.")
    try:
        found: Measure = _CLASSES[kind].from_dict(entry)
    except InputError:
        raise
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):
        raise FormatError(f"measure {kind!r}: a value is missing or has the wrong type.") from None
    return found


def guards_to_dict(guards: Guards | None) -> dict[str, Any] | None:
    """Guards for a plan or a tilt."""
    if guards is None:
        return None
    return {
        "schema": schema_to_dict(guards.schema),
        "measures": [
            {**measure_to_dict(g.measure), "tolerance": g.tolerance} for g in guards.guards
        ],
    }


def guards_from_dict(content: object) -> Guards | None:
    """The guards that :func:`guards_to_dict` wrote; strict."""
    if content is None:
        return None
    if not isinstance(content, Mapping) or set(content) != {"schema", "measures"}:
        raise FormatError("guards: expected null or an object of schema and measures.")
    if not isinstance(content["measures"], list) or not content["measures"]:
        raise FormatError("guards: expected at least one measure.")
    check_number("guards", len(content["measures"]))
    check_expressions(expressions_in(content["measures"]))
    guards = []
    for entry in content["measures"]:
        if not isinstance(entry, Mapping) or "tolerance" not in entry:
            raise FormatError("guards: a tolerance is missing.")
        measure = measure_from_dict({k: v for k, v in entry.items() if k != "tolerance"})
        guards.append(Guard(measure, entry["tolerance"]))
    found = Guards(tuple(guards), schema_from_dict(content["schema"]))
    missing = [n for g in guards for n in g.measure.columns if n not in found.schema]
    if missing:
        raise FormatError(f"guards: the schema lacks the columns {listed(missing)}.")
    _ = found.queries  # what does not fit the schema is refused here, and not in a fit
    return found
