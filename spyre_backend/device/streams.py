"""Streams and events of spyre devices: ``torch.Stream`` and ``torch.Event`` bound to the device type."""

from __future__ import annotations

from types import TracebackType

import torch

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index

__all__ = ["Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream"]


def _device(device: DeviceLike) -> torch.device:
    return torch.device("spyre", _get_device_index(device, optional=True))


class Stream(torch.Stream):
    """A queue of work of one device, executed in order."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: int) -> Stream:
        """Opens a stream on a device, the current one by default, or names one by ``stream_id`` and ``device_index``."""
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=_device(device), priority=priority)


class Event(torch.Event):
    """A mark in a stream that others can wait for."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        """Makes an event; timing has to be asked for, as on other devices."""
        return super().__new__(
            cls, device="spyre", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def _from(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that operations of this thread go to."""
    return _from(torch.accelerator.current_stream(_device(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current when nobody chose one."""
    return Stream(stream_id=0, device_index=_device(device).index, device_type=_C.DEVICE_TYPE)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream, and its device, current in this thread."""
    torch.accelerator.set_stream(stream)


class StreamContext:
    """Makes a stream current inside a ``with`` block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: tuple[int, torch.Stream] | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            device = _C.current_device()
            self._before = (device, torch.accelerator.current_stream(self.stream.device))
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            device, stream = self._before
            set_stream(stream)
            _C.set_device(device)
            self._before = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.spyre.stream(s):`` runs the block's operations on ``s``."""
    return StreamContext(stream)
