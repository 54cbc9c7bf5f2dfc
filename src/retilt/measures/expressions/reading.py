"""SQL text -> tree: tokens and nodes are admitted one by one, or refused with a reason."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from retilt._input import kind_of
from retilt.exceptions import WorkloadError

if TYPE_CHECKING:
    from sqlglot.dialects.dialect import Dialect

from retilt.measures.expressions.grammar import (
    ADDITIVE,
    ALIASES,
    ARGUMENTS,
    CALLABLE,
    CALLED,
    CHAINS,
    COMPARISONS,
    FLAGS,
    FUNCTIONS,
    JOINED,
    MAX_BUILT_TEXT,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NESTING,
    MAX_TERMS,
    MOMENT_TEXT,
    MULTIPLICATIVE,
    PARTS,
    PREFIXES,
    REFUSED_FUNCTIONS,
    REFUSED_NODES,
    REFUSED_TOKENS,
    SPECIAL,
    SYNTAX,
    TOKENS,
    TYPES,
    UNITS,
    Node,
    not_admitted,
    refusal,
    short,
)


@cache
def dialect() -> Dialect:
    """Sqlglot's DuckDB, made once."""
    from sqlglot.dialects.duckdb import DuckDB

    return DuckDB()


def parse(text: str) -> Node:
    """The tree of an admitted text, or a refusal."""
    if not isinstance(text, str):
        raise WorkloadError(f"SQL expression: got {kind_of(text)}, expected text.")
    return _tree(text)


@lru_cache(maxsize=1024)
def _tree(text: str) -> Node:
    if not text.strip():
        raise WorkloadError("SQL expression: got nothing, expected one, as in age >= 65.")
    if len(text) > MAX_CHARACTERS:
        raise not_admitted(text, f"a text of more than {MAX_CHARACTERS:,} characters")
    if "\0" in text or not _is_encodable(text):
        raise not_admitted(text, "a character that is not Unicode text")
    from sqlglot.errors import SqlglotError

    try:
        tokens = dialect().tokenize(text)
        if not tokens:
            raise not_admitted(text, "a comment")
        _check_tokens(text, tokens)
        found = dialect().parser().parse(_unequivocal(tokens), text)
        if len(found) != 1 or found[0] is None:
            raise not_admitted(text, "more than one statement")
        _check_depth(text, found[0])
        node = _Reader(text).read(found[0])
    except WorkloadError:
        raise
    except (SqlglotError, ValueError, RecursionError, LookupError, AttributeError, TypeError):
        # The text is public, but sqlglot marks it up for a terminal.
        raise refusal(
            text,
            "it can't be read as SQL",
            "Text stands in single quotes, names with spaces or signs in double quotes.",
        ) from None
    if not names_in(node):
        raise refusal(text, "it reads no column", "So it is the same in every row.")
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
            raise not_admitted(text, "a comment")
        if kind not in TOKENS:
            raise _refused_token(text, token.text, kind)
        depth += (kind in ("L_PAREN", "CASE")) - (kind in ("R_PAREN", "END"))
        run = run + 1 if kind in PREFIXES else 0
        if before == "IDENTIFIER" and kind == "L_PAREN":
            raise not_admitted(text, "a function's name in double quotes")
        if before == "DOT" and kind != "NUMBER":
            raise not_admitted(text, "a name with a dot", "Columns are named without their table.")
        before = kind
        if depth > MAX_NESTING or run > MAX_NESTING // 2:
            raise not_admitted(text, f"nesting of more than {MAX_NESTING} levels")


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
        if called and kind.name in CALLABLE and text.upper() not in SYNTAX:
            kind, text = TokenType.VAR, CALLED + text
        elif kind is TokenType.VAR and inside and tokens[number - 2].text.upper() == "EXTRACT":
            kind = TokenType.STRING
        elif kind is TokenType.VAR and not called:
            kind = TokenType.IDENTIFIER
        found.append(Token(kind, text, token.line, token.col, token.start, token.end))
    return found


def _refused_token(text: str, word: str, kind: str) -> WorkloadError:
    if kind in REFUSED_TOKENS:
        return not_admitted(text, REFUSED_TOKENS[kind])
    if word.lower() in REFUSED_FUNCTIONS:
        return not_admitted(text, f"{word} {REFUSED_FUNCTIONS[word.lower()]}, and so")
    hint = (
        f'A column of that name stands in double quotes: "{word}".' if word.isidentifier() else ""
    )
    return not_admitted(text, f"the word or sign {short(word)}", hint)


def _check_depth(text: str, root: Any) -> None:
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise not_admitted(text, f"nesting of more than {MAX_DEPTH} levels")
        chain = _chain_of(node)
        for child in node.iter_expressions():
            same = child is node.args.get("this") and chain and type(child).__name__ in chain
            waiting.append((child, depth if same else depth + 1))


def _chain_of(node: Any) -> set[str]:
    name = type(node).__name__
    return next((chain for chain in CHAINS if name in chain), set())


class _Reader:
    """sqlglot's tree -> ours. Whatever it has no method for is refused."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, node: Any) -> Node:
        name = type(node).__name__
        chain = _chain_of(node)
        if chain:
            return self._chain(node, chain)
        self._check_arguments(node)
        if name in COMPARISONS:
            parts = (self.read(node.this), self.read(node.expression))
            return Node("compare", parts, COMPARISONS[name])
        reader = getattr(self, f"_read_{name.lower()}", None)
        if reader is None:
            raise self._refuse(node)
        result: Node = reader(node)
        return result

    def _refuse(self, node: Any) -> WorkloadError:
        name = type(node).__name__
        return not_admitted(self.text, REFUSED_NODES.get(name, f"SQL's {name}"))

    def _check_arguments(self, node: Any) -> None:
        allowed = ARGUMENTS.get(type(node).__name__)
        if allowed is None:
            raise self._refuse(node)
        for key, value in node.args.items():
            if value not in (None, False, []) and key not in allowed and key not in FLAGS:
                raise not_admitted(self.text, f"SQL's {type(node).__name__} with {key!r}")

    def _chain(self, node: Any, chain: set[str]) -> Node:
        """``a + b - c`` from the left, without recursion: it may be long."""
        operators: list[str] = []
        operands: list[Node] = []
        while type(node).__name__ in chain:
            self._check_arguments(node)
            operators.append(type(node).__name__)
            operands.append(self.read(node.expression))
            node = _bare(node.this)
        operands.append(self.read(node))
        operands.reverse()
        operators.reverse()
        if operators[0] in JOINED:
            what = JOINED[operators[0]]
            # These are associative, so brackets on the right are redundant too.
            return _joined(what, operands)
        if len(operands) > MAX_TERMS:
            raise not_admitted(self.text, f"a sum or product of more than {MAX_TERMS} terms")
        if operators[0] in ADDITIVE:
            return Node("sum", tuple(operands), " ".join(ADDITIVE[o] for o in operators))
        return _product(operands, [MULTIPLICATIVE[o] for o in operators])

    def _read_paren(self, node: Any) -> Node:
        return self.read(node.this)

    def _read_column(self, node: Any) -> Node:
        self._check_arguments(node.this)
        if type(node.this).__name__ != "Identifier" or not node.this.this:
            raise self._refuse(node.this)
        return Node("column", word=node.this.this)

    def _read_literal(self, node: Any) -> Node:
        if node.is_string:
            return Node("text", word=node.this)
        try:
            value = float(node.this)
        except ValueError:
            raise not_admitted(self.text, f"the number {short(node.this)}") from None
        if not math.isfinite(value):
            raise not_admitted(self.text, f"the number {short(node.this)}, which is too great,")
        return _number(value)

    def _read_boolean(self, node: Any) -> Node:
        return Node("true" if node.this else "false")

    def _read_null(self, node: Any) -> Node:
        return Node("null")

    def _read_neg(self, node: Any) -> Node:
        inner = self.read(node.this)
        if inner.what == "number":
            return _number(-float(inner.word))
        return Node("negative", (inner,))

    def _read_not(self, node: Any) -> Node:
        return Node("not", (self.read(node.this),))

    def _read_is(self, node: Any) -> Node:
        right = self.read(node.expression)
        if right.what not in ("null", "true", "false"):
            raise not_admitted(self.text, "IS without NULL, TRUE or FALSE after it")
        return Node("is", (self.read(node.this),), right.what.upper())

    def _read_like(self, node: Any, what: str = "like") -> Node:
        pattern = self.read(node.expression)
        if pattern.what != "text" or len(pattern.word) > MAX_BUILT_TEXT:
            raise not_admitted(
                self.text,
                f"{what.upper()} without a pattern in single quotes of at most "
                f"{MAX_BUILT_TEXT:,} characters",
            )
        found = Node(what, (self.read(node.this), pattern))
        return Node("not", (found,)) if node.args.get("negate") else found

    def _read_ilike(self, node: Any) -> Node:
        return self._read_like(node, "ilike")

    def _read_between(self, node: Any) -> Node:
        return Node("between", tuple(self.read(node.args[a]) for a in ("this", "low", "high")))

    def _read_in(self, node: Any) -> Node:
        listed = node.expressions
        if not listed:
            raise not_admitted(self.text, "IN without a list of values in brackets")
        return Node("in", tuple(self.read(e) for e in (node.this, *listed)))

    def _read_case(self, node: Any) -> Node:
        parts = [self.read(node.this)] if node.this else []
        for branch in node.args["ifs"]:
            self._check_arguments(branch)
            parts += [self.read(branch.this), self.read(branch.args["true"])]
        default = node.args.get("default")
        parts.append(self.read(default) if default else Node("null"))
        return Node("switch" if node.this else "case", tuple(parts))

    def _read_cast(self, node: Any) -> Node:
        target = self._type(node.args["to"])
        inner = self.read(node.this)
        if inner.what == "text" and target in ("DATE", "TIMESTAMP"):
            moment = moment_of(self.text, inner.word)
            if target == "DATE":
                moment = moment.replace(hour=0, minute=0, second=0, microsecond=0)
            return _moment_node(moment)
        return Node("cast", (inner,), target)

    def _read_trycast(self, node: Any) -> Node:
        return self._read_cast(node)

    def _type(self, node: Any) -> str:
        self._check_arguments(node)
        name = getattr(node.this, "name", str(node.this))
        if name not in TYPES or node.args.get("nested"):
            raise not_admitted(
                self.text,
                f"a cast to {short(name)}",
                "Casts are to numbers, BOOLEAN, VARCHAR, DATE and TIMESTAMP.",
            )
        target = TYPES[name]
        if not node.expressions:
            return "DECIMAL(18, 3)" if target == "DECIMAL" else target
        sizes = [self._size(p) for p in node.expressions]
        if target != "DECIMAL" or len(sizes) > 2:
            raise not_admitted(self.text, f"a size of the type {target}")
        digits, places = sizes if len(sizes) == 2 else (*sizes, 0)
        if not 0 <= places <= digits or not 1 <= digits <= 38:
            raise not_admitted(self.text, f"DECIMAL({digits}, {places})")
        return f"DECIMAL({digits}, {places})"

    def _size(self, node: Any) -> int:
        self._check_arguments(node)
        size = str(node.this.this)
        if type(node.this).__name__ != "Literal" or not re.fullmatch("[0-9]{1,2}", size):
            raise not_admitted(self.text, "a type's size that is no whole number")
        return int(size)

    def _read_extract(self, node: Any) -> Node:
        return self._part(str(getattr(node.this, "this", "")), self.read(node.expression))

    def _part(self, part: str, moment: Node) -> Node:
        name = PARTS.get(part.lower())
        if name is None:
            raise not_admitted(
                self.text,
                f"the part {short(part)} of a date",
                f"Parts are {', '.join(sorted(set(PARTS.values())))}.",
            )
        return Node("call", (moment,), name)

    def _read_anonymous(self, node: Any) -> Node:
        if not isinstance(node.this, str):
            raise self._refuse(node)
        spelt = node.this.removeprefix(CALLED)
        written = spelt.lower()
        name = ALIASES.get(written, written)
        if name not in FUNCTIONS and name not in SPECIAL:
            reason = REFUSED_FUNCTIONS.get(name)
            what = f"{spelt} {reason}, and so" if reason else f"the function {short(spelt)}"
            allowed = ", ".join(sorted({*FUNCTIONS, *SPECIAL}))
            raise not_admitted(self.text, what, f"Functions are {allowed}.")
        parts = tuple(self.read(e) for e in node.expressions)
        fewest, most = SPECIAL.get(name) or _arity(FUNCTIONS[name].takes)
        if not fewest <= len(parts) <= most:
            allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise refusal(self.text, f"{name} has {len(parts)} arguments", f"It takes {allowed}.")
        return self._call(name, parts)

    def _call(self, name: str, parts: tuple[Node, ...]) -> Node:
        """A call in its canonical form."""
        if name == "if":
            return Node("case", parts)
        if name == "mod":
            return _product(parts, ["%"])
        if name == "date_part":
            return self._part(parts[0].word if parts[0].what == "text" else "?", parts[1])
        if name == "round":
            places = parts[1].word if len(parts) == 2 else "0"
            if not re.fullmatch("-?(1[0-5]|[0-9])", places) or parts[-1].what == "text":
                raise not_admitted(
                    self.text, "round to anything but a whole number of -15 to 15 places"
                )
            return Node("call", parts[:1] if places == "0" else parts, name)
        if name in FUNCTIONS and FUNCTIONS[name].takes.startswith("u"):
            unit = parts[0].word.lower() if parts[0].what == "text" else "?"
            if unit not in UNITS:
                raise not_admitted(
                    self.text, f"{name} without a unit", f"Units are {', '.join(UNITS)}."
                )
            return Node("call", (Node("text", word=unit), *parts[1:]), name)
        return Node("call", parts, name)


def _bare(node: Any) -> Any:
    """What stands in the brackets, if anything does."""
    while type(node).__name__ == "Paren" and set(node.args) <= {"this"}:
        node = node.this
    return node


def _joined(what: str, operands: Iterable[Node]) -> Node:
    parts: list[Node] = []
    for operand in operands:
        parts.extend(operand.parts if operand.what == what else (operand,))
    return Node(what, tuple(parts))


def _product(operands: Iterable[Node], operators: list[str]) -> Node:
    first, *rest = operands
    if first.what == "product":  # mod(a * b, c)
        return Node("product", (*first.parts, *rest), f"{first.word} {' '.join(operators)}")
    return Node("product", (first, *rest), " ".join(operators))


def _arity(takes: str) -> tuple[int, int]:
    fewest, _, _ = takes.partition("?")
    return len(fewest), len(takes.replace("?", ""))


def _number(value: float) -> Node:
    whole = value.is_integer() and abs(value) < 1e15
    return Node("number", word=str(int(value)) if whole else repr(value))


def moment_of(text: str, word: str) -> datetime:
    """The moment that a literal of the expression ``text`` writes."""
    try:
        if not re.fullmatch(MOMENT_TEXT, word, re.ASCII):
            raise ValueError
        return datetime.fromisoformat(_six_digits(word))
    except ValueError:
        raise refusal(
            text,
            f"{short(word)} is no date or timestamp",
            "Write it like '2024-02-29' or '2024-02-29 13:30:00', in UTC.",
        ) from None


def _six_digits(word: str) -> str:
    whole, dot, fraction = word.partition(".")
    return f"{whole}{dot}{fraction:0<6}" if dot else whole


def _moment_node(moment: datetime) -> Node:
    return Node("moment", word=moment.isoformat(sep=" "))


def names_in(node: Node) -> tuple[str, ...]:
    """Columns in the order of first mention."""
    return tuple(dict.fromkeys(n.word for n in _walk(node) if n.what == "column"))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)
