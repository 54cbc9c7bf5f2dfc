r"""GEM: a generator network that answers marginal queries under differential privacy.

After its paper: Liu, Vietri and Wu, "Iterative methods for private synthetic data: unifying
framework and new methods" (NeurIPS 2021), section 4. The network turns a fixed batch of Gaussian
noise into a mixture of product distributions over discrete columns. Each round the exponential
mechanism chooses a table of counts (a marginal) that the mixture gets most wrong, Gaussian noise
is added to it, and the network learns all noisy tables so far.

* Unit: one row replaced by another; the number N of rows is public. A row lies in one cell of a
  table, so that replacing it moves two counts by one, in opposite directions, or none: any count
  by at most 1, a table by at most sqrt(2) in L2, all tables of one column at once by at most
  sqrt(2 d) (d columns).
* Score of a table: the largest distance of its counts from the mixture's, the latter rounded to
  whole numbers; of a single query: the distance of its count. Scores are whole numbers and one row
  moves each by at most 1, because it moves any count by at most 1 and the mixture is public.
* Budget: rho-zCDP from (epsilon, delta) (:mod:`experiments.generators.zcdp`). With
  ``e = sqrt(2 rho / (T (alpha^2 + (1 - alpha)^2)))`` a round's choice adds Gumbel noise of scale
  ``1 / (alpha e)`` to the scores, worth ``(alpha e)^2 / 2``, and its measurement Gaussian noise of
  deviation ``D / ((1 - alpha) e)`` to the counts, ``D`` being sqrt(2) or 1, worth
  ``((1 - alpha) e)^2 / 2``: together ``rho / T``. A share may go to all tables of one column
  first, which the paper does not do; without it the first d / 2 rounds find little else.
* Noise: OpenDP's discrete Gaussian, and its noisy maximum, on whole numbers; both from the
  operating system's randomness, so a seed fixes the network and the drawn rows only. Each loss is
  OpenDP's own, and is charged before the noise is drawn.

Imports torch, numpy and OpenDP, nothing of retilt: it runs in the environment of the other
generators.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from importlib import metadata
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from experiments.generators.zcdp import rho_of

Codes: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Clique: TypeAlias = tuple[int, ...]
"""The columns of a table, by their places, in increasing order."""

MOST_CELLS = 200_000_000
"""Cells of all tables together; their exact counts lie in memory."""


# ---------------------------------------------------------------------------------- the domain


@dataclass(frozen=True, slots=True)
class Categories:
    """A column that takes one of some values.

    Parameters
    ----------
    values
        Public, in the order of their codes; at least one.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise ValueError("values: expected at least one, each once.")

    @property
    def levels(self) -> int:
        """How many values there are."""
        return len(self.values)

    def codes(self, column: ArrayLike) -> Codes:
        """(N,) places of the values, -1 for one that is not listed."""
        place = {value: code for code, value in enumerate(self.values)}
        return np.array([place.get(value, -1) for value in np.asarray(column).tolist()], np.int64)

    def values_of(self, codes: Codes, rng: np.random.Generator) -> NDArray[Any]:
        """(N,) values of codes; ``rng`` is not used."""
        del rng
        return np.array(self.values)[codes]


@dataclass(frozen=True, slots=True)
class Bins:
    """A number cut into bins.

    Parameters
    ----------
    edges
        Public and increasing, at least two; bin ``i`` is ``edges[i] <= v < edges[i + 1]``. Values
        outside go to the first or last bin.
    decoded
        The number that stands for each bin. None draws uniformly within the bin.
    integer
        Whether the column holds whole numbers: a number drawn is one of those in the bin.
    """

    edges: tuple[float, ...]
    decoded: tuple[float, ...] | None = None
    integer: bool = False

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or not np.all(np.diff(self.edges) > 0):
            raise ValueError("edges: expected at least two numbers in increasing order.")
        if self.decoded is not None and len(self.decoded) != self.levels:
            raise ValueError(
                f"decoded: got {len(self.decoded)} numbers, expected {self.levels}, one per bin."
            )
        if self.integer and any(low > high for low, high in zip(*self._whole(), strict=True)):
            raise ValueError("edges: a bin of a column of whole numbers holds none.")

    @property
    def levels(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    def codes(self, column: ArrayLike) -> Codes:
        """(N,) bins of the values, -1 for one that is missing."""
        values = np.asarray(column, np.float64)
        places = np.searchsorted(self.edges, values, side="right") - 1
        return np.where(np.isnan(values), -1, np.clip(places, 0, self.levels - 1))

    def values_of(self, codes: Codes, rng: np.random.Generator) -> NDArray[Any]:
        """(N,) numbers of bins."""
        if self.decoded is not None:
            return np.array(self.decoded)[codes]
        if self.integer:
            low, high = self._whole()
            return rng.integers(low[codes], high[codes], endpoint=True)
        edges = np.array(self.edges, np.float64)
        return rng.uniform(edges[codes], edges[codes + 1])

    def _whole(self) -> tuple[Codes, Codes]:
        """First and last whole number of each bin."""
        edges = np.ceil(self.edges).astype(np.int64)
        return edges[:-1], edges[1:] - 1


Domain: TypeAlias = Mapping[str, Categories | Bins]
"""What may be said of the columns in public, by name."""


def equal_width(lower: float, upper: float, bins: int = 32, *, integer: bool = False) -> Bins:
    """Bins of equal width between public bounds; equal bounds give one bin.

    Parameters
    ----------
    lower, upper
        Finite, ``lower <= upper``; whole where the column is.
    bins
        How many; fewer for a column of fewer whole numbers.
    integer
        Whether the column holds whole numbers.

    Examples
    --------
    >>> equal_width(0, 1, 4).edges
    (0.0, 0.25, 0.5, 0.75, 1.0)
    >>> equal_width(0, 2, 32, integer=True).edges
    (0.0, 1.0, 2.0, 3.0)
    """
    if not -math.inf < lower <= upper < math.inf or bins < 1:
        raise ValueError("expected finite bounds, lower <= upper, and at least one bin.")
    if integer:  # one above the greatest, so that bins hold equally many numbers
        count = min(bins, int(upper - lower) + 1)
        edges = np.linspace(lower, upper + 1, count + 1)
    else:
        edges = np.linspace(lower, upper, bins + 1)
    if not np.all(np.diff(edges) > 0):  # a constant, or bounds a rounding error apart
        edges = np.array([lower, np.nextafter(upper, np.inf)])
    return Bins(tuple(edges.tolist()), integer=integer)


def encode(frame: Mapping[str, ArrayLike], domain: Domain) -> Codes:
    """(N, d) codes of a table's columns.

    Raises
    ------
    ValueError
        If there is no row or no column, or a column is missing or holds a value that its domain
        does not list; its name is told, the value is not.
    """
    if not domain:
        raise ValueError("domain: expected at least one column.")
    columns = []
    for name, column in domain.items():
        if name not in frame:
            raise ValueError(f"column {name!r} is missing.")
        columns.append(column.codes(frame[name]))
        if columns[-1].size == 0:
            raise ValueError("frame: expected at least one row.")
        if columns[-1].min() < 0:
            raise ValueError(f"column {name!r} holds values that its domain does not list.")
    return np.stack(columns, axis=1)


def decode(codes: Codes, domain: Domain, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """A column of values for each of (N, d) codes' columns."""
    return {
        name: column.values_of(codes[:, place], rng)
        for place, (name, column) in enumerate(domain.items())
    }


# ---------------------------------------------------------------------------- noise and its price


@dataclass(slots=True)
class Budget:
    """A budget of zCDP that is charged and never exceeded.

    Parameters
    ----------
    rho
        All that may be spent, above 0.
    """

    rho: float
    charged: Fraction = field(default=Fraction(0), init=False)

    @property
    def spent(self) -> float:
        """What was charged so far, rounded."""
        return float(self.charged)

    def charge(self, loss: float) -> None:
        """Take off a loss, before its noise is drawn.

        Raises
        ------
        RuntimeError
            If it does not fit: a fault of this module.
        """
        if not loss >= 0 or self.charged + Fraction(loss) > Fraction(self.rho):
            raise RuntimeError(f"a loss of {loss!r} does not fit a budget of {self.rho!r}.")
        self.charged += Fraction(loss)


_SAFE = 1 - 1e-9
"""Shares of a budget are taken this much smaller, so that rounding never exceeds the sum."""


def noisy_counts(counts: Codes, distance: float, loss: float, budget: Budget) -> FloatArray:
    """Counts with discrete Gaussian noise.

    Parameters
    ----------
    counts
        (K,) exact counts.
    distance
        How far one row replaced moves them, in L2.
    loss
        The rho to spend, at most.
    budget
        Is charged.
    """
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    space = vector_domain(atom_domain(T="i64")), l2_distance(T=float)
    mechanism = _affordable(lambda scale: make_gaussian(*space, scale=scale), distance, loss)
    budget.charge(mechanism.map(distance))
    return np.array(mechanism(counts.tolist()), np.float64)


def noisy_largest(scores: Codes, loss: float, budget: Budget) -> int:
    """The place of the largest of (K,) scores with Gumbel noise, each moved by at most 1.

    That is the exponential mechanism: with noise of scale s it chooses place k with a probability
    proportional to ``exp(scores[k] / s)``.
    """
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_max
    from opendp.measures import zero_concentrated_divergence
    from opendp.metrics import linf_distance

    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64")
    measure = zero_concentrated_divergence()
    mechanism = _affordable(lambda scale: make_noisy_max(*space, measure, scale=scale), 1, loss)
    budget.charge(mechanism.map(1))
    return int(mechanism(scores.tolist()))


def _affordable(make: Callable[[float], Any], distance: float, loss: float) -> Any:
    """A mechanism of noise just large enough for a loss: OpenDP's own map says so."""
    from opendp.mod import enable_features

    enable_features("contrib")
    scale = distance / math.sqrt(2 * loss)  # both mechanisms lose (distance / scale)^2 / 2
    while not (mechanism := make(scale)).map(distance) <= loss:
        scale *= 1 + 1e-12
    return mechanism


# ------------------------------------------------------------------------------------- the queries


def answer(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A table of a mixture of product distributions.

    Parameters
    ----------
    parts
        For each of the table's columns (batch, levels) probabilities.

    Returns
    -------
    torch.Tensor
        (cells,) shares, the last column's levels running fastest: means over the batch of
        products of probabilities.
    """
    joint = parts[0]
    if len(parts) == 1:
        return joint.mean(0)
    for part in parts[1:-1]:
        joint = (joint[:, :, None] * part[:, None, :]).flatten(1)
    return (joint.T @ parts[-1]).flatten() / len(joint)


def count(codes: Codes, clique: Clique, levels: Sequence[int]) -> Codes:
    """(cells,) exact counts of a table, cells in the order of :func:`answer`."""
    place = np.zeros(len(codes), np.int64)
    for column in clique:
        place = place * levels[column] + codes[:, column]
    return np.bincount(place, minlength=math.prod(levels[c] for c in clique))


def cliques_of(columns: int, ways: int, number: int | None, seed: int) -> tuple[Clique, ...]:
    """The tables of a workload: all of so many columns, or some of them drawn at random.

    With fewer columns than ``ways``, the one table of them all.
    """
    every = list(combinations(range(columns), min(ways, columns)))
    if number is None or number >= len(every):
        return tuple(every)
    chosen = np.random.default_rng(seed).choice(len(every), number, replace=False)
    return tuple(every[place] for place in sorted(chosen.tolist()))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a table.

    Parameters
    ----------
    clique
        Its columns.
    cells
        Those measured, all or one.
    shares
        Noisy counts / N, within [0, 1]: clamping them reads nothing more.
    """

    clique: Clique
    cells: slice
    shares: torch.Tensor


@dataclass(slots=True)
class Workload:
    """Tables of counts of private rows; what leaves it has been paid for.

    Parameters
    ----------
    codes
        (N, d) private codes.
    levels
        How many values each column has.
    cliques
        The tables.
    """

    codes: Codes
    levels: tuple[int, ...]
    cliques: tuple[Clique, ...]
    _counts: list[Codes] = field(init=False, repr=False)
    _open: list[NDArray[np.bool_]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cells = sum(math.prod(self.levels[c] for c in clique) for clique in self.cliques)
        if cells > MOST_CELLS:
            raise ValueError(f"{cells:,} cells are too many: take fewer tables, or fewer bins.")
        # One column's codes lie together: tables are counted column by column.
        codes = np.asfortranarray(self.codes)
        self._counts = [count(codes, clique, self.levels) for clique in self.cliques]
        self._open = [np.ones(len(counts), np.bool_) for counts in self._counts]

    @property
    def size(self) -> int:
        """How many cells there are."""
        return sum(len(counts) for counts in self._counts)

    def measure_columns(self, loss: float, budget: Budget) -> list[Measurement]:
        """The tables of each column alone, as one vector of counts."""
        columns = range(len(self.levels))
        counts = np.concatenate([count(self.codes, (c,), self.levels) for c in columns])
        noisy = noisy_counts(counts, math.sqrt(2 * len(columns)), loss, budget)
        parts = np.split(noisy, np.cumsum(self.levels)[:-1])
        return [
            self._measurement((c,), slice(None), p) for c, p in zip(columns, parts, strict=True)
        ]

    def scores(self, network: Network) -> Iterator[Codes]:
        """For each table its cells' distances from the network's, -1 for cells measured already.

        One row replaced moves each by at most 1: the network's counts are rounded to whole ones.
        """
        rows = len(self.codes)
        with torch.no_grad():
            parts = network.probabilities(range(len(self.levels)))
            for clique, counts, free in zip(self.cliques, self._counts, self._open, strict=True):
                shares = answer([parts[c] for c in clique]).double().numpy()
                distances = np.abs(counts - np.rint(rows * shares).astype(np.int64))
                yield np.where(free, distances, -1)

    def choose_table(
        self, network: Network, losses: tuple[float, float], budget: Budget
    ) -> Measurement:
        """Choose a whole table not measured yet, and measure it.

        ``losses`` are the rho of choosing and of measuring.
        """
        free = [place for place, left in enumerate(self._open) if left.any()]
        scores = np.array([cells.max() for cells in self.scores(network)])
        place = free[noisy_largest(scores[free], losses[0], budget)]
        self._open[place][:] = False
        noisy = noisy_counts(self._counts[place], math.sqrt(2), losses[1], budget)
        return self._measurement(self.cliques[place], slice(None), noisy)

    def choose_query(
        self, network: Network, losses: tuple[float, float], budget: Budget
    ) -> Measurement:
        """Choose a cell not measured yet, and measure it; otherwise as :meth:`choose_table`."""
        free = np.flatnonzero(np.concatenate(self._open))
        scores = np.concatenate(list(self.scores(network)))
        chosen = int(free[noisy_largest(scores[free], losses[0], budget)])
        starts = np.cumsum([0] + [len(counts) for counts in self._counts])
        place = int(np.searchsorted(starts, chosen, side="right") - 1)
        cell = chosen - int(starts[place])
        self._open[place][cell] = False
        noisy = noisy_counts(self._counts[place][[cell]], 1.0, losses[1], budget)
        return self._measurement(self.cliques[place], slice(cell, cell + 1), noisy)

    def _measurement(self, clique: Clique, cells: slice, noisy: FloatArray) -> Measurement:
        shares = np.clip(noisy / len(self.codes), 0, 1)
        return Measurement(clique, cells, torch.tensor(shares, dtype=torch.float32))


# ------------------------------------------------------------------------------------- the network


class Residual(torch.nn.Module):
    """A linear layer, batch norm and ReLU, set beside their input."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(inputs, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU()
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(batch, width + inputs) values."""
        return torch.cat([self.layers(values), values], dim=1)


class Network(torch.nn.Module):
    """The generator: from a fixed batch of noise to probabilities of every column's values.

    Batch norm always takes the batch's own means: the batch is the same at the end as in training.

    Parameters
    ----------
    levels
        How many values each column has.
    batch, dim
        The shape of the noise: how many product distributions are mixed, and of what size each
        one's code is.
    seed
        Of the noise and the first weights.
    """

    def __init__(self, levels: Sequence[int], *, batch: int, dim: int, seed: int) -> None:
        super().__init__()
        self.levels = tuple(levels)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.noise = torch.randn(batch, dim)
            self.body = torch.nn.Sequential(Residual(dim, 2 * dim), Residual(3 * dim, 2 * dim))
            self.head = torch.nn.Linear(5 * dim, sum(levels))

    def probabilities(self, columns: Sequence[int]) -> dict[int, torch.Tensor]:
        """(batch, levels) probabilities of the values of some columns."""
        logits = self.head(self.body(self.noise)).split(self.levels, dim=1)
        return {column: logits[column].softmax(dim=1) for column in columns}

    def distances(self, measured: Sequence[Measurement]) -> torch.Tensor:
        """(K,) distances from all measured shares, in their order."""
        columns = sorted({column for m in measured for column in m.clique})
        parts = self.probabilities(columns)
        return torch.cat(
            [(answer([parts[c] for c in m.clique])[m.cells] - m.shares).abs() for m in measured]
        )


class Training:
    """The network's optimiser, and the average of its weights.

    Parameters
    ----------
    network
        Is trained in place.
    settings
        How.
    """

    def __init__(self, network: Network, settings: Settings) -> None:
        self._network = network
        self._settings = settings
        self._optimiser = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        self._largest: float | None = None
        self._averages: list[torch.Tensor] | None = None
        self.steps = 0

    def meet(self, newest: Measurement) -> None:
        """Take the distance from the newest measurement into the moving average of the largest."""
        with torch.no_grad():
            found = float(self._network.distances([newest]).max())
        keep = self._settings.keep_largest
        self._largest = (
            found if self._largest is None else keep * self._largest + (1 - keep) * found
        )

    def learn(self, measured: Sequence[Measurement], steps: int) -> None:
        """At most so many steps, on distances that are far beside the average largest.

        On all distances before the first round. The rate falls to nought with the steps: the
        gradient of absolute distances does not, and would keep the answers from settling.
        """
        least = self._settings.far * (self._largest or 0.0)
        for step in range(steps):
            distances = self._network.distances(measured)
            far = distances[distances >= least]
            if len(far) == 0:
                break
            for group in self._optimiser.param_groups:
                group["lr"] = self._settings.learning_rate * (1 - step / steps)
            self._optimiser.zero_grad()
            far.mean().backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            self.steps += 1

    def average(self) -> None:
        """Take the weights into their moving average."""
        with torch.no_grad():
            found = [weights.detach().clone() for weights in self._network.parameters()]
            if self._averages is None:
                self._averages = found
            keep = self._settings.keep_weights
            for average, weights in zip(self._averages, found, strict=True):
                average.lerp_(weights, 1 - keep)

    def finish(self) -> None:
        """Give the network its average weights."""
        assert self._averages is not None
        with torch.no_grad():
            for weights, average in zip(self._network.parameters(), self._averages, strict=True):
                weights.copy_(average)


# ------------------------------------------------------------------------------------ the algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How GEM runs. All of it is public.

    Parameters
    ----------
    ways
        Columns of a table, at least 1.
    tables
        So many of all tables, drawn at random; None for all.
    measure
        A ``"table"`` a round, or a single ``"query"``.
    rounds
        How many, at most as many as there are tables or queries.
    alpha
        In (0, 1): choosing against measuring; the paper takes 0.5 to 0.67.
    columns_share
        In [0, 1): the part of the budget for all tables of one column before the first round.
    columns_steps
        Training steps on these tables.
    batch, dim
        The network's; a batch of at least 2.
    steps
        Training steps a round, at most.
    learning_rate
        Adam's, at the beginning of a round.
    far
        In [0, 1]: a distance is trained on if it is at least this times the average largest one;
        the paper's half. What is nearer may drift until it is not, so that after few rounds even
        columns by themselves are off by about so much; 0 trains on all distances.
    keep_largest, keep_weights
        In [0, 1): what a moving average keeps each round, of the largest distance and of the
        weights (in the second half of the rounds).
    """

    ways: int = 2
    tables: int | None = None
    measure: Literal["table", "query"] = "table"
    rounds: int = 100
    alpha: float = 0.5
    columns_share: float = 0.0
    columns_steps: int = 300
    batch: int = 1000
    dim: int = 512
    steps: int = 100
    learning_rate: float = 1e-3
    far: float = 0.5
    keep_largest: float = 0.5
    keep_weights: float = 0.9

    def __post_init__(self) -> None:
        least = {"ways": 1, "rounds": 1, "columns_steps": 0, "batch": 2, "dim": 1, "steps": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {bound} or more.")
        if self.tables is not None and self.tables < 1:
            raise ValueError(f"tables: got {self.tables!r}, expected 1 or more.")
        if self.measure not in ("table", "query"):
            raise ValueError(f"measure: got {self.measure!r}, expected 'table' or 'query'.")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha: got {self.alpha!r}, expected a number between 0 and 1.")
        for name in ("columns_share", "keep_largest", "keep_weights"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected [0, 1).")
        if not 0 <= self.far <= 1:
            raise ValueError(f"far: got {self.far!r}, expected [0, 1].")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate: got {self.learning_rate!r}, expected above 0.")

    def shares(self, rho: float, rounds: int) -> tuple[float, float, float]:
        """The rho of the tables of one column, of each round's choice and of its measurement.

        Examples
        --------
        >>> [round(share, 6) for share in Settings(columns_share=0.5).shares(1.0, 10)]
        [0.5, 0.025, 0.025]
        """
        first = self.columns_share * rho * _SAFE
        a_round = (1 - self.columns_share) * rho * _SAFE / rounds
        chosen, measured = self.alpha**2, (1 - self.alpha) ** 2
        part = chosen / (chosen + measured)
        return first, a_round * part, a_round * (1 - part)


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted mixture of product distributions.

    Parameters
    ----------
    probabilities
        For each column (batch, levels), rows of sum 1.
    record
        JSON values: what was run, what it cost and spent.
    """

    probabilities: tuple[FloatArray, ...]
    record: Mapping[str, Any]

    def answer(self, clique: Clique) -> FloatArray:
        """(cells,) shares of a table, as :func:`answer` orders them."""
        found = answer([torch.from_numpy(self.probabilities[c]) for c in clique])
        return np.asarray(found.numpy(), np.float64)

    def sample(self, rows: int, seed: int | None = None) -> Codes:
        """(rows, d) codes: each row from one of the product distributions.

        These take turns in a random order: every row by itself has the mixture's distribution, and
        no part of it is left out by chance.
        """
        rng = np.random.default_rng(seed)
        batch = len(self.probabilities[0])
        parts = rng.permutation(batch)[rng.permutation(rows) % batch]
        drawn = np.empty((rows, len(self.probabilities)), np.int64)
        for column, probabilities in enumerate(self.probabilities):
            # Without the last sum, which rounding may leave below 1.
            sums = np.cumsum(probabilities, axis=1)[:, :-1]
            drawn[:, column] = (rng.random(rows)[:, None] >= sums[parts]).sum(axis=1)
        return drawn


def fit(
    codes: Codes,
    levels: Sequence[int],
    *,
    epsilon: float,
    delta: float | None = None,
    settings: Settings | None = None,
    seed: int = 0,
) -> Model:
    """Read private rows once, under (epsilon, delta).

    Parameters
    ----------
    codes
        (N, d) whole numbers, column j in [0, levels[j]).
    levels
        How many values each column has, public.
    epsilon, delta
        For one row replaced by another; delta None is 1 / N^2, of two rows if there is but one.
    settings
        The paper's by default, but for a learning rate that is larger and falls within a round.
    seed
        Of the network and of the tables drawn; the noise can't be seeded.

    Raises
    ------
    ValueError
        If the budget or the codes are outside their ranges.
    """
    began, worked = time.perf_counter(), time.process_time()
    settings = settings or Settings()
    codes = _checked(codes, levels)
    delta = 1 / max(len(codes), 2) ** 2 if delta is None else delta
    budget = Budget(rho_of(epsilon, delta))
    cliques = cliques_of(len(levels), settings.ways, settings.tables, seed)
    workload = Workload(codes, tuple(levels), cliques)
    network = Network(levels, batch=settings.batch, dim=settings.dim, seed=seed)
    measured, steps = _rounds(workload, network, settings, budget)
    record = {
        "settings": asdict(settings),
        "seed": seed,
        "unit": "one row replaced; the number of rows is public",
        "epsilon": epsilon,
        "delta": delta,
        "rho": budget.rho,
        "rho_spent": budget.spent,
        "measured": [list(m.clique) for m in measured],
        "steps": steps,
        "wall_seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - worked, 2),
        "versions": _versions(),
    }
    return Model(_probabilities(network), record)


def run(
    frame: Mapping[str, ArrayLike],
    domain: Domain,
    epsilon: float,
    delta: float | None = None,
    settings: Settings | None = None,
    seed: int = 0,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """As many synthetic rows as a private table has, and the record of the run.

    Parameters
    ----------
    frame
        The private table: a pandas data frame, or anything that maps names to (N,) values.
    domain
        Public; its columns are read and made, in its order.
    epsilon, delta, settings, seed
        As :func:`fit` takes them; the seed fixes the drawn rows, too.

    Returns
    -------
    tuple
        A column of N values by name (``pandas.DataFrame`` makes a table of them), and JSON values:
        settings, versions, seconds, the rho that was allowed and that was spent.

    Raises
    ------
    ValueError
        As :func:`encode` and :func:`fit`.
    """
    codes = encode(frame, domain)
    levels = [column.levels for column in domain.values()]
    model = fit(codes, levels, epsilon=epsilon, delta=delta, settings=settings, seed=seed)
    drawn = decode(model.sample(len(codes), seed), domain, np.random.default_rng(seed))
    return drawn, dict(model.record)


def _checked(codes: Codes, levels: Sequence[int]) -> Codes:
    """(N, d) codes within their levels; no message holds one."""
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(levels) or not codes.size:
        raise ValueError(
            f"codes: expected at least one row, and {len(levels)} columns, which are one or more."
        )
    for column, count_of in enumerate(levels):
        if codes[:, column].min() < 0 or codes[:, column].max() >= count_of:
            raise ValueError(f"codes: column {column} holds some outside its {count_of} levels.")
    return codes.astype(np.int64)


def _rounds(
    workload: Workload, network: Network, settings: Settings, budget: Budget
) -> tuple[list[Measurement], int]:
    """Choose, measure and learn until the budget is spent; what was measured, and the steps."""
    by_table = settings.measure == "table"
    rounds = min(settings.rounds, len(workload.cliques) if by_table else workload.size)
    first, *losses = settings.shares(budget.rho, rounds)
    choose = workload.choose_table if by_table else workload.choose_query
    training = Training(network, settings)
    measured: list[Measurement] = []
    if first:
        measured += workload.measure_columns(first, budget)
        training.learn(measured, settings.columns_steps)
    for number in range(rounds):
        newest = choose(network, (losses[0], losses[1]), budget)
        measured.append(newest)
        training.meet(newest)
        training.learn(measured, settings.steps)
        if number >= rounds // 2:
            training.average()
    training.finish()
    return measured, training.steps


def _probabilities(network: Network) -> tuple[FloatArray, ...]:
    """For each column (batch, levels) probabilities of sum 1."""
    with torch.no_grad():
        parts = network.probabilities(range(len(network.levels)))
    doubled = [parts[column].double() for column in sorted(parts)]
    return tuple((part / part.sum(dim=1, keepdim=True)).numpy() for part in doubled)


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("torch", "numpy", "opendp")}
    return {"python": sys.version.split()[0]} | found
