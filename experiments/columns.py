"""The paper's method on Mushroom by the number of columns whose correlations are aligned.

    python -m experiments.columns --runs 5 --page docs/results.md

For each generator and budget: the target and the columns most correlated with it on the synthetic
table, so many in all, by the paper's method at epsilon 1; utility improvement against the generator
with all of the budget. What lies within 0.15 of the printed figure is bold.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import retilt as rt
from experiments.suite.inputs import GENERATED, Case, generated
from experiments.suite.methods import EPSILON
from experiments.suite.pages import Cell, printed
from experiments.table import table_command

COUNTS = (3, 4, 5, 8, 12, 22)
NEAR = 0.15


def cell(case: Case, count: int, runs: int) -> Cell:
    """Utility improvement over so many columns."""
    target = case.data_set.target
    columns = list(rt.top_correlated(case.synthetic, target, top=count, schema=case.schema))
    plan = rt.plan(
        case.synthetic,
        rt.correlation(columns),
        epsilon=EPSILON,
        rows=len(case.split.train),
        schema=case.schema,
        basis="paper",
    )
    found = []
    for seed in range(runs):
        tilt = rt.fit(case.synthetic, rt.measure(case.split.train, plan), method="paper", seed=seed)
        result = rt.evaluate(
            case.split.train,
            case.whole_table,
            tilt.sample(len(case.split.train), seed=seed),
            columns=columns,
            schema=case.schema,
        )
        found.append(result.aligned.raw.improvement)
    return Cell(statistics.fmean(found), statistics.stdev(found))


def lines(data: Path | None, runs: int) -> Iterator[str]:
    """Lines of the table."""
    yield f"| generator | ε | printed | {' | '.join(f'{c} columns' for c in COUNTS)} |"
    yield f"| --- |{' --: |' * (2 + len(COUNTS))}"
    theirs = printed()
    for case in generated(GENERATED, data, ["Mushroom"]):
        place = (case.data_set.name, case.mechanism, str(case.epsilon))
        told = theirs[place]["utility_improvement"]
        texts = []
        for count in COUNTS:
            found = cell(case, count, runs)
            near = abs(found.mean - float(told)) <= NEAR
            texts.append(f"**{found}**" if near else str(found))
        yield f"| {' | '.join([*place[1:], told, *texts])} |"


if __name__ == "__main__":
    table_command(__doc__, "columns", lines)
