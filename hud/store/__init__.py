"""The only SQL that writes: tables, migrations, ingest of reports and of per-test results, retention.

The same code runs on SQLite and PostgreSQL. What pages show is read in ``hud.queries``.
"""

from hud.store.engine import NoStoreOfHud, Store, open_store

__all__ = ["NoStoreOfHud", "Store", "open_store"]
