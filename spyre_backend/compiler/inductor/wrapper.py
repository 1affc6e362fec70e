"""The Python that Inductor generates for a graph on spyre."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.ir import GraphPartitionSignature
from torch._inductor.virtualized import V

from spyre_backend.compiler.inductor.scheduling import FusedKernel
from spyre_backend.compiler.inductor.segments import ProgramText, divide


@dataclass(frozen=True)
class View:
    """A view of a buffer as generated Python has it: sizes, strides and offset in elements."""

    buffer: str
    sizes: Sequence[Any]
    strides: Sequence[Any]
    offset: Any
    dtype: torch.dtype


class SpyreWrapper(PythonWrapperCodegen):
    """Inductor's Python wrapper, whose lines become programs.

    Attributes:
        kernels: the graph's fused kernels by name.
        views: what generated Python means by the text of a view.
    """

    def __init__(self, *args: Any) -> None:
        self.kernels: dict[str, FusedKernel] = {}
        self.views: dict[str, View] = {}
        self._programs: list[ProgramText] = []
        self._outside: list[str] = []
        super().__init__(*args)

    @property
    def root(self) -> SpyreWrapper:
        """The wrapper of the outermost graph."""
        return self

    @classmethod
    def create(
        cls,
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: GraphPartitionSignature | None = None,
    ) -> SpyreWrapper:
        """A wrapper for a graph, or for a graph inside of one."""
        if is_subgraph:
            return _SubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return cls()

    def add_kernel(self, kernel: FusedKernel) -> None:
        """Takes a kernel into the graph's library."""
        self.root.kernels[kernel.name] = kernel

    def add_program(self, text: ProgramText) -> str:
        """Takes a program into the generated module; returns what launches it."""
        self._programs.append(text)
        return f"program_{len(self._programs) - 1}"

    def write_header(self) -> None:
        """Adds our imports to Inductor's."""
        super().write_header()
        self.imports.writeline("from spyre_backend.compiler.inductor.runtime import Kernels, Program, record")

    def run_wrapper_ir_passes(self, is_inference: bool) -> None:
        """Turns lines into programs. Memory of programs is planned by their builder, so Inductor plans none."""
        with config.patch(allow_buffer_reuse=False, memory_planning=False):
            super().run_wrapper_ir_passes(is_inference)
        self.lines, outside = divide(self)
        self.root._outside += outside
        if self.root is self:
            self.write_programs()

    def write_programs(self) -> None:
        """Writes the kernels' source and the programs into the generated module."""
        if self.kernels:
            self.header.writeline("kernels = Kernels(async_compile, r'''")
            for kernel in self.kernels.values():
                self.header.splice(kernel.source)
            self.header.writeline("''')")
        phase = "backward" if V.graph.is_backward else "inference" if V.graph.is_inference else "forward"
        names = []
        for number, text in enumerate(self._programs):
            names.append(f"program_{number}")
            self.header.writelines(["", f"def build_{number}(b):"])
            with self.header.indent():
                self.header.writelines(text.build)
            library = "kernels" if text.kernels else None
            self.header.writelines(
                ["", f"program_{number} = Program('{phase}_{number}', build_{number}, {text.device}, {library})"]
            )
        self.suffix.writeline(f"record([{', '.join(names)}], kernels={len(self.kernels)}, outside={self._outside!r})")

    def codegen_reinterpret_view(
        self,
        data: Any,
        size: Sequence[Any],
        stride: Sequence[Any],
        offset: Any,
        writeline: Callable[..., None],
        dtype: torch.dtype | None = None,
    ) -> str:
        """As Inductor; keeps what the text stands for."""
        text = super().codegen_reinterpret_view(data, size, stride, offset, writeline, dtype)
        start = offset if "reinterpret_tensor(" in text else 0
        self.views[text] = View(data.get_name(), size, stride, start, dtype or data.get_dtype())
        return text

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        """As Inductor, which leaves out the index of devices that it does not know."""
        text = super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        return text.replace("device='spyre'", f"device='{device}'") if device.type == "spyre" else text

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: Any, **kwargs: Any) -> None:
        device = kwargs.get("device") or V.graph.get_current_device_or_throw()
        if device.type != "spyre":
            super()._generate_kernel_call_helper(kernel_name, call_args, **kwargs)
            return
        pointers = sum(kind.endswith("*") for kind in kwargs["arg_types"])
        tensors, numbers = ", ".join(call_args[:pointers]), ", ".join(call_args[pointers:])
        self.writeline(f"kernels.run({kernel_name!r}, {device.index}, [{tensors}], [{numbers}])")


class _SubgraphWrapper(SpyreWrapper, SubgraphPythonWrapperCodegen):
    """The wrapper of a graph inside of a graph (a branch, a loop's body): its kernels are in the outermost library."""

    @property
    def root(self) -> SpyreWrapper:
        return self.get_root_graph()

    def write_header(self) -> None:
        SubgraphPythonWrapperCodegen.write_header(self)
