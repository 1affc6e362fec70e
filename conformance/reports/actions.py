"""GitHub Actions: annotations and the job summary (workflow commands of GitHub's documentation)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from conformance.ids import parse
from conformance.reports.accounts import Accounts

ANNOTATIONS = 10
"""GitHub shows at most ten error annotations per step."""

SUMMARY_LIMIT = 1_000_000
"""GitHub refuses a step summary of more than 1 MiB."""


def in_actions(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a step of GitHub Actions (or of what behaves like it) runs this process."""
    return environment.get("GITHUB_ACTIONS") == "true"


def links(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The page of the workflow run that this process belongs to; nothing elsewhere."""
    if not in_actions(environment):
        return ()
    parts = [environment.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    return (f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}",) if all(parts) else ()


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def error_commands(accounts: Accounts, unexpected: list[str]) -> list[str]:
    """``::error`` commands for the first unexpected results."""
    lines = []
    for name in unexpected[:ANNOTATIONS]:
        last = accounts.attempts[name][-1]
        title = _property(f"{accounts.outcome(name)}: {name}")
        lines.append(
            f"::error file={_property(parse(name).file)},title={title}::{_data(last.message or last.reason or name)}"
        )
    if len(unexpected) > ANNOTATIONS:
        lines.append(f"::error title=conformance::{len(unexpected)} unexpected results; the job summary lists them")
    return lines


def append_summary(text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Adds Markdown to the job summary; nothing happens where GitHub gave no file for it."""
    target = environment.get("GITHUB_STEP_SUMMARY")
    if target:
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(text[:SUMMARY_LIMIT])
