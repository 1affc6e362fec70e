"""``POST /github/callback``: who is it, what does it say, what changes, what is owed (spec 1.4 to 1.10)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.adapters.github import GitHubError
from relay.adapters.jwks import KeyServerUnavailable
from relay.app.service import Service, hud_report, token_for
from relay.app.workers import Workers
from relay.core import callback_token, checks, identity, transitions
from relay.core.allowlist import Target
from relay.core.body import BodyError, load_object
from relay.store import deliveries
from relay.store import jobs as job_store
from relay.store import tasks as outbox
from relay.store.jobs import Identity
from relay.store.tasks import Task
from relay.wire import Callback, run_key

_log = structlog.get_logger(__name__)
_SHA = re.compile(r"[0-9a-f]{40}")
_RUN_ID = re.compile(r"[0-9]{1,20}")
_COMMITS_KEPT = 4096
_COMMIT_SECONDS = 3600.0


class CallbackError(Exception):
    """The callback is answered with ``status``; the text tells its author why and what to do."""

    def __init__(self, status: int, reason: str, retry_after: float | None = None):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True)
class _Subject:
    """What a callback is about, as far as we know it ourselves."""

    target: Target
    delivery_id: str
    event: str
    pr_number: int | None
    head_sha: str
    dispatched_at: float | None
    job_timeout_seconds: float


@dataclass(frozen=True)
class _Stored:
    """What a report did; ``queued`` names the lanes that got work, ``task`` is leased to this process."""

    step: transitions.Step
    task: Task | None
    queued: tuple[str, ...] = ()


class Callbacks:
    """The callback endpoint of one process."""

    def __init__(self, service: Service, workers: Workers):
        self._service = service
        self._workers = workers
        self._commits: dict[str, tuple[bool, float]] = {}

    async def authenticate(self, authorization: str | None) -> tuple[str, bool]:
        """The repository that the caller speaks for, and whether its run pages are GitHub's.

        Raises:
            CallbackError: 401, 403 or 503.
        """
        service = self._service
        try:
            token = identity.bearer(authorization)
            unverified = identity.peek(token, service.anchors)
            key = await service.keys.key(unverified.issuer, unverified.key_id)
            claims = identity.verify(token, unverified, key, service.settings.oidc_audience)
            return identity.repository(claims, unverified.issuer), unverified.issuer.pipelines is None
        except identity.Refused as error:
            raise CallbackError(error.status, error.reason) from error
        except KeyServerUnavailable as error:
            raise CallbackError(503, str(error), 30) from error

    async def receive(self, authorization: str | None, body: bytes) -> dict[str, Any]:
        """Take one callback.

        Returns:
            The body of the 200 answer.

        Raises:
            CallbackError: any other answer.
            StoreUnavailable: nothing was stored; the caller may retry.
        """
        service = self._service
        repo, has_github_pages = await self.authenticate(authorization)
        structlog.contextvars.bind_contextvars(repo=repo)
        try:
            target = (await service.allowlist.current()).get(repo)
        except AllowlistUnavailable as error:
            raise CallbackError(503, f"the relay has no allowlist: {error}", 30) from error
        wait = await service.limits.take(repo.lower(), service.rate(target))
        if wait > 0:
            raise CallbackError(429, f"{repo} reports faster than this relay accepts", wait)
        callback = _parse(body)
        structlog.contextvars.bind_contextvars(delivery_id=callback.delivery_id)
        if target is None:
            return _ignored(f"{repo} is not on the allowlist")
        if target.level == "L1":
            return _ignored(f"{repo} is at level L1, whose results are not stored")
        subject = await self._subject(callback, target)
        return await self._store(callback, subject, has_github_pages)

    async def _subject(self, callback: Callback, target: Target) -> _Subject:
        if callback.event_type in {"nightly", "periodic"}:
            return await self._own_run(callback, target)
        settings = self._service.settings
        dispatch = await self._service.database.run(
            lambda connection: deliveries.find(connection, callback.delivery_id, target.key)
        )
        if dispatch is None:
            raise CallbackError(
                400, f"no dispatch of delivery {callback.delivery_id[:100]!r} to {target.repo} is on record"
            )
        if dispatch.event != callback.event_type:
            raise CallbackError(
                400, f"delivery {dispatch.delivery_id} was a {dispatch.event}, not {callback.event_type}"
            )
        if callback.callback_token is not None:
            try:
                callback_token.check(callback.callback_token, settings.callback_secret, token_for(dispatch))
            except callback_token.CallbackTokenError as error:
                raise CallbackError(403, str(error)) from error
        elif settings.require_callback_token:
            raise CallbackError(403, "callback_token is missing; send back client_payload.callback_token as dispatched")
        _same_commit(callback, dispatch)
        sent = dispatch.sent_at if dispatch.sent_at is not None else dispatch.created_at
        return _Subject(
            target=target,
            delivery_id=dispatch.delivery_id,
            event=dispatch.event,
            pr_number=dispatch.pr_number,
            head_sha=dispatch.head_sha,
            dispatched_at=min(sent, time.time()),
            job_timeout_seconds=dispatch.job_timeout_seconds or settings.job_timeout_seconds,
        )

    async def _own_run(self, callback: Callback, target: Target) -> _Subject:
        """A nightly or periodic run, which the backend started by itself and reports once."""
        settings = self._service.settings
        kind = callback.event_type
        payload = callback.payload
        if callback.workflow.status != "completed":
            raise CallbackError(400, f"a {kind} run is reported once, as completed")
        for key in ("pull_request", "number", "pull_requests"):
            if key in payload:
                raise CallbackError(400, f"a {kind} report must not carry pull request data (payload.{key})")
        repository = payload.get("repository")
        name = repository.get("full_name") if isinstance(repository, dict) else repository
        if not isinstance(name, str) or name.lower() != settings.upstream_repo.lower():
            raise CallbackError(400, f"payload.repository must name {settings.upstream_repo}")
        sha = callback.delivery_id
        if not _SHA.fullmatch(sha):
            raise CallbackError(
                400, f"delivery_id of a {kind} report must be the tested commit (40 hexadecimal digits)"
            )
        for key in ("head_sha", "sha", "after"):
            if payload.get(key, sha) != sha:
                raise CallbackError(400, f"payload.{key} and delivery_id name different commits")
        if not await self._commit_exists(sha):
            raise CallbackError(400, f"{settings.upstream_repo} has no commit {sha}")
        return _Subject(
            target=target,
            delivery_id=sha,
            event=kind,
            pr_number=None,
            head_sha=sha,
            dispatched_at=None,
            job_timeout_seconds=settings.job_timeout_seconds,
        )

    async def _commit_exists(self, sha: str) -> bool:
        """Ask GitHub, but believe the reporter while GitHub does not answer: the report is information only."""
        now = time.monotonic()
        known = self._commits.get(sha)
        if known is not None and now < known[1]:
            return known[0]
        try:
            exists = await self._service.github.commit_exists(self._service.settings.upstream_repo, sha)
        except GitHubError as error:
            _log.warning("commit_not_checked", sha=sha, error=str(error))
            return True
        if len(self._commits) >= _COMMITS_KEPT:
            del self._commits[next(iter(self._commits))]
        # A commit that is missing may be pushed in a moment; one that exists stays.
        self._commits[sha] = (exists, now + (_COMMIT_SECONDS if exists else 60.0))
        return exists

    async def _store(self, callback: Callback, subject: _Subject, has_github_pages: bool) -> dict[str, Any]:
        service = self._service
        lane = self._workers.lanes["hud"]
        at_once = service.hud is not None and lane.healthy and lane.free > 0
        now = time.time()
        one = _identity(callback, subject, self._run_page(callback, subject, has_github_pages))
        stored = await service.database.run(
            lambda connection: _apply(service, connection, callback, subject, one, now=now, at_once=at_once)
        )
        step = stored.step
        if isinstance(step, transitions.Impossible):
            raise CallbackError(400, step.reason)
        if isinstance(step, transitions.Superseded):
            return _ignored(step.reason)
        if stored.task is not None:
            refusal = await self._workers.refusal(lane.start(stored.task), service.settings.hud_wait_seconds)
            if refusal is not None:
                raise CallbackError(refusal.status, f"HUD refused the report: {refusal.text}")
        if stored.queued:
            self._workers.wake(*stored.queued)
        repeated = isinstance(step, transitions.Repeated)
        answer: dict[str, Any] = {"ok": True, "status": "duplicate" if repeated else callback.workflow.status}
        upload = service.results_upload(subject.target.repo, subject.target.level, callback, one.key)
        if upload is not None:
            answer["results_upload"] = upload.model_dump(mode="json")
        return answer

    def _run_page(self, callback: Callback, subject: _Subject, has_github_pages: bool) -> str | None:
        """GitHub's own page of the run where there is one; a reporter's link only if it is http(s)."""
        workflow = callback.workflow
        if has_github_pages and _RUN_ID.fullmatch(workflow.run_id):
            return f"{self._service.settings.web_url}/{quote(subject.target.repo)}/actions/runs/{workflow.run_id}"
        url = workflow.url or ""
        return url if url.lower().startswith(("https://", "http://")) else None


def _parse(body: bytes) -> Callback:
    try:
        return Callback.model_validate(load_object(body, forbid_nul=True))
    except BodyError as error:
        raise CallbackError(400, str(error)) from error
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)[:10]
        ]
        raise CallbackError(400, "; ".join(problems)) from error


def _ignored(reason: str) -> dict[str, Any]:
    return {"ok": True, "status": "ignored", "reason": reason}


def _same_commit(callback: Callback, dispatch: deliveries.Dispatch) -> None:
    """The body must speak of the dispatched commit; a mixed-up payload would be shown under the wrong one."""
    pull = callback.payload.get("pull_request")
    if isinstance(pull, dict):
        head = pull.get("head")
        sha = head.get("sha") if isinstance(head, dict) else None
        if pull.get("number", dispatch.pr_number) != dispatch.pr_number:
            raise CallbackError(400, "payload.pull_request.number is not the dispatched pull request")
    else:
        sha = callback.payload.get("after")
    if sha is not None and sha != dispatch.head_sha:
        raise CallbackError(400, f"the payload names commit {str(sha)[:64]!r}; {dispatch.head_sha} was dispatched")


def _identity(callback: Callback, subject: _Subject, url: str | None) -> Identity:
    workflow = callback.workflow
    target = subject.target
    return Identity(
        key=run_key(target.repo, callback.delivery_id, workflow.run_id, workflow.run_attempt, workflow.job_name),
        delivery_id=subject.delivery_id,
        repo=target.key,
        repo_name=target.repo,
        level=target.level,
        device=target.device,
        event=subject.event,
        pr_number=subject.pr_number,
        head_sha=subject.head_sha,
        workflow=workflow.name,
        job_name=workflow.job_name,
        run_id=workflow.run_id,
        run_attempt=workflow.run_attempt,
        url=url,
    )


def _apply(
    service: Service,
    connection: Connection,
    callback: Callback,
    subject: _Subject,
    one: Identity,
    *,
    now: float,
    at_once: bool,
) -> _Stored:
    """One transaction: the job's transition, its report to HUD, and what the PR should show."""
    workflow = callback.workflow
    known = job_store.hold(connection, one.key)
    while True:
        step = transitions.advance(
            known.job if known else None,
            workflow,
            now=now,
            dispatched_at=subject.dispatched_at,
            rejected=known.rejected if known else False,
        )
        if not isinstance(step, transitions.Accepted):
            return _Stored(step, None)
        report = hud_report(callback, subject.target.repo, subject.target.level, step.metrics)
        unfinished = step.job.state == "IN_PROGRESS"
        deadline = now + subject.job_timeout_seconds if unfinished else None
        kept = report if unfinished else None
        if known is not None:
            job_store.save(connection, one, step.job, deadline=deadline, report=kept)
            break
        if job_store.create(connection, one, step.job, now=now, deadline=deadline, report=kept):
            break
        known = job_store.hold(connection, one.key)  # another report of this job was first
    task = None
    queued = []
    if service.hud is not None:
        new = outbox.NewTask(
            f"hud:{one.key}:{workflow.status}",
            "hud",
            one.delivery_id,
            one.repo,
            one.key,
            service.keep_until(now),
            report,
        )
        if at_once:
            until = now + service.settings.lease_seconds
            task = outbox.enqueue_leased(connection, new, now=now, owner=service.owner, lease_until=until)
            if task is None:
                queued.append("hud")  # it is being done, and will be done again
        else:
            outbox.enqueue(connection, [new], now=now)
            queued.append("hud")
    if one.pr_number is not None and one.level in {"L3", "L4"}:
        devices = job_store.gate(connection, one.pr_number) if one.level == "L3" else ()
        opened = checks.gate_open(one.level, one.device, devices)
        give_up_at = service.keep_until(now)
        if job_store.show_on_pr(connection, one, step.job, opened=opened, now=now, give_up_at=give_up_at):
            queued.append("github")
    return _Stored(step, task, tuple(queued))
