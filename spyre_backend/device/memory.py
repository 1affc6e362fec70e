"""Device memory: figures and housekeeping. All figures are the simulator's, in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """All counters of a device, named as in :func:`torch.accelerator.memory.memory_stats`; empty before first use."""
    return torch.accelerator.memory_stats(_get_device_index(device, optional=True))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that live tensors occupy, each rounded up to 128."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Highest :func:`memory_allocated` since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of all regions in use."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Highest :func:`memory_reserved` since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Peaks start again from the current values."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Totals start again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Returns regions without live tensors, and their handles."""
    torch.accelerator.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    _C.start()
    return torch.accelerator.get_memory_info(_get_device_index(device, optional=True))
