"""The page in a real browser: the plan and its address, and the tabs over one report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran
from helpers.browser import Opened, changed, figure, slide

from inferometer import __version__
from inferometer.views.plots.palette import LIGHT

pytestmark = pytest.mark.slow

GRANITE = {
    "model_type": "granite",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49155,
    "_name_or_path": "ibm-granite/granite-8b",
}


# ------------------------------------------------------------------ plan and address


def test_a_slider_changes_the_figures_and_the_address(opened: Opened) -> None:
    page = opened()
    before = figure(page, "tpot_ms")
    slide(page, "batch_size", 6)
    after = changed(page, "tpot_ms", before)
    assert float(after.split()[0]) > float(before.split()[0])
    assert page.input_value("#c-batch_size") == "64" and "?batch_size=64" in page.url
    asked = opened.server.post("/api/analyze", {"batch_size": 64}).json
    assert after == page.evaluate(
        "v => import('/static/format.js').then(f => f.milliseconds(v))", asked["metrics"]["tpot_ms"]
    )


def test_a_slider_is_one_step_back_however_far_it_moved(opened: Opened) -> None:
    page = opened()
    first = figure(page, "tpot_ms")
    for position in (2, 4, 5):
        slide(page, "batch_size", position, end=False)
    slide(page, "batch_size", 7)
    page.wait_for_url("**/?batch_size=128")
    page.go_back()
    page.wait_for_url(re.compile(r"/$"))
    page.wait_for_function("t => document.querySelector('[data-metric=tpot_ms] .value').textContent === t", arg=first)
    assert page.input_value("#c-batch_size") == "1"
    page.go_forward()
    page.wait_for_function("() => document.querySelector('#c-batch_size').value === '128'")


def test_a_shared_address_gives_the_same_page(opened: Opened) -> None:
    query = (
        "?model=llama-3.1-70b&gpu=h200:memory_bandwidth=6000000000000&tensor_parallel_size=4&batch_size=32"
        "&tab=memory&pin=model%3Dllama-3.1-70b%26tensor_parallel_size%3D8"
    )
    page = opened(query)
    page.wait_for_selector(".delta")
    assert page.get_attribute("#tab-memory", "aria-selected") == "true"
    assert page.input_value("#c-model") == "llama-3.1-70b" and page.input_value("#c-tensor_parallel_size") == "4"
    assert page.input_value("#f-memory_bandwidth") == "6"
    again = opened(page.url.removeprefix(f"{opened.server.address}/"))
    again.wait_for_selector(".delta")
    assert again.inner_text("#headline") == page.inner_text("#headline")
    asked = opened.server.post(
        "/api/analyze",
        {
            "model": "llama-3.1-70b",
            "gpu": "h200",
            "gpu_figures": {"memory_bandwidth": 6 * 10**12},
            "tensor_parallel_size": 4,
            "batch_size": 32,
        },
    )
    assert page.get_attribute("#copy-command", "title") == asked.json["command"]


def test_models_are_found_by_typing_and_taken_with_the_keyboard(opened: Opened) -> None:
    page = opened()
    page.focus("#c-model")
    page.keyboard.type("llama 3.1 70")
    page.wait_for_selector("#c-model-list li")
    found = page.eval_on_selector_all("#c-model-list li b", "names => names.map(name => name.textContent)")
    assert found == ["llama-3.1-70b", "llama-3.1-nemotron-70b"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#infeasible")
    assert "Tensor parallel 2" in page.inner_text("#infeasible")
    page.click("#infeasible .apply >> nth=0")  # what would make it fit is one click away
    page.wait_for_selector("#infeasible", state="detached")
    assert page.input_value("#c-tensor_parallel_size") == "2" and "tensor_parallel_size=2" in page.url


def test_a_mistake_is_marked_at_its_control_which_it_calls_by_its_label(
    opened: Opened, run: Callable[..., Ran]
) -> None:
    page = opened()
    page.fill("#c-batch_size", "0")
    page.press("#c-batch_size", "Tab")
    page.wait_for_selector("#c-batch_size-wrong:visible")
    said = run("analyze", "llama-3.1-8b", "--batch-size", "0").err
    shown = page.inner_text("#c-batch_size-wrong")
    assert shown.startswith("Batch size must be") and shown.replace("Batch size", "--batch-size") in said
    assert page.get_attribute("#c-batch_size", "aria-invalid") == "true"
    page.click(".retreat")
    page.wait_for_selector("#refused", state="detached")
    assert page.get_attribute("#c-batch_size", "aria-invalid") is None


def test_every_control_has_a_label_and_the_commands_help(opened: Opened, run: Callable[..., Ran]) -> None:
    page = opened()
    told = " ".join(run("analyze", "--help").out.split())
    controls = opened.server.get("/api/controls").json
    assert len(controls) > 30
    for control in controls:
        name = control["name"]
        assert page.query_selector(f"label[for='c-{name}']"), name
        assert page.get_attribute(f"#c-{name}", "aria-describedby") == f"c-{name}-help", name
        if name != "model":
            assert control["flag"] in page.text_content(f"#c-{name}-help"), name
            assert control["flag"] in told, name


def test_figures_of_a_gpu_can_be_changed_and_taken_back(opened: Opened) -> None:
    page = opened()
    first = figure(page, "tpot_ms")
    page.click("summary:has-text('Specifications of this GPU')")
    page.fill("#f-memory_bandwidth", "6.7")
    page.press("#f-memory_bandwidth", "Enter")
    faster = changed(page, "tpot_ms", first)
    assert float(faster.split()[0]) < float(first.split()[0])
    assert "gpu=:memory_bandwidth=6700000000000" in page.url
    page.click("button[aria-label^='Memory bandwidth: back']")
    assert changed(page, "tpot_ms", faster) == first


def test_presets_are_plans(opened: Opened) -> None:
    page = opened()
    for preset in opened.server.get("/api/catalogue").json["presets"]:
        before = page.text_content(".what p")
        page.click(f"#presets button:has-text('{preset['label']}')")
        page.wait_for_function("b => document.querySelector('.what p').textContent !== b", arg=before)
        assert page.inner_text(".what p").startswith(preset["plan"]["model"])
        assert page.query_selector("#infeasible") is None


def test_a_config_json_is_a_model_and_travels_in_the_address(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GRANITE))
    page = opened()
    page.set_input_files("#config-file", path)
    page.wait_for_function("() => document.querySelector('.what p').textContent.startsWith('granite-8b')")
    page.wait_for_selector(".chip:visible")
    assert "layers 0–39 ×40" in page.inner_text(".blocks")
    again = opened(page.url.removeprefix(f"{opened.server.address}/"))
    again.wait_for_function("() => document.querySelector('.what p')?.textContent.startsWith('granite-8b')")
    assert again.inner_text("#headline .tiles") == page.inner_text("#headline .tiles")


# ------------------------------------------------------------------ tabs over one report


def test_an_operator_shows_its_formula_with_the_values_put_in(opened: Opened) -> None:
    page = opened("?tensor_parallel_size=2&batch_size=16")
    page.click("[data-op=qkv_proj]")
    page.wait_for_selector(".operator .line output")
    text = page.inner_text(".operator")
    assert "2·tokens·hidden_size·(num_attention_heads/tp·head_dim" in text
    assert "tokens = 16" in text and "hidden_size = 4,096" in text and "tp = 2" in text
    assert "= 403 MFLOP" in text  # 2 · 16 · 4096 · (32/2·128 + 4·2·128)
    assert page.query_selector(".operator .mini circle"), "a dot on the roofline"
    assert page.query_selector_all("[data-op=all_reduce]"), "communication between ranks is drawn"
    page.check("input[name^=phase][value=prefill]", force=True)
    page.wait_for_function("() => document.querySelector('#chart-graph h3').textContent.startsWith('Prefill')")
    assert "phase=prefill" in page.url


def test_nodes_are_as_high_as_their_time_and_coloured_by_their_bound(opened: Opened) -> None:
    page = opened("?batch_size=8")
    decode = opened.server.post("/api/analyze", {"batch_size": 8}).json["phases"]["decode"]
    ops = {op["name"]: op for op in decode["ops"]}
    boxes = page.eval_on_selector_all(
        "[data-block='layers.0-31'] .op",
        """nodes => nodes.map(node => [node.dataset.op,
        Number(node.children[0].getAttribute("height")), node.children[1].getAttribute("fill")])""",
    )
    assert len(boxes) > 8
    ranked = sorted(boxes, key=lambda box: ops[box[0]]["share"])
    assert [height for _, height, _ in ranked] == sorted(height for _, height, _ in boxes)
    assert {color for name, _, color in boxes if ops[name]["bound"] == "memory"} == {LIGHT["blue"]}


def test_pinned_figures_are_compared_everywhere(opened: Opened) -> None:
    page = opened("?batch_size=16")
    page.click("#pin")
    page.wait_for_selector("#unpin")
    slide(page, "batch_size", 5)
    page.wait_for_selector(".tile .delta.worse")
    assert "Batch size 16 → 32" in " ".join(page.inner_text(".pinned").split())
    now, then = (opened.server.post("/api/analyze", {"batch_size": n}).json for n in (32, 16))
    gain = now["metrics"]["output_throughput"] / then["metrics"]["output_throughput"] - 1
    assert page.inner_text("[data-metric=output_throughput] .delta").split("\n")[0] == f"▲ +{gain:.1%}"
    assert re.search(r"[+−×][\d.]+", page.text_content("[data-key='layers.0-31/attention']"))
    page.click("#tab-memory")
    page.wait_for_selector("#view th:has-text('pinned')")
    page.click("#unpin")
    page.wait_for_selector(".delta", state="detached")
    assert "pin=" not in page.url


def test_a_chart_gives_its_data_picture_and_command(opened: Opened) -> None:
    page = opened("?tab=latency", permissions=["clipboard-read", "clipboard-write"])
    chart = "#chart-waterfall"
    page.wait_for_selector(f"{chart} .bars")
    files = {}
    for word in ("CSV", "SVG", "PNG"):
        with page.expect_download() as waiting:
            page.click(f"{chart} .offers button:has-text('{word}')")
        assert waiting.value.suggested_filename == f"waterfall-llama-3.1-8b-h100-sxm.{word.lower()}"
        files[word] = Path(waiting.value.path()).read_bytes()
    rows = files["CSV"].decode().splitlines()
    assert rows[0].startswith("phase,operator,block,start_seconds,seconds,share")
    report = opened.server.post("/api/analyze", {}).json
    ops = [op for op in report["phases"]["decode"]["ops"] if op["seconds"] > 0]
    assert [row.split(",")[1] for row in rows[1:]] == [op["name"] for op in ops]
    assert files["SVG"].startswith(b"<svg") and b"gate_up_proj" in files["SVG"]
    for text in ("Latency · ", "llama-3.1-8b · 1 × NVIDIA H100", report["command"], f"inferometer {__version__}, 20"):
        assert text in files["SVG"].decode(), "a picture that is mailed says what it is of"
    assert files["PNG"].startswith(b"\x89PNG") and len(files["PNG"]) > 5000
    page.click(f"{chart} .offers button:has-text('CLI')")
    page.wait_for_function("() => document.querySelector('#said').textContent.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == f"{report['command']} --plot pictures"
