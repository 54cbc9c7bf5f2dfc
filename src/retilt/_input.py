"""Reading the files that come from others: plans, answers, tilts, schemas, workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retilt.exceptions import FormatError


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON object; ``what`` names the kind of file in errors.

    Raises
    ------
    FormatError
        The file can't be read, is no JSON object, or names a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=_without_repeats)
    except OSError as error:
        raise FormatError(f"{what} file {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{what} file {path} is not JSON (or names a key twice).") from None
    if not isinstance(content, dict):
        raise FormatError(f"{what} file {path}: expected a JSON object.")
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are distinct: of two budgets a reader might see the wrong one."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands twice")
    return content
