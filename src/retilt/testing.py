"""For tests and experiments only: answers with seeded noise, which are *not* private."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from retilt.pipeline import chosen_of, fit_for, refuse_chosen, sums_of
from retilt.privacy.answers import Answers, make_answers
from retilt.privacy.plan import Plan
from retilt.privacy.selection import Choice


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
        ``False`` gives the exact answers, of the measures with the highest scores where the plan
        has some to choose.
    """
    refuse_chosen(plan)
    draw = partial(_highest, rng=rng if noise else None)
    plan, sums = chosen_of(plan, sums_of(fit_for(private, plan), plan), draw)
    if noise:
        scales = np.array(plan.noise.scales)
        drawn = rng.laplace(0, scales) if plan.noise.norm == 1 else rng.normal(0, scales)
        sums = [s + int(z) for s, z in zip(sums, np.rint(drawn), strict=True)]
    return make_answers(plan, sums, private=False)


def _highest(scores: Sequence[int], choice: Choice, *, rng: np.random.Generator | None) -> int:
    """The place of the highest score, with noise if there is any."""
    noisy = np.array(scores, dtype=np.float64)
    if rng is not None:
        draw = rng.gumbel if choice.concentrated else rng.exponential
        noisy = noisy + choice.scale * draw(size=len(noisy))
    return int(np.argmax(noisy))
