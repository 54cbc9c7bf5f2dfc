"""Modules that are in no package: other test modules, and scripts."""

from __future__ import annotations

import importlib.util
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

_NUMBERS = count()


def load(path: Path) -> ModuleType:
    """A file's module, made anew for each caller."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{next(_NUMBERS)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
