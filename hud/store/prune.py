"""Forgetting old results, without losing since when a test has its present outcome."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from hud.store.batches import batches
from hud.store.engine import Store
from hud.store.tables import branch_commit, detail, failure, interval, pull_head, refusal, run, snapshot

_BATCH = 200


@dataclass(frozen=True)
class Pruned:
    """What was forgotten."""

    runs: int
    results: int
    intervals: int
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
        kept = _latest_of_each_lane(connection)
        old_ids = sa.select(run.c.id).where(run.c.first_seen < before).order_by(run.c.id)
        old = [number for number in connection.execute(old_ids).scalars() if number not in kept]
    results = intervals = runs = 0
    for batch in batches(old, _BATCH):
        with store.write() as connection:
            connection.execute(failure.delete().where(failure.c.run_id.in_(batch)))
            results += connection.execute(snapshot.delete().where(snapshot.c.run_id.in_(batch))).rowcount
            had = (run.c.id.in_(batch)) & (run.c.results != "none")
            connection.execute(
                run.update().where(had).values(results="pruned", in_history=False, revision=run.c.revision + 1)
            )
    with store.write() as connection:
        gone = sa.select(run.c.id).where(run.c.first_seen < before, run.c.id.not_in(kept))
        intervals = connection.execute(interval.delete().where(interval.c.until_run.in_(gone))).rowcount
    for batch in batches(old, _BATCH):
        with store.write() as connection:
            begins = set(
                connection.execute(
                    sa.select(interval.c.first_run).where(interval.c.first_run.in_(batch)).distinct()
                ).scalars()
            )
            unused = [number for number in batch if number not in begins]
            runs += connection.execute(run.delete().where(run.c.id.in_(unused))).rowcount
    with store.write() as connection:
        used = sa.exists().where(failure.c.detail_id == detail.c.id)
        details = connection.execute(detail.delete().where(~used)).rowcount
        told = sa.exists().where(run.c.pr == pull_head.c.pr, run.c.upstream == pull_head.c.upstream)
        connection.execute(pull_head.delete().where(pull_head.c.at < before, ~told))
        tested = sa.exists().where(run.c.sha == branch_commit.c.sha)
        connection.execute(branch_commit.delete().where(branch_commit.c.at < before, ~tested))
        connection.execute(refusal.delete().where(refusal.c.at < before))
    return Pruned(runs, results, intervals, details)


def _latest_of_each_lane(connection: sa.Connection) -> set[int]:
    order = (run.c.order_at.desc(), run.c.order_place.desc(), run.c.attempt.desc(), run.c.id.desc())
    rank = sa.func.row_number().over(partition_by=run.c.lane_id, order_by=order).label("rank")
    ranked = sa.select(run.c.id, rank).where(run.c.in_history).subquery()
    return set(connection.execute(sa.select(ranked.c.id).where(ranked.c.rank == 1)).scalars())
