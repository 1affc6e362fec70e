"""Turns the lines of Inductor's wrapper into programs.

The wrapper is a list of lines: allocate, free, call a kernel, call an operator. Runs of lines that programs can hold
become *segments*, each one program and one launch; in the usual case there is one. A buffer that only its segment uses
is scratch memory of the program; all others are arguments, which generated Python allocates. Lines that no program can
hold (random numbers, copies between devices, sizes that depend on data) stay Python between two segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper as lines
from torch._inductor.utils import IndentedBuffer, LineContext
from torch._inductor.virtualized import V

from spyre_backend import _C
from spyre_backend.compiler.inductor.expressions import NoExpression, size_text

if TYPE_CHECKING:
    from spyre_backend.compiler.inductor.wrapper import SpyreWrapper

__all__ = ["ProgramText", "divide"]

_LARGEST = 2**63 - 1
_NAME = re.compile(r"[A-Za-z_]\w*")
_CALLED = re.compile(r"(?:^|= )(?:buf\w+\.)?([\w.]+)\(")
_ALIGNMENT_CHECK = re.compile(r"assert_alignment\((\w+),")
# Lines that change Python's indentation, so that no segment may reach across them.
_BORDERS = (
    lines.EnterSubgraphLine,
    lines.ExitSubgraphLine,
    lines.EnterDeviceContextManagerLine,
    lines.ExitDeviceContextManagerLine,
    lines.EnterCudaStreamContextLine,
    lines.ExitCudaStreamContextLine,
)
# Where an operator may have the kernel that the card runs.
_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
# Operators whose results have other sizes than PyTorch's shape inference says, so no program could receive them.
_SURPRISING = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
# Lines that compute nothing, and so are not counted when they stay outside.
_BOOKKEEPING = (lines.MemoryPlanningLine, lines.MultiOutputLine, lines.UnbackedSymbolDefsLine)


class _Refused(Exception):
    """A line that no program can hold; the text names it in statistics."""


class _Text(str):
    """A piece of generated Python."""


@dataclass
class _Rendered(lines.WrapperLine):
    """Python that is written already."""

    text: IndentedBuffer

    def codegen(self, code: IndentedBuffer) -> None:
        code.splice(self.text)


@dataclass
class _Check:
    """A check of the sizes of buffers. Launches check their arguments, and a program's own memory is what it says."""

    line: Any
    names: Sequence[str]


@dataclass
class _Alias:
    """A line that gives memory another name."""

    line: Any
    root: str


@dataclass
class _Root:
    """Memory that a segment uses. Sizes and strides are generated Python."""

    dtype: torch.dtype
    sizes: str
    strides: str
    on_cpu: bool = False
    allocation: lines.WrapperLine | None = None  # how Python allocates it, where this segment makes it


@dataclass
class _Segment:
    """A run of lines that become one program."""

    device: torch.device
    statements: list[str] = field(default_factory=list)
    instructions: int = 0
    kernels: bool = False
    roots: dict[str, _Root] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # every buffer that it mentions: its root
    written: set[str] = field(default_factory=set)  # roots
    symbols: dict[str, sympy.Symbol] = field(default_factory=dict)
    unpacked: set[str] = field(default_factory=set)  # operators with several results
    before: list[Any] = field(default_factory=list)  # what stays Python ahead of the launch
    after: list[Any] = field(default_factory=list)  # and after it

    def copy(self) -> _Segment:
        """A state to return to."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _Segment(**{name: v.copy() if isinstance(v, list | dict | set) else v for name, v in values.items()})


@dataclass(frozen=True)
class ProgramText:
    """A program as generated Python.

    Attributes:
        build: the body of a function that makes it with a builder ``b``.
        device: index of its device.
        kernels: whether it calls fused kernels.
    """

    build: Sequence[str]
    device: int
    kernels: bool


def divide(wrapper: SpyreWrapper) -> tuple[list[Any], list[str]]:
    """Divides a wrapper's lines into programs and Python.

    Args:
        wrapper: its lines are final; it is given the programs.

    Returns:
        The lines that remain, and what stayed outside of programs: names of operators and of kinds of lines.
    """
    division = _Division(wrapper)
    for line in wrapper.lines:
        division.take(line)
    return division.finish(), division.outside


class _Division:
    """Goes through the lines once, then writes programs: only then is it known who else uses a buffer."""

    def __init__(self, wrapper: SpyreWrapper) -> None:
        self.wrapper = wrapper
        self.parts: list[Any] = []
        self.segment: _Segment | None = None
        self.waiting: dict[str, lines.AllocateLine] = {}  # allocations that nothing has used yet
        self.computed: dict[str, sympy.Expr] = {}  # sizes that the wrapper computes
        self.outside: list[str] = []
        self.used_outside: set[str] = set()

    # ---------------------------------------------------------------------------------------- one line

    def take(self, line: Any) -> None:
        """Puts a line where it belongs."""
        match line:
            case str():
                self.take_text(line)
            case lines.NullLine():
                pass
            case LineContext() | lines.CommentLine() | lines.KernelDefinitionLine():
                self.go_along(line)
            case lines.SymbolicCallArgLine():
                self.computed[str(line.arg.inner)] = line.arg.inner_expr
                self.go_along(line)
            case lines.AssertSizeStrideLine():
                self.go_along(_Check(line, [line.name]))
            case lines.WrapperLine() if type(line).__name__ == "GroupedAssertSizeStrideLine":  # since PyTorch 2.14
                self.go_along(_Check(line, [name for name, _, _ in line.asserts]))
            case lines.AllocateLine() if not line.comm_buffer and line.node.get_device().type == "spyre":
                self.waiting[line.node.get_name()] = line
            case lines.FreeIfNotReusedLine() | lines.FreeLine():
                if self.waiting.pop(line.node.get_name(), None) is None:
                    (self.parts if self.segment is None else self.segment.after).append(line)
            case lines.UnbackedSymbolDefsLine() if not line.unbacked_bindings:
                pass
            case lines.MultiOutputLine() if self.segment is not None and line.arg_name in self.segment.unpacked:
                pass
            case lines.WrapperLine() if isinstance(line, _BORDERS):
                self.close()
                self.parts.append(line)
            case _:
                try:
                    with self.all_or_nothing():
                        self.translate(line)
                except (_Refused, NoExpression) as reason:
                    self.leave_outside(line, None if isinstance(line, _BOOKKEEPING) else str(reason))

    def take_text(self, text: str) -> None:
        """A line that is Python already."""
        if not text.strip() or text.lstrip().startswith("#"):
            self.go_along(text)
        elif match := _ALIGNMENT_CHECK.match(text):
            self.go_along(_Check(text, [match[1]]))
        else:
            called = _CALLED.search(text)
            self.leave_outside(text, "item" if ".item()" in text else called[1] if called else None)

    def translate(self, line: Any) -> None:
        """Turns a line into statements of the open segment.

        Raises:
            _Refused, NoExpression: no program can hold it.
        """
        match line:
            case lines.KernelCallLine():
                self.kernel(line)
            case lines.ExternKernelOutLine():
                self.operator_into(line.node)
            case lines.ExternKernelAllocLine():
                self.operator(line.node)
            case lines.IndexPutFallbackLine():
                x, values = line.node.inputs[:2]
                self.mutating(line.node, [x, list(line.indices), values, line.node.constant_args[0]], {})
            case lines.ScatterFallbackLine():
                self.scatter(line.node)
            case lines.ReuseLine():
                self.reuse(line)
            case lines.ReinterpretLine():
                self.reinterpret(line)
            case _:
                raise _Refused(type(line).__name__)

    def go_along(self, line: Any) -> None:
        """A line that does nothing to buffers."""
        (self.parts if self.segment is None else self.segment.before).append(line)

    def leave_outside(self, line: Any, reason: str | None) -> None:
        """A line that stays Python, between two segments."""
        self.close()
        code = IndentedBuffer()
        if isinstance(line, lines.WrapperLine):
            with self.wrapper.set_writeline(code, code.writeline):
                line.codegen(code)
            line = _Rendered(code)
        else:
            code.writeline(line)
        names = _NAME.findall(code.getvalue())
        self.used_outside.update(names)
        self.parts += [self.waiting.pop(name) for name in dict.fromkeys(names) if name in self.waiting]
        self.parts.append(line)
        if reason is not None:
            self.outside.append(reason)

    def close(self) -> None:
        """Ends the open segment."""
        if self.segment is not None:
            self.parts.append(self.segment)
            self.segment = None

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undoes what happened to the state when a line turns out to be none for a program."""
        segment, waiting, parts = self.segment and self.segment.copy(), self.waiting.copy(), len(self.parts)
        try:
            yield
        except (_Refused, NoExpression):
            self.segment, self.waiting = segment, waiting
            del self.parts[parts:]
            raise

    # --------------------------------------------------------------------------------- memory and sizes

    def on(self, device: torch.device | None) -> _Segment:
        """The open segment, on a device."""
        if device is None or device.type != "spyre":
            raise _Refused(f"on {device}")
        if self.segment is not None and self.segment.device != device:
            self.close()
        if self.segment is None:
            self.segment = _Segment(device)
        return self.segment

    def mention(self, name: str, written: bool = False) -> _Text:
        """A buffer in a statement."""
        segment = self.segment
        assert segment is not None
        if name not in segment.names:
            line = self.waiting.pop(name, None)
            buffer = V.graph.try_get_buffer(name) if line is None else line.node
            device = None if buffer is None else buffer.get_device()
            if device != segment.device and not (device == torch.device("cpu") and not buffer.get_size()):
                raise _Refused(f"{name} on {device}")
            segment.roots[name] = _Root(
                buffer.get_dtype(),
                self.sizes(buffer.get_size()),
                self.sizes(buffer.get_stride()),
                device != segment.device,
                line,
            )
            segment.names[name] = name
        root = segment.names[name]
        if written:
            if segment.roots[root].on_cpu:
                raise _Refused(f"{name} on cpu")
            segment.written.add(root)
        return _Text(name)

    def make(self, buffer: ir.Buffer) -> _Text:
        """A buffer that an operator of the segment makes."""
        assert self.segment is not None
        name = buffer.get_name()
        allocation = IndentedBuffer()
        allocation.writeline(self.wrapper.make_buffer_allocation(buffer))
        self.segment.roots[name] = _Root(
            buffer.get_dtype(),
            self.sizes(buffer.get_size()),
            self.sizes(buffer.get_stride()),
            allocation=_Rendered(allocation),
        )
        self.segment.names[name] = name
        self.segment.written.add(name)
        return _Text(name)

    def operand(self, node: ir.IRNode, written: bool = False) -> _Text:
        """A buffer or a view of one in a statement."""
        text = node.codegen_reference()
        if text.isidentifier():
            return self.mention(text, written)
        if (view := self.wrapper.views.get(text)) is None:
            raise _Refused(f"operand {type(node).__name__}")
        base = self.mention(view.buffer, written)
        kind = V.graph.get_dtype(view.buffer)
        if view.dtype.itemsize != kind.itemsize:
            raise _Refused(f"view of {kind} as {view.dtype}")
        cast = "" if view.dtype == kind else f", dtype={view.dtype}"
        return _Text(
            f"b.view({base}, {self.sizes(view.sizes)}, {self.sizes(view.strides)}, {self.size(view.offset)}{cast})"
        )

    def size(self, size: Any) -> str:
        """A size in a statement; its symbols become arguments."""
        assert self.segment is not None
        size = size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size)
        size = sympy.expand(V.graph.sizevars.simplify(size.xreplace(V.graph.sizevars.inv_precomputed_replacements)))
        for symbol in size.free_symbols:
            if not symbol.is_integer:
                raise _Refused(f"symbol {symbol}")
            self.segment.symbols[str(symbol)] = symbol
        text = size_text(size)
        return text if isinstance(size, sympy.Integer) else repr(text)

    def sizes(self, sizes: Sequence[Any]) -> str:
        """Sizes or strides in a statement."""
        return f"[{', '.join(map(self.size, sizes))}]"

    def value(self, value: Any) -> str:
        """An argument of an operator in a statement."""
        match value:
            case _Text():
                return value
            case ir.IRNode():
                return self.operand(value)
            case None | bool() | int() | float() | str() | complex():
                return repr(value)
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case torch.device():
                return f"torch.device({str(value)!r})"
            case sympy.Float() | sympy.Rational() if not isinstance(value, sympy.Integer):
                return repr(float(value))
            case torch.SymInt() | sympy.Expr():
                size = self.size(value)
                return f"b.expr({size})" if size.startswith("'") else size
            case list() | tuple():
                return f"[{', '.join(map(self.value, value))}]"
        raise _Refused(f"argument {type(value).__name__}")

    # ---------------------------------------------------------------------------------------- statements

    def instruction(self, text: str) -> None:
        """Adds a statement that does something."""
        assert self.segment is not None
        self.segment.statements.append(text)
        self.segment.instructions += 1

    def kernel(self, line: lines.KernelCallLine) -> None:
        """A call of a fused kernel."""
        segment = self.on(line.device)
        written = self.wrapper.root.kernels[line.kernel_name].written
        if any(kind == "const float" for kind in line.arg_types):
            raise _Refused("kernel with a floating-point size")
        operands = [self.mention(name, out) for name, out in zip(line.call_args, written, strict=False)]
        numbers = [self.number(text) for text in line.call_args[len(written) :]]
        self.instruction(f"b.kernel({line.kernel_name!r}, [{', '.join(operands)}], [{', '.join(numbers)}])")
        segment.kernels = True

    def number(self, text: str) -> str:
        """A size that a kernel is given by name."""
        if text in self.computed:
            return self.size(self.computed[text])
        for symbol in V.graph.sizevars.shape_env.var_to_range:
            if str(symbol) == text:
                return self.size(symbol)
        return self.size(sympy.Integer(text)) if text.isdigit() else self.refuse(f"size {text}")

    @staticmethod
    def refuse(reason: str) -> str:
        """Raises."""
        raise _Refused(reason)

    def overload(self, node: ir.ExternKernel) -> torch._ops.OpOverload:
        """The operator of a node.

        Raises:
            _Refused: programs don't hold it.
        """
        overload = node.op_overload
        name = node.get_kernel_name() or type(node).__name__
        if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
            raise _Refused(name)
        schema = overload._schema
        if _C.draws_random(schema.name, schema.overload_name) or getattr(node, "unbacked_bindings", None):
            raise _Refused(str(overload))
        if schema.name in _SURPRISING:
            raise _Refused(str(overload))
        if not any(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key) for key in _KERNELS):
            raise _Refused(str(overload))
        if any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
            raise _Refused(str(overload))
        return overload

    def arguments(self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """The arguments of an operator; what the operator writes to is marked as written."""
        writes = {a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        named = {a.name: value for a, value in zip(overload._schema.arguments, args, strict=False)}
        for name in writes:
            for node in [target] if isinstance(target := named.get(name), ir.IRNode) else target or []:
                self.operand(node, written=True)
        texts = [self.value(value) for value in args]
        return ", ".join([*texts, *(f"{name}={self.value(value)}" for name, value in kwargs.items())])

    def call(self, overload: torch._ops.OpOverload, arguments: str, results: str = "") -> None:
        """Adds a call of an operator."""
        self.instruction(f"b.call({overload.name()!r}{arguments and f', {arguments}'}{results})")

    def arguments_of(self, node: ir.ExternKernel, overload: torch._ops.OpOverload) -> str:
        """The arguments that a node has for its operator."""
        if hasattr(node, "unflatten_args"):
            args, kwargs = node.unflatten_args(node.inputs, node.constant_args)
        else:
            args, kwargs = [*node.inputs, *node.constant_args], {}
        return self.arguments(overload, args, {**kwargs, **node.kwargs})

    def operator_into(self, node: ir.ExternKernelOut) -> None:
        """An operator that writes to a buffer."""
        self.on(node.get_device())
        overload = self.overload(node)
        arguments = self.arguments_of(node, overload)
        out = self.operand(node.output_view or node, written=True)
        self.call(overload, f"{arguments}, out={out}" if arguments else f"out={out}")

    def operator(self, node: ir.ExternKernelAlloc) -> None:
        """An operator that makes new tensors, or changes its arguments."""
        overload = self.overload(node)
        segment = self.on(node.get_device())
        if isinstance(node.layout, ir.NoneLayout) or overload._schema.is_mutable:
            self.call(overload, self.arguments_of(node, overload))
            return
        arguments = self.arguments_of(node, overload)
        if isinstance(node.layout, ir.Layout):
            made = {0: node}
        else:
            made = {}
            segment.unpacked.add(node.get_name())
            for output in node.outputs if isinstance(node.outputs, list | tuple) else [node.outputs]:
                if not isinstance(output, ir.MultiOutput) or len(output.indices) > 1:
                    raise _Refused(str(overload))
                if any(kind is not tuple for kind, _ in output.indices):
                    raise _Refused(str(overload))
                made[output.indices[0][1] if output.indices else 0] = output
        results = [str(self.make(made[i])) if i in made else "None" for i in range(len(overload._schema.returns))]
        self.call(overload, arguments, f", results=[{', '.join(results)}]")

    def mutating(self, node: ir.ExternKernel, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An operator that changes its first argument."""
        overload = self.overload(node)
        self.on(node.get_device())
        self.call(overload, self.arguments(overload, args, kwargs))

    def scatter(self, node: ir.ScatterFallback) -> None:
        """``scatter_`` and ``scatter_reduce_``."""
        x, index, *source = node.inputs
        known = {argument.name for argument in self.overload(node)._schema.arguments}
        kwargs = {name: value for name, value in node.kwargs.items() if name in known and value is not None}
        self.mutating(node, [x, node.constant_args[0], index, *(source or node.constant_args[1:])], kwargs)

    def reuse(self, line: lines.ReuseLine) -> None:
        """A buffer takes the memory of another."""
        old, new = line.node, line.reused_as
        if line.comm_buffer:
            raise _Refused(type(line).__name__)
        segment = self.on(old.get_device())
        base, name = self.mention(old.get_name()), new.get_name()
        same = old.get_size() == new.get_size() and old.get_stride() == new.get_stride()
        view = f"b.view({base}, {self.sizes(new.get_size())}, {self.sizes(new.get_stride())})"
        self.rename(segment, name, base, base if same else view, line)

    def reinterpret(self, line: lines.ReinterpretLine) -> None:
        """A buffer is a view of another."""
        if line.reused_as.get_name() in V.graph.removed_buffers:
            return
        segment = self.on(line.node.get_device())
        view = self.operand(line.layout.view)
        self.rename(segment, line.reused_as.get_name(), line.node.get_name(), view, line)

    @staticmethod
    def rename(segment: _Segment, name: str, base: str, view: str, line: Any) -> None:
        segment.statements.append(f"{name} = {view}")
        segment.names[name] = segment.names[base]
        segment.after.append(_Alias(line, segment.names[base]))

    # --------------------------------------------------------------------------------------------- end

    def finish(self) -> list[Any]:
        """The lines that remain; programs go to the wrapper."""
        self.close()
        # Returned without ever having been written.
        self.parts += self.waiting.values()
        for output in self.wrapper.get_graph_outputs():
            self.used_outside.update(_NAME.findall(output.codegen_reference()))
        segments = [part for part in self.parts if isinstance(part, _Segment)]
        users: dict[str, int] = {}
        for segment in segments:
            for name in segment.names:
                users[name] = users.get(name, 0) + 1
        internal: set[str] = set()
        for segment in segments:
            shared = {root for name, root in segment.names.items() if name in self.used_outside or users[name] > 1}
            if segment.instructions:
                own = {root for root, memory in segment.roots.items() if memory.allocation and root not in shared}
                internal |= {name for name, root in segment.names.items() if root in own} | segment.unpacked
        checked = {name for segment in segments if segment.instructions for name in segment.names}
        result: list[Any] = []
        for part in self.parts:
            result += self.written(part, internal) if isinstance(part, _Segment) else [part]
        return [line for line in (_remaining(line, internal, checked) for line in result) if line is not None]

    def written(self, segment: _Segment, internal: set[str]) -> list[Any]:
        """The lines of a segment; its program goes to the wrapper."""
        allocations = [
            memory.allocation for root, memory in segment.roots.items() if memory.allocation and root not in internal
        ]
        launch: list[Any] = []
        if segment.instructions:
            launch = [self.program(segment, internal)]
        return [*segment.before, *allocations, *launch, *segment.after]

    def program(self, segment: _Segment, internal: set[str]) -> str:
        """Gives a segment's program to the wrapper; returns its launch."""
        body, arguments = [], []
        for name, symbol in segment.symbols.items():
            bounds = V.graph.sizevars.shape_env.var_to_range.get(symbol)
            lower, upper = (-_LARGEST, _LARGEST) if bounds is None else (_bound(bounds.lower), _bound(bounds.upper))
            body.append(f"b.symbol({name!r}, {lower}, {upper})")
        for name, memory in segment.roots.items():
            described = f"{memory.dtype}, {memory.sizes}, {memory.strides}"
            if name in internal:
                body.append(f"{name} = b.scratch({described})")
                continue
            role = "out" if memory.allocation else "inout" if name in segment.written else "in"
            body.append(f"{name} = b.tensor({name!r}, {described}, {role!r})")
            arguments.append(f"{name}.to({str(segment.device)!r})" if memory.on_cpu else name)
        body += [f"b.integer({name!r})" for name in segment.symbols]
        arguments += segment.symbols
        name = self.wrapper.root.add_program(
            ProgramText([*body, *segment.statements], segment.device.index, segment.kernels)
        )
        return f"{name}({', '.join(arguments)})"


def _bound(value: sympy.Expr) -> int:
    """A bound of a symbol: infinity, too, is a number of 64 bits."""
    return int(value) if isinstance(value, sympy.Integer) else -_LARGEST if value < 0 else _LARGEST


def _remaining(line: Any, internal: set[str], checked: set[str]) -> Any:
    """A line as it remains in Python; None where it is about memory that is in a program."""
    match line:
        case _Check():
            return None if checked.issuperset(line.names) else line.line
        case _Alias():
            return None if line.root in internal else line.line
        case lines.FreeIfNotReusedLine() | lines.FreeLine():
            return None if line.node.get_name() in internal else line
    return line
