"""A tilt and what can be done with it: weights, rows, a table of statistics, a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from retilt._input import apart, read_json
from retilt._output import write_json
from retilt._tiltfile import FORMAT, tilt_content
from retilt.candidates import (
    Candidates,
    base_of,
    encode_guards,
    guard_designs,
    means_of,
    measured_keys,
    own_part,
    targets_of,
)
from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.measures.base import Design, FloatArray
from retilt.measures.entries import listed
from retilt.measures.formats import guards_to_dict
from retilt.measures.guards import Everything, Guards
from retilt.measures.moments import MomentsBlock
from retilt.privacy.targets import Queries, Targets
from retilt.resample import Method, check_draw, likeness_order, sample_rows
from retilt.rescue import (
    Mix,
    Redrawing,
    clamped_columns,
    measured_columns,
    undeclared,
    widen,
)
from retilt.resolving import resolve_guards
from retilt.schema.columns import Boolean, Categorical, Schema
from retilt.schema.declared import Declared
from retilt.tables import encode
from retilt.tilting.bounds import Bounds
from retilt.tilting.floors import ess_of
from retilt.tilting.problem import normalised
from retilt.tilting.restore import restore
from retilt.tilting.solution import Solution, Status

if TYPE_CHECKING:
    from retilt.report import Correlations, Facts

_KEPT = (
    "The weights were left as they were: the statistics that were asked for agree with the "
    "answers as far as their noise can tell. A larger epsilon, fewer measures or tighter declared "
    "bounds would tell more."
)
_PULLED = (
    "Some answers are not met: the guards (keep) pull back from them, or the synthetic rows cannot "
    "reach them. Keep less or with wider tolerances, give more candidate rows from the generator, "
    "declare bounds that fit the data, or leave out the measures that are named."
)
_HELD = (
    "The weights meet the exact statistics and move no more than that takes: the others, if any, "
    "agree with them as far as their noise can tell."
)
_MOVED = (
    "These are other rows than the tilt was fitted to: its status and certificate are not about "
    "them. For over-generated candidates, fit the answers to them; and never weigh private rows."
)


_PAPER_ADVICE = {
    Status.CONVERGED: (
        "The weights meet the answers as denoised: within the paper's tolerance by the exact "
        "solver, within three deviations of the noise by the stochastic one."
    ),
    Status.INFEASIBLE_MEASURES: (
        "Some answers are not met: the synthetic rows cannot reach them, or the paper's tolerance "
        "is wider than their noise. The paper's method has no rule against harm: look at the "
        "misfit and the effective sample size, use the default method, give more candidate rows, "
        "or leave out the measures that are named."
    ),
    Status.ITERATION_LIMIT: (
        "A solver ended before its optimum: treat the weights with care. 'paper-exact' solves "
        "the same problem exactly, and the default method a better one."
    ),
}
_RESCUE = (
    'Candidate rows with redrawn values reach farther: support="mix" (--support mix) makes them, '
    "at no privacy cost."
)
_LOOSENED = (
    "The exact statistics alone would take the effective sample size under min_ess, so they are "
    "only met as nearly as it allows."
)
_BOUNDED = (
    "The bounds of the weights may be what keeps them from it: a larger max_weight or a smaller "
    "min_weight lets them go farther."
)
_SAME_ESS = 1e-4
"""Relative, to which a tilt's file gives the effective sample size of its fit again."""

_FAR = 3.0
"""Tolerances beyond which a guarded statistic is not kept."""

_OTHERS = 100
"""Columns that were not asked for, beyond which balanced sampling has no eye on them."""

_SMALL = 0.01
"""Share of the rows under which an effective sample size is worth a note."""


_Scalar = TypeVar("_Scalar", bound=np.generic)


def check_sample(rows: int | None, method: Method | None, seed: int | None) -> None:
    """Refuse, before any budget is spent, what :meth:`Tilt.sample` would refuse afterwards."""
    check_seed(seed)
    check_draw(1 if rows is None else rows, "systematic" if method is None else method)


@dataclass(frozen=True)
class Tilt:
    """Weights of the synthetic rows, with their proof. Made by :func:`fit`.

    Attributes
    ----------
    answers
        What they were fitted to.
    solution
        Multipliers, path, status and certificate.
    base
        (rows,) the base weights.
    redrawing
        How candidate rows were added behind the synthetic table's own (``support="mix"``); None
        where there are none. ``table`` has them all.
    method
        ``"default"``, ``"paper"`` or ``"paper-exact"``.
    settings
        The method's settings by name: ``denoise``, and those of :class:`Paper` for the paper's.
    shortfalls
        Sentences on what no weights of these rows can reach.
    fingerprint
        Of the rows that it was fitted to, in the measured columns.
    guards
        What it was to leave as it was.
    moved
        Whether the weights are those of other rows than it was fitted to.
    """

    table: Table
    answers: Targets
    solution: Solution
    base: FloatArray
    method: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    base_column: str | None = None
    weighted: bool = False
    shortfalls: tuple[str, ...] = ()
    fingerprint: str = ""
    guards: Guards | None = None
    moved: bool = False
    redrawing: Redrawing | None = None

    def __repr__(self) -> str:
        before, after = self.misfit_before, self.misfit_after
        noisy = math.isfinite(before)  # exact statistics are met or not, in no unit of noise
        misfit = f", misfit_before={before:.3g}, misfit_after={after:.3g}" if noisy else ""
        return (
            f"Tilt(status={self.status.value!r}, rows={len(self.weights)}, ess={self.ess:.0f}"
            f"{misfit})"
        )

    @cached_property
    def weights(self) -> FloatArray:
        """(rows,) weights of mean 1, in row order; base weight times tilt.

        Checked to keep the bounds that were asked for (``max_weight``, ``min_weight``).
        """
        rows = len(self.solution.weights)
        weights: FloatArray = self.solution.weights * rows
        if self.solution.bounds is not None:
            self.solution.bounds.check(weights, self.base * rows)
        weights.setflags(write=False)
        return weights

    @property
    def support(self) -> Mix | None:
        """The settings of candidate rows that were added, with their number and seed; or None."""
        return None if self.redrawing is None else self.redrawing.mix

    @property
    def own_rows(self) -> int:
        """Number of rows of the synthetic table itself; candidates that were added come after."""
        added = 0 if self.support is None else self.support.rows
        return self.table.rows - (added or 0)

    @property
    def support_share(self) -> float:
        """Share of the weight on candidate rows that were added, from 0 to 1."""
        return float(self.weights[self.own_rows :].sum() / self.weights.sum())

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
        return " ".join([self._verdict, *self._bound, *self._rescue])

    @property
    def _bound(self) -> list[str]:
        """That the bounds of the weights may be in the way, where answers are not met."""
        bounds = self.solution.bounds
        if bounds is None or self.exit_code == 0 or self.status is Status.ITERATION_LIMIT:
            return []
        return [_BOUNDED] if any(bounds.at_bounds(self.solution.weights, self.base)) else []

    @property
    def _rescue(self) -> list[str]:
        """That other candidate rows would help, where the synthetic ones fall short."""
        held = self.status is Status.FLOOR_REACHED and bool(self.unmet)
        if self.support is not None or not (held or self.status is Status.INFEASIBLE_MEASURES):
            return []
        missing, clamped = undeclared(self.answers), clamped_columns(self.answers)
        said = _RESCUE
        if missing:
            said += f" It needs the bounds or categories of {listed(missing)} declared."
        if clamped:
            said += (
                f" These answers are about {listed(clamped)} as clamped by the plan, so rows are "
                "redrawn within these bounds. To have them right beyond, plan and measure again "
                "with the schema's (--clip none, or clip={} of the measures), at a new cost."
            )
        return [said]

    @property
    def _verdict(self) -> str:
        if self.by_paper:
            return _PAPER_ADVICE[self.status]
        if self.kept and self.status is Status.INFEASIBLE_MEASURES:
            return _PULLED
        if not self._unmoved:
            return self.status.advice
        return _HELD if self._exact.any() else _KEPT

    @property
    def by_paper(self) -> bool:
        """Whether the weights are the paper's method's."""
        return self.method != "default"

    @property
    def sampling(self) -> Method:
        """How rows are drawn unless told: systematically, or as the paper does."""
        return "multinomial" if self.by_paper else "systematic"

    @property
    def _unmoved(self) -> bool:
        """Whether noisy answers moved nothing, because the statistics agree already."""
        return self.solution.eta == math.inf and self.exit_code == 0

    @property
    def misfit_before(self) -> float:
        """Mean squared residual of the answers before the tilt, in variances of their noise.

        NaN where no answer has noise.
        """
        return math.nan if not self.solution.measured.any() else self.solution.misfit_before

    @property
    def misfit_after(self) -> float:
        """The same after the tilt."""
        return math.nan if not self.solution.measured.any() else self.solution.misfit_after

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """Rows alike in the measured columns next to each other, for sampling along them."""
        encoded = encode(self.table, self.answers.queries.features)
        if self.guards is not None:
            encoded |= encode_guards(self.table, self.guards)
        return likeness_order(list(encoded.values()))

    def _designs(self) -> tuple[Design, ...]:
        """What is measured and what is kept, for every row."""
        queries = self.answers.queries
        designs = queries.designs(encode(self.table, queries.features))
        if self.guards is not None:
            designs += guard_designs(self.table, self.guards, self.answers)
        return designs

    def _others(self) -> tuple[Design, ...]:
        """The values of the columns that were not asked for, where it is known what they are."""
        queries = self.answers.queries
        read = {name for feature in queries.features for name in feature.reads}
        if len(set(self.table.names) - read) > _OTHERS:
            return ()
        try:
            guards, _ = resolve_guards(self.table, [Everything()], Declared(), queries)
            return () if guards is None else guard_designs(self.table, guards, self.answers)
        except WorkloadError:
            # More values than queries can be asked of.
            return ()

    def _measured(self, means: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The part of the solution's (K,) means that has answers; the guards' come after it."""
        return means[: len(self.answers.means)]

    @cached_property
    def kept(self) -> list[dict[str, Any]]:
        """A row for each guarded statistic: ``statistic``, ``before``, ``after``, ``tolerance``.

        None for those that only measured queries enter: they are meant to move.
        """
        if self.guards is None:
            return []
        queries = self.guards.queries
        designs = queries.designs(encode_guards(self.table, self.guards))
        base = own_part(self.base, self.own_rows)
        first, last = (means_of(designs, w / w.sum()) for w in (base, self.weights))
        before, after = queries.evaluate(first).tolist(), queries.evaluate(last).tolist()
        tolerances = self.guards.deviations(first, ess_of(normalised(base)))
        allowed = queries.standard_errors(first, tolerances**2, np.zeros((len(first), 0)))
        free = self.guards.held_statistics(first, measured_keys(self.answers)).tolist()
        return [
            {"statistic": s, "before": b, "after": a, "tolerance": t}
            for s, b, a, t, f in zip(
                queries.statistics, before, after, allowed.tolist(), free, strict=True
            )
            if f and not math.isnan(b)  # what is undefined can't be kept
        ]

    @cached_property
    def _statistics(self) -> list[dict[str, Any]]:
        queries, answers = self.answers.queries, self.answers
        before, after, insistent = (
            queries.evaluate(self._measured(a))
            for a in (self.solution.before, self.solution.after, self.solution.insistent)
        )
        rows = []
        exact = self._tolerances.tolist()
        for k, row in enumerate(answers.statistics_table()):
            near = max(3 * row["standard_error"], exact[k])
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
                    "flag": row["flag"],
                }
            )
        return rows

    @property
    def _exact(self) -> NDArray[np.bool_]:
        """(K,) answers that are, or would have been, constraints."""
        return self.solution.exact | self.solution.released

    @cached_property
    def _tolerances(self) -> FloatArray:
        """(S,) how far an exact statistic may stay from its target; 0 for a noisy one.

        By the units of the queries over these rows, not by the declared bounds: those may be wide.
        """
        queries, exact = self.answers.queries, self._measured(self._exact)
        if not exact.any():
            return np.zeros(len(queries.statistics))
        nudge = self._measured(self.solution.tolerances)
        moved = queries.standard_errors(self.answers.means, nudge**2, np.zeros((len(nudge), 0)))
        # Statistics that a source gives have one query each.
        return np.where(exact, moved, 0.0)

    @cached_property
    def unmet(self) -> tuple[str, ...]:
        """Statistics farther from their targets than noise explains, the worst first.

        Farther means three standard errors, or more where there are so many statistics that
        one in a hundred fits would have one by chance (Bonferroni). An exact target is not met
        if anything but rounding is missing. A target that is undefined, or that noise dominates,
        is no target.
        """
        return self._apart("after")

    def _apart(self, when: Literal["before", "after"]) -> tuple[str, ...]:
        """Statistics that do not agree with their targets, the worst first."""
        limit = _unmet_limit(len(self._statistics))
        off = {}
        for row, exact in zip(self._statistics, self._tolerances.tolist(), strict=True):
            if row["flag"]:
                continue
            # An exact statistic is met to its tolerance, or not at all.
            error = exact / limit if exact > 0 else row["standard_error"]
            distance = abs(row[when] - row["target"]) / error if error > 0 else math.nan
            if math.isfinite(row["target"]) and error > 0 and not distance <= limit:
                off[row["statistic"]] = math.inf if math.isnan(distance) else distance
        if when == "after" and self._exact.any():
            # What the status goes by: a statistic's own tolerance holds to the first order only.
            missed = self._measured(self.solution.unmet)
            for row in (self._statistics[k] for k in np.flatnonzero(missed)):
                off.setdefault(row["statistic"], limit)
        # In the table's order where only rounding, as after loading a file, tells them apart.
        return tuple(sorted(off, key=lambda name: -float(f"{off[name]:.4g}")))

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic.

        ``statistic``, ``before``, ``target``, ``standard_error`` (of the target, from the
        noise), ``after``, ``reachable`` (whether this fit, or the most insistent one on
        the way to it, came within three standard errors of the target), and ``flag``: empty, or
        ``noise dominates`` where the target says next to nothing.
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
        notes = [*self._support_in_words, *self._bounds_in_words, *self.answers.notes]
        if self.solution.looseness != 1:
            notes.append(_LOOSENED)
        if self.moved:
            notes.append(_MOVED)
        if self.unmet:
            limit = _unmet_limit(len(self._statistics))
            off = f"over {limit:.2g} standard errors off"
            if self._exact.any():
                off += ", or exact and missed"
            notes.append(f"Not met, {off}: {self._missed_in_words()}.")
        if self.ess < _SMALL * len(self.weights):
            notes.append(
                f"The weights gather on a few rows: they are worth {self.ess:,.1f} rows of "
                f"{len(self.weights):,}."
            )
        for block, where in zip(
            self.answers.queries.blocks, self.answers.queries.positions, strict=True
        ):
            if _is_matrix(block):
                notes += block.repairs(self.answers.means[where])
        if self.kept:
            notes += self._kept_in_words()
        return (*notes, *self.shortfalls)

    @property
    def _support_in_words(self) -> list[str]:
        if self.support is None:
            return []
        columns, clamped = measured_columns(self.answers), clamped_columns(self.answers)
        within = "the declared bounds"
        if clamped:
            within += f" (those that the plan clamps {listed(clamped)} to)"
        return [
            f"Support rescue (mix): {self.support.rows:,} candidate rows were added to the "
            f"synthetic table's {self.own_rows:,}. They are copies of its rows, but their values "
            f"of {listed(columns)} are drawn at random within {within}, as often as the "
            "answers about each column say, so these rows are no longer the generator's. They "
            f"began with {self.support.weight:.3g} of the weight and have {self.support_share:.3g} "
            "of it now."
        ]

    @property
    def _bounds_in_words(self) -> list[str]:
        bounds = self.solution.bounds
        if bounds is None:
            return []
        lower, upper = float(bounds.lower), float(bounds.upper)
        low, high = bounds.at_bounds(self.solution.weights, self.base)
        told, where = [], []
        if lower > 0:
            told.append(f"less than {lower:.9g}")
            where.append(f"{low:,} at the floor")
        if upper < math.inf:
            told.append(f"more than {upper:.9g}")
            where.append(f"{high:,} at the cap")
        if not told:
            return []
        return [
            f"No row counts for {' or '.join(told)} times its base weight; of "
            f"{len(self.solution.weights):,} rows there are {' and '.join(where)}."
        ]

    def _missed_in_words(self) -> str:
        """The statistics that are not met; of the worst what the rows have now.

        And what weights nearest to all answers would give, where that is something else.
        """
        rows = {row["statistic"]: row for row in self._statistics}
        insistent = self.answers.queries.evaluate(self._measured(self.solution.insistent))
        nearest = dict(zip(self.answers.queries.statistics, insistent.tolist(), strict=True))

        def told(name: str) -> str:
            target, after, best = rows[name]["target"], rows[name]["after"], nearest[name]
            asked, got = apart(target, after)
            reached = apart(target, best)[1] if best != target else asked
            if got == reached:
                return f"{name} (asked {asked}, nearest {got})"
            known = f", nearest {reached}" if math.isfinite(best) else ""
            return f"{name} (asked {asked}, got {got}{known})"

        return listed(self.unmet, told)

    def _kept_in_words(self) -> list[str]:
        moved = {row["statistic"]: abs(row["after"] - row["before"]) for row in self.kept}
        most = max(moved, key=lambda name: -1.0 if math.isnan(moved[name]) else moved[name])
        one = len(moved) == 1
        found = [
            f"{len(moved):,} guarded statistic{'' if one else 's'} moved by "
            f"{'' if one else 'at most '}{moved[most]:.2g}{'' if one else f' ({most})'}."
        ]
        off = {
            row["statistic"]: moved[row["statistic"]] / row["tolerance"]
            for row in self.kept
            if moved[row["statistic"]] > _FAR * row["tolerance"]
        }
        if off:
            worst = sorted(off, key=lambda name: -off[name])
            found.append(
                f"Not kept within {_FAR:g} tolerances, against what is asked for: {listed(worst)}."
            )
        return found

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
        method: Method | None = None,
        seed: int | None = None,
        shuffle: bool = False,
    ) -> NDArray[np.int64]:
        """Row numbers of a sample, ascending unless ``shuffle``.

        Numbers from :attr:`own_rows` on are those of candidate rows that were added.
        """
        wanted = self.own_rows if rows is None else rows
        generator = np.random.default_rng(check_seed(seed))
        method = self.sampling if method is None else method
        chosen = sample_rows(
            self.weights,
            wanted,
            method=method,
            seed=generator,
            order=None if method == "multinomial" else self._order,
            queries=self._designs() if method == "balanced" else (),
            others=self._others() if method == "balanced" else (),
        )
        return generator.permutation(chosen) if shuffle else chosen

    def sample(
        self,
        rows: int | None = None,
        *,
        method: Method | None = None,
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
            that are alike in the measured columns. ``"balanced"``: likewise, and the sample's
            answers are the weighted ones but for the last few rows; other columns' values are
            kept where they can be. ``"multinomial"``: independent draws. Default: systematic,
            or multinomial if the weights are the paper's method's.
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
        method: Method | None = None,
        seed: int | None = None,
        shuffle: bool = False,
        force: bool = False,
    ) -> int:
        """Write a sample to a file whose suffix says the format.

        Returns how many of its rows are candidates that were added (``support``).
        """
        chosen = self.rows(rows, method=method, seed=seed, shuffle=shuffle)
        self.table.write(path, chosen, force=force)
        return int(np.count_nonzero(chosen >= self.own_rows))

    def write_weights(self, path: str | Path, *, force: bool = False) -> None:
        """Write one column ``weight`` of mean 1, in row order, to a file.

        With ``support`` the rows are those of :meth:`write_candidates`.
        """
        import pyarrow as pa

        table = open_table(pa.table({"weight": self.weights}))
        table.write(path, np.arange(table.rows), force=force)

    def write_candidates(self, path: str | Path, *, force: bool = False) -> None:
        """Write the rows that the weights belong to: the synthetic table, and what was added."""
        self.table.write(path, np.arange(self.table.rows), force=force)

    def report(self, path: str | Path, *, force: bool = False) -> None:
        """Write one self-contained HTML page about the fit, for people to read.

        It is made from the released answers and the synthetic table alone. An existing file is
        replaced only with ``force``.
        """
        from retilt.report import write_page

        if self.moved:
            raise InputError(
                "report: the tilt was fitted to other rows than these. Fit the answers to these "
                "rows, and report on that; never on private rows."
            )
        write_page(path, self.facts(), force=force)

    @property
    def _in_words(self) -> str:
        """How the weights were found."""
        if not self.solution.measured.any():
            return "The weights nearest to the base weights that meet all statistics exactly."
        first = "The exact statistics are constraints. " if self._exact.any() else ""
        return first + _in_words(self.method, self.settings)

    def facts(self) -> Facts:
        """What the report shows, as numbers and sentences."""
        from retilt.report import Facts

        solution, schema = self.solution, self.answers.schema
        return Facts(
            rows=len(solution.weights),
            queries=self.answers.queries.size,
            method=self._in_words,
            status=self.status.value,
            advice=self.advice,
            success=self.exit_code == 0,
            misfit_before=self.misfit_before,
            misfit_after=self.misfit_after,
            ess=self.ess,
            certificate=self.certificate,
            statistics=self.statistics_table(),
            limit=_unmet_limit(len(self._statistics)),
            unmet=self.unmet,
            unmet_before=self._apart("before"),
            correlations=_correlations(solution, self.answers.queries),
            weights=self.weights,
            path=solution.path,
            notes=self.notes,
            private=self.answers.private,
            privacy=self.answers.privacy,
            columns=[_described(name, schema) for name in schema.columns],
            versions=self.answers.versions,
        )

    def to_dict(self) -> dict[str, Any]:
        """The tilt as JSON: answers, multipliers, path and status; no rows and no weights."""
        solution = self.solution
        return {
            "format": FORMAT,
            "answers": self.answers.to_dict(),
            "guards": guards_to_dict(self.guards),
            "rows": {"count": len(solution.weights), "sha256": self.fingerprint},
            "base_weights": {"used": self.weighted, "column": self.base_column},
            "support": None if self.redrawing is None else self.redrawing.to_dict(),
            "method": {"name": self.method, **self.settings},
            "multipliers": solution.multipliers.tolist(),
            "aim": solution.aim.tolist(),
            "tolerance": solution.tolerance,
            "eta": _finite(solution.eta),
            "status": self.status.value,
            "certificate": self.certificate,
            "ess": solution.ess,
            "misfit": {"before": _finite(self.misfit_before), "after": _finite(self.misfit_after)},
            "insistent": solution.insistent.tolist(),
            "released": np.flatnonzero(solution.released).tolist(),
            "bounds": _bounds_to_dict(solution.bounds),
            "looseness": solution.looseness,
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


def _in_words(method: str, settings: Mapping[str, Any]) -> str:
    """One sentence on how the weights were found."""
    program = {"qp": "least squares", "lp": "least absolute deviations"}.get(
        str(settings.get("denoise"))
    )
    first = f"the answers denoised by {program}" if program else "the noisy answers"
    if method == "default":
        return f"As near to {first} as the noise allows: the path's point of least estimated risk."
    dual = "solved exactly"
    if method == "paper":
        dual = (
            f"by its algorithm {settings.get('algorithm')} ({settings.get('epochs')} epochs, "
            f"batches of {settings.get('batch')} rows)"
        )
    return (
        f"The paper's method: {first} met within γ = {settings.get('tolerance')}, its dual {dual}."
    )


def _correlations(solution: Solution, queries: Queries) -> list[Correlations]:
    """The correlation matrices of every measure that asks for correlations."""
    from retilt.report import Correlations

    found = []
    for block, where in zip(queries.blocks, queries.positions, strict=True):
        if _is_matrix(block):
            before, target, after = (
                block.correlations(means[where], repaired=True)
                for means in (solution.before, solution.answers, solution.after)
            )
            found.append(Correlations(block.names, before=before, target=target, after=after))
    return found


def _is_matrix(block: object) -> TypeGuard[MomentsBlock]:
    """Whether a block is asked for correlations of all its columns."""
    if not isinstance(block, MomentsBlock) or block.reports == "regression":
        return False
    return block.order == 2 and len(block.names) > 1


def _described(name: str, schema: Schema) -> dict[str, str]:
    """A measured column in words: kind, bounds or number of categories, where they are from."""
    column = schema[name]
    if isinstance(column, Categorical):
        values = f"{len(column.categories)} categories"
    elif isinstance(column, Boolean):
        values = "false, true"
    else:
        values = f"{column.lower} to {column.upper}; values outside are clamped"
    return {
        "name": name,
        "kind": type(column).__name__.lower() + (", nullable" if column.nullable else ""),
        "values": values,
        "source": "read off the synthetic table" if name in schema.inferred else "declared",
    }


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


def _bounds_to_dict(bounds: Bounds | None) -> dict[str, float | None] | None:
    if bounds is None:
        return None
    return {"min_weight": float(bounds.lower), "max_weight": _finite(float(bounds.upper))}


def _frame(table: Table, rows: Sequence[Mapping[str, Any]]) -> Any:
    return table.frame({k: [r[k] for r in rows] for k in rows[0]})


def check_seed(seed: object) -> int | None:
    """Refuse a seed that is no whole number of at least 0."""
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
        The file is missing, no tilt, of another version, malformed, or it gives the rows that it
        was fitted to other weights than the fit did.
    """
    try:
        read = tilt_content(read_json(path, "tilt"))
    except InputError as error:
        start, said = f"tilt file {path}", str(error)
        raise FormatError(said if said.startswith(start) else f"{start}: {said}") from None
    if base_weights is None:
        base_weights = read.column
    if read.weighted and base_weights is None:
        raise InputError(
            f"tilt file {path}: it was fitted with base weights that were given as numbers. "
            "Give base_weights again."
        )
    table = open_table(synthetic)
    answers = targets_of(read.answers, table)
    own: int | None = None
    left_out: tuple[str, ...] = ()
    if read.support is not None:
        own = table.rows
        base, redrawn = base_of(table, base_weights), read.support
        try:
            wider = widen(table, answers, redrawn.mix, base, redrawn.multipliers)
        except FormatError as error:
            raise FormatError(f"tilt file {path}: {error}") from None
        table, base_weights, left_out = wider.table, wider.base, wider.notes
    candidates = Candidates.of(
        table,
        answers,
        base_weights,
        read.guards,
        own=own,
        bounds=read.bounds,
        looseness=read.looseness,
    )
    for vector in (read.multipliers, read.insistent, read.aim):
        if vector.shape != (candidates.problem.queries,):
            raise FormatError(f"tilt file {path}: its numbers are not those of its answers.")
    released = np.zeros(candidates.problem.queries, dtype=np.bool_)
    if not all(0 <= k < len(released) and candidates.problem.exact[k] for k in read.released):
        raise FormatError(f"tilt file {path}: released: expected numbers of exact answers.")
    released[list(read.released)] = True
    solution = restore(
        candidates.problem,
        read.multipliers,
        eta=read.eta,
        status=read.status,
        path=read.path,
        insistent=read.insistent,
        aim=read.aim,
        tolerance=read.tolerance,
        released=released,
    )
    moved = read.fingerprint != candidates.fingerprint
    if not moved and not math.isclose(solution.ess, read.ess, rel_tol=_SAME_ESS):
        raise FormatError(
            f"tilt file {path}: its weights of the rows that it was fitted to are worth "
            f"{solution.ess:.6g} rows, expected {read.ess:.6g}: "
            "it was edited after the fit. Fit again."
        )
    return Tilt(
        table=table,
        answers=answers,
        solution=candidates.compared(solution, own),
        base=candidates.problem.base,
        method=read.method,
        settings=read.settings,
        base_column=read.column,
        weighted=read.weighted,
        shortfalls=(*candidates.shortfalls, *left_out),
        fingerprint=read.fingerprint,
        guards=read.guards,
        moved=moved,
        redrawing=read.support,
    )
