"""What ``evaluate`` is asked for: checked before any table is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from retilt._input import short
from retilt.evaluation.learning import require_learning
from retilt.exceptions import InputError, SchemaError
from retilt.schema.columns import Schema
from retilt.schema.declared import Declared

_SCHEMAS = (type(None), str, Path, Schema, Mapping, Declared)
_POSITIVES = (type(None), str, int, float, bool, np.generic)


def check_options(
    *, target: Any, test: Any, positive: Any, detection: Any, schema: Any, columns: Any
) -> list[str] | None:
    """Refuse options of other types, and those that do not go together.

    Returns
    -------
    list of str or None
        ``columns``, each once; None where none were named.

    Raises
    ------
    InputError, SchemaError
        With the option's name, what was got and what is expected; or names the extra that is not
        installed.
    """
    if target is not None and not isinstance(target, str):
        raise InputError(f"target: got {short(target)}, expected the name of a column.")
    for name, value in (("test", test), ("positive", positive)):
        if value is not None and target is None:
            raise InputError(f"{name} is for predicting a target: name one (target, --target).")
    if not isinstance(positive, _POSITIVES):
        raise InputError(
            f"positive: got {short(positive)}, expected one value of the target: text, a number, "
            "or true or false."
        )
    if not isinstance(detection, (bool, np.bool_)):
        raise InputError(f"detection: got {short(detection)}, expected True or False.")
    if not isinstance(schema, _SCHEMAS):
        raise SchemaError(
            f"schema: got {short(schema)}, expected the path of a TOML file, a Schema or a mapping "
            "of column names."
        )
    names = _names(columns)
    if test is not None:
        require_learning("F1 on test rows")
    if detection:
        require_learning("detection")
    return names


def _names(columns: Any) -> list[str] | None:
    """Names in the order given, each once."""
    if columns is None:
        return None
    if isinstance(columns, (str, bytes, Mapping, Set)) or not isinstance(columns, Iterable):
        raise InputError(
            f"columns: got {short(columns)}, expected a list of names such as ['age', 'sex']."
        )
    names = list(columns)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"columns: got {short(name)} among the names, expected text such as 'age'."
            )
    return list(dict.fromkeys(map(str, names)))
