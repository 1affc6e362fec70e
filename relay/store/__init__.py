"""The relay's memory: one schema in SQL, on SQLite or PostgreSQL, with its migrations.

What lives here: tables, the database handle, and one module of statements per concern. What must not: decisions (they
come from ``relay.core``) and anything that talks to a network.
"""
