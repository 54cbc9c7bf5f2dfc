"""SQL scalar expressions of one row: admitted or refused at plan time, then evaluated.

An expression comes from whoever writes the plan and runs where the private table is, so what
it may hold is a **whitelist**, at every stage:

1. sqlglot splits the text into tokens; only those of the grammar below pass.
2. Its tree is turned into one of our own (:class:`_Node`), kind of node by kind of node and
   function by function. Whatever has no place there (a subquery, an aggregate, a setting, a
   file, the clock, chance) can't be said.
3. The SQL that DuckDB gets is written anew from that tree. Nothing of the user's text reaches
   it but literals, quoted by us; columns have names of our own (``c0``, ``c1``).

So that one row gives one value, whatever stands in the other rows, every operation is total:

* There are four kinds of value: number (always float64), text, true/false and moment.
  Nothing is converted between them unless CAST says so, so no conversion can fail unasked.
* An operation that can't be carried out (division by zero, the root of a negative number, a
  cast that fails, a result that is not finite) gives null *where it stands*, as in
  ``coalesce(1 / x, 0)``, and not an error. No operation yields NaN or an infinity, which DuckDB
  would count as greater than every number.
* Every operation is a projection of its own over those below it, and all of them are
  evaluated on every row: a branch of CASE that is not taken can't stop another one.

Two differences from DuckDB's own SQL follow: whole numbers are divided as any others (``/``
is exact division, ``//`` cuts towards zero), and a number turned into text has no ``.0``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retilt.exceptions import InputError, InternalError, WorkloadError
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, Schema
from retilt.schema.encode import check_type, limits, values_of
from retilt.schema.reading import withheld

if TYPE_CHECKING:
    import duckdb
    from sqlglot.dialects.dialect import Dialect

MAX_CHARACTERS = 10_000
"""Length of an expression's text."""

MAX_NESTING = 16
"""Brackets and CASEs open at a time: sqlglot's parser takes some 25 Python frames for each."""

MAX_DEPTH = 100
"""Depth of the tree; a chain of the same operator counts as one level."""

MAX_TERMS = 200
"""Terms of a sum or a product; DuckDB's own limit is a depth of 1,000."""

MAX_BUILT_TEXT = 1_000
"""Characters of a text that ``concat``, ``||`` or ``replace`` may build, at most."""

Kind: TypeAlias = Literal["number", "text", "boolean", "moment", "null"]

_SPOKEN = {
    "number": "a number",
    "text": "text",
    "boolean": "true or false",
    "moment": "a date or timestamp",
    "null": "null",
}
_DUCKDB_TYPES = {
    "number": "DOUBLE",
    "text": "VARCHAR",
    "boolean": "BOOLEAN",
    "moment": "TIMESTAMP",
}

# --- what is admitted --------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return text.split()


_TOKENS = frozenset(
    _words(
        "VAR IDENTIFIER STRING NUMBER L_PAREN R_PAREN COMMA DOT DCOLON ALIAS FROM"
        " EQ NEQ LT LTE GT GTE AND OR NOT IS NULL TRUE FALSE ISNULL NOTNULL BETWEEN IN LIKE ILIKE"
        " CASE WHEN THEN ELSE END PLUS DASH STAR SLASH DIV MOD DPIPE LEFT RIGHT REPLACE"
        " TINYINT SMALLINT INT BIGINT INT128 FLOAT DOUBLE DECIMAL BOOLEAN TEXT VARCHAR DATE"
        " TIMESTAMP TIMESTAMPNTZ"
    )
)
_CALLABLE = frozenset(("VAR", "LEFT", "RIGHT", "REPLACE"))  # functions, where a bracket follows
_SYNTAX = frozenset(("CAST", "TRY_CAST", "EXTRACT"))  # calls with words inside
_CALLED = "retilt_"  # begins the names of functions while sqlglot has them: it knows none such
_PREFIXES = frozenset(("NOT", "DASH", "PLUS"))
_REFUSED_TOKENS = {
    "SEMICOLON": "more than one statement",
    "SELECT": "a subquery",
    "WITH": "a subquery",
    "EXISTS": "a subquery",
    "OVER": "a window function",
    "PARAMETER": "a parameter",
    "PLACEHOLDER": "a parameter",
    "COLLATE": "a collation",
    "TIMESTAMPTZ": "a time zone",
    "TIMESTAMPLTZ": "a time zone",
    "CURRENT_DATE": "the clock",
    "CURRENT_TIME": "the clock",
    "CURRENT_TIMESTAMP": "the clock",
    "CURRENT_DATETIME": "the clock",
    "SIMILAR_TO": "a regular expression",
    "TILDE": "a regular expression",
    "L_BRACKET": "a list",
    "L_BRACE": "a struct",
    "ARROW": "a lambda or JSON path",
    "DARROW": "a JSON path",
}

_COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_ADDITIVE = {"Add": "+", "Sub": "-"}
_MULTIPLICATIVE = {"Mul": "*", "Div": "/", "IntDiv": "//", "Mod": "%"}
_JOINED = {"And": "and", "Or": "or", "DPipe": "||"}
_CHAINS = (set(_ADDITIVE), set(_MULTIPLICATIVE), {"And"}, {"Or"}, {"DPipe"})

# sqlglot's arguments of each kind of node that carry meaning and are dealt with. Any other that
# is set means syntax that is not admitted.
_BINARY = frozenset(("this", "expression"))
_ARGUMENTS = {
    **dict.fromkeys((*_COMPARISONS, *_ADDITIVE, *_MULTIPLICATIVE, *_JOINED), _BINARY),
    "Paren": {"this"},
    "Column": {"this"},
    "Identifier": {"this", "quoted"},
    "Literal": {"this", "is_string"},
    "Boolean": {"this"},
    "Null": set(),
    "Neg": {"this"},
    "Not": {"this"},
    "Is": _BINARY,
    "Like": _BINARY | {"negate"},
    "ILike": _BINARY | {"negate"},
    "Between": {"this", "low", "high"},
    "In": {"this", "expressions"},
    "Case": {"this", "ifs", "default"},
    "If": {"this", "true"},
    "Cast": {"this", "to"},
    "TryCast": {"this", "to"},
    "DataType": {"this", "expressions"},
    "DataTypeParam": {"this"},
    "Extract": _BINARY,
    "Var": {"this"},
    "Anonymous": {"this", "expressions"},
}
_FLAGS = {"safe", "typed"}  # of the dialect, on division, concatenation and casts
_REFUSED_NODES = {
    "Star": "*",
    "Alias": "a name for a result, or two things without an operator between them,",
    "Tuple": "a list in brackets outside IN",
}

_NUMBER_TYPES = {
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "INT128": "HUGEINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "DECIMAL": "DECIMAL",
}
_TYPES = {
    **_NUMBER_TYPES,
    "BOOLEAN": "BOOLEAN",
    "TEXT": "VARCHAR",
    "VARCHAR": "VARCHAR",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPNTZ": "TIMESTAMP",
}


class _Function(NamedTuple):
    """A function that is admitted.

    ``takes`` has a letter per argument (n number, t text, m moment, i number cut to a whole
    one, u unit; those after ``?`` may be left out), ``sql`` is DuckDB's name or a template.
    """

    takes: str
    gives: Kind
    sql: str
    finite: bool = True


_FUNCTIONS: dict[str, _Function] = {
    "abs": _Function("n", "number", "abs"),
    "floor": _Function("n", "number", "floor"),
    "ceil": _Function("n", "number", "ceil"),
    "trunc": _Function("n", "number", "trunc"),
    "sign": _Function("n", "number", "sign"),
    "sqrt": _Function("n", "number", "CASE WHEN {0} >= 0 THEN sqrt({0}) END"),
    "exp": _Function("n", "number", "exp", finite=False),
    "ln": _Function("n", "number", "CASE WHEN {0} > 0 THEN ln({0}) END"),
    "log10": _Function("n", "number", "CASE WHEN {0} > 0 THEN log10({0}) END"),
    "log2": _Function("n", "number", "CASE WHEN {0} > 0 THEN log2({0}) END"),
    "pow": _Function("nn", "number", "pow", finite=False),
    "lower": _Function("t", "text", "lower"),
    "upper": _Function("t", "text", "upper"),
    "trim": _Function("t", "text", "trim"),
    "ltrim": _Function("t", "text", "ltrim"),
    "rtrim": _Function("t", "text", "rtrim"),
    "length": _Function("t", "number", "length"),
    "substr": _Function("ti?i", "text", "substr"),
    "left": _Function("ti", "text", "left"),
    "right": _Function("ti", "text", "right"),
    "replace": _Function("ttt", "text", "replace"),
    "starts_with": _Function("tt", "boolean", "starts_with"),
    "ends_with": _Function("tt", "boolean", "suffix"),
    "contains": _Function("tt", "boolean", "contains"),
    "date_diff": _Function("umm", "number", "date_diff"),
    "date_trunc": _Function("um", "moment", "date_trunc"),
}
_PARTS = {
    **{
        p: p
        for p in _words(
            "year quarter month week day hour minute second dayofweek isodow dayofyear epoch"
        )
    },
    "dow": "dayofweek",
    "weekday": "dayofweek",
    "doy": "dayofyear",
    "dayofmonth": "day",
    "weekofyear": "week",
}
_FUNCTIONS |= {p: _Function("m", "number", p) for p in set(_PARTS.values())}
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
# Functions with rules of their own: the fewest arguments and the most.
_SPECIAL = {
    "coalesce": (1, MAX_TERMS),
    "least": (1, MAX_TERMS),
    "greatest": (1, MAX_TERMS),
    "concat": (1, MAX_TERMS),
    "nullif": (2, 2),
    "if": (3, 3),
    "mod": (2, 2),
    "round": (1, 2),
    "date_part": (2, 2),
}
_ALIASES = {
    **{alias: part for alias, part in _PARTS.items() if alias != part},
    "len": "length",
    "char_length": "length",
    "character_length": "length",
    "substring": "substr",
    "lcase": "lower",
    "ucase": "upper",
    "prefix": "starts_with",
    "suffix": "ends_with",
    "ceiling": "ceil",
    "power": "pow",
    "ifnull": "coalesce",
    "datediff": "date_diff",
    "datetrunc": "date_trunc",
    "datepart": "date_part",
}
_REFUSED_FUNCTIONS = {
    **dict.fromkeys(
        _words(
            "sum avg mean count min max median mode stddev variance var_samp first last any_value"
            " quantile list array_agg string_agg bool_and bool_or arg_max arg_min"
        ),
        "reads other rows",
    ),
    **dict.fromkeys(
        _words(
            "random uuid gen_random_uuid setseed now today age get_current_time"
            " get_current_timestamp current_date current_timestamp transaction_timestamp nextval"
            " currval"
        ),
        "gives a different value each time",
    ),
    **dict.fromkeys(
        _words(
            "current_setting getenv getvariable version current_user current_schema"
            " current_database"
        ),
        "depends on the machine or the session",
    ),
    **dict.fromkeys(
        _words(
            "regexp_matches regexp_full_match regexp_extract regexp_replace regexp_like"
            " regexp_split_to_array"
        ),
        "takes a regular expression; use LIKE, contains or starts_with, it",
    ),
    "log": "means a different base in different databases; use ln, log10 or log2, it",
}

_NUMBER_TEXT = r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
_MOMENT_TEXT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"


# --- the public part ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expression:
    """A SQL scalar expression of one row, admitted.

    Made by :func:`parse_predicate` and :func:`parse_number`; made directly, it is put through
    the same admission.

    Attributes
    ----------
    text
        Canonical SQL: expressions that differ in spacing, in the case of keywords and
        functions, in redundant brackets or in synonyms (``power`` and ``pow``) are equal.
    columns
        Names that it reads, in the order of first mention, exactly as in the table.
    kind
        What it was admitted as: ``"predicate"`` (true or false) or ``"number"``.

    Raises
    ------
    WorkloadError
        If the text is not admitted, or ``columns`` are not those that it reads.
    """

    text: str
    columns: tuple[str, ...]
    kind: Literal["predicate", "number"]

    def __post_init__(self) -> None:
        if self.kind not in ("predicate", "number"):
            raise WorkloadError(f"kind: got {self.kind!r}, expected 'predicate' or 'number'.")
        node = _parse(self.text)
        _require_kind(_Compiler(self.text, None).value(node).kind, self.kind, self.text)
        object.__setattr__(self, "text", _show(node)[0])
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.columns != _names(node):
            raise WorkloadError(
                f"columns: got {self.columns!r}, but {_short(self.text)} reads {_names(node)!r}."
            )


def parse_predicate(text: str, *, columns: Iterable[str] | None = None) -> Expression:
    """Admit a condition on a row.

    Parameters
    ----------
    text
        SQL, at most 10,000 characters. Column names are matched as they are written, case
        included; one that is not a plain word stands in double quotes.
    columns
        The table's column names, to check those of the expression.

    Raises
    ------
    WorkloadError
        If it is not admitted, saying what and what is allowed.

    Examples
    --------
    >>> parse_predicate("age>=65 and (sex = 'F')").text
    "age >= 65 AND sex = 'F'"
    >>> parse_predicate('"hours, weekly" > 40').columns
    ('hours, weekly',)
    >>> parse_predicate("age > (SELECT avg(age) FROM t)")
    Traceback (most recent call last):
        ...
    retilt.exceptions.WorkloadError: SQL expression 'age > (SELECT avg(age) FROM t)': a subquery \
is not admitted. An expression is a formula of one row's columns.
    """
    return _admit(text, columns, "predicate")


def parse_number(text: str, *, columns: Iterable[str] | None = None) -> Expression:
    """Admit a number computed from a row; parameters and errors as :func:`parse_predicate`.

    Examples
    --------
    >>> parse_number("case when age>65 then 1 else POWER(age, 2) / 65 end").text
    'CASE WHEN age > 65 THEN 1 ELSE pow(age, 2) / 65 END'
    """
    return _admit(text, columns, "number")


def check(expression: Expression, schema: Schema) -> None:
    """Check an expression against a schema, without data.

    Parameters
    ----------
    expression
        Admitted.
    schema
        Of the table; it must have the expression's columns.

    Raises
    ------
    WorkloadError
        If a column is missing, or the kinds of values do not fit together: a number compared
        with text, say.

    Examples
    --------
    >>> check(parse_predicate("age >= '65'"), Schema({"age": Numeric(17, 90)}))
    Traceback (most recent call last):
        ...
    retilt.exceptions.WorkloadError: SQL expression "age >= '65'": >= joins a number and text; \
both sides must be of one kind (numbers are written without quotes, CAST converts).
    """
    program = _compile(expression, schema)
    empty = {
        name: pa.chunked_array([], _EMPTY_TYPES[type(schema[name])]) for name in expression.columns
    }
    withheld(
        partial(_run, program, _table(program.columns, schema, empty)),
        lambda kind: WorkloadError(
            f"SQL expression {_short(expression.text)}: DuckDB refuses it ({kind}). Write it in "
            "shorter or simpler parts."
        ),
    )


_EMPTY_TYPES = {
    Numeric: pa.float64(),
    Categorical: pa.large_string(),
    Boolean: pa.bool_(),
    Datetime: pa.timestamp("us"),
}


def evaluate(
    expression: Expression,
    schema: Schema,
    cells: Mapping[str, pa.ChunkedArray],
    rows: int,
) -> NDArray[Any]:
    """Evaluate an expression on every row.

    Columns are typed from the schema by one policy for both tables, whatever type they come
    in: numeric is float64, clamped to the bounds (infinities too); datetime is a timestamp in
    UTC, clamped; boolean is true or false; a category is its text, or its number if the
    categories are numbers. What is null, NaN or does not parse is null.

    A category outside the schema is null as well. (A marginal counts it in a cell ``other``; an
    expression is written in the public categories, and one that is not public must not be
    told from another.) So ``sex <> 'F'`` does not hold in a row of an unknown category.

    Parameters
    ----------
    expression
        Admitted, and checked against the schema.
    schema
        Of at least the expression's columns.
    cells
        (rows,) the table's columns, by name; more than needed does no harm.
    rows
        How many.

    Returns
    -------
    ndarray
        (rows,) in the order of the rows. Predicate: bool, null as False. Number: float64,
        finite, null as NaN.

    Raises
    ------
    WorkloadError
        As :func:`check`.
    InputError
        If a column's cells are missing, or as many as ``rows`` are not there.
    ColumnTypeError
        If a column's declared type can't hold what the schema says.

    Examples
    --------
    >>> schema = Schema({"age": Numeric(17, 90)})
    >>> ages = {"age": pa.chunked_array([[17, 70, None, 400]])}
    >>> evaluate(parse_predicate("age >= 65"), schema, ages, 4)
    array([False,  True, False,  True])
    >>> evaluate(parse_number("100 / (age - 17)"), schema, ages, 4)
    array([       nan, 1.88679245,        nan, 1.36986301])
    """
    program = _compile(expression, schema)
    for name in expression.columns:
        if name not in cells:
            raise InputError(f"the table lacks column {name!r}, which an expression reads.")
        if len(cells[name]) != rows:
            raise InputError(f"column {name!r} has not as many cells as the table has rows.")
        check_type(name, schema[name], cells[name].type)

    def job() -> NDArray[Any]:
        found = _run(program, _table(program.columns, schema, cells))
        if len(found) != rows:
            raise InternalError("an expression gave a different number of rows.")
        return _to_numpy(found, expression.kind)

    return withheld(
        job,
        lambda kind: InternalError(
            f"SQL expression {_short(expression.text)} could not be evaluated ({kind}); the "
            "reason is withheld, since it could quote the table."
        ),
    )


def _admit(
    text: str, columns: Iterable[str] | None, kind: Literal["predicate", "number"]
) -> Expression:
    node = _parse(text)
    names = _names(node)
    if columns is not None:
        _check_names(text, names, tuple(columns))
    return Expression(text, names, kind)


def _check_names(text: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name in known:
            continue
        like = [k for k in known if k.lower() == name.lower()]
        parts = [k for k in known if name in re.split(r"\W+", k)]
        if like:
            hint = f"Names are matched with their case: did you mean {like[0]!r}?"
        elif parts:
            hint = f"If {parts[0]!r} is meant, put it in double quotes."
        else:
            hint = "Text stands in single quotes, column names plain or in double quotes."
        raise _refusal(text, f"there is no column {_short(name)}", hint)


def _require_kind(found: Kind | None, kind: str, text: str) -> None:
    wanted = "boolean" if kind == "predicate" else "number"
    if found not in (wanted, None):
        hint = (
            "a condition is needed, as in age >= 65"
            if kind == "predicate"
            else "a number is needed: CASE WHEN … THEN 1 ELSE 0 END makes one of a condition"
        )
        raise _refusal(text, f"its value is {_SPOKEN[found]}", f"Here {hint}.")


# --- refusals ----------------------------------------------------------------------------


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _refusal(text: str, what: str, advice: str) -> WorkloadError:
    return WorkloadError(f"SQL expression {_short(text)}: {what}. {advice}")


def _not_admitted(text: str, what: str, advice: str = "") -> WorkloadError:
    advice = advice or "An expression is a formula of one row's columns."
    return _refusal(text, f"{what} is not admitted", advice)


# --- text -> tree ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """An admitted operation: what it is, on what, and a word (a name, a value, operators)."""

    what: str
    parts: tuple[_Node, ...] = ()
    word: str = ""


@cache
def _dialect() -> Dialect:
    from sqlglot.dialects.duckdb import DuckDB

    return DuckDB()


def _parse(text: str) -> _Node:
    if not isinstance(text, str):
        raise WorkloadError(f"SQL expression: got a {type(text).__name__}, expected text.")
    return _tree(text)


@lru_cache(maxsize=256)
def _tree(text: str) -> _Node:
    if not text.strip():
        raise WorkloadError("SQL expression: got nothing, expected one, as in age >= 65.")
    if len(text) > MAX_CHARACTERS:
        raise _not_admitted(text, f"a text of more than {MAX_CHARACTERS:,} characters")
    if "\0" in text or not _is_encodable(text):
        raise _not_admitted(text, "a character that is not Unicode text")
    from sqlglot.errors import SqlglotError

    try:
        tokens = _dialect().tokenize(text)
        if not tokens:
            raise _not_admitted(text, "a comment")
        _check_tokens(text, tokens)
        found = _dialect().parser().parse(_unequivocal(tokens), text)
        if len(found) != 1 or found[0] is None:
            raise _not_admitted(text, "more than one statement")
        _check_depth(text, found[0])
        node = _Reader(text).read(found[0])
    except WorkloadError:
        raise
    except (SqlglotError, ValueError, RecursionError, LookupError, AttributeError, TypeError):
        # The text is public, but sqlglot marks it up for a terminal.
        raise _refusal(
            text,
            "it can't be read as SQL",
            "Text stands in single quotes, names with spaces or signs in double quotes.",
        ) from None
    if not _names(node):
        raise _refusal(text, "it reads no column", "So it is the same in every row.")
    return node


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_tokens(text: str, tokens: list[Any]) -> None:
    """Refuse what is no part of the grammar, and what would exhaust the parser's stack."""
    depth = run = 0
    before = ""
    for token in tokens:
        kind = token.token_type.name
        if token.comments:
            raise _not_admitted(text, "a comment")
        if kind not in _TOKENS:
            raise _refused_token(text, token.text, kind)
        depth += (kind in ("L_PAREN", "CASE")) - (kind in ("R_PAREN", "END"))
        run = run + 1 if kind in _PREFIXES else 0
        if before == "IDENTIFIER" and kind == "L_PAREN":
            raise _not_admitted(text, "a function's name in double quotes")
        if before == "DOT" and kind != "NUMBER":
            raise _not_admitted(text, "a name with a dot", "Columns are named without their table.")
        before = kind
        if depth > MAX_NESTING or run > MAX_NESTING // 2:
            raise _not_admitted(text, f"nesting of more than {MAX_NESTING} levels")


def _unequivocal(tokens: list[Any]) -> list[Any]:
    """Tokens in which a plain word is a name, and a function is none that sqlglot knows.

    A call then stays what was written, a name and arguments, whatever a version of sqlglot
    would make of it; and no plain word has a meaning of its own in some place (AT, IF).
    """
    from sqlglot import Token, TokenType

    found = []
    kinds = [t.token_type.name for t in tokens]
    for number, token in enumerate(tokens):
        kind, text = token.token_type, token.text
        called = kinds[number + 1 : number + 2] == ["L_PAREN"]
        inside = number > 1 and kinds[number - 1] == "L_PAREN"
        if called and kind.name in _CALLABLE and text.upper() not in _SYNTAX:
            kind, text = TokenType.VAR, _CALLED + text
        elif kind is TokenType.VAR and inside and tokens[number - 2].text.upper() == "EXTRACT":
            kind = TokenType.STRING
        elif kind is TokenType.VAR and not called:
            kind = TokenType.IDENTIFIER
        found.append(Token(kind, text, token.line, token.col, token.start, token.end))
    return found


def _refused_token(text: str, word: str, kind: str) -> WorkloadError:
    if kind in _REFUSED_TOKENS:
        return _not_admitted(text, _REFUSED_TOKENS[kind])
    if word.lower() in _REFUSED_FUNCTIONS:
        return _not_admitted(text, f"{word} {_REFUSED_FUNCTIONS[word.lower()]}, and so")
    hint = (
        f'A column of that name stands in double quotes: "{word}".' if word.isidentifier() else ""
    )
    return _not_admitted(text, f"the word or sign {_short(word)}", hint)


def _check_depth(text: str, root: Any) -> None:
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _not_admitted(text, f"nesting of more than {MAX_DEPTH} levels")
        chain = _chain_of(node)
        for child in node.iter_expressions():
            same = child is node.args.get("this") and chain and type(child).__name__ in chain
            waiting.append((child, depth if same else depth + 1))


def _chain_of(node: Any) -> set[str]:
    name = type(node).__name__
    return next((chain for chain in _CHAINS if name in chain), set())


class _Reader:
    """sqlglot's tree -> ours. Whatever it has no method for is refused."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, node: Any) -> _Node:
        name = type(node).__name__
        chain = _chain_of(node)
        if chain:
            return self._chain(node, chain)
        self._check_arguments(node)
        if name in _COMPARISONS:
            parts = (self.read(node.this), self.read(node.expression))
            return _Node("compare", parts, _COMPARISONS[name])
        reader = getattr(self, f"_read_{name.lower()}", None)
        if reader is None:
            raise self._refuse(node)
        result: _Node = reader(node)
        return result

    def _refuse(self, node: Any) -> WorkloadError:
        name = type(node).__name__
        return _not_admitted(self.text, _REFUSED_NODES.get(name, f"SQL's {name}"))

    def _check_arguments(self, node: Any) -> None:
        allowed = _ARGUMENTS.get(type(node).__name__)
        if allowed is None:
            raise self._refuse(node)
        for key, value in node.args.items():
            if value not in (None, False, []) and key not in allowed and key not in _FLAGS:
                raise _not_admitted(self.text, f"SQL's {type(node).__name__} with {key!r}")

    def _chain(self, node: Any, chain: set[str]) -> _Node:
        """``a + b - c`` from the left, without recursion: it may be long."""
        operators: list[str] = []
        operands: list[_Node] = []
        while type(node).__name__ in chain:
            self._check_arguments(node)
            operators.append(type(node).__name__)
            operands.append(self.read(node.expression))
            node = _bare(node.this)
        operands.append(self.read(node))
        operands.reverse()
        operators.reverse()
        if operators[0] in _JOINED:
            what = _JOINED[operators[0]]
            # These are associative, so brackets on the right are redundant too.
            return _joined(what, operands)
        if len(operands) > MAX_TERMS:
            raise _not_admitted(self.text, f"a sum or product of more than {MAX_TERMS} terms")
        if operators[0] in _ADDITIVE:
            return _Node("sum", tuple(operands), " ".join(_ADDITIVE[o] for o in operators))
        return _product(operands, [_MULTIPLICATIVE[o] for o in operators])

    def _read_paren(self, node: Any) -> _Node:
        return self.read(node.this)

    def _read_column(self, node: Any) -> _Node:
        self._check_arguments(node.this)
        if type(node.this).__name__ != "Identifier" or not node.this.this:
            raise self._refuse(node.this)
        return _Node("column", word=node.this.this)

    def _read_literal(self, node: Any) -> _Node:
        if node.is_string:
            return _Node("text", word=node.this)
        try:
            value = float(node.this)
        except ValueError:
            raise _not_admitted(self.text, f"the number {_short(node.this)}") from None
        if not math.isfinite(value):
            raise _not_admitted(self.text, f"the number {_short(node.this)}, which is too great,")
        return _number(value)

    def _read_boolean(self, node: Any) -> _Node:
        return _Node("true" if node.this else "false")

    def _read_null(self, node: Any) -> _Node:
        return _Node("null")

    def _read_neg(self, node: Any) -> _Node:
        inner = self.read(node.this)
        if inner.what == "number":
            return _number(-float(inner.word))
        return _Node("negative", (inner,))

    def _read_not(self, node: Any) -> _Node:
        return _Node("not", (self.read(node.this),))

    def _read_is(self, node: Any) -> _Node:
        right = self.read(node.expression)
        if right.what not in ("null", "true", "false"):
            raise _not_admitted(self.text, "IS without NULL, TRUE or FALSE after it")
        return _Node("is", (self.read(node.this),), right.what.upper())

    def _read_like(self, node: Any, what: str = "like") -> _Node:
        pattern = self.read(node.expression)
        if pattern.what != "text" or len(pattern.word) > MAX_BUILT_TEXT:
            raise _not_admitted(
                self.text,
                f"{what.upper()} without a pattern in single quotes of at most "
                f"{MAX_BUILT_TEXT:,} characters",
            )
        found = _Node(what, (self.read(node.this), pattern))
        return _Node("not", (found,)) if node.args.get("negate") else found

    def _read_ilike(self, node: Any) -> _Node:
        return self._read_like(node, "ilike")

    def _read_between(self, node: Any) -> _Node:
        return _Node("between", tuple(self.read(node.args[a]) for a in ("this", "low", "high")))

    def _read_in(self, node: Any) -> _Node:
        listed = node.expressions
        if not listed:
            raise _not_admitted(self.text, "IN without a list of values in brackets")
        return _Node("in", tuple(self.read(e) for e in (node.this, *listed)))

    def _read_case(self, node: Any) -> _Node:
        parts = [self.read(node.this)] if node.this else []
        for branch in node.args["ifs"]:
            self._check_arguments(branch)
            parts += [self.read(branch.this), self.read(branch.args["true"])]
        default = node.args.get("default")
        parts.append(self.read(default) if default else _Node("null"))
        return _Node("switch" if node.this else "case", tuple(parts))

    def _read_cast(self, node: Any) -> _Node:
        target = self._type(node.args["to"])
        inner = self.read(node.this)
        if inner.what == "text" and target in ("DATE", "TIMESTAMP"):
            moment = _moment(self.text, inner.word)
            if target == "DATE":
                moment = moment.replace(hour=0, minute=0, second=0, microsecond=0)
            return _moment_node(moment)
        return _Node("cast", (inner,), target)

    def _read_trycast(self, node: Any) -> _Node:
        return self._read_cast(node)

    def _type(self, node: Any) -> str:
        self._check_arguments(node)
        name = getattr(node.this, "name", str(node.this))
        if name not in _TYPES or node.args.get("nested"):
            raise _not_admitted(
                self.text,
                f"a cast to {_short(name)}",
                "Casts are to numbers, BOOLEAN, VARCHAR, DATE and TIMESTAMP.",
            )
        target = _TYPES[name]
        if not node.expressions:
            return "DECIMAL(18, 3)" if target == "DECIMAL" else target
        sizes = [self._size(p) for p in node.expressions]
        if target != "DECIMAL" or len(sizes) > 2:
            raise _not_admitted(self.text, f"a size of the type {target}")
        digits, places = sizes if len(sizes) == 2 else (*sizes, 0)
        if not 0 <= places <= digits or not 1 <= digits <= 38:
            raise _not_admitted(self.text, f"DECIMAL({digits}, {places})")
        return f"DECIMAL({digits}, {places})"

    def _size(self, node: Any) -> int:
        self._check_arguments(node)
        size = str(node.this.this)
        if type(node.this).__name__ != "Literal" or not re.fullmatch("[0-9]{1,2}", size):
            raise _not_admitted(self.text, "a type's size that is no whole number")
        return int(size)

    def _read_extract(self, node: Any) -> _Node:
        return self._part(str(getattr(node.this, "this", "")), self.read(node.expression))

    def _part(self, part: str, moment: _Node) -> _Node:
        name = _PARTS.get(part.lower())
        if name is None:
            raise _not_admitted(
                self.text,
                f"the part {_short(part)} of a date",
                f"Parts are {', '.join(sorted(set(_PARTS.values())))}.",
            )
        return _Node("call", (moment,), name)

    def _read_anonymous(self, node: Any) -> _Node:
        if not isinstance(node.this, str):
            raise self._refuse(node)
        spelt = node.this.removeprefix(_CALLED)
        written = spelt.lower()
        name = _ALIASES.get(written, written)
        if name not in _FUNCTIONS and name not in _SPECIAL:
            reason = _REFUSED_FUNCTIONS.get(name)
            what = f"{spelt} {reason}, and so" if reason else f"the function {_short(spelt)}"
            allowed = ", ".join(sorted({*_FUNCTIONS, *_SPECIAL}))
            raise _not_admitted(self.text, what, f"Functions are {allowed}.")
        parts = tuple(self.read(e) for e in node.expressions)
        fewest, most = _SPECIAL.get(name) or _arity(_FUNCTIONS[name].takes)
        if not fewest <= len(parts) <= most:
            allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise _refusal(self.text, f"{name} has {len(parts)} arguments", f"It takes {allowed}.")
        return self._call(name, parts)

    def _call(self, name: str, parts: tuple[_Node, ...]) -> _Node:
        """A call in its canonical form."""
        if name == "if":
            return _Node("case", parts)
        if name == "mod":
            return _product(parts, ["%"])
        if name == "date_part":
            return self._part(parts[0].word if parts[0].what == "text" else "?", parts[1])
        if name == "round":
            places = parts[1].word if len(parts) == 2 else "0"
            if not re.fullmatch("-?(1[0-5]|[0-9])", places) or parts[-1].what == "text":
                raise _not_admitted(
                    self.text, "round to anything but a whole number of -15 to 15 places"
                )
            return _Node("call", parts[:1] if places == "0" else parts, name)
        if name in _FUNCTIONS and _FUNCTIONS[name].takes.startswith("u"):
            unit = parts[0].word.lower() if parts[0].what == "text" else "?"
            if unit not in _UNITS:
                raise _not_admitted(
                    self.text, f"{name} without a unit", f"Units are {', '.join(_UNITS)}."
                )
            return _Node("call", (_Node("text", word=unit), *parts[1:]), name)
        return _Node("call", parts, name)


def _bare(node: Any) -> Any:
    """What stands in the brackets, if anything does."""
    while type(node).__name__ == "Paren" and set(node.args) <= {"this"}:
        node = node.this
    return node


def _joined(what: str, operands: Iterable[_Node]) -> _Node:
    parts: list[_Node] = []
    for operand in operands:
        parts.extend(operand.parts if operand.what == what else (operand,))
    return _Node(what, tuple(parts))


def _product(operands: Iterable[_Node], operators: list[str]) -> _Node:
    first, *rest = operands
    if first.what == "product":  # mod(a * b, c)
        return _Node("product", (*first.parts, *rest), f"{first.word} {' '.join(operators)}")
    return _Node("product", (first, *rest), " ".join(operators))


def _arity(takes: str) -> tuple[int, int]:
    fewest, _, _ = takes.partition("?")
    return len(fewest), len(takes.replace("?", ""))


def _number(value: float) -> _Node:
    whole = value.is_integer() and abs(value) < 1e15
    return _Node("number", word=str(int(value)) if whole else repr(value))


def _moment(text: str, word: str) -> datetime:
    try:
        if not re.fullmatch(_MOMENT_TEXT, word, re.ASCII):
            raise ValueError
        return datetime.fromisoformat(_six_digits(word))
    except ValueError:
        raise _refusal(
            text,
            f"{_short(word)} is no date or timestamp",
            "Write it like '2024-02-29' or '2024-02-29 13:30:00', in UTC.",
        ) from None


def _six_digits(word: str) -> str:
    whole, dot, fraction = word.partition(".")
    return f"{whole}{dot}{fraction:0<6}" if dot else whole


def _moment_node(moment: datetime) -> _Node:
    return _Node("moment", word=moment.isoformat(sep=" "))


def _names(node: _Node) -> tuple[str, ...]:
    """Columns in the order of first mention."""
    return tuple(dict.fromkeys(n.word for n in _walk(node) if n.what == "column"))


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)


# --- tree -> canonical text --------------------------------------------------------------

# How tightly an operation binds; an operand that binds no tighter stands in brackets.
_OR, _AND, _NOT, _COMPARE, _CONCAT, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)


def _show(node: _Node) -> tuple[str, int]:
    """Canonical SQL of a tree, and how tightly it binds."""
    match node.what:
        case "column":
            return _show_name(node.word), _ATOM
        case "text":
            return _quoted(node.word), _ATOM
        case "number":
            return node.word, _SIGN if node.word.startswith("-") else _ATOM
        case "moment":
            date, _, time = node.word.partition(" ")
            short = time == "00:00:00"
            return (f"DATE '{date}'" if short else f"TIMESTAMP '{node.word}'"), _ATOM
        case "true" | "false" | "null":
            return node.what.upper(), _ATOM
        case "and":
            return " AND ".join(_operands(node.parts, _AND)), _AND
        case "or":
            return " OR ".join(_operands(node.parts, _OR)), _OR
        case "not":
            return _show_not(node.parts[0]), _NOT
        case "||":
            return " || ".join(_operands(node.parts, _SIGN)), _CONCAT
        case "sum" | "product":
            level = _SUM if node.what == "sum" else _PRODUCT
            return _show_chain(node, level), level
        case "negative":
            return "-" + _operand(node.parts[0], _SIGN), _SIGN
        case "cast":
            return f"CAST({_show(node.parts[0])[0]} AS {node.word})", _ATOM
        case "call":
            return f"{node.word}({', '.join(_show(p)[0] for p in node.parts)})", _ATOM
        case "case" | "switch":
            return _show_case(node), _ATOM
    return _show_comparison(node, ""), _COMPARE


def _operand(node: _Node, level: int) -> str:
    text, own = _show(node)
    return text if own > level else f"({text})"


def _operands(parts: Iterable[_Node], level: int) -> list[str]:
    return [_operand(p, level) for p in parts]


def _show_name(name: str) -> str:
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        tokens = _dialect().tokenize(name)
        if len(tokens) == 1 and tokens[0].token_type.name == "VAR":
            return name
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _show_not(inner: _Node) -> str:
    if inner.what in ("is", "in", "like", "ilike", "between"):
        return _show_comparison(inner, "NOT ")
    return "NOT " + _operand(inner, _NOT)


def _show_chain(node: _Node, level: int) -> str:
    first, *rest = _operands(node.parts, level)
    return first + "".join(
        f" {sign} {part}" for sign, part in zip(node.word.split(), rest, strict=True)
    )


def _show_comparison(node: _Node, negation: str) -> str:
    parts = _operands(node.parts, _CONCAT)
    match node.what:
        case "compare":
            return f"{parts[0]} {node.word} {parts[1]}"
        case "is":
            return f"{parts[0]} IS {negation}{node.word}"
        case "in":
            listed = ", ".join(_show(p)[0] for p in node.parts[1:])
            return f"{parts[0]} {negation}IN ({listed})"
        case "between":
            return f"{parts[0]} {negation}BETWEEN {parts[1]} AND {parts[2]}"
    return f"{parts[0]} {negation}{node.what.upper()} {parts[1]}"


def _show_case(node: _Node) -> str:
    shown = [_show(p)[0] for p in node.parts]
    words = ["CASE"]
    if node.what == "switch":
        words.append(shown.pop(0))
    for when, then in zip(shown[:-1:2], shown[1::2], strict=True):
        words += ["WHEN", when, "THEN", then]
    if node.parts[-1].what != "null":
        words += ["ELSE", shown[-1]]
    return " ".join([*words, "END"])


# --- tree -> steps of DuckDB's SQL -------------------------------------------------------


class _Value(NamedTuple):
    """The value of a node: a name in the step above ``level``, or a literal.

    ``kind`` is None where only the schema knows it. ``longest`` bounds a text's characters.
    """

    kind: Kind | None
    sql: str
    level: int = 0
    longest: int = 0
    literal: str | None = None
    named: bool = False


class _Program(NamedTuple):
    """What DuckDB runs: projections, one upon the other; the last has one column, ``v``."""

    columns: tuple[str, ...]
    steps: tuple[str, ...]
    kind: Kind | None


def _compile(expression: Expression, schema: Schema) -> _Program:
    for name in expression.columns:
        if name not in schema:
            raise _refusal(
                expression.text, f"there is no column {_short(name)}", "The schema must have it."
            )
    node = _parse(expression.text)
    program = _Compiler(expression.text, schema).program(node)
    _require_kind(program.kind, expression.kind, expression.text)
    return program


class _Compiler:
    """Checks that kinds fit together and writes the SQL, one step per operation.

    Equal operations are written once, so that nothing here grows faster than the text. The
    operands are names, so that they can be repeated in a step at no cost.

    Without a schema only what is known without it is checked, and the SQL is of no use.
    """

    def __init__(self, text: str, schema: Schema | None) -> None:
        self.text = text
        self.schema = schema
        self.columns: list[str] = []
        self.steps: list[list[tuple[str, str]]] = []
        self.needed: dict[str, int] = {}  # a name, and the last step that reads it
        self.done: dict[_Node, _Value] = {}

    def program(self, node: _Node) -> _Program:
        root = self.value(node)
        self.needed[root.sql] = len(self.steps) + 1
        alive = [f"c{i}" for i in range(len(self.columns))]
        steps = []
        for number, step in enumerate(self.steps, start=1):
            alive = [name for name in alive if self.needed[name] > number]
            steps.append(", ".join([*alive, *(f"{sql} AS {name}" for name, sql in step)]))
            alive += [name for name, _ in step]
        steps.append(f"{root.sql} AS v")
        return _Program(tuple(self.columns), tuple(steps), root.kind)

    def value(self, node: _Node) -> _Value:
        if node not in self.done:
            self.done[node] = self._leaf(node) if not node.parts else self._operation(node)
        return self.done[node]

    def _leaf(self, node: _Node) -> _Value:
        match node.what:
            case "column":
                return self._column(node.word)
            case "number":
                return _Value("number", f"CAST('{float(node.word)!r}' AS DOUBLE)")
            case "text":
                return _Value("text", _quoted(node.word), 0, len(node.word), node.word)
            case "moment":
                return _Value("moment", f"TIMESTAMP '{node.word}'")
            case "null":
                return _Value("null", "NULL")
        return _Value("boolean", node.what)

    def _column(self, name: str) -> _Value:
        self.columns.append(name)
        sql = f"c{len(self.columns) - 1}"
        self.needed[sql] = 0
        if self.schema is None:
            return _Value(None, sql, named=True)
        column = self.schema[name]
        listed = column.categories if isinstance(column, Categorical) else ()
        longest = max((len(str(c)) for c in listed), default=0)
        return _Value(_kind_of(column), sql, 0, longest, named=True)

    def _operation(self, node: _Node) -> _Value:
        parts = [self.value(p) for p in node.parts]
        match node.what:
            case "and" | "or":
                parts = [self._as(p, "boolean", node.what.upper()) for p in parts]
                joint = f" {node.what} ".join(p.sql for p in parts)
                return self._step("boolean", joint, parts)
            case "not":
                parts = [self._as(parts[0], "boolean", "NOT")]
                return self._step("boolean", f"NOT {parts[0].sql}", parts)
            case "compare" | "between" | "in":
                return self._comparison(node, parts)
            case "is":
                return self._is(node.word, parts)
            case "like" | "ilike":
                return self._like(node, parts)
            case "sum" | "product":
                return self._chain(node, parts)
            case "negative":
                parts = [self._as(parts[0], "number", "-")]
                return self._step("number", f"-{parts[0].sql}", parts)
            case "||":
                return self._concat(parts, "||", " || ".join)
            case "case" | "switch":
                return self._case(node, parts)
            case "cast":
                return self._cast(node.word, parts[0])
        return self._call(node.word, parts)

    def _step(
        self, kind: Kind | None, sql: str, parts: Iterable[_Value], longest: int = 0
    ) -> _Value:
        """A name for an operation, in the first step in which its operands all stand."""
        level = 0
        for part in parts:
            level = max(level, part.level)
        name = f"v{sum(map(len, self.steps))}"
        for part in parts:
            if part.named:
                self.needed[part.sql] = max(self.needed[part.sql], level + 1)
        while len(self.steps) <= level:
            self.steps.append([])
        self.steps[level].append((name, sql))
        self.needed[name] = 0
        return _Value(kind, name, level + 1, longest, named=True)

    def _finite(self, sql: str, parts: Iterable[_Value]) -> _Value:
        return self._step("number", f"CASE WHEN isfinite({sql}) THEN {sql} END", parts)

    # --- kinds

    def _as(self, value: _Value, kind: Kind, where: str) -> _Value:
        """A value where one kind is needed."""
        if value.kind in (kind, None):
            return value
        if value.kind == "null":
            return _Value(kind, f"CAST(NULL AS {_DUCKDB_TYPES[kind]})")
        if kind == "moment" and value.literal is not None:
            moment = _moment(self.text, value.literal)
            return _Value("moment", f"TIMESTAMP '{moment.isoformat(sep=' ')}'")
        raise _refusal(
            self.text,
            f"{where} has {_SPOKEN[value.kind]}, but needs {_SPOKEN[kind]}",
            "CAST converts, and comparisons make true or false.",
        )

    def _alike(self, values: Iterable[_Value], where: str) -> tuple[Kind | None, list[_Value]]:
        """Values that must be of one kind, and which; null goes with any."""
        values = list(values)
        kinds = list(dict.fromkeys(v.kind for v in values if v.kind not in (None, "null")))
        if "moment" in kinds and all(
            v.kind in ("moment", "null", None) or v.literal is not None for v in values
        ):
            kinds = ["moment"]
        if len(kinds) > 1:
            named = " and ".join(_SPOKEN[k] for k in kinds if k)
            raise WorkloadError(
                f"SQL expression {_short(self.text)}: {where} joins {named}; both sides must be "
                "of one kind (numbers are written without quotes, CAST converts)."
            )
        if not kinds:
            unknown = any(v.kind is None for v in values)
            return (None if unknown else "null"), values
        return kinds[0], [self._as(v, kinds[0], where) for v in values]

    # --- operations

    def _comparison(self, node: _Node, parts: list[_Value]) -> _Value:
        where = node.word or node.what.upper()
        kind, parts = self._alike(parts, where)
        first, *rest = (p.sql for p in parts)
        if kind == "boolean" and where not in ("=", "<>", "IN"):
            raise _not_admitted(self.text, f"{where} between true and false")
        if node.what == "compare":
            sql = f"{first} {node.word} {rest[0]}"
        elif node.what == "between":
            sql = f"{first} BETWEEN {rest[0]} AND {rest[1]}"
        else:
            sql = f"{first} IN ({', '.join(rest)})"
        return self._step("boolean", sql, parts)

    def _is(self, word: str, parts: list[_Value]) -> _Value:
        if word != "NULL":
            parts = [self._as(parts[0], "boolean", f"IS {word}")]
        return self._step("boolean", f"{parts[0].sql} IS {word}", parts)

    def _like(self, node: _Node, parts: list[_Value]) -> _Value:
        """LIKE through RE2, whose time is linear where DuckDB's own matching backtracks."""
        text = self._as(parts[0], "text", node.what.upper())
        signs = {"%": ".*", "_": "."}
        pattern = "".join(
            signs.get(c) or (c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}")
            for c in node.parts[1].word
        )
        pattern = re.sub(r"(\.\*)+", ".*", pattern)
        options = "'si'" if node.what == "ilike" else "'s'"
        sql = f"TRY(regexp_full_match({text.sql}, {_quoted(pattern)}, {options}))"
        return self._step("boolean", sql, [text])

    def _chain(self, node: _Node, parts: list[_Value]) -> _Value:
        """A sum or product. What is not finite on the way never becomes finite again."""
        operators = node.word.split()
        parts = [self._as(p, "number", operators[0]) for p in parts]
        sql = parts[0].sql
        for operator, part in zip(operators, parts[1:], strict=True):
            whole = operator == "//"
            sql = f"trunc({sql} / {part.sql})" if whole else f"({sql} {operator} {part.sql})"
        return self._finite(sql, parts)

    def _case(self, node: _Node, parts: list[_Value]) -> _Value:
        *branches, default = parts[1:] if node.what == "switch" else parts
        whens, thens = branches[::2], branches[1::2]
        if node.what == "switch":
            _, (subject, *whens) = self._alike([parts[0], *whens], "CASE")
            tests = [f"{subject.sql} = {w.sql}" for w in whens]
            asked = [subject, *whens]
        else:
            whens = [self._as(w, "boolean", "WHEN") for w in whens]
            tests = [w.sql for w in whens]
            asked = whens
        kind, results = self._alike([*thens, default], "CASE")
        said = " ".join(
            f"WHEN {test} THEN {result.sql}" for test, result in zip(tests, results, strict=False)
        )
        sql = f"CASE {said} ELSE {results[-1].sql} END"
        return self._step(kind, sql, [*asked, *results], max(r.longest for r in results))

    def _concat(
        self, parts: list[_Value], where: str, join: Callable[[Iterable[str]], str]
    ) -> _Value:
        parts = [self._as(p, "text", where) for p in parts]
        longest = self._bounded(sum(p.longest for p in parts), where)
        return self._step("text", join(p.sql for p in parts), parts, longest)

    def _bounded(self, longest: int, where: str) -> int:
        if longest > MAX_BUILT_TEXT:
            raise _not_admitted(
                self.text,
                f"{where} that could build a text of more than {MAX_BUILT_TEXT:,} characters",
            )
        return longest

    def _cast(self, target: str, value: _Value) -> _Value:
        if value.kind == "null":
            value = self._as(value, "text", "CAST")
        source, x = value.kind, value.sql
        if target == "VARCHAR":
            return self._to_text(value)
        if target == "BOOLEAN":
            return self._to_boolean(value)
        if target in ("DATE", "TIMESTAMP"):
            return self._to_moment(target, value)
        if source == "moment":
            raise _not_admitted(
                self.text, "a cast of a date to a number", "Use epoch, year or date_diff."
            )
        if source == "boolean":
            return self._step("number", f"CAST({x} AS DOUBLE)", [value])
        if source == "text":
            match = f"regexp_full_match({x}, {_quoted(_NUMBER_TEXT)})"
            value = self._finite(f"CASE WHEN {match} THEN TRY_CAST({x} AS DOUBLE) END", [value])
        if target == "DOUBLE":
            return value._replace(kind="number")
        return self._finite(f"CAST(TRY_CAST({value.sql} AS {target}) AS DOUBLE)", [value])

    def _to_text(self, value: _Value) -> _Value:
        x = value.sql
        if value.kind == "moment":
            raise _not_admitted(
                self.text, "a cast of a date to text", "Use year, month, … or date_trunc."
            )
        if value.kind == "number":
            whole = f"CASE WHEN abs({x}) < 1e15 AND {x} = trunc({x}) THEN CAST({x} AS BIGINT) END"
            sql = f"coalesce(CAST({whole} AS VARCHAR), CAST({x} AS VARCHAR))"
            return self._step("text", sql, [value], 30)
        if value.kind == "boolean":
            return self._step("text", f"CAST({x} AS VARCHAR)", [value], 5)
        return value._replace(kind="text", literal=None)

    def _to_boolean(self, value: _Value) -> _Value:
        x = value.sql
        if value.kind == "moment":
            raise _not_admitted(self.text, "a cast of a date to true or false")
        if value.kind == "number":
            return self._step("boolean", f"{x} <> 0", [value])
        if value.kind == "text":
            sql = (
                f"CASE WHEN lower({x}) IN ('true', 't', '1') THEN true"
                f" WHEN lower({x}) IN ('false', 'f', '0') THEN false END"
            )
            return self._step("boolean", sql, [value])
        return value._replace(kind="boolean")

    def _to_moment(self, target: str, value: _Value) -> _Value:
        if value.kind in ("number", "boolean"):
            raise _not_admitted(self.text, f"a cast of {_SPOKEN[value.kind]} to a date")
        if value.kind == "text":
            match = f"regexp_full_match({value.sql}, {_quoted(_MOMENT_TEXT)})"
            sql = f"CASE WHEN {match} THEN TRY_CAST({value.sql} AS TIMESTAMP) END"
            value = self._step("moment", sql, [value])
        if target == "TIMESTAMP":
            return value._replace(kind="moment")
        sql = f"TRY(CAST(date_trunc('day', {value.sql}) AS TIMESTAMP))"
        return self._step("moment", sql, [value])

    def _call(self, name: str, parts: list[_Value]) -> _Value:
        if name in ("coalesce", "least", "greatest", "nullif"):
            return self._choice(name, parts)
        if name == "concat":
            return self._concat(parts, name, lambda each: f"concat({', '.join(each)})")
        if name == "round":
            parts = [self._as(p, "number", name) for p in parts]
            places = f", CAST({parts[1].sql} AS INTEGER)" if len(parts) == 2 else ""
            return self._finite(f"TRY(round({parts[0].sql}{places}))", parts[:1])
        function = _FUNCTIONS[name]
        kinds: dict[str, Kind] = {"n": "number", "i": "number", "t": "text", "m": "moment"}
        letters = function.takes.replace("?", "")
        parts = [
            self._as(p, kinds.get(letter, "text"), name)
            for p, letter in zip(parts, letters, strict=False)
        ]
        given = [
            _whole(p.sql) if letter == "i" else p.sql
            for p, letter in zip(parts, letters, strict=False)
        ]
        plain = "{" not in function.sql
        sql = f"{function.sql}({', '.join(given)})" if plain else function.sql.format(*given)
        if function.gives == "number":
            sql = f"CAST(TRY({sql}) AS DOUBLE)"
            return self._step("number", sql, parts) if function.finite else self._finite(sql, parts)
        if function.gives == "moment":
            return self._step("moment", f"CAST(TRY({sql}) AS TIMESTAMP)", parts)
        longest = parts[0].longest
        if name == "replace":
            longest = self._bounded(longest * max(1, parts[2].longest), name)
        return self._step(function.gives, f"TRY({sql})", parts, longest)

    def _choice(self, name: str, parts: list[_Value]) -> _Value:
        kind, parts = self._alike(parts, name)
        given = [p.sql for p in parts]
        if name == "nullif":
            sql = f"CASE WHEN {given[0]} = {given[1]} THEN NULL ELSE {given[0]} END"
        else:
            sql = f"{name}({', '.join(given)})"
        return self._step(kind, sql, parts, max(p.longest for p in parts))


def _whole(sql: str) -> str:
    """A place or a length in a text: cut towards zero, and null beyond what DuckDB takes."""
    return f"CASE WHEN abs({sql}) <= 1000000 THEN CAST(trunc({sql}) AS BIGINT) END"


def _kind_of(column: Column) -> Kind:
    if isinstance(column, Boolean):
        return "boolean"
    if isinstance(column, Datetime):
        return "moment"
    return "text" if isinstance(column, Categorical) and column.is_text else "number"


# --- cells -> values ---------------------------------------------------------------------


def _table(
    names: tuple[str, ...], schema: Schema, cells: Mapping[str, pa.ChunkedArray]
) -> pa.Table:
    """The columns that are read, typed by the policy and named by number."""
    return pa.table({f"c{i}": _typed(schema[n], cells[n]) for i, n in enumerate(names)})


def _typed(column: Column, cells: pa.ChunkedArray) -> pa.Array:
    values = values_of(column, cells)
    if isinstance(column, (Numeric, Datetime)):
        missing = np.isnan(values)
        known = np.where(missing, 0.0, np.clip(values, *limits(column)))
        if isinstance(column, Numeric):
            return pa.array(known, pa.float64(), mask=missing)
        return pa.array(np.floor(known).astype(np.int64), pa.timestamp("us"), mask=missing)
    if isinstance(column, Boolean):
        return pa.array(values == 1, pa.bool_(), mask=values == 2)
    missing = values >= len(column.categories)
    codes = np.where(missing, 0, values).astype(np.int32)
    if not column.is_text:
        return pa.array(np.array(column.categories, np.float64)[codes], mask=missing)
    places = pa.array(codes, pa.int32(), mask=missing)
    return pa.DictionaryArray.from_arrays(places, pa.array(column.categories, pa.large_string()))


_running = Lock()  # a DuckDB connection serves one thread at a time


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """A private database in memory, shut off from files, extensions and Python's variables.

    One thread and one connection: rows stay in order, and settings, some of which a cursor
    would not inherit, hold. Without the optimiser nothing is moved from one step to another.
    """
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "preserve_insertion_order": "true",
            "ieee_floating_point_ops": "true",
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "temp_directory": "",
        },
    )
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection


def _run(program: _Program, table: pa.Table) -> pa.ChunkedArray:
    with _running:
        try:
            relation = _database().from_arrow(table)
            for step in program.steps:
                relation = relation.project(step)
            return relation.to_arrow_table()["v"]
        except BaseException:
            _database.cache_clear()  # a database that failed may refuse every later call
            raise


def _to_numpy(found: pa.ChunkedArray, kind: str) -> NDArray[Any]:
    if kind == "predicate":
        return np.asarray(pc.fill_null(found, False).to_numpy(), dtype=np.bool_)
    values = np.asarray(pc.fill_null(found, np.nan).to_numpy(), dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)
