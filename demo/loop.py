"""The flow of the demo: a base run, two pull requests, and what the HUD says about them."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from demo.pulls import pulls_for
from demo.services import DemoError, Service, Services, free_port
from demo.upstream import Repository, Tree, find_tree, make_downstream, make_upstream

UPSTREAM = "pytorch/pytorch"
DOWNSTREAM = "spyre-conformance/spyre-conformance"
LEVEL = "L4"
APP_ID = 4711
JOB_MINUTES = 30
_POLL_SECONDS = 1.0
_TELL_SECONDS = 15.0  # between two lines of progress
_REPORT_SECONDS = 60.0  # from the end of a run until HUD has its report
_LOG_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Places:
    """Where one demo keeps its things.

    Attributes:
        checkout: root of this project.
        work: emptied at every start; databases, logs, keys, workspaces, ``summary.json``.
        cache: kept between demos; the upstream repository.
    """

    checkout: Path
    work: Path
    cache: Path


@dataclass(frozen=True)
class Addresses:
    """Base URLs of the three servers."""

    relay: str
    hud: str
    github: str


@dataclass(frozen=True)
class Opened:
    """A pull request that was announced."""

    number: int
    head_sha: str
    title: str
    url: str


def write_configuration(
    places: Places, at: Addresses, upstream: Repository, downstream: Repository, variables: Mapping[str, str]
) -> list[Service]:
    """Keys, secrets and settings of the three servers; they exist only for this demo.

    Returns:
        The services, in the order in which one needs the other.
    """
    places.work.joinpath("keys").mkdir(parents=True, exist_ok=True)
    private = places.work / "keys" / "app.pem"
    public = places.work / "keys" / "app.pub.pem"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    private.chmod(0o600)

    allowlist = places.work / "allowlist.yml"
    allowlist.write_text(f"{LEVEL}:\n  - {DOWNSTREAM}\n")
    issuers = places.work / "issuers.json"
    issuer = f"{at.github}/_services/token"
    issuers.write_text(
        json.dumps([{"issuer": issuer, "jwks_url": f"{issuer}/.well-known/jwks", "identity": ["repository"]}])
    )
    webhook_secret, hud_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)

    emulator = places.work / "emulator.toml"
    variables = {"TORCH_SOURCE": "installed", "RELAY_CALLBACK_URL": f"{at.relay}/github/callback", **variables}
    here = Path(sys.executable).parent
    emulator.write_text(
        tomli_w.dumps(
            {
                "data_dir": str(places.work / "github"),
                "upstream": UPSTREAM,
                "app": {
                    "id": APP_ID,
                    "public_key_file": str(public),
                    "webhook_url": f"{at.relay}/github/webhook",
                    "webhook_secret": webhook_secret,
                },
                "repositories": [
                    {"name": UPSTREAM, "path": str(upstream.path)},
                    {"name": DOWNSTREAM, "path": str(downstream.path), "variables": variables},
                ],
                # One job at a time: each runs as many test processes as the machine has room for.
                "runner": {
                    "concurrency": 1,
                    "path": [str(here)],
                    "python": sys.executable,
                    "env": runner_environment(),
                },
            }
        )
    )
    base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    database = "sqlite:///" + str(places.work)
    relay_env = {
        "RELAY_DATABASE_URL": f"{database}/relay.sqlite",
        "RELAY_UPSTREAM_REPO": UPSTREAM,
        "RELAY_WEBHOOK_SECRET": webhook_secret,
        "RELAY_GITHUB_API_URL": at.github,
        "RELAY_GITHUB_APP_ID": str(APP_ID),
        "RELAY_GITHUB_PRIVATE_KEY_FILE": str(private),
        "RELAY_ALLOWLIST": str(allowlist),
        "RELAY_OIDC_ISSUERS_FILE": str(issuers),
        "RELAY_HUD_URL": at.hud,
        "RELAY_HUD_KEY": hud_key,
        "RELAY_REQUIRE_CALLBACK_TOKEN": "true",
        "RELAY_LOG_FORMAT": "text",
        "RELAY_CALLBACK_TOKEN_SECRET": secrets.token_urlsafe(32),
    }
    hud_env = {
        "HUD_DATABASE_URL": f"{database}/hud.sqlite",
        "HUD_INGEST_KEY": hud_key,
        "HUD_ALLOWLIST": str(allowlist),
    }

    def service(name: str, module: list[str], url: str, ready: str, env: dict[str, str]) -> Service:
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", *module, "--host", "127.0.0.1", "--port", port]
        return Service(name, command, url, ready, {**base, **env}, places.work / "logs" / f"{name}.log")

    local_github = ["relay", "emulator", "serve", "--settings", str(emulator)]
    return [
        service("hud", ["hud", "serve"], at.hud, "/readyz", hud_env),
        service("github", local_github, at.github, "/_emulator/runs", {}),
        service("relay", ["relay", "serve"], at.relay, "/healthz", relay_env),
    ]


def runner_environment() -> dict[str, str]:
    """What a job inherits besides the path: where a person's caches are, so that nothing is fetched twice."""
    return {name: os.environ[name] for name in ("HOME", "LANG", "XDG_CACHE_HOME") if name in os.environ}


class Loop:
    """One demo, from an empty folder to the page that answers."""

    def __init__(
        self, places: Places, say: Say, tree: Tree | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Prepare it.

        Args:
            places: its folders.
            say: receives a line of progress at a time.
            tree: the upstream tree; by default the real one that ``conformance fetch`` brings.
            variables: configuration variables of the downstream repository, besides those that every demo needs.
        """
        self.places = places
        self.say = say
        self.tree = tree
        self.variables = dict(variables or {})
        self.at = Addresses(*(f"http://127.0.0.1:{free_port()}" for _ in range(3)))
        self.started = time.monotonic()

    def run(self, services: Services) -> dict[str, Any]:
        """Play it; the servers keep running in ``services``.

        Returns:
            The content of ``summary.json``.
        """
        if self.tree is None:
            self.say("upstream: looking for a real PyTorch tree …")
        tree = self.tree or find_tree()
        if tree.note:
            self.say(f"upstream: no real tree can be had here ({tree.note}); going on with the bundled small one")
        self.say(f"upstream: PyTorch {tree.version}, {tree.source}; committing it the first time takes a moment …")
        upstream, base_sha = make_upstream(tree, self.places.cache)
        self.say(f"upstream: base commit {base_sha[:12]}")
        pulls = pulls_for(tree.source)
        for hours, pull in enumerate(pulls, start=1):
            upstream.commit_edit(base_sha, pull, hours)
        downstream = make_downstream(self.places.checkout, self.places.work / "downstream.git")

        at = self.at
        services.start(*write_configuration(self.places, at, upstream, downstream, self.variables))
        self.say(f"services: hud {at.hud}   relay {at.relay}   local GitHub {at.github}")

        github = httpx.Client(base_url=at.github, timeout=30.0)
        hud = httpx.Client(base_url=at.hud, timeout=30.0)
        self.say("base: push to main announced by a signed webhook")
        _ok(github.post("/_emulator/push", json={"ref": "refs/heads/main"}))
        base_run = self._wait(services, github, "base", 1)[0]

        opened = []
        for pull in pulls:
            answer = _ok(
                github.post("/_emulator/pulls", json={"head_ref": pull.branch, "base_ref": "main", "title": pull.title})
            )
            opened.append(Opened(answer["number"], answer["head_sha"], pull.title, f"{at.hud}/pr/{answer['number']}"))
            self.say(f"pull request #{answer['number']}: {pull.title}")
        self._wait(services, github, "pull requests", 1 + len(opened))
        verdicts = [self._verdict(services, hud, pull) for pull in opened]
        summary = self._summary(tree, base_run, opened, verdicts, github)
        (self.places.work / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary

    def _wait(self, services: Services, github: httpx.Client, what: str, runs: int) -> list[dict[str, Any]]:
        """Wait until ``runs`` workflow runs have ended, telling what they print meanwhile; gives them, oldest first."""
        deadline = time.monotonic() + 60 * JOB_MINUTES * runs
        told, told_at = "", 0.0
        while time.monotonic() < deadline:
            services.check()
            found: list[dict[str, Any]] = _ok(github.get("/_emulator/runs"))
            if len(found) >= runs and all(run["status"] == "completed" for run in found):
                return found
            line = self._last_line(github, found)
            # Every new line on a terminal would scroll the rest away, and silence looks like a hang.
            if line and line != told and time.monotonic() - told_at >= _TELL_SECONDS:
                self.say(f"{what}: {line}")
                told, told_at = line, time.monotonic()
            time.sleep(_POLL_SECONDS)
        raise DemoError(f"{what}: no end after {JOB_MINUTES * runs} minutes; logs are in {self.places.work}.")

    def _last_line(self, github: httpx.Client, runs: list[dict[str, Any]]) -> str:
        """The newest line that the running job printed itself, without time and markers of GitHub's log format."""
        running = [run for run in runs if run["status"] == "in_progress"]
        if not running:
            return ""
        log = github.get(f"/{DOWNSTREAM}/actions/runs/{running[0]['id']}/logs").text
        lines = (_LOG_TIME.sub("", line).strip() for line in reversed(log.splitlines()))
        return next((line[:110] for line in lines if line and not line.startswith("##[")), "")

    def _verdict(self, services: Services, hud: httpx.Client, pull: Opened) -> dict[str, Any]:
        """HUD's answer about one pull request, once every report of its finished run has arrived there."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while True:
            services.check()
            answer = hud.get(f"/api/v1/pr/{pull.number}")
            if answer.status_code == 200:
                verdict: dict[str, Any] = answer.json()
                if verdict["verdict"] not in ("running", "not reported"):
                    return verdict
            if time.monotonic() > deadline:
                raise DemoError(
                    f"HUD has no result of pull request #{pull.number} a minute after its run ended "
                    f"(HTTP {answer.status_code}: {answer.text[:200]}); logs are in {self.places.work}/logs."
                )
            time.sleep(0.5)

    def _summary(
        self,
        tree: Tree,
        base_run: dict[str, Any],
        opened: list[Opened],
        verdicts: list[dict[str, Any]],
        github: httpx.Client,
    ) -> dict[str, Any]:
        """What ``summary.json`` says, from what the services recorded, not from what was asked of them."""
        evidence = _evidence(base_run)
        conformance = json.loads((evidence / "summary.json").read_text())
        results = [json.loads(line) for line in (evidence / "results.jsonl").read_text().splitlines()]
        files = {row["file"] for row in results}
        not_imported = {row["file"] for row in results if row["outcome"] == "error" and row["phase"] == "collect"}
        dispatches = _ok(github.get("/_emulator/ledger", params={"method": "POST", "path": "/repos/*/dispatches"}))
        callbacks = _metric(httpx.get(f"{self.at.relay}/metrics").text, "relay_callbacks_total")
        return {
            "prs": [
                {
                    "number": pull.number,
                    "title": pull.title,
                    "head_sha": pull.head_sha,
                    "verdict": verdict["verdict"],
                    "new_failures": [name for row in verdict["backends"] for name in row["new_failures"]],
                    "url": pull.url,
                }
                for pull, verdict in zip(opened, verdicts, strict=True)
            ],
            "upstream": {
                "source": tree.source,
                "version": tree.version,
                "files": len(files),
                "import_failures": len(not_imported),
            },
            "conformance": {
                "planned": conformance["planned"],
                **conformance["outcomes"],
                "balanced": conformance["balanced"],
            },
            "relay": {
                "deliveries": len(_ok(github.get("/_emulator/deliveries"))),
                "dispatches": sum(200 <= call["status"] < 300 for call in dispatches),
                "callbacks": int(callbacks),
            },
            "seconds": round(time.monotonic() - self.started, 1),
        }


def _ok(answer: httpx.Response) -> Any:
    """The JSON of an answer.

    Raises:
        DemoError: the server refused; the text holds its words.
    """
    if answer.is_error:
        raise DemoError(f"{answer.request.method} {answer.request.url}: HTTP {answer.status_code}: {answer.text[:500]}")
    return answer.json()


def _evidence(run: dict[str, Any]) -> Path:
    """Folder of the run's artifact that holds the conformance results.

    Raises:
        DemoError: the run left none, so it failed before or in the tests.
    """
    for artifact in run["artifacts"]:
        for found in Path(artifact["path"]).rglob("results.jsonl"):
            return found.parent
    raise DemoError(f"the base run left no results (it ended as {run['conclusion']}); its log is at {run['url']}")


def _metric(text: str, name: str) -> float:
    """Sum of a counter over its labels, from the Prometheus text format."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))
