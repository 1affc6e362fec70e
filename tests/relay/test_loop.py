"""The relay's main loop over real HTTP, on both databases: webhook, dispatch, callback, HUD, check run."""

from __future__ import annotations

from collections.abc import Callable

from relay_parts import Minter, Peer, Running, dispatch_of, push
from relay_site import HEAD, pull_request, report, wait_for

from relay.wire import run_key
from relay.wire.ticket import verify_ticket


def test_1_1_pull_request_reaches_every_level(relay: Running, peer: Peer) -> None:
    answer = relay.webhook("pull_request", pull_request(), delivery="d-1")
    assert answer.status_code == 202, answer.text
    assert answer.json()["targets"] == 4
    wait_for(lambda: len(peer.dispatched()) == 4)
    repos = {call.path for call in peer.dispatched()}
    assert repos == {f"/repos/org{n}/repo{n}/dispatches" for n in (1, 2, 3, 4)}
    body = peer.dispatched()[0].body
    assert body["event_type"] == "pull_request"
    assert set(body["client_payload"]) == {"event_type", "delivery_id", "payload", "callback_token"}
    assert body["client_payload"]["payload"]["pull_request"]["head"]["sha"] == HEAD


def test_1_8_callback_reaches_hud_with_what_the_relay_verified(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    token = mint.token("org2/repo2")
    answer = relay.callback(token, report(payload))
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "in_progress"
    done = relay.callback(token, report(payload, "completed"))
    assert (done.status_code, done.json()["status"]) == (200, "completed")
    wait_for(lambda: len(peer.hud()) == 2)
    first, last = peer.hud()
    assert first["trusted"]["verified_repo"] == "org2/repo2"
    assert first["trusted"]["downstream_repo_level"] == "L2"
    assert first["trusted"]["ci_metrics"]["queue_time"] >= 0
    assert last["trusted"]["ci_metrics"]["execution_time"] >= 0
    assert last["untrusted"]["callback_payload"]["workflow"]["test_results"]["passed"] == 42
    assert "callback_token" not in last["untrusted"]["callback_payload"]
    upload = done.json()["results_upload"]
    ticket = verify_ticket(upload["token"], "hud-key-of-the-tests")
    assert ticket.key == run_key("org2/repo2", "d-1", "123", 1, "build")
    assert upload["url"].endswith(f"/api/v1/runs/{ticket.key}/tests")


def test_1_7_check_run_of_a_blocking_backend(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org4/repo4")
    token = mint.token("org4/repo4")
    assert relay.callback(token, report(payload)).status_code == 200
    check = wait_for(lambda: next(iter(peer.checks.values()), None))
    assert check["name"] == "crcr/org4/repo4/CI/build"
    assert (check["head_sha"], check["external_id"], check["status"]) == (HEAD, "123:7", "in_progress")
    assert check["details_url"] == f"{peer.url}/org4/repo4/actions/runs/123"
    assert relay.callback(token, report(payload, "completed", conclusion="failure")).status_code == 200
    wait_for(lambda: check["id"] in peer.checks and peer.checks[check["id"]]["status"] == "completed")
    assert peer.checks[check["id"]]["conclusion"] == "failure"
    assert len(peer.checks) == 1


def test_push_to_main_is_dispatched_and_to_a_topic_branch_is_not(start: Callable[..., Running], peer: Peer) -> None:
    relay = start()
    assert relay.webhook("push", push("refs/heads/topic")).json()["targets"] == 0
    assert relay.webhook("push", push("refs/heads/main")).json()["targets"] == 4
    wait_for(lambda: len(peer.dispatched()) == 4)
    assert {call.body["event_type"] for call in peer.dispatched()} == {"push"}
