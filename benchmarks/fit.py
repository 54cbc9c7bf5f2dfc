"""CPU seconds and peak memory of one fit of 307,511 rows x 10 columns (65 queries).

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.fit

The table is made: ten correlated continuous columns of mixed shapes; the "real" one differs in
its correlations, spreads and means. The path is included. JSON on stdout alone.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import pyarrow as pa

import retilt as rt

ROWS, COLUMNS = 307_511, 10


def table(seed: int, mixing: float) -> pa.Table:
    """Ten columns in [0, 1] that share a common factor."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(ROWS, 1))
    loads = np.linspace(-1, 1, COLUMNS) * mixing
    values = 1 / (1 + np.exp(-(common * loads + rng.normal(size=(ROWS, COLUMNS)) - 0.5)))
    return pa.table({f"c{j}": values[:, j] ** (1 + j % 3) for j in range(COLUMNS)})


def main() -> None:
    """Run once; the first fit pays for imports, so it is on a small table."""
    names = [f"c{j}" for j in range(COLUMNS)]
    schema = {n: rt.Numeric(0.0, 1.0) for n in names}
    synthetic, real = table(0, 0.4), table(1, 0.8)
    plan = rt.plan(synthetic, rt.correlation(names), epsilon=1, rows=ROWS, schema=schema)
    answers = rt.measure(real, plan)
    del real
    rt.fit(synthetic.slice(0, 1000), answers)
    wall, cpu = time.perf_counter(), time.process_time()
    tilt = rt.fit(synthetic, answers)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    json.dump(
        {
            "rows": ROWS,
            "queries": len(answers.means),
            "cpu_seconds": round(cpu, 3),
            "wall_seconds": round(wall, 3),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "status": tilt.status.value,
            "gap": tilt.solution.gap(),
            "kkt_residual": tilt.solution.kkt_residual(),
            "ess": round(tilt.ess),
            "misfit": [tilt.misfit_before, tilt.misfit_after],
            "path_points": len(tilt.solution.path),
        },
        sys.stdout,
        indent=1,
    )


if __name__ == "__main__":
    main()
