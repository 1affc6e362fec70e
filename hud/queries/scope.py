"""What every question needs: a connection, the time, the configuration, and memories of costly answers."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from hud.allowlist import Expected
from hud.core.snapshot import Results, Roster, Snapshot, unpack_outcomes
from hud.store.batches import batches
from hud.store.tables import roster, snapshot, test

T = TypeVar("T")

_BATCH = 500
_MANY = 20_000
"""From so many unknown tests on, reading all that lie between them is quicker than asking for each."""


class Memory:
    """The latest answers to questions whose answer cannot change, because the key names revisions.

    Attributes:
        size: how much is kept, as ``weigh`` says of each answer; by default, how many answers.
    """

    def __init__(self, size: int, weigh: Callable[[Any], int] = lambda _: 1) -> None:
        self.size = size
        self._weigh = weigh
        self._weight = 0
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
            if key in self._known:
                return self._known[key]  # type: ignore[no-any-return]
            self._known[key] = answer
            self._weight += self._weigh(answer)
            while self._weight > self.size and len(self._known) > 1:
                self._weight -= self._weigh(self._known.popitem(last=False)[1])
        return answer


class Memories:
    """What outlives a reader's view: costly answers, and what is known of tests, which never changes.

    Attributes:
        rosters: by number.
        results: by run and revision.
        answers: verdicts and the like. Those on 10 pull requests of 100 backends take some two millions; once they do
            not fit, each page forgets what the next one asks for.
        matrices: operators by dtypes; apart, because those of 100 backends would push out every verdict.
        points: commits in trends.
        catalog: families and cells of tests.
    """

    def __init__(self) -> None:
        self.rosters = Memory(16_000_000, len)
        self.results = Memory(128_000_000, len)
        self.matrices = Memory(12_000_000, lambda table: int(table.weight))
        self.points = Memory(100_000)
        self.answers = Memory(6_000_000, lambda answer: 50 + getattr(answer, "weight", 0))
        self.catalog = Catalog()


class Catalog:
    """Family and cell of each test as small numbers, learned when they are first asked for.

    A million tests take 8 MB here, where their texts would take hundreds.
    """

    def __init__(self) -> None:
        self.cells: list[tuple[str, str]] = [("", "")]
        self._families: dict[tuple[str, str, str, str], int] = {}
        self._cell_numbers: dict[tuple[str, str], int] = {("", ""): 0}
        self._family_of = array("I")
        self._cell_of = array("I")
        self._lock = threading.Lock()

    def families(self, connection: sa.Connection, numbers: Sequence[int]) -> list[int]:
        """The family of each test, as a number."""
        self._learn(connection, numbers)
        return [self._family_of[number] for number in numbers]

    def cells_of(self, connection: sa.Connection, numbers: Sequence[int]) -> list[int]:
        """The cell (operator and dtype) of each test, as an index into ``cells``."""
        self._learn(connection, numbers)
        return [self._cell_of[number] for number in numbers]

    def _learn(self, connection: sa.Connection, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        with self._lock:
            short = max(numbers) + 1 - len(self._family_of)
            if short > 0:
                self._family_of.extend([0] * short)
                self._cell_of.extend([0] * short)
            known = self._family_of
            unknown = [number for number in numbers if not known[number]]
            columns = sa.select(test.c.id, test.c.file, test.c.cls, test.c.test, test.c.op, test.c.dtype)
            if len(unknown) > _MANY:
                self._take(connection.execute(columns.where(test.c.id.between(min(unknown), max(unknown)))))
            else:
                for batch in batches(unknown, _BATCH):
                    self._take(connection.execute(columns.where(test.c.id.in_(batch))))

    def _take(self, rows: Iterable[sa.Row[Any]]) -> None:
        families, cells = self._families, self._cell_numbers
        for number, file, cls, name, op, dtype in map(tuple, rows):
            if number >= len(self._family_of):
                continue
            cell = cells.get((op, dtype))
            if cell is None:
                cell = cells[op, dtype] = len(self.cells)
                self.cells.append((op, dtype))
            self._family_of[number] = families.setdefault((file, cls, name, op), len(families) + 1)
            self._cell_of[number] = cell


@dataclass(frozen=True)
class Scope:
    """One reader's view of the store.

    Attributes:
        connection: in a read transaction.
        now: seconds since the epoch.
        stuck_after: seconds after which a job in progress is stuck.
        expected: backends that should report.
        memories: what outlives the scope.
        names: stored names of tests that were looked up, by number.
    """

    connection: sa.Connection
    now: float
    stuck_after: float
    expected: tuple[Expected, ...] = ()
    memories: Memories = field(default_factory=Memories)
    names: dict[int, str] = field(default_factory=dict)

    def rows(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """All rows of a query."""
        return list(self.connection.execute(query))

    def results(self, run_number: int, revision: int) -> Results:
        """How every test of a run ended; empty where it has no results."""

        def load() -> Results:
            query = sa.select(snapshot.c.roster_id, snapshot.c.outcomes).where(snapshot.c.run_id == run_number)
            found = self.connection.execute(query).one_or_none()
            return Results() if found is None else unpack_outcomes(self._roster(found.roster_id), found.outcomes)

        return self.memories.results.get((run_number, revision), load)

    def snapshot(self, run_number: int) -> Snapshot:
        """Everything known of the tests of a run; empty where it has no results."""
        found = self.connection.execute(sa.select(snapshot).where(snapshot.c.run_id == run_number)).one_or_none()
        if found is None:
            return Snapshot()
        return Snapshot.unpack(self._roster(found.roster_id), found.outcomes, found.durations, found.notes)

    def _roster(self, number: int) -> Roster:
        """A roster by number, one object as long as it is remembered: runs that share it are compared quickly."""

        def load() -> Roster:
            query = sa.select(roster.c.data).where(roster.c.id == number)
            return Roster.unpack(self.connection.execute(query).scalar_one())

        return self.memories.rosters.get(number, load)
