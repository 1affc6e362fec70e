"""``POST /api/crcr/results``: the table of spec/hud.md 4 over real HTTP, on both databases."""

from __future__ import annotations

import copy
import json

import pytest
from hud_site import KEY, REPO, Site, pulled, pushed, report, served, sha
from sqlalchemy import exc

from relay.wire import run_key

DONE = {"status": "completed", "conclusion": "failure"}


def the_run(site: Site, delivery: str = "d1") -> dict:
    return site.get(f"/runs/{run_key(REPO, delivery, '100', 1, 'job')}")


def test_a_report_is_stored_and_answered(site: Site) -> None:
    answer = site.post(report(pulled("c"), "d1"))
    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "status": "in_progress", "key": run_key(REPO, "d1", "100", 1, "job")}
    shown = the_run(site)
    assert (shown["state"], shown["pr"], shown["base_sha"], shown["queue_seconds"]) == ("running", 7, sha("b"), 12.5)


def test_an_identical_repeat_is_answered_like_the_first(site: Site) -> None:
    said = report(pulled("c"), "d1", test_results={"passed": 3, "failed": 1}, **DONE)
    first = site.post(said)
    before = the_run(site)
    assert site.post(said).json() == first.json()
    assert the_run(site) == before


@pytest.mark.parametrize(
    "change",
    [
        {"conclusion": "success"},
        {"test_results": {"passed": 4, "failed": 1}},
        {"failed_tests_detail": [{"name": "other"}]},
        {"completed_at": "2026-01-01T00:00:01Z"},
    ],
)
def test_a_different_report_for_a_completed_job_is_a_conflict(site: Site, change: dict) -> None:
    said = {"completed_at": "2026-01-01T00:00:00Z", "test_results": {"passed": 3}, **DONE}
    site.report(pulled("c"), "d1", failed_tests_detail=[{"name": "t"}], **said)
    before = the_run(site)
    answer = site.post(report(pulled("c"), "d1", **{**said, **change}))
    assert answer.status_code == 409
    assert next(iter(change)) in answer.json()["error"]
    assert the_run(site) == before


def test_absent_and_null_fields_never_erase(site: Site) -> None:
    site.report(pulled("c"), "d1", url="https://example.org/1", artifact_url="https://example.org/2")
    site.report(pulled("c"), "d1", url=None, test_results={"passed": 3}, **DONE)
    shown = the_run(site)
    assert shown["url"] == "https://example.org/1" and shown["artifact_url"] == "https://example.org/2"
    site.report(pulled("c"), "d1", **DONE)
    assert the_run(site)["reported"] == {"passed": 3, "failed": 0, "skipped": 0}
    assert the_run(site)["seconds"] == 60.0


def test_a_late_in_progress_never_undoes_completed(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    assert site.post(report(pulled("c"), "d1")).json()["status"] == "completed"
    shown = the_run(site)
    assert (shown["state"], shown["seconds"]) == ("failure", 60.0)


def test_the_sweepers_timed_out_yields_to_a_real_result(site: Site) -> None:
    site.report(pulled("c"), "d1")
    site.report(pulled("c"), "d1", status="completed", conclusion="timed_out")
    assert the_run(site)["state"] == "timed_out"
    site.report(pulled("c"), "d1", status="completed", conclusion="success")
    assert the_run(site)["state"] == "success"
    assert site.post(report(pulled("c"), "d1", status="completed", conclusion="timed_out")).status_code == 409


@pytest.mark.parametrize("key", ["", "wrong", KEY + "x", KEY[:-1], "é"])
def test_a_wrong_key_is_refused(site: Site, key: str) -> None:
    headers = [(b"x-hud-internal-bot", key.encode())]
    answer = site.http.post("/api/crcr/results", json=report(pulled("c"), "d1"), headers=headers)
    assert answer.status_code == 401


def test_without_a_key_and_without_a_configured_key_nothing_comes_in(site: Site) -> None:
    assert site.http.post("/api/crcr/results", json=report(pulled("c"), "d1")).status_code == 401
    site.app.state.hud.settings.ingest_key = None
    assert site.post(report(pulled("c"), "d1"), key="").status_code == 401
    assert site.get("/prs")["total"] == 0


def test_a_body_over_the_cap_is_refused_declared_or_not(site: Site) -> None:
    big = json.dumps(report(pulled("c", title="x" * (2 << 20)), "d1")).encode()
    headers = {"x-hud-internal-bot": KEY}
    assert site.http.post("/api/crcr/results", content=big, headers=headers).status_code == 413
    chunks = (big[i : i + 65536] for i in range(0, len(big), 65536))
    assert site.http.post("/api/crcr/results", content=chunks, headers=headers).status_code == 413


CALLBACK = ("untrusted", "callback_payload")
PAYLOAD = (*CALLBACK, "payload")
BAD = [
    (["trusted"], None, "trusted"),
    (["trusted", "verified_repo"], 7, "trusted.verified_repo"),
    (["trusted", "verified_repo"], "no-slash", "trusted.verified_repo"),
    (["trusted", "downstream_repo_level"], "L9", "trusted.downstream_repo_level"),
    (["trusted", "ci_metrics", "queue_time"], "soon", "trusted.ci_metrics.queue_time"),
    ([*CALLBACK, "event_type"], "merge", "…event_type"),
    ([*CALLBACK, "delivery_id"], "", "…delivery_id"),
    ([*CALLBACK, "workflow", "status"], "done", "…workflow.status"),
    ([*CALLBACK, "workflow", "name"], None, "…workflow.name"),
    ([*CALLBACK, "workflow", "run_attempt"], 10**30, "…workflow.run_attempt"),
    ([*CALLBACK, "workflow", "test_results"], {"passed": -1}, "…workflow.test_results.passed"),
    ([*PAYLOAD, "pull_request"], None, "…payload.pull_request"),
    ([*PAYLOAD, "pull_request", "number"], 2**31, "…payload.pull_request.number"),
    ([*PAYLOAD, "pull_request", "head"], {"sha": "main"}, "…payload.pull_request.head.sha"),
    ([*PAYLOAD, "repository"], None, "…payload.repository.full_name"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "field"), BAD, ids=[".".join(bad[0][-2:]) for bad in BAD])
def test_a_bad_field_is_named(sqlite_site: Site, path: list[str], value: object, field: str) -> None:
    said = copy.deepcopy(report(pulled("c"), "d1"))
    inside = said
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    answer = sqlite_site.post(said)
    field = field.replace("…", "untrusted.callback_payload.")
    assert answer.status_code == 422
    assert answer.json()["field"] == field and field in answer.json()["error"]
    assert sqlite_site.get("/prs")["total"] == 0
    refused = sqlite_site.get("/health")["refusals"]
    assert len(refused) == 1 and refused[0]["status"] == 422


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"trusted": NaN}', b'{"trusted": 1e999}', b"\xff\xfe", b'"\\ud800"'],
)
def test_what_is_not_a_report_is_refused_not_a_crash(sqlite_site: Site, body: bytes) -> None:
    answer = sqlite_site.post(body)
    assert answer.status_code == 422 and answer.json()["field"]


def test_an_endless_queue_time_is_refused(sqlite_site: Site) -> None:
    body = json.dumps(report(pulled("c"), "d1")).replace('"queue_time": 12.5', '"queue_time": 1e999').encode()
    answer = sqlite_site.http.post("/api/crcr/results", content=body, headers={"x-hud-internal-bot": KEY})
    assert answer.status_code == 422 and "1e999" in answer.json()["error"]
    assert sqlite_site.get("/prs")["total"] == 0


def test_a_push_and_a_nightly_run_are_stored_without_a_pull_request(site: Site) -> None:
    site.report(pushed("a"), "d1", **DONE)
    nightly = {"repository": {"full_name": "pytorch/pytorch"}, "sha": sha("e")}
    site.report(nightly, sha("e"), event="nightly", **DONE)
    shown = site.get(f"/backend/{REPO}")["commits"]
    assert {(row["sha"], row["event"]) for row in shown} == {(sha("a"), "push"), (sha("e"), "nightly")}


def test_a_nightly_run_that_names_no_commit_shows_none(site: Site) -> None:
    nightly = {"repository": {"full_name": "pytorch/pytorch"}, "sha": "nightly-build"}
    key = site.report(nightly, "n1", event="nightly", **DONE)
    assert site.get(f"/runs/{key}")["sha"] is None
    assert [row["sha"] for row in site.get(f"/backend/{REPO}")["commits"]] == [None]
    assert "nightly-build" not in site.page(f"/backend/{REPO}")


def test_a_ciflow_push_is_the_pull_requests_run(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    trunk = {**pushed("c"), "ref": "refs/tags/ciflow/trunk/7"}
    key = site.report(trunk, "d2", workflow="trunk", **DONE)
    assert site.get(f"/runs/{key}")["pr"] == 7
    assert [job["workflow"] for job in site.get("/pr/7")["backends"][0]["jobs"]] == ["CI", "trunk"]


def test_the_store_being_down_is_503_and_nothing_else(sqlite_store, monkeypatch) -> None:
    with served(sqlite_store) as site:

        def down() -> None:
            raise exc.OperationalError("SELECT 1", {}, Exception("disk I/O error"))

        monkeypatch.setattr(sqlite_store, "write", down)
        answer = site.post(report(pulled("c"), "d1"))
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
        monkeypatch.setattr(sqlite_store, "read", down)
        for path in ("/", "/api/v1/prs", "/readyz"):
            assert site.http.get(path).status_code == 503
        assert site.http.get("/healthz").status_code == 200
        monkeypatch.undo()
        assert site.post(report(pulled("c"), "d1")).status_code == 200
