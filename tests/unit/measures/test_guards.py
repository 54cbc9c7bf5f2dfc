"""Guards: which queries are held, how far they may move, what a file says of them."""

from __future__ import annotations

import numpy as np
import pytest

import retilt as rt
from retilt.exceptions import FormatError
from retilt.measures.base import Terms
from retilt.measures.formats import guards_from_dict, guards_to_dict
from retilt.measures.guards import Guard, Guards
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments
from retilt.measures.queries import QuerySet
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema({"sex": Categorical(("F", "M")), "age": Numeric(0, 100), "pay": Numeric(0, 10)})
SEX = Marginal(("sex",))
BOTH = Moments(("age", "pay"))


def test_what_is_measured_is_not_held() -> None:
    guards = Guards((Guard(SEX), Guard(BOTH)), SCHEMA)
    terms = Terms(SCHEMA)
    none = guards.held(())
    assert none.all()
    measured = set(QuerySet((SEX.bind(terms), Moments(("age",), order=1).bind(terms))).keys)
    held = guards.held(measured)
    assert not held[:4].any()  # the table of sex: F, M, other, null
    assert held[4:].tolist() == [False, True, True, True, True]  # all but the mean of age


def test_a_table_is_held_whole_or_not_at_all() -> None:
    guards = Guards((Guard(SEX),), SCHEMA)
    (first, *_) = guards.queries.keys
    assert not guards.held({first}).any()


def test_deviations_are_the_sampling_error_or_as_told() -> None:
    means = np.array([0.25, 0.75, 0.0, 0.0, *np.zeros(5)])
    guards = Guards((Guard(SEX), Guard(BOTH)), SCHEMA)
    found = guards.deviations(means, 10_000)
    np.testing.assert_allclose(found[:2], np.sqrt(0.25 * 0.75 / 10_000))
    np.testing.assert_allclose(found[2:4], 1 / 10_000)  # of one row
    np.testing.assert_allclose(found[4:], 0.01)
    told = Guards((Guard(SEX, 0.5), Guard(BOTH, 0.25)), SCHEMA).deviations(means, 10_000)
    assert told.tolist() == [0.5] * 4 + [0.25] * 5


def test_a_file_gives_them_back() -> None:
    guards = Guards(
        (
            Guard(Marginal(("age",), edges={"age": (30.0,)}), 0.1),
            Guard(Marginal(("sex",), edges={})),
        ),
        SCHEMA,
    )
    assert guards_from_dict(guards_to_dict(guards)) == guards
    assert guards_from_dict(guards_to_dict(None)) is None


@pytest.mark.parametrize("wrong", [3, [], {}, {"schema": {}, "measures": []}])
def test_malformed_guards_are_refused(wrong: object) -> None:
    with pytest.raises(FormatError, match="guards"):
        guards_from_dict(wrong)


def test_keep_makes_them() -> None:
    (guard,) = rt.keep(rt.marginal(["sex"]), 0.1).guards
    assert guard == Guard(SEX, 0.1)
