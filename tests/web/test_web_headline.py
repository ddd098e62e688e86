"""The first thing people read, in a real browser: figures, remedies and words by kind of model."""

from __future__ import annotations

import pytest
from helpers.browser import Opened, figure

from inferometer.base import units

pytestmark = pytest.mark.slow


NUMBERS = [10 ** (i / 7) * (1 + (i * 7919 % 1000) / 997) for i in range(-56, 91)]
NUMBERS += [0, 11, 1.6, 0.019, 99.95, 99.96, 999.5, 9.995, 2.125, 12.25, 0.9995, 59.9996, 600, 7200, 172800, 0.05, 5]


PLANS = {"tensor_parallel_size": "3", "input_len": "900000", "batch_size": "5000"}


def test_every_button_of_a_plan_that_does_not_work_makes_it_work(opened: Opened) -> None:
    page = opened("?gpu=h100-sxm:memory=84000000000")

    def offered() -> int:
        page.wait_for_selector(".problem .remedies")
        return int(page.locator(".problem .remedies .apply").count())

    def works(number: int) -> None:
        page.locator(".problem .remedies .apply").nth(number).click()
        page.wait_for_function("() => !document.querySelector('.problem') && document.querySelector('.tile')")
        assert page.inner_text("[data-metric=ttft_ms] .light").startswith("roofline "), number
        assert "measured runs of" in str(page.get_attribute("[data-metric=ttft_ms] .band", "title")), number

    for name, value in PLANS.items():
        page.fill(f"#c-{name}", value)
        page.press(f"#c-{name}", "Tab")
        assert offered() > 1
        if name == "batch_size":  # refused, because the engine takes no more than 1,024: a link would be repaired
            assert page.is_visible("#refused")
            works(0)
            continue
        assert page.inner_text("[data-metric=ttft_ms] .light").startswith("if it ")
        assert "would cut" not in page.inner_text("#headline") and not page.locator(".tile .band").count()
        for number in range(offered()):
            works(number)
            page.go_back()
            offered()
        page.click(f"[data-control={name}] .back")
        page.wait_for_selector(".problem", state="detached")


def test_a_diffusion_model_speaks_of_images(opened: Opened) -> None:
    page = opened("?model=dit-xl-2&gpu=a100-sxm-80gb&batch_size=64")
    tiles = page.eval_on_selector_all(".tile", "tiles => tiles.map(tile => tile.dataset.metric)")
    assert tiles == [
        *("image_latency_ms", "ttft_ms", "images_per_second", "cost_per_thousand_images", "joules_per_image")
    ]
    assert page.input_value("#c-engine") == "hf", "the engine that is used"
    assert page.inner_text("#view .switch") == "denoising step"
    assert "TTFT" not in page.inner_text("main") and "prefill" not in page.inner_text("main").lower()
    for name in ("output_len", "input_len", "kv_cache_dtype", "images"):
        assert page.is_hidden(f"#c-{name}"), name
    first = figure(page, "image_latency_ms")
    page.fill("#c-num_inference_steps", "25")
    page.press("#c-num_inference_steps", "Tab")
    page.wait_for_function(
        "first => document.querySelector('[data-metric=image_latency_ms] .value').textContent !== first", arg=first
    )
    assert float(figure(page, "image_latency_ms").split()[0]) == pytest.approx(float(first.split()[0]) / 2, rel=0.01)
    page.wait_for_function(  # the catalogue, which says of what kind each model is, comes after the first figures
        "() => performance.getEntriesByType('resource').some((r) => r.name.endsWith('/api/catalogue') && r.responseEnd)"
    )
    page.fill("#c-model", "qwen2.5-vl-7b")  # another kind: what does not count for it is left behind
    page.wait_for_selector("#c-model-list li")
    page.press("#c-model", "Enter")
    page.wait_for_selector("[data-metric=tpot_ms]")
    assert "num_inference_steps" not in page.url and page.is_hidden("#c-num_inference_steps")
    assert page.is_visible("#c-images") and page.is_visible("#c-output_len") and page.input_value("#c-engine") == "vllm"


def test_figures_and_their_differences(opened: Opened) -> None:
    page = opened("?tensor_parallel_size=4&input_len=8000&pin=tensor_parallel_size%3D2")
    page.wait_for_selector(".delta")
    written = page.evaluate(
        """(numbers) => import("/static/format.js").then((f) => numbers.map((v) =>
            [f.figure(v), f.si(v, "B"), f.seconds(v), f.money(v), f.percent(1 / (1 + v))]))""",
        NUMBERS,
    )
    for number, texts in zip(NUMBERS, written, strict=True):  # and numbers are written as on a terminal
        ours = units.figure(number), units.si(number, "B"), units.seconds(number), units.money(number)
        assert texts == [*ours, units.percent(1 / (1 + number))], number
    assert page.inner_text(".pinned .word") == "Tensor parallel 2 → 4", "the controls' own words"
    rows = page.eval_on_selector_all(
        ".tile",
        """tiles => tiles.map(tile => {
            const [value, delta, light] = ["value", "delta", "light"].map((name) => tile.querySelector("." + name));
            const spoken = delta.querySelector(".unseen").textContent;
            return [tile.dataset.metric, delta.textContent.replace(spoken, ""), delta.className, spoken,
                    Math.round(delta.getBoundingClientRect().top), light.textContent];
        })""",
    )
    assert len({top for *_, top, _ in rows}) == 1, "in the same place of every tile"
    for metric, text, kind, spoken, _, light in rows:
        assert text.startswith(("▼ −", "▲ +", "▲ ×")), (metric, text)
        less = metric.endswith(("_ms", "tokens", "token")) and "throughput" not in metric
        assert ("better" in kind) is (text.startswith("▼") is less) and kind.split()[-1] in spoken
        assert light.startswith("roofline") is (metric in ("ttft_ms", "tpot_ms")), "it stays"
