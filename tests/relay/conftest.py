"""Fixtures of the relay's tests; the parts they are made of are in ``relay_parts``."""

# ruff: noqa: E402
from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

# Tests are imported by file, so what they share is found by path only.
_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parents[1] / "benchmarks" / "relay")]

from postgres_cluster import PostgresCluster
from relay_parts import ALLOWLIST, GitHubApi, Key, Minter, Peer, Running, issuer, settings_for
from relay_site import TRUST, Process, free_port, wait_for

from relay.app.settings import load


@pytest.fixture(scope="session")
def rsa_key() -> Key:
    return Key("rsa-1", rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256")


@pytest.fixture(scope="session")
def ec_key() -> Key:
    return Key("ec-1", ec.generate_private_key(ec.SECP256R1()), "ES256")


@pytest.fixture(scope="session")
def stranger_key() -> Key:
    return Key("rsa-1", rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256")


@pytest.fixture(scope="session")
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Every test that takes it runs on both databases."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'relay.db'}"
    else:
        with request.getfixturevalue("cluster").database() as url:
            yield url


@pytest.fixture(scope="session")
def github_api() -> GitHubApi:
    return GitHubApi()


@pytest.fixture
def peer(rsa_key: Key, ec_key: Key, github_api: GitHubApi) -> Iterator[Peer]:
    """The peer; at a test's end the first three requests of each kind to GitHub are held against its description."""
    made = Peer()
    made.jwks["github"] = [rsa_key.jwk, ec_key.jwk]
    made.jwks["buildkite"] = [rsa_key.jwk]
    yield made
    made.close()
    seen: Counter[tuple[str, str]] = Counter()
    for call in made.calls:
        if call.path.startswith(("/repos/", "/app")):
            template, _ = github_api.operation(call)
            seen[call.method, template] += 1
            if seen[call.method, template] <= 3:
                github_api.check(call)


@pytest.fixture
def allowlist_file(tmp_path: Path) -> Path:
    path = tmp_path / "allowlist.yml"
    path.write_text(ALLOWLIST)
    return path


@pytest.fixture
def start(
    peer: Peer, database_url: str, allowlist_file: Path, rsa_key: Key, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    """Start relays on the test's database; they are stopped at its end."""
    for name in [name for name in os.environ if name.startswith("RELAY_")]:
        monkeypatch.delenv(name)
    running: list[Running] = []

    def begin(*, workers: bool = True, endpoints: bool = True, **more: Any) -> Running:
        values = settings_for(peer, database_url, str(allowlist_file), rsa_key.pem, **more)
        relay = Running(load(**values), workers=workers, endpoints=endpoints)
        running.append(relay)
        return relay

    yield begin
    for relay in running:
        relay.stop()


@pytest.fixture
def relay(start: Callable[..., Running]) -> Running:
    return start()


@pytest.fixture
def mint(peer: Peer, rsa_key: Key) -> Minter:
    return Minter(issuer(peer), rsa_key)


@pytest.fixture
def spawn(
    peer: Peer, database_url: str, allowlist_file: Path, rsa_key: Key, tmp_path: Path
) -> Iterator[Callable[..., Process]]:
    """Start relay processes on the test's database; they are killed at its end."""
    started: list[Process] = []

    def begin(*command: str, **more: Any) -> Process:
        values = settings_for(peer, database_url, str(allowlist_file), rsa_key.pem, **more)
        env = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        for name, value in values.items():
            env[f"RELAY_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
        port = free_port()
        arguments = [*command]
        if command[0] == "serve":
            arguments += ["--port", str(port)]
        log = tmp_path / f"relay-{len(started)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen([sys.executable, "-m", "relay", *arguments], env=env, stderr=out, stdout=out)
        process = Process(popen, f"http://127.0.0.1:{port}", log)
        started.append(process)
        if command[0] == "serve":

            def up() -> bool:
                assert popen.poll() is None, log.read_text()
                with contextlib.suppress(httpx.HTTPError):
                    return httpx.get(process.url + "/healthz", verify=TRUST).status_code == 200
                return False

            wait_for(up, 120, "relay serve answers")
        return process

    yield begin
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def shared(rsa_key: Key, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One relay on SQLite for all tests that only look at an answer."""
    directory = tmp_path_factory.mktemp("shared")
    (directory / "allowlist.yml").write_text(ALLOWLIST)
    peer = Peer()
    peer.jwks["github"] = [rsa_key.jwk]
    url, allowlist = f"sqlite:///{directory / 'relay.db'}", str(directory / "allowlist.yml")
    relay = Running(load(**settings_for(peer, url, allowlist, rsa_key.pem)))
    relay.peer, relay.key = peer, rsa_key
    yield relay
    relay.stop()
    peer.close()
