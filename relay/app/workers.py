"""Workers: lease what is owed, do it, record how it went (spec 2).

A lane does the tasks of some kinds, so that a HUD outage cannot hold up dispatches. A callback hands its HUD task to
the lane of its own process, already leased; if that process dies, the lease runs out and any worker goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.adapters.hud import Rejected
from relay.app.effects import Effects
from relay.app.outcome import Again, Dead, Done, Outcome
from relay.app.service import Service
from relay.core import retry
from relay.store import tasks as outbox
from relay.store.database import StoreUnavailable
from relay.store.tasks import Kind, Task

_log = structlog.get_logger(__name__)
_STORE_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class LaneSpec:
    """Which kinds a lane does, and how many at a time."""

    name: str
    kinds: tuple[Kind, ...]
    concurrency: int


class Lane:
    """One lane of one process.

    Attributes:
        healthy: whether the last attempt got through; callers do not wait for a lane that fails.
    """

    def __init__(self, service: Service, spec: LaneSpec, act: Callable[[Task], Awaitable[Outcome]]):
        self.healthy = True
        self.spec = spec
        self._service = service
        self._act = act
        self._running: set[asyncio.Task[Outcome]] = set()
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

    def start(self, task: Task) -> asyncio.Task[Outcome]:
        """Do a task that is leased to this process."""
        running = asyncio.create_task(self._attempt(task))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Task[Outcome]) -> None:
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

    async def _attempt(self, task: Task) -> Outcome:
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
            await self._record(task, outcome)
            return outcome

    async def _record(self, task: Task, outcome: Outcome) -> None:
        service = self._service
        now = time.time()
        owner = service.owner
        wait = 0.0
        if isinstance(outcome, Again):
            wait = max(outcome.after or 0.0, retry.backoff(task.attempts))
            if now + wait > task.give_up_at:
                outcome = Dead(f"given up after {task.attempts} attempts: {outcome.error}", outcome.given_up)

        def work(connection: Connection) -> bool:
            if isinstance(outcome, Done):
                held = outbox.finish(connection, task, owner=owner, now=now)
            elif isinstance(outcome, Again):
                return outbox.postpone(connection, task, owner=owner, not_before=now + wait, error=outcome.error)
            else:
                held = outbox.bury(connection, task, owner=owner, now=now, error=outcome.error)
            # Even when the lease was lost: the effect is there, and the record must say so.
            if outcome.then is not None and (held or isinstance(outcome, Done)):
                outcome.then(connection)
            return held

        if isinstance(outcome, Again):
            _log.warning("task_failed", error=outcome.error, attempt=task.attempts, retry_in=round(wait, 1))
        elif isinstance(outcome, Dead):
            _log.error("task_dead", error=outcome.error, attempt=task.attempts)
        try:
            await service.database.run(work)
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
        self._service = service
        self.lanes = {
            spec.name: Lane(service, spec, effects.act)
            for spec in (
                LaneSpec("dispatch", ("fanout", "dispatch"), settings.worker_concurrency),
                LaneSpec("hud", ("hud",), settings.other_concurrency),
                LaneSpec("github", ("check", "rerun", "cancel"), settings.other_concurrency),
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

    async def refusal(self, running: asyncio.Task[Outcome], seconds: float) -> Rejected | None:
        """Wait for a HUD delivery just started, but not for long.

        Returns:
            HUD's refusal, or ``None`` if HUD has the report or has not answered yet.
        """
        if seconds <= 0:
            return None
        done, _ = await asyncio.wait({running}, timeout=seconds)
        outcome = running.result() if done and not running.cancelled() else None
        return outcome.rejected if isinstance(outcome, Dead) else None
