"""What operators rely on: settings, commands, migrations, leases, logs without secrets, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from relay_parts import HUD_KEY, WEBHOOK_SECRET, Key, Minter, Peer, Running, dispatch_of, sqlite_only
from relay_site import Process, pull_request, report, wait_for

from relay.app.settings import ConfigurationError, load
from relay.store import tasks as outbox
from relay.store.database import Database
from relay.store.schema import metadata


def relay_command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    command = [sys.executable, "-m", "relay", *arguments]
    return subprocess.run(
        command, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=120, check=False
    )


def test_migrations_make_the_declared_schema(database_url: str) -> None:
    database = Database(database_url)
    database.migrate()
    database.migrate()
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.close()


@pytest.fixture
def database(database_url: str) -> Any:
    made = Database(database_url)
    made.migrate()
    yield made
    made.close()


def new(key: str, **more: Any) -> outbox.NewTask:
    return outbox.NewTask(key, "hud", "d", "a/b", key, 1e12, **more)


def test_a_lease_is_exclusive_until_it_runs_out(database: Database) -> None:
    with database.transaction() as connection:
        outbox.enqueue(connection, [new(str(number)) for number in range(10)], now=0)
    lease = {"kinds": ("hud",), "seconds": 10, "limit": 6}
    first = database.call(lambda connection: outbox.lease(connection, owner="one", now=1, **lease))
    second = database.call(lambda connection: outbox.lease(connection, owner="two", now=1, **lease))
    assert (len(first), len(second)) == (6, 4)
    assert not {task.id for task in first} & {task.id for task in second}
    assert database.call(lambda connection: outbox.lease(connection, owner="three", now=5, **lease)) == []
    third = database.call(lambda connection: outbox.lease(connection, owner="three", now=12, **lease))
    assert [task.attempts for task in third] == [2] * 6
    held = database.call(lambda connection: outbox.finish(connection, [third[0]], owner="one", now=12))
    assert held == 0, "whose lease ran out does not finish another's task"
    assert database.call(lambda connection: outbox.finish(connection, [third[0]], owner="three", now=12)) == 1


def test_queueing_twice_is_queueing_once_and_never_loses_a_wish(database: Database) -> None:
    def counts() -> dict[tuple[str, str], int]:
        return database.call(outbox.counts)

    database.call(lambda connection: outbox.enqueue(connection, [new("x")], now=0))
    database.call(lambda connection: outbox.enqueue(connection, [new("x")], now=1))
    assert counts() == {("hud", "ready"): 1}
    (task,) = database.call(
        lambda connection: outbox.lease(connection, ("hud",), owner="w", now=2, seconds=60, limit=5)
    )
    database.call(lambda connection: outbox.enqueue(connection, [new("x", data="newer")], now=3))
    assert database.call(lambda connection: outbox.finish(connection, [task], owner="w", now=4)) == 1
    assert counts() == {("hud", "ready"): 1}, "the wish that came during the work is still owed"
    (task,) = database.call(
        lambda connection: outbox.lease(connection, ("hud",), owner="w", now=5, seconds=60, limit=5)
    )
    assert task.data == "newer"
    database.call(lambda connection: outbox.bury(connection, task, owner="w", now=6, error="no"))
    assert database.call(lambda connection: outbox.revive(connection, now=7, give_up_at=1e12)) == 1
    assert counts() == {("hud", "ready"): 1}


def test_settings_report_every_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RELAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELAY_UPSTREAM_REPO", "no-slash")
    monkeypatch.setenv("RELAY_RATE_BURST", "many")
    monkeypatch.setenv("RELAY_HUD_URL", "ftp://x")
    with pytest.raises(ConfigurationError) as error:
        load()
    for name in ("UPSTREAM_REPO", "RATE_BURST", "HUD_URL", "WEBHOOK_SECRET", "GITHUB_APP_ID", "ALLOWLIST"):
        assert f"RELAY_{name}: " in str(error.value)


def test_settings_from_toml_and_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rsa_key: Key) -> None:
    for name in [name for name in os.environ if name.startswith("RELAY_")]:
        monkeypatch.delenv(name)
    (tmp_path / "app.pem").write_text(rsa_key.pem)
    (tmp_path / "secret").write_text("from-a-file\n")
    (tmp_path / "issuers.yml").write_text("- {issuer: https://x.example, jwks_url: https://x.example/jwks}\n")
    (tmp_path / "relay.toml").write_text(
        f'upstream_repo = "a/b"\nallowlist = "x.yml"\ngithub_app_id = "1"\nrate_burst = 7\n'
        f'github_private_key_file = "{tmp_path / "app.pem"}"\noidc_issuers_file = "{tmp_path / "issuers.yml"}"\n'
    )
    monkeypatch.setenv("RELAY_CONFIG_FILE", str(tmp_path / "relay.toml"))
    monkeypatch.setenv("RELAY_WEBHOOK_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("RELAY_RATE_BURST", "9")
    settings = load()
    assert settings.webhook_secret.get_secret_value() == "from-a-file"
    assert settings.rate_burst == 9, "the environment comes before the file"
    assert settings.oidc_issuers[0].identity == ["repository"]
    assert "from-a-file" not in repr(settings)
    (tmp_path / "relay.toml").write_text('upstream_repo = "a/b"\nrate_brust = 7\n')
    with pytest.raises(ConfigurationError, match="rate_brust"):
        load()


def test_allowlist_lint_command(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text("L1: [a/b]\n")
    bad.write_text("L1: [a/b]\nL2: [A/B]\n")
    assert relay_command("allowlist", "lint", str(good)).returncode == 0
    done = relay_command("allowlist", "lint", str(bad))
    assert (done.returncode, done.stdout.startswith(f"{bad}:2: ")) == (1, True)
    assert relay_command("allowlist", "lint", str(tmp_path / "none.yml")).returncode == 2


def test_serve_without_settings_says_what_is_missing() -> None:
    done = relay_command("serve")
    assert done.returncode == 2
    assert "RELAY_WEBHOOK_SECRET" in done.stderr and "Traceback" not in done.stderr


@sqlite_only
def test_dead_letters_are_listed_and_revived(
    relay: Running, peer: Peer, database_url: str, tmp_path: Path, rsa_key: Key
) -> None:
    peer.fail("/repos/org2/repo2/dispatches", status=422)
    relay.webhook("pull_request", pull_request(), delivery="d-1")

    def dead() -> Any:
        with relay.database.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT id FROM tasks WHERE state = 'dead'").scalar()

    wait_for(dead)
    (tmp_path / "app.pem").write_text(rsa_key.pem)
    env = {
        "RELAY_DATABASE_URL": database_url,
        "RELAY_UPSTREAM_REPO": "pytorch/pytorch",
        "RELAY_WEBHOOK_SECRET": "x",
        "RELAY_GITHUB_APP_ID": "1",
        "RELAY_GITHUB_PRIVATE_KEY_FILE": str(tmp_path / "app.pem"),
        "RELAY_ALLOWLIST": "unused",
    }
    listed = json.loads(relay_command("tasks", "list", "--state", "dead", "--json", env=env).stdout)
    assert [(task["repo"], "422" in task["error"]) for task in listed] == [("org2/repo2", True)]
    shown = json.loads(relay_command("deliveries", "show", "d-1", env=env).stdout)
    assert sorted(dispatch["state"] for dispatch in shown["dispatches"]) == ["failed", "sent", "sent", "sent"]
    assert "1 of 4" in relay_command("deliveries", "replay", "d-1", env=env).stdout
    wait_for(lambda: len(peer.dispatched()) == 4)
    assert relay_command("deliveries", "show", "nothing", env=env).returncode == 1
    assert json.loads(relay_command("deliveries", "list", "--json", env=env).stdout)[0]["id"] == "d-1"


@sqlite_only
def test_no_secret_in_logs(
    spawn: Callable[..., Process], peer: Peer, mint: Minter, rsa_key: Key, database_url: str
) -> None:
    """Everything goes wrong once, at the most talkative level; no secret is among the words."""
    import httpx
    from relay_site import TRUST

    from relay.core.signature import sign

    process = spawn("serve", log_level="debug", callback_token_secret="callback-token-secret-of-the-tests")
    peer.fail("/repos/org1/repo1/dispatches", status=500)
    peer.fail("/repos/org3/repo3/dispatches", status=204, drop=True)
    peer.fail("/app/installations", status=500)
    http = httpx.Client(base_url=process.url, verify=TRUST)
    body = json.dumps(pull_request()).encode()
    headers = {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": "d-1"}
    signature = sign(body, WEBHOOK_SECRET)
    assert http.post("/github/webhook", content=body, headers={**headers, "X-Hub-Signature-256": signature}).is_success
    http.post("/github/webhook", content=body, headers={**headers, "X-Hub-Signature-256": "sha256=wrong"})
    payload = dispatch_of(peer, "org2/repo2")
    peer.fail("/api/crcr/results", status=500)
    tokens = [mint.token("org2/repo2"), mint.token("org2/repo2", exp=int(time.time()) - 100), "a.b.c"]
    for token in tokens:
        http.post("/github/callback", json=report(payload), headers={"Authorization": f"Bearer {token}"})
    wait_for(lambda: len(peer.dispatched()) >= 4)
    wait_for(lambda: peer.hud())
    process.kill()
    log = process.log.read_text()
    assert '"delivery_id": "d-1"' in log and '"repo": "org2/repo2"' in log and "task_failed" in log
    installation = [call.headers["authorization"].split()[1] for call in peer.calls if "authorization" in call.headers]
    secrets = {
        "webhook secret": WEBHOOK_SECRET,
        "HUD key": HUD_KEY,
        "private key": rsa_key.pem.splitlines()[3],
        "callback token secret": "callback-token-secret-of-the-tests",
        "callback token": payload["callback_token"],
        "signature": signature.removeprefix("sha256="),
        **{f"OIDC token {number}": token for number, token in enumerate(tokens[:2])},
        **{f"GitHub token {number}": token for number, token in enumerate(installation)},
    }
    assert len(secrets) > 10
    assert [name for name, secret in secrets.items() if secret in log] == []


@sqlite_only
def test_operators_endpoints(relay: Running, peer: Peer) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    wait_for(lambda: len(peer.dispatched()) == 4)
    assert relay.http.get("/healthz").json() == {"ok": True}
    assert relay.http.get("/readyz").json()["ready"] is True
    assert relay.http.get("/version").json()["name"] == "spyre-conformance"
    text = wait_for(lambda: (page := relay.http.get("/metrics").text) and 'outcome="done"} 4.0' in page and page)
    assert 'relay_webhooks_total{event="pull_request",outcome="accepted"} 1.0' in text
    assert {"/github/webhook", "/github/callback"} <= set(relay.http.get("/openapi.json").json()["paths"])


@sqlite_only
def test_api_only_and_workers_only(start: Callable[..., Running], peer: Peer) -> None:
    api = start(workers=False)
    assert api.webhook("pull_request", pull_request(), delivery="d-1").status_code == 202
    time.sleep(0.3)
    assert not peer.dispatched()
    worker = start(endpoints=False)
    wait_for(lambda: len(peer.dispatched()) == 4)
    assert worker.http.post("/github/webhook").status_code == 404
    assert worker.http.get("/healthz").status_code == 200


def test_the_report_command_needs_no_server_library() -> None:
    """A job installs the ``report`` extra only."""
    blocked = (
        "fastapi",
        "uvicorn",
        "sqlalchemy",
        "alembic",
        "psycopg",
        "structlog",
        "prometheus_client",
        "cryptography",
        "aiohttp",
    )
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "sys.argv = ['relay', 'report', '--status', 'in_progress', '--url', 'http://127.0.0.1:1']\n"
        "from relay.cli import main\nmain()\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "GITHUB_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "nothing to report" in done.stdout) == (0, True), done.stderr
