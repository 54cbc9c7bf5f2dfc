"""The privacy claim in words: one paragraph for screens, one page for a file.

Everything that is said follows from the plan, from the ledger and from the answers' hash, never
from the private table.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from retilt.measures.base import label
from retilt.measures.calls import FunctionMeasure
from retilt.privacy.budget import budget_from_dict, describe, loss_in_words, rounded_up
from retilt.privacy.selection import GUMBEL
from retilt.privacy.unit import unit_to_json

if TYPE_CHECKING:
    from retilt.privacy.account import LedgerEntry
    from retilt.privacy.answers import Answers
    from retilt.privacy.plan import Plan

_SHOWN = 100
"""Statistics that the page names; the answers file has all of them."""

NOT_PRIVATE = (
    "NOT PRIVATE: these answers were made by retilt.testing.insecure_measure with a seeded "
    "generator. They are for tests and experiments; never release them."
)


def in_words(plan: Plan, ledger: LedgerEntry | None = None) -> str:
    """The claim of a plan, or of answers to it that were charged to a ledger, in one paragraph."""
    parts = [
        _claim(plan),
        _generator(plan),
        *_schema(plan),
        *_code(plan),
        *_row_count(plan),
        "Not covered: the output of evaluate, a schema that was read from private data, and "
        "running time.",
        _ledger(ledger),
    ]
    return " ".join(parts)


def not_covered(plan: Plan) -> list[str]:
    """What the claim does not cover, one sentence each."""
    return [
        "The output of evaluate: it compares with the private table itself.",
        "A schema, a workload or a budget that was chosen by looking at private data.",
        "How long measuring takes, and how much memory.",
        *_schema(plan),
        *_code(plan),
        *_row_count(plan),
        *([_generator(plan)] if plan.generator is None else []),
        "Whether the generator keeps its word.",
        "Answers that were measured elsewhere, or without this ledger.",
    ]


def _claim(plan: Plan) -> str:
    kind = "Laplace" if plan.noise.norm == 1 else "Gaussian"
    count = " and the row count" if plan.counts_rows else ""
    most = "at most " if plan.choose is not None else ""
    choice = f"{_choice(plan)} " if plan.selection is not None else ""
    return (
        "The answers, and everything computed from them and the synthetic table, spend "
        f"{describe(plan.budget)} of the private table: {plan.unit.promise}. {choice}Mechanism: "
        f"one release of {most}{plan.queries.size} exact integer sums{count} with discrete {kind} "
        "noise."
    )


def _choice(plan: Plan) -> str:
    """What choosing measures spends of it, and how that is done."""
    spent = plan.privacy_of_selection
    noise = "Gumbel" if spent["mechanism"] == GUMBEL else "exponential"
    verb = "are" if plan.choose is not None else "were"
    return (
        f"Of {spent['candidates']:,} measures {spent['chosen']:,} {verb} chosen by how far the "
        f"synthetic table is off, for {describe(budget_from_dict(spent['choosing']))} of it (the "
        f"highest scores with {noise} noise, one after the other), and measured for the rest, "
        f"{describe(plan.measuring)}; which were chosen is part of what is released."
    )


def _generator(plan: Plan) -> str:
    generator, persons = plan.generator, plan.unit.person is not None
    if generator is None or plan.total is None:
        return (
            "The generator's guarantee was not declared: the synthetic table's own privacy "
            "loss comes on top and is not part of this statement."
        )
    sentence = f"The generator declared {describe(generator.budget)} ({generator.name} neighbours)"
    if generator.relation is not plan.unit.relation:
        converted = describe(generator.under(plan.unit.relation, persons=persons))
        sentence += f", which is {converted} for {plan.unit.name} neighbours"
    return (
        f"{sentence}; together with it the post-processed table satisfies "
        f"{describe(plan.total)}, if the generator keeps its word. If it read bounds or "
        "categories off the private table without paying for them, nothing here repairs that."
    )


def _schema(plan: Plan) -> list[str]:
    inferred = [n for n in plan.schema.columns if n in plan.schema.inferred]
    if not inferred or plan.generator is not None:
        return []
    return [
        f"Bounds or categories of {', '.join(map(label, inferred))} were read off the "
        "synthetic table, whose guarantee was not declared: they lie outside this statement."
    ]


def _code(plan: Plan) -> list[str]:
    code = [m.name for m in plan.measures if isinstance(m, FunctionMeasure)]
    if not code:
        return []
    return [
        f"That {', '.join(map(label, code))} (Python code) looks at one row at a time, "
        "and does nothing else with it, was tried on synthetic rows and can't be proved: the "
        "claim rests on it."
    ]


def _row_count(plan: Plan) -> list[str]:
    if not plan.counts_rows:
        return []
    return [
        "The plan's own rows and delta, and a synthetic table of exactly as many rows as "
        "the private one, can tell that number: they are the user's doing and not covered."
    ]


def _ledger(entry: LedgerEntry | None) -> str:
    if entry is None:
        return "No ledger was kept: what other answers of the same table spent adds up."
    return (
        f"It is charge {entry.charge} of the ledger's data set {entry.dataset!r}. All its "
        f"charges so far, this one included, come to {loss_in_words(entry.spent)} of a cap of "
        f"{loss_in_words(entry.cap)}, the generator not included."
    )


# -- the page --------------------------------------------------------------------------------------


def page(answers: Answers) -> str:
    """The statement as a Markdown page that a data protection officer can file."""
    plan, entry = answers.plan, answers.ledger
    lines = ["# Privacy statement", ""]
    if not answers.private:
        lines += [f"**{NOT_PRIVATE}**", ""]
    else:
        lines += [
            "This page says what the release of `answers.json` promises to the people whose data "
            "were measured. The release was made by retilt "
            f"{_escaped(answers.versions.get('retilt', ''))}. The page was written on "
            f"{datetime.now(UTC):%Y-%m-%d} (UTC).",
            "",
            "## The promise",
            "",
            _escaped(_claim(plan)),
            "",
            _plain_words(plan),
            "",
            "Everything that is computed from these answers, from the plan and from the synthetic "
            "table (weights, resampled tables, reports) is covered by the same promise: it spends "
            "nothing more.",
        ]
    lines += ["", "## In numbers", "", *_numbers(answers)]
    lines += ["", "## The generator", "", _escaped(_generator(plan))]
    lines += ["", "## The ledger", "", _escaped(_ledger(entry))]
    lines += ["", "## What is not covered", ""]
    lines += [f"* {_escaped(sentence)}" for sentence in not_covered(plan)]
    statistics = plan.queries.statistics
    lines += ["", "## What was released", ""]
    lines += [f"Noisy answers, from which {len(statistics):,} statistics follow:", ""]
    lines += [f"* {_escaped(name)}" for name in statistics[:_SHOWN]]
    if len(statistics) > _SHOWN:
        lines += [f"* and {len(statistics) - _SHOWN:,} more, all of them in the answers file."]
    return "\n".join(lines) + "\n"


def _plain_words(plan: Plan) -> str:
    """What the promise means for one person, as odds."""
    who = "person" if plan.unit.person is not None else "row"
    change = "replaced by another" if plan.unit.name.startswith("replace") else "left out"
    means = (
        f"In plain words: had any one {who} of the private table been {change}, these answers "
        "could have come out just as they did."
    )
    budget = plan.budget
    epsilon = getattr(budget, "epsilon", None)
    if epsilon is None or epsilon > 50:
        return means
    factor = math.ceil(math.exp(epsilon) * 100) / 100
    delta = getattr(budget, "delta", 0)
    plus = f", plus {rounded_up(delta, 3)}" if delta else ""
    return (
        f"{means} The probability of any result, and of anything that anybody concludes from it, "
        f"is at most {factor:,.2f} times what it would have been then{plus}."
    )


def _numbers(answers: Answers) -> list[str]:
    plan, entry = answers.plan, answers.ledger
    unit = unit_to_json(plan.unit)
    rows = {
        "Unit of privacy": unit if isinstance(unit, str) else ", ".join(map(str, unit.values())),
        "Spent by this release": describe(plan.budget),
        **_split(plan),
        "Declared by the generator": "not declared"
        if plan.generator is None
        else f"{describe(plan.generator.budget)} ({plan.generator.name} neighbours)",
        "Together": "unknown" if plan.total is None else describe(plan.total),
        "Mechanism": plan.noise.mechanism,
        "Sensitivity of the scaled sums": f"{plan.noise.sensitivity:.6g}",
        "Rows": f"{plan.rows:,}, a guess" if plan.counts_rows else f"{plan.rows:,}, public",
        "Ledger": "none" if entry is None else f"data set {entry.dataset}, charge {entry.charge}",
        "Cap of the data set": "none" if entry is None else loss_in_words(entry.cap),
        "SHA-256 of the plan's content (plan_sha256)": "none (the plan holds Python code)"
        if plan.has_code
        else plan.sha256,
        "SHA-256 of the answers file (sha256sum)": "none (the plan holds Python code)"
        if plan.has_code
        else answers.sha256,
    }
    rows |= {f"Version of {name}": version for name, version in answers.versions.items()}
    return ["| | |", "|---|---|", *(f"| {_escaped(k)} | {_escaped(v)} |" for k, v in rows.items())]


def _split(plan: Plan) -> dict[str, str]:
    """Which part of it chose the measures."""
    if plan.selection is None:
        return {}
    spent = plan.privacy_of_selection
    chosen = f"{spent['chosen']:,} of {spent['candidates']:,} measures"
    return {
        f"Of it for choosing {chosen}": describe(plan.selection.budget),
        "Of it for measuring them": describe(plan.measuring),
        "Mechanism of the choice": spent["mechanism"],
    }


_SPECIAL = set("\\`*_{}[]<>#|~&$!@")


def _escaped(text: str) -> str:
    r"""Text of others that stays text in Markdown and in what renders it.

    >>> _escaped("a|b<script>")
    'a\\|b\\<script\\>'
    """
    one_line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    escaped = "".join("\\" + c if c in _SPECIAL else c for c in one_line)
    # Bare addresses would become links.
    return escaped.replace("://", "\\://").replace("www.", "www\\.")
