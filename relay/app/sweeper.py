"""The sweeper: ends what nobody ended, forgets what is old, measures what is owed (spec 1.9).

Any number of sweepers may run: each job is held by one of them, and a result that arrives first wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from datetime import datetime, timezone

import structlog
from sqlalchemy import Connection

from relay.app.service import Service
from relay.app.workers import Workers
from relay.core import transitions
from relay.store import deliveries
from relay.store import jobs as job_store
from relay.store import tasks as outbox
from relay.store.database import StoreUnavailable
from relay.store.tasks import KINDS

_log = structlog.get_logger(__name__)
_BATCH = 100


async def run(service: Service, workers: Workers, stop: asyncio.Event) -> None:
    """Sweep every interval until told to stop."""
    while not stop.is_set():
        try:
            while await sweep(service, time.time()) == _BATCH:
                workers.wake()
            workers.wake()
            await forget(service, time.time())
            await measure(service, time.time())
        except StoreUnavailable as error:
            _log.error("store_unavailable", lane="sweeper", error=str(error))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), service.settings.sweep_interval_seconds)


async def sweep(service: Service, now: float) -> int:
    """Time out overdue jobs, at most a batch.

    Returns:
        How many.
    """
    ended = await service.database.run(lambda connection: _time_out(service, connection, now))
    for one in ended:
        _log.warning("job_timed_out", delivery_id=one.delivery_id, repo=one.repo_name, run_id=one.run_id)
    service.metrics.timed_out.inc(len(ended))
    return len(ended)


def _time_out(service: Service, connection: Connection, now: float) -> list[job_store.Identity]:
    ended: list[job_store.Next] = []
    owed = []
    give_up_at = service.keep_until(now)
    for known in job_store.overdue(connection, now=now, limit=_BATCH):
        job = transitions.time_out(known.job, now=now)
        if job is None:
            continue
        one = known.identity
        ended.append(job_store.Next(one, job))
        if service.hud is not None and known.report is not None:
            report = _timed_out_report(known.report, now)
            owed.append(
                outbox.NewTask(
                    f"hud:{one.key}:timed_out", "hud", one.delivery_id, one.repo, one.key, give_up_at, report
                )
            )
    job_store.save(connection, ended)
    outbox.enqueue(connection, owed, now=now)
    wishes = job_store.wishes(connection, [(new.identity, new.job) for new in ended])
    job_store.show_on_pr(connection, wishes, now=now, give_up_at=give_up_at)
    return [new.identity for new in ended]


def _timed_out_report(report: str, now: float) -> str:
    """The job's own first report, ended by us; HUD lets a real result replace it."""
    body = json.loads(report)
    body["trusted"]["ci_metrics"] = {"queue_time": None, "execution_time": None}
    workflow = body["untrusted"]["callback_payload"]["workflow"]
    workflow["status"] = "completed"
    workflow["conclusion"] = "timed_out"
    workflow["completed_at"] = datetime.fromtimestamp(now, timezone.utc).isoformat().replace("+00:00", "Z")
    return json.dumps(body, separators=(",", ":"))


async def forget(service: Service, now: float) -> None:
    """Remove records past the retention that owe nothing."""
    before = now - service.settings.retention_seconds
    removed = await service.database.run(lambda connection: job_store.forget(connection, before=before))
    if removed:
        _log.info("forgotten", rows=removed)


async def measure(service: Service, now: float) -> None:
    """Bring the gauges up to date."""
    before = now - service.settings.job_timeout_seconds
    queue, states, unanswered = await service.database.run(
        lambda connection: (
            outbox.counts(connection),
            job_store.states(connection),
            deliveries.unanswered(connection, before=before),
        )
    )
    for kind in KINDS:
        for state in ("ready", "leased", "dead"):
            service.metrics.queue.labels(kind, state).set(queue.get((kind, state), 0))
    for state in ("IN_PROGRESS", "COMPLETED", "TIMED_OUT"):
        service.metrics.jobs.labels(state).set(states.get(state, 0))
    service.metrics.unanswered.set(unanswered)
    service.metrics.allowlist_ok.set(1 if service.allowlist.error is None else 0)
