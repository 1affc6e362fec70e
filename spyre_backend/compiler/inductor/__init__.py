"""``torch.compile`` for spyre: scheduling, wrapper, device interface and what generated code calls.

Dynamo and Inductor take a second to import, so :func:`install` only leaves word where they look for a device; nothing
here is imported before one of them is. No operator and nothing of the runtime may live here.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install"]


class _OnImport:
    """An entry of ``sys.meta_path`` that calls a function once, after a module has been imported."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self.call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, with a loader that calls the function at its end."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            self.call()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _register_interface() -> None:
    from spyre_backend.compiler.inductor import interface

    interface.register()


def _skip_this_package() -> None:
    """``torch.spyre`` is no part of a model: Dynamo calls it instead of tracing into it."""
    from torch._dynamo import trace_rules

    trace_rules.add("spyre_backend")


_CALLS = {"torch._dynamo.device_interface": _register_interface, "torch._dynamo.trace_rules": _skip_this_package}


def install() -> None:
    """Lets Dynamo know the device as soon as it is imported. Called once; imports nothing."""
    for name, call in _CALLS.items():
        if name in sys.modules:
            call()
        else:
            sys.meta_path.insert(0, _OnImport(name, call))
    if (common := sys.modules.get("torch._inductor.codegen.common")) is not None:
        # Inductor has looked for its backends already, and looks once.
        common.init_backend_registration.cache_clear()
