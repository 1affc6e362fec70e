"""Which device a caller means."""

from __future__ import annotations

import torch

from spyre_backend import _C

DeviceLike = torch.device | str | int | None


def _get_device_index(device: DeviceLike, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index a caller means; the name is the one ``torch.load`` looks for in a device module.

    Args:
        device: an index, ``"spyre"``, ``"spyre:1"``, a torch.device, or None.
        optional: None and a device without an index mean the current device; otherwise they are errors.
        allow_cpu: the CPU counts as index -1.

    Raises:
        ValueError: a device of another type, or no index where one is needed.
        TypeError: neither a device nor an index.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "spyre":
            raise ValueError(f"Expected a spyre device, but got: {device}")
        if device.index is not None:
            return device.index
    elif device is not None:
        raise TypeError(f"Expected a device or an index, but got: {device!r}")
    if optional:
        return _C.current_device()
    raise ValueError(f"Expected a spyre device with an index, but got: {device}")
