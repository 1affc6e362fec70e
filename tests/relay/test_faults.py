"""Spec 2: GitHub, HUD and the store fail, really, over HTTP; nothing is lost and nothing is done twice without need."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from postgres_cluster import PostgresCluster
from relay_parts import WEBHOOK_SECRET, Minter, Peer, Running, dispatch_of, push, settings_for, sqlite_only
from relay_site import TRUST, Process, pull_request, report, wait_for
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from relay.app.settings import load
from relay.core.signature import sign

DISPATCHES = "/repos/.+/dispatches"


def dispatch_states(relay: Running) -> Counter[str]:
    """Dispatches by state; none while the store is locked."""
    try:
        with relay.database.engine.connect() as connection:
            return Counter(connection.exec_driver_sql("SELECT state FROM dispatches").scalars())
    except OperationalError:
        return Counter()


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 502, "body": {"message": "bad gateway"}},
        {"status": 503, "headers": {"Retry-After": "1"}},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"status": 403, "headers": {"Retry-After": "1"}, "body": {"message": "secondary rate limit"}},
        {"status": 204, "drop": True},
        {"status": 401, "body": {"message": "Bad credentials"}},
    ],
    ids=lambda fault: f"{fault['status']}{'-dropped' if fault.get('drop') else ''}",
)
@sqlite_only
def test_2_a_transient_answer_to_a_dispatch_is_tried_again(relay: Running, peer: Peer, fault: dict[str, Any]) -> None:
    peer.fail("/repos/org2/repo2/dispatches", **fault)
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: dispatch_states(relay) == {"sent": 4})
    calls = peer.made("POST", "/repos/org2/repo2/dispatches")
    assert [call.status for call in calls] == [fault["status"], 204]
    wait = float(fault.get("headers", {}).get("Retry-After", 0))
    assert calls[1].at - calls[0].at >= wait, "GitHub's Retry-After is respected"
    assert len(peer.dispatched()) == 4 + (fault["status"] == 204)


@sqlite_only
def test_2_a_secondary_limit_pauses_every_dispatch(start: Callable[..., Running], peer: Peer) -> None:
    relay = start(worker_concurrency=1)
    peer.fail(DISPATCHES, status=403, headers={"Retry-After": "2"}, body={"message": "secondary rate limit"})
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: dispatch_states(relay) == {"sent": 4})
    first, *others = peer.made("POST", DISPATCHES)
    assert min(call.at for call in others) - first.at >= 1.9


@sqlite_only
@pytest.mark.parametrize("status", [404, 410, 422])
def test_2_what_cannot_succeed_is_a_dead_letter(relay: Running, peer: Peer, status: int) -> None:
    peer.fail("/repos/org2/repo2/dispatches", status=status, body={"message": "no"})
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: dispatch_states(relay) == {"sent": 3, "failed": 1})
    with relay.database.engine.connect() as connection:
        error = connection.exec_driver_sql("SELECT error FROM tasks WHERE state = 'dead'").scalar()
    assert f"{status}" in error and "/repos/org2/repo2/dispatches" in error


@sqlite_only
def test_2_an_app_that_is_not_installed_is_a_dead_letter_that_says_so(relay: Running, peer: Peer) -> None:
    peer.fail("/repos/org2/repo2/installation", status=404)
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: dispatch_states(relay) == {"sent": 3, "failed": 1})
    with relay.database.engine.connect() as connection:
        error = connection.exec_driver_sql("SELECT error FROM tasks WHERE state = 'dead'").scalar()
    assert "not installed on org2/repo2" in error


@sqlite_only
def test_2_giving_up_is_a_dead_letter(start: Callable[..., Running], peer: Peer) -> None:
    relay = start(dispatch_retry_seconds=0.5)
    peer.fail("/repos/org2/repo2/dispatches", status=500, times=1000)
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: dispatch_states(relay) == {"sent": 3, "failed": 1})
    peer.heal()
    assert relay.webhook("pull_request", pull_request(), delivery="d-1").json()["retried"] == 1
    wait_for(lambda: dispatch_states(relay) == {"sent": 4})


@sqlite_only
def test_2_installation_tokens_are_cached(relay: Running, peer: Peer) -> None:
    for number in range(5):
        relay.webhook("push", push(), delivery=f"d-{number}")
    wait_for(lambda: len(peer.dispatched()) == 20)
    assert len(peer.made("POST", "/app/installations/.+")) == 4
    assert len(peer.made("GET", "/repos/.+/installation")) == 4


@sqlite_only
def test_2_a_token_about_to_expire_is_renewed(relay: Running, peer: Peer) -> None:
    peer.token_lifetime = 200  # inside the margin of five minutes
    relay.webhook("push", push(), delivery="d-1")
    wait_for(lambda: len(peer.dispatched()) == 4)
    relay.webhook("push", push(), delivery="d-2")
    wait_for(lambda: len(peer.dispatched()) == 8)
    assert len(peer.made("POST", "/app/installations/.+")) == 8


@sqlite_only
def test_2_a_slow_github_holds_up_neither_webhooks_nor_callbacks(
    start: Callable[..., Running], peer: Peer, mint: Minter
) -> None:
    relay = start()
    relay.webhook("push", push(), delivery="d-0")
    payload = dispatch_of(peer, "org2/repo2")
    wait_for(lambda: dispatch_states(relay) == {"sent": 4})
    peer.fail(DISPATCHES, status=204, delay=3, times=1000, after=True)
    started = time.monotonic()
    for number in range(1, 6):
        assert relay.webhook("push", push(), delivery=f"d-{number}").status_code == 202
    assert relay.callback(mint.token("org2/repo2"), report(payload)).status_code == 200
    assert time.monotonic() - started < 3, "answered before the first slow dispatch can have ended"


def test_2_a_hud_outage_loses_nothing(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    peer.fail("/api/crcr/results", status=503, times=1000)
    token = mint.token("org2/repo2")
    for job in "abcdef":
        for status in ("in_progress", "completed"):
            assert relay.callback(token, report(payload, status, job_name=job)).status_code == 200
    assert not peer.hud()
    peer.heal()
    wait_for(lambda: len(peer.hud_rows) == 12, 30)


@sqlite_only
def test_2_a_wrong_hud_key_is_the_operators_to_repair(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    relay = start(hud_key="a-wrong-key")
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    answer = relay.callback(mint.token("org2/repo2"), report(dispatch_of(peer, "org2/repo2"), "completed"))
    assert answer.status_code == 200, "not the caller's fault"
    with relay.database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT state FROM tasks WHERE kind = 'hud'").scalar() == "ready"


def test_2_a_store_outage_is_503_and_a_retry_succeeds(
    start: Callable[..., Running], peer: Peer, mint: Minter, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import relay.store.database as store

    monkeypatch.setattr(store, "_BUSY_SECONDS", 0.3)
    running = start()
    running.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    wait_for(lambda: dispatch_states(running) == {"sent": 4})
    token = mint.token("org2/repo2")
    if database_url.startswith("sqlite"):
        blocker = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        answers = [
            running.callback(token, report(payload)),
            running.webhook("push", push(), delivery="d-2"),
            running.http.get("/readyz"),
        ]
        blocker.execute("ROLLBACK")
        blocker.close()
        assert [answer.status_code for answer in answers] == [503, 503, 503]
        assert int(answers[0].headers["retry-after"]) >= 1
    else:
        admin = create_engine(database_url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:  # what a restart of the server does to our connections
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        admin.dispose()
    assert running.callback(token, report(payload)).status_code in {200, 503}
    again = wait_for(lambda: running.callback(token, report(payload)))
    assert again.status_code == 200
    assert running.webhook("push", push(), delivery="d-2").status_code == 202
    wait_for(lambda: dispatch_states(running) == {"sent": 8}, 30)


@sqlite_only
def test_a_full_disk_is_503_and_the_relay_recovers(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    wait_for(lambda: dispatch_states(relay) == {"sent": 4})
    with relay.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    # SQLite's own limit fails a write exactly as a full disk does (SQLITE_FULL); it holds per connection.
    engine = relay.database.engine

    def limit(number: int) -> None:
        connections = [engine.raw_connection() for _ in range(engine.pool.size())]
        for one in connections:
            one.execute(f"PRAGMA max_page_count={number}")
        for one in connections:
            one.close()

    limit(pages + 2)
    big = report(payload)
    big["padding"] = "x" * 200_000
    answer = relay.callback(mint.token("org2/repo2"), big)
    assert answer.status_code == 503, answer.text
    limit(2**30)
    assert relay.callback(mint.token("org2/repo2"), big).json()["status"] == "in_progress"


# --- kill -9 --------------------------------------------------------------------------------------------------------


def post(process: Process, delivery: str, payload: dict[str, Any]) -> int:
    body = json.dumps(payload).encode()
    headers = {
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": sign(body, WEBHOOK_SECRET),
    }
    url = process.url + "/github/webhook"
    return httpx.post(url, content=body, headers=headers, timeout=10, verify=TRUST).status_code


@pytest.fixture
def twenty(allowlist_file: Path) -> list[str]:
    repos = [f"org{number}/backend" for number in range(20)]
    allowlist_file.write_text("L2:\n" + "".join(f"  - {repo}\n" for repo in repos))
    return repos


def seen(peer: Peer) -> set[tuple[str, str]]:
    """Delivery and owner of every dispatch that GitHub accepted."""
    return {(call.body["client_payload"]["delivery_id"], call.path.split("/")[2]) for call in peer.dispatched()}


def test_2_kill_9_in_the_middle_of_the_fan_out_loses_nothing(
    spawn: Callable[..., Process], peer: Peer, twenty: list[str]
) -> None:
    peer.latency = 0.02
    process = spawn("serve", lease_seconds=5)
    accepted = [
        delivery for delivery in (f"d-{number}" for number in range(10)) if post(process, delivery, push()) == 202
    ]
    assert len(accepted) == 10
    wait_for(lambda: len(peer.dispatched()) >= 20)
    process.kill()
    sent = len(peer.dispatched())
    assert sent < 200, "killed in the middle"
    spawn("serve", lease_seconds=5)

    wanted = {(delivery, repo.split("/")[0]) for delivery in accepted for repo in twenty}
    wait_for(lambda: seen(peer) == wanted, 60)
    twice = len(peer.dispatched()) - len(wanted)
    assert twice <= 20, "only what was under way at the kill may come twice: one lane of 20"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_2_kill_9_at_random_moments(kind: str, request: pytest.FixtureRequest) -> None:
    """The benchmark's play, small: API and workers are killed while deliveries, dispatches and callbacks pass."""
    import kill

    with contextlib.ExitStack() as stack:
        url = ""
        if kind == "postgresql":
            url = stack.enter_context(request.getfixturevalue("cluster").database())
        accounts = kill.play(url, kind, deliveries=8, repositories=4, kills=2 if kind == "sqlite" else 4, seconds=120)
    assert accounts["kills"].keys() == {"api", "worker"}
    assert kill.kept(accounts), accounts


def test_an_orderly_stop_finishes_and_gives_back(spawn: Callable[..., Process], peer: Peer, twenty: list[str]) -> None:
    peer.latency = 0.1
    process = spawn("serve", worker_concurrency=2)
    assert post(process, "d-1", push()) == 202
    wait_for(lambda: peer.dispatched())
    process.kill(signal.SIGTERM)
    assert process.popen.returncode == 0, process.log.read_text()
    sent = [call.path for call in peer.dispatched()]
    assert len(sent) == len(set(sent)) < 20
    spawn("serve")
    wait_for(lambda: len({call.path for call in peer.dispatched()}) == 20)
    assert len(peer.dispatched()) == 20, "an orderly stop repeats nothing"


@sqlite_only
def test_2_clock_steps_neither_lose_nor_delay(
    start: Callable[..., Running], peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock is set two hours back, then four ahead, while dispatches wait for their next attempt."""
    relay = start(dispatch_retry_seconds=86400)
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    for number, (before, after) in enumerate(((0.0, -7200.0), (-7200.0, 7200.0))):
        ahead[0] = before
        peer.fail("/repos/org2/repo2/dispatches", status=500, times=2)
        relay.webhook("push", push(), delivery=f"d-{number}")
        wait_for(lambda number=number: dispatch_states(relay)["sent"] == 3 + 4 * number, what="all but the failing one")
        ahead[0] = after
        wait_for(lambda number=number: dispatch_states(relay) == {"sent": 4 + 4 * number}, what="and that one, too")
    assert len(peer.dispatched()) == 8


def test_2_a_restart_of_the_database_loses_nothing(
    peer: Peer, allowlist_file: Path, rsa_key: Any, mint: Minter
) -> None:
    """A real restart of a real server, in the middle of deliveries and callbacks."""
    with PostgresCluster() as own, own.database() as url:
        relay = Running(load(**settings_for(peer, url, str(allowlist_file), rsa_key.pem, lease_seconds=5)))
        try:
            relay.webhook("push", push(), delivery="d-0")
            payload = dispatch_of(peer, "org2/repo2")
            statuses: set[int] = set()

            def pass_by() -> None:
                for number in range(1, 6):

                    def accepted(number: int = number) -> bool:
                        body = report(payload, job_name=str(number))
                        hook = relay.webhook("push", push(), delivery=f"d-{number}").status_code
                        job = relay.callback(mint.token("org2/repo2"), body).status_code
                        statuses.update((hook, job))
                        return (hook, job) == (202, 200)

                    wait_for(accepted, 60, "webhook and callback are accepted again")

            traffic = threading.Thread(target=pass_by)
            traffic.start()
            own.restart()  # in this thread: the server ends with the thread that started it
            traffic.join()
            assert statuses <= {200, 202, 503}
            wait_for(lambda: dispatch_states(relay) == {"sent": 24}, 60, "every dispatch is sent")
            wait_for(lambda: len(peer.hud_rows) == 5, 60, "every report reaches HUD")
        finally:
            relay.stop()


def test_a_port_in_use_is_one_clear_sentence(tmp_path: Path, peer: Peer, rsa_key: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "allow.yml").write_text("")
        env = {
            "PATH": os.environ["PATH"],
            "RELAY_DATABASE_URL": f"sqlite:///{tmp_path / 'x.db'}",
            "RELAY_UPSTREAM_REPO": "a/b",
            "RELAY_WEBHOOK_SECRET": "x",
            "RELAY_GITHUB_APP_ID": "1",
            "RELAY_GITHUB_PRIVATE_KEY": rsa_key.pem,
            "RELAY_ALLOWLIST": str(tmp_path / "allow.yml"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "relay", "serve", "--port", str(port)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
