"""``relay report`` without its command line: one report from start to end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.report import environment as ci
from relay.report import message
from relay.report.client import Client
from relay.report.environment import ReportError
from relay.report.results import Results, read

CALLBACK_PATH = "/github/callback"
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Options:
    """What the command line said; the names are its options'."""

    status: str
    url: str
    conclusion: str | None = None
    job_name: str | None = None
    results: Path | None = None
    artifact_url: str | None = None
    triage_verdict: Path | None = None
    event_type: str | None = None
    sha: str | None = None
    upstream: str = "pytorch/pytorch"
    audience: str = "pytorch-cross-repo-ci-relay"
    max_seconds: float = 120


def run(options: Options, env: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
    """Make and send one report; repeating it is harmless.

    Args:
        env: the process environment.
        say: gets one line per step.

    Returns:
        ``{"reported": true, "relay": …, "upload": …}`` with the answers.

    Raises:
        NothingToReport: no relay dispatched this run.
        ReportError: the report cannot be made, or was refused; ``sent`` says which.
    """
    payload = _payload(options, env)
    job = ci.detect(env)
    results = _results(options, say)
    body = message.build(
        payload,
        job,
        status=options.status,
        conclusion=options.conclusion,
        job_name=options.job_name,
        results=results,
        artifact_url=options.artifact_url,
        triage_verdict=_verdict(options.triage_verdict),
    )
    client = Client(max_seconds=options.max_seconds, say=say)
    try:
        token = client.token(job, options.audience)
        answer = client.report(_callback_url(options.url), token, body)
        reason = f": {answer['reason']}" if answer.get("reason") else ""
        say(f"reported {options.status}: the relay answered {answer.get('status')}{reason}")
        upload = _upload(client, answer, results, say) if options.status == "completed" else None
    finally:
        client.close()
    return {"reported": True, "relay": answer, "upload": upload}


def _payload(options: Options, env: Mapping[str, str]) -> dict[str, Any]:
    if options.event_type is None:
        if options.sha is not None:
            raise ReportError("--sha goes with --event-type nightly or periodic")
        return ci.client_payload(env)
    if options.sha is None or not _SHA.fullmatch(options.sha):
        raise ReportError(
            f"--event-type {options.event_type} needs --sha with the tested commit, 40 hexadecimal digits"
        )
    return message.own_run(options.event_type, options.sha, options.upstream)


def _results(options: Options, say: Callable[[str], None]) -> Results | None:
    if options.results is None:
        return None
    results = read(options.results)
    if results.counts is None:
        say(f"{options.results} holds no summary.json, so the report carries no test counts")
    return results


def _verdict(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"--triage-verdict {path}: {error}") from error
    if not isinstance(value, dict):
        raise ReportError(f"--triage-verdict {path}: not a JSON object")
    return value


def _callback_url(url: str) -> str:
    url = url.rstrip("/")
    return url if url.endswith(CALLBACK_PATH) else url + CALLBACK_PATH


def _upload(
    client: Client, answer: dict[str, Any], results: Results | None, say: Callable[[str], None]
) -> dict[str, Any] | None:
    ticket = answer.get("results_upload")
    if results is None or results.file is None:
        return None
    if results.file.stat().st_size == 0:
        say(f"{results.file} is empty: no test was run, so there is nothing to upload")
        return None
    if not isinstance(ticket, dict):
        say("the relay offered no address for per-test results, so they stay with the job")
        return None
    uploaded = client.upload(str(ticket["url"]), str(ticket["token"]), results.file)
    say(f"uploaded {results.file} ({results.file.stat().st_size} bytes)")
    return uploaded
