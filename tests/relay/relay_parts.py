"""Real parts for the relay's tests: a throw-away PostgreSQL, an HTTP peer that stands for GitHub, HUD and the key
server, real RSA and EC keys, and the relay itself behind a real socket."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jsonschema
import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives import serialization
from relay_site import BASE, HEAD, TRUST, UPSTREAM, wait_for

from relay.app.api import create_app
from relay.app.settings import Settings
from relay.core.signature import sign

WEBHOOK_SECRET = "webhook-secret-of-the-tests"
HUD_KEY = "hud-key-of-the-tests"
AUDIENCE = "pytorch-cross-repo-ci-relay"
NODE = Path(__file__).parents[1] / "node" / "node_modules" / "@octokit"

sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests in which the database plays no part."""


# --- keys -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A signing key of an issuer."""

    id: str
    private: Any
    algorithm: str

    @property
    def pem(self) -> str:
        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    @property
    def public_pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def jwk(self) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return {**algorithm.to_jwk(self.private.public_key(), as_dict=True), "kid": self.id, "use": "sig",
                "alg": self.algorithm}  # fmt: skip


# --- the peer -------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One request that the peer got."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any
    at: float
    status: int = 0


@dataclass
class Fault:
    """What the peer does instead of its work."""

    pattern: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    times: int = 1
    delay: float = 0.0
    drop: bool = False
    after: bool = False
    """Do the work first, then fail: the caller never hears of its success."""


class Peer:
    """GitHub's API as an App sees it, a key server and HUD's ingest, over real HTTP, with faults on demand."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.jwks: dict[str, list[dict[str, Any]]] = {}
        self.token_lifetime = 3600.0
        self.checks: dict[int, dict[str, Any]] = {}
        self.files: list[str] = []
        self.hud_rows: dict[str, dict[str, Any]] = {}
        self.commits: set[str] = {HEAD, BASE}
        self.latency = 0.0
        self._lock = threading.Lock()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1  # one packet for headers and body

            def log_message(self, *args: Any) -> None:
                pass

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                peer._handle(self)

            do_POST = do_PATCH = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def made(self, method: str, pattern: str) -> list[Call]:
        with self._lock:
            return [call for call in self.calls if call.method == method and re.fullmatch(pattern, call.path)]

    def dispatched(self) -> list[Call]:
        """Dispatches that GitHub accepted, in order."""
        return [call for call in self.made("POST", r"/repos/.+/dispatches") if call.status == 204]

    def fail(self, pattern: str, **how: Any) -> None:
        with self._lock:
            self.faults.append(Fault(pattern, **how))

    def heal(self) -> None:
        with self._lock:
            self.faults.clear()

    def _fault(self, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, path):
                    fault.times -= 1
                    return fault
        return None

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if len(raw) < int(handler.headers.get("Content-Length") or 0):
            return  # the caller was killed while it wrote
        packed = handler.headers.get("Content-Encoding") == "gzip"
        body = raw if packed else json.loads(raw) if raw else None
        headers = {name.lower(): value for name, value in handler.headers.items()}
        call = Call(handler.command, parts.path, parse_qs(parts.query), headers, body, time.monotonic())
        fault = self._fault(parts.path)
        delay = self.latency + (fault.delay if fault else 0)
        if delay:
            time.sleep(delay)
        with self._lock:
            if fault is None or fault.after or (fault.delay and not fault.status):
                status, answer = self._work(call)
            if fault is not None and not (fault.delay and not fault.status):
                status, answer = fault.status, fault.body if fault.body is not None else {"message": "fault"}
            call.status = status
            self.calls.append(call)
        if fault is not None and fault.drop:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        data = b"" if status == 204 else json.dumps(answer).encode()
        handler.send_response(status)
        for name, value in (fault.headers if fault else {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        handler.wfile.flush()

    def _work(self, call: Call) -> tuple[int, Any]:
        path, body = call.path, call.body
        if match := re.fullmatch(r"/jwks/(\w+)", path):
            return 200, {"keys": self.jwks.get(match[1], [])}
        if path == "/api/crcr/results":
            return self._hud(call)
        if path == "/oidc":
            return 200, {"value": self.jwks["minted"][0]["token"]}
        if match := re.fullmatch(r"/api/v1/runs/(\w+)/tests", path):
            return 200, {"ok": True}
        if match := re.fullmatch(r"/repos/([^/]+)/[^/]+/installation", path):
            return 200, {"id": int(hashlib.sha256(match[1].encode()).hexdigest()[:6], 16)}
        if match := re.fullmatch(r"/app/installations/(\d+)/access_tokens", path):
            expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.token_lifetime))
            return 201, {"token": f"ghs_{uuid.uuid4().hex}", "expires_at": expires}
        if re.fullmatch(r"/repos/.+/dispatches", path):
            size = len(json.dumps(body["client_payload"]))
            return (
                (204, None) if size < 65536 and len(body["client_payload"]) <= 10 else (422, {"message": "too large"})
            )
        if re.fullmatch(r"/repos/.+/check-runs", path) and call.method == "POST":
            number = 1000 + len(self.checks)
            self.checks[number] = {**body, "id": number}
            return 201, self.checks[number]
        if match := re.fullmatch(r"/repos/.+/check-runs/(\d+)", path):
            self.checks[int(match[1])] |= body
            return 200, self.checks[int(match[1])]
        if match := re.fullmatch(r"/repos/.+/commits/(\w+)/check-runs", path):
            name = call.query["check_name"][0]
            runs = [run for run in self.checks.values() if run["head_sha"] == match[1] and run["name"] == name]
            return 200, {"total_count": len(runs), "check_runs": runs[::-1]}
        if re.fullmatch(r"/repos/.+/rerun-failed-jobs", path):
            return 201, {}
        if re.fullmatch(r"/repos/.+/cancel", path):
            return 202, {}
        if re.fullmatch(r"/repos/.+/pulls/\d+/files", path):
            return 200, [{"filename": name} for name in self.files]
        if match := re.fullmatch(r"/repos/.+/git/commits/(\w+)", path):
            return (200, {"sha": match[1]}) if match[1] in self.commits else (404, {"message": "Not Found"})
        return 404, {"message": f"no such route {call.method} {path}"}

    def _hud(self, call: Call) -> tuple[int, Any]:
        if call.headers.get("x-hud-internal-bot") != HUD_KEY:
            return 401, {"error": "wrong key"}
        payload = call.body["untrusted"]["callback_payload"]
        workflow = payload["workflow"]
        key = json.dumps([call.body["trusted"]["verified_repo"], payload["delivery_id"], workflow.get("run_id"),
                          workflow.get("run_attempt"), workflow.get("job_name"), workflow["status"]])  # fmt: skip
        self.hud_rows[key] = call.body
        return 200, {"ok": True}

    def hud(self) -> list[dict[str, Any]]:
        """Reports that HUD accepted, in order."""
        return [call.body for call in self.made("POST", "/api/crcr/results") if call.status == 200]


class GitHubApi:
    """GitHub's own OpenAPI description: what the relay asks must be something that GitHub knows."""

    TEMPLATES = (
        "/app",
        "/app/installations/{installation_id}/access_tokens",
        "/repos/{owner}/{repo}/actions/runs/{run_id}/cancel",
        "/repos/{owner}/{repo}/actions/runs/{run_id}/rerun-failed-jobs",
        "/repos/{owner}/{repo}/check-runs",
        "/repos/{owner}/{repo}/check-runs/{check_run_id}",
        "/repos/{owner}/{repo}/commits/{ref}/check-runs",
        "/repos/{owner}/{repo}/dispatches",
        "/repos/{owner}/{repo}/git/commits/{commit_sha}",
        "/repos/{owner}/{repo}/installation",
        "/repos/{owner}/{repo}/pulls/{pull_number}/files",
    )

    def __init__(self) -> None:
        self._api = json.loads((NODE / "openapi" / "generated" / "api.github.com.json").read_text())
        self._patterns = {
            template: re.compile(re.sub(r"\\{\w+\\}", r"[^/]+", re.escape(template))) for template in self.TEMPLATES
        }

    def operation(self, call: Call) -> tuple[str, dict[str, Any]]:
        """Template and description of the operation behind a call."""
        (template,) = [name for name, pattern in self._patterns.items() if pattern.fullmatch(call.path)]
        return template, self._api["paths"][template][call.method.lower()]

    def check(self, call: Call) -> None:
        """Assert that method, path, query, headers and body are as GitHub describes them."""
        _, operation = self.operation(call)
        described = [self._resolved(parameter) for parameter in operation.get("parameters", [])]
        queries = {one["name"]: one["schema"] for one in described if one["in"] == "query"}
        for name, (value,) in call.query.items():
            assert name in queries, f"{call.method} {call.path} takes no parameter {name!r}"
            if queries[name].get("type") == "integer":
                assert value.isdigit(), f"{call.method} {call.path}: {name} is {value!r}"
        content = self._resolved(operation.get("requestBody", {})).get("content", {})
        if call.body is not None:
            schema = content["application/json"]["schema"]
            jsonschema.validate(call.body, {**schema, "components": self._api["components"]})
        assert call.headers["x-github-api-version"]
        assert call.headers["accept"] == "application/vnd.github+json"

    def _resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in node:
            return node
        found: Any = self._api
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)


# --- the relay ------------------------------------------------------------------------------------------------------

ALLOWLIST = """\
L1: [org1/repo1]
L2:
  - org2/repo2
L3:
  spyre:
    org3/repo3: [oncall1, oncall2]
L4:
  - org4/repo4: [oncall1]
"""

PIPELINE = "0190-org/0190-pipe"


def issuer(peer: Peer) -> str:
    return f"{peer.url}/issuer"


def settings_for(peer: Peer, database_url: str, allowlist: str, app_key: str, **more: Any) -> dict[str, Any]:
    return {
        "database_url": database_url,
        "upstream_repo": UPSTREAM,
        "webhook_secret": WEBHOOK_SECRET,
        "github_api_url": peer.url,
        "github_app_id": "4242",
        "github_private_key": app_key,
        "allowlist": allowlist,
        "allowlist_ttl_seconds": 0,
        "hud_url": peer.url,
        "hud_key": HUD_KEY,
        "poll_interval_seconds": 0.05,
        "sweep_interval_seconds": 3600,
        "client_rate_burst": 100_000,
        "rate_burst": 100_000,
        "oidc_issuers": [
            {"issuer": issuer(peer), "jwks_url": f"{peer.url}/jwks/github"},
            {
                "issuer": "https://agent.buildkite.com",
                "jwks_url": f"{peer.url}/jwks/buildkite",
                "identity": ["organization_id", "pipeline_id"],
                "pipelines": {PIPELINE: {"repository": "org2/repo2", "required_claims": {"build_branch": ["main"]}}},
            },
        ],
        **more,
    }


class Running:
    """A relay in this process, on a real socket, in a thread with its own event loop."""

    def __init__(self, settings: Settings, **how: Any):
        self.settings = settings
        self.peer: Peer | None = None
        self.key: Key | None = None
        self.app = create_app(settings, **how)
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, log_config=None, access_log=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_for(lambda: self.server.started or not self.thread.is_alive(), 30, "the relay starts")
        assert self.server.started, "the relay ended at its start"
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        self.http = httpx.Client(base_url=self.url, timeout=30, verify=TRUST)

    @property
    def database(self) -> Any:
        return self.app.state.service.database

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(30)

    def webhook(
        self, event: str, payload: Any, *, delivery: str | None = None, secret: str = WEBHOOK_SECRET, **headers: str
    ) -> httpx.Response:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        sent = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or str(uuid.uuid4()),
            "X-Hub-Signature-256": sign(body, secret),
            "Content-Type": "application/json",
            **headers,
        }
        return self.http.post("/github/webhook", content=body, headers=sent)

    def callback(self, token: str | None, body: Any) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post("/github/callback", content=content, headers=headers)


@dataclass
class Minter:
    """Makes OIDC tokens as a CI's token service does."""

    issuer: str
    key: Key

    def claims(self, repository: str | None, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": f"repo:{repository}:ref:refs/heads/main",
            "repository": repository,
            "iat": now,
            "nbf": now,
            "exp": now + 300,
            "jti": uuid.uuid4().hex,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, repository: str | None, *, key: Key | None = None, headers: dict[str, Any] | None = None, **changes: Any
    ) -> str:
        key = key or self.key
        claims = self.claims(repository, **changes)
        return jwt.encode(claims, key.private, algorithm=key.algorithm, headers={"kid": key.id, **(headers or {})})


# --- messages -------------------------------------------------------------------------------------------------------


def push(ref: str = "refs/heads/main", after: str = HEAD, **more: Any) -> dict[str, Any]:
    return {
        "ref": ref,
        "before": BASE,
        "after": after,
        "deleted": False,
        "commits": [],
        "repository": {"full_name": UPSTREAM},
        **more,
    }


def dispatch_of(peer: Peer, repo: str, delivery: str | None = None) -> dict[str, Any]:
    """The client_payload that a repository got."""

    def find() -> dict[str, Any] | None:
        for call in peer.dispatched():
            payload = call.body["client_payload"]
            if call.path == f"/repos/{repo}/dispatches" and delivery in {None, payload["delivery_id"]}:
                return payload
        return None

    return wait_for(find, what=f"{repo} gets a dispatch")
