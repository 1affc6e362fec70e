"""What generated code calls: the library of a graph's kernels, its programs, statistics."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache

from spyre_backend import _C
from spyre_backend.compiler import stats
from spyre_backend.programs import JobPlan, ProgramBuilder, launch_jobplan, prepare_kernel


class _Library(CppCodeCache):
    """Inductor's cache of C++ libraries, with the flags of its CPU kernels."""

    cache: dict[str, Callable[[], ctypes.CDLL]] = {}  # noqa: RUF012
    cpp_compile_command_flags = CppPythonBindingsCodeCache.cpp_compile_command_flags
    _get_uncompiled_header = CppPythonBindingsCodeCache._get_uncompiled_header


class Kernels:
    """The fused kernels of a graph, compiled into one library; compiling starts at once, in the background."""

    def __init__(self, compiler: AsyncCompile, source: str) -> None:
        """Starts compiling.

        Args:
            compiler: Inductor's pool.
            source: C++ of the kernels and of their entries.
        """
        self._load = _Library.load_async(source, submit_fn=compiler.submit)
        self._addresses: dict[str, int] = {}

    @property
    def path(self) -> str:
        """The library's file. Waits for the compiler.

        Raises:
            torch._inductor.exc.CppCompileError: the compiler refused it.
        """
        return self._load()._name

    def run(self, name: str, device: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        """Runs one kernel on the current stream of a device.

        Args:
            name: the kernel's entry.
            device: index of the device.
            tensors: its operands in order; those of the CPU are read where they are.
            numbers: its sizes and strides.

        Raises:
            RuntimeError: what the kernel raises, or a tensor of another device.
        """
        address = self._addresses.get(name)
        if address is None:
            address = ctypes.cast(getattr(self._load(), name), ctypes.c_void_p).value
            self._addresses[name] = address
        _C.run_fused_kernel(address, device, tensors, numbers)


class Program:
    """A program of a graph: its artifact is made, and prepared on its device, when the generated module is loaded.

    Calling it launches it on the current stream with tensors, then sizes, in the order of its arguments.
    """

    def __init__(
        self, name: str, build: Callable[[ProgramBuilder], None], device: int, kernels: Kernels | None
    ) -> None:
        """Describes a program.

        Args:
            name: for messages and timelines.
            build: makes it with a builder.
            device: index of its device.
            kernels: the library, where it calls fused kernels.
        """
        self.name = name
        self._build = build
        self._device = torch.device("spyre", device)
        self._kernels = kernels
        self.plan: JobPlan | None = None

    def prepare(self) -> None:
        """Writes the artifact, unless the cache has it, and prepares it. Waits for the compiler."""
        builder = ProgramBuilder(self.name)
        self._build(builder)
        if self._kernels is not None:
            builder.library(self._kernels.path)
        self.plan = prepare_kernel(builder.write(), self._device)

    def __call__(self, *arguments: torch.Tensor | int) -> None:
        """Launches it."""
        launch_jobplan(self.plan, arguments)


def record(programs: Sequence[Program], *, kernels: int, outside: Sequence[str]) -> None:
    """Ends the loading of a generated module: prepares its programs and counts it.

    Args:
        programs: in the order of their launches.
        kernels: number of fused kernels.
        outside: what is in no program, by name.
    """
    for program in programs:
        program.prepare()
    stats.count_graph(programs=len(programs), kernels=kernels, outside=outside)
