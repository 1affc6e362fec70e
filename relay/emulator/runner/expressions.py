"""GitHub's expression language, as documented in "Evaluate expressions in workflows and actions".

Values are ``None``, ``bool``, ``float``/``int``, ``str``, ``list`` and ``dict``. Property names and string comparison
ignore case; operands of different types are compared as numbers. Functions that need a job (``success()``,
``hashFiles()`` …) are given by the caller, so the language itself has no I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Value = Any
Function = Callable[..., Value]

STATUS_FUNCTIONS = frozenset({"success", "failure", "always", "cancelled"})
_ARITY: dict[str, tuple[int, int]] = {
    "contains": (2, 2),
    "startswith": (2, 2),
    "endswith": (2, 2),
    "format": (1, 255),
    "join": (1, 2),
    "tojson": (1, 1),
    "fromjson": (1, 1),
    "hashfiles": (1, 255),
    "success": (0, 0),
    "failure": (0, 0),
    "always": (0, 0),
    "cancelled": (0, 0),
}
_MAX_DEPTH = 50
_SHOWN = 80  # characters of an expression in a message

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:0x[0-9a-fA-F]+|0o[0-7]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]))
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    | (?P<op>&&|\|\||==|!=|<=|>=|[!<>()\[\].,*])
    )""",
    re.VERBOSE,
)


class ExpressionError(Exception):
    """The expression is malformed or cannot be evaluated; the text says why and shows it."""


@dataclass(frozen=True)
class Node:
    """One node of a parsed expression.

    ``kind`` is ``literal`` (``value``), ``context`` (``value`` = name), ``index`` (``args`` = object, key), ``star``
    (``args`` = object), ``call`` (``value`` = lower-case name), ``not``, ``and``, ``or``, or a comparison operator.
    """

    kind: str
    value: Value = None
    args: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and everything below it."""
        yield self
        for child in self.args:
            yield from child.walk()


class _Filtered(list[Any]):
    """The result of ``.*``: a further property is taken of every item."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ExpressionError(f"unexpected symbol {text[position:].strip()[:20]!r} in {text.strip()!r}")
            kind = str(match.lastgroup)
            self.tokens.append((kind, match.group(kind)))
            position = match.end()
        self.position = 0
        self.depth = 0

    def fail(self, what: str) -> ExpressionError:
        text = self.text.strip()
        return ExpressionError(f"{what} in {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'!r}")

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")

    def take(self, *symbols: str) -> str | None:
        kind, text = self.peek()
        if kind == "op" and text in symbols:
            self.position += 1
            return text
        return None

    def expect(self, symbol: str) -> None:
        if self.take(symbol) is None:
            raise self.fail(f"expected {symbol!r} instead of {self.peek()[1] or 'the end'!r}")

    def parse(self) -> Node:
        if not self.tokens:
            raise ExpressionError("an expression is empty")
        node = self.either()
        if self.peek()[0] != "end":
            raise self.fail(f"unexpected {self.peek()[1]!r}")
        return node

    def either(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail(f"nested deeper than {_MAX_DEPTH} levels")
        node = self.both()
        while self.take("||"):
            node = Node("or", args=(node, self.both()))
        self.depth -= 1
        return node

    def both(self) -> Node:
        node = self.equality()
        while self.take("&&"):
            node = Node("and", args=(node, self.equality()))
        return node

    def equality(self) -> Node:
        node = self.relation()
        while operator := self.take("==", "!="):
            node = Node(operator, args=(node, self.relation()))
        return node

    def relation(self) -> Node:
        node = self.unary()
        while operator := self.take("<", "<=", ">", ">="):
            node = Node(operator, args=(node, self.unary()))
        return node

    def unary(self) -> Node:
        negations = 0
        while self.take("!"):
            negations += 1
        node = self.postfix()
        for _ in range(min(negations, 2 + negations % 2)):
            node = Node("not", args=(node,))
        return node

    def postfix(self) -> Node:
        node = self.primary()
        while True:
            if self.take("."):
                if self.take("*"):
                    node = Node("star", args=(node,))
                    continue
                kind, name = self.peek()
                if kind != "name":
                    raise self.fail("expected a property name after '.'")
                self.position += 1
                node = Node("index", args=(node, Node("literal", name)))
            elif self.take("["):
                node = Node("star", args=(node,)) if self.take("*") else Node("index", args=(node, self.either()))
                self.expect("]")
            else:
                return node

    def primary(self) -> Node:
        if self.take("("):
            node = self.either()
            self.expect(")")
            return node
        kind, text = self.peek()
        self.position += 1
        if kind == "number":
            return Node("literal", to_number(text))
        if kind == "string":
            return Node("literal", text[1:-1].replace("''", "'"))
        if kind == "name":
            if self.take("("):
                return self.call(text)
            constants: dict[str, Value] = {
                "true": True, "false": False, "null": None, "nan": math.nan, "infinity": math.inf,
            }  # fmt: skip
            if text.lower() in constants:
                return Node("literal", constants[text.lower()])
            return Node("context", text.lower())
        raise self.fail(f"unexpected {text or 'end'!r}")

    def call(self, name: str) -> Node:
        arguments: list[Node] = []
        if not self.take(")"):
            arguments.append(self.either())
            while self.take(","):
                arguments.append(self.either())
            self.expect(")")
        arity = _ARITY.get(name.lower())
        if arity is None:
            raise self.fail(f"unknown function {name!r}")
        if not arity[0] <= len(arguments) <= arity[1]:
            raise self.fail(f"{name}() takes {arity[0]} to {arity[1]} arguments, not {len(arguments)},")
        return Node("call", name.lower(), tuple(arguments))


def parse(text: str) -> Node:
    """Parse the inside of ``${{ … }}``.

    Raises:
        ExpressionError: not an expression of the language.
    """
    return _Parser(text).parse()


# --- values ---------------------------------------------------------------------------------------------------------


def to_number(value: Value) -> float:
    """GitHub's conversion to a number: null is 0, booleans 0/1, text as in JSON (also ``0x``, ``0o``), else NaN."""
    if value is None:
        return 0.0
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return 0.0
        sign, digits = (-1.0, text[1:]) if text[0] == "-" else (1.0, text.removeprefix("+"))
        if re.fullmatch(r"0x[0-9a-fA-F]+", digits):
            return sign * int(digits, 16)
        if re.fullmatch(r"0o[0-7]+", digits):
            return sign * int(digits, 8)
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", digits):
            return sign * float(digits)
        if digits == "Infinity":
            return sign * math.inf
    return math.nan


def to_text(value: Value) -> str:
    """GitHub's conversion to a string: null is empty, booleans and numbers as in JSON, objects by their kind."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        if float(value).is_integer() and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.15G}"
    if isinstance(value, str):
        return value
    return "Array" if isinstance(value, list) else "Object"


def truthy(value: Value) -> bool:
    """Whether ``if`` takes the branch: false, 0, NaN, empty text and null do not."""
    if value is None or value is False or value == "":
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return not (value == 0 or math.isnan(value))
    return True


def to_json(value: Value) -> str:
    """The text of ``toJSON``: two spaces of indentation, integers without a fraction."""

    def plain(item: Value) -> Value:
        if isinstance(item, float):
            return int(item) if item.is_integer() else item
        if isinstance(item, Mapping):
            return {str(key): plain(part) for key, part in item.items()}
        if isinstance(item, list):
            return [plain(part) for part in item]
        return item

    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def _same_kind(left: Value, right: Value) -> bool:
    def kind(value: Value) -> str:
        if isinstance(value, bool):
            return "bool"
        if isinstance(value, (int, float)):
            return "number"
        return type(value).__name__

    return kind(left) == kind(right)


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, (dict, list)) or isinstance(right, (dict, list)):
        return left is right
    if _same_kind(left, right):
        if isinstance(left, str):
            return bool(left.casefold() == right.casefold())
        return bool(left == right)
    return to_number(left) == to_number(right)


def _less(left: Value, right: Value) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.casefold() < right.casefold()
    return to_number(left) < to_number(right)


def _property(value: Value, key: Value) -> Value:
    if isinstance(value, _Filtered):
        found = (_property(item, key) for item in value)
        return _Filtered([item for item in found if item is not None])
    if isinstance(value, Mapping):
        name = to_text(key)
        if name in value:
            return value[name]
        folded = name.casefold()
        return next((item for candidate, item in value.items() if str(candidate).casefold() == folded), None)
    if isinstance(value, list):
        number = to_number(key)
        return value[int(number)] if not math.isnan(number) and 0 <= number < len(value) else None
    return None


def _format(template: Value, *values: Value) -> str:
    text = to_text(template)
    result, position = [], 0
    for match in re.finditer(r"\{\{|\}\}|\{(\d+)\}|[{}]", text):
        result.append(text[position : match.start()])
        position = match.end()
        token = match.group()
        if match.group(1) is not None:
            index = int(match.group(1))
            if index >= len(values):
                raise ExpressionError(f"format() refers to {{{index}}} but has {len(values)} value(s): {text!r}")
            result.append(to_text(values[index]))
        elif token in ("{{", "}}"):
            result.append(token[0])
        else:
            raise ExpressionError(f"format() has a single {token!r}; write {token * 2!r}: {text!r}")
    return "".join([*result, text[position:]])


def _from_json(value: Value) -> Value:
    try:
        return json.loads(to_text(value))
    except ValueError as error:
        raise ExpressionError(f"fromJSON() was given text that is not JSON: {error}") from error


def _contains(where: Value, what: Value) -> bool:
    if isinstance(where, list):
        return any(_equal(item, what) for item in where)
    return to_text(what).casefold() in to_text(where).casefold()


def _join(values: Value, separator: Value = ",") -> str:
    return to_text(separator).join(to_text(item) for item in values) if isinstance(values, list) else to_text(values)


_BUILTINS: dict[str, Function] = {
    "contains": _contains,
    "startswith": lambda text, start: to_text(text).casefold().startswith(to_text(start).casefold()),
    "endswith": lambda text, end: to_text(text).casefold().endswith(to_text(end).casefold()),
    "format": _format,
    "join": _join,
    "tojson": to_json,
    "fromjson": _from_json,
}


def evaluate(node: Node, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Value:
    """Value of a parsed expression.

    Args:
        node: from :func:`parse`.
        contexts: by lower-case name (``github``, ``env`` …).
        functions: the functions that need a job, by lower-case name.

    Raises:
        ExpressionError: an unknown context, a function that is not available here, or a bad argument.
    """

    def value(item: Node) -> Value:
        return evaluate(item, contexts, functions)

    match node.kind:
        case "literal":
            return node.value
        case "context":
            if node.value not in contexts:
                raise ExpressionError(f"context {node.value!r} is not available here")
            return contexts[node.value]
        case "index":
            return _property(value(node.args[0]), value(node.args[1]))
        case "star":
            held = value(node.args[0])
            items = held if isinstance(held, list) else list(held.values()) if isinstance(held, Mapping) else []
            return _Filtered(items)
        case "not":
            return not truthy(value(node.args[0]))
        case "and":
            left = value(node.args[0])
            return value(node.args[1]) if truthy(left) else left
        case "or":
            left = value(node.args[0])
            return left if truthy(left) else value(node.args[1])
        case "call":
            function = functions.get(node.value) or _BUILTINS.get(node.value)
            if function is None:
                raise ExpressionError(f"function {node.value}() is not available here")
            return function(*(value(argument) for argument in node.args))
    left, right = value(node.args[0]), value(node.args[1])
    match node.kind:
        case "==":
            return _equal(left, right)
        case "!=":
            return not _equal(left, right)
        case "<":
            return _less(left, right)
        case ">":
            return _less(right, left)
        case "<=":
            return _less(left, right) or _equal(left, right)
        case _:
            return _less(right, left) or _equal(left, right)


# --- templates ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A string of a workflow file: literal text and ``${{ … }}`` parts, parsed once when the file is loaded."""

    parts: tuple[str | Node, ...]

    @property
    def expressions(self) -> list[Node]:
        """The parsed parts."""
        return [part for part in self.parts if isinstance(part, Node)]

    def render(self, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Value:
        """The value: of the one expression if the string is nothing else, else text.

        Raises:
            ExpressionError: as :func:`evaluate`.
        """
        if len(self.parts) == 1 and isinstance(self.parts[0], Node):
            return evaluate(self.parts[0], contexts, functions)
        return "".join(
            part if isinstance(part, str) else to_text(evaluate(part, contexts, functions)) for part in self.parts
        )


_SEGMENT = re.compile(r"\$\{\{((?:'(?:[^']|'')*'|[^'])*?)\}\}")


def template(text: str) -> Template:
    """Split ``text`` at its ``${{ … }}`` parts and parse them.

    Raises:
        ExpressionError: a malformed or unterminated expression.
    """
    parts: list[str | Node] = []
    position = 0
    for match in _SEGMENT.finditer(text):
        if match.start() > position:
            parts.append(text[position : match.start()])
        parts.append(parse(match.group(1)))
        position = match.end()
    rest = text[position:]
    if "${{" in rest:
        raise ExpressionError(f"'${{{{' without '}}}}' in {rest.strip()[:80]!r}")
    if rest or not parts:
        parts.append(rest)
    return Template(tuple(parts))


def condition(text: str) -> Node:
    """Parse an ``if``: ``${{ }}`` may be left out, and ``success()`` applies unless a status function is used.

    Text outside one ``${{ }}`` makes the whole a non-empty string on GitHub, which is always true; that is a mistake
    of the author every time, so it is an error here.

    Raises:
        ExpressionError: malformed, or text around the expression.
    """
    stripped = text.strip()
    if "${{" in stripped:
        parts = template(stripped).parts
        if len(parts) != 1 or not isinstance(parts[0], Node):
            raise ExpressionError(f"'if' has text outside of ${{{{ }}}} and would always be true: {stripped!r}")
        node = parts[0]
    else:
        node = parse(stripped)
    if any(part.kind == "call" and part.value in STATUS_FUNCTIONS for part in node.walk()):
        return node
    return Node("and", args=(Node("call", "success"), node))
