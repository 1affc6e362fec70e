"""Keeping ``interval`` true: for each job on the base branch, from which run to which run a test had an outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from hud.core.history import Change, changes
from hud.core.outcomes import CODE
from hud.core.snapshot import Snapshot
from hud.store.batches import batches
from hud.store.tables import interval, run, snapshot

BRANCH_EVENTS = ("push", "nightly", "periodic")
_BATCH = 500


def tells_history(row: sa.Row[Any]) -> bool:
    """Whether a run belongs to the base branch's history: of a branch, not of a pull request, with all its results."""
    return row.lane_id is not None and row.results == "complete" and row.pr is None and row.event in BRANCH_EVENTS


def enter(connection: sa.Connection, run_number: int) -> None:
    """Enter a run into the history of its job, once its report and its results are both there.

    A run that comes after all others only closes and opens what changed. For one that arrives late, the history from
    its place on is told anew.
    """
    row = connection.execute(sa.select(run).where(run.c.id == run_number)).one()
    if row.in_history or not tells_history(row):
        return
    order = _history(connection, row.lane_id, row)
    here = order.index(row.id)
    before, after = order[:here][-1:], order[here + 1 :]
    if not before and _was_pruned(connection, row.lane_id):
        return
    if after:
        _forget(connection, row.lane_id, [*before, *after], fresh=not before)
    _tell(connection, row.lane_id, [*before, row.id, *after], fresh=not before)
    connection.execute(run.update().where(run.c.id == row.id).values(in_history=True))


def leave(connection: sa.Connection, run_number: int) -> None:
    """Take a run out of the history of its job, while its old results are still in the store."""
    row = connection.execute(sa.select(run).where(run.c.id == run_number)).one()
    if not row.in_history:
        return
    order = _history(connection, row.lane_id, row)
    here = order.index(row.id)
    before, after = order[:here][-1:], order[here + 1 :]
    if not before and _was_pruned(connection, row.lane_id):
        return
    _forget(connection, row.lane_id, [*before, row.id, *after], fresh=not before)
    if after:
        _tell(connection, row.lane_id, [*before, *after], fresh=not before)
    connection.execute(run.update().where(run.c.id == row.id).values(in_history=False))


def _history(connection: sa.Connection, lane_id: int, including: sa.Row[Any]) -> list[int]:
    query = (
        sa.select(run.c.id)
        .where(run.c.lane_id == lane_id, run.c.in_history | (run.c.id == including.id))
        .order_by(run.c.order_at, run.c.order_place, run.c.attempt, run.c.id)
    )
    return list(connection.execute(query).scalars())


def _was_pruned(connection: sa.Connection, lane_id: int) -> bool:
    """Whether older results of a job are gone: what stood before its earliest remaining run can't be told anew."""
    pruned = sa.select(run.c.id).where(run.c.lane_id == lane_id, run.c.results == "pruned", run.c.pr.is_(None))
    return connection.execute(pruned.limit(1)).first() is not None


def _steps(connection: sa.Connection, runs: Sequence[int], fresh: bool) -> Iterable[tuple[int, list[Change]]]:
    """Each run with what it changed; the first one only where nothing comes before it (``fresh``)."""
    previous = Snapshot() if fresh else _load(connection, runs[0])
    for number in runs if fresh else runs[1:]:
        current = _load(connection, number)
        yield number, list(changes(previous, current))
        previous = current


def _tell(connection: sa.Connection, lane_id: int, runs: Sequence[int], fresh: bool) -> None:
    for number, changed in _steps(connection, runs, fresh):
        ended = [change.test_id for change in changed if change.before is not None]
        for batch in batches(ended, _BATCH):
            open_ones = (interval.c.test_id.in_(batch)) & (interval.c.lane_id == lane_id)
            connection.execute(
                interval.update().where(open_ones, interval.c.until_run.is_(None)).values(until_run=number)
            )
        begun = [
            {"test_id": change.test_id, "lane_id": lane_id, "first_run": number, "outcome": CODE[change.after]}
            for change in changed
            if change.after is not None
        ]
        if begun:
            connection.execute(interval.insert(), begun)


def _forget(connection: sa.Connection, lane_id: int, runs: Sequence[int], fresh: bool) -> None:
    later = list(runs if fresh else runs[1:])
    touched = {change.test_id for _, changed in _steps(connection, runs, fresh) for change in changed}
    for batch in batches(sorted(touched), _BATCH):
        mine = (interval.c.test_id.in_(batch)) & (interval.c.lane_id == lane_id)
        connection.execute(interval.delete().where(mine, interval.c.first_run.in_(later)))
        connection.execute(interval.update().where(mine, interval.c.until_run.in_(later)).values(until_run=None))


def _load(connection: sa.Connection, run_number: int) -> Snapshot:
    return Snapshot.unpack(
        connection.execute(sa.select(snapshot.c.data).where(snapshot.c.run_id == run_number)).scalar_one()
    )
