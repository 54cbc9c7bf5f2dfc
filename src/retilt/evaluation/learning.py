"""scikit-learn, which the extra ``evaluation`` brings: asked for by name, and kept quiet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from retilt.evaluation.figures import Undefined
from retilt.exceptions import InputError
from retilt.measures.base import FloatArray


def require_learning(what: str) -> None:
    """Refuse, before anything is read, what needs scikit-learn where it is not installed.

    Raises
    ------
    InputError
        Names the extra.
    """
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise InputError(
            f"{what} needs scikit-learn, which is not installed: pip install 'retilt[evaluation]'."
        ) from None


@contextmanager
def quietly() -> Iterator[None]:
    """Train without warnings, and turn what scikit-learn refuses into an undefined figure.

    Warnings of few steps or of columns without spread are no news: which models are trained,
    and how long, is part of a figure's definition.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (ValueError, ArithmeticError) as error:
            # Its text could quote cells.
            refused = f"scikit-learn can't train on these values ({type(error).__name__})"
            raise Undefined(refused) from None


def require_finite(coefficients: FloatArray) -> None:
    """Refuse a model that ran to infinity."""
    if not np.isfinite(coefficients).all():
        raise Undefined("the regression found no finite coefficients")
