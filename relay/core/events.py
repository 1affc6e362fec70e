"""What a webhook means (spec 1.1): payload in, decision out.

The payloads are GitHub's (GitHub Docs, "Webhook events and payloads"); only the fields read here are relied on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from relay.core.allowlist import GATE_PREFIX, Allowlist, Target

PULL_REQUEST_ACTIONS = ("opened", "reopened", "synchronize", "closed")
LABEL_ACTIONS = ("labeled", "unlabeled")

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TRUNK = re.compile(r"refs/(?:tags|heads)/(?:.+/)?ciflow/trunk/([1-9][0-9]{0,9})")
_BRANCH = "refs/heads/"


class PayloadError(ValueError):
    """A field that GitHub always sends is missing or of another type; the text names it."""


@dataclass(frozen=True)
class Ignore:
    """Answered 200, nothing is stored."""

    reason: str


@dataclass(frozen=True)
class Pong:
    """The App's hook was set up or tested."""


@dataclass(frozen=True)
class Gate:
    """Devices whose L3 checks are wanted on a PR, as its labels say at one moment.

    Attributes:
        pr_number: the upstream PR.
        head_sha: its head at that moment.
        devices: lower-case devices, sorted.
        updated_at: GitHub's ``pull_request.updated_at``; an older snapshot never overrides a newer one.
    """

    pr_number: int
    head_sha: str
    devices: tuple[str, ...]
    updated_at: str


@dataclass(frozen=True)
class Fanout:
    """An event that goes to downstream repositories.

    Attributes:
        event_type: name of the GitHub event, also the ``repository_dispatch`` type.
        action: the event's action, empty for ``push``.
        pr_number: the PR that is tested, if one is.
        head_sha: the commit to test.
        base_sha: where the tested change starts (PR base, or the push's ``before``).
        branch: for ``push`` to a branch, its name; patterns of the allowlist select on it.
        changed: files that a ``push`` says it changed; ``None`` where the payload cannot know them.
        gate: label snapshot that came along.
    """

    event_type: str
    action: str
    pr_number: int | None
    head_sha: str
    base_sha: str | None
    branch: str | None
    changed: tuple[str, ...] | None
    gate: Gate | None

    @property
    def closes(self) -> bool:
        """Whether the PR was closed: downstream may stop what it runs for it."""
        return self.event_type == "pull_request" and self.action == "closed"


@dataclass(frozen=True)
class Rerun:
    """Somebody pressed "re-run" on one of our checks, or on the whole suite."""

    head_sha: str
    check_run_id: int | None = None
    check_name: str | None = None
    external_id: str | None = None
    details_url: str | None = None
    app_id: int | None = None


Decision = Ignore | Pong | Gate | Fanout | Rerun


def _at(payload: dict[str, Any], path: str, kind: type) -> Any:
    node: Any = payload
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, kind) or isinstance(node, bool) is not (kind is bool):
        raise PayloadError(f"field {path!r} is missing or not a {kind.__name__}")
    return node


def _sha(payload: dict[str, Any], path: str) -> str:
    value: str = _at(payload, path, str)
    if not _SHA.fullmatch(value):
        raise PayloadError(f"field {path!r} is no commit SHA")
    return value


def _pr_number(payload: dict[str, Any]) -> int:
    number: int = _at(payload, "pull_request.number", int)
    if not 1 <= number < 2**31:
        raise PayloadError(f"field 'pull_request.number' is {number}, which is no pull request's number")
    return number


def repository(payload: dict[str, Any]) -> str | None:
    """``repository.full_name``, or ``None`` for events that have no repository."""
    node = payload.get("repository")
    name = node.get("full_name") if isinstance(node, dict) else None
    return name if isinstance(name, str) else None


def decide(event: str, payload: dict[str, Any], upstream: str) -> Decision:
    """Say what a verified webhook asks for.

    Args:
        event: header ``X-GitHub-Event``.
        payload: the body.
        upstream: ``owner/name`` whose events count, in any case.

    Raises:
        PayloadError: the event is one that we use, but a field we need is missing.
    """
    if event == "ping":
        return Pong()
    handler = {"pull_request": _pull_request, "push": _push, "check_run": _check_run, "check_suite": _check_suite}.get(
        event
    )
    if handler is None:
        return Ignore(f"event {event[:100]!r} is not used")
    name = repository(payload)
    if name is None or name.lower() != upstream.lower():
        return Ignore(f"repository {str(name)[:200]!r} is not the upstream {upstream!r}")
    return handler(payload)


def _gate(payload: dict[str, Any]) -> Gate:
    pull = _at(payload, "pull_request", dict)
    labels = pull.get("labels")
    names = {
        label["name"]
        for label in (labels if isinstance(labels, list) else [])
        if isinstance(label, dict) and isinstance(label.get("name"), str)
    }
    changed = payload.get("label")
    if isinstance(changed, dict) and isinstance(changed.get("name"), str):
        if payload.get("action") == "labeled":
            names.add(changed["name"])
        elif payload.get("action") == "unlabeled":
            names.discard(changed["name"])
    devices = sorted({name[len(GATE_PREFIX) :].lower() for name in names if name.startswith(GATE_PREFIX)} - {""})
    updated_at = pull.get("updated_at")
    return Gate(
        pr_number=_pr_number(payload),
        head_sha=_sha(payload, "pull_request.head.sha"),
        devices=tuple(devices),
        updated_at=updated_at if isinstance(updated_at, str) else "",
    )


def _pull_request(payload: dict[str, Any]) -> Decision:
    action = _at(payload, "action", str)
    if action in LABEL_ACTIONS:
        label = _at(payload, "label.name", str)
        if not label.startswith(GATE_PREFIX):
            return Ignore(f"label {label[:100]!r} opens no gate")
        return _gate(payload)
    if action not in PULL_REQUEST_ACTIONS:
        return Ignore(f"pull_request action {action[:100]!r} is not used")
    gate = _gate(payload)
    return Fanout(
        event_type="pull_request",
        action=action,
        pr_number=gate.pr_number,
        head_sha=gate.head_sha,
        base_sha=_sha(payload, "pull_request.base.sha"),
        branch=None,
        changed=None,
        gate=gate,
    )


def _push(payload: dict[str, Any]) -> Decision:
    ref = _at(payload, "ref", str)
    after = _sha(payload, "after")
    if payload.get("deleted") is True or not after.strip("0"):
        return Ignore(f"{ref[:200]!r} was deleted")
    before = payload.get("before")
    base = before if isinstance(before, str) and _SHA.fullmatch(before) and before.strip("0") else None
    trunk = _TRUNK.fullmatch(ref)
    if trunk is None and not ref.startswith(_BRANCH):
        return Ignore(f"{ref[:200]!r} is neither a branch nor a ciflow/trunk tag")
    return Fanout(
        event_type="push",
        action="",
        pr_number=int(trunk[1]) if trunk else None,
        head_sha=after,
        base_sha=base,
        branch=None if trunk else ref[len(_BRANCH) :],
        changed=None if trunk else _pushed_files(payload),
        gate=None,
    )


def _pushed_files(payload: dict[str, Any]) -> tuple[str, ...] | None:
    """Files named by the push's commits; GitHub cuts the list at 2,048 commits, so a full one knows nothing."""
    commits = payload.get("commits")
    if not isinstance(commits, list) or not commits or len(commits) >= 2048:
        return None
    files: set[str] = set()
    for commit in commits:
        for kind in ("added", "modified", "removed"):
            names = commit.get(kind) if isinstance(commit, dict) else None
            if not isinstance(names, list):
                return None
            files.update(name for name in names if isinstance(name, str))
    return tuple(sorted(files))


def _check_run(payload: dict[str, Any]) -> Decision:
    action = _at(payload, "action", str)
    if action != "rerequested":
        return Ignore(f"check_run action {action[:100]!r} is not used")
    page = payload["check_run"].get("details_url")
    return Rerun(
        head_sha=_sha(payload, "check_run.head_sha"),
        check_run_id=_at(payload, "check_run.id", int),
        check_name=_at(payload, "check_run.name", str),
        external_id=_at(payload, "check_run.external_id", str),
        details_url=page if isinstance(page, str) else None,
        app_id=_app(payload["check_run"]),
    )


def _check_suite(payload: dict[str, Any]) -> Decision:
    action = _at(payload, "action", str)
    if action != "rerequested":
        return Ignore(f"check_suite action {action[:100]!r} is not used")
    return Rerun(head_sha=_sha(payload, "check_suite.head_sha"), app_id=_app(payload["check_suite"]))


def _app(node: dict[str, Any]) -> int | None:
    app = node.get("app")
    number = app.get("id") if isinstance(app, dict) else None
    return number if isinstance(number, int) else None


def select(fanout: Fanout, allowlist: Allowlist, default_refs: tuple[str, ...]) -> list[Target]:
    """Targets of an event, in the order of the allowlist.

    A target that wants only some paths of a PR is still selected: the payload does not name a PR's files, so the
    worker asks GitHub before it dispatches.
    """
    chosen = []
    for target in allowlist:
        if fanout.event_type not in target.events:
            continue
        if fanout.branch is not None and not target.wants_branch(fanout.branch, default_refs):
            continue
        if fanout.changed is not None and not target.wants_paths(list(fanout.changed)):
            continue
        chosen.append(target)
    return chosen
