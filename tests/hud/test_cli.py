"""The command ``hud``: each command does what its help says, and trouble is a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from hud_site import KEY, REPO, pulled, report, sha
from typer.testing import CliRunner

from hud.cli import cli
from hud.queries.exports import find_run
from hud.queries.scope import Scope
from hud.seed import PULL
from hud.store import NoStoreOfHud, open_store

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


@pytest.mark.parametrize("arguments", [("prune", "--older-than", "7d"), ("export", "x")])
def test_what_needs_a_store_makes_none(invoke, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    failed = invoke(*arguments)
    assert failed.exit_code == 2 and "there is no file" in failed.stderr
    assert not (tmp_path / "hud.db").exists()
    (tmp_path / "hud.db").touch()
    failed = invoke(*arguments)
    assert failed.exit_code == 2 and "has no tables of a HUD" in failed.stderr
    assert (tmp_path / "hud.db").stat().st_size <= 4096, "no tables"
    assert invoke("migrate").exit_code == 0
    assert invoke(*arguments).exit_code == (0 if arguments[0] == "prune" else 1)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('0002')",
        "CREATE TABLE places (id INTEGER)",
        "CREATE TABLE hud_version (version_num TEXT); INSERT INTO hud_version VALUES ('9999')",
    ],
)
def test_a_store_of_another_program_stays_as_it_is(invoke, tmp_path: Path, made: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "hud.db")) as connection:
        connection.executescript(made)
    failed = invoke("migrate")
    assert failed.exit_code == 2 and "HUD_DATABASE_URL=sqlite:///" in failed.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "hud.db")) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone() == (1,)


def test_a_database_of_a_server_with_another_programs_tables_is_refused(cluster) -> None:
    with cluster.database() as url:
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE notes (id INTEGER, version_num TEXT)"))
        with pytest.raises(NoStoreOfHud, match="no tables of a HUD"):
            open_store(url, make=False)
        open_store(url).close()
        with engine.begin() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
            connection.execute(sa.text("CREATE TABLE alembic_version (version_num TEXT)"))
        with pytest.raises(NoStoreOfHud, match="alembic_version"):
            open_store(url)
        engine.dispose()


@pytest.mark.parametrize("url", ["mysql://x", "nothing://x", "sqlite+nothing:///x", "postgresql://h:port/x"])
def test_another_kind_of_database_is_a_sentence(invoke, monkeypatch, url: str) -> None:
    monkeypatch.setenv("HUD_DATABASE_URL", url)
    failed = invoke("migrate")
    assert failed.exit_code == 2 and "HUD_DATABASE_URL" in failed.stderr


@pytest.mark.parametrize("age", ["9" * 400 + "d", "9" * 5000 + "h", "9" * 10 + "w"])
def test_an_age_beyond_all_numbers_is_refused(invoke, age: str) -> None:
    failed = invoke("prune", "--older-than", age)
    assert failed.exit_code == 2 and "--older-than" in failed.stderr


def test_export_says_what_cannot_be_written(invoke, tmp_path: Path) -> None:
    (tmp_path / "j.xml").write_text(JUNIT)
    done = invoke("import", "junit", "j.xml", "--repo", REPO, "--sha", sha("a"), "--json")
    key = json.loads(done.stdout)["key"]
    for place in (tmp_path, tmp_path / "none" / "x"):
        failed = invoke("export", key, "--output", str(place))
        assert failed.exit_code == 2 and f"{place} cannot be written" in failed.stderr
    assert invoke("prune", "--older-than", "9" * 9 + "w").exit_code == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "hud.db")) as connection, connection:
        for results, said in (("pruned", "were pruned"), ("none", "none were sent in")):
            connection.execute("UPDATE run SET results = ?", (results,))
            connection.commit()
            failed = invoke("export", key, "--output", "out")
            assert failed.exit_code == 1 and said in failed.stderr and not (tmp_path / "out").exists()


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
