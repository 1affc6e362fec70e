"""Streams and events of spyre devices: ``torch.Stream`` and ``torch.Event`` with the device filled in."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "launch_host_callback",
    "set_stream",
    "stream",
]


def _device(device: DeviceLike) -> torch.device:
    return torch.device("spyre", _get_device_index(device, optional=True))


class _OfSpyre(type):
    """Makes ``isinstance(x, torch.spyre.Stream)`` mean: a torch.Stream of a spyre device.

    The objects themselves are plain ``torch.Stream`` and ``torch.Event``: torch 2.14 refuses events of a subclass.
    """

    base: type

    def __instancecheck__(cls, instance: object) -> bool:
        device = getattr(instance, "device", None)
        return isinstance(instance, cls.base) and device is not None and device.type == "spyre"


class Stream(metaclass=_OfSpyre):
    """A queue of work of one device, executed in order."""

    base = torch.Stream

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: int) -> torch.Stream:
        """Opens a stream on a device, or names one by ``stream_id``, ``device_index`` and ``device_type``.

        Args:
            device: where, the current device by default.
            priority: lower numbers go first where streams compete for the device; nobody waits for ever.
            kwargs: the three numbers of an existing stream.
        """
        if kwargs:
            return torch.Stream(**kwargs)
        return torch.Stream(device=_device(device), priority=priority)


class Event(metaclass=_OfSpyre):
    """A mark in a stream that others can wait for."""

    base = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        """Makes an event of the current device.

        Args:
            enable_timing: allows ``elapsed_time``.
            blocking: ``synchronize`` always blocks; accepted for other devices' sake.
            interprocess: not supported by the simulator.

        Raises:
            ValueError: an interprocess event was asked for.
        """
        if interprocess:
            raise ValueError("spyre events can't be shared between processes: leave out interprocess=True")
        return torch.Event(device="spyre", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream that operations of this thread go to."""
    return torch.accelerator.current_stream(_device(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream that is current when nobody chose one."""
    return torch.Stream(stream_id=0, device_index=_device(device).index, device_type=_C.DEVICE_TYPE)


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


def launch_host_callback(call: Callable[[], object], stream: torch.Stream | None = None) -> None:
    """Runs a Python function on a host thread, in order with a stream's other work.

    Args:
        call: takes no arguments; what it returns is dropped. What it raises fails the stream: the next
            synchronisation raises it.
        stream: the current one by default.

    Raises:
        torch.spyre.ShutDown: the runtime was shut down.
    """
    where = current_stream() if stream is None else stream
    _C.launch_host_callback(where.device.index, where.stream_id, call)
