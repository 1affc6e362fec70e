"""The transaction that takes callbacks: all that wait at the moment, in one (docs/relay.md, "How a callback travels").

For each report: whether it may move its job, the job's next state, the report that HUD is owed, and what the PR should
show. Nothing is answered before it is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from relay.app.service import Service, hud_report, token_for
from relay.core import callback_token, transitions
from relay.core.allowlist import Target
from relay.store import deliveries
from relay.store import jobs as job_store
from relay.store import tasks as outbox
from relay.store.jobs import Identity, Known, Next
from relay.store.tasks import Task
from relay.wire import Callback, run_key


class CallbackError(Exception):
    """The callback is answered with ``status``; the text tells its author why and what to do."""

    def __init__(self, status: int, reason: str, retry_after: float | None = None):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True)
class Subject:
    """What a callback is about, as far as we know it ourselves."""

    delivery_id: str
    event: str
    pr_number: int | None
    head_sha: str
    dispatched_at: float | None
    job_timeout_seconds: float


@dataclass(frozen=True)
class Report:
    """One callback whose sender is known and may report.

    Attributes:
        key: the job it speaks of.
        url: the run's page.
        own: what it is about where the backend started the run by itself; else that is looked up.
        at_once: this process has room to tell HUD right after the commit.
    """

    callback: Callback
    target: Target
    key: str
    url: str | None
    own: Subject | None
    at_once: bool


@dataclass(frozen=True)
class _Accepted:
    """A report that moved its job; ``text`` is what HUD is owed."""

    report: Report
    step: transitions.Accepted
    identity: Identity
    text: str

    @property
    def task(self) -> str:
        """Key of the task that tells HUD."""
        return f"hud:{self.report.key}:{self.report.callback.workflow.status}"


@dataclass(frozen=True)
class Taken:
    """What a report did; ``queued`` names the lanes that got work, ``task`` is leased to this process."""

    step: transitions.Step
    task: Task | None = None
    queued: tuple[str, ...] = ()


def key_of(callback: Callback, target: Target) -> str:
    """The job that a callback of a repository speaks of."""
    workflow = callback.workflow
    return run_key(target.repo, callback.delivery_id, workflow.run_id, workflow.run_attempt, workflow.job_name)


def take(service: Service, connection: Connection, reports: list[Report]) -> list[Taken | CallbackError]:
    """Take reports of different jobs.

    Returns:
        What each did, or why it is refused, in their order.
    """
    now = time.time()
    results: dict[str, Taken | CallbackError] = {}
    about = _subjects(service, connection, reports, results)
    waiting = [report for report in reports if report.key in about]
    accepted: list[_Accepted] = []
    while waiting:
        known = job_store.hold(connection, [report.key for report in waiting])
        created: dict[str, Next] = {}
        changed: dict[str, Next] = {}
        decided: dict[str, _Accepted] = {}
        for report in waiting:
            subject = about[report.key]
            step = _advance(report, subject, known.get(report.key), now)
            if not isinstance(step, transitions.Accepted):
                results[report.key] = Taken(step)
                continue
            one = _identity(report, subject)
            text = hud_report(report.callback, report.target.repo, report.target.level, step.metrics)
            unfinished = step.job.state == "IN_PROGRESS"
            (changed if report.key in known else created)[report.key] = Next(
                one,
                step.job,
                deadline=now + subject.job_timeout_seconds if unfinished else None,
                report=text if unfinished else None,
            )
            decided[report.key] = _Accepted(report, step, one, text)
        job_store.save(connection, changed.values())
        late = created.keys() - job_store.create(connection, created.values(), now=now)
        accepted += [found for key, found in decided.items() if key not in late]
        waiting = [report for report in waiting if report.key in late]  # another process took one of that job first
    for done, taken in _owe(service, connection, accepted, now):
        results[done.report.key] = taken
    return [results[report.key] for report in reports]


def _subjects(
    service: Service, connection: Connection, reports: list[Report], refused: dict[str, Taken | CallbackError]
) -> dict[str, Subject]:
    """What each report is about; one that speaks of no dispatch, or not of the one it names, is refused."""
    wanted = {(report.callback.delivery_id, report.target.key) for report in reports if report.own is None}
    found = deliveries.find(connection, wanted)
    about = {}
    for report in reports:
        try:
            dispatch = found.get((report.callback.delivery_id, report.target.key))
            about[report.key] = report.own or _of_dispatch(service, report, dispatch)
        except CallbackError as error:
            refused[report.key] = error
    return about


def _of_dispatch(service: Service, report: Report, dispatch: deliveries.Dispatch | None) -> Subject:
    callback, settings = report.callback, service.settings
    if dispatch is None:
        raise CallbackError(
            400, f"no dispatch of delivery {callback.delivery_id[:100]!r} to {report.target.repo} is on record"
        )
    if dispatch.event != callback.event_type:
        raise CallbackError(400, f"delivery {dispatch.delivery_id} was a {dispatch.event}, not {callback.event_type}")
    if callback.callback_token is not None:
        try:
            callback_token.check(
                callback.callback_token, settings.callback_secret, token_for(dispatch), service.token_expires(dispatch)
            )
        except callback_token.CallbackTokenError as error:
            raise CallbackError(403, str(error)) from error
    elif settings.require_callback_token:
        raise CallbackError(403, "callback_token is missing; send back client_payload.callback_token as dispatched")
    _same_commit(callback, dispatch)
    sent = dispatch.sent_at if dispatch.sent_at is not None else dispatch.created_at
    return Subject(
        delivery_id=dispatch.delivery_id,
        event=dispatch.event,
        pr_number=dispatch.pr_number,
        head_sha=dispatch.head_sha,
        dispatched_at=min(sent, time.time()),
        job_timeout_seconds=dispatch.job_timeout_seconds or settings.job_timeout_seconds,
    )


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


def _advance(report: Report, subject: Subject, known: Known | None, now: float) -> transitions.Step:
    return transitions.advance(
        known.job if known else None,
        report.callback.workflow,
        now=now,
        dispatched_at=subject.dispatched_at,
        rejected=known.rejected if known else False,
    )


def _identity(report: Report, subject: Subject) -> Identity:
    workflow, target = report.callback.workflow, report.target
    return Identity(
        key=report.key,
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
        url=report.url,
    )


def _owe(
    service: Service, connection: Connection, accepted: list[_Accepted], now: float
) -> Iterator[tuple[_Accepted, Taken]]:
    """Owe HUD the reports, and PRs their check runs."""
    give_up_at = service.keep_until(now)
    at_once: list[outbox.NewTask] = []
    later: list[outbox.NewTask] = []
    if service.hud is not None:
        for one in accepted:
            job = one.identity
            task = outbox.NewTask(one.task, "hud", job.delivery_id, job.repo, job.key, give_up_at, one.text)
            (at_once if one.report.at_once else later).append(task)
    outbox.enqueue(connection, later, now=now)
    lease_until = now + service.settings.lease_seconds
    leased = outbox.enqueue_leased(connection, at_once, now=now, owner=service.owner, lease_until=lease_until)
    wishes = job_store.wishes(connection, [(one.identity, one.step.job) for one in accepted])
    checks = ("checks",) if job_store.show_on_pr(connection, wishes, now=now, give_up_at=give_up_at) else ()
    for one in accepted:
        task_or_none = leased.get(one.task)
        # One that was to be done at once and is not leased is being done, and has to be done again.
        hud = ("hud",) if service.hud is not None and task_or_none is None else ()
        yield one, Taken(one.step, task_or_none, hud + checks)
