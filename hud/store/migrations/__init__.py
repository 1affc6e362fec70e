"""Alembic's scripts: how a store of an earlier version becomes one of this version.

One module per step under ``versions``; ``env`` runs them on the connection that ``Store.migrate`` hands over.
"""
