"""Netron in a real browser: `qdqtool view` serves a model, an installed Chromium draws it, and what the page shows is read.

Netron forbids ``eval``, so nothing is evaluated in the page: clicks, texts and attributes only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cases.cli_helpers import command_line, environment
from tests.cases.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Headless as root, and without the background services that look for the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
#: Where screenshots are kept, if they are to be kept: the pictures of the docs are made with ``docs/images``.
KEPT = "QDQTOOL_SCREENSHOTS"
#: Milliseconds that a page may take to show what a test waits for.
PATIENCE_MS = 1000 * PATIENCE
NO_BROWSER = f"no Chromium is installed ({', '.join(BROWSERS)})"


def browser_path() -> str | None:
    """The installed Chromium, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def screenshots(otherwise: Path) -> Path:
    """The folder for screenshots: what the environment says, or ``otherwise``."""
    return Path(os.environ.get(KEPT) or otherwise)


@contextmanager
def served(model: str | Path, *more: str | Path, folder: Path | None = None) -> Iterator[str]:
    """``qdqtool view`` of ``model`` in ``folder``, with ``more`` on its command line; its address."""
    run = command_line("view", "--no-browser", "--json", model, *more)
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=environment(), cwd=folder) as server:
        try:
            assert server.stdout is not None
            lines = ""
            while not lines.rstrip().endswith("}"):
                line = server.stdout.readline()
                assert line, f"view ended: {lines}"
                lines += line
            yield json.loads(lines)["url"]
        finally:
            server.terminate()


@contextmanager
def started() -> Iterator[Browser]:
    """The browser, headless; one at a time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


def patient(context: BrowserContext) -> BrowserContext:
    """Let all that waits in ``context`` wait for `PATIENCE_MS`."""
    context.set_default_timeout(PATIENCE_MS)
    return context


def count_script_blocks(page: Page) -> Callable[[], int]:
    """Count the blocks of JavaScript that run from now on; the function that is returned reads the counter.

    A count is the same on every machine, unlike a time."""
    session = page.context.new_cdp_session(page)
    session.send("Profiler.enable")
    session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})

    def read() -> int:
        scripts = session.send("Profiler.takePreciseCoverage")["result"]
        return sum(block["count"] for script in scripts for called in script["functions"] for block in called["ranges"])

    return read


def count_elements(page: Page) -> int:
    """Return the number of elements in ``page``."""
    return int(page.evaluate("document.querySelectorAll('*').length"))


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[NetronPage]:
    """The page at ``url``, drawn. Nothing outside of ``url`` is asked for."""
    context = patient(browser.new_context(viewport={"width": 1280, "height": 960}))
    try:
        # consent to its telemetry, for which Netron asks before it opens the model
        context.add_cookies([{"name": "consent", "value": "1", "url": url}])
        context.route(lambda asked: not asked.startswith(url), lambda route: route.abort())
        context.route(f"{url}/", _without_date)
        page = context.new_page()
        page.goto(f"{url}/")
        page.wait_for_selector("#canvas text", state="attached")
        yield NetronPage(page)
    finally:
        context.close()


def _without_date(route: Route) -> None:
    """The page without the day of its release: Netron draws nothing when that is half a year ago."""
    answer = route.fetch()
    route.fulfill(response=answer, body=re.sub(r'<meta name="date"[^>]*>', "", answer.text()))


class NetronPage:
    """A model that Netron has drawn."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def operators(self) -> list[str]:
        """What stands in the boxes of the graph."""
        return [item.text_content() or "" for item in self._page.locator("#canvas g.node-item text").all()]

    def click_node(self, name: str) -> None:
        """Click the box of the node called ``name``; the sidebar shows it."""
        self._page.locator(f"g[id={json.dumps(f'node-name-{name}')}] .node-item-type").first.click()
        self._page.locator("#sidebar input[value=type]").wait_for()

    def open_inside(self, name: str, sign: str, node: str) -> None:
        """Click ``sign`` on the box called ``name``, ƒ of a local function or + of a body, and wait until ``node`` is drawn."""
        self._page.locator(f"g[id={json.dumps(f'node-name-{name}')}] .node-item", has_text=sign).click()
        self._page.locator(f"g[id={json.dumps(f'node-name-{node}')}]").wait_for()

    def click_value(self, name: str) -> None:
        """Click the line of the sidebar that names the value ``name``; the sidebar shows the value."""
        self._page.locator("#sidebar .sidebar-item-value-line-content", has_text=f"name: {name}").first.click()
        self._page.locator("#sidebar input[value=name]").wait_for()

    def sidebar(self) -> dict[str, str]:
        """Label → text of every row, with the rows unfolded; a label that is there twice has both texts."""
        for fold in self._page.locator("#sidebar .sidebar-item-value-expander", has_text="+").all()[::-1]:
            fold.click()
        found: dict[str, str] = {}
        for row in self._page.locator("#sidebar .sidebar-item").all():
            label = _label(row)
            text = row.locator(".sidebar-item-value-list").inner_text().removeprefix("-\n").strip()
            found[label] = f"{found[label]}\n{text}" if label in found else text
        return found

    def screenshot(self, path: Path) -> None:
        """Take a picture of the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._page.screenshot(path=path)


def _label(row: Locator) -> str:
    return row.locator(".sidebar-item-name input").get_attribute("value") or ""
