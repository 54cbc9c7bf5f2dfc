"""What is done with a generator's table: nothing, the paper's method, ours, and what ours can do.

All measure the same correlations, of the target and the four columns most correlated with it on
the synthetic table (the paper's choice), once, at epsilon 1 and delta ``1 / n**2``, and sample as
many rows as there are real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

import retilt as rt
from experiments.suite.inputs import Case
from retilt.testing import insecure_measure

EPSILON = 1.0
FEATURES = 5
MANY_FEATURES = 10
"""Of Home Credit, as in the paper."""
LEAST = 100


@dataclass(frozen=True)
class Outcome:
    """A post-processed table.

    Attributes
    ----------
    table
        As many rows as there are real ones.
    ess
        Effective sample size as a share of these rows; of the rows themselves, 1.
    seconds
        CPU, of measuring, fitting and sampling.
    status
        How the fit ended; empty without one.
    """

    table: pd.DataFrame
    ess: float = 1.0
    seconds: float = 0.0
    status: str = ""


def features(case: Case) -> list[str]:
    """The columns whose correlations are aligned."""
    return list(
        rt.top_correlated(
            case.synthetic,
            case.data_set.target,
            top=MANY_FEATURES if case.mechanism == "GEM" else FEATURES,
            schema=case.schema,
        )
    )


def _aligned(
    case: Case,
    seed: int,
    *,
    columns: Sequence[str] | None = None,
    clip: Mapping[str, tuple[float, float]] | None = None,
    way: str = "default",
    support: str | None = None,
    more: bool = False,
    keep: rt.Workload | None = None,
) -> Outcome:
    rows = case.candidates if more else case.synthetic
    began = time.process_time()
    plan = rt.plan(
        case.synthetic,
        rt.correlation(columns or features(case), clip=clip),
        epsilon=EPSILON,
        rows=len(case.split.train),
        schema=case.schema,
        basis="paper" if way == "paper" else "centred",
    )
    answers = rt.measure(case.split.train, plan)
    tilt = rt.fit(rows, answers, method=way, support=support, keep=keep, seed=seed)  # type: ignore[arg-type]
    table = tilt.sample(len(case.split.train), seed=seed)
    seconds = time.process_time() - began
    return Outcome(table, tilt.ess / len(case.split.train), seconds, tilt.status.value)


def none(case: Case, seed: int) -> Outcome:
    """The generator with all of the budget; where there is no such table, as it is."""
    del seed
    whole = case.whole_table
    return Outcome(case.synthetic if whole is None else whole)


def same_file(case: Case, seed: int) -> Outcome:
    """The table that is post-processed."""
    del seed
    return Outcome(case.synthetic)


def paper(case: Case, seed: int) -> Outcome:
    """The paper's basis, denoising, Algorithm 1 and multinomial sampling."""
    return _aligned(case, seed, way="paper")


def retilt(case: Case, seed: int) -> Outcome:
    """Ours by default."""
    return _aligned(case, seed)


def retilt_mix(case: Case, seed: int) -> Outcome:
    """Ours with support rescue, over the public bounds, as ``retilt run --support mix`` does it."""
    return _aligned(case, seed, support="mix", clip={})


def retilt_mix_clip(case: Case, seed: int) -> Outcome:
    """The same within the bounds that a plan chooses on the synthetic table."""
    return _aligned(case, seed, support="mix")


def _every_column(case: Case) -> list[str]:
    target = case.data_set.target
    return [target, *(c for c in case.synthetic.columns if c != target)]


def retilt_all(case: Case, seed: int) -> Outcome:
    """Ours by default, asked for the correlations of all columns at the same budget."""
    return _aligned(case, seed, columns=_every_column(case))


def retilt_all_mix(case: Case, seed: int) -> Outcome:
    """The same with support rescue, over the public bounds."""
    return _aligned(case, seed, columns=_every_column(case), support="mix", clip={})


def retilt_more(case: Case, seed: int) -> Outcome:
    """Ours on all candidate rows that the generator made, several for each real one."""
    return _aligned(case, seed, more=True)


def retilt_keep(case: Case, seed: int) -> Outcome:
    """Ours with guards: what hangs together with the target, and every column's marginal.

    As far as it is not measured. F1 is about the target, and the tilt moves only what it asks for.
    """
    target = case.data_set.target
    aligned = features(case)
    others = [c for c in case.synthetic.columns if c not in aligned]
    kept = rt.keep(rt.correlation([target, *others])) + rt.keep("marginals")
    return _aligned(case, seed, keep=kept)


def optimum(case: Case, seed: int) -> Outcome:
    """The weights of these rows that come nearest to the true answers, whatever it takes.

    Answers without noise, nothing clamped, and an effective sample size of ``LEAST`` rows is
    enough. The sample that is drawn by them adds its own error.
    """
    train = case.split.train
    plan = rt.plan(
        case.synthetic,
        rt.correlation(features(case), clip={}),
        rho=1e4,
        rows=len(train),
        schema=case.schema,
    )
    answers = insecure_measure(train, plan, rng=np.random.default_rng(seed), noise=False)
    least = min(LEAST, len(case.synthetic) / 4)
    tilt = rt.fit(case.synthetic, answers, min_ess=least)
    return Outcome(
        tilt.sample(len(train), seed=seed), tilt.ess / len(train), 0.0, tilt.status.value
    )


METHODS: Mapping[str, Callable[[Case, int], Outcome]] = MappingProxyType(
    {
        "none": none,
        "same-file": same_file,
        "paper": paper,
        "retilt": retilt,
        "retilt-mix": retilt_mix,
        "retilt-mix-clip": retilt_mix_clip,
        "retilt-more": retilt_more,
        "retilt-keep": retilt_keep,
        "retilt-all": retilt_all,
        "retilt-all-mix": retilt_all_mix,
        "optimum": optimum,
    }
)
"""By the name that results have."""

ASKED_OF_ALL = ("retilt-keep", "retilt-all", "retilt-all-mix")
"""Those that ask something of every column."""

MOST_COLUMNS = 50
"""With which they are run: Home Credit's 105 take minutes each, and are then left as they are."""

FIXED = ("none", "same-file", "optimum")
"""Those that are the same in every repetition."""


def applies(method: str, case: Case) -> bool:
    """Whether a case has what a method needs: candidate rows, or not too many columns."""
    if method == "retilt-more":
        return len(case.candidates) > len(case.split.train)
    return method not in ASKED_OF_ALL or case.synthetic.shape[1] <= MOST_COLUMNS
