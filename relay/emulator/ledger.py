"""The ledger: every call that the server got, in order, in memory and as JSON lines in the data directory."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

KEEP = 20_000
"""Entries kept in memory; the file has all."""


@dataclass
class Entry:
    """One call. Credentials are never part of it; ``auth`` says only what kind came with the call."""

    id: int
    time: float
    method: str
    path: str
    query: str
    repository: str | None
    auth: str
    body: Any = None
    status: int = 0
    duration_ms: float = 0.0
    fault: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Ledger:
    """Appends and finds entries. An entry is written when its call is over."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = file.open("a", encoding="utf-8", buffering=1)
        self._entries: deque[Entry] = deque(maxlen=KEEP)
        self._next = 1

    def begin(self, method: str, path: str, query: str, repository: str | None, auth: str) -> Entry:
        """Start an entry; give it to :meth:`end` when the call is over."""
        entry = Entry(self._next, time.time(), method, path, query, repository, auth)
        self._next += 1
        return entry

    def end(self, entry: Entry) -> None:
        """Append a finished entry."""
        entry.duration_ms = round((time.time() - entry.time) * 1000, 3)
        self._entries.append(entry)
        self._file.write(json.dumps(asdict(entry), separators=(",", ":"), default=str) + "\n")

    def find(
        self,
        method: str | None = None,
        path: str | None = None,
        repository: str | None = None,
        status: int | None = None,
        after: int = 0,
    ) -> Iterator[Entry]:
        """Entries in order. ``path`` and ``repository`` are shell patterns, ``after`` is an entry's id."""
        for entry in self._entries:
            if (
                entry.id > after
                and (method is None or entry.method == method.upper())
                and (path is None or fnmatchcase(entry.path, path))
                and (repository is None or fnmatchcase((entry.repository or "").lower(), repository.lower()))
                and (status is None or entry.status == status)
            ):
                yield entry

    def clear(self) -> None:
        """Forget the entries in memory; the file keeps them."""
        self._entries.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
