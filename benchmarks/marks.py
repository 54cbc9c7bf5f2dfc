"""What was measured, in its place in a Markdown file. Standard library only."""

from __future__ import annotations

from pathlib import Path


def put_between(path: Path, begin: str, end: str, text: str) -> None:
    """Write a text between two marks of a file, in the place of the last one.

    Raises
    ------
    ValueError
        If the file has no such marks.
    """
    old = path.read_text(encoding="utf-8")
    if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
        raise ValueError(f"{path}: expected {begin} and, after it, {end}, each once.")
    before, after = old.split(begin)[0], old.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
