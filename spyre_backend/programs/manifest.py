"""``manifest.json`` of a SpyreCode artifact: what it says, and the checks that it says it well.

The manifest is data between versions of this package and of PyTorch, so reading trusts nothing: every field is checked
and a fault names the field. Writing and reading are inverse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import torch

from spyre_backend.programs.errors import ArtifactError
from spyre_backend.programs.expressions import ExpressionError, Size, Steps, compile_size

FORMAT = "spyre-code"
VERSION = 1
FILE = "manifest.json"
PROGRAM = "program.bin"
CONSTANTS = "constants.bin"
KERNELS = "kernels.so"

Parsed = TypeVar("Parsed")
_LARGEST = 2**63 - 1


class SlotKind(IntEnum):
    """What the host computes for one word of the correction region; numbers as in ``csrc/programs/plan.h``."""

    ADDRESS = 0
    SCRATCH = 1
    SIZE = 2
    SCALAR = 3
    CONSTANT = 4


@dataclass(frozen=True)
class Symbol:
    """A size that each launch sets: values from ``minimum`` to ``maximum``, multiples of ``multiple``."""

    name: str
    minimum: int = 0
    maximum: int = _LARGEST
    multiple: int = 1


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that a launch is given.

    Attributes:
        name: for messages.
        dtype: its dtype.
        shape: elements per dimension; a symbol's first occurrence as a whole entry binds it.
        strides: elements, per dimension.
        role: ``in``, ``out`` or ``inout``.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    role: str


@dataclass(frozen=True)
class IntegerArgument:
    """A whole number that binds a symbol."""

    name: str
    symbol: str


@dataclass(frozen=True)
class ScalarArgument:
    """A number that is a value and no size.

    Attributes:
        name: for messages.
        type: ``float`` (64 bits; a launch may give whole numbers too) or ``int`` (64 bits).
    """

    name: str
    type: str = "float"


Argument = TensorArgument | IntegerArgument | ScalarArgument


@dataclass(frozen=True)
class Slot:
    """One word of the correction region.

    Attributes:
        kind: what it is.
        argument: the argument's number, for an address or a scalar.
        value: bytes into the scratch memory or the constants, or the size.
    """

    kind: SlotKind
    argument: int = 0
    value: Size = 0


@dataclass(frozen=True)
class Binary:
    """A file of the artifact: its length in bytes and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Target:
    """What the artifact was made for: another PyTorch minor, or another version of the compiler, may not run it."""

    torch: str
    compiler: str


@dataclass(frozen=True)
class Cost:
    """What the virtual clock charges: bytes of device memory and floating point operations of one launch."""

    bytes: Size = 0
    operations: Size = 0


@dataclass(frozen=True)
class Step:
    """One step of preparation or execution.

    Attributes:
        do: preparation: ``allocate``, ``upload``; execution: ``compute_on_host``, ``transfer``,
            ``compute_on_device``, ``synchronize``.
        fetch_barrier: of ``compute_on_device``: the program's operands are read when it starts, never before.
    """

    do: str
    fetch_barrier: bool = True


PREPARATION = ("allocate", "upload")


def execution_steps(slots: int, *, fetch_barrier: bool = True, synchronize: bool = False) -> tuple[Step, ...]:
    """The steps of a launch: without slots nothing has to be computed and carried."""
    patch = (Step("compute_on_host"), Step("transfer")) if slots else ()
    end = (Step("synchronize"),) if synchronize else ()
    return (*patch, Step("compute_on_device", fetch_barrier), *end)


@dataclass(frozen=True)
class Manifest:
    """All that the host knows of a program."""

    name: str
    target: Target
    symbols: tuple[Symbol, ...]
    arguments: tuple[Argument, ...]
    slots: tuple[Slot, ...]
    scratch: Size
    cost: Cost
    binaries: Mapping[str, Binary] = field(default_factory=dict)
    preparation: tuple[Step, ...] = tuple(Step(do) for do in PREPARATION)
    execution: tuple[Step, ...] = (Step("compute_on_device"),)

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols' names, in order."""
        return tuple(symbol.name for symbol in self.symbols)

    @property
    def fetch_barrier(self) -> bool:
        """Whether the Compute waits for the patch before its operands are read."""
        return next(step.fetch_barrier for step in self.execution if step.do == "compute_on_device")

    @property
    def synchronizes(self) -> bool:
        """Whether a launch returns only when it is done."""
        return self.execution[-1].do == "synchronize"

    def steps(self, size: Size) -> Steps:
        """A size of this program as the host evaluates it."""
        return compile_size(size, self.names)


def to_json(manifest: Manifest) -> str:
    """The text of ``manifest.json``; the same for equal manifests."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "target": {"torch": manifest.target.torch, "compiler": manifest.target.compiler},
        "binaries": {
            name: {"bytes": binary.bytes, "sha256": binary.sha256} for name, binary in sorted(manifest.binaries.items())
        },
        "symbols": [
            {"name": s.name, "minimum": s.minimum, "maximum": s.maximum, "multiple": s.multiple}
            for s in manifest.symbols
        ],
        "arguments": [_argument_to_json(argument) for argument in manifest.arguments],
        "slots": [_slot_to_json(slot) for slot in manifest.slots],
        "scratch": manifest.scratch,
        "cost": {"bytes": manifest.cost.bytes, "operations": manifest.cost.operations},
        "preparation": [{"do": step.do} for step in manifest.preparation],
        "execution": [_step_to_json(step) for step in manifest.execution],
    }
    return json.dumps(document, indent=1) + "\n"


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    if isinstance(argument, TensorArgument):
        return {
            "kind": "tensor",
            "name": argument.name,
            "dtype": str(argument.dtype).removeprefix("torch."),
            "shape": list(argument.shape),
            "strides": list(argument.strides),
            "role": argument.role,
        }
    if isinstance(argument, IntegerArgument):
        return {"kind": "integer", "name": argument.name, "symbol": argument.symbol}
    return {"kind": "scalar", "name": argument.name, "type": argument.type}


def _slot_to_json(slot: Slot) -> dict[str, Any]:
    kind = {"kind": slot.kind.name.lower()}
    if slot.kind in (SlotKind.ADDRESS, SlotKind.SCALAR):
        return {**kind, "argument": slot.argument}
    return {**kind, "value": slot.value}


def _step_to_json(step: Step) -> dict[str, Any]:
    return {"do": step.do, "fetch_barrier": step.fetch_barrier} if step.do == "compute_on_device" else {"do": step.do}


class _Node:
    """A value of the document, with its place for messages."""

    def __init__(self, value: Any, path: str, directory: Path) -> None:
        self.value = value
        self.path = path
        self.directory = directory

    def refuse(self, reason: str) -> ArtifactError:
        return ArtifactError(self.directory, reason, self.path or "the document")

    def __getitem__(self, key: str) -> _Node:
        if not isinstance(self.value, dict):
            raise self.refuse(f"an object is expected, not {_kind(self.value)}")
        path = f"{self.path}.{key}" if self.path else key
        if key not in self.value:
            raise ArtifactError(self.directory, "is missing", path)
        return _Node(self.value[key], path, self.directory)

    def only(self, *keys: str) -> None:
        """Refuses members that this version does not know."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in keys:
                raise ArtifactError(self.directory, "is not known here", f"{self.path}.{key}" if self.path else key)

    def each(self, read: Callable[[_Node], Parsed]) -> tuple[Parsed, ...]:
        if not isinstance(self.value, list):
            raise self.refuse(f"a list is expected, not {_kind(self.value)}")
        return tuple(
            read(_Node(item, f"{self.path}[{number}]", self.directory)) for number, item in enumerate(self.value)
        )

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.refuse(f"a text is expected, not {_kind(self.value)}")
        if not self.value.isprintable():
            raise self.refuse("a text without control characters and halves of surrogates is expected")
        return self.value

    def whole(self, low: int, high: int) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.refuse(f"a whole number is expected, not {_kind(self.value)}")
        if not low <= self.value <= high:
            raise self.refuse(f"{self.value} is not from {low} to {high}")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.refuse(f"true or false is expected, not {_kind(self.value)}")
        return self.value

    def choice(self, *known: str) -> str:
        text = self.text()
        if text not in known:
            raise self.refuse(f"{text!r} is none of {', '.join(known)}")
        return text

    def size(self, symbols: Sequence[str]) -> Size:
        try:
            compile_size(self.value, symbols)
        except ExpressionError as error:
            raise self.refuse(str(error)) from None
        if isinstance(self.value, int) and self.value < 0:
            raise self.refuse(f"{self.value} is negative")
        size: Size = self.value
        return size


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(
        type(value), "a number"
    )


def from_json(text: str, directory: Path) -> Manifest:
    """Reads ``manifest.json``.

    Args:
        text: its content.
        directory: the artifact, for messages.

    Raises:
        ArtifactError: it is not a manifest of this version; names the field.
    """
    try:
        document = _Node(json.loads(text), "", directory)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(directory, f"{FILE} is not JSON: {error}") from None
    if document["format"].text() != FORMAT:
        raise document["format"].refuse(f"{document['format'].value!r} is not {FORMAT!r}")
    if (version := document["version"].whole(0, _LARGEST)) != VERSION:
        raise document["version"].refuse(f"version {version} is not known here, only {VERSION}")
    document.only(
        "format", "version", "name", "target", "binaries", "symbols", "arguments", "slots", "scratch", "cost",
        "preparation", "execution",
    )  # fmt: skip
    target = document["target"]
    target.only("torch", "compiler")
    symbols = document["symbols"].each(_symbol)
    names = [symbol.name for symbol in symbols]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ArtifactError(directory, f"{name!r} is a symbol already", f"symbols[{number}].name")
    arguments = document["arguments"].each(lambda node: _argument(node, names))
    binaries = _binaries(document["binaries"])
    slots = document["slots"].each(lambda node: _slot(node, arguments, names, binaries))
    _check_bound(document, arguments, names)
    cost = document["cost"]
    cost.only("bytes", "operations")
    return Manifest(
        name=document["name"].text(),
        target=Target(target["torch"].text(), target["compiler"].text()),
        symbols=symbols,
        arguments=arguments,
        slots=slots,
        scratch=document["scratch"].size(names),
        cost=Cost(cost["bytes"].size(names), cost["operations"].size(names)),
        binaries=binaries,
        preparation=_preparation(document["preparation"]),
        execution=_execution(document["execution"], len(slots)),
    )


def _symbol(node: _Node) -> Symbol:
    node.only("name", "minimum", "maximum", "multiple")
    minimum = node["minimum"].whole(-_LARGEST, _LARGEST)
    name = node["name"].text()
    if not name.isidentifier():
        raise node["name"].refuse(f"{name!r} is no name")
    return Symbol(name, minimum, node["maximum"].whole(minimum, _LARGEST), node["multiple"].whole(1, _LARGEST))


def _argument(node: _Node, names: Sequence[str]) -> Argument:
    kind = node["kind"].choice("tensor", "integer", "scalar")
    if kind == "integer":
        node.only("kind", "name", "symbol")
        return IntegerArgument(node["name"].text(), node["symbol"].choice(*names))
    if kind == "scalar":
        node.only("kind", "name", "type")
        return ScalarArgument(node["name"].text(), node["type"].choice("float", "int"))
    node.only("kind", "name", "dtype", "shape", "strides", "role")
    dtype = getattr(torch, node["dtype"].text(), None)
    if not isinstance(dtype, torch.dtype):
        raise node["dtype"].refuse(f"{node['dtype'].value!r} is no dtype")
    shape = node["shape"].each(lambda item: item.size(names))
    strides = node["strides"].each(lambda item: item.size(names))
    if len(shape) != len(strides):
        raise node["strides"].refuse(f"{len(strides)} strides for {len(shape)} dimensions")
    return TensorArgument(node["name"].text(), dtype, shape, strides, node["role"].choice("in", "out", "inout"))


def _slot(node: _Node, arguments: Sequence[Argument], names: Sequence[str], binaries: Mapping[str, Binary]) -> Slot:
    kind = SlotKind[node["kind"].choice(*(kind.name.lower() for kind in SlotKind)).upper()]
    if kind in (SlotKind.SCRATCH, SlotKind.SIZE):
        node.only("kind", "value")
        return Slot(kind, value=node["value"].size(names))
    if kind is SlotKind.CONSTANT:
        node.only("kind", "value")
        return Slot(kind, value=node["value"].whole(0, binaries[CONSTANTS].bytes if CONSTANTS in binaries else -1))
    node.only("kind", "argument")
    number = node["argument"].whole(0, _LARGEST)
    wanted = TensorArgument if kind is SlotKind.ADDRESS else ScalarArgument
    if number >= len(arguments) or not isinstance(arguments[number], wanted):
        raise node["argument"].refuse(f"argument {number} is no {'tensor' if kind is SlotKind.ADDRESS else 'scalar'}")
    return Slot(kind, argument=number)


def _check_bound(document: _Node, arguments: Sequence[Argument], names: Sequence[str]) -> None:
    """A symbol has a value when an integer gives it, or a tensor's dimension is the symbol alone, before it is used."""
    bound = {argument.symbol for argument in arguments if isinstance(argument, IntegerArgument)}
    for number, argument in enumerate(arguments):
        if not isinstance(argument, TensorArgument):
            continue
        place = document["arguments"]
        for part in ("shape", "strides"):
            for at, size in enumerate(getattr(argument, part)):
                if part == "shape" and size in names:
                    bound.add(str(size))
                used = {names[value] for step, value in compile_size(size, names) if step == 1}
                if missing := sorted(used - bound):
                    raise ArtifactError(
                        place.directory,
                        f"{missing[0]!r} has no value yet: an integer argument or an earlier dimension must be "
                        "the symbol alone",
                        f"arguments[{number}].{part}[{at}]",
                    )
    for number, name in enumerate(names):
        if name not in bound:
            raise ArtifactError(document.directory, f"{name!r} gets no value from any argument", f"symbols[{number}]")


def _binaries(node: _Node) -> dict[str, Binary]:
    node[PROGRAM]  # every program has a text
    node.only(PROGRAM, CONSTANTS, KERNELS)
    result = {}
    for name in node.value:
        entry = node[name]
        entry.only("bytes", "sha256")
        digest = entry["sha256"].text()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise entry["sha256"].refuse("a SHA-256 in hexadecimal is expected")
        result[name] = Binary(entry["bytes"].whole(0, _LARGEST), digest)
    return result


def _preparation(node: _Node) -> tuple[Step, ...]:
    def read(item: _Node) -> Step:
        item.only("do")
        return Step(item["do"].choice(*PREPARATION))

    steps = node.each(read)
    if tuple(step.do for step in steps) != PREPARATION:
        raise node.refuse(f"the steps are {', '.join(PREPARATION)}, in this order")
    return steps


def _execution(node: _Node, slots: int) -> tuple[Step, ...]:
    def read(item: _Node) -> Step:
        do = item["do"].choice("compute_on_host", "transfer", "compute_on_device", "synchronize")
        if do != "compute_on_device":
            item.only("do")
            return Step(do)
        item.only("do", "fetch_barrier")
        return Step(do, item["fetch_barrier"].flag())

    steps = node.each(read)
    done = [step.do for step in steps]
    synchronize = done[-1:] == ["synchronize"]
    expected = [step.do for step in execution_steps(slots, synchronize=synchronize)]
    if done != expected:
        raise node.refuse(f"a program with {slots} slots has the steps {', '.join(expected)}, not {', '.join(done)}")
    return steps
