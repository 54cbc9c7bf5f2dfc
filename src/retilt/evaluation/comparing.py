"""``evaluate``: open the tables, choose what is compared, gather the figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from retilt.engines.base import Table
from retilt.engines.local import open_table
from retilt.evaluation.correlations import compare_correlations
from retilt.evaluation.detection import detect
from retilt.evaluation.groups import compare_groups
from retilt.evaluation.learning import require_learning
from retilt.evaluation.marginals import compare_marginals
from retilt.evaluation.prediction import predict
from retilt.evaluation.result import Evaluation
from retilt.evaluation.sides import Sides, read_sides
from retilt.evaluation.targets import choose_target
from retilt.exceptions import ColumnTypeError, InputError, SchemaError, WorkloadError
from retilt.schema.columns import Column, Schema
from retilt.schema.encode import check_type
from retilt.schema.formats import Declared, load_declared, resolve
from retilt.tables import check_table, require_columns

_NAMES = ("the private table", "the synthetic table", "the post-processed table", "the test table")


def evaluate(
    private: Any,
    synthetic: Any,
    post: Any,
    *,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    test: Any = None,
    positive: str | float | bool | None = None,
    detection: bool = False,
    schema: Any = None,
) -> Evaluation:
    """Compare a table before and after with the real one; the result is *not* private.

    Parameters
    ----------
    private, synthetic, post
        Frames or paths: the real table, the synthetic one, and what became of it. Tables of rows,
        without weights: draw one from a tilt first (``tilt.sample``).
    columns
        At least two, whose correlations are shown apart, such as those that were aligned;
        default all. Whichever they are, every other figure is of all columns that all tables have
        and whose kind is decided.
    target
        A column that models trained on each table are to predict in ``test``, and whose rates in
        groups are compared.
    test
        A frame or path of real rows that the synthetic table was not made from. Without it, no
        F1. Needs the extra ``evaluation`` (scikit-learn).
    positive
        The target's value that counts as 1; default the rarer of the private table's two.
    detection
        Whether to train classifiers that tell the tables apart. Needs the extra ``evaluation``.
    schema
        As in ``retilt.plan``; what it leaves out is read off ``synthetic``.

    Returns
    -------
    Evaluation
        Each figure is defined there, with its range and its source.

    Raises
    ------
    InputError
        A table is empty or can't be read, the options don't go together, the target has not two
        values, or scikit-learn is missing.
    WorkloadError, ColumnTypeError, SchemaError
        A column that was asked for is missing, of another type, or of no kind that is decided.

    Examples
    --------
    >>> real = {"age": [31, 42, 57, 66], "paid": [False, True, True, True]}
    >>> import pyarrow as pa
    >>> found = evaluate(pa.table(real), pa.table({**real, "paid": [True] * 4}), pa.table(real))
    >>> found.marginals.one_way
    Figure(before=0.125, after=0.0)
    """
    _check_options(target, test, positive, detection=detection)
    given = [private, synthetic, post] if test is None else [private, synthetic, post, test]
    tables = [open_table(source, private=place in (0, 3)) for place, source in enumerate(given)]
    resolved, chosen, left_out = _choose(tables, columns, target, schema)
    for table, what in zip(tables, _NAMES, strict=False):
        if table.rows == 0:
            raise InputError(f"{what} has no rows; there is nothing to compare.")
    sides = read_sides(resolved, tables)
    # Extreme values may overflow; what comes of it is no finite figure, and is told as such.
    with np.errstate(all="ignore"):
        return _figures(sides, chosen, target, positive, left_out, detection=detection)


def _check_options(target: Any, test: Any, positive: Any, *, detection: bool) -> None:
    for name, value in (("test", test), ("positive", positive)):
        if value is not None and target is None:
            raise InputError(f"{name} is for predicting a target: name one (target, --target).")
    if target is not None and not isinstance(target, str):
        raise InputError("target: expected the name of a column.")
    if test is not None:
        require_learning("F1 on test rows")
    if detection:
        require_learning("detection")


def _figures(
    sides: Sides,
    chosen: tuple[str, ...],
    target_name: str | None,
    positive: str | float | bool | None,
    left_out: tuple[str, ...],
    *,
    detection: bool,
) -> Evaluation:
    target = None if target_name is None else choose_target(sides, target_name, positive)
    aligned, every = compare_correlations(sides, chosen)
    reasons: dict[str, dict[str, str]] = {"marginals": {}, "f1": {}, "groups": {}, "detection": {}}
    marginals = compare_marginals(sides, reasons["marginals"])
    prediction = groups = None
    if target is not None:
        groups = compare_groups(sides, target, reasons["groups"])
        if sides.test is not None:
            prediction = predict(sides, target, sides.test, reasons["f1"])
    detected = detect(sides, reasons["detection"]) if detection else None
    missing = {f"{part}.{name}": why for part, of in reasons.items() for name, why in of.items()}
    return Evaluation(
        aligned=aligned,
        all_columns=every,
        marginals=marginals,
        prediction=prediction,
        groups=groups,
        detection=detected,
        left_out=left_out,
        reasons={**aligned.reasons(), **every.reasons("all_columns."), **missing},
    )


# --- what is compared --------------------------------------------------------------------


def _choose(
    tables: Sequence[Table], columns: Sequence[str] | None, target: str | None, schema: Any
) -> tuple[Schema, tuple[str, ...], tuple[str, ...]]:
    """Return the schema of all that is compared, what was asked for, and what is left out."""
    synthetic, declared = tables[1], load_declared(schema)
    decided = _decided(declared, synthetic)
    if columns is None:
        asked = list(decided)
    else:
        if isinstance(columns, str):
            raise InputError(f"columns: got {columns!r}, expected a list of names.")
        asked = list(dict.fromkeys(columns))
        require_columns(synthetic, asked, _NAMES[1])
    if len(asked) < 2:
        raise InputError(f"columns: got {len(asked)}, expected at least two to correlate.")
    needed = asked if target is None else list(dict.fromkeys([*asked, target]))
    require_columns(synthetic, needed, _NAMES[1])
    # One that is not decided is refused, with the reason.
    wanted = Schema(
        {n: decided[n] if n in decided else resolve(declared, synthetic, [n])[n] for n in needed}
    )
    for place, (table, what) in enumerate(zip(tables, _NAMES, strict=False)):
        check_table(table, wanted, what, private=place in (0, 3))
    shared = {n: c for n, c in decided.items() if n in wanted or _in_all(tables, n, c)}
    every = Schema({**wanted.columns, **shared})
    in_order = every.subset([n for n in synthetic.names if n in every])
    return in_order, tuple(asked), tuple(n for n in synthetic.names if n not in every)


def _decided(declared: Declared, synthetic: Table) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name in synthetic.names:
        with suppress(SchemaError):
            found[name] = resolve(declared, synthetic, [name])[name]
    return found


def _in_all(tables: Sequence[Table], name: str, column: Column) -> bool:
    """Whether every table has a column of a type that fits."""
    try:
        for table in tables:
            require_columns(table, [name], "a table")
            check_type(name, column, table.arrow_type(name))
    except (WorkloadError, ColumnTypeError):
        return False
    return True
