"""What the user asks for: a sum of measures, each made by a function of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Any, Literal, TypeAlias

from retilt.exceptions import WorkloadError
from retilt.measures.base import Measure
from retilt.measures.calls import FunctionMeasure
from retilt.measures.distributions import QUARTILES, Cdf, Quantiles
from retilt.measures.entries import is_number, listed, short
from retilt.measures.grouping import GroupedMeasure
from retilt.measures.guards import Everything, Guard
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Means, Moments
from retilt.measures.rates import Share
from retilt.measures.scalars import Query

ClipByColumn: TypeAlias = Mapping[str, Sequence[float]]
"""Lower and upper bounds that values are clamped to, by numeric column."""

BinsByColumn: TypeAlias = int | Mapping[str, int | Sequence[float]]
"""A number of quantile bins for every numeric column, or by column a number or inner edges."""

MAX_MEASURES = 5_000
"""Measures, and guards, of one workload: all pairs of a hundred columns are not quite as many."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A sum of measures, and of guards; join two with ``+``.

    Examples
    --------
    >>> w = correlation(["age", "income"]) + marginals(["sex", "race"])
    >>> [m.kind for m in w.measures]
    ['correlation', 'marginal', 'marginal']
    >>> w.columns
    ('age', 'income', 'sex', 'race')
    """

    measures: tuple[Measure, ...] = ()
    guards: tuple[Guard | Everything, ...] = ()

    def __post_init__(self) -> None:
        check_number("measures", len(self.measures))
        check_number("guards", len(self.guards))

    def __add__(self, other: Workload) -> Workload:
        if not isinstance(other, Workload):
            return NotImplemented
        return Workload(self.measures + other.measures, self.guards + other.guards)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a measure reads, in order of first mention; guards apart."""
        return tuple(dict.fromkeys(name for m in self.measures for name in m.columns))

    def unclamped(self) -> Workload:
        """The same without bounds that the plan would choose: those of the schema hold."""
        kept = (
            replace(m, clip={}) if isinstance(m, GroupedMeasure) and m.clip is None else m
            for m in self.measures
        )
        return Workload(tuple(kept), self.guards)


def check_number(what: str, number: int) -> None:
    """Refuse more measures, or guards, than a workload may hold."""
    if number > MAX_MEASURES:
        raise WorkloadError(
            f"workload: got {number:,} {what}, at most {MAX_MEASURES:,} are allowed. Name fewer, "
            "or wider ones: one correlation of many columns, one table of several."
        )


def moments(
    columns: Sequence[str],
    order: int = 2,
    *,
    by: str | Sequence[str] | None = None,
    where: str | None = None,
    bins: BinsByColumn | None = None,
    clip: ClipByColumn | None = None,
    weight: float = 1.0,
) -> Workload:
    """Means and, for ``order=2``, standard deviations and correlations of ``columns``.

    ``by`` asks for them in each group (numeric columns in ``bins``), ``where`` in the rows for
    which a SQL condition holds. ``clip`` gives bounds within the schema's that numeric columns are
    clamped to (``{}``: none); left out, the plan chooses them for columns with far tails.
    """
    return _moments("moments", columns, by, where, bins, clip, weight, order=order)


def correlation(
    columns: Sequence[str],
    *,
    by: str | Sequence[str] | None = None,
    where: str | None = None,
    bins: BinsByColumn | None = None,
    clip: ClipByColumn | None = None,
    weight: float = 1.0,
) -> Workload:
    """The correlations of all pairs of ``columns`` (their first and second moments).

    ``by``, ``where`` and ``clip`` as for :func:`moments`.
    """
    return _moments("correlation", columns, by, where, bins, clip, weight)


def regression(
    target: str,
    on: str | Sequence[str],
    *,
    by: str | Sequence[str] | None = None,
    where: str | None = None,
    bins: BinsByColumn | None = None,
    clip: ClipByColumn | None = None,
    weight: float = 1.0,
) -> Workload:
    """The coefficients of the least-squares regression of ``target`` on the columns ``on``.

    They are computed from the first and second moments of all of these columns. ``by``,
    ``where`` and ``clip`` as for :func:`moments`.
    """
    names = _check_columns([on] if isinstance(on, str) else on, "regression") if on else ()
    return _moments("regression", [target, *names], by, where, bins, clip, weight)


def _moments(
    kind: Literal["moments", "correlation", "regression"],
    columns: Sequence[str],
    by: str | Sequence[str] | None,
    where: str | None,
    bins: BinsByColumn | None,
    clip: ClipByColumn | None,
    weight: float,
    order: int = 2,
) -> Workload:
    names = _check_columns(columns, kind)
    groups = _groups(by, kind, names)
    made = Moments(
        names,
        order=order,
        statistics=kind,
        by=groups,
        where=where,
        **_bins_of(bins, groups),
        clip=clip,  # type: ignore[arg-type]  # checked there
        weight=_check_weight(weight),
    )
    return Workload((made,))


def means(
    columns: str | Sequence[str],
    *,
    by: str | Sequence[str] | None = None,
    where: str | None = None,
    bins: BinsByColumn | None = None,
    clip: ClipByColumn | None = None,
    weight: float = 1.0,
) -> Workload:
    """The means of ``columns``: of all rows, of each group, or of the rows of a condition.

    Parameters
    ----------
    columns
        One or more. A category counts as its code.
    by
        Columns whose cells are the groups; numeric ones in ``bins``.
    where
        A SQL condition on a row.
    bins
        Of the numeric columns of ``by``: a number of quantile bins (default 20), or by column
        a number or inner edges.
    clip
        As for :func:`moments`.
    weight
        Importance.

    Examples
    --------
    >>> means("income", by="sex").measures[0].kind
    'means'
    """
    names = _check_columns([columns] if isinstance(columns, str) else columns, "means")
    groups = _groups(by, "means", names)
    _check_weight(weight)
    own = _bins_of(bins, groups)
    if not groups and where is None:
        return moments(names, order=1, clip=clip, weight=weight)
    made = Means(names, by=groups, where=where, **own, clip=clip, weight=weight)  # type: ignore[arg-type]
    return Workload((made,))


def marginal(
    columns: Sequence[str], bins: BinsByColumn | None = None, *, weight: float = 1.0
) -> Workload:
    """One table of all ``columns`` together.

    ``bins`` is a number of quantile bins for every numeric column, or by column a number or
    the inner edges (default 20 quantile bins of the synthetic table).
    """
    names = _check_columns(columns, "marginal")
    return Workload((Marginal(names, weight=_check_weight(weight), **_bins_of(bins, names)),))


def marginals(
    columns: Sequence[str],
    k: int = 1,
    bins: BinsByColumn | None = None,
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
            f"marginals: got k = {short(k)}, expected a whole number from 1 to the number of "
            f"columns ({len(names)})."
        )
    check_number(f"tables of {k} columns", comb(len(names), k))
    _check_weight(weight)
    _check_bin_names(bins, names)
    chosen = [
        {n: b for n, b in bins.items() if n in subset} if isinstance(bins, Mapping) else bins
        for subset in combinations(names, k)
    ]
    tables = zip(combinations(names, k), chosen, strict=True)
    return Workload(
        tuple(Marginal(subset, weight=weight, **_bins_of(own, subset)) for subset, own in tables)
    )


def share(
    predicate: str,
    by: str | Sequence[str] | None = None,
    *,
    bins: BinsByColumn | None = None,
    weight: float = 1.0,
) -> Workload:
    """The share of rows for which a SQL condition holds, of all rows or in each group.

    Parameters
    ----------
    predicate
        SQL over the columns of one row, such as ``"age >= 65 AND sex = 'F'"``. Null is false.
    by, bins, weight
        As for :func:`means`.

    Examples
    --------
    >>> share("age >= 65 AND sex = 'F'").columns
    ('age', 'sex')
    """
    groups = _groups(by, "share", ())
    weight = _check_weight(weight)
    return Workload((Share(predicate, by=groups, weight=weight, **_bins_of(bins, groups)),))


def query(
    expression: str, lower: float = 0.0, upper: float = 1.0, *, weight: float = 1.0
) -> Workload:
    """The mean of a SQL formula of one row, clamped to ``lower`` and ``upper``.

    A row whose formula gives null (a division by zero, a cast that fails) counts as ``lower``.

    >>> query("least(hours, 40) * 52", 0, 2080).columns
    ('hours',)
    """
    return Workload((Query(expression, lower=lower, upper=upper, weight=_check_weight(weight)),))


def cdf(
    column: str,
    thresholds: Sequence[Any],
    *,
    branching: int | None = None,
    weight: float = 1.0,
) -> Workload:
    """The shares of rows with a value of at most each threshold.

    A null counts as above them all. Thresholds of a date are dates or ISO text.

    The bins between the thresholds are measured. With a ``branching`` of at least 2, so many
    of them are measured as one, too, and so many of those, and so on; 0 is for bins alone. The
    plan chooses what it expects the least error of.
    """
    (name,) = _check_columns([column], "cdf")
    values = _values(thresholds, "cdf: thresholds")
    return Workload((Cdf(name, values, weight=_check_weight(weight), branching=branching),))


def quantiles(
    column: str,
    probabilities: Sequence[float] = QUARTILES,
    *,
    bins: int | Sequence[float] | None = None,
    branching: int | None = None,
    weight: float = 1.0,
) -> Workload:
    """Quantiles of a column's values, by way of a table of its bins.

    ``bins`` is a number of quantile bins of the synthetic table, or inner edges. ``branching``
    is as for :func:`cdf`.
    """
    (name,) = _check_columns([column], "quantiles")
    options: dict[str, Any] = {"branching": branching}
    if bins is not None:
        options["bins"] = bins if isinstance(bins, int) else _values(bins, "quantiles: bins")
    asked = _values(probabilities, "quantiles: probabilities")
    made = Quantiles(name, asked, weight=_check_weight(weight), **options)
    return Workload((made,))


def function(
    function: Callable[[Any], Any],
    columns: Sequence[str],
    *,
    lower: float = 0.0,
    upper: float = 1.0,
    size: int = 1,
    name: str | None = None,
    weight: float = 1.0,
) -> Workload:
    """The means of the numbers that a Python callable gives for a row.

    Parameters
    ----------
    function
        From a ``pyarrow.RecordBatch`` of ``columns`` to (rows,) or (rows, size) numbers, each
        row's from that row alone. See :class:`retilt.measures.calls.FunctionMeasure`.
    columns
        What it gets.
    lower, upper
        Its numbers are clamped to them; what is no number counts as ``lower``.
    size
        How many numbers it gives for a row.
    name
        In statistics; default the callable's own.
    weight
        Importance.

    A plan with such a measure can't be saved, since it holds code.
    """
    names = _check_columns(columns, "function")
    called = name or getattr(function, "__name__", None) or type(function).__name__
    made = FunctionMeasure(
        function,
        names,
        lower=lower,
        upper=upper,
        size=size,
        name=called,
        weight=_check_weight(weight),
    )
    return Workload((made,))


def keep(what: Workload | Literal["marginals"], tolerance: float | None = None) -> Workload:
    """Guards: a tilt shall leave these statistics as the synthetic table has them.

    It costs no privacy: nothing is asked of the private table.

    Parameters
    ----------
    what
        A workload; or ``"marginals"`` for the one-way tables of all columns of the synthetic
        table.
    tolerance
        By how much they may move: in shares for the cells of a table, in half ranges for means
        and products. Default: the synthetic table's own sampling error.

    Examples
    --------
    >>> len(keep(marginals(["sex", "race"]), tolerance=0.001).guards)
    2
    """
    if isinstance(what, str) and what == "marginals":
        return Workload(guards=(Everything(tolerance),))
    if not isinstance(what, Workload) or not what.measures or what.guards:
        raise WorkloadError(
            f"keep: got {short(what)}, expected a workload of measures such as "
            "retilt.marginals([...]), or 'marginals' for those of all columns."
        )
    if any(isinstance(m, FunctionMeasure) for m in what.measures):
        raise WorkloadError("keep: a Python callable can't be kept; write the formula in SQL.")
    return Workload(guards=tuple(Guard(replace_weight(m), tolerance) for m in what.measures))


def replace_weight(measure: Measure) -> Measure:
    """Return the measure with the importance 1: a guard has a tolerance instead."""
    plain: Measure = replace(measure, weight=1.0)  # type: ignore[type-var]
    return plain


def _values(given: object, what: str) -> tuple[Any, ...]:
    """The values of a list, which are checked where they are used."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise WorkloadError(f"{what}: got {short(given)}, expected a list, such as [0.1, 0.9].")
    return tuple(given)


def _bins_of(bins: BinsByColumn | None, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments ``bins`` and ``default_bins`` of a measure; it checks the numbers itself."""
    if bins is None:
        return {}
    if not names:
        raise WorkloadError("bins: those of the numeric columns in by, but by names none.")
    if isinstance(bins, int):
        return {"default_bins": bins}
    if not isinstance(bins, Mapping):
        raise WorkloadError(
            f"bins: got {short(bins)}, expected a number or a table of numbers or edges by column."
        )
    _check_bin_names(bins, names)
    return {"bins": {n: tuple(b) if isinstance(b, (list, tuple)) else b for n, b in bins.items()}}


def _check_bin_names(bins: object, names: tuple[str, ...]) -> None:
    unknown = [n for n in bins if n not in names] if isinstance(bins, Mapping) else []
    if unknown:
        raise WorkloadError(f"bins: {listed(unknown)} not among the columns ({listed(names)}).")


def _groups(by: object, what: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    if by is None:
        return ()
    names = _check_columns([by] if isinstance(by, str) else by, f"{what}: by")
    both = [n for n in names if n in columns]
    if both:
        raise WorkloadError(
            f"{what}: {listed(both)} both measured and named in by: within a group "
            "it hardly varies. Name another column."
        )
    return names


def _check_columns(columns: object, what: str) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise WorkloadError(
            f"{what}: got {short(columns)}, expected a list of column names such as ['age', 'sex']."
        )
    names = tuple(columns)
    if not names:
        raise WorkloadError(f"{what}: got no columns, expected at least one name.")
    for name in names:
        if not isinstance(name, str):
            raise WorkloadError(f"{what}: got the column name {short(name)}, expected text.")
    twice = sorted(n for n, times in Counter(names).items() if times > 1)
    if twice:
        raise WorkloadError(f"{what}: {listed(twice)} named twice; name each once.")
    return names


def _check_weight(weight: object) -> float:
    if not is_number(weight) or weight <= 0:  # type: ignore[operator]
        raise WorkloadError(f"weight: got {short(weight)}, expected a finite number above 0.")
    return float(weight)  # type: ignore[arg-type]
