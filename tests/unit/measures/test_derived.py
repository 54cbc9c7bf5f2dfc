"""Variables computed from a row: conditions and formulas in SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from retilt.exceptions import WorkloadError
from retilt.measures.base import Terms
from retilt.measures.derived import number, predicate
from retilt.measures.expressions import parse_number, parse_predicate
from retilt.measures.moments import MomentsBlock
from retilt.schema.columns import Boolean, Categorical, Numeric, Schema

SCHEMA = Schema({"age": Numeric(17, 90), "sex": Categorical(("F", "M"))})
TABLE = {
    "age": pa.chunked_array([[17, 70, None, 400, 53]]),
    "sex": pa.chunked_array([["F", "M", "F", None, "X"]]),
}


def test_a_condition_is_a_two_valued_variable_and_false_where_null() -> None:
    old = predicate(parse_predicate("age >= 65"), SCHEMA)
    assert old.column == Boolean()
    assert old.grid.encode(TABLE.__getitem__, 5).tolist() == [-1, 1, -1, 1, -1]
    assert old.cells().encode(TABLE.__getitem__, 5).tolist() == [0, 1, 0, 1, 0]
    assert len(old.cell_labels()) == 2  # never null


def test_a_formula_is_clamped_and_has_its_lower_bound_where_null() -> None:
    odd = number(parse_number("10 / (age - 17)"), SCHEMA, lower=0.25, upper=1.25)
    levels = odd.column.levels
    values = (odd.grid.encode(TABLE.__getitem__, 5) / levels + 1) / 2 + 0.25
    expected = [0.25, 0.25, 0.25, 0.25, 10 / 36]
    np.testing.assert_allclose(values, expected, atol=1e-4)


def test_equal_formulas_are_one_query_and_others_are_not() -> None:
    pairs = [("age>=65", "(age >= 65)", True), ("age >= 65", "age > 65", False)]
    for left, right, same in pairs:
        blocks = [
            MomentsBlock.linear((predicate(parse_predicate(text), SCHEMA),), Terms(SCHEMA))
            for text in (left, right)
        ]
        assert (blocks[0].keys == blocks[1].keys) is same


def test_a_formula_is_not_the_column_of_the_same_name() -> None:
    schema = Schema({"age": Numeric(17, 90), "age >= 65": Boolean()})
    formula = predicate(parse_predicate("age >= 65"), schema)
    terms = Terms(schema)
    from retilt.measures.moments import Moments

    column = Moments(("age >= 65",), order=1).bind(terms)
    assert MomentsBlock.linear((formula,), terms).keys != column.keys
    assert formula.grid != column.features[0]


def test_the_same_formula_with_other_bounds_is_another_query() -> None:
    formula = parse_number("age / 2")
    ends = [(0, 45), (0, 40), (5, 45)]
    keys = {
        MomentsBlock.linear((number(formula, SCHEMA, lower=a, upper=b),), Terms(SCHEMA)).keys
        for a, b in ends
    }
    assert len(keys) == len(ends)


@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 0), (1, 0), (0, float("inf")), (float("nan"), 1), ("0", 1), (True, 2)]
)
def test_bounds_are_ascending_finite_numbers(lower: object, upper: object) -> None:
    with pytest.raises(WorkloadError, match="expected"):
        number(parse_number("age"), SCHEMA, lower=lower, upper=upper)  # type: ignore[arg-type]


def test_kinds_that_do_not_fit_the_schema_are_refused() -> None:
    with pytest.raises(WorkloadError, match="joins"):
        predicate(parse_predicate("sex >= 65"), SCHEMA)
