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

The paper leaves the step size open. Ours falls linearly and is damped:

.. math::
   \alpha_t = \frac{2}{L} \Bigl( 1 - \frac{t}{T} \Bigr) \Big/ \max(1, r_t), \qquad
   r_t = \frac{1}{\tau^{(t)}} \frac{1}{|B_t|} \sum_{i \in B_t} e^{-\lambda^{(t)} \cdot \bar q_i} ,

with t counting the T batches of all epochs and L the largest eigenvalue of the queries'
covariance under the base weights: 2 / L is the largest step at which gradient descent on the
dual is stable near its start. Without the fall the noise of the batches would keep the
multipliers moving for ever. The ratio :math:`r_t` is what a batch's normaliser is of the last
one's; where the weights gather on a few rows it can be astronomical, and an undamped step then
throws the multipliers out of every bound. Damped, one step moves them by no more than
:math:`\alpha_t \max_i \|\bar q_i\|`, so that nothing overflows in Algorithm 2 however far the
answers are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from retilt.measures.base import FloatArray
from retilt.tilting.fold import Positions, Rows
from retilt.tilting.reduction import Reduced
from retilt.tilting.solvers import Verdict

Algorithm: TypeAlias = Literal[1, 2]

_BLOCK = 2**20
"""Query values held at once: 8 MiB."""


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
        largest = 2 / state.curvature if state.curvature > 0 else 0.0
        step = _step_plain if self.algorithm == 1 else _step_log
        log_tau = state.log_normaliser
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for values in self._batches(rows, order, reduced.answers):
                length = largest * (1 - done / total)
                multipliers, log_tau = step(values, multipliers, log_tau, length, self.tolerance)
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


def soft_threshold(x: FloatArray, threshold: FloatArray | float) -> FloatArray:
    """The proximal operator of the L1 norm: towards zero by ``threshold``, and not beyond."""
    result: FloatArray = np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0)
    return result


def _step_plain(
    values: FloatArray, multipliers: FloatArray, log_tau: float, length: float, tolerance: float
) -> tuple[FloatArray, float]:
    """One iteration of Algorithm 1 on a batch."""
    ratios = np.exp(-(values @ multipliers)) / np.exp(log_tau)
    length /= max(1.0, float(ratios.mean()))
    moved = multipliers + (length / ratios.size) * (ratios @ values)
    moved = soft_threshold(moved, length * tolerance)
    return moved, float(np.log(np.exp(-(values @ moved)).mean()))


def _step_log(
    values: FloatArray, multipliers: FloatArray, log_tau: float, length: float, tolerance: float
) -> tuple[FloatArray, float]:
    """One iteration of Algorithm 2 on a batch."""
    scores = -(values @ multipliers)
    top = float(scores.max())
    shares = np.exp(scores - top)
    total = float(shares.sum())
    # r_t times tau is the batch's own normaliser; where r_t > 1 the damping cancels tau.
    log_ratio = top + float(np.log(total / shares.size)) - log_tau
    pull = np.exp(min(log_ratio, 0.0)) / total
    length_now = length * float(np.exp(-max(log_ratio, 0.0)))
    moved = multipliers + (length * pull) * (shares @ values)
    moved = soft_threshold(moved, length_now * tolerance)
    scores = -(values @ moved)
    top = float(scores.max())
    return moved, top + float(np.log(np.exp(scores - top).mean()))
