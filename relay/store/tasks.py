"""The outbox: effects on other systems that are owed, leased by workers (spec 2).

A task is ready, leased, done or dead. A lease that runs out makes it ready again, so a killed worker loses nothing. The
key names the effect: queueing it twice is queueing it once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select, update

from relay.core.retry import MAX_WAIT_SECONDS
from relay.store.database import insert
from relay.store.schema import dispatches, tasks

Kind = Literal["dispatch", "hud", "check", "rerun", "cancel", "fanout"]
_LONGEST_WAIT = MAX_WAIT_SECONDS + 300
KINDS: tuple[Kind, ...] = ("dispatch", "hud", "check", "rerun", "cancel", "fanout")


@dataclass(frozen=True)
class NewTask:
    """An effect to be owed.

    Attributes:
        key: names the effect.
        subject: what it acts on (job key, run id, repository).
        data: JSON of the request where no row holds it.
        give_up_at: seconds since the epoch after which a failure is final.
    """

    key: str
    kind: Kind
    delivery_id: str
    repo: str
    subject: str
    give_up_at: float
    data: str | None = None


@dataclass(frozen=True)
class Task:
    """A leased task.

    Attributes:
        attempts: this one included; 1 only if nothing can have been sent before.
    """

    id: int
    key: str
    kind: Kind
    delivery_id: str
    repo: str
    subject: str
    data: str | None
    attempts: int
    give_up_at: float


_FIELDS = (
    tasks.c.id,
    tasks.c.key,
    tasks.c.kind,
    tasks.c.delivery_id,
    tasks.c.repo,
    tasks.c.subject,
    tasks.c.data,
    tasks.c.attempts,
    tasks.c.give_up_at,
)


def _enqueue(connection: Connection) -> Any:
    """``INSERT … ON CONFLICT``; built once per dialect, because building costs more than running it."""
    dialect = connection.dialect.name
    if dialect not in _ENQUEUE:
        statement = insert(connection, tasks)
        fresh = statement.excluded
        leased = and_(tasks.c.state == "leased", tasks.c.lease_until > fresh.created_at)
        columns = ("state", "attempts", "not_before", "lease_owner", "lease_until")
        _ENQUEUE[dialect] = statement.on_conflict_do_update(
            index_elements=[tasks.c.key],
            set_={
                **{name: case((leased, tasks.c[name]), else_=fresh[name]) for name in columns},
                "again": case((leased, True), else_=False),
                "data": fresh.data,
                "give_up_at": fresh.give_up_at,
                "finished_at": None,
                "error": None,
            },
        )
    return _ENQUEUE[dialect]


_ENQUEUE: dict[str, Any] = {}


def enqueue(connection: Connection, new: Collection[NewTask], *, now: float) -> None:
    """Owe effects. A known key that is done or dead becomes ready again; one at work is marked to be done again."""
    if new:
        connection.execute(_enqueue(connection), [_row(task, now) for task in _in_order(new)])


def enqueue_leased(
    connection: Connection, new: Collection[NewTask], *, now: float, owner: str, lease_until: float
) -> dict[str, Task]:
    """As :func:`enqueue`, for a worker that does them at once.

    Returns:
        The tasks that are leased to this worker, by key. One that is missing is being done, and will be done again.
    """
    if not new:
        return {}
    lease = {"state": "leased", "attempts": 1, "lease_owner": owner, "lease_until": lease_until}
    rows = [{**_row(task, now), **lease} for task in _in_order(new)]
    statement = _enqueue(connection).returning(tasks.c.key, tasks.c.id, tasks.c.again)
    held = {row.key: row for row in connection.execute(statement, rows)}
    return {task.key: Task(id=held[task.key].id, attempts=1, **vars(task)) for task in new if not held[task.key].again}


def _in_order(new: Collection[NewTask]) -> list[NewTask]:
    """By key: in another order in each transaction, two could wait for each other."""
    return sorted(new, key=lambda task: task.key)


def _row(task: NewTask, now: float) -> dict[str, Any]:
    return {
        **vars(task),
        "state": "ready",
        "again": False,
        "attempts": 0,
        "created_at": now,
        "not_before": now,
        "lease_owner": None,
        "lease_until": None,
    }


_due = (
    select(tasks.c.id)
    .where(
        tasks.c.kind.in_(bindparam("kinds", expanding=True)),
        or_(
            and_(
                tasks.c.state == "ready",
                or_(tasks.c.not_before <= bindparam("now"), tasks.c.not_before > bindparam("too_far")),
            ),
            and_(
                tasks.c.state == "leased",
                or_(tasks.c.lease_until <= bindparam("now"), tasks.c.lease_until > bindparam("too_long")),
            ),
        ),
    )
    .order_by(tasks.c.not_before, tasks.c.id)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
    .cte("due")
)
_LEASE = (
    update(tasks)
    .where(tasks.c.id.in_(select(_due.c.id)))
    .values(
        state="leased",
        lease_owner=bindparam("owner"),
        lease_until=bindparam("until"),
        attempts=tasks.c.attempts + 1,
    )
    .returning(*_FIELDS)
)


def lease(
    connection: Connection, kinds: tuple[Kind, ...], *, owner: str, now: float, seconds: float, limit: int
) -> list[Task]:
    """Take due tasks, oldest first; other workers skip them until the lease runs out.

    A moment further ahead than any wait or lease can be was written by a clock that has been set back since; such a
    task is due, for it would else sleep for as long as the clock was wrong.

    Args:
        owner: this worker.
        seconds: length of the lease.
        limit: at most so many.
    """
    rows = connection.execute(
        _LEASE,
        {
            "kinds": kinds,
            "now": now,
            "too_far": now + _LONGEST_WAIT,
            "until": now + seconds,
            "too_long": now + 10 * seconds,
            "most": limit,
            "owner": owner,
        },
    )
    return sorted((Task(**row._mapping) for row in rows), key=lambda task: task.id)


_mine = and_(tasks.c.id == bindparam("task_id"), tasks.c.lease_owner == bindparam("owner"), tasks.c.state == "leased")


_FINISH = (
    update(tasks)
    .where(
        tasks.c.id.in_(bindparam("task_ids", expanding=True)),
        tasks.c.lease_owner == bindparam("owner"),
        tasks.c.state == "leased",
    )
    .values(
        state=case((tasks.c.again, "ready"), else_="done"),
        data=case((tasks.c.again, tasks.c.data), else_=None),
        attempts=case((tasks.c.again, 0), else_=tasks.c.attempts),
        again=False,
        not_before=bindparam("moment"),
        lease_owner=None,
        lease_until=None,
        finished_at=case((tasks.c.again, None), else_=bindparam("moment")),
        error=None,
    )
)


def finish(connection: Connection, done: Collection[Task], *, owner: str, now: float) -> int:
    """These effects are there. A task that was queued anew meanwhile becomes ready again.

    Returns:
        How many were still leased to us; another worker has the others and decides.
    """
    if not done:
        return 0
    ids = [task.id for task in done]
    return int(connection.execute(_FINISH, {"task_ids": ids, "owner": owner, "moment": now}).rowcount)


def postpone(connection: Connection, task: Task, *, owner: str, not_before: float, error: str) -> None:
    """The effect failed for now."""
    connection.execute(
        update(tasks)
        .where(_mine)
        .values(
            state="ready", again=False, not_before=not_before, lease_owner=None, lease_until=None, error=error[:2000]
        ),
        {"task_id": task.id, "owner": owner},
    )


def bury(connection: Connection, task: Task, *, owner: str, now: float, error: str) -> bool:
    """The effect failed for good: a dead letter, until an operator or a redelivery revives it."""
    result = connection.execute(
        update(tasks)
        .where(_mine)
        .values(state="dead", again=False, lease_owner=None, lease_until=None, finished_at=now, error=error[:2000]),
        {"task_id": task.id, "owner": owner},
    )
    return result.rowcount == 1


def release(connection: Connection, owner: str, *, now: float) -> None:
    """Give back what this worker still holds, at an orderly end. The attempt counts: it may have had its effect."""
    connection.execute(
        update(tasks)
        .where(tasks.c.lease_owner == owner, tasks.c.state == "leased")
        .values(state="ready", not_before=now, lease_owner=None, lease_until=None)
    )


def states(connection: Connection, ids: list[int]) -> dict[int, str]:
    """The states of those of these tasks that are on record."""
    rows = connection.execute(select(tasks.c.id, tasks.c.state).where(tasks.c.id.in_(ids)))
    return {row.id: row.state for row in rows}


def revive(connection: Connection, *, now: float, give_up_at: float, ids: list[int] | None = None) -> int:
    """Make dead letters ready again, with the waits of a first retry but not as if they had never been tried.

    Args:
        ids: these tasks, or all dead ones.

    Returns:
        How many.
    """
    dead = tasks.c.state == "dead" if ids is None else and_(tasks.c.state == "dead", tasks.c.id.in_(ids))
    pairs = [
        tuple(row) for row in connection.execute(select(tasks.c.kind, tasks.c.delivery_id, tasks.c.repo).where(dead))
    ]
    result = connection.execute(
        update(tasks)
        .where(dead)
        .values(state="ready", attempts=1, not_before=now, give_up_at=give_up_at, finished_at=None, error=None)
    )
    for kind, delivery_id, repo in pairs:
        if kind == "dispatch":
            connection.execute(
                update(dispatches)
                .where(dispatches.c.delivery_id == delivery_id, dispatches.c.repo == repo)
                .values(state="pending", error=None)
            )
    return int(result.rowcount)


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Number of tasks by kind and state."""
    rows = connection.execute(select(tasks.c.kind, tasks.c.state, func.count()).group_by(tasks.c.kind, tasks.c.state))
    return {(kind, state): number for kind, state, number in rows}


def oldest_due(connection: Connection) -> float | None:
    """Since when the task that has waited longest could have been done; ``None`` if nothing is owed."""
    since: float | None = connection.scalar(select(func.min(tasks.c.not_before)).where(tasks.c.state == "ready"))
    return since


def listing(connection: Connection, *, state: str | None, limit: int) -> list[dict[str, Any]]:
    """Newest tasks, without their data, for operators."""
    columns = [column for column in tasks.c if column.name != "data"]
    statement = select(*columns).order_by(tasks.c.id.desc()).limit(limit)
    if state is not None:
        statement = statement.where(tasks.c.state == state)
    return [dict(row._mapping) for row in connection.execute(statement)]
