"""Sizes of Inductor (sympy) as text that programs understand."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sympy
from torch.utils._sympy.functions import (
    CeilDiv,
    FloorDiv,
    Identity,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
)

__all__ = ["NoExpression", "size_text"]


class NoExpression(ValueError):
    """A size that no program can compute: it has other functions, or numbers that are not whole."""


def size_text(size: int | sympy.Expr) -> str:
    """A size as a program's expression: ``+ - * // %``, ``min``, ``max``, parentheses.

    Args:
        size: a whole number or an expression over symbols.

    Raises:
        NoExpression: it has something else.
    """
    if isinstance(size, int):
        return str(size)
    if isinstance(size, sympy.Integer):
        return str(int(size))
    if isinstance(size, sympy.Symbol):
        return str(size)
    for kind, write in _WRITERS.items():
        if isinstance(size, kind):
            return write(*size.args)
    raise NoExpression(f"{size} ({type(size).__name__})")


def _joined(operator: str) -> Callable[..., str]:
    return lambda *parts: "(" + f" {operator} ".join(map(size_text, parts)) + ")"


def _nested(function: str) -> Callable[..., str]:
    return lambda *parts: functools.reduce(lambda a, b: f"{function}({a}, {b})", map(size_text, parts))


def _power(base: sympy.Expr, exponent: sympy.Expr) -> str:
    if not isinstance(exponent, sympy.Integer) or exponent < 0:
        raise NoExpression(f"{base} ** {exponent}")
    return _joined("*")(sympy.Integer(1), *[base] * int(exponent))


_WRITERS: dict[type, Callable[..., str]] = {
    sympy.Add: _joined("+"),
    sympy.Mul: _joined("*"),
    sympy.Pow: _power,
    PowByNatural: _power,
    FloorDiv: _joined("//"),
    CeilDiv: lambda a, b: f"(0 - ((0 - {size_text(a)}) // {size_text(b)}))",
    ModularIndexing: lambda x, divisor, modulus: f"(({size_text(x)} // {size_text(divisor)}) % {size_text(modulus)})",
    Mod: _joined("%"),
    PythonMod: _joined("%"),
    Min: _nested("min"),
    Max: _nested("max"),
    Identity: size_text,
}
