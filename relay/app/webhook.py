"""``POST /github/webhook``: verify, decide, commit, answer (spec 1.1). Nothing is sent from here."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.app.service import Service
from relay.core import checks, events, signature
from relay.core.body import BodyError, load_object
from relay.core.callback_token import CallbackToken, sign
from relay.core.trimming import client_payload
from relay.store import deliveries
from relay.store import jobs as job_store
from relay.store import tasks as outbox

_log = structlog.get_logger(__name__)
_DELIVERY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Answer:
    """Status and body of a response; ``queued`` names the lanes that got work."""

    status: int
    body: dict[str, Any]
    queued: tuple[str, ...] = ()


async def receive(service: Service, headers: dict[str, str], body: bytes) -> Answer:
    """Take one webhook.

    Args:
        headers: with lower-case names.
        body: as it came, which is what the signature signs.

    Raises:
        StoreUnavailable: nothing was stored; GitHub shows the failure and can deliver again.
    """
    given = headers.get(signature.HEADER)
    if not given:
        return _refuse(400, "header X-Hub-Signature-256 is missing; set a secret in the App's webhook settings")
    if not signature.verify(body, given, service.settings.webhook_secret.get_secret_value()):
        return _refuse(401, "the signature does not match; the App's webhook secret and RELAY_WEBHOOK_SECRET differ")
    event = headers.get("x-github-event", "")
    delivery_id = headers.get("x-github-delivery", "")
    if not event:
        return _refuse(400, "header X-GitHub-Event is missing")
    if not _DELIVERY_ID.fullmatch(delivery_id):
        return _refuse(400, "header X-GitHub-Delivery is missing or no delivery id")
    structlog.contextvars.bind_contextvars(delivery_id=delivery_id)
    try:
        payload = load_object(body)
        decision = events.decide(event, payload, service.settings.upstream_repo)
    except (BodyError, events.PayloadError) as error:
        return _refuse(400, f"{event}: {error}")
    answer = await _carry_out(service, delivery_id, payload, decision)
    _log.info("webhook", github_event=event, status=answer.status, **answer.body)
    service.metrics.webhooks.labels(
        event if event in {"pull_request", "push", "check_run", "check_suite", "ping"} else "other",
        "ignored" if answer.body.get("ignored") else "accepted",
    ).inc()
    return answer


def _refuse(status: int, reason: str) -> Answer:
    _log.warning("webhook_refused", status=status, reason=reason)
    return Answer(status, {"ok": False, "error": reason})


async def _carry_out(service: Service, delivery_id: str, payload: dict[str, Any], decision: events.Decision) -> Answer:
    if isinstance(decision, events.Pong):
        return Answer(200, {"ok": True, "pong": True})
    if isinstance(decision, events.Ignore):
        return Answer(200, {"ignored": True, "reason": decision.reason})
    if isinstance(decision, events.Gate):
        changed = await service.database.run(lambda connection: _set_gate(service, connection, decision))
        return Answer(202, {"ok": True, "delivery_id": delivery_id, "gate_changed": changed}, ("checks",))
    if isinstance(decision, events.Rerun):
        runs = await service.database.run(lambda connection: _queue_reruns(service, connection, delivery_id, decision))
        if not runs:
            return Answer(200, {"ignored": True, "reason": "no downstream run of this relay stands behind the check"})
        return Answer(202, {"ok": True, "delivery_id": delivery_id, "reruns": runs}, ("runs", "dispatch"))
    return await _fan_out(service, delivery_id, payload, decision)


async def _fan_out(service: Service, delivery_id: str, payload: dict[str, Any], fanout: events.Fanout) -> Answer:
    settings = service.settings
    now = time.time()
    try:
        allowlist = await service.allowlist.current()
        targets = events.select(fanout, allowlist, settings.push_refs)
    except AllowlistUnavailable:
        targets = None
    message = client_payload(fanout.event_type, delivery_id, payload, reserve=_token_bytes(service))

    def work(connection: Connection) -> tuple[deliveries.Receipt, bool]:
        receipt = deliveries.claim(
            connection,
            delivery_id,
            fanout,
            targets,
            message=message,
            now=now,
            give_up_at=now + settings.dispatch_retry_seconds,
        )
        gate_changed = fanout.gate is not None and _set_gate(service, connection, fanout.gate)
        if receipt.new and fanout.closes and settings.cancel_closed and fanout.pr_number is not None:
            _queue_cancels(service, connection, delivery_id, fanout.pr_number)
        return receipt, gate_changed

    receipt, gate_changed = await service.database.run(work)
    body: dict[str, Any] = {"ok": True, "delivery_id": delivery_id, "targets": receipt.targets}
    if not receipt.new:
        body |= {"redelivery": True, "retried": receipt.queued}
    elif targets is None:
        body |= {"targets": None, "reason": "no allowlist is loaded; the targets are chosen as soon as there is one"}
    lanes = {"dispatch": True, "checks": gate_changed, "runs": fanout.closes and settings.cancel_closed}
    return Answer(202, body, tuple(lane for lane, wanted in lanes.items() if wanted))


def _token_bytes(service: Service) -> int:
    """Room that the longest callback token takes."""
    longest = CallbackToken(delivery_id="d" * 100, repo="r" * 201, pr_number=2**63, head_sha="f" * 64)
    return len(sign(longest, service.settings.callback_secret, 2**33)) + len(',"callback_token":""')


def _set_gate(service: Service, connection: Connection, gate: events.Gate) -> bool:
    """Store a label snapshot; where it changes the gate, every job that reported gets what the PR should show."""
    now = time.time()
    if not job_store.set_gate(connection, gate, now=now):
        return False
    reported = job_store.gated_jobs(connection, gate.pr_number, gate.head_sha)
    wishes = job_store.wishes(connection, [(known.identity, known.job) for known in reported])
    job_store.show_on_pr(connection, wishes, now=now, give_up_at=service.keep_until(now))
    return True


def _queue_reruns(
    service: Service, connection: Connection, delivery_id: str, rerun: events.Rerun
) -> list[dict[str, str]]:
    """Ask GitHub to re-run its own runs; a backend whose runs are elsewhere gets its dispatch once more."""
    now = time.time()
    web_url = service.settings.web_url
    if rerun.check_run_id is None:
        found = job_store.runs_of_commit(connection, rerun.head_sha)
    else:
        name, external = rerun.check_name or "", rerun.external_id or ""
        found = job_store.runs_of_check(connection, rerun.check_run_id, name, external)
        parsed = checks.parse(name, external)
        if not found and parsed is not None and str(rerun.app_id) == service.settings.github_app_id:
            # The record is past its retention, but only our own App can have made this check.
            found = {job_store.Run(parsed[0].lower(), *parsed, rerun.details_url, None)}
    pages = {run: checks.run_page(web_url, run.repo_name, run.run_id) for run in found}
    runs = sorted({(run.repo_name, run.run_id) for run in found if run.url == pages[run]})
    outbox.enqueue(
        connection,
        [
            outbox.NewTask(
                f"rerun:{delivery_id}:{repo}:{run_id}", "rerun", delivery_id, repo, run_id, service.keep_until(now)
            )
            for repo, run_id in runs
        ],
        now=now,
    )
    give_up_at = now + service.settings.dispatch_retry_seconds
    elsewhere = sorted({(run.delivery_id, run.repo) for run in found if run.url != pages[run] and run.delivery_id})
    again = [
        (sent, repo)
        for sent, repo in elsewhere
        if deliveries.send_again(connection, sent, repo, now=now, give_up_at=give_up_at)
    ]
    return [
        *({"repo": repo, "run_id": run_id} for repo, run_id in runs),
        *({"repo": repo, "dispatched_again": sent} for sent, repo in again),
    ]


def _queue_cancels(service: Service, connection: Connection, delivery_id: str, pr_number: int) -> None:
    now = time.time()
    runs = {(one.repo_name, one.run_id) for one in job_store.running(connection, pr_number)}
    outbox.enqueue(
        connection,
        [
            outbox.NewTask(
                f"cancel:{delivery_id}:{repo}:{run_id}", "cancel", delivery_id, repo, run_id, service.keep_until(now)
            )
            for repo, run_id in sorted(runs)
        ],
        now=now,
    )
