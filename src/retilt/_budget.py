"""The commands ``retilt budget open|show|list``: data sets, their caps and what was spent."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retilt._options import (
    GENERATOR_DELTA,
    GENERATOR_EPSILON,
    GENERATOR_RHO,
    GENERATOR_UNIT,
    OUTPUT,
    QUIET,
    Output,
    Unit,
    generator_of,
    value_of,
)
from retilt._terminal import Terminal

if TYPE_CHECKING:
    from retilt.privacy import unit as units

budget = typer.Typer(
    no_args_is_help=True,
    help=(
        "Keep a ledger: what was spent on each private table, and a cap that `retilt measure "
        "--ledger` can't pass."
    ),
)

LEDGER = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger, a SQLite file.")]


class Composition(StrEnum):
    """How charges add up."""

    SUMS = "sums"
    ZCDP = "zcdp"


def _terminal(context: typer.Context, output: Output, quiet: bool) -> Terminal:
    return Terminal(as_json=output is Output.JSON, quiet=quiet or context.obj.quiet)


def _unit(unit: Unit, person: str | None) -> units.Unit:
    """The data set's unit; how many rows of a person are used is each plan's own affair."""
    from retilt._options import unit_of

    return unit_of(unit, person, None if person is None else 1)


@budget.command(name="open")
def open_dataset(
    context: typer.Context,
    ledger: LEDGER,
    name: Annotated[str, typer.Option(help="The data set's name.")],
    epsilon: Annotated[float | None, typer.Option(help="The cap's ε.")] = None,
    delta: Annotated[float | None, typer.Option(help="The cap's δ; 0 allows pure DP only.")] = None,
    rho: Annotated[
        float | None, typer.Option(help="A cap in ρ instead; composition is then zcdp.")
    ] = None,
    composition: Annotated[
        Composition | None,
        typer.Option(
            help="How charges add up: by sums of ε and δ (the default), or of ρ, under a cap "
            "that implies ε and δ."
        ),
    ] = None,
    unit: Annotated[Unit, typer.Option(help="Which tables are neighbours.")] = Unit.REPLACE,
    person: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Protect persons: the column that tells them apart."),
    ] = None,
    generator_epsilon: GENERATOR_EPSILON = None,
    generator_delta: GENERATOR_DELTA = None,
    generator_rho: GENERATOR_RHO = None,
    generator_unit: GENERATOR_UNIT = None,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Enter a data set with its cap into LEDGER, which is made if it is missing."""
    from retilt.privacy.ledger import Ledger

    terminal = _terminal(context, output, quiet)
    kept = Ledger(ledger)
    kept.open_dataset(
        name,
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        composition=value_of(composition),
        unit=_unit(unit, person),
        generator=generator_of(generator_epsilon, generator_delta, generator_rho, generator_unit),
    )
    account = kept.account(name).to_dict()
    terminal.say(f"Opened {name!r} in {ledger} with a cap of {_loss(account['cap'])}.")
    terminal.result(account)
    return 0


@budget.command()
def show(
    context: typer.Context,
    ledger: LEDGER,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="May be left out where LEDGER has one data set only."),
    ] = None,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Show a data set's cap, what was spent, and every charge."""
    from retilt.privacy.ledger import Ledger

    terminal = _terminal(context, output, quiet)
    account = Ledger(ledger).account(dataset).to_dict()
    _show(terminal, account)
    terminal.result(account)
    return 0


@budget.command(name="list")
def list_datasets(
    context: typer.Context,
    ledger: LEDGER,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """List the data sets of LEDGER."""
    from retilt.privacy.ledger import Ledger

    terminal = _terminal(context, output, quiet)
    kept = Ledger(ledger)
    accounts = [kept.account(name).to_dict() for name in kept.names()]
    rows = [
        [a["name"], _loss(a["cap"]), _loss(a["spent"]), str(len(a["charges"])), _unit_of(a)]
        for a in accounts
    ]
    terminal.table(f"Data sets: {len(rows)}", ["data set", "cap", "spent", "charges", "unit"], rows)
    terminal.result({"datasets": accounts})
    return 0


def _show(terminal: Terminal, account: dict[str, Any]) -> None:
    terminal.say(
        f"{account['name']}: spent {_loss(account['spent'])} of {_loss(account['cap'])}; "
        f"{_loss(account['left'])} left "
        f"({_unit_of(account)} neighbours, opened {account['opened']})."
    )
    if account["total"] is not None:
        terminal.say(f"Together with the generator: {_loss(account['total'])}.")
    if account["tight"] is not None:
        terminal.say(
            f"By privacy loss distributions it would be {_loss(account['tight'])}. That is for "
            "information: it holds for plans that were all fixed beforehand, so no cap goes by it."
        )
    if account["charges"]:
        terminal.table(
            "Charges",
            ["charge", "time", "spends", "state", "answers"],
            _rows(account["charges"], account["composition"]),
        )
    if account["withdrawn"]:
        count = len(account["withdrawn"])
        terminal.say(
            f"{count} charge{' was' if count == 1 else 's were'} withdrawn before anything was "
            "measured (a missing column, say), and not counted."
        )


def _rows(charges: list[dict[str, Any]], composition: str) -> list[list[str]]:
    names = ["rho"] if composition == "zcdp" else ["epsilon", "delta"]
    return [
        [
            str(c["number"]),
            c["time"],
            _loss({k: c[k] for k in names}),
            c["state"],
            c["answers_file"] or (c["answers_sha256"] or "none on record")[:16],
        ]
        for c in charges
    ]


def _loss(loss: dict[str, Any]) -> str:
    from retilt.privacy.budget import loss_in_words

    return loss_in_words(loss)


def _unit_of(account: dict[str, Any]) -> str:
    person = account["person"]
    return str(account["unit"]) + ("" if person is None else f" by {person}")
