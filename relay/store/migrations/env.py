"""Alembic's entry: runs on the connection, and inside the transaction, that ``Database.migrate`` hands over."""

from alembic import context

from relay.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
