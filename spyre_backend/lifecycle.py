"""The end of the process: devices are drained before the interpreter goes away."""

from __future__ import annotations

import atexit
import time

from spyre_backend import _C


def _finish() -> None:
    _C.stop_eager_compiler()
    if not _C.started():
        return
    _C.shut_down()
    # After a backward pass an autograd thread may still be about to release its last Python object. It needs the GIL
    # for that, which finalisation will not give back (pytorch#190489): give it up for a moment while it is still ours.
    time.sleep(0.01)


def install() -> None:
    """Registers the end. Called once."""
    atexit.register(_finish)
