"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "checks",
        sa.Column("job_key", sa.String(length=32), nullable=False),
        sa.Column("repo", sa.String(length=201), nullable=False),
        sa.Column("repo_name", sa.String(length=201), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("head_sha", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("details_url", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("conclusion", sa.String(length=20), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, comment="grows with every wish"),
        sa.Column("written_version", sa.Integer(), nullable=False, comment="the wish that GitHub has"),
        sa.Column("github_id", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_key"),
    )
    op.create_index("ix_checks_created_at", "checks", ["created_at"], unique=False)
    op.create_index("ix_checks_github_id", "checks", ["github_id"], unique=False)
    op.create_index("ix_checks_head_sha", "checks", ["head_sha"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=100), nullable=False, comment="X-GitHub-Delivery"),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("pr_number", sa.BigInteger(), nullable=True),
        sa.Column("head_sha", sa.String(length=64), nullable=False),
        sa.Column("base_sha", sa.String(length=64), nullable=True),
        sa.Column("ref", sa.Text(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("received_count", sa.Integer(), nullable=False, comment="1 + redeliveries"),
        sa.Column("message", sa.Text(), nullable=False, comment="client_payload without the callback token"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_deliveries_pr", "deliveries", ["pr_number"], unique=False)
    op.create_index("ix_deliveries_received_at", "deliveries", ["received_at"], unique=False)
    op.create_table(
        "documents",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "gates",
        sa.Column("pr_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("devices", sa.Text(), nullable=False, comment="JSON list, lower case"),
        sa.Column("updated_at", sa.String(length=40), nullable=False, comment="GitHub's pull_request.updated_at"),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pr_number"),
    )
    op.create_table(
        "jobs",
        sa.Column("key", sa.String(length=32), nullable=False, comment="relay.wire.run_key"),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("repo", sa.String(length=201), nullable=False),
        sa.Column("repo_name", sa.String(length=201), nullable=False),
        sa.Column("level", sa.String(length=2), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("pr_number", sa.BigInteger(), nullable=True),
        sa.Column("head_sha", sa.String(length=64), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("run_attempt", sa.BigInteger(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("conclusion", sa.String(length=20), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column(
            "rejected",
            sa.Boolean(),
            nullable=False,
            comment="HUD refused the last report; a corrected one may replace it",
        ),
        sa.Column("in_progress_at", sa.Double(), nullable=True),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True, comment="when the sweeper takes an unfinished job"),
        sa.Column("report", sa.Text(), nullable=True, comment="HUD report of the unfinished job, for the sweeper"),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"], unique=False)
    op.create_index("ix_jobs_deadline", "jobs", ["state", "deadline"], unique=False)
    op.create_index("ix_jobs_delivery", "jobs", ["delivery_id", "repo"], unique=False)
    op.create_index("ix_jobs_head", "jobs", ["head_sha", "pr_number"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=400), nullable=False, comment="names the effect, so that it is queued once"),
        sa.Column("kind", sa.String(length=12), nullable=False, comment="dispatch, hud, check, rerun, cancel, fanout"),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("repo", sa.String(length=201), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False, comment="what the kind acts on: job key, run id"),
        sa.Column("data", sa.Text(), nullable=True, comment="JSON of the request where no row holds it"),
        sa.Column("state", sa.String(length=8), nullable=False, comment="ready, leased, done, dead"),
        sa.Column("again", sa.Boolean(), nullable=False, comment="queued anew while leased"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("give_up_at", sa.Double(), nullable=False),
        sa.Column("lease_owner", sa.String(length=80), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )
    op.create_index("ix_tasks_delivery", "tasks", ["delivery_id"], unique=False)
    op.create_index("ix_tasks_due", "tasks", ["state", "kind", "not_before"], unique=False)
    op.create_index("ix_tasks_finished_at", "tasks", ["finished_at"], unique=False)
    op.create_table(
        "dispatches",
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("repo", sa.String(length=201), nullable=False),
        sa.Column("repo_name", sa.String(length=201), nullable=False),
        sa.Column("level", sa.String(length=2), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column(
            "paths",
            sa.Text(),
            nullable=True,
            comment="JSON list of the target's path patterns that GitHub must be asked about",
        ),
        sa.Column("job_timeout_seconds", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=10), nullable=False, comment="pending, sent, skipped, failed"),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["delivery_id"], ["deliveries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("delivery_id", "repo"),
    )
    op.create_index("ix_dispatches_state", "dispatches", ["state", "created_at"], unique=False)
