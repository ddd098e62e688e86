"""The page in a real browser for tests: Chrome or Chromium driven by Playwright, from the real server.

``python -m helpers.browser`` fails, and says so, where there is none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.web_server import Server, serving

NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
MISSING = f"no Chrome or Chromium was found at {CHROMIUM or ', '.join(NAMES)}; CHROMIUM=PATH names one"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--process-per-site",  # a new page is drawn by the process that drew the last one, if a page is still open
]
TABS = (
    *("graph", "roofline", "memory", "cluster", "latency", "sweep"),
    *("search", "simulate", "sensitivity", "training", "accuracy"),
)


# Of tests/web, and ended with it: while Playwright runs, no other event loop can run in this thread.
@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).is_file():
        pytest.skip(MISSING)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """Pages that were opened, with everything they complained about and asked for."""

    def __init__(self, browser: Any, server: Server) -> None:
        self.browser, self.server = browser, server
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.pages: list[Any] = []

    def __call__(self, query: str = "", width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        page = self.context(**options).new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # what moves takes time, too
        self.pages.append(page)
        page.set_default_timeout(60_000)  # a busy machine is no failure
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(query if query.startswith("file:") else f"{self.server.address}/{query}")
        page.wait_for_selector(".tile, .problem", state="attached")  # some tabs fold the tiles
        return page

    def context(self, **options: Any) -> Any:
        """A context that has the page's files and a process already, if one was opened like it."""
        contexts: dict[Any, Any] = vars(self.browser).setdefault("contexts_of_tests", {})
        key = (repr(options), self.server.address)
        if key not in contexts:
            contexts[key] = self.browser.new_context(**options)
            contexts[key].new_page().goto(f"{self.server.address}/healthz/live")  # stays open, and its process with it
        return contexts[key]

    def close(self) -> None:
        """Close the pages; what they stored goes with them."""
        for page in self.pages:
            if page.url.startswith("http"):
                page.evaluate("localStorage.clear()")
            page.close()


@pytest.fixture
def opened(browser: Any, server: Server) -> Iterator[Opened]:
    made = Opened(browser, server)
    yield made
    made.close()
    provoked = ("status of 400", "status of 429", "ERR_INTERNET_DISCONNECTED")  # by some tests
    refusals = [e for e in made.errors if any(word in e for word in provoked)]
    assert [e for e in made.errors if e not in refusals] == []


def figure(page: Any, metric: str) -> str:
    text: str = page.inner_text(f"[data-metric={metric}] .value")
    return text


def changed(page: Any, metric: str, before: str) -> str:
    """The figure once it is another one."""
    there = f"document.querySelector('[data-metric={metric}] .value')"
    page.wait_for_function(f"before => {there}.textContent !== before", arg=before)
    return figure(page, metric)


def slide(page: Any, name: str, position: int, end: bool = True) -> None:
    page.eval_on_selector(
        f"[data-control={name}] input[type=range]",
        """(slider, [position, end]) => {
        slider.value = position;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        if (end) slider.dispatchEvent(new Event("change", { bubbles: true }));
    }""",
        [position, end],
    )


if __name__ == "__main__":
    sys.exit(None if Path(CHROMIUM).is_file() else MISSING)
