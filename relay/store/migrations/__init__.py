"""Schema changes, oldest first, run by ``relay.store.database.Database.migrate`` (Alembic).

What lives here: Alembic's environment and ``versions/``. What must not: imports of ``relay.store.schema`` inside a
version, because a version must stay what it was when it ran.
"""
