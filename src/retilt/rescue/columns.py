"""What the answers say about one column alone, brought to the cells that are drawn for it.

Cells over the whole domain are mostly where no private row is. In a row of five of them hardly
one lies right in all, and a fit that has to find these gathers its weight on few. But the means,
deviations and shares of single columns are among the answers, and can be met column by column
before any rows are made: the drawn cells of a column are themselves tilted (a fit like any other,
of a table of one column), and taken by these weights. What is then left to the tilt of the rows is
how the columns hang together.

What is asked of a column only together with others (a table of two, means within groups) says
nothing here.

The answers are noisy and public, so this costs no privacy. It decides which candidate rows there
are, not what their weights have to meet.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retilt.engines.base import Indices
from retilt.exceptions import FormatError
from retilt.measures.base import Design, FloatArray, Indicators, Reading
from retilt.privacy.targets import Queries, Targets
from retilt.rescue.cells import Draw
from retilt.tilting.designs import design_queries, selected_parts
from retilt.tilting.fold import Rows
from retilt.tilting.path import fit_path
from retilt.tilting.problem import Covariance, Problem

Places: TypeAlias = NDArray[np.intp]
"""(m,) where a column's own queries stand among the K."""

Designs: TypeAlias = tuple[Design, ...]
"""The values of these queries on cells of the column."""

_AS_DRAWN = 0.1
"""Share of the cells that are taken as they were drawn, should the answers mislead."""


def own_queries(queries: Queries, name: str, cells: pa.ChunkedArray) -> tuple[Places, Designs]:
    """The queries that read one column and no other, and their values on cells of it."""
    read = Reading(lambda _: cells)
    places: list[Places] = [np.zeros(0, dtype=np.intp)]
    designs: list[Design] = []
    for block, positions in zip(queries.blocks, queries.positions, strict=True):
        for number, feature in enumerate(block.features):
            if set(feature.reads) == {name}:
                alone = block.alone(number, feature.encode(read, len(cells)))
                if alone is not None:
                    places.append(positions[alone.queries])
                    designs += alone.designs
    every = np.concatenate(places)
    # A query that two blocks share has one answer and counts once.
    first = np.zeros(len(every), dtype=np.bool_)
    first[np.unique(every, return_index=True)[1]] = True
    return every[first], selected_parts(designs, first)


def found_multipliers(
    targets: Targets, places: Places, designs: Designs, base: FloatArray
) -> FloatArray:
    """(m,) multipliers with which drawn cells meet what the answers say of their column.

    ``base`` holds the (M,) weights that the cells begin with.
    """
    exact = targets.exact[places]
    problem = Problem(
        designs=designs,
        answers=targets.means[places],
        covariance=Covariance(
            np.where(exact, 1.0, targets.variances[places]),
            np.where(exact[:, None], 0.0, targets.common_noise[places]),
        ),
        base=base,
        exact=exact,
    )
    multipliers = fit_path(problem, lambda means: means).multipliers
    return _neutral_where_constant(designs, multipliers, Rows.of(problem).varying)


def _neutral_where_constant(
    designs: Designs, multipliers: FloatArray, varying: NDArray[np.bool_]
) -> FloatArray:
    """Multipliers that say nothing of what no drawn cell tells apart.

    There they are an answer out of reach, which other cells drawn for another table may meet. A
    cell of a partition that none lies in then counts as the others do on average.
    """
    found, start = multipliers.copy(), 0
    for design in designs:
        part = slice(start, start + design_queries(design))
        moved = varying[part]
        rest = 0.0
        if isinstance(design, Indicators) and moved.any():
            rest = float(multipliers[part][moved].mean())
        found[part] = np.where(moved, multipliers[part], rest)
        start = part.stop
    return found


def taken(designs: Designs, multipliers: FloatArray, base: FloatArray, draw: Draw) -> Indices:
    """(M,) numbers of drawn cells, as many as there are, by ``base`` times their tilt."""
    count, nothing = len(base), np.zeros(len(multipliers))
    problem = Problem(
        designs=designs, answers=nothing, covariance=Covariance(nothing + 1), base=base
    )
    rows = Rows.of(problem)
    weights = rows.expand(rows.fold(multipliers[rows.varying]).weights, count)
    ends = np.cumsum(weights / weights.max())
    chosen = np.minimum(np.searchsorted(ends, draw(count) * ends[-1], side="right"), count - 1)
    every = np.arange(count, dtype=np.int64)
    return np.where(draw(count) < _AS_DRAWN, every, chosen).astype(np.int64)


def check_multipliers(name: str, multipliers: FloatArray, queries: int) -> None:
    """Refuse multipliers that are not those of a column's queries.

    Raises
    ------
    FormatError
        There is not one for each query.
    """
    if queries == 0 or multipliers.shape != (queries,):
        raise FormatError(
            f"support: columns: {name!r}: got {multipliers.size} numbers, expected {queries}."
        )
