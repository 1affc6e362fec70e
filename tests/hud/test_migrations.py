"""A store of an earlier version tells after the migration what it told before.

``samples/store_0001.sql`` was written by a HUD of the first version, before results had a number of parts. It holds
five runs of the base branch, of which the first was pruned, and one of a pull request; ``store_0001.json`` is what it
said.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hud_site import line, pushed, served
from postgres_cluster import PostgresCluster

from hud.store import Store, open_store
from hud.store.engine import alembic_config
from hud.store.tables import metadata

SAMPLES = Path(__file__).parent / "samples"
TOLD = json.loads((SAMPLES / "store_0001.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store as the first version left it."""
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((SAMPLES / "store_0001.sql").read_text(encoding="utf-8"))
    connection.close()
    if request.param == "sqlite":
        yield f"sqlite:///{file}"
        return
    cluster: PostgresCluster = request.getfixturevalue("cluster")
    with cluster.database() as url:
        copy(sa.create_engine(f"sqlite:///{file}"), Store(url))
        yield url


def copy(source: sa.Engine, target: Store) -> None:
    """Make the first version's tables and fill them from another store's."""
    known, made = sa.MetaData(), sa.MetaData()
    with target.engine.connect() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(sa.text("ALTER TABLE run DROP COLUMN parts_of"))
        made.reflect(connection)
        with source.connect() as reader:
            known.reflect(reader)
            for table in made.sorted_tables:
                rows = [dict(row._mapping) for row in reader.execute(sa.select(known.tables[table.name]))]
                if rows and table.name != "hud_version":
                    connection.execute(table.insert(), rows)
                    if "id" in rows[0]:
                        last = max(row["id"] for row in rows)
                        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
                        connection.execute(sa.select(sa.func.setval(sequence, last)))
        connection.commit()
    source.dispose()
    target.close()


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """What an answer said and does not say any more; it may say more."""
    if isinstance(before, dict):
        return [
            found for key, value in before.items() for found in differences(value, after.get(key), f"{where}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        both = enumerate(zip(before, after, strict=True))
        return [found for place, (was, now) in both for found in differences(was, now, f"{where}/{place}")]
    return [] if before == after else [f"{where}: {before} became {after}"]


def test_an_old_store_tells_what_it_told(old: str) -> None:
    store = open_store(old)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "hud_version"})
        assert compare_metadata(context, metadata) == []
    with served(store) as site:
        site.clock.now = TOLD["now"]
        for path, before in TOLD.items():
            if path != "now":
                assert differences(before, site.get(path), path) == []
                site.page(path.replace("/runs/", "/run/"))
        # It goes on from there: what a new run changes is told against the last of the old ones.
        site.run(pushed("6", "5", 1_700_005_000), "push 6", {"a": "passed"}, "6")
        (lane,) = site.get("/test", name=line("a")["id"])["lanes"]
        assert [(span["outcome"], span["first_sha"][0]) for span in lane["spans"]] == [
            ("passed", "6"),
            ("failed", "2"),
            ("passed", "1"),
        ]
    store.close()
