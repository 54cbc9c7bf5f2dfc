"""What a data set may spend and has spent: amounts of privacy loss, and how they add up.

Two ways to add up, both valid where each plan is chosen after seeing the answers to the last
(Rogers et al. 2016; Whitehouse et al. 2023): sums of epsilon and delta, or sums of rho. Numbers are
added as the decimals that they are written as, so that ten charges of 0.1 are 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

from retilt.exceptions import BudgetError, InputError
from retilt.measures.entries import is_number
from retilt.privacy.budget import (
    ZCDP,
    ApproxDP,
    Budget,
    Generator,
    PureDP,
    decimal,
    describe,
    float_up,
    generator_from_dict,
    generator_to_dict,
    loss_in_words,
    total_budget,
    zcdp_cap,
    zcdp_to_approx,
)
from retilt.privacy.composition import tight_epsilon
from retilt.privacy.plan import Plan
from retilt.privacy.unit import Unit, neighbours_of

Composition: TypeAlias = Literal["sums", "zcdp"]
State: TypeAlias = Literal["reserved", "spent", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of privacy loss in exact fractions: by sums, and by zCDP.

    Attributes
    ----------
    epsilon, delta
        ``None`` where the charge has a rho only.
    rho
        Of the mechanism.
    """

    epsilon: Fraction | None
    delta: Fraction | None
    rho: Fraction


@dataclass(frozen=True, slots=True)
class ChargeRecord:
    """One charge as it stands in the ledger.

    Attributes
    ----------
    number
        Unique in the file, rising.
    state
        ``"reserved"``: it counts, and its process is at work or died. ``"spent"``: it counts.
        ``"withdrawn"``: what is public was refused before anything was measured; does not count.
    time
        When it was reserved, UTC, ISO 8601.
    plan_sha256
        Of the plan; ``None`` if the plan holds Python code, which has no hash.
    amount
        What it spends.
    answers_sha256, answers_file
        Of the answers file, and where the command line wrote it.
    selected
        Whether part of it was spent on choosing measures.
    """

    number: int
    state: State
    time: str
    plan_sha256: str | None
    amount: Amount
    answers_sha256: str | None
    answers_file: str | None
    selected: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The charge as JSON."""
        return {
            "number": self.number,
            "state": self.state,
            "time": self.time,
            "plan_sha256": self.plan_sha256,
            "epsilon": _number(self.amount.epsilon),
            "delta": _number(self.amount.delta),
            "rho": _number(self.amount.rho),
            "answers_sha256": self.answers_sha256,
            "answers_file": self.answers_file,
            "selected": self.selected,
        }


@dataclass(frozen=True)
class Account:
    """A data set of the ledger at one moment.

    Attributes
    ----------
    name
        Of the data set.
    neighbours, person
        The unit: its name, and the column of persons if it is one of persons. How many rows of
        a person are used may differ from plan to plan: all of them protect the same persons.
    composition
        ``"sums"`` or ``"zcdp"``.
    cap
        What measurements may spend in all, the generator not included.
    generator
        The synthetic table's declared guarantee, or ``None``.
    opened
        When, UTC.
    records
        Every charge, withdrawn ones included.
    """

    name: str
    neighbours: str
    person: str | None
    composition: Composition
    cap: Amount
    generator: Generator | None
    opened: str
    records: tuple[ChargeRecord, ...]

    @property
    def charges(self) -> tuple[ChargeRecord, ...]:
        """The charges that count."""
        return tuple(r for r in self.records if r.state != "withdrawn")

    @cached_property
    def spent(self) -> Amount:
        """The sum of all charges that count."""
        return self._with(None)

    def _with(self, more: Amount | None) -> Amount:
        amounts = [r.amount for r in self.charges] + ([] if more is None else [more])
        rho = sum((a.rho for a in amounts), Fraction(0))
        if self.composition == "zcdp":
            return Amount(None, None, rho)
        return Amount(
            sum((a.epsilon or Fraction(0) for a in amounts), Fraction(0)),
            sum((a.delta or Fraction(0) for a in amounts), Fraction(0)),
            rho,
        )

    def check(self, amount: Amount) -> None:
        """Refuse an amount that does not fit under the cap any more.

        Raises
        ------
        BudgetError
            It does not fit, or it has no (epsilon, delta) and the cap has no rho.
        """
        if self.composition == "sums" and amount.epsilon is None:
            raise BudgetError(
                f"budget: the data set {self.name!r} has a cap in ε and δ, and the plan a budget "
                "in ρ. Plan with epsilon and delta, or open a data set with composition zcdp."
            )
        after = self._with(amount)
        if self.composition == "zcdp":
            beyond = "ρ" * (after.rho > self.cap.rho)
        else:
            beyond = " and ".join(
                letter
                for letter, total, most in (
                    ("ε", after.epsilon, self.cap.epsilon),
                    ("δ", after.delta, self.cap.delta),
                )
                if (total or 0) > (most or 0)
            )
        if beyond:
            raise BudgetError(
                f"budget: the data set {self.name!r} has spent {self._words(self.spent)} of its "
                f"cap of {self._words(self.cap)}, and the plan asks for {self._words(amount)} "
                f"more: the {beyond} would pass the cap. Nothing was measured. Plan with less, or "
                "fit the answers that exist: that costs nothing."
            )

    def check_terms(self, unit: Unit, generator: Generator | None) -> None:
        """Refuse a plan whose unit or generator is not the data set's.

        Raises
        ------
        BudgetError
            They don't agree: what they spend could not be added up.
        """
        neighbours, person = neighbours_of(unit)
        if (neighbours, person) != (self.neighbours, self.person):
            own, other = _unit_words(self.neighbours, self.person), _unit_words(neighbours, person)
            raise BudgetError(
                f"budget: the data set {self.name!r} protects {own}, and the plan {other}; what "
                "they spend does not add up. Plan with the data set's unit."
            )
        if self.generator is not None and generator != self.generator:
            said = "no guarantee" if generator is None else _generator_words(generator)
            raise BudgetError(
                f"budget: for the data set {self.name!r} the generator's guarantee was declared as "
                f"{_generator_words(self.generator)}, and in the plan as {said}. Declare the same "
                "in the plan, or open a data set of its own."
            )

    @property
    def total(self) -> Budget | None:
        """Everything spent so far and the generator, under the data set's unit; None if unknown."""
        if self.generator is None:
            return None
        relation, persons = relation_of(self.neighbours)
        spent = self._as_budget()
        if spent is None:
            return self.generator.under(relation, persons=persons)
        return total_budget(spent, self.generator, relation, persons=persons)

    def _as_budget(self) -> Budget | None:
        """What is spent as a budget; None if it is nothing."""
        if not self.charges:
            return None
        if self.composition == "zcdp":
            return ZCDP(float_up(self.spent.rho))
        epsilon, delta = (
            float_up(x or Fraction(0)) for x in (self.spent.epsilon, self.spent.delta)
        )
        return ApproxDP(epsilon, delta) if delta else PureDP(epsilon)

    def _words(self, amount: Amount) -> str:
        names = ["rho"] if self.composition == "zcdp" else ["epsilon", "delta"]
        return loss_in_words({n: _number(getattr(amount, n)) for n in names})

    def loss(self, amount: Amount) -> dict[str, Any]:
        """An amount as JSON; rho is also given as the epsilon that it means at the cap's delta."""
        if self.composition == "sums":
            return {"epsilon": _number(amount.epsilon), "delta": _number(amount.delta)}
        delta = _number(self.cap.delta)
        epsilon = None if delta is None else zcdp_to_approx(float_up(amount.rho), delta)
        if amount is self.cap:
            epsilon = _number(self.cap.epsilon)
        return {"epsilon": epsilon, "delta": delta, "rho": _number(amount.rho)}

    def to_dict(self) -> dict[str, Any]:
        """The data set as JSON."""
        total = self.total
        return {
            "name": self.name,
            "unit": self.neighbours,
            "person": self.person,
            "composition": self.composition,
            "cap": self.loss(self.cap),
            "spent": self.loss(self.spent),
            "left": self.left,
            "generator": generator_to_dict(self.generator),
            "total": None if total is None else _budget_json(total),
            "tight": self.tight(),
            "opened": self.opened,
            "charges": [r.to_dict() for r in self.charges],
            "withdrawn": [r.to_dict() for r in self.records if r.state == "withdrawn"],
        }

    @property
    def left(self) -> dict[str, float | None]:
        """What can still be charged: epsilon and delta, or rho; rounded down."""
        names = ("rho",) if self.composition == "zcdp" else ("epsilon", "delta")
        return {
            name: -float_up(min(Fraction(0), _spent(self.spent, name) - _spent(self.cap, name)))
            for name in names
        }

    def tight(self) -> dict[str, Any] | None:
        """The charges composed by privacy loss distributions, at the cap's delta. Shown only.

        No cap is enforced by it: it is not valid where plans are chosen after seeing answers.
        ``None`` if nothing is spent, without a delta, or without the extra ``accounting``; and
        where a charge has chosen its measures, for which no distribution is worked out here.
        """
        delta = self.cap.delta
        if not delta or not self.charges or any(r.selected for r in self.charges):
            return None
        pure = [float(a.epsilon) for a in self._amounts() if a.epsilon and not a.delta]
        distances = [float(2 * a.rho) ** 0.5 for a in self._amounts() if a.delta or not a.epsilon]
        epsilon = tight_epsilon(pure=pure, gaussian=distances, delta=float(delta))
        return None if epsilon is None else {"epsilon": epsilon, "delta": float(delta)}

    def _amounts(self) -> list[Amount]:
        return [r.amount for r in self.charges]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What answers say of the ledger that they were charged to.

    Attributes
    ----------
    dataset, charge
        The data set's name, and the charge's number.
    composition
        How charges add up.
    cap, spent
        As in ``retilt budget show``; ``spent`` is with this charge.
    """

    dataset: str
    charge: int
    composition: Composition
    cap: Mapping[str, float | None]
    spent: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON."""
        return {
            "dataset": self.dataset,
            "charge": self.charge,
            "composition": self.composition,
            "cap": dict(self.cap),
            "spent": dict(self.spent),
        }


def entry_from_dict(content: object) -> LedgerEntry | None:
    """The entry that :meth:`LedgerEntry.to_dict` wrote, or null; strict."""
    if content is None:
        return None
    if not isinstance(content, dict) or set(content) != set(LedgerEntry.__dataclass_fields__):
        raise InputError("ledger: expected null, or an object as `retilt measure --ledger` writes.")
    check_name(content["dataset"])
    charge, composition = content["charge"], content["composition"]
    names = {"epsilon", "delta", *(["rho"] if composition == "zcdp" else [])}
    right = isinstance(charge, int) and not isinstance(charge, bool) and charge > 0
    for loss in (content["cap"], content["spent"]):
        right &= isinstance(loss, dict) and set(loss) == names
        right = right and all(v is None or (is_number(v) and v >= 0) for v in loss.values())
    if not right or composition not in ("sums", "zcdp"):
        raise InputError("ledger: a value is missing, has the wrong type or is below 0.")
    return LedgerEntry(**content)


def amount_of(plan: Plan) -> Amount:
    """What a plan spends: its budget, and the rho of its mechanism.

    Gaussian noise: ``mu**2 / 2``, exact for the discrete Gaussian, with the mu that the noise was
    calibrated to. Laplace noise: ``epsilon**2 / 2`` (Bun and Steinke 2016, proposition 1.4). What
    choosing measures spends comes on top; whichever they will be, the noise is calibrated to no
    more than the mu of continuous noise.
    """
    calibration, choice = plan.noise.calibration, plan.choice
    if calibration is None:
        return amount_of_budget(plan.budget)
    mu = calibration.distance if choice is None else calibration.continuous
    rho = Fraction(mu) ** 2 / 2 + (Fraction(0) if choice is None else choice.rho)
    return amount_of_budget(plan.budget, _needed(stored(rho)))


def amount_of_budget(budget: Budget, rho: Fraction | None = None) -> Amount:
    """What a budget spends; ``rho`` is its mechanism's, if that is known."""
    if isinstance(budget, ZCDP):
        return Amount(None, None, decimal(budget.rho))
    epsilon = decimal(budget.epsilon)
    if isinstance(budget, PureDP):
        return Amount(epsilon, Fraction(0), epsilon**2 / 2)
    return Amount(epsilon, decimal(budget.delta), Fraction(0) if rho is None else rho)


def check_name(name: object) -> None:
    """Refuse what is no name of a data set."""
    fine = isinstance(name, str) and name.strip() == name and name.isprintable()
    if not fine or not 0 < len(str(name)) <= 200:
        raise InputError(
            f"name: got {name!r:.80}, expected a data set's name: one printable line of at most "
            "200 characters without blanks around it."
        )


def make_cap(
    epsilon: float | None, delta: float | None, rho: float | None, composition: object
) -> tuple[Amount, Composition]:
    """The cap of the options, and how charges add up under it.

    A cap in epsilon and delta allows with zCDP the largest rho that implies it.
    """
    if composition not in (None, "sums", "zcdp"):
        raise InputError(f"composition: got {composition!r}, expected 'sums' or 'zcdp'.")
    if rho is not None:
        if epsilon is not None or delta is not None or composition == "sums":
            raise InputError("rho: a cap in rho stands alone, and its composition is zcdp.")
        return Amount(None, None, decimal(ZCDP(rho).rho)), "zcdp"
    if epsilon is None or delta is None:
        raise InputError("cap: give epsilon and delta (0: pure DP only), or rho.")
    if not isinstance(delta, bool) and delta == 0:
        if composition == "zcdp":
            raise InputError("delta: a cap with composition zcdp needs a delta above 0, or rho.")
        made = decimal(PureDP(epsilon).epsilon)
        return Amount(made, Fraction(0), Fraction(0)), "sums"
    budget = ApproxDP(epsilon, delta)
    largest = Fraction(zcdp_cap(budget.epsilon, budget.delta))
    cap = Amount(decimal(budget.epsilon), decimal(budget.delta), largest)
    return cap, "zcdp" if composition == "zcdp" else "sums"


def account_of(row: tuple[Any, ...], charges: list[tuple[Any, ...]]) -> Account:
    """The data set of a row of each table of a ledger.

    Raises
    ------
    InputError, ValueError, TypeError, KeyError
        What stands there is not what a ledger holds.
    """
    name, neighbours, person, composition, epsilon, delta, rho, generator, opened = row
    relation_of(neighbours)
    return Account(
        name=name,
        neighbours=neighbours,
        person=person,
        composition=composition,
        cap=Amount(_read(epsilon), _read(delta), _read(rho) or Fraction(0)),
        generator=None if generator is None else generator_from_dict(json.loads(generator)),
        opened=str(opened),
        records=tuple(
            ChargeRecord(
                number=int(number),
                state=state,
                time=str(time),
                plan_sha256=plan,
                amount=Amount(_read(e), _read(d), _needed(r)),
                answers_sha256=answers,
                answers_file=file,
                selected=bool(selected),
            )
            for number, state, time, plan, e, d, r, answers, file, selected in charges
        ),
    )


def relation_of(neighbours: str) -> tuple[Any, bool]:
    """The relation of a unit's name, and whether it is one of persons."""
    generator = Generator(PureDP(1), neighbours)  # type: ignore[arg-type]
    return generator.relation, generator.persons


def _unit_words(neighbours: str, person: str | None) -> str:
    return neighbours if person is None else f"{neighbours} (persons by the column {person!r})"


def _generator_words(generator: Generator) -> str:
    return f"{describe(generator.budget)} ({generator.name} neighbours)"


def stored(value: Fraction | None) -> str | None:
    """A fraction as a decimal, rounded up if it has more than 40 digits."""
    if value is None:
        return None
    context = Context(prec=40, rounding=ROUND_CEILING)
    return str(context.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _read(text: str | None) -> Fraction | None:
    """A decimal of at least 0 that :func:`stored` wrote."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > 60:
        raise ValueError
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite() or number < 0 or abs(number.adjusted()) > 400:
        raise ValueError
    return Fraction(number)


def _needed(text: str | None) -> Fraction:
    number = _read(text)
    if number is None:
        raise ValueError
    return number


def _spent(amount: Amount, name: str) -> Fraction:
    return getattr(amount, name) or Fraction(0)


def _number(value: Fraction | None) -> float | int | None:
    """A fraction as JSON, rounded up."""
    return None if value is None else float_up(value)


def _budget_json(budget: Budget) -> dict[str, Any]:
    if isinstance(budget, ZCDP):
        return {"rho": budget.rho}
    return {
        "epsilon": budget.epsilon,
        "delta": 0 if isinstance(budget, PureDP) else budget.delta,
    }
