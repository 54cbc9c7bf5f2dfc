"""SQL scalar expressions of one row: admitted or refused at plan time, then evaluated.

An expression comes from whoever writes the plan and runs where the private table is, so what
it may hold is a **whitelist**, at every stage:

1. sqlglot splits the text into tokens; only those of the grammar below pass.
2. Its tree is turned into one of our own (:class:`Node`), kind of node by kind of node and
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

from retilt.measures.expressions.admitted import (
    Expression,
    check,
    evaluate,
    parse_number,
    parse_predicate,
)
from retilt.measures.expressions.grammar import (
    MAX_BUILT_TEXT,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NESTING,
    MAX_TERMS,
)
from retilt.measures.expressions.running import typed_cells

__all__ = [
    "MAX_BUILT_TEXT",
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_NESTING",
    "MAX_TERMS",
    "Expression",
    "check",
    "evaluate",
    "parse_number",
    "parse_predicate",
    "typed_cells",
]
