"""Statistics and their standard errors: against definitions, derivatives and simulation."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from retilt.measures.base import Block, Relation, Terms
from retilt.measures.marginals import Marginal
from retilt.measures.moments import Moments
from retilt.pipeline import exact_sums
from retilt.privacy.answers import make_answers
from retilt.privacy.budget import ApproxDP, Budget, PureDP
from retilt.privacy.plan import Plan
from retilt.privacy.unit import AddRemoveOneRow, ReplaceOneRow
from retilt.schema.columns import Categorical, Numeric, Schema

SCHEMA = Schema(
    {
        "x": Numeric(-100.0, 1.0),
        "y": Numeric(17, 90, integer=True),
        "sex": Categorical(("F", "M")),
        "code": Categorical(("a", "b", "c", "d")),
    }
)
REPLACE, ADD_REMOVE = Relation.REPLACE, Relation.ADD_REMOVE
ROWS = 3000


def people(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=ROWS)
    return pa.table(
        {
            "x": np.clip(-60 + 12 * (common + rng.normal(size=ROWS)), -100, 1),
            "y": np.clip(np.rint(40 + 9 * (common + rng.normal(size=ROWS))), 17, 90).astype(int),
            "sex": np.where(common + rng.normal(size=ROWS) > 0.6, "M", "F"),
            "code": np.array(list("abcd"))[np.clip(np.rint(common + 1.5), 0, 3).astype(int)],
        }
    )


TABLE = people()


def codes(table: pa.Table) -> dict[str, NDArray[np.float64]]:
    """Columns in their own units, categories as codes."""
    return {
        "x": table["x"].to_numpy(),
        "y": table["y"].to_numpy().astype(float),
        "sex": (table["sex"].to_numpy(zero_copy_only=False) == "M").astype(float),
        "code": np.searchsorted(list("abcd"), table["code"].to_numpy(zero_copy_only=False)).astype(
            float
        ),
    }


def answers_of(block: Block, table: pa.Table) -> NDArray[np.float64]:
    sums = block.sums([f.encode(table.__getitem__, 0) for f in block.features])
    return np.array([s / u / table.num_rows for s, u in zip(sums, block.units, strict=True)])


def moments_blocks() -> list[Block]:
    names = ("y", "sex", "x", "code")
    return [
        Moments(names, order=order, statistics=statistics, loudness=Fraction(1)).bind(
            Terms(  # type: ignore[arg-type]
                SCHEMA, basis=basis, norm=2, relation=relation
            )
        )  # type: ignore[arg-type]
        for basis, relation in itertools.product(("centred", "paper"), (REPLACE, ADD_REMOVE))
        for order, statistics in ((1, "moments"), (2, "moments"), (2, "correlation"))
    ]


def marginal_blocks() -> list[Block]:
    measure = Marginal(("sex", "y"), edges={"y": (30.0, 45.0)})
    return [measure.bind(Terms(SCHEMA, norm=2, relation=r)) for r in (REPLACE, ADD_REMOVE)]


def label(block: Block) -> str:
    parts = [getattr(block, a, "") for a in ("basis", "order", "reports")]
    return " ".join(map(str, [type(block).__name__, block.relation.value, *parts]))  # type: ignore[attr-defined]


ALL = [pytest.param(b, id=label(b)) for b in moments_blocks() + marginal_blocks()]


@pytest.mark.parametrize("block", [pytest.param(b, id=label(b)) for b in moments_blocks()])
def test_moments_are_the_textbooks(block: Block) -> None:
    found = dict(zip(block.statistics, block.evaluate(answers_of(block, TABLE)), strict=True))
    columns = codes(TABLE)
    for name, value in found.items():
        kind, inside = name.rstrip(")").split("(")
        one, *other = inside.split(", ")
        if kind == "corr":
            expected = np.corrcoef(columns[one], columns[other[0]])[0, 1]
        else:
            expected = columns[one].mean() if kind == "mean" else columns[one].std()
        # x is rounded to a grid of 1/65536 of its range.
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-4), name


def test_shares_are_shares() -> None:
    columns = codes(TABLE)
    for block in marginal_blocks():
        found = dict(zip(block.statistics, block.evaluate(answers_of(block, TABLE)), strict=True))
        assert sum(found.values()) == pytest.approx(1)
        women = columns["sex"] == 0
        assert found["cell(sex=F, y=[30, 45))"] == pytest.approx(
            (women & (columns["y"] >= 30) & (columns["y"] < 45)).mean()
        )
        assert found["cell(sex=F, y=[45, 90])"] == pytest.approx(
            (women & (columns["y"] >= 45)).mean()
        )


def numerical(block: Block, answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S, K) central differences of evaluate."""
    step = 1e-6
    columns = []
    for k in range(len(answers)):
        shift = np.zeros(len(answers))
        shift[k] = step
        columns.append(
            (block.evaluate(answers + shift) - block.evaluate(answers - shift)) / (2 * step)
        )
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("block", ALL)
def test_standard_errors_are_the_delta_method(block: Block) -> None:
    answers = answers_of(block, TABLE)
    slopes = numerical(block, answers)
    rng = np.random.default_rng(1)
    for common in (0, 1, 2):
        # Little noise: where a column's two values are as frequent, its deviation is curved.
        variances = rng.uniform(0.5, 2, len(answers)) * 1e-8
        factor = rng.normal(size=(len(answers), common)) * 1e-4
        covariance = np.diag(variances) + factor @ factor.T
        expected = np.sqrt(np.einsum("sk,kl,sl->s", slopes, covariance, slopes))
        found = block.standard_errors(answers, variances, factor)
        np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("block", ALL)
def test_undefined_statistics_are_nan_without_a_warning(block: Block) -> None:
    """Noise can make a variance negative; every other statistic stays."""
    count = len(block.keys)
    for answers in (np.zeros(count), np.ones(count), -np.ones(count), np.full(count, 0.5)):
        with np.errstate(all="raise"):
            values = block.evaluate(answers)
            errors = block.standard_errors(answers, np.full(count, 1e-6), np.zeros((count, 0)))
        assert np.array_equal(np.isnan(values), np.isnan(errors))
        means = [i for i, s in enumerate(block.statistics) if s.startswith(("mean", "cell"))]
        assert np.isfinite(values[means]).all()


def simulated_plan(budget: Budget, *, basis: str, count: bool) -> Plan:
    return Plan(
        unit=AddRemoveOneRow() if count else ReplaceOneRow(),
        budget=budget,
        rows=ROWS,
        generator=None,
        basis=basis,  # type: ignore[arg-type]
        schema=SCHEMA,
        measures=(
            Moments(("y", "sex", "x"), loudness=Fraction(1)),
            Marginal(("sex", "code")),
        ),
        scales=(Fraction(1), Fraction(1, 2)),
        count_scale=Fraction(1, 4) if count else None,
    )


@pytest.mark.parametrize("budget", [PureDP(30.0), ApproxDP(5.0, 1e-7)], ids=["pure", "approx"])
@pytest.mark.parametrize("basis", ["centred", "paper"])
@pytest.mark.parametrize("count", [False, True])
def test_standard_errors_are_the_spread_of_releases(
    count: bool, basis: str, budget: Budget
) -> None:
    """2,000 draws of the plan's noise: the printed error is the spread, within 10 %."""
    plan = simulated_plan(budget, basis=basis, count=count)
    exact = exact_sums(TABLE, plan)
    rng = np.random.default_rng(7)
    scales = np.array(plan.noise.scales)
    size = (2000, len(scales))
    drawn = rng.laplace(0, scales, size) if plan.noise.norm == 1 else rng.normal(0, scales, size)
    released = (np.array(exact, dtype=np.float64) + np.rint(drawn)) / np.array(plan.noise.steps)
    rows = released[:, -1:] if count else ROWS
    truth = make_answers(plan, exact, private=False)
    answers = released[:, : plan.queries.size] / rows
    estimates = [truth.consistent.evaluate(a) for a in answers]
    expected = truth.errors_at(truth.means)
    found = np.std(estimates, axis=0)
    assert np.isfinite(expected).all()
    # A constant statistic aside (none here), every one within 10 %.
    np.testing.assert_allclose(found, expected, rtol=0.1)
    table = truth.statistics_table()
    assert [row["standard_error"] for row in table] == pytest.approx(expected.tolist())
