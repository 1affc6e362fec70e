"""Fused nodes: Inductor's C++ code generation, each kernel with an entry that programs can call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor import config
from torch._inductor.codegen.common import KernelArgs
from torch._inductor.codegen.cpp import CppScheduling, OuterLoopFusedSchedulerNode
from torch._inductor.scheduler import BaseSchedulerNode, FusedSchedulerNode, Scheduler, SchedulerNode
from torch._inductor.utils import Placeholder, get_fused_kernel_name
from torch._inductor.virtualized import V


@dataclass(frozen=True)
class FusedKernel:
    """One kernel of a graph.

    ``types`` are the C++ types of its parameters in order: pointers, then numbers. The entry has the kernel's name and
    the type ``void(void** pointers, const int64_t* numbers)``.
    """

    name: str
    body: str
    types: tuple[str, ...]

    @property
    def written(self) -> tuple[bool, ...]:
        """Per pointer: whether the kernel may write there."""
        return tuple(not kind.startswith("const ") for kind in self.types if kind.endswith("*"))

    @property
    def source(self) -> str:
        """C++ of the kernel and of its entry."""
        pointers = len(self.written)
        arguments = [f"static_cast<{kind}>(pointers[{i}])" for i, kind in enumerate(self.types[:pointers])]
        arguments += [f"static_cast<{kind}>(numbers[{i}])" for i, kind in enumerate(self.types[pointers:])]
        return (
            f"{self.body.rstrip()}\n"
            f'extern "C" __attribute__((visibility("default")))\n'
            f"void {self.name}([[maybe_unused]] void** pointers, [[maybe_unused]] const int64_t* numbers)\n"
            f"{{\n    {self.name}_body({', '.join(arguments)});\n}}\n"
        )


class SpyreScheduling(CppScheduling):
    """Inductor's C++ kernels, collected by the wrapper into one library for the whole graph."""

    def __init__(self, scheduler: Scheduler | None) -> None:
        super().__init__(scheduler)
        if scheduler is not None:
            # Inductor changes the loops of nodes so that they can be fused, on every device but "cpu": it takes all
            # others for ones with Triton's kernels.
            scheduler._try_reindex_pointwise_for_reduction = lambda node1, node2: False
            scheduler.shared_data_after_reordering_loop = lambda node1, node2: -1
            scheduler.shared_data_after_inverting_indexing = lambda node1, node2: -1

    def codegen_node(self, node: OuterLoopFusedSchedulerNode | FusedSchedulerNode | SchedulerNode) -> None:
        """Turns fused nodes into a C++ kernel."""
        # The name of the code generator of all devices that Inductor does not know by name.
        with config.patch(cuda_backend="cpp"):
            super().codegen_node(node)

    def define_kernel(
        self, src_code: str, nodes: Sequence[BaseSchedulerNode], kernel_args: KernelArgs | None = None
    ) -> str:
        """Hands a kernel to the wrapper.

        Args:
            src_code: C++ with placeholders for the name.
            nodes: what was fused, for the name.
            kernel_args: its parameters, those of the current group by default.

        Returns:
            The kernel's name; equal sources share one.
        """
        wrapper: Any = V.graph.wrapper_code
        if (known := wrapper.src_to_kernel.get(src_code)) is not None:
            return known
        fused = get_fused_kernel_name(nodes, config.cpp.descriptive_names) if config.cpp.descriptive_names else ""
        name = "_".join(["spyre", fused, wrapper.next_kernel_suffix()])
        body = src_code.replace(str(Placeholder.KERNEL_NAME), f"{name}_body")
        body = body.replace(str(Placeholder.DESCRIPTIVE_NAME), name).replace("#pragma CMT", "//")
        _, _, types = (self.kernel_group.args if kernel_args is None else kernel_args).cpp_argdefs()
        wrapper.src_to_kernel[src_code] = name
        wrapper.add_kernel(FusedKernel(name, body, tuple(types)))
        return name
