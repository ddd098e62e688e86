"""The tab Cluster: GPUs and links can be pointed at, pinned and walked over; its data are the command's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Ran
from helpers.browser import Opened

pytestmark = pytest.mark.slow

PLAN = {"model": "llama-3.1-70b", "gpu": "h200", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
QUERY = "&".join(f"{name}={value}" for name, value in PLAN.items())


def test_the_data_are_those_of_the_command(opened: Opened, run: Callable[..., Ran]) -> None:
    placed = opened.server.post("/api/cluster", PLAN).json
    command = placed.pop("command")
    line = ("analyze", "llama-3.1-70b", "--gpu", "h200", "--tensor-parallel-size", "8", "--pipeline-parallel-size", "2")
    assert command.split() == ["inferometer", *line, "--cluster"]
    assert placed == run(*line, "--cluster", "--json").json
    wrong = opened.server.post("/api/cluster", {**PLAN, "batch_size": -1})
    assert wrong.status == 400 and wrong.json["control"] == "batch_size"
    illegal = opened.server.post("/api/cluster", {**PLAN, "tensor_parallel_size": 3}).json
    assert not illegal["feasible"] and "tp 3" in illegal["reason"]


def test_gpus_and_links_are_drawn_and_pinned(opened: Opened) -> None:
    page = opened(f"?{QUERY}&tab=cluster&pin={'&'.join(QUERY.split('&')[:3]).replace('=', '%3D').replace('&', '%26')}")
    page.wait_for_selector(".machine")
    assert page.locator(".machine [data-pick^='gpu:']").count() == 16
    assert "NVLink 450 GB/s" in page.text_content(".machine")

    page.click("[data-pick='gpu:9']")
    panel = page.locator(".view-cluster .operator")
    panel.locator("h3").wait_for()
    assert panel.locator("h3").inner_text() == "GPU 9"
    beside, drawing = panel.bounding_box(), page.locator("#chart-cluster").bounding_box()
    assert beside and drawing and beside["x"] >= drawing["x"] + drawing["width"], "the panel stands beside the drawing"
    assert "40–79" in panel.inner_text() and "8–15" in panel.inner_text() and "−50.0%" in panel.inner_text()
    assert "cluster_pick=gpu:9" in page.url
    panel.locator(".close").press("Escape")
    assert panel.is_hidden()
    page.wait_for_selector("[data-pick='gpu:9']:focus")  # where it was

    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-pick='gpu:10']:focus")
    page.wait_for_selector(".view-cluster .hover-card b:has-text('GPU 10')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".view-cluster .operator h3:has-text('GPU 10')")
    page.locator("[data-pick='link:network:0']").press("Enter")
    page.wait_for_selector(".view-cluster .operator h3:has-text('network')")
    assert "send_to_next_stage" in panel.inner_text()
    before = panel.inner_text()
    page.click(".view-cluster .switch label:has-text('prefill')")
    page.wait_for_function("was => document.querySelector('.view-cluster .operator').innerText !== was", arg=before)
    page.click("#chart-links [aria-label^=Table]")
    assert "send_to_next_stage" in page.inner_text("#chart-links .rows")

    page.goto(f"{opened.server.address}/?model=deepseek-v3&gpu=h200&data_parallel_size=256&batch_size=256&tab=cluster")
    page.wait_for_selector(".machine")
    assert page.locator(".machine [data-zoom]").count() == 32 and page.locator("[data-pick^='gpu:']").count() == 0
    page.locator("[data-zoom='3']").press("Enter")
    page.wait_for_selector("[data-pick='gpu:24']")
    assert page.locator(".machine [data-pick^='gpu:']").count() == 8 and "cluster_node=3" in page.url
    page.click("text=← all 32 nodes")
    page.wait_for_selector("[data-zoom='31']")
