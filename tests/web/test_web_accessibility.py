"""Every tab by the rules of axe-core: light and wide, dark and narrow, compared with a pinned plan, a panel open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import TABS, Opened

pytestmark = pytest.mark.slow


# What stands in a chart is one picture with a name: its many parts, and tabs that were looked at, only take time.
# So do more rows of one kind: a loop writes them.
CLEARED = """() => {
    document.querySelectorAll("#view > [hidden], .plot").forEach((one) => one.replaceChildren());
    const kinds = new Map(), kind = (row) => row.parentNode.className + [...row.querySelectorAll("*")].map(
        (part) => part.tagName + part.className + [...part.attributes].map(({ name }) => name),
    );
    document.querySelectorAll("#view tbody > tr").forEach((row) => {
        const number = (kinds.get(kind(row)) || 0) + 1;
        kinds.set(kind(row), number);
        if (number > 3) row.remove();
    });
}"""
FINDINGS = """([place, rules]) => axe.run({ include: [place], exclude: [".part"] }, {
    ...(rules.length ? { runOnly: rules } : { rules: { "label-content-name-mismatch": { enabled: true } } }),
    resultTypes: ["violations"], preload: false, iframes: false,
}).then(({ violations }) => violations.map(
    ({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`,
))"""
# (Parts of a machine's drawing are left out: axe joins their lines of text without spaces, which no name does.)
OF_WIDTH_AND_THEME = ["color-contrast", "heading-order", "scrollable-region-focusable"]


def findings(page: Any, place: str, rules: list[str]) -> list[str]:
    page.evaluate(CLEARED)
    found: list[str] = page.evaluate(FINDINGS, [place, rules])
    return found


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["wide", "narrow"])
def test_no_tab_breaks_a_rule(opened: Opened, width: int, scheme: str) -> None:
    if scheme == "dark" and not os.environ.get("INFEROMETER_SLOW_TESTS"):
        pytest.skip("the phone's width is checked with INFEROMETER_SLOW_TESTS=1")
    axe = pytest.importorskip("axe_playwright_python")
    rules = OF_WIDTH_AND_THEME if scheme == "dark" else []
    page = opened("?tensor_parallel_size=2&pin=batch_size%3D8", width, scheme)
    page.wait_for_selector(".pinned")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    page.click("[data-op=qkv_proj]")
    page.wait_for_selector(".operator .line output")
    found = {"graph": findings(page, "body", rules)}
    page.keyboard.press("Escape")
    page.wait_for_selector(".operator", state="hidden")
    page.focus("#tab-graph")
    for tab in TABS[1:]:
        page.keyboard.press("ArrowRight")  # tabs by the keyboard alone
        page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")
        page.wait_for_selector(f".view-{tab}:visible")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{tab} is {wide} px wide"
        found[tab] = findings(page, "#view", rules)
    if width < 500:
        page.click("#open-plan")
        found["plan"] = findings(page, "#plan", rules)
        page.keyboard.press("Escape")
        assert page.is_hidden("#plan") and page.evaluate("document.activeElement.id") == "open-plan"
    assert {place: rules for place, rules in found.items() if rules} == {}
    assert {url.split("/")[2] for url in opened.asked if url.startswith("http")} == {opened.server.address[7:]}
