"""The ledger: every call that the server got, in order, as JSON lines in the data directory.

Memory holds what a search needs and where the line is; the bodies, which may be large, stay in the file.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

KEEP = 200_000
"""Entries that can be searched; the file has all."""


@dataclass
class Entry:
    """One call. Credentials are never part of it; ``auth`` says only what kind came with the call.

    ``id`` grows in the order in which calls ended, so that reading on after the last one seen misses none.
    """

    id: int
    time: float
    method: str
    path: str
    query: str
    repository: str | None
    auth: str
    status: int = 0
    duration_ms: float = 0.0
    fault: int | None = None


class Ledger:
    """Appends and finds entries. An entry is written when its call is over."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._file).st_size
        self._entries: deque[tuple[Entry, int, int]] = deque(maxlen=KEEP)
        self._next = 1

    def begin(self, method: str, path: str, query: str, repository: str | None, auth: str) -> Entry:
        """Start an entry; give it to :meth:`end` when the call is over."""
        return Entry(0, time.time(), method, path, query, repository, auth)

    def end(self, entry: Entry, body: bytes = b"") -> None:
        """Append a finished entry.

        Args:
            body: of the request; kept if it is JSON.
        """
        entry.id = self._next
        self._next += 1
        entry.duration_ms = round((time.time() - entry.time) * 1000, 3)
        head = json.dumps(asdict(entry), separators=(",", ":"))
        line = head[:-1].encode() + b',"body":' + _one_line(body) + b"}\n"
        os.write(self._file, line)
        self._entries.append((entry, self._size, len(line)))
        self._size += len(line)

    def find(
        self,
        method: str | None = None,
        path: str | None = None,
        repository: str | None = None,
        status: int | None = None,
        after: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Entries with their bodies, in order. ``path`` and ``repository`` are shell patterns, ``after`` is an id."""
        for entry, offset, length in self._entries:
            if (
                entry.id > after
                and (method is None or entry.method == method.upper())
                and (path is None or fnmatchcase(entry.path, path))
                and (repository is None or fnmatchcase((entry.repository or "").lower(), repository.lower()))
                and (status is None or entry.status == status)
            ):
                found: dict[str, Any] = json.loads(os.pread(self._file, length, offset))
                yield found

    def clear(self) -> None:
        """Forget the entries so far; the file keeps them."""
        self._entries.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _one_line(body: bytes) -> bytes:
    if not body:
        return b"null"
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return b"null"
    return json.dumps(value, separators=(",", ":")).encode() if b"\n" in body or b"\r" in body else body
