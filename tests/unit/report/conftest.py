from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retilt.report import Correlations, Facts
from retilt.tilting.solution import PathPoint

PRIVACY = {
    "unit": "replace-one",
    "post_processing": {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6},
    "generator": {"kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6, "unit": "add-remove"},
    "total": {"kind": "approx-dp", "epsilon": 7.0, "delta": 2.3e-5},
    "mechanism": "discrete-gaussian",
    "sensitivity": 5.7,
    "statement": "The answers spend (ε = 1, δ = 1e-6)-DP of the private table.",
}


def statistic(name: str, before: float, after: float, **others: Any) -> dict[str, Any]:
    row = {"statistic": name, "before": before, "target": 0.2, "standard_error": 0.01}
    return {**row, "after": after, "reachable": True, **others}


def point(eta: float, misfit: float, **others: Any) -> PathPoint:
    values: dict[str, Any] = {
        "eta": eta,
        "misfit": misfit,
        "sure": 10 * misfit + 1,
        "ess": 900.0,
        "floor": 20.0,
        "trace": 1.0,
        "predicted_error": 0.1,
        "rows": 1000,
    }
    return PathPoint(**{**values, **others})


def square(names: tuple[str, ...], value: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    matrix = np.full((len(names), len(names)), value)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def correlations(names: tuple[str, ...]) -> Correlations:
    return Correlations(names, square(names, 0.1), square(names, 0.2), square(names, 0.21))


def whole() -> Facts:
    """With a path and correlations, whose pictures take the most time."""
    return facts(
        correlations=[correlations(("age", "income", "hours, weekly"))],
        path=[point(np.inf, 80.0, trace=0.0), point(100.0, 9.0), point(1.0, 0.9, chosen=True)],
    )


@pytest.fixture(scope="session")
def whole_facts() -> Facts:
    return whole()


@pytest.fixture
def make() -> Callable[..., Facts]:
    return facts


def facts(**changes: Any) -> Facts:
    names = ("age", "income", "hours, weekly")
    weights = np.random.default_rng(0).lognormal(0, 0.3, 1000)
    values: dict[str, Any] = {
        "rows": 1000,
        "queries": 10,
        "method": "Default: the trade-off of the smallest risk estimate.",
        "status": "converged",
        "advice": "The weights follow the answers as far as their noise allows.",
        "success": True,
        "misfit_before": 80.0,
        "misfit_after": 0.9,
        "ess": 912.3,
        "certificate": {"gap": 1e-13, "kkt_residual": 2e-9},
        "statistics": [
            statistic("corr(age, income)", 0.1, 0.21),
            statistic("corr(age, hours, weekly)", 0.1, 0.2),
            statistic("corr(income, hours, weekly)", 0.19, 0.2),
        ],
        "limit": 3.0,
        "unmet": [],
        "unmet_before": ["corr(age, income)", "corr(age, hours, weekly)"],
        "correlations": [],
        "weights": weights / weights.mean(),
        "path": [],
        "notes": ["Bounds of age were declared."],
        "private": True,
        "privacy": PRIVACY,
        "columns": [
            {"name": n, "kind": "numeric", "values": "0 to 90", "source": "declared"} for n in names
        ],
        "versions": {"retilt": "0.1.0"},
    }
    if "weights" in changes:
        changes = {"rows": len(changes["weights"]), **changes}
    return Facts(**{**values, **changes})
