"""The whole loop: webhook, dispatch, the real workflow file, tests on the device, callback, verdict, check run.

The same code as ``make demo`` plays it, with the bundled tree instead of the real one.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import jwt
import pytest

from demo.loop import APP_ID, DOWNSTREAM, UPSTREAM, Loop, Places
from demo.pulls import BUNDLED_TREE, pulls_for
from demo.services import Services
from demo.upstream import Tree, make_upstream

ROOT = Path(__file__).resolve().parents[2]
# Three jobs with torch in them; a machine that is busy with something else is not a failure.
pytestmark = pytest.mark.timeout(1800)
BROKEN = "test/test_elementwise.py::TestElementwise::test_broadcast@spyre"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    work = tmp_path_factory.mktemp("loop")
    places = Places(checkout=ROOT, work=work / "demo", cache=work / "cache")
    places.work.mkdir()
    said = []
    loop = Loop(
        places,
        said.append,
        tree=Tree(BUNDLED_TREE, "bundled", "bundled"),
        variables={"CONFORMANCE_PROFILE": str(ROOT / "tests" / "loop" / "profile.yaml")},
    )
    with Services() as services:
        loop.run(services)
        yield loop, json.loads((places.work / "summary.json").read_text())


def test_the_harmless_pull_request_passes_and_the_other_one_is_named_with_its_test(played):
    _, summary = played
    harmless, breaking = summary["prs"]
    assert (harmless["verdict"], harmless["new_failures"]) == ("passed", [])
    assert (breaking["verdict"], breaking["new_failures"]) == ("broken by this PR", [BROKEN])


def test_every_test_of_the_base_run_is_accounted_for(played):
    _, summary = played
    counts = dict(summary["conformance"])
    assert counts.pop("balanced") is True
    assert counts.pop("planned") == sum(counts.values()) > 200
    assert not counts.get("failed") and not counts.get("error") and not counts.get("crashed")


def test_each_event_was_dispatched_once_and_reported_twice(played):
    _, summary = played
    assert summary["relay"]["dispatches"] == 3
    assert summary["relay"]["callbacks"] == 6
    assert summary["relay"]["deliveries"] >= 3


def test_the_page_says_it_to_a_reader_without_script(played):
    _, summary = played
    page = httpx.get(summary["prs"][1]["url"]).text
    assert "Broken by this PR on 1 of 1 backend" in page
    assert "test_broadcast" in page


def as_app(loop: Loop) -> httpx.Client:
    """A client of the local GitHub that holds the App's installation token, made as the relay makes it."""
    now = int(time.time())
    claims = {"iat": now - 30, "exp": now + 300, "iss": str(APP_ID)}
    token = jwt.encode(claims, (loop.places.work / "keys" / "app.pem").read_text(), algorithm="RS256")
    github = httpx.Client(base_url=loop.at.github, headers={"Authorization": f"Bearer {token}"})
    installation = github.get(f"/repos/{UPSTREAM}/installation").raise_for_status().json()["id"]
    made = github.post(f"/app/installations/{installation}/access_tokens").raise_for_status().json()
    github.headers["Authorization"] = f"Bearer {made['token']}"
    return github


def test_a_required_check_stands_on_the_head_commit(played):
    """L4: the check run is written on the commit that the relay dispatched, and says what the job said."""
    loop, summary = played
    github = as_app(loop)
    for pull, conclusion in zip(summary["prs"], ("success", "failure"), strict=True):
        path = f"/repos/{UPSTREAM}/commits/{pull['head_sha']}/check-runs"
        checks = github.get(path).raise_for_status().json()["check_runs"]
        assert [(check["name"], check["conclusion"]) for check in checks] == [
            (f"crcr/{DOWNSTREAM}/Upstream conformance/conformance", conclusion)
        ]


def test_the_break_is_a_true_one(tmp_path):
    """The changed test passes on a device that keeps the promise (the CPU), so it is the device that breaks it."""
    repository, base = make_upstream(Tree(BUNDLED_TREE, "bundled", "bundled"), tmp_path / "cache")
    head = repository.commit_edit(base, pulls_for("bundled")[1], hours=1)
    changed = tmp_path / "test_elementwise.py"
    changed.write_text(repository.read("show", f"{head}:test/test_elementwise.py"))
    outcome = {}
    for device in ("cpu", "privateuse1"):
        environment = {**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": device}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_broadcast", str(changed)]
        outcome[device] = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True).returncode
    assert outcome == {"cpu": 0, "privateuse1": 1}
