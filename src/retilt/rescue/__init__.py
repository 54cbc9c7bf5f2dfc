"""Support rescue: candidate rows with other values where the synthetic rows lack them.

No weights of rows that all say the same can say anything else. ``support="mix"`` therefore adds
copies of synthetic rows in which every *measured* column is drawn anew, each column apart
(``cells.py``): half of its cells from the synthetic column's own distribution, half over the whole
public domain, and then by what the answers say about that column alone (``columns.py``). They
begin with a small share of the base weight, and the tilt decides how much of them it needs.

Each column has its half by itself, not each row: where the synthetic columns are right but for
one, the rows that serve are those with this one alone from the whole domain. Drawn row by row
they would be missing, and a fit gathers on a few of the others.

It is the one exception to the rule that no row's values change, so it is never done unasked. It
costs no privacy: it looks at the synthetic table, the declared schema and the noisy answers.
"""

from retilt.rescue.mix import (
    LARGEST,
    MOST_ROWS,
    Mix,
    Redrawing,
    Support,
    redrawing_from_dict,
    support_of,
)
from retilt.rescue.widen import (
    Copies,
    Widened,
    check_declared,
    clamped_columns,
    measured_columns,
    undeclared,
    widen,
)

__all__ = [
    "LARGEST",
    "MOST_ROWS",
    "Copies",
    "Mix",
    "Redrawing",
    "Support",
    "Widened",
    "check_declared",
    "clamped_columns",
    "measured_columns",
    "redrawing_from_dict",
    "support_of",
    "undeclared",
    "widen",
]
