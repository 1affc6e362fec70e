"""Builds a program: arguments, scratch memory, views and instructions in, a SpyreCode artifact out.

Whoever compiles (the eager compiler, the Inductor wrapper, a test) describes *what* happens; the builder decides how it
is written down: slots, storages, the plan of the scratch memory, costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from spyre_backend import _C
from spyre_backend.programs.cache import ArtifactCache
from spyre_backend.programs.errors import ArtifactError, BuildError
from spyre_backend.programs.expressions import Size, aligned, compile_size, literal, product, total
from spyre_backend.programs.manifest import (
    CONSTANTS,
    KERNELS,
    PROGRAM,
    Argument,
    Binary,
    Cost,
    IntegerArgument,
    Manifest,
    ScalarArgument,
    Slot,
    SlotKind,
    Symbol,
    Target,
    TensorArgument,
    execution_steps,
    from_json,
    to_json,
)
from spyre_backend.programs.text import InSlot, InstructionText, Number, OperandText, Tag, Text, Value
from spyre_backend.programs.version import compiler_version, torch_version

STICK = 128
"""Bytes; scratch operands start at multiples of it."""

_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


@dataclass(frozen=True)
class Operand:
    """A tensor of the program: an argument, scratch memory, or a view of either."""

    number: int
    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    storage: int


@dataclass(frozen=True)
class _Expression:
    size: Size


@dataclass(frozen=True)
class Scalar:
    """The value of a scalar argument, as an argument of an operator."""

    argument: int
    type: str


Given: TypeAlias = Any
"""What :meth:`ProgramBuilder.call` takes: operands, numbers, expressions, texts, dtypes, None, and lists of these."""


@dataclass(frozen=True)
class Artifact:
    """What a builder made, before it is written.

    Attributes:
        manifest: its description.
        files: the binaries, by name.
    """

    manifest: Manifest
    files: dict[str, bytes]


@dataclass
class _Scratch:
    """Memory of one scratch operand: bytes, and the first and last instruction that use it."""

    bytes: Size
    first: int = 0
    last: int = -1


class ProgramBuilder:
    """One program in the making.

    Args:
        name: for messages, timelines and profiles.
        fetch_barrier: without it the card may read operands before their patch has landed; for tests of the card.
        synchronize: a launch returns only when it is done.
    """

    def __init__(self, name: str, *, fetch_barrier: bool = True, synchronize: bool = False) -> None:
        self.name = name
        self._fetch_barrier = fetch_barrier
        self._synchronize = synchronize
        self._symbols: list[Symbol] = []
        self._arguments: list[Argument] = []
        self._operands: list[Operand] = []
        self._instructions: list[InstructionText] = []
        self._slots: list[Slot] = []
        self._storages: list[int | _Scratch] = []  # the slot of an argument's address, or memory to be planned
        self._constants = bytearray()
        self._constant_bytes: dict[int, int] = {}  # by storage
        self._library: Path | None = None
        self._operations: list[Size] = []
        self._touched: list[Size] = []

    # ------------------------------------------------------------------------------------------ arguments

    def symbol(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1, multiple: int = 1) -> str:
        """Declares a dimension that each launch sets, before what uses it.

        Args:
            name: an identifier; expressions use it.
            minimum, maximum: the values that a launch may have.
            multiple: they are multiples of it.
        """
        if name in self._names:
            raise BuildError(f"{self.name}: {name!r} is a symbol already")
        if not name.isidentifier():
            raise BuildError(f"{self.name}: {name!r} is no name for a symbol")
        self._symbols.append(Symbol(name, minimum, maximum, multiple))
        return name

    def tensor(
        self, name: str, dtype: torch.dtype, shape: Sequence[Size], strides: Sequence[Size], role: str = "in"
    ) -> Operand:
        """The next argument is a tensor.

        Args:
            name: for messages.
            dtype: its dtype.
            shape, strides: in elements.
            role: ``in``, ``out`` or ``inout``: outputs are allocated by the caller.
        """
        self._arguments.append(TensorArgument(name, dtype, tuple(shape), tuple(strides), role))
        self._storages.append(self._slot(Slot(SlotKind.ADDRESS, argument=len(self._arguments) - 1)))
        return self._operand(dtype, shape, strides, 0, len(self._storages) - 1)

    def integer(self, symbol: str, name: str | None = None) -> None:
        """The next argument is a whole number: the value of a symbol."""
        self._arguments.append(IntegerArgument(name or symbol, symbol))

    def scalar(self, name: str, type_: str = "float") -> Scalar:
        """The next argument is a number that is a value and no size.

        Args:
            name: for messages.
            type_: ``float`` or ``int``, of 64 bits: what the operator is given.
        """
        self._arguments.append(ScalarArgument(name, type_))
        return Scalar(len(self._arguments) - 1, type_)

    def expr(self, size: Size) -> Given:
        """An expression over symbols as an argument of :meth:`call`, where plain text would be a string."""
        known = literal(size)
        return _Expression(size) if known is None else known

    # ------------------------------------------------------------------------------------------- operands

    def scratch(self, dtype: torch.dtype, shape: Sequence[Size], strides: Sequence[Size]) -> Operand:
        """Memory of the launch itself, from the first instruction that uses it to the last."""
        self._storages.append(_Scratch(aligned(_extent(dtype, shape, strides, 0), STICK)))
        return self._operand(dtype, shape, strides, 0, len(self._storages) - 1)

    def constant(self, tensor: torch.Tensor) -> Operand:
        """A tensor that is part of the program; uploaded when it is prepared. Instructions only read it.

        Args:
            tensor: strided; its values are copied now.
        """
        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        self._constants += b"\0" * (-len(self._constants) % STICK)
        self._storages.append(self._slot(Slot(SlotKind.CONSTANT, value=len(self._constants))))
        self._constants += values.reshape(-1).view(torch.uint8).numpy().tobytes()
        self._constant_bytes[len(self._storages) - 1] = values.nbytes
        return self._operand(values.dtype, values.shape, values.stride(), 0, len(self._storages) - 1)

    def view(
        self,
        operand: Operand,
        shape: Sequence[Size],
        strides: Sequence[Size],
        offset: Size = 0,
        dtype: torch.dtype | None = None,
    ) -> Operand:
        """The same memory with other sizes.

        Args:
            operand: what to look at; may be a view itself.
            shape, strides: in elements of the view's dtype.
            offset: elements of the view's dtype from the operand's first element.
            dtype: reads the bytes as another dtype.
        """
        self._check_mine(operand)
        dtype = dtype or operand.dtype
        start = operand.offset
        if dtype != operand.dtype and start != 0:
            start = f"({product([operand.dtype.itemsize, start])}) // {dtype.itemsize}"
        offset = total([start, offset])
        storage = self._storages[operand.storage]
        memory = storage.bytes if isinstance(storage, _Scratch) else self._constant_bytes.get(operand.storage, "")
        have, needed = literal(memory), literal(_extent(dtype, shape, strides, offset))
        if have is not None and needed is not None and needed > have:
            raise BuildError(f"{self.name}: a view of {needed} bytes does not fit into memory of {have} bytes")
        return self._operand(dtype, shape, strides, offset, operand.storage)

    # --------------------------------------------------------------------------------------- instructions

    def call(self, operator: str | torch._ops.OpOverload, /, *args: Given, results: Sequence[Operand | None] = (),
             **kwargs: Given) -> None:  # fmt: skip
        """The next instruction runs an ATen operator of the CPU on operands.

        Args:
            operator: as in ``"aten::mm.out"``, or the overload itself.
            args, kwargs: as its schema has them; a missing one takes its default.
            results: for an operator that makes new tensors: the operands that receive copies of them, in order.

        Raises:
            BuildError: there is no such operator, an argument does not fit its schema, or it draws random numbers,
                which come from the device's generator and no program holds.
        """
        overload = _overload(operator) if isinstance(operator, str) else operator
        schema = overload._schema
        if _C.draws_random(schema.name, schema.overload_name):
            raise BuildError(f"{overload}: random numbers come from the device's generator, which a program can't hold")
        if len(args) > len(schema.arguments):
            raise BuildError(f"{overload} takes {len(schema.arguments)} arguments, {len(args)} were given")
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
        for name, value in kwargs.items():
            if name in given or name not in {argument.name for argument in schema.arguments}:
                raise BuildError(f"{overload} takes no further argument {name!r}")
            given[name] = value
        values = []
        for argument in schema.arguments:
            if argument.name not in given:
                if not argument.has_default_value():
                    raise BuildError(f"{overload}: argument {argument.name!r} is missing")
                values.append(Value(Tag.DEFAULT))
                continue
            try:
                values.append(self._value(given[argument.name], str(argument.type)))
            except BuildError as error:
                raise BuildError(f"{overload}: argument {argument.name!r}: {error}") from None
        aliased = [ret.alias_info is not None and ret.alias_info.is_write for ret in schema.returns]
        targets = [*results, *[None] * (len(aliased) - len(results))]
        if len(targets) != len(aliased):
            raise BuildError(f"{overload} returns {len(aliased)} values, {len(results)} operands were given for them")
        for target in targets:
            if target is not None:
                self._check_mine(target)
        self._use(*given.values(), *targets)
        self._instructions.append(
            InstructionText(
                schema.name, schema.overload_name, values, [-1 if one is None else one.number for one in targets]
            )
        )
        self._charge(overload, args, [*kwargs.values(), *targets])

    def kernel(self, name: str, operands: Sequence[Operand], numbers: Sequence[Size] = ()) -> None:
        """The next instruction calls a function of the library.

        Args:
            name: ``extern "C" void name(void** pointers, const int64_t* numbers)``.
            operands: the function gets their addresses.
            numbers: whole numbers or expressions.
        """
        for operand in operands:
            self._check_mine(operand)
        self._use(*operands)
        values = [Value(Tag.OPERAND, operand.number) for operand in operands]
        values += [Value(Tag.INT, self._number(number)) for number in numbers]
        self._instructions.append(InstructionText(name, None, values))
        self._touched += [_extent(one.dtype, one.shape, one.strides, 0) for one in operands]

    def library(self, path: Path | str) -> None:
        """Sets the shared library that kernels come from; it becomes part of the artifact."""
        self._library = Path(path)

    # ------------------------------------------------------------------------------------------- the end

    def write(self, cache: ArtifactCache | None = None) -> Path:
        """The artifact's directory in a cache (the user's by default); made there unless it is there already.

        Raises:
            BuildError: there is nothing in the program, or something that its manifest can't say.
            ExpressionError: a size is no expression over the symbols.
            ArtifactError: the cache can't be written.
        """
        artifact = self.assemble()
        text = to_json(artifact.manifest)
        try:
            from_json(text, Path(self.name))
        except ArtifactError as error:
            raise BuildError(f"{self.name}: {error.field}: {error.reason}") from None
        return (cache or ArtifactCache()).store(text, artifact.files)

    def assemble(self) -> Artifact:
        """The artifact in memory, for a caller that knows that its manifest can be read.

        Raises:
            BuildError: there is nothing in the program.
            ExpressionError: a size is no expression over the symbols.
        """
        if not self._instructions:
            raise BuildError(f"{self.name}: a program without instructions does nothing")
        storages, scratch = self._place_storages()
        operands = [self._operand_text(operand) for operand in self._operands]
        # Last: describing operands may add slots.
        text = Text(len(self._slots), storages, operands, self._instructions)
        files = {PROGRAM: text.encode()}
        if self._constants:
            files[CONSTANTS] = bytes(self._constants)
        if self._library is not None:
            files[KERNELS] = self._library.read_bytes()
        manifest = Manifest(
            name=self.name,
            target=Target(torch_version(), compiler_version()),
            symbols=tuple(self._symbols),
            arguments=tuple(self._arguments),
            slots=tuple(self._slots),
            scratch=scratch,
            cost=Cost(total(self._touched), total(self._operations)),
            binaries={name: Binary(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()},
            execution=execution_steps(
                len(self._slots), fetch_barrier=self._fetch_barrier, synchronize=self._synchronize
            ),
        )
        return Artifact(manifest, files)

    # ------------------------------------------------------------------------------------------ internals

    @property
    def _names(self) -> list[str]:
        return [symbol.name for symbol in self._symbols]

    def _slot(self, slot: Slot) -> int:
        if slot in self._slots:
            return self._slots.index(slot)
        self._slots.append(slot)
        return len(self._slots) - 1

    def _number(self, size: Size) -> Number:
        compile_size(size, self._names)
        known = literal(size)
        if known is not None:
            return known
        return InSlot(self._slot(Slot(SlotKind.SIZE, value=size)))

    def _operand(
        self, dtype: torch.dtype, shape: Sequence[Size], strides: Sequence[Size], offset: Size, storage: int
    ) -> Operand:
        if len(shape) != len(strides):
            raise BuildError(f"{self.name}: {len(strides)} strides for {len(shape)} dimensions")
        self._operands.append(Operand(len(self._operands), dtype, tuple(shape), tuple(strides), offset, storage))
        return self._operands[-1]

    def _operand_text(self, operand: Operand) -> OperandText:
        return OperandText(
            operand.storage,
            _C.scalar_type(operand.dtype),
            self._number(operand.offset),
            [self._number(size) for size in operand.shape],
            [self._number(size) for size in operand.strides],
        )

    def _value(self, given: Given, type_: str) -> Value:
        match given:
            case None:
                return Value(Tag.NONE)
            case Operand():
                self._check_mine(given)
                return Value(Tag.OPERAND, given.number)
            case _Expression():
                return Value(Tag.INT, self._number(given.size))
            case Scalar():
                tag = Tag.INT if given.type == "int" else Tag.FLOAT_SLOT
                return Value(tag, InSlot(self._slot(Slot(SlotKind.SCALAR, argument=given.argument))))
            case bool():
                return Value(Tag.BOOL, given)
            case int() if not -(2**63) <= given < 2**63:
                raise BuildError(f"{given} does not fit into 64 bits")
            case int():
                return Value(Tag.FLOAT, float(given)) if "float" in type_ else Value(Tag.INT, given)
            case float():
                return Value(Tag.FLOAT, given)
            case complex():
                return Value(Tag.COMPLEX, given)
            case str() if given.isascii() and given.isprintable():
                return Value(Tag.STRING, given)
            case torch.dtype():
                return Value(Tag.INT, _C.scalar_type(given))
            case torch.device():
                return Value(Tag.DEVICE)
            case torch.layout() if given is torch.strided:
                return Value(Tag.INT, 0)
            case torch.memory_format():
                return Value(Tag.INT, _MEMORY_FORMATS[given])
            case list() | tuple():
                return Value(Tag.LIST, [self._value(item, type_) for item in given])
        raise BuildError(f"a program can't hold a {type(given).__name__} for {type_}")

    def _check_mine(self, operand: Operand) -> None:
        if operand.number >= len(self._operands) or self._operands[operand.number] is not operand:
            raise BuildError(f"{self.name}: an operand of another program")

    def _use(self, *given: Given) -> None:
        for item in given:
            if isinstance(item, list | tuple):
                self._use(*item)
            elif isinstance(item, Operand) and isinstance(storage := self._storages[item.storage], _Scratch):
                now = len(self._instructions)
                first = now if storage.last < 0 else storage.first
                self._storages[item.storage] = replace(storage, first=first, last=now)

    def _charge(self, overload: torch._ops.OpOverload, args: Sequence[Given], others: Sequence[Given]) -> None:
        """Counts what the virtual clock charges for an operator: bytes of all it touches, work of matrix products.

        Args:
            overload: the operator.
            args: its positional arguments; the factors of matrix products are among them.
            others: what else it reads and writes.
        """
        operands = [one for one in args if isinstance(one, Operand)]
        listed = [one for given in (*args, *others) for one in (given if isinstance(given, list | tuple) else [given])]
        self._touched += [_extent(one.dtype, one.shape, one.strides, 0) for one in listed if isinstance(one, Operand)]
        base = overload._schema.name.removeprefix("aten::")
        matrices = [one for one in operands if len(one.shape) >= 2]
        if base in ("mm", "bmm", "matmul") and len(matrices) >= 2:
            self._operations.append(product([2, *matrices[0].shape, matrices[1].shape[-1]]))
        elif base in ("addmm", "baddbmm") and len(matrices) >= 2:
            self._operations.append(product([2, *matrices[-2].shape, matrices[-1].shape[-1]]))
        elif base == "_scaled_dot_product_flash_attention_for_cpu" and len(matrices) >= 3:
            # Scores of every query with every key, and as much to weigh the values with them.
            self._operations.append(product([4, *matrices[0].shape, matrices[1].shape[-2]]))

    def _place_storages(self) -> tuple[list[int], Size]:
        """The slot of every storage's address, and the bytes of all scratch memory. First fit by order of first use.

        Memory whose size is known is reused by anything that fits; memory of a symbolic size by another of the same
        expression, because which of two expressions is larger depends on the launch.
        """
        places: list[tuple[Size, int]] = []  # bytes, and the last instruction that uses it
        taken: dict[int, int] = {}
        scratch = [(number, one) for number, one in enumerate(self._storages) if isinstance(one, _Scratch)]
        for number, one in sorted(scratch, key=lambda pair: pair[1].first):
            for at, (size, last) in enumerate(places):
                if last < one.first and _fits(one.bytes, size):
                    places[at] = (size, one.last)
                    taken[number] = at
                    break
            else:
                places.append((one.bytes, one.last))
                taken[number] = len(places) - 1
        slots = []
        for number, storage in enumerate(self._storages):
            if isinstance(storage, _Scratch):
                offset = total([size for size, _ in places[: taken[number]]])
                slots.append(self._slot(Slot(SlotKind.SCRATCH, value=offset)))
            else:
                slots.append(storage)
        return slots, total([size for size, _ in places])


def _fits(wanted: Size, have: Size) -> bool:
    a, b = literal(wanted), literal(have)
    return wanted == have if a is None or b is None else a <= b


def _extent(dtype: torch.dtype, shape: Sequence[Size], strides: Sequence[Size], offset: Size) -> Size:
    """Bytes from a storage's start to the end of a tensor in it."""
    if any(literal(size) == 0 for size in shape):
        return 0
    last = total([offset, 1, *(product([f"{size} - 1" if literal(size) is None else int(size) - 1, stride])
                               for size, stride in zip(shape, strides, strict=True))])  # fmt: skip
    bytes_ = product([dtype.itemsize, last])
    # An empty tensor may have a first dimension of 0 and any stride.
    return bytes_ if literal(bytes_) is not None else f"max({bytes_}, 0)"


def _overload(name: str) -> torch._ops.OpOverload:
    try:
        namespace, rest = name.split("::")
        packet, _, overload = rest.partition(".")
        found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, ValueError):
        raise BuildError(f"there is no operator {name!r} in this PyTorch") from None
    return found
