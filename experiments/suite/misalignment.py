"""The paper's Figure 1: by how much each correlation is off, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from experiments.figures import STYLE, save
from experiments.suite.inputs import Case
from experiments.suite.methods import METHODS, features
from retilt.engines.local import open_table
from retilt.evaluation import correlation_matrix
from retilt.measures.base import FloatArray
from retilt.schema.encode import to_unit
from retilt.schema.formats import resolve

SHOWN = {"none": "generator, all of the budget", "paper": "paper's method", "retilt": "retilt"}
"""Methods, from left to right."""


def correlations(case: Case, table: pd.DataFrame, columns: Sequence[str]) -> FloatArray:
    """(d, d) of a table, categories as the numbers of their codes."""
    source = open_table(table)
    schema = resolve(case.schema, source, list(columns))
    values = [to_unit(c, source.cells(n), clamp=False) for n, c in schema.columns.items()]
    return np.nan_to_num(correlation_matrix(np.stack(values)))


def draw(cases: Sequence[Case], path: Path) -> None:
    """One line of maps for each case, white for no difference and dark for one of 0.5 or more."""
    with rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(SHOWN) + 1, 2.9 * len(cases)), layout="constrained")
        axes = figure.subplots(len(cases), len(SHOWN), squeeze=False)
        for line, case in zip(axes, cases, strict=True):
            columns = features(case)
            real = correlations(case, case.split.train, columns)
            for axis, (method, title) in zip(line, SHOWN.items(), strict=True):
                table = METHODS[method](case, 1).table
                off = np.abs(correlations(case, table, columns) - real)
                image = axis.imshow(off, vmin=0, vmax=0.5, cmap="Blues")
                axis.set_title(f"{title}\nsum {off.sum():.2f}", fontsize=9)
                axis.set_xticks([])
                axis.set_yticks(range(len(columns)) if method == "none" else [])
                if method == "none":
                    axis.set_yticklabels(columns, fontsize=6)
                    axis.set_ylabel(f"{case.data_set.name}, {case.mechanism}, ε = {case.epsilon}")
        figure.colorbar(image, ax=axes, shrink=0.6, label="off by")
    save(figure, path)
