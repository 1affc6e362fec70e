"""Workers: lease what is owed, do it, record how it went (spec 2).

A lane does the tasks of some kinds, so that a HUD outage cannot hold up dispatches. A callback hands its HUD task to
the lane of its own process, already leased; if that process dies, the lease runs out and any worker goes on. How tasks
ended is recorded for all lanes together, as many as end at the same time in one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy import Connection

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.adapters.hud import Rejected
from relay.app.effects import Effects
from relay.app.outcome import Again, Dead, Done, Outcome
from relay.app.service import Service
from relay.core import retry
from relay.store import tasks as outbox
from relay.store.database import Batches, StoreUnavailable
from relay.store.tasks import Kind, Task

_log = structlog.get_logger(__name__)
_STORE_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 10.0
_GATHER_SECONDS = 0.005
_LINGER_SECONDS = 0.01


@dataclass(frozen=True)
class LaneSpec:
    """Which kinds a lane does, and how many at a time."""

    name: str
    kinds: tuple[Kind, ...]
    concurrency: int


@dataclass(frozen=True)
class _End:
    """How an attempt ended, at which moment, and when the next one may be."""

    task: Task
    outcome: Outcome
    at: float
    not_before: float


def _record(owner: str, connection: Connection, ends: list[_End]) -> list[None]:
    # Tasks last and all in one order, as whoever queues tasks does it; else two transactions could wait for each other.
    ends = sorted(ends, key=lambda end: end.task.key)
    for end in ends:
        # Even where the lease was lost: the effect is there, and the record must say so.
        if isinstance(end.outcome, Done) and end.outcome.then is not None:
            end.outcome.then(connection)
    done = [end for end in ends if isinstance(end.outcome, Done)]
    if done:
        outbox.finish(connection, [end.task for end in done], owner=owner, now=max(end.at for end in done))
    for end in ends:
        task, outcome = end.task, end.outcome
        if isinstance(outcome, Again):
            outbox.postpone(connection, task, owner=owner, not_before=end.not_before, error=outcome.error)
        elif isinstance(outcome, Dead):
            held = outbox.bury(connection, task, owner=owner, now=end.at, error=outcome.error)
            if held and outcome.then is not None:
                outcome.then(connection)
    return [None] * len(ends)


class Lane:
    """One lane of one process.

    Attributes:
        healthy: whether the last attempt got through; callers do not wait for a lane that fails.
    """

    def __init__(
        self, service: Service, spec: LaneSpec, act: Callable[[Task], Awaitable[Outcome]], records: Batches[_End, None]
    ):
        self.healthy = True
        self.spec = spec
        self._service = service
        self._act = act
        self._records = records
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._backlog = True  # after a start there may be anything
        self._asked = False  # while tasks run, one of which may be what has to be done again
        self._paused_until = 0.0

    @property
    def free(self) -> int:
        """Tasks that can start now."""
        return self.spec.concurrency - len(self._running)

    def wake(self) -> None:
        """Something was queued: look now instead of at the next poll."""
        self._asked = bool(self._running)
        self._wake.set()

    def start(self, task: Task) -> asyncio.Future[Outcome]:
        """Do a task that is leased to this process.

        Returns:
            How it ended: known before that is recorded, except for what is dead, whose consequences are in the store.
        """
        known: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(self._attempt(task, known))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return known

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if self._backlog or self._asked:
            # The one that has to be done again may be another of them.
            self._asked = self._asked and bool(self._running)
            self._wake.set()

    async def poll(self, stop: asyncio.Event) -> None:
        """Lease and start tasks until told to stop."""
        settings = self._service.settings
        while not stop.is_set():
            if not self._backlog or self.free <= 0:
                await self._sleep(stop, settings.poll_interval_seconds)
            self._wake.clear()
            pause = self._paused_until - time.monotonic()
            if pause > 0:
                await self._sleep(stop, min(pause, settings.poll_interval_seconds))
                continue
            if self._backlog and 0 < self.free < self.spec.concurrency // 2:
                # A look costs a transaction whatever it finds; tasks that started together end together.
                await asyncio.sleep(_GATHER_SECONDS)
            limit = self.free
            if limit <= 0:
                self._backlog = True
                continue
            try:
                tasks = await self._service.database.run(
                    lambda connection, limit=limit: outbox.lease(  # type: ignore[misc]
                        connection,
                        self.spec.kinds,
                        owner=self._service.owner,
                        now=time.time(),
                        seconds=settings.lease_seconds,
                        limit=limit,
                    )
                )
            except StoreUnavailable as error:
                _log.error("store_unavailable", lane=self.spec.name, error=str(error))
                await self._sleep(stop, _STORE_PAUSE_SECONDS)
                continue
            self._backlog = len(tasks) == limit
            for task in tasks:
                self.start(task)

    async def _sleep(self, stop: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.create_task(self._wake.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _attempt(self, task: Task, known: asyncio.Future[Outcome]) -> None:
        service = self._service
        with structlog.contextvars.bound_contextvars(
            task=task.key, kind=task.kind, delivery_id=task.delivery_id, repo=task.repo
        ):
            started = time.monotonic()
            try:
                # Shorter than the lease: when it runs out, nobody may still be at work.
                outcome = await asyncio.wait_for(self._act(task), service.settings.lease_seconds * 0.8)
            except asyncio.TimeoutError:
                outcome = Again("took longer than its lease")
            except (StoreUnavailable, AllowlistUnavailable) as error:
                outcome = Again(str(error))
            except Exception as error:
                _log.exception("task_crashed")
                outcome = Again(f"internal error: {error!r}")
            service.metrics.task_seconds.labels(task.kind).observe(time.monotonic() - started)
            service.metrics.tasks.labels(task.kind, type(outcome).__name__.lower()).inc()
            self.healthy = not isinstance(outcome, Again)
            if isinstance(outcome, Again) and outcome.everybody and outcome.after is not None:
                self._paused_until = max(self._paused_until, time.monotonic() + outcome.after)
            if not isinstance(outcome, Dead):
                known.set_result(outcome)
            await self._record(task, outcome)
            if isinstance(outcome, Dead):
                known.set_result(outcome)

    async def _record(self, task: Task, outcome: Outcome) -> None:
        now = time.time()
        wait = 0.0
        if isinstance(outcome, Again):
            wait = max(outcome.after or 0.0, retry.backoff(task.attempts))
            if now + wait > task.give_up_at:
                outcome = Dead(f"given up after {task.attempts} attempts: {outcome.error}", outcome.given_up)
        if isinstance(outcome, Again):
            _log.warning("task_failed", error=outcome.error, attempt=task.attempts, retry_in=round(wait, 1))
        elif isinstance(outcome, Dead):
            _log.error("task_dead", error=outcome.error, attempt=task.attempts)
        try:
            await self._records.run(_End(task, outcome, now, now + wait))
        except StoreUnavailable as error:
            # The lease runs out and the effect is repeated, which its receiver can bear.
            _log.error("task_not_recorded", error=str(error))

    async def drain(self) -> None:
        """Let what is under way end, for a short while."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=_STOP_SECONDS)
        for running in set(self._running):
            running.cancel()


class Workers:
    """All lanes of one process."""

    def __init__(self, service: Service):
        settings = service.settings
        effects = Effects(service)
        records: Batches[_End, None] = Batches(
            service.database, partial(_record, service.owner), linger=_LINGER_SECONDS
        )
        self._service = service
        self.lanes = {
            spec.name: Lane(service, spec, effects.act, records)
            for spec in (
                LaneSpec("dispatch", ("fanout", "dispatch"), settings.worker_concurrency),
                LaneSpec("hud", ("hud",), settings.worker_concurrency),
                LaneSpec("checks", ("check",), settings.other_concurrency),
                LaneSpec("runs", ("rerun", "cancel"), settings.other_concurrency),
            )
        }

    def wake(self, *names: str) -> None:
        """Something was queued, for these lanes or nobody knows for which. A look costs a transaction."""
        for name in names or self.lanes:
            self.lanes[name].wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop, then give back what is not done."""
        await asyncio.gather(*(lane.poll(stop) for lane in self.lanes.values()))
        await self.close()

    async def close(self) -> None:
        """End what is under way and give the rest back."""
        await asyncio.gather(*(lane.drain() for lane in self.lanes.values()))
        owner = self._service.owner
        try:
            await self._service.database.run(lambda connection: outbox.release(connection, owner, now=time.time()))
        except StoreUnavailable as error:
            _log.warning("leases_not_released", error=str(error))

    async def refusal(self, known: asyncio.Future[Outcome], seconds: float) -> Rejected | None:
        """Wait for a HUD delivery just started, but not for long.

        Returns:
            HUD's refusal, or ``None`` if HUD has the report or has not answered yet.
        """
        if seconds <= 0:
            return None
        done, _ = await asyncio.wait({known}, timeout=seconds)
        outcome = known.result() if done else None
        return outcome.rejected if isinstance(outcome, Dead) else None
