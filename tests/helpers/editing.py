"""Changes of JSON content, for tests of strict readers."""

from __future__ import annotations

import copy
from typing import Any


def edited(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value changed; ``path`` is dotted, with numbers for places in lists."""
    copied = copy.deepcopy(content)
    at: Any = copied
    *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    for step in steps:
        at = at[step]
    at[last] = value
    return copied
