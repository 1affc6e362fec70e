"""The command ``hud``: each command does what its help says, and trouble is a sentence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from hud_site import KEY, REPO, pulled, report, sha
from typer.testing import CliRunner

from hud.cli import cli
from hud.queries.exports import find_run
from hud.queries.scope import Scope
from hud.seed import PULL
from hud.store import open_store

JUNIT = (
    '<testsuite><testcase classname="C" name="ok"/><testcase classname="C" name="bad"><failure/></testcase></testsuite>'
)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command on an empty store in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUD_DATABASE_URL", f"sqlite:///{tmp_path}/hud.db")
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))


def test_migrate_says_what_it_did_without_the_password(invoke, monkeypatch) -> None:
    assert "is up to date" in invoke("migrate").stdout
    assert json.loads(invoke("migrate", "--json").stdout)["ok"]
    monkeypatch.setenv("HUD_DATABASE_URL", "postgresql+psycopg://me:secret@127.0.0.1:1/hud")
    failed = invoke("migrate")
    assert failed.exit_code == 1 and "cannot be opened" in failed.stderr and "secret" not in failed.stderr


@pytest.mark.parametrize("name", ["HUD_DATABASE_URL", "HUD_STUCK_AFTER_SECONDS"])
def test_a_wrong_setting_is_named(invoke, monkeypatch, name: str) -> None:
    monkeypatch.setenv(name, "nonsense")
    failed = invoke("migrate")
    assert failed.exit_code == 2 and name in failed.stderr


def test_every_wrong_setting_is_named_at_once(invoke, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUD_READINESS", "high")
    monkeypatch.setenv("HUD_MAX_REPORT_BYTES", "many")
    failed = invoke("migrate")
    assert failed.exit_code == 2 and "HUD_READINESS: expected a JSON object" in failed.stderr
    assert "HUD_MAX_REPORT_BYTES: " in failed.stderr
    monkeypatch.delenv("HUD_READINESS")
    monkeypatch.setenv("HUD_READINESS__PASS_RATE", "high")
    monkeypatch.setenv("HUD_READINESS__END_TO_END_SECONDS", "inf")
    failed = invoke("migrate")
    assert failed.exit_code == 2 and "HUD_READINESS__PASS_RATE: " in failed.stderr
    assert "HUD_READINESS__END_TO_END_SECONDS: " in failed.stderr
    for name in ("HUD_READINESS__PASS_RATE", "HUD_READINESS__END_TO_END_SECONDS", "HUD_MAX_REPORT_BYTES"):
        monkeypatch.delenv(name)
    (tmp_path / ".env").write_text("HUD_READINESS=low\n")
    failed = invoke("migrate")
    assert failed.exit_code == 2 and "HUD_READINESS: expected" in failed.stderr
    (tmp_path / ".env").write_text('HUD_READINESS={"pass_rate": 0.5}\nHUD_READINESS__RUNS=7\n')
    assert invoke("migrate").exit_code == 0


def test_seed_demo_export_and_prune(invoke, tmp_path: Path) -> None:
    assert str(PULL) in invoke("seed-demo").stdout
    again = invoke("seed-demo")
    assert again.exit_code == 1 and "empty one only" in again.stderr
    store = open_store(f"sqlite:///{tmp_path}/hud.db")
    with store.read() as connection:
        key = connection.exec_driver_sql("SELECT key FROM run WHERE results = 'complete' LIMIT 1").scalar_one()
        assert find_run(Scope(connection, 0, 1), key) is not None
    store.close()
    lines = invoke("export", key).stdout.splitlines()
    assert len(lines) == 240 and json.loads(lines[0])["id"]
    assert invoke("export", key, "--format", "csv", "--output", "out.csv").exit_code == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 241
    assert invoke("export", key, "--format", "xml").stdout.startswith("<testsuites")
    assert invoke("export", "nothing").exit_code == 1
    assert json.loads(invoke("prune", "--older-than", "7d", "--json").stdout)["results"] > 0
    assert invoke("prune", "--older-than", "soon").exit_code == 2
    assert invoke("prune").exit_code == 2


def test_import_junit_is_a_run_of_the_backend(invoke, tmp_path: Path) -> None:
    (tmp_path / "j.xml").write_text(JUNIT)
    arguments = ("import", "junit", "j.xml", "--repo", REPO, "--sha", sha("a"))
    done = json.loads(invoke(*arguments, "--json").stdout)
    assert done["tests"] == 2
    assert invoke(*arguments).exit_code == 0
    (tmp_path / "j.xml").write_text("<html/>")
    failed = invoke(*arguments)
    assert failed.exit_code == 2 and "j.xml" in failed.stderr
    (tmp_path / "j.xml").write_text(JUNIT)
    assert invoke(*arguments[:-1], "main").exit_code == 2


def test_import_junit_with_a_failure_in_one_of_two_suites_is_a_failure(invoke, tmp_path: Path) -> None:
    case = '<testsuite><testcase classname="T" name="t">{}</testcase></testsuite>'
    (tmp_path / "j.xml").write_text(f"<testsuites>{case.format('')}{case.format('<failure/>')}</testsuites>")
    done = json.loads(invoke("import", "junit", "j.xml", "--repo", REPO, "--sha", sha("a"), "--json").stdout)
    store = open_store(f"sqlite:///{tmp_path}/hud.db")
    with store.read() as connection:
        row = find_run(Scope(connection, 0, 1), done["key"])
    store.close()
    assert row is not None and row.conclusion == "failure"
    assert json.loads(invoke("export", done["key"]).stdout)["outcome"] == "failed"


def test_serve_answers_and_ends_when_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "HUD_DATABASE_URL": f"sqlite:///{tmp_path}/hud.db", "HUD_INGEST_KEY": KEY}
    command = [sys.executable, "-m", "hud", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        base = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, process.stderr.read()
            try:
                assert httpx.get(f"{base}/readyz", timeout=10).json()["ok"]
                break
            except httpx.TransportError:
                time.sleep(0.1)
        headers = {"x-hud-internal-bot": KEY}
        sent = httpx.post(f"{base}/api/crcr/results", json=report(pulled("c"), "d1"), headers=headers, timeout=30)
        assert sent.status_code == 200
        second = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert second.returncode != 0 and "address already in use" in second.stderr
        with httpx.stream("GET", f"{base}/api/v1/events", timeout=30) as live:
            next(live.iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
