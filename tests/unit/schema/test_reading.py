"""Nothing of a table can be reached from an error of ours."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import numpy as np
import pytest

from retilt.exceptions import ColumnTypeError, InputError
from retilt.schema.reading import read

SECRET = "SECRET-77"


def reachable(error: BaseException) -> list[BaseException]:
    """The error and whatever hangs on it."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found


class Panic(BaseException):
    """As PyO3's: no Exception."""


def fail(error: BaseException) -> Any:
    raise error


def fail_while_handling(error: BaseException) -> Any:
    try:
        raise ValueError(SECRET)
    except ValueError:
        raise error from None


@pytest.mark.parametrize("job", [fail, fail_while_handling])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, Panic, UnicodeError])
def test_foreign_errors_become_ours(job: Any, kind: type[BaseException]) -> None:
    with pytest.raises(InputError) as caught:
        read(lambda: job(kind(SECRET)), "the table", "it may be broken.")
    message = f"the table can't be read ({kind.__name__}): it may be broken."
    assert str(caught.value) == message
    assert reachable(caught.value) == [caught.value]
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))


@pytest.mark.parametrize("job", [fail, fail_while_handling])
def test_our_own_errors_come_alone(job: Any) -> None:
    error = ColumnTypeError("column 'x': its type is int8.")
    with pytest.raises(ColumnTypeError) as caught:
        read(lambda: job(error), "the table", "it may be broken.")
    assert caught.value is error
    assert reachable(error) == [error]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_user_may_stop(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        read(lambda: fail(kind()), "the table", "")


def test_no_floating_point_warning() -> None:
    before = np.geterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read(lambda: np.zeros(1) / np.zeros(1), "the table", "")
    assert np.isnan(found[0])
    assert np.geterr() == before
