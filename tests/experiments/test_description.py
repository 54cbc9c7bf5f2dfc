"""What the public knows of a table, and tables as codes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments.datasets import ALL, UCI, DataSet
from experiments.description import SCHEMAS, Description, Listed, Number
from experiments.published import Source

AGE = Number(15, 95, (15, 20, 30, 96), integer=True)
SHARE = Number(0, 0.2, (0.0, 1e-9, 0.1, 0.2, 0.21), integer=False)
TABLE = pd.DataFrame(
    {"age": [3, 19, 20, 40, 120], "share": [0.0, 0.05, 0.1, 0.2, 0.15], "sex": list("FMMFF")}
)
SAID = Description({"age": AGE, "share": SHARE, "sex": Listed(("F", "M"))})


def test_values_become_the_bins_that_hold_them_and_those_outside_the_nearest() -> None:
    codes = SAID.codes(TABLE)
    assert codes["age"].to_list() == [0, 0, 1, 2, 2]
    assert codes["share"].to_list() == [0, 1, 2, 3, 2]
    assert codes["sex"].to_list() == [0, 1, 1, 0, 0]


def test_codes_become_one_number_per_bin_of_the_columns_own_type() -> None:
    found = SAID.values_of(SAID.codes(TABLE))
    assert found["age"].to_list() == [17, 17, 24, 62, 62]
    assert found["share"].to_list() == [
        0.0,
        0.0500000005,
        0.15000000000000002,
        0.2,
        pytest.approx(0.15),
    ]
    assert found["sex"].to_list() == list("FMMFF")
    assert found.dtypes.to_list() == TABLE.dtypes.to_list()


def test_scaled_numbers_come_back_within_the_bounds() -> None:
    scaled = SAID.scaled(TABLE)
    assert scaled["age"].to_list() == [-1, -0.9, -0.875, -0.375, 1]
    found = SAID.unscaled(scaled)
    assert found["age"].to_list() == [15, 19, 20, 40, 95]
    assert found["share"].to_list() == TABLE["share"].to_list()
    assert found.dtypes.to_list() == TABLE.dtypes.to_list()
    wild = pd.DataFrame({"age": [-7.0, 2.0], "share": [-1.5, 9.0], "sex": [0, 1]})
    assert SAID.unscaled(wild)["age"].to_list() == [15, 95]


@pytest.mark.parametrize("way", ["codes", "scaled"])
def test_a_value_that_is_not_listed_is_refused_without_being_told(way: str) -> None:
    other = TABLE.assign(sex=["F", "M", "secret", "F", "M"])
    with pytest.raises(
        ValueError, match="'sex' holds values that its description does not list"
    ) as told:
        getattr(SAID, way)(other)
    assert "secret" not in str(told.value)
    with pytest.raises(ValueError, match="'sex' is missing"):
        getattr(SAID, way)(TABLE.drop(columns="sex"))


@pytest.mark.parametrize("data_set", ALL, ids=lambda d: d.name)
def test_every_number_is_cut_within_its_bounds(data_set: Source) -> None:
    columns = data_set.description().columns
    assert list(columns) == list(data_set.schema().entries)
    assert columns[data_set.target].levels == 2
    numbers = {n: c for n, c in columns.items() if isinstance(c, Number)}
    for name, number in numbers.items():
        assert (np.diff(number.edges) > 0).all(), name
        assert number.lower <= number.edges[0], name
        decoded = np.array(number.decoded)
        assert (decoded >= number.lower).all(), name
        assert (decoded <= number.upper).all(), name
        # The number that stands for a bin lies in it.
        assert number.codes(pd.Series(decoded)).tolist() == list(range(number.levels)), name


def test_home_credit_has_as_many_features_as_the_paper_says() -> None:
    (home_credit,) = (d for d in ALL if d.name == "home-credit")
    assert len(home_credit.description().columns) == 104 + 1


@pytest.mark.parametrize("data_set", UCI, ids=lambda d: d.name)
def test_the_schemas_are_those_of_the_published_synthetic_files(
    data_set: DataSet, shared: Path
) -> None:
    theirs = shared / "data" / data_set.folder / "schema.toml"
    assert (SCHEMAS / f"{data_set.folder}.toml").read_text() == theirs.read_text()


@pytest.mark.parametrize("folder", ["adult", "shopping"])
def test_the_bins_are_those_of_the_published_synthetic_files(folder: str, shared: Path) -> None:
    (data_set,) = (d for d in UCI if d.folder == folder)
    columns = data_set.description().columns
    told = (shared / "data" / folder / "README.md").read_text()
    lines = re.findall(r"^\* `(.+)`: edges (\[.*\]), decoded to (\[.*\])$", told, re.MULTILINE)
    assert len(lines) == sum(isinstance(c, Number) for c in columns.values())
    for name, edges, decoded in lines:
        column = columns[name]
        assert isinstance(column, Number)
        assert list(column.edges) == ast.literal_eval(edges)
        assert list(column.decoded) == ast.literal_eval(decoded)
