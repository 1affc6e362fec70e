"""The tables. Migrations under ``migrations/`` create exactly these; a test compares the two.

Times are seconds since the epoch (UTC) as double precision, by the relay's clock. Repository names in ``repo`` columns
are lower case; ``repo_name`` keeps the spelling of the allowlist. JSON is kept as ASCII text, so both databases hold
the same bytes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

_BigId = BigInteger().with_variant(Integer, "sqlite")

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(100), primary_key=True, comment="X-GitHub-Delivery"),
    Column("event", String(40), nullable=False),
    Column("action", String(100), nullable=False),
    Column("pr_number", BigInteger),
    Column("head_sha", String(64), nullable=False),
    Column("base_sha", String(64)),
    Column("ref", Text),
    Column("received_at", Double, nullable=False),
    Column("received_count", Integer, nullable=False, comment="1 + redeliveries"),
    Column("message", Text, nullable=False, comment="client_payload without the callback token"),
    Index("ix_deliveries_received_at", "received_at"),
    Index("ix_deliveries_pr", "pr_number"),
)

dispatches = Table(
    "dispatches",
    metadata,
    Column("delivery_id", String(100), ForeignKey("deliveries.id", ondelete="CASCADE"), primary_key=True),
    Column("repo", String(201), primary_key=True),
    Column("repo_name", String(201), nullable=False),
    Column("level", String(2), nullable=False),
    Column("device", String(64)),
    Column("paths", Text, comment="JSON list of the target's path patterns that GitHub must be asked about"),
    Column("job_timeout_seconds", Double),
    Column("state", String(10), nullable=False, comment="pending, sent, skipped, failed"),
    Column("created_at", Double, nullable=False),
    Column("sent_at", Double),
    Column("error", Text),
    Index("ix_dispatches_state", "state", "created_at"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("key", String(32), primary_key=True, comment="relay.wire.run_key"),
    Column("delivery_id", String(100), nullable=False),
    Column("repo", String(201), nullable=False),
    Column("repo_name", String(201), nullable=False),
    Column("level", String(2), nullable=False),
    Column("device", String(64)),
    Column("event", String(40), nullable=False),
    Column("pr_number", BigInteger),
    Column("head_sha", String(64), nullable=False),
    Column("workflow", Text, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("run_attempt", BigInteger, nullable=False),
    Column("url", Text),
    Column("state", String(12), nullable=False),
    Column("conclusion", String(20)),
    Column("digest", String(64)),
    Column("rejected", Boolean, nullable=False, comment="HUD refused the last report; a corrected one may replace it"),
    Column("in_progress_at", Double),
    Column("completed_at", Double),
    Column("deadline", Double, comment="when the sweeper takes an unfinished job"),
    Column("report", Text, comment="HUD report of the unfinished job, for the sweeper"),
    Column("created_at", Double, nullable=False),
    Index("ix_jobs_deadline", "state", "deadline"),
    Index("ix_jobs_delivery", "delivery_id", "repo"),
    Index("ix_jobs_head", "head_sha", "pr_number"),
    Index("ix_jobs_created_at", "created_at"),
)

gates = Table(
    "gates",
    metadata,
    Column("pr_number", BigInteger, primary_key=True, autoincrement=False),
    Column("devices", Text, nullable=False, comment="JSON list, lower case"),
    Column("updated_at", String(40), nullable=False, comment="GitHub's pull_request.updated_at"),
    Column("stored_at", Double, nullable=False),
)

checks = Table(
    "checks",
    metadata,
    Column("job_key", String(32), primary_key=True),
    Column("repo", String(201), nullable=False),
    Column("repo_name", String(201), nullable=False),
    Column("run_id", Text, nullable=False),
    Column("head_sha", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("external_id", Text, nullable=False),
    Column("details_url", Text),
    Column("status", String(12), nullable=False),
    Column("conclusion", String(20)),
    Column("title", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("version", Integer, nullable=False, comment="grows with every wish"),
    Column("written_version", Integer, nullable=False, comment="the wish that GitHub has"),
    Column("github_id", BigInteger),
    Column("created_at", Double, nullable=False),
    Index("ix_checks_github_id", "github_id"),
    Index("ix_checks_head_sha", "head_sha"),
    Index("ix_checks_created_at", "created_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=True),
    Column("key", String(400), nullable=False, unique=True, comment="names the effect, so that it is queued once"),
    Column("kind", String(12), nullable=False, comment="dispatch, hud, check, rerun, cancel, fanout"),
    Column("delivery_id", String(100), nullable=False),
    Column("repo", String(201), nullable=False),
    Column("subject", Text, nullable=False, comment="what the kind acts on: job key, run id"),
    Column("data", Text, comment="JSON of the request where no row holds it"),
    Column("state", String(8), nullable=False, comment="ready, leased, done, dead"),
    Column("again", Boolean, nullable=False, comment="queued anew while leased"),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("give_up_at", Double, nullable=False),
    Column("lease_owner", String(80)),
    Column("lease_until", Double),
    Column("finished_at", Double),
    Column("error", Text),
    Index("ix_tasks_due", "state", "kind", "not_before"),
    Index("ix_tasks_delivery", "delivery_id"),
    Index("ix_tasks_finished_at", "finished_at"),
)

buckets = Table(
    "buckets",
    metadata,
    Column("name", String(201), primary_key=True, comment="repository, lower case"),
    Column("tokens", Double, nullable=False),
    Column("since", Double, nullable=False, comment="when there were so many"),
    Index("ix_buckets_since", "since"),
)

documents = Table(
    "documents",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("source", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("stored_at", Double, nullable=False),
)
