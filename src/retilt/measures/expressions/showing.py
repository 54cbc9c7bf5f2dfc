"""Tree -> canonical text: what is equal up to spelling is written alike."""

from __future__ import annotations

import re
from collections.abc import Iterable

from retilt.measures.expressions.grammar import Node
from retilt.measures.expressions.reading import dialect

# How tightly an operation binds; an operand that binds no tighter stands in brackets.
_OR, _AND, _NOT, _COMPARE, _CONCAT, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)


def show(node: Node) -> tuple[str, int]:
    """Canonical SQL of a tree, and how tightly it binds."""
    match node.what:
        case "column":
            return _show_name(node.word), _ATOM
        case "text":
            return quoted(node.word), _ATOM
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
            return f"CAST({show(node.parts[0])[0]} AS {node.word})", _ATOM
        case "call":
            return f"{node.word}({', '.join(show(p)[0] for p in node.parts)})", _ATOM
        case "case" | "switch":
            return _show_case(node), _ATOM
    return _show_comparison(node, ""), _COMPARE


def _operand(node: Node, level: int) -> str:
    text, own = show(node)
    return text if own > level else f"({text})"


def _operands(parts: Iterable[Node], level: int) -> list[str]:
    return [_operand(p, level) for p in parts]


def _show_name(name: str) -> str:
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        tokens = dialect().tokenize(name)
        if len(tokens) == 1 and tokens[0].token_type.name == "VAR":
            return name
    return '"' + name.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """A text literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _show_not(inner: Node) -> str:
    if inner.what in ("is", "in", "like", "ilike", "between"):
        return _show_comparison(inner, "NOT ")
    return "NOT " + _operand(inner, _NOT)


def _show_chain(node: Node, level: int) -> str:
    first, *rest = _operands(node.parts, level)
    return first + "".join(
        f" {sign} {part}" for sign, part in zip(node.word.split(), rest, strict=True)
    )


def _show_comparison(node: Node, negation: str) -> str:
    parts = _operands(node.parts, _CONCAT)
    match node.what:
        case "compare":
            return f"{parts[0]} {node.word} {parts[1]}"
        case "is":
            return f"{parts[0]} IS {negation}{node.word}"
        case "in":
            listed = ", ".join(show(p)[0] for p in node.parts[1:])
            return f"{parts[0]} {negation}IN ({listed})"
        case "between":
            return f"{parts[0]} {negation}BETWEEN {parts[1]} AND {parts[2]}"
    return f"{parts[0]} {negation}{node.what.upper()} {parts[1]}"


def _show_case(node: Node) -> str:
    shown = [show(p)[0] for p in node.parts]
    words = ["CASE"]
    if node.what == "switch":
        words.append(shown.pop(0))
    for when, then in zip(shown[:-1:2], shown[1::2], strict=True):
        words += ["WHEN", when, "THEN", then]
    if node.parts[-1].what != "null":
        words += ["ELSE", shown[-1]]
    return " ".join([*words, "END"])
