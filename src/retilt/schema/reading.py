"""Reading a table without giving anything of it away by errors or warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from retilt.exceptions import InputError, RetiltError

Found = TypeVar("Found")


def withheld(job: Callable[[], Found], ours: Callable[[str], RetiltError]) -> Found:
    """Run a job that sees a table: whatever its cells hold, nothing of them shows.

    An error of a library may quote cells, and so may the error that was being handled when
    it was raised (``__context__``, which ``from None`` only hides): neither can be reached
    from the error raised here. NumPy's floating-point warnings, which depend on the cells,
    are off while the job runs.

    Parameters
    ----------
    job
        Called once, without arguments.
    ours
        Makes the error that stands for any that is not ours, from the name of its type.

    Raises
    ------
    RetiltError
        Ours, without its context, or what ``ours`` makes.
    """
    raised: RetiltError
    try:
        with np.errstate(all="ignore"):
            return job()
    except RetiltError as error:
        error.__cause__ = error.__context__ = None
        raised = error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in polars is no Exception
        raised = ours(type(error).__name__)
    raise raised  # here, where no error is being handled that would become its context


def read(job: Callable[[], Found], what: str, advice: str) -> Found:
    """Run a job that reads a table, as :func:`withheld`.

    Parameters
    ----------
    job
        Called once, without arguments.
    what
        What is being read, for the message.
    advice
        What may be wrong, for the message.

    Raises
    ------
    InputError
        Instead of any error that is not ours; it names the error's type only.

    Examples
    --------
    >>> read(lambda: int("s3cret"), "the number", "write it in digits.")
    Traceback (most recent call last):
        ...
    retilt.exceptions.InputError: the number can't be read (ValueError): write it in digits.
    """
    return withheld(job, lambda kind: InputError(f"{what} can't be read ({kind}): {advice}"))
