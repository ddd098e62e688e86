"""What holds the page together, in a real browser: links with mistakes, answers that take long, a lost server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.browser import Opened, changed, figure

pytestmark = pytest.mark.slow


# A link, what is said of it, and the address that is left.
BROKEN = [
    (
        "?batch_size=-3&bogus=1&gpu=h200",
        ["Batch size must be between 1 and", "“bogus” is not a key of a plan"],
        "?gpu=h200",
    ),
    ("?gpu=h10&engine=vlm&tab=none", ["Unknown GPU 'h10'", "Unknown engine 'vlm'", "There is no tab none"], ""),
    ("?model=a/../b&tensor_parallel_size=x&output_len=", ["Unknown model", "Tensor parallel must be"], ""),
    ("?model=granite-8b#config=AAAA", ["config.json of granite-8b in this link is damaged"], ""),
    (
        "?gpu=h200:none=1,memory=x&pin=gpu%3Dh1%26foo%3D2",
        ["Unknown figure", "Unknown GPU 'h1'", "“foo”"],
        "?gpu=h200&pin",
    ),
    ("?speculative_config=%7B&use_case=zz&batchsize=8", ["Speculat", "Did you mean batch_size?"], ""),
]


def test_links_with_mistakes_end_in_figures(opened: Opened) -> None:
    page = opened(BROKEN[0][0])
    for link, sentences, address in BROKEN:
        if link != BROKEN[0][0]:  # as going back to it would: the page itself need not be loaded again
            go = "link => (history.pushState(null, '', link), dispatchEvent(new PopStateEvent('popstate')))"
            page.evaluate(go, f"/{link}")
        page.wait_for_selector(f"#mistakes:has-text({json.dumps(sentences[0])})")
        assert figure(page, "ttft_ms").endswith("ms"), link
        shown = page.inner_text("#mistakes")
        assert not [sentence for sentence in sentences if sentence not in shown], shown
        assert page.url.removeprefix(f"{opened.server.address}/").startswith(address), page.url
        assert page.query_selector("#refused") is None
    page.click("#mistakes button:has-text('batch_size')")  # what was meant is one click away
    page.wait_for_url("**/?batch_size=8")
    assert page.input_value("#c-batch_size") == "8" and "batch_size" not in page.inner_text("#mistakes")
    page.click("text=Start from the default plan")
    page.wait_for_selector("#mistakes", state="detached")
    assert page.input_value("#c-batch_size") == "1"


def test_answers_on_the_way_servers_away_and_newer_ones(opened: Opened) -> None:
    page = opened("?tab=graph")
    before = figure(page, "tpot_ms")
    assert not any("plotly" in url for url in opened.asked), "the graph needs no library of charts"

    held: list[Any] = []
    page.route("**/api/sweep", lambda route: held.append(route))
    page.click("#tab-sweep")
    page.wait_for_selector(".view-sweep[aria-busy=true]")
    assert page.eval_on_selector_all("#chart-sweep .offers button", "all => all.every(one => one.disabled)")
    held[0].continue_()
    page.wait_for_selector("#chart-sweep .point")
    page.wait_for_selector(".view-sweep:not([aria-busy])")
    assert page.get_attribute("#chart-sweep .plot", "role") == "img"
    assert "TPOT" in page.get_attribute("#chart-sweep .plot", "aria-label")
    page.click("#chart-sweep .offers button:has-text('Table')")
    heads = page.eval_on_selector_all("#chart-sweep th", "all => all.map(one => one.textContent)")
    assert "batch size" in heads and page.is_hidden("#chart-sweep .plot")
    assert page.locator("#chart-sweep tbody tr").count() == 36
    page.unroute("**/api/sweep")

    page.route("**/*", lambda route: route.abort("internetdisconnected"))
    page.fill("#c-batch_size", "64")
    page.press("#c-batch_size", "Tab")
    page.wait_for_selector("#lost")
    assert page.inner_text("#lost").startswith("Connection lost") and page.query_selector("#refused") is None
    page.wait_for_selector("main[aria-busy=true]")
    assert figure(page, "tpot_ms") == before
    page.unroute("**/*")
    changed(page, "tpot_ms", before)  # the last question is answered by itself
    page.wait_for_selector("#lost", state="detached")

    def renewed(route: Any) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, headers={**reply.headers, "x-page-version": "0123456789abcdef"})

    page.route("**/api/analyze", renewed)
    page.fill("#c-batch_size", "2")
    page.press("#c-batch_size", "Tab")
    page.wait_for_selector("#outdated button:has-text('Reload')")


def test_before_the_first_answer_there_is_a_skeleton(opened: Opened) -> None:
    page = opened()
    held: list[Any] = []
    page.route("**/api/analyze", lambda route: held.append(route))
    page.reload()
    page.wait_for_selector("#c-model")
    assert page.is_visible("#headline .skeleton") and page.is_visible("#view .skeleton")
    assert page.get_attribute("main", "aria-busy") == "true"
    opened.server.until(lambda: page.wait_for_timeout(1) or held)
    held[0].continue_()
    page.wait_for_selector(".tile")
    page.wait_for_selector(".skeleton", state="detached")
    assert page.get_attribute("main", "aria-busy") is None
