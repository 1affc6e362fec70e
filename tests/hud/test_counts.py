"""Every number on a page leads to the rows that it counts, and there are exactly so many (spec/hud.md 1 and 3).

Each page of a filled HUD is read. A whole number in its text is a count, which is a link whose list is walked through
and counted, or a fact (a duration, an identifier), which says so by its class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from hud_site import Site, json_lines, line, pulled, pushed, served

from hud.seed import PULL, seed
from hud.store import open_store

NUMBER = re.compile(r"(?<![\w.#])\d[\d,]*(?![\w.])")
VOID = {"meta", "link", "input", "br", "img", "line", "circle", "polyline", "rect"}
FACTS = {"time", "code", "pre", "bdi", "svg", "button", "option"}
"""Elements whose numbers count nothing: moments, names, others' words, drawings."""


class Element:
    """A part of a page."""

    def __init__(self, tag: str, named: dict[str, str], parent: Element | None) -> None:
        self.tag, self.named, self.parent = tag, named, parent
        self.parts: list[Element | str] = []
        self.classes = set(named.get("class", "").split())

    def all(self, tag: str = "", name: str = "") -> Iterator[Element]:
        for part in self.parts:
            if isinstance(part, Element):
                if (not tag or part.tag == tag) and (not name or name in part.classes):
                    yield part
                yield from part.all(tag, name)

    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.parts)

    def by_id(self, name: str) -> Element:
        return next(part for part in self.all() if part.named.get("id") == name)

    def is_fact(self) -> bool:
        here: Element | None = self
        while here is not None:
            if here.tag in FACTS or here.classes & {"fact", "count", "told"}:
                return True
            here = here.parent
        return False


class Tree(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = self.here = Element("", {}, None)
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.parts.append(made)
        if tag not in VOID:
            self.here = made

    def handle_endtag(self, tag: str) -> None:
        here = self.here
        while here.tag != tag and here.parent is not None:
            here = here.parent
        self.here = here.parent or self.root

    def handle_data(self, data: str) -> None:
        self.here.parts.append(data)


class Pages:
    """Pages of a site, each read once."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.read = cache(self._read)

    def _read(self, path: str) -> Element:
        return next(Tree(self.site.page(path)).root.all("main"))

    def every(self, path: str) -> Iterator[Element]:
        """A list's page, and those that follow it."""
        while path:
            page = self.read(path)
            yield page
            path = next((urljoin(path, a.named["href"]) for a in page.all("a") if a.named.get("rel") == "next"), "")

    def rows(self, path: str, asked: Element) -> list[int]:
        """How many rows lie behind a number's address; where others are summed, every sum that may be meant."""
        address, _, part = path.partition("#")
        parts = urlsplit(address)
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if part:
            return self._within(self.read(address).by_id(part), asked)
        if parts.path.startswith("/run/"):
            lists = [next(page.all("ol", "results"), None) for page in self.every(address)]
            return [sum(1 for found in lists if found for item in found.parts if isinstance(item, Element))]
        if parts.path == "/diff":
            sections = [next(page.all("section", "names")) for page in self.every(address)]
            return [sum(1 for section in sections for _ in section.all("li"))]
        if parts.path.startswith("/matrix/"):
            pages = list(self.every(address))
            if given.get("state") in asked.text().split():
                return [sum(f": {given['state']}," in a.named["title"] for p in pages for a in p.all("a", "cell"))]
            return [sum(len(body(next(page.all("table", "matrix")))) for page in pages)]
        if parts.path in ("/", "/prs", "/runs"):
            pages = list(self.every(address))
            return [sum(len(body(next(page.all("table", "rows")))) for page in pages)]
        raise AssertionError(f"{path} is no list")

    def _within(self, part: Element, asked: Element) -> list[int]:
        if part.classes & {"backends"}:
            word = asked.text().split(maxsplit=1)[1]
            return [sum(row.text().strip().endswith(word) for row in part.all("td", "v"))]
        if items := [item for item in part.all("li") if not part.classes & {"backend"}]:
            return [len(items)]
        if part.tag == "table":
            return [len(body(part))]
        sums = Counter[str]()
        for count in {count.named["href"]: count for count in part.all("a", "count")}.values():
            given = parse_qs(urlsplit(count.named["href"]).query)
            sums[(given.get("outcome") or given["only"])[0]] += number_of(count)
        return list(sums.values())


def body(table: Element) -> list[Element]:
    return list(next(table.all("tbody")).all("tr"))


def number_of(count: Element) -> int:
    """The number that a link says; of ``3/4`` in a cell the whole, which is what its list has."""
    numbers = NUMBER.findall(count.text())
    return int(numbers[1 if "cell" in count.classes else 0].replace(",", ""))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The demo, and what it does not show: several jobs, many failures, stuck and silent runs, a refused report."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('counts')}/hud.db")
    with served(store) as site:
        site.clock.now -= 86_400
        site.report(pulled("a", number=6), "stuck", "60", repo="example/breaks")
        site.clock.now += 86_400
        seed(store, site.clock.now)
        base = {f"t{n}": "passed" for n in range(230)} | {"k": "failed", "f": "failed", "gone": "passed"}
        head = {f"t{n}": "failed" if n < 130 else "passed" for n in range(229)} | {"k": "failed", "f": "passed"}
        for job, some in (("one", base), ("two", {"u": "passed", "v": "failed"})):
            site.run(pushed("b"), f"base {job}", some, job, repo="two/jobs", job=job)
        for job, some in (("one", head), ("two", {"u": "failed", "v": "failed", "w": "failed"})):
            site.run(pulled("c"), f"head {job}", None, job, "failure", repo="two/jobs", job=job)
            lines = [line(name, ended, message=f"{name} differs", cpu_outcome="failed") for name, ended in some.items()]
            assert site.upload(f"head {job}", json_lines(lines), job, repo="two/jobs", job=job).status_code == 200
        counts = {"passed": 3, "failed": 1, "skipped": 0, "total": 4}
        more = {"status": "completed", "conclusion": "failure", "test_results": counts, "repo": "only/reports"}
        site.report(pulled("c"), "silent", "70", **more)
        site.post(b"{}")
        yield site
    store.close()


def addresses(site: Site) -> list[str]:
    demo, pull = (site.get(f"/pr/{number}")["backends"] for number in (PULL, 7))
    jobs = [job for row in [*demo[:4], *pull] for job in row["jobs"]]
    runs = [f"/run/{job['run']}" for job in jobs]
    compared = [f"/diff?base={job['base']['run']}&head={job['run']}" for job in jobs if job["base"]]
    named = ["example/known-failures", "two/jobs", "only/reports"]
    return [
        *("/", "/?show=look", "/prs", "/prs?state=open", "/health", "/runs?repo=two/jobs", "/runs?show=stuck"),
        *(f"/pr/{PULL}", f"/pr/{PULL + 1}", "/pr/6", "/pr/7"),
        *(f"/{kind}/{repo}" for repo in named for kind in ("backend", "matrix")),
        *("/matrix/example/passes?state=skipped", "/matrix/two/jobs?q=t22"),
        *(f"{run}{more}" for run in runs for more in ("", "?outcome=failing&q=t1")),
        f"{runs[-2]}?outcome=all&page=2",
        *compared,
    ]


def test_every_number_leads_to_exactly_the_rows_that_it_counts(filled: Site) -> None:
    pages, checked, wrong = Pages(filled), Counter[str](), list[str]()
    for address in addresses(filled):
        page = pages.read(address)
        for part in page.all():
            loose = [text for text in part.parts if isinstance(text, str) and NUMBER.search(text)]
            if loose and not part.is_fact():
                wrong.append(f"{address}: {loose} is neither a count nor a fact")
        for count in page.all("a", "count"):
            target = urljoin(address, count.named["href"])
            if number_of(count) not in (rows := pages.rows(target, count)):
                wrong.append(f"{address}: {count.text().strip()!r} leads to {rows} rows of {target}")
            checked[urlsplit(target).path.split("/")[1]] += 1
    assert wrong == []
    assert set(checked) >= {"run", "runs", "diff", "matrix", "prs", "pr", "backend", ""}
    assert sum(checked.values()) > 300


def test_the_sentence_counts_the_rows_below_it(filled: Site) -> None:
    for number in (PULL, 7):
        page, told = Pages(filled).read(f"/pr/{number}"), filled.get(f"/pr/{number}")
        words = [row.text().strip().split(maxsplit=1)[1] for row in page.by_id("backends").all("td", "v")]
        with_verdict, backends, *rest = (int(found) for found in NUMBER.findall(told["sentence"]))
        assert (with_verdict, backends) == (words.count(told["verdict"]), len(words))
        if told["verdict"] == "broken by this PR":
            news = [row["counts"] for row in told["backends"]]
            sums = [sum(row["new_failures"] for row in news), sum(row["new_on_cpu"] for row in news)]
            assert rest == sums[: len(rest)]
