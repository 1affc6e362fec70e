"""One handle for both databases, and how a unit of work becomes durable.

A unit of work is a function of a connection. On PostgreSQL each one is a transaction of its own, several at a time. On
SQLite, which has one writer anyway, a thread collects what is waiting and commits it together: every unit in a
savepoint, one ``fsync`` for all, and nobody is answered before it. A unit may be run again after a conflict, so it must
change nothing but the database.

Where many units of one kind come at the same time, :class:`Batches` makes one unit of them, with one statement where
each would have had its own: on both databases statements cost more than what they do.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from relay.store.schema import deliveries

T = TypeVar("T")
U = TypeVar("U")
Work = Callable[[Connection], T]

MAX_BATCH = 64
_BUSY_SECONDS = 5
_TRIES = 4
_VERSION_TABLE, _TABLE = "alembic_version", deliveries.name
"""Where the schema's version is, which other programs call the same, and a table that every version of it has."""
_MIGRATION_LOCK = 0x7265_6C61_79  # any number that other users of the same server do not lock


class StoreUnavailable(Exception):
    """The database did not do the work. Nothing of it is stored; the caller may try again."""

    @property
    def concerns_everybody(self) -> bool:
        """Whether the database itself is in trouble (away, locked, full), rather than this work in a conflict."""
        return _is_outage(self.__cause__) and not _conflict(self)


class NoStoreOfRelay(ValueError):
    """The database is not, or not yet, one that this relay may use; the text says why."""


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """``INSERT`` that knows ``ON CONFLICT``, which both databases spell alike but SQLAlchemy keeps per dialect."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's BEGIN below is the only one
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would fail at once where another process wrote in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def check_url(url: str) -> Literal["sqlite", "postgresql"]:
    """The kind of a database URL.

    Raises:
        ValueError: no URL, or another kind of database.
    """
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise ValueError(f"{error}; use sqlite:///FILE or postgresql://…") from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return "postgresql"
    if kind != "sqlite":
        raise ValueError(f"{kind!r} is not supported; use sqlite:///FILE or postgresql://…")
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("the database must be a file: what is only in memory is lost with the process")
    return "sqlite"


class Database:
    """The store of one process.

    Args:
        url: SQLAlchemy URL, ``sqlite:///path`` or ``postgresql+psycopg://…`` (``postgresql://`` is taken as the same).
        connections: transactions at a time on PostgreSQL.

    Attributes:
        kind: ``sqlite`` or ``postgresql``.

    Raises:
        ValueError: as :func:`check_url`.
    """

    def __init__(self, url: str, connections: int = 8):
        self.kind = check_url(url)
        if self.kind == "sqlite":
            self.engine = _sqlite_engine(url)
            self._writer: _Writer | None = _Writer(self.engine)
            self._pool: ThreadPoolExecutor | None = None
        else:
            self.engine = create_engine(
                make_url(url).set(drivername="postgresql+psycopg"),
                pool_size=connections,
                max_overflow=0,
                pool_timeout=_BUSY_SECONDS,
                pool_pre_ping=True,
                connect_args={"connect_timeout": _BUSY_SECONDS},
            )
            self._writer = None
            self._pool = ThreadPoolExecutor(connections, thread_name_prefix="relay-store")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction in the calling thread.

        Raises:
            StoreUnavailable: the database cannot be reached, is locked or full.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise StoreUnavailable(_reason(error)) from error
        except SQLAlchemyError as error:
            if isinstance(error, TimeoutError) or "QueuePool" in str(error):
                raise StoreUnavailable(_reason(error)) from error
            raise

    def call(self, work: Work[T]) -> T:
        """Do a unit of work in a transaction of its own, again if it lost a conflict.

        Raises:
            StoreUnavailable: as :meth:`transaction`.
        """
        for left in reversed(range(_TRIES)):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except StoreUnavailable as error:
                if not left or not _conflict(error):
                    raise
                time.sleep(random.uniform(0, 0.05))  # so that the two do not meet again
        raise AssertionError("unreachable")

    async def run(self, work: Work[T]) -> T:
        """Do a unit of work without holding up the event loop; it is durable when this returns.

        Raises:
            StoreUnavailable: nothing of the work is stored.
        """
        if self._writer is not None:
            return await asyncio.wrap_future(self._writer.submit(work))
        assert self._pool is not None
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.call, work)

    def ping(self) -> None:
        """Ask the database for a sign of life.

        Raises:
            StoreUnavailable: there is none.
        """
        with self.transaction() as connection:
            connection.execute(text("SELECT 1"))

    def migrate(self) -> None:
        """Bring the schema up to date; replicas that start together take turns.

        Raises:
            NoStoreOfRelay: as :meth:`check_owner`.
            StoreUnavailable: as :meth:`transaction`.
        """
        config = _migrations()
        with self.transaction() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            _check_owner(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def check_made(self) -> None:
        """Look whether there is a store, and make none.

        Raises:
            NoStoreOfRelay: there is no such file, or a database without the relay's tables.
            StoreUnavailable: as :meth:`transaction`.
        """
        file = self.file
        if file is not None and not file.exists():
            raise NoStoreOfRelay(f"there is no file {file}; 'relay serve' makes a store")
        self.check_owner()
        if self.revisions()[0] is None:
            raise NoStoreOfRelay("the database has no tables of a relay; 'relay serve' makes them")

    def check_owner(self) -> None:
        """Look whether the relay may make its tables, or has made them.

        Raises:
            NoStoreOfRelay: another program's tables are there, or those of a newer relay.
            StoreUnavailable: as :meth:`transaction`.
        """
        with self.transaction() as connection:
            _check_owner(connection)

    @property
    def file(self) -> Path | None:
        """Where SQLite keeps the store."""
        name = self.engine.url.database if self.kind == "sqlite" else None
        return None if name is None or name.startswith("file:") else Path(name)

    def revisions(self) -> tuple[str | None, str | None]:
        """The schema's version in the database (``None`` before the first migration), and the newest one.

        Raises:
            StoreUnavailable: as :meth:`transaction`.
        """
        with self.transaction() as connection:
            have = MigrationContext.configure(connection).get_current_revision()
        return have, ScriptDirectory.from_config(_migrations()).get_current_head()

    def close(self) -> None:
        """Finish what was submitted and let go of the connections."""
        if self._writer is not None:
            self._writer.close()
        if self._pool is not None:
            self._pool.shutdown()
        self.engine.dispose()


def _check_owner(connection: Connection) -> None:
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    have = _revision(connection) if _VERSION_TABLE in tables else None
    if _VERSION_TABLE in tables and (_TABLE in tables or have is None):
        known = {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}
        if have is not None and have not in known:
            raise NoStoreOfRelay(f"the tables are those of a newer relay (schema {have})")
        return
    # A file is one program's; in a database of a server, tables that migrations made tell that it is another's.
    others = [
        name
        for name in tables
        if connection.dialect.name == "sqlite"
        or [column["name"] for column in inspector.get_columns(name)] == ["version_num"]
    ]
    if others:
        raise NoStoreOfRelay(f"the database is another program's: it has the table {others[0]!r}")


def _revision(connection: Connection) -> str | None:
    found = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalars().first()
    return None if found is None else str(found)


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _reason(error: Exception) -> str:
    """The driver's own words; SQLAlchemy's would quote the statement with its parameters."""
    return str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error).strip()


def _is_outage(error: BaseException | None) -> bool:
    return isinstance(error, (OperationalError, InterfaceError)) or not isinstance(error, DBAPIError)


def _conflict(error: StoreUnavailable) -> bool:
    """Deadlock or serialization failure (SQLSTATE class 40): the same work succeeds when it is tried again."""
    cause = error.__cause__
    state = getattr(getattr(cause, "orig", None), "sqlstate", None)
    return isinstance(state, str) and state.startswith("40")


class _Writer:
    """SQLite's one writer: group commit."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._queue: queue.SimpleQueue[tuple[Work[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="relay-writer", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, work: Work[T]) -> Future[T]:
        if self._closed:
            raise StoreUnavailable("the relay is shutting down")
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _loop(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            batch = [item]
            closing = False
            while len(batch) < MAX_BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    closing = True
                    break
                batch.append(more)
            # A waiter that went away (client disconnected) must not make the others fail.
            batch = [(work, future) for work, future in batch if future.set_running_or_notify_cancel()]
            if batch:
                self._commit(batch)
            if closing:
                return

    def _commit(self, batch: list[tuple[Work[Any], Future[Any]]]) -> None:
        """All in one transaction; if one of them spoils it, each alone, so that it cannot take others along."""
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with self._engine.begin() as connection:
                for work, future in batch:
                    # begin_nested() would do this too, with objects that cost more than the statements.
                    connection.exec_driver_sql("SAVEPOINT unit")
                    try:
                        results.append((future, work(connection), None))
                    except DBAPIError:
                        raise
                    except Exception as error:
                        connection.exec_driver_sql("ROLLBACK TO unit")
                        results.append((future, None, error))
                    connection.exec_driver_sql("RELEASE unit")
        except Exception as error:
            if len(batch) > 1 and not (isinstance(error, SQLAlchemyError) and _is_outage(error)):
                for item in batch:
                    self._commit([item])
                return
            failure = StoreUnavailable(_reason(error)) if isinstance(error, SQLAlchemyError) else error
            if failure is not error:
                failure.__cause__ = error
            results = [(future, None, failure) for _, future in batch]
        for future, result, failure_or_none in results:
            if failure_or_none is None:
                future.set_result(result)
            else:
                future.set_exception(failure_or_none)


class Batches(Generic[U, T]):
    """Units of one kind that share a transaction: what comes while a batch commits is the next batch.

    A lone unit is not held up for others. Everything happens in one event loop.

    Args:
        work: does units in one transaction; gives each one's result, in their order.
        linger: seconds that a batch waits for more while units come in company; statements are what it saves.
        key: units of one key never meet in a batch, so that each sees what the one before it did.
    """

    def __init__(
        self,
        database: Database,
        work: Callable[[Connection, list[U]], list[T]],
        *,
        key: Callable[[U], Hashable] | None = None,
        linger: float = 0.0,
    ):
        self._database = database
        self._work = work
        self._key = key
        self._linger = linger
        self._waiting: list[tuple[U, asyncio.Future[T]]] = []
        self._committing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Units that wait for their batch."""
        return len(self._waiting)

    async def run(self, unit: U) -> T:
        """Do a unit; it is durable when this returns.

        Raises:
            StoreUnavailable: nothing of it is stored.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, future))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        return await future

    async def _commit_all(self) -> None:
        batch: list[tuple[U, asyncio.Future[T]]] = []
        try:
            while self._waiting:
                if self._linger and len(batch) + len(self._waiting) > 1:
                    await asyncio.sleep(self._linger)
                batch = self._next()
                await self._commit(batch)
        finally:
            self._committing = None

    def _next(self) -> list[tuple[U, asyncio.Future[T]]]:
        batch: list[tuple[U, asyncio.Future[T]]] = []
        later: list[tuple[U, asyncio.Future[T]]] = []
        keys: set[Hashable] = set()
        for item in self._waiting:
            key = object() if self._key is None else self._key(item[0])
            if len(batch) == MAX_BATCH or key in keys:
                later.append(item)
            else:
                batch.append(item)
            keys.add(key)
        self._waiting = later
        return batch

    async def _commit(self, batch: list[tuple[U, asyncio.Future[T]]]) -> None:
        units = [unit for unit, _ in batch]
        try:
            results = await self._database.run(lambda connection: self._work(connection, units))
        except Exception as error:
            if len(batch) > 1 and not (isinstance(error, StoreUnavailable) and error.concerns_everybody):
                for item in batch:  # one that the database cannot take must not take the others along
                    await self._commit([item])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
