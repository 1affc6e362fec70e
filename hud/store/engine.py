"""Opening a store: connections, transactions, migrations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

_VERSION_TABLE = "hud_version"
_BUSY_MILLISECONDS = 30_000
_WRITE = "hud_write"
# Any numbers that other users of the same server do not lock.
_MIGRATION_LOCK = 0x6875_64
_PRUNE_LOCK = 0x6875_65


class NoStoreOfHud(ValueError):
    """The database is not, or not yet, one that this HUD may use; the text says why."""


class Store:
    """A database with the HUD's tables.

    Attributes:
        engine: SQLAlchemy's engine. Readers never wait for the writer: SQLite runs in WAL mode.
        sqlite: whether it is SQLite, which has one writer at a time.
        test_numbers: numbers of tests by the digest of their name, as far as they were needed; they never change.
    """

    def __init__(self, url: str) -> None:
        """Open it; nothing is connected yet.

        Raises:
            ValueError: another kind of database.
        """
        self.url = sa.make_url(url)
        kind = self.url.get_backend_name()
        if kind not in ("sqlite", "postgresql"):
            raise ValueError(f"a HUD stores in SQLite or PostgreSQL, not in {kind}")
        if kind == "postgresql":
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.sqlite = kind == "sqlite"
        # More than those who hold a connection from one thread to the next (hud.app.state): of the rest, each gives its
        # back from the thread that took it, and so nobody waits for a thread that waits for a connection.
        self.engine = sa.create_engine(self.url, pool_size=20, max_overflow=20, pool_pre_ping=not self.sqlite)
        self.test_numbers: dict[bytes, int] = {}
        # Threads of this process queue here; SQLite's own lock polls, and would starve one of them under load.
        self._writer = threading.Lock() if self.sqlite else contextlib.nullcontext()
        if self.sqlite:
            sa.event.listen(self.engine, "connect", _configure_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the store from start to end."""
        connection = self.engine.connect()
        if not self.sqlite:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self, *, alone: bool = False) -> Iterator[sa.Connection]:
        """A transaction that may change the store; keep it short.

        Args:
            alone: no other writer is at work meanwhile, so that what nothing refers to can be deleted. On SQLite it is
                so for every writer.
        """
        with self._writer, self.engine.connect().execution_options(**{_WRITE: True}) as connection, connection.begin():
            if not self.sqlite:
                lock = sa.func.pg_advisory_xact_lock if alone else sa.func.pg_advisory_xact_lock_shared
                connection.execute(sa.select(lock(_PRUNE_LOCK)))
            yield connection

    def migrate(self) -> None:
        """Bring the tables to the form that this version needs; nothing happens where they have it.

        Raises:
            NoStoreOfHud: another program's tables are there, or those of a newer HUD.
        """
        config = alembic_config()
        with self.engine.connect() as connection:
            if not self.sqlite:
                # Replicas that start together wait here for the one that makes the tables.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            self._check_owner(connection, ScriptDirectory.from_config(config))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()

    def check_made(self) -> None:
        """Look whether there is a store, and make none.

        Raises:
            NoStoreOfHud: there is no such file, or a database without the HUD's tables.
        """
        file = self.url.database if self.sqlite else None
        if file and not file.startswith("file:") and not Path(file).exists():
            raise NoStoreOfHud(f"there is no file {file}; 'hud migrate' makes a store")
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table(_VERSION_TABLE):
                raise NoStoreOfHud("the database has no tables of a HUD; 'hud migrate' makes them")

    def _check_owner(self, connection: sa.Connection, scripts: ScriptDirectory) -> None:
        inspector = sa.inspect(connection)
        tables = inspector.get_table_names()
        if _VERSION_TABLE in tables:
            made = connection.execute(sa.text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalars().all()
            if unknown := set(made) - {script.revision for script in scripts.walk_revisions()}:
                raise NoStoreOfHud(f"the tables are those of a newer HUD (version {', '.join(sorted(unknown))})")
            return
        # A file is one program's; in a database of a server, tables that migrations made tell that it is another's.
        others = [
            name
            for name in tables
            if self.sqlite or [column["name"] for column in inspector.get_columns(name)] == ["version_num"]
        ]
        if others:
            raise NoStoreOfHud(f"the database is another program's: it has the table {others[0]!r}")

    def check(self) -> None:
        """Raise SQLAlchemy's error where the store does not answer."""
        with self.read() as connection:
            connection.execute(sa.text("SELECT 1"))

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()


def open_store(url: str, *, make: bool = True) -> Store:
    """Open a store and bring its tables up to date.

    Args:
        url: a SQLAlchemy URL (``sqlite:///hud.db``, ``postgresql+psycopg://…``).
        make: whether one is made where there is none.

    Raises:
        NoStoreOfHud: the database is not, or not yet, a HUD's.
        ValueError: another kind of database.
    """
    store = Store(url)
    try:
        if not make:
            store.check_made()
        store.migrate()
    except Exception:
        store.close()
        raise
    return store


def alembic_config() -> Config:
    """Where the migrations are; the connection is put into ``attributes``."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("hud.store") / "migrations"))
    return config


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # The driver would open transactions by itself, at the wrong moments; see _begin_sqlite.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={_BUSY_MILLISECONDS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "cache_size=-65536",
        "mmap_size=268435456",
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer that begins as a reader may find itself unable to upgrade; it says at once that it will write.
    writing = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
