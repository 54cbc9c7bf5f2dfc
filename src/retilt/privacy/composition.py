"""Many measurements together by privacy loss distributions: tighter than sums, and only shown.

Composition by privacy loss distributions (PLD) holds for plans that were all fixed beforehand.
Where a plan is chosen after seeing answers, comparing its result with a cap is not valid, so
no cap is enforced by it. Needs the extra ``accounting``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_LARGEST_EPSILON = 100.0
"""Beyond this nobody needs a tight figure, and the grid of losses would fill the memory."""


def tight_epsilon(
    *, pure: Sequence[float], gaussian: Sequence[float], delta: float
) -> float | None:
    """The epsilon at ``delta`` of all mechanisms together.

    Parameters
    ----------
    pure
        The epsilon of each pure-DP mechanism.
    gaussian
        The mu (distance in deviations) of each Gaussian mechanism, taken as continuous.
    delta
        Above 0.

    Returns
    -------
    float or None
        ``None`` where dp-accounting is not installed, or the loss is too large to be of use.
    """
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
        from dp_accounting.pld.common import DifferentialPrivacyParameters
    except ImportError:
        return None
    together = math.sqrt(sum(mu * mu for mu in gaussian))
    if sum(pure) > _LARGEST_EPSILON or together > math.sqrt(2 * _LARGEST_EPSILON):
        return None
    grid = {"value_discretization_interval": 1e-3}
    parts = [
        pld.from_privacy_parameters(DifferentialPrivacyParameters(epsilon, 0), **grid)
        for epsilon in pure
    ]
    if together > 0:
        # Gaussian mechanisms compose to one whose squared distance is the sum of theirs.
        parts.append(pld.from_gaussian_mechanism(1 / together, **grid))
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return float(total.get_epsilon_for_delta(delta))
