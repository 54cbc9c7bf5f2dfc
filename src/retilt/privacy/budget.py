"""Privacy budgets as values, and what the generator of the synthetic table declared."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeAlias, get_args

import numpy as np

from retilt.exceptions import InputError, PrivacyError
from retilt.measures.base import Relation
from retilt.measures.entries import listed, short
from retilt.privacy.unit import Unit

LEAST_DELTA = 1e-300
"""Below this, fractions of delta lose digits in floats, and with them the proof."""


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _exact(value: Any) -> Fraction:
    """The number as a fraction, 0 for NaN and infinities: comparing those to others can warn."""
    if isinstance(value, (Integral, Fraction)):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(float(value)) if math.isfinite(value) else Fraction(0)


def _positive(name: str, value: Any) -> int | float:
    """The value as a Python number: NumPy's numbers and fractions are taken as well.

    A whole number stays whole: 1 prints better than 1.0, and a file keeps what was given.
    """
    if not _is_real(value) or not 0 < _exact(value) <= Fraction(sys.float_info.max):
        raise InputError(
            f"{name}: got {short(value)}, expected a finite number above 0. To work without "
            "privacy on data that needs none, see retilt.testing.insecure_measure."
        )
    return int(value) if isinstance(value, Integral) else float(value)


def decimal(value: float) -> Fraction:
    """The number that a float is written as: what is claimed, and what adds up.

    >>> decimal(0.1) + decimal(0.2) == decimal(0.3)
    True
    """
    return Fraction(str(value))


def float_up(value: Fraction) -> int | float:
    """The least number whose written form is at least ``value``; whole numbers stay whole.

    >>> float_up(decimal(0.1) + decimal(0.7)), float_up(Fraction(4)), float_up(Fraction(1, 3))
    (0.8, 4, 0.33333333333333337)
    """
    if value.denominator == 1:
        return int(value)
    near = float(value)
    return near if decimal(near) >= value else math.nextafter(near, math.inf)


def float_down(value: Fraction) -> int | float:
    """The largest number whose written form is at most ``value``; whole numbers stay whole.

    >>> float_down(decimal(1.0) - decimal(0.9)), float_down(Fraction(2, 3))
    (0.1, 0.6666666666666666)
    """
    if value.denominator == 1:
        return int(value)
    near = float(value)
    return near if decimal(near) <= value else math.nextafter(near, -math.inf)


def least(value: float) -> Fraction:
    """The smaller of a float and the number that it is written as: noise has to serve both."""
    return min(Fraction(value), decimal(value))


@dataclass(frozen=True, slots=True)
class PureDP:
    """epsilon-differential privacy; measured with discrete Laplace noise."""

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))


@dataclass(frozen=True, slots=True)
class ApproxDP:
    """(epsilon, delta)-differential privacy; measured with discrete Gaussian noise."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _positive("delta", self.delta))
        if not LEAST_DELTA <= self.delta < 1:
            raise InputError(
                f"delta: got {short(self.delta)}, expected a number from {LEAST_DELTA:g} to below "
                "1. For less, use delta = 0 (pure DP)."
            )


@dataclass(frozen=True, slots=True)
class ZCDP:
    """rho-zero-concentrated differential privacy; measured with discrete Gaussian noise."""

    rho: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _positive("rho", self.rho))


Budget: TypeAlias = PureDP | ApproxDP | ZCDP


def make_budget(
    *, epsilon: float | None, delta: float | None, rho: float | None, rows: int | None
) -> Budget:
    """The budget of the options ``epsilon``, ``delta`` and ``rho``.

    ``delta=None`` means ``1 / rows**2``; ``delta=0`` is pure DP; ``rho`` stands alone.

    >>> make_budget(epsilon=1.0, delta=None, rho=None, rows=1000)
    ApproxDP(epsilon=1.0, delta=1e-06)
    >>> make_budget(epsilon=1.0, delta=0, rho=None, rows=None)
    PureDP(epsilon=1.0)
    """
    if rho is not None:
        if epsilon is not None or delta is not None:
            raise InputError("rho: give either rho, or epsilon with delta, not both.")
        return ZCDP(rho)
    if epsilon is None:
        raise InputError("epsilon: missing. Give epsilon (and perhaps delta), or rho.")
    if delta is None:
        if rows is None or rows < 2:
            raise InputError(
                "delta: its default 1 / rows**2 needs 2 rows at least. Give delta (0: pure DP)."
            )
        return ApproxDP(epsilon, 1 / rows**2)
    if _is_real(delta) and delta == 0:
        return PureDP(epsilon)
    return ApproxDP(epsilon, delta)


@dataclass(frozen=True, slots=True)
class Generator:
    """The guarantee that the synthetic table's generator declared, on the same private data.

    Attributes
    ----------
    budget
        What it spent.
    relation
        Its neighbour relation: ``"replace-one"`` or ``"add-remove"`` for rows,
        ``"replace-one-person"`` or ``"add-remove-person"`` for persons, as the generator's
        authors state it (a unit of privacy does as well). There is no default: most generators
        that add noise to counts (AIM, MST) prove add/remove of rows, which is worth half as much
        under replace-one, and nothing is said of persons with several rows.
    persons
        Whether the relation is one of persons; follows from ``relation`` where that says so.

    Examples
    --------
    >>> Generator(PureDP(1), "add-remove").under(Relation.REPLACE)
    PureDP(epsilon=2)
    >>> Generator(PureDP(1), "add-remove-person").name
    'add-remove-person'
    """

    budget: Budget
    relation: Relation
    persons: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.budget, (PureDP, ApproxDP, ZCDP)):
            raise InputError(
                f"generator: got a budget of type {type(self.budget).__name__}, expected "
                "PureDP(epsilon), ApproxDP(epsilon, delta) or ZCDP(rho)."
            )
        given: object = self.relation
        name = given.value if isinstance(given, Relation) else given
        if isinstance(given, get_args(Unit)):
            name = given.name
        if not isinstance(name, str) or name not in _NEIGHBOURS:
            raise InputError(
                f"generator: got the relation {short(given)}, expected one of "
                f"{', '.join(map(repr, _NEIGHBOURS))}."
            )
        relation, persons = _NEIGHBOURS[name]
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "persons", persons or self.persons is True)

    @property
    def name(self) -> str:
        """The neighbour relation's name in files and options."""
        return neighbours_name(self.relation, persons=self.persons)

    def under(self, relation: Relation, *, persons: bool = False) -> Budget:
        """The guarantee under ``relation``, of rows or of persons.

        Replacing a row (or a person) is removing one and adding another, so add/remove
        guarantees convert by group privacy of size two: pure ``2 eps``; (eps, delta) ->
        ``(2 eps, (1 + e^eps) delta)``; rho -> ``4 rho``. The reverse does not hold. Rows and
        persons never convert: a person may own any number of rows.

        Raises
        ------
        PrivacyError
            The generator's relation is replace-one and add/remove-one is wanted: its public
            count would be revealed. Or one is of rows, and the other of persons.
        """
        if persons is not self.persons:
            raise PrivacyError(_mismatch(self, relation, persons=persons))
        if relation is self.relation:
            return self.budget
        if relation is Relation.ADD_REMOVE:
            wanted = neighbours_name(relation, persons=persons)
            raise PrivacyError(
                f"generator: its guarantee is for {self.name} neighbours, with a public number of "
                f"{'persons' if persons else 'rows'}, and can't be turned into one for add/remove "
                f"neighbours. Use unit {self.name}, or declare the generator's {wanted} guarantee."
            )
        budget = self.budget
        if isinstance(budget, PureDP):
            return PureDP(2 * budget.epsilon)
        if isinstance(budget, ZCDP):
            return ZCDP(4 * budget.rho)
        # At an epsilon of 700 the factor would overflow; with any usable delta it is past 1 long
        # before that.
        factor = 1 + math.exp(budget.epsilon) if budget.epsilon < 700 else math.inf
        # Rounded up: far more than what these operations can lose.
        return ApproxDP(2 * budget.epsilon, _cap(factor * budget.delta * (1 + 1e-13)))


_NEIGHBOURS = {
    name + suffix: (relation, bool(suffix))
    for suffix in ("", "-person")
    for name, relation in (("replace-one", Relation.REPLACE), ("add-remove", Relation.ADD_REMOVE))
}


def neighbours_name(relation: Relation, *, persons: bool) -> str:
    """The name of a neighbour relation of rows or of persons.

    >>> neighbours_name(Relation.REPLACE, persons=True)
    'replace-one-person'
    """
    return relation.value + "-person" * persons


def _mismatch(generator: Generator, relation: Relation, *, persons: bool) -> str:
    own, other = ("persons", "rows") if persons else ("rows", "persons")
    wanted = " or ".join(
        dict.fromkeys(neighbours_name(r, persons=persons) for r in (relation, Relation.ADD_REMOVE))
    )
    return (
        f"generator: its guarantee ({generator.name}) protects {other} and the plan's unit "
        f"protects {own}, so the two don't add up. Declare what the generator's authors prove for "
        f"{own} ({wanted}), plan with a unit of {other}, or leave the generator undeclared: the "
        "statement then says that its loss comes on top."
    )


def _cap(delta: float) -> float:
    if delta >= 1:
        raise PrivacyError(
            "generator: converted to replace-one neighbours its delta reaches 1, which "
            "promises nothing. Declare the generator's guarantee for replace-one neighbours."
        )
    return delta


def zcdp_to_approx(rho: float, delta: float) -> float:
    """An epsilon such that rho-zCDP implies (epsilon, delta)-DP: ``rho + 2 sqrt(rho ln(1/delta))``.

    Source: Bun and Steinke (2016), proposition 1.3.

    >>> round(zcdp_to_approx(0.02, 1e-6), 4)
    1.0713
    """
    # Rounded up: far more than what the floating-point operations can lose.
    return (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-13)


def zcdp_cap(epsilon: float, delta: float) -> float:
    """The largest rho that implies (epsilon, delta)-DP by :func:`zcdp_to_approx`, rounded down.

    ``rho + 2 sqrt(rho L) = epsilon`` with L = ln(1/delta) has the root
    ``sqrt(rho) = sqrt(L + epsilon) - sqrt(L) = epsilon / (sqrt(L + epsilon) + sqrt(L))``.

    >>> round(zcdp_cap(1.0713, 1e-6), 4)
    0.02
    """
    log = math.log(1 / delta)
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 1e-12)


def total_budget(
    own: Budget, generator: Generator | None, relation: Relation, *, persons: bool = False
) -> Budget | None:
    """Generator and post-processing together, or ``None`` where the generator is not declared.

    Sums of (epsilon, delta) as the paper's composition proposition; rho adds where both have
    it; a rho beside an (epsilon, delta) is converted at that delta.

    >>> generator = Generator(ApproxDP(3, 1e-6), Relation.REPLACE)
    >>> total_budget(ApproxDP(1, 1e-6), generator, Relation.REPLACE)
    ApproxDP(epsilon=4, delta=2e-06)
    """
    if generator is None:
        return None
    other = generator.under(relation, persons=persons)
    if isinstance(own, ZCDP) and isinstance(other, ZCDP):
        return ZCDP(_sum(own.rho, other.rho))
    if isinstance(own, PureDP) and isinstance(other, PureDP):
        return PureDP(_sum(own.epsilon, other.epsilon))
    deltas = [b.delta for b in (own, other) if isinstance(b, ApproxDP)]
    if not deltas:
        # A pure guarantee is rho-zCDP with rho = epsilon**2 / 2 (Bun and Steinke, prop. 1.4).
        rhos = [
            decimal(b.rho) if isinstance(b, ZCDP) else decimal(b.epsilon) ** 2 / 2
            for b in (own, other)
        ]
        return ZCDP(float_up(sum(rhos, Fraction(0))))
    spent = [_approx(b, deltas[0]) for b in (own, other)]
    return ApproxDP(_sum(*(e for e, _ in spent)), _cap(_sum(*(d for _, d in spent))))


def _sum(*values: float) -> int | float:
    """The sum of numbers as they are written, rounded up."""
    return float_up(sum(map(decimal, values), Fraction(0)))


def _approx(budget: Budget, delta: float) -> tuple[float, float]:
    if isinstance(budget, PureDP):
        return budget.epsilon, 0.0
    if isinstance(budget, ApproxDP):
        return budget.epsilon, budget.delta
    return zcdp_to_approx(budget.rho, delta), delta


def rounded_up(value: float, digits: int) -> str:
    """The number with so many significant digits, never less than it is: a claim rounds up.

    >>> rounded_up(6.550078e-10, 3), rounded_up(1, 6), rounded_up(0.1, 6)
    ('6.56e-10', '1', '0.1')
    """
    exact = Decimal(repr(value))
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    short = exact.quantize(last, rounding=ROUND_CEILING).normalize()
    return f"{short:f}" if -4 <= short.adjusted() < 9 else f"{short:e}"


def describe(budget: Budget) -> str:
    """The budget in symbols, rounded up where it is shortened.

    >>> describe(ApproxDP(1, 1e-6))
    '(ε = 1, δ = 1e-6)-DP'
    """
    if isinstance(budget, PureDP):
        return f"ε = {rounded_up(budget.epsilon, 6)} pure DP"
    if isinstance(budget, ApproxDP):
        epsilon, delta = rounded_up(budget.epsilon, 6), rounded_up(budget.delta, 3)
        return f"(ε = {epsilon}, δ = {delta})-DP"
    return f"ρ = {rounded_up(budget.rho, 6)} zCDP"


def loss_in_words(loss: Mapping[str, float | None]) -> str:
    """An amount of privacy loss in symbols, rounded up where it is shortened.

    >>> loss_in_words({"epsilon": 1.4345644, "delta": 1e-9})
    'ε = 1.43457, δ = 1e-9'
    """
    letters = {"rho": ("ρ", 6), "epsilon": ("ε", 6), "delta": ("δ", 3)}
    return ", ".join(
        f"{letter} = {rounded_up(value, digits)}"
        for name, (letter, digits) in letters.items()
        if (value := loss.get(name)) is not None
    )


def budget_to_dict(budget: Budget) -> dict[str, object]:
    """The budget as JSON."""
    if isinstance(budget, PureDP):
        return {"kind": "pure-dp", "epsilon": budget.epsilon}
    if isinstance(budget, ApproxDP):
        return {"kind": "approx-dp", "epsilon": budget.epsilon, "delta": budget.delta}
    return {"kind": "zcdp", "rho": budget.rho}


def budget_from_dict(content: object) -> Budget:
    """The budget that :func:`budget_to_dict` wrote.

    >>> budget_from_dict({"kind": "zcdp", "rho": 0.5})
    ZCDP(rho=0.5)
    """
    kinds: dict[object, tuple[type[Budget], set[str]]] = {
        "pure-dp": (PureDP, {"epsilon"}),
        "approx-dp": (ApproxDP, {"epsilon", "delta"}),
        "zcdp": (ZCDP, {"rho"}),
    }
    if not isinstance(content, dict) or content.get("kind") not in kinds:
        raise InputError(
            f"budget: got {short(content)}, expected a kind of {', '.join(map(str, kinds))}."
        )
    maker, names = kinds[content["kind"]]
    options = {k: v for k, v in content.items() if k != "kind"}
    if set(options) != names:
        raise InputError(f"budget: got {listed(sorted(options))}, expected {sorted(names)}.")
    return maker(**options)


def generator_to_dict(generator: Generator | None) -> dict[str, object] | None:
    """The guarantee as JSON: the budget and, under ``unit``, the neighbours; null if unknown."""
    if generator is None:
        return None
    return {**budget_to_dict(generator.budget), "unit": generator.name}


def generator_from_dict(content: object) -> Generator | None:
    """The guarantee that :func:`generator_to_dict` wrote; strict."""
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InputError("generator: expected null or an object.")
    budget = {k: v for k, v in content.items() if k != "unit"}
    return Generator(budget_from_dict(budget), content["unit"])
