"""What a machine carries, by three roads: `find_capacity`, `search` with the plan given, and a saturated `simulate`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from inferometer import search
from inferometer.serving.capacity import CapacityCase, _find
from inferometer.serving.simulate import simulate
from inferometer.serving.steady_run import PRECISION, RequestSupply
from inferometer.serving.trace import Trace

LOOSE = {"ttft": 1e7, "tpot": 1e5}
LIMITS = {"ttft": 1000.0, "tpot": 60.0}
SHORT, MEDIUM = {"input_len": 512, "output_len": "uniform:min=32,max=96"}, "uniform:min=50,max=150"
LONG = {"input_len": 1000, "output_len": MEDIUM}
SATURATED = 5000
LIMITED = ("dense", "attention-DP", "disaggregated", "bursts")  # compared under limits that bind, too


def bursts(count: int = 400) -> Trace:
    """Twenty requests within a second, every four seconds or so."""
    rng = np.random.default_rng(5)
    times = np.repeat(np.cumsum(rng.exponential(4.0, count // 20)), 20) + rng.uniform(0, 1, count)
    return Trace(
        input_tokens=rng.integers(100, 1500, count),
        output_tokens=rng.integers(20, 300, count),
        arrival_s=np.sort(times),
        source="bursts",
    )


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | Trace]] = {
    # model, keywords of search, keywords of simulate, requests
    "dense": ("llama-3.1-8b", {}, {}, SHORT),
    "mixture": ("qwen3-30b-a3b", {}, {}, {"input_len": 500, "output_len": MEDIUM}),
    "tp": ("llama-3.1-8b", {"num_gpus": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 1}, {}, LONG),
    "pp": ("llama-3.1-8b", {"num_gpus": 2, "pipeline_parallel_size": 2}, {}, SHORT),
    "attention-DP": (
        "qwen3-30b-a3b",
        {"num_gpus": 2, "pipeline_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": True},
        {},
        {"input_len": 1000, "output_len": "uniform:min=30,max=90"},
    ),
    "disaggregated": (
        "llama-3.1-8b",
        {"num_gpus": 2, "mode": "disaggregated"},
        {"prefill_replicas": 1, "decode_replicas": 1},
        {"input_len": 2000, "output_len": "uniform:min=100,max=300"},
    ),
    "prefix": ("llama-3.1-8b", {}, {}, {**SHORT, "input_len": 1024, "prefix_len": 512}),
    "bursts": ("llama-3.1-8b", {"request_rate": "max"}, {}, bursts()),
    "sglang": ("llama-3.1-8b", {"engine": "sglang"}, {}, LONG),
    "trtllm": ("llama-3.1-8b", {"engine": "trtllm"}, {}, LONG),
}
PLAN = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "engine",
)


EVERY = 1 if os.environ.get("INFEROMETER_SLOW_TESTS") else 2  # each takes seconds: one in two, and all before a release


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES][::EVERY])
def test_three_roads_lead_to_one_capacity(name: str) -> None:
    model, searched, served, load = CASES[name]
    trace = load if isinstance(load, Trace) else None
    supply = RequestSupply(trace=trace, synthetic_args=load if isinstance(load, dict) else {})
    fixed: dict[str, Any] = {"quantization": "bf16", "kv_cache_dtype": "auto", "max_num_seqs": 64}
    fixed["max_num_batched_tokens"] = 2048
    plan = {**{key: searched[key] for key in PLAN if key in searched}, **fixed, **served}
    own = {"num_gpus": 1, "mode": "aggregated", "tensor_parallel_size": 1, "trace": trace, "relax": False, **searched}

    def capacity(limits: dict[str, float]) -> float:
        return _find(CapacityCase(model, "h200", supply, limits, 0.9, PRECISION, plan), None).request_rate

    def by_search(limits: dict[str, float]) -> float:
        lengths = {} if isinstance(load, Trace) else load
        winner = search(model, "h200", goodput=limits, **own, **fixed, **lengths).winner
        return winner.trial.request_rate if winner is not None and winner.trial is not None else 0.0

    outcome = simulate(model, "h200", trace=supply.requests(SATURATED, float("inf")), **plan)
    saturated = SATURATED / outcome.duration_s
    assert capacity(LOOSE) == pytest.approx(saturated, rel=0.03)
    assert by_search(LOOSE) == pytest.approx(saturated, rel=0.03)
    if name not in LIMITED:
        return
    limited = capacity(LIMITS)
    assert limited < 1.03 * saturated and by_search(LIMITS) == pytest.approx(limited, rel=0.03)
