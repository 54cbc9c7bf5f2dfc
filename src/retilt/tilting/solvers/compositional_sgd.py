r"""The paper's Algorithm 1 and Algorithm 2: a stochastic compositional proximal gradient method.

The dual's gradient is a ratio of two means over the rows. A batch estimates the numerator, an
earlier batch the denominator, and the L1 term is taken care of by its proximal operator:

.. math::
   \lambda^{(t+1)} &= \mathrm{prox}_{\alpha_t \gamma \|\cdot\|_1} \Bigl( \lambda^{(t)}
       + \frac{\alpha_t}{\tau^{(t)}} \frac{1}{|B_t|} \sum_{i \in B_t}
         e^{-\lambda^{(t)} \cdot \bar q_i} \, \bar q_i \Bigr), \\
   \tau^{(t+1)} &= \frac{1}{|B_t|} \sum_{i \in B_t} e^{-\lambda^{(t+1)} \cdot \bar q_i},
       \qquad \bar q_i = q_i - a .

Algorithm 1 computes the exponentials as they stand. Algorithm 2 is the same in the log domain:
what it stores as ``ll`` is :math:`e^{\lambda}`, so that :math:`\prod_k ll_k^{-\bar q_k}` is the
same exponential. Here :math:`\log ll = \lambda` and :math:`\log \tau` are stored and the largest
exponent is taken out of every sum, which is what the log domain is for.

The paper leaves the step size open. Ours falls linearly, and is capped:

.. math::
   \alpha_t = \frac{1}{L} \Bigl( 1 - \frac{t}{T} \Bigr) \min\Bigl(1, \frac{M}{r_t}\Bigr), \qquad
   r_t = \frac{1}{\tau^{(t)}} \frac{1}{|B_t|} \sum_{i \in B_t} e^{-\lambda^{(t)} \cdot \bar q_i} ,

with t counting the T batches of all epochs, M those of one epoch, and L the largest eigenvalue of
the queries' covariance under the base weights, which is the dual's curvature at the start.
Without the fall the noise of the batches would keep the multipliers moving for ever. The ratio
:math:`r_t` is what a batch's normaliser is of the last one's. A batch's normaliser is at most M
times the table's, so a ratio above M says that the last batch missed nearly all of the weight, and
not that this one has more of it. Such ratios can be astronomical where the weights gather on a
few rows; capped, one step moves the multipliers by no more than
:math:`M \max_i \|\bar q_i\| / L`, so that nothing overflows in Algorithm 2 however far the answers
are. Smaller ratios are left alone: a cap at 1 would shorten just the steps of the batches that
hold the heavy rows, and the multipliers would run to rows that few batches see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Rows
from retilt.tilting.parts import Positions
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers import Verdict

Algorithm: TypeAlias = Literal[1, 2]

_BLOCK = 2**16
"""Query values held at once: 512 KiB, which stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class State:
    """Where the algorithm stands after a number of epochs.

    Attributes
    ----------
    multipliers
        (V,).
    log_normaliser
        Logarithm of tau, the last batch's estimate of the normaliser.
    epoch
        Epochs done.
    curvature
        L, the largest eigenvalue of the queries' covariance under the base weights.
    """

    multipliers: FloatArray
    log_normaliser: float
    epoch: int
    curvature: float


@dataclass(frozen=True, slots=True)
class CompositionalSGD:
    """Algorithm 1 or 2; one step of the driver is one epoch.

    Parameters
    ----------
    tolerance
        Gamma of the L1 term, zero or more.
    epochs
        Passes over the rows, one or more.
    batch
        Rows of a batch, one or more.
    algorithm
        1: exponentials as they stand (they may overflow); 2: in the log domain.
    generator
        Draws the batches. An epoch goes through all rows in random order; rows of unequal base
        weight are drawn with replacement by it.
    """

    tolerance: float
    epochs: int
    batch: int
    algorithm: Algorithm
    generator: np.random.Generator

    def init(self, reduced: Reduced, eta: float, start: FloatArray | State) -> State:
        """At multipliers; the paper starts at zero."""
        if isinstance(start, State):
            return start
        size = start.size
        covariance = reduced.rows.covariance(reduced.rows.fold(np.zeros(size)))
        top = float(np.linalg.eigvalsh(covariance)[-1]) if size else 0.0
        return State(start, 0.0, 0, top)

    def step(self, reduced: Reduced, eta: float, state: State) -> State:
        """One epoch."""
        rows, multipliers = reduced.rows, state.multipliers
        count = rows.support.size
        batches = -(-count // self.batch)
        order = _order(rows, self.generator)
        done, total = state.epoch * batches, self.epochs * batches
        largest = 1 / state.curvature if state.curvature > 0 else 0.0
        step = _step_plain if self.algorithm == 1 else _step_log
        log_tau = state.log_normaliser
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for values in self._batches(rows, order, reduced.answers):
                length = largest * (1 - done / total)
                multipliers, log_tau = step(
                    values, multipliers, log_tau, length, batches, self.tolerance
                )
                done += 1
        return State(multipliers, log_tau, state.epoch + 1, state.curvature)

    def verdict(self, reduced: Reduced, eta: float, state: State) -> Verdict | None:
        """End only after the last epoch, or where Algorithm 1 has overflowed."""
        if not np.all(np.isfinite(state.multipliers)):
            return Verdict.STALLED
        return None

    def _batches(self, rows: Rows, order: Positions, answers: FloatArray) -> Iterator[FloatArray]:
        """(batch, V) query values less the answers, in the given order of rows."""
        batches = max(1, _BLOCK // max(1, self.batch * answers.size))
        for start in range(0, order.size, batches * self.batch):
            block = rows.values(order[start : start + batches * self.batch])
            block -= answers
            for first in range(0, block.shape[0], self.batch):
                yield block[first : first + self.batch]


def _order(rows: Rows, generator: np.random.Generator) -> Positions:
    """Merged rows of an epoch: every row once in random order, or drawn by base weight."""
    count = rows.support.size
    if np.ptp(rows.base) <= 1e-12 * rows.base.max():
        chosen = generator.permutation(count)
    else:
        chosen = generator.choice(count, size=count, p=rows.base)
    result: Positions = chosen if rows.groups is None else rows.groups[chosen]
    return result


def soft_threshold(x: FloatArray, threshold: float) -> FloatArray:
    """The proximal operator of the L1 norm: towards zero by ``threshold``, and not beyond."""
    result: FloatArray = np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0)
    return result


def _step_plain(
    values: FloatArray,
    multipliers: FloatArray,
    log_tau: float,
    length: float,
    cap: float,
    tolerance: float,
) -> tuple[FloatArray, float]:
    """One iteration of Algorithm 1 on a batch."""
    ratios = np.exp(-(values @ multipliers)) / np.exp(log_tau)
    length *= min(1.0, cap / float(ratios.mean()))
    moved = multipliers + (length / ratios.size) * (ratios @ values)
    moved = soft_threshold(moved, length * tolerance)
    return moved, float(np.log(np.exp(-(values @ moved)).mean()))


def _step_log(
    values: FloatArray,
    multipliers: FloatArray,
    log_tau: float,
    length: float,
    cap: float,
    tolerance: float,
) -> tuple[FloatArray, float]:
    """One iteration of Algorithm 2 on a batch."""
    scores = -(values @ multipliers)
    top = float(scores.max())
    shares = np.exp(scores - top)
    total = float(shares.sum())
    log_ratio = top + math.log(total / shares.size) - log_tau
    log_cap = math.log(cap)
    pull = math.exp(min(log_ratio, log_cap)) / total
    moved = multipliers + (length * pull) * (shares @ values)
    length *= math.exp(min(0.0, log_cap - log_ratio))
    moved = soft_threshold(moved, length * tolerance)
    scores = -(values @ moved)
    top = float(scores.max())
    return moved, top + math.log(np.exp(scores - top).sum() / scores.size)
