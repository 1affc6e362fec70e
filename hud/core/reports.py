"""How reports about one job merge (spec/hud.md 4), and what a report says about commits and pull requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from hud.core.text import sha
from relay.wire import HudReport, Workflow, run_key

_CIFLOW = re.compile(r"refs/tags/ciflow/(?:.+/)?(\d+)$")
_MAX_NUMBER = 2**31 - 1


class ReportError(ValueError):
    """A report that cannot be stored; ``field`` names the culprit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Conflict(ValueError):
    """A different report for a job that is already completed; the text names the fields that differ."""


@dataclass(frozen=True)
class Subject:
    """What was tested.

    Attributes:
        upstream: ``owner/name``.
        pr: number of the pull request; ``None`` for runs of a branch.
        sha: the tested commit, if the report names one.
        base_sha, base_ref: what the pull request is based on.
        branch: the branch that a push went to.
        title, author: of the pull request.
        state: ``open``, ``closed`` or ``merged``.
        at: when upstream says this happened, seconds since the epoch.
        action: of a pull_request event: opened, synchronize, closed, …
        commits: of a push, oldest first, the commit before the push at the head of the list.
    """

    upstream: str
    pr: int | None = None
    sha: str | None = None
    base_sha: str | None = None
    base_ref: str | None = None
    branch: str | None = None
    title: str = ""
    author: str = ""
    state: str = "open"
    at: float | None = None
    action: str | None = None
    commits: tuple[str, ...] = ()


Merge = Literal["stored", "repeated", "kept"]


def key_of(report: HudReport, sent: dict[str, Any] | None = None) -> str:
    """The run that a report is about.

    Args:
        report: the report.
        sent: the callback's JSON before its text was cleaned, where it may differ: the relay made its ticket from that.
    """
    callback, workflow = report.untrusted.callback_payload, report.untrusted.callback_payload.workflow
    sent = sent or {}
    delivery, run_id, job = (
        said if isinstance(said, str) else known
        for said, known in (
            (sent.get("delivery_id"), callback.delivery_id),
            (_dig(sent, "workflow", "run_id"), workflow.run_id),
            (_dig(sent, "workflow", "job_name"), workflow.job_name),
        )
    )
    return run_key(report.trusted.verified_repo, delivery, run_id, workflow.run_attempt, job)


def subject_of(report: HudReport) -> Subject:
    """Read the dispatched payload.

    Raises:
        ReportError: a field that the event must have is missing or mistyped.
    """
    callback = report.untrusted.callback_payload
    payload = callback.payload
    upstream = _dig(payload, "repository", "full_name")
    if isinstance(payload.get("repository"), str):
        upstream = payload["repository"]
    if not isinstance(upstream, str) or not upstream or len(upstream) > 255:
        raise ReportError(_name("repository.full_name"), "the upstream repository's name is required")
    if callback.event_type == "pull_request":
        return _of_pull(payload, upstream)
    if callback.event_type == "push":
        return _of_push(payload, upstream)
    tested = (payload.get(name) for name in ("sha", "head_sha", "after", "upstream_sha"))
    return Subject(upstream, sha=next((found for value in tested if (found := sha(value))), None))


def _of_pull(payload: dict[str, Any], upstream: str) -> Subject:
    pull = payload.get("pull_request")
    if not isinstance(pull, dict):
        raise ReportError(_name("pull_request"), "required for the event pull_request")
    number = pull.get("number", payload.get("number"))
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= _MAX_NUMBER:
        raise ReportError(_name("pull_request.number"), "must be the pull request's number")
    head = sha(_dig(pull, "head", "sha"))
    if head is None:
        raise ReportError(_name("pull_request.head.sha"), "must be a commit's full SHA")
    state = "merged" if pull.get("merged") else "closed" if pull.get("state") == "closed" else "open"
    return Subject(
        upstream,
        pr=number,
        sha=head,
        base_sha=sha(_dig(pull, "base", "sha")),
        base_ref=_short(_dig(pull, "base", "ref")) or None,
        title=_short(pull.get("title")),
        author=_short(_dig(pull, "user", "login")),
        state=state,
        at=_moment(pull.get("updated_at")),
        action=_short(payload.get("action")) or None,
    )


def _of_push(payload: dict[str, Any], upstream: str) -> Subject:
    after = sha(payload.get("after"))
    if after is None:
        raise ReportError(_name("after"), "must be the pushed commit's full SHA")
    ref = _short(payload.get("ref"))
    trunk = _CIFLOW.fullmatch(ref)
    if trunk and int(trunk[1]) <= _MAX_NUMBER:
        return Subject(upstream, pr=int(trunk[1]), sha=after)
    listed = payload.get("commits")
    inside = [sha(_dig(item, "id")) for item in listed] if isinstance(listed, list) else []
    chain = dict.fromkeys(name for name in (sha(payload.get("before")), *inside, after) if name)
    return Subject(
        upstream,
        sha=after,
        branch=ref.removeprefix("refs/heads/") or None,
        at=_moment(_dig(payload, "repository", "pushed_at")) or _moment(_dig(payload, "head_commit", "timestamp")),
        commits=tuple(chain),
    )


def merge(stored: dict[str, Any] | None, workflow: Workflow) -> tuple[dict[str, Any], Merge]:
    """Put a report on top of what is known of its job.

    Absent and null fields never erase; a late ``in_progress`` never undoes ``completed``; ``timed_out``, which is what
    the relay's sweeper writes, yields to a real result.

    Args:
        stored: the merged reports so far, as this function returned them.
        workflow: the new report.

    Returns:
        The merged report (JSON values, no nulls), and whether it changed something (``stored``), said nothing new
        (``repeated``) or came too late to count (``kept``).

    Raises:
        Conflict: the job is completed and this completed report contradicts it.
    """
    new = {name: value for name, value in workflow.model_dump(mode="json").items() if value is not None}
    if not new.get("run_id"):
        new.pop("run_id", None)
    if stored is None:
        return new, "stored"
    if stored["status"] == "completed":
        if new["status"] == "in_progress":
            added = {name: value for name, value in new.items() if name not in stored}
            return {**stored, **added}, "kept"
        if not (stored["conclusion"] == "timed_out" and new["conclusion"] != "timed_out"):
            differing = sorted(
                name
                for name, value in new.items()
                if name in stored and stored[name] != value and name not in ("schema_version", "started_at")
            )
            if differing:
                raise Conflict(f"this job is already completed; the new report differs in: {', '.join(differing)}")
    merged = {**stored, **new}
    return merged, "repeated" if merged == stored else "stored"


def _name(inside: str) -> str:
    return f"untrusted.callback_payload.payload.{inside}"


def _dig(tree: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(name)
    return tree


def _short(value: object) -> str:
    return value[:512] if isinstance(value, str) else ""


def _moment(value: object) -> float | None:
    """Seconds since the epoch: GitHub gives ISO 8601 text and, in push payloads, also a number."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if 0 < value < 1e11 else None
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
