"""A relay's whole surroundings as processes: the local GitHub, a real HUD, and relays that can be killed.

For tests and benchmarks in which processes die or are measured, with the messages that all of the relay's tests send.
Nothing here knows the inside of any of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

UPSTREAM = "pytorch/pytorch"
WEBHOOK_SECRET = "webhook-secret-of-the-site"
HUD_KEY = "hud-key-of-the-site"
APP_ID = 4242
HEAD = "a" * 40
BASE = "b" * 40
TRUST = httpx.create_ssl_context()  # costs 0.1 s to make; plain HTTP never looks at it
_START_SECONDS = 60


@dataclass
class Process:
    """A server in a process of its own."""

    popen: subprocess.Popen[bytes]
    url: str
    log: Path

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal that ends it, and wait for the end."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        self.popen.wait(30)

    def memory(self) -> float:
        """Resident set in MiB."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) / 1024

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        user, system = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Site:
    """Use it as a context manager.

    Attributes:
        allowlist: text of the allowlist; its repositories are those of the local GitHub.
        repositories: ``owner/name`` of every downstream repository.
        database_url: of the relays.
        hud_url: where reports go; :meth:`start_hud` sets it.
    """

    allowlist: str
    repositories: list[str]
    database_url: str = ""
    hud_url: str = ""
    directory: Path = field(default_factory=Path)
    github: Process | None = None
    processes: list[Process] = field(default_factory=list)

    def __enter__(self) -> Site:
        self._temporary = tempfile.TemporaryDirectory(prefix="relay-site-")
        self.directory = Path(self._temporary.name)
        self.database_url = self.database_url or f"sqlite:///{self.directory / 'relay.db'}"
        (self.directory / "allowlist.yml").write_text(self.allowlist)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.directory / "app.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (self.directory / "app.pub.pem").write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        self._temporary.cleanup()

    # -- the others

    def start_github(self) -> Process:
        """The local GitHub, without commits and workflows: it takes dispatches and check runs."""
        lines = [
            'data_dir = "github"',
            f'upstream = "{UPSTREAM}"',
            "[app]",
            f"id = {APP_ID}",
            'public_key_file = "app.pub.pem"',
            f'webhook_secret = "{WEBHOOK_SECRET}"',
        ]
        for name in [UPSTREAM, *self.repositories]:
            lines += ["[[repositories]]", f'name = "{name}"']
        settings = self.directory / "emulator.toml"
        settings.write_text("\n".join(lines) + "\n")
        self.github = self._serve("github", ["relay", "emulator", "serve", "--settings", str(settings)], {})
        return self.github

    def start_hud(self) -> Process:
        """A real HUD on SQLite."""
        env = {"HUD_DATABASE_URL": f"sqlite:///{self.directory / 'hud.db'}", "HUD_INGEST_KEY": HUD_KEY}
        hud = self._serve("hud", ["hud", "serve"], env)
        self.hud_url = hud.url
        return hud

    def ledger(self, path: str = "*", after: int = 0, **filters: Any) -> list[dict[str, Any]]:
        """Calls that the local GitHub got, in the order in which they ended, after the one of that id."""
        assert self.github is not None
        parameters = {"path": path, "after": after, "limit": 1_000_000, **filters}
        url = f"{self.github.url}/_emulator/ledger"
        calls: list[dict[str, Any]] = (
            httpx.get(url, params=parameters, timeout=60, verify=TRUST).raise_for_status().json()
        )
        return calls

    def dispatches(self, after: int = 0) -> list[dict[str, Any]]:
        """Dispatches that GitHub accepted."""
        return self.ledger("/repos/*/dispatches", after, method="POST", status=204)

    def fault(self, **fault: Any) -> None:
        """Make the local GitHub misbehave."""
        assert self.github is not None
        httpx.post(f"{self.github.url}/_emulator/faults", json=fault, verify=TRUST).raise_for_status()

    def token(self, repository: str, seconds: int = 3600) -> str:
        """An OIDC token of a job of that repository."""
        assert self.github is not None
        now = int(time.time())
        body = {
            "repository": repository,
            "audience": "pytorch-cross-repo-ci-relay",
            "claims": {"iat": now, "exp": now + seconds},
        }
        answer = httpx.post(f"{self.github.url}/_emulator/oidc/token", json=body, verify=TRUST).raise_for_status()
        return str(answer.json()["token"])

    # -- the relay

    def relay_environment(self, **settings: Any) -> dict[str, str]:
        """Settings of a relay in these surroundings, as environment variables."""
        assert self.github is not None
        issuer = f"{self.github.url}/_services/token"
        values: dict[str, Any] = {
            "database_url": self.database_url,
            "upstream_repo": UPSTREAM,
            "webhook_secret": WEBHOOK_SECRET,
            "callback_token_secret": "callback-token-secret-of-the-site",
            "github_api_url": self.github.url,
            "github_app_id": APP_ID,
            "github_private_key_file": self.directory / "app.pem",
            "allowlist": self.directory / "allowlist.yml",
            "oidc_issuers": [{"issuer": issuer, "jwks_url": f"{issuer}/.well-known/jwks"}],
            # One address plays every job here.
            "client_rate_burst": 1_000_000,
            "client_rate_per_minute": 10_000_000,
            "rate_burst": 1_000_000,
            "rate_per_minute": 10_000_000,
            **({"hud_url": self.hud_url, "hud_key": HUD_KEY} if self.hud_url else {}),
            **settings,
        }
        return {
            f"RELAY_{name.upper()}": json.dumps(value) if isinstance(value, (list, dict)) else str(value)
            for name, value in values.items()
        }

    def start_relay(self, *command: str, **settings: Any) -> Process:
        """``relay serve …`` or ``relay worker``, up and answering."""
        return self._serve(command[0], ["relay", *command], self.relay_environment(**settings))

    def _serve(self, name: str, command: list[str], env: Mapping[str, str]) -> Process:
        # A port of the ephemeral range may be taken by an outgoing connection before the server listens; try again.
        for _ in range(5):
            port = free_port()
            arguments = [*command, "--port", str(port)] if "serve" in command else command
            log = self.directory / f"{name}-{uuid.uuid4().hex[:6]}.log"
            with log.open("wb") as output:
                clean = {key: value for key, value in os.environ.items() if not key.startswith(("RELAY_", "HUD_"))}
                popen = subprocess.Popen(
                    [sys.executable, "-m", *arguments], env={**clean, **env}, stdout=output, stderr=output
                )
            process = Process(popen, f"http://127.0.0.1:{port}", log)
            self.processes.append(process)
            if "serve" not in command or _answers(process, "/_emulator/faults" if name == "github" else "/healthz"):
                return process
        raise AssertionError(f"{' '.join(command)} did not start:\n{log.read_text()[-3000:]}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(process: Process, path: str) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.popen.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(process.url + path, verify=TRUST).status_code == 200:
                return True
        time.sleep(0.05)
    return False


def wait_for(condition: Callable[[], Any], seconds: float = 20, what: str = "", *, pause: float = 0.02) -> Any:
    """Poll until the condition is true; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen within {seconds} s: {what or condition}"
        time.sleep(pause)
    return value


def pull_request(
    action: str = "opened",
    number: int = 7,
    head: str = HEAD,
    labels: tuple[str, ...] = (),
    *,
    filler: int = 4,
    updated_at: str = "2026-01-01T00:00:00Z",
    **more: Any,
) -> dict[str, Any]:
    """A pull_request event, as far as the relay reads it; the recorded examples test the full shape.

    Args:
        filler: bytes of description, which bring the body to a size as recorded ones have.
        more: further members of the event.
    """
    return {
        "action": action,
        "number": number,
        "repository": {"full_name": UPSTREAM},
        "pull_request": {
            "number": number,
            "title": "Improve conv2d backward",
            "body": "x" * filler,
            "user": {"login": "octocat"},
            "labels": [{"name": name} for name in labels],
            "updated_at": updated_at,
            "head": {"sha": head, "ref": "topic", "repo": {"full_name": "octocat/pytorch"}},
            "base": {"sha": BASE, "ref": "main", "repo": {"full_name": UPSTREAM}},
        },
        **more,
    }


def report(client_payload: dict[str, Any], status: str = "in_progress", **workflow: Any) -> dict[str, Any]:
    """A callback's body from a dispatched client_payload."""
    fields = {
        "schema_version": "1",
        "status": status,
        "name": "CI",
        "url": "https://example.invalid/run",
        "run_id": "123",
        "run_attempt": "1",
        "job_name": "build",
    }
    if status == "completed":
        fields |= {"conclusion": "success", "test_results": {"passed": 42, "failed": 0, "skipped": 5}}
    return {**client_payload, "workflow": {**fields, **workflow}}
