"""The tables. Times are seconds since the epoch (UTC); text from strangers is cleaned before it comes here.

A run is one attempt of one job. Its per-test results are packed columns (see ``hud.core.snapshot``) on a roster of
tests that runs share, plus a row for each test that failed. The history of a job on the base branch is what its first
run found (``opening``) and a row for each outcome that a later run changed (``change``). So the store grows with what
changes, not with what passes again.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Time: sa.Double[float] = sa.Double()

backend = sa.Table(
    "backend",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("repo_key", sa.Text, nullable=False, unique=True, comment="repo in lower case"),
    sa.Column("repo", sa.Text, nullable=False),
    sa.Column("level", sa.Text, nullable=False, comment="of the latest report"),
    sa.Column("device", sa.Text, comment="the device that bare-@ test names stand for"),
    sa.Column("first_seen", Time, nullable=False),
    sa.Column("last_seen", Time, nullable=False),
)

lane = sa.Table(
    "lane",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("backend_id", Id, sa.ForeignKey("backend.id"), nullable=False),
    sa.Column("digest", sa.LargeBinary(16), nullable=False, comment="of workflow and job; names may be long"),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.UniqueConstraint("backend_id", "digest"),
    comment="one job of one workflow of one backend, over all its runs",
)

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="relay.wire.run_key"),
    sa.Column("backend_id", Id, sa.ForeignKey("backend.id"), nullable=False),
    sa.Column("lane_id", Id, sa.ForeignKey("lane.id"), comment="null until a report names workflow and job"),
    sa.Column("delivery_id", sa.Text, nullable=False),
    sa.Column("event", sa.Text),
    sa.Column("action", sa.Text, comment="of a pull_request event"),
    sa.Column("upstream", sa.Text),
    sa.Column("pr", sa.Integer),
    sa.Column("sha", sa.Text, comment="the tested upstream commit"),
    sa.Column("base_sha", sa.Text),
    sa.Column("branch", sa.Text, comment="of a push"),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("level", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, comment="announced, in_progress, completed"),
    sa.Column("conclusion", sa.Text),
    sa.Column("report", sa.JSON, comment="the backend's words: its reports merged; may be large"),
    sa.Column("log_url", sa.Text, comment="of the report, if it is one to follow"),
    sa.Column("reported", sa.JSON, comment="counts of the report"),
    sa.Column("queue_time", Time),
    sa.Column("execution_time", Time),
    sa.Column("first_seen", Time, nullable=False),
    sa.Column("updated", Time, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False, default=1, comment="grows with every change"),
    sa.Column("results", sa.Text, nullable=False, default="none", comment="none, partial, complete, pruned"),
    sa.Column("totals", sa.JSON, comment="tests by outcome, from per-test results"),
    sa.Column("cuts", sa.JSON, comment="what was shortened or left out"),
    sa.Column("parts", sa.JSON, comment="numbers of the uploaded parts"),
    sa.Column("parts_of", sa.Integer, comment="how many parts the results have"),
    sa.Column("profile", sa.Text, comment="of conformance, as its command line takes it"),
    sa.Column("order_at", Time, comment="when its commit was pushed, else when it was first heard of"),
    sa.Column("order_place", sa.Integer, nullable=False, default=0, comment="of its commit within the push"),
    sa.Column("in_history", sa.Boolean, nullable=False, default=False, comment="told by opening and change"),
    sa.Index("ix_run_pr", "pr", "upstream"),
    sa.Index("ix_run_sha", "sha"),
    sa.Index("ix_run_lane", "lane_id", "first_seen"),
    sa.Index("ix_run_order", "lane_id", "order_at"),
    sa.Index("ix_run_backend", "backend_id", "first_seen"),
    sa.Index("ix_run_branch", "backend_id", "pr", "order_at", "order_place"),
    sa.Index("ix_run_first_seen", "first_seen"),
    sa.Index("ix_run_updated", "updated"),
    sa.Index("ix_run_status", "status", "first_seen"),
)

pull_head = sa.Table(
    "pull_head",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("upstream", sa.Text, nullable=False),
    sa.Column("pr", sa.Integer, nullable=False),
    sa.Column("sha", sa.Text, nullable=False),
    sa.Column("base_sha", sa.Text),
    sa.Column("base_ref", sa.Text),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("at", Time, nullable=False, comment="upstream's time of the event, else ours"),
    sa.Column("first_seen", Time, nullable=False),
    sa.UniqueConstraint("upstream", "pr", "sha"),
    sa.Index("ix_pull_head_at", "at"),
    comment="commits that were pushed to a pull request",
)

branch_commit = sa.Table(
    "branch_commit",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("upstream", sa.Text, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("sha", sa.Text, nullable=False),
    sa.Column("at", Time, nullable=False, comment="when it was pushed"),
    sa.Column("place", sa.Integer, nullable=False, comment="within its push"),
    sa.UniqueConstraint("upstream", "branch", "sha"),
    sa.Index("ix_branch_commit_sha", "sha"),
    sa.Index("ix_branch_commit_order", "upstream", "branch", "at", "place"),
    comment="the order of commits on base branches, as push events tell it",
)

test = sa.Table(
    "test",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("digest", sa.LargeBinary(16), nullable=False, unique=True, comment="of the name; names may be long"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("cls", sa.Text, nullable=False),
    sa.Column("test", sa.Text, nullable=False),
    sa.Column("op", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
)

roster = sa.Table(
    "roster",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("digest", sa.LargeBinary(16), nullable=False, unique=True, comment="of data"),
    sa.Column("data", sa.LargeBinary, nullable=False, comment="hud.core.snapshot.Roster"),
    comment="which tests a run has; shared by all runs that have the same",
)

snapshot = sa.Table(
    "snapshot",
    metadata,
    sa.Column("run_id", Id, sa.ForeignKey("run.id"), primary_key=True, autoincrement=False),
    sa.Column("roster_id", Id, sa.ForeignKey("roster.id"), nullable=False),
    # In the order of use: a reader of the first column does not read the pages of the others.
    sa.Column("outcomes", sa.LargeBinary, nullable=False),
    sa.Column("durations", sa.LargeBinary, nullable=False),
    sa.Column("notes", sa.LargeBinary, nullable=False),
    sa.Index("ix_snapshot_roster", "roster_id"),
    comment="results of a run in columns: hud.core.snapshot",
)

detail = sa.Table(
    "detail",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("digest", sa.LargeBinary(16), nullable=False, unique=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("trace", sa.Text, nullable=False),
    comment="the words of a failure, once however often they are said",
)

failure = sa.Table(
    "failure",
    metadata,
    sa.Column("run_id", Id, sa.ForeignKey("run.id"), primary_key=True, autoincrement=False),
    sa.Column("test_id", Id, sa.ForeignKey("test.id"), primary_key=True, autoincrement=False),
    sa.Column("outcome", sa.SmallInteger, nullable=False),
    sa.Column("seconds", Time),
    sa.Column("detail_id", Id, sa.ForeignKey("detail.id")),
    sa.Column("cpu", sa.SmallInteger, comment="outcome on the CPU, -1 where that has no such test; null for unknown"),
    sa.Index("ix_failure_test", "test_id", "run_id"),
    sa.Index("ix_failure_detail", "detail_id"),
    sqlite_with_rowid=False,
)

opening = sa.Table(
    "opening",
    metadata,
    sa.Column("block", sa.Integer, primary_key=True, autoincrement=False, comment="of 4,096 tests"),
    sa.Column("lane_id", Id, sa.ForeignKey("lane.id"), primary_key=True, autoincrement=False),
    sa.Column("run_id", Id, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False, comment="hud.core.history.opening"),
    sa.Index("ix_opening_lane", "lane_id"),
    sa.Index("ix_opening_run", "run_id"),
    comment="outcomes in the first run of the history of each job on the base branch",
)

change = sa.Table(
    "change",
    metadata,
    sa.Column("test_id", Id, primary_key=True, autoincrement=False),
    sa.Column("lane_id", Id, primary_key=True, autoincrement=False),
    sa.Column("run_id", Id, primary_key=True, autoincrement=False),
    sa.Column("before", sa.SmallInteger, comment="outcome in the run before; null where it had no such test"),
    sa.Column("after", sa.SmallInteger, comment="outcome in this run; null where it has no such test"),
    sa.Index("ix_change_run", "run_id"),
    sqlite_with_rowid=False,
    comment="what a run of a job on the base branch changed against the run before",
)

refusal = sa.Table(
    "refusal",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("repo", sa.Text, comment="as claimed"),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("at", Time, nullable=False),
    comment="the latest reports that were refused",
)
