"""``relay report``: the job's side, as a real process against a real relay."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from relay_parts import AUDIENCE, HUD_KEY, PIPELINE, Key, Minter, Peer, Running, dispatch_of, sqlite_only
from relay_site import HEAD, pull_request, wait_for

from relay.wire.ticket import verify_ticket

pytestmark = sqlite_only


class Job:
    """A GitHub Actions job's environment."""

    def __init__(self, tmp_path: Path, relay: Running, peer: Peer, payload: dict[str, Any] | None, token: str):
        self.url = relay.url
        self.event = tmp_path / "event.json"
        event = {"action": "pull_request"} if payload is None else {"client_payload": payload}
        self.event.write_text(json.dumps(event))
        peer.jwks["minted"] = [{"token": token}]
        self.env = {
            "PATH": os.environ["PATH"],
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_PATH": str(self.event),
            "GITHUB_EVENT_NAME": "repository_dispatch",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "org2/repo2",
            "GITHUB_WORKFLOW": "Upstream conformance",
            "GITHUB_JOB": "conformance",
            "GITHUB_RUN_ID": "987",
            "GITHUB_RUN_ATTEMPT": "1",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{peer.url}/oidc?api-version=2",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-token",
            "RELAY_CALLBACK_URL": relay.url,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "relay", "report", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def job(tmp_path: Path, relay: Running, peer: Peer, mint: Minter) -> Job:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    return Job(tmp_path, relay, peer, dispatch_of(peer, "org2/repo2"), mint.token("org2/repo2"))


def results(directory: Path) -> Path:
    directory.mkdir()
    outcomes = {"passed": 3, "failed": 1, "crashed": 1, "xfailed": 2, "skipped": 4, "not_applicable": 1}
    (directory / "summary.json").write_text(json.dumps({"planned": 12, "outcomes": outcomes, "balanced": True}))
    rows = [
        {"id": "test_a.py::T::test_ok", "class": "T", "outcome": "passed", "duration": 0.1},
        {"id": "test_a.py::T::test_bad", "class": "T", "outcome": "failed", "duration": 0.2, "message": "x" * 900},
        {"id": "test_a.py::T::test_dead", "class": "T", "outcome": "crashed", "duration": None, "message": None},
    ]
    (directory / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_1_10_report_of_both_states_with_results(job: Job, peer: Peer, tmp_path: Path) -> None:
    first = job.run("--status", "in_progress")
    assert first.returncode == 0, first.stderr
    assert "the relay answered in_progress" in first.stdout
    last = job.run("--status", "completed", "--conclusion", "failure", "--results", str(results(tmp_path / "out")))
    assert last.returncode == 0, last.stderr
    wait_for(lambda: len(peer.hud()) == 2)
    payload = peer.hud()[1]["untrusted"]["callback_payload"]
    workflow = payload["workflow"]
    assert (workflow["run_id"], workflow["run_attempt"], workflow["job_name"]) == ("987", 1, "conformance")
    assert (workflow["test_results"]["passed"], workflow["test_results"]["failed"]) == (5, 2)
    assert workflow["test_results"]["skipped"] == 5
    assert [test["name"] for test in workflow["failed_tests_detail"]] == [
        "test_a.py::T::test_bad",
        "test_a.py::T::test_dead",
    ]
    assert len(workflow["failed_tests_detail"][0]["message"]) == 500
    assert payload["payload"]["pull_request"]["head"]["sha"] == HEAD
    (upload,) = peer.made("POST", r"/api/v1/runs/\w+/tests")
    assert upload.headers["content-encoding"] == "gzip"
    assert verify_ticket(upload.headers["authorization"].removeprefix("Bearer "), HUD_KEY).run_id == "987"
    assert gzip.decompress(upload.body) == (tmp_path / "out" / "results.jsonl").read_bytes()


def test_report_of_a_run_without_a_test_uploads_nothing(job: Job, peer: Peer, tmp_path: Path) -> None:
    (results(tmp_path / "out") / "results.jsonl").write_text("")
    done = job.run("--status", "completed", "--conclusion", "failure", "--results", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "is empty: no test was run" in done.stdout
    assert not peer.made("POST", r"/api/v1/runs/\w+/tests")


def test_report_repeated_is_answered_as_the_first(job: Job, peer: Peer, tmp_path: Path) -> None:
    arguments = ("--status", "completed", "--results", str(results(tmp_path / "out")))
    assert job.run(*arguments).returncode == 0
    again = job.run(*arguments)
    assert again.returncode == 0, again.stderr
    assert "duplicate" in again.stdout
    assert len(peer.hud()) == 1
    assert len(peer.made("POST", r"/api/v1/runs/\w+/tests")) == 2


def test_report_survives_trouble_of_the_token_service_and_hud(job: Job, peer: Peer, tmp_path: Path) -> None:
    peer.fail("/oidc", status=503, headers={"Retry-After": "0"})
    peer.fail("/oidc", status=200, drop=True)
    peer.fail("/tests", status=500)
    done = job.run("--status", "completed", "--results", str(results(tmp_path / "out")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trying again") == 3


def test_report_of_a_run_that_no_relay_dispatched_is_no_failure(
    tmp_path: Path, relay: Running, peer: Peer, mint: Minter
) -> None:
    job = Job(tmp_path, relay, peer, None, mint.token("org2/repo2"))
    done = job.run("--status", "in_progress")
    assert done.returncode == 0
    assert "nothing to report" in done.stdout


def test_report_refused_is_exit_1_with_the_relays_words(
    tmp_path: Path, relay: Running, peer: Peer, mint: Minter
) -> None:
    payload = {"event_type": "pull_request", "delivery_id": "unknown", "payload": {}}
    job = Job(tmp_path, relay, peer, payload, mint.token("org2/repo2"))
    done = job.run("--status", "in_progress")
    assert done.returncode == 1
    assert "no dispatch of delivery 'unknown'" in done.stderr


def test_report_without_permission_for_a_token_says_what_to_configure(job: Job) -> None:
    del job.env["ACTIONS_ID_TOKEN_REQUEST_URL"]
    done = job.run("--status", "in_progress")
    assert done.returncode == 2
    assert "id-token: write" in done.stderr


def test_report_of_a_run_that_died_early_still_arrives(job: Job, peer: Peer, tmp_path: Path) -> None:
    done = job.run("--status", "completed", "--conclusion", "failure", "--results", str(tmp_path / "never-made"))
    assert done.returncode == 0, done.stderr
    assert "no summary.json" in done.stdout
    wait_for(lambda: peer.hud())
    assert "test_results" not in peer.hud()[0]["untrusted"]["callback_payload"]["workflow"]


def test_report_of_a_nightly_run(job: Job, peer: Peer) -> None:
    done = job.run("--status", "completed", "--conclusion", "success", "--event-type", "nightly", "--sha", HEAD)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: peer.hud())
    assert peer.hud()[0]["untrusted"]["callback_payload"]["delivery_id"] == HEAD


# --- other CIs ------------------------------------------------------------------------------------------------------


def elsewhere(job: Job, payload: dict[str, Any], **env: str) -> Job:
    """The same job on a CI that is not GitHub: it gets its client_payload and its address from its own variables."""
    job.env = {
        "PATH": job.env["PATH"],
        "RELAY_CALLBACK_URL": job.url,
        "RELAY_CLIENT_PAYLOAD": json.dumps(payload),
        **env,
    }
    return job


def test_report_from_buildkite(job: Job, peer: Peer, rsa_key: Key, tmp_path: Path) -> None:
    """The agent's command is the only part that is not real: it prints the token that an agent would ask for."""
    organization, pipeline = PIPELINE.split("/")
    claims = {"organization_id": organization, "pipeline_id": pipeline, "build_branch": "main"}
    token = Minter("https://agent.buildkite.com", rsa_key).token(None, **claims)
    agent = tmp_path / "bin" / "buildkite-agent"
    agent.parent.mkdir()
    agent.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho {token}\n')
    agent.chmod(0o755)
    elsewhere(
        job,
        dispatch_of(peer, "org2/repo2"),
        BUILDKITE="true",
        BUILDKITE_PIPELINE_SLUG="conformance",
        BUILDKITE_LABEL="ops",
        BUILDKITE_BUILD_NUMBER="77",
        BUILDKITE_RETRY_COUNT="1",
        BUILDKITE_BUILD_URL="https://buildkite.com/org/conformance/builds/77",
    )
    job.env["PATH"] = f"{agent.parent}:{job.env['PATH']}"
    done = job.run("--status", "completed", "--conclusion", "success")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().split() == ["oidc", "request-token", "--audience", AUDIENCE]
    wait_for(lambda: peer.hud())
    report = peer.hud()[0]
    workflow = report["untrusted"]["callback_payload"]["workflow"]
    assert report["trusted"]["verified_repo"] == "org2/repo2"
    assert (workflow["name"], workflow["job_name"], workflow["run_id"], workflow["run_attempt"]) == (
        "conformance",
        "ops",
        "77",
        2,
    )


def test_report_from_gitlab(
    start: Callable[..., Running], peer: Peer, mint: Minter, rsa_key: Key, tmp_path: Path
) -> None:
    anchor = {
        "issuer": "https://gitlab.example.org",
        "jwks_url": f"{peer.url}/jwks/github",
        "identity": "project_path",
        "pipelines": {"team/backend": {"repository": "org2/repo2", "required_claims": {"ref_protected": "true"}}},
    }
    relay = start(oidc_issuers=[anchor])
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    gitlab = Minter("https://gitlab.example.org", rsa_key)
    variables = {
        "GITLAB_CI": "true",
        "CI_PROJECT_PATH": "team/backend",
        "CI_JOB_NAME": "conformance",
        "CI_PIPELINE_ID": "5",
        "CI_JOB_URL": "https://gitlab.example.org/team/backend/-/jobs/900",
    }
    for number, (job_id, protected) in enumerate((("900", "true"), ("901", "true"), ("902", "false"))):
        token = gitlab.token(None, project_path="team/backend", ref_protected=protected)
        job = elsewhere(
            Job(tmp_path, relay, peer, None, token), payload, **variables, CI_JOB_ID=job_id, RELAY_OIDC_TOKEN=token
        )
        done = job.run("--status", "completed", "--conclusion", ("failure", "success", "success")[number])
        assert done.returncode == (0 if protected == "true" else 1), done.stdout + done.stderr
    assert "ref_protected" in done.stderr
    wait_for(lambda: len(peer.hud()) == 2, what="a retried job is a run of its own")


def test_report_from_a_ci_without_a_token_says_what_to_set(job: Job, peer: Peer) -> None:
    done = elsewhere(job, dispatch_of(peer, "org2/repo2"), GITLAB_CI="true", CI_PROJECT_PATH="team/backend").run(
        "--status", "in_progress"
    )
    assert done.returncode == 2
    assert "on GitLab set RELAY_OIDC_TOKEN with 'id_tokens:'" in done.stderr
