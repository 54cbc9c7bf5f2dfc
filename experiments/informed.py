"""What it brings to draw candidate rows by what the answers say of single columns.

    python -m experiments.informed --runs 5 --page docs/decisions/0019*.md

The tables of ``experiments/data`` whose rows can't reach the answers: five correlations at
epsilon 1 over the public bounds, fitted with ``support="mix"`` to the same answers twice, with
cells that are drawn blindly and with cells taken by the answers (:mod:`retilt.rescue.columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

import retilt as rt
from experiments.suite.inputs import GENERATED, Case, generated
from experiments.suite.methods import EPSILON, features
from experiments.table import table_command
from retilt.privacy.answers import Answers
from retilt.rescue import Copies

MECHANISMS = ("DPCTGAN", "PATECTGAN")


def blindly() -> AbstractContextManager[object]:
    """Within it, cells are drawn as if no answer were known."""
    return patch.object(Copies, "towards", lambda self, targets: self.widened({}))


def runs(case: Case, count: int) -> Iterator[list[tuple[float, float]]]:
    """Utility improvement and effective sample size, blindly and by the answers."""
    columns = features(case)
    plan = rt.plan(
        case.synthetic,
        rt.correlation(columns, clip={}),
        epsilon=EPSILON,
        rows=len(case.split.train),
        schema=case.schema,
    )
    for seed in range(count):
        answers = rt.measure(case.split.train, plan)
        found = []
        for manner in (blindly(), nullcontext()):
            with manner:
                found.append(_fitted(case, columns, answers, seed))
        yield found


def _fitted(case: Case, columns: list[str], answers: Answers, seed: int) -> tuple[float, float]:
    tilt = rt.fit(case.synthetic, answers, support="mix", seed=seed)
    result = rt.evaluate(
        case.split.train,
        case.synthetic,
        tilt.sample(len(case.split.train), seed=seed),
        columns=columns,
        schema=case.schema,
    )
    return result.aligned.raw.improvement, tilt.ess


def lines(data: Path | None, count: int) -> Iterator[str]:
    """Lines of a table."""
    yield "| data | generator | ε | blindly | by the answers | ESS, blindly | by the answers |"
    yield f"| --- | --- |{' --: |' * 5}"
    for case in generated(GENERATED, data, []):
        if case.mechanism not in MECHANISMS:
            continue
        found = np.array(list(runs(case, count)))
        (gain, ess), spread = found.mean(axis=0).T, found.std(axis=0, ddof=1)[:, 0]
        gains = [f"{g:.2f} ± {s:.2f}" for g, s in zip(gain, spread, strict=True)]
        sizes = [f"{size:,.0f}" for size in ess]
        cells = [case.data_set.name, case.mechanism, str(case.epsilon - 1), *gains, *sizes]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    table_command(__doc__, "informed", lines)
