"""Fit a tilt to answers, and what can be done with it: weights, rows, a table of statistics.

Nothing here can see the private table: only the synthetic one and the noisy answers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.measures.base import Feature, FloatArray, IntArray
from retilt.measures.queries import QuerySet
from retilt.privacy.answers import Answers, answers_from_dict, load_answers
from retilt.privacy.plan import Plan, read_json, write_json
from retilt.resample import Method as Method
from retilt.resample import check_draw, likeness_order, sample_rows
from retilt.schema.columns import Schema
from retilt.schema.encode import check_type
from retilt.tilting.path import check_problem, fit_path
from retilt.tilting.points import larger_errors
from retilt.tilting.problem import Covariance, Problem
from retilt.tilting.restore import restore
from retilt.tilting.solution import PathPoint, Solution, Status

FORMAT = "retilt-tilt/1"

_NAMED = 5
"""Statistics that a note names before it counts the rest."""

_KEPT = (
    "The weights were left as they were: the statistics that were asked for agree with the "
    "answers as far as their noise can tell. A larger epsilon, fewer measures or tighter declared "
    "bounds would tell more."
)
_MOVED = (
    "These are other rows than the tilt was fitted to: its status and certificate are not about "
    "them. For over-generated candidates, fit the answers to them; and never weigh private rows."
)


def encode(table: Table, features: Sequence[Feature]) -> dict[Feature, IntArray]:
    """Every feature's column as integers, by the fixed policy."""
    return {f: f.encode(table.cells(f.name)) for f in features}


def require_columns(table: Table, names: Sequence[str], what: str) -> None:
    """Refuse a table that lacks a column.

    Raises
    ------
    WorkloadError
        Names the missing columns and those that exist.
    """
    missing = [n for n in names if n not in table.names]
    if missing:
        raise WorkloadError(
            f"{what} has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, table.names))}."
        )


def check_table(table: Table, schema: Schema, what: str) -> None:
    """Refuse a table that lacks a column of the schema, or whose declared types can't hold it.

    Raises
    ------
    WorkloadError, ColumnTypeError
        By names and types alone, never by what the cells hold.
    """
    require_columns(table, tuple(schema.columns), what)
    for name, column in schema.columns.items():
        check_type(name, column, table.arrow_type(name))


def fit(
    synthetic: Any,
    answers: Answers | str | Path,
    *,
    base_weights: Any = None,
    min_ess: float | None = None,
    on_step: Callable[[PathPoint], object] | None = None,
) -> Tilt:
    """Find weights for the synthetic rows that make them agree with the answers.

    Parameters
    ----------
    synthetic
        Any table that has the answers' columns: the synthetic table of the plan, or one of
        any number of candidate rows from the same generator. A frame or a path.
    answers
        Noisy answers or their file.
    base_weights
        Weights that the rows have already: a column's name or (rows,) numbers, none negative.
        The result is base weight times tilt.
    min_ess
        Least effective sample size, in rows, instead of the default floor.
    on_step
        Called with each point of the path.

    Returns
    -------
    Tilt

    Raises
    ------
    InputError
        A column is missing, the table is empty, or a weight is not usable.
    """
    if isinstance(synthetic, Answers) or not isinstance(answers, (Answers, str, Path)):
        raise InputError(
            f"fit: got a {type(synthetic).__name__} and a {type(answers).__name__}, expected the "
            "synthetic table and then the answers (or their file)."
        )
    answers = answers if isinstance(answers, Answers) else load_answers(answers)
    table = open_table(synthetic)
    design = _Design.of(table, answers, base_weights)
    queries = answers.plan.queries
    solution = fit_path(
        design.problem,
        queries.evaluate,
        errors=answers.errors_at,
        min_ess=min_ess,
        on_step=on_step,
    )
    name = base_weights if isinstance(base_weights, str) else None
    return Tilt(
        table=table,
        answers=answers,
        solution=solution,
        base_column=name,
        weighted=base_weights is not None,
        shortfalls=design.shortfalls,
        fingerprint=design.fingerprint,
    )


def check_fit(
    synthetic: Any, plan: Plan, *, base_weights: Any = None, min_ess: float | None = None
) -> None:
    """Refuse, before any budget is spent, what :func:`fit` would refuse afterwards.

    Raises
    ------
    InputError
        As :func:`fit`.
    """
    table = open_table(synthetic)
    encoded = _encoded(table, plan)
    check_encoded(plan.queries, encoded, _base(table, base_weights), min_ess=min_ess)


def check_encoded(
    queries: QuerySet,
    encoded: Mapping[Feature, IntArray],
    base: FloatArray,
    *,
    min_ess: float | None = None,
) -> None:
    """:func:`check_fit` for columns that are encoded already."""
    nothing = np.zeros(queries.size)
    problem = Problem(
        designs=queries.designs(encoded),
        answers=nothing,
        covariance=Covariance(nothing + 1),
        base=base,
    )
    check_problem(problem, min_ess=min_ess)


def check_sample(rows: int | None, method: Method, seed: int | None) -> None:
    """Refuse, before any budget is spent, what :meth:`Tilt.sample` would refuse afterwards."""
    _check_seed(seed)
    check_draw(1 if rows is None else rows, method)


def _encoded(table: Table, plan: Plan) -> dict[Feature, IntArray]:
    """The plan's columns of a synthetic table, or a refusal of a table that can't have them."""
    check_table(table, plan.schema, "the synthetic table")
    if table.rows == 0:
        raise InputError("the synthetic table has no rows; there is nothing to weigh.")
    return encode(table, plan.queries.features)


@dataclass(frozen=True)
class _Design:
    """The synthetic table as a problem, and what it can't reach."""

    problem: Problem
    shortfalls: tuple[str, ...]
    fingerprint: str

    @classmethod
    def of(cls, table: Table, answers: Answers, base_weights: Any) -> _Design:
        encoded = _encoded(table, answers.plan)
        base = _base(table, base_weights)
        problem = Problem(
            designs=answers.plan.queries.designs(encoded),
            answers=answers.means,
            covariance=Covariance(answers.variances, answers.common_noise),
            base=base,
        )
        return cls(
            problem, tuple(_shortfalls(answers, encoded, base > 0)), _fingerprint(encoded, base)
        )


def _fingerprint(encoded: Mapping[Feature, IntArray], base: FloatArray) -> str:
    """Tells whether two tables have the same measured columns and base weights, row by row."""
    digest = hashlib.sha256(base.tobytes())
    for array in encoded.values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _base(table: Table, base_weights: Any) -> FloatArray:
    if base_weights is None:
        return np.ones(table.rows)
    if isinstance(base_weights, str):
        require_columns(table, [base_weights], "the synthetic table")
        base_weights = table.cells(base_weights).to_pylist()
    try:
        base = np.array([math.nan if w is None else float(w) for w in base_weights])
    except (TypeError, ValueError):
        raise InputError("base weights: expected numbers, got something else.") from None
    if base.shape != (table.rows,):
        raise InputError(
            f"base weights: got {len(base):,}, expected one for each of {table.rows:,} rows."
        )
    return base


def _shortfalls(
    answers: Answers, encoded: Mapping[Feature, IntArray], used: NDArray[np.bool_]
) -> list[str]:
    """What no weights of these rows can reach, block by block."""
    queries = answers.plan.queries
    errors = np.sqrt(answers.variances + (answers.common_noise**2).sum(axis=1))
    found = []
    for block, where in zip(queries.blocks, queries.positions, strict=True):
        arrays = [encoded[f][used] for f in block.features]
        found += block.shortfalls(arrays, answers.means[where], errors[where])
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Tilt:
    """Weights of the synthetic rows, with their proof. Made by :func:`fit`.

    Attributes
    ----------
    answers
        What they were fitted to.
    solution
        Multipliers, path, status and certificate.
    shortfalls
        Sentences on what no weights of these rows can reach.
    fingerprint
        Of the rows that it was fitted to, in the measured columns.
    moved
        Whether the weights are those of other rows than it was fitted to.
    """

    table: Table
    answers: Answers
    solution: Solution
    base_column: str | None = None
    weighted: bool = False
    shortfalls: tuple[str, ...] = ()
    fingerprint: str = ""
    moved: bool = False

    def __repr__(self) -> str:
        return (
            f"Tilt(status={self.status.value!r}, rows={len(self.weights)}, ess={self.ess:.0f}, "
            f"misfit_before={self.misfit_before:.3g}, misfit_after={self.misfit_after:.3g})"
        )

    @cached_property
    def weights(self) -> FloatArray:
        """(rows,) weights of mean 1, in row order; base weight times tilt."""
        weights: FloatArray = self.solution.weights * len(self.solution.weights)
        weights.setflags(write=False)
        return weights

    @property
    def ess(self) -> float:
        """Effective sample size in rows: (sum w)^2 / sum w^2."""
        return self.solution.ess

    @cached_property
    def status(self) -> Status:
        """How the fit ended; ``infeasible_measures`` also where a statistic was not met.

        A single cell that no synthetic row lies in hardly shows in the risk estimate of a
        thousand, but whoever asked for it must hear of it.
        """
        unmet = self.solution.status is Status.CONVERGED and self.unmet
        return Status.INFEASIBLE_MEASURES if unmet else self.solution.status

    @property
    def advice(self) -> str:
        """What the status means and what to do."""
        return _KEPT if self._kept else self.status.advice

    @property
    def _kept(self) -> bool:
        """Whether the base weights were kept because the statistics agree already."""
        return self.solution.eta == math.inf and self.exit_code == 0

    @property
    def misfit_before(self) -> float:
        """Mean squared residual of the answers before the tilt, in variances of their noise."""
        return self.solution.misfit_before

    @property
    def misfit_after(self) -> float:
        """The same after the tilt."""
        return self.solution.misfit_after

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """Rows alike in the measured columns next to each other, for systematic sampling."""
        encoded = encode(self.table, self.answers.plan.queries.features)
        return likeness_order(list(encoded.values()))

    @cached_property
    def _statistics(self) -> list[dict[str, Any]]:
        queries, answers = self.answers.plan.queries, self.answers
        before, after, insistent = (
            queries.evaluate(a)
            for a in (self.solution.before, self.solution.after, self.solution.insistent)
        )
        rows = []
        for k, row in enumerate(answers.statistics_table()):
            near = 3 * row["standard_error"]
            gaps = [abs(v[k] - row["estimate"]) for v in (after, insistent)]
            # NaN (an undefined statistic) compares as not reached.
            rows.append(
                {
                    "statistic": row["statistic"],
                    "before": float(before[k]),
                    "target": row["estimate"],
                    "standard_error": row["standard_error"],
                    "after": float(after[k]),
                    "reachable": bool(any(g <= near for g in gaps)),
                }
            )
        return rows

    @cached_property
    def unmet(self) -> tuple[str, ...]:
        """Statistics farther from their targets than noise explains, the worst first.

        Farther means three standard errors, or more where there are so many statistics that
        one in a hundred fits would have one by chance (Bonferroni). A target that is undefined
        is no target.
        """
        limit = _unmet_limit(len(self._statistics))
        off = {}
        noise = larger_errors(self.answers.errors_at, self.answers.means, self.solution.before)
        for row, error in zip(self._statistics, noise.tolist(), strict=True):
            distance = abs(row["after"] - row["target"]) / error if error > 0 else math.nan
            if math.isfinite(row["target"]) and error > 0 and not distance <= limit:
                off[row["statistic"]] = math.inf if math.isnan(distance) else distance
        return tuple(sorted(off, key=lambda name: -off[name]))

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic.

        ``statistic``, ``before``, ``target``, ``standard_error`` (of the target, from the
        noise), ``after``, ``reachable`` (whether the rows can come within three standard
        errors of the target without throwing nearly all of them away).
        """
        return [dict(row) for row in self._statistics]

    def to_frame(self) -> Any:
        """The statistics table in the synthetic table's frame library."""
        return _frame(self.table, self._statistics)

    @property
    def exit_code(self) -> int:
        """0 if the fit did what was asked; 4 if measures can't be met or it did not converge.

        Stopping at the floor of the effective sample size with every statistic met is success.
        """
        stopped = self.status is Status.FLOOR_REACHED and not self.unmet
        return 0 if stopped or self.status is Status.CONVERGED else 4

    @property
    def notes(self) -> tuple[str, ...]:
        """The plan's notes, and what was found out about the synthetic rows."""
        notes = [*self.answers.plan.notes]
        if self.moved:
            notes.append(_MOVED)
        if self.unmet:
            named = ", ".join(self.unmet[:_NAMED])
            more = f" and {len(self.unmet) - _NAMED} more" if len(self.unmet) > _NAMED else ""
            limit = _unmet_limit(len(self._statistics))
            notes.append(f"Not met, over {limit:.2g} standard errors off: {named}{more}.")
        return (*notes, *self.shortfalls)

    @property
    def certificate(self) -> dict[str, float]:
        """How near to the optimum the weights are: ``gap`` in nats, and ``kkt_residual``.

        Both are computed anew from the returned weights.
        """
        return {"gap": self.solution.gap(), "kkt_residual": self.solution.kkt_residual()}

    def rows(
        self,
        rows: int | None = None,
        *,
        method: Method = "systematic",
        seed: int | None = None,
        shuffle: bool = False,
    ) -> NDArray[np.int64]:
        """Row numbers of a sample, ascending unless ``shuffle``."""
        wanted = self.table.rows if rows is None else rows
        generator = np.random.default_rng(_check_seed(seed))
        order = self._order if method == "systematic" else None
        chosen = sample_rows(self.weights, wanted, method=method, seed=generator, order=order)
        return generator.permutation(chosen) if shuffle else chosen

    def sample(
        self,
        rows: int | None = None,
        *,
        method: Method = "systematic",
        seed: int | None = None,
        shuffle: bool = False,
    ) -> Any:
        """Rows of the synthetic table drawn by weight, as a frame of the same kind.

        Parameters
        ----------
        rows
            How many (default: as many as the synthetic table has).
        method
            ``"systematic"``: each row appears floor(n w) or ceil(n w) times, evenly over rows
            that are alike in the measured columns; ``"multinomial"``: independent draws, the
            paper's.
        seed
            For reproducible sampling; costs no privacy.
        shuffle
            Random order instead of the table's own.
        """
        return self.table.take(self.rows(rows, method=method, seed=seed, shuffle=shuffle))

    def write_sample(
        self,
        path: str | Path,
        rows: int | None = None,
        *,
        method: Method = "systematic",
        seed: int | None = None,
        shuffle: bool = False,
        force: bool = False,
    ) -> None:
        """Write a sample to a file whose suffix says the format."""
        chosen = self.rows(rows, method=method, seed=seed, shuffle=shuffle)
        self.table.write(path, chosen, force=force)

    def write_weights(self, path: str | Path, *, force: bool = False) -> None:
        """Write one column ``weight`` of mean 1, in row order, to a file."""
        import pyarrow as pa

        table = open_table(pa.table({"weight": self.weights}))
        table.write(path, np.arange(table.rows), force=force)

    def to_dict(self) -> dict[str, Any]:
        """The tilt as JSON: answers, multipliers, path and status; no rows and no weights."""
        solution = self.solution
        return {
            "format": FORMAT,
            "answers": self.answers.to_dict(),
            "rows": {"count": len(solution.weights), "sha256": self.fingerprint},
            "base_weights": {"used": self.weighted, "column": self.base_column},
            "multipliers": solution.multipliers.tolist(),
            "eta": _finite(solution.eta),
            "status": self.status.value,
            "certificate": self.certificate,
            "ess": solution.ess,
            "misfit": {"before": solution.misfit_before, "after": solution.misfit_after},
            "insistent": solution.insistent.tolist(),
            "path": [{k: _finite(v) for k, v in asdict(point).items()} for point in solution.path],
            "statistics": [{k: _finite(v) for k, v in row.items()} for row in self._statistics],
            "notes": list(self.notes),
        }

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write ``tilt.json``, from which :func:`load_tilt` makes the weights of any table.

        Raises
        ------
        InputError
            The tilt was loaded on other rows than it was fitted to: the file would tell of both.
        """
        if self.moved:
            raise InputError(
                "tilt: it was fitted to other rows than these. Fit the answers to these rows, and "
                "save that."
            )
        write_json(path, self.to_dict(), force=force)


def _unmet_limit(count: int) -> float:
    """Standard errors beyond which one of ``count`` statistics counts as not met.

    >>> _unmet_limit(1), round(_unmet_limit(1000), 2)
    (3.0, 4.42)
    """
    from scipy.special import ndtri

    return max(3.0, -float(ndtri(0.005 / count)))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _frame(table: Table, rows: Sequence[Mapping[str, Any]]) -> Any:
    return table.frame({k: [r[k] for r in rows] for k in rows[0]})


def _check_seed(seed: object) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed: got {seed!r}, expected a whole number of at least 0.")
    return int(seed)


def load_tilt(path: str | Path, synthetic: Any, *, base_weights: Any = None) -> Tilt:
    """Read a tilt and give its weights on ``synthetic``.

    Parameters
    ----------
    path
        A file that :meth:`Tilt.save` wrote.
    synthetic
        Any table with the answers' columns.
    base_weights
        Must be given again where the tilt was fitted with numbers; a column is found by its
        name.

    Raises
    ------
    FormatError
        The file is missing, no tilt, of another version, or malformed.
    """
    content = read_json(path, "tilt")
    if content.get("format") != FORMAT:
        raise FormatError(
            f"tilt file {path}: format: got {content.get('format')!r}, expected {FORMAT!r}."
        )
    try:
        answers = answers_from_dict(content["answers"])
        multipliers = np.array(content["multipliers"], dtype=np.float64)
        weighted, column = content["base_weights"]["used"], content["base_weights"]["column"]
        fingerprint = str(content["rows"]["sha256"])
        eta = math.inf if content["eta"] is None else float(content["eta"])
        status = Status(content["status"])
        insistent = np.array(content["insistent"], dtype=np.float64)
        points = tuple(_point(p) for p in content["path"])
    except InputError as error:
        raise FormatError(f"tilt file {path}: {error}") from None
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise FormatError(f"tilt file {path}: a value is missing or has the wrong type.") from None
    for vector in (multipliers, insistent):
        if vector.shape != (answers.plan.queries.size,) or not np.isfinite(vector).all():
            raise FormatError(f"tilt file {path}: its numbers are not those of its answers.")
    if base_weights is None:
        base_weights = column
    if weighted and base_weights is None:
        raise InputError(
            f"tilt file {path}: it was fitted with base weights that were given as numbers. "
            "Give base_weights again."
        )
    table = open_table(synthetic)
    design = _Design.of(table, answers, base_weights)
    solution = restore(
        design.problem, multipliers, eta=eta, status=status, path=points, insistent=insistent
    )
    return Tilt(
        table=table,
        answers=answers,
        solution=solution,
        base_column=column,
        weighted=bool(weighted),
        shortfalls=design.shortfalls,
        fingerprint=fingerprint,
        moved=fingerprint != design.fingerprint,
    )


def _point(content: Mapping[str, Any]) -> PathPoint:
    """A point of the path; JSON's null is an infinite trade-off or an undefined number."""
    whole = {"rows": int(content["rows"]), "chosen": bool(content["chosen"])}
    numbers = {
        key: math.nan if value is None else float(value)
        for key, value in content.items()
        if key not in whole
    }
    if content["eta"] is None:
        numbers["eta"] = math.inf
    return PathPoint(**numbers, **whole)  # type: ignore[arg-type]
