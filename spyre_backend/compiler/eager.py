"""Compiles one call of an eager operator to a program; ``csrc/eager`` asks for it at the first call of its kind.

The program is the operator itself, or, for an operator that makes new tensors, its ``out`` form: what the first call
returned says how large they are, and later calls allocate them before they launch. The artifact stays in memory: to
write one, and to read it again in another process, takes longer than to make it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from spyre_backend import _C
from spyre_backend.programs import BuildError, Operand, ProgramBuilder
from spyre_backend.programs.builder import Given
from spyre_backend.programs.plans import prepared

__all__ = ["compile_call"]

COPIED_BYTES = 64 * 1024
"""Results of operators without an ``out`` kernel are copied into place; larger ones would cost more than a launch."""

Tensor: TypeAlias = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bool]
"""A tensor of a call: dtype, sizes and strides in elements, and whether the operator writes it."""
Result: TypeAlias = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]
"""A new tensor that a call returns: dtype, sizes and strides in elements."""
Described: TypeAlias = tuple[Any, ...]
"""An argument: ``("argument", number)``, ``("list", items)``, ``("device",)`` or ``("literal", value)``."""


def compile_call(
    name: str,
    overload: str,
    values: Sequence[Described],
    arguments: Sequence[Tensor | str],
    results: Sequence[Result | None],
    device: int,
) -> Any:
    """The prepared program of a call.

    Args:
        name, overload: of the operator, as in ``aten::add`` and ``Tensor``.
        values: one per argument of its schema.
        arguments: what each launch is given: tensors, and numbers as ``"float"`` or ``"int"``. The new tensors follow.
        results: per result None for an argument that was written, or the new tensor.
        device: index of the device.

    Returns:
        The plan of the extension, or a text: why there can be no program.

    Raises:
        torch.OutOfMemoryError: there is no memory for the program now.
    """
    operator = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload or "default")
    b = ProgramBuilder(f"{name}.{overload}" if overload else name)
    try:
        given = [_argument(b, f"arg{number}", argument) for number, argument in enumerate(arguments)]
        made = [b.tensor(f"out{number}", *result, "out") for number, result in enumerate(results) if result is not None]
        inputs = [_value(value, given) for value in values]
        _instruction(b, operator, inputs, made)
        artifact = b.assemble()
        return prepared(artifact.manifest, artifact.files, device)
    except (BuildError, _C.InvalidArgument) as error:
        return str(error)


def _argument(b: ProgramBuilder, name: str, argument: Tensor | str) -> Given:
    if isinstance(argument, str):
        return b.scalar(name, argument)
    dtype, sizes, strides, written = argument
    return b.tensor(name, dtype, sizes, strides, "inout" if written else "in")


def _value(value: Described, given: Sequence[Given]) -> Given:
    match value:
        case ("argument", int(number)):
            return given[number]
        case ("list", items):
            return [_value(item, given) for item in items]
        case ("device",):
            return torch.device("cpu")
    return value[1]


def _instruction(b: ProgramBuilder, operator: torch._ops.OpOverload, inputs: list[Given], made: list[Operand]) -> None:
    """The operator on operands; new tensors by its ``out`` form where it has one with a kernel of its own."""
    if not made:
        b.call(operator, *inputs)
        return
    out = _out_form(operator)
    names = [argument.name for argument in operator._schema.arguments]
    if out is not None and len(made) == len(operator._schema.returns):
        targets = [argument.name for argument in out._schema.arguments if argument.is_out]
        given = dict(zip(names, inputs, strict=True))
        b.call(out, **given, **dict(zip(targets, made, strict=True)))
        return
    if sum(_bytes(operand) for operand in made) > COPIED_BYTES:
        raise BuildError("it has no out kernel, and its results are too large to be copied")
    if len(made) != len(operator._schema.returns):
        raise BuildError("it writes an argument and makes new tensors")
    b.call(operator, *inputs, results=made)


def _bytes(operand: Operand) -> int:
    size = operand.dtype.itemsize
    for extent in operand.shape:
        size *= int(extent)
    return size


@functools.cache
def _out_form(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload with the same arguments that writes into given tensors, if a kernel of its own does.

    PyTorch generates the missing ``out`` forms from the functional ones; those only copy.
    """
    schema = operator._schema
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments]
    packet = operator._overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        outs = [argument for argument in arguments if argument.is_out]
        if (
            outs
            and len(outs) == len(schema.returns)
            and [(one.name, str(one.type)) for one in arguments if not one.is_out] == wanted
            and torch._C._dispatch_has_kernel_for_dispatch_key(candidate.name(), "CPU")
        ):
            return candidate
    return None
