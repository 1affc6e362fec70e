"""Results in columns on shared rosters, history as changes; what an earlier store holds is carried over.

Nothing of today's code is used here: what a store of the first version looked like, and what this step makes of it,
must not change when the code does.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BLOCK = 4096
_ABSENT = 0xFF
_BATCH = 500
_COMMENTS = {
    "report": "the backend''s words: its reports merged; may be large",
    "in_history": "told by opening and change",
}


def upgrade() -> None:
    """Make the new tables, fill them from the old ones, and drop those."""
    connection = op.get_bind()
    # Stores that the first version made before results had a number of parts lack the column.
    if "parts_of" not in {column["name"] for column in sa.inspect(connection).get_columns("run")}:
        op.add_column(
            "run", sa.Column("parts_of", sa.Integer(), nullable=True, comment="how many parts the results have")
        )
    op.add_column(
        "run", sa.Column("log_url", sa.Text(), nullable=True, comment="of the report, if it is one to follow")
    )
    op.add_column(
        "run", sa.Column("profile", sa.Text(), nullable=True, comment="of conformance, as its command line takes it")
    )
    op.add_column("run", sa.Column("reported", sa.JSON(), nullable=True, comment="counts of the report"))
    _make_tables()
    _carry_reports(connection)
    _carry_snapshots(connection)
    _carry_history(connection)
    op.drop_table("snapshot")
    op.rename_table("new_snapshot", "snapshot")
    op.create_index("ix_snapshot_roster", "snapshot", ["roster_id"], unique=False)
    op.drop_index("ix_interval_first_run", table_name="interval")
    op.drop_table("interval")
    if connection.dialect.name == "postgresql":
        op.execute("ALTER INDEX pk_new_snapshot RENAME TO pk_snapshot")
        for column, comment in _COMMENTS.items():
            op.execute(f"COMMENT ON COLUMN run.{column} IS '{comment}'")


def _make_tables() -> None:
    identifier = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "roster",
        sa.Column("id", identifier, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False, comment="of data"),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="hud.core.snapshot.Roster"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roster")),
        sa.UniqueConstraint("digest", name=op.f("uq_roster_digest")),
        comment="which tests a run has; shared by all runs that have the same",
    )
    op.create_table(
        "new_snapshot",
        sa.Column("run_id", identifier, autoincrement=False, nullable=False),
        sa.Column("roster_id", identifier, nullable=False),
        sa.Column("outcomes", sa.LargeBinary(), nullable=False),
        sa.Column("durations", sa.LargeBinary(), nullable=False),
        sa.Column("notes", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_snapshot_run_id")),
        sa.ForeignKeyConstraint(["roster_id"], ["roster.id"], name=op.f("fk_snapshot_roster_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_new_snapshot")),
        comment="results of a run in columns: hud.core.snapshot",
    )
    op.create_table(
        "opening",
        sa.Column("block", sa.Integer(), autoincrement=False, nullable=False, comment="of 4,096 tests"),
        sa.Column("lane_id", identifier, autoincrement=False, nullable=False),
        sa.Column("run_id", identifier, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="hud.core.history.opening"),
        sa.ForeignKeyConstraint(["lane_id"], ["lane.id"], name=op.f("fk_opening_lane_id")),
        sa.PrimaryKeyConstraint("block", "lane_id", name=op.f("pk_opening")),
        comment="outcomes in the first run of the history of each job on the base branch",
    )
    op.create_index("ix_opening_lane", "opening", ["lane_id"], unique=False)
    op.create_index("ix_opening_run", "opening", ["run_id"], unique=False)
    op.create_table(
        "change",
        sa.Column("test_id", identifier, autoincrement=False, nullable=False),
        sa.Column("lane_id", identifier, autoincrement=False, nullable=False),
        sa.Column("run_id", identifier, autoincrement=False, nullable=False),
        sa.Column(
            "before",
            sa.SmallInteger(),
            nullable=True,
            comment="outcome in the run before; null where it had no such test",
        ),
        sa.Column(
            "after", sa.SmallInteger(), nullable=True, comment="outcome in this run; null where it has no such test"
        ),
        sa.PrimaryKeyConstraint("test_id", "lane_id", "run_id", name=op.f("pk_change")),
        comment="what a run of a job on the base branch changed against the run before",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_change_run", "change", ["run_id"], unique=False)
    op.create_index("ix_run_order", "run", ["lane_id", "order_at"], unique=False)
    op.create_index("ix_run_branch", "run", ["backend_id", "pr", "order_at", "order_place"], unique=False)


_run = sa.table(
    "run",
    *(sa.column(name) for name in ("id", "lane_id", "order_at", "order_place", "attempt", "log_url")),
    sa.column("report", sa.JSON),
    sa.column("reported", sa.JSON),
)
_old_snapshot = sa.table("snapshot", sa.column("run_id"), sa.column("data", sa.LargeBinary))
_interval = sa.table(
    "interval", *(sa.column(name) for name in ("test_id", "lane_id", "first_run", "until_run", "outcome"))
)
_roster = sa.table("roster", sa.column("id"), sa.column("digest", sa.LargeBinary), sa.column("data", sa.LargeBinary))
_snapshot = sa.table(
    "new_snapshot",
    sa.column("run_id"),
    sa.column("roster_id"),
    *(sa.column(name, sa.LargeBinary) for name in ("outcomes", "durations", "notes")),
)
_opening = sa.table(
    "opening", *(sa.column(name) for name in ("block", "lane_id", "run_id")), sa.column("data", sa.LargeBinary)
)
_change = sa.table("change", *(sa.column(name) for name in ("test_id", "lane_id", "run_id", "before", "after")))


def _carry_reports(connection: sa.Connection) -> None:
    """What lists need of a report gets columns of its own; a report's link was checked when it came."""
    for number in list(connection.execute(sa.select(_run.c.id).where(_run.c.report.is_not(None))).scalars()):
        report = connection.execute(sa.select(_run.c.report).where(_run.c.id == number)).scalar_one()
        values = {"log_url": report.get("url"), "reported": report.get("test_results")}
        values = {name: value for name, value in values.items() if value is not None}
        if values:
            connection.execute(_run.update().where(_run.c.id == number).values(values))


def _carry_snapshots(connection: sa.Connection) -> None:
    """Each packed snapshot becomes columns; the blocks are taken as they are, save the notes with their head."""
    rosters: dict[bytes, int] = {}
    numbers = list(connection.execute(sa.select(_old_snapshot.c.run_id).order_by(_old_snapshot.c.run_id)).scalars())
    for number in numbers:
        packed = connection.execute(
            sa.select(_old_snapshot.c.data).where(_old_snapshot.c.run_id == number)
        ).scalar_one()
        head, gaps, outcomes, notes, durations = _blocks(packed)
        digest = hashlib.blake2b(gaps, digest_size=16).digest()
        if digest not in rosters:
            connection.execute(_roster.insert().values(digest=digest, data=gaps))
            made = sa.select(_roster.c.id).where(_roster.c.digest == digest)
            rosters[digest] = connection.execute(made).scalar_one()
        palette = _palette(zlib.decompress(head))
        said = len(palette).to_bytes(4, "little") + palette + zlib.decompress(notes)
        connection.execute(
            _snapshot.insert().values(
                run_id=number,
                roster_id=rosters[digest],
                outcomes=outcomes,
                durations=durations,
                notes=zlib.compress(said, 6),
            )
        )


def _palette(head: bytes) -> bytes:
    return json.dumps(json.loads(head)["notes"]).encode()


def _blocks(packed: bytes) -> list[bytes]:
    parts, place = [], 0
    while place < len(packed):
        size = int.from_bytes(packed[place : place + 4], "little")
        parts.append(packed[place + 4 : place + 4 + size])
        place += 4 + size
    return parts


def _carry_history(connection: sa.Connection) -> None:
    """Stretches of an outcome become what the first run found and what later runs changed, job by job."""
    order = {
        row.id: place
        for place, row in enumerate(
            connection.execute(
                sa.select(_run.c.id).order_by(
                    _run.c.lane_id, _run.c.order_at, _run.c.order_place, _run.c.attempt, _run.c.id
                )
            )
        )
    }
    for lane_id in list(connection.execute(sa.select(_interval.c.lane_id).distinct()).scalars()):
        query = sa.select(_interval).where(_interval.c.lane_id == lane_id).order_by(_interval.c.test_id)
        told = [row for row in connection.execute(query) if row.first_run in order]
        if told:
            _carry_lane(connection, lane_id, told, order)


def _carry_lane(connection: sa.Connection, lane_id: int, told: list[Any], order: dict[int, int]) -> None:
    first = min((row.first_run for row in told), key=order.__getitem__)
    blocks: dict[int, bytearray] = {}
    rows: list[dict[str, Any]] = []
    for test_id, spans in groupby(told, key=lambda row: row.test_id):
        for run_id, before, after in _changes(sorted(spans, key=lambda row: order[row.first_run])):
            if run_id == first and after is not None:
                block = blocks.setdefault(test_id // _BLOCK, bytearray([_ABSENT]) * _BLOCK)
                block[test_id % _BLOCK] = after
            else:
                named = {"test_id": test_id, "lane_id": lane_id, "run_id": run_id}
                rows.append({**named, "before": before, "after": after})
    for place in range(0, len(rows), _BATCH):
        connection.execute(_change.insert(), rows[place : place + _BATCH])
    for number, column in blocks.items():
        data = zlib.compress(bytes(column), 6)
        connection.execute(_opening.insert().values(block=number, lane_id=lane_id, run_id=first, data=data))


def _changes(spans: list[Any]) -> Iterator[tuple[int, int | None, int | None]]:
    """Runs in which a test changed, with its outcome before and after; ``None`` where it was not there."""
    ended: Any = None
    for span in spans:
        if ended is not None and ended.until_run != span.first_run:
            yield ended.until_run, ended.outcome, None
            ended = None
        yield span.first_run, ended.outcome if ended is not None else None, span.outcome
        ended = span if span.until_run is not None else None
    if ended is not None:
        yield ended.until_run, ended.outcome, None


def downgrade() -> None:
    """There is no way back: restore the backup that was made before.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")
