"""Take a picture of a page with the system's Chromium: ``python tools/picture.py URL FILE.png [WIDTH HEIGHT]``.

The pictures of the demo in ``docs/img`` are made with it while ``make demo`` keeps its servers up.
"""

from __future__ import annotations

import shutil
import sys

from playwright.sync_api import sync_playwright

_QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main(url: str, file: str, width: str = "1280", height: str = "800") -> None:
    """Write the first screenful of ``url``, in CSS pixels, to ``file``."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_QUIET)
        page = browser.new_page(viewport={"width": int(width), "height": int(height)})
        page.goto(url)
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
