"""The operators' commands as processes: ``config check``, ``doctor`` and ``token verify`` against the local GitHub."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from relay_site import TRUST, Site

from relay.app import token_check
from relay.app.settings import Settings, TrustSettings
from relay.core.identity import Issuer
from relay.store.database import Database, NoStoreOfRelay

REPO = "example/backend"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(f"L2:\n  - {REPO}\n", [REPO]) as made:
        made.start_github()
        made.hud_url = made.github.url if made.github else ""  # anything that answers
        yield made


def relay(*arguments: str, env: dict[str, str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    command = [sys.executable, "-m", "relay", *arguments]
    return subprocess.run(
        command, env={**clean, **env}, input=text, capture_output=True, text=True, timeout=120, check=False
    )


def make_store(url: str) -> None:
    database = Database(url)
    database.migrate()
    database.close()


def test_a_store_of_another_program_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("hud_version", "alembic_version")):
        url = f"sqlite:///{tmp_path / str(number)}"
        database = Database(url)
        with database.transaction() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {name} (version_num TEXT)")
            connection.exec_driver_sql(f"INSERT INTO {name} VALUES ('0001')")
        with pytest.raises(NoStoreOfRelay, match=name):
            database.migrate()
        database.close()


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert "Traceback" not in done.stderr, done.stderr
    return {finding["subject"]: finding["verdict"] for finding in json.loads(done.stdout)["findings"]}


# --- config check ---------------------------------------------------------------------------------------------------


def test_config_check_of_a_good_configuration(site: Site) -> None:
    env = site.relay_environment(database_url="postgresql://relay:hidden-word@db.example/relay")
    done = relay("config", "check", "--json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(verdicts(done).values()) == {"ok"}
    shown = json.loads(done.stdout)["settings"]
    assert shown["upstream_repo"] == "pytorch/pytorch"
    secrets = ("hidden-word", env["RELAY_WEBHOOK_SECRET"], env["RELAY_HUD_KEY"], "PRIVATE KEY")
    assert not [word for word in secrets if word in done.stdout + done.stderr]


def test_config_check_says_what_is_valid_but_not_meant(site: Site) -> None:
    env = site.relay_environment(
        job_timeout_seconds=10**6,
        request_timeout_seconds=200,
        oidc_issuers=[{"issuer": "https://ci.example", "jwks_url": "http://ci.example/jwks"}],
    )
    del env["RELAY_HUD_URL"]
    found = verdicts(relay("config", "check", "--json", env={**env, "RELAY_RATE_BRUST": "7"}))
    warned = {subject for subject, verdict in found.items() if verdict == "warning"}
    assert warned == {
        "RELAY_RATE_BRUST",
        "RELAY_HUD_URL",
        "RELAY_JOB_TIMEOUT_SECONDS",
        "RELAY_REQUEST_TIMEOUT_SECONDS",
        "RELAY_OIDC_ISSUERS: https://ci.example",
    }


def test_config_check_of_something_that_is_no_database(site: Site) -> None:
    done = relay("config", "check", "--json", env=site.relay_environment(database_url="user:hidden-word"))
    assert done.returncode == 1, done.stderr
    assert verdicts(done)["RELAY_DATABASE_URL"] == "failed"
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["settings"]["database_url"] == "(not a URL)"


def test_config_check_lints_the_allowlist_and_exits_1(site: Site, tmp_path: Path) -> None:
    (tmp_path / "allowlist.yml").write_text("L1: [a/b]\nL2: [A/B]\n")
    done = relay("config", "check", env=site.relay_environment(allowlist=tmp_path / "allowlist.yml"))
    assert done.returncode == 1
    assert f"{tmp_path / 'allowlist.yml'}:2: " in done.stdout


def test_3_every_wrong_setting_is_reported_at_once_unreadable_secrets_too(site: Site, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text('rate_brust = 7\nhud_key_file = "/nonexistent/hud"\n')
    env = site.relay_environment(rate_burst="many")
    del env["RELAY_WEBHOOK_SECRET"], env["RELAY_HUD_KEY"]
    env |= {"RELAY_WEBHOOK_SECRET_FILE": str(tmp_path / "none"), "RELAY_CONFIG_FILE": str(tmp_path / "relay.toml")}
    done = relay("config", "check", env=env)
    assert done.returncode == 2
    for part in (
        f"RELAY_WEBHOOK_SECRET: cannot read {tmp_path / 'none'}: No such file or directory",
        "RELAY_HUD_KEY: cannot read /nonexistent/hud",
        "RELAY_RATE_BURST: ",
        "unknown setting 'rate_brust'",
    ):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("refs", ["main", "", "5", '{"a": "b"}'])
def test_3_a_list_that_is_none_is_reported_with_everything_else(site: Site, tmp_path: Path, refs: str) -> None:
    env = {**site.relay_environment(rate_burst="many"), "RELAY_PUSH_REFS": refs, "RELAY_OIDC_ISSUERS": "one"}
    for command in (("config", "check"), ("serve",)):
        done = relay(*command, env=env)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert 'RELAY_PUSH_REFS: expected a JSON list of patterns, such as ["main", "release/*"]' in done.stderr
        assert "RELAY_OIDC_ISSUERS: expected a YAML or JSON list" in done.stderr
        assert "RELAY_RATE_BURST: " in done.stderr


def test_lists_may_be_texts_of_files_and_of_variables(site: Site, tmp_path: Path) -> None:
    (tmp_path / "refs").write_text('["viable/*"]\n')
    env = {**site.relay_environment(), "RELAY_PUSH_REFS_FILE": str(tmp_path / "refs")}
    env["RELAY_OIDC_ISSUERS"] = "- issuer: https://ci.example\n  jwks_url: https://ci.example/jwks"
    shown = json.loads(relay("config", "check", "--json", env=env).stdout)["settings"]
    assert shown["push_refs"] == ["viable/*"]
    assert shown["oidc_issuers"][0]["issuer"] == "https://ci.example"


def test_3_an_unreadable_file_is_reported_beside_the_value_itself(site: Site) -> None:
    env = {**site.relay_environment(), "RELAY_WEBHOOK_SECRET_FILE": "/nonexistent/secret"}
    done = relay("config", "check", env=env)
    assert done.returncode == 2
    assert "RELAY_WEBHOOK_SECRET: cannot read /nonexistent/secret: No such file or directory" in done.stderr


def test_3_no_time_and_no_rate_is_endless(site: Site) -> None:
    names = [name for name, field in Settings.model_fields.items() if field.annotation is float]
    for said in ("inf", "nan"):
        done = relay("config", "check", env=site.relay_environment(**dict.fromkeys(names, said)))
        assert done.returncode == 2
        assert [name for name in names if f"RELAY_{name.upper()}: " not in done.stderr] == []


def test_3_commands_on_the_store_need_the_store_only(tmp_path: Path) -> None:
    env = {"RELAY_DATABASE_URL": f"sqlite:///{tmp_path / 'relay.db'}"}
    missing = relay("tasks", "list", env=env)
    assert missing.returncode == 2 and "there is no file" in missing.stderr and not (tmp_path / "relay.db").exists()
    make_store(env["RELAY_DATABASE_URL"])
    unknown = relay("tasks", "retry", "5", str(2**70), env=env)
    assert unknown.returncode == 1 and f"task 5 is not on record; task {2**70} is not" in unknown.stderr
    for command in (("deliveries", "list", "--json"), ("tasks", "list", "--json")):
        done = relay(*command, env=env)
        assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    assert relay("tasks", "retry", "--all", env=env).stdout == "0 tasks queued again\n"
    assert relay("deliveries", "replay", "x", env=env).returncode == 1


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_of_a_relay_that_can_work(site: Site) -> None:
    env = site.relay_environment()
    make_store(env["RELAY_DATABASE_URL"])
    done = relay("doctor", "--json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = verdicts(done)
    for subject in ("store", "workers", "disk", "allowlist", "GitHub App", "clock", "installations", "HUD"):
        assert found[subject] == "ok", done.stdout
    issuer = json.loads(env["RELAY_OIDC_ISSUERS"])[0]["issuer"]
    assert found[issuer] == "ok"


def test_doctor_makes_no_store(site: Site, tmp_path: Path) -> None:
    env = {**site.relay_environment(), "RELAY_DATABASE_URL": f"sqlite:///{tmp_path}/none.sqlite"}
    done = relay("doctor", "--json", env=env)
    assert verdicts(done)["store"] == "warning"
    assert not list(tmp_path.glob("none.sqlite*"))


def test_doctor_names_everything_that_does_not_work(site: Site, tmp_path: Path) -> None:
    (tmp_path / "allowlist.yml").write_text(f"L2: [{REPO}, example/elsewhere]\n")
    issuers = [{"issuer": "https://ci.example", "jwks_url": "http://127.0.0.1:9/jwks"}]
    env = site.relay_environment(
        allowlist=tmp_path / "allowlist.yml", hud_url="http://127.0.0.1:9", oidc_issuers=issuers, github_app_id=4243
    )
    done = relay("doctor", "--json", env=env)
    assert done.returncode == 1
    found = verdicts(done)
    assert {found[name] for name in ("HUD", "GitHub App", "https://ci.example")} == {"failed"}
    again = relay("doctor", env={**env, "RELAY_GITHUB_APP_ID": "4242"})
    assert again.returncode == 1
    assert "example/elsewhere: the App is not installed on example/elsewhere" in again.stdout
    assert "2 of 3 repositories" in again.stdout


# --- token verify ---------------------------------------------------------------------------------------------------


def steps(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {step["subject"]: step["verdict"] for step in json.loads(done.stdout)["steps"]}


def test_token_verify_of_a_good_token(site: Site) -> None:
    token = site.token(REPO)
    done = relay("token", "verify", "--json", env=site.relay_environment(), text=token)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["accepted"], answer["repository"]) == (True, REPO)
    assert set(steps(done).values()) == {"ok"}
    assert token.rpartition(".")[2] not in done.stdout, "the token itself is not shown"
    shown = relay("token", "verify", env={**site.relay_environment(), "RELAY_OIDC_TOKEN": f"Bearer {token}"})
    assert f"accepted as {REPO}" in shown.stdout and "level L2" in shown.stdout


def test_token_verify_stops_at_the_step_that_fails(site: Site) -> None:
    token = site.token(REPO)[:-40] + "A" * 40
    done = relay("token", "verify", "--json", env=site.relay_environment(), text=token)
    assert done.returncode == 1
    found = steps(done)
    where = list(found).index("signature")
    assert list(found.values()) == ["ok"] * where + ["failed"] + ["skipped"] * (len(found) - where - 1)


@pytest.mark.parametrize(
    ("step", "request_body", "settings"),
    [
        ("audience", {"audience": "another"}, {}),
        ("times", {"claims": {"iat": 1, "exp": 2}}, {}),
        ("lifetime", {"claims": {"exp": 2**33}}, {}),
        ("identity", {"claims": {"repository": None}}, {}),
        ("issuer", {"claims": {"iss": "https://elsewhere.example"}}, {}),
        ("key id", {"headers": {"kid": ""}}, {}),
        ("key", {"headers": {"kid": "another"}}, {}),
        ("header", {"headers": {"jku": "https://evil.example/jwks"}}, {}),
        (
            "identity",
            {},
            {"required_claims": {"ref": ["refs/heads/release"]}, "pipelines": {"x/y": {"repository": "a/b"}}},
        ),
        ("required claims", {}, {"required_claims": {"ref": ["refs/heads/release"]}}),
        ("key", {}, {"jwks_url": "http://127.0.0.1:9/jwks"}),
    ],
)
def test_1_5_token_verify_says_why(
    site: Site, step: str, request_body: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert site.github is not None
    body = {"repository": REPO, "audience": "pytorch-cross-repo-ci-relay", **request_body}
    token = httpx.post(f"{site.github.url}/_emulator/oidc/token", json=body, verify=TRUST).json()["token"]
    anchor = Issuer(**{**json.loads(site.relay_environment()["RELAY_OIDC_ISSUERS"])[0], **settings})
    trust = TrustSettings(oidc_issuers=[anchor])
    found = asyncio.run(token_check.with_network(token, trust, str(site.directory / "allowlist.yml")))
    assert not found.accepted
    assert [one.subject for one in found.steps if one.verdict == "failed"] == [step]
