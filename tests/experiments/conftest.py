from __future__ import annotations

import sys
from pathlib import Path

# The experiments are no part of the package, and are not installed with it.
sys.path.insert(0, str(Path(__file__).parents[2]))
