"""Keeping the history of each job on the base branch true: what its first run found, what each later one changed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hud.core.history import changes, opening
from hud.core.outcomes import CODE
from hud.core.snapshot import Results, Roster, unpack_outcomes
from hud.store import tables
from hud.store.tables import change, roster, run, snapshot

BRANCH_EVENTS = ("push", "nightly", "periodic")

ORDER = (run.c.order_at, run.c.order_place, run.c.attempt, run.c.id)
"""Order of the runs of a job in its history."""


def tells_history(row: sa.Row[Any]) -> bool:
    """Whether a run belongs to the base branch's history: of a branch, not of a pull request, with all its results."""
    return row.lane_id is not None and row.results == "complete" and row.pr is None and row.event in BRANCH_EVENTS


def enter(connection: sa.Connection, run_number: int) -> None:
    """Enter a run into the history of its job, once its report and its results are both there.

    What is stored of a run depends on the run before it alone, so a run that arrives late is entered at its place by
    telling itself and the run after it.
    """
    row = connection.execute(sa.select(run).where(run.c.id == run_number)).one()
    if row.in_history or not tells_history(row):
        return
    before, after = neighbour(connection, row, later=False), neighbour(connection, row, later=True)
    if before is None and _was_pruned(connection, row.lane_id):
        return
    _tell(connection, row.lane_id, before, row.id)
    if after is not None:
        _tell(connection, row.lane_id, row.id, after)
    connection.execute(run.update().where(run.c.id == row.id).values(in_history=True))


def leave(connection: sa.Connection, run_number: int) -> None:
    """Take a run out of the history of its job, while its old results are still in the store."""
    row = connection.execute(sa.select(run).where(run.c.id == run_number)).one()
    if not row.in_history:
        return
    before, after = neighbour(connection, row, later=False), neighbour(connection, row, later=True)
    if before is None and _was_pruned(connection, row.lane_id):
        return
    connection.execute(change.delete().where(change.c.run_id == row.id))
    if before is None:
        connection.execute(tables.opening.delete().where(tables.opening.c.lane_id == row.lane_id))
    if after is not None:
        _tell(connection, row.lane_id, before, after)
    connection.execute(run.update().where(run.c.id == row.id).values(in_history=False))


def neighbour(connection: sa.Connection, row: sa.Row[Any], later: bool) -> int | None:
    """Number of the run of the same job that comes next in history, or came just before."""
    mine, here = sa.tuple_(*ORDER), sa.tuple_(*(getattr(row, column.name) for column in ORDER))
    query = sa.select(run.c.id).where(run.c.lane_id == row.lane_id, run.c.in_history)
    # The first column alone lets the index find the place; SQLite does not see it in the comparison of rows.
    if later:
        query = query.where(run.c.order_at >= row.order_at, mine > here).order_by(*ORDER)
    else:
        query = query.where(run.c.order_at <= row.order_at, mine < here)
        query = query.order_by(*(column.desc() for column in ORDER))
    return connection.execute(query.limit(1)).scalar_one_or_none()


def _was_pruned(connection: sa.Connection, lane_id: int) -> bool:
    """Whether older results of a job are gone: what stood before its earliest remaining run can't be told anew."""
    pruned = sa.select(run.c.id).where(run.c.lane_id == lane_id, run.c.results == "pruned", run.c.pr.is_(None))
    return connection.execute(pruned.limit(1)).first() is not None


def _tell(connection: sa.Connection, lane_id: int, before: int | None, number: int) -> None:
    """Say what a run changed against the run before it, or what the first run found."""
    connection.execute(change.delete().where(change.c.run_id == number))
    results = _load(connection, number)
    if before is None:
        connection.execute(tables.opening.delete().where(tables.opening.c.lane_id == lane_id))
        blocks = [
            {"block": block, "lane_id": lane_id, "run_id": number, "data": data} for block, data in opening(results)
        ]
        if blocks:
            connection.execute(tables.opening.insert(), blocks)
        return
    rows = [
        {
            "test_id": found.test_id,
            "lane_id": lane_id,
            "run_id": number,
            "before": None if found.before is None else CODE[found.before],
            "after": None if found.after is None else CODE[found.after],
        }
        for found in changes(_load(connection, before), results)
    ]
    if rows:
        connection.execute(change.insert(), rows)


def _load(connection: sa.Connection, run_number: int) -> Results:
    query = (
        sa.select(snapshot.c.outcomes, roster.c.data)
        .join(roster, roster.c.id == snapshot.c.roster_id)
        .where(snapshot.c.run_id == run_number)
    )
    found = connection.execute(query).one()
    return unpack_outcomes(Roster.unpack(found.data), found.outcomes)
