"""What a CI tells a job about itself, for GitHub Actions, Buildkite and GitLab CI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ReportError(Exception):
    """The report cannot be made, or (``sent``) the other side refused it or cannot be reached."""

    def __init__(self, message: str, *, sent: bool = False):
        super().__init__(message)
        self.sent = sent


class NothingToReport(Exception):
    """This run was not started by a relay; nobody waits for a report."""


@dataclass(frozen=True)
class Environment:
    """One job of one run.

    Attributes:
        ci: ``github``, ``buildkite``, ``gitlab``, or ``unknown``.
        workflow, job_name, run_id, run_attempt, url: as in :class:`relay.wire.Workflow`.
        check_run_id: GitHub's check run of this job, where the CI tells it.
        token_command: for Buildkite, the command that prints an OIDC token.
        token_url, token_request: for GitHub, where an OIDC token is asked for, and the token that permits asking.
        token: a ready OIDC token.
    """

    ci: str
    workflow: str
    job_name: str
    run_id: str
    run_attempt: int
    url: str | None
    check_run_id: str | None = None
    token_url: str | None = None
    token_request: str | None = None
    token_command: tuple[str, ...] = ()
    token: str | None = None


def detect(env: Mapping[str, str]) -> Environment:
    """Find out which CI this is and read what it says.

    Args:
        env: the process environment. ``RELAY_OIDC_TOKEN`` gives a ready token on any CI.
    """
    token = env.get("RELAY_OIDC_TOKEN") or None
    if env.get("GITHUB_ACTIONS") == "true" or "GITHUB_RUN_ID" in env:
        server, repo, run_id = (
            env.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        )
        return Environment(
            ci="github",
            workflow=env.get("GITHUB_WORKFLOW", ""),
            job_name=env.get("GITHUB_JOB", ""),
            run_id=run_id,
            run_attempt=_attempt(env.get("GITHUB_RUN_ATTEMPT")),
            url=f"{server}/{repo}/actions/runs/{run_id}" if server and repo and run_id else None,
            check_run_id=env.get("RELAY_CHECK_RUN_ID") or None,
            token_url=env.get("ACTIONS_ID_TOKEN_REQUEST_URL"),
            token_request=env.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN"),
            token=token,
        )
    if env.get("BUILDKITE") == "true":
        return Environment(
            ci="buildkite",
            workflow=env.get("BUILDKITE_PIPELINE_SLUG", ""),
            job_name=env.get("BUILDKITE_LABEL") or env.get("BUILDKITE_STEP_KEY", ""),
            run_id=env.get("BUILDKITE_BUILD_NUMBER", ""),
            run_attempt=_attempt(env.get("BUILDKITE_RETRY_COUNT"), first=0),
            url=env.get("BUILDKITE_BUILD_URL"),
            token_command=("buildkite-agent", "oidc", "request-token", "--audience"),
            token=token,
        )
    if env.get("GITLAB_CI") == "true":
        return Environment(
            ci="gitlab",
            workflow=env.get("CI_PIPELINE_NAME") or env.get("CI_PROJECT_PATH", ""),
            job_name=env.get("CI_JOB_NAME", ""),
            # GitLab counts no attempts: a job that is retried gets a new id in the same pipeline.
            run_id=env.get("CI_JOB_ID") or env.get("CI_PIPELINE_ID", ""),
            run_attempt=1,
            url=env.get("CI_JOB_URL"),
            token=token,
        )
    return Environment("unknown", "", "", "", 1, None, token=token)


def _attempt(text: str | None, first: int = 1) -> int:
    return max(1, int(text) + 1 - first) if text and text.isdigit() else 1


def client_payload(env: Mapping[str, str]) -> dict[str, Any]:
    """The dispatched ``client_payload`` that started this run.

    ``RELAY_CLIENT_PAYLOAD`` (JSON) comes first, for a CI that is triggered through something else; on GitHub it is in
    the file ``GITHUB_EVENT_PATH``.

    Raises:
        NothingToReport: the run was started by something else than a relay.
        ReportError: it was dispatched, but not in a form that a relay sends.
    """
    given = env.get("RELAY_CLIENT_PAYLOAD")
    if given:
        where, value = "RELAY_CLIENT_PAYLOAD", _json(given, "RELAY_CLIENT_PAYLOAD")
    else:
        path = env.get("GITHUB_EVENT_PATH")
        if not path:
            raise NothingToReport("there is neither RELAY_CLIENT_PAYLOAD nor GITHUB_EVENT_PATH in the environment")
        try:
            event = _json(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise ReportError(f"cannot read the event file {path}: {error.strerror}") from error
        where = path
        value = event.get("client_payload") if isinstance(event, dict) else None
        if value is None:
            name = env.get("GITHUB_EVENT_NAME", "unknown")
            raise NothingToReport(f"the event {name!r} carries no client_payload, so no relay dispatched this run")
    if not isinstance(value, dict) or not {"event_type", "delivery_id", "payload"} <= value.keys():
        raise ReportError(f"client_payload in {where} lacks event_type, delivery_id or payload; no relay sent it")
    return value


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ReportError(f"{where} is not JSON: {error}") from error
