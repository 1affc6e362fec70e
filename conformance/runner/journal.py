"""The worker's journal: one JSON line per event, written before and after every test (C21).

A line is handed to the kernel in one ``write``, so it survives any death of the process; only a dying machine can
lose it. Events (key ``e``): ``ready`` · ``collecting`` (``path``) · ``item`` (a test and its decision) · ``result``
(not executed) · ``file`` (result of a file as a whole) · ``collected`` · ``start`` (``id``) · ``end`` (``result``) ·
``finished``.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JournalWriter:
    """Appends events; survives tests that close every descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._inode = os.fstat(self._descriptor).st_ino

    def write(self, event: str, **fields: Any) -> None:
        """Writes one event with the time of ``time.monotonic``, which all processes of a machine share.

        A forked child of a test that runs on into pytest's code writes nothing: the journal is the worker's.
        """
        if os.getpid() != self._pid:
            return
        line = json.dumps({"e": event, "t": time.monotonic(), **fields}, ensure_ascii=True, separators=(",", ":"))
        data = line.encode() + b"\n"
        try:
            # A test may have closed the descriptor and opened something else under its number.
            if os.fstat(self._descriptor).st_ino != self._inode:
                self._open()
            os.write(self._descriptor, data)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            self._open()
            os.write(self._descriptor, data)


class JournalReader:
    """Follows a journal that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """Complete events since the last call; a torn last line waits for its rest."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
