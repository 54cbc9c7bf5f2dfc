"""Make a synthetic table agree with the statistics its user cares about.

>>> import retilt as rt
>>> rt.correlation(["age", "income"]).columns
('age', 'income')

Public names load on first use, so that ``import retilt`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from retilt._version import __version__

if TYPE_CHECKING:
    from retilt.evaluation import Evaluation, evaluate
    from retilt.exceptions import RetiltError
    from retilt.fitting import fit
    from retilt.measures.workload import (
        Workload,
        correlation,
        load_workload,
        marginal,
        marginals,
        moments,
    )
    from retilt.pipeline import Result, measure, plan, postprocess, top_correlated
    from retilt.privacy.answers import Answers, load_answers
    from retilt.privacy.budget import ZCDP, ApproxDP, Generator, PureDP
    from retilt.privacy.plan import Plan, load_plan
    from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow
    from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric, Schema
    from retilt.tilt import Tilt, load_tilt
    from retilt.tilting.paper import Paper
    from retilt.tilting.solution import Status

_HOME = {
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "RetiltError": "exceptions",
    "Workload": "measures.workload",
    "correlation": "measures.workload",
    "load_workload": "measures.workload",
    "marginal": "measures.workload",
    "marginals": "measures.workload",
    "moments": "measures.workload",
    "Result": "pipeline",
    "measure": "pipeline",
    "plan": "pipeline",
    "postprocess": "pipeline",
    "top_correlated": "pipeline",
    "Answers": "privacy.answers",
    "load_answers": "privacy.answers",
    "ApproxDP": "privacy.budget",
    "Generator": "privacy.budget",
    "PureDP": "privacy.budget",
    "ZCDP": "privacy.budget",
    "Plan": "privacy.plan",
    "load_plan": "privacy.plan",
    "AddRemoveOneRow": "privacy.unit",
    "ReplaceOneRow": "privacy.unit",
    "Boolean": "schema.columns",
    "Categorical": "schema.columns",
    "Datetime": "schema.columns",
    "Numeric": "schema.columns",
    "Schema": "schema.columns",
    "Tilt": "tilt",
    "Paper": "tilting.paper",
    "fit": "fitting",
    "load_tilt": "tilt",
    "Status": "tilting.solution",
}

__all__ = [
    "ZCDP",
    "AddRemoveOneRow",
    "Answers",
    "ApproxDP",
    "Boolean",
    "Categorical",
    "Datetime",
    "Evaluation",
    "Generator",
    "Numeric",
    "Paper",
    "Plan",
    "PureDP",
    "ReplaceOneRow",
    "Result",
    "RetiltError",
    "Schema",
    "Status",
    "Tilt",
    "Workload",
    "__version__",
    "correlation",
    "evaluate",
    "fit",
    "load_answers",
    "load_plan",
    "load_tilt",
    "load_workload",
    "marginal",
    "marginals",
    "measure",
    "moments",
    "plan",
    "postprocess",
    "top_correlated",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"retilt.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'retilt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
