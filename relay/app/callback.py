"""``POST /github/callback``: who is it, what does it say, what changes, what is owed (spec 1.4 to 1.10)."""

from __future__ import annotations

import re
import time
from functools import partial
from operator import attrgetter
from typing import Any

import structlog
from pydantic import ValidationError

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.adapters.github import GitHubError
from relay.adapters.jwks import KeyServerUnavailable
from relay.app.intake import CallbackError, Report, Subject, Taken, key_of, take
from relay.app.service import Service
from relay.app.workers import Workers
from relay.core import checks, identity, transitions
from relay.core.allowlist import Target
from relay.core.body import BodyError, load_object
from relay.store.database import Batches
from relay.wire import Callback

_log = structlog.get_logger(__name__)
_SHA = re.compile(r"[0-9a-f]{40}")
_RUN_ID = re.compile(r"[0-9]{1,20}")
_COMMITS_KEPT = 4096
_COMMIT_SECONDS = 3600.0
_LINGER_SECONDS = 0.003


class Callbacks:
    """The callback endpoint of one process."""

    def __init__(self, service: Service, workers: Workers):
        self._service = service
        self._workers = workers
        self._commits: dict[str, tuple[bool, float]] = {}
        self._intake: Batches[Report, Taken | CallbackError] = Batches(
            service.database, partial(take, service), key=attrgetter("key"), linger=_LINGER_SECONDS
        )

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
        lane = self._workers.lanes["hud"]
        report = Report(
            callback=callback,
            target=target,
            key=key_of(callback, target),
            url=self._run_page(callback, target, has_github_pages),
            own=await self._own_run(callback) if callback.event_type in {"nightly", "periodic"} else None,
            at_once=service.hud is not None and lane.healthy and lane.free > len(self._intake),
        )
        return await self._take(report)

    async def _own_run(self, callback: Callback) -> Subject:
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
        return Subject(
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

    async def _take(self, report: Report) -> dict[str, Any]:
        service = self._service
        lane = self._workers.lanes["hud"]
        taken = await self._intake.run(report)
        if isinstance(taken, CallbackError):
            raise taken
        step = taken.step
        if isinstance(step, transitions.Impossible):
            raise CallbackError(400, step.reason)
        if isinstance(step, transitions.Superseded):
            return _ignored(step.reason)
        if taken.queued:
            self._workers.wake(*taken.queued)
        if taken.task is not None:
            refusal = await self._workers.refusal(lane.start(taken.task), service.settings.hud_wait_seconds)
            if refusal is not None:
                raise CallbackError(refusal.status, f"HUD refused the report: {refusal.text}")
        repeated = isinstance(step, transitions.Repeated)
        callback, target = report.callback, report.target
        answer: dict[str, Any] = {"ok": True, "status": "duplicate" if repeated else callback.workflow.status}
        upload = service.results_upload(target.repo, target.level, callback, report.key)
        if upload is not None:
            answer["results_upload"] = upload.model_dump(mode="json")
        return answer

    def _run_page(self, callback: Callback, target: Target, has_github_pages: bool) -> str | None:
        """GitHub's own page of the run where there is one; a reporter's link only if it is http(s)."""
        workflow = callback.workflow
        if has_github_pages and _RUN_ID.fullmatch(workflow.run_id):
            return checks.run_page(self._service.settings.web_url, target.repo, workflow.run_id)
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
