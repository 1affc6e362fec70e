"""A simulated Spyre card as a PyTorch device.

``csrc/card`` (no torch), ``csrc/bridge``, ``device`` (``torch.spyre``), ``programs`` with ``csrc/programs``,
``compiler`` with ``csrc/eager``.

Importing torch loads it through the entry point ``torch.backends``; ``spyre_backend.load()`` does the same by hand.
Nothing of test selection, relay or HUD may live here, and importing must start nothing and print nothing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType

__all__ = ["load"]


def _load_extension() -> ModuleType:
    """The compiled bridge for the torch and the interpreter that are running.

    Raises:
        ImportError: there is no binary for them; says what to run.
    """
    import torch

    from spyre_backend import build

    name = f"{__name__}._C"
    if name in sys.modules:
        return sys.modules[name]
    path = build.binary_for(torch.__version__)
    if not path.exists():
        others = sorted(p.name for p in path.parent.glob("_C.torch-*.so"))
        reason = f"there is only {', '.join(others)}" if others else "it has not been compiled"
        raise ImportError(
            f"spyre_backend has no binary for torch {build.torch_minor(torch.__version__)} and Python "
            f"{build.python_tag()} ({reason}): run `{sys.executable} -m spyre_backend.build`"
        )
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module


def load() -> None:
    """Registers the device with PyTorch. Runs once, prints nothing, starts no runtime.

    Raises:
        ImportError: the extension is missing or belongs to another torch.
        RuntimeError: another backend has taken PyTorch's place for out-of-tree devices.
    """
    import torch

    if "spyre_backend._C" in sys.modules:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "spyre"):
        raise RuntimeError(
            f"the backend {taken!r} is loaded already, and PyTorch has one place for an out-of-tree device: "
            "uninstall one of them, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the one you want"
        )
    global _C
    _C = _load_extension()
    torch.utils.rename_privateuse1_backend("spyre")
    from spyre_backend import compiler, device, lifecycle

    torch._register_device_module("spyre", device)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    lifecycle.install()
    compiler.install()


def _autoload() -> None:
    """What ``import torch`` calls (entry point ``torch.backends``).

    An installation without any binary was made for its other parts (a relay, or the conformance suite of another
    backend), and must not stand in the way of PyTorch. In a checkout the missing step is named instead.

    Raises:
        ImportError, RuntimeError: as :func:`load`.
    """
    from spyre_backend import build

    if build.in_checkout() or any(build.PACKAGE.glob("_C.torch-*.so")):
        load()
