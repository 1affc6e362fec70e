"""Spec 1.4 and 1.6: what a callback may say, in which order, and what is answered."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from relay_parts import Minter, Peer, Running, dispatch_of, push, sqlite_only
from relay_site import HEAD, UPSTREAM, pull_request, report, wait_for

from relay.app import sweeper


class Caller:
    """org2/repo2 (L2) after a dispatch."""

    def __init__(self, relay: Running, peer: Peer, mint: Minter, repo: str = "org2/repo2"):
        relay.webhook("pull_request", pull_request(), delivery="d-1")
        self.relay, self.peer, self.repo, self.mint = relay, peer, repo, mint
        self.payload = dispatch_of(peer, repo, "d-1")

    def say(self, status: str = "in_progress", **workflow: Any) -> httpx.Response:
        return self.relay.callback(self.mint.token(self.repo), report(self.payload, status, **workflow))

    def send(self, body: Any) -> httpx.Response:
        return self.relay.callback(self.mint.token(self.repo), body)


@pytest.fixture
def caller(relay: Running, peer: Peer, mint: Minter) -> Caller:
    return Caller(relay, peer, mint)


def test_1_4_levels(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: len(peer.dispatched()) == 4)
    for repo, status in [
        ("org1/repo1", "ignored"),
        ("stranger/repo", "ignored"),
        ("ORG2/Repo2", "in_progress"),
        ("org3/repo3", "in_progress"),
        ("org4/repo4", "in_progress"),
    ]:
        known = repo if repo.startswith("org") else "org2/repo2"
        answer = relay.callback(
            mint.token(repo), report(dispatch_of(peer, known.lower() if "ORG" not in repo else "org2/repo2"))
        )
        assert (answer.status_code, answer.json()["status"]) == (200, status), answer.text
        assert ("results_upload" in answer.json()) == (status != "ignored")
        assert ("reason" in answer.json()) == (status == "ignored")
    wait_for(lambda: len(peer.hud()) == 3)
    assert {row["trusted"]["downstream_repo_level"] for row in peer.hud()} == {"L2", "L3", "L4"}
    assert {row["trusted"]["verified_repo"] for row in peer.hud()} == {"org2/repo2", "org3/repo3", "org4/repo4"}


def test_1_6_identical_repeats_are_answered_as_the_first_time(caller: Caller) -> None:
    for status in ("in_progress", "completed"):
        first = caller.say(status, started_at="2026-01-01T00:00:00Z")
        again = caller.say(status, started_at="2026-01-01T00:00:09Z")  # a retry reads its clock again
        assert (first.status_code, first.json()["status"]) == (200, status)
        assert (again.status_code, again.json()["status"]) == (200, "duplicate")
        assert again.json()["results_upload"]["url"] == first.json()["results_upload"]["url"]
    time.sleep(0.1)
    assert len(caller.peer.hud()) == 2


def test_1_6_impossible_transitions_are_400(caller: Caller) -> None:
    assert caller.say("completed", conclusion="success").status_code == 200
    back = caller.say("in_progress")
    assert (back.status_code, "already completed" in back.text) == (400, True)
    other = caller.say("completed", conclusion="failure")
    assert (other.status_code, "differs" in other.text) == (400, True)


def test_2_completed_without_in_progress_is_accepted(caller: Caller) -> None:
    assert caller.say("completed").json()["status"] == "completed"
    wait_for(lambda: caller.peer.hud())
    assert caller.peer.hud()[0]["trusted"]["ci_metrics"] == {"queue_time": None, "execution_time": None}


def test_1_6_jobs_and_attempts_are_kept_apart(caller: Caller) -> None:
    assert caller.say("completed", conclusion="failure").status_code == 200
    assert caller.say("in_progress", job_name="test").json()["status"] == "in_progress"
    assert caller.say("in_progress", run_id="124").json()["status"] == "in_progress"
    assert caller.say("in_progress", run_attempt="2").json()["status"] == "in_progress"
    assert caller.say("completed", run_attempt=2).json()["status"] == "completed"
    wait_for(lambda: len(caller.peer.hud()) == 5)
    rerun = [row for row in caller.peer.hud() if row["untrusted"]["callback_payload"]["workflow"]["run_attempt"] == 2]
    assert [row["trusted"]["ci_metrics"] for row in rerun] == [{"queue_time": None, "execution_time": None}] * 2


def test_1_4_no_dispatch_on_record(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = {**dispatch_of(peer, "org2/repo2"), "delivery_id": "d-unknown"}
    del payload["callback_token"]
    answer = relay.callback(mint.token("org2/repo2"), report(payload))
    assert (answer.status_code, "no dispatch" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("event_type", None),
        ("event_type", "issue"),
        ("delivery_id", None),
        ("delivery_id", ""),
        ("delivery_id", ["d-1"]),
        ("payload", None),
        ("payload", []),
        ("payload", "text"),
        ("workflow", None),
        ("workflow", "text"),
        ("workflow.status", None),
        ("workflow.status", "queued"),
        ("workflow.name", None),
        ("workflow.name", ""),
        ("workflow.run_attempt", 0),
        ("workflow.run_attempt", "two"),
        ("workflow.run_attempt", 10**30),
        ("workflow.run_id", {"a": 1}),
        ("workflow.job_name", "j" * 2000),
        ("workflow.schema_version", -1),
        ("workflow.started_at", "yesterday"),
        ("workflow.test_results", {"passed": -1}),
        ("workflow.test_results", {"passed": "many"}),
        ("workflow.failed_tests_detail", "text"),
        ("workflow.failed_tests_detail", [{"message": "no name"}]),
        ("workflow.url", 5.5),
        ("callback_token", 5),
    ],
)
def test_1_4_missing_and_mistyped_fields_are_named(shared: Running, path: str, value: Any) -> None:
    body = report({"event_type": "pull_request", "delivery_id": "d-1", "payload": {}})
    node = body
    *parents, last = path.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = value
    token = Minter(f"{shared.peer.url}/issuer", shared.key).token("org2/repo2")
    answer = shared.callback(token, body)
    assert answer.status_code == 400, answer.text
    assert last in answer.json()["error"] or "64 bits" in answer.json()["error"]


@pytest.mark.parametrize("conclusion", [None, "", "passed", 5])
def test_1_4_completed_needs_a_conclusion_of_githubs(shared: Running, conclusion: Any) -> None:
    body = report({"event_type": "pull_request", "delivery_id": "d-1", "payload": {}}, "completed")
    body["workflow"]["conclusion"] = conclusion
    answer = shared.callback(Minter(f"{shared.peer.url}/issuer", shared.key).token("org2/repo2"), body)
    assert (answer.status_code, "conclusion" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"delivery_id": NaN}',
        b'{"event_type": "push", "event_type": "pull_request"}',
        b'{"delivery_id": "\\ud83d"}',
        b'{"delivery_id": "a\\u0000b"}',
        b'{"payload":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"workflow": ' + b"[" * 100_000,
        b"\x80",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_1_4_bad_bodies_are_400(shared: Running, body: bytes) -> None:
    token = Minter(f"{shared.peer.url}/issuer", shared.key).token("org2/repo2")
    answer = shared.callback(token, body)
    assert answer.status_code == 400, answer.text


@sqlite_only
def test_1_4_body_over_the_cap_is_413(start: Callable[..., Running], mint: Minter) -> None:
    relay = start(callback_max_bytes=4096)
    assert relay.callback(mint.token("org2/repo2"), b"{" + b" " * 5000 + b"}").status_code == 413


@sqlite_only
def test_1_4_the_unchanged_client_of_the_reference_works(relay: Running, peer: Peer, mint: Minter) -> None:
    """The body that the existing GitHub action sends: text for numbers, null for what it does not know."""
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    body = dispatch_of(peer, "org2/repo2")
    body["workflow"] = {
        "schema_version": "1",
        "status": "completed",
        "conclusion": "success",
        "name": "CI",
        "url": "https://github.com/org2/repo2/actions/runs/9",
        "run_attempt": "1",
        "job_name": "build",
        "check_run_id": "9-1",
        "run_id": "9",
        "started_at": None,
        "completed_at": "2026-01-01T00:00:00.123456Z",
        "test_results": {"passed": "3", "failed": 0, "skipped": 1, "errors": 2},
        "failed_tests_detail": None,
        "triage_verdict": {"category": "nonsense"},
    }
    headers = {"Authorization": f"Bearer {mint.token('org2/repo2')}", "Content-Type": "application/json"}
    answer = relay.http.post("/github/callback/", content=json.dumps(body), headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    wait_for(lambda: peer.hud())
    workflow = peer.hud()[0]["untrusted"]["callback_payload"]["workflow"]
    assert workflow["triage_verdict"] is None, "a malformed verdict is dropped, never an error"
    assert workflow["test_results"] == {"passed": 3, "failed": 0, "skipped": 1, "errors": 2}


@sqlite_only
def test_1_4_optional_blocks_go_to_hud(caller: Caller) -> None:
    verdict = {"category": "upstream", "confidence": "high", "summary": "lost its out= overload",
               "suspected_upstream": {"pr": 7}, "more": "kept"}  # fmt: skip
    tests = [{"name": f"t{number}", "message": "m" * 900, "extra": 1} for number in range(60)]
    answer = caller.say(
        "completed", conclusion="failure", triage_verdict=verdict, failed_tests_detail=tests, new="kept"
    )
    assert answer.status_code == 200, answer.text
    wait_for(lambda: caller.peer.hud())
    workflow = caller.peer.hud()[0]["untrusted"]["callback_payload"]["workflow"]
    assert workflow["triage_verdict"]["more"] == "kept"
    assert (len(workflow["failed_tests_detail"]), len(workflow["failed_tests_detail"][0]["message"])) == (50, 500)
    assert workflow["new"] == "kept"


@sqlite_only
def test_1_4_hud_refusal_is_passed_on_and_may_be_corrected(caller: Caller) -> None:
    caller.peer.fail("/api/crcr/results", status=422, body={"error": "workflow.name: too odd"})
    refused = caller.say("completed", name="odd")
    assert (refused.status_code, "workflow.name: too odd" in refused.text) == (422, True)
    assert caller.say("completed", name="even").json()["status"] == "completed"
    assert caller.say("completed", name="even").json()["status"] == "duplicate"
    assert len(caller.peer.hud()) == 1


@sqlite_only
def test_2_callback_token(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    relay = start(require_callback_token=True)
    caller = Caller(relay, peer, mint)
    relay.webhook("pull_request", pull_request(head="c" * 40), delivery="d-2")
    other = dispatch_of(peer, "org2/repo2", "d-2")["callback_token"]
    foreign = dispatch_of(peer, "org4/repo4", "d-1")["callback_token"]
    good = caller.payload["callback_token"]
    for token, why in [
        (None, "missing"),
        (other, "another dispatch"),
        (foreign, "another dispatch"),
        (good[:-4] + "AAAA", "not one that this relay signed"),
        ("x", "not one that this relay signed"),
        ("", "not one that this relay signed"),
        (mint.token("org2/repo2"), "not one that this relay signed"),
    ]:
        answer = caller.send(report({**caller.payload, "callback_token": token}))
        assert (answer.status_code, why in answer.text) == (403, True), (token, answer.text)
    assert caller.send(report(caller.payload)).status_code == 200


@sqlite_only
def test_2_the_commit_comes_from_our_record(caller: Caller) -> None:
    payload = json.loads(json.dumps(caller.payload))
    payload["payload"]["pull_request"]["head"]["sha"] = "f" * 40
    assert caller.send(report(payload)).status_code == 400
    payload = json.loads(json.dumps(caller.payload))
    payload["payload"]["pull_request"]["number"] = 8
    assert caller.send(report(payload)).status_code == 400
    assert caller.send(report({**caller.payload, "event_type": "push"})).status_code == 400


def nightly(**changes: Any) -> dict[str, Any]:
    body = {
        "event_type": "nightly",
        "delivery_id": HEAD,
        "payload": {"repository": {"full_name": UPSTREAM}, "head_sha": HEAD},
    }
    return report({**body, **changes}, "completed")


@sqlite_only
def test_1_6_nightly_and_periodic_runs(relay: Running, peer: Peer, mint: Minter) -> None:
    token = mint.token("org2/repo2")
    for number, kind in enumerate(("nightly", "periodic")):
        body = nightly(event_type=kind)
        body["workflow"]["run_id"] = str(number)
        assert relay.callback(token, body).json()["status"] == "completed"
        assert relay.callback(token, body).json()["status"] == "duplicate"
    wait_for(lambda: len(peer.hud()) == 2)
    assert peer.hud()[0]["trusted"]["ci_metrics"] == {"queue_time": None, "execution_time": None}
    assert len(peer.made("GET", "/repos/pytorch/pytorch/git/commits/.+")) == 1, "the answer is remembered"


@sqlite_only
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"payload": {"repository": {"full_name": UPSTREAM}, "pull_request": {"number": 7}}}, "pull request data"),
        ({"payload": {"repository": {"full_name": UPSTREAM}, "number": 7}}, "pull request data"),
        ({"payload": {"repository": {"full_name": "someone/pytorch"}}}, "payload.repository"),
        ({"payload": {}}, "payload.repository"),
        ({"delivery_id": "main"}, "40 hexadecimal"),
        ({"delivery_id": HEAD[:39]}, "40 hexadecimal"),
        ({"delivery_id": HEAD.upper()}, "40 hexadecimal"),
        ({"delivery_id": "c" * 40}, "different commits"),
        (
            {"delivery_id": "c" * 40, "payload": {"repository": {"full_name": UPSTREAM}}},
            "has no commit",
        ),
    ],
)
def test_2_nightly_reports_are_checked(relay: Running, mint: Minter, changes: dict[str, Any], why: str) -> None:
    answer = relay.callback(mint.token("org2/repo2"), nightly(**changes))
    assert (answer.status_code, why in answer.text) == (400, True), answer.text


@sqlite_only
def test_1_6_nightly_runs_are_reported_once(relay: Running, mint: Minter) -> None:
    body = nightly()
    body["workflow"] |= {"status": "in_progress", "conclusion": None}
    answer = relay.callback(mint.token("org2/repo2"), body)
    assert (answer.status_code, "once" in answer.text) == (400, True)


@sqlite_only
def test_1_4_push_results(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("push", push(), delivery="d-push")
    payload = dispatch_of(peer, "org4/repo4", "d-push")
    assert relay.callback(mint.token("org4/repo4"), report(payload)).json()["status"] == "in_progress"
    wait_for(lambda: peer.hud())
    assert not peer.checks, "there is no pull request to show it on"


@sqlite_only
def test_2_rate_limits(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    relay = start(rate_burst=3, rate_per_minute=1)
    caller = Caller(relay, peer, mint)
    answers = [caller.say("in_progress", job_name=str(number)) for number in range(5)]
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    assert answers[4].status_code == 429
    assert 1 <= int(answers[4].headers["retry-after"]) <= 60
    other = relay.callback(mint.token("org4/repo4"), report(dispatch_of(peer, "org4/repo4")))
    assert other.status_code == 200, "one repository's limit is not another's"


@sqlite_only
def test_2_a_repository_can_have_a_limit_of_its_own(
    start: Callable[..., Running], peer: Peer, mint: Minter, allowlist_file: Path
) -> None:
    allowlist_file.write_text("L2:\n  - org2/repo2: {rate_burst: 2, rate_per_minute: 1}\n  - org4/repo4\n")
    caller = Caller(start(), peer, mint)
    answers = [caller.say("in_progress", job_name=str(number)).status_code for number in range(3)]
    assert answers == [200, 200, 429]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_2_the_rate_limit_holds_over_all_replicas(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    replicas = [start(rate_burst=10, rate_per_minute=1), start(rate_burst=10, rate_per_minute=1)]
    first = Caller(replicas[0], peer, mint)
    token, payload = mint.token("org2/repo2"), first.payload
    answers = [
        replicas[number % 2].callback(token, report(payload, job_name=str(number))).status_code for number in range(30)
    ]
    assert answers.count(200) == 10
    assert answers.count(429) == 20


@sqlite_only
def test_2_rate_limit_before_authentication(start: Callable[..., Running]) -> None:
    relay = start(client_rate_burst=5, client_rate_per_minute=1)
    answers = [relay.callback("nonsense", {}) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2
    assert "retry-after" in answers[-1].headers


def test_2_concurrent_reports_move_a_job_once(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    """Sixteen threads report two different ends of one job to two replicas: one end wins, everywhere the same."""
    first = start()
    caller = Caller(first, peer, mint)
    second = start(workers=False)
    ends = ["success", "failure"] * 8
    answers: list[tuple[str, httpx.Response]] = []
    barrier = threading.Barrier(len(ends))

    def go(number: int, conclusion: str) -> None:
        body = json.dumps(report(caller.payload, "completed", conclusion=conclusion))
        url = (first if number % 2 else second).url + "/github/callback"
        headers = {"Authorization": f"Bearer {mint.token('org2/repo2')}"}
        barrier.wait()
        answers.append((conclusion, httpx.post(url, content=body, headers=headers, timeout=30)))

    threads = [threading.Thread(target=go, args=pair) for pair in enumerate(ends)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [end for end, answer in answers if answer.status_code == 200 and answer.json()["status"] == "completed"]
    assert len(accepted) == 1
    for end, answer in answers:
        if end == accepted[0]:
            assert answer.json()["status"] in {"completed", "duplicate"}
        else:
            assert answer.status_code == 400
    wait_for(lambda: peer.hud())
    rows = {row["untrusted"]["callback_payload"]["workflow"]["conclusion"] for row in peer.hud()}
    assert rows == {accepted[0]}


def sweep(relay: Running, later: float) -> int:
    """Sweep as if the jobs were that many seconds older, on a loop of the test's own."""
    age(relay, later)
    try:
        return asyncio.run(sweeper.sweep(relay.app.state.service, time.time()))
    finally:
        age(relay, -later)


def age(relay: Running, seconds: float) -> None:
    with relay.database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET deadline = deadline - {seconds}")


def test_1_9_an_overdue_job_times_out_and_a_real_result_supersedes(relay: Running, peer: Peer, mint: Minter) -> None:
    caller = Caller(relay, peer, mint, "org4/repo4")
    assert caller.say().status_code == 200
    assert sweep(relay, 6 * 3600 - 60) == 0
    assert sweep(relay, 6 * 3600 + 60) == 1
    assert sweep(relay, 6 * 3600 + 60) == 0
    row = wait_for(
        lambda: [row for row in peer.hud() if "conclusion" in row["untrusted"]["callback_payload"]["workflow"]]
    )
    assert row[0]["untrusted"]["callback_payload"]["workflow"]["conclusion"] == "timed_out"
    wait_for(lambda: [check for check in peer.checks.values() if check.get("conclusion") == "timed_out"])
    late = caller.say("in_progress", url="https://example.invalid/other")
    assert (late.status_code, late.json()["status"]) == (200, "ignored")
    assert caller.say("completed", conclusion="success").json()["status"] == "completed"
    wait_for(lambda: [check for check in peer.checks.values() if check.get("conclusion") == "success"])
    wait_for(lambda: peer.hud()[-1]["untrusted"]["callback_payload"]["workflow"]["conclusion"] == "success")


@sqlite_only
def test_1_9_timeout_per_repository(
    start: Callable[..., Running], peer: Peer, mint: Minter, allowlist_file: Path
) -> None:
    allowlist_file.write_text("L2:\n  - org2/repo2: {job_timeout_seconds: 600}\n")
    relay = start()
    caller = Caller(relay, peer, mint)
    assert caller.say().status_code == 200
    assert sweep(relay, 590) == 0
    assert sweep(relay, 610) == 1


def test_2_a_sweeper_against_a_late_result(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    """Whichever comes first, the job ends as completed with its real result."""
    relay = start()
    caller = Caller(relay, peer, mint)
    jobs = [f"job-{number}" for number in range(12)]
    for job in jobs:
        assert caller.say("in_progress", job_name=job).status_code == 200
    swept: list[int] = []
    thread = threading.Thread(target=lambda: swept.extend(sweep(relay, 7 * 3600) for _ in range(3)))
    thread.start()
    for job in jobs:
        assert caller.say("completed", job_name=job).status_code == 200
    thread.join()
    with relay.database.engine.connect() as connection:
        states = set(connection.exec_driver_sql("SELECT state, conclusion FROM jobs").all())
    assert {tuple(row) for row in states} == {("COMPLETED", "success")}


@sqlite_only
def test_records_are_forgotten_after_the_retention(relay: Running, peer: Peer, mint: Minter) -> None:
    caller = Caller(relay, peer, mint, "org4/repo4")
    assert caller.say("completed").status_code == 200
    wait_for(lambda: peer.checks and not _owing(relay))
    asyncio.run(sweeper.forget(relay.app.state.service, time.time() + 2 * 86400))
    assert caller.say("completed").json()["status"] == "duplicate"
    asyncio.run(sweeper.forget(relay.app.state.service, time.time() + 4 * 86400))
    with relay.database.engine.connect() as connection:
        for table in ("deliveries", "dispatches", "jobs", "checks", "tasks"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0, table


def _owing(relay: Running) -> bool:
    with relay.database.engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT 1 FROM tasks WHERE state IN ('ready','leased')").first())
