"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "backend",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("repo_key", sa.Text(), nullable=False, comment="repo in lower case"),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False, comment="of the latest report"),
        sa.Column("device", sa.Text(), nullable=True, comment="the device that bare-@ test names stand for"),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backend")),
        sa.UniqueConstraint("repo_key", name=op.f("uq_backend_repo_key")),
    )
    op.create_table(
        "branch_commit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False, comment="when it was pushed"),
        sa.Column("place", sa.Integer(), nullable=False, comment="within its push"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_branch_commit")),
        sa.UniqueConstraint("upstream", "branch", "sha", name=op.f("uq_branch_commit_upstream_branch_sha")),
        comment="the order of commits on base branches, as push events tell it",
    )
    op.create_index("ix_branch_commit_order", "branch_commit", ["upstream", "branch", "at", "place"], unique=False)
    op.create_index("ix_branch_commit_sha", "branch_commit", ["sha"], unique=False)
    op.create_table(
        "detail",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("trace", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_detail")),
        sa.UniqueConstraint("digest", name=op.f("uq_detail_digest")),
        comment="the words of a failure, once however often they are said",
    )
    op.create_table(
        "interval",
        sa.Column("test_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("lane_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column(
            "first_run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column(
            "until_run",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=True,
            comment="the first run where it no longer held; null while it lasts",
        ),
        sa.Column("outcome", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("test_id", "lane_id", "first_run", name=op.f("pk_interval")),
        comment="runs of one job on the base branch during which a test had one outcome",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_interval_first_run", "interval", ["first_run"], unique=False)
    op.create_table(
        "pull_head",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("pr", sa.Integer(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=True),
        sa.Column("base_ref", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False, comment="upstream's time of the event, else ours"),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pull_head")),
        sa.UniqueConstraint("upstream", "pr", "sha", name=op.f("uq_pull_head_upstream_pr_sha")),
        comment="commits that were pushed to a pull request",
    )
    op.create_index("ix_pull_head_at", "pull_head", ["at"], unique=False)
    op.create_table(
        "refusal",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("repo", sa.Text(), nullable=True, comment="as claimed"),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusal")),
        comment="the latest reports that were refused",
    )
    op.create_table(
        "test",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False, comment="of the name; names may be long"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("cls", sa.Text(), nullable=False),
        sa.Column("test", sa.Text(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_test")),
        sa.UniqueConstraint("digest", name=op.f("uq_test_digest")),
    )
    op.create_table(
        "lane",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("backend_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "digest", sa.LargeBinary(length=16), nullable=False, comment="of workflow and job; names may be long"
        ),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["backend_id"], ["backend.id"], name=op.f("fk_lane_backend_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lane")),
        sa.UniqueConstraint("backend_id", "digest", name=op.f("uq_lane_backend_id_digest")),
        comment="one job of one workflow of one backend, over all its runs",
    )
    op.create_table(
        "run",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False, comment="relay.wire.run_key"),
        sa.Column("backend_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "lane_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=True,
            comment="null until a report names workflow and job",
        ),
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=True, comment="of a pull_request event"),
        sa.Column("upstream", sa.Text(), nullable=True),
        sa.Column("pr", sa.Integer(), nullable=True),
        sa.Column("sha", sa.Text(), nullable=True, comment="the tested upstream commit"),
        sa.Column("base_sha", sa.Text(), nullable=True),
        sa.Column("branch", sa.Text(), nullable=True, comment="of a push"),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, comment="announced, in_progress, completed"),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True, comment="the backend's words: its reports merged"),
        sa.Column("queue_time", sa.Double(), nullable=True),
        sa.Column("execution_time", sa.Double(), nullable=True),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False, comment="grows with every change"),
        sa.Column("results", sa.Text(), nullable=False, comment="none, partial, complete, pruned"),
        sa.Column("totals", sa.JSON(), nullable=True, comment="tests by outcome, from per-test results"),
        sa.Column("cuts", sa.JSON(), nullable=True, comment="what was shortened or left out"),
        sa.Column("parts", sa.JSON(), nullable=True, comment="numbers of the uploaded parts"),
        sa.Column("parts_of", sa.Integer(), nullable=True, comment="how many parts the results have"),
        sa.Column(
            "order_at",
            sa.Double(),
            nullable=True,
            comment="when its commit was pushed, else when it was first heard of",
        ),
        sa.Column("order_place", sa.Integer(), nullable=False, comment="of its commit within the push"),
        sa.Column("in_history", sa.Boolean(), nullable=False, comment="told by interval"),
        sa.ForeignKeyConstraint(["backend_id"], ["backend.id"], name=op.f("fk_run_backend_id")),
        sa.ForeignKeyConstraint(["lane_id"], ["lane.id"], name=op.f("fk_run_lane_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("key", name=op.f("uq_run_key")),
    )
    op.create_index("ix_run_backend", "run", ["backend_id", "first_seen"], unique=False)
    op.create_index("ix_run_first_seen", "run", ["first_seen"], unique=False)
    op.create_index("ix_run_lane", "run", ["lane_id", "first_seen"], unique=False)
    op.create_index("ix_run_pr", "run", ["pr", "upstream"], unique=False)
    op.create_index("ix_run_sha", "run", ["sha"], unique=False)
    op.create_table(
        "failure",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("test_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("detail_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["detail_id"], ["detail.id"], name=op.f("fk_failure_detail_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_failure_run_id")),
        sa.ForeignKeyConstraint(["test_id"], ["test.id"], name=op.f("fk_failure_test_id")),
        sa.PrimaryKeyConstraint("run_id", "test_id", name=op.f("pk_failure")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_failure_detail", "failure", ["detail_id"], unique=False)
    op.create_index("ix_failure_test", "failure", ["test_id", "run_id"], unique=False)
    op.create_table(
        "snapshot",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="hud.core.snapshot"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_snapshot_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_snapshot")),
    )


def downgrade() -> None:
    """Drop every table."""
    op.drop_table("snapshot")
    op.drop_index("ix_failure_test", table_name="failure")
    op.drop_index("ix_failure_detail", table_name="failure")
    op.drop_table("failure")
    op.drop_index("ix_run_sha", table_name="run")
    op.drop_index("ix_run_pr", table_name="run")
    op.drop_index("ix_run_lane", table_name="run")
    op.drop_index("ix_run_first_seen", table_name="run")
    op.drop_index("ix_run_backend", table_name="run")
    op.drop_table("run")
    op.drop_table("lane")
    op.drop_table("test")
    op.drop_table("refusal")
    op.drop_index("ix_pull_head_at", table_name="pull_head")
    op.drop_table("pull_head")
    op.drop_index("ix_interval_first_run", table_name="interval")
    op.drop_table("interval")
    op.drop_table("detail")
    op.drop_index("ix_branch_commit_sha", table_name="branch_commit")
    op.drop_index("ix_branch_commit_order", table_name="branch_commit")
    op.drop_table("branch_commit")
    op.drop_table("backend")
