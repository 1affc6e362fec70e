"""``INSERT … ON CONFLICT DO NOTHING`` on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_or_ignore(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; those that collide with a unique key of a row that is there are left out."""
    if not rows:
        return
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    connection.execute(make(table).on_conflict_do_nothing(), rows)
