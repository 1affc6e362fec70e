"""The REST API: who may do what, limits and error shapes, and every shape against GitHub's OpenAPI description."""

import base64
import functools
import json
import time
from pathlib import Path

import httpx
import jsonschema
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = Path(__file__).parents[2]
OPENAPI = ROOT / "tests/node/node_modules/@octokit/openapi/generated/api.github.com.json"


@functools.cache
def description() -> dict:
    if not OPENAPI.is_file():
        pytest.fail(f"{OPENAPI} is missing: run 'make setup-tests'")
    return json.loads(OPENAPI.read_text())


def plain(schema: object, depth: int = 0) -> object:
    """OpenAPI 3.0's ``nullable`` in JSON Schema's words, references resolved."""
    if isinstance(schema, list):
        return [plain(item, depth) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = description()
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return plain(target, depth + 1)
    found = {key: plain(value, depth) for key, value in schema.items() if key not in ("example", "examples")}
    if found.pop("nullable", False):
        rest = {key: found.pop(key) for key in list(found)}
        return {"anyOf": [rest, {"type": "null"}]}
    return found


def check(response: httpx.Response, method: str, path: str) -> object:
    """The answer, checked against the description of ``path``."""
    operation = description()["paths"][path][method]
    answer = plain(operation["responses"][str(response.status_code)])
    if "content" not in answer:
        assert response.content in (b"", b"{}")
        return None
    schema = answer["content"]["application/json"]["schema"]
    jsonschema.Draft7Validator(schema).validate(response.json())
    return response.json()


def test_app_and_installation_tokens(lab) -> None:
    client, emulator = lab.client, lab.emulator
    check(client.get("/app", headers=emulator.as_app()), "get", "/app")
    installations = client.get("/app/installations", headers=emulator.as_app()).json()
    assert [item["account"]["login"] for item in installations] == ["acme"]
    path = f"/repos/{lab.name}/installation"
    number = check(client.get(path, headers=emulator.as_app()), "get", "/repos/{owner}/{repo}/installation")["id"]
    path = f"/app/installations/{number}/access_tokens"
    created = client.post(path, headers=emulator.as_app(), json={"repositories": [lab.name.split("/")[1]]})
    token = check(created, "post", "/app/installations/{installation_id}/access_tokens")
    expires = jwt.api_jwt.datetime.fromisoformat(token["expires_at"].replace("Z", "+00:00")).timestamp()
    assert 3500 < expires - time.time() <= 3600
    assert token["permissions"]["contents"] == "write"
    mine = {"Authorization": f"Bearer {token['token']}"}
    listed = client.get("/installation/repositories", headers=mine).json()
    assert [item["full_name"] for item in listed["repositories"]] == [lab.name]
    assert client.post("/repos/acme/lab0/dispatches", headers=mine, json={"event_type": "x"}).status_code == (
        204 if lab.name == "acme/lab0" else 404
    )
    for body in (
        {"permissions": {"contents": "admin"}},
        {"permissions": {"secrets": "read"}},
        {"repositories": ["no"]},
    ):
        assert client.post(path, headers=emulator.as_app(), json=body).status_code == 422
    fewer = client.post(path, headers=emulator.as_app(), json={"permissions": {"contents": "read"}}).json()["token"]
    refused = client.post(f"/repos/{lab.name}/dispatches", headers={"Authorization": f"token {fewer}"},
                          json={"event_type": "x"})  # fmt: skip
    assert (refused.status_code, refused.json()["message"]) == (403, "Resource not accessible by integration")
    assert client.delete("/installation/token", headers=mine).status_code == 204
    assert client.get("/installation/repositories", headers=mine).json()["message"] == "Bad credentials"


@pytest.mark.parametrize(
    ("claims", "part"),
    [
        ({"exp": -10}, "Expiration time"),
        ({"exp": 3600}, "too far in the future"),
        ({"iat": 600}, "Issued at"),
        ({"iss": "8"}, "Issuer"),
        ({"iat": None}, "decoded|Issued at|issued at"),
    ],
)
def test_app_jwt_rules(lab, claims: dict, part: str) -> None:
    # Times are seconds from when the test runs, which may be long after it was collected.
    said = {name: int(time.time()) + value if isinstance(value, int) else value for name, value in claims.items()}
    answer = lab.client.get("/app", headers={"Authorization": f"Bearer {lab.emulator.app_jwt(**said)}"})
    assert answer.status_code == 401
    assert any(item in answer.json()["message"] for item in part.split("|"))


def test_forged_app_jwt(lab, app_key) -> None:
    now = int(time.time())
    claims = {"iat": now, "exp": now + 60, "iss": "7"}
    public = (lab.emulator.folder / "app.pem").read_bytes()
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    head, body, _ = lab.emulator.app_jwt().split(".")
    hmac_key = base64.b64encode(public)[:40]
    for token in (
        jwt.encode(claims, other, algorithm="RS256"),
        jwt.encode(claims, None, algorithm="none"),
        jwt.encode(claims, hmac_key, algorithm="HS256"),
        f"{head}.{body}.",
        "x.y.z",
    ):
        assert lab.client.get("/app", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert lab.client.get("/app").status_code == 401
    assert lab.client.get(f"/repos/{lab.name}", headers={"Authorization": "token ghs_nope"}).status_code == 401


def test_dispatch_limits(lab) -> None:
    path, headers = f"/repos/{lab.name}/dispatches", lab.as_installation()

    def send(body: object) -> httpx.Response:
        return lab.client.post(path, headers=headers, json=body)

    assert send({"event_type": "x" * 100, "client_payload": {str(n): n for n in range(10)}}).status_code == 204
    assert send({"event_type": "x", "client_payload": {"a": "x" * 65_000}}).status_code == 204
    for body in (
        {},
        {"event_type": 3},
        {"event_type": "x" * 101},
        {"event_type": "x", "client_payload": {str(n): n for n in range(11)}},
        {"event_type": "x", "client_payload": {"a": "x" * 66_000}},
        {"event_type": "x", "client_payload": []},
        {"event_type": "x", "other": 1},
    ):
        answer = send(body)
        assert answer.status_code == 422 and answer.json()["message"] and answer.json()["documentation_url"]
    answer = lab.client.post(path, headers=headers, content=b"{")
    assert (answer.status_code, answer.json()["message"]) == (400, "Problems parsing JSON")
    assert lab.client.post(path, json={"event_type": "x"}).status_code == 404
    assert lab.client.post("/repos/acme/nothing/dispatches", headers=headers, json={}).status_code == 404


def test_check_runs(lab) -> None:
    sha, headers = lab.commit({"a": "1"}), lab.as_installation()
    path = f"/repos/{lab.name}/check-runs"
    body = {"name": "crcr/x", "head_sha": sha, "status": "in_progress", "external_id": "1:2",
            "details_url": "http://example.org/run"}  # fmt: skip
    created = check(lab.client.post(path, headers=headers, json=body), "post", "/repos/{owner}/{repo}/check-runs")
    assert (created["status"], created["conclusion"], created["external_id"]) == ("in_progress", None, "1:2")
    output = {"title": "t", "summary": "s"}
    update = lab.client.patch(
        f"{path}/{created['id']}", headers=headers, json={"conclusion": "success", "output": output}
    )
    updated = check(update, "patch", "/repos/{owner}/{repo}/check-runs/{check_run_id}")
    assert (updated["status"], updated["conclusion"]) == ("completed", "success")
    assert updated["completed_at"] and updated["output"]["summary"] == "s"
    again = {"name": "crcr/x", "head_sha": sha, "conclusion": "failure"}
    assert lab.client.post(path, headers=headers, json=again).status_code == 201
    template = "/repos/{owner}/{repo}/commits/{ref}/check-runs"
    url = f"/repos/{lab.name}/commits/{sha}/check-runs"
    latest = check(lab.client.get(url), "get", template)
    assert [item["conclusion"] for item in latest["check_runs"]] == ["failure"]
    assert lab.client.get(url, params={"filter": "all"}).json()["total_count"] == 2
    suites = check(
        lab.client.get(f"/repos/{lab.name}/commits/main/check-suites"), "get",
        "/repos/{owner}/{repo}/commits/{ref}/check-suites",
    )  # fmt: skip
    assert [item["conclusion"] for item in suites["check_suites"]] == ["failure"]
    for bad in (
        {"name": "x"},
        {"name": "x", "head_sha": "0" * 40},
        {"name": "x", "head_sha": sha, "status": "odd"},
        {"name": "x", "head_sha": sha, "status": "completed"},
        {"name": "x", "head_sha": sha, "conclusion": "odd"},
        {"name": "x", "head_sha": sha, "details_url": "javascript:x"},
        {"name": "x", "head_sha": sha, "output": {"title": "no summary"}},
        {"name": "x", "head_sha": sha, "output": {"summary": "x" * 70_000}},
        {"name": "x", "head_sha": sha, "output": {"summary": "x", "annotations": [{}] * 51}},
    ):
        assert lab.client.post(path, headers=headers, json=bad).status_code == 422, bad
    assert lab.client.post(path, json=body).status_code == 401
    assert lab.client.get(f"{path}/1").status_code == 404


def test_repository_contents_commits_and_refs(lab) -> None:
    sha = lab.commit({"docs/guide.md": "hello\n", ".github/allow list.yml": "L1: []\n"})
    base = f"/repos/{lab.name}"
    check(lab.client.get(base), "get", "/repos/{owner}/{repo}")
    file = lab.client.get(f"{base}/contents/docs/guide.md").json()
    assert base64.b64decode(file["content"]) == b"hello\n" and file["encoding"] == "base64" and file["size"] == 6
    raw = {"Accept": "application/vnd.github.raw+json"}
    assert lab.client.get(f"{base}/contents/.github/allow%20list.yml", headers=raw).text == "L1: []\n"
    assert lab.client.get(f"/{lab.name}/raw/main/docs/guide.md").text == "hello\n"
    assert "hello" in lab.client.get(f"/{lab.name}/blob/main/docs/guide.md").text
    listed = lab.client.get(f"{base}/contents", params={"ref": sha}).json()
    assert [(item["name"], item["type"]) for item in listed][:2] == [(".github", "dir"), ("README.md", "file")]
    assert lab.client.get(f"{base}/contents/none").status_code == 404
    assert lab.client.get(f"{base}/contents/docs/guide.md", params={"ref": "--help"}).status_code == 404
    assert lab.client.get(f"{base}/commits/main").json()["sha"] == sha
    assert lab.client.get(f"{base}/branches/main").json()["commit"]["sha"] == sha
    assert lab.client.get(f"{base}/git/ref/heads/main").json()["object"]["sha"] == sha
    template = "/repos/{owner}/{repo}/git/commits/{commit_sha}"
    assert check(lab.client.get(f"{base}/git/commits/{sha}"), "get", template)["sha"] == sha
    assert lab.client.get(f"{base}/git/commits/{'0' * 40}").status_code == 404
    assert lab.client.get(f"{base}/git/commits/main").status_code == 422
    assert lab.client.get(f"/api/v3{base}").json()["full_name"] == lab.name


def test_pull_request_and_files(start, upstream) -> None:
    emulator = start()
    upstream.commit({"old/name.txt": "a\nb\nc\nd\n", "gone.txt": "x\n"})
    emulator.control("/push", ref="main")
    upstream.git("checkout", "--quiet", "-b", "topic")
    upstream.git("mv", "old/name.txt", "new.txt")
    head = upstream.commit({"gone.txt": None, "test/test_ops.py": "a = 2\n", "added é.py": "new = 1\n"})
    upstream.git("checkout", "--quiet", "main")
    upstream.commit({"elsewhere.txt": "main moves on\n"})
    opened = emulator.control("/pulls", head_ref="topic", title="Change", labels=["ciflow/crcr/spyre"], body="text")
    assert opened["head_sha"] == head
    path = "/repos/pytorch/pytorch/pulls/1"
    shown = check(emulator.client.get(path), "get", "/repos/{owner}/{repo}/pulls/{pull_number}")
    assert (shown["head"]["sha"], shown["changed_files"], shown["commits"]) == (head, 4, 1)
    assert [label["name"] for label in shown["labels"]] == ["ciflow/crcr/spyre"]
    files = check(emulator.client.get(f"{path}/files"), "get", "/repos/{owner}/{repo}/pulls/{pull_number}/files")
    assert {item["filename"]: item["status"] for item in files} == {
        "added é.py": "added", "gone.txt": "removed", "new.txt": "renamed", "test/test_ops.py": "modified",
    }  # fmt: skip
    assert next(item for item in files if item["status"] == "renamed")["previous_filename"] == "old/name.txt"
    first = emulator.client.get(f"{path}/files", params={"per_page": 3})
    assert len(first.json()) == 3 and 'rel="next"' in first.headers["link"]
    assert len(emulator.client.get(first.links["next"]["url"]).json()) == 1
    page = emulator.client.get("/pytorch/pytorch/pull/1")
    assert page.status_code == 200 and "Change" in page.text
    bad = emulator.client.post("/_emulator/pulls", json={"head_ref": "none", "title": "x"})
    assert bad.status_code == 422 and "none" in bad.text
    same = emulator.client.post("/_emulator/pulls", json={"head_ref": "main", "title": "x"})
    assert "No commits between main and main" in same.text
    odd = emulator.client.post("/_emulator/pulls", json={"head_ref": "--upload-pack=x", "title": "x"})
    assert odd.status_code == 422 and "not a ref name" in odd.text


def test_runs_and_jobs_have_githubs_shape(lab) -> None:
    lab.commit(
        {".github/workflows/w.yml": "on: repository_dispatch\njobs: {a: {runs-on: x, steps: [{run: 'true'}]}}\n"}
    )
    run, _ = lab.run_of()
    base, template = f"/repos/{lab.name}/actions", "/repos/{owner}/{repo}/actions"
    listed = check(lab.client.get(f"{base}/runs"), "get", f"{template}/runs")
    assert listed["workflow_runs"][0]["id"] == run["id"]
    check(lab.client.get(f"{base}/runs/{run['id']}"), "get", f"{template}/runs/{{run_id}}")
    jobs = check(lab.client.get(f"{base}/runs/{run['id']}/jobs"), "get", f"{template}/runs/{{run_id}}/jobs")
    check(lab.client.get(f"{base}/jobs/{jobs['jobs'][0]['id']}"), "get", f"{template}/jobs/{{job_id}}")
    check(lab.client.get(f"{base}/runs/{run['id']}/artifacts"), "get", f"{template}/runs/{{run_id}}/artifacts")
    assert lab.client.get(f"{base}/runs/{run['id']}/logs").content[:2] == b"PK"
    assert lab.client.get(f"{base}/runs", params={"status": "failure"}).json()["total_count"] == 0
    assert lab.client.get(f"{base}/runs/1").status_code == 404


def test_faults_do_what_they_say(lab) -> None:
    headers, path = lab.as_installation(), f"/repos/{lab.name}/dispatches"
    control = lab.emulator.control

    def send() -> httpx.Response:
        return lab.client.post(path, headers=headers, json={"event_type": "fault", "client_payload": {"n": 1}})

    def effects() -> int:
        entries = lab.client.get("/_emulator/ledger", params={"path": path, "status": 204}).json()
        return len(entries)

    control(
        "/faults", repository=lab.name, status=403, headers={"Retry-After": "7"}, body={"message": "slow down"}, count=1
    )
    answer = send()
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["message"]) == (403, "7", "slow down")
    assert send().status_code == 204
    control("/faults", path="/repos/*/dispatches", repository=lab.name.upper(), reset=True, count=1)
    with pytest.raises(httpx.TransportError):
        send()
    assert send().status_code == 204
    before = effects()
    control("/faults", repository=lab.name, method="POST", status=502, when="after", count=1)
    assert send().status_code == 502
    started = time.monotonic()
    fault = control("/faults", repository=lab.name, delay=0.3, slow_body=0.3)
    assert send().status_code == 204 and time.monotonic() - started >= 0.3
    started = time.monotonic()
    assert lab.client.get(f"/repos/{lab.name}").json()["full_name"] == lab.name
    assert time.monotonic() - started >= 0.55, "the body trickles"
    assert lab.client.get("/repos/acme/lab0").status_code == 200 or lab.name == "acme/lab0"
    assert lab.client.delete(f"/_emulator/faults/{fault['id']}").status_code == 204
    assert effects() == before + 1
    hit = [item["hits"] for item in lab.client.get("/_emulator/faults").json()]
    assert hit[:3] == [1, 1, 1]
    lab.client.delete("/_emulator/faults")
    lab.client.post("/_emulator/faults", params={"seed": 1}, json={"repository": lab.name, "status": 500, "share": 0.5})
    statuses = {send().status_code for _ in range(40)}
    assert statuses == {204, 500}
    lab.client.delete("/_emulator/faults")
    assert lab.client.post("/_emulator/faults", json={"sttus": 500}).status_code == 422


def test_ledger_has_every_call_and_no_credential(lab) -> None:
    headers = lab.as_installation()
    lab.client.post(
        f"/repos/{lab.name}/dispatches", headers=headers, json={"event_type": "seen", "client_payload": {"k": 1}}
    )
    lab.client.get("/app", headers=lab.emulator.as_app())
    entries = lab.client.get("/_emulator/ledger", params={"repository": lab.name.upper(), "method": "post"}).json()
    last = entries[-1]
    assert last["body"] == {"event_type": "seen", "client_payload": {"k": 1}}
    assert (last["status"], last["auth"], last["repository"]) == (204, "installation", lab.name)
    after = lab.client.get("/_emulator/ledger", params={"after": last["id"]}).json()
    assert [entry["path"] for entry in after] == ["/app"] and after[0]["auth"] == "jwt"
    written = (lab.emulator.folder / "github" / "ledger.jsonl").read_text()
    assert all(json.loads(line) for line in written.splitlines())
    token = headers["Authorization"].split()[1]
    assert token not in written
