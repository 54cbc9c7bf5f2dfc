"""Answers from elsewhere: noisy or exact statistics that retilt did not measure.

Another library may have released them, or a statistical office. Each is given with its standard
error, or all with one covariance; a standard error of 0 makes a statistic a constraint. retilt
spends no budget on them, and their privacy is whatever their source says.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt._input import read_json
from retilt._output import write_json
from retilt._version import __version__
from retilt.exceptions import FormatError, InputError
from retilt.measures.base import FloatArray, Norm, Variable
from retilt.measures.entries import check_expressions, listed, short
from retilt.measures.linear import StatedQueries
from retilt.privacy.answers import estimates_table
from retilt.privacy.binding import Bound, bind, numbered
from retilt.privacy.plan import table_frame
from retilt.privacy.stated import Cells, Entry, Label, Position, number, parse_statistic
from retilt.schema.columns import Categorical, Column, Numeric, Schema
from retilt.schema.formats import (
    Declared,
    load_declared,
    resolve,
    schema_from_dict,
    schema_to_dict,
)
from retilt.schema.infer import ReadableTable

FORMAT = "retilt-published/1"

MAX_STATISTICS = 100_000
"""Statistics of one file, the cells of its tables included."""

MAX_ENTRIES = 20_000
"""Statistics of one file, a table counted once: more could not be fitted together."""

MAX_COVARIED = 1_000
"""Statistics whose errors may be correlated: the matrix is decomposed once."""

_ROUNDING = 1e-7
"""How far from symmetric and positive semidefinite rounding may take a correlation matrix."""

_LEAST_OWN = 1e-6
"""Part of each variance that is taken as its own, so that a singular matrix can be inverted."""

_KEYS = frozenset({"format", "source", "privacy", "rows", "schema", "statistics", "covariance"})
_BY_SCHEMA = ("_bound", "_noise", "dominated", "estimates")
"""What is computed once, and depends on the schema."""

_NEEDED = frozenset({"format", "source", "statistics"})
_LONGEST = 10_000


@dataclass(frozen=True, eq=False)
class Published:
    """Statistics from elsewhere that a synthetic table is to agree with.

    Parameters
    ----------
    source
        Where they come from, in words.
    statistics
        A mapping for each, as in the file (its keys are in ``docs/file-formats.md``).
    promise
        What their source says of their privacy, in words; ``None`` if nothing.
    rows
        Number of rows that they describe; needed only where counts are given.
    declared
        Bounds and categories by column, as for ``retilt.plan``; what it leaves out is read off
        the synthetic table.
    covariance
        (S, S) of the errors of all given values, in their order (a table's row by row), instead
        of standard errors.
    resolved
        The schema of every column that is read; made by :meth:`completed`, or ``declared`` if
        that is a complete ``Schema``.

    Raises
    ------
    InputError
        Something is missing, unknown or malformed; the message says which statistic.

    Examples
    --------
    >>> Published("census", [{"share": "age >= 65", "value": 0.2, "standard_error": 0}])
    Published('census', statistics=1)
    """

    source: str
    statistics: Sequence[Mapping[str, Any]]
    _: KW_ONLY
    promise: str | None = None
    rows: int | None = None
    declared: Any = None
    covariance: Any = None
    resolved: Schema | None = None

    def __post_init__(self) -> None:
        _check_text("source", self.source)
        if self.promise is not None:
            _check_text("privacy", self.promise)
        if self.rows is not None and (
            isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1
        ):
            raise FormatError(
                f"rows: got {short(self.rows)}, expected a whole number above 0 or null."
            )
        if not isinstance(self.statistics, (list, tuple)) or not self.statistics:
            raise FormatError("statistics: expected a list of at least one.")
        object.__setattr__(self, "statistics", tuple(self.statistics))
        if isinstance(self.declared, Schema) and set(self.columns) <= set(self.declared.columns):
            object.__setattr__(self, "resolved", self.declared.subset(self.columns))
        object.__setattr__(self, "declared", load_declared(self.declared))
        count = sum(_size(e) for e in self._entries)
        if count > MAX_STATISTICS:
            raise FormatError(f"statistics: got {count:,}, at most {MAX_STATISTICS:,} are allowed.")
        if self.covariance is not None:
            object.__setattr__(self, "covariance", _covariance(self.covariance, count))

    def __repr__(self) -> str:
        return f"Published({self.source!r}, statistics={len(self.statistics)})"

    @cached_property
    def _entries(self) -> tuple[Entry, ...]:
        if len(self.statistics) > MAX_ENTRIES:
            raise FormatError(
                f"statistics: got {len(self.statistics):,}, at most {MAX_ENTRIES:,} are allowed. "
                "Give the cells of one table together."
            )
        given = (s for s in self.statistics if isinstance(s, Mapping))
        check_expressions(s.get(key) for s in given for key in ("share", "query", "where"))
        entries = []
        for position, content in enumerate(self.statistics, 1):
            with numbered(position):
                entries.append(parse_statistic(content, covaried=self.covariance is not None))
        return tuple(entries)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a statistic reads, in order of first mention."""
        return tuple(dict.fromkeys(n for e in self._entries for n in e.reads))

    # --- schema ---------------------------------------------------------------------------

    def completed(self, table: ReadableTable) -> Published:
        """Return it with the schema of every column: as declared, the rest off the table.

        Bounds and categories that are read off the table are widened to hold every bin edge and
        category that the statistics name: the table may lack them.

        Raises
        ------
        InputError
            A column is missing or its kind can't be told, or a statistic does not fit it.
        """
        found = resolve(self.declared, table, self.columns)
        columns = {
            name: self._widened(name, column) if self._may_widen(name, found) else column
            for name, column in found.columns.items()
        }
        schema = Schema(columns, found.inferred)
        complete = self._with(schema)
        _ = complete.queries  # whatever does not fit is found here
        return complete

    def _with(self, schema: Schema) -> Published:
        """The same statistics, which need not be read again, with all of their schema."""
        complete = copy(self)
        for name in _BY_SCHEMA:
            vars(complete).pop(name, None)
        object.__setattr__(complete, "declared", load_declared(schema))
        object.__setattr__(complete, "resolved", schema.subset(self.columns))
        return complete

    def _may_widen(self, name: str, found: Schema) -> bool:
        """Whether nothing of a column was declared."""
        entry = self.declared.entries.get(name)
        said = entry and (entry.categories, entry.lower, entry.upper) != (None, None, None)
        return name in found.inferred and (not said or name in self.declared.inferred)

    def _widened(self, name: str, column: Column) -> Column:
        if isinstance(column, Categorical):
            known = set(Variable(name, column).cell_labels())
            new = [v for v in self._labels(name) if v not in known]
            values = [v for v in map(_text if column.is_text else _float, new) if v is not None]
            fresh = [v for v in dict.fromkeys(values) if v not in column.categories]
            return replace(column, categories=(*column.categories, *fresh))
        edges = [e for t in self._tables() for e in t.bins.get(name, ())]
        if not (isinstance(column, Numeric) and edges):
            return column
        low, high = min(edges), max(edges)
        return replace(
            column,
            lower=min(column.lower, math.floor(low) if column.integer else low),
            upper=max(column.upper, math.ceil(high) if column.integer else high),
        )

    def _tables(self) -> Iterator[Cells]:
        return (e for e in self._entries if isinstance(e, Cells))

    def _labels(self, name: str) -> list[Label]:
        """What the statistics call the cells of a column, each once."""
        found: dict[Label, None] = {}
        for table in self._tables():
            if name in table.columns:
                at = table.columns.index(name)
                found |= dict.fromkeys(place[at] for place in table.places)
        return [v for v in found if v is not None and not isinstance(v, Position)]

    @property
    def schema(self) -> Schema:
        """Of every column that is read.

        Raises
        ------
        InputError
            It was not completed on a synthetic table yet.
        """
        if self.resolved is None:
            raise InputError(
                "published statistics: their schema is not complete before they are fitted to a "
                "synthetic table. Use retilt.fit(synthetic, published)."
            )
        return self.resolved

    # --- what a fit needs ------------------------------------------------------------------

    @cached_property
    def _bound(self) -> Bound:
        return bind(self._entries, self.schema, self.rows)

    @property
    def queries(self) -> StatedQueries:
        """The K queries, one for each statistic."""
        return self._bound.queries

    @property
    def norm(self) -> Norm:
        """Of the noise: taken as Gaussian."""
        return 2

    @property
    def means(self) -> FloatArray:
        """(K,) answers."""
        return self._bound.answers

    @property
    def _given_errors(self) -> FloatArray:
        """(K,) standard errors of the given values."""
        if self.covariance is not None:
            errors = np.sqrt(np.diagonal(self.covariance))
        else:
            errors = np.array([e for entry in self._entries for e in _errors(entry)])
        found: FloatArray = errors[self._bound.order]
        return found

    @cached_property
    def _noise(self) -> tuple[FloatArray, FloatArray]:
        """(K,) variances and (K, R) common part of the answers' noise; 0 where they are exact."""
        slopes, order = self._bound.slopes, self._bound.order
        if self.covariance is None:
            variances, common = (slopes * self._given_errors) ** 2, np.zeros((len(order), 0))
        else:
            variances, common = _split(
                self.covariance[np.ix_(order, order)] * np.outer(slopes, slopes)
            )
        variances += self.queries.second_order(self._given_errors) ** 2
        return variances, common

    @property
    def variances(self) -> FloatArray:
        """(K,) variances of the independent part of the answers' noise; 0 for an exact one."""
        return self._noise[0]

    @property
    def common_noise(self) -> FloatArray:
        """(K, R) common part of the answers' noise."""
        return self._noise[1]

    @property
    def exact(self) -> NDArray[np.bool_]:
        """(K,) answers without noise, which are constraints."""
        exact: NDArray[np.bool_] = self.variances == 0
        return exact

    @property
    def guards(self) -> None:
        """A file of statistics names no guards; a fit can."""
        return None

    @cached_property
    def estimates(self) -> FloatArray:
        """(S,) the statistics as their source gave them."""
        return self.queries.evaluate(self.means)

    def errors_at(self, means: FloatArray) -> FloatArray:
        """(S,) standard errors of the statistics, linearised at (K,) ``means``."""
        return self.queries.standard_errors(means, self.variances, self.common_noise)

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic: ``statistic``, ``estimate``, ``standard_error``, ``flag``."""
        return estimates_table(self)

    @cached_property
    def dominated(self) -> NDArray[np.bool_]:
        """(S,) statistics that noise dominates."""
        return self.queries.dominated(self.means, self.variances, self.common_noise)

    def to_frame(self) -> Any:
        """The statistics table in pandas if it is installed, else PyArrow."""
        return table_frame(self.statistics_table())

    @property
    def versions(self) -> Mapping[str, str]:
        """Names and versions of what read them."""
        return {
            "retilt": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }

    # --- words -----------------------------------------------------------------------------

    @property
    def private(self) -> None:
        """Unknown to retilt: it is their source's to say."""
        return None

    @property
    def statement(self) -> str:
        """Whose privacy it is, in words."""
        promise = (
            f"Of their privacy it says: {_sentence(self.promise)}"
            if self.promise
            else "It says nothing of their privacy."
        )
        return (
            f"The statistics come from elsewhere: {_sentence(self.source)} retilt measured nothing "
            "and spent no privacy budget on them. Their privacy is their source's own, and retilt "
            f"can't vouch for it. {promise} What the generator of the synthetic table spent comes "
            "on top."
        )

    @property
    def privacy(self) -> dict[str, Any]:
        """What is known of their privacy; ``private`` is null, for retilt can't tell."""
        return {
            "private": self.private,
            "source": self.source,
            "promise": self.promise,
            "spent": 0,
            "statement": self.statement,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how the statistics were read."""
        notes = []
        inferred = [n for n in self.schema.columns if n in self.schema.inferred]
        if inferred:
            notes.append(
                f"Bounds or categories read off the synthetic table: {', '.join(inferred)}. "
                "Declare them in the file's schema if they should not depend on it."
            )
        valued = {n for e in self._entries if not isinstance(e, Cells) for n in e.columns}
        nullable = [n for n, c in self.schema.columns.items() if c.nullable and n in valued]
        if nullable:
            notes.append(
                f"{', '.join(nullable)}: a null counts as the middle of the bounds in a mean, "
                "deviation, correlation or product (of two texts or booleans, as the first). "
                "If the source left nulls out, give the mean of "
                'the group "where" the column IS NOT NULL.'
            )
        return (*notes, *self._loose_notes())

    def _loose_notes(self) -> Iterator[str]:
        """Statistics that say little, since others that they are computed with are uncertain."""
        own = self._bound.slopes * self._given_errors
        extra = self.queries.second_order(self._given_errors)
        for k in np.flatnonzero(extra > own):
            yield (
                f"{self.queries.statistics[k]}: it counts for less than its standard error says, "
                "since that of a mean or deviation that it is computed with is large."
            )

    # --- files -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        whole = self.resolved is not None
        return {
            "format": FORMAT,
            "source": self.source,
            "privacy": self.promise,
            "rows": self.rows,
            "schema": schema_to_dict(self.schema) if whole else _declared_to_dict(self.declared),
            "statistics": [dict(s) for s in self.statistics],
            "covariance": None if self.covariance is None else self.covariance.tolist(),
        }

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the file; an existing one only with ``force``."""
        write_json(path, self.to_dict(), force=force)


def load_published(path: str | Path) -> Published:
    """Read published statistics; the format is described in ``docs/file-formats.md``.

    Raises
    ------
    FormatError
        The file is missing, no such file, or malformed; the message says where.
    """
    content = read_json(path, "published statistics")
    try:
        return published_from_dict(content)
    except InputError as error:
        raise FormatError(f"published statistics file {path}: {error}") from None


def published_from_dict(content: Mapping[str, Any]) -> Published:
    """Published statistics from the content of a file; strict."""
    if content.get("format") != FORMAT:
        raise FormatError(f"format: got {short(content.get('format'))}, expected {FORMAT!r}.")
    odd = sorted(map(str, (set(content) - _KEYS) | (_NEEDED - set(content))))
    if odd:
        raise FormatError(f"keys missing or unknown: {listed(odd)}.")
    schema = content.get("schema")
    if schema is not None and not isinstance(schema, dict):
        raise FormatError("schema: expected an object of columns, or null.")
    if schema is not None and set(schema) == {"columns", "inferred"}:
        schema = schema_from_dict(schema)
    return Published(
        content["source"],
        content["statistics"],
        promise=content.get("privacy"),
        rows=content.get("rows"),
        declared=schema,
        covariance=content.get("covariance"),
    )


def _text(given: Label) -> str | None:
    return given if isinstance(given, str) else None


def _float(given: Label) -> float | None:
    """The number that a label is or spells."""
    with suppress(TypeError, ValueError):
        found = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
        return found if math.isfinite(found) else None
    return None


def _size(entry: Entry) -> int:
    return len(entry.values) if isinstance(entry, Cells) else 1


def _errors(entry: Entry) -> tuple[float, ...]:
    """Standard errors of an entry's values; there is no covariance, so all are given."""
    if isinstance(entry, Cells):
        return entry.errors or ()
    return (entry.error or 0.0,)


def _declared_to_dict(declared: Declared) -> dict[str, Any]:
    """A perhaps incomplete schema as JSON."""
    return {
        name: {key: _plain(value) for key, value in asdict(entry).items() if value is not None}
        for name, entry in declared.entries.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise FormatError(
            f"{what}: expected a text of 1 to {_LONGEST:,} characters"
            f"{', or null' if what == 'privacy' else ''}."
        )


def _sentence(text: str) -> str:
    """Text that ends like a sentence.

    >>> _sentence("the census"), _sentence("Is it?")
    ('the census.', 'Is it?')
    """
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- covariance ----------------------------------------------------------------------------------


def _covariance(content: object, count: int) -> FloatArray:
    """A covariance of ``count`` errors, symmetric and positive semidefinite but for rounding."""
    if count > MAX_COVARIED:
        raise FormatError(
            f"covariance: at most {MAX_COVARIED:,} statistics can have one, got {count:,}. Give "
            "standard errors instead."
        )
    if isinstance(content, np.ndarray):
        content = content.tolist()
    rows = content if isinstance(content, (list, tuple)) else ()
    good = len(rows) == count and all(
        isinstance(r, (list, tuple)) and len(r) == count for r in rows
    )
    if not good:
        raise FormatError(
            f"covariance: expected {count:,} rows of {count:,} numbers, one for each given value "
            "(a table's row by row)."
        )
    matrix = np.array([[number(v, "covariance") for v in row] for row in rows])
    variances = np.diagonal(matrix)
    if (variances < 0).any():
        raise FormatError("covariance: a variance is negative.")
    known = variances > 0
    unit = np.sqrt(np.where(known, variances, 1.0))
    # By one side at a time: the product of two units could sink to zero.
    relative = matrix / unit[:, None] / unit
    if (
        np.abs(relative[~known]).max(initial=0) > 0
        or np.abs(relative[:, ~known]).max(initial=0) > 0
    ):
        raise FormatError("covariance: a variance is 0, but not all of its covariances are.")
    if np.abs(relative - relative.T).max() > _ROUNDING:
        raise FormatError("covariance: expected a symmetric matrix.")
    if np.linalg.eigvalsh((relative + relative.T) / 2).min() < -_ROUNDING * count:
        raise FormatError(
            "covariance: it is not positive semidefinite: some combination of the statistics "
            "would have a negative variance."
        )
    symmetric: FloatArray = (matrix + matrix.T) / 2
    symmetric.setflags(write=False)
    return symmetric


def _split(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A covariance as (K,) variances of their own and a (K, R) common part.

    Half the least eigenvalue of the correlation matrix is each error's own part (a millionth at
    least, by which a singular matrix grows); the rest is the square of the factor.
    """
    variances = np.diagonal(matrix).copy()
    off = np.abs(matrix - np.diag(variances)).max(axis=1) > 0
    factor = np.zeros((len(matrix), int(np.count_nonzero(off))))
    if off.any():
        unit = np.sqrt(variances[off])
        relative = matrix[np.ix_(off, off)] / unit[:, None] / unit
        values, vectors = np.linalg.eigh(relative)
        own = max(float(values.min()) / 2, _LEAST_OWN)
        factor[off] = unit[:, None] * vectors * np.sqrt(np.maximum(values - own, 0.0))
        variances[off] *= own
    return variances, factor
