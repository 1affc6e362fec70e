"""What Inductor finds as ``torch.spyre.Scheduling``, ``PythonWrapperCodegen`` and ``CppWrapperCodegen``."""

from __future__ import annotations

from importlib import metadata
from typing import Any, NoReturn

import torch
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.wrapper import PythonWrapperCodegen as _PythonWrapper
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from spyre_backend.compiler.inductor.scheduling import SpyreScheduling as Scheduling
from spyre_backend.compiler.inductor.wrapper import SpyreWrapper as PythonWrapperCodegen
from spyre_backend.programs.version import compiler_version

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "register"]


class CppWrapperCodegen(_PythonWrapper):
    """Stands where Inductor wants a C++ wrapper, and says that there is none."""

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses.

        Raises:
            NotImplementedError: always; says what to change.
        """
        raise NotImplementedError(
            "spyre has no C++ wrapper (cpp_wrapper, AOTInductor): its graphs are programs, which the Python wrapper "
            "launches in one call. Set torch._inductor.config.cpp_wrapper = False"
        )


class _SpyreOverrides(DeviceOpOverrides):
    """Pieces of generated Python."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch._dynamo.device_interface import get_interface_for_device\n{name} = (\n" + (
            '    get_interface_for_device("spyre").get_raw_stream\n)'
        )

    def set_device(self, device_idx: int | str) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int | str) -> str:
        return f"torch.spyre.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.spyre.current_stream()"


def cache_key() -> str:
    """Names what generated code depends on: this package's version and a hash of the compiler's sources."""
    try:
        version = metadata.version("spyre-conformance")
    except metadata.PackageNotFoundError:
        # A source tree that is only on the path; the hash tells such trees apart.
        version = "source"
    return f"{version} {compiler_version()}"


class _CacheKey(CustomGraphModulePass):
    """Changes no graph. Inductor puts the uuid of a backend's pass into the keys of its caches, and only that."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        pass

    def uuid(self) -> str:
        return cache_key()


def register() -> None:
    """Registers the backend with Inductor, with a pass that puts our version into the keys of its caches.

    Inductor would also register what it finds in ``torch.spyre``, without such a pass. It does not, because one of the
    four names it wants is missing there on purpose: ``WrapperFxCodegen``.
    """
    register_backend_for_device(
        "spyre", Scheduling, PythonWrapperCodegen, CppWrapperCodegen, device_custom_pass=_CacheKey()
    )
    register_device_op_overrides("spyre", _SpyreOverrides())
