"""``evaluate``: open the tables, choose what is compared, gather the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retilt._input import listed
from retilt.engines.base import Table
from retilt.evaluation.correlations import compare_correlations
from retilt.evaluation.detection import detect
from retilt.evaluation.groups import compare_groups
from retilt.evaluation.marginals import compare_marginals
from retilt.evaluation.opening import NAMES, REAL, TABLES, open_tables
from retilt.evaluation.options import check_options
from retilt.evaluation.prediction import one_sided, predict
from retilt.evaluation.result import Evaluation
from retilt.evaluation.sides import Sides, read_sides
from retilt.evaluation.targets import Target, choose_target
from retilt.exceptions import ColumnTypeError, InputError, SchemaError, WorkloadError
from retilt.schema.columns import Column, Schema
from retilt.schema.encode import check_type
from retilt.schema.formats import Declared, load_declared, resolve
from retilt.tables import require_columns

_NO_TARGET = "no target was named (target, --target)"
_NO_TEST = "no test rows were given (test, --test)"
_NO_DETECTION = "it was not asked for (detection, --detection)"


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
        A table is empty or can't be read, a CSV file has a quote that is not closed, an option is
        of another type, the options don't go together, the target has not two values, or
        scikit-learn is missing.
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
    names = check_options(
        target=target,
        test=test,
        positive=positive,
        detection=detection,
        schema=schema,
        columns=columns,
    )
    given = [private, synthetic, post] if test is None else [private, synthetic, post, test]
    tables, notes = open_tables(given)
    resolved, chosen, left_out = _choose(tables, names, target, schema)
    sides = read_sides(resolved, tables)
    # Extreme values may overflow; what comes of it is no finite figure, and is told as such.
    with np.errstate(all="ignore"):
        chosen_target = None if target is None else choose_target(sides, target, positive)
        found = _figures(sides, chosen, chosen_target, detection=bool(detection))
    return replace(
        found,
        left_out=tuple(left_out),
        row_counts=dict(zip(TABLES, (table.rows for table in tables), strict=False)),
        reasons={**found.reasons, **{f"left_out.{n}": why for n, why in left_out.items()}},
        notes=(*notes, *found.notes),
    )


def _figures(
    sides: Sides, chosen: tuple[str, ...], target: Target | None, *, detection: bool
) -> Evaluation:
    """Everything but what is known before a figure is calculated."""
    aligned, every = compare_correlations(sides, chosen)
    reasons: dict[str, dict[str, str]] = {"marginals": {}, "f1": {}, "groups": {}, "detection": {}}
    marginals = compare_marginals(sides, reasons["marginals"])
    prediction = groups = None
    absent = {} if detection else {"detection": _NO_DETECTION}
    notes: list[str] = []
    if target is None:
        absent = {"f1": _NO_TARGET, "groups": _NO_TARGET, **absent}
    else:
        groups = compare_groups(sides, target, reasons["groups"])
        if sides.test is None:
            absent = {"f1": _NO_TEST, **absent}
        else:
            prediction = predict(sides, target, sides.test, reasons["f1"])
            notes += one_sided(sides, target, prediction.one_hot)
    detected = detect(sides, reasons["detection"]) if detection else None
    missing = {f"{part}.{name}": why for part, of in reasons.items() for name, why in of.items()}
    return Evaluation(
        aligned=aligned,
        all_columns=every,
        marginals=marginals,
        prediction=prediction,
        groups=groups,
        detection=detected,
        reasons={**aligned.reasons(), **every.reasons("all_columns."), **missing, **absent},
        notes=tuple(notes),
    )


# --- what is compared --------------------------------------------------------------------


def _choose(
    tables: Sequence[Table], columns: Sequence[str] | None, target: str | None, schema: Any
) -> tuple[Schema, tuple[str, ...], dict[str, str]]:
    """Return the schema of all that is compared, what was asked for, and why what is left out."""
    synthetic, declared = tables[1], load_declared(schema)
    decided, undecided = _decided(declared, synthetic)
    asked = list(decided) if columns is None else list(columns)
    require_columns(synthetic, asked, NAMES[1])
    if len(asked) < 2:
        what = "the columns whose kind the schema or the synthetic table decides"
        raise InputError(
            f"columns: got {len(asked)}{f' ({what})' if columns is None else ''}, expected at "
            "least two to correlate."
        )
    needed = asked if target is None else list(dict.fromkeys([*asked, target]))
    require_columns(synthetic, needed, NAMES[1])
    for name in needed:
        if name in undecided:
            raise SchemaError(f"{undecided[name]}.")
    wanted = {name: decided[name] for name in needed}
    for place, (table, what) in enumerate(zip(tables, NAMES, strict=False)):
        _check_columns(table, wanted, what, private=place in REAL)
    left_out = {
        name: reason
        for name in dict.fromkeys(n for table in (synthetic, *tables) for n in table.names)
        if name not in wanted
        and (reason := _obstacle(tables, decided, undecided, name)) is not None
    }
    every = Schema({**wanted, **{n: c for n, c in decided.items() if n not in left_out}})
    in_order = every.subset([n for n in synthetic.names if n in every])
    return in_order, tuple(asked), left_out


def _decided(declared: Declared, synthetic: Table) -> tuple[dict[str, Column], dict[str, str]]:
    """What the synthetic table's columns are; and of those that are not decided, why."""
    found, undecided = {}, {}
    for name in synthetic.names:
        try:
            found[name] = resolve(declared, synthetic, [name])[name]
        except SchemaError as error:
            # A schema's reader takes it that whoever asks has a workload.
            reason = str(error).replace("the workload", "the comparison")
            undecided[name] = reason.removesuffix(".")
    return found, undecided


def _check_columns(table: Table, wanted: Mapping[str, Column], what: str, *, private: bool) -> None:
    """Refuse a table that lacks a column, or whose declared types can't hold it."""
    missing = [name for name in wanted if name not in table.names]
    if missing and private:  # what it has instead is not told: its first row, without a header
        raise WorkloadError(
            f"{what} has no column {listed(missing)}. Compare columns that all tables have "
            "(columns, --columns), or name it as the synthetic table does (a CSV file has the "
            "names in its first line)."
        )
    require_columns(table, tuple(wanted), what)
    for name, column in wanted.items():
        try:
            check_type(name, column, table.arrow_type(name))
        except ColumnTypeError as error:
            raise ColumnTypeError(f"{what}, {error}") from None


def _obstacle(
    tables: Sequence[Table],
    decided: Mapping[str, Column],
    undecided: Mapping[str, str],
    name: str,
) -> str | None:
    """Why a column can't be compared."""
    for table, what in zip(tables, NAMES, strict=False):
        if name not in table.names:
            return f"{what} lacks it"
    if name in undecided:
        return undecided[name]
    for table, what in zip(tables, NAMES, strict=False):
        try:
            check_type(name, decided[name], table.arrow_type(name))
        except ColumnTypeError:
            return f"its type in {what} does not fit"
    return None
