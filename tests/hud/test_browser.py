"""The pages in a real browser: seen at once, by keyboard, in both themes, without script, with axe-core's checks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hud_site import Site, pulled, served
from playwright.sync_api import Browser, Page, expect, sync_playwright

from hud.seed import PULL, seed
from hud.store import open_store

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests/node/node_modules/axe-core/axe.min.js"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PAGES = {
    "home": "/",
    "pr": f"/pr/{PULL}",
    "passed": f"/pr/{PULL + 1}",
    "prs": "/prs?state=open",
    "runs": "/runs",
    "look": "/?show=look",
    "partly": "/matrix/example/known-failures?state=partly",
    "backend": "/backend/example/known-failures",
    "matrix": "/matrix/example/known-failures",
    "health": "/health",
    "definitions": "/definitions",
}
KEYED = ("run", "every", "search", "cell", "only", "diff", "test")
"""Pages with keys in their address."""
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "the browser tests need Chromium: run `make setup-tests`"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('browser')}/hud.db")
    with served(store) as site:
        seed(store, site.clock.now)
        yield site
    store.close()


@pytest.fixture(scope="module")
def addresses(demo: Site) -> dict[str, str]:
    """Every kind of page, those with keys in their address included."""
    job = demo.get(f"/pr/{PULL}")["backends"][0]["jobs"][0]
    name = job["new_failures"][0].replace("[", "%5B").replace("]", "%5D").replace("@", "%40")
    return {
        **PAGES,
        "run": f"/run/{job['run']}",
        "every": f"/run/{job['run']}?outcome=all",
        "search": f"/run/{job['run']}?outcome=all&q=conv2d",
        "cell": f"/run/{job['run']}?outcome=ran&op=conv2d&dtype=bfloat16",
        "only": f"/diff?base={job['base']['run']}&head={job['run']}&only=newly%20failing",
        "diff": f"/diff?base={job['base']['run']}&head={job['run']}",
        "test": f"/test?name={name}",
    }


@pytest.fixture
def page(browser: Browser, demo: Site) -> Iterator[Page]:
    """A page that fails the test when the browser's console has an error."""
    context = browser.new_context(base_url=demo.url, viewport=WIDE)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert errors == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280x800", "360x740"])
def test_the_verdict_is_visible_without_scrolling(page: Page, size: dict[str, int]) -> None:
    page.set_viewport_size(size)
    page.goto(f"/pr/{PULL}")
    box = page.locator("#verdict").bounding_box()
    assert box is not None and box["y"] + box["height"] <= size["height"] and box["x"] + box["width"] <= size["width"]
    first = page.locator("table.backends tbody tr").first.bounding_box()
    assert first is not None and first["y"] + first["height"] <= size["height"]


@pytest.mark.parametrize("name", [*PAGES, *KEYED])
def test_nothing_is_wider_than_a_telephone(page: Page, addresses: dict[str, str], name: str) -> None:
    page.set_viewport_size(NARROW)
    page.goto(addresses[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*PAGES, *KEYED])
def test_axe_finds_nothing_in_either_theme(page: Page, addresses: dict[str, str], name: str, scheme: str) -> None:
    assert AXE.exists(), "axe-core is not installed: run `make setup-tests`"
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(addresses[name])
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [
        (broken["id"], node["target"], node["failureSummary"])
        for broken in found["violations"]
        for node in broken["nodes"]
    ] == []


@pytest.mark.parametrize("size", [{"width": 700, "height": 400}, NARROW], ids=["700x400", "360x740"])
def test_the_headers_of_the_matrix_stay_while_it_is_scrolled(page: Page, size: dict[str, int]) -> None:
    page.set_viewport_size(size)
    page.goto(PAGES["matrix"])
    box = page.locator(".box")
    # The demo's operators and dtypes fit into a large box; a smaller one has to be scrolled both ways.
    box.evaluate("box => Object.assign(box.style, {maxWidth: '260px', maxHeight: '160px'})")
    box.evaluate("box => box.scrollTo(150, 150)")
    assert box.evaluate("box => [box.scrollLeft, box.scrollTop]") == [150, 150]
    places = box.evaluate(
        """box => {
            const edge = box.getBoundingClientRect();
            const place = (found) => {
                const at = found.getBoundingClientRect();
                return [at.left - edge.left, at.top - edge.top];
            };
            const [corner, first] = box.querySelectorAll("thead th");
            const rows = box.querySelectorAll("tbody tr");
            return {corner: place(corner), head: place(first), row: place(rows[6].querySelector("th"))};
        }"""
    )
    assert places["corner"] == [1, 1] and places["head"][1] == 1 and places["row"][0] == 1
    covered = """box => {
        const edge = box.getBoundingClientRect();
        return document.elementFromPoint(edge.left + 8, edge.top + 8).closest("thead") !== null;
    }"""
    assert box.evaluate(covered), "a row is drawn over the header"


def test_the_theme_can_be_chosen_and_is_remembered(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(ground) == "rgb(13, 17, 23)"
    page.reload()
    assert page.evaluate(ground) == "rgb(13, 17, 23)"


def test_a_page_is_used_by_keyboard_alone(page: Page) -> None:
    page.goto(f"/pr/{PULL}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "2 new failing tests":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/*")
    assert page.locator(".results > li").count() == 2


def test_pages_are_complete_with_script_off(browser: Browser, demo: Site, addresses: dict[str, str]) -> None:
    with browser.new_context(base_url=demo.url, java_script_enabled=False) as context:
        opened = context.new_page()
        opened.goto(addresses["pr"])
        assert opened.get_by_text("Broken by this PR on 1 of 8 backends – 2 new failing tests").is_visible()
        opened.get_by_role("link", name="With messages and how to reproduce").first.click()
        opened.locator(".results summary").first.click()
        assert opened.get_by_text("conformance run --upstream pytorch").first.is_visible()


def test_a_page_follows_what_happens(page: Page, demo: Site) -> None:
    demo.report(pulled("c", number=9), "live", "900")
    page.goto("/pr/9")
    assert page.locator("#verdict strong").inner_text().startswith("Running")
    with page.expect_request(lambda request: request.url.endswith("/pr/9") and request.resource_type == "fetch"):
        demo.clock.now += 1
        demo.run(pulled("c", number=9), "live", {"a": "passed"}, "900")
    expect(page.locator("#verdict strong")).not_to_contain_text("Running")
    assert page.title().startswith("not reported")
    assert page.locator("td.v", has_text="passed").count() == 1


def test_pictures_of_the_documentation(page: Page, addresses: dict[str, str], tmp_path: Path) -> None:
    """With ``HUD_PICTURES`` set the pictures in ``docs/img`` are taken anew, else they are only taken."""
    folder = ROOT / "docs/img" if "HUD_PICTURES" in os.environ else tmp_path
    for name in ("home", "pr", "run", "backend", "test", "matrix", "diff", "health"):
        page.emulate_media(color_scheme="dark" if name in ("home", "matrix") else "light")
        page.goto(addresses[name])
        page.screenshot(path=folder / f"hud-{name}.png")
    page.set_viewport_size(NARROW)
    page.goto(addresses["pr"])
    page.screenshot(path=folder / "hud-pr-narrow.png")
    assert {file.name for file in folder.glob("hud-*.png")} <= {file.name for file in (ROOT / "docs/img").iterdir()}
