"""Stores of both kinds, and servers on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hud_site import Site, served
from hypothesis import HealthCheck, settings
from postgres_cluster import PostgresCluster

from hud.store import Store, open_store
from hud.store.tables import metadata

# How long an example takes says something about the machine, and nothing about the HUD.
settings.register_profile("hud", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hud")


@pytest.fixture(scope="session")
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster() as started:
        yield started


@pytest.fixture(scope="session")
def postgres_store(cluster: PostgresCluster) -> Iterator[Store]:
    with cluster.database() as url:
        store = open_store(url)
        yield store
        store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/hud.db")
        yield opened
        opened.close()
        return
    opened = request.getfixturevalue("postgres_store")
    with opened.write() as connection:
        names = ", ".join(table.name for table in metadata.sorted_tables)
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY CASCADE")
    opened.test_numbers = {}
    yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/hud.db")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def sites(postgres_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """One server on a store of each kind, for all tests."""
    opened = open_store(f"sqlite:///{tmp_path_factory.mktemp('hud')}/hud.db")
    with served(opened) as on_sqlite, served(postgres_store) as on_postgresql:
        yield {"sqlite": on_sqlite, "postgresql": on_postgresql}
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, sites: dict[str, Site]) -> Site:
    """A server with an empty store, of each kind."""
    sites[request.param].reset()
    return sites[request.param]


@pytest.fixture
def sqlite_site(sites: dict[str, Site]) -> Site:
    """A server with an empty SQLite store."""
    sites["sqlite"].reset()
    return sites["sqlite"]
