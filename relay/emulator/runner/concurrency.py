"""Concurrency groups ("Control the concurrency of workflows and jobs")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Member:
    """A run or job that holds, or waits for, a concurrency group."""

    cancel: Callable[[], None]
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Groups:
    """Concurrency groups: one member runs, at most one waits, a newer one takes the waiting one's place."""

    def __init__(self) -> None:
        self._running: dict[str, Member] = {}
        self._waiting: dict[str, Member] = {}

    def enter(self, name: str, member: Member, cancel_in_progress: bool) -> None:
        """Take the group, or wait for it; ``member.ready`` is set when it is taken."""
        if name not in self._running:
            self._running[name] = member
            member.ready.set()
            return
        if name in self._waiting:
            self._waiting[name].cancel()
        self._waiting[name] = member
        if cancel_in_progress:
            self._running[name].cancel()

    def leave(self, name: str, member: Member) -> None:
        """Give the group, or the place in front of it, back."""
        if self._waiting.get(name) is member:
            del self._waiting[name]
        if self._running.get(name) is member:
            del self._running[name]
            if name in self._waiting:
                self._running[name] = self._waiting.pop(name)
                self._running[name].ready.set()
