"""``relay report``: the job's side, as a real process against a real relay."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from relay_parts import HEAD, HUD_KEY, Minter, Peer, Running, dispatch_of, pull_request, sqlite_only, wait_for

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


def test_report_of_both_states_with_results(job: Job, peer: Peer, tmp_path: Path) -> None:
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
