"""The Search tab in a real browser: results that survive a reload, plans that lost, two searches side by side."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.browser import Opened

pytestmark = pytest.mark.slow

PLAN = {"model": "llama-3.1-8b", "gpu": "h200", "output_len": 16}
BODY = {"plan": PLAN, "num_gpus": 2, "goodput": "ttft:500,tpot:50", "objective": "throughput", "mode": "both"}
QUERY = "?tab=search&gpu=h200&output_len=16&search_num_gpus=2"


def plane(page: Any) -> dict[str, list[Any]]:
    """Outcomes of what stands in the plane of the chart, and of what stands beside it."""
    return page.eval_on_selector(  # type: ignore[no-any-return]
        "#chart-pareto .plot",
        """plot => {
        const outcomes = (traces) => traces.flatMap(t => (t.customdata ?? []).map(one => one.verdict ?? "estimated"));
        const beside = plot.data.filter(t => t.xaxis === "x2");
        return { plane: [...new Set(outcomes(plot.data.filter(t => t.xaxis !== "x2")))], beside: outcomes(beside),
                 symbols: beside.map(t => t.marker.symbol), below: beside.flatMap(t => t.y) };
    }""",
    )


def test_plans_that_lost_look_lost_and_two_searches_are_compared(opened: Opened) -> None:
    job = opened.server.job("/api/search", BODY)
    answer, name = job["result"], job["job"]
    page = opened(f"{QUERY}&search_job={name}", 1440)
    page.wait_for_selector("#chart-pareto .point")
    # the winner
    winner, lost = answer["plans"][0], [plan for plan in answer["plans"] if plan["verdict"] == "beaten"]
    assert lost and winner["label"] in page.inner_text(".winner h3")
    assert f"{answer['margin']['runner_up']:.1%} ahead of the next" in page.inner_text(".winner .lead")
    assert f"{answer['seconds']['total']:.3g} s in total" in page.inner_text(
        ".view-search > div:last-child > .note:last-child"
    )
    # those that lost: bounds, the limit that they miss, and a place of their own
    for row, plan in zip(page.query_selector_all(".view-search tr.beaten"), lost, strict=True):
        cells = [cell.inner_text() for cell in row.query_selector_all("td")]
        assert cells[0] == plan["label"] and cells[2].startswith("<") and cells[7].startswith(">$")
        missed = [re.sub(r"\s+", " ", cell.inner_text()) for cell in row.query_selector_all(".missed")]
        assert len(missed) == len(plan["missed"]) and all(re.search(r"> 500? ms$", text) for text in missed)
    seen = plane(page)
    assert "beaten" not in seen["plane"] and seen["beside"] == ["beaten"] * len(lost)
    assert all(symbol.endswith("-open") for symbol in seen["symbols"])
    assert max(seen["below"]) <= winner["simulated"]["output_throughput_per_gpu"]
    # pinned, then another question
    page.click("#pin-search")
    page.fill("#search_ttft", "100")
    page.press("#search_ttft", "Enter")
    page.wait_for_selector(".table[aria-label='The pinned search and this one']")
    assert f"search_pin={name}" in page.url and f"search_job={name}" not in page.url
    page.reload()
    page.wait_for_function(  # drawn last
        "() => document.querySelector('#chart-pareto .plot').data?.some(trace => trace.name === 'pinned: front')"
    )
    table = page.text_content(".table[aria-label='The pinned search and this one']")
    assert "TTFT at most500 ms100 ms" in table and winner["label"] in table
    page.click("#unpin-search")
    assert "search_pin" not in page.url
    # a row becomes the plan, and stays no condition of the next search
    label = page.inner_text(".view-search tr.best td >> nth=0")
    page.click(".view-search tr.best .acts button >> nth=0")
    page.wait_for_url(re.compile("kv_cache_dtype=|quantization="))
    assert f"KV {page.input_value('#c-kv_cache_dtype')}" in label
    assert page.query_selector("text=has changed since") is None
    address = page.url
    page.press(".view-search tr.ties .acts button >> nth=1", "Enter")
    assert page.url == address, "the row is not opened with it"
    ties = page.inner_text(".view-search tr.ties td >> nth=0")
    assert page.inner_text(".commands h3") == f"How to start {ties}" and "vllm serve" in page.inner_text(".commands")


def test_a_result_that_is_gone_can_be_run_again_and_the_tab_is_never_empty(opened: Opened) -> None:
    page = opened(f"{QUERY}&search_mode=aggregated&search_job={'0' * 32}")
    page.wait_for_selector("text=no longer keeps this result")
    assert [error for error in opened.errors if "404" not in error] == []
    opened.errors.clear()
    page.click("text=Run it again")
    page.wait_for_selector(".winner")
    assert (
        "search_num_gpus=2" in page.url and "0" * 32 not in page.url and re.search("search_job=[0-9a-f]{32}", page.url)
    )
    # the figures of one plan are one line here
    assert not page.is_visible(".tiles") and "this plan: TTFT" in page.inner_text(".what")
    page.click("#tab-memory")
    assert page.is_visible(".tiles") and not page.is_visible(".folded")
    # without a question of one's own, an example
    example = opened(f"{QUERY}&search_mode=aggregated", 390)
    example.wait_for_selector(".progress:visible .note:has-text('example')")
    example.wait_for_selector(".winner")
    assert "An example" in example.inner_text(".hint") and "search_job" not in example.url
    assert example.evaluate("document.documentElement.scrollWidth") <= 390
