"""Draws from a known model whose graph is a cycle, in the generators' environment.

    python -I tests/experiments/cycle.py experiments/generators/worker.py

Prints the total variation distance of 20,000 rows from the model, as JSON: drawn by the worker, and
by mbi's own call in both of its ways. Four columns of three values, each coupled to the next and
the last to the first.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
from mbi import CliqueVector, Domain, Factor, MarkovRandomField, marginal_oracles

ROWS = 20_000
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

domain = Domain("abcd", (3, 3, 3, 3))
cliques = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]
coupling = 2.0 * np.eye(3)
factors = {clique: Factor(domain.project(clique), coupling) for clique in cliques}
potentials = CliqueVector(domain, cliques, factors)
marginals = marginal_oracles.message_passing_stable(potentials, ROWS)
model = MarkovRandomField(potentials=potentials, marginals=marginals, total=ROWS)

inside = np.einsum("ab,bc,cd,ad->abcd", *[np.exp(coupling)] * 4)
exact = inside / inside.sum()


def distance(drawn):
    """From the model, all four columns together."""
    codes = drawn.df[list("abcd")].to_numpy().astype(int)
    shares = np.zeros((3, 3, 3, 3))
    np.add.at(shares, tuple(codes.T), 1 / ROWS)
    return float(np.abs(shares - exact).sum() / 2)


drawn = {
    "worker": worker.Drawn(model).synthetic_data(ROWS),
    "sample": model.synthetic_data(ROWS, method="sample"),
    "round": model.synthetic_data(ROWS, method="round"),
}
print(json.dumps({name: distance(rows) for name, rows in drawn.items()}))
