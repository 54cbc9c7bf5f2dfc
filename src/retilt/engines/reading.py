"""Readers' errors replaced by ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retilt.exceptions import InputError, RetiltError


@contextmanager
def reading(what: str, advice: str) -> Iterator[None]:
    """Replace any error of a reader by an ``InputError``: its own text may quote the table.

    Parameters
    ----------
    what
        What is being read.
    advice
        What may be wrong, for the message.
    """
    try:
        yield
    except RetiltError:
        raise
    except Exception:
        raise InputError(f"{what} can't be read: {advice}") from None
