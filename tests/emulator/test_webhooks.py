"""Webhooks: every payload against GitHub's schemas, the signature, redelivery, what GitHub does not send."""

import functools
import hashlib
import hmac
import json
from pathlib import Path

import jsonschema
import pytest

from relay.emulator.webhooks import signature

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests/node/node_modules/@octokit/webhooks-schemas/schema.json"
DEFINITIONS = {"push": "push$event"}


@functools.cache
def schemas() -> dict:
    if not SCHEMAS.is_file():
        pytest.fail(f"{SCHEMAS} is missing: run 'make setup-tests'")
    return json.loads(SCHEMAS.read_text())


def validate(event: str, payload: dict) -> None:
    name = DEFINITIONS.get(event, f"{event}${payload.get('action')}")
    schema = {"$ref": f"#/definitions/{name}", "definitions": schemas()["definitions"]}
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    jsonschema.Draft7Validator(schema, format_checker=checker).validate(payload)


def test_every_event_is_as_github_describes_it(start, upstream, hook) -> None:
    emulator = start()
    control = emulator.control
    upstream.commit({"README.md": "second\n"})
    control("/push", ref="main")
    control("/push", ref="main")
    upstream.branch("topic", {"test/test_ops.py": "a = 2\n"})
    opened = control("/pulls", head_ref="topic", title="Change", labels=["one"], draft=False)
    upstream.branch("topic", {"test/test_ops.py": "a = 3\n"}, base="topic")
    moved = control("/pulls/1/synchronize")
    assert moved["head_sha"] != opened["head_sha"]
    control("/pulls/1/labeled", label="ciflow/crcr/spyre")
    assert control("/pulls/1/labeled", label="ciflow/crcr/spyre")["delivery_id"] is None, "it is there already"
    control("/pulls/1/unlabeled", label="one")
    control("/pulls/1/closed")
    control("/pulls/1/reopened")
    control("/pulls/1/closed", merged=True)
    upstream.git("tag", "ciflow/trunk/1")
    tag = control("/push", ref="refs/tags/ciflow/trunk/1")
    control("/push", ref="refs/heads/topic", delete=True)
    headers = emulator.as_installation("pytorch/pytorch")
    check = emulator.client.post(
        "/repos/pytorch/pytorch/check-runs", headers=headers,
        json={"name": "c", "head_sha": moved["head_sha"], "status": "in_progress", "output": {"summary": "s"}},
    ).json()  # fmt: skip
    refused = emulator.client.post(f"/_emulator/check-runs/{check['id']}/rerequest", json={})
    assert refused.status_code == 422 and "in_progress" in refused.text
    emulator.client.patch(
        f"/repos/pytorch/pytorch/check-runs/{check['id']}", headers=headers, json={"conclusion": "failure"}
    )
    control(f"/check-runs/{check['id']}/rerequest")
    control(f"/check-suites/{check['check_suite']['id']}/rerequest")
    emulator.idle()
    for received, body in hook.received:
        validate(received["x-github-event"], json.loads(body))
    pulls = hook.events("pull_request")
    assert [item["action"] for item in pulls] == [
        "opened", "synchronize", "labeled", "unlabeled", "closed", "reopened", "closed",
    ]  # fmt: skip
    assert pulls[1]["before"] == opened["head_sha"] and pulls[1]["after"] == moved["head_sha"]
    assert (pulls[4]["pull_request"]["merged"], pulls[6]["pull_request"]["merged"]) == (False, True)
    assert pulls[0]["pull_request"]["changed_files"] == 1
    pushes = hook.events("push")
    assert [item["ref"] for item in pushes][2] == "refs/tags/ciflow/trunk/1"
    assert pushes[0]["commits"][0]["modified"] == ["README.md"] and not pushes[0]["created"]
    assert pushes[2]["created"] and pushes[2]["after"] == tag["sha"]
    assert pushes[3]["deleted"] and pushes[3]["after"] == "0" * 40 and pushes[3]["head_commit"] is None
    assert [item["action"] for item in hook.events("check_run")] == ["created", "completed", "rerequested"]
    assert [item["action"] for item in hook.events("check_suite")].count("rerequested") == 1


def test_the_check_can_fail(start, upstream, hook) -> None:
    upstream.branch("topic", {"x": "1\n"})
    emulator = start()
    emulator.control("/pulls", head_ref="topic", title="x")
    emulator.idle()
    payload = hook.events("pull_request")[0]
    del payload["pull_request"]["head"]["sha"]
    with pytest.raises(jsonschema.ValidationError):
        validate("pull_request", payload)


def test_signature_headers_failure_and_redelivery(start, hook) -> None:
    emulator = start()
    hook.answer = lambda: 500
    pushed = emulator.control("/push", ref="main")
    emulator.idle()
    received, body = hook.received[0]
    expected = "sha256=" + hmac.new(b"hook-secret", body, hashlib.sha256).hexdigest()
    assert received["x-hub-signature-256"] == expected == signature("hook-secret", body)
    assert received["x-github-delivery"] == pushed["delivery_id"] and received["x-github-event"] == "push"
    assert received["content-type"] == "application/json" and received["user-agent"].startswith("GitHub-Hookshot/")
    assert len(hook.events("push")) == 1, "GitHub does not repeat a failed delivery by itself"
    hook.answer = lambda: 202
    listed = emulator.client.get("/app/hook/deliveries", headers=emulator.as_app()).json()
    failed = next(item for item in listed if item["event"] == "push")
    assert (failed["status_code"], failed["redelivery"]) == (500, False)
    path = f"/app/hook/deliveries/{failed['id']}"
    assert emulator.client.post(f"{path}/attempts", headers=emulator.as_app()).status_code == 202
    emulator.idle()
    guids = [headers["x-github-delivery"] for headers, _ in hook.received if headers["x-github-event"] == "push"]
    assert guids == [pushed["delivery_id"]] * 2
    emulator.control(f"/deliveries/{failed['id']}/redeliver")
    emulator.idle()
    attempts = emulator.client.get("/_emulator/deliveries", params={"guid": pushed["delivery_id"]}).json()
    assert [item["redelivery"] for item in attempts] == [False, True, True]
    assert attempts[1]["response"]["payload"] == '{"ok": true}'
    assert emulator.client.get(path, headers=emulator.as_app()).json()["request"]["payload"]["ref"] == "refs/heads/main"
    written = json.loads((emulator.folder / "github" / "deliveries" / f"{failed['id']}.json").read_text())
    assert written["status_code"] == 500


def test_unreachable_receiver_is_recorded(start, hook) -> None:
    hook.close()
    emulator = start()
    emulator.control("/push", ref="main")
    emulator.idle()
    attempt = emulator.client.get("/_emulator/deliveries", params={"event": "push"}).json()[0]
    assert attempt["status_code"] == 0 and "connect" in attempt["status"]
