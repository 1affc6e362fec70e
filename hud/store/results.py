"""Storing the per-test results of a run.

The lines of an upload are collected in memory (a million tests take some 600 MB for a moment), names become numbers in
short transactions of their own, and one last transaction puts the run's snapshot and failures in place: a reader sees
all of an upload or nothing, and an upload that broke off has changed nothing that anyone can see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hud.core.fingerprints import fingerprint
from hud.core.lines import Collector, Failure, Identity
from hud.core.outcomes import CODE, NOT_THERE
from hud.core.snapshot import Roster, Snapshot
from hud.core.text import clean
from hud.store.batches import batches
from hud.store.engine import Store
from hud.store.history import enter, leave
from hud.store.reports import backend_of
from hud.store.tables import backend, detail, failure, roster, run, snapshot, test
from hud.store.upsert import insert_or_ignore
from relay.wire.ticket import Ticket

_BATCH = 500
_MAX_REMEMBERED = 1_000_000
_CPU: dict[str, int] = {**dict(CODE.items()), NOT_THERE: -1}


class UnknownRun(LookupError):
    """No run has this key, and no ticket says whose it would be."""


@dataclass(frozen=True)
class Part:
    """Which piece of a run's results an upload is.

    Attributes:
        number: from 1.
        of: how many there are.
    """

    number: int = 1
    of: int = 1


@dataclass(frozen=True)
class Accepted:
    """What an upload left in the store."""

    key: str
    tests: int
    results: str
    parts: list[int]
    cuts: dict[str, int]


def announce(store: Store, key: str, ticket: Ticket | None, now: float) -> str | None:
    """Make sure that the run exists before its results are read; a ticket may come before the run's first report.

    Returns:
        The backend's device, ``None`` while it is unknown.

    Raises:
        UnknownRun: the key is unknown and there is no ticket.
    """
    device = sa.select(backend.c.device).join(run, run.c.backend_id == backend.c.id).where(run.c.key == key)
    with store.read() as connection:
        found = connection.execute(device).one_or_none()
    if found is not None:
        return found.device  # type: ignore[no-any-return]
    if ticket is None:
        raise UnknownRun(f"no run has the key {key}: send its report first, or use the ticket of the relay's answer")
    with store.write() as connection:
        row = {
            "key": key,
            "backend_id": backend_of(connection, ticket.repo, ticket.level, now),
            "delivery_id": clean(ticket.delivery_id),
            "run_id": clean(ticket.run_id),
            "attempt": ticket.run_attempt,
            "level": ticket.level,
            "status": "announced",
            "first_seen": now,
            "updated": now,
        }
        insert_or_ignore(connection, run, [row])
        return connection.execute(device).scalar_one()  # type: ignore[no-any-return]


def record_results(store: Store, key: str, collected: Collector, part: Part, now: float) -> Accepted:
    """Put collected results in the store; they replace what came before, save the other parts of the same results.

    Args:
        store: where.
        key: the run's, announced before.
        collected: every line of the upload.
        part: which piece of the run's results this is.
        now: seconds since the epoch.

    Raises:
        UnknownRun: the run was pruned since it was announced.
    """
    found = list(collected.results())
    numbers = number_tests(store, [name for name, _, _ in found], collected.identity)
    entries = {number: entry for number, (_, entry, _) in zip(numbers, found, strict=True)}
    failures = {number: words for number, (_, _, words) in zip(numbers, found, strict=True) if words is not None}
    fresh, notes_cut = Snapshot.build(entries)
    details = number_details(store, failures)
    cuts = dict(collected.cuts)
    if notes_cut:
        cuts["reason"] = cuts.get("reason", 0) + 1
    with store.write() as connection:
        row = connection.execute(sa.select(run).where(run.c.key == key)).one_or_none()
        if row is None:
            raise UnknownRun(f"the run {key} was pruned meanwhile: send its report first")
        details |= _number_details(connection, _gone(connection, failures, details))
        whole, parts = fresh, [part.number]
        # A part is added to the others of as many; results in one part, or in another number of parts, are new ones.
        added = part.of > 1 and part.of == row.parts_of and row.results in ("partial", "complete")
        if added:
            whole = load_snapshot(connection, row.id).merged(fresh)
            parts = sorted({*(row.parts or []), part.number})
            for kind, count in (row.cuts or {}).items():
                cuts[kind] = cuts.get(kind, 0) + count if part.number not in (row.parts or []) else count
        leave(connection, row.id)
        results = "complete" if parts == list(range(1, part.of + 1)) else "partial"
        put_results(connection, row.id, whole, failures, details, replaced=fresh.ids if added else None)
        connection.execute(
            run.update()
            .where(run.c.id == row.id)
            .values(
                results=results,
                totals=whole.totals(),
                cuts=cuts,
                parts=parts,
                parts_of=part.of,
                profile=collected.profile or row.profile,
                updated=now,
                revision=row.revision + 1,
            )
        )
        if collected.device:
            mine = (backend.c.id == row.backend_id) & backend.c.device.is_(None)
            connection.execute(backend.update().where(mine).values(device=collected.device))
        enter(connection, row.id)
    return Accepted(key, len(whole), results, parts, cuts)


def load_snapshot(connection: sa.Connection, run_number: int) -> Snapshot:
    """Everything known of the tests of a run; empty where it has no results."""
    query = sa.select(snapshot, roster.c.data).join(roster, roster.c.id == snapshot.c.roster_id)
    found = connection.execute(query.where(snapshot.c.run_id == run_number)).one_or_none()
    if found is None:
        return Snapshot()
    return Snapshot.unpack(Roster.unpack(found.data), found.outcomes, found.durations, found.notes)


def _roster_of(connection: sa.Connection, tests: Roster) -> int:
    data = tests.pack()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    known = sa.select(roster.c.id).where(roster.c.digest == digest)
    number = connection.execute(known).scalar_one_or_none()
    if number is None:
        insert_or_ignore(connection, roster, [{"digest": digest, "data": data}])
        number = connection.execute(known).scalar_one()
    return int(number)


def number_tests(store: Store, names: Sequence[str], identity: Callable[[str], Identity]) -> list[int]:
    """Numbers of tests, in order; new tests get one, in that order too.

    Args:
        store: where; it remembers numbers, which never change, so that most uploads ask the database nothing.
        names: of the tests.
        identity: the rest of what names a test; asked for those that are new.
    """
    if len(store.test_numbers) > _MAX_REMEMBERED:
        store.test_numbers = {}
    numbers, found = store.test_numbers, dict[bytes, int]()
    digests = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in names]
    unknown = {digest: name for digest, name in zip(digests, names, strict=True) if digest not in numbers}
    with store.read() as connection:
        for batch in batches(unknown, _BATCH):
            found.update(_known(connection, test, batch))
    missing = [(digest, name) for digest, name in unknown.items() if digest not in found]
    for some in batches(missing, _BATCH):
        with store.write() as connection:
            rows = [{"digest": digest, **identity(name)._asdict()} for digest, name in some]
            insert_or_ignore(connection, test, rows)
            found.update(_known(connection, test, [digest for digest, _ in some]))
    numbers.update(found)
    return [numbers[digest] for digest in digests]


def _known(connection: sa.Connection, table: sa.Table, digests: Sequence[bytes]) -> dict[bytes, int]:
    query = sa.select(table.c.digest, table.c.id).where(table.c.digest.in_(digests))
    return {bytes(digest): number for digest, number in connection.execute(query)}


def number_details(store: Store, failures: dict[int, Failure]) -> dict[bytes, int]:
    """Numbers of the words of failures by their digest; words that were never said before get one."""
    said = {_detail_digest(words): words for words in failures.values()}
    numbers: dict[bytes, int] = {}
    with store.read() as connection:
        for batch in batches(said, _BATCH):
            numbers.update(_known(connection, detail, batch))
    missing = {digest: words for digest, words in said.items() if digest not in numbers}
    for some in batches(missing.items(), _BATCH):
        with store.write() as connection:
            numbers.update(_number_details(connection, dict(some)))
    return numbers


def _number_details(connection: sa.Connection, said: dict[bytes, Failure]) -> dict[bytes, int]:
    numbers: dict[bytes, int] = {}
    for some in batches(said.items(), _BATCH):
        rows = [
            {
                "digest": digest,
                "fingerprint": fingerprint(words.outcome, words.message),
                "phase": words.phase,
                "message": words.message,
                "trace": words.trace,
            }
            for digest, words in some
        ]
        insert_or_ignore(connection, detail, rows)
        numbers.update(_known(connection, detail, [digest for digest, _ in some]))
    return numbers


def _gone(connection: sa.Connection, failures: dict[int, Failure], numbers: dict[bytes, int]) -> dict[bytes, Failure]:
    """Words that were numbered, but have been pruned before anything referred to them."""
    left = set[int]()
    for batch in batches(numbers.values(), _BATCH):
        left.update(connection.execute(sa.select(detail.c.id).where(detail.c.id.in_(batch))).scalars())
    gone = {digest for digest, number in numbers.items() if number not in left}
    said = {_detail_digest(words): words for words in failures.values()} if gone else {}
    return {digest: said[digest] for digest in gone}


def _detail_digest(words: Failure) -> bytes:
    said = "\0".join((words.outcome, words.phase, words.message, words.trace))
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


def put_results(
    connection: sa.Connection,
    run_number: int,
    whole: Snapshot,
    failures: dict[int, Failure],
    details: dict[bytes, int],
    replaced: Sequence[int] | None = None,
) -> None:
    """Put a run's results in place of those it has.

    Args:
        connection: in a transaction that writes.
        run_number: the run.
        whole: all of its results.
        failures: words of failures by test.
        details: their numbers, from :func:`number_details`.
        replaced: the tests whose failures are replaced; all by default.
    """
    connection.execute(snapshot.delete().where(snapshot.c.run_id == run_number))
    columns = {"run_id": run_number, "roster_id": _roster_of(connection, whole.roster), **whole.pack()}
    connection.execute(snapshot.insert().values(columns))
    mine = failure.c.run_id == run_number
    if replaced is None:
        connection.execute(failure.delete().where(mine))
    else:
        for batch in batches(replaced, _BATCH):
            connection.execute(failure.delete().where(mine, failure.c.test_id.in_(batch)))
    rows: list[dict[str, Any]] = [
        {
            "run_id": run_number,
            "test_id": number,
            "outcome": CODE[words.outcome],
            "seconds": words.seconds,
            "detail_id": details[_detail_digest(words)],
            "cpu": _CPU.get(words.cpu_outcome),
        }
        for number, words in sorted(failures.items())
    ]
    if rows:
        connection.execute(failure.insert(), rows)
