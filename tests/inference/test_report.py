"""The JSON of ``analyze``: every key that scripts rely on, and that its figures agree with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferometer import Report

METRICS = {
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "prefill_throughput",
    "output_throughput",
    "total_token_throughput",
    "output_throughput_per_gpu",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
}
MEMORY = {
    "weights_bytes",
    "kv_cache_bytes",
    "activation_bytes",
    "overhead_bytes",
    "total_bytes",
    "capacity_bytes",
    "kv_bytes_per_token",
    "max_batch_size",
    "max_total_tokens",
}
CLASSES = ("load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache")
PHASE = {
    "seconds",
    "OPs",
    "memory_access",
    *CLASSES,
    "inference_time",
    "memory_consumption",
    "memory_consumption_tmp_act",
    "memory_consumption_weight",
    "memory_consumption_kv_cache",
    "ops",
}
OP = {
    "name",
    "kind",
    "count",
    "shape",
    "flops",
    "bytes",
    "seconds",
    "share",
    "bound",
    "intensity",
    "efficiency",
    "origin",
    "formula",
}

# model, keywords: dense, tensor-parallel, experts, latent attention, windows, recurrent, tower, per layer, chunked
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-8b", {"batch_size": 64, "input_len": 3000, "max_num_batched_tokens": 2048}),
    ("llama-3.1-70b", {"gpu": "h200", "tensor_parallel_size": 4, "batch_size": 16}),
    ("llama-3.1-8b", {"engine": "roofline", "gpu": "a100-sxm-80gb"}),
    ("mixtral-8x7b-v0.1", {"gpu": "h200", "quantization": "fp8", "batch_size": 4}),
    ("deepseek-v2-lite", {"batch_size": 8}),
    ("gemma-3-27b", {"gpu": "h200", "input_len": 5000}),
    ("qwen3-next-80b-a3b", {"gpu": "b200", "batch_size": 3}),
    ("qwen2.5-vl-7b", {"images": "2x448x448"}),
    ("llama-2-7b", {"input_len": ",".join(["512"] * 16 + ["64"] * 16)}),
    ("llama-2-7b", {"beam_width": 4, "engine": "hf", "attention": "eager"}),
    ("opt-125m", {"gpu": "rtx3090", "efficiency": "0.5"}),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{len(case[1])}")
def case(request: pytest.FixtureRequest, report: Callable[..., Report]) -> dict[str, Any]:
    model, kwargs = request.param
    data: dict[str, Any] = report(model, **kwargs).to_dict()
    return data


def test_every_key_of_the_contract_is_there(case: dict[str, Any]) -> None:
    assert case["schema"] == "inferometer.analyze/1" and next(iter(case)) == "schema"
    assert {
        "model",
        "device",
        "engine",
        "plan",
        "feasible",
        "reason",
        "metrics",
        "roofline",
        "memory",
        "phases",
        "warnings",
    } <= set(case)
    assert {"name", "params", "active_params"} <= set(case["model"])
    assert set(case["metrics"]) >= METRICS and {"ttft_ms", "tpot_ms"} <= set(case["roofline"])
    assert set(case["memory"]) >= MEMORY
    assert set(case["phases"]) >= {"prefill", "decode"}
    for phase in case["phases"].values():
        assert set(phase) >= PHASE
        assert all(set(op) >= OP for op in phase["ops"])


def test_types_and_signs(case: dict[str, Any]) -> None:
    assert isinstance(case["feasible"], bool) and case["feasible"] and case["reason"] is None
    assert isinstance(case["warnings"], list) and all(isinstance(w, str) for w in case["warnings"])
    assert 0 < case["model"]["active_params"] <= case["model"]["params"]
    assert all(value > 0 for key, value in case["metrics"].items() if value is not None), case["metrics"]
    assert all(case["metrics"][key] is not None for key in ("ttft_ms", "tpot_ms", "e2el_ms", "output_throughput"))
    assert all(value >= 0 for value in case["memory"].values() if value is not None)
    for phase in case["phases"].values():
        for op in phase["ops"]:
            assert op["bound"] in ("memory", "compute", "communication", "host"), op
            assert op["origin"] in ("measured", "fitted", "assumed", "given", "ideal"), op
            assert min(op["flops"], op["bytes"], op["seconds"], op["intensity"], op["count"]) >= 0, op
            assert 0 < op["efficiency"] <= 1 and op["formula"], op


def test_operators_add_up_to_their_phase(case: dict[str, Any]) -> None:
    for phase in case["phases"].values():
        ops = phase["ops"]
        assert phase["inference_time"] == phase["seconds"] == pytest.approx(sum(op["seconds"] for op in ops))
        assert sum(op["share"] for op in ops) == pytest.approx(1)
        assert phase["OPs"] == pytest.approx(sum(op["flops"] for op in ops))
        assert phase["memory_access"] == pytest.approx(sum(phase[key] for key in CLASSES))
        assert phase["memory_access"] == pytest.approx(sum(op["bytes"] for op in ops))
        for op in ops:
            assert op["bytes"] == pytest.approx(sum(op[key] for key in CLASSES)), op["name"]
            assert op["intensity"] == pytest.approx(op["flops"] / op["bytes"] if op["bytes"] else 0)
        held = ("memory_consumption_weight", "memory_consumption_kv_cache", "memory_consumption_tmp_act")
        assert phase["memory_consumption"] == pytest.approx(sum(phase[key] for key in held))


def test_nothing_is_faster_than_light(case: dict[str, Any]) -> None:
    for key in ("ttft_ms", "tpot_ms"):
        assert case["roofline"][key] <= case["metrics"][key] * (1 + 1e-9)
    for phase in case["phases"].values():
        for op in phase["ops"]:
            assert op["seconds"] >= op["roofline_seconds"] * (1 - 1e-9), op["name"]


def test_metrics_agree_with_each_other(case: dict[str, Any]) -> None:
    m, work, gpus = case["metrics"], case["workload"], case["plan"]["gpus"]
    assert m["e2el_ms"] == pytest.approx(m["ttft_ms"] + (work["output_len"] - 1) * m["tpot_ms"])
    assert m["output_throughput"] == pytest.approx(work["batch_size"] * work["output_len"] / m["e2el_ms"] * 1e3)
    assert m["output_throughput_per_gpu"] == pytest.approx(m["output_throughput"] / gpus)
    assert m["total_token_throughput"] > m["output_throughput"]
    hourly = case["device"]["price_per_hour"] * gpus
    assert m["cost_per_million_output_tokens"] == pytest.approx(hourly / 3600 / m["output_throughput"] * 1e6)
    assert m["joules_per_output_token"] == pytest.approx(m["watts_per_gpu"] * gpus / m["output_throughput"])
    assert 0.1 * case["device"]["power"] < m["watts_per_gpu"] < case["device"]["power"]


def test_tpot_is_the_decode_phase_where_cost_is_linear(report: Callable[..., Report]) -> None:
    result = report("llama-3.1-8b", batch_size=8)
    assert result.metrics.tpot_ms == pytest.approx(result.phases["decode"].seconds * 1e3)
    front_end = result.metrics.ttft_ms / 1e3 - result.phases["prefill"].seconds
    assert 0 <= front_end < 0.02


def test_memory_adds_up(case: dict[str, Any]) -> None:
    m = case["memory"]
    parts = ("weights_bytes", "kv_cache_bytes", "activation_bytes", "overhead_bytes")
    assert m["total_bytes"] == pytest.approx(sum(m[key] for key in parts))
    assert m["total_bytes"] <= m["usable_bytes"] <= m["capacity_bytes"]
    assert m["max_batch_size"] >= case["workload"]["batch_size"], "the plan fits, so at least its batch does"
    assert m["max_batch_size"] == min(m["max_batch_size_prefill"], m["max_batch_size_decode"], m["max_batch_size"])
    assert case["phases"]["prefill"]["memory_consumption_weight"] == pytest.approx(m["weights_bytes"])


def test_defaults(report: Callable[..., Report]) -> None:
    result = report("llama-3.1-8b").to_dict()
    work = result["workload"]
    assert (work["batch_size"], work["input_len"], work["output_len"]) == (1, 1024, 128)
    assert (result["device"]["name"], result["engine"]["name"], result["plan"]["gpus"]) == ("h100-sxm", "vllm", 1)
    assert result["plan"]["gpu_memory_utilization"] == 0.92
    assert result == report("llama-3.1-8b", batch_size=1, input_len=1024, output_len=128).to_dict()


def test_what_a_diffusion_transformer_has_not_is_null(report: Callable[..., Report]) -> None:
    result = report("DiT-XL/2", gpu="a6000", input_len=256)
    assert result.feasible and result.metrics.ttft_ms and result.metrics.tpot_ms is None
    assert list(result.phases) == ["prefill"] and result.memory.kv_bytes_per_token == 0


def test_the_names_that_engine_people_know(report: Callable[..., Report]) -> None:
    dense = {op.name for op in report("llama-3.1-8b").phases["prefill"].ops}
    assert dense >= {
        "embed_tokens",
        "input_layernorm",
        "qkv_proj",
        "rope",
        "attention",
        "o_proj",
        "all_reduce",
        "post_attention_layernorm",
        "gate_up_proj",
        "act_fn",
        "down_proj",
        "lm_head",
        "sampler",
    }
    sparse = {op.name for op in report("deepseek-v2-lite", batch_size=8).phases["decode"].ops}
    assert sparse >= {"router", "experts", "shared_experts"}


def test_one_token_of_answer_has_no_decode(report: Callable[..., Report]) -> None:
    result = report("llama-3.1-8b", output_len=1)
    assert result.metrics.tpot_ms is None and result.metrics.e2el_ms == result.metrics.ttft_ms
    assert "decode" not in result.phases


Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"


def test_one_output_token_has_rates(report: Reports) -> None:
    metrics = report(MODEL, output_len=1, batch_size=4).metrics
    assert metrics.ttft_ms and metrics.e2el_ms == metrics.ttft_ms and metrics.tpot_ms is None
    assert metrics.output_throughput == pytest.approx(4 / (metrics.ttft_ms / 1e3))
    assert metrics.cost_per_million_output_tokens and metrics.joules_per_output_token
    assert report(MODEL, output_len=1, phase="prefill").metrics.output_throughput is None
