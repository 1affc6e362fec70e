"""Forgetting old results, without losing since when a test has its present outcome."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, takewhile

import sqlalchemy as sa

from hud.store.batches import batches
from hud.store.engine import Store
from hud.store.history import ORDER
from hud.store.tables import branch_commit, change, detail, failure, opening, pull_head, refusal, roster, run, snapshot

_BATCH = 200
_TELLS = sa.exists().where(change.c.run_id == run.c.id).correlate(run) | sa.exists().where(
    opening.c.run_id == run.c.id
).correlate(run)
"""Whether a stretch of history begins at a run."""


@dataclass(frozen=True)
class Pruned:
    """What was forgotten."""

    runs: int
    results: int
    changes: int
    details: int


def prune(store: Store, before: float) -> Pruned:
    """Forget runs that were first heard of before a moment.

    Their per-test results go. So do the runs themselves, unless a stretch of history that still matters begins there:
    a test that has failed for two years keeps the run in which it began to. The latest results of every job on the base
    branch stay whatever their age, because nothing else tells how things stand.

    Args:
        store: where.
        before: seconds since the epoch.
    """
    with store.read() as connection:
        old = _old(connection, before)
    results = runs = 0
    changes = sum(_thin(store, lane_id, numbers) for lane_id, numbers in old.items() if lane_id is not None)
    every = [number for numbers in old.values() for number in numbers]
    for batch in batches(every, _BATCH):
        with store.write(alone=True) as connection:
            connection.execute(failure.delete().where(failure.c.run_id.in_(batch)))
            results += connection.execute(snapshot.delete().where(snapshot.c.run_id.in_(batch))).rowcount
            had = (run.c.id.in_(batch)) & (run.c.results != "none")
            connection.execute(
                run.update().where(had).values(results="pruned", in_history=False, revision=run.c.revision + 1)
            )
            runs += connection.execute(run.delete().where(run.c.id.in_(batch), ~_TELLS)).rowcount
    with store.write(alone=True) as connection:
        # Of runs that an earlier prune had to keep, some have nothing to tell any more.
        runs += connection.execute(run.delete().where(run.c.results == "pruned", ~_TELLS)).rowcount
        used = sa.exists().where(failure.c.detail_id == detail.c.id)
        details = connection.execute(detail.delete().where(~used)).rowcount
        connection.execute(roster.delete().where(~sa.exists().where(snapshot.c.roster_id == roster.c.id)))
        told = sa.exists().where(run.c.pr == pull_head.c.pr, run.c.upstream == pull_head.c.upstream)
        connection.execute(pull_head.delete().where(pull_head.c.at < before, ~told))
        tested = sa.exists().where(run.c.sha == branch_commit.c.sha)
        connection.execute(branch_commit.delete().where(branch_commit.c.at < before, ~tested))
        connection.execute(refusal.delete().where(refusal.c.at < before))
    return Pruned(runs, results, changes, details)


def _old(connection: sa.Connection, before: float) -> dict[int | None, list[int]]:
    """Runs to forget, by job; those that no history tells of under ``None``.

    Of a job's history only its beginning is forgotten: a run that arrived late keeps what follows it. Its latest stays.
    """
    query = sa.select(run.c.id, run.c.lane_id, run.c.first_seen).where(run.c.in_history)
    told = connection.execute(query.order_by(run.c.lane_id, *ORDER)).all()
    old: dict[int | None, list[int]] = {}
    for lane_id, rows in groupby(told, key=lambda row: row.lane_id):
        *earlier, _ = rows
        old[lane_id] = [row.id for row in takewhile(lambda row: row.first_seen < before, earlier)]
    apart = sa.select(run.c.id).where(run.c.first_seen < before, ~run.c.in_history, run.c.results != "pruned")
    old[None] = list(connection.execute(apart.order_by(run.c.id)).scalars())
    return old


def _thin(store: Store, lane_id: int, numbers: list[int]) -> int:
    """Keep, of what a job's old runs changed about a test, the last: since then it has been what a later run met.

    How the test stood before is forgotten with the runs that told it.

    Args:
        store: where.
        lane_id: the job.
        numbers: its old runs.

    Returns:
        How many changes were forgotten.
    """
    if not numbers:
        return 0
    with store.write(alone=True) as connection:
        # Of runs that were pruned earlier the last changes are still there.
        earlier = sa.select(run.c.id).where(run.c.lane_id == lane_id, run.c.results == "pruned").order_by(*ORDER)
        last: dict[int, int] = {}
        forgotten: list[dict[str, int]] = []
        order = [*connection.execute(earlier).scalars(), *numbers]
        for number in order:
            for test_id in connection.execute(sa.select(change.c.test_id).where(change.c.run_id == number)).scalars():
                if test_id in last:
                    forgotten.append({"test": test_id, "lane": lane_id, "run": last[test_id]})
                last[test_id] = number
        mine = (change.c.test_id == sa.bindparam("test")) & (change.c.lane_id == sa.bindparam("lane"))
        if forgotten:
            connection.execute(change.delete().where(mine, change.c.run_id == sa.bindparam("run")), forgotten)
        for batch in batches(order, _BATCH):
            connection.execute(change.update().where(change.c.run_id.in_(batch)).values(before=None))
    return len(forgotten)
