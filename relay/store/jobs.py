"""Jobs and the checks that show them: every change is decided on the row held locked (compare-and-set)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
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


@dataclass(frozen=True)
class Next:
    """A job as it is to be stored.

    Attributes:
        deadline: when the sweeper takes it, if it is unfinished.
        report: HUD's report of it, for the sweeper, if it is unfinished.
    """

    identity: Identity
    job: Job
    deadline: float | None = None
    report: str | None = None


@dataclass(frozen=True)
class Wish:
    """What the upstream PR should show of a job; ``opened``: as :func:`relay.core.checks.gate_open`."""

    identity: Identity
    job: Job
    opened: bool


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


_HOLD = select(jobs).where(jobs.c.key.in_(bindparam("wanted", expanding=True))).order_by(jobs.c.key).with_for_update()
_SAVE = (
    update(jobs)
    .where(jobs.c.key == bindparam("wanted"))
    .values({name: bindparam(name) for name in (*Job.__dataclass_fields__, *_CHANGES)})
)


def hold(connection: Connection, keys: Collection[str]) -> dict[str, Known]:
    """Read jobs and keep others from changing them until the transaction ends; those that there are, by key."""
    return {row.key: _known(row) for row in connection.execute(_HOLD, {"wanted": list(keys)})}


def create(connection: Connection, news: Collection[Next], *, now: float) -> set[str]:
    """Store the first reports of jobs.

    Returns:
        The keys that are new. For another one another report came first: :func:`hold` it and decide anew.
    """
    if not news:
        return set()
    statement = insert(connection, jobs).on_conflict_do_nothing().returning(jobs.c.key)
    rows = [
        {
            **vars(new.identity),
            **vars(new.job),
            "rejected": False,
            "deadline": new.deadline,
            "report": new.report,
            "created_at": now,
        }
        # In one order everywhere, or two transactions could wait for each other.
        for new in sorted(news, key=lambda new: new.identity.key)
    ]
    return set(connection.execute(statement, rows).scalars())


def save(connection: Connection, changed: Collection[Next]) -> None:
    """Store the next states of jobs that :func:`hold` holds."""
    if changed:
        connection.execute(
            _SAVE,
            [
                {
                    "wanted": new.identity.key,
                    **vars(new.job),
                    "rejected": False,
                    "deadline": new.deadline,
                    "report": new.report,
                    "url": new.identity.url,
                    "level": new.identity.level,
                }
                for new in changed
            ],
        )


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


_GATES = select(gates.c.pr_number, gates.c.devices).where(gates.c.pr_number.in_(bindparam("numbers", expanding=True)))


def wishes(connection: Connection, reported: Iterable[tuple[Identity, Job]]) -> list[Wish]:
    """What the PRs of these jobs should show, as far as their repositories' levels let them show anything."""
    shown = [pair for pair in reported if pair[0].pr_number is not None and pair[0].level in {"L3", "L4"}]
    numbers = {identity.pr_number for identity, _ in shown if identity.level == "L3"}
    devices = {}
    if numbers:
        rows = connection.execute(_GATES, {"numbers": list(numbers)})
        devices = {row.pr_number: tuple(json.loads(row.devices)) for row in rows}
    return [
        Wish(one, job, core_checks.gate_open(one.level, one.device, devices.get(one.pr_number, ())))
        for one, job in shown
    ]


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


def show_on_pr(connection: Connection, wanted: Collection[Wish], *, now: float, give_up_at: float) -> bool:
    """Store what upstream PRs should show of jobs, and queue the writing of it.

    Returns:
        Whether there is anything to write.
    """
    if not wanted:
        return False
    keys = [wish.identity.key for wish in wanted]
    rows = {row.job_key: row for row in connection.execute(_HOLD_CHECKS, {"keys": keys})}
    new, changed, owed = [], [], []
    for wish in wanted:
        one, row = wish.identity, rows.get(wish.identity.key)
        shown = None if row is None else CheckState(row.status, row.conclusion, row.title, row.summary)
        state = core_checks.desired(wish.job, one.repo_name, opened=wish.opened, shown=shown)
        if state is None or one.pr_number is None:
            continue
        if row is None:
            new.append(
                {
                    "job_key": one.key,
                    "repo": one.repo,
                    "repo_name": one.repo_name,
                    "run_id": one.run_id,
                    "head_sha": one.head_sha,
                    "name": core_checks.name(one.repo_name, one.workflow, one.job_name),
                    "external_id": core_checks.external_id(one.run_id, one.pr_number),
                    "details_url": one.url,
                    **vars(state),
                    "version": 1,
                    "written_version": 0,
                    "created_at": now,
                }
            )
        else:
            changed.append({"wanted": one.key, **vars(state), "details_url": one.url})
        owed.append(outbox.NewTask(f"check:{one.key}", "check", one.delivery_id, one.repo, one.key, give_up_at))
    if new:
        connection.execute(insert(connection, checks).on_conflict_do_nothing(), new)
    if changed:
        connection.execute(_CHANGE_CHECK, changed)
    outbox.enqueue(connection, owed, now=now)
    return bool(owed)


_HOLD_CHECKS = (
    select(checks)
    .where(checks.c.job_key.in_(bindparam("keys", expanding=True)))
    .order_by(checks.c.job_key)
    .with_for_update()
)
_CHANGE_CHECK = (
    update(checks)
    .where(checks.c.job_key == bindparam("wanted"))
    .values(
        {name: bindparam(name) for name in (*CheckState.__dataclass_fields__, "details_url")}
        | {"version": checks.c.version + 1}
    )
)


def _check(row: Row[Any]) -> Check:
    fields = row._mapping
    state = CheckState(fields["status"], fields["conclusion"], fields["title"], fields["summary"])
    names = [name for name in Check.__dataclass_fields__ if name != "state"]
    return Check(state=state, **{name: fields[name] for name in names})


_CHECKS = select(checks).where(checks.c.job_key.in_(bindparam("keys", expanding=True)))


def checks_of(connection: Connection, job_keys: Collection[str]) -> dict[str, Check]:
    """The checks of jobs, by job key."""
    return {row.job_key: _check(row) for row in connection.execute(_CHECKS, {"keys": list(job_keys)})}


_WRITTEN = (
    update(checks)
    .where(checks.c.job_key == bindparam("wanted"), checks.c.written_version <= bindparam("version_then"))
    .values(written_version=bindparam("version_then"), github_id=bindparam("its_id"))
)


def check_written(connection: Connection, job_key: str, *, version: int, github_id: int) -> None:
    """GitHub has the wish of that version."""
    connection.execute(_WRITTEN, {"wanted": job_key, "version_then": version, "its_id": github_id})


def github_ids(connection: Connection, head_sha: str) -> set[int]:
    """Check runs on a commit that belong to known jobs already."""
    rows = connection.scalars(
        select(checks.c.github_id).where(checks.c.head_sha == head_sha, checks.c.github_id.is_not(None))
    )
    return {number for number in rows if number is not None}


@dataclass(frozen=True)
class Run:
    """A downstream run behind a check; ``delivery_id`` is what it was started by, if that is still on record."""

    repo: str
    repo_name: str
    run_id: str
    url: str | None
    delivery_id: str | None


_RUNS = select(checks.c.repo, checks.c.repo_name, checks.c.run_id, checks.c.details_url, jobs.c.delivery_id).join(
    jobs, jobs.c.key == checks.c.job_key, isouter=True
)


def runs_of_check(connection: Connection, github_id: int, name: str, external_id: str) -> set[Run]:
    """The runs behind a check run."""
    ours = or_(checks.c.github_id == github_id, and_(checks.c.name == name, checks.c.external_id == external_id))
    return {Run(*row) for row in connection.execute(_RUNS.where(ours))}


def runs_of_commit(connection: Connection, head_sha: str) -> set[Run]:
    """The runs behind every check on a commit."""
    return {Run(*row) for row in connection.execute(_RUNS.where(checks.c.head_sha == head_sha))}


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
