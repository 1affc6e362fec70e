"""What is kept of earlier scans (C4): rows by content, and the last picture of each tree.

A file is looked up by what it holds, so a fresh checkout of a pull request scans only what the pull request changed.
The picture of a tree answers without reading a file, where path, size and modification time are those of the last
scan. Both are JSON: what a cache holds was perhaps written by a job that ran foreign code, and reading it runs none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from conformance.inventory.model import ClassRow, FileRow, Instantiation, MethodRow

FORMAT = 5
"""Raised whenever a row's meaning changes; older cache entries are then ignored."""

STALE = 90 * 86_400
"""Seconds after which a row that no scan asked for is forgotten."""

_STAMP = [FORMAT, *sys.version_info[:2]]
"""A newer Python may read what an older one called a syntax error."""


def _encode(row: FileRow) -> list[Any]:
    def methods(rows: list[MethodRow]) -> list[Any]:
        return [[m.name, m.line, m.takes_device, m.decorators, m.capabilities, m.devices, m.conditional] for m in rows]

    return [
        row.path, row.size, row.mtime_ns, row.error, row.imports, row.names,
        [
            [c.name, c.line, c.bases, c.decorators, c.own_label, c.label_error, methods(c.tests), c.label,
             c.label_from, c.mro, c.external]
            for c in row.classes
        ],
        methods(row.functions),
        [[i.cls, i.line, i.only_for, i.except_for] for i in row.instantiations],
        row.generates,
    ]  # fmt: skip


def _decode(data: list[Any]) -> FileRow:
    path, size, mtime_ns, error, imports, names, classes, functions, calls, generates = data
    return FileRow(
        path, size, mtime_ns, error, imports, names,
        [_class(*item) for item in classes],
        [MethodRow(*item) for item in functions],
        [Instantiation(*item) for item in calls],
        generates,
    )  # fmt: skip


def _class(name: str, line: int, bases: Any, decorators: Any, own: str, error: str, tests: Any, *rest: Any) -> ClassRow:
    return ClassRow(name, line, bases, decorators, own, error, [MethodRow(*item) for item in tests], *rest)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def content_key(path: str, content: bytes) -> str:
    """Name of a file's row: what the file holds, and where, because relative imports depend on it."""
    return hashlib.blake2b(_text([_STAMP, path]).encode() + b"\0" + content, digest_size=20).hexdigest()


class RowStore:
    """Rows by content, shared by all trees. A store that cannot be used holds nothing and takes nothing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.sqlite"

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=10)
        try:
            with connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS row (key TEXT PRIMARY KEY, used INTEGER, data TEXT) WITHOUT ROWID"
                )
                yield connection
        finally:
            connection.close()

    def get(self, keys: Iterable[str]) -> dict[str, FileRow]:
        """Rows that are there, by key."""
        wanted = list(keys)
        try:
            with self._open() as connection:
                found = connection.execute(
                    "SELECT key, data FROM row WHERE key IN (SELECT value FROM json_each(?))", (_text(wanted),)
                ).fetchall()
                connection.execute(
                    "UPDATE row SET used = ? WHERE used < ? AND key IN (SELECT value FROM json_each(?))",
                    (time.time(), time.time() - STALE / 4, _text(wanted)),
                )
            return {key: _decode(json.loads(data)) for key, data in found}
        except sqlite3.OperationalError:
            return {}  # locked, or a disk that does not answer: not damaged
        except (sqlite3.DatabaseError, ValueError, TypeError, IndexError):
            with contextlib.suppress(OSError):
                self._path.unlink()
            return {}
        except OSError:
            return {}

    def put(self, rows: dict[str, FileRow]) -> None:
        """Adds rows as they came from the scan, without what other files say of their classes."""
        now = time.time()
        with contextlib.suppress(sqlite3.Error, OSError), self._open() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO row VALUES (?, ?, ?)",
                [(key, now, _text(_encode(row))) for key, row in rows.items()],
            )
            connection.execute("DELETE FROM row WHERE used < ?", (now - STALE,))


class TreeCache:
    """The last picture of one tree."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._path = folder / f"tree-{hashlib.sha256(os.fsencode(root)).hexdigest()[:24]}.json"

    def read(self) -> dict[str, FileRow]:
        """Rows by path; anything unreadable is no cache."""
        try:
            stamp, rows = json.loads(self._path.read_bytes())
            return {row[0]: _decode(row) for row in rows} if stamp == _STAMP else {}
        except (OSError, ValueError, TypeError, IndexError, RecursionError):
            return {}

    def write(self, rows: Iterable[FileRow]) -> None:
        """Replaces the picture. A full or read-only cache folder costs time, not truth."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self._path.parent, delete=False) as stream:
                stream.write(_text([_STAMP, [_encode(row) for row in rows]]))
            Path(stream.name).replace(self._path)
