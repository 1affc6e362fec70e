"""Every page: with nothing in the store, with everything, with hostile content; headers, access, links, live update."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote, urljoin, urlsplit

import httpx
import pytest
from hud_site import DEVICE, REPO, Site, line, name_of, pulled, pushed, served, sha

from hud.app.render import duration
from hud.seed import BACKENDS, PULL, seed
from hud.store import Store, open_store

EMPTY_PAGES = ("/", "/prs", "/health", "/diff", "/definitions", "/test?name=x", "/pr/1")
PAGES = (
    "/",
    "/prs",
    "/prs?state=open",
    f"/pr/{PULL}",
    f"/pr/{PULL + 1}",
    "/backend/example/known-failures",
    "/backend/example/unknown-base",
    "/matrix/example/passes",
    "/health",
    "/definitions",
    "/diff",
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server on the store that ``hud seed-demo`` fills."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('demo')}/hud.db")
    with served(store) as site:
        seed(store, site.clock.now)
        yield site
    store.close()


class Reader(HTMLParser):
    """Collects what a page links to, its elements, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        self.links += [value for name, value in attrs if name in ("href", "src") and value]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("path", EMPTY_PAGES)
def test_an_empty_store_has_a_sentence_on_every_page(site: Site, path: str) -> None:
    answer = site.http.get(path)
    assert answer.status_code in (200, 404)
    assert 'class="empty"' in answer.text or "No backend has reported" in answer.text or path == "/definitions"


def test_the_demo_shows_every_verdict_once(demo: Site) -> None:
    shown = demo.get(f"/pr/{PULL}")
    assert len(shown["backends"]) == len(BACKENDS) == len({row["verdict"] for row in shown["backends"]})
    assert demo.get(f"/pr/{PULL + 1}")["verdict"] == "passed"


def test_no_link_of_any_page_is_dead(demo: Site) -> None:
    waiting, seen = list(PAGES), set[str]()
    while waiting:
        path = waiting.pop()
        key = re.sub(r"name=.*|q=.*", "", path)
        if key in seen or len(seen) > 120:
            continue
        seen.add(key)
        answer = demo.http.get(path)
        assert answer.status_code == 200, path
        if "text/html" not in answer.headers["content-type"]:
            continue
        for found in Reader(answer.text).links:
            target = urljoin(path, found)
            if not urlsplit(target).netloc:
                waiting.append(target.partition("#")[0])
    assert len(seen) > 60


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_inline_script_or_style_and_ask_nobody_else(demo: Site, path: str) -> None:
    answer = demo.http.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, named in Reader(answer.text).tags:
        assert tag != "style" and "style" not in named
        assert not any(name.startswith("on") for name in named)
        if tag in ("script", "link", "img"):
            assert urlsplit(named.get("src") or named.get("href") or "").netloc == ""
        if tag == "script":
            assert named.get("src")


@pytest.mark.parametrize("path", ["/", "/api/v1/prs", "/static/hud.css", "/nope", "/badge/pr/1.svg"])
def test_security_headers_are_on_every_answer(demo: Site, path: str) -> None:
    headers = demo.http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert "content-security-policy" in headers


def test_every_page_is_json_too_and_documented(demo: Site) -> None:
    described = demo.http.get("/api/v1/openapi.json").json()["paths"]
    for path in ("/prs", "/pr/{number}", "/backends", "/backend/{owner}/{repo}", "/runs/{key}", "/test", "/diff",
                 "/matrix/{owner}/{repo}", "/health"):  # fmt: skip
        assert f"/api/v1{path}" in described
    row = demo.get(f"/pr/{PULL}")["backends"][0]
    for field in ["repo", "level", "verdict", "new_failures", "already_failing", "fixed", "missing", "totals", "url"]:
        assert field in row


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/pr/0", 422),
        ("/pr/abc", 422),
        (f"/pr/{2**40}", 422),
        ("/pr/5", 404),
        (f"/pr/{PULL}/zzzzzzz", 422),
        (f"/pr/{PULL}/abcdef0", 404),
        ("/run/nothing", 404),
        ("/backend/no/body", 404),
        ("/matrix/no/body", 404),
        ("/nope", 404),
        ("/prs?page=0", 422),
        ("/go?q=hello", 404),
    ],
)
def test_a_wrong_address_is_answered_with_a_sentence(demo: Site, path: str, status: int) -> None:
    answer = demo.http.get(path)
    assert answer.status_code == status and "<main" in answer.text
    api = demo.http.get(f"/api/v1{path.replace('/run/', '/runs/')}")
    if not path.startswith(("/nope", "/go")):
        assert api.status_code == status and api.json()["error"]


def test_the_search_box_takes_a_number_or_an_address(demo: Site) -> None:
    for text in (str(PULL), f"#{PULL}", f"https://github.com/pytorch/pytorch/pull/{PULL}"):
        assert str(demo.http.get("/go", params={"q": text}).url).endswith(f"/pr/{PULL}")


def test_filters_and_pages_of_a_run(site: Site) -> None:
    outcomes = {f"t{n:03}": "failed" if n % 2 else "passed" for n in range(240)}
    key = site.run(pulled("c"), "d1", outcomes)
    shown = site.get(f"/runs/{key}")
    assert (shown["outcome"], shown["matching"], shown["pages"], len(shown["rows"])) == ("failing", 120, 2, 100)
    assert len(site.get(f"/runs/{key}", page=2)["rows"]) == 20
    assert site.get(f"/runs/{key}", outcome="all")["matching"] == 240
    assert [row["name"] for row in site.get(f"/runs/{key}", outcome="all", q="t007")["rows"]] == [name_of("t007")]
    assert site.get(f"/runs/{key}", outcome="all", q="%")["matching"] == 0
    assert site.get(f"/runs/{key}", outcome="all", q=name_of("t007"))["matching"] == 1
    assert "page 2 of 2" in site.page(f"/run/{key}", page=2)


def test_a_commit_with_very_many_jobs_is_summed_whole(sqlite_site: Site) -> None:
    for number in range(125):
        counts = {"passed": 1, "failed": 0, "skipped": 0, "total": 1}
        more = {"status": "completed", "conclusion": "success", "test_results": counts}
        sqlite_site.report(pushed("b"), "p", str(number), job=f"j{number}", **more)
    assert sqlite_site.get("/backends")["backends"][0]["passed"] == 125


def test_failures_are_clustered(site: Site) -> None:
    site.report(pulled("c"), "d1", status="completed", conclusion="failure")
    lines = [line(f"t{n}", "failed", message=f"differs in {n} of 1024 at 0x{n:x}") for n in range(5)]
    site.upload("d1", [*lines, line("u", "failed", message="shapes differ")])
    key = site.get("/pr/7")["backends"][0]["jobs"][0]["run"]
    assert [cluster["count"] for cluster in site.get(f"/runs/{key}")["clusters"]] == [5, 1]


def test_readers_need_the_token_where_one_is_set(sqlite_store: Store) -> None:
    with served(sqlite_store, read_token="secret") as site:
        for path in ("/", "/api/v1/prs", "/badge/pr/1.svg", "/feed.atom"):
            answer = site.http.get(path)
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic")
        basic = base64.b64encode(b"anyone:secret").decode()
        for given, status in (("Bearer secret", 200), (f"Basic {basic}", 200), ("Bearer wrong", 401), ("Basic !", 401)):
            assert site.http.get("/", headers={"Authorization": given}).status_code == status
        assert site.http.get("/healthz").status_code == 200
        site.report(pulled("c"), "d1")


def test_a_badge_is_asked_for_again_and_answered_shortly_while_it_is_the_same(site: Site) -> None:
    site.run(pushed("b"), "p", {"a": "passed"}, "9")
    first = site.http.get(f"/badge/{REPO}.svg")
    assert first.headers["cache-control"] == "no-cache" and first.headers["content-type"].startswith("image/svg+xml")
    assert first.headers["cross-origin-resource-policy"] == "cross-origin"
    asked = {"If-None-Match": f'"other", W/{first.headers["etag"]}'}
    again = site.http.get(f"/badge/{REPO}.svg", headers=asked)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    site.clock.now += 60
    site.run(pushed("c"), "q", {"a": "failed"}, "10")
    changed = site.http.get(f"/badge/{REPO}.svg", headers=asked)
    assert changed.status_code == 200 and "failing 0/1" in changed.text


def test_more_readers_than_connections_and_threads_are_all_answered(site: Site) -> None:
    key = site.run(pulled("c"), "d1", {"a": "failed"})
    paths = ["/", "/pr/7", f"/run/{key}", f"/api/v1/runs/{key}/tests.csv"] * 40

    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=site.url, timeout=20, limits=limits) as http:
            return [answer.status_code for answer in await asyncio.gather(*map(http.get, paths))]

    assert set(asyncio.run(ask())) == {200}


def test_a_restart_loses_nothing(sqlite_store: Store) -> None:
    with served(sqlite_store) as first:
        first.run(pushed("b"), "p", {"a": "passed"}, "9")
        first.run(pulled("c"), "d1", {"a": "failed"})
        before = first.get("/pr/7")
    with served(open_store(str(sqlite_store.url))) as second:
        assert second.get("/pr/7") == before


def events(address: str, seen: list[str], ready: threading.Event) -> None:
    with httpx.stream("GET", address, timeout=30) as answer:
        for text in answer.iter_lines():
            ready.set()
            if text.startswith("event:"):
                seen.append(text)
                return


def test_a_page_is_told_when_something_changes(sqlite_site: Site) -> None:
    sqlite_site.report(pulled("c"), "d1")
    assert 'data-events="/api/v1/pr/7/events"' in sqlite_site.page("/pr/7")
    seen: list[str] = []
    ready = threading.Event()
    listener = threading.Thread(target=events, args=(f"{sqlite_site.url}/api/v1/pr/7/events", seen, ready))
    listener.start()
    assert ready.wait(30)
    sqlite_site.report(pulled("d", number=8), "d2", "101")
    sqlite_site.clock.now += 1
    sqlite_site.report(pulled("c"), "d1", status="completed", conclusion="success")
    listener.join(30)
    assert seen == ["event: changed"]


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></pre></code><svg onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "a\u202egpj.exe\u2066\u200f",
    "tab\tnew\nline\x00\x07\x1b[31m\x7f\x85",
    "\ud800lone",
    "e\u0301" * 40 + "\u0489" * 200,
    "x" * 10_000,
    "../../etc/passwd?#%00",
    "=cmd|' /C calc'!A0",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_in_every_field_is_shown_as_text(site: Site, text: str) -> None:
    payload = pulled("c", title=text)
    payload["pull_request"]["user"]["login"] = text
    payload["pull_request"]["base"]["ref"] = text
    short = text[:900]
    more = {
        "workflow": short, "job": short, "url": f"javascript:{short}", "artifact_url": short[:900] or "x",
        "triage_verdict": {"category": "unknown", "confidence": "low", "summary": short},
        "failed_tests_detail": [{"name": text, "classname": short, "message": text}],
    }  # fmt: skip
    key = site.report(payload, short, short, status="completed", conclusion="failure", **more)
    kinds = ("file", "class", "test", "op", "dtype", "phase", "message", "trace", "rule", "reason", "issue")
    kinds += ("expires", "profile")
    fields = dict.fromkeys(kinds, text)
    lines = [{**line("a", "failed"), **fields, "id": text}, {**line("b", "skipped"), **fields, "id": text + "2"}]
    site.report(pushed("b"), "push")
    answer = site.upload(short, lines, short, job=short)
    assert answer.status_code == 200, answer.text
    expected = {"/", "/pr/7", f"/run/{key}", f"/run/{key}?outcome=all", f"/backend/{REPO}", "/health", "/feed.atom"}
    expected |= {f"/matrix/{REPO}", "/badge/pr/7.svg", f"/api/v1/runs/{key}/tests.xml", f"/api/v1/runs/{key}/tests.csv"}
    names = [row["name"] for row in site.get(f"/runs/{key}", outcome="all")["rows"]]
    assert len(names) == 2
    if len(text) < 1000:
        expected.add(f"/test?name={quote(names[0], safe='')}")
    for path in sorted(expected):
        page = site.http.get(path)
        assert page.status_code == 200, path
        if "text/html" not in page.headers["content-type"]:
            continue
        read = Reader(page.text)
        assert not any(name.startswith("on") for _, named in read.tags for name in named)
        assert not any(tag in ("img", "iframe", "object") for tag, _ in read.tags)
        assert [named.get("src") for tag, named in read.tags if tag == "script"] == [
            "/static/theme.js",
            "/static/hud.js",
        ]
        assert not any(urlsplit(found).scheme not in ("", "http", "https") for found in read.links)
        assert not set(page.text) & set("\u202e\u2066\u200f\x07\x1b\x00")


def test_a_non_sha_is_never_shown_or_linked_as_one(site: Site) -> None:
    payload = pulled("c")
    payload["pull_request"]["base"]["sha"] = "main"
    site.report(payload, "d1", status="completed", conclusion="success")
    shown = site.get("/pr/7")
    assert shown["base_sha"] is None and "vs an unknown base" in site.page("/pr/7")


@pytest.mark.parametrize("seconds", [None, float("inf"), float("-inf"), float("nan"), -1.0])
def test_an_impossible_duration_is_shown_as_unknown(seconds: float | None) -> None:
    assert duration(seconds) == "–"


def test_the_device_belongs_to_the_backend_not_to_the_name(site: Site) -> None:
    key = site.run(pushed("b"), "p", {"a": "passed"}, "9")
    assert site.get(f"/runs/{key}", outcome="all")["rows"][0]["name"].endswith(f"@{DEVICE}")
    other = {**line("a", "failed"), "id": name_of("a", "other"), "device": "other"}
    site.report(pushed("b"), "p", "9", repo="other/backend", status="completed", conclusion="failure")
    site.upload("p", [other], "9", repo="other/backend")
    assert {lane["repo"] for lane in site.get("/test", name=name_of("a"))["lanes"]} == {REPO, "other/backend"}


def test_many_readers_while_runs_are_being_ingested(site: Site) -> None:
    site.run(pushed("b"), "p", {f"t{n}": "passed" for n in range(300)}, "9")
    stop, failures = threading.Event(), list[str]()

    def read() -> None:
        with httpx.Client(base_url=site.url, timeout=60) as http:
            while not stop.is_set():
                for path in ("/", "/prs", f"/backend/{REPO}", "/api/v1/health"):
                    answer = http.get(path)
                    if answer.status_code != 200:
                        failures.append(f"{path}: {answer.status_code}")

    def write(number: int) -> None:
        for place in range(3):
            payload = pulled("cdef"[place], number=number + 1, at=1_700_000_000 + place)
            site.run(
                payload, f"d{number}-{place}", {f"t{n}": "failed" for n in range(200)}, str(place), job=f"j{number}"
            )

    readers = [threading.Thread(target=read) for _ in range(8)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert site.get("/prs")["total"] == 4
    for number in range(1, 5):
        assert site.get(f"/pr/{number}")["backends"][0]["totals"]["failed"] == 200
    assert sha("b") in {row["sha"] for row in site.get(f"/backend/{REPO}")["commits"]}
