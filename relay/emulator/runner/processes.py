"""Processes of jobs: how they are found and ended, whatever they did to get away.

GitHub's runner marks a job's processes with ``RUNNER_TRACKING_ID`` and ends what is left of them after the job; the
same mark serves here for cancellation, for shutdown, and for the guard, a process that outlives a killed server just
long enough to end its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TRACKING_VARIABLE = "RUNNER_TRACKING_ID"
_MAX_LINE = 256 * 1024


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


class ProcessGroup:
    """One step's process, the leader of a session of its own, and everything it starts.

    Args:
        arguments: the command line; its first part is a path.
        lines: gets the output, line by line, standard error among standard output.
    """

    def __init__(
        self, arguments: list[str], directory: Path, env: dict[str, str], lines: Callable[[list[str]], None]
    ) -> None:
        self._arguments = arguments
        self._directory = directory
        self._env = env
        self._lines = lines
        self._reader: asyncio.Task[None] | None = None

    async def run(self, interrupt: asyncio.Event, deadline: float, grace: Callable[[], float]) -> int:
        """Run to the end, or end it: when ``interrupt`` is set, at ``deadline``, or when this task is cancelled.

        Args:
            deadline: in the event loop's time; infinite for none.
            grace: seconds from SIGINT to SIGTERM; a third of it goes by until SIGKILL. Asked when it is needed.

        Returns:
            The exit status; 128 + n after signal n, as a shell says it.
        """
        # A pipe of our own: asyncio waits for the end of its pipes, which a background process may keep open.
        receiver, sender = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments,
                cwd=self._directory,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sender,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(receiver)
            raise
        finally:
            os.close(sender)
        self._reader = asyncio.create_task(self._read(receiver))
        waiter = asyncio.create_task(process.wait())
        interrupted = asyncio.create_task(interrupt.wait())
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(
                {waiter, interrupted},
                timeout=None if math.isinf(left) else max(left, 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not waiter.done():
                for number, share in ((signal.SIGINT, 1.0), (signal.SIGTERM, 1 / 3)):
                    if (seconds := grace() * share) > 0 and not waiter.done():
                        signal_group(process.pid, number)
                        await asyncio.wait({waiter}, timeout=seconds)
                signal_group(process.pid, signal.SIGKILL)
        finally:
            if not waiter.done():
                # This task itself is being cancelled: no time for a polite end.
                signal_group(process.pid, signal.SIGKILL)
            interrupted.cancel()
            status = await waiter
            # A background process may hold the pipe; its output is still taken, but nobody waits for it.
            await asyncio.wait({self._reader}, timeout=1)
        return status if status >= 0 else 128 - status

    async def _read(self, receiver: int) -> None:
        stream, pending = asyncio.StreamReader(), b""
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(receiver, "rb", buffering=0)
        )
        try:
            while data := await stream.read(65536):
                *whole, pending = (pending + data).split(b"\n")
                if len(pending) > _MAX_LINE:
                    whole, pending = [*whole, pending], b""
                self._lines([item.decode(errors="replace").rstrip("\r") for item in whole])
            if pending:
                self._lines([pending.decode(errors="replace")])
        finally:
            transport.close()

    async def close(self) -> None:
        """Stop taking output."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)


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
