"""What each kind of task does to the world. Every effect can be repeated without harm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import structlog
from sqlalchemy import Connection

from relay.adapters.github import GitHubError
from relay.adapters.hud import HudUnavailable
from relay.app.outcome import Again, Dead, Done, Outcome
from relay.app.service import Service
from relay.core import checks, events
from relay.core.allowlist import Target
from relay.core.ratelimit import Rate, TokenBuckets
from relay.store import deliveries
from relay.store import jobs as job_store
from relay.store.database import Batches
from relay.store.tasks import Kind, Task

_log = structlog.get_logger(__name__)
_FILES_KEPT = 256


class Effects:
    """The acts of one process."""

    def __init__(self, service: Service):
        self._service = service
        self._files: dict[tuple[int, str], list[str]] = {}
        self._dispatches = Batches(service.database, _read_dispatches)
        self._checks = Batches(service.database, _read_checks)
        self._check_turn = asyncio.Lock()
        limit = service.settings.check_writes_per_minute
        self._check_rate = Rate(burst=limit, per_minute=limit)
        self._check_pace = TokenBuckets()
        self._acts: dict[Kind, Callable[[Task], Awaitable[Outcome]]] = {
            "dispatch": self._dispatch,
            "fanout": self._fanout,
            "hud": self._hud,
            "check": self._check,
            "rerun": self._rerun,
            "cancel": self._cancel,
        }

    async def act(self, task: Task) -> Outcome:
        """Do a leased task once."""
        try:
            return await self._acts[task.kind](task)
        except GitHubError as error:
            return _after(error)

    async def _fanout(self, task: Task) -> Outcome:
        """The delivery came while no allowlist was to be had; now there is one."""
        service = self._service
        allowlist = await service.allowlist.current()
        texts = await service.database.run(lambda connection: deliveries.messages(connection, [task.delivery_id]))
        if task.delivery_id not in texts:
            return Dead("the delivery is gone")
        message = json.loads(texts[task.delivery_id])
        decision = events.decide(message["event_type"], message["payload"], service.settings.upstream_repo)
        if not isinstance(decision, events.Fanout):
            return Done()
        targets = events.select(decision, allowlist, service.settings.push_refs)
        now = time.time()

        def address(connection: Connection) -> None:
            deliveries.address(connection, task.delivery_id, targets, now=now, give_up_at=task.give_up_at)

        return Done(address)

    async def _dispatch(self, task: Task) -> Outcome:
        service = self._service
        found = await self._dispatches.run((task.delivery_id, task.subject))
        if found is None:
            return Dead("the delivery is gone")
        dispatch, message = found
        if dispatch.state in {"sent", "skipped"}:
            return Done()
        body = service.client_payload(message, dispatch)

        def mark(state: str, error: str | None = None) -> Callable[[Connection], None]:
            def then(connection: Connection) -> None:
                deliveries.mark(
                    connection,
                    dispatch.delivery_id,
                    dispatch.repo,
                    state,  # type: ignore[arg-type]
                    now=time.time(),
                    error=error,
                )

            return then

        try:
            if dispatch.paths and dispatch.pr_number is not None and dispatch.action != "closed":
                files = await self._pull_files(dispatch.pr_number, dispatch.head_sha)
                if not Target(dispatch.repo_name, "L1", paths=dispatch.paths).wants_paths(files):
                    return Done(mark("skipped", "no changed file matches the allowlist's paths"))
            await service.github.dispatch(dispatch.repo_name, dispatch.event, body)
        except GitHubError as error:
            failed = mark("failed", str(error))
            if error.again is None:
                return Dead(str(error), failed)
            return Again(str(error), error.again.after, error.again.everybody, failed)
        _log.info("dispatched", attempt=task.attempts)
        return Done(mark("sent"))

    async def _pull_files(self, number: int, head_sha: str) -> list[str]:
        key = (number, head_sha)
        if key not in self._files:
            if len(self._files) >= _FILES_KEPT:
                del self._files[next(iter(self._files))]
            self._files[key] = await self._service.github.pull_files(self._service.settings.upstream_repo, number)
        return self._files[key]

    async def _hud(self, task: Task) -> Outcome:
        hud = self._service.hud
        if hud is None or task.data is None:
            return Done()
        try:
            rejected = await hud.send(task.data)
        except HudUnavailable as error:
            return Again(str(error), error.after)
        if rejected is None:
            return Done()
        job_key = task.subject

        def reject(connection: Connection) -> None:
            job_store.reject(connection, job_key)

        return Dead(f"HUD refused the report with {rejected.status}: {rejected.text}", reject, rejected)

    async def _check(self, task: Task) -> Outcome:
        """Make GitHub show the newest wish, whichever wish queued this task.

        One write at a time and not too many a minute, as GitHub asks (GitHub Docs, "Best practices for using the REST
        API"): all of them go to one repository. Wishes that come while a task waits for its turn share its write.
        """
        async with self._check_turn:
            wait = self._check_pace.take("checks", time.monotonic(), self._check_rate)
            while wait > 0:
                await asyncio.sleep(wait)
                wait = self._check_pace.take("checks", time.monotonic(), self._check_rate)
            return await self._write_check(task)

    async def _write_check(self, task: Task) -> Outcome:
        service = self._service
        upstream = service.settings.upstream_repo
        check = await self._checks.run(task.subject)
        if check is None or (check.written_version >= check.version and check.github_id is not None):
            return Done()
        body = checks.request_body(
            name=check.name,
            head_sha=check.head_sha,
            external_id=check.external_id,
            details_url=check.details_url,
            state=check.state,
        )
        github_id = check.github_id
        if github_id is None and (task.attempts > 1 or check.version > 1):
            # An earlier attempt, of this wish or of one before it, may have created it without hearing the answer.
            taken = await service.database.run(lambda connection: job_store.github_ids(connection, check.head_sha))
            for run in await service.github.find_check_runs(upstream, check.head_sha, check.name):
                if run.get("external_id") == check.external_id and run.get("id") not in taken:
                    github_id = int(run["id"])
                    break
        if github_id is None:
            github_id = await service.github.create_check_run(upstream, body)
        else:
            del body["head_sha"]
            await service.github.update_check_run(upstream, github_id, body)
        version, written_id = check.version, github_id

        def written(connection: Connection) -> None:
            job_store.check_written(connection, check.job_key, version=version, github_id=written_id)

        return Done(written)

    async def _rerun(self, task: Task) -> Outcome:
        await self._service.github.rerun_failed_jobs(task.repo, task.subject)
        return Done()

    async def _cancel(self, task: Task) -> Outcome:
        await self._service.github.cancel_run(task.repo, task.subject)
        return Done()


def _read_dispatches(
    connection: Connection, wanted: list[tuple[str, str]]
) -> list[tuple[deliveries.Dispatch, str] | None]:
    """Dispatches with the messages of their deliveries."""
    found = deliveries.find(connection, wanted)
    messages = deliveries.messages(connection, {delivery_id for delivery_id, _ in found})
    return [(found[pair], messages[pair[0]]) if pair in found else None for pair in wanted]


def _read_checks(connection: Connection, job_keys: list[str]) -> list[job_store.Check | None]:
    found = job_store.checks_of(connection, job_keys)
    return [found.get(key) for key in job_keys]


def _after(error: GitHubError) -> Outcome:
    if error.again is None:
        return Dead(str(error))
    return Again(str(error), error.again.after, error.again.everybody)
