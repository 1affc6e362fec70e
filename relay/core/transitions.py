"""The states of one job (spec 1.6): DISPATCHED → IN_PROGRESS → COMPLETED, with TIMED_OUT as the sweeper's guess.

``advance`` and ``time_out`` decide; the store applies the decision to the row that it holds locked, which makes every
transition one compare-and-set.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from relay.core.body import dump
from relay.wire import CiMetrics, Workflow

State = Literal["IN_PROGRESS", "COMPLETED", "TIMED_OUT"]


@dataclass(frozen=True)
class Job:
    """What is known of one attempt of one job; times in seconds since the epoch by the relay's clock."""

    state: State
    conclusion: str | None
    digest: str | None
    in_progress_at: float | None
    completed_at: float | None


@dataclass(frozen=True)
class Accepted:
    """The report moves the job; ``job`` is its new state."""

    job: Job
    metrics: CiMetrics


@dataclass(frozen=True)
class Repeated:
    """The report says what is known already."""


@dataclass(frozen=True)
class Superseded:
    """The report is true but late: a later state is known. It changes nothing."""

    reason: str


@dataclass(frozen=True)
class Impossible:
    """The report contradicts what is known."""

    reason: str


Step = Accepted | Repeated | Superseded | Impossible


def digest(workflow: Workflow) -> str:
    """What makes two reports the same one: everything but the client's clock, which a retry reads again."""
    facts = workflow.model_dump(mode="json", exclude={"started_at", "completed_at"}, exclude_none=True)
    return hashlib.sha256(dump(dict(sorted(facts.items()))).encode()).hexdigest()


def advance(
    job: Job | None, workflow: Workflow, *, now: float, dispatched_at: float | None, rejected: bool = False
) -> Step:
    """Apply a report to what is known.

    Args:
        job: the job's row, ``None`` if this is its first report.
        workflow: the report.
        now: seconds since the epoch.
        dispatched_at: when the delivery was sent to the repository, ``None`` for nightly and periodic runs.
        rejected: HUD refused the stored report, so a corrected one may replace it.
    """
    first_attempt = workflow.run_attempt == 1
    if workflow.status == "in_progress":
        if job is None:
            queue = _seconds(dispatched_at, now) if first_attempt else None
            return Accepted(Job("IN_PROGRESS", None, digest(workflow), now, None), CiMetrics(queue_time=queue))
        if job.state == "IN_PROGRESS":
            if rejected:
                return Accepted(
                    Job("IN_PROGRESS", None, digest(workflow), job.in_progress_at, None),
                    CiMetrics(queue_time=_seconds(dispatched_at, job.in_progress_at) if first_attempt else None),
                )
            return Repeated()
        if job.state == "TIMED_OUT":
            return Superseded("the job was reported timed_out; its completed report will replace that")
        return Impossible(f"the job is already completed ({job.conclusion}); it cannot be in progress again")
    if job is not None and job.state == "COMPLETED" and not rejected:
        if job.digest == digest(workflow):
            return Repeated()
        return Impossible(
            f"the job is already completed ({job.conclusion}) and this report differs from the first; "
            "a re-run must report its own run_attempt"
        )
    started = job.in_progress_at if job is not None else None
    done = Job("COMPLETED", workflow.conclusion, digest(workflow), started, now)
    execution = _seconds(started, now) if first_attempt else None
    return Accepted(done, CiMetrics(execution_time=execution))


def time_out(job: Job, *, now: float) -> Job | None:
    """What the sweeper makes of a job that is overdue; ``None`` if it ended in the meantime."""
    if job.state != "IN_PROGRESS":
        return None
    return Job("TIMED_OUT", "timed_out", None, job.in_progress_at, now)


def _seconds(start: float | None, end: float | None) -> float | None:
    """A negative span is the mark of a clock step between two hosts; unknown is the honest answer."""
    if start is None or end is None or end < start:
        return None
    return round(end - start, 3)
