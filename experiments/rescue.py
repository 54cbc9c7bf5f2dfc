"""What ``support="mix"`` does: GAN files whose rows cannot reach the answers, and good files.

    python -m experiments.rescue --runs 5

As :mod:`experiments.uci` (five columns, epsilon 1, public bounds, sampled to as many rows as the
synthetic table has), with and without candidate rows whose measured columns are redrawn; and in
addition the F1 score, on the real test split, of a logistic regression that was trained on the
table. The target is 0 or 1, the positive class ``>50K``; the model is the one of SDMetrics'
BinaryLogisticRegression: one-hot encoding, mean imputation, robust scaling, balanced classes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import retilt as rt
from experiments.published import DATA
from experiments.uci import Case, load_split, marginal_distance

FILES = (
    "dpctgan-eps1-seed0",
    "patectgan-eps1-seed0",
    "dpctgan-eps3-seed0",
    "patectgan-eps3-seed0",
    "aim-eps1-seed0",
    "mst-eps1-seed0",
)
TARGET, POSITIVE = "income", ">50K"
SUPPORTS = (None, "mix")


def f1(train: pd.DataFrame, test: pd.DataFrame) -> float:
    """F1 score on ``test`` of a logistic regression on ``train``; 0 if that has one class."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    truth, known = (t[TARGET].astype(str) == POSITIVE for t in (test, train))
    if known.nunique() < 2:
        return 0.0
    features = pd.get_dummies(train.drop(columns=TARGET)).astype(float)
    others = pd.get_dummies(test.drop(columns=TARGET)).astype(float)
    model = make_pipeline(
        SimpleImputer(), RobustScaler(), LogisticRegression(class_weight="balanced", max_iter=50)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 50 steps are the definition
        model.fit(features, known)
    guess = model.predict(others.reindex(columns=features.columns, fill_value=0.0))
    return float(f1_score(truth, guess))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    test = load_split("adult", options.data)[1]
    head = "file|support|improvement|JS before|JS|F1 before|F1|copies' weight|ESS|CPU s|status"
    print(f"|{head}|\n|{'---|' * (head.count('|') + 1)}")
    for file in options.files:
        path = options.data / "adult" / "synthetic" / f"{file}.csv.gz"
        case = Case.of("adult", path, options.data)
        plan = rt.plan(
            case.synthetic,
            rt.correlation(case.columns, clip={}),
            epsilon=options.epsilon,
            rows=len(case.real),
            schema=case.declared,
        )
        before = marginal_distance(case.real, case.synthetic, case.schema)
        first = f1(case.synthetic, test)
        released = [rt.measure(case.real, plan) for _ in range(options.runs)]
        for support in SUPPORTS:
            found, statuses = [], []
            for seed, answers in enumerate(released):
                began = time.process_time()
                tilt = rt.fit(case.synthetic, answers, support=support, seed=seed)
                seconds = time.process_time() - began
                post = tilt.sample(seed=seed)
                score = rt.evaluate(
                    case.real, case.synthetic, post, columns=case.columns, schema=case.declared
                )
                distance = marginal_distance(case.real, post, case.schema)
                share = tilt.support_share
                found.append(
                    (score.raw.improvement, distance, f1(post, test), share, tilt.ess, seconds)
                )
                statuses.append(tilt.status.value)
            gain, js, last, share, ess, seconds = np.mean(found, axis=0)
            spread = np.std(found, axis=0)[0]
            print(
                f"|{file}|{support}|{gain:.3f} ± {spread:.3f}|{before:.3f}|{js:.3f}|{first:.3f}"
                f"|{last:.3f}|{share:.3f}|{ess:,.0f}|{seconds:.1f}"
                f"|{' '.join(sorted(set(statuses)))}|",
                flush=True,
            )


if __name__ == "__main__":
    main()
