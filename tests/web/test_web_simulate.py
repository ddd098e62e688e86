"""The Simulate tab in a real browser: an example at once, a replay that loses no request, results that stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import Opened

pytestmark = pytest.mark.slow

TRACE = "input_tokens,output_tokens,arrival_s\n" + "".join(f"{100 + i},{10 + i},{i / 4}\n" for i in range(20))
FIRST = ".view-simulate .first"


def counts(page: Any) -> dict[str, int]:
    """Requests by phase at the cursor, of which the last entry is all of them."""
    rows = page.eval_on_selector_all(
        "#replay [data-phase]", "rows => rows.map(row => [row.dataset.phase, row.querySelector('dd').textContent])"
    )
    numbers = {name: int(text.replace(",", "")) for name, text in rows}
    total = numbers.pop("all")
    assert sum(numbers.values()) == total
    return {**numbers, "all": total}


def wait_for_first(page: Any, start: str) -> None:
    page.wait_for_function(
        "([place, start]) => document.querySelector(place)?.textContent.startsWith(start)", arg=[FIRST, start]
    )


def test_an_example_is_played_and_a_trace_stays_over_a_reload(opened: Opened, tmp_path: Path) -> None:
    page = opened("?tab=simulate")
    wait_for_first(page, "200 requests in")
    assert "An example: 200 requests at 4/s" in page.inner_text(".about")
    assert counts(page)["all"] == 200 and counts(page)["decode"] > 3  # it begins at the busiest moment

    page.focus("#replay input[type=range]")
    page.keyboard.press("Home")
    assert counts(page)["not_arrived"] >= 199 and page.inner_text("#replay output").startswith("0.00 s of")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    middle = counts(page)
    assert middle["not_arrived"] < 199 and middle["finished"] < 200
    page.keyboard.press("End")
    assert counts(page)["finished"] == 200
    page.keyboard.press("Space")  # from the beginning
    page.wait_for_function("() => parseFloat(document.querySelector('#replay output').textContent) < 50")
    assert page.inner_text("#replay .go") == "Pause" and counts(page)["all"] == 200
    page.keyboard.press("Space")
    page.wait_for_url(re.compile("sim_t="))
    assert page.inner_text("#replay .go") == "Play"
    page.click("#replay summary")
    assert "TTFT" in page.inner_text("#replay table") and "kept" in page.inner_text("#replay table")

    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    page.set_input_files("#sim-trace-file", path)
    page.wait_for_selector("text=trace.csv: lengths and arrivals")
    page.click(".view-simulate .ask .go")
    wait_for_first(page, "20 requests in")
    page.wait_for_url(re.compile("sim_job="))
    page.wait_for_selector("#chart-cdf-ttft_ms .js-line", state="attached")
    assert page.inner_text("#chart-cdf-ttft_ms .note") == "goal 500 ms: 100% meet it"
    assert page.text_content("#chart-cdf-ttft_ms .annotation-text") == "goal 500 ms →"  # far beyond the data
    first, asked = page.inner_text(FIRST), sum(url.endswith("/api/simulate") for url in opened.asked)
    page.reload()
    wait_for_first(page, first)
    assert sum(url.endswith("/api/simulate") for url in opened.asked) == asked  # it was kept, not run again

    page.click("text=Pin this simulation")
    page.fill("#sim_num_prompts", "150")
    page.fill("#sim_request_rate", "")
    page.fill("#sim_ttft", "100")
    page.click(".view-simulate .ask .go")
    wait_for_first(page, "150 requests in")
    assert page.locator(".view-simulate .tile .delta").count() > 4
    assert page.inner_text(".view-simulate .table").count("difference") == 4
    page.wait_for_function("() => document.querySelectorAll('#chart-cdf-ttft_ms .js-line').length === 2")
    goal = page.locator("#chart-cdf-ttft_ms .annotation-text")
    alert = page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--vermillion').trim()")
    assert [int(alert[i : i + 2], 16) for i in (1, 3, 5)] == [
        int(part) for part in re.findall(r"\d+", goal.evaluate("text => getComputedStyle(text).fill"))[:3]
    ]


def test_replicas_apart_a_lost_result_and_a_long_run_that_is_cancelled(opened: Opened) -> None:
    traffic = "sim_request_rate=40&sim_num_prompts=150000&sim_prefill_replicas=1&sim_decode_replicas=2"
    page = opened(f"?tab=simulate&sim_job=00&{traffic}")
    wait_for_first(page, "200 requests in")
    assert "no longer keeps this simulation" in page.inner_text(".about")
    assert "Simulate runs all 150,000" in page.inner_text(".about")
    opened.errors[:] = [error for error in opened.errors if "404" not in error]
    everyone = counts(page)
    assert everyone["all"] == 200 and "transfer" in page.inner_text("#replay .legend")
    both = []
    for replica in ("1", "2"):
        page.select_option("#replay select[aria-label=Replica]", replica)
        both.append(counts(page))
    assert both[0]["all"] + both[1]["all"] == 200
    assert both[0]["decode"] + both[1]["decode"] == everyone["decode"]
    page.click("text=Run it again")
    page.wait_for_function("() => /running, \\d+%/.test(document.querySelector('.progress .note').textContent)")
    page.click(".progress button:visible")
    page.wait_for_selector(".view-simulate .wrong:visible")
    assert page.inner_text(".view-simulate .wrong") == "cancelled"
    assert page.inner_text(FIRST).startswith("200 requests in")  # the example stays


def test_tiers_of_the_cache_are_drawn_over_time(opened: Opened) -> None:
    """What every tier holds never exceeds its size; all that was stored is in the parts of the run."""
    agents = "sim_agents=coding-agent,turns%3D8,context_limit%3D60000&sim_num_sessions=20&sim_warm_cache=0.5"
    page = opened(f"?tab=simulate&kv_offloading_size=8&gpu=l40s&model=llama-3.2-3b&{agents}")
    page.click(".view-simulate .ask .go")
    wait_for_first(page, "129 requests in")
    page.locator("#chart-tiers").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-tiers .js-plotly-plot", state="attached")
    drawn = page.eval_on_selector(
        "#chart-tiers .js-plotly-plot", "box => box.data.map(({ name, x, y }) => ({ name, x: [...x], y: [...y] }))"
    )
    by_name = {one["name"]: one for one in drawn}
    assert set(by_name) == {"GPU holds", "CPU memory holds", "loaded, CPU memory", "stored, CPU memory"}
    held, stored = by_name["CPU memory holds"], by_name["stored, CPU memory"]
    assert 0 < len(held["x"]) <= 512 and 4.0 < max(held["y"]) <= 8.0
    assert held["y"][0] > 0  # warm from the start
    gigabytes = sum(stored["y"][:-1]) * (stored["x"][1] - stored["x"][0])
    table = page.inner_text(".view-simulate .table:has-text('tiers')")
    shown = re.search(r"CPU memory\s+8.59 GB\s+8.59 GB\s+\S+\s+\S+ \S+\s+([\d.]+) GB", table)
    assert shown is not None and gigabytes == pytest.approx(float(shown[1]), rel=0.01)
