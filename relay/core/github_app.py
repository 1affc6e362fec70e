"""What the relay's GitHub App must be allowed and told (spec 1.11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PERMISSIONS: Mapping[str, str] = {
    "actions": "write",
    "checks": "write",
    "contents": "write",
    "metadata": "read",
    "pull_requests": "read",
}
"""GitHub's names; ``write`` includes ``read``."""
EVENTS = ("check_run", "check_suite", "pull_request", "push")
"""Webhooks that the App subscribes to."""


def missing_permissions(granted: Mapping[str, str]) -> list[str]:
    """Permissions that an App or installation lacks, as ``name: level``.

    Args:
        granted: ``permissions`` of ``GET /app`` or of an installation.
    """
    return [
        f"{name}: {level}"
        for name, level in PERMISSIONS.items()
        if granted.get(name) not in ({"write", "admin"} if level == "write" else {"read", "write", "admin"})
    ]


def missing_events(subscribed: Iterable[str]) -> list[str]:
    """Events that an App does not subscribe to."""
    return sorted(set(EVENTS) - set(subscribed))
