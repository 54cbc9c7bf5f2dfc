"""Tree -> steps of DuckDB's SQL: one projection for each operation, all of them total."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from retilt.exceptions import WorkloadError
from retilt.measures.expressions.grammar import (
    DUCKDB_TYPES,
    FUNCTIONS,
    MAX_BUILT_TEXT,
    MOMENT_TEXT,
    NUMBER_TEXT,
    SPOKEN,
    Kind,
    Node,
    not_admitted,
    refusal,
    short,
)
from retilt.measures.expressions.reading import moment_of
from retilt.measures.expressions.showing import quoted
from retilt.schema.columns import Boolean, Categorical, Column, Datetime, Schema


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


class Program(NamedTuple):
    """What DuckDB runs: projections, one upon the other; the last has one column, ``v``."""

    columns: tuple[str, ...]
    steps: tuple[str, ...]
    kind: Kind | None


class Compiler:
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
        self.done: dict[Node, _Value] = {}

    def program(self, node: Node) -> Program:
        """The steps whose last one gives the node's value."""
        root = self.value(node)
        self.needed[root.sql] = len(self.steps) + 1
        alive = [f"c{i}" for i in range(len(self.columns))]
        steps = []
        for number, step in enumerate(self.steps, start=1):
            alive = [name for name in alive if self.needed[name] > number]
            steps.append(", ".join([*alive, *(f"{sql} AS {name}" for name, sql in step)]))
            alive += [name for name, _ in step]
        steps.append(f"{root.sql} AS v")
        return Program(tuple(self.columns), tuple(steps), root.kind)

    def value(self, node: Node) -> _Value:
        """The node's value, its steps written if they are not yet."""
        if node not in self.done:
            self.done[node] = self._leaf(node) if not node.parts else self._operation(node)
        return self.done[node]

    def _leaf(self, node: Node) -> _Value:
        match node.what:
            case "column":
                return self._column(node.word)
            case "number":
                return _Value("number", f"CAST('{float(node.word)!r}' AS DOUBLE)")
            case "text":
                return _Value("text", quoted(node.word), 0, len(node.word), node.word)
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

    def _operation(self, node: Node) -> _Value:
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
            return _Value(kind, f"CAST(NULL AS {DUCKDB_TYPES[kind]})")
        if kind == "moment" and value.literal is not None:
            moment = moment_of(self.text, value.literal)
            return _Value("moment", f"TIMESTAMP '{moment.isoformat(sep=' ')}'")
        raise refusal(
            self.text,
            f"{where} has {SPOKEN[value.kind]}, but needs {SPOKEN[kind]}",
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
            named = " and ".join(SPOKEN[k] for k in kinds if k)
            raise WorkloadError(
                f"SQL expression {short(self.text)}: {where} joins {named}; both sides must be "
                "of one kind (numbers are written without quotes, CAST converts)."
            )
        if not kinds:
            unknown = any(v.kind is None for v in values)
            return (None if unknown else "null"), values
        return kinds[0], [self._as(v, kinds[0], where) for v in values]

    # --- operations

    def _comparison(self, node: Node, parts: list[_Value]) -> _Value:
        where = node.word or node.what.upper()
        kind, parts = self._alike(parts, where)
        first, *rest = (p.sql for p in parts)
        if kind == "boolean" and where not in ("=", "<>", "IN"):
            raise not_admitted(self.text, f"{where} between true and false")
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

    def _like(self, node: Node, parts: list[_Value]) -> _Value:
        """LIKE through RE2, whose time is linear where DuckDB's own matching backtracks."""
        text = self._as(parts[0], "text", node.what.upper())
        signs = {"%": ".*", "_": "."}
        pattern = "".join(
            signs.get(c) or (c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}")
            for c in node.parts[1].word
        )
        pattern = re.sub(r"(\.\*)+", ".*", pattern)
        options = "'si'" if node.what == "ilike" else "'s'"
        sql = f"TRY(regexp_full_match({text.sql}, {quoted(pattern)}, {options}))"
        return self._step("boolean", sql, [text])

    def _chain(self, node: Node, parts: list[_Value]) -> _Value:
        """A sum or product. What is not finite on the way never becomes finite again."""
        operators = node.word.split()
        parts = [self._as(p, "number", operators[0]) for p in parts]
        sql = parts[0].sql
        for operator, part in zip(operators, parts[1:], strict=True):
            whole = operator == "//"
            sql = f"trunc({sql} / {part.sql})" if whole else f"({sql} {operator} {part.sql})"
        return self._finite(sql, parts)

    def _case(self, node: Node, parts: list[_Value]) -> _Value:
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
            raise not_admitted(
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
            raise not_admitted(
                self.text, "a cast of a date to a number", "Use epoch, year or date_diff."
            )
        if source == "boolean":
            return self._step("number", f"CAST({x} AS DOUBLE)", [value])
        if source == "text":
            match = f"regexp_full_match({x}, {quoted(NUMBER_TEXT)})"
            value = self._finite(f"CASE WHEN {match} THEN TRY_CAST({x} AS DOUBLE) END", [value])
        if target == "DOUBLE":
            return value._replace(kind="number")
        return self._finite(f"CAST(TRY_CAST({value.sql} AS {target}) AS DOUBLE)", [value])

    def _to_text(self, value: _Value) -> _Value:
        x = value.sql
        if value.kind == "moment":
            raise not_admitted(
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
            raise not_admitted(self.text, "a cast of a date to true or false")
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
            raise not_admitted(self.text, f"a cast of {SPOKEN[value.kind]} to a date")
        if value.kind == "text":
            match = f"regexp_full_match({value.sql}, {quoted(MOMENT_TEXT)})"
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
        function = FUNCTIONS[name]
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
