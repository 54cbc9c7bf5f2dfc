"""Every error that retilt raises on purpose, in one tree.

A message says what was given, what is allowed and what to do. It never holds a value, a count
or a bound of the private table: the one exception is its number of rows where the unit of
privacy makes that number public (see :class:`RowCountError`).

The command line turns ``exit_code`` into the process's exit code.
"""

from __future__ import annotations


class RetiltError(Exception):
    """Base of all errors of this library."""

    exit_code: int = 2


class InputError(RetiltError, ValueError):
    """Something given to retilt is not usable: an option, a value, a file, a table."""


class SchemaError(InputError):
    """A schema is malformed, incomplete, or does not fit a table."""


class WorkloadError(InputError):
    """A workload names no measure, an unknown column, or something that can't be measured."""


class ColumnTypeError(InputError, TypeError):
    """A column's *declared* type (Parquet, Arrow, polars) can't hold what the schema says.

    The message shows the type, never a value.
    """


class RowCountError(InputError):
    """The private table's row count is not the plan's, where the unit makes it public."""


class FormatError(InputError):
    """A plan, answers or tilt file can't be read, or belongs to something else."""


class LedgerError(InputError):
    """A ledger file is missing, damaged or busy, or has no such data set."""


class LedgerUnusableError(LedgerError):
    """A ledger can't be read or written now: another process holds it, or the disk is full."""


class OutputExistsError(InputError):
    """An output file exists already and overwriting was not asked for."""


class InternalError(RetiltError):
    """A fault of ours.

    It was met while the private table was read, and its own text is withheld; or weights do not
    keep what was asked for, and are not returned.
    """

    exit_code = 1


class PrivacyError(RetiltError):
    """Refused because the privacy claim could not be kept (exit code 3)."""

    exit_code = 3


class BudgetError(PrivacyError):
    """A ledger refused a charge: the cap would be passed, or the plan is on other terms."""


class RetiltWarning(UserWarning):
    """Base of all warnings of this library."""


class RepeatedPlanWarning(RetiltWarning):
    """A plan is measured again whose answers exist: that spends its budget again."""


class LedgerWarning(RetiltWarning):
    """What a ledger could not note of a charge that is paid for."""
