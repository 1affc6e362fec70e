"""The callback's body: what was dispatched, sent back, with the job's state added (spec 1.4)."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from pydantic import ValidationError

from relay.report.environment import Environment, ReportError
from relay.report.results import Results
from relay.wire import Callback


def own_run(event_type: str, sha: str, upstream: str) -> dict[str, Any]:
    """What stands in for ``client_payload`` in a nightly or periodic run, which nobody dispatched."""
    return {
        "event_type": event_type,
        "delivery_id": sha,
        "payload": {"repository": {"full_name": upstream}, "head_sha": sha},
    }


def build(
    payload: dict[str, Any],
    environment: Environment,
    *,
    status: str,
    conclusion: str | None,
    job_name: str | None,
    results: Results | None,
    artifact_url: str | None,
    triage_verdict: dict[str, Any] | None,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Build the body and check it as the relay will.

    Args:
        payload: ``client_payload`` as dispatched; every key goes back, ``callback_token`` included.
        status: ``in_progress`` or ``completed``.
        conclusion: for ``completed``; without one, the results decide.
        job_name: overrides the CI's name of the job, which all legs of a matrix share.

    Raises:
        ReportError: the report would be refused; the text names the field.
    """
    moment = (now or datetime.now(timezone.utc)).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    workflow: dict[str, Any] = {
        "schema_version": 1,
        "status": status,
        "name": environment.workflow or "CI",
        "url": environment.url,
        "run_id": environment.run_id,
        "run_attempt": environment.run_attempt,
        "job_name": job_name or environment.job_name,
        "check_run_id": environment.check_run_id,
        "started_at" if status == "in_progress" else "completed_at": moment,
    }
    if status == "completed":
        workflow["conclusion"] = conclusion or (results.conclusion if results is not None else None)
        if results is not None and results.counts is not None:
            workflow["test_results"] = results.counts
        if results is not None and results.failed_tests:
            workflow["failed_tests_detail"] = results.failed_tests
        if artifact_url:
            workflow["artifact_url"] = artifact_url
        if triage_verdict is not None:
            workflow["triage_verdict"] = triage_verdict
    body = {**payload, "workflow": {key: value for key, value in workflow.items() if value is not None}}
    try:
        Callback.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"the report is not complete: {where}: {first['msg']}") from error
    return body
