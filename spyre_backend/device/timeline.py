"""What ran when on the simulated cards, for people and for trace viewers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from spyre_backend import _C

__all__ = ["Interval", "Timeline", "record_timeline"]

_lock = threading.Lock()
_recordings: list[list[Interval]] = []  # what each recording that goes on has so far

PIPELINES = ("host", "h2d", "fetch", "compute", "d2h", "peer")


class Interval(NamedTuple):
    """One operation that ran. Times in nanoseconds on the runtime's clock (``SPYRE_CLOCK``).

    Attributes:
        device: index of the device.
        pipeline: ``host``, ``h2d``, ``fetch``, ``compute``, ``d2h`` or ``peer``.
        stream: id of the stream.
        operation: its number in the order of submission, over all streams.
        label: what it was.
        start: when it began.
        end: when it had completed.
    """

    device: int
    pipeline: str
    stream: int
    operation: int
    label: str
    start: int
    end: int


@dataclass
class Timeline:
    """The intervals of one recording, ordered by start; filled when the recording ends."""

    intervals: list[Interval] = field(default_factory=list)

    def chrome_trace(self) -> dict[str, Any]:
        """The trace-event format that chrome://tracing and Perfetto read: a process per device, a thread per pipeline.

        Host callbacks run at the same time, so the host pipeline gets as many threads as it needs. Times are
        microseconds, as the format wants them (Trace Event Format, "complete events").
        """
        events: list[dict[str, Any]] = []
        free: dict[tuple[int, str], list[int]] = {}  # per device and pipeline: when each thread is free again
        for interval in self.intervals:
            lanes = free.setdefault((interval.device, interval.pipeline), [])
            lane = next((index for index, end in enumerate(lanes) if end <= interval.start), len(lanes))
            lanes[lane : lane + 1] = [interval.end]
            events.append(
                {
                    "name": interval.label,
                    "cat": interval.pipeline,
                    "ph": "X",
                    "ts": interval.start / 1000,
                    "dur": (interval.end - interval.start) / 1000,
                    "pid": interval.device,
                    "tid": _thread(interval.pipeline, lane),
                    "args": {"stream": interval.stream, "operation": interval.operation},
                }
            )
        names = [_name("process_name", device, 0, f"spyre:{device}") for device in sorted({key[0] for key in free})]
        for (device, pipeline), lanes in sorted(free.items()):
            for lane in range(len(lanes)):
                title = pipeline if lane == 0 else f"{pipeline} {lane + 1}"
                names.append(_name("thread_name", device, _thread(pipeline, lane), title))
        return {"traceEvents": names + events, "displayTimeUnit": "ns"}

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Writes :meth:`chrome_trace` as a JSON file.

        Args:
            path: the file to write; replaced if it exists.

        Raises:
            OSError: it can't be written.
        """
        Path(path).write_text(json.dumps(self.chrome_trace()))


def _thread(pipeline: str, lane: int) -> int:
    return PIPELINES.index(pipeline) * 1000 + lane


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


@contextmanager
def record_timeline() -> Iterator[Timeline]:
    """``with torch.spyre.record_timeline() as timeline:`` records what completes inside the block.

    Work that is still pending at the end of the block is not in it: synchronise first. Recordings may nest or
    overlap: each has all that completed while it went on.
    """
    timeline = Timeline()
    own: list[Interval] = []
    with _lock:
        if _recordings:
            _hand_out(_C.take_recording())
        else:
            _C.start_recording()
        _recordings.append(own)
    try:
        yield timeline
    finally:
        with _lock:
            _hand_out(_C.take_recording() if len(_recordings) > 1 else _C.stop_recording())
            _recordings[:] = [other for other in _recordings if other is not own]
        timeline.intervals = sorted(own, key=lambda interval: (interval.start, interval.operation))


def _hand_out(intervals: list[tuple[Any, ...]]) -> None:
    for recording in _recordings:
        recording.extend(Interval(*interval) for interval in intervals)
