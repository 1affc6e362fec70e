"""Deliveries and their dispatches: claimed once, recorded before anything is sent (spec 2)."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, exists, func, select, update

from relay.core.allowlist import Target
from relay.core.body import dump
from relay.core.events import Fanout
from relay.store import tasks as outbox
from relay.store.database import insert
from relay.store.schema import deliveries, dispatches, jobs, tasks


@dataclass(frozen=True)
class Receipt:
    """What accepting a delivery did.

    Attributes:
        new: whether this delivery id came for the first time.
        targets: repositories that it was, or already had been, addressed to.
        queued: repositories that a task was queued for now.
    """

    new: bool
    targets: int
    queued: int


@dataclass(frozen=True)
class Dispatch:
    """One dispatch with what its delivery says."""

    delivery_id: str
    repo: str
    repo_name: str
    level: str
    device: str | None
    paths: tuple[str, ...]
    job_timeout_seconds: float | None
    state: str
    created_at: float
    sent_at: float | None
    event: str
    action: str
    pr_number: int | None
    head_sha: str


def claim(
    connection: Connection,
    delivery_id: str,
    fanout: Fanout,
    targets: list[Target] | None,
    *,
    message: dict[str, Any],
    now: float,
    give_up_at: float,
) -> Receipt:
    """Store a delivery with one task per target, or find out that it is stored.

    Args:
        targets: where it goes; ``None`` if that cannot be known yet, which leaves a task to find it out.
        message: ``client_payload`` without the callback token.
        give_up_at: when a dispatch is too late to be of use.
    """
    ref = message["payload"].get("ref")
    new = connection.execute(
        insert(connection, deliveries)
        .values(
            id=delivery_id,
            event=fanout.event_type,
            action=fanout.action,
            pr_number=fanout.pr_number,
            head_sha=fanout.head_sha,
            base_sha=fanout.base_sha,
            ref=ref if isinstance(ref, str) else None,
            received_at=now,
            received_count=1,
            message=dump(message),
        )
        .on_conflict_do_nothing()
        .returning(deliveries.c.id)
    ).first()
    if new is not None:
        if targets is None:
            task = outbox.NewTask(f"fanout:{delivery_id}", "fanout", delivery_id, "", delivery_id, give_up_at)
            outbox.enqueue(connection, [task], now=now)
            return Receipt(True, 0, 0)
        address(connection, delivery_id, targets, now=now, give_up_at=give_up_at)
        return Receipt(True, len(targets), len(targets))
    connection.execute(
        update(deliveries).where(deliveries.c.id == delivery_id).values(received_count=deliveries.c.received_count + 1)
    )
    return replay(connection, delivery_id, now=now, give_up_at=give_up_at)


def address(connection: Connection, delivery_id: str, targets: list[Target], *, now: float, give_up_at: float) -> None:
    """Record dispatches as pending and queue them."""
    if not targets:
        return
    connection.execute(
        insert(connection, dispatches).on_conflict_do_nothing(),
        [
            {
                "delivery_id": delivery_id,
                "repo": target.key,
                "repo_name": target.repo,
                "level": target.level,
                "device": target.device,
                "paths": dump(target.paths) if target.paths else None,
                "job_timeout_seconds": target.job_timeout_seconds,
                "state": "pending",
                "created_at": now,
            }
            for target in targets
        ],
    )
    outbox.enqueue(connection, [_task(delivery_id, target.key, give_up_at) for target in targets], now=now)


def _task(delivery_id: str, repo: str, give_up_at: float) -> outbox.NewTask:
    return outbox.NewTask(f"dispatch:{delivery_id}:{repo}", "dispatch", delivery_id, repo, repo, give_up_at)


def replay(connection: Connection, delivery_id: str, *, now: float, give_up_at: float) -> Receipt:
    """Queue again the dispatches of a delivery that failed for good; the others are done or under way."""
    rows = connection.execute(
        select(dispatches.c.repo, dispatches.c.state).where(dispatches.c.delivery_id == delivery_id)
    ).all()
    failed = [row.repo for row in rows if row.state == "failed"]
    if failed:
        connection.execute(
            update(dispatches)
            .where(dispatches.c.delivery_id == delivery_id, dispatches.c.repo.in_(failed))
            .values(state="pending", error=None)
        )
        outbox.enqueue(connection, [_task(delivery_id, repo, give_up_at) for repo in failed], now=now)
    return Receipt(False, len(rows), len(failed))


def send_again(connection: Connection, delivery_id: str, repo: str, *, now: float, give_up_at: float) -> bool:
    """Queue a dispatch that was sent before.

    Returns:
        Whether there is one that is not under way anyway.
    """
    again = connection.execute(
        update(dispatches)
        .where(dispatches.c.delivery_id == delivery_id, dispatches.c.repo == repo, dispatches.c.state != "pending")
        .values(state="pending", error=None)
    )
    if again.rowcount:
        outbox.enqueue(connection, [_task(delivery_id, repo, give_up_at)], now=now)
    return bool(again.rowcount)


_FIND = (
    select(
        dispatches.c.delivery_id,
        dispatches.c.repo,
        dispatches.c.repo_name,
        dispatches.c.level,
        dispatches.c.device,
        dispatches.c.paths,
        dispatches.c.job_timeout_seconds,
        dispatches.c.state,
        dispatches.c.created_at,
        dispatches.c.sent_at,
        deliveries.c.event,
        deliveries.c.action,
        deliveries.c.pr_number,
        deliveries.c.head_sha,
    )
    .join(deliveries, deliveries.c.id == dispatches.c.delivery_id)
    # Pairs, "(a, b) IN …", would make SQLite read the whole table.
    .where(
        dispatches.c.delivery_id.in_(bindparam("ids", expanding=True)),
        dispatches.c.repo.in_(bindparam("repos", expanding=True)),
    )
)
_MESSAGES = select(deliveries.c.id, deliveries.c.message).where(deliveries.c.id.in_(bindparam("ids", expanding=True)))


def find(connection: Connection, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], Dispatch]:
    """Those of these dispatches that are on record, by delivery id and repository in lower case."""
    if not wanted:
        return {}
    found = {}
    ids, repos = ({pair[place] for pair in wanted} for place in (0, 1))
    for row in connection.execute(_FIND, {"ids": list(ids), "repos": list(repos)}):
        if (row.delivery_id, row.repo) in wanted:
            fields = dict(row._mapping)
            paths = tuple(json.loads(fields["paths"] or "[]"))
            found[row.delivery_id, row.repo] = Dispatch(**{**fields, "paths": paths})
    return found


def messages(connection: Connection, delivery_ids: Collection[str]) -> dict[str, str]:
    """The stored ``client_payload`` of those of these deliveries that are on record, as JSON."""
    rows = connection.execute(_MESSAGES, {"ids": list(delivery_ids)})
    return {row.id: row.message for row in rows}


_MARK = (
    update(dispatches)
    .where(dispatches.c.delivery_id == bindparam("wanted"), dispatches.c.repo == bindparam("whose"))
    .values(state=bindparam("new_state"), sent_at=bindparam("moment"), error=bindparam("reason"))
)


def mark(
    connection: Connection,
    delivery_id: str,
    repo: str,
    state: Literal["sent", "skipped", "failed"],
    *,
    now: float,
    error: str | None = None,
) -> None:
    """Record how a dispatch ended."""
    connection.execute(
        _MARK,
        {
            "wanted": delivery_id,
            "whose": repo,
            "new_state": state,
            "moment": now if state == "sent" else None,
            "reason": error,
        },
    )


def unanswered(connection: Connection, *, before: float) -> int:
    """Dispatches sent before a moment that no job has reported for."""
    answered = exists().where(jobs.c.delivery_id == dispatches.c.delivery_id, jobs.c.repo == dispatches.c.repo)
    number = connection.scalar(
        select(func.count())
        .select_from(dispatches)
        .where(dispatches.c.state == "sent", dispatches.c.level != "L1", dispatches.c.sent_at < before, ~answered)
    )
    return int(number or 0)


def listing(connection: Connection, *, limit: int) -> list[dict[str, Any]]:
    """Newest deliveries with the number of dispatches in each state, for operators."""
    columns = [column for column in deliveries.c if column.name != "message"]
    rows = connection.execute(select(*columns).order_by(deliveries.c.received_at.desc()).limit(limit)).all()
    result = [dict(row._mapping) for row in rows]
    numbers = connection.execute(
        select(dispatches.c.delivery_id, dispatches.c.state, func.count())
        .where(dispatches.c.delivery_id.in_([row["id"] for row in result]))
        .group_by(dispatches.c.delivery_id, dispatches.c.state)
    )
    by_delivery: dict[str, dict[str, int]] = {}
    for delivery_id, state, number in numbers:
        by_delivery.setdefault(delivery_id, {})[state] = number
    return [{**row, "dispatches": by_delivery.get(row["id"], {})} for row in result]


def show(connection: Connection, delivery_id: str) -> dict[str, Any] | None:
    """A delivery with its dispatches, jobs and tasks, for operators."""
    columns = [column for column in deliveries.c if column.name != "message"]
    row = connection.execute(select(*columns).where(deliveries.c.id == delivery_id)).first()
    if row is None:
        return None

    def rows(table: Any, hidden: set[str]) -> list[dict[str, Any]]:
        shown = [column for column in table.c if column.name not in hidden]
        found = connection.execute(select(*shown).where(table.c.delivery_id == delivery_id))
        return [dict(item._mapping) for item in found]

    return {
        **row._mapping,
        "dispatches": rows(dispatches, set()),
        "jobs": rows(jobs, {"report"}),
        "tasks": rows(tasks, {"data"}),
    }
