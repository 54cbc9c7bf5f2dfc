"""The figures of docs/mathematics.md, on the demo's data.

    python -m experiments.figures docs/figures

The private table is public data (UCI Adult), so the truth can be shown. The noise is seeded
(``retilt.testing.insecure_measure``), so that the figures come out the same again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

import retilt as rt
from retilt.candidates import Candidates
from retilt.data import demo_files
from retilt.engines.local import open_table
from retilt.measures.base import FloatArray, Products
from retilt.schema.formats import load_declared
from retilt.testing import insecure_measure
from retilt.tilting import Covariance, Problem, Solution, fit_at
from retilt.tilting.denoise import denoise
from retilt.tilting.fold import Rows
from retilt.tilting.paper import Paper, fit_paper
from retilt.tilting.reduction import reduce
from retilt.tilting.solvers.compositional_sgd import CompositionalSGD

EPSILON = 0.2
DRAWS = 20
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "retilt",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BLUE, RED, GREY = "#1b6ca8", "#c0392b", "#7f8c8d"


def save(figure: Figure, path: Path) -> None:
    """As an SVG that has no date in it."""
    FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None})


class Demo:
    """The demo's job, with the truth beside it."""

    def __init__(self) -> None:
        with demo_files() as data:
            self.private = open_table(data.private, private=True)
            self.synthetic = open_table(data.synthetic)
            self.declared = load_declared(data.schema)
        self.columns = rt.top_correlated(self.synthetic, "income", top=5, schema=self.declared)

    def plan(self, basis: Any, columns: list[str], epsilon: float) -> rt.Plan:
        """Ask for the correlations of some columns."""
        return rt.plan(
            self.synthetic,
            rt.correlation(columns),
            epsilon=epsilon,
            rows=self.private.rows,
            schema=self.declared,
            basis=basis,
        )


def weighted_gain(plan: rt.Plan, truth: FloatArray, solution: Solution) -> float:
    """The paper's utility improvement of the weighted table, before any sampling."""
    statistics = [plan.queries.evaluate(m) for m in (solution.before, solution.after)]
    before, after = (float(np.abs(s - truth).sum()) for s in statistics)
    return 1 - after / before


def curve(
    demo: Demo, basis: Any, fits: list[Callable[[Problem], Solution]]
) -> tuple[FloatArray, FloatArray]:
    """Mean effective sample share and gain of each fit over the draws of the noise."""
    plan = demo.plan(basis, demo.columns, EPSILON)
    rng = np.random.default_rng(0)
    exact = insecure_measure(demo.private, plan, rng=rng, noise=False)
    truth = plan.queries.evaluate(exact.means)
    found = np.zeros((2, DRAWS, len(fits)))
    for draw in range(DRAWS):
        answers = insecure_measure(demo.private, plan, rng=np.random.default_rng(draw))
        problem = Candidates.of(demo.synthetic, answers, None).problem
        for number, fit in enumerate(fits):
            solution = fit(problem)
            found[0, draw, number] = solution.ess / problem.rows
            found[1, draw, number] = weighted_gain(plan, truth, solution)
    shares, gains = found.mean(axis=1)
    return shares, gains


def trade_off(demo: Demo, path: Path) -> None:
    """What eta, gamma and the basis each do to the gain, and what they cost in rows."""
    etas = np.geomspace(1e6, 0.01, 32)
    gammas = np.geomspace(0.1, 1e-5, 24)
    ours = [lambda problem, eta=eta: fit_at(problem, eta) for eta in etas]
    box = [
        lambda problem, gamma=gamma: fit_paper(
            problem, Paper(solver="exact", tolerance=gamma), norm=2
        )
        for gamma in gammas
    ]
    figure = Figure(figsize=(6.4, 3.4))
    axes = figure.add_axes((0.11, 0.15, 0.86, 0.8))
    for basis, fits, colour, dashes, label in (
        ("centred", ours, BLUE, "-", "η, centred basis (default)"),
        ("centred", box, BLUE, "--", "γ, centred basis"),
        ("paper", ours, RED, "-", "η, paper's basis"),
        ("paper", box, RED, "--", "γ, paper's basis"),
    ):
        shares, gains = curve(demo, basis, fits)  # type: ignore[arg-type]
        axes.plot(shares, gains, dashes, color=colour, label=label)
        if fits is box:
            axes.plot(shares[-1], gains[-1], "o", color=colour, markersize=5)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.invert_xaxis()
    axes.set_xlabel("effective sample size, share of the rows")
    axes.set_ylabel("utility improvement")
    axes.legend(frameon=False, loc="best")
    save(figure, path)


def denoising(path: Path) -> None:
    """Multipliers of one column measured as x and x squared, with and without denoising."""
    bits = (np.random.default_rng(0).random(2000) < 0.3) * 1.0
    design = Products(bits[:, None], np.array([0, 0]), np.array([-1, 0]), np.zeros(2), np.ones(2))
    noisy = Problem((design,), np.array([0.31, 0.322]), Covariance(np.full(2, 9e-6)), np.ones(2000))
    met = replace(noisy, answers=denoise(noisy, "qp").answers)
    figure = Figure(figsize=(6.4, 2.8))
    axes = figure.add_axes((0.11, 0.18, 0.86, 0.77))
    for problem, colour, what in ((noisy, RED, "noisy"), (met, BLUE, "denoised")):
        for gamma, dashes in ((0.0, "-"), (1e-5, "--")):
            rows = Rows.of(problem)
            reduced = reduce(problem, rows, problem.answers)
            solver = CompositionalSGD(gamma, 200, 256, 2, np.random.default_rng(0))
            state = solver.init(reduced, 0.0, np.zeros(2))
            sizes = [0.0]
            for _ in range(200):
                state = solver.step(reduced, 0.0, state)
                sizes.append(float(np.abs(state.multipliers).max()))
            axes.plot(sizes, dashes, color=colour, label=f"{what} answers, γ = {gamma:g}")
    axes.set_xlabel("epochs")
    axes.set_ylabel("largest multiplier")
    axes.legend(frameon=False)
    save(figure, path)


def bases(demo: Demo, path: Path) -> None:
    """Median expected standard error of a correlation against the number of columns."""
    names = [demo.columns[0], *(n for n in demo.synthetic.names if n != demo.columns[0])]
    counts = list(range(2, len(names) + 1))
    figure = Figure(figsize=(6.4, 2.8))
    axes = figure.add_axes((0.13, 0.18, 0.84, 0.77))
    for basis, colour in (("paper", RED), ("centred", BLUE)):
        errors = []
        for count in counts:
            plan = demo.plan(basis, names[:count], 1.0)
            errors.append(float(np.nanmedian(np.array(plan.expected, dtype=float))))
        axes.plot(counts, errors, "o-", color=colour, markersize=3, label=f"{basis} basis")
    axes.set_yscale("log")
    axes.set_xlabel("columns")
    axes.set_ylabel("standard error of a correlation")
    axes.legend(frameon=False)
    save(figure, path)


def main(folder: str) -> None:
    """Make all figures."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    demo = Demo()
    with rc_context(STYLE):
        bases(demo, target / "bases.svg")
        denoising(target / "denoising.svg")
        trade_off(demo, target / "trade-off.svg")


if __name__ == "__main__":
    main(sys.argv[1])
