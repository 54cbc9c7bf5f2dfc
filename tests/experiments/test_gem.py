"""GEM on small domains, against exact answers.

Torch is not among retilt's dependencies; in the generators' environment, which has it, these tests
need pytest and none of the other tests' fixtures:

    python -m pytest --noconftest tests/experiments/test_gem.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch, which the generators' environment has")

from experiments.generators import gem  # noqa: E402
from experiments.generators.zcdp import rho_of  # noqa: E402

LEVELS = (2, 3, 4, 2)
QUICK = gem.Settings(batch=16, dim=8, rounds=3, steps=5, columns_steps=5)


def correlated(rows: int, seed: int = 0) -> NDArray[np.int64]:
    """Codes of four columns that depend on each other."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 2, rows)
    second = np.where(rng.random(rows) < 0.8, 2 * first, rng.integers(0, 3, rows))
    third = np.where(rng.random(rows) < 0.7, second, 3)
    return np.stack([first, second, third, (third > 1) ^ (rng.random(rows) < 0.1)], axis=1)


def distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Total variation."""
    return float(np.abs(left - right).sum() / 2)


def share(codes: NDArray[np.int64], clique: gem.Clique, levels: Sequence[int]) -> NDArray[Any]:
    """Of each cell, by going through the rows."""
    found = np.zeros([levels[c] for c in clique])
    for row in codes:
        found[tuple(row[list(clique)])] += 1 / len(codes)
    return found.ravel()


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact answers: what is left of chance is the seed's."""

    def counts(counts: Any, distance: float, loss: float, budget: gem.Budget) -> NDArray[Any]:
        budget.charge(loss)
        return np.asarray(counts, np.float64)

    def largest(scores: NDArray[np.int64], loss: float, budget: gem.Budget) -> int:
        budget.charge(loss)
        return int(scores.argmax())

    monkeypatch.setattr(gem, "noisy_counts", counts)
    monkeypatch.setattr(gem, "noisy_largest", largest)


# --- the domain -----------------------------------------------------------------------------------


def test_values_survive_coding() -> None:
    domain = {
        "sex": gem.Categories(("F", "M")),
        "age": gem.equal_width(0, 9, 32, integer=True),
        "rate": gem.Bins((0.0, 0.5, 1.0), decoded=(0.1, 0.9)),
    }
    frame = {"sex": ["M", "F", "M"], "age": [0, 9, 4], "rate": [0.1, 0.9, 0.9], "other": [1, 2, 3]}
    codes = gem.encode(frame, domain)
    assert codes.tolist() == [[1, 0, 0], [0, 9, 1], [1, 4, 1]]
    found = gem.decode(codes, domain, np.random.default_rng(0))
    assert {name: values.tolist() for name, values in found.items()} == {
        name: frame[name] for name in domain
    }
    assert found["age"].dtype == np.int64


@pytest.mark.parametrize(
    "bins",
    [
        gem.equal_width(-3, 5, 4),
        gem.equal_width(-3, 5, 4, integer=True),
        gem.Bins((0.5, 3, 9.5), integer=True),
        gem.equal_width(7, 7),
        gem.equal_width(7, 7, integer=True),
        gem.equal_width(1e15, 1e15 + 0.125),
    ],
)
def test_drawn_numbers_lie_in_their_bins(bins: gem.Bins) -> None:
    codes = np.repeat(np.arange(bins.levels), 50)
    values = bins.values_of(codes, np.random.default_rng(0))
    assert np.array_equal(bins.codes(values), codes)
    assert values.min() >= bins.edges[0]
    assert values.max() <= bins.edges[-1]
    if bins.integer:
        edges = np.ceil(bins.edges).astype(int)
        for code in range(bins.levels):  # every whole number of the bin is drawn
            assert set(values[codes == code]) == set(range(edges[code], edges[code + 1]))


def test_numbers_outside_go_to_the_ends() -> None:
    assert gem.Bins((0, 1, 2)).codes([-5, 0, 1, 2, np.inf, np.nan]).tolist() == [0, 0, 1, 1, 1, -1]


@pytest.mark.parametrize(
    "made",
    [
        lambda: gem.Categories(()),
        lambda: gem.Categories(("a", "a")),
        lambda: gem.Bins((1.0,)),
        lambda: gem.Bins((1.0, 1.0)),
        lambda: gem.Bins((0.0, math.nan)),
        lambda: gem.Bins((0, 1, 2), decoded=(0.5,)),
        lambda: gem.Bins((0.2, 0.8), integer=True),
        lambda: gem.equal_width(1, 0),
        lambda: gem.equal_width(0, math.inf),
    ],
)
def test_refuses_broken_domains(made: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|holds none"):
        made()


def test_refusals_name_the_column_and_not_the_value() -> None:
    domain = {"city": gem.Categories(("Bern",)), "age": gem.Bins((0, 100))}
    for frame in ({"city": ["Secret"], "age": [987]}, {"city": ["Bern"], "age": [math.nan]}):
        with pytest.raises(ValueError, match=r"^column '(city|age)' holds values") as refusal:
            gem.run(frame, domain, 1.0)
        assert "Secret" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"^column 'age' is missing"):
        gem.encode({"city": ["Bern"]}, domain)
    with pytest.raises(ValueError, match="at least one row"):
        gem.encode({"city": [], "age": []}, domain)
    with pytest.raises(ValueError, match="at least one column"):
        gem.encode({"city": ["Bern"]}, {})
    with pytest.raises(ValueError, match="column 1 holds some outside its 3 levels") as refusal:
        gem.fit(np.array([[0, 87]]), [2, 3], epsilon=1.0)
    assert "87" not in str(refusal.value)


# --- queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ways", [1, 2, 3, 4])
def test_answers_are_those_of_the_enumerated_mixture(ways: int) -> None:
    rng = np.random.default_rng(ways)
    parts = [rng.dirichlet(np.ones(count), size=5) for count in LEVELS]
    model = gem.Model(tuple(parts), {})
    joint = np.zeros(LEVELS)
    for cell in product(*map(range, LEVELS)):
        joint[cell] = np.mean(
            [math.prod(p[one, c] for p, c in zip(parts, cell, strict=True)) for one in range(5)]
        )
    for clique in combinations(range(4), ways):
        others = tuple(set(range(4)) - set(clique))
        assert model.answer(clique) == pytest.approx(joint.sum(axis=others).ravel(), abs=1e-12)


@pytest.mark.parametrize("clique", [(2,), (0, 3), (1, 2), (0, 1, 3)])
def test_counts(clique: gem.Clique) -> None:
    codes = correlated(200)
    assert gem.count(codes, clique, LEVELS) / 200 == pytest.approx(share(codes, clique, LEVELS))


def test_workloads() -> None:
    assert gem.cliques_of(4, 2, None, 0) == tuple(combinations(range(4), 2))
    assert gem.cliques_of(2, 3, None, 0) == ((0, 1),)
    some = gem.cliques_of(104, 3, 50, 1)
    assert len(set(some)) == 50
    assert all(len(clique) == 3 and list(clique) == sorted(clique) for clique in some)
    assert some == gem.cliques_of(104, 3, 50, 1) != gem.cliques_of(104, 3, 50, 2)
    with pytest.raises(ValueError, match="cells are too many"):
        gem.Workload(np.zeros((1, 2), np.int64), (20_000, 20_000), ((0, 1),))


def test_rows_are_drawn_from_the_mixture() -> None:
    rng = np.random.default_rng(0)
    model = gem.Model(tuple(rng.dirichlet(np.ones(count), size=7) for count in LEVELS), {})
    drawn = model.sample(200_000, seed=1)
    for clique in combinations(range(4), 3):
        cells = gem.count(drawn, clique, LEVELS) / len(drawn)
        assert distance(cells, model.answer(clique)) < 0.01


def test_a_single_row_is_drawn_from_the_whole_mixture() -> None:
    # Each component has a value of its own.
    model = gem.Model((np.eye(4),), {})
    drawn = [int(model.sample(1, seed)[0, 0]) for seed in range(200)]
    assert min(np.bincount(drawn, minlength=4)) > 20
    assert np.bincount(model.sample(10, 0)[:, 0], minlength=4).max() == 3  # they take turns


# --- privacy --------------------------------------------------------------------------------------


def test_sensitivities_by_all_neighbours() -> None:
    """Over all tables of two rows and all rows that may replace the first one."""
    levels = (2, 3, 2)
    cliques = gem.cliques_of(3, 2, None, 0)
    network = gem.Network(levels, batch=4, dim=3, seed=0)
    rows = list(product(*map(range, levels)))
    counts, columns, scores = {}, {}, {}
    for table in product(rows, repeat=2):
        codes = np.array(table)
        counts[table] = [gem.count(codes, clique, levels) for clique in cliques]
        columns[table] = np.concatenate([gem.count(codes, (c,), levels) for c in range(3)])
        workload = gem.Workload(codes, levels, cliques)
        scores[table] = [cells.copy() for cells in workload.scores(network)]
    pairs = [((a, c), (b, c)) for a in rows for b in rows for c in rows]
    in_tables = [
        np.linalg.norm(x - y)
        for one, other in pairs
        for x, y in zip(counts[one], counts[other], strict=True)
    ]
    assert max(in_tables) == pytest.approx(math.sqrt(2), rel=1e-12)
    in_columns = [np.linalg.norm(columns[one] - columns[other]) for one, other in pairs]
    assert max(in_columns) == pytest.approx(math.sqrt(2 * len(levels)), rel=1e-12)
    for reduce in (np.max, np.asarray):  # of a whole table, of each query
        moved = [
            np.abs(reduce(x) - reduce(y)).max()
            for one, other in pairs
            for x, y in zip(scores[one], scores[other], strict=True)
        ]
        assert max(moved) == 1


def test_scores_are_distances_of_counts_from_the_network() -> None:
    codes, clique = correlated(500), (1, 2)
    network = gem.Network(LEVELS, batch=4, dim=3, seed=0)
    (cells,) = gem.Workload(codes, LEVELS, (clique,)).scores(network)
    parts = network.probabilities(clique)
    mixed = gem.answer([parts[c] for c in clique]).detach().numpy()
    assert np.abs(cells - 500 * np.abs(share(codes, clique, LEVELS) - mixed)).max() < 0.51


def test_noise_is_asked_for_with_these_sensitivities(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def counts(counts: Any, distance: float, loss: float, budget: gem.Budget) -> NDArray[Any]:
        asked.append((len(counts), distance))
        return np.asarray(counts, np.float64)

    monkeypatch.setattr(gem, "noisy_counts", counts)
    workload = gem.Workload(correlated(50), LEVELS, ((0, 1),))
    network = gem.Network(LEVELS, batch=4, dim=3, seed=0)
    budget = gem.Budget(100.0)
    workload.measure_columns(1.0, budget)
    workload.choose_query(network, (1.0, 1.0), budget)
    workload.choose_table(network, (1.0, 1.0), budget)
    assert asked == [(sum(LEVELS), math.sqrt(2 * 4)), (1, 1.0), (6, math.sqrt(2))]


@pytest.mark.parametrize("alpha", [0.5, 0.67])
def test_shares_are_the_papers(alpha: float) -> None:
    rho, rounds = 0.3, 7
    first, chosen, measured = gem.Settings(alpha=alpha).shares(rho, rounds)
    e = math.sqrt(2 * rho / (rounds * (alpha**2 + (1 - alpha) ** 2)))
    assert first == 0
    assert chosen == pytest.approx((alpha * e) ** 2 / 2, rel=1e-8)
    assert measured == pytest.approx(((1 - alpha) * e) ** 2 / 2, rel=1e-8)


@pytest.mark.parametrize("measure", ["table", "query"])
@pytest.mark.parametrize("columns_share", [0.0, 0.3])
def test_all_of_the_budget_is_spent_and_never_more(measure: Any, columns_share: float) -> None:
    settings = gem.Settings(
        batch=8, dim=4, rounds=5, steps=2, columns_steps=2, alpha=0.6,
        measure=measure, columns_share=columns_share,
    )  # fmt: skip
    record = gem.fit(correlated(300), LEVELS, epsilon=1.0, settings=settings).record
    assert record["delta"] == 1 / 300**2
    assert record["rho"] == rho_of(1.0, 1 / 300**2)
    assert record["rho"] * (1 - 1e-8) < record["rho_spent"] <= record["rho"]
    assert len(record["measured"]) == 5 + (4 if columns_share else 0)


def test_the_budget_refuses_what_does_not_fit() -> None:
    budget = gem.Budget(1.0)
    budget.charge(0.75)
    for loss in (0.2500001, -0.1, math.nan):
        with pytest.raises(RuntimeError, match="does not fit"):
            budget.charge(loss)
    budget.charge(0.25)
    assert budget.charged == Fraction(1)


def test_noise_is_charged_before_it_is_drawn() -> None:
    spent = gem.Budget(1e-9)
    with pytest.raises(RuntimeError, match="does not fit"):
        gem.noisy_counts(np.zeros(3, np.int64), 1.0, 0.1, spent)
    with pytest.raises(RuntimeError, match="does not fit"):
        gem.noisy_largest(np.zeros(3, np.int64), 0.1, spent)
    assert spent.spent == 0


@pytest.mark.parametrize(("moves", "loss"), [(math.sqrt(2), 1e-4), (1.0, 0.5)])
def test_noise_of_counts(moves: float, loss: float) -> None:
    budget = gem.Budget(1.0)
    drawn = gem.noisy_counts(np.full(20_000, 7, np.int64), moves, loss, budget) - 7
    assert loss * (1 - 1e-9) <= budget.spent <= loss
    variance = moves**2 / (2 * loss)
    # Six standard errors: once in 500 million.
    assert abs(drawn.mean()) < 6 * math.sqrt(variance / 20_000)
    assert np.mean(drawn**2) / variance == pytest.approx(1, abs=6 * math.sqrt(2 / 20_000))


def test_noise_of_the_choice() -> None:
    loss, draws = 0.02, 3000
    budget = gem.Budget(draws * loss)
    first = [gem.noisy_largest(np.array([0, 5]), loss, budget) for _ in range(draws)]
    expected = 1 / (1 + math.exp(-5 * math.sqrt(2 * loss)))
    tolerance = 6 * math.sqrt(expected * (1 - expected) / draws)
    assert np.mean(first) == pytest.approx(expected, abs=tolerance)
    assert budget.spent == pytest.approx(draws * loss, rel=1e-8)


# --- the network ----------------------------------------------------------------------------------


def test_the_network_has_the_papers_shape() -> None:
    network = gem.Network(LEVELS, batch=6, dim=5, seed=0)
    assert [tuple(w.shape) for w in network.parameters() if w.dim() == 2] == [
        (10, 5),
        (10, 15),
        (sum(LEVELS), 25),
    ]
    parts = network.probabilities(range(4))
    for column, count in enumerate(LEVELS):
        assert parts[column].shape == (6, count)
        assert parts[column].sum(dim=1).detach().numpy() == pytest.approx(np.ones(6), abs=1e-6)


def measurement(clique: gem.Clique, shares: list[float]) -> gem.Measurement:
    """A table measured without noise."""
    return gem.Measurement(clique, slice(None), torch.tensor(shares))


def furthest(network: gem.Network, goal: gem.Measurement) -> float:
    """The largest distance from a measurement."""
    return float(network.distances([goal]).max().detach())


def test_learning_brings_far_answers_near_and_leaves_near_ones() -> None:
    network = gem.Network((2, 2), batch=8, dim=4, seed=0)
    training = gem.Training(network, gem.Settings(batch=8, dim=4, learning_rate=0.01))
    goal = measurement((0, 1), [0.5, 0.0, 0.0, 0.5])
    training.meet(goal)
    before = furthest(network, goal)
    training.learn([goal], 1000)
    assert furthest(network, goal) < before / 2
    done = training.steps
    assert done < 1000  # it stopped when all distances were below half of the largest
    training.learn([goal], 1000)
    assert training.steps == done


def test_the_largest_distance_is_a_moving_average() -> None:
    network = gem.Network((2,), batch=8, dim=4, seed=0)
    training = gem.Training(network, gem.Settings(keep_largest=0.75))
    found = network.probabilities([0])[0].mean(0).detach()
    for off in (0.4, 0.2):
        training.meet(gem.Measurement((0,), slice(None), found + off))
    assert training._largest == pytest.approx(0.75 * 0.4 + 0.25 * 0.2, abs=1e-6)


def test_weights_are_averaged() -> None:
    network = gem.Network((2,), batch=8, dim=4, seed=0)
    training = gem.Training(network, gem.Settings(keep_weights=0.9))
    for value in (1.0, 2.0, 5.0):
        with torch.no_grad():
            for weights in network.parameters():
                weights.fill_(value)
        training.average()
    training.finish()
    for weights in network.parameters():
        assert weights.detach().numpy() == pytest.approx(0.9 * (0.9 * 1 + 0.1 * 2) + 0.1 * 5)


@pytest.mark.usefixtures("no_noise")
def test_weights_are_averaged_over_the_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("meet", "average", "finish"):
        whole = getattr(gem.Training, name)

        def noted(self: Any, *given: Any, name: str = name, whole: Any = whole) -> None:
            order.append(name)
            whole(self, *given)

        monkeypatch.setattr(gem.Training, name, noted)
    settings = gem.Settings(batch=8, dim=4, rounds=4, steps=1)
    gem.fit(correlated(100), LEVELS, epsilon=1.0, settings=settings)
    assert order == ["meet", "meet", *2 * ["meet", "average"], "finish"]


# --- the algorithm --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measure", "rounds", "steps", "columns_share"),
    [("table", 6, 150, 0.0), ("query", 40, 30, 0.0), ("table", 6, 150, 0.2)],
)
def test_with_little_noise_tables_are_met(
    measure: Any, rounds: int, steps: int, columns_share: float
) -> None:
    codes = correlated(20_000)
    settings = gem.Settings(
        batch=128, dim=16, rounds=rounds, steps=steps, columns_steps=100, learning_rate=0.01,
        far=0.1, keep_weights=0.2, measure=measure, columns_share=columns_share,
    )  # fmt: skip
    model = gem.fit(codes, LEVELS, epsilon=1000.0, settings=settings)
    drawn = model.sample(len(codes), seed=0)
    alone = [gem.count(codes, (c,), LEVELS) / len(codes) for c in range(4)]
    for clique in combinations(range(4), 2):
        exact = gem.count(codes, clique, LEVELS) / len(codes)
        assert distance(gem.count(drawn, clique, LEVELS) / len(codes), exact) < 0.05
        # Independent columns would not do.
        left, right = clique
        assert distance(np.outer(alone[left], alone[right]).ravel(), exact) > 0.15


@pytest.mark.parametrize("measure", ["table", "query"])
def test_with_noise_alone_rows_are_valid(measure: Any) -> None:
    domain = {
        "a": gem.Categories(("x", "y")),
        "b": gem.equal_width(-1.5, 2.5, 5),
        "c": gem.equal_width(0, 3, integer=True),
    }
    rng = np.random.default_rng(0)
    frame = {
        "a": rng.choice(["x", "y"], 40),
        "b": rng.uniform(-1.5, 2.5, 40),
        "c": rng.integers(0, 4, 40),
    }
    settings = gem.Settings(batch=8, dim=4, rounds=3, steps=5, columns_share=0.1, measure=measure)
    drawn, record = gem.run(frame, domain, 1e-6, 1e-9, settings)
    assert list(drawn) == ["a", "b", "c"]
    assert all(len(values) == 40 for values in drawn.values())
    assert set(drawn["a"]) <= {"x", "y"}
    assert ((drawn["b"] >= -1.5) & (drawn["b"] <= 2.5)).all()
    assert set(drawn["c"]) <= {0, 1, 2, 3}
    assert record["epsilon"] == 1e-6
    assert record["delta"] == 1e-9
    assert record["rho_spent"] <= record["rho"] < 1e-12


@pytest.mark.usefixtures("no_noise")
def test_a_seed_fixes_all_but_the_noise() -> None:
    codes = correlated(500)
    state = torch.random.get_rng_state()
    one, same, other = (
        gem.fit(codes, LEVELS, epsilon=1.0, settings=QUICK, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's randomness is touched
    for left, right in zip(one.probabilities, same.probabilities, strict=True):
        assert np.array_equal(left, right)
    assert not np.array_equal(one.probabilities[0], other.probabilities[0])
    assert np.array_equal(one.sample(50, 1), same.sample(50, 1))
    assert not np.array_equal(one.sample(50, 1), one.sample(50, 2))


@pytest.mark.usefixtures("no_noise")
def test_no_table_is_measured_twice() -> None:
    record = gem.fit(
        correlated(500), LEVELS, epsilon=1.0, settings=gem.Settings(batch=8, dim=4, steps=1)
    ).record
    assert sorted(map(tuple, record["measured"])) == list(combinations(range(4), 2))


@pytest.mark.parametrize("measure", ["table", "query"])
@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize(
    ("rows", "domain"),
    [
        ({"only": ["a"]}, {"only": gem.Categories(("a",))}),
        ({"only": [1.0] * 5}, {"only": gem.equal_width(1, 1)}),
        (
            {"constant": [3, 3], "one": ["x", "x"], "two": [0, 1]},
            {
                "constant": gem.equal_width(0, 9, integer=True),
                "one": gem.Categories(("x",)),
                "two": gem.Categories((0, 1)),
            },
        ),
        ({"a": [0], "b": [0.5]}, {"a": gem.Categories((0, 1)), "b": gem.equal_width(0, 1)}),
    ],
    ids=["one value", "constant", "constant among others", "one row"],
)
def test_hostile_tables(rows: Any, domain: gem.Domain, ways: int, measure: Any) -> None:
    settings = gem.Settings(
        batch=2, dim=1, ways=ways, rounds=4, steps=2, columns_share=0.5, measure=measure
    )
    drawn, record = gem.run(rows, domain, 1.0, settings=settings)
    for name, column in domain.items():
        assert len(drawn[name]) == len(rows[name])
        assert column.codes(drawn[name]).min() >= 0
    json.dumps(record, allow_nan=False)


def test_the_record_says_what_was_run() -> None:
    record = gem.fit(correlated(100), LEVELS, epsilon=2.0, settings=QUICK, seed=5).record
    assert record["settings"]["rounds"] == 3
    assert record["seed"] == 5
    assert record["epsilon"] == 2.0
    assert record["versions"]["torch"] == torch.__version__
    assert record["steps"] <= 3 * 5
    assert record["wall_seconds"] > 0
    assert "replaced" in record["unit"]


@pytest.mark.parametrize(
    "broken",
    [
        {"ways": 0}, {"rounds": 0}, {"batch": 1}, {"dim": 0}, {"steps": 0}, {"tables": 0},
        {"measure": "cell"}, {"alpha": 1.0}, {"alpha": 0.0}, {"columns_share": 1.0},
        {"keep_weights": -0.1}, {"learning_rate": 0.0}, {"far": -0.1}, {"columns_steps": -1},
    ],
)  # fmt: skip
def test_refuses_settings(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(broken))}: got"):
        gem.Settings(**broken)
