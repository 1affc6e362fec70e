"""``POST /api/v1/runs/{key}/tests``: who may send, in which forms, what is kept, on both databases."""

from __future__ import annotations

import gzip
import html
import io
import json
import zlib
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from hud_site import KEY, REPO, Site, json_lines, line, name_of, pulled, pushed, served, ticket

from relay.wire import run_key

RUN = run_key(REPO, "d1", "100", 1, "job")
DONE = {"status": "completed", "conclusion": "failure"}


def outcomes(site: Site, key: str = RUN) -> dict[str, str]:
    """By test, what is stored of a run; nothing where no results have been stored."""
    answer = site.http.get(f"/api/v1/runs/{key}/tests.jsonl")
    assert answer.status_code in (200, 404)
    lines = answer.text.splitlines() if answer.status_code == 200 else []
    return {row["id"]: row["outcome"] for row in map(json.loads, lines)}


def test_results_may_come_before_the_report(site: Site) -> None:
    answer = site.upload("d1", [line("add[float32]"), line("mul[float32]", "failed")])
    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "key": RUN, "tests": 2, "results": "complete", "parts": [1], "cut": {}}
    assert site.get("/prs")["total"] == 0
    site.report(pulled("c"), "d1", **DONE)
    shown = site.get("/pr/7")["backends"][0]
    assert (shown["totals"]["passed"], shown["totals"]["failed"], shown["counted"]) == (1, 1, 2)


def test_every_field_of_a_failure_is_shown(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    failed = line("add[float32]", "failed", message="12 differ", trace="line 3", phase="call", duration=1.5)
    issue = "https://example.org/issues/12"
    known = line("mul[float32]", "xfailed", rule="ops.yaml:7", reason="no float32", issue=issue, expires="2030-01-31")
    site.upload("d1", [failed, known, line("sub[float32]", fallback=True)])
    rows = {row["name"]: row for row in site.get(f"/runs/{RUN}", outcome="all")["rows"]}
    shown = rows[name_of("add[float32]")]
    assert (shown["file"], shown["cls"], shown["op"], shown["dtype"]) == ("test_ops.py", "TestOps", "add", "float32")
    assert (shown["seconds"], shown["exact"]) == (1.5, True)
    detail = shown["detail"]
    assert (detail["message"], detail["trace"], detail["phase"]) == ("12 differ", "line 3", "call")
    expected = rows[name_of("mul[float32]")]
    assert (expected["rule"], expected["reason"], expected["issue"]) == ("ops.yaml:7", "no float32", issue)
    assert rows[name_of("sub[float32]")]["fallback"]
    page = site.page(f"/run/{RUN}")
    command = f"conformance run --upstream pytorch --output out &#39;{name_of('add[float32]')}&#39;"
    for text in ("12 differ", "line 3", command):
        assert text in page
    told = site.page(f"/run/{RUN}", outcome="xfailed")
    assert "no float32" in told and f'href="{issue}"' in told and "until <bdi>2030-01-31</bdi>" in told


@pytest.mark.parametrize("said", ["Infinity", "-Infinity", "NaN", "1e999", '"inf"', "-1.5", "-1e-9"])
def test_an_impossible_duration_is_unknown_and_the_run_can_be_read(sqlite_site: Site, said: str) -> None:
    sqlite_site.report(pulled("c"), "d1", **DONE)
    body = b"".join(
        json.dumps({**line(name, outcome), "message": odd, "duration": "@"}).replace('"@"', said).encode() + b"\n"
        for name, outcome, odd in (("add[float32]", "failed", "no"), ("mul[float32]", "failed", "\ud800"))
    )
    assert sqlite_site.upload("d1", body).json()["tests"] == 2
    rows = sqlite_site.get(f"/runs/{RUN}", outcome="all")["rows"]
    assert [row["seconds"] for row in rows] == [None, None]
    assert name_of("add[float32]") in sqlite_site.page(f"/run/{RUN}")
    for kind in ("jsonl", "csv", "xml"):
        assert sqlite_site.http.get(f"/api/v1/runs/{RUN}/tests.{kind}").status_code == 200


def test_an_impossible_time_of_junit_is_unknown(sqlite_site: Site) -> None:
    cases = "".join(
        f'<testcase name="t{place}" time="{said}"><failure message="no"/></testcase>'
        for place, said in enumerate(("inf", "nan", "-3", "1e999", "soon"))
    )
    assert sqlite_site.upload("d1", f"<testsuite>{cases}</testsuite>".encode()).json()["tests"] == 5
    rows = sqlite_site.get(f"/runs/{RUN}", outcome="all")["rows"]
    assert [row["seconds"] for row in rows] == [None] * 5


def test_a_test_of_the_wheel_suite_is_repeated_without_a_checkout(site: Site) -> None:
    site.report(pulled("c"), "d1")
    failed = {**line("add[float32]", "failed"), "id": "wheel/op_forward.py::TestOpForward::test_matches_cpu[add]@spyre"}
    site.upload("d1", [failed])
    page = site.page(f"/run/{RUN}")
    assert "conformance run --output out &#39;wheel/op_forward.py::" in page
    assert "--upstream" not in page


@pytest.mark.parametrize(
    ("profile", "lines"),
    [
        ("spyre", ["conformance run --profile 'spyre' --upstream"]),
        ("./mydevice", ["# in a checkout of example/backend", "conformance run --profile './mydevice' --upstream"]),
        ("it's; rm -rf ~", ["conformance run --profile 'it'\\''s; rm -rf ~' --upstream"]),
    ],
)
def test_a_test_is_repeated_with_the_profile_that_its_run_had(site: Site, profile: str, lines: list[str]) -> None:
    site.report(pulled("c"), "d1")
    site.upload("d1", [{**line("add[float32]", "failed"), "profile": profile}])
    page = html.unescape(site.page(f"/run/{RUN}"))
    for said in lines:
        assert said in page
    assert site.get(f"/runs/{RUN}")["profile"] == profile


def test_the_ingest_key_works_too_for_a_run_that_is_known(site: Site) -> None:
    assert site.upload("d1", [line("a")], token=KEY).status_code == 404
    site.report(pulled("c"), "d1")
    assert site.upload("d1", [line("a")], token=KEY).status_code == 200


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("nonsense", "not good"),
        (ticket("d1", key="another key"), "not good"),
        (ticket("d1", lifetime=timedelta(seconds=-10)), "expired"),
        (ticket("d2"), "not for"),
        (ticket("d1", attempt=2), "not for"),
        (ticket("d1", repo="other/backend"), "not for"),
    ],
)
def test_a_ticket_is_good_for_exactly_its_run(sqlite_site: Site, token: str, said: str) -> None:
    answer = sqlite_site.upload("d1", [line("a")], token=token)
    assert answer.status_code == 401 and said in answer.json()["error"]
    assert sqlite_site.http.get(f"/api/v1/runs/{RUN}").status_code == 404


def test_plain_lines_and_junit_are_taken_as_well(site: Site) -> None:
    assert site.upload("d1", [line("a"), line("b")], plain=True).json()["tests"] == 2
    junit = b'<testsuite><testcase classname="C" name="t"><failure message="no"/></testcase></testsuite>'
    assert site.upload("d2", junit).json()["tests"] == 1
    assert outcomes(site, run_key(REPO, "d2", "100", 1, "job")) == {"C::t": "failed"}


def test_a_new_upload_replaces_the_old_one(site: Site) -> None:
    site.report(pushed("a"), "d1", **DONE)
    site.upload("d1", [line("a"), line("b", "failed")])
    site.upload("d1", [line("a", "failed")])
    assert outcomes(site) == {name_of("a"): "failed"}
    assert site.get("/test", name=name_of("b"))["failures"] == []
    assert site.get(f"/runs/{RUN}")["totals"]["failed"] == 1


def test_parts_add_up_in_any_order_and_may_be_repeated(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    assert site.upload("d1", [line("c", "failed")], part=3, parts=3).json()["results"] == "partial"
    assert "have not arrived yet" in site.page(f"/run/{RUN}")
    site.upload("d1", [line("a")], part=1, parts=3)
    site.upload("d1", [line("a")], part=1, parts=3)
    answer = site.upload("d1", [line("b")], part=2, parts=3).json()
    assert (answer["results"], answer["parts"], answer["tests"]) == ("complete", [1, 2, 3], 3)
    assert outcomes(site) == {name_of("a"): "passed", name_of("b"): "passed", name_of("c"): "failed"}
    assert site.upload("d1", [line("b")], part=4, parts=3).status_code == 422


Sent = list[tuple[int, int, str]]


@pytest.mark.parametrize(
    ("sent", "results", "parts", "left"),
    [
        ([(1, 1, "a"), (2, 2, "b")], "partial", [2], "b"),
        ([(1, 1, "a"), (2, 2, "b"), (1, 2, "c")], "complete", [1, 2], "bc"),
        ([(3, 3, "a"), (1, 2, "b")], "partial", [1], "b"),
        ([(3, 3, "a"), (1, 2, "b"), (2, 2, "c")], "complete", [1, 2], "bc"),
        ([(1, 2, "a"), (2, 2, "b"), (2, 3, "c")], "partial", [2], "c"),
        ([(1, 3, "a"), (1, 1, "b")], "complete", [1], "b"),
        ([(1, 2, "a"), (2, 2, "b"), (1, 2, "a")], "complete", [1, 2], "ab"),
    ],
)
def test_parts_of_another_number_of_parts_never_mix(
    site: Site, sent: Sent, results: str, parts: list[int], left: str
) -> None:
    site.report(pulled("c"), "d1", **DONE)
    for part, of, name in sent:
        answer = site.upload("d1", [line(name, "failed")], part=part, parts=of).json()
    assert (answer["results"], answer["parts"], answer["tests"]) == (results, parts, len(left))
    assert outcomes(site) == {name_of(name): "failed" for name in left}
    assert site.get(f"/runs/{RUN}")["totals"]["failed"] == len(left)
    for name in "abc":
        if name not in left:
            assert site.http.get("/api/v1/test", params={"name": name_of(name)}).json().get("failures", []) == []


def test_a_broken_line_is_named_and_nothing_is_stored(site: Site) -> None:
    body = json_lines([line("a"), line("b")]) + b'\n{"id": "x", "outcome": "nope"}\n'
    answer = site.upload("d1", body)
    assert answer.status_code == 422 and answer.json()["error"].startswith("line 3: outcome:")
    assert outcomes(site) == {}


# Without a time, so that every worker of a run gives its tests the same names.
NOTHING = [
    (b"", True),
    (b"", False),
    (gzip.compress(b"", mtime=0), True),
    (gzip.compress(b"", mtime=0), False),
    (b" \n\n", False),
    (gzip.compress(b"\n \n", mtime=0), True),
    (b"<testsuites/>", False),
]


@pytest.mark.parametrize(("body", "declared"), NOTHING)
@pytest.mark.parametrize("parameters", [{}, {"part": 1, "parts": 2}])
def test_an_upload_of_nothing_is_refused_and_replaces_nothing(
    sqlite_site: Site, body: bytes, declared: bool, parameters: dict[str, int]
) -> None:
    sqlite_site.report(pulled("c"), "d1", **DONE)
    sqlite_site.upload("d1", [line("a"), line("b", "failed")])
    before = sqlite_site.get(f"/runs/{RUN}")
    headers = {"Authorization": f"Bearer {ticket('d1')}"} | ({"Content-Encoding": "gzip"} if declared else {})
    address = f"/api/v1/runs/{RUN}/tests"
    answer = sqlite_site.http.post(address, content=body, headers=headers, params=parameters)
    assert answer.status_code == 422 and answer.json()["error"].startswith("body: ")
    assert sqlite_site.get(f"/runs/{RUN}") == before
    assert outcomes(sqlite_site) == {name_of("a"): "passed", name_of("b"): "failed"}


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("declared", [True, False])
def test_every_member_of_a_gzip_file_is_read(sqlite_site: Site, declared: bool, size: int) -> None:
    lines = [json_lines([line(name)]) + b"\n" for name in "abc"]
    body = gzip.compress(lines[0]) + gzip.compress(b"") + gzip.compress(lines[1][:20])
    body += gzip.compress(lines[1][20:] + lines[2])
    chunks = (body[place : place + size] for place in range(0, len(body), size))
    headers = {"Authorization": f"Bearer {ticket('d1')}"} | ({"Content-Encoding": "gzip"} if declared else {})
    answer = sqlite_site.http.post(f"/api/v1/runs/{RUN}/tests", content=chunks, headers=headers)
    assert answer.json()["tests"] == 3
    assert outcomes(sqlite_site) == {name_of(name): "passed" for name in "abc"}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (b"garbage", "not gzip"),
        (json_lines([line("b")]), "not gzip"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "too early"),
        (b"\x1f", "too early"),
    ],
)
def test_what_follows_a_gzip_member_is_another_one_or_refused(sqlite_site: Site, after: bytes, said: str) -> None:
    headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
    body = gzip.compress(json_lines([line("a")]))
    answer = sqlite_site.http.post(f"/api/v1/runs/{RUN}/tests", content=body + after, headers=headers)
    assert answer.status_code == 422 and said in answer.json()["error"]
    assert outcomes(sqlite_site) == {}


@pytest.mark.parametrize("begin", [b'{"id": "', b" ", b"\xef\xbb\xbf", b'{"id": "a", "outcome": "passed"}\n"'])
def test_a_line_without_end_is_refused_before_it_has_come(sqlite_site: Site, begin: bytes) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        yield begin
        for _ in range(4096):
            sent += 65536
            yield (b" " if begin == b" " else b"x") * 65536

    headers = {"Authorization": f"Bearer {ticket('d1')}"}
    try:
        answer = sqlite_site.http.post(f"/api/v1/runs/{RUN}/tests", content=chunks(), headers=headers)
    except httpx.WriteError:
        pass  # the server closed the connection before it had taken everything
    else:
        assert answer.status_code == 422 and "longer than" in answer.json()["error"]
    assert outcomes(sqlite_site) == {}


def test_members_of_nothing_count_towards_the_cap(sqlite_store) -> None:
    with served(sqlite_store, max_upload_bytes=1 << 20) as site:
        headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
        body = gzip.compress(b"") * 60_000
        answer = site.http.post(f"/api/v1/runs/{RUN}/tests", content=body, headers=headers)
        assert answer.status_code == 413


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_an_upload_that_broke_off_changes_nothing_and_goes_on_by_being_sent_again(site: Site, keep: float) -> None:
    whole = gzip.compress(json_lines([line(f"t{n}") for n in range(500)]))
    headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
    address = f"/api/v1/runs/{RUN}/tests"
    answer = site.http.post(address, content=whole[: int(len(whole) * keep)], headers=headers)
    assert answer.status_code == 422 and "ends too early" in answer.json()["error"]
    assert outcomes(site) == {}
    assert site.http.post(address, content=whole, headers=headers).json()["tests"] == 500


def test_what_claims_to_be_gzip_and_is_not(sqlite_site: Site) -> None:
    headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
    answer = sqlite_site.http.post(f"/api/v1/runs/{RUN}/tests", content=b"plain text", headers=headers)
    assert answer.status_code == 422 and "not gzip" in answer.json()["error"]


def test_a_decompression_bomb_is_stopped_at_the_cap(sqlite_store) -> None:
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9) as file:
        for _ in range(64):
            file.write(b"\n" * (1 << 20))
    with served(sqlite_store, max_upload_bytes=8 << 20) as site:
        headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
        answer = site.http.post(f"/api/v1/runs/{RUN}/tests", content=bomb.getvalue(), headers=headers)
        assert answer.status_code == 413


def test_the_number_of_entries_is_capped(sqlite_store) -> None:
    with served(sqlite_store, max_result_entries=10) as site:
        assert site.upload("d1", [line(f"t{n}") for n in range(11)]).status_code == 413
        assert site.upload("d1", [line(f"t{n}") for n in range(10)]).status_code == 200


def test_attempts_count_towards_the_number_of_entries(sqlite_store) -> None:
    with served(sqlite_store, max_result_entries=10) as site:
        assert site.upload("d1", [line("a", attempt=n + 1) for n in range(11)]).status_code == 413
        junit = b"<testsuite>" + b'<testcase name="t"/>' * 11 + b"</testsuite>"
        assert site.upload("d1", junit).status_code == 413
        assert site.upload("d1", [line("a", attempt=n + 1) for n in range(10)]).json()["tests"] == 1


def test_a_run_says_what_was_cut(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    answer = site.upload("d1", [line("a", "failed", message="m" * 5000, trace="t" * 50_000)])
    assert answer.json()["cut"] == {"message": 1, "trace": 1}
    assert "Shortened or left out: 1 message, 1 trace" in site.text(f"/run/{RUN}")


def test_attempts_of_a_test_within_a_run_are_flaky_when_they_disagree(site: Site) -> None:
    site.report(pulled("c"), "d1", status="completed", conclusion="success")
    site.upload("d1", [line("a", "failed"), line("a", "passed", attempt=2), line("b")])
    assert outcomes(site) == {name_of("a"): "flaky", name_of("b"): "passed"}
    assert site.get("/pr/7")["verdict"] == "flaky"


def test_exports_hold_every_test_and_come_in_again(site: Site) -> None:
    site.report(pulled("c"), "d1", **DONE)
    sent = [line("a"), line("b", "failed", message="=1+1", trace="t"), line("c", "skipped", reason="why")]
    site.upload("d1", sent)
    lines = site.http.get(f"/api/v1/runs/{RUN}/tests.jsonl").content
    assert site.upload("d2", lines, plain=True).json()["tests"] == 3
    assert outcomes(site, run_key(REPO, "d2", "100", 1, "job")) == outcomes(site)
    csv = site.http.get(f"/api/v1/runs/{RUN}/tests.csv").text
    assert len(csv.splitlines()) == 4 and "'=1+1" in csv
    xml = site.http.get(f"/api/v1/runs/{RUN}/tests.xml").content
    assert site.upload("d3", xml, plain=True).json()["tests"] == 3
    assert sorted(outcomes(site, run_key(REPO, "d3", "100", 1, "job")).values()) == ["failed", "passed", "skipped"]


def test_a_small_chunk_at_a_time_gives_the_same(site: Site) -> None:
    body = gzip.compress(json_lines([line(f"t{n}") for n in range(300)]))
    chunks = (body[place : place + 7] for place in range(0, len(body), 7))
    headers = {"Authorization": f"Bearer {ticket('d1')}", "Content-Encoding": "gzip"}
    answer = site.http.post(f"/api/v1/runs/{RUN}/tests", content=chunks, headers=headers)
    assert answer.json()["tests"] == 300
    assert zlib.decompress(body, 31).count(b"\n") == 299
