"""Which backends are expected to report: a reader for the relay's allowlist (spec/relay.md 1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import yaml

from relay.wire import Level

_log = structlog.get_logger()


@dataclass(frozen=True)
class Expected:
    """One backend of the allowlist."""

    repo: str
    level: Level


@dataclass
class Allowlist:
    """The file as it was last read without error; it is read again when it changes.

    Attributes:
        path: the file, or ``None`` where no backend is expected in particular.
        error: why the present content of the file is not in use, if so.
    """

    path: Path | None
    error: str | None = None
    _stamp: tuple[int, int] | None = None
    _backends: tuple[Expected, ...] = field(default=())

    def backends(self) -> tuple[Expected, ...]:
        """The backends whose results come to HUD: levels L2 to L4, in the order of the file."""
        if self.path is None:
            return ()
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._stamp = stamp
                self._backends = tuple(read(yaml.safe_load(self.path.read_text(encoding="utf-8"))))
                self.error = None
        except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
            if self.error is None:
                _log.warning("allowlist.unreadable", path=str(self.path), error=str(error))
            self.error = f"{self.path}: {error}"
        return self._backends


def read(document: Any) -> Iterator[Expected]:
    """Backends of L2 to L4 in a parsed allowlist.

    Raises:
        ValueError: it has not the form of an allowlist.
    """
    if not isinstance(document, dict):
        raise ValueError("the allowlist is not a mapping of levels")
    levels: tuple[Level, ...] = ("L2", "L3", "L4")
    for level in levels:
        for repo in _repositories(level, document.get(level)):
            yield Expected(repo, level)


def _repositories(level: Level, items: Any) -> Iterator[str]:
    if items is None:
        return
    if level == "L3" and isinstance(items, dict):
        for repositories in items.values():
            yield from _repositories("L2", repositories)
        return
    for item in items if isinstance(items, (list, dict)) else [items]:
        names = item if isinstance(item, dict) else [item]
        for name in names:
            if not isinstance(name, str) or name.count("/") != 1:
                raise ValueError(f"{level}: {name!r} is not owner/repository")
            yield name
