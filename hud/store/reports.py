"""Storing what the relay reports about a job."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hud.core.reports import Merge, ReportError, Subject, merge, subject_of
from hud.core.text import link
from hud.store.engine import Store
from hud.store.history import enter
from hud.store.tables import backend, branch_commit, lane, pull_head, run
from hud.store.upsert import insert_or_ignore
from relay.wire import HudReport

_MAX_ATTEMPT = 1_000_000


@dataclass(frozen=True)
class Stored:
    """What became of a report."""

    key: str
    status: str
    merge: Merge


def record_report(store: Store, report: HudReport, key: str, now: float) -> Stored:
    """Store one report, merged with what its job reported before.

    Args:
        store: where.
        report: validated and cleaned.
        key: of its run, see :func:`hud.core.reports.key_of`.
        now: seconds since the epoch.

    Raises:
        ReportError: a field cannot be stored.
        Conflict: the job is completed and this report contradicts it.
    """
    subject = subject_of(report)
    callback = report.untrusted.callback_payload
    workflow = callback.workflow
    if workflow.run_attempt > _MAX_ATTEMPT:
        raise ReportError("untrusted.callback_payload.workflow.run_attempt", f"must be at most {_MAX_ATTEMPT}")
    with store.write() as connection:
        backend_id = backend_of(connection, report.trusted.verified_repo, report.trusted.downstream_repo_level, now)
        lane_id = lane_of(connection, backend_id, workflow.name, workflow.job_name)
        _record_subject(connection, subject, now)
        stored = connection.execute(sa.select(run).where(run.c.key == key)).one_or_none()
        merged, how = merge(stored.report if stored is not None else None, workflow)
        for name in ("url", "artifact_url"):
            if name in merged and link(merged[name]) is None:
                del merged[name]
        metrics = report.trusted.ci_metrics
        values: dict[str, Any] = {
            "lane_id": lane_id,
            "event": callback.event_type,
            "action": subject.action,
            "level": report.trusted.downstream_repo_level,
            "status": merged["status"],
            "conclusion": merged.get("conclusion"),
            "report": merged,
            "log_url": link(merged.get("url")),
            "reported": merged.get("test_results"),
            "queue_time": metrics.queue_time,
            "execution_time": metrics.execution_time,
            **_subject_columns(connection, subject, now),
        }
        if stored is None:
            insert = run.insert().values(
                key=key,
                backend_id=backend_id,
                delivery_id=callback.delivery_id,
                run_id=workflow.run_id,
                attempt=workflow.run_attempt,
                first_seen=now,
                updated=now,
                **values,
            )
            number = connection.execute(insert.returning(run.c.id)).scalar_one()
        else:
            number = stored.id
            if stored.lane_id is not None:
                # Its place in history was settled by the first report; this one only came later.
                values.pop("order_at")
                values.pop("order_place")
            known = {name: value for name, value in values.items() if value is not None}
            if any(getattr(stored, name) != value for name, value in known.items()):
                change = run.update().where(run.c.id == stored.id)
                connection.execute(change.values(**known, updated=now, revision=stored.revision + 1))
        enter(connection, number)
    return Stored(key, merged["status"], how)


def backend_of(connection: sa.Connection, repo: str, level: str, now: float) -> int:
    """Number of a backend, made known or brought up to date."""
    insert_or_ignore(
        connection,
        backend,
        [{"repo_key": repo.lower(), "repo": repo, "level": level, "first_seen": now, "last_seen": now}],
    )
    mine = backend.c.repo_key == repo.lower()
    connection.execute(backend.update().where(mine).values(repo=repo, level=level, last_seen=now))
    return int(connection.execute(sa.select(backend.c.id).where(mine)).scalar_one())


def lane_of(connection: sa.Connection, backend_id: int, workflow: str, job: str) -> int:
    """Number of a job of a workflow of a backend, made known if it is new."""
    digest = hashlib.blake2b(json.dumps([workflow, job]).encode(), digest_size=16).digest()
    insert_or_ignore(connection, lane, [{"backend_id": backend_id, "digest": digest, "workflow": workflow, "job": job}])
    mine = (lane.c.backend_id == backend_id) & (lane.c.digest == digest)
    return int(connection.execute(sa.select(lane.c.id).where(mine)).scalar_one())


def _subject_columns(connection: sa.Connection, subject: Subject, now: float) -> dict[str, Any]:
    upstream = subject.upstream.lower()
    known = connection.execute(
        sa.select(branch_commit.c.at, branch_commit.c.place)
        .where(branch_commit.c.sha == subject.sha, branch_commit.c.upstream == upstream)
        .order_by(branch_commit.c.at)
        .limit(1)
    ).first()
    return {
        "upstream": upstream,
        "pr": subject.pr,
        "sha": subject.sha,
        "base_sha": subject.base_sha,
        "branch": subject.branch,
        "order_at": known.at if known else subject.at or now,
        "order_place": known.place if known else 0,
    }


def _record_subject(connection: sa.Connection, subject: Subject, now: float) -> None:
    if subject.pr is not None and subject.sha is not None:
        _record_head(connection, subject, now)
    if subject.branch is not None:
        _record_push(connection, subject, now)


def _record_head(connection: sa.Connection, subject: Subject, now: float) -> None:
    upstream = subject.upstream.lower()
    insert_or_ignore(
        connection,
        pull_head,
        [
            {
                "upstream": upstream,
                "pr": subject.pr,
                "sha": subject.sha,
                "base_sha": subject.base_sha,
                "base_ref": subject.base_ref,
                "title": subject.title,
                "author": subject.author,
                "state": subject.state,
                "at": subject.at or now,
                "first_seen": now,
            }
        ],
    )
    if subject.at is None:
        return
    mine = (pull_head.c.upstream == upstream) & (pull_head.c.pr == subject.pr) & (pull_head.c.sha == subject.sha)
    # Reports of one commit may come from several deliveries (opened, then closed); upstream's clock says which is news.
    connection.execute(
        pull_head.update()
        .where(mine, pull_head.c.at < subject.at)
        .values(
            title=subject.title,
            author=subject.author,
            state=subject.state,
            at=subject.at,
            base_sha=sa.func.coalesce(subject.base_sha, pull_head.c.base_sha),
            base_ref=sa.func.coalesce(subject.base_ref, pull_head.c.base_ref),
        )
    )


def _record_push(connection: sa.Connection, subject: Subject, now: float) -> None:
    at = subject.at or now
    rows = [
        {
            "upstream": subject.upstream.lower(),
            "branch": subject.branch,
            "sha": name,
            "at": at,
            "place": place,
        }
        for place, name in enumerate(subject.commits)
    ]
    insert_or_ignore(connection, branch_commit, rows)
    # A commit that a later push named as its predecessor was entered under that push; its own push knows better.
    inside = subject.commits[1:] if len(subject.commits) > 1 else subject.commits
    for place, name in enumerate(inside, start=len(subject.commits) - len(inside)):
        connection.execute(
            branch_commit.update()
            .where(
                branch_commit.c.upstream == subject.upstream.lower(),
                branch_commit.c.branch == subject.branch,
                branch_commit.c.sha == name,
                branch_commit.c.at > at,
            )
            .values(at=at, place=place)
        )
