"""The store itself: migrations, durability, one writer at a time, and its growth with what changes."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hud_site import DEVICE, line

from hud.core.lines import Collector, parse_line
from hud.core.outcomes import OUTCOMES
from hud.core.snapshot import Roster, unpack_outcomes
from hud.seed import commit, finish, push, send, upload
from hud.store import Store, open_store
from hud.store.tables import backend, change, metadata, opening, roster, run, snapshot

AT = 1_700_000_000.0


def test_migrations_make_exactly_the_tables_of_the_code(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "hud_version"})
        assert compare_metadata(context, metadata) == []


def test_opening_again_changes_nothing(store: Store) -> None:
    with store.write() as connection:
        row = {"repo_key": "a/b", "repo": "a/b", "level": "L2", "first_seen": AT, "last_seen": AT}
        connection.execute(backend.insert().values(row))
    store.migrate()
    with store.read() as connection:
        assert connection.execute(sa.select(backend.c.repo)).scalars().all() == ["a/b"]


def test_a_reader_sees_one_state_from_start_to_end(store: Store) -> None:
    counted = sa.select(sa.func.count()).select_from(backend)
    row = {"level": "L2", "first_seen": AT, "last_seen": AT}
    with store.read() as reader:
        assert reader.execute(counted).scalar_one() == 0
        with store.write() as writer:
            writer.execute(backend.insert().values(repo_key="a/b", repo="a/b", **row))
        assert reader.execute(counted).scalar_one() == 0
    with store.read() as reader:
        assert reader.execute(counted).scalar_one() == 1


def test_a_failed_write_leaves_nothing(store: Store) -> None:
    row = {"repo_key": "a/b", "repo": "a/b", "level": "L2", "first_seen": AT, "last_seen": AT}
    try:
        with store.write() as connection:
            connection.execute(backend.insert().values(row))
            raise KeyError
    except KeyError:
        pass
    with store.read() as connection:
        assert connection.execute(sa.select(backend.c.id)).first() is None


def report_often(url: str, repo: str, count: int) -> None:
    opened = open_store(url)
    for number in range(count):
        send(
            opened, AT + number, repo, "L2", push(commit(f"{repo}{number}"), commit("0"), AT), f"d{number}", str(number)
        )
    opened.close()


def test_several_processes_may_write_at_once(store: Store) -> None:
    url = store.url.render_as_string(hide_password=False)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=report_often, args=(url, f"example/{number}", 20)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    with store.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(run)).scalar_one() == 40


def test_the_store_grows_with_what_changes_not_with_what_passes_again(store: Store) -> None:
    lines = [line(f"op{n}[float32]") for n in range(2000)]
    for number in range(5):
        payload, run_id = push(commit(f"c{number}"), commit(f"c{number - 1}"), AT + number), str(number)
        finish(store, AT + number, "a/b", "L2", payload, f"d{number}", run_id, "success")
        lines[number]["outcome"] = "failed"
        upload(store, AT + number, "a/b", "L2", f"d{number}", run_id, lines)
    with store.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(change)).scalar_one() == 4
        assert connection.execute(sa.select(sa.func.count()).select_from(opening)).scalar_one() == 1
        assert connection.execute(sa.select(sa.func.count()).select_from(roster)).scalar_one() == 1
        rows = connection.execute(sa.select(snapshot).order_by(snapshot.c.run_id)).all()
        tests = Roster.unpack(connection.execute(sa.select(roster.c.data)).scalar_one())
    assert max(len(row.outcomes) + len(row.durations) + len(row.notes) for row in rows) < 200
    assert unpack_outcomes(tests, rows[-1].outcomes).totals()["failed"] == 5


def test_sqlite_is_opened_for_concurrent_readers(sqlite_store: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "hud.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_collector_reads_every_outcome() -> None:
    collected = Collector(DEVICE)
    for number, outcome in enumerate(OUTCOMES):
        collected.add(parse_line(f'{{"id": "t{number}", "outcome": "{outcome}"}}'.encode(), 1))
    assert [entry.outcome for _, entry, _ in collected.results()] == list(OUTCOMES)
