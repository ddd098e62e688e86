"""What a phase computes, reads and sends, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import inferometer
from inferometer import Report, analyze
from inferometer.costs.binding import bind
from inferometer.inference.weights import parameters
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Engine, Plan


def _experts(batch: int, **kwargs: float) -> float:
    result = analyze("qwen3-30b-a3b", gpu="h200", batch_size=batch, input_len=64, **kwargs)  # type: ignore[arg-type]
    return next(op for op in result.phases["decode"].ops if op.name == "experts").load_weight


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
    result = analyze(model, gpu=gpu, engine="roofline", input_len=16, output_len=8)
    device = catalog.hardware(gpu)
    read = 2 * parameters(families.build(catalog.model(model).config), "active")  # without the input embedding
    assert result.phases["decode"].seconds == pytest.approx(read / device.memory_bandwidth, rel=0.03)
    assert result.phases["decode"].load_weight == pytest.approx(read, rel=0.001)


def test_prefill_computes_two_flops_per_active_parameter_and_token(report: Callable[..., Report]) -> None:
    result = report("llama-3.1-8b", engine="roofline", input_len=2048)
    head = 4096 * 128256
    linear = 2 * 2048 * (result.model.active_params - 2 * head) + 2 * head  # the input embedding multiplies nothing
    pairs = 2048 * 2049 / 2
    attention = 2 * 2 * pairs * 32 * 128 * 32
    assert result.phases["prefill"].OPs == pytest.approx(linear + attention, rel=0.002)
    ideal = (linear + attention) / 989.4e12
    assert ideal < result.phases["prefill"].seconds < 1.2 * ideal, "the rest is norms and activations through memory"


@pytest.mark.slow
def test_experts_are_read_only_where_a_token_chose_them() -> None:
    layer = 3 * 2048 * 768 * 2  # one expert: three matrices, two bytes
    assert _experts(1) == pytest.approx(48 * 8 * layer), "one token reads its eight of 128 experts"
    assert _experts(4) == pytest.approx(48 * layer * 128 * (1 - (1 - 8 / 128) ** 4))
    read = [_experts(batch) for batch in (1, 2, 8, 32, 128, 512)]
    assert read == sorted(read) and read[-1] == pytest.approx(48 * 128 * layer, rel=0.001)
    assert _experts(64, routing_skew=1.0) == pytest.approx(48 * 8 * layer), "always the same eight"


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


def test_expanded_keys_and_values_are_no_cache() -> None:
    wide, narrow = (
        inferometer.analyze(
            "deepseek-v2-lite", gpu="h200", input_len=4096, prefix_len=1024, kv_cache_dtype=word
        ).phases["prefill"]
        for word in ("bf16", "fp8")
    )
    latent = 27 * 4096 * (512 + 64)
    assert wide.load_kv_cache == pytest.approx(2 * latent) and narrow.load_kv_cache == pytest.approx(latent)
    keys = [next(op for op in phase.ops if op.name == "attention") for phase in (wide, narrow)]
    assert keys[0].load_act == keys[1].load_act > 4096 * 16 * (128 + 64 + 128) * 2  # of the first layer
    assert keys[0].load_kv_cache == 0


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"])
def test_indexers_score_in_fp8(name: str) -> None:
    network = families.build(catalog.model(name).config)
    scores = [op for block in network.blocks for op in block.ops if op.name == "index_scores"]
    assert scores and {op.peak for op in scores} == {"index_peak_flops"}
    for gpu, word in (("h200", "fp8"), ("a100-sxm-80gb", "bf16")):
        device = catalog.hardware(gpu)
        env = bind(network, device, Engine(), Plan()).env
        assert env["index_peak_flops"] == device.flops[word] and env["attention_peak_flops"] == device.flops["bf16"]
