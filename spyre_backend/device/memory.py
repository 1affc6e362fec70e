"""Device memory: figures and housekeeping. All figures are the simulator's, in bytes."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index
from spyre_backend.device.settings import settings

__all__ = [
    "Bind",
    "Chunk",
    "Description",
    "Interleave",
    "Layout",
    "describe",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "placement",
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


@dataclass(frozen=True)
class Chunk:
    """A contiguous piece of one region. Offset and length in bytes, both multiples of 128."""

    region: int
    offset: int
    length: int


@dataclass(frozen=True)
class Bind:
    """All of an allocation in one memory domain of the card (``SPYRE_DOMAINS``)."""

    domain: int


@dataclass(frozen=True)
class Interleave:
    """Pieces of ``granule`` bytes, a multiple of 128, to the domains in turn."""

    domains: tuple[int, ...]
    granule: int


Placement = Bind | Interleave


def _placement_of(domains: list[int], granule: int) -> Placement | None:
    if granule:
        return Interleave(tuple(domains), granule)
    return Bind(domains[0]) if domains else None


def _checked(policy: Placement) -> tuple[list[int], int]:
    """Domains and granule as the card takes them; granule 0 stands for binding."""
    domains = [
        operator.index(domain) for domain in (policy.domains if isinstance(policy, Interleave) else [policy.domain])
    ]
    if not domains:
        raise ValueError("interleaving needs at least one memory domain")
    for domain in domains:
        if not 0 <= domain < 2**32:
            raise ValueError(f"there is no memory domain {domain}: domains are numbered from 0")
    if isinstance(policy, Bind):
        return domains, 0
    granule = operator.index(policy.granule)
    if not 0 < granule < 2**64 or granule % 128:
        raise ValueError(f"a granule is a positive multiple of 128 bytes, not {granule}")
    return domains, granule


@contextmanager
def placement(policy: Placement | None) -> Iterator[None]:
    """``with placement(Interleave((0, 1), 4096)):`` says where this thread's allocations inside the block go.

    Binding: a full domain is out of memory, even if others have room. None stands for the default: bound to the domain
    with the most free memory. A policy that a device can't keep is a ``torch.spyre.InvalidArgument`` at the allocation.

    Raises:
        TypeError: not a policy.
        ValueError: a policy that no device could keep: a negative domain, no domain, an impossible granule.
    """
    if not isinstance(policy, Bind | Interleave | None):
        raise TypeError(f"a placement is a Bind, an Interleave or None, not {policy!r}")
    before = _C.placement()
    if policy is None:
        _C.set_placement([], 0)
    else:
        _C.set_placement(*_checked(policy))
    try:
        yield
    finally:
        _C.set_placement(*before)


@dataclass(frozen=True)
class Layout:
    """How a tensor's elements lie in its allocation. Strides in elements, the offset in bytes."""

    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    itemsize: int


@dataclass(frozen=True)
class Description:
    """Where a tensor is.

    Attributes:
        device: its device.
        chunks: the allocation that its storage owns, in order; empty for a tensor without memory.
        policy: how the chunks were placed; None for a tensor without memory.
        layout: how the elements lie in them.
    """

    device: torch.device
    chunks: tuple[Chunk, ...]
    policy: Placement | None
    layout: Layout


def describe(tensor: torch.Tensor) -> Description:
    """Where a tensor's storage is on its device. The same in PF and VF mode.

    Raises:
        TypeError: not a tensor.
        ValueError: the tensor is on another device.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {tensor!r}")
    if tensor.device.type != "spyre":
        raise ValueError(f"only tensors on a spyre device can be described, not one on {tensor.device}")
    address = tensor.untyped_storage().data_ptr()
    chunks, domains, granule = (_C.describe(address) if address else None) or ([], [], 0)
    layout = Layout(
        "strided",
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset() * tensor.itemsize,
        tensor.itemsize,
    )
    return Description(tensor.device, tuple(Chunk(*chunk) for chunk in chunks), _placement_of(domains, granule), layout)


def memory_summary(device: DeviceLike = None) -> str:
    """The memory of a device as a table for people: totals, then one line per region. Figures in bytes."""
    index = _get_device_index(device, optional=True)
    free, total = mem_get_info(index)
    stats = memory_stats(index)
    regions = _C.regions(index)
    mode = settings().mode
    handles = f"{len(regions)} of {settings().handles}" if mode == "VF" else f"{len(regions)}"
    lines = [
        f"spyre:{index}, {mode} mode: {total} bytes, {free} free, {handles} region handles in use",
        f"{'':12} {'current':>16} {'peak':>16} {'total':>16} {'freed':>16}",
    ]
    for name, key in (
        ("allocations", "allocation"),
        ("allocated", "allocated_bytes"),
        ("requested", "requested_bytes"),
        ("regions", "segment"),
        ("reserved", "reserved_bytes"),
    ):
        figures = (stats[f"{key}.all.{part}"] for part in ("current", "peak", "allocated", "freed"))
        lines.append(f"{name:12} " + " ".join(f"{figure:16}" for figure in figures))
    lines.append(f"refused: {stats['num_ooms']}, retried: {stats['num_alloc_retries']}")
    lines += [
        f"region {number} ({use}, domain {domain}): {length} bytes, {unused} free, largest free block {largest}"
        for number, use, domain, length, unused, largest in regions
    ]
    return "\n".join(lines)
