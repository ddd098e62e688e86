"""Figures that can be worked out by hand: what decoding reads, what a cache holds, what fits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Ran

from inferometer import Report, analyze
from inferometer.specs import catalog

Run = Callable[..., Ran]


@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        ("llama-3.1-8b", "h100-sxm"),
        ("llama-2-7b", "a100-sxm-80gb"),
        ("qwen3-32b", "h200"),
        ("opt-6.7b", "rtx3090"),
    ],
)
def test_dense_decoding_reads_its_weights_once_a_token(model: str, gpu: str) -> None:
    found = analyze(model, gpu=gpu, engine="roofline", input_len=16, output_len=8)
    device = catalog.hardware(gpu)
    bound = found.model.active_params * 2 / device.memory_bandwidth
    assert found.phases["decode"].seconds == pytest.approx(bound, rel=0.03)
    assert found.phases["decode"].load_weight == pytest.approx(2 * found.model.active_params, rel=0.001)


def test_prefill_computes_two_flops_per_active_parameter_and_token(report: Callable[..., Report]) -> None:
    found = report("llama-3.1-8b", engine="roofline", input_len=2048)
    head = 4096 * 128256
    linear = 2 * 2048 * (found.model.active_params - head) + 2 * head
    pairs = 2048 * 2049 / 2
    attention = 2 * 2 * pairs * 32 * 128 * 32
    assert found.phases["prefill"].OPs == pytest.approx(linear + attention, rel=0.002)
    ideal = (linear + attention) / 989.4e12
    assert ideal < found.phases["prefill"].seconds < 1.2 * ideal, "the rest is norms and activations through memory"


def _experts(batch: int, **words: float) -> float:
    found = analyze("qwen3-30b-a3b", gpu="h200", batch_size=batch, input_len=64, **words)  # type: ignore[arg-type]
    return next(op for op in found.phases["decode"].ops if op.name == "experts").load_weight


def test_experts_are_read_only_where_a_token_chose_them() -> None:
    layer = 3 * 2048 * 768 * 2  # one expert: three matrices, two bytes
    assert _experts(1) == pytest.approx(48 * 8 * layer), "one token reads its eight of 128 experts"
    assert _experts(4) == pytest.approx(48 * layer * 128 * (1 - (1 - 8 / 128) ** 4))
    read = [_experts(batch) for batch in (1, 2, 8, 32, 128, 512)]
    assert read == sorted(read) and read[-1] == pytest.approx(48 * 128 * layer, rel=0.001)
    assert _experts(64, routing_skew=1.0) == pytest.approx(48 * 8 * layer), "always the same eight"


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("llama-3.1-8b", 131072),
        ("deepseek-v3", 1152 * 61),
        ("llama-2-7b", 2 * 32 * 4096 * 2),
        ("qwen3-30b-a3b", 48 * 2 * 4 * 128 * 2),
        ("gpt-oss-20b", 24 * 2 * 8 * 64 * 2),
        ("mixtral-8x7b-v0.1", 131072),
        ("qwen2-0.5b", 24 * 2 * 2 * 64 * 2),
        ("mamba2-2.7b", 0),
    ],
)
def test_cache_bytes_of_a_token(report: Callable[..., Report], model: str, per_token: float) -> None:
    found = report(model, gpu="b300:memory=2e12", kv_cache_dtype="bf16")
    assert found.memory.kv_bytes_per_token == per_token
    half = report(model, gpu="b300:memory=2e12", kv_cache_dtype="fp8")
    assert half.memory.kv_bytes_per_token == per_token / 2


def test_a_window_bounds_the_cache(report: Callable[..., Report]) -> None:
    short, long = (report("gemma-3-1b", input_len=n, output_len=2).memory.kv_cache_bytes for n in (400, 8000))
    layer = 2 * 1 * 256 * 2  # one KV head of 256
    assert short == 26 * layer * 402
    assert long == (4 * 8002 + 22 * 512) * layer, "22 of 26 layers see 512 tokens"


def test_tensor_parallel_ranks_share_weights_and_cache(report: Callable[..., Report]) -> None:
    one, four = report("llama-3.1-8b"), report("llama-3.1-8b", tensor_parallel_size=4)
    norms = (2 * 32 + 1) * 4096 * 2
    assert four.memory.weights_bytes == pytest.approx((one.memory.weights_bytes - norms) / 4 + norms)
    assert four.memory.kv_bytes_per_token == one.memory.kv_bytes_per_token / 4
    assert four.phases["decode"].load_kv_cache == one.phases["decode"].load_kv_cache / 4
    sixteen = report("llama-3.1-8b", tensor_parallel_size=16)
    assert sixteen.memory.kv_bytes_per_token == one.memory.kv_bytes_per_token / 8, "eight KV heads, each on two ranks"


def test_one_gpu_sends_nothing(report: Callable[..., Report]) -> None:
    for phase in report("llama-3.1-8b").phases.values():
        assert sum(op.sent for op in phase.ops) == 0
        assert all(op.seconds == 0 for op in phase.ops if op.kind in ("all_reduce", "all_gather"))
    for phase in report("llama-3.1-8b", tensor_parallel_size=4).phases.values():
        assert all(op.sent > 0 and op.seconds > 0 for op in phase.ops if op.kind == "all_reduce")


def test_a_cached_prefix_is_not_computed_again(report: Callable[..., Report]) -> None:
    whole, rest = report("llama-3.1-8b", input_len=4096), report("llama-3.1-8b", input_len=4096, prefix_len=3072)
    head = report("llama-3.1-8b", input_len=3072)
    assert rest.memory.kv_cache_bytes == whole.memory.kv_cache_bytes
    assert rest.metrics.tpot_ms == pytest.approx(whole.metrics.tpot_ms)
    flops = head.phases["prefill"].OPs + rest.phases["prefill"].OPs
    once_more = sum(op.flops for op in head.phases["prefill"].ops if op.name in ("lm_head", "sampler", "norm"))
    assert flops - once_more == pytest.approx(whole.phases["prefill"].OPs, rel=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3.1-70b", "--gpu", "h100-sxm"),
        ("llama-3.1-405b", "--gpu", "h200"),
        ("llama-3.1-8b", "--gpu", "t4"),
        ("llama-3.1-8b", "--batch-size", "1024", "--input-len", "4096"),
        ("llama-2-7b", "--gpu", "a100-sxm-40gb", "--batch-size", "100"),
        ("mixtral-8x22b-v0.1", "--gpu", "b200"),
        ("qwen3-235b-a22b", "--gpu", "b300"),
        ("llama-3.1-8b", "--turns", "60000:2000,60000:2000", "--batch-size", "8"),
        ("llama-2-13b", "--beam-width", "16", "--batch-size", "32", "--gpu", "a100-sxm-80gb"),
        ("llama-2-7b", "--batch-size", "64", "--engine", "hf", "--gpu", "a100-sxm-40gb"),
        ("qwen2.5-vl-7b", "--images", "8x1344x1344", "--batch-size", "64"),
        ("llama-2-7b", "--batch-size", "48", "--gpu", "a100-sxm-40gb", "--prefix-len", "512"),
    ],
)
def test_what_is_said_to_fit_does_fit(run: Run, words: tuple[str, ...]) -> None:
    ran = run("analyze", *words, "--json")
    assert ran.code == 1 and ran.json["feasible"] is False
    reason = ran.json["reason"]
    assert f"infeasible: {reason}" in ran.err and re.match(r"needs [\d.]+ .?B of [\d.]+ .?B usable per GPU", reason)
    assert (
        ran.json["memory"]["total_bytes"] > ran.json["memory"]["usable_bytes"] and ran.json["phases"]["prefill"]["ops"]
    )
    ways = reason.partition("fits with ")[2]
    for way in ways.split(" or ") if ways else []:
        flags = way.partition(" (")[0].split()  # what stands after them is how many nodes that takes
        again = run("analyze", *words, *flags, "--json")
        assert again.code == 0, f"{way}: {again.json['reason']}"


def test_the_largest_batch_is_the_largest(run: Run) -> None:
    for engine in ("vllm", "hf", "roofline"):
        words = ("llama-2-7b", "--gpu", "a100-sxm-40gb", "--engine", engine, "--json")
        most = run("analyze", *words).json["memory"]["max_batch_size"]
        assert run("analyze", *words, "--batch-size", str(most)).code == 0, engine
        assert run("analyze", *words, "--batch-size", str(most + 1)).code == 1, engine


def test_a_layout_that_does_not_divide_is_infeasible(run: Run) -> None:
    ran = run("analyze", "llama-3.1-8b", "-tp", "3", "--json")
    assert ran.code == 1 and "32" in ran.json["reason"] and "3" in ran.json["reason"]
    assert ran.json["plan"]["tensor_parallel_size"] == 3
