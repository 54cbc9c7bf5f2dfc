"""Generators run in an environment of their own: of this project only GEM is imported.

    python -I experiments/generators/worker.py

Reads one JSON object a line and answers each with one. ``{"do": "fit", "mechanism": "MST",
"table": PARQUET, "levels": {COLUMN: number of codes, or null}, "epsilon": 1.0, "settings": {}}``
fits a table of codes; a column without levels holds numbers in [-1, 1]. ``{"do": "sample",
"rows": 10, "table": PARQUET}`` writes such a table. Answers are ``{"done": {...}}`` with what was
run and what it cost, or ``{"failed": "..."}``, which tells the kind of an error and its place but
never its text: a library's may quote rows. What the libraries print goes to stderr.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd

PACKAGES = (
    "smartnoise-synth",
    "smartnoise-sql",
    "mbi",
    "jax",
    "torch",
    "opacus",
    "opendp",
    "numpy",
    "pandas",
    "scipy",
)


# ------------------------------------------------------------------------------- tables of counts


class Drawn:
    """A fitted model that draws each row by itself, from the joint distribution that was fitted.

    mbi 1.1.0 has two faults here. By default it lines the children of one column up by the order
    of rows, so that their joint distribution is badly off; and it takes the measured tables as
    the neighbours of a column, which is wrong where their graph has cycles. Both are gone with
    independent draws and potentials of the junction tree's own cliques.
    """

    def __init__(self, model):
        self._model = _expanded(model)

    def synthetic_data(self, rows):
        """What the synthesizers of SmartNoise call."""
        return self._model.synthetic_data(rows=rows, method="sample")


def _expanded(model):
    """The same distribution, its potentials those of a triangulated graph's cliques."""
    from mbi import MarkovRandomField, junction_tree, marginal_oracles

    potentials = model.potentials
    while True:
        tree, _ = junction_tree.make_junction_tree(model.domain, potentials.cliques)
        nodes = list(tree.nodes)
        if set(nodes) == set(potentials.cliques):
            break
        # A graph once triangulated may still gain edges by a greedy order of elimination.
        potentials = potentials.expand(nodes)
    marginals = marginal_oracles.message_passing_stable(potentials, model.total)
    return MarkovRandomField(potentials=potentials, marginals=marginals, total=model.total)


def _cube(levels):
    """A fitted transformer of codes: its values are the public ones, not those met in the rows."""
    from snsynth.transform import LabelTransformer, TableTransformer

    made = TableTransformer([LabelTransformer(nullable=False) for _ in levels])
    made.fit(_all_codes(levels))
    return made


def _all_codes(levels):
    """Rows that show every code of every column, and nought for a number."""
    rows = np.arange(max(count or 1 for count in levels.values()))
    return pd.DataFrame({n: rows % count if count else 0.0 * rows for n, count in levels.items()})


def _fit_counts(make, table, request):
    """A mechanism that measures tables of counts, drawn from as it was fitted."""
    delta = 1 / len(table) ** 2
    made = make(epsilon=request["epsilon"], delta=delta, **request["settings"])
    made.fit(table, transformer=_cube(request["levels"]))
    pairs = [sorted(c) for c in made.synthesizer.cliques if len(c) == 2]
    made.synthesizer = Drawn(made.synthesizer)
    return made, {"delta": delta, "pairs": len(pairs)}


def fit_mst(table, request):
    """McKenna's maximum spanning tree."""
    from snsynth.mst import MSTSynthesizer

    return _fit_counts(MSTSynthesizer, table, request)


def fit_aim(table, request):
    """McKenna's adaptive and iterative mechanism."""
    from snsynth.aim import AIMSynthesizer

    return _fit_counts(AIMSynthesizer, table, request)


# ----------------------------------------------------------------------------------------- GANs


def _mixed(levels):
    """A fitted transformer: one column per code, numbers as they are."""
    from snsynth.transform import (
        ChainTransformer,
        LabelTransformer,
        MinMaxTransformer,
        OneHotEncoder,
        TableTransformer,
    )

    # Bounds of nought would count as missing: numbers come in [-1, 1].
    made = TableTransformer(
        [
            ChainTransformer([LabelTransformer(nullable=False), OneHotEncoder()])
            if count
            else MinMaxTransformer(lower=-1.0, upper=1.0, nullable=False)
            for count in levels.values()
        ]
    )
    made.fit(_all_codes(levels))
    return made


def spent(rows, epochs, sigma, delta, batch=500):
    """Epsilon by DPCTGAN's own accountant: two noisy steps per batch, on rows drawn at random."""
    from opacus import privacy_analysis

    alphas = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    steps = 2 * epochs * max(rows // batch, 1)
    divergence = privacy_analysis.compute_rdp(batch / rows, sigma, steps, alphas)
    return float(privacy_analysis.get_privacy_spent(alphas, divergence, delta)[0])


def quietest(rows, epochs, epsilon, delta):
    """The smallest noise, in hundredths, that keeps so many epochs under epsilon."""
    low, high = 20, 10_000
    while low < high:
        middle = (low + high) // 2
        if spent(rows, epochs, middle / 100, delta) <= epsilon:
            high = middle
        else:
            low = middle + 1
    return high / 100


def fit_dpctgan(table, request):
    """A conditional GAN whose discriminator learns with noisy gradients.

    The library's check stands before each epoch, so that it overshoots its epsilon; here the
    number of epochs is given and the noise is what keeps them under it.
    """
    from snsynth.pytorch.nn.dpctgan import DPCTGAN

    settings = dict(request["settings"])
    delta = 1 / len(table) ** 1.5
    settings["sigma"] = quietest(len(table), settings["epochs"], request["epsilon"], delta)
    made = DPCTGAN(epsilon=request["epsilon"], delta=delta, cuda=False, **settings)
    made.fit(table, transformer=_mixed(request["levels"]))
    ran = len(made.loss_d_list)
    told = {"delta": delta, "epochs": ran, "sigma": settings["sigma"]}
    return made, told | {"epsilon_spent": spent(len(table), ran, settings["sigma"], delta)}


def fit_patectgan(table, request):
    """A conditional GAN taught by votes of teachers."""
    from snsynth.pytorch.nn.patectgan import PATECTGAN

    delta = 1 / len(table) ** 1.5
    made = PATECTGAN(epsilon=request["epsilon"], delta=delta, cuda=False, **request["settings"])
    made.fit(table, transformer=_mixed(request["levels"]))
    return made, {"delta": delta, "teachers": made.num_teachers}


def fit_gem(table, request):
    """Liu, Vietri and Wu's generator network: this project's own."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # -I leaves the project out
    from experiments.generators import gem

    settings = gem.Settings(**request["settings"])
    levels = list(request["levels"].values())
    made = gem.fit(table.to_numpy(), levels, epsilon=request["epsilon"], settings=settings)
    return made, dict(made.record)


FITS = {
    "GEM": fit_gem,
    "MST": fit_mst,
    "AIM": fit_aim,
    "DPCTGAN": fit_dpctgan,
    "PATECTGAN": fit_patectgan,
}


# ------------------------------------------------------------------------------------ the protocol


def _versions():
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cost(wall, cpu):
    return {
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _sample(made, request):
    found = made.sample(request["rows"])
    found = pd.DataFrame(found).set_axis(list(request["names"]), axis="columns")
    if len(found) != request["rows"]:
        raise RuntimeError("wrong number of rows")
    found.to_parquet(request["table"])


def serve(requests, answer):
    """Do what is asked, line by line."""
    made, names = None, []
    for line in requests:
        request = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            if request["do"] == "fit":
                table = pd.read_parquet(request["table"])
                names = list(table.columns)
                if request["mechanism"].endswith(("GAN", "GEM")):
                    import torch

                    torch.set_num_threads(1)
                made, told = FITS[request["mechanism"]](table, request)
                told = {k: v for k, v in told.items() if not _is_broken(v)}
                done = told | {"versions": _versions()}
            else:
                _sample(made, request | {"names": names})
                done = {}
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}"
            answer({"failed": f"{type(error).__name__} in {where}"})
        else:
            answer({"done": done | _cost(wall, cpu)})


def _is_broken(value):
    return isinstance(value, float) and not math.isfinite(value)


def main():
    """Keep the real stdout for answers: the libraries print to it."""
    real = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def answer(content):
        real.write(json.dumps(content) + "\n")
        real.flush()

    serve(sys.stdin, answer)


if __name__ == "__main__":
    main()
