"""What every question needs: a connection, the time, the configuration, and memories of costly answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from hud.allowlist import Expected
from hud.core.snapshot import Snapshot
from hud.store.tables import snapshot

T = TypeVar("T")


class Memory:
    """The latest answers to questions whose answer cannot change, because the key names revisions.

    Attributes:
        size: how many answers are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The answer, made now if it is not remembered."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]  # type: ignore[no-any-return]
        answer = make()
        with self._lock:
            self._known[key] = answer
            while len(self._known) > self.size:
                self._known.popitem(last=False)
        return answer


@dataclass(frozen=True)
class Scope:
    """One reader's view of the store.

    Attributes:
        connection: in a read transaction.
        now: seconds since the epoch.
        stuck_after: seconds after which a job in progress is stuck.
        expected: backends that should report.
        snapshots, judgements: memories that outlive the scope.
    """

    connection: sa.Connection
    now: float
    stuck_after: float
    expected: tuple[Expected, ...] = ()
    snapshots: Memory = field(default_factory=lambda: Memory(64))
    judgements: Memory = field(default_factory=lambda: Memory(4096))

    def rows(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """All rows of a query."""
        return list(self.connection.execute(query))

    def snapshot(self, run_number: int, revision: int) -> Snapshot:
        """The results of a run; empty where it has none."""

        def load() -> Snapshot:
            data = self.connection.execute(
                sa.select(snapshot.c.data).where(snapshot.c.run_id == run_number)
            ).scalar_one_or_none()
            return Snapshot.unpack(data) if data is not None else Snapshot()

        return self.snapshots.get((run_number, revision), load)
