"""The page in a real browser: roofline, memory, latency, sweep and sensitivity, and the switch between phases."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.browser import Opened

pytestmark = pytest.mark.slow


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


def test_the_roofline_names_its_dots_and_shows_all_of_the_time(opened: Opened) -> None:
    page = opened("?tensor_parallel_size=2&batch_size=8&tab=roofline&pin=batch_size%3D1")
    page.wait_for_selector("#chart-roofline-decode .dot text")
    decode = opened.server.post("/api/roofline", {"tensor_parallel_size": 2, "batch_size": 8}).json["phases"]["decode"]
    with_dots = [op for op in decode["ops"] if op["flops"] > 0 and op["bytes"] > 0]
    assert len(page.query_selector_all("#chart-roofline-decode .dot")) == len(with_dots)
    boxes = page.eval_on_selector_all(
        "#chart-roofline-decode .dot text, #chart-roofline-decode .dot circle",
        """all => all.map(e => [e, e.getBoundingClientRect()])
            .map(([e, r]) => [e.tagName, r.left, r.top, r.right, r.bottom])""",
    )
    texts, dots = ([tuple(b[1:]) for b in boxes if b[0] == kind] for kind in ("text", "circle"))
    inner = [
        (x0 + (x1 - x0) * 0.15, y0 + (y1 - y0) * 0.15, x1 - (x1 - x0) * 0.15, y1 - (y1 - y0) * 0.15)
        for x0, y0, x1, y1 in dots
    ]
    for i, (x0, y0, x1, y1) in enumerate(texts):
        y0, y1 = y0 + 1, y1 - 1  # the font's own room above and below its letters
        assert not [o for o in [*texts[:i], *inner] if x0 < o[2] and o[0] < x1 and y0 < o[3] - 1 and o[1] + 1 < y1]
    assert "no arithmetic:" in page.text_content("#chart-roofline-decode svg")
    assert "all_reduce" in page.text_content("#chart-roofline-decode svg")
    assert "rings: pinned" in page.inner_text("#chart-roofline-decode .note")
    page.focus("#chart-roofline-decode .dot[data-op=attention]")
    assert "FLOP/byte" in page.inner_text("#chart-roofline-decode .hover-card")
    page.keyboard.press("Enter")
    page.wait_for_selector(".operator h3")
    assert page.inner_text(".operator h3") == "attention"


def test_memory_has_one_number_for_the_largest_batch(opened: Opened) -> None:
    page = opened("?tab=memory&data_parallel_size=2&batch_size=4")  # its cache alone would have room for two more
    page.wait_for_selector("#chart-memory-sequences .annotation-text")
    memory = opened.server.post("/api/analyze", {"data_parallel_size": 2, "batch_size": 4}).json["memory"]
    most = f"{memory['max_batch_size']:,}"
    assert f"overflows after {most} sequences" in page.text_content("#chart-memory-sequences")
    assert f"{most} sequences" in page.inner_text("#chart-memory .note")
    assert f"{most} sequences" in page.inner_text("#chart-memory-sequences .note")
    rows = page.inner_text(".view-memory .facts")
    assert f"largest batch\t{most}" in rows
    limits = page.eval_on_selector_all(
        "#chart-memory .annotation-text", "all => all.map(e => e.getBoundingClientRect().top)"
    )
    assert len(set(limits)) == 2, "usable and capacity stand on two lines"
    page.fill("#c-model", "DiT-XL/2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart-memory-sequences", state="hidden")
    shown = page.inner_text(".view-memory")
    assert "1,000,000,000" not in shown and "NaN" not in shown and "largest batch\t" in shown


def test_latency_pairs_its_bars_in_seconds_and_folds_small_operators(opened: Opened) -> None:
    page = opened("?model=qwen3-30b-a3b&batch_size=8&tab=latency&pin=model%3Dqwen3-30b-a3b")
    page.wait_for_selector("#chart-waterfall .bars .point")
    page.wait_for_selector("#chart-composition .bars .point")
    drawn = page.evaluate("document.querySelector('#chart-composition .plot').data.map(t => [t.xaxis, t.y, t.x])")
    assert drawn[0][1] == ["TTFT now", "TTFT pinned"]
    now = opened.server.post("/api/analyze", {"model": "qwen3-30b-a3b", "batch_size": 8}).json
    for axis, metric in (("x", "ttft_ms"), ("x2", "tpot_ms")):
        total = sum(values[0] for name, _, values in drawn if name == axis)
        assert total == pytest.approx(now["metrics"][metric], rel=1e-6), "lengths are milliseconds"
    assert "TPOT pinned" in page.inner_text("#chart-composition .note")
    ops = [op for op in now["phases"]["decode"]["ops"] if op["seconds"] > 0]
    small = [op for op in ops if op["share"] < 0.005]
    rows = "document.querySelector('#chart-waterfall .plot').layout.yaxis.ticktext"
    assert page.evaluate(rows)[-1] == f"{len(small)} others, each below 0.5%"
    assert len(page.evaluate(rows)) == len(ops) - len(small) + 1
    page.click(".view-latency .fold")
    page.wait_for_url("**lat_all=on*")
    page.wait_for_function(f"n => {rows}.length === n", arg=len(ops))


def test_lines_on_each_other_say_so(opened: Opened) -> None:
    page = opened("?tab=sweep&sweep_values=1,2,4&sweep_by=max_num_seqs&sweep_lines=256,512")  # more than are at once
    page.wait_for_selector("#chart-sweep .point")
    plot = "document.querySelector('#chart-sweep .plot')"
    names = page.evaluate(f"{plot}.data.filter(t => t.showlegend !== false).map(t => t.name)")
    assert any(name.endswith("256 (same line: 512)") for name in names) and not any(
        name.endswith(" 512") for name in names
    )
    note = page.inner_text("#chart-sweep .note")
    assert note.startswith("6 points") and "TPOT (ms) from" in note
