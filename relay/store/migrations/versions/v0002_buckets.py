"""Rate limits that all replicas share."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of token buckets."""
    op.create_table(
        "buckets",
        sa.Column("name", sa.String(length=201), nullable=False, comment="repository, lower case"),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False, comment="when there were so many"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("ix_buckets_since", "buckets", ["since"], unique=False)
