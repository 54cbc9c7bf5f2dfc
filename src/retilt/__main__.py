"""``python -m retilt`` is the command line."""

from __future__ import annotations

import sys

from retilt.cli import main

sys.exit(main())
