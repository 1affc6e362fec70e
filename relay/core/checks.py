"""Check runs on the upstream PR (spec 1.7): what the PR should show, given a job and the gate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from relay.core.transitions import Job
from relay.wire import Level

MAX_NAME = 255

_NAME = re.compile(r"crcr/([A-Za-z0-9-]+/[A-Za-z0-9._-]+)/.+")
_EXTERNAL = re.compile(r"([1-9][0-9]{0,18}):([0-9]{1,10})")

_TITLES = {
    "success": "Passed",
    "failure": "Failed",
    "neutral": "Neutral",
    "cancelled": "Cancelled",
    "skipped": "Skipped",
    "timed_out": "Timed out",
    "action_required": "Action required",
    "stale": "Stale",
    "startup_failure": "Could not start",
}


@dataclass(frozen=True)
class CheckState:
    """Desired content of a check run, in GitHub's words (REST API, "Create a check run")."""

    status: Literal["in_progress", "completed"]
    conclusion: str | None
    title: str
    summary: str


def name(repo: str, workflow: str, job: str) -> str:
    """``crcr/<owner>/<repo>/<workflow>/<job>``, bounded; a job without a name leaves its part out."""
    return "/".join(part for part in ("crcr", repo, workflow, job) if part)[:MAX_NAME]


def external_id(run_id: str, pr_number: int) -> str:
    """``<run_id>:<pr>``."""
    return f"{run_id}:{pr_number}"


def run_page(web_url: str, repo: str, run_id: str) -> str:
    """GitHub's page of a workflow run."""
    return f"{web_url}/{quote(repo)}/actions/runs/{run_id}"


def parse(check_name: str, external: str) -> tuple[str, str] | None:
    """Downstream repository and run id that a check's name and external id speak of, ``None`` if it is not ours."""
    named, ids = _NAME.fullmatch(check_name), _EXTERNAL.fullmatch(external)
    return (named[1], ids[1]) if named and ids else None


def gate_open(level: Level, device: str | None, devices: tuple[str, ...]) -> bool:
    """Whether a repository's checks are shown on a PR whose labels name ``devices``."""
    return level == "L4" or (level == "L3" and device is not None and device.lower() in devices)


def desired(job: Job, repo: str, *, opened: bool, shown: CheckState | None) -> CheckState | None:
    """What the PR should show of a job.

    Args:
        job: what is known of it.
        repo: downstream repository, for the text.
        opened: :func:`gate_open`.
        shown: what we last asked GitHub to show, ``None`` if nothing yet.

    Returns:
        The new content, or ``None`` to leave GitHub as it is. A check that is in progress when its gate closes is
        concluded as neutral: otherwise the PR would say "in progress" for ever.
    """
    if not opened:
        if shown is None or shown.status == "completed":
            return None
        state = CheckState(
            "completed", "neutral", "No longer reported", f"The label that asks for {repo} was removed from this PR."
        )
    elif job.state == "IN_PROGRESS":
        state = CheckState("in_progress", None, "In progress", f"Running on {repo}.")
    else:
        conclusion = github_conclusion(job.conclusion)
        state = CheckState("completed", conclusion, _TITLES.get(job.conclusion or "", "Completed"), _summary(job, repo))
    return None if state == shown else state


def github_conclusion(conclusion: str | None) -> str:
    """A conclusion that the check-run API takes: ``startup_failure`` is for suites and ``stale`` only GitHub sets."""
    return {None: "neutral", "startup_failure": "failure", "stale": "neutral"}.get(conclusion, conclusion or "neutral")


def _summary(job: Job, repo: str) -> str:
    if job.state == "TIMED_OUT":
        return f"{repo} did not report the end of this job in time. A late result replaces this one."
    return f"Reported by {repo}: {job.conclusion}."


def request_body(
    *, name: str, head_sha: str, external_id: str, details_url: str | None, state: CheckState
) -> dict[str, Any]:
    """Body of ``POST /repos/{owner}/{repo}/check-runs``."""
    body: dict[str, Any] = {
        "name": name,
        "head_sha": head_sha,
        "external_id": external_id,
        "status": state.status,
        "output": {"title": state.title, "summary": state.summary},
    }
    if details_url:
        body["details_url"] = details_url
    if state.conclusion is not None:
        body["conclusion"] = state.conclusion
    return body
