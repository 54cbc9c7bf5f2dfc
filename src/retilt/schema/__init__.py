"""What columns are (kinds, bounds, categories) and how their cells become numbers."""

from __future__ import annotations
