"""Alembic calls this module; it runs the scripts on the connection that ``Store.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from hud.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="hud_version",
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
