"""Keeping ``client_payload`` within GitHub's limit (spec 1.2, 2).

GitHub refuses a ``repository_dispatch`` whose ``client_payload`` has more than 10 keys or about 64 KB of JSON with 422,
which would lose the event. Fields go in a fixed order, bulky and replaceable ones first; what clients read stays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from relay.core.body import dump

MAX_BYTES = 63_000
"""Below GitHub's 65,535 characters, with room for how GitHub may write the same JSON."""

_REPOSITORY_KEPT = ("id", "node_id", "name", "full_name", "private", "html_url", "clone_url", "default_branch", "owner")
_USER_KEPT = ("id", "login", "type", "html_url")
_PULL_KEPT = (
    "id", "node_id", "number", "state", "title", "user", "body", "labels", "head", "base", "draft", "merged",
    "merge_commit_sha", "html_url", "created_at", "updated_at", "closed_at", "merged_at", "author_association",
    "additions", "deletions", "changed_files", "commits",
)  # fmt: skip
_TEXT_CAP = 1024


def _pick(node: Any, keys: tuple[str, ...]) -> Any:
    return {key: node[key] for key in keys if key in node} if isinstance(node, dict) else node


def _commits(payload: dict[str, Any]) -> None:
    payload.pop("commits", None)
    head = payload.get("head_commit")
    if isinstance(head, dict):
        for key in ("added", "modified", "removed"):
            head.pop(key, None)


def _repositories(payload: dict[str, Any]) -> None:
    for holder in (payload, *_sides(payload)):
        for key in ("repository", "repo"):
            repo = holder.get(key)
            if isinstance(repo, dict):
                repo = _pick(repo, _REPOSITORY_KEPT)
                if "owner" in repo:
                    repo["owner"] = _pick(repo["owner"], _USER_KEPT)
                holder[key] = repo


def _sides(payload: dict[str, Any]) -> list[dict[str, Any]]:
    pull = payload.get("pull_request")
    if not isinstance(pull, dict):
        return []
    return [pull[side] for side in ("head", "base") if isinstance(pull.get(side), dict)]


def _pull(payload: dict[str, Any]) -> None:
    pull = payload.get("pull_request")
    if isinstance(pull, dict):
        pull = _pick(pull, _PULL_KEPT)
        pull["user"] = _pick(pull.get("user"), _USER_KEPT)
        if isinstance(pull.get("labels"), list):
            pull["labels"] = [_pick(label, ("name",)) for label in pull["labels"]]
        payload["pull_request"] = pull


def _body(payload: dict[str, Any]) -> None:
    pull = payload.get("pull_request")
    if isinstance(pull, dict) and isinstance(pull.get("body"), str):
        pull["body"] = pull["body"][:_TEXT_CAP]
    head = payload.get("head_commit")
    if isinstance(head, dict) and isinstance(head.get("message"), str):
        head["message"] = head["message"][:_TEXT_CAP]


def _people(payload: dict[str, Any]) -> None:
    for key in ("sender", "organization", "enterprise", "installation"):
        if key in payload:
            payload[key] = _pick(payload[key], _USER_KEPT)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _short(value: Any) -> Any:
    return value[:_TEXT_CAP] if isinstance(value, str) else value


def _essential(payload: dict[str, Any]) -> None:
    """Last resort: only what spec 1.2 promises, each text bounded, labels cut last to first."""
    kept: dict[str, Any] = {}
    for key in ("action", "number", "after", "before", "ref"):
        if key in payload:
            kept[key] = _short(payload[key])
    kept["repository"] = {"full_name": _mapping(payload.get("repository")).get("full_name")}
    pull = payload.get("pull_request")
    if isinstance(pull, dict):
        labels = pull["labels"] if isinstance(pull.get("labels"), list) else []
        names = [{"name": _short(label.get("name"))} for label in labels if isinstance(label, dict)]
        kept["pull_request"] = {
            "number": pull.get("number"),
            "title": _short(pull.get("title")),
            "user": {"login": _short(_mapping(pull.get("user")).get("login"))},
            "labels": names[:100],
            "head": _reference(pull.get("head")),
            "base": _reference(pull.get("base")),
        }
        while len(dump(kept)) > MAX_BYTES // 2 and kept["pull_request"]["labels"]:
            kept["pull_request"]["labels"].pop()
    payload.clear()
    payload.update(kept)


def _reference(side: Any) -> dict[str, Any]:
    side = _mapping(side)
    name = _short(_mapping(side.get("repo")).get("full_name"))
    return {"ref": _short(side.get("ref")), "sha": side.get("sha"), "repo": {"full_name": name}}


_STEPS: tuple[Callable[[dict[str, Any]], None], ...] = (_commits, _repositories, _body, _pull, _people, _essential)


def client_payload(event_type: str, delivery_id: str, payload: dict[str, Any], *, reserve: int = 0) -> dict[str, Any]:
    """Build ``client_payload``, trimmed where it would not fit.

    Args:
        event_type, delivery_id: as in spec 1.2.
        payload: the webhook's body; it is not changed.
        reserve: bytes to leave free for what is added per target (the callback token).

    Returns:
        ``{"event_type", "delivery_id", "payload"}``; ``payload["truncated"]`` is ``True`` where something was left out.
    """
    message: dict[str, Any] = {"event_type": event_type, "delivery_id": delivery_id, "payload": payload}
    if len(dump(message)) + reserve <= MAX_BYTES:
        return message
    trimmed = copy.deepcopy(payload)
    for step in _STEPS:
        step(trimmed)
        message["payload"] = {**trimmed, "truncated": True}
        if len(dump(message)) + reserve <= MAX_BYTES:
            break
    return message
