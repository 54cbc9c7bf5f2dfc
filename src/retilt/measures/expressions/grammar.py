"""What an expression may hold: the whitelists of every stage, and how refusals are worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from retilt.exceptions import WorkloadError

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

SPOKEN = {
    "number": "a number",
    "text": "text",
    "boolean": "true or false",
    "moment": "a date or timestamp",
    "null": "null",
}
DUCKDB_TYPES = {
    "number": "DOUBLE",
    "text": "VARCHAR",
    "boolean": "BOOLEAN",
    "moment": "TIMESTAMP",
}


def _words(text: str) -> list[str]:
    return text.split()


TOKENS = frozenset(
    _words(
        "VAR IDENTIFIER STRING NUMBER L_PAREN R_PAREN COMMA DOT DCOLON ALIAS FROM"
        " EQ NEQ LT LTE GT GTE AND OR NOT IS NULL TRUE FALSE ISNULL NOTNULL BETWEEN IN LIKE ILIKE"
        " CASE WHEN THEN ELSE END PLUS DASH STAR SLASH DIV MOD DPIPE LEFT RIGHT REPLACE"
        " TINYINT SMALLINT INT BIGINT INT128 FLOAT DOUBLE DECIMAL BOOLEAN TEXT VARCHAR DATE"
        " TIMESTAMP TIMESTAMPNTZ"
    )
)
CALLABLE = frozenset(("VAR", "LEFT", "RIGHT", "REPLACE"))  # functions, where a bracket follows
SYNTAX = frozenset(("CAST", "TRY_CAST", "EXTRACT"))  # calls with words inside
CALLED = "retilt_"  # begins the names of functions while sqlglot has them: it knows none such
PREFIXES = frozenset(("NOT", "DASH", "PLUS"))
REFUSED_TOKENS = {
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

COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
ADDITIVE = {"Add": "+", "Sub": "-"}
MULTIPLICATIVE = {"Mul": "*", "Div": "/", "IntDiv": "//", "Mod": "%"}
JOINED = {"And": "and", "Or": "or", "DPipe": "||"}
CHAINS = (set(ADDITIVE), set(MULTIPLICATIVE), {"And"}, {"Or"}, {"DPipe"})

# sqlglot's arguments of each kind of node that carry meaning and are dealt with. Any other that
# is set means syntax that is not admitted.
_BINARY = frozenset(("this", "expression"))
ARGUMENTS = {
    **dict.fromkeys((*COMPARISONS, *ADDITIVE, *MULTIPLICATIVE, *JOINED), _BINARY),
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
FLAGS = {"safe", "typed"}  # of the dialect, on division, concatenation and casts
REFUSED_NODES = {
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
TYPES = {
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


FUNCTIONS: dict[str, _Function] = {
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
PARTS = {
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
FUNCTIONS |= {p: _Function("m", "number", p) for p in set(PARTS.values())}
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
# Functions with rules of their own: the fewest arguments and the most.
SPECIAL = {
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
ALIASES = {
    **{alias: part for alias, part in PARTS.items() if alias != part},
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
REFUSED_FUNCTIONS = {
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
        "takes a regular expression (LIKE, contains and starts_with do not)",
    ),
    "log": "means a different base in different databases (ln, log10 and log2 do not)",
}

NUMBER_TEXT = r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
MOMENT_TEXT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"


@dataclass(frozen=True, slots=True)
class Node:
    """An admitted operation: what it is, on what, and a word (a name, a value, operators)."""

    what: str
    parts: tuple[Node, ...] = ()
    word: str = ""


def short(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= 60 else text[:59] + "…")


def refusal(text: str, what: str, advice: str) -> WorkloadError:
    """The error that says what is wrong with an expression and what to do."""
    return WorkloadError(f"SQL expression {short(text)}: {what}. {advice}")


def not_admitted(text: str, what: str, advice: str = "") -> WorkloadError:
    """The error for what has no place in the grammar."""
    advice = advice or "An expression is a formula of one row's columns."
    return refusal(text, f"{what} is not admitted", advice)


def require_kind(found: Kind | None, kind: str, text: str) -> None:
    """Refuse a condition where a number is asked for, and the reverse."""
    wanted = "boolean" if kind == "predicate" else "number"
    if found not in (wanted, None):
        hint = (
            "a condition is needed, as in age >= 65"
            if kind == "predicate"
            else "a number is needed: CASE WHEN … THEN 1 ELSE 0 END makes one of a condition"
        )
        raise refusal(text, f"its value is {SPOKEN[found]}", f"Here {hint}.")
