"""Processes of jobs: how they are found and ended, whatever they did to get away.

GitHub's runner marks a job's processes with ``RUNNER_TRACKING_ID`` and ends what is left of them after the job; the
same mark serves here for cancellation, for shutdown, and for the guard, a process that outlives a killed server just
long enough to end its jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRACKING_VARIABLE = "RUNNER_TRACKING_ID"


def tracked(prefix: str) -> list[int]:
    """Ids of the running processes whose tracking id starts with ``prefix`` (Linux: read from ``/proc``)."""
    mark = f"{TRACKING_VARIABLE}={prefix}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if any(item.startswith(mark) for item in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def kill_tracked(prefix: str, attempts: int = 20) -> int:
    """Kill every tracked process, again until none is left (a killed parent may have just started a child).

    Returns:
        How many were killed.
    """
    killed: set[int] = set()
    for _ in range(attempts):
        found = tracked(prefix)
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that ``pid`` leads; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class Guard:
    """A child that waits for the server's end on a pipe and then kills every process tracked with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, prefix],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """Let it do its work and wait for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)


def main() -> None:
    """The guard's own process: read until the other end is closed, by whatever cause."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_tracked(sys.argv[1])


if __name__ == "__main__":
    main()
