"""What generated code calls: the library of a graph's kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache

from spyre_backend import _C


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
