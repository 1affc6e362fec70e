"""Writes the text of a program: the bytes that ``csrc/programs/text.h`` describes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

MAGIC = int.from_bytes(b"SPYRCODE", "little")
VERSION = 1


@dataclass(frozen=True)
class InSlot:
    """A number that stands in the correction region."""

    slot: int


Number: TypeAlias = int | InSlot


class Tag(IntEnum):
    """What kind of value follows; the numbers are those of ``csrc/programs/text.h``."""

    NONE = 0
    BOOL = 1
    INT = 2
    FLOAT = 3
    FLOAT_SLOT = 4
    COMPLEX = 5
    STRING = 6
    OPERAND = 7
    LIST = 8
    DEVICE = 9
    DEFAULT = 10


@dataclass(frozen=True)
class Value:
    """One argument of an instruction: a tag and what belongs to it."""

    tag: Tag
    content: Number | bool | float | complex | str | Sequence[Value] | None = None


@dataclass(frozen=True)
class OperandText:
    """A tensor over a storage; offset and strides in elements, dtype as PyTorch numbers them."""

    storage: int
    dtype: int
    offset: Number
    sizes: Sequence[Number]
    strides: Sequence[Number]


@dataclass(frozen=True)
class InstructionText:
    """An operator (``overload`` given, possibly empty) or a kernel (``overload`` None)."""

    name: str
    overload: str | None
    arguments: Sequence[Value]
    results: Sequence[int] = ()


@dataclass
class Text:
    """A program's text before it is bytes."""

    slots: int = 0
    storages: list[int] = field(default_factory=list)
    operands: list[OperandText] = field(default_factory=list)
    instructions: list[InstructionText] = field(default_factory=list)

    def encode(self) -> bytes:
        """The bytes."""
        return _Writer().document(self)


class _Writer:
    def __init__(self) -> None:
        self.words: list[int] = []
        self.strings: dict[str, int] = {}

    def document(self, text: Text) -> bytes:
        self.words += text.storages
        for operand in text.operands:
            self.words += (operand.storage, operand.dtype)
            self.number(operand.offset)
            self.words.append(len(operand.sizes))
            for number in (*operand.sizes, *operand.strides):
                self.number(number)
        for instruction in text.instructions:
            self.words.append(0 if instruction.overload is not None else 1)
            self.words += (self.string(instruction.name), self.string(instruction.overload or ""))
            self.words.append(len(instruction.arguments))
            for value in instruction.arguments:
                self.value(value)
            self.words += (len(instruction.results), *instruction.results)
        sizes = (text.slots, len(text.storages), len(text.operands), len(text.instructions), len(self.strings))
        words = (MAGIC, VERSION, *sizes, *self.words)
        return struct.pack(f"<{len(words)}q", *words) + b"".join(map(_padded, self.strings))

    def number(self, number: Number) -> None:
        self.words += (1, number.slot) if isinstance(number, InSlot) else (0, number)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def value(self, value: Value) -> None:
        self.words.append(value.tag)
        content = value.content
        match value.tag:
            case Tag.NONE | Tag.DEVICE | Tag.DEFAULT:
                pass
            case Tag.INT:
                assert isinstance(content, int | InSlot)
                self.number(content)
            case Tag.FLOAT:
                assert isinstance(content, float)
                self.words.append(_bits(content))
            case Tag.COMPLEX:
                assert isinstance(content, complex)
                self.words += (_bits(content.real), _bits(content.imag))
            case Tag.FLOAT_SLOT:
                assert isinstance(content, InSlot)
                self.words.append(content.slot)
            case Tag.STRING:
                assert isinstance(content, str)
                self.words.append(self.string(content))
            case Tag.BOOL | Tag.OPERAND:
                assert isinstance(content, int)
                self.words.append(int(content))
            case Tag.LIST:
                assert isinstance(content, Sequence)
                self.words.append(len(content))
                for item in content:
                    assert isinstance(item, Value)
                    self.value(item)


def _bits(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _padded(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<q", len(data)) + data.ljust(-(-len(data) // 8) * 8, b"\0")
