"""What-if: the expected error of every statistic at several budgets, from the synthetic table.

Each budget has a plan of its own, as it would be made for it: a plan's clamps and loudnesses
depend on its budget. Costs no privacy, for nothing here can open the private table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retilt._output import refuse_existing
from retilt.engines.local import open_table
from retilt.exceptions import InputError
from retilt.measures.entries import short
from retilt.measures.workload import Workload
from retilt.outlooks import Outlook, outlook
from retilt.planning import plan
from retilt.privacy.budget import Budget, budget_to_dict, describe
from retilt.privacy.plan import table_frame

MOST_BUDGETS = 50
PLOTS = (".svg", ".png", ".pdf")
"""Endings of a plot's file."""


@dataclass(frozen=True)
class Forecast:
    """Expected errors at several budgets. Made by ``retilt.forecast``.

    Attributes
    ----------
    budgets
        (B,) in ascending order.
    statistics
        (S,) names of everything that is asked.
    values
        (S,) on the synthetic table, clamped as at the largest budget; ``None`` where undefined.
    expected
        (B, S) expected standard errors; ``None`` where undefined.
    drowned
        (B, S) whether noise drowns a statistic: what it divides by is lost in noise, or its
        expected error is at least its own size on the synthetic table.
    """

    budgets: tuple[Budget, ...]
    statistics: tuple[str, ...]
    values: tuple[float | None, ...]
    expected: tuple[tuple[float | None, ...], ...]
    drowned: tuple[tuple[bool, ...], ...]

    def __repr__(self) -> str:
        return f"Forecast({len(self.statistics)} statistics at {len(self.budgets)} budgets)"

    @property
    def drowned_share(self) -> tuple[float, ...]:
        """(B,) share of the statistics that noise drowns."""
        return tuple(float(np.mean(row)) for row in self.drowned)

    @property
    def median_error(self) -> tuple[float | None, ...]:
        """(B,) median over statistics of the expected error by the value's size, where defined."""
        found = []
        for row in self.expected:
            told = zip(row, self.values, strict=True)
            relative = [e / abs(v) for e, v in told if e is not None and v]
            found.append(float(np.median(relative)) if relative else None)
        return tuple(found)

    def table(self) -> list[dict[str, Any]]:
        """A row for each statistic and budget.

        ``statistic``, ``synthetic``, ``budget`` (in words), ``amount`` (epsilon, or rho),
        ``expected_standard_error``, ``drowned``.
        """
        return [
            {
                "statistic": name,
                "synthetic": value,
                "budget": describe(budget),
                "amount": amount_of(budget),
                "expected_standard_error": errors[k],
                "drowned": drowned[k],
            }
            for k, (name, value) in enumerate(zip(self.statistics, self.values, strict=True))
            for budget, errors, drowned in zip(
                self.budgets, self.expected, self.drowned, strict=True
            )
        ]

    def to_frame(self) -> Any:
        """:meth:`table` in pandas if it is installed, else PyArrow."""
        return table_frame(self.table())

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "budgets": [
                {**budget_to_dict(b), "drowned_share": share, "median_relative_error": error}
                for b, share, error in zip(
                    self.budgets, self.drowned_share, self.median_error, strict=True
                )
            ],
            "statistics": [
                {
                    "statistic": name,
                    "synthetic": self.values[k],
                    "expected_standard_errors": [row[k] for row in self.expected],
                    "drowned": [row[k] for row in self.drowned],
                }
                for k, name in enumerate(self.statistics)
            ],
        }

    def plot(self, path: str | Path, *, force: bool = False) -> None:
        """Draw the expected errors over the budgets.

        Parameters
        ----------
        path
            Its ending says the format: .svg, .png or .pdf.
        force
            Whether an existing file is replaced.

        Raises
        ------
        InputError
            Another ending; or the file exists, or can't be written.
        """
        from retilt.report.errors_plot import save_errors_plot

        check_plot(path, force=force)
        sizes = [abs(v) if v else np.nan for v in self.values]
        expected = np.array([[np.nan if e is None else e for e in row] for row in self.expected])
        try:
            save_errors_plot(
                Path(path),
                amounts=[amount_of(b) for b in self.budgets],
                errors=expected,
                sizes=np.array(sizes),
                names=self.statistics,
                drowned=self.drowned_share,
                unit=symbol_of(self.budgets[0]),
            )
        except OSError as error:
            raise InputError(f"output {path}: it can't be written ({error.strerror}).") from None


def check_plot(path: str | Path, *, force: bool) -> None:
    """Refuse a plot's file before anything is computed."""
    if Path(path).suffix.lower() not in PLOTS:
        raise InputError(f"plot {path}: its name has to end in one of {', '.join(PLOTS)}.")
    refuse_existing(Path(path), force)


def amount_of(budget: Budget) -> float:
    """The number that budgets of one kind are compared by: epsilon, or rho."""
    amount: float = getattr(budget, "epsilon", None) or getattr(budget, "rho")  # noqa: B009
    return amount


def symbol_of(budget: Budget) -> str:
    """How that number is called."""
    return "ε" if hasattr(budget, "epsilon") else "ρ"


def forecast(
    synthetic: Any,
    workload: Workload,
    *,
    epsilons: Iterable[float] | None = None,
    rhos: Iterable[float] | None = None,
    **options: Any,
) -> Forecast:
    """Expected error of every statistic at several budgets.

    Parameters
    ----------
    synthetic, workload
        As for :func:`retilt.plan`.
    epsilons, rhos
        The budgets: values of epsilon, or of rho (zCDP). One of the two.
    **options
        The other parameters of :func:`retilt.plan`: ``delta``, ``rows``, ``unit``,
        ``generator``, ``schema``, ``basis``, ``select``, ``select_share``.

    Returns
    -------
    Forecast

    Raises
    ------
    InputError, PrivacyError
        As :func:`retilt.plan`.
    """
    if (epsilons is None) == (rhos is None):
        raise InputError("forecast: give either epsilons=[...] or rhos=[...].")
    for name in ("epsilon", "rho"):
        if name in options:
            raise InputError(f"forecast: {name} is not one of its options; give {name}s=[...].")
    kind = "epsilon" if rhos is None else "rho"
    amounts = _ascending(epsilons if rhos is None else rhos, f"{kind}s")
    table = open_table(synthetic)
    budgets: list[dict[str, Any]] = [{kind: amount, **options} for amount in amounts]
    return _joined([outlook(table, plan(table, workload, **budget)) for budget in budgets])


def _ascending(given: Any, what: str) -> list[float]:
    """The budgets' numbers, each once, in order."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InputError(f"{what}: got {short(given)}, expected numbers such as [0.1, 0.3, 1, 3].")
    numbers = list(given)
    good = all(
        isinstance(n, (int, float, np.integer, np.floating))
        and not isinstance(n, bool)
        and 0 < n < np.inf
        for n in numbers
    )
    if not numbers or not good:
        raise InputError(f"{what}: got {short(numbers)}, expected finite numbers above 0.")
    found = sorted({float(n) for n in numbers})
    if len(found) > MOST_BUDGETS:
        raise InputError(f"{what}: got {len(found)} budgets, expected at most {MOST_BUDGETS}.")
    return found


def _joined(seen: list[Outlook]) -> Forecast:
    """One forecast of plans that ask the same, though clamps may make one statistic two."""
    keys = [_numbered(o.plan.queries.statistics) for o in seen]
    every = list(dict.fromkeys(k for own in reversed(keys) for k in own))
    values: dict[tuple[str, int], float | None] = {}
    expected, drowned = [], []
    for own, at in zip(keys, seen, strict=True):
        values.update(zip(own, at.values, strict=True))
        errors = dict(zip(own, at.plan.expected, strict=True))
        lost = dict(zip(own, map(_drowned, at.dominated, at.values, at.plan.expected), strict=True))
        expected.append(tuple(errors.get(k) for k in every))
        drowned.append(tuple(lost.get(k, False) for k in every))
    return Forecast(
        budgets=tuple(o.plan.budget for o in seen),
        statistics=tuple(name for name, _ in every),
        values=tuple(values[k] for k in every),
        expected=tuple(expected),
        drowned=tuple(drowned),
    )


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Names, told apart where two are the same."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        counts[name] += 1
        found.append((name, counts[name]))
    return found


def _drowned(dominated: bool, value: float | None, error: float | None) -> bool:
    return dominated or (value is not None and error is not None and 0 < error >= abs(value))
