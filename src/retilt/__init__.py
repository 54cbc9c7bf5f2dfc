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
    from retilt.auditing import Audit, audit
    from retilt.evaluation import Evaluation, evaluate
    from retilt.exceptions import BudgetError, LedgerError, RepeatedPlanWarning, RetiltError
    from retilt.fitting import fit
    from retilt.forecasting import Forecast, forecast
    from retilt.measures.formats import load_workload
    from retilt.measures.workload import (
        Workload,
        cdf,
        correlation,
        function,
        keep,
        marginal,
        marginals,
        means,
        moments,
        quantiles,
        query,
        regression,
        share,
    )
    from retilt.outlooks import Outlook, outlook
    from retilt.pipeline import Result, measure, postprocess
    from retilt.planning import plan, top_correlated
    from retilt.privacy.answers import Answers, load_answers
    from retilt.privacy.budget import ZCDP, ApproxDP, Generator, PureDP
    from retilt.privacy.ledger import Ledger
    from retilt.privacy.plan import Plan, load_plan
    from retilt.privacy.published import Published, load_published
    from retilt.privacy.unit import (
        AddRemoveOnePerson,
        AddRemoveOneRow,
        ReplaceOnePerson,
        ReplaceOneRow,
    )
    from retilt.rescue import Mix
    from retilt.schema.columns import Boolean, Categorical, Datetime, Numeric, Schema
    from retilt.tilt import Tilt, load_tilt
    from retilt.tilting.paper import Paper
    from retilt.tilting.solution import Status

_HOME = {
    "Audit": "auditing",
    "audit": "auditing",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "BudgetError": "exceptions",
    "LedgerError": "exceptions",
    "RepeatedPlanWarning": "exceptions",
    "RetiltError": "exceptions",
    "Forecast": "forecasting",
    "forecast": "forecasting",
    "Outlook": "outlooks",
    "outlook": "outlooks",
    "Workload": "measures.workload",
    "correlation": "measures.workload",
    "cdf": "measures.workload",
    "function": "measures.workload",
    "keep": "measures.workload",
    "means": "measures.workload",
    "quantiles": "measures.workload",
    "query": "measures.workload",
    "regression": "measures.workload",
    "share": "measures.workload",
    "load_workload": "measures.formats",
    "marginal": "measures.workload",
    "marginals": "measures.workload",
    "moments": "measures.workload",
    "Result": "pipeline",
    "measure": "pipeline",
    "plan": "planning",
    "postprocess": "pipeline",
    "top_correlated": "planning",
    "Answers": "privacy.answers",
    "load_answers": "privacy.answers",
    "ApproxDP": "privacy.budget",
    "Generator": "privacy.budget",
    "PureDP": "privacy.budget",
    "ZCDP": "privacy.budget",
    "Plan": "privacy.plan",
    "load_plan": "privacy.plan",
    "Ledger": "privacy.ledger",
    "Published": "privacy.published",
    "load_published": "privacy.published",
    "AddRemoveOnePerson": "privacy.unit",
    "AddRemoveOneRow": "privacy.unit",
    "ReplaceOnePerson": "privacy.unit",
    "ReplaceOneRow": "privacy.unit",
    "Mix": "rescue",
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
    "AddRemoveOnePerson",
    "AddRemoveOneRow",
    "Answers",
    "ApproxDP",
    "Audit",
    "Boolean",
    "BudgetError",
    "Categorical",
    "Datetime",
    "Evaluation",
    "Forecast",
    "Generator",
    "Ledger",
    "LedgerError",
    "Mix",
    "Numeric",
    "Outlook",
    "Paper",
    "Plan",
    "Published",
    "PureDP",
    "RepeatedPlanWarning",
    "ReplaceOnePerson",
    "ReplaceOneRow",
    "Result",
    "RetiltError",
    "Schema",
    "Status",
    "Tilt",
    "Workload",
    "__version__",
    "audit",
    "cdf",
    "correlation",
    "evaluate",
    "fit",
    "forecast",
    "function",
    "keep",
    "load_answers",
    "load_plan",
    "load_published",
    "load_tilt",
    "load_workload",
    "marginal",
    "marginals",
    "means",
    "measure",
    "moments",
    "outlook",
    "plan",
    "postprocess",
    "quantiles",
    "query",
    "regression",
    "share",
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
