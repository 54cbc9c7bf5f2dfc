"""What the user asks for: a sum of measures, in Python or in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import TypeAlias

from retilt.exceptions import WorkloadError
from retilt.measures.marginals import DEFAULT_BINS, Marginal
from retilt.measures.moments import Moments

Measure: TypeAlias = Moments | Marginal


@dataclass(frozen=True, slots=True)
class Workload:
    """A sum of measures; join two with ``+``.

    Examples
    --------
    >>> w = correlation(["age", "income"]) + marginals(["sex", "race"])
    >>> [m.kind for m in w.measures]
    ['correlation', 'marginal', 'marginal']
    >>> w.columns
    ('age', 'income', 'sex', 'race')
    """

    measures: tuple[Measure, ...] = ()

    def __add__(self, other: Workload) -> Workload:
        if not isinstance(other, Workload):
            return NotImplemented
        return Workload(self.measures + other.measures)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a measure reads, in order of first mention."""
        return tuple(dict.fromkeys(name for m in self.measures for name in m.columns))


def moments(columns: Sequence[str], order: int = 2, *, weight: float = 1.0) -> Workload:
    """Means and, for ``order=2``, standard deviations and correlations of ``columns``."""
    names = _check_columns(columns, "moments")
    return Workload((Moments(names, order=order, weight=_check_weight(weight)),))


def correlation(columns: Sequence[str], *, weight: float = 1.0) -> Workload:
    """The correlations of all pairs of ``columns`` (their first and second moments)."""
    names = _check_columns(columns, "correlation")
    return Workload((Moments(names, statistics="correlation", weight=_check_weight(weight)),))


def marginal(
    columns: Sequence[str],
    bins: int | Mapping[str, int | Sequence[float]] | None = None,
    *,
    weight: float = 1.0,
) -> Workload:
    """One table of all ``columns`` together.

    ``bins`` is a number of quantile bins for every numeric column, or by column a number or
    the inner edges (default 20 quantile bins of the synthetic table).
    """
    names = _check_columns(columns, "marginal")
    _check_bin_names(bins, names)
    return Workload((_table(names, bins, _check_weight(weight)),))


def marginals(
    columns: Sequence[str],
    k: int = 1,
    bins: int | Mapping[str, int | Sequence[float]] | None = None,
    *,
    weight: float = 1.0,
) -> Workload:
    """All k-way tables of ``columns``.

    >>> [m.columns for m in marginals(["a", "b", "c"], k=2).measures]
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    """
    names = _check_columns(columns, "marginals")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= len(names):
        raise WorkloadError(
            f"marginals: got k = {k!r}, expected a whole number from 1 to the number of "
            f"columns ({len(names)})."
        )
    _check_weight(weight)
    _check_bin_names(bins, names)
    return Workload(tuple(_table(subset, bins, weight) for subset in combinations(names, k)))


def _table(
    names: tuple[str, ...], bins: int | Mapping[str, int | Sequence[float]] | None, weight: float
) -> Marginal:
    if bins is None or isinstance(bins, int):
        return Marginal(names, default_bins=DEFAULT_BINS if bins is None else bins, weight=weight)
    if not isinstance(bins, Mapping):
        raise WorkloadError(
            f"bins: got {bins!r}, expected a number or a table of numbers or edges by column."
        )
    chosen = {n: b if isinstance(b, int) else tuple(b) for n, b in bins.items() if n in names}
    return Marginal(names, bins=chosen, weight=weight)


def _check_bin_names(bins: object, names: tuple[str, ...]) -> None:
    unknown = [n for n in bins if n not in names] if isinstance(bins, Mapping) else []
    if unknown:
        raise WorkloadError(
            f"bins: {', '.join(map(repr, unknown))} not among the columns "
            f"({', '.join(map(repr, names))})."
        )


def _check_columns(columns: object, what: str) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise WorkloadError(
            f"{what}: got {columns!r}, expected a list of column names such as ['age', 'sex']."
        )
    names = tuple(columns)
    if not names:
        raise WorkloadError(f"{what}: got no columns, expected at least one name.")
    for name in names:
        if not isinstance(name, str):
            raise WorkloadError(f"{what}: got the column name {name!r}, expected text.")
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise WorkloadError(f"{what}: {', '.join(map(repr, twice))} named twice; name each once.")
    return names


def _check_weight(weight: object) -> float:
    number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not number or not isfinite(weight) or weight <= 0:  # type: ignore[arg-type,operator]
        raise WorkloadError(f"weight: got {weight!r}, expected a finite number above 0.")
    return float(weight)  # type: ignore[arg-type]


_FIELDS = {
    "correlation": {"columns", "weight"},
    "moments": {"columns", "order", "weight"},
    "marginal": {"columns", "bins", "weight"},
    "marginals": {"columns", "k", "bins", "weight"},
}


def load_workload(path: str | Path) -> Workload:
    """Read a workload file: TOML with one ``[[measures]]`` table for each measure.

    Raises
    ------
    WorkloadError
        The file is missing, is not TOML, or a measure in it is malformed.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"workload file {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(f"workload file {path} is not TOML: {error}.") from None
    try:
        return workload_from_dict(content)
    except WorkloadError as error:
        raise WorkloadError(f"workload file {path}: {error}") from None


def workload_from_dict(content: Mapping[str, object]) -> Workload:
    """A workload from the content of a workload file.

    >>> workload_from_dict({"measures": [{"kind": "moments", "columns": ["a"]}]}).columns
    ('a',)
    """
    unknown = set(content) - {"measures"}
    entries = content.get("measures")
    if unknown or not isinstance(entries, list) or not entries:
        raise WorkloadError(
            "expected [[measures]] tables and nothing else"
            + (f", got {', '.join(sorted(unknown))}." if unknown else ", got none.")
        )
    workload = Workload()
    for number, entry in enumerate(entries, 1):
        try:
            workload += _measure_from_dict(entry)
        except WorkloadError as error:
            raise WorkloadError(f"measure {number}: {error}") from None
    return workload


def _measure_from_dict(entry: object) -> Workload:
    if not isinstance(entry, Mapping) or entry.get("kind") not in _FIELDS:
        got = entry.get("kind") if isinstance(entry, Mapping) else entry
        raise WorkloadError(f"kind: got {got!r}, expected one of {', '.join(_FIELDS)}.")
    kind = str(entry["kind"])
    options = {k: v for k, v in entry.items() if k != "kind"}
    unknown = sorted(set(options) - _FIELDS[kind])
    if unknown:
        raise WorkloadError(
            f"{kind}: unknown {', '.join(unknown)}; allowed are {', '.join(sorted(_FIELDS[kind]))}."
        )
    if "columns" not in options:
        raise WorkloadError(f"{kind}: columns are missing.")
    makers = {
        "correlation": correlation,
        "moments": moments,
        "marginal": marginal,
        "marginals": marginals,
    }
    try:
        return makers[kind](**options)
    except TypeError:
        raise WorkloadError(f"{kind}: a value has the wrong type.") from None
