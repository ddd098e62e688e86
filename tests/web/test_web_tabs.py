"""The page in a real browser: sweeps, searches; every tab in both themes and widths; one file alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran
from helpers.browser import TABS, Opened, figure

pytestmark = pytest.mark.slow


# ------------------------------------------------------------------ the other verbs


def test_a_sweep_is_drawn_and_follows_the_plan(opened: Opened) -> None:
    page = opened("?tab=sweep&sweep_values=1,2,4&sweep_by=none")
    page.wait_for_selector("#chart-sweep .point")
    assert page.inner_text("#chart-sweep .note").startswith("3 points")
    page.select_option("#sweep_y", "ttft_ms")
    page.wait_for_function("() => document.querySelector('#chart-sweep h3').textContent.startsWith('TTFT')")
    page.fill("#sweep_values", "1:4:x")
    page.press("#sweep_values", "Enter")
    page.wait_for_selector(".view-sweep .wrong:visible")
    assert "1:4:x" in page.inner_text(".view-sweep .wrong")


def test_sensitivity_follows_what_the_verb_says(opened: Opened) -> None:
    page = opened("?tab=sensitivity&sens_target=tpot:4")
    page.wait_for_selector("#chart-tornado .bars .point", state="attached")  # bars of no effect have no size
    found = opened.server.post("/api/sensitivity", {"plan": {}, "target": "tpot:4"}).json
    assert page.inner_text(".view-sensitivity .sentences p >> nth=0") == found["summary"]
    assert "memory bandwidth" in page.text_content("#chart-tornado")
    assert "reached" in page.inner_text(".view-sensitivity .table")


def test_accuracy_is_a_screen(opened: Opened) -> None:
    page = opened("?tab=accuracy&gpu=h200")
    page.wait_for_selector("#chart-scoreboard-tpot .point")
    shipped = opened.server.get("/api/accuracy").json
    board = next(table for table in shipped["tables"] if table["name"] == "scoreboard-parts")
    part = next(row for row in board["rows"] if row[0] == "aggregated, engine vllm")
    drawn = "document.querySelector('#chart-scoreboard-tpot .plot').data.slice(1).map(t => t.x.at(-1))"
    assert page.evaluate(drawn) == [float(part[at].split("%")[0]) for at in (4, 5)], "ours, and AIConfigurator's"
    errors = shipped["prediction_errors"]
    own = errors["engines"]["vllm"]["h200"]
    first, plan = (line.inner_text() for line in page.query_selector_all(".view-accuracy .sentences:first-child p"))
    assert f"TPOT is off by {errors['all']['tpot']:.1%}, TTFT by {errors['all']['ttft']:.1%}" in first
    assert f"vLLM on h200, as in this plan: TPOT is off by {own['tpot']:.1%}" in plan
    assert page.inner_text(".errors td.here").split()[0] == f"{own['tpot']:.1%}"
    page.click("text=Serving")
    page.wait_for_selector("#chart-accuracy-ttft .point")
    assert "median error" in page.inner_text("#chart-accuracy-ttft .note")
    page.click("text=Engine steps on one H200")
    page.wait_for_selector("#chart-accuracy-decode-step .point")
    captions = page.inner_text(".view-accuracy > div:last-child")
    assert "More of our own measurements" in captions and "steps more" not in captions


# ------------------------------------------------------------------ everywhere


def test_the_theme_is_kept(opened: Opened) -> None:
    page = opened()
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    page.reload()
    page.wait_for_selector(".tile")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_a_report_in_one_file_opens_without_a_server(opened: Opened, run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    assert run("analyze", "llama-3.1-8b", "--gpu", "h200", "-tp", "2", "--html", path).code == 0
    page = opened(path.as_uri())
    report = run("analyze", "llama-3.1-8b", "--gpu", "h200", "-tp", "2", "--json").json
    assert figure(page, "ttft_ms").split()[0] == f"{report['metrics']['ttft_ms']:.3g}"
    page.click("[data-op=qkv_proj]")
    page.wait_for_selector(".operator .line output")
    for tab in TABS[1:5]:
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f".view-{tab} .plot .main-svg, .view-{tab} .drawing svg")
    assert page.query_selector("#tab-sweep") is None, "what needs a server is not offered"
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)
