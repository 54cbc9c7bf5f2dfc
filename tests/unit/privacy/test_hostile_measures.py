"""Plans, tilts, workloads and published files with hostile measures: refused quickly, or harmless.

What an edited plan may do is to ask for something else. It can never ask for less noise: the
sensitivity of whatever it asks is held to by brute force here.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import retilt as rt
from retilt import cli
from retilt.exceptions import FormatError, InputError, RetiltError, WorkloadError
from retilt.measures.base import Relation
from retilt.measures.formats import load_workload
from retilt.measures.workload import MAX_MEASURES
from retilt.pipeline import exact_sums
from retilt.privacy.plan import load_plan, plan_from_dict

SCHEMA: dict[str, Any] = {
    "age": rt.Numeric(0, 4, integer=True),
    "pay": rt.Numeric(-1.0, 1.0),
    "sex": rt.Categorical(("F", "M")),
}
TABLE = pa.table(
    {
        "age": [0, 1, 2, 3, 4, 0, 1, 2],
        "pay": [-1.0, 0.5, 0.25, 1.0, 0.0, 0.75, -0.5, 0.125],
        "sex": ["F", "M", "M", "F", "F", "M", "F", "M"],
    }
)
WORKLOAD = (
    rt.share("age >= 2")
    + rt.share("pay > 0", by=["sex", "age"], bins={"age": [2]})
    + rt.query("age * pay", -4, 4)
    + rt.means(["age", "pay"], by="sex", where="pay > -1")
    + rt.means("pay", where="age > 1")
    + rt.correlation(["age", "pay"], by="sex")
    + rt.regression("pay", ["age"], where="sex = 'F'")
    + rt.cdf("age", [1, 3])
    + rt.quantiles("pay", [0.25, 0.5], bins=[0.0, 0.5])
    + rt.keep(rt.share("age = 1") + rt.marginals(["sex"]), tolerance=0.01)
)
UNITS: list[Any] = ["replace-one", rt.ReplaceOnePerson("who", 2)]


def made(unit: Any = "replace-one", **options: Any) -> dict[str, Any]:
    plan = rt.plan(TABLE, WORKLOAD, epsilon=1.0, rows=8, unit=unit, schema=SCHEMA, **options)
    content: dict[str, Any] = json.loads(json.dumps(plan.to_dict()))
    return content


PLAN = made()
PRIVATE = TABLE.append_column("who", pa.array(["p", "q", "p", "r", "s", "", "t", "q"]))


def edited(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value changed; ``path`` is dotted, with numbers for places in lists."""
    copied = copy.deepcopy(content)
    at: Any = copied
    *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    for step in steps:
        at = at[step]
    at[last] = value
    return copied


def refused(content: Any, action: Callable[[Any], object] = plan_from_dict) -> str:
    """The error's message: ours, short and soon."""
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        action(content)
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert 0 < len(message) < 1_500
    return message


def paths(content: Any, prefix: str = "") -> Iterator[str]:
    """Every place in a JSON value, of lists the first and the last."""
    ends = sorted({0, len(content) - 1})
    items: Any = content.items() if isinstance(content, dict) else [(i, content[i]) for i in ends]
    for key, value in items:
        yield f"{prefix}{key}"
        if isinstance(value, (dict, list)) and value:
            yield from paths(value, f"{prefix}{key}.")


ODD: list[Any] = [None, True, 0, -1, 1.5, "x", "", [], [[]], {}, {"a": 1}, [1, "a"], 10**400]
ODD += [math.nan, math.inf, -math.inf, 1e308, 5e-324, "1/3", "age", ["age"], "age > 1", "\ud800"]


@pytest.mark.parametrize("place", [*range(len(PLAN["measures"])), "guards", "unit"])
def test_any_value_of_any_wrong_kind(place: int | str) -> None:
    """Each place takes each odd value: refused as ours or used, never another error."""
    content = made(UNITS[1]) if place == "unit" else PLAN
    start = f"measures.{place}." if isinstance(place, int) else f"{place}."
    at = content["measures"][place] if isinstance(place, int) else content[place]
    for path in paths(at, start):
        for value in ODD:
            try:
                plan = plan_from_dict(edited(content, path, value))
                rt.measure(PRIVATE, plan).statistics_table()
            except RetiltError as error:
                assert 0 < len(str(error)) < 1_500
            except Exception as error:
                pytest.fail(f"{path} = {str(value)[:30]}: {type(error).__name__}: {error}")
