"""Cliffs are named before they cost money, each with the flag that mends it; a healthy run has no warning."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.inference.analyze import analyze
from inferometer.serving.metrics import metrics
from inferometer.serving.simulate import run_header, simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace

TRTLLM: dict[str, Any] = {"engine": "trtllm", "tensor_parallel_size": 4}


def requests(count: int, rate: float, input_len: int = 512, output_len: int = 64) -> Trace:
    return synthetic(num_prompts=count, request_rate=rate, input_len=input_len, output_len=output_len)


def test_a_prompt_that_fills_a_steps_budget_is_named_with_the_budget_that_mends_it() -> None:
    trace = requests(60, 2.0, 8192, 256)
    slow = simulate("llama-3.1-70b", "h200", trace=trace, max_num_batched_tokens=8192, **TRTLLM)
    (warning,) = [w for w in slow.warnings if "fits into a step" in w]
    assert "only while nothing decodes" in warning and "--max-num-batched-tokens 16384" in warning
    fast = simulate("llama-3.1-70b", "h200", trace=trace, max_num_batched_tokens=16384, **TRTLLM)
    assert not [w for w in fast.warnings if "fits into a step" in w]
    assert metrics(slow)["request_throughput"] * 4 < metrics(fast)["request_throughput"]


@pytest.mark.parametrize(("budget", "warned"), [(8192, True), (16384, False), (4096, False)])
def test_analyze_names_the_same_cliff(budget: int, warned: bool) -> None:
    # a prompt above the budget is cut into chunks, which fit beside anything
    report = analyze(
        "llama-3.1-70b", "h200", input_len=8192, output_len=64, batch_size=32, max_num_batched_tokens=budget, **TRTLLM
    )
    assert any("fits into a step" in warning for warning in report.warnings) == warned


def test_an_engine_that_cuts_prompts_has_no_such_cliff() -> None:
    report = analyze("llama-3.1-8b", "h200", input_len=8192, output_len=64, batch_size=32, max_num_batched_tokens=8192)
    assert not any("fits into a step" in warning for warning in report.warnings)


def test_steps_beyond_the_captured_graphs_are_named_where_they_cost_something() -> None:
    slow: dict[str, Any] = {"max_cudagraph_capture_size": 64, "host_profile": "h200-vm"}
    report = analyze("llama-3.1-8b", "h200", batch_size=80, input_len=64, output_len=64, **slow)
    (warning,) = [w for w in report.warnings if "CUDA graph" in w]
    assert "--max-cudagraph-capture-size 128" in warning and "--max-num-seqs 64" in warning
    wider = {**slow, "max_cudagraph_capture_size": 128}
    mended = analyze("llama-3.1-8b", "h200", batch_size=80, input_len=64, output_len=64, **wider)
    assert not any("CUDA graph" in w for w in mended.warnings)
    assert mended.metrics.tpot_ms is not None and report.metrics.tpot_ms is not None
    assert mended.metrics.tpot_ms * 1.1 < report.metrics.tpot_ms
    outcome = simulate("llama-3.1-8b", "h200", trace=requests(300, float("inf"), 64, 64), max_concurrency=80, **slow)
    assert any(w.startswith("for ") and "CUDA graph" in w for w in outcome.warnings)


def test_a_cache_that_thrashes_is_named_with_the_limit_that_stops_it() -> None:
    trace = requests(60, float("inf"), 256, 1500)
    slow = simulate("llama-3.1-8b", "rtx-4090", trace=trace, max_model_len=4096)
    (warning,) = [w for w in slow.warnings if "recomputes a request" in w]
    limit = int(warning.split("--max-num-seqs ")[1].split(",")[0])
    mended = simulate("llama-3.1-8b", "rtx-4090", trace=trace, max_model_len=4096, max_num_seqs=limit)
    assert slow.preemptions.sum() > 0 and not mended.preemptions.sum()
    assert not any("recomputes a request" in w for w in mended.warnings)


@pytest.mark.slow
def test_a_queue_that_grows_is_named_and_a_healthy_run_has_no_warning() -> None:
    overloaded = simulate("llama-3.1-8b", "h200", trace=requests(1500, 200.0))
    assert any("the queue keeps growing" in w for w in overloaded.warnings)
    healthy = simulate("llama-3.1-8b", "h200", trace=requests(300, 5.0))
    assert not healthy.warnings
    all_at_once = simulate("llama-3.1-8b", "h200", trace=requests(300, float("inf")))
    assert not any("queue" in w for w in all_at_once.warnings)


def test_a_burst_is_not_called_a_rate() -> None:
    outcome = simulate("llama-3.1-8b", "h200", trace=requests(30, 30.0, output_len=256))
    assert any("--num-prompts" in w for w in outcome.warnings)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"policy": "priority"}, "--policy"),
        ({"router": "least_loaded"}, "--router"),
        ({"long_prefill_token_threshold": 4096}, "--long-prefill-token-threshold"),
        ({"enable_prefix_caching": True}, "--enable-prefix-caching"),
        ({"max_concurrency": 1000}, "--max-concurrency"),
    ],
)
def test_an_option_that_changes_nothing_is_named(options: dict[str, Any], name: str) -> None:
    trace = requests(40, 2.0)
    with_option = simulate("llama-3.1-8b", "h200", trace=trace, **options)
    assert [w for w in with_option.warnings if w.startswith(f"{name} has no effect")]
    assert (with_option.finished_s == simulate("llama-3.1-8b", "h200", trace=trace).finished_s).all()


@pytest.mark.parametrize(
    ("options", "plan", "gpus", "machine"),
    [
        ({"prefill_replicas": 1, "decode_replicas": 1}, {"tensor_parallel_size": 2}, 4, "4 × NVIDIA H200"),
        ({"prefill_replicas": 2, "decode_replicas": 3}, {"tensor_parallel_size": 2}, 10, "10 × NVIDIA H200"),
        (
            {
                "pools": [
                    {"replicas": 2, "role": "prefill"},
                    {"gpu": "a100-sxm-80gb", "role": "decode", "tensor_parallel_size": 2},
                ]
            },
            {},
            4,
            "2 × NVIDIA H200 SXM5 141GB + 2 × NVIDIA A100",
        ),
        ({}, {"data_parallel_size": 2, "tensor_parallel_size": 2}, 4, "4 × NVIDIA H200"),
    ],
)
def test_the_gpus_of_all_pools_are_counted(
    options: dict[str, Any], plan: dict[str, Any], gpus: int, machine: str
) -> None:
    header = run_header("llama-3.1-70b", "h200", dict(plan), "", 10, options)
    assert header["gpus"] == gpus == sum(pool["gpus"] for pool in header["pools"])
    assert header["machine"].startswith(machine)
