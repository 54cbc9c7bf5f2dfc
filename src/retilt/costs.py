"""About how much time and memory measuring and fitting a plan takes, before it is done.

Formulas in the numbers of rows, columns and queries, with constants from ``benchmarks/costs.py``:
honest to a factor of about three on a machine of today.
"""

from __future__ import annotations

from dataclasses import dataclass

from retilt.measures.base import Block
from retilt.measures.grouped import GroupedBlock
from retilt.measures.nested import Nested
from retilt.measures.partitions import Partition
from retilt.privacy.plan import Plan
from retilt.tilting.solvers.choice import MOST_WITH_HESSIAN
from retilt.tilting.solvers.preconditioner import MAX_DRAWN

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes: about so many seconds of CPU, and MiB beside the table itself."""

    cpu_seconds: float
    peak_mib: float

    def to_dict(self) -> dict[str, float]:
        """As JSON, two digits each: more would not be true."""
        return {k: float(f"{getattr(self, k):.2g}") for k in ("cpu_seconds", "peak_mib")}


@dataclass(frozen=True, slots=True)
class Costs:
    """What measuring and fitting a plan take, about."""

    measure: Cost
    fit: Cost

    def to_dict(self) -> dict[str, dict[str, float]]:
        """As JSON."""
        return {"measure": self.measure.to_dict(), "fit": self.fit.to_dict()}

    def __str__(self) -> str:
        parts = (("measuring", self.measure), ("fitting", self.fit))
        return ", ".join(
            f"{what} about {_seconds(c.cpu_seconds)} of CPU and {_mib(c.peak_mib)}"
            for what, c in parts
        )


def costs_of(plan: Plan, *, synthetic_rows: int) -> Costs:
    """What a plan takes with private tables of its ``rows`` and so many synthetic rows."""
    queries = plan.queries
    features, size, blocks = len(queries.features), queries.size, queries.blocks
    if plan.choose is not None:  # the largest choice is fitted
        blocks = tuple(sorted(blocks, key=lambda b: -len(b.units))[: plan.choose])
    fitted = min(size, sum(len(b.units) for b in blocks))
    touched = [_touched(block) for block in blocks]
    groups = sum(t**2 for t, b in zip(touched, blocks, strict=True) if _grouped(b))
    measure = Cost(
        cpu_seconds=0.01 + 3e-8 * features * plan.rows + 4e-5 * size,
        peak_mib=5 + (40 + 8 * features) * plan.rows / _MIB,
    )
    # The matrix of a Newton step and its factors, or the one over drawn rows.
    dense = 16 * fitted**2 if fitted <= MOST_WITH_HESSIAN else 12 * min(fitted, MAX_DRAWN) ** 2
    by_row = 8e-7 + 8e-8 * sum(touched) + 6e-8 * groups
    fit = Cost(
        cpu_seconds=0.12 + by_row * synthetic_rows + 1e-3 * fitted,
        peak_mib=5 + ((140 + 10 * features) * synthetic_rows + dense) / _MIB,
    )
    return Costs(measure, fit)


def _grouped(block: Block) -> bool:
    return isinstance(block, GroupedBlock)


def _touched(block: Block) -> int:
    """How many of a block's queries are not zero on a row."""
    if isinstance(block, Nested):
        return block.depth
    if isinstance(block, Partition):
        return 1
    if isinstance(block, GroupedBlock):
        return 1 + (len(block.units) - block.cells) // max(len(block.groups), 1)
    return len(block.units)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1g} s" if seconds < 100 else f"{seconds / 60:.2g} min"


def _mib(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.2g} GiB"
