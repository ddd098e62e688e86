"""The page in a real browser: roofline, memory, latency, sweep and sensitivity, and the switch between phases."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import browser as chromium
from helpers.browser import Opened

pytestmark = pytest.mark.slow

server, browser, opened = chromium.server, chromium.browser, chromium.opened  # fixtures, found by their names here


def phase(page: Any, tab: str) -> list[str]:
    """The phases that are checked in a tab's switch, and as a screen reader hears them."""
    page.click(f"#tab-{tab}")
    page.wait_for_selector(f".view-{tab} .switch")
    checked: list[str] = page.eval_on_selector_all(f".view-{tab} .switch :checked", "all => all.map(one => one.value)")
    group = page.locator(f".view-{tab}").get_by_role("radiogroup", name="Phase")
    spoken = [one.input_value() for one in group.get_by_role("radio", checked=True).all()]
    assert spoken == checked
    return checked


def test_tabs_share_the_phase_and_each_shows_it(opened: Opened) -> None:
    page = opened()
    assert phase(page, "graph") == ["decode"]
    assert phase(page, "latency") == ["decode"]
    assert phase(page, "graph") == ["decode"], "a second switch in the page takes nothing from the first"
    page.focus(".view-graph .switch :checked")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**phase=prefill*")
    assert page.evaluate("document.activeElement.value") == "prefill", "the keyboard stays where it is"
    assert phase(page, "latency") == phase(page, "graph") == ["prefill"]
