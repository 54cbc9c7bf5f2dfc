"""The command of an experiment that is one table: print it, or put it into its place in a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.marks import put_between

from experiments.published import DataError


def table_command(
    description: str | None, mark: str, lines: Callable[[Path | None, int], Iterator[str]]
) -> None:
    """Print the lines that ``lines(data, runs)`` gives.

    With ``--page`` also put them between ``<!-- mark: begin -->`` and ``<!-- mark: end -->``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    options = parser.parse_args()
    try:
        table = "\n".join(lines(options.data, options.runs))
    except DataError as error:
        sys.exit(f"error: {error}")
    print(table)
    if options.page is not None:
        put_between(options.page, f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->", table)
