"""Server processes that start together, are watched together and leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

READY_SECONDS = 60.0
STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1  # prctl(2)


class DemoError(Exception):
    """Something the person at the terminal has to know or change; the text is for them."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Ask the kernel to end this child when the demo is killed too hard to do it itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Service:
    """One server: how to start it, where it says that it is ready, where its words go.

    Attributes:
        name: for messages and the log's file name.
        command: argument vector.
        url: base address that it will listen on.
        ready: path that answers 200 once it serves.
        env: complete environment of the process.
        log: file that receives stdout and stderr.
    """

    name: str
    command: Sequence[str]
    url: str
    ready: str
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process in a group of its own."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(self.env),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def check(self) -> None:
        """Raise if the process has ended: nothing in the demo ends a server while it is needed."""
        if self.process is not None and self.process.poll() is not None:
            raise DemoError(
                f"{self.name} stopped unexpectedly (exit {self.process.returncode}). "
                f"The end of {self.log}:\n{self.tail()}"
            )

    def wait_ready(self) -> None:
        """Wait until the server answers on its ready path."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            self.check()
            try:
                if httpx.get(self.url + self.ready, timeout=2.0).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise DemoError(f"{self.name} does not answer at {self.url}{self.ready}. The end of {self.log}:\n{self.tail()}")

    def stop(self) -> None:
        """Ask the process to end, then end its whole group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log, indented for a message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join("    " + line for line in text.splitlines()[-lines:])


class Services:
    """All servers of one demo, as a context that stops whatever it started, in reverse order."""

    def __init__(self) -> None:
        self._services: list[Service] = []

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for service in reversed(self._services):
            service.stop()

    def start(self, *services: Service) -> None:
        """Start servers side by side and wait until every one of them serves."""
        for service in services:
            self._services.append(service)
            service.start()
        for service in services:
            service.wait_ready()

    def check(self) -> None:
        """Raise :class:`DemoError` if one of them has ended."""
        for service in self._services:
            service.check()
