"""The report: a fit's numbers as one self-contained HTML page.

Nothing here computes a fit or reads a table: :class:`Facts` holds all that the page shows.
"""

from __future__ import annotations

from retilt.report.build import build_page, write_page
from retilt.report.facts import Correlations, Facts

__all__ = ["Correlations", "Facts", "build_page", "write_page"]
