"""A throw-away PostgreSQL cluster for tests: own data directory, Unix socket only, gone with the process that made it.

Used by the tests of every part that stores things in SQL. It starts a server with the machine's own binaries rather
than ask for a running one, so that the tests pass from a fresh clone, as root, without services.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psycopg

_STARTUP_SECONDS = 60
_PR_SET_PDEATHSIG = 1
# A crash of the machine may destroy this cluster; nothing in it is worth an fsync.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "64MB",
}


class PostgresUnavailable(RuntimeError):
    """The server's programs are not on this machine, or the server did not start; the text says what to do."""


def find_binaries() -> Path:
    """Directory that holds ``initdb`` and ``postgres``.

    Raises:
        PostgresUnavailable: no PostgreSQL server is installed.
    """
    candidates = []
    if shutil.which("pg_config"):
        answer = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(answer.stdout.strip() or "/nonexistent"))
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        candidates.append(Path(directory or "."))
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    for directory in candidates:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise PostgresUnavailable(
        "PostgreSQL's server programs (initdb, postgres) are not on this machine: run `make setup-system`"
    )


class PostgresCluster:
    """One server with as many empty databases as the tests want.

    Use it as a context manager, usually in a session fixture::

        with PostgresCluster() as cluster, cluster.database() as url:
            engine = sqlalchemy.create_engine(url)

    Attributes:
        root: directory of data, socket and log; deleted by :meth:`stop`.
    """

    def __init__(self) -> None:
        self.root = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        # PostgreSQL refuses to run as root, so root lends the cluster to an unprivileged account.
        self._account = pwd.getpwuid(os.getuid())
        if os.getuid() == 0:
            known = {entry.pw_name: entry for entry in pwd.getpwall()}
            self._account = known.get("postgres") or known["nobody"]

    def __enter__(self) -> PostgresCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the cluster and wait until it answers.

        Raises:
            PostgresUnavailable: not installed, or it did not come up; the text carries the end of the server's log.
        """
        find_binaries()
        # Not pytest's tmp_path: a Unix socket's path may have 107 bytes at most, and its parents are closed to others.
        self.root = Path(tempfile.mkdtemp(prefix="pg-"))
        try:
            os.chown(self.root, self._account.pw_uid, self._account.pw_gid)
            with (self.root / "log").open("ab") as output:
                initdb = [find_binaries() / "initdb", "-D", self.root / "data", "-U", "test", "-A", "trust"]
                done = self._spawn([*map(str, initdb), "-E", "UTF8", "--locale=C", "--no-sync"], output).wait()
            if done != 0:
                raise PostgresUnavailable(f"PostgreSQL made no cluster; the end of its log:\n{self._log()}")
            self._serve()
        except BaseException:
            self.stop()
            raise

    def _serve(self) -> None:
        server = [str(find_binaries() / "postgres"), "-D", str(self.root / "data"), "-k", str(self.root)]
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with (self.root / "log").open("ab") as output:
            self._process = self._spawn(server + settings, output)
        if not self._answers():
            raise PostgresUnavailable(f"PostgreSQL did not start; the end of its log:\n{self._log()}")

    def _log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-2000:]

    def restart(self) -> None:
        """End the server as an administrator does, losing every connection, and start it again on the same data."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # "fast shutdown"
        self._process.wait()
        self._serve()

    def stop(self) -> None:
        """End the server and delete everything it wrote."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # "immediate shutdown": there is nothing to save
            self._process.wait()
            self._process = None
        shutil.rmtree(self.root, ignore_errors=True)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A new empty database; yields its SQLAlchemy URL (driver psycopg 3) and drops it afterwards."""
        self._databases += 1
        name = f"test{self._databases}"
        self._administer(f"CREATE DATABASE {name}")
        try:
            yield f"postgresql+psycopg://test@/{name}?host={self.root}"
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _administer(self, statement: str) -> None:
        with psycopg.connect(host=str(self.root), user="test", dbname="postgres", autocommit=True) as connection:
            connection.execute(statement.encode())

    def _spawn(self, command: list[str], output: object) -> subprocess.Popen[bytes]:
        as_other = {}
        if os.getuid() == 0:
            as_other = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.root,
            preexec_fn=_die_with_parent,
            **as_other,
        )

    def _answers(self) -> bool:
        deadline = time.monotonic() + _STARTUP_SECONDS
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            try:
                psycopg.connect(host=str(self.root), user="test", dbname="postgres").close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return True
        return False


def _die_with_parent() -> None:
    """Let the kernel end the server when the test process is killed and cannot."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
