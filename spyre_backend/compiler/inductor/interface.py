"""What Dynamo and Inductor ask about the device: current device, streams, events, properties."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from spyre_backend import _C
from spyre_backend import device as spyre


class SpyreInterface(DeviceInterface):
    """``torch.spyre`` as Dynamo's ``DeviceInterface``; nothing here starts the runtime but what needs a device."""

    device = spyre.device  # type: ignore[assignment]
    Event = spyre.Event  # type: ignore[assignment]
    Stream = spyre.Stream  # type: ignore[assignment]

    class Worker:
        """What compile workers may ask: they never touch a device."""

        @staticmethod
        def set_device(index: int) -> None:
            """Nothing: a worker has no device."""

        @staticmethod
        def current_device() -> int:
            """Index of the current device."""
            return _C.current_device()

        @staticmethod
        def get_device_properties(which: Any = None) -> spyre.DeviceProperties:
            """Properties from the settings."""
            return spyre.get_device_properties(which)

    current_device = staticmethod(spyre.current_device)
    set_device = staticmethod(spyre.set_device)
    device_count = staticmethod(spyre.device_count)
    is_available = staticmethod(spyre.is_available)
    stream = staticmethod(spyre.stream)  # type: ignore[assignment]
    current_stream = staticmethod(spyre.current_stream)
    set_stream = staticmethod(spyre.set_stream)
    synchronize = staticmethod(spyre.synchronize)
    exchange_device = staticmethod(spyre._exchange_device)
    maybe_exchange_device = staticmethod(spyre._maybe_exchange_device)
    memory_allocated = staticmethod(spyre.memory_allocated)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        spyre.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """The stream's number: streams of the card have no address."""
        return spyre.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(which: Any = None) -> str:
        """Empty: there is one kind of card."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Bfloat16 is computed as on the CPU."""
        return True


def register() -> None:
    """Makes Dynamo know the device, with and without an index."""
    register_interface_for_device("spyre", SpyreInterface)
    for index in range(spyre.device_count() if spyre.is_available() else 0):
        register_interface_for_device(f"spyre:{index}", SpyreInterface)
