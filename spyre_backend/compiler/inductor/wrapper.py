"""The Python that Inductor generates for a graph on spyre."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.ir import GraphPartitionSignature
from torch._inductor.virtualized import V

from spyre_backend.compiler.inductor.scheduling import FusedKernel


class SpyreWrapper(PythonWrapperCodegen):
    """Inductor's Python wrapper, with all kernels of a graph in one library."""

    def __init__(self, *args: Any) -> None:
        self.kernels: list[FusedKernel] = []
        super().__init__(*args)

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
        self.kernels.append(kernel)

    def write_header(self) -> None:
        """Adds our imports to Inductor's."""
        super().write_header()
        self.imports.writeline("from spyre_backend.compiler.inductor.runtime import Kernels")

    def run_wrapper_ir_passes(self, is_inference: bool) -> None:
        """Plans memory as Inductor does; then every kernel is known, and the library is written."""
        super().run_wrapper_ir_passes(is_inference)
        self.write_library()

    def write_library(self) -> None:
        """Writes the kernels' source into the generated module."""
        if not self.kernels:
            return
        self.header.writeline("kernels = Kernels(async_compile, r'''")
        for kernel in self.kernels:
            self.header.splice(kernel.source)
        self.header.writeline("''')")

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

    def add_kernel(self, kernel: FusedKernel) -> None:
        self.get_root_graph().add_kernel(kernel)

    def write_header(self) -> None:
        SubgraphPythonWrapperCodegen.write_header(self)

    def write_library(self) -> None:
        pass
