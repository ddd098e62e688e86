"""The drawing of the network in a real browser: fold, zoom, pan, compare, the operator's panel and the strip."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.browser import Opened

pytestmark = pytest.mark.slow

LARGE = "?model=deepseek-v3&gpu=h200&tensor_parallel_size=8&batch_size=32&quantization=fp8"
# Texts of a node on its own box: the least WCAG contrast of all of them.
CONTRAST = """async () => {
    const { contrast } = await import("/static/contrast.js");
    const ratios = [...document.querySelectorAll(".drawing .op")].flatMap(op => [...op.querySelectorAll("text, tspan")]
        .map(text => contrast(text.getAttribute("fill"), op.querySelector("rect").getAttribute("fill"))));
    return [ratios.length, Math.min(...ratios)];
}"""


def box(page: Any, selector: str) -> dict[str, float]:
    return page.eval_on_selector(selector, "e => e.getBoundingClientRect().toJSON()")  # type: ignore[no-any-return]


def wait_for_scale(page: Any, scale: float) -> None:
    page.wait_for_function(
        """scale => {
            const drawing = document.querySelector(".drawing svg");
            const width = drawing.getBoundingClientRect().width;
            return Math.abs(width / Number(drawing.getAttribute("width")) - scale) < 1e-3;
        }""",
        arg=scale,
    )


def test_small_operators_fold_and_a_large_drawing_is_zoomed_and_moved(opened: Opened) -> None:
    page = opened(LARGE)
    report = opened.server.post(
        "/api/analyze",
        {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8, "batch_size": 32, "quantization": "fp8"},
    ).json
    ran = [op for op in report["phases"]["decode"]["ops"] if op["seconds"] > 0 and op["kind"] != "host"]
    assert page.evaluate(CONTRAST)[0] > 20 and page.evaluate(CONTRAST)[1] >= 4.5
    blocks = [box(page, f"[data-block='layers.{layers}']") for layers in ("0-2", "3-60")]
    assert blocks[0]["right"] < blocks[1]["left"], "dense and MoE layers side by side"
    # folded: fewer nodes, and still all of the time
    shares = page.eval_on_selector_all(".drawing .op", "all => all.map(one => Number(one.dataset.share))")
    assert len(shares) < len(ran) / 1.5
    assert sum(shares) == pytest.approx(sum(op["share"] for op in ran))
    folds = page.eval_on_selector_all(".drawing .fold", "all => all.map(one => one.textContent)")
    assert any("small operators" in text for text in folds)
    # unfold one, then all
    names = page.get_attribute("[data-block='layers.3-60'] .fold >> nth=0", "aria-label").split("folded: ")[1]
    page.click("[data-block='layers.3-60'] .fold >> nth=0")
    page.wait_for_selector(f"[data-block='layers.3-60'] [data-op={names.split(', ')[0]}]")
    assert "graph_open=layers.3-60/" in page.url
    page.uncheck("input[name=fold]")
    page.wait_for_selector(".drawing .fold", state="detached")
    assert "graph_fold=off" in page.url and "graph_open" not in page.url
    assert page.locator(".drawing .op").count() == len(ran)
    # axe's rule: a name begins with the text that is seen
    labels = page.eval_on_selector_all(
        ".drawing .op", "all => all.map(one => [one.getAttribute('aria-label'), one.textContent.trim()])"
    )
    assert all(label.startswith(text) for label, text in labels)
    # zoom: all of it in the window, its own size, by keys and by Ctrl and the wheel; the wheel alone scrolls the page
    page.click(".zoom button:has-text('Fit')")
    whole = box(page, ".drawing svg")
    assert whole["height"] < 900 and whole["bottom"] < 900 and "graph_zoom=fit" in page.url
    assert not page.is_visible(".minimap")
    page.click(".zoom button:has-text('100%')")
    wait_for_scale(page, 1)
    assert page.is_visible(".minimap")
    page.focus(".drawing")
    page.keyboard.press("-")
    wait_for_scale(page, 0.8)
    assert "graph_zoom=0.8" in page.url
    page.mouse.move(800, 500)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("() => parseInt(document.querySelector('.zoom .level').textContent) > 80")
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 150)
    page.wait_for_function("before => scrollY > before", arg=before)
    # drag: page and drawing follow the mouse, and a drag is no click
    page.keyboard.press("0")
    page.click(".zoom button:has-text('100%')")
    page.locator("[data-key='layers.3-60/experts']").scroll_into_view_if_needed()
    there = box(page, "[data-key='layers.3-60/experts']")
    page.mouse.move(there["left"] + 20, there["top"] + 20)
    page.mouse.down()
    page.mouse.move(there["left"] + 20, there["top"] + 100, steps=4)
    page.mouse.up()
    assert box(page, "[data-key='layers.3-60/experts']")["top"] == pytest.approx(there["top"] + 80, abs=1)
    assert "op=" not in page.url


def test_the_operator_takes_and_gives_back_the_focus(opened: Opened) -> None:
    page = opened("?model=llama-3.1-8b&batch_size=32&block=layers.0-99")
    assert page.locator(".blocks [aria-pressed=true]").inner_text() == "whole network", "of a block that is not there"
    assert "keys 32 × 1088 × 8 × 128" in page.text_content("[data-op=attention]")
    page.focus("[data-op=o_proj]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".operator[open]")
    assert page.evaluate("document.activeElement.closest('.operator') !== null")
    page.keyboard.press("Escape")
    page.wait_for_selector(".operator", state="hidden")
    assert page.evaluate("document.activeElement.dataset.op") == "o_proj" and "op=" not in page.url
    page.focus(".blocks [data-op=host_overhead]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".operator[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector(".operator", state="hidden")
    assert page.evaluate("document.activeElement.dataset.op") == "host_overhead"
    # a phone: a sheet over the page, closed by Esc, too
    page.set_viewport_size({"width": 390, "height": 844})
    page.click("[data-op=o_proj]")
    page.wait_for_selector(".operator:modal")
    sheet = box(page, ".operator")
    assert sheet["width"] == 390 and sheet["bottom"] == 844
    page.keyboard.press("Escape")
    page.wait_for_selector(".operator", state="hidden")


def test_a_pinned_plan_is_in_every_node_and_in_the_strip(opened: Opened) -> None:
    page = opened(
        "?batch_size=32&pin=tensor_parallel_size%3D2%26batch_size%3D32&op=layers.0-31/gate_up_proj", width=1440
    )
    page.wait_for_selector(".compared")
    now, then = (opened.server.post("/api/analyze", {"batch_size": 32, "tensor_parallel_size": n}).json for n in (1, 2))
    took = [
        next(op["seconds"] for op in report["phases"]["decode"]["ops"] if op["name"] == "gate_up_proj")
        for report in (now, then)
    ]
    change = f"+{took[0] / took[1] - 1:.1%}"
    assert change in page.text_content("[data-op=gate_up_proj]") and change in page.text_content(".compared")
    cells = page.eval_on_selector_all(".compared td", "all => all.map(td => td.scrollWidth <= td.clientWidth + 1)")
    assert all(cells), "no figure runs into the next"
    assert "all_reduce ×2" in page.text_content("[data-block='layers.0-31'] .ghost"), "only the pinned plan has it"
    page.click("#pin, button:has-text('Swap')")
    page.wait_for_selector("[data-op=all_reduce]:has-text('new')")
    assert page.evaluate(CONTRAST)[0] > 20 and page.evaluate(CONTRAST)[1] >= 4.5
    # the strip: there when the headline is not
    assert not page.is_visible(".strip")
    page.mouse.move(800, 700)
    page.mouse.wheel(0, 900)
    page.wait_for_selector(".strip:visible")
    ttft = page.inner_text("[data-metric=ttft_ms] .value")
    assert ttft in page.inner_text(".strip") and "−" in page.inner_text(".strip .delta >> nth=0")
    bars = box(page, ".strip"), box(page, "#tabs")
    assert bars[0]["bottom"] <= bars[1]["top"] + 1 and bars[0]["top"] >= 47
    page.click("#tab-accuracy")
    page.wait_for_function("() => !document.body.classList.contains('stripped')")
