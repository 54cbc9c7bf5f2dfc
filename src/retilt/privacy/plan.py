"""The plan: everything that will be released of the private table, decided without it.

A plan is a contract between analyst and custodian. ``measure`` trusts nothing in it that
matters for privacy: sensitivities and noise are computed anew from the measures, the schema,
the scales and the budget; a plan that was edited can ask for other things, never for less noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from retilt._input import check_json_size, read_json
from retilt._output import json_text, write_json
from retilt.engines.frames import user_frame
from retilt.exceptions import FormatError, InputError, WorkloadError
from retilt.measures.base import Basis, Measure, Terms, label
from retilt.measures.calls import FunctionMeasure
from retilt.measures.entries import (
    check_expressions,
    expressions_in,
    listed,
    parse_fraction,
    short,
)
from retilt.measures.formats import (
    guards_from_dict,
    guards_to_dict,
    measure_from_dict,
    measure_to_dict,
)
from retilt.measures.guards import Guards
from retilt.measures.marginals import Marginal
from retilt.measures.partitions import Partition
from retilt.measures.queries import MAX_QUERIES, QuerySet, gather
from retilt.measures.workload import check_number
from retilt.privacy import statement
from retilt.privacy.budget import (
    Budget,
    Generator,
    budget_from_dict,
    budget_to_dict,
    describe,
    generator_from_dict,
    generator_to_dict,
    total_budget,
)
from retilt.privacy.selection import (
    Choice,
    Provenance,
    Selected,
    Selection,
    rest_of,
    scores_of,
    selection_from_dict,
    weights_of,
)
from retilt.privacy.selection import Terms as ScoreTerms
from retilt.privacy.sensitivity import (
    MOST_DIGITS,
    NoisePlan,
    base_deviation,
    norm_of,
    plan_noise,
)
from retilt.privacy.unit import Unit, parse_unit, unit_to_json
from retilt.schema.columns import Schema
from retilt.schema.formats import schema_from_dict, schema_to_dict

FORMAT = "retilt-plan/1"

_ANSWER_BYTES, _ANSWER_VALUES = 80, 3
"""What an answers file holds for each query, but for the digits of its step and factor.

A noise scale of 24 characters, a sum of at most 1e20 rows' steps, punctuation.
"""

_ANSWERS_BYTES, _ANSWERS_VALUES = 20_000, 1_000
"""What it holds once."""

_NOTES = 2**21
"""Characters of all notes."""


@dataclass(frozen=True)
class Plan:
    """What to measure, how loud, with which noise, under which unit. Made by ``retilt.plan``.

    Attributes
    ----------
    unit, budget, rows
        The promise. ``rows`` is the public row count under replace-one, a guess of the rows
        that are used under every other unit.
    generator
        The synthetic table's declared guarantee, or ``None``.
    basis
        ``"centred"`` or ``"paper"``.
    schema
        Of the columns that are measured, in order of first mention.
    measures
        Resolved: bin edges and loudness fixed.
    scales
        One positive fraction for each measure.
    count_scale
        Of the noisy row count; ``None`` under replace-one, where it is public.
    expected
        (S,) expected standard error of each statistic, with the synthetic table's answers
        standing in for the real ones; ``None`` where undefined. For information only.
    notes
        Sentences for people: what was left out, clamped or rounded.
    guards
        What a fit shall leave as it is; nothing of it is asked of the private table.
    selection
        Where only some of the measures will be measured: how they are chosen
        (:class:`~retilt.privacy.selection.Selection`). In the plan of answers: from what they
        were chosen (:class:`~retilt.privacy.selection.Selected`). Else ``None``.
    """

    unit: Unit
    budget: Budget
    rows: int
    generator: Generator | None
    basis: Basis
    schema: Schema
    measures: tuple[Measure, ...]
    scales: tuple[Fraction, ...]
    count_scale: Fraction | None
    expected: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()
    guards: Guards | None = None
    selection: Provenance | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise InputError(f"rows: got {short(self.rows)}, expected a whole number above 0.")
        if not self.measures:
            raise WorkloadError("workload: it names no measure. Name at least one.")
        if len(self.scales) != len(self.measures):
            raise InputError(f"scales: got {len(self.scales)} for {len(self.measures)} measures.")
        if self.basis not in ("centred", "paper"):
            raise InputError(f"basis: got {short(self.basis)}, expected 'centred' or 'paper'.")
        if (self.count_scale is None) == self.counts_rows:
            raise InputError(
                "count_scale: expected where the row count is private (every unit but "
                "replace-one), and only there."
            )
        self._check_person()
        # A generator whose guarantee can't be added up is refused before anything is read.
        total_under(self.budget, self.generator, self.unit)
        self._check_selection()

    def _check_selection(self) -> None:
        _ = self.measuring  # refuses a part that is more than the whole
        if isinstance(self.selection, Selection):
            self.selection.check(len(self.measures), self.queries.size)
        elif isinstance(self.selection, Selected):
            self.selection.check(len(self.measures))

    def _check_person(self) -> None:
        person = self.unit.person
        if person is not None and person in self.schema:
            raise InputError(
                f"person: the column {person!r} is measured as well. It tells persons apart: leave "
                "it out of the measures, or name another column of persons."
            )

    def __repr__(self) -> str:
        some = f"{self.choose} of " if self.choose is not None else ""
        return (
            f"Plan({some}{len(self.measures)} measures, {self.queries.size} queries, "
            f"{describe(self.budget)}, unit={self.unit.name!r}, rows={self.rows})"
        )

    @cached_property
    def queries(self) -> QuerySet:
        """The K distinct queries."""
        terms = terms_of(self.schema, self.basis, self.budget, self.unit)
        return gather(self.measures, terms)

    @cached_property
    def noise(self) -> NoisePlan:
        """The noise of every released integer, computed anew from the plan's content.

        Where measures are yet to be chosen, the most that each would have.
        """
        return plan_noise(
            self.queries,
            self.scales,
            self.count_scale,
            self.measuring,
            max_rows=self.unit.max_rows,
            rows=self.rows,
            choose=self.choose,
        )

    @cached_property
    def measuring(self) -> Budget:
        """What noise is calibrated to: the budget, less what choosing measures spends."""
        part = self.selection
        return self.budget if part is None else rest_of(self.budget, part.budget)

    @property
    def choose(self) -> int | None:
        """How many of the measures are yet to be chosen; ``None`` where all are measured."""
        return self.selection.choose if isinstance(self.selection, Selection) else None

    @property
    def choice(self) -> Choice | None:
        """How measures are chosen, or were; ``None`` where there was nothing to choose."""
        if self.selection is None:
            return None
        return Choice.of(self.selection.budget, self.choose or len(self.measures))

    def scores(self, sums: Sequence[int]) -> list[int]:
        """The score of each measure by which some are chosen. Not private.

        Parameters
        ----------
        sums
            (K [+ 1],) the private table's integer sums, with the number of rows where that is
            private.
        """
        assert isinstance(self.selection, Selection)  # the caller looked
        norm = norm_of(self.budget)
        sensitivity = Fraction(self.noise.sensitivity)
        base, _ = base_deviation(sensitivity, self.measuring, coordinates=self.queries.size)
        terms = ScoreTerms(
            norm=norm,
            rows=None if self.counts_rows else self.rows,
            max_rows=self.unit.max_rows,
            weights=weights_of([m.weight for m in self.measures]),
            noise=tuple(float(base / s) for s in self.scales),
        )
        return scores_of(self.queries, sums, self.selection, terms)

    @property
    def tables(self) -> tuple[frozenset[str] | None, ...]:
        """The columns of each measure that is a table of counts; ``None`` for the others."""
        return tuple(
            frozenset(m.columns) if isinstance(m, Marginal) else None for m in self.measures
        )

    def chosen(self, places: Iterable[int]) -> Plan:
        """The plan of the measures at these places alone, as if they had been chosen.

        It spends as much as this one. Nothing in it can fail that did not fail here.
        """
        assert isinstance(self.selection, Selection)  # the caller looked
        kept = sorted(set(places))
        measures = tuple(self.measures[i] for i in kept)
        made = replace(
            self,
            measures=measures,
            scales=tuple(self.scales[i] for i in kept),
            expected=(),
            notes=(_told(len(self.measures), measures), *self._notes_without(kept)),
            selection=Selected(
                candidates=len(self.measures),
                budget=self.selection.budget,
                plan_sha256=None if self.has_code else self.sha256,
            ),
        )
        if not self.expected:
            return made
        known = dict(zip(self.queries.statistic_keys, self.expected, strict=True))
        return replace(made, expected=tuple(known[k] for k in made.queries.statistic_keys))

    def _notes_without(self, kept: Sequence[int]) -> list[str]:
        """The notes but the first, and but those on tables that are not kept."""
        left_out = []
        for number, block in enumerate(self.queries.blocks):
            if number not in kept and isinstance(block, Partition):
                names = ", ".join(v.label for v in block.variables)
                left_out += [f"table of {names}: ", f"{names}: "]
        return [n for n in self.notes[1:] if not n.startswith(tuple(left_out))]

    @property
    def selected(self) -> str:
        """In words: what is chosen from, or was chosen; empty where there is nothing to choose."""
        return self.notes[0] if self.selection is not None and self.notes else ""

    def loudest_choice(self) -> Plan:
        """The plan itself; of one with a choice, the choice that one row can move the most."""
        if self.choose is None:
            return self
        norm = norm_of(self.budget)
        blocks = zip(self.scales, self.queries.blocks, strict=True)
        parts = [s**norm * b.sensitivity() for s, b in blocks]
        return self.chosen(sorted(range(len(parts)), key=lambda i: -parts[i])[: self.choose])

    def sums_of_chosen(self, chosen: Plan, sums: Sequence[int]) -> list[int]:
        """(K' [+ 1],) of this plan's (K [+ 1],) ``sums`` those that a chosen plan asks."""
        places = {key: place for place, key in enumerate(self.queries.keys)}
        return [*(sums[places[k]] for k in chosen.queries.keys), *sums[self.queries.size :]]

    @property
    def counts_rows(self) -> bool:
        """Whether the row count is measured (it is private)."""
        return self.unit.counts_rows

    @cached_property
    def total(self) -> Budget | None:
        """Post-processing and generator together; ``None`` where the generator is not declared."""
        return total_under(self.budget, self.generator, self.unit)

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """What measuring this plan spends, in numbers, and in words under ``statement``."""
        return {
            "unit": unit_to_json(self.unit),
            "post_processing": budget_to_dict(self.budget),
            "generator": generator_to_dict(self.generator),
            "total": None if self.total is None else budget_to_dict(self.total),
            "mechanism": self.noise.mechanism,
            "sensitivity": self.noise.sensitivity,
            **({} if self.selection is None else {"selection": self.privacy_of_selection}),
            "not_covered": statement.not_covered(self),
            "statement": self.statement,
        }

    @property
    def privacy_of_selection(self) -> dict[str, Any]:
        """What choosing spends of the budget, and what is left; empty where all is measured."""
        selection, choice = self.selection, self.choice
        if selection is None or choice is None:
            return {}
        left = len(self.measures)
        return {
            "chosen": choice.count,
            "candidates": selection.candidates if isinstance(selection, Selected) else left,
            "mechanism": choice.mechanism,
            "choosing": budget_to_dict(selection.budget),
            "measuring": budget_to_dict(self.measuring),
        }

    @property
    def statement(self) -> str:
        """The privacy claim in words, with what it does not cover."""
        return statement.in_words(self)

    def to_frame(self) -> Any:
        """The statistics table in pandas if it is installed, else PyArrow."""
        return table_frame(self.statistics_table())

    def statistics_table(self) -> list[dict[str, Any]]:
        """A row for each statistic: ``statistic`` and ``expected_standard_error``."""
        expected = self.expected or (None,) * len(self.queries.statistics)
        return [
            {"statistic": s, "expected_standard_error": e}
            for s, e in zip(self.queries.statistics, expected, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "format": FORMAT,
            "unit": unit_to_json(self.unit),
            "budget": budget_to_dict(self.budget),
            "rows": self.rows,
            "generator": generator_to_dict(self.generator),
            "basis": self.basis,
            "schema": schema_to_dict(self.schema),
            "measures": [
                {**measure_to_dict(m), "scale": str(s)}
                for m, s in zip(self.measures, self.scales, strict=True)
            ],
            "count_scale": None if self.count_scale is None else str(self.count_scale),
            "statistics": self.statistics_table(),
            "notes": list(self.notes),
            "guards": guards_to_dict(self.guards),
            **({} if self.selection is None else {"selection": self.selection.to_dict()}),
        }

    @property
    def has_code(self) -> bool:
        """Whether it holds a Python callable, so that it can't be written and has no hash."""
        return any(isinstance(m, FunctionMeasure) for m in self.measures)

    @cached_property
    def sha256(self) -> str:
        """Hash of the plan's canonical JSON."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """What the choice of each person's rows is keyed by: the plan's hash.

        A plan that holds a Python callable can't be written and has no hash; the names of its
        statistics stand in. Privacy needs no secret here, see :mod:`retilt.persons`.
        """
        if not self.has_code:
            return self.sha256
        return hashlib.sha256(json.dumps(self.queries.statistics).encode()).hexdigest()

    def check_files(self) -> None:
        """Refuse a plan if its own file, or that of its answers, could not be read back.

        Raises
        ------
        InputError
            They would be too large, or hold a name that is no text.
        """
        if self.has_code:
            self._check_files_of_chosen()
            return
        content = self.to_dict()
        check_expressions(_expressions(content["measures"], content["guards"]))
        noise, spoken = self.noise, len(json_text(self.privacy))
        if self.choose is None:
            digits = sum(
                len(str(s)) + len(str(f)) for s, f in zip(noise.steps, noise.factors, strict=True)
            )
        else:
            digits = 2 * MOST_DIGITS * len(noise.steps)
        check_json_size(
            json_text(content),
            "plan",
            more_bytes=digits + _ANSWER_BYTES * len(noise.steps) + 2 * spoken + _ANSWERS_BYTES,
            more_values=_ANSWER_VALUES * len(noise.steps) + _ANSWERS_VALUES,
        )

    def _check_files_of_chosen(self) -> None:
        """A plan that holds code has no file, but what is chosen from it may have one."""
        if self.choose is None:
            return
        places = [i for i, m in enumerate(self.measures) if not isinstance(m, FunctionMeasure)]
        if 0 < len(places) < len(self.measures):
            self.chosen(places).check_files()

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write ``plan.json``; an existing file only with ``force``."""
        write_json(path, self.to_dict(), force=force)


def _told(candidates: int, measures: Sequence[Measure]) -> str:
    """What was chosen, in words."""
    names = [f"{m.kind}({', '.join(map(label, m.columns))})" for m in measures]
    return (
        f"Chosen of {candidates:,} measures, as those that the synthetic table seems to get most "
        f"wrong: {listed(names, str)}. The others were not measured."
    )


def terms_of(schema: Schema, basis: Basis, budget: Budget, unit: Unit) -> Terms:
    """What measures are bound to under a budget and a unit."""
    return Terms(
        schema,
        norm=norm_of(budget),
        relation=unit.relation,
        basis=basis,
        counted=unit.counts_rows,
    )


def total_under(own: Budget, generator: Generator | None, unit: Unit) -> Budget | None:
    """Generator and post-processing together under the plan's unit; refuses what can't add up."""
    return total_budget(own, generator, unit.relation, persons=unit.person is not None)


def table_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of a result as a frame: pandas if it is installed, else PyArrow."""
    return user_frame({key: [row[key] for row in rows] for key in rows[0]})


def load_plan(path: str | Path) -> Plan:
    """Read a plan that :meth:`Plan.save` wrote.

    Raises
    ------
    FormatError
        The file is missing, no plan, of another version, or malformed.
    """
    content = read_json(path, "plan")
    try:
        return plan_from_dict(content)
    except InputError as error:
        raise FormatError(f"plan file {path}: {error}") from None


_KEYS = {
    "format",
    "unit",
    "budget",
    "rows",
    "generator",
    "basis",
    "schema",
    "measures",
    "count_scale",
    "statistics",
    "notes",
    "guards",
}


def plan_from_dict(content: Mapping[str, Any]) -> Plan:
    """The plan that :meth:`Plan.to_dict` wrote; strict."""
    if content.get("format") != FORMAT:
        raise FormatError(f"format: got {short(content.get('format'))}, expected {FORMAT!r}.")
    if set(content) - {"selection"} != _KEYS:
        odd = (set(content) - {"selection"}) ^ _KEYS
        raise FormatError(f"keys missing or unknown: {listed(sorted(odd))}.")
    try:
        entries = content["measures"]
        if not isinstance(entries, list):
            raise FormatError(f"measures: got {short(entries)}, expected a list.")
        check_number("measures", len(entries))
        check_expressions(_expressions(entries, content["guards"]))
        measures = [measure_from_dict(entry) for entry in entries]
        scales = [parse_fraction(entry["scale"], "scale") for entry in entries]
        spoken, expected = _statistics(content["statistics"])
        raw_count = content["count_scale"]
        plan = Plan(
            unit=parse_unit(content["unit"]),
            budget=budget_from_dict(content["budget"]),
            rows=content["rows"],
            generator=generator_from_dict(content["generator"]),
            basis=content["basis"],
            schema=schema_from_dict(content["schema"]),
            measures=tuple(measures),
            scales=tuple(scales),
            count_scale=None if raw_count is None else parse_fraction(raw_count, "count_scale"),
            expected=expected,
            notes=_notes(content["notes"]),
            guards=guards_from_dict(content["guards"]),
            selection=selection_from_dict(content["selection"]) if "selection" in content else None,
        )
        missing = [n for m in plan.measures for n in m.columns if n not in plan.schema]
        if missing:
            raise FormatError(f"schema: it lacks the columns {listed(missing)}.")
        if spoken != plan.queries.statistics:
            raise FormatError("statistics: they are not those of the measures.")
    except (TypeError, KeyError, AttributeError, ZeroDivisionError, OverflowError):
        raise FormatError("a value is missing or has the wrong type.") from None
    return plan


def _expressions(measures: object, guards: object) -> Iterator[object]:
    """The SQL of a plan's content, whatever stands there."""
    yield from expressions_in(measures)
    if isinstance(guards, dict):
        yield from expressions_in(guards.get("measures"))


def _statistics(content: object) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """The names of the statistics, and the errors that are expected of them."""
    keys = {"statistic", "expected_standard_error"}
    if not isinstance(content, list) or len(content) > MAX_QUERIES:
        raise FormatError(f"statistics: expected a list of at most {MAX_QUERIES:,}.")
    if not all(isinstance(row, dict) and row.keys() == keys for row in content):
        raise FormatError(f"statistics: expected objects of {listed(sorted(keys))}.")
    errors = tuple(_error(row["expected_standard_error"]) for row in content)
    return tuple(row["statistic"] for row in content), errors


def _notes(content: object) -> tuple[str, ...]:
    if not isinstance(content, list) or not all(isinstance(n, str) for n in content):
        raise FormatError("notes: expected a list of texts.")
    if len(content) > MAX_QUERIES or sum(map(len, content)) > _NOTES:
        raise FormatError(f"notes: expected at most {_NOTES:,} characters.")
    return tuple(content)


def _error(value: object) -> float | None:
    """An expected standard error: a finite number of at least 0, or null."""
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise FormatError("expected_standard_error: expected null or a number of at least 0.")
    return float(value)  # type: ignore[arg-type]
