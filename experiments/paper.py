"""The paper's Tables 1 and 4 again, the paper's method and ours side by side in every cell.

    python -m experiments.paper [--quick] [--generated FOLDER] [--data FOLDER] [--only WORD ...]

A generator with all of the budget (``none``) against the same generator with 1 less and
post-processing with 1: by the paper's method and by ours, and by ours with support rescue
(``retilt-mix``), with more candidate rows (``retilt-more``, where the generator made them), with
guards (``retilt-keep``) and asked for all columns (``retilt-all``), five repetitions each.
``optimum`` is ours on answers without noise. Every
result is kept under ``build/experiments/paper`` by a hash of its inputs, so a run that was killed
goes on where it stopped. Writes ``experiments/results/paper.csv``
(:data:`experiments.suite.running.HEADS`) and the tables of ``docs/results.md`` (``--page``).

``--quick`` takes the synthetic files beside the real data instead of the generated ones (which
have no table with all of the budget, so that there is no utility improvement against it), with
one repetition, and writes ``quick.csv``: some minutes at most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.published import DataError
from experiments.suite.inputs import GENERATED, generated, given
from experiments.suite.methods import METHODS
from experiments.suite.misalignment import draw
from experiments.suite.pages import put_into
from experiments.suite.running import jobs, perform, tidy, write

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "experiments" / "paper"
_QUICK = ("none", "same-file", "paper", "retilt")


def main() -> None:
    """Run what is not kept yet; write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--generated", type=Path, default=GENERATED, help="generators' tables")
    parser.add_argument("--only", nargs="+", default=[], help="data sets, by name")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS))
    parser.add_argument("--repetitions", type=int, help="at least 1; 5, or 1 with --quick")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    parser.add_argument("--figure", type=Path, help="SVG file for the paper's Figure 1")
    options = parser.parse_args()
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions: got {options.repetitions}, expected at least 1.")
    try:
        if options.quick:
            cases = list(given(options.data, options.only))
        else:
            cases = list(generated(options.generated, options.data, options.only))
    except DataError as error:
        sys.exit(f"error: {error}")
    if not cases:
        parser.error("no tables to work on: see python -m experiments.generate, or --generated.")
    repetitions = options.repetitions or (1 if options.quick else 5)
    methods = options.methods or (_QUICK if options.quick else tuple(METHODS))
    try:
        done, failed = perform(list(jobs(cases, repetitions, methods)), KEPT)
    except DataError as error:
        sys.exit(f"error: {error}")
    rows = tidy(done)
    write(rows, options.results / ("quick.csv" if options.quick else "paper.csv"))
    if options.page is not None:
        put_into(options.page, rows, None if options.quick else options.generated)
    if options.figure is not None:
        draw([c for c in cases if c.mechanism == "GEM"] or cases[:2], options.figure)
    if failed:
        sys.exit(f"{failed} jobs failed.")


if __name__ == "__main__":
    main()
