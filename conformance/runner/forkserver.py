"""Workers as copies of one process that has imported everything already (C20).

Importing torch and its test library takes seconds, and every file, every crash and every hang asks for a new worker.
The fork server pays once. Where a backend does not survive the copy, workers start fresh, and the run says why.

Its socket carries one JSON object per packet: from the server ``{"ready": PROBLEM}`` once, then ``{"pid": PID}`` for
each request and ``{"ended": PID, "status": STATUS}`` for each worker; to it ``{"spec": PATH, "cwd": PATH}`` with the
descriptor of the worker's output.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.preload import PACKET
from conformance.runner.process import python
from conformance.runner.spec import Setup

FORK_LIMIT = 60.0
"""Seconds that a copy may take before the server counts as hung."""

OUTPUT = 4_096
"""Bytes of what the server printed last, to explain why it does not work."""


class ForkServerLost(Exception):
    """The server has ended, or does not answer; its workers are dead."""


class ForkServer:
    """The running server.

    Attributes:
        problem: why it cannot be used; ``""`` while that is not known.
        lost: it has ended, and the kernel has killed its workers.
    """

    def __init__(self, setup: Setup, environment: dict[str, str], log: Path, timeout: float) -> None:
        """Starts it; :meth:`ready` says when it can be used.

        Args:
            setup: names what to import.
            environment: of the server and of its workers.
            log: takes what it prints while it imports.
            timeout: seconds that importing may take.
        """
        self.problem = ""
        self.lost = False
        self._usable = False
        self._made: list[int] = []
        self._statuses: dict[int, int] = {}
        self._log = log
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                python("preload", str(theirs.fileno()), str(os.getpid()), setup.module, setup.device),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                pass_fds=(theirs.fileno(),),
            )

    def ready(self) -> bool:
        """Whether it is known if it can be used. Does not wait."""
        self._receive(0)
        if self.lost and not self._usable:
            self.problem = self.problem or f"it ended while it imported: {self._last_line()}"
        elif not self._usable and time.monotonic() > self._deadline:
            self.problem = self.problem or f"importing took longer than {self._timeout:g} s"
        return self._usable or bool(self.problem)

    def start(self, spec: Path, cwd: Path, output: int) -> ForkedProcess:
        """Makes a worker.

        Args:
            spec: of the worker.
            cwd: its working directory.
            output: descriptor of its stdout and stderr.

        Raises:
            ForkServerLost: there is no worker.
        """
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [json.dumps({"spec": str(spec), "cwd": str(cwd)}).encode()], [output])
        deadline = time.monotonic() + FORK_LIMIT
        while not self._made:
            self._receive(0.1)
            if self.lost or time.monotonic() > deadline:
                self.close()
                raise ForkServerLost
        return ForkedProcess(self, self._made.pop())

    def status(self, pid: int) -> int | None:
        """How a worker ended, as ``Popen.returncode`` says it; ``None`` while it runs. Does not wait."""
        self._receive(0)
        return self._statuses.get(pid, -signal.SIGKILL if self.lost else None)

    def _receive(self, seconds: float) -> None:
        """Takes what the server has sent.

        Args:
            seconds: to wait for the first packet.
        """
        while not self.lost and select.select([self._socket], [], [], seconds)[0]:
            try:
                data = self._socket.recv(PACKET)
            except ConnectionError:
                data = b""
            if not data:
                self.lost = True
                self._process.wait()
                return
            packet = json.loads(data)
            if "ready" in packet:
                self.problem = packet["ready"]
                self._usable = not self.problem
            elif "pid" in packet:
                self._made.append(packet["pid"])
            else:
                self._statuses[packet["ended"]] = packet["status"]
            seconds = 0

    def _last_line(self) -> str:
        text = self._log.read_bytes()[-OUTPUT:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self._process.returncode}, no output"

    def close(self) -> None:
        """Ends it, and with it every worker."""
        self.lost = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._log.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A worker of a fork server, to the supervisor what a ``subprocess.Popen`` is."""

    server: ForkServer
    pid: int

    @property
    def returncode(self) -> int | None:
        """As :meth:`poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it runs."""
        return self.server.status(self.pid)

    def wait(self) -> int:
        """Waits for its end."""
        while (status := self.poll()) is None:
            time.sleep(0.005)
        return status
