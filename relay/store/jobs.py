"""Jobs and the checks that show them: every change is decided on the row held locked (compare-and-set)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, or_, select, update

from relay.core import checks as core_checks
from relay.core.body import dump
from relay.core.checks import CheckState
from relay.core.events import Gate
from relay.core.transitions import Job
from relay.store import tasks as outbox
from relay.store.database import insert
from relay.store.schema import buckets, checks, deliveries, documents, gates, jobs, tasks
from relay.wire import Level


@dataclass(frozen=True)
class Identity:
    """What never changes about a job: ours where we know it, the reporter's where only it can know."""

    key: str
    delivery_id: str
    repo: str
    repo_name: str
    level: Level
    device: str | None
    event: str
    pr_number: int | None
    head_sha: str
    workflow: str
    job_name: str
    run_id: str
    run_attempt: int
    url: str | None


@dataclass(frozen=True)
class Known:
    """A job's row: identity, state, and whether HUD refused its last report."""

    identity: Identity
    job: Job
    rejected: bool
    report: str | None


@dataclass(frozen=True)
class Check:
    """A check run that GitHub should have."""

    job_key: str
    repo: str
    repo_name: str
    run_id: str
    head_sha: str
    name: str
    external_id: str
    details_url: str | None
    state: CheckState
    version: int
    written_version: int
    github_id: int | None


_CHANGES = ("rejected", "deadline", "report", "url", "level")
"""What a report may change about a job, besides its state."""


def _known(row: Row[Any]) -> Known:
    fields = row._mapping
    return Known(
        identity=Identity(**{name: fields[name] for name in Identity.__dataclass_fields__}),
        job=Job(**{name: fields[name] for name in Job.__dataclass_fields__}),
        rejected=fields["rejected"],
        report=fields["report"],
    )


_HOLD = select(jobs).where(jobs.c.key == bindparam("wanted")).with_for_update()
_SAVE = (
    update(jobs)
    .where(jobs.c.key == bindparam("wanted"))
    .values({name: bindparam(name) for name in (*Job.__dataclass_fields__, *_CHANGES)})
)


def hold(connection: Connection, key: str) -> Known | None:
    """Read a job and keep others from changing it until the transaction ends."""
    row = connection.execute(_HOLD, {"wanted": key}).first()
    return None if row is None else _known(row)


def create(
    connection: Connection, identity: Identity, job: Job, *, now: float, deadline: float | None, report: str | None
) -> bool:
    """Store a job's first report.

    Returns:
        ``False`` if another report came first; read it with :func:`hold` and decide anew.
    """
    statement = insert(connection, jobs).on_conflict_do_nothing().returning(jobs.c.key)
    first = {"rejected": False, "deadline": deadline, "report": report, "created_at": now}
    return connection.execute(statement, {**vars(identity), **vars(job), **first}).first() is not None


def save(connection: Connection, identity: Identity, job: Job, *, deadline: float | None, report: str | None) -> None:
    """Store the next state of a job that :func:`hold` holds."""
    changes = (False, deadline, report, identity.url, identity.level)
    connection.execute(_SAVE, {"wanted": identity.key, **vars(job), **dict(zip(_CHANGES, changes, strict=True))})


def reject(connection: Connection, key: str) -> None:
    """HUD refused the job's report: its author may correct it."""
    connection.execute(update(jobs).where(jobs.c.key == key).values(rejected=True))


def overdue(connection: Connection, *, now: float, limit: int) -> list[Known]:
    """Unfinished jobs past their deadline, held; other sweepers skip them."""
    rows = connection.execute(
        select(jobs)
        .where(jobs.c.state == "IN_PROGRESS", jobs.c.deadline <= now)
        .order_by(jobs.c.deadline)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [_known(row) for row in rows]


def running(connection: Connection, pr_number: int) -> list[Identity]:
    """Jobs of a PR that are in progress."""
    rows = connection.execute(select(jobs).where(jobs.c.pr_number == pr_number, jobs.c.state == "IN_PROGRESS"))
    return [_known(row).identity for row in rows]


def gate(connection: Connection, pr_number: int) -> tuple[str, ...]:
    """Devices whose checks a PR's labels ask for."""
    text = connection.scalar(select(gates.c.devices).where(gates.c.pr_number == pr_number))
    return () if text is None else tuple(json.loads(text))


def set_gate(connection: Connection, wanted: Gate, *, now: float) -> bool:
    """Store a label snapshot unless a newer one is known.

    Returns:
        Whether the devices differ from what was known.
    """
    row = connection.execute(select(gates).where(gates.c.pr_number == wanted.pr_number).with_for_update()).first()
    devices = dump(list(wanted.devices))
    if row is None:
        statement = insert(connection, gates).values(
            pr_number=wanted.pr_number, devices=devices, updated_at=wanted.updated_at, stored_at=now
        )
        fresh = statement.excluded
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[gates.c.pr_number],
                set_={"devices": fresh.devices, "updated_at": fresh.updated_at, "stored_at": fresh.stored_at},
                where=gates.c.updated_at <= fresh.updated_at,
            )
        )
        return bool(wanted.devices)
    if row.updated_at > wanted.updated_at:
        return False
    connection.execute(
        update(gates)
        .where(gates.c.pr_number == wanted.pr_number)
        .values(devices=devices, updated_at=wanted.updated_at, stored_at=now)
    )
    return bool(row.devices != devices)


def gated_jobs(connection: Connection, pr_number: int, head_sha: str) -> list[Known]:
    """L3 jobs of a PR's commit, held, only the last attempt of each."""
    rows = connection.execute(
        select(jobs)
        .where(jobs.c.head_sha == head_sha, jobs.c.pr_number == pr_number, jobs.c.level == "L3")
        .order_by(jobs.c.run_attempt, jobs.c.created_at)
        .with_for_update()
    )
    latest: dict[tuple[str, str, str, str], Known] = {}
    for known in map(_known, rows):
        one = known.identity
        latest[(one.repo, one.workflow, one.job_name, one.run_id)] = known
    return list(latest.values())


def show_on_pr(
    connection: Connection, identity: Identity, job: Job, *, opened: bool, now: float, give_up_at: float
) -> bool:
    """Wish for what the upstream PR should show of a job, and queue the writing of it.

    Returns:
        Whether there is anything to write.
    """
    if identity.pr_number is None:
        return False
    row = connection.execute(select(checks).where(checks.c.job_key == identity.key).with_for_update()).first()
    shown = None if row is None else CheckState(row.status, row.conclusion, row.title, row.summary)
    state = core_checks.desired(job, identity.repo_name, opened=opened, shown=shown)
    if state is None:
        return False
    if row is None:
        connection.execute(
            insert(connection, checks)
            .values(
                job_key=identity.key,
                repo=identity.repo,
                repo_name=identity.repo_name,
                run_id=identity.run_id,
                head_sha=identity.head_sha,
                name=core_checks.name(identity.repo_name, identity.workflow, identity.job_name),
                external_id=core_checks.external_id(identity.run_id, identity.pr_number),
                details_url=identity.url,
                **vars(state),
                version=1,
                written_version=0,
                created_at=now,
            )
            .on_conflict_do_nothing()
        )
    else:
        connection.execute(
            update(checks)
            .where(checks.c.job_key == identity.key)
            .values(**vars(state), version=checks.c.version + 1, details_url=identity.url)
        )
    task = outbox.NewTask(
        f"check:{identity.key}", "check", identity.delivery_id, identity.repo, identity.key, give_up_at
    )
    outbox.enqueue(connection, [task], now=now)
    return True


def _check(row: Row[Any]) -> Check:
    fields = row._mapping
    state = CheckState(fields["status"], fields["conclusion"], fields["title"], fields["summary"])
    names = [name for name in Check.__dataclass_fields__ if name != "state"]
    return Check(state=state, **{name: fields[name] for name in names})


def check(connection: Connection, job_key: str) -> Check | None:
    """The check of a job."""
    row = connection.execute(select(checks).where(checks.c.job_key == job_key)).first()
    return None if row is None else _check(row)


def check_written(connection: Connection, job_key: str, *, version: int, github_id: int) -> None:
    """GitHub has the wish of that version."""
    connection.execute(
        update(checks)
        .where(checks.c.job_key == job_key, checks.c.written_version <= version)
        .values(written_version=version, github_id=github_id)
    )


def github_ids(connection: Connection, head_sha: str) -> set[int]:
    """Check runs on a commit that belong to known jobs already."""
    rows = connection.scalars(
        select(checks.c.github_id).where(checks.c.head_sha == head_sha, checks.c.github_id.is_not(None))
    )
    return {number for number in rows if number is not None}


def runs_of_check(connection: Connection, github_id: int, name: str, external_id: str) -> set[tuple[str, str]]:
    """Downstream repository and run id behind a check run."""
    rows = connection.execute(
        select(checks.c.repo_name, checks.c.run_id).where(
            or_(checks.c.github_id == github_id, and_(checks.c.name == name, checks.c.external_id == external_id))
        )
    )
    return {(repo, run_id) for repo, run_id in rows}


def runs_of_commit(connection: Connection, head_sha: str) -> set[tuple[str, str]]:
    """Downstream repository and run id of every check on a commit."""
    rows = connection.execute(select(checks.c.repo_name, checks.c.run_id).where(checks.c.head_sha == head_sha))
    return {(repo, run_id) for repo, run_id in rows}


def forget(connection: Connection, *, before: float) -> int:
    """Remove what is older than the retention and owes nothing any more.

    Returns:
        Number of rows removed.
    """
    owing = select(tasks.c.delivery_id).where(tasks.c.state.in_(("ready", "leased")))
    removed = 0
    for statement in (
        delete(tasks).where(tasks.c.state.in_(("done", "dead")), tasks.c.finished_at < before),
        delete(checks).where(
            checks.c.created_at < before,
            checks.c.job_key.not_in(select(tasks.c.subject).where(tasks.c.state.in_(("ready", "leased")))),
        ),
        delete(jobs).where(jobs.c.created_at < before, jobs.c.state != "IN_PROGRESS"),
        delete(deliveries).where(deliveries.c.received_at < before, deliveries.c.id.not_in(owing)),
        delete(gates).where(gates.c.stored_at < before),
        delete(buckets).where(buckets.c.since < before),
    ):
        removed += connection.execute(statement).rowcount
    return removed


def states(connection: Connection) -> dict[str, int]:
    """Number of jobs by state."""
    rows = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
    return {row[0]: row[1] for row in rows}


def keep_document(connection: Connection, name: str, source: str, text: str, *, now: float) -> None:
    """Remember the last good version of a configuration document."""
    statement = insert(connection, documents).values(name=name, source=source, text=text, stored_at=now)
    fresh = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[documents.c.name],
            set_={"source": fresh.source, "text": fresh.text, "stored_at": fresh.stored_at},
        )
    )


def document(connection: Connection, name: str, source: str) -> str | None:
    """The remembered version, if it came from the same source."""
    text: str | None = connection.scalar(
        select(documents.c.text).where(documents.c.name == name, documents.c.source == source)
    )
    return text
