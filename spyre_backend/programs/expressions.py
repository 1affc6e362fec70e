"""Whole numbers over a program's symbols: ``"s0 * 8 + min(s1, 4)"``, as text in artifacts and as steps for the host."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

Size: TypeAlias = int | str
"""A whole number, or an expression over symbols."""

Steps: TypeAlias = list[tuple[int, int]]
"""An expression in postfix form: what ``csrc/programs/expression.h`` evaluates."""


class ExpressionError(ValueError):
    """A text that is no expression over the symbols; the message says where it goes wrong."""


class Step(IntEnum):
    """One step of a postfix expression; the numbers are those of ``csrc/programs/expression.h``."""

    LITERAL = 0
    SYMBOL = 1
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    FLOOR_DIVIDE = 5
    MODULO = 6
    MIN = 7
    MAX = 8


_OPERATORS = {
    ast.Add: Step.ADD,
    ast.Sub: Step.SUBTRACT,
    ast.Mult: Step.MULTIPLY,
    ast.FloorDiv: Step.FLOOR_DIVIDE,
    ast.Mod: Step.MODULO,
}
_FUNCTIONS = {"min": Step.MIN, "max": Step.MAX}
_LARGEST = 2**63 - 1


def compile_size(size: Size, symbols: Sequence[str]) -> Steps:
    """The steps that compute a size.

    Args:
        size: a whole number, or text with symbol names, ``+ - * // %``, ``min(a, b)``, ``max(a, b)`` and parentheses.
        symbols: the names that may occur; a name's place is its number.

    Raises:
        ExpressionError: it is something else, names another symbol, or has a number that 64 bits don't hold.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise ExpressionError(f"{size!r} is neither a whole number nor an expression")
    if isinstance(size, int):
        return [(Step.LITERAL, _literal(size))]
    try:
        tree = ast.parse(size, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{size!r} is no expression: {error}") from None
    steps: Steps = []
    try:
        _append(tree, size, symbols, steps)
    except RecursionError:
        raise ExpressionError(f"{size[:40]!r}… is nested too deeply") from None
    return steps


def _literal(value: int) -> int:
    if not -_LARGEST <= value <= _LARGEST:
        raise ExpressionError(f"{value} does not fit into 64 bits")
    return value


def _append(node: ast.expr, text: str, symbols: Sequence[str], steps: Steps) -> None:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            steps.append((Step.LITERAL, _literal(value)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            steps.append((Step.LITERAL, 0))
            _append(operand, text, symbols, steps)
            steps.append((Step.SUBTRACT, 0))
        case ast.Name(id=name):
            if name not in symbols:
                raise ExpressionError(f"{text!r} names {name!r}, which is no symbol of this program")
            steps.append((Step.SYMBOL, symbols.index(name)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _append(left, text, symbols, steps)
            _append(right, text, symbols, steps)
            steps.append((_OPERATORS[type(op)], 0))
        case ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]) if name in _FUNCTIONS:
            _append(first, text, symbols, steps)
            _append(second, text, symbols, steps)
            steps.append((_FUNCTIONS[name], 0))
        case _:
            raise ExpressionError(f"{text!r} has {ast.unparse(node)!r}: only + - * // %, min and max are known")


def literal(size: Size) -> int | None:
    """The value of a size that has no symbols; None for others."""
    if isinstance(size, int):
        return size
    try:
        return int(size)
    except ValueError:
        return None


def aligned(size: Size, bytes_: int) -> Size:
    """A size rounded up to a multiple."""
    known = literal(size)
    if known is not None:
        return -(-known // bytes_) * bytes_
    return f"(({size}) + {bytes_ - 1}) // {bytes_} * {bytes_}"


def total(sizes: Sequence[Size]) -> Size:
    """The sum of sizes."""
    known = sum(value for size in sizes if (value := literal(size)) is not None)
    parts = [f"({size})" for size in sizes if literal(size) is None]
    if not parts:
        return known
    return " + ".join([*parts, str(known)] if known else parts)


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes."""
    known = 1
    parts = []
    for size in sizes:
        value = literal(size)
        if value is None:
            parts.append(f"({size})")
        else:
            known *= value
    if not parts or known == 0:
        return known
    return " * ".join([*parts, str(known)] if known != 1 else parts)
