"""Spec 1.1 and 1.2 over real HTTP, with GitHub's recorded webhooks where there are some."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from relay_parts import NODE, Minter, Peer, Running, dispatch_of, push, sqlite_only
from relay_site import BASE, HEAD, UPSTREAM, pull_request, report, wait_for

from relay.core import events
from relay.core.body import dump
from relay.core.trimming import MAX_BYTES, client_payload

OURS = ("pull_request", "push", "check_run", "check_suite", "ping")


def examples() -> list[Any]:
    """Every recorded webhook of the events that the relay uses, and their names."""
    index = NODE / "webhooks-examples" / "api.github.com" / "index.json"
    if not index.exists():
        pytest.fail(f"{index} is missing; 'make setup' installs it (npm ci in tests/node)")
    return [
        pytest.param(entry["name"], example, id=f"{entry['name']}-{example.get('action', 'none')}-{number}")
        for entry in json.loads(index.read_text())
        if entry["name"] in OURS
        for number, example in enumerate(entry["examples"])
    ]


def test_1_1_other_methods_and_paths(shared: Running) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert shared.http.request(method, "/github/webhook").status_code == 405
        assert shared.http.request(method, "/github/callback").status_code == 405
    assert shared.http.post("/github/other").status_code == 404
    assert shared.http.get("/").status_code == 404


def test_1_1_signature_comes_first(shared: Running) -> None:
    body = json.dumps(pull_request()).encode()
    headers = {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": "d"}
    assert shared.http.post("/github/webhook", content=body, headers=headers).status_code == 400
    assert shared.webhook("pull_request", pull_request(), secret="another").status_code == 401
    assert shared.webhook("ping", {"zen": "x"}, secret="another").status_code == 401
    assert shared.webhook("star", {}, secret="another").status_code == 401
    for wrong in ("sha256=", "sha1=abc", "x", "sha256=" + "0" * 64, "sha256=" + "ä" * 64):
        signed = {"X-Hub-Signature-256": wrong.encode("utf-8"), **headers}
        assert shared.http.post("/github/webhook", content=body, headers=signed).status_code == 401
    changed = shared.http.post(
        "/github/webhook",
        content=body + b" ",
        headers={**headers, "X-Hub-Signature-256": shared.webhook("x", body).request.headers["X-Hub-Signature-256"]},
    )
    assert changed.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"action": "opened", "action": "closed"}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b"\xff\xfe{}",
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_1_1_bad_bodies_are_400(shared: Running, body: bytes) -> None:
    answer = shared.webhook("pull_request", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("action", 3),
        ("action", None),
        ("pull_request", []),
        ("pull_request", None),
        ("pull_request.number", "7"),
        ("pull_request.number", True),
        ("pull_request.number", -1),
        ("pull_request.number", 0),
        ("pull_request.head", None),
        ("pull_request.head.sha", "main"),
        ("pull_request.head.sha", 5),
        ("pull_request.base.sha", None),
    ],
)
def test_1_1_missing_and_mistyped_fields_are_named(shared: Running, path: str, value: Any) -> None:
    payload = pull_request()
    node = payload
    *parents, last = path.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = value
    answer = shared.webhook("pull_request", payload)
    assert answer.status_code == 400
    assert path in answer.json()["error"]


def test_1_1_what_is_not_used_is_ignored_with_a_reason(shared: Running) -> None:
    for event, payload in [
        ("star", {"action": "created"}),
        ("pull_request", pull_request("assigned")),
        ("pull_request", pull_request("labeled", label={"name": "bug"})),
        ("pull_request", pull_request(repository={"full_name": "someone/pytorch"})),
        ("pull_request", {"action": "opened"}),
        ("push", push("refs/heads/main", after="0" * 40, deleted=True)),
        ("push", push("refs/heads/main", deleted=True)),
        ("push", push("refs/tags/v2.14.0")),
        ("check_run", {"action": "created", "repository": {"full_name": UPSTREAM}}),
    ]:
        answer = shared.webhook(event, payload)
        assert (answer.status_code, answer.json()["ignored"]) == (200, True), (event, answer.text)
        assert answer.json()["reason"]
    assert shared.webhook("ping", {"zen": "x"}).status_code == 200


def test_1_1_the_upstreams_name_has_no_case(shared: Running) -> None:
    payload = pull_request(repository={"full_name": "PyTorch/PYTORCH"})
    assert shared.webhook("pull_request", payload).json()["targets"] == 4


def test_1_1_headers_of_the_delivery(shared: Running) -> None:
    assert shared.webhook("pull_request", pull_request(), delivery="../../etc").status_code == 400
    assert shared.webhook("pull_request", pull_request(), delivery="x" * 101).status_code == 400
    assert shared.webhook("", pull_request()).status_code == 400


@sqlite_only
def test_1_1_body_over_the_cap_is_413(start: Callable[..., Running]) -> None:
    relay = start(webhook_max_bytes=2048)
    assert relay.webhook("pull_request", b"{" + b" " * 4000 + b"}").status_code == 413

    def chunks() -> Any:
        for _ in range(4):
            yield b" " * 1000

    answer = relay.http.post("/github/webhook", content=chunks())
    assert answer.status_code == 413, "no Content-Length may get around the cap"


@sqlite_only
def test_1_1_trunk_tag_is_dispatched_as_its_pull_request(relay: Running, peer: Peer) -> None:
    relay.webhook("push", push("refs/tags/ciflow/trunk/1234"), delivery="d-tag")
    payload = dispatch_of(peer, "org4/repo4", "d-tag")
    assert (payload["event_type"], payload["payload"]["after"]) == ("push", HEAD)
    with relay.database.transaction() as connection:
        rows = connection.exec_driver_sql("SELECT pr_number, head_sha FROM deliveries").all()
    assert [tuple(row) for row in rows] == [(1234, HEAD)]


@pytest.mark.parametrize(("event", "example"), examples())
def test_github_examples_are_understood(event: str, example: dict[str, Any]) -> None:
    """Each recorded webhook is decided without an error, as its own repository's upstream would."""
    upstream = events.repository(example) or "nobody/nothing"
    decision = events.decide(event, example, upstream)
    action = example.get("action")
    if event == "ping":
        assert isinstance(decision, events.Pong)
    elif event == "pull_request" and action in events.PULL_REQUEST_ACTIONS:
        assert isinstance(decision, events.Fanout)
        assert decision.pr_number == example["pull_request"]["number"]
        assert decision.head_sha == example["pull_request"]["head"]["sha"]
        assert client_payload(event, "d", example)["payload"] == example, "GitHub's own examples fit untrimmed"
    elif event == "push" and example["ref"].startswith("refs/heads/") and not example["deleted"]:
        assert isinstance(decision, events.Fanout)
        assert (decision.head_sha, decision.branch) == (example["after"], example["ref"].removeprefix("refs/heads/"))
    elif event in {"check_run", "check_suite"} and action == "rerequested":
        assert isinstance(decision, events.Rerun)
        assert decision.app_id == example[event]["app"]["id"]
    else:
        assert isinstance(decision, events.Ignore)


@pytest.fixture(scope="module")
def webhook_schema() -> dict[str, Any]:
    return json.loads((NODE / "webhooks-schemas" / "schema.json").read_text())


def leaves(error: jsonschema.ValidationError) -> list[jsonschema.ValidationError]:
    """What is wrong, also below ``anyOf`` (without the alternative ``null``, which was not meant)."""
    below = [inner for inner in error.context if inner.validator != "type"]
    return [leaf for inner in below for leaf in leaves(inner)] if below else [error]


def validator(schema: dict[str, Any], event: str, action: str | None) -> jsonschema.Draft7Validator:
    name = f"{event}${action}" if action else f"{event}$event"
    return jsonschema.Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": schema["definitions"]})


@pytest.mark.parametrize(("event", "example"), examples())
def test_github_examples_match_githubs_schema(
    webhook_schema: dict[str, Any], event: str, example: dict[str, Any]
) -> None:
    """What the tests above call GitHub's shape is GitHub's shape."""
    errors = list(validator(webhook_schema, event, example.get("action")).iter_errors(example))
    # Each event's first example was recorded before GitHub added some fields that the schema requires now.
    wrong = [leaf for error in errors for leaf in leaves(error) if leaf.validator != "required"]
    assert not wrong, wrong[0].message


def recorded(event: str, action: str | None) -> dict[str, Any]:
    for parameters in examples():
        name, example = parameters.values
        if name == event and example.get("action") == action:
            return json.loads(json.dumps(example))
    raise AssertionError(f"there is no recorded {event} {action}")


@sqlite_only
def test_1_2_a_recorded_pull_request_travels_whole(start: Callable[..., Running], peer: Peer) -> None:
    example = recorded("pull_request", "opened")
    relay = start(upstream_repo=example["repository"]["full_name"])
    assert relay.webhook("pull_request", example, delivery="d-x").json()["targets"] == 4
    assert dispatch_of(peer, "org1/repo1", "d-x")["payload"] == example


@sqlite_only
def test_1_2_a_payload_over_githubs_limit_is_trimmed(relay: Running, peer: Peer) -> None:
    payload = recorded("pull_request", "opened")
    payload["repository"]["full_name"] = UPSTREAM
    payload["pull_request"]["body"] = "word " * 40_000
    payload["pull_request"]["title"] = "the title"
    payload["pull_request"]["labels"] = [{"name": "ciflow/crcr/spyre", "id": 1, "description": "d" * 500}] * 20
    relay.webhook("pull_request", payload, delivery="d-big")
    sent = dispatch_of(peer, "org2/repo2", "d-big")
    assert len(json.dumps(sent)) < 65_535
    assert sent["payload"]["truncated"] is True
    pull, original = sent["payload"]["pull_request"], payload["pull_request"]
    for path in ("number", "head.sha", "head.ref", "base.ref", "base.sha", "title", "user.login"):
        a, b = pull, original
        for key in path.split("."):
            a, b = a[key], b[key]
        assert a == b, path
    assert [label["name"] for label in pull["labels"]] == ["ciflow/crcr/spyre"] * 20
    assert sent["payload"]["repository"]["full_name"] == UPSTREAM


def test_1_2_trimming_is_deterministic_and_always_ends() -> None:
    hostile = pull_request(labels=tuple("l" * 1000 for _ in range(500)))
    hostile["pull_request"]["title"] = "t" * 100_000
    hostile["pull_request"]["head"]["ref"] = "r" * 100_000
    hostile["more"] = {"x": ["y" * 100] * 1000}
    first, second = (client_payload("pull_request", "d", hostile, reserve=800) for _ in range(2))
    assert first == second
    assert len(dump(first)) + 800 <= MAX_BYTES
    assert first["payload"]["pull_request"]["base"]["sha"] == BASE
    commits = push(commits=[{"id": "c" * 40, "message": "m" * 1000, "added": ["f"] * 50} for _ in range(500)])
    trimmed = client_payload("push", "d", commits)["payload"]
    assert (trimmed["after"], trimmed["ref"], trimmed["truncated"]) == (HEAD, "refs/heads/main", True)


def test_2_a_redelivery_retries_only_what_failed(relay: Running, peer: Peer) -> None:
    peer.fail("/repos/org2/repo2/dispatches", status=422)
    first = relay.webhook("pull_request", pull_request(), delivery="d-1")
    assert first.json() == {"ok": True, "delivery_id": "d-1", "targets": 4}
    wait_for(lambda: len(peer.made("POST", "/repos/.+/dispatches")) == 4)
    wait_for(lambda: _failed(relay))
    again = relay.webhook("pull_request", pull_request(), delivery="d-1")
    assert again.status_code == 202
    assert again.json() == {"ok": True, "delivery_id": "d-1", "targets": 4, "redelivery": True, "retried": 1}
    wait_for(lambda: len(peer.dispatched()) == 4)
    time.sleep(0.2)
    assert len(peer.made("POST", "/repos/.+/dispatches")) == 5
    third = relay.webhook("pull_request", pull_request(), delivery="d-1").json()
    assert third["retried"] == 0


def _failed(relay: Running) -> bool:
    """Whether a dispatch has failed; asked on a connection of its own, as SQLite shows a reader one moment only."""
    with relay.database.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT 1 FROM dispatches WHERE state = 'failed'").first() is not None


def test_2_recorded_before_sent(relay: Running, peer: Peer) -> None:
    """A callback that comes before GitHub's answer to the dispatch is accepted."""
    peer.latency = 0.5
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    with relay.database.engine.connect() as connection:
        states = connection.exec_driver_sql("SELECT state FROM dispatches").scalars().all()
    assert len(states) == 4
    assert "sent" not in states


@sqlite_only
def test_2_options_of_a_repository(start: Callable[..., Running], peer: Peer, allowlist_file: Path) -> None:
    allowlist_file.write_text(
        "L1:\n"
        "  - org1/only-push: {events: [push]}\n"
        "  - org1/branches: {refs: [release/*]}\n"
        "  - org1/paths: {paths: [aten/**]}\n"
        "  - org1/all\n"
    )
    relay = start()

    def reached() -> list[str]:
        wait_for(lambda: _idle(relay))
        names = sorted(call.path.split("/")[3] for call in peer.dispatched())
        peer.calls.clear()
        return names

    relay.webhook("push", push("refs/heads/main", commits=[{"added": ["docs/x"], "modified": [], "removed": []}]))
    assert reached() == ["all", "only-push"]
    relay.webhook("push", push("refs/heads/release/2.14", commits=[]))
    assert reached() == ["all", "branches", "only-push", "paths"]
    peer.files = ["docs/readme.md"]
    relay.webhook("pull_request", pull_request())
    assert reached() == ["all", "branches"]
    peer.files = ["aten/src/ATen/native/Add.cpp"]
    relay.webhook("pull_request", pull_request(head="c" * 40))
    assert reached() == ["all", "branches", "paths"]
    relay.webhook("pull_request", pull_request("closed", head="d" * 40))
    assert reached() == ["all", "branches", "paths"]


def _idle(relay: Running) -> bool:
    with relay.database.engine.connect() as connection:
        return not connection.exec_driver_sql("SELECT 1 FROM tasks WHERE state IN ('ready', 'leased')").first()


def test_2_a_broken_allowlist_does_not_stop_the_relay(
    start: Callable[..., Running], peer: Peer, allowlist_file: Path
) -> None:
    relay = start()
    assert relay.webhook("pull_request", pull_request()).json()["targets"] == 4
    allowlist_file.write_text("L1: [not a repository]\nL9: []\n")
    assert relay.webhook("pull_request", pull_request()).json()["targets"] == 4
    ready = relay.http.get("/readyz")
    assert ready.status_code == 200
    assert f"{allowlist_file}:1:" in ready.json()["checks"]["allowlist"]["error"]
    # The good version outlives the process.
    relay.stop()
    second = start()
    assert second.webhook("pull_request", pull_request()).json()["targets"] == 4
    assert second.http.get("/readyz").json()["checks"]["allowlist"]["ok"] is False


@sqlite_only
def test_2_without_any_allowlist_the_delivery_is_kept(
    start: Callable[..., Running], peer: Peer, allowlist_file: Path
) -> None:
    good = allowlist_file.read_text()
    allowlist_file.write_text("nonsense")
    relay = start()
    assert relay.http.get("/readyz").status_code == 503
    answer = relay.webhook("pull_request", pull_request(), delivery="d-early")
    assert (answer.status_code, answer.json()["targets"]) == (202, None)
    allowlist_file.write_text(good)
    relay.app.state.service.allowlist._read_at = None
    wait_for(lambda: len(peer.dispatched()) == 4)


@sqlite_only
def test_2_closed_pull_requests_can_cancel_their_runs(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    relay = start(cancel_closed=True)
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    assert relay.callback(mint.token("org2/repo2"), report(payload, run_id="55")).status_code == 200
    relay.webhook("pull_request", pull_request("closed"), delivery="d-2")
    wait_for(lambda: peer.made("POST", "/repos/org2/repo2/actions/runs/55/cancel"))


def test_sqlite_is_safe_against_power_loss(tmp_path: Path) -> None:
    """The write-ahead log is synced at every commit; group commit is what makes that affordable."""
    from relay.store.database import Database

    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    database.close()
    assert sqlite3.connect(tmp_path / "x.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)
