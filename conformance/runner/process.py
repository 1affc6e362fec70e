"""One worker process under supervision: start, follow, deadline, stack dump, group kill (C21, C22)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from conformance.runner.journal import JournalReader
from conformance.runner.spec import Unit

TAIL = 16_384
"""Bytes of a worker's output that are kept; what a dying process said last explains its death."""

DRAIN = 1 << 20
"""Bytes read from a worker's pipe at most per visit, so that endless output slows its writer and not the supervisor."""

EXIT_GRACE = 20.0
"""Seconds between the end of a session and the end of its process."""

STACK_GRACE = 1.0
"""Seconds that a stack dump may take before the group is killed."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# The package's folder goes to the end of the path: it may hold top-level names that a test tree also uses.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.append({root!r}); "
    "from conformance.runner.{module} import main; sys.exit(main(*sys.argv[1:]))"
)


class Process(Protocol):
    """A started process, of ``subprocess`` or of a fork server; it leads a session and a group of its own."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def returncode(self) -> int | None:
        """Exit status as of the last look, negative for a signal; ``None`` before the end."""

    def poll(self) -> int | None:
        """Exit status, ``None`` while it runs."""

    def wait(self) -> int:
        """Waits for its end."""


def python(module: str, *arguments: str) -> list[str]:
    """A command that calls ``main`` of a module of this package in a fresh process.

    Args:
        module: name below ``conformance.runner``.
        arguments: of ``main``.
    """
    return [sys.executable, "-c", _START.format(root=str(_PACKAGE_ROOT), module=module), *arguments]


def start_fresh(spec: Path, cwd: Path, output: int, environment: dict[str, str]) -> Process:
    """Starts a worker that imports everything itself.

    Args:
        spec: of the worker.
        cwd: its working directory.
        output: descriptor of its stdout and stderr.
        environment: all of it.
    """
    return subprocess.Popen(
        python("worker", str(spec)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env=environment,
        cwd=cwd,
    )


class WorkerProcess:
    """A running worker.

    Attributes:
        unit: what it was given.
        current: id of the test that is running, ``""`` between tests.
        collecting: file that is being imported, ``""`` outside collection.
        collected: collection is over.
        finished: the session reached its end.
        exited: status of a ``sys.exit`` during collection, ``None`` without one.
        status: pytest's exit status, ``None`` before the end of the session.
        since: ``time.monotonic`` at the last event.
    """

    def __init__(
        self, unit: Unit, spec: Path, journal: Path, stacks: Path, start: Callable[[Path, Path, int], Process]
    ) -> None:
        """Starts it.

        Args:
            unit: what it is given.
            spec, journal, stacks: its files.
            start: makes the process, from the spec, the working directory and the descriptor of its output.
        """
        self.unit = unit
        self.current = ""
        self.collecting = ""
        self.collected = False
        self.finished = False
        self.exited: str | None = None
        self.status: int | None = None
        self.since = time.monotonic()
        self._tail = bytearray()
        self._reader = JournalReader(journal)
        self._paths = (spec, journal, stacks)
        self._stacks = stacks
        self._pipe, output = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = start(spec, unit.root.cwd, output)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(output)

    def fileno(self) -> int:
        """Of the output pipe, for ``select``."""
        return self._pipe

    def drain(self) -> bool:
        """Reads output that is there.

        Returns:
            False when every writer has closed the pipe.
        """
        with contextlib.suppress(BlockingIOError):
            for _ in range(DRAIN // 65_536):
                data = os.read(self._pipe, 65_536)
                if not data:
                    return False
                self._tail += data
                del self._tail[:-TAIL]
        return True

    def events(self) -> Iterator[dict[str, Any]]:
        """New journal events; keeps the state attributes."""
        for event in self._reader.read():
            self.since = event["t"]
            kind = event["e"]
            if kind == "collecting":
                self.collecting = event["path"]
            elif kind == "collected":
                self.collected, self.collecting = True, ""
            elif kind == "start":
                self.current = event["id"]
            elif kind == "end":
                self.current = ""
            elif kind == "finished":
                # Interrupted (2), internal error (3) and usage error (4) are no end that a session reaches by itself.
                self.finished = event["status"] in (0, 1, 5)
                self.status = event["status"]
            elif kind == "exited":
                self.exited = event["status"]
            yield event

    def poll(self) -> int | None:
        """Exit status, ``None`` while it runs."""
        return self._process.poll()

    def idle_seconds(self) -> float:
        """Since the last event."""
        return time.monotonic() - self.since

    def dump_stacks(self) -> str:
        """Python stacks of all threads of a worker that hangs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_GRACE
        text = ""
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                new = self._stacks.read_text(errors="replace")
                if new and new == text:
                    break
                text = new
            self.drain()
            time.sleep(0.05)
        return text

    def kill(self) -> None:
        """Ends the worker and every process of its group that a test left running."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.poll() is None:
            # A copy that has not come to lead its group yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kills what is left of the group and removes the files of the worker."""
        self.kill()
        self.drain()
        os.close(self._pipe)
        for path in self._paths:
            path.unlink(missing_ok=True)

    def tail(self) -> str:
        """The last output."""
        return self._tail.decode(errors="replace")

    def describe_exit(self) -> str:
        """How the process ended, in words."""
        status = self._process.returncode
        if self.status is not None and not self.finished:
            return f"pytest ended the session early with status {self.status}"
        if status is not None and status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = f"signal {-status}"
            hint = " (also what the kernel sends when memory runs out)" if status == -signal.SIGKILL else ""
            return f"the worker process was ended by {name}{hint}"
        return f"the worker process ended with status {status} before its session did"
