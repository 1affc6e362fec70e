"""What became of a failing test on the CPU; and ways to the runs that changed last and that have not ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the indexes. Of failures that are there it stays unknown."""
    said = "outcome on the CPU, -1 where that has no such test; null for unknown"
    op.add_column("failure", sa.Column("cpu", sa.SmallInteger(), nullable=True, comment=said))
    op.create_index("ix_run_updated", "run", ["updated"], unique=False)
    op.create_index("ix_run_status", "run", ["status", "first_seen"], unique=False)
