"""retilt against other solvers of the same problems: JSON alone on stdout, progress on stderr.

    python -m benchmarks.peers [--output json|text] [--rows N]
                               [--problem NAME ...] [--only SOLVER ...]

The problems
------------
``moments-65``
    307,511 rows, 10 continuous columns, their 65 means, squares and products. All solvers find
    the weights w of the simplex with the least KL(w || uniform) whose query means are the answers
    *exactly*: entropy balancing, or raking. The answers are a private table's with the seeded
    noise of epsilon 1, moved to the nearest ones that weights of the rows can give
    (``retilt.tilting.denoise``), since the peers have no answer to answers out of reach.

    * ``retilt``: ``fit_at(problem, 0, gap=1e-9)``, one fit to the exact answers;
    * ``retilt-path``: what a user runs, ``retilt.fit(table, answers)`` with the noisy answers as
      they are: encoding, some twenty fits along the path of trade-offs, the choice, the finish.
      It solves *another*, noise-aware problem, so its residual is not meant to be zero;
    * ``scipy-lbfgsb``: SciPy's L-BFGS-B on the dual;
    * ``ebal``: ebal 1.0, Newton's method on the dual, with the rank test and the regression that
      belong to its one call;
    * ``paper-algorithm-1``: the paper's Algorithm 1 with its 200 epochs of batches of 256, on the
      answers denoised already, with no tolerance around them.
``denoise-qp``, ``denoise-lp``
    The answers nearest to noisy ones that weights of the rows can give, by least squares and by
    least absolute deviations in units of the noise; a private table of 1,000 rows, so that the
    noise puts the answers out of reach. ``retilt`` against the whole program in ``clarabel`` (on
    20,000 rows at most; retilt is then measured on as many as well) and ``highs``.

The figures
-----------
``rows``
    Rows of the synthetic table.
``cpu_seconds``
    User and system time of the solve call alone, on one BLAS thread, after a call on a small
    table (imports, just-in-time compilation): the best of three, or the only one where it takes
    more than 20 s. A solver that needs the matrix of all queries builds it inside the call.
``peak_mib``
    Highest resident memory during the first call, less that just before it. Every problem and
    solver has a process of its own. Null where the system can't tell (Linux does).
``residual``
    ``moments-65``: the largest abs(q_k(w) - a_k) / sigma_k over the queries, with the answers a
    that the solver was given. ``denoise-*``: the objective, in units of the noise: half a sum of
    squares for the QP, a sum for the LP.
``gap``
    Duality gap. ``moments-65``: in nats, see ``benchmarks.measuring.dual_gap``; null where the
    weights are too far from the answers for one. ``denoise-*``: relative to max(1, objective);
    retilt's is what it certifies itself.
``ess``
    Effective sample size 1 / sum(w**2), in rows.

Residual, gap and effective sample size are computed from the returned weights and multipliers by
the same functions for all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.measuring import Row, judged, timed
from benchmarks.problems import PROBLEMS, ROWS
from benchmarks.solvers import LARGEST, SOLVERS

_SMALL = 2_000
_MODULES = {"ebal": "ebal", "clarabel": "clarabel"}
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def measure(problem: str, solver: str, rows: int) -> Row:
    """One solver on one problem, in this process."""
    solve = SOLVERS[problem][solver]
    solve(PROBLEMS[problem](min(rows, _SMALL)))
    case = PROBLEMS[problem](rows)
    outcome, seconds, peak = timed(lambda: solve(case))
    residual, gap, ess = judged(problem, outcome)
    return {
        "problem": problem,
        "solver": solver,
        "rows": rows,
        "cpu_seconds": round(seconds, 4),
        "peak_mib": None if peak is None else round(peak, 1),
        "residual": residual,
        "gap": gap,
        "ess": round(ess, 1),
    }


def runs(
    problems: Sequence[str], solvers: Sequence[str], rows: int
) -> Iterator[tuple[str, str, int]]:
    """Problem, solver and rows of each measurement, retilt beside every smaller peer."""
    for problem in problems:
        wanted = [name for name in SOLVERS[problem] if name in solvers]
        for name in wanted:
            sizes = {rows}
            if name == "retilt":
                sizes |= {min(rows, LARGEST.get(peer, rows)) for peer in wanted}
            else:
                sizes = {min(rows, LARGEST.get(name, rows))}
            for size in sorted(sizes, reverse=True):
                yield problem, name, size


def _quiet() -> None:
    """What solvers print must not get between the JSON."""
    os.dup2(2, 1)


def _in_own_process(problem: str, solver: str, rows: int) -> Row:
    # Read by the BLAS library when the new process loads it.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_quiet) as pool:
        return pool.submit(measure, problem, solver, rows).result()


def as_text(measured: Sequence[Row]) -> str:
    """The rows as a table, with CPU seconds over retilt's on the same problem and rows."""
    own = {(r["problem"], r["rows"]): r["cpu_seconds"] for r in measured if r["solver"] == "retilt"}
    lines = [
        f"{'problem':11} {'solver':18} {'rows':>9} {'CPU s':>9} {'ratio':>8} {'MiB':>7} "
        f"{'residual':>9} {'gap':>9} {'ESS':>10}"
    ]
    for row in measured:
        base = own.get((row["problem"], row["rows"]))
        ratio = f"{row['cpu_seconds'] / base:.1f}" if base else ""
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        gap = "" if row["gap"] is None else f"{row['gap']:.1e}"
        lines.append(
            f"{row['problem']:11} {row['solver']:18} {row['rows']:9,} {row['cpu_seconds']:9.3f} "
            f"{ratio:>8} {peak:>7} {row['residual']:9.1e} {gap:>9} {row['ess']:10,.1f}"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    names = list(dict.fromkeys(name for table in SOLVERS.values() for name in table))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="retilt against other solvers."
    )
    parser.add_argument("--output", choices=("json", "text"), default="json")
    parser.add_argument("--rows", type=int, default=ROWS, help="synthetic rows (%(default)s)")
    parser.add_argument("--problem", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="SOLVER",
        help=f"of {', '.join(names)}",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 0 if every measurement came to its end, 1 if not."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rows < 1_000:
        parser.error(f"--rows: got {options.rows}, expected at least 1000.")
    wanted = list(runs(options.problem, options.only, options.rows))
    if not wanted:
        parser.error("--only: none of these solvers solves any of the problems asked for.")
    for module in {_MODULES[name] for _, name, _ in wanted if name in _MODULES}:
        if importlib.util.find_spec(module) is None:
            parser.error(
                f"{module} is not installed: pip install 'retilt[bench]', or leave it out (--only)."
            )
    measured: list[Row] = []
    failed = 0
    for problem, solver, rows in wanted:
        print(f"{problem} {solver} {rows:,} rows", end=" ", file=sys.stderr, flush=True)
        try:
            measured.append(_in_own_process(problem, solver, rows))
            print(f"{measured[-1]['cpu_seconds']:.3f} s", file=sys.stderr)
        except Exception as error:
            # Whatever a peer raises, or the end of its process, must not cost the others' rows.
            failed += 1
            print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
    print(json.dumps(measured, indent=1) if options.output == "json" else as_text(measured))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
