"""``torch.spyre``: the module that PyTorch's generic code and users talk to.

Devices, streams, events, memory, random numbers, settings, timelines. The extension does the work; no operator and no
policy lives here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from spyre_backend import _C
from spyre_backend._C import Deadlock, InvalidArgument, MemoryFault, Poisoned, ShutDown, SpyreError
from spyre_backend.compiler.stats import CompileStats, Fallback, compile_stats, fallback_stats
from spyre_backend.device import _utils as _utils
from spyre_backend.device import memory, random, streams
from spyre_backend.device._utils import DeviceLike, _get_device_index
from spyre_backend.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from spyre_backend.device.offload import Offloaded, offload
from spyre_backend.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from spyre_backend.device.settings import Settings, settings
from spyre_backend.device.state import DeviceState, StreamState, device_state
from spyre_backend.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    launch_host_callback,
    set_stream,
    stream,
)
from spyre_backend.device.timeline import Interval, Timeline, record_timeline

__all__ = [
    "CompileStats",
    "Deadlock",
    "DeviceProperties",
    "DeviceState",
    "Event",
    "Fallback",
    "Interval",
    "InvalidArgument",
    "MemoryFault",
    "Offloaded",
    "Poisoned",
    "Settings",
    "ShutDown",
    "SpyreError",
    "Stream",
    "StreamContext",
    "StreamState",
    "Timeline",
    "compile_stats",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "device_state",
    "empty_cache",
    "fallback_stats",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "launch_host_callback",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "offload",
    "random",
    "record_timeline",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "settings",
    "stream",
    "streams",
    "synchronize",
]


@dataclass(frozen=True)
class DeviceProperties:
    """What a simulated card is. Sizes in bytes."""

    name: str
    total_memory: int
    core_count: int = 32
    scratchpad_per_core: int = 2 << 20
    stick_size: int = 128
    simulated: bool = True

    @property
    def multi_processor_count(self) -> int:
        """The cores, by the name that Inductor asks for."""
        return self.core_count


def is_available() -> bool:
    """True when there are devices. Starts nothing; False for an invalid setting, whose error the first use shows."""
    try:
        return _C.device_count() > 0
    except ValueError:
        return False


def device_count() -> int:
    """Number of devices: ``SPYRE_DEVICES``, 2 by default."""
    return _C.device_count()


def is_initialized() -> bool:
    """True once the runtime has started, and not in a process forked after that."""
    return _C.started() and not _C.in_bad_fork()


def init() -> None:
    """Starts the runtime; every operation does it when needed.

    Raises:
        RuntimeError: in a process that was forked from one whose runtime had started.
    """
    _C.start()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def current_device() -> int:
    """Index of this thread's current device."""
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device current in this thread; a negative index changes nothing.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(index: int) -> int:
    before = _C.current_device()
    if index >= 0:
        _C.set_device(index)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """``with torch.spyre.device(1):`` makes a device current in the block; None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.idx = _exchange_device(self.prev_idx)


class device_of(device):
    """Makes the device of a tensor or storage current inside a ``with`` block; other objects change nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if getattr(obj, "is_spyre", False) else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything submitted to a device has completed.

    Raises:
        RuntimeError: the first error of a stream of that device since the last synchronisation.
    """
    _C.synchronize(_get_device_index(device, optional=True))


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Properties of a device."""
    return DeviceProperties(get_device_name(device), settings().memory_bytes)


def get_device_name(device: DeviceLike = None) -> str:
    """Name of a device, the simulator's.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise RuntimeError(f"there is no device spyre:{index}: there are {device_count()}")
    return "Spyre (simulated)"


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """Capabilities as ``torch.accelerator`` reports them."""
    return torch.accelerator.get_device_capability(_get_device_index(device, optional=True))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast("spyre", dtype=…)`` accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Bfloat16 is computed as on the CPU."""
    return True


class _DefaultGenerators:
    """The default generators by device, made when they are asked for."""

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no device spyre:{index}")
        return _C.default_generator(index)


default_generators = _DefaultGenerators()


def __getattr__(name: str) -> Any:
    """Inductor looks its backend up here. Importing that takes a second, so it waits until somebody asks."""
    if name not in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen"):
        raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")
    try:
        from spyre_backend.compiler.inductor import backend
    except ImportError as error:
        # Inductor asks whatever it compiles for; graphs of other devices have nothing to do with this.
        warnings.warn(f"torch.compile does not work for spyre with torch {torch.__version__}: {error}", stacklevel=2)
        raise AttributeError(f"torch.spyre.{name}: {error}") from error
    backend.register()
    return getattr(backend, name)
