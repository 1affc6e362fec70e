"""How the devices are: streams, pending work, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index

__all__ = ["DeviceState", "StreamState", "device_state"]


@dataclass(frozen=True)
class StreamState:
    """One stream of a device.

    Attributes:
        stream_id: as ``torch.Stream.stream_id``.
        priority: lower numbers go first.
        pending: operations that were submitted and have not completed.
        error: text of the first error since the last synchronisation; None if there is none. The next
            synchronisation raises it, and the stream is usable again.
    """

    stream_id: int
    priority: int
    pending: int
    error: str | None


@dataclass(frozen=True)
class DeviceState:
    """One device.

    Attributes:
        device: its index.
        status: ``"not started"`` until something needs the device; ``"failed"`` while a stream has an error;
            ``"busy"`` while there is pending work; ``"idle"`` otherwise.
        streams: all streams, by id; empty before the start.
    """

    device: int
    status: Literal["not started", "idle", "busy", "failed"]
    streams: tuple[StreamState, ...]


def device_state(device: DeviceLike = None) -> DeviceState:
    """How a device is, without waiting for it and without starting the runtime.

    Args:
        device: the current device by default.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    if not 0 <= index < _C.device_count():
        raise RuntimeError(f"there is no device spyre:{index}: there are {_C.device_count()}")
    if not _C.started():
        return DeviceState(index, "not started", ())
    streams = tuple(StreamState(*stream) for stream in _C.streams(index))
    if any(stream.error is not None for stream in streams):
        return DeviceState(index, "failed", streams)
    return DeviceState(index, "busy" if any(stream.pending for stream in streams) else "idle", streams)
