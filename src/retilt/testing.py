"""For tests and experiments only: answers with seeded noise, which are *not* private."""

from __future__ import annotations

from typing import Any

import numpy as np

from retilt.pipeline import exact_sums
from retilt.privacy.answers import Answers, make_answers
from retilt.privacy.plan import Plan


def insecure_measure(
    private: Any, plan: Plan, *, rng: np.random.Generator, noise: bool = True
) -> Answers:
    """Answers with noise from ``rng``: reproducible, and therefore not private.

    The noise is rounded continuous noise of the same scales. The answers carry
    ``private = False`` and every statement made from them says so.

    Parameters
    ----------
    rng
        Source of the noise.
    noise
        ``False`` gives the exact answers.
    """
    sums = exact_sums(private, plan)
    if noise:
        scales = np.array(plan.noise.scales)
        drawn = rng.laplace(0, scales) if plan.noise.norm == 1 else rng.normal(0, scales)
        sums = [s + int(z) for s, z in zip(sums, np.rint(drawn), strict=True)]
    return make_answers(plan, sums, private=False)
