"""retilt against other solvers of the same problems: JSON alone on stdout, progress on stderr.

    python -m benchmarks.peers [--output json|text|markdown] [--quick] [--rows N]
                               [--problem NAME ...] [--only SOLVER ...] [--document FILE]

Peers outside retilt's own dependencies run in environments of their own, which the first run
builds under ``build/bench`` (``benchmarks.environments``). One that can't be built here is left
out, with a line on stderr that says why. The exit code is 0 if every measurement came to its end
that could be begun, 1 if one failed, or if a peer that ``--only`` names has no environment.
``--quick`` measures ``moments-65`` with retilt, SciPy's L-BFGS-B and ebal alone, at full size.
``--document`` also puts the table into a Markdown file, in the place of the last one.

The problems
------------
``moments-65``
    307,511 rows, 10 skewed columns, their 65 means, squares and products. All solvers find the
    weights w of the simplex with the least KL(w || uniform) whose query means are the answers
    *exactly*: entropy balancing, or raking. The answers are a private table's with the seeded
    noise of epsilon 1, moved to the nearest ones that weights of the rows can give
    (``retilt.tilting.denoise``), since the peers have no answer to answers out of reach.

    * ``retilt``: ``fit_at(problem, 0, gap=1e-9)``, one fit to the exact answers;
    * ``retilt-path``: what a user runs, ``retilt.fit(table, answers)`` with the noisy answers as
      they are: encoding, some twenty fits along the path of trade-offs, the choice, the finish.
      It solves *another*, noise-aware problem, so its residual is not meant to be zero;
    * ``scipy-lbfgsb``: SciPy's L-BFGS-B on the dual;
    * ``ebal``: ebal, Newton's method on the dual, with the rank test and the regression that
      belong to its one call;
    * ``empirical-calibration``: Google's, MINPACK on the estimating equation;
    * ``paper-algorithm-1``: the paper's Algorithm 1 with batches of 256 on the answers denoised
      already, with no tolerance around them, given 50 times the CPU time of ``retilt``. Where it
      overflows it ends early, with the base weights. ``paper-algorithm-2``: the same in the log
      domain, which does not overflow.
``moments-65-even``
    The same with columns that are not skewed. Its queries are nearly independent of each other,
    which is where methods without second derivatives are at their best.
``margins-55``
    The 272 cells of the one-way tables of 55 categorical columns; the answers are the tables of
    a tilted copy. ``retilt`` to a gap of 1e-22, since the rakers meet the tables to the last
    digits, against ``scipy-lbfgsb`` on a sparse matrix, the raking of
    ``weightipy`` and ``rimpy`` with their own rules to stop, and ``mbi``'s
    ReweightedDatasetEstimator with 1,000 steps of Adam at 0.1, which minimises squared errors of
    the tables and not the divergence.
``two-way-45``
    The same with all 45 two-way tables of ten columns, 1,158 cells; the rakers get a column for
    each table.
``denoise-qp``, ``denoise-lp``
    The answers nearest to noisy ones that weights of the rows can give, by least squares and by
    least absolute deviations in units of the noise; a private table of 1,000 rows, so that the
    noise puts the answers out of reach. ``retilt`` against the whole program in ``clarabel`` (on
    20,000 rows at most; retilt is then measured on as many as well) and ``highs``.

The figures
-----------
``rows``
    Rows of the synthetic table.
``cpu_seconds``, ``calls``
    User and system time of the solve call alone, just-in-time compilation included, on one BLAS
    thread, after a call on a small table (imports): the best of three calls, or the only one
    where it takes more than 20 s. What a solver needs (the matrix of all queries, a data frame)
    is made before the call.
``peak_mib``
    Highest resident memory during that preparation and the first call, less that just before.
    Every problem and solver has a process of its own. Null where the system can't tell (Linux
    does).
``residual``
    The largest abs(q_k(w) - a_k) / sigma_k over the queries, with the answers a that the solver
    was given. ``denoise-*``: the objective, in units of the noise: half a sum of squares for the
    QP, a sum for the LP.
``gap``
    Duality gap in nats, see ``benchmarks.measuring.dual_gap``; null where the weights are too far
    from the answers for one. ``denoise-*``: relative to max(1, objective); retilt's is what it
    certifies itself.
``ess``
    Effective sample size 1 / sum(w**2), in rows.
``correlation_error``
    ``moments-*``: the largest difference of one of the 45 correlations from that of the answers.
``blas_seconds``
    ``moments-*``, retilt: CPU seconds of the arithmetic that can't be left out, see
    ``benchmarks.measuring.blas_seconds``.
``note``
    A word on the solver's settings.

Residual, gap, effective sample size and correlation error are computed from the returned weights
and multipliers by the same functions for all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

from benchmarks.clock import Cost, measured
from benchmarks.document import as_markdown, as_text, put_into
from benchmarks.environments import PEERS, THREADS, PeerError, environment, run_there
from benchmarks.measuring import Row, blas_seconds, correlation_error, judged
from benchmarks.problems import PROBLEMS, ROWS, Case
from benchmarks.solvers import LARGEST, OWN, SOLVERS, Outcome, own_solver

_SMALL = 2_000
_QUICK = ("retilt", "scipy-lbfgsb", "ebal")


@lru_cache(maxsize=1)
def _cases(problem: str, rows: int) -> tuple[Case, Case]:
    """A small case to warm up on, and the case; kept while the solvers of one problem run."""
    case = PROBLEMS[problem](rows)
    return case if rows <= _SMALL else PROBLEMS[problem](_SMALL), case


def measure(problem: str, solver: str, rows: int, python: Path | None = None) -> Row:
    """One solver on one problem, in a process of its own; peers in that of their ``python``."""
    limit = None
    if python is None:
        cost, limit = _in_own_process(problem, solver, rows)
        outcome = cost.result
    else:
        small, case = _cases(problem, rows)
        there = run_there(solver, python, small.task(), case.task())
        cost, found = there, there.result
        outcome = Outcome(case.problem, found.weights, found.multipliers, note=found.note)
    residual, gap, ess = judged(problem, outcome)
    return {
        "problem": problem,
        "solver": solver,
        "rows": rows,
        "cpu_seconds": round(cost.cpu_seconds, 4),
        "calls": cost.calls,
        "peak_mib": None if cost.peak_mib is None else round(cost.peak_mib, 1),
        "residual": residual,
        "gap": gap,
        "ess": round(ess, 1),
        "correlation_error": correlation_error(outcome) if problem.startswith("moments") else None,
        "blas_seconds": limit,
        "note": outcome.note,
    }


def solve_here(problem: str, solver: str, rows: int) -> tuple[Cost[Outcome], float | None]:
    """Outcome and cost in this process, with retilt's lower limit where there is one."""
    small, case = _cases(problem, rows)
    prepare = own_solver(problem, solver)
    prepare(small)()
    cost = measured(lambda: prepare(case))
    limited = solver == "retilt" and problem.startswith("moments")
    return cost, blas_seconds(case) if limited else None


def _quiet() -> None:
    """What solvers print must not get between the JSON."""
    os.dup2(2, 1)


def _in_own_process(problem: str, solver: str, rows: int) -> tuple[Cost[Outcome], float | None]:
    # Read by the BLAS library when the new process loads it.
    os.environ.update(THREADS)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_quiet) as pool:
        return pool.submit(solve_here, problem, solver, rows).result()


def runs(
    problems: Sequence[str], solvers: Sequence[str], rows: int
) -> Iterator[tuple[str, str, int]]:
    """Problem, solver and rows of each measurement, retilt beside every smaller peer."""
    for problem in problems:
        wanted = [name for name in SOLVERS[problem] if name in solvers]
        sizes = {name: {min(rows, LARGEST.get(name, rows))} for name in wanted}
        if "retilt" in sizes:
            sizes["retilt"] = {rows}.union(*sizes.values())
        # By size first: a case is made once for all its solvers.
        for size in sorted(set().union(*sizes.values()), reverse=True):
            yield from ((problem, name, size) for name in wanted if size in sizes[name])


def pythons(names: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """The interpreters of the peers among the names, and the names that can have none here."""
    found: dict[str, Path] = {}
    missing = []
    for name in names:
        if name in PEERS:
            try:
                found[name] = environment(name)
            except PeerError as error:
                missing.append(name)
                print(f"left out: {error}", file=sys.stderr)
    return found, missing


def _parser() -> argparse.ArgumentParser:
    names = list(dict.fromkeys(name for table in SOLVERS.values() for name in table))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="retilt against other solvers."
    )
    parser.add_argument("--output", choices=("json", "text", "markdown"), default="json")
    parser.add_argument(
        "--quick", action="store_true", help=f"moments-65 alone, with {', '.join(_QUICK)}"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="synthetic rows (%(default)s)")
    parser.add_argument("--problem", nargs="+", choices=list(PROBLEMS))
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="SOLVER", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="Markdown file to put the table into"
    )
    return parser


def _measured(wanted: Sequence[tuple[str, str, int]], found: dict[str, Path]) -> Iterator[Row]:
    """What came to its end; what did not is told on stderr."""
    for problem, solver, rows in wanted:
        if solver in PEERS and solver not in found:
            continue
        print(f"{problem} {solver} {rows:,} rows", end=" ", file=sys.stderr, flush=True)
        try:
            row = measure(problem, solver, rows, found.get(solver))
        except Exception as error:
            # Whatever a solver raises, or the end of its process, must not cost the others' rows.
            print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(f"{row['cpu_seconds']:.3f} s", file=sys.stderr)
        yield row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if all came to its end that could be begun."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rows < 1_000:
        parser.error(f"--rows: got {options.rows}, expected at least 1000.")
    problems = options.problem or (["moments-65"] if options.quick else list(PROBLEMS))
    solvers = options.only or (_QUICK if options.quick else [*OWN, *PEERS])
    wanted = list(runs(problems, solvers, options.rows))
    if not wanted:
        parser.error("--only: none of these solvers solves any of the problems asked for.")
    found, missing = pythons(list(dict.fromkeys(solver for _, solver, _ in wanted)))
    rows = list(_measured(wanted, found))
    begun = [solver for _, solver, _ in wanted if solver not in missing]
    if options.document is not None:
        put_into(options.document, rows)
    shown = {"text": as_text, "markdown": as_markdown}
    print(json.dumps(rows, indent=1) if options.output == "json" else shown[options.output](rows))
    asked = set(missing) & set(options.only or ())
    return 1 if asked or len(rows) < len(begun) else 0


if __name__ == "__main__":
    sys.exit(main())
