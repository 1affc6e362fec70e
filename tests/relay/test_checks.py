"""Spec 1.7: check runs on the upstream PR, the label gate, and re-runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from relay_parts import PIPELINE, GitHubApi, Key, Minter, Peer, Running, dispatch_of, sqlite_only
from relay_site import HEAD, UPSTREAM, pull_request, report, wait_for

from relay.core import checks
from relay.core.transitions import Job
from relay.store import tasks as outbox
from relay.store.database import Database

LABEL = "ciflow/crcr/spyre"


def label(action: str, at: str = "2026-01-02T00:00:00Z", name: str = LABEL, **more: Any) -> dict[str, Any]:
    labels = (name,) if action == "labeled" else ()
    return pull_request(action, labels=labels, updated_at=at, label={"name": name}, **more)


class Backend:
    """org3/repo3: level L3 on device spyre."""

    def __init__(self, relay: Running, peer: Peer, mint: Minter, *labels: str):
        self.relay, self.peer, self.mint = relay, peer, mint
        relay.webhook("pull_request", pull_request(labels=labels), delivery="d-1")
        self.payload = dispatch_of(peer, "org3/repo3", "d-1")

    def say(self, status: str, **workflow: Any) -> None:
        answer = self.relay.callback(self.mint.token("org3/repo3"), report(self.payload, status, **workflow))
        assert answer.status_code == 200, answer.text

    @staticmethod
    def idle(relay: Running) -> bool:
        """Whether a relay owes nothing."""
        with relay.database.engine.connect() as connection:
            query = "SELECT 1 FROM tasks WHERE state IN ('ready', 'leased')"
            return not connection.exec_driver_sql(query).first()

    def settle(self) -> list[dict[str, Any]]:
        """The PR's checks once nothing is owed any more."""
        wait_for(lambda: self.idle(self.relay))
        return [self.peer.checks[number] for number in sorted(self.peer.checks)]


def test_1_7_l3_without_the_label_shows_nothing(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint)
    backend.say("in_progress")
    backend.say("completed")
    assert backend.settle() == []


def test_1_7_label_before_the_dispatch(relay: Running, peer: Peer, mint: Minter) -> None:
    assert relay.webhook("pull_request", label("labeled", "2025-12-31T00:00:00Z")).status_code == 202
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress")
    (check,) = backend.settle()
    assert (check["name"], check["status"]) == ("crcr/org3/repo3/CI/build", "in_progress")


def test_1_7_label_while_jobs_run(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint)
    backend.say("in_progress", job_name="a")
    backend.say("in_progress", job_name="b")
    backend.say("completed", job_name="b", conclusion="failure")
    assert backend.settle() == []
    assert relay.webhook("pull_request", label("labeled")).json()["gate_changed"] is True
    shown = {check["name"][-1]: check for check in backend.settle()}
    assert (shown["a"]["status"], shown["b"]["status"], shown["b"]["conclusion"]) == (
        "in_progress",
        "completed",
        "failure",
    )
    backend.say("completed", job_name="a")
    assert {check["conclusion"] for check in backend.settle()} == {"success", "failure"}
    assert len(peer.checks) == 2


def test_1_7_label_after_jobs_finished(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint)
    backend.say("completed", run_attempt=1, conclusion="failure")
    backend.say("completed", run_attempt=2, conclusion="success")
    relay.webhook("pull_request", label("labeled"))
    (check,) = backend.settle()
    assert (check["status"], check["conclusion"]) == ("completed", "success"), "the last attempt counts"


def test_1_7_removing_the_label_stops_it(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress", job_name="a")
    (check,) = backend.settle()
    relay.webhook("pull_request", label("unlabeled"))
    (check,) = backend.settle()
    assert (check["status"], check["conclusion"]) == ("completed", "neutral"), "not in progress for ever"
    backend.say("completed", job_name="a", conclusion="failure")
    backend.say("in_progress", job_name="b")
    assert [check["conclusion"] for check in backend.settle()] == ["neutral"]
    relay.webhook("pull_request", label("labeled", "2026-01-03T00:00:00Z"))
    shown = {check["name"][-1]: check for check in backend.settle()}
    assert (shown["a"]["conclusion"], shown["b"]["status"]) == ("failure", "in_progress")


@sqlite_only
def test_1_7_labels_that_come_out_of_order(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint)
    backend.say("in_progress")
    relay.webhook("pull_request", label("unlabeled", "2026-01-05T00:00:00Z"))
    late = relay.webhook("pull_request", label("labeled", "2026-01-04T00:00:00Z"))
    assert late.json()["gate_changed"] is False
    assert backend.settle() == []


@sqlite_only
def test_1_7_the_gate_is_per_device_and_has_no_case(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint)
    backend.say("in_progress")
    relay.webhook("pull_request", label("labeled", name="ciflow/crcr/xpu"))
    assert backend.settle() == []
    relay.webhook("pull_request", label("labeled", "2026-01-03T00:00:00Z", name="ciflow/crcr/Spyre"))
    assert len(backend.settle()) == 1


def test_2_a_failed_check_run_write_is_repeated_until_it_is_there(relay: Running, peer: Peer, mint: Minter) -> None:
    peer.fail("/check-runs", status=502, times=2)
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress")
    peer.fail(r"/check-runs/\d+", status=500)
    backend.say("completed")
    wait_for(lambda: [check for check in peer.checks.values() if check["status"] == "completed"], 30)
    assert len(peer.checks) == 1


@sqlite_only
@pytest.mark.parametrize("newer_wish", ["at once", "after the lost answer"])
def test_2_a_check_run_whose_creation_was_not_heard_of_is_not_created_twice(
    relay: Running, peer: Peer, mint: Minter, newer_wish: str
) -> None:
    peer.fail(r"/check-runs$", status=201, drop=True, after=True)
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress")
    if newer_wish == "after the lost answer":
        # The newer wish queues the task anew, so its attempts are counted from the start.
        wait_for(lambda: peer.checks, 30)
    backend.say("completed")
    wait_for(lambda: [check for check in peer.checks.values() if check["status"] == "completed"], 30)
    assert len(peer.checks) == 1


@sqlite_only
def test_2_a_check_run_is_not_created_twice_after_a_retry_of_its_dead_letter(
    relay: Running, peer: Peer, mint: Minter
) -> None:
    peer.fail(r"/check-runs$", status=422, after=True)  # it was created, but a proxy in between says no
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress")

    def dead() -> Any:
        with relay.database.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT id FROM tasks WHERE kind = 'check' AND state = 'dead'").scalar()

    wait_for(dead, 30, "the write is given up")
    now = time.time()
    assert relay.database.call(lambda connection: outbox.revive(connection, now=now, give_up_at=now + 60)) == 1

    def written() -> bool:
        with relay.database.engine.connect() as connection:
            return bool(connection.exec_driver_sql("SELECT count(*) FROM checks WHERE written_version = 1").scalar())

    wait_for(written, 30, "the check run is known")
    assert len(peer.checks) == 1


def test_2_an_attempt_that_an_orderly_stop_cut_off_counts(database_url: str) -> None:
    """It may have created the check run; the next worker has to look for it."""
    database = Database(database_url)
    database.migrate()
    new = outbox.NewTask("check:x", "check", "d", "a/b", "x", 1e12)
    database.call(lambda connection: outbox.enqueue(connection, [new], now=0))
    lease = {"now": 1, "seconds": 60, "limit": 1}
    database.call(lambda connection: outbox.lease(connection, ("check",), owner="one", **lease))
    database.call(lambda connection: outbox.release(connection, "one", now=2))
    (task,) = database.call(
        lambda connection: outbox.lease(connection, ("check",), owner="two", now=3, seconds=60, limit=1)
    )
    assert task.attempts == 2
    database.close()


def rerequested(kind: str, check: dict[str, Any], **more: Any) -> dict[str, Any]:
    node = {"id": check["id"], "head_sha": HEAD, "app": {"id": 4242}, **more}
    if kind == "check_run":
        node |= {"name": check["name"], "external_id": check["external_id"]}
    return {"action": "rerequested", kind: node, "repository": {"full_name": UPSTREAM}}


def test_1_7_rerequested(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("completed", run_id="11", conclusion="failure")
    backend.say("completed", run_id="12", job_name="other", conclusion="failure")
    first, _ = backend.settle()
    peer.fail("/runs/11/rerun-failed-jobs", status=500)
    answer = relay.webhook("check_run", rerequested("check_run", first))
    assert answer.status_code == 202
    assert answer.json()["reruns"] == [{"repo": "org3/repo3", "run_id": "11"}]
    backend.settle()
    assert [call.status for call in peer.made("POST", "/repos/org3/repo3/actions/runs/11/rerun-failed-jobs")] == [
        500,
        201,
    ]
    suite = relay.webhook("check_suite", rerequested("check_suite", first))
    assert len(suite.json()["reruns"]) == 2
    backend.settle()
    assert peer.made("POST", "/repos/org3/repo3/actions/runs/12/rerun-failed-jobs")


@sqlite_only
def test_1_7_a_run_that_is_already_running_is_fine(relay: Running, peer: Peer, mint: Minter) -> None:
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("completed", run_id="11", conclusion="failure")
    (check,) = backend.settle()
    peer.fail("rerun-failed-jobs", status=403, body={"message": "This workflow run is already running"})
    relay.webhook("check_run", rerequested("check_run", check))
    backend.settle()
    with relay.database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT state FROM tasks WHERE kind = 'rerun'").scalars().all() == ["done"]


@sqlite_only
def test_1_7_checks_that_are_not_ours(relay: Running, peer: Peer) -> None:
    foreign = {"id": 5, "name": "lint", "external_id": ""}
    assert relay.webhook("check_run", rerequested("check_run", foreign)).json()["ignored"] is True
    named_like_ours = {"id": 5, "name": "crcr/org3/repo3/CI/build", "external_id": "11:7"}
    page = f"{relay.settings.web_url}/org3/repo3/actions/runs/11"
    other_app = rerequested("check_run", named_like_ours, app={"id": 1}, details_url=page)
    assert relay.webhook("check_run", other_app).json()["ignored"] is True
    # Older than the retention, but made by our own App.
    answer = relay.webhook("check_run", rerequested("check_run", named_like_ours, details_url=page))
    assert answer.json()["reruns"] == [{"repo": "org3/repo3", "run_id": "11"}]
    of_another_ci = rerequested("check_run", named_like_ours, details_url="https://buildkite.com/org3/builds/11")
    assert relay.webhook("check_run", of_another_ci).json()["ignored"] is True, "nobody knows which dispatch it was"


def test_1_7_a_rerequested_run_of_another_ci_gets_its_dispatch_again(
    start: Callable[..., Running], peer: Peer, rsa_key: Key, allowlist_file: Path
) -> None:
    """GitHub could not re-run it: the id is another CI's."""
    allowlist_file.write_text("L4: [org2/repo2]\n")
    relay = start()
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    organization, pipeline = PIPELINE.split("/")
    token = Minter("https://agent.buildkite.com", rsa_key).token(
        None, organization_id=organization, pipeline_id=pipeline, build_branch="main"
    )
    body = report(dispatch_of(peer, "org2/repo2"), "completed", conclusion="failure")
    assert relay.callback(token, body).status_code == 200
    (check,) = wait_for(lambda: list(peer.checks.values()))
    wait_for(lambda: Backend.idle(relay))
    answer = relay.webhook("check_run", rerequested("check_run", check), delivery="again")
    assert answer.json()["reruns"] == [{"repo": "org2/repo2", "dispatched_again": "d-1"}]
    first, second = wait_for(lambda: len(peer.dispatched()) == 2 and peer.dispatched())
    assert first.body == second.body, "the same dispatch, which the backend's bridge starts a build for"
    wait_for(lambda: Backend.idle(relay))
    assert not peer.made("POST", "/repos/.+/rerun-failed-jobs")
    assert relay.callback(token, {**body, "workflow": {**body["workflow"], "run_id": "124"}}).status_code == 200


@pytest.mark.parametrize("conclusion", ["startup_failure", "stale", None])
def test_conclusions_that_the_check_run_api_does_not_take(conclusion: str | None) -> None:
    job = Job("COMPLETED", conclusion, None, None, 1.0)
    state = checks.desired(job, "a/b", opened=True, shown=None)
    assert state is not None
    assert state.conclusion in {"failure", "neutral"}


def test_a_long_name_is_bounded() -> None:
    assert len(checks.name("o/r", "w" * 500, "j" * 500)) <= checks.MAX_NAME


@sqlite_only
def test_every_request_has_githubs_form_and_the_check_can_fail(
    relay: Running, peer: Peer, mint: Minter, github_api: GitHubApi
) -> None:
    """The fixture checks the first of each kind in every test; here it must see all, and notice one that is wrong."""
    backend = Backend(relay, peer, mint, LABEL)
    backend.say("in_progress")
    backend.settle()
    backend.say("completed", conclusion="startup_failure")
    (check,) = backend.settle()
    relay.webhook("check_run", rerequested("check_run", check))
    wait_for(lambda: peer.made("POST", "/repos/.+/rerun-failed-jobs"))
    seen = {
        github_api.operation(call)[0].rpartition("/")[2] for call in peer.calls if call.path[:5] in {"/repo", "/app/"}
    }
    assert seen >= {"installation", "access_tokens", "dispatches", "check-runs", "{check_run_id}", "rerun-failed-jobs"}
    (creation,) = peer.made("POST", r"/repos/[^/]+/[^/]+/check-runs")
    with pytest.raises(jsonschema.ValidationError):
        github_api.check(replace(creation, body={**creation.body, "status": "running"}))
    with pytest.raises(AssertionError, match="no parameter 'labels'"):
        github_api.check(replace(creation, query={"labels": ["x"]}))


def test_2_l4_checks_need_no_label(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    relay = start()
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org4/repo4")
    relay.callback(mint.token("org4/repo4"), report(payload, "completed"))
    wait_for(lambda: peer.checks)
    time.sleep(0.1)
    assert len(peer.checks) == 1
